"""Eigenvalue bounds against enclosures by Arb, residuals and orthogonality exactly."""

from __future__ import annotations

from fractions import Fraction

import flint
import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import ArgumentError, NotCertified, ShapeError
from prismm.linalg import operands
from tests import judge
from tests.linalg import reference


def count_below(a, shift):
    """How many eigenvalues of a rational symmetric matrix are below a shift, by Sylvester's law of inertia."""
    n = a.nrows()
    m = [[a[i, j] - (shift if i == j else 0) for j in range(n)] for i in range(n)]
    negative = 0
    for k in range(n):
        if m[k][k] == 0:  # a shift nearby decides as well
            return None
        negative += m[k][k] < 0
        for i in range(k + 1, n):
            factor = m[i][k] / m[k][k]
            for j in range(k, n):
                m[i][j] -= factor * m[k][j]
    return negative


def assert_eigenvalues(a, w, bounds):
    """λ_k is in w_k ± bound: k eigenvalues at most are below the lower end, k + 1 at least below the upper one."""
    exact, twice = reference.rational(reference.real_form(a)), 2 if np.iscomplexobj(a) else 1
    for k, (value, bound) in enumerate(zip(w.tolist(), bounds.tolist(), strict=True)):
        low, high = (Fraction(value) + sign * Fraction(bound) * (1 + Fraction(1, 10**9)) for sign in (-1, 1))
        below, up_to = (count_below(exact, flint.fmpq(x.numerator, x.denominator)) for x in (low, high))
        assert below is None or below <= twice * k, (k, value, bound)
        assert up_to is None or up_to >= twice * (k + 1), (k, value, bound)


def symmetric(rng, values, is_complex=False):
    n = len(values)
    z = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0)
    q, _ = np.linalg.qr(z)
    a = (q * values) @ np.conj(q.T)
    return (a + np.conj(a.T)) * 0.5


@pytest.mark.parametrize("where", ["arrays", "tensors that stay"])
def test_bounds_hold(rng, monkeypatch, where):
    if where != "arrays":
        monkeypatch.setattr(operands, "stays", torch.is_tensor)

    def check(case):
        name, a = case
        given = a if where == "arrays" else torch.from_numpy(a)
        w, v, report = prismm.linalg.eigh(given, full_output=True)
        assert type(w) is type(v) is type(given)
        w, v = np.asarray(w), np.asarray(v)
        assert v.dtype == a.dtype and (np.diff(w) >= 0).all(), name
        assert_eigenvalues(a, w.astype(float), report.bounds)
        u = np.finfo(w.dtype).eps
        assert (report.bounds <= 20 * len(a) * u * np.abs(w).max() + 1e-300).all(), (name, report.bounds)
        assert report.orthogonality <= 20 * len(a) * u
        wide, vectors = reference.rational(reference.real_form(a)), reference.rational(reference.real_form(v))
        n = len(a)
        left = wide * vectors
        for k in range(n):
            gap = [
                left[i, k] - flint.fmpq(*float(w[k]).as_integer_ratio()) * vectors[i, k] for i in range(left.nrows())
            ]
            assert reference.fraction(sum(x * x for x in gap)) <= Fraction(float(report.residuals[k])) ** 2
        gram = vectors.transpose() * vectors
        row = max(
            sum(abs(reference.fraction(gram[i, j]) - (i == j)) for j in range(gram.ncols()))
            for i in range(gram.nrows())
        )
        assert row <= Fraction(report.orthogonality)

    even = np.arange(1.0, 8.0)
    judge.assert_each(check, [
        ("even", symmetric(rng, even)), ("wide", symmetric(rng, 10.0 ** np.arange(-12, 2, 2))),
        ("close", symmetric(rng, np.array([1.0, 1.0 + 1e-12, 2.0, 2.0, -3.0]))), ("hilbert", reference.hilbert(7)),
        ("complex", symmetric(rng, even[:5], True)), ("float32", symmetric(rng, even).astype(np.float32)),
        ("identity", np.eye(4)), ("zero", np.zeros((3, 3))), ("one", np.array([[-2.5]])),
        ("tiny", symmetric(rng, even) * 2.0**-900), ("huge", symmetric(rng, even) * 2.0**900),
        ("complex64", symmetric(rng, even[:4], True).astype(np.complex64)),
    ])  # fmt: skip


def test_refinement_improves(rng):
    """Eigenvectors of values that are 1 and 1e-8 apart: refined from LAPACK's of a matrix that is disturbed."""
    a = symmetric(rng, np.arange(1.0, 31.0))
    _, plain = np.linalg.eigh(a)
    w, v, report = prismm.linalg.eigh(a, full_output=True)

    def orthogonality(x):
        return float(np.abs(np.eye(30) - prismm.matmul(x.T.copy(), x, accuracy="correctly-rounded")).max())

    assert orthogonality(v) < 0.5 * orthogonality(plain)
    assert (report.angles < 1e-13).all() and (report.bounds < 1e-14 * 30).all()
    judge.assert_same_bits(prismm.linalg.eigh(torch.from_numpy(a))[0].numpy(), w)
    assert prismm.linalg.eigh(np.zeros((0, 0)))[1].shape == (0, 0)


@pytest.mark.parametrize("where", ["arrays", "tensors that stay"])
def test_what_overflows_is_not_certified(monkeypatch, where):
    if where != "arrays":
        monkeypatch.setattr(operands, "stays", torch.is_tensor)

    def check(a):
        with pytest.raises(NotCertified, match="beyond") as raised:
            prismm.linalg.eigh(a if where == "arrays" else torch.from_numpy(a))
        report = raised.value.report
        assert not any(np.isnan(x).any() for x in (report.bounds, report.residuals, report.angles))

    full = np.full((2, 2), 1.5e308)
    judge.assert_each(check, [full, np.full((2, 2), 3e38, np.float32), full.astype(complex), np.full((9, 9), -1e308)])


def test_eigenvalues_near_the_end_of_the_range(rng):
    """The bits of eigenvalues and the bounds are those of a smaller matrix, times a power of two."""
    small = symmetric(rng, np.arange(1.0, 8.0))
    w, v, report = prismm.linalg.eigh(small, full_output=True)
    for e in (1020, 1021):  # the largest eigenvalue is below 2^(e+3)
        big_w, big_v, big = prismm.linalg.eigh(np.ldexp(small, e), full_output=True)
        judge.assert_same_bits(big_w, np.ldexp(w, e))
        judge.assert_same_bits(big_v, v)
        assert (big.bounds <= np.ldexp(report.bounds, e) * 1.01).all()
        assert (big.residuals <= np.ldexp(report.residuals, e) * 1.01).all()
    a = np.full((2, 2), 0.8e308)
    w, _, report = prismm.linalg.eigh(a, full_output=True)
    assert_eigenvalues(a, w, report.bounds)


@pytest.mark.parametrize("where", ["arrays", "tensors that stay"])
def test_bounds_of_tiny_matrices_are_as_good_as_of_others(rng, monkeypatch, where):
    """Down to subnormal entries."""
    if where != "arrays":
        monkeypatch.setattr(operands, "stays", torch.is_tensor)
    whole = np.rint(symmetric(rng, np.arange(1.0, 8.0)) * 2.0**20)
    _, _, report = prismm.linalg.eigh(whole, full_output=True)
    for e in (-300, -330, -500, -900, -1030, -1074):
        small = np.ldexp(whole, e)
        w, _, found = prismm.linalg.eigh(small if where == "arrays" else torch.from_numpy(small), full_output=True)
        assert_eigenvalues(small, np.asarray(w), found.bounds)
        # The eigenvalues themselves are rounded to multiples of 2^-1074.
        rounding = 2.0 ** max(-1074 - e, -60)
        assert (np.ldexp(found.bounds, -e) <= 1.01 * report.bounds + 2.0 * rounding).all()
        assert (np.ldexp(found.residuals, -e) <= 1.01 * report.residuals + 2.0 * rounding).all()
    zero = prismm.linalg.eigh(np.zeros((3, 3)), full_output=True)[2]
    assert (zero.bounds < 1e-300).all()


def test_angles_hold(rng):
    """Of a diagonal matrix with a small coupling the exact angle is known."""
    a = np.diag([1.0, 2.0, 4.0, 8.0])
    _, v, report = prismm.linalg.eigh(a, full_output=True)
    assert (np.sqrt(np.maximum(0.0, 1.0 - np.abs(np.diagonal(v)))) <= report.angles + 1e-15).all()
    _, _, report = prismm.linalg.eigh(np.eye(3), full_output=True)
    assert (report.angles == 1.0).all()


@pytest.mark.slow
def test_batches(rng):
    """Every matrix of a batch has the bits and the proofs that it has alone."""
    for kind in (np.float64, np.float32, np.complex128, np.complex64):
        z = rng.standard_normal((2, 3, 5, 5)) + (
            1j * rng.standard_normal((2, 3, 5, 5)) if np.dtype(kind).kind == "c" else 0
        )
        a = (z + np.conj(np.swapaxes(z, -1, -2))).astype(kind)
        w, v, report = prismm.linalg.eigh(a, full_output=True)
        assert w.shape == (2, 3, 5) and v.shape == a.shape and report.orthogonality.shape == (2, 3)
        for at in np.ndindex(2, 3):
            one, vectors, alone = prismm.linalg.eigh(a[at], full_output=True)
            judge.assert_same_bits(w[at], one)
            judge.assert_same_bits(v[at], vectors)
            for field in ("bounds", "residuals", "orthogonality", "angles"):
                judge.assert_same_bits(np.asarray(getattr(report, field)[at]), np.asarray(getattr(alone, field)))
    assert [x.shape for x in prismm.linalg.eigh(np.zeros((0, 4, 4)))] == [(0, 4), (0, 4, 4)]
    assert [x.shape for x in prismm.linalg.eigh(np.zeros((3, 0, 0)))] == [(3, 0), (3, 0, 0)]
    with pytest.raises(NotCertified, match="beyond"):
        prismm.linalg.eigh(np.stack([np.eye(2), np.full((2, 2), 1.7e308)]))


@pytest.mark.parametrize("where", ["arrays", "tensors that stay"])
def test_bad_input(monkeypatch, where):
    if where != "arrays":
        monkeypatch.setattr(operands, "stays", torch.is_tensor)

    def check(case):
        error, match, a = case
        with pytest.raises(error, match=match):
            prismm.linalg.eigh(a if where == "arrays" else torch.from_numpy(a))

    judge.assert_each(check, [
        (ArgumentError, "not symmetric", np.array([[1.0, 2.0], [0.0, 1.0]])), (ShapeError, "square", np.ones((2, 3))),
        (ShapeError, "square", np.ones(3)), (ArgumentError, "is nan", np.full((2, 2), np.nan)),
    ])  # fmt: skip
