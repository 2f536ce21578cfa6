"""NumPy's .npz files of one matrix: validated as .npy files are, never unpickled."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from prismm.errors import FileError
from prismm.files import npy
from prismm.files.mtx import Allocate
from prismm.files.source import open_regular

__all__ = ["describe", "read"]

_CHUNK = 1 << 20  # bytes read at a time


def describe(path: Path) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Shape and dtype of the only matrix in ``path``, from its header.

    Raises:
        FileError: unless there is one, of numbers.
    """
    with _opened(path) as (stream, size):
        shape, dtype, _, _ = npy.parsed(path, stream.read(npy.LONGEST), size)
    return shape, dtype


def read(path: Path, allocate: Allocate) -> np.ndarray[Any, Any]:
    """The matrix, decompressed. ``allocate(shape, dtype, order)`` gives the array to fill.

    Raises:
        FileError: for what cannot be read whole.
    """
    with _opened(path) as (stream, size):
        shape, dtype, fortran, offset = npy.parsed(path, stream.read(npy.LONGEST), size)
    out = allocate(shape, dtype, "F" if fortran else "C")
    if not out.size:
        return out
    flat = (out.T if fortran else out).reshape(-1).view(np.uint8)
    with _opened(path) as (stream, _):
        stream.read(offset)
        at = 0
        while at < len(flat):
            block = stream.read(min(_CHUNK, len(flat) - at))
            if not block:
                raise FileError(f"{path}: truncated: {at} of {len(flat)} bytes; write it again")
            flat[at : at + len(block)] = np.frombuffer(block, np.uint8)
            at += len(block)
        stream.read(1)  # at the end the checksum is compared
    return out


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The bytes of the only array of an archive, decompressed, and their number; every failure is a FileError."""
    try:
        with open_regular(path) as raw, zipfile.ZipFile(raw) as archive:
            member = _only(path, archive)
            with archive.open(member) as stream:
                yield stream, member.file_size
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        # Encrypted archives are a RuntimeError, unknown compressions a NotImplementedError.
        raise FileError(f"{path}: not an .npz file, or a damaged one: {error}") from error


def _only(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The array of an archive that holds one.

    Raises:
        FileError: for none, several, or the parts of a sparse matrix.
    """
    found = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
    if {"format", "shape", "data"} <= set(found):
        raise FileError(
            f"{path}: holds a sparse matrix, and prismm multiplies dense ones; save it as one: np.save('matrix.npy', "
            "scipy.sparse.load_npz(path).toarray())"
        )
    if len(found) != 1:
        names = ", ".join(sorted(found)[:8]) or "none"
        raise FileError(
            f"{path}: holds {len(found)} arrays ({names}); save the one that is meant: np.save('matrix.npy', "
            "np.load(path)[name])"
        )
    return next(iter(found.values()))
