"""Conventional products in one kernel, in parts, and with vectors, beside cuBLAS: the best of the tiles that one group
of warps multiplies, those of two groups for Hopper, the best split of the inner dimension, and a split of the latter.

Run: python benchmarks/gpu_parts.py [--seconds 200]; writes results/gpu_parts.csv. Random normal data. Times are medians
of seven replays of graphs of twenty products, of large ones four; errors are relative, in the Frobenius norm, to a
product in float64 of float32 numbers, and cuBLAS's of float64 ones (whose own error is about 1e-15).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from _common import machine, write
from gpu_direct import graph_of, name_of
from gpu_sweep import warm_up

from prismm.cuda.costs.calibrate import seconds_of
from prismm.cuda.device import COUNTS, device_of
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native.launches import multiply_directly, multiply_in_parts
from prismm.cuda.native.tiles import BY_GROUPS, TILES, Shape, Split, faster_split, has_vector_kernel, work
from prismm.cuda.operands import vectors_of
from prismm.cuda.views import Result

REPLAYS = 7
LONG = (
    (64, 64, 8192), (64, 64, 32768), (64, 64, 131072), (256, 256, 8192), (256, 256, 32768), (128, 128, 4096),
    (256, 256, 2048), (512, 512, 2048), (1024, 64, 4096), (4096, 16, 2048), (4096, 64, 2048), (512, 512, 8192),
)  # fmt: skip
SQUARE = (256, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048)
NARROW = (
    (2048, 2048, 512), (2048, 2048, 128), (65536, 256, 64), (65536, 64, 512), (64, 65536, 512), (256, 65536, 512),
    (8192, 8192, 128), (16384, 64, 512), (4096, 256, 512),
)  # fmt: skip
VECTORS = (
    (65536, 256), (65536, 64), (16384, 512), (1024, 1024), (4096, 1024), (8192, 8192), (2048, 4096), (1000, 300),
    (16384, 2048), (1024, 4096),
)  # fmt: skip


def shapes() -> list[tuple[str, int, int, int]]:
    """Type, m, n, k."""
    both = ("float32", "float64")
    found = [(dtype, *shape) for dtype in both for shape in LONG]
    found += [("float32", n, n, n) for n in SQUARE] + [("float32", *shape) for shape in NARROW]
    return found + [(dtype, m, 1, k) for dtype in both for m, k in VECTORS]


def ways(shape: Shape, processors: int) -> dict[str, Any]:
    """Tiles and splits by name; None for the kernel of vectors."""
    if has_vector_kernel(shape):
        return {"vector": None}
    best = min((tile for tile in TILES if tile.times(shape.size)), key=lambda tile: work(tile, shape, processors))
    found: dict[str, Any] = {f"tile {name_of(best)}": best}
    split = faster_split(shape, processors)
    if split is not None:
        found[f"{split.parts} parts {name_of(split.tile)}"] = split
    if device_of(0).sm90 and shape.paired:
        groups = next(tile for tile in BY_GROUPS if tile.times(shape.size))
        found["groups"] = groups
        parts = processors // (-(-shape.m // groups.rows) * -(-shape.n // groups.columns))
        steps = -(-shape.k // groups.depth)
        if parts >= 2 and steps >= 4 * parts:
            length = -(-steps // parts) * groups.depth
            parts = -(-shape.k // length)
            found[f"{parts} parts groups"] = Split(groups, parts, length)
    return found


def measure(dtype: str, m: int, n: int, k: int) -> list[dict[str, Any]]:
    """Rows of a shape."""
    torch.manual_seed(m + n + k)
    a = torch.randn(1, m, k, dtype=getattr(torch, dtype), device="cuda")
    b = torch.randn(1, k, n, dtype=a.dtype, device="cuda")
    out = torch.empty(1, m, n, dtype=a.dtype, device="cuda")
    wide = a.double() @ b.double()
    device, size = device_of(0), float(wide.norm())
    calls = {"cuBLAS": lambda: torch.bmm(a, b, out=out)}
    for name, way in ways(Shape(m, n, k, 1, a.element_size()), device.programs).items():
        program = Program(tuple(x.data_ptr() % 16 for x in (a, b, out)))
        counts = program.allocate(torch.int64, COUNTS)
        target = Result(BufferView(OUT, 0, out.dtype), 1, m, n, out.stride())
        left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
        if isinstance(way, Split):
            multiply_in_parts(program, target, left, right, counts, way, device)
        else:
            multiply_directly(program, target, left, right, counts, device, way)
        workspace = torch.zeros(program.workspace, dtype=torch.uint8, device="cuda")
        bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()

        def run(
            program: Program = program, bases: tuple[int, ...] = bases, workspace: torch.Tensor = workspace
        ) -> None:
            program.run(bases, torch.cuda.current_stream().cuda_stream)

        calls[name] = run
    count = 20 if 2 * m * n * k < 3e9 else 4
    rows = []
    for name, call in calls.items():
        replay = graph_of(call, count).replay
        replay()
        seconds = statistics.median(seconds_of(replay) for _ in range(REPLAYS)) / count
        error = float((out.double() - wide).norm()) / size
        rows.append(
            {"dtype": dtype, "m": m, "n": n, "k": k, "way": name, "ms": 1e3 * seconds, "error": error,
             "gpu": torch.cuda.get_device_name(0), **machine()}
        )  # fmt: skip
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further shape after so many")
    options = parser.parse_args()
    start, rows = time.perf_counter(), []
    warm_up()
    for shape in shapes():
        if time.perf_counter() - start > options.seconds:
            break
        rows += (found := measure(*shape))
        print(*shape, {row["way"]: round(1e3 * row["ms"], 1) for row in found}, flush=True)
    write("gpu_parts", rows, key=("dtype", "m", "n", "k", "way", "gpu"))


if __name__ == "__main__":
    main()
