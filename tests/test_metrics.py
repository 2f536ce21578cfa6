"""Error measures against Fractions, and on specials, extremes and exact references."""

import doctest
from fractions import Fraction

import numpy as np
import pytest

import prismm.metrics
import prismm.metrics.norms
from prismm.errors import ArgumentError, DTypeError, ShapeError
from prismm.formats import format_of
from prismm.metrics import (
    componentwise,
    forward_error,
    matrix_norm,
    max_relative,
    max_ulps,
    mean_relative,
    median_ulps,
    normwise,
    relative_frobenius,
    relative_norm,
    ulps,
)
from prismm.testing import HOSTILE, exact_product

inf, nan = np.inf, np.nan
MEASURES = [max_ulps, median_ulps, relative_frobenius, normwise]
ORDERS = [1, 2, inf, "fro"]


def naive_ulps(c, reference):
    fmt = format_of(c.dtype)
    unit = Fraction(2) ** fmt.ulp_exponent(float(c.dtype.type(reference)))
    return float(abs(Fraction(float(c)) - Fraction(float(reference))) / unit)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("seed", [1, 2])
def test_ulps_of_nearby_values_are_exact(dtype, seed):
    rng = np.random.default_rng(seed)
    fmt = format_of(dtype)
    exponents = rng.integers(fmt.subnormal_exponent, fmt.maxexp - 1, 300)
    reference = np.ldexp(rng.uniform(-1, 1, 300), exponents).astype(dtype)
    c = reference.copy()
    for _ in range(int(rng.integers(1, 5))):
        c = np.nextafter(c, rng.choice([-inf, inf], 300).astype(dtype))
    expected = [naive_ulps(x, y) for x, y in zip(c, reference, strict=True)]
    np.testing.assert_array_equal(ulps(c, reference), expected)
    assert max(expected) > 0


def test_ulps_at_the_ends_of_the_range():
    top, bottom = np.finfo(np.float64).max, 2.0**-1074
    c = np.array([-top, bottom, 0.0, 1.0])
    reference = np.array([top, 0.0, bottom, bottom])
    assert ulps(c, reference).tolist() == [2.0 * (2**53 - 1), 1.0, 1.0, inf]


def test_a_wider_reference_counts_fractions_of_an_ulp():
    reference = np.array([1 + 2.0**-25, 1e300, 2.0**-160])
    c = reference.astype(np.float64)
    c = np.array([1.0, inf, 0.0], np.float32)
    assert ulps(c, reference).tolist() == [0.25, 0.0, 2.0**-11]
    assert ulps(np.array([3e38], np.float32), np.array([1e300])).tolist() == [inf]


def test_specials_agree_or_are_infinitely_wrong():
    c = np.array([nan, inf, -inf, inf, nan, 1.0, 1.0])
    reference = np.array([nan, inf, -inf, -inf, 1.0, nan, inf])
    assert ulps(c, reference).tolist() == [0, 0, 0, inf, inf, inf, inf]
    assert relative_frobenius(c[:3], reference[:3]) == 0 == normwise(c[:3], reference[:3])
    assert relative_frobenius(c, reference) == inf == normwise(c, reference)
    matched = np.array([3.0, nan]), np.array([4.0, nan])
    assert relative_frobenius(*matched) == normwise(*matched) == 0.25


@pytest.mark.parametrize("measure", MEASURES)
def test_empty_and_equal_have_no_error(measure):
    assert measure(np.zeros((0, 3)), np.zeros((0, 3))) == 0
    c = np.random.default_rng(3).standard_normal((4, 4))
    assert measure(c, c) == 0
    assert measure(np.zeros(2), np.zeros(2)) == 0
    assert measure(np.ones(3), np.zeros(3)) > 1e300 or measure in (max_ulps, median_ulps)


@pytest.mark.parametrize("scale", [2.0**-1060, 1.0, 2.0**1020])
def test_norms_neither_overflow_nor_vanish(scale):
    reference = np.array([[3.0, 0.0], [0.0, 4.0]]) * scale
    c = np.array([[3.0, 0.0], [1.0, 4.0]]) * scale
    assert relative_frobenius(c, reference) == pytest.approx(0.2, rel=1e-15)
    assert normwise(c, reference) == 0.25
    assert componentwise(c, reference, np.full((2, 2), 2 * scale)) == 0.5


def test_componentwise_counts_zero_over_zero_as_zero():
    c, reference = np.array([0.0, 1.0]), np.array([0.0, 0.5])
    assert componentwise(c, reference, np.array([0.0, 2.0])) == 0.25
    assert componentwise(c, reference, np.array([0.0, 0.0])) == inf


def test_complex_parts_are_judged_separately():
    reference = np.array([1 + 2.0**-30 * 1j])
    c = reference + 2.0**-70 * 1j
    assert max_ulps(c, reference) == 2.0**12
    assert relative_frobenius(np.array([3 + 0j]), np.array([3 + 4j])) == 0.8
    assert normwise(np.array([3 + 0j]), np.array([3 + 4j])) == 1.0
    assert componentwise(np.array([3 + 3j]), np.array([3 + 4j]), np.array([4.0])) == 0.25


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.complex64])
@pytest.mark.parametrize("name", ["normal", "wide_rows", "cancelling", "subnormal_results"])
def test_exact_products_and_their_rounded_values_agree(name, dtype):
    a, b = HOSTILE[name](6, 9, 5, 11, dtype)
    exact = exact_product(a, b)
    c = (a @ b).astype(dtype)
    nearest = exact.rounded(dtype)
    assert max_ulps(nearest, exact) <= 0.5
    assert abs(max_ulps(c, exact) - max_ulps(c, nearest)) <= 0.5 + 2**-40 * max_ulps(c, exact)
    for measure in (relative_frobenius, normwise):
        slack = 2 * format_of(dtype).unit_roundoff
        if name == "subnormal_results":
            slack = 1.0
        assert measure(c, exact) == pytest.approx(measure(c, nearest), rel=1e-6, abs=slack)
    assert componentwise(nearest, exact, exact.magnitude()) <= componentwise(c, exact, exact.magnitude())


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("wrong", [nan, inf, -inf])
def test_a_special_against_an_exact_number_is_infinitely_wrong(measure, wrong):
    exact = exact_product(np.eye(1), np.eye(1))
    assert measure(np.array([[wrong]]), exact) == inf == measure(np.array([[wrong]]), np.eye(1))
    assert componentwise(np.array([[wrong]]), exact, np.array([[inf]])) == inf


def test_the_right_infinity_of_an_exact_product_is_no_error():
    exact = exact_product(np.array([[1e300], [1.0]]), np.array([[1e300]]))
    c = np.array([[inf], [1e300]])
    assert max_ulps(c, exact) == relative_frobenius(c, exact) == normwise(c, exact) == 0
    assert componentwise(c, exact, exact.magnitude("up")) == 0
    assert relative_frobenius(c * [[1], [1.5]], exact) == 0.5


def naive_norm(x, p):
    """From the definitions: sums of moduli; the largest eigenvalue of the Gram matrix for p = 2."""
    if p == 2:
        return float(np.sqrt(np.linalg.eigvalsh(x.conj().T @ x).max()))
    if p == "fro":
        return float(np.sqrt(sum(abs(v) ** 2 for v in x.ravel())))
    return max(sum(abs(v) for v in line) for line in (x.T if p == 1 else x))


@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("scale", [2.0**-1040, 1.0, 2.0**1010])
def test_matrix_norms(p, kind, scale, rng):
    for shape in ((7, 5), (5, 7), (1, 6)):
        x = rng.standard_normal(shape).astype(kind)
        if kind is complex:
            x += 1j * rng.standard_normal(shape)
        x = np.round(x * 2**20) / 2**20  # so that the smallest scale loses nothing
        assert matrix_norm(x * scale, p) == pytest.approx(naive_norm(x, p) * scale, rel=1e-9)
    assert matrix_norm(np.zeros((0, 3)), p) == matrix_norm(np.zeros((2, 2)), p) == 0
    assert matrix_norm(np.array([[1.0, inf]]), p) == inf and np.isnan(matrix_norm(np.array([[1.0, nan]]), p))


@pytest.mark.parametrize("kind", ["random", "low rank", "orthogonal", "graded", "complex"])
def test_large_two_norms_come_from_below_and_near(kind, rng, monkeypatch):
    monkeypatch.setattr(prismm.metrics.norms, "_DIRECT", 0)
    x = rng.standard_normal((300, 220))
    if kind == "low rank":
        x = x[:, :3] @ rng.standard_normal((3, 220))
    elif kind == "orthogonal":
        x = np.linalg.qr(x)[0]
    elif kind == "graded":
        x *= 2.0 ** -np.arange(220)
    elif kind == "complex":
        x = x + 1j * rng.standard_normal(x.shape)
    exact = np.linalg.svd(x, compute_uv=False)[0]
    for y in (x, x.T):
        assert exact * (1 - 1e-3) <= matrix_norm(y, 2) <= exact * (1 + 1e-12)


@pytest.mark.parametrize("p", ORDERS)
def test_errors_relative_to_operands_and_to_the_reference(p, rng):
    a, b = rng.standard_normal((8, 9)).astype(np.float32), rng.standard_normal((9, 6)).astype(np.float32)
    c = a @ b
    reference = a.astype(float) @ b.astype(float)
    gap = naive_norm(c - reference, p)
    assert forward_error(c, reference, a, b, p) == pytest.approx(
        gap / naive_norm(a.astype(float), p) / naive_norm(b.astype(float), p)
    )
    assert relative_norm(c, reference, p) == pytest.approx(gap / naive_norm(reference, p))
    assert relative_norm(c, reference, "fro") == pytest.approx(relative_frobenius(c, reference))
    assert forward_error(reference, reference, a, b, p) == 0 == relative_norm(reference, reference, p)


def test_element_errors_relative_to_the_reference():
    reference = np.array([[4.0, -2.0, 0.0], [1e-320, 1e300, 8.0]])
    c = reference + np.array([[1.0, 0.25, 0.0], [0.0, 1e299, -1.0]])
    assert max_relative(c, reference) == 0.25
    assert mean_relative(c, reference) == pytest.approx((0.25 + 0.125 + 0.1 + 0.125) / 6, rel=1e-14)
    assert max_relative(np.array([2.0**-1074]), np.array([2.0**-1073])) == 0.5
    assert max_relative(np.array([1.0]), np.zeros(1)) == inf == mean_relative(np.array([1.0]), np.zeros(1))
    assert max_relative(np.array([3 + 4j]), np.array([3.0 + 0j])) == pytest.approx(4 / 3)
    assert max_relative(np.array([nan, inf]), np.array([nan, inf])) == 0 == mean_relative(np.zeros(0), np.zeros(0))
    assert max_relative(np.array([inf]), np.array([1.0])) == inf


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("name", ["normal", "cancelling", "uniform"])
def test_the_new_measures_agree_on_exact_products(name, dtype, seed):
    """Against Fractions, with signs: the correctly rounded product's own errors, of less than half an ulp, too."""
    a, b = HOSTILE[name](5, 9, 4, seed, dtype)
    exact = exact_product(a, b)
    for c in ((a @ b).astype(dtype), exact.rounded(dtype)):
        signed = [
            np.array([[float(Fraction(float(x[i, j])) - _entry(part, i, j)) for j in range(4)] for i in range(5)])
            for x, part in zip(([c.real, c.imag] if len(exact.parts) == 2 else [c]), exact.parts, strict=True)
        ]
        gap = signed[0] if len(signed) == 1 else signed[0] + 1j * signed[1]
        value = exact.rounded(np.result_type(dtype, np.float64))
        for p in ORDERS:
            wanted = naive_norm(gap, p)
            size = naive_norm(a, p) * naive_norm(b, p)
            assert forward_error(c, exact, a, b, p) == pytest.approx(float(wanted / size), rel=1e-6)
            assert relative_norm(c, exact, p) == pytest.approx(float(wanted / naive_norm(value, p)), rel=1e-6)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.where(gap == 0, 0, np.abs(gap) / np.abs(value))
        assert max_relative(c, exact) == pytest.approx(float(ratios.max()), rel=1e-6)
        assert mean_relative(c, exact) == pytest.approx(float(ratios.mean()), rel=1e-6)


def _entry(part, i, j):
    return Fraction(part.numerators[i, j]) * Fraction(2) ** int(part.exponents[i, j])


@pytest.mark.parametrize("p", ORDERS)
def test_one_sided_specials_make_norms_infinite(p):
    one, bad = np.eye(2), np.array([[1.0, nan], [0.0, 1.0]])
    assert forward_error(bad, one, one, one, p) == inf == relative_norm(bad, one, p)
    assert forward_error(bad, exact_product(one, one), one, one, p) == inf
    assert forward_error(bad, bad, one, one, p) == 0 == relative_norm(bad, bad, p)
    assert forward_error(one, 2 * one, np.zeros((2, 2)), one, p) == inf


def test_mismatches_are_refused():
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        ulps(np.zeros(2), np.zeros(3))
    with pytest.raises(DTypeError, match="complex"):
        ulps(np.zeros(2), np.zeros(2, complex))
    with pytest.raises(DTypeError, match="int64"):
        ulps(np.zeros(2, np.int64), np.zeros(2))
    with pytest.raises(ShapeError, match="magnitude"):
        componentwise(np.zeros(2), np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("p", [0, 3, "2", None])
def test_other_norms_are_refused(p):
    with pytest.raises(ArgumentError, match=r"numpy\.inf"):
        matrix_norm(np.eye(2), p)
    with pytest.raises(ShapeError, match="matrix"):
        matrix_norm(np.ones(3), 2)


def test_examples():
    assert doctest.testmod(prismm.metrics).failed == 0
    assert doctest.testmod(prismm.metrics.norms).failed == 0
