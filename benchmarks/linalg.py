"""Verified solutions beside conventional ones, and symmetric products beside whole ones: times, errors, proved bounds.

Run: python benchmarks/linalg.py [--device cpu|cuda] [--quick]; rows are printed as they come, and results/linalg.csv is
written after each. Rows of other devices stay there. ratio is the other's time over the call's: 0.125 is 8 times as
long.

- Products of random normal data are compared with the same scheme's whole product of two arrays (of a matrix and its
  own transpose NumPy multiplies a half, too), and on a GPU with cuBLAS's syrk. error and other_error are in the
  Frobenius norm, relative to the exact product, over sampled entries below the diagonal. bound_ratio is the worst error
  of them over what the accuracy allows, and rounded the share that is the exact value rounded.
- Solutions are compared with numpy.linalg.solve or torch.linalg.solve. The matrix is 1021·A, with A random normal
  numbers in integers of about 22 bits; b = Az with small integers z. So the solution is z/1021, which few float64 are.
  bound_ulps is the largest proved bound, correctly_rounded the share of components proved to be RN(exact), rounded the
  share that is. bound_ratio is the worst error over its bound, other_ulps the other's worst error.

On a CPU every call gets operands of its own, drawn anew. On a GPU every call finds its operands at another address than
the one before. A product's time is a quarter of that of four calls in a row, so the host prepares a call while the GPU
computes the one before; a solution's is that of one call on an idle GPU. --check fails if a GPU is too slow from
n = 4096 on. Required: whole products take 1.6 times as long, cuBLAS's syrk longer, 2.5 times in float32; solutions at
most 6 times as long as torch's, unproved ones twice.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from _common import interleaved, machine, warm_up, write

import prismm
import prismm.linalg
from prismm.testing import exact_product

SOLVES: dict[str, dict[str, Any]] = {
    "solve": {}, "solve, fast": {"accuracy": "fast"}, "solve, correctly rounded": {"accuracy": "correctly-rounded"},
}  # fmt: skip
PRODUCTS: dict[str, dict[str, Any]] = {
    "default": {}, "reproducible": {"reproducible": True}, "correctly rounded": {"accuracy": "correctly-rounded"},
}  # fmt: skip
KEY = "device", "call", "dtype", "n", "other", "cpu"
DENOMINATOR = 1021
"""Of the solutions' components."""
IN_A_ROW = 4
"""Products that a GPU is given at a time."""
COPIES = 3
"""Places of a GPU's memory at which operands lie in turn."""
SAMPLED = 12
"""Rows and columns whose entries are compared with exact ones."""
LONG = 4.0
"""Seconds from which on a GPU's call is timed once."""


def row(device: str, call: str, n: int, other: str, found: dict[str, float], **more: Any) -> dict[str, Any]:
    """A line of the table; what a call does not tell of stays empty."""
    empty = dict.fromkeys(
        ("bound_ulps", "correctly_rounded", "rounded", "bound_ratio", "other_ulps", "error", "other_error",
         "same_bits"), ""
    )  # fmt: skip
    made = {
        "device": device, "call": call, "dtype": more.pop("dtype", "float64"), "n": n, "other": other, **found,
        **empty, **more, **machine(),
    }  # fmt: skip
    print(device, call, made["dtype"], n, other, f"{made['ratio']:.3f}", f"{made['ms']:.3f} ms", flush=True)
    return made


# --- Exact values -----------------------------------------------------------------------------------------------------


def system(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a, b, z): the solution of ax = b is z/DENOMINATOR."""
    rng = np.random.default_rng(seed)
    a = np.rint(rng.standard_normal((n, n)) * 2.0**20)
    z = rng.integers(1, 2**13, n) * rng.choice([-1, 1], n)
    # Sums of integers below 2^53 are exact in any order.
    assert (np.abs(a) @ np.abs(z)).max() < 2.0**53
    return DENOMINATOR * a, a @ z, z


def judged(x: np.ndarray, z: np.ndarray, bounds: np.ndarray, plain: np.ndarray) -> dict[str, float]:
    """Of a solution x with bounds, and of another: what their distances from the exact one tell."""
    exact, right = [Fraction(int(i), DENOMINATOR) for i in z], z / DENOMINATOR
    ulp = np.spacing(np.abs(right))
    errors = [abs(Fraction(float(y)) - e) for y, e in zip(x, exact, strict=True)]
    others = [abs(Fraction(float(y)) - e) for y, e in zip(plain, exact, strict=True)]
    found = {"rounded": float((x == right).mean()), "other_ulps": _worst(others, ulp)}
    if np.isfinite(bounds).all():
        found |= {"bound_ulps": float(np.max(bounds / ulp)), "bound_ratio": _worst(errors, bounds)}
    return found


def _worst(errors: list[Fraction], units: np.ndarray) -> float:
    """The largest of the quotients; of an error 0 it is 0."""
    return max(float(e / Fraction(float(unit))) if e else 0.0 for e, unit in zip(errors, units, strict=True))


class Sample:
    """Exact entries of x·xᵀ, or turned of xᵀ·x, below the diagonal.

    Attributes:
        rows, columns: where they stand.
        exact: their values.
        terms: the inner dimension.
    """

    def __init__(self, x: np.ndarray, turned: bool) -> None:
        n = x.shape[1 if turned else 0]
        rng = np.random.default_rng(n)
        self.rows = rng.integers(n // 2, n, SAMPLED)
        self.columns = rng.integers(0, n // 2, SAMPLED)
        left, right = (x[:, self.rows].T, x[:, self.columns]) if turned else (x[self.rows], x[self.columns].T)
        self.exact = exact_product(np.ascontiguousarray(left), np.ascontiguousarray(right))
        self.terms = left.shape[1]

    def entries(self, product: Any) -> np.ndarray:
        """Those of a product, an array or a tensor."""
        found = product[self.rows][:, self.columns]
        return found if isinstance(found, np.ndarray) else found.cpu().numpy()

    def error(self, product: Any) -> float:
        """Relative, in the Frobenius norm."""
        errors, right = self.exact.error(self.entries(product)), self.exact.rounded(np.float64)
        return float(np.linalg.norm(errors) / np.linalg.norm(right))

    def judged(self, product: Any, correct: bool) -> dict[str, float]:
        """Of a product whose target is correct rounding, or native."""
        found = self.entries(product)
        allowed = np.finfo(found.dtype).eps / 2 * self.terms * self.exact.magnitude("down")
        ratio = self.exact.ulps(found) / 0.5 if correct else self.exact.error(found) / allowed
        return {
            "error": self.error(product), "bound_ratio": float(ratio.max()),
            "rounded": float((found == self.exact.rounded(found.dtype)).mean()),
        }  # fmt: skip


# --- On a CPU ---------------------------------------------------------------------------------------------------------


def on_cpu(
    ours: Callable[[Any], Any], theirs: Callable[[Any], Any], repeats: int, operands: Iterator[Any]
) -> dict[str, float]:
    """Times of both, with new operands in every call."""
    held = [next(operands)]

    def renew() -> None:
        held[0] = next(operands)

    found = interleaved(lambda: ours(held[0]), lambda: theirs(held[0]), repeats, renew)
    return {("other_ms" if key == "numpy_ms" else key): value for key, value in found.items()}


def solves(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    a, b, z = system(n, n)
    plain = np.linalg.solve(a, b)
    for name, keywords in SOLVES.items():
        x, report = prismm.linalg.solve(a, b, full_output=True, **keywords)
        found = on_cpu(
            lambda x, keywords=keywords: prismm.linalg.solve(*x[:2], **keywords), lambda x: np.linalg.solve(*x[:2]),
            repeats, (system(n, seed) for seed in itertools.count(n + 1)),
        )  # fmt: skip
        yield row(
            "cpu", name, n, "numpy.linalg.solve", found, **judged(x, z, report.bounds, plain),
            correctly_rounded=float(report.correctly_rounded.mean()),
        )  # fmt: skip


def pairs(n: int, dtype: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Matrices of random normal numbers, each with its copy."""
    rng = np.random.default_rng(n)
    while True:
        a = rng.standard_normal((n, n)).astype(dtype)
        yield a, a.copy()


def products(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    for dtype, (name, keywords) in itertools.product((np.float64, np.float32), PRODUCTS.items()):
        operands = pairs(n, dtype)
        first = next(operands)
        sample = Sample(first[0], True)

        def call(x: tuple[np.ndarray, np.ndarray], keywords: dict[str, Any] = keywords) -> Any:
            return prismm.linalg.gram(x[0], **keywords)

        def whole(x: tuple[np.ndarray, np.ndarray], keywords: dict[str, Any] = keywords) -> Any:
            return prismm.gemm(*x, trans_a="T", **keywords)

        mine, theirs = call(first), whole(first)
        assert np.array_equal(mine, mine.T), name
        yield row(
            "cpu", f"gram, {name}", n, "whole product", on_cpu(call, whole, repeats, operands),
            dtype=np.dtype(dtype).name, same_bits=np.array_equal(np.tril(mine), np.tril(theirs)),
            other_error=sample.error(theirs), **sample.judged(mine, name == "correctly rounded"),
        )  # fmt: skip


# --- On a GPU ---------------------------------------------------------------------------------------------------------


def on_gpu(ways: list[Callable[[], Any]], repeats: int, in_a_row: int) -> list[list[float]]:
    """Milliseconds of a call of each way, in turn, on the device's clock.

    Args:
        repeats: turns; each begins with a call that is not timed.
        in_a_row: calls between two readings of the clock.
    """
    import torch

    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, taken in zip(ways, times, strict=True):
            way()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(in_a_row):
                way()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / in_a_row)
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
    data = np.random.default_rng(n).standard_normal((n, n))
    for dtype, verb in itertools.product((np.float64, np.float32), ("gram", "syrk")):
        turned, kind = verb == "gram", np.dtype(dtype).name
        sample = Sample(data.astype(dtype), turned)
        x = torch.from_numpy(data.astype(dtype)).cuda()
        a, b, out = in_turn(x), in_turn(x), torch.empty_like(x)
        flags = {"trans_a": "T"} if turned else {"trans_b": "T"}
        multiply = getattr(prismm.linalg, verb)
        for name, keywords in PRODUCTS.items():
            ways = [
                lambda k=keywords, f=multiply, a=a: f(a(), **k),
                lambda k=keywords, f=flags, a=a, b=b: prismm.gemm(a(), b(), **f, **k),
                lambda a=a, out=out, turned=turned: cublas_syrk(a(), out, turned),
            ]
            mine, whole = ways[0](), ways[1]()
            assert torch.equal(mine, mine.mT), (verb, name)
            ours, theirs, blas = on_gpu(ways, repeats, IN_A_ROW)
            more = {"dtype": kind, **sample.judged(mine, name == "correctly rounded")}
            yield row(
                device, f"{verb}, {name}", n, "whole product", compared(ours, theirs), **more,
                same_bits=torch.equal(torch.tril(mine), torch.tril(whole)), other_error=sample.error(whole),
            )  # fmt: skip
            # By columns cuBLAS's triangle is the other one.
            yield row(
                device, f"{verb}, {name}", n, "cuBLAS syrk", compared(ours, blas), **more,
                other_error=sample.error(out),
            )  # fmt: skip


def gpu_solves(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    import torch

    matrix, right, z = system(n, n)
    x, y = torch.from_numpy(matrix).cuda(), torch.from_numpy(right[:, None]).cuda()
    a, b = in_turn(x), in_turn(y)
    plain = torch.linalg.solve(x, y).cpu().numpy()
    for name, keywords in SOLVES.items():
        start = time.perf_counter()
        solution, report = prismm.linalg.solve(x, y, full_output=True, **keywords)
        ways = [
            lambda k=keywords: prismm.linalg.solve(a(), b(), **k), lambda: torch.linalg.solve(a(), b()),
        ]  # fmt: skip
        ours, theirs = on_gpu(ways, 1 if time.perf_counter() - start > LONG else repeats, 1)
        yield row(
            torch.cuda.get_device_name(), name, n, "torch.linalg.solve", compared(ours, theirs),
            **judged(solution.cpu().numpy()[:, 0], z, np.asarray(report.bounds)[:, 0], plain[:, 0]),
            correctly_rounded=float(np.asarray(report.correctly_rounded).mean()),
        )  # fmt: skip


def missed(found: dict[str, Any]) -> bool:
    """Whether a GPU's row misses the required ratio."""
    if found["other"] == "whole product":
        return bool(found["ratio"] < 1.6)
    if found["other"] == "cuBLAS syrk":
        return bool(found["ratio"] < (2.5 if (found["dtype"], found["call"][6:]) == ("float32", "default") else 1.0))
    return bool(found["ratio"] < (0.5 if found["call"] == "solve, fast" else 1.0 / 6.0))


def measured(device: str, quick: bool) -> Iterator[dict[str, Any]]:
    """The rows of a device."""
    if device == "cuda":
        for n in (600,) if quick else (4096, 8192):
            yield from gpu_products(n, 1 if quick else 7)
        yield from gpu_solves(300 if quick else 8192, 1 if quick else 3)
        return
    warm_up(0.1 if quick else 3.0)
    for n in (200,) if quick else (500, 1000, 2000):
        yield from solves(n, 1 if quick else 5)
    for n in (200,) if quick else (1024, 2048, 4096):
        yield from products(n, 1 if quick else (3 if n > 2048 else 5))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for found in measured(asked.device, asked.quick):
        rows.append(found)
        if not asked.quick:
            write("linalg", rows, KEY)
    late = [x for x in rows if asked.check and x["device"] != "cpu" and missed(x)]
    for x in late:
        print("missed:", x["call"], x["dtype"], x["n"], x["other"], f"{x['ratio']:.3f}")
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
