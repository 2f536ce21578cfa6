"""Residues on this GPU's own FP8 units beside INT8 units and cuBLAS: time, error, and the bits of hostile entries.

Claim: on a real card no bit of a product differs between FP8 and INT8 products of residues, for every family of
`prismm.testing.HOSTILE`, ragged shapes, float64, float32 and complex128, the scheme's own value and correctly rounded.
On Hopper, whose FP8 sums keep 14 bits, every instruction's sum is read by itself, so the time says what that costs.

Run: python benchmarks/fp8_gpu.py [--sizes 4096] [--seconds 500]; writes results/fp8_gpu.csv, or $OUT/fp8_gpu.csv where
OUT is set. A row of what="seconds" has medians of three calls after untimed ones, by CUDA events, and errors of a
sample in the Frobenius norm; one of what="bits" counts real entries over all families of a shape. Needs a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from _common import RESULTS, machine, write
from gpu_gemm import phases, sampled

import prismm
from prismm.cuda.costs.calibrate import fp8_rate, seconds_of
from prismm.cuda.device import FP8, INT8, device_of
from prismm.cuda.residues import fp8, fp8_proof
from prismm.testing import HOSTILE

TIMED = (("float64", 14), ("float32", 7))
CASES = (
    ("float64", 14, None), ("float64", 20, "correctly-rounded"), ("float32", 7, None),
    ("float32", 11, "correctly-rounded"), ("complex128", 15, None),
)  # fmt: skip
SHAPES = ((128, 512, 128), (33, 700, 65), (257, 1031, 131), (1, 4097, 130), (300, 45, 7))
"""m, k and n: whole tiles, ragged ones, an inner dimension of several blocks, a row, and narrow ones."""

WARM, REPEATS, SEED = 5, 3, 20260101

KEY = ("what", "dtype", "moduli", "accuracy", "m", "k", "n", "gpu")


def facts() -> dict[str, Any]:
    """Columns of every row that say where it was made."""
    index = torch.cuda.current_device()
    return {
        "gpu": torch.cuda.get_device_name(index), "sum_bits": device_of(index).fp8_sum_bits,
        "digits_up_to": fp8.family_for(device_of(index)).largest, "triton": triton.__version__,
        "cuda": torch.version.cuda, **machine(),
    }  # fmt: skip


def row_of(
    what: str, dtype: str, moduli: int, accuracy: str, shape: tuple[int, int, int], **found: Any
) -> dict[str, Any]:
    """A row of the table; what it does not have stays empty."""
    m, k, n = shape
    names = (
        "products", "families", "entries", "different", "fp8_ms", "int8_ms", "cublas_ms", "fp8_tflops",
        "product_tops", "fp8_error", "int8_error", "cublas_error", "fp8_phases_ms", "seconds",
    )  # fmt: skip
    key = {"what": what, "dtype": dtype, "moduli": moduli, "accuracy": accuracy, "m": m, "k": k, "n": n}
    return {**key, **{name: found.get(name, "") for name in names}, **facts()}


def times(n: int, dtype: str, moduli: int) -> dict[str, Any]:
    """A product of n x n matrices whole, by FP8, by INT8 and by cuBLAS in turn."""
    torch.manual_seed(n)
    a, b = (torch.randn(n, n, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    *outs, native = (torch.empty_like(a) for _ in range(3))
    forms: list[dict[str, Any]] = [
        {"scheme": prismm.Residues(moduli), "accuracy": "native", "engine": engine} for engine in (FP8, INT8)
    ]
    calls = [partial(prismm.matmul, a, b, out=out, **form) for out, form in zip(outs, forms, strict=True)]
    calls.append(partial(torch.mm, a, b, out=native))
    for call in calls * WARM:
        call()
    rounds = [[seconds_of(call) for call in calls] for _ in range(REPEATS)]
    ours, int8, cublas = (1e3 * statistics.median(one) for one in zip(*rounds, strict=True))
    found, other = (x.view(torch.uint8) for x in outs)
    errors = [sampled(out, a, b) for out in (*outs, native)]
    return row_of(
        "seconds", dtype, moduli, "native", (n, n, n), products=prismm.explain(a, b, **forms[0]).products,
        entries=n * n, different=int((found != other).view(n * n, -1).any(1).sum()), fp8_ms=ours, int8_ms=int8,
        cublas_ms=cublas, fp8_tflops=2e-9 * n**3 / ours,
        product_tops=1e-12 * fp8_rate(torch.cuda.get_device_properties(0).multi_processor_count),
        fp8_error=errors[0], int8_error=errors[1], cublas_error=errors[2], fp8_phases_ms=phases(a, b, **forms[0]),
    )  # fmt: skip


def bits(shape: tuple[int, int, int], dtype: str, moduli: int, accuracy: str | None) -> dict[str, Any]:
    """How many real entries of all families differ between FP8 and INT8; NaN is NaN."""
    start, entries, different = time.perf_counter(), 0, 0
    options: dict[str, Any] = {"scheme": prismm.Residues(moduli)} | ({"accuracy": accuracy} if accuracy else {})
    for name, generate in HOSTILE.items():
        a, b = (torch.from_numpy(x).cuda() for x in generate(*shape, SEED, np.dtype(dtype)))
        found, expected = (prismm.matmul(a, b, engine=engine, **options).cpu().numpy() for engine in (FP8, INT8))
        real = expected.real.dtype
        words = [np.ascontiguousarray(x).view(real).view(f"u{real.itemsize}") for x in (found, expected)]
        nans = [np.isnan(np.ascontiguousarray(x).view(real)) for x in (found, expected)]
        wrong = int(((words[0] != words[1]) & ~(nans[0] & nans[1])).sum())
        if wrong:
            print(f"{wrong} entries of {name} differ: {dtype} {moduli} {accuracy} {shape}", file=sys.stderr)
        entries, different = entries + words[0].size, different + wrong
    return row_of(
        "bits", dtype, moduli, accuracy or "the scheme's own", shape, families=len(HOSTILE), entries=entries,
        different=different, seconds=time.perf_counter() - start,
    )  # fmt: skip


def main() -> None:
    """Prove, time, compare, and write a row after each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4096")
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no further case after so many")
    options = parser.parse_args()
    begin, folder, rows = time.perf_counter(), Path(os.environ.get("OUT") or RESULTS), []
    fp8_proof.prove(device_of(0), 0)
    print(f"proved exact on extreme digits, {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    work = [
        *((times, (n, *case)) for n in map(int, options.sizes.split(",")) for case in TIMED),
        *((bits, (shape, *case)) for case in CASES for shape in SHAPES),
    ]  # fmt: skip
    for step, arguments in work:
        if time.perf_counter() - begin > options.seconds:
            print("out of time", file=sys.stderr)
            break
        rows.append(step(*arguments))
        write("fp8_gpu", rows, KEY, folder)
        print({key: value for key, value in list(rows[-1].items())[:21] if value != ""}, file=sys.stderr, flush=True)
    total, wrong = (sum(row[x] for row in rows if row["what"] == "bits") for x in ("entries", "different"))
    print(f"{total} hostile entries, {wrong} of them differ; {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    assert not any(row["different"] for row in rows)


if __name__ == "__main__":
    main()
