"""Markidis, EGEMM-TC and QuanTensor: against exact twins, within their bounds, and beside published errors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.core.composite import Composite, Joined, Scaled, Setting
from prismm.errors import ArgumentError
from prismm.formats import FP16, FP32, FP64
from prismm.metrics import relative_frobenius
from prismm.schemes.baselines import QuanTensor, egemm, markidis
from prismm.schemes.multiword import Words
from prismm.testing import HOSTILE, exact_product
from tests.judge import assert_same_bits
from tests.schemes.test_tile_int8 import bounds, scaled
from tests.schemes.tile_twin import f32


def multiply(scheme: QuanTensor, a: Scaled, b: Scaled, workers: int = 2) -> Joined:
    setting = Setting(FP32, workers, 1 << 30, scheme.implementation("cpu").engine_for(None))
    return scheme.implementation("cpu").multiply(
        scheme.implementation("cpu").split(a, setting), scheme.implementation("cpu").split(b, setting), setting
    )


def quantised(row: np.ndarray, words: int) -> tuple[list[list[int]], list[Fraction]]:
    """Integers and scales of one vector; fractions, rounded where the definition says so."""
    rest = [Fraction(float(x)) for x in row]
    integers, scales = [], []
    for _ in range(words):
        largest = float(max((abs(x) for x in rest), default=Fraction(0)))
        scale = Fraction(float(np.float32(float(Fraction(largest) / 127))))
        digits = [max(-127, min(127, round(Fraction(float(x / scale))))) if scale else 0 for x in rest]
        rest = [Fraction(float(x - scale * d)) for x, d in zip(rest, digits, strict=True)]
        integers.append(digits)
        scales.append(scale)
    return integers, scales


def twin(a: Scaled, b: Scaled, scheme: QuanTensor) -> np.ndarray:
    rows = [quantised(row, scheme.words) for row in a.data]
    columns = [quantised(column, scheme.words) for column in b.data.T]
    value = np.zeros((len(rows), len(columns)))
    for i, (x, scale_x) in enumerate(rows):
        for j, (y, scale_y) in enumerate(columns):
            c = Fraction(0)
            for p, q in scheme.pairs:
                total = f32(Fraction(sum(u * w for u, w in zip(x[p], y[q], strict=True))))
                c = f32(c + f32(f32(scale_x[p] * scale_y[q]) * total))
            value[i, j] = float(c)
    return value


@pytest.mark.covering("name")
@pytest.mark.parametrize(
    "scheme", [QuanTensor(), QuanTensor(2, products=3), QuanTensor(1), QuanTensor(4, 10)], ids=repr
)
@pytest.mark.parametrize("name", HOSTILE)
def test_quantensor_is_its_twin_and_within_its_bound(name, scheme, seed):
    dtype = np.float32 if seed % 2 else np.float64
    a, b = HOSTILE[name](6, 23, 5, seed, dtype=dtype)
    left, right = scaled(a, "left"), scaled(b, "right")
    joined = multiply(scheme, left, right)
    assert_same_bits(joined.high, twin(left, right, scheme), f"{name} {scheme}")
    assert joined.products == len(scheme.pairs)
    assert exact_product(left.data, right.data).within(joined.high, bounds(joined, left, right)).all()


def test_quantensor_does_not_depend_on_blocks_or_workers(rng, monkeypatch):
    from prismm.cpu.baselines import implementation as module

    a, b = rng.standard_normal((37, 50)), rng.standard_normal((50, 9))
    left, right = scaled(a, "left"), scaled(b, "right")
    whole = multiply(QuanTensor(), left, right).high
    monkeypatch.setattr(module, "_PANEL", 5)
    assert_same_bits(multiply(QuanTensor(), left, right, workers=1).high, whole)


def test_quantensor_adds_long_sums_in_pieces(rng, monkeypatch):
    from prismm.cpu.baselines import implementation as module

    monkeypatch.setattr(module, "INT32_TERMS", 16)
    a, b = rng.standard_normal((4, 50)), rng.standard_normal((50, 3))
    left, right = scaled(a, "left"), scaled(b, "right")
    joined = multiply(QuanTensor(), left, right)
    exact = exact_product(left.data, right.data)
    assert exact.within(joined.high, bounds(joined, left, right)).all()
    assert relative_frobenius(joined.high, exact) < 1e-6
    monkeypatch.undo()
    assert 131072 * 127**2 < 2**31 == module.INT32_TERMS * 2**14


@pytest.mark.parametrize("name", ["uniform", "normal", "phi2"])
def test_each_word_divides_the_residual_by_254(name, seed):
    """RN leaves half a scale, 1/254 of the largest before: after p words max|r| <= 254^-p, and the norm √k of that."""
    k = 300
    a, _ = HOSTILE[name](20, k, 3, seed, dtype=np.float32)
    left = scaled(a, "left")
    for words in range(1, 5):
        scheme = QuanTensor(words)
        found = scheme.implementation("cpu").split(
            left, Setting(FP32, 1, 1 << 30, scheme.implementation("cpu").engine_for(None))
        )
        assert (found.residual <= np.sqrt(k) * 254.0**-words * (1 + 2.0**-10)).all()


@pytest.mark.parametrize("draw", ["random", "standard_normal"])
def test_more_words_are_more_accurate(draw, rng):
    """An order only. Errors depend on data and k by factors of 200, and published ones do not say on what they rest."""
    a, b = (getattr(rng, draw)(shape).astype(np.float32) for shape in ((64, 512), (512, 64)))
    exact = exact_product(a, b)

    def error(scheme: object) -> float:
        return relative_frobenius(prismm.matmul(a, b, scheme=scheme), exact)

    assert error(QuanTensor(3)) < error(QuanTensor(2)) < error(QuanTensor(1))
    # Truncation loses up to twice as much, always on the same side; the sums' own errors are left out here.
    low, high = (
        error(Words(FP16, 2, 4, rounding=rounding, accumulate=FP64)) for rounding in ("nearest", "toward-zero")
    )
    assert low < high


def test_words_of_the_older_methods():
    assert markidis() != egemm() and markidis().rounding == "toward-zero" and egemm().rounding == "nearest"
    for method in (markidis, egemm):
        assert method().products == 4 and method(3).products == 3
        assert method().chunk >= 1 << 30
        with pytest.raises(ArgumentError):
            method(5)


@pytest.mark.parametrize("scheme", [QuanTensor(), markidis(), egemm()], ids=repr)
def test_baselines_serve_matmul(scheme, rng):
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 10))
    assert isinstance(scheme.implementation("cpu"), Composite)
    for dtype in (np.float32, np.complex64):
        x, y = a.astype(dtype), b.astype(dtype)
        c, report = prismm.matmul(x, y, scheme=scheme, full_output=True)
        assert exact_product(x, y).within(c, report.bounds).all()
        right = prismm.matmul(x, y, scheme=scheme, accuracy="correctly-rounded")
        assert_same_bits(right, exact_product(x, y).rounded(dtype))


def test_what_a_user_may_ask_for():
    for wrong in ({"words": 0}, {"words": 5}, {"words": 2.0}, {"products": 7}, {"words": 2, "products": 2}):
        with pytest.raises(ArgumentError, match="pass"):
            QuanTensor(**wrong)
    assert QuanTensor() == QuanTensor(3, 9) and QuanTensor().reproducible
    with pytest.raises(ArgumentError, match="engine='cpu'"):
        QuanTensor().implementation("cpu").engine_for("cpu:int8")
    with pytest.raises(ArgumentError):
        QuanTensor().check(1 << 31, FP32)
