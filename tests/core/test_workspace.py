"""Scratch memory: aligned, never lent twice at once, kept within its limit."""

import threading

import numpy as np
import pytest

from prismm.core import workspace
from prismm.core.workspace import Workspace


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch):
    monkeypatch.setattr(workspace, "_FREE", [])


def test_arrays_have_shape_type_alignment_and_memory_of_their_own():
    with Workspace() as scratch:
        arrays = [
            scratch.empty(shape, dtype)
            for shape in ((3, 5), (7,), (2, 3, 4), (0, 4), (), (100, 100))
            for dtype in (np.int8, np.int32, np.float64)
        ]
        for x in arrays:
            assert x.flags.c_contiguous and x.flags.writeable
            assert x.ctypes.data % 64 == 0 or x.size == 0
        for number, x in enumerate(arrays):
            x[...] = number
        for number, x in enumerate(arrays):
            assert (x == number).all(), "two arrays share memory"
        assert arrays[2].shape == (3, 5) and arrays[2].dtype == np.float64


def address(x):
    return x.ctypes.data


def test_memory_is_used_again_after_the_scratch_is_closed_and_not_before():
    with Workspace() as one:
        first = address(one.empty((1000,), np.float64))
        assert address(one.empty((1000,), np.float64)) != first
        with Workspace() as other:
            assert address(other.empty((1000,), np.float64)) != first
    with Workspace() as two:
        again = {address(two.empty((1000,), np.float64)) for _ in range(3)}
    assert first in again


def test_a_far_larger_block_is_not_wasted_on_a_small_array():
    with Workspace() as scratch:
        large = scratch.empty((10 << 20,), np.uint8)
        start, stop = address(large), address(large) + large.nbytes
    with Workspace() as scratch:
        small = address(scratch.empty((1000,), np.uint8))
        assert not start <= small < stop


def test_what_is_kept_stays_within_the_limit(monkeypatch):
    monkeypatch.setattr(workspace, "KEEP_BYTES", 1 << 20)
    with Workspace() as scratch:
        for size in (100_000, 300_000, 600_000, 900_000):
            scratch.empty((size,), np.uint8)
    kept = [block.nbytes for block in workspace._FREE]
    assert sum(kept) <= 1 << 20
    assert len(kept) == 3, "small blocks stay, the largest go"


def test_an_error_returns_the_memory():
    with pytest.raises(RuntimeError), Workspace() as scratch:
        scratch.empty((5000,), np.uint8)
        raise RuntimeError
    assert len(workspace._FREE) == 1


def test_threads_never_share_a_block():
    trouble = []

    def work(number):
        for _ in range(300):
            with Workspace() as scratch:
                x = scratch.empty((2000,), np.int64)
                x[...] = number
                y = scratch.empty((2000,), np.int64)
                y[...] = -number
                if not (x == number).all():
                    trouble.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble
