"""One dot product on an engine, step by step, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from textwrap import indent
from typing import TYPE_CHECKING, Any

from prismm.cli.console import columns, table
from prismm.cli.numerals import decimal, hexadecimal, pattern, short
from prismm.cli.operands import Inputs
from prismm.formats import Format, round_fraction
from prismm.numerics.rationals import binade

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.steps import Step, Term, Trace

_SHOWN = 10  # operands in one line
_LOSSES = 3  # of one term


@dataclass(frozen=True)
class Traced:
    """What one engine made of one dot product, beside the exact value."""

    model: EngineModel
    inputs: Inputs
    trace: Trace
    exact: Fraction | float

    @property
    def nearest(self) -> float:
        """The exact value in the output format, rounded to nearest."""
        output = self.model.output
        if isinstance(self.exact, float):
            return self.exact
        if isinstance(output, Format):
            return round_fraction(output, self.exact.numerator, 1 - self.exact.denominator.bit_length())
        return float(self.exact)

    @property
    def ulps(self) -> float:
        """|result - exact| in units of the last place of the exact value; 0 where both are the same special."""
        exact, result = self.exact, self.trace.result
        if isinstance(exact, float) or not math.isfinite(result):
            return 0.0 if exact == result or (exact != exact and result != result) else math.inf
        error = abs(Fraction(result) - exact)
        if not isinstance(self.model.output, Format) or error == 0:
            return float(error)
        at = max(binade(abs(exact)), self.model.output.minexp) if exact else self.model.output.minexp
        relative = error / Fraction(2) ** (at - self.model.output.fraction_bits)
        return float(relative) if relative < Fraction(2) ** 1000 else math.inf

    def pattern(self, value: float) -> str:
        """The bits of a value of the output format; "" where it has none, as of an integer beyond it."""
        output = self.model.output
        if isinstance(output, Format):
            lacking = (math.isnan(value) and not output.has_nan) or (math.isinf(value) and not output.has_infinity)
            return "" if lacking else pattern(value, output, self.model.nan)
        return pattern(value, output) if output.min <= value <= output.max else ""


def traced(model: EngineModel, inputs: Inputs) -> Traced:
    """Run the specification, which is slow and exact."""
    from prismm.numerics import trace

    found = trace(model, inputs.a, inputs.b, inputs.c, inputs.scale_a, inputs.scale_b)
    return Traced(model, inputs, found, inputs.exact(model))


def summary(many: list[Traced], origin: str) -> str:
    """Operands, the exact value, and a row for every engine."""
    first = many[0]
    rows = [
        ("operands", origin),
        ("a", listed(first.inputs.a)),
        ("b", listed(first.inputs.b)),
        ("c", short(first.inputs.c)),
    ]
    for what, factors in (("scale a", first.inputs.scale_a), ("scale b", first.inputs.scale_b)):
        if factors is not None:
            rows.append((what, listed(factors)))
    rows.append(("exact", f"{decimal(first.exact)}  {hexadecimal(first.exact)}"))
    head = ["engine", "result", "hex float", "bits", "nearest to exact", "error in ulps"]
    cells = [
        [
            one.model.name,
            decimal(one.trace.result),
            hexadecimal(one.trace.result),
            one.pattern(one.trace.result),
            one.pattern(one.nearest),
            f"{one.ulps:.3g}",
        ]
        for one in many
    ]
    return f"{table(rows)}\n\n{columns(head, cells, left=('engine', 'bits', 'nearest to exact'))}"


def steps(one: Traced) -> str:
    """Every step with its terms; zeros are counted, not shown."""
    model = one.model
    parts = [f"{model.name}: {about(model)}"]
    for first, last, step in runs(one.trace.steps):
        if step is None:
            parts.append(idle(first, last))
        else:
            body = indent(f"{_terms(step)}\n{_outcome(model, step)}", "  ")
            parts.append(f"{heading(step, first, len(one.trace.steps))}\n{body}")
    return "\n\n".join(parts)


def runs(steps: list[Step]) -> list[tuple[int, int, Step | None]]:
    """Numbers of the first and the last step of every run: of one step, or of several that do nothing, with None."""
    found: list[tuple[int, int, Step | None]] = []
    for number, step in enumerate(steps, 1):
        nonzero = [term for term in step.terms if is_shown(term)]
        nothing = len(nonzero) <= 1 and all(term.label in ("c", "sum") for term in nonzero)
        nothing = nothing and not (step.wrapped or any(term.lost or term.losses for term in nonzero))
        nothing = nothing and (step.result == step.total) and len(steps) > 1
        if nothing and found and found[-1][2] is None:
            found[-1] = found[-1][0], number, None
        else:
            found.append((number, number, None if nothing else step))
    if all(step is None for _, _, step in found) and steps:
        found = [(1, 1, steps[0]), *([(2, len(steps), None)] if len(steps) > 1 else [])]
    return found


def idle(first: int, last: int) -> str:
    """What is said of steps that do nothing."""
    return f"step {first} adds zeros" if first == last else f"steps {first} to {last} add zeros"


def about(model: EngineModel) -> str:
    """An engine in one line."""
    formats = f"{model.input.name} · {model.input.name} + {model.output.name}"
    if model.is_integer:
        return f"{formats}, exact sums that {'wrap around' if model.overflow == 'wrap' else 'saturate'}"
    kept = "every bit kept" if model.fraction_bits is None else f"{model.fraction_bits} fraction bits kept"
    if model.summation != "aligned" and model.fraction_bits is None:
        kept = f"every sum in {model.sums.name or model.sums}"
    if model.summation == "aligned" and model.block == 1 and model.fraction_bits is None:
        return f"{formats}, a chain of fused multiply-adds, rounded {ROUNDED[model.rounding]}"
    how = {"aligned": "aligned to the largest", "sequential": "one by one", "pairwise": "in pairs"}[model.summation]
    joined = "" if model.join == "inside" else f", c {model.join if isinstance(model.join, str) else 'late'}"
    return f"{formats}, blocks of {model.block} {how}, {kept}, rounded {ROUNDED[model.rounding]}{joined}"


ROUNDED = {"nearest": "to nearest", "zero": "toward zero", "floor": "down", "odd": "to odd"}


def heading(step: Step, number: int, count: int) -> str:
    """What a step does, in a line."""
    kinds = {
        "block": "a block of products",
        "partial": "an addition within a block",
        "join": "an addition",
        "convert": "the conversion to the output",
    }
    cut = "" if step.quantum is None else f", terms cut off below 2^{step.quantum}"
    return f"step {number} of {count}: {kinds.get(step.kind, step.kind)}{cut}"


def _terms(step: Step) -> str:
    shown = [term for term in step.terms if is_shown(term)]
    head = ["term", "value", "exponent", "kept", "lost", "lost bits"]
    cells = [
        [
            term.label,
            short(term.value),
            "" if term.exponent is None else str(term.exponent),
            short(term.kept),
            short(term.lost) if term.lost else "",
            lost_bits(term, step.quantum),
        ]
        for term in shown
    ]
    if any(term.losses for term in shown):
        head.append("lost before")
        cells = [[*row, lost_before(term)] for row, term in zip(cells, shown, strict=True)]
    lines = columns(head, cells, left=("term", "lost bits", "lost before")) if cells else "every term is zero"
    zeros = len(step.terms) - len(shown)
    return lines + (f"\nand {zeros} zero{'s' if zeros > 1 else ''}" if zeros and cells else "")


def is_shown(term: Term) -> bool:
    """Zeros are counted only, but a group's zero sum of which products were lost."""
    return term.value != 0 or term.lost != 0


def lost_before(term: Term) -> str:
    """What flushing and rounding did to a term before it was aligned.

    >>> from prismm.numerics.steps import Loss, Term
    >>> lost_before(Term("c", Fraction(1, 2**130), None, 0.0, (Loss("c", "flushed", Fraction(1, 2**130), 0.0),)))
    'c flushed to 0'
    """
    words = [f"{loss.what} {loss.how} to {short(loss.after)}" for loss in term.losses[:_LOSSES]]
    more = len(term.losses) - _LOSSES
    return ", ".join([*words, *([f"… {more} more"] if more > 0 else [])])


def lost_below(term: Term, quantum: int | None) -> int | None:
    """The lowest position below which all lost bits of a term are; None where nothing, or a part of a sum, is lost.

    >>> from prismm.numerics.steps import Term
    >>> lost_below(Term("c", Fraction(11, 8), None, Fraction(3, 2)), None)  # rounded
    -2
    """
    if not term.lost or term.value == 0:
        return None
    if quantum is not None and not term.losses:
        return quantum
    value, kept = Fraction(term.value), Fraction(term.kept)
    top = max(binade(abs(x)) for x in (value, kept) if x) + 1
    for q in range(1 - value.denominator.bit_length(), top + 1):
        units = value / Fraction(2) ** q
        if kept / Fraction(2) ** q in (math.floor(units), math.ceil(units)):
            return q if quantum is None else max(q, quantum)
    return None


def lost_bits(term: Term, quantum: int | None) -> str:
    """The magnitude's bits that were lost, highest first, and where they stand.

    >>> from prismm.numerics.steps import Term
    >>> lost_bits(Term("c", Fraction(-11, 8), 0, Fraction(-1)), 0)
    '011 at 2^-1 to 2^-3'
    """
    if not term.lost:
        return ""
    below, size = lost_below(term, quantum), abs(Fraction(term.value))
    if below is None:  # what is lost is a product of a group
        size = abs(term.lost)
        below = binade(size) + 1
    low, high = 1 - size.denominator.bit_length(), below - 1
    if high < low:
        return ""
    unit = Fraction(2) ** low
    digits = f"{int(size / unit) & ((1 << (high - low + 1)) - 1):0{high - low + 1}b}"
    if len(digits.lstrip("0")) < len(digits) - 12:
        skipped = len(digits) - len(digits.lstrip("0"))
        digits, high = digits.lstrip("0"), high - skipped
    if len(digits) > 40:
        digits = f"{digits[:37]}…"
    return f"{digits} at 2^{high}" + (f" to 2^{low}" if low < high else "")


def _outcome(model: EngineModel, step: Step) -> str:
    rows = []
    if step.wrapped:
        before = sum((Fraction(term.kept) for term in step.terms), Fraction(0))
        rows.append(("sum", short(before)))
        if step.quantum is not None:
            rows.append(("register", f"{short(step.total)}, wrapped around"))
    else:
        rows.append(("sum", short(step.total)))
    error = step.rounding_error
    way = f", rounding added {short(error)}"
    if model.is_integer:
        way = ", wrapped around" if model.overflow == "wrap" else ", saturated"
    rows.append(("result", short(step.result) + (way if error else "")))
    return table(rows)


def listed(values: list[float]) -> str:
    """Values between commas, the first ones of many.

    >>> listed([1.0, 0.5])
    '1, 0.5'
    """
    more = len(values) - _SHOWN
    return ", ".join(map(short, values[:_SHOWN])) + (f", … {more} more" if more > 0 else "")


def as_json(one: Traced) -> dict[str, Any]:
    """Everything; exact numbers as hex floats."""
    return {
        "engine": one.model.name,
        "model": one.model.to_dict(),
        "a": [hexadecimal(x) for x in one.inputs.a],
        "b": [hexadecimal(x) for x in one.inputs.b],
        "c": hexadecimal(one.inputs.c),
        "scale_a": None if one.inputs.scale_a is None else [hexadecimal(x) for x in one.inputs.scale_a],
        "scale_b": None if one.inputs.scale_b is None else [hexadecimal(x) for x in one.inputs.scale_b],
        "result": _value(one, one.trace.result),
        "exact": {"decimal": decimal(one.exact), "hex": hexadecimal(one.exact)},
        "nearest": _value(one, one.nearest),
        "error_in_ulps": one.ulps,
        "steps": [_step(step) for step in one.trace.steps],
    }


def _value(one: Traced, value: float) -> dict[str, str]:
    return {"decimal": decimal(value), "hex": hexadecimal(value), "bits": one.pattern(value)}


def _step(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "quantum": step.quantum,
        "terms": [
            {
                "label": term.label,
                "value": hexadecimal(term.value),
                "exponent": term.exponent,
                "kept": hexadecimal(term.kept),
                "lost": hexadecimal(term.lost),
                "lost_bits": lost_bits(term, step.quantum),
                "losses": [
                    {
                        "what": loss.what,
                        "how": loss.how,
                        "before": hexadecimal(loss.before),
                        "after": hexadecimal(loss.after),
                    }
                    for loss in term.losses
                ],
            }
            for term in step.terms
        ],
        "total": hexadecimal(step.total),
        "wrapped": step.wrapped,
        "result": hexadecimal(step.result),
        "rounding_error": hexadecimal(step.rounding_error),
    }
