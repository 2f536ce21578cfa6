"""The product of residue planes for Hopper: one warp feeds two warpgroups of matrix instructions through shared memory.

A persistent grid walks over the tiles (128 x 256) of all moduli. The feeding warp copies 128 bytes of the inner
dimension at a time by TMA into a ring of four stages; each consumer multiplies 64 rows. They meet at no barrier of the
tile, so the epilogue of one hides behind the products of the other. The right operand's rows are permuted
(`split.plane_row`), so that a thread of the epilogue holds 16 neighbouring bytes.

Registers: 24 a thread for the feeder, 240 for the consumers (maxnreg 168 at launch holds the sum); shared memory 192
KiB. See `product` for operations, bytes and the bound of the sums.
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

CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP = 2, 256, 128, 4, 8
ROWS = 64 * CONSUMERS
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.jit
def grouped(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile, in columns of GROUP rows: neighbours share what they read."""
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    rest = tile - group * (GROUP * tiles_n)
    return first + rest % height, rest // height


@gluon.jit
def _feed(
    left, right, left_ring, right_ring, full, free, m, n, left_rows, right_rows, pitch, moduli, left_step, right_step,
    batch, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    tiles_m = gl.cdiv(m, 64 * CONSUMERS)
    tiles_n = gl.cdiv(n, COLUMNS)
    steps = gl.cdiv(pitch, DEPTH)
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n * moduli * batch, gl.num_programs(0)):
        plane = tile // (tiles_m * tiles_n)
        row, column = grouped(tile - plane * (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        matrix = plane // moduli
        t = plane - matrix * moduli
        i = (t + matrix * left_step) * left_rows + row * (64 * CONSUMERS)
        j = (t + matrix * right_step) * right_rows + column * COLUMNS
        for step in range(steps):
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(full.index(stage), (64 * CONSUMERS + COLUMNS) * DEPTH)
            for c in gl.static_range(CONSUMERS):
                tma.async_copy_global_to_shared(
                    left, [i + 64 * c, step * DEPTH], full.index(stage), left_ring.index(stage * CONSUMERS + c)
                )
            tma.async_copy_global_to_shared(right, [j, step * DEPTH], full.index(stage), right_ring.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase = phase ^ 1


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, digits, reduction, left_ring, right_ring, full, free, m, n, pitch, row_pitch, plane, moduli,
    batch, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, CHUNK: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    tiles_m = gl.cdiv(m, 64 * CONSUMERS)
    tiles_n = gl.cdiv(n, COLUMNS)
    steps = gl.cdiv(pitch, DEPTH)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n * moduli * batch, gl.num_programs(0)):
        t = tile // (tiles_m * tiles_n)
        row, column = grouped(tile - t * (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        factor = t % moduli
        p = gl.load(reduction + 3 * factor).to(gl.uint32, bitcast=True)
        magic = gl.load(reduction + 3 * factor + 1).to(gl.uint32, bitcast=True)
        bias = gl.load(reduction + 3 * factor + 2)
        acc = gl.zeros((64, COLUMNS), gl.int32, layout)
        for start in range(0, steps, CHUNK):
            for step in range(start, gl.minimum(steps, start + CHUNK)):
                mbarrier.wait(full.index(stage), phase)
                acc = warpgroup_mma(
                    left_ring.index(stage * CONSUMERS + WHICH), right_ring.index(stage).permute((1, 0)), acc,
                    use_acc=step > 0, is_async=True,
                )  # fmt: skip
                acc = warpgroup_mma_wait(1, deps=(acc,))
                # All but the last product have read their stages.
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1, pred=step > start)
                stage += 1
                if stage == STAGES:
                    stage = 0
                    phase = phase ^ 1
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1)
            # `product.reduced`
            u = (acc + bias).to(gl.uint32, bitcast=True)
            r = u - gl.umulhi(u, gl.full((64, COLUMNS), 0, gl.uint32, layout) + magic) * p
            acc = gl.minimum(r, r - p).to(gl.int32, bitcast=True)
        byte = acc.to(gl.uint8)
        byte = byte.reshape([64, COLUMNS // 64, 8, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([64, COLUMNS])
        stored: gl.constexpr = gl.DistributedLinearLayout(
            reg_bases=[[0, 1], [0, 2], [0, 4], [0, 8], [8, 0], [0, 64], [0, 128]],
            lane_bases=[[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
            warp_bases=[[16, 0], [32, 0]],
            block_bases=[],
            shape=[64, COLUMNS],
        )
        byte = gl.convert_layout(byte, stored)
        i = row * (64 * CONSUMERS) + 64 * WHICH + gl.arange(0, 64, layout=gl.SliceLayout(1, stored))
        j = column * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, stored))
        at = digits + t.to(gl.int64) * plane + i.to(gl.int64) * row_pitch
        gl.store(at[:, None] + j[None, :], byte, mask=(i < m)[:, None] & (j < row_pitch)[None, :])


@gluon.jit(do_not_specialize=["m", "n", "moduli", "left_step", "right_step", "batch"])
def residue_product(
    left, right, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli, left_step,
    right_step, batch, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, CHUNK: gl.constexpr,
):  # fmt: skip
    """digits = left · rightᵀ modulo each modulus: planes of left_rows, right_rows and m rows; CHUNK in steps of DEPTH.

    moduli: planes of a matrix; batch: matrices; left_step, right_step: planes from one to the next, 0 where one operand
    serves all.

    left, right: TMA descriptors of all planes, boxes (64, DEPTH) and (COLUMNS, DEPTH).
    """
    left_ring = gl.allocate_shared_memory(gl.int8, [STAGES * CONSUMERS, 64, DEPTH], left.layout)
    right_ring = gl.allocate_shared_memory(gl.int8, [STAGES, COLUMNS, DEPTH], right.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=CONSUMERS)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                0, digits, reduction, left_ring, right_ring, full, free, m, n, pitch, row_pitch, plane, moduli,
                batch, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, CHUNK,
            )),
            (_multiply, (
                1, digits, reduction, left_ring, right_ring, full, free, m, n, pitch, row_pitch, plane, moduli,
                batch, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, CHUNK,
            )),
            (_feed, (
                left, right, left_ring, right_ring, full, free, m, n, left_rows, right_rows, pitch, moduli,
                left_step, right_step, batch, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
