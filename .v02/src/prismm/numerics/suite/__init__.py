"""Published tests of matrix engines, for any engine that can be called: what they say of it, and how that is read.

`run` takes a black box, `predicted` models of the catalogue; `tables` prints what became of the tests for several
engines side by side, as the papers do; `outcomes_published` is what they found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.errors import ArgumentError, ShapeError
from prismm.formats import FP16, Format
from prismm.numerics.suite.framework import Case, Result, Results, Setting, Test

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from prismm.numerics.suite.published import Published

__all__ = [
    "COMPARED",
    "SUITES",
    "Case",
    "Result",
    "Results",
    "Setting",
    "Test",
    "outcomes_published",
    "predicted",
    "run",
    "tables",
    "tests",
]

SUITES = ("fasi", "fasi-v100", "fttn", "khattak", "probes", "example")
"""Fasi et al.'s suite, its variants for the V100, FTTN, Khattak and Mikaitis's tests, probes of MMA-Sim and FPRev, and
the sum that separates engines."""

COMPARED = ("v100", "t4", "a100", "h100-mma", "b200-mma", "mi100", "mi250", "mi300")
"""Engines that papers have run the tests on, or published a model of."""


def tests(input: Format, output: Format, *, length: int = 16, suite: str | Sequence[str] | None = None) -> list[Test]:
    """The tests for an engine's formats: all of every suite, those that do not apply with a reason and no inputs.

    Args:
        input, output: formats of a and b, and of c and d.
        length: number of products in a call, 1 to 256.
        suite: one or some of `SUITES`; None for all.

    Raises:
        ArgumentError: for integer formats, another length, or an unknown suite.

    >>> from prismm.formats import FP16, FP32
    >>> from prismm.numerics.suite import tests
    >>> next(t for t in tests(FP16, FP32, suite="fasi") if t.id == "D1").cases
    (Case(products=('1 * 1',), c='-1+2^-24'),)
    """
    from prismm.numerics.suite import example, fasi, fttn, khattak, probes

    for what, format in (("input", input), ("output", output)):
        if not isinstance(format, Format):
            raise ArgumentError(f"{what}={format!r}; the suites test floating-point engines: pass a Format")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= 256:
        raise ArgumentError(f"length={length!r}; pass the number of products, 1 to 256")
    names = _named(suite)
    setting = Setting(input, output, length)
    makers = {
        "fasi": fasi.tests,
        "fasi-v100": fasi.volta_tests,
        "fttn": fttn.tests,
        "khattak": khattak.tests,
        "probes": probes.tests,
        "example": example.tests,
    }
    return [test for name in SUITES if name in names for test in makers[name](setting)]


def _named(suite: str | Sequence[str] | None) -> tuple[str, ...]:
    """The suites that an argument means."""
    names = SUITES if suite is None else tuple(suite) if isinstance(suite, (list, tuple)) else (suite,)
    for name in names:
        if name not in SUITES:
            raise ArgumentError(f"suite={name!r}; pass one of {', '.join(SUITES)}, several, or None for all")
    return names


def run(
    dot: Callable[..., Any],
    input: Format,
    output: Format,
    *,
    length: int = 16,
    suite: str | Sequence[str] | None = None,
    engine: str = "",
) -> Results:
    """Run published tests on an engine.

    Args:
        dot: takes float64 arrays a, b (n, k) and c (n) of values of the formats, and returns d (n); called once.
        input, output: formats of a and b, and of c and d.
        length: k, 1 to 256: products beyond a test's own are zeros.
        suite: one or some of `SUITES`; None for all.
        engine: what it is called in tables.

    Returns:
        A result for every test, also for those that do not apply: no input is ever rounded to make one fit.

    Raises:
        ArgumentError: for integer formats, another length, an unknown suite, or where ``dot`` returns no real numbers.
        ShapeError: where ``dot`` returns another shape.

    >>> from prismm.numerics.catalogue import engine
    >>> from prismm.numerics.suite import run
    >>> a100 = engine("a100.fp16.fp32")
    >>> results = run(a100.dot, a100.input, a100.output, suite="fttn")
    >>> results["fttn", "T_blk_fma_width"].reading
    '8'
    """
    import numpy as np

    from prismm.numerics.encodings import foreign

    wanted = tests(input, output, length=length, suite=suite)
    fitting: dict[Case, int] = {}  # its place in the call; -1: the formats lack an input
    rows: list[tuple[list[float], list[float], float]] = []
    for case in (case for test in wanted for case in test.cases):
        if case in fitting:
            continue
        fitting[case] = -1
        if len(case.products) > length:
            continue
        try:
            row = case.numbers(length)
        except OverflowError:
            continue
        if not (foreign(row[0], input).any() or foreign(row[1], input).any() or foreign(row[2], output).any()):
            fitting[case] = len(rows)
            rows.append(row)
    found: list[float] = []
    if rows:
        a, b, c = (np.array([row[i] for row in rows], np.float64) for i in range(3))
        found = _answers(dot(a, b, c), c.shape)
    results: dict[tuple[str, str], Result] = {}
    for test in wanted:
        values = tuple(None if fitting[case] < 0 else found[fitting[case]] for case in test.cases)
        earlier = {id: result for (of, id), result in results.items() if of == test.suite}
        results[test.suite, test.id] = _result(test, values, earlier, length)
    return Results(engine, Setting(input, output, length), tuple(results.values()))


def _answers(d: Any, shape: tuple[int, ...]) -> list[float]:
    """What a black box returned, checked for shape and type."""
    import numpy as np

    try:
        found = np.asarray(d)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"dot returned no array: {error}; return one of shape {shape}") from None
    if found.shape != shape:
        raise ShapeError(f"dot returned shape {found.shape} for {shape[0]} dot products; return {shape}")
    if found.dtype.kind not in "fiu":
        raise ArgumentError(f"dot returned {found.dtype} for {shape[0]} dot products; return real numbers")
    answers: list[float] = found.astype(np.float64).tolist()
    return answers


def _result(test: Test, values: tuple[float | None, ...], earlier: dict[str, Result], length: int) -> Result:
    if not test.cases:
        return Result(test, "not applicable", (), test.reason)
    lacking = [case for case, value in zip(test.cases, values, strict=True) if value is None]
    if lacking and (not test.partial or len(lacking) == len(values)):
        long = max(len(case.products) for case in lacking) > length
        reason = f"takes more than {length} products" if long else "the formats lack an input"
        return Result(test, "not applicable", values, reason)
    verdict = test.judge(values, earlier)
    return Result(test, verdict.status, values, verdict.reading, verdict.number)


def predicted(
    *devices: str, input: Format = FP16, length: int = 16, suite: str | Sequence[str] | None = None
) -> tuple[Results, ...]:
    """What the catalogue's models make of the tests: columns to set beside those of an engine at hand.

    Args:
        *devices: of `prismm.numerics.catalogue`, one instruction each; none for those that the papers compare.
        input: of the models' formats; all outputs that a device has are run.
        length, suite: as `run` takes them.

    Raises:
        ArgumentError: for a device that is unknown, has several instructions, or no model with such inputs.
        EngineError: for a device without a model.

    >>> from prismm.numerics.suite import predicted
    >>> [(r.engine, r.setting.output.name) for r in predicted("v100", suite="example")]
    [('v100', 'fp32'), ('v100', 'fp16')]
    """
    from prismm.numerics.catalogue import devices as known
    from prismm.numerics.catalogue import engine, models_of

    found = []
    for device in devices or COMPARED:
        if device not in known():
            engine(f"{device}.{input.name}.fp32")  # which raises
        models = [model for model in models_of(device) if model.input == input and model.scale is None]
        if not models:
            raise ArgumentError(f"{device} has no model with input {input.name!r}; see prismm.numerics.catalogue")
        for model in models:
            assert isinstance(model.output, Format)
            found.append(run(model.dot, input, model.output, length=length, suite=suite, engine=device))
    return tuple(found)


def tables(*results: Results, suite: str | Sequence[str] | None = None) -> str:
    """The papers' tables: a row for every test, a column for every engine; and a summary of what follows.

    Args:
        *results: of `run`. Results of one engine, with FP32 and with FP16 outputs, share a column if they have the
            same ``engine``.
        suite: which; None for all that were run.

    Raises:
        ArgumentError: without results, or for an unknown suite.
    """
    from prismm.numerics.suite.printed import tables as text

    return text(results, _named(suite))


def outcomes_published() -> tuple[Published, ...]:
    """What was published of these tests' outcomes on hardware, and what published models of it predict."""
    from prismm.numerics.suite.published import PUBLISHED

    return PUBLISHED
