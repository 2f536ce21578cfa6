"""Small files that commands write, models and pages: whole or not at all, and never over another by accident."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prismm.errors import FileError


def check_new(path: Path, force: bool, beside: Path | None = None) -> None:
    """FileError unless ``path`` can be made, before any work; a file that is there needs ``force``.

    A link is refused, for it would be replaced and what it leads to would stay; so is a pipe or a device.

    beside: the longest name that the work takes meanwhile; by default that of `prismm.files.target.replace_text`.
    """
    there = is_there(path)
    if os.path.isdir(path):
        raise FileError(f"{path}: is a directory; pass the name of a file")
    if there and os.path.islink(path):
        raise FileError(f"{path}: is a link to {os.readlink(path)}; pass that name, or remove the link")
    if there and not os.path.isfile(path):
        raise FileError(f"{path}: is no regular file, but a pipe or a device; pass the name of a file")
    if not os.path.isdir(path.parent):
        raise FileError(f"{path}: there is no directory {path.parent}")
    if there and not force:
        raise FileError(f"{path}: exists already; pass --force to replace it")
    is_there(path.with_name(path.name + ".new") if beside is None else beside)


def check_beside(target: Path, operands: Iterable[Path]) -> None:
    """FileError unless the matrix ``target`` can be made beside the operands' files, before any work.

    Nothing may lie under its temporary names but what an earlier run left there, and neither they nor the target may
    be an operand, by whatever name or link.
    """
    from prismm.files.target import part_of, text_of

    part = part_of(target)
    temporary = [part, text_of(target), *(part.with_name(part.name + end) for end in (".json", ".json.new"))]
    for path in temporary:
        if is_there(path) and (os.path.islink(path) or not os.path.isfile(path)):
            what = "a directory" if os.path.isdir(path) else "no regular file"
            raise FileError(f"{path}: is {what}, where the unfinished product goes; remove it")
    for operand in operands:
        for path in (target, *temporary):
            if _is_same(path, operand):
                raise FileError(
                    f"{path}: is the operand {operand}, which would be lost; pass another name for the result"
                )


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names lead to one file; a name that leads nowhere is no other's."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def is_there(path: Path) -> bool:
    """Whether something has this name, be it a link to nothing; FileError where that cannot be found out.

    `Path.exists` takes a link to nothing for nothing, and what it raises depends on Python's version.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            size = len(os.fsencode(path.name))
            raise FileError(f"{path}: a name of {size} bytes is too long here; pass a shorter one") from error
        raise FileError(f"{path}: {error.strerror or error}; pass a name in another directory") from error
    return True


def write_new(path: Path, text: str, force: bool) -> None:
    """The text under its name, after ``check_new``."""
    from prismm.files.target import replace_text

    check_new(path, force)
    replace_text(path, text)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as a table under the names of the first one's values, whole whenever the writer is stopped."""
    from prismm.files.target import replace_text

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_text(path, text.getvalue())
