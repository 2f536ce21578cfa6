"""Arguments of launches: buffers behind a call's bases, factors, and matrices that TMA copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    import torch


A, B, OUT, WORKSPACE, LEFT, RIGHT, ADDEND, FACTORS = range(8)
"""The bases that a call fills in.

They are the first elements of the operands and the result, the workspace, the prepared parts of the left and the right
operand, and the first element of gemm's C. From FACTORS on they are no addresses but patterns of float64 numbers.
"""


@dataclass(frozen=True)
class BufferView:
    """Elements on the device, so many bytes behind a base.

    Attributes:
        base: which of a call's bases.
        offset: bytes behind it.
        dtype: of the elements.
        shape, strides: of what is there, in elements.
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
