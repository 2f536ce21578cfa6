"""Predicts how long repairs take for given data. Only `explain` asks for this; products do not.

A few rows and columns from all over the operands are multiplied and tested like the whole product. The share of their
entries that fail is the expected share of all entries. `escalation` chooses how to recompute them, as it does in a
product. Cuts at zeros (`structure`) are not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.outcome import Job
from prismm.core.plan import readable_seconds
from prismm.cpu.costs import PAIR_SECONDS
from prismm.cpu.engines.integer import choose
from prismm.cpu.escalation import BLOCK_SECONDS, FEW_SECONDS, Block
from prismm.cpu.many_product import takes_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.problem import Problem
    from prismm.cpu.entries import Entries

LEAST_WORK = 1 << 24
"""Multiply-adds from which on a sample is taken. It would be most of a smaller product."""

ROWS, COLUMNS = 48, 64
"""Rows and columns of the sample, evenly apart."""

ELEMENTS, LEAST = 1 << 22, 8
"""The most elements of a sample, and the fewest rows and columns. A long inner dimension leaves fewer of these."""


@dataclass(frozen=True)
class Sample:
    """Some rows and columns, and the entries of their product that are left to recompute.

    Attributes:
        left, right: rows of one operand and columns of the other.
        entries: of the first real part, entries that neither the first test nor magnitudes certify.
        failed: share of all real entries that fail the first test.
        uncertified: share of all real entries that magnitudes do not certify either.
        seconds: that are expected before repairs, of the whole product.
    """

    left: NDArray[Any]
    right: NDArray[Any]
    entries: Entries
    failed: float
    uncertified: float
    seconds: float


def expected_repairs(problem: Problem, sample: Sample, workers: int) -> tuple[float, str]:
    """Seconds that repairs are expected to take, and the reason for a plan."""
    with np.errstate(all="ignore"):
        seconds, how = _seconds(problem, sample, workers)
    reason = f"in a sample of the data {sample.failed:.2g} of the entries fail the first test: {how}, in about "
    return seconds, reason + readable_seconds(seconds)


def some_of(problem: Problem, a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of a (m, k) and columns of b (k, n) from all over these."""
    share = min(1.0, ELEMENTS / ((ROWS + COLUMNS) * problem.terms))
    i, j = (np.linspace(0, n - 1, min(n, max(LEAST, int(most * share)))).astype(np.int64) for n, most in (
        (a.shape[0], ROWS), (b.shape[1], COLUMNS)))  # fmt: skip
    return a[i], b[:, j]


def job_of(problem: Problem, by_magnitudes: bool, workers: int) -> Job:
    """A job of such a problem without limits."""
    return Job(problem.result, problem.target, problem.terms, by_magnitudes, workers, 1 << 30)


def _seconds(problem: Problem, sample: Sample, workers: int) -> tuple[float, str]:
    """Predicted seconds of all repairs, and how entries are recomputed."""
    parts = 2 if problem.is_complex else 1
    whole = float(problem.m) * problem.n * parts
    uncertified = sample.uncertified * whole
    one_by_one = uncertified * problem.terms * PAIR_SECONDS / workers
    best = choose("cpu")
    engine = best if takes_bytes(best) else None
    seconds = sample.seconds
    if one_by_one < FEW_SECONDS or sample.entries.i.size == 0:
        how = "recomputed one by one" if sample.uncertified else "certified by their magnitudes"
        return seconds + one_by_one, how
    block = Block.of(sample.left, sample.right, sample.entries)
    if block is None or block.k == 0:
        return seconds, "zero"
    block = replace(block, stands_for=(problem.m, problem.terms, problem.n))
    chosen = block.choose(job_of(problem, False, workers), engine, (), count=uncertified)
    seconds += chosen.seconds + parts * BLOCK_SECONDS * (problem.m + problem.n) * problem.terms
    return seconds, f"recomputed by {chosen.way.text}" if chosen.way is not None else "recomputed one by one"
