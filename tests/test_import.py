"""Importing prismm is cheap and loads nothing heavy; names arrive when they are asked for."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

import prismm
from prismm.core.extras import is_installed

HEAVY = ("numpy", "numba", "llvmlite", "torch", "scipy", "flint", "threadpoolctl", "rich", "typer", "matplotlib")


def run(program: str, *flags: str) -> str:
    ran = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("module", ["prismm", "prismm.errors", "prismm.formats", "prismm.core.environment"])
def test_nothing_heavy_is_imported(module):
    loaded = run(f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == ""


def test_import_takes_less_than_150_ms():
    """The median of seven processes; the interpreter's own start is not counted."""
    program = "import time; s = time.perf_counter(); import prismm; print(time.perf_counter() - s)"
    run(program)  # writes the byte code
    assert statistics.median(float(run(program)) for _ in range(7)) < 0.15


def test_every_public_name_is_there():
    assert set(prismm.__all__) <= set(dir(prismm))
    for name in dir(prismm):
        try:
            assert getattr(prismm, name) is not None
        except prismm.errors.EngineError as error:
            assert not is_installed("torch") and "needs torch" in str(error)
    for name in ("matmul", "gemm", "prepare", "explain"):
        assert callable(getattr(prismm, name)) and getattr(prismm, name).__doc__
    for name in ("engines", "errors", "formats", "metrics", "schemes", "testing"):
        assert getattr(prismm, name).__name__ == f"prismm.{name}"
    with pytest.raises(AttributeError, match="'prismm' has no attribute 'matmull'"):
        _ = prismm.matmull


def test_numpy_users_do_not_load_torch():
    """A native product of NumPy arrays needs neither torch nor any kernel."""
    program = "import sys, numpy as np, prismm; prismm.matmul(np.eye(3), np.eye(3)); print('torch' in sys.modules)"
    assert run(program) == "False"


def test_importing_starts_no_thread_and_writes_nothing():
    program = (
        "import threading, sys, os; import prismm; before = set(os.environ.items()); prismm.matmul; "
        "print(threading.active_count(), set(os.environ.items()) == before)"
    )
    assert run(program) == "1 True"
