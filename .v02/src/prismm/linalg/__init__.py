"""Linear algebra with guaranteed errors: residuals, solutions, symmetric products.

Every bound is proved: the docstrings of the modules have the inequalities. What cannot be proved raises
`prismm.errors.NotCertified`.

>>> import numpy as np, prismm.linalg
>>> prismm.linalg.solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 0.0]))
array([ 0.6, -0.2])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm.linalg.covariances import correlation, covariance
    from prismm.linalg.definiteness import is_positive_definite
    from prismm.linalg.determinant import DeterminantReport, det
    from prismm.linalg.eigen import EighReport, eigh
    from prismm.linalg.report import SolveReport
    from prismm.linalg.residuals import residual
    from prismm.linalg.symmetric import gram, herk, symm, syrk, trmm
    from prismm.linalg.systems import inv, lstsq, solve

_HOMES = {
    "DeterminantReport": "prismm.linalg.determinant",
    "EighReport": "prismm.linalg.eigen",
    "SolveReport": "prismm.linalg.report",
    "correlation": "prismm.linalg.covariances",
    "covariance": "prismm.linalg.covariances",
    "det": "prismm.linalg.determinant",
    "eigh": "prismm.linalg.eigen",
    "gram": "prismm.linalg.symmetric",
    "herk": "prismm.linalg.symmetric",
    "inv": "prismm.linalg.systems",
    "is_positive_definite": "prismm.linalg.definiteness",
    "lstsq": "prismm.linalg.systems",
    "residual": "prismm.linalg.residuals",
    "solve": "prismm.linalg.systems",
    "symm": "prismm.linalg.symmetric",
    "syrk": "prismm.linalg.symmetric",
    "trmm": "prismm.linalg.symmetric",
}

__all__ = [
    "DeterminantReport",
    "EighReport",
    "SolveReport",
    "correlation",
    "covariance",
    "det",
    "eigh",
    "gram",
    "herk",
    "inv",
    "is_positive_definite",
    "lstsq",
    "residual",
    "solve",
    "symm",
    "syrk",
    "trmm",
]

__getattr__ = attributes(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
