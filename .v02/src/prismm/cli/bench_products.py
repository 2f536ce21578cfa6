"""``prismm bench products``: random matrices, NumPy's product beside ours in turn."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import prismm
from prismm.cli.console import columns, is_watched, print_json, progress, say
from prismm.cli.documents import check_new, write_csv

_SAMPLE = 24  # rows and columns whose entries are compared with the exact product
_SECONDS = 0.1  # a sample of a product too short to time lasts at least this long


def run(
    orders: list[int], dtype: np.dtype[Any], targets: dict[str, dict[str, Any]], rounds: int, seed: int,
    threads: int | None, seconds: float, csv: Path | None, json: bool,
) -> None:  # fmt: skip
    """Time all products, print the table and write it; no further product is timed after so many `seconds`."""
    if csv is not None:
        check_new(csv, force=True)
    for keywords in targets.values():
        if keywords["engine"] is not None or keywords["scheme"] is not None:
            prismm.matmul(np.empty((0, 1), dtype), np.empty((1, 0), dtype), **keywords)  # which checks them
    if not json:
        say(
            f"timing NumPy's product and prismm's ({', '.join(targets)}) in turn: {dtype.name}, "
            f"n = {', '.join(map(str, orders))}, {rounds} rounds each"
        )
    from threadpoolctl import threadpool_limits

    from prismm.cli.env import machine

    start, here = time.perf_counter(), machine(threads)
    rows: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("timing", total=len(orders) * len(targets))
        for n, (target, keywords) in itertools.product(orders, targets.items()):
            if rows and time.perf_counter() - start > seconds:
                say(f"out of time before n = {n}, {target}")
                break
            if not rows or rows[-1]["n"] != n:
                a, b = _operands(n, dtype, seed)
            with threadpool_limits(threads, user_api="blas"):  # NumPy's product takes no argument for it
                race = _race(a, b, keywords, rounds)
            rows.append({"n": n, "dtype": dtype.name, "accuracy": target} | race)
            bar.advance(task)
            if csv is not None:
                write_csv(csv, [row | here for row in rows])
            if not json and not is_watched():
                say(f"n = {n}, {target}: {race['ratio']:.2f} times the speed of NumPy's")
    if csv is not None:
        say(f"wrote {csv}")
    if json:
        print_json({"machine": here, "rows": rows})
    else:
        _print(rows, here)


def _operands(n: int, dtype: Any, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng([seed, n])

    def draw() -> np.ndarray[Any, Any]:
        matrix: np.ndarray[Any, Any] = rng.standard_normal((n, n))
        if dtype.kind == "c":
            matrix = matrix + 1j * rng.standard_normal((n, n))
        drawn: np.ndarray[Any, Any] = matrix.astype(dtype)
        return drawn

    return draw(), draw()


def _race(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], keywords: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Time both products in turn; ratios, times, errors and what ran."""

    def native() -> np.ndarray[Any, Any]:
        result: np.ndarray[Any, Any] = a @ b
        return result

    def ours() -> np.ndarray[Any, Any]:
        result: np.ndarray[Any, Any] = prismm.matmul(a, b, **keywords)
        return result

    theirs, (result, report) = native(), prismm.matmul(a, b, full_output=True, **keywords)
    repeats = [_repeats(run) for run in (native, ours)]
    times = [(_time(native, repeats[0]), _time(ours, repeats[1])) for _ in range(rounds)]
    ratios = [one / other for one, other in times]
    rng = np.random.default_rng(0)
    rows, columns = (rng.permutation(len(a))[:_SAMPLE] for _ in range(2))
    exact = prismm.testing.exact_product(a[rows], b[:, columns])
    return {
        "ratio": statistics.median(ratios),
        "ratio_p20": float(np.quantile(ratios, 0.2)),
        "ratio_p80": float(np.quantile(ratios, 0.8)),
        "native_seconds": statistics.median(one for one, _ in times),
        "prismm_seconds": statistics.median(other for _, other in times),
        "rounds": rounds,
        "native_max_ulps": float(exact.ulps(theirs[np.ix_(rows, columns)]).max()),
        "prismm_max_ulps": float(exact.ulps(result[np.ix_(rows, columns)]).max()),
        "scheme": str(report.scheme),
        "engine": str(report.engine),
        "repaired": int(report.repaired),
    }


def _repeats(run: Callable[[], Any]) -> int:
    """Calls that one timing needs; runs them for a while first, which also wakes the threads."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < _SECONDS or count < 2:
        run()
        count += 1
    return max(1, count // 2)


def _time(run: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _print(rows: list[dict[str, Any]], context: dict[str, Any]) -> None:
    head = ["n", "accuracy", "ratio", "p20-p80", "native", "prismm"]
    head += ["native ulps", "prismm ulps", "scheme", "engine"]
    cells = [
        [
            str(row["n"]),
            row["accuracy"],
            f"{row['ratio']:.2f}",
            f"{row['ratio_p20']:.2f}-{row['ratio_p80']:.2f}",
            f"{1e3 * row['native_seconds']:.3g} ms",
            f"{1e3 * row['prismm_seconds']:.3g} ms",
            f"{row['native_max_ulps']:.3g}",
            f"{row['prismm_max_ulps']:.3g}",
            row["scheme"],
            row["engine"],
        ]
        for row in rows
    ]
    print(columns(head, cells, left=("accuracy", "scheme", "engine")))
    print(f"\n{rows[0]['dtype']}, normal random; ratio = time of NumPy's product / time of prismm's")
    print("; ".join(f"{name} {value}" for name, value in context.items()))
