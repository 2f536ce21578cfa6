"""Views of operands and results in the memory of a program: which vectors, which entries, how far apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.cuda.launch.arguments import BufferView

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Vectors:
    """Rows of A, or columns of B: element (b, i, h) is at buffer + b·strides[0] + i·strides[1] + h·strides[2].

    Attributes:
        buffer: of the matrix's own type.
        batch, vectors, terms: extents of b, i and h.
        strides: in elements of that type.
    """

    buffer: BufferView
    batch: int
    vectors: int
    terms: int
    strides: tuple[int, int, int]

    def batch_slice(self, start: int, batches: int) -> Vectors:
        """Some matrices of a batch, or the one that serves all."""
        if self.batch == 1:
            return self
        place = self.buffer.at(start * self.strides[0], (), ())
        return Vectors(place, min(batches, self.batch - start), self.vectors, self.terms, self.strides)

    def block(self, start: int, stop: int) -> Vectors:
        """Some of the vectors."""
        place = self.buffer.at(start * self.strides[1], (), ())
        return Vectors(place, self.batch, min(stop, self.vectors) - start, self.terms, self.strides)

    @property
    def elements(self) -> int:
        """How many there are."""
        return self.batch * self.vectors * self.terms

    @property
    def parts(self) -> int:
        """Real numbers an element holds."""
        return 2 if self.buffer.dtype.is_complex else 1

    @property
    def steps(self) -> tuple[int, int, int]:
        """`strides`, but 0 from a matrix to the next where one serves the whole batch, whatever its tensor's stride."""
        return (self.strides[0] if self.batch > 1 else 0, *self.strides[1:])

    def even(self, step: int) -> bool:
        """Whether these are multiples of 16, for `cuda.kernels.fp64.even`: real numbers from a matrix to the next and
        along a step (1: to the next vector, 2: within one), and elements along the other one, which are neighbours.
        """
        count = self.terms if step == 1 else self.vectors
        return not (self.parts * self.strides[0] % 16 or self.parts * self.strides[step] % 16 or count % 16)


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def in_words(planes: BufferView) -> BufferView:
    """The same memory, four bytes at a time."""
    import torch

    return BufferView(planes.base, planes.offset, torch.int32)


@dataclass(frozen=True)
class Result:
    """Where a product (batch, m, n) goes: element (b, i, j) at buffer + b·strides[0] + i·strides[1] + j·strides[2]."""

    buffer: BufferView
    batch: int
    m: int
    n: int
    strides: tuple[int, int, int]

    @property
    def extents(self) -> tuple[int, int, int]:
        """Matrices, rows, columns."""
        return self.batch, self.m, self.n

    def reals(self, part: int) -> Result:
        """The real or imaginary parts of a complex result; a real one as it is."""
        if not self.buffer.dtype.is_complex:
            return self
        strides = 2 * self.strides[0], 2 * self.strides[1], 2 * self.strides[2]
        return Result(self.buffer.reals().at(part, (), ()), self.batch, self.m, self.n, strides)

    def batch_slice(self, start: int, batches: int) -> Result:
        """Some matrices of a batch."""
        place = self.buffer.at(start * self.strides[0], (), ())
        return Result(place, min(batches, self.batch - start), self.m, self.n, self.strides)

    def block(self, i: int, rows: int, j: int, columns: int) -> Result:
        """A block of every matrix."""
        place = self.buffer.at(i * self.strides[1] + j * self.strides[2], (), ())
        return Result(place, self.batch, min(rows, self.m - i), min(columns, self.n - j), self.strides)
