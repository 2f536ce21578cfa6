"""`scale` and `split` in one kernel for sm90: vectors are read once from memory, and their residues are sums that
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
Columns that are not long stay in shared memory between the passes, SHARED_TILES tiles of them: 28 instead of 31 of 7
residues in float32, where each pass would read 32 bytes for 16. Integers of eight moduli have at most 32 bits and a
sign, which takes two words, but 31 where no element is nearly all of its vector: what a program's vectors need is told
by their exponents and shifts, and with 31 bits those of float32 are made in float32, four elements an instruction. Rows
at n = 2048 take 22 µs then, and 36 otherwise, columns 28 and 41. Longer columns do not stay in a cache, so that
`split.split_columns` is as fast or faster. Alternatives without gain: residues alone, of columns that were measured
before (126 instead of 117 µs at n = 4096); two or eight warps; 64 registers; eight columns of float32, which spill.
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
from prismm.cuda.residues.kernels.split_fragments_sm90 import (
    QUANTITIES,
    RESIDUE_OPERANDS,
    fragment_layout,
    gathered,
    in_fours,
    maximum_of_warps,
    of_quantities,
    plain_layout,
    put_in,
    residues_assembly,
    shared_layout,
    shared_tiles_layout,
    spread_out,
    tile_layout,
    tile_shape,
    total_of_warps,
    warp_total,
)

SHORT = gl.constexpr(15)
"""Tiles whose levels add up in fields of six bits, four elements a tile."""


_OF_ONE, _OF_THE_NEXT, _OF_TWO = (gl.constexpr(residues_assembly(*x)) for x in ((4, False), (6, False), (4, True)))


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


@gluon.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_rows_fused(
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
def split_columns_fused(
    x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
    limit_bits, MODULI: gl.constexpr, WARPS: gl.constexpr, GROUPS: gl.constexpr, LEVELS: gl.constexpr,
    MEASURE: gl.constexpr, WORDS: gl.constexpr, PERMUTED: gl.constexpr, NARROWER: gl.constexpr,
    SHARED_TILES: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """The same of GROUPS columns of a row-major matrix a program. step: elements from a row to the next; SHARED_TILES:
    tiles of them that shared memory holds, all or 0.
    """
    _split(
        x, step, batch_step, stats, planes, thresholds, fragments, vectors, length, pitch, plane, terms, q, bits,
        limit_bits, MODULI, WARPS, GROUPS, True, LEVELS, MEASURE, WORDS, PERMUTED, NARROWER, SHARED_TILES, EVEN,
    )  # fmt: skip


@gluon.jit
def _planes(
    start, advance, inside, valid, in_shared, planes, fragments, h, k, first, n, exponent, shift, bits, pitch, plane,
    MODULI: gl.constexpr, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr, MEASURE: gl.constexpr,
    WORDS: gl.constexpr, PERMUTED: gl.constexpr, SHARED_TILES: gl.constexpr, NARROW: gl.constexpr,
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
    lift, factor = spread_out(lift, ACROSS), spread_out(factor, ACROSS)
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
    buffer = gl.allocate_shared_memory(gl.int32, [TILES, WARPS, 4, 64], shared_layout(WARPS, TILES))
    deviation = gl.zeros([WARPS, GROUPS, 16], gl.int64 if MEASURE else gl.int32, layout=PARTIAL)
    at = start
    # A tile is loaded one step ahead, so that its latency hides behind the residues of the tile before.
    if not SHARED_TILES:
        following = gl.load(at, mask=inside & (h < k), other=0.0)
    for h0 in range(0, pitch, STEP):
        if SHARED_TILES:
            value = in_shared.index(h0 // STEP).load(L)
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
        buffer.store(in_fours(w0, w1, w2, WORDS, TILES, WARPS))
        words = buffer.load(F)
        there = stored & (h0 + f_h < pitch)
        for t in gl.static_range(0, MODULI, MODULI_AT_ONCE):
            starts, reductions = constants[t // MODULI_AT_ONCE]  # type: ignore[var-annotated]
            mask = there & (modulus + t < MODULI) if t + MODULI_AT_ONCE > MODULI else there
            four_residues = gl.inline_asm_elementwise(
                _OF_TWO if TWO else _OF_ONE, RESIDUE_OPERANDS, [words, starts, reductions], dtype=gl.int32,
                is_pure=True, pack=8,
            )  # fmt: skip
            gl.store(target + t * quarter, four_residues, mask=mask)
            if AT_ONCE == 4:
                mask = next_stored & (h0 + f_h + (0 if ACROSS else 128) < pitch)
                mask = mask & (modulus + t < MODULI) if t + MODULI_AT_ONCE > MODULI else mask
                four_residues = gl.inline_asm_elementwise(
                    _OF_THE_NEXT, RESIDUE_OPERANDS, [words, starts, reductions], dtype=gl.int32, is_pure=True, pack=8
                )  # fmt: skip
                gl.store(target + (t * quarter + further), four_residues, mask=mask)
        target += STEP // 4
    least = shift
    if ACROSS:
        least = gl.min(gl.where(valid, shift, 0), 0)
    # Only a scale below 1 can make a nonzero element underflow to 0, and then no δ shows the loss.
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
    SHARED_TILES: gl.constexpr, EVEN: gl.constexpr,
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
    in_shared = start  # of no account where none are kept
    if SHARED_TILES:
        # A store waits for all warps to have made the one before, so the loads of some tiles come first.
        TOGETHER: gl.constexpr = min(4, SHARED_TILES)
        in_shared = gl.allocate_shared_memory(
            x.dtype.element_ty, [SHARED_TILES, WARPS, GROUPS, 16, 4], shared_tiles_layout(WARPS, GROUPS)
        )  # fmt: skip
        for h0 in range(0, k, TOGETHER * STEP):
            values = ()
            for t in gl.static_range(TOGETHER):
                mask = inside & (h0 + t * STEP + h < k)
                values = values + (gl.load(at + t * advance, mask=mask, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
            for t in gl.static_range(TOGETHER):
                upper = gl.maximum(upper, gl.max(magnitude_word(values[t]), 3))
                in_shared.index(h0 // STEP + t).store(values[t])
            at += TOGETHER * advance
    else:
        for _ in range(0, whole_tiles, STEP):
            upper = gl.maximum(upper, gl.max(magnitude_word(gl.load(at)), 3))
            at += advance
        for h0 in range(whole_tiles, k, STEP):
            upper = gl.maximum(upper, gl.max(magnitude_word(gl.load(at, mask=inside & (h0 + h < k), other=0.0)), 3))
            at += advance
    most = maximum_of_warps(upper, WARPS, GROUPS, ACROSS)
    # Statistics are float64 patterns whatever the operand's type; float32's subnormals are normal there.
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
            largest = maximum_of_warps(patterns, WARPS, GROUPS, ACROSS)
    if ACROSS:
        largest = gl.convert_layout(largest, COLUMNS)
    finite = largest < EXPONENT
    exponent = exponent_of(largest)

    # The norms, and the counts of large elements.
    lift, factor = _factors(exponent, q - exponent, SINGLE)
    lift, factor = spread_out(lift, ACROSS), spread_out(factor, ACROSS)
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
        if SHARED_TILES:
            for h0 in range(h1, stop, STEP):
                value = in_shared.index(h0 // STEP).load(L)
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
    shape: gl.constexpr = tile_shape(WARPS, GROUPS, ACROSS, 1)
    parts = gl.allocate_shared_memory(gl.int64, shape, plain_layout(ACROSS, 1))
    norm2_of_warps = warp_total(squares, ACROSS)
    put_in(parts, 0, norm2_of_warps)
    put_in(parts, 1, warp_total(total, ACROSS))
    if LEVELS:
        l01, l23 = warp_total(c01, ACROSS), warp_total(c23, ACROSS)
        put_in(parts, 2, (l01 & 0xFFFF).to(gl.int64))
        put_in(parts, 3, ((l01 >> 16) & 0xFFFF).to(gl.int64))
        put_in(parts, 4, (l23 & 0xFFFF).to(gl.int64))
        put_in(parts, 5, ((l23 >> 16) & 0xFFFF).to(gl.int64))
        put_in(parts, 6, warp_total(c4, ACROSS).to(gl.int64))
    # Every thread needs ν for the scale; the other sums are only stored, so lanes share them.
    norm2 = gl.sum(gathered(norm2_of_warps, WARPS, GROUPS, ACROSS), 1 if ACROSS else 0)
    found = gl.sum(parts.load(of_quantities(WARPS, GROUPS, ACROSS)), 2 if ACROSS else 1)
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
    statistics = stats + j
    gl.store(statistics + LARGEST * vectors, largest, mask=valid)
    gl.store(statistics + SHIFT * vectors, shift, mask=valid)

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
        # The narrow constants stand behind those of two words, which are one group: 2·4·8·8 integers.
        deviation = _planes(
            start, advance, inside, valid, in_shared, planes, fragments + 512, h, k, first, n, exponent, shift,
            bits * 0 + 31, pitch, plane, MODULI, WARPS, GROUPS, ACROSS, MEASURE, 1, PERMUTED, SHARED_TILES, True,
        )  # fmt: skip
    else:
        deviation = _planes(
            start, advance, inside, valid, in_shared, planes, fragments, h, k, first, n, exponent, shift, bits, pitch,
            plane, MODULI, WARPS, GROUPS, ACROSS, MEASURE, WORDS, PERMUTED, SHARED_TILES,
            SINGLE and WORDS == 1 and not MEASURE,
        )  # fmt: skip
    if MEASURE:
        residual = total_of_warps(deviation, WARPS, GROUPS, ACROSS)
    else:
        residual = residual_total(maximum_of_warps(deviation, WARPS, GROUPS, ACROSS).to(gl.int64), terms, MEASURE)
    if ACROSS:
        residual = gl.convert_layout(residual, COLUMNS)
    gl.store(statistics + RESIDUAL * vectors, gl.where(finite, residual, 0), mask=valid)
