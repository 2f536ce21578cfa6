"""The tuner against exhaustive search, as in MixPert's Figure 10: Cholesky (four products), a perceptron (three).

For each tolerance three choices of levels are compared: the tuner's; the fastest of all choices that keeps the
tuner's own margin; and the fastest that just keeps the tolerance on these inputs, with no margin for others. Errors
are measured, on the inputs of the search and on new ones. On a GPU times are measured. A CPU has no fast units, so
there the seconds of each product are predicted for an H200, with every dimension enlarged so that the orders are
those of the paper (16384 and 8192), from the rates that prismm's planner uses; the program itself runs small. The
column `times` says which.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import prismm
from prismm import Native, Residues
from prismm.applications import cholesky, mlp
from prismm.applications.application import timed
from prismm.applications.ways import full_precision
from prismm.core.problem import Problem
from prismm.cuda.choice import moduli_matching_cublas
from prismm.cuda.costs.predict import predict
from prismm.cuda.costs.table import usual_rates
from prismm.formats import format_of
from prismm.programs.margins import upper
from prismm.programs.outputs import relative_error
from prismm.programs.recipe import Recipe
from prismm.programs.trials import Program, Trials, configurations
from prismm.schemes.names import parse_scheme

SEARCH, NEW = 6, 12
"""Inputs of the search, and new ones of the same distribution."""

TOLERANCES = (2e-6, 2e-5, 5e-4)
LEVELS = ("native", "scheme=residues:6", "scheme=residues:5", "scheme=residues:4")


@dataclass(frozen=True)
class Case:
    """A program: fn(input), inputs by seed, the model if there is one, and how much the cost model enlarges it."""

    name: str
    fn: Callable[[torch.Tensor], torch.Tensor]
    draw: Callable[[int], torch.Tensor]
    model: Any
    enlarged: int
    size: int


def cases(device: str, quick: bool = False) -> list[Case]:
    """Cholesky and the perceptron."""
    order, block, width = (16384, 1024, 8192) if device == "cuda" else (256, 64, 128)
    if quick:
        order, block, width = 128, 32, 128
    model = mlp.network(width, width, width, 0, device)

    def inputs(seed: int) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(1000 + seed)
        return torch.randn(width, width, generator=generator, device=device)

    @torch.no_grad()
    def infer(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x)
        return found

    return [
        Case(
            "cholesky", lambda a: cholesky.solve(a, block),
            lambda seed: cholesky.make(order, seed, device, torch.float32), None, 16384 // order, order,
        ),
        Case("mlp", infer, inputs, model, 8192 // width, width),
    ]  # fmt: skip


def predicted(enlarged: int) -> Callable[[Any, Any], float]:
    """Seconds of a call by a recipe on an H200, with every dimension so many times as large."""

    def cost(call: Any, recipe: Any) -> float:
        problem = Problem(
            m=call.m * enlarged, n=call.n * enlarged, k=call.k * enlarged, batch=(),
            result=format_of(np.dtype(call.dtype)), target=None, reproducible=False, one_type=True,
        )  # fmt: skip
        if recipe.scheme is not None:
            schemes = [parse_scheme(recipe.scheme)]
        else:
            both = [Native(), Residues(moduli_matching_cublas(problem.result, problem.k))]
            schemes = both[:1] if recipe.off else both
        return min(predict(scheme, problem, usual_rates()) for scheme in schemes)

    return cost


def compare(
    case: Case, device: str, tolerances: Sequence[float], say: Callable[[str], None], search: int = SEARCH,
    new: int = NEW,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of one program."""
    cost = predicted(case.enlarged) if device == "cpu" else None
    inputs = [case.draw(seed) for seed in range(search)]
    ladder = [Recipe.parse(text) for text in LEVELS]
    program = Program(case.fn, inputs, relative_error, case.model)
    with full_precision():
        everything = Trials(program, lambda _: ladder, float("inf"), "correctly-rounded", None, {}, lambda _: None)
        seconds = profile(everything, ladder, cost)
        all_levels = list(configurations([len(ladder)] * len(everything.sites)))
        say(f"{case.name}: all {len(all_levels)} choices")
        for levels in all_levels:
            everything.measure(levels, 1)
        all_levels.sort(key=lambda levels: total(seconds, levels))
        torch_seconds = [off(site, cost) for site in everything.sites] if cost else everything.torch_seconds()[0]
        fresh = [case.draw(10_000 + seed) for seed in range(new)]
        truth = []
        for x in fresh:
            with prismm.emulate("correctly-rounded"):
                truth.append(case.fn(x))
        rows = []
        for tolerance in tolerances:
            say(f"{case.name}: tolerance {tolerance:g}")
            policy, tuning = prismm.tune(
                case.fn, inputs, tolerance, model=case.model, cost=cost, levels=ladder, full_output=True
            )
            good = fastest(everything, all_levels, search, lambda errors: max(errors) <= tolerance)  # noqa: B023
            safe = fastest(everything, all_levels, search, lambda errors: upper(errors) <= tolerance)  # noqa: B023
            chosen = {
                "tuner": (levels_of(policy, everything, ladder), tuning.trials),
                "exhaustive": (safe, len(all_levels)),
                "exhaustive, no margin": (good, len(all_levels)),
            }
            for name, (levels, count) in chosen.items():
                ours = everything.policy(levels)
                errors = []
                for x, exact in zip(fresh, truth, strict=True):
                    with prismm.emulate(ours):
                        errors.append(relative_error(case.fn(x), exact))
                trial = everything.measure(levels, search)
                rows.append(
                    {
                        "program": case.name, "device": device, "size": case.size, "tolerance": tolerance,
                        "search": name, "levels": " ".join(str(r) for r in everything.recipes(levels)),
                        "trials": count, "speed": sum(torch_seconds) / total(seconds, levels),
                        "wall_speed": wall_speed(case, inputs[0], ours, device),
                        "of_exhaustive": total(seconds, chosen["exhaustive"][0]) / total(seconds, levels),
                        "of_no_margin": total(seconds, chosen["exhaustive, no margin"][0]) / total(seconds, levels),
                        "error": max(trial.errors), "new_error": max(errors),
                        "broken": sum(error > tolerance for error in errors), "new_inputs": new,
                        "times": "measured" if cost is None else f"predicted, H200, orders x{case.enlarged}",
                    }
                )  # fmt: skip
                say(shown(rows[-1]))
    return rows


def fastest(trials: Any, ahead: Sequence[Any], count: int, keeps: Callable[[list[float]], bool]) -> Any:
    """The first choice, of all in order of their seconds, that keeps a condition on `count` inputs."""
    for levels in ahead:
        trial = trials.measure(levels, 1)
        # Errors of other inputs only add to what the condition sees.
        if not trial.failure and max(trial.errors) < float("inf") and keeps([max(trial.errors)] * count):
            trial = trials.measure(levels, count)
            if not trial.failure and keeps(trial.errors):
                return levels
    raise ArithmeticError("not even the most accurate choice keeps the tolerance")


def profile(trials: Any, ladder: Sequence[Any], cost: Any) -> list[list[float]]:
    """Seconds of every site at every level."""
    found = [[0.0] * len(ladder) for _ in trials.sites]
    for level, recipe in enumerate(ladder):
        same = (level,) * len(trials.sites)
        measured = None
        if cost is None:
            trials.measure(same, 1)
            measured = [trials.again(same) for _ in range(2)][-1].seconds
        for i, site in enumerate(trials.sites):
            found[i][level] = measured[i] if measured else sum(cost(call, recipe) for call in site.calls)
    return found


def off(site: Any, cost: Any) -> float:
    """Seconds of torch's own products at a site, by the cost model."""
    return float(sum(cost(call, Recipe(off=True)) for call in site.calls))


def total(seconds: list[list[float]], levels: Sequence[int]) -> float:
    """Seconds of a choice of levels."""
    return sum(row[level] for row, level in zip(seconds, levels, strict=True))


def levels_of(policy: Any, trials: Any, ladder: Sequence[Any]) -> tuple[int, ...]:
    """What a policy says of each site, as levels."""
    found = []
    for site in trials.sites:
        module, where, operator, backward = site.key
        found.append(list(ladder).index(policy.recipe(module, operator, backward, where)))
    return tuple(found)


def wall_speed(case: Case, x: torch.Tensor, policy: Any, device: str) -> float:
    """Measured time of the program with torch's products over that with the policy, interception included."""
    ratios = []
    for _ in range(4):
        native, _ = timed(lambda: case.fn(x), device)
        with prismm.emulate(policy):
            ours, _ = timed(lambda: case.fn(x), device)
        ratios.append(native / ours)
    return statistics.median(ratios[1:])


def shown(row: dict[str, Any]) -> str:
    """One line of words."""
    return (
        f"{row['program']:<9} tolerance {row['tolerance']:<7g} {row['search']:<22} x{row['speed']:.3g} "
        f"({100 * row['of_exhaustive']:.0f} % of exhaustive; wall x{row['wall_speed']:.3g}), error {row['error']:.2g}, "
        f"new inputs {row['new_error']:.2g}, broken {row['broken']}, {row['trials']} trials"
    )
