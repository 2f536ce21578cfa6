"""The default call beside cuBLAS over more than 200 shapes: square, tall, flat, small, batched; and how well `explain`
predicts each call's time.

Run: python benchmarks/gpu_sweep.py [--seconds 200]; writes results/gpu_sweep.csv. Random normal data. Before anything
is timed, processes measure all rows side by side, for their kernels (--compile SECONDS, 0: not). Times are medians of
interleaved calls by CUDA events, eager and as replays of captured graphs, of cuBLAS's product too. `explain` is asked
just before; host_us is how fast the host was then (`prismm.cuda.costs.host_speed`), host_after_us after the eager
calls. Where it changed its pace meanwhile, they are made again, a few times at most.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import machine, write
from _gpu_processes import measured_before
from gpu_gemm import graph_of
from gpu_words import interleaved

import prismm
from prismm.cuda.costs import host_speed as host_speed
from prismm.cuda.costs.calibrate import seconds_of

ORDERS = (64, 100, 128, 192, 256, 384, 512, 768, 1000, 1024, 1280, 1536, 1777, 2048, 2560, 3072, 3333, 4096, 5120, 6144)
SIDES = (4096, 16384, 65536)
THIN = (16, 64, 256)
INNER = (64, 512, 2048)
BATCHES = ((8, 64), (8, 256), (8, 1024), (64, 32), (64, 128), (64, 512), (64, 1024), (512, 32), (512, 64), (512, 256))


ATTEMPTS, STEADY = 4, 1.15
"""Times that eager calls are timed at most, and what the host's pace may change by meanwhile."""


def shapes() -> list[tuple[str, int, int, int, int]]:
    """Kind, batch, m, n, k."""
    found = [("square", 1, n, n, n) for n in ORDERS]
    found += [("tall", 1, m, n, k) for m, n, k in itertools.product(SIDES, THIN, INNER)]
    found += [("flat", 1, m, n, k) for n, m, k in itertools.product(SIDES, THIN, INNER)]
    found += [("inner", 1, n, n, k) for n, k in itertools.product((64, 256, 1024), (8192, 32768, 131072))]
    found += [("outer", 1, n, n, k) for n, k in itertools.product((2048, 8192), (32, 128, 512))]
    found += [("vector", 1, m, 1, k) for m, k in ((1024, 1024), (8192, 8192), (65536, 256))]
    found += [("batched", b, n, n, n) for b, n in BATCHES]
    return found


def timed(calls: list[Callable[[], Any]], least: float = 2e-3) -> list[float]:
    """Median seconds of calls in turn, after some that do not count: addresses have to be seen several times before a
    call is one launch; more turns of short ones.
    """
    for _ in range(6):
        for call in calls:
            call()
    longest = max(seconds_of(call) for call in calls)
    return interleaved(calls, min(25, max(5, math.ceil(least / longest))))


def warm_up(seconds: float = 2.0) -> None:
    """Clocks that are low when nothing runs rise within a second."""
    x = torch.ones(4096, 4096, device="cuda")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        x @ x
        torch.cuda.synchronize()


def measure(kind: str, batch: int, m: int, n: int, k: int, dtype: str) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(m + n + k)
    many = (batch,) if batch > 1 else ()
    a = torch.randn(*many, m, k, dtype=getattr(torch, dtype), device="cuda")
    b = torch.randn(*many, k, n, dtype=a.dtype, device="cuda")
    out, native = (torch.empty(*many, m, n, dtype=a.dtype, device="cuda") for _ in range(2))
    ours = lambda: prismm.matmul(a, b, out=out)  # noqa: E731
    theirs = lambda: torch.matmul(a, b, out=native)  # noqa: E731
    for _ in range(6):
        ours()
        theirs()
    for _ in range(ATTEMPTS):
        plan, pace = prismm.explain(a, b), host_speed.seconds()
        eager, native_eager = timed([ours, theirs])
        after = host_speed.seconds()
        if max(pace, after) <= STEADY * min(pace, after):
            break
    replayed, native_replayed = timed([graph_of(ours).replay, graph_of(theirs).replay])
    return {
        "kind": kind,
        "dtype": dtype,
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        "scheme": str(plan.scheme),
        "engine": plan.engine,
        "ratio": native_eager / eager,
        "graph_ratio": native_replayed / replayed,
        "ms": 1e3 * eager,
        "graph_ms": 1e3 * replayed,
        "native_ms": 1e3 * native_eager,
        "native_graph_ms": 1e3 * native_replayed,
        "predicted_ms": 1e3 * plan.predicted_seconds,
        "host_us": 1e6 * pace,
        "host_after_us": 1e6 * after,
        "gpu": torch.cuda.get_device_name(0),
        **machine(),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """How many calls are slower than cuBLAS by more than 3 %, and how many predictions are off by more than 25 %."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row for row in rows if row["kind"] == kind]
        slow, slow_graph = (sum(row[x] < 1 / 1.03 for row in some) for x in ("ratio", "graph_ratio"))
        off = sum(not 0.75 <= row["predicted_ms"] / row["ms"] <= 1.25 for row in some)
        lines.append(f"{kind:8s} {len(some):3d} rows: {slow} slower, {slow_graph} in a graph; {off} predicted off")
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further row after so many")
    parser.add_argument("--kinds", default="", help="some kinds, separated by commas; default all")
    parser.add_argument("--compile", type=float, default=240.0, help="seconds to compile side by side; 0: do not")
    options = parser.parse_args()
    wanted = options.kinds.split(",") if options.kinds else [kind for kind, *_ in shapes()]
    cases = [(*shape, dtype) for shape in shapes() if shape[0] in wanted for dtype in ("float64", "float32")]
    measured_before("gpu_sweep", cases, options.compile)
    start, rows = time.perf_counter(), []
    warm_up()
    for kind, batch, m, n, k, dtype in cases:
        if time.perf_counter() - start > options.seconds:
            print("out of time", file=sys.stderr)
            break
        rows.append(measure(kind, batch, m, n, k, dtype))
        row = rows[-1]
        print(
            f"{kind:8s} {dtype} {batch:4d} x {m:6d} {n:6d} {k:6d} {row['scheme']:28s} x{row['ratio']:.2f} "
            f"graph x{row['graph_ratio']:.2f} {row['ms']:.3f} ms (native {row['native_ms']:.3f}, predicted "
            f"{row['predicted_ms']:.3f})",
            file=sys.stderr,
            flush=True,
        )
    write("gpu_sweep", rows, key=("kind", "dtype", "batch", "m", "n", "k", "gpu"))
    print(summary(rows))


if __name__ == "__main__":
    main()
