"""What rounding rows and columns to A' and B' leaves out of their product: Σ δa·b + A'·δb, in float64.

With 2^s·a = A' + δa and 2^t·b = B' + δb, all exact, a·b is the integer C' = A'·B' and this sum. Where few elements are
inexact most of its terms are zero and skipped, by rows of B and elements of A. So C', and this, decide roundings that
hang on terms far below all others.

δ is scaled by 2^350, the rest by 2^300: sums are in units of 2^-650, products of elements above 2^-800 (of A', B' or δ)
at least 2^-950. Smaller elements are left out, at most k·2^(286 - 800 + 650 + 1). A sum of n terms in any order errs by
at most n·u·Σ|terms|·(1 + 2^-20) (Jeannerod and Rump 2013).

Per term that is not skipped 8 bytes and two fused multiply-adds for eight lanes: 0.2 ns.
"""

import numpy as np

from prismm.core.jit import contiguous_row, device, fma, kernel, wide_vectors
from prismm.cpu.kernels.scale import two_factors

UNIT = 650
_DELTA, _REST = 2.0**350, 2.0**300
_LEAST = 2.0**-800
_LEFT_OUT = 2.0**137
_WIDE = 256


@device
def _add(x, row, total, size):
    wide_vectors()
    y = abs(x)
    for j in range(row.size):
        total[j] = fma(x, row[j], total[j])
        size[j] = fma(y, abs(row[j]), size[j])


@kernel("void(float64[:,::1], float64[:,:], int64[::1], int64[::1], float64[:,::1], float64[:,::1])")
def residual_product(left, right, row_shift, column_shift, value, error):
    """value ± error (m, n): the sums of left (m, k) and right (k, n), in units of 2^-650; an error of 0 is exact."""
    m, k = left.shape
    n = right.shape[1]
    whole, delta = np.empty((k, _WIDE)), np.empty((k, _WIDE))
    active = np.empty(k, np.bool_)
    cut = np.empty((1, _WIDE))
    factors = np.empty((2, _WIDE))
    sums = np.empty((2, _WIDE))
    rounded, rest = np.empty(k), np.empty(k)
    # An index may give a term to either sum, so there are up to 2k of them.
    terms = (2.0 * k + 2.0) * 2.0**-53 * (1.0 + 2.0**-20)
    for j0 in range(0, n, _WIDE):
        w = min(n, j0 + _WIDE) - j0
        f1, f2, missed = (
            contiguous_row(factors, 0, 0, w),
            contiguous_row(factors, 1, 0, w),
            contiguous_row(cut, 0, 0, w),
        )
        for j in range(w):
            f1[j], f2[j] = two_factors(column_shift[j0 + j])
            missed[j] = 0.0
        for h in range(k):
            row, change = contiguous_row(whole, h, 0, w), contiguous_row(delta, h, 0, w)
            any_change = 0.0
            for j in range(w):
                given = right[h, j0 + j]
                x = given * f1[j] * f2[j]
                y = x if abs(x) >= _LEAST else 0.0
                missed[j] = 1.0 if (y == 0.0) & (given != 0.0) else missed[j]
                row[j] = y * _REST
                change[j] = (y - np.rint(y)) * _DELTA
                any_change = max(any_change, abs(change[j]))
            active[h] = any_change > 0.0
        total, size = contiguous_row(sums, 0, 0, w), contiguous_row(sums, 1, 0, w)
        for i in range(m):
            g1, g2 = two_factors(row_shift[i])
            missed_here = 0.0
            for h in range(k):
                x = left[i, h] * g1 * g2
                y = x if abs(x) >= _LEAST else 0.0
                missed_here = 1.0 if (y == 0.0) & (left[i, h] != 0.0) else missed_here
                rounded[h] = np.rint(y) * _REST
                rest[h] = (y - np.rint(y)) * _DELTA
            for j in range(w):
                total[j] = 0.0
                size[j] = 0.0
            for h in range(k):
                if rest[h] != 0.0:
                    _add(rest[h], contiguous_row(whole, h, 0, w), total, size)
                if active[h] and rounded[h] != 0.0:
                    _add(rounded[h], contiguous_row(delta, h, 0, w), total, size)
            for j in range(w):
                value[i, j0 + j] = total[j]
                error[i, j0 + j] = size[j] * terms + max(missed_here, missed[j]) * (k * _LEFT_OUT)
