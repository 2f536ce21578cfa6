"""The catalogue as a table of text."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel

__all__ = ["aligned", "table"]

HEAD = ["engine", "formats", "block", "bits", "sum", "rounding", "zeros at", "c joins", "scales", "note"]
WIDTH = 34
"""Of the column of names, which goes on in the next line."""


def table(models: list[EngineModel]) -> str:
    """Rows of models, with source and certainty in notes below; devices that are alike in everything share a row.

    "bits" are the fraction bits kept below the largest exponent, "zeros at" is the exponent of zeros.
    """
    notes: dict[str, int] = {}
    rows: dict[tuple[str, ...], list[str]] = {}
    for model in models:
        prefix, _, formats = model.name.partition(".")
        note = notes.setdefault(f"{model.certainty} ({model.source})", len(notes) + 1)
        rows.setdefault((formats.replace(".", " → "), *_cells(model), str(note)), []).append(prefix)
    lines = [HEAD]
    for row, prefixes in rows.items():
        first, *more = wrap(", ".join(prefixes), WIDTH, break_on_hyphens=False)
        lines += [[first, *row], *([part] + [""] * len(row) for part in more)]
    return "\n".join([aligned(lines), "", *(f"{number:>2}  {note}" for note, number in notes.items())])


def aligned(lines: list[list[str]]) -> str:
    """Columns of text, under the first line's heads.

    >>> print(aligned([["test", "V100"], ["A1", "P"]]))
    test  V100
    ----  ----
    A1    P
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join(
        "  ".join(f"{x:<{width}}" for x, width in zip(line, widths, strict=True)).rstrip() for line in ruled
    )


def _cells(model: EngineModel) -> tuple[str, ...]:
    """What distinguishes models in print."""
    if model.is_integer:
        clamped = f"every {model.depth}" if model.overflow == "saturate" else ""
        return (clamped, "all", "exact", model.overflow, "", "", "")
    separate = f"{len(model.groups)}×" if model.groups and model.group_sums == "separate" else ""
    rounding = model.rounding if model.last_rounding == model.rounding else f"{model.rounding}, {model.last_rounding}"
    if model.accumulator is not None:
        rounding += f" to {model.accumulator.name}"
    if model.summation != "aligned":
        kept = str(model.fraction_bits or model.sums.fraction_bits)
    else:
        kept = "all" if model.fraction_bits is None else str(model.fraction_bits)
    return (
        f"{separate}{model.block}",
        kept,
        "fma" if model.block == 1 and kept == "all" else model.summation,
        rounding,
        "" if model.zero_exponent is None else f"2^{model.zero_exponent}",
        model.join if isinstance(model.join, str) else "late",
        "" if model.scale is None else f"{model.scale.format} by {model.scale.length}",
    )
