"""The limit of what a fast test may take."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median

import pytest
from _pytest.runner import runtestprotocol

_SECONDS = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """CPU time of this process so far and of all children that it waited for: a busy machine adds nothing."""
    return sum(os.times()[:4])


_LOOP = 600_000
_LOOP_SECONDS = 0.03
"""CPU time of so many turns of `slowness`'s loop on an idle core of an Emerald Rapids at 3 GHz."""


def slowness() -> float:
    """How many times as long as on the reference core work takes here and now, at least 1: processors differ, and a
    core whose other hardware thread is busy does half as much in the same CPU time.
    """
    taken = []
    for _ in range(5):
        began, total = time.process_time(), 0
        for i in range(_LOOP):
            total += i & 7
        taken.append(time.process_time() - began)
    return max(1.0, median(taken) / _LOOP_SECONDS)


class FastLimit:
    """A plugin by which a test fails that is not marked slow and takes more than so many seconds of CPU time.

    They are seconds of a reference core. What fixtures take counts for nobody: several tests may share it. A test that
    takes longer runs once more, and the shorter time counts: the first run may have paid for what others share, as an
    import or the first call of a kernel, or for a disturbance of the machine.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Note what a test takes."""
        began = cpu_seconds()
        try:
            return (yield)
        finally:
            item.stash[_SECONDS] = cpu_seconds() - began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test that is not marked slow, and judge it."""
        if item.get_closest_marker("slow"):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports, taken = self._run(item, nextitem)
        if all(report.passed for report in reports) and taken > self.seconds:
            reports, again = self._run(item, nextitem)
            taken = min(taken, again)
            called = next((report for report in reports if report.when == "call" and report.passed), None)
            if called and taken > self.seconds and taken > self.seconds * (factor := slowness()):
                called.outcome = "failed"
                called.longrepr = (
                    f"{item.nodeid} took {taken:.1f} s of CPU time, a fast test at most {self.seconds:g} s of a core "
                    f"{factor:.2f} times as fast as this one: make it cheaper or mark it slow (--fast-limit 0 lets "
                    "all pass)"
                )
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[list[pytest.TestReport], float]:
        """Reports of one run, which nobody has been told of, and the CPU time of the test itself."""
        item.stash.setdefault(_SECONDS, 0.0)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        return reports, item.stash[_SECONDS]
