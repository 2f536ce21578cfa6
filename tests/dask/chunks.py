"""Dask arrays of NumPy arrays for tests, cut at random places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")


def cut(size: int, rng: np.random.Generator, pieces: int) -> tuple[int, ...]:
    """Lengths of so many chunks at most, none of them empty where there are elements; any as short as 1."""
    if size < 2:
        return (size,)
    places = sorted(set(rng.integers(1, size, pieces - 1).tolist()))
    return tuple(np.diff([0, *places, size]).tolist())


def chunked(x: np.ndarray, rng: np.random.Generator, inner: int | tuple[int, ...], axis: int) -> Any:
    """x in chunks, every axis cut in at most two places, one as `inner` says: so many pieces, or of these lengths."""
    chunks = [cut(size, rng, 2) for size in x.shape]
    chunks[axis] = inner if isinstance(inner, tuple) else cut(x.shape[axis], rng, inner)
    return da.from_array(x, chunks=tuple(chunks))


def computed(x: Any, **options: Any) -> Any:
    """The entries, in this thread."""
    return x.compute(**{"scheduler": "synchronous", **options})
