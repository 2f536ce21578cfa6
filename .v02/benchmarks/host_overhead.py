"""Processor time that a call costs the host, whatever is multiplied: microseconds a call, on a CPU and, where there is
one, of calls that queue work on a GPU; writes results/host_overhead.csv.

Run: python benchmarks/host_overhead.py [--rounds 9] [--only WORD] [--folder FOLDER]; with ``--compare OLD.csv`` nothing
is written, and the exit status is 1 where a case takes 5 % longer than there, which has rows of this machine. So a
change is measured: on the commit before it with ``--folder /tmp/before``, then on it with ``--compare
/tmp/before/host_overhead.csv``.

One thread. All cases take turns, in bursts; a round's figure is the median of its bursts, and a case's is the least of
its rounds: what disturbs a process only ever adds. A case that seems slower is measured up to three times again.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["PRISMM_THREADS"] = "1"

import numpy as np
import torch
from _common import RESULTS, cpu_name, machine, write

import prismm

BURSTS, SECONDS = 7, 0.004
"""Bursts of a case in a round, and how long each is about."""
LIMIT, SLACK = 1.05, 0.05
"""How many times as long a case may take, and microseconds beside, which a clock does not tell apart."""
AGAIN = 3
ADDRESSES = 100
"""Operands that take turns where addresses are new: more than a call remembers."""

Case = Callable[[], Any]


def cpu_cases() -> dict[str, Case]:
    """Calls of small products."""
    rng = np.random.default_rng(0)
    cases: dict[str, Case] = {}
    for n in (8, 64):
        a, b = rng.standard_normal((2, n, n))
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        cases[f"default numpy {n}"] = lambda a=a, b=b: prismm.matmul(a, b)
        cases[f"default torch {n}"] = lambda x=x, y=y: prismm.matmul(x, y)
    a, b, c = rng.standard_normal((3, 8, 8))
    cases["correctly rounded numpy 8"] = lambda: prismm.matmul(a, b, accuracy="correctly-rounded")
    cases["tolerance numpy 8"] = lambda: prismm.matmul(a, b, accuracy=1e-13)
    cases["gemm numpy 8"] = lambda: prismm.gemm(a, b, c, alpha=2.0, beta=0.5)
    p, q = rng.standard_normal((2, 64, 64))
    kept = prismm.prepare(q, reproducible=True)
    cases["reproducible numpy 64"] = lambda: prismm.matmul(p, q, reproducible=True)
    cases["correctly rounded numpy 64"] = lambda: prismm.matmul(p, q, accuracy="correctly-rounded")
    cases["prepared numpy 64"] = lambda: prismm.matmul(p, kept)
    cases["full_output numpy 8"] = lambda: prismm.matmul(a, b, full_output=True)
    cases["explain numpy 64"] = lambda: prismm.explain(p, q)
    cases["words numpy 8"] = lambda: prismm.matmul(a, b, scheme=prismm.Words.tf64(3))
    return cases


def gpu_cases() -> dict[str, Case]:
    """Calls that queue small products; nothing waits for them."""
    torch.manual_seed(0)
    n = 256
    a, b = torch.randn(2, n, n, dtype=torch.float64, device="cuda")
    many = torch.randn(ADDRESSES, n, n, dtype=torch.float64, device="cuda").unbind()
    turns = iter(range(1 << 60))
    wide, rows = torch.randn(1 << 15, 64, dtype=torch.float64, device="cuda"), iter(range(128, 1 << 60, 16))
    small = torch.randn(64, 64, dtype=torch.float64, device="cuda")
    kept = prismm.prepare(b, reproducible=True)
    prismm.matmul(a, b, reproducible=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = prismm.matmul(a, b, reproducible=True)
    into = torch.empty_like(a)
    return {
        "default gpu": lambda: prismm.matmul(a, b),
        "default gpu, out": lambda: prismm.matmul(a, b, out=into),
        "default gpu, new addresses": lambda: prismm.matmul(many[next(turns) % ADDRESSES], b),
        "default gpu, new shapes": lambda: prismm.matmul(wide[: next(rows) % (1 << 15)], small),
        "tolerance gpu": lambda: prismm.matmul(a, b, accuracy=1e-12),
        "reproducible gpu": lambda: prismm.matmul(a, b, reproducible=True),
        "reproducible gpu, new addresses": lambda: prismm.matmul(many[next(turns) % ADDRESSES], b, reproducible=True),
        "prepared gpu": lambda: prismm.matmul(a, kept),
        "gemm gpu": lambda: prismm.gemm(a, b, a, alpha=2.0, beta=0.5),
        "explain gpu": lambda: prismm.explain(a, b),
        "graph replay gpu": lambda captured=captured: graph.replay(),
    }


def burst(call: Case, count: int, wait: Callable[[], None]) -> float:
    """Microseconds of processor time a call, of all threads."""
    wait()
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count * 1e6


def measured(cases: dict[str, Case], rounds: int, wait: Callable[[], None]) -> dict[str, list[float]]:
    """The figure of every round, by the case's name."""
    counts = {}
    for name, call in cases.items():
        burst(call, 5, wait)  # what the first calls make is none of this
        once = burst(call, 5, wait)
        counts[name] = max(2, min(200, int(SECONDS * 1e6 / max(once, 1.0))))
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        bursts: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(BURSTS):
            for name, call in cases.items():
                bursts[name].append(burst(call, counts[name], wait))
        for name, some in bursts.items():
            found[name].append(statistics.median(some))
    return found


def slower(found: dict[str, list[float]], before: dict[str, float]) -> list[str]:
    """Cases that take longer than they did."""
    return [name for name, some in found.items() if name in before and min(some) > LIMIT * before[name] + SLACK]


def rows_of(found: dict[str, list[float]], device: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Rows of the table."""
    for name, some in found.items():
        yield {
            "what": name, "device": device, "us": min(some), "us_median": statistics.median(some), "us_most": max(some),
            "rounds": rounds, "bursts": BURSTS, **machine(),
        }  # fmt: skip


def read(path: Path, device: str) -> dict[str, float]:
    """Microseconds by the case's name, of this device."""
    with path.open(newline="") as stream:
        return {row["what"]: float(row["us"]) for row in csv.DictReader(stream) if row["device"] == device}


def main() -> None:
    """Measure, print, and write the CSV or compare with one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the CSV goes")
    parser.add_argument("--compare", type=Path, help="a CSV of this machine, from before a change")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    suites: list[tuple[str, dict[str, Case], Callable[[], None]]] = [(cpu_name(), cpu_cases(), lambda: None)]
    if torch.cuda.is_available():
        suites.append((torch.cuda.get_device_name(), gpu_cases(), torch.cuda.synchronize))
    rows: list[dict[str, Any]] = []
    late: list[str] = []
    compared = 0
    for device, cases, wait in suites:
        cases = {name: call for name, call in cases.items() if asked.only in name}
        before = read(asked.compare, device) if asked.compare else {}
        found = measured(cases, asked.rounds, wait)
        for _ in range(AGAIN):
            if again := {name: cases[name] for name in slower(found, before)}:
                for name, some in measured(again, asked.rounds, wait).items():
                    found[name] += some
        late += slower(found, before)
        for name, some in found.items():
            told = f", {min(some) / before[name]:.3f} times as long as before" if name in before else ""
            compared += name in before
            print(f"{name}: {min(some):.2f} µs (median {statistics.median(some):.2f}, most {max(some):.2f}){told}")
        rows += rows_of(found, device, asked.rounds)
    if asked.compare is None:
        print(write("host_overhead", rows, ("what", "device"), asked.folder))
    elif not compared:
        sys.exit(f"{asked.compare} has no rows of {', '.join(device for device, _, _ in suites)}: measure there first")
    elif late:
        sys.exit(f"more than {LIMIT - 1:.0%} slower: {', '.join(late)}")


if __name__ == "__main__":
    main()
