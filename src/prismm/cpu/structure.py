"""Parts of a product in which zeros save work.

A part needs no inner index that is zero in all of its rows or in all of its columns. A part without a wanted entry is
not computed. Rows and columns are halved as long as the parts take less work than the whole. After two cuts a product
of triangular matrices takes three eighths of the work.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BANDS, LEAST_ROWS = 8, 64
"""The number of bands of rows, and of columns, and the fewest rows or columns of a band."""

GAIN = 0.7
"""Parts replace the whole if they take at most this share of its work."""


def parts(
    a: NDArray[Any], b: NDArray[Any], i: NDArray[np.int64], j: NDArray[np.int64]
) -> list[NDArray[np.int64] | slice]:
    """Groups of the entries (i, j) of a @ b that are computed together: indices into i, or one slice of all."""
    m, n = a.shape[0], b.shape[1]
    everything: list[NDArray[np.int64] | slice] = [slice(None)]
    bands = min(BANDS, m // LEAST_ROWS, n // LEAST_ROWS)
    bands = 1 << max(bands, 1).bit_length() - 1
    # If nearly all entries are wanted, zeros have no pattern that saves a part; if few, looking for them takes longer.
    if bands < 2 or i.size > 0.75 * m * n or i.size <= m + n:
        return everything
    band = (i * bands // m) * bands + j * bands // n
    wanted = np.bincount(band, minlength=bands * bands).reshape(bands, bands)
    # Band x has the rows from the first i with i·bands >= x·m on.
    rows = [-(-x * m // bands) for x in range(bands + 1)]
    columns = [-(-x * n // bands) for x in range(bands + 1)]
    left = np.stack([(a[x:y] != 0).any(axis=0) for x, y in pairwise(rows)])
    right = np.stack([(b[:, x:y] != 0).any(axis=1) for x, y in pairwise(columns)])

    def best(r: int, c: int, size: int) -> tuple[float, list[tuple[int, int, int]]]:
        """Multiply-adds of the part of `size` bands from r and c on, and the parts into which it is cut."""
        if not wanted[r : r + size, c : c + size].any():
            return 0.0, []
        alive = left[r : r + size].any(axis=0) & right[c : c + size].any(axis=0)
        work = float(rows[r + size] - rows[r]) * (columns[c + size] - columns[c]) * max(1, np.count_nonzero(alive))
        half = size // 2
        if half:
            quarters = [best(x, y, half) for x in (r, r + half) for y in (c, c + half)]
            total = sum(each[0] for each in quarters)
            if total <= GAIN * work:
                return total, [part for each in quarters for part in each[1]]
        return work, [(r, c, size)]

    _, found = best(0, 0, bands)
    if len(found) < 2:
        return everything
    owner = np.full((bands, bands), len(found))
    for which, (r, c, size) in enumerate(found):
        owner[r : r + size, c : c + size] = which
    owners = owner.reshape(-1)[band]
    return [np.flatnonzero(owners == which) for which in range(len(found))]
