"""Determinants against exact ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import ArgumentError, DTypeError, NotCertified, ShapeError
from tests import judge
from tests.linalg import reference


def test_the_enclosure_holds_and_the_value_is_within_an_ulp(rng):
    def check(a):
        value, report = prismm.linalg.det(a, full_output=True)
        exact = reference.fraction(reference.rational(a).det())
        unit = Fraction(2) ** report.exponent
        assert Fraction(report.lower) * unit <= exact <= Fraction(report.upper) * unit
        assert report.sign == (1 if exact > 0 else -1) and report.lower * report.upper > 0.0
        assert 0.5 <= max(abs(report.lower), abs(report.upper)) <= 1.0 + 2.0**-52
        nearest = reference.rounded(exact, np.float64)
        assert value == nearest or abs(exact - Fraction(value)) <= Fraction(float(np.spacing(abs(value))))

    judge.assert_each(check, [
        *(reference.hilbert(n) for n in (1, 2, 8, 13, 20)), reference.pascal(14), reference.kahan(15),
        reference.unimodular(rng, 5, 10), reference.unimodular(rng, 9, 9), np.eye(5)[[1, 2, 0, 4, 3]],
        -np.eye(3), *(rng.standard_normal((n, n)) for n in (2, 7, 30)), rng.standard_normal((15, 15)) * 1e100,
        reference.graded(rng, 10, 100), rng.standard_normal((6, 6)).astype(np.float32), rng.integers(-9, 9, (7, 7)),
    ])  # fmt: skip


def test_overflow_keeps_the_enclosure():
    value, report = prismm.linalg.det(np.diag([-1e200, 1e200]), full_output=True)
    assert value == -np.inf and report.sign == -1 and report.exponent > 1300
    assert prismm.linalg.det(np.zeros((0, 0))) == 1.0
    assert prismm.linalg.det(torch.eye(2)) == 1.0


def test_batches(rng):
    """Every matrix of a batch has the determinant and the enclosure that it has alone."""
    a = rng.standard_normal((2, 3, 5, 5)) * 2.0 ** rng.integers(-400, 400, (2, 3, 1, 1))
    values, report = prismm.linalg.det(a, full_output=True)
    assert values.shape == (2, 3) and (prismm.linalg.det(torch.from_numpy(a)).numpy() == values).all()
    for at in np.ndindex(2, 3):
        value, alone = prismm.linalg.det(a[at], full_output=True)
        assert values[at] == value
        for name, of_one in vars(alone).items():
            assert getattr(report, name)[at] == of_one, name
    assert prismm.linalg.det(np.zeros((0, 2, 2))).shape == (0,)
    with pytest.raises(NotCertified, match="singular"):
        prismm.linalg.det(np.stack([np.eye(2), np.ones((2, 2))]))


def test_singular_and_bad_input():
    def check(case):
        error, match, a = case
        with pytest.raises(error, match=match):
            prismm.linalg.det(a)

    judge.assert_each(check, [
        (NotCertified, "singular", np.ones((3, 3))), (NotCertified, "singular", np.zeros((2, 2))),
        (NotCertified, "singular", np.arange(25.0).reshape(5, 5)),
        (DTypeError, "real", np.eye(2) * 1j), (ShapeError, "square", np.ones((2, 3))),
        (ShapeError, "square", np.ones(3)), (ArgumentError, "is nan", np.full((2, 2), np.nan)),
    ])  # fmt: skip
