"""The table of ``prismm run``: every product of a run, and the words about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.cli.console import columns

if TYPE_CHECKING:
    from prismm.programs.record import Record, Row

__all__ = ["HEAD", "cells", "notes", "summary", "text_of"]

HEAD = ["where", "module", "operator", "shape", "type", "count", "scheme", "bound", "seconds", "share"]
LEFT = ("where", "module", "operator", "scheme", "bound")


def cells(row: Row, wall: float) -> list[str]:
    """A row of the table: the share is of the whole run's time."""
    from prismm.programs.record import shape_text

    operator = f"{row.operator}, backward" if row.backward else row.operator
    share = f"{row.seconds / wall:.1%}" if wall > 0 else ""
    scheme = f"torch ({row.reason})" if row.reason else row.method.scheme
    return [
        row.where, row.module or "-", operator, shape_text(row.call), row.dtype, str(row.count), scheme,
        row.method.guarantee, f"{row.seconds:.3g}", share,
    ]  # fmt: skip


def summary(record: Record) -> str:
    """How much of the run the products were."""
    rows, wall = record.rows, record.wall_seconds
    count = sum(row.count for row in rows)
    if not rows:
        return f"no matrix products that torch made in this thread, in {wall:.3g} s"
    left = sum(row.count for row in rows if row.method.engine == "torch")
    text = f"{count} products in {record.seconds:.3g} s of {wall:.3g} s"
    return text + (f"; {left} of them left to torch" if left else "")


def notes(record: Record) -> list[str]:
    """What was not covered, and what of the policy was not needed."""
    found = [
        f"not covered: {count} x {operator}, {place}: {what}"
        for (operator, module, where), (count, what) in sorted(record.unseen.items())
        for place in [" ".join(x for x in (module, where) if x) or "-"]
    ]
    if record.unmatched:
        found.append(f"no rule for modules: {', '.join(name or '(outside modules)' for name in record.unmatched)}")
    found += [f"a rule decided nothing: {record.policy.rules[index]}" for index in record.unused]
    found.append("not seen: NumPy's products, other threads and processes")
    return found


def text_of(record: Record) -> str:
    """The table, with words above and below."""
    rows = record.rows
    parts = [summary(record)]
    if rows:
        parts += ["", columns(HEAD, [cells(row, record.wall_seconds) for row in rows], left=LEFT), ""]
    return "\n".join([*parts, *notes(record)])
