"""Uncertified entries, decided from pieces: lower bounds of |a||b|, and exact sums, that add up over the pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.outcome import Job
from prismm.core.scales import Scales
from prismm.cpu.entries import Entries, gathered, in_slices
from prismm.cpu.partial.scales import NOTHING
from prismm.cpu.partial.setting import Setting
from prismm.cpu.repair import magnitude_sums
from prismm.cpu.residues.multiply import rounded_operand

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOWEST = 2150
"""Digit x of `kernels.exact` is worth 2^(16·x - LOWEST)."""


def magnitudes(
    a: NDArray[Any], b: NDArray[Any], entries: Sequence[Entries], exponents: tuple[Any, Any], setting: Setting,
    workers: int = 1,
) -> NDArray[np.int64]:  # fmt: skip
    """(2, entries): the sums of the products of 7-bit magnitudes of a piece, and 1 where a product of elements is not
    zero. Combined by sums.

    exponents: of the rows and columns of all pieces.
    """
    job = setting.job(workers)
    rows, columns = (Scales(e, e, np.empty((4, 0)), np.empty((0, 0), np.int64)) for e in exponents)
    found = []
    for each in entries:
        sums = np.zeros((2, each.i.size), np.int64)
        if a.shape[1]:
            for where, total, hit in magnitude_sums(a, b, each, job, (rows, columns)):
                sums[0, where], sums[1, where] = total, hit
        found.append(sums)
    return np.concatenate([np.zeros((2, 0), np.int64), *found], axis=1)


@dataclass(frozen=True)
class ExactRequest:
    """Entries whose exact sums are wanted, and where their limbs begin: what pieces get to know.

    Attributes:
        entries: of each real part.
        first: the digit at which an entry's limbs begin, of all parts' entries one after the other.
        limbs: for each sum.
        both: whether the sums of both real parts of a product are wanted, for gemm's factors.
        rounded: whether of the operands rounded to the scheme's integers.
    """

    entries: tuple[Entries, ...]
    first: NDArray[np.int64]
    limbs: int
    both: bool
    rounded: bool

    @property
    def segments(self) -> int:
        """Sums for each entry."""
        return 2 if self.both else 1

    @property
    def nbytes(self) -> int:
        """Bytes of a piece's answer."""
        return 8 * self.first.size * self.segments * self.limbs

    def cut(self, most: int) -> list[ExactRequest]:
        """The same in requests of at most so many bytes each, or of one entry."""
        step = max(1, most // max(1, 8 * self.segments * self.limbs))
        found, start = [], 0
        for each in self.entries:
            for e in range(0, each.i.size, step):
                here = each.keep(slice(e, e + step))
                first = self.first[start + e : start + e + here.i.size]
                found.append(ExactRequest((here,), first, self.limbs, self.both, self.rounded))
            start += each.i.size
        return found


def request(
    entries: Sequence[Entries], rows: NDArray[np.int64], columns: NDArray[np.int64], setting: Setting, *,
    both: bool = False, rounded: bool = False,
) -> ExactRequest:  # fmt: skip
    """What to ask of the pieces; rows, columns: `scales.extents` of all.

    An entry's terms are multiples of 2^(l + l') and their sum is below K·2^(e + e'); operands that are rounded may
    reach the next power of two.
    """
    from prismm.cpu.kernels.exact_pieces import LAST

    terms = setting.terms.bit_length() + 2
    firsts, most = [np.empty(0, np.int64)], 1
    for each in entries:
        low, high = np.zeros((2, each.i.size), np.int64)
        for extent, index in ((rows, each.i), (columns, each.j)):
            top, last = extent[0, index], -extent[1, index]
            # Zeros have neither: their sums are zero wherever the limbs begin.
            nothing = top == NOTHING
            low += np.where(nothing, 0, last)
            high += np.where(nothing, 0, top)
        first = (low + LOWEST) >> 4
        most = max(most, int((((high + terms + LOWEST) >> 4) - first).max(initial=0)) // 2 + 1)
        firsts.append(first)
    kept = tuple(each for each in entries if each.i.size)
    # All have as many limbs as the widest, whose end must not lie beyond the digits that there are.
    first = np.minimum(np.concatenate(firsts), LAST - 2 * most)
    return ExactRequest(kept, first, most, both, rounded)


def exact_sums(
    a: NDArray[Any], b: NDArray[Any], asked: ExactRequest, shifts: tuple[Any, Any], workers: int = 1
) -> NDArray[np.int64]:
    """(entries, segments, limbs): the exact sums of a piece. Combined by sums.

    shifts: of the rows and columns of all pieces.
    """
    from prismm.cpu.kernels.exact_pieces import exact_pieces

    out = np.zeros((asked.first.size, asked.segments, asked.limbs), np.int64)
    start = 0
    for each in asked.entries:
        here = out[start : start + each.i.size]
        first = asked.first[start : start + each.i.size]
        start += each.i.size
        parts = (0, 1) if asked.both else (each.part,)
        left, right = a, b
        if asked.rounded:
            left = rounded_operand(a, shifts[0][:, None], each.i)
            right = rounded_operand(b.T, shifts[1][:, None], each.j).T
        for piece in gathered(left, right, each, parts, workers) if a.shape[1] else ():
            found = np.zeros((piece.ri.size, *out.shape[1:]), np.int64)
            begin = np.ascontiguousarray(first[piece.where])

            def dots(s: slice, piece: Any = piece, found: Any = found, begin: Any = begin) -> None:
                exact_pieces(
                    piece.rows, piece.columns, piece.ri[s], piece.ci[s], found.shape[1], begin[s], found[s]
                )  # fmt: skip

            in_slices(dots, piece.ri.size, workers)
            here[piece.where] = found
    return out


def round_sums(
    sums: NDArray[np.int64], asked: ExactRequest, factors: NDArray[np.float64], addends: NDArray[np.float64], job: Job,
) -> NDArray[np.float64]:  # fmt: skip
    """The entries from the exact sums of all pieces, rounded once. factors: of the segments, then of the addends
    (entries, addends).
    """
    from prismm.cpu.kernels.exact_pieces import round_pieces

    value = np.empty(asked.first.size)
    alpha, beta = factors[: asked.segments].copy(), factors[asked.segments :].copy()
    round_pieces(
        np.ascontiguousarray(sums), np.ascontiguousarray(asked.first), alpha, np.ascontiguousarray(addends), beta,
        job.result.precision, value,
    )  # fmt: skip
    return value
