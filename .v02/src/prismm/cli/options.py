"""Options that several commands share, and their values as the library takes them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from prismm.errors import AccuracyError, ArgumentError, DTypeError
from prismm.schemes.names import parse_scheme

ACCURACIES = ("fast", "native", "correctly-rounded")
DTYPES = ("float32", "float64", "complex64", "complex128")


def _engines(incomplete: str) -> list[str]:
    """Engines whose names begin so, for the shell."""
    from prismm.core import engine_names as names

    found = ["cpu", *names.CPU, "cuda", *names.CUDA]
    if incomplete.startswith(names.SIMULATED[:3]):
        from prismm.cpu.engines import simulated

        found += simulated.names()
    return [name for name in found if name.startswith(incomplete)]


def _schemes(incomplete: str) -> list[str]:
    """Schemes whose names begin so."""
    from prismm.schemes.names import EXAMPLES

    return [name for name in EXAMPLES if name.startswith(incomplete)]


def _targets(incomplete: str) -> list[str]:
    """Accuracy targets whose names begin so."""
    return [name for name in ACCURACIES if name.startswith(incomplete)]


LeftFile = Annotated[Path, typer.Argument(metavar="A", help="Left matrix: .npy, .npz, .mtx, .mtx.gz or .csv.")]
RightFile = Annotated[Path, typer.Argument(metavar="B", help="Right matrix, likewise.")]
Accuracy = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        autocompletion=_targets,
        help="fast, native (the default), correctly-rounded, or a tolerance relative to |A||B|, e.g. 1e-12.",
    ),
]
Scheme = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEME",
        autocompletion=_schemes,
        help="auto (the default), native, residues:N with N moduli, words:tf32x3 (or bf16x6, fp16x3, tf64x3, …), "
        "scaled-half, tile-int8:LEVEL, or slices:UNIT:MODE (a unit such as int8; dp, sp, cr, or a number of slices).",
    ),
]
Reproducible = Annotated[bool, typer.Option("--reproducible", help="The same bits on every machine and thread count.")]
OutDtype = Annotated[
    str | None,
    typer.Option("--out-dtype", metavar="DTYPE", help=f"Type of the result: {', '.join(DTYPES)}."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        autocompletion=_engines,
        help="One of those that `prismm env` lists, simulated:NAME too.",
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Worker threads.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """ArgumentError for the first of these parameters that the command line gives, where it would be ignored.

    why: what follows the option's name.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise ArgumentError(f"{max(parameter.opts, key=len)} {why}")


def refuse_force(force: bool, **files: Path | None) -> None:
    """ArgumentError for --force where none of these options names a file that it could replace."""
    if force and all(file is None for file in files.values()):
        names = " or ".join(f"--{name.replace('_', '-')}" for name in files)
        raise ArgumentError(f"--force replaces what {names} names; pass that, or leave --force out")


def parse_accuracy(text: str | None) -> str | float | None:
    """A target's name or its tolerance; AccuracyError for anything else.

    >>> parse_accuracy("1e-12"), parse_accuracy("native"), parse_accuracy(None)
    (1e-12, 'native', None)
    """
    if text is None or text in ACCURACIES:
        return text
    from prismm.errors import meant

    try:
        tolerance = float(text)
    except ValueError:
        tolerance = float("nan")
    if not 0 < tolerance < float("inf"):
        names = ", ".join(ACCURACIES)
        raise AccuracyError(
            f"accuracy {text!r}{meant(text, ACCURACIES)}; pass {names}, or a tolerance above 0 such as 1e-12"
        )
    return tolerance


def parse_dtype(text: str | None) -> Any:
    """One of DTYPES as a NumPy dtype; DTypeError otherwise."""
    if text is None:
        return None
    import numpy as np

    if text not in DTYPES:
        raise DTypeError(f"dtype {text!r}; pass one of {', '.join(DTYPES)}")
    return np.dtype(text)


def matmul_options(
    accuracy: str | None,
    scheme: str | None,
    reproducible: bool,
    out_dtype: str | None,
    engine: str | None,
    threads: int | None,
) -> dict[str, Any]:
    """The keyword arguments of ``prismm.matmul`` that a command line asks for."""
    return {
        "accuracy": parse_accuracy(accuracy),
        "scheme": parse_scheme(scheme),
        "reproducible": reproducible,
        "out_dtype": parse_dtype(out_dtype),
        "engine": engine,
        "threads": threads,
    }
