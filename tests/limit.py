"""The limit of what a fast test may take."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

_SECONDS = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """CPU time of this process so far and of all children that it waited for: a busy machine adds nothing."""
    return sum(os.times()[:4])


class FastLimit:
    """A plugin by which a test fails that is not marked slow and takes more than so many seconds of CPU time.

    What fixtures take counts for nobody: several tests may share it.
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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Judge it."""
        report = yield
        taken = item.stash.get(_SECONDS, 0.0)
        if report.when == "call" and report.passed and taken > self.seconds and not item.get_closest_marker("slow"):
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} took {taken:.1f} s of CPU time, a fast test at most {self.seconds:g} s: make it "
                "cheaper or mark it slow (--fast-limit 0 lets all pass)"
            )
        return report
