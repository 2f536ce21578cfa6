"""A sample of uncertified entries, by which the method that recomputes all of them is chosen (`escalation`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.cpu.ways import Expansion, InFloat64, Moduli, Way

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.outcome import Job
    from prismm.cpu.escalation import Block

SAMPLE, FEW = 64, 8
"""Entries that a choice looks at, and those that it looks at first."""


def _scaled(rows: NDArray[np.float64], exponent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Rows times powers of two, contiguous: by two factors, as one may be beyond float64, and faster than ldexp."""
    first = exponent // 2
    factors = np.ldexp(1.0, first)[:, None], np.ldexp(1.0, exponent - first)[:, None]
    return np.ascontiguousarray(rows * factors[0] * factors[1])


@dataclass(frozen=True)
class EntrySample:
    """Some entries of a block, whose rows and columns are scaled by powers of two that lose nothing: how far the
    product is from one with which another rounding begins, 0 for ties and zeros, and Σ|a·b|; both times 2^scale.
    """

    block: Block
    r: NDArray[np.int64]
    c: NDArray[np.int64]
    scale: NDArray[np.int64]
    distance: NDArray[np.float64]
    size: NDArray[np.float64]

    @staticmethod
    @np.errstate(all="ignore")
    def of(block: Block, job: Job) -> EntrySample:
        """Evenly spread."""
        from prismm.cpu.kernels.exact import exact_dots

        # Evenly spread, not drawn: equal calls choose equally.
        chosen = np.linspace(0, block.r.size - 1, min(SAMPLE, block.r.size)).astype(np.int64)
        r, c = block.r[chosen], block.c[chosen]
        # Largest elements are brought to 1, unless the lowest bit would then fall below 2^-1074.
        s, t = (np.maximum(-x.top[i], -1074 - x.low[i]) for x, i in ((block.rows, r), (block.columns, c)))
        x, y = _scaled(block.left[r], s), _scaled(block.right[:, c].T, t)
        index, scale, result = np.arange(chosen.size), s + t, job.result
        factor, *shares = block.summands or (1.0,)
        largest = np.finfo(np.float64).max
        given = [np.clip(np.ldexp(each[chosen], scale), -largest, largest) for each in block.numbers]

        def less(*numbers: NDArray[np.float64]) -> NDArray[np.float64]:
            """RN(the sum, less some numbers)."""
            value, added = np.empty(chosen.size), [*given, *numbers]
            addends = np.stack(added, axis=1) if added else np.empty((chosen.size, 0))
            signs = np.array([*shares, *(-1.0 for _ in numbers)])
            exact_dots(x, y, index, index, np.full(1, factor), addends, signs, 53, value)
            return value

        sums = less()
        exponent = np.minimum(np.frexp(sums)[1] - scale, result.maxexp)
        unit = np.maximum(exponent - result.precision, result.subnormal_exponent) + scale
        # Beyond the largest number the next rounding is Inf, which begins half a place further.
        most = np.ldexp(2.0 - 2.0 ** (1 - result.precision), result.maxexp - 1 + scale)
        rounded = np.clip(np.ldexp(np.rint(np.ldexp(sums, -unit)), unit), -most, most)
        half = np.copysign(np.ldexp(0.5, unit), less(rounded))
        distance = np.where(rounded == 0.0, np.minimum(np.abs(sums), np.abs(less(half))), np.abs(less(rounded, half)))
        return EntrySample(block, r, c, scale, np.nan_to_num(distance) / abs(factor), np.abs(x * y).sum(axis=1))

    def share(self, way: Way, most: float = math.inf) -> tuple[float, float]:
        """Of the entries, what a way decides; and how many terms each one's correction has. Where these are far more
        than `most`, nothing is decided.
        """
        if isinstance(way, Moduli) and way.corrected:
            return self._corrected(way, most)
        return float((self._bound(way) <= self.distance).mean()), 0.0

    @np.errstate(all="ignore")
    def _corrected(self, way: Moduli, most: float) -> tuple[float, float]:
        # A few entries first: looking at all takes longer than some products.
        few = slice(None, None, max(1, self.r.size // FEW))
        if (terms := self._left_out(way, few)[1]) > 2.0 * most:
            return 0.0, terms
        size, terms = self._left_out(way, slice(None))
        decided = size * (2.0 * self.block.k * 2.0**-53) < self.distance
        return float(decided.mean()), terms

    def _left_out(self, way: Moduli, some: slice) -> tuple[NDArray[np.float64], float]:
        """Of some entries: Σ|terms| of what rounded operands leave out, -1 where there are none; and how many terms
        there are on average.
        """
        rows, columns, r, c = self.block.rows, self.block.columns, self.r[some], self.c[some]
        p, q = np.minimum(rows.bits[r], way.left), np.minimum(columns.bits[c], way.right)
        x = _scaled(self.block.left[r], p - rows.top[r])
        y = _scaled(self.block.right[:, c].T, q - columns.top[c])
        whole, dx, dy = np.rint(x), np.abs(x - np.rint(x)), np.abs(y - np.rint(y))
        # As `kernels.residuals` bounds it, on the sample alone.
        size = (dx * np.abs(y) + np.abs(whole) * dy).sum(axis=1)
        scale = self.scale[some] - (p - rows.top[r]) - (q - columns.top[c])
        terms = float((dx != 0.0).sum(axis=1).mean()) + float((dy != 0.0).any(axis=0).sum())
        return np.where(size == 0.0, -1.0, np.ldexp(size, scale)), terms

    @np.errstate(all="ignore")
    def _bound(self, way: Way) -> NDArray[np.float64]:
        """Of a way's sums; negative where they are exact."""
        if isinstance(way, Expansion):
            k = float(self.block.k)
            return self.size * (2.0 * k * k * 2.0**-106 if way.parts == 2 else 4.0 * k**3 * 2.0**-159)
        rows, columns, r, c = self.block.rows, self.block.columns, self.r, self.c
        if isinstance(way, InFloat64):
            bound: NDArray[np.float64] = np.sqrt(rows.norm2[r] * columns.norm2[c]) * (self.block.k * 2.0**-53)
            bound = np.ldexp(bound, rows.top[r] + columns.top[c] + self.scale)
            return bound
        # Expected, not guaranteed: a rounding error has the mean square 1/12.
        delta = (self.block.k / 12.0) ** 0.5
        wide_rows, wide_columns = rows.bits[r] > way.left, columns.bits[c] > way.right
        bound = wide_rows * delta * np.sqrt(columns.norm2[c]) * 2.0**-way.left
        bound += wide_columns * delta * np.sqrt(rows.norm2[r]) * 2.0**-way.right
        with np.errstate(over="ignore"):
            bound = np.ldexp(bound, rows.top[r] + columns.top[c] + self.scale)
        return np.where(wide_rows | wide_columns, bound, -1.0)
