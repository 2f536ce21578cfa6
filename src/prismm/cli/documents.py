"""Small files that commands write, models and pages: whole or not at all, and never over another by accident."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from prismm.errors import FileError


def check_new(path: Path, force: bool, beside: Path | None = None) -> None:
    """FileError unless ``path`` can be made, before any work; what is there, a dangling link too, needs ``force``.

    beside: the longest name that the work takes meanwhile; by default that of `prismm.files.target.replace_text`.
    """
    there = is_there(path)
    if os.path.isdir(path):
        raise FileError(f"{path}: is a directory; pass the name of a file")
    if not os.path.isdir(path.parent):
        raise FileError(f"{path}: there is no directory {path.parent}")
    if there and not force:
        raise FileError(f"{path}: exists already; pass --force to replace it")
    is_there(path.with_name(path.name + ".new") if beside is None else beside)


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
