"""Matrices that are transformed step by step, known as a sum of parts and a bound of what the parts leave out.

M = Σ parts + Δ with |Δ| <= error entry by entry. A float64 matrix L times M is rounded to parts S: LM = ΣS + Δ' with
|Δ'| <= |L|·error + u·|S_last| + η (`expansions.expand`). So errors stay far below the parts, and are never forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.linalg.expansions import Products, expand
from prismm.linalg.rounding import ETA, U, above, inflation, product_above

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Transformed:
    """|M - Σ parts| <= error.

    Attributes:
        parts: each (n, n), the largest first.
        error: (n, n).
    """

    parts: tuple[Floats, ...]
    error: Floats

    def times_left(self, left: Floats, products: Products, count: int) -> Transformed:
        """left·M in so many parts."""
        found = expand(products, [left], list(self.parts), count)
        return Transformed(tuple(found), _rest(found, product_above(np.abs(left), self.error)))

    def times_right(self, right: Floats, products: Products, count: int) -> Transformed:
        """M·right in so many parts."""
        found = expand(products, list(self.parts), [right], count)
        return Transformed(tuple(found), _rest(found, product_above(self.error, np.abs(right))))

    def rows(self, order: NDArray[np.intp]) -> Transformed:
        """M[order]."""
        return Transformed(tuple(part[order] for part in self.parts), self.error[order])

    def rounded(self, products: Products, minus: Floats | None = None) -> tuple[Floats, Floats]:
        """(S, bound) with |M - minus - S| <= bound: the sum of the parts in one matrix."""
        n = len(self.error)
        addends = [] if minus is None else [-minus]
        found = expand(products, [np.zeros((n, 1))], [np.zeros((1, n))], 1, [*self.parts, *addends])
        return found[0], _rest(found, self.error)


def _rest(found: list[Floats], error: Floats) -> Floats:
    bound: Floats = (error + np.abs(found[-1]) * U + ETA) * inflation(3)
    return bound


def gershgorin(s: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """(centres, radii): the eigenvalues of every matrix M with |M - s| <= bound lie in the union of the discs about
    centres (the diagonal of s) with radii Σ_(j≠i)|s_ij| + Σ_j bound_ij.
    """
    n = len(s)
    off = np.abs(s)
    off[np.arange(n), np.arange(n)] = 0.0
    radii = (off.sum(axis=1) + bound.sum(axis=1)) * inflation(n + 2)
    return np.diagonal(s).copy(), above(radii)
