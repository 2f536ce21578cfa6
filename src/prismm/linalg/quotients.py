"""Numbers that are known to about 100 bits, rounded once: the rare ones that this does not decide come from integers.

A sum h + l of two float64 numbers stands for v, with |v - h - l| <= 2^-100·|v|. Rounded to a nearby f, it is RN(v) for
certain where v is nearer to f than the midpoint between f and its neighbour on v's side. Midpoints are half a gap away
from f, so that is where |h + l - f| < gap·(1/2 - 2^-40): a gap is at least 2^-53·|f|, and half of 2^-40 of it is more
than the 2^-100·|v| that v is off and the relative error of 2^-52 with which |h + l - f| is made.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.formats import Format, round_fraction

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DIGITS = 128
"""Bits of a quotient or root before it is rounded; what is left out counts as one bit more, which no tie survives."""


def rounded_once(
    high: Floats,
    low: Floats,
    exponents: Any,
    dtype: np.dtype[Any],
    doubtful: NDArray[np.bool_],
    exact: Callable[[int, int], float],
    mirror: float = 1.0,
) -> NDArray[Any]:
    """RN(v) for v near (high + low)·2^exponents, entry by entry.

    Args:
        high, low: (n, n), equal to mirror times their transposes, with |low| <= 2^-50·|high|; high is normal, or 0 and
            exact, or doubtful.
        exponents: broadcast to them.
        dtype: float64 or float32.
        doubtful: entries of which high and low say nothing.
        exact: RN(v) of an entry with i >= j, asked for where high and low do not decide.
        mirror: 1 of symmetric matrices, -1 of antisymmetric ones.
    """
    shift = np.broadcast_to(exponents, high.shape).astype(np.int32)
    found = np.ldexp(high, shift).astype(dtype)

    def scaled(x: NDArray[Any]) -> Floats:
        result: Floats = np.ldexp(x.astype(np.float64), -shift)
        return result

    near = scaled(found)
    rest = (high - near) + low
    beyond = np.nextafter(found, np.where(rest > 0.0, np.inf, -np.inf).astype(dtype))
    # The largest number is rounded as if its binade went on.
    gap = np.abs(scaled(np.where(np.isinf(beyond), np.nextafter(found, dtype.type(0)), beyond)) - near)
    mantissa, size = np.frexp(high)
    # From 2^maxexp on all is infinite; a power of two may stand for less.
    overflow = np.isinf(found) & (size + shift - (np.abs(mantissa) == 0.5) > np.finfo(dtype).maxexp)
    decided = (np.abs(rest) < gap * (0.5 - 2.0**-40)) | (rest == 0.0) | overflow
    for i, j in np.argwhere(np.tril(doubtful | ~decided)).tolist():
        found[i, j] = exact(i, j)
        if i != j:
            found[j, i] = mirror * found[i, j]
    return found


def rounded_ratio(numerator: int, denominator: int, exponent: int, format: Format) -> float:
    """RN(numerator/denominator·2^exponent), denominator > 0.

    >>> from prismm.formats import FP64
    >>> rounded_ratio(-1, 3, 0, FP64)
    -0.3333333333333333
    """
    shift = max(0, DIGITS + denominator.bit_length() - numerator.bit_length())
    whole, rest = divmod(abs(numerator) << shift, denominator)
    return _with_rest(numerator, whole, rest != 0, exponent - shift, format)


def rounded_cosine(product: int, left: int, right: int, format: Format) -> float:
    """RN(product/sqrt(left·right)), left and right > 0.

    >>> from prismm.formats import FP64
    >>> rounded_cosine(1, 1, 2, FP64) == 0.5**0.5
    True
    """
    square = left * right
    shift = max(0, DIGITS + square.bit_length() // 2 - product.bit_length())
    whole, rest = divmod(product**2 << 2 * shift, square)
    root = math.isqrt(whole)
    return _with_rest(product, root, rest != 0 or root * root != whole, -shift, format)


def _with_rest(sign: int, whole: int, more: bool, exponent: int, format: Format) -> float:
    """RN(±(whole + a part of one)·2^exponent); whole has more bits than the format by far, or no rest."""
    units = 2 * whole + more
    return round_fraction(format, units if sign >= 0 else -units, exponent - 1)
