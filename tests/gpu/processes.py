"""Programs of the tests in processes of their own, which print one line of JSON a case."""

import json
import subprocess
import sys
from pathlib import Path


def told(module: str, *arguments: str) -> list:
    """What a module of the tests prints."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.gpu.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def interpreted(name: str, *arguments: str) -> list:
    """What `interpreted_<name>` prints in Triton's interpreter."""
    return told("interpreter", name, *arguments)
