"""`scale` and `split` in one kernel for Hopper: vectors are read once from memory, and their residues are sums that
INT8 matrix instructions make.

A program takes a vector of contiguous elements, or four neighbouring columns, in three passes: the largest magnitude,
the integer norms, the residues; the second and third pass read what the first one left in a cache. A tile is (WARPS,
GROUPS, 64): a warp's groups of 64 elements follow one another along a vector, or belong to columns side by side.

The bytes of A' + 2^bits times 256^b mod p, which `split` sums by `dp4a` element by element, are a product of matrices:
moduli by bytes, bytes by elements. `mma.m16n8k16` makes sixteen times eight of them at once from 16 bytes, four words:
of one element where its words are three, then for sixteen moduli; of two elements of two words or four of one, then
for eight moduli, since the factors of half the rows are those of the first element, and of the others those of the
second. What it adds to, the pattern of a float32 number, is the start of the sum, and the reduction is that of
`split._reduced` but for its last step: the low byte of y - Q·p is that of pattern(y) - pattern(M + Q)·p, as 256 divides
pattern(M), so that one integer operation takes the place of two.

Words go to the matrix instructions through shared memory, within a warp: column n of an instruction is element
8·n + j of a group, j the number of the instruction, so that a thread's results of eight instructions are sixteen
neighbouring bytes of a plane.

Instructions an element, of 14 residues in float64: 63 for the residues, 4 and 18 for the other two passes, where
`split` has 121, 6 and 22. Bytes: 8 read, N written; 8 more from a cache twice. On an H200 rows at n = 2048 take 34 µs
(`split`: 44), at n = 4096 128 (149; their bytes alone 95), of 20 residues 164 (193); columns at n = 2048 52 (59).
Columns that are not long stay in shared memory between the passes, KEPT tiles of them: 28 instead of 31 of 7 residues
in float32, where each pass would read 32 bytes for 16.
Integers of eight moduli have at most 32 bits and a sign, which takes two words, but 31 where no element is nearly all
of its vector: what a program's vectors need is told by their exponents and shifts, and with 31 bits those of float32
are made in float32, four elements an instruction. Rows at n = 2048 take 22 µs then, and 36 otherwise, columns 28 and
41.
Longer columns do not stay in a cache, so that `split.split_columns` is as fast or faster. Tried without gain: residues
alone, of columns that were measured before (126 instead of 117 µs at n = 4096); two or eight warps; 64 registers;
eight columns of float32, which spill.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from prismm.cuda.kernels.fp64 import (
    COUNTS,
    EXPONENT,
    LARGEST,
    LOW32,
    MAGNITUDE,
    NONFINITE,
    NORM1,
    NORM2,
    RESIDUAL,
    SHIFT,
    STATISTICS,
    any_power_of_two,
    bits_of,
    ceiling_of_product,
    even,
    lift_of,
    magnitude_word,
    nearest_of,
)
from prismm.cuda.residues.kernels.scale import counts_of, exponent_of, level_of, scale_exponent
from prismm.cuda.residues.kernels.split import plane_row, residual_total

QUANTITIES = gl.constexpr(8)
"""Sums of a vector, in their order in the statistics: norms and counts; the last one is none."""
SHORT = gl.constexpr(15)
"""Tiles whose levels add up in fields of six bits, four elements a tile."""


def _residues(first: int, two: bool) -> str:
    """Assembly: the residues of a group, of words in the order of `fragment_layout`, by constants in that order.

    Args:
        first: which constant holds the factors of the first eight rows; those of the others follow.
        two: whether those rows belong to other moduli.

    Operands: 8 words of results, first those of the first eight rows; 8 words; 16 constants.
    """
    start = ", ".join(f"${16 + x}" for x in range(4))
    factors = f"${16 + first}, ${17 + first}"
    reductions = [[f"${24 + x}" for x in range(3)], [f"${24 + 4 * two + x}" for x in range(3)]]
    lines = ["{ .reg .b32 y<4>, q, l, h, r<32>;"]
    for j in range(8):
        lines.append(
            "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 "
            f"{{y0, y1, y2, y3}}, {{{factors}}}, {{${8 + j}}}, {{{start}}};"
        )
        for i in range(4):
            inverse, shift, minus = reductions[i // 2]
            lines.append(f"fma.rn.f32 q, y{i}, {inverse}, {shift}; mad.lo.s32 r{8 * i + j}, q, {minus}, y{i};")
    for word in range(8):
        r0, r1, r2, r3 = (f"r{4 * word + x}" for x in range(4))
        lines.append(f"prmt.b32 l, {r0}, {r1}, 0x0040; prmt.b32 h, {r2}, {r3}, 0x0040; prmt.b32 ${word}, l, h, 0x5410;")
    return " ".join([*lines, "}"])


_OPERANDS = gl.constexpr(",".join(["=r"] * 8 + ["r"] * 24))
_OF_ONE, _OF_THE_NEXT, _OF_TWO = (gl.constexpr(_residues(*x)) for x in ((4, False), (6, False), (4, True)))


@gluon.constexpr_function
def _bases(count, direction):
    """Of a direction with so many values."""
    return [[x << y for x in direction] for y in range(count.bit_length() - 1)]


@gluon.constexpr_function
def tile_layout(WARPS, GROUPS, ACROSS):
    """Of tiles (WARPS, GROUPS, 16, 4). A thread holds four neighbouring elements of a vector, of two columns at a time
    where they lie side by side.
    """
    fours, along, groups = _bases(4, [0, 0, 0, 1]), _bases(16, [0, 0, 1, 0]), _bases(GROUPS, [0, 1, 0, 0])
    if ACROSS:
        registers, lanes = groups[:1] + fours + groups[2:], groups[1:2] + along
    else:
        registers, lanes = fours + groups[1:], along + groups[:1]
    return gl.DistributedLinearLayout(registers, lanes, _bases(WARPS, [1, 0, 0, 0]), [], [WARPS, GROUPS, 16, 4])


@gluon.constexpr_function
def fragment_layout(WARPS, TILES):
    """Of words (TILES, WARPS, 4, 64) as the matrix instructions take them, and of what they give."""
    return gl.DistributedLinearLayout(
        _bases(8, [0, 0, 0, 1]) + _bases(TILES, [1, 0, 0, 0]),
        _bases(4, [0, 0, 1, 0]) + _bases(8, [0, 0, 0, 8]),
        _bases(WARPS, [0, 1, 0, 0]),
        [],
        [TILES, WARPS, 4, 64],
    )


@gluon.constexpr_function
def _shared_layout(WARPS, TILES):
    """Of the same words in shared memory, so that eight threads' fours are in different banks, written or read."""
    offsets = [*_bases(64, [0, 0, 0, 1]), [0, 0, 1, 4], [0, 0, 2, 16], *_bases(WARPS, [0, 1, 0, 0])]
    tiles = _bases(TILES, [1, 0, 0, 0])
    if tiles:
        tiles[0] = [1, 0, 0, 16]
    return gl.SharedLinearLayout(offsets + tiles)


@gluon.constexpr_function
def _kept_layout(WARPS, GROUPS):
    """Of tiles in shared memory, so that eight threads' fours are in different banks where two columns are theirs."""
    groups = _bases(GROUPS, [0, 1, 0, 0])
    if len(groups) > 1:
        groups[1] = [0, 2, 4, 0]
    return gl.SharedLinearLayout(
        _bases(4, [0, 0, 0, 1]) + _bases(16, [0, 0, 1, 0]) + groups + _bases(WARPS, [1, 0, 0, 0])
    )


@gluon.constexpr_function
def _of_warps(WARPS, GROUPS, ACROSS):
    """Of what all warps found, in every thread: (WARPS,), or (columns, WARPS) with columns as in `tile_layout`."""
    if not ACROSS:
        return gl.DistributedLinearLayout(_bases(WARPS, [1]), [[0]] * 5, _bases(WARPS, [0]), [], [WARPS])
    tile = tile_layout(WARPS, GROUPS, ACROSS)
    registers = _bases(WARPS, [0, 1]) + [[basis[1], 0] for basis in tile.reg_bases if basis[1]]
    lanes = [[basis[1], 0] for basis in tile.lane_bases]
    return gl.DistributedLinearLayout(registers, lanes, _bases(WARPS, [0, 0]), [], [GROUPS, WARPS])


@gluon.constexpr_function
def _of_quantities(WARPS, GROUPS, ACROSS):
    """Of QUANTITIES that all warps found: a lane holds those of one quantity and column."""
    if not ACROSS:
        lanes = _bases(QUANTITIES.value, [1, 0]) + [[0, 0]] * 2
        return gl.DistributedLinearLayout(
            _bases(WARPS, [0, 1]), lanes, _bases(WARPS, [0, 0]), [], [QUANTITIES.value, WARPS]
        )
    columns = _bases(GROUPS, [0, 1, 0])
    lanes = _bases(QUANTITIES.value, [1, 0, 0]) + columns[:2]
    registers = _bases(WARPS, [0, 0, 1]) + columns[2:]
    return gl.DistributedLinearLayout(registers, lanes, _bases(WARPS, [0, 0, 0]), [], [QUANTITIES.value, GROUPS, WARPS])


@gluon.constexpr_function
def _plain(ACROSS, quantities):
    """Of such results in shared memory."""
    return gl.SwizzledSharedLayout(1, 1, 1, list(reversed(range(1 + ACROSS + quantities))))


@gluon.constexpr_function
def _shape(WARPS, GROUPS, ACROSS, quantities):
    return [QUANTITIES.value] * quantities + [GROUPS] * ACROSS + [WARPS]


@gluon.jit
def _warp_total(t, ACROSS: gl.constexpr):
    """Sums of a warp's partial results (WARPS, GROUPS, 16): (WARPS,), or (columns, WARPS)."""
    if ACROSS:
        return gl.sum(t, 2).permute((1, 0))
    else:
        return gl.sum(t.reshape((t.shape[0], t.shape[1] * 16)), 1)


@gluon.jit
def _warp_maximum(t, ACROSS: gl.constexpr):
    if ACROSS:
        return gl.max(t, 2).permute((1, 0))
    else:
        return gl.max(t.reshape((t.shape[0], t.shape[1] * 16)), 1)


@gluon.jit
def _gathered(some, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr):
    """What warps found, in every thread."""
    shape: gl.constexpr = _shape(WARPS, GROUPS, ACROSS, 0)
    buffer = gl.allocate_shared_memory(some.dtype, shape, _plain(ACROSS, 0))
    buffer.store(some)
    return buffer.load(_of_warps(WARPS, GROUPS, ACROSS))


@gluon.jit
def _maximum(t, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr):
    return gl.max(_gathered(_warp_maximum(t, ACROSS), WARPS, GROUPS, ACROSS), 1 if ACROSS else 0)


@gluon.jit
def _total(t, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr):
    return gl.sum(_gathered(_warp_total(t, ACROSS), WARPS, GROUPS, ACROSS), 1 if ACROSS else 0)


@gluon.jit
def _put(buffer, i: gl.constexpr, t):
    """A quantity of all warps to its place."""
    if len(t.shape) == 2:
        buffer.slice(i, 1).store(t.reshape((1, t.shape[0], t.shape[1])))
    else:
        buffer.slice(i, 1).store(t.reshape((1, t.shape[0])))


@gluon.jit
def _spread(v, ACROSS: gl.constexpr):
    """A value of each vector, over a tile."""
    if ACROSS:
        return v[None, :, None, None]
    else:
        return v


@gluon.jit
def _power(e):
    """2^e as float32, for -149 <= e <= 127."""
    small = gl.minimum(gl.maximum(e + 149, 0), 22)
    return gl.where(e >= -126, (e + 127) << 23, (e * 0 + 1) << small).to(gl.float32, bitcast=True)


@gluon.jit
def _factors(e, exponent, SINGLE: gl.constexpr):
    """Two powers of two whose product is 2^exponent, so that x times the first is exact, |x| < 2^e; SINGLE: as float32,
    for such numbers.
    """
    if SINGLE:
        lift = gl.where(e < -60, 64, 0)
        return _power(lift.to(gl.int32)), _power((exponent - lift).to(gl.int32))
    else:
        lift = lift_of(e)
        return any_power_of_two(lift), any_power_of_two((exponent - lift).to(gl.int32))


@gluon.jit
def _ceilings(x, factor):
    """ceil(x·factor), at most 2^20, as int32."""
    if x.dtype == gl.float32:
        # RU(x·factor + 2^23): the sum is rounded once, upwards, so its last bits are the ceiling of the product.
        near = gl.inline_asm_elementwise(
            "fma.rp.f32 $0, $1, $2, 0f4B000000;", "=r,f,f", [x, factor], dtype=gl.int32, is_pure=True, pack=1
        )  # fmt: skip
        return near & 0x7FFFFF
    else:
        return ceiling_of_product(x, factor, True)


@gluon.jit
def _measured(value, lift, factor, q, squares, sums, levels, LEVELS: gl.constexpr):
    """With what a tile adds to Σv², Σv and the fields of `scale.level_of`."""
    v = _ceilings(gl.abs(value) * lift, factor)
    wide = v.to(gl.uint32, bitcast=True).to(gl.uint64)
    squares += gl.sum((wide * wide).to(gl.int64, bitcast=True), 3)
    sums += gl.sum(v, 3)
    if LEVELS:
        levels += gl.sum(level_of(v, q), 3)
    return squares, sums, levels


@gluon.jit
def _words(y, bits, WORDS: gl.constexpr, MEASURE: gl.constexpr, SINGLE: gl.constexpr, L: gl.constexpr):
    """The words of A' = RN(y), and its residual, as `split.words_of_product`, but for what vanished before."""
    one = bits * 0 + 1
    if SINGLE:
        z = gl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [y], dtype=gl.int32, is_pure=True, pack=1)
        w0 = z + (one << bits)
        return w0, w0, w0, (z.to(gl.float32) != y).to(gl.int32)
    else:
        if WORDS == 3:
            # In units of 2^32 first: the rest is exact, and its nearest integer that of y, ties included.
            top = nearest_of(y * 2.3283064365386962890625e-10, True)
            rest = gl.fma(top, gl.full(y.shape, -4294967296.0, gl.float64, layout=L), y)
            z = nearest_of(rest, True)
            low = z.to(gl.int64)
            high = top.to(gl.int64) + (low >> 32) + (one.to(gl.int64) << (bits - 32))
            w0, w1, w2 = (low & LOW32).to(gl.int32), (high & LOW32).to(gl.int32), (high >> 32).to(gl.int32)
        else:
            rest = y
            z = nearest_of(y, True)
            integer = z.to(gl.int64)
            w0, w1 = (integer & LOW32).to(gl.int32), (integer >> 32).to(gl.int32)
            w2 = w0
            if WORDS == 2:
                w1 += one << (bits - 32)
            else:
                w0 += one << bits
        if MEASURE:
            thousand = gl.full(y.shape, 1024.0, gl.float64, layout=L)
            residual = ceiling_of_product(gl.abs(rest - z), thousand, True)
        else:
            residual = (rest != z).to(gl.int32)
        return w0, w1, w2, residual


@gluon.jit
def _in_fours(w0, w1, w2, WORDS: gl.constexpr, TILES: gl.constexpr, WARPS: gl.constexpr):
    """Words (WARPS, GROUPS, 16, 4) as (TILES, WARPS, 4, 64): four words are those of 4 // WORDS elements."""
    if WORDS == 1:
        fours = w0
    elif WORDS == 2:
        fours = gl.join(w0, w1).permute((0, 1, 4, 2, 3))
    else:
        fours = gl.join(gl.join(w0, w2), gl.join(w1, w2)).permute((0, 1, 4, 5, 2, 3))
    return fours.reshape((WARPS, TILES, 4, 64)).permute((1, 0, 2, 3))


@gluon.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_rows_at_once(
    x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
    limit_bits, MODULI: gl.constexpr, WARPS: gl.constexpr, GROUPS: gl.constexpr, LEVELS: gl.constexpr,
    MEASURE: gl.constexpr, WORDS: gl.constexpr, PERMUTED: gl.constexpr, NARROWER: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """Scale and split a real vector of contiguous elements a program: all of stats, and a row of every plane, as
    `split.split_rows` does. step: elements from a vector to the next; fragments: `cuda.residues.tables.fragments`.
    Program axis 1: matrices of a batch.
    """
    _split(
        x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
        limit_bits, MODULI, WARPS, GROUPS, False, LEVELS, MEASURE, WORDS, PERMUTED, NARROWER, 0, EVEN,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_columns_at_once(
    x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
    limit_bits, MODULI: gl.constexpr, WARPS: gl.constexpr, GROUPS: gl.constexpr, LEVELS: gl.constexpr,
    MEASURE: gl.constexpr, WORDS: gl.constexpr, PERMUTED: gl.constexpr, NARROWER: gl.constexpr, KEPT: gl.constexpr,
    EVEN: gl.constexpr,
):  # fmt: skip
    """The same of GROUPS columns of a row-major matrix a program. step: elements from a row to the next; KEPT: tiles of
    them that shared memory holds, all or 0.
    """
    _split(
        x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
        limit_bits, MODULI, WARPS, GROUPS, True, LEVELS, MEASURE, WORDS, PERMUTED, NARROWER, KEPT, EVEN,
    )  # fmt: skip


@gluon.jit
def _planes(
    start, advance, inside, valid, kept, planes, fragments, h, k, first, n, exponent, shift, bits, pitch, plane,
    MODULI: gl.constexpr, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr, MEASURE: gl.constexpr,
    WORDS: gl.constexpr, PERMUTED: gl.constexpr, KEPT: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """The residues of a program's vectors, by their exponents and shifts; returns what tells their residuals. NARROW:
    integers are made in float32.
    """
    AT_ONCE: gl.constexpr = 4 // WORDS  # elements whose words one matrix instruction takes, a column
    TILES: gl.constexpr = GROUPS // AT_ONCE
    STEP: gl.constexpr = 64 * WARPS if ACROSS else 64 * WARPS * GROUPS
    TWO: gl.constexpr = WORDS == 3
    MODULI_AT_ONCE: gl.constexpr = 16 if TWO else 8
    L: gl.constexpr = tile_layout(WARPS, GROUPS, ACROSS)
    PARTIAL: gl.constexpr = gl.SliceLayout(3, L)
    F: gl.constexpr = fragment_layout(WARPS, TILES)
    lift, factor = _factors(exponent, shift, NARROW)
    lift, factor = _spread(lift, ACROSS), _spread(factor, ACROSS)
    tile = gl.arange(0, TILES, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, F))))[:, None, None, None]
    f_warp = gl.arange(0, WARPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, F))))[None, :, None, None]
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, F))))[None, None, :, None]
    # 8 times a modulus, and 4 words of each half of the rows.
    place = gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, F))))[None, None, None, :]
    modulus, half = place // 8, place // 4 % 2
    group_of = tile
    if TWO:
        modulus += 8 * half
    else:
        group_of = tile * AT_ONCE + half
    if ACROSS:
        f_j = first + group_of
        f_h = f_warp * 64 + 16 * lane
        stored = f_j < n
        next_stored = f_j + 2 < n
    else:
        f_j = group_of * 0 + first
        f_h = (f_warp * GROUPS + group_of) * 64 + 16 * lane
        stored = f_j >= 0
        next_stored = stored
    quarter = (plane // 4).to(gl.int64)
    line = plane_row(f_j, PERMUTED).to(gl.int64) * (pitch // 4)
    target = planes.to(gl.pointer_type(gl.int32), bitcast=True) + (modulus * quarter + line + f_h // 4 + place % 4)
    # Where the third and fourth element of four go.
    further = 32
    if ACROSS:
        further = plane_row(f_j + 2, PERMUTED).to(gl.int64) * (pitch // 4) - line
    constants = ()
    for t in gl.static_range(0, MODULI, MODULI_AT_ONCE):
        both = fragments + (t // MODULI_AT_ONCE * 512 + lane * 64 + place)
        constants = constants + ((gl.load(both), gl.load(both + 256)),)  # type: ignore[assignment]  # noqa: RUF005
    buffer = gl.allocate_shared_memory(gl.int32, [TILES, WARPS, 4, 64], _shared_layout(WARPS, TILES))
    deviation = gl.zeros([WARPS, GROUPS, 16], gl.int64 if MEASURE else gl.int32, layout=PARTIAL)
    at = start
    if not KEPT:
        following = gl.load(at, mask=inside & (h < k), other=0.0)
    for h0 in range(0, pitch, STEP):
        if KEPT:
            value = kept.index(h0 // STEP).load(L)
        else:
            value = following
            at += advance
            following = gl.load(at, mask=inside & (h0 + STEP + h < k), other=0.0)
        if not NARROW:
            value = value.to(gl.float64)
        w0, w1, w2, delta = _words(value * lift * factor, bits, WORDS, MEASURE, NARROW, L)
        if MEASURE:
            deviation += gl.sum(delta.to(gl.int64) * delta, 3)
        else:
            deviation |= gl.max(delta, 3)
        buffer.store(_in_fours(w0, w1, w2, WORDS, TILES, WARPS))
        words = buffer.load(F)
        there = stored & (h0 + f_h < pitch)
        for t in gl.static_range(0, MODULI, MODULI_AT_ONCE):
            starts, reductions = constants[t // MODULI_AT_ONCE]  # type: ignore[var-annotated]
            mask = there & (modulus + t < MODULI) if t + MODULI_AT_ONCE > MODULI else there
            made = gl.inline_asm_elementwise(
                _OF_TWO if TWO else _OF_ONE, _OPERANDS, [words, starts, reductions], dtype=gl.int32, is_pure=True,
                pack=8,
            )  # fmt: skip
            gl.store(target + t * quarter, made, mask=mask)
            if AT_ONCE == 4:
                mask = next_stored & (h0 + f_h + (0 if ACROSS else 128) < pitch)
                mask = mask & (modulus + t < MODULI) if t + MODULI_AT_ONCE > MODULI else mask
                made = gl.inline_asm_elementwise(
                    _OF_THE_NEXT, _OPERANDS, [words, starts, reductions], dtype=gl.int32, is_pure=True, pack=8
                )  # fmt: skip
                gl.store(target + (t * quarter + further), made, mask=mask)
        target += STEP // 4
    least = shift
    if ACROSS:
        least = gl.min(gl.where(valid, shift, 0), 0)
    if least < 0:  # elements may have vanished on the way
        at = start
        for h0 in range(0, k, STEP):
            value = gl.load(at, mask=inside & (h0 + h < k), other=0.0)
            if not NARROW:
                value = value.to(gl.float64)
            vanished = ((value * lift * factor == 0.0) & (value != 0.0)).to(deviation.dtype)
            if MEASURE:
                deviation += gl.sum(vanished, 3)
            else:
                deviation |= gl.max(vanished, 3)
            at += advance
    return deviation


@gluon.jit
def _split(
    x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
    limit_bits, MODULI: gl.constexpr, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr,
    LEVELS: gl.constexpr, MEASURE: gl.constexpr, WORDS: gl.constexpr, PERMUTED: gl.constexpr, NARROWER: gl.constexpr,
    KEPT: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    STEP: gl.constexpr = 64 * WARPS if ACROSS else 64 * WARPS * GROUPS
    SINGLE: gl.constexpr = x.dtype.element_ty == gl.float32
    L: gl.constexpr = tile_layout(WARPS, GROUPS, ACROSS)
    PARTIAL: gl.constexpr = gl.SliceLayout(3, L)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, PARTIAL))

    stride, k = even(step, EVEN), even(length, EVEN)
    n = even(vectors, EVEN) if ACROSS else vectors
    batch = gl.program_id(1).to(gl.int64)
    first = gl.program_id(0) * GROUPS if ACROSS else gl.program_id(0)
    x += batch * even(batch_step, EVEN)
    planes += batch * plane.to(gl.int64) * MODULI
    stats += batch * STATISTICS * vectors

    warp = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, PARTIAL)))[:, None, None, None]
    column = gl.arange(0, GROUPS, layout=COLUMNS)
    group = column[None, :, None, None]
    four = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, PARTIAL)))[None, None, :, None]
    element = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L))))[None, None, None, :]
    if ACROSS:
        j = first + column
        h = warp * 64 + 4 * four + element + 0 * group
        start = x + (h.to(gl.int64) * stride + (first + group))
        inside, valid = first + group < n, j < n
        advance = stride.to(gl.int64) * STEP
        whole_tiles = gl.where(first + GROUPS <= n, k // STEP * STEP, 0)
    else:
        j = first
        h = (warp * GROUPS + group) * 64 + 4 * four + element
        start = x + j.to(gl.int64) * stride + h
        inside, valid = h >= 0, j >= 0
        advance = STEP
        whole_tiles = k // STEP * STEP

    # The largest magnitude: of float64 its upper word, which holds the exponent of normal numbers.
    upper = gl.zeros([WARPS, GROUPS, 16], gl.int32, layout=PARTIAL)
    at = start
    kept = start  # of no account where none are kept
    if KEPT:
        # A store waits for all warps to have made the one before, so the loads of some tiles come first.
        TOGETHER: gl.constexpr = min(4, KEPT)
        kept = gl.allocate_shared_memory(
            x.dtype.element_ty, [KEPT, WARPS, GROUPS, 16, 4], _kept_layout(WARPS, GROUPS)
        )  # fmt: skip
        for h0 in range(0, k, TOGETHER * STEP):
            values = ()
            for t in gl.static_range(TOGETHER):
                mask = inside & (h0 + t * STEP + h < k)
                values = values + (gl.load(at + t * advance, mask=mask, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
            for t in gl.static_range(TOGETHER):
                upper = gl.maximum(upper, gl.max(magnitude_word(values[t]), 3))
                kept.index(h0 // STEP + t).store(values[t])
            at += TOGETHER * advance
    else:
        for _ in range(0, whole_tiles, STEP):
            upper = gl.maximum(upper, gl.max(magnitude_word(gl.load(at)), 3))
            at += advance
        for h0 in range(whole_tiles, k, STEP):
            upper = gl.maximum(upper, gl.max(magnitude_word(gl.load(at, mask=inside & (h0 + h < k), other=0.0)), 3))
            at += advance
    most = _maximum(upper, WARPS, GROUPS, ACROSS)
    if SINGLE:
        largest = bits_of(most.to(gl.float32, bitcast=True).to(gl.float64))
    else:
        largest = most.to(gl.int64) << 32
        least = largest
        if ACROSS:
            real = first + gl.arange(0, GROUPS, layout=largest.type.layout) < n
            least = gl.min(gl.where(real, largest, EXPONENT), 0)
        if least < 0x0010000000000000:  # zero or subnormal
            patterns = gl.zeros([WARPS, GROUPS, 16], gl.int64, layout=PARTIAL)
            at = start
            for h0 in range(0, k, STEP):
                value = gl.load(at, mask=inside & (h0 + h < k), other=0.0)
                patterns = gl.maximum(patterns, gl.max(bits_of(value) & MAGNITUDE, 3))
                at += advance
            largest = _maximum(patterns, WARPS, GROUPS, ACROSS)
    if ACROSS:
        largest = gl.convert_layout(largest, COLUMNS)
    finite = largest < EXPONENT
    exponent = exponent_of(largest)

    # The norms, and the counts of large elements.
    lift, factor = _factors(exponent, q - exponent, SINGLE)
    lift, factor = _spread(lift, ACROSS), _spread(factor, ACROSS)
    squares = gl.zeros([WARPS, GROUPS, 16], gl.int64, layout=PARTIAL)
    total = squares
    c01 = gl.zeros([WARPS, GROUPS, 16], gl.int32, layout=PARTIAL)
    c23 = c01
    c4 = c01
    at = start
    for h1 in range(0, k, SHORT * STEP):
        sums = gl.zeros([WARPS, GROUPS, 16], gl.int32, layout=PARTIAL)
        levels = sums
        stop = gl.minimum(h1 + SHORT * STEP, k)
        middle = gl.maximum(gl.minimum(stop, whole_tiles), h1)
        if KEPT:
            for h0 in range(h1, stop, STEP):
                value = kept.index(h0 // STEP).load(L)
                squares, sums, levels = _measured(value, lift, factor, q, squares, sums, levels, LEVELS)
        else:
            for _ in range(h1, middle, STEP):
                squares, sums, levels = _measured(gl.load(at), lift, factor, q, squares, sums, levels, LEVELS)
                at += advance
            for h0 in range(middle, stop, STEP):
                value = gl.load(at, mask=inside & (h0 + h < k), other=0.0)
                squares, sums, levels = _measured(value, lift, factor, q, squares, sums, levels, LEVELS)
                at += advance
        total += sums
        if LEVELS:
            # In halves of words: a thread counts less than 2^11 of a vector of less than 2^20 elements, all of it less
            # than 2^16 where these are less than 2^16 (`cuda.residues.split` takes no longer ones).
            s0, s1, s2, s3, s4 = counts_of(levels)
            c01 += s0 + (s1 << 16)
            c23 += s2 + (s3 << 16)
            c4 += s4
    shape: gl.constexpr = _shape(WARPS, GROUPS, ACROSS, 1)
    parts = gl.allocate_shared_memory(gl.int64, shape, _plain(ACROSS, 1))
    norm2_of_warps = _warp_total(squares, ACROSS)
    _put(parts, 0, norm2_of_warps)
    _put(parts, 1, _warp_total(total, ACROSS))
    if LEVELS:
        l01, l23 = _warp_total(c01, ACROSS), _warp_total(c23, ACROSS)
        _put(parts, 2, (l01 & 0xFFFF).to(gl.int64))
        _put(parts, 3, ((l01 >> 16) & 0xFFFF).to(gl.int64))
        _put(parts, 4, (l23 & 0xFFFF).to(gl.int64))
        _put(parts, 5, ((l23 >> 16) & 0xFFFF).to(gl.int64))
        _put(parts, 6, _warp_total(c4, ACROSS).to(gl.int64))
    norm2 = gl.sum(_gathered(norm2_of_warps, WARPS, GROUPS, ACROSS), 1 if ACROSS else 0)
    found = gl.sum(parts.load(_of_quantities(WARPS, GROUPS, ACROSS)), 2 if ACROSS else 1)
    R: gl.constexpr = found.type.layout
    if ACROSS:
        norm2 = gl.convert_layout(norm2, COLUMNS)
        quantity = gl.arange(0, QUANTITIES, layout=gl.SliceLayout(1, R))[:, None]
        whose = first + gl.arange(0, GROUPS, layout=gl.SliceLayout(0, R))[None, :]
        good = gl.convert_layout(finite, gl.SliceLayout(0, R))[None, :]
        some = (whose < n) & (quantity < (7 if LEVELS else 2))
    else:
        quantity = gl.arange(0, QUANTITIES, layout=R)
        whose, good = first, finite
        some = quantity < (7 if LEVELS else 2)
    row = gl.where(quantity < 2, NORM2 + quantity, COUNTS - 2 + quantity)
    gl.static_assert(NORM1 == NORM2 + 1)
    gl.store(stats + whose + row * vectors, gl.where(good, found, 0), mask=some)
    shift = gl.where(finite, scale_exponent(largest, norm2, q, thresholds, limit_bits), -NONFINITE)
    own = stats + j
    gl.store(own + LARGEST * vectors, largest, mask=valid)
    gl.store(own + SHIFT * vectors, shift, mask=valid)

    # The residues. What is made of a vector that is not finite is of no account.
    shift = gl.where(finite, shift, 0)
    if NARROWER:
        # |A'| < 2^32, but mostly less than 2^31: then one word does, and float32.
        most_bits = exponent + shift
        if ACROSS:
            most_bits = gl.max(gl.where(valid, most_bits, 0), 0)
        narrow = most_bits <= 31
    else:
        narrow: gl.constexpr = False  # type: ignore[no-redef]
    if narrow:
        deviation = _planes(
            start, advance, inside, valid, kept, planes, fragments + 512, h, k, first, n, exponent, shift,
            bits * 0 + 31, pitch, plane, MODULI, WARPS, GROUPS, ACROSS, MEASURE, 1, PERMUTED, KEPT, True,
        )  # fmt: skip
    else:
        deviation = _planes(
            start, advance, inside, valid, kept, planes, fragments, h, k, first, n, exponent, shift, bits, pitch, plane,
            MODULI, WARPS, GROUPS, ACROSS, MEASURE, WORDS, PERMUTED, KEPT, SINGLE and WORDS == 1 and not MEASURE,
        )  # fmt: skip
    if MEASURE:
        residual = _total(deviation, WARPS, GROUPS, ACROSS)
    else:
        residual = residual_total(_maximum(deviation, WARPS, GROUPS, ACROSS).to(gl.int64), terms, MEASURE)
    if ACROSS:
        residual = gl.convert_layout(residual, COLUMNS)
    gl.store(own + RESIDUAL * vectors, gl.where(finite, residual, 0), mask=valid)
