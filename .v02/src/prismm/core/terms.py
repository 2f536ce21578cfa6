"""Elements that are no float64: integers beyond 2^53 and long doubles become exact sums of float64 numbers, each a term
of the inner dimension; bools become 0 and 1.

A long double x of p significand bits is cut to 53 bits at a time, toward zero: x = x_1 + x_2 + … with x_i float64, of
one sign, and |x_2| < 2^-52·|x_1|. So |x| = Σ|x_i|, and |a||b| of the terms is that of the elements; for complex x, cut
in both parts, Σ|x_i| is below (1+2^-50)·|x|, for which the factor 1+2^-40 of `core.accuracy.magnitude_kappa` leaves
room. Two parts hold the 64 bits of x87, three the 113 of binary128. Each part is exact unless it is beyond float64's
exponents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.errors import DTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PARTS = 3
"""Of 53 bits: those of binary128."""


def is_long(dtype: np.dtype[Any]) -> bool:
    """Whether float64, or complex128, may lack values of this type: long doubles."""
    return dtype.kind in "fc" and dtype.itemsize > (16 if dtype.kind == "c" else 8)


def several(x: NDArray[Any]) -> bool:
    """Whether some element is no float64, so that elements take several terms.

    Raises:
        DTypeError: for long doubles beyond float64's exponents.
    """
    return big_integers(x) if not is_long(x.dtype) else len(long_parts(x)) > 1


def numbers(x: NDArray[Any]) -> NDArray[Any]:
    """Elements of one term each (not `several`) in a type that kernels read: bools as 0 and 1, long doubles as float64;
    others as they are.
    """
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    return long_parts(x)[0] if is_long(x.dtype) else x


def big_integers(x: NDArray[Any]) -> bool:
    """Whether x holds integers that float64 cannot."""
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8 or x.size == 0:
        return False
    return bool(x.max() > 2**53) or bool(x.min() < -(2**53))


def alike(x: NDArray[Any]) -> bool:
    """Whether the matrices of a batch all take as many terms for an element."""
    if x.ndim < 3 or not several(x):
        return True
    if is_long(x.dtype):
        # A part is zero throughout a matrix that needs fewer.
        return all(bool(part.any(axis=(-2, -1)).all()) for part in long_parts(x)[1:])
    matrices = (-2, -1)
    return bool(((x.max(axis=matrices) > 2**53) | (x.min(axis=matrices) < -(2**53))).all())


def high_low(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """64-bit integers as an exact sum high + low of float64, low = 0 where high alone is exact."""
    low_bits = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    low = np.where(low_bits >= 2.0**31, low_bits - 2.0**32, low_bits)
    # x - low is a multiple of 2^32 of at most 64 bits: exact in float64 when formed from the upper half.
    upper = (x >> x.dtype.type(32)).astype(np.float64) + (low_bits >= 2.0**31)
    high = upper * 2.0**32
    small = (x <= 2**53) & (x >= -(2**53)) if x.dtype.kind == "i" else x <= 2**53
    exact = np.where(small, x, 0).astype(np.float64)
    return np.where(small, exact, high), np.where(small, 0.0, low)


def long_parts(x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Long doubles as an exact sum of float64 (complex128) arrays, in as few as hold all; Inf and NaN in the first.

    Raises:
        DTypeError: for numbers that have bits beyond float64's exponents.
    """
    if x.dtype.kind == "c":
        real, imag = long_parts(x.real), long_parts(x.imag)
        found = []
        for i in range(max(len(real), len(imag))):
            part = np.zeros(x.shape, np.complex128)
            for half, pieces in ((part.real, real), (part.imag, imag)):
                if i < len(pieces):
                    half[...] = pieces[i]
            found.append(part)
        return tuple(found)
    parts, rest = [], x
    with np.errstate(all="ignore"):
        for _ in range(_PARTS):
            part = rest.astype(np.float64)
            # Rounded to nearest: one step back where that went beyond the number.
            beyond = (np.abs(part).astype(x.dtype) > np.abs(rest)) & np.isfinite(rest)
            part = np.where(beyond, np.nextafter(part, 0.0), part)
            parts.append(part)
            rest = np.where(np.isfinite(rest), rest - part, x.dtype.type(0))
            if not rest.any():
                return tuple(parts)
    raise DTypeError(
        f"an operand of {x.dtype} has numbers that no {_PARTS} float64 add up to: bits above 2^1024 or below 2^-1074; "
        "multiply it by a power of two, and the result by the inverse"
    )


def widened(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Operands whose product is a @ b exactly, of one term for each element of the inner dimension; and how many terms
    stand for each of the caller's.

    Every part of one side meets every part of the other once. Inf and NaN are met by the first part alone, which has
    the sign of the element: others may be 0, or of the other sign.
    """
    of_a, of_b = _parts(a), _parts(b)
    if len(of_a) == len(of_b) == 1:
        return of_a[0], of_b[0], 1
    left = [x if p == 0 else _finite(x) for p in range(len(of_b)) for x in of_a]
    right = [x if p == 0 else _finite(x) for x in of_b for p in range(len(of_a))]
    return np.concatenate(left, axis=-1), np.concatenate(right, axis=-2), len(left)


def _parts(x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    if is_long(x.dtype):
        return long_parts(x)
    return high_low(x) if big_integers(x) else (numbers(x),)


def _finite(x: NDArray[Any]) -> NDArray[Any]:
    """x with 0 for what is not finite."""
    return np.where(np.isfinite(x), x, x.dtype.type(0))
