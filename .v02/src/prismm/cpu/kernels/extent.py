"""How far the bits of rows and columns reach, and their norms: whether a product of so many bits is exact.

Bytes: each element is read twice; 20 operations an element.
"""

import numpy as np

from prismm.core.jit import bits_of, contiguous_row, device, kernel, wide_vectors
from prismm.cpu.kernels.scale import exponent_above, two_factors

NOTHING = 1 << 20


@device
def _lowest(bits):
    """The exponent of the lowest bit of a finite float64; `NOTHING` for zero."""
    field = (bits >> 52) & 0x7FF
    m = bits & ((np.int64(1) << 52) - 1)
    m |= (np.int64(1) << 52) if field > 0 else 0
    # The exponent field of the lowest bit as a float64 says where it is: no loop over bits, so the caller's loop
    # vectorises.
    bit = (bits_of(np.float64(m & -m)) >> 52) - 1023
    return bit + max(field, 1) - 1075 if m != 0 else NOTHING


@kernel("void(float64[:,::1], int64[::1], int64[::1], float64[::1], float64[::1])")
def extent_rows(x, top, low, norm1, norm2):
    """Per row: the least e with |x| < 2^e, the largest l with x a multiple of 2^l (both 0 where it is zero), and the
    sums of |x| and x² of the row times 2^-e, which is below 1.
    """
    wide_vectors()
    for i in range(x.shape[0]):
        row = contiguous_row(x, i, 0, x.shape[1])
        bits = row.view(np.int64)
        largest = np.int64(0)
        least = np.int64(NOTHING)
        for h in range(bits.size):
            # Without the sign bit patterns order like magnitudes.
            largest = max(largest, bits[h] & 0x7FFFFFFFFFFFFFFF)
            least = min(least, _lowest(bits[h]))
        e = exponent_above(largest)
        top[i] = e
        low[i] = least if largest > 0 else 0
        # Two factors, as 2^-e of a subnormal row is beyond float64.
        f1, f2 = two_factors(-e)
        total = 0.0
        squares = 0.0
        for h in range(row.size):
            y = abs(row[h]) * f1 * f2
            total += y
            squares += y * y
        norm1[i] = total
        norm2[i] = squares


@kernel("void(float64[:,::1], int64[::1], int64[::1], float64[::1], float64[::1])")
def extent_columns(x, top, low, norm1, norm2):
    """The same per column."""
    wide_vectors()
    n = top.size
    largest = np.zeros((1, n), np.int64)
    factors = np.empty((2, n))
    big = contiguous_row(largest, 0, 0, n)
    f1, f2 = contiguous_row(factors, 0, 0, n), contiguous_row(factors, 1, 0, n)
    for j in range(n):
        low[j] = NOTHING
        norm1[j] = 0.0
        norm2[j] = 0.0
    for h in range(x.shape[0]):
        bits = contiguous_row(x, h, 0, n).view(np.int64)
        for j in range(n):
            big[j] = max(big[j], bits[j] & 0x7FFFFFFFFFFFFFFF)
            low[j] = min(low[j], _lowest(bits[j]))
    for j in range(n):
        top[j] = exponent_above(big[j])
        low[j] = low[j] if big[j] > 0 else 0
        f1[j], f2[j] = two_factors(-top[j])
    for h in range(x.shape[0]):
        row = contiguous_row(x, h, 0, n)
        for j in range(n):
            y = abs(row[j]) * f1[j] * f2[j]
            norm1[j] += y
            norm2[j] += y * y
