"""An operand of `TileInt8`: exponents of its tiles and, where they do not depend on the partner, its segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.composite import Scaled, Side
from prismm.core.outcome import for_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VECTORS = 64
"""Vectors that a worker splits at a time, as far as tiles allow."""


@dataclass(frozen=True)
class Packed:
    """Segments of some vectors in one step of the inner dimension; see `cpu.kernels.tile.pack_segments`."""

    segments: NDArray[np.int8]
    weight: NDArray[np.float64]
    excess: NDArray[np.int64]
    residual2: NDArray[np.float64]
    last2: NDArray[np.float64]


@dataclass(frozen=True)
class TileOperand:
    """A split operand; v vectors (rows on the left, columns on the right), `steps` steps of the inner dimension.

    Attributes:
        data: (v, k), the scaled elements, stored where pairs may need them.
        undo: exponents that take them back to the given data, 0 where tiles are of scaled data.
        vectors: vectors of a tile.
        width: elements of a step.
        count: segments of an element.
        tiles: (tiles, steps) exponents.
        least: the least exponent of the largest element of a nonzero vector in a step.
        energy: Σ x² per vector.
        segments, weight, excess, residual2, last2: what `cpu.kernels.tile.pack_segments` returns; None where the pair
            of tiles decides the exponent.
    """

    side: Side
    data: NDArray[np.float64]
    undo: NDArray[np.int64]
    vectors: int
    width: int
    count: int
    tiles: NDArray[np.int64]
    least: int
    energy: NDArray[np.float64]
    segments: NDArray[np.int8] | None = None
    weight: NDArray[np.float64] | None = None
    excess: NDArray[np.int64] | None = None
    residual2: NDArray[np.float64] | None = None
    last2: NDArray[np.float64] | None = None

    @property
    def size(self) -> int:
        """Vectors."""
        return int(self.data.shape[0])

    @property
    def steps(self) -> int:
        """Steps of the inner dimension."""
        return int(self.tiles.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (
            self.data, self.undo, self.tiles, self.energy, self.segments, self.weight, self.excess, self.residual2,
            self.last2,
        )  # fmt: skip
        return sum(x.nbytes for x in arrays if x is not None)

    def step(self, index: int) -> slice:
        """The elements of a step."""
        return slice(index * self.width, min(self.data.shape[1], (index + 1) * self.width))

    def packed(self, first: int, last: int, step: int) -> Packed:
        """The stored segments of vectors first <= i < last in one step."""
        assert self.segments is not None and self.weight is not None and self.excess is not None
        assert self.residual2 is not None and self.last2 is not None
        return Packed(
            self.segments[step, first:last],
            self.weight[first:last, step],
            self.excess[first:last, step],
            self.residual2[first:last, step],
            self.last2[first:last, step],
        )

    def packed_at(self, chosen: NDArray[np.int64], step: int, exponent: int) -> Packed:
        """The segments of the chosen vectors in one step, for a tile pair's common exponent."""
        x = np.ascontiguousarray(self.data[chosen, self.step(step)])
        found = _pack(x, (exponent - self.undo[chosen])[:, None], self.width, self.count, self.side)
        return Packed(found[0][0], *(y[:, 0] for y in found[1:]))


def spare_bits(width: int) -> int:
    """δ of Eq. 9: the bits that a float32 sum of `width` terms may lose anyway, floor(log2 width).

    >>> spare_bits(32)
    5
    """
    return width.bit_length() - 1


def _room(v: int, steps: int, width: int, count: int) -> tuple[Any, ...]:
    return (
        np.empty((steps, v, count * width), np.int8),
        np.empty((v, steps)),
        np.empty((v, steps), np.int64),
        np.empty((v, steps)),
        np.empty((v, steps)),
    )


def _pack(x: NDArray[np.float64], exponents: NDArray[np.int64], width: int, count: int, side: Side) -> tuple[Any, ...]:
    from prismm.cpu.kernels.tile import pack_segments

    v = x.shape[0]
    out = _room(v, exponents.shape[1], width, count)
    pack_segments(
        for_kernels(x), np.ascontiguousarray(exponents), width, spare_bits(width), count, side == "right", 0, v, *out
    )
    return out


def split_tiles(x: Scaled, vectors: int, width: int, count: int, pairs: bool, given: bool, workers: int) -> TileOperand:
    """Split a scaled operand into `count` segments; tiles are `vectors` by `width`.

    pairs: exponents are decided by tile pairs, so only the tiles' own are found here. given: tiles take their exponents
    from the data as given, with the scaling of vectors undone.
    """
    from prismm.cpu.kernels.tile import pack_segments, tile_exponents, vector_energies

    # Vectors are rows on both sides, so that one kernel serves them.
    data = for_kernels(x.data if x.side == "left" else x.data.T)
    v, k = data.shape
    undo = x.exponent.astype(np.int64) if given else np.zeros(v, np.int64)
    steps, tiles = -(-k // width), -(-v // vectors)
    exponents = np.empty((tiles, steps), np.int64)
    least = np.empty((tiles, steps), np.int64)
    energy = np.empty(v)
    stored = () if pairs else _room(v, steps, width, count)
    of_vectors = np.empty((0 if pairs else v, steps), np.int64)
    # Whole tiles, as a tile's exponent is the largest of all its vectors.
    tiles_per_task = max(1, _VECTORS // vectors)

    def part(first: int) -> None:
        last = min(tiles, first + tiles_per_task)
        i0, i1 = first * vectors, min(v, last * vectors)
        # 7·count - 1 are the fraction bits of an element, to which its largest one may carry.
        tile_exponents(data, undo, vectors, width, 7 * count - 1, first, last, exponents, least)
        vector_energies(data, i0, i1, energy)
        if stored:
            # Elements stand scaled: exponents of the data as given are taken to their units.
            of_vectors[i0:i1] = np.repeat(exponents[first:last], vectors, axis=0)[: i1 - i0] - undo[i0:i1, None]
            pack_segments(data, of_vectors, width, spare_bits(width), count, x.side == "right", i0, i1, *stored)

    threads.spread(part, list(range(0, tiles, tiles_per_task)), workers)
    return TileOperand(x.side, data, undo, vectors, width, count, exponents, int(least.min(initial=1)), energy, *stored)
