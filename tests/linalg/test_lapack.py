"""NumPy's LAPACK by its addresses and SciPy's: both factorise, invert and solve, and overwrite what they are given."""

import numpy as np
import pytest

from prismm.linalg import factors
from prismm.linalg import lapack as lapacks
from prismm.linalg.lapack import _OfSciPy, lapack


def libraries():
    found = [lapack()]
    try:
        import scipy.linalg
    except ImportError:
        pass
    else:
        found.append(_OfSciPy(scipy.linalg))
    return [x for x in found if x is not None]


@pytest.fixture(params=range(2))
def known(request):
    there = libraries()
    if request.param >= len(there):
        pytest.skip("one library alone")
    return there[request.param]


def test_factors_solve_and_invert(known, rng):
    for n in (1, 2, 7, 90):
        a, b = rng.standard_normal((n, n)) + 3.0 * np.eye(n)[::-1], rng.standard_normal((n, 3))
        lu = np.array(a, order="F")
        pivots, info = known.getrf(lu)
        assert info == 0
        rows = factors._order(pivots)
        assert np.allclose((np.tril(lu, -1) + np.eye(n)) @ np.triu(lu), a[rows], rtol=0, atol=1e-12)
        x = np.array(b, order="F")
        known.getrs(lu, pivots, x)
        assert np.allclose(a.T @ x, b, rtol=0, atol=1e-9)
        y = np.array(b, order="F")
        known.trsm(lu, y)
        assert np.allclose(np.triu(lu) @ y, b, rtol=0, atol=1e-9)
        spd = a @ a.T + np.eye(n)
        factor = np.array(spd, order="F")
        assert known.potrf(factor) == 0
        x = np.array(b, order="F")
        known.potrs(factor, x)
        assert np.allclose(spd @ x, b, rtol=0, atol=1e-9)
        lower = np.array(np.tril(factor), order="F")
        inverse = np.array(factor, order="F")
        assert known.trtri(lower, lower=True, unit=False) == 0 and known.potri(inverse) == 0
        assert np.allclose(np.tril(lower) @ np.tril(factor), np.eye(n), rtol=0, atol=1e-9)
        whole = np.tril(inverse) + np.tril(inverse, -1).T
        assert np.allclose(whole @ spd, np.eye(n), rtol=0, atol=1e-9)


def test_what_breaks_down_is_told(known):
    singular = np.array([[1.0, 2.0], [2.0, 4.0]], order="F")
    assert known.getrf(singular.copy(order="F"))[1] == 2
    assert known.potrf(np.array([[1.0, 2.0], [2.0, 1.0]], order="F")) != 0
    assert known.trtri(np.array([[0.0, 0.0], [1.0, 1.0]], order="F"), lower=True, unit=False) == 1


@pytest.mark.parametrize("there", [True, False])
def test_inverses_and_solvers_with_and_without_a_library(there, rng, monkeypatch):
    if not there:
        monkeypatch.setattr(factors, "lapack", lambda: None)
    a, b = rng.standard_normal((40, 40)), rng.standard_normal((40, 2))
    spd = a @ a.T + np.eye(40)
    for positive, matrix in ((False, a), (True, spd), (True, a + a.T), (False, np.triu(spd)), (False, np.tril(spd))):
        kept = matrix.copy()
        inverse = factors.approximate_inverse(matrix, positive=positive)
        assert np.allclose(inverse @ matrix, np.eye(40), rtol=0, atol=1e-8)
        x = factors.lu_solver(matrix, positive=positive)(b)
        assert np.allclose(matrix @ x, b, rtol=0, atol=1e-8)
        rows, lower, upper = factors.triangular_factors(matrix)
        assert np.allclose(lower @ upper, matrix[rows], rtol=0, atol=1e-9)
        assert (matrix == kept).all()


def test_names_that_are_missing_leave_scipy(monkeypatch):
    monkeypatch.setattr(lapacks.library, "function", lambda _: None)
    found = lapack.__wrapped__()
    assert found is None or isinstance(found, _OfSciPy)
