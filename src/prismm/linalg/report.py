"""What is known of a solution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SolveReport:
    """Returned beside a solution by ``full_output=True``; arrays are NumPy's, of the solution's shape.

    Attributes:
        bounds: proved upper bounds of |x - exact|, float64; of complex entries for the larger error of the real and
            the imaginary part. Infinite where nothing is proved.
        correctly_rounded: where x is proved to be the nearest number of its type to the exact solution, bool.
        parts: float64 or complex128 arrays that sum to a more accurate solution; the first is x where x is of that
            type.
        residual_bounds: proved upper bounds of |exact - Σ parts|, in the same way.
        condition: an estimate, unproved, of the condition number ‖a‖∞‖a⁻¹‖∞, of the batch's shape; of `lstsq` that of
            the augmented matrix of scaled columns.
        contraction: proved upper bounds of ‖I - Ra‖ in a weighted norm, of the batch's shape; below 1 the matrix is not
            singular.
        steps: refinement steps, at most, of a matrix of the batch.
        inverse_parts: matrices that sum to the approximate inverse R, at most; 0 where it was not needed.

    >>> import numpy as np, prismm.linalg
    >>> x, report = prismm.linalg.solve(np.array([[3.0]]), np.array([1.0]), full_output=True)
    >>> bool(report.bounds[0] <= 2.0**-54), bool(report.correctly_rounded[0])
    (True, True)
    """

    bounds: NDArray[np.float64]
    correctly_rounded: NDArray[np.bool_]
    parts: tuple[NDArray[Any], ...] = field(repr=False)
    residual_bounds: NDArray[np.float64] = field(repr=False)
    condition: Any
    contraction: Any
    steps: int
    inverse_parts: int

    @property
    def proved(self) -> bool:
        """Whether every component has a finite bound."""
        return bool(np.isfinite(self.bounds).all())

    def __str__(self) -> str:
        share = float(np.mean(self.correctly_rounded)) if self.correctly_rounded.size else 1.0
        worst = float(np.max(self.bounds, initial=0.0))
        condition = float(np.max(self.condition, initial=0.0))
        return (
            f"{share:.1%} proved to be correctly rounded, largest bound {worst:.2g}, condition about {condition:.1e}, "
            f"{self.steps} steps, inverse in {self.inverse_parts} parts"
        )
