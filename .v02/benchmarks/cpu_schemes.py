"""Every composite scheme on this CPU: time as a multiple of NumPy's GEMM of the same type, error beside it.

Run: python benchmarks/cpu_schemes.py [--n 1024]; writes results/cpu_schemes.csv. Random normal data; the scheme's own
value, and certified to "native".
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from _common import interleaved, machine, warm_up, write

import prismm
from prismm.metrics import relative_frobenius
from prismm.schemes.baselines import QuanTensor, egemm, markidis

SCHEMES: dict[str, list[Any]] = {
    "float32": [
        prismm.Words.tf32(3), prismm.Words.tf32(4), prismm.Words.bf16(6), prismm.Words.bf16(9), prismm.ScaledHalf(),
        prismm.ScaledHalf(order="element"), prismm.TileInt8(), prismm.TileInt8(level=5), prismm.Slices("fp16", "SP"),
        QuanTensor(), markidis(), egemm(),
    ],
    "float64": [
        prismm.Words.tf64(3), prismm.Slices("int8", "DP", slices=7, fast=True), prismm.Slices("int8", "DP", fast=True),
        prismm.Slices("int8", "CR"), prismm.Slices("fp16", "DP", fast=True), prismm.Slices("fp16", "CR"),
        prismm.Slices("bf16", "DP", fast=True), prismm.Slices("fp16-fp16", "DP", fast=True),
        prismm.Slices("fp32-fp64", "DP", fast=True), prismm.Slices("fp64", "DP", fast=True),
    ],
}  # fmt: skip


def main() -> None:
    """Measure all rows, print them, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1024, help="order of the matrices")
    n = parser.parse_args().n
    rng = np.random.default_rng(n)
    warm_up()
    common = machine()
    rows = []
    for dtype, schemes in SCHEMES.items():
        a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in range(2))
        truth = prismm.matmul(a, b, accuracy="correctly-rounded", out_dtype="float64")
        native = relative_frobenius((a @ b).astype(np.float64), truth)
        for scheme in schemes:
            for accuracy in (None, "native"):

                def call(scheme: Any = scheme, accuracy: Any = accuracy, a: Any = a, b: Any = b) -> Any:
                    return prismm.matmul(a, b, scheme=scheme, accuracy=accuracy)

                times = interleaved(call, lambda a=a, b=b: a @ b, 3)  # type: ignore[misc]
                c, report = prismm.matmul(a, b, scheme=scheme, accuracy=accuracy, full_output=True)
                row = {
                    "dtype": dtype, "n": n, "scheme": str(scheme), "accuracy": str(accuracy), "engine": report.engine,
                    "products": report.products, "times_native": 1.0 / times["ratio"], "ms": times["ms"],
                    "numpy_ms": times["numpy_ms"], "error": relative_frobenius(c.astype(np.float64), truth),
                    "numpy_error": native, "repaired": report.repaired, "repeats": times["repeats"],
                }  # fmt: skip
                rows.append({**row, **common})
                print(
                    f"{dtype} {row['times_native']:6.1f}x {row['ms']:8.1f} ms  error {row['error']:.2e} "
                    f"(numpy {native:.2e})  {row['products']:3d} products  {accuracy}  {scheme}",
                    flush=True,
                )
                path = write("cpu_schemes", rows, ("dtype", "n", "scheme", "accuracy"))
    print(path)


if __name__ == "__main__":
    main()
