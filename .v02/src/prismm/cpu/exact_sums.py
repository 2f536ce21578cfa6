"""gemm of a scheme's own value: RN(alpha·V + beta·C) of entries that `cpu.kernels.round_and_test` left uncertified,
from all of V.

A value is more than two numbers where slices have more than 106 bits together, and C may cancel all that two hold. So
the sum is made of all numbers that the scheme has of it, with products split in two (Dekker) and two-sums that lose
nothing, in NumPy's arrays; where they still leave the rounding undecided, or numbers are so far from 1 that something
might underflow, in Python's integers. Either way it is the exact sum, rounded once: a function of the entry's own row,
column and C, whatever the tile.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.composite import Joined
from prismm.core.error_free import two_product, two_sum
from prismm.formats import Format, round_fraction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]

_FAR = 2.0**450
"""Products of numbers between this and its inverse, and what they lose when they are rounded, are exact."""
_PASSES = 4


def exact_sums(
    values: list[Joined], i: Index, j: Index, exponent: Index, addends: list[Floats], factors: Floats, result: Format
) -> Floats:
    """Entries (i, j) of Σ factors·(values·2^exponent, addends), rounded once to `result`, as float64 numbers.

    values: of every real part of the product; exponent and addends (finite): of each entry. factors: of two values and
    two addends, as of `Epilogue.factors`.
    """
    with np.errstate(all="ignore"):
        found, uncertified = _by_expansions(values, i, j, exponent, addends, factors, result.precision)
    for t in np.flatnonzero(uncertified).tolist():
        total = Fraction(0)
        for f, value in zip(factors[:2].tolist(), values, strict=False):
            if f:
                total += Fraction(f) * _whole(value, int(i[t]), int(j[t])) * Fraction(2) ** int(exponent[t])
        for f, c in zip(factors[2:].tolist(), addends, strict=False):
            if f:
                total += Fraction(f) * Fraction(float(c[t]))
        found[t] = round_fraction(result, total.numerator, 1 - total.denominator.bit_length())
    return found


def _whole(value: Joined, i: int, j: int) -> Fraction:
    """All of a value, in scaled units."""
    if value.whole is not None:
        integer, exponent = value.whole(i, j)
        return integer * Fraction(2) ** exponent
    return sum((Fraction(float(x[i, j])) for x in _numbers(value)), Fraction(0))


def _numbers(value: Joined) -> list[Any]:
    return [value.high, *([value.low] if value.low is not None else []), *value.rest]


def _by_expansions(
    values: list[Joined], i: Index, j: Index, exponent: Index, addends: list[Floats], factors: Floats, precision: int
) -> tuple[Floats, NDArray[np.bool_]]:
    """(the sums, rounded, and where that is open)."""
    terms: list[Floats] = []
    missing, far = np.zeros(i.size), np.abs(exponent) > 900

    def add(f: float, x: Floats) -> None:
        nonlocal far
        size = np.abs(x)
        far |= (x != 0.0) & ~((size >= 1.0 / _FAR) & (size <= _FAR))
        terms.extend(two_product(x, np.full(1, f)))

    for f, value in zip(factors[:2].tolist(), values, strict=False):
        if f:
            numbers = [np.ldexp(x[i, j], exponent) for x in _numbers(value)]
            for x in numbers:
                add(f, x)
            if value.whole is not None:
                # Each number is rounded from all that is left: of that after the last, at most 2^-100 of the last pair
                # is missing, unless it is so small that it may have underflowed.
                missing += np.abs(f * numbers[-2]) * 2.0**-100
                far |= np.abs(value.high[i, j]) < 2.0**-700
    for f, c in zip(factors[2:].tolist(), addends, strict=False):
        if f:
            add(f, c)
    far |= any(f and not 1.0 / _FAR <= abs(f) <= _FAR for f in factors.tolist())
    if not terms:
        return np.zeros(i.size), np.zeros(i.size, np.bool_)
    for _ in range(_PASSES):
        for t in range(len(terms) - 1, 0, -1):
            terms[t - 1], terms[t] = two_sum(terms[t - 1], terms[t])
    h, m = terms[0] + 0.0, terms[1] if len(terms) > 1 else np.zeros(i.size)
    err = missing + sum((np.abs(x) for x in terms[2:]), np.zeros(i.size))
    err = np.where(err > 0.0, err * (1.0 + 2.0**-40) + np.abs(m) * 2.0**-50, 0.0)
    below, above = h + (m - err), h + (m + err)
    if precision == 53:
        return h, far | (below != h) | (above != h)
    exact = (err == 0.0) & (m == 0.0)
    # Ends that are midpoints of float32 decide nothing.
    below, above = (x + np.abs(x) * by for x, by in ((below, -(2.0**-51)), (above, 2.0**-51)))
    first, last = (x.astype(np.float32).astype(np.float64) for x in (below, above))
    alike = (first == last) & ((below > 0.0) == (above > 0.0))
    return np.where(exact, h.astype(np.float32).astype(np.float64), first), far | ~(exact | alike)
