"""Import time, first calls, and peak memory, each in fresh processes; writes results/cpu_footprint.csv.

Peak memory is the process's high-water mark after a product of order 4096, less what it was with the libraries
loaded and the kernels compiled but no matrix made, over operands plus result.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from _common import machine, write

IMPORT = "import time; t = time.perf_counter(); import prismm; print(time.perf_counter() - t)"
FIRST = """
import time, numpy as np
t = time.perf_counter()
import prismm
a = np.random.default_rng(0).standard_normal((256, 256))
prismm.matmul(a, a, accuracy="correctly-rounded")
print(time.perf_counter() - t)
"""
MEMORY = """
import resource, numpy as np, prismm
small = np.ones((200, 200))
prismm.matmul(small, small, {keywords})
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
rng = np.random.default_rng(0)
a, b = rng.standard_normal(({n}, {n})), rng.standard_normal(({n}, {n}))
c = prismm.matmul(a, b, {keywords})
print((peak() - before) / (a.nbytes + b.nbytes + c.nbytes))
"""


def run(code: str, **environment: str) -> float:
    """Run code in a fresh process and read the number it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure, print, write the CSV."""
    found: list[tuple[str, float, str]] = []
    found.append(("import prismm", statistics.median(run(IMPORT) for _ in range(9)), "s"))
    with tempfile.TemporaryDirectory() as folder:
        found.append(("cold first correctly rounded call, kernels compiled", run(FIRST, PRISMM_CACHE_DIR=folder), "s"))
        warm = statistics.median(run(FIRST, PRISMM_CACHE_DIR=folder) for _ in range(3))
        found.append(("first call, kernels from disk, torch's import included", warm, "s"))
    for keywords in ('accuracy="correctly-rounded"', "reproducible=True", ""):
        name = f"peak memory, float64, n = 4096, {keywords or 'default'}"
        found.append((name, run(MEMORY.format(n=4096, keywords=keywords)), "times operands plus result"))
    rows: list[dict[str, Any]] = []
    for name, value, unit in found:
        print(f"{name}: {value:.3g} {unit}", flush=True)
        rows.append({"what": name, "value": value, "unit": unit, **machine()})
    print(write("cpu_footprint", rows, ("what",)))


if __name__ == "__main__":
    main()
