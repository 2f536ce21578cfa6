"""Files that matrices are read from: regular ones, so that reading ends and can be done twice."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from prismm.errors import FileError

__all__ = ["compression", "open_regular"]

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
"""What compressed files begin with."""


def open_regular(path: Path) -> BufferedReader:
    """The file, open for reading its bytes; links are followed.

    Nothing blocks: opening a pipe that nobody writes to would.

    Raises:
        FileError: unless it is a regular file. OSError: for what cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise FileError(f"{path}: is a directory; pass the name of a file")
    what = "a pipe" if stat.S_ISFIFO(mode) else "a device"
    raise FileError(f"{path}: is {what}, and a matrix is read more than once; write it to a file first")


def compression(stream: BufferedReader) -> str | None:
    """What a file is compressed by, as its first bytes say; the stream is at its beginning, before and after."""
    start = stream.read(max(map(len, _MAGIC)))
    stream.seek(0)
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
