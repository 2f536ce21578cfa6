"""The command as a whole: help, version, usage, and the parsing of its options."""

from __future__ import annotations

import doctest
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prismm import __version__
from prismm.cli import certificate, console, memory, options
from prismm.errors import AccuracyError, ArgumentError, DTypeError


def test_docstrings() -> None:
    for module in (certificate, console, memory, options):
        assert doctest.testmod(module).failed == 0


def test_version_and_help(prismm_main: Callable[..., object]) -> None:
    assert prismm_main("--version") == (0, f"prismm {__version__}\n", "")
    code, out, err = prismm_main("--help")
    assert (code, err) == (0, "")
    for command in ("multiply", "explain", "env", "bench", "demo", "reproduce"):
        assert command in out
        assert prismm_main(command, "--help")[0] == 0


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "prismm", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"prismm {__version__}\n")
    wrong = subprocess.run([sys.executable, "-m", "prismm", "divide"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "Usage: prismm" in wrong.stderr.replace("python -m ", "")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("divide",),
        ("multiply",),
        ("multiply", "a.npy", "b.npy"),
        ("multiply", "a.npy", "b.npy", "-o", "c.npy", "--threads", "0"),
        ("multiply", "a.npy", "b.npy", "-o", "c.npy", "--fast"),
    ],
)
def test_wrong_usage_exits_with_2(prismm_main: Callable[..., object], arguments: tuple[str]) -> None:
    assert prismm_main(*arguments)[0] == 2


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
sys.argv = ["prismm", "multiply", "--help"]
from prismm.cli import main
try:
    main()
except SystemExit:
    pass
print([name for name in ("numpy", "torch", "numba", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4096B", 4096), ("2GiB", 2 << 30), ("2gb", 2 * 10**9), ("1.5 KiB", 1536), ("3T", 3 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert memory.parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["1" + "0" * 400, "9999999999T", "", "0", "-1", "2iB", "GiB", "1e9", "2 GiB of it", "0.1B", "٢"]
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"pass e\.g\. 500MiB or 2GiB"):
        memory.parse_size(text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        pytest.param(("explain", "3x4", "4x3"), marks=pytest.mark.slow),
        pytest.param(("explain", "3x4", "4x3", "--json"), marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_behind_stdout(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "prismm.cli", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]  # kernels may be compiled first
    assert last == "prismm: error: stdout cannot be written: No space left on device; send it elsewhere"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "prismm.cli", "explain", "3x4", "4x3"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_available_memory_is_what_a_machine_can_have() -> None:
    assert 1 << 20 < memory.available() < 1 << 50


@pytest.mark.parametrize("text", ["slow", "", "0", "-1e-3", "nan", "inf"])
def test_no_accuracy(text: str) -> None:
    with pytest.raises(AccuracyError, match="correctly-rounded, or a tolerance above 0"):
        options.parse_accuracy(text)


def test_schemes() -> None:
    import prismm

    assert options.parse_scheme("residues:7") == prismm.Residues(moduli=7)
    assert options.parse_scheme("RESIDUES") == prismm.Residues()
    assert isinstance(options.parse_scheme("native"), prismm.Native)
    assert isinstance(options.parse_scheme("auto"), prismm.Auto)
    assert options.parse_scheme("words:tf32") == prismm.Words.tf32(3)
    assert options.parse_scheme("words:TF64x4") == prismm.Words.tf64(4)
    for text in ("words", "words:fp8", "words:tf32x", "residue", "residues:", "residues:x", "residues:-3", ""):
        with pytest.raises(ArgumentError, match="pass auto, native, residues or residues:N"):
            options.parse_scheme(text)
    with pytest.raises(DTypeError, match="pass one of float32"):
        options.parse_dtype("float8")


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": [1.5, float("nan")], "b": {"c": float("inf")}, "d": ("é", True, None)})
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [1.5, None],
        "b": {"c": None},
        "d": ["é", True, None],
    }


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "shown"), [(Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)]
)
def test_bars_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, quiet: bool, shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with console.progress(quiet) as bar:
        bar.add_task("multiplying", total=1)
    assert ("multiplying" in stream.getvalue()) == shown
    assert shown or stream.getvalue() == ""
