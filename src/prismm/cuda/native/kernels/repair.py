"""Entries of a tile that a program stored as NaN because they are uncertified: as `finish` repairs suspicious ones, in
Gluon, for kernels that check their own tiles.

Few of a part of the tile are recomputed one by one. Many float64 entries are multiplied again from scaled operands, and
what those sums leave uncertified is recomputed. Shared memory holds tiles that the kernel copied ahead, so threads load
the operands of the matrix instructions from global memory.

Float32 entries have been summed in float64 from operands as they are: those sums decide.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from prismm.cuda.kernels.exact import LIMBS_OF_SUMS
from prismm.cuda.kernels.fp64 import bits_of, float_of, magnitude_word, wide
from prismm.cuda.kernels.overflow import TOP
from prismm.cuda.native.kernels.finish import (
    NEAR,
    SCALED_TOP,
    SLACK,
    UP,
    count_special,
    recompute_native,
    scaled_down,
)

_DEPTH = gl.constexpr(16)
"""Inner dimension of an instruction."""
_DOUBLE, _SINGLE = gl.constexpr(0x7FF8000000000001), gl.constexpr(0x7FC00001)
"""Patterns of NaN that is the result, not a flag."""


@gluon.jit
def repair_double(
    a, a_row, a_step, b, b_column, b_step, out, counts, i0, j0, m, n, k, few, ROWS: gl.constexpr,
    COLUMNS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Repair the float64 entries of a tile of out, contiguous, that so many warps stored as NaN. a, b, counts: as for
    `finish.recompute_native`. few: entries of a part that are recomputed one by one.
    """
    HEIGHT: gl.constexpr = min(ROWS, 16 * WARPS)
    WIDTH: gl.constexpr = min(COLUMNS, 16)
    PLACED: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [WARPS, 1], [1, 0])
    lanes = gl.arange(0, 32 * WARPS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    index = gl.arange(0, LIMBS_OF_SUMS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    within_row = gl.arange(0, HEIGHT, gl.SliceLayout(1, PLACED))
    within_column = gl.arange(0, WIDTH, gl.SliceLayout(0, PLACED))
    number = within_row[:, None] * WIDTH + within_column[None, :]
    gl.thread_barrier()  # other threads stored the entries that this one loads
    for part in range((ROWS // HEIGHT) * (COLUMNS // WIDTH)):
        top, side = i0 + part // (COLUMNS // WIDTH) * HEIGHT, j0 + part % (COLUMNS // WIDTH) * WIDTH
        flagged = _is_flagged(out, top + within_row, side + within_column, m, n)
        if gl.sum(flagged.to(gl.int32).reshape([HEIGHT * WIDTH]), 0) > few:
            _multiply_again(
                a, a_row, a_step, b, b_column, b_step, out, counts, top, side, m, n, k, HEIGHT, WIDTH, WARPS
            )  # fmt: skip
            gl.thread_barrier()
        flagged = _is_flagged(out, top + within_row, side + within_column, m, n)
        at = gl.min(gl.where(flagged, number, HEIGHT * WIDTH).reshape([HEIGHT * WIDTH]), 0)
        while at < HEIGHT * WIDTH:
            at_row, at_column = wide(top + at // WIDTH), wide(side + at % WIDTH)
            recompute_native(
                a + at_row * a_row, a_step, b + at_column * b_column, b_step, out + at_row * n + at_column, counts, k,
                0, lanes, index, 53, 1,
            )  # fmt: skip
            at = gl.min(gl.where(flagged & (number > at), number, HEIGHT * WIDTH).reshape([HEIGHT * WIDTH]), 0)


@gluon.jit
def repair_single(
    a, a_row, a_step, b, b_column, b_step, out, counts, sums, error, row, column, i0, j0, m, n, k, ROWS: gl.constexpr,
    COLUMNS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Repair the float32 entries of a tile of out, of these rows and columns, that were stored as NaN, by float64 sums,
    which err by so much at most. Other arguments: as for `repair_double`.
    """
    inside = (row < m)[:, None] & (column < n)[None, :]
    special = sums - sums != 0.0
    repaired = special | (gl.abs(sums) - error > TOP)
    value = sums.to(gl.float32)
    pattern = value.to(gl.int32, bitcast=True) * 0 + _SINGLE
    value = gl.where(value != value, pattern.to(gl.float32, bitcast=True), value)
    gl.store(out + row.to(gl.int64)[:, None] * n + column[None, :], value, mask=repaired & inside)
    count_special(counts, gl.sum((special & inside).to(gl.int32).reshape([ROWS * COLUMNS]), 0))
    left = ~repaired & ~(gl.abs(sums) + error < TOP) & inside
    if gl.max(left.to(gl.int32).reshape([ROWS * COLUMNS]), 0) > 0:
        lanes = gl.arange(0, 32 * WARPS, gl.BlockedLayout([1], [32], [WARPS], [0]))
        index = gl.arange(0, LIMBS_OF_SUMS, gl.BlockedLayout([1], [32], [WARPS], [0]))
        gl.thread_barrier()  # other threads stored the entries that this one loads
        for position in range(ROWS * COLUMNS):
            at_row, at_column = i0 + position // COLUMNS, j0 + position % COLUMNS
            if (at_row < m) & (at_column < n):
                at = out + wide(at_row) * n + at_column
                one = gl.load(at)
                if (one != one) & (one.to(gl.int32, bitcast=True) != _SINGLE):
                    recompute_native(
                        a + wide(at_row) * a_row, a_step, b + wide(at_column) * b_column, b_step, at, counts, k, 0,
                        lanes, index, 24, 1,
                    )  # fmt: skip


@gluon.jit
def _is_flagged(out, row, column, m, n):
    """Which float64 entries are flagged."""
    inside = (row < m)[:, None] & (column < n)[None, :]
    value = gl.load(out + row.to(gl.int64)[:, None] * n + column[None, :], mask=inside, other=0.0)
    return (value != value) & (bits_of(value) != _DOUBLE)


@gluon.jit
def _multiply_again(
    a, a_row, a_step, b, b_column, b_step, out, counts, i0, j0, m, n, k, HEIGHT: gl.constexpr, WIDTH: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Repair what sums as of `finish._multiply_again` decide of the flagged entries of a part of a tile, in float64."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    OF_A: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    OF_B: gl.constexpr = gl.DotOperandLayout(1, MMA, 1)
    i, ha = i0 + gl.arange(0, HEIGHT, gl.SliceLayout(1, OF_A)), gl.arange(0, _DEPTH, gl.SliceLayout(0, OF_A))
    j, hb = j0 + gl.arange(0, WIDTH, gl.SliceLayout(0, OF_B)), gl.arange(0, _DEPTH, gl.SliceLayout(1, OF_B))
    left = a + i.to(gl.int64)[:, None] * a_row + ha.to(gl.int64)[None, :] * a_step
    right = b + j.to(gl.int64)[None, :] * b_column + hb.to(gl.int64)[:, None] * b_step
    in_m, in_n = (i < m)[:, None], (j < n)[None, :]
    sums = gl.zeros([HEIGHT, WIDTH], gl.float64, MMA)
    of_rows, of_columns = gl.zeros([HEIGHT, _DEPTH], gl.int32, OF_A), gl.zeros([_DEPTH, WIDTH], gl.int32, OF_B)
    for first in range(0, k, _DEPTH):
        x = scaled_down(gl.load(left, mask=in_m & (ha < k - first)[None, :], other=0.0), 53)
        y = scaled_down(gl.load(right, mask=(hb < k - first)[:, None] & in_n, other=0.0), 53)
        left += wide(_DEPTH) * a_step
        right += wide(_DEPTH) * b_step
        of_rows, of_columns = gl.maximum(of_rows, magnitude_word(x)), gl.maximum(of_columns, magnitude_word(y))
        sums = mma_v2(x, y, sums)
    row_top = gl.convert_layout(gl.max(of_rows, 1), gl.SliceLayout(1, MMA)).to(gl.int64)
    column_top = gl.convert_layout(gl.max(of_columns, 0), gl.SliceLayout(0, MMA)).to(gl.int64)
    terms = wide(k).to(gl.float64)
    error = (SLACK * terms * terms) * float_of((row_top + 1) << 32)[:, None] * float_of((column_top + 1) << 32)[None, :]
    row, column = i0 + gl.arange(0, HEIGHT, gl.SliceLayout(1, MMA)), j0 + gl.arange(0, WIDTH, gl.SliceLayout(0, MMA))
    special = sums - sums != 0.0
    far = gl.abs(gl.abs(sums) - SCALED_TOP) > error + NEAR
    repaired = _is_flagged(out, row, column, m, n) & (special | far)
    value = sums * UP * UP
    value = gl.where(value != value, float_of(bits_of(value) * 0 + _DOUBLE), value)
    gl.store(out + row.to(gl.int64)[:, None] * n + column[None, :], value, mask=repaired)
    how_many = gl.sum((repaired & special).to(gl.int32).reshape([HEIGHT * WIDTH]), 0)
    count_special(counts, how_many)
