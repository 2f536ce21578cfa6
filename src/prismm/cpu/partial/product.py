"""A product of pieces that are all here: the steps in their order, as reference and for one process."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.composite import Side
from prismm.core.outcome import Epilogue
from prismm.cpu.partial import more, recompute, residues, scales, specials
from prismm.cpu.partial.join import Joined, join
from prismm.cpu.partial.setting import Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]
    Pieces = Sequence[tuple[NDArray[Any], NDArray[Any]]]


def multiply(pieces: Pieces, setting: Setting, *, epilogue: Epilogue | None = None, workers: int = 1) -> Joined:
    """The product whose inner dimension lies in pieces (m, k_p) by (k_p, n): its bits are those of one device."""
    pieces = [(setting.real_operand(a), setting.real_operand(b)) for a, b in pieces]
    rows, columns = (_Scaled([piece[x] for piece in pieces], side, setting, workers) for x, side in enumerate(_SIDES))
    total: NDArray[np.int8] | None = None
    lost = []
    for a, b in pieces:
        left = residues.split(a, "left", rows.shift, setting, workers)
        right = residues.split(b, "right", columns.shift, setting, workers)
        lost.append((left.lost, right.lost))
        digits = residues.multiply(left, right, setting, workers)
        if total is None:
            total = digits
        else:
            residues.add(total, digits, setting)
    assert total is not None
    odd = specials.nonfinite(rows.exponent), specials.nonfinite(columns.exponent)
    found = None
    if odd[0].any() or odd[1].any():
        flags = functools.reduce(np.maximum, [specials.flags(a, b, *odd, setting) for a, b in pieces])
        found = specials.values(flags, *odd, setting)
    both = [
        scales.scales(x.exponent, x.norm, _total(each[side] for each in lost), setting)
        for side, x in enumerate((rows, columns))
    ]
    joined = join(total, both[0], both[1], setting, specials=found, epilogue=epilogue, workers=workers)
    exponents, shifts, extents = ((getattr(rows, x), getattr(columns, x)) for x in ("exponent", "shift", "extent"))
    if entries := joined.to_certify():
        joined.certify(_total(recompute.magnitudes(a, b, entries, exponents, setting, workers) for a, b in pieces))
    for again in joined.to_multiply_again(extents):
        every = [answer for a, b in pieces for _, answer in more.answers(a, b, again, setting, workers=workers)]
        joined.take(again, *joined.join_again(again, more.total(every, again)))
    for asked in joined.to_recompute(extents):
        joined.recompute(asked, _total(recompute.exact_sums(a, b, asked, shifts, workers) for a, b in pieces))
    for asked in joined.to_compare(extents):
        joined.compare(asked, _total(recompute.exact_sums(a, b, asked, shifts, workers) for a, b in pieces))
    joined.finish()
    return joined


_SIDES: tuple[Side, Side] = ("left", "right")


class _Scaled:
    """What all pieces of an operand report of its rows or columns, and the shifts that follow."""

    def __init__(self, pieces: list[NDArray[Any]], side: Side, setting: Setting, workers: int) -> None:
        self.extent: Counts = functools.reduce(np.maximum, [scales.extents(x, side, workers) for x in pieces])
        self.exponent = scales.exponents(self.extent)
        self.norm = _total(scales.norms(x, side, self.exponent, setting, workers) for x in pieces)
        self.shift = scales.shifts(self.exponent, self.norm, setting)


def _total(found: Iterable[Counts]) -> Counts:
    return functools.reduce(np.add, found)
