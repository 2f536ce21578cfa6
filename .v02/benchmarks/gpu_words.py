"""Ratio of products of words to cuBLAS's float32 GEMM on this GPU, certificate and repair included, errors beside the
times; eager calls, and replays of a captured CUDA graph; and their share of cuBLAS's rate on FP16 operands.

Run: python benchmarks/gpu_words.py [--sizes 2048,4096]; writes results/gpu_words.csv. Random normal data. Before
anything is timed, processes measure smaller rows side by side, for their kernels (--compile SECONDS, 0: not). Times are
medians of interleaved calls, each measured by CUDA events; errors are those of a sample in the Frobenius norm. "share"
is the rate of products of words over cuBLAS's rate on FP16 operands, both from graphs. "batch"
rows: 64 products of order 512.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import machine, write
from _gpu_processes import measured_before
from gpu_gemm import COMPILED, graph_of

import prismm
from prismm.cuda.costs.calibrate import seconds_of
from prismm.schemes import Residues, ScaledHalf, Words

CALLS: dict[str, dict[str, Any]] = {
    "default": {},
    "ScaledHalf": {"scheme": ScaledHalf(chunk=512), "accuracy": "native"},
    "Words TF32": {"scheme": Words.tf32(), "accuracy": "native"},
    "Words BF16": {"scheme": Words.bf16(6), "accuracy": "native"},
    "Residues": {"scheme": Residues(7), "accuracy": "native"},
}


def interleaved(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Median seconds of calls in turn, after one untimed call each."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, found in zip(calls, times, strict=True):
            found.append(seconds_of(call))
    return [statistics.median(found) for found in times]


def error(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Of the first rows, relative in the Frobenius norm; the reference is a product in the wider type."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    exact = a[..., :16, :].to(wide) @ b.to(wide)
    return float((c[..., :16, :].to(wide) - exact).norm() / exact.norm())


def measure(n: int, dtype: str, name: str, batch: int, repeats: int) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(n)
    shape = (batch, n, n) if batch > 1 else (n, n)
    a, b = (torch.randn(shape, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    out, native = torch.empty_like(a), torch.empty_like(a)
    form = CALLS[name]
    ours = lambda: prismm.matmul(a, b, out=out, **form)  # noqa: E731
    theirs = lambda: torch.matmul(a, b, out=native)  # noqa: E731
    x, y = ((v.real if v.is_complex() else v).half() for v in (a, b))
    graph, half = graph_of(ours), graph_of(lambda: torch.matmul(x, y))
    theirs_s, ours_s, graph_s, half_s = interleaved([theirs, ours, graph.replay, half.replay], repeats)
    hosts = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        ours()
        hosts.append(time.perf_counter() - start)
    _, report = prismm.matmul(a, b, full_output=True, **form)
    plan = report.plan
    return {
        "n": n,
        "batch": batch,
        "dtype": dtype,
        "call": name,
        "scheme": str(plan.scheme),
        "ratio": theirs_s / ours_s,
        "graph_ratio": theirs_s / graph_s,
        "ms": 1e3 * ours_s,
        "graph_ms": 1e3 * graph_s,
        "native_ms": 1e3 * theirs_s,
        "share": plan.products / batch * half_s / graph_s,
        "predicted_ms": 1e3 * plan.predicted_seconds,
        "error": error(out, a, b),
        "native_error": error(native, a, b),
        "repaired": report.repaired,
        "host_us": 1e6 * statistics.median(hosts),
        "repeats": repeats,
        "gpu": torch.cuda.get_device_name(0),
        **machine(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,2048,4096,8192,16384")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further row after so many")
    parser.add_argument("--compile", type=float, default=240.0, help="seconds to compile side by side; 0: do not")
    options = parser.parse_args()
    sizes = [int(n) for n in options.sizes.split(",")]
    cases = [(n, "float32", name, 1) for n in sizes for name in CALLS]
    cases += [(n, "complex64", "default", 1) for n in sizes if n <= 8192]
    cases += [(512, "float32", name, 64) for name in ("default", "ScaledHalf")]
    measured_before("gpu_words", ((*case, 1) for case in cases if case[0] <= COMPILED // 2), options.compile)
    start, rows = time.perf_counter(), []
    for n, dtype, name, batch in cases:
        if time.perf_counter() - start > options.seconds:
            print("out of time", file=sys.stderr)
            return
        rows.append(measure(n, dtype, name, batch, 3 if n > 8192 else 7 if n > 4096 else 15))
        torch.cuda.empty_cache()
        row = rows[-1]
        print(
            f"{n:6d} x{batch} {dtype:9s} {name:11s} {row['scheme']:28s} x{row['ratio']:.2f} graph "
            f"x{row['graph_ratio']:.2f} {row['ms']:.3f} ms (predicted {row['predicted_ms']:.3f}) share "
            f"{row['share']:.2f} error {row['error']:.2g} ({row['native_error']:.2g}) host {row['host_us']:.0f} µs "
            f"after {time.perf_counter() - start:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        write("gpu_words", rows, key=("n", "batch", "dtype", "call", "gpu"))


if __name__ == "__main__":
    main()
