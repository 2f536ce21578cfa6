"""The direct engine: exact integer dot products of scaled operands, for tiny products and as every engine's obvious twin.

A' and B' are cut into balanced limbs: all but the top one are at most 2^21, that one at most 2^22. The products that meet in one
group of equal weight add up to at most 2^44.4 (three limbs: 2·2^43 + 2^42), so 256 terms stay below 2^53 before carries
are taken. The groups, in base 2^22, pair up to limbs of 44 bits that feed the same `finish` as every join.
"""

import numpy as np

from prismm.kernels.cpu.jit import device, fma, kernel
from prismm.kernels.cpu.join import STRIP, finish
from prismm.kernels.cpu.scale import bound_terms, scale_columns, scale_rows, two_factors

LIMB_BITS = 22
RADIX = 44
LIMBS = 5
_BLOCK = 256
_UP = 2.0**22
_DOWN = 2.0**-22

_scale_rows = scale_rows.device
_scale_columns = scale_columns.device
_bound_terms = bound_terms.device


@device
def _limb(x, limbs, out):  # type: ignore[no-untyped-def]
    for p in range(limbs):
        carry = np.rint(x * _DOWN) if p < limbs - 1 else 0.0
        out[p] = fma(-carry, _UP, x)
        x = carry


@device
def _carry(groups, w):  # type: ignore[no-untyped-def]
    for g in range(groups.shape[0] - 1):
        low = groups[g, :w]
        high = groups[g + 1, :w]
        for j in range(w):
            carry = np.rint(low[j] * _DOWN)
            low[j] = fma(-carry, _UP, low[j])
            high[j] += carry


@device
def _rounded(x, f1, f2, residual):  # type: ignore[no-untyped-def]
    """RN(x·f1·f2); adds the square of what it dropped to residual[0], flags underflow in residual[1]."""
    y = x * f1 * f2
    r = np.rint(y)
    residual[0] += (y - r) * (y - r)
    if x != 0.0 and abs(y) < 2.0**-300:
        residual[1] = 1.0
    return r


@kernel("void(float64[:,::1], int64[::1], int64, float64[:,:,::1], float64[::1], uint8[::1])")
def limb_rows(a, scale, limbs, out, residual2, tiny):  # type: ignore[no-untyped-def]
    """Limbs (m, k, limbs) of the scaled rows, lowest first; Σδ² and underflow flag are added per row."""
    residual = np.empty(2)
    for i in range(a.shape[0]):
        residual[0] = 0.0
        residual[1] = 0.0
        ordinary = -(1 << 16) < scale[i] < 1 << 16
        f1, f2 = two_factors(scale[i]) if ordinary else (0.0, 0.0)
        for h in range(a.shape[1]):
            _limb(_rounded(a[i, h], f1, f2, residual) if ordinary else 0.0, limbs, out[i, h])
        residual2[i] += residual[0]
        tiny[i] |= np.uint8(residual[1] != 0.0)


@kernel("void(float64[:,::1], int64[::1], int64, float64[:,:,::1], float64[::1], uint8[::1])")
def limb_columns(b, scale, limbs, out, residual2, tiny):  # type: ignore[no-untyped-def]
    """Limbs (k, limbs, n) of the scaled columns; Σδ² and flag are added per column."""
    n = b.shape[1]
    f1 = np.zeros(n)
    f2 = np.zeros(n)
    x = np.empty(n)
    for j in range(n):
        if -(1 << 16) < scale[j] < 1 << 16:
            f1[j], f2[j] = two_factors(scale[j])
    for h in range(b.shape[0]):
        for j in range(n):
            y = b[h, j] * f1[j] * f2[j] if f1[j] != 0.0 else 0.0
            r = np.rint(y)
            residual2[j] += (y - r) * (y - r)
            tiny[j] |= np.uint8((b[h, j] != 0.0) & (f1[j] != 0.0) & (abs(y) < 2.0**-300))
            x[j] = r
        for p in range(limbs):
            digit = out[h, p]
            for j in range(n):
                carry = np.rint(x[j] * _DOWN) if p < limbs - 1 else 0.0
                digit[j] = fma(-carry, _UP, x[j])
                x[j] = carry


@device
def _multiply_add(left, i, right, h, count, limbs, j0, j1, groups):  # type: ignore[no-untyped-def]
    """groups[p + r] += Σ over `count` (1 or 4) consecutive h of left limb p times right limb r."""
    w = j1 - j0
    for p in range(limbs):
        x0 = left[i, h, p]
        x1 = left[i, h + 1, p] if count == 4 else 0.0
        x2 = left[i, h + 2, p] if count == 4 else 0.0
        x3 = left[i, h + 3, p] if count == 4 else 0.0
        for r in range(limbs):
            s = groups[p + r, :w]
            y0 = right[h, r, j0:j1]
            if count == 4:
                y1 = right[h + 1, r, j0:j1]
                y2 = right[h + 2, r, j0:j1]
                y3 = right[h + 3, r, j0:j1]
                for j in range(s.size):
                    s[j] = fma(x0, y0[j], fma(x1, y1[j], fma(x2, y2[j], fma(x3, y3[j], s[j]))))
            else:
                for j in range(s.size):
                    s[j] = fma(x0, y0[j], s[j])


@kernel(
    "int64(float64[:,:,::1], float64[:,:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, "
    "int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64, int64, float64, float64, int64, float64[:,:], float32[:,:], "
    "float64[:,::1], int32[::1])"
)
def direct_product(  # type: ignore[no-untyped-def]
    left, right, row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts,
    k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
):  # fmt: skip
    """Multiply limbs (m, K, l) by (K, l, n) and finish as `join.join_fused` does; returns the number of listed entries."""
    m, length, limbs = left.shape
    n = right.shape[2]
    groups = np.empty((2 * LIMBS, STRIP))
    sums = np.empty((LIMBS, STRIP))
    work = np.empty((5, STRIP))
    shift = np.empty(STRIP, np.int64)
    flags = np.empty((2, STRIP), np.uint8)
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
                whole = stop - (stop - start) % 4
                for h in range(start, whole, 4):
                    _multiply_add(left, i, right, h, 4, limbs, j0, j1, groups)
                for h in range(whole, stop):
                    _multiply_add(left, i, right, h, 1, limbs, j0, j1, groups)
                _carry(groups, w)
            for x in range(LIMBS):
                for j in range(w):
                    sums[LIMBS - 1 - x, j] = fma(groups[2 * x + 1, j], _UP, groups[2 * x, j])
            count = finish(
                sums, LIMBS, RADIX, nothing, nothing, i, j0, row_shift, column_shift, row_terms, column_terms, terms, row_power,
                column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
                count, work[0, :w], work[1, :w], work[2, :w], work[3, :w], work[4, :w], shift[:w], flags[0, :w], flags[1, :w],
            )  # fmt: skip
    return count


_limb_rows = limb_rows.device
_limb_columns = limb_columns.device
_direct_product = direct_product.device


@kernel(
    "int64(float64[:,::1], float64[:,::1], int64[::1], int64, int64, int64, int64, int64, float64, float64, int64, "
    "float64[:,:], float32[:,:])"
)
def direct_at_once(  # type: ignore[no-untyped-def]
    a, b, thresholds, q, limbs, levels, a_priori, mode, kappa, magnitude_kappa, precision, out, out32
):
    """Scale, split, multiply, join and test a small real product in one call.

    Returns the number of entries that its certificate leaves open, or -1 where an operand holds Inf or NaN.
    """
    m, k = a.shape
    n = b.shape[1]
    rows = np.empty((4, m), np.int64)
    columns = np.empty((4, n), np.int64)
    row_counts = np.empty((m, levels), np.int64)
    column_counts = np.empty((n, levels), np.int64)
    _scale_rows(a, thresholds, q, rows[0], rows[1], rows[2], rows[3], row_counts)
    _scale_columns(b, thresholds, q, columns[0], columns[1], columns[2], columns[3], column_counts)
    for i in range(m):
        if rows[0, i] >= 1 << 20:
            return -1
    for j in range(n):
        if columns[0, j] >= 1 << 20:
            return -1
    left = np.empty((m, k, limbs))
    right = np.empty((k, limbs, n))
    row_residual = np.zeros(m)
    column_residual = np.zeros(n)
    row_tiny = np.zeros(m, np.uint8)
    column_tiny = np.zeros(n, np.uint8)
    _limb_rows(a, rows[1], limbs, left, row_residual, row_tiny)
    _limb_columns(b, columns[1], limbs, right, column_residual, column_tiny)
    row_terms = np.empty((4, m))
    column_terms = np.empty((4, n))
    _bound_terms(rows[0], rows[1], q, rows[2], rows[3], row_residual, row_tiny, k, a_priori, row_terms)
    _bound_terms(columns[0], columns[1], q, columns[2], columns[3], column_residual, column_tiny, k, a_priori, column_terms)
    failed = np.empty(m * n, np.int32)
    low = np.empty((0, 0))
    return _direct_product(
        left, right, rows[1], columns[1], row_terms, column_terms, k / 4.0, rows[0] + rows[1], columns[0] + columns[1],
        row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
    )  # fmt: skip
