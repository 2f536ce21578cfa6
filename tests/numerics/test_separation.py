"""Inputs on which two models differ: found where there are any, as short as they get, and none made up."""

import dataclasses

import numpy as np
import pytest

from prismm.errors import ArgumentError
from prismm.formats import FP16, FP32
from prismm.numerics import Separation, engine, separate, specification
from prismm.numerics.encodings import foreign
from prismm.numerics.family import alternatives
from prismm.numerics.model import EngineModel
from prismm.numerics.observations import same
from prismm.numerics.random_models import random_model
from prismm.numerics.separation import lengths_for

PAIRS = [
    ("v100.fp16.fp32", "a100.fp16.fp32"),
    ("v100.fp16.fp16", "a100.fp16.fp16"),
    ("t4.fp16.fp32", "v100.fp16.fp32"),
    ("a100.bf16.fp32", "h100-mma.bf16.fp32"),
    ("a100.tf32.fp32", "h100-mma.tf32.fp32"),
    ("h100-mma.e4m3.fp32", "h100-wgmma.e4m3.fp32"),
    ("ada.e4m3.fp32", "h100-wgmma.e4m3.fp32"),
    ("ada.e5m2.fp16", "h100-mma.e5m2.fp16"),
    ("mi100.fp16.fp32", "h100-mma.fp16.fp32"),
    ("h100-mma.fp64.fp64", "h100-mma-rz.fp64.fp64"),
    ("h100-mma-m16n8k8.fp16.fp32", "h100-mma.fp16.fp32"),
    ("h100-mma.int8.int32", "h100-mma-satfinite.int8.int32"),
]


def checked(first, second, found):
    """What was found belongs to the formats, and differs by the specification, too."""
    assert found and found.tried > 0
    a, b, c = found
    assert a.shape == b.shape == (len(a),) and len(a) >= 1
    assert not foreign(a, first.input).any() and not foreign(b, first.input).any() and not foreign(c, first.output)
    x, y = (specification.dot(m, a.tolist(), b.tolist(), c) for m in (first, second))
    assert same(np.array([x, y]), np.array([found.first, found.second])).all()
    assert not same(np.array([x]), np.array([y]))[0]
    return len(a)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_engines_are_told_apart(one, other, seed):
    first, second = engine(one), engine(other)
    short = checked(first, second, separate(first, second, seed=seed))
    if not first.is_integer:
        assert short <= checked(first, second, separate(first, second, seed=seed, short=False))
    assert short <= 2 * max(first.instruction_depth, second.instruction_depth) + 1


def test_shortening_leaves_nothing_that_could_go(seed):
    """No term can be left out, no term be zero, nor c."""
    first, second = engine("v100.fp16.fp32"), engine("a100.fp16.fp32")
    found = separate(first, second, seed=seed)
    a, b, c = found

    def differ(x, y, z):
        return not same(first.dot(x, y, z)[None], second.dot(x, y, z)[None])[0]

    assert differ(a, b, c)
    for i in range(len(a)):
        if a[i] != 0.0:
            assert not differ(np.where(np.arange(len(a)) == i, 0.0, a), np.where(np.arange(len(a)) == i, 1.0, b), c)
        elif len(a) > 1:
            assert not differ(np.delete(a, i), np.delete(b, i), c)
    assert c == 0.0 or not differ(a, b, 0.0)


def test_a_seed_says_everything():
    first, second = engine("v100.fp16.fp32"), engine("a100.fp16.fp32")
    one, same_seed, other = (separate(first, second, seed=s, short=False) for s in (1, 1, 2))
    assert str(one) == str(same_seed) != str(other)


@pytest.mark.parametrize(
    "changes", [{}, {"name": "other"}, {"carry_bits": 9}, {"depth": 16}, {"output_rounding": "zero"}], ids=str
)
def test_equal_models_are_not_searched(changes):
    a100 = engine("a100.fp16.fp32")
    found = separate(a100, dataclasses.replace(a100, **changes))
    assert not found and found.tried == 0
    assert (found.a, found.b, found.c, found.first, found.second) == (None,) * 5


def test_equal_integers_are_not_searched():
    wrapping = engine("h100-mma.int8.int32")
    assert separate(wrapping, dataclasses.replace(wrapping, depth=64)).tried == 0


def test_what_cannot_be_seen_is_not_found():
    """Products of FP16 are multiples of 2^-48: zeros that count as 2^-132 cut nothing off."""
    a100 = engine("a100.fp16.fp32")
    assert a100.zero_exponent == -132
    for effort in (2_000, 10_000):
        found = separate(a100, dataclasses.replace(a100, zero_exponent=None), effort=effort)
        assert not found and found.tried >= effort
        assert str(found) == f"no difference found in {found.tried} dot products aimed at both models' thresholds"


def test_the_same_can_be_seen_in_bf16(seed):
    a100 = engine("a100.bf16.fp32")
    checked(a100, other := dataclasses.replace(a100, zero_exponent=None), separate(a100, other, seed=seed))


@pytest.mark.parametrize(
    "changes",
    [
        {"fraction_bits": 23},
        {"fraction_bits": 25},
        {"rounding": "nearest"},
        {"rounding": "odd"},
        {"alignment": "floor"},
        {"block": 7},
        {"block": 9},
        {"carry_bits": 0},
        {"carry_bits": 3},
        {"join": "after"},
        {"zeros": "ieee"},
        {"overflow": "saturate"},
        {"product_exponent": "normalised"},
        {"subnormal_inputs": "flush"},
        {"subnormal_inputs": "flush-to-positive"},
        {"subnormal_accumulators": "flush"},
        {"subnormal_outputs": "flush"},
        {"summation": "sequential", "zero_exponent": None},
    ],
    ids=str,
)
def test_one_property_at_a_time(changes, seed):
    base = engine("a100.bf16.fp32")
    if "subnormal_inputs" in changes:
        base = engine("a100.fp16.fp32")
    other = dataclasses.replace(base, **changes)
    checked(base, other, separate(base, other, seed=seed))


@pytest.mark.slow
def test_models_beside_random_ones(seed):
    """What is found differs by the specification; most neighbours in rounding are told apart.

    About one pair in eight differs in a rounding that no sum of its few bits needs: 0.7 of 120 are five standard
    deviations below what is found, 0.7 of a dozen only one and a half.
    """
    rng = np.random.default_rng(seed)
    found = tried = 0
    for _ in range(120):
        model = random_model(rng)
        for other in alternatives(model, "rounding")[:1]:
            tried += 1
            result = separate(model, other, effort=4_000)
            if result:
                found += 1
                checked(model, other, result)
    assert found > 0.7 * tried


@pytest.mark.parametrize(
    "other", ["a100.bf16.fp32", "a100.fp16.fp16", "h100-mma.int8.int32", "h100-mma.fp64.fp64", "h100-mma.e4m3.fp32"]
)
def test_different_formats_are_refused(other):
    with pytest.raises(ArgumentError, match="models of different formats differ anyway"):
        separate(engine("a100.fp16.fp32"), engine(other))


def test_lengths():
    model = EngineModel("", FP16, FP32, block=4, depth=16, join="after", fraction_bits=24)
    assert lengths_for(model) == [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48]
    deep = dataclasses.replace(model, block=256, depth=1024)
    assert lengths_for(model, deep) == sorted({*lengths_for(model), 256, 257, 512, 513, 1024})


def test_text_and_truth():
    found = Separation(np.array([1.0, -0.5]), np.array([2.0, 1.0]), 0.25, 1.75, 1.5, 12)
    assert found and str(found) == "a=[1.0, -0.5] b=[2.0, 1.0] c=0.25: 1.75 and 1.5 (after 12 dot products)"
    a, b, c = found
    assert (a.tolist(), b.tolist(), c) == ([1.0, -0.5], [2.0, 1.0], 0.25)


def test_models_with_block_scales_are_refused():
    plain, scaled = engine("b200-tcgen05.e2m1.fp32"), engine("b200-tcgen05-mxf4.e2m1.fp32")
    for pair in ((plain, scaled), (scaled, plain), (scaled, engine("b200-tcgen05-nvfp4.e2m1.fp32"))):
        with pytest.raises(ArgumentError, match=r"block scales.*pass|block scales.*compare"):
            separate(*pair)
    assert not separate(scaled, scaled)


def test_what_is_no_model_or_number_is_refused():
    a100 = engine("a100.fp16.fp32")
    for bad in (None, "a100.fp16.fp32"):
        with pytest.raises(ArgumentError, match=r"second=.* is no model; pass"):
            separate(a100, bad)
    for name, value in (("seed", -1), ("effort", 1.5), ("effort", True)):
        with pytest.raises(ArgumentError, match=f"{name}={value}; pass an integer"):
            separate(a100, engine("v100.fp16.fp32"), **{name: value})
