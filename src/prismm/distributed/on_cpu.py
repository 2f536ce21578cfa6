"""The steps of a product whose inner dimension is sharded, on a rank's CPU: `cpu.partial`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.composite import Side
from prismm.core.outcome import Epilogue
from prismm.core.scales import Scales
from prismm.core.special_values import Special
from prismm.cpu.partial import residues, scales, specials
from prismm.cpu.partial.join import join
from prismm.cpu.partial.residues import SplitPiece
from prismm.cpu.partial.setting import Setting
from prismm.distributed.inner import Met, Piece, within

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 32 << 20
"""Bytes of digits that travel at a time."""


class OnCpu:
    """A rank's CPU; see `distributed.inner.Backend`. workers: threads."""

    def __init__(self, setting: Setting, workers: int) -> None:
        self.setting, self.workers = setting, workers

    def operand(self, x: NDArray[Any], *, left: bool) -> CpuOperand:
        """An operand."""
        return CpuOperand(x, "left" if left else "right", self.setting, self.workers)

    def empty_digits(self, m: int, n: int) -> NDArray[np.int8]:
        """Room for digits."""
        return np.empty((self.setting.parts, self.setting.moduli, m, n), np.int8)

    def blocks(
        self, left: CpuOperand, p: int, right: CpuOperand, q: int, taken: set[int | None]
    ) -> Iterator[tuple[NDArray[np.int8], slice, slice]]:
        """Digits, some columns or rows at a time."""
        rows, columns, everything = left.split(p), right.split(q), slice(None)
        if 1 not in taken:
            for piece, here in _grouped(columns, self.setting.entry_bytes * max(1, left.count)):
                yield residues.multiply(rows, piece, self.setting, self.workers), everything, here
        elif 0 not in taken:
            for piece, here in _grouped(rows, self.setting.entry_bytes * max(1, right.count)):
                yield residues.multiply(piece, columns, self.setting, self.workers), here, everything
        else:
            yield residues.multiply(rows, columns, self.setting, self.workers), everything, everything

    def add(self, found: NDArray[np.int8], into: NDArray[np.int8] | None = None) -> NDArray[np.int8]:
        """Digits of all ranks, added."""
        total = np.ascontiguousarray(found[0])
        for other in found[1:]:
            residues.add(total, np.ascontiguousarray(other), self.setting)
        if into is None:
            return total
        into[...] = total
        return into

    def join(
        self, digits: NDArray[np.int8], left: CpuOperand, p: int, right: CpuOperand, q: int, rows: slice,
        columns: slice, found: list[Special], epilogue: Epilogue | None,
    ) -> CpuLanded:  # fmt: skip
        """One piece: everything."""
        i, j = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
        joined = join(
            digits, left.scales(p, rows), right.scales(q, columns), self.setting, specials=within(found, i, j),
            epilogue=epilogue, workers=self.workers,
        )  # fmt: skip
        return CpuLanded([Piece(joined, i, j)])

    def again(self, part: int) -> None:
        """None: `distributed.again` multiplies again on CPUs."""

    def stacked(self, results: list[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
        """One array."""
        if not results:
            return np.empty(shape, self.setting.dtype)
        return np.stack(results).reshape(shape)


class CpuLanded:
    """A share that is one piece."""

    left = 0

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def complete(self) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Nothing is left."""

    def result(self) -> NDArray[Any]:
        """Its entries."""
        return self.pieces[0].joined.out


class CpuOperand:
    """Arrays; see `distributed.inner.Operand`."""

    def __init__(self, x: NDArray[Any], side: Side, setting: Setting, workers: int) -> None:
        x = setting.real_operand(x)
        self.side, self.setting, self.workers = side, setting, workers
        self.batch = x.shape[:-2]
        self._parts: list[NDArray[Any]] = list(x.reshape(math.prod(self.batch), *x.shape[-2:]))
        self.matrices = len(self._parts)
        self.count = x.shape[-2] if side == "left" else x.shape[-1]
        self.extent = np.empty((2, 0), np.int64)
        self.norm = self.exponent = self.shift = self.extent
        self.lost = np.zeros((2, self.matrices * self.count), np.int64)
        self._split: tuple[int, SplitPiece] | None = None

    def extents(self) -> NDArray[np.int64]:
        """`cpu.partial.scales.extents` of all vectors."""
        found = [scales.extents(x, self.side, self.workers) for x in self._parts]
        return np.concatenate([np.zeros((2, 0), np.int64), *found], axis=1)

    def norms(self, extent: NDArray[np.int64]) -> NDArray[np.int64]:
        """`cpu.partial.scales.norms` of all vectors."""
        self.extent, self.exponent = extent, scales.exponents(extent)
        found = [
            scales.norms(x, self.side, self.exponent[self._vectors(p)], self.setting, self.workers)
            for p, x in enumerate(self._parts)
        ]
        empty = np.zeros((2 + self.setting.levels, 0), np.int64)
        return np.concatenate([empty, *found], axis=1)

    def scaled(self, norm: NDArray[np.int64]) -> None:
        """The shifts of all vectors."""
        self.norm, self.shift = norm, scales.shifts(self.exponent, norm, self.setting)

    def _vectors(self, p: int) -> slice:
        """Those of matrix p."""
        return slice(p * self.count, (p + 1) * self.count)

    def nonfinite(self, p: int) -> NDArray[np.bool_]:
        """By exponents."""
        return specials.nonfinite(self.exponent[self._vectors(p)])

    def whole(self, p: int) -> NDArray[Any]:
        """The matrix."""
        return self._parts[p]

    def met(self, p: int, vectors: NDArray[np.int64]) -> Met:
        """All vectors: they are here."""
        here = self._vectors(p)
        return Met(self._parts[p], self.exponent[here], self.shift[here], vectors)

    def extents_of(self, p: int, met: Met, maximum: Callable[[Any], Any]) -> NDArray[np.int64]:
        """Of all vectors: they are known."""
        return self.extent[:, self._vectors(p)]

    def split(self, p: int) -> SplitPiece:
        """Residues of matrix p; the last one stays."""
        if self._split is None or self._split[0] != p:
            here = self._vectors(p)
            piece = residues.split(self._parts[p], self.side, self.shift[here], self.setting, self.workers)
            self.lost[:, here] = piece.lost
            self._split = p, piece
        return self._split[1]

    def scales(self, p: int, share: slice) -> Scales:
        """Of some vectors of matrix p; `lost` is all ranks'."""
        here = slice(p * self.count + share.start, p * self.count + share.stop)
        return scales.scales(self.exponent[here], self.norm[:, here], self.lost[:, here], self.setting)


def _grouped(piece: SplitPiece, vector_bytes: int) -> Iterator[tuple[SplitPiece, slice]]:
    """The vectors of a piece, some whole blocks at a time: digits of about `BLOCK_BYTES`."""
    group: list[tuple[int, int, Any]] = []
    for block in piece.blocks:
        group.append(block)
        first, last = group[0][0], block[1]
        if (last - first) * vector_bytes >= BLOCK_BYTES or last == piece.count:
            moved = [(x - first, y - first, residue) for x, y, residue in group]
            yield SplitPiece(piece.side, piece.k, moved, piece.lost[:, first:last]), slice(first, last)
            group = []
