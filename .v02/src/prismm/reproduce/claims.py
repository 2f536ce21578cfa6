"""What a paper published, the rule by which our rows are compared with it, and the verdict.

A rule looks at a list of numbers and holds only if there is at least one, none is NaN and every one fulfils it: an
empty measurement is "no data", never "holds".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from prismm.reproduce.framework import SIZES, Rows, Size

Verdict = Literal["holds", "differs", "too small", "no data", "not here", "ours alone"]
"""As published; not as published; not so at a size smaller than the rule is for; not measured at this size; needs
another device; an open question of the paper.
"""

Reading = Literal["text", "equation", "words"]
"""A number in the text or a table; what an equation gives; a statement in words that the rule makes precise."""


@dataclass(frozen=True)
class Rule:
    """A condition on a list of numbers.

    Attributes:
        text: the rule as the table prints it.
    """

    text: str
    _test: Callable[[list[float]], bool]

    def holds(self, values: list[float]) -> bool:
        """Whether there are numbers, and all of them together fulfil it."""
        return bool(values) and not any(math.isnan(value) for value in values) and self._test(values)


def within(factor: float, published: float) -> Rule:
    """Every value within a factor of the published one.

    >>> from prismm.reproduce.claims import within
    >>> within(2, 4.0).holds([2.0, 8.0]), within(2, 4.0).holds([9.0]), within(2, 4.0).holds([])
    (True, False, False)
    """
    low, high = published / factor, published * factor
    return Rule(f"within factor {factor:g} of {published:g}", lambda values: all(low <= v <= high for v in values))


def between(low: float, high: float) -> Rule:
    """Every value in [low, high]."""
    return Rule(f"in [{low:g}, {high:g}]", lambda values: all(low <= v <= high for v in values))


def at_most(limit: float) -> Rule:
    """Every value <= limit."""
    return Rule(f"<= {limit:g}", lambda values: all(v <= limit for v in values))


def at_least(limit: float) -> Rule:
    """Every value >= limit."""
    return Rule(f">= {limit:g}", lambda values: all(v >= limit for v in values))


def equals(published: float, text: str = "") -> Rule:
    """Every value is exactly the published one."""
    return Rule(f"= {text or format(published, 'g')}", lambda values: all(v == published for v in values))


def falls(factor: float = 1.0) -> Rule:
    """At least two values, and the last below the first by more than this factor."""
    return Rule(
        "falls" if factor == 1 else f"falls by more than {factor:g}",
        lambda values: len(values) > 1 and values[-1] * factor < values[0],
    )


def rises(strictly: bool = False) -> Rule:
    """At least two values; none below the one before it, and the last above the first (each, if strictly)."""

    def test(values: list[float]) -> bool:
        steps = list(pairwise(values))
        ordered = all(a < b if strictly else a <= b for a, b in steps)
        return bool(steps) and ordered and values[0] < values[-1]

    return Rule("rises at every step" if strictly else "rises, never falls", test)


@dataclass(frozen=True)
class Claim:
    """One published statement.

    where: figure, table or section. what: the quantity. published: the paper's words or number. measure: our numbers
    from the rows, in the order that the rule looks at them; empty where the rows have none. rule None: with `device`,
    what only that device can show; without, an open question that we answer (`measure` gives the answer). show: how a
    number of ours is printed. least: the smallest size of a run at which breaking the rule means anything.
    """

    where: str
    what: str
    published: str
    rule: Rule | None
    measure: Callable[[Rows], list[float]] = lambda rows: []
    reading: Reading = "text"
    note: str = ""
    device: str = ""
    show: Callable[[float], str] = lambda value: f"{value:.4g}"
    least: Size = "quick"

    def __post_init__(self) -> None:
        if self.device and self.rule is not None:
            raise ValueError(f"claim {self.what!r} has a rule and a device; it can have only one of them")

    def judge(self, rows: Rows, size: Size = "full") -> Comparison:
        """Ours beside theirs, measured at this size."""
        values = [] if self.device else [float(value) for value in self.measure(rows)]
        verdict: Verdict
        if self.device:
            verdict = "not here"
        elif not values:
            verdict = "no data"
        elif self.rule is None:
            verdict = "ours alone"
        elif self.rule.holds(values):
            verdict = "holds"
        else:
            verdict = "too small" if SIZES.index(size) < SIZES.index(self.least) else "differs"
        return Comparison(self, values, verdict)


@dataclass(frozen=True)
class Comparison:
    """A claim, our numbers and the verdict."""

    claim: Claim
    values: list[float]
    verdict: Verdict

    @property
    def ours(self) -> str:
        """Our numbers in a few characters.

        >>> from prismm.reproduce.claims import Claim, Comparison
        >>> Comparison(Claim("", "", "", None), [1.0, 0.25, 3.0], "ours alone").ours
        '0.25 ... 3 (3)'
        """
        if not self.values:
            return "-"
        if len(set(self.values)) == 1:
            return self.claim.show(self.values[0]) + (f" ({len(self.values)})" if len(self.values) > 1 else "")
        if any(math.isnan(value) for value in self.values):
            return f"nan ({len(self.values)})"
        return f"{min(self.values):.3g} ... {max(self.values):.3g} ({len(self.values)})"

    @property
    def rule(self) -> str:
        """The rule as it is printed."""
        if self.claim.device:
            return f"needs {self.claim.device}"
        return self.claim.rule.text if self.claim.rule else "open question"
