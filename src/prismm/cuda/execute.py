"""A call on a GPU as it runs: from its plan to a program of launches, and from that to work on a stream.

Nothing waits. The program is written down once for all calls that differ in addresses alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prismm.cuda import workspace
from prismm.cuda.backend import in_place
from prismm.cuda.device import COUNTS
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.gemm.launches import combine_values
from prismm.cuda.implementation import Job, Statistics
from prismm.cuda.launch.arguments import ADDEND, LEFT, WORKSPACE, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.launch.stages import StageTimes
from prismm.cuda.operands import overlap, ranges_overlap, result_of, vectors_of
from prismm.cuda.symmetric import leaves_tiles_out, mirror_triangle
from prismm.cuda.views import Result
from prismm.cuda.workspace import KEPT_BYTES, UNREAD_BYTES, borrow, current_stream, give_back, kept

if TYPE_CHECKING:
    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.backend import GpuCall


@dataclass(frozen=True, eq=False)
class Queued:
    """A call's program, and where in its workspace a report reads.

    Attributes:
        program: the launches.
        counts: entries by how they were certified.
        statistics: of rows and columns, where the implementation keeps them.
        unread: whether nothing reads the workspace, so that all calls may share one.
        products: where AB goes that gemm's sum is made from.
    """

    program: Program
    counts: BufferView
    statistics: Statistics | None
    unread: bool = False
    products: BufferView | None = None


@dataclass
class Execution:
    """What was queued: the product's operands and result, (batch, ·, ·) each, and what a report reads back."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    queued: Queued
    workspace: torch.Tensor
    memories: tuple[torch.Tensor, ...]
    times: StageTimes

    def read(self, place: BufferView) -> torch.Tensor:
        """Some workspace, or memory of a prepared operand, on the device."""
        size = math.prod(place.shape) * place.dtype.itemsize
        memory = self.workspace if place.base == WORKSPACE else self.memories[place.base - LEFT]
        return memory[place.offset : place.offset + size].view(place.dtype).view(place.shape)


def multiply(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, memories: tuple[torch.Tensor, ...],
    full_output: bool, sum_: cuda_gemm.Sum | None = None,
) -> Execution | None:  # fmt: skip
    """Queue a call's launches."""
    import torch

    problem = call.problem
    if result.numel() == 0:
        return None
    # The empty sum is 0, and no kernel has to serve an inner dimension of 0.
    if problem.k == 0 and sum_ is None:
        result.zero_()
        return None
    addend = sum_.broadcast(call.shape, call.dtype) if sum_ else None
    separate = not overlap(result, a, b) and not (addend is not None and cuda_gemm.spoilt(addend, result))
    # Kernels still read operands when they have begun to write: what overlaps them is made elsewhere and copied.
    whole = result if result.is_contiguous() and separate else torch.empty_like(result).contiguous()
    view = whole.view(math.prod(problem.batch), problem.m, problem.n)
    if call.dtype.is_complex:
        # complex128 holds every real operand exactly, whatever the result's type.
        a, b = (x if x.is_complex() else x.to(torch.complex128) for x in (a, b))
    a, b = (_matrices(x.reshape(shape), problem, call.native) for x, shape in ((a, call.left), (b, call.right)))
    if len(a) == len(b) == 1 < len(view):
        # One operand may serve a whole batch, but not both: digits are made for as many products as there are operands.
        b = b.expand(len(view), -1, -1).contiguous()
    addend = addend_of(call, addend)
    addresses = a.data_ptr(), b.data_ptr(), view.data_ptr()
    steps = () if addend is None else addend.stride()
    # A program is compiled for what Triton may take for multiples of 16 bytes.
    key = full_output, addresses[0] % 16, addresses[1] % 16, addresses[2] % 16, *steps
    if problem.symmetric is not None:
        key = *key, _is_one_matrix(a, b)
    queued = call.programs.get(key)
    if queued is None:
        queued = call.programs[key] = _queued(call, a, b, view, full_output, addend)
    memory = workspace.scratch_of(queued, view.device)
    execution = Execution(a, b, view, queued, memory, memories, StageTimes())
    stream = stream_of(call.index)
    bases = [*addresses, memory.data_ptr()]
    if sum_ is not None:
        # ADDEND follows LEFT and RIGHT, which so have to be there, prepared or not.
        parts = [memory.data_ptr() for memory in memories] or [0, 0]
        bases += [*parts, addend.data_ptr() if addend is not None else 0, *sum_.patterns]
    else:
        bases += [memory.data_ptr() for memory in memories]
    if full_output:
        queued.program.run_in_stages(tuple(bases), stream, execution.times.begin)
    else:
        queued.program.run(tuple(bases), stream)
    if whole is not result:
        result.copy_(whole)
    return execution if full_output else None


def queued_with_row(call: GpuCall, a: torch.Tensor, b: torch.Tensor, row: torch.Tensor) -> Queued | None:
    """The program of a call that `multiply_fast` takes, with a row that is added to all rows of the rounded product;
    None where the scheme's kernels add none. a, b: operands at multiples of 16 bytes; row: (n,), without gaps.
    """
    problem = call.problem
    if not call.implementation.adds_rows(problem, call.config, call.chosen.blocks):
        return None
    found = call.programs.get("row")
    if found is None:
        a, b = (_matrices(x.reshape(shape), problem, call.native) for x, shape in ((a, call.left), (b, call.right)))
        out = row.new_empty((math.prod(problem.batch), problem.m, problem.n), device="meta")
        found = call.programs["row"] = _queued(call, a, b, out, False, row.expand(out.shape))
    return found


def addend_of(call: GpuCall, addend: torch.Tensor | None) -> torch.Tensor | None:
    """Gemm's C, in the result's shape, as kernels read it: (batch, m, n); None where there is none."""
    if addend is None:
        return None
    return addend.reshape(math.prod(call.problem.batch), call.problem.m, call.problem.n)


def multiply_fast(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, memories: tuple[torch.Tensor, ...],
    *, owned: bool,
) -> bool:  # fmt: skip
    """Queue a call that was queued before and whose operands and result go to the kernels as they are.

    Args:
        call: what is asked.
        a, b: the operands.
        result: contiguous.
        memories: of prepared parts.
        owned: whether the result is the caller's and might overlap the operands.

    Returns:
        False where this is no such call.
    """
    if call.spans is None or call.problem.symmetric is not None:
        return False
    addresses = a.data_ptr(), b.data_ptr(), result.data_ptr()
    queued = call.programs.get((False, addresses[0] % 16, addresses[1] % 16, addresses[2] % 16))
    if queued is None or (owned and spoils(call, *addresses, result)):
        return False
    run_in_workspace(call, queued, addresses, tuple(memory.data_ptr() for memory in memories))
    return True


def spoils(call: GpuCall, left: int, right: int, place: int, result: torch.Tensor) -> bool:
    """Whether a result there overlaps operands there."""
    assert call.spans is not None
    size = result.nbytes
    return ranges_overlap(place, size, left, call.spans[0]) or ranges_overlap(place, size, right, call.spans[1])


def stream_of(index: int) -> int:
    """The current stream of a device."""
    return current_stream()(index)


def run_in_workspace(call: GpuCall, queued: Queued, addresses: tuple[int, ...], parts: tuple[int, ...] = ()) -> None:
    """Queue a program whose workspace nobody reads afterwards; parts: addresses of prepared parts."""
    stream, program = stream_of(call.index), queued.program
    if queued.unread:
        program.run((*addresses, call.unread, *parts), stream)
        return
    # All calls on a stream share this memory. A program that is a single launch may use it: no other call's kernels can
    # run between its own.
    if program.workspace <= KEPT_BYTES:
        memory = kept(call.index, stream)
        if memory and program.launch_at_once((*addresses, memory, *parts), stream):
            return
    memory = borrow(program.workspace, stream)
    try:
        program.run((*addresses, memory, *parts), stream)
    finally:
        # torch's allocator reuses memory in the stream's order, so launches need not have run yet.
        give_back(memory)


def _matrices(x: torch.Tensor, problem: Problem, native: bool) -> torch.Tensor:
    """The operand as (batch, ·, ·), (1, ·, ·) where one serves all, to be read where it is."""
    if problem.batch:
        x = x.expand(*problem.batch, *x.shape[-2:]).flatten(0, -3)
        # A matrix that serves the whole batch is split once.
        x = x[:1] if x.stride(0) == 0 else x
    else:
        x = x[None]
    return x if in_place(x, native) else x.contiguous()


def _is_one_matrix(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the columns of b, real, are the rows of a, in the same memory; both (batch, ·, ·)."""
    if a.is_complex() or a.data_ptr() != b.data_ptr() or a.shape != b.mT.shape:
        return False
    # From one matrix to the next there is a step only where there are several.
    first = 0 if len(a) > 1 else 1
    return a.stride()[first:] == b.mT.stride()[first:]


def _queued(
    call: GpuCall, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, full_output: bool,
    addend: torch.Tensor | None = None,
) -> Queued:  # fmt: skip
    """The program of a call, in blocks of rows and columns where memory is bounded.

    Args:
        call: what is asked.
        a, b: the operands, (batch, ·, ·).
        out: the result.
        full_output: whether a report reads counts and statistics.
        addend: gemm's C, in the shape of out.
    """
    import torch

    problem, chosen, implementation = call.problem, call.chosen, call.implementation
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.allocate(torch.int64, COUNTS + implementation.counters(tuple(out.shape), chosen.blocks))
    job = Job(
        program, a, b, vectors_of(a, A, columns=False), vectors_of(b, B, columns=True), result_of(out),
        result_of(addend, ADDEND) if addend is not None else None, counts, call.config, chosen.blocks, problem,
        call.device, chosen.engine, call.prepared, full_output,
        problem.symmetric is not None and _is_one_matrix(a, b),
    )  # fmt: skip
    queued = _queued_job(call, job)
    if problem.symmetric is not None:
        mirror_triangle(program, job.target, problem)
    return queued


def _queued_job(call: GpuCall, job: Job) -> Queued:
    """The program of a call whose launches are not written down yet."""
    problem, implementation, program, counts = job.problem, call.implementation, job.program, job.counts
    if not problem.summed:
        statistics = implementation.queue(job)
        shared = (call.one_kernel or job.blocks.tiny) and not job.full_output and program.workspace <= UNREAD_BYTES
        return Queued(program, counts, statistics, unread=shared)
    if problem.reads_operands and implementation.joins_sums:
        return Queued(program, counts, implementation.queue_sum(job))
    return Queued(program, counts, None, products=_queue_sum_of_values(call, job))


def _queue_sum_of_values(call: GpuCall, job: Job) -> BufferView | None:
    """Write down alpha·AB + beta·C from a product that meets the target, or from none; returns where AB goes."""
    program, target, problem = job.program, job.target, job.problem
    program.zero(job.counts)
    products = None
    if problem.reads_operands:
        # Outside the scope: the sum reads it when the product's workspace is free again.
        products = program.allocate(target.buffer.dtype, *target.extents)
        into = Result(products, *target.extents, (target.m * target.n, target.n, 1))
        with program.scope():
            call.implementation.queue_product(replace(job, target=into))
    combine_values(
        program, products, target, job.addend, job.left, job.right, problem.terms, problem.result.precision, job.counts,
        job.device, lower=leaves_tiles_out(problem),
    )  # fmt: skip
    return products
