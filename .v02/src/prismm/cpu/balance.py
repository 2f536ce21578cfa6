"""Balance of inner indices: powers of two move from one operand to the other, which changes no term of the product.

The rows and columns of graded matrices then span few binades.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNEVEN = 4
"""Operands are balanced if the inner indices would move by so many binades on average."""

_CHECKED_ROWS = 256
"""Rows that are scaled back at a time, to see whether a bit was lost."""


@np.errstate(all="ignore")
def balanced(
    left: NDArray[np.float64], right: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Operands with the same product whose largest elements at an inner index are alike; None if that changes little.

    Column h of the left operand is divided by a power of two, and row h of the right operand is multiplied by it. An
    index at which a bit would be lost stays as it is. Every column of `left` and every row of `right` must have a
    nonzero element.
    """
    # The largest magnitudes without an array of all magnitudes.
    tops = np.maximum(left.max(axis=0), -left.min(axis=0)), np.maximum(right.max(axis=1), -right.min(axis=1))
    shift = (np.frexp(tops[0])[1] - np.frexp(tops[1])[1]) >> 1
    shift -= int(np.median(shift))
    if np.abs(shift).mean() < _UNEVEN:
        return None
    down, up = np.ldexp(1.0, -shift), np.ldexp(1.0, shift)[:, None]
    x, y = left * down, right * up
    exact = (y * down[:, None] == right).all(axis=1)
    for i in range(0, len(left), _CHECKED_ROWS):
        here = slice(i, i + _CHECKED_ROWS)
        exact &= (x[here] * up[:, 0] == left[here]).all(axis=0)
    x[:, ~exact], y[~exact] = left[:, ~exact], right[~exact]
    return x, y
