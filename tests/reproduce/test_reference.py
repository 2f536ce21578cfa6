"""The two-fold reference against exact arithmetic, and the norms against their definitions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from prismm.errors import ArgumentError
from prismm.reproduce.reference import error_of, max_relative, norms, twofold
from prismm.testing import HOSTILE, phi


def exact(a, b):
    """The product in fractions, by its definition."""
    x, y = ([[Fraction(float(v)) for v in row] for row in z] for z in (a, b))
    return [[sum(p * q for p, q in zip(row, column, strict=True)) for column in zip(*y, strict=True)] for row in x]


@pytest.mark.parametrize("name", ["normal", "uniform", "phi1", "cancelling", "ties", "graded"])
def test_twofold_is_exact_to_98_bits(name, seed):
    generate = phi(1.0) if name == "phi1" else HOSTILE[name]
    a, b = generate(5, 33, 4, seed=seed)
    try:
        high, low = twofold(a, b)
    except ArgumentError:
        assert name in ("graded", "cancelling")  # spans too many binades, and says so
        return
    for i, row in enumerate(exact(a, b)):
        for j, value in enumerate(row):
            error = abs(Fraction(float(high[i, j])) + Fraction(float(low[i, j])) - value)
            assert error <= Fraction(float(np.abs(a[i]).max() * np.abs(b[:, j]).max())) * 33 / 2**98


def test_twofold_of_uniform_data_is_exact_and_sees_the_error_of_a_rounded_product(rng):
    a, b = rng.random((6, 64)), rng.random((64, 6))
    high, low = twofold(a, b)
    for i, row in enumerate(exact(a, b)):
        for j, value in enumerate(row):
            assert high[i, j] == float(value)  # correctly rounded
            assert low[i, j] == float(value - Fraction(float(high[i, j])))
    assert np.array_equal(error_of(high, high, low), -low)


def test_wide_operands_are_refused():
    with pytest.raises(ArgumentError, match="pass data of a narrower range"):
        twofold(np.array([[1.0, 2.0**-600]]), np.ones((2, 1)))


def test_norms_are_operator_norms():
    x = np.array([[3.0, -4.0], [0.0, 0.0]])
    assert norms(x) == {"l1": 4.0, "l2": 5.0, "linf": 7.0}


def test_largest_relative_error():
    assert max_relative(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5
    assert max_relative(np.array([0.0]), np.array([0.0])) == 0.0
    assert max_relative(np.array([1e-300]), np.array([0.0])) == np.inf
