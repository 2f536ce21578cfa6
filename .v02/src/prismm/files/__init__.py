"""Matrices in files: NumPy's ``.npy``, memory-mapped, and ``.npz``, never unpickled; Matrix Market's ``.mtx``; CSV.

>>> import numpy as np, tempfile, pathlib
>>> from prismm import files
>>> path = pathlib.Path(tempfile.mkdtemp()) / "a.mtx"
>>> entries = "2 2 2\\n1 1 0.1\\n2 1 3\\n"
>>> _ = path.write_text("%%MatrixMarket matrix coordinate real symmetric\\n" + entries)
>>> files.describe(path)
Description(shape=(2, 2), dtype=dtype('float64'), kind='mtx')
>>> files.read(path)
array([[0.1, 3. ],
       [3. , 0. ]])
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prismm.errors import FileError
from prismm.files import csv, mtx, npy, npz
from prismm.files.source import open_regular

Kind = Literal["npy", "npz", "mtx", "csv"]

ENDINGS = {".npy": "npy", ".npz": "npz", ".mtx": "mtx", ".mtx.gz": "mtx", ".csv": "csv", ".csv.gz": "csv"}
"""Ends of names of files that are read, and their kinds."""


@dataclass(frozen=True)
class Description:
    """What a file's header says about its matrix: shape, element type, and the kind of file."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    kind: Kind

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix held densely in memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


def kind(path: str | PathLike[str]) -> Kind:
    """Which kind of file a name stands for: ``"npy"``, ``"npz"``, ``"mtx"`` for .mtx and .mtx.gz, ``"csv"`` likewise.

    Raises FileError for any other ending.
    """
    name = Path(path).name.lower()
    for ending, found in ENDINGS.items():
        if name.endswith(ending):
            return found  # type: ignore[return-value]
    raise FileError(f"{path}: unknown kind of file; pass a name that ends in {', '.join(ENDINGS)}")


def check_result(path: str | PathLike[str]) -> None:
    """FileError for a name under which no result is written."""
    if not Path(path).name.lower().endswith((".npy", ".mtx")):
        kind(path)
        raise FileError(f"{path}: results are written as .npy or .mtx; convert it afterwards")


def describe(path: str | PathLike[str]) -> Description:
    """Shape and element type from the header, nothing else read (but of CSV all); FileError where it makes no sense.

    A Matrix Market file is float64, or complex128 where its field is complex; CSV is float64.
    """
    path = Path(path)
    found = kind(path)
    if found in ("npy", "npz"):
        shape, dtype = (npy if found == "npy" else npz).describe(path)
        return Description(shape, dtype, found)
    if found == "csv":
        return Description(csv.describe(path), np.dtype(np.float64), "csv")
    header = mtx.describe(path)
    return Description(header.shape, header.dtype, "mtx")


def read(path: str | PathLike[str], allocate: mtx.Allocate | None = None) -> np.ndarray[Any, Any]:
    """The matrix in ``path``, 2-D: a read-only memory map (.npy) or a dense array (all others).

    ``allocate(shape, dtype, order)`` provides the zeroed memory for a dense array; it may be a
    memory map, so that a matrix larger than memory can be read. Raises FileError for what cannot
    be read whole.
    """
    path = Path(path)
    found = kind(path)
    if found == "npy":
        return npy.read(path)
    reader = {"npz": npz.read, "mtx": mtx.read, "csv": csv.read}[found]
    return reader(path, zeros if allocate is None else allocate)


def sha256_of_file(path: str | PathLike[str]) -> str:
    """SHA-256 of a file's bytes, streamed."""
    try:
        with open_regular(Path(path)) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error


def sha256_of_bits(array: np.ndarray[Any, Any]) -> str:
    """SHA-256 of an array's elements, row-major and little-endian: equal where all bits are.

    >>> sha256_of_bits(np.zeros(2)) == sha256_of_bits(np.array([0.0, -0.0]))
    False
    """
    digest = hashlib.sha256()
    array = np.atleast_2d(array)
    rows = max(1, (1 << 22) // max(1, array.shape[-1] * array.itemsize))
    for first in range(0, len(array), rows):
        block = array[first : first + rows]
        digest.update(np.ascontiguousarray(block, dtype=array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def zeros(shape: tuple[int, int], dtype: np.dtype[Any], order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
    """Memory for a dense matrix; FileError where there is too little."""
    try:
        return np.zeros(shape, dtype, order)
    except (MemoryError, ValueError) as error:
        raise FileError(
            f"a dense {shape[0]}x{shape[1]} matrix of {dtype} does not fit in memory; "
            "prismm multiplies dense matrices only"
        ) from error
