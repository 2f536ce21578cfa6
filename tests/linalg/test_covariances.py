"""Covariances and correlations against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import ArgumentError, DTypeError, ShapeError
from prismm.formats import format_of
from prismm.linalg.quotients import rounded_cosine, rounded_once, rounded_ratio
from tests import judge
from tests.linalg import reference

SMALL = np.array([[1.0, 2.0], [2.0, 4.5], [3.0, 5.5], [5.0, 1.0]])


def exact_covariance(x, ddof=1):
    # Integers in units of 2^-1074
    columns = [[int(Fraction(float(v)) * 2**1074) for v in column] for column in x.T]
    unit = 2**2148 * len(x) * (len(x) - ddof)
    return [
        [Fraction(len(x) * sum(p * q for p, q in zip(a, b, strict=True)) - sum(a) * sum(b), unit) for b in columns]
        for a in columns
    ]


def exact_correlation(covariance, dtype, variances=None):
    """RN of covariances over roots of variances, by 400 digits of the root."""
    variances = variances or [row[i] for i, row in enumerate(covariance)]

    def entry(product, square):
        if not square:
            return math.nan
        root = math.isqrt(int(product**2 / square * 2**6000))  # 2^-3000 is below every half subnormal
        return reference.rounded(Fraction(root if product > 0 else -root, 2**3000), dtype)

    return np.array(
        [[entry(v, variances[i] * variances[j]) for j, v in enumerate(row)] for i, row in enumerate(covariance)]
    )


def inputs(rng):
    drawn = rng.standard_normal((30, 4))
    wide = rng.standard_normal((9, 3)) * 10.0 ** rng.integers(-30, 30, (9, 3))
    far = np.array([[1e300, 1.0, 1e-290], [1e-300, 2.0, 1e290], [3.0, 5.0, 0.0], [2.0**-1074, -1.0, 1.0]])
    tiny = np.array([[1.0, 1.0], [-1.0, 1.0], [2.0**-540, 0.0], [-(2.0**-540), 2.0**-540]])
    shift = rng.integers(-400, 400, 4)
    return [
        drawn, drawn + 1e9, drawn + 1e14, wide, (drawn + 1e4).astype(np.float32), np.full((5, 2), 0.1), SMALL,
        rng.integers(-99, 99, (12, 3)), rng.standard_normal((7, 9)), drawn * 2.0**shift, np.full((3, 2), 1.7e308),
        (drawn * 2.0**rng.integers(-70, 60, 4)).astype(np.float32), far, tiny, tiny * 2.0**500,
        rng.integers(-(2**27), 2**27, (2, 5)), rng.integers(-(2**14), 2**14, (2, 5)).astype(np.float32),
        *(SMALL * 2.0**e for e in (-1070, -535, 507, 510, 512, 1020)), np.tile(SMALL, (50, 1)) * 2.0**507,
    ]  # fmt: skip


def test_covariances_are_correctly_rounded(rng):
    def check(case):
        x, ddof = case
        found = prismm.linalg.covariance(x, ddof=ddof)
        assert found.dtype == (x.dtype if x.dtype == np.float32 else np.float64)
        judge.assert_same_bits(found, found.T.copy())
        expected = [[reference.rounded(v, found.dtype) for v in row] for row in exact_covariance(x, ddof)]
        judge.assert_same_bits(found + 0, np.array(expected, found.dtype) + 0)

    judge.assert_each(check, [(x, ddof) for x in inputs(rng) for ddof in (0, 1)] + [(SMALL, 3), (SMALL[:1], 0)])


def test_correlations_are_correctly_rounded(rng):
    def check(x):
        found = prismm.linalg.correlation(x)
        expected = exact_correlation(exact_covariance(x), found.dtype).astype(found.dtype)
        judge.assert_same_bits(found + 0, expected + 0)

    judge.assert_each(check, inputs(rng))
    assert prismm.linalg.correlation(SMALL * 2.0**-535)[0, 1] == prismm.linalg.correlation(SMALL)[0, 1]
    x = rng.standard_normal((25, 3)) + 1e12
    x[:, 2] = 3.0
    found = prismm.linalg.correlation(x)
    assert np.isnan(found[2]).all() and (np.diagonal(found)[:2] == 1.0).all()
    judge.assert_same_bits(prismm.linalg.correlation(torch.from_numpy(x)).numpy(), found)


def complex_inputs(rng):
    """Rotated, conjugate, purely imaginary, far, wide and tiny columns; parts of other sizes than each other."""
    for x in inputs(rng):
        turned, kind = x[::-1] * (0.5 if x.dtype.kind == "f" else 1), np.complex64 if x.dtype == np.float32 else complex
        yield (x + 1j * turned).astype(kind)
        yield (x * 1j).astype(kind)
    drawn = rng.standard_normal((9, 3)) + 1j * rng.standard_normal((9, 3))
    yield np.hstack([drawn, np.conj(drawn), drawn * (3 - 4j)])
    yield drawn.real + 1e-200j * drawn.imag
    yield drawn.real * 1e-200 + 1e100j * drawn.imag
    yield 1e15 - 1e15j + drawn
    yield np.full((4, 2), 0.1 + 0.2j)
    # One part is constant, or nearly so, and the other one tiny.
    for e in (-300, -410, -430, -480, -525, -700, -1000, -1070):
        yield 1.0 + 1j * SMALL * 2.0**e
        yield SMALL * 2.0**e + 3j
        yield np.hstack([1e6 + 1j * SMALL * 2.0**e, SMALL + 1j * SMALL[::-1]])
        yield np.hstack([1.0 + 1j * SMALL * 2.0**e, -2j + SMALL[::-1] * 2.0 ** (e // 2)])


def exact_complex_covariance(x, ddof=1):
    """(real, imaginary) parts of E(x - Ex)(x - Ex)ᴴ."""
    n, c = x.shape[1], exact_covariance(np.hstack([x.real, x.imag]), ddof)
    real = [[c[i][j] + c[n + i][n + j] for j in range(n)] for i in range(n)]
    imag = [[c[n + i][j] - c[i][n + j] for j in range(n)] for i in range(n)]
    return real, imag


def assert_hermitian(x):
    judge.assert_same_bits(x + 0, np.conj(x.T) + 0)
    imag = np.diagonal(x).imag
    assert not imag.any() and not np.signbit(imag).any()


@pytest.mark.slow
def test_complex_covariances_are_correctly_rounded(rng):
    def check(case):
        x, ddof = case
        found = prismm.linalg.covariance(x, ddof=ddof)
        assert found.dtype == x.dtype
        assert_hermitian(found)
        for part, exact in zip((found.real, found.imag), exact_complex_covariance(x, ddof), strict=True):
            expected = [[reference.rounded(v, part.dtype) for v in row] for row in exact]
            judge.assert_same_bits(part + 0, np.array(expected, part.dtype) + 0)

    judge.assert_each(check, [(x, ddof) for x in complex_inputs(rng) for ddof in (0, 1)])


def test_complex_correlations_are_correctly_rounded(rng):
    def check(x):
        found = prismm.linalg.correlation(x)
        real, imag = exact_complex_covariance(x)
        variances = [real[i][i] for i in range(len(real))]
        for part, exact in ((found.real, real), (found.imag, imag)):
            expected = exact_correlation(exact, part.dtype, variances).astype(part.dtype)
            mask = ~np.eye(len(exact), dtype=bool)
            judge.assert_same_bits(part[mask] + 0, expected[mask] + 0)
        assert_hermitian(np.where(np.isnan(found), 0.0, found))
        wanted = np.array([1.0 if v else np.nan for v in variances], found.real.dtype)
        judge.assert_same_bits(np.ascontiguousarray(np.diagonal(found).real), wanted)
        assert not np.diagonal(found).imag.any()

    judge.assert_each(check, list(complex_inputs(rng)))


def test_real_data_of_a_complex_type_have_the_bits_of_real_data(rng):
    for x in inputs(rng):
        x = x.astype(np.result_type(x, np.float32))
        kind = np.complex64 if x.dtype == np.float32 else complex
        for of in (prismm.linalg.covariance, prismm.linalg.correlation):
            found = of(x.astype(kind))
            judge.assert_same_bits(np.ascontiguousarray(found.real), of(x))
            assert not np.nan_to_num(found.imag).any()


def test_what_two_numbers_do_not_decide_comes_from_integers(rng):
    """Midpoints, and values 2^-90 from them, below subnormals and beside the end of the range too."""
    ask = []

    def exact(i, j):
        ask.append((i, j))
        return 7.0

    def check(case):
        kind, high, low, e, asked = case
        ask.clear()
        dtype, no = np.dtype(kind), np.zeros((1, 1), bool)
        with np.errstate(all="ignore"):
            got = rounded_once(np.array([[high]]), np.array([[low]]), e, dtype, no, exact)
        assert bool(ask) == asked
        if not asked:
            value = (Fraction(high) + Fraction(low)) * Fraction(2) ** e
            assert got[0, 0] == reference.rounded(value, dtype)

    half, near = 2.0**-53, 2.0**-53 * (1 - 2.0**-30)
    judge.assert_each(check, [
        (np.float64, 1.0, half, 0, True), (np.float64, 1.0, near, 0, False), (np.float64, 1.0, -half / 2, 0, True),
        (np.float64, 1.0, -near / 2, 0, False), (np.float32, 1.0 + 2.0**-24, 0.0, 0, True),
        (np.float32, 1.0 + 2.0**-24, 2.0**-77, 0, True), (np.float32, 1.0 + 2.0**-24, 2.0**-60, 0, True),
        (np.float32, 1.0 + 2.0**-24 + 2.0**-50, 0.0, 0, False), (np.float64, 1.5, 0.0, -1074, True),
        (np.float64, 1.5 + 2.0**-30, 0.0, -1074, False), (np.float64, 0.0, 0.0, -3000, False),
        (np.float64, 1.0, half, 1024, True), (np.float64, 1.0, -half / 2, 1024, True),
        (np.float64, 1.0 - 2.0**-53, 0.0, 1024, False), (np.float64, 1.0 - 2.0**-53, 2.0**-54, 1024, True),
        (np.float64, 1.0 - 2.0**-53, 2.0**-55, 1024, False), (np.float32, 1.0 - 2.0**-25, 0.0, 128, True),
        (np.float32, 1.0 - 2.0**-25 - 2.0**-50, 0.0, 128, False), (np.float64, 1.0, 0.0, 3000, False),
        (np.float64, -1.5, 0.0, 1024, False),
    ])  # fmt: skip
    for _ in range(50):
        a, b, c = (int(v) for v in rng.integers(1, 2**62, 3))
        e = int(rng.integers(-1200, 1100))
        assert rounded_ratio(-a, b, e, format_of("float32")) == reference.rounded(
            -Fraction(a, b) * Fraction(2) ** e, np.float32
        )
        b += -(-a * a // c)  # |cosine| <= 1
        root = Fraction(math.isqrt((a * a << 800) // (b * c)), 2**400)
        assert rounded_cosine(-a, b, c, format_of("float64")) == -reference.rounded(root, np.float64)
    assert rounded_cosine(3, 3, 3, format_of("float64")) == 1.0 and rounded_cosine(0, 3, 3, format_of("float64")) == 0.0


@pytest.mark.slow
def test_batches(rng):
    """Every matrix of a batch has the bits that it has alone; wide columns of one change no other."""
    for kind in (np.float64, np.float32, np.complex128, np.complex64):
        x = rng.standard_normal((2, 3, 9, 4)).astype(kind)
        x += 0 if x.dtype.kind == "f" else 1j * x[::-1, ::-1]
        x[0, 1, :, 2] *= kind(1e30)
        x[1, 2, :, 0] = 1.0
        for of in (prismm.linalg.covariance, prismm.linalg.correlation):
            found = of(x)
            assert found.shape == (2, 3, 4, 4) and found.dtype == kind
            for at in np.ndindex(2, 3):
                judge.assert_same_bits(found[at], of(x[at]))
            judge.assert_same_bits(of(torch.from_numpy(x)).numpy(), found)
            assert of(np.zeros((0, 3, 2))).shape == (0, 2, 2)


def test_bad_input():
    def check(case):
        error, match, call = case
        with pytest.raises(error, match=match):
            call()

    covariance = prismm.linalg.covariance
    judge.assert_each(check, [
        (ShapeError, "more than 1 rows", lambda: covariance(np.ones((1, 3)))),
        (ShapeError, "matrix", lambda: covariance(np.ones(3))),
        (DTypeError, "dtype", lambda: covariance(np.full((3, 2), "a"))),
        (ArgumentError, "nan", lambda: covariance(np.full((3, 2), complex(0.0, np.nan)))),
        (ArgumentError, "inf", lambda: prismm.linalg.correlation(np.full((3, 2), complex(np.inf, 0.0)))),
        (ArgumentError, "ddof=-1", lambda: covariance(np.ones((3, 2)), ddof=-1)),
        (ArgumentError, "is nan", lambda: covariance(np.full((3, 2), np.nan))),
        (ArgumentError, "integers|numbers", lambda: covariance(np.full((3, 2), 2**53 + 1))),
        *((ArgumentError, "ddof=.*integer", lambda d=d: covariance(SMALL, ddof=d)) for d in ("a", None, 0.5, 1.0, [1])),
    ])  # fmt: skip
