"""The same bits by every scheduler, whatever dies; memory; a progress bar."""

from __future__ import annotations

import functools
import io
import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import prismm
from prismm.testing import HOSTILE
from tests.dask.chunks import computed, da
from tests.judge import assert_same_bits

CORRECT, REPRODUCIBLE = {"accuracy": "correctly-rounded"}, {"reproducible": True}
quiet = pytest.mark.filterwarnings("default")
"""Clusters that end leave sockets and tasks behind, of which Python warns."""


def product(keywords, rng):
    """A lazy product whose inner dimension lies in pieces, and its bits."""
    a, b = HOSTILE["wide_rows"](40, 60, 30, seed=int(rng.integers(1 << 30)), dtype=np.float64)
    x, y = da.from_array(a, chunks=(17, 25)), da.from_array(b, chunks=(20, 16))
    return prismm.matmul(x, y, **keywords), prismm.matmul(a, b, **keywords)


@pytest.mark.parametrize("keywords", [REPRODUCIBLE, CORRECT, {"scheme": "residues:11"}], ids=str)
def test_threads(keywords, rng):
    lazy, expected = product(keywords, rng)
    for workers in (1, 2, 5):
        assert_same_bits(computed(lazy, scheduler="threads", num_workers=workers), expected)


@pytest.mark.slow
def test_processes(rng):
    lazy, expected = product(REPRODUCIBLE, rng)
    assert_same_bits(computed(lazy, scheduler="processes", num_workers=2), expected)


@pytest.mark.slow
@quiet
def test_a_cluster_of_threads(rng):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster, distributed.Client(cluster):  # fmt: skip
        for keywords in (REPRODUCIBLE, CORRECT):
            lazy, expected = product(keywords, rng)
            assert_same_bits(lazy.compute(), expected)
            x = da.from_array(np.ones((8, 8)), chunks=4).persist()
            assert_same_bits(prismm.matmul(x, x.T, **keywords).compute(), np.full((8, 8), 8.0))


def killed_once(block: np.ndarray, folder: str = "", block_info=None) -> np.ndarray:
    """A chunk; the worker that is the first to read the second one dies."""
    first = Path(folder) / "died"
    if block_info[0]["chunk-location"] == (0, 1) and not first.exists():
        first.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@quiet
@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_bit(rng, tmp_path):
    """In processes, whose messages kernels cannot write to; the worker dies while it computes."""
    distributed = pytest.importorskip("distributed")
    a, b = HOSTILE["wide_rows"](40, 60, 30, seed=int(rng.integers(1 << 30)), dtype=np.float64)
    x, y = da.from_array(a, chunks=(17, 25)), da.from_array(b, chunks=(20, 16))
    mortal = functools.partial(killed_once, folder=str(tmp_path))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster, distributed.Client(cluster):  # fmt: skip
        for keywords in (REPRODUCIBLE, CORRECT, {"scheme": "residues:11"}):
            (tmp_path / "died").unlink(missing_ok=True)
            lazy = prismm.matmul(x.map_blocks(mortal, dtype=x.dtype, meta=np.empty((0, 0))), y, **keywords)
            assert_same_bits(lazy.compute(), prismm.matmul(a, b, **keywords))
            assert (tmp_path / "died").exists(), "no worker was killed"


class Reader:
    """An array in storage: what is read of it is a copy, and counted."""

    def __init__(self, x: np.ndarray, folder: Path, name: str) -> None:
        np.save(folder / f"{name}.npy", x)
        self.path, self.shape, self.dtype, self.ndim, self.largest = folder / f"{name}.npy", x.shape, x.dtype, 2, 0

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        found = np.array(np.load(self.path, mmap_mode="r")[index])
        self.largest = max(self.largest, found.size)
        return found


def peak_bytes(lazy, target) -> int:
    """Bytes of arrays that are there at a time, while Dask's threads write a product to storage."""
    tracemalloc.start()
    da.store(lazy, target, scheduler="threads", num_workers=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("keywords", [{}, REPRODUCIBLE, CORRECT], ids=str)
def test_operands_that_do_not_fit_in_memory(keywords, rng, tmp_path):
    """A file of 24 MB times itself, in chunks of 0.5 MB: never is a quarter of both operands there."""
    x = rng.standard_normal((48000, 64))
    source, target = Reader(x, tmp_path, "x"), np.lib.format.open_memmap(
        tmp_path / "c.npy", mode="w+", dtype=np.float64, shape=(64, 64)
    )  # fmt: skip
    lazy = da.from_array(source, chunks=(1000, 64), asarray=False)
    gram = prismm.matmul(lazy.T, lazy, **keywords)
    computed(prismm.matmul(lazy[:2000].T, lazy[:2000], **keywords))  # kernels are there now
    assert peak_bytes(gram, target) < 2 * x.nbytes / 4
    assert source.largest == 64000, "chunks were joined"
    expected = prismm.matmul(x.T, x, **keywords)
    if keywords:
        assert_same_bits(np.array(target), expected)
    else:
        assert np.abs(np.asarray(target) - expected).max() <= 2.0**-40 * np.abs(expected).max()


@pytest.mark.parametrize("keywords", [{}, REPRODUCIBLE, CORRECT, {"scheme": "residues:9"}], ids=str)
def test_chunks_are_read_where_they_are_used(keywords, tmp_path):
    """No task hands a chunk to others, which would keep it until the last of them has run; of an operand times itself,
    too.
    """
    dask = pytest.importorskip("dask")
    for chunks in ((10, 4), (40, 4)):  # the inner dimension in pieces, and whole
        x = da.from_array(Reader(np.ones((40, 12)), tmp_path, "x"), chunks=chunks, asarray=False) * 2.0
        (ready,) = dask.optimize(prismm.matmul(x.T, x, **keywords))
        names = {key[0] for key in dict(ready.dask) if isinstance(key, tuple)}
        assert not {name for name in names if name.startswith(("array-", "mul-", "transpose-"))}
        assert_same_bits(computed(ready), np.full((12, 12), 160.0))


def test_zarr(rng, tmp_path):
    zarr = pytest.importorskip("zarr")
    a, b = HOSTILE["graded"](20, 30, 10, seed=int(rng.integers(1 << 30)), dtype=np.float64)
    for name, x in (("a", a), ("b", b)):
        stored = zarr.open_array(str(tmp_path / name), mode="w", shape=x.shape, chunks=(8, 8), dtype="f8")
        stored[:] = x
    lazy = prismm.matmul(da.from_zarr(str(tmp_path / "a")), da.from_zarr(str(tmp_path / "b")), reproducible=True)
    target = zarr.open_array(str(tmp_path / "c"), mode="w", shape=lazy.shape, chunks=(8, 8), dtype="f8")
    da.store(lazy, target, scheduler="threads", num_workers=2)
    found = np.asarray(zarr.open_array(str(tmp_path / "c"), mode="r")[:])
    assert_same_bits(found, prismm.matmul(a, b, reproducible=True))


def test_progress(rng):
    from dask.diagnostics import ProgressBar

    shown = io.StringIO()
    lazy, expected = product(REPRODUCIBLE, rng)
    with ProgressBar(out=shown, dt=0.01):
        assert_same_bits(computed(lazy, scheduler="threads", num_workers=2), expected)
    assert "100% Completed" in shown.getvalue()
