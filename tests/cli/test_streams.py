"""stdout and stderr of every kind: narrow encodings, closed, full, broken. Commands say what can be said on them."""

from __future__ import annotations

import doctest
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm.cli import streams
from prismm.cli.html import page

Run = Callable[..., Any]
COMMANDS = "multiply", "explain", "env", "bench", "calibrate", "demo", "reproduce", "simulate", "probe", "tune", "run"
NARROW = ["ascii", "latin-1", "cp1252", "utf-16"]
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")


def test_docstrings() -> None:
    assert doctest.testmod(streams).failed == 0


@pytest.fixture
def written(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command writes to a stdout of this encoding; it has to succeed, and to write nothing else."""

    def run(encoding: str, *arguments: str) -> str:
        stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            assert prismm_main(*arguments) == (0, "", "")
        stdout.seek(0)
        return stdout.buffer.read().decode(encoding)

    return run


@pytest.mark.parametrize("encoding", NARROW)
@pytest.mark.parametrize(
    "arguments", [("explain", "300x300", "300x300"), ("simulate", "--list"), ("simulate", "a100.fp16.fp32")]
)
def test_what_an_encoding_lacks_is_written_in_ascii(
    written: Callable[..., str], encoding: str, arguments: tuple[str, ...]
) -> None:
    """Every other character is the same, and nothing is escaped: each sign that we print has a stand-in."""
    whole = written("utf-8", *arguments)
    found = written(encoding, *arguments)
    assert found == whole.encode(encoding, "prismm.stand-in").decode(encoding)
    assert "\\" not in found and (encoding != "ascii" or found != whole or whole.isascii())


@pytest.mark.parametrize("encoding", NARROW)
def test_help_in_any_encoding(written: Callable[..., str], encoding: str) -> None:
    for command in COMMANDS:
        text = written(encoding, command, "--help")
        assert f"Usage: prismm {command}" in text and "\\u" not in text and "\\x" not in text


@pytest.mark.parametrize("encoding", NARROW)
def test_json_in_any_encoding_is_the_same(written: Callable[..., str], encoding: str) -> None:
    for arguments in [("explain", "300x300", "300x300", "--json"), ("simulate", "--list", "--json")]:
        assert json.loads(written(encoding, *arguments)) == json.loads(written("utf-8", *arguments))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", *(pytest.param(x, marks=pytest.mark.slow) for x in NARROW[1:])])
def test_json_of_a_name_that_no_encoding_has(written: Callable[..., str], encoding: str) -> None:
    pytest.importorskip("torch")
    Path(os.fsdecode(b"s\xff.py")).write_text("import torch\n")
    found = json.loads(written(encoding, "run", "--off", "--json", os.fsdecode(b"s\xff.py")))
    assert os.fsencode(found["script"]) == b"s\xff.py"


def test_a_page_of_a_name_that_no_encoding_has() -> None:
    assert page.document("s\udcff.py").encode().count(b"<title>s\\udcff.py</title>") == 1


def test_a_script_has_the_stream_that_it_would_have_without_us(prismm_main: Run, monkeypatch: Any) -> None:
    pytest.importorskip("torch")
    Path("s.py").write_text("import sys\nprint(sys.stdout.errors, type(sys.stdout).__name__)\nprint('\\u03b7')\n")
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        ran = prismm_main("run", "--off", "s.py")
    assert ran.code == 1 and "UnicodeEncodeError" in ran.err  # as in Python
    stdout.seek(0)
    assert stdout.buffer.read().startswith(b"strict TextIOWrapper\n")


def test_words_do_not_go_to_stdout_where_stderr_is_closed(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("a.npy", np.ones((3, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        found = prismm_main("simulate", "a100.fp16.fp32", "--html", "page.html", "--json")  # it says what it wrote
        assert found.code == 0 and json.loads(found.out)["results"]
        assert prismm_main("multiply", "a.npy", "a.npy", "-o", "c.npy").code == 0
        assert prismm_main("explain", "3x4", "5x6") == (2, "", "")
    assert np.array_equal(np.load("c.npy"), np.full((3, 3), 3.0))


def test_closed_stdout_is_the_null_device(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        for arguments in [("explain", "3x4", "4x3"), ("explain", "3x4", "4x3", "--json"), ("--help",)]:
            assert prismm_main(*arguments) == (0, "", "")
        assert prismm_main("explain", "3x4", "5x6").refused()


@needs_full
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    "arguments", [("--help",), ("bench", "--help"), ("--version",), ("explain", "3x4", "4x3"), ("simulate", "--list")]
)
def test_a_full_stdout_is_named(
    prismm_main: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], unbuffered: bool
) -> None:
    with (
        open("/dev/full", "wb", buffering=0 if unbuffered else -1) as buffer,
        io.TextIOWrapper(buffer, encoding="utf-8", write_through=unbuffered) as stdout,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", stdout)
        told = prismm_main(*arguments).refused()
    assert told == "prismm: error: stdout cannot be written: No space left on device; send it elsewhere\n"


@needs_full
def test_a_full_stderr_costs_words_and_no_result(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, code in [(("simulate", "a100.fp16.fp32", "--html", "page.html"), 0), (("divide",), 2)]:
        with open("/dev/full", "w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", full)
            ran = prismm_main(*arguments)
        assert ran.code == code and bool(ran.out) == (code == 0)
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_an_error_of_the_system_is_not_blamed_on_stdout(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's meets one while it is imported in the middle of a command."""
    pytest.importorskip("torch")
    Path("broken.py").write_text("import os\nos.close(987654)\n")
    ran = prismm_main("tune", "broken.py", "--tolerance", "1e-3", "-q")
    assert ran == (1, "", "prismm: error: [Errno 9] Bad file descriptor\n")


CLOSED = """
import os
from prismm.cli.streams import ready
with ready():
    target = open("target", "wb", buffering=0)
    for number in (1, 2):
        os.write(number, b"what a library in C says")
    target.write(b"result")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_files_do_not_take_the_numbers_of_closed_streams(folder: Path) -> None:
    command = ["sh", "-c", f'"{sys.executable}" -c "$0" <&- >&- 2>&-', CLOSED]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0
    assert (folder / "target").read_bytes() == b"result"


@pytest.mark.slow
@needs_full
def test_a_process_with_full_streams_exits_with_the_commands_code() -> None:
    """Python would exit with 120 where it cannot write at its end."""
    with open("/dev/full", "w") as full:
        for arguments, stdout, code in [(("--version",), subprocess.DEVNULL, 0), (("divide",), full, 2)]:
            command = [sys.executable, "-m", "prismm.cli", *arguments]
            assert subprocess.run(command, stdout=stdout, stderr=full, check=False).returncode == code
