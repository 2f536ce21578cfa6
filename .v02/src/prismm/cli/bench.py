"""``prismm bench``: how fast prismm is beside NumPy's product, or in whole programs, and how wrong each of them is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from prismm.cli import options
from prismm.errors import ArgumentError
from prismm.schemes.names import parse_scheme

_PRODUCTS = ("sizes", "dtype", "accuracy", "scheme", "engine", "threads")
_APPS = ("plot", "device", "only", "quick")


def bench(
    context: typer.Context,
    subject: Annotated[
        Literal["products", "apps", "distributed"],
        typer.Argument(
            help="products: random matrices. apps: whole programs, and the tuner. distributed: random "
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
    seconds: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Begin no further measurement after so many.")
    ] = None,
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
    limit = math.inf if seconds is None else seconds
    if subject == "apps":
        options.refuse(context, _PRODUCTS, "is for random matrices; leave it out, or leave out apps")
        from prismm.cli.bench_apps import run

        code = run(device, quick, only, seed, rounds or 3, limit, csv, plot, json)
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
    named = dict(zip(targets, keywords, strict=True))
    if ranks:
        from prismm.cli.bench_distributed import run as run_ranks

        run_ranks(orders, kind, named, rounds or 5, seed, limit, csv, plot, json)
        return
    from prismm.cli.bench_products import run as run_products

    run_products(orders, kind, named, rounds or 9, seed, threads, limit, csv, json)


def _keywords(target: str) -> dict[str, Any]:
    if target == "reproducible":
        return {"reproducible": True}
    return {"accuracy": options.parse_accuracy(target)}
