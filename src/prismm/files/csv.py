"""Comma-separated values: real numbers, one row a line, below one line of names where there is one. That line
has no number, and a name that begins with a letter or an underscore: other first lines are errors, not left out.

Every number is read as the nearest float64; an integer that is no float64 and a decimal beyond float64's range are
errors, never silently altered, and so are empty cells and rows of another length. Errors name the line. The format is
that of RFC 4180 without quotes, which numbers need not have.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prismm.errors import FileError
from prismm.files import mtx

__all__ = ["describe", "read"]

Rows = tuple[list[int], list[list[bytes]]]
"""Numbers of lines, and the cells of each."""


def describe(path: Path) -> tuple[int, int]:
    """Rows and columns; the whole file is read for it.

    Raises:
        FileError: for a file that holds no matrix, with the line.
    """
    count, width = 0, 0
    for lines, rows in _rows(path):
        width = width or len(rows[0])
        _check_widths(path, lines, rows, width)
        count += len(rows)
    if not count:
        raise FileError(f"{path}: holds no numbers; write a row of numbers in each line, with commas between them")
    return count, width


def read(path: Path, allocate: mtx.Allocate) -> np.ndarray[Any, Any]:
    """The matrix in ``path``, float64. ``allocate(shape, dtype, order)`` gives the zeroed array to fill.

    Raises:
        FileError: for a field that is not a number, with the line.
    """
    shape = describe(path)
    out = allocate(shape, np.dtype(np.float64), "C")
    at = 0
    for lines, rows in _rows(path):
        _check_widths(path, lines, rows, shape[1])
        if at + len(rows) > shape[0]:
            raise FileError(f"{path}: changed while it was read; multiply again once it stays as it is")
        cells = [cell for row in rows for cell in row]
        numbers = [line for line, row in zip(lines, rows, strict=True) for _ in row]
        values = mtx.floats(path, numbers, cells)
        for place in np.flatnonzero(np.abs(values) >= 2.0**53).tolist():
            text = cells[place].lstrip(b"+-")
            if text.isdigit() and not mtx.exact(int(text)):
                mtx.bad(path, numbers[place], f"the integer {mtx.show(text)} is no float64; write it as a decimal, "
                        "such as 1e16, where rounding it is meant")  # fmt: skip
        out[at : at + len(rows)] = values.reshape(len(rows), shape[1])
        at += len(rows)
    return out


def _rows(path: Path) -> Iterator[Rows]:
    """The rows of numbers, some at a time; blank lines are left out."""
    with mtx.open_text(path) as stream:
        line, first = 1, True
        for texts in mtx.blocks(path, stream, 1):
            lines, rows = [], []
            for number, text in enumerate(texts, line):
                if number == 1:
                    text = text.removeprefix(codecs.BOM_UTF8)
                    if text[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                        raise FileError(f"{path}: is UTF-16 text; write it as UTF-8, e.g. iconv -f utf-16 -t utf-8")
                if not text.strip():
                    continue
                cells = [cell.strip() for cell in text.split(b",")]
                if first:
                    first = False
                    if cells[0] == b"" and len(cells) > 1:
                        mtx.bad(path, number, "the first column has no name, as an index that pandas writes; write "
                                "the file without it, e.g. frame.to_csv(path, index=False)")  # fmt: skip
                    if any(map(_is_name, cells)) and not any(map(_is_number, cells)):
                        continue
                lines.append(number)
                rows.append(cells)
            line += len(texts)
            if rows:
                yield lines, rows


def _is_name(cell: bytes) -> bool:
    """Whether a cell begins as a name does: with a letter or an underscore, within quotes or not."""
    text = cell.decode("utf-8", "replace").removeprefix('"').lstrip()
    return text[:1].isalpha() or text[:1] == "_"


def _is_number(cell: bytes) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_widths(path: Path, lines: list[int], rows: list[list[bytes]], width: int) -> None:
    """FileError for a row of another length."""
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            mtx.bad(path, line, f"{len(row)} numbers where the first row has {width}; separate them by commas")
