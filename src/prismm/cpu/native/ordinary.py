"""Native products that need no closer look: whether all entries are finite and hide no overflow, decided cheaply."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 8192
"""Elements of a dot product for which OpenBLAS starts no threads (up to 10,000)."""


def are_transposes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether a is the transpose of b, in the same memory."""
    return a.shape == b.shape[::-1] and a.strides == b.strides[::-1] and a.ctypes.data == b.ctypes.data


def energy(x: NDArray[Any]) -> float:
    """Σ|x|² in x's own precision; Inf or NaN where that overflows or x is not finite."""
    with np.errstate(all="ignore"):
        return squares(x)


def squares(x: NDArray[Any]) -> float:
    """`energy` for callers that have silenced warnings: in one pass of BLAS dot."""
    flat = x.reshape(-1) if x.flags.c_contiguous else x.ravel(order="K")
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    if flat.size > 1 << 17:
        return float(np.dot(flat, flat))
    # In pieces too short for BLAS to wake its threads, which would take longer than the sum.
    whole = flat.size & -PIECE
    total = float(np.dot(flat[whole:], flat[whole:])) if whole < flat.size else 0.0
    pieces = flat[:whole].reshape(-1, PIECE)
    return sum(np.vecdot(pieces, pieces).tolist(), total) if whole else total


SHORT = {8: 1 << 24, 4: 1 << 10}
"""Terms from which on a sum is long in the sense of `is_long`, by the bytes of a real part."""


def is_long(k: int, dtype: np.dtype[Any]) -> bool:
    """Whether a sum of k terms may round away an overflow, so that a finite entry does not prove a finite exact value.

    A finite entry means products below 2^(emax+1), so |a||b| <= K·2^(emax+1) and an error of at most
    K²·u·2^(emax+1); an entry below 2^(emax-1) hides an overflow only if that reaches 2^(emax-1): K >= 2^11 in
    float32, 2^25.5 in float64; K is 2k for complex.
    """
    return k >= SHORT[8 if dtype.char in "dD" else 4]


def ordinary_product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any] | None:
    """a @ b by NumPy's BLAS, or None where that asks for a closer look."""
    if a.shape[0] * b.shape[1] < PIECE and not is_long(a.shape[1], a.dtype):
        with np.errstate(all="ignore"):
            small: NDArray[Any] = np.matmul(a, b)
            # Inf and NaN in either part reach the sum of squares.
            flat = small.reshape(-1) if small.dtype.kind != "c" else small.reshape(-1).view(small.real.dtype)
            return small if float(np.dot(flat, flat)) < math.inf else None
    with np.errstate(all="ignore"):
        return _multiplied(a, b)


def _multiplied(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any] | None:
    """a @ b of one element type, or None where that asks for a closer look, for callers that have silenced warnings. Of
    long sums the operands alone decide, and of huge elements a few tell, so that few products are made in vain.
    """
    long = is_long(a.shape[-1], a.dtype)
    if (long and not are_small(a, b)) or seem_huge(a, b, a.dtype):
        return None
    c: NDArray[Any] = np.matmul(a, b, out=out)
    return c if long or squares(c) < math.inf else None


SOME, LOOKED_AT = 8, 1 << 26
"""Rows and columns of an operand that a look at it takes, and multiply-adds of a product that is worth one."""


def seem_huge(a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether products of a few elements say that Σ|a @ b|² is infinite in this type, or a few are NaN. A guess: the
    closer look, which makes the product again, decides.
    """
    if min(a.ndim, b.ndim) < 2 or a.shape[-2] * a.shape[-1] * b.shape[-1] < LOOKED_AT or not a.size or not b.size:
        return False
    largest = 1.0
    for x in (a, b):
        rows, columns = (slice(None, None, -(-size // SOME)) for size in x.shape[-2:])
        largest *= float(np.abs(x[..., rows, columns]).max())
    return not largest < 4.0 * math.sqrt(np.finfo(dtype).max)


CACHED = 1 << 16
"""Entries of a batch that are looked at while they are still in the cache."""

ALONE = 1 << 18
"""Multiply-adds of a product for which OpenBLAS starts no threads, so that several workers may call it."""


def ordinary_products(a: NDArray[Any], b: NDArray[Any], workers: int) -> NDArray[Any] | None:
    """The same of a batch; of many small products each worker takes some."""
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[0] * a.shape[1] * b.shape[2] <= CACHED:
        with np.errstate(all="ignore"):
            return _multiplied(a, b)
    c: NDArray[Any] = np.empty((a.shape[0], a.shape[1], b.shape[2]), a.dtype)
    step = max(1, CACHED // (a.shape[1] * b.shape[2]))
    odd: list[int] = []

    def multiply_matrices(p: int) -> None:
        part = slice(p, p + step)
        with np.errstate(all="ignore"):
            # One odd piece sends all to a closer look, so the rest need not be multiplied.
            if not odd and _multiplied(a[part], b[part], c[part]) is None:
                odd.append(p)

    alone = a.shape[1] * a.shape[2] * b.shape[2] <= ALONE
    threads.spread(multiply_matrices, list(range(0, a.shape[0], step)), workers if alone else 1, joining=True)
    return None if odd else c


def ordinary(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> bool:
    """Whether all of c = a @ b is finite and hides no overflow, decided cheaply; False asks for a closer look.

    For short sums Σ|c|² < Inf suffices (entries are then below the root of the largest float). For long ones
    ‖A‖²‖B‖² bounds every
    |a||b|²: 2^160 leaves room for the rounding of these sums themselves (relatively below 2^17 for 2^40 elements).
    """
    with np.errstate(all="ignore"):
        return _ordinary(a, b, c)


def _ordinary(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> bool:
    if c.size == 0:
        return True
    if not is_long(a.shape[-1], c.dtype) and not _narrowed(a, c):
        return squares(c) < math.inf
    return are_small(a, b)


def are_small(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether ‖A‖² and ‖B‖² are below 2^80, for callers that have silenced warnings; of a matrix and its own transpose
    they are the same.
    """
    return squares(a) < 2.0**80 and (are_transposes(a, b) or squares(b) < 2.0**80)


def _narrowed(a: NDArray[Any], c: NDArray[Any]) -> bool:
    """Whether c is rounded from a sum in a wider range: that may be finite, and small, where cancelled products have
    taken an exact value with them that overflows c.
    """
    return a.dtype.char in "dD" and c.dtype.char in "fF"
