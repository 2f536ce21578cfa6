"""Where a sharded product has many uncertified entries, the CPUs of all ranks multiply their rows and columns again, by
more moduli (`cpu.partial.more`).

The rank that has an entry chooses how many moduli; all ranks answer for their part of the inner dimension.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.cpu.partial import more
from prismm.cpu.partial.join import Joined
from prismm.cpu.partial.more import Again, Answer
from prismm.cpu.partial.scales import NOTHING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.distributed.inner import Met, Operand, Piece, Product

    Index = NDArray[np.int64]

BYTES = 32 << 20
"""Bytes of digits that are made at a time."""

BYTES_AMONG = 8
"""Ranks along a mesh dimension up to which each sends its digits to each."""


@dataclass(frozen=True)
class _Vectors:
    """Rows or columns in which some rank has uncertified entries.

    Attributes:
        index: which, ascending.
        met: this rank's part of them.
        extent: `scales.extents` of all ranks.
    """

    index: Index
    met: Met
    extent: Index

    @staticmethod
    def of(operand: Operand, p: int, index: Index, product: Product) -> _Vectors:
        met = operand.met(p, index)
        return _Vectors(index, met, operand.extents_of(p, met, product.exchange.maximum)[:, met.positions])

    def extents(self, vectors: Index) -> Index:
        """Of some vectors, ascending; `NOTHING` of those that are not among these."""
        found = np.full((2, vectors.size), NOTHING, np.int64)
        at = np.searchsorted(self.index, vectors)
        known = at < self.index.size
        known[known] = self.index[at[known]] == vectors[known]
        found[:, known] = self.extent[:, at[known]]
        return found

    def places(self, vectors: Index) -> Index:
        """Where vectors stand in this rank's part."""
        return self.met.positions[np.searchsorted(self.index, vectors)]


def multiply_again(product: Product, pieces: list[list[Piece]], pairs: list[tuple[int, int]]) -> None:
    """Decide uncertified entries of all ranks, each piece's by the way that its rank chooses."""
    exchange, setting = product.exchange, product.setting
    if setting.target is None:
        return
    pieces = [[piece for piece in some if not piece.joined.tried] for some in pieces]
    count = sum(each.i.size for some in pieces for piece in some for each in piece.joined.uncertified)
    if not more.pays(int(exchange.total(np.array([count]))[0]), setting):
        return
    known = _known(product, pieces, pairs)
    requests: list[Index] = []
    own: list[tuple[Joined, Again]] = []
    for at, some in enumerate(pieces):
        for piece in some:
            if any(each.i.size for each in piece.joined.uncertified):
                extents = known[at, 0].extents(piece.rows), known[at, 1].extents(piece.columns)
                for asked in piece.joined.to_multiply_again(extents):
                    own.append((piece.joined, asked))
                    requests.append(_written(at, asked.among(piece.rows[asked.rows], piece.columns[asked.columns])))
    nothing = np.zeros((1, 0), np.int64)
    whole, start = exchange.gathered(np.concatenate([nothing, *(x[None] for x in requests)], axis=1))
    end = start + sum(x.size for x in requests)
    place = 0
    while place < whole.shape[1]:
        mine = start <= place < end
        at, asked, place = _read(whole[0], place)
        left, right = known[at, 0], known[at, 1]
        here = asked.among(left.places(asked.rows), right.places(asked.columns))
        taken, values = own.pop(0) if mine else None, []
        found = more.answers(left.met.matrix, right.met.matrix, here, setting, BYTES, product.workers)
        for rows, answer in found:
            lost = exchange.total(answer.lost[0]), exchange.total(answer.lost[1])
            total = Answer(_total(answer.digits, asked, product), lost)
            if taken is not None:
                values.append(taken[0].join_again(taken[1].block(rows), total))
        if taken is not None:
            value, failed = (np.concatenate(parts) for parts in zip(*values, strict=True))
            taken[0].take(taken[1], value, failed)


def _total(digits: NDArray[np.int8], asked: Again, product: Product) -> NDArray[Any]:
    """The digits of all ranks. Each sends bytes to each; larger groups add int32, whose bytes do not grow with the
    ranks.
    """
    exchange = product.exchange
    if max(exchange.mesh.size(index) for index in exchange.inner) > BYTES_AMONG:
        summed: NDArray[Any] = exchange.total(digits.astype(np.int32))
        return summed
    for index in exchange.inner:
        digits = more.total_digits(exchange.start_scatter(digits, None, index).wait(), asked)
    return digits


def _known(
    product: Product, pieces: list[list[Piece]], pairs: list[tuple[int, int]]
) -> dict[tuple[int, int], _Vectors]:  # fmt: skip
    """By product of the batch and side: what uncertified entries of all ranks meet."""
    mine = [np.zeros((3, 0), np.int64)]
    for at, some in enumerate(pieces):
        for piece in some:
            for each in piece.joined.uncertified:
                for side, vectors in enumerate((piece.rows[each.i], piece.columns[each.j])):
                    used = np.unique(vectors)
                    mine.append(np.stack([np.full(used.size, at), np.full(used.size, side), used]))
    whole, _ = product.exchange.gathered(np.concatenate(mine, axis=1))
    found = {}
    kinds = 2 * whole[0] + whole[1]
    for at, side in (divmod(kind, 2) for kind in np.unique(kinds).tolist()):
        index = np.unique(whole[2, kinds == 2 * at + side])
        operand = product.right if side else product.left
        found[at, side] = _Vectors.of(operand, pairs[at][side], index, product)
    return found


def _written(at: int, asked: Again) -> Index:
    """A request in integers: a head, then rows, columns and their shifts."""
    head = at, asked.part, asked.moduli, *asked.bits, asked.rows.size, asked.columns.size
    return np.concatenate([np.array(head, np.int64), asked.rows, asked.columns, *asked.shifts])


def _read(whole: Any, place: int) -> tuple[int, Again, int]:
    """The product of the batch, a request, and where the next one begins."""
    at, part, moduli, left, right, m, n = whole[place : place + 7].tolist()
    cuts = np.cumsum([place + 7, m, n, m, n]).tolist()
    rows, columns, *shifts = (np.ascontiguousarray(whole[x:y]) for x, y in itertools.pairwise(cuts))
    return at, Again(part, rows, columns, (shifts[0], shifts[1]), moduli, (left, right)), cuts[-1]
