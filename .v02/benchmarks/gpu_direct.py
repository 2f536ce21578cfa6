"""Products in one kernel on float64's matrix instructions: every tile, the one that is chosen, cuBLAS, and cuBLAS with
the look at its result, over small and narrow shapes.

Run: python benchmarks/gpu_direct.py [--seconds 200] [--chosen]; writes results/gpu_direct.csv. Random normal data.
Times are medians of replays of graphs of twenty products each, of large ones two, in turn; errors are relative, in the
Frobenius norm, of a few entries. With --fit: measures nothing, and prints the paces of the tiles in
`prismm.cuda.native.launches` that fit that file. --chosen: no tiles but the chosen one and that of groups.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import RESULTS, machine, write
from gpu_gemm import sampled
from gpu_sweep import warm_up

import prismm
from prismm.cuda.costs.calibrate import seconds_of
from prismm.cuda.device import COUNTS, device_of
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native.launches import multiply_directly
from prismm.cuda.native.tiles import BY_GROUPS, TILES, Shape, Tile, TileTimes, least_seconds, tile_for, work
from prismm.cuda.operands import vectors_of
from prismm.cuda.views import Result

PRODUCTS, REPLAYS = 20, 5
ORDERS = (64, 96, 100, 128, 192, 256, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048)
NARROW = (
    (4096, 16, 512), (4096, 16, 2048), (4096, 64, 512), (4096, 64, 2048), (4096, 256, 64), (4096, 256, 512),
    (16384, 16, 64), (16384, 16, 512), (16384, 64, 64), (16384, 64, 512), (16384, 256, 64), (65536, 16, 64),
    (65536, 16, 512), (65536, 64, 64), (65536, 64, 512), (65536, 256, 64), (16, 4096, 512), (64, 4096, 512),
    (256, 4096, 64), (64, 16384, 64), (16, 65536, 64), (256, 65536, 64), (2048, 2048, 32), (2048, 2048, 128),
    (8192, 8192, 32), (4096, 256, 2048), (16384, 256, 512), (65536, 256, 512), (256, 16384, 512), (256, 65536, 512),
    (64, 65536, 512), (2048, 2048, 512), (8192, 8192, 128),
)  # fmt: skip
BATCHES = (
    (8, 64), (8, 256), (64, 32), (64, 128), (512, 32), (512, 64), (64, 512), (512, 256), (8, 1024), (64, 1024),
)  # fmt: skip


def shapes() -> list[tuple[int, int, int, int]]:
    """Batch, m, n, k."""
    found = [(1, n, n, n) for n in ORDERS] + [(1, *shape) for shape in NARROW]
    return found + [(batch, n, n, n) for batch, n in BATCHES]


def graph_of(call: Callable[[], Any], count: int) -> torch.cuda.CUDAGraph:
    """So many calls of it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph


def ours(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, tile: Tile) -> Callable[[], None]:
    """The kernel alone."""
    program, device = Program(), device_of(0)
    counts = program.allocate(torch.int64, COUNTS)
    target = Result(BufferView(OUT, 0, out.dtype), *out.shape, out.stride())
    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    multiply_directly(program, target, left, right, counts, device, tile)
    workspace = torch.zeros(program.workspace, dtype=torch.uint8, device="cuda")
    bases = a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()

    def run() -> None:
        program.run(bases, torch.cuda.current_stream().cuda_stream)
        assert workspace is not None

    return run


def name_of(tile: Tile) -> str:
    """Rows, columns, depth; warps; stages."""
    return f"{tile.rows}x{tile.columns}x{tile.depth} {tile.up}x{tile.along} {tile.stages}"


def tiles_of(shape: Shape) -> tuple[Tile, ...]:
    """Those that multiply it on this GPU."""
    some = (*TILES, *BY_GROUPS) if device_of(0).sm90 and shape.paired else TILES
    return tuple(tile for tile in some if tile.times(shape.size))


def measure(batch: int, m: int, n: int, k: int, dtype: str, only_chosen: bool) -> list[dict[str, Any]]:
    """Rows of a shape."""
    torch.manual_seed(m + n + k)
    a = torch.randn(batch, m, k, dtype=getattr(torch, dtype), device="cuda")
    b = torch.randn(batch, k, n, dtype=a.dtype, device="cuda")
    out, native = (torch.empty(batch, m, n, dtype=a.dtype, device="cuda") for _ in range(2))
    x, y, z = (a[0], b[0], native[0]) if batch == 1 else (a, b, native)
    shape, device = Shape(m, n, k, batch, a.element_size()), device_of(0)
    chosen = tile_for(shape, device.programs, sm90=device.sm90)
    tiles = [tile for tile in tiles_of(shape) if tile.groups or not only_chosen]
    calls: dict[str, Callable[[], Any]] = {
        "cuBLAS": lambda: torch.matmul(x, y, out=z),
        "cuBLAS, looked at": lambda: prismm.matmul(x, y, out=z, scheme=prismm.Native(), accuracy="native"),
        "chosen": ours(a, b, out, chosen),
        **{name_of(tile): ours(a, b, out, tile) for tile in tiles},
    }
    count = PRODUCTS if batch * m * n * k < 1 << 33 else 2
    graphs = {name: graph_of(call, count) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(REPLAYS + 1):
        for name, graph in graphs.items():
            seconds = seconds_of(graph.replay) / count
            if turn:
                times[name].append(seconds)
    rows = []
    for name, call in calls.items():
        out.fill_(math.nan)
        native.fill_(math.nan)
        call()
        found = native if name.startswith("cuBLAS") else out
        assert bool(torch.isfinite(found).all())
        rows.append(
            {
                "dtype": dtype,
                "batch": batch,
                "m": m,
                "n": n,
                "k": k,
                "tile": name,
                "is": name_of(chosen) if name == "chosen" else "",
                "ms": 1e3 * statistics.median(times[name]),
                "slowest_ms": 1e3 * max(times[name]),
                "error": sampled(found[0], a[0], b[0]),
                "gpu": torch.cuda.get_device_name(0),
                **machine(),
            }
        )
    return rows


def fitted(tile: Tile, shapes: list[Shape], microseconds: list[float]) -> tuple[float, TileTimes]:
    """The pace on an H200 that fits a tile's times best, of a grid, and its mean relative error. Shapes whose
    elements are copied one by one have no say.
    """
    size, full = shapes[0].size, 1e6 * 2.0 * tile.rows * tile.columns * tile.depth * 132 / 67e12
    least = [1e6 * least_seconds(shape, 4e12) for shape in shapes]
    best = math.inf, TileTimes(0.0, 0.0, 0.0, 0.0)
    shares = (0.42, 0.46, 0.5, 0.54, 0.58, 0.62, 0.66, 0.7, 0.74, 0.78, 0.82, 0.86, 0.9)
    latencies, results = (
        (1.0, 1.15, 1.3, 1.5, 1.7, 2.0, 2.3, 2.6, 3.0, 3.5, 4.0, 5.0),
        (0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 2.0),
    )
    for start, share, result, latency in itertools.product((1.0, 1.2, 1.5, 1.8), shares, results, latencies):
        pace = TileTimes(start, round(latency * full / share, 3), round(full / share, 3), result)
        one = dataclasses.replace(tile, **{"double" if size == 8 else "single": pace})
        found = (max(work(one, shape, 132), x) for shape, x in zip(shapes, least, strict=True))
        error = statistics.fmean(abs(math.log(x / y)) for x, y in zip(found, microseconds, strict=True))
        best = min(best, (error, pace))
    return best


def fit() -> None:
    """Print `TILES` with the paces that fit the file."""
    with (RESULTS / "gpu_direct.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == "NVIDIA H200"]
    for tile in (*TILES, *BY_GROUPS):
        paces: list[tuple[float, TileTimes | None]] = []
        for dtype, size in (("float64", 8), ("float32", 4)):
            if tile.times(size) is None:
                paces.append((0.0, None))
                continue
            own = [row for row in rows if row["dtype"] == dtype and row["tile"] == name_of(tile)]
            times = {
                Shape(*(int(row[x]) for x in ("m", "n", "k", "batch")), size): 1e3 * float(row["ms"]) for row in own
            }
            times = {shape: time for shape, time in times.items() if not shape.single_copies(tile)}
            paces.append(fitted(tile, list(times), list(times.values())))
        (first, double), (second, single) = paces
        print(dataclasses.replace(tile, double=double, single=single), f"errors {first:.3f}, {second:.3f}", flush=True)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further shape after so many")
    parser.add_argument("--chosen", action="store_true", help="no tiles but the chosen one and that of groups")
    parser.add_argument("--fit", action="store_true", help="the paces that fit the file; measures nothing")
    options = parser.parse_args()
    if options.fit:
        return fit()
    start, rows = time.perf_counter(), []
    warm_up()
    for shape, dtype in itertools.product(shapes(), ("float64", "float32")):
        if time.perf_counter() - start > options.seconds:
            print("out of time", file=sys.stderr)
            break
        found = measure(*shape, dtype, options.chosen)
        rows += found
        times = {row["tile"]: 1e3 * row["ms"] for row in found}
        best = min(time for name, time in times.items() if not name.startswith("cuBLAS"))
        print(
            f"{dtype} {shape}: cuBLAS {times['cuBLAS']:.2f} us, looked at {times['cuBLAS, looked at']:.2f}, ours "
            f"{times['chosen']:.2f} ({found[2]['is']}), best {best:.2f}; error {found[2]['error']:.1e}, cuBLAS "
            f"{found[0]['error']:.1e}",
            flush=True,
        )
    write("gpu_direct", rows, key=("dtype", "batch", "m", "n", "k", "tile", "gpu"))


if __name__ == "__main__":
    main()
