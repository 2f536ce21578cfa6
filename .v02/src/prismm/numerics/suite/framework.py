"""Tests of a matrix engine as data: inputs, how their values are read, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prismm.formats import Format
from prismm.numerics.suite.expressions import factors, minus, value

__all__ = [
    "Case",
    "Judge",
    "Result",
    "Results",
    "Setting",
    "Status",
    "Test",
    "Verdict",
    "direction",
    "equal",
    "not_applicable",
]

Status = Literal["passed", "failed", "no conclusion", "not applicable"]
"""Whether what the test looks for is there; "no conclusion" where an earlier reading, or this one, allows none."""


@dataclass(frozen=True)
class Setting:
    """What tests are made for.

    Attributes:
        input: format of the factors.
        output: format of the result.
        length: products in a call.
    """

    input: Format
    output: Format
    length: int

    @property
    def p(self) -> int:
        """Precision of the output, in bits."""
        return self.output.precision


@dataclass(frozen=True)
class Case:
    """One dot product, in exact expressions.

    Attributes:
        products: products in their places, the rest of them zero.
        c: what is added.
    """

    products: tuple[str, ...] = ()
    c: str = "0"

    def opposite(self) -> Case:
        """The same with every term's sign changed.

        >>> Case(("1 * 2^-3",), "1-2^-24").opposite()
        Case(products=('-1 * 2^-3',), c='-1+2^-24')
        """
        flipped = tuple("0" if p == "0" else f"{minus(factors(p)[0])} * {factors(p)[1]}" for p in self.products)
        return Case(flipped, minus(self.c))

    def numbers(self, length: int) -> tuple[list[float], list[float], float]:
        """a, b and c, padded with zeros.

        Raises:
            OverflowError: for a value beyond float64.
        """
        pairs = [factors(p) for p in self.products] + [("0", "0")] * (length - len(self.products))
        a, b = ([_exact(pair[side]) for pair in pairs] for side in (0, 1))
        return a, b, _exact(self.c)

    def __str__(self) -> str:
        placed = [f"{p}" if i == 0 or self.products[i - 1] != "0" else f"[{i}] {p}" for i, p in self._placed()]
        return ", ".join([*placed, f"c = {self.c}"])

    def _placed(self) -> Iterator[tuple[int, str]]:
        return ((i, p) for i, p in enumerate(self.products) if p != "0")


def _exact(text: str) -> float:
    found = float(value(text))
    if found != value(text):
        raise OverflowError(f"{text} is no float64")
    return found


@dataclass(frozen=True)
class Verdict:
    """How a test's values are read.

    Attributes:
        status: what became of the test.
        reading: what the values say, in words.
        number: what later tests and tables take from it, or None.
    """

    status: Status
    reading: str = ""
    number: int | None = None


Judge = Callable[[Sequence[float | None], "Mapping[str, Result]"], Verdict]
"""Values of the cases (None where the formats lack an input) and results of earlier tests of the suite, by id."""


@dataclass(frozen=True)
class Test:
    """One published test.

    Args:
        id: as its source calls it, such as "B3".
        suite: one of `prismm.numerics.suite.SUITES`.
        title: what it shows where it passes.
        source: paper and section.
        decides: the property of an engine that it decides.
        expectation: the condition for passing, in print.
        cases: its dot products.
        judge: reads their values.
        partial: whether it goes on where the formats lack the inputs of some cases.
        reason: why it does not apply to these formats; "" where it may.
    """

    id: str
    suite: str
    title: str
    source: str
    decides: str
    expectation: str
    cases: tuple[Case, ...]
    judge: Judge
    partial: bool = False
    reason: str = ""

    __test__ = False  # pytest's collection


def equal(*expected: str, readings: Mapping[str, str] | None = None) -> Judge:
    """Passes where every value is the expected one; a reading belongs to the first value."""

    def judge(values: Sequence[float | None], _: Mapping[str, Result]) -> Verdict:
        wanted = [float(value(text)) for text in expected]
        named = {float(value(text)): reading for text, reading in (readings or {}).items()}
        passed = list(values) == wanted
        first = values[0]
        return Verdict("passed" if passed else "failed", "" if first is None else named.get(first, ""))

    return judge


DIRECTIONS = {(False, False): "RZ", (True, True): "RN", (True, False): "RU", (False, True): "RD"}
"""Whether a positive value and a negative one were rounded away from zero."""


def direction(near: str, far: str) -> Judge:
    """Reads a rounding mode from a positive sum and its opposite, each between `near` zero and `far` from it."""

    def judge(values: Sequence[float | None], _: Mapping[str, Result]) -> Verdict:
        ends = [float(value(near)), float(value(far))]
        up, down = values
        if up not in ends or down is None or -down not in ends:
            return Verdict("failed", "neither neighbour")
        return Verdict("passed", DIRECTIONS[up == ends[1], -down == ends[1]])

    return judge


def not_applicable(test: Test, reason: str) -> Test:
    """The same test, without its inputs."""
    return replace(test, cases=(), reason=reason)


@dataclass(frozen=True)
class Result:
    """What became of a test.

    Args:
        test: which.
        status: passed, failed, no conclusion, not applicable.
        values: d of every case; None where the formats lack an input.
        reading: what follows, in words: "RZ", "8", "order matters".
        number: the same, where it is one.
    """

    test: Test
    status: Status
    values: tuple[float | None, ...] = ()
    reading: str = ""
    number: int | None = None

    @property
    def mark(self) -> str:
        """For tables: P or F; the reading of a test that has more than two outcomes; ? or - where there is none."""
        if self.status == "not applicable":
            return "-"
        if self.status == "no conclusion":
            return f"? {self.reading}".rstrip() if self.number is not None else "?"
        if self.test.suite.startswith("fasi") or not self.reading:
            return "P" if self.status == "passed" else "F"
        return self.reading

    def to_dict(self, inputs: bool = False) -> dict[str, Any]:
        """For JSON, with the exact expressions of all inputs or without them."""
        test = self.test
        cases = {"cases": [{"products": list(case.products), "c": case.c} for case in test.cases]} if inputs else {}
        return {
            "test": test.id,
            "suite": test.suite,
            "title": test.title,
            "source": test.source,
            "decides": test.decides,
            "expected": test.expectation,
            **cases,
            "status": self.status,
            "values": list(self.values),
            "reading": self.reading,
            "number": self.number,
        }


@dataclass(frozen=True)
class Results:
    """What became of all tests that were run.

    Args:
        engine: what the engine is called in tables.
        setting: formats and length.
        results: in the order of the suites.
    """

    engine: str
    setting: Setting
    results: tuple[Result, ...] = field(default=(), repr=False)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, key: tuple[str, str]) -> Result:
        """The result of a test: results["fasi", "B3"]."""
        for result in self.results:
            if (result.test.suite, result.test.id) == key:
                return result
        raise KeyError(key)

    def get(self, suite: str, id: str) -> Result | None:
        """The result of a test, if it was run."""
        return next((r for r in self.results if (r.test.suite, r.test.id) == (suite, id)), None)

    def to_dict(self, inputs: bool = False) -> dict[str, Any]:
        """For JSON, with the exact expressions of all inputs or without them."""
        return {
            "kind": "prismm.SuiteResults",
            "version": 1,
            "engine": self.engine,
            "input": self.setting.input.name,
            "output": self.setting.output.name,
            "length": self.setting.length,
            "results": [result.to_dict(inputs) for result in self.results],
        }
