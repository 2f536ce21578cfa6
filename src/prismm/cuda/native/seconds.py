"""Seconds that native products are predicted to take: by cuBLAS, and in one kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from prismm.cuda.costs.table import waves
from prismm.cuda.native import tiles as kernel_tiles
from prismm.cuda.native.cublas import PROOF_TERMS

if TYPE_CHECKING:
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.costs.tuning import Tuning
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
    """Workspace of a native product in one kernel, where its inner dimension is cut."""
    shape = shape_of(problem)
    if not shape.served:
        return 0
    return kernel_tiles.workspace_bytes(shape, device.programs, device.shared, sm90=device.sm90)


def kernel_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of that kernel."""
    return kernel_tiles.seconds_of(
        shape_of(problem), rates.processors, rates.fp64_kernel, rates.memory, sm90=rates.sm90
    )


def shape_of(problem: Problem) -> kernel_tiles.Shape:
    """Of what one kernel multiplies."""
    return kernel_tiles.Shape(
        problem.m, problem.n, problem.k, math.prod(problem.batch), problem.number_bytes, problem.strided_vector
    )


class _Tiles(NamedTuple):
    """Tiles in which cuBLAS multiplies.

    rows, columns: of a tile. rate: share of cuBLAS's rate that they reach where they keep all processors busy. more:
    seconds that they cost besides.
    """

    rows: int
    columns: int
    rate: float = 1.0
    more: float = 0.0

    def share(self, m: int, n: int, count: int, processors: int) -> float:
        """Share of the GPU's rate that they reach in so many products."""
        return self.rate * waves(-(-m // self.rows) * -(-n // self.columns) * count, processors)


def native_tiles(problem: Problem, tuning: Tuning) -> tuple[_Tiles, ...]:
    """Tiles of which cuBLAS takes the fastest, as its times tell."""
    fine = _Tiles(64, 64, tuning.native_fine)
    if problem.result.precision != 53 or problem.is_complex:
        return _Tiles(128, 128), fine
    reached = 1.0
    if min(problem.m, problem.n) <= tuning.native_tile:
        reached = max(1, problem.k) / (problem.k + tuning.native_ends)
    found = _Tiles(128, 128), _Tiles(128, 64), fine, _Tiles(32, 64, 1.0, tuning.native_narrow_seconds)
    return tuple(tiles._replace(rate=reached * tiles.rate) for tiles in found)


def native_share(problem: Problem, processors: int, tuning: Tuning) -> float:
    """Share of a GPU that its own products keep busy."""
    return max(tiles.share(problem.m, problem.n, problem.count, processors) for tiles in native_tiles(problem, tuning))


def cublas_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds that the GPU is expected to work on cuBLAS's product.

    Its tiles are full; where they are few, the inner dimension is cut so that they fill the GPU, at the price of
    another pass over the result.
    """
    tuning, count = rates.tuning, problem.count
    tile = tuning.native_tile
    # A vector is no tile, so a single row or column is not rounded up to one.
    m, n = (-(-x // tile) * tile if x > 1 else x for x in (problem.m, problem.n))
    multiplications = 4 if problem.is_complex else 1
    full = 2.0 * count * m * n * max(1, problem.k) * multiplications / rates.native(problem.result.precision)
    matrices = min(problem.m, problem.n, problem.k) > 1
    # Rows of an odd number of float64 elements do not all begin at multiples of 16 bytes.
    if problem.result.precision == 53 and not problem.is_complex and matrices and (problem.n % 2 or problem.k % 2):
        full *= tuning.native_odd
    once = min(
        full / tiles.share(problem.m, problem.n, count, rates.processors) + tiles.more
        for tiles in native_tiles(problem, tuning)
    )
    if problem.k >= tuning.native_cut_from:
        once = min(once, full / _cut_share(problem, tuning) + tuning.native_cut_seconds)
    less, more = sorted((max(once, problem.operand_bytes / rates.memory), problem.result_bytes / rates.memory))
    return rates.launch + more + _seen(problem, tuning) * less


def _seen(problem: Problem, tuning: Tuning) -> float:
    """Share of writing the result, or of multiplying, that is not hidden behind the other one."""
    return tuning.native_seen_float64 if problem.result.precision == 53 else tuning.native_seen_float32


def _cut_share(problem: Problem, tuning: Tuning) -> float:
    """Share of its rate that cuBLAS reaches where the inner dimension is cut."""
    return tuning.native_small if max(problem.m, problem.n) <= tuning.native_tile else tuning.native_fine


def written_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds that writing the result adds to those of a product that takes longer."""
    return _seen(problem, rates.tuning) * problem.result_bytes / rates.memory


def uninterrupted(problem: Problem, seconds: float, processors: int, tuning: Tuning) -> float:
    """Seconds that a product would take if all processors were busy all the time: `cublas_seconds` backwards.

    seconds: what it takes besides its launch.
    """
    found = [
        tiles.share(problem.m, problem.n, problem.count, processors) * (seconds - tiles.more)
        for tiles in native_tiles(problem, tuning)
    ]
    cut = _cut_share(problem, tuning) * (seconds - tuning.native_cut_seconds)
    return max(*found, cut if problem.k >= tuning.native_cut_from else 0.0)


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
    return rates.one_pass_seconds(problem.result_bytes)
