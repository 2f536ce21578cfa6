"""Each generator keeps its promise: what its docstring calls hostile is found in what it draws."""

import doctest
import itertools
from fractions import Fraction

import numpy as np
import pytest

import prismm
import prismm.testing.generators
from prismm.errors import ArgumentError
from prismm.formats import format_of
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded, exact_product, phi
from tests.judge import assert_each, assert_same_bits

DTYPES = [np.float64, np.float32, np.complex128, np.complex64]
REAL = [np.float64, np.float32]
EVERY = {**HOSTILE, **SPECIAL}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
each_real = pytest.mark.parametrize("dtype", REAL, ids=lambda d: np.dtype(d).name)
each_k = pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 16])


def values(exact):
    """All parts of all entries, as Fractions."""
    for part in exact.parts:
        for numerator, exponent in zip(part.numerators.ravel(), part.exponents.ravel(), strict=True):
            yield Fraction(int(numerator)) * Fraction(2) ** int(exponent)


def doubled_ulps(exact, dtype):
    """Per part and entry: twice the exact distance to RN(exact), in ulps of it."""
    fmt = format_of(dtype)
    rounded = exact.rounded(dtype)
    parts = [rounded.real, rounded.imag] if exact.is_complex else [rounded]
    nearest = [float(v) for part in parts for v in part.ravel()]
    return [
        2 * abs(x - Fraction(v)) / Fraction(2) ** fmt.ulp_exponent(v)
        for x, v in zip(values(exact), nearest, strict=True)
    ]


@each_dtype
@pytest.mark.parametrize("name", EVERY)
def test_shapes_types_and_determinism(name, dtype):
    generate = EVERY[name]
    a, b = generate(4, 6, 5, 12, dtype)
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((4, 6), (6, 5), dtype, dtype)
    again = generate(4, 6, 5, 12, dtype)
    assert a.tobytes() == again[0].tobytes() and b.tobytes() == again[1].tobytes()
    from_rng = generate(4, 6, 5, np.random.default_rng(12), dtype)
    assert a.tobytes() == from_rng[0].tobytes()
    other = generate(4, 6, 5, 13, dtype)
    assert (a.tobytes(), b.tobytes()) != (other[0].tobytes(), other[1].tobytes())
    assert generate.__doc__ and generate.__name__
    finite = np.isfinite(a).all() and np.isfinite(b).all()
    assert finite == (name in HOSTILE)
    if np.dtype(dtype).kind == "c":
        assert a.imag.any() and b.imag.any()


@each_dtype
def test_any_shape(dtype, seed):
    def check(case):
        name, (m, k, n) = case
        a, b = EVERY[name](m, k, n, seed, dtype)
        assert (a.shape, b.shape, a.dtype, b.dtype) == ((m, k), (k, n), dtype, dtype)
        x, y = EVERY[name](m, k, n, seed, dtype)
        assert a.tobytes() == x.tobytes() and b.tobytes() == y.tobytes()
        if name in HOSTILE:
            assert np.isfinite(a).all() and np.isfinite(b).all()
        assert_same_bits(prismm.matmul(a, b, accuracy="correctly-rounded"), correctly_rounded(a, b))

    shapes = [(0, 0, 0), (0, 3, 2), (2, 0, 3), (3, 2, 0), (1, 1, 1), (5, 1, 4), (1, 9, 1)]
    assert_each(check, itertools.product(EVERY, shapes))


def test_other_types_are_refused():
    with pytest.raises(ArgumentError, match="float16"):
        HOSTILE["normal"](1, 1, 1, 0, np.float16)


@each_dtype
@each_k
def test_ties_are_ties(k, dtype, seed):
    a, b = HOSTILE["ties"](6, k, 7, seed, dtype)
    assert set(doubled_ulps(exact_product(a, b), dtype)) == {1}


@each_dtype
@each_k
def test_near_ties_are_not_ties_but_almost(k, dtype):
    a, b = HOSTILE["near_ties"](6, k, 7, 200 + k, dtype)
    distances = doubled_ulps(exact_product(a, b), dtype)
    if k == 1:
        assert set(distances) == {1}
        return
    assert all(Fraction(3, 4) < d < 1 for d in distances)
    assert min(1 - d for d in distances) < Fraction(2) ** -60
    rounded = exact_product(a, b).rounded(dtype)
    assert (rounded != exact_product(*HOSTILE["ties"](6, k, 7, 200 + k, dtype)).rounded(dtype)).any()


@each_dtype
@each_k
def test_cancelling_sums_are_zero_or_tiny(k, dtype, seed):
    a, b = HOSTILE["cancelling"](5, k, 8, seed, dtype)
    exact = exact_product(a, b)
    rounded, size = exact.rounded(dtype), exact.magnitude("up")
    assert not rounded[:, :4].any()
    if k > 1:
        assert (rounded[:, 4:] != 0).all()
        assert size[:, :4].all()
        assert (abs(rounded) <= 4 * format_of(dtype).unit_roundoff * size).all()


@each_dtype
@each_k
def test_sums_at_the_overflow_threshold(k, dtype, seed):
    fmt = format_of(dtype)
    a, b = HOSTILE["overflow_threshold"](8, k, 6, seed, dtype)
    rounded = exact_product(a, b).rounded(dtype)
    parts = [rounded.real, rounded.imag] if rounded.dtype.kind == "c" else [rounded]
    threshold = Fraction(fmt.max) + Fraction(2) ** (fmt.maxexp - fmt.precision - 1)
    distinct = {abs(x) for x in values(exact_product(a, b))}
    assert all(abs(x - threshold) <= Fraction(2) ** (fmt.maxexp - fmt.precision - 1) for x in distinct)
    for part in parts:
        for i, row in enumerate(abs(part)):
            infinite = k > 1 and i % 4 in ((0, 3) if k > 2 else (0, 1, 3))
            assert set(row.tolist()) == {np.inf if infinite else fmt.max}
    if k > 2:
        assert threshold in distinct and len(distinct) == 4


@each_dtype
@pytest.mark.parametrize("k", [3, 4, 9, 32])
def test_near_overflow_is_finite_though_sums_are_not(k, dtype):
    a, b = HOSTILE["near_overflow"](6, k, 5, 500 + k, dtype)
    exact = exact_product(a, b)
    rounded = exact.rounded(dtype)
    assert np.isfinite(rounded).all() and rounded.all()
    assert abs(rounded).max() < format_of(dtype).max / 1000
    with np.errstate(all="ignore"):
        assert not np.isfinite((a @ b).astype(dtype)).all()
    assert (exact.magnitude("up") > format_of(dtype).max).any()


@each_real
def test_subnormal_operands(dtype):
    fmt = format_of(dtype)
    a, b = HOSTILE["subnormal_operands"](6, 10, 6, 6, dtype)
    assert (abs(a[::2]) < fmt.smallest_normal).all() and a[::2].all()
    assert (abs(b[:, 1::2]) < fmt.smallest_normal).all() and b[:, 1::2].all()
    rounded = exact_product(a, b).rounded(dtype)
    assert np.isfinite(rounded).all()
    assert (abs(rounded[::2, ::2]) > 2.0**-60).all()
    assert not rounded[::2, 1::2].any()
    assert (abs(rounded[1::2, 1::2]) < 1000 * fmt.smallest_normal).all() and rounded[1::2, 1::2].any()


@each_dtype
def test_subnormal_results(dtype):
    fmt = format_of(dtype)
    a, b = HOSTILE["subnormal_results"](40, 5, 6, 7, dtype)
    assert (abs(a.real) > fmt.smallest_normal).all()
    exact = exact_product(a, b)
    rounded = abs(exact.rounded(dtype).real)
    assert (rounded[::2] < fmt.smallest_normal).all()
    small = rounded < fmt.smallest_normal
    assert np.mean(small) > 0.2 and not small.all()
    distances = doubled_ulps(exact, dtype)
    assert distances.count(1) > 0.3 * len(distances)


@each_dtype
def test_wide_operands_are_wide(dtype):
    span = 900 if format_of(dtype).maxexp > 128 else 100
    a, b = HOSTILE["wide_rows"](4, 200, 4, 8, dtype)
    exponents = np.frexp(abs(a.real))[1]
    assert (np.ptp(exponents, axis=1) > span).all() and np.ptp(np.frexp(b.real)[1]) < 60
    a, b = HOSTILE["wide_rows_and_columns"](4, 200, 4, 8, dtype)
    assert min(np.ptp(np.frexp(x.real)[1]) for x in (a, b)) > span
    assert np.isfinite(exact_product(a, b).rounded(dtype)).all()


@each_dtype
def test_graded_terms_are_alike(dtype):
    a, b = HOSTILE["graded"](30, 20, 30, 9, dtype)
    sizes = np.frexp(np.median(abs(a), axis=0))[1], np.frexp(np.median(abs(b), axis=1))[1]
    assert np.ptp(sizes[0]) > 50 and np.ptp(sizes[1]) > 50
    assert np.ptp(sizes[0] + sizes[1]) <= 6


@each_dtype
def test_gram_is_hermitian(dtype):
    a, b = HOSTILE["gram"](5, 9, 5, 10, dtype)
    rounded = exact_product(a, b).rounded(dtype)
    np.testing.assert_array_equal(rounded, rounded.conj().T)
    assert (np.diag(rounded).real > 0).all() and not np.diag(rounded).imag.any()
    assert HOSTILE["gram"](3, 4, 8, 10, dtype)[1].shape == (4, 8)


@each_real
def test_lattices_are_integers(dtype):
    for name, limit in (
        ("lattice", 8),
        ("lattice_wide", 2 ** ((format_of(dtype).precision - 1) // 2)),
    ):
        a, b = HOSTILE[name](20, 30, 20, 11, dtype)
        assert (a == np.round(a)).all() and abs(a).max() <= limit < 2 * abs(b).max()
    rounded_away = [d for d in doubled_ulps(exact_product(a, b), dtype) if d]
    assert 1 in rounded_away


@each_real
def test_single_values(dtype):
    fmt = format_of(dtype)
    a, _ = HOSTILE["carries"](9, 9, 9, 12, dtype)
    assert (np.frexp(abs(a))[0] == 1 - fmt.unit_roundoff).all()
    a, b = HOSTILE["powers_of_two"](9, 9, 9, 12, dtype)
    assert (np.frexp(abs(a))[0] == 0.5).all() and (np.frexp(abs(b))[0] == 0.5).all()
    a, b = HOSTILE["one_huge"](9, 9, 9, 12, dtype)
    assert (abs(a) > 2.0**25).sum() == (abs(b) > 2.0**25).sum() == 1
    a, b = HOSTILE["tiny_uniform"](9, 9, 9, 12, dtype)
    assert 0 <= a.min() < a.max() <= 2.0**-6


@each_dtype
def test_zeros(dtype):
    a, b = HOSTILE["zeros_rows_cols"](9, 12, 9, 13, dtype)
    assert not a[::3].any() and not b[:, 1::3].any() and a[1].any() and b[:, 0].any()
    assert np.signbit(a.real[::3]).any() and not np.signbit(a.real[::3]).all()
    a, b = HOSTILE["triangular"](8, 8, 8, 13, dtype)
    product = exact_product(a, b).rounded(dtype)
    assert not np.triu(product, 1).any() and np.diag(product).all()


def test_phi_widens_with_its_argument():
    spreads = [np.ptp(np.log2(abs(phi(f)(1, 2000, 0, 14)[0]))) for f in (0.5, 1.0, 2.0, 4.0)]
    assert spreads == sorted(spreads) and spreads[-1] > 30
    assert phi(0.5).__name__ != phi(1.0).__name__


@each_dtype
def test_specials_leave_clean_rows_and_columns(dtype):
    for name in SPECIAL:
        a, b = SPECIAL[name](9, 8, 9, 15, dtype)
        assert 0 < np.isfinite(a).all(axis=1).sum() < 9, name
        assert np.isfinite(b).all(axis=0).any(), name
    a, _ = SPECIAL["specials"](60, 40, 1, 15, dtype)
    flat = a.ravel().view(np.empty(0, dtype).real.dtype)
    assert {np.inf, -np.inf, 0.0} <= set(flat[~np.isnan(flat)].tolist()) and np.isnan(flat).any()


def test_examples():
    assert doctest.testmod(prismm.testing.generators).failed == 0
