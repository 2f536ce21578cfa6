"""``prismm bench apps``: the programs of `prismm.applications`, with native products and prismm's, and the tuner."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import prismm
from prismm.applications import NAMES
from prismm.cli.console import say
from prismm.core.extras import install, is_installed, missing
from prismm.errors import ArgumentError, meant


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
    """Run them in a process of their own, since they set torch's precision; its exit code.

    Raises:
        EngineError: without torch. ArgumentError: for an unknown program, and for a plot without matplotlib.
    """
    if not is_installed("torch"):
        raise missing("prismm bench apps", "torch")
    known = [name for some in NAMES.values() for name in some]
    for name in names.split(",") if names else []:
        if name not in known:
            raise ArgumentError(f"no program {name!r}{meant(name, known)}; pass some of {','.join(known)}")
    if plot is not None and not is_installed("matplotlib"):
        raise ArgumentError(f"--plot needs matplotlib; install it with: {install('plot')}")
    if not json:
        say(f"timing programs with native products and with prismm's: {names or 'all'}; then the tuner ({device})")
    source = str(Path(prismm.__file__).resolve().parents[1])
    path = os.pathsep.join(x for x in (source, os.environ.get("PYTHONPATH", "")) if x)
    # -P: modules of the current directory are not theirs.
    command = [sys.executable, "-P", "-m", "prismm.applications"]
    command += ["--device", device, "--seed", str(seed), "--repeats", str(repeats)]
    command += [] if math.isinf(seconds) else ["--seconds", str(seconds)]
    command += ["--quick"] if quick else []
    command += ["--apps", names] if names else []
    command += ["--out", str(csv)] if csv is not None else []
    command += ["--plot", str(plot)] if plot is not None else []
    command += ["--json"] if json else []
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
