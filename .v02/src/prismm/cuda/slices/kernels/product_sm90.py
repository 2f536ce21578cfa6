"""`product` for sm90: one warp feeds two warpgroups of matrix instructions, as in `residues.kernels.product_sm90`.

A program takes a tile (128 x 256) through all groups of pairs, from the last up, before it goes to the next: the
accumulators hold the carry from one group to another, and what leaves them is a byte an entry and group, four at the
end. The right operand's rows are permuted (`split.plane_row`), so that a thread holds 16 neighbouring entries.

Tiles, stages, registers and shared memory are those of `residues.kernels.product_sm90`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from prismm.cuda.residues.kernels.product_sm90 import grouped, next_stage


@gluon.jit
def _run(s, SLICES: gl.constexpr):
    """`product.run`."""
    first = gl.maximum(s - (SLICES - 1), 0)
    return gl.minimum(s, SLICES - 1) - first + 1, first, SLICES - 1 - s + first


@gluon.jit
def _feed(
    left, right, left_ring, right_ring, full, free, m, n, left_rows, right_rows, width, left_step, right_step, blocks,
    units, SLICES: gl.constexpr, GROUPS: gl.constexpr, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    tiles_m = gl.cdiv(m, 64 * CONSUMERS)
    tiles_n = gl.cdiv(n, COLUMNS)
    stage = 0
    # The ring begins empty: waiting for the phase before the first one returns at once.
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n * units, gl.num_programs(0)):
        unit = tile // (tiles_m * tiles_n)
        row, column = grouped(tile - unit * (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        matrix = unit // blocks
        start = (unit - matrix * blocks) * (SLICES * width)
        i = matrix * left_step * left_rows + row * (64 * CONSUMERS)
        j = matrix * right_step * right_rows + column * COLUMNS
        for back in range(GROUPS):
            pairs, p, q = _run(GROUPS - 1 - back, SLICES)
            for h in range(0, pairs * width, DEPTH):
                mbarrier.wait(free.index(stage), phase)
                mbarrier.expect(full.index(stage), (64 * CONSUMERS + COLUMNS) * DEPTH)
                for c in gl.static_range(CONSUMERS):
                    tma.async_copy_global_to_shared(
                        left, [i + 64 * c, start + p * width + h], full.index(stage),
                        left_ring.index(stage * CONSUMERS + c),
                    )  # fmt: skip
                tma.async_copy_global_to_shared(
                    right, [j, start + q * width + h], full.index(stage), right_ring.index(stage)
                )
                stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, low, top, left_ring, right_ring, full, free, m, n, width, row_pitch, plane, units,
    SLICES: gl.constexpr, GROUPS: gl.constexpr, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    # Sixteen neighbouring columns a thread, so that it stores 16 bytes at once.
    stored: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 8], [8, 0], [0, 64], [0, 128]],
        lane_bases=[[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, COLUMNS],
    )
    tiles_m = gl.cdiv(m, 64 * CONSUMERS)
    tiles_n = gl.cdiv(n, COLUMNS)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n * units, gl.num_programs(0)):
        unit = tile // (tiles_m * tiles_n)
        row, column = grouped(tile - unit * (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        i = row * (64 * CONSUMERS) + 64 * WHICH + gl.arange(0, 64, layout=gl.SliceLayout(1, stored))
        j = column * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, stored))
        at = i.to(gl.int64) * row_pitch
        # The pitch is a multiple of 64: a thread's 16 columns are inside together, and those beyond n are padding.
        inside = (i < m)[:, None] & (j < row_pitch)[None, :]
        acc = gl.zeros((64, COLUMNS), gl.int32, layout)
        for back in range(GROUPS):
            pairs, _, _ = _run(GROUPS - 1 - back, SLICES)
            for step in range(pairs * (width // DEPTH)):
                mbarrier.wait(full.index(stage), phase)
                acc = warpgroup_mma(
                    left_ring.index(stage * CONSUMERS + WHICH), right_ring.index(stage).permute((1, 0)), acc,
                    use_acc=True, is_async=True,
                )  # fmt: skip
                # One product stays in flight, so that the unit is busy while its operands' successors are awaited.
                acc = warpgroup_mma_wait(1, deps=(acc,))
                # All but the last product have read their stages.
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1, pred=step > 0)
                stage, phase = next_stage(stage, phase, STAGES)
            # The accumulator's registers are the unit's until nothing is in flight; bits are taken from them below.
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1)
            if back < GROUPS - 1:
                byte = acc.to(gl.uint8)
                # The columns go back from the order of `split.plane_row`.
                byte = byte.reshape([64, COLUMNS // 64, 8, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([64, COLUMNS])
                byte = gl.convert_layout(byte, stored)
                to = low + (unit.to(gl.int64) * (GROUPS - 1) + back) * plane + at
                gl.store(to[:, None] + j[None, :], byte, mask=inside)
                acc = acc >> 8
        word = acc.reshape([64, COLUMNS // 64, 8, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([64, COLUMNS])
        word = gl.convert_layout(word, stored)
        to = top + unit.to(gl.int64) * plane + at
        gl.store(to[:, None] + j[None, :], word, mask=inside)


@gluon.jit(do_not_specialize=["m", "n", "left_step", "right_step", "blocks", "units"])
def slice_product(
    left, right, low, top, m, n, left_rows, right_rows, width, row_pitch, plane, left_step, right_step, blocks, units,
    SLICES: gl.constexpr, GROUPS: gl.constexpr, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """All blocks of the inner dimension of all matrices, `units` in number; low and top as of `product`.

    left, right: TMA descriptors of all digits, boxes (64, DEPTH) and (COLUMNS, DEPTH); matrices of left_rows and
    right_rows rows, left_step and right_step (0 or 1) from one to the next.
    """
    left_ring = gl.allocate_shared_memory(gl.int8, [STAGES * CONSUMERS, 64, DEPTH], left.layout)
    right_ring = gl.allocate_shared_memory(gl.int8, [STAGES, COLUMNS, DEPTH], right.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    # A stage is full by the feeder's one arrival and its bytes, free once each consumer has arrived.
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=CONSUMERS)
    # TMA works through another proxy, to which initialised barriers are not visible before a fence.
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                0, low, top, left_ring, right_ring, full, free, m, n, width, row_pitch, plane, units, SLICES, GROUPS,
                CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP,
            )),
            (_multiply, (
                1, low, top, left_ring, right_ring, full, free, m, n, width, row_pitch, plane, units, SLICES, GROUPS,
                CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP,
            )),
            (_feed, (
                left, right, left_ring, right_ring, full, free, m, n, left_rows, right_rows, width, left_step,
                right_step, blocks, units, SLICES, GROUPS, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP,
            )),
        ],
        # Registers of a thread: 240 + 240 + 24 is what three times `maxnreg` = 168 gives at the launch.
        [4, 1],
        [240, 24],
    )  # fmt: skip
