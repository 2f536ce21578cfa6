"""The cost model beside results/gpu_candidates.csv: how far its predictions are off, and constants that fit it best.

Run: python benchmarks/gpu_fit.py [--table FILE] [--seeds 4,20261127] [--cublas TYPE]. Prints, of the shapes of these
seeds, how predictions compare with times by scheme and type, `prismm.cuda.costs.cublas.Errors`, and what Auto takes
beside cuBLAS. --cublas float64, or another type: prints its `CublasTimes` and the rate that fit all shapes of the file,
by the least mean of errors on a scale of logarithms, of which none counts for more than a half.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from _common import RESULTS
from gpu_candidates import CARD, Item, name_of_words

from prismm.cuda.choice import GpuColumn, column
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import Rates, committed, read
from prismm.cuda.device import BLAS, FP64
from prismm.cuda.multiword.implementation import seconds_in
from prismm.cuda.native.seconds import checked_seconds, cublas_seconds, kernel_error, kernel_seconds
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

NEAR, LEAST = (0.8, 1.05), 12e-6
"""Between which ratios to cuBLAS a scheme is predicted to take about as long; seconds of cuBLAS from which on errors
count: below, the host takes longer than the GPU.
"""


class Shape(NamedTuple):
    """A shape of the file: its seed, and seconds by candidate."""

    seed: int
    item: Item
    seconds: dict[str, float]


def recorded(path: Path = RESULTS / "gpu_candidates.csv") -> list[Shape]:
    """All shapes."""
    found: dict[tuple[int, Item], dict[str, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = (int(row[x]) for x in ("batch", "m", "n", "k"))
            item = Item(row["dtype"], row["asked"], *numbers, row["kind"])
            found[int(row["seed"]), item][row["candidate"]] = 1e-6 * float(row["us"])
    return [Shape(seed, item, seconds) for (seed, item), seconds in found.items()]


def predicted(item: Item, name: str, rates: Rates) -> float | None:
    """Seconds of the GPU for a candidate; None for tiles that Auto does not take, and for what it takes."""
    problem, (kind, *rest) = item.problem, name.split(":")
    if kind == "cublas":
        return cublas_seconds(problem, rates)
    if kind == "checked":
        return cublas_seconds(problem, rates) + checked_seconds(problem, rates)
    if kind == "fp64":
        return kernel_seconds(problem, rates)
    if kind == "half":
        shares = int(rest[1]) if len(rest) > 1 else 1
        return seconds_in(shares, ScaledHalf(chunk=int(rest[0])), problem, rates)
    return gpu_seconds(Residues(int(rest[0])), problem, rates) if kind == "residues" else None


def family(item: Item, name: str, rates: Rates) -> str:
    """Which of `Errors` a candidate's predictions have; its name, where it is cuBLAS."""
    kind = name.split(":")[0]
    if kind == "fp64":
        return "kernel" if kernel_error(item.problem, rates) == rates.errors.kernel else "scattered"
    return {"half": "multiword"}.get(kind, kind)


def taken(item: Item, gpu: GpuColumn) -> str:
    """The candidate that Auto takes."""
    chosen = gpu.native_grade(item.problem, None, None)
    if chosen.engine in (BLAS, FP64):
        return "checked" if chosen.engine == BLAS else "fp64"
    scheme: Any = chosen.scheme
    if scheme == Residues(getattr(scheme, "moduli", 2)):
        return f"residues:{scheme.moduli}"
    assert gpu.rates is not None
    return name_of_words(scheme, item.problem, gpu.rates)


def measured(name: str, seconds: dict[str, float]) -> str:
    """The candidate under which a shape was measured: older records have words without shares alone."""
    return name if name in seconds else ":".join(name.split(":")[:2])


def errors(shapes: list[Shape], rates: Rates) -> dict[str, list[float]]:
    """By how much predicted ratios to cuBLAS with its check are below measured ones, on a scale of logarithms, by
    family: where they are near 1.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for _, item, seconds in shapes:
        native = predicted(item, "checked", rates)
        for name, took in seconds.items():
            ours = predicted(item, name, rates)
            if name in ("cublas", "checked") or not (ours and native and "checked" in seconds):
                continue
            if item.asked == "native" and NEAR[0] <= ours / native <= NEAR[1] and seconds["cublas"] >= LEAST:
                found[family(item, name, rates)].append(math.log(took / seconds["checked"] / (ours / native)))
    return found


def report(shapes: list[Shape], rates: Rates) -> str:
    """Of predictions, errors and choices."""
    lines, ratios = [], defaultdict(list)
    for _, item, seconds in shapes:
        for name, took in seconds.items():
            if (ours := predicted(item, name, rates)) is not None:
                ratios[item.dtype, family(item, name, rates)].append(ours / took)
    for (dtype, name), some in sorted(ratios.items()):
        close = sum(0.75 <= x <= 1.25 for x in some)
        lines.append(
            f"{dtype} {name}: predicted / measured {statistics.median(some):.2f}, {close} of {len(some)} close"
        )
    for name, offs in sorted(errors(shapes, rates).items()):
        most = math.expm1(statistics.quantiles(offs, n=5, method="inclusive")[-1]) if len(offs) > 1 else math.nan
        lines.append(f"errors.{name}: {most:.3f} ({len(offs)} shapes)")
    gpu = column(rates.name)
    gpu.rates = rates
    for dtype, (least, most, limit) in itertools.product(
        ("float64", "float32", "complex128", "complex64"), ((1e-4, 1e9, 1.03), (0.0, 1e-4, 1.1))
    ):
        some = [
            seconds["cublas"] / seconds[name]
            for _, item, seconds in shapes
            if item.dtype == dtype and item.asked == "native" and least <= seconds["cublas"] < most
            if (name := measured(taken(item, gpu), seconds)) in seconds
        ]
        if some:
            lines.append(
                f"{dtype}, cuBLAS {'at least' if least else 'below'} 100 us: median {statistics.median(some):.2f}, "
                f"worst {min(some):.2f}, {sum(x < 1 / limit for x in some)} of {len(some)} slower by {limit - 1:.0%}"
            )
    return "\n".join(lines)


def fitted(shapes: list[Shape], dtype: str, rates: Rates) -> str:
    """`CublasTimes` of a type, and the rate, that fit all shapes."""
    from scipy.optimize import minimize

    some = [(item.problem, seconds["cublas"]) for _, item, seconds in shapes if item.dtype == dtype]
    times = getattr(rates.cublas, dtype)
    rate = "float64" if dtype in ("float64", "complex128") else "float32"
    own = [part.name for part in dataclasses.fields(times) if getattr(times, part.name) > 0.0 and part.name != "share"]

    def table(x: Any) -> Rates:
        values = {name: math.exp(y) for name, y in zip(own, x[1:], strict=True)}
        one = dataclasses.replace(times, **values)
        cublas = dataclasses.replace(rates.cublas, **{dtype: one})
        return dataclasses.replace(rates, cublas=cublas, **{rate: math.exp(x[0])})

    def mean(x: Any) -> float:
        trial = table(x)
        return statistics.fmean(min(0.5, abs(math.log(cublas_seconds(p, trial) / took))) for p, took in some)

    x = [math.log(getattr(rates, rate)), *(math.log(getattr(times, name)) for name in own)]
    for _ in range(3):
        x = minimize(mean, x, method="Nelder-Mead", options={"maxfev": 800}).x
    found = table(x)
    return f"{rate} {getattr(found, rate):.4g}, {getattr(found.cublas, dtype)}, mean error {mean(x):.3f}"


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="a table of rates; default: the committed one")
    parser.add_argument("--seeds", default="4,20261127", help="whose shapes judge the model")
    parser.add_argument("--cublas", default="", help="fit what the table says of cuBLAS's products of this type")
    options = parser.parse_args()
    rates = committed()[CARD] if options.table is None else read(options.table)
    if options.cublas:
        print(fitted(recorded(), options.cublas, rates))
        return
    seeds = {int(x) for x in options.seeds.split(",")}
    print(report([shape for shape in recorded() if shape.seed in seeds], rates))


if __name__ == "__main__":
    main()
