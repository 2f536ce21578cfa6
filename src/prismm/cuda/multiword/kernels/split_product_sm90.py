"""The product of FP16 words for sm90 that cuts its operands itself: two warpgroups cut, two multiply.

What a product is, and its certificate, is that of `multiword.kernels.product_sm90`, for chunks of 64 terms: a chunk is
one step, so that what a piece is scaled by depends on nothing but that step's elements. One warpgroup has A's 128 rows,
another one B's 128 columns. Each copies 64 terms of them by TMA, float32 as they stand in memory, and reads them into
registers, a vector a thread: the largest magnitude, the scale and both words need no other thread. It asks for the next
step's elements as soon as it has read these. Words go to a ring of two stages, swizzled as the matrix instruction reads
them, with their scales; that they are there is told when the next step's elements have been read, so that nobody waits
for them to arrive in shared memory. So words are neither written to memory nor read from it, and there is one launch
less.

A step's lower products are summed first, times 2^-12, and what the high words add begins from there: one set of sums
for two, which leaves each thread that multiplies 128 numbers and not 192.

Registers: 152 where there are sums, 104 where words are cut; 144 and 112, 136 and 120 are 1 to 5 % slower, and with 160
and 96 elements are spilled, 40 %. Shared memory: 64 KiB of elements, 128 of words, 2 of scales.

Operations: 6·m·n·k; bytes: 4·(m + n)·k, times the tiles that read them again, out of the L2 cache. A step is 1536
cycles of the matrix unit, and shared memory moves 336 KiB in it, 2690 cycles: 64 KiB come, are read, and are written as
words; the matrix unit reads 144. Of 64 products at n = 512 an H200 takes 151 us, 4200 cycles a step (split and
product: 177), of 256 at n = 256 91 (143), of 16 at n = 1024 263 (250): a tile that is 128 wide cuts each element
again for every 128 columns.

Where the time goes, by samples of what warps wait for: groups that cut wait a seventh and a quarter of it for a stage,
those that multiply a fifth for words, a fifth for the matrix unit, a tenth are results and flags. A group that cuts has
one warp for each scheduler, which takes 4 to 5 cycles an instruction: what counts is how many there are (570 a step). A
tile's place, which takes integer divisions, is computed after a step's words, and not between two steps' copies: 155
us for 170. Words that are told of late: 151.

Alternatives without a gain: results by TMA, as in `multiword.kernels.product_sm90`; groups that multiply by turns;
words' stages waited for before they are made; elements copied to where their words will be, in three stages (154);
elements read from memory into registers, without TMA (235: 930 instructions); words cut once, ahead, by a group of
warps of the product's own programs, who tell by counters in memory what is ready (203: cutting alone takes 142 to 162,
by four warps a processor).
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

from prismm.cuda.kernels.fp64 import even
from prismm.cuda.multiword.kernels.product_sm90 import add_row, flag_tile, place_of, store_tile
from prismm.cuda.multiword.kernels.split_sm90 import scale_of
from prismm.cuda.residues.kernels.product_sm90 import next_stage

TILE, DEPTH, GROUP, STAGES = 128, 64, 8, 2
"""Rows and columns of a tile, terms of a step and chunk, rows of tiles in a strip; stages of words."""
LAUNCH = {"num_warps": 4, "maxnreg": 128}
SPLIT_LAYOUT = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32]],
        lane_bases=[[1, 0], [2, 0], [4, 0], [8, 0], [16, 0]],
        warp_bases=[[32, 0], [64, 0]],
        block_bases=[],
        shape=[128, 64],
    )
)
"""128 vectors of 64 elements, one a thread."""
_LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def words_code(amplified):
    """Assembly: w1 = RN(x·s) and w2 = RN((x·s - w1)·2^amplified) in float16, of two elements; all else is exact.

    Two at a time, so that a register with both words of a pair takes the place of the pair's elements.
    """
    bits = 127 + amplified << 23
    return (
        "{ .reg .b16 h0, h1; .reg .f32 t0, t1, f0, f1; mul.rn.f32 t0, $2, $4; mul.rn.f32 t1, $3, $5;"
        "cvt.rn.f16x2.f32 $0, t1, t0; mov.b32 {h0, h1}, $0; cvt.f32.f16 f0, h0; cvt.f32.f16 f1, h1;"
        "sub.rn.f32 f0, t0, f0; sub.rn.f32 f1, t1, f1;"
        f"mul.rn.f32 f0, f0, 0f{bits:08x}; mul.rn.f32 f1, f1, 0f{bits:08x}; cvt.rn.f16x2.f32 $1, f1, f0; }}"
    )


@gluon.jit
def _size(x):
    """|x|, as the search for the largest has it for nothing; of patterns that were loaded Triton makes a mask."""
    return gl.inline_asm_elementwise("abs.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _copy(source, matrix, vector, term, barrier, elements, pred, ALONG: gl.constexpr):
    """Begin to copy the elements of a step."""
    mbarrier.expect(barrier, source.block_type.nbytes, pred=pred)
    if ALONG:
        tma.async_copy_global_to_shared(source, [matrix, vector, term], barrier, elements, pred=pred)
    else:
        tma.async_copy_global_to_shared(source, [matrix, term, vector], barrier, elements, pred=pred)


@gluon.jit
def _place(tile, tiles, tiles_m, tiles_n, one, LEFT: gl.constexpr, TILE: gl.constexpr, GROUP: gl.constexpr):
    """The matrix and the first vector of an operand's part of a tile, or of the last one."""
    batch, row, column = place_of(gl.minimum(tile, tiles - 1), tiles_m, tiles_n, GROUP)
    return batch * (1 - one), (row if LEFT else column) * TILE


@gluon.jit
def _cut(
    source, one, elements, words, scales, arrived, full, free, m, n, k, batches,
    LEFT: gl.constexpr, ALONG: gl.constexpr, AMPLIFIED: gl.constexpr, TILE: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """One operand's part of all tiles; one: 1 where a matrix serves the whole batch."""
    SHAPE: gl.constexpr = [TILE, DEPTH] if ALONG else [DEPTH, TILE]
    PLAIN: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    read = elements._reinterpret(gl.float32, SHAPE, PLAIN)
    tiles_m = gl.cdiv(m, TILE)
    tiles_n = gl.cdiv(n, TILE)
    tiles = tiles_m * tiles_n * batches
    tile = gl.program_id(0)
    matrix, vector = _place(tile, tiles, tiles_m, tiles_n, one, LEFT, TILE, GROUP)
    _copy(source, matrix, vector, 0, arrived, elements, True, ALONG)
    tile += gl.num_programs(0)
    next_matrix, next_vector = _place(tile, tiles, tiles_m, tiles_n, one, LEFT, TILE, GROUP)
    term = 0
    copied = 0
    stage = 0
    # Both stages are free at first.
    phase = 1
    written = -1
    steps = gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0)) * gl.cdiv(k, DEPTH)
    for step in range(1, steps + 1):
        # Where the next step is.
        term += DEPTH
        if term >= k:
            matrix, vector, term = next_matrix, next_vector, 0
        mbarrier.wait(arrived, copied)
        copied ^= 1
        value = (read if ALONG else read.permute((1, 0))).load(SPLIT_LAYOUT)
        # The last step's words have arrived in shared memory meanwhile.
        fence_async_shared()
        gl.thread_barrier()
        mbarrier.arrive(full.index(written), count=1, pred=written >= 0)
        _copy(source, matrix, vector, term, arrived, elements, step < steps, ALONG)
        # In parts, whose maxima are computed side by side.
        largest = gl.max(gl.max(_size(value).reshape([TILE, 4, DEPTH // 4]), 2), 1)
        up, down = scale_of(gl.convert_layout(largest, gl.SliceLayout(1, SPLIT_LAYOUT)))
        high, low = gl.inline_asm_elementwise(
            words_code(AMPLIFIED), "=r,=r,f,f,f,f", [value, up[:, None]], dtype=(gl.float16, gl.float16),
            is_pure=True, pack=2,
        )  # fmt: skip
        mbarrier.wait(free.index(stage), phase)
        words.index(2 * stage).store(high)
        words.index(2 * stage + 1).store(low)
        scales.index(stage).store(down)
        written = stage
        stage, phase = next_stage(stage, phase, STAGES)
        if term == 0:
            tile += gl.num_programs(0)
            next_matrix, next_vector = _place(tile, tiles, tiles_m, tiles_n, one, LEFT, TILE, GROUP)
    # Threads have stored the last words, but the matrix unit reads by the asynchronous proxy: fence, wait for all,
    # tell.
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(full.index(written), count=1)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, out, flags, addend, adds, left_words, right_words, left_scales, right_scales, full, free, m,
    width, k, batches, row_step, batch_stride, flag_pitch, least, reach, far, slope,
    DOWN: gl.constexpr, TILE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    EVEN: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    columns: gl.constexpr = gl.SliceLayout(0, layout)
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    n = even(width, EVEN)
    tiles_m = gl.cdiv(m, TILE)
    tiles_n = gl.cdiv(n, TILE)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n * batches, gl.num_programs(0)):
        top_x = gl.zeros((64,), gl.float32, rows)
        top_y = gl.zeros((TILE,), gl.float32, lanes)
        acc = gl.zeros((64, TILE), gl.float32, layout)
        for _ in range(0, k, DEPTH):
            mbarrier.wait(full.index(stage), phase)
            high_x = left_words.index(2 * stage).slice(64 * WHICH, 64)
            low_x = left_words.index(2 * stage + 1).slice(64 * WHICH, 64)
            high_y = right_words.index(2 * stage).permute((1, 0))
            low_y = right_words.index(2 * stage + 1).permute((1, 0))
            sums = gl.zeros((64, TILE), gl.float32, layout)
            # Lower products first: they are truncated beside their like, not beside the high words' sums.
            sums = warpgroup_mma(high_x, low_y, sums, use_acc=False, is_async=True)
            sums = warpgroup_mma(low_x, high_y, sums, is_async=True)
            x = left_scales.index(stage).slice(64 * WHICH, 64).load(rows)
            top_x = gl.maximum(top_x, x)
            top_y = gl.maximum(top_y, right_scales.index(stage).load(lanes))
            sums = warpgroup_mma_wait(0, deps=(sums,))
            sums = warpgroup_mma(high_x, high_y, sums * DOWN, is_async=True)
            sums = warpgroup_mma_wait(0, deps=(sums,))
            y = right_scales.index(stage).load(columns)
            # Scales are plain loads, which waiting for products does not cover: all threads have theirs when the stage
            # is given back.
            gl.thread_barrier()
            mbarrier.arrive(free.index(stage), count=1)
            acc = acc + sums * x[:, None] * y[None, :]
            stage, phase = next_stage(stage, phase, STAGES)
        batch, row, column = place_of(tile, tiles_m, tiles_n, GROUP)
        first_row = row * TILE + 64 * WHICH
        flag_tile(
            acc, top_x, top_y, flags, batch, first_row, column, m, n, flag_pitch, least, reach, far, slope, TILE
        )  # fmt: skip
        acc = add_row(acc, addend, adds, column, n, TILE)
        store_tile(acc, out, batch, first_row, column, m, n, row_step, batch_stride, TILE, EVEN)


@gluon.jit(
    do_not_specialize=[
        "m", "width", "k", "batches", "left_one", "right_one", "row_step", "batch_stride", "flag_pitch", "least",
        "reach", "far", "slope", "adds",
    ],
    do_not_specialize_on_alignment=["addend"],
)  # fmt: skip
def multiply_by_words(
    left, right, out, flags, addend, adds, counts, m, width, k, batches, left_one, right_one, row_step, batch_stride,
    flag_pitch, least, reach, far, slope,
    LEFT_ALONG: gl.constexpr, RIGHT_ALONG: gl.constexpr, AMPLIFIED: gl.constexpr, DOWN: gl.constexpr,
    TILE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr,
    CLEAR: gl.constexpr,
):  # fmt: skip
    """out (batches, m, width) = A·B of float32 matrices, and a flag on every entry that is not sure.

    left, right: TMA descriptors of (batch, vectors, terms) in boxes (1, TILE, DEPTH), or (batch, terms, vectors) in
    (1, DEPTH, TILE); ALONG: whether terms are neighbours; one: 1 where a matrix serves the whole batch. EVEN, flags,
    addend, adds and numbers from `least` on: as for `multiword.kernels.product_sm90.words_product`; counts, CLEAR: as
    for `words_split.split_words`. k >= 1.
    """
    words_of: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    left_words = gl.allocate_shared_memory(gl.float16, [STAGES * 2, TILE, DEPTH], words_of)
    right_words = gl.allocate_shared_memory(gl.float16, [STAGES * 2, TILE, DEPTH], words_of)
    left_elements = gl.allocate_shared_memory(
        gl.float32, [1, TILE if LEFT_ALONG else DEPTH, DEPTH if LEFT_ALONG else TILE], left.layout
    )
    right_elements = gl.allocate_shared_memory(
        gl.float32, [1, TILE if RIGHT_ALONG else DEPTH, DEPTH if RIGHT_ALONG else TILE], right.layout
    )
    left_scales = gl.allocate_shared_memory(gl.float32, [STAGES, TILE], _LINE)
    right_scales = gl.allocate_shared_memory(gl.float32, [STAGES, TILE], _LINE)
    arrived = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for side in gl.static_range(2):
        mbarrier.init(arrived.index(side), count=1)
    for stage in gl.static_range(STAGES):
        # Two groups fill a stage, one an operand, and two empty it.
        mbarrier.init(full.index(stage), count=2)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    if CLEAR:
        if gl.program_id(0) == 0:
            threads: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
            gl.store(counts + gl.arange(0, 4, layout=threads), gl.zeros([4], gl.int64, threads))
    gl.warp_specialize(
        [
            (_multiply, (
                0, out, flags, addend, adds, left_words, right_words, left_scales, right_scales, full, free, m, width,
                k, batches, row_step, batch_stride, flag_pitch, least, reach, far, slope, DOWN, TILE, DEPTH, STAGES,
                GROUP, EVEN,
            )),
            (_multiply, (
                1, out, flags, addend, adds, left_words, right_words, left_scales, right_scales, full, free, m, width,
                k, batches, row_step, batch_stride, flag_pitch, least, reach, far, slope, DOWN, TILE, DEPTH, STAGES,
                GROUP, EVEN,
            )),
            (_cut, (
                left, left_one, left_elements, left_words, left_scales, arrived.index(0), full, free, m, width, k,
                batches, True, LEFT_ALONG, AMPLIFIED, TILE, DEPTH, STAGES, GROUP,
            )),
            (_cut, (
                right, right_one, right_elements, right_words, right_scales, arrived.index(1), full, free, m, width, k,
                batches, False, RIGHT_ALONG, AMPLIFIED, TILE, DEPTH, STAGES, GROUP,
            )),
        ],
        [4, 4, 4],
        [152, 104, 104],
    )  # fmt: skip
