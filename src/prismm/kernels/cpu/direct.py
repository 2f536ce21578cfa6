"""The direct engine: exact integer dot products of scaled operands, for tiny products and as every engine's obvious twin.

A' and B' are cut into balanced limbs of 20 bits; limb products are below 2^38, so 4096 terms of up to five limb pairs stay
below 2^53 before carries are taken. The sums feed the same `finish` as every join.
"""

import numpy as np

from prismm.kernels.cpu.jit import device, fma, kernel
from prismm.kernels.cpu.join import STRIP, finish
from prismm.kernels.cpu.scale import two_factors

LIMBS = 5
_BLOCK = 4096
_UP = 2.0**20
_DOWN = 2.0**-20


@device
def _limb(x, limbs, out):  # type: ignore[no-untyped-def]
    for p in range(limbs):
        carry = np.rint(x * _DOWN) if p < limbs - 1 else 0.0
        out[p] = fma(-carry, _UP, x)
        x = carry


@device
def _carry(groups, w):  # type: ignore[no-untyped-def]
    for g in range(groups.shape[0] - 1):
        for j in range(w):
            carry = np.rint(groups[g, j] * _DOWN)
            groups[g, j] = fma(-carry, _UP, groups[g, j])
            groups[g + 1, j] += carry


@device
def _rounded(x, scale, residual):  # type: ignore[no-untyped-def]
    """RN(x·2^scale); adds the square of what it dropped to residual[0], flags underflow in residual[1]."""
    if scale >= 1 << 16 or scale <= -(1 << 16):
        return 0.0
    f1, f2 = two_factors(scale)
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
        residual[:] = 0.0
        for h in range(a.shape[1]):
            _limb(_rounded(a[i, h], scale[i], residual), limbs, out[i, h])
        residual2[i] += residual[0]
        tiny[i] |= np.uint8(residual[1] != 0.0)


@kernel("void(float64[:,::1], int64[::1], int64, float64[:,:,::1], float64[::1], uint8[::1])")
def limb_columns(b, scale, limbs, out, residual2, tiny):  # type: ignore[no-untyped-def]
    """Limbs (k, limbs, n) of the scaled columns; Σδ² and flag are added per column."""
    residual = np.empty(2)
    digits = np.empty(LIMBS)
    for j in range(b.shape[1]):
        residual[:] = 0.0
        for h in range(b.shape[0]):
            _limb(_rounded(b[h, j], scale[j], residual), limbs, digits[:limbs])
            for p in range(limbs):
                out[h, p, j] = digits[p]
        residual2[j] += residual[0]
        tiny[j] |= np.uint8(residual[1] != 0.0)


@kernel(
    "int64(float64[:,:,::1], float64[:,:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, "
    "int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64, int64, float64, float64, int64, float64[:,:], float32[:,:], float64[:,::1], int32[::1])"
)
def direct_product(  # type: ignore[no-untyped-def]
    left, right, row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts,
    terms_k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
):  # fmt: skip
    """Multiply limbs (m, k, l) by (k, l, n) and finish as `join.join_fused` does; returns the number of listed entries."""
    m, k, limbs = left.shape
    n = right.shape[2]
    groups = np.empty((2 * LIMBS + 1, STRIP))
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
            for h in range(k):
                for p in range(limbs):
                    x = left[i, h, p]
                    if x != 0.0:
                        for r in range(limbs):
                            y = right[h, r, j0:j1]
                            s = groups[p + r, :w]
                            for j in range(s.size):
                                s[j] = fma(x, y[j], s[j])
                if h % _BLOCK == _BLOCK - 1:
                    _carry(groups, w)
            _carry(groups, w)
            for x in range(LIMBS):
                for j in range(w):
                    sums[LIMBS - 1 - x, j] = fma(groups[2 * x + 1, j], _UP, groups[2 * x, j])
            count = finish(
                sums, LIMBS, nothing, nothing, i, j0, row_shift, column_shift, row_terms, column_terms, terms, row_power,
                column_power, row_counts, column_counts, terms_k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed, count, work[0, :w], work[1, :w], work[2, :w], work[3, :w],
                work[4, :w], shift[:w], flags[0, :w], flags[1, :w],
            )  # fmt: skip
    return count
