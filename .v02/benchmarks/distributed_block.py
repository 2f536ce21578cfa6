"""A transformer's block over several GPUs or processes, its linear layers column-parallel, then row-parallel: torch's
float32, its TF32 and prismm's beside each other.

Run: torchrun --nproc-per-node 2 benchmarks/distributed_block.py [--width 4096] [--batch 8] [--length 1024]; rank 0
writes results/distributed_block.csv. On CPUs gloo is used, without TF32.

A step is the forward pass, or both passes, of one block: attention of width/128 heads and a perceptron four times as
wide, of which every rank has its heads and columns. Times are medians of rounds in which all take turns, each the
slowest rank's. Errors are of the block's output relative to float64's, in the Frobenius norm.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from _common import machine, write
from _ranks import gpu_name, seconds, started
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import prismm

HEAD = 128


class Block(nn.Module):
    """Attention and a perceptron, each added to what it reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width)."""
        y = self.before(x)
        # A rank has some of the heads.
        heads = [z.unflatten(-1, (-1, HEAD)).transpose(1, 2) for z in (self.query(y), self.key(y), self.value(y))]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


PLAN = {
    **dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel),
    **dict.fromkeys(("out", "down"), RowwiseParallel),
}


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """TF32 in cuBLAS, for a while."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def main() -> None:
    """Measure on all ranks; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    mesh, device = started()
    torch.manual_seed(0)
    block = Block(options.width)
    x = torch.randn(options.batch, options.length, options.width).to(device)
    torch.manual_seed(0)
    with torch.no_grad():
        exact = Block(options.width).to(device).double()(x[:1].double())
    if mesh.size() > 1:
        parallelize_module(block, mesh, {name: each() for name, each in PLAN.items()})
    block.to(device)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return block(x)

    def training() -> None:
        block(x).square().mean().backward()
        block.zero_grad(set_to_none=True)

    ways: dict[str, Callable[[], Any]] = {"float32": contextlib.nullcontext, "prismm": prismm.emulate}
    if device.type == "cuda":
        ways["TF32"] = tf32
    rows = []
    for name, step in (("forward", forward), ("forward and backward", training)):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(options.rounds + 2):
            for way, context in ways.items():
                with context():
                    taken = seconds(step, device)
                if number >= 2:
                    times[way].append(taken)
        for way, context in ways.items():
            with context():
                found = forward()[:1].double()
            rows.append({
                "step": name, "way": way, "ranks": mesh.size(), "width": options.width, "batch": options.batch,
                "length": options.length, "seconds": statistics.median(times[way]),
                "ratio": statistics.median(x / y for x, y in zip(times["float32"], times[way], strict=True)),
                "slowest": max(times[way]), "error": float((found - exact).norm() / exact.norm()),
                "gpu": gpu_name(), **machine(),
            })  # fmt: skip
    if dist.get_rank() == 0:
        write("distributed_block", rows, key=("step", "way", "ranks", "width", "batch", "length", "gpu"))
        for row in rows:
            print(
                f"{row['ranks']} ranks, {row['step']:20s} {row['way']:8s} {1e3 * row['seconds']:8.2f} ms, "
                f"x{row['ratio']:.2f}, error {row['error']:.2e}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
