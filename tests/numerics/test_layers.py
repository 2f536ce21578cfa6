"""Layers of answers: those far from the ends of the range show nothing of what the ends do."""

import dataclasses

import pytest

from prismm.formats import E4M3, FP16, FP32
from prismm.numerics import engine, simulate, vectors
from prismm.numerics.layers import CARRY, EDGE, PLAIN, layers
from prismm.numerics.model import EngineModel
from prismm.numerics.observations import Observations, same


def alike(x, y):
    """The same values, of whatever sign if they are zero."""
    return same(x + 0.0, y + 0.0)


ENDS = (
    {"zero_exponent": -140},
    {"subnormal_inputs": "flush"},
    {"subnormal_accumulators": "flush-to-positive"},
    {"subnormal_products": "flush"},
    {"subnormal_outputs": "flush"},
    {"overflow": "saturate"},
    {"product_overflow": "infinity"},
    {"zeros": "unsigned"},
    {"zeros": "ieee"},
)


@pytest.mark.parametrize("inputs", [FP16, E4M3])
@pytest.mark.parametrize("output", [FP16, FP32])
@pytest.mark.parametrize("kind", vectors.CLASSES)
def test_plain_answers_do_not_show_the_ends(inputs, output, kind, rng):
    model = EngineModel("", inputs, output, block=4, fraction_bits=24, zero_exponent=-126 - 20, rounding="zero")
    for k in (1, 4, 9):
        a, b, c = vectors.draw(vectors.Aim(inputs, output, plain=True), kind, k, 200, rng)
        at = layers(a, b, c, inputs, output) == PLAIN
        a, b, c = a[at], b[at], c[at]
        d = simulate.dot_unchecked(model, a, b, c)
        for change in ENDS:
            assert alike(simulate.dot_unchecked(dataclasses.replace(model, **change), a, b, c), d).all(), change


@pytest.mark.parametrize("kind", vectors.CLASSES)
def test_plain_answers_need_no_carry_bits_in_one_block(kind, rng):
    model = EngineModel("", FP16, FP32, block=16, fraction_bits=24, rounding="zero")
    a, b, c = vectors.draw(vectors.Aim(FP16, FP32, plain=True), kind, 16, 300, rng)
    at = layers(a, b, c, FP16, FP32) == PLAIN
    a, b, c = a[at], b[at], c[at]
    narrow = dataclasses.replace(model, carry_bits=0)
    assert same(simulate.dot_unchecked(narrow, a, b, c), simulate.dot_unchecked(model, a, b, c)).all()


def test_layers_of_observations(rng):
    model = engine("t4.fp16.fp32")
    seen = Observations(FP16, FP32)
    a, b, c = vectors.draw(vectors.Aim(FP16, FP32), "random", 4, 300, rng)
    d = simulate.dot_unchecked(model, a, b, c)
    seen.add(a, b, c, d)
    sizes = [len(seen.layer(layer)) for layer in (PLAIN, CARRY, EDGE)]
    assert 0 < sizes[0] < sizes[1] < sizes[2] == 300
    volta = engine("v100.fp16.fp32")
    wrong = int((~same(simulate.dot_unchecked(volta, a, b, c), d)).sum())
    some = seen.all().sample(40, rng, against=volta)
    assert len(some) == 40
    assert round(some.mismatches(volta) * 40) >= min(wrong, 20) > 0
