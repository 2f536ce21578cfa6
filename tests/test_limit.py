"""A fast test that takes long twice fails, by its CPU time and its children's, and nothing else does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLUGIN = """
from tests.limit import FastLimit

def pytest_configure(config):
    config.pluginmanager.register(FastLimit(0.05))
"""

TESTS = """
# Six times the limit on any core: the work is the one that the limit's unit is.
import subprocess, sys, time
import pytest

TURNS = 6_000_000
BUSY = f"total = 0\\nfor i in range({TURNS}): total += i & 7"

@pytest.fixture
def costly():
    exec(BUSY)

def test_busy(costly):
    exec(BUSY)

def test_busy_child():
    subprocess.run([sys.executable, "-c", BUSY], check=True)

@pytest.mark.slow
def test_slow():
    subprocess.run([sys.executable, "-c", BUSY], check=True)

def test_waiting():
    time.sleep(0.4)

def test_fixture(costly):
    pass

KNOWN = []

def test_first_call():
    if not KNOWN:
        KNOWN.append(exec(BUSY))

def test_wrong():
    assert False, "as before"
"""


@pytest.mark.slow
def test_a_fast_test_that_takes_long_fails(tmp_path):
    (tmp_path / "limit_plugin.py").write_text(PLUGIN)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-q", "-p", "limit_plugin", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
             "PYTEST_ADDOPTS": ""},
        capture_output=True, text=True,
    )  # fmt: skip
    said = [
        line.replace("test_it.py::", "").split(" - ")[0] for line in run.stdout.splitlines() if "ED test_it" in line
    ]
    assert sorted(said) == [
        "FAILED test_busy", "FAILED test_busy_child", "FAILED test_wrong",
        "PASSED test_first_call", "PASSED test_fixture", "PASSED test_slow", "PASSED test_waiting",
    ], run.stdout  # fmt: skip
    assert re.search(r"test_busy_child took \d+\.\d s of CPU time, a fast test at most 0\.05 s", run.stdout), run.stdout
