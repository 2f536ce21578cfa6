"""Trials of a program under policies: errors against a certified reference, seconds at every site, kept in a file."""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prismm.core import strict_json
from prismm.errors import ArgumentError, FileError, PrismmError
from prismm.programs.emulate import emulate
from prismm.programs.outputs import copied, digest, same
from prismm.programs.policy import Policy
from prismm.programs.recipe import Recipe
from prismm.programs.sites import Site, policy_of, seconds_of, sites_of

KIND, VERSION = "prismm.Tuning", 1

Levels = tuple[int, ...]
"""A level of each site: 0 is the most accurate one."""


@dataclass
class Trial:
    """One choice of levels: error for each input that was run, seconds at each site, or what went wrong."""

    levels: Levels
    errors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wall_seconds: float = math.inf
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """What the state file holds of it; JSON has no infinities."""
        errors = [error if math.isfinite(error) else None for error in self.errors]
        wall = self.wall_seconds if math.isfinite(self.wall_seconds) else None
        return {
            "levels": list(self.levels), "errors": errors, "seconds": self.seconds, "wall_seconds": wall,
            "failure": self.failure,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, content: Any) -> Trial:
        """A trial as `to_dict` wrote it; ValueError for anything else."""
        keys = ("levels", "errors", "seconds", "wall_seconds", "failure")
        if not isinstance(content, dict) or set(content) != set(keys):
            raise ValueError(f"a trial has the keys {', '.join(keys)}, all of them and no others")
        levels, errors, seconds, wall, failure = (content[key] for key in keys)
        if not isinstance(failure, str) or not all(isinstance(x, list) for x in (levels, errors, seconds)):
            raise ValueError("a trial's levels, errors and seconds are lists, and its failure is text")
        if not all(type(level) is int for level in levels):
            raise ValueError(f"a trial's levels are {levels!r}, not integers")
        return cls(
            tuple(levels),
            [math.inf if x is None else _positive("error", x) for x in errors],
            [_positive("time", x) for x in seconds],
            math.inf if wall is None else _positive("time", wall),
            failure,
        )


@dataclass
class Program:
    """A function with its inputs, run under policies."""

    fn: Callable[..., Any]
    inputs: list[Any]
    metric: Callable[[Any, Any], float]
    model: Any = None

    def run(self, index: int, policy: Policy, **options: Any) -> tuple[Any, Any]:
        """(output, record) of one input."""
        given = self.inputs[index]
        with emulate(policy, model=self.model, **options) as record:
            if isinstance(given, dict):
                output = self.fn(**given)
            else:
                output = self.fn(*given) if isinstance(given, tuple) else self.fn(given)
        return output, record


class Trials:
    """Runs and remembers: what was measured once is not measured again, in this process or the next.

    Args:
        program: what is tuned.
        ladder: makes the levels of a site, most accurate first.
        tolerance: errors above it end a trial.
        reference: the target that the reference run's products meet.
        state: where trials are kept, or None.
        identity: what a state file must agree with, besides what is found out here.

    Raises:
        ArgumentError: for a function that is not deterministic or multiplies nothing, or another tuning's state file.
    """

    def __init__(
        self,
        program: Program,
        ladder: Callable[[Site], list[Recipe]],
        tolerance: float,
        reference: str | float,
        state: Path | None,
        identity: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.program, self.tolerance, self.state, self.say = program, tolerance, state, say
        say("reference run, twice")
        self.references = [copied(program.run(0, Policy.of(reference))[0])]
        again, record = program.run(0, Policy.of(reference), dependencies=True)
        self.sites = sites_of(record)
        self._check_deterministic(again)
        if not self.sites:
            raise ArgumentError(_nothing(record))
        self.unseen = {what for _, what in record.unseen.values()}
        self.base_record: Any = None
        self.ladders = [ladder(site) for site in self.sites]
        for index in range(1, len(program.inputs)):
            say(f"reference run of input {index + 1} of {len(program.inputs)}")
            self.references.append(copied(program.run(index, Policy.of(reference))[0]))
        self.identity = identity | {
            "tolerance": tolerance,
            "reference": str(Policy.of(reference).rules[0].recipe),
            "sites": [site.name for site in self.sites],
            "levels": [[str(recipe) for recipe in ladder] for ladder in self.ladders],
            # Only a file outlives the inputs.
            "inputs": [] if state is None else [digest(given) for given in program.inputs],
        }
        self.known: dict[Levels, Trial] = {}
        if state is not None and state.exists():
            self._load(state)

    def _check_deterministic(self, again: Any) -> None:
        if same(again, self.references[0]):
            return
        error = measured(self.program.metric, again, self.references[0])
        what = (
            f"fn is not deterministic: two runs on the same input, with the same products to the last bit, differ by "
            f"{error:.3g}"
        )
        if not error <= self.tolerance / 10:
            raise ArgumentError(
                f"{what}, and the tolerance is {self.tolerance:.3g}; seed its random numbers inside fn "
                f"(torch.manual_seed), call model.eval(), and let it change neither its inputs nor what it keeps"
            )
        warnings.warn(f"{what}, which counts as error", stacklevel=5)

    def recipes(self, levels: Levels) -> list[Recipe]:
        """The recipe of each site."""
        return [ladder[level] for ladder, level in zip(self.ladders, levels, strict=True)]

    def policy(self, levels: Levels, **named: Any) -> Policy:
        """The policy of a choice of levels."""
        return policy_of(self.sites, self.recipes(levels), self.ladders[0][0], **named)

    def measure(self, levels: Levels, count: int) -> Trial:
        """The trial of these levels on the first `count` inputs, or up to the first error above the tolerance.

        Raises:
            PrismmError: where a scheme cannot make a product.
        """
        trial = self.known.setdefault(levels, Trial(levels))
        changed = False
        while not trial.failure and len(trial.errors) < count and all(x <= self.tolerance for x in trial.errors):
            index = len(trial.errors)
            start = time.perf_counter()
            try:
                output, record = self.program.run(index, self.policy(levels))
            except PrismmError:
                del self.known[levels]
                raise
            except Exception as error:
                if levels == (0,) * len(levels):
                    raise
                # A factorisation that meets an indefinite matrix, say: too little accuracy, like an infinite error.
                trial.failure = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                changed = True
                break
            seconds = seconds_of(record, self.sites)
            if index == 0:  # shapes may differ between inputs: seconds are those of the first one
                trial.wall_seconds = time.perf_counter() - start
                trial.seconds = seconds
            trial.errors.append(measured(self.program.metric, output, self.references[index]))
            changed = True
        if changed:
            self._save()
        return trial

    def again(self, levels: Levels) -> Trial:
        """Time a choice of levels once more, and keep the shorter times."""
        trial = self.measure(levels, 1)
        if trial.failure:
            return trial
        start = time.perf_counter()
        _, record = self.program.run(0, self.policy(levels))
        wall = time.perf_counter() - start
        trial.wall_seconds = min(trial.wall_seconds, wall)
        trial.seconds = [min(x, y) for x, y in zip(trial.seconds, seconds_of(record, self.sites), strict=True)]
        self._save()
        return trial

    def torch_seconds(self) -> tuple[list[float], float]:
        """Seconds at each site, and in all, with torch's own products: the shorter of two runs."""
        found: list[tuple[list[float], float]] = []
        for _ in range(2):
            start = time.perf_counter()
            _, record = self.program.run(0, Policy(()))
            found.append((seconds_of(record, self.sites), time.perf_counter() - start))
        return min(found, key=lambda pair: sum(pair[0]))

    def _save(self) -> None:
        if self.state is None:
            return
        from prismm.files.target import replace_text

        trials = [trial.to_dict() for trial in self.known.values()]
        content = {"kind": KIND, "version": VERSION, **self.identity, "trials": trials}
        replace_text(self.state, json.dumps(content, indent=1) + "\n")

    def _load(self, path: Path) -> None:
        """Take the trials of an earlier run of the same tuning.

        Raises:
            FileError: for what cannot be read. ArgumentError: for the trials of another tuning.
        """
        try:
            content = strict_json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("kind") != KIND:
                raise FileError(f"{path}: no state of a tuning; pass another state file, or delete this one")
            if not strict_json.is_version(content.get("version"), VERSION):
                raise FileError(
                    f"{path}: version {content.get('version')!r} of a tuning's state, this prismm reads {VERSION}; "
                    f"pass another state file, or delete this one"
                )
            trials = [Trial.from_dict(trial) for trial in content["trials"]]
        except FileError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(
                f"{path}: cannot be read ({error!r}); pass another state file, or delete this one"
            ) from error
        now = json.loads(json.dumps(self.identity))
        unknown = sorted(content.keys() - now.keys() - {"kind", "version", "trials"})
        if unknown:
            raise FileError(f"{path}: unknown keys {', '.join(unknown)}; pass another state file, or delete this one")
        different = [key for key in now if content.get(key) != now[key]]
        if different:
            raise ArgumentError(
                f"{path} is the state of another tuning: {', '.join(_difference(k, content, now) for k in different)}; "
                f"pass another state file, or delete this one"
            )
        depths = [len(ladder) for ladder in self.ladders]
        for trial in trials:
            fits = len(trial.levels) == len(depths) and all(
                0 <= x < d for x, d in zip(trial.levels, depths, strict=True)
            )
            fits = fits and len(trial.seconds) in (0, len(depths)) and len(trial.errors) <= len(self.program.inputs)
            if not fits:
                raise FileError(f"{path}: damaged: levels {trial.levels}; pass another state file, or delete this one")
        self.known = {trial.levels: trial for trial in trials}
        if len(self.known) != len(trials):
            raise FileError(f"{path}: damaged: a trial is there twice; pass another state file, or delete this one")
        self.say(f"{len(trials)} trials taken over from {path}")


def _positive(what: str, value: Any) -> float:
    """A finite number that is not negative."""
    if type(value) not in (int, float) or not 0.0 <= value <= sys.float_info.max:
        raise ValueError(f"a trial's {what} is {value!r}, not a number of 0 or above")
    return float(value)


def measured(metric: Callable[[Any, Any], float], output: Any, reference: Any) -> float:
    """The metric as a float; NaN counts as an infinite error.

    Raises:
        ArgumentError: for a metric that returns no number, or a negative one.
    """
    value = metric(output, reference)
    try:
        error = float(value)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise ArgumentError(f"metric returned {value!r}; it has to return one number, 0 or more") from problem
    if error < 0:
        raise ArgumentError(f"metric returned {error!r}; it has to return one number, 0 or more")
    return math.inf if math.isnan(error) else error


def configurations(depths: Sequence[int]) -> Iterator[Levels]:
    """All choices of levels."""
    import itertools

    return itertools.product(*(range(depth) for depth in depths))


def _difference(key: str, then: dict[str, Any], now: dict[str, Any]) -> str:
    if key in ("inputs", "sites", "levels"):
        return f"its {key} were others"
    return f"{key} was {then.get(key)!r}, is now {now[key]!r}"


def _nothing(record: Any) -> str:
    hidden = sorted({f"{where or module or '-'}: {what}" for (_, module, where), (_, what) in record.unseen.items()})
    left = sorted({row.reason for row in record.rows if row.reason and row.reason != "no rule"})
    text = "fn multiplied no matrices that can be intercepted"
    if left:
        text += f"; products were left to torch: {', '.join(left)}"
    if hidden:
        text += f"; out of reach are {'; '.join(hidden)}"
    return f"{text}. Pass a function that calls torch's products on floating-point tensors"
