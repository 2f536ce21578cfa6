"""The exact reference against Fractions, entry by entry, on hostile operands, by both backends."""

import decimal
import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prismm.testing
import prismm.testing.dyadic
import prismm.testing.exact
from prismm.errors import ArgumentError, DTypeError, ShapeError
from prismm.formats import BF16, FP64, format_of
from prismm.testing import (
    HOSTILE,
    SPECIAL,
    correctly_rounded,
    exact_gemm,
    exact_product,
    ieee_specials,
)
from prismm.testing.parts import moduli, read

inf, nan = np.inf, np.nan
DTYPES = [np.float64, np.float32, np.complex128, np.complex64]
BACKENDS = ["python", "flint"]
two_backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def _flint_where_asked(request):
    if "backend" in request.fixturenames and request.getfixturevalue("backend") == "flint":
        pytest.importorskip("flint")


def fractions(x):
    """Nested lists of (real, imaginary) Fractions."""
    x = np.asarray(x)
    return [[(Fraction(v.real.item()), Fraction(v.imag.item())) for v in row] for row in x]


def naive_product(a, b):
    """The defining sums, as (m, n) lists of (real, imaginary) Fractions."""
    a, b = fractions(a), fractions(b)
    columns = len(b[0]) if b else 0
    result = []
    for row in a:
        line = []
        for j in range(columns):
            real = imaginary = Fraction(0)
            for h, (xr, xi) in enumerate(row):
                yr, yi = b[h][j]
                real += xr * yr - xi * yi
                imaginary += xr * yi + xi * yr
            line.append((real, imaginary))
        result.append(line)
    return result


def nearest(x, dtype):
    """RN of a Fraction by search among the neighbours of a first guess."""
    dtype = np.dtype(dtype).type
    info = np.finfo(dtype)
    sign = -1 if x < 0 else 1
    magnitude = abs(x)
    top = Fraction(float(info.max))
    if magnitude >= top:
        half_ulp = Fraction(float(info.max) - float(np.nextafter(info.max, dtype(0)))) / 2
        return sign * dtype(inf if magnitude >= top + half_ulp else info.max)
    guess = dtype(min(float(magnitude), float(info.max)))
    near = [np.nextafter(guess, dtype(0)), guess, np.nextafter(guess, dtype(inf))]
    near = [v for v in near if np.isfinite(v)]
    bits = {8: np.uint64, 4: np.uint32, 2: np.uint16}[info.bits // 8]
    key = lambda v: (abs(Fraction(float(v)) - magnitude), int(v.view(bits)) % 2)  # noqa: E731
    return sign * min(near, key=key)


def naive_rounded(product, dtype):
    real = format_of(dtype) and np.empty(0, dtype).real.dtype
    shape = len(product), len(product[0]) if product else 0
    result = np.zeros(shape, dtype)
    for i, row in enumerate(product):
        for j, (x, y) in enumerate(row):
            result.real[i, j] = nearest(x, real)
            if result.dtype.kind == "c":
                result.imag[i, j] = nearest(y, real)
    return result


def assert_same_bits(x, y):
    assert x.dtype == y.dtype and x.shape == y.shape
    different = np.frombuffer(x.tobytes(), np.uint8) != np.frombuffer(y.tobytes(), np.uint8)
    assert not different.any(), (x[x != y], y[x != y])


def each_hostile(test):
    """All kinds of operands times all types; each kind is fast, and each type."""
    for mark in (pytest.mark.parametrize("dtype", DTYPES), pytest.mark.parametrize("name", HOSTILE)):
        test = mark(test)
    return pytest.mark.covering("name")(test)


@pytest.mark.covering(("name", "dtype"))
@two_backends
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOSTILE)
def test_rounded_is_the_nearest_to_the_naive_sum(name, dtype, backend):
    a, b = HOSTILE[name](5, 7, 6, 2024, dtype)
    exact = exact_product(a, b, backend=backend)
    product = naive_product(a, b)
    assert_same_bits(exact.rounded(dtype), naive_rounded(product, dtype))
    narrow = np.complex64 if exact.is_complex else np.float32
    assert_same_bits(exact.rounded(narrow), naive_rounded(product, narrow))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", HOSTILE)
def test_rounded_on_fresh_draws(name, dtype, seed):
    a, b = HOSTILE[name](3, 9, 3, seed, dtype)
    assert_same_bits(exact_product(a, b).rounded(dtype), naive_rounded(naive_product(a, b), dtype))


@each_hostile
def test_backends_agree_in_every_bit(name, dtype):
    a, b = HOSTILE[name](17, 40, 13, 5, dtype)
    pytest.importorskip("flint")
    x, y = (exact_product(a, b, backend=backend) for backend in BACKENDS)
    for p, q in zip(x.parts, y.parts, strict=True):
        assert p.numerators.tolist() == q.numerators.tolist()
        assert p.exponents.tolist() == q.exponents.tolist()
    for way in ("down", "up"):
        assert_same_bits(x.magnitude(way), y.magnitude(way))


@each_hostile
def test_error_within_and_ulps_are_exact(name, dtype):
    a, b = HOSTILE[name](3, 6, 4, 77, dtype)
    exact, product = exact_product(a, b), naive_product(a, b)
    rng = np.random.default_rng(77)
    with np.errstate(all="ignore"):
        c = exact.rounded(dtype)
        c = np.where(rng.random(c.shape) < 0.5, c, (a @ b).astype(dtype))
        c = np.where(np.isfinite(c), c, 1)
    errors, units = exact.error(c), exact.ulps(c)
    below = np.nextafter(errors, -inf)
    assert exact.within(c, errors).all()
    assert not exact.within(c, below).any()
    fmt = format_of(dtype)
    for (i, j), value in np.ndenumerate(c):
        parts = [(value.real, product[i][j][0]), (value.imag, product[i][j][1])]
        gaps = [abs(Fraction(float(v)) - x) for v, x in parts]
        true = max(gaps)
        if errors[i, j] == inf:
            assert true > Fraction(FP64.max)
        else:
            assert below[i, j] < true <= Fraction(float(errors[i, j]))
        rounded = [float(nearest(x, c.real.dtype)) for _, x in parts]
        if np.isfinite(rounded).all():
            scaled = [g / Fraction(2) ** fmt.ulp_exponent(r) for g, r in zip(gaps, rounded, strict=True)]
            if units[i, j] < inf:
                assert np.nextafter(units[i, j], -inf) < max(scaled) <= Fraction(float(units[i, j]))
        else:
            assert units[i, j] == inf


@each_hostile
def test_magnitude_encloses_the_sum_of_moduli(name, dtype):
    a, b = HOSTILE[name](3, 5, 4, 8, dtype)
    exact = exact_product(a, b)
    low, high = exact.magnitude("down"), exact.magnitude("up")
    assert_same_bits(low, exact.magnitude())
    with decimal.localcontext(prec=1500, Emin=-(10**6), Emax=10**6):

        def modulus(v):
            re, im = decimal.Decimal(float(v.real)), decimal.Decimal(float(v.imag))
            return (re * re + im * im).sqrt()

        rows, columns = ([[modulus(v) for v in line] for line in x] for x in (a, b.T))
        for (i, j), bound in np.ndenumerate(low):
            true = sum((x * y for x, y in zip(rows[i], columns[j], strict=True)), decimal.Decimal(0))
            slack = true * decimal.Decimal(10) ** -1400  # of the decimal square roots
            if a.dtype.kind != "c":
                slack = 0  # those of squares are exact
            assert decimal.Decimal(float(bound)) <= true + slack
            above = float(high[i, j])
            assert above == inf or decimal.Decimal(above) >= true - slack
            # An irrational modulus hides that a sum is a float64: then both sides miss it.
            with np.errstate(over="ignore"):
                best = np.nextafter(bound, inf)
                assert above <= (best if slack == 0 else np.nextafter(best, inf))


def test_magnitude_of_pythagorean_numbers_is_exact():
    a, b = np.array([[3 + 4j, 0]]), np.array([[5 - 12j], [1j]]) * 2.0**-1000
    assert exact_product(a, b).magnitude("down").item() == 65 * 2.0**-1000
    assert exact_product(a, b).magnitude("up").item() == 65 * 2.0**-1000
    with pytest.raises(ArgumentError, match="sideways"):
        exact_product(a, b).magnitude("sideways")


@pytest.mark.parametrize("entry", [1 + 1j, 1 + 2.0**-300 * 1j, 2.0**-1074 * (3 + 1j), 3 + 4j, 2j, 0])
def test_moduli_enclose_the_square_root(entry):
    parts = read(np.array([[entry]], complex))
    square = sum(Fraction(x) ** 2 for x in (entry.real, entry.imag))
    sides = [moduli(parts, way) for way in ("down", "up")]
    low, high = (Fraction(x.numerators.item()) * Fraction(2) ** x.exponents.item() for x in sides)
    assert low**2 <= square <= high**2
    if entry in (3 + 4j, 2j, 0):
        assert low == high
    else:
        assert low < high < low * (1 + Fraction(2) ** -120)
    product = exact_product(np.array([[entry]]), np.ones((1, 1)))
    assert Fraction(product.magnitude("up").item()) ** 2 >= square


finite = st.floats(allow_nan=False, allow_infinity=False)
finite32 = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.slow
@given(st.lists(finite, min_size=8, max_size=8), st.sampled_from([np.float64, np.float32, np.float16]))
def test_any_floats(entries, out):
    a, b = np.reshape(entries[:4], (2, 2)), np.reshape(entries[4:], (2, 2))
    product = naive_product(a, b)
    for backend in BACKENDS:
        if backend == "flint":
            pytest.importorskip("flint")
        assert_same_bits(exact_product(a, b, backend=backend).rounded(out), naive_rounded(product, out))


@given(st.lists(finite32, min_size=8, max_size=8))
def test_any_complex64(entries):
    a = np.array(entries[:4], np.float32).view(np.complex64).reshape(1, 2)
    b = np.array(entries[4:], np.float32).view(np.complex64).reshape(2, 1)
    product = naive_product(a, b)
    assert_same_bits(exact_product(a, b).rounded(np.complex64), naive_rounded(product, np.complex64))


@two_backends
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_at_max_plus_half_an_ulp(dtype, sign, backend):
    fmt = format_of(dtype)
    b = np.array([[1.0], [2.0 ** (fmt.maxexp - fmt.precision - 1)], [1.0]])
    a = np.array([[fmt.max, 1.0, 0.0], [fmt.max, 1.0, -fmt.smallest_subnormal]]) * sign
    exact = exact_product(a.astype(dtype), b.astype(dtype), backend=backend)
    rounded = exact.rounded(dtype).ravel()
    assert rounded.tolist() == [sign * inf, sign * fmt.max]
    assert exact.error(rounded[:, None]).ravel().tolist() == [0.0, b[1, 0]]
    assert exact.ulps(rounded[:, None]).ravel().tolist() == [0.0, 0.5]
    wrong = np.array([[-sign * inf], [sign * inf]], dtype)
    assert exact.error(wrong).tolist() == exact.ulps(wrong).tolist() == [[inf], [inf]]
    assert exact.within(rounded[:, None], [[0.0], [b[1, 0]]]).all()
    assert not exact.within(wrong, 1e300).any()


def test_nan_and_infinity_in_c():
    exact = exact_product(np.eye(2), np.eye(2))
    c = np.array([[nan, inf], [-inf, 1.0]])
    np.testing.assert_array_equal(exact.error(c), [[nan, inf], [inf, 0.0]])
    np.testing.assert_array_equal(exact.ulps(c), [[nan, inf], [inf, 0.0]])
    assert exact.within(c, inf).tolist() == [[False, True], [True, True]]
    assert not exact.within(np.eye(2), nan).any()
    assert not exact.within(np.eye(2), -1.0).any()
    assert not exact.within(np.eye(2), -inf).any()


def test_complex_errors_are_the_larger_part():
    exact = exact_product(np.array([[1.0]]), np.array([[2.0]]))
    c = np.array([[2.0 + 3.0j]])
    assert exact.error(c) == 3.0
    assert [e.item() for e in exact.part_errors(c)] == [0.0, 3.0]
    assert exact.rounded(np.complex64).tolist() == [[2.0 + 0.0j]]
    assert not exact.within(c, 2.9).item() and exact.within(c, 3.0).item()


@pytest.mark.covering
@two_backends
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["normal", "wide_rows_and_columns", "cancelling", "subnormal_results"])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, -1.0), (-0.1, 3e-200), (0.5 + 2j, 1j), (0.0, 0.3), (2, 0)])
def test_gemm_is_the_naive_sum(name, dtype, alpha, beta, backend):
    rng = np.random.default_rng(5)
    a, b = HOSTILE[name](3, 4, 5, rng, dtype)
    c, _ = HOSTILE["normal"](3, 5, 0, rng, dtype)
    exact = exact_gemm(alpha, a, b, beta, c, backend=backend)
    left, right, z = fractions([[alpha]])[0][0], fractions([[beta]])[0][0], fractions(c)
    times = lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0])  # noqa: E731
    expected = []
    for i, row in enumerate(naive_product(a, b)):
        pairs = [(times(left, p), times(right, z[i][j])) for j, p in enumerate(row)]
        expected.append([(p[0] + q[0], p[1] + q[1]) for p, q in pairs])
    out = np.result_type(dtype, np.complex64) if exact.is_complex else dtype
    assert_same_bits(exact.rounded(out), naive_rounded(expected, out))
    assert not np.any(exact.magnitude("down") > exact.magnitude("up"))
    if dtype == np.float64 and not isinstance(alpha, complex):
        sizes = naive_product(abs(a), abs(b))
        for (i, j), low in np.ndenumerate(exact.magnitude()):
            true = abs(left[0]) * sizes[i][j][0] + abs(right[0]) * abs(z[i][j][0])
            assert Fraction(float(low)) <= true <= Fraction(float(exact.magnitude("up")[i, j]))
            assert true == 0 or Fraction(float(np.nextafter(low, inf))) > true


def test_gemm_does_not_read_what_it_need_not():
    bad, good = np.full((2, 2), nan), np.eye(2)
    assert exact_gemm(0.0, bad, bad, 2.0, good).rounded().tolist() == [[2, 0], [0, 2]]
    assert exact_gemm(1.0, good, good, 0.0, bad).rounded().tolist() == [[1, 0], [0, 1]]
    assert exact_gemm(1.0, good, good).rounded().tolist() == [[1, 0], [0, 1]]
    assert exact_gemm(0.0, bad, bad).magnitude().tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ArgumentError, match="pass c"):
        exact_gemm(1.0, good, good, 1.0)
    with pytest.raises(ArgumentError, match="alpha=inf"):
        exact_gemm(inf, good, good)
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        exact_gemm(1.0, good, good, 1.0, np.zeros((3, 2)))


def test_integers_halves_and_mixed_types_are_exact():
    big = np.array([[2**63 - 1, -(2**63)]])
    wide = np.array([[2**64 - 1], [1]], np.uint64)
    assert exact_product(big, wide).parts[0].numerators.item() == (2**63 - 1) * (2**64 - 1) - 2**63
    half = np.array([[np.float16(65504)], [np.float16(2**-24)]])
    assert exact_product(big, half).rounded(np.float32) == nearest(
        Fraction(2**63 - 1) * 65504 - Fraction(2**63) / 2**24, np.float32
    )
    assert exact_product(np.array([[True, False]]), wide).rounded() == 2.0**64
    mixed = exact_product(np.array([[1j]], np.complex64), np.array([[0.1]]))
    assert mixed.rounded(np.complex128) == 0.1j


def test_strides_and_byte_order_do_not_matter():
    a, b = HOSTILE["phi2"](6, 8, 5, 9)
    expected = exact_product(a, b).rounded()
    twice = np.zeros((16, 12))
    twice[::2, ::2] = a.T
    assert_same_bits(exact_product(twice[::2, ::2].T, b.astype(">f8")).rounded(), expected)
    assert_same_bits(exact_product(a[:, ::-1], b[::-1]).rounded(), expected)


def test_a_format_may_be_asked_for():
    exact = exact_product(np.array([[1.0, 2.0**-8]]), np.ones((2, 1)))
    assert exact.rounded(BF16) == 1.0  # a tie
    assert exact_product(np.array([[1.0, 2.0**-8 + 2.0**-60]]), np.ones((2, 1))).rounded(BF16) == 1 + 2.0**-7
    assert exact_product(np.array([[1j]]), np.ones((1, 1))).rounded(BF16).dtype == np.complex128


@two_backends
@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_empty_products_are_zero(shape, backend):
    m, k, n = shape
    exact = exact_product(np.ones((m, k)), np.ones((k, n), complex), backend=backend)
    c = np.zeros((m, n), complex)
    assert_same_bits(exact.rounded(np.complex128), c)
    assert exact.shape == (m, n) and not exact.error(c).any() and exact.within(c, 0.0).all()
    assert not exact.magnitude().any() and not exact.ulps(c).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_specials_are_those_of_the_defining_sum(name, dtype, seed):
    a, b = SPECIAL[name](7, 5, 8, seed, dtype)
    pattern, rounded = ieee_specials(a, b), correctly_rounded(a, b)
    assert rounded.dtype == dtype
    is_complex = rounded.dtype.kind == "c"
    met = 0
    for i, j in np.ndindex(7, 8):
        terms = {"real": [], "imag": []}
        for x, y in zip(a[i], b[:, j], strict=True):
            xr, xi, yr, yi = (float(v) for v in (x.real, x.imag, y.real, y.imag))
            terms["real"] += [xr * yr, *([-(xi * yi)] if is_complex else [])]
            terms["imag"] += [xr * yi, xi * yr]
        for part in ("real", "imag")[: 1 + is_complex]:
            odd = [t for t in terms[part] if not math.isfinite(t)]
            got, entry = getattr(pattern, part)[i, j], getattr(rounded, part)[i, j]
            if odd:
                met += 1
                np.testing.assert_array_equal([got, entry], [sum(odd), sum(odd)])
            else:
                assert got == 0 and np.isfinite(entry)
    assert 0 < met < 7 * 8 * (1 + is_complex)
    rows = np.isfinite(a).all(axis=1)
    columns = np.isfinite(b).all(axis=0)
    clean = exact_product(a[rows], b[:, columns]).rounded(dtype)
    assert_same_bits(rounded[np.ix_(rows, columns)], clean)


def test_specials_survive_overflowing_terms():
    a, b = np.array([[1e200, -1e200, inf]]), np.array([[1e200], [1e200], [1.0]])
    assert correctly_rounded(a, b) == inf
    assert np.isnan(correctly_rounded(np.array([[inf]]), np.array([[0.0]]))).all()


def test_what_cannot_be_read_is_refused():
    eye = np.eye(2)
    with pytest.raises(ArgumentError, match="correctly_rounded"):
        exact_product(np.array([[nan, 1.0]]), eye)
    if np.dtype(np.longdouble) != np.dtype(np.float64):
        with pytest.raises(DTypeError, match=str(np.dtype(np.longdouble))):
            exact_product(eye.astype(np.longdouble), eye)
    with pytest.raises(DTypeError, match="object"):
        exact_product(eye.astype(object), eye)
    with pytest.raises(ShapeError, match=r"\(2, 2\) and \(3, 2\)"):
        exact_product(eye, np.ones((3, 2)))
    with pytest.raises(ShapeError, match="multiply"):
        exact_product(eye[0], eye)
    with pytest.raises(ArgumentError, match="'gmp'"):
        exact_product(eye, eye, backend="gmp")
    with pytest.raises(DTypeError, match="complex64"):
        exact_product(eye * 1j, eye).rounded(np.float64)
    with pytest.raises(DTypeError, match="complex64"):
        exact_product(eye * 1j, eye).error(eye)
    with pytest.raises(ShapeError, match=r"\(1, 2\)"):
        exact_product(eye, eye).error(np.zeros((1, 2)))


@pytest.mark.parametrize("module", [prismm.testing, prismm.testing.dyadic, prismm.testing.exact])
def test_examples(module):
    assert doctest.testmod(module).failed == 0
