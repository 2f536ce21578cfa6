"""The kernels of a GPU in Triton's interpreter: the bits of a CPU, where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_interpreted_kernels_give_the_bits_of_a_cpu():
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.interpreted"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 26
    assert not [entry for entry in found if entry["wrong"]]
