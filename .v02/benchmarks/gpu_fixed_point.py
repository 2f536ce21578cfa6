"""Ratio of products of slices and of tiles of fixed-point numbers to cuBLAS's GEMM of the same type on this GPU,
certificate and repair included, errors beside the times; eager calls, and replays of a captured CUDA graph.

Run: python benchmarks/gpu_fixed_point.py [--sizes 4096,8192]; writes results/gpu_fixed_point.csv. Random normal data.
Times are medians of interleaved calls, each measured by CUDA events; errors are those of a sample in the Frobenius
norm.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from _common import machine, write
from gpu_gemm import graph_of, interleaved, phases, sampled

import prismm
from prismm.schemes import Slices, TileInt8

CALLS: dict[tuple[str, str], dict[str, Any]] = {
    ("float32", "tiles of 32"): {"scheme": TileInt8(), "accuracy": "native"},
    ("float32", "tiles of 64"): {"scheme": TileInt8(tile=(16, 64, 8)), "accuracy": "native"},
    ("float32", "tiles of 128"): {"scheme": TileInt8(tile=(16, 128, 8)), "accuracy": "native"},
    ("float32", "3 slices, fast"): {"scheme": Slices("int8", slices=3, fast=True), "accuracy": "native"},
    ("float32", "4 slices, fast"): {"scheme": Slices("int8", slices=4, fast=True), "accuracy": "native"},
    ("float32", "slices, CR"): {"scheme": Slices("int8", mode="CR")},
    ("float64", "7 slices, fast"): {"scheme": Slices("int8", slices=7, fast=True), "accuracy": "native"},
    ("float64", "7 slices"): {"scheme": Slices("int8", slices=7), "accuracy": "native"},
    ("float64", "slices, CR"): {"scheme": Slices("int8", mode="CR")},
    ("float64", "7 slices of FP16, fast"): {"scheme": Slices("fp16", slices=7, fast=True), "accuracy": "native"},
    ("float64", "3 slices of FP64"): {"scheme": Slices("fp64", slices=3), "accuracy": "native"},
    ("float64", "slices of FP64, CR"): {"scheme": Slices("fp64", mode="CR")},
    ("float32", "4 slices of FP16, fast"): {"scheme": Slices("fp16", slices=4, fast=True), "accuracy": "native"},
    ("complex128", "7 slices, fast"): {"scheme": Slices("int8", slices=7, fast=True), "accuracy": "native"},
    ("complex64", "tiles of 128"): {"scheme": TileInt8(tile=(16, 128, 8)), "accuracy": "native"},
}


def measure(n: int, dtype: str, name: str, repeats: int) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(n)
    a, b = (torch.randn(n, n, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    form = CALLS[dtype, name]
    out, native = torch.empty_like(a), torch.empty_like(a)
    plan = prismm.explain(a, b, **form)
    ours, theirs = interleaved(
        lambda: prismm.matmul(a, b, out=out, **form), lambda: torch.mm(a, b, out=native), repeats
    )
    graph = graph_of(lambda: prismm.matmul(a, b, out=out, **form))
    replays, others = interleaved(graph.replay, lambda: torch.mm(a, b, out=native), repeats)
    _, report = prismm.matmul(a, b, full_output=True, **form)
    return {
        "n": n,
        "dtype": dtype,
        "call": name,
        "scheme": str(plan.scheme),
        "ratio": statistics.median(y / x for x, y in zip(ours, theirs, strict=True)),
        "graph_ratio": statistics.median(others) / statistics.median(replays),
        "ms": 1e3 * statistics.median(ours),
        "graph_ms": 1e3 * statistics.median(replays),
        "native_ms": 1e3 * statistics.median(theirs),
        "predicted_ms": 1e3 * plan.predicted_seconds,
        "error": sampled(out, a, b),
        "native_error": sampled(native, a, b),
        "repaired": report.repaired,
        "phases_ms": phases(a, b, **form),
        "repeats": repeats,
        "gpu": torch.cuda.get_device_name(0),
        **machine(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2048,4096,8192,16384")
    rows = []
    for n in map(int, parser.parse_args().sizes.split(",")):
        for dtype, name in CALLS:
            rows.append(measure(n, dtype, name, 3 if n > 8192 else 7))
            torch.cuda.empty_cache()
            row = rows[-1]
            print(
                f"{n:6d} {dtype:8s} {name:15s} x{row['ratio']:.2f} graph x{row['graph_ratio']:.2f} {row['ms']:.3f} ms "
                f"(predicted {row['predicted_ms']:.3f}) error {row['error']:.2g} ({row['native_error']:.2g}) "
                f"{row['phases_ms']}",
                file=sys.stderr,
                flush=True,
            )
            write("gpu_fixed_point", rows, key=("n", "dtype", "call", "gpu"))


if __name__ == "__main__":
    main()
