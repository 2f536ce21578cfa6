"""What repairs are expected to add to the seconds of a plan, for given data: `explain` asks, no call does.

A few rows and columns from all over the operands are multiplied and tested as the call would test all; the share of
their entries that fail is the expected share of all. What recomputes these, and in which time, is chosen as by the
call (`escalation`), by the failed entries of the sample. Zeros that a product is cut at are not foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy
from prismm.core.accuracy import MAGNITUDE
from prismm.core.outcome import Job, Outcome, real_parts
from prismm.core.plan import readable_seconds
from prismm.cpu.costs import PAIR_SECONDS, rates_of
from prismm.cpu.engines.integer import choose
from prismm.cpu.escalation import BLOCK_SECONDS, FEW_SECONDS, Block
from prismm.cpu.many_product import takes_bytes
from prismm.cpu.repair import Entries, by_magnitude
from prismm.cpu.residues.product import Product
from prismm.cpu.residues.split import Splitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.problem import Problem

LEAST_WORK = 1 << 24
"""Multiply-adds from which on a sample is taken: of less it would be nearly all."""

ROWS, COLUMNS = 48, 64
"""Rows and columns of the sample, evenly apart."""

ELEMENTS, LEAST = 1 << 22, 8
"""Elements that it has at most, so fewer rows and columns of a long inner dimension, but so many of each."""

LISTED_SECONDS = 1.0e-7
"""Seconds that an uncertified entry costs one worker beside what recomputes it: tests, lists, its magnitude."""


@dataclass(frozen=True)
class Failures:
    """Entries of a sample that failed their test, and that magnitudes do not certify either, of one real part, as rows
    and columns of the whole product; share, left: of all entries of the sample, what failed and what is left so.
    """

    i: NDArray[np.int64]
    j: NDArray[np.int64]
    share: float
    left: float


def expected_repairs(
    moduli: int, problem: Problem, a: NDArray[Any], b: NDArray[Any], dtype: np.dtype[Any], engine: str, workers: int
) -> tuple[float, str]:
    """Seconds that repairs are expected to take, and the reason for a plan.

    Args:
        moduli: of the product.
        problem: what is multiplied, to a target.
        a: (m, k).
        b: (k, n).
        dtype: of the result.
        engine: that multiplies residues; not the direct one.
        workers: threads.
    """
    with np.errstate(all="ignore"):
        failed = failures(problem, a, b, moduli, engine, dtype)
        seconds, how = _seconds(problem, a, b, failed, workers)
    reason = f"in a sample of the data {failed.share:.2g} of the entries fail the first test: {how}, in about "
    return seconds, reason + readable_seconds(seconds)


def failures(
    problem: Problem, a: NDArray[Any], b: NDArray[Any], moduli: int, engine: str, dtype: np.dtype[Any]
) -> Failures:
    """Multiply and test the sample by so many moduli."""
    share = min(1.0, ELEMENTS / ((ROWS + COLUMNS) * problem.terms))
    i, j = (np.linspace(0, n - 1, min(n, max(LEAST, int(most * share)))).astype(np.int64) for n, most in (
        (a.shape[0], ROWS), (b.shape[1], COLUMNS)))  # fmt: skip
    out = np.empty((i.size, j.size), dtype)
    tested = accuracy.join_mode(problem.target) == MAGNITUDE
    job = Job(problem.result, problem.target, problem.terms, a_priori=tested, workers=1, workspace_bytes=1 << 30)
    splitter = Splitter(moduli, choose(engine), a.shape[1], problem.is_complex, a_priori=tested, levels=tested)
    product = Product(splitter, job, Outcome())
    rows, columns = product.run(a[i], b[:, j], out)
    count, left, first = 0, 0, np.empty((2, 0), np.int64)
    for part, target in enumerate(real_parts(out)):
        mine = [np.stack([r, c]) for p, r, c in product.uncertified if p == part]
        r, c = np.concatenate(mine, axis=1) if mine else np.empty((2, 0), np.int64)
        entries = Entries(part, r, c).keep(~(rows.nonfinite[r] | columns.nonfinite[c]))
        count += entries.i.size
        if entries.i.size:
            entries = by_magnitude(a[i], b[:, j], target, entries, job, Outcome(), (rows, columns))
        left += entries.i.size
        first = np.stack([i[entries.i], j[entries.j]]) if part == 0 else first
    size = out.size * (2 if problem.is_complex else 1)
    return Failures(first[0], first[1], count / size, left / size)


def _seconds(problem: Problem, a: NDArray[Any], b: NDArray[Any], failed: Failures, workers: int) -> tuple[float, str]:
    """Expected of all repairs, and how they are made."""
    parts = 2 if problem.is_complex else 1
    whole = float(a.shape[0]) * b.shape[1] * parts
    entries = failed.left * whole
    one_by_one = entries * problem.terms * PAIR_SECONDS / workers
    best = choose("cpu")
    engine = best if takes_bytes(best) else None
    seconds = failed.share * whole * LISTED_SECONDS
    if engine is not None and problem.goal != "correctly-rounded" and failed.share:
        # Magnitudes come first: a product of bytes, and one of ones.
        seconds += 2 * whole * problem.terms / rates_of(engine.name).residue / workers
    if one_by_one < FEW_SECONDS or failed.i.size == 0:
        how = "recomputed one by one" if failed.left else "certified by their magnitudes"
        return seconds + one_by_one, how
    job = Job(problem.result, problem.target, problem.terms, False, workers, 1 << 30)
    block = Block.whole(a, b, 0, failed.i, failed.j, memory=job.workspace_bytes)
    if block.k == 0:
        return seconds, "zero"
    chosen = block.choose(job, engine, (), count=entries)
    seconds += chosen.seconds + parts * BLOCK_SECONDS * sum(a.shape) * problem.parts
    return seconds, f"recomputed by {chosen.way.text}" if chosen.way is not None else "recomputed one by one"
