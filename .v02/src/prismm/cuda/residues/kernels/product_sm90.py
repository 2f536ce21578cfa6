"""The product of residue planes for sm90: one warp feeds two warpgroups of matrix instructions through shared memory.

A persistent grid walks over the tiles (128 x 256) of all moduli. The feeding warp copies 128 bytes of the inner
dimension at a time by TMA into a ring of four stages; each consumer multiplies 64 rows, in two halves of 128 columns.
The right operand's rows are permuted (`split.plane_row`), so that a thread of the epilogue holds 16 neighbouring bytes.

Reducing and storing a half takes 1600 cycles, in which the matrix unit would wait: both consumers come to the end of a
tile together, since they share what is in the ring. So the last AHEAD stages are multiplied into the first half before
any of them into the second one, and the second half's instructions run while the first half is reduced and stored; in
the next tile the first half's instructions of AHEAD stages run while the second half is. Of 21.2 thousand cycles a tile
at k = 2048, whose products are 16.4, 19.6 are left. In time that is less, as power lowers the clock: a matrix of order
1024, 2048, 4096, 8192 takes 10, 7, 4.5, 2 % less than with all of the epilogue at the end. Alternatives without further
gain: three sets of sums, so that the whole of a tile's second half waits for the next tile's instructions; AHEAD of 1
and 3; a consumer that starts later; tiles that are as long as they are high; 192 rows.

`symmetric_residue_product` leaves out tiles that lie above the diagonal: which ones are made it reads from a table.
Where both operands are one matrix, both are the right one's planes, whose rows are permuted and whose residues have no
factor: so rows go back to their order, and sums are multiplied by the factor, when they are reduced.

`strassen_products` makes the seven products of `strassen`: the same tiles in the same turns, each from a
quarter of an operand or of its sums, found by TMA from where that begins.

Registers: 24 a thread for the feeder, 240 for the consumers (maxnreg 168 at launch holds the sum); shared memory 192
KiB. Sums stay below 2^29 + 2^24: CHUNK is 2^15 products, and AHEAD stages more may come before and after. See `product`
for operations, bytes and the reduction.
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

from prismm.cuda.residues.kernels import strassen as strassen

CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, AHEAD = 2, 256, 128, 4, 8, 2
ROWS = 64 * CONSUMERS
LAUNCH = {"num_warps": 4, "maxnreg": 168}


def _reduction(sums: int, times: bool = False) -> str:
    """Assembly of `product.reduced`: of one sum, or of four to the bytes of a word.

    Operands: the result, the sums, p, magic, bias, and where residues are multiplied (times) a factor in [0, p). One
    more p than `product.reduced` adds changes no residue; a sum of three numbers goes to another unit than the
    products. A residue below 2p times the factor is below 2^17, of which the quotient is too small by 1 at most, too.
    """
    p, magic, bias, factor = (f"${1 + sums + x}" for x in range(4))
    again = f"mad.lo.s32 u, r#, {factor}, 0; mul.hi.u32 q, u, {magic}; mad.lo.s32 r#, q, n, u; " if times else ""
    lines = [f"{{ .reg .b32 u, q, s, l, h, n, r<4>; neg.s32 n, {p};"]
    for x in range(sums):
        lines.append(
            f"add.s32 u, ${1 + x}, {bias}; add.s32 u, u, {p}; mul.hi.u32 q, u, {magic}; "
            f"mad.lo.s32 r{x}, q, n, u; {again.replace('#', str(x))}sub.s32 s, r{x}, {p}; min.u32 r{x}, r{x}, s;"
        )
    if sums == 1:
        lines.append("mov.b32 $0, r0; }")
    else:
        lines.append("prmt.b32 l, r0, r1, 0x0040; prmt.b32 h, r2, r3, 0x0040; prmt.b32 $0, l, h, 0x5410; }")
    return " ".join(lines)


_OF_ONE, _OF_FOUR = gl.constexpr(_reduction(1)), gl.constexpr(_reduction(4))
_OF_FOUR_TIMES = gl.constexpr(_reduction(4, times=True))
_LEFT_SUMS, _RIGHT_SUMS = gl.constexpr(strassen.LEFT_SUMS), gl.constexpr(strassen.RIGHT_SUMS)
_SECOND_VECTORS, _SECOND_TERMS = gl.constexpr(strassen.SECOND_VECTORS), gl.constexpr(strassen.SECOND_TERMS)


@gluon.jit
def grouped(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile, in columns of GROUP rows: neighbours share what they read."""
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    rest = tile - group * (GROUP * tiles_n)
    return first + rest % height, rest // height


@gluon.jit
def plane_and_place(tile, tiles_m, tiles_n, order, kept, GROUP: gl.constexpr, LOWER: gl.constexpr):
    """The plane of a tile, and its row and column there; LOWER: as a table of the tiles that are kept has it."""
    if LOWER:
        plane = tile // kept
        place = gl.load(order + (tile - plane * kept))
        row, column = place >> 16, place & 65535
    else:
        plane = tile // (tiles_m * tiles_n)
        row, column = grouped(tile - plane * (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    return plane, row, column


@gluon.jit
def tiles_of_plane(tiles_m, tiles_n, kept, LOWER: gl.constexpr):
    """Tiles of a plane."""
    return kept if LOWER else tiles_m * tiles_n


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The stage after this one, and what its barriers' phase is then."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase = phase ^ 1
    return stage, phase


@gluon.jit
def _copy_rows(left, i, h, full, left_ring, stage, CONSUMERS: gl.constexpr):
    """64 rows from i on for each consumer, from element h on."""
    for c in gl.static_range(CONSUMERS):
        tma.async_copy_global_to_shared(
            left, [i + 64 * c, h], full.index(stage), left_ring.index(stage * CONSUMERS + c)
        )


@gluon.jit
def _feed(
    left, right, left_sums, right_sums, left_ring, right_ring, full, free, m, n, left_rows, right_rows, pitch, moduli,
    left_step, right_step, batch, order, kept, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, AHEAD: gl.constexpr, QUARTERS: gl.constexpr, LOWER: gl.constexpr,
):  # fmt: skip
    tiles_m = gl.cdiv(m, 64 * CONSUMERS)
    tiles_n = gl.cdiv(n, COLUMNS)
    # A tile's beginning and its end take AHEAD stages each, however short k is; beyond the pitch TMA fills in zeros,
    # which add nothing.
    steps = gl.maximum(gl.cdiv(pitch, DEPTH), 2 * AHEAD)
    stage = 0
    # All stages are free at first: a wait for the phase before the first one returns at once.
    phase = 1
    tiles = tiles_of_plane(tiles_m, tiles_n, kept, LOWER)
    for tile in range(gl.program_id(0), tiles * moduli * batch, gl.num_programs(0)):
        plane, row, column = plane_and_place(tile, tiles_m, tiles_n, order, kept, GROUP, LOWER)
        matrix = plane // moduli
        t = plane - matrix * moduli
        if QUARTERS:
            of_left, of_right = (_LEFT_SUMS >> matrix) & 1, (_RIGHT_SUMS >> matrix) & 1
            second = (_SECOND_VECTORS >> matrix) & 1
            start = ((_SECOND_TERMS >> matrix) & 1) * pitch
            i = t * (left_rows + of_left * (2 * m - left_rows)) + second * m + row * (64 * CONSUMERS)
            j = t * (right_rows + of_right * (2 * n - right_rows)) + second * n + column * COLUMNS
        else:
            i = (t + matrix * left_step) * left_rows + row * (64 * CONSUMERS)
            j = (t + matrix * right_step) * right_rows + column * COLUMNS
        for step in range(steps):
            mbarrier.wait(free.index(stage), phase)
            # TMA counts whole boxes, also where they hang over a matrix.
            mbarrier.expect(full.index(stage), (64 * CONSUMERS + COLUMNS) * DEPTH)
            if QUARTERS:
                h = start + step * DEPTH
                if of_left != 0:
                    _copy_rows(left_sums, i, h, full, left_ring, stage, CONSUMERS)
                else:
                    _copy_rows(left, i, h, full, left_ring, stage, CONSUMERS)
                if of_right != 0:
                    tma.async_copy_global_to_shared(right_sums, [j, h], full.index(stage), right_ring.index(stage))
                else:
                    tma.async_copy_global_to_shared(right, [j, h], full.index(stage), right_ring.index(stage))
            else:
                _copy_rows(left, i, step * DEPTH, full, left_ring, stage, CONSUMERS)
                tma.async_copy_global_to_shared(right, [j, step * DEPTH], full.index(stage), right_ring.index(stage))
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def _begin(sums, left_ring, right_ring, stage, PART: gl.constexpr, HALF: gl.constexpr, CONSUMERS: gl.constexpr,
           WIDTH: gl.constexpr, USED: gl.constexpr):  # fmt: skip
    """Begin to add a stage's products of 64 rows and one half of the columns."""
    return warpgroup_mma(
        left_ring.index(stage * CONSUMERS + PART), right_ring.index(stage).slice(HALF * WIDTH, WIDTH).permute((1, 0)),
        sums, use_acc=USED, is_async=True,
    )  # fmt: skip


@gluon.jit
def _reduced(sums, p, magic, bias):
    return gl.inline_asm_elementwise(
        _OF_ONE, "=r,r,r,r,r", [sums, p, magic, bias], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def _store(sums, p, magic, bias, factor, digits, plane, pitch, t, row, column, rows, SAME: gl.constexpr):
    """Reduce 64 x 128 sums, and store them from a row and column of plane t on, up to `rows`; digits, plane and pitch
    in words of four bytes. SAME: times a factor, and rows stand as those of a right operand. Written so that it stays
    where it is, beside the products of the other half.
    """
    x = sums.reshape((64, 2, 8, 4, 2)).permute((0, 1, 3, 2, 4)).reshape((64, 32, 2, 2))
    even, odd = gl.split(x)
    x0, x2 = gl.split(even)
    x1, x3 = gl.split(odd)
    if SAME:
        words = gl.inline_asm_elementwise(
            _OF_FOUR_TIMES, "=r,r,r,r,r,r,r,r,r", [x0, x1, x2, x3, p, magic, bias, factor], dtype=gl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
    else:
        words = gl.inline_asm_elementwise(
            _OF_FOUR, "=r,r,r,r,r,r,r,r", [x0, x1, x2, x3, p, magic, bias], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
    L: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [8, 0], [0, 16]],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
    # Since planes of the right operand are permuted, no value changes its thread: shared memory is left to the ring.
    words = gl.convert_layout(words, L, assert_trivial=True)
    i = gl.arange(0, 64, layout=gl.SliceLayout(1, L))
    if SAME:
        # The vector that `split.plane_row` puts there.
        i = 16 * (i % 8 // 2) + 2 * (i // 8) + i % 2
    i = row + i
    j = column // 4 + gl.arange(0, 32, layout=gl.SliceLayout(0, L))
    at = digits + t.to(gl.int64) * plane + i.to(gl.int64) * pitch
    gl.store(at[:, None] + j[None, :], words, mask=(i < rows)[:, None] & (j < pitch)[None, :])


@gluon.jit
def _multiply(
    PART: gl.constexpr, digits, reduction, left_ring, right_ring, full, free, m, n, pitch, row_pitch, plane, moduli,
    batch, order, factors, kept, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, AHEAD: gl.constexpr, CHUNK: gl.constexpr, LONG: gl.constexpr,
    LOWER: gl.constexpr, SAME: gl.constexpr,
):  # fmt: skip
    # Triton 3.6 compiles no INT8 instruction of 256 columns; halves are multiplied apart here anyway.
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    WIDTH: gl.constexpr = COLUMNS // 2
    tiles_m = gl.cdiv(m, 64 * CONSUMERS)
    tiles_n = gl.cdiv(n, COLUMNS)
    steps = gl.maximum(gl.cdiv(pitch, DEPTH), 2 * AHEAD)
    stage = 0
    phase = 0
    # The second half of the tile before is still to be stored.
    second = gl.zeros((64, WIDTH), gl.int32, layout)
    # Before the first tile there is none: with 0 rows the mask of `_store` is empty.
    last_t, last_row, last_column, last_rows, last_p, last_magic, last_bias = 0, 0, 0, 0, 0, 0, 0
    last_factor = 0
    tiles = tiles_of_plane(tiles_m, tiles_n, kept, LOWER)
    for tile in range(gl.program_id(0), tiles * moduli * batch, gl.num_programs(0)):
        first = gl.zeros((64, WIDTH), gl.int32, layout)
        again = stage
        for x in gl.static_range(AHEAD):
            mbarrier.wait(full.index(stage), phase)
            first = _begin(first, left_ring, right_ring, stage, PART, 0, CONSUMERS, WIDTH, x > 0)
            stage, phase = next_stage(stage, phase, STAGES)
        _store(
            second, last_p, last_magic, last_bias, last_factor, digits, plane, row_pitch, last_t, last_row, last_column,
            last_rows, SAME,
        )  # fmt: skip
        second = gl.zeros((64, WIDTH), gl.int32, layout)
        # A stage is free only when both halves have read it, so the first ones are given back here.
        for x in gl.static_range(AHEAD):
            second = _begin(second, left_ring, right_ring, (again + x) % STAGES, PART, 1, CONSUMERS, WIDTH, x > 0)
            first, second = warpgroup_mma_wait(1, deps=(first, second))
            if x > 0:
                mbarrier.arrive(free.index((again + x - 1) % STAGES), count=1)
        # While these products run.
        t, tile_row, tile_column = plane_and_place(tile, tiles_m, tiles_n, order, kept, GROUP, LOWER)
        row = tile_row * (64 * CONSUMERS) + 64 * PART
        column = tile_column * COLUMNS
        modulus = t % moduli
        p = gl.load(reduction + 3 * modulus)
        magic = gl.load(reduction + 3 * modulus + 1)
        bias = gl.load(reduction + 3 * modulus + 2)
        factor = 0
        if SAME:
            factor = gl.load(factors + modulus)
        for start in range(AHEAD, steps - AHEAD, CHUNK):
            for _ in range(start, gl.minimum(steps - AHEAD, start + CHUNK)):
                mbarrier.wait(full.index(stage), phase)
                first = _begin(first, left_ring, right_ring, stage, PART, 0, CONSUMERS, WIDTH, True)
                second = _begin(second, left_ring, right_ring, stage, PART, 1, CONSUMERS, WIDTH, True)
                first, second = warpgroup_mma_wait(2, deps=(first, second))
                # All but the last products have read their stages.
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1)
                stage, phase = next_stage(stage, phase, STAGES)
            # Registers of sums may be touched only when no instruction still adds to them.
            if LONG:
                first, second = warpgroup_mma_wait(0, deps=(first, second))
                first, second = _reduced(first, p, magic, bias), _reduced(second, p, magic, bias)
        again = stage
        for x in gl.static_range(AHEAD):
            mbarrier.wait(full.index(stage), phase)
            first = _begin(first, left_ring, right_ring, stage, PART, 0, CONSUMERS, WIDTH, True)
            if x == 0:
                first, second = warpgroup_mma_wait(1, deps=(first, second))
                mbarrier.arrive(free.index((stage + (STAGES - 1)) % STAGES), count=1)
            stage, phase = next_stage(stage, phase, STAGES)
        for x in gl.static_range(AHEAD):
            second = _begin(second, left_ring, right_ring, (again + x) % STAGES, PART, 1, CONSUMERS, WIDTH, True)
            if x == 0:
                first, second = warpgroup_mma_wait(1, deps=(first, second))
        _store(first, p, magic, bias, factor, digits, plane, row_pitch, t, row, column, m, SAME)
        # The assembler would wait for the products before it reduces.
        gl.thread_barrier()
        second = warpgroup_mma_wait(0, deps=(second,))
        for x in gl.static_range(AHEAD):
            mbarrier.arrive(free.index((again + x) % STAGES), count=1)
        last_t, last_row, last_column, last_rows = t, row, column + WIDTH, m
        last_p, last_magic, last_bias, last_factor = p, magic, bias, factor
    _store(
        second, last_p, last_magic, last_bias, last_factor, digits, plane, row_pitch, last_t, last_row, last_column,
        last_rows, SAME,
    )  # fmt: skip


@gluon.jit
def _walk(
    left, right, left_sums, right_sums, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli,
    left_step, right_step, batch, order, factors, kept, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, AHEAD: gl.constexpr, CHUNK: gl.constexpr,
    LONG: gl.constexpr, QUARTERS: gl.constexpr, LOWER: gl.constexpr, SAME: gl.constexpr,
):  # fmt: skip
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
                batch, order, factors, kept, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, AHEAD, CHUNK, LONG, LOWER, SAME,
            )),
            (_multiply, (
                1, digits, reduction, left_ring, right_ring, full, free, m, n, pitch, row_pitch, plane, moduli,
                batch, order, factors, kept, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, AHEAD, CHUNK, LONG, LOWER, SAME,
            )),
            (_feed, (
                left, right, left_sums, right_sums, left_ring, right_ring, full, free, m, n, left_rows, right_rows,
                pitch, moduli, left_step, right_step, batch, order, kept, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP,
                AHEAD, QUARTERS, LOWER,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit(do_not_specialize=["m", "n", "moduli", "left_step", "right_step", "batch"])
def residue_product(
    left, right, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli, left_step,
    right_step, batch, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, AHEAD: gl.constexpr, CHUNK: gl.constexpr, LONG: gl.constexpr,
):  # fmt: skip
    """digits = left · rightᵀ modulo each modulus: planes of left_rows, right_rows and m rows; CHUNK in steps of DEPTH.

    digits, row_pitch, plane: in words of four bytes. LONG: whether sums have to be reduced on the way, every CHUNK
    steps.

    moduli: planes of a matrix; batch: matrices; left_step, right_step: planes from one to the next, 0 where one operand
    serves all.

    left, right: TMA descriptors of all planes, boxes (64, DEPTH) and (COLUMNS, DEPTH).
    """
    _walk(
        left, right, left, right, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli,
        left_step, right_step, batch, reduction, reduction, 0, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, AHEAD, CHUNK,
        LONG, False, False, False,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["m", "n", "moduli", "left_step", "right_step", "batch", "kept"])
def symmetric_residue_product(
    left, right, digits, reduction, order, factors, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli,
    left_step, right_step, batch, kept, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, AHEAD: gl.constexpr, CHUNK: gl.constexpr, LONG: gl.constexpr,
    SAME: gl.constexpr,
):  # fmt: skip
    """`residue_product` of the tiles of a plane that `order` names, so many of them: 65536 times a tile's row, and its
    column.

    SAME: left and right are the same planes, of a right operand; factors: what their products modulo each modulus are
    multiplied by.
    """
    _walk(
        left, right, left, right, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli,
        left_step, right_step, batch, order, factors, kept, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, AHEAD, CHUNK,
        LONG, False, True, SAME,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["moduli"])
def strassen_products(
    left, right, left_sums, right_sums, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, moduli,
    PRODUCTS: gl.constexpr, CONSUMERS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, AHEAD: gl.constexpr, CHUNK: gl.constexpr, LONG: gl.constexpr,
):  # fmt: skip
    """`residue_product` of P1 to P7 of `strassen`, in turn: m, n and pitch are of quarters, and so are digits.

    left, right: of an operand's planes; left_sums, right_sums: of its sums, in planes of 2·m and 2·n rows.
    """
    _walk(
        left, right, left_sums, right_sums, digits, reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane,
        moduli, 0, 0, PRODUCTS, reduction, reduction, 0, CONSUMERS, COLUMNS, DEPTH, STAGES, GROUP, AHEAD, CHUNK, LONG,
        True, False, False,
    )  # fmt: skip
