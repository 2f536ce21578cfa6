"""NumPy's .npy files: validated, memory-mapped, never unpickled."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np

from prismm.errors import FileError
from prismm.files.source import compression, open_regular

LONGEST = 1 << 16  # bytes of a header, which NumPy reads whole whatever length it claims: one of 10,000 is its limit
_KINDS = "biufc"  # bool, integers, floats, complex: what a matrix can hold


def describe(path: Path) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Shape and dtype of the matrix in ``path``; FileError unless it is whole and of numbers."""
    shape, dtype, _, _ = _header(path)
    return shape, dtype


def read(path: Path) -> np.ndarray[Any, Any]:
    """The matrix in ``path`` as a read-only memory map (a plain array where it has no elements)."""
    shape, dtype, fortran, offset = _header(path)
    if 0 in shape:
        return np.zeros(shape, dtype)
    try:
        mapped = np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be memory-mapped: {error}") from error
    return np.asarray(mapped)


def write_header(stream: IO[bytes], shape: tuple[int, int], dtype: np.dtype[Any]) -> int:
    """Write the header of a row-major array and return its length in bytes."""
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return stream.tell()


def _header(path: Path) -> tuple[tuple[int, int], np.dtype[Any], bool, int]:
    """Shape, dtype, whether column-major and the data's offset, checked against the file's size."""
    try:
        with open_regular(path) as stream:
            by = compression(stream)
            if by is not None:
                raise FileError(f"{path}: is compressed by {by}; decompress it, or read it in NumPy and np.save it")
            start = stream.read(LONGEST)
            size = stream.seek(0, 2)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    return parsed(path, start, size)


def parsed(path: Path, beginning: bytes, size: int) -> tuple[tuple[int, int], np.dtype[Any], bool, int]:
    """The same of an array whose bytes begin so, and are so many; FileError unless it is a whole matrix of numbers."""
    start = io.BytesIO(beginning)
    try:
        version = np.lib.format.read_magic(start)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise FileError(f"{path}: is of .npy version {version}; write it again with np.save(path, x)")
        with warnings.catch_warnings():  # NumPy tells of headers that Python 2 wrote
            warnings.simplefilter("ignore")
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(start)
            else:  # 3 differs from 2 by names beyond Latin-1 in structured types, which are no matrices
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(start)
        offset = start.tell()
    except FileError:
        raise
    except Exception as error:  # NumPy parses the header as Python, and that fails in many ways
        raise FileError(f"{path}: not a .npy file: {_first_line(error)}") from error
    if dtype.hasobject:
        raise FileError(
            f"{path}: holds Python objects, which are never unpickled; save it again as numbers, "
            "e.g. np.save(path, x.astype(float))"
        )
    if dtype.names is not None:
        raise FileError(
            f"{path}: holds elements of type void, records of {len(dtype.names)} fields; save one of them, e.g. "
            "np.save(path, x[field])"
        )
    if dtype.kind not in _KINDS:
        raise FileError(
            f"{path}: holds elements of type {dtype}; pass a matrix of numbers, e.g. np.save(path, x.astype(float))"
        )
    if len(shape) != 2:
        raise FileError(f"{path}: holds an array of shape {shape}; pass a matrix (2-D), e.g. x.reshape(-1, 1)")
    if min(shape) < 0 or max(shape) * dtype.itemsize >= 1 << 63:
        raise FileError(f"{path}: its header has the shape {str(shape)[:80]}, which no matrix has; write it again")
    expected = offset + shape[0] * shape[1] * dtype.itemsize
    if size < expected:
        raise FileError(
            f"{path}: truncated: {shape[0]}x{shape[1]} of {dtype} takes {expected} bytes, "
            f"the file has {size}; write it again"
        )
    if size > expected:
        raise FileError(
            f"{path}: has {size - expected} bytes after its {shape[0]}x{shape[1]} matrix of "
            f"{dtype}; write one array per file"
        )
    return (int(shape[0]), int(shape[1])), dtype, fortran, offset


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
