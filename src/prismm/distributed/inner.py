"""Products whose inner dimension is sharded, exactly: `cpu.partial` over a mesh.

Digits of a block of columns travel while the next block is multiplied (all-to-all); every rank sums what it gets modulo
each modulus, joins and rounds its share of the entries. All ranks know all uncertified entries, and
add their parts of the exact sums; no operand leaves its rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.composite import Side
from prismm.core.outcome import Epilogue
from prismm.core.scales import Scales
from prismm.core.special_values import Special
from prismm.cpu.partial import recompute, residues, scales, specials
from prismm.cpu.partial.join import Joined, join
from prismm.cpu.partial.recompute import ExactRequest
from prismm.cpu.partial.residues import SplitPiece
from prismm.cpu.partial.setting import Setting
from prismm.cpu.repair import Entries
from prismm.distributed.exchange import Exchange, Pending

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 32 << 20
"""Bytes of digits that travel at a time."""

AHEAD = 2
"""Blocks that may be on their way."""

Axes = dict[int, int | None]
"""For each mesh dimension of the sum: 0 where rows are scattered over it, 1 where columns are, None for neither."""


class Operand:
    """This rank's part of an operand, matrix by matrix of its own batch, and what is known of all ranks' rows (left) or
    columns (right).
    """

    def __init__(self, x: NDArray[Any], side: Side, setting: Setting, workers: int) -> None:
        x = setting.real_operand(x)
        self.side, self.setting, self.workers = side, setting, workers
        self.batch = x.shape[:-2]
        self.matrices = list(x.reshape(math.prod(self.batch), *x.shape[-2:]))
        self.count = x.shape[-2] if side == "left" else x.shape[-1]
        self.extent = np.empty((2, 0), np.int64)
        self.norm = self.exponent = self.shift = self.extent
        self.lost = np.zeros((2, len(self.matrices) * self.count), np.int64)
        self._split: tuple[int, SplitPiece] | None = None

    def extents(self) -> NDArray[np.int64]:
        """Of all vectors, this rank's."""
        found = [scales.extents(x, self.side, self.workers) for x in self.matrices]
        return np.concatenate([np.zeros((2, 0), np.int64), *found], axis=1)

    def norms(self, extent: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of all vectors, this rank's, with all ranks' extents."""
        self.extent, self.exponent = extent, scales.exponents(extent)
        found = [
            scales.norms(x, self.side, self.exponent[self.vectors(p)], self.setting, self.workers)
            for p, x in enumerate(self.matrices)
        ]
        empty = np.zeros((2 + self.setting.levels, 0), np.int64)
        return np.concatenate([empty, *found], axis=1)

    def scaled(self, norm: NDArray[np.int64]) -> None:
        """Take all ranks' norms, from which the shifts follow."""
        self.norm, self.shift = norm, scales.shifts(self.exponent, norm, self.setting)

    def vectors(self, p: int) -> slice:
        """Those of matrix p."""
        return slice(p * self.count, (p + 1) * self.count)

    def split(self, p: int) -> SplitPiece:
        """Residues of matrix p; the last one stays."""
        if self._split is None or self._split[0] != p:
            here = self.vectors(p)
            piece = residues.split(self.matrices[p], self.side, self.shift[here], self.setting, self.workers)
            self.lost[:, here] = piece.lost
            self._split = p, piece
        return self._split[1]

    def scales(self, p: int, share: slice) -> Scales:
        """Of some vectors of matrix p; `lost` is all ranks'."""
        here = slice(p * self.count + share.start, p * self.count + share.stop)
        return scales.scales(self.exponent[here], self.norm[:, here], self.lost[:, here], self.setting)


class Product:
    """A batch of products under way on this rank.

    Args:
        a: (…, m, k), this rank's part.
        b: (…, k, n), likewise.
        setting: of the whole product.
        exchange: with the ranks that share the sums.
        axes: where the entries land.
        workers: threads.
    """

    def __init__(
        self, a: NDArray[Any], b: NDArray[Any], setting: Setting, exchange: Exchange, axes: Axes, workers: int
    ) -> None:
        self.left, self.right = Operand(a, "left", setting, workers), Operand(b, "right", setting, workers)
        self.setting, self.exchange, self.axes, self.workers = setting, exchange, axes, workers
        self.batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        m, n = self.left.count, self.right.count
        self.rows, self.columns = self._share(m, 0), self._share(n, 1)

    def _share(self, size: int, axis: int) -> slice:
        """Rows (0) or columns (1) that land here."""
        for index, scattered in self.axes.items():
            if scattered == axis:
                return slice(*self.exchange.share(size, index))
        return slice(0, size)

    def run(self, factors: tuple[complex, complex] | None = None, c: NDArray[Any] | None = None) -> NDArray[Any]:
        """The entries that land here, (…, rows, columns). c: gemm's, of these entries."""
        left, right, exchange = self.left, self.right, self.exchange
        extent = exchange.maximum(np.concatenate([left.extents(), right.extents()], axis=1))
        cut = len(left.matrices) * left.count
        norm = np.concatenate([left.norms(extent[:, :cut]), right.norms(extent[:, cut:])], axis=1)
        norm = exchange.total(norm)
        left.scaled(norm[:, :cut])
        right.scaled(norm[:, cut:])
        pairs = list(self._pairs())
        totals = self._digits(pairs)
        lost = exchange.total(np.concatenate([left.lost, right.lost], axis=1))
        left.lost, right.lost = lost[:, :cut], lost[:, cut:]
        joined = []
        for at, (p, q) in enumerate(pairs):
            epilogue = None
            if factors is not None:
                epilogue = Epilogue(*factors, None if c is None else c.reshape(len(pairs), *c.shape[-2:])[at])
            joined.append(
                join(
                    totals[at], left.scales(p, self.rows), right.scales(q, self.columns), self.setting,
                    specials=self._specials(p, q), epilogue=epilogue, workers=self.workers,
                )
            )  # fmt: skip
        del totals
        self._certify(joined, pairs)
        self._recompute(joined, pairs)
        self._compare(joined, pairs)
        shape = (*self.batch, self.rows.stop - self.rows.start, self.columns.stop - self.columns.start)
        if not joined:
            return np.empty(shape, self.setting.dtype)
        return np.stack([each.out for each in joined]).reshape(shape)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Which matrices of both sides each product of the batch multiplies."""
        numbers = []
        for side in (self.left, self.right):
            own = np.arange(len(side.matrices)).reshape(side.batch)
            numbers.append(np.broadcast_to(own, self.batch).reshape(-1).tolist())
        yield from zip(*numbers, strict=True)

    def _digits(self, pairs: list[tuple[int, int]]) -> list[NDArray[np.int8]]:
        """The combined digits that land here, of each product."""
        shape = (self.rows.stop - self.rows.start, self.columns.stop - self.columns.start)
        head = self.setting.parts, self.setting.moduli
        totals = [np.empty((*head, *shape), np.int8) for _ in pairs]
        waiting: list[tuple[int, slice, slice, Pending]] = []
        (first, axis), *others = self.axes.items()

        def land() -> None:
            at, rows, columns, pending = waiting.pop(0)
            found = self._summed(pending.wait())
            for index, each in others:
                scattered = None if each is None else 2 + each
                found = self._summed(self.exchange.start_scatter(found, scattered, index).wait())
            totals[at][:, :, rows, columns] = found

        for at, (p, q) in enumerate(pairs):
            for digits, rows, columns in self._blocks(self.left.split(p), self.right.split(q)):
                scattered = None if axis is None else 2 + axis
                waiting.append((at, rows, columns, self.exchange.start_scatter(digits, scattered, first)))
                if len(waiting) > AHEAD:
                    land()
        while waiting:
            land()
        return totals

    def _blocks(self, left: SplitPiece, right: SplitPiece) -> Iterator[tuple[NDArray[np.int8], slice, slice]]:
        """Digits of some columns, or rows where columns are scattered, or of all where both are; and where they are to
        stand in this rank's share.
        """
        taken = set(self.axes.values())
        everything = slice(None)
        if 1 not in taken:
            for piece, here in _grouped(right, self.setting.entry_bytes * max(1, left.count)):
                yield residues.multiply(left, piece, self.setting, self.workers), everything, here
        elif 0 not in taken:
            for piece, here in _grouped(left, self.setting.entry_bytes * max(1, right.count)):
                yield residues.multiply(piece, right, self.setting, self.workers), here, everything
        else:
            yield residues.multiply(left, right, self.setting, self.workers), everything, everything

    def _summed(self, found: NDArray[np.int8]) -> NDArray[np.int8]:
        """The digits of all ranks of a mesh dimension, added."""
        total = np.ascontiguousarray(found[0])
        for other in found[1:]:
            residues.add(total, np.ascontiguousarray(other), self.setting)
        return total

    def _specials(self, p: int, q: int) -> list[Special] | None:
        """What stands in this rank's share for entries that meet Inf or NaN."""
        odd = [
            specials.nonfinite(side.exponent[side.vectors(x)]) for side, x in ((self.left, p), (self.right, q))
        ]  # fmt: skip
        if not (odd[0].any() or odd[1].any()):
            return None
        flags = specials.flags(self.left.matrices[p], self.right.matrices[q], odd[0], odd[1], self.setting)
        whole = specials.values(self.exchange.maximum(flags), odd[0], odd[1], self.setting)
        found: list[Special] = []
        for (i, j), values in whole:
            by_row = isinstance(j, slice)
            share = self.rows if by_row else self.columns
            index = i if by_row else j
            kept = (index >= share.start) & (index < share.stop)
            inside = (kept, self.columns) if by_row else (self.rows, kept)
            where = (index[kept] - share.start, slice(None)) if by_row else (slice(None), index[kept] - share.start)
            found.append((where, [value[inside] for value in values]))
        return found

    def _shared(self, entries: list[list[Entries]]) -> tuple[list[tuple[int, Entries, NDArray[np.bool_]]], int]:
        """Uncertified entries of all ranks, by product and real part, in places of this rank's operands; which of each
        are this rank's, in its own order.
        """
        rows = [
            np.stack(
                [np.full(e.i.size, at), np.full(e.i.size, e.part), e.i + self.rows.start, e.j + self.columns.start]
            )
            for at, each in enumerate(entries)
            for e in each
        ]
        mine = np.concatenate([np.zeros((4, 0), np.int64), *rows], axis=1)
        whole, start = self.exchange.gathered(mine)
        owned = np.zeros(whole.shape[1], np.bool_)
        owned[start : start + mine.shape[1]] = True
        found = []
        for at, part in sorted(set(map(tuple, whole[:2].T.tolist()))):
            here = (whole[0] == at) & (whole[1] == part)
            i, j = np.ascontiguousarray(whole[2:, here])
            found.append((int(at), Entries(int(part), i, j), owned[here]))
        return found, whole.shape[1]

    def _certify(self, joined: list[Joined], pairs: list[tuple[int, int]]) -> None:
        if not self.setting.levels:
            return
        wanted = [each.to_certify() for each in joined]
        shared, count = self._shared(wanted)
        if not count:
            return
        sums, masks = [], []
        for at, entries, owned in shared:
            p, q = pairs[at]
            exponents = self.left.exponent[self.left.vectors(p)], self.right.exponent[self.right.vectors(q)]
            a, b = self.left.matrices[p], self.right.matrices[q]
            sums.append(recompute.magnitudes(a, b, [entries], exponents, self.setting, self.workers))
            masks.append((at, owned))
        whole, start = self.exchange.total(np.concatenate(sums, axis=1)), 0
        answers: list[list[NDArray[np.int64]]] = [[np.zeros((2, 0), np.int64)] for _ in joined]
        for at, owned in masks:
            answers[at].append(whole[:, start : start + owned.size][:, owned])
            start += owned.size
        for each, answer in zip(joined, answers, strict=True):
            each.certify(np.concatenate(answer, axis=1))

    def _recompute(self, joined: list[Joined], pairs: list[tuple[int, int]]) -> None:
        shared, _ = self._shared([each.uncertified for each in joined])
        rounded = self.setting.target is None
        for at, asked, sums in self._exact(joined, pairs, shared, rounded=rounded):
            joined[at].recompute(asked, sums)

    def _compare(self, joined: list[Joined], pairs: list[tuple[int, int]]) -> None:
        if self.setting.target is not None:
            return
        shared, _ = self._shared([each.near_overflow() for each in joined])
        for at, asked, sums in self._exact(joined, pairs, shared, rounded=False):
            joined[at].compare(asked, sums)

    def _exact(
        self, joined: list[Joined], pairs: list[tuple[int, int]],
        shared: list[tuple[int, Entries, NDArray[np.bool_]]], *, rounded: bool,
    ) -> Iterator[tuple[int, ExactRequest, NDArray[np.int64]]]:  # fmt: skip
        """Requests of bounded size for this rank's entries, with the sums of all ranks."""
        for at, entries, owned in shared:
            p, q = pairs[at]
            here, there = self.left.vectors(p), self.right.vectors(q)
            extents = self.left.extent[:, here], self.right.extent[:, there]
            shifts = self.left.shift[here], self.right.shift[there]
            start = 0
            for asked in joined[at].requests([entries], extents, rounded=rounded):
                sums = recompute.exact_sums(
                    self.left.matrices[p], self.right.matrices[q], asked, shifts, self.workers
                )  # fmt: skip
                sums = self.exchange.total(sums)
                mine = owned[start : start + asked.first.size]
                start += asked.first.size
                if not mine.any():
                    continue
                each = asked.entries[0].keep(mine)
                local = Entries(each.part, each.i - self.rows.start, each.j - self.columns.start)
                yield at, ExactRequest((local,), asked.first[mine], asked.limbs, asked.both, asked.rounded), sums[mine]


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
