"""`TileInt8` under the public face: every target, type and hostile operand, epilogues, batches, prepared operands."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import prismm
from prismm.cpu.tile_int8 import split as tile_operand
from prismm.reproduce import tile_model
from prismm.schemes import baselines, tile_int8
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded, exact_gemm, exact_product
from tests.judge import (
    assert_bounds_hold,
    assert_meets,
    assert_same_bits,
    each_dtype,
    entry_terms,
    magnitudes,
)

TileInt8 = prismm.TileInt8
TARGETS = ("native", 1e-3, 1e-6, "correctly-rounded")


@pytest.mark.covering("name", ("scheme", "dtype"))
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", [TileInt8(), TileInt8(1), TileInt8(exponent="pair", scaling="none")], ids=str)
def test_every_target_on_hostile_operands(name, dtype, scheme, seed):
    a, b = HOSTILE[name](21, 40, 11, seed, dtype=dtype)
    exact, size = exact_product(a, b), magnitudes(a, b)
    for target in TARGETS:
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
        assert_meets(target, exact, size, c, entry_terms(a, c), f"{target}")
        assert_bounds_hold(exact, c, report, f"{target}")
    c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
    assert_bounds_hold(exact, c, report)


@each_dtype
def test_types_and_gemm(dtype, rng):
    def draw(*shape: int) -> np.ndarray:
        x = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.startswith("c") else 0)
        return x.astype(dtype)

    a, b, c = draw(19, 45), draw(45, 10), draw(19, 10)
    alpha, beta = (0.5 - 2j, 1.5j) if dtype.startswith("c") else (-0.7, 1.3)
    exact = exact_product(a, b)
    for target in TARGETS:
        value = prismm.matmul(a, b, scheme=TileInt8(), accuracy=target)
        assert_meets(target, exact, magnitudes(a, b), value, entry_terms(a, value), f"{dtype} {target}")
        assert value.dtype == dtype
    sum_exact = exact_gemm(alpha, a, b, beta, c)
    right, report = prismm.gemm(
        a, b, c, alpha=alpha, beta=beta, scheme=TileInt8(), accuracy="correctly-rounded", full_output=True
    )
    assert_same_bits(right, sum_exact.rounded(dtype))
    raw, report = prismm.gemm(a, b, c, alpha=alpha, beta=beta, scheme=TileInt8(), full_output=True)
    assert_bounds_hold(sum_exact, raw, report)
    transposed = prismm.gemm(b, a, trans_a="T", trans_b="T", scheme=TileInt8(), accuracy="correctly-rounded")
    assert_same_bits(transposed, exact_product(b.T, a.T).rounded(dtype))


def test_float32_is_certified_without_repair(rng):
    """At level IV, ordinary float32 data need no repair for the native bound."""
    for draw in (rng.random, rng.standard_normal):
        a, b = draw((64, 256)).astype(np.float32), draw((256, 40)).astype(np.float32)
        _, report = prismm.matmul(a, b, scheme=TileInt8(), accuracy="native", full_output=True)
        assert report.paths == {"certified": 64 * 40}


def test_prepared_batched_and_strided_operands_give_the_same_bits(rng):
    """A batch that shares its right operand is one tall matrix: whole tiles of each keep the bits of each."""
    a, b = rng.standard_normal((3, 32, 70)), rng.standard_normal((70, 25))
    scheme = TileInt8()
    whole = prismm.matmul(a, b, scheme=scheme)
    for i in range(3):
        assert_same_bits(prismm.matmul(a[i], b, scheme=scheme), whole[i])
    assert_same_bits(prismm.matmul(a, np.asfortranarray(b), scheme=scheme, threads=1), whole)
    left = prismm.prepare(a[0], side="left", scheme=scheme)
    right = prismm.prepare(b, side="right", scheme=scheme)
    assert_same_bits(prismm.matmul(a[0], right), whole[0])
    assert_same_bits(prismm.matmul(left, right), whole[0])
    pair = TileInt8(exponent="pair")
    assert_same_bits(
        prismm.matmul(a[0], prismm.prepare(b, side="right", scheme=pair)), prismm.matmul(a[0], b, scheme=pair)
    )


def test_powers_of_two_pass_through(rng):
    a, b = rng.standard_normal((20, 40)) ** 3, rng.standard_normal((40, 12)) ** 3
    d, e = rng.integers(-300, 300, (20, 1)), rng.integers(-300, 300, (1, 12))
    for scheme in (TileInt8(), TileInt8(2, exponent="pair"), TileInt8(5, tile=(4, 8, 4))):
        c = prismm.matmul(a, b, scheme=scheme)
        assert_same_bits(prismm.matmul(np.ldexp(a, d), np.ldexp(b, e), scheme=scheme), np.ldexp(c, d + e))


@pytest.mark.parametrize("name", SPECIAL)
def test_specials(name, seed):
    a, b = SPECIAL[name](9, 20, 7, seed, dtype=np.float32)
    c = prismm.matmul(a, b, scheme=TileInt8(), accuracy="correctly-rounded")
    assert_same_bits(c, correctly_rounded(a, b))


def test_reports_tell_of_fallback_tiles(rng):
    a, b = rng.uniform(0.5, 1.0, (32, 64)), rng.uniform(0.5, 1.0, (64, 16))
    a[:, 5] *= 2.0**-60
    _, report = prismm.matmul(a, b, scheme=TileInt8(), full_output=True)
    assert report.notes == {"fallback tiles": 2 * 2} and report.products == 11
    assert ", fallback tiles 4, " in str(report)
    _, report = prismm.matmul(a, b, scheme=TileInt8(fallback=False), full_output=True)
    assert report.notes == {} and report.products == 8
    assert "fallback tiles" not in str(report)


def test_plans_name_the_scheme(rng):
    plan = prismm.explain(rng.random((64, 64)), rng.random((64, 64)), scheme=TileInt8(2))
    assert plan.products == 6 and "TileInt8(level=2)" in str(plan)


@pytest.mark.parametrize("scheme", [TileInt8(), TileInt8(2, (8, 16, 4), "pair", False, "none")])
def test_representation(scheme):
    assert eval(repr(scheme), {"TileInt8": TileInt8}) == scheme


@pytest.mark.parametrize("module", [baselines, tile_int8, tile_model, tile_operand])
def test_examples(module):
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and found.failed == 0
