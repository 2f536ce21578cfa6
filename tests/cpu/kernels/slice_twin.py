"""Slices in fractions and Python integers: what the kernels are compared with."""

from __future__ import annotations

import math
from fractions import Fraction

from prismm.schemes.slice_layout import Layout


def two(exponent: int) -> Fraction:
    """2^exponent."""
    return Fraction(2) ** exponent


def binade(x: Fraction) -> int:
    """The smallest e with |x| < 2^e, for x != 0."""
    e = abs(x).numerator.bit_length() - x.denominator.bit_length() + 1
    return e - 1 if abs(x) < two(e - 1) else e


def vector(xs: list[float], layout: Layout, slices: int) -> tuple[list[list[int]], list[int], list[Fraction]]:
    """(digits per slice, exponents, what is left) of one vector."""
    exact = [Fraction(x) for x in xs]
    if layout.carried:
        return _carried(exact, slices)
    nearest = layout.rounding == "nearest"
    digits, exponents = [], []
    last = 0
    for p in range(1, slices + 1):
        e = (1 if nearest else 0) - layout.bits * p
        top = max((abs(x) for x in exact), default=Fraction(0))
        if layout.adaptive:
            if top == 0:
                digits.append([0] * len(xs))
                exponents.append(last)
                continue
            e = binade(top) - (layout.bits - 1 if nearest else layout.bits)
            if nearest and layout.unit.inputs is None and round(top / two(e)) > 127:
                e += 1
            elif nearest and round(top / two(e)) == 0:
                e -= 1
        # Python rounds halves to even; truncation is toward zero.
        row = [round(x / two(e)) if nearest else math.trunc(x / two(e)) for x in exact]
        exact = [x - d * two(e) for x, d in zip(exact, row, strict=True)]
        digits.append(row)
        exponents.append(e)
        last = e
    return digits, exponents, exact


def _carried(exact: list[Fraction], slices: int) -> tuple[list[list[int]], list[int], list[Fraction]]:
    start = 1 if max((abs(x) for x in exact), default=Fraction(0)) <= Fraction(127, 128) else 2
    digits = [[0] * len(exact) for _ in range(slices)]
    left = []
    for h, x in enumerate(exact):
        unit = two(start - 8 * slices)
        whole = round(x / unit)
        left.append(x - whole * unit)
        for p in range(slices - 1, -1, -1):
            digit = (whole + 128) % 256 - 128
            digits[p][h] = digit
            whole = (whole - digit) // 256
        assert whole == 0
    return digits, [start - 8 * p for p in range(1, slices + 1)], left
