"""Determinants against exact ones."""

from __future__ import annotations

import math
from fractions import Fraction

import flint
import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import ArgumentError, NotCertified, ShapeError
from prismm.linalg import operands
from prismm.linalg.discs import LongProduct, exponential
from tests import judge
from tests.linalg import reference


def test_the_enclosure_holds_and_the_value_is_within_an_ulp(rng):
    def check(a):
        value, report = prismm.linalg.det(a, full_output=True)
        exact = reference.fraction(reference.rational(a).det())
        unit = Fraction(2) ** report.exponent
        assert Fraction(report.lower) * unit <= exact <= Fraction(report.upper) * unit
        assert report.sign == (1 if exact > 0 else -1) and report.lower * report.upper > 0.0
        assert 0.5 <= max(abs(report.lower), abs(report.upper)) <= 1.0 + 2.0**-52
        nearest = reference.rounded(exact, np.float64)
        assert value == nearest or abs(exact - Fraction(value)) <= Fraction(float(np.spacing(abs(value))))

    judge.assert_each(check, [
        *(reference.hilbert(n) for n in (1, 2, 8, 13, 20)), reference.pascal(14), reference.kahan(15),
        reference.unimodular(rng, 5, 10), reference.unimodular(rng, 9, 9), np.eye(5)[[1, 2, 0, 4, 3]],
        -np.eye(3), *(rng.standard_normal((n, n)) for n in (2, 7, 30)), rng.standard_normal((15, 15)) * 1e100,
        reference.graded(rng, 10, 100), rng.standard_normal((6, 6)).astype(np.float32), rng.integers(-9, 9, (7, 7)),
    ])  # fmt: skip


def gaussian(x):
    """A complex number as two fractions."""
    return Fraction(x.real), Fraction(x.imag)


def exact_determinant(a):
    """(real, imag) of a complex matrix, by elimination in Gaussian rationals."""
    unit = Fraction(2) ** -1100  # of entries: elimination is in integers, by Bareiss
    rows = [[tuple(int(part / unit) for part in gaussian(x)) for x in row] for row in np.asarray(a, complex)]
    n, before, sign = len(rows), (1, 0), 1

    def times(x, y):
        return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]

    def over(x, y):
        whole, norm = times(x, (y[0], -y[1])), y[0] ** 2 + y[1] ** 2
        assert not (whole[0] % norm or whole[1] % norm)
        return whole[0] // norm, whole[1] // norm

    for k in range(n - 1):
        pivot = next((i for i in range(k, n) if rows[i][k] != (0, 0)), None)
        if pivot is None:
            return Fraction(0), Fraction(0)
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                x, y = times(rows[i][j], rows[k][k]), times(rows[i][k], rows[k][j])
                rows[i][j] = over((x[0] - y[0], x[1] - y[1]), before)
        before = rows[k][k]
    return tuple(sign * part * unit**n for part in rows[-1][-1])


def assert_encloses(a, value, report):
    """The rectangle holds the exact determinant and not 0, and the value is within an ulp of its larger part."""
    exact = exact_determinant(a)
    unit = Fraction(2) ** report.exponent
    for z, low, high in zip(exact, gaussian(report.lower), gaussian(report.upper), strict=True):
        assert low * unit <= z <= high * unit
    pairs = (report.lower.real, report.upper.real), (report.lower.imag, report.upper.imag)
    assert any(low * high > 0.0 for low, high in pairs)
    assert 0.5 <= max(abs(x) for pair in pairs for x in pair) <= 1.0 + 2.0**-52
    room = Fraction(float(np.spacing(max(map(abs, (value.real, value.imag))))))
    assert all(abs(z - x) <= room for z, x in zip(exact, gaussian(value), strict=True))
    # sign·|det| = det·(1 + error), where |det| is known to 2^-400 of itself.
    square = sum(z**2 for z in exact)
    size = Fraction(math.isqrt(int(square * Fraction(4) ** (600 - report.exponent))), 2**600) * unit
    off = sum((x * size - z) ** 2 for x, z in zip(gaussian(report.sign), exact, strict=True))
    assert off <= square / 4**50


def complex_matrices(rng):
    """Well-conditioned and nearly singular ones, of determinants that are real, imaginary and small in one part."""

    def drawn(*shape):
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    wide = rng.integers(-300, 300, (6, 1))
    close = drawn(5, 5)
    close[4] = close[:4].sum(axis=0)  # but for its rounding
    return [
        np.array([[3.0 - 4.0j]]), drawn(1, 1), drawn(2, 2), drawn(7, 7), drawn(12, 12), drawn(6, 6) * 2.0**wide,
        drawn(6, 6) * 1e50, drawn(4, 4).astype(np.complex64), reference.hilbert(9) * (1 + 1j),
        reference.hilbert(8) + 1e-9j * reference.pascal(8), reference.unimodular(rng, 5, 8) * 1j,
        reference.unimodular(rng, 5, 8) + 0j, 1j * np.eye(4)[[1, 2, 0, 3]], np.diag([1.0, 1e-300j, 1e-20, 1e300]),
        close, drawn(3, 3) * 2.0**-1040, np.exp(2j * np.pi * np.outer(np.arange(8), np.arange(8)) / 8),
    ]  # fmt: skip


def test_complex_determinants_are_enclosed_and_not_0(rng):
    def check(a):
        assert_encloses(a, *prismm.linalg.det(a, full_output=True))

    judge.assert_each(check, complex_matrices(rng))


def test_a_hermitian_matrix_has_a_real_determinant(rng):
    for n in (1, 2, 6):
        a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
        a = a + a.conj().T
        value, report = prismm.linalg.det(a, full_output=True)
        assert value.imag == report.lower.imag == report.upper.imag == 0.0 and abs(report.sign) == 1.0
        assert_encloses(a, value, report)


@pytest.mark.slow
def test_tensors_on_a_gpu_stay_there(rng, monkeypatch):
    """The same code with tensors in main memory: enclosures hold, and products are tensors."""
    monkeypatch.setattr(operands, "stays", torch.is_tensor)

    def check(a):
        tensor = torch.from_numpy(np.ascontiguousarray(a))
        value, report = prismm.linalg.det(tensor, full_output=True)
        if np.iscomplexobj(a):
            assert_encloses(a, value, report)
            return
        exact, unit = reference.fraction(reference.rational(a).det()), Fraction(2) ** report.exponent
        assert Fraction(report.lower) * unit <= exact <= Fraction(report.upper) * unit
        assert report.sign == (1 if exact > 0 else -1) and report.lower * report.upper > 0.0

    real = [reference.hilbert(13), reference.kahan(15), -np.eye(3), rng.standard_normal((7, 7)).astype(np.float32)]
    judge.assert_each(check, [*complex_matrices(rng), *real])
    a = rng.standard_normal((2, 3, 3)) + 1j
    values = prismm.linalg.det(torch.from_numpy(a).mT.conj())
    assert torch.is_tensor(values) and values.tolist() == pytest.approx(np.linalg.det(a).conj().tolist())
    with pytest.raises(NotCertified, match="singular"):
        prismm.linalg.det(torch.zeros(2, 2))
    with pytest.raises(ArgumentError, match="is nan"):
        prismm.linalg.det(torch.full((2, 2), torch.nan))


def test_exponentials_and_long_products(rng):
    """Discs hold what python-flint finds in 2000 bits; of no factors the product is 1."""
    flint.ctx.prec = 2000

    def number(real, imag):
        return flint.acb(*(flint.arb(flint.fmpq(x.numerator, x.denominator)) for x in (real, imag)))

    for _ in range(20):
        t = [Fraction(float(x) * 2.0**-9) for x in rng.uniform(-1, 1, 2)]
        slack = Fraction(2) ** -int(rng.integers(56, 300))
        disc = exponential(*t, slack)
        way = float(rng.uniform(0, 7))
        d = [Fraction(x) * slack * Fraction(1 - 2.0**-50) for x in (math.cos(way), math.sin(way))]
        off = number(
            *t,
        ) + number(*d)
        assert abs(off.exp() - number(disc.real, disc.imag)) <= flint.arb(
            flint.fmpq(disc.radius.numerator, disc.radius.denominator)
        )
        assert disc.radius <= slack * 2 + Fraction(1, 2**150)
    product, exact = LongProduct(), flint.acb(1)
    assert product.reciprocal()[0].radius == 0
    for _ in range(300):
        z = complex(*(rng.standard_normal(2) * 2.0 ** rng.integers(-500, 500, 2)))
        product.multiply(z)
        exact *= number(*gaussian(z))
    disc, e = product.reciprocal()
    off = 1 / exact / flint.arb(2) ** e - number(disc.real, disc.imag)
    assert abs(off) <= flint.arb(flint.fmpq(disc.radius.numerator, disc.radius.denominator))
    assert disc.radius <= disc.size * Fraction(2) ** -490
    product.multiply(0j)
    assert product.zero


def test_overflow_keeps_the_enclosure():
    value, report = prismm.linalg.det(np.diag([-1e200, 1e200]), full_output=True)
    assert value == -np.inf and report.sign == -1 and report.exponent > 1300
    value, report = prismm.linalg.det(np.diag([-1e200j, 1e200]), full_output=True)
    assert value.imag == -np.inf and report.exponent > 1300 and report.lower.imag <= report.upper.imag < -0.4
    assert prismm.linalg.det(np.zeros((0, 0))) == 1.0 == prismm.linalg.det(np.zeros((0, 0), np.complex64))
    assert prismm.linalg.det(torch.eye(2)) == 1.0


@pytest.mark.slow
def test_batches(rng):
    """Every matrix of a batch has the determinant and the enclosure that it has alone."""
    real = rng.standard_normal((2, 3, 5, 5)) * 2.0 ** rng.integers(-400, 400, (2, 3, 1, 1))
    for a in (real, real + 1j * real[::-1, ::-1]):
        values, report = prismm.linalg.det(a, full_output=True)
        assert values.shape == (2, 3) and values.dtype == a.dtype
        assert (prismm.linalg.det(torch.from_numpy(a)).numpy() == values).all()
        for at in np.ndindex(2, 3):
            value, alone = prismm.linalg.det(a[at], full_output=True)
            assert values[at] == value
            for name, of_one in vars(alone).items():
                assert getattr(report, name)[at] == of_one, name
    assert prismm.linalg.det(np.zeros((0, 2, 2))).shape == (0,)
    with pytest.raises(NotCertified, match="singular"):
        prismm.linalg.det(np.stack([np.eye(2), np.ones((2, 2))]))


@pytest.mark.slow
def test_singular_and_bad_input():
    def check(case):
        error, match, a = case
        with pytest.raises(error, match=match):
            prismm.linalg.det(a)

    judge.assert_each(check, [
        (NotCertified, "singular", np.ones((3, 3))), (NotCertified, "singular", np.zeros((2, 2))),
        (NotCertified, "singular", np.arange(25.0).reshape(5, 5)),
        (NotCertified, "singular", np.ones((3, 3)) * (1 + 1j)), (NotCertified, "not 0", np.zeros((2, 2)) * 1j),
        (NotCertified, "singular", np.array([[1.0, 1j], [1j, -1.0]])), (ShapeError, "square", np.ones((2, 3)) * 1j),
        (ArgumentError, "nan", np.full((2, 2), np.nan * 1j)), (ShapeError, "square", np.ones((2, 3))),
        (ShapeError, "square", np.ones(3)), (ArgumentError, "is nan", np.full((2, 2), np.nan)),
    ])  # fmt: skip
