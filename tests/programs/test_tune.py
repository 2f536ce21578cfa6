"""The tuner: what it finds against every choice there is, what it refuses, and that a run that was stopped goes on."""

from __future__ import annotations

import doctest
import importlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import ArgumentError, FileError
from prismm.programs import margins, outputs, sites, trials
from prismm.programs.recipe import Recipe

LEVELS = ("native", "scheme=residues:6", "scheme=residues:5", "scheme=residues:4")
SECONDS = {"native": 28.0, "scheme=residues:6": 6.0, "scheme=residues:5": 5.0, "scheme=residues:4": 4.0}


def cost(call: Any, recipe: Recipe) -> float:
    """Products of INT8 units that are 28 times as fast as those of the native type."""
    return call.operations * SECONDS[str(recipe)]


def normal(seed: int, count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(count)]


def chain(weights: list[torch.Tensor]) -> Any:
    """A program of products on lines of their own, each fed by the one before."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.softsign(x @ weights[0])
        y = torch.relu(x @ weights[1])
        return y @ weights[2]

    return fn


@pytest.mark.parametrize("module", [margins, outputs, sites, trials, importlib.import_module("prismm.programs.tune")])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def widths(seed: int) -> tuple[Any, list[torch.Tensor]]:
    """Three products of unlike size, so that levels trade against each other."""
    weights = [normal(seed, 1, *shape)[0] / 8 for shape in ((24, 48), (48, 96), (96, 16))]
    return chain(weights), normal(seed + 1, 6, 32, 24)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [3e-6, 2e-5, 1e-3])
def test_as_fast_as_the_best_of_all_choices(seed: int, tolerance: float) -> None:
    """Every choice is run here as well, under the tuner's own rule; the tuner has to come within 5 %."""
    fn, inputs = widths(seed)
    policy, tuning = prismm.tune(fn, inputs, tolerance, levels=LEVELS, cost=cost, full_output=True)
    program = trials.Program(fn, inputs, outputs.relative_error)
    ladder = [Recipe.parse(text) for text in LEVELS]
    everything = trials.Trials(program, lambda _: ladder, math.inf, "correctly-rounded", None, {}, lambda _: None)
    assert len(everything.sites) == 3
    best = math.inf
    for levels in itertools.product(range(4), repeat=3):
        if margins.upper(everything.measure(levels, len(inputs)).errors) <= tolerance:
            seconds = [
                cost(call, ladder[level])
                for site, level in zip(everything.sites, levels, strict=True)
                for call in site.calls
            ]
            best = min(best, sum(seconds))
    assert tuning.seconds <= 1.05 * best
    assert tuning.trials < 64
    assert max(tuning.errors) <= tuning.upper <= tolerance
    for x in normal(seed + 2, 20, 32, 24):  # of the same distribution, never seen by the tuner
        with prismm.emulate("correctly-rounded"):
            reference = fn(x)
        with prismm.emulate(policy):
            assert outputs.relative_error(fn(x), reference) <= tolerance


def test_products_feed_each_other_as_the_program_says(seed: int) -> None:
    fn, inputs = widths(seed)
    _, tuning = prismm.tune(fn, inputs[:1], 1.0, levels=LEVELS, cost=cost, full_output=True)
    assert [site.sources for site in tuning.sites] == [(), (0,), (1,)]
    assert all(str(site.recipe) == "scheme=residues:4" for site in tuning.sites)
    assert tuning.base_seconds / tuning.seconds == pytest.approx(7.0)


def test_a_predecessor_is_raised_where_that_is_faster(seed: int) -> None:
    """Either product may be cheap, not both: greedy takes the first, MixPert's rule gives it back for the second."""
    left, right = normal(seed, 1, 32, 32)[0], normal(seed + 1, 1, 32, 32)[0]
    inputs = normal(seed + 2, 3, 32, 32)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x @ left
        return y @ right

    program = trials.Program(fn, inputs, outputs.relative_error)
    levels = ("native", "scheme=residues:4")
    ladder = [Recipe.parse(text) for text in levels]
    bench = trials.Trials(program, lambda _: ladder, math.inf, "correctly-rounded", None, {}, lambda _: None)
    worst = {x: max(bench.measure(x, 3).errors) for x in ((1, 0), (0, 1), (1, 1))}
    either = max(worst[1, 0], worst[0, 1])
    assert worst[1, 1] > 1.1 * either
    first = bench.sites[0].key

    def price(call: Any, recipe: Recipe) -> float:
        if sites.key_of(call) == first:
            return 10.0 if str(recipe) == "native" else 4.0
        return 9.0 if str(recipe) == "native" else 1.0

    tolerance = math.sqrt(either * worst[1, 1])
    _, tuning = prismm.tune(fn, inputs, tolerance, levels=levels, cost=price, margin=1.0, full_output=True)
    assert [str(site.recipe) for site in tuning.sites] == ["native", "scheme=residues:4"]
    assert tuning.seconds == 11.0


def test_default_levels_of_float64_and_measured_times(seed: int) -> None:
    """On a CPU nothing is faster than the native product, and that is what the policy says: of one thread, since two
    that wait for each other among other tests' processes may take any time.
    """
    a = normal(seed, 1, 128, 128)[0].double()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        policy, tuning = prismm.tune(lambda x: x @ a, [a, a + 1, a.T], 1e-12, full_output=True)
    finally:
        torch.set_num_threads(threads)
    assert [str(site.recipe) for site in tuning.sites] == ["native"]
    assert policy.recipe("", "mm", False, "anywhere.py:1").accuracy == "native"
    assert tuning.torch_seconds is not None
    assert tuning.torch_seconds > 0


def test_any_function_of_the_output(seed: int) -> None:
    """The tolerance may be on a label, say: an error that is 0 until an arg max changes."""
    fn, inputs = widths(seed)

    def labels_that_differ(mine: torch.Tensor, exact: torch.Tensor) -> float:
        return float((mine.argmax(1) != exact.argmax(1)).double().mean())

    policy, tuning = prismm.tune(fn, inputs, 0.2, levels=LEVELS, cost=cost, metric=labels_that_differ, full_output=True)
    assert max(tuning.errors) <= 0.2
    assert len(policy.rules) > 1


def test_a_model_gets_rules_by_module(seed: int) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.Softsign(), torch.nn.Linear(48, 8)).eval()
    inputs = normal(seed, 4, 16, 24)
    policy = prismm.tune(model, inputs, 1e-2, levels=LEVELS, cost=cost, model=model)
    assert {rule.module for rule in policy.rules} == {"0", "2", "*"}
    assert policy.model is not None
    with (
        pytest.raises(ArgumentError, match=r"another model|made for"),
        prismm.emulate(policy, model=torch.nn.Linear(2, 2)),
    ):
        pass


def test_backward_products_are_sites_of_their_own(seed: int) -> None:
    inputs = normal(seed, 8, 16, 16)  # of fewer, the error on new ones may be anything
    w = normal(seed + 1, 1, 16, 16)[0]

    def fn(x: torch.Tensor) -> torch.Tensor:
        weight = w.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(torch.nn.functional.softsign(x @ weight).square().sum(), weight)
        return gradient

    policy, tuning = prismm.tune(fn, inputs, 1e-2, levels=LEVELS, cost=cost, full_output=True)
    assert sum("backward" in site.name for site in tuning.sites) == 1
    assert Policy_round_trip(policy) == policy


def Policy_round_trip(policy: prismm.Policy) -> prismm.Policy:
    return prismm.Policy.from_json(policy.to_json())


# --- what goes wrong --------------------------------------------------------------------------------


def test_a_function_that_is_not_deterministic_is_refused(seed: int) -> None:
    a = normal(seed, 1, 16, 16)[0]
    with pytest.raises(ArgumentError, match=r"not deterministic.*differ by"):
        prismm.tune(lambda x: x @ a + torch.rand(()), [a], 1e-3)


def test_a_function_that_wanders_a_little_is_warned_of(seed: int) -> None:
    a, runs = normal(seed, 1, 16, 16)[0], itertools.count()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x @ a).double() * (1 + 1e-9 * next(runs))

    with pytest.warns(UserWarning, match="not deterministic"):
        prismm.tune(fn, [a], 1e-3, levels=("native",))


def test_a_function_that_changes_its_input_is_refused(seed: int) -> None:
    a = normal(seed, 1, 16, 16)[0]
    with pytest.raises(ArgumentError, match="change neither its inputs"):
        prismm.tune(lambda x: x.add_(1) @ a, [a.clone()], 1e-6)


@pytest.mark.parametrize(
    ("fn", "word"),
    [
        (lambda x: x + 1, "multiplied no matrices"),
        (lambda x: (x.to(torch.int64) @ x.to(torch.int64)).double(), "int64 elements"),
        (lambda x: torch.linalg.inv(x + 40 * torch.eye(8)), "LAPACK"),
    ],
)
def test_a_program_without_products_is_refused(fn: Any, word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        prismm.tune(fn, [torch.ones(8, 8)], 1e-3)


def test_a_tolerance_out_of_reach_is_refused(seed: int) -> None:
    fn, inputs = widths(seed)
    with pytest.raises(ArgumentError, match=r"out of reach.*larger tolerance"):
        prismm.tune(fn, inputs, 1e-12)


@pytest.mark.parametrize(
    ("inputs", "tolerance", "keywords", "word"),
    [
        ([], 1e-3, {}, "empty"),
        (torch.ones(4, 4), 1e-3, {}, "list of inputs"),
        ([torch.ones(4, 4)], 0.0, {}, "tolerance=0.0"),
        ([torch.ones(4, 4)], math.nan, {}, "tolerance=nan"),
        ([torch.ones(4, 4)], 1e-3, {"margin": 0.5}, "margin=0.5"),
        ([torch.ones(4, 4)], 1e-3, {"levels": []}, "levels is empty"),
        ([torch.ones(4, 4)], 1e-3, {"levels": ["native", "native"]}, "twice"),
        ([torch.ones(4, 4)], 1e-3, {"metric": lambda a, b: "much"}, "one number"),
        ([torch.ones(4, 4)], 1e-3, {"metric": lambda a, b: -1.0}, "0 or more"),
    ],
)
def test_bad_arguments(inputs: Any, tolerance: float, keywords: dict[str, Any], word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        prismm.tune(lambda x: x @ x, inputs, tolerance, **keywords)


def test_a_scheme_that_cannot_run_is_dropped_and_told(seed: int) -> None:
    a = normal(seed, 1, 16, 16)[0].double()
    _, tuning = prismm.tune(
        lambda x: x @ a,
        [a],
        1e-3,
        levels=("native", "scheme=residues:5 engine=cuda:int8"),
        cost=lambda *_: 1.0,
        full_output=True,
    )
    assert list(tuning.dropped) == ["scheme=residues:5 engine=cuda:int8"]
    assert [str(site.recipe) for site in tuning.sites] == ["native"]


def test_a_factorisation_that_fails_at_low_accuracy_counts_as_an_infinite_error(seed: int) -> None:
    """A Cholesky factorisation of what a coarse product leaves indefinite."""
    g = normal(seed, 1, 24, 24)[0]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x @ x.T - 575e-1 * torch.eye(24) * 1e-5)

    eye = torch.eye(24) + 1e-4 * g
    policy, tuning = prismm.tune(
        fn,
        [eye],
        1e-1,
        levels=("native", "scheme=residues:2"),
        cost=lambda c, r: 1.0 if "2" in str(r) else 2.0,
        full_output=True,
    )
    assert max(tuning.errors) <= 0.1
    assert policy is tuning.policy


# --- going on ---------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on(seed: int, tmp_path: Path) -> None:
    fn, inputs = widths(seed)
    state = tmp_path / "state.json"
    calls = itertools.count()

    def until_stopped(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == 30:
            raise KeyboardInterrupt
        return fn(x)

    keywords: dict[str, Any] = {"levels": LEVELS, "cost": cost, "full_output": True}
    with pytest.raises(KeyboardInterrupt):
        prismm.tune(until_stopped, inputs, 2e-5, state=state, **keywords)
    done = len(json.loads(state.read_text())["trials"])
    assert done > 2
    told: list[str] = []
    policy, tuning = prismm.tune(fn, inputs, 2e-5, state=state, progress=told.append, **keywords)
    assert f"{done} trials taken over from {state}" in told
    again, fresh = prismm.tune(fn, inputs, 2e-5, **keywords)
    assert again == policy
    assert fresh.errors == tuning.errors
    before = state.read_text()
    runs = itertools.count()

    def counted(x: torch.Tensor) -> torch.Tensor:
        next(runs)
        return fn(x)

    assert prismm.tune(counted, inputs, 2e-5, state=state, levels=LEVELS, cost=cost) == policy
    assert next(runs) == len(inputs) + 1  # the reference runs alone
    assert state.read_text() == before


def without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


def test_another_tuning_s_state_is_refused(seed: int, tmp_path: Path) -> None:
    fn, inputs = widths(seed)
    state = tmp_path / "state.json"
    prismm.tune(fn, inputs[:3], 1e-3, levels=LEVELS, cost=cost, state=state)
    with pytest.raises(ArgumentError, match=r"another tuning: tolerance was 0\.001, is now 0\.01"):
        prismm.tune(fn, inputs[:3], 1e-2, levels=LEVELS, cost=cost, state=state)
    with pytest.raises(ArgumentError, match="its inputs were others"):
        prismm.tune(fn, inputs[1:4], 1e-3, levels=LEVELS, cost=cost, state=state)
    content = json.loads(state.read_text())
    for damage in (
        "{",
        "[]",
        json.dumps(content | {"version": 9}),
        json.dumps(content | {"version": True}),
        json.dumps(content | {"trials": [{"levels": [9]}]}),
        json.dumps(content | {"trials": content["trials"] + content["trials"][:1]}),
        json.dumps(content | {"more": 1}),
        json.dumps({key: value for key, value in content.items() if key != "trials"}),
        json.dumps({key: value for key, value in content.items() if key != "sites"}),
        json.dumps(content).replace('"version": 1', '"version": 1, "version": 1'),
        "[" * 100_000,
        *(json.dumps(content | {"trials": [without(content["trials"][0], key)]}) for key in content["trials"][0]),
        *(
            json.dumps(content | {"trials": [content["trials"][0] | change]})
            for change in (
                {"more": 1},
                {"levels": [0.0] * len(content["levels"])},
                {"levels": "0" * len(content["levels"])},
                {"errors": [-1.0]},
                {"errors": [10**400]},
                {"errors": ["0.5"]},
                {"errors": [True]},
                {"seconds": []},
                {"seconds": [float("nan")] * len(content["levels"])},
                {"seconds": [[1.0]]},
                {"wall_seconds": float("inf")},
                {"wall_seconds": -1.0},
                {"failure": None},
            )
        ),
    ):
        state.write_text(damage)
        with pytest.raises((FileError, ArgumentError), match=state.name):
            prismm.tune(fn, inputs[:1], 1e-3, levels=LEVELS, cost=cost, state=state)


# --- margins ----------------------------------------------------------------------------------------


def above(t: float, freedom: int) -> float:
    """P(T > t) of Student's distribution with 2, 3 or 5 degrees of freedom (Abramowitz and Stegun, 26.7.3, 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    within = {
        2: sine,
        3: 2 / math.pi * (theta + sine * cosine),
        5: 2 / math.pi * (theta + sine * (cosine + 2 / 3 * cosine**3)),
    }
    return (1 - within[freedom]) / 2


@pytest.mark.parametrize("n", [3, 4, 6])
def test_the_margin_keeps_its_promise_on_log_normal_errors(n: int, rng: np.random.Generator) -> None:
    """A further draw exceeds the bound with probability RISK: (x - mean)/(s·√(1 + 1/n)) has Student's distribution."""
    for width in (0.5, 2.0):
        for row in rng.standard_normal((200, n)) * width:
            # An error that is below a thousandth of the largest counts as that.
            logs = np.maximum(row, row.max() + math.log(1e-3))
            bound = margins.upper(list(np.exp(logs)))
            reach = (math.log(bound) - logs.mean()) / (logs.std(ddof=1) * math.sqrt(1 + 1 / n))
            if bound > margins.FACTOR * math.exp(logs.max()) * (1 + 1e-9):
                assert above(reach, n - 1) == pytest.approx(margins.RISK, rel=1e-6)
            else:
                assert above(reach, n - 1) <= margins.RISK * (1 + 1e-6)


def test_margins_of_special_errors() -> None:
    assert margins.upper([0.0, 0.0, 0.0]) == 0.0
    assert margins.upper([math.inf]) == math.inf
    assert margins.upper([1.0, math.inf, 1.0]) == math.inf
    assert margins.upper([3.0], factor=1.0) == 3.0


def test_outputs_are_compared_bit_for_bit() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert outputs.same({"a": [nan, 2]}, {"a": [nan.clone(), 2]})
    assert not outputs.same(nan, torch.tensor([math.nan, 1.0 + 2**-20]))
    assert not outputs.same(torch.ones(2), torch.ones(3))
    assert not outputs.same([1.0], [1])
    special = torch.tensor([math.inf, math.nan, 1.0])
    assert outputs.relative_error(special, special.clone()) == 0.0
    assert outputs.relative_error(torch.tensor([math.inf, math.nan, 2.0]), special) == 1.0
    for wrong in ([1.0, math.nan, 1.0], [-math.inf, math.nan, 1.0], [math.inf, 0.0, 1.0]):
        error = outputs.relative_error(torch.tensor(wrong), special)
        assert not error < 1.0  # infinite, or NaN, which trials count as infinite
    with pytest.raises(ArgumentError, match="pass metric"):
        outputs.relative_error(torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
