"""``prismm demo``: real matrices multiplied natively, by prismm and exactly, side by side."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prismm.cli import options
from prismm.cli.console import columns, print_json, progress, say
from prismm.cli.documents import check_new
from prismm.core.extras import install, is_installed
from prismm.errors import FileError

if TYPE_CHECKING:
    import numpy as np

_LEAST = 1e-3  # ulps: the plot's left edge
_ROUNDS = 5  # timings of each product, in turn
_LEGEND = """\
wrong      entries that differ from the exact product rounded to nearest
ulps       distance from the exact product in units in the last place; correct rounding leaves at most 1/2
same bits  whether these threads and engines give the very same result; prismm's default takes the native
           product where that is accurate enough and faster, and promises none"""
_METHODS: dict[str, dict[str, Any]] = {
    "prismm": {},
    "prismm reproducible": {"reproducible": True},
    "prismm correctly-rounded": {"accuracy": "correctly-rounded"},
}
_SAME_BITS = ("prismm reproducible", "prismm correctly-rounded")  # what promises them
_NATIVE, _EXACT = "native (NumPy)", "exact, then rounded"


@dataclass(frozen=True)
class Case:
    """Two operands and what they stand for."""

    name: str
    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One method on one case; errors in ulps of the exact product, bits as a hash."""

    method: str
    max_ulps: float
    median_ulps: float
    wrong_percent: float
    bound_held: bool | None
    milliseconds: float
    sha256: str
    same_bits: dict[str, bool]


def demo(
    size: Annotated[int, typer.Option(min=2, max=2048, help="Order of the ill-conditioned matrix.")] = 512,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PNG", help="Where the plot goes.")] = Path(
        "demo.png"
    ),
    json: options.Json = False,
) -> None:
    """Multiply real and ill-conditioned matrices: native, prismm and exact, side by side.

    Shows errors in ulps, whether bits depend on threads and engines, and times; plots the errors.
    """
    _check(output)
    if not json:
        say("multiplying two cases with NumPy, with prismm and exactly; a quarter of a minute")
    start = time.perf_counter()
    results: dict[str, list[Row]] = {}
    errors: dict[str, dict[str, Any]] = {}
    with progress() as bar:
        task = bar.add_task("multiplying", total=None)
        cases = _cases(size)  # which loads scikit-learn
        bar.update(task, total=len(cases) * (len(_METHODS) + 2))
        for case in cases:
            results[case.name], errors[case.name] = _compare(case, lambda: bar.advance(task))
    _plot(errors, output)
    seconds = time.perf_counter() - start
    broken = [f"{row.method} on {name}" for name, rows in results.items() for row in rows if not _kept(row)]
    if json:
        tables = {name: [asdict(row) for row in found] for name, found in results.items()}
        print_json({"cases": tables, "plot": str(output), "seconds": seconds, "broken": broken})
    else:
        for case in cases:
            _print(case, results[case.name])
        print(_LEGEND)
        held = all(row.bound_held is not False for rows in results.values() for row in rows)
        print(f"\nprismm's bounds against the exact error of every entry: {'all hold' if held else 'NOT all hold'}")
        say(f"plot in {output}; {seconds:.0f} s in all")
    if broken:
        say(f"error: a promise was broken, please report it: {'; '.join(broken)}")
        raise typer.Exit(1)


def _kept(row: Row) -> bool:
    """Whether a method kept what it promises."""
    if not row.method.startswith("prismm"):
        return True
    correct = row.wrong_percent == 0 or "correctly-rounded" not in row.method
    return correct and bool(row.bound_held) and all(row.same_bits.values())


def _check(output: Path) -> None:
    """What the demonstration needs beyond prismm itself, asked for before any work."""
    if output.suffix.lower() != ".png":
        raise FileError(f"{output}: the plot is a PNG file; pass a name that ends in .png")
    check_new(output, force=True)
    for module, package in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")):
        if not is_installed(module):
            say(f"error: demo needs {package}; install it with: {install('demo')}")
            raise typer.Exit(2)


def _cases(size: int) -> list[Case]:
    """The covariance of scikit-learn's handwritten digits, and a Hilbert matrix by its inverse."""
    import numpy as np
    from sklearn.datasets import load_digits

    pixels = load_digits().data
    centred = pixels - pixels.mean(axis=0)  # sums of small integers: the same bits everywhere
    index = np.arange(size)
    hilbert = 1.0 / (index[:, None] + index + 1)
    return [
        Case("covariance of 1797 handwritten digits, X'X", np.ascontiguousarray(centred.T), centred),
        Case(f"Hilbert matrix of order {size} by its computed inverse", hilbert, _inverse(hilbert)),
    ]


def _inverse(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """LAPACK's inverse; the matrix is singular to working precision, so its entries are huge."""
    import numpy as np

    try:
        return np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(matrix, rcond=1e-18)


def _compare(case: Case, advance: Callable[[], Any]) -> tuple[list[Row], dict[str, Any]]:
    """Every method on one case, and the error of every entry in ulps."""
    import numpy as np

    import prismm
    from prismm.files import sha256_of_bits
    from prismm.testing import exact_product

    start = time.perf_counter()
    exact = exact_product(case.a, case.b)
    rounded = exact.rounded(np.float64)
    times = {_EXACT: time.perf_counter() - start} | _times(case)
    rows, errors = [], {}
    for method in (_NATIVE, *_METHODS, _EXACT):
        held, same = None, {}
        if method == _NATIVE:
            product, same = case.a @ case.b, _native_bits(case)
        elif method == _EXACT:
            product = rounded
        else:
            product, report = prismm.matmul(case.a, case.b, full_output=True, **_METHODS[method])
            held = bool(exact.within(product, report.bounds).all())
            same = _bits(case, method, product)
        errors[method] = exact.ulps(product)
        rows.append(
            Row(
                method=method,
                max_ulps=float(errors[method].max()),
                median_ulps=float(np.median(errors[method])),
                wrong_percent=100 * float(np.mean(product != rounded)),
                bound_held=held,
                milliseconds=1e3 * times[method],
                sha256=sha256_of_bits(product),
                same_bits=same,
            )
        )
        advance()
    return rows, errors


def _times(case: Case) -> dict[str, float]:
    """Median seconds of every method, timed in turn after a first call of each."""
    import prismm

    runs: dict[str, Callable[[], Any]] = {_NATIVE: lambda: case.a @ case.b}
    for method, keywords in _METHODS.items():
        runs[method] = functools.partial(prismm.matmul, case.a, case.b, **keywords)
    samples: dict[str, list[float]] = {method: [] for method in runs}
    for run in runs.values():
        run()
    for _ in range(_ROUNDS):
        for method, run in runs.items():
            start = time.perf_counter()
            run()
            samples[method].append(time.perf_counter() - start)
    return {method: statistics.median(found) for method, found in samples.items()}


def _native_bits(case: Case) -> dict[str, bool]:
    """Whether NumPy's product has the same bits with one thread and with two."""
    from threadpoolctl import threadpool_limits

    from prismm.files import sha256_of_bits

    hashes = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            hashes.append(sha256_of_bits(case.a @ case.b))
    return {"1 and 2 threads": hashes[0] == hashes[1]}


def _bits(case: Case, method: str, product: np.ndarray[Any, Any]) -> dict[str, bool]:
    """Whether a method's bits are those of ``product`` with other threads and on other engines."""
    import prismm
    from prismm.files import sha256_of_bits

    if method not in _SAME_BITS:
        return {}
    expected = sha256_of_bits(product)

    def same(**keywords: Any) -> bool:
        return sha256_of_bits(prismm.matmul(case.a, case.b, **_METHODS[method], **keywords)) == expected

    engines = [name for name, (usable, _) in prismm.engines.available().items() if usable]
    return {f"{threads} threads": same(threads=threads) for threads in (1, 2)} | {
        engine: same(engine=engine) for engine in engines
    }


def _print(case: Case, rows: list[Row]) -> None:
    (m, k), n = case.a.shape, case.b.shape[1]
    print(f"{case.name} ({m}x{k} by {k}x{n})\n")
    head = ["method", "max ulps", "median ulps", "wrong", "time", "sha256 of bits", "same bits"]
    cells = [
        [
            row.method,
            f"{row.max_ulps:.3g}",
            f"{row.median_ulps:.2g}",
            f"{row.wrong_percent:.1f} %",
            f"{row.milliseconds:.3g} ms",
            row.sha256[:16],
            _agreement(row.same_bits),
        ]
        for row in rows
    ]
    print(columns(head, cells, left=("method", "sha256 of bits", "same bits")) + "\n")


def _agreement(same: dict[str, bool]) -> str:
    """Whether all runs gave the same bits, or which of them did not."""
    differing = [name for name, agrees in same.items() if not agrees]
    if differing:
        return f"no: {', '.join(differing)}"
    engines = sum(name.startswith("cpu") for name in same)
    return f"yes: 1 and 2 threads, {engines} engines" if engines else "yes: 1 and 2 threads" if same else "-"


def _plot(errors: dict[str, dict[str, Any]], output: Path) -> None:
    """For each case the share of entries whose error is below x, one line a method."""
    import numpy as np
    from matplotlib.figure import Figure

    from prismm.files.target import explained

    styles = {
        _NATIVE: ("#c1272d", "-"),
        "prismm reproducible": ("#0b6e99", "-"),
        "prismm correctly-rounded": ("#1b7f3b", "--"),
    }
    figure = Figure(figsize=(6.2 * len(errors), 5.2), layout="constrained")
    axes = figure.subplots(1, len(errors), squeeze=False)[0]
    for axis, (name, found) in zip(axes, errors.items(), strict=True):
        for method, (colour, line) in styles.items():
            values = np.sort(np.maximum(found[method].ravel(), _LEAST))
            share = 100 * np.arange(1, len(values) + 1) / len(values)
            label = f"{method}: at most {found[method].max():.2g} ulps"
            axis.step(values, share, line, color=colour, where="post", label=label, linewidth=2)
        axis.set(
            xscale="log", title=name, xlabel=f"error of an entry, ulps of the exact value ({_LEAST:g} stands for less)"
        )
        axis.set(ylabel="entries with at most this error (%)", ylim=(0, 103))
        axis.axvline(0.5, color="0.5", linestyle=":", linewidth=1)
        axis.annotate("1/2 ulp", (0.5, 3), xytext=(5, 0), textcoords="offset points", color="0.35")
        axis.grid(alpha=0.3)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    with explained(output):
        figure.savefig(output, dpi=150)
