"""Upper bounds, in float64, of sums and products of numbers that are not negative, in arrays or tensors.

Notation: u = 2^-53, η = 2^-1074 the smallest subnormal, τ = 2^-1022 the smallest normal number. Rounding is to nearest;
a product or sum that would be subnormal may be flushed to zero, which costs at most τ.

One operation. |fl(x) - x| <= half the distance to a neighbour, so x <= nextafter(fl(x), inf).

A chain of d roundings. Let x̂ come from numbers >= 0 by additions, and by multiplications with numbers >= 0, so that no
summand passes through more than d roundings. Each rounding gives at least (1-u) of its exact value, but for what
underflows. So x <= x̂·(1-u)^-d <= x̂·(1 + 2du) where du <= 1/2, by Bernoulli's inequality. `inflation(d)` is
f = 1 + (d+2)·2^-52, a float64. As f < 2, fl(x̂·f) >= x̂·f·(1-u) >= x̂·(1 + (d+1)·2^-52) >= x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

U = 2.0**-53
ETA = 2.0**-1074
TAU = 2.0**-1022


def above(x: Any) -> Any:
    """At least the exact value of the one operation whose rounded value is x.

    >>> bool(above(1.0) > 1.0)
    True
    """
    return _toward(x, np.inf)


def below(x: Any) -> Any:
    """At most the exact value of the one operation whose rounded value is x."""
    return _toward(x, -np.inf)


def _toward(x: Any, end: float) -> Any:
    if arrays.is_tensor(x):
        return x.nextafter(x.new_full((), end))
    return np.nextafter(x, end)


def inflation(depth: int) -> float:
    """f with x <= fl(x̂·f), where no summand of x̂ >= 0 passes through more than `depth` < 2^49 roundings.

    >>> inflation(0) == 1.0 + 2.0**-51
    True
    """
    return 1.0 + (depth + 2) * 2.0**-52


def sum_above(x: Any, axis: int | None = None) -> Any:
    """At least Σx along an axis, for x >= 0: m-1 additions in any order, whose subnormal results are exact or flushed.

    >>> import numpy as np
    >>> bool(sum_above(np.array([1.0, 2.0**-60])) > 1.0)
    True
    """
    if arrays.is_tensor(x):
        count = x.numel() if axis is None else x.shape[axis]
        total, some = (x.sum(), (x != 0.0).any()) if axis is None else (x.sum(dim=axis), (x != 0.0).any(dim=axis))
        # A bool times a number would be float32.
        return (total + some.to(x.dtype) * (count * TAU)) * inflation(count)
    count = x.size if axis is None else x.shape[axis]
    return (np.sum(x, axis=axis) + count * TAU * np.any(x, axis=axis)) * inflation(count)


def product_above(m: Floats, v: Floats) -> Floats:
    """At least M·V entry by entry, for M >= 0 and V >= 0, and 0 where each term of the sum is 0.

    Each of k products and k-1 additions loses at most a factor of 1-u, or τ to underflow. So
    exact <= (fl(MV) + 2kτ)·(1-u)^-(k+1), and one rounding more is that of the sum in brackets.

    Args:
        m: (m, k).
        v: (k,) or (k, n).

    >>> import numpy as np
    >>> product_above(np.eye(2), np.array([1.0, 0.0]))[1]
    np.float64(0.0)
    """
    k = m.shape[1]
    found = m @ v
    bound = (found + 2 * k * TAU) * inflation(k + 2)
    if not found.all():
        # What is 0 may have underflowed: it is 0 for certain where no index has both factors.
        met = (m != 0).astype(np.float32) @ (v != 0).astype(np.float32)
        bound = np.where((found == 0) & (met == 0), 0.0, bound)
    result: Floats = bound
    return result
