"""Factorisations in float64, by LAPACK (`lapack.py`), else by NumPy and torch; on a GPU by torch.

Nothing here is proved, and no proof rests on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays
from prismm.linalg.lapack import Lapack, lapack
from prismm.linalg.matrices import all_finite, host, identity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def _scipy() -> Any:
    """scipy.linalg, or None."""
    try:
        import scipy.linalg
    except ImportError:
        return None
    return scipy.linalg


def approximate_inverse(a: Any, device: Any = None, positive: bool = False) -> Any:
    """An approximate inverse R of a square matrix; of one without, of a matrix whose entries differ in their last bits.

    It is a left inverse: RA is close to the identity where AR need not be.

    Args:
        a: (n, n), finite. Of a tensor the inverse is one, but where a pivot is 0: then it is an array.
        device: a torch device, or None.
        positive: try Cholesky first.
    """
    found = _cholesky_inverse(a, device) if positive else None
    if found is None and arrays.is_tensor(a):
        found = _inverse_on_device(a)
        a = host(a) if found is None else a
    attempt = 0
    while found is None and attempt < 4:
        found = _lu_inverse(_disturbed(a, attempt), device)
        attempt += 1
    return np.full(a.shape, np.nan) if found is None else found


def shaken(r: Floats) -> Floats:
    """r with random relative changes of a few units in the last place, the same ones each time; zeros stay.

    A rounded inverse may be singular although the matrix is not: that of Moler's matrix is, for n >= 32, since nearly
    all of its entries are those of one matrix of rank 1. Nothing leads on from there. Random last bits hardly ever make
    a singular matrix (Rump 2009).
    """
    return r * (1.0 + np.random.default_rng(0).uniform(-1.0, 1.0, r.shape) * 2.0**-50)


def _disturbed(a: Floats, attempt: int) -> Floats:
    """a, with relative changes of a few units in the last place from the second attempt on."""
    if attempt == 0:
        return a
    rng = np.random.default_rng(attempt)
    size = np.abs(a) + np.abs(a).max() * 2.0**-60
    return np.asarray(a + rng.choice([-1.0, 1.0], a.shape) * size * 2.0 ** (attempt - 52))


def _cholesky_inverse(a: Any, device: Any) -> Any:
    """By Cholesky, or None where it breaks down."""
    if device is not None or (found := lapack()) is None:
        import torch

        factor, info = torch.linalg.cholesky_ex(_tensor(a, device))
        if int(info) != 0:
            return None
        inverse = torch.cholesky_inverse(factor)
        return inverse if arrays.is_tensor(a) else np.asarray(inverse.cpu().numpy())
    lower = _by_columns(a)
    if found.potrf(lower) != 0 or found.potri(lower) != 0:
        return None
    return np.asarray(np.tril(lower) + np.tril(lower, -1).T)


def _by_columns(a: Floats) -> Floats:
    """A copy of a matrix by columns, which LAPACK overwrites."""
    copy: Floats = np.array(a, np.float64, order="F")
    return copy


def _lu_inverse(a: Floats, device: Any) -> Any:
    """By LU with pivots, or None where a pivot is 0; of a triangular matrix a triangular one, so that zeros stay."""
    if len(a) and (a[-1, 0] == 0.0 or a[0, -1] == 0.0) and np.diagonal(a).all():
        if not np.tril(a, -1).any():
            return triangular_inverse(a, lower=False)
        if not np.triu(a, 1).any():
            return triangular_inverse(a, lower=True)
    if device is not None:
        import torch

        found, info = torch.linalg.inv_ex(_tensor(a.T, device))
        return np.ascontiguousarray(found.cpu().numpy().T) if int(info) == 0 else None
    # LAPACK reads the array as the transpose of A. A right inverse of that, transposed, is a left inverse of A.
    if (known := lapack()) is not None:
        lu = _by_columns(a.T)
        pivots, status = known.getrf(lu)
        return _inverse_of_factors(lu, pivots, known) if status == 0 else None
    try:
        return np.ascontiguousarray(np.linalg.inv(a.T).T, np.float64)
    except np.linalg.LinAlgError:
        return None


def _inverse_of_factors(lu: Floats, pivots: NDArray[np.intp], known: Lapack) -> Floats:
    """A left inverse of A from LAPACK's factors of its transpose: the transpose of U⁻¹·L⁻¹, its rows put back in order.

    L⁻¹ by columns is lower triangular, so this takes 2n³ operations. To solve with the identity takes 8/3 n³. LAPACK's
    own inverse takes 2n³, too, and in OpenBLAS more time than that.
    """
    n = len(lu)
    # The transpose of an array by rows is one by columns, as LAPACK needs.
    x = np.triu(lu.T, 1).T
    known.trtri(x, lower=True, unit=True)
    np.fill_diagonal(x, 1.0)
    known.trsm(lu, x)
    found: Floats = np.empty((n, n))
    found[_order(pivots)] = x.T
    return found


def _order(pivots: NDArray[np.intp]) -> NDArray[np.intp]:
    """The rows in the order in which LAPACK's interchanges leave them."""
    rows = list(range(len(pivots)))
    for i, j in enumerate(pivots.tolist()):
        rows[i], rows[j] = rows[j], rows[i]
    return np.array(rows, np.intp)


def _inverse_on_device(a: Any) -> Any:
    """`_lu_inverse` of a tensor, as a tensor."""
    import torch

    if len(a) and (a[-1, 0] == 0.0 or a[0, -1] == 0.0) and a.diagonal().all():
        for lower in (False, True):
            if not (a.triu(1) if lower else a.tril(-1)).any():
                unit = torch.eye(len(a), dtype=a.dtype, device=a.device)
                return torch.linalg.solve_triangular(a, unit, upper=not lower)
    found, info = torch.linalg.inv_ex(a.mT)
    return found.mT.contiguous() if int(info) == 0 else None


def _tensor(a: Any, device: Any) -> Any:
    """The matrix on a device."""
    import torch

    return a if arrays.is_tensor(a) else torch.from_numpy(np.ascontiguousarray(a)).to(device or "cpu")


def triangular_factors(a: Any) -> tuple[NDArray[np.intp], Any, Any] | None:
    """(rows, L, U) with a[rows] ≈ LU, L with a diagonal of ones, of a or, where a pivot is 0, of a matrix whose entries
    differ in their last bits; None where all tries fail. Of a tensor L and U are tensors.
    """
    found = _pivoted(a)
    for attempt in range(1, 4):
        if found is None:
            disturbed = _disturbed(host(a), attempt)
            found = _pivoted(_tensor(disturbed, a.device) if arrays.is_tensor(a) else disturbed)
    return found


def _pivoted(a: Any) -> tuple[NDArray[np.intp], Any, Any] | None:
    """The same of a itself."""
    stays = arrays.is_tensor(a)
    lu: Any
    if not stays and a.dtype.kind != "c" and (known := lapack()) is not None:
        lu = _by_columns(a)
        swaps, info = known.getrf(lu)
    elif not stays and (linalg := _scipy()) is not None:
        lu, pivots, info = linalg.lapack.zgetrf(a)
        swaps = np.asarray(pivots)
    else:
        import torch

        lu, swapped, status = torch.linalg.lu_factor_ex(_tensor(a, None))
        lu, swaps, info = (lu if stays else lu.numpy()), swapped.cpu().numpy() - 1, int(status)
    if info != 0 or not all_finite(lu):
        return None
    rows = _order(swaps)
    if stays:
        return rows, lu.tril(-1) + identity(len(a), lu), lu.triu()
    return rows, np.tril(lu, -1) + np.eye(len(a)), np.triu(lu)


def cholesky(a: Floats) -> Floats | None:
    """Lower triangular L with LLᵀ ≈ a, which is symmetric; None where it breaks down."""
    try:
        return np.asarray(np.linalg.cholesky(a), np.float64)
    except np.linalg.LinAlgError:
        return None


def triangular_inverse(x: Any, lower: bool) -> Any:
    """An approximate inverse of a triangular matrix, triangular as well; of a tensor a tensor."""
    if not arrays.is_tensor(x) and x.dtype.kind != "c" and (known := lapack()) is not None:
        inverse = _by_columns(x)
        known.trtri(inverse, lower, unit=False)
        return np.tril(inverse) if lower else np.triu(inverse)
    if not arrays.is_tensor(x) and (linalg := _scipy()) is not None:
        found, _ = linalg.lapack.ztrtri(x, lower=int(lower))
        return np.tril(found) if lower else np.triu(found)
    import torch

    matrix = _tensor(x, None)
    found = torch.linalg.solve_triangular(matrix, identity(len(x), matrix), upper=not lower)
    found = found.tril() if lower else found.triu()
    return found if arrays.is_tensor(x) else found.numpy()


def singular_values(a: Any) -> NDArray[np.float64]:
    """Of an array or a tensor, the largest first, in main memory."""
    if not arrays.is_tensor(a):
        return np.asarray(np.linalg.svd(a, compute_uv=False), np.float64)
    import torch

    found: NDArray[np.float64] = host(torch.linalg.svdvals(a))
    return found


def lu_solver(a: Any, device: Any = None, positive: bool = False) -> Any:
    """A function that solves a·x = b for (n, k) right-hand sides in float64, or None where a pivot is 0."""
    if device is None and (known := lapack()) is not None:
        if positive and known.potrf(factor := _by_columns(a)) == 0:
            return lambda b: _solved(b, lambda x: known.potrs(factor, x))
        # By columns it is the transpose, which LAPACK copies as it is.
        lu = _by_columns(a.T)
        pivots, info = known.getrf(lu)
        return (lambda b: _solved(b, lambda x: known.getrs(lu, pivots, x))) if info == 0 else None
    import torch

    packed, swaps, status = torch.linalg.lu_factor_ex(_tensor(a, device))
    if int(status) != 0:
        return None
    return lambda b: torch.linalg.lu_solve(packed, swaps, _tensor(b, device)).cpu().numpy()


def _solved(b: Floats, solve: Callable[[Floats], None]) -> Floats:
    """What a function makes of a copy of b, by columns."""
    x = _by_columns(b)
    solve(x)
    return x
