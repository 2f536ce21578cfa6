"""The sum 2^23 - 2^23 - 0.5 - 0.25 - 0.125, of which every engine keeps another part (Xie et al., Table 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import FP32
from prismm.numerics.suite.framework import Case, Result, Setting, Test, Verdict, not_applicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["tests"]

KEPT = {0.0: "none of the three terms", -0.5: "one term", -0.75: "two terms", -0.875: "all three terms"}


def tests(s: Setting) -> list[Test]:
    """The one test."""
    test = Test(
        "sum",
        "example",
        "2^23 - 2^23 - 0.5 - 0.25 - 0.125",
        "Xie et al., Table 8",
        "fraction bits",
        "0, -0.5, -0.75 or -0.875",
        (Case(("-2^13 * 2^10", "-0.5 * 1", "-0.25 * 1", "-0.125 * 1"), "2^23"),),
        _read,
    )
    return [test if s.output == FP32 else not_applicable(test, "a test with FP32 results")]


def _read(values: Sequence[float | None], _: Mapping[str, Result]) -> Verdict:
    d = values[0]
    return Verdict("passed" if d in KEPT else "failed", f"{d:g}" if d is not None else "")
