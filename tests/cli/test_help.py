"""Every command's help at 80 columns: as it is on record in helps.txt, and whole on any typer; see `tests.snapshot`."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer.main

from prismm.cli import command
from prismm.cli.app import app
from tests.snapshot import assert_same, read

PATH = Path(__file__).with_name("helps.txt")
WIDTH = 80
SETTINGS = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
"""A terminal of 80 columns without colours."""

COLOURS = "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"
FRAMES = str.maketrans("│╭╮╰╯─", "      ")


def rendering() -> str:
    """What lays the texts out, which each minor release of typer does in its way."""
    return f"typer {'.'.join(version('typer').split('.')[:2])}"


@contextlib.contextmanager
def plain_terminal() -> Iterator[None]:
    """The same terminal everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        for name in COLOURS:
            patch.delenv(name, raising=False)
        yield


def help_of(*words: str) -> list[str]:
    """The lines that `prismm WORDS --help` prints, without blanks at their ends, nor around the whole."""
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with plain_terminal(), pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(written):
        patch.setattr(sys, "argv", ["prismm", *words, "--help"])
        with pytest.raises(SystemExit) as end:
            command()
    assert not end.value.code
    text = written.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]


def commands() -> dict[str, Any]:
    """The subcommands by name, as typer reads them."""
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


def lines() -> list[str]:
    """What lays them out; the help of the whole; that of each command."""
    found = [rendering()]
    for words in ((), *((name,) for name in commands())):
        found += ["", " ".join(("$ prismm", *words, "--help")), *help_of(*words)]
    return found


def test_helps_are_those_on_record() -> None:
    if (recorded := read(PATH))[0] != rendering():
        pytest.skip(f"on record is what {recorded[0]} prints")
    assert_same(recorded, lines())


@pytest.mark.slow
def test_every_help_is_whole_and_fits() -> None:
    """Docstrings, names of options, and all words about each parameter, in order."""
    for name, one in commands().items():
        printed = help_of(name)
        assert not [line for line in printed if len(line) > WIDTH], name
        text = " ".join(" ".join(printed).translate(FRAMES).split())
        for paragraph in (inspect.getdoc(one.callback) or "").split("\n\n"):
            assert " ".join(paragraph.split()) in text, name
        for parameter in one.params:
            assert all(option in text for option in parameter.opts if option.startswith("-")), parameter.name
        # As the command's signature has them: typer has lost some on its way to the parameters.
        for name_, hint in get_type_hints(one.callback, include_extras=True).items():
            for about in getattr(hint, "__metadata__", ()):
                assert " ".join((about.help or "").split()) in text, (name, name_)


@pytest.mark.slow
def test_paragraphs_are_broken_by_the_terminal_alone() -> None:
    """Newlines of docstrings are none of the text's: every line is as full as the next word lets it be."""
    for name, one in commands().items():
        body = help_of(name)
        start = next(i for i, line in enumerate(body) if "Usage:" in line) + 1
        end = next(i for i, line in enumerate(body) if line.startswith("╭"))
        text = body[start:end]
        for line, after in itertools.pairwise(text):
            if line and after:
                assert len(line) + 1 + len(after.split()[0]) > WIDTH - 1, (name, line)
        assert one.help
