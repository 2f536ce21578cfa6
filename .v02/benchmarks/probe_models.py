"""The probe on random hidden models of its family: how many it recovers, how long it takes.

Claim: of 1,000 models (blocks of 1 to 64 products, 8 to 40 kept bits or all, every summation, rounding, join and
policy), behind a black box each, at least 990 are recovered in every observable property, none wrongly, in at most 20
seconds each of a processor. A property counts as recovered if its value is the hidden one, or the hidden one is among
those that the probe reports as undecided (of a late join: each of its numbers is). Where a model is described otherwise
than the hidden one, 200,000 products aimed at the thresholds of both look for a difference: "equivalent" if there is
none, "wrong" if there is. "undecided" if no model is found, or if the difference is in properties alone that the probe
reports as undecided, with the hidden value.

Writes results/probe_models.csv, a line a model as soon as it is done. Models that stand there are left out, so that a
run that was stopped goes on: delete the file to begin anew. Takes one to three hours of a core.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

from prismm.formats import FP16, FP32
from prismm.numerics import separate, simulate
from prismm.numerics.family import start
from prismm.numerics.observations import Observations
from prismm.numerics.parts import LateJoin
from prismm.numerics.probing import probe
from prismm.numerics.random_models import random_model


def attempt(seed: int) -> dict[str, Any]:
    """One hidden model, probed."""
    hidden = random_model(np.random.default_rng([seed, 2021]))
    start = time.process_time()
    finding = probe(lambda a, b, c: simulate.dot(hidden, a, b, c, workers=1), hidden.input, hidden.output, seed=seed)
    seconds = time.process_time() - start
    row: dict[str, Any] = {
        "seed": seed,
        "input": hidden.input.name,
        "output": hidden.output.name,
        "summation": hidden.summation,
        "block": hidden.block,
        "fraction_bits": hidden.fraction_bits,
        "join": hidden.join if isinstance(hidden.join, str) else "late",
        "rounding": hidden.rounding,
    }
    if finding.model is None:
        outcome, open_, differing = "undecided", "", ""
    else:
        differences = hidden.differences(finding.model)
        named = {
            name
            for name, (value, mine) in differences.items()
            if name == "nan" or reported(value, mine, finding.undecided.get(name, ()))
        }
        other = [name for name in differences if name not in named]
        difference = bool(differences) and bool(separate(hidden, finding.model, effort=200_000, seed=seed))
        outcome = "exact" if not other else "equivalent"
        if difference:
            outcome = "wrong" if other else "undecided"
        open_, differing = " ".join(finding.undecided), " ".join(other)
    return row | {
        "outcome": outcome,
        "differently": differing,
        "undecided": open_,
        "observations": finding.observations,
        "seconds": round(seconds, 2),
    }


def reported(value: Any, mine: Any, left: tuple[Any, ...]) -> bool:
    """Whether a value is among those left; of a late join, each of its numbers among theirs and the model's own."""
    if not isinstance(value, LateJoin) or not isinstance(mine, LateJoin):
        return value in left
    others = [mine, *(join for join in left if isinstance(join, LateJoin))]
    return all(any(number == vars(join)[name] for join in others) for name, number in vars(value).items())


def compile_kernels() -> None:
    """Before the processes part."""
    one = np.ones((1, 1))
    seen = Observations(FP16, FP32)
    seen.add(one, one, np.zeros(1), simulate.dot(start(FP16, FP32), one, one, np.zeros(1)))
    seen.refute(start(FP16, FP32))


def known(path: Path) -> list[dict[str, str]]:
    """The lines that stand there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def summary(rows: list[dict[str, str]]) -> str:
    """What came out, in a line."""
    seconds = sorted(float(row["seconds"]) for row in rows) or [0.0]
    names = ("exact", "equivalent", "undecided", "wrong")
    counts = {name: sum(row["outcome"] == name for row in rows) for name in names}
    late = sum(value > 20.0 for value in seconds)
    middle, last = seconds[len(seconds) // 2], seconds[-1]
    return f"{len(rows)} models: {counts}; seconds: median {middle}, largest {last}, {late} above 20"


def main() -> None:
    """Run, write, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="seed of the first model")
    parser.add_argument("--count", type=int, default=1000, help="how many models, of seeds one after another")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; run again to go on")
    parser.add_argument("--output", type=Path, default=_common.RESULTS / "probe_models.csv")
    options = parser.parse_args()
    began = time.perf_counter()
    done = {int(row["seed"]) for row in known(options.output)}
    seeds = [s for s in range(options.first, options.first + options.count) if s not in done]
    compile_kernels()
    machine = _common.machine()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(attempt, seeds):
            full = row | machine
            fresh = not options.output.exists()
            with options.output.open("a", newline="") as file:
                writer = csv.DictWriter(file, full, lineterminator="\n")
                if fresh:
                    writer.writeheader()
                writer.writerow(full)
            if row["outcome"] in ("wrong", "undecided") or row["seconds"] > 20.0:
                print(row, file=sys.stderr, flush=True)
            if time.perf_counter() - began > options.seconds:
                print("out of time: run again to go on", file=sys.stderr)
                break
        pool.terminate()
    print(summary(known(options.output)))


if __name__ == "__main__":
    main()
