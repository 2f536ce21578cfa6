"""The specification itself: cases that a reader can check by hand, its trace, and its rounding by enumeration."""

import itertools
import math
from bisect import bisect_right
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from prismm.errors import PrismmError, ShapeError
from prismm.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, INT8, INT32, UINT8, Format, Integer
from prismm.numerics import simulate
from prismm.numerics.model import BlockScale, EngineModel, LateJoin
from prismm.numerics.rationals import round_to
from prismm.numerics.specification import dot, trace
from prismm.numerics.steps import Loss
from tests.numerics.models import KINDS, float_model, plainer, values

E8M13 = Format(8, 13, "e8m13")
CUT = EngineModel("cut", FP16, FP32, block=4, fraction_bits=24, rounding="zero")
"""Blocks of four and c, cut off 24 bits below the largest exponent, rounded toward zero."""


def total(model, terms, c=0.0):
    """c plus terms, each times one."""
    return dot(model, terms, [1.0] * len(terms), c)


def bits(x):
    """Equal for the same value of the same sign."""
    return x, math.copysign(1.0, x)


def test_terms_are_cut_below_the_largest_exponent():
    one = Fraction(1)
    t = trace(CUT, [1.0, 2.0**-12, -(2.0**-12)], [1.0, 2.0**-12, 2.0**-13], 0.0)
    (step,) = t.steps
    assert step.kind == "block" and step.quantum == -24 and not step.wrapped
    assert [(term.label, term.exponent, term.kept) for term in step.terms] == [
        ("c", None, 0),
        ("a[0]*b[0]", 0, one),
        ("a[1]*b[1]", -24, Fraction(1, 2**24)),
        ("a[2]*b[2]", -25, 0),  # cut toward zero, not to the nearest multiple
        ("a[3]*b[3]", None, 0),  # padding
    ]
    assert step.total == one + Fraction(1, 2**24) and t.result == 1.0
    floor = trace(replace(CUT, alignment="floor"), [1.0, 2.0**-12, -(2.0**-12)], [1.0, 2.0**-12, 2.0**-13])
    assert floor.steps[0].terms[3].kept == Fraction(-1, 2**24) and floor.steps[0].total == 1


def test_every_term_is_cut_for_itself():
    tiny = 2.0**-13
    for count, left in ((1, 0), (2, 0), (3, 0)):  # three terms of 2^-25: their sum would count
        t = trace(CUT, [1.0] + [tiny] * count, [1.0] + [2.0**-12] * count)
        assert t.steps[0].total == 1 + left
    exact = trace(replace(CUT, fraction_bits=None), [1.0] + [tiny] * 3, [1.0] + [2.0**-12] * 3)
    assert exact.steps[0].total == 1 + Fraction(3, 2**25) and exact.steps[0].quantum is None


def test_the_running_sum_takes_part_in_the_alignment():
    assert total(CUT, [1.0, -1.0, 0.5], 2.0**24) == 2.0**24
    assert total(CUT, [1.5], 2.0**25) == 2.0**25  # 1.5 is cut to 0 where quanta are 2
    assert total(replace(CUT, join="after", rounding="nearest"), [1.0, 1.0, 1.0], 2.0**24) == 2.0**24 + 4


def test_exponents_are_those_of_the_factors_or_of_the_product():
    """1.5 · 1.5 = 2.25 has exponent 0 by its factors, and 1 normalised."""
    a, b = [1.5, 2.0**-12], [1.5, 2.0**-12]
    assert trace(CUT, a, b).steps[0].quantum == -24
    normalised = trace(replace(CUT, product_exponent="normalised"), a, b).steps[0]
    assert normalised.quantum == -23 and normalised.terms[2].kept == 0


def test_subnormal_factors_align_as_if_they_were_normal():
    t = trace(CUT, [2.0**-24], [2.0**-24])
    assert t.steps[0].terms[1].exponent == -28 and t.steps[0].quantum == -52
    assert trace(replace(CUT, product_exponent="normalised"), [2.0**-24], [2.0**-24]).steps[0].quantum == -72


def test_the_exponent_of_zeros_is_one_term_more():
    small = replace(CUT, input=BF16, zero_exponent=-130)
    product = [2.0**-80, 1.0], [2.0**-80, 0.0]
    assert trace(small, *product).steps[0].quantum == -154
    assert (dot(small, *product), dot(replace(small, zero_exponent=None), *product)) == (0.0, 0.0)  # 2^-160
    a, b = [2.0**-80, 2.0**-80, -(2.0**-80)], [2.0**-75, 2.0**-69, 2.0**-69]  # 2^-155 beside a pair that cancels
    seen = trace(small, a, b).steps[0]
    assert (seen.terms[1].kept, seen.quantum) == (0, -154)
    assert trace(replace(small, zero_exponent=None), a, b).steps[0].quantum == -173
    assert trace(small, a, b, 2.0**-140).steps[0].quantum == -126 - 24  # c is no zero: its exponent counts


@pytest.mark.parametrize(("carry", "wraps_from"), [(0, 4), (1, 8), (2, 16), (3, 32)])
def test_registers_wrap_around(carry, wraps_from):
    """Two integer bits and `carry` more: sums from 2^(2 + carry) on come back at the other end."""
    model = replace(CUT, block=64, carry_bits=carry, fraction_bits=10)
    for count in (wraps_from - 1, wraps_from, wraps_from + 1, 2 * wraps_from - 1):
        t = trace(model, [1.0] * count, [1.0] * count)
        wanted = count if count < wraps_from else count - 2 * wraps_from
        assert (t.result, t.steps[0].wrapped) == (wanted, count >= wraps_from)
        t = trace(model, [-1.0] * count, [1.0] * count)
        assert t.result == (-count if count <= wraps_from else 2 * wraps_from - count)


def test_running_sums_of_thirteen_bits():
    """Every block's sum is rounded to E8M13, and what is left is an FP32."""
    model = replace(CUT, input=E4M3, accumulator=E8M13, fraction_bits=13)
    assert total(model, [1.0], 2.0**13) == 2.0**13 + 1
    assert total(model, [1.0], 2.0**14) == 2.0**14
    assert total(model, [1.0] * 4, 2.0**14) == 2.0**14  # each is cut off for itself
    nearest = replace(model, fraction_bits=24, rounding="nearest")
    assert [total(nearest, [x], 2.0**14) for x in (1.0, 1.125, 3.0)] == [2.0**14, 2.0**14 + 2, 2.0**14 + 4]


def test_narrow_sums_are_converted_once_more():
    model = EngineModel("", FP16, FP16, accumulator=FP32, block=1, depth=2, fraction_bits=24, rounding="zero")
    exact = trace(model, [1.0, 2.0**-11], [1.0, 1.0])
    assert [step.kind for step in exact.steps] == ["block", "block", "convert"]
    assert exact.steps[1].result == 1 + Fraction(1, 2**11) and exact.result == 1.0
    up = replace(model, output_rounding="odd")
    assert total(up, [1.0, 2.0**-11]) == 1 + 2.0**-10
    assert total(replace(model, depth=1), [1.0, 2.0**-11, 2.0**-11]) == 1.0
    assert total(replace(model, depth=3), [1.0, 2.0**-11, 2.0**-11]) == 1.0 + 2.0**-10


def test_sequential_and_pairwise():
    """2^11 in FP16 has a spacing of 2: where ones meet it, they are ties to even; where they meet first, they count."""
    base = EngineModel("", FP16, FP16, block=4)
    chain = replace(base, summation="sequential")
    tree = replace(base, summation="pairwise", join="after")
    terms = [2.0**11, 1.0, 1.0, 1.0]
    assert total(chain, terms) == 2.0**11
    assert total(chain, terms[::-1]) == 2.0**11 + 4  # 3 + 2^11 is a tie between 2050 and 2052: to the even one
    assert total(tree, terms) == 2.0**11 + 2  # (2^11 + 1) + (1 + 1)
    assert total(base, terms) == 2.0**11 + 4  # at once: 2051, again a tie
    t = trace(tree, terms, [1.0] * 4)
    assert [[float(x.value) for x in s.terms] for s in t.steps] == [[2048, 1], [1, 1], [2048, 2], [2050, 0]]
    assert [s.kind for s in t.steps] == ["partial", "partial", "partial", "join"]


def test_an_odd_one_waits_for_the_next_round():
    tree = EngineModel("", FP16, FP32, block=5, summation="pairwise", join="after")
    t = trace(tree, [1.0, 2.0, 4.0, 8.0, 16.0], [1.0] * 5)
    assert [[float(x.value) for x in s.terms] for s in t.steps] == [[1, 2], [4, 8], [3, 12], [15, 16], [31, 0]]


def test_groups():
    """A one beside ±2^11: what counts depends on when it is added."""
    chain = EngineModel("", FP16, FP16, block=1, depth=4)
    terms = [2.0**11, 1.0, -(2.0**11), 1.0]
    assert total(chain, terms) == 1.0
    odd_first = replace(chain, groups=((1, 3), (0, 2)))
    assert [s.terms[1].label for s in trace(odd_first, terms, [1.0] * 4).steps] == [
        f"a[{i}]*b[{i}]" for i in (1, 3, 0, 2)
    ]
    assert total(odd_first, terms) == 2.0
    separate = replace(chain, groups=((0, 2), (1, 3)), group_sums="separate", join="after")
    assert total(separate, terms, 2.0**11) == 2.0**11 + 2
    assert [s.kind for s in trace(separate, terms, [1.0] * 4, 4.0).steps] == ["block"] * 4 + ["join"] * 2


def test_c_is_inside_or_after():
    terms = [2.0**11, 1.0, 1.0, -(2.0**11)]
    once = EngineModel("", FP16, FP16, block=4)
    assert total(once, terms, 1.0) == 3.0
    assert total(replace(once, block=1), terms, 1.0) == 0.0  # each time a tie with 2^11
    assert total(replace(once, block=1, depth=4, join="after"), terms, 1.0) == 1.0


def test_late_join_goes_to_the_floor():
    late = replace(CUT, join=LateJoin(sum_bits=10, accumulator_bits=8, total_bits=20), rounding="nearest")
    tiny = 2.0**-20
    assert total(late, [1.0], tiny) == 1.0
    assert total(late, [1.0], -tiny) == 1.0 - 2.0**-8  # c is cut to the floor, at 2^(E - 8)
    assert dot(late, [tiny], [1.0], 1.0) == 1.0
    assert dot(late, [-tiny], [1.0], 1.0) == 1.0 - 2.0**-10  # the sum at 2^(E - 10)
    assert total(replace(late, join=LateJoin(10, 8, 20, cutoff=19)), [1.0], -tiny) == 1.0  # c counts as zero
    assert total(replace(late, join=LateJoin(10, 8, 20, cutoff=20)), [1.0], -tiny) == 1.0 - 2.0**-8
    join = trace(late, [1.0], [1.0], -tiny).steps[-1]
    assert join.kind == "join" and [term.kept for term in join.terms] == [1, Fraction(-1, 256)]
    # After `total_bits`, the sum is cut to the floor once more.
    narrow = replace(CUT, join=LateJoin(30, 30, 8), rounding="nearest")
    assert total(narrow, [1.0], 2.0**-9) == 1.0 and total(narrow, [-1.0], -(2.0**-9)) == -1.0 - 2.0**-8


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("nearest", [1.0, 1.0, 1.5, 2.0, -1.0, -1.5]),
        ("zero", [1.0, 1.0, 1.0, 1.5, -1.0, -1.0]),
        ("floor", [1.0, 1.0, 1.0, 1.5, -1.5, -1.5]),
        ("odd", [1.5, 1.5, 1.5, 1.5, -1.5, -1.5]),
    ],
)
def test_roundings_of_a_sum(mode, wanted):
    """To E4M1, whose neighbours of 1 are 0.75 and 1.5; 1.5 is odd."""
    model = EngineModel("", E4M3, Format(4, 1, "e4m1"), block=2, rounding=mode)
    terms = [[1.0, 0.125], [1.0, 0.25], [1.0, 0.375], [1.5, 0.25], [-1.0, -0.25], [-1.0, -0.375]]
    assert [total(model, x) for x in terms] == wanted
    assert total(model, [1.0, 0.5]) == 1.5 and total(model, [1.0, 1.0]) == 2.0  # exact: the mode is nothing


@pytest.mark.parametrize(("mode", "ulps"), [("nearest", -2), ("zero", -1), ("floor", -2), ("odd", -1)])
def test_products_are_rounded_to_the_accumulator(mode, ulps):
    """-(1 + 2^-10)(1 + 7·2^-13), between -1 - 2^-10 and -1 - 2^-9 in FP16, nearer to the latter."""
    a, b = [-(1 + 2.0**-10)], [1 + 7 * 2.0**-13]
    exact = trace(EngineModel("", FP32, FP16), a, b).steps[0].terms[1].kept
    assert exact == Fraction(a[0]) * Fraction(b[0])
    rounded = trace(EngineModel("", FP32, FP16, product_rounding=mode), a, b).steps[0].terms[1].kept
    assert rounded == -1 + Fraction(ulps, 2**10)


def test_products_that_overflow():
    model = EngineModel("", FP16, FP16, block=2)
    a, b = [256.0, -256.0], [256.0, 128.0]
    assert dot(model, a, b) == 2.0**15
    assert dot(replace(model, product_overflow="infinity"), a, b) == math.inf
    assert dot(replace(model, product_overflow="infinity"), [256.0, -256.0], [256.0, 256.0]).hex() == "nan"


@pytest.mark.parametrize(("policy", "small"), [("keep", None), ("flush", -0.0), ("flush-to-positive", 0.0)])
def test_subnormals(policy, small):
    least = -(2.0**-24)
    base = EngineModel("", FP16, FP16, zeros="ieee")
    cases = {
        "subnormal_inputs": (([least], [1.0], -0.0), least),
        "subnormal_accumulators": (([-0.0], [1.0], least), least),
        "subnormal_products": (([-(2.0**-12)], [2.0**-12], -0.0), least),
        "subnormal_outputs": (([-(2.0**-12)], [2.0**-12], -0.0), least),
    }
    for name, (arguments, kept) in cases.items():
        found = dot(replace(base, **{name: policy}), *arguments)
        assert bits(found) == bits(kept if small is None else small), name
        edge = dot(replace(base, **{name: policy}), [-(2.0**-14)], [1.0], -0.0)
        assert edge == -(2.0**-14), name  # the smallest normal value is kept


TINY = 2.0**-24
"""The smallest subnormal of FP16; its least normal value is 2^-14."""
WAYS = {"aligned": {}, "aligned-24": {"fraction_bits": 24}, "sequential": {"summation": "sequential"}, "after":
        {"join": "after"}, "pairwise": {"summation": "pairwise", "join": "after"},
        "late": {"fraction_bits": 24, "join": LateJoin()}}  # fmt: skip


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("policy", ["flush", "flush-to-positive"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_flushed_or_rounded_is_on_record(way, policy, block):
    """An input, a product and c, each too small; and a product that needs more bits than FP16 has."""
    base = EngineModel("", FP16, FP16, block=block, **WAYS[way])
    zero = -0.0 if policy == "flush" else 0.0
    rough, near = 1 + 3 * 2.0**-10, 1 + 6 * 2.0**-10  # (1 + 3u)^2 = 1 + 6u + 9u^2
    cases = {
        "inputs": ([-TINY, 1.0], [1.0, 1.0], 0.0, "a[0]*b[0]", ("a[0]", "flushed", -TINY, zero)),
        "products": ([1.0, 2.0**-12], [1.0, -(2.0**-12)], 0.0, "a[1]*b[1]", ("a[1]*b[1]", "flushed", -TINY, zero)),
        "accumulators": ([1.0, 1.0], [1.0, 1.0], -TINY, "c", ("c", "flushed", -TINY, zero)),
        "rounding": ([rough, 0.0], [rough, 0.0], 0.0, "a[0]*b[0]", ("a[0]*b[0]", "rounded", rough**2, near)),
    }
    for case, (a, b, c, label, loss) in cases.items():
        given = {"product_rounding": "nearest"} if case == "rounding" else {f"subnormal_{case}": policy}
        found = trace(replace(base, **given), a, b, c)
        terms = [term for step in found.steps for term in step.terms]
        (losing,) = (term for term in terms if term.losses)
        assert (losing.label, losing.losses) == (label, (Loss(*loss),)), case
        assert (losing.value, losing.kept, losing.lost) == (loss[2], loss[3], Fraction(loss[2]) - Fraction(loss[3]))
        labels = [term.label for term in terms if term.label[0] == "a"]
        assert labels == [f"a[{i}]*b[{i}]" for i in range(max(2, block))], case
        assert all(not term.losses for step in trace(base, a, b, c).steps for term in step.terms)


def test_more_than_one_loss():
    base = EngineModel("", FP16, FP16, product_rounding="zero", subnormal_products="flush", product_overflow="infinity")
    a, b = [1 + 2.0**-10], [2.0**-15]
    (term,) = (term for term in trace(base, a, b).steps[0].terms if term.losses)
    exact, rounded = Fraction(a[0]) * Fraction(b[0]), Fraction(1, 2**15)
    assert term.losses == (
        Loss("a[0]*b[0]", "rounded", exact, rounded),
        Loss("a[0]*b[0]", "flushed", rounded, 0.0),
    )
    assert (term.value, term.kept, term.lost) == (exact, 0, exact)
    both = trace(replace(base, subnormal_inputs="flush"), [TINY], [TINY]).steps[0].terms[1]
    assert [loss.what for loss in both.losses] == ["a[0]", "b[0]"] and both.lost == Fraction(1, 2**48)
    beyond = trace(base, [256.0], [-256.0]).steps[0].terms[1]
    assert beyond.losses == (Loss("a[0]*b[0]", "overflowed", Fraction(-(2**16)), -math.inf),)
    assert (beyond.value, beyond.kept, beyond.lost) == (-(2**16), -math.inf, 0)
    nothing = trace(replace(base, subnormal_inputs="flush"), [math.inf], [TINY]).steps[0].terms[1]
    assert nothing.value == math.inf and math.isnan(nothing.kept)


def test_losses_are_cut_off_and_scaled_too():
    cut = replace(CUT, product_rounding="zero", fraction_bits=10)
    a, b = [1.0, (1 + 2.0**-10) * 2.0**-5], [1.0, 1 + 2.0**-10]
    wide = trace(replace(cut, output=FP16), a, b).steps[0].terms[2]
    assert wide.value == Fraction(a[1]) * Fraction(b[1]) and wide.kept == Fraction(1, 2**5)
    assert wide.losses == (Loss("a[1]*b[1]", "rounded", wide.value, Fraction(1 + 2.0**-9) / 2**5),)
    for summation, label in (("terms", "a[1]*b[1]"), ("groups", "group[0]")):
        model = EngineModel(
            "", E4M3, FP32, block=4, fraction_bits=24, subnormal_inputs="flush", scale=BlockScale("ue8m0", 4, summation)
        )
        step = trace(model, [1.0, 2.0**-9], [1.0, 1.0], 0.0, [4.0], [2.0]).steps[0]
        (term,) = (term for term in step.terms if term.losses)
        assert (term.label, term.lost) == (label, Fraction(1, 2**6))
        assert term.losses == (Loss("a[1]", "flushed", Fraction(1, 2**9), 0.0),)


def test_sums_that_are_flushed_are_rounding_errors():
    (step,) = trace(EngineModel("", FP16, FP16, subnormal_outputs="flush"), [-TINY], [1.0]).steps
    assert (step.total, step.result, step.rounding_error) == (-TINY, 0, TINY)


def test_groups_sums_are_cut_before_a_late_join():
    late = EngineModel(
        "", FP16, FP32, block=1, depth=2, groups=((0,), (1,)), group_sums="separate", fraction_bits=8,
        join=LateJoin(30, 30, 8),
    )  # fmt: skip
    t = trace(late, [1.0, -(2.0**-9)], [1.0, 1.0], 2.0**-9)
    assert [step.kind for step in t.steps] == ["block", "block", "join", "join"]
    assert t.steps[2].quantum == -8 and [term.lost for term in t.steps[2].terms] == [0, Fraction(1, 2**9)]
    assert t.steps[3].total == 1 - Fraction(1, 2**9) and t.steps[3].rounding_error == 0
    t = trace(late, [1.0, 0.0], [1.0, 1.0], 2.0**-9)
    assert (t.steps[3].total, t.steps[3].rounding_error) == (1 + Fraction(1, 2**9), -Fraction(1, 2**9))


def test_a_flushed_accumulator_is_that_of_an_instruction():
    base = EngineModel("", FP16, FP16, depth=2, subnormal_accumulators="flush")
    terms = [2.0**-24] * 4
    assert total(base, terms) == 2.0**-23  # what two products left is flushed before the next two
    assert total(replace(base, depth=4), terms) == 2.0**-22


@pytest.mark.parametrize(
    ("zeros", "cancelled", "negative", "mixed", "tiny"),
    [("ieee", 0.0, -0.0, 0.0, -0.0), ("positive", 0.0, 0.0, 0.0, -0.0), ("unsigned", 0.0, 0.0, 0.0, 0.0)],
)
def test_signs_of_zeros(zeros, cancelled, negative, mixed, tiny):
    for summation, join in (("aligned", "inside"), ("sequential", "inside"), ("pairwise", "after")):
        model = EngineModel("", FP16, FP16, block=2, zeros=zeros, summation=summation, join=join)
        assert bits(total(model, [1.0, -1.0], -0.0)) == bits(cancelled), summation
        assert bits(total(model, [-0.0, -0.0], -0.0)) == bits(negative), summation
        assert bits(total(model, [-0.0, 0.0], -0.0)) == bits(mixed), summation
        assert bits(total(model, [-0.0, -0.0], 0.0)) == bits(mixed), summation
        if join == "inside":  # the last product is too small for FP16, and underflows with its sign
            assert bits(dot(model, [-0.0, -(2.0**-14)], [1.0, 2.0**-14], -0.0)) == bits(tiny), summation


def test_infinities_and_nan():
    for summation, join in (("aligned", "inside"), ("sequential", "inside"), ("pairwise", "after")):
        model = EngineModel("", FP16, FP32, block=2, summation=summation, join=join)
        assert total(model, [math.inf, 1.0]) == math.inf and total(model, [-math.inf, -math.inf]) == -math.inf
        assert total(model, [1.0, 1.0], -math.inf) == -math.inf
        for terms, c in (([math.inf, -math.inf], 0.0), ([math.inf, 1.0], -math.inf), ([math.nan, 1.0], math.inf)):
            assert math.isnan(total(model, terms, c))
        assert math.isnan(dot(model, [math.inf], [0.0])) and math.isnan(total(model, [1.0], math.nan))


@pytest.mark.parametrize(
    ("mode", "overflow", "wanted"),
    [("nearest", "infinity", math.inf), ("zero", "infinity", 65504.0), ("zero", "saturate", 65504.0)],
)
def test_sums_at_the_end_of_the_range(mode, overflow, wanted):
    model = EngineModel("", FP16, FP16, block=2, rounding=mode, overflow=overflow)
    assert total(model, [65504.0, 16.0]) == wanted
    assert total(model, [65504.0, 15.0]) == 65504.0
    assert total(model, [65504.0, 32.0]) == (65504.0 if overflow == "saturate" else math.inf)


def test_factors_of_terms_raise_their_exponents():
    model = EngineModel(
        "", E4M3, FP32, block=4, fraction_bits=24, rounding="zero", scale=BlockScale("ue8m0", 2, "terms")
    )
    t = trace(model, [1.0, 1.5, 1.0], [1.0] * 3, 0.0, [2.0, 2.0**-30], [4.0, 1.0])
    assert [term.exponent for term in t.steps[0].terms] == [None, 3, 3, -30, None]
    assert t.steps[0].quantum == -21 and t.steps[0].terms[3].kept == 0 and t.result == 20.0
    assert math.isnan(dot(model, [1.0], [1.0], 0.0, [math.nan], [1.0]))


def test_factors_of_groups_multiply_exact_sums():
    model = EngineModel(
        "", E2M1, FP32, block=4, fraction_bits=24, rounding="zero", scale=BlockScale("ue4m3", 2, "groups")
    )
    t = trace(model, [6.0, -6.0, 1.0, 0.5], [1.0] * 4, 0.0, [1.5, 2.0], [448.0, 1.125])
    assert [(term.label, term.value, term.exponent) for term in t.steps[0].terms] == [
        ("c", 0.0, None),
        ("group[0]", 0, 8),  # it cancels, and keeps its factors' exponent
        ("group[1]", Fraction(27, 8), 1),
    ]
    assert t.result == 3.375


UE8M0 = EngineModel("", E4M3, FP32, block=4, fraction_bits=24, scale=BlockScale("ue8m0", 4, "terms"))
UE4M3 = EngineModel("", E2M1, FP32, block=4, fraction_bits=24, scale=BlockScale("ue4m3", 4, "groups"))
WHOLE = EngineModel("", INT8, INT32, overflow="wrap")


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (CUT, ([0.1], [1.0]), "1 of 1 values of a are none of fp16, first 0.1; round them first"),
        (CUT, ([1.0], [65536.0]), "of b are none of fp16"),
        (CUT, ([1.0], [1.0], 1 + 2.0**-24), "of c are none of fp32"),
        (WHOLE, ([0.5, 300.0], [1.0, 1.0]), "2 of 2 values of a are none of int8, first 0.5"),
        (WHOLE, ([math.nan], [1.0]), "of a are none of int8, first nan"),
        (WHOLE, ([1.0], [1.0], math.inf), "of c are none of int32"),
        (CUT, ([1.0], [1.0], 0.0, [1.0], [1.0]), "leave out scale_a"),
        (UE8M0, ([1.0], [1.0]), "pass scale_a"),
        (UE8M0, ([1.0], [1.0], 0.0, [1.0]), "pass scale_b"),
        (UE8M0, ([1.0], [1.0], 0.0, [1.0] * 2, [1.0]), r"scale_a has shape \(2,\); pass \(1,\)"),
        (UE8M0, ([1.0], [1.0], 0.0, [1.0], [3.0]), "3.0 in scale_b is no ue8m0 value; pass powers of two"),
        (UE8M0, ([1.0], [1.0], 0.0, [-1.0], [1.0]), "-1.0 in scale_a is no ue8m0 value"),
        (UE4M3, ([1.0], [1.0], 0.0, [1.0], [1.1]), "1.1 in scale_b is no ue4m3 value; pass values of e4m3"),
        (CUT, ("1", [1.0]), "a='1' holds text; pass real numbers"),
        (CUT, ([1.0], [[1.0], [1.0, 2.0]]), "b=.* is no array of numbers"),
        (CUT, ([1.0], [1.0], None), "c=None holds what is no number"),
        ("v100.fp16.fp32", ([1.0], [1.0]), "model='v100.fp16.fp32'; pass an EngineModel"),
        (None, ([1.0], [1.0]), "model=None; pass an EngineModel"),
        (CUT, ([], []), "with the same k >= 1|pass the same k"),
        (CUT, ([1.0], [1.0, 2.0]), "with the same k >= 1|pass the same k"),
    ],
)
def test_operands_are_refused_as_the_simulator_refuses_them(model, arguments, message):
    refusals = []
    for refusing in (trace, dot, simulate.dot):
        with pytest.raises(PrismmError, match=message) as refusal:
            refusing(model, *arguments)
        refusals.append(refusal.type)
    assert len(set(refusals)) == 1


def test_one_dot_product_at_a_time():
    for a, c in (([[1.0]], 0.0), ([1.0], [0.0]), (1.0, 0.0)):
        with pytest.raises(ShapeError, match=r"pass \(k,\), \(k,\) with the same k >= 1, \(\)"):
            trace(CUT, a, a, c)
    assert trace(CUT, np.ones(3, np.float16), [1, 2, 3], np.int64(1)).result == 7.0


def check_trace(found):
    """Every step explains itself."""
    for step in found.steps:
        for term in step.terms:
            if all(isinstance(x, Fraction) or x == 0 for x in (term.value, term.kept)):
                assert term.value == Fraction(term.kept) + term.lost
            if step.quantum is not None and term.kept:
                assert (Fraction(term.kept) / Fraction(2) ** step.quantum).denominator == 1
                assert term.losses or abs(term.lost) < Fraction(2) ** step.quantum
            if term.lost and not term.losses:
                assert step.quantum is not None or step.kind == "join"
        numbers = [x for term in step.terms for x in (term.value, term.kept)]
        if not all(isinstance(x, Fraction) or math.isfinite(x) for x in numbers):
            assert step.rounding_error == 0
            continue
        kept = sum((Fraction(term.kept) for term in step.terms), Fraction(0))
        assert (kept != step.total) == step.wrapped
        if isinstance(step.result, Fraction) or math.isfinite(step.result):
            assert Fraction(step.total) + step.rounding_error == step.result


def check_terms(found, model, a, b, c):
    """Every product and c is there as it was passed, and how it became what is left of it."""
    terms = {term.label: term for step in found.steps for term in step.terms if term.label != "sum"}
    k = len(a)
    assert set(terms) == {"c"} | {f"a[{i}]*b[{i}]" for i in range(k + -k % model.instruction_depth)}
    wanted = {f"a[{i}]*b[{i}]": Fraction(x) * Fraction(y) for i, (x, y) in enumerate(zip(a, b, strict=True))}
    for label, value in {**wanted, "c": Fraction(c)}.items():
        term = terms[label]
        assert term.value == value
        last: dict = {}
        for loss in term.losses:
            assert loss.before != loss.after and last.get(loss.what, loss.before) == loss.before
            assert (loss.after == 0) if loss.how == "flushed" else (label == loss.what)
            last[loss.what] = loss.after
        left = last.get(label, 0) if term.losses else value  # of a flushed factor there is nothing left
        assert term.kept == left or term.exponent is not None  # what is aligned is cut off, too


@pytest.mark.slow
def test_traces_of_random_models_add_up(rng):
    rounded = lost = narrowed = 0
    for _ in range(250):
        model = float_model(rng)
        if rng.random() < 0.5:
            model = plainer(model, rng)
        if model.scale is not None:
            continue
        kind = str(rng.choice([k for k in KINDS if k != "specials"]))
        k = int(rng.integers(1, 20))
        a, b = (values(model.input, (k,), kind, rng).tolist() for _ in range(2))
        c = float(values(model.output, (1,), kind, rng)[0])
        found = trace(model, a, b, c)
        check_trace(found)
        check_terms(found, model, a, b, c)
        rounded += any(step.rounding_error for step in found.steps)
        terms = [term for step in found.steps for term in step.terms]
        lost += any(term.lost for term in terms)
        narrowed += any(term.losses for term in terms)
    assert min(rounded, lost, narrowed) > 0


SMALL = (Format(2, 1), Format(3, 2), E5M2, Format(4, 3))


def ordered(format):
    """Finite values of no sign."""
    count = ((1 << format.exponent_bits) - 1) << format.fraction_bits
    steps = [
        (Fraction(i % (1 << format.fraction_bits), 1 << format.fraction_bits) + (i >> format.fraction_bits > 0))
        * Fraction(2) ** (max(i >> format.fraction_bits, 1) - format.bias)
        for i in range(count)
    ]
    assert steps == sorted(set(steps)) and steps[-1] == format.max
    return steps


@pytest.mark.covering
@pytest.mark.parametrize("overflow", ["infinity", "saturate"])
@pytest.mark.parametrize("mode", ["nearest", "zero", "floor", "odd"])
@pytest.mark.parametrize(
    "format", [Format(2, 1), Format(3, 2), E5M2, Format(4, 3)], ids=lambda f: f"m{f.fraction_bits}"
)
def test_rounding_at_every_value_and_between(format, mode, overflow):
    """The values, 2^maxexp after the largest, and what lies at and beside quarters of the way."""
    steps = [*ordered(format), Fraction(2) ** format.maxexp]
    beyond = math.inf if overflow == "infinity" else format.max
    eps = format.smallest_subnormal / 64
    points = {v for v in steps if v} | {steps[-1] * 5, steps[-1] + Fraction(eps)}
    for low, high in itertools.pairwise(steps):
        points |= {low + (high - low) * q / 4 + d * Fraction(eps) for q in range(4) for d in (-1, 0, 1)}
    for size, sign in itertools.product(sorted(p for p in points if p > 0), (1, -1)):
        i = bisect_right(steps, size) - 1
        if size >= steps[-1]:
            wanted = beyond
        else:
            away = size - steps[i] > steps[i + 1] - size
            tie = size - steps[i] == steps[i + 1] - size
            up = {
                "nearest": away or (tie and i % 2 == 1),
                "zero": False,
                "floor": sign < 0 and size > steps[i],
                "odd": size > steps[i] and i % 2 == 0,
            }[mode]
            wanted = float(steps[i + up]) if i + up < len(steps) - 1 else beyond
        assert bits(round_to(sign * size, format, mode, overflow)) == bits(sign * wanted), (sign * size, wanted)


@pytest.mark.parametrize(("format", "kind"), [(FP16, np.float16), (FP32, np.float32)], ids=["fp16", "fp32"])
def test_rounding_to_nearest_is_numpys(format, kind, rng):
    exponents = rng.integers(format.subnormal_exponent - 3, format.maxexp + 1, 2000)
    for x in np.ldexp(
        1 + rng.integers(0, 2 ** (format.fraction_bits + 2), 2000) * 2.0 ** -(format.fraction_bits + 2), exponents
    ):
        with np.errstate(over="ignore", under="ignore"):
            wanted = float(kind(x))
        assert bits(round_to(Fraction(x), format, "nearest")) == bits(wanted)
        assert bits(round_to(-Fraction(x), format, "nearest")) == bits(-wanted)


@pytest.mark.parametrize(
    ("inputs", "output"), [(INT8, INT32), (UINT8, INT32), (INT8, Integer(20)), (UINT8, Integer(16, False))]
)
def test_integers_wrap_or_are_clamped(inputs, output, rng):
    span = 1 << output.bits
    for _ in range(200):
        k, depth = int(rng.integers(1, 10)), int(rng.integers(1, 5))
        a, b = (rng.integers(inputs.min, inputs.max + 1, k).tolist() for _ in range(2))
        c = int(rng.choice([output.min, output.max, 0])) + int(rng.integers(0, 5000)) * int(rng.choice([-1, 1]))
        c = min(max(c, output.min), output.max)
        model = EngineModel("", inputs, output, depth=depth, overflow="wrap")
        exact = c + sum(x * y for x, y in zip(a, b, strict=True))
        found = dot(model, a, b, float(c))
        assert output.min <= found <= output.max and (int(found) - exact) % span == 0
        clamped = c
        for i in range(0, k, depth):
            clamped += sum(x * y for x, y in zip(a[i : i + depth], b[i : i + depth], strict=True))
            clamped = max(output.min, min(output.max, clamped))
        assert dot(replace(model, overflow="saturate"), a, b, float(c)) == clamped


def test_traces_of_integers():
    model = EngineModel("", INT8, INT32, depth=2, overflow="saturate")
    t = trace(model, [127.0, 127.0, -1.0], [127.0, 1.0, 1.0], 2.0**31 - 100)
    assert [(s.total, s.wrapped, s.result) for s in t.steps] == [
        (2**31 - 100 + 127 * 128, True, 2**31 - 1),
        (2**31 - 2, False, 2**31 - 2),
    ]
    assert [term.label for term in t.steps[1].terms] == ["sum", "a[2]*b[2]"] and t.result == 2.0**31 - 2
