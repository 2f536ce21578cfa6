"""Sums and products of float64 arrays with what rounding takes from them: error-free transformations.

Source: Ogita, Rump and Oishi, Accurate sum and dot product (SIAM J. Sci. Comput. 26, 2005), algorithms 3.1 to 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
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
