"""Verified solutions beside conventional ones, and symmetric products beside whole ones: times, errors, proved bounds.

Run: python benchmarks/linalg.py [--device cpu|cuda] [--quick]; writes results/linalg.csv. Random normal data. ratio is
the other's time over the call's: 0.125 is 8 times as long. On a CPU solutions are compared with numpy.linalg.solve, on
a GPU with torch.linalg.solve; products with the same scheme's whole product of two arrays (of a matrix and its own
transpose NumPy multiplies a half, too), and on a GPU with cuBLAS's syrk. On a GPU every call finds its operands at
another address than the one before. Errors of products are in the Frobenius norm, relative to the correctly rounded
product.

--check fails if a GPU is too slow from n = 4096 on. Required: whole products take 1.6 times as long, cuBLAS's syrk
longer, 2.5 times in float32; solutions at most 6 times as long as torch's, unproved ones twice.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _common import interleaved, machine, warm_up, write

import prismm
import prismm.linalg

SOLVES: dict[str, dict[str, Any]] = {
    "solve": {}, "solve, correctly rounded": {"accuracy": "correctly-rounded"}, "solve, fast": {"accuracy": "fast"},
}  # fmt: skip
PRODUCTS: dict[str, dict[str, Any]] = {
    "default": {}, "reproducible": {"reproducible": True}, "correctly rounded": {"accuracy": "correctly-rounded"},
}  # fmt: skip
KEY = "device", "call", "dtype", "n", "other", "cpu"
COPIES = 3
"""Places of a GPU's memory at which operands lie in turn."""


def row(device: str, call: str, n: int, other: str, found: dict[str, float], **more: Any) -> dict[str, Any]:
    """A line of the table; what a call does not tell of stays empty."""
    empty = dict.fromkeys(
        ("bound_ulps", "correctly_rounded", "other_ulps", "error", "other_error", "same_bits"), ""
    )  # fmt: skip
    made = {
        "device": device, "call": call, "dtype": more.pop("dtype", "float64"), "n": n, "other": other, **found,
        **empty, **more, **machine(),
    }  # fmt: skip
    print(device, call, made["dtype"], n, other, f"{made['ratio']:.3f}", f"{made['ms']:.3f} ms", flush=True)
    return made


# --- On a CPU ---------------------------------------------------------------------------------------------------------


def on_cpu(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> dict[str, float]:
    found = interleaved(ours, theirs, repeats)
    return {("other_ms" if key == "numpy_ms" else key): value for key, value in found.items()}


def solves(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    for name, keywords in SOLVES.items():
        x, report = prismm.linalg.solve(a, b, full_output=True, **keywords)
        found = on_cpu(
            lambda keywords=keywords: prismm.linalg.solve(a, b, **keywords), lambda: np.linalg.solve(a, b), repeats
        )
        plain = np.abs(np.linalg.solve(a, b) - x) / np.spacing(np.abs(x))
        yield row(
            "cpu", name, n, "numpy.linalg.solve", found,
            bound_ulps=float(np.max(report.bounds / np.spacing(np.abs(x)))),
            correctly_rounded=float(report.correctly_rounded.mean()), other_ulps=float(np.max(plain)),
        )  # fmt: skip


def products(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    a = np.random.default_rng(n).standard_normal((n, n))
    other = a.copy()
    for name, keywords in PRODUCTS.items():
        call: Callable[[], Any] = lambda keywords=keywords: prismm.linalg.gram(a, **keywords)  # noqa: E731
        found = on_cpu(call, lambda keywords=keywords: prismm.gemm(a, other, trans_a="T", **keywords), repeats)
        same = np.array_equal(np.tril(call()), np.tril(prismm.gemm(a, a, trans_a="T", **keywords)))
        yield row("cpu", f"gram, {name}", n, "whole product", found, same_bits=same)


# --- On a GPU ---------------------------------------------------------------------------------------------------------


def on_gpu(ways: list[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """Milliseconds of each way, in turn, on the device's clock; each turn begins with a call that is not timed."""
    import torch

    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, taken in zip(ways, times, strict=True):
            way()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            way()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
    return times


def compared(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """As of `interleaved`."""
    ratios = sorted(y / x for x, y in zip(ours, theirs, strict=True))
    return {
        "ratio": statistics.median(ratios), "ratio_p20": ratios[int(0.2 * (len(ratios) - 1))],
        "ratio_p80": ratios[int(0.8 * (len(ratios) - 1))], "ms": statistics.median(ours),
        "other_ms": statistics.median(theirs), "repeats": len(ours),
    }  # fmt: skip


def in_turn(x: Any) -> Callable[[], Any]:
    """The tensor, each time at another place."""
    places = itertools.cycle([x.clone() for _ in range(COPIES)])
    return lambda: next(places)


def cublas_syrk(x: Any, out: Any, turned: bool) -> None:
    """One triangle of x·xᵀ, or of xᵀ·x, by cuBLAS's own syrk on the current stream; x by rows."""
    import torch

    from prismm.cuda.launch import cublas

    handle = _handle()
    library, real = cublas._library(), ctypes.c_double if x.dtype == torch.float64 else ctypes.c_float
    letter = "D" if x.dtype == torch.float64 else "S"
    rows, columns = x.shape
    # By columns x is its transpose.
    n, k, flag = (columns, rows, 0) if turned else (rows, columns, 1)
    one, nothing = real(1.0), real(0.0)
    cublas._check(library.cublasSetStream_v2(handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
    syrk, addresses = library[f"cublas{letter}syrk_v2"], (ctypes.c_void_p(z.data_ptr()) for z in (x, out))
    place, target = addresses
    cublas._check(
        syrk(handle, 1, flag, n, k, ctypes.byref(one), place, columns, ctypes.byref(nothing), target, n)
    )  # fmt: skip


_HANDLES: list[Any] = []


def _handle() -> Any:
    from prismm.cuda.launch import cublas

    if not _HANDLES:
        _HANDLES.append(cublas._new_handle())
    return _HANDLES[0]


def gpu_products(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    import torch

    device = torch.cuda.get_device_name()
    for dtype, verb in itertools.product((torch.float64, torch.float32), ("gram", "syrk")):
        x = torch.from_numpy(np.random.default_rng(n).standard_normal((n, n))).to("cuda", dtype)
        a, b, out = in_turn(x), in_turn(x), torch.empty_like(x)
        flags = {"trans_a": "T"} if verb == "gram" else {"trans_b": "T"}
        multiply = getattr(prismm.linalg, verb)
        correct = multiply(x, accuracy="correctly-rounded")
        size = torch.linalg.norm(correct.double())

        def error(found: Any, correct: Any = correct, size: Any = size) -> float:
            return float(torch.linalg.norm(torch.tril(found.double() - correct.double())) / size)

        for name, keywords in PRODUCTS.items():
            ways = [
                lambda k=keywords, f=multiply, a=a: f(a(), **k),
                lambda k=keywords, f=flags, a=a, b=b: prismm.gemm(a(), b(), **f, **k),
                lambda a=a, out=out, verb=verb: cublas_syrk(a(), out, verb == "gram"),
            ]
            ours, whole, blas = on_gpu(ways, repeats)
            found, other = ways[0](), ways[1]()
            ways[2]()
            same = torch.equal(torch.tril(found), torch.tril(other))
            assert torch.equal(found, found.mT), (verb, name)
            more = {"dtype": str(dtype).removeprefix("torch."), "error": error(found)}
            call = f"{verb}, {name}"
            yield row(
                device,
                call,
                n,
                "whole product",
                compared(ours, whole),
                same_bits=same,
                other_error=error(other),
                **more,
            )
            # By columns the triangle is the other one.
            yield row(device, call, n, "cuBLAS syrk", compared(ours, blas), other_error=error(out), **more)


def gpu_solves(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    import torch

    rng = np.random.default_rng(n)
    x, y = (torch.from_numpy(rng.standard_normal(shape)).cuda() for shape in ((n, n), (n, 1)))
    a, b = in_turn(x), in_turn(y)
    plain = torch.linalg.solve(x, y).cpu().numpy()
    for name, keywords in SOLVES.items():
        solution, report = prismm.linalg.solve(x, y, full_output=True, **keywords)
        ways = [
            lambda k=keywords: prismm.linalg.solve(a(), b(), **k), lambda: torch.linalg.solve(a(), b()),
        ]  # fmt: skip
        ours, theirs = on_gpu(ways, repeats)
        right = solution.cpu().numpy()
        ulp = np.spacing(np.abs(right))
        yield row(
            torch.cuda.get_device_name(), name, n, "torch.linalg.solve", compared(ours, theirs),
            bound_ulps=float(np.max(np.asarray(report.bounds) / ulp)),
            correctly_rounded=float(np.asarray(report.correctly_rounded).mean()),
            other_ulps=float(np.max(np.abs(plain - right) / ulp)),
        )  # fmt: skip


def missed(found: dict[str, Any]) -> bool:
    """Whether a GPU's row misses the required ratio."""
    if found["other"] == "whole product":
        return bool(found["ratio"] < 1.6)
    if found["other"] == "cuBLAS syrk":
        return bool(found["ratio"] < (2.5 if (found["dtype"], found["call"][6:]) == ("float32", "default") else 1.0))
    return bool(found["ratio"] < (0.5 if found["call"] == "solve, fast" else 1.0 / 6.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    quick, rows = asked.quick, list[dict[str, Any]]()
    if asked.device == "cuda":
        for n in (600,) if quick else (4096, 8192):
            rows += gpu_products(n, 1 if quick else 7)
        rows += gpu_solves(300 if quick else 8192, 1 if quick else 3)
    else:
        warm_up(0.1 if quick else 3.0)
        sizes, large, repeats = ((200,), (), 1) if quick else ((500, 1000, 2000), (4096,), 5)
        for n in sizes:
            rows += [*solves(n, repeats), *products(n, repeats)]
        for n in large:
            rows += products(n, 3)
    if not quick:
        write("linalg", rows, KEY)
    late = [x for x in rows if asked.check and x["device"] != "cpu" and missed(x)]
    for x in late:
        print("missed:", x["call"], x["dtype"], x["n"], x["other"], f"{x['ratio']:.3f}")
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
