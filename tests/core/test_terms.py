"""Elements of several float64 terms, against rational arithmetic: long doubles, whole and in batches; and bools."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.core import terms
from prismm.errors import ArgumentError, DTypeError, OperandError
from prismm.testing import HOSTILE
from tests.judge import CORRECT, assert_same_bits

LONG = np.longdouble
needs_long = pytest.mark.skipif(np.dtype(LONG).itemsize == 8, reason="longdouble is float64 here")
BITS = np.finfo(LONG).nmant + 1


def fraction(x: Any) -> Fraction:
    """A finite long double, exactly."""
    significand, exponent = np.frexp(x)
    return Fraction(int(np.ldexp(significand, BITS))) * Fraction(2) ** (int(exponent) - BITS)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """RN(a @ b) in float64, of real matrices."""
    rows = [[fraction(x) for x in row] for row in a]
    columns = [[fraction(x) for x in column] for column in b.T]
    return np.array([[float(sum(map(Fraction.__mul__, row, column))) for column in columns] for row in rows])


def long(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """x with bits below those of float64."""
    return x.astype(LONG) * (1 + rng.integers(-1023, 1024, x.shape).astype(LONG) * LONG(2) ** -(BITS - 1))


@needs_long
@pytest.mark.parametrize("name", ["normal", "phi4", "cancelling", "graded"])
def test_long_doubles_are_rounded_once(name, rng, seed):
    a, b = HOSTILE[name](5, 7, 4, seed) if name in HOSTILE else HOSTILE["phi1"](5, 7, 4, seed)
    a, b = long(a, rng), long(b, rng)
    assert (a != a.astype(float)).any()
    for x, y in ((a, b), (a, b.astype(float)), (a.astype(float), b)):
        expected = exact(x, y)
        c = prismm.matmul(x, y, **CORRECT)
        assert_same_bits(c, expected)
        assert_same_bits(prismm.matmul(x, y, out_dtype="float32", **CORRECT), exact_float32(x, y))
        # Native grade, by the definition of |a||b|.
        room = (7 * 2.0**-53) * (1 + 2.0**-40) * np.abs(x.astype(float)) @ np.abs(y.astype(float))
        assert (np.abs(prismm.matmul(x, y) - expected) <= room + np.abs(expected) * 2.0**-53).all()


def exact_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    from prismm.formats import FP32, round_fraction

    def rounded(x: Fraction) -> float:
        return round_fraction(FP32, x.numerator, -(x.denominator.bit_length() - 1))

    rows, columns = ([[fraction(x) for x in row] for row in m] for m in (a, b.T))
    return np.array(
        [[rounded(sum(map(Fraction.__mul__, r, c), Fraction(0))) for c in columns] for r in rows], np.float32
    )


@needs_long
def test_cancellation_below_float64(rng):
    """What is left are the bits that float64 has not."""
    x = long(rng.standard_normal((3, 8)), rng)
    a = np.concatenate([x, -x.astype(float).astype(LONG)], axis=1)
    b = np.ones((16, 2), LONG)
    assert_same_bits(prismm.matmul(a, b, **CORRECT), exact(a, b))


@needs_long
def test_complex_long_doubles(rng):
    a, b = (long(rng.standard_normal((4, 4)), rng) + 1j * long(rng.standard_normal((4, 4)), rng) for _ in range(2))
    assert a.dtype == np.clongdouble
    c = prismm.matmul(a, b, **CORRECT)
    assert c.dtype == np.complex128
    real = exact(np.hstack([a.real, -a.imag]), np.vstack([b.real, b.imag]))
    imag = exact(np.hstack([a.real, a.imag]), np.vstack([b.imag, b.real]))
    assert_same_bits(c.real, real)
    assert_same_bits(c.imag, imag)


@needs_long
def test_parts_have_one_sign_and_add_up(rng):
    x = np.concatenate([long(rng.standard_normal(1000), rng) * LONG(2) ** rng.integers(-900, 900, 1000),
                        [LONG(2) ** 1024 * (1 - LONG(2) ** -BITS), 0, np.inf, -np.inf, np.nan]])  # fmt: skip
    parts = terms.long_parts(x)
    finite = np.isfinite(x)
    for value, *pieces in zip(x[finite], *(part[finite] for part in parts), strict=True):
        assert fraction(value) == sum(map(Fraction, pieces))
        assert sum(map(abs, pieces), start=LONG(0)) == abs(value)
    assert np.array_equal(parts[0][~finite], x[~finite].astype(float), equal_nan=True)
    assert all((part[~finite] == 0).all() for part in parts[1:])
    assert len(terms.long_parts(np.ones(3, LONG))) == 1


@needs_long
def test_long_doubles_beyond_float64_are_refused():
    for value in (LONG(2) ** 1031, LONG(2) ** -1080, (1 + LONG(2) ** -63) * LONG(2) ** -1020):
        with pytest.raises(DTypeError, match=r"no 3 float64 add up to.*power of two"):
            prismm.matmul(np.full((2, 2), value), np.eye(2))


@needs_long
def test_special_values_meet_the_first_part(rng):
    a = long(rng.standard_normal((2, 3)), rng)
    for special in (np.inf, -np.inf, np.nan):
        b = np.ones((3, 2), LONG)
        b[1, 0] = special
        with np.errstate(all="ignore"):
            expected = (a @ b).astype(float)
        c = prismm.matmul(a, b, **CORRECT)
        assert np.array_equal(c[:, 0], expected[:, 0], equal_nan=True) and np.isfinite(c[:, 1]).all()


@needs_long
def test_bits_of_a_batch_do_not_tell_what_the_others_hold(rng):
    a, b = rng.standard_normal((3, 4, 5)).astype(LONG), rng.standard_normal((3, 5, 2)).astype(LONG)
    a[1] = long(a[1], rng)
    for keywords in ({}, CORRECT, {"reproducible": True}):
        c = prismm.matmul(a, b, **keywords)
        for i in range(3):
            assert_same_bits(c[i], prismm.matmul(a[i], b[i], **keywords))
    assert not terms.alike(a) and terms.alike(b) and terms.alike(a[1:2])


@needs_long
def test_what_rounds_or_keeps_parts_refuses_long_doubles(rng):
    x = long(np.ones((3, 3)), rng)
    with pytest.raises(DTypeError, match="long doubles that are no float64"):
        prismm.prepare(x)
    with pytest.raises(OperandError, match="prepared operand meets"):
        prismm.matmul(x, prismm.prepare(np.eye(3)))
    with pytest.raises(DTypeError, match="c holds numbers of type"):
        prismm.gemm(np.eye(3), np.eye(3), x, beta=1.0)
    with pytest.raises(ArgumentError, match="long doubles"):
        prismm.matmul(x, x, scheme="native", accuracy="native")
    # Those that are float64 are taken as such.
    y = np.eye(3, dtype=LONG)
    assert_same_bits(prismm.matmul(np.eye(3), prismm.prepare(y)), np.eye(3))
    assert_same_bits(prismm.gemm(y, y, y, beta=1.0), 2 * np.eye(3))
    assert prismm.matmul(y, y.astype(np.float32)).dtype == np.float64


def test_bools_alone_give_the_logical_or(rng):
    a, b = rng.random((40, 60)) < 0.03, rng.random((60, 30)) < 0.03
    expected = (a.astype(int) @ b.astype(int)) > 0
    assert expected.any() and not expected.all()
    calls = [{}, CORRECT, {"reproducible": True}, {"accuracy": "fast"}, {"accuracy": 0.9}, {"scheme": "words:bf16x1"},
             {"scheme": "residues:15"}, {"scheme": "tile-int8"}, {"scheme": "scaled-half"}]  # fmt: skip
    for keywords in calls:
        assert_same_bits(prismm.matmul(a, b, **keywords), expected, str(keywords))
    assert_same_bits(prismm.matmul(a, prismm.prepare(b)), expected)
    assert_same_bits(prismm.matmul(np.stack([a, ~a]), b)[0], expected)
    for out in (np.empty((40, 30), bool), np.empty((40, 30))):
        assert prismm.matmul(a, b, out) is out and np.array_equal(out, expected)
    product, report = prismm.matmul(a, b, full_output=True)
    assert_same_bits(product, expected)
    assert report.bounds.shape == (40, 30) and report.bounds.max() < 1e-12
    with pytest.raises(OperandError, match="bools was prepared with accuracy='fast'"):
        prismm.matmul(a, prismm.prepare(b, accuracy="fast"))


def test_bools_count_as_integers_otherwise(rng):
    a, b = rng.random((4, 6)) < 0.5, rng.random((6, 3)) < 0.5
    counts = a.astype(float) @ b
    assert_same_bits(prismm.matmul(a, b, out_dtype="float64"), counts)
    assert_same_bits(prismm.matmul(a, prismm.prepare(b, out_dtype="float64")), counts)
    assert_same_bits(prismm.matmul(a, b.astype(np.int8)), counts)
    assert_same_bits(prismm.matmul(a, b.astype(np.float32)), counts.astype(np.float32))
    assert_same_bits(prismm.matmul(a, b * 1j), counts * 1j)
    assert_same_bits(prismm.gemm(a, b), counts)
    assert_same_bits(prismm.gemm(a, b, counts > 1, beta=1.0), counts + (counts > 1))
    torch = pytest.importorskip("torch")
    c = prismm.matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert c.dtype == torch.bool and np.array_equal(c.numpy(), counts > 0)
