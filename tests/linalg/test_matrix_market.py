"""Systems in Matrix Market files, as SciPy writes them and prismm reads them, against exact rational solutions."""

from __future__ import annotations

import contextlib
import gzip
import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import prismm.linalg
from prismm import files
from prismm.errors import FileError, NotCertified
from tests import judge
from tests.linalg import matrices, reference

Array = np.ndarray[Any, Any]


def dense(a: Any) -> Array:
    return a if isinstance(a, np.ndarray) else a.toarray()


def through_file(folder: Path, name: str, a: Any, zipped: bool = False) -> Array:
    """The matrix as prismm reads what SciPy wrote, with the very entries that were written."""
    path = folder / f"{name.replace(' ', '-')}.mtx{'.gz' if zipped else ''}"
    if zipped:
        written = io.BytesIO()
        scipy.io.mmwrite(written, a)
        path.write_bytes(gzip.compress(written.getvalue()))
    else:
        scipy.io.mmwrite(path, a)
    found = files.read(path)
    assert (found == dense(a)).all() and found.shape == a.shape
    return found


def right_sides(rng: np.random.Generator, a: Array, columns: int) -> Array:
    b = rng.standard_normal((len(a), columns))
    return b + 1j * rng.standard_normal(b.shape) if a.dtype.kind == "c" else b


def solved(folder: Path, rng: np.random.Generator, name: str, order: int, columns: int) -> tuple[int, int]:
    """Components of a solution that keep their bounds, and how many are the exact values rounded to nearest."""
    given = matrices.SQUARE[name](order)
    a = through_file(folder, name, given, zipped=len(name) % 2 == 0)
    b = through_file(folder, f"{name} right", right_sides(rng, a, columns))
    x, report = prismm.linalg.solve(a, b, full_output=True)
    correct = reference.assert_holds(reference.solution(a, b), x, report)
    return x.size * (2 if x.dtype.kind == "c" else 1), correct


def assert_definiteness(name: str, a: Array) -> None:
    """The exact answer, or none where the matrix is singular to all that is tried."""
    expected = reference.positive(a)
    try:
        assert prismm.linalg.is_positive_definite(a) == expected, name
    except NotCertified:
        assert reference.rational(reference.real_form(a)).det() == 0, name


def assert_determinant(name: str, a: Array) -> None:
    """The enclosure holds the exact determinant, and the value is within an ulp of it."""
    exact = reference.fraction(reference.rational(a).det())
    value, report = prismm.linalg.det(a, full_output=True)
    unit = Fraction(2) ** report.exponent
    assert Fraction(report.lower) * unit <= exact <= Fraction(report.upper) * unit, name
    assert report.sign == (1 if exact > 0 else -1), name
    if np.isfinite(value):
        room = Fraction(float(np.spacing(abs(value))))
        assert value == reference.rounded(exact, np.float64) or abs(exact - Fraction(value)) <= room, name
    else:
        assert abs(exact) > Fraction(float(np.finfo(float).max)), name


def is_hermitian(a: Array) -> bool:
    return bool((a == np.conj(a.T)).all())


def test_some_hundreds_of_components(tmp_path: Path, rng: np.random.Generator) -> None:
    total = correct = 0

    def check(name: str) -> None:
        nonlocal total, correct
        count, good = solved(tmp_path, rng, name, 9, 2)
        total, correct = total + count, correct + good

    judge.assert_each(check, matrices.SQUARE)
    assert total >= 450 and correct >= 0.97 * total


def test_definiteness_and_determinants(tmp_path: Path) -> None:
    def check(name: str) -> None:
        a = through_file(tmp_path, name, matrices.SQUARE[name](9))
        if is_hermitian(a):
            assert_definiteness(name, a)
            smallest = np.linalg.eigvalsh(a)[0]
            assert_definiteness(f"{name}, shifted", a - (smallest + 1e-9 * abs(smallest)) * np.eye(len(a)))
        if a.dtype.kind != "c":
            assert_determinant(name, a)

    judge.assert_each(check, matrices.SQUARE)


@pytest.mark.slow
def test_real_data_by_least_squares(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")

    def check(name: str) -> None:
        x, y = matrices.observations(name, 36)
        x = x[:, np.linalg.qr(x)[1].diagonal() != 0.0][:, :9]
        x, y = through_file(tmp_path, name, x), through_file(tmp_path, f"{name} target", y)
        found, report = prismm.linalg.lstsq(x, y, full_output=True)
        reference.assert_holds(reference.least_squares(x, y), found, report)

    judge.assert_each(check, matrices.DATA)


def test_texts_that_scipy_ships(tmp_path: Path, rng: np.random.Generator) -> None:
    """Its own examples, the format's among them: solved, or said to be singular, or refused for what float64 lacks."""
    texts = matrices.published()
    if not texts:
        pytest.skip("this SciPy came without its tests")
    seen = {"solved": 0, "singular": 0, "refused": 0}

    def check(case: tuple[str, str]) -> None:
        name, text = case
        path = tmp_path / f"{name}.mtx"
        path.write_text(text)
        try:
            a = files.read(path)
        except FileError as error:
            why = "the diagonal of a skew-symmetric matrix is zero" if name == "skew_example" else "is no float64"
            assert why in str(error) and ("64bit" in name or name == "skew_example")
            seen["refused"] += 1
            return
        with contextlib.suppress(OverflowError):  # SciPy takes integers of 64 bits alone
            assert (a == dense(scipy.io.mmread(path))).all()
        if a.shape[0] != a.shape[1]:
            return
        b = right_sides(rng, a, 3)
        if reference.rational(reference.real_form(a)).det() == 0:
            with pytest.raises(NotCertified, match="singular"):
                prismm.linalg.solve(a, b)
            seen["singular"] += 1
            return
        x, report = prismm.linalg.solve(a, b, full_output=True)
        reference.assert_holds(reference.solution(a, b), x, report)
        if is_hermitian(a):
            assert_definiteness(name, a)
        if a.dtype.kind != "c":
            assert_determinant(name, a)
        seen["solved"] += 1

    judge.assert_each(check, texts.items())
    assert all(seen.values()), seen


@pytest.mark.slow
def test_singular_files_are_told(tmp_path: Path) -> None:
    """The Laplacian of a whole graph, a magic square of even order, and a pattern, of which all entries are 1."""
    path = scipy.sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(7, 7))
    whole = scipy.sparse.csgraph.laplacian(path).tocoo()
    magic = np.array([[16, 2, 3, 13], [5, 11, 10, 8], [9, 7, 6, 12], [4, 14, 15, 1]])

    def check(case: tuple[str, Any]) -> None:
        name, given = case
        a = through_file(tmp_path, name, given)
        for function in (lambda: prismm.linalg.solve(a, np.ones(len(a))), lambda: prismm.linalg.det(a)):
            with pytest.raises(NotCertified, match="singular"):
                function()
        if is_hermitian(a):
            assert_definiteness(name, a)

    judge.assert_each(check, [("graph", whole), ("magic", magic), ("ones", scipy.sparse.coo_array(np.ones((5, 5))))])


@pytest.mark.slow
@pytest.mark.parametrize("name", matrices.SQUARE)
def test_definiteness_and_determinants_of_larger_ones(tmp_path: Path, name: str) -> None:
    a = through_file(tmp_path, name, matrices.SQUARE[name](40))
    if is_hermitian(a):
        assert_definiteness(name, a)
    if a.dtype.kind != "c":
        assert_determinant(name, a)


@pytest.mark.slow
def test_bounds_hold_over_many_components(tmp_path: Path, rng: np.random.Generator) -> None:
    """More than 2·10^4 of them."""
    total = correct = 0
    for order, columns in ((16, 16), (40, 10), (81, 4)):
        for name in matrices.SQUARE:
            count, good = solved(tmp_path, rng, name, order, columns)
            total, correct = total + count, correct + good
    assert total > 20_000 and correct >= 0.99 * total, (total, correct)


@pytest.mark.slow
def test_least_squares_of_whole_tables(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")

    def check(name: str) -> None:
        x, y = (through_file(tmp_path, f"{name} {i}", part) for i, part in enumerate(matrices.observations(name)))
        found, report = prismm.linalg.lstsq(x, y, full_output=True)
        reference.assert_holds(reference.least_squares(x, y), found, report)

    judge.assert_each(check, matrices.DATA)
