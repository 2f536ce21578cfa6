"""``prismm simulate``: the list of engines, traces of dot products, their pages, and whole products."""

from __future__ import annotations

import doctest
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm import numerics
from prismm.cli import engine_product, numerals, operands, traces
from prismm.cli.html import markup
from prismm.cli.html.picture import picture
from prismm.cli.numerals import decimal, hexadecimal, in_format, parse_number, short
from prismm.errors import ArgumentError
from prismm.formats import E4M3, E4M3FNUZ, FP16, FP32, FP64, INT8, round_fraction
from prismm.numerics import EngineModel
from prismm.testing import exact_product
from tests.cli.pages import parsed

Run = Callable[..., Any]


def test_docstrings() -> None:
    for module in (numerals, operands, traces, markup, engine_product):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 2^-12 ", Fraction(1, 4096)),
        ("-3*2^5", -96),
        ("1+2^-10", 1 + Fraction(1, 1024)),
        ("1 - 2^-10 + 3 * -2^-20", 1 - Fraction(1, 1024) - Fraction(3, 1 << 20)),
        ("0x1.8p3", 12),
        ("0X.8P-1", Fraction(1, 4)),
        ("1.5e-1", Fraction(0.15)),
        ("−2", -2),
        ("3.4028234663852886e+38", Fraction(FP32.max)),
    ],
)
def test_numbers(text: str, value: Fraction | int) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", ["", "x", "2^", "^2", "1 2", "1..2", "--1", "2^^3", "(1)", "1/3", "0x", "1e", "inf+1"])
def test_no_numbers(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"is no number; write decimals, hex floats such as 0x1\.8p3"):
        parse_number(text)


@pytest.mark.parametrize("text", ["1e400", "2^9999999999", "1e-400", "0x1p9999", "1" * 500])
def test_numbers_that_are_too_much(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"beyond float64|a number of 500 characters"):
        parse_number(text)


def test_what_is_shown_is_read_back_as_it_was(rng: np.random.Generator) -> None:
    patterns = rng.integers(0, 1 << 64, 300, dtype=np.uint64).view(np.float64)
    values = [float(x) for x in patterns if math.isfinite(x)] + [0.1, 1.0, -0.0, 65504.0, 2.0**-1074, FP64.max]
    for value in values:
        for text in (short(value), hexadecimal(value), decimal(value)):
            read = parse_number(text)
            assert float(read) == value and math.copysign(1.0, float(read)) == math.copysign(1.0, value), text


def test_values_of_a_format() -> None:
    assert in_format(Fraction(2049), FP16, "x", rounded=True) == 2048.0
    assert in_format(Fraction(500), E4M3, "x", rounded=True) == 448.0
    assert in_format(Fraction(300), INT8, "x", rounded=True) == 127.0
    assert math.copysign(1.0, in_format(-0.0, FP16, "x")) == -1.0
    assert math.copysign(1.0, in_format(-0.0, E4M3FNUZ, "x")) == 1.0
    with pytest.raises(ArgumentError, match="e4m3 has no infinity"):
        in_format(math.inf, E4M3, "x")
    with pytest.raises(ArgumentError, match="int8 has no NaN"):
        in_format(math.nan, INT8, "x", rounded=True)


def test_list(prismm_main: Run) -> None:
    ran = prismm_main("simulate", "--list")
    assert ran.code == 0
    for name in numerics.engines():
        assert f"\n{name} " in ran.out
    without = ran.out.partition("without a model")[2]
    for known in ("tpu", "TDPBSUD and TDPBUSD", ".s4 with .u4", "\n  a100.b1.int32: "):
        assert known in without
    few = prismm_main("simulate", "--list", "V100", "--json").json()
    assert {entry["name"] for entry in few["engines"]} == {n for n in numerics.engines() if "v100" in n}
    assert EngineModel.from_dict(few["engines"][0]) == numerics.engine(few["engines"][0]["name"])
    assert "no engine's name contains 'z80'" in prismm_main("simulate", "--list", "z80").refused()


def test_published_sum(prismm_main: Run) -> None:
    """What Xie et al. print in Table 8."""
    names = {"v100.fp16.fp32": 0.0, "t4.fp16.fp32": -0.5, "a100.fp16.fp32": -0.5, "h100-mma.fp16.fp32": -0.75}
    found = prismm_main("simulate", *names, "--json").json()
    assert {x["engine"]: float.fromhex(x["result"]["hex"]) for x in found["results"]} == names
    assert all(x["exact"] == {"decimal": "-0.875", "hex": "-0x1.cp-1"} for x in found["results"])
    ran = prismm_main("simulate", *names)
    assert "2^23 - 2^23 - 0.5 - 0.25 - 0.125" in ran.out and "step 1" not in ran.out
    assert prismm_main("simulate", *names, "--steps").out.count("step 1 of 1") == len(names)


def test_steps_of_one_engine(prismm_main: Run) -> None:
    out = prismm_main("simulate", "a100.fp16.fp32").out
    assert "step 1 of 1: a block of products, terms cut off below 2^-1\n" in out
    lost = next(line for line in out.splitlines() if "a[3]*b[3]" in line)
    assert lost.split() == ["a[3]*b[3]", "-0.125", "-3", "0", "-0.125", "01", "at", "2^-2", "to", "2^-3"]
    assert "sum     -0.5\n  result  -0.5" in out
    assert "step" not in prismm_main("simulate", "a100.fp16.fp32", "--no-steps").out


@pytest.mark.parametrize("name", ["h100-mma.e4m3.fp32", "mi300.fp16.fp32", "mi250.bf16.fp32", "a2.int8.int32"])
def test_json_is_the_trace(prismm_main: Run, name: str) -> None:
    """Results are those of the specification; every term is what was kept and what was lost; sums are theirs."""
    model = numerics.engine(name)
    (found,) = prismm_main("simulate", name, "--random", 7, "--seed", 3, "--json").json()["results"]
    a, b = ([float.fromhex(x) for x in found[key]] for key in "ab")
    c = float.fromhex(found["c"])
    expected = numerics.trace(model, a, b, c)
    assert float.fromhex(found["result"]["hex"]) == expected.result
    assert EngineModel.from_dict(found["model"]) == model
    exact = sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(c))
    assert parse_number(found["exact"]["hex"]) == exact
    if not model.is_integer:
        near = round_fraction(FP32, exact.numerator, 1 - exact.denominator.bit_length())
        assert int(found["nearest"]["bits"], 16) == np.float32(near).view(np.uint32)
        error = abs(Fraction(expected.result) - exact) / Fraction(2) ** FP32.ulp_exponent(float(exact))
        assert found["error_in_ulps"] == float(error)
    for step, wanted in zip(found["steps"], expected.steps, strict=True):
        assert parse_number(step["total"]) == wanted.total and parse_number(step["result"]) == wanted.result
        for term in step["terms"]:
            assert parse_number(term["value"]) == parse_number(term["kept"]) + parse_number(term["lost"])


def test_operands_and_specials(prismm_main: Run) -> None:
    ran = prismm_main("simulate", "a100.fp16.fp32", "--a", "inf, 1", "--b", "-2^-12,-0", "--c", "0x1p3", "--json")
    (found,) = ran.json()["results"]
    assert found["result"] == {"decimal": "-inf", "hex": "-inf", "bits": "0xff800000"} and found["error_in_ulps"] == 0
    (found,) = prismm_main("simulate", "a100.fp16.fp32", "--a", "inf", "--b", "0", "--json").json()["results"]
    assert found["result"]["decimal"] == found["exact"]["decimal"] == "nan"
    (found,) = prismm_main("simulate", "a100.fp16.fp32", "--a", "0.1", "--b", "1", "--round", "--json").json()[
        "results"
    ]
    assert float.fromhex(found["a"][0]) == np.float16(0.1)
    (found,) = prismm_main(
        "simulate",
        "rtx5090-nvfp4.e2m1.fp32",
        "--a",
        "6,1",
        "--b",
        "1,1",
        "--scale-a",
        "2",
        "--scale-b",
        "0.5",
        "--json",
    ).json()["results"]
    assert float.fromhex(found["result"]["hex"]) == 7.0 == float.fromhex(found["exact"]["hex"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a100.fp16.fp33",), "a100 has no 'fp16.fp33'; pass"),
        (("z80.fp16.fp32",), "unknown engine 'z80.fp16.fp32'"),
        (("tpu",), "its arithmetic is not known, and not guessed"),
        ((), "no engine; pass one such as a100.fp16.fp32, or --list"),
        (("a100.fp16.fp32", "--a", "0.1", "--b", "1"), "a[0]=0.1 is no value of fp16; the nearest is 0.0999755859375"),
        (
            ("a100.fp16.fp32", "--a", "1,1+2^-11", "--b", "1,1"),
            "a100.fp16.fp32: a[1]=1.00048828125 is no value of fp16",
        ),
        (("a100.fp16.fp32", "--a", "1e5", "--b", "1"), "the nearest is inf"),
        (("h100-mma.e4m3.fp32", "--a", "inf", "--b", "1"), "a[0]=inf: e4m3 has no infinity"),
        (("a100.fp16.fp32", "--a", "1,2", "--b", "1"), "--a has 2 elements and --b 1"),
        (("a100.fp16.fp32", "--a", "1"), "pass both --a and --b"),
        (("a100.fp16.fp32", "--c", "1"), "need --a and --b"),
        (("a100.fp16.fp32", "--a", "1", "--b", "1", "--random", "3"), "--random makes its own operands"),
        (("a100.fp16.fp32", "--a", "1,", "--b", "one"), "'one' is no number"),
        (("a100.fp16.fp32", "--a", "1", "--b", "1", "--scale-a", "1"), "has no block scales"),
        (("rtx5090-mxf4.e2m1.fp32", "--a", "1", "--b", "1", "--scale-a", "1,1"), "--scale-a has 2 factors"),
        (("rtx5090-mxf4.e2m1.fp32", "--a", "1", "--b", "1", "--scale-a", "3"), "3.0 in scale_a is no ue8m0 value"),
        (("missing.json",), "missing.json: No such file"),
        (("x" * 5_000,), "unknown engine 'xxx"),
        (("x" * 5_000 + ".json",), "x.json: File name too long"),
        (("\0.json",), "'\\x00.json': embedded null"),
        (("a100.fp16.fp32", "a.npy"), "1 matrix files; pass ENGINE A B"),
        (("a.npy", "a100.fp16.fp32", "b.npy"), "pass ENGINE A B, with two of them at the end"),
        (("a100.fp16.fp32", "a.npy", "b.npy", "--a", "1"), "--a is for single dot products"),
        (("a100.fp16.fp32", "--split-k", "2"), "are for matrices; pass ENGINE A B"),
        (("a100.fp16.fp32", "--html", "there/p.html"), "there is no directory there"),
    ],
)
def test_refusals(prismm_main: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in prismm_main("simulate", *arguments).refused()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", '"kind" is not "prismm.EngineModel"'),
        ('{"kind": "prismm.EngineModel", "version": 99}', "a model of version 99; this prismm reads version 1"),
        ('{"kind": "prismm.EngineModel", "version": 1, "name": "x"}', "a model lacks input, output, accu"),
        (
            json.dumps({k: x for k, x in numerics.engine("a100.fp16.fp32").to_dict().items() if k != "rounding"}),
            "a model lacks rounding",
        ),
        (
            '{"kind": "prismm.EngineModel", "version": 1, "name": "x", "input": "fp16", "output": "fp32", "y": 1}',
            "unknown keys",
        ),
        ("[" * 100_000, "nested too deeply"),
        (
            json.dumps(numerics.engine("a100.fp16.fp32").to_dict() | {"name": "\ud800"}),
            "a text has half of a surrogate pair",
        ),
        ("\xff", "it is not text"),
    ],
)
def test_malformed_models(prismm_main: Run, folder: Path, text: str, message: str) -> None:
    (folder / "m.json").write_bytes(text.encode("latin-1"))
    refusal = prismm_main("simulate", "m.json").refused()
    assert message in refusal and "m.json" in refusal


def test_a_model_in_a_file(prismm_main: Run, folder: Path) -> None:
    model = EngineModel("mine", FP16, FP32, block=2, fraction_bits=11, carry_bits=0, alignment="floor", rounding="odd")
    (folder / "mine.json").write_text(model.to_json())
    arguments = ("simulate", "mine.json", "--a", "1.75,1.75,1.5", "--b", "1.75,1.75,1.5", "--c", "1+2^-20")
    (found,) = prismm_main(*arguments, "--json").json()["results"]
    assert found["engine"] == "mine" and any(step["wrapped"] for step in found["steps"])
    assert "wrapped around" in prismm_main(*arguments).out


@pytest.mark.parametrize(
    "name", ["a100.fp16.fp32", "h100-mma.e4m3.fp32", "mi300.fp16.fp32", "amx.bf16.fp32", "a2.int8.int32"]
)
def test_page(prismm_main: Run, folder: Path, name: str) -> None:
    ran = prismm_main("simulate", name, "v100.fp16.fp32" if name.startswith("a100") else name, "--html", "p.html")
    assert ran.code == 0 and ran.err == "prismm: wrote p.html\n"
    page = parsed(folder / "p.html")
    assert page.count["svg"] >= 1 and page.count["desc"] == page.count["svg"]
    assert name in "".join(page.text)
    assert "exists already; pass --force" in prismm_main("simulate", name, "--html", "p.html").refused()
    assert prismm_main("simulate", name, "--html", "p.html", "--force").code == 0


def test_page_escapes_names(prismm_main: Run, folder: Path) -> None:
    model = EngineModel("<script>alert(1)</script>&", FP16, FP32, block=2, source='"><img src=x>')
    (folder / "m.json").write_text(model.to_json())
    assert prismm_main("simulate", "m.json", "--html", "p.html").code == 0
    assert "<script>alert(1)</script>&" in "".join(parsed(folder / "p.html").text)


@pytest.mark.slow
def test_pictures_of_every_engine() -> None:
    """Every step that the published sum or random terms take on any engine can be drawn, and has all its ones."""
    for model in {numerics.engine(name) for name in numerics.engines()}:
        wanted = operands.published([model]) or operands.random([model], 5, 1)
        one = traces.traced(model, wanted.for_engine(model))
        for step in one.trace.steps:
            assert picture(model, step, "x").startswith("<svg")
        assert traces.steps(one) and traces.as_json(one)


def test_picture_has_every_bit() -> None:
    """Digits on the axis, row by row, are the binary digits of the terms, kept or lost."""
    model = numerics.engine("a100.fp16.fp32")
    step = numerics.trace(model, [1.5, 2.0**-12 * 1.25], [1.0, 2.0**-12], 1.0).steps[0]
    drawn = str(picture(model, step, "x"))
    assert drawn.count('class="digit lost"') == 1 and 'class="digit kept"' in drawn
    assert ">lost 2^-26<" in drawn


@pytest.fixture
def matrices(folder: Path, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    a, b = (rng.standard_normal(shape).astype(np.float16).astype(np.float64) for shape in ((9, 40), (40, 7)))
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    return a, b


def test_product(prismm_main: Run, folder: Path, matrices: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = matrices
    model = numerics.engine("v100.fp16.fp32")
    ran = prismm_main("simulate", "v100.fp16.fp32", "a.npy", "b.npy", "-o", "c.npy", "--json")
    c = np.load(folder / "c.npy")
    assert c.dtype == np.float32
    expected = model.dot(a[:, None, :], b.T[None, :, :], 0.0)
    np.testing.assert_array_equal(c, expected)
    found = ran.json()
    engine, single = found["results"]
    exact = exact_product(a, b)
    assert engine["ulps"] == exact.ulps(c).max()
    assert engine["componentwise"] == pytest.approx((exact.error(c) / exact.magnitude()).max(), rel=1e-12)
    assert single["componentwise"] > 0 and single["name"] == "IEEE fp32"
    assert found["entries_compared"] == 63 and not found["sampled"]
    assert "exists already" in prismm_main("simulate", "v100.fp16.fp32", "a.npy", "b.npy", "-o", "c.npy").refused()


def test_products_compared(prismm_main: Run, matrices: object) -> None:
    ran = prismm_main("simulate", "v100.fp16.fp32", "a100.fp16.fp32", "a.npy", "b.npy", "--split-k", "2")
    assert ran.code == 0 and "in 2 parts of the inner dimension" in ran.out
    assert [line.split()[0] for line in ran.out.splitlines()[-3:]] == ["v100.fp16.fp32", "a100.fp16.fp32", "IEEE"]
    ran = prismm_main("simulate", "v100.fp16.fp32", "a100.fp16.fp32", "a.npy", "b.npy", "-o", "c.npy")
    assert "-o takes the product of one engine" in ran.refused()
    ran = prismm_main("simulate", "v100.fp16.fp32", "a100.bf16.fp32", "a.npy", "b.npy")
    assert "engines of different formats" in ran.refused()


def test_products_of_other_values(prismm_main: Run, folder: Path, rng: np.random.Generator) -> None:
    np.save(folder / "a.npy", rng.standard_normal((5, 6)))
    np.save(folder / "b.npy", rng.standard_normal((6, 5)))
    arguments = ("simulate", "a100.fp16.fp32", "a.npy", "b.npy")
    assert "30 of 30 values are none of fp16" in prismm_main(*arguments).refused()
    ran = prismm_main(*arguments, "--round")
    assert ran.code == 0 and "60 input values" in ran.out
    np.save(folder / "b.npy", np.ones((5, 5)))
    assert "A must have as many columns as B has rows" in prismm_main(*arguments, "--round").refused()
    np.save(folder / "b.npy", np.ones((6, 5), np.longdouble))
    assert "b.npy: holds elements of type" in prismm_main(*arguments, "--round").refused()
    np.save(folder / "b.npy", np.ones((6, 5), complex))
    assert "holds complex numbers" in prismm_main(*arguments, "--round").refused()
    (folder / "b.npy").write_bytes(b"junk")
    assert "not a .npy file" in prismm_main(*arguments, "--round").refused()


def test_integer_products_are_exact(prismm_main: Run, folder: Path, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-128, 128, (6, 6)) for _ in range(2))
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    found = prismm_main("simulate", "a100.int8.int32", "a.npy", "b.npy", "-o", "c.npy", "--json").json()
    np.testing.assert_array_equal(np.load(folder / "c.npy"), a @ b)
    assert found["results"][0]["componentwise"] == 0.0


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0), (2, 0, 3)])
def test_empty_products(prismm_main: Run, folder: Path, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    np.save(folder / "a.npy", np.ones((m, k)))
    np.save(folder / "b.npy", np.ones((k, n)))
    ran = prismm_main("simulate", "a100.fp16.fp32", "a.npy", "b.npy", "--round", "-o", "c.npy", "--json")
    assert ran.json()["entries_compared"] == m * n
    np.testing.assert_array_equal(np.load(folder / "c.npy"), np.zeros((m, n), np.float32), strict=True)


def test_rounding_is_that_of_the_formats(rng: np.random.Generator) -> None:
    """`nearest` is `round_fraction`, entry by entry."""
    x = np.ldexp(rng.standard_normal(400), rng.integers(-30, 20, 400))
    for format in (FP16, E4M3, E4M3FNUZ, FP32):
        found = engine_product.nearest(x, format, "x")
        for value, got in zip(x.tolist(), found.tolist(), strict=True):
            exact = Fraction(value)
            want = round_fraction(format, exact.numerator, 1 - exact.denominator.bit_length())
            assert got == want and math.copysign(1, got) == math.copysign(1, want)


def test_json_of_a_list_is_strict(prismm_main: Run) -> None:
    json.loads(prismm_main("simulate", "--list", "--json").out, parse_constant=pytest.fail)
