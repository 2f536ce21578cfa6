"""How the split reduces modulo p in float32 on NVIDIA's GPUs: every integer that can come up, in exact arithmetic."""

import numpy as np
import pytest

from prismm.core.moduli import byte_tables, coprime_moduli
from prismm.cuda.residues.tables import float_reduction

MOST = 25


def nearest_float32(numerator: np.ndarray, bits: int) -> np.ndarray:
    """RN(numerator·2^-bits) to a multiple of 1, ties to even: float32's rounding of numbers in [2^23, 2^24)."""
    whole, rest = numerator >> bits, numerator & ((1 << bits) - 1)
    half = 1 << (bits - 1)
    return whole + ((rest > half) | ((rest == half) & (whole & 1 == 1)))


@pytest.mark.parametrize("p", coprime_moduli(256, MOST))
def test_every_sum_of_bytes_is_reduced_to_a_signed_byte(p):
    start, inverse, shift, minus, base = float_reduction(p, p - 1)
    assert start == base + p - 1
    inverse, shift, minus = (np.array(x, np.int32).view(np.float32) for x in (inverse, shift, minus))
    assert float(minus) == -p
    x = np.arange(-(1 << 20), (1 << 20) + p, dtype=np.int64)
    y = x + base - 0x4B000000 + (1 << 23)  # what the pattern base + x stands for
    assert y.min() >= 1 << 23 and y.max() < 1 << 24
    bits = 31
    scaled = int(float(inverse) * 2.0**bits)
    assert scaled == float(inverse) * 2.0**bits and float(shift) == int(shift)
    exact = y * scaled + (int(shift) << bits)  # below 2^56
    assert exact.min() >= 1 << (23 + bits) and exact.max() < 1 << (24 + bits)
    q = nearest_float32(exact, bits) - 3 * (1 << 22)
    rest = y - q * p
    assert np.all(rest >= 1 << 23) and np.all(rest < 1 << 24)  # so that it is exact, and its pattern is 0x4B000000 + …
    byte = (rest - (1 << 23)).astype(np.uint8).view(np.int8)
    assert np.all((byte - x) % p == 0)


@pytest.mark.parametrize("moduli", (1, 7, 8, 14, 15, 20, MOST))
def test_sums_of_bytes_stay_in_the_range_that_is_reduced(moduli):
    """Of the byte factors, for one number and for the sum of two."""
    packed = byte_tables(moduli)
    for words in (packed.left, packed.right):
        factors = np.asarray(words, np.int64).astype(np.int32).view(np.int8).astype(np.int64)
        most = 255 * np.abs(factors).reshape(moduli, -1).sum(1)
        assert 2 * most.max() < 1 << 20
