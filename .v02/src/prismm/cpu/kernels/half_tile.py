"""Tile pairs in two FP16 words, the fallback of `TileInt8`: split of one step, and its products summed in float32.

Each vector of the step is scaled to [2^14, 2^15) by a power of two; hi = RN16(x), lo = RN16((x - hi)·2^12). A pair's
entry is hi·hi' + 2^-12(hi·lo' + lo·hi'), three sums of exact products in float32, in the order of the inner
dimension. Three products of a tile, 6·width operations an entry: 6.4e9 for 1024 x 1024 x 1024, 36 ms at the
rate of SGEMM on two cores; measured 0.2 s, everything else included, where all tiles fall back.
"""

import numpy as np

from prismm.core.jit import device, kernel
from prismm.cpu.kernels.tile import LOWEST, sum_of_squares

_MAGNITUDE = 0x7FFFFFFFFFFFFFFF


@device
def round_to_half(x, out):
    """RN to FP16 (ties to even, subnormals) of float64 of at most 2^15 in magnitude, as float64."""
    bits = x.view(np.int64)
    for h in range(x.size):
        e = ((bits[h] & _MAGNITUDE) >> 52) - 1023
        magic = np.ldexp(1.5, max(e, np.int64(-14)) + 42)  # its last bit is that of the FP16 value
        out[h] = (x[h] + magic) - magic


@kernel("void(float64[:,::1], float32[:,::1], float32[:,::1], float64[::1], float64[::1])")
def half_words(x, high, low, weight, residual2):
    """Words of the vectors of one step, x (v, w) into high, low (v, width) padded with zeros.

    weight: the value of a unit of the words, 0 for a zero vector. residual2: Σ(|x - hi - lo·2^-12| + 2^-42·2^e)²,
    2^e <= max|x|: the addend covers what rounding of the smallest elements adds to the sums (see `TileInt8`).
    """
    v, w = x.shape
    y = np.empty(w)
    hi = np.empty(w)
    lo = np.empty(w)
    for i in range(v):
        top = np.int64(0)
        bits = x[i].view(np.int64)
        for h in range(w):
            top = max(top, bits[h] & _MAGNITUDE)
        e = max((top >> 52) - 1023, np.int64(LOWEST))
        up = np.ldexp(1.0, 14 - e)
        down = np.ldexp(1.0, e - 14)
        for h in range(w):
            y[h] = x[i, h] * up
        round_to_half(y, hi)
        for h in range(w):
            y[h] = (y[h] - hi[h]) * 4096.0
        round_to_half(y, lo)
        for h in range(w):
            high[i, h] = np.float32(hi[h])
            low[i, h] = np.float32(lo[h])
            rest = abs(y[h] - lo[h]) * 2.0**-12 + 2.0**-28
            y[h] = rest * down if x[i, h] != 0.0 else 0.0
        for h in range(w, high.shape[1]):
            high[i, h] = np.float32(0.0)
            low[i, h] = np.float32(0.0)
        residual2[i] = sum_of_squares(y)
        weight[i] = down if top > 0 else 0.0


@device
def _add(a, row, sums):
    for j in range(sums.size):
        sums[j] = sums[j] + a * row[j]


@device
def _join(sums, row_weight, column_weight, acc):
    for j in range(acc.size):
        # The small terms come first, so that they are not rounded at the size of the large one.
        t = (sums[1, j] + sums[2, j]) * np.float32(2.0**-12) + sums[0, j]
        acc[j] = acc[j] + np.float32(np.float64(t) * (row_weight * column_weight[j]))


@kernel(
    "void(float32[:,::1], float32[:,::1], float64[::1], float32[:,::1], float32[:,::1], float64[::1], uint8[:,::1], "
    "int64, int64, float32[:,::1])"
)
def half_products(left_high, left_low, left_weight, right_high, right_low, right_weight, chosen, rows, columns, acc):
    """acc += the products of the tile pairs `chosen` (I, J), rows by columns each; all sums rounded to float32.

    Neighbouring pairs of a row of tiles are multiplied together: entries do not know of each other.
    """
    m, width = left_high.shape
    n = right_high.shape[0]
    # Transposed once, so that the inner loops run along columns and fill vectors.
    high = np.empty((width, n), np.float32)
    low = np.empty((width, n), np.float32)
    for j in range(n):
        for h in range(width):
            high[h, j] = right_high[j, h]
            low[h, j] = right_low[j, h]
    sums = np.empty((3, n), np.float32)
    tiles = chosen.shape[1]
    for i_tile in range(chosen.shape[0]):
        end = 0
        while end < tiles:
            start = end
            while start < tiles and not chosen[i_tile, start]:
                start += 1
            end = start
            while end < tiles and chosen[i_tile, end]:
                end += 1
            j0 = min(n, start * columns)
            j1 = min(n, end * columns)
            for i in range(i_tile * rows, min(m, (i_tile + 1) * rows) if j1 > j0 else 0):
                sums[:, j0:j1] = np.float32(0.0)
                for h in range(width):
                    _add(left_high[i, h], high[h, j0:j1], sums[0, j0:j1])
                    _add(left_high[i, h], low[h, j0:j1], sums[1, j0:j1])
                    _add(left_low[i, h], high[h, j0:j1], sums[2, j0:j1])
                _join(sums[:, j0:j1], left_weight[i], right_weight[j0:j1], acc[i, j0:j1])
