"""The classes of hostile integer dot products that `prismm.numerics.hostile.vectors` mixes, as those of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prismm.formats import Integer
from prismm.numerics.hostile_draw import Kit, any_bits

if TYPE_CHECKING:
    from prismm.numerics.hostile_classes import Made

__all__ = ["INTEGERS"]


def _extreme(kit: Kit) -> Made:
    """Ends of the range, one sign of products in half of them, c near the ends of its own: sums wrap."""
    import numpy as np

    i, o = kit.input, kit.output
    assert isinstance(i, Integer) and isinstance(o, Integer)
    ends = np.array([i.min, i.max, i.min, i.max, i.min + 1, i.max - 1], np.int64)
    one = kit.draw.coin(1)
    a = np.where(one, ends[kit.row(0, 1)], ends[kit.draw.between(kit.k, 0, 5)])
    b = np.where(one, ends[kit.row(0, 1)], ends[kit.draw.between(kit.k, 0, 5)])
    near = kit.row(0, 1 << 20)
    c = np.where(kit.draw.coin(1), o.max - near, o.min + near)
    masks = (np.uint64((1 << i.bits) - 1), np.uint64((1 << o.bits) - 1))
    return a.astype(np.uint64) & masks[0], b.astype(np.uint64) & masks[0], c.astype(np.uint64) & masks[1]


def _full(kit: Kit) -> Made:
    """Any bits."""
    a, b = (any_bits(kit.input, kit.draw.words(kit.k)) for _ in range(2))
    return a, b, any_bits(kit.output, kit.draw.words(1))


def _zeros(kit: Kit) -> Made:
    """Many zeros."""
    import numpy as np

    a, b, c = _full(kit)
    a[kit.draw.coin(kit.k, 200)] = 0
    return a, b, np.where(kit.draw.coin(1), np.uint64(0), c)


def _small(kit: Kit) -> Made:
    """Small non-negative numbers."""
    import numpy as np

    a, b, c = _full(kit)
    return a & np.uint64(7), b & np.uint64(7), c & np.uint64(0xFF)


INTEGERS: dict[str, Callable[[Kit], Made]] = {
    "full": _full,
    "extreme": _extreme,
    "zeros": _zeros,
    "small": _small,
}
