"""Reports, plans and checks as HTML for notebooks: a small table, and a bar of paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")
"""Told apart by colour-blind readers (Tol 2021, "bright")."""


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table; all text is escaped.

    >>> table("c", ["a"], [["<b>"]])
    '<table><caption>c</caption><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    first = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<tr>{first}</tr>" if head else ""
    return f"<table><caption>{escape(caption)}</caption>{top}{body}</table>"


def bar(counts: Mapping[str, int], width: int = 360) -> str:
    """A horizontal bar of counts with its legend; "" where nothing was counted.

    >>> bar({})
    ''
    >>> "certified: 3 (75 %)" in bar({"certified": 3, "exact": 1})
    True
    """
    total = sum(counts.values())
    if not total:
        return ""
    pieces, legend, left = [], [], 0.0
    for place, (name, count) in enumerate(counts.items()):
        colour = COLOURS[place % len(COLOURS)]
        # What is there is seen, however little it is.
        span = max(count / total * width, 1.0)
        text = escape(f"{name}: {count} ({share(count, total)})")
        pieces.append(
            f'<rect x="{min(left, width - span):.1f}" y="0" width="{span:.1f}" height="12" fill="{colour}">'
            f"<title>{text}</title></rect>"
        )
        legend.append(f'<span style="white-space:nowrap"><span style="color:{colour}">■</span> {text}</span>')
        left += count / total * width
    return (
        f'<svg width="{width}" height="12" role="img" aria-label="entries by path">{"".join(pieces)}</svg>'
        f"<div>{' '.join(legend)}</div>"
    )


def share(count: int, total: int) -> str:
    """A share in per cent: never 0 % of what is there, nor 100 % where something is missing.

    >>> share(1, 3), share(1, 10**6), share(10**6 - 1, 10**6)
    ('33 %', '<1 %', '>99 %')
    """
    if 0 < count < 0.01 * total:
        return "<1 %"
    return ">99 %" if 0.99 * total < count < total else f"{100 * count / total:.0f} %"
