"""Functions of the library by which NumPy multiplies, called by their addresses: those that NumPy lacks.

NumPy's wheels bring an OpenBLAS whose names say that its integers have 64 bits. Of other libraries nothing is called.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BY_ROWS, _NOT_TURNED, _TURNED, _LOWER = 101, 111, 112, 122
"""CBLAS's enumerations."""


@functools.cache
def function(name: str) -> Any:
    """A function by its whole name, which returns nothing; None where there is none.

    >>> function("scipy_no_such_function_64_") is None
    True
    """
    path = getattr(sys.modules.get("numpy.linalg._umath_linalg"), "__file__", None)
    if path is None:
        return None
    try:
        # It is loaded already; the libraries that it is linked with are searched, too.
        found = ctypes.CDLL(path)[name]
    except (OSError, AttributeError):
        return None
    found.restype = None
    return found


def lower_syrk(a: NDArray[Any], out: NDArray[Any]) -> bool:
    """out = a @ aᵀ on and below the diagonal, by BLAS's syrk; whether that can be.

    An entry is a sum of k products in some order, as one of NumPy's product is.

    Args:
        a: (n, k), float64 or float32, by rows or by columns without gaps.
        out: (n, n), of the same type, by rows; entries above the diagonal stay as they are.
    """
    fits = a.dtype in (np.float64, np.float32) and a.dtype == out.dtype and out.flags.c_contiguous
    if not (fits and (a.flags.c_contiguous or a.flags.f_contiguous) and out.flags.writeable and a.size):
        return False
    if out.shape != (len(a), len(a)) or not _serves(a.dtype):
        return False
    _syrk(a, out)
    return True


@functools.cache
def _serves(dtype: np.dtype[Any]) -> bool:
    """Whether the library has syrk, and it makes small products as it should, whatever their place held before."""
    if function(_name_of_syrk(dtype)) is None:
        return False
    for order in ("C", "F"):
        a = np.array([[1.0, -2.0], [3.0, 5.0], [0.5, 4.0]], dtype, order=order)
        out = np.full((3, 3), np.nan, dtype)
        _syrk(a, out)
        if not np.array_equal(out, [[5.0, np.nan, np.nan], [-7.0, 34.0, np.nan], [-7.5, 21.5, 16.25]], equal_nan=True):
            return False
    return True


def _name_of_syrk(dtype: np.dtype[Any]) -> str:
    return f"scipy_cblas_{'d' if dtype == np.float64 else 's'}syrk64_"


def _syrk(a: NDArray[Any], out: NDArray[Any]) -> None:
    n, k = a.shape
    real, size = (ctypes.c_double if a.dtype == np.float64 else ctypes.c_float), ctypes.c_int64
    turned, step = (_NOT_TURNED, k) if a.flags.c_contiguous else (_TURNED, n)
    function(_name_of_syrk(a.dtype))(
        ctypes.c_int(_BY_ROWS), ctypes.c_int(_LOWER), ctypes.c_int(turned), size(n), size(k),
        real(1.0), ctypes.c_void_p(a.ctypes.data), size(step),
        real(0.0), ctypes.c_void_p(out.ctypes.data), size(n),
    )  # fmt: skip
