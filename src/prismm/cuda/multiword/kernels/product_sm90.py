"""The product of words for sm90: one warp feeds two warpgroups of matrix instructions through shared memory.

A persistent grid walks over tiles of 128 x 128 entries. The feeding warp copies 128 bytes of the inner dimension of all
words at a time by TMA into a ring of stages; each consumer multiplies 64 rows. High words are summed in one set of
registers, all other products in a second one, over a chunk of the inner dimension; then both are scaled and added to
the result, in float32 to nearest, so that the matrix unit's truncation does not grow with k. Entries are certified
where they are: no other kernel reads them.

Chunks of two steps are queued by one group after the other, so that one's roundings take place while the matrix unit
works for the other one: n = 2048 in 83 us where both at once took 89, 4096 in 617 for 630. Chunks of one step gain
nothing by that, and longer ones would need more stages.

Registers of a consumer: 3·64 for the sums, 34 for the scales; 240 allowed, which is why a tile is no wider. Shared
memory: 64 KiB a stage.

Operations: 2·m·n·k a product of words, 3 of them for two words. Bytes: 2·(m + n)·k a word, times the tiles that read
them again. At n = 8192 FP16 words could take 4.3 ms at cuBLAS's rate on an H200 (764 TFLOP/s); measured: 4.7 ms,
91 %, and 97 % at n = 4096. TF32 words 8.8 ms. Chunks of 256 cost 8 % more, of 128 20 %. GROUP 4 or 16: no difference.

Of 64 products at n = 512, in chunks of one step, an H200 took 134 us. By parts taken out: flags 27, results written
from registers 16, roundings 20; 72 are left, 67 at cuBLAS's rate. Scales were waited for at every chunk, and are read a
chunk ahead now; results leave by TMA through the stage that the tile read last; that all is sure is told by a row's
smallest entry: 110 us. Words of neighbours side by side in memory, so that boxes are whole lines, made no difference.

Few tiles and a long inner dimension leave processors idle. There a tile's chunks are shared (SPLIT): a unit of the grid
makes one share of one tile, without a test, and `join.add_shares` adds and tests them.
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
from triton.language import PropagateNan

from prismm.cuda.kernels.fp64 import even
from prismm.cuda.residues.kernels.product_sm90 import next_stage, plane_and_place, tiles_of_plane

_NAN = gl.constexpr(PropagateNan.ALL)
TILE, GROUP = 128, 8
STAGES = {2: 3, 3: 2}
"""By the words of an operand."""
LAUNCH = {"num_warps": 4, "maxnreg": 168}


def leaves_by_tma(words: int, chunk: int) -> bool:
    """Whether a tile's entries may leave through the stage that it read last, which is given back after the next tile's
    first chunk: one of as many steps as there are stages would wait for it for ever.
    """
    return chunk < STAGES[words]


@gluon.jit
def place_of(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """(batch, row, column) of a tile, in an order by which GROUP rows of tiles share what they read."""
    batch = tile // (tiles_m * tiles_n)
    tile = tile - batch * (tiles_m * tiles_n)
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    rest = tile - group * (GROUP * tiles_n)
    return batch, first + rest % height, rest // height


@gluon.jit
def _place_of(tile, tiles_m, tiles_n, order, kept, GROUP: gl.constexpr, LOWER: gl.constexpr):
    """`place_of`; LOWER: of the tiles that are kept, from their table (`residues.kernels.product_sm90`)."""
    if LOWER:
        batch, row, column = plane_and_place(tile, tiles_m, tiles_n, order, kept, GROUP, True)
    else:
        batch, row, column = place_of(tile, tiles_m, tiles_n, GROUP)
    return batch, row, column


@gluon.jit
def _share_of(unit, tiles, steps, shares, CHUNK: gl.constexpr, SPLIT: gl.constexpr):
    """(share, tile, first step, step after the last) of a unit; SPLIT: all tiles' first shares come first."""
    share = unit * 0
    tile = unit
    begin = unit * 0
    end = steps
    if SPLIT:
        share = unit // tiles
        tile = unit - share * tiles
        chunks = gl.cdiv(steps, CHUNK)
        begin = share * chunks // shares * CHUNK
        end = gl.minimum(steps, (share + 1) * chunks // shares * CHUNK)
    return share, tile, begin, end


@gluon.jit
def _feed(
    words, left_ring, right_ring, full, free, m, n, pitch, batches, order, kept, shares,
    WORDS: gl.constexpr, CHUNK: gl.constexpr, TILE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, LOWER: gl.constexpr, SAME: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    tiles_m = gl.cdiv(m, TILE)
    tiles_n = gl.cdiv(n, TILE)
    steps = gl.cdiv(pitch, DEPTH)
    stage = 0
    # All stages are free at first: a wait for the phase before the first one returns at once.
    phase = 1
    tiles = tiles_of_plane(tiles_m, tiles_n, kept, LOWER) * batches
    for unit in range(gl.program_id(0), tiles * (shares if SPLIT else 1), gl.num_programs(0)):
        _, tile, begin, end = _share_of(unit, tiles, steps, shares, CHUNK, SPLIT)
        batch, row, column = _place_of(tile, tiles_m, tiles_n, order, kept, GROUP, LOWER)
        i = batch * m + row * TILE
        j = (0 if SAME else WORDS * batches * m) + batch * n + column * TILE
        for step in range(begin, end):
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(full.index(stage), 2 * WORDS * words.block_type.nbytes)
            for w in gl.static_range(WORDS):
                tma.async_copy_global_to_shared(
                    words, [i + w * batches * m, step * DEPTH], full.index(stage), left_ring.index(stage * WORDS + w)
                )
                tma.async_copy_global_to_shared(
                    words, [j + w * batches * n, step * DEPTH], full.index(stage), right_ring.index(stage * WORDS + w)
                )
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def _smaller(x, y):
    return gl.minimum(x, y, _NAN)


@gluon.jit
def flag_tile(
    acc, top_x, top_y, flags, batch, first_row, column, m, n, flag_pitch, least, reach, far, slope, TILE: gl.constexpr
):
    """The flags of 64 rows of a tile; top_x, top_y: largest scales of rows and columns.

    Mostly all entries are sure, which a row's smallest one and the largest scales tell more cheaply than the test does:
    largest·far overflows where an entry might, slope is least/far, and NaN stays NaN.
    """
    # |entry - exact| <= gamma·(|a||b|) + k·floor·largest: see `cuda.multiword.launches`.
    stored: gl.constexpr = gl.BlockedLayout([1, TILE // 32], [32, 1], [4, 1], [1, 0])
    top = top_x * far.to(gl.float32, bitcast=True) * gl.max(top_y, 0)
    room = gl.reduce(gl.abs(acc), 1, _smaller) - top * slope.to(gl.float32, bitcast=True)
    if gl.reduce(room, 0, _smaller) >= 0.0:
        word = gl.zeros([64, TILE // 32], gl.int32, stored)
    else:
        i = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, acc.type.layout))
        j = column * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, acc.type.layout))
        largest = top_x[:, None] * gl.convert_layout(top_y, gl.SliceLayout(0, acc.type.layout))[None, :]
        size = gl.abs(acc)
        sure = (size >= largest * least.to(gl.float32, bitcast=True)) & (
            size + largest * reach.to(gl.float32, bitcast=True) < 170141183460469231731687303715884105728.0
        )  # 2^127
        inside = (i < m)[:, None] & (j < n)[None, :]
        bits = gl.where(inside & ~sure, 1, 0) << (j & 31)[None, :]
        word = gl.convert_layout(gl.sum(bits.reshape([64, TILE // 32, 32]), 2), stored)
    iw = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, stored))
    jw = column * (TILE // 32) + gl.arange(0, TILE // 32, layout=gl.SliceLayout(0, stored))
    at_word = flags + (batch * m + iw).to(gl.int64)[:, None] * flag_pitch + jw[None, :]
    gl.store(at_word, word, mask=(iw < m)[:, None] & (jw < flag_pitch)[None, :])


@gluon.jit
def store_tile(
    acc, out, batch, first_row, column, m, n, row_step, batch_stride, TILE: gl.constexpr, EVEN: gl.constexpr
):
    """64 rows of a tile to where they belong, from registers."""
    i = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, acc.type.layout))
    j = column * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, acc.type.layout))
    target = out + batch.to(gl.int64) * even(batch_stride, EVEN) + i.to(gl.int64) * even(row_step, EVEN)
    gl.store(target[:, None] + j[None, :], acc, mask=(i < m)[:, None] & (j < n)[None, :])


@gluon.jit
def add_row(acc, addend, adds, column, n, TILE: gl.constexpr):
    """acc + the row at `addend`, in float32 to nearest, where adds is not 0."""
    if adds != 0:
        j = column * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, acc.type.layout))
        acc = acc + gl.load(addend + j, mask=j < n, other=0.0)[None, :]
    return acc


@gluon.jit
def _bring(acc, result, ring, place, batch, first_row, column, TILE: gl.constexpr):
    """The same by TMA, through a ring's memory from a place on, which all have read: it is read while the next tile's
    products are made, and `tma.store_wait` says when it has been.
    """
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=3)
    box = ring.index(place)._reinterpret(gl.float32, [1, 64, TILE], layout)
    box.store(acc.reshape([1, 64, TILE]))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(result, [batch, first_row, column * TILE], box)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, out, result, scales, flags, addend, adds, m, width, pitch, batches, row_step, batch_stride,
    flag_pitch, least, reach, far, slope, left_ring, right_ring, full, free, done, turn, order, kept, shares,
    WORDS: gl.constexpr, DOWN: gl.constexpr, CHUNK: gl.constexpr, TILE: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, INSTRUCTION: gl.constexpr, EVEN: gl.constexpr, BRING: gl.constexpr,
    LOWER: gl.constexpr, SAME: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, INSTRUCTION]
    )
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    columns: gl.constexpr = gl.SliceLayout(0, layout)
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    n = even(width, EVEN)
    tiles_m = gl.cdiv(m, TILE)
    tiles_n = gl.cdiv(n, TILE)
    steps = gl.cdiv(pitch, DEPTH)
    left_vectors = 0 if SAME else (batches * m + 15) // 16 * 16
    vectors = left_vectors + (batches * n + 15) // 16 * 16
    stage = 0
    phase = 0
    held = 0
    write_phase = 0
    # Group 0 begins: it waits for a phase that counts as over, group 1 for group 0's first turn.
    turned = 1 - WHICH
    # A longer chunk needs stages that the other group gives back, so that turns would never end.
    IN_TURN: gl.constexpr = (CHUNK > 1) & (CHUNK < STAGES)
    first = gl.program_id(0)
    tiles = tiles_of_plane(tiles_m, tiles_n, kept, LOWER) * batches
    units = tiles * (shares if SPLIT else 1)
    share, tile, begin, end = _share_of(first, tiles, steps, shares, CHUNK, SPLIT)
    batch, row, column = _place_of(tile, tiles_m, tiles_n, order, kept, GROUP, LOWER)
    next_share, next_begin, next_end = share, begin, end
    next_batch, next_row, next_column = batch, row, column
    # Scales are read past the ends of a batch, for entries that are not stored; a chunk before they are needed, even
    # a tile's first ones. A thread of the sums needs 32 of the columns', which come through shared memory then.
    row_scale = scales + begin // CHUNK * vectors + (batch * m + row * TILE + 64 * WHICH)
    column_scale = scales + begin // CHUNK * vectors + (left_vectors + batch * n + column * TILE)
    x = gl.load(row_scale + gl.arange(0, 64, layout=rows))
    y1 = gl.load(column_scale + gl.arange(0, TILE, layout=lanes))
    for unit in range(first, units, gl.num_programs(0)):
        top_x = gl.zeros((64,), gl.float32, rows)
        top_y = gl.zeros((TILE,), gl.float32, lanes)
        acc = gl.zeros((64, TILE), gl.float32, layout)
        for start in range(begin, end, CHUNK):
            high = gl.zeros((64, TILE), gl.float32, layout)
            rest = gl.zeros((64, TILE), gl.float32, layout)
            if IN_TURN:
                mbarrier.wait(turn.index(WHICH), turned)
                turned ^= 1
            for step in range(start, gl.minimum(end, start + CHUNK)):
                mbarrier.wait(full.index(stage), phase)
                at = stage * WORDS
                # Products of the lowest words first, so that a large sum truncates as few of them as can be.
                for total in gl.static_range(WORDS - 1):
                    for w in gl.static_range(WORDS - total):
                        rest = warpgroup_mma(
                            left_ring.index(at + w).slice(64 * WHICH, 64),
                            right_ring.index(at + (WORDS - 1 - total - w)).permute((1, 0)), rest,
                            use_acc=(step > start) | (total + w > 0), is_async=True,
                        )  # fmt: skip
                high = warpgroup_mma(
                    left_ring.index(at).slice(64 * WHICH, 64), right_ring.index(at).permute((1, 0)), high,
                    use_acc=step > start, is_async=True,
                )  # fmt: skip
                high, rest = warpgroup_mma_wait(WORDS * (WORDS + 1) // 2, deps=(high, rest))
                # All but the last step's products have read their stages.
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1, pred=step > start)
                stage, phase = next_stage(stage, phase, STAGES)
            if IN_TURN:
                mbarrier.arrive(turn.index(1 - WHICH), count=1)
            # While products are made.
            if start == begin:
                after = gl.minimum(unit + gl.num_programs(0), units - 1)
                next_share, tile, next_begin, next_end = _share_of(after, tiles, steps, shares, CHUNK, SPLIT)
                next_batch, next_row, next_column = _place_of(tile, tiles_m, tiles_n, order, kept, GROUP, LOWER)
            if start + CHUNK < end:
                row_scale += vectors
                column_scale += vectors
            else:
                row_scale = scales + next_begin // CHUNK * vectors + (next_batch * m + next_row * TILE + 64 * WHICH)
                column_scale = (
                    scales + next_begin // CHUNK * vectors + (left_vectors + next_batch * n + next_column * TILE)
                )
            next_x = gl.load(row_scale + gl.arange(0, 64, layout=rows))
            next_y = gl.load(column_scale + gl.arange(0, TILE, layout=lanes))
            high, rest = warpgroup_mma_wait(0, deps=(high, rest))
            if BRING:
                # A tile's last stage is given back a chunk late: the tile leaves through it.
                more = start + CHUNK < end
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1, pred=more)
                tma.store_wait(0)
                gl.thread_barrier()
                mbarrier.arrive(free.index(held), count=1, pred=(start == begin) & (unit > first))
            else:
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1)
            high = high + rest * DOWN
            top_x = gl.maximum(top_x, x)
            top_y = gl.maximum(top_y, y1)
            acc = acc + high * x[:, None] * gl.convert_layout(y1, columns)[None, :]
            x, y1 = next_x, next_y
        held = (stage + (STAGES - 1)) % STAGES
        first_row = row * TILE + 64 * WHICH
        if BRING:
            mbarrier.arrive(done, count=1)
        plane = batch
        if SPLIT:
            plane = share * batches + batch
        else:
            flag_tile(
                acc, top_x, top_y, flags, batch, first_row, column, m, n, flag_pitch, least, reach, far, slope, TILE
            )  # fmt: skip
            # Of three words there are no registers for it.
            if WORDS == 2:
                acc = add_row(acc, addend, adds, column, n, TILE)
        if BRING:
            # Each group's result overwrites words that the other one may still multiply.
            mbarrier.wait(done, write_phase)
            write_phase ^= 1
            ring = left_ring if WHICH == 0 else right_ring
            _bring(acc, result, ring, held * WORDS, plane, first_row, column, TILE)
        else:
            store_tile(acc, out, plane, first_row, column, m, n, row_step, batch_stride, TILE, EVEN)
        share, begin, end = next_share, next_begin, next_end
        batch, row, column = next_batch, next_row, next_column
    if BRING:
        tma.store_wait(0)


@gluon.jit
def _walk(
    words, out, result, scales, flags, addend, adds, m, width, pitch, batches, row_step, batch_stride, flag_pitch,
    least, reach, far, slope, order, kept, shares, WORDS: gl.constexpr, DOWN: gl.constexpr, CHUNK: gl.constexpr,
    TILE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr,
    BRING: gl.constexpr, LOWER: gl.constexpr, SAME: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    left_ring = gl.allocate_shared_memory(words.dtype, [STAGES * WORDS, TILE, DEPTH], words.layout)
    right_ring = gl.allocate_shared_memory(words.dtype, [STAGES * WORDS, TILE, DEPTH], words.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout()).index(0)
    mbarrier.init(done, count=2)
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(turn.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gl.static_assert((not BRING) or CHUNK < STAGES)
    INSTRUCTION: gl.constexpr = 256 // words.dtype.primitive_bitwidth
    gl.warp_specialize(
        [
            (_multiply, (
                0, out, result, scales, flags, addend, adds, m, width, pitch, batches, row_step, batch_stride,
                flag_pitch, least, reach, far, slope, left_ring, right_ring, full, free, done, turn, order, kept,
                shares, WORDS, DOWN, CHUNK, TILE, DEPTH, STAGES, GROUP, INSTRUCTION, EVEN, BRING, LOWER, SAME, SPLIT,
            )),
            (_multiply, (
                1, out, result, scales, flags, addend, adds, m, width, pitch, batches, row_step, batch_stride,
                flag_pitch, least, reach, far, slope, left_ring, right_ring, full, free, done, turn, order, kept,
                shares, WORDS, DOWN, CHUNK, TILE, DEPTH, STAGES, GROUP, INSTRUCTION, EVEN, BRING, LOWER, SAME, SPLIT,
            )),
            (_feed, (
                words, left_ring, right_ring, full, free, m, width, pitch, batches, order, kept, shares, WORDS, CHUNK,
                TILE, DEPTH, STAGES, GROUP, LOWER, SAME, SPLIT,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit(
    do_not_specialize=[
        "m", "width", "pitch", "batches", "row_step", "batch_stride", "flag_pitch", "least", "reach", "far",
        "slope", "shares", "adds",
    ],
    do_not_specialize_on_alignment=["addend"],
)  # fmt: skip
def words_product(
    words, out, result, scales, flags, addend, adds, m, width, pitch, batches, row_step, batch_stride, flag_pitch,
    least, reach, far, slope, shares, WORDS: gl.constexpr, DOWN: gl.constexpr, CHUNK: gl.constexpr, TILE: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr, BRING: gl.constexpr,
    SPLIT: gl.constexpr,
):  # fmt: skip
    """out (batches, m, width) = A·B, and a flag on every entry that is not sure.

    words: TMA descriptor of `split_words`'s rows, boxes (TILE, DEPTH); CHUNK in steps of DEPTH. EVEN: width and
    strides are multiples of 16. result: descriptor of out, boxes (1, 64, TILE), where BRING says that there is one. An
    entry is sure if least·largest <= |entry| and |entry| + reach·largest < 2^127, `largest` being the product of its
    row's and its column's largest scales; far, slope: of `flag_tile`; all four numbers are patterns of float32.

    adds: whether the row at `addend`, width numbers, is added to each row, in float32 to nearest, after all that.

    SPLIT: out (shares, batches, m, width) takes the sums of so many shares of the chunks, of one chunk at least each;
    no flag is written, and nothing added.
    """
    _walk(
        words, out, result, scales, flags, addend, adds, m, width, pitch, batches, row_step, batch_stride, flag_pitch,
        least, reach, far, slope, flags, 0, shares, WORDS, DOWN, CHUNK, TILE, DEPTH, STAGES, GROUP, EVEN, BRING,
        False, False, SPLIT,
    )  # fmt: skip


@gluon.jit(
    do_not_specialize=[
        "m", "width", "pitch", "batches", "row_step", "batch_stride", "flag_pitch", "least", "reach", "far",
        "slope", "kept",
    ]
)  # fmt: skip
def symmetric_words_product(
    words, out, result, scales, flags, order, m, width, pitch, batches, row_step, batch_stride, flag_pitch, least,
    reach, far, slope, kept, WORDS: gl.constexpr, DOWN: gl.constexpr, CHUNK: gl.constexpr, TILE: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, EVEN: gl.constexpr, BRING: gl.constexpr,
    SAME: gl.constexpr,
):  # fmt: skip
    """`words_product` of the tiles of a matrix that `order` names, so many of them: 65536 times a tile's row, and its
    column. SAME: columns are the rows, split once.
    """
    _walk(
        words, out, result, scales, flags, scales, 0, m, width, pitch, batches, row_step, batch_stride, flag_pitch,
        least, reach, far, slope, order, kept, 1, WORDS, DOWN, CHUNK, TILE, DEPTH, STAGES, GROUP, EVEN, BRING, True,
        SAME, False,
    )  # fmt: skip
