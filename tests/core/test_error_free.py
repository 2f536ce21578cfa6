"""Error-free transformations lose nothing, over all exponents that they promise."""

from fractions import Fraction

import numpy as np

from prismm.core.error_free import split, two_product, two_sum


def draw(rng: np.random.Generator, reach: int) -> np.ndarray:
    """Numbers of all significands, many with long runs of ones and zeros, times powers of two in ±reach."""
    bits = rng.integers(2**52, 2**53, 4000) & (-1 << rng.integers(0, 40, 4000))
    bits[::5] = 2**53 - (1 << rng.integers(0, 52, bits[::5].size))
    return np.ldexp(rng.choice([-1.0, 1.0], bits.size) * bits, rng.integers(-reach, reach + 1, bits.size) - 52)


def test_nothing_is_lost(rng):
    a, b = draw(rng, 480), draw(rng, 480)
    b[::7], b[1::7] = -a[::7], 0.0
    for x, y, p, p_rest, s, s_rest in zip(a, b, *two_product(a, b), *two_sum(a, b), strict=True):
        assert p == x * y and Fraction(p) + Fraction(p_rest) == Fraction(x) * Fraction(y)
        assert s == x + y and Fraction(s) + Fraction(s_rest) == Fraction(x) + Fraction(y)


def test_halves_have_26_bits(rng):
    x = draw(rng, 990)
    for part in split(x):
        mantissa = np.abs(np.ldexp(np.frexp(part)[0], 26))
        assert (mantissa == np.rint(mantissa)).all()
    assert (sum(split(x)) == x).all()
