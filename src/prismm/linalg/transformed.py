"""Matrices that are transformed step by step, known as a sum of parts and a bound of what the parts leave out.

M = Σ parts + Δ with |Δ| <= error entry by entry. A matrix L times M is rounded to parts S: LM = ΣS + Δ' with
|Δ'| <= |L|·error + u·|S_last| + η (`expansions.expand`). So errors stay far below the parts, and are never forgotten.
Of complex numbers |x| is taken as the sum of both parts' sizes, which is no smaller. All are arrays, or all tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.linalg.expansions import Products, expand
from prismm.linalg.matrices import product_above, rows_of, size_above, zeros
from prismm.linalg.rounding import ETA, U, above, inflation

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

    parts: tuple[Any, ...]
    error: Any

    @classmethod
    def exactly(cls, a: Any) -> Transformed:
        """The matrix itself."""
        return cls((a,), zeros(tuple(a.shape), a, np.float64))

    def times_left(self, left: Any, products: Products, count: int) -> Transformed:
        """left·M in so many parts."""
        found = expand(products, [left], list(self.parts), count)
        return Transformed(tuple(found), _rest(found, product_above(size_above(left), self.error, products)))

    def times_right(self, right: Any, products: Products, count: int) -> Transformed:
        """M·right in so many parts."""
        found = expand(products, list(self.parts), [right], count)
        return Transformed(tuple(found), _rest(found, product_above(self.error, size_above(right), products)))

    def rows(self, order: NDArray[np.intp]) -> Transformed:
        """M[order]."""
        return Transformed(tuple(rows_of(part, order) for part in self.parts), rows_of(self.error, order))

    def rounded(self, products: Products, minus: Any = None) -> tuple[Any, Any]:
        """(S, bound) with |M - minus - S| <= bound: the sum of the parts in one matrix."""
        n, like = len(self.error), self.parts[0]
        addends = [] if minus is None else [-minus]
        found = expand(products, [zeros((n, 1), like)], [zeros((1, n), like)], 1, [*self.parts, *addends])
        return found[0], _rest(found, self.error)


def _rest(found: list[Any], error: Any) -> Any:
    """Of complex numbers both parts may be η/2 off."""
    return (error + size_above(found[-1]) * U + ETA) * inflation(3)


def gershgorin(s: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """(centres, radii): the eigenvalues of every matrix M with |M - s| <= bound lie in the union of the discs about
    centres (the diagonal of s) with radii Σ_(j≠i)|s_ij| + Σ_j bound_ij.
    """
    n = len(s)
    off = np.abs(s)
    off[np.arange(n), np.arange(n)] = 0.0
    radii = (off.sum(axis=1) + bound.sum(axis=1)) * inflation(n + 2)
    return np.diagonal(s).copy(), above(radii)
