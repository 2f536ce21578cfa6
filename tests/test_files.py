"""Reading and writing .npy and .mtx: exact, strict, and never through pickle."""

from __future__ import annotations

import bz2
import codecs
import doctest
import errno
import gzip
import hashlib
import io
import lzma
import math
import os
import resource
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import prismm
from prismm import files
from prismm.errors import FileError
from prismm.files import mtx, target
from prismm.files.target import Target

BANNER = "%%MatrixMarket matrix "


def market(path: Path, text: str) -> Path:
    """Write a Matrix Market file whose banner starts as every banner does."""
    path.write_text(BANNER + text)
    return path


def same_bits(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def test_docstrings() -> None:
    for module in (files, target, mtx):
        assert doctest.testmod(module).failed == 0


# --- .npy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "c8", "c16", "i1", "u8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (4, 0)])
def test_npy_is_mapped_with_every_bit(
    tmp_path: Path, rng: np.random.Generator, dtype: str, order: Any, shape: tuple[int, int]
) -> None:
    path = tmp_path / "a.npy"
    array = np.asarray(rng.integers(0, 2, shape) * 1.0, order=order).astype(dtype, order=order)
    np.save(path, array)
    assert files.describe(path) == files.Description(shape, array.dtype, "npy")
    read = files.read(path)
    assert same_bits(read, array)
    assert 0 in shape or not read.flags.writeable


@pytest.mark.parametrize("kept", [-1, -8, 130, 128, 60, 9, 5, 0])
def test_truncated_npy(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.eye(7))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FileError, match=r"a\.npy: (truncated|not a \.npy file)"):
        files.read(path)


def test_npy_with_bytes_behind_its_matrix(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as stream:
        np.save(stream, np.eye(2))
        np.save(stream, np.eye(2))
    with pytest.raises(FileError, match="160 bytes after its 2x2 matrix"):
        files.read(path)


class Bomb:
    """Unpickling one of these leaves a mark."""

    marked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Bomb, "marked", True))


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([[Bomb()]], dtype=object), "Python objects, which are never unpickled"),
        (np.array([["text"]]), "elements of type <U4"),
        (np.zeros((2, 2), [("x", "f8")]), "elements of type"),
        (np.zeros((2, 2), "M8[s]"), "elements of type datetime64"),
        (np.zeros(3), r"shape \(3,\); pass a matrix"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.float64(3), r"shape \(\)"),
    ],
)
def test_npy_that_holds_no_matrix(tmp_path: Path, array: Any, what: str) -> None:
    path = tmp_path / "a.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(FileError, match=what):
        files.read(path)
    assert not Bomb.marked


@pytest.mark.parametrize("shape", [(-2, -2), (0, -5), (0, 1 << 60), (10**30, 0)])
def test_npy_with_a_shape_that_no_matrix_has(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
        stream.write(bytes(max(0, 8 * shape[0] * shape[1])))
    for function in (files.describe, files.read):
        with pytest.raises(FileError, match=r"a\.npy: its header has the shape .*, which no matrix has"):
            function(path)


@pytest.mark.parametrize("header", ["(" * 5000, "{'shape': (1" + "0" * 5000 + ", 1)}", "{1: 2, 'a': 3}", "[[]"])
def test_npy_whose_header_is_junk(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(FileError, match=r"a\.npy: not a \.npy file"):
        files.describe(path)


HUGE = """
import resource, sys
from pathlib import Path
from prismm import files
from prismm.errors import FileError

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
for name in sys.argv[1:]:
    try:
        files.read(Path(name))
    except FileError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_small_files_that_unfold_to_much_take_little_memory(tmp_path: Path) -> None:
    """Headers and lines of 2 GB, most of them in few bytes of the disk."""
    with (tmp_path / "a.npy").open("wb") as stream:
        stream.write(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"{'descr'")
        stream.truncate(2**31 + 100)
    banner = b"%%MatrixMarket matrix array real general\n"
    for name, start in (("b.mtx", banner + b"% "), ("c.mtx", banner + b"1 1\n"), ("d.mtx", banner + b"1 1\n1\n")):
        with (tmp_path / name).open("wb") as stream:
            stream.write(start)
            stream.truncate(2**31)
    (tmp_path / "e.mtx.gz").write_bytes(gzip.compress(banner + b"2 1\n1\n" + bytes(300 << 20), 1))
    names = sorted(map(str, tmp_path.iterdir()))
    ran = subprocess.run([sys.executable, "-c", HUGE, *names], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    said = zip(names, ran.stdout.splitlines(), strict=True)
    assert all(line.startswith(name) for name, line in said), ran.stdout
    for name, line in (("b.mtx", 2), ("c.mtx", 3), ("d.mtx", 4), ("e.mtx.gz", 4)):
        assert f"{name}, line {line}: has more than" in ran.stdout, ran.stdout


def test_npy_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"not NumPy at all")
    with pytest.raises(FileError, match=r"a\.npy: not a \.npy file"):
        files.read(path)
    with pytest.raises(FileError, match="No such file"):
        files.read(tmp_path / "none.npy")
    with pytest.raises(FileError, match="directory"):
        files.read(_directory(tmp_path))
    with pytest.raises(FileError, match=r"pass a name that ends in \.npy"):
        files.read(tmp_path / "a.txt")


def _directory(parent: Path) -> Path:
    path = parent / "d.npy"
    path.mkdir()
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<c16", ">f4", "<i8", ">u2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_version_of_npy(tmp_path: Path, rng: np.random.Generator, version: Any, dtype: str, order: Any) -> None:
    path = tmp_path / "a.npy"
    array = np.asarray(rng.integers(0, 9, (3, 5)), dtype, order=order)
    with path.open("wb") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy tells of versions that old readers lack
        np.lib.format.write_array(stream, array, version=version)
    assert same_bits(files.read(path), array)


def test_npy_of_python_2_and_at_odd_offsets(tmp_path: Path, rng: np.random.Generator) -> None:
    array = rng.standard_normal((3, 4))
    path = tmp_path / "a.npy"
    for pad in range(9):
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3L, 4L), }" + b" " * pad + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + array.tobytes())
        read = files.read(path)
        assert same_bits(read, array)
        for keywords in ({}, {"accuracy": "correctly-rounded"}, {"reproducible": True}):
            assert same_bits(prismm.matmul(read, read.T, **keywords), prismm.matmul(array, array.T, **keywords))


def test_npy_that_is_compressed_or_of_records(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.eye(2))
    path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    with pytest.raises(FileError, match=r"a\.npy: is compressed by gzip; decompress it"):
        files.read(path)
    with path.open("wb") as stream:
        np.savez(stream, np.eye(2))
    with pytest.raises(FileError, match=r"a\.npy: is compressed by zip; .*np\.save it"):
        files.read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.save(path, np.zeros((2, 2), [("µ", "f8"), ("日", "f4")]))  # of version 3.0
    with pytest.raises(FileError, match=r"records of 2 fields; save one of them, e\.g\. np\.save\(path, x\[field\]\)"):
        files.read(path)


# --- .mtx: what scipy reads ----------------------------------------------------------------------


KINDS = [
    (layout, field, symmetry)
    for layout in ("array", "coordinate")
    for field in ("real", "integer", "complex", "pattern")
    for symmetry in ("general", "symmetric", "skew-symmetric", "hermitian")
    # what the format has no files of
    if not (field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"))
    if not (symmetry == "hermitian" and field != "complex")
]


@pytest.mark.parametrize(("layout", "field", "symmetry"), KINDS)
@pytest.mark.parametrize("ending", [".mtx", ".mtx.gz"])
def test_scipy_writes_and_both_read_the_same(
    tmp_path: Path,
    rng: np.random.Generator,
    layout: str,
    field: str,
    symmetry: str,
    ending: str,
) -> None:
    n = 9
    matrix = np.where(rng.random((n, n)) < 0.5, rng.standard_normal((n, n)), 0.0)
    if field == "integer":
        matrix = np.rint(10 * matrix).astype(np.int64)
    if field == "complex":
        matrix = matrix + 1j * np.where(matrix, rng.standard_normal((n, n)), 0)
    if field == "pattern":
        matrix = (matrix != 0) * 1.0
    lower = np.tril(matrix, -1)
    if symmetry == "symmetric":
        matrix = lower + lower.T + np.diag(np.diag(matrix))
    elif symmetry == "skew-symmetric":
        matrix = lower - lower.T
    elif symmetry == "hermitian":
        matrix = lower + lower.conj().T + np.diag(np.diag(matrix).real)
    path = tmp_path / ("a" + ending)
    plain = tmp_path / "plain.mtx"
    source = matrix if layout == "array" else scipy.sparse.coo_array(matrix)
    scipy.io.mmwrite(plain, source, field=field, symmetry=symmetry, precision=17)
    path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0) if ending == ".mtx.gz" else plain.read_bytes())
    header = mtx.describe(path)
    assert (header.layout, header.field, header.symmetry) == (layout, field, symmetry)
    read = files.read(path)
    twin = scipy.io.mmread(plain)
    twin = twin.toarray() if layout == "coordinate" else twin
    assert np.array_equal(read, twin)
    assert np.array_equal(read, matrix)
    assert files.describe(path).dtype == read.dtype == (complex if field == "complex" else float)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(3, 70), (200, 3), (1, 1), (0, 3), (3, 0)])
def test_written_mtx_has_the_same_values(
    tmp_path: Path, rng: np.random.Generator, dtype: str, shape: tuple[int, int]
) -> None:
    bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    real = bits.view("f4" if dtype in ("f4", "c8") else "f8") if bits.size else np.zeros(0)
    real[np.isnan(real)] = np.nan  # quiet ones: the others warn when they are widened
    array = real.view(dtype)[..., 0] if bits.size else np.zeros(shape, dtype)
    if array.size:
        array[-1, -1], array[0, 0] = np.inf, -0.0
    path = tmp_path / "c.mtx"
    with path.open("wb") as stream:
        mtx.write(stream, array)
    read = files.read(path)
    wide = array.astype(np.complex128 if dtype[0] == "c" else np.float64)
    assert np.array_equal(read, wide, equal_nan=True)
    parts = [(read.real, wide.real), (read.imag, wide.imag)]
    assert all(np.array_equal(np.signbit(x[~np.isnan(x)]), np.signbit(y[~np.isnan(y)])) for x, y in parts)
    if array.size:  # scipy cannot read an empty one
        assert np.array_equal(scipy.io.mmread(path), wide, equal_nan=True)


@given(
    st.lists(
        st.one_of(
            st.decimals(allow_nan=False, allow_infinity=False).map(str),
            st.floats(allow_nan=False, allow_infinity=False).map(repr),
            st.tuples(st.integers(0, 10**30), st.integers(-340, 270)).map(lambda p: f"{p[0]}e{p[1]}"),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_decimal_is_read_as_the_nearest_float64(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str]
) -> None:
    path = tmp_path_factory.mktemp("mtx") / "a.mtx"
    top = Fraction(sys.float_info.max) + Fraction(2) ** 970  # what rounds to infinity starts here
    fit = [t for t in tokens if abs(Fraction(t)) < top]
    market(path, f"array real general\n{len(fit)} 1\n" + "".join(t + "\n" for t in fit))
    for value, token in zip(files.read(path)[:, 0].tolist(), fit, strict=True):
        error = abs(Fraction(value) - Fraction(token))
        for other in (math.nextafter(value, math.inf), math.nextafter(value, -math.inf)):
            assert math.isinf(other) or error <= abs(Fraction(other) - Fraction(token))


# --- .mtx: chunks, comments, symmetry -------------------------------------------------------------


def test_chunks_comments_and_blank_lines_change_nothing(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtx, "_BLOCK", 70)
    matrix = rng.standard_normal((11, 13))
    entries = [f"{i + 1} {j + 1} {float(matrix[i, j])!r}\n" for i, j in rng.permutation(_places(11, 13))]
    noise = ["% a comment\n", "\n", "   \n", "% 1 2\n", "%\n"]
    for place in sorted(rng.integers(0, len(entries), 20), reverse=True):
        entries.insert(place, noise[place % len(noise)])
    path = market(
        tmp_path / "a.mtx",
        "Coordinate REAL general\n% " + "x" * 3000 + "\n\n 11 13  143 \n" + "".join(entries),
    )
    assert same_bits(files.read(path), matrix)


def _places(m: int, n: int) -> np.ndarray[Any, Any]:
    return np.stack(np.meshgrid(range(m), range(n), indexing="ij"), -1).reshape(-1, 2)


@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
def test_symmetric_array_over_many_chunks(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, symmetry: str
) -> None:
    monkeypatch.setattr(mtx, "_BLOCK", 50)
    full = rng.standard_normal((12, 12))
    lower = np.tril(full, -1)
    matrix = lower - lower.T if symmetry == "skew-symmetric" else np.tril(full) + lower.T
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, matrix, symmetry=symmetry, precision=17)
    assert np.array_equal(files.read(path), matrix)


def test_entries_above_the_diagonal_of_a_symmetric_file_are_mirrored(tmp_path: Path) -> None:
    path = market(tmp_path / "a.mtx", "coordinate complex hermitian\n2 2 1\n1 2 1 2\n")
    assert np.array_equal(files.read(path), [[0, 1 + 2j], [1 - 2j, 0]])


def test_dense_memory_comes_from_the_caller(tmp_path: Path) -> None:
    path = market(tmp_path / "a.mtx", "array real general\n2 2\n1\n2\n3\n4\n")
    out = np.zeros((2, 2), order="F")
    assert files.read(path, lambda shape, dtype, order: out) is out
    assert np.array_equal(out, [[1, 3], [2, 4]])


# --- .mtx: what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("array real general\n2 1\n1\nabc\n", "line 4: 'abc' is not a number"),
        ("array real general\n2 1\n1\n1_0\n", "line 4: '1_0' is not a number"),
        ("array real general\n2 1\n1\n1e400\n", "line 4: '1e400' is beyond the range of float64"),
        ("array real general\n2 1\n1\n1 2\n", "line 4: '1 2' where 1 numbers belong"),
        ("array real general\n2 1\n1\n", "truncated: 1 of the 2 entries that line 2 promises"),
        (
            "array real general\n% c\n\n1 1\n1\n%\n2\n",
            "line 7: more than the 1 entries that line 4",
        ),
        ("array real general\n", "truncated: ends before the line of sizes"),
        ("array real general\n2\n", "line 2: '2' where the 2 sizes belong"),
        ("array real general\n-1 2\n", "line 2: '-1 2' where the 2 sizes belong"),
        (f"array real general\n{'9' * 5000} 1\n", "line 2: '9{40}' has a size of more than 18 digits"),
        (f"coordinate real general\n2 2 {'1' * 5000}\n", "line 2: .* has a size of more than 18 digits"),
        (f"array real general\n{10**17} {10**17}\n", "does not fit in memory"),
        ("array real symmetric\n2 3\n", "line 2: a symmetric matrix is square, not 2x3"),
        ("array pattern general\n2 2\n", "line 1: a pattern cannot be array general"),
        ("coordinate pattern skew-symmetric\n2 2 1\n2 1\n", "cannot be coordinate skew-symmetric; write its values"),
        ("array quaternion general\n2 2\n", "line 1: field 'quaternion'"),
        ("list real general\n2 2\n", "line 1: layout 'list'"),
        ("array real diagonal\n2 2\n", "line 1: symmetry 'diagonal'"),
        ("array integer general\n1 1\n1.5\n", "line 3: '1.5' is not an integer"),
        (
            "array integer general\n1 1\n9007199254740993\n",
            "line 3: the integer 9007199254740993 is no float64, .* multiplied exactly from .npy files",
        ),
        ("array unsigned-integer general\n1 1\n18446744073709551615\n", "line 3: the integer 1844.* is no float64"),
        ("array real general\n1 1\n1.5D\n", "line 3: '1.5D' is not a number"),
        ("array real general\n1 1\n1.5D400\n", "line 3: '1.5D400' is beyond the range of float64"),
        ("array real general\n1 1\n1_0D1\n", "line 3: '1_0D1' is not a number"),
        ("array real skew-symmetric\n2 2\n0\n1\n2\n", r"line 5: the diagonal of a skew-symmetric matrix is zero"),
        ("array real skew-symmetric\n2 2\n0\n1\n", "line 4: more than the 1 entries"),
        ("array real skew-symmetric\n3 3\n0\n1\n", "truncated: 2 of the 3 entries"),
        ("array complex general\n1 1\n1\n", "line 3: '1' where 2 numbers belong"),
        (
            "array complex hermitian\n1 1\n1 2\n",
            r"line 3: the diagonal of a hermitian matrix is real",
        ),
        ("coordinate real general\n2 2 1\n3 1 1\n", "line 3: row 3 is not between 1 and 2"),
        ("coordinate real general\n2 2 1\n1 0 1\n", "line 3: column 0 is not between 1 and 2"),
        ("coordinate real general\n2 2 1\nx 1 1\n", "line 3: 'x' is not a row index"),
        (
            "coordinate real symmetric\n2 2 2\n1 2 3\n2 1 3\n",
            r"entry \(2, 1\), which is there 2 times, may be meant as its own mirror image, for a symmetric matrix",
        ),
        (
            "coordinate complex hermitian\n2 2 3\n1 2 3 1\n1 2 3 1\n2 1 3 -1\n",
            r"entry \(2, 1\), which is there 3 times, may be meant as its own mirror image, for a hermitian matrix",
        ),
        (
            "coordinate pattern general\n2 2 3\n1 2\n2 2\n1 2\n",
            r"line 5: the pattern has entry \(1, 2\) already; write each of them once",
        ),
        (
            "coordinate integer general\n2 2 2\n1 2 9007199254740992\n1 2 1\n",
            r"entry \(1, 2\), which is there 2 times, has the sum 9007199254740993, which is no float64",
        ),
        (
            "coordinate real general\n2 2 2\n1 2 1.7e308\n1 2 1.7e308\n",
            r"entry \(1, 2\), which is there 2 times, has a sum beyond the range of float64",
        ),
        (
            "coordinate complex general\n2 2 2\n1 2 0 -1.7e308\n1 2 0 -1.7e308\n",
            r"entry \(1, 2\), which is there 2 times, has a sum beyond the range of float64",
        ),
        ("coordinate complex hermitian\n1 1 2\n1 1 1 2\n1 1 1 -2\n", "line 3: the diagonal of a hermitian"),
        ("coordinate complex hermitian\n1 1 2\n1 1 1 0\n1 1 1 -2\n", "line 4: the diagonal of a hermitian"),
        (
            "coordinate real skew-symmetric\n2 2 1\n2 2 3\n",
            "line 3: the diagonal of a skew-symmetric",
        ),
        ("coordinate pattern general\n2 2 1\n1 1 1\n", "line 3: '1 1 1' where 2 numbers belong"),
        ("coordinate real general\n2 2 3\n1 1 1\n", "truncated: 1 of the 3 entries"),
        ("coordinate real general\n9999999999 9999999999 1\n1 1 1\n", "does not fit in memory"),
    ],
)
def test_junk_mtx_names_its_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(FileError, match=what):
        files.read(market(tmp_path / "a.mtx", text))


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x93NUMPY\x01\x00", b"\x00" * 5000, b"%%M"])
def test_no_matrix_market_file_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.mtx"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"line 1: .* is no Matrix Market banner"):
        files.describe(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            b"%%MatrixMarket vector coordinate real general\n2 1\n",
            "line 1: holds a vector; write it as a matrix of one",
        ),
        (codecs.BOM_UTF16_LE + "%%MatrixMarket".encode("utf-16-le"), "UTF-16 text; write it as UTF-8"),
        (codecs.BOM_UTF16_BE + "%%MatrixMarket".encode("utf-16-be"), "UTF-16 text; write it as UTF-8"),
        (
            b"%%MatrixMarket matrix array real general\r1 1\r1\r",
            "end in carriage returns alone; end them in line feeds",
        ),
        (bz2.compress(b"%%MatrixMarket"), "is compressed by bzip2; decompress it, or compress it by gzip"),
        (lzma.compress(b"%%MatrixMarket"), "is compressed by xz; decompress it"),
        (b"\x28\xb5\x2f\xfd rest", "is compressed by zstd; decompress it"),
        (b"PK\x03\x04 rest", "is compressed by zip; decompress it"),
        (gzip.compress(gzip.compress(b"%%MatrixMarket", mtime=0), mtime=0), "line 1: .* is no Matrix Market banner"),
    ],
)
def test_other_files_are_refused_with_what_helps(tmp_path: Path, content: bytes, what: str) -> None:
    for name in ("a.mtx", "a.mtx.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        for function in (files.describe, files.read):
            with pytest.raises(FileError, match=what):
                function(path)


# --- .mtx: what others write ----------------------------------------------------------------------


PLAIN = "%%MatrixMarket matrix coordinate real general\n% c\n2 3 3\n1 1 1.5\n% c\n2 1 -2\n2 3 0.1\n"


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        codecs.BOM_UTF8 + PLAIN.encode(),
        codecs.BOM_UTF8 + PLAIN.replace("\n", "\r\n").encode(),
        gzip.compress(PLAIN.encode(), mtime=0),
        gzip.compress(codecs.BOM_UTF8 + PLAIN.encode()[:60], mtime=0) + gzip.compress(PLAIN.encode()[60:], mtime=0),
        PLAIN.replace(
            "MatrixMarket matrix coordinate real general", "MATRIXMARKET MATRIX Coordinate Real GENERAL"
        ).encode(),
        PLAIN.rstrip("\n").encode(),
        (PLAIN + "\n\n% end\n").encode(),
        PLAIN.replace("\n", "\n\n").encode(),
        PLAIN.replace("% c", "%%% ü\t1 1 1").encode("latin-1"),
        PLAIN.replace(" ", "\t ").replace("\n", " \n").encode(),
        PLAIN.replace("1.5", "1.5D0").replace("-2", "-.2D+01").replace("0.1", "1d-1").encode(),
        PLAIN.replace("1.5", "+15.E-1").replace("-2", "-200.Q-2").replace("0.1", "1.0-001").encode(),
    ],
)
@pytest.mark.parametrize("name", ["a.mtx", "a.mtx.gz"])
def test_one_matrix_as_many_files(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert files.describe(path) == files.Description((2, 3), np.dtype(float), "mtx")
    assert same_bits(files.read(path), np.array([[1.5, 0, 0], [-2, 0, 0.1]]))


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("1.234567890123456789D-103", "1.234567890123456789e-103"),
        ("-1.7976931348623157D+308", "-1.7976931348623157e308"),
        ("4.9D-324", "4.9e-324"),
        (".5-300", "0.5e-300"),
        ("9007199254740993d0", "9007199254740993"),  # a real field's decimal: to nearest
        ("1.5Q2", "150"),
        ("NaN", "nan"),
        ("-Infinity", "-inf"),
        ("-Inf", "-inf"),
    ],
)
@pytest.mark.parametrize("neighbour", ["2", "2D0"])
def test_numbers_as_fortran_writes_them(tmp_path: Path, token: str, value: str, neighbour: str) -> None:
    text = f"array complex general\n2 1\n{token} {neighbour}\n{neighbour} {token}\n"
    read = files.read(market(tmp_path / "a.mtx", text))
    x = float(value) if "n" in value else float(Fraction(value))
    assert np.array_equal(read.real[:, 0], [x, 2.0], equal_nan=True)
    assert np.array_equal(read.imag[:, 0], [2.0, x], equal_nan=True)


@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "u8", "f4", "f8", "g", "c8", "c16", "G", "?"])
@pytest.mark.parametrize("field", [None, "real", "complex", "pattern", "integer", "unsigned-integer"])
def test_all_that_scipy_writes(tmp_path: Path, rng: np.random.Generator, dtype: str, field: str | None) -> None:
    """Each of its symmetries and layouts: read as SciPy reads it, or refused as what is no such matrix."""
    n, path = 5, tmp_path / "a.mtx"
    half = np.tril(rng.integers(0, 100, (n, n)) * (rng.random((n, n)) < 0.6), -1).astype(dtype)
    symmetries = {
        "AUTO": half,
        "general": half,
        "symmetric": half + half.T,
        "skew-symmetric": half if dtype in ("u1", "u8", "?") else half - half.T,
        "hermitian": half + half.T.conj(),
    }
    if dtype == "?":
        del symmetries["AUTO"]  # which SciPy cannot find out of booleans
    for symmetry, matrix in symmetries.items():
        for source in (matrix, scipy.sparse.coo_array(matrix)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the imaginary part is discarded where that is asked for
                comment = "two\nlines, ü"
                scipy.io.mmwrite(path, source, field=field, symmetry=symmetry, comment=comment, precision=None)
            text = path.read_text()
            if "pattern skew-symmetric" in text:
                with pytest.raises(FileError, match="cannot be coordinate skew-symmetric; write its values"):
                    files.read(path)
                continue
            # SciPy does not read its own skew-symmetric files of unsigned integers.
            twin = scipy.io.mmread(io.StringIO(text.replace("unsigned-integer skew", "integer skew")))
            twin = twin if isinstance(twin, np.ndarray) else twin.toarray()
            assert np.array_equal(files.read(path), twin), text


def test_arrays_as_matlab_writes_them(tmp_path: Path) -> None:
    """Its mmwrite calls a dense matrix "mtx" and keeps the diagonal of a skew-symmetric one."""
    for field, tail, unit in (("real", "", 1), ("complex", "  0", 1)):
        text = f"%%MatrixMarket mtx array {field} skew-symmetric\n% 1-Jan\n3 3\n"
        text += "".join(f" {x}{tail}\n" for x in (0, 1, -2.5, 0, 3, 0))
        path = tmp_path / "a.mtx"
        path.write_text(text)
        assert np.array_equal(files.read(path), unit * np.array([[0, -1, 2.5], [1, 0, -3], [-2.5, 3, 0]]))
    path.write_text("%%MatrixMarket mtx array complex hermitian\n2 2\n 1  0\n 2 -3\n 4  0\n")
    assert np.array_equal(files.read(path), [[1, 2 + 3j], [2 - 3j, 4]])
    path.write_text("%%MatrixMarket mtx array real skew-symmetric\n1 1\n 0\n")
    assert np.array_equal(files.read(path), [[0.0]])


def test_files_as_julia_writes_them(tmp_path: Path) -> None:
    """MatrixMarket.jl: sparse ones without comments, of Bool as patterns, of Float32 as Float64 is written."""
    path = market(tmp_path / "a.mtx", "coordinate integer symmetric\r\n2 2 2\r\n1 1 -9007199254740992\r\n2 1 3\r\n")
    assert np.array_equal(files.read(path), [[-(2.0**53), 3], [3, 0]])
    market(path, "coordinate complex hermitian\n2 2 2\n1 1 1.0e-5 0.0\n2 1 NaN -Inf\n")
    assert np.array_equal(
        files.read(path), [[1e-5, complex(np.nan, np.inf)], [complex(np.nan, -np.inf), 0]], equal_nan=True
    )
    market(path, "coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n")
    assert np.array_equal(files.read(path), [[1, 1], [1, 0]])


# --- .mtx: entries that are there several times ---------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 1 << 16])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
@pytest.mark.parametrize("complex_", [False, True])
def test_repeated_entries_are_summed_exactly_and_rounded_once(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, chunk: int, symmetry: str, complex_: bool
) -> None:
    monkeypatch.setattr(mtx, "_BLOCK", chunk)
    n, count = 4, 60
    i, j = rng.integers(0, n, count), rng.integers(0, n, count)
    if symmetry != "general":  # one triangle, the upper one as often as the lower
        i, j = np.maximum(i, j), np.minimum(i, j)
        i, j = (i, j) if chunk == 3 else (j, i)
    if symmetry == "skew-symmetric":
        i, j = i[i != j], j[i != j]
    values = np.ldexp(rng.standard_normal((len(i), 2)), rng.integers(-60, 60, (len(i), 2)))
    values[:, 1] *= complex_ & ((i != j) | (symmetry != "hermitian"))
    exact = {(p, q): [Fraction(0), Fraction(0)] for p in range(n) for q in range(n)}
    for p, q, (re, im) in zip(i.tolist(), j.tolist(), values.tolist(), strict=True):
        exact[p, q][0] += Fraction(re)
        exact[p, q][1] += Fraction(im)
        if symmetry != "general" and p != q:
            exact[q, p][0] += Fraction(-re if symmetry == "skew-symmetric" else re)
            exact[q, p][1] += Fraction(im if symmetry == "symmetric" else -im)
    lines = [
        f"{p + 1} {q + 1} {re!r}" + f" {im!r}" * complex_
        for p, q, (re, im) in zip(i.tolist(), j.tolist(), values.tolist(), strict=True)
    ]
    head = f"coordinate {'complex' if complex_ else 'real'} {symmetry}\n{n} {n} {len(lines)}\n"
    read = files.read(market(tmp_path / "a.mtx", head + "\n".join(lines) + "\n"))
    for place, (re, im) in exact.items():
        assert (read[place].real, read[place].imag) == (float(re), float(im)), place


def test_repeated_entries_at_the_ends_of_the_range(tmp_path: Path) -> None:
    big = "1.7976931348623157e308"
    for texts, total in [
        ((big, big, f"-{big}"), float(big)),
        (("1e308", "1e308", "-1.5e308"), float(2 * Fraction(1e308) - Fraction(1.5e308))),
        (("1e16", "1", "-1e16"), 1.0),
        (("0.1", "0.2"), 0.1 + 0.2),
        (("1", "-1", "0"), 0.0),
        (("5e-324", "5e-324"), 1e-323),
        (("1", "2.220446049250313e-16", "5e-324"), 1.0000000000000002),
        (("1", "1.1102230246251565e-16", "5e-324"), 1.0000000000000002),  # above the tie
        (("inf", "1", "inf"), math.inf),
        (("inf", "1", "-inf"), math.nan),
        (("nan", "5"), math.nan),
    ]:
        lines = "".join(f"1 2 {text}\n2 2 1\n" if text == texts[0] else f"1 2 {text}\n" for text in texts)
        path = market(tmp_path / "a.mtx", f"coordinate real general\n2 2 {lines.count(chr(10))}\n{lines}")
        assert np.array_equal(files.read(path)[0], [0, total], equal_nan=True), texts
    market(path, "coordinate integer general\n1 1 3\n1 1 9007199254740992\n1 1 1\n1 1 1\n")
    assert files.read(path).item() == 2.0**53 + 2
    matrix = scipy.sparse.coo_array(([0.1, 0.2, 0.7], ([0, 0, 1], [1, 1, 1])), shape=(2, 2))
    scipy.io.mmwrite(path, matrix, symmetry="general")
    assert np.array_equal(files.read(path), matrix.toarray())


def test_zeros_add_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtx, "_BLOCK", 1)
    path = market(tmp_path / "a.mtx", "coordinate real general\n2 2 3\n1 1 0\n2 2 1\n1 1 5\n")
    assert np.array_equal(files.read(path), [[5, 0], [0, 1]])
    market(path, "coordinate real skew-symmetric\n2 2 3\n1 1 0\n2 1 1\n2 2 0\n")
    assert np.array_equal(files.read(path), [[0, -1], [1, 0]])


# --- what is no file ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.npy", "a.mtx", "a.mtx.gz"])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, name: str) -> None:
    pipe, device, folder = tmp_path / name, tmp_path / f"d{name}", tmp_path / f"f{name}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    folder.mkdir()
    (tmp_path / f"l{name}").symlink_to(pipe)
    for path, what in (
        (pipe, "is a pipe, and a matrix is read more than once; write it to a file first"),
        (tmp_path / f"l{name}", "is a pipe"),
        (device, "is a device"),
        (folder, "directory"),
    ):
        for function in (files.describe, files.read, files.sha256_of_file):
            with pytest.raises(FileError, match=what):
                function(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx.gz"
    whole = gzip.compress((BANNER + "array real general\n900 1\n" + "1.5\n" * 900).encode())
    for content, what in [
        (whole[:-20], "truncated gzip"),
        (whole[:2] + b"%%MatrixMarket plain", "not a gzip file"),
        (b"%%MatrixMarket plain", "line 1: .* is no Matrix Market banner"),
        (whole[:30] + b"\xff\xff" + whole[32:], "gzip|line"),
    ]:
        path.write_bytes(content)
        with pytest.raises(FileError, match=what):
            files.read(path)


# --- hashes ---------------------------------------------------------------------------------------


def test_hash_of_bits_is_that_of_the_row_major_bytes(tmp_path: Path, rng: np.random.Generator) -> None:
    array = rng.standard_normal((300, 7))
    expected = hashlib.sha256(array.tobytes()).hexdigest()
    assert files.sha256_of_bits(array) == expected
    assert files.sha256_of_bits(np.asfortranarray(array)) == expected
    assert files.sha256_of_bits(array.astype(">f8")) == expected
    assert files.sha256_of_bits(np.empty((0, 3))) == hashlib.sha256().hexdigest()
    assert files.sha256_of_bits(array) != files.sha256_of_bits(-array)
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert files.sha256_of_file(path) == hashlib.sha256(b"abc").hexdigest()


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.npy", "c.mtx"])
def test_target_appears_only_when_whole(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    path = tmp_path / name
    path.write_text("old")
    matrix = rng.standard_normal((10, 12))
    out = Target(path, matrix.shape, matrix.dtype, resume=False)
    for rows in (slice(0, 4), slice(4, 10)):
        for columns in (slice(6, 12), slice(0, 6)):
            digest = out.write(rows.start, columns.start, np.asfortranarray(matrix[rows, columns]))
            assert digest == files.sha256_of_bits(matrix[rows, columns])
    out.complete()
    assert path.read_text() == "old"
    assert same_bits(out.read(), matrix)
    for rows, columns in ((10, 12), (4, 6), (3, 5), (1, 1), (10, 5), (4, 12)):
        whole, tiles = out.digests(rows, columns)
        assert whole == files.sha256_of_bits(matrix)
        assert tiles == {
            (i // rows, j // columns): files.sha256_of_bits(matrix[i : i + rows, j : j + columns])
            for i in range(0, 10, rows)
            for j in range(0, 12, columns)
        }
    out.commit()
    assert np.array_equal(files.read(path), matrix)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_discarded_target_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    path.write_text("old")
    Target(path, (3, 3), np.dtype(float), resume=False).discard()
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.npy"]
    assert path.read_text() == "old"


def test_closed_target_can_be_resumed_unless_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    first = Target(path, (2, 3), np.dtype(float), resume=False)
    first.write(0, 0, np.full((1, 3), 7.0))
    first.close()
    again = Target(path, (2, 3), np.dtype(float), resume=True)
    assert again.read()[0].tolist() == [7, 7, 7]
    again.close()
    with pytest.raises(FileError, match="start over with --force"):
        Target(path, (2, 4), np.dtype(float), resume=True)
    target.part_of(path).unlink()
    with pytest.raises(FileError, match="No such file"):
        Target(path, (2, 3), np.dtype(float), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_two_writers_of_one_product_are_refused(tmp_path: Path, resume: bool) -> None:
    path = tmp_path / "c.npy"
    first = Target(path, (2, 2), np.dtype(float), resume=False)
    with pytest.raises(FileError, match="another prismm is writing"):
        Target(path, (2, 2), np.dtype(float), resume=resume)
    first.write(0, 0, np.eye(2))
    first.complete()
    first.commit()
    assert np.array_equal(np.load(path), np.eye(2))


def test_too_little_space_is_found_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    with pytest.raises(FileError, match=r"\d+ bytes are needed for \.c\.npy\.part-prismm, \d+ are"):
        Target(path, (10**8, 10**8), np.dtype(float), resume=False)
    assert not list(tmp_path.iterdir())


def _limited(code: str, limit: int, cwd: Path) -> str:
    """Run Python code where files may not grow beyond ``limit`` bytes; return its stdout."""

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        preexec_fn=limit_files,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("fallocate", [True, False])
def test_full_disk_is_an_error_and_harms_nothing(tmp_path: Path, fallocate: bool) -> None:
    (tmp_path / "c.npy").write_text("old")
    code = f"""
import os, numpy as np, pathlib
from prismm.errors import FileError
from prismm.files.target import Target
if not {fallocate}:
    import prismm.files.target as module
    module.reserve = lambda *args: None
out = None
try:
    out = Target(pathlib.Path("c.npy"), (100, 100), np.dtype(float), resume=False)
    out.write(0, 0, np.ones((100, 100)))
except FileError as error:
    print(error)
    if out is not None:
        out.discard()
"""
    assert "no space left for .c.npy.part-prismm" in _limited(code, 40_000, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.npy"]
    assert (tmp_path / "c.npy").read_text() == "old"


def test_errors_of_the_system_become_file_errors(tmp_path: Path) -> None:
    for number, what in [
        (errno.ENOSPC, "no space left for x"),
        (errno.EIO, "x: cannot be written"),
    ]:
        with pytest.raises(FileError, match=what), target.explained(tmp_path / "x"):
            raise OSError(number, os.strerror(number))


def test_replaced_text_is_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.json"
    target.replace_text(path, "one")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="no space left"):
        target.replace_text(path, "two")
    assert path.read_text() == "one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["j.json"]
