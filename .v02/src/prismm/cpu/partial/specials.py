"""Entries that meet Inf or NaN, whose sums lie in pieces: which of +Inf, -Inf and NaN each piece's sum is.

That is all that the whole sum follows from: it is NaN where some piece's is, or where both infinities meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.scales import NONFINITE
from prismm.core.special_values import Special, special_values
from prismm.cpu.partial.setting import Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray


def nonfinite(exponent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows or columns with Inf or NaN, by the `scales.exponents` of all pieces."""
    return exponent >= NONFINITE


def flags(
    a: NDArray[Any], b: NDArray[Any], rows: NDArray[np.bool_], columns: NDArray[np.bool_], setting: Setting
) -> NDArray[np.uint8]:
    """(3, entries): whether the piece's sum of each special entry is +Inf, -Inf or NaN. Combined by maximum.

    The entries are those of such rows, then those of such columns, real parts apart.
    """
    values = [value.reshape(-1) for _, found in special_values(a, b, rows, columns, setting.parts) for value in found]
    whole = np.concatenate([np.empty(0), *values])
    return np.stack([whole == np.inf, whole == -np.inf, np.isnan(whole)]).astype(np.uint8)


def values(
    found: NDArray[np.uint8], rows: NDArray[np.bool_], columns: NDArray[np.bool_], setting: Setting
) -> list[Special]:
    """The argument of `core.special_values.patch_values`, from the flags of all pieces."""
    plus, minus, nan = found.astype(np.bool_)
    whole = np.where(plus, np.inf, np.where(minus, -np.inf, 0.0))
    whole = np.where(nan | (plus & minus), np.nan, whole)
    specials: list[Special] = []
    i, j = np.flatnonzero(rows), np.flatnonzero(columns)
    start = 0
    for shape, where in (((i.size, columns.size), (i, slice(None))), ((rows.size, j.size), (slice(None), j))):
        size = shape[0] * shape[1]
        if size:
            parts = [whole[start + p * size : start + (p + 1) * size].reshape(shape) for p in range(setting.parts)]
            specials.append((where, parts))
            start += size * setting.parts
    return specials
