"""Products of slices on a GPU: what `Slices` launches there.

Five to seven launches, none of which waits: slices of rows, of columns (with two passes before them where the columns
lie across contiguous elements), products, join and certificate, repair. Real float64 and float32 results.

Slices are of eight bits on INT8 units, with digits balanced in [-128, 127] on a grid: `kernels.gpu.slice_split`. What
is kept of them, and so the value, is that of a CPU (`schemes.slices`): all pairs, or those with p + q <= d + 1. "CR"
takes a fixed number here, and the pairs that matter to a certificate: its entries are correctly rounded because each is
certified or summed exactly, not because nothing is left over.

A CPU and a GPU bound the value by sums of digits each in its own way. That shows in which entries a target has repaired
and, without one, in those whose bound leaves open whether they overflow: these are set to the exact value, rounded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.accuracy import MAGNITUDE, ROUNDING
from prismm.engines.cuda import STATISTICS, Result, Test, Vectors, measure_columns
from prismm.errors import EngineError

if TYPE_CHECKING:
    import torch

    from prismm.engines.cuda import Device
    from prismm.engines.launch import Place, Program

MOST_SLICES = 8
"""More would give values of more bits than the join adds."""

_ROW_BLOCK = 1024, 4
_COLUMN_TILE = 128, 32, 4
"""Elements, or rows and columns, of a tile that is split, and the warps that work on it."""
_FRACTION_BITS = 20
_SHORTEST = 256
"""The inner dimension is not cut into shorter blocks to fill the GPU."""


@dataclass(frozen=True)
class Problem:
    """How out = a @ b is multiplied: d slices, pairs with p + q < groups (0 first), and the test of entries."""

    slices: int
    groups: int
    test: Test

    @property
    def pairs(self) -> int:
        """Products of slices."""
        return sum(min(s, self.slices - 1) - max(0, s - self.slices + 1) + 1 for s in range(self.groups))


@dataclass(frozen=True)
class Cut:
    """How the inner dimension is cut: so many blocks, padded to this width."""

    blocks: int
    width: int


def cut_for(slices: int, tiles: int, k: int, programs: int) -> Cut:
    """Blocks that the accumulators hold; more where the tiles of all matrices leave programs idle.

    >>> cut_for(7, 2048, 8192, 132), cut_for(7, 32, 1024, 132), cut_for(7, 2048, 20000, 132)
    (Cut(blocks=1, width=8192), Cut(blocks=4, width=256), Cut(blocks=2, width=10112))
    """
    from prismm.kernels.gpu.slice_product import PADDED, widest

    blocks = max(-(-k // widest(slices)), min(programs // max(1, tiles), k // _SHORTEST), 1)
    width = _ceil(-(-k // blocks), PADDED)
    return Cut(-(-k // width), width)


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def workspace(problem: Problem, rows: int, columns: int, k: int) -> int:
    """Bytes of scratch for a product of so many rows and columns, about."""
    cut = cut_for(problem.slices, 1 << 30, k, 1)
    digits = problem.slices * cut.blocks * cut.width * (_ceil(rows, 64) + _ceil(columns, 64))
    entries = rows * _ceil(columns, 64)
    return digits + cut.blocks * entries * (problem.groups + 3) + entries // 8


def _on_hopper(problem: Problem, device: Device) -> bool:
    """Whether the kernel for sm_90 multiplies; Triton compiles none for a single group."""
    return device.hopper and problem.groups > 1


@dataclass(frozen=True)
class SlicedVectors:
    """Vectors in slices: digits (batch, rows, pitch), statistics (batch, 10, vectors), extras (batch, 3, vectors)."""

    digits: Place
    statistics: Place
    extras: Place
    batch: int
    vectors: int

    @property
    def plane(self) -> int:
        """Bytes of a matrix."""
        return self.digits.shape[1] * self.digits.shape[2]


def slice_vectors(
    program: Program, x: Vectors, problem: Problem, cut: Cut, device: Device, *, left: bool
) -> SlicedVectors:
    """Slice vectors of any strides."""
    import torch

    from prismm.kernels.gpu import slice_split

    k, mode = x.terms, problem.test.mode
    across = x.steps[1] == 1 and x.steps[2] != 1
    # Neighbours in memory, so that one call sets them to zero.
    statistics = program.take(torch.int64, x.batch, STATISTICS, x.vectors)
    extras = program.take(torch.int64, x.batch, slice_split.EXTRAS.value, x.vectors)
    pitch = cut.blocks * problem.slices * cut.width
    digits = program.take(torch.int8, x.batch, _ceil(x.vectors, 64), pitch)
    found = SlicedVectors(digits, statistics, extras, x.batch, x.vectors)
    if x.batch * x.vectors == 0:
        return found
    fixed: dict[str, Any] = {
        "SLICES": problem.slices, "MEASURE": mode == ROUNDING, "NVIDIA": device.nvidia,
        "PERMUTED": _on_hopper(problem, device) and not left, "REVERSED": not left, "enable_fp_fusion": False,
    }  # fmt: skip
    place = statistics, extras, digits, x.vectors, k, cut.width, pitch, found.plane
    if not across:
        if x.steps[2] != 1 and k > 1:
            raise EngineError("operands of these strides have to be copied first")
        block, warps = _ROW_BLOCK
        program.launch(
            slice_split.slice_rows, (x.vectors, x.batch), x.place, x.steps[1], x.steps[0], *place, _FRACTION_BITS,
            BLOCK=block, LEVELS=mode == MAGNITUDE, num_warps=warps,
            EVEN=x.even(1), **fixed,
        )  # fmt: skip
        return found
    program.zero(statistics)
    program.zero(extras)
    measure_columns(program, x, statistics, _FRACTION_BITS, device, levels=mode == MAGNITUDE, exact=True)
    rows, columns, warps = _COLUMN_TILE
    program.launch(
        slice_split.slice_columns, (-(-x.vectors // columns), cut.blocks * cut.width // rows, x.batch), x.place,
        x.steps[2], x.steps[0], *place, ROWS=rows, BLOCK=columns, EVEN=x.even(2) and k % 16 == 0, num_warps=warps,
        **fixed,
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class Sums:
    """The exact sums of all entries: low (batch·blocks, groups - 1, m, n rounded up to 64) bytes, top the 32 bits above
    them.
    """

    low: Place
    top: Place
    blocks: int

    @property
    def row_pitch(self) -> int:
        """Entries of a row."""
        return self.top.shape[2]

    @property
    def plane(self) -> int:
        """Entries of a plane."""
        return self.top.shape[1] * self.top.shape[2]


def multiply_slices(
    program: Program, left: SlicedVectors, right: SlicedVectors, problem: Problem, cut: Cut, device: Device
) -> Sums:
    """The products of all pairs, grouped."""
    import torch

    batch, m, n = max(left.batch, right.batch), left.vectors, right.vectors
    units, pitch = batch * cut.blocks, left.digits.shape[2]
    low = program.take(torch.uint8, units, problem.groups - 1, m, _ceil(n, 64))
    top = program.take(torch.int32, units, m, _ceil(n, 64))
    sums = Sums(low, top, cut.blocks)
    # From one matrix of a batch to the next: none where one operand serves all.
    left_step, right_step = (int(x.batch == batch) for x in (left, right))
    fixed = {"SLICES": problem.slices, "GROUPS": problem.groups}
    if not _on_hopper(problem, device):
        from prismm.kernels.gpu import slice_product as product

        rows, columns = product.ROWS, product.COLUMNS
        program.launch(
            product.slice_product, (-(-m // rows) * -(-n // columns), units), left.digits, right.digits, low, top, m,
            n, cut.width, pitch, left.plane, right.plane, left_step, right_step, sums.row_pitch, sums.plane,
            cut.blocks, ROWS=rows, COLUMNS=columns, DEPTH=product.DEPTH, GROUP=product.GROUP, **fixed,
            **product.LAUNCH,
        )  # fmt: skip
        return sums
    from triton.experimental.gluon import language as gl

    from prismm.kernels.gpu import product_hopper as shape
    from prismm.kernels.gpu import slice_product_hopper as hopper

    described = []
    for x, rows in ((left, 64), (right, shape.COLUMNS)):
        layout = gl.NVMMASharedLayout.get_default_for([rows, shape.DEPTH], gl.int8)
        described.append(program.tiled(x.digits, (x.batch * x.digits.shape[1], pitch), (rows, shape.DEPTH), layout))
    tiles = -(-m // shape.ROWS) * -(-n // shape.COLUMNS) * units
    program.launch(
        hopper.slice_product, (min(device.programs, tiles),), *described, low, top, m, n, left.digits.shape[1],
        right.digits.shape[1], cut.width, sums.row_pitch, sums.plane, left_step, right_step, cut.blocks, units,
        CONSUMERS=shape.CONSUMERS, COLUMNS=shape.COLUMNS, DEPTH=shape.DEPTH, STAGES=shape.STAGES, GROUP=shape.GROUP,
        **fixed, **shape.LAUNCH,
    )  # fmt: skip
    return sums


@functools.lru_cache(maxsize=1024)
def constants_of(test: Test, device: torch.device) -> torch.Tensor:
    """The kappas of a test, copied once."""
    import torch

    return torch.tensor([test.kappa, test.magnitude_kappa], dtype=torch.float64).to(device)


def join_sums(
    program: Program, sums: Sums, out: Result, a: Vectors, b: Vectors, left: SlicedVectors, right: SlicedVectors,
    problem: Problem, constants: torch.Tensor, counts: Place, device: Device,
) -> None:  # fmt: skip
    """Join into out, certify, and repair: two launches. counts (4,) int64 grow by special, exact, magnitude and kept
    entries.
    """
    import torch

    from prismm.kernels.gpu import slice_join, slice_repair

    test, mark_pitch = problem.test, -(-out.n // 32)
    marks = program.take(torch.int32, out.batch, out.m, mark_pitch)
    blocks, strips = -(-out.n // slice_join.BLOCK), -(-out.m // slice_join.STRIP)
    steps = out.steps
    even = steps[1] % 16 == 0 and steps[0] % 16 == 0 and out.n % 16 == 0
    vectors = left.statistics, left.extras, right.statistics, right.extras, constants
    fixed = {"SLICES": problem.slices, "GROUPS": problem.groups, "MODE": test.mode, "PRECISION": test.precision}
    program.launch(
        slice_join.join_slices, (blocks, strips, out.batch), sums.low, sums.top, out.place, steps[1], steps[2],
        steps[0], marks, *vectors, out.m, out.n, test.terms, sums.row_pitch, sums.plane, sums.blocks, mark_pitch,
        left.batch, right.batch, TESTED=test.mode == MAGNITUDE and test.magnitude_kappa > 0.0,
        ROWS=slice_join.ROWS, STRIP=slice_join.STRIP, BLOCK=slice_join.BLOCK, EVEN=even, **fixed, **slice_join.LAUNCH,
    )  # fmt: skip
    span = slice_repair.SIDE.value, slice_repair.SPAN.value
    pieces = -(-out.m // span[0]) * -(-mark_pitch // span[1]) * out.batch
    a_batch, b_batch = (x.steps[0] if x.batch > 1 else 0 for x in (a, b))
    program.launch(
        slice_repair.repair_slices, (min(32 * device.programs, pieces),), a.place, a_batch, *a.steps[1:], b.place,
        b_batch, *b.steps[1:], out.place, *steps, marks, sums.low, sums.top, *vectors, counts, out.m, out.n, a.terms,
        sums.row_pitch, sums.plane, sums.blocks, mark_pitch, out.batch, left.batch, right.batch,
        BLOCK=slice_repair.LANES, **fixed, **slice_repair.LAUNCH,
    )  # fmt: skip
