"""The table of rates of the GPU in results/gpu_gemm.csv, as `prismm calibrate` would fit it, and how far its
predictions are from the times there; writes src/prismm/rates/NAME.json.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
from pathlib import Path

import _common

from prismm.accuracy import parse_target
from prismm.calibration import Timed, fit
from prismm.cuda_plan import Need, predict
from prismm.cuda_rates import file_name
from prismm.formats import FP32, FP64
from prismm.schemes import Native, Residues, ScaledHalf

PROCESSORS = {"NVIDIA H200": 132}
LAUNCH, MEMORY = 8e-6, 4.0e12
"""Seconds of cuBLAS's smallest product, and bytes a second, of an H200."""


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


def swept(path: Path) -> list[tuple[str, Timed]]:
    """The calls of gpu_sweep.csv, each with its GPU."""
    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            m, n, k, batch = (int(row[x]) for x in ("m", "n", "k", "batch"))
            square = need_of(n, row["dtype"], "native")
            need = dataclasses.replace(square, m=m, k=k, batch=(batch,) if batch > 1 else ())
            seconds = (1e-3 * float(row[x]) for x in ("ms", "native_ms"))
            found.append((row["gpu"], Timed(need, scheme_of(row["scheme"]), *seconds, {})))
    return found


def scheme_of(text: str) -> object:
    """A scheme as plans print it."""
    if text.startswith("Native"):
        return Native()
    if text.startswith("Residues"):
        return Residues(int(text[len("Residues(moduli=") : -1]))
    numbers = re.findall(r"(\w+)=(\d+)", text)
    assert text.startswith("ScaledHalf"), text
    return ScaledHalf(**{name: int(number) for name, number in numbers})


def main() -> None:
    """Fit, compare, write."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for gpu, rows in recorded(_common.RESULTS / "gpu_gemm.csv").items():
        table = fit(gpu, PROCESSORS[gpu], [one for _, one in rows], launch=LAUNCH, memory=MEMORY)
        for name, one in rows:
            predicted = predict(one.scheme, one.need, table)
            ratio = predicted / one.seconds
            print(f"{name:40s} {1e3 * one.seconds:8.3f} ms, predicted {1e3 * predicted:8.3f}: {ratio:.2f}")
        path = Path(__file__).parent.parent / "src/prismm/rates" / file_name(gpu)
        path.write_text(table.to_json())
        print(path.name, table)


if __name__ == "__main__":
    main()
