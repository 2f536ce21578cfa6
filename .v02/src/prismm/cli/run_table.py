"""The table of ``prismm run``: every product of a run, and the words about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.cli.console import columns

if TYPE_CHECKING:
    from prismm.programs.record import Record, Row

__all__ = ["HEAD", "base", "cells", "notes", "summary", "text_of"]

HEAD = ["where", "module", "operator", "shape", "type", "count", "scheme", "bound", "seconds", "share"]
NOT_SEEN = (
    "not seen: NumPy's products by @, the method dot or the module operator outside the script's file; compiled code; "
    "other processes"
)
LEFT = ("where", "module", "operator", "scheme", "bound")


def cells(row: Row, wall: float) -> list[str]:
    """A row of the table: the share is of the whole run's time, `wall`; none for 0."""
    from prismm.programs.record import shape_text

    operator = f"{row.operator}, backward" if row.backward else row.operator
    share = f"{row.seconds / wall:.1%}" if wall > 0 else ""
    scheme = f"torch ({row.reason})" if row.reason else row.method.scheme
    return [
        row.where, row.module or "-", operator, shape_text(row.call), row.dtype, str(row.count), scheme,
        row.method.guarantee, f"{row.seconds:.3g}", share,
    ]  # fmt: skip


def base(record: Record) -> float:
    """The seconds of which shares are taken: the run's; 0 where its threads together multiplied for longer."""
    return record.wall_seconds if record.seconds <= record.wall_seconds else 0.0


def summary(record: Record) -> str:
    """How much of the run the products were."""
    rows, wall = record.rows, record.wall_seconds
    count = sum(row.count for row in rows)
    if not rows:
        return f"no matrix products that torch made, in {wall:.3g} s"
    left = sum(row.count for row in rows if row.method.engine == "torch")
    if base(record):
        text = f"{count} products in {record.seconds:.3g} s of {wall:.3g} s"
    else:
        text = f"{count} products in {record.seconds:.3g} thread-seconds, of a run of {wall:.3g} s"
    return text + (f"; {left} of them left to torch" if left else "")


def notes(record: Record) -> list[str]:
    """What was not covered, and what of the policy was not needed."""
    found = [
        f"not covered: {count} x {operator}, {place}: {what}"
        for operator, module, where, what, count in sorted(record.reasons)
        for place in [" ".join(x for x in (module, where) if x) or "-"]
    ]
    if record.unmatched:
        found.append(f"no rule for modules: {', '.join(name or '(outside modules)' for name in record.unmatched)}")
    found += [f"a rule decided nothing: {record.policy.rules[index]}" for index in record.unused]
    found.append(NOT_SEEN)
    return found


def text_of(record: Record) -> str:
    """The table, with words above and below."""
    rows = record.rows
    parts = [summary(record)]
    if rows:
        parts += ["", columns(HEAD, [cells(row, base(record)) for row in rows], left=LEFT), ""]
    return "\n".join([*parts, *notes(record)])
