"""Small files that commands write, models and pages: whole or not at all, and never over another by accident."""

from __future__ import annotations

from pathlib import Path

from prismm.errors import FileError


def check_new(path: Path, force: bool) -> None:
    """FileError unless ``path`` can be made, before any work; a file that is there needs ``force``."""
    if path.is_dir():
        raise FileError(f"{path}: is a directory")
    if not path.parent.is_dir():
        raise FileError(f"{path}: there is no directory {path.parent}")
    if path.exists() and not force:
        raise FileError(f"{path}: exists already; pass --force to replace it")


def write_new(path: Path, text: str, force: bool) -> None:
    """The text under its name, after ``check_new``."""
    from prismm.files.target import replace_text

    check_new(path, force)
    replace_text(path, text)
