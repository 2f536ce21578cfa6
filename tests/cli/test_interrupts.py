"""Ctrl-C: one line, exit code 130, within two seconds, whatever the command is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismm.cli import interrupts

Run = Callable[..., Any]
COMMAND = [sys.executable, "-m", "prismm.cli"]
SECONDS = 2.0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

# A step of C that lets other threads run and heeds no signal, as a product of large matrices is.
LONG = """
import hashlib, pathlib
def long(*_):
    pathlib.Path("begun").touch()
    hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
def slow(*_):
    pathlib.Path("begun").touch()
    while True:
        pass
inputs = [1]
"""


def interrupted(folder: Path, *command: str) -> tuple[int, str, float]:
    """Exit code and stderr of a command after Ctrl-C, and the seconds that it took to end."""
    (folder / "m.py").write_text(LONG)
    process = subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background inherit another
    )
    try:
        end = time.monotonic() + 120
        while not (folder / "begun").exists() and time.monotonic() < end:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(0.05)
        start = time.perf_counter()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        return process.returncode, err, time.perf_counter() - start
    finally:
        process.kill()


@pytest.mark.slow
def test_a_long_step_is_cut_off(folder: Path) -> None:
    program = "import m, prismm.cli.interrupts as i\nwith i.prompt():\n    m.long()"
    code, err, seconds = interrupted(folder, sys.executable, "-c", program)
    assert (code, err) == (130, "prismm: interrupted\n")
    assert seconds < SECONDS + 1  # on a machine that runs other tests meanwhile


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("probe", "m:long", "--input", "fp16", "--output", "fp32", "--quiet"),
        ("tune", "m.py", "--tolerance", "1e-3", "--fn", "long", "-q"),
        ("tune", "m.py", "--tolerance", "1e-3", "--fn", "slow", "-q"),
    ],
)
def test_a_long_step_of_a_command_is_cut_off(folder: Path, arguments: tuple[str, ...]) -> None:
    code, err, seconds = interrupted(folder, *COMMAND, *arguments)
    assert code == 130 and err.startswith("prismm: interrupted") and err.count("\n") == 1
    assert seconds < SECONDS + 1


def test_the_process_ends_at_once(folder: Path) -> None:
    """Not with Python's own end, which waits for what threads do, and may end with the signal itself."""
    pytest.importorskip("torch")
    (folder / "s.py").write_text("""
import atexit, pathlib, time
atexit.register(time.sleep, 30)
pathlib.Path("begun").touch()
time.sleep(30)
""")
    code, err, seconds = interrupted(folder, *COMMAND, "tune", "s.py", "--tolerance", "1", "-q")
    assert (code, err) == (130, "prismm: interrupted\n") and seconds < SECONDS


@pytest.mark.slow
def test_a_script_that_handles_the_signal_takes_its_time(folder: Path) -> None:
    (folder / "s.py").write_text("""
import pathlib, time
try:
    pathlib.Path("begun").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(3)
    raise SystemExit(7)
""")
    code, err, seconds = interrupted(folder, *COMMAND, "run", "--off", "s.py")
    assert (code, err) == (7, "") and seconds > 3


def at_once(*_: object) -> None:
    """What the system does: the signal comes while the command runs."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


@pytest.fixture
def ctrl_c() -> Any:
    """Python's own handler, whatever the test runner installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "arguments",
    [
        ("probe", "m:at_once", "--input", "fp16", "--output", "fp32"),
        ("probe", "m:at_once", "--input", "fp16", "--output", "fp32", "--quiet"),
        ("probe", "--suite", "m:at_once", "--input", "fp16", "--output", "fp32"),
        *(
            pytest.param(("tune", "m.py", "--tolerance", "1e-3", "--fn", "at_once", *more), marks=pytest.mark.slow)
            for more in [(), ("--quiet",), ("--inputs", "at_once")]
        ),
    ],
)
def test_one_line_and_130(prismm_main: Run, ctrl_c: None, folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "m.py").write_text("from tests.cli.test_interrupts import at_once\ninputs = [1]\n")
    sys.modules.pop("m", None)
    ran = prismm_main(*arguments)
    words = ran.err.splitlines()
    assert ran.code == 130 and words[-1].startswith("prismm: interrupted") and not any("rror" in x for x in words)
    if "--quiet" in arguments:
        assert len(words) == 1


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_an_interrupted_product_says_so(
    prismm_main: Run, ctrl_c: None, monkeypatch: pytest.MonkeyPatch, quiet: tuple[str, ...]
) -> None:
    """-q too: what is kept, and how to go on, is no chatter."""
    import prismm

    np.save("a.npy", np.eye(4))
    multiply = prismm.matmul

    def stopped(a: Any, b: Any, **keywords: Any) -> Any:
        if a.size:
            at_once()
        return multiply(a, b, **keywords)

    monkeypatch.setattr(prismm, "matmul", stopped)
    ran = prismm_main("multiply", "a.npy", "a.npy", "-o", "c.npy", *quiet)
    assert ran == (130, "", "prismm: interrupted before the first of 1 tiles; nothing is kept\n")


def test_a_signal_that_nothing_heeds_leaves_the_caller_its_handlers(ctrl_c: None) -> None:
    """As in a program that calls the command as a function: afterwards all is as before."""
    threads = threading.active_count()
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts.prompt():
            at_once()
        with interrupts.prompt(), interrupts.left_alone(), pytest.raises(KeyboardInterrupt):
            at_once()
        with pytest.raises(KeyboardInterrupt):
            at_once()
        assert os.read(read, 10) == bytes([signal.SIGINT])  # the last one alone
    finally:
        assert signal.set_wakeup_fd(before) == write
        os.close(read)
        os.close(write)
    end = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_may_run_the_command(prismm_main: Run) -> None:
    """Only the main thread can handle signals; elsewhere they are somebody else's."""
    with interrupts.prompt():
        worker = threading.Thread(target=lambda: interrupts.prompt().__enter__())
        worker.start()
        worker.join()
    assert not worker.is_alive()
