"""The compiled twin against the specification: random models of every valid combination, on hostile vectors."""

from __future__ import annotations

import dataclasses
import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.formats import E4M3, FP16, FP32, FP64, INT8, INT32, UINT8, Format, Integer
from prismm.numerics import encodings, simulate, specification
from prismm.numerics.model import BlockScale, EngineModel, LateJoin
from prismm.numerics.products import path
from tests.covering import covering_rows
from tests.numerics.models import (
    KINDS,
    NARROW,
    OUTPUTS,
    WIDE,
    columnwise_model,
    float_model,
    integer_model,
    plainer,
    scales,
    values,
)

A100 = EngineModel("a100", FP16, FP32, block=8, fraction_bits=24, zero_exponent=-132, rounding="zero")
WGMMA = EngineModel("", E4M3, FP32, accumulator=Format(8, 13), block=32, fraction_bits=13, rounding="zero")


def same(got, wanted):
    """Equal bit patterns; any NaN is as good as another."""
    x, y = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return (np.isnan(x) & np.isnan(y)) | (x.view(np.int64) == y.view(np.int64))


def specified(model, a, b, c, scale_a=None, scale_b=None):
    factors = [(None, None)] * len(a) if scale_a is None else list(zip(scale_a.tolist(), scale_b.tolist(), strict=True))
    return [
        specification.dot(model, x.tolist(), y.tolist(), float(z), *f)
        for x, y, z, f in zip(a, b, c, factors, strict=True)
    ]


def check(model, kind, k, rng, rows=3):
    """`rows` dot products of length k with operands of one kind."""
    other = str(rng.choice(KINDS))
    a, b = values(model.input, (rows, k), kind, rng), values(model.input, (rows, k), kind, rng)
    c = values(model.output, (rows,), other, rng) if rng.random() < 0.7 else np.zeros(rows)
    factors = scales(model, rows, k, rng), scales(model, rows, k, rng)
    got, wanted = simulate.dot(model, a, b, c, *factors), specified(model, a, b, c, *factors)
    equal = same(got, wanted)
    assert equal.all(), (model, a[~equal], b[~equal], c[~equal], factors, got, wanted)
    assert (encodings.encode(got, model.output) == encodings.encode(wanted, model.output)).all()


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_every_bit_is_that_of_the_specification(part, rng):
    for _ in range(200 if part else 40):
        model = integer_model(rng) if rng.random() < 0.08 else float_model(rng)
        if not model.is_integer and rng.random() < 0.6:
            model = plainer(model, rng)
        check(model, str(rng.choice(KINDS)), int(rng.integers(1, 40)), rng)


@pytest.mark.covering("inputs")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [*NARROW, *WIDE], ids=lambda f: f.name)
def test_every_input_format_meets_every_kind_of_vector(inputs, kind, rng):
    for summation, bits in (("aligned", 20), ("aligned", None), ("sequential", None), ("pairwise", 30)):
        if inputs.precision > 24 and summation == "aligned":
            bits = None
        join = "after" if summation == "pairwise" else "inside"
        model = EngineModel(
            "", inputs, OUTPUTS[int(rng.integers(len(OUTPUTS)))], block=4, summation=summation, fraction_bits=bits,
            join=join, zeros="ieee",
        )  # fmt: skip
        check(model, kind, 11, rng)


def sums_with_zeros(summation):
    """Models of sums that end in zeros, and lengths that leave some: all that are valid."""
    orders = [
        ((), "chained", 1),
        (((0,), (1,)), "chained", 2),
        (((1,), (0,)), "chained", 2),
        (((0,), (1,)), "separate", 2),
    ]
    given = {
        "block": (1, 2, 4, 5),
        "join": ("inside", "after"),
        "zeros": ("ieee", "unsigned"),
        "subnormal_outputs": ("keep", "flush"),
        "rounding": ("nearest", "zero"),
        "fraction_bits": (None, 12),
    }
    for values_, order, k in itertools.product(itertools.product(*given.values()), orders, (1, 2, 3)):
        fields, (groups, sums, times) = dict(zip(given, values_, strict=True)), order
        depth = times * fields["block"] if fields["join"] == "after" or groups else None
        try:
            model = EngineModel(
                "", FP16, FP16, depth=depth, groups=groups, group_sums=sums, summation=summation, **fields
            )
        except ArgumentError:
            continue
        yield model, k, fields | {"order": order, "k": k}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("summation", ["aligned", "sequential", "pairwise"])
def test_zeros_behind_the_operands_turn_negative_zeros(summation, every, seed):
    """The first of them rounds the sum before it, to -0 too; the second makes that +0. Every three of a model's fields
    meet, or all.
    """
    small = [(-(2.0**-13), 2.0**-6), (2.0**-13, 2.0**-6), (-(2.0**-24), 2.0**-14), (0.0, 1.0), (-0.0, 1.0)]
    cases = list(sums_with_zeros(summation))
    assert len(cases) >= 150
    if not every:
        rows = [row for _, _, row in cases]
        cases = [cases[i] for i in covering_rows(rows, itertools.combinations(rows[0], 3), random.Random(seed))]
    for model, k, _ in cases:
        a, b = (np.repeat(np.array(x)[:, None], k, 1) for x in zip(*small, strict=True))
        a[:, 1:] *= 2.0
        for c in (0.0, -0.0):
            addends = np.full(len(a), c)
            got = simulate.dot(model, a, b, addends)
            assert same(got, specified(model, a, b, addends)).all(), (model, k, c)


@pytest.mark.parametrize("inputs", [f for f in NARROW if f.bits <= 4], ids=lambda f: f.name)
def test_all_pairs_of_a_small_format(inputs):
    every = encodings.decode(np.arange(1 << inputs.bits), inputs)
    a, b = every[:, None, None], every[None, :, None]
    for c in (0.0, -0.0, 1.5):
        got = simulate.dot(dataclasses.replace(A100, input=inputs, block=1, zeros="ieee"), a, b, c)
        assert same(got, every[:, None] * every[None, :] + c).all()


def test_registers_wrap_around(rng):
    ones = np.ones((1, 40))
    wrapping = EngineModel("", FP16, FP32, block=40, fraction_bits=10, carry_bits=2)
    got = simulate.dot(wrapping, ones, ones)
    assert got[0] == specified(wrapping, ones, ones, [0.0])[0] == 40 - 32
    for carry in range(4):
        for fraction_bits in (10, 48):
            model = dataclasses.replace(wrapping, carry_bits=carry, fraction_bits=fraction_bits)
            for kind in ("near", "cancelling", "any"):
                check(model, kind, 80, rng)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["near", "any", "cancelling"])
def test_long_inner_dimensions(kind, rng):
    chain = EngineModel("", FP32, FP32)
    fused = EngineModel("", FP64, FP64, zeros="ieee")
    late = EngineModel("", FP16, FP32, block=8, fraction_bits=24, join=LateJoin())
    for model in (A100, WGMMA, chain, fused, late):
        check(model, kind, 2000, rng, rows=1)


def test_scales_beyond_the_operands_and_of_every_group(rng):
    for summation, kind in (("terms", "ue8m0"), ("groups", "ue8m0"), ("groups", "ue4m3")):
        model = EngineModel(
            "", E4M3, FP32, block=32, depth=64, fraction_bits=35, zero_exponent=-139, rounding="zero",
            scale=BlockScale(kind, 16, summation),
        )  # fmt: skip
        for k in (1, 16, 17, 64, 100):
            check(model, "any", k, rng)
            check(model, "zeros", k, rng)


def test_operands_are_broadcast(rng):
    a, b = values(FP16, (3, 1, 20), "near", rng), values(FP16, (4, 20), "near", rng)
    c = values(FP32, (4,), "near", rng)
    got = simulate.dot(A100, a, b, c)
    assert got.shape == (3, 4)
    wanted = [
        [specification.dot(A100, x.tolist(), y.tolist(), float(z)) for y, z in zip(b, c, strict=True)] for x in a[:, 0]
    ]
    assert same(got, wanted).all()
    assert simulate.dot(A100, a[0, 0], b[0]).shape == ()
    assert same(simulate.dot_unchecked(A100, np.repeat(a[0], 4, 0), b, c), got[0]).all()
    assert simulate.dot(A100, np.ones((0, 4)), np.ones(4)).shape == (0,)


def test_workers_change_no_bit(rng):
    a, b = values(FP16, (5000, 40), "any", rng), values(FP16, (5000, 40), "any", rng)
    assert same(simulate.dot(A100, a, b, workers=2), simulate.dot(A100, a, b, workers=1)).all()


def test_bit_patterns_of_results():
    d = np.array([0.0, -0.0, 1.0, np.inf, np.nan])
    assert [hex(x) for x in simulate.bits(A100, d)] == ["0x0", "0x80000000", "0x3f800000", "0x7f800000", "0x7fffffff"]
    assert hex(simulate.bits(dataclasses.replace(A100, nan=0x7FC00000), d)[4]) == "0x7fc00000"


@pytest.mark.parametrize("wrong", [1 + 2.0**-11, 65536.0, 2.0**-25, 3 * 2.0**-25])
def test_values_of_no_such_format_are_refused(wrong):
    for a, b, what in (([wrong], [1.0], "of a"), ([1.0], [-wrong], "of b")):
        with pytest.raises(ArgumentError, match=rf"1 of 1 values {what} are none of fp16, first -?{abs(wrong)!r}"):
            simulate.dot(A100, a, b)
    with pytest.raises(ArgumentError, match="of c are none of fp32"):
        simulate.dot(A100, [1.0], [1.0], 1 + 2.0**-24)
    with pytest.raises(ArgumentError, match="none of e4m3"):
        simulate.dot(WGMMA, [np.inf], [1.0])
    with pytest.raises(ArgumentError, match="none of int8"):
        simulate.dot(EngineModel("", INT8, INT32, overflow="wrap"), [128.0], [1.0])


def test_shapes_and_scales_that_do_not_fit_are_refused():
    for a, b, c in (([1.0], [1.0, 1.0], 0.0), ([], [], 0.0), (1.0, [1.0], 0.0), ([[1.0]] * 2, [[1.0]] * 3, 0.0)):
        with pytest.raises(ShapeError, match=r"pass|broadcast"):
            simulate.dot(A100, a, b, c)
    with pytest.raises(ArgumentError, match="leave out scale_a"):
        simulate.dot(A100, [1.0], [1.0], scale_a=[1.0])
    scaled = EngineModel("", E4M3, FP32, block=32, fraction_bits=25, scale=BlockScale("ue8m0", 32, "terms"))
    with pytest.raises(ArgumentError, match="pass scale_a"):
        simulate.dot(scaled, [1.0], [1.0])
    with pytest.raises(ArgumentError, match="no ue8m0"):
        simulate.dot(scaled, [1.0], [1.0], scale_a=[1.0], scale_b=[3.0])
    with pytest.raises(ShapeError, match="scale_b"):
        simulate.dot(scaled, [1.0], [1.0], scale_a=[1.0], scale_b=[1.0, 1.0])
    with pytest.raises(ArgumentError, match="gemm does not take"):
        simulate.gemm(scaled, [[1.0]], [[1.0]])


def added(model, x, y):
    """A sum outside the engine."""
    f = model.output
    if isinstance(f, Integer):
        exact = int(x) + int(y)
        if model.overflow == "saturate":
            return float(min(max(exact, f.min), f.max))
        return float((exact - f.min) % (1 << f.bits) + f.min)
    return specification.dot(EngineModel("", f, f, zeros="ieee"), [x], [1.0], y)


def looped(model, a, b, c, split, promote):
    """What `gemm` says of one entry, by `specification.dot`."""
    depth = model.instruction_depth
    instructions = np.array_split(np.arange(-(-len(a) // depth)), split)
    total = None
    for part, run in enumerate(instructions):
        k0, k1 = run[0] * depth, min((run[-1] + 1) * depth, len(a))
        d = c if part == 0 else 0.0
        if promote is None:
            d = specification.dot(model, a[k0:k1], b[k0:k1], d)
        else:
            for k in range(k0, k1, promote):
                stop = min(k + promote, k1)
                d = added(model, d, specification.dot(model, a[k:stop], b[k:stop], 0.0))
        total = d if total is None else added(model, total, d)
    return total


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_gemm_is_a_loop_of_the_specification(part, rng):
    for _ in range(30 if part else 8):
        model = columnwise_model(rng) if rng.random() < 0.5 else plainer(float_model(rng), rng)
        if rng.random() < 0.1:
            model = integer_model(rng)
        if model.scale is not None:
            continue
        kind, k = str(rng.choice(KINDS)), int(rng.integers(1, 80))
        a, b = values(model.input, (2, k), kind, rng), values(model.input, (k, 3), kind, rng)
        c = values(model.output, (2, 3), kind, rng) if rng.random() < 0.7 else None
        depth = model.instruction_depth
        split = int(rng.integers(1, min(-(-k // depth), 4) + 1))
        promote = [None, depth, 2 * depth][int(rng.integers(3))]
        got = simulate.gemm(model, a, b, c, split_k=split, promote=promote)
        start = np.zeros((2, 3)) if c is None else c
        for i, j in np.ndindex(2, 3):
            wanted = looped(model, a[i].tolist(), b[:, j].tolist(), float(start[i, j]), split, promote)
            assert same(got[i, j], wanted), (model, path(model), split, promote, a[i], b[:, j], start[i, j], got[i, j])


def test_gemm_has_the_same_bits_on_every_path_and_number_of_workers(rng):
    a, b = values(FP16, (130, 60), "near", rng), values(FP16, (60, 140), "near", rng)
    c = values(FP32, (130, 140), "near", rng)
    assert path(A100) == "aligned" and path(dataclasses.replace(A100, groups=((0, 1, 2, 3, 4, 5, 6, 7),))) is None
    wanted = simulate.dot(A100, a[:, None, :], b.T[None, :, :], c)
    for model in (A100, dataclasses.replace(A100, groups=((0, 1, 2, 3, 4, 5, 6, 7),))):
        for workers in (1, 2):
            assert same(simulate.gemm(model, a, b, c, workers=workers), wanted).all()


def test_gemm_and_mma_refuse_what_does_not_fit():
    x = np.ones((4, 20))
    for b, c in ((x, None), (x.T, np.zeros((2, 2))), (x[0], None)):
        with pytest.raises(ShapeError, match="pass"):
            simulate.gemm(A100, x, b, c)
    for split in (0, 4, True, 1.0):
        with pytest.raises(ArgumentError, match="pass 1 to 3"):
            simulate.gemm(A100, x, x.T, split_k=split)
    for promote in (0, 12, -8, 8.0, True, False):
        with pytest.raises(ArgumentError, match="multiple of the instruction's depth, 8"):
            simulate.gemm(A100, x, x.T, promote=promote)
    with pytest.raises(ArgumentError, match="promote=True; pass a multiple of the instruction's depth, 1, or None"):
        simulate.gemm(EngineModel("", FP32, FP32), x, x.T, promote=True)
    with pytest.raises(ShapeError, match="k up to 8, not 20"):
        simulate.mma(A100, x, x.T)
    with pytest.raises(ArgumentError, match="none of fp16"):
        simulate.gemm(A100, x * (1 + 2.0**-11), x.T)
    with pytest.raises(ArgumentError, match="of c"):
        simulate.gemm(A100, x, x.T, np.full((4, 4), 1 + 2.0**-30))
    assert same(simulate.mma(A100, x[:, :3], x.T[:3]), np.full((4, 4), 3.0)).all()


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0), (0, 3, 0), (2, 0, 3), (0, 0, 0), (2, 0, 0)])
def test_empty_products(shape):
    m, k, n = shape
    grouped = dataclasses.replace(A100, groups=((0, 1, 2, 3, 4, 5, 6, 7),))
    for model in (A100, grouped, EngineModel("", FP32, FP32), EngineModel("", INT8, INT32, overflow="wrap")):
        a, b = np.ones((m, k)), np.ones((k, n))
        assert same(simulate.gemm(model, a, b), np.zeros((m, n))).all()
        assert simulate.gemm(model, a, b).shape == simulate.mma(model, a[:, :1], b[:1]).shape == (m, n)
        c = np.arange(m * n).reshape(m, n) - 1
        d = simulate.gemm(model, a, b, c)
        assert same(d, c if not k else np.zeros((m, n))).all() and d.shape == (m, n)
        with pytest.raises(ShapeError, match=r"c has shape \(9, 9\); pass"):
            simulate.gemm(model, a, b, np.zeros((9, 9)))
        with pytest.raises(ArgumentError, match="split_k=0"):
            simulate.gemm(model, a, b, split_k=0)
        if not k and m and n:
            with pytest.raises(ArgumentError, match="of c are none of"):
                simulate.gemm(model, a, b, c + 1 / 3)
        if k and n:
            with pytest.raises(ArgumentError, match="of b are none of"):
                simulate.gemm(model, a, b + 1 / 3)


@pytest.mark.parametrize("model", ["a100.fp16.fp32", None, FP16])
def test_what_is_no_model_is_refused(model):
    for call in (simulate.dot, simulate.gemm, simulate.mma):
        with pytest.raises(ArgumentError, match=r"model=.*; pass an EngineModel, such as prismm.numerics.engine\("):
            call(model, [[1.0]], [[1.0]])


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("1.5", DTypeError, "='1.5' holds text; pass real numbers"),
        ([["1"]], DTypeError, "holds text"),
        ([[b"1"]], DTypeError, "holds bytes"),
        ([[None]], DTypeError, "holds what is no number"),
        ({}, DTypeError, "={} holds what is no number"),
        ([[1j]], DTypeError, "holds complex numbers"),
        (np.ones((1, 1), complex), DTypeError, "holds complex numbers"),
        (np.zeros((1, 1), "M8[s]"), DTypeError, "holds dates"),
        ([[1.0], [1.0, 2.0]], OperandError, "is no array of numbers"),
        ([[10**400]], OperandError, "is no array of numbers"),
    ],
    ids=repr,
)
def test_what_is_no_array_of_numbers_is_refused(wrong, error, words):
    for call in (simulate.dot, simulate.gemm, simulate.mma):
        for place, name in enumerate("abc"):
            arguments = [[[1.0]]] * 3
            arguments[place] = wrong
            with pytest.raises(error, match=f"^{name}=.*{words.removeprefix('=')}"):
                call(A100, *arguments)
    scaled = EngineModel("", E4M3, FP32, block=32, fraction_bits=25, scale=BlockScale("ue8m0", 32, "terms"))
    with pytest.raises(error, match=r"^scale_b="):
        simulate.dot(scaled, [1.0], [1.0], 0.0, [1.0], wrong)


def test_other_real_numbers_are_taken():
    assert simulate.dot(A100, [Fraction(1, 2), 1], np.array([True, False])).item() == 0.5
    assert simulate.dot(A100, np.ones(2, np.float16), range(2), np.int8(1)).item() == 2.0
    for none in (None, [None]):
        with pytest.raises(DTypeError, match=r"^c="):
            simulate.dot(A100, [1.0], [1.0], none)


def test_unsigned_integers_wrap_and_saturate():
    for overflow, expected in (("wrap", 2.0**31 * 2 - 2.0**32), ("saturate", 2.0**31 - 1)):
        model = EngineModel("", UINT8, INT32, block=4, depth=8, overflow=overflow)
        assert simulate.dot(model, [1.0], [1.0], 2.0**31 - 1).item() == (-(2.0**31) if overflow == "wrap" else expected)
