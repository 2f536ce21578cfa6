"""Exact arithmetic of the specification: zeros, infinities and NaN are floats, all other numbers are `Fraction`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from prismm.formats import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prismm.numerics.parts import Mode, Subnormals

__all__ = [
    "binade",
    "difference",
    "exponent_of",
    "floor_to",
    "flushed",
    "number",
    "round_to",
    "scaled_sum",
    "special_of",
    "times",
    "to_precision",
]


def round_to(value: Fraction, format: Format, mode: Mode, overflow: str = "infinity") -> float:
    """An exact number, not 0, rounded once to a format of gradual underflow; what becomes zero keeps its sign.

    >>> from prismm.formats import FP16, FP32
    >>> round_to(Fraction(1) + Fraction(1, 2**24), FP32, "nearest"), round_to(Fraction(-1, 2**30), FP16, "zero")
    (1.0, -0.0)
    >>> round_to(Fraction(65520), FP16, "zero"), round_to(Fraction(65520), FP16, "nearest")
    (65504.0, inf)
    """
    size, sign = abs(value), 1.0 if value > 0 else -1.0
    quantum = Fraction(2) ** (max(binade(size), format.minexp) - format.fraction_bits)
    if mode == "floor":
        units = abs(math.floor(value / quantum))
    else:
        units = math.floor(size / quantum)
        rest = size / quantum - units
        if mode == "nearest":
            units += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and units % 2)
        elif mode == "odd":
            units |= rest > 0
    rounded = units * quantum
    if rounded >= Fraction(2) ** format.maxexp:
        return sign * (format.max if overflow == "saturate" else math.inf)
    return sign * float(rounded)


def binade(size: Fraction) -> int:
    """floor(log2(size))."""
    e = size.numerator.bit_length() - size.denominator.bit_length()
    return e if size >= Fraction(2) ** e else e - 1


def flushed(x: float, format: Format, policy: Subnormals) -> float:
    """x, or what the policy makes of a subnormal one."""
    if policy == "keep" or not 0.0 < abs(x) < format.smallest_normal:
        return x
    return math.copysign(0.0, x) if policy == "flush" else 0.0


def exponent_of(x: Fraction | float, format: Format) -> int:
    """floor(log2|x|) of x other than 0, and that of the least normal value for subnormal x."""
    return max(binade(abs(Fraction(x))), format.minexp)


def times(x: Fraction | float, y: float) -> Fraction | float:
    """x·y, exactly; zeros, infinities and NaN (also for inf·0) as float64 multiplies them."""
    if x == 0 or y == 0.0 or not math.isfinite(y) or (isinstance(x, float) and not math.isfinite(x)):
        # A fraction may be beyond float64; here its sign is all that counts.
        return (float((x > 0) - (x < 0)) if isinstance(x, Fraction) else x) * y
    return Fraction(x) * Fraction(y)


def scaled_sum(values: Sequence[Fraction | float], factor: float) -> Fraction | float:
    """The sum of a group's products times their factor; 0.0 where either has no exponent."""
    special = math.nan if math.isnan(factor) else special_of(values)
    if special is not None:
        return special
    if factor == 0.0 or not any(values):
        return 0.0
    return sum((Fraction(x) for x in values), Fraction(0)) * Fraction(factor)


def difference(x: Fraction | float, y: Fraction | float) -> Fraction:
    """x - y; 0 where one is infinite or NaN."""
    finite = all(isinstance(z, Fraction) or math.isfinite(z) for z in (x, y))
    return Fraction(x) - Fraction(y) if finite else Fraction(0)


def floor_to(x: Fraction, exponent: int) -> Fraction:
    """x cut off to the floor, to a multiple of 2^exponent."""
    unit = Fraction(2) ** exponent
    return math.floor(x / unit) * unit


def to_precision(x: Fraction, fraction_bits: int, mode: Mode) -> Fraction:
    """x, not 0, rounded to 1 + fraction_bits significant bits, of any exponent."""
    unit = Fraction(2) ** (binade(abs(x)) - fraction_bits)
    q = x / unit
    if mode == "nearest":
        return round(q) * unit  # Python's rounds ties to even
    if mode == "floor":
        return math.floor(q) * unit
    units = math.trunc(q)
    if mode == "odd" and units != q and units % 2 == 0:
        units += 1 if q > 0 else -1
    return units * unit


def number(x: Fraction | float) -> Fraction | float:
    """Finite floats other than zero as rationals."""
    return x if isinstance(x, Fraction) or x == 0.0 or not math.isfinite(x) else Fraction(x)


def special_of(values: Sequence[Fraction | float]) -> float | None:
    """NaN or an infinity, where the terms make their sum one; else None."""
    floats = [x for x in values if isinstance(x, float) and not math.isfinite(x)]
    if not floats:
        return None
    if any(math.isnan(x) for x in floats) or (math.inf in floats and -math.inf in floats):
        return math.nan
    return floats[0]
