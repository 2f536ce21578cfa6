"""Words: splits against fractions, exhaustively for short formats; the value against its twin; published grades."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import prismm
from prismm import Words
from prismm.core.composite import Scaled, Setting
from prismm.errors import ArgumentError
from prismm.formats import BF16, FP16, FP32, FP64, TF32, Format, round_fraction
from prismm.testing import exact_product
from tests.judge import assert_bounds_hold

SETTING = Setting(FP32, 2, 1 << 28, None)
NEAREST, ZERO = "nearest", "toward-zero"


def scaled(x: np.ndarray, side: Any = "left") -> Scaled:
    """x as it stands: magnitudes of at most 1."""
    assert np.abs(x).max(initial=0.0) <= 1.0
    vectors = x.shape[0 if side == "left" else 1]
    return Scaled(side, np.ascontiguousarray(x, np.float64), np.zeros(vectors, np.int64), np.zeros(vectors, np.bool_))


def word(x: Fraction, fmt: Format, rounding: str) -> Fraction:
    """The obvious rounding of a dyadic fraction."""
    how: Any = "nearest" if rounding == NEAREST else "up" if x < 0 else "down"
    return Fraction(round_fraction(fmt, x.numerator, 1 - x.denominator.bit_length(), how))


def twin(x: float, scheme: Words, k: int) -> list[float]:
    """The words of one element, by fractions."""
    rest = Fraction(x) * Fraction(2) ** scheme.scale_exponent(k)
    found = []
    for _ in range(scheme.words):
        found.append(word(rest, scheme.format, scheme.rounding))
        rest -= found[-1]
    return [float(w) for w in found] + [float(rest)]


def check_split(scheme: Words, x: np.ndarray, side: Any) -> None:
    """Words are the twin's; they and the rest add up to x; vectors' summaries bound what they should."""
    parts = scheme.implementation("cpu").split(scaled(x, side), SETTING)
    k = x.shape[1 if side == "left" else 0]
    expected = np.array([twin(float(v), scheme, k) for v in x.ravel()])
    words, rest = expected[:, :-1].T.reshape(scheme.words, *x.shape), expected[:, -1].reshape(x.shape)
    assert np.array_equal(parts.words.astype(np.float64), words)
    size = np.abs(np.ldexp(x.astype(np.float64), scheme.scale_exponent(k)))
    axis = 1 if side == "left" else 0
    u = scheme.format.unit_roundoff * (1 if scheme.rounding == NEAREST else 2)
    for index, part in enumerate([*words, rest]):
        factor = u**index * (1.0 + u if scheme.rounding == NEAREST and index < scheme.words else 1.0)
        excess = np.maximum(np.abs(part) - factor * size, 0.0).max(axis=axis)
        assert (parts.excess[index] >= excess).all() and (parts.excess[index] <= excess * (1 + 2.0**-30)).all()
        assert parts.present[index] == bool(part.any())
    assert (parts.norm1 >= size.sum(axis=axis)).all() and (parts.norm1 <= size.sum(axis=axis) * 1.001).all()


def finite(fmt: Format) -> np.ndarray:
    """Every finite value of a 16-bit format, brought below 1 by a power of two."""
    bits = np.arange(1 << 16, dtype=np.uint32)
    if fmt is FP16:
        values = bits.astype(np.uint16).view(np.float16).astype(np.float64)
    else:
        single = (bits << 16).view(np.float32)
        values = single[np.isfinite(single)].astype(np.float64)
    values = values[np.isfinite(values)]
    return np.ldexp(values, -fmt.maxexp)


@pytest.mark.slow
@pytest.mark.parametrize("source", [FP16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(
    "scheme",
    [Words.tf32(), Words.bf16(6), Words.fp16(), Words(Format(4, 3), 3), Words(FP16, 2, rounding=ZERO)],
    ids=str,
)
def test_every_value_of_a_short_format(source, scheme):
    values = finite(source)
    values = np.concatenate([values, np.zeros(-values.size % 64)]).reshape(-1, 64)
    check_split(scheme, values, "left")
    parts = scheme.implementation("cpu").split(scaled(values), SETTING)
    # Splitting the first words again changes nothing: they are values of the format.
    first = np.ldexp(parts.words[0].astype(np.float64), -scheme.scale_exponent(64))
    again = scheme.implementation("cpu").split(scaled(first), SETTING)
    assert np.array_equal(again.words[0], parts.words[0]) and not again.words[1:].any()


@pytest.mark.covering("fmt")
@pytest.mark.parametrize("rounding", [NEAREST, ZERO])
@pytest.mark.parametrize(
    "fmt", [TF32, BF16, FP16, FP32, Format(2, 1), Format(4, 25), Format(5, 2), Format(8, 15), Format(11, 25)], ids=str
)
def test_random_wider_values(fmt, rounding, rng):
    """Doubles near midpoints, in all binades from 1 to far below the format's smallest value."""
    scheme = Words(fmt, 3, rounding=rounding)
    t = fmt.precision
    odd = 2 * rng.integers(1 << (t - 1), 1 << t, 1500) + 1
    x = np.ldexp(odd.astype(np.float64), -t - 1) * (1.0 + rng.choice([0.0, 2.0**-52, -(2.0**-52), 2.0**-30], 1500))
    lowest = min(1000, scheme.scale_exponent(30) - fmt.subnormal_exponent + 60)
    x = np.minimum(np.abs(x), 1.0) * rng.choice([-1.0, 1.0], 1500) * np.ldexp(1.0, -rng.integers(0, lowest, 1500))
    x[::50] = 0.0
    check_split(scheme, x.reshape(50, 30), "left")
    check_split(scheme, x.reshape(30, 50), "right")


def test_three_bf16_words_lose_nothing(rng):
    """float32 data, wherever the last bit of the scaled element is at least 2^-133."""
    scheme = Words.bf16(6)
    significand = rng.integers(1 << 23, 1 << 24, (100, 64)) * rng.choice([-1, 1], (100, 64))
    shift = scheme.scale_exponent(64)
    x = np.ldexp(significand.astype(np.float64), -24 - rng.integers(0, 133 + shift - 24 + 1, (100, 64)))
    parts = scheme.implementation("cpu").split(scaled(x), SETTING)
    assert np.array_equal(parts.words.astype(np.float64).sum(axis=0), np.ldexp(x, shift))
    assert not parts.present[3] and not parts.excess[3].any()


def value_twin(scheme: Words, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Σ of the kept products, exactly; a, b in scaled units."""
    k = a.shape[1]
    left = [[twin(float(v), scheme, k) for v in row] for row in a]
    right = [[twin(float(v), scheme, k) for v in column] for column in b.T]
    unit = Fraction(2) ** (-2 * scheme.scale_exponent(k))
    out = [
        [
            sum(Fraction(x[i]) * Fraction(y[j]) for x, y in zip(row, column, strict=True) for i, j in scheme.pairs)
            for column in right
        ]
        for row in left
    ]
    return np.array([[float(v * unit) for v in row] for row in out])


@pytest.mark.parametrize("products", [1, 3, 4])
def test_the_value_is_its_twins_where_sums_are_exact(products, rng):
    """Words of four bits: float64 adds their products without error, in any order and chunks."""
    scheme = Words.tf64(products, Format(8, 3), chunk=7)
    a, b = rng.integers(-255, 256, (6, 40)) / 256.0, rng.integers(-255, 256, (40, 5)) / 256.0
    a[:, 0], b[0] = 255 / 256, -253 / 256
    c = prismm.matmul(a, b, scheme=scheme)
    assert np.array_equal(c, value_twin(scheme, a, b))
    if products == 4:
        assert np.array_equal(c, exact_product(a, b).rounded())


def relative(c: np.ndarray, exact: Any) -> float:
    return float(np.linalg.norm(exact.error(c)) / np.linalg.norm(exact.rounded()))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("k", [32, 1024, *(pytest.param(x, marks=pytest.mark.slow) for x in (64, 256, 4096, 16384))])
def test_three_tf32_products_are_no_worse_than_sgemm(kind, k, rng):
    """In the root mean square over a million products or more: at k = 32 two words and SGEMM are three per cent apart,
    and one draw of this size is not enough to tell them apart.
    """
    draw = rng.random if kind == "uniform" else rng.standard_normal
    schemes = {"native": None, "tf32": Words.tf32(3), "bf16": Words.bf16(6), "one": Words.tf32(1)}
    squares = dict.fromkeys(schemes, 0.0)
    for _ in range(max(1, 1024 // k)):
        a, b = draw((96, k)).astype(np.float32), draw((k, 96)).astype(np.float32)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        for name, scheme in schemes.items():
            c = a @ b if scheme is None else prismm.matmul(a, b, scheme=scheme)
            squares[name] += float(np.sum((c - exact) ** 2))
    assert squares["tf32"] <= squares["native"]
    assert squares["bf16"] <= squares["native"]
    assert squares["one"] > 20**2 * squares["native"]


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("k", [512, 2048])
def test_three_tf64_products_are_within_a_factor_two_of_dgemm(kind, k, rng):
    """One whose sums run over k in order, as on a GPU: on a CPU with wide registers BLAS sums in many strands, and
    errs half as much.
    """
    draw = rng.random if kind == "uniform" else rng.standard_normal
    a, b = draw((24, k)), draw((k, 24))
    exact = exact_product(a, b)
    in_order = np.add.accumulate(a[:, :, None] * b[None, :, :], axis=1)[:, -1]
    three, native = relative(prismm.matmul(a, b, scheme=Words.tf64(3)), exact), relative(in_order, exact)
    assert three <= 2.0 * native
    assert relative(prismm.matmul(a, b, scheme=Words.tf64(1)), exact) > 1e5 * native


def test_every_user_format_works_and_more_fraction_bits_help(rng):
    """The open question of Valero-Lara et al.: what fewer exponent and fraction bits give as TF64."""
    a, b = rng.standard_normal((8, 100)), rng.standard_normal((100, 8))
    exact = exact_product(a, b)
    for exponent_bits in range(4, 12):
        errors = []
        for fraction_bits in range(3, 26):
            scheme = Words(Format(exponent_bits, fraction_bits), words=2, products=3, accumulate=FP64)
            c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
            assert_bounds_hold(exact, c, report, str(scheme))
            errors.append(relative(c, exact))
        assert errors[-1] < 1e-6 * errors[0]
        if exponent_bits >= 8:  # nothing underflows: two bits of error for each bit of the format
            slopes = np.diff(np.log2(errors[:20]))
            assert -2.4 < slopes.mean() < -1.6


def test_bounds_know_what_is_exact(rng):
    """Few bits, zero words and zero vectors leave nothing for the split to lose."""
    a = rng.integers(-1000, 1000, (6, 50)).astype(np.float32)
    b = rng.standard_normal((50, 4)).astype(np.float32)
    a[2], b[:, 1] = 0.0, 0.0
    one, two = Words.tf32(1), Words.bf16(9)
    for scheme in (one, two):
        c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
        assert_bounds_hold(exact_product(a, b), c, report)
        assert not report.bounds[2, 1] > 2.0**-149 and not c[2].any() and not c[:, 1].any()
    whole = prismm.matmul(a, np.rint(b * 100), scheme=Words.bf16(9), full_output=True)[1].bounds
    parted = prismm.matmul(a, np.rint(b * 100), scheme=Words(BF16, 1), full_output=True)[1].bounds
    assert whole.max() < 1e-2 * parted.max()


def test_one_product_of_two_words_is_one_word(rng):
    a, b = rng.standard_normal((5, 60)), rng.standard_normal((60, 5))
    for scheme in (Words(TF32, 2, products=1), Words(TF32, 5, products=1)):
        assert np.array_equal(prismm.matmul(a, b, scheme=scheme), prismm.matmul(a, b, scheme=Words.tf32(1)))


@pytest.mark.parametrize(
    ("keywords", "engine"),
    [
        ({"format": FP16}, "simulated:volta"),
        ({"format": FP16, "accumulate": FP16, "chunk": 16}, "simulated:fp16"),
        ({"format": BF16, "words": 3}, "simulated:ampere"),
        ({"format": TF32}, "simulated:rz"),
    ],
    ids=str,
)
def test_simulated_engines(keywords, engine, rng):
    pytest.importorskip("prismm.cpu.engines.simulated")
    scheme = Words(**keywords)
    a, b = rng.standard_normal((7, 90)), rng.random((90, 6))
    exact = exact_product(a, b)
    for target in (None, "native"):
        c, report = prismm.matmul(a, b, scheme=scheme, engine=engine, accuracy=target, full_output=True)
        assert_bounds_hold(exact, c, report, engine)
        assert report.engine == engine
    same = prismm.matmul(a, b, scheme=scheme, engine=engine, threads=1)
    assert np.array_equal(same, prismm.matmul(a, b, scheme=scheme, engine=engine, threads=2))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"format": "tf32"}, ["format='tf32'", "formats.TF32"]),
        ({"format": Format(8, 26)}, ["27 bits", "fraction_bits <= 25"]),
        ({"words": 0}, ["words=0", "from 1"]),
        ({"words": True}, ["words=True"]),
        ({"chunk": 0}, ["chunk=0"]),
        ({"products": 2}, ["products=2", "1, 3, 4"]),
        ({"words": 3, "products": 4}, ["products=4", "1, 3, 6, 8, 9"]),
        ({"rounding": "up"}, ["rounding='up'", "'toward-zero'"]),
        ({"accumulate": BF16}, ["accumulate=bf16", "narrower"]),
        ({"accumulate": "fp32"}, ["accumulate='fp32'"]),
        ({"accumulate": Format(11, 30)}, ["31 bits"]),
        ({"format": Format(11, 10), "accumulate": FP32}, ["11 exponent bits", "formats.FP64"]),
    ],
    ids=str,
)
def test_bad_parameters_are_named(keywords, words):
    with pytest.raises(ArgumentError) as caught:
        Words(**keywords)
    for piece in words:
        assert piece in str(caught.value)


def test_what_cannot_run_says_so():
    x = np.ones((3, 3))
    with pytest.raises(ArgumentError, match="not exact in fp32"):
        prismm.matmul(x, x, scheme=Words(Format(8, 15), accumulate=FP32))
    with pytest.raises(ArgumentError, match="adds in fp32 or fp64"):
        prismm.matmul(x, x, scheme=Words(FP16, accumulate=FP16))
    with pytest.raises(ArgumentError, match=r"accumulate=formats\.FP32"):
        Words(Format(2, 3), 2, accumulate=FP16).check(1 << 20, FP64)
    with pytest.raises(ArgumentError, match="products=5"):
        Words.tf32(5)


def test_names_and_equality():
    assert Words.tf32() == Words() == Words(TF32, 2, 3) and str(Words()) == "Words(tf32, words=2, products=3)"
    assert Words.bf16(3) == Words(BF16, 2) and Words.bf16(9).pairs[-1] == (0, 0)
    assert str(Words.tf64(4, chunk=9)) == "Words(fp32, words=2, products=4, chunk=9)"
    assert str(Words.tf64(3, BF16)) == "Words(bf16, words=2, products=3, accumulate=fp64)"
    assert str(Words(Format(5, 4), rounding=ZERO)) == "Words(Format(5, 4), words=2, products=3, rounding='toward-zero')"
    assert len({Words.tf32(), Words(), Words.tf32(4)}) == 2


def test_scales_leave_room_for_every_sum():
    """No word exceeds the format, no sum of k products the accumulator."""
    for scheme in (Words.tf32(), Words.fp16(), Words.tf64(), Words(FP16, accumulate=FP16), Words(Format(11, 25))):
        for k in (1, 2, 3, 100, 1 << 20):
            t, accumulate = scheme.scale_exponent(k), scheme.accumulate_format
            assert math.ldexp(1.0, t) <= scheme.format.max
            # |w| <= 2^t each, so that even computed sums stay a factor below the largest value.
            assert math.ldexp(float(k), 2 * t) <= accumulate.max / 2


@pytest.mark.parametrize("products", [3.0, np.array(3), np.array([1, 3]), [3], True])
def test_products_that_are_no_integer_are_refused(products):
    with pytest.raises(ArgumentError, match="pass one of 1, 3, 4"):
        Words(products=products)
