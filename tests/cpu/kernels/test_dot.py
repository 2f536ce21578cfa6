"""Single dot products: decided values are RN(exact), exact ones always are, magnitudes are true lower bounds."""

import math
from fractions import Fraction

import numba
import numpy as np
import pytest

from prismm.cpu.kernels import expansion
from prismm.cpu.kernels.dot import double_double, double_double_sums, magnitude_dots, magnitudes
from prismm.cpu.kernels.exact import exact_dots
from prismm.formats import FP32, FP64
from prismm.testing import HOSTILE, exact_product
from tests.cpu.kernels.harness import FORMATS, call, differing, dot, exact_power, rn, same_bits

precisions = pytest.mark.parametrize("precision", [53, 24])
DTYPES = {53: "float64", 24: "float32"}
M, N = 8, 7


def problem(name, k, rng, precision):
    """Rows (M, k) and columns (N, k), float64 arrays of values of the format, of one hostile family."""
    a, b = HOSTILE[name](M, k, N, int(rng.integers(2**32)), DTYPES[precision])
    return np.ascontiguousarray(a, dtype=np.float64), np.ascontiguousarray(b.T, dtype=np.float64)


def all_pairs(rows, columns):
    i, j = np.indices((len(rows), len(columns)), dtype=np.int64).reshape(2, -1)
    return np.ascontiguousarray(i), np.ascontiguousarray(j)


def rounded(rows, columns, precision):
    return exact_product(rows, columns.T).rounded(FORMATS[precision]).ravel()


@precisions
@pytest.mark.parametrize("name", HOSTILE)
def test_double_double_is_right_where_it_decides(name, precision, rng):
    for k in (1, 2, 3, 17, 64, 100, 257):
        rows, columns = problem(name, k, rng, precision)
        ri, ci = all_pairs(rows, columns)
        value, undecided = np.full(ri.size, np.nan), np.full(ri.size, 9, np.uint8)
        double_double(rows, columns, ri, ci, precision, value, undecided)
        assert set(undecided.tolist()) <= {0, 1}
        sure = undecided == 0
        wanted = rounded(rows, columns, precision)
        assert same_bits(value[sure], wanted[sure]), (k, differing(value[sure], wanted[sure]))
        if name in ("normal", "uniform") and k > 1:
            assert sure.mean() > 0.99


@pytest.mark.covering("name")
@precisions
@pytest.mark.parametrize("name", HOSTILE)
def test_sums_in_double_double_are_right_where_they_decide(name, precision, rng):
    """Σ alpha_g·(segment g) + Σ beta_h·addend_h, with addends that nearly cancel the products and make ties."""
    u = 2.0**-precision
    for k in (2, 6, 64, 300):
        rows, columns = problem(name, k, rng, precision)
        ri, ci = all_pairs(rows, columns)
        for alpha in ([1.0], [-0.3], [0.7, -0.0], [1e-5, 3.0], [1e200]):
            alpha = np.array(alpha)
            own = np.full(ri.size, np.nan)
            exact_dots(rows, columns, ri, ci, alpha, np.empty((ri.size, 0)), np.empty(0), 53, own)
            own = np.where(np.abs(own) < 1e300, own, 1.0)
            for addends in (
                -own * (1.0 + u * rng.integers(-2, 3, ri.size)),  # cancels all but a few bits, or all
                own * 2.0 ** -rng.integers(precision - 1, precision + 3, ri.size),  # half an ulp, about
                rng.standard_normal(ri.size) * np.abs(own).max(initial=1e-300),
            ):
                # A second part of C that does nothing, or half of what the first one does.
                c = np.stack([addends, addends], axis=1)
                for beta in (np.array([1.0]), np.array([1.0, 0.0]), np.array([0.75, 0.25])):
                    given = np.ascontiguousarray(c[:, : beta.size])
                    value, undecided = np.full(ri.size, np.nan), np.full(ri.size, 9, np.uint8)
                    double_double_sums(rows, columns, ri, ci, alpha, given, beta, precision, value, undecided)
                    wanted = np.full(ri.size, np.nan)
                    exact_dots(rows, columns, ri, ci, alpha, given, beta, precision, wanted)
                    sure = undecided == 0
                    assert same_bits(value[sure], wanted[sure]), (k, alpha, differing(value[sure], wanted[sure]))
        if name in ("normal", "uniform", "wide_rows"):
            rest = rng.standard_normal((ri.size, 1))
            value, undecided = np.full(ri.size, np.nan), np.full(ri.size, 9, np.uint8)
            double_double_sums(rows, columns, ri, ci, np.ones(1), rest, np.ones(1), precision, value, undecided)
            assert (undecided == 0).mean() > 0.9


@pytest.mark.parametrize("scale", [-370, 440, 470, 495])
def test_sums_of_numbers_far_from_one_are_decided(scale, rng):
    """Of products up to 2^1000, and factors that take them beyond it."""
    rows, columns = (np.ldexp(rng.standard_normal((8, 40)), scale + rng.integers(-9, 9, (8, 40))) for _ in range(2))
    ri, ci = all_pairs(rows, columns)
    c = -(rows[ri] * columns[ci]).sum(axis=1)[:, None] * rng.uniform(0.5, 1.0, (ri.size, 1))
    for alpha, beta in ((np.array([0.75]), np.array([0.75])), (np.array([-1e20]), np.array([1.0]))):
        value, wanted, undecided = np.full(ri.size, np.nan), np.full(ri.size, np.nan), np.full(ri.size, 9, np.uint8)
        double_double_sums(rows, columns, ri, ci, alpha, c, beta, 53, value, undecided)
        exact_dots(rows, columns, ri, ci, alpha, c, beta, 53, wanted)
        sure = undecided == 0
        assert same_bits(value[sure], wanted[sure])
        assert sure.mean() > 0.9 if scale < 470 + 20 * (alpha[0] > 0.0) else not sure.all()


@precisions
@pytest.mark.parametrize("name", HOSTILE)
def test_exact_dots_are_exactly_rounded(name, precision, rng):
    for k in (0, 1, 2, 33, 300):
        rows, columns = problem(name, k, rng, precision) if k else (np.empty((M, 0)), np.empty((N, 0)))
        ri, ci = all_pairs(rows, columns)
        value = np.full(ri.size, np.nan)
        exact_dots(rows, columns, ri, ci, np.ones(1), np.empty((ri.size, 0)), np.empty(0), precision, value)
        wanted = rounded(rows, columns, precision) if k else np.zeros(ri.size)
        assert same_bits(value, wanted), (k, differing(value, wanted))


@pytest.mark.slow
def test_exact_sums_of_millions_of_equal_terms():
    """Every term is the largest of its cell: sums are moved on before they could overflow."""
    k = (1 << 23) + 700
    for x, y in ((2.0**17 * (1 - 2.0**-53), 2.0**17 * (1 - 2.0**-53)), (-(2.0**1007), 2.0**-1007)):
        value = np.full(1, np.nan)
        rows, columns, index = np.full((1, k), x), np.full((1, k), y), np.zeros(1, np.int64)
        exact_dots(rows, columns, index, index, np.ones(1), np.empty((1, 0)), np.empty(0), 53, value)
        assert same_bits(value, np.array([rn(k * Fraction(x) * Fraction(y), FP64)]))


def any_float(rng, shape):
    """Finite floats of every exponent, subnormals included."""
    bits = rng.integers(0, 2**64, shape, dtype=np.uint64).view(np.float64)
    return np.where(np.isfinite(bits), bits, 1.0)


@precisions
def test_exact_dots_with_segments_and_addends(precision, rng):
    """Σ alpha_g·(segment g) + Σ beta_h·addend_h over the whole range of exponents, against Fractions."""
    fmt = FORMATS[precision]
    tested = set()
    for trial in range(60):
        segments, length, addends = int(rng.integers(1, 3)), int(rng.integers(0, 6)), int(rng.integers(0, 3))
        narrow = trial % 2
        k = segments * length
        rows, columns = any_float(rng, (3, k)), any_float(rng, (2, k))
        if narrow:
            rows, columns = rng.integers(-8, 9, (3, k)) * 2.0**-530, rng.integers(-8, 9, (2, k)) * 2.0**-540
        alpha = rng.choice([1.0, -1.0, 0.0, 3.7, 2.0**-1074, 1.7e308, -(2.0**-30)], segments)
        beta = rng.choice([1.0, -1.0, 0.0, 2.0**-1074, 1.7e308, 0.1], addends)
        ri, ci = all_pairs(rows, columns)
        c = any_float(rng, (ri.size, addends)) if not narrow else rng.integers(-8, 9, (ri.size, addends)) * 2.0**-1074
        value = np.full(ri.size, np.nan)
        exact_dots(rows, columns, ri, ci, alpha, c, beta, precision, value)
        for e, (i, j) in enumerate(zip(ri, ci, strict=True)):
            exact = Fraction(0)
            for g in range(segments):
                part = slice(g * length, (g + 1) * length)
                exact += Fraction(alpha[g]) * dot(rows[i, part], columns[j, part])
            exact += dot(beta, c[e])
            assert same_bits(value[e], rn(exact, fmt)), (alpha, beta, float(value[e]))
            tested.add("zero" if value[e] == 0 else "inf" if math.isinf(value[e]) else "finite")
    assert tested == {"zero", "inf", "finite"}


@precisions
def test_exact_dots_meet_ties_cancellation_and_long_rows(precision, rng):
    """Midpoints made or spoiled by one far smaller term; thousands of terms that cancel to the last bit."""
    fmt = FORMATS[precision]
    for k in (3, 2999):
        odd = 2.0 * rng.integers(1 << (precision - 1), 1 << precision, 40) + 1.0
        rows = np.zeros((40, k))
        rows[:, 0] = np.floor(odd / 2)
        rows[:, 1] = 0.5
        rows[:, 2] = rng.choice([0.0, 2.0**-600, -(2.0**-600), 2.0**-1074, -(2.0**-1074)], 40)
        if k > 3:
            half = (k - 3) // 2
            filler = rng.standard_normal((40, half)) * np.exp(20 * rng.standard_normal((40, half)))
            rows[:, 3 : 3 + half], rows[:, 3 + half : 3 + 2 * half] = filler, -filler
        columns = np.ones((1, k))
        value = np.full(40, np.nan)
        index = np.arange(40)
        exact_dots(
            rows, columns, index, np.zeros(40, np.int64), np.ones(1), np.empty((40, 0)), np.empty(0), precision, value
        )
        for i in range(40):
            exact = Fraction(rows[i, 0]) + Fraction(rows[i, 1]) + Fraction(rows[i, 2])
            assert value[i] == rn(exact, fmt)
        if k == 3:
            decided = np.full(40, 9, np.uint8)
            double_double(rows, columns, index, np.zeros(40, np.int64), precision, value, decided)
            assert decided.all(), "a tie that 2^-600 breaks is beyond double-double"


def test_bins_are_clean_after_every_entry(rng):
    """The same dot product, asked again after huge and tiny ones, has the same bits."""
    rows = np.array([[1.7e308, 1.7e308], [2.0**-1074, 2.0**-1074], [1.0, 2.0**-80], [-1.7e308, 1e308]])
    columns = np.array([[1.7e308, -1.7e308], [2.0**-1074, 2.0**-1074], [3.0, 1.0], [1.7e308, 1.6e308]])
    i, j = all_pairs(rows, columns)
    order = rng.permutation(np.tile(np.arange(16), 5))
    value = np.empty(order.size)
    exact_dots(rows, columns, i[order], j[order], np.ones(1), np.empty((order.size, 0)), np.empty(0), 53, value)
    wanted = [rn(dot(rows[a], columns[b]), FP64) for a, b in zip(i[order], j[order], strict=True)]
    assert same_bits(value, wanted)


def test_magnitudes_are_seven_rounded_down_bits_and_a_flag(rng):
    k = 200
    rows = np.vstack([
        rng.standard_normal((4, k)), np.ldexp(rng.standard_normal((4, k)), rng.integers(-1000, 900, (4, k))),
        rng.integers(-5, 6, (2, k)) * 2.0**-1074, np.full((1, k), np.nextafter(1.0, 0.0)),
        np.ldexp(1.0, -rng.integers(0, 9, (1, k))),
        np.zeros((1, k)), np.full((1, k), np.finfo(float).max), np.full((2, k), np.nan),
    ])  # fmt: skip
    exponent = np.array([math.frexp(np.abs(r).max())[1] if np.isfinite(r).all() else 1 << 20 for r in rows])
    out = np.full(rows.shape, 255, np.uint8)
    magnitudes(rows, exponent, out)
    for row, e, bytes_ in zip(rows, exponent, out, strict=True):
        for x, byte in zip(row, bytes_, strict=True):
            if e == 1 << 20:
                assert byte == 0
            else:
                assert byte == 2 * math.floor(abs(Fraction(x)) * exact_power(7 - int(e))) + (x != 0)


@pytest.mark.parametrize("k", [1, 5, 300, (1 << 16) + 1, (1 << 17) + 3])
def test_magnitude_dots_are_exact_and_see_every_product(k, rng):
    rows = rng.integers(0, 256, (5, k)).astype(np.uint8)
    columns = rng.integers(0, 256, (4, k)).astype(np.uint8)
    rows[0] = columns[0] = 255
    rows[1], columns[1] = 254, 1  # zero elements (flag 0) on one side: no hit
    rows[2] = 0
    rows[2, -1], columns[2, -1] = 1, 1  # one hit, at the end, that adds nothing
    i, j = all_pairs(rows, columns)
    total, hit = np.full(i.size, -1), np.full(i.size, 9, np.uint8)
    magnitude_dots(rows, columns, i, j, total, hit)
    high_r, high_c = rows.astype(np.int64) >> 1, columns.astype(np.int64) >> 1
    assert np.array_equal(total, (high_r @ high_c.T).ravel())
    assert np.array_equal(
        hit, ((rows.astype(np.int64) & 1) @ (columns.astype(np.int64) & 1).T > 0).ravel().astype(np.uint8)
    )
    assert total[0] == 127 * 127 * k and hit.any() and not hit.all()


@pytest.mark.parametrize("name", HOSTILE)
def test_magnitudes_bound_the_product_of_moduli_from_below(name, rng):
    rows, columns = problem(name, 50, rng, 53)
    exponents = [np.frexp(np.abs(x).max(axis=1))[1].astype(np.int64) for x in (rows, columns)]
    bytes_ = [np.empty(x.shape, np.uint8) for x in (rows, columns)]
    for x, e, out in zip((rows, columns), exponents, bytes_, strict=True):
        magnitudes(x, np.where(np.abs(x).max(axis=1) > 0, e, 0), out)
    i, j = all_pairs(rows, columns)
    total, hit = np.empty(i.size, np.int64), np.empty(i.size, np.uint8)
    magnitude_dots(*bytes_, i, j, total, hit)
    for r, c, t, seen in zip(i, j, total, hit, strict=True):
        exact = dot(np.abs(rows[r]), np.abs(columns[c]))
        lower = int(t) * exact_power(int(exponents[0][r] + exponents[1][c]) - 14)
        assert lower <= exact
        assert bool(seen) == (exact > 0)
        if name in ("normal", "uniform"):
            assert lower >= exact * Fraction(9, 10)


@precisions
@pytest.mark.parametrize("count", [1000, pytest.param(4000, marks=pytest.mark.slow)])
def test_rounding_of_expansions(count, precision, rng):
    """h + m + t, |m| <= ulp(h)/2 and t far below, at every exponent: RN of the exact sum."""
    fmt, round_expansion = FORMATS[precision], numba.njit(error_model="numpy")(expansion.round_expansion.py_func)
    for _ in range(count):
        h = float(rng.integers(2**52, 2**53)) if rng.random() < 0.7 else float(2**52) * float(rng.choice([1.0, 1.5]))
        if rng.random() < 0.3:  # a midpoint of the shorter precision, or a short number
            h = math.ldexp(float(rng.integers(2**24, 2**25)), 28)
        m = float(
            rng.choice(
                [0.0, 0.5, 0.25, 0.125, 0.375, 2.0**-40, 0.25 - 2.0**-55, 0.5 - 2.0**-54, float(rng.random()) / 2]
            )
        )
        t = float(rng.choice([0.0, 2.0**-70, 2.0**-60])) * float(rng.choice([-1, 1]))
        sign, other = (float(x) for x in rng.choice([-1, 1], 2))
        where = int(rng.integers(0, 4))
        exponent = int(
            fmt.subnormal_exponent - 53 + rng.integers(-3, 60) if where == 0
            else fmt.maxexp - 53 + rng.integers(-1, 2) if where == 1
            else rng.integers(fmt.minexp - 50, fmt.maxexp - 55)
        )  # fmt: skip
        h, m = sign * h, other * m
        got = round_expansion(h, m, t, exponent, precision, fmt.subnormal_exponent)
        exact = (Fraction(h) + Fraction(m) + Fraction(t)) * exact_power(exponent)
        assert same_bits(got, rn(exact, fmt)), (h, m, t, exponent)
    assert round_expansion(0.0, 0.0, 0.0, 5, precision, fmt.subnormal_exponent) == 0.0


def test_products_that_underflow_are_left_to_exact_arithmetic():
    rows, columns = np.array([[2.0**-600, 2.0**-600]]), np.array([[2.0**-600, 2.0**-600]])
    value, undecided = np.empty(1), np.zeros(1, np.uint8)
    zero = np.zeros(1, np.int64)
    for precision in (53, 24):
        call(
            double_double,
            rows=rows,
            columns=columns,
            ri=zero,
            ci=zero,
            precision=precision,
            value=value,
            undecided=undecided,
        )
        assert undecided[0] == 1
    rows[0] = 0.0
    call(double_double, rows=rows, columns=columns, ri=zero, ci=zero, precision=53, value=value, undecided=undecided)
    assert undecided[0] == 0 and value[0] == 0.0
    assert FP32.precision == 24
