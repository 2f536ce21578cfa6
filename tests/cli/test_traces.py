"""What the traces of ``prismm simulate`` say of flushed and rounded terms: in text, as JSON and on the page."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm import numerics
from prismm.cli import traces
from prismm.cli.html.picture import legend, picture
from prismm.cli.numerals import parse_number
from prismm.formats import E4M3, FP16, FP32
from prismm.numerics import BlockScale, EngineModel, Term
from prismm.numerics.steps import Loss
from tests.cli.pages import parsed

Run = Callable[..., Any]

FLUSHED = ("--a", "2^-24,1", "--b", "1,1", "--c", "2^-130")
"""MI250 flushes a[0] and c."""


def test_flushed_terms_in_text(prismm_main: Run) -> None:
    lines = [line.split() for line in prismm_main("simulate", "mi250.fp16.fp32", *FLUSHED).out.splitlines()]
    assert ["a[0]*b[0]", "2^-24", "0", "2^-24", "1", "at", "2^-24", "a[0]", "flushed", "to", "0"] in lines
    assert ["c", "2^-130", "0", "2^-130", "1", "at", "2^-130", "c", "flushed", "to", "0"] in lines
    assert ["term", "value", "exponent", "kept", "lost", "lost", "bits", "lost", "before"] in lines
    assert "lost before" not in prismm_main("simulate", "a100.fp16.fp32", *FLUSHED[:-2]).out


def test_flushed_terms_in_json(prismm_main: Run) -> None:
    (found,) = prismm_main("simulate", "mi250.fp16.fp32", *FLUSHED, "--json").json()["results"]
    terms = {term["label"]: term for step in found["steps"] for term in step["terms"] if term["losses"]}
    assert {label: term["losses"] for label, term in terms.items()} == {
        "a[0]*b[0]": [{"what": "a[0]", "how": "flushed", "before": "0x1p-24", "after": "0x0p+0"}],
        "c": [{"what": "c", "how": "flushed", "before": "0x1p-130", "after": "0x0p+0"}],
    }
    assert (terms["c"]["value"], terms["c"]["kept"], terms["c"]["lost"]) == ("0x1p-130", "0x0p+0", "0x1p-130")


def test_flushed_terms_on_the_page(prismm_main: Run, folder: Path) -> None:
    assert prismm_main("simulate", "mi250.fp16.fp32", *FLUSHED, "--html", "p.html").code == 0
    text = "".join(parsed(folder / "p.html").text)
    assert "lost 2^-24: a[0] flushed to 0" in text and "lost 2^-130: c flushed to 0" in text
    assert "lost before the sum: flushed, rounded or cut off" in text


@pytest.mark.parametrize("name", ["amx.bf16.fp32", "arm-bfdot.bf16.fp32", "arm-bfmmla.bf16.fp32"])
def test_processors_that_flush(prismm_main: Run, name: str) -> None:
    small = ("--a", "2^-130,2^-70,1", "--b", "1,2^-70,1", "--c", "2^-130")
    (found,) = prismm_main("simulate", name, *small, "--json").json()["results"]
    terms = [term for step in found["steps"] for term in step["terms"]]
    model = numerics.engine(name)
    flushed = {"a[0]": model.subnormal_inputs, "a[1]*b[1]": model.subnormal_products, "c": model.subnormal_accumulators}
    expected = [what for what, policy in flushed.items() if policy != "keep"]
    assert sorted(x["what"] for term in terms for x in term["losses"] if x["how"] == "flushed") == expected
    assert {"a[0]", "c"} <= set(expected)
    for wanted in ("0x1p-130", "0x1p-140", "0x1p+0"):
        assert any(term["value"] == wanted for term in terms)
    out = prismm_main("simulate", name, *small).out
    assert all(f"{what} flushed to 0" in out for what in expected)


def test_products_that_are_rounded() -> None:
    """(1 + 3u)^2 = 1 + 6u + 9u^2, u = 2^-10, of which FP16 drops the last term; in pairs of blocks of one."""
    model = EngineModel("", FP16, FP16, summation="pairwise", join="after", product_rounding="nearest")
    rough = 1 + 3 * 2.0**-10
    step = numerics.trace(model, [rough], [rough], 1.0).steps[0]
    (term,) = step.terms
    assert (traces.lost_bits(term, None), traces.lost_below(term, None)) == ("1001 at 2^-17 to 2^-20", -16)
    assert traces.lost_before(term) == "a[0]*b[0] rounded to 0x1.018p+0"
    drawn = str(picture(model, step, "x"))
    assert ">lost 9*2^-20: a[0]·b[0] rounded to 0x1.018p+0<" in drawn and drawn.count('class="digit lost"') == 1
    assert "flushed, rounded or cut off" in legend(model, [step])


def test_products_that_overflow() -> None:
    model = EngineModel("", FP16, FP16, product_overflow="infinity", subnormal_inputs="flush")
    steps = numerics.trace(model, [0.0, 256.0, 2.0**-24], [1.0, 256.0, 1.0]).steps
    assert [step is None for _, _, step in traces.runs(steps)] == [True, False, False]
    assert ">a[1]·b[1] overflowed to inf<" in str(picture(model, steps[1], "x"))


@pytest.mark.parametrize("mode", ["nearest", "zero", "floor", "odd"])
def test_positions_below_which_bits_are_lost(mode: Any, rng: np.random.Generator) -> None:
    """What was kept is a multiple of their unit, and what was lost is less than that."""
    model = EngineModel("", FP16, FP16, product_rounding=mode)
    for x, y in 1 + rng.integers(0, 1 << 10, (50, 2)) * 2.0**-10:
        (term,) = (t for t in numerics.trace(model, [-x], [y]).steps[0].terms if t.value)
        below = traces.lost_below(term, None)
        assert (below is None) == (term.lost == 0)
        if below is not None:
            unit = Fraction(2) ** below
            assert abs(term.lost) < unit and (term.kept / unit).denominator == 1
            assert parse_number(traces.lost_bits(term, None).partition(" at ")[2].partition(" ")[0]) * 2 == unit


def test_losses_of_a_group() -> None:
    losses = tuple(Loss(f"a[{i}]", "flushed", Fraction(1, 2**9), 0.0) for i in range(5))
    group = Term("group[0]", 1 + Fraction(5, 2**9), 0, Fraction(1), losses)
    assert traces.lost_before(group) == "a[0] flushed to 0, a[1] flushed to 0, a[2] flushed to 0, … 2 more"
    other = Term("group[0]", Fraction(7, 2), 0, Fraction(1), losses)  # 11.1 less 10.1: no cut does that
    assert traces.lost_below(other, -24) is None and traces.lost_bits(other, -24) == "101 at 2^1 to 2^-1"


def test_groups_that_cancel_but_for_a_loss() -> None:
    scale = BlockScale("ue8m0", 4, "groups")
    model = EngineModel("", E4M3, FP32, block=4, fraction_bits=24, subnormal_inputs="flush", scale=scale)
    a, b, ones = [2.0**-9, -(2.0**-6)], [1.0, 2.0**-3], [1.0]
    (step,) = numerics.trace(model, a, b, 0.0, ones, ones).steps
    assert (step.terms[1].value, step.terms[1].lost) == (0, Fraction(1, 2**9))
    assert traces.is_shown(step.terms[1]) and not traces.is_shown(step.terms[0])
    assert ">lost 2^-9: a[0] flushed to 0<" in str(picture(model, step, "x"))
