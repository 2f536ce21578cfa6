"""Arguments of launches: places behind a call's bases, factors, and matrices that TMA copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    import torch


A, B, OUT, WORKSPACE, LEFT, RIGHT, ADDEND, FACTORS = range(8)
"""The bases that a call names: the operands' and the result's first elements, scratch memory, what was kept of a
prepared left and right operand, the first element of gemm's C, and the first of several factors: patterns of float64
numbers, not addresses.
"""


@dataclass(frozen=True)
class BufferView:
    """Elements of `dtype` on the device, `offset` bytes behind a base; shape and strides (in elements) of what is
    there.
    """

    base: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def at(self, elements: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> BufferView:
        """What lies so many elements further on."""
        return BufferView(self.base, self.offset + elements * self.dtype.itemsize, self.dtype, shape, strides)

    def reals(self) -> BufferView:
        """The real numbers behind complex ones, imaginary parts next to the real ones; strides doubled."""
        import torch

        if not self.dtype.is_complex:
            return self
        dtype = torch.float64 if self.dtype == torch.complex128 else torch.float32
        return BufferView(self.base, self.offset, dtype, self.shape, tuple(2 * x for x in self.strides))

    @property
    def aligned(self) -> bool:
        """Whether it is a multiple of 16 bytes behind its base."""
        return self.offset % 16 == 0


@dataclass(frozen=True)
class Factor:
    """A float64 number that each call brings, as its pattern: to kernels an int64 that they do not specialise."""

    index: int


@dataclass(frozen=True)
class Tiled:
    """A matrix, or a batch of some, that TMA copies box by box; its last axis without gaps, the others' strides and its
    place multiples of 16 bytes.
    """

    buffer: BufferView
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    layout: Any
