"""The file that a product is written to: under a temporary name, by tiles, renamed once whole.

The old target stays as it is until the rename. Space is reserved ahead, so that a disk too small is
found before the work, and tiles are written by ordinary writes, never through a memory map, so that
a full disk is an error and not a signal.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from prismm.errors import FileError
from prismm.files import mtx, npy

_READ = 1 << 20  # bytes hashed at a time: few enough to stay in a cache
_TEXT = 26  # bytes that a float64 takes at most in an .mtx file, with its line's end


def part_of(target: Path) -> Path:
    """The temporary name beside ``target`` that its data has until it is whole."""
    return target.with_name(f".{target.name}.part-prismm")


def text_of(target: Path) -> Path:
    """The temporary name beside ``target`` that its text has, where it is an .mtx file."""
    return target.with_name(f".{target.name}.text-prismm")


class Target:
    """A product on its way into ``path``: ``write``, ``complete`` and ``commit``; or ``discard``.

    The temporary is a row-major .npy file even where ``path`` is an .mtx file, which is written at
    the end. It is locked while open, where the system can: two runs never write the same product.
    With ``resume`` it must be there already; without, one that is there is replaced.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any], resume: bool) -> None:
        self.path, self.part = path, part_of(path)
        self.shape, self.dtype = shape, dtype.newbyteorder("<")
        self._text = text_of(path)
        with explained(self.part):
            if not resume and self.part.exists():
                with open(self.part, "r+b") as old:
                    _lock(old, self.part)
                self.part.unlink()
            mode: Literal["r+b", "x+b"] = "r+b" if resume else "x+b"
            self._stream: IO[bytes] = open(self.part, mode, buffering=0)  # noqa: SIM115
        _lock(self._stream, self.part)
        try:
            with explained(self.part):
                self._offset = npy.write_header(self._stream, shape, self.dtype)
                size = self._offset + self.nbytes
                if resume and os.fstat(self._stream.fileno()).st_size != size:
                    raise FileError(f"{self.part}: is not {size} bytes long; start over with --force")
                reserve(self._stream, self.part, size, self._text_bytes)
        except BaseException:
            self._stream.close()
            if not resume:
                self.part.unlink(missing_ok=True)
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of the product's elements."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def write(self, row: int, column: int, tile: np.ndarray[Any, Any]) -> str:
        """Put ``tile`` at (row, column) and return its SHA-256. Not on the disk for certain before ``flush``."""
        tile = np.ascontiguousarray(tile, self.dtype)
        full = tile.shape[1] == self.shape[1]  # then its rows lie in one run
        with explained(self.part):
            for first, block in enumerate([tile] if full else tile):
                place = (row + first) * self.shape[1] + column
                self._stream.seek(self._offset + place * self.dtype.itemsize)
                data = memoryview(block).cast("B") if block.size else memoryview(b"")
                while data:
                    data = data[self._stream.write(data) :]
        return hashlib.sha256(tile.data).hexdigest()

    def flush(self) -> None:
        """Return only after everything written so far is on the disk."""
        with explained(self.part):
            os.fsync(self._stream.fileno())

    def read(self) -> np.ndarray[Any, Any]:
        """What has been written, as a read-only memory map."""
        return npy.read(self.part)

    def digests(self, rows: int, columns: int) -> tuple[str, dict[tuple[int, int], str]]:
        """What lies in the file: its SHA-256 as `prismm.files.sha256_of_bits` gives it, and that of every tile of
        ``rows`` by ``columns``, the last ones smaller, as ``write`` gave it.
        """
        m, n = self.shape
        width = n * self.dtype.itemsize
        step = max(1, _READ // max(1, width))
        whole = hashlib.sha256()
        tiles: dict[tuple[int, int], str] = {}
        single = m <= rows and n <= columns
        with explained(self.part), self.part.open("rb") as stream:
            stream.seek(self._offset)
            for i, top in enumerate(range(0, m, rows)):
                parts = [hashlib.sha256() for _ in range(0, n, columns)]
                bottom = min(top + rows, m)
                for first in range(top, bottom, step):
                    size = min(step, bottom - first) * width
                    data = stream.read(size)
                    if len(data) < size:
                        raise FileError(f"{self.part}: was cut short while it was used; start over with --force")
                    whole.update(data)
                    if single:
                        continue
                    block = np.frombuffer(data, np.uint8).reshape(-1, width)
                    for j, part in enumerate(parts):
                        left = j * columns * self.dtype.itemsize
                        part.update(np.ascontiguousarray(block[:, left : left + columns * self.dtype.itemsize]).data)
                tiles |= {(i, j): part.hexdigest() for j, part in enumerate(parts)}
        if single:
            tiles = dict.fromkeys(tiles, whole.hexdigest())
        return whole.hexdigest(), tiles

    def complete(self) -> None:
        """After the last tile: everything on the disk, the text file of an .mtx target included."""
        self.flush()
        if self._text_bytes:
            with explained(self._text), open(self._text, "wb") as stream:
                mtx.write(stream, self.read())
                stream.flush()
                os.fsync(stream.fileno())

    def commit(self) -> None:
        """After ``complete``: rename the product to its name; the temporary is gone then."""
        with explained(self.path):
            os.replace(self._text if self._text_bytes else self.part, self.path)
            _sync_directory(self.path.parent)
        self.discard()

    def close(self) -> None:
        """Close the temporary and leave it where it is."""
        self._stream.close()
        self._text.unlink(missing_ok=True)

    def discard(self) -> None:
        """Close and remove the temporary; the old target is as it was."""
        self.close()
        self.part.unlink(missing_ok=True)

    @property
    def _text_bytes(self) -> int:
        """Bytes that the product takes as text, at most; 0 where it is not written as text."""
        if self.path.name.lower().endswith(".npy"):
            return 0
        return self.shape[0] * self.shape[1] * (2 if self.dtype.kind == "c" else 1) * _TEXT + _TEXT


def reserve(stream: IO[bytes], path: Path, size: int, more: int = 0) -> None:
    """Make the file ``size`` bytes long and claim their disk space now, with ``more`` to spare.

    Raises FileError, or the operating system's error, where the disk is too small.
    """
    need = size + more - getattr(os.fstat(stream.fileno()), "st_blocks", 0) * 512
    free = shutil.disk_usage(path.parent).free
    if need > free:
        raise FileError(f"{path.parent}: {need} bytes are needed for {path.name}, {free} are free")
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    stream.truncate(size)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's complaints about writing ``path`` into FileError."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise FileError(f"{path.parent}: no space left for {path.name}") from error
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that a crash leaves either the old text or the new, whole."""
    new = path.with_name(path.name + ".new")
    with explained(path):
        try:
            with open(new, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power cut, where directories can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lock(stream: IO[bytes], path: Path) -> None:
    """Refuse a temporary that another process is writing."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        return
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise FileError(f"{path}: another prismm is writing this product") from error
    except OSError:  # file systems without locks
        return
