"""Error-free transformations lose nothing, over all exponents that they promise."""

from fractions import Fraction

import numpy as np

from prismm.core.error_free import rounded_products, split, two_product, two_sum
from prismm.formats import FP32, FP64, round_fraction


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


def test_products_are_rounded_once(rng):
    """To 53 and 24 bits: next to midpoints, subnormal, beyond the largest number, with signs; a zero is +0."""
    for fmt, reach in ((FP64, 1060), (FP32, 140)):
        x = np.ldexp(draw(rng, 0), rng.integers(-reach, reach // 2, 4000))
        x[::3] = x[::3].astype(np.float32 if fmt is FP32 else np.float64)
        x[:4] = 0.0, -0.0, 2.0**fmt.subnormal_exponent, -(2.0**fmt.subnormal_exponent)
        for factor in (0.75, -1.0 / 3.0, 1.0 + 2.0**-24 + 2.0**-52, 2.0**-60 * 1.1, -(2.0**100), 5e-324, 1.7e308):
            got = rounded_products(x, factor, fmt.precision)
            for value, given in zip(got.tolist(), x.tolist(), strict=True):
                exact = Fraction(given) * Fraction(factor)
                wanted = round_fraction(fmt, exact.numerator, 1 - exact.denominator.bit_length())
                assert value == wanted, (given, factor)
                assert given == 0.0 or np.signbit(value) == (np.signbit(given) != (factor < 0.0))
    assert not np.signbit(rounded_products(np.array([-0.0, 0.0]), -1.0, 53)).any()
