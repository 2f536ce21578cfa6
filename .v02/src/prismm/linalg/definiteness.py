"""Whether a matrix is positive definite, with proof.

Proof of yes. If RᵀR is the rounded Cholesky factorisation of A - s·1, then A = RᵀR + D, and RᵀR has no negative
eigenvalue, however R arose: λ_min(A) >= λ_min(D), which is positive where Gershgorin's discs about D = A - RᵀR are
right of 0. As rounding errors of the factorisation are far below their bound, s may be far below Rump's (2006,
"Verification of positive definiteness"), who needs no product.

Proof of no. A vector z with zᵀAz <= 0, from the factorisation's eigenvector of the smallest eigenvalue.

If neither succeeds: with X an approximate inverse of the transposed Cholesky factor of A + t·1, M = XᵀAX is positive
definite exactly where A is, as X is triangular without a 0 on the diagonal (Sylvester), and its condition number is
smaller by about 1/u. M is kept as a sum of parts (`transformed.py`), and the question is asked of M.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.errors import NotCertified
from prismm.linalg.expansions import Products, expand
from prismm.linalg.factors import cholesky, triangular_inverse
from prismm.linalg.inverse import LARGE
from prismm.linalg.matrices import last_bit
from prismm.linalg.operands import check_hermitian, common, operand, real_form
from prismm.linalg.rounding import ETA, U, above, below, product_above
from prismm.linalg.transformed import Transformed, gershgorin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVELS = 6
COUNTS = (2, 4, 7)
"""Parts of M: the answer is tried with few first; the last for n <= LARGE alone."""

SHIFTS = (2.0**-51, 2.0**-48, 2.0**-44)
"""s, relative to the largest entry: where rounding errors of the factorisation are about that large."""


def is_positive_definite(a: Any, /) -> Any:
    """Whether a Hermitian matrix is positive definite: all its eigenvalues are above 0. The answer is proved.

    Args:
        a: (..., n, n), as in `prismm.linalg.solve`. Of a triangle alone make the whole matrix first.

    Returns:
        bool, or an array of bool (a tensor for a tensor) of the batch's shape.

    Raises:
        NotCertified: where neither answer can be proved: an eigenvalue is 0, or too close to it.
        ArgumentError: for a matrix that is not Hermitian, NaN, and Inf. ShapeError, DTypeError, OperandError: for what
            is no matrix.

    Sources: Rump 2006; Sylvester's law of inertia.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.is_positive_definite(np.array([[2.0, 1.0], [1.0, 2.0]]))
    True
    >>> prismm.linalg.is_positive_definite(np.array([[1.0, 2.0], [2.0, 1.0]]))
    False
    """
    source = operand(a, "a")
    check_hermitian(source.data, "a")
    _, dtype = common({"a": source})
    batch, products = source.data.shape[:-2], Products(source.device)
    with np.errstate(all="ignore"):
        answers = [_definite(real_form(source.data[i], dtype.kind == "c"), products) for i in np.ndindex(*batch)]
    missed = sum(answer is None for answer in answers)
    if missed:
        where = "" if not batch else f", in {missed} of {len(answers)} matrices"
        raise NotCertified(f"an eigenvalue of a is 0, or too close to it for a proof{where}")
    return source.returned(np.array(answers, bool).reshape(batch)) if batch else bool(answers[0])


def _definite(a: Floats, products: Products) -> bool | None:
    """True and False with proof, or None."""
    n = len(a)
    if not n:
        return True
    diagonal = np.diagonal(a)
    if (diagonal <= 0.0).any():
        return False  # zᵀAz with a unit vector
    # Powers of two on both sides keep the signs of eigenvalues; the diagonal gets entries in [1/2, 2).
    shift = -(np.frexp(diagonal)[1] // 2).astype(np.int32)
    exponents = shift[:, None] + shift
    scaled = np.ldexp(a, exponents)
    if (np.ldexp(scaled, -exponents) != a).any():
        scaled = a
    for count in COUNTS if n <= LARGE else COUNTS[:-1]:
        answer = _decided(Transformed((scaled,), np.zeros_like(a)), products, count)
        if answer is not None:
            return answer
    return None


def _decided(m: Transformed, products: Products, count: int) -> bool | None:
    """The answer by congruences in so many parts."""
    for _ in range(LEVELS):
        s, _ = m.rounded(products)
        s = (s + s.T) * 0.5
        if _proved_definite(m, s, products):
            return True
        if _proved_indefinite(m, s, products):
            return False
        factor = _factor_above(s)
        if factor is None:
            return None
        x = triangular_inverse(factor, lower=True).T.copy()
        if not np.isfinite(x).all() or (np.diagonal(x) == 0.0).any():
            return None
        m = m.times_left(np.ascontiguousarray(x.T), products, count).times_right(x, products, count)
    return None


def _proved_definite(m: Transformed, s: Floats, products: Products) -> bool:
    """λ_min(M) >= min(D_ii - Σ_(j≠i)|D_ij|) > 0, with d = RN(Σ parts - LLᵀ) and
    |D - d| <= error + u·|d| + η for D = M - LLᵀ, which is symmetric as M is.
    """
    for share in SHIFTS:
        factor = cholesky(s - share * float(np.abs(s).max()) * np.eye(len(s)))
        if factor is None:
            return False
        d = expand(products, [-factor], [np.ascontiguousarray(factor.T)], 1, list(m.parts))[0]
        centres, radii = gershgorin(d, above(m.error + above(np.abs(d) * U + ETA)))
        if (below(centres - radii) > 0.0).all():
            return True
    return False


def _proved_indefinite(m: Transformed, s: Floats, products: Products) -> bool:
    """zᵀMz <= 0 for a vector z that is not 0, of entries at most 1.

    With y = Σ parts·z in three parts, |Mz - y| <= u·|y_last| + η + error·|z| =: w, and t = RN(zᵀy):
    zᵀMz <= t + u·|t| + η + |z|ᵀw. Below t = -2^-1000 all the η are less than u·|t|. A t of 0 is the exact value where
    nothing is left out and all terms are multiples of η.
    """
    try:
        _, vectors = np.linalg.eigh(s)
    except np.linalg.LinAlgError:
        return False
    first = vectors[:, :1] / np.abs(vectors[:, :1]).max()
    for z in (first, np.round(first * 64.0) / 64.0):
        if not np.isfinite(z).all() or not z.any():
            continue
        y = expand(products, list(m.parts), [z], 3)
        t = float(expand(products, [np.ascontiguousarray(z.T)], y, 1)[0][0, 0])
        size = np.abs(z)
        lost = above(above(np.abs(y[-1]) * U) + product_above(m.error, size))
        if t <= -(2.0**-1000):
            if above(t * (1.0 - 4.0 * U) + float(product_above(size.T.copy(), lost)[0, 0])) < 0.0:
                return True
            continue
        exact = not y[-1].any() and not m.error.any() and 2 * last_bit(z) + min(map(last_bit, m.parts)) >= -1074
        if t == 0.0 and exact:
            return True
    return False


def _factor_above(s: Floats) -> Floats | None:
    """The Cholesky factor of s + t·1 for the smallest t of a few for which it exists."""
    size = float(np.abs(s).max()) * len(s)
    for t in (0.0, *(2.0**e for e in range(-54, -20, 3))):
        factor = cholesky(s + t * size * np.eye(len(s)))
        if factor is not None and np.isfinite(factor).all():
            return factor
    return None
