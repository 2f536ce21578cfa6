"""The product of two operands of `TileInt8`: blocks of the result, step by step of k, with a bound."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.composite import Joined
from prismm.cpu import blas_pieces
from prismm.cpu.tile_int8.split import Packed, TileOperand

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows and columns of a block, which is one worker's.
_ROWS, _COLUMNS = 256, 512
_U = 2.0**-24
_UP = 1.0 + 2.0**-28
"""More than roundings add to sums of squares of up to 2^23 terms, their roots and products of a few."""


@dataclass(frozen=True)
class Block:
    """Rows and columns of the product, whole tiles but at the ends.

    Attributes:
        i0: the first row.
        i1: the row after the last.
        j0: the first column.
        j1: the column after the last.
    """

    i0: int
    i1: int
    j0: int
    j1: int


@dataclass
class Lost:
    """What is lost of each vector in each step, as sums of squares.

    Attributes:
        rows: (m, steps), lost of rows to rounding.
        columns: (n, steps), lost of columns to rounding.
        last_rows: (m, steps), of rows' last segments, which are not multiplied by columns' last ones.
        last_columns: (n, steps), of columns' last segments.
    """

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    last_rows: NDArray[np.float64]
    last_columns: NDArray[np.float64]

    @classmethod
    def none(cls, m: int, n: int, steps: int) -> Lost:
        """Nothing yet."""
        return cls(*(np.zeros((size, steps)) for size in (m, n, m, n)))

    def merge(self, other: Lost, block: Block) -> None:
        """The worse of both, in the vectors of the other's block."""
        for mine, its, i0, i1 in (
            (self.rows, other.rows, block.i0, block.i1),
            (self.last_rows, other.last_rows, block.i0, block.i1),
            (self.columns, other.columns, block.j0, block.j1),
            (self.last_columns, other.last_columns, block.j0, block.j1),
        ):
            np.maximum(mine[i0:i1], its, out=mine[i0:i1])


@dataclass(frozen=True)
class Group:
    """Vectors of a block, by index, whose segments belong together in one step; None for all of them."""

    rows: NDArray[np.int64] | None
    columns: NDArray[np.int64] | None
    left: Packed
    right: Packed


@dataclass
class TileProduct:
    """One product under way.

    Attributes:
        pairs: whether the exponent is the tile pair's.
        weights: how many sums of segment products of equal weight are added.
        fallback: whether pairs over the threshold of Eq. 9 are multiplied in FP16 words.
        fallen: how many pairs were.
        lock: held while a worker adds its counts and losses.
    """

    left: TileOperand
    right: TileOperand
    pairs: bool
    weights: int
    fallback: bool
    fallen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, products: int, drops: bool, workers: int) -> Joined:
        """The product with its bound. products: of segments; drops: whether that of the last segments is left out."""
        left, right = self.left, self.right
        m, n, steps = left.size, right.size, left.steps
        high = np.empty((m, n))
        lost = Lost.none(m, n, steps)
        rows = left.vectors * max(1, _ROWS // left.vectors)
        columns = right.vectors * max(1, _COLUMNS // right.vectors)
        blocks = [
            Block(i, min(m, i + rows), j, min(n, j + columns)) for j in range(0, n, columns) for i in range(0, m, rows)
        ]

        def work(block: Block) -> None:
            # Workers share the processors, so that each one's products run in a single thread.
            threads.limit_openmp()
            acc, found = self._block(block)
            high[block.i0 : block.i1, block.j0 : block.j1] = acc
            with self.lock:
                lost.merge(found, block)

        threads.spread(work, blocks, workers)
        return self._joined(high, lost, products, drops)

    def _block(self, block: Block) -> tuple[NDArray[np.float32], Lost]:
        m, n = block.i1 - block.i0, block.j1 - block.j0
        acc = np.zeros((m, n), np.float32)
        lost = Lost.none(m, n, self.left.steps)
        room = _Room(self, m, n)
        for step in range(self.left.steps):
            for group in self._groups(block, step):
                if group.rows is None or group.columns is None:
                    self._add(group, np.arange(m), np.arange(n), block, step, acc, lost, room)
                else:
                    # The kernel adds to contiguous entries: a group's are gathered, and put back.
                    piece = np.ascontiguousarray(acc[np.ix_(group.rows, group.columns)])
                    self._add(group, group.rows, group.columns, block, step, piece, lost, room)
                    acc[np.ix_(group.rows, group.columns)] = piece
        return acc, lost

    def _groups(self, block: Block, step: int) -> Iterator[Group]:
        """All tile pairs of the block, each once; pairs of equal common exponent together."""
        left, right = self.left, self.right
        if not self.pairs:
            yield Group(None, None, left.packed(block.i0, block.i1, step), right.packed(block.j0, block.j1, step))
            return
        p = left.tiles[block.i0 // left.vectors : -(-block.i1 // left.vectors), step]
        q = right.tiles[block.j0 // right.vectors : -(-block.j1 // right.vectors), step]
        # The larger exponent counts: first all left tiles up to e with right ones of e, then left ones of e with right
        # ones below.
        cuts = [(e, p <= e, q == e) for e in np.unique(q)] + [(e, p == e, q < e) for e in np.unique(p)]
        for exponent, chosen_left, chosen_right in cuts:
            rows = np.flatnonzero(np.repeat(chosen_left, left.vectors)[: block.i1 - block.i0])
            columns = np.flatnonzero(np.repeat(chosen_right, right.vectors)[: block.j1 - block.j0])
            if rows.size and columns.size:
                yield Group(
                    rows, columns, left.packed_at(rows + block.i0, step, exponent),
                    right.packed_at(columns + block.j0, step, exponent),
                )  # fmt: skip

    def _add(
        self,
        group: Group,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        block: Block,
        step: int,
        acc: NDArray[np.float32],
        lost: Lost,
        room: _Room,
    ) -> None:
        """acc += one step's products of a group, each entry once; notes what is lost."""
        from prismm.cpu.kernels.tile import join_segments

        left, right = self.left, self.right
        wide_left = _over(group.left.excess, left.vectors, left.width, self.fallback)
        wide_right = _over(group.right.excess, right.vectors, right.width, self.fallback)
        fall = wide_left[:, None] | wide_right[None, :]
        some, every = bool(fall.any()), bool(fall.all())
        if not every:
            sums = room.sums(group.left.segments, group.right.segments)
            weight = np.ascontiguousarray(group.right.weight)[None, :]
            if some:
                # A weight of 0 leaves pairs that fall back to `_fall_back`.
                weight = np.where(np.repeat(fall, right.vectors, axis=1)[:, : columns.size], 0.0, weight)
            join_segments(
                sums, np.ascontiguousarray(group.left.weight), weight, left.vectors if some else rows.size, acc
            )
            # A vector whose tiles all fall back loses nothing to segments.
            used = np.repeat(~fall.all(axis=1), left.vectors)[: rows.size]
            _note(lost.rows, rows, step, group.left.residual2 * used)
            _note(lost.last_rows, rows, step, group.left.last2 * used)
            used = np.repeat(~fall.all(axis=0), right.vectors)[: columns.size]
            _note(lost.columns, columns, step, group.right.residual2 * used)
            _note(lost.last_columns, columns, step, group.right.last2 * used)
        if some:
            self._fall_back(fall, rows, columns, block, step, acc, lost)

    def _fall_back(
        self,
        fall: NDArray[np.bool_],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        block: Block,
        step: int,
        acc: NDArray[np.float32],
        lost: Lost,
    ) -> None:
        """acc += the tile pairs `fall` in two FP16 words, as `ScaledHalf(sb=12, order="term")` multiplies."""
        from prismm.cpu.kernels.half_tile import half_products, half_words

        words: list[Any] = []
        for operand, chosen, used, residual in (
            (self.left, rows + block.i0, fall.any(axis=1), lost.rows),
            (self.right, columns + block.j0, fall.any(axis=0), lost.columns),
        ):
            x = np.ascontiguousarray(operand.data[chosen, operand.step(step)])
            high, low = (np.empty((chosen.size, operand.width), np.float32) for _ in range(2))
            weight, residual2 = np.empty(chosen.size), np.empty(chosen.size)
            half_words(x, high, low, weight, residual2)
            words += [high, low, weight]
            where = rows if operand is self.left else columns
            _note(residual, where, step, residual2 * np.repeat(used, operand.vectors)[: chosen.size])
        half_products(*words, fall.astype(np.uint8), self.left.vectors, self.right.vectors, acc)
        with self.lock:
            # Workers count at once, and an addition is no atomic step in Python.
            self.fallen += int(fall.sum())

    def _joined(self, high: NDArray[np.float64], lost: Lost, products: int, drops: bool) -> Joined:
        """The bound, proved in `TileInt8`."""
        left, right = self.left, self.right
        steps, width = left.steps, left.width
        inner = float(self.weights - 1)
        if self.fallen:
            # A fallen pair's own roundings, of up to width + 1 additions, take the place of those of weights.
            inner = max(inner, width + 1.0) * (1.0 + 2.0**-8)
        gamma = ((steps - 1) * (1.0 + 2.0**-8 if self.fallen else 1.0) + inner) * _U * (1.0 + 2.0**-10)
        d_left, d_right = (np.sqrt(x.sum(axis=1)) * _UP for x in (lost.rows, lost.columns))
        n_left, n_right = (np.sqrt(x) * _UP for x in (left.energy, right.energy))
        rows = [d_left * (1.0 + gamma) * _UP, (n_left + d_left) * (1.0 + gamma) * _UP]
        columns = [n_right, d_right]
        if drops:
            rows.append(np.sqrt(lost.last_rows.sum(axis=1)) * _UP)
            columns.append(np.sqrt(lost.last_columns.sum(axis=1)) * _UP)
        # Units of partial sums are at least 2^(e + e' - 88): 2^-149 or more where e + e' >= -61.
        floor = 0.0 if left.least + right.least >= -60 else 2.0 * steps * 2.0**-149
        notes = {"fallback tiles": self.fallen} if self.fallen else {}
        count = products + (3 if self.fallen else 0)
        return Joined(high, None, gamma, np.stack(rows), np.stack(columns), floor, count, notes)


class _Room:
    """Buffers of one block for segments in float32 and for their sums."""

    def __init__(self, product: TileProduct, m: int, n: int) -> None:
        self.width = product.left.width
        self.counts = (product.left.count, product.right.count)
        self.weights = product.weights
        self._left = np.empty(m * self.counts[0] * self.width, np.float32)
        self._right = np.empty(n * self.counts[1] * self.width, np.float32)
        self._sums = np.empty(self.weights * m * n, np.float32)

    def sums(self, x: NDArray[np.int8], y: NDArray[np.int8]) -> NDArray[np.float32]:
        """S_s = Σ_{i+j=s} x_i y_jᵀ, s < weights; exact: at most 4·256·127² < 2^24.

        The left segments stand in order, the right ones backwards, so that each sum is one product of slices.
        """
        left = self._left[: x.size].reshape(x.shape)
        right = self._right[: y.size].reshape(y.shape)
        left[...] = x
        right[...] = y
        m, n = x.shape[0], y.shape[0]
        sums = self._sums[: self.weights * m * n].reshape(self.weights, m, n)
        product, a, b, out = _product(left, right, sums)
        l_count, r_count = self.counts
        for s in range(self.weights):
            i0, i1 = max(0, s - r_count + 1), min(l_count - 1, s) + 1
            j0 = r_count - 1 - s + i0
            w = self.width
            product(a[:, i0 * w : i1 * w], b[j0 * w : (j0 + i1 - i0) * w], out=out[s])
        return sums


def _product(left: Any, right: Any, sums: Any) -> tuple[Callable[..., Any], Any, Any, Any]:
    """A product of float32 matrices, and what it takes: left, right transposed, and the sums.

    torch's, where it is loaded, heeds the OpenMP limit of a worker; NumPy's has threads of its own, so it gets pieces.
    """
    if sys.modules.get("torch") is None:
        return blas_pieces.multiply, left, right.T, sums
    import torch

    return torch.mm, torch.from_numpy(left), torch.from_numpy(right).t(), torch.from_numpy(sums)


def _over(excess: NDArray[np.int64], vectors: int, width: int, fallback: bool) -> NDArray[np.bool_]:
    """Tiles with a vector whose Δ of Eq. 9 exceeds 1·u, that is Σ max(0, δ' - δ) > width."""
    starts = np.arange(0, excess.size, vectors)
    if not fallback:
        return np.zeros(starts.size, np.bool_)
    over: NDArray[np.bool_] = np.maximum.reduceat(excess, starts) > width
    return over


def _note(where: NDArray[np.float64], index: NDArray[np.int64], step: int, found: NDArray[np.float64]) -> None:
    where[index, step] = np.maximum(where[index, step], found)
