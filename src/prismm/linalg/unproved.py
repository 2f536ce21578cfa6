"""Refinement without proof: LU or Cholesky in float64, residuals correctly rounded (Carson and Higham 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.linalg.expansions import Products, normalised, residual_of
from prismm.linalg.factors import lu_solver
from prismm.linalg.matrices import scaling
from prismm.linalg.refinement import Enclosure, Solution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STEPS = 10


def refined(a: Any, b: Floats, products: Products, positive: bool) -> Solution:
    """Two parts of a solution whose radius is infinite: steps until the next correction would be below 2^-60 of the
    solution, if corrections go on to shrink as they did, or until they stop to shrink.
    """
    scaled = scaling(a, b)
    a, b, exponents = scaled.a, scaled.b, scaled.columns[:, None] + scaled.kappa[None, :]
    solver = lu_solver(a, products.device, positive)
    radius = np.full(b.shape, np.inf)
    if solver is None:
        return Solution(Enclosure((np.full(b.shape, np.nan),), radius, exponents), 0, None, np.inf)
    # The first correction is the solution itself.
    parts, before, steps = [np.asarray(solver(b))], 1.0, 0
    for _ in range(STEPS):
        c = np.asarray(solver(residual_of(products, [a], parts, b)))
        size = np.abs(parts[0])
        change = float(
            np.max(
                np.abs(c).max(axis=0, initial=0.0) / np.maximum(size.max(axis=0, initial=0.0), 2.0**-1000), initial=0.0
            )
        )
        if not change < (before * 0.5 if steps else np.inf):
            break
        parts, steps = normalised([*parts, c])[:2], steps + 1
        if change * (change / before) <= 2.0**-60:
            break
        before = change
    return Solution(Enclosure(tuple(parts), radius, exponents), steps, None, np.inf)
