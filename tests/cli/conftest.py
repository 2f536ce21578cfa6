"""How the tests run the command: in this process where that will do, as a process of its own where not."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from prismm.cli import command, console

COMMAND = [sys.executable, "-m", "prismm.cli"]


class Ran(NamedTuple):
    """What a command left: its exit code and its words."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its stdout as JSON."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refused(self) -> str:
        """The one line of a refusal, which is all there may be."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("prismm: error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own, in which its commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    # The test process has used more CPU time than this limit, so each product would print the line for slow ones.
    monkeypatch.setattr(console, "_SOON", 1e6)
    return tmp_path


# Typer reads the signatures of all subcommands again at every call: 0.1 s, of which a command needs none twice.
read_commands = functools.cache(typer.main.get_command)


@pytest.fixture
def prismm_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run ``prismm ARGUMENTS`` in this process."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["prismm", *map(str, arguments)])
        monkeypatch.setattr(typer.main, "get_command", read_commands)
        capsys.readouterr()
        code: Any = 0
        try:
            command()
        except SystemExit as end:
            code = end.code or 0
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def prismm_process(folder: Path) -> Callable[..., Ran]:
    """Run ``prismm ARGUMENTS`` as a process."""

    def run(*arguments: object, **options: Any) -> Ran:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=240,
            env=os.environ | options.pop("env", {}),
            **options,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
