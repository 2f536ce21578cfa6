"""``prismm bench``: how fast prismm is beside NumPy's product, or in whole programs, and how wrong each of them is."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prismm.cli import options
from prismm.cli.console import columns, print_json, progress, say
from prismm.cli.documents import check_new
from prismm.errors import ArgumentError, FileError
from prismm.schemes.names import parse_scheme

if TYPE_CHECKING:
    import numpy as np

_SAMPLE = 24  # rows and columns whose entries are compared with the exact product
_PRODUCTS = ("sizes", "dtype", "accuracy", "scheme", "engine", "threads")
_APPS = ("plot", "device", "only", "quick")
_SECONDS = 0.1  # a sample of a product too short to time lasts at least this long


def bench(
    context: typer.Context,
    subject: Annotated[
        Literal["products", "apps", "distributed"],
        typer.Argument(
            help="products: random matrices. apps: the programs of benchmarks/apps, and the tuner. distributed: random "
            "matrices on the ranks that torchrun started."
        ),
    ] = "products",
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Orders of the matrices.")] = ("256,512,1024,2048"),
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help=f"One of {', '.join(options.DTYPES)}.")] = "float64",
    accuracy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="May be given several times: fast, native, correctly-rounded, a tolerance, or "
            "reproducible. Default: native, reproducible and correctly-rounded; with --scheme its own value.",
        ),
    ] = None,
    scheme: options.Scheme = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Interleaved repetitions. Default: 9; of programs 3.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the normal random matrices.")] = 0,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as CSV as well; apps: a folder for two files.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="apps, distributed: draw speeds to a PNG.")] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="apps: where they run.")] = "cpu",
    only: Annotated[str | None, typer.Option(metavar="NAME,…", help="apps: these alone, such as cholesky,mlp.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="apps: small sizes, to see that everything runs.")] = False,
    json: options.Json = False,
) -> None:
    """Time prismm and NumPy's product in turn and print the ratio: above 1, prismm is faster.

    Each round times both; shown are the median ratio and the middle 60 % of them. Errors are in
    ulps of the exact product, the largest over a sample of entries. ``prismm bench apps`` runs whole
    programs (HPL-MxP, Cholesky, CCC, kNN, k-means, MLP, BERT) and the tuner, and takes --seed, --rounds and the
    options that say so; exit code 1: a program missed its own criterion.

    ``torchrun --no-python prismm bench distributed`` shards rows, both sides and the inner dimension over 1, 2, 4, …
    of its ranks, the same matrices (strong scaling) and ones that grow with the ranks (weak); shown are seconds of
    torch's product and of ours, bytes that a rank sends, and the share of the time that it waits for others' digits.
    """
    if subject == "apps":
        options.refuse(context, _PRODUCTS, "is for random matrices; leave it out, or leave out apps")
        from prismm.cli.applications import run

        code = run(device, quick, only, seed, rounds or 3, csv, plot, json)
        if code:
            raise typer.Exit(code)
        return
    ranks = subject == "distributed"
    apps_alone = _APPS[1:] if ranks else _APPS
    options.refuse(context, apps_alone, "is for whole programs; leave it out, or pass apps: prismm bench apps")
    try:
        orders = [int(size) for size in sizes.split(",")]
    except ValueError:
        orders = []
    if not orders or min(orders) < 1:
        raise ArgumentError(f"sizes {sizes!r}; pass positive integers such as 256,512,1024")
    common = {"scheme": parse_scheme(scheme), "engine": engine, "threads": threads}
    if scheme is not None and not accuracy:
        targets, keywords = ["own value"], [common]
    else:
        targets = accuracy or ["native", "reproducible", "correctly-rounded"]
        keywords = [_keywords(target) | common for target in targets]
    kind = options.parse_dtype(dtype)
    if ranks:
        from prismm.cli.bench_distributed import run as run_ranks

        run_ranks(orders, kind, dict(zip(targets, keywords, strict=True)), rounds or 5, seed, csv, plot, json)
        return
    if csv is not None:
        check_new(csv, force=True)

    from threadpoolctl import threadpool_limits

    rows: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("timing", total=len(orders) * len(targets))
        for n in orders:
            a, b = _operands(n, kind, seed)
            for target, options_ in zip(targets, keywords, strict=True):
                with threadpool_limits(threads, user_api="blas"):  # NumPy's product takes no argument for it
                    race = _race(a, b, options_, rounds or 9)
                rows.append({"n": n, "dtype": dtype, "accuracy": target} | race)
                bar.advance(task)
    from prismm.cli.env import machine

    here = machine(threads)
    if csv is not None:
        _write_csv(csv, [row | here for row in rows])
        say(f"wrote {csv}")
    if json:
        print_json({"machine": here, "rows": rows})
    else:
        _print(rows, here)


def _keywords(target: str) -> dict[str, Any]:
    if target == "reproducible":
        return {"reproducible": True}
    return {"accuracy": options.parse_accuracy(target)}


def _operands(n: int, dtype: Any, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

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
    import numpy as np

    import prismm

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


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error


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
