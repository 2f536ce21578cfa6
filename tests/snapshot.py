"""Texts on record, a line for each thing that was decided: what a change decides otherwise shows as lines that differ.

After a change that is meant to decide otherwise:

    python -m tests.snapshot

writes the texts anew; the commit shows which lines are others, and says why. On disk what many lines share stands once,
at the end, and lines name it (`~3f9a`); numbers in it stay in the lines.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
WRITERS = ("tests.test_plan_snapshot", "tests.cuda.test_launch_snapshot", "tests.cli.test_help")
"""Modules with `PATH`, where a text stands, and `lines`, what stands there."""

MOST_SHOWN = 200
"""Lines of a difference that a failure prints."""

_SHARED = re.compile(r"\{\{(.*?)\}\}")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
_NAMED = re.compile(r"~([0-9a-f]{4,8})(?:<([^>]*)>)?")


def shared(text: str) -> str:
    """A part of a line that is likely to stand in others as well."""
    return f"{{{{{text}}}}}"


def unmarked(line: str) -> str:
    """The line as it reads."""
    return _SHARED.sub(r"\1", line)


def packed(lines: Iterable[str]) -> str:
    """What stands on disk. Only parts in `shared` are taken out, and their numbers left."""
    known: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        numbers = _NUMBER.findall(match[1])
        pattern = _NUMBER.sub("•", match[1])
        digest = hashlib.sha256(pattern.encode()).hexdigest()
        key = next(digest[:size] for size in (4, 6, 8) if known.get(digest[:size], pattern) == pattern)
        known[key] = pattern
        return f"~{key}<{' '.join(numbers)}>" if numbers else f"~{key}"

    body = [_SHARED.sub(name, line) for line in lines]
    return "\n".join([*body, "---", *(f"{key} {known[key]}" for key in sorted(known))]) + "\n"


def unpacked(text: str) -> list[str]:
    """The lines that `packed` was given, without marks."""
    body, _, legend = text.partition("\n---\n")
    known = dict(line.split(" ", 1) for line in legend.splitlines())

    def whole(match: re.Match[str]) -> str:
        numbers = iter((match[2] or "").split(" "))
        return re.sub("•", lambda _: next(numbers), known[match[1]])

    return [_NAMED.sub(whole, line) for line in body.splitlines()]


def read(path: Path) -> list[str]:
    """The lines on record."""
    return unpacked(path.read_text(encoding="utf-8"))


def assert_same(before: list[str], lines: list[str]) -> None:
    """AssertionError that shows which lines are others than on record."""
    now = [unmarked(line) for line in lines]
    if now == before:
        return
    different = list(difflib.unified_diff(before, now, "on record", "now", lineterm="", n=2))
    shown = "\n".join(different[:MOST_SHOWN])
    left = f"\n… and {len(different) - MOST_SHOWN} more" if len(different) > MOST_SHOWN else ""
    raise AssertionError(f"if this is meant: python -m tests.snapshot, and say why in the commit\n{shown}{left}")


def main() -> None:
    """Write every text anew."""
    for name in WRITERS:
        module = importlib.import_module(name)
        make: Callable[[], list[str]] = module.lines
        module.PATH.write_text(packed(make()), encoding="utf-8")
        print(f"{module.PATH.relative_to(FOLDER.parent)}: {module.PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
