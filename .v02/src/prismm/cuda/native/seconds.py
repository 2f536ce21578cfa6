"""Seconds that native products are predicted to take: by cuBLAS, and in one kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.cuda.native import tiles as kernel_tiles
from prismm.cuda.native.cublas import PROOF_TERMS

if TYPE_CHECKING:
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.device import Device


def serves_directly(problem: Problem, device: Device) -> bool:
    """Whether a native product may be one kernel on float64's matrix instructions."""
    return (
        device.nvidia
        and problem.one_type
        and problem.reads_operands
        and not problem.is_complex
        and shape_of(problem).served
    )


def parts_bytes(problem: Problem, device: Device) -> int:
    """Workspace of a native product in one kernel, where its inner dimension is cut; complex ones are never cut."""
    shape = shape_of(problem)
    if problem.is_complex or not shape.served:
        return 0
    return kernel_tiles.workspace_bytes(shape, device.programs, device.shared, sm90=device.sm90)


def kernel_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of that kernel."""
    seconds = kernel_tiles.seconds_of(
        shape_of(problem), rates.processors, rates.fp64_kernel, rates.memory, sm90=rates.sm90
    )
    return rates.tuning.kernel_start + seconds


def kernel_error(problem: Problem, rates: Rates) -> float:
    """How far `kernel_seconds` may be too low, as `cuda.costs.cublas.Errors` has it."""
    shape = shape_of(problem)
    if kernel_tiles.has_vector_kernel(shape):
        return rates.errors.kernel
    tile = kernel_tiles.fastest(shape, rates.processors, sm90=rates.sm90)
    return rates.errors.scattered if shape.single_copies(tile) else rates.errors.kernel


def shape_of(problem: Problem) -> kernel_tiles.Shape:
    """Of what one kernel multiplies."""
    return kernel_tiles.Shape(
        problem.m, problem.n, problem.k, math.prod(problem.batch), problem.number_bytes, problem.strided_vector
    )


def cublas_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds that the GPU is expected to work on cuBLAS's product.

    Tiles are multiplied in waves; where they are few, the inner dimension is cut so that they fill the GPU, at the
    price of another pass over the result. cuBLAS is taken to find the fastest tiles and cuts.
    """
    times = rates.cublas.of(problem)
    multiplied = max(multiplying_seconds(problem, rates), problem.operand_bytes / rates.memory)
    written = problem.result_bytes / rates.memory * times.writing(problem.number_bytes, problem.n)
    less, more = sorted((multiplied, written))
    return rates.launch + more + times.unhidden * less


def multiplying_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of cuBLAS's product without its launch and its way to memory."""
    times, count, m, n, k = rates.cublas.of(problem), problem.count, problem.m, problem.n, max(1, problem.k)
    rate = rates.native(problem.result.precision) * times.share
    # Two operations a term, and eight of complex numbers.
    operations = 8.0 if problem.is_complex else 2.0
    if min(m, n, k) == 1:
        # A vector is no tile, and what it multiplies is read once.
        return operations * count * m * n * k / (_VECTOR_SHARE * rate)
    factor = times.alignment(problem.number_bytes, n, k)
    best = math.inf
    for rows, columns, share in times.tiles():
        tiles = count * -(-m // rows) * -(-n // columns)
        term = operations * rows * columns * rates.processors * factor / (rate * share)
        for parts in _PARTS:
            if parts > 1 and (tiles >= 2 * rates.processors or k < parts * _LEAST_PART):
                break
            length = -(-k // parts)
            seconds = -(-tiles * parts // rates.processors) * term * (length + times.ends)
            if parts > 1:
                seconds += times.cut_seconds + times.cut_passes * parts * problem.result_bytes / rates.memory
            best = min(best, seconds)
    return best


_VECTOR_SHARE = 0.9
"""Share of its rate that cuBLAS reaches where an operand is a vector, if memory were no limit."""

_PARTS, _LEAST_PART = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 64
"""Parts into which the inner dimension is taken to be cut, and terms that each has at least."""


_RECENT = 24 << 20
"""Bytes of a result that are read from the cache after they have been written, twice as fast as from memory."""

_PROVED = 1 << 21
"""Real numbers of a result from which on its operands may be read in its place."""


def is_proved(problem: Problem) -> bool:
    """Whether a native product's operands, which are smaller, are looked at instead of its result: before the product,
    in a graph beside it.
    """
    numbers = problem.parts * math.prod(problem.batch) * problem.m * problem.n
    few = 2 * problem.operand_bytes <= problem.result_bytes and problem.parts * problem.k <= PROOF_TERMS
    # gemm's sum looks at all entries itself.
    return few and numbers >= _PROVED and not problem.summed


def checked_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of the check of a native product's entries that are not finite, or at operands beside it."""
    if is_proved(problem):
        return rates.check + rates.one_pass_seconds(problem.operand_bytes)
    return rates.one_pass_seconds(bytes_to_check(problem))


def bytes_to_check(problem: Problem) -> int:
    """Bytes of a result, as if they came from memory: what has been written last is still in the cache."""
    size = problem.result_bytes
    return size // 2 if size <= _RECENT else size
