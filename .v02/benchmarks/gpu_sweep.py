"""Calls as programs make them beside cuBLAS: shapes drawn at random, new addresses; and regular shapes.

Run: python benchmarks/gpu_sweep.py [--seed N] [--shapes 200] [--seconds 500]; writes results/gpu_shapes.csv. The seed
is drawn where none is given, and printed. m, n and k are log-uniform between 8 and 9400, and one shape in ten is a
batch; gemm, prepared and complex calls take the first quarter of the shapes. Operands are random normal numbers; six
sets of them rotate, and results are kept, so that addresses are new. Before anything is timed, processes make all calls
side by side, for their kernels (--compile SECONDS, 0: not).

Times are medians of rounds in which prismm and torch take turns, of calls in a row. card_us is what the GPU takes of
calls that were queued while it was held busy; host_us what the host takes to queue them; queued what a call takes in a
row of them, idle what one takes by itself. Ratios are torch's times to prismm's. Errors are those of some entries,
against products that prismm rounds correctly in float64: relative in the Frobenius norm, and the largest one relative
to |a||b|.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from _common import machine, write
from _gpu_processes import measured_before
from gpu_words import interleaved

import prismm
from prismm.cuda.costs.calibrate import seconds_of

LARGEST, LEAST, BATCH = 9400, 8, 64
SETS, ROUNDS = 6, 5
ALPHA, BETA = 1.5, -0.5
KEPT = 6 << 30
"""Bytes of results that are kept while a row is timed."""
IN_A_ROW, A_ROW = 24, 4e-3
"""Calls in a row at most, and how long they take at most, but for two."""
ORDERS = (64, 128, 256, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
NARROW = ((4096, 64, 512), (64, 4096, 512), (65536, 64, 256), (256, 256, 16384), (8192, 8192, 128), (2048, 2048, 512))
BATCHES = ((512, 32), (64, 128), (64, 512), (8, 1024))


class Row(NamedTuple):
    """A call: which table, its form, type, batch (0: none), m, n, k."""

    table: str
    form: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int


def drawn(seed: int, count: int) -> list[Row]:
    """So many shapes of each type, and a quarter as many of other forms."""
    rng, found = random.Random(seed), []
    for number in range(count):
        while True:
            m, n, k = (round(math.exp(rng.uniform(math.log(LEAST), math.log(LARGEST)))) for _ in range(3))
            batch = round(math.exp(rng.uniform(math.log(2), math.log(BATCH)))) if number % 10 == 9 else 0
            if max(batch, 1) * max(m * k, k * n, m * n) < 1 << 27 and max(batch, 1) * m * n * k < 1 << 39:
                break
        found += [Row("random", "matmul", dtype, batch, m, n, k) for dtype in ("float64", "float32")]
        if 4 * number < count:
            others = ("matmul", "complex128"), ("matmul", "complex64"), ("gemm", "float64"), ("gemm", "float32")
            prepared = (("prepared", "float64"), ("prepared", "float32")) if not batch else ()
            found += [Row("random", form, dtype, batch, m, n, k) for form, dtype in (*others, *prepared)]
    return found


def regular() -> list[Row]:
    """Shapes as benchmarks have them."""
    shapes = [(0, n, n, n) for n in ORDERS] + [(0, *shape) for shape in NARROW] + [(b, n, n, n) for b, n in BATCHES]
    return [Row("regular", "matmul", dtype, *shape) for shape in shapes for dtype in ("float64", "float32")]


def warm_up(seconds: float = 2.0) -> None:
    """Clocks that are low when nothing runs rise within a second."""
    x = torch.ones(4096, 4096, device="cuda")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        x @ x
        torch.cuda.synchronize()


def timed(calls: list[Callable[[], Any]], least: float = 2e-3) -> list[float]:
    """Median seconds of calls in turn, after some that do not count; more turns of short ones."""
    for _ in range(6):
        for call in calls:
            call()
    longest = max(seconds_of(call) for call in calls)
    return interleaved(calls, min(25, max(5, math.ceil(least / longest))))


class Calls:
    """prismm's call and torch's over sets of operands in turn, whose results are kept."""

    def __init__(self, row: Row) -> None:
        many = (row.batch,) if row.batch else ()
        kind = getattr(torch, row.dtype)
        shapes = (*many, row.m, row.k), (*many, row.k, row.n), (*many, row.m, row.n)
        size = sum(map(math.prod, shapes)) * torch.empty(0, dtype=kind).element_size()
        self.result_bytes = math.prod(shapes[2]) * torch.empty(0, dtype=kind).element_size()
        count = SETS if size < 1 << 30 else 2
        self.row, self.kept = row, list[Any]()
        self.sets = [tuple(torch.randn(x, dtype=kind, device="cuda") for x in shapes) for _ in range(count)]
        self.prepared = [prismm.prepare(b) for _, b, _ in self.sets] if row.form == "prepared" else []

    def ours(self, number: int) -> Any:
        """The call on one of the sets."""
        place = number % len(self.sets)
        a, b, c = self.sets[place]
        if self.row.form == "gemm":
            return prismm.gemm(a, b, c, alpha=ALPHA, beta=BETA)
        return prismm.matmul(a, self.prepared[place] if self.prepared else b)

    def theirs(self, number: int) -> Any:
        """torch's."""
        a, b, c = self.sets[number % len(self.sets)]
        if self.row.form == "gemm":
            return (torch.baddbmm if self.row.batch else torch.addmm)(c, a, b, beta=BETA, alpha=ALPHA)
        return torch.matmul(a, b)

    def keep(self, result: Any) -> None:
        """So that its address is not used again for a while."""
        self.kept.append(result)
        if len(self.kept) * self.result_bytes > KEPT:
            torch.cuda.synchronize()
            self.kept.clear()


def held(calls: Calls, call: Callable[[int], Any], count: int) -> tuple[float, float]:
    """Seconds of the GPU and of the host for a call, of so many that are queued while the GPU is held."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 400_000
    while True:
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        start.record()
        begin = time.perf_counter()
        for number in range(count):
            calls.keep(call(number))
        host = time.perf_counter() - begin
        stop.record()
        waiting = not start.query()
        stop.synchronize()
        if waiting or cycles > 1 << 28:
            return 1e-3 * start.elapsed_time(stop) / count, host / count
        cycles *= 4


def in_a_row(calls: Calls, call: Callable[[int], Any], count: int) -> float:
    """Seconds of a call, of so many in a row."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(count):
        calls.keep(call(number))
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def medians(rounds: Iterable[Any]) -> Any:
    """Of each column."""
    return [statistics.median(x) for x in zip(*rounds, strict=True)]


def errors(calls: Calls, ours: Any, theirs: Any, entries: int = 24) -> list[float]:
    """Frobenius error and largest error relative to |a||b|, ours and theirs, of some rows and columns of set 0."""
    (a, b, c), wide = calls.sets[0], torch.complex128 if ours.is_complex() else torch.float64
    at = (0,) * (a.ndim - 2)
    rows, columns = (torch.randperm(x, device="cuda")[:entries] for x in (a.shape[-2], b.shape[-1]))
    x, y = a[at].index_select(0, rows).to(wide), b[at].index_select(1, columns).to(wide)
    exact, size = prismm.matmul(x, y, accuracy="correctly-rounded"), x.abs() @ y.abs()
    if calls.row.form == "gemm":
        addend = c[at].index_select(0, rows).index_select(1, columns).to(wide)
        exact, size = ALPHA * exact + BETA * addend, ALPHA * size + abs(BETA) * addend.abs()
    found = []
    for result in (ours, theirs):
        error = (result[at].index_select(0, rows).index_select(1, columns).to(wide) - exact).abs()
        found += [float(error.norm() / exact.norm()), float((error / size).max())]
    return found


def measure(*fields: Any) -> dict[str, Any]:
    """One row."""
    row = Row(*fields)
    torch.manual_seed(row.m + row.n + row.k)
    calls = Calls(row)
    a, b, _ = calls.sets[0]
    plan = prismm.explain(a, b)
    both = calls.ours, calls.theirs
    ours, theirs = (call(0) for call in both)
    error = errors(calls, ours, theirs)
    del ours, theirs
    for number in range(2 * len(calls.sets)):
        for call in both:
            calls.keep(call(number))
    rough = max(in_a_row(calls, call, 2) for call in both)
    count = max(2, min(IN_A_ROW, int(A_ROW / rough)))
    queued, card, idle = [], [], []
    for _ in range(ROUNDS):
        card.append([x for call in both for x in held(calls, call, count)])
        queued.append([in_a_row(calls, call, count) for call in both])
        idle.append([statistics.median(in_a_row(calls, call, 1) for _ in range(min(5, count))) for call in both])
    (card_us, host_us, torch_card_us, torch_host_us), queues, idles = (
        [1e6 * x for x in medians(some)] for some in (card, queued, idle)
    )
    return {
        **row._asdict(),
        "scheme": str(plan.scheme) if row.form != "gemm" else "",
        "engine": plan.engine if row.form != "gemm" else "",
        "ratio_queued": queues[1] / queues[0],
        "ratio_idle": idles[1] / idles[0],
        "ratio_card": torch_card_us / card_us,
        "card_us": card_us,
        "torch_card_us": torch_card_us,
        "host_us": host_us,
        "torch_host_us": torch_host_us,
        "queued_us": queues[0],
        "torch_queued_us": queues[1],
        "idle_us": idles[0],
        "torch_idle_us": idles[1],
        "predicted_us": 1e6 * plan.predicted_seconds,
        "error": error[0],
        "torch_error": error[2],
        "largest_error": error[1],
        "torch_largest_error": error[3],
        "gpu": torch.cuda.get_device_name(0),
        **machine(),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """For each table, form and type: the medians of the ratios, and how many calls are slower than cuBLAS. Calls of
    100 µs or more are counted apart.
    """
    lines = []
    for key in dict.fromkeys((row["table"], row["form"], row["dtype"]) for row in rows):
        some = [row for row in rows if (row["table"], row["form"], row["dtype"]) == key]
        long = [row for row in some if row["torch_card_us"] >= 100.0]
        short = [row for row in some if row["torch_card_us"] < 100.0]
        text = ", ".join(
            f"{name} {statistics.median(row['ratio_' + name] for row in some):.2f}"
            f" ({sum(row['ratio_' + name] < 1 / 1.03 for row in long)} of {len(long)} long ones slower by 3 %,"
            f" {sum(row['ratio_' + name] < 1 / 1.1 for row in short)} of {len(short)} short ones by 10 %,"
            f" worst {min(row['ratio_' + name] for row in some):.2f})"
            for name in ("queued", "idle", "card")
        )
        off = sum(not 0.75 <= row["predicted_us"] / row["idle_us"] <= 1.25 for row in some)
        worse = sum(row["error"] > row["torch_error"] for row in some)
        lines.append(f"{' '.join(key)}: {text}; {off} of {len(some)} predicted off, {worse} err more than cuBLAS")
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None, help="of the shapes; default: another one every time")
    parser.add_argument("--shapes", type=int, default=200, help="how many are drawn")
    parser.add_argument("--tables", default="random,regular", help="which tables, separated by commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further row after so many")
    parser.add_argument("--compile", type=float, default=240.0, help="seconds to compile side by side; 0: do not")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}: {options.shapes} shapes", flush=True)
    cases = [*drawn(seed, options.shapes), *regular()]
    cases = [row for row in cases if row.table in options.tables.split(",")]
    measured_before("gpu_sweep", cases, options.compile)
    start, rows = time.perf_counter(), list[dict[str, Any]]()
    warm_up()
    for row in cases:
        if time.perf_counter() - start > options.seconds:
            print("out of time", file=sys.stderr)
            break
        rows.append({**measure(*row), "seed": seed if row.table == "random" else ""})
        found = rows[-1]
        print(
            f"{row.form} {row.dtype} {row.batch:3d} x {row.m:5d} {row.n:5d} {row.k:5d} {found['scheme']:28s} "
            f"queued x{found['ratio_queued']:.2f} idle x{found['ratio_idle']:.2f} card x{found['ratio_card']:.2f} "
            f"{found['card_us']:.1f} us, host {found['host_us']:.1f}",
            file=sys.stderr,
            flush=True,
        )
    write("gpu_shapes", rows, key=("table", "form", "dtype", "batch", "m", "n", "k", "gpu"))
    print(summary(rows))


if __name__ == "__main__":
    main()
