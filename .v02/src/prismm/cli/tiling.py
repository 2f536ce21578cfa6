"""How a product is cut to fit in memory: rows of A by columns of B, the inner dimension whole.

A tile of r rows and c columns needs r·k + k·c + r·c elements, times what prismm's own working space
adds. A is read once per column panel, B once in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prismm.errors import ArgumentError

WORKING_SPACE = 4  # what a product takes in all, in units of its operands and its result
_STEP = 64  # tiles are multiples of this where they can be
_LARGEST = 1 << 37  # multiply-adds of one tile: seconds, so that progress shows, little is lost
_SMALLEST = 512  # rows or columns that a tile keeps for the sake of speed, however large k is


@dataclass(frozen=True)
class Grid:
    """An (m, k) by (k, n) product in tiles of ``rows`` by ``columns``; the last may be smaller."""

    m: int
    k: int
    n: int
    rows: int
    columns: int

    @property
    def row_panels(self) -> int:
        """Panels that A is cut into."""
        return math.ceil(self.m / self.rows)

    @property
    def column_panels(self) -> int:
        """Panels that B is cut into."""
        return math.ceil(self.n / self.columns)

    def __len__(self) -> int:
        """Tiles in all."""
        return self.row_panels * self.column_panels

    def row_slice(self, i: int) -> slice:
        """Rows of A in row panel ``i``."""
        return slice(i * self.rows, min((i + 1) * self.rows, self.m))

    def column_slice(self, j: int) -> slice:
        """Columns of B in column panel ``j``."""
        return slice(j * self.columns, min((j + 1) * self.columns, self.n))

    def tiles(self) -> Iterator[tuple[int, int]]:
        """(row panel, column panel) of every tile, one column panel after the other."""
        for j in range(self.column_panels):
            for i in range(self.row_panels):
                yield i, j


def choose(m: int, k: int, n: int, element: int, memory: int) -> Grid:
    """The grid whose tiles fit in ``memory`` bytes where an element takes ``element`` bytes.

    >>> choose(1000, 1000, 1000, 8, 1 << 30)
    Grid(m=1000, k=1000, n=1000, rows=1000, columns=1000)
    >>> choose(1000, 1000, 1000, 8, 16 << 20)
    Grid(m=1000, k=1000, n=1000, rows=256, columns=192)

    Raises ArgumentError where not even one row by one column fits.
    """
    room = memory // (element * WORKING_SPACE)  # elements of both operands and the result
    if room < 2 * k + 1:
        least = (2 * k + 1) * element * WORKING_SPACE
        raise ArgumentError(
            f"memory of {memory} bytes is too little: the inner dimension {k} is never cut; "
            f"pass --memory {least} or more"
        )
    # r = c solves r² + 2kr = room; a side that ends before leaves its room to the other one.
    side = math.isqrt(k * k + room) - k
    columns = min(n, side if m > side else (room - m * k) // max(1, m + k))
    columns = _trimmed(columns, n)
    rows = _trimmed(min(m, (room - k * columns) // max(1, k + columns)), m)
    rows = _trimmed(min(rows, max(_SMALLEST, _LARGEST // (k * columns + 1))), m)
    columns = _trimmed(min(columns, max(_SMALLEST, _LARGEST // (k * rows + 1))), n)
    return Grid(m, k, n, max(rows, 1), max(columns, 1))


def _trimmed(size: int, whole: int) -> int:
    """``size`` down to a multiple of 64, unless it is the whole extent or too small to care."""
    return size if size == whole or size < _STEP else size - size % _STEP
