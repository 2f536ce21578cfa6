"""How far predictions by a table of rates, the committed one or that of `prismm calibrate` (FILE), are from the times
in results/gpu_gemm.csv and results/gpu_sweep.csv. Run: python benchmarks/gpu_rates.py [--table FILE].

With --results the committed table is printed with what these files and results/gpu_direct.csv say of launches and of
the host in place of its own: how a table comes from results where nothing was calibrated (`from_results`).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import re
import statistics
from pathlib import Path
from typing import NamedTuple

import _common

from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.cuda.costs.predict import gpu_seconds, predict
from prismm.cuda.costs.table import Host, Rates, committed, read
from prismm.cuda.native.seconds import cublas_seconds
from prismm.formats import FP32, FP64
from prismm.schemes import Native, Residues, ScaledHalf


class Recorded(NamedTuple):
    """A call that was timed: seconds of eager ones on an idle GPU and of replays of a graph of one, torch's too; and
    how many times as slow the host was as that of the committed table.
    """

    problem: Problem
    scheme: object
    seconds: float
    native_seconds: float
    replayed: float
    native_replayed: float
    slower: float = 1.0


def recorded(path: Path) -> dict[str, list[tuple[str, Recorded]]]:
    """The calls of the benchmark by GPU, each with a name."""
    found: dict[str, list[tuple[str, Recorded]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            accuracy = row["call"] if row["call"] in ("correctly-rounded", "reproducible") else "native"
            problem = problem_of(int(row["n"]), row["dtype"], accuracy)
            seconds = (1e-3 * float(row[x]) for x in ("ms", "native_ms", "graph_ms", "native_ms"))
            one = Recorded(problem, scheme_of(row["scheme"]), *seconds)
            found.setdefault(row["gpu"], []).append((f"{row['n']} {row['dtype']} {row['call']}", one))
    return found


def problem_of(n: int, dtype: str, accuracy: str) -> Problem:
    """What a call of square matrices of a native type asks."""
    precise = dtype in ("float64", "complex128")
    reproducible = accuracy == "reproducible"
    target = parse_target("native" if reproducible else accuracy)
    return Problem(n, n, n, (), FP64 if precise else FP32, target, reproducible, True, dtype.startswith("complex"))


def shape_of(row: dict[str, str]) -> Problem:
    """What the call of a row with m, n, k and batch asked."""
    m, n, k, batch = (int(row[x]) for x in ("m", "n", "k", "batch"))
    square = problem_of(n, row["dtype"], "native")
    return dataclasses.replace(square, m=m, k=k, batch=(batch,) if batch > 1 else ())


def swept(path: Path) -> list[tuple[str, str, Recorded]]:
    """The calls of gpu_sweep.csv, each with its GPU and engine."""
    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            seconds = (1e-3 * float(row[x]) for x in ("ms", "native_ms", "graph_ms", "native_graph_ms"))
            one = Recorded(shape_of(row), scheme_of(row["scheme"]), *seconds)
            table = committed().get(row["gpu"])
            if table is not None:
                pace = 1e-6 * float(row.get("host_us") or 0.0)
                one = one._replace(slower=pace / table.host_speed if pace else _slower(one, table))
            found.append((row["gpu"], row["engine"], one))
    return found


_REPLAYED, _TELLING = 8.3e-6, 40e-6
"""Seconds that a replay of torch's product takes beyond the GPU's share, beside a host like the committed table's; and
how long the GPU works at most on one that tells of the host.
"""


def _slower(one: Recorded, table: Rates) -> float:
    """How slow the host was, where a file does not say so, by the replay of torch's product in the same row: hosts were
    seen between 1 and 1.8 times as slow. Of longer products the middle of that, which matters little.
    """
    own = cublas_seconds(one.problem, table)
    return min(1.8, max(1.0, (one.native_replayed - own) / _REPLAYED)) if own < _TELLING else 1.3


def in_graphs(path: Path, gpu: str) -> dict[Problem, dict[str, float]]:
    """Seconds of the GPU in gpu_direct.csv, by shape and by "cuBLAS", "cuBLAS, looked at", "chosen"."""
    found: dict[Problem, dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == gpu:
                found.setdefault(shape_of(row), {})[row["tile"]] = 1e-3 * float(row["ms"])
    return found


def from_results(table: Rates, results: Path = _common.RESULTS) -> Rates:
    """The table with the launch, the check and the host's share in calls that files of results say of its GPU.

    `launch` is what graphs of twenty tiny products of cuBLAS take beyond its rate, `check` what the check of small
    results adds there. The host's share is that of the eager calls of the sweep, prismm's and torch's.
    """
    graphs = in_graphs(results / "gpu_direct.csv", table.name)
    bare = dataclasses.replace(table, launch=0.0)
    tiny = {
        problem: times
        for problem, times in graphs.items()
        if problem.m * problem.n * problem.k <= 128**3 and not problem.batch
    }
    launch = statistics.median(times["cuBLAS"] - cublas_seconds(problem, bare) for problem, times in tiny.items())
    check = statistics.median(
        times["cuBLAS, looked at"] - times["cuBLAS"] - problem.result_bytes / table.memory
        for problem, times in graphs.items()
        if problem.result_bytes < 1 << 20
    )
    calls = [(engine, one) for gpu, engine, one in swept(results / "gpu_sweep.csv") if gpu == table.name]
    bare = dataclasses.replace(table, launch=launch, check=check)
    slower = [one.slower for _, one in calls]
    ours = [(gpu_seconds(one.scheme, one.problem, bare, engine), one.seconds) for engine, one in calls]
    theirs = [(cublas_seconds(one.problem, bare), one.native_seconds) for _, one in calls]
    return dataclasses.replace(bare, call=_host(ours, slower), torch=_host(theirs, slower))


def _host(calls: list[tuple[float, float]], slower: list[float]) -> Host:
    """The host's share by which most calls are predicted within a quarter, of calls that keep the GPU busy for so long
    and take so long, beside a host so many times as slow: of several that are as good, the one in the middle.
    """
    steps = [5e-7 * x for x in range(10, 100)]
    found: dict[int, list[Host]] = {}
    for before, least in itertools.product(steps, steps):
        if before <= least:
            host = Host(before, least)
            close = sum(
                0.75 < host.seconds(gpu, x) / seconds < 1.25 for (gpu, seconds), x in zip(calls, slower, strict=True)
            )
            found.setdefault(close, []).append(host)
    best = found[max(found)]
    return best[len(best) // 2]


def scheme_of(text: str) -> object:
    """A scheme as plans print it."""
    if text.startswith("Native"):
        return Native("float64" if "float64" in text else None)
    if text.startswith("Residues"):
        return Residues(int(text[len("Residues(moduli=") : -1]))
    numbers = re.findall(r"(\w+)=(\d+)", text)
    assert text.startswith("ScaledHalf"), text
    return ScaledHalf(**{name: int(number) for name, number in numbers})


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="a table of rates")
    parser.add_argument("--results", action="store_true", help="print the committed tables by the files of results")
    options = parser.parse_args()
    if options.results:
        measured = {gpu for gpu, _, _ in swept(_common.RESULTS / "gpu_sweep.csv")}
        for table in committed().values():
            if table.name in measured:
                print(from_results(table).to_json(), end="")
        return
    tables = committed() if options.table is None else {(own := read(options.table)).name: own}
    rows = [
        (gpu, name, predict(one.scheme, one.problem, tables[gpu]), one.seconds)
        for gpu, calls in recorded(_common.RESULTS / "gpu_gemm.csv").items()
        for name, one in calls
        if gpu in tables
    ]
    for gpu, engine, one in swept(_common.RESULTS / "gpu_sweep.csv"):
        if gpu in tables:
            problem = one.problem
            shape = "x".join(map(str, (*problem.batch, problem.m, problem.n, problem.k)))
            seconds = predict(one.scheme, problem, tables[gpu], engine, one.slower)
            rows.append((gpu, f"{shape} {problem.result.name} {engine}", seconds, one.seconds))
    for gpu, name, predicted, seconds in rows:
        print(f"{gpu} {name:48s} {1e3 * seconds:8.3f} ms, predicted {1e3 * predicted:8.3f}: {predicted / seconds:.2f}")


if __name__ == "__main__":
    main()
