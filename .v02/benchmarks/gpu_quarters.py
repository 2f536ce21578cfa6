"""Products of residues from seven products of quarters beside those made whole, and cuBLAS's: replays of captured
graphs, each just after one of cuBLAS's, and four in a row after a rest.

Run: python benchmarks/gpu_quarters.py [--sizes 8192,16384]; writes results/gpu_quarters.csv. Random normal data. Times
are medians by CUDA events; "same" says whether the results have the same bits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from _common import machine, write
from gpu_gemm import graph_of, in_a_row

import prismm
from prismm.core.problem import Problem
from prismm.cuda import calls as cuda_calls
from prismm.cuda.costs.calibrate import seconds_of
from prismm.cuda.residues import implementation as residues_implementation
from prismm.cuda.residues import strassen as cuda_strassen
from prismm.schemes import Residues

CALLS = (("float64", 14), ("float64", 15), ("float32", 8))
ROUNDS, ROW, REST = 4, 4, 0.3
"""Times of each, calls in a row, and seconds of rest before."""


def captured(call: Callable[[], Any], quarters: bool) -> torch.cuda.CUDAGraph:
    """A graph of the call, made one way or the other."""

    def chosen(problem: Problem, *_: Any) -> bool:
        return quarters and cuda_strassen.serves(problem.m, problem.n, problem.k)

    with mock.patch.object(residues_implementation, "by_strassen", chosen):
        cuda_calls.forget()
        return graph_of(call)


def measure(n: int, dtype: str, moduli: int) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(n)
    a, b = (torch.randn(n, n, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
    outs, native = [torch.empty_like(a) for _ in range(2)], torch.empty_like(a)
    form = {"scheme": Residues(moduli), "accuracy": "native"}
    graphs = [
        captured(lambda out=out: prismm.matmul(a, b, out=out, **form), quarters)  # type: ignore[misc]
        for out, quarters in zip(outs, (False, True), strict=True)
    ]
    cuda_calls.forget()
    times: list[list[float]] = [[], []]
    theirs = []
    for x in range(2 * ROUNDS):
        which = (x + x // 2) % 2  # neither always comes first
        theirs.append(seconds_of(lambda: torch.mm(a, b, out=native)))
        times[which].append(seconds_of(graphs[which].replay))
    rows: list[list[float]] = [[], []]
    for x in range(6):
        torch.cuda.synchronize()
        time.sleep(REST)
        rows[x % 2].append(in_a_row(graphs[x % 2].replay, ROW))
    whole, quarters = (1e3 * statistics.median(found) for found in times)
    row_whole, row_quarters = (1e3 * statistics.median(found) for found in rows)
    return {
        "n": n,
        "dtype": dtype,
        "moduli": moduli,
        "whole_ms": whole,
        "quarters_ms": quarters,
        "gain": whole / quarters,
        "native_ms": 1e3 * statistics.median(theirs),
        "row_whole_ms": row_whole,
        "row_quarters_ms": row_quarters,
        "row_gain": row_whole / row_quarters,
        "same": torch.equal(*outs),
        "gpu": torch.cuda.get_device_name(0),
        **machine(),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8192,12288,16384")
    rows = []
    for n in map(int, parser.parse_args().sizes.split(",")):
        for dtype, moduli in CALLS:
            rows.append(measure(n, dtype, moduli))
            torch.cuda.empty_cache()
            print({key: rows[-1][key] for key in list(rows[-1])[:11]}, file=sys.stderr, flush=True)
            write("gpu_quarters", rows, key=("n", "dtype", "moduli", "gpu"))


if __name__ == "__main__":
    main()
