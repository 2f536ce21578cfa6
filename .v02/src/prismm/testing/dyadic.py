"""Matrices of exact dyadic numbers, integer * 2^exponent: the arithmetic below the exact reference.

Slow and obvious on purpose. Numerators are Python integers in arrays of dtype object, exponents are
int64; only the integer matrix product has a second, faster backend (FLINT), which must return the
same integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prismm.errors import ArgumentError, DTypeError
from prismm.formats import Format, Rounding, format_of, round_fraction

__all__ = ["Backend", "Dyadic", "multiply"]

Backend = Literal["flint", "python"]
Integers: TypeAlias = NDArray[np.object_]
Exponents: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dyadic:
    """A real matrix whose entry (i, j) is exactly numerators[i, j] * 2^exponents[i, j].

    Args:
        numerators: Python integers, dtype object.
        exponents: int64, of the same shape.

    >>> import numpy as np
    >>> from prismm.testing.dyadic import Dyadic
    >>> x = Dyadic.from_array(np.array([[0.75, -4.0]]))
    >>> x.numerators, x.exponents
    (array([[3, -1]], dtype=object), array([[-2,  2]]))
    """

    numerators: Integers
    exponents: Exponents

    @classmethod
    def from_array(cls, x: NDArray[Any]) -> Dyadic:
        """The entries of ``x`` exactly: odd or zero numerators (integers keep theirs, exponent 0).

        The bits are read as integers, so that no mode of the floating-point unit can flush a
        subnormal.

        Args:
            x: finite float16, float32 or float64, or any integer type or bool.

        Raises:
            DTypeError: for other element types.
            ArgumentError: if an entry is not finite.
        """
        x = np.asarray(x)
        if x.dtype.kind in "iub":
            integers = np.array([int(v) for v in x.ravel().tolist()], dtype=object)
            return cls(integers.reshape(x.shape), np.zeros(x.shape, np.int64))
        if x.dtype.kind != "f":
            raise DTypeError(f"cannot read {x.dtype} exactly; pass float16, float32, float64 or integers")
        fmt = format_of(x.dtype)  # refuses longdouble
        native = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
        bits = native.view(f"u{fmt.bits // 8}").astype(np.uint64).view(np.int64).reshape(x.shape)
        biased = (bits >> fmt.fraction_bits) & ((1 << fmt.exponent_bits) - 1)
        if np.any(biased == (1 << fmt.exponent_bits) - 1):
            raise ArgumentError("an exact reference needs finite entries; see correctly_rounded for Inf and NaN")
        significand = bits & ((1 << fmt.fraction_bits) - 1)
        significand |= (biased > 0).astype(np.int64) << fmt.fraction_bits
        exponents = np.maximum(biased, 1) - 1 + fmt.subnormal_exponent
        lowest = significand & -significand
        zeros = np.where(significand == 0, 0, np.bitwise_count(np.maximum(lowest, 1) - 1)).astype(np.int64)
        negative = (bits >> (fmt.bits - 1)) & 1 == 1
        numerators = np.where(negative, -(significand >> zeros), significand >> zeros)
        return cls(numerators.astype(object), np.where(significand == 0, 0, exponents + zeros))

    def aligned(self, axis: int) -> tuple[Integers, Exponents]:
        """Numerators over one exponent along ``axis``, and those exponents (of length 1 there)."""
        exponents = np.where(self.numerators == 0, np.iinfo(np.int64).max, self.exponents)
        low = np.min(exponents, axis=axis, keepdims=True, initial=np.iinfo(np.int64).max)
        low = np.where(low == np.iinfo(np.int64).max, 0, low)  # a row of zeros
        shifts = np.where(self.numerators == 0, 0, self.exponents - low)
        return self.numerators << shifts.astype(object), low

    def __add__(self, other: Dyadic) -> Dyadic:
        low = np.minimum(self.exponents, other.exponents)
        total = (self.numerators << (self.exponents - low).astype(object)) + (
            other.numerators << (other.exponents - low).astype(object)
        )
        return Dyadic(total, low)

    def __neg__(self) -> Dyadic:
        return Dyadic(-self.numerators, self.exponents)

    def __sub__(self, other: Dyadic) -> Dyadic:
        return self + -other

    def __abs__(self) -> Dyadic:
        return Dyadic(np.abs(self.numerators), self.exponents)

    def times(self, factor: Dyadic) -> Dyadic:
        """Entry by entry, with broadcasting."""
        return Dyadic(self.numerators * factor.numerators, self.exponents + factor.exponents)

    def rounded(self, fmt: Format, rounding: Rounding = "nearest") -> NDArray[np.float64]:
        """Every entry rounded once by `prismm.formats.round_fraction`, as float64."""
        pairs = zip(self.numerators.ravel().tolist(), self.exponents.ravel().tolist(), strict=True)
        values = [round_fraction(fmt, numerator, exponent, rounding) for numerator, exponent in pairs]
        return np.array(values, dtype=np.float64).reshape(self.numerators.shape)


def multiply(x: Dyadic, y: Dyadic, backend: Backend | None = None) -> Dyadic:
    """The exact matrix product: integers, with one exponent a row of ``x`` and a column of ``y``.

    Args:
        x: (m, k).
        y: (k, n).
        backend: "flint" or "python"; None takes FLINT where python-flint is installed.

    Raises:
        ArgumentError: for an unknown backend.
    """
    left, row_exponents = x.aligned(axis=1)
    right, column_exponents = y.aligned(axis=0)
    if backend is None:
        backend = "flint" if find_spec("flint") else "python"
    if backend not in ("flint", "python"):
        raise ArgumentError(f"backend={backend!r} is unknown; pass 'flint', 'python' or None")
    if left.size == 0 or right.size == 0:
        product = np.zeros((left.shape[0], right.shape[1]), np.int64).astype(object)
    elif backend == "flint":
        product = _flint_product(left, right)
    else:
        product = left @ right
    return Dyadic(product, row_exponents + column_exponents)


def _flint_product(left: Integers, right: Integers) -> Integers:
    flint = import_module("flint")
    x = flint.fmpz_mat(*left.shape, left.ravel().tolist())
    y = flint.fmpz_mat(*right.shape, right.ravel().tolist())
    entries = [int(entry) for entry in (x * y).entries()]
    return np.array(entries, dtype=object).reshape(left.shape[0], right.shape[1])
