"""Ratio of prismm to cuBLAS's GEMM of the same type on this GPU, certificate and repair included, errors beside the
times; eager calls on an idle GPU, eager calls queued one after the other, and replays of a captured CUDA graph.

Run: python benchmarks/gpu_gemm.py [--sizes 2048,4096] [--seconds 120]; writes results/gpu_gemm.csv. Random normal data.
Before anything is timed, processes measure smaller rows side by side, for their kernels (--compile SECONDS, 0: not).
Times are medians of interleaved calls, each measured by CUDA events; the error is that of a sample in the Frobenius
norm, against products in a wider type. "phases" are the kernels' times, "host_us" what an eager call takes to queue.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import machine, write
from _gpu_processes import measured_before

import prismm
from prismm.cuda.costs.calibrate import phases_of, seconds_of
from prismm.schemes import Residues

CALLS: dict[tuple[str, str], dict[str, Any]] = {
    ("float64", "default"): {},
    ("float64", "15 moduli"): {"scheme": Residues(15), "accuracy": "native"},
    ("float64", "14 moduli"): {"scheme": Residues(14), "accuracy": "native"},
    ("float64", "correctly-rounded"): {"accuracy": "correctly-rounded"},
    ("float32", "default"): {},
    ("float32", "reproducible"): {"reproducible": True},
    ("float32", "8 moduli"): {"scheme": Residues(8), "accuracy": "native"},
    ("float32", "correctly-rounded"): {"accuracy": "correctly-rounded"},
    ("complex128", "default"): {},
    ("complex64", "default"): {},
}


COMPILED = 8192
"""Orders up to which processes measure rows to compile their kernels, of complex ones half; larger ones take nearly the
same kernels, and more memory than there is for all.
"""


def interleaved(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of both in turn, each on an idle GPU, after untimed calls: some addresses have to be seen several times
    before a call is one launch.
    """
    for _ in range(5):
        ours(), theirs()
    a, b = [], []
    for _ in range(repeats):
        b.append(seconds_of(theirs))
        a.append(seconds_of(ours))
    return a, b


def in_a_row(call: Callable[[], Any], calls: int) -> float:
    """Seconds of a call among calls that are queued one after the other."""
    return seconds_of(lambda: [call() for _ in range(calls)]) / calls


def graph_of(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """The call captured."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def sampled(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative error of a few rows and columns in the Frobenius norm."""
    rows, columns = a[:3], b[:, :48]
    wide = {"float64": np.longdouble, "complex128": np.clongdouble, "float32": np.float64, "complex64": np.complex128}
    kind = wide[str(c.dtype).removeprefix("torch.")]
    exact = rows.cpu().numpy().astype(kind) @ columns.cpu().numpy().astype(kind)
    error = c[:3, :48].cpu().numpy().astype(kind) - exact
    return float(np.sqrt(np.sum(np.abs(error) ** 2) / np.sum(np.abs(exact) ** 2)))


def phases(a: torch.Tensor, b: torch.Tensor, **form: Any) -> str:
    """Milliseconds of a call's launches, one by one."""
    from prismm.cuda import calls as cuda_calls

    cuda_calls.forget()
    out = prismm.matmul(a, b, **form)
    (call,) = cuda_calls.known()
    found = phases_of(call, a, b, out)
    return " ".join(f"{name}={1e3 * seconds:.3f}" for name, seconds in found.items())


def measure(n: int, dtype: str, name: str, repeats: int) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(n)
    kind = getattr(torch, dtype)
    a, b = (torch.randn(n, n, dtype=kind, device="cuda") for _ in range(2))
    form = CALLS[dtype, name]
    out, native = torch.empty_like(a), torch.empty_like(a)
    plan = prismm.explain(a, b, **form)
    a_seconds, b_seconds = interleaved(
        lambda: prismm.matmul(a, b, out=out, **form), lambda: torch.mm(a, b, out=native), repeats
    )
    error, native_error = sampled(out, a, b), sampled(native, a, b)
    row = [
        [in_a_row(call, 10 if n <= 4096 else 2) for _ in range(3)]
        for call in (lambda: torch.mm(a, b, out=native), lambda: prismm.matmul(a, b, out=out, **form))
    ]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        prismm.matmul(a, b, out=out, **form)
    host = (time.perf_counter() - start) / 3
    torch.cuda.synchronize()
    graph = graph_of(lambda: prismm.matmul(a, b, out=out, **form))
    g_seconds, h_seconds = interleaved(graph.replay, lambda: torch.mm(a, b, out=native), repeats)
    ratios = sorted(y / x for x, y in zip(a_seconds, b_seconds, strict=True))
    _, report = prismm.matmul(a, b, full_output=True, **form)
    operations = 2.0 * n**3 * (4 if kind.is_complex else 1)
    ours = statistics.median(a_seconds)
    return {
        "n": n,
        "dtype": dtype,
        "call": name,
        "scheme": str(plan.scheme),
        "ratio": statistics.median(ratios),
        "ratio_p20": ratios[int(0.2 * (len(ratios) - 1))],
        "ratio_p80": ratios[int(0.8 * (len(ratios) - 1))],
        "row_ratio": statistics.median(row[0]) / statistics.median(row[1]),
        "graph_ratio": statistics.median(h_seconds) / statistics.median(g_seconds),
        "ms": 1e3 * ours,
        "graph_ms": 1e3 * statistics.median(g_seconds),
        "native_ms": 1e3 * statistics.median(b_seconds),
        "tflops": operations / ours / 1e12,
        "predicted_ms": 1e3 * plan.predicted_seconds,
        "error": error,
        "native_error": native_error,
        "repaired": report.repaired,
        "host_us": 1e6 * host,
        "phases_ms": phases(a, b, **form),
        "repeats": repeats,
        "gpu": torch.cuda.get_device_name(0),
        **machine(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2048,4096,8192,16384")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further row after so many")
    parser.add_argument("--compile", type=float, default=240.0, help="seconds to compile side by side; 0: do not")
    options = parser.parse_args()
    sizes = [int(n) for n in options.sizes.split(",")]
    few = {
        (min(n, COMPILED // (2 if dtype.startswith("complex") else 1)), dtype, name, 1)
        for n in sizes for dtype, name in CALLS
    }  # fmt: skip
    measured_before("gpu_gemm", sorted(few, reverse=True), options.compile)
    start, rows = time.perf_counter(), []
    for n in sizes:
        for dtype, name in CALLS:
            if time.perf_counter() - start > options.seconds:
                print("out of time", file=sys.stderr)
                return
            rows.append(measure(n, dtype, name, 3 if n > 8192 else 7 if n > 4096 else 15))
            torch.cuda.empty_cache()
            row = rows[-1]
            print(
                f"{n:6d} {dtype:10s} {name:18s} {row['scheme']:22s} "
                f"x{row['ratio']:.2f} row x{row['row_ratio']:.2f} graph x{row['graph_ratio']:.2f} "
                f"{row['ms']:.3f} ms (predicted {row['predicted_ms']:.3f}) error {row['error']:.2g} "
                f"({row['native_error']:.2g}) host {row['host_us']:.0f} µs {row['phases_ms']} "
                f"after {time.perf_counter() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            write("gpu_gemm", rows, key=("n", "dtype", "call", "gpu"))


if __name__ == "__main__":
    main()
