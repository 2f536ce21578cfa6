"""What data cost at worst: the time of a product as a multiple of normal data's of the same shape, type and call.

Run: python benchmarks/wide_data.py [--n 512 1024] [--device cpu] [--threads 1] [--dtype float32] [--gemm]
[--calls default] [--check]; writes results/wide_data_cpu.csv (or wide_data_cuda.csv; wide_data_cpu_float32.csv and
others of other types), with what `prismm.explain` predicts of products. All families of `prismm.testing.HOSTILE`,
widths φ from 1 to 8, exponents uniform in ±20, ±200 and ±500, subnormal operands and results, cancelling pairs,
Hilbert, Vandermonde and Kahan's matrices times their inverses, banded and sparse ones; of other types those that the
type's range holds. --check fails where a family takes more than the law allows: 8 times normal data's time from
n = 1024 on, 15 times below, 3 in the median. --gemm: of sums ¾·AB - ¾·C, where C is AB as the type has it, each entry
times a number between ½ and 1, so that bits cancel.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import machine, warm_up, write
from numpy.typing import NDArray

import prismm
from prismm.testing import HOSTILE, phi

Pair = tuple[NDArray[Any], NDArray[Any]]

CALLS: dict[str, dict[str, Any]] = {
    "correctly-rounded": {"accuracy": "correctly-rounded"},
    "reproducible": {"reproducible": True},
    "default": {},
}


IN_A_ROW = 4
"""Calls that a GPU is given at a time."""


def spread(n: int, rng: np.random.Generator, binades: int) -> Pair:
    """Normal numbers times powers of two, uniform in ± so many binades."""
    shape = (2, n, n)
    a, b = rng.standard_normal(shape) * 2.0 ** rng.integers(-binades, binades + 1, shape)
    return a, b


def scaled(n: int, rng: np.random.Generator, left: float, right: float) -> Pair:
    """Normal numbers times powers of two."""
    return rng.standard_normal((n, n)) * left, rng.standard_normal((n, n)) * right


def sparse(n: int, rng: np.random.Generator, one_in: int) -> Pair:
    """Normal numbers, one element in so many."""
    a, b = rng.standard_normal((2, n, n)) * (rng.random((2, n, n)) < 1.0 / one_in)
    return a, b


def banded(n: int, rng: np.random.Generator) -> Pair:
    """Normal numbers on the diagonal and eight diagonals at each side."""
    a, b = (np.triu(np.tril(rng.standard_normal((n, n)), 8), -8) for _ in range(2))
    return a, b


def pairs(n: int, rng: np.random.Generator) -> Pair:
    """Terms that cancel in pairs, but for 2^-40 of half of them."""
    a, b = rng.standard_normal((2, n, n))
    a[:, 1::2], b[1::2] = a[:, ::2], -b[::2]
    return a, b * (1.0 + 2.0**-40 * rng.integers(0, 2, (n, n)))


def hilbert(n: int, rng: np.random.Generator) -> Pair:
    """Hilbert's matrix and its pseudo-inverse."""
    i = np.arange(n)
    a = 1.0 / (i[:, None] + i[None, :] + 1)
    return a, np.linalg.pinv(a)


def hilbert_by_inverse(n: int, rng: np.random.Generator) -> Pair:
    """Hilbert's matrix and what LU factors have for its inverse."""
    a, _ = hilbert(n, rng)
    return a, np.linalg.inv(a)


def vandermonde(n: int, rng: np.random.Generator) -> Pair:
    """Vandermonde's matrix of even points from -1 to 1, and its inverse."""
    a = np.vander(np.linspace(-1.0, 1.0, n))
    return a, np.linalg.inv(a)


def kahan(n: int, rng: np.random.Generator) -> Pair:
    """Kahan's matrix of angle 1.2, and its inverse."""
    a = np.diag(np.sin(1.2) ** np.arange(n)) @ (np.eye(n) - np.cos(1.2) * np.triu(np.ones((n, n)), 1))
    return a, np.linalg.inv(a)


def of_type(make: Callable[..., Pair], n: int, dtype: np.dtype[Any]) -> Pair:
    """Operands of a type; of complex ones each row, or column, has a phase of its own."""
    rng = np.random.default_rng(n)
    a, b = make(n, rng)
    with np.errstate(over="ignore", under="ignore"):
        if dtype.kind == "c":
            a, b = a * np.exp(2j * np.pi * rng.random((n, 1))), b * np.exp(2j * np.pi * rng.random((1, n)))
        return a.astype(dtype), b.astype(dtype)


def families(n: int, dtype: np.dtype[Any] | None = None) -> dict[str, Callable[[], Pair]]:
    """Operands of a type, float64 by default, by name, made when they are called; normal data first."""
    dtype = np.dtype(np.float64) if dtype is None else dtype
    found: dict[str, Callable[[], Pair]] = {
        name: lambda make=make: make(n, n, n, seed=n, dtype=dtype) for name, make in HOSTILE.items()
    }
    for width in range(1, 9):
        found[f"phi = {width}"] = lambda width=width: phi(float(width))(n, n, n, seed=n, dtype=dtype)
    wide = np.finfo(dtype).maxexp == 1024
    least, half = (-1050, -530) if wide else (-140, -70)
    own: dict[str, Callable[..., Pair]] = {
        **{f"±{x} binades": lambda n, rng, x=x: spread(n, rng, x) for x in ((20, 200, 500) if wide else (20, 60))},
        "operands subnormal": lambda n, rng: scaled(n, rng, 2.0**least, 1.0),
        "results subnormal": lambda n, rng: scaled(n, rng, 2.0**half, 2.0**half),
        "pairs": pairs, "Hilbert": hilbert, "Hilbert by its inverse": hilbert_by_inverse, "Vandermonde": vandermonde,
        "Kahan": kahan, "banded": banded,
        **{f"one in {x}": lambda n, rng, x=x: sparse(n, rng, x) for x in (10, 100, 1000)},
    }  # fmt: skip
    for name, make in own.items():
        found[name] = lambda make=make: of_type(make, n, dtype)
    return found


def on_device(x: NDArray[Any], device: str) -> Any:
    """The matrix there."""
    if device == "cpu":
        return x
    import torch

    return torch.from_numpy(x).to(device)


def seconds(call: Callable[[], Any], device: str) -> float:
    """Of one call, what it started included; on a GPU of some in a row."""
    count = 1 if device == "cpu" else IN_A_ROW
    start = time.perf_counter()
    for _ in range(count):
        call()
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def with_addend(a: Any, b: Any, device: str, gemm: bool) -> tuple[Any, ...]:
    """The operands of a call: two, or three of a sum."""
    if not gemm:
        return a, b
    share = np.random.default_rng(len(a)).uniform(0.5, 1.0, (len(a), b.shape[1]))
    real = np.finfo(str(a.dtype).removeprefix("torch.")).dtype
    with np.errstate(all="ignore"):
        return a, b, (a @ b) * on_device(share.astype(real), device)


def multiply(*operands: Any, **keywords: Any) -> Any:
    """A product of two, or a sum of three."""
    if len(operands) == 2:
        return prismm.matmul(*operands, **keywords)
    return prismm.gemm(*operands, alpha=0.75, beta=-0.75, **keywords)


def compare(
    given: tuple[Any, ...], normal: tuple[Any, ...], keywords: dict[str, Any], device: str, repeats: int
) -> tuple[list[float], ...]:
    """Times of a family and of normal data, and of the family's native product, taken in turns."""
    times: tuple[list[float], ...] = ([], [], [])
    calls: list[Callable[[], Any]] = [
        lambda: multiply(*given, **keywords), lambda: multiply(*normal, **keywords), lambda: given[0] @ given[1],
    ]  # fmt: skip
    for turn in range(repeats + 1):
        for call, found in zip(calls, times, strict=True):
            with np.errstate(all="ignore"):
                took = seconds(call, device)
            if turn:
                found.append(took)
    return times


def main() -> None:
    """Measure all rows, print them, write the CSV; with --check, hold them to the law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024], help="orders of the matrices")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="workers on a CPU")
    parser.add_argument(
        "--calls",
        nargs="+",
        default=["correctly-rounded", "reproducible"],
        choices=CALLS,
        help="what to ask of calls",
    )
    parser.add_argument("--dtype", default="float64", help="of the elements")
    parser.add_argument("--repeats", type=int, default=5, help="calls of each, interleaved")
    parser.add_argument("--only", nargs="+", help="families, all by default")
    parser.add_argument("--gemm", action="store_true", help="sums with C instead of products")
    parser.add_argument("--check", action="store_true", help="fail where the law is broken")
    chosen = parser.parse_args()
    warm_up()
    common, rows, broken = machine(), [], []
    # Rows of other processors and cards stay.
    key, card = ("cpu", "device", "threads", "n", "call", "family"), {}
    if chosen.device != "cpu":
        import torch

        key, card = ("gpu", *key[1:]), {"gpu": torch.cuda.get_device_name()}
    dtype = np.dtype(chosen.dtype)
    name = f"wide_data_{'cpu' if chosen.device == 'cpu' else 'cuda'}"
    name += "" if dtype == np.float64 else f"_{dtype.name}"
    threads = {"threads": chosen.threads} if chosen.device == "cpu" else {}
    for n in chosen.n:
        by_name = families(n, dtype)
        usual_pair = (on_device(x, chosen.device) for x in by_name["normal"]())
        normal = with_addend(*usual_pair, chosen.device, chosen.gemm)
        for kind in chosen.calls:
            keywords = CALLS[kind]
            call, ratios = f"gemm {kind}" if chosen.gemm else kind, []
            for family, make in by_name.items():
                if chosen.only and family not in chosen.only:
                    continue
                with np.errstate(all="ignore"):
                    made_here = make()
                if not all(np.isfinite(x).all() for x in made_here):
                    continue  # inverses may overflow
                operands = with_addend(
                    *(on_device(x, chosen.device) for x in made_here), chosen.device, chosen.gemm
                )  # fmt: skip
                if not bool((abs(operands[-1]) < math.inf).all()):
                    continue  # a C that is not finite
                given = {**keywords, **threads}
                took, usual, native = compare(operands, normal, given, chosen.device, chosen.repeats)
                report = multiply(*operands, full_output=True, **given)[1]
                times = statistics.median(x / y for x, y in zip(took, usual, strict=True))
                predicted = math.nan if chosen.gemm else prismm.explain(*operands, **given).predicted_seconds
                ratios.append(times)
                rows.append({
                    "device": chosen.device, **card, "threads": chosen.threads, "n": n, "call": call, "family": family,
                    "times_normal": times, "ms": 1e3 * statistics.median(took), "least_ms": 1e3 * min(took),
                    "normal_ms": 1e3 * statistics.median(usual), "native_ms": 1e3 * statistics.median(native),
                    "predicted_ms": 1e3 * predicted,
                    "repeats": chosen.repeats,
                    "paths": " ".join(f"{path}:{count}" for path, count in sorted(report.paths.items())), **common,
                })  # fmt: skip
                print(
                    f"{n:5d} {call:23s} {family:24s} {times:6.2f}x {rows[-1]['ms']:9.1f} ms, predicted "
                    f"{1e3 * predicted:7.1f}  {report.paths}",
                    flush=True,
                )
                if times > (8.0 if n >= 1024 else 15.0):
                    broken.append(f"{family}, n = {n}, {call}: {times:.1f} times normal data")
                path = write(name, rows, key)
            middle = statistics.median(ratios)
            print(f"{n:5d} {call:23s} median {middle:.2f}x, worst {max(ratios):.2f}x", flush=True)
            if middle > 3.0:
                broken.append(f"the median, n = {n}, {call}: {middle:.1f} times normal data")
    print(path)
    if chosen.check and broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
