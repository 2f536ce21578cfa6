"""Upper bounds are above the exact sums and products, and hardly more."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import torch

from prismm.core.error_free import two_sum
from prismm.linalg.expansions import Products, expand, normalised
from prismm.linalg.matrices import last_bit
from prismm.linalg.rounding import above, below, inflation, product_above, sum_above
from prismm.linalg.transformed import Transformed, gershgorin


def exact(x):
    return [[Fraction(float(v)) for v in row] for row in x]


def times(x, y):
    return [[sum(p * q for p, q in zip(row, column, strict=True)) for column in zip(*y, strict=True)] for row in x]


def wide(rng, shape, low=-330, high=20):
    return np.abs(rng.standard_normal(shape)) * 10.0 ** rng.integers(low, high, shape)


def test_products_are_bounded(rng):
    for low in (-330, -200, -3):
        m, v = wide(rng, (6, 40), low), wide(rng, (40, 3), low)
        m[:, ::3] = 0.0
        with np.errstate(all="ignore"):
            found = product_above(m, v)
        for row, values in zip(found, times(exact(m), exact(v)), strict=True):
            for got, value in zip(row, values, strict=True):
                assert value <= Fraction(float(got)) <= value * (1 + Fraction(1, 10**12)) + Fraction(1, 10**305)


def test_a_product_without_a_common_index_is_zero():
    m, v = np.array([[1.0, 0.0], [1e-200, 0.0]]), np.array([[0.0, 1e-200], [1.0, 0.0]])
    with np.errstate(all="ignore"):
        found = product_above(m, v)
    assert found[0, 0] == 0.0 and found[1, 0] == 0.0 and found[1, 1] > 0.0


def test_sums_are_bounded(rng):
    x = wide(rng, (50, 8), -30)
    for axis in (0, 1):
        for got, row in zip(sum_above(x, axis), x.T if axis == 0 else x, strict=True):
            value = sum(Fraction(float(v)) for v in row)
            assert value <= Fraction(float(got)) <= value * (1 + Fraction(1, 10**12))


def test_one_rounding_more_never_undoes_an_inflation(rng):
    """fl(x̂·f) >= x̂·(1-u)^-depth."""
    for depth in (0, 1, 3, 100, 10**6):
        factor = Fraction(1) / (1 - Fraction(1, 2**53)) ** min(depth, 2000)
        for x in 1.0 + rng.random(200):
            assert Fraction(float(x * inflation(depth))) >= Fraction(float(x)) * factor
    assert below(1.0) < 1.0 < above(1.0) and above(0.0) > 0.0


def test_parts_keep_their_sum(rng):
    parts = [rng.standard_normal((4, 3)) * 10.0**e for e in (-5, 3, -20, -1)]
    total = sum(np.array(exact(part), dtype=object) for part in parts)
    found = normalised(parts)
    assert (sum(np.array(exact(part), dtype=object) for part in found) == total).all()
    for high, low in itertools.pairwise(found):
        assert (np.abs(low) <= np.spacing(np.abs(high))).all()
    s, rest = two_sum(parts[0], parts[1])
    assert (
        np.array(exact(s), dtype=object) + np.array(exact(rest), dtype=object)
        == np.array(exact(parts[0]), dtype=object) + np.array(exact(parts[1]), dtype=object)
    ).all()


def test_expansions_are_as_close_as_they_say(rng):
    left, right = [rng.standard_normal((3, 5)) * s for s in (1, 1e-17)], [rng.standard_normal((5, 2)) for _ in range(2)]
    addend = rng.standard_normal((3, 2))
    value = sum(np.array(times(exact(x), exact(y)), dtype=object) for x in left for y in right) + np.array(
        exact(addend), dtype=object
    )
    for count in (1, 2, 4):
        found = expand(Products(), left, right, count, [addend])
        gap = value - sum(np.array(exact(part), dtype=object) for part in found)
        last = np.array(exact(found[-1]), dtype=object)
        assert (np.abs(gap) <= np.abs(last) / 2**53 + Fraction(1, 2**1075)).all()


def test_transformed_matrices_are_within_their_error(rng):
    a, x, y = rng.standard_normal((3, 4, 4))
    for count in (1, 2, 3):
        with np.errstate(all="ignore"):
            m = Transformed((a,), np.zeros((4, 4))).times_left(x, Products(), count).times_right(y, Products(), count)
            s, bound = m.rounded(Products(), np.eye(4))
        value = np.array(times(times(exact(x), exact(a)), exact(y)), dtype=object)
        gap = np.abs(value - sum(np.array(exact(part), dtype=object) for part in m.parts))
        assert (gap <= np.array(exact(m.error), dtype=object)).all()
        gap = np.abs(value - np.array(exact(np.eye(4)), dtype=object) - np.array(exact(s), dtype=object))
        assert (gap <= np.array(exact(bound), dtype=object)).all()


def test_discs_hold_the_eigenvalues(rng):
    s = np.diag([1.0, 5.0, 9.0]) + 0.1 * rng.standard_normal((3, 3))
    centres, radii = gershgorin(s, np.full((3, 3), 1e-3))
    for value in np.linalg.eigvals(s):
        assert (np.abs(value - centres) <= radii).any()
    for i, radius in enumerate(radii.tolist()):
        off = sum(abs(Fraction(float(s[i, j]))) for j in range(3) if j != i)
        assert off + 3 * Fraction(1e-3) <= Fraction(radius) < off + Fraction(1, 300)


def test_the_last_bit():
    assert last_bit(np.array([1.0, 3.0])) == -52 and last_bit(np.array([2.0**-1074])) == -1074
    assert last_bit(np.zeros(2)) == 1024


def test_bounds_of_tensors_hold(rng):
    """Sums along an axis and of all, and neighbours, with subnormals and zeros: a sum of zeros is 0."""
    for low in (-1074, -600, 0):
        x = np.abs(rng.standard_normal((30, 7))) * 2.0 ** rng.integers(low, low + 80, (30, 7))
        x[:, 2] = 0.0
        t = torch.from_numpy(x)
        columns = sum_above(t, 0)
        sums = [sum(column) for column in exact(x.T)]
        assert all(Fraction(z) >= y for z, y in zip(columns.tolist(), sums, strict=True)) and columns[2] == 0.0
        assert columns.dtype == torch.float64 and Fraction(float(sum_above(t))) >= sum(sums)
        assert (columns.numpy() <= sum_above(x, 0) * (1 + 2.0**-40)).all()
        assert (above(t).numpy() == np.nextafter(x, np.inf)).all()
        assert (below(t).numpy() == np.nextafter(x, -np.inf)).all()
    assert float(sum_above(torch.zeros(3, dtype=torch.float64))) == 0.0
