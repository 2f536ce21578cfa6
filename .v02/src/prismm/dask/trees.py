"""Sums over pieces in trees: what pieces give is added, some at a time, so that few of them are there at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

BRANCHES = 4
"""Pieces that are added at a time."""


def added(pieces: da.Array, add: Callable[[list[Any]], Any], dtype: Any) -> da.Array:
    """The sums along the last axis, whose chunks are pieces of any type.

    add: of a list of them; has to leave them as they are, since a task may run again.
    """
    task = _Add(add)
    return da.reduction(
        pieces, _same, task, axis=-1, dtype=np.dtype(dtype), split_every=BRANCHES, combine=task, concatenate=False,
        meta=np.empty((0,) * (pieces.ndim - 1), dtype),
    )  # fmt: skip


def _same(x: Any, axis: Any = None, keepdims: Any = None) -> Any:
    return x


class _Add:
    """A sum of pieces, as `da.reduction` calls it."""

    def __init__(self, add: Callable[[list[Any]], Any]) -> None:
        self.add = add

    def __call__(self, pieces: Any, axis: Any = None, keepdims: Any = None) -> Any:
        return self.add(pieces) if isinstance(pieces, list) else pieces

    def __dask_tokenize__(self) -> Any:
        add = getattr(self.add, "func", self.add)  # of a partial function its arguments follow from the pieces' name
        return "prismm", add.__module__, add.__qualname__
