"""Residues of many small products, or of one with few columns or rows, by the direct engine in compiled passes.

The products of a batch are cut into chunks of consecutive ones, a product of many rows into chunks of rows; workers
take chunks. In each the tiny kernel (`cpu.kernels.tiny`) multiplies everything at once. Rows with an entry that it
leaves open are recomputed together, as blocks of one product (`split.Blocks`). Both return the bits that the products
return one at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.accuracy import MAGNITUDE, ROUNDING, Target, join_test
from prismm.core.bounds import ResidueBound, RoundedBound
from prismm.core.outcome import Job, Outcome, for_kernels
from prismm.core.scales import Blocks, Scales
from prismm.cpu.engines.integer import DIRECT
from prismm.cpu.residues import multiply as residues
from prismm.cpu.residues.split import Splitter
from prismm.formats import format_of
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 18
"""Elements of operands and results that a worker takes at a time: what is made of them stays in its cache."""

ALONE = 40e-6
"""Seconds of work below which waking another worker does not pay."""

_LANES = 16
"""Columns, or products, that the tiny kernels multiply at a time."""

IN_LANES = 864
"""Real elements of a product, with the result's and those of empty lanes, up to which products are multiplied side by
side; of 17×17 they are as fast one by one.
"""


@dataclass(frozen=True)
class Stack:
    """The matrices (count, rows, columns) of an operand, and which of them each product takes: its own where None."""

    matrices: NDArray[Any]
    index: NDArray[np.int64] | None = None

    @staticmethod
    def of(x: NDArray[Any], batch: tuple[int, ...]) -> Stack:
        """The matrices of an array that broadcasts to this batch; axes that repeat them by a zero stride count once."""
        extents = tuple(
            1 if not stride else extent for extent, stride in zip(x.shape[:-2], x.strides[:-2], strict=True)
        )
        if extents != x.shape[:-2]:
            x = x[tuple(slice(0, extent) for extent in extents)]
        matrices = x.reshape(-1, *x.shape[-2:])
        if extents == batch:
            return Stack(matrices)
        if len(matrices) == 1:
            return Stack(matrices, np.zeros(math.prod(batch), np.int64))
        return Stack(matrices, np.broadcast_to(np.arange(len(matrices)).reshape(extents), batch).reshape(-1))

    def block(self, p0: int, p1: int, rows: slice, kind: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Contiguous matrices for the products from p0 to p1, and which of them each takes."""
        if self.index is None:
            return for_kernels(self.matrices[p0:p1, rows], kind), np.arange(p1 - p0)
        used, place = np.unique(self.index[p0:p1], return_inverse=True)
        return for_kernels(self.matrices[used[0] : used[-1] + 1, rows][used - used[0]], kind), place


@functools.lru_cache(maxsize=1024)
def tiny_recipe(dtype: np.dtype[Any], k: int, moduli: int, target: Target, terms: int) -> tuple[Any, ...]:
    """What the tiny kernels need for this type, inner dimension, scheme and target.

    terms: those that the target counts, `Job.terms`: fewer than the inner dimension holds for integers beyond 2^53.
    """
    result = format_of(dtype)
    splitter = Splitter(moduli, DIRECT, k, dtype.kind == "c")
    mode, *kappas = join_test(target, terms, result)
    levels = splitter.count_levels if mode == MAGNITUDE else 0
    return splitter.thresholds, splitter.fraction_bits, levels, mode, *kappas, result.precision


def multiply(
    scheme: Residues, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job, *, report: bool
) -> tuple[Outcome, Callable[[int], Outcome]]:
    """out = a @ b for arrays (…, m, k), (…, k, n) and contiguous (…, m, n), or the epilogue's sum, up to the target.

    report: count what becomes of the entries. Returns these counts, and what gives the outcome of product p alone, with
    its bound.
    """
    batch, (m, n) = out.shape[:-2], out.shape[-2:]
    if job.epilogue is not None and job.epilogue.c is not None:
        job = replace(job, epilogue=replace(job.epilogue, c=job.epilogue.c.reshape(-1, m, n)))
    work = _Batch(scheme, Stack.of(a, batch), Stack.of(b, batch), out.reshape(-1, m, n), job, report)
    # Chunks are cut along rows: a wide product is cut along its columns as the rows of the transposed one.
    if n > m and n * (m + a.shape[-1]) > CHUNK:
        work = work.turned()
    return work.run()


@dataclass(frozen=True)
class _Batch:
    """The products of a call: out[p] = a[p] @ b[p]; c[p] of the epilogue."""

    scheme: Residues
    a: Stack
    b: Stack
    out: NDArray[Any]
    job: Job
    report: bool
    swapped: bool = False

    def turned(self) -> _Batch:
        """The transposed products, of b's columns as rows: entries have the same bits."""
        a, b = (Stack(x.matrices.swapaxes(1, 2), x.index) for x in (self.b, self.a))
        epilogue = self.job.epilogue
        if epilogue is not None and epilogue.c is not None:
            epilogue = replace(epilogue, c=epilogue.c.swapaxes(1, 2))
        job = replace(self.job, epilogue=epilogue)
        return _Batch(self.scheme, a, b, self.out.swapaxes(1, 2), job, self.report, not self.swapped)

    def run(self) -> tuple[Outcome, Callable[[int], Outcome]]:
        """Hand out the chunks."""
        count, m, n = self.out.shape
        k = self.a.matrices.shape[2]
        workers = self.job.workers
        # Rough seconds: 1 µs a product and half a nanosecond a term.
        if count * (1e-6 + m * n * k * 0.5e-9) < ALONE:
            workers = 1
        rows = min(m, max(_LANES, CHUNK // (k + n + 1)))
        # Of few products the rows are shared out as well, or workers would have nothing to do.
        if count < 2 * workers:
            rows = min(rows, max(_LANES, -(-m // (2 * workers))))
        # Two chunks a worker even out what some of them take longer.
        together = max(1, min(-(-count // (2 * workers)), CHUNK // (m * k + k * n + m * n + 1)))
        chunks = [
            _Chunk(self, p, min(count, p + together), i, min(m, i + rows))
            for p in range(0, count, together)
            for i in range(0, m, rows)
        ]
        if workers == 1:
            for chunk in chunks:
                chunk.carry_out()
        else:
            # The caller takes part: the kernels call no BLAS, so they do without the limit that workers have.
            threads.spread(lambda chunk: chunk.carry_out(), chunks, workers, joining=True)
        total = Outcome()
        for chunk in chunks:
            total.merge(chunk.outcome)
        total.products = count
        per_product = -(-m // rows)
        return total, lambda p: self._outcome(chunks[p // together * per_product :][:per_product], p % together)

    def _outcome(self, chunks: list[_Chunk], p: int) -> Outcome:
        """Of one product: its bound."""
        if self.job.target is not None and self.job.target.kind == "correctly-rounded":
            return Outcome(bound=RoundedBound(self.job.result))
        found = [chunk.scales_of(p) for chunk in chunks]
        rows, columns = Scales.joined([x for x, _ in found]), found[0][1]
        bound: ResidueBound = chunks[0].outcome.bound
        both = (columns, rows) if self.swapped else (rows, columns)
        return Outcome(bound=ResidueBound(bound.result, *both, bound.terms, bound.weight))


class _Chunk:
    """Rows i0 … i1 - 1 of the products p0 … p1 - 1."""

    def __init__(self, batch: _Batch, p0: int, p1: int, i0: int, i1: int) -> None:
        self.batch = batch
        self.p0, self.p1 = p0, p1
        self.rows = slice(i0, i1)
        self.outcome = Outcome()

    def carry_out(self) -> None:
        """Multiply, and finish uncertified entries."""
        batch, job = self.batch, self.batch.job
        out = batch.out[self.p0 : self.p1, self.rows]
        kind = "complex128" if out.dtype.kind == "c" else "float64"
        x, left = batch.a.block(self.p0, self.p1, self.rows, kind)
        y, right = batch.b.block(self.p0, self.p1, slice(None), kind)
        plain = job.epilogue is None or job.epilogue.trivial
        recipe = None
        if job.target is not None:
            recipe = tiny_recipe(out.dtype, x.shape[2], batch.scheme.moduli, job.target, job.terms)
        # A report asks for the scales of all entries, which the tiny kernels do not keep. A kappa of 0 is "fast", which
        # tests overflow alone, and is left to the join as well.
        if plain and recipe is not None and not batch.report and (recipe[3] == ROUNDING or recipe[4] > 0.0):
            flags = _tiny(x, left, y, right, out, recipe)
            if flags is None:
                return
            p, i = np.nonzero(flags.any(axis=(2, 3)))
        else:
            flags = None
            p, i = (axis.reshape(-1) for axis in np.indices(out.shape[:2]))
        used, owner = np.unique(right[p], return_inverse=True)
        # `Blocks` wants the rows of a block side by side.
        order = np.argsort(owner, kind="stable")
        p, i, owner = p[order], i[order], owner[order]
        blocks = Blocks(owner, out.shape[2])
        rows, columns = x[left[p], i], np.ascontiguousarray(y[used].swapaxes(0, 1)).reshape(y.shape[1], -1)
        value = np.empty((p.size, out.shape[2]), out.dtype)
        if job.epilogue is not None and job.epilogue.c is not None:
            job = replace(job, epilogue=job.epilogue.block((p + self.p0, i + self.rows.start)))
        job = replace(job, workers=1)
        self.outcome = residues.multiply(batch.scheme, rows, columns, value, job, DIRECT, blocks=blocks)
        out[p, i] = value
        self._place, self._owner = np.argsort(order, kind="stable"), owner

    def scales_of(self, p: int) -> tuple[Scales, Scales]:
        """The scales of the rows and columns of product p of the chunk."""
        bound: ResidueBound = self.outcome.bound
        m, n = self.rows.stop - self.rows.start, self.batch.out.shape[2]
        first = int(self._place[p * m])
        u = int(self._owner[first])
        return bound.rows.block(first, first + m), bound.columns.block(u * n, u * n + n)


def _tiny(
    x: NDArray[Any], left: NDArray[np.int64], y: NDArray[Any], right: NDArray[np.int64], out: NDArray[Any],
    recipe: tuple[Any, ...],
) -> NDArray[np.bool_] | None:  # fmt: skip
    """Everything by a tiny kernel; which real parts (p, i, j, part) are uncertified, or None where none.

    The lanes of the smallest are products, of others columns: where they would be emptier than with rows for columns,
    the transposed products are made.
    """
    from prismm.cpu.kernels.tiny import tiny_products
    from prismm.cpu.kernels.tiny_batch import tiny_batch

    count, m, n = out.shape
    parts = 2 if out.dtype.kind == "c" else 1
    elements = (x.shape[2] * (m + n) + m * n) * parts
    in_lanes = -(-count // _LANES) * _LANES * elements <= IN_LANES * count
    turned = not in_lanes and m * -(-n // _LANES) > n * -(-m // _LANES)
    if turned:
        (x, left), (y, right) = (np.ascontiguousarray(y.swapaxes(1, 2)), right), (
            np.ascontiguousarray(x.swapaxes(1, 2)), left
        )  # fmt: skip
        m, n = n, m
    # The kernels write contiguous matrices alone.
    direct = not turned and out.flags.c_contiguous
    value = out if direct else np.empty((count, m, n), out.dtype)
    real = value.view(value.real.dtype)
    flags, counts = np.zeros(real.shape, np.uint8), np.empty(count, np.int64)
    nothing = np.empty((0, 0, 0), np.float32 if real.dtype == np.float64 else np.float64)
    both = (real, nothing) if real.dtype == np.float64 else (nothing, real)
    multiply = tiny_batch if in_lanes else tiny_products
    multiply(x.view(np.float64), y.view(np.float64), left, right, parts, *recipe, *both, flags, counts)
    if not direct:
        out[...] = value.swapaxes(1, 2) if turned else value
    if not counts.any():
        return None
    found = flags.view(np.bool_).reshape(count, m, n, parts)
    return found.swapaxes(1, 2) if turned else found
