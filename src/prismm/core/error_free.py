"""Sums and products of float64 arrays with what rounding takes from them: error-free transformations.

Source: Ogita, Rump and Oishi, Accurate sum and dot product (SIAM J. Sci. Comput. 26, 2005), algorithms 3.1 to 3.3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """s = fl(a + b) and the rest, with s + rest = a + b exactly (Knuth), where nothing overflows."""
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def split(x: Floats) -> tuple[Floats, Floats]:
    """x as an exact sum of two numbers of 26 bits (Veltkamp), for |x| below 2^996."""
    shifted = 134217729.0 * x  # 2^27 + 1
    upper = shifted - (shifted - x)
    return upper, x - upper


def two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """p = fl(a·b) and the rest, with p + rest = a·b exactly (Dekker), where a·b is 0 or from 2^-969 to 2^1023 in size,
    and a and b are below 2^996.

    >>> import numpy as np
    >>> [float(x) for x in two_product(np.float64(1.0 + 2.0**-52), np.float64(1.0 + 2.0**-52))]
    [1.0000000000000004, 4.930380657631324e-32]
    """
    product = a * b
    (x, y), (z, w) = split(a), split(b)
    return product, ((x * z - product) + x * w + y * z) + y * w


@np.errstate(all="ignore")
def rounded_products(x: Floats, factor: float, precision: int) -> Floats:
    """RN(factor·x) to 53 or 24 bits, rounded once, as float64 numbers; 0 of x = 0, whatever its sign.

    To 24 bits, first to odd in 53 (Boldo and Melquiond 2008): a second rounding then rounds like the number itself.

    >>> import numpy as np
    >>> rounded_products(np.array([1.0 + 2.0**-23]), 1.0 + 2.0**-24 + 2.0**-60, 24).tolist()
    [1.0000002384185791]
    """
    if precision == 53:
        return np.where(x == 0.0, 0.0, x * factor)
    (size, exponent), (fraction, extra) = np.frexp(x), math.frexp(factor)
    # Fractions in [1/2, 1) have products that lose nothing.
    product, rest = two_product(size, np.full(1, fraction))
    even = (product.view(np.int64) & 1) == 0
    odd = np.where((rest != 0.0) & even, np.nextafter(product, np.copysign(np.inf, rest)), product)
    scaled = np.ldexp(odd, exponent + extra)
    return np.where(x == 0.0, 0.0, scaled.astype(np.float32).astype(np.float64))
