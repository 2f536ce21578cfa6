"""Reports of calls on a GPU: counts and statistics, read back, and the bound of each entry."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from prismm.core.bounds import RoundedBound
from prismm.core.outcome import Outcome
from prismm.core.plan import Decision
from prismm.core.report import Piece, Report
from prismm.cuda.gemm import sum as cuda_gemm

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.cuda.backend import GpuCall
    from prismm.cuda.execute import Execution


class OnDevice:
    """A matrix on a GPU whose selected entries come to the CPU when a report asks for them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.shape = tuple(tensor.shape)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        found: NDArray[Any] = self.tensor[index].cpu().numpy()
        return found


def report_of(
    call: GpuCall,
    execution: Execution | None,
    is_matrix: tuple[bool, bool],
    start: float,
    sum_: cuda_gemm.Sum | None = None,
) -> Report:
    """The report of a call that was queued; waits for it.

    Args:
        call: what was asked.
        made: what was queued; None where nothing had to be.
        is_matrix: whether the left and the right operand have rows and columns, or are vectors.
        start: when the call began.
        sum_: gemm's.
    """
    total = Outcome(products=call.plan.products)
    pieces = []
    target, implementation = call.request.target, call.implementation
    if execution is not None:
        special, exact, third, _, *counters = execution.read(execution.queued.counts).tolist()
        again = implementation.entries_again(counters)
        outcome = Outcome()
        outcome.count("special", special)
        outcome.count("exact", exact - again)
        if again:
            outcome.count("more moduli", again)
        outcome.count(implementation.third_path, third)
        path = "value" if target is None or target.kind == "fast" else "certified"
        path = "a priori" if implementation.a_priori else path
        outcome.count(path, execution.out.numel() * (1 + execution.out.is_complex()) - special - exact - third)
        for stage, seconds in execution.times.seconds().items():
            outcome.time(stage, seconds)
        outcome.split_left, outcome.split_right = execution.queued.program.splits
        total.merge(outcome)
        for index in range(execution.out.shape[0]):
            of_piece = Outcome()
            of_piece.bound = _bound(call, execution, index, sum_)
            pieces.append(Piece(OnDevice(execution.out[index]), of_piece))  # type: ignore[arg-type]
    total.time("total", time.perf_counter() - start)
    rows_kept, columns_kept = is_matrix
    return Report(
        decision=Decision.of(call.plan), outcome=total, shape=call.shape, pieces=pieces, rows_kept=rows_kept,
        columns_kept=columns_kept, repeated=math.prod(call.shape[:-2]),
    )  # fmt: skip


def _bound(call: GpuCall, execution: Execution, index: int, sum_: cuda_gemm.Sum | None = None) -> Any:
    """Of one matrix of a batch."""
    problem, target = call.problem, call.request.target
    if target is not None and target.kind == "correctly-rounded":
        return RoundedBound(problem.result)
    # An operand of one matrix serves the whole batch.
    left, right = (OnDevice(x[index % x.shape[0]]) for x in (execution.a, execution.b))
    weight = sum_.weight(call.dtype.is_complex) if sum_ is not None else 1.0
    statistics = _statistics(call, execution, index)
    product_bound = call.implementation.bound(problem, call.chosen.engine, call.device, left, right, statistics, weight)
    # With statistics the bound is the sum's already, alpha included.
    if sum_ is None or statistics is not None:
        return product_bound
    c = sum_.broadcast(call.shape, call.dtype)
    third = None if c is None else OnDevice(c.reshape(execution.out.shape)[index])
    terms = problem.terms if problem.reads_operands else 0
    return cuda_gemm.bound(sum_, problem.result, left, right, third, terms, product_bound)


def _statistics(call: GpuCall, execution: Execution, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Of the rows and columns of one matrix of a batch, where the implementation keeps them."""
    import torch

    if execution.queued.statistics is None:
        return None
    # Statistics stand turn by turn, for as many matrices as are multiplied at once.
    turn, index = divmod(index, call.chosen.blocks.batches)
    rows, columns = (
        torch.cat([execution.read(place)[index % place.shape[0]] for place in places], 1)
        for places in execution.queued.statistics[turn]
    )
    return rows, columns
