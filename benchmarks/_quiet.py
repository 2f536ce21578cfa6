"""Times on processors whose cores nobody else uses, on a host that is shared with other virtual machines.

A core's two threads share its tile unit. While the other one is busy, tile products take three times as long and FP64
ones half as long again, and nothing tells a virtual machine so. A probe does: a short tile product from the L2 cache on
each processor. Before a pair of calls the process moves to the processors with the fastest probes, and the pair counts
if these probes, before and after it, are near the best one of all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from prismm.core.workspace import Workspace
from prismm.cpu.engines.integer import AmxEngine
from prismm.errors import EngineError

EDGE, TERMS = 256, 512
"""Rows, columns and terms of a probe: its operands and sums take less than half of an L2 cache."""
NEAR = 0.8
"""Share of the best probe's speed from which on a processor counts as free."""
SECONDS = 2e-3
"""A probe's own, after as many during which the processor gets up to speed."""


class Processors:
    """The processors of this machine, by how fast their tile units are now."""

    def __init__(self) -> None:
        proof = AmxEngine().prove()
        if not proof.usable:
            raise EngineError(f"quiet processors are found by their tile units: {proof.reason}")
        self._all = sorted(os.sched_getaffinity(0))
        self._probe = _probe()
        self.best = 0.0
        for _ in range(3):
            self.speeds(self._all)

    def speeds(self, processors: list[int]) -> dict[int, float]:
        """Probes a second of each."""
        found = {}
        for one in processors:
            os.sched_setaffinity(0, {one})
            found[one] = _speed(self._probe)
        self.best = max(self.best, *found.values())
        return found

    def free(self, processors: list[int]) -> bool:
        """Whether all of them are free."""
        return min(self.speeds(processors).values()) >= NEAR * self.best

    def choose(self, count: int) -> list[int] | None:
        """So many that are free, to which all threads of this process are moved; None where fewer are."""
        speeds = self.speeds(self._all)
        chosen = sorted(speeds, key=lambda one: -speeds[one])[:count]
        move(chosen)
        return chosen if speeds[chosen[-1]] >= NEAR * self.best else None

    def leave(self) -> None:
        """All threads may run anywhere again."""
        move(self._all)


def move(processors: list[int]) -> None:
    """Have every thread of this process run on these processors alone."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), processors)


def _speed(probe: Callable[[], object]) -> float:
    best = float("inf")
    for _ in ("up to speed", "timed"):
        end = time.perf_counter() + SECONDS
        best = float("inf")
        while (start := time.perf_counter()) < end:
            probe()
            best = min(best, time.perf_counter() - start)
    return 1.0 / best


def _probe() -> Callable[[], object]:
    from prismm.cpu.kernels import amx

    rng, engine, workspace = np.random.default_rng(0), AmxEngine(), Workspace()
    left = workspace.empty((1, EDGE, engine.pitch(TERMS)), "int8")
    right = workspace.empty((1, *engine.panel_shape(EDGE, TERMS)), "uint32")
    left[...] = rng.integers(-127, 128, left.shape)
    right[...] = rng.integers(0, 1 << 32, right.shape)
    digits, tiles, tables = (workspace.empty(*each) for each in engine.scratch(1, 1, EDGE, EDGE, TERMS))
    modulus = np.array([251.0])
    return lambda: amx.tile_digits(left, right, TERMS, modulus, tiles, tables, digits[0])


def paired(
    ours: Callable[[], Any], theirs: Callable[[], Any], threads: int, seconds: float, most: int, pause: float
) -> dict[str, Any]:
    """Times of the two in turns on free processors, in seconds: `ours` and `theirs`, pair by pair; and how many pairs
    were tried. Ends after so many seconds, or with the most pairs. pause: seconds for which theirs' threads go on
    spinning.
    """
    processors = Processors()
    found: list[tuple[float, float]] = []
    tried, end = 0, time.perf_counter() + seconds
    try:
        while len(found) < most and time.perf_counter() < end:
            tried += 1
            chosen = processors.choose(threads)
            if chosen is None:
                continue
            pair = []
            for call, rest in ((theirs, pause), (ours, 0.0)):
                call()  # not timed: caches, and clocks, are those of the other one
                start = time.perf_counter()
                call()
                pair.append(time.perf_counter() - start)
                time.sleep(rest)
            if processors.free(chosen):
                found.append((pair[1], pair[0]))
    finally:
        processors.leave()
    return {"ours": [x for x, _ in found], "theirs": [y for _, y in found], "tried": tried}
