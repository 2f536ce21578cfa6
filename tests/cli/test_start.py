"""The start of a command: what it loads, and that something is said within a second."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.cli import product
from tests.cli.conftest import COMMAND

Run = Callable[..., Any]

LOADED = """
import sys
from prismm.cli import command
for arguments in (["multiply", *{plain!r}], ["multiply", *{plain!r}, "--force", "--accuracy", "correctly-rounded"]):
    sys.argv = ["prismm", *arguments]
    try:
        command()
    except SystemExit as end:
        assert not end.code, end
    print("loaded", *(name for name in {heavy!r} if name in sys.modules))
"""
HEAVY = ("numba", "numba.np.arraymath", "numpy.f2py", "scipy.linalg", "rich", "torch", "flint", "matplotlib")
"""Of Numba a kernel from disk needs the dispatcher, not what the compiler knows of NumPy and SciPy."""

SCRIPT = """
import torch
fn = torch.nn.functional.softsign
inputs = [torch.ones(3)]
"""


@pytest.mark.slow
def test_a_product_loads_what_it_needs(prismm_main: Run, folder: Path, rng: np.random.Generator) -> None:
    np.save("a", rng.standard_normal((50, 60)))
    np.save("b", rng.standard_normal((60, 40)))
    plain = ["a.npy", "b.npy", "-o", "c.npy"]
    assert prismm_main("multiply", *plain, "--accuracy", "correctly-rounded").code == 0  # its kernels are on disk now
    Path("c.npy").unlink()
    code = LOADED.format(plain=plain, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("prismm: multiplying ") for line in done.stderr.splitlines()), done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("loaded")] == ["loaded", "loaded numba"]


def first_words(folder: Path, arguments: tuple[str, ...]) -> tuple[float, str]:
    """The CPU time of a command before it says anything, and what it says."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=write, stderr=write, start_new_session=True, bufsize=0,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(write)
    try:
        assert select.select([read], [], [], 60)[0]
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        said = os.read(read, 1000).decode()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(read)
    seconds = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    assert said.strip() and "Traceback" not in said
    return seconds, said


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="processor time is read from Linux's /proc")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",), ("env",), ("warm", "--dtype", "float64"), ("calibrate",), ("bench",), ("bench", "apps"), ("demo",),
        ("multiply", "a.npy", "b.npy", "-o", "c.npy", "--accuracy", "correctly-rounded"),
        ("multiply", "wide.npy", "tall.npy", "-o", "c.npy", "--accuracy", "correctly-rounded"),
        ("check", "a.npy", "b.npy", "ab.npy"), ("explain", "a.npy", "b.npy"), ("tune", "s.py", "--tolerance", "1"),
        ("simulate", "a100.fp16.fp32"), ("simulate", "a100.fp16.fp32", "a.npy", "b.npy", "--round"),
        ("probe", "v100.fp16.fp32"), ("probe", "--suite"), ("reproduce",), ("reproduce", "dgemm-tc", "--quick"),
    ],
    ids=lambda arguments: " ".join(arguments),
)  # fmt: skip
def test_something_is_said_within_a_second(folder: Path, rng: np.random.Generator, arguments: tuple[str, ...]) -> None:
    """Of the processor's time: other processes run beside tests. Into pipes, where no bar is drawn. The least of three
    starts counts, as a disturbed core takes more.

    OpenBLAS is limited to one thread: its other threads spin while they wait, which uses CPU time but delays nothing.
    """
    for name, shape in {"a": (50, 60), "b": (60, 40), "ab": (50, 40), "wide": (1500, 900), "tall": (900, 1500)}.items():
        np.save(name, rng.standard_normal(shape))
    Path("s.py").write_text(SCRIPT)
    if arguments[0] not in ("bench", "demo", "reproduce", "tune", "warm"):  # compiled ahead, which is said, too
        subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, timeout=250)
        Path("c.npy").unlink(missing_ok=True)
    for _ in range(3):
        seconds, said = first_words(folder, arguments)
        if seconds <= 1.0:
            break
        Path("c.npy").unlink(missing_ok=True)
    assert seconds <= 1.0, f"{seconds} s before {said!r}"


def test_a_large_check_says_what_it_does(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismm.cli.matrices._LARGE", 1 << 10)
    np.save("a", np.eye(20))
    check = ("check", "a.npy", "a.npy", "a.npy")
    assert prismm_main(*check).err == "prismm: checking a.npy as the product of a.npy and a.npy\n"
    assert prismm_main(*check, "--json").err == ""


def test_a_product_that_takes_a_while_says_what_it_does(prismm_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("a", np.eye(20))
    arguments = ("multiply", "a.npy", "a.npy", "-o", "c.npy", "--force")
    said = "prismm: multiplying a.npy by a.npy, 20x20 by 20x20\n"
    assert prismm_main(*arguments).err == ""
    monkeypatch.setattr("prismm.cli.console._SOON", 0.0)
    multiply = product._multiply

    def slowly(*given: Any) -> None:
        time.sleep(0.05)
        multiply(*given)

    monkeypatch.setattr(product, "_multiply", slowly)
    assert prismm_main(*arguments).err == said
    for quiet in (("--json",), ("--quiet",)):
        assert prismm_main(*arguments, *quiet).err == ""


def test_a_plan_s_first_line_is_printed_before_the_rest_is_known(folder: Path) -> None:
    for name in "ab":
        np.save(name, np.eye(3))
    code = """
import sys
from prismm import dispatch
from prismm.cli import command
def stop(*given): raise SystemExit("stopped")
dispatch.explain = stop
sys.argv = ["prismm", "explain", "a.npy", "b.npy"]
command()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("(3 x 3) @ (3 x 3), float64 and float64 -> float64\n", "stopped\n")


@pytest.mark.parametrize("kinds", [("float32", "int64"), ("bool", "bool"), ("bool", "float64"), (">f8", "f4")])
def test_a_plan_is_printed_whole_and_once(kinds: tuple[str, str], prismm_main: Run) -> None:
    a, b = (np.ones((4, 4), kind) for kind in kinds)
    np.save("a", a)
    np.save("b", b)
    assert prismm_main("explain", "a.npy", "b.npy").out == f"{prismm.explain(a, b)}\n"


def test_a_bar_that_nobody_sees_takes_what_rich_s_takes() -> None:
    from prismm.cli.console import NoBar

    with NoBar() as bar:
        task = bar.add_task("timing", total=3, completed=1)
        bar.advance(task)
        bar.update(task, total=4, description="more")
