"""Operands as compiled kernels read them."""

from __future__ import annotations

import numpy as np
import pytest

from prismm.core.outcome import for_kernels


@pytest.mark.parametrize("room", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
@pytest.mark.parametrize("shape", [(3, 100), (100, 3), (64, 32), (1, 33), (33, 1), (0, 5), (5, 0), (81, 71), (33, 200)])
def test_copies_have_the_entries_of_every_layout(shape, dtype, room, rng):
    x = (rng.standard_normal(shape) * 9).astype(dtype)
    layouts = (
        x, x.T.copy().T, x[::-1].copy()[::-1], x.T.copy()[::-1].T, np.repeat(x, 3, axis=0)[::3],
        np.broadcast_to(x[:, :1], shape), np.broadcast_to(x[:1], shape),
    )  # fmt: skip
    for given in layouts:
        for kind in ("float64", "float32"):
            place = np.full(shape, np.nan, kind) if room else None
            found = for_kernels(given, kind, place)
            assert found.dtype == kind and found.flags.c_contiguous and found.flags.writeable
            assert np.array_equal(found, given.astype(kind))
            assert found is place or place is None or np.shares_memory(found, given) or not found.size


def test_what_needs_no_copy_is_none():
    x = np.ones((4, 5))
    x.flags.writeable = False
    assert np.shares_memory(for_kernels(x), x) and not np.shares_memory(for_kernels(x, "float32"), x)
