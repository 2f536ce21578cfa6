"""CSV: the nearest float64 of every number, and errors with their lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from prismm import files
from prismm.errors import FileError
from prismm.files import mtx


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("head", ["", "x,y,z\n", "\ufeff", "\ufeffx, y, 3rd\r\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_number_is_the_nearest_float64(tmp_path: Path, rng, monkeypatch, block, head, end):
    monkeypatch.setattr(mtx, "_BLOCK", block)
    x = rng.standard_normal((9, 3)) * 10.0 ** rng.integers(-300, 300, (9, 3))
    x[0] = np.nan, np.inf, 2.0**-1074
    path = tmp_path / "a.csv"
    text = head + end.join(" , ".join(map(repr, row)) for row in x.tolist()) + end
    path.write_bytes(text.encode())
    assert files.describe(path) == files.Description((9, 3), np.dtype(float), "csv")
    assert np.array_equal(files.read(path), x, equal_nan=True)
    (tmp_path / "b.CSV.gz").write_bytes(gzip.compress(text.encode()))
    assert np.array_equal(files.read(tmp_path / "b.CSV.gz"), x, equal_nan=True)


@pytest.mark.parametrize("names", ["a,b", '"a","b c"', "_1,x2", " Länge , breite", "информация,1st"])
def test_names_begin_with_a_letter(tmp_path: Path, names):
    path = tmp_path / "a.csv"
    path.write_text(f"{names}\n3,4\n", encoding="utf-8")
    assert files.read(str(path)).tolist() == [[3.0, 4.0]] and files.describe(str(path)).shape == (1, 2)


def test_what_numpy_and_pandas_write(tmp_path: Path, rng):
    x = rng.standard_normal((4, 3))
    np.savetxt(tmp_path / "a.csv", x, delimiter=",", fmt="%.17g", header="a,b,c", comments="")
    assert np.array_equal(files.read(tmp_path / "a.csv"), x)
    (tmp_path / "one.csv").write_text("1\n2\n\n3")
    assert files.read(tmp_path / "one.csv").tolist() == [[1.0], [2.0], [3.0]]
    (tmp_path / "big.csv").write_text(f"{2**60},-{2**53}\n9007199254740993.0,1e16\n")
    assert files.read(tmp_path / "big.csv").tolist() == [[2.0**60, -(2.0**53)], [2.0**53, 1e16]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no numbers"), ("a,b\n", "holds no numbers"), ("1,2\n3\n", "line 2: 1 numbers where the first"),
        ("1,2\n3,\n", "line 2: '' is not a number"), ("1,2\n\n3,x\n", "line 3: 'x' is not a number"),
        ("1;2\n3;4\n", "line 1: '1;2' is not a number"), (",a\n0,1.5\n", "line 1: the first column has no name"),
        ("1,1e999\n", "line 1: '1e999' is beyond the range"), ("9007199254740993,1\n", "is no float64"),
        ("1_000,2\n", "line 1: '1_000' is not a number"), ('"1","2"\n3,4\n', "line 1: '\"1\"' is not a number"),
        *((f"{text}\n3,4\n", "line 1: .* is not a number") for text in (
            "1.O,2", "$1,$2", "5%,6%", "1/3,2", "1 2,3", "\u0661,\u0662", "-,-", "inf,x",
        )),
    ],
)  # fmt: skip
def test_errors_name_the_line(tmp_path: Path, text, words):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(FileError, match=words):
        files.read(path)


def test_utf_16_and_other_compressions_are_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text("1,2\n", encoding="utf-16")
    with pytest.raises(FileError, match="UTF-16"):
        files.describe(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes(b"BZh91AY")
    with pytest.raises(FileError, match="compressed by bzip2"):
        files.read(tmp_path / "b.csv")
