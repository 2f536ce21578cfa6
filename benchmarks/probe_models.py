"""The probe on random hidden models of its family: how many it recovers, how long it takes.

Claim: of 1,000 models (blocks of 1 to 64 products, 8 to 40 kept bits or all, every summation, rounding, join and
policy), behind a black box each, at least 990 are recovered in every observable property, none wrongly, in at most 20
seconds each. A property counts as recovered if its value is the hidden one, or the hidden one is among those that the
probe reports as undecided. Where a model is described otherwise than the hidden one, 200,000 dot products aimed at
the thresholds of both look for a difference: "equivalent" if there is none, "wrong" if there is.

Writes results/probe_models.csv, a line a model. Takes about an hour of one core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import Any

import _common
import numpy as np

from prismm.numerics import separate
from prismm.numerics.family import random_model
from prismm.numerics.probing import probe


def attempt(seed: int) -> dict[str, Any]:
    """One hidden model, probed."""
    hidden = random_model(np.random.default_rng([seed, 2021]))
    start = time.perf_counter()
    finding = probe(lambda a, b, c: hidden.dot(a, b, c), hidden.input, hidden.output, seed=seed)
    seconds = time.perf_counter() - start
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
            for name, (value, _) in differences.items()
            if value in finding.undecided.get(name, ()) or name == "nan"
        }
        other = [name for name in differences if name not in named]
        difference = separate(hidden, finding.model, effort=200_000, seed=seed)
        outcome = "wrong" if difference else "exact" if not other else "equivalent"
        open_, differing = " ".join(finding.undecided), " ".join(other)
    return row | {
        "outcome": outcome,
        "differently": differing,
        "undecided": open_,
        "observations": finding.observations,
        "seconds": round(seconds, 2),
    }


def main() -> None:
    """Run, write, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    attempt(0)  # compiled before the processes part
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(attempt, range(options.first, options.first + options.models)):
            rows.append(row | _common.machine())
            if row["outcome"] in ("wrong", "undecided"):
                print(row, file=sys.stderr, flush=True)
            if len(rows) % 50 == 0 or len(rows) == options.models:
                print(f"{len(rows)} models", file=sys.stderr, flush=True)
                _common.write("probe_models", rows, key=("seed",))
    seconds = sorted(row["seconds"] for row in rows)
    counts = {
        name: sum(row["outcome"] == name for row in rows) for name in ("exact", "equivalent", "undecided", "wrong")
    }
    print(f"{len(rows)} models: {counts}; seconds: median {seconds[len(seconds) // 2]}, largest {seconds[-1]}")


if __name__ == "__main__":
    main()
