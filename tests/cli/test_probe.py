"""``prismm probe``: targets, the report, JSON, files and pages, and everything that a black box can do wrong.

What the probe finds is tested with the probe; most tests here give the command a finding made by hand.
"""

from __future__ import annotations

import doctest
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prismm import numerics
from prismm.cli import findings
from prismm.errors import EngineError
from prismm.numerics import EngineModel, Evidence, Finding, LateJoin, Observation, integers
from tests.cli.pages import parsed

Run = Callable[..., Any]


def observe(model: EngineModel, a: list[float], b: list[float], c: float) -> Observation:
    return Observation(tuple(a), tuple(b), c, model.dot(a, b, c).item())


def finding_of(model: EngineModel) -> Finding:
    """As the probe gives it for a model, with two properties and one of them undecided."""
    few = observe(model, [1.0, 2.0**-12], [1.0, 2.0**-12], 0.0)
    many = observe(model, [1.0, 0.5, 0.25, 2.0**-3, 2.0**-4, 2.0**-5], [1.0] * 6, 2.0**-20)
    evidence = (
        Evidence("fraction_bits", model.fraction_bits, ((23, many), (25, few)), ()),
        Evidence("rounding", model.rounding, (("nearest", many),), ()),
        Evidence("carry_bits", model.carry_bits, (), (3, 4, 5)),
        Evidence("join", model.join, ((LateJoin(), many),), ()),
    )
    named = replace(model.canonical(), name="probed")
    return Finding(named, evidence, {"carry_bits": (3, 4, 5)}, None, named, 1234, 56, 7.8, ("a note",))


@pytest.fixture(autouse=True, scope="module")
def kernels() -> None:
    """Compiled ahead, which is said on stderr."""
    for name in ("a100.fp16.fp32", "a100.int8.int32"):
        numerics.engine(name).dot([1.0], [1.0])


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The command's probe finds what an A100 does; what it was asked for is returned here."""
    asked: list[dict[str, Any]] = []

    def probe(dot: Any, input: Any, output: Any, **rest: Any) -> Finding:
        asked.append({"input": input.name, "output": output.name, **rest})
        rest["say"]("asking")
        return finding_of(numerics.engine("a100.fp16.fp32"))

    monkeypatch.setattr(numerics, "probe", probe)
    return asked


@pytest.fixture
def module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write mine.py into the working directory; it is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (folder / "mine.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "mine", raising=False)

    return write


def test_docstrings() -> None:
    assert doctest.testmod(findings).failed == 0


def test_report(prismm_main: Run, found: list[dict[str, Any]]) -> None:
    ran = prismm_main("probe", "t4.fp16.fp32", "--seed", 3, "--refutations", 9)
    assert ran.code == 0
    assert ran.err == "prismm: t4.fp16.fp32: asking\n"
    (asked,) = found
    assert {key: asked[key] for key in ("input", "output", "seed", "refutations", "name")} == {
        "input": "fp16",
        "output": "fp32",
        "seed": 3,
        "refutations": 9,
        "name": "t4.fp16.fp32",
    }
    lines = ran.out.splitlines()
    assert lines[0] == "t4.fp16.fp32 (fp16 · fp16 + fp32)"
    bits = next(line for line in lines if line.startswith("fraction_bits"))
    assert bits.endswith("24      a[0]·b[0] = 1·1, a[1]·b[1] = 2^-12·2^-12, c = 0 gives 1: not 25, nor 1 other")
    assert "undecided: 3-5 cannot be told apart from it" in ran.out
    assert "\n  carry_bits: 3-5, none\n" in ran.out
    assert "1234 answers, all of them reproduced; 56 of them asked to refute the model; 7.8 s" in ran.out
    same = ran.out.split("the catalogue has this model: ")[1].split(", ")
    assert "a100.fp16.fp32" in same and "v100.fp16.fp32" not in same


def test_kin_of_what_was_found() -> None:
    """The same, alike up to what is undecided, or the nearest and how it differs."""
    model = numerics.engine("a100.fp16.fp32")
    given = finding_of(model)
    assert "a100.fp16.fp32" in findings.kin(given).same
    near = replace(model, name="x", rounding="nearest")
    assert "a100.fp16.fp32" in findings.kin(replace(given, model=near, undecided={"rounding": (model.rounding,)})).alike
    other = findings.kin(replace(given, model=near))
    assert other.same == other.alike == other.equal == [] and "a100.fp16.fp32" in other.nearest
    assert other.differing == {"rounding": ("nearest", model.rounding)}
    text = findings.known(replace(given, model=near))
    assert text.endswith(f"differs in rounding, which is {model.rounding} there and nearest here")
    # A tree over four products rounds those of pairs; pairs in a chain round them, too.
    tree = numerics.engine("mi250-1k.bf16.fp32")
    pairs = replace(tree, name="x", block=2, depth=4, product_rounding=None, product_overflow="infinity")
    equal = findings.kin(finding_of(pairs))
    assert "mi250-1k.bf16.fp32" in equal.equal and not equal.nearest and tree.differences(pairs)
    assert "mi250-1k.bf16.fp32" in findings.known(finding_of(pairs))


def test_how_sure_the_catalogue_is() -> None:
    """Of every entry that is the model found, with both sides where published models differ."""
    finding = finding_of(numerics.engine("mi300.bf16.fp32"))
    told = findings.report(finding, "x").split("\n\n")[-1]
    assert told == findings.sureness(finding)
    assert told.startswith(
        "how sure that is of mi300.bf16.fp32: two published models agree but on subnormal results; MMA"
    )
    assert "give 0 there and 2^-149 here" in told
    assert findings.as_json(finding, "x")["catalogue_certainty"] == {
        "mi300.bf16.fp32": numerics.engine("mi300.bf16.fp32").certainty
    }
    many = findings.sureness(finding_of(numerics.engine("a100.fp16.fp32"))).splitlines()
    assert len(many) > 1 and all(line.startswith("how sure that is of ") for line in many)
    assert findings.sureness(replace(finding, model=replace(finding.model, block=3, name="other"))) == ""


def test_quiet_and_json(prismm_main: Run, found: object) -> None:
    ran = prismm_main("probe", "t4.fp16.fp32", "a100.fp16.fp32", "--quiet", "--json")
    assert ran.err == ""
    first, second = json.loads(ran.out, parse_constant=pytest.fail)["findings"]
    assert (first["target"], second["target"]) == ("t4.fp16.fp32", "a100.fp16.fp32")
    assert EngineModel.from_dict(first["model"]) == numerics.engine("a100.fp16.fp32").canonical()
    (bits, _, carry, join) = first["evidence"]
    assert bits["value"] == "24" and bits["decided"] and [x["value"] for x in bits["refuted"]] == ["23", "25"]
    seen = bits["refuted"][1]["by"]
    assert seen["products"] == [[0, "0x1p+0", "0x1p+0"], [1, "0x1p-12", "0x1p-12"]] and seen["k"] == 2
    assert not carry["decided"] and carry["open"] == ["3", "4", "5"]
    assert join["refuted"][0]["value"] == "late (32, 24, 31)"
    assert "a100.fp16.fp32" in first["catalogue"] and first["in_family"]


def test_model_and_page(prismm_main: Run, found: object, folder: Path) -> None:
    ran = prismm_main("probe", "t4.fp16.fp32", "-q", "-o", "m.json", "--html", "p.html")
    assert ran.code == 0
    model = EngineModel.from_json((folder / "m.json").read_text())
    assert model == finding_of(numerics.engine("a100.fp16.fp32")).model
    assert prismm_main("simulate", "m.json").code == 0
    page = parsed(folder / "p.html")
    text = "".join(page.text)
    assert "not 25, nor 1 other" in text and "No input was found that tells these from it: 3-5." in text
    assert "a note" in text and "a100.fp16.fp32" in text
    assert page.count["svg"] >= 2 and page.count["details"] >= 5
    for option, name in (("-o", "m.json"), ("--html", "p.html")):
        assert f"{name}: exists already; pass --force" in prismm_main("probe", "t4.fp16.fp32", option, name).refused()
    assert prismm_main("probe", "t4.fp16.fp32", "-q", "-o", "m.json", "--html", "p.html", "--force").code == 0


def test_page_of_several(prismm_main: Run, found: object, folder: Path) -> None:
    assert prismm_main("probe", "t4.fp16.fp32", "v100.fp16.fp32", "-q", "--html", "p.html").code == 0
    text = "".join(parsed(folder / "p.html").text)
    assert "What 2 engines compute" in text
    refusal = prismm_main("probe", "t4.fp16.fp32", "v100.fp16.fp32", "-o", "m.json").refused()
    assert "-o takes the model of one target; 2 are named" in refusal


def test_an_engine_outside_the_family(prismm_main: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    nearest = numerics.engine("a100.fp16.fp32")
    seen = replace(observe(nearest, [1.0, 0.0, 3.0], [1.0, 1.0, 2.0**-12], 2.0), d=17.0)
    outside = Finding(None, (), {}, seen, nearest, 500, 0, 1.0)
    monkeypatch.setattr(numerics, "probe", lambda *_, **__: outside)
    ran = prismm_main("probe", "t4.fp16.fp32", "-o", "m.json", "--html", "p.html")
    assert ran.code == 1
    assert "no model of the family reproduces its answers" in ran.out
    assert "a[0]·b[0] = 1·1, a[2]·b[2] = 3·2^-12, c = 2 gives 17" in ran.out
    assert "where the nearest model gives 0x1.8018p+1\n" in ran.out
    assert "fraction_bits" in ran.out and not (folder / "m.json").exists()
    assert "no model, so m.json was not written" in ran.err
    text = "".join(parsed(folder / "p.html").text)
    assert "First counterexample" in text and "gives 17" in text
    ran = prismm_main("probe", "t4.fp16.fp32", "--json")
    assert ran.code == 1
    (only,) = json.loads(ran.out)["findings"]
    assert only["model"] is None and not only["in_family"] and only["counterexample"]["d"] == "0x1.1p+4"


def test_function(
    prismm_main: Run, module: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole probe of a user's own function: integers that wrap around."""
    every = integers.candidates
    monkeypatch.setattr(integers, "candidates", lambda *formats: every(*formats)[:9])  # the others take seconds
    module("def dot(a, b, c):\n    return ((a * b).sum(1) + c + 2.0**31) % 2.0**32 - 2.0**31\n")
    arguments = ("--input", "int8", "--output", "int32", "--refutations", 500)
    ran = prismm_main("probe", "mine:dot", *arguments, "-q", "--html", "p.html", "-o", "m.json")
    assert ran.code == 0, ran
    assert "overflow" in ran.out and "wrap" in ran.out and "a100.int8.int32" in ran.out
    assert EngineModel.from_json((folder / "m.json").read_text()).overflow == "wrap"
    parsed(folder / "p.html")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import random\ndef dot(a, b, c):\n    return c + [random.random() for _ in c]", "not deterministic"),
        ("def dot(a, b, c):\n    return 1 / 0", "mine:dot raised ZeroDivisionError: division by zero"),
        ("def dot(a, b):\n    return a", "mine:dot raised TypeError"),
        ("def dot(a, b, c):\n    raise SystemExit(3)", "mine:dot raised SystemExit: 3"),
        ("def dot(a, b, c):\n    return [[1.0], [1.0, 2.0]]", "mine:dot returned no array: "),
        ("def dot(a, b, c):\n    return c[:-1]", "the black box returned"),
        ("def dot(a, b, c):\n    return 'x'", "the black box returned"),
        ("dot = 3", "mine has no function 'dot'"),
        ("", "mine has no function 'dot'"),
        ("raise SystemExit(3)", "importing mine raised SystemExit: 3"),
        ("def dot(:", "importing mine raised SyntaxError"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
    ],
)
def test_bad_functions(prismm_main: Run, module: Callable[[str], None], text: str, message: str) -> None:
    module(text)
    assert message in prismm_main("probe", "mine:dot", "--input", "int8", "--output", "int32", "-q").refused()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def dot(a, b, c):\n    return [[1.0], [1.0, 2.0]]", "mine:dot returned no array: "),
        ("def dot(a, b, c):\n    raise SystemExit(3)", "mine:dot raised SystemExit: 3"),
        ("def dot(a, b, c):\n    return ['1'] * len(c)", "dot returned <U1 for "),
        ("def dot(a, b, c):\n    return c[:-1]", "dot returned shape "),
    ],
)
def test_bad_functions_in_the_suite(prismm_main: Run, module: Callable[[str], None], text: str, message: str) -> None:
    module(text)
    ran = prismm_main("probe", "--suite", "mine:dot", "--input", "fp16", "--output", "fp32")
    assert message in ran.refused()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no target; pass one such as a100.fp16.fp32"),
        (("z80.fp16.fp32",), "unknown engine 'z80.fp16.fp32'"),
        (("missing.json",), "missing.json: No such file"),
        (("x" * 5_000,), "unknown engine 'xxx"),
        (("--suite", "x" * 5_000), "unknown engine 'xxx"),
        (("x" * 5_000 + ".json",), "x.json: File name too long"),
        (("mine:dot",), "mine:dot is a function; pass its formats too"),
        (("mine:dot", "--input", "fp15", "--output", "fp32"), "unknown format 'fp15'"),
        (("absent_module:dot", "--input", "fp16", "--output", "fp32"), "No module named 'absent_module'"),
        (("json:absent", "--input", "fp16", "--output", "fp32"), "json has no function 'absent'"),
        (("a100.fp16.fp32", "--input", "fp16"), "--input and --output are for functions"),
        (("rtx5090-nvfp4.e2m1.fp32",), "has block scales"),
        (("a100.fp16.fp32", "-o", "."), ".: is a directory"),
        (("a100.fp16.fp32", "--html", "absent/p.html"), "there is no directory absent"),
        (("--suite", "--html", "p.html"), "--html is for finding a model; leave it out, or --suite"),
        (("--suite", "a100.int8.int32"), "adds integers"),
    ],
)
def test_refusals(prismm_main: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in prismm_main("probe", *arguments).refused()


def test_malformed_models(prismm_main: Run, folder: Path) -> None:
    for text in ("{", '{"kind": "prismm.EngineModel", "version": 2}'):
        (folder / "m.json").write_text(text)
        assert "m.json: " in prismm_main("probe", "m.json").refused()


def test_no_gpu(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from prismm.numerics.hardware import device

    def none() -> Any:
        raise EngineError("no GPU can be used: none is there; run this on a machine with an NVIDIA GPU")

    monkeypatch.setattr(device, "gpu", none)
    for target in ("gpu", "gpu:mma.fp16.fp32"):
        assert "no GPU can be used" in prismm_main("probe", target).refused()
        assert "no GPU can be used" in prismm_main("probe", "--suite", target).refused()
    assert "gpu:" not in prismm_main("probe", "gpu:nothing").refused().split("error: ")[1][:4]


@pytest.mark.slow
def test_suite(prismm_main: Run) -> None:
    """The papers' tables; a device's FP32 and FP16 results share a column."""
    ran = prismm_main("probe", "--suite")
    assert ran.code == 0 and ran.err == "prismm: asking v100, t4, a100, h100-mma the published tests\n"
    head = next(line for line in ran.out.splitlines() if "v100" in line)
    assert head.split()[-4:] == ["v100", "t4", "a100", "h100-mma"]
    content = prismm_main("probe", "--suite", "a100.bf16.fp32", "--json").json()
    (only,) = content["results"]
    assert only["engine"] == "a100.bf16.fp32" and only["input"] == "bf16" and len(only["results"]) > 20


class Instruction:
    """What `hardware.find` gives, as far as the command uses it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = numerics.engine("a100.int8.int32" if "int8" in name else "a100.fp16.fp32")
        self.input, self.output = self.model.input, self.model.output

    def __call__(self, a: Any, b: Any, c: Any) -> Any:
        return self.model.dot(a, b, c)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from prismm.numerics.hardware import engine

    known = {"mma.fp16.fp32": (True, ""), "wgmma.fp16.fp32": (False, "not on this GPU"), "mma.int8.int32": (True, "")}
    monkeypatch.setattr(engine, "available", lambda: known)
    monkeypatch.setattr(engine, "find", Instruction)


def test_every_instruction_of_a_gpu(prismm_main: Run, gpu: None, found: list[dict[str, Any]]) -> None:
    ran = prismm_main("probe", "gpu", "--json", "-q")
    assert [x["target"] for x in ran.json()["findings"]] == ["gpu:mma.fp16.fp32", "gpu:mma.int8.int32"]
    assert [x["input"] for x in found] == ["fp16", "int8"]
    assert prismm_main("probe", "gpu:mma.fp16.fp32", "-q").out.startswith("gpu:mma.fp16.fp32 (")


def test_suite_of_a_gpu_leaves_integers_out(prismm_main: Run, gpu: None) -> None:
    ran = prismm_main("probe", "--suite", "gpu")
    assert ran.code == 0 and "gpu:mma.fp16.fp32" in ran.out
    assert ran.err == "prismm: gpu:mma.int8.int32 adds integers, and is left out\n"


def test_one_of_several_fails(prismm_main: Run, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(dot: Any, input: Any, output: Any, **rest: Any) -> Finding:
        if input.name == "fp16":
            raise EngineError("the black box is not deterministic")
        return finding_of(numerics.engine("a100.fp16.fp32"))

    monkeypatch.setattr(numerics, "probe", probe)
    ran = prismm_main("probe", "gpu")
    assert ran.code == 2 and ran.out.startswith("gpu:mma.int8.int32 (")
    assert ran.err == "prismm: error: gpu:mma.fp16.fp32: the black box is not deterministic\n"


def test_interrupted(prismm_main: Run, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(dot: Any, input: Any, output: Any, **rest: Any) -> Finding:
        if input.name == "int8":
            raise KeyboardInterrupt
        return finding_of(numerics.engine("a100.fp16.fp32"))

    monkeypatch.setattr(numerics, "probe", probe)
    ran = prismm_main("probe", "gpu")
    assert ran.code == 130 and ran.out.startswith("gpu:mma.fp16.fp32 (")
    assert ran.err == "prismm: interrupted; 1 of 2 targets were probed\n"
