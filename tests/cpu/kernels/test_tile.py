"""Segments of tiles and words of the fallback: every FP16 and BF16 value, random wider ones, and the joins."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from prismm.cpu.kernels.half_tile import half_products, half_words
from prismm.cpu.kernels.tile import EMPTY, LOWEST, join_segments, pack_segments, tile_exponents, vector_energies
from prismm.formats import FP16
from tests.cpu.kernels.harness import exact_power, rn
from tests.schemes.tile_twin import excess, segments, tile_exponent
from tests.schemes.tile_twin import half_words as slow_words

COUNTS = (2, 3, 4)


def every_finite(kind: str) -> np.ndarray:
    """All finite values of a 16-bit format, as float64."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bits.view(np.float16) if kind == "fp16" else (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = values.astype(np.float64)
    return values[np.isfinite(values)]


def pack(x: np.ndarray, exponents: np.ndarray, width: int, count: int, backward: bool = False) -> tuple:
    v, steps = exponents.shape
    out = (
        np.full((steps, v, count * width), -128, np.int8), np.empty((v, steps)), np.empty((v, steps), np.int64),
        np.empty((v, steps)), np.empty((v, steps)),
    )  # fmt: skip
    pack_segments(x, exponents, width, width.bit_length() - 1, count, backward, 0, v, *out)
    return out


def exponents_of(x: np.ndarray, undo: np.ndarray, vectors: int, width: int, bits: int) -> tuple:
    tiles, steps = -(-x.shape[0] // vectors), -(-x.shape[1] // width)
    found, least = np.empty((tiles, steps), np.int64), np.empty((tiles, steps), np.int64)
    tile_exponents(x, undo, vectors, width, bits, 0, tiles, found, least)
    return found, least


def whole(digits: np.ndarray) -> np.ndarray:
    """The integers of segments (…, count), exactly."""
    weights = 128 ** np.arange(digits.shape[-1])[::-1]
    return digits.astype(np.int64) @ weights


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["fp16", "bf16", "float32", "float64"])
def test_segments_of_scalars(kind, count, rng):
    """Each value its own tile: size of the parts, sum of parts, sign, idempotence."""
    if kind in ("fp16", "bf16"):
        x = every_finite(kind)
        x = x[np.abs(x) < 2.0**16] * 2.0**-16
    else:
        x = rng.uniform(0.5, 1.0, 5000) * rng.choice([-1, 1], 5000) * 2.0 ** -rng.integers(0, 400, 5000)
        x = x.astype(np.float32).astype(np.float64) if kind == "float32" else x
        edge = 1.0 - 2.0 ** -np.arange(1.0, 54.0)
        x = np.concatenate([x, edge, -edge, edge / 2 + 2.0**-53, 0.5 + 2.0 ** -np.arange(2.0, 53.0)])
    bits = 7 * count - 1
    column = np.ascontiguousarray(x[:, None])
    p, least = exponents_of(column, np.zeros(x.size, np.int64), 1, 1, bits)
    zero = x == 0
    assert (p[zero] == EMPTY).all() and (least[zero] == 1).all()
    digits, weight, over, residual2, last2 = pack(column, p, 1, count)
    digits = digits[0]
    assert np.abs(digits.astype(int)).max() <= 127
    assert (digits * np.sign(x)[:, None] >= 0).all()
    integers = whole(digits)
    assert ((np.abs(integers) >= 1 << bits) | zero).all(), "the leading one is kept"
    shown = np.where(zero, 0, p[:, 0])
    values = np.ldexp(integers.astype(float), shown - bits)
    assert (np.abs(values - x) <= np.ldexp(1.0, shown - bits - 1)).all()
    expected = np.rint(np.ldexp(x, bits - shown))
    np.testing.assert_array_equal(integers, expected)
    np.testing.assert_array_equal(weight[:, 0], np.where(zero, 0.0, np.ldexp(1.0, shown - 6)))
    carried = np.abs(values) >= 2 * np.ldexp(1.0, np.frexp(x)[1] - 1)
    np.testing.assert_array_equal(over[:, 0], carried & ~zero)
    np.testing.assert_array_equal(residual2[:, 0], np.square(values - x))
    np.testing.assert_array_equal(last2[:, 0], np.square(np.ldexp(digits[:, -1].astype(float), shown - bits)))
    if kind in ("fp16", "bf16") and count > 2:
        np.testing.assert_array_equal(values, x)  # 11 and 8 bits fit in 21
    again = np.ascontiguousarray(values[:, None])
    p2, _ = exponents_of(again, np.zeros(x.size, np.int64), 1, 1, bits)
    np.testing.assert_array_equal(p2, p)
    np.testing.assert_array_equal(pack(again, p2, 1, count)[0][0], digits)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("vectors", "width", "k"), [(3, 4, 10), (1, 8, 8), (7, 3, 5), (2, 32, 33)])
def test_tiles_follow_the_definition(vectors, width, k, backward, rng):
    for count in COUNTS:
        bits = 7 * count - 1
        x = rng.uniform(-1, 1, (7, k)) * 2.0 ** -rng.integers(0, 40, (7, k))
        x[2] = 0.0
        x[3, ::2] = 0.0
        x[4] *= 2.0**-1000
        x[5, 0] = 1.0 - 2.0**-53
        undo = rng.integers(-30, 30, 7) * rng.integers(0, 2)
        p, _ = exponents_of(x, undo, vectors, width, bits)
        own = np.repeat(p, vectors, axis=0)[:7] - undo[:, None]
        digits, weight, over, residual2, last2 = pack(x, own, width, count, backward)
        exact = [[Fraction(float(v)) for v in row] for row in x]
        for step in range(p.shape[1]):
            h = slice(step * width, (step + 1) * width)
            for tile in range(p.shape[0]):
                rows = range(tile * vectors, min(7, (tile + 1) * vectors))
                expected = tile_exponent([exact[i][h] for i in rows], [int(undo[i]) for i in rows], bits)
                assert p[tile, step] == (EMPTY if expected is None else expected)
                for i in rows:
                    if expected is None:
                        assert not digits[step, i].any() and weight[i, step] == 0
                        continue
                    g = expected - int(undo[i])
                    parts = [segments(v, g, count) for v in exact[i][h]]
                    parts += [[0] * count] * (width - len(parts))
                    order = reversed(range(count)) if backward else range(count)
                    assert digits[step, i].tolist() == [parts[e][q] for q in order for e in range(width)]
                    assert over[i, step] == excess(exact[i][h], g, width)
                    assert weight[i, step] == (2.0 ** (g - 6) if any(map(any, parts)) else 0.0)
                    lost = [
                        v - sum(d * 128 ** (count - 1 - q) for q, d in enumerate(s)) * exact_power(g - bits)
                        for v, s in zip(exact[i][h], parts, strict=False)
                    ]
                    assert_close_above(residual2[i, step], lost)
                    assert_close_above(last2[i, step], [s[-1] * exact_power(g - bits) for s in parts])


def assert_close_above(got: float, terms: list[Fraction]) -> None:
    """Σ of squares to a few roundings; terms whose squares underflow count as 2^-1022, never as nothing."""
    expected = sum(max(t * t, exact_power(-1022)) for t in terms if t)
    assert abs(Fraction(float(got)) - expected) <= expected * exact_power(-48)
    assert (got == 0) == (not any(terms))


def test_what_underflows_when_squared_is_not_lost():
    x = np.array([[2.0**-700, 2.0**-1074, 0.0], [0.0, 0.0, 0.0]])
    out = np.empty(2)
    vector_energies(x, 0, 2, out)
    assert out.tolist() == [2.0**-1021, 0.0]


def test_exponents_are_clamped_at_both_ends():
    x = np.array([[2.0**-1000, 3 * 2.0**-992, 0.0]])
    p, least = exponents_of(x, np.zeros(1, np.int64), 1, 3, 20)
    assert p[0, 0] == LOWEST and least[0, 0] == LOWEST
    digits, weight, *_ = pack(x, p, 3, 3)
    assert whole(digits[0].reshape(3, 3).T).tolist() == [2**10, 3 * 2**18, 0]
    assert weight[0, 0] == 2.0 ** (LOWEST - 6)
    digits, weight, _, residual2, _ = pack(np.array([[0.75]]), np.array([[1500]]), 1, 3)
    assert not digits.any() and weight[0, 0] == 0 and residual2[0, 0] == 0.75**2


@pytest.mark.parametrize("weights", [3, 4, 7])
def test_join_rounds_each_operation(weights, rng):
    """Extreme integers and weights down to float32's subnormals, against fractions."""
    from tests.schemes.tile_twin import f32

    m, n = 5, 6
    sums = rng.integers(-(2**24) + 1, 2**24, (weights, m, n)).astype(np.float32)
    sums[0, :, 0] = 0
    acc = rng.standard_normal((m, n)).astype(np.float32)
    acc[:, :2] = 0
    row = 2.0 ** rng.integers(-80, 3, m)
    row[1] = 0.0
    column = 2.0 ** rng.integers(-80, 3, (2, n))
    column[0, 3] = 0.0
    got = acc.copy()
    join_segments(sums, row, column, 3, got)
    for i in range(m):
        for j in range(n):
            t = Fraction(float(sums[-1, i, j]))
            for s in range(weights - 2, -1, -1):
                t = f32(t / 128 + Fraction(float(sums[s, i, j])))
            scale = Fraction(float(row[i])) * Fraction(float(column[i // 3, j]))
            assert Fraction(float(got[i, j])) == f32(Fraction(float(acc[i, j])) + f32(t * scale))


def test_half_words_of_every_fp16_value():
    """Beside 1, each value is rounded as FP16 rounds it after scaling by 2^15; the second word takes the rest."""
    x = every_finite("fp16")
    x = x[np.abs(x) < 1.0]
    pairs = np.stack([np.full(x.size, 0.5), x], axis=1)
    hi, lo = np.empty((x.size, 2), np.float32), np.empty((x.size, 2), np.float32)
    weight, residual2 = np.empty(x.size), np.empty(x.size)
    half_words(pairs, hi, lo, weight, residual2)
    top = np.maximum(np.frexp(np.abs(pairs).max(axis=1))[1] - 1, LOWEST)
    np.testing.assert_array_equal(weight, np.ldexp(1.0, top - 14))
    np.testing.assert_array_equal((hi[:, 1] + lo[:, 1] / 4096.0) * weight, x)
    np.testing.assert_array_equal(hi[:, 1], (x / weight).astype(np.float16))


def test_half_words_of_wider_values(rng):
    x = rng.uniform(-1, 1, (300, 5)) * 2.0 ** -rng.integers(0, 60, (300, 5))
    x[::7, 1] = 0.0
    x[5] = 0.0
    x[6] = [2.0**-1000, 2.0**-1074, 0, 0, 2.0**-991]
    hi, lo = np.full((300, 8), 9, np.float32), np.full((300, 8), 9, np.float32)
    weight, residual2 = np.empty(300), np.empty(300)
    half_words(x, hi, lo, weight, residual2)
    assert not hi[:, 5:].any() and not lo[:, 5:].any()
    for i, row in enumerate(x):
        exact = [Fraction(float(v)) for v in row]
        high, low, e = slow_words(exact)
        assert hi[i, :5].tolist() == high and lo[i, :5].tolist() == low
        assert weight[i] == (2.0**e if row.any() else 0.0)
        rest = [
            abs(v - (h + w / 4096) * exact_power(e)) + exact_power(e - 28) if v else Fraction(0)
            for v, h, w in zip(exact, high, low, strict=True)
        ]
        assert_close_above(residual2[i], rest)
        assert all(rn(w, FP16) == w for w in high + low)


def test_words_are_those_of_scaled_half(rng):
    """The fallback multiplies as `ScaledHalf(sb=12)` splits, each step of a row for itself."""
    from prismm.core.composite import Scaled, Setting
    from prismm.formats import FP32
    from prismm.schemes.scaled_half import ScaledHalf

    x = rng.uniform(-1, 1, (60, 32)) * 2.0 ** -rng.integers(0, 45, (60, 32))
    x[:, 3] = 1.0 - 2.0 ** -rng.integers(1, 54, 60)
    scheme = ScaledHalf(sb=12)
    expected = scheme.implementation("cpu").split(
        Scaled("left", x, np.zeros(60, np.int64), np.zeros(60, np.bool_)),
        Setting(FP32, 1, 1 << 30, scheme.implementation("cpu").engine_for(None)),
    )
    hi, lo = np.empty((60, 32), np.float32), np.empty((60, 32), np.float32)
    weight, residual2 = np.empty(60), np.empty(60)
    half_words(x, hi, lo, weight, residual2)
    np.testing.assert_array_equal(hi, expected.high)
    np.testing.assert_array_equal(lo, expected.low)
    np.testing.assert_array_equal(weight, np.ldexp(1.0, -expected.shift))


def test_half_products_touch_the_chosen_pairs_only(rng):
    from tests.schemes.tile_twin import f32, half_entry

    x, y = rng.standard_normal((5, 4)) / 8, rng.standard_normal((6, 4)) / 8
    words = []
    for data in (x, y):
        hi, lo = np.empty(data.shape, np.float32), np.empty(data.shape, np.float32)
        weight, residual2 = np.empty(data.shape[0]), np.empty(data.shape[0])
        half_words(data, hi, lo, weight, residual2)
        words += [hi, lo, weight]
    chosen = np.array([[1, 0], [0, 1], [1, 1]], np.uint8)
    start = rng.standard_normal((5, 6)).astype(np.float32)
    acc = start.copy()
    half_products(*words, chosen, 2, 4, acc)
    exact = [[[Fraction(float(v)) for v in row] for row in data] for data in (x, y)]
    for i in range(5):
        for j in range(6):
            expected = Fraction(float(start[i, j]))
            if chosen[i // 2, j // 4]:
                expected = f32(expected + f32(half_entry(exact[0][i], exact[1][j])))
            assert Fraction(float(acc[i, j])) == expected
