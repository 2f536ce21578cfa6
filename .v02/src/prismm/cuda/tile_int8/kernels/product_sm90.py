"""The product of `TileInt8` for sm90: one warp feeds two warpgroups of matrix instructions through shared memory.

A persistent grid walks over tiles of 128 x COLUMNS entries; each consumer has 64 rows. The feeding warp copies one step
of all planes at a time by TMA, contiguous pieces, into a ring of stages. A consumer makes the INT32 sums S of one
weight after the other, from the smallest one upwards, and folds each into t = S + 2^-7·t, so that the entries, t and
one or two sets of sums are all it holds. Bits are those of `tile_product`.

Converting: bits of S + 0x4B400000 are the float32 number 12582912 + S where |S| < 2^22; larger sums take the
conversion's own instruction. So does 128·S + S' of the two smallest weights, which rounds as S + 2^-7·S' does. A tile's
factors are one number for each 16 rows and 8 columns of a thread.

Operations: 2·m·n·k a product of segments, and in each step 9 an entry of float32 and integers at level 4. Measured on
an H200 at level 4, n = 8192, of 5.7 ms that its 8 products take at 1550 TOP/s: 6.4 ms in steps of 128, 9.4 ms of 64,
13.4 ms of 32; 52.6 ms at n = 16384 in steps of 128. The folds of short steps are little hidden behind products: four
times as many cost 7 ms, where their operations are 5. Tried, steps of 32: every sum converted 15.6 ms, every sum by
additions 17.5, both in turn 16.3, the pair and conversions 14.7; tiles of 128 x 64, whose sums fit twice: 14.7 to 17.0.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from prismm.cuda.residues.kernels.product_sm90 import next_stage

ROWS, GROUP = 128, 8
LAUNCH = {"num_warps": 4, "maxnreg": 168}
_SHARED = 200 << 10
"""Bytes of shared memory for the ring."""


class Shape(NamedTuple):
    """Columns of a tile, stages of the ring."""

    columns: int
    stages: int


def shape_for(left: int, right: int, width: int) -> Shape:
    """What fits in shared memory: two stages at least.

    >>> shape_for(3, 3, 32), shape_for(4, 4, 128)
    (Shape(columns=128, stages=8), Shape(columns=64, stages=2))
    """
    for columns in (128, 64):
        stages = _SHARED // (width * (left * ROWS + right * columns))
        if stages >= 2:
            return Shape(columns, min(8, stages))
    raise AssertionError(width)


@gluon.constexpr_function
def entries_layout(columns, tile_rows, tile_columns):
    """The accumulator of 64 x `columns` entries as (64/tile_rows, tile_rows, columns/tile_columns, tile_columns)."""

    def base(i, j):
        return [i // tile_rows, i % tile_rows, j // tile_columns, j % tile_columns]

    # The accumulator of `wgmma`: a thread has pairs of neighbouring columns, in rows that are 8 apart.
    wide = [1 << x for x in range(3, columns.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[base(0, 1), base(8, 0), *(base(0, j) for j in wide)],
        lane_bases=[base(0, 2), base(0, 4), base(1, 0), base(2, 0), base(4, 0)],
        warp_bases=[base(16, 0), base(32, 0)],
        block_bases=[],
        shape=[64 // tile_rows, tile_rows, columns // tile_columns, tile_columns],
    )


@gluon.constexpr_function
def fold_code(weight, left, right, width, paired):
    """Instructions for S + 2^-7·t; paired: 2^-14·t."""
    products = min(weight, left - 1) - max(0, weight - right + 1) + 1
    if products * width * 127 * 127 < 1 << 22:
        number = "add.s32 i, $1, 0x4B400000; mov.b32 s, i; sub.rn.f32 s, s, 0f4B400000;"
    else:
        number = "cvt.rn.f32.s32 s, $1;"
    unit = "0f38800000" if paired else "0f3C000000"
    return "{ .reg .s32 i; .reg .f32 s; " + number + " fma.rn.f32 $0, $2, " + unit + ", s; }"


@gluon.jit
def _even(x, EVEN: gl.constexpr):
    if EVEN:
        return x // 16 * 16
    else:
        return x


@gluon.jit
def _power(e):
    """`tile_split.power`."""
    normal = gl.maximum(e + 127, 0) << 23
    subnormal = 1 << gl.minimum(gl.maximum(e + 149, 0), 22)
    return gl.where(e >= -126, normal, gl.where(e >= -149, subnormal, 0)).to(gl.float32, bitcast=True)


@gluon.jit
def _times(x, e):
    """`tile_split.times`."""
    last = gl.minimum(gl.maximum(e, -126), 127)
    second = gl.minimum(gl.maximum(e - last, -126), 127)
    return ((x * _power(e - last - second)) * _power(second)) * _power(last)


@gluon.jit
def _place(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """(batch, row, column) of a tile, in an order by which GROUP rows of tiles share what they read."""
    batch = tile // (tiles_m * tiles_n)
    tile = tile - batch * (tiles_m * tiles_n)
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    rest = tile - group * (GROUP * tiles_n)
    return batch, first + rest % height, rest // height


@gluon.jit
def _feed(
    left, right, left_ring, right_ring, full, free, m, n, depth, batches,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, WIDTH: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    tiles_m = gl.cdiv(m, 128)
    tiles_n = gl.cdiv(n, COLUMNS)
    steps = gl.cdiv(depth, WIDTH)
    all_rows = batches * (LEFT * m + RIGHT * n)
    stage = 0
    # The ring begins empty: waiting for the phase before the first one returns at once.
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n * batches, gl.num_programs(0)):
        batch, row, column = _place(tile, tiles_m, tiles_n, GROUP)
        i = batch * m + row * 128
        j = LEFT * batches * m + batch * n + column * COLUMNS
        for _ in range(steps):
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(full.index(stage), LEFT * left.block_type.nbytes + RIGHT * right.block_type.nbytes)
            for p in gl.static_range(LEFT):
                tma.async_copy_global_to_shared(
                    left, [i + p * batches * m, 0], full.index(stage), left_ring.index(stage * LEFT + p)
                )
            for p in gl.static_range(RIGHT):
                tma.async_copy_global_to_shared(
                    right, [j + p * batches * n, 0], full.index(stage), right_ring.index(stage * RIGHT + p)
                )
            i += all_rows
            j += all_rows
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def _sums(
    sums, left_ring, right_ring, stage, WHICH: gl.constexpr, WEIGHT: gl.constexpr, LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
):  # fmt: skip
    """Begin S of one weight; the sums that were are overwritten."""
    FIRST: gl.constexpr = max(0, WEIGHT - RIGHT + 1)
    for p in gl.static_range(FIRST, min(WEIGHT, LEFT - 1) + 1):
        sums = warpgroup_mma(
            left_ring.index(stage * LEFT + p).slice(64 * WHICH, 64),
            right_ring.index(stage * RIGHT + (WEIGHT - p)).permute((1, 0)), sums,
            use_acc=p > FIRST, is_async=True,
        )  # fmt: skip
    return sums


@gluon.jit
def _fold(t, sums, CODE: gl.constexpr):
    """S + 2^-7·t. Written so that it stays where it is: the registers of sums are needed for the next ones."""
    return gl.inline_asm_elementwise(CODE, "=f,r,f", [sums, t], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def _pair(sums, more):
    """128·S + S' in float32."""
    # Below 2^31: sums of up to four products of 128 terms are below 2^23.
    return gl.inline_asm_elementwise(
        "{ .reg .s32 i; mad.lo.s32 i, $1, 128, $2; cvt.rn.f32.s32 $0, i; }", "=f,r,r", [sums, more],
        dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _add(t, factor, c):
    """c + t·factor."""
    return gl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [t, factor, c], dtype=gl.float32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def _entries(sums, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
    return gl.convert_layout(sums.reshape(SHAPE), LAYOUT, assert_trivial=True)


@gluon.jit
def _store(
    c, out, shifts, m, n, batches, batch, first_row, first_column, row_stride, batch_stride, GIVEN: gl.constexpr
):  # fmt: skip
    """Entries in units of the result."""
    layout: gl.constexpr = c.type.layout
    i = first_row + gl.arange(0, c.shape[0], layout=gl.SliceLayout(1, layout))
    j = first_column + gl.arange(0, c.shape[1], layout=gl.SliceLayout(0, layout))
    if not GIVEN:
        e = gl.load(shifts + batch * m + i, mask=i < m, other=0)
        f = gl.load(shifts + batches * m + batch * n + j, mask=j < n, other=0)
        e = gl.minimum(gl.maximum(e, -256), 256)
        f = gl.minimum(gl.maximum(f, -256), 256)
        c = _times(c, e[:, None] + f[None, :])
    target = out + batch.to(gl.int64) * batch_stride + i.to(gl.int64) * row_stride
    gl.store(target[:, None] + j[None, :], c, mask=(i < m)[:, None] & (j < n)[None, :])


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, out, weights, shifts, m, width, depth, batches, row_step, batch_stride, left_tiles,
    right_tiles, left_ring, right_ring, full, free,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, WEIGHTS: gl.constexpr, TILE_ROWS: gl.constexpr,
    TILE_COLUMNS: gl.constexpr, WIDTH: gl.constexpr, GIVEN: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 32]
    )  # fmt: skip
    R: gl.constexpr = min(TILE_ROWS, 64)
    C: gl.constexpr = min(TILE_COLUMNS, COLUMNS)
    SHAPE: gl.constexpr = [64 // R, R, COLUMNS // C, C]
    of_entries: gl.constexpr = entries_layout(COLUMNS, R, C)
    of_rows: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, of_entries)))
    of_columns: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, of_entries)))
    LAST: gl.constexpr = WEIGHTS - 1
    n = _even(width, EVEN)
    row_stride = _even(row_step, EVEN)
    tiles_m = gl.cdiv(m, 128)
    tiles_n = gl.cdiv(n, COLUMNS)
    steps = gl.cdiv(depth, WIDTH)
    # The launch pads both to 16; in this form the compiler knows it, and reads vectors.
    left_each = left_tiles // 16 * 16
    right_each = right_tiles // 16 * 16
    all_tiles = batches * (left_each + right_each)
    # Of tiles that are larger than a block there is one.
    tile_row = gl.arange(0, 64 // R, layout=of_rows)
    tile_column = gl.arange(0, COLUMNS // C, layout=of_columns)
    stage = 0
    phase = 0
    # Every set of sums begins in registers of its own: the assembler of CUDA 12 and 13 took one conversion for two of
    # sums that followed each other in the same virtual ones.
    nothing = gl.zeros((64, COLUMNS), gl.int32, layout)
    for tile in range(gl.program_id(0), tiles_m * tiles_n * batches, gl.num_programs(0)):
        batch, row, column = _place(tile, tiles_m, tiles_n, GROUP)
        first_row = row * 128 + 64 * WHICH
        # Weights are read past the ends of a batch, for entries that are not stored.
        row_weight = weights + (batch * left_each + first_row // TILE_ROWS) + tile_row
        near = column * (COLUMNS // TILE_COLUMNS) if TILE_COLUMNS <= COLUMNS else column * COLUMNS // TILE_COLUMNS
        column_weight = weights + (batches * left_each + batch * right_each + near) + tile_column
        c = gl.zeros(SHAPE, gl.float32, of_entries)
        for _ in range(steps):
            x = gl.load(row_weight)
            y = gl.load(column_weight)
            row_weight += all_tiles
            column_weight += all_tiles
            mbarrier.wait(full.index(stage), phase)
            more = _sums(nothing, left_ring, right_ring, stage, WHICH, LAST, LEFT, RIGHT)
            sums = _sums(nothing, left_ring, right_ring, stage, WHICH, LAST - 1, LEFT, RIGHT)
            sums, more = warpgroup_mma_wait(0, deps=(sums, more))
            t = _pair(_entries(sums, SHAPE, of_entries), _entries(more, SHAPE, of_entries))
            for back in gl.static_range(2, WEIGHTS):
                sums = _sums(nothing, left_ring, right_ring, stage, WHICH, LAST - back, LEFT, RIGHT)
                sums = warpgroup_mma_wait(0, deps=(sums,))
                # With the last weight's products every segment of the stage has been read.
                if back == LAST:
                    mbarrier.arrive(free.index(stage), count=1)
                t = _fold(t, _entries(sums, SHAPE, of_entries), fold_code(LAST - back, LEFT, RIGHT, WIDTH, back == 2))
            factor = x[:, None, None, None] * y[None, None, :, None]
            c = _add(t, gl.broadcast(factor, c)[0], c)
            stage, phase = next_stage(stage, phase, STAGES)
        entries = gl.convert_layout(c.reshape([64, COLUMNS]), layout, assert_trivial=True)
        _store(
            entries, out, shifts, m, n, batches, batch, first_row, column * COLUMNS, row_stride,
            _even(batch_stride, EVEN), GIVEN,
        )  # fmt: skip


@gluon.jit(
    do_not_specialize=["m", "width", "depth", "batches", "row_step", "batch_stride", "left_tiles", "right_tiles"]
)  # fmt: skip
def tile_product(
    left, right, out, weights, shifts, m, width, depth, batches, row_step, batch_stride, left_tiles, right_tiles,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, WEIGHTS: gl.constexpr, TILE_ROWS: gl.constexpr,
    TILE_COLUMNS: gl.constexpr, WIDTH: gl.constexpr, GIVEN: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """out (batches, m, width) = A·B. left, right: TMA descriptors of `split_tiles`'s planes, boxes of 128 and COLUMNS
    rows; weights, shifts: its own. EVEN: width and strides are multiples of 16.
    """
    left_ring = gl.allocate_shared_memory(gl.int8, [STAGES * LEFT, 128, WIDTH], left.layout)
    right_ring = gl.allocate_shared_memory(gl.int8, [STAGES * RIGHT, COLUMNS, WIDTH], right.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    # TMA works through another proxy, to which initialised barriers are not visible before a fence.
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                0, out, weights, shifts, m, width, depth, batches, row_step, batch_stride, left_tiles, right_tiles,
                left_ring, right_ring, full, free, LEFT, RIGHT, WEIGHTS, TILE_ROWS, TILE_COLUMNS, WIDTH, GIVEN, COLUMNS,
                STAGES, GROUP, EVEN,
            )),
            (_multiply, (
                1, out, weights, shifts, m, width, depth, batches, row_step, batch_stride, left_tiles, right_tiles,
                left_ring, right_ring, full, free, LEFT, RIGHT, WEIGHTS, TILE_ROWS, TILE_COLUMNS, WIDTH, GIVEN, COLUMNS,
                STAGES, GROUP, EVEN,
            )),
            (_feed, (
                left, right, left_ring, right_ring, full, free, m, width, depth, batches, LEFT, RIGHT, WIDTH, COLUMNS,
                STAGES, GROUP,
            )),
        ],
        # Registers of a thread: 240 + 240 + 24 is what three times `maxnreg` = 168 gives at the launch.
        [4, 1],
        [240, 24],
    )  # fmt: skip
