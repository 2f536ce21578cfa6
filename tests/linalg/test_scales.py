"""Rows and columns of any magnitude, and solutions at the lower end of the range, against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import NotCertified
from prismm.linalg import matrices
from tests import judge
from tests.linalg import reference

SMALLEST = 2.0**-1074
SPREADS = (400, 600, 900)


def _scaled(rng, shape, spread, axis):
    """Random entries, rows (axis 0) or columns (axis 1) of which have powers of two to 2^±spread; both ends are met."""
    size = shape[axis]
    exponents = rng.permutation(np.linspace(-spread, spread, size).astype(int))
    return np.ldexp(rng.standard_normal(shape), exponents[:, None] if axis == 0 else exponents)


@pytest.mark.parametrize("axis", [0, 1], ids=["rows", "columns"])
@pytest.mark.parametrize("spread", SPREADS)
def test_solutions_of_scaled_systems(spread, axis, rng):
    """Such systems are as well conditioned as those without powers of two. Those of rows reach beyond what b holds."""
    a, b = _scaled(rng, (6, 6), spread, axis), np.ldexp(rng.standard_normal((6, 3)), [0, -40, 60])
    x, report = prismm.linalg.solve(a, b, full_output=True)
    reference.assert_holds(reference.solution(a, b), x, report)
    x, report = prismm.linalg.solve(a, b, accuracy="correctly-rounded", full_output=True)
    assert reference.assert_holds(reference.solution(a, b), x, report) == x.size
    error = np.abs(prismm.linalg.solve(a, b, accuracy="fast") - x)
    assert (axis == 0 and spread > 400) or (error <= 2.0**-50 * np.abs(x)).all()


@pytest.mark.parametrize("spread", SPREADS)
def test_inverses_and_least_squares_of_scaled_columns(spread, rng):
    a, tall, b = _scaled(rng, (5, 5), spread, 1), _scaled(rng, (9, 5), spread, 1), rng.standard_normal((9, 2))
    unit = np.eye(5)
    x, report = prismm.linalg.inv(a, full_output=True)
    reference.assert_holds(reference.solution(a, unit), x, report)
    x, report = prismm.linalg.lstsq(tall, b, full_output=True)
    reference.assert_holds(reference.least_squares(tall, b), x, report)
    # All columns alike, above and below every power of two that one scaling has.
    for exponent in (spread, -spread):
        same = np.ldexp(rng.standard_normal((7, 4)), exponent)
        x, report = prismm.linalg.lstsq(same, b[:7], full_output=True)
        reference.assert_holds(reference.least_squares(same, b[:7]), x, report)


@pytest.mark.parametrize("spread", SPREADS)
def test_determinants_of_scaled_columns(spread, rng):
    for a in (_scaled(rng, (6, 6), spread, 1), _scaled(rng, (6, 6), spread, 0)):
        _, report = prismm.linalg.det(a, full_output=True)
        exact = reference.fraction(reference.rational(a).det())
        unit = Fraction(2) ** report.exponent
        assert Fraction(report.lower) * unit <= exact <= Fraction(report.upper) * unit
        assert report.upper - report.lower <= 2.0**-50
    z = _scaled(rng, (4, 4), spread, 1) + 1j * _scaled(rng, (4, 4), 0, 1)
    _, report = prismm.linalg.det(z, full_output=True)
    exact = reference.fraction(reference.rational(reference.real_form(z)).det())  # |det z|²
    unit = Fraction(2) ** report.exponent
    corners = [[Fraction(c) for c in (end.real, end.imag)] for end in (report.lower, report.upper)]
    largest = sum(max(abs(low), abs(high)) ** 2 for low, high in zip(*corners, strict=True)) * unit**2
    assert exact <= largest <= exact * (1 + Fraction(1, 2**40))


def test_columns_of_products_that_underflow_are_scaled(rng):
    """A row's power of two may take a column below 2^-1074 before its own power of two brings it back."""
    a = rng.standard_normal((5, 5)) * np.array([2.0**900, 2.0**-900, 1.0, 2.0**-1000, 2.0**1000])
    for x in (a, a.astype(complex), a * (1.0 + 1.0j)):
        scaled, rows, columns = matrices.balanced(x)
        parts = np.maximum(np.abs(scaled.real), np.abs(scaled.imag))
        assert ((parts.max(axis=0) >= 0.5) & (parts.max(axis=0) < 1.0)).all()
        judge.assert_same_bits(scaled.real, np.ldexp(x.real, rows[:, None] + columns))
        other, *exponents = matrices.balanced(torch.from_numpy(x))
        judge.assert_same_bits(other.numpy(), scaled)
        assert (exponents[0] == rows).all() and (exponents[1] == columns).all()
        found, columns = matrices.columns_scaled(x)
        other, exponents = matrices.columns_scaled(torch.from_numpy(x))
        judge.assert_same_bits(other.numpy(), found)
        assert (exponents == columns).all()
        judge.assert_same_bits(found.real, np.ldexp(x.real, columns))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_solutions_near_the_smallest_numbers_are_rounded_once(dtype, rng):
    """Whatever share of their bits is below the smallest subnormal."""
    least = float(np.finfo(dtype).smallest_subnormal)
    for bits in (0, 1, 2, 10, 22, 23, 50, 51, 52, 53, 54, 58):
        a = (rng.standard_normal((5, 5)) * 8.0).astype(dtype)
        b = (rng.standard_normal((5, 2)) * least * 2.0**bits * 8.0).astype(dtype)
        x, report = prismm.linalg.solve(a, b, accuracy="correctly-rounded", full_output=True)
        assert reference.assert_holds(reference.solution(a, b), x, report) == x.size
        x, report = prismm.linalg.solve(a, b, full_output=True)
        reference.assert_holds(reference.solution(a, b), x, report)


def test_halves_of_the_smallest_number_are_rounded_to_even():
    b = np.array([1.0, 3.0, 5.0, 7.0, -1.0, -3.0]) * SMALLEST
    wanted = np.array([0.0, 2.0, 2.0, 4.0, -0.0, -2.0]) * SMALLEST
    x, report = prismm.linalg.solve(2.0 * np.eye(6), b, accuracy="correctly-rounded", full_output=True)
    assert (x == wanted).all() and report.correctly_rounded.all() and (report.bounds == SMALLEST).all()


def test_solutions_that_overflow_keep_their_sign():
    with pytest.raises(NotCertified, match="overflows float64") as caught:
        prismm.linalg.solve(np.diag([2.0**-600, 2.0**-600]), np.array([2.0**600, -(2.0**600)]))
    assert caught.value.result.tolist() == [np.inf, -np.inf]
