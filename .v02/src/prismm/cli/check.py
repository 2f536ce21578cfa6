"""``prismm check``: how wrong the product in a file is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prismm.cli import options
from prismm.cli.console import print_json, say
from prismm.errors import FileError, PrismmError

if TYPE_CHECKING:
    import numpy as np

    from prismm.core.check import Check


def check(
    a: options.LeftFile,
    b: options.RightFile,
    c: Annotated[Path, typer.Argument(metavar="C", help="Their product, made by whatever means, likewise.")],
    engine: options.Engine = None,
    threads: options.Threads = None,
    json: options.Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="PAGE", help="Write the answer and a map of errors as a page.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="PNG", help="Plot the error over the matrix (needs matplotlib).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace PAGE and PNG.")] = False,
) -> None:
    """Print how wrong C is as the product of A and B.

    Every number is a guaranteed upper bound: of the absolute error, relative to |A||B|, relative to the exact value,
    and in ulps of C's type.
    """
    import prismm
    from prismm.cli.documents import check_new, write_new
    from prismm.cli.matrices import are_large

    options.refuse_force(force, html=html, plot=plot)
    _check_targets(html, plot, force, check_new)
    if not json and are_large(a, b, c):
        say(f"checking {c} as the product of {a} and {b}")
    left, right, product = (_matrix(path) for path in (a, b, c))
    if not json and left.shape[-1:] == right.shape[:1] and product.shape == (*left.shape[:-1], *right.shape[1:]):
        # Before the kernels are loaded, which takes most of a small check's time.
        rows_and_columns = "x".join(map(str, product.shape))
        head = f"{rows_and_columns} {product.dtype} of {left.dtype} and {right.dtype}, k = {left.shape[-1]}"
        print(head, flush=True)
    try:
        found = prismm.check(left, right, product, engine=engine, threads=threads)
    except PrismmError as error:
        # Errors speak of a, b and c.
        raise type(error)(f"a = {a}, b = {b}, c = {c}: {error}") from error
    names = str(a), str(b), str(c)
    if plot is not None:
        draw(found, plot, names)
    if html is not None:
        from prismm.cli.html.check import check_page

        write_new(html, check_page(found, names), force)
    if json:
        print_json(found.to_dict())
    else:
        print_table(found, names)
    for path, what in ((plot, "plot"), (html, "page")):
        if path is not None:
            say(f"{what} in {path}")


def _check_targets(html: Path | None, plot: Path | None, force: bool, check_new: Any) -> None:
    """FileError, before any work, for a page or a plot that cannot be written."""
    for path, what, ending in ((html, "page", ".html"), (plot, "plot", ".png")):
        if path is not None:
            if path.suffix.lower() != ending:
                raise FileError(f"{path}: the {what} goes to a file that ends in {ending}; pass such a name")
            check_new(path, force)
    if plot is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            from prismm.core.extras import install

            say(f"error: --plot needs matplotlib; install it with: {install('plot')}")
            raise typer.Exit(2) from error


def _matrix(path: Path) -> np.ndarray[Any, Any]:
    from prismm import files
    from prismm.cli.matrices import check_elements

    check_elements(path, files.describe(path).dtype)
    return files.read(path)


def print_table(found: Check, names: tuple[str, str, str]) -> None:
    """The answer as a table on stdout, below the line that `check` begins with."""
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from prismm.core.check import share_text, up_text

    a, b, c = names
    table = Table(title=f"{c} as the product of {a} and {b}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("error, at most", no_wrap=True)
    for head in ("worst", "row, column", "median", "rms"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, measure in found.measures.items():
        where = "" if measure.where is None else ", ".join(map(str, measure.where))
        table.add_row(name, up_text(measure.worst), where, up_text(measure.median), up_text(measure.rms))
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.print(table)
    console.print(f"correctly rounded  {share_text(found)} of {found.entries} entries")
    if found.special:
        console.print(f"Inf or NaN         {found.special} entries have to be")
    if found.wrong_special:
        console.print(f"infinitely wrong   {found.wrong_special} entries: wrongly Inf or NaN, or wrongly finite")
    console.print(f"certified by       {found.scheme} on {found.engine}; {found.recomputed} entries recomputed")
    console.print(f"time               {found.seconds:.2f} s")


def block_maxima(values: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """The largest value of each block, of at most so many blocks a side.

    >>> import numpy as np
    >>> block_maxima(np.arange(12.0).reshape(3, 4), 2)
    array([[ 5.,  7.],
           [ 9., 11.]])
    """
    import numpy as np

    for axis in (0, 1):
        count = values.shape[axis]
        if count:
            step = -(-count // most)
            values = np.maximum.reduceat(values, np.arange(0, count, step), axis=axis)
    return values


def draw(found: Check, path: Path, names: tuple[str, str, str]) -> None:
    """The error in ulps over the matrix, as a PNG: of a large one the worst of each block."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    rows, columns = found.shape
    values = block_maxima(found.ulps.values, 512)
    finite = values[np.isfinite(values) & (values > 0.0)]
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.subplots()
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.5, 1.0)
    norm = LogNorm(max(low, high * 1e-12), max(high, low * 1.0001))
    # Exact entries are drawn as the background, infinite errors in a colour of their own.
    shown = np.ma.masked_where(values == 0.0, np.where(np.isinf(values), high * 2.0, values))
    colours = colormaps["viridis"].with_extremes(over="red", bad="white")
    image = axes.imshow(shown, norm=norm, cmap=colours, aspect="auto", interpolation="nearest",
                        extent=(-0.5, max(columns, 1) - 0.5, max(rows, 1) - 0.5, -0.5))  # fmt: skip
    axes.set(title=f"error of {Path(names[2]).name}, worst {_worst(found)}", xlabel="column", ylabel="row")
    figure.colorbar(image, ax=axes, label="ulps, at most (white: exact; red: infinitely wrong)", extend="max")
    figure.savefig(path, dpi=150)


def _worst(found: Check) -> str:
    from prismm.core.check import up_text

    return f"{up_text(found.ulps.worst)} ulp"
