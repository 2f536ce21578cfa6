"""Data that span many binades, the inner dimension sharded: time relative to normal data, by family and target.

Run: torchrun --nproc-per-node 2 benchmarks/distributed_wide.py [--orders 512,1024]; rank 0 writes
results/distributed_wide.csv. On CPUs gloo is used.

Elements are normal·exp(φ·normal), or normal·2^e with e uniform. Times are medians of rounds in which all families take
turns, each the slowest rank's, from a common start.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from typing import Any

import torch
import torch.distributed as dist
from _common import machine, write
from _ranks import gpu_name, in_turns, started
from torch.distributed.tensor import DTensor, Shard

import prismm

FAMILIES = ("normal", "φ = 1", "φ = 4", "φ = 8", "±20", "±200", "±500")
WAYS: dict[str, dict[str, Any]] = {
    "reproducible": {"reproducible": True},
    "correctly rounded": {"accuracy": "correctly-rounded"},
}


def operand(family: str, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """A rank's part."""
    x = torch.randn(shape, dtype=torch.float64, device=device)
    if family.startswith("φ"):
        return x * torch.exp(float(family[4:]) * torch.randn(shape, dtype=torch.float64, device=device))
    if family.startswith("±"):
        e = int(family[1:])
        # In float64: torch's ldexp takes its powers in float32.
        return x * torch.pow(2.0, torch.randint(-e, e + 1, shape, device=device).double())
    return x


def main() -> None:
    """Measure on all ranks; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", default="512,1024", help="multiples of the ranks, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    mesh, device = started()
    for n in map(int, options.orders.split(",")):
        size, tasks = n // mesh.size(), {}
        for number, family in enumerate(FAMILIES):
            torch.manual_seed(100 * number + dist.get_rank())
            parts = operand(family, (n, size), device), operand(family, (size, n), device)
            both = [
                DTensor.from_local(x, mesh, [Shard(1 - at)], run_check=False, shape=torch.Size((n, n)), stride=(n, 1))
                for at, x in enumerate(parts)
            ]
            for way, asked in WAYS.items():
                tasks[family, way] = functools.partial(prismm.matmul, *both, **asked)
        times = in_turns(tasks, device, options.rounds)
        medians = {key: statistics.median(found) for key, found in times.items()}
        rows = []
        for (family, way), found in times.items():
            rows.append({
                "ranks": mesh.size(), "family": family, "way": way, "n": n,
                "ratio": medians[family, way] / medians["normal", way], "milliseconds": 1e3 * medians[family, way],
                "longest_ms": 1e3 * max(found), "rounds": len(found), "gpu": gpu_name(), **machine(),
            })  # fmt: skip
        if dist.get_rank() == 0:
            write("distributed_wide", rows, key=("ranks", "family", "way", "n", "gpu"))
            for row in rows:
                print(f"n = {n} {row['family']:8s} {row['way']:17s} {row['milliseconds']:9.1f} ms, x{row['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
