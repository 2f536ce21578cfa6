"""Copy one triangle of a square matrix across the diagonal, tile by tile through a small buffer.

Bytes: each entry of the triangle is read once and written once, in whole lines of the cache. A tile that was copied
without the buffer would be written to lines whose addresses differ by the length of a row: of rows of 2^k bytes few
such lines stay in the cache at a time. Eight rows are read at a time, so that eight misses overlap.
"""

import numpy as np

from prismm.core.jit import device, kernel, single

SIDE = 64
"""Rows and columns of a tile, whose buffer is 33 KB at most."""
ROWS = 8


@device
def _turned(x, i0, i1, j0, j1, tile):
    """tile[j - j0, i - i0] = x[i, j] for i0 <= i < i1 and j0 <= j < j1."""
    whole = i1 - (i1 - i0) % ROWS
    for i in range(i0, whole, ROWS):
        for j in range(j0, j1):
            for r in range(ROWS):
                tile[j - j0, i + r - i0] = x[i + r, j]
    for i in range(whole, i1):
        for j in range(j0, j1):
            tile[j - j0, i - i0] = x[i, j]


@kernel("void(float64[:,::1], int64, int64)")
def mirror(x, first, last):
    """x[j, i] = x[i, j] for first <= i < last and j < i; first is a multiple of SIDE."""
    tile = np.empty((SIDE, SIDE + 1), x.dtype)
    for i0 in range(first, last, SIDE):
        i1 = min(last, i0 + SIDE)
        for j0 in range(0, i1, SIDE):
            j1 = min(i1, j0 + SIDE)
            _turned(x, i0, i1, j0, j1, tile)
            for j in range(j0, j1):
                for i in range(max(i0, j + 1), i1):
                    x[j, i] = tile[j - j0, i - i0]


mirror_single = single(mirror)
