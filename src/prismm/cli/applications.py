"""``prismm bench apps``: the programs of benchmarks/apps, each with native products and prismm's, and the tuner."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import prismm
from prismm.cli.console import say
from prismm.core.extras import is_installed, missing
from prismm.errors import FileError


def folder() -> Path:
    """benchmarks/apps of the clone that prismm was installed from, or of the current directory.

    Raises:
        FileError: where there is none: a wheel does not bring it.
    """
    for root in (Path(prismm.__file__).resolve().parents[2], Path.cwd()):
        found = root / "benchmarks" / "apps"
        if (found / "run.py").is_file():
            return found
    raise FileError("benchmarks/apps is not here; run this in a clone of prismm, which brings the applications")


def run(
    device: str,
    quick: bool,
    names: str | None,
    seed: int,
    repeats: int,
    seconds: float,
    csv: Path | None,
    plot: Path | None,
    json: bool,
) -> int:
    """Run them in a process of their own, since they set torch's precision; its exit code."""
    if not is_installed("torch"):
        raise missing("prismm bench apps", "torch")
    script = folder() / "run.py"
    if not json:
        say(f"timing programs with native products and with prismm's: {names or 'all, and the tuner'}, {device}")
    source = str(Path(prismm.__file__).resolve().parents[1])
    path = os.pathsep.join(x for x in (source, os.environ.get("PYTHONPATH", "")) if x)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, str(script), "--device", device, "--seed", str(seed), "--repeats", str(repeats)]
        command += ["--out", str((csv or Path(scratch)).absolute())]
        command += [] if math.isinf(seconds) else ["--seconds", str(seconds)]
        command += ["--quick"] if quick else []
        command += ["--apps", names] if names else []
        command += ["--plot", str(plot.absolute())] if plot is not None else []
        command += ["--json"] if json else []
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
