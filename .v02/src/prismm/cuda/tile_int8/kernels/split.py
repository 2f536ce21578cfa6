"""Split an operand of `TileInt8`: exponents of its tiles, and integers of 7-bit segments as planes of bytes.

Three launches, each over both operands. `survey_tiles` reads every element once, for the largest magnitude and the sum
of magnitudes of each vector (row of A, column of B) over pieces of the inner dimension. `scale_tiles` joins the pieces:
2^s is the least power of two above all magnitudes of a vector. `split_tiles` reads every element again and writes its
segments: with g the exponent of the tile in units of 2^s, or in those of the data as given, and f = 7·segments - 1, the
integer X = RN(x·2^(f-g)), cut into 7 bits at a time toward zero. Bits are those of `cpu.kernels.tile`.

Planes: row (step·all + plane·count + vector) of `width` bytes is what a vector has of one plane in one step, so that a
product's copy of a tile is one contiguous piece. weights[step, tile] = 2^(g-6); 0 for a tile of zeros.

Where a pair of tiles has one exponent, the larger one, integers depend on the partner (`tile_pair_product`): then there
is one plane, of elements x as float32 numbers, in units of 2^s or as given. Weights are 0 where g < FAR: of two such
tiles a product is below 2^-185, and such a tile is cut to nothing beside one with g >= FAR, but where the products are
below 2^-153; a float32 sum keeps neither.

Bytes: 8 read an element, one written a segment; about 12 operations, and 5 a segment. Both operands at n = 8192 in
three segments: 0.35 ms at 4.3 TB/s.
"""

import triton
import triton.language as tl

EMPTY = tl.constexpr(-(1 << 20))
"""Exponent of what holds only zeros."""
BROKEN = tl.constexpr(1 << 20)
"""s of a vector that holds Inf or NaN: it is split as zeros."""
FAR = tl.constexpr(-96)
"""Exponent below which tiles are taken for empty where pairs have one."""
SURVEY = tl.constexpr(512)
"""Elements of a piece of the survey."""


@triton.jit
def even(x, EVEN: tl.constexpr):
    """An integer that EVEN says to be a multiple of 16."""
    if EVEN:
        return x // 16 * 16
    else:
        return x


@triton.jit
def power(e):
    """2^e, -149 <= e <= 127; 0 below."""
    normal = tl.maximum(e + 127, 0) << 23
    subnormal = 1 << tl.minimum(tl.maximum(e + 149, 0), 22)
    bits = tl.where(e >= -126, normal, tl.where(e >= -149, subnormal, 0))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def times(x, e):
    """x·2^e, |e| < 378, rounded once where |x| < 2^100: all but the last factor are exact unless the result is 0 or
    infinite.
    """
    last = tl.minimum(tl.maximum(e, -126), 127)
    second = tl.minimum(tl.maximum(e - last, -126), 127)
    return ((x * power(e - last - second)) * power(second)) * power(last)


@triton.jit
def exponent(bits, FRACTION: tl.constexpr):
    """floor(log2 x) of the number with this pattern, positive and finite; one more where RN to FRACTION bits is a power
    of two.
    """
    small = bits < 0x00800000
    x = bits.to(tl.float32, bitcast=True)
    # A subnormal number times 2^24 is normal, so that its exponent can be read.
    bits = tl.where(small, (x * 16777216.0).to(tl.int32, bitcast=True), bits)
    e = (bits >> 23) - 127 - tl.where(small, 24, 0)
    if FRACTION < 23:
        e += ((bits & 0x7FFFFF) >= 0x800000 - (1 << (22 - FRACTION))).to(tl.int32)
    return e


@triton.jit
def _block(
    x, step, inner, count, k, v0, h0, VECTORS: tl.constexpr, LENGTH: tl.constexpr, ACROSS: tl.constexpr
):  # fmt: skip
    """VECTORS pieces of LENGTH elements, one a row."""
    v = v0 + tl.arange(0, VECTORS)
    h = h0 + tl.arange(0, LENGTH)
    if ACROSS:
        # Read along the memory, then turned, so that a warp's reads are neighbours for both kinds of strides.
        at = h.to(tl.int64)[:, None] * inner + v[None, :]
        return tl.trans(tl.load(x + at, mask=(h < k)[:, None] & (v < count)[None, :], other=0.0))
    else:
        at = v.to(tl.int64)[:, None] * step + h[None, :]
        return tl.load(x + at, mask=(v < count)[:, None] & (h < k)[None, :], other=0.0)


@triton.jit
def _survey(
    x, step, inner, tops, sizes, count, k, v0, h0, VECTORS: tl.constexpr, LENGTH: tl.constexpr, ACROSS: tl.constexpr
):  # fmt: skip
    v = v0 + tl.arange(0, VECTORS)
    top = tl.zeros([VECTORS], tl.int32)
    size = tl.zeros([VECTORS], tl.float32)
    for part in range(0, SURVEY, LENGTH):
        value = tl.abs(_block(x, step, inner, count, k, v0, h0 + part, VECTORS, LENGTH, ACROSS))
        # Patterns of magnitudes compare as these do, with Inf and NaN above all.
        top = tl.maximum(top, tl.max(value.to(tl.int32, bitcast=True), 1))
        size += tl.sum(value, 1)
    tl.store(tops + v, top, mask=v < count)
    tl.store(sizes + v, size, mask=v < count)


@triton.jit(
    do_not_specialize=[
        "a_step", "a_inner", "a_batch", "b_step", "b_inner", "b_batch", "rows", "columns", "depth", "left_programs",
    ]
)  # fmt: skip
def survey_tiles(
    a, a_step, a_inner, a_batch, b, b_step, b_inner, b_batch, tops, sizes, rows, columns, depth, left_programs,
    LEFT_ACROSS: tl.constexpr, RIGHT_ACROSS: tl.constexpr, LEFT_EVEN: tl.constexpr, RIGHT_EVEN: tl.constexpr,
    ALONG: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """tops (pieces, vectors) int32, sizes float32: patterns of the largest magnitudes, sums of magnitudes; the vectors
    of all batches of A, then those of B. A program: ALONG vectors whose elements are neighbours, or WIDE neighbours.
    """
    program, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1)
    pieces = tl.cdiv(depth, SURVEY)
    vectors = batches.to(tl.int64) * (rows + columns)
    if program < left_programs:
        piece = program % pieces
        place = piece * vectors + batch * rows
        VECTORS: tl.constexpr = WIDE if LEFT_ACROSS else ALONG
        LENGTH: tl.constexpr = 8192 // WIDE if LEFT_ACROSS else 512
        _survey(
            a + batch * even(a_batch, LEFT_EVEN), even(a_step, LEFT_EVEN and not LEFT_ACROSS),
            even(a_inner, LEFT_EVEN and LEFT_ACROSS), tops + place, sizes + place,
            even(rows, LEFT_EVEN and LEFT_ACROSS), even(depth, LEFT_EVEN and not LEFT_ACROSS),
            program // pieces * VECTORS, piece * SURVEY, VECTORS, LENGTH, LEFT_ACROSS,
        )  # fmt: skip
    else:
        program -= left_programs
        piece = program % pieces
        place = piece * vectors + batches.to(tl.int64) * rows + batch * columns
        MANY: tl.constexpr = WIDE if RIGHT_ACROSS else ALONG
        LONG: tl.constexpr = 8192 // WIDE if RIGHT_ACROSS else 512
        _survey(
            b + batch * even(b_batch, RIGHT_EVEN), even(b_step, RIGHT_EVEN and not RIGHT_ACROSS),
            even(b_inner, RIGHT_EVEN and RIGHT_ACROSS), tops + place, sizes + place,
            even(columns, RIGHT_EVEN and RIGHT_ACROSS), even(depth, RIGHT_EVEN and not RIGHT_ACROSS),
            program // pieces * MANY, piece * SURVEY, MANY, LONG, RIGHT_ACROSS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["vectors", "pieces", "depth"])
def scale_tiles(tops, sizes, shifts, caps, counts, vectors, pieces, depth, CLEAR: tl.constexpr, BLOCK: tl.constexpr):
    """shifts (vectors,) int32: s, |x| < 2^s, or EMPTY, or BROKEN. caps float32: 3/4 of the mean magnitude, in units of
    2^s. CLEAR: counts (4,) int64 set to 0.
    """
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    top = tl.zeros([BLOCK], tl.int32)
    size = tl.zeros([BLOCK], tl.float64)
    at = v.to(tl.int64)
    for _ in range(pieces):
        top = tl.maximum(top, tl.load(tops + at, mask=v < vectors, other=0))
        size += tl.load(sizes + at, mask=v < vectors, other=0.0).to(tl.float64)
        at += vectors
    # 0 has no exponent: 1 stands in for it, and the vector is EMPTY below.
    shift = exponent(tl.maximum(top, 1), 23) + 1
    # The mean of magnitudes below 2^s, by two factors that are in range.
    half = shift >> 1
    mean = size / depth * power(-half).to(tl.float64) * power(half - shift).to(tl.float64)
    # A sum may overflow where no element does; the cap is then 0 and proves nothing, and the vector is split as usual.
    broken = (top >= 0x7F800000) | (mean - mean != 0.0)
    tl.store(caps + v, tl.where(broken, 0.0, 0.75 * mean).to(tl.float32), mask=v < vectors)
    shift = tl.where(top == 0, EMPTY, tl.where(top >= 0x7F800000, BROKEN, shift))
    tl.store(shifts + v, shift, mask=v < vectors)
    if CLEAR:
        if tl.program_id(0) == 0:
            tl.store(counts + tl.arange(0, 4), tl.zeros([4], tl.int64))


@triton.jit
def _split(
    x, step, inner, planes, all_rows, plane, shifts, caps, weights, all_tiles, squares, capped, vectors, count, k, v0,
    h0, VECTORS: tl.constexpr, LENGTH: tl.constexpr, ACROSS: tl.constexpr, SEGMENTS: tl.constexpr, TILE: tl.constexpr,
    WIDTH: tl.constexpr, GIVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    STEPS: tl.constexpr = LENGTH // WIDTH
    TILES: tl.constexpr = VECTORS // TILE
    FRACTION: tl.constexpr = 7 * SEGMENTS - 1
    v = v0 + tl.arange(0, VECTORS)
    h = h0 + tl.arange(0, LENGTH)
    value = _block(x, step, inner, count, k, v0, h0, VECTORS, LENGTH, ACROSS)
    shift = tl.load(shifts + v, mask=v < count, other=EMPTY)
    value = tl.where((shift == BROKEN)[:, None], 0.0, value)
    shift = tl.where((shift == EMPTY) | (shift == BROKEN), 0, shift)
    size = tl.abs(value)
    # What the certificate asks of a vector, in units of 2^s.
    scaled = times(size, -shift[:, None])
    cap = tl.load(caps + v, mask=v < count, other=0.0)
    piece = (h0 // LENGTH).to(tl.int64) * vectors
    # One number a piece, which `certify.sum_tiles` adds in order: atomics would change bits from run to run.
    tl.store(squares + piece + v, tl.sum(scaled * scaled, 1), mask=v < count)
    tl.store(capped + piece + v, tl.sum(tl.minimum(scaled, cap[:, None]), 1), mask=v < count)
    # Exponents of tiles.
    top = tl.max(tl.reshape(size.to(tl.int32, bitcast=True), [VECTORS, STEPS, WIDTH]), 2)
    e = tl.where(top == 0, EMPTY, exponent(tl.maximum(top, 1), FRACTION))
    if not GIVEN:
        e -= shift[:, None]
    g = tl.max(tl.reshape(e, [TILES, TILE, STEPS]), 1)
    empty = g < EMPTY // 2
    weight = power(g - 6)
    if PAIRS:
        weight = tl.where(g < FAR, 0.0, weight)
    elif GIVEN:
        # What cannot be weighed makes its sums NaN, and every entry they enter is repaired.
        weight = tl.where(g < -143, float("nan"), weight)
    weight = tl.where(empty, 0.0, weight)
    tile = v0 // TILE + tl.arange(0, TILES)
    k_step = h0 // WIDTH + tl.arange(0, STEPS)
    tl.store(
        weights + k_step.to(tl.int64)[None, :] * all_tiles + tile[:, None], weight,
        mask=(tile * TILE < count)[:, None] & (k_step * WIDTH < k)[None, :],
    )  # fmt: skip
    at = planes + (h // WIDTH).to(tl.int64)[None, :] * all_rows * WIDTH + v.to(tl.int64)[:, None] * WIDTH
    at += (h % WIDTH)[None, :]
    stored = (v < count)[:, None] & (h // WIDTH * WIDTH < k)[None, :]
    sign = value < 0.0
    if PAIRS:
        tl.store(at, value if GIVEN else tl.where(sign, -scaled, scaled), mask=stored)
    else:
        # Integers.
        up = FRACTION - tl.where(empty, 0, g)
        up = tl.reshape(tl.broadcast_to(up[:, None, :], [TILES, TILE, STEPS]), [VECTORS, STEPS])
        if not GIVEN:
            up -= shift[:, None]
        # Two factors, as 2^up alone may leave float32's range.
        last = up >> 1
        first = tl.minimum(tl.maximum(up - last, -126), 127)
        last = tl.minimum(tl.maximum(last, -126), 127)
        y = tl.reshape(size, [VECTORS, STEPS, WIDTH]) * power(first)[:, :, None] * power(last)[:, :, None]
        # RN of what is below 2^23; larger numbers are integers.
        y = tl.where(y < 8388608.0, (y + 8388608.0) - 8388608.0, y)
        integer = tl.reshape(y, [VECTORS, LENGTH]).to(tl.int32)
        for p in tl.static_range(SEGMENTS):
            segment = (integer >> (7 * (SEGMENTS - 1 - p))) & 127
            segment = tl.where(sign, -segment, segment)
            tl.store(at + p * plane * WIDTH, segment.to(tl.int8), mask=stored)


@triton.jit(
    do_not_specialize=[
        "a_step", "a_inner", "a_batch", "b_step", "b_inner", "b_batch", "rows", "columns", "depth", "left_programs",
        "left_tiles", "right_tiles",
    ]
)  # fmt: skip
def split_tiles(
    a, a_step, a_inner, a_batch, b, b_step, b_inner, b_batch, planes, shifts, caps, weights, squares, capped, rows,
    columns, depth, left_programs, left_tiles, right_tiles,
    LEFT_ACROSS: tl.constexpr, RIGHT_ACROSS: tl.constexpr, LEFT_EVEN: tl.constexpr, RIGHT_EVEN: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    GIVEN: tl.constexpr, PAIRS: tl.constexpr, VECTORS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """Planes and weights of a (batch, rows, depth) and b (batch, depth, columns), LEFT and RIGHT segments an element.

    squares, capped (pieces of LENGTH, vectors) float32: sums of squares, and of magnitudes of at most the cap, in units
    of 2^s. weights: rows of left_tiles, then of right_tiles, a matrix. GIVEN: exponents are those of the data as given.
    PAIRS: one plane, of elements.
    """
    program, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1)
    pieces = tl.cdiv(depth, LENGTH)
    many = batches.to(tl.int64) * rows
    more = batches.to(tl.int64) * columns
    LEFT_PLANES: tl.constexpr = 1 if PAIRS else LEFT
    RIGHT_PLANES: tl.constexpr = 1 if PAIRS else RIGHT
    all_rows = LEFT_PLANES * many + RIGHT_PLANES * more
    all_tiles = batches.to(tl.int64) * (left_tiles + right_tiles)
    if program < left_programs:
        first = batch * rows
        _split(
            a + batch * even(a_batch, LEFT_EVEN), even(a_step, LEFT_EVEN and not LEFT_ACROSS),
            even(a_inner, LEFT_EVEN and LEFT_ACROSS), planes + first * WIDTH, all_rows, many, shifts + first,
            caps + first, weights + batch * left_tiles, all_tiles, squares + first, capped + first,
            many + more, even(rows, LEFT_EVEN and LEFT_ACROSS), even(depth, LEFT_EVEN and not LEFT_ACROSS),
            program // pieces * VECTORS, program % pieces * LENGTH,
            VECTORS, LENGTH, LEFT_ACROSS, LEFT, TILE_ROWS, WIDTH, GIVEN, PAIRS,
        )  # fmt: skip
    else:
        program -= left_programs
        first = batch * columns
        _split(
            b + batch * even(b_batch, RIGHT_EVEN), even(b_step, RIGHT_EVEN and not RIGHT_ACROSS),
            even(b_inner, RIGHT_EVEN and RIGHT_ACROSS), planes + (LEFT_PLANES * many + first) * WIDTH, all_rows, more,
            shifts + many + first, caps + many + first,
            weights + batches * left_tiles + batch * right_tiles, all_tiles, squares + many + first,
            capped + many + first, many + more,
            even(columns, RIGHT_EVEN and RIGHT_ACROSS), even(depth, RIGHT_EVEN and not RIGHT_ACROSS),
            program // pieces * VECTORS, program % pieces * LENGTH,
            VECTORS, LENGTH, RIGHT_ACROSS, RIGHT, TILE_COLUMNS, WIDTH, GIVEN, PAIRS,
        )  # fmt: skip
