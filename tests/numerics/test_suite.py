"""The published test suites: their inputs, how they are read, and that the catalogue's models reproduce what was
published of every engine."""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from prismm.errors import ArgumentError, EngineError, ShapeError
from prismm.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, FP64, INT8, TF32
from prismm.numerics.catalogue import engine
from prismm.numerics.encodings import foreign
from prismm.numerics.suite import SUITES, Case, outcomes_published, predicted, run, tables
from prismm.numerics.suite import tests as all_tests  # pytest would collect it by its own name
from prismm.numerics.suite.expressions import factors, minus, power, value
from prismm.numerics.suite.framework import direction, equal
from prismm.numerics.suite.probes import tree
from prismm.numerics.suite.published import EXCEPTIONS
from tests.judge import assert_each

DEVICES = ("v100", "t4", "a100", "h100-mma", "b200-mma", "mi100", "mi250", "mi300")
FORMATS = [
    *[(x, FP32) for x in (FP16, BF16, TF32, E4M3, E5M2, E2M1, FP32)],
    *[(x, FP16) for x in (FP16, E4M3)],
    (FP64, FP64),
]

_RUNS = {}


def run_of(name, length=16):
    """All suites on a model of the catalogue, once."""
    if (name, length) not in _RUNS:
        model = engine(name)
        _RUNS[name, length] = run(model.dot, model.input, model.output, length=length, engine=name)
    return _RUNS[name, length]


# What was published.


@pytest.mark.slow
def test_every_published_outcome():
    def check(outcome):
        result = run_of(outcome.engine)[outcome.suite, outcome.id]
        if (outcome.engine, outcome.suite, outcome.id) in EXCEPTIONS:
            assert result.mark != outcome.mark, "an exception that is none"
        else:
            assert result.mark == outcome.mark, (result.status, result.values)

    assert_each(check, outcomes_published())


def test_exceptions_are_of_published_outcomes():
    known = {(o.engine, o.suite, o.id) for o in outcomes_published()}
    assert set(EXCEPTIONS) <= known and all(EXCEPTIONS.values())
    assert len(known) == len(outcomes_published())


def test_exception_of_volta_width():
    """Both terms of 2^-24 are lost beside 1 already in one block: there is nothing that another could lose."""
    results = run_of("v100.fp16.fp32")
    assert results["fttn", "T_acc_order"].values == (1.0, 1.0, 1.0)
    assert results["fttn", "T_blk_fma_width"].status == "no conclusion"
    assert results["khattak", "3"].number == 4  # the width, by a test that finds it


def test_every_engine_of_the_papers_is_there():
    of = {o.engine.partition(".")[0] for o in outcomes_published() if o.suite == "fasi"}
    assert of == set(DEVICES)
    measured = {(o.engine, o.id) for o in outcomes_published() if o.basis == "hardware"}
    for id in ("B3", "B4", "D1", "D3", "D5"):
        assert ("v100.fp16.fp32", id) in measured and ("t4.fp16.fp32", id) in measured


@pytest.mark.parametrize("device", ["t4", "a100"])
def test_values_of_the_paper_on_turing(device):
    """§3.2: T4 gives the V100's values with 2^-25 for 2^-24."""
    v100, other = (run_of(f"{d}.fp16.fp32") for d in ("v100", device))
    assert v100["fasi-v100", "D5"].values == (1 + 2.0**-23, 1.0)
    assert v100["fasi-v100", "D1"].values == (2.0**-23,)
    assert v100["fasi-v100", "D3"].values == (2.0**-23,)
    assert other["fasi-v100", "B3"].values == (1 + 2.0**-22,)
    assert other["fasi", "D5"].values == (1 + 2.0**-23, 1.0)


def test_values_of_the_paper():
    results = run_of("v100.fp16.fp32")
    assert results["fasi", "A2"].values == (2.0**-22,)
    assert results["fasi", "A3"].values == (2.0**-149,)
    assert results["fasi", "B1"].values == (4 * (1 - 2.0**-10 + 2.0**-22),)
    assert results["fasi", "C1"].values == (2.0,) and results["fasi", "C2"].values == (-2.0,)
    assert results["fasi", "D2"].values == (1 + 2.0**-23,)
    assert results["fasi", "D4a"].values == (4 + 2.0**-21,) * 4 and results["fasi", "D4b"].values == (8.0,)
    half = run_of("v100.fp16.fp16")
    assert half["fasi", "B2"].values == (1 - 2.0**-10 + 2.0**-11,)
    assert half["fasi", "C3"].values == (2.0**-24,)
    assert half["fasi", "A4"].values == (2.0**-15,) * 2


def test_hopper_keeps_terms_that_older_engines_lose():
    assert run_of("h100-mma.fp16.fp32")["fasi", "B4"].values == (1 + 2.0**-23,) * 4
    assert run_of("t4.fp16.fp32")["fttn", "T_monotone"].values == (33554436.0, 33554432.0)
    assert run_of("h100-mma.fp16.fp32")["probes", "monotone"].reading == "violated"


# The tests themselves.


@pytest.mark.covering("length")
@pytest.mark.parametrize(("input", "output"), FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("length", [1, 4, 8, 16, 32])
def test_suite_is_whole(input, output, length):
    found = all_tests(input, output, length=length)
    assert [t.suite for t in found] == sorted((t.suite for t in found), key=SUITES.index)
    keys = [(t.suite, t.id) for t in found]
    assert len(set(keys)) == len(keys)
    for test in found:
        assert test.title and test.source and test.decides and test.expectation
        assert bool(test.cases) != bool(test.reason), test.id
        for case in test.cases:
            for product in case.products:
                assert all(isinstance(value(x), Fraction) for x in factors(product))
            value(case.c)
            assert case.opposite().opposite() == case
            assert str(case)


@pytest.mark.covering("output")
@pytest.mark.parametrize(("input", "output"), FORMATS, ids=lambda f: f.name)
def test_no_input_is_rounded(input, output):
    seen = []

    def dot(a, b, c):
        assert a.shape == b.shape == (*c.shape, 16) and a.dtype == b.dtype == c.dtype == np.float64
        assert not (foreign(a, input).any() or foreign(b, input).any() or foreign(c, output).any())
        seen.append(c.size)
        return np.zeros(c.shape)

    results = run(dot, input, output)
    assert len(seen) == 1  # one call
    for result in results:
        assert result.status != "not applicable" or result.reading
        for case, v in zip(result.test.cases, result.values, strict=bool(result.values)):
            if v is None:
                continue
            a, b, c = case.numbers(16)
            assert all(
                value(x) == y
                for p, ys in zip(case.products, zip(a, b, strict=True), strict=False)
                for x, y in zip(factors(p), ys, strict=True)
            )
            assert value(case.c) == c


def test_not_applicable():
    results = run(engine("ada.e4m3.fp32").dot, E4M3, FP32)
    for suite, id in [("fasi", "B3"), ("fasi", "D2"), ("fasi-v100", "B4"), ("fttn", "T_norm"), ("example", "sum")]:
        assert results[suite, id].status == "not applicable"
        assert results[suite, id].reading == "the formats lack an input" and results[suite, id].mark == "-"
    assert results["fasi", "C3"].reading == "a test with FP16 results"
    short = run_of("v100.fp16.fp32", 2)
    assert short["fasi", "B1"].reading == "takes more than 2 products"
    assert short["fasi", "D1"].status == "failed"
    assert run_of("v100.fp16.fp32", 1)["khattak", "3"].status == "not applicable"


def test_squares_that_single_precision_does_not_hold():
    assert "does not hold" in run_of("mi250.fp32.fp32")["fasi", "B1"].reading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1-2^-11", 1 - Fraction(1, 2**11)),
        ("-2^-23-2^-24", -3 * Fraction(1, 2**24)),
        ("3*2^-11", 3 * Fraction(1, 2**11)),
        ("1.875", Fraction(15, 8)),
        ("2^25-2", Fraction(2**25 - 2)),
        ("-1.5*2^3", Fraction(-12)),
        ("2^-1074", Fraction(1, 2**1074)),
    ],
)
def test_expressions(text, expected):
    assert value(text) == expected
    assert value(minus(text)) == -expected and minus(minus(text)) == text


@pytest.mark.parametrize("text", ["", "x", "1 - 2", "2^", "1/3", "--1", "2^-24 * 4"])
def test_no_expressions(text):
    with pytest.raises(ArgumentError, match="no expression"):
        value(text)


def test_products():
    with pytest.raises(ArgumentError, match="no product"):
        factors("2^-24")
    for e in range(-60, 60):
        a, b = factors(power(e))
        assert value(a) * value(b) == Fraction(2) ** e


def test_case_beyond_float64():
    with pytest.raises(OverflowError):
        Case(("1+2^-60 * 1",)).numbers(1)


# How values are read.


def test_directions():
    judge = direction("2", "2+2^-22")
    up = 2 + 2.0**-22
    for values, mode in [((2.0, -2.0), "RZ"), ((up, -up), "RN"), ((up, -2.0), "RU"), ((2.0, -up), "RD")]:
        assert (judge(values, {}).reading, judge(values, {}).status) == (mode, "passed")
    for values in [(2.5, -2.0), (2.0, 2.0), (math.nan, -2.0)]:
        assert judge(values, {}).status == "failed"


def test_equality_is_of_all_values():
    judge = equal("1", "2", readings={"1": "one"})
    assert judge((1.0, 2.0), {}).status == "passed" and judge((1.0, 2.0), {}).reading == "one"
    assert judge((1.0, 1.0), {}).status == "failed"
    assert judge((math.nan, 2.0), {}).status == "failed"


def test_fttn_is_adaptive():
    volta, nearest = run_of("v100.fp16.fp32"), run_of("mi100.fp16.fp32")
    for id in ("T_3_bits_fin_rnd", "T_tie", "T_sticky", "T_blk_fma_width", "T_norm"):
        assert volta["fttn", id].status == "no conclusion" and volta["fttn", id].mark == "?"
    assert nearest["fttn", "T_tie"].reading == "to even" and nearest["fttn", "T_sticky"].reading == "yes"
    assert nearest["fttn", "T_3_bits_fin_rnd"].number == 3
    assert run_of("h100-mma.fp16.fp32")["fttn", "T_3_bits_fin_rnd"].number == 2


def test_rounding_of_products_of_single_precision():
    assert run_of("mi250.fp32.fp32")["fttn", "T_prod"].reading == "RN, ties to even"
    model = replace(engine("mi250.fp32.fp32"), product_rounding="zero", rounding="nearest", join="after")
    assert run(model.dot, FP32, FP32, suite="fttn")["fttn", "T_prod"].reading == "RZ"


@pytest.mark.parametrize(("block", "bits"), itertools.product([4, 8], [23, 24, 25, 26]))
def test_generalised_tests_find_parameters(block, bits):
    model = replace(engine("a100.fp16.fp32"), block=block, fraction_bits=bits)
    results = run(model.dot, FP16, FP32, suite=("khattak", "probes"))
    assert results["khattak", "1"].number == min(bits - 23, 2)
    assert results["khattak", "3"].number == block
    assert results["khattak", "2"].number == block.bit_length() - 1
    assert (results["khattak", "5"].reading, results["khattak", "7"].reading) == ("RZ", "RZ")
    assert results["khattak", "8"].reading == "RZ"
    assert results["probes", "bits"].number == results["probes", "bits of c"].number == bits
    assert results["probes", "ways"].number == block + 1


@pytest.mark.parametrize("rounding", ["nearest", "zero", "floor"])
@pytest.mark.parametrize(("input", "output"), [(FP16, FP32), (FP16, FP16), (BF16, FP32)], ids=lambda f: f.name)
def test_generalised_tests_find_rounding(input, output, rounding):
    bits = output.fraction_bits + 2
    model = replace(
        engine("a100.fp16.fp32"),
        input=input, output=output, rounding=rounding, nan=None, zero_exponent=None, fraction_bits=bits,
    )  # fmt: skip
    results = run(model.dot, input, output, suite="khattak")
    mode = {"nearest": "RN", "zero": "RZ", "floor": "RD"}[rounding]
    assert results["khattak", "5" if output == FP32 else "6"].reading == mode
    assert results["khattak", "8"].reading == mode
    assert results["khattak", "4"].reading == "late"


def test_floor_in_the_alignment():
    model = replace(engine("h100-mma.fp16.fp32"), alignment="floor")
    results = run(model.dot, FP16, FP32, suite="probes")
    assert (results["probes", "cut"].reading, results["probes", "cut of c"].reading) == ("RD", "RD")
    assert run_of("mi300.fp16.fp32")["probes", "cut of c"].reading == "RD"


def test_exponents_of_products():
    model = replace(engine("a100.fp16.fp32"), product_exponent="normalised")
    assert run(model.dot, FP16, FP32, suite="probes")["probes", "exponents"].reading == "normalised first"


@pytest.mark.parametrize(("name", "last"), [("v100", 42), ("t4", 44), ("a100", 44), ("h100-mma", 46), ("b200-mma", 46)])
def test_last_term_beside_zeros(name, last):
    assert run_of(f"{name}.fp16.fp16")["probes", "zeros"].number == last


def test_trees():
    assert tree({(0, 1): 2}, [0, 1]) == "(c p0)"
    assert tree({(0, 1): 4, (0, 2): 4, (0, 3): 4, (1, 2): 3, (1, 3): 3, (2, 3): 2}, range(4)) == "(c (p0 (p1 p2)))"
    assert tree({(0, 1): 2, (0, 2): 2, (1, 2): 2}, range(3)) is None
    assert tree({(0, 1): 2, (0, 2): 2, (1, 2): 3}, range(3)) is None


@pytest.mark.parametrize(
    ("name", "length", "found"),
    [
        ("v100.fp16.fp32", 8, "((c p0…p3) p4…p7)"),
        ("a100.tf32.fp32", 8, "((c p0…p3) p4…p7)"),
        ("h100-wgmma.e4m3.fp32", 32, "(c p0…p31)"),
        ("h100-mma.e4m3.fp32", 8, "(c ((p0 p1 p4 p5) p2 p3 p6 p7))"),
        ("h100-mma.e5m2.fp16", 8, "(c ((p0 p1 p4 p5) p2 p3 p6 p7))"),
        ("mi250.fp16.fp32", 8, "((c ((p0 p1) (p2 p3))) ((p4 p5) (p6 p7)))"),
        ("amx.bf16.fp32", 6, "(c (((p0 p2) p4) ((p1 p3) p5)))"),
        ("arm-bfdot-ebf1.bf16.fp32", 4, "((c (p0 p1)) (p2 p3))"),
        ("a100.fp64.fp64", 3, "(((c p0) p1) p2)"),
    ],
)
def test_tree_of_engine(name, length, found):
    assert run_of(name, length)["probes", "tree"].reading == found


def test_exact_sums_have_no_tree():
    assert run_of("mi100.fp16.fp32")["probes", "tree"].status == "failed"
    assert run_of("mi100.fp16.fp32")["probes", "ways"].status == "no conclusion"


def test_fp8_engines():
    assert run_of("ada.e4m3.fp32")["probes", "bits"].number == 13
    assert run_of("b200-tcgen05.e4m3.fp32")["probes", "bits"].number == 25
    assert run_of("mi300.e4m3fnuz.fp32")["probes", "bits of c"].reading == "24"


def test_engines_of_different_arithmetic_differ():
    """V100, T4, H100, MI100, MI250 and MI300 have a column of their own each; T4 and A100, H100 and B200 one."""
    columns = {d: tuple(r.mark for r in run_of(f"{d}.fp16.fp32")) for d in DEVICES}
    assert len(set(columns.values())) == 6
    assert columns["t4"] == columns["a100"] and columns["h100-mma"] == columns["b200-mma"]


# Use.


def test_nothing_is_called_where_nothing_applies():
    def dot(a, b, c):
        raise AssertionError

    assert all(r.status == "not applicable" for r in run(dot, E2M1, FP32, suite="example"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"input": INT8}, "floating-point"),
        ({"output": "fp32"}, "floating-point"),
        ({"length": 0}, "length=0"),
        ({"length": 4.0}, "length=4.0"),
        ({"suite": "all"}, "fasi-v100"),
        ({"suite": ("fasi", "fttm")}, "fttm"),
    ],
)
def test_arguments(arguments, said):
    given = {"input": FP16, "output": FP32, **arguments}
    with pytest.raises(ArgumentError, match=said):
        run(lambda a, b, c: c, given.pop("input"), given.pop("output"), **given)


def test_shape_of_what_is_returned():
    with pytest.raises(ShapeError, match="return"):
        run(lambda a, b, c: a, FP16, FP32)


def test_results():
    results = run_of("a100.fp16.fp32")
    assert len(results) == len(all_tests(FP16, FP32)) == len(list(results))
    assert results.get("fasi", "Z9") is None and results.get("fasi", "D1").mark == "P"
    with pytest.raises(KeyError):
        results["fasi", "Z9"]
    content = json.loads(json.dumps(results.to_dict(inputs=True)))
    assert (content["engine"], content["input"], content["output"]) == ("a100.fp16.fp32", "fp16", "fp32")
    d1 = next(r for r in content["results"] if (r["suite"], r["test"]) == ("fasi", "D1"))
    assert d1["cases"] == [{"products": ["1 * 1"], "c": "-1+2^-24"}]
    assert (d1["status"], d1["values"], d1["reading"]) == ("passed", [2.0**-24], "one or more")
    assert "cases" not in results.to_dict()["results"][0]


@pytest.mark.slow
def test_tables():
    runs = [replace(r, engine=r.engine.partition("-")[0].upper()) for r in predicted()]
    text = tables(*runs)
    lines = [line.split() for line in text.splitlines()]
    assert ["test", "shows", *[d.partition("-")[0].upper() for d in DEVICES]] in lines
    rows = {line[1]: line[-8:] for line in lines if line and line[0].startswith("§")}
    assert rows["A1"] == ["P"] * 5 + ["-"] * 3
    assert rows["D1"] == ["F"] + ["P"] * 7
    assert rows["B3"] == ["P", "P", "P", "F", "F", "F", "P", "F"]
    assert ["block", "4", "8", "8", ">=", "16", ">=", "16", "4", "4", "8"] in lines
    assert ["monotonic", *["no"] * 5] == next(line for line in lines if line[:1] == ["monotonic"])[:6]
    assert ["fraction", "bits", "23", "24", "24", "25", "25", ">=", "40", "23", "24"] in lines
    assert "(1) ((((c p0…p3) p4…p7) p8…p11) p12…p15)" in text
    assert "\n" not in tables(runs[0], suite="example").split("\n\n")[0]


def test_predicted():
    found = predicted("v100", "mi300", suite="example")
    assert [(r.engine, r.setting.output) for r in found] == [("v100", FP32), ("v100", FP16), ("mi300", FP32)]
    assert [r["example", "sum"].mark for r in found] == ["0", "-", "-0.5"]
    bf16 = predicted("a100", input=BF16, suite="fasi")
    assert len(bf16) == 1 and all(r.mark in "P-" for r in bf16[0])
    with pytest.raises(ArgumentError, match="v100 has no model with input 'bf16'"):
        predicted("v100", input=BF16)
    with pytest.raises(ArgumentError, match="several"):
        predicted("h100")
    with pytest.raises(EngineError):
        predicted("tpu")


def test_tables_of_one_unnamed_engine():
    model = engine("h100-mma.fp64.fp64")
    text = tables(run(model.dot, FP64, FP64, length=4))
    assert "fp64 → fp64" in text
    assert ["rounding", "of", "sums", "RN"] in [line.split() for line in text.splitlines()]
    with pytest.raises(ArgumentError, match="no results"):
        tables()


def test_unknown_suites():
    results = run(engine("v100.fp16.fp32").dot, FP16, FP32, suite="example")
    said = r"suite=.*; pass one of fasi, .*, several, or None for all"
    for wrong in ("nope", ["example", "nope"], 5, [["example"]]):
        with pytest.raises(ArgumentError, match=said):
            tables(results, suite=wrong)
        with pytest.raises(ArgumentError, match=said):
            all_tests(FP16, FP32, suite=wrong)
    assert tables(results, suite=("example",)) == tables(results, suite="example") == tables(results)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (lambda c: ["1.5"] * len(c), ArgumentError, "dot returned <U3 for .* dot products; return real numbers"),
        (lambda c: c + 0j, ArgumentError, "dot returned complex128"),
        (lambda c: [None] * len(c), ArgumentError, "dot returned object"),
        (lambda c: "no", ShapeError, r"dot returned shape \(\) for"),
        (lambda c: c[1:], ShapeError, "dot returned shape"),
        (lambda c: [[1.0], [1.0, 2.0]], ShapeError, r"dot returned no array: .*; return one of shape"),
    ],
    ids=["strings", "complex", "objects", "string", "short", "ragged"],
)
def test_answers_that_are_no_numbers(answer, error, said):
    with pytest.raises(error, match=said):
        run(lambda a, b, c: answer(c), FP16, FP32, suite="example")


def test_summary():
    from prismm.numerics.suite.printed import summary

    def found(*names):
        named = [replace(run_of(name), engine="it") for name in names]
        return dict(line.rsplit("  ", 1) for line in summary(named).splitlines()[2:])

    def of(*names):
        return {key.strip(): text.strip() for key, text in found(*names).items()}

    v100 = of("v100.fp16.fp32", "v100.fp16.fp16")
    assert v100 == {
        "subnormal inputs": "yes", "subnormal accumulators": "yes", "subnormal results": "yes",
        "exact products": "yes", "rounding of sums": "RZ", "rounding to FP16": "RN", "extra bits": "0",
        "fraction bits": "23", "cut off": "RZ", "fraction bits of c": "23", "c cut off": "RZ", "carry bits": "2",
        "block": "4", "normalised": "once", "monotonic": "no",
    }  # fmt: skip
    assert of("a100.fp16.fp32")["extra bits"] == "1" and of("h100-mma.fp16.fp32")["extra bits"] == ">= 2"
    mi250 = of("mi250.bf16.fp32")
    assert [mi250[f"subnormal {what}"] for what in ("inputs", "accumulators", "results")] == ["no"] * 3
    assert "subnormal results" not in of("mi250.fp16.fp32")  # what FP16 inputs give is normal in FP32
    assert mi250["rounding of sums"] == "RN" and mi250["monotonic"] == "not refuted"


def test_tables_can_be_asked_for_twice():
    results = [run(engine("v100.fp16.fp32").dot, FP16, FP32, suite="example")]
    assert tables(*results) == tables(*results)
