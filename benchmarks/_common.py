"""What every benchmark shares: interleaved timing, the machine's description, CSV."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prismm.applications import tables
from prismm.applications.tables import cpu_name, machine

__all__ = ["PAUSE", "RESULTS", "compared", "cpu_name", "interleaved", "machine", "warm_up", "write"]

# Calls on a GPU are timed with all their kernels.
os.environ.setdefault("PRISMM_COMPILE", "first")

PAUSE = 0.2
RESULTS = Path(__file__).parent / "results"


def warm_up(seconds: float = 3.0) -> None:
    """Keep all cores busy for a while: idle ones start slow, and threads may share a core at first."""
    import numpy as np

    x = np.ones((1024, 1024))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        x @ x


def interleaved(
    ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, renew: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Alternate the two; medians in milliseconds and the quantiles of theirs/ours pair by pair. renew: is called before
    every call, outside of its time, and may change the operands.

    OpenBLAS's threads go on spinning for about 0.1 s after a product and take half of a processor from whoever comes
    next, so each turn is a pause, untimed calls for 10 ms (one at least), then timed calls for 10 ms (one at least) of
    which the median counts: both are measured warm and alone.
    """
    a, b = [], []
    for _ in range(repeats):
        for call, times in ((theirs, b), (ours, a)):
            time.sleep(PAUSE)
            for _ in ("warm", "timed"):
                turn: list[float] = []
                while sum(turn) < 0.01:
                    renew()
                    start = time.perf_counter()
                    call()
                    turn.append(time.perf_counter() - start)
            times.append(statistics.median(turn))
    return compared(a, b)


def compared(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Of seconds pair by pair: medians in milliseconds, the median and quantiles of theirs/ours, and how many pairs."""
    ratios = sorted(y / x for x, y in zip(ours, theirs, strict=True))
    return {
        "ratio": statistics.median(ratios),
        "ratio_p20": ratios[int(0.2 * (len(ratios) - 1))],
        "ratio_p80": ratios[int(0.8 * (len(ratios) - 1))],
        "ms": 1e3 * statistics.median(ours),
        "numpy_ms": 1e3 * statistics.median(theirs),
        "repeats": len(ratios),
    }


def write(name: str, rows: list[dict[str, Any]], key: tuple[str, ...], folder: Path = RESULTS) -> Path:
    """Write rows to results/NAME.csv; rows there with other values of the key columns stay."""
    path = folder / f"{name}.csv"
    tables.write(path, rows, key)
    return path
