"""einsum by its definition, in rational arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np

from prismm.formats import FP32, FP64, round_fraction


def _rounded(x: Fraction, single: bool) -> float:
    return round_fraction(FP32 if single else FP64, x.numerator, -(x.denominator.bit_length() - 1))


def _value(x: Any) -> tuple[Fraction, Fraction]:
    z = complex(x)
    return Fraction(z.real), Fraction(z.imag)


def exact_einsum(inputs: list[tuple[str, ...]], output: tuple[str, ...], operands: list[Any], dtype: Any) -> np.ndarray:
    """RN of the sum over all indices that are not in the result; labels that start with a dot broadcast."""
    size: dict[str, int] = {}
    for labels, x in zip(inputs, operands, strict=True):
        for label, length in zip(labels, x.shape, strict=True):
            size[label] = max(size.get(label, length), length) if length != 0 else 0
    result = np.zeros([size[label] for label in output], dtype)
    single = result.real.dtype == np.float32
    summed = [label for label in size if label not in output]
    for at in np.ndindex(result.shape):
        fixed = dict(zip(output, at, strict=True))
        real, imag = Fraction(0), Fraction(0)
        for values in itertools.product(*(range(size[label]) for label in summed)):
            where = fixed | dict(zip(summed, values, strict=True))
            re, im = Fraction(1), Fraction(0)
            for labels, x in zip(inputs, operands, strict=True):
                place = tuple(where[s] if n > 1 else 0 for s, n in zip(labels, x.shape, strict=True))
                p, q = _value(x[place])
                re, im = re * p - im * q, re * q + im * p
            real, imag = real + re, imag + im
        value = _rounded(real, single)
        result[at] = complex(value, _rounded(imag, single)) if result.dtype.kind == "c" else value
    return result
