"""Specials of a product whose operands lie in pieces: `specials.patch` in two steps, the values and their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.specials import _parts, _summed, real_operands, special_product

if TYPE_CHECKING:
    from numpy.typing import NDArray

Special = tuple[tuple[Any, Any], "list[NDArray[np.float64]]"]
"""Which entries of a result, and the values of their real parts."""


def special_values(
    a: NDArray[Any], b: NDArray[Any], rows: NDArray[np.bool_], columns: NDArray[np.bool_], parts: int
) -> list[Special]:
    """The values that `specials.patch` sets before the epilogue: of such rows first, then of such columns."""
    found: list[Special] = []
    i, j = np.flatnonzero(rows), np.flatnonzero(columns)
    for x, y, where in ((a[i], b, (i, slice(None))), (a, b[:, j], (slice(None), j))):
        if x.shape[0] and y.shape[1]:
            found.append((where, [special_product(*real_operands(x, y, part)) for part in range(parts)]))
    return found


def patch_values(out: NDArray[Any], found: list[Special], epilogue: Any = None) -> int:
    """Set the entries that `special_values` found; returns how many (real parts counted)."""
    if not found:
        return 0
    count = 2 if np.iscomplexobj(out) else 1
    touched = np.zeros(out.shape, np.bool_)
    for where, values in found:
        if epilogue is not None and not epilogue.trivial:
            addends = [] if epilogue.c is None else _parts(epilogue.c[where], count)
            values = [_summed(epilogue, part, values, addends) for part in range(count)]
        for part, value in enumerate(values):
            _parts(out, count)[part][where] = value
        touched[where] = True
    return int(touched.sum()) * count
