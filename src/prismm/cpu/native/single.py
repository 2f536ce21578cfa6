"""Correctly rounded products of float32 data: one float64 GEMM, a rounding test, and lane dots for what it leaves open.

Products of float32 numbers are exact in float64, so the sum is off by at most K·u·Σ|ab| <= K·u·‖a_i‖‖b_j‖, u = 2^-53,
in any order of summation (Jeannerod and Rump 2013). Inf and NaN show in the norms: squares of float32 numbers cannot
overflow float64.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.outcome import Job, Outcome, for_kernels, unlocked
from prismm.core.specials import patch
from prismm.core.workspace import Workspace
from prismm.cpu.costs import LANE_SECONDS, PAIR_SECONDS
from prismm.cpu.entries import Entries, in_slices, used_of
from prismm.cpu.forecast import Sample, job_of, some_of
from prismm.cpu.repair import before_recomputing, repair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.problem import Problem

# Rows that are widened and multiplied at a time, beside all of the right operand in float64.
PANEL = 1024
LOWER_PANEL = 512
"""The same where entries above the diagonal are not wanted: a panel meets the columns up to its last row."""
LISTED_SECONDS = 1.5e-8
"""Seconds to list an entry whose rounding is open."""
_TRIED, _TRIAL_SECONDS = 256, 2e-3
"""Entries that lanes try first, where they would take more seconds than this for all."""
_PRODUCT_SECONDS = 8e-11
"""Seconds of a worker for a term of an entry where all rows and columns are multiplied by some 16 moduli."""
_UP = 1.0 + 2.0**-20
"""Covers the rounding of norms: their sums of exact squares are good to k·u for k < 2^32."""


def multiply(a: NDArray[Any], b: NDArray[Any], out: NDArray[np.float32], job: Job, outcome: Outcome) -> None:
    """out = RN(a @ b) for operands that are float32 numbers exactly."""
    start = time.perf_counter()
    symmetric = job.lower and a.dtype == np.float32 and _are_transposes(a, b)
    a, b = (unlocked(x) if symmetric else for_kernels(x, "float32") for x in (a, b))
    m, k = a.shape
    n = b.shape[1]
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    with Workspace() as workspace:
        step = min(LOWER_PANEL if job.lower else PANEL, m)
        product = workspace.empty((step * n,), np.float64)
        # Of a matrix and its own transpose one is widened, as it lies.
        row_energy = np.empty(m)
        if symmetric and a.flags.c_contiguous:
            wide, column_energy = workspace.empty((m, k), np.float64).T, row_energy
            _widen_rows(a, wide.T, row_energy, job.workers)
        else:
            wide, column_energy = _widened_columns(b, job.workers, workspace)
            row_energy = column_energy if symmetric else row_energy
        column_norm = _norms(column_energy)
        panel = workspace.empty((0 if symmetric else step, k), np.float64)
        for i0 in range(0, m, step):
            i1 = min(m, i0 + step)
            met = min(n, i1) if job.lower else n
            c = product[: (i1 - i0) * met].reshape(i1 - i0, met)
            with np.errstate(all="ignore"):
                if symmetric:
                    rows = wide[:, i0:i1].T
                    np.matmul(rows, wide[:, :i0], out=c[:, :i0])
                    np.matmul(rows, wide[:, i0:i1], out=c[:, i0:])  # by BLAS's syrk
                else:
                    rows = panel[: i1 - i0]
                    _widen_rows(a[i0:i1], rows, row_energy[i0:i1], job.workers)
                    np.matmul(rows, wide[:, :met], out=c)
            norms = _norms(row_energy[i0:i1]), column_norm[:met]
            found += _rounded(c, *norms, k, out[i0:i1, :met], i0, job.workers)
    outcome.time("multiply", time.perf_counter() - start)
    start = time.perf_counter()
    outside_rows, outside_columns = ~np.isfinite(row_energy), ~np.isfinite(column_energy)
    special = patch(a, b, out, outside_rows, outside_columns)
    outcome.count("special", special)
    i = np.concatenate([f[0] for f in found]) if found else np.empty(0, np.int64)
    j = np.concatenate([f[1] for f in found]) if found else np.empty(0, np.int64)
    entries = Entries(0, i, j)
    entries = entries.keep(~(outside_rows[i] | outside_columns[j]))
    outcome.count("certified", out.size - special - entries.i.size)
    entries = by_lanes(a, b, out, entries, _norms(row_energy), column_norm, job.workers, outcome, symmetric=symmetric)
    repair(a, b, out, entries, job, outcome)
    outcome.time("repair", time.perf_counter() - start)


def _are_transposes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether a is the transpose of b, in the same memory without gaps."""
    alike = a.shape == b.shape[::-1] and a.strides == b.strides[::-1] and a.ctypes.data == b.ctypes.data
    return alike and (a.flags.c_contiguous or b.flags.c_contiguous)


def _norms(energy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upper bounds of 2-norms; 0 where an element is not finite."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(energy), np.sqrt(energy) * _UP, 0.0)


def _pieces(count: int, workers: int) -> list[tuple[int, int]]:
    step = max(1, -(-count // workers))
    return [(i, min(count, i + step)) for i in range(0, count, step)]


def _widened_columns(
    b: NDArray[np.float32], workers: int, workspace: Workspace
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """b as float64, and the energies of its columns."""
    from prismm.cpu.kernels.single import widen_columns

    wide = workspace.empty(b.shape, np.float64)
    pieces = _pieces(b.shape[0], workers)
    # A row of sums for each piece of rows: workers would meet in the columns.
    energies = np.zeros((len(pieces), b.shape[1]))
    threads.spread(
        lambda p: widen_columns(b, *pieces[p], wide, energies[p]), list(range(len(pieces))), workers
    )  # fmt: skip
    return wide, energies.sum(axis=0)


def _widen_rows(a: NDArray[np.float32], wide: NDArray[np.float64], energy: NDArray[np.float64], workers: int) -> None:
    from prismm.cpu.kernels.single import widen_rows

    threads.spread(lambda p: widen_rows(a, *p, wide, energy), _pieces(a.shape[0], workers), workers)


def _rounded(
    c: NDArray[np.float64],
    row_norm: NDArray[np.float64],
    column_norm: NDArray[np.float64],
    k: int,
    out: NDArray[np.float32],
    first: int,
    workers: int,
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """out = RN(c); rows (counted from `first`) and columns of the entries whose rounding is open."""
    from prismm.cpu.kernels.rounding import round_to_float32

    n = c.shape[1]
    # The k roundings of the sum, and two for the test's own.
    factor = (k + 2) * 2.0**-53 * _UP
    pieces = _pieces(c.shape[0], workers)
    results: list[Any] = [None] * len(pieces)

    def test(index: int) -> None:
        r0, r1 = pieces[index]
        failed = np.empty((r1 - r0) * n, np.int32)
        count = round_to_float32(c[r0:r1], row_norm[r0:r1], column_norm, factor, out[r0:r1], failed)
        i, j = np.divmod(failed[:count].astype(np.int64), n)
        results[index] = (i + (first + r0), j)

    threads.spread(test, list(range(len(pieces))), workers)
    return results


def by_lanes(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    out: NDArray[np.float32],
    entries: Entries,
    row_norm: NDArray[np.float64],
    column_norm: NDArray[np.float64],
    workers: int,
    outcome: Outcome,
    *,
    symmetric: bool = False,
) -> Entries:
    """Recompute entries in 64 lanes; returns what their bound leaves open. symmetric: a is b's transpose. Of many
    entries some are tried first: all are left where lanes would decide too few of them to pay.
    """
    count, k = entries.i.size, a.shape[1]
    if count * k * LANE_SECONDS > _TRIAL_SECONDS * workers:
        some = entries.keep(np.linspace(0, count - 1, _TRIED).astype(np.int64))
        _, proved = _lanes(a, b, some, row_norm, column_norm, workers, symmetric=symmetric)
        left = float(np.count_nonzero(~proved)) / _TRIED
        if not lanes_pay((a.shape[0], k, b.shape[1]), count, left):
            return entries
    if count == 0:
        return entries
    value, proved = _lanes(a, b, entries, row_norm, column_norm, workers, symmetric=symmetric)
    out[entries.i[proved], entries.j[proved]] = value[proved]
    outcome.count("lane dots", int(proved.sum()))
    return entries.keep(~proved)


def lanes_pay(shape: tuple[int, int, int], count: float, left: float) -> bool:
    """Whether lanes save time that leave this share of so many entries of a product (m, k, n)."""
    m, k, n = shape
    # Repairs take the other entries one by one, or multiply all rows and columns, however many entries are left.
    product, alone = float(m) * n * k * _PRODUCT_SECONDS, count * k * PAIR_SECONDS
    return count * k * LANE_SECONDS + min(left * alone, product) <= min(alone, product)


def sampled(problem: Problem, a: NDArray[Any], b: NDArray[Any], workers: int) -> Sample:
    """Some rows and columns multiplied and tested like the whole, for predictions of its repairs."""
    x, y = (for_kernels(each, "float32") for each in some_of(problem, a, b))
    out, job = np.empty((x.shape[0], y.shape[1]), np.float32), job_of(problem, False, 1)
    wide = x.astype(np.float64), y.astype(np.float64)
    norms = _norms(np.square(wide[0]).sum(axis=1)), _norms(np.square(wide[1]).sum(axis=0))
    i, j = _rounded(wide[0] @ wide[1], *norms, x.shape[1], out, 0, 1)[0]
    entries = Entries(0, i, j).keep((norms[0][i] > 0.0) & (norms[1][j] > 0.0))
    failed = entries.i.size / out.size
    count = failed * problem.m * problem.n
    seconds = count * LISTED_SECONDS
    if entries.i.size:
        _, proved = _lanes(x, y, entries, *norms, 1, symmetric=False)
        if lanes_pay((problem.m, problem.k, problem.n), count, float((~proved).mean())):
            entries, seconds = entries.keep(~proved), seconds + count * problem.k * LANE_SECONDS / workers
        if entries.i.size:
            entries = before_recomputing(x, y, out, entries, job, Outcome(), None)
    return Sample(x, y, entries, failed, entries.i.size / out.size, seconds)


def _lanes(
    a: NDArray[np.float32], b: NDArray[np.float32], entries: Entries, row_norm: NDArray[np.float64],
    column_norm: NDArray[np.float64], workers: int, *, symmetric: bool,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:  # fmt: skip
    """Values of entries from 64 lanes, and whether these prove them."""
    from prismm.cpu.kernels.single import gather_single, lane_dots

    k = a.shape[1]
    # Entries share columns, each of which is copied once; of a matrix and its own transpose rows are such copies, too.
    used, place = used_of(np.concatenate([entries.j, entries.i]) if symmetric else entries.j, b.shape[1])
    value, undecided = np.empty(entries.i.size, np.float32), np.empty(entries.i.size, np.uint8)
    with Workspace() as workspace:
        columns = workspace.empty((used.size, k), np.float32)
        # Multiples of 16 elements, a line of the cache, so that workers hardly write to the same line.
        step = max(16, -(-k // workers) + 15 & ~15)
        if symmetric and a.flags.c_contiguous:
            np.take(a, used, axis=0, out=columns)
        else:
            threads.spread(
                lambda h: gather_single(b, used, h, min(k, h + step), columns), list(range(0, k, step)), workers
            )  # fmt: skip
        norms = column_norm[used]
        ci = place[: entries.i.size]
        rows, ri, norms_of_rows = (columns, place[entries.i.size :], norms) if symmetric else (a, entries.i, row_norm)
        in_slices(
            lambda s: lane_dots(rows, columns, ri[s], ci[s], norms_of_rows, norms, value[s], undecided[s]),
            entries.i.size, workers,
        )  # fmt: skip
    return value, undecided == 0
