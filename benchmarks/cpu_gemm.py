"""Ratio of prismm to the faster of NumPy's and torch's GEMM of the same type on this CPU, certificate and repair
included, errors beside the times.

Run: python benchmarks/cpu_gemm.py [--quick] [--threads N] [--quiet SECONDS] [--name NAME]; writes results/NAME.csv,
cpu_gemm by itself. Random normal data, other operands at each call, and φ = 4 for the wide case. Environment variables
must not change which kernels NumPy's BLAS chooses.

On a host that other virtual machines use, --quiet counts only pairs of calls on processors that a probe finds free
(`_quiet`), for so many seconds a row; `tried` says how many pairs were made for those that count.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import PAUSE, compared, interleaved, machine, warm_up, write
from _quiet import paired
from threadpoolctl import threadpool_info, threadpool_limits

import prismm
from prismm.testing import exact_product, phi

CALLS: dict[str, dict[str, Any]] = {
    "default": {},
    "reproducible": {"reproducible": True},
    "correctly-rounded": {"accuracy": "correctly-rounded"},
}
SIZES = (32, 128, 256, 512, 1024, 2048, 4096)
MOST_PAIRS = 15
"""Pairs of calls on free processors that are enough for a row."""


def blas() -> str:
    """Name and version of NumPy's BLAS, and the processor for which it has chosen kernels."""
    found = next(each for each in threadpool_info() if each["user_api"] == "blas" and "numpy" in each["filepath"])
    return f"{found['internal_api']} {found['version']} {found.get('architecture', '')}".strip()


def operands(n: int, dtype: str, data: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Square operands of order n."""
    rng = np.random.default_rng((n, seed))
    if data == "phi=4":
        return phi(4.0)(n, n, n, rng, np.dtype(dtype))
    pair = []
    for _ in range(2):
        x = rng.standard_normal((n, n))
        pair.append((x + 1j * rng.standard_normal((n, n)) if dtype.startswith("complex") else x).astype(dtype))
    return pair[0], pair[1]


def sampled_error(c: np.ndarray, a: np.ndarray, b: np.ndarray, count: int = 16) -> tuple[float, float]:
    """Largest error in ulps, and largest |error|/(|a||b|), over count² entries."""
    i = np.linspace(0, a.shape[0] - 1, min(count, a.shape[0])).astype(int)
    j = np.linspace(0, b.shape[1] - 1, min(count, b.shape[1])).astype(int)
    exact = exact_product(a[i], b[:, j])
    sample = c[np.ix_(i, j)]
    return float(exact.ulps(sample).max()), float((exact.error(sample) / exact.magnitude()).max())


def repeats_for(n: int, is_complex: bool) -> int:
    """Enough repetitions for a steady median in bounded time."""
    return int(np.clip(6e10 / n**3 / (4 if is_complex else 1), 3, 7))


def natives(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """NumPy's and torch's own product, each of the next operands at every call."""
    ours, theirs = itertools.cycle(pairs), itertools.cycle([tuple(map(torch.from_numpy, pair)) for pair in pairs])
    return {"numpy": lambda: np.matmul(*next(ours)), "torch": lambda: torch.matmul(*next(theirs))}


def fastest(products: dict[str, Any]) -> str:
    """Which of them takes the least time, of five calls in turns."""
    taken: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(6):
        for name, product in products.items():
            start = time.perf_counter()
            product()
            taken[name].append(time.perf_counter() - start)
    return min(taken, key=lambda name: sorted(taken[name][1:])[2])


def quiet_times(
    ours: Callable[[], Any], theirs: Callable[[], Any], threads: int, seconds: float
) -> dict[str, float] | None:
    """`interleaved` on free processors, and how many pairs were tried; None where no pair counts."""
    found = paired(ours, theirs, threads, seconds, MOST_PAIRS, PAUSE)
    if not found["ours"]:
        return None
    return {**compared(found["ours"], found["theirs"]), "tried": found["tried"]}


def measure(
    n: int, dtype: str, call: str, data: str, threads: int | None, quiet: float | None
) -> dict[str, Any] | None:
    """One row; None where no pair of calls counts."""
    pairs = [operands(n, dtype, data, seed) for seed in range(3)]
    a, b = pairs[0]
    following, keywords = itertools.cycle(pairs), CALLS[call] | ({"threads": threads} if threads else {})
    products = natives(pairs)
    native = fastest(products)

    def ours() -> Any:
        return prismm.matmul(*next(following), **keywords)

    if quiet:
        times = quiet_times(ours, products[native], threads or 1, quiet)
        if times is None:
            return None
    else:
        times = interleaved(ours, products[native], repeats_for(n, dtype[0] == "c"))
    c, report = prismm.matmul(a, b, full_output=True, **keywords)
    ulps, relative = sampled_error(c, a, b)
    numpy_ulps, numpy_relative = sampled_error(a @ b, a, b)
    return {
        "dtype": dtype, "data": data, "n": n, "call": call, "scheme": str(report.scheme), "engine": report.engine,
        "threads": report.plan.threads, "native": native, **times, "max_ulps": ulps, "numpy_max_ulps": numpy_ulps,
        "max_relative": relative, "numpy_max_relative": numpy_relative, "repaired": report.repaired,
    }  # fmt: skip


def main() -> None:
    """Measure all rows, print them, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="orders up to 1024 only")
    parser.add_argument("--dtypes", default="float64,float32,complex128,complex64", help="comma-separated types")
    parser.add_argument("--sizes", default="", help="comma-separated orders instead of the default")
    parser.add_argument("--threads", type=int, help="of all three; without it, as many as each takes by itself")
    parser.add_argument("--calls", default=",".join(CALLS), help="comma-separated ways to call")
    parser.add_argument("--quiet", type=float, metavar="SECONDS", help="of a row; only free processors count")
    parser.add_argument("--name", default="cpu_gemm", help="of the file of results")
    arguments = parser.parse_args()
    changed = [name for name in os.environ if name.startswith("OPENBLAS_") and name != "OPENBLAS_NUM_THREADS"]
    if changed:
        raise SystemExit(f"unset {', '.join(changed)}: NumPy's BLAS is to choose its kernels as it does for users")
    sizes = [int(s) for s in arguments.sizes.split(",")] if arguments.sizes else list(SIZES)
    if arguments.quick:
        sizes = [n for n in sizes if n <= 1024]
    cases = [
        (n, dtype, call, "normal")
        for dtype in arguments.dtypes.split(",")
        for n in sizes
        for call in arguments.calls.split(",")
        if not (dtype.startswith("complex") and n > 2048)
    ]
    if 1024 in sizes and "float64" in arguments.dtypes.split(","):
        cases.append((1024, "float64", "correctly-rounded", "phi=4"))
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        threadpool_limits(arguments.threads, user_api="blas")
    warm_up()
    rows, path = [], None
    common = {"blas": blas(), **machine()}
    for n, dtype, call, data in cases:
        row = measure(n, dtype, call, data, arguments.threads, arguments.quiet)
        if row is None:
            print(f"{dtype:10s} {data:6s} n={n:<5d} {call:18s} no processors were free", flush=True)
            continue
        rows.append({**row, **common})
        print(
            f"{dtype:10s} {data:6s} n={n:<5d} {call:18s} {row['ratio']:.3f} [{row['ratio_p20']:.3f}, "
            f"{row['ratio_p80']:.3f}]"
            f"  {row['ms']:.3f} ms  {row['max_ulps']:.3g} ulps (numpy {row['numpy_max_ulps']:.3g})  {row['scheme']}"
            f"  repaired {row['repaired']}  {row['repeats']} pairs",
            flush=True,
        )
        path = write(arguments.name, rows, ("dtype", "data", "n", "call", "threads"))
    print(path or "no row was measured")


if __name__ == "__main__":
    main()
