"""Few and long rows and columns, in pieces of the inner dimension: norms, and dot products in double-double.

What a piece gives is exact (largest bits, integer norms, counts), or has a bound of its own (`long_dots`), so that any
number of workers may share the pieces. A row of either operand is contiguous. Per element: 8 bytes, some 20 operations
for the norms, 12 for each dot product that it takes part in.
"""

import numpy as np

from prismm.core.jit import contiguous_part, contiguous_row, device, fma, kernel, power_of_two
from prismm.cpu.kernels.expansion import two_sum
from prismm.cpu.kernels.scale import count_row, largest_bits, scaled_up, sums, two_factors

LANES = 64
# Squares of integers of 20 bits: so many add up exactly in float64.
PIECE = 8192


@kernel("void(float64[:,::1], int64[::1])")
def long_largest(x, bits):
    """The bits of the largest magnitude of each row."""
    for i in range(x.shape[0]):
        bits[i] = largest_bits(contiguous_row(x, i, 0, x.shape[1]))


@kernel("void(float64[:,::1], int64[::1], int64, int64[::1], int64[::1], int64[:,::1])")
def long_norms(x, exponent, q, norm2, norm1, counts):
    """Per row, |x| < 2^e: Σv², Σv and counts of `scale.scale_rows` for this piece, v = ceil(|x|·2^(q-e))."""
    v = np.empty(PIECE)
    for i in range(x.shape[0]):
        f1, f2 = two_factors(q - exponent[i])
        norm2[i] = 0
        norm1[i] = 0
        for p in range(counts.shape[1]):
            counts[i, p] = 0
        for h in range(0, x.shape[1], PIECE):
            size = min(PIECE, x.shape[1] - h)
            large = contiguous_part(v, 0, size)
            scaled_up(contiguous_row(x, i, h, size), f1, f2, large)
            squares, total = sums(large)
            norm2[i] += np.int64(squares)
            norm1[i] += np.int64(total)
            for p in range(counts.shape[1]):
                counts[i, p] += count_row(large, power_of_two(q - 1 - p))


@kernel("void(float64[:,::1], int64[::1], uint8[::1])")
def long_round(x, shift, inexact):
    """x = RN(x·2^shift) by rows; flags the rows where that is inexact."""
    for i in range(x.shape[0]):
        f = power_of_two(shift[i])
        row = contiguous_row(x, i, 0, x.shape[1])
        lost = np.int64(0)
        for h in range(row.size):
            scaled = row[h] * f
            rounded = np.rint(scaled)
            # What underflows to zero equals its own rounding, and is lost all the same.
            lost |= np.int64((rounded != scaled) | ((rounded == 0.0) & (row[h] != 0.0)))
            row[h] = rounded
        inexact[i] = np.uint8(lost)


@device
def _lanes(a, b, s, c, size):
    """Add a·b, lane by lane: to s + c in two-sums, its magnitude to `size`."""
    for h in range(0, a.size, LANES):
        x = contiguous_part(a, h, LANES)
        y = contiguous_part(b, h, LANES)
        # Lanes do not wait for each other: one chain of two-sums would wait for every addition.
        for lane in range(LANES):
            p = x[lane] * y[lane]
            e = fma(x[lane], y[lane], -p)
            t, r = two_sum(s[lane], p)
            s[lane] = t
            c[lane] += e + r
            size[lane] += abs(p)


@kernel("void(float64[:,::1], float64[:,::1], float64[:,:,::1])")
def long_dots(x, y, out):
    """out (m, n, 3): high, low and Σ|x·y| of each dot product of rows of x (m, k) and y (n, k), k a multiple of LANES.

    Dot2 (Ogita, Rump, Oishi 2005) in LANES lanes of t = k/LANES terms. The errors of t products and t sums of a lane
    are at most u·Σ|p| each, (t + 1)·u·Σ|p| in all, and added with relative errors below 2t·u; those of joining the
    lanes are LANES more. So high + low is off by at most 2·(t + LANES)·(t + LANES + 1)·u²·Σ|p|·(1 + 2^-20) for t below
    2^30, and by 2^-1074 for each product that underflows.
    """
    k = x.shape[1]
    s, c, size = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for i in range(x.shape[0]):
        for j in range(y.shape[0]):
            for lane in range(LANES):
                s[lane] = 0.0
                c[lane] = 0.0
                size[lane] = 0.0
            _lanes(contiguous_row(x, i, 0, k), contiguous_row(y, j, 0, k), s, c, size)
            high = 0.0
            low = 0.0
            total = 0.0
            for lane in range(LANES):
                high, r = two_sum(high, s[lane])
                low += r + c[lane]
                total += size[lane]
            out[i, j, 0] = high
            out[i, j, 1] = low
            out[i, j, 2] = total
