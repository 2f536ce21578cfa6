"""Uncertified entries, and the rows and columns that they need: gathered in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.outcome import for_kernels
from prismm.core.specials import real_operands
from prismm.core.workspace import Workspace

if TYPE_CHECKING:
    from numpy.typing import NDArray

GATHER_BYTES = 32 << 20
"""Of a piece."""

_SLICE = 256
"""Entries that a worker takes at a time."""


@dataclass(frozen=True)
class Entries:
    """Open entries of one real part: their rows and columns, of the operands.

    width: columns of a result of blocks (`split.Blocks`), 0 where every row meets all columns.
    """

    part: int
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    width: int = 0

    def keep(self, where: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Entries:
        """Those selected; these themselves where a mask or a slice selects all."""
        if where == slice(None) if isinstance(where, slice) else where.dtype == np.bool_ and where.all():
            return self
        return Entries(self.part, self.i[where], self.j[where], self.width)

    @property
    def place(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns in the result."""
        return self.i, self.j % self.width if self.width else self.j


def used_of(index: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers below `count` that occur, ascending, and which of them each is."""
    # Flags, not a sort: there are many more entries than rows.
    flags = np.zeros(count, np.bool_)
    flags[index] = True
    if flags.all():
        return np.arange(count), index
    return np.flatnonzero(flags), (np.cumsum(flags) - 1)[index]


@dataclass(frozen=True)
class Gathered:
    """Rows and columns of one piece, contiguous, with index pairs into them; `where` selects the piece's entries."""

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    ri: NDArray[np.int64]
    ci: NDArray[np.int64]
    row_index: NDArray[np.int64]
    column_index: NDArray[np.int64]
    where: NDArray[np.int64]


def gathered(
    a: NDArray[Any], b: NDArray[Any], entries: Entries, parts: tuple[int, ...], workers: int = 1
) -> Iterator[Gathered]:
    """The entries' rows and columns in pieces of at most 32 MiB each (rows of a plain float64 matrix in place); vectors
    of several real parts one after the other.
    """
    if entries.i.size == 0:
        return
    columns, place = used_of(entries.j, b.shape[1])
    length = a.shape[1] * (2 if np.iscomplexobj(a) else 1) * len(parts)
    step = max(1, GATHER_BYTES // (8 * max(1, length)))
    # A plain matrix is its own gathering of rows.
    in_place = a.dtype == np.float64 and a.flags.c_contiguous and len(parts) == 1
    rows, of_row = (np.arange(a.shape[0]), entries.i) if in_place else used_of(entries.i, a.shape[0])
    row_step = max(1, rows.size) if in_place else step
    # In order of rows, so that the entries of a piece are a range.
    order = np.arange(entries.i.size) if in_place else np.argsort(entries.i, kind="stable")
    sorted_row = of_row if in_place else of_row[order]
    with Workspace() as workspace:
        room, opposite = (
            workspace.empty((min(step, count), length), np.float64)
            for count in (0 if in_place else rows.size, columns.size)
        )
        for r0 in range(0, rows.size, row_step):
            piece = rows[r0 : r0 + row_step]
            lo, hi = (0, order.size) if in_place else np.searchsorted(sorted_row, [r0, r0 + piece.size])
            here = order[lo:hi]
            left = for_kernels(a) if in_place else _vectors(taken(a, piece, 0), parts, room[: piece.size], left=True)
            for c0 in range(0, columns.size, step):
                where, used, of_column = here, columns, place[here]
                if columns.size > step:
                    # Of many columns, only those that are met in this piece are gathered.
                    where = here[(of_column >= c0) & (of_column < c0 + step)]
                    if where.size == 0:
                        continue
                    met, of_column = used_of(place[where] - c0, min(step, columns.size - c0))
                    used = columns[c0 + met]
                right = _columns(b, used, parts, workers, opposite[: used.size])
                yield Gathered(left, right, of_row[where] - r0, of_column, piece, used, where)


def _columns(
    b: NDArray[Any], used: NDArray[np.int64], parts: tuple[int, ...], workers: int, out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The columns `used` of b as contiguous rows, in `out`; compiled and in parallel where b is plain float64."""
    # Too few elements to wake workers for, or not as the kernel reads them.
    if b.dtype != np.float64 or not b.flags.c_contiguous or used.size * b.shape[0] < 1 << 14:
        return _vectors(taken(b, used, 1), parts, out, left=False)
    from prismm.cpu.kernels.dot import gather_columns

    k, source = b.shape[0], for_kernels(b)
    # Each worker writes eight elements, a cache line, or a multiple of them, so workers seldom share a line.
    step = -(-k // workers) + 7 & ~7
    threads.spread(
        lambda h: gather_columns(source, used, h, min(k, h + step), out), list(range(0, k, max(8, step))), workers
    )
    return out


def taken(x: NDArray[Any], index: NDArray[np.int64], axis: int) -> NDArray[Any]:
    """x[index] or, for axis 1, x[:, index]. `take` copies columns several times as fast as an index does, but it would
    first copy the whole of an array with gaps.
    """
    if x.flags.c_contiguous:
        return x.take(index, axis)
    if x.flags.f_contiguous:
        return x.T.take(index, 1 - axis).T
    return x[index] if axis == 0 else x[:, index]


def _vectors(
    x: NDArray[Any], parts: tuple[int, ...], out: NDArray[np.float64], *, left: bool
) -> NDArray[np.float64]:  # fmt: skip
    """Real vectors as contiguous float64 rows, in `out` unless they are such rows; for complex data [re, ∓im] on the
    left, [re, im] or [im, re] on the right.
    """
    if not np.iscomplexobj(x):
        return for_kernels(x if left else x.T, room=out)
    # `real_operands` lays out both operands, and only one is wanted.
    dummy = np.zeros((1, x.shape[1]) if left else (x.shape[0], 1), x.dtype)
    pieces = []
    for part in parts:
        if left:
            pieces.append(real_operands(x, dummy.T, part)[0])
        else:
            pieces.append(real_operands(dummy.T, x, part)[1].T)
    return np.concatenate(pieces, axis=1, out=out)


def in_slices(task: Any, count: int, workers: int, size: int = _SLICE) -> None:
    """task(slice) over `count` entries, in workers where there are more than a slice has."""
    slices = [slice(s, min(count, s + size)) for s in range(0, count, size)]
    if len(slices) == 1:
        task(slices[0])
    else:
        threads.spread(task, slices, workers)
