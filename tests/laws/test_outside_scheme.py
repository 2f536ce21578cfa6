"""The laws on a scheme from outside: the one that docs/extending.md defines, read out of that page and executed."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.errors import ArgumentError, EngineError
from prismm.schemes import Composite, CompositeImplementation, Scheme
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.judge import (
    assert_bounds_hold,
    assert_gemm,
    assert_meets,
    assert_overflow_is_right,
    assert_same_bits,
    each_dtype,
    entry_terms,
    magnitudes,
    rounded,
)

PAGE = Path(__file__).parents[2] / "docs/extending.md"


def example() -> dict[str, Any]:
    """What the page's first block of code defines."""
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    found: dict[str, Any] = {"__name__": __name__}
    for one in doctest.DocTestParser().get_examples(block[1]):
        exec(compile(one.source, str(PAGE), "exec"), found)
    return found


EXAMPLE = example()
OUTSIDE = EXAMPLE["HighLow"]()
TARGETS = ("native", 1e-12, "correctly-rounded")


def test_it_keeps_both_protocols_and_prints_compares_and_hashes_by_value():
    assert isinstance(OUTSIDE, Scheme) and isinstance(OUTSIDE, Composite)
    assert str(OUTSIDE) == "HighLow()" and EXAMPLE["HighLow"]() == OUTSIDE and len({OUTSIDE, EXAMPLE["HighLow"]()}) == 1


def test_the_page_is_short():
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None and block[1].count("\n") <= 65


@pytest.mark.covering("name", "dtype")
@each_dtype
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_its_bound_holds_and_every_target_is_met(name, dtype, seed):
    a, b = HOSTILE[name](6, 40, 7, seed, dtype)
    exact, size = exact_product(a, b), magnitudes(a, b)
    for target in (None, "fast", *TARGETS):
        c, report = prismm.matmul(a, b, scheme=OUTSIDE, accuracy=target, full_output=True)
        note = f"{name} {target}"
        assert report.plan.scheme == OUTSIDE, note
        assert_overflow_is_right(exact, c, note)
        assert_bounds_hold(exact, c, report, note)
        if target in TARGETS:
            assert_meets(target, exact, size, c, entry_terms(a, c), note)


@pytest.mark.parametrize("k", [1, 2, 3, 1000, 1025, 5000])
def test_its_bound_holds_for_any_inner_dimension(k, rng):
    """The worst signs and sizes: all elements near 1, just off the grid."""
    a, b = 1.0 - rng.random((3, k)) * 2.0**-20, 1.0 - rng.random((k, 4)) * 2.0**-20
    exact = exact_product(a, b)
    c, report = prismm.matmul(a, b, scheme=OUTSIDE, full_output=True)
    assert_bounds_hold(exact, c, report, f"k={k}")
    best = prismm.matmul(a, b, scheme=OUTSIDE, accuracy="correctly-rounded")
    assert_same_bits(best, rounded(exact, np.float64), f"k={k}")


def test_its_floor_covers_what_underflows_in_a_wide_row():
    """Scaled, the row is (1/2, 2^-1070) and the column (0, 1/2 + 2^-21): their product loses 2^-1091, all else is 0."""
    a, b = np.array([[2.0**500, 2.0**-569]]), np.array([[0.0], [2.0**500 * (1 + 2.0**-20)]])
    exact = exact_product(a, b)
    c, report = prismm.matmul(a, b, scheme=OUTSIDE, full_output=True)
    assert_bounds_hold(exact, c, report)
    assert_same_bits(prismm.matmul(a, b, scheme=OUTSIDE, accuracy="correctly-rounded"), rounded(exact, np.float64))


def test_its_certificates_settle_ordinary_data(rng):
    a, b = rng.standard_normal((30, 60)), rng.standard_normal((60, 30))
    _, report = prismm.matmul(a, b, scheme=OUTSIDE, accuracy="correctly-rounded", full_output=True)
    assert report.paths["certified"] >= 0.99 * 900, report.paths


@pytest.mark.parametrize("name", ["normal", "phi4", "graded", "cancelling"])
def test_powers_of_two_pass_straight_through(name, rng, seed):
    a, b = HOSTILE[name](9, 40, 8, seed, "float64")
    e, f = rng.integers(-60, 60, (9, 1)), rng.integers(-60, 60, (1, 8))
    for target in (None, "correctly-rounded"):
        c = prismm.matmul(a, b, scheme=OUTSIDE, accuracy=target)
        if np.abs(c[c != 0]).min(initial=1.0) < 2.0**-700 or np.abs(c).max() > 2.0**700:
            pytest.fail("the draw is not away from overflow and underflow")
        got = prismm.matmul(np.ldexp(a, e), np.ldexp(b, f), scheme=OUTSIDE, accuracy=target)
        assert_same_bits(got, np.ldexp(c, e + f), f"{name} {target}")


@each_dtype
@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_infinities_and_nans_are_what_the_sum_gives(name, dtype, seed):
    a, b = SPECIAL[name](6, 12, 7, seed, dtype)
    for target in (None, *TARGETS):
        got = prismm.matmul(a, b, scheme=OUTSIDE, accuracy=target)
        expected = prismm.matmul(a, b, accuracy="correctly-rounded")
        for x, y in ((got.real, expected.real), (got.imag, expected.imag)):
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y), f"{name} {target}")
            np.testing.assert_array_equal(np.where(np.isinf(x), x, 0), np.where(np.isinf(y), y, 0), f"{name} {target}")
        if target == "correctly-rounded":
            assert_same_bits(got, expected, name)


@each_dtype
def test_prepared_operands_change_no_bit(dtype, seed):
    a, b = HOSTILE["graded"](9, 40, 8, seed, dtype)
    for target in (None, *TARGETS):
        keywords = {"scheme": OUTSIDE, "accuracy": target}
        expected = prismm.matmul(a, b, **keywords)
        left, right = (prismm.prepare(x, side=side, **keywords) for x, side in ((a, "left"), (b, "right")))
        assert left.scheme == right.scheme == OUTSIDE
        for x, y in ((left, b), (a, right), (left, right)):
            c, report = prismm.matmul(x, y, full_output=True)
            assert_same_bits(c, expected, f"{target}")
            assert report.plan.scheme == OUTSIDE


def test_explain_tells_it():
    a, b = np.ones((30, 40)), np.ones((40, 20))
    plan = prismm.explain(a, b, scheme=OUTSIDE, accuracy=1e-12)
    assert (plan.scheme, plan.engine, plan.products) == (OUTSIDE, "cpu:blas", 3)
    assert "HighLow()" in str(plan) and plan.predicted_seconds > 0 and plan.workspace_bytes > 0
    assert not any("HighLow" in str(x) for x in prismm.explain(a, b).alternatives)


@each_dtype
def test_gemm(dtype, seed):
    a, b = HOSTILE["normal"](6, 20, 7, seed, dtype)
    c = HOSTILE["phi2"](6, 20, 7, seed + 1, dtype)[0] @ HOSTILE["phi2"](6, 20, 7, seed + 1, dtype)[1]
    ways = [{"scheme": OUTSIDE, "accuracy": target} for target in TARGETS]
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0), (0.3, 0.7), (0.0, 1.5)):
        assert_gemm(a, b, c, alpha, beta, *ways)


@each_dtype
def test_batches_and_out(dtype, seed):
    pairs = [HOSTILE[name](5, 20, 6, seed, dtype) for name in ("normal", "graded", "cancelling", "ties")]
    a, b = (np.stack(x).reshape(2, 2, *x[0].shape) for x in zip(*pairs, strict=True))
    for target in (None, "correctly-rounded"):
        keywords = {"scheme": OUTSIDE, "accuracy": target}
        out = np.empty((2, 2, 5, 6), dtype)
        assert prismm.matmul(a, b, out=out, **keywords) is out
        for at, (x, y) in zip(np.ndindex(2, 2), pairs, strict=True):
            assert_same_bits(out[at], prismm.matmul(x, y, **keywords), f"{target} {at}")
    assert_same_bits(out, prismm.matmul(a, b, accuracy="correctly-rounded"))


def test_blocks_of_little_memory_meet_the_target(monkeypatch, rng):
    from prismm.cpu import backend, execute

    a, b = rng.standard_normal((90, 30)), rng.standard_normal((30, 70))
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    for module in (backend, execute):
        monkeypatch.setattr(module, "workspace_limit", lambda *x: 1 << 16)
    plan = prismm.explain(a, b, scheme=OUTSIDE)
    assert plan.row_panel < 90 or plan.column_block < 70
    assert_same_bits(prismm.matmul(a, b, scheme=OUTSIDE, accuracy="correctly-rounded"), expected)


def test_integers_vectors_and_empty_operands():
    big = np.array([[2**62 + 1, -(2**61) - 3], [5, 7]])
    exact = exact_product(big, big)
    best = prismm.matmul(big, big, scheme=OUTSIDE, accuracy="correctly-rounded")
    assert_same_bits(best, rounded(exact, np.float64))
    assert prismm.matmul(np.ones(3), np.ones(3), scheme=OUTSIDE) == 3.0
    for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0)):
        c = prismm.matmul(np.ones((m, k)), np.ones((k, n)), scheme=OUTSIDE)
        assert_same_bits(c, np.zeros((m, n)) if k == 0 else np.ones((m, n)) * k)


def test_derivatives_of_tensors_take_it(rng):
    torch = pytest.importorskip("torch")
    a = torch.tensor(rng.standard_normal((5, 9)), requires_grad=True)
    b = torch.tensor(rng.standard_normal((9, 4)), requires_grad=True)
    c = prismm.matmul(a, b, scheme=OUTSIDE, accuracy="correctly-rounded")
    c.sum().backward()
    ones = np.ones((5, 4))
    x, y = a.detach().numpy(), b.detach().numpy()
    assert_same_bits(c.detach().numpy(), rounded(exact_product(x, y), np.float64))
    assert_same_bits(a.grad.numpy(), rounded(exact_product(ones, y.T), np.float64))
    assert_same_bits(b.grad.numpy(), rounded(exact_product(x.T, ones), np.float64))


def test_a_class_defined_anew_takes_the_place_of_the_old_one():
    """As in a notebook: what prints alike is told by its last definition where it is kept as text."""
    from prismm.programs.recipe import Recipe, scheme_text

    old, new = example()["HighLow"](), example()["HighLow"]()
    assert old != new and scheme_text(old) == scheme_text(new)
    for scheme in (old, new):
        assert Recipe(scheme=scheme_text(scheme)).keywords["scheme"] is scheme


@dataclass(frozen=True)
class Nowhere:
    """A scheme that runs on no device."""

    reproducible: bool = False

    def implementation(self, device: str) -> Any:
        return None


class Returning:
    """No dataclass; its implementation is what it is told."""

    reproducible = False

    def __init__(self, found: Any) -> None:
        self.found = found

    def implementation(self, device: str) -> Any:
        return self.found


@dataclass
class Mutable:
    """It does not hash."""

    reproducible: bool = False

    def implementation(self, device: str) -> Any:
        return CompositeImplementation(OUTSIDE)


@dataclass(frozen=True)
class Lying:
    """The page's scheme, off by 2^-20 of it, with a bound of nothing."""

    reproducible: bool = False

    def implementation(self, device: str) -> Any:
        return Liar(OUTSIDE)


class Liar(CompositeImplementation):
    def multiply(self, left: Any, right: Any, setting: Any) -> Any:
        value = self.scheme.multiply(left, right, setting)
        value.high *= 1.0 + 2.0**-20
        value.rows, value.floor = value.rows * 0.0, 0.0
        return value


def test_a_bound_is_taken_at_its_word(rng):
    """No claim is made for a scheme whose bound does not hold: exact arithmetic sees it, the certificate does not."""
    a, b = rng.standard_normal((6, 9)), rng.standard_normal((9, 5))
    c, report = prismm.matmul(a, b, scheme=Lying(), accuracy="correctly-rounded", full_output=True)
    assert not report.repaired and not (c == rounded(exact_product(a, b), np.float64)).any()


@pytest.mark.parametrize(
    "call",
    [
        lambda a, **k: prismm.matmul(a, a, **k), lambda a, **k: prismm.gemm(a, a, **k),
        lambda a, **k: prismm.prepare(a, side="left", **k), lambda a, **k: prismm.explain(a, a, **k),
    ],
    ids=["matmul", "gemm", "prepare", "explain"],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_words(call):
    a = np.ones((3, 3))
    with pytest.raises(EngineError, match=r"Nowhere\(.*does not run on a CPU.*another scheme"):
        call(a, scheme=Nowhere())
    wrong = Returning(OUTSIDE)
    with pytest.raises(ArgumentError, match=r"returned HighLow\(\), which runs nothing; return .*CompositeImpl"):
        call(a, scheme=wrong)
    data = SimpleNamespace(reproducible=False, implementation=3)
    for bad in (EXAMPLE["HighLow"], object(), {"reproducible": False}, data):
        with pytest.raises(ArgumentError, match="is no scheme"):
            call(a, scheme=bad)
    with pytest.raises(ArgumentError, match=r"scheme 'high-low'.*; pass auto, native"):
        call(a, scheme="high-low")
    with pytest.raises(ArgumentError, match=r"HighLow\(\) is not reproducible"):
        call(a, scheme=OUTSIDE, reproducible=True)
    with pytest.raises(ArgumentError, match=r"simulated:volta.*HighLow\(\).*engine='cpu'"):
        call(a, scheme=OUTSIDE, engine="simulated:volta")


@pytest.mark.parametrize("scheme", [Returning(CompositeImplementation(OUTSIDE)), Mutable()], ids=["class", "mutable"])
def test_one_that_does_not_compare_by_value_multiplies_without_derivatives(scheme, rng):
    torch = pytest.importorskip("torch")
    a = rng.standard_normal((4, 4))
    expected = prismm.matmul(a, a, accuracy="correctly-rounded")
    assert_same_bits(prismm.matmul(a, a, scheme=scheme, accuracy="correctly-rounded"), expected)
    tensor = torch.tensor(a, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"frozen dataclass.*detach"):
        prismm.matmul(tensor, tensor, scheme=scheme)


def test_its_own_refusal_reaches_the_caller():
    with pytest.raises(ArgumentError, match=r"at most 2\^31 terms.*cut the inner dimension"):
        OUTSIDE.implementation("cpu").check(2**31 + 1, None)


def test_what_is_written_as_names_refuses_it():
    pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=r"HighLow\(\).*no name"):
        prismm.emulate(scheme=OUTSIDE)
    with pytest.raises(ArgumentError, match=r"HighLow\(\).*no name"):
        prismm.programs.Rule("*", scheme=OUTSIDE)
