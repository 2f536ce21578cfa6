"""How far predictions by a table of rates, the committed one or that of `prismm calibrate` (FILE), are from the times
in results/gpu_gemm.csv and results/gpu_sweep.csv. Run: python benchmarks/gpu_rates.py [--table FILE].
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
from pathlib import Path

import _common

from prismm.accuracy import parse_target
from prismm.calibration import Timed
from prismm.cuda_plan import Need, predict
from prismm.cuda_rates import committed, read
from prismm.formats import FP32, FP64
from prismm.schemes import Native, Residues, ScaledHalf


def recorded(path: Path) -> dict[str, list[tuple[str, Timed]]]:
    """The calls of the benchmark by GPU, each with a name."""
    found: dict[str, list[tuple[str, Timed]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            phases = {k: 1e-3 * float(v) for k, v in (x.split("=") for x in row["phases_ms"].split())}
            accuracy = row["call"] if row["call"] in ("correctly-rounded", "reproducible") else "native"
            need = need_of(int(row["n"]), row["dtype"], accuracy)
            one = Timed(need, scheme_of(row["scheme"]), 1e-3 * float(row["ms"]), 1e-3 * float(row["native_ms"]), phases)
            found.setdefault(row["gpu"], []).append((f"{row['n']} {row['dtype']} {row['call']}", one))
    return found


def need_of(n: int, dtype: str, accuracy: str) -> Need:
    """What a call of square matrices of a native type asks."""
    precise = dtype in ("float64", "complex128")
    reproducible = accuracy == "reproducible"
    target = parse_target("native" if reproducible else accuracy)
    return Need(n, n, n, (), FP64 if precise else FP32, target, reproducible, True, dtype.startswith("complex"))


def swept(path: Path) -> list[tuple[str, str, Timed]]:
    """The calls of gpu_sweep.csv, each with its GPU and engine."""
    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            m, n, k, batch = (int(row[x]) for x in ("m", "n", "k", "batch"))
            square = need_of(n, row["dtype"], "native")
            need = dataclasses.replace(square, m=m, k=k, batch=(batch,) if batch > 1 else ())
            seconds = (1e-3 * float(row[x]) for x in ("ms", "native_ms"))
            found.append((row["gpu"], row["engine"], Timed(need, scheme_of(row["scheme"]), *seconds, {})))
    return found


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
    options = parser.parse_args()
    tables = committed() if options.table is None else {(own := read(options.table)).name: own}
    rows = [
        (gpu, name, predict(one.scheme, one.need, tables[gpu]), one.seconds)
        for gpu, calls in recorded(_common.RESULTS / "gpu_gemm.csv").items()
        for name, one in calls
        if gpu in tables
    ]
    for gpu, engine, one in swept(_common.RESULTS / "gpu_sweep.csv"):
        if gpu in tables:
            need = one.need
            shape = "x".join(map(str, (*need.batch, need.m, need.n, need.k)))
            seconds = predict(one.scheme, need, tables[gpu], engine)
            rows.append((gpu, f"{shape} {need.result.name} {engine}", seconds, one.seconds))
    for gpu, name, predicted, seconds in rows:
        print(f"{gpu} {name:48s} {1e3 * seconds:8.3f} ms, predicted {1e3 * predicted:8.3f}: {predicted / seconds:.2f}")


if __name__ == "__main__":
    main()
