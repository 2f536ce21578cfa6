"""Entries whose error the residual leaves uncertain, compared with a correctly rounded product.

With R = RN(exact) in float64, |c - exact| <= |c - R| + half an ulp of R. The exact value is a multiple of 2^(p_i+q_j):
where an ulp of R is no larger, R is the exact value. c is correctly rounded where it equals RN(exact) in its own type.
Inf and NaN are right where that product has the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import dispatch
from prismm.checking.residual import DOWN, UP, Errors, Residual, ulp_exponent
from prismm.core.outcome import real_parts
from prismm.formats import FP64, Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.checking.operands import Operands

_BLOCK = 1 << 20
"""Entries that are compared at a time."""


@dataclass
class Recomputation:
    """Decides what is uncertain.

    Attributes:
        operands: both operands.
        c: (m, n), the product that is checked.
        result: format of c.
        errors: its bounds so far, which are made better in place.
        known: what they were found with.
        engine: the engine that was asked for, or None.
        workers: threads.
    """

    operands: Operands
    c: NDArray[Any]
    result: Format
    errors: Errors
    known: Residual
    engine: str | None
    workers: int

    def run(self) -> int:
        """Decide all uncertain entries; returns how many."""
        # Of these all entries meet Inf or NaN.
        odd_rows, odd_columns = ~self.known.left.finite, ~self.known.right.finite
        uncertain = self.errors.uncertain
        count = int(np.count_nonzero(uncertain))
        if count == 0:
            return 0
        everything = np.arange(self.c.shape[1])
        if odd_rows.any():
            self._grid(np.flatnonzero(odd_rows), everything)
        if odd_columns.any():
            self._grid(np.flatnonzero(~odd_rows), np.flatnonzero(odd_columns))
        rest = uncertain & ~odd_rows[:, None] & ~odd_columns[None, :]
        self._grid(np.flatnonzero(rest.any(axis=1)), np.flatnonzero(rest.any(axis=0)))
        return count

    def _grid(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """The uncertain entries of these rows and columns, whose product is made as a whole."""
        if rows.size == 0 or columns.size == 0:
            return
        chosen = [None if x.size == n else x for x, n in zip((rows, columns), self.c.shape, strict=True)]
        a, b = self.operands.grid(*chosen)
        wide = self._product(a, b, "complex128" if np.iscomplexobj(self.c) else "float64")
        nearest = wide if self.result is FP64 else self._product(a, b, self.c.dtype.name)
        step = max(1, _BLOCK // columns.size)
        for r0 in range(0, rows.size, step):
            here = rows[r0 : r0 + step]
            x, y = np.nonzero(self.errors.uncertain[np.ix_(here, columns)])
            if x.size:
                self._decide(here[x], columns[y], wide[r0 + x, y], nearest[r0 + x, y])

    def _product(self, a: Any, b: Any, dtype: str) -> NDArray[Any]:
        keywords = "correctly-rounded", None, False, dtype, self.engine, self.workers, None
        return self.operands.host(dispatch.matmul(a, b, keywords))

    @functools.cached_property
    def _lowest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.operands.lowest()

    @np.errstate(all="ignore")
    def _decide(self, i: NDArray[np.int64], j: NDArray[np.int64], wide: NDArray[Any], nearest: NDArray[Any]) -> None:
        """Entries (i, j), with RN(exact) in float64 and in the type of c."""
        errors, c = self.errors, self.c[i, j]
        p, q = self._lowest
        step = p[i] + q[j]
        error, ulps, lows = np.zeros(i.size), np.zeros(i.size), []
        special, wrong, correct = np.zeros(i.size, np.bool_), np.zeros(i.size, np.bool_), np.ones(i.size, np.bool_)
        parts = [real_parts(z.astype(np.result_type(z, np.float64))) for z in (c, wide, nearest)]
        for x, r, n in zip(*parts, strict=True):
            odd = ~np.isfinite(x) | ~np.isfinite(n)
            same = (x == n) | (np.isnan(x) & np.isnan(n))
            correct &= same
            wrong |= odd & ~same
            special |= ~np.isfinite(n)
            unit = ulp_exponent(r, FP64)[1]
            half = np.where(unit <= step, 0.0, np.ldexp(1.0, np.maximum(unit - 1, FP64.subnormal_exponent)))
            gap = np.abs(x - r)
            part = np.where(odd, 0.0, np.where(gap + half == 0.0, 0.0, (gap + half) * UP))
            error = np.maximum(error, part)
            size = np.abs(r)
            lows.append(np.where(half == 0.0, size, np.maximum(size - half, size / 2)))
            # Half an ulp of a subnormal number is less than float64 holds, and so is no addend of `part`.
            ulp = ulp_exponent(np.where(odd, 0.0, n), self.result)[1]
            in_ulps = ratio(gap, 1.0, -ulp) + np.where(unit <= step, 0.0, np.ldexp(0.5, unit - ulp))
            in_ulps = np.where(odd | (in_ulps == 0.0), 0.0, in_ulps * UP)
            ulps = np.maximum(ulps, np.where(same, np.minimum(in_ulps, 0.5), in_ulps))
        # The modulus may be beyond the largest float.
        low = lows[0] if len(lows) == 1 else np.minimum(np.hypot(*lows), FP64.max) * DOWN
        relative = np.where(error == 0.0, 0.0, ratio(error, low, np.int64(0)) * UP)
        # What is 0 errs by exactly what it should be.
        relative = np.where(c == 0.0, np.minimum(relative, 1.0), relative)
        relative = np.minimum(relative, errors.relative[i, j])
        shift = self.known.left.exponents[i] + self.known.right.exponents[j]
        sizes = self.known.sizes[i, j]
        componentwise = ratio(error, sizes, -shift) * UP
        componentwise = np.where((error == 0.0) | (sizes <= 0.0), relative, componentwise)
        componentwise = np.minimum(np.minimum(componentwise, relative), errors.componentwise[i, j])
        found = (
            (errors.absolute, np.minimum(error, errors.absolute[i, j])),
            (errors.relative, relative),
            (errors.componentwise, componentwise),
            (errors.ulps, np.minimum(ulps, errors.ulps[i, j])),
        )
        for target, value in found:
            target[i, j] = np.where(wrong, np.inf, value)
        errors.correct[i, j] = correct
        errors.special[i, j] = special
        errors.wrong[i, j] = wrong


def ratio(top: NDArray[np.float64], bottom: Any, exponent: Any) -> NDArray[np.float64]:
    """top / bottom · 2^exponent, where neither overflows on the way; η more where it is so small that it may lack that
    much.
    """
    (fraction, binade), (divisor, below) = np.frexp(top), np.frexp(bottom)
    found = np.where(np.isinf(top), top, np.ldexp(fraction / divisor, binade - below + exponent))
    return np.where((top != 0.0) & (found < 2.0**-1000), found + 2.0**-1074, found)
