"""The bits of a dot product as SVG: terms on one axis of exponents, the cut, the sum, and what rounding dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from prismm.cli.html.markup import Markup, joined, tag
from prismm.cli.numerals import decimal, short
from prismm.cli.traces import is_shown, lost_before, lost_below
from prismm.formats import Format, Integer
from prismm.numerics.rationals import binade

if TYPE_CHECKING:
    from prismm.numerics.model import EngineModel
    from prismm.numerics.steps import Step, Term

_CELL, _ROW, _GAP = 13, 24, 30  # pixels: width of a bit, height of a row, width of zeros left out
_TOP, _CHARACTER = 26, 7.9  # height of the axis; width of a character of 13 pixels
_ROWS = 20  # terms shown
_ZEROS = 7  # a longer run of columns in which no row has a one is left out
_LABELS = 26  # pixels between exponents

CLASSES = {
    "kept": "kept",
    "carry": "carry, above a product's two integer bits",
    "lost": "lost before the sum: flushed, rounded or cut off",
    "over": "beyond the register, which wraps around",
    "dropped": "dropped by rounding",
}
"""What a one can be, and what the legend calls it."""


@dataclass
class _Row:
    """A number on the axis: its name, sign, and what became of each of its ones.

    Args:
        spans: from the highest to the lowest position that is drawn, zeros between included.
        bits: class of every one, by position.
        tick: position above which a line of the row's own stands.
    """

    label: str
    value: Fraction | float
    note: str = ""
    warning: str = ""
    spans: tuple[int, int] | None = None
    bits: dict[int, str] = field(default_factory=dict)
    tick: int | None = None
    tick_class: str = "cut"
    result: bool = False


def picture(model: EngineModel, step: Step, title: str, last: bool = True) -> Markup:
    """One step.

    Args:
        model: whose step it is.
        step: of a trace.
        title: what it is, for who cannot see it.
        last: whether the step's result is d.
    """
    top = None if step.quantum is None or model.fraction_bits is None else step.quantum + model.fraction_bits
    nonzero = [term for term in step.terms if is_shown(term)]
    terms = [_term(term, step.quantum) for term in nonzero[:_ROWS]]
    sums = _sums(model, step, top, last)
    columns = _columns([*terms, *sums], _boundaries(step))
    return _drawn(terms, sums, columns, step, title, len(nonzero) - len(terms), len(step.terms) - len(nonzero))


def legend(model: EngineModel, steps: Iterable[Step]) -> Markup:
    """What the colours mean that these steps use."""
    used: set[str] = set()
    for step in steps:
        top = None if step.quantum is None or model.fraction_bits is None else step.quantum + model.fraction_bits
        for row in [*(_term(t, step.quantum) for t in step.terms if is_shown(t)), *_sums(model, step, top, True)]:
            used |= set(row.bits.values())
    items = (tag("span", tag("i", class_=f"swatch {name}"), text) for name, text in CLASSES.items() if name in used)
    return tag("p", *items, class_="legend")


def _ones(size: Fraction) -> list[int]:
    """Positions of the ones of a binary fraction, highest first."""
    low = 1 - size.denominator.bit_length()
    units = int(size / Fraction(2) ** low)
    return [low + i for i in range(units.bit_length() - 1, -1, -1) if units >> i & 1]


def _finite(value: Fraction | float) -> Fraction | None:
    """|value|, or None for zero and what is no number."""
    if value == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return abs(Fraction(value))


def _term(term: Term, quantum: int | None) -> _Row:
    row = _Row(term.label.replace("*", "·"), term.value, short(term.value))
    size, below = _finite(term.value), lost_below(term, quantum)
    if term.lost:
        row.warning = f"lost {short(term.lost)}"
        if not term.losses and abs(Fraction(term.kept)) > abs(Fraction(term.value)):
            row.warning += " (cut to the floor)"
    if term.losses:
        row.warning = ": ".join(filter(None, [row.warning, lost_before(term).replace("*", "·")]))
    if size is None:
        return row
    ones = _ones(size)
    if below != quantum:
        row.tick = below
    row.spans = ones[0], ones[-1]
    row.bits = {p: "lost" if below is not None and p < below else "kept" for p in ones}
    return row


def _sums(model: EngineModel, step: Step, top: int | None, last: bool) -> list[_Row]:
    """The sum, the register if it wrapped, and the result."""
    rows: list[_Row] = []

    def add(label: str, value: Fraction | float, limit: int | None = None) -> _Row:
        row = _Row(label, value, short(value))
        size = _finite(value)
        if size is not None:
            ones = _ones(size)
            row.spans = ones[0], ones[-1]
            for p in ones:
                carry = top is not None and p > top + 1
                row.bits[p] = "over" if limit is not None and p >= limit else "carry" if carry else "kept"
        rows.append(row)
        return row

    if step.wrapped and top is not None and model.carry_bits is not None:
        before = sum((Fraction(term.kept) for term in step.terms), Fraction(0))
        limit = top + 2 + model.carry_bits
        add("sum", before, limit)
        rows[0].tick, rows[0].tick_class = limit, "limit over"
        add("register", step.total).warning = "wrapped around"
    elif step.wrapped and isinstance(model.output, Integer) and model.overflow == "wrap":
        add("sum", step.total, model.output.bits - model.output.signed)
    else:
        add("sum", step.total)
    result = add("result", step.result)
    result.result = True
    error, total = step.rounding_error, _finite(step.total)
    if error and total is not None:
        away = isinstance(step.result, Fraction) and abs(step.result) > total
        result.warning = (
            f"rounded {'away from' if away else 'toward'} zero by {short(abs(error))}"
            if not model.is_integer
            else ("wrapped around" if model.overflow == "wrap" else "saturated")
        )
        unit = None if model.is_integer else _unit(model, step, total, last)
        if unit is not None:
            dropped = [p for p in _ones(total) if p < unit]
            result.bits |= {p: "dropped" for p in dropped if p not in result.bits}
            if dropped:
                result.tick, result.tick_class = unit, "limit dropped"
                high = max(result.spans[0] if result.spans else dropped[0], dropped[0])
                result.spans = high, min(dropped[-1], result.spans[1] if result.spans else dropped[-1])
    return rows


def _unit(model: EngineModel, step: Step, total: Fraction, last: bool) -> int:
    """Position of the last bit that a result can have."""
    if step.kind == "partial" and model.fraction_bits is not None:
        return binade(total) - model.fraction_bits
    own = model.output if step.kind == "convert" or (step.kind == "join" and last) else model.sums
    assert isinstance(own, Format)
    return max(binade(total), own.minexp) - own.fraction_bits


def _boundaries(step: Step) -> set[int]:
    return set() if step.quantum is None else {step.quantum, step.quantum - 1}


@dataclass(frozen=True)
class _Columns:
    """Where positions stand: x of every one that is drawn, and of the gaps between them."""

    x: dict[int, int]
    gaps: list[tuple[int, int, int]]  # highest and lowest position left out, x
    width: int


def _columns(rows: list[_Row], boundaries: set[int]) -> _Columns:
    """Every position from the highest one to the lowest, less long runs of zeros."""
    busy = set(boundaries)
    for row in rows:
        busy |= set(row.bits)
        if row.tick is not None:
            busy |= {row.tick, row.tick - 1}
    if not busy:
        return _Columns({}, [], 0)
    ordered = sorted(busy, reverse=True)
    x: dict[int, int] = {}
    gaps: list[tuple[int, int, int]] = []
    at = 0
    previous: int | None = None
    for p in ordered:
        if previous is not None:
            between = previous - p - 1
            if between > _ZEROS:
                x[previous - 1], x[p + 1] = at, at + _CELL + _GAP
                gaps.append((previous - 2, p + 2, at + _CELL))
                at += 2 * _CELL + _GAP
            else:
                for q in range(previous - 1, p, -1):
                    x[q] = at
                    at += _CELL
        x[p] = at
        at += _CELL
        previous = p
    return _Columns(x, gaps, at)


def _drawn(
    terms: list[_Row], sums: list[_Row], columns: _Columns, step: Step, title: str, more: int, zeros: int
) -> Markup:
    """The rows under their axis."""
    rows = [*terms, *sums]
    extra = [f"… {more} more"] if more else []
    extra += [f"{zeros} zero{'s' if zeros > 1 else ''}"] if zeros else []
    label_width = math.ceil(max(len(text) for text in ["bit of 2^", *(row.label for row in rows), *extra]) * _CHARACTER)
    left = label_width + 26  # with room for the sign
    notes = max(len(f"{row.note}  {row.warning}") for row in rows)
    right = left + max(columns.width, 2 * _CELL) + 12
    width = math.ceil(max(right + notes * _CHARACTER, left + 24 * _CHARACTER)) + 8
    below = _TOP + len(terms) * _ROW + len(extra) * (_ROW - 4)
    height = below + 8 + len(sums) * _ROW + 8
    parts: list[Markup] = [_axis(columns, left, step)]
    if step.quantum is not None and columns.x:
        cut = left + columns.x[step.quantum - 1]
        end = left + columns.width
        parts += [
            tag("rect", x=cut, y=_TOP - 2, width=end - cut, height=below - _TOP, class_="beyond"),
            tag("path", d=f"M{cut} {_TOP - 8}V{below - 2}", class_="cut"),
        ]
    for i, row in enumerate(terms):
        parts.append(_row(row, columns, left, label_width, right, _TOP + i * _ROW))
    for i, text in enumerate(extra):
        y = _TOP + len(terms) * _ROW + i * (_ROW - 4) + 12
        parts.append(tag("text", text, x=label_width, y=y + 3, class_="faint end"))
    parts.append(tag("path", d=f"M0 {below + 3}H{right}", class_="rule"))
    for i, row in enumerate(sums):
        parts.append(_row(row, columns, left, label_width, right, below + 8 + i * _ROW))
    return tag(
        "svg",
        tag("title", title),
        tag("desc", "; ".join(_spoken(row) for row in rows)),
        *parts,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        class_="bits",
    )


def _spoken(row: _Row) -> str:
    return f"{row.label} {decimal(row.value)}{', ' if row.warning else ''}{row.warning}"


def _axis(columns: _Columns, left: int, step: Step) -> Markup:
    """Exponents over the columns, not too many."""
    if not columns.x:
        return joined()
    wanted: list[int] = [max(columns.x)]
    if step.quantum is not None:
        wanted.append(step.quantum)
    wanted += [min(columns.x)]
    wanted += [low - 1 for _, low, _ in columns.gaps]
    wanted += sorted((p for p in columns.x if p % 4 == 0), reverse=True)
    placed: dict[int, int] = {}
    for p in wanted:
        if all(abs(columns.x[p] - other) >= _LABELS for other in placed.values()):
            placed[p] = columns.x[p]
    labels = [
        tag("text", str(p), x=left + x + _CELL / 2, y=12, class_="cutlabel" if p == step.quantum else "axis")
        for p, x in placed.items()
    ]
    ticks = "".join(f"M{left + x + _CELL / 2} 15v4" for x in placed.values())
    gaps = [tag("text", "⋯", x=left + x + _GAP / 2, y=12, class_="axis") for _, _, x in columns.gaps]
    title = tag("text", "bit of 2^", x=left - 26, y=12, class_="faint end")
    return joined(title, *labels, *gaps, tag("path", d=ticks, class_="tick"))


def _row(row: _Row, columns: _Columns, left: int, label_width: int, right: int, y: int) -> Markup:
    """Name, sign, bits, value, and what went wrong."""
    base = y + 16
    parts = [tag("text", row.label, x=label_width, y=base, class_="label end" + (" strong" if row.result else ""))]
    negative = row.value < 0 or (isinstance(row.value, float) and math.copysign(1.0, row.value) < 0)
    if row.value == row.value:
        parts.append(tag("text", "−" if negative else "+", x=left - 15, y=base, class_="label"))
    if row.spans is None:
        text = {0: "0"}.get(row.value, "NaN" if row.value != row.value else "∞")  # type: ignore[call-overload]
        parts.append(tag("text", text, x=left + 3, y=base, class_="faint"))
    ones: dict[str, list[int]] = {}
    for p, kind in row.bits.items():
        ones.setdefault(kind, []).append(left + columns.x[p])
    if row.spans is not None:
        high, low = row.spans
        nothing = [left + x for p, x in columns.x.items() if low <= p <= high and p not in row.bits]
        for high_gap, low_gap, x in columns.gaps:
            if low < low_gap and high > high_gap:
                parts.append(tag("path", d=f"M{left + x + 3} {y + 12}h{_GAP - 6}", class_="elided"))
        if nothing:
            parts.append(tag("path", d=_cells(nothing, y), class_="zero"))
            parts.append(_digits("0", nothing, base, "zero"))
    for kind, places in ones.items():
        parts += [tag("path", d=_cells(places, y), class_=kind), _digits("1", places, base, kind)]
    if row.tick is not None and row.tick - 1 in columns.x:
        parts.append(tag("path", d=f"M{left + columns.x[row.tick - 1]} {y}v{_ROW - 1}", class_=row.tick_class))
    spans = [tag("tspan", row.note, class_="note" + (" strong" if row.result else ""))]
    if row.warning:
        spans.append(tag("tspan", row.warning, class_="warning", dx=8))
    parts.append(tag("text", *spans, x=right, y=base))
    return tag("g", *parts)


def _cells(places: list[int], y: int) -> str:
    return "".join(f"M{x + 1} {y + 3}h{_CELL - 2}v{_ROW - 6}h{2 - _CELL}z" for x in places)


def _digits(digit: str, places: list[int], y: int, kind: str) -> Markup:
    xs = " ".join(str(x + _CELL / 2) for x in places)
    return tag("text", digit * len(places), x=xs, y=y, class_=f"digit {kind}")
