"""Everything that the README shows runs, and shows what it says."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import prismm

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_python_examples() -> None:
    """All in one session, as a reader would type them."""
    source = "\n".join(blocks("python"))
    assert source.count(">>>") > 10
    example = doctest.DocTestParser().get_doctest(source, {}, "README.md", str(README), 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    words: list[str] = []
    runner.run(example, out=words.append)
    assert not words, "".join(words)


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    """Every line after a dollar sign, in one folder, with its output below it."""
    found = [block for text in blocks("console") for block in re.split(r"^\$ ", text, flags=re.MULTILINE)]
    commands = [block.partition("\n")[::2] for block in found if block]
    assert len(commands) >= 3
    programs = {"prismm": [sys.executable, "-m", "prismm.cli"], "python": [sys.executable]}
    for command, expected in commands:
        name, *arguments = shlex.split(command)
        done = subprocess.run(
            [*programs[name], *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "100"},
            timeout=240,
        )
        output = re.sub(r"prismm: (compiling kernels|multiplying) .*\n", "", done.stdout)
        assert doctest.OutputChecker().check_output(expected, output, FLAGS), f"$ {command}\n{output}"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`prismm\.(\w+)", TEXT))))
def test_names_exist(name: str) -> None:
    assert hasattr(prismm, name)


def test_make_targets_exist() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_readable_in_three_minutes() -> None:
    words = len(re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL).split("## Papers")[0].split())
    assert words < 900
