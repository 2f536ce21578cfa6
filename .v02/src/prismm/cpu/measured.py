"""Rates of this processor's tile unit and of NumPy's products, measured once and kept on disk.

Tile units differ by generation, and in virtual machines by neighbours; so does the BLAS beside them. Where a CPU has a
usable tile unit, half a second of products on one worker, of what `Residues` does and of NumPy, says what each takes:

- two products of residues of different inner dimension: seconds a multiply-add, and seconds to join an entry;
- splits of rows and of columns: seconds an element and modulus;
- NumPy's product in float64 and float32.

The file lies beside the compiled kernels, whose folder's name carries the versions of all that was measured. A file
that cannot be read, or is of another processor, counts as missing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prismm.core import cache_files, threads
from prismm.core.jit import cache_folder
from prismm.cpu.costs import Rates

if TYPE_CHECKING:
    from pathlib import Path

FILE = "rates.json"

_MODULI, _ROWS, _COLUMNS, _SHORT, _LONG = 15, 672, 384, 512, 1536
_REPEATS = 8


def rates(engine: str) -> Rates:
    """The rates of an engine of tiles that proved itself: from disk, or measured now and written there."""
    from llvmlite import binding

    return _rates(engine, binding.get_host_cpu_name())


def _rates(engine: str, processor: str) -> Rates:
    folder = cache_folder()
    known = _read(folder / FILE, engine, processor) if folder is not None else None
    if known is not None:
        return known
    found: Rates = threads.run(lambda _: measure(engine), 1)[0]
    if folder is not None:
        with contextlib.suppress(OSError):
            content = {"processor": processor, "engine": engine, "rates": asdict(found)}
            cache_files.write(folder / FILE, json.dumps(content, indent=1).encode())
    return found


def _read(path: Path, engine: str, processor: str) -> Rates | None:
    try:
        content = json.loads(cache_files.read(path))
        if (content["engine"], content["processor"]) != (engine, processor):
            return None
        numbers = {name: float(x) for name, x in content["rates"].items()}
        return Rates(**numbers) if all(0.0 < x < 1e16 for x in numbers.values()) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _seconds(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Least processor time, in seconds, of a few rounds in which each has its turn, after one that counts for nothing:
    what else runs here only slows them down.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for count in range(_REPEATS + 1):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            if count:
                taken[name].append(time.thread_time() - start)
    return {name: min(times) for name, times in taken.items()}


def measure(engine: str) -> Rates:
    """The rates of one worker, measured now.

    Raises:
        EngineError: where the engine cannot be used here.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    from prismm.core.accuracy import parse_target
    from prismm.core.outcome import Job, Outcome
    from prismm.core.workspace import Workspace
    from prismm.cpu.engines.integer import choose
    from prismm.cpu.residues.blocking import left_shape, residue_dtype, right_shape
    from prismm.cpu.residues.product import Product
    from prismm.cpu.residues.split import Splitter, split_operand
    from prismm.formats import FP64

    rng = np.random.default_rng(20260101)
    a, b = rng.standard_normal((_ROWS, _LONG)), rng.standard_normal((_LONG, _COLUMNS))
    out = np.empty((_ROWS, _COLUMNS))
    chosen = choose(engine)
    job = Job(FP64, parse_target("native"), _LONG, a_priori=True, workers=1, workspace_bytes=1 << 30)
    runs: dict[str, Callable[[], Any]] = {}
    with Workspace() as workspace:
        for k in (_SHORT, _LONG):
            splitter = Splitter(_MODULI, chosen, k, False, a_priori=True, levels=True)
            left = workspace.empty(left_shape(splitter, _ROWS), residue_dtype(chosen, left=True))
            right = workspace.empty(right_shape(splitter, _COLUMNS), residue_dtype(chosen, left=False))
            x, y = np.ascontiguousarray(a[:, :k]), np.ascontiguousarray(b[:k])
            rows = split_operand(x, splitter, left, left=True)
            columns = split_operand(y, splitter, right, left=False)
            work = Product(splitter, job, Outcome())
            buffers = work.buffers(_ROWS, _COLUMNS, workspace)
            tile = (0, _ROWS, 0, _COLUMNS)
            runs[f"product {k}"] = functools.partial(work.tile, left, right, rows, columns, tile, out, 0, buffers)
        runs["split left"] = functools.partial(split_operand, x, splitter, left, left=True)
        runs["split right"] = functools.partial(split_operand, y, splitter, right, left=False)
        for dtype in ("float64", "float32"):
            runs[dtype] = functools.partial(np.matmul, a.astype(dtype), b.astype(dtype))
        with threadpool_limits(1, user_api="blas"):
            seconds = _seconds(runs)
    entries = _ROWS * _COLUMNS
    long, short = (seconds[f"product {k}"] / (entries * _MODULI) for k in (_LONG, _SHORT))
    # Of an entry and modulus: a share for each term, and one for the join, which is less than half of the long product.
    term = min(max((long - short) / (_LONG - _SHORT), 0.5 * long / _LONG), long / _LONG)
    join = max(long - term * _LONG, 0.01 * long)
    split = (_ROWS + _COLUMNS) * _LONG * _MODULI / (seconds["split left"] + seconds["split right"])
    native = {dtype: entries * _LONG / seconds[dtype] for dtype in ("float64", "float32")}
    return Rates(residue=1.0 / term, split=split, join=1.0 / join, **native)
