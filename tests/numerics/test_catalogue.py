"""The catalogue: its numbers, its names, and what its sources say of each engine, as single dot products."""

import math
from fractions import Fraction

import pytest

from prismm.errors import ArgumentError, EngineError
from prismm.formats import BF16, E4M3, FP16, FP32, INT8, TF32
from prismm.numerics import specification
from prismm.numerics.catalogue import describe, devices, engine, engines, models_of, unknown
from prismm.numerics.catalogue.words import REPLAYED, STATED
from prismm.numerics.model import EngineModel
from tests.judge import assert_each
from tests.numerics.test_corpus_replay import FILES, model_of, needs_corpora


def dot(name, a, b, c=0.0, **scales):
    """One dot product, by the specification."""
    return specification.dot(engine(name), [float(x) for x in a], [float(x) for x in b], float(c), **scales)


def total(name, terms, c=0.0):
    """c plus terms, each a product with 1."""
    return dot(name, terms, [1.0] * len(terms), c)


def test_every_entry():
    of_devices = {device: models_of(device) for device in devices()}

    def check(name):
        model = engine(name)
        device, input, output = name.split(".")
        assert (model.name, model.input.name, model.output.name) == (name, input, output)
        assert model in of_devices[device]
        assert model.source and model.certainty
        assert name == name.lower() and " " not in name
        read = EngineModel.from_json(model.to_json())
        assert read == model and (read.name, read.source, read.certainty) == (name, model.source, model.certainty)
        assert read.to_json() == model.to_json()
        assert model.differences(model.canonical()) == {}

    assert_each(check, engines())
    assert len(engines()) == len(set(engines())) == sum(map(len, of_devices.values())) >= 300


@pytest.mark.parametrize(
    ("name", "block", "bits", "zeros", "rounding"),
    [
        ("v100.fp16.fp32", 4, 23, None, "zero"),
        ("v100.fp16.fp16", 4, 23, -19, "nearest"),
        ("t4.fp16.fp32", 8, 24, None, "zero"),
        ("t4.fp16.fp16", 8, 24, -20, "nearest"),
        ("t4-m8n8k4.fp16.fp16", 4, 23, -19, "nearest"),
        ("a100.fp16.fp32", 8, 24, -132, "zero"),
        ("a100.fp16.fp16", 8, 24, -20, "nearest"),
        ("a2.bf16.fp32", 8, 24, -132, "zero"),
        ("a30.tf32.fp32", 4, 24, -132, "zero"),
        ("ada.e4m3.fp32", 16, 13, -132, "zero"),
        ("l40s.e5m2.fp16", 16, 13, -20, "nearest"),
        ("h100-mma.fp16.fp32", 16, 25, -133, "zero"),
        ("h200-mma.fp16.fp16", 16, 25, -21, "nearest"),
        ("h200-mma.tf32.fp32", 8, 25, -133, "zero"),
        ("h100-mma.e4m3.fp32", 16, 25, -133, "zero"),
        ("b200-mma.e5m2.fp16", 16, 25, -21, "nearest"),
        ("h100-wgmma.e4m3.fp32", 32, 13, -133, "zero"),
        ("h200-wgmma.e5m2.fp16", 32, 13, -21, "nearest"),
        ("b200-tcgen05.bf16.fp32", 16, 25, -133, "zero"),
        ("b200-tcgen05.e3m2.fp32", 32, 25, -133, "zero"),
        ("rtx5090.e2m1.fp16", 32, 25, -21, "nearest"),
        ("rtx5090-mxf8f6f4.e4m3.fp32", 32, 25, -133, "zero"),
        ("b200-tcgen05-mxf4.e2m1.fp32", 64, 35, -139, "zero"),
        ("b200-tcgen05-nvfp4.e2m1.fp32", 64, 35, -139, "zero"),
        ("mi100.fp16.fp32", 4, None, None, "nearest"),
        ("mi100.bf16.fp32", 2, None, None, "nearest"),
        ("mi250.fp16.fp32", 4, None, None, "nearest"),
        ("mi250.bf16.fp32", 2, None, None, "nearest"),
        ("mi250-1k.bf16.fp32", 4, None, None, "nearest"),
        ("mi300.fp16.fp32", 8, 24, None, "nearest"),
        ("mi300.tf32.fp32", 4, 24, None, "nearest"),
        ("a100.fp64.fp64", 1, None, None, "nearest"),
    ],
)
def test_published_parameters(name, block, bits, zeros, rounding):
    model = engine(name)
    assert (model.block, model.fraction_bits, model.zero_exponent, model.rounding) == (block, bits, zeros, rounding)


def test_devices_of_one_architecture_agree():
    for one, other in [("a100", "a2"), ("ada", "l40s"), ("h100-mma", "b200-mma"), ("rtx5090", "rtxpro6000")]:
        theirs = {model.name.partition(".")[2]: model for model in models_of(other)}
        for model in models_of(one):
            assert not model.differences(theirs[model.name.partition(".")[2]])


def test_formats_of_vendors():
    assert {m.input for m in models_of("v100")} == {FP16}
    assert engine("h100-mma.fp16.fp16").nan == 0x7FFF and engine("h100-mma.fp16.fp32").nan == 0x7FFFFFFF
    assert engine("ada.e4m3.fp32").accumulator.fraction_bits == 13 and engine("ada.e4m3.fp16").accumulator is None
    assert [engine(f"a100.{x}.fp32").input for x in ("bf16", "tf32")] == [BF16, TF32]
    assert engine("mi300.e4m3fnuz.fp32").instruction_depth == 16


# d = 2^23 - 2^23 - 0.5 - 0.25 - 0.125 tells how many bits survive below the largest term.

EXAMPLE = ([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v100.fp16.fp32", 0.0),
        ("t4.fp16.fp32", -0.5),
        ("a100.fp16.fp32", -0.5),
        ("a2.fp16.fp32", -0.5),
        ("h100-mma.fp16.fp32", -0.75),
        ("h100-wgmma.fp16.fp32", -0.75),
        ("b200-mma.fp16.fp32", -0.75),
        ("b200-tcgen05.fp16.fp32", -0.75),
        ("mi100.fp16.fp32", -0.875),
        ("mi250.fp16.fp32", 0.0),
        ("mi300.fp16.fp32", -0.5),
        ("ada.e5m2.fp32", 0.0),
        ("h100-wgmma.e5m2.fp32", 0.0),
        ("b200-tcgen05.e5m2.fp32", -0.75),
    ],
)
def test_example_that_separates_engines(name, expected):
    assert dot(name, *EXAMPLE) == expected


def test_example_that_separates_engines_in_fp4():
    """-2^23 is 8 products of -16 times factors of 2^8; every other term is a group of its own."""
    a = [-4.0] * 8 + [0.0] * 8 + [-0.5] + [0.0] * 15 + [-0.5] + [0.0] * 15 + [-0.5] + [0.0] * 15
    b = [4.0] * 8 + [0.0] * 8 + [1.0] + [0.0] * 15 + [0.5] + [0.0] * 15 + [0.5] + [0.0] * 15
    scales = {"scale_a": [256.0, 1.0, 1.0, 1.0], "scale_b": [256.0, 1.0, 1.0, 0.5]}
    for device in ("b200-tcgen05", "rtx5090"):
        for kind in ("nvfp4", "mxf4"):
            assert dot(f"{device}-{kind}.e2m1.fp32", a, b, 2.0**23, **scales) == -0.875


# The fused sum of NVIDIA's engines.


def test_products_are_aligned_by_the_exponents_of_their_factors():
    a, b = [1.5, -1.5, 2.0**-12], [1.5, 1.5, 2.0**-12]  # 2.25 - 2.25 + 2^-24
    assert dot("a100.fp16.fp32", a, b) == 2.0**-24
    assert dot("v100.fp16.fp32", a, b) == 0.0


def test_subnormal_factors_align_as_if_they_were_normal():
    assert dot("a100.fp16.fp32", [2.0**-24, 2.0**-12], [2.0**15, 2.0**-12]) == 2.0**-9  # E = 1
    assert dot("a100.fp16.fp32", [2.0**-14, 2.0**-12], [2.0**5, 2.0**-12]) == 2.0**-9 + 2.0**-24


def test_terms_are_cut_off_toward_zero_each_for_itself():
    assert dot("a100.fp16.fp32", [1.0, -(2.0**-12)], [1.0, 2.0**-13]) == 1.0
    a = [1.0] + [2.0**-12] * 4
    assert dot("a100.fp16.fp32", a, [1.0] + [2.0**-13] * 4) == 1.0  # 4·2^-25
    assert dot("h100-mma.fp16.fp32", a, [1.0] + [2.0**-13] * 4) == 1.0 + 2.0**-23


def test_c_takes_part_in_the_alignment():
    assert dot("a100.fp16.fp32", [2.0**-12, 1.0], [2.0**-13, 0.0], 1.0) == 1.0
    assert total("a100.fp16.fp32", [2.0**-24], 2.0**-24) == 2.0**-23


@pytest.mark.parametrize("name", ["a100.bf16.fp32", "h100-mma.bf16.fp32", "b200-tcgen05.bf16.fp32"])
def test_range_of_fp32(name):
    assert total(name, [2.0**103], FP32.max) == FP32.max  # the sum is below 2^128
    assert dot(name, [2.0**127, -(2.0**127)], [2.0, 1.0]) == 2.0**127
    assert dot(name, [2.0**127], [2.0]) == math.inf
    assert dot(name, [2.0**-100], [2.0**-49]) == 2.0**-149


def test_halves_are_rounded_once_and_after_every_block():
    a, b = [1.0, 2.0**-11, 2.0**-12], [1.0, 1.0, 2.0**-12]
    assert dot("a100.fp16.fp16", a, b) == 1 + 2.0**-10  # by way of FP32 it would be a tie
    each_block = [1.0, 0.0, 0.0, 0.0] * 4
    assert total("v100.fp16.fp16", each_block, 2048.0) == 2048.0
    assert total("v100.fp16.fp16", [1.0] * 4, 2048.0) == 2052.0
    assert total("h100-mma.fp16.fp16", each_block, 2048.0) == 2052.0


def test_zero_is_positive():
    for name in ("v100.fp16.fp32", "h100-wgmma.e4m3.fp32", "h100-mma.e4m3.fp32"):
        assert math.copysign(1.0, dot(name, [-0.0], [1.0], -0.0)) == 1.0


@pytest.mark.parametrize(("name", "last"), [("v100.fp16.fp16", 42), ("a100.fp16.fp16", 44), ("h100-mma.fp16.fp16", 46)])
def test_exponent_of_zeros(name, last):
    """2^-25 + 2^-k is rounded up where 2^-k is kept."""
    kept = [k for k in range(35, 49) if dot(name, [2.0**-14, 2.0**-24], [2.0**-11, 2.0 ** (24 - k)])]
    assert kept == list(range(35, last + 1))


@pytest.mark.parametrize("name", ["ada.e4m3.fp32", "h100-wgmma.e4m3.fp32"])
def test_thirteen_bits(name):
    assert dot(name, [1.0, 2.0**-7], [1.0, 2.0**-6]) == 1 + 2.0**-13
    assert dot(name, [1.0, 2.0**-7], [1.0, 2.0**-7]) == 1.0
    assert dot(name, [1.0, 1.0, 2.0**-7], [1.0, 1.0, 2.0**-6]) == 2.0  # the sum has 13 bits too
    assert dot(name, [0.0], [0.0], 1 + 2.0**-13 + 2.0**-14) == 1 + 2.0**-13  # and c
    assert dot("b200-tcgen05.e4m3.fp32", [1.0, 2.0**-7], [1.0, 2.0**-7]) == 1 + 2.0**-14


def test_block_of_own_fp8_units():
    """A term that is lost beside 2^8 is kept in a block without it."""
    for name, block in (("ada.e4m3.fp16", 16), ("h100-wgmma.e4m3.fp16", 32), ("b200-tcgen05.e4m3.fp16", 32)):
        first = [k for k in range(1, 64) if dot(name, [-16.0] + [0.0] * (k - 1) + [2.0**-9], [16.0] + [1.0] * k, 256.0)]
        if engine(name).fraction_bits == 13:
            assert first[0] == block
        else:
            assert first[0] == 1


@pytest.mark.parametrize("device", ["h100-mma", "h200-mma", "b200-mma"])
def test_fp8_in_fp16_instructions(device):
    half, single = f"{device}.e4m3.fp16", f"{device}.e4m3.fp32"
    assert total(half, [0.0, 1.0, 1.0, 0.0], 0.0) == 2.0
    a, b = [64.0, 1.0, 1.0, 0.0, 0.0, 0.0], [32.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert dot(half, a, b) == 2048.0  # 2048 + 1, rounded, and the second pair's 1 after it
    assert dot(half, [64.0, 0.0, 0.0, 0.0, 1.0, 1.0], b) == 2050.0  # elements 4 and 5 are in the first group
    assert dot(half, [1.0, 1.0, 64.0], [1.0, 1.0, 32.0]) == 2050.0  # the first group's sum is 2
    # c is added last, to nearest: 256 + 3·2^-17.
    assert dot(single, [3 * 2.0**-9], [2.0**-8], 256.0) == 256.0 + 2.0**-15
    assert dot("b200-tcgen05.e4m3.fp32", [3 * 2.0**-9], [2.0**-8], 256.0) == 256.0
    # 128 + 2^-18 - 128: within one group exact, with a rounding in between not.
    assert dot(single, [16.0, 2.0**-9, 0.0, 0.0, -16.0], [8.0, 2.0**-9, 0.0, 0.0, 8.0]) == 2.0**-18
    assert dot(single, [16.0, 2.0**-9, -16.0], [8.0, 2.0**-9, 8.0]) == 0.0


def test_subnormal_fp8_is_normal_in_fp16():
    """That `_emulated` takes exponents of E4M3 loses nothing: all pairs of a large and a subnormal product."""
    assert engine("h100-mma.e4m3.fp32").input == E4M3
    small = [2.0**-9 * i for i in range(1, 8)]
    for x in small:
        for y in (448.0, 2.0**-9, 1.125):
            assert dot("h100-mma.e4m3.fp32", [x, 2.0**-9], [y, 2.0**-9]) == x * y + 2.0**-18


# Block scales.


def test_scaled_terms():
    name = "b200-tcgen05-mxf8f6f4.e4m3.fp32"
    assert dot(name, [1.5], [1.5], 0.0, scale_a=[2.0**-127], scale_b=[2.0**20]) == 2.25 * 2.0**-107
    assert math.isnan(dot(name, [1.0], [1.0], 0.0, scale_a=[math.nan], scale_b=[1.0]))
    two = {"scale_a": [1.0, 2.0**-26], "scale_b": [1.0, 1.0]}
    ones = [1.0] + [0.0] * 31 + [1.0]
    assert dot(name, ones, [1.0] * 33, -1.0, **two) == 2.0**-26  # the next block
    assert dot(name, [1.0, 2.0**-9], [1.0, 2.0**-9], 0.0, scale_a=[2.0], scale_b=[4.0]) == 8.0 + 2.0**-15


def test_group_that_cancels_keeps_its_exponent():
    name = "b200-tcgen05-mxf4.e2m1.fp32"
    a = [1.0, -1.0] + [0.0] * 14 + [1.0]
    scales = {"scale_a": [2.0**40, 1.0], "scale_b": [1.0, 1.0]}
    assert dot(name, a, [1.0] * 17, **scales) == 0.0
    assert dot(name, [0.0] * 16 + [1.0], [1.0] * 17, **scales) == 1.0  # a group of zeros has none
    zero = {"scale_a": [0.0, 1.0], "scale_b": [448.0, 1.0]}
    assert dot("rtx5090-nvfp4.e2m1.fp32", a, [1.0] * 17, **zero) == 1.0


def test_groups_are_summed_exactly():
    """15.75 = 63/4, times factors of three bits each: one term."""
    a, b = [0.5] * 3 + [3.0] * 5, [0.5] * 3 + [1.0] * 5
    scales = {"scale_a": [1.125], "scale_b": [1.875]}
    assert dot("b200-tcgen05-nvfp4.e2m1.fp32", a, b, **scales) == 15.75 * 1.125 * 1.875


# AMD.


def test_cdna1_is_exact_within_a_block():
    assert total("mi100.fp16.fp32", [2.0**-24, 2.0**-14], 2.0**10) == 2.0**10 + 2.0**-13  # beyond a tie
    assert total("mi100.fp16.fp32", [2.0**-24], 2.0**-149) == 2.0**-24
    assert dot("mi100.bf16.fp32", [-(2.0**60), 2.0**60, 1.0], [1.0, 1.0, 1.0]) == 1.0
    assert dot("mi100.bf16.fp32", [-(2.0**60), 1.0, 2.0**60], [1.0, 1.0, 1.0]) == 0.0  # blocks of two


@pytest.mark.parametrize("name", ["mi250.bf16.fp32", "mi250-1k.bf16.fp32"])
def test_cdna2_flushes(name):
    assert total(name, [0.0], 2.0**-149) == 0.0
    assert math.copysign(1.0, total(name, [0.0], -(2.0**-149))) == 1.0
    assert dot(name, [2.0**-130], [2.0**100]) == 0.0
    assert dot(name, [2.0**-100], [2.0**-30]) == 0.0  # the product
    a, b = [2.0**-100, -(2.0**-100)] * 2, [2.0**-26, 1.5 * 2.0**-26] * 2
    assert dot(name, a, b) == 0.0  # sums
    assert math.copysign(1.0, dot(name, a, b, -0.0)) == -1.0  # which keep their sign


def test_cdna2_adds_in_a_tree():
    terms = [2.0**24, 1.0, 1.0, 1.0]
    assert total("mi250-1k.bf16.fp32", terms) == 2.0**24 + 2  # (2^24 + 1) + (1 + 1)
    assert total("mi250.bf16.fp32", terms) == 2.0**24 + 2
    assert total("mi250-1k.bf16.fp32", [1.0, 2.0**24, 1.0, 1.0], -(2.0**24)) == 2.0
    assert total("mi250-1k.bf16.fp32", [1.0, 0.0, 1.0, 0.0], 2.0**24) == 2.0**24 + 2
    assert total("mi250.bf16.fp32", [1.0, 0.0, 1.0, 0.0], 2.0**24) == 2.0**24  # two instructions


def test_cdna3_rounds_down():
    for name in ("mi300.fp16.fp32", "mi300.bf16.fp32", "mi300.tf32.fp32"):
        assert total(name, [1.0], -(2.0**-40)) == 1.0 - 2.0**-24
        assert total(name, [1.0], 2.0**-40) == 1.0
        assert total(name, [-1.0], 2.0**-40) == -1.0
        assert total(name, [-1.0], -(2.0**-40)) == -1.0  # -1 - 2^-24 is a tie
    assert dot("mi300.bf16.fp32", [2.0**127, -(2.0**127)], [2.0, 1.0]) == math.inf


def test_where_published_models_of_cdna_differ():
    """What this one says; MMA-Sim 2.1.1 says +0 to each, and the certainty tells of both."""
    for name, count in (("mi250.bf16.fp32", 2), ("mi250.fp16.fp32", 4), ("mi250x-1k.bf16.fp32", 4)):
        d = dot(name, [0.0] * count, [-(2.0**-12)] * count, -0.0)
        assert (d, math.copysign(1.0, d)) == (0.0, -1.0)
        told = engine(name).certainty
        assert told.startswith("two published models agree but on signs of zero; MMA-Sim 2.1.1 takes -0")
        assert "a = +0 and b = -2^-12 throughout and c = -0, MMA-Sim gives +0 and this model -0" in told
        assert told.endswith("that subnormals are flushed: vendor document")
    a, b = float.fromhex("-0x1.02p-57"), float.fromhex("-0x1.fep-94")
    for name in ("mi300.bf16.fp32", "mi300.tf32.fp32"):
        assert dot(name, [a], [b]) == 2.0**-149
        told = engine(name).certainty
        assert told.startswith("two published models agree but on subnormal results; MMA-Sim 2.1.1 cuts")
        assert "a = -0x1.02p-57, b = -0x1.fep-94 and c = 0 give 0 there and 2^-149 here" in told
        # 31 bits below 2^-150 · 1.0039 nothing is lost; at 2^-157 it is a tie, which goes to the even 0.
        assert Fraction(a) * Fraction(b) > Fraction(2) ** -150
        assert math.floor(Fraction(a) * Fraction(b) * 2**157) == 2**7
    # Products of FP16 are multiples of 2^-48, and c of 2^-149: no sum has bits below 2^-157.
    assert engine("mi300.fp16.fp32").certainty == "two published models agree"


def test_cdna3_fp8():
    name = "mi300.e4m3fnuz.fp32"
    assert total(name, [1.0], -(2.0**-25)) == 1.0 - 2.0**-24
    assert total(name, [1.0], -(2.0**-26)) == 1.0  # too far below to count
    even, odd = [16.0, 2.0**-10], [16.0, 2.0**-10]
    assert dot(name, even, odd) == 256.0
    assert dot(name, even, [16.0, -(2.0**-10)]) == 256.0 - 2.0**-16
    assert dot(name, [16.0, 0.0, 2.0**-10], [16.0, 0.0, -(2.0**-10)]) == 256.0  # in one sum: cut toward zero


# Processors, doubles, integers.


def test_arm_rounds_to_odd():
    for prefix in ("arm-bfdot", "arm-bfmmla"):
        assert total(f"{prefix}.bf16.fp32", [1.0, 2.0**-30]) == 1 + 2.0**-23
        assert total(f"{prefix}.bf16.fp32", [1.0, -(2.0**-30)]) == 1 - 2.0**-24
        assert total(f"{prefix}.bf16.fp32", [1.0], 2.0**-30) == 1 + 2.0**-23
        assert total(f"{prefix}.bf16.fp32", [2.0**-130], 2.0**-140) == 0.0
        assert dot(f"{prefix}.bf16.fp32", [2.0**127], [2.0]) == math.inf
        assert total(f"{prefix}-ebf1.bf16.fp32", [1.0, 2.0**-30]) == 1.0
        assert dot(f"{prefix}-ebf1.bf16.fp32", [2.0**12, -(2.0**12)], [2.0**13 + 2.0**6, 2.0**13]) == 2.0**18
        assert total(f"{prefix}-ebf1.bf16.fp32", [2.0**-24, 2.0**-24], 1.0) == 1 + 2.0**-23  # the pair first
    assert total("arm-bfmlal.bf16.fp32", [2.0**-24, 2.0**-24], 1.0) == 1.0
    assert engine("arm-bfdot.bf16.fp32").nan == 0x7FC00000


def test_amx_has_a_chain_for_even_places_and_one_for_odd_ones():
    name = "amx.bf16.fp32"
    assert total(name, [2.0**24, 0.0, 1.0, 0.0, 1.0]) == 2.0**24
    assert total(name, [2.0**24, 1.0, 0.0, 1.0]) == 2.0**24 + 2
    assert total(name, [2.0**24, 1.0, 0.0, 1.0], 1.0) == 2.0**24 + 4  # c last; a tie
    assert total(name, [1.0], 2.0**-130) == 1.0 and total(name, [0.0], 2.0**-130) == 0.0
    assert dot(name, [2.0**-130], [2.0**100]) == 0.0
    # The one sign that the model lacks, as its entry says: by the SDM's pseudo-code this is -0.
    assert math.copysign(1.0, dot(name, [2.0**-80] * 32, [-(2.0**-80)] * 32, -0.0)) == 1.0
    assert "but for one sign that no model has: its pseudo-code gives -0" in engine(name).source


@pytest.mark.parametrize("name", ["a100.fp64.fp64", "h100-mma.fp64.fp64", "mi250.fp64.fp64", "mi300.fp64.fp64"])
def test_doubles_are_chains_of_fused_multiply_adds(name):
    a, b = [1 + 2.0**-52, 3.0, 2.0**-60], [1 - 2.0**-52, 2.0**-105, 1.0]
    c = -1.0
    # (1 + u)(1 - u) - 1 = -2^-104, exactly; + 3·2^-105 = 2^-105; then 2^-60 hides it.
    assert dot(name, a, b, c) == 2.0**-60 + 2.0**-105
    assert dot(name, a[:2], b[:2], c) == 2.0**-105
    assert total(name, [2.0**-53] * 4, 1 - 2.0**-53) == 1.0
    assert math.copysign(1.0, dot(name, [-0.0] * 4, [1.0] * 4, -0.0)) == -1.0
    # NVIDIA's instruction takes four products: the zeros that fill it up are +0.
    assert math.copysign(1.0, dot(name, [-0.0], [1.0], -0.0)) == (-1.0 if name.startswith("mi") else 1.0)


@needs_corpora
def test_certainty_of_the_h200():
    """Entries say that they reproduce its answers where these are at hand, and only there."""
    there = {model_of(path.stem).name for path in FILES}
    replayed = {name for name in engines() if engine(name).certainty == REPLAYED}
    assert replayed == there and {name.partition("-")[0] for name in there} == {"h200"}
    assert {"h200-mma.int8.int32", "h200-wgmma-satfinite.int8.int32"} <= there
    assert engine("h200-mma.uint8.int32").certainty == engine("b200-mma.int8.int32").certainty == STATED
    for name in there:
        assert engine(name.replace("h200", "h100")).certainty == f"{REPLAYED}, the same chip"


def test_doubles_toward_zero():
    assert total("h100-mma-rz.fp64.fp64", [3 * 2.0**-53], 2.0) == 2.0
    assert total("h100-mma.fp64.fp64", [3 * 2.0**-53], 2.0) == 2.0 + 2.0**-51


def test_integers():
    top = 2.0**31 - 1
    for prefix in ("t4", "a100", "h100-mma", "h100-wgmma", "b200-mma", "rtx5090"):
        assert dot(f"{prefix}.int8.int32", [1], [1], top) == -(2.0**31)
        assert dot(f"{prefix}-satfinite.int8.int32", [1], [1], top) == top
        assert dot(f"{prefix}-satfinite.int8.int32", [1, -1], [1, 1], top) == top
        assert dot(f"{prefix}.uint8.int32", [255] * 3, [255] * 3) == 3 * 255**2
    assert dot("a100-satfinite.int8.int32", [1] + [0] * 31 + [-1], [1] * 33, top) == top - 1
    assert dot("amx.int8.int32", [-128] * 2, [-128] * 2, top) == top + 2 * 2.0**14 - 2.0**32
    assert dot("a100.int4.int32", [-8] * 64, [-8] * 64) == 4096
    assert dot("a100.uint4.int32", [15] * 64, [15] * 64) == 64 * 225
    assert dot("t4-satfinite.uint4.int32", [1] * 33, [1] * 33, top - 5) == top
    assert engine("mi300.int8.int32").input == INT8


# Names.


def test_names_are_read_in_any_case():
    assert engine(" A100.FP16.FP32 ") is engine("a100.fp16.fp32")


def test_name_without_its_instruction():
    with pytest.raises(
        ArgumentError, match=r"pass h100-mma\.fp16\.fp32, h100-mma-m16n8k8\.fp16\.fp32, h100-wgmma\.fp16\.fp32$"
    ):
        engine("h100.fp16.fp32")
    with pytest.raises(ArgumentError, match=r"b200 has several: .*b200-tcgen05-nvfp4"):
        engine("b200.e2m1.bf16")
    assert {model.name.partition(".")[0] for model in models_of("h100")} == {
        d for d in devices() if d.startswith("h100")
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a10O.fp16.fp32", r"a100\.fp16\.fp32"),
        ("a100.fp16.fp23", r"a100 has no 'fp16\.fp23'; pass a100\.fp16\.fp32"),
        ("a100", r"a100 has no .*pass a100\.fp16\.fp32"),
        ("", "devices are v100"),
        ("abacus", "devices are v100"),
        ("mi2500.fp16.fp32", r"mi250\.fp16\.fp32"),
        (None, "pass a name"),
    ],
)
def test_unknown_names(name, said):
    with pytest.raises(ArgumentError, match=said):
        engine(name)


@pytest.mark.parametrize("device", ["nothing", 5])
def test_unknown_devices(device):
    with pytest.raises(ArgumentError):
        models_of(device)


@pytest.mark.parametrize(
    "name",
    [
        *("tpu.bf16.fp32", "tpuv4", "ascend910a.fp16.fp32", "gaudi2", "mi350.fp16.fp32", "cdna4", "rdna3", "gfx1151"),
        *("tenstorrent", "zvdota", "vortex", "amx.e4m3.fp32", "b200-tcgen05.int8.int32", "rtx5090.fp64.fp64"),
        *("b200-tcgen05.fp64.fp64",),
    ],
)
def test_what_is_not_published_is_not_guessed(name):
    with pytest.raises(EngineError, match="not known, and not guessed; published is: "):
        engine(name)
    with pytest.raises(EngineError):
        models_of(name)


def test_what_a_model_cannot_say():
    with pytest.raises(EngineError, match=r"no EngineModel says it; published is: .*-0"):
        engine("h200-mma-rm.fp64.fp64")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("amx.int8-uint8.int32", "TDPBSUD and TDPBUSD"),
        ("amx.uint8-int8.int32", "TDPBSUD and TDPBUSD"),
        ("t4.int4-uint4.int32", "one format for a and b"),
        ("h200-wgmma-satfinite.uint8-int8.int32", "one format for a and b"),
        ("a2.b1.int32", r"\(\.xor\.popc\)"),
        ("h100-mma.b1.int32", r"\(\.and\.popc\)"),
    ],
)
def test_integers_that_a_model_cannot_say(name, said):
    with pytest.raises(EngineError, match=rf"no EngineModel says it; published is: .*{said}"):
        engine(name)
    for wrong in ("v100.b1.int32", "a100.int8-int8.int32", "b200-tcgen05.b1.int32"):
        with pytest.raises(ArgumentError):
            engine(wrong)


def test_unknown_engines_shadow_none_of_the_known():
    from prismm.numerics.catalogue.undocumented import unknown_named

    assert not [name for name in (*engines(), *devices()) if unknown_named(name)]
    for found in unknown():
        assert unknown_named(found.name) is found and found.known
        with pytest.raises(EngineError):
            engine(found.name)


def test_table():
    text = describe()
    head = text.splitlines()[0].split()
    assert head[:3] == ["engine", "formats", "block"]
    for device in devices():
        assert device in text
    row = next(line for line in describe("v100").splitlines() if "fp16 → fp16" in line)
    assert row.split() == ["v100", "fp16", "→", "fp16", "4", "23", "aligned", "nearest", "2^-19", "inside", "2"]
    assert "reproduces published hardware outputs" in describe("v100")
    assert max(map(len, text.split("\n\n")[0].splitlines())) < 140
    assert "2×1" in describe("amx") and "every 32" in describe("a100-satfinite")
