"""Verified solutions beside numpy.linalg.solve, and symmetric products beside whole ones: times, and proved bounds.

Run: python benchmarks/linalg.py [--quick]; writes results/linalg.csv. Random normal data. ratio is NumPy's time, or
that of the whole product, over the time of the call: 0.125 is 8 times as long. The whole product is of two arrays:
of a matrix and its own transpose NumPy multiplies a half, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import interleaved, machine, warm_up, write

import prismm
import prismm.linalg

SOLVES: dict[str, dict[str, Any]] = {
    "solve": {}, "solve, correctly rounded": {"accuracy": "correctly-rounded"}, "solve, fast": {"accuracy": "fast"},
}  # fmt: skip
PRODUCTS: dict[str, dict[str, Any]] = {
    "gram, default": {}, "gram, reproducible": {"reproducible": True},
    "gram, correctly rounded": {"accuracy": "correctly-rounded"},
}  # fmt: skip


def solves(n: int, repeats: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    rows = []
    for name, keywords in SOLVES.items():
        x, report = prismm.linalg.solve(a, b, full_output=True, **keywords)
        found = interleaved(
            lambda keywords=keywords: prismm.linalg.solve(a, b, **keywords), lambda: np.linalg.solve(a, b), repeats
        )
        plain = np.abs(np.linalg.solve(a, b) - x) / np.spacing(np.abs(x))
        rows.append({
            "call": name, "n": n, **found, "bound_ulps": float(np.max(report.bounds / np.spacing(np.abs(x)))),
            "correctly_rounded": float(report.correctly_rounded.mean()), "numpy_ulps": float(np.max(plain)),
            "same_bits": "",
        })  # fmt: skip
    return rows


def products(n: int, repeats: int) -> list[dict[str, Any]]:
    a = np.random.default_rng(n).standard_normal((n, n))
    other = a.copy()
    rows = []
    for name, keywords in PRODUCTS.items():
        call: Callable[[], Any] = lambda keywords=keywords: prismm.linalg.gram(a, **keywords)  # noqa: E731
        found = interleaved(call, lambda keywords=keywords: prismm.gemm(a, other, trans_a="T", **keywords), repeats)
        same = np.array_equal(np.tril(call()), np.tril(prismm.gemm(a, a, trans_a="T", **keywords)))
        rows.append({
            "call": name, "n": n, **found, "bound_ulps": "", "correctly_rounded": "", "numpy_ulps": "",
            "same_bits": same,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warm_up(0.1 if quick else 3.0)
    sizes, large, repeats = ((200,), (), 1) if quick else ((500, 1000, 2000), (4096,), 5)
    found = [row for n in sizes for row in (*solves(n, repeats), *products(n, repeats))]
    rows = [{**row, **machine()} for row in (*found, *(row for n in large for row in products(n, 3)))]
    for row in rows:
        print(row["call"], row["n"], f"{row['ratio']:.3f}", f"{row['ms']:.1f} ms", row["bound_ulps"])
    if not quick:
        write("linalg", rows, ("call", "n", "cpu"))


if __name__ == "__main__":
    main()
