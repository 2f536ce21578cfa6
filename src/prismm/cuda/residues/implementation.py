"""`Residues` on a GPU: split, multiply the planes of all moduli, join and certify, repair."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prismm.core.accuracy import MAGNITUDE, ROUNDING, join_test
from prismm.core.bounds import ResidueBound
from prismm.core.fp8_moduli import fp8_products
from prismm.core.moduli import norm_fraction_bits
from prismm.core.scales import NONFINITE, Scales
from prismm.cuda import blocks as cuda_blocks
from prismm.cuda.blocks import Blocks, Cut, blocks_within
from prismm.cuda.costs.table import rates_of, usual_rates
from prismm.cuda.device import COUNTS, FP8, INT8, Device
from prismm.cuda.gemm.launches import allocate_sum_flags, combine_digits, recompute_sums
from prismm.cuda.implementation import Composite, Job, Statistics
from prismm.cuda.launch.arguments import LEFT, RIGHT, A, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native.tiny import multiply_tiny
from prismm.cuda.operands import PreparedParts, vectors_of
from prismm.cuda.residues import fp8 as cuda_fp8
from prismm.cuda.residues import strassen as cuda_strassen
from prismm.cuda.residues.forecast import expected_repairs
from prismm.cuda.residues.join import allocate_flags, join_digits
from prismm.cuda.residues.product import multiply_planes
from prismm.cuda.residues.recompute import (
    AGAIN_FIRST,
    AGAIN_LAST,
    COUNTERS,
    COUNTERS_APART,
    freed_bytes,
    held_bytes,
    recompute,
    taken_bytes,
    workspace_bytes,
)
from prismm.cuda.residues.seconds import by_strassen, fp8_is_faster, fp8_seconds, residue_seconds
from prismm.cuda.residues.split import SplitVectors, allocate_statistics, split_vectors
from prismm.cuda.residues.tables import CertificateTest, Tables, tables
from prismm.cuda.symmetric import leaves_tiles_out
from prismm.cuda.views import Result, Vectors
from prismm.errors import ArgumentError, EngineError
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates

_MOST_BATCHES = 32767
"""Matrices that one launch takes: a grid's third extent, times the parts of a complex number, ends at 65535."""

_FP8_GUESS = "predicted as if FP8 products were as fast as INT8 ones: nothing is known of this GPU's"

_REASON = "seven products of quarters instead of eight (Strassen, modulo p): the same bits"


def certificate_test(problem: Problem) -> CertificateTest:
    """What the join asks of an entry."""
    terms = problem.target_terms + (3 if problem.summed else 0)
    return CertificateTest(*join_test(problem.target, terms, problem.result), problem.terms, problem.result.precision)


class Implementation(Composite):
    """`Residues` on a GPU; see `cuda.implementation.Implementation`."""

    joins_sums = True
    serves_symmetric = True
    scheme: Residues

    def check(self, problem: Problem, engine: str | None, device: Device) -> str:
        """INT8 units, or FP8 units where these are asked for, for inner dimensions whose sums they hold."""
        if engine not in (None, "cuda", INT8, FP8):
            raise ArgumentError(
                f"engine={engine!r} multiplies floating-point numbers; {self.scheme} takes {INT8!r} or {FP8!r}"
            )
        if engine == FP8:
            cuda_fp8.family_for(device)
        # Counts of large elements are exact in float32 below 2^24 terms, and a complex element is two.
        if norm_fraction_bits(self.scheme.moduli, problem.terms) < 1 or problem.k >= 1 << 23:
            raise ArgumentError(
                f"{self.scheme} holds too few bits for an inner dimension of {problem.k}; pass more moduli, or "
                f"multiply in blocks of at most {(1 << 23) - 1}"
            )
        return FP8 if engine == FP8 else INT8

    def blocks(self, problem: Problem, engine: str, device: Device, cut: Cut) -> Blocks:
        """As large as memory allows; made by Strassen's products where that is faster in blocks as large."""
        if engine == FP8 and cut != (None, None):
            raise EngineError(
                f"prepared operands hold 8-bit residues, which {FP8!r} does not multiply; pass the operands "
                f"themselves, or engine={INT8!r}"
            )
        test, split = certificate_test(problem), (cut[0] is None, cut[1] is None)
        moduli, parts = self.scheme.moduli, problem.parts

        def workspace(rows: int, columns: int) -> int:
            k = max(1, problem.k)
            found = workspace_bytes(rows, columns, k, moduli, parts, test, split, summed=problem.summed)
            if engine == FP8:
                found += cuda_fp8.workspace_bytes(rows, columns, k, moduli, parts, cuda_fp8.family_for(device))
            return found

        def of_strassen(rows: int, columns: int) -> int:
            return cuda_strassen.workspace_bytes(
                rows, columns, problem.k, moduli, parts, test, device, split, summed=problem.summed
            )

        rows, columns, each = blocks_within(problem, workspace, cut)
        block, rates = replace(problem, m=rows, n=columns, batch=()), rates_of(device.name) or usual_rates()
        strassen = engine == INT8 and device.sm90 and not leaves_tiles_out(problem)
        if strassen and by_strassen(block, self.products(problem), rates):
            # Not at the price of smaller blocks, which ask for more splits.
            *same, more = blocks_within(problem, of_strassen, cut)
            if same == [rows, columns]:
                return Blocks(rows, columns, more, strassen=True, reasons=(_REASON,))
        batches = max(1, min(problem.count, _MOST_BATCHES, cuda_blocks.LARGE // max(1, each)))
        held = held_bytes(
            rows, columns, max(1, problem.k), moduli, parts, batches, test, device, split, summed=problem.summed
        )  # fmt: skip
        reasons = (_FP8_GUESS,) if engine == FP8 and not rates.tuning.fp8 else ()
        return Blocks(rows, columns, each * batches + held, batches, reasons=reasons)

    def products(self, problem: Problem) -> int:
        """One for each modulus; three if complex."""
        return (3 if problem.is_complex else 1) * int(self.scheme.moduli)

    def products_on(self, engine: str, problem: Problem, device: Device) -> int:
        """Of FP8, one or three for each of its own moduli."""
        if engine != FP8:
            return self.products(problem)
        return (3 if problem.is_complex else 1) * fp8_products(int(self.scheme.moduli), cuda_fp8.family_for(device))

    def faster_engine(self, problem: Problem, rates: Rates) -> tuple[str, str] | None:
        """FP8 units, where the table has a rate of them."""
        moduli = int(self.scheme.moduli)
        if not fp8_is_faster(moduli, problem, rates):
            return None
        times = residue_seconds(moduli, problem, rates) / fp8_seconds(moduli, problem, rates)
        return FP8, f"FP8 products, the same bits: predicted {times:.2f} times as fast as INT8 ones on the GPU"

    def gpu_seconds(
        self, problem: Problem, rates: Rates, engine: str | None = None, strassen: bool | None = None
    ) -> float:
        """Of splits, products, join, and the second pass; by the faster unit where no engine is said."""
        if engine == FP8 or (engine in (None, "cuda") and fp8_is_faster(self.scheme.moduli, problem, rates)):
            return fp8_seconds(self.scheme.moduli, problem, rates)
        return residue_seconds(self.scheme.moduli, problem, rates, strassen)

    def expected_repairs(
        self, problem: Problem, a: torch.Tensor, b: torch.Tensor, rates: Rates
    ) -> tuple[float, str] | None:
        """By a sample of the operands; see `forecast`."""
        return expected_repairs(self.scheme.moduli, problem, a, b, certificate_test(problem), rates)

    def launch_config(self, problem: Problem, device: Device) -> CertificateTest:
        """What the join asks of an entry."""
        return certificate_test(problem)

    def counters(self, shape: tuple[int, ...], blocks: Blocks) -> int:
        """Those of each join, aligned: of the entries that it leaves uncertified, and of what is done to them."""
        if blocks.tiny:
            return 0
        steps = blocks.batches, blocks.rows, blocks.columns
        joins = math.prod(-(-size // max(1, step)) for size, step in zip(shape, steps, strict=True))
        return COUNTERS_APART * (joins - 1) + COUNTERS if joins else 0

    def entries_again(self, counters: list[int]) -> int:
        """Those of all joins."""
        return sum(counters[AGAIN_FIRST::COUNTERS_APART]) + sum(counters[AGAIN_LAST::COUNTERS_APART])

    def queue(self, job: Job) -> Statistics | None:
        """In blocks of matrices, rows and columns; batches of tiny matrices in one kernel."""
        if job.blocks.tiny:
            return _queue_tiny(job, self.scheme.moduli)
        program, target = job.program, job.target
        # Beside the operands' splits, or first where both are parts.
        with program.fork() if None in job.prepared else contextlib.nullcontext():
            program.zero(job.counts)
        statistics = []
        step, counters = job.blocks.batches, iter(range(COUNTS, math.prod(job.counts.shape), COUNTERS_APART))
        table = tables(self.scheme.moduli, job.a.device)
        for t in range(0, target.batch, step):
            # Only a report looks at statistics afterwards.
            with contextlib.nullcontext() if job.full_output else program.scope():
                some = job.left.batch_slice(t, step), job.right.batch_slice(t, step), target.batch_slice(t, step)
                addend = job.addend and job.addend.batch_slice(t, step)
                statistics.append(_queue_some(job, table, *some, addend, counters))
        return statistics

    queue_sum = queue

    def bound(
        self, problem: Problem, engine: str, device: Device, a: Any, b: Any, statistics: Any, weight: float
    ) -> ResidueBound:
        """From what the split found of rows and columns."""
        q = norm_fraction_bits(self.scheme.moduli, problem.terms)
        rows, columns = (_scales(x, q) for x in statistics)
        return ResidueBound(problem.result, rows, columns, problem.terms, weight)

    def prepare(
        self, x: torch.Tensor, side: Literal["left", "right"], device: Device, step: int
    ) -> tuple[Program, PreparedParts] | None:
        """Planes of residues."""
        if not x.numel():
            return None
        return split_program(x, side, tables(self.scheme.moduli, x.device), device, step)


def split_program(
    x: torch.Tensor, side: Literal["left", "right"], table: Tables, device: Device, step: int
) -> tuple[Program, PreparedParts]:
    """What splits a matrix at A into workspace, and where its parts are once that is the memory of its side.

    Counts of large elements and residuals are kept as well, whatever the target: a product may ask for them.
    """
    program = Program((x.data_ptr() % 16,) * 3)
    whole = vectors_of(x[None], A, columns=side == "right")
    splits = []
    for start in range(0, whole.vectors, step):
        some = whole.block(start, start + step)
        statistics = allocate_statistics(program, some)
        split = split_vectors(program, some, statistics, table, device, left=side == "left", levels=True, measure=True)
        splits.append(_of_side(split, LEFT if side == "left" else RIGHT))
    return program, PreparedParts(step, tuple(splits))


def _of_side(split: SplitVectors, base: int) -> SplitVectors:
    def there(place: BufferView) -> BufferView:
        return dataclasses.replace(place, base=base)

    return dataclasses.replace(split, planes=there(split.planes), statistics=there(split.statistics))


def _queue_tiny(job: Job, moduli: int) -> Statistics | None:
    """Write down a batch of tiny products; for a report, the vectors' statistics besides, from their split."""
    program, device, test = job.program, job.device, job.config
    if job.full_output:
        program.zero(job.counts)
    table = tables(moduli, job.a.device) if test.mode == MAGNITUDE else None
    multiply_tiny(program, job.target, job.left, job.right, job.counts, test, table, device)
    if not job.full_output or table is None:
        return None
    found = []
    for t in range(0, job.target.batch, job.blocks.batches):
        of_sides = []
        for x, left in ((job.left, True), (job.right, False)):
            some = x.batch_slice(t, job.blocks.batches)
            of_sides.append([allocate_statistics(program, some)])
            with program.scope():
                split_vectors(program, some, of_sides[-1][0], table, device, left=left, levels=True, measure=True)
        found.append((of_sides[0], of_sides[1]))
    return found


def _queue_some(
    job: Job,
    table: Tables,
    left: Vectors,
    right: Vectors,
    target: Result,
    addend: Result | None,
    counters: Iterator[int],
) -> tuple[list[BufferView], list[BufferView]]:
    """Write down the product of some matrices of a batch.

    Args:
        job: the whole product.
        table: of the moduli.
        left, right, target, addend: what of it is made.
        counters: the counter of each join.

    Returns:
        Where the statistics of rows and columns stand, block by block.
    """
    program, device, test = job.program, job.device, job.config
    # Tests of magnitude take bounds from integers alone (`bound_terms`): nobody would read measured residuals.
    fixed = {"levels": test.mode == MAGNITUDE, "measure": job.full_output or test.mode == ROUNDING}
    rows, columns, strassen, fp8 = job.blocks.rows, job.blocks.columns, job.blocks.strassen, job.engine == FP8
    lower = leaves_tiles_out(job.problem) and not fp8
    whole = rows >= target.m and columns >= target.n
    one_matrix = job.one_matrix and lower and whole and device.sm90
    column_blocks = [right.block(j, j + columns) for j in range(0, target.n, columns)]
    row_blocks = [left.block(i, i + rows) for i in range(0, target.m, rows)]
    statistics_of = []
    for blocks, parts in ((row_blocks, job.prepared[0]), (column_blocks, job.prepared[1])):
        statistics_of.append(
            [x.statistics for x in parts.splits] if parts else [allocate_statistics(program, x) for x in blocks]
        )
    of_rows, of_columns = statistics_of
    if one_matrix:
        of_rows = of_columns

    def split(x: Vectors, index: int, *, left: bool) -> SplitVectors:
        parts = job.prepared[0 if left else 1]
        if parts is not None:
            found = parts.splits[index]
        else:
            statistics = (of_rows if left else of_columns)[index]
            split_all = cuda_fp8.split_digits if fp8 else split_vectors
            found = split_all(program, x, statistics, table, device, left=left, **fixed)
        return cuda_strassen.add_strassen_sums(program, found, table, left=left) if strassen else found

    # What is kept need not be split again for each block of the other operand: that one's blocks come first.
    sides = [(column_blocks, False), (row_blocks, True)]
    if job.prepared[1] is not None:
        sides.reverse()
    (outer, outer_left), (inner, inner_left) = sides
    for x, some in enumerate(outer):
        with program.scope():
            joined = False
            with program.fork():
                first = split(some, x, left=outer_left)
            for y, other in enumerate(inner):
                with program.scope():
                    (i, j) = (x, y) if outer_left else (y, x)
                    if lower and (i + 1) * rows <= j * columns:
                        continue
                    on_diagonal = lower and i * rows == j * columns
                    sizes = row_blocks[i].vectors, column_blocks[j].vectors
                    into = target.block(i * rows, rows, j * columns, columns)
                    summed = job.problem.summed
                    flags = None if summed else allocate_flags(program, into, test)
                    flags_of_sum = allocate_sum_flags(program, into) if summed else None
                    state = job.counts.at(next(counters), (1,), (1,))
                    of_block = addend and addend.block(i * rows, rows, j * columns, columns)
                    # What recomputes uncertified entries takes the place of residues and digits.
                    with program.scope():
                        products = None
                        if strassen and cuda_strassen.serves(*sizes, left.terms):
                            products = cuda_strassen.allocate_products(program, *sizes, first.planes.shape[1])
                        # Nobody reads the planes of the inner operand any more once its products are there.
                        with program.scope() if products is not None else contextlib.nullcontext():
                            second = first if one_matrix else split(other, y, left=inner_left)
                            # The outer operand's split, which was forked, is first needed here.
                            if not joined:
                                program.join()
                                joined = True
                            split_a, split_b = (first, second) if outer_left else (second, first)
                            if fp8:
                                digits = cuda_fp8.multiply_digits(program, split_a, split_b, table, device)
                            elif products is None:
                                digits = multiply_planes(program, split_a, split_b, table, device, lower=on_diagonal)
                            else:
                                cuda_strassen.multiply_strassen(program, split_a, split_b, products, table, device)
                        if products is not None:
                            digits = cuda_strassen.add_products(program, products, *sizes, table)
                        operands = row_blocks[i], column_blocks[j], split_a, split_b
                        if flags is None:
                            assert flags_of_sum is not None
                            combine_digits(
                                program, digits, into, of_block, row_blocks[i], split_a, split_b, table, test,
                                flags_of_sum, lower=on_diagonal,
                            )  # fmt: skip
                        else:
                            join_digits(
                                program, digits, into, *operands, table, test, job.counts, state, flags, device,
                                lower=on_diagonal,
                            )  # fmt: skip
                    splits = job.prepared[0] is None and not one_matrix, job.prepared[1] is None
                    shape = *sizes, row_blocks[i].terms, table.moduli, left.parts
                    if flags is None:
                        assert flags_of_sum is not None
                        recompute_sums(
                            program, into, of_block, *operands, table, test, job.counts, state, flags_of_sum,
                            target.batch * freed_bytes(*shape, splits), device,
                        )  # fmt: skip
                    else:
                        taken = taken_bytes(*shape, target.batch, test, splits)
                        recompute(program, into, *operands, table, test, job.counts, state, flags, taken, device)
    return of_rows, of_columns


def _scales(statistics: torch.Tensor, q: int) -> Scales:
    """`Scales` of vectors from the integers that the kernels keep of them, rounded up as
    `cuda.residues.kernels.join_exact` does.
    """
    host = statistics.cpu().numpy()
    largest, norm2, norm1, residual, shift = host[:5]
    finite = largest < 0x7FF0000000000000
    e = np.where(finite, np.frexp(np.where(finite, largest, 0).view(np.float64))[1], NONFINITE).astype(np.int64)
    # frexp gives |x| < 2^e with |x| >= 2^(e-1), as the kernels do; 0 for zero.
    scale = np.ldexp(1.0, np.where(finite, shift - q + e, 0))
    slack = 1.0 + 2.0**-28
    terms = np.stack([
        0.5 * norm1 * scale,
        np.sqrt(residual.astype(np.float64)) * 2.0**-10 * slack,
        np.sqrt(norm2.astype(np.float64)) * scale * slack,
        (residual > 0).astype(np.float64),
    ])  # fmt: skip
    return Scales(shift.copy(), e, terms, np.ascontiguousarray(host[5:].T))
