"""LAPACK's functions of float64 matrices in the library by which NumPy multiplies; else SciPy's.

OpenBLAS's threads wait for more work by spinning. NumPy's and SciPy's wheels each bring an OpenBLAS with threads of its
own, so a factorisation by SciPy that follows a product by NumPy shares the processors with threads that only wait: it
takes up to twice its time. NumPy's library has LAPACK's functions, too, under names that tell its integers' size.

Nothing here is proved, and no proof rests on it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from prismm.cpu.native import library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Lapack(Protocol):
    """What factorisations need. Matrices are square, by columns, of one row at least; `out` is overwritten."""

    def getrf(self, out: Floats) -> tuple[NDArray[np.intp], int]:
        """L and U of P·out, packed; (rows that were swapped, counted from 0; 0 or the number of a pivot that is 0)."""
        ...

    def getrs(self, lu: Floats, pivots: NDArray[np.intp], out: Floats) -> None:
        """out, (n, k), becomes the solution x of Aᵀx = out, for A of those factors."""
        ...

    def trtri(self, out: Floats, lower: bool, unit: bool) -> int:
        """The triangle of out becomes its inverse; 0, or the number of a zero on the diagonal."""
        ...

    def trsm(self, upper: Floats, out: Floats) -> None:
        """out becomes U⁻¹·out."""
        ...

    def potrf(self, out: Floats) -> int:
        """The lower triangle of out becomes its Cholesky factor; 0 where that succeeds."""
        ...

    def potri(self, out: Floats) -> int:
        """The lower triangle of out, a factor of A, becomes that of A⁻¹; 0 where that succeeds."""
        ...

    def potrs(self, factor: Floats, out: Floats) -> None:
        """out, (n, k), becomes the solution x of Ax = out, for A of that factor."""
        ...


@functools.cache
def lapack() -> Lapack | None:
    """NumPy's, SciPy's, or None where neither is there."""
    by_name = {name: library.function(f"scipy_{name}_64_") for name in _OfNumPy.NAMES}
    if all(by_name.values()):
        return _OfNumPy(by_name)
    try:
        import scipy.linalg
    except ImportError:
        return None
    return _OfSciPy(scipy.linalg)


class _OfNumPy:
    """Functions with Fortran's conventions and integers of 64 bits."""

    NAMES = "dgetrf", "dgetrs", "dtrtri", "dtrsm", "dpotrf", "dpotri", "dpotrs"

    def __init__(self, functions: dict[str, Any]) -> None:
        self._functions = functions

    def _call(self, name: str, *given: Any) -> None:
        """Text, integers and arrays as Fortran takes them: all by address, the lengths of texts behind."""
        kept: list[Any] = []
        for x in given:
            if isinstance(x, np.ndarray):
                kept.append(ctypes.c_void_p(x.ctypes.data))
            elif isinstance(x, bytes):
                kept.append(ctypes.c_char_p(x))
            else:
                kept.append(ctypes.byref(ctypes.c_double(x) if isinstance(x, float) else ctypes.c_int64(x)))
        kept += [ctypes.c_size_t(1) for x in given if isinstance(x, bytes)]
        self._functions[name](*kept)

    def getrf(self, out: Floats) -> tuple[NDArray[np.intp], int]:
        n, ld = _sizes(out)
        pivots, info = np.empty(n, np.int64), np.zeros(1, np.int64)
        self._call("dgetrf", n, n, out, ld, pivots, info)
        return pivots - 1, int(info[0])

    def getrs(self, lu: Floats, pivots: NDArray[np.intp], out: Floats) -> None:
        n, ld = _sizes(lu)
        _, ld_out = _sizes(out, n)
        swapped, info = np.asarray(pivots + 1, np.int64), np.zeros(1, np.int64)
        self._call("dgetrs", b"T", n, out.shape[1], lu, ld, swapped, out, ld_out, info)

    def trtri(self, out: Floats, lower: bool, unit: bool) -> int:
        n, ld = _sizes(out)
        info = np.zeros(1, np.int64)
        self._call("dtrtri", b"L" if lower else b"U", b"U" if unit else b"N", n, out, ld, info)
        return int(info[0])

    def trsm(self, upper: Floats, out: Floats) -> None:
        n, ld = _sizes(upper)
        _, ld_out = _sizes(out, n)
        self._call("dtrsm", b"L", b"U", b"N", b"N", n, out.shape[1], 1.0, upper, ld, out, ld_out)

    def potrf(self, out: Floats) -> int:
        n, ld = _sizes(out)
        info = np.zeros(1, np.int64)
        self._call("dpotrf", b"L", n, out, ld, info)
        return int(info[0])

    def potri(self, out: Floats) -> int:
        n, ld = _sizes(out)
        info = np.zeros(1, np.int64)
        self._call("dpotri", b"L", n, out, ld, info)
        return int(info[0])

    def potrs(self, factor: Floats, out: Floats) -> None:
        n, ld = _sizes(factor)
        _, ld_out = _sizes(out, n)
        info = np.zeros(1, np.int64)
        self._call("dpotrs", b"L", n, out.shape[1], factor, ld, out, ld_out, info)


def _sizes(x: Floats, rows: int | None = None) -> tuple[int, int]:
    """(number of rows, leading dimension) of a matrix that the library may read and write, which is checked."""
    n = len(x)
    assert x.dtype == np.float64 and x.flags.f_contiguous and x.flags.writeable
    assert n == (x.shape[1] if rows is None else rows)
    return n, max(1, n)


class _OfSciPy:
    """SciPy's functions, which overwrite what they are given by columns."""

    def __init__(self, linalg: Any) -> None:
        self._lapack, self._blas = linalg.lapack, linalg.blas

    def getrf(self, out: Floats) -> tuple[NDArray[np.intp], int]:
        lu, pivots, info = self._lapack.dgetrf(out, overwrite_a=1)
        _put(lu, out)
        return np.asarray(pivots, np.intp), info

    def getrs(self, lu: Floats, pivots: NDArray[np.intp], out: Floats) -> None:
        _put(self._lapack.dgetrs(lu, pivots, out, trans=1, overwrite_b=1)[0], out)

    def trtri(self, out: Floats, lower: bool, unit: bool) -> int:
        found, info = self._lapack.dtrtri(out, lower=int(lower), unitdiag=int(unit), overwrite_c=1)
        _put(found, out)
        return int(info)

    def trsm(self, upper: Floats, out: Floats) -> None:
        _put(self._blas.dtrsm(1.0, upper, out, overwrite_b=1), out)

    def potrf(self, out: Floats) -> int:
        found, info = self._lapack.dpotrf(out, lower=1, clean=0, overwrite_a=1)
        _put(found, out)
        return int(info)

    def potri(self, out: Floats) -> int:
        found, info = self._lapack.dpotri(out, lower=1, overwrite_c=1)
        _put(found, out)
        return int(info)

    def potrs(self, factor: Floats, out: Floats) -> None:
        _put(self._lapack.dpotrs(factor, out, lower=1, overwrite_b=1)[0], out)


def _put(found: Floats, out: Floats) -> None:
    """Copy a result to out, unless SciPy computed it there."""
    if not np.shares_memory(found, out):
        out[...] = found
