"""The page of ``prismm run``: where the time of a program's products goes, and how each is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.cli.html.markup import Markup, tag
from prismm.cli.html.page import document, facts, grid, mono
from prismm.cli.run_table import HEAD, base, cells, notes, summary
from prismm.programs.record import shape_text

if TYPE_CHECKING:
    from prismm.programs.record import Record, Row

_BARS = 24  # rows drawn
_CHARACTERS = 44  # of a name


def run_page(record: Record, command: str) -> str:
    """The page of a record."""
    rows = record.rows
    title = f"Matrix products of {command}"
    parts = [tag("h1", title), tag("p", summary(record), ".", class_="lead")]
    schemes = sorted({row.method.scheme for row in rows})
    parts.append(facts([("policy", _rules(record)), ("schemes", ", ".join(schemes) or "none")]))
    if rows:
        parts += [tag("h2", "Where the time goes"), _legend(), _chart(rows), tag("h2", "Every product")]
        numbers = ("count", "seconds", "share", "shape")
        parts.append(grid(HEAD, [_row(row, base(record)) for row in rows], numbers))
    parts.append(tag("h2", "Not covered"))
    parts.append(tag("ul", *(tag("li", note) for note in notes(record))))
    parts.append(tag("details", tag("summary", "The policy, as JSON"), tag("pre", record.policy.to_json())))
    return document(title, *parts)


def _rules(record: Record) -> str:
    count = len(record.policy.rules)
    return str(record.policy.rules[0].recipe) if count == 1 else f"{count} rules"


def _row(row: Row, wall: float) -> list[object]:
    return [mono(cell) if name in ("where", "module", "scheme") else cell
            for name, cell in zip(HEAD, cells(row, wall), strict=True)]  # fmt: skip


def _legend() -> Markup:
    kinds = [("forward", "kept"), ("backward", "carry"), ("left to torch", "zero")]
    return tag(
        "div",
        *(tag("span", tag("span", "", class_=f"swatch {kind}"), name) for name, kind in kinds),
        class_="legend",
    )


def _kind(row: Row) -> str:
    if row.method.engine == "torch":
        return "zero"
    return "carry" if row.backward else "kept"


def _chart(rows: list[Row]) -> Markup:
    """Bars of seconds, the longest first; what is left over in one bar of its own."""
    drawn, others = rows[:_BARS], rows[_BARS:]
    bars = [(_label(row), row.seconds, _kind(row), f"{row.count} x {row.method.scheme}") for row in drawn]
    if others:
        bars.append((f"{len(others)} more rows", sum(row.seconds for row in others), "zero", ""))
    longest = max(seconds for _, seconds, _, _ in bars) or 1.0
    lines = []
    for label, seconds, kind, note in bars:
        text = f"{seconds:.3g} s" + (f", {note}" if note else "")
        # The number stands where the bar ends, so the longest bar leaves it room.
        width = f"{max(0.3, 60 * seconds / longest):.1f}%"
        bar = tag("svg", tag("title", text), class_=f"bar {kind}", width=width, height=16, role="img")
        lines.append(tag("li", mono(label), tag("div", bar, tag("span", text, class_="faint"))))
    return tag("ul", *lines, class_="bars")


def _label(row: Row) -> str:
    name = row.module or row.where or row.operator
    text = f"{name} {row.operator} {shape_text(row.call)}"
    return text if len(text) <= _CHARACTERS else f"…{text[1 - _CHARACTERS :]}"
