"""Scale exponents and norms against Fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from prismm.core.moduli import largest_shift, norm_fraction_bits, norm_limit, shift_thresholds
from prismm.cpu.kernels.scale import bound_terms, scale_columns, scale_rows
from tests.cpu.kernels.harness import call, exact_power

NONFINITE = 1 << 20
LEVELS = 8
SPECIAL_ROWS = 4


def scaled(a, moduli, *, columns=False, levels=LEVELS, q=None):
    """(e, s, ν, Σv, counts) of the rows of `a`, found by rows or by the columns of its transpose."""
    x = np.ascontiguousarray(a.T if columns else a)
    count, k = a.shape
    q = norm_fraction_bits(moduli, k) if q is None else q
    thresholds = np.array([min(t, 2**63 - 1) for t in shift_thresholds(moduli)], np.int64)
    e, s, norm2, norm1 = np.full((4, count), -99, np.int64)
    counts = np.full((count, min(levels, q)), -99, np.int64)
    call(
        scale_columns if columns else scale_rows, a=x, b=x, start=0, thresholds=thresholds, q=q, exponent=e, shift=s,
        norm2=norm2, norm1=norm1, counts=counts,
    )  # fmt: skip
    return e, s, norm2, norm1, counts


def slow_scale(row, moduli, q):
    """The same by definition."""
    if not np.isfinite(row).all():
        return NONFINITE, -NONFINITE, 0, 0
    sizes = [abs(Fraction(float(x))) for x in row]
    largest = max(sizes, default=Fraction(0))
    if largest == 0:
        return 0, q, 0, 0
    e = math.frexp(float(largest))[1]
    assert exact_power(e - 1) <= largest < exact_power(e)
    v = [math.ceil(x * exact_power(q - e)) for x in sizes]
    norm2 = sum(x * x for x in v)
    return e, largest_shift(moduli, norm2) + q - e, norm2, sum(v)


def hostile_rows(k, rng):
    """Rows of every magnitude: subnormals, 2^±1000, wide, powers of two, neighbours, zeros, non-finite ones."""
    normal = rng.standard_normal((8, k))
    rows = [
        normal[0], normal[1] * 2.0**1000, normal[2] * 2.0**-1000, np.ldexp(normal[3], rng.integers(-1000, 1000, k)),
        rng.integers(-9, 10, k) * 2.0**-1074, np.ldexp(1.0, rng.integers(-30, 30, k)), np.full(k, 1.0),
        np.full(k, np.nextafter(1.0, 0.0)), np.full(k, np.nextafter(1.0, 2.0)), np.full(k, np.finfo(float).max),
        np.full(k, 2.0**-1074), np.full(k, np.nextafter(2.0**-1022, 0.0)), normal[4] * 2.0**-1060,
        np.where(np.arange(k) == k // 2, 1.7e308, 2.0**-1074), np.where(np.arange(k) == 0, -1.0, 0.0),
        np.ldexp(1.0 - 2.0 ** -rng.integers(1, 53, k), 3), normal[5] * np.exp(3 * normal[6]), 2.0**-6 * rng.random(k),
    ]  # fmt: skip
    specials = [np.zeros(k), -np.zeros(k), normal[7].copy(), normal[7].copy()]
    specials[2][k // 2], specials[3][-1] = np.inf, np.nan
    assert len(specials) == SPECIAL_ROWS
    return np.array(rows + specials)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("moduli", [2, 3, 5, 8, 15, 22])
@pytest.mark.parametrize("k", [1, 2, 7, 150])
def test_exponents_and_norms_follow_the_definition(k, moduli, columns, rng):
    q = norm_fraction_bits(moduli, k)
    if q < 1:
        assert (moduli == 2 and k == 150) or moduli < 3
    q = max(q, 1) if norm_limit(moduli) >= 8 * k else q
    a = hostile_rows(k, rng)
    e, s, norm2, norm1, _ = scaled(a, moduli, columns=columns, q=q)
    for i, row in enumerate(a):
        assert (e[i], s[i], norm2[i], norm1[i]) == slow_scale(row, moduli, q), (i, row[:4])


@pytest.mark.covering
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("moduli", [3, 4, 15])
@pytest.mark.parametrize("k", [1, 100, 300])
def test_counts_never_exceed_the_large_elements(k, moduli, columns, rng):
    """A count too high would certify what is not so; a count far too low would be useless."""
    q = norm_fraction_bits(moduli, k)
    a = hostile_rows(k, rng)
    near = np.ldexp(1.0, -rng.integers(0, 12, k)) * (1.0 + rng.integers(-1, 2, k) * 2.0 ** -rng.integers(2, 53, k))
    mixed = np.full(k, 2.0**-300)
    mixed[0] = 1.0
    a = np.vstack([near, mixed, a])
    e, _, _, _, counts = scaled(a, moduli, columns=columns)
    assert counts.shape[1] == min(LEVELS, q) > 0
    for i, row in enumerate(a):
        if not np.isfinite(row).all() or not row.any():
            assert not counts[i].any()
            continue
        sizes = [abs(Fraction(float(x))) for x in row]
        for p, count in enumerate(counts[i]):
            threshold = exact_power(int(e[i]) - 1 - p)
            assert count <= sum(x >= threshold for x in sizes), (i, p, row[:4])
            assert count >= sum(x > threshold * (1 + exact_power(1 + p + 1 - q)) for x in sizes), (i, p, row[:4])


@pytest.mark.slow
def test_long_rows_cross_the_chunks(rng):
    k = 3 * 8192 + 5
    a = rng.standard_normal((3, k))
    a[1] = np.nextafter(1.0, 0.0)
    a[2, ::2] *= 2.0**-40
    exact = [slow_scale(row, 15, 20) for row in a]
    for columns in (False, True):
        e, s, norm2, norm1, _ = scaled(a, 15, columns=columns)
        assert list(zip(e, s, norm2, norm1, strict=True)) == exact


@pytest.mark.parametrize("levels", [0, 3, 5, LEVELS])
@pytest.mark.parametrize("columns", [False, True])
def test_order_and_neighbours_change_nothing(columns, levels, rng):
    """Permuting k changes no integer; nor do the strip that a column stands in, or the columns beside it, 16 of which
    are measured together.
    """
    a = np.vstack([hostile_rows(70, rng)] * 7)[:130]
    alone = [np.concatenate([x.ravel() for x in scaled(row[None], 15, columns=columns, levels=levels)]) for row in a]
    together = scaled(a, 15, columns=columns, levels=levels)
    shuffled = scaled(np.ascontiguousarray(a[:, rng.permutation(70)]), 15, columns=columns, levels=levels)
    for i in range(len(a)):
        here = np.concatenate([np.atleast_1d(x[i]).ravel() for x in together])
        assert np.array_equal(alone[i], here)
        assert np.array_equal(here, np.concatenate([np.atleast_1d(x[i]).ravel() for x in shuffled]))


def test_powers_of_two_move_the_exponent_alone(rng):
    a = rng.standard_normal((20, 33))
    e, s, norm2, norm1, counts = scaled(a, 15)
    d = rng.integers(-900, 900, 20)
    e2, s2, norm2b, norm1b, counts2 = scaled(np.ldexp(a, d[:, None]), 15)
    assert np.array_equal(e2, e + d) and np.array_equal(s2, s - d)
    assert np.array_equal(norm2, norm2b) and np.array_equal(norm1, norm1b) and np.array_equal(counts, counts2)


def test_empty_rows():
    for columns in (False, True):
        e, s, norm2, norm1, counts = scaled(np.empty((3, 0)), 15, columns=columns)
        assert not e.any() and not norm2.any() and not norm1.any() and not counts.any()
        assert np.array_equal(s, np.full(3, norm_fraction_bits(15, 0)))


@pytest.mark.parametrize("a_priori", [0, 1])
def test_bound_vectors_are_upper_bounds(a_priori, rng):
    n, q, k = 300, 20, 1000
    e = rng.integers(-1073, 1025, n)
    t = rng.integers(0, 60, n)
    e[:5] = NONFINITE
    s = np.where(e < NONFINITE, t + q - e, -NONFINITE)
    norm2, norm1 = rng.integers(1, 2**62, n), rng.integers(1, 2**43, n)
    norm2[:10] = norm1[:10] = 0
    residual2 = rng.random(n) * 2.0 ** rng.integers(-110, 10, n).astype(float)
    residual2[rng.random(n) < 0.3] = 0.0
    tiny = (rng.random(n) < 0.2).astype(np.uint8)
    out = np.empty((4, n))
    bound_terms(e, s, q, norm2, norm1, residual2, tiny, k, a_priori, out)
    for j in range(5, n):
        unit = exact_power(int(t[j]))
        assert Fraction(out[0, j]) == int(norm1[j]) * unit / 2
        measured = Fraction(residual2[j]) * (1 + exact_power(-29)) + (k * exact_power(-600) if tiny[j] else 0)
        inexact = bool(residual2[j] > 0.0 or tiny[j])
        assert out[3, j] == inexact
        if a_priori:
            assert out[1, j] == (1e300 if inexact else 0.0)
        else:
            assert measured <= Fraction(out[1, j]) ** 2 <= measured * (1 + exact_power(-25))
        square = int(norm2[j]) * unit**2
        assert square <= Fraction(out[2, j]) ** 2 <= square * (1 + exact_power(-26))
    assert np.isfinite(out).all()
