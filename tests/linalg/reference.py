"""Exact solutions by python-flint, and matrices that are hard to solve with."""

from __future__ import annotations

import math
from fractions import Fraction

import flint
import numpy as np

from prismm.formats import format_of, round_fraction


def rational(x):
    """A real matrix as one of exact rational numbers."""
    x = np.asarray(x)
    entries = [flint.fmpq(*float(v).as_integer_ratio()) for v in x.ravel()]
    return flint.fmpq_mat(*x.shape, entries)


def real_form(a):
    """X + iY as [[X, -Y], [Y, X]]."""
    return np.block([[a.real, -a.imag], [a.imag, a.real]]) if np.iscomplexobj(a) else a


def real_rows(b):
    return np.concatenate([b.real, b.imag]) if np.iscomplexobj(b) else b


def fraction(q):
    return Fraction(int(q.p), int(q.q))


def solution(a, b):
    """The exact solution of ax = b, real parts above imaginary parts, as lists of fractions."""
    found = rational(real_form(a)).solve(rational(real_rows(b)))
    return [[fraction(found[i, j]) for j in range(found.ncols())] for i in range(found.nrows())]


def least_squares(a, b):
    """The exact least-squares solution, by the normal equations."""
    a, b = rational(real_form(a)), rational(real_rows(b))
    found = (a.transpose() * a).solve(a.transpose() * b)
    return [[fraction(found[i, j]) for j in range(found.ncols())] for i in range(found.nrows())]


def positive(a):
    """Whether a Hermitian matrix is positive definite, by Sylvester's criterion."""
    a = real_form(a)
    return all(rational(a[:k, :k]).det() > 0 for k in range(1, len(a) + 1))


def rounded(exact: Fraction, dtype) -> float:
    """RN(exact) in a real type."""
    # 2^-2000 is below half of every subnormal: what is left out decides no tie.
    shift = 1200 - (exact.numerator.bit_length() - exact.denominator.bit_length()) if exact else 0
    scaled = exact * Fraction(2) ** shift
    whole = scaled.numerator // scaled.denominator
    sticky = whole * 2 + (1 if scaled != whole else 0)
    return float(round_fraction(format_of(np.dtype(dtype)), sticky, -shift - 1))


def assert_holds(exact, x, report, ulps=0.5625):
    """Bounds are never broken, what is said to be rounded correctly is, and every component is within so many ulps, or
    2^-212 of the largest of its column.
    """
    real = x.real.dtype
    got, bounds, correct = real_rows(x), report.bounds, report.correctly_rounded
    if np.iscomplexobj(x):
        bounds, correct = np.concatenate([bounds, bounds]), np.concatenate([correct, correct])
    count = 0
    negligible = [max(map(abs, column)) * Fraction(2) ** -212 for column in zip(*exact, strict=True)]
    for i, row in enumerate(exact):
        for j, value in enumerate(row):
            error = abs(value - Fraction(float(got[i, j])))
            assert bounds[i, j] == np.inf or error <= Fraction(float(bounds[i, j])), (i, j, float(error), bounds[i, j])
            nearest = rounded(value, real)
            count += nearest == got[i, j]
            if correct[i, j]:
                assert nearest == got[i, j], (i, j, nearest, got[i, j])
            if ulps is not None:
                room = Fraction(ulps) * Fraction(float(np.spacing(np.abs(got[i, j]))))
                assert error <= max(room, negligible[j]), (i, j, float(error))
    return count


def hilbert(n):
    return 1.0 / np.add.outer(np.arange(n), np.arange(1.0, n + 1))


def pascal(n):
    return np.array([[math.comb(i + j, i) for j in range(n)] for i in range(n)], dtype=float)


def kahan(n, theta=1.2):
    s, c = np.sin(theta), np.cos(theta)
    return s ** np.arange(n)[:, None] * (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def unimodular(rng, n, bits):
    """L·U of triangular integer matrices with unit diagonals and entries of so many bits: of determinant 1, and of a
    condition number of about 2^(2·bits·n).
    """

    def entries():
        return rng.integers(-(2**bits), 2**bits + 1, (n, n))

    unit = np.eye(n, dtype=np.int64)
    a = (np.tril(entries(), -1) + unit).astype(object) @ (np.triu(entries(), 1) + unit).astype(object)
    assert np.abs(a).max() < 2**53
    return a.astype(float)


def graded(rng, n, decades):
    """An orthogonal matrix whose columns are scaled over so many decades."""
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return q * 10.0 ** (-decades * np.arange(n) / max(1, n - 1))


def of_condition(rng, n, condition):
    """Random singular vectors, singular values from 1 to 1/condition."""
    u, _ = np.linalg.qr(rng.standard_normal((n, n)))
    v, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return (u * condition ** (-np.arange(n) / max(1, n - 1))) @ v
