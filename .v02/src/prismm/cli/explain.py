"""``prismm explain``: what a product would run, and why, without running it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prismm.cli import options
from prismm.cli.console import print_json
from prismm.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

_LARGEST = 1 << 28  # rows or columns of a shape: as many random numbers are drawn


def explain(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="A file, or a shape such as 4096x4096.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Likewise.")],
    accuracy: options.Accuracy = None,
    reproducible: options.Reproducible = False,
    scheme: options.Scheme = None,
    dtype: Annotated[
        str,
        typer.Option(metavar="DTYPE", help=f"Type of shapes: {', '.join(options.DTYPES)}."),
    ] = "float64",
    out_dtype: options.OutDtype = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Print the plan of a product: scheme, engine, predicted time and guaranteed bound."""
    import prismm

    keywords = options.matmul_options(accuracy, scheme, reproducible, out_dtype, engine, threads)
    if not any(map(_shape, (a, b))):
        options.refuse(context, ("dtype",), "is the type of shapes; files have types of their own: leave it out")
    left, right = _operand(a, dtype), _operand(b, dtype)
    if json:
        print_json(prismm.explain(left, right, **keywords).to_dict())
        return
    first = _heading(left, right, keywords)  # before engines prove themselves, which takes most of the time
    if first:
        print(first, flush=True)
    print(str(prismm.explain(left, right, **keywords)).removeprefix(f"{first}\n"))


def _heading(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], keywords: dict[str, Any]) -> str:
    """The plan's first line; empty for operands that do not fit, or of bools: the planner tells of these."""
    from prismm.cli.matrices import result_dtype
    from prismm.core.plan import heading

    (m, k), (rows, n) = left.shape, right.shape
    # Plans name other types for bools: the planner converts them to numbers.
    if k != rows or "b" in (left.dtype.kind, right.dtype.kind):
        return ""
    names = left.dtype.name, right.dtype.name
    return heading((), (m, k, n), names, result_dtype(left.dtype, right.dtype, keywords).name)


def _shape(text: str) -> re.Match[str] | None:
    return re.fullmatch(r"(\d+)x(\d+)", text)


def _operand(text: str, dtype: str) -> np.ndarray[Any, Any]:
    """The matrix in a file, or one of the given shape: normal random numbers that take no memory."""
    import numpy as np

    from prismm import files
    from prismm.cli.matrices import check_elements

    if match := _shape(text):
        if max(map(len, match.groups())) > 9 or max(map(int, match.groups())) > _LARGEST:
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            raise ArgumentError(f"shape {shown!r} is too large; pass at most {_LARGEST} rows and columns")
        rows, columns = int(match[1]), int(match[2])
        kind = options.parse_dtype(dtype)
        rng = np.random.default_rng([rows, columns])
        numbers = rng.standard_normal(rows + columns) * (1 + 1j if kind.kind == "c" else 1)
        # Each row is the one above moved by one place: a plan that looks at some rows sees ordinary data.
        return np.lib.stride_tricks.sliding_window_view(numbers.astype(kind), columns)[:rows]
    if not text.lower().endswith(tuple(files.ENDINGS)):
        raise ArgumentError(f"{text!r} is neither a matrix file nor a shape such as 4096x4096")
    check_elements(Path(text), files.describe(Path(text)).dtype)
    return files.read(Path(text))
