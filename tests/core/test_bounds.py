"""The bounds of reports and certificates against Fractions: rounded up, never below, and not far above."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.core.accuracy import Target, conventional_bound, kappa, magnitude_kappa
from prismm.core.bounds import ConventionalBound, ResidueBound, RoundedBound, half_ulp, product_of_moduli
from prismm.core.outcome import Epilogue
from prismm.core.scales import Scales
from prismm.formats import BF16, FP16, FP32, FP64
from prismm.testing import exact_gemm, exact_product

FORMATS = [FP64, FP32]
formats = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
DTYPES = {"fp64": np.float64, "fp32": np.float32}


def samples(fmt, rng):
    """Values of the format in every range."""
    powers = np.arange(fmt.subnormal_exponent, fmt.maxexp)
    values = [0.0, fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, math.nextafter(1.0, 0.0), 1.0]
    values += list(np.ldexp(1.0, powers[:: max(1, len(powers) // 100)]))
    values += list(np.ldexp(rng.random(200), rng.integers(fmt.subnormal_exponent, fmt.maxexp, 200)))
    x = np.array(values).astype(DTYPES[fmt.name])
    return np.concatenate([x, -x])


def true_half_ulp(x, fmt):
    """Half the distance outwards, by definition."""
    return Fraction(2) ** fmt.ulp_exponent(float(x)) / 2


@formats
def test_half_an_ulp(fmt, rng):
    x = samples(fmt, rng)
    got = half_ulp(x, fmt)
    for value, half in zip(x, got, strict=True):
        exact = true_half_ulp(value, fmt)
        assert exact <= Fraction(float(half)) <= max(exact, Fraction(2) ** -1074), float(value)
    assert half_ulp(np.array([np.inf, -np.inf, np.nan]), fmt).tolist() == [0.0] * 3
    z = np.array([complex(1.0, 1024.0), complex(np.inf, 1.0), complex(0.0, np.nan)])
    one = float(true_half_ulp(1.0, fmt))
    assert half_ulp(z, fmt).tolist()[:2] == [1024 * one, one]


@formats
def test_correctly_rounded_entries_are_half_an_ulp_off(fmt, rng):
    c = samples(fmt, rng)[:60].reshape(6, 10)
    bound = RoundedBound(fmt)
    whole = bound.at(c, slice(None), slice(None))
    assert np.array_equal(whole, half_ulp(c, fmt))
    assert bound.at(c, 2, 3) == whole[2, 3]


def scales(n, rng, shifts):
    """Scales with hostile vectors of the bound: zeros, exact rows, ordinary ones, one of 1e300."""
    terms = np.vstack([
        np.ldexp(rng.random(n), rng.integers(0, 80, n)), np.ldexp(rng.random(n), rng.integers(-40, 10, n)),
        np.ldexp(rng.random(n), rng.integers(0, 80, n)), np.ones(n),
    ])  # fmt: skip
    terms[1, ::4] = 1e300
    exact = np.arange(n) % 5 == 1
    terms[1, exact] = terms[3, exact] = 0.0
    return Scales(np.asarray(shifts, np.int64), np.zeros(n, np.int64), terms, np.empty((n, 0), np.int64))


@formats
@pytest.mark.parametrize("weight", [1.0, 3.7])
def test_the_residue_bound_is_never_below_its_formula(fmt, weight, rng):
    m, n, terms = 40, 30, 1001
    shifts = rng.integers(-300, 1130, m)
    shifts[::4] = 1125
    rows = scales(m, rng, shifts)
    columns = scales(n, rng, rng.integers(-300, 40, n))
    c = rng.choice(samples(fmt, rng), (m, n))
    c[0, 0], c[1, 1], c[2, 2] = np.inf, np.nan, 0.0
    bound = ResidueBound(fmt, rows, columns, terms, weight)
    with np.errstate(all="raise", under="ignore"):
        got = bound.at(c, slice(None), slice(None))
        assert all(bound.at(c, i, j) == got[i, j] for i, j in ((3, 4), (5, 6), (2, 2)))
        assert np.array_equal(bound.at(c, slice(4, 9), slice(2, 3)), got[4:9, 2:3])
    underflowing = 0
    for i in range(m):
        r = [Fraction(x) for x in rows.terms[:, i]]
        for j in range(n):
            if not np.isfinite(c[i, j]):
                assert got[i, j] == 0.0
                continue
            q = [Fraction(x) for x in columns.terms[:, j]]
            first = r[3] * q[0] + q[3] * r[0] + r[3] * q[3] * terms / 4
            second = r[1] * q[2] + (r[2] + r[1]) * q[1]
            shift = int(rows.shift[i] + columns.shift[j])
            scheme = min(first, second) * Fraction(weight) / Fraction(2) ** shift
            exact = scheme + true_half_ulp(c[i, j], fmt)
            underflowing += 0 < scheme < Fraction(2) ** -1022
            assert Fraction(float(got[i, j])) >= exact, (i, j, got[i, j], shift)
            assert Fraction(float(got[i, j])) <= exact * (1 + Fraction(1, 2**35)) + 3 * Fraction(2) ** -1074
    assert underflowing > 10


def test_bounds_near_the_end_of_the_range_are_rounded_up_too(rng):
    """Where the bound itself is subnormal, rounding it to nearest would fall below the formula."""
    n = 400
    ones = np.ones((4, 1))
    rows = Scales(np.zeros(1, np.int64), np.zeros(1, np.int64), ones, np.empty((1, 0), np.int64))
    terms = np.ones((4, n))
    terms[0] = terms[2] = rng.integers(1, 2**12, n) / 16
    terms[1] = 1e300
    columns = Scales(np.full(n, 1074), np.zeros(n, np.int64), terms, np.empty((n, 0), np.int64))
    c = np.ldexp(1.0, rng.integers(-1074, -1000, n))[None]
    got = ResidueBound(FP64, rows, columns, 0).at(c, slice(None), slice(None))[0]
    short = 0
    for j in range(n):
        exact = (Fraction(terms[0, j]) + 1) * Fraction(2) ** -1074 + true_half_ulp(c[0, j], FP64)
        assert Fraction(float(got[j])) >= exact, (terms[0, j], c[0, j])
        short += got[j] < 1e-300
    assert short > 100


@pytest.mark.parametrize("weight", [2.0**-30, -3.7])
def test_no_entrys_bound_exceeds_the_exponent(weight, rng):
    """One row and one column, exact or not, with norms far below and far above the number of terms."""
    margins = []
    for norms in itertools.product([0.0, 1.0, 300.0, 2.0**40], repeat=2):
        for inexact in itertools.product([0.0, 1.0], repeat=2):
            sides = []
            for norm, one in zip(norms, inexact, strict=True):
                terms = np.array([[norm], [1e300], [norm], [one]])
                shift = rng.integers(-40, 40, 1)
                sides.append(Scales(shift, np.zeros(1, np.int64), terms, np.empty((1, 0), np.int64)))
            bound = ResidueBound(FP64, *sides, 1001, weight)
            r, q = ([Fraction(float(x)) for x in side.terms[:, 0]] for side in sides)
            first = r[3] * q[0] + q[3] * r[0] + r[3] * q[3] * 1001 / 4
            scheme = first * abs(Fraction(weight)) / Fraction(2) ** int(sides[0].shift[0] + sides[1].shift[0])
            if scheme:
                margins.append(bound.exponent() - (math.log2(scheme.numerator) - math.log2(scheme.denominator)))
    assert len(margins) >= 40 and min(margins) >= -1e-9


@pytest.mark.covering
@formats
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("epilogue", [False, True])
def test_the_conventional_bound_is_never_below_its_formula(fmt, is_complex, epilogue, rng):
    m, k, n = 7, 40, 6
    dtype = DTYPES[fmt.name]

    def draw(*shape):
        x = (rng.standard_normal(shape) * np.exp(6 * rng.standard_normal(shape))).astype(dtype)
        return x + 1j * np.ascontiguousarray(x[::-1]).astype(dtype) if is_complex else x

    a, b, old = draw(m, k), draw(k, n), draw(m, n)
    terms = 2 * k if is_complex else k
    extra = Epilogue(complex(1.7, -0.3) if is_complex else -1.7, 0.6, old) if epilogue else None
    with np.errstate(all="ignore"):
        c = a @ b
    c[0, 0] = complex(np.inf, np.inf) if is_complex else np.inf
    c[1, 1] = 0
    bound = ConventionalBound(fmt, a, b, terms, fmt.unit_roundoff, extra)
    got = bound.at(c, slice(None), slice(None))
    assert got[0, 0] == 0.0
    assert bound.at(c, 2, 3) == pytest.approx(got[2, 3], rel=1e-12)
    scale = 2**700  # room for exact integer square roots of moduli

    def modulus(z):
        square = Fraction(float(z.real)) ** 2 + Fraction(float(z.imag)) ** 2
        return Fraction(math.isqrt(math.floor(square * scale**2)), scale)

    for i in range(m):
        for j in range(n):
            if not np.isfinite(c[i, j]):
                continue
            size = sum((modulus(x) * modulus(y) for x, y in zip(a[i], b[:, j], strict=True)), Fraction(0))
            count = terms
            if extra is not None:
                size = modulus(complex(extra.alpha)) * size + modulus(complex(extra.beta)) * modulus(old[i, j])
                count += 3
            exact = count * Fraction(fmt.unit_roundoff) * size + terms * Fraction(fmt.smallest_subnormal)
            assert exact <= Fraction(float(got[i, j])) <= exact * (1 + Fraction(1, 2**30)), (i, j)


@pytest.mark.parametrize("fmt", [FP64, FP32, FP16, BF16], ids=lambda f: f.name)
def test_the_conventional_bound_of_a_number(fmt, rng):
    magnitudes = [0.0, 1.0, 2.0**-1074, 3.0e-320, 1e300, *np.ldexp(rng.random(50), rng.integers(-1074, 900, 50))]
    for terms in (1, 2, 3, 1000, 2**23 + 1):
        for magnitude in magnitudes:
            exact = terms * Fraction(fmt.unit_roundoff) * Fraction(magnitude) + terms * Fraction(fmt.smallest_subnormal)
            got = Fraction(conventional_bound(terms, fmt, float(magnitude)))
            assert exact <= got <= exact * (1 + Fraction(1, 2**45)) + 3 * Fraction(2) ** -1074


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=lambda f: f.name)
@pytest.mark.parametrize("terms", [1, 2, 3, 4, 1000, 10**7])
@pytest.mark.parametrize("tolerance", [None, 1e-20, 2.0**-53, 1e-12, 0.3, 1.0, 1e6])
def test_kappas_certify_what_the_target_says(tolerance, terms, fmt):
    """κ·ε <= LB gives ε(1+u) <= slack·LB, and |x| >= κ'·ε gives the same with LB = |x| - ε: in exact arithmetic."""
    target = Target("native") if tolerance is None else Target("tolerance", tolerance)
    u = Fraction(fmt.unit_roundoff)
    slack = (terms - 1) * u if tolerance is None else Fraction(tolerance)
    of_magnitude, of_value = magnitude_kappa(target, terms, fmt), kappa(target, terms, fmt)
    if slack == 0:
        assert of_magnitude == of_value == math.inf
        return
    needed = (1 + u) / slack
    margin = 1 + Fraction(1, 2**41)
    assert needed * margin <= Fraction(of_magnitude) <= needed * (1 + Fraction(1, 2**38))
    assert (1 + needed) * margin <= Fraction(of_value) <= (1 + needed) * (1 + Fraction(1, 2**38))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "keywords",
    [
        {}, {"accuracy": 1e-14, "reproducible": True}, {"accuracy": 1e-18}, {"scheme": prismm.Residues(9)},
        {"scheme": prismm.Slices("int8", "DP")}, {"scheme": prismm.Slices("int8", "DP"), "accuracy": 1e-15},
    ],
)  # fmt: skip
def test_bounds_do_not_ask_for_the_callers_error_state(keywords, rng):
    """Underflow and overflow are meant: no caller's np.seterr turns them into exceptions."""
    tiny, b = np.arange(1, 61) * 5e-324 * np.ones((40, 1)), rng.standard_normal((60, 50))
    pairs = [(tiny, b), (b.T * 1e-160, b * 1e-160), (b.T * 1e-300, b)]
    with np.errstate(all="raise"):
        for left, right in pairs:
            _, report = prismm.matmul(left, right, full_output=True, **keywords)
            assert np.isfinite(report.bounds).all()
        if "accuracy" not in keywords:
            huge = 1e308 * (1 + 1j)
            _, report = prismm.gemm(np.ones((2, 2), complex), np.ones((2, 2)), alpha=huge, full_output=True, **keywords)
            assert not np.isnan(report.bounds).any()


def test_a_factor_whose_modulus_overflows(rng):
    a = np.array([[1e-300, 0.0], [0.0, 0.0]], complex)
    keywords = {"scheme": prismm.Native(), "full_output": True}
    with np.errstate(all="raise"):
        c, report = prismm.gemm(a, a + 1.0, alpha=1.7e308 * (1 + 1j), **keywords)
        assert np.isfinite(c[0, 0]) and not np.isnan(report.bounds).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "scheme",
    [None, prismm.Native("float64"), prismm.Residues(9), prismm.ScaledHalf(), prismm.Slices(), prismm.TileInt8(),
     prismm.Words.tf32(products=3)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_the_bound_of_a_real_part_that_is_finite_beside_one_that_is_not(odd, scheme, rng):
    """What C's other part holds says nothing of it: neither NaN nor infinity bounds its error."""
    a, b = rng.standard_normal((2, 3, 2)) @ [1, 1j], rng.standard_normal((3, 1, 2)) @ [1, 1j]
    c = np.array([[complex(2.5, odd)], [complex(odd, -1.5)]])
    d, report = prismm.gemm(a, b, c, beta=0.7, scheme=scheme, full_output=True)
    plain = prismm.testing.exact_gemm(1.0, a, b, 0.7, np.array([[2.5], [-1.5j]]))
    real, imaginary = plain.part_errors(np.array([[d[0, 0].real], [1j * d[1, 0].imag]]))
    bounds = report.bounds
    assert not np.isfinite(d).any() and (bounds <= 1e-2).all()
    assert real[0, 0] <= bounds[0, 0] and imaginary[1, 0] <= bounds[1, 0]
    assert np.allclose([report.bound(i, 0) for i in range(2)], bounds[:, 0], rtol=1e-12)


def test_moduli_beyond_the_largest_float(rng):
    """Elements whose parts are finite and whose modulus is not: zero times them is zero, and bounds are numbers."""
    a = np.array([[1.5e308 + 1.5e308j, 1.0, 5e-324], [1e300, 1.0, 5e-324 + 5e-324j]])
    b = np.array([[0.0, 1e-300], [0.0, 1.0], [1.0, 0.0]])
    result, report = prismm.matmul(a, b, full_output=True)
    exact = exact_product(a, b)
    assert np.isfinite(report.bounds).all() and (exact.error(result) <= report.bounds).all()
    size = product_of_moduli(a, b)
    for i, j in np.ndindex(2, 2):
        whole = sum(
            (Fraction(x.real) ** 2 + Fraction(x.imag) ** 2) * Fraction(abs(y)) ** 2
            for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)
        )
        # Σ|x|²|y|² is at most the square of Σ|x||y|.
        assert Fraction(float(size[i, j])) ** 2 >= whole * (1 - Fraction(1, 1 << 50))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_bounds_of_results_in_the_operands_memory(dtype, rng):
    """The operands are overwritten: the bounds are those of what they were."""
    kind = np.dtype(dtype)
    scale = 2.0**60

    def draw(size):
        x = rng.standard_normal((24, 24)) * size
        return (x + 1j * rng.standard_normal((24, 24)) * size if kind.kind == "c" else x).astype(kind)

    a, b = draw(scale), draw(1 / scale)
    c = (-1.5 * (a @ b) * 2.0**30).astype(kind)
    for which in ("a", "b", "c"):
        given = {"a": a.copy(), "b": b.copy(), "c": c.copy()}
        exact = exact_gemm(1.5, a, b, 2.0**-30, c)
        result, report = prismm.gemm(
            given["a"], given["b"], given["c"], alpha=1.5, beta=2.0**-30, out=given[which], full_output=True
        )
        assert result is given[which] and (exact.error(result) <= report.bounds).all()
        if which == "c":
            continue
        given = {"a": a.copy(), "b": b.copy()}
        result, report = prismm.matmul(given["a"], given["b"], out=given[which], full_output=True)
        assert (exact_product(a, b).error(result) <= report.bounds).all()
