"""The tuner: how little accuracy each product of a program may have while the program's output keeps a tolerance.

As MixPert's (Lin et al. 2024, §3.4): profile; follow which product flows into which; lower the accuracy greedily
where the time goes; where the output breaks the tolerance, raise a cheaper predecessor instead; stop when nothing is
left to lower. Afterwards exchanges are tried, one site lower and another higher, until none is faster, and with few
sites what else is faster and not hopeless. Every choice that is kept was run and its output measured against a
reference run with certified products: nothing is guessed.

**New inputs.** Of four inputs or more half are held back from the search, which keeps a choice if `margins.FACTOR`
times its worst error is within the tolerance. The fastest choice is taken for which `margins.upper` of the errors on
all inputs is within it: a bound for new inputs of the same distribution, which errs with a probability of 0.1 % if
errors are log-normal, and in any case lies a factor of 1.25 above the worst error seen (of 4 for fewer than three
inputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.programs.outputs import relative_error
from prismm.programs.policy import fingerprint
from prismm.programs.recipe import Recipe
from prismm.programs.search import Search
from prismm.programs.trials import Program, Trials

if TYPE_CHECKING:
    from prismm.programs.search import Cost
    from prismm.programs.sites import Site

SINGLE = ("native", "scheme=residues:6", "scheme=residues:5", "scheme=residues:4", "scheme=words:tf32x1")
"""Levels of float32 products and narrower ones: each modulus less costs 4 bits of an operand, down to TF32's 11."""

DOUBLE = ("native", "scheme=residues:13", "scheme=residues:11", "scheme=residues:9", "scheme=residues:7")
"""Levels of float64 products."""


def tune(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    tolerance: float,
    *,
    metric: Callable[[Any, Any], float] | None = None,
    levels: Sequence[Any] | None = None,
    model: Any = None,
    reference: str | float = "correctly-rounded",
    margin: float | None = None,
    cost: Cost | None = None,
    trials: int = 400,
    state: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    full_output: bool = False,
) -> Any:
    """The fastest policy found whose output error stays within a tolerance, on new inputs too.

    Args:
        fn: the program: a function of an input, or a model. It has to be deterministic.
        inputs: some inputs, like those to come: each a tuple of positional arguments, a dictionary of keyword
            arguments, or a single argument. At least three say something of the spread between inputs; from four on,
            half of them are held back from the search.
        tolerance: the largest error wanted.
        metric: a function of (output, reference output) that returns the error, 0 or more; default the relative error
            in the Frobenius norm over all floating-point outputs.
        levels: what a product may be made by, most accurate first: accuracies, scheme names or `Recipe` texts such as
            "scheme=residues:5"; default `SINGLE` or `DOUBLE` by the product's type. The first has to meet the
            tolerance.
        model: as for `emulate`; the policy is then bound to this model.
        reference: accuracy target of the reference run's products.
        margin: factor between the largest error measured and the tolerance, instead of the statistical bound.
        cost: seconds of a `Call` by a `Recipe`, instead of measured times: to tune for another machine.
        trials: run at most so many choices.
        state: file in which trials are kept: a run that was stopped goes on from there.
        progress: told every step, in a line of words.
        full_output: return (policy, `Tuning`).

    Returns:
        A `Policy`. Rules name modules, operators and lines; products that none names are made by the first level.

    Raises:
        ArgumentError: for inputs, a tolerance or levels that make no sense, a function that is not deterministic (a
            warning where two runs differ by less than a tenth of the tolerance) or multiplies nothing, and a tolerance
            that the first level breaks. FileError: for a state file that cannot be read or written.

    Source: Lin, Sun, Zhang and Lu, "MixPert", LCTES 2024, whose tuner lowers one product at a time.

    >>> import torch, prismm
    >>> a = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    >>> policy = prismm.tune(lambda x: x @ a, [a, 2 * a, a.T, a + 1], 1e-5)
    >>> with prismm.emulate(policy):
    ...     c = a @ a
    """
    tell = progress or (lambda _: None)
    given = _inputs(inputs)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 < tolerance < math.inf:
        raise ArgumentError(f"tolerance={tolerance!r}; pass a finite number above 0")
    if margin is not None and not 1.0 <= margin < math.inf:
        raise ArgumentError(f"margin={margin!r}; pass a factor of 1 or more, or None")
    if not callable(fn):
        raise ArgumentError(f"fn={fn!r} cannot be called; pass a function of an input, or a model")
    chosen = None if levels is None else _levels(levels)

    def ladder(site: Site) -> list[Recipe]:
        wide = site.calls[0].dtype in ("float64", "complex128")
        return chosen or _levels(DOUBLE if wide else SINGLE)

    named = getattr(metric, "__qualname__", repr(metric)) if metric is not None else "relative_error"
    identity = {"metric": named, "margin": margin, "fingerprint": None if model is None else fingerprint(model)}
    program = Program(fn, given, metric or relative_error, model)
    path = None if state is None else Path(state)
    bench = Trials(program, ladder, float(tolerance), reference, path, identity, tell)
    return Search(bench, cost, margin, trials, tell).policy(full_output)


def _inputs(inputs: Any) -> list[Any]:
    import torch

    if isinstance(inputs, (torch.Tensor, dict, str)) or not isinstance(inputs, Sequence):
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__}; pass a list of inputs, each one argument or a tuple of them"
        )
    if not inputs:
        raise ArgumentError("inputs is empty; pass at least one input, four or more to hold some back")
    return list(inputs)


def _levels(levels: Sequence[Any]) -> list[Recipe]:
    from prismm.programs.policy import Rule

    found: list[Recipe] = []
    for level in levels:
        if isinstance(level, Recipe):
            recipe = level
        elif isinstance(level, str):
            recipe = Recipe.parse(level)
        elif isinstance(level, (int, float)):
            recipe = Recipe(accuracy=level)
        else:
            recipe = Rule(scheme=level).recipe
        if recipe in found:
            raise ArgumentError(f"levels names {recipe} twice")
        found.append(recipe)
    if not found:
        raise ArgumentError("levels is empty; pass at least one, the most accurate first")
    return found
