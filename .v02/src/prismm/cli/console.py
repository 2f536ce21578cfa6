"""Where words go: results to stdout, everything else to stderr, bars only where someone watches."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from decimal import Decimal

    from rich.progress import Progress, TaskID


def say(text: str) -> None:
    """One line of words on stderr."""
    print(f"prismm: {text}", file=sys.stderr, flush=True)


_SOON = 0.6
"""CPU seconds since the process started after which `said_unless_soon` prints its line."""


@contextlib.contextmanager
def said_unless_soon(text: str) -> Iterator[None]:
    """Print `text` on stderr if the block is still running after `_SOON`. A terminal shows a progress bar instead."""
    if is_watched():
        yield
        return
    timer = threading.Timer(max(0.0, _SOON - time.process_time()), say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def print_json(content: dict[str, Any]) -> None:
    """A result for machines, on stdout: strict JSON, in which NaN and infinities are null."""
    text = json.dumps(_strict(content), indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # what the encoding lacks is escaped, and reads back as what it was
        text = json.dumps(_strict(content), indent=2)
    print(text)


def is_watched() -> bool:
    """Whether stderr is a terminal, where bars are shown."""
    return sys.stderr.isatty()


def progress(quiet: bool = False) -> Progress | NoBar:
    """A progress bar on stderr, shown only on a terminal."""
    if quiet or not is_watched():
        return NoBar()
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class NoBar:
    """A progress bar that nobody sees: what rich's takes, without loading rich."""

    def __enter__(self) -> NoBar:
        """The bar, as `rich.progress.Progress` gives it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clear."""

    def add_task(self, description: str, total: float | None = None, completed: int = 0) -> TaskID:
        """A task's number."""
        return cast("TaskID", 0)

    def advance(self, task: TaskID, advance: float = 1) -> None:
        """Nothing to draw."""

    def update(self, task: TaskID, **changes: Any) -> None:
        """Nothing to draw."""


def table(rows: list[tuple[str, str]]) -> str:
    """Names and values in two columns.

    >>> print(table([("scheme", "Native()"), ("k", "3")]))
    scheme  Native()
    k       3
    """
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)


def columns(head: list[str], rows: list[list[str]], left: tuple[str, ...] = ()) -> str:
    """A table of text, right-aligned except for the columns named in ``left``.

    >>> print(columns(["n", "scheme"], [["8", "Native()"], ["128", "Auto()"]], left=("scheme",)))
      n  scheme
    ---  --------
      8  Native()
    128  Auto()
    """
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]

    def line(cells: list[str]) -> str:
        aligned = (
            f"{cell:<{width}}" if name in left else f"{cell:>{width}}"
            for name, cell, width in zip(head, cells, widths, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, rows)])


def at_most(bound: float | Decimal) -> str:
    """A bound with three digits, rounded up, so that what is shown holds as well.

    >>> at_most(2**-53), at_most(100.0), at_most(5e-324), at_most(0.0)
    ('1.12e-16', '100', '4.95e-324', '0')
    """
    from prismm.core.check import up_text

    return up_text(bound)


def bytes_text(count: int) -> str:
    """A count of bytes for people.

    >>> bytes_text(3 << 30)
    '3.0 GiB'
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
