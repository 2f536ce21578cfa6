"""A conventional product of float64 or float32 matrices in one kernel, for sm90: one warp feeds two groups that
multiply.

What a product is, its bound, and what becomes of entries that are not finite is that of `direct`; here shared memory is
a ring that TMA fills, tiles are 128 x 64, of low results 64 x 128, and a persistent grid walks over them. Each group of
four warps multiplies 64 rows of 64 columns. It reads elements of the next 16 terms into registers while it multiplies
those of this 16, across steps and tiles, so that the matrix unit waits for nobody but at the end of a tile, whose
result is stored while the ring fills for the next one. Float32 elements become float64 numbers in registers. Where the
inner dimension is cut into parts, tiles of parts' sums are what the grid walks over, and `split_k` adds them.

Bytes: 1536 a term and tile, of float32 768, of which the L2 cache brings 5.9 TB/s to all tiles at once; 8 or 4 an
entry. Operations: 2·m·n·k. The matrix unit takes 2048 cycles for a step; a step of float64 takes 2134, or 1.12 µs on an
H200, a tile 1.2 µs besides and the kernel 3.5. cuBLAS takes 1.13 µs, and about 4.5 a wave of tiles: n = 1024 takes 40.7
µs (cuBLAS 40.7), 8 of these 296 (314), 512 at n = 256 325 (357). 64 rows, 65536 columns and 512 terms take 88 (93) in
tiles of 64 x 128, 155 in those of 128 x 64. docs/gpu.md has more, and what each part gave. Alternatives: boxes
of 64 bytes a line (13 % slower); results stored by the threads (20 % slower with short inner dimensions).

**Banks.** A warp reads elements of 8 vectors and 4 terms at once, of float64 in two halves of 4 vectors. TMA's swizzle
of 128 bytes puts term k of vector v, 16 terms a line, where bits 4 to 6 of the address are bits 1 to 3 of k xor bits 0
to 2 of v; of operands whose vectors are neighbours the same with k and v exchanged. No two of those elements share a
bank if the 4 terms differ in bits 0 and 2, and the 4 vectors too: so terms, rows and columns of the memory have their
bits 0 to 2 in another order to the matrix instruction (`placed`). The sum is over the same products, and the result is
stored where it belongs: neighbouring columns are one thread's, and rows that eight threads store at once differ in bit
2. Of float32 all orders are the memory's: along the terms, by lines of 64 bytes and their swizzle, no bank is shared;
along the vectors two elements share one, of half as many bytes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from prismm.cuda.kernels.fp64 import magnitude_word, wide
from prismm.cuda.native.kernels.product import LARGE, SLACK, TOP, largest_of_columns, largest_of_rows
from prismm.cuda.native.kernels.repair import repair_double, repair_single
from prismm.cuda.residues.kernels.product_sm90 import grouped, next_stage

EDGE, STRIP = 64, 8
"""Rows and columns of a group; rows of tiles in a strip."""
INNER = gl.constexpr(16)
"""Inner dimension of an instruction, and of a box that is copied."""
_LARGE_WORD = gl.constexpr(0x7FE00000)
"""The upper word of LARGE."""
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.constexpr_function
def placed(along, left):
    """Where float64 elements of 64 vectors and 16 terms lie that TMA has copied in a swizzle of 128 bytes: of memory
    along the terms, or along the vectors, 16 to a line; axes in the order of a left or a right operand.
    """
    v = [2, 4, 1, 8] if left else [1, 4, 2, 8]  # what the first bits of a vector and of a term are to the instruction
    k = [1, 4, 2, 8]
    if along:
        bases = [(0, x) for x in k] + [(v[x], k[x + 1]) for x in range(3)] + [(8, 0), (16, 0), (32, 0)]
    else:
        bases = [(x, 0) for x in v] + [(v[x + 1], k[x]) for x in range(3)] + [(0, 8), (16, 0), (32, 0)]
    return gl.SharedLinearLayout([list(x) if left else [x[1], x[0]] for x in bases], [], 1024)


@gluon.constexpr_function
def placed_single(along, left):
    """The same of float32 elements: along the terms by lines of 64 bytes and their swizzle; along the vectors, 32 to a
    line.
    """
    if along:
        bases = [(0, 1), (0, 2), (0, 4), (0, 8), (1, 0), (2, 4), (4, 8), (8, 0), (16, 0), (32, 0)]
    else:
        bases = [(1 << x, 0) for x in range(5)] + [(4 << x, 1 << x) for x in range(3)] + [(0, 8), (32, 0)]
    return gl.SharedLinearLayout([list(x) if left else [x[1], x[0]] for x in bases], [], 1024)


@gluon.constexpr_function
def placed_of(single, along, left):
    """`placed_single` or `placed`."""
    return placed_single(along, left) if single else placed(along, left)


MULTIPLIED = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]))
"""Which thread has which of a group's sums, counted as the matrix instruction does; and of operands."""
_LEFT = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]), 1))
_RIGHT = gl.constexpr(gl.DotOperandLayout(1, gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]), 1))
STORED = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [8, 0], [0, 16], [0, 32], [32, 0]],
        lane_bases=[[0, 4], [0, 2], [4, 0], [1, 0], [2, 0]],
        warp_bases=[[0, 8], [16, 0]],
        block_bases=[],
        shape=[64, 64],
    )
)
"""Which thread has which of a group's sums, counted as in memory."""


@gluon.jit
def _copy(source, matrix, vector, term, barrier, target, ALONG: gl.constexpr):
    if ALONG:
        tma.async_copy_global_to_shared(source, [matrix, vector, term], barrier, target)
    else:
        tma.async_copy_global_to_shared(source, [matrix, term, vector], barrier, target)


@gluon.jit
def _terms_of(t, k, length, parts, PARTED: gl.constexpr):
    """(matrix of the batch, first term, the one after the last) of a product, or of a part of one."""
    if PARTED:
        start = (t % parts) * length
        return t // parts, start, gl.minimum(start + length, k)
    else:
        return t, 0, k


@gluon.jit
def _feed(
    left, right, left_ring, right_ring, full, free, m, n, k, length, parts, products, left_one, right_one,
    SINGLE: gl.constexpr, PARTED: gl.constexpr, LEFT_ALONG: gl.constexpr, RIGHT_ALONG: gl.constexpr,
    DOWN: gl.constexpr, ACROSS: gl.constexpr, EDGE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    STRIP: gl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = gl.cdiv(m, DOWN * EDGE), gl.cdiv(n, ACROSS * EDGE)
    PIECES: gl.constexpr = DEPTH // INNER
    SIZE: gl.constexpr = 4 if SINGLE else 8
    stage = 0
    # The ring begins empty: waiting for the phase before the first one returns at once.
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n * products, gl.num_programs(0)):
        t = tile // (tiles_m * tiles_n)
        row, column = grouped(tile - t * (tiles_m * tiles_n), tiles_m, tiles_n, STRIP)
        matrix, start, end = _terms_of(t, k, length, parts, PARTED)
        of_left, of_right = matrix * (1 - left_one), matrix * (1 - right_one)
        for first in range(start, end, DEPTH):
            mbarrier.wait(free.index(stage), phase)
            mbarrier.expect(full.index(stage), (DOWN + ACROSS) * EDGE * DEPTH * SIZE)
            for piece in gl.static_range(PIECES):
                term = first + piece * INNER
                place = stage * PIECES + piece
                for x in gl.static_range(ACROSS):
                    _copy(
                        right, of_right, (column * ACROSS + x) * EDGE, term, full.index(stage),
                        right_ring.index(place * ACROSS + x), RIGHT_ALONG,
                    )  # fmt: skip
                for x in gl.static_range(DOWN):
                    _copy(
                        left, of_left, (row * DOWN + x) * EDGE, term, full.index(stage),
                        left_ring.index(place * DOWN + x), LEFT_ALONG,
                    )  # fmt: skip
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def _read(
    left_ring, right_ring, place, GROUP: gl.constexpr, DOWN: gl.constexpr, ACROSS: gl.constexpr, EDGE: gl.constexpr,
    SINGLE: gl.constexpr, LEFT_ALONG: gl.constexpr, RIGHT_ALONG: gl.constexpr,
):  # fmt: skip
    """16 terms of a group's rows, and of its columns."""
    KIND: gl.constexpr = gl.float32 if SINGLE else gl.float64
    left, right = left_ring.index(place * DOWN + GROUP % DOWN), right_ring.index(place * ACROSS + GROUP % ACROSS)
    x = left._reinterpret(KIND, [EDGE, INNER], placed_of(SINGLE, LEFT_ALONG, True))
    y = right._reinterpret(KIND, [INNER, EDGE], placed_of(SINGLE, RIGHT_ALONG, False))
    return x.load(_LEFT), y.load(_RIGHT)


@gluon.jit
def _bring(result, staging, value, t, i0, j0, EDGE: gl.constexpr):
    """A tile to where it belongs, by way of shared memory that nobody reads any more."""
    staging.store(value.reshape((1, EDGE, EDGE)))
    # TMA reads shared memory through another proxy: the fence shows it the stores, and the barrier waits for all
    # threads'.
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(result, [t, i0, j0], staging)


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, row_tops, column_tops,
    tops, result, staging, left_ring, right_ring, full, free, m, n, k, length, parts, products, few,
    SINGLE: gl.constexpr, PARTED: gl.constexpr, LEFT_ALONG: gl.constexpr, RIGHT_ALONG: gl.constexpr, DOWN: gl.constexpr,
    ACROSS: gl.constexpr, EDGE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, STRIP: gl.constexpr,
):  # fmt: skip
    PLACED: gl.constexpr = MULTIPLIED if SINGLE else STORED
    PIECES: gl.constexpr = DEPTH // INNER
    tiles_m, tiles_n = gl.cdiv(m, DOWN * EDGE), gl.cdiv(n, ACROSS * EDGE)
    tiles = tiles_m * tiles_n * products
    row_in, column_in = gl.arange(0, EDGE, gl.SliceLayout(1, PLACED)), gl.arange(0, EDGE, gl.SliceLayout(0, PLACED))
    stage = 0
    phase = 0
    # Every program has a tile, so that a first stage always comes.
    mbarrier.wait(full.index(0), 0)
    x, y = _read(left_ring, right_ring, 0, GROUP, DOWN, ACROSS, EDGE, SINGLE, LEFT_ALONG, RIGHT_ALONG)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        t = tile // (tiles_m * tiles_n)
        tile_row, tile_column = grouped(tile - t * (tiles_m * tiles_n), tiles_m, tiles_n, STRIP)
        _, start, end = _terms_of(t, k, length, parts, PARTED)
        more = tile + gl.num_programs(0) < tiles
        sums = gl.zeros([EDGE, EDGE], gl.float64, MULTIPLIED)
        if SINGLE:
            row_top = largest_of_rows(gl.zeros([EDGE, INNER], gl.float32, _LEFT), EDGE)
            column_top = largest_of_columns(gl.zeros([INNER, EDGE], gl.float32, _RIGHT), EDGE)
        for first in range(start, end, DEPTH):
            now = stage
            # The last 16 terms of a step are multiplied below: the ones read ahead then belong to the next stage.
            for piece in gl.static_range(1, PIECES):
                ahead_x, ahead_y = _read(
                    left_ring, right_ring, now * PIECES + piece, GROUP, DOWN, ACROSS, EDGE, SINGLE, LEFT_ALONG,
                    RIGHT_ALONG,
                )  # fmt: skip
                if SINGLE:
                    row_top = gl.maximum(row_top, largest_of_rows(x, EDGE))
                    column_top = gl.maximum(column_top, largest_of_columns(y, EDGE))
                sums = mma_v2(x.to(gl.float64), y.to(gl.float64), sums)
                x, y = ahead_x, ahead_y
            stage, phase = next_stage(stage, phase, STAGES)
            # What is read after the last step of all is not used.
            mbarrier.wait(full.index(stage), phase, pred=more | (first + DEPTH < end))
            ahead_x, ahead_y = _read(
                left_ring, right_ring, stage * PIECES, GROUP, DOWN, ACROSS, EDGE, SINGLE, LEFT_ALONG, RIGHT_ALONG
            )  # fmt: skip
            if SINGLE:
                row_top = gl.maximum(row_top, largest_of_rows(x, EDGE))
                column_top = gl.maximum(column_top, largest_of_columns(y, EDGE))
            sums = mma_v2(x.to(gl.float64), y.to(gl.float64), sums)
            x, y = ahead_x, ahead_y
            # One arrival counts for the group, so all its warps must have read the stage.
            gl.thread_barrier()
            mbarrier.arrive(free.index(now), count=1)
        value = sums
        if not SINGLE:
            value = sums.reshape((8, 2, 2, 2, 8, 2, 2, 2)).permute((0, 3, 1, 2, 4, 6, 5, 7)).reshape((EDGE, EDGE))
            value = gl.convert_layout(value, STORED, assert_trivial=True)
        i0, j0 = (tile_row * DOWN + GROUP % DOWN) * EDGE, (tile_column * ACROSS + GROUP % ACROSS) * EDGE
        row, column = i0 + row_in, j0 + column_in
        if SINGLE:
            of_row = gl.convert_layout(gl.max(row_top, 1), gl.SliceLayout(1, MULTIPLIED))
            of_column = gl.convert_layout(gl.max(column_top, 0), gl.SliceLayout(0, MULTIPLIED))
        # The copy of this group's tile before has read it, for all its threads.
        tma.store_wait(0)
        gl.thread_barrier()
        if PARTED:
            if SINGLE:  # tiles beside and above one another store the same
                gl.store(row_tops + wide(t) * m + row, of_row, mask=row < m)
                gl.store(column_tops + wide(t) * n + column, of_column, mask=column < n)
                gl.store(tops + wide(tile) * (DOWN * ACROSS) + GROUP, gl.max(of_row, 0) * gl.max(of_column, 0))
            _bring(result, staging, value, t, i0, j0, EDGE)
        else:
            if SINGLE:
                scale = k.to(gl.float64) * k.to(gl.float64) * SLACK
                error = scale * of_row.to(gl.float64)[:, None] * of_column.to(gl.float64)[None, :]
                recomputed = ~(gl.abs(sums) + error < TOP)
                doubtful = gl.max(recomputed.to(gl.int32).reshape([EDGE * EDGE]), 0) > 0
                value = sums.to(gl.float32)
            else:
                # Upper words compare as magnitudes do, NaN above all numbers, without a comparison in float64 for each
                # entry.
                doubtful = gl.max(magnitude_word(value).reshape([EDGE * EDGE]), 0) >= _LARGE_WORD
            if doubtful:
                if not SINGLE:
                    recomputed = ~(gl.abs(value) < LARGE)
                # By threads, not TMA: `repair_double` reads these entries back, which a copy under way may not have
                # written.
                target = out + wide(t) * m * n
                gl.store(
                    target + row.to(gl.int64)[:, None] * n + column[None, :], gl.where(recomputed, float("nan"), value),
                    mask=(row < m)[:, None] & (column < n)[None, :],
                )  # fmt: skip
                left, right = a + wide(t) * a_batch, b + wide(t) * b_batch
                if SINGLE:
                    repair_single(
                        left, a_row, a_step, right, b_column, b_step, target, counts, sums, error, row, column, i0, j0,
                        m, n, k, EDGE, EDGE, 4,
                    )  # fmt: skip
                else:
                    repair_double(
                        left, a_row, a_step, right, b_column, b_step, target, counts, i0, j0, m, n, k, few, EDGE,
                        EDGE, 4,
                    )  # fmt: skip
            else:
                _bring(result, staging, value, t, i0, j0, EDGE)
    # Shared memory has to last until the last copy has read it.
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["m", "n", "k", "length", "parts", "products", "left_one", "right_one", "few"])
def multiply_by_groups(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, row_tops, column_tops, tops, left, right,
    result, m, n, k, length, parts, products, left_one, right_one, few, SINGLE: gl.constexpr, PARTED: gl.constexpr,
    LEFT_ALONG: gl.constexpr, RIGHT_ALONG: gl.constexpr, DOWN: gl.constexpr, ACROSS: gl.constexpr,
    EDGE: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, STRIP: gl.constexpr,
):  # fmt: skip
    """out, contiguous, of so many products = AB. counts: as for `residues.kernels.repair.finish`; few:
    for `repair.repair_double`.

    left, right: TMA descriptors of (batch, vectors, terms) in boxes (1, 64, 16), or (batch, terms, vectors) in (1, 16,
    64); ALONG: whether terms are neighbours. one: 1 where one operand serves the whole batch. SINGLE: of float32. The
    two groups are one above the other, or side by side: DOWN and ACROSS are 2 and 1, or 1 and 2.

    PARTED: of the inner dimension in so many parts of a length, numbered faster than matrices of the batch: each is one
    of the products, whose float64 sums the result is; row_tops, column_tops, tops: as for `split_k.add_parts`.
    """
    PIECES: gl.constexpr = DEPTH // INNER
    KIND: gl.constexpr = gl.float32 if SINGLE else gl.float64
    RESULT: gl.constexpr = gl.float32 if SINGLE and not PARTED else gl.float64
    left_ring = gl.allocate_shared_memory(
        KIND, [STAGES * PIECES * DOWN, 1, EDGE if LEFT_ALONG else INNER, INNER if LEFT_ALONG else EDGE], left.layout
    )
    right_ring = gl.allocate_shared_memory(
        KIND, [STAGES * PIECES * ACROSS, 1, EDGE if RIGHT_ALONG else INNER, INNER if RIGHT_ALONG else EDGE],
        right.layout,
    )  # fmt: skip
    stored = gl.allocate_shared_memory(RESULT, [DOWN * ACROSS, 1, EDGE, EDGE], result.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    # A stage is full by the feeder's one arrival and its bytes, free once each group has arrived.
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=DOWN * ACROSS)
    # TMA works through another proxy, to which initialised barriers are not visible before a fence.
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (
                0, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, row_tops, column_tops, tops,
                result, stored.index(0), left_ring, right_ring, full, free, m, n, k, length, parts, products, few,
                SINGLE, PARTED, LEFT_ALONG, RIGHT_ALONG, DOWN, ACROSS, EDGE, DEPTH, STAGES, STRIP,
            )),
            (_multiply, (
                1, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, row_tops, column_tops, tops,
                result, stored.index(1), left_ring, right_ring, full, free, m, n, k, length, parts, products, few,
                SINGLE, PARTED, LEFT_ALONG, RIGHT_ALONG, DOWN, ACROSS, EDGE, DEPTH, STAGES, STRIP,
            )),
            (_feed, (
                left, right, left_ring, right_ring, full, free, m, n, k, length, parts, products, left_one, right_one,
                SINGLE, PARTED, LEFT_ALONG, RIGHT_ALONG, DOWN, ACROSS, EDGE, DEPTH, STAGES, STRIP,
            )),
        ],
        # Registers of a thread: 224 + 224 + 56 is what three times `maxnreg` = 168 gives at the launch.
        [4, 1],
        [224, 56],
    )  # fmt: skip
