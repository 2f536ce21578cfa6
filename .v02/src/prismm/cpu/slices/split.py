"""An operand in slices: digits for the engine, exponents for the join, and what is left over for the bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prismm.core import threads
from prismm.core.composite import Scaled, Side
from prismm.schemes.slice_layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STRIP = 32
"""Vectors that a worker slices at a time."""


@dataclass
class Sliced:
    """The slices of one operand, `count` vectors in up to d slices.

    digits: on a grid (count, blocks, d, block), right operands with their slices in reverse order, so that the pairs
    of equal p + q lie side by side on both; adaptive (d, count, blocks·block), so that one product takes a slice times
    all slices of the other side. exponent (d, count): of each slice's unit. remainder (d + 1, count): max|x - the
    first p slices|. magnitude (d, count): Σ|digit|, 0 for empty slices. norm (count): an upper bound of Σ|x|.
    """

    side: Side
    layout: Layout
    digits: NDArray[Any]
    exponent: NDArray[np.int64]
    remainder: NDArray[np.float64]
    magnitude: NDArray[np.float64]
    norm: NDArray[np.float64]
    source: Scaled | None

    @property
    def nbytes(self) -> int:
        """Bytes of the digits and of the vectors beside them."""
        return sum(x.nbytes for x in (self.digits, self.exponent, self.remainder, self.magnitude, self.norm))

    @property
    def slices(self) -> int:
        """d: slices that are stored."""
        return int(self.exponent.shape[0])

    @property
    def used(self) -> int:
        """Slices up to the last that is not empty, at least 1."""
        import numpy as np

        filled = np.flatnonzero(self.magnitude.any(axis=1))
        return int(filled[-1]) + 1 if filled.size else 1

    @property
    def ended(self) -> bool:
        """Whether the stored slices leave nothing over."""
        return not self.remainder[-1].any()

    def slice(self, p: int, block: int) -> NDArray[Any]:
        """Digits of slice p (0 first) in one block: (count, block), contiguous rows."""
        if self.layout.adaptive:
            width = self.layout.block
            view: NDArray[Any] = self.digits[p, :, block * width : (block + 1) * width]
        else:
            view = self.digits[:, block, p if self.side == "left" else self.slices - 1 - p]
        return view

    def place(self, p: int) -> tuple[int, int, int]:
        """Where slice p lies in the flat digits: offset, stride of vectors, stride of blocks."""
        d, block, blocks = self.slices, self.layout.block, self.layout.blocks
        if self.layout.adaptive:
            return p * self.exponent.shape[1] * blocks * block, blocks * block, block
        return (p if self.side == "left" else d - 1 - p) * block, blocks * d * block, d * block

    def run(self, first: int, last: int, block: int) -> NDArray[Any]:
        """Grid: slices first..last (0 first) side by side along the inner dimension: (count, (last-first+1)·block)."""
        width = self.layout.block
        count, blocks, d, _ = self.digits.shape
        flat = self.digits.reshape(count, blocks, d * width)[:, block]
        if self.side == "left":
            view: NDArray[Any] = flat[:, first * width : (last + 1) * width]
        else:
            view = flat[:, (d - 1 - last) * width : (d - first) * width]
        return view

    def stack(self, first: int, last: int, block: int) -> NDArray[Any]:
        """Adaptive: slices first..last one below the other: ((last-first+1)·count, block)."""
        d, count, total = self.digits.shape
        width = self.layout.block
        view: NDArray[Any] = self.digits.reshape(d * count, total)[
            first * count : (last + 1) * count, block * width : (block + 1) * width
        ]
        return view


def cut(x: Scaled, layout: Layout, slices: int, workers: int, *, empty: Any = None, keep: bool = False) -> Sliced:
    """Slice an operand into exactly that many slices (empty ones where it ends sooner), in parallel."""
    import numpy as np

    from prismm.cpu.kernels import slice as kernels

    left = x.side == "left"
    count = x.data.shape[0 if left else 1]
    blocks, block, d = layout.blocks, layout.block, slices
    shape = (d, count, blocks * block) if layout.adaptive else (count, blocks, d, block)
    digits = (empty or np.empty)(shape, layout.unit.dtype)
    flat = digits.reshape(-1)
    exponent = np.zeros((d, count), np.int64)
    remainder, magnitude, norm = np.zeros((d + 1, count)), np.zeros((d, count)), np.zeros(count)
    sliced = Sliced(x.side, layout, digits, exponent, remainder, magnitude, norm, x if keep else None)
    offset, vector_stride, block_stride = sliced.place(0)
    slice_stride = sliced.place(1)[0] - offset
    nearest = layout.rounding == "nearest"
    largest = np.inf
    if nearest and layout.unit.inputs is None:
        # INT8 has no 128: where a digit to nearest would be that, its slice begins a bit higher.
        largest = 127.0

    def piece(i0: int) -> None:
        i1 = min(count, i0 + _STRIP)
        # Columns become rows strip by strip, so that one kernel reads both along the memory.
        rows = x.data[i0:i1] if left else np.ascontiguousarray(x.data[:, i0:i1].T)
        place = (block, vector_stride, slice_stride, block_stride, flat)
        found = (
            np.zeros((d, i1 - i0), np.int64), np.zeros((d + 1, i1 - i0)), np.zeros((d, i1 - i0)), np.zeros(i1 - i0)
        )  # fmt: skip
        start = offset + i0 * vector_stride
        if layout.carried:
            kernel = getattr(kernels, f"carried_{layout.unit.dtype}")
            kernel(rows, start, *place, *found)
        else:
            kernel = getattr(kernels, f"slice_{layout.unit.dtype}")
            kernel(rows, layout.bits, nearest, layout.adaptive, largest, start, *place, *found)
        exponent[:, i0:i1], remainder[:, i0:i1], magnitude[:, i0:i1], norm[i0:i1] = found

    if x.k:
        threads.spread(piece, list(range(0, count, _STRIP)), workers)
    # The kernel counts norms in units of 2^-NORM_BITS.
    norm *= 2.0**-kernels.NORM_BITS
    return sliced


def cut_to_the_end(x: Scaled, layout: Layout, workers: int, *, empty: Any = None) -> Sliced:
    """Slice until nothing is left over: at most 1074 bits below the largest element, and 53 more."""
    # Complete for all elements within 24 binades of the largest; data that spread further take another turn.
    guess = -(-(x.precision + 24) // layout.bits) + 1
    while True:
        sliced = cut(x, layout, guess, workers, empty=empty)
        if sliced.ended:
            return sliced
        guess *= 2


def held_by(layout: Layout, dtype: Any, sum_limit: int | None) -> Layout:
    """The layout with its digits in an engine's type and, if the engine sums more than the unit, in longer blocks.

    The digits, and the exact sum of their products, stay what they are.
    """
    limit = layout.unit.sum_limit if sum_limit is None else sum_limit
    unit = replace(layout.unit, dtype=dtype, sum_limit=limit)
    length = max(layout.k, 1)
    block = layout.block if sum_limit is None else min(length, limit // layout.largest_digit**2)
    # Blocks of one length, as far as k allows, instead of a short last one.
    return replace(layout, unit=unit, block=-(-length // -(-length // block)))
