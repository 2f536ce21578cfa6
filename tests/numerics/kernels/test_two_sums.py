"""`sum_of_two` adds numbers of up to 107 bits: its result rounds to the same float as the exact sum, in every mode."""

from __future__ import annotations

from fractions import Fraction

import numba
import numpy as np
import pytest

from prismm.numerics.kernels import dot_two_sums

sum_of_two = numba.njit(error_model="numpy")(dot_two_sums.sum_of_two.py_func)


def ends(value: Fraction, precision: int) -> tuple[Fraction, Fraction, Fraction]:
    """`value` rounded down and up to `precision` bits, and the sign of its distance from their midpoint."""
    shift = value.numerator.bit_length() - value.denominator.bit_length() - precision
    while value / Fraction(2) ** shift >= 1 << precision:
        shift += 1
    unit = Fraction(2) ** shift
    down = value // unit * unit
    rest = (value - down) / unit
    return down, down if rest == 0 else down + unit, (rest > Fraction(1, 2)) - Fraction(rest < Fraction(1, 2))


def number(rng: np.random.Generator) -> tuple[int, int]:
    """Random h and m of the same sign. The number h·2^54 + m has up to 107 bits, often with trailing zeros."""
    bits = int(rng.integers(0, 108))
    size = int.from_bytes(rng.bytes(14), "big") >> (112 - bits) if bits else 0
    if rng.random() < 0.4:
        size &= -1 << int(rng.integers(0, 107))
    if rng.random() < 0.3:
        size |= 1
    sign = -1 if rng.random() < 0.5 else 1
    return sign * (size >> 54), sign * (size & ((1 << 54) - 1))


@pytest.mark.slow
def test_the_result_rounds_as_the_exact_sum(rng):
    wide = cancelled = 0
    for _ in range(2000):
        (h1, m1), (h2, m2) = number(rng), number(rng)
        if rng.random() < 0.3:  # nearly the same magnitudes
            h2, m2 = -h1, -m1 + int(rng.integers(-1, 2)) * (abs(m1) < 1 << 53)
            if h2 and m2 and (h2 < 0) != (m2 < 0):
                h2, m2 = -h1, -m1
        e1, e2 = int(rng.integers(-60, 60)), int(rng.integers(-60, 60))
        if rng.random() < 0.4:
            e2 = e1 + int(rng.integers(-3, 4))
        exact = ((h1 << 54) + m1) * Fraction(2) ** e1 + ((h2 << 54) + m2) * Fraction(2) ** e2
        negative, m, e, sticky = sum_of_two(*(np.int64(x) for x in (h1, m1, e1, h2, m2, e2)))
        # The sticky flag stands for a fraction of the last bit; one half represents it.
        left = (int(m) + (Fraction(1, 2) if sticky else 0)) * Fraction(2) ** int(e)
        what = (h1, m1, e1, h2, m2, e2, m, e, sticky)
        assert (left == 0) == (exact == 0), what
        if exact == 0:
            cancelled += 1
            continue
        assert bool(negative) == (exact < 0), what
        for precision in (11, 24, 53):
            assert ends(left, precision) == ends(abs(exact), precision), what
        wide += bool(h1 and h2)
    assert wide > 300 and cancelled > 5
