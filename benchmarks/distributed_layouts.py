"""One float64 product by several GPUs: rows of A on each, or the inner dimension; torch's beside prismm's.

Run: torchrun --nproc-per-node 2 benchmarks/distributed_layouts.py [--orders 8192,16384,32768]; rank 0 writes
results/distributed_layouts.csv. On CPUs gloo is used.

"one" is a single GPU. "rows": each GPU has rows of A and all of B, and gets rows of the result. "inner": each has
columns of A and rows of B, and gets rows of the result; torch's is a product and a reduce-scatter. prismm's are
products of DTensors, reproducible ones and correctly rounded ones. Times are medians of rounds in which all take turns,
each the slowest rank's, from a common start.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _common import machine, write
from _ranks import gpu_name, in_turns, started
from torch.distributed.tensor import DTensor, Replicate, Shard

import prismm

WAYS: dict[str, dict[str, Any]] = {
    "prismm": {"reproducible": True},
    "correctly rounded": {"accuracy": "correctly-rounded"},
}
"""Ways of prismm by name, with the keywords that ask `prismm.matmul` for each."""


def tasks_of(n: int, mesh: Any, device: torch.device) -> dict[tuple[str, str], Callable[[], Any]]:
    """By layout and way; n is a multiple of the ranks."""
    size, rank = n // mesh.size(), mesh.get_local_rank()
    torch.manual_seed(rank)
    b = torch.randn(n, n, dtype=torch.float64, device=device)
    rows = torch.randn(size, n, dtype=torch.float64, device=device)
    columns = rows.T.contiguous()
    whole = torch.randn(n, n, dtype=torch.float64, device=device) if rank == 0 else rows
    part, landed = b[:size].clone(), torch.empty_like(rows)

    def placed(x: torch.Tensor, placement: Any) -> DTensor:
        return DTensor.from_local(x, mesh, [placement], run_check=False, shape=torch.Size((n, n)), stride=(n, 1))

    of_rows = placed(rows, Shard(0)), placed(b, Replicate())
    of_inner = placed(columns, Shard(1)), placed(part, Shard(0))

    def reduced() -> None:
        dist.reduce_scatter_tensor(landed, torch.mm(columns, part))

    tasks: dict[tuple[str, str], Callable[[], Any]] = {
        ("one", "torch"): lambda: torch.mm(whole, b),
        ("rows", "torch"): lambda: torch.mm(rows, b),
        ("inner", "torch"): reduced,
    }
    for layout, operands in (("one", (whole, b)), ("rows", of_rows), ("inner", of_inner)):
        for way, asked in WAYS.items():
            tasks[layout, way] = functools.partial(prismm.matmul, *operands, **asked)
    return tasks


def main() -> None:
    """Measure on all ranks; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", default="8192,16384,32768", help="multiples of the ranks, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    mesh, device = started()
    for n in map(int, options.orders.split(",")):
        tasks = tasks_of(n, mesh, device)
        # A product of a second is not repeated as often as one of a hundredth of it.
        rounds = max(2, options.rounds * 8192 // n)
        times = in_turns(tasks, device, rounds, alone=lambda key: key[0] == "one")
        rows = []
        for (layout, way), found in times.items():
            rows.append({
                "gpus": 1 if layout == "one" else mesh.size(), "layout": layout, "way": way, "n": n,
                "milliseconds": 1e3 * statistics.median(found), "rounds": len(found),
                "gpu": gpu_name(), **machine(),
            })  # fmt: skip
        if dist.get_rank() == 0:
            write("distributed_layouts", rows, key=("gpus", "layout", "way", "n", "gpu"))
            for row in rows:
                size = f"{row['gpus']} {row['layout']:6s} {row['way']:17s} n = {row['n']:6d}"
                print(f"{size} {row['milliseconds']:9.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
