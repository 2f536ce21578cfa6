"""Scales of rows and columns, and blocks of them, that certificates and bounds read."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

NONFINITE = 1 << 20


@dataclass(frozen=True)
class Blocks:
    """Rows that meet `width` columns of the right operand each: row i the block of columns owner[i], which never falls.

    The product has `width` columns. So the products of a batch are one: the rows of all, and the columns of all side
    by side.

    Attributes:
        owner: (rows,), the block that each row meets.
        width: columns of a block.
    """

    owner: NDArray[np.int64]
    width: int

    @functools.cached_property
    def first(self) -> NDArray[np.int64]:
        """The first row of every block, and the end."""
        count = int(self.owner[-1]) + 1 if self.owner.size else 0
        return np.searchsorted(self.owner, np.arange(count + 1))

    def columns(self, j: Any = slice(None)) -> NDArray[np.int64]:
        """Which columns of the right operand the entries of each row belong to."""
        found: NDArray[np.int64] = self.owner[:, None] * self.width + np.arange(self.width)[j]
        return found

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of every block."""
        for u, (i0, i1) in enumerate(itertools.pairwise(self.first.tolist())):
            yield slice(i0, i1), slice(u * self.width, (u + 1) * self.width)


@dataclass(frozen=True)
class Scales:
    """Per row of A or column of B: the scale 2^shift, and what the bounds need.

    Attributes:
        shift: (n,), the exponent of the scale.
        exponent: (n,), e with |a| < 2^e; 0 for zero, 2^20 for Inf or NaN.
        terms: (4, n), ½‖A'‖₁, ‖δ‖₂, ‖A'‖₂ and the flag "inexact", upper bounds in units of A'
            (`cpu.kernels.scale.bound_terms`).
        counts: (n, levels), elements of at least 2^(e-1), 2^(e-2), ….
    """

    shift: NDArray[np.int64]
    exponent: NDArray[np.int64]
    terms: NDArray[np.float64]
    counts: NDArray[np.int64]

    def block(self, start: int, stop: int) -> Scales:
        """The scales of a range of rows or columns."""
        if start == 0 and stop == self.shift.size:
            return self
        # Copied where the kernels' types ask for contiguous vectors, which a range of columns is not.
        return Scales(
            self.shift[start:stop],
            self.exponent[start:stop],
            np.ascontiguousarray(self.terms[:, start:stop]),
            self.counts[start:stop],
        )

    @property
    def power(self) -> NDArray[np.int64]:
        """e + s: |A'| <= 2^(e+s)."""
        return self.exponent + self.shift

    @property
    def nonfinite(self) -> NDArray[np.bool_]:
        """Where a row or column holds Inf or NaN."""
        return self.exponent >= NONFINITE

    @staticmethod
    def joined(pieces: list[Scales]) -> Scales:
        """Scales of consecutive ranges as one."""
        if len(pieces) == 1:
            return pieces[0]
        return Scales(
            np.concatenate([p.shift for p in pieces]),
            np.concatenate([p.exponent for p in pieces]),
            np.concatenate([p.terms for p in pieces], axis=1),
            np.concatenate([p.counts for p in pieces]),
        )
