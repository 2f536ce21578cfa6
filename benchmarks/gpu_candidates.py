"""What every scheme that Auto weighs takes on the GPU, over shapes drawn at random: the times that the cost model's
constants come from (`gpu_fit.py`), and others that it is judged by.

Run: python benchmarks/gpu_candidates.py [--draw fit|cublas|auto] [--seed N] [--seconds 200] [--compile 100]; writes
results/gpu_candidates.csv, a row for each shape and candidate, and results/gpu_kernels.csv, the kernels of one call of
prismm's by CUPTI, name and microseconds. Draws:

fit: shapes of all lengths and alignments and some regular ones, with every candidate that might be near, tiles of the
conventional kernel that are not chosen among them. cublas: cuBLAS alone, over more shapes. auto: m, n and k log-uniform
between 8 and 9400, a tenth in batches, as `gpu_sweep.py` has them: cuBLAS, what Auto takes, and what it weighed; a seed
that nothing was fitted to judges the model.

Microseconds are medians of replays of CUDA graphs of many calls, whose operands and results rotate, candidates in turn;
all is queued while the GPU is held, so that the host has no part. Before anything is timed, processes make all calls
side by side, for their kernels.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _common import RESULTS, machine

from prismm.core.accuracy import parse_target
from prismm.core.problem import Problem
from prismm.cuda.choice import moduli_for_rounding, moduli_matching_cublas
from prismm.cuda.costs.predict import gpu_seconds
from prismm.cuda.costs.table import Rates, committed
from prismm.cuda.multiword.implementation import of_native_grade, shares_for
from prismm.cuda.native.seconds import cublas_seconds, kernel_seconds, shape_of
from prismm.cuda.native.tiles import BY_GROUPS, TILES, work
from prismm.formats import FP32, FP64
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

CARD = "NVIDIA H100 80GB HBM3"
"""The card whose table says which candidates might be near."""
SETS, ROUNDS = 6, 5
LARGEST, LEAST, LONG, BATCH = 9400, 8, 60e-6, 64
ALL_TILES = (*TILES, *BY_GROUPS)
REGULAR = (
    *((0, n, n, n) for n in (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
    *((0, *x) for x in ((4096, 64, 512), (4096, 4096, 64), (8192, 8192, 128), (2048, 2048, 512), (65536, 64, 256))),
    *((0, *x) for x in ((64, 64, 8192), (256, 256, 16384), (1024, 1024, 8192), (3050, 7035, 569), (1540, 2293, 198))),
    *((0, *x) for x in ((4033, 554, 8), (1704, 2006, 120), (936, 4681, 872), (265, 129, 2776), (2569, 409, 864))),
    *((0, *x) for x in ((9001, 8503, 9301), (16, 3072, 768), (512, 768, 3072), (8192, 2304, 768), (8192, 768, 3072))),
)
"""Batch, m, n, k."""


class Item(NamedTuple):
    """A product: its type, the accuracy asked for, batch (0: none), m, n, k, and the source of the shape."""

    dtype: str
    asked: str
    batch: int
    m: int
    n: int
    k: int
    kind: str

    @property
    def problem(self) -> Problem:
        """As the planner has it."""
        precise = self.dtype in ("float64", "complex128")
        target = parse_target("correctly-rounded" if self.asked == "rounded" else "native")
        return Problem(
            self.m, self.n, self.k, (self.batch,) if self.batch else (), FP64 if precise else FP32, target,
            self.asked == "reproducible", True, self.dtype.startswith("complex"),
        )  # fmt: skip


def log_uniform(rng: random.Random, least: float, most: float) -> int:
    """An integer."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def shape(rng: random.Random, long: bool, rates: Rates, batched: bool = False) -> tuple[int, int, int, int]:
    """Batch, m, n, k of a product that takes cuBLAS longer in float64 than LONG, or no longer; of any extents, of
    multiples of 4, or of 16.
    """
    while True:
        step = rng.choice((1, 1, 4, 16))
        m, n, k = (max(step, step * round(log_uniform(rng, LEAST, LARGEST) / step)) for _ in range(3))
        batch = log_uniform(rng, 2, BATCH) if batched else 0
        if max(batch, 1) * max(m * k, k * n, m * n) > 1 << 27:
            continue
        seconds = cublas_seconds(Item("float64", "native", batch, m, n, k, "").problem, rates)
        if seconds < 20e-3 and (batched or (seconds > LONG) == long):
            return batch, m, n, k


def to_fit(rng: random.Random, rates: Rates) -> list[Item]:
    """Items such that any beginning has something of everything."""
    native = [("random", shape(rng, x % 2 == 0, rates)) for x in range(240)]
    native += [("random", shape(rng, False, rates, True)) for _ in range(26)]
    native += [("regular", x) for x in REGULAR]
    rng.shuffle(native)
    found = [Item(dtype, "native", *one, kind) for kind, one in native for dtype in ("float64", "float32")]
    others = []
    for dtype, asked, count in (
        ("complex128", "native", 40), ("complex64", "native", 30), ("float64", "reproducible", 20),
        ("float32", "reproducible", 20), ("float64", "rounded", 20), ("float32", "rounded", 20),
    ):  # fmt: skip
        others += [Item(dtype, asked, *shape(rng, x % 4 != 0, rates), "random") for x in range(count)]
    rng.shuffle(others)
    for x, one in enumerate(others):
        found.insert(min(len(found), 4 * x + 3), one)
    return found


def for_cublas(rng: random.Random, rates: Rates, count: int = 420) -> list[Item]:
    """So many shapes in float64, fewer in other types."""
    found = []
    for x in range(count):
        one = shape(rng, x % 2 == 0, rates, x % 10 == 9)
        for dtype, every in (("float64", 1), ("float32", 2), ("complex128", 6), ("complex64", 8)):
            if x % every == 0:
                found.append(Item(dtype, "native", *one, "random"))
    return found


def for_auto(rng: random.Random, count: int = 200) -> list[Item]:
    """So many shapes in float64 and float32, a quarter as many in complex types."""
    found: list[Item] = []
    while len(found) < 2.5 * count:
        m, n, k = (log_uniform(rng, LEAST, LARGEST) for _ in range(3))
        batch = log_uniform(rng, 2, BATCH) if rng.random() < 0.1 else 0
        if max(batch, 1) * max(m * k, k * n, m * n) > 1 << 27 or max(batch, 1) * m * n * k > 1 << 39:
            continue
        kinds = ["float64", "float32"]
        if rng.random() < 0.5:
            kinds.append("complex128" if len(found) % 2 else "complex64")
        found += [Item(dtype, "native", batch, m, n, k, "drawn") for dtype in kinds]
    return found


def candidates(item: Item, number: int, rates: Rates) -> list[str]:
    """Names of the implementations to time: those that are predicted to take less than about twice cuBLAS's time. Every
    third shape has other tiles of the conventional kernel, too.
    """
    problem = item.problem
    native = cublas_seconds(problem, rates)
    found = ["cublas"]
    if item.asked == "native":
        found.append("checked")
        if not problem.is_complex and kernel_seconds(problem, rates) < 1.6 * native + 3e-6:
            found += ["fp64", *(_other_tiles(problem, native, rates) if number // 2 % 3 == 0 else [])]
        words = of_native_grade(problem)
        if words is not None and gpu_seconds(words, problem, rates) < 2.0 * native:
            found.append(name_of_words(words, problem, rates))
    moduli = moduli_for_rounding(problem, rates) if item.asked == "rounded" else 0
    moduli = moduli or moduli_matching_cublas(problem.result, problem.terms) + (item.asked == "reproducible")
    if item.asked != "native" or gpu_seconds(Residues(moduli), problem, rates) < 1.8 * native:
        found.append(f"residues:{moduli}")
    return found


def name_of_words(words: ScaledHalf, problem: Problem, rates: Rates) -> str:
    """The candidate's name: its chunk, and in how many shares a tile's chunks are taken, if that is more than one."""
    shares = shares_for(words, problem, rates)
    return f"half:{words.chunk}" + (f":{shares}" if shares > 1 else "")


def weighed(item: Item, rates: Rates) -> list[str]:
    """cuBLAS, what Auto takes, and what it might nearly have taken."""
    problem = item.problem
    native, found = cublas_seconds(problem, rates), ["cublas", "auto", "checked"]
    if not problem.is_complex and kernel_seconds(problem, rates) < 1.3 * native + 2e-6:
        found.append("fp64")
    words, moduli = of_native_grade(problem), moduli_matching_cublas(problem.result, problem.terms)
    if words is not None and gpu_seconds(words, problem, rates) < 1.2 * native:
        found.append(name_of_words(words, problem, rates))
    elif gpu_seconds(Residues(moduli), problem, rates) < 1.25 * native:
        found.append(f"residues:{moduli}")
    return found


def _other_tiles(problem: Problem, native: float, rates: Rates) -> list[str]:
    """The two tiles that are predicted fastest."""
    one = shape_of(problem)
    some = [x for x in ALL_TILES if x.times(one.size) and (one.paired or not x.groups)]
    ranked = sorted(some, key=lambda tile: work(tile, one, rates.processors))
    return [f"tile:{ALL_TILES.index(x)}" for x in ranked[:2] if 1e-6 * work(x, one, 132) < 2.0 * native + 3e-6]


def operands(item: Item) -> list[tuple[Any, Any, Any]]:
    """Sets of (a, b, out): more than the cache holds, where memory has room."""
    import torch

    kind, many = getattr(torch, item.dtype), (item.batch,) if item.batch else ()
    shapes = (*many, item.m, item.k), (*many, item.k, item.n), (*many, item.m, item.n)
    count = SETS if sum(map(math.prod, shapes)) * item.problem.number_bytes < 1 << 28 else 2
    return [tuple(torch.randn(x, dtype=kind, device="cuda") for x in shapes) for _ in range(count)]  # type: ignore[misc]


def call_of(item: Item, name: str) -> Callable[[Any, Any, Any], Any]:
    """The call of a candidate, (a, b, out)."""
    import torch

    import prismm

    kind, *rest = name.split(":")
    if kind == "cublas":
        return lambda a, b, out: torch.matmul(a, b, out=out)
    if kind == "auto":
        return lambda a, b, out: prismm.matmul(a, b, out=out)
    if kind == "tile":
        return _in_tiles(int(rest[0]))
    accuracy = "correctly-rounded" if item.asked == "rounded" else "native"
    engine = {"checked": "cuda:blas", "fp64": "cuda:fp64"}.get(kind)
    scheme: Any = Native("float64" if kind == "fp64" and item.dtype == "float32" else None)
    if kind == "half":
        scheme = of_native_grade(item.problem)
    elif kind == "residues":
        scheme = Residues(int(rest[0]))
    return lambda a, b, out: prismm.matmul(a, b, out=out, scheme=scheme, accuracy=accuracy, engine=engine)


def _in_tiles(number: int) -> Callable[[Any, Any, Any], Any]:
    """The conventional kernel in these tiles."""
    import torch
    from gpu_direct import ours

    runs: dict[tuple[int, ...], Callable[[], None]] = {}

    def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        key = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if key not in runs:
            a, b, out = (x if x.ndim == 3 else x[None] for x in (a, b, out))
            runs[key] = ours(a, b, out, ALL_TILES[number])
        runs[key]()

    return run


def graph_of(call: Callable[[Any, Any, Any], Any], sets: list[Any], stream: Any) -> tuple[Any, int]:
    """A graph of some calls with operands in turn, and of how many."""
    import torch

    for one in sets:
        call(*one)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call(*sets[0])
    stop.record()
    stop.synchronize()
    count = max(1, min(36, int(0.6 / start.elapsed_time(stop))))
    count = -(-count // len(sets)) * len(sets) if count > 1 else 2
    # Not `torch.cuda.graph`, which empties caches and collects garbage every time.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for x in range(count):
                call(*sets[x % len(sets)])
        finally:
            graph.capture_end()
    return graph, count


def timed(graphs: dict[str, tuple[Any, int]]) -> dict[str, list[float]]:
    """Seconds of a call of each, several times, in turn."""
    import torch

    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    for graph, _ in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        torch.cuda._sleep(200_000)
        for name, (graph, _) in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            graph.replay()
            stop.record()
            events[name].append((start, stop))
    torch.cuda.synchronize()
    return {
        name: [1e-3 * x.elapsed_time(y) / (2 * graphs[name][1]) for x, y in found] for name, found in events.items()
    }


def measure(item: Item, names: list[str], stream: Any) -> dict[str, list[float]]:
    """Seconds by candidate."""
    import torch

    sets, graphs = operands(item), {}
    for name in names:
        try:
            graphs[name] = graph_of(call_of(item, name), sets, stream)
        except Exception as error:
            print(f"{item} {name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    found = timed(graphs)
    for graph, _ in graphs.values():
        graph.reset()
    if torch.cuda.memory_reserved() > 30 << 30:
        torch.cuda.empty_cache()
    return found


def kernels(some: list[tuple[Item, list[str]]]) -> list[dict[str, str]]:
    """Kernels and their microseconds in one call of every candidate."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as session:
        for item, names in some:
            one = operands(item)[0]
            for name in names:
                call = call_of(item, name)
                call(*one)
                torch.cuda._sleep(1000)  # a kernel that parts one call from the next
                call(*one)
                torch.cuda._sleep(1000)
        torch.cuda.synchronize()
    events = [x for x in session.profiler.kineto_results.events() if str(x.device_type()).endswith("CUDA")]
    parts: list[list[str]] = [[]]
    for event in sorted(events, key=lambda x: x.start_ns()):
        if "spin_kernel" in event.name():
            parts.append([])
        else:
            name = event.name().split("<")[0].split("(")[0].removeprefix("void ").strip()
            parts[-1].append(f"{name}={1e-3 * event.duration_ns():.3f}")
    calls = iter(parts[1::2])
    return [{name: ";".join(next(calls)) for name in names} for _, names in some]


def compile_some(queue: Any, seconds: float) -> None:
    """Make calls once each, so that their kernels are on disk, while there are some and there is time."""
    import torch

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            item, name = queue.get(timeout=1.0)
        except Exception:
            return
        try:
            call_of(item, name)(*operands(item)[0])
            torch.cuda.synchronize()
        except Exception as error:
            print(f"{item} {name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        torch.cuda.empty_cache()


def compiled_before(tasks: list[tuple[Item, str]], seconds: float, processes: int) -> None:
    """Kernels of these calls, by so many processes."""
    context = multiprocessing.get_context("spawn")
    queue, start = context.Queue(), time.monotonic()
    for task in tasks:
        queue.put(task)
    some = [context.Process(target=compile_some, args=(queue, seconds), daemon=True) for _ in range(processes)]
    for one in some:
        one.start()
    for one in some:
        one.join(max(1.0, seconds + 8.0 - (time.monotonic() - start)))
        if one.is_alive():
            one.terminate()
    print(f"compiled in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    queue.cancel_join_thread()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", choices=("fit", "cublas", "auto"), default="auto")
    parser.add_argument("--seed", type=int, default=None, help="of the shapes; default: another one every time")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no further shape after so many")
    parser.add_argument("--compile", type=float, default=100.0, help="seconds to compile side by side")
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    rates, rng = committed()[CARD], random.Random(seed)
    if options.draw == "cublas":
        todo = [(item, ["cublas"]) for item in for_cublas(rng, rates)]
    elif options.draw == "fit":
        todo = [(item, candidates(item, number, rates)) for number, item in enumerate(to_fit(rng, rates))]
    else:
        todo = [(item, weighed(item, rates)) for item in for_auto(rng)]
    tasks = [(item, name) for item, names in todo for name in names if name not in ("cublas", "checked")]
    print(f"seed {seed}: {len(todo)} shapes, {len(tasks)} calls of prismm", flush=True)
    if tasks:
        compiled_before(tasks, options.compile, options.processes)
    run(todo, seed, options.seconds, options.out)


def run(todo: list[tuple[Item, list[str]]], seed: int, seconds: float, folder: Path) -> None:
    """Measure all, or as many as there is time for; rows are added to the files."""
    import torch

    gc.collect()
    gc.disable()
    about = machine()
    where = [torch.cuda.get_device_name(0), about["date"], about["torch"]]
    start, done, stream = time.monotonic(), list[tuple[Item, list[str]]](), torch.cuda.Stream()
    with (folder / "gpu_candidates.csv").open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(["seed", *Item._fields, "candidate", "us", "least_us", "most_us", "gpu", "date", "torch"])
        for item, names in todo:
            if time.monotonic() - start > seconds:
                print("out of time", file=sys.stderr)
                break
            for name, times in measure(item, names, stream).items():
                us = [1e6 * x for x in (statistics.median(times), min(times), max(times))]
                writer.writerow([seed, *item, name, *(f"{x:.5g}" for x in us), *where])
            done.append((item, [name for name in names if name.split(":")[0] in ("half", "residues")]))
            file.flush()
    with (folder / "gpu_kernels.csv").open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(["seed", *Item._fields, "candidate", "kernels", "gpu", "date", "torch"])
        for x in range(0, len(done), 30):
            some = [one for one in done[x : x + 30] if one[1]]
            for (item, _), found in zip(some, kernels(some), strict=True):
                for name, parts in found.items():
                    writer.writerow([seed, *item, name, parts, *where])


if __name__ == "__main__":
    main()
