"""The direct engine: exact integer dot products of scaled operands, for tiny products and as every engine's obvious
twin.

A' and B' are cut into balanced limbs: all but the top one are at most 2^21, that one at most 2^22. The products that
meet in one group of equal weight add up to at most 2^44.4 (three limbs: 2·2^43 + 2^42; of four the top one is at
most 2^19), so 256 terms stay below 2^53 before carries are taken. The groups, in base 2^22, pair up to limbs of 44
bits that feed the same `finish` as every join.
"""

import numpy as np

from prismm.core.jit import device, device_any_order, fma, kernel
from prismm.cpu.kernels.finish import finish, scratch
from prismm.cpu.kernels.join import STRIP
from prismm.cpu.kernels.scale import two_factors

LIMB_BITS = 22
RADIX = 44
LIMBS = 5
_BLOCK = 256
_UP = 2.0**22
_DOWN = 2.0**-22


@device
def _carry(groups, used, w):
    for g in range(used - 1):
        low = groups[g, :w]
        high = groups[g + 1, :w]
        for j in range(w):
            carry = np.rint(low[j] * _DOWN)
            low[j] = fma(-carry, _UP, low[j])
            high[j] += carry


@kernel("void(float64[:,::1], int64[::1], int64, float64[:,:,::1], float64[::1], uint8[::1])")
def limb_rows(a, scale, limbs, out, residual2, tiny):
    """Limbs (m, limbs, k) of the scaled rows, lowest first; Σδ² and underflow flag are added per row."""
    k = a.shape[1]
    x = np.empty(k)
    for i in range(a.shape[0]):
        # Rows with Inf or NaN have a scale far beyond (`scale.NONFINITE`): they count as zero, and their results are
        # set later.
        ordinary = -(1 << 16) < scale[i] < 1 << 16
        f1, f2 = two_factors(scale[i]) if ordinary else (0.0, 0.0)
        for h in range(k):
            # Two factors, one after the other: 2^scale alone may be beyond float64.
            y = a[i, h] * f1 * f2 if ordinary else 0.0
            r = np.rint(y)
            residual2[i] += (y - r) * (y - r)
            # The square of so small a residual may underflow: `scale.bound_terms` counts 2^-600 for it instead.
            tiny[i] |= np.uint8((a[i, h] != 0.0) & ordinary & (abs(y) < 2.0**-300))
            x[h] = r
        for p in range(limbs):
            _peel(x, p == limbs - 1, out[i, p])


@device
def _peel(x, last, digit):
    """The lowest limb of x into `digit`, the rest back into x."""
    # The top limb takes all that is left: it has no limb above it to carry into.
    keep = 0.0 if last else 1.0
    for h in range(x.size):
        carry = np.rint(x[h] * _DOWN) * keep
        digit[h] = fma(-carry, _UP, x[h])
        x[h] = carry


@kernel("void(float64[:,::1], int64[::1], int64, float64[:,:,::1], float64[::1], uint8[::1])")
def limb_columns(b, scale, limbs, out, residual2, tiny):
    """Limbs (n, limbs, k) of the scaled columns; Σδ² and flag are added per column."""
    k, n = b.shape
    f1 = np.zeros(n)
    f2 = np.zeros(n)
    x = np.empty(n)
    digit = np.empty(n)
    for j in range(n):
        if -(1 << 16) < scale[j] < 1 << 16:
            f1[j], f2[j] = two_factors(scale[j])
    for h in range(k):
        for j in range(n):
            y = b[h, j] * f1[j] * f2[j] if f1[j] != 0.0 else 0.0
            r = np.rint(y)
            residual2[j] += (y - r) * (y - r)
            tiny[j] |= np.uint8((b[h, j] != 0.0) & (f1[j] != 0.0) & (abs(y) < 2.0**-300))
            x[j] = r
        for p in range(limbs):
            _peel(x, p == limbs - 1, digit)
            for j in range(n):
                out[j, p, h] = digit[j]


@device_any_order
def _dot3(a0, a1, a2, b0, b1, b2):
    """The five groups of three limbs by three; exact, so the order of summation does not matter."""
    s0 = s1 = s2 = s3 = s4 = 0.0
    for h in range(a0.size):
        x0, x1, x2, y0, y1, y2 = a0[h], a1[h], a2[h], b0[h], b1[h], b2[h]
        s0 += x0 * y0
        s1 += x0 * y1 + x1 * y0
        s2 += x0 * y2 + x1 * y1 + x2 * y0
        s3 += x1 * y2 + x2 * y1
        s4 += x2 * y2
    return s0, s1, s2, s3, s4


@device_any_order
def _dot1(a, b):
    total = 0.0
    for h in range(a.size):
        total += a[h] * b[h]
    return total


@device
def _groups(left, right, i, j, start, stop, groups):
    """Add the products of a block of the inner dimension to the groups of entry (i, j)."""
    limbs = left.shape[1]
    # Three limbs, those of tiny float64 products, have all nine products taken in one pass over the operands.
    if limbs == 3:
        s0, s1, s2, s3, s4 = _dot3(
            left[i, 0, start:stop], left[i, 1, start:stop], left[i, 2, start:stop],
            right[j, 0, start:stop], right[j, 1, start:stop], right[j, 2, start:stop],
        )  # fmt: skip
        groups[0, j % STRIP] += s0
        groups[1, j % STRIP] += s1
        groups[2, j % STRIP] += s2
        groups[3, j % STRIP] += s3
        groups[4, j % STRIP] += s4
    else:
        for p in range(limbs):
            for r in range(limbs):
                groups[p + r, j % STRIP] += _dot1(left[i, p, start:stop], right[j, r, start:stop])


@kernel(
    "int64(float64[:,:,::1], float64[:,:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, "
    "int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64, int64, float64, float64, int64, float64[:,:], "
    "float32[:,:], "
    "float64[:,::1], int32[::1])"
)
def direct_product(
    left, right, row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts,
    column_counts,
    k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
):  # fmt: skip
    """Multiply limbs (m, l, K) by (n, l, K) and finish as `join.join_fused` does; returns the number of listed
    entries.
    """
    m, limbs, length = left.shape
    n = right.shape[0]
    used = 2 * limbs
    groups = np.empty((2 * LIMBS, STRIP))
    sums = np.empty((LIMBS, STRIP))
    work, edge, flags, extremes = scratch(
        np.int64(1), np.int64(STRIP), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    # The sums are C' itself: no multiple of a modulus is taken off.
    nothing = np.zeros(LIMBS)
    count = 0
    for i in range(m):
        for j0 in range(0, n, STRIP):
            j1 = min(n, j0 + STRIP)
            w = j1 - j0
            for g in range(groups.shape[0]):
                for j in range(w):
                    groups[g, j] = 0.0
            for start in range(0, length, _BLOCK):
                stop = min(length, start + _BLOCK)
                for j in range(j0, j1):
                    _groups(left, right, i, j, start, stop, groups)
                _carry(groups, min(used, groups.shape[0]), w)
            # Two groups of 22 bits make a limb of 44; `finish` takes the top one first.
            for x in range(LIMBS):
                for j in range(w):
                    sums[LIMBS - 1 - x, j] = fma(groups[2 * x + 1, j], _UP, groups[2 * x, j])
            count = finish(
                sums, LIMBS, RADIX, nothing, nothing, i, j0, row_shift, column_shift, row_terms, column_terms,
                terms, row_power,
                column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
                low, failed,
                count, w, work, edge, flags, extremes,
            )  # fmt: skip
    return count
