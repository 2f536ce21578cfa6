"""Operands of one dot product on the command line: given, published, or random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from prismm.cli.numerals import in_format, parse_number, parse_numbers
from prismm.errors import ArgumentError, ShapeError
from prismm.formats import FP64, Format, Integer

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel

_LONGEST = 4096
_TERMS = 6  # of a random dot product


@dataclass(frozen=True)
class Operands:
    """One dot product's inputs, before they are values of a format, and where they come from."""

    a: list[Fraction | float]
    b: list[Fraction | float]
    c: Fraction | float
    origin: str
    scale_a: list[Fraction | float] | None = None
    scale_b: list[Fraction | float] | None = None
    rounded: bool = False

    def for_engine(self, model: EngineModel) -> Inputs:
        """The values for one engine; its formats must have them, or `rounded` be set.

        Raises:
            ArgumentError: for values that its formats lack, or scales that it does not take.
            ShapeError: for a wrong number of scale factors.
        """
        a, b = (
            [in_format(x, model.input, f"{model.name}: {what}[{i}]", self.rounded) for i, x in enumerate(values)]
            for what, values in (("a", self.a), ("b", self.b))
        )
        c = in_format(self.c, model.output, f"{model.name}: c", self.rounded)
        if model.scale is None:
            if self.scale_a is not None or self.scale_b is not None:
                raise ArgumentError(f"{model.name} has no block scales; leave out --scale-a and --scale-b")
            return Inputs(a, b, c, None, None)
        count = -(-len(a) // model.scale.length)
        scales: list[list[float]] = []
        for what, given in (("--scale-a", self.scale_a), ("--scale-b", self.scale_b)):
            if given is not None and len(given) != count:
                raise ShapeError(
                    f"{what} has {len(given)} factors; {model.name} takes {count} for {len(a)} elements, one for "
                    f"every {model.scale.length}"
                )
            scales.append([1.0] * count if given is None else [in_format(x, FP64, what, rounded=True) for x in given])
        return Inputs(a, b, c, *scales)


@dataclass(frozen=True)
class Inputs:
    """The same as values of an engine's formats."""

    a: list[float]
    b: list[float]
    c: float
    scale_a: list[float] | None = None
    scale_b: list[float] | None = None

    def exact(self, model: EngineModel) -> Fraction | float:
        """c + Σ a·b·scales in exact arithmetic; NaN or an infinity as IEEE 754 has them."""
        terms: list[Fraction | float] = [self.c]
        length = 1 if model.scale is None else model.scale.length
        for i, (x, y) in enumerate(zip(self.a, self.b, strict=True)):
            factors = [x, y]
            if self.scale_a is not None and self.scale_b is not None:
                factors += [self.scale_a[i // length], self.scale_b[i // length]]
            if all(map(math.isfinite, factors)):
                terms.append(math.prod(map(Fraction, factors), start=Fraction(1)))
            else:
                terms.append(math.prod(factors))
        special = sum(float(x) for x in terms if isinstance(x, float) and not math.isfinite(x))
        if special != 0.0:
            return special
        return sum((Fraction(x) for x in terms), Fraction(0))


def operands(
    models: Sequence[EngineModel],
    a: str | None,
    b: str | None,
    c: str | None,
    scales: tuple[str | None, str | None],
    count: int | None,
    seed: int,
    rounded: bool,
) -> Operands:
    """What the options ask for: a and b, or `count` random terms, or the published sum, if all formats have it.

    Raises:
        ArgumentError: for a value that is not a number, or only one of a and b.
        ShapeError: if a and b differ in length.
    """
    if (a is None) != (b is None):
        raise ArgumentError("pass both --a and --b, or neither")
    if a is not None and b is not None:
        if count is not None:
            raise ArgumentError("--random makes its own operands; leave out --a and --b")
        left, right = parse_numbers(a), parse_numbers(b)
        if len(left) != len(right):
            raise ShapeError(f"--a has {len(left)} elements and --b {len(right)}; pass the same number")
        if len(left) > _LONGEST:
            raise ShapeError(f"--a has {len(left)} elements; pass at most {_LONGEST}")
        start = Fraction(0) if c is None else parse_number(c)
        factors = [None if text is None else parse_numbers(text) for text in scales]
        return Operands(left, right, start, "as given", factors[0], factors[1], rounded)
    if c is not None or scales != (None, None):
        raise ArgumentError("--c, --scale-a and --scale-b need --a and --b")
    found = published(models) if count is None else None
    return found or random(models, _TERMS if count is None else count, seed)


def published(models: Sequence[EngineModel]) -> Operands | None:
    """2^23 - 2^23 - 0.5 - 0.25 - 0.125, times a power of two that all formats have room for; None without one.

    Exactly it is -0.875, and engines differ in how much of that they keep (Xie et al., Table 8).

    >>> from prismm.numerics import engine
    >>> published([engine("v100.fp16.fp32")]).a
    [Fraction(-8192, 1), Fraction(-1, 2), Fraction(-1, 4), Fraction(-1, 8)]
    >>> published([engine("h100-mma.e4m3.fp32")]).c == 2**16, published([engine("a2.int8.int32")])
    (True, None)
    """
    formats = [(m.input, m.output) for m in models]
    for shift in sorted(range(-40, 41), key=abs):
        powers = [_split(shift + e, formats) for e in (23, -1, -2, -3)]
        ends = (shift + 23, shift - 3)
        if None in powers or not all(_has(output, e) for _, output in formats for e in ends):
            continue
        pairs = [pair for pair in powers if pair is not None]
        text = "2^23 - 2^23 - 0.5 - 0.25 - 0.125" + (f", times 2^{shift}" if shift else "")
        two = Fraction(2)
        return Operands(
            [-(two ** pair[0]) for pair in pairs],
            [two ** pair[1] for pair in pairs],
            two ** (shift + 23),
            f"the published sum that tells engines apart, {text}",
        )
    return None


def _split(exponent: int, formats: Sequence[tuple[Format | Integer, Format | Integer]]) -> tuple[int, int] | None:
    """Exponents of two powers that all input formats have, whose product is 2^exponent; the second 0 if it can be."""
    balanced = (exponent + 3) // 2
    for first in (exponent, *sorted(range(balanced - 40, balanced + 41), key=lambda e: abs(e - balanced))):
        if all(_has(f, first) and _has(f, exponent - first) for f, _ in formats):
            return first, exponent - first
    return None


def _has(format: Format | Integer, exponent: int) -> bool:
    """Whether 2^exponent is a value."""
    if isinstance(format, Integer):
        return False
    return format.subnormal_exponent <= exponent and 2.0**exponent <= format.max if exponent < 1024 else False


def random(models: Sequence[EngineModel], count: int, seed: int) -> Operands:
    """Random terms that all engines' formats have, near enough in size to meet and to be cut off."""
    import numpy as np

    rng = np.random.default_rng(seed)

    def draw(formats: Sequence[Format | Integer], n: int, spread: int) -> list[Fraction | float]:
        whole = [f for f in formats if isinstance(f, Integer)]
        if whole:
            low, high = max(f.min for f in whole), min(f.max for f in whole)
            return [Fraction(int(x)) for x in rng.integers(low, high + 1, n)]
        floats = [f for f in formats if isinstance(f, Format)]
        p = min(23, *(f.fraction_bits for f in floats))
        low = max(-spread, *(f.minexp for f in floats))
        high = max(low, min(spread, *(f.maxexp - 2 for f in floats)))
        significands = rng.integers(1 << p, 2 << p, n) * rng.choice([-1, 1], n)
        exponents = rng.integers(low, high + 1, n) - p
        return [int(s) * Fraction(2) ** int(e) for s, e in zip(significands, exponents, strict=True)]

    a, b = (draw([m.input for m in models], count, 8) for _ in range(2))
    c = draw([m.output for m in models], 1, 8)[0]
    return Operands(a, b, c, f"{count} random terms, seed {seed}")
