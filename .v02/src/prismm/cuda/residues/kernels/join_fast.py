"""The fast join: C' of ordinary entries from sums in two parts, with a proved bound of their error; the other entries
are left to `join`, tile by tile.

Two moduli are joined in integers first: D = d1·p2 + d2·p1 < 2^18 stands for both in C' = Σ D·P/(p1·p2) - q·P. The
weights are cut into H, a multiple of 2^a such that Σ D·H is exact in 53 bits, and L, the rest rounded. With
q = rint(Σ D·H / P), which is right because |C'| <= P(1 - 2^-16)/2 (`moduli.norm_limit`), C' = h + low within E, E about
2^-79·P (`moduli.paired_system`). So float64's rounding of C' is that of h + low wherever both ends of h + low ± E round
alike; in about 2^-16 of ordinary entries they do not, and a second pass over their tile, with sums in three parts,
certifies all but one in 2^40.

A program joins a strip of rows and a block of columns. What `join` asks of every entry it asks of the strip where that
is enough: that no result leaves the normal range, by the least and largest scale exponents; that the bound is small
beside |a||b|, by the least counts of elements above the same thresholds (a weaker form of `join.large_products`, so it
accepts nothing that `join_exact` refuses). A tile of ROWS rows with an uncertified entry, or all tiles of a strip
that is not ordinary, get a bit in the strip's word of flags.

Bytes: 1 read per entry and modulus, 4 or 8 written. Operations: 3 float64 and 2.5 integer ones per entry and two
moduli, about 13 float64 ones an entry. Of n = 2048 and 8 moduli the bytes take 12 us on an H200, the instructions 11
at best, and the join 22; a sixth of the instructions are for what a program asks of its rows and columns. Digits that
were asked for when they were needed made it 28.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import (
    COUNTS,
    EXPONENT,
    LARGEST,
    SHIFT,
    STATISTICS,
    TWO52,
    bits_of,
    even,
    exponent_above,
    fast_two_sum,
    float_of,
    nearest,
    nearest_of,
    power_of_two,
    two_sum,
    wide,
)
from prismm.cuda.residues.kernels.join_exact import IMAGINARY_PART, REAL, REAL_PART, ROUNDING, bound_terms

FAR = tl.constexpr(1 << 20)
ORDINARY = tl.constexpr(1 << 30)
"""The bit of a word of flags that says that the strip is ordinary, so that a second pass may certify its tiles."""

LAST_LEVEL = tl.constexpr(4)
"""Of the counts of large elements."""


@triton.jit
def _digits(at, plane, t, mask, MODULI: tl.constexpr, PART: tl.constexpr):
    """A number congruent to modulus t's digit, in [0, p), or (-2p, p) of complex parts; 0 where all digits are."""
    first = at + wide(plane) * t
    d = tl.load(first, mask=mask, other=0).to(tl.int32)
    if PART == REAL_PART:
        d -= tl.load(first + wide(plane) * MODULI, mask=mask, other=0).to(tl.int32)
    if PART == IMAGINARY_PART:
        d = -d - tl.load(first + wide(plane) * MODULI, mask=mask, other=0).to(tl.int32)
        d += tl.load(first + wide(plane) * (2 * MODULI), mask=mask, other=0).to(tl.int32)
    return d


@triton.jit
def _number(d, PART: tl.constexpr):
    """An integer |d| < 2^31 as float64, by its pattern."""
    if PART == REAL:
        pattern = d.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000
        return pattern.to(tl.float64, bitcast=True) - TWO52
    # A flipped sign bit adds 2^31, after which no number is negative.
    pattern = (d.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.uint64) | 0x4330000000000000
    return pattern.to(tl.float64, bitcast=True) - (TWO52 + 2147483648.0)


@triton.jit
def _splat(x, value: tl.constexpr):
    """A float64 number in x's shape."""
    return tl.full(x.shape, value, tl.float64)


@triton.jit
def _pair(at, plane, g: tl.constexpr, mask, PRIMES: tl.constexpr, MODULI: tl.constexpr, PART: tl.constexpr):
    """D of the pair g of moduli, or of a last single one."""
    d = _digits(at, plane, 2 * g, mask, MODULI, PART)
    if 2 * g + 1 < MODULI:
        d = d * PRIMES[2 * g + 1] + _digits(at, plane, 2 * g + 1, mask, MODULI, PART) * PRIMES[2 * g]
    return d


@triton.jit
def _words(digits, i, j, m, row_pitch, plane, MODULI: tl.constexpr):
    """The digits of rows i and columns j, four columns a word, modulus by modulus; 0 beyond the end."""
    read = (i < m)[:, None] & (j < row_pitch // 4)[None, :]
    at = digits.to(tl.pointer_type(tl.int32), bitcast=True) + i.to(tl.int64)[:, None] * (row_pitch // 4) + j[None, :]
    found = ()
    for t in tl.static_range(MODULI):
        found = found + (tl.load(at + wide(plane // 4) * t, mask=read, other=0),)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def _byte(word, x: tl.constexpr):
    return (word >> (8 * x)) & 255


@triton.jit
def _pairs_of_words(first, second, P: tl.constexpr, Q: tl.constexpr, NVIDIA: tl.constexpr):
    """D of two moduli p and q, of the four digits of each word, in the shape of digits."""
    if NVIDIA:
        # A digit of one beside that of the other: two products with 16-bit factors and their sum are one instruction.
        d0, d1, d2, d3 = tl.inline_asm_elementwise(
            "{ .reg .b32 l, h; prmt.b32 l, $4, $5, 0x5140; prmt.b32 h, $4, $5, 0x7362; "
            "dp2a.lo.u32.u32 $0, $6, l, 0; dp2a.hi.u32.u32 $1, $6, l, 0; "
            "dp2a.lo.u32.u32 $2, $6, h, 0; dp2a.hi.u32.u32 $3, $6, h, 0; }",
            "=r,=r,=r,=r,r,r,r", [first, second, Q + (P << 16)], dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        d0 = _byte(first, 0) * Q + _byte(second, 0) * P
        d1 = _byte(first, 1) * Q + _byte(second, 1) * P
        d2 = _byte(first, 2) * Q + _byte(second, 2) * P
        d3 = _byte(first, 3) * Q + _byte(second, 3) * P
    return _side_by_side(d0, d1, d2, d3)


@triton.jit
def _side_by_side(d0, d1, d2, d3):
    """Of four tiles of every fourth column, all columns."""
    return tl.reshape(tl.join(tl.join(d0, d2), tl.join(d1, d3)), [d0.shape[0], 4 * d0.shape[1]])


@triton.jit
def _pair_of_words(words, g: tl.constexpr, PRIMES: tl.constexpr, MODULI: tl.constexpr, NVIDIA: tl.constexpr):
    """D of the pair g of moduli, or of a last single one."""
    first = words[2 * g]
    if 2 * g + 1 < MODULI:
        return _pairs_of_words(first, words[2 * g + 1], PRIMES[2 * g], PRIMES[2 * g + 1], NVIDIA)
    else:
        return _side_by_side(_byte(first, 0), _byte(first, 1), _byte(first, 2), _byte(first, 3))


@triton.jit
def expand_fast(
    words, at, plane, mask, SYSTEM: tl.constexpr, PRIMES: tl.constexpr, MODULI: tl.constexpr, PART: tl.constexpr,
    NVIDIA: tl.constexpr,
):  # fmt: skip
    """(r0, r1, zero): C' = r0 + r1 within E, and whether it is 0, which all its digits are then. words: of `_words`, or
    nothing of complex numbers, whose digits are read where they are.
    """
    PAIRS: tl.constexpr = (MODULI + 1) // 2
    s0 = tl.zeros(at.shape, tl.float64)
    s1 = tl.zeros(at.shape, tl.float64)
    any_digit = tl.zeros(at.shape, tl.int32)
    for g in tl.static_range(PAIRS):
        if PART == REAL:
            d = _pair_of_words(words, g, PRIMES, MODULI, NVIDIA)
        else:
            d = _pair(at, plane, g, mask, PRIMES, MODULI, PART)
            any_digit |= d
        x = _number(d, PART)
        # The upper parts' sum is exact; only the lower one rounds, which E includes.
        s0 = tl.fma(x, _splat(x, SYSTEM[5 + 2 * g]), s0)
        s1 = tl.fma(x, _splat(x, SYSTEM[6 + 2 * g]), s1)
    # Digits of a real product are not negative, nor are weights, so only zeros add up to 0.
    zero = s0 == 0.0 if PART == REAL else any_digit == 0
    q = nearest_of(s0 * SYSTEM[0], NVIDIA) if NVIDIA else nearest(s0 * SYSTEM[0])
    return tl.fma(q, _splat(q, -SYSTEM[1]), s0), tl.fma(q, _splat(q, -SYSTEM[2]), s1), zero


@triton.jit
def _raised(x, by, NVIDIA: tl.constexpr):
    """x·2^by by its exponent field, for results in the normal range; x not 0."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 l, h; mov.b64 {l, h}, $1; add.s32 h, h, $2; mov.b64 $0, {l, h}; }", "=d,d,r", [x, by << 20],
            dtype=tl.float64, is_pure=True, pack=1,
        )  # fmt: skip
    return float_of(bits_of(x) + (by.to(tl.int64) << 52))


@triton.jit
def _four_least(a0, a1, a2, a3, b0, b1, b2, b3):
    return tl.minimum(a0, b0), tl.minimum(a1, b1), tl.minimum(a2, b2), tl.minimum(a3, b3)


@triton.jit
def _five_least(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return tl.minimum(a0, b0), tl.minimum(a1, b1), tl.minimum(a2, b2), tl.minimum(a3, b3), tl.minimum(a4, b4)


@triton.jit
def _facts(stats, count, at, inside, LEVELS: tl.constexpr):
    """Of some vectors what `_vectors` asks: the largest pattern, s, and the counts of large elements. All of it is on
    its way at once, since a strip's program does little else but wait for it.
    """
    largest = tl.load(stats + LARGEST * count + at, mask=inside, other=0)
    shift = tl.load(stats + SHIFT * count + at, mask=inside, other=0).to(tl.int32)
    counts = (shift, shift, shift, shift, shift)
    if LEVELS:
        first = stats + COUNTS * count + at
        counts = (
            tl.load(first, mask=inside, other=0).to(tl.int32),
            tl.load(first + count, mask=inside, other=0).to(tl.int32),
            tl.load(first + 2 * count, mask=inside, other=0).to(tl.int32),
            tl.load(first + 3 * count, mask=inside, other=0).to(tl.int32),
            tl.load(first + 4 * count, mask=inside, other=0).to(tl.int32),
        )
    return largest, shift, counts


@triton.jit
def _vectors(largest, shift, counts, inside, q, LEVELS: tl.constexpr):
    """Of some vectors: whether all are finite; least and largest s; least e + s, and their least counts of elements of
    at least 2^(that - 1 - p), p = 0 to 4: of those that are not zero, whose products are.
    """
    inside = inside & (largest != 0)
    exponents = tl.where(inside, exponent_above(largest).to(tl.int32) + shift, FAR)
    finite, least, most, power = tl.reduce(
        ((largest < EXPONENT).to(tl.int32), tl.where(inside, shift, FAR), tl.where(inside, -shift, FAR), exponents), 0,
        _four_least,
    )  # fmt: skip
    c0 = tl.full([], 0, tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    if LEVELS:
        above = tl.where(inside, exponents - power, 0)
        last = tl.minimum(LAST_LEVEL, q - 1)
        c0, c1, c2, c3, c4 = tl.reduce(
            (
                _count_of(counts, inside, above, last), _count_of(counts, inside, above + 1, last),
                _count_of(counts, inside, above + 2, last), _count_of(counts, inside, above + 3, last),
                _count_of(counts, inside, above + 4, last),
            ), 0, _five_least,
        )  # fmt: skip
    return (
        finite, least, -most, power, c0.to(tl.float64), c1.to(tl.float64), c2.to(tl.float64), c3.to(tl.float64),
        c4.to(tl.float64),
    )  # fmt: skip


@triton.jit
def _count_of(counts, inside, level, last):
    """The counts of these levels, one for each vector; for those beyond the last that counts, of that."""
    level = tl.minimum(level, last)
    found = tl.where(level == 0, counts[0], tl.where(level == 1, counts[1], counts[2]))
    found = tl.where(level >= 3, tl.where(level == 3, counts[3], counts[4]), found)
    # 2^24 is above any count, so vectors beyond the end do not lower the minimum.
    return tl.where(inside, found, FAR * 16)


@triton.jit
def _most(a, b0, b1, b2, b3, b4, k):
    """max_r (a + b_r - k)·2^-r, 0 at least."""
    best = tl.maximum(tl.maximum(a + b0 - k, 0.5 * (a + b1 - k)), 0.25 * (a + b2 - k))
    return tl.maximum(tl.maximum(best, 0.125 * (a + b3 - k)), tl.maximum(0.0625 * (a + b4 - k), 0.0))


@triton.jit
def _add_weighted(x, weights, s0, s1, s2):
    """Sums of numbers times the three parts of their weights."""
    return (
        tl.fma(x, tl.load(weights), s0), tl.fma(x, tl.load(weights + 1), s1), tl.fma(x, tl.load(weights + 2), s2)
    )  # fmt: skip


@triton.jit
def expand_closely(
    at, plane, reduction, third, mask, MODULI: tl.constexpr, PART: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """(h, low, zero) like `expand_fast`, within E of three parts and 2^-52·|low|: the second sum is exact too.

    third: the constants of `expand_fast` for three parts, in memory, as the moduli are in `reduction`. AT_ONCE: all
    digits are asked for before any is used; else, where few tiles come and what they cost is the way of the
    instructions to the multiprocessor, those of one pair after another in a loop.
    """
    s0 = tl.zeros(at.shape, tl.float64)
    s1 = tl.zeros(at.shape, tl.float64)
    s2 = tl.zeros(at.shape, tl.float64)
    any_digit = tl.zeros(at.shape, tl.int32)
    if AT_ONCE:
        digits = ()
        for t in tl.static_range(MODULI):
            digits = digits + (_digits(at, plane, t, mask, MODULI, PART),)  # type: ignore[assignment]  # noqa: RUF005
        for g in tl.static_range((MODULI + 1) // 2):
            d = digits[2 * g]  # type: ignore[var-annotated]
            if 2 * g + 1 < MODULI:
                d = d * tl.load(reduction + 6 * g + 3) + digits[2 * g + 1] * tl.load(reduction + 6 * g)
            any_digit |= d
            s0, s1, s2 = _add_weighted(_number(d, PART), third + (6 + 3 * g), s0, s1, s2)
    else:
        for g in range((MODULI + 1) // 2):
            both = 2 * g + 1 < MODULI
            d = _digits(at, plane, 2 * g, mask, MODULI, PART) * tl.where(both, tl.load(reduction + 6 * g + 3), 1)
            d += _digits(at, plane, 2 * g + 1, mask & both, MODULI, PART) * tl.load(reduction + 6 * g)
            any_digit |= d
            s0, s1, s2 = _add_weighted(_number(d, PART), third + (6 + 3 * g), s0, s1, s2)
    q = -nearest(s0 * tl.load(third))
    r0 = tl.fma(q, tl.load(third + 1), s0)
    r1 = tl.fma(q, tl.load(third + 2), s1)
    h, low = two_sum(r0, r1)
    return h, low + tl.fma(q, tl.load(third + 3), s2), any_digit == 0


@triton.jit(
    do_not_specialize=["row_step", "batch_step", "m", "width", "k", "q", "word_plane", "row_batches", "column_batches"]
)
def join_fast(
    digits, out, row_step, column_stride, batch_step, flags, rows, columns, needed, m, width, k, q, row_pitch, plane,
    word_plane, row_batches, column_batches, SYSTEM: tl.constexpr, PRIMES: tl.constexpr, MODULI: tl.constexpr,
    MODE: tl.constexpr, TESTED: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, STRIP: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, NVIDIA: tl.constexpr, LOWER: tl.constexpr = False,
):  # fmt: skip
    """Join a strip of STRIP rows and BLOCK columns; flags: a word a strip, by (batch, parts, strips, blocks). LOWER:
    not one above the diagonal, which has no flags.

    TESTED: in MAGNITUDE, that kappa is not 0. k: terms. PARTS: 2 for complex numbers, out's parts being neighbours;
    program axis 2: matrices of a batch, times parts.
    needed (float64): 4·kappa·bound of any entry. HALF: exponent of P/2, rounded up. SYSTEM: 1/P, P in two parts, 2·E,
    the least |h|, then the weights' two parts; PRIMES: the moduli.
    """
    LOWEST: tl.constexpr = -1022 if PRECISION == 53 else -126
    # Eight binades below overflow: an entry's bound is below P and does not reach so far.
    TOP: tl.constexpr = 1016 if PRECISION == 53 else 120
    part = tl.program_id(2) % PARTS
    batch = (tl.program_id(2) // PARTS).to(tl.int64)
    n = even(width, EVEN)
    row_stride = even(row_step, EVEN)
    digits += batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI)
    out += batch * even(batch_step, EVEN) + part
    rows += (batch % row_batches) * STATISTICS * m
    columns += (batch % column_batches) * STATISTICS * n
    flags += (batch * PARTS + part) * word_plane + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if LOWER:
        if (tl.program_id(1) + 1) * STRIP <= tl.program_id(0) * BLOCK:
            tl.store(flags, 0)
            return
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_n = j < n
    i0 = tl.program_id(1) * STRIP
    fours = tl.program_id(0) * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    following = ()
    if PARTS == 1:
        # A tile's digits are on their way while the one before is joined, the first one's beside the facts.
        following = _words(digits, i0 + tl.arange(0, ROWS), fours, m, row_pitch, plane, MODULI)
    some = i0 + tl.arange(0, STRIP)
    largest_a, shift_a, counts_a = _facts(rows, m, some, some < m, TESTED)
    largest_b, shift_b, counts_b = _facts(columns, n, j, in_n, TESTED)
    finite_a, low_a, high_a, power_a, a0, a1, a2, a3, a4 = _vectors(largest_a, shift_a, counts_a, some < m, q, TESTED)
    finite_b, low_b, high_b, power_b, b0, b1, b2, b3, b4 = _vectors(largest_b, shift_b, counts_b, in_n, q, TESTED)
    # An integer C' that is not 0 is at least 1 and below 2^HALF, so the largest s + t tells whether a result may be
    # subnormal, and the least one whether it may be large.
    top = HALF - (low_a + low_b)
    ordinary = (finite_a > 0) & (finite_b > 0) & (high_a + high_b <= -LOWEST) & (top < TOP)
    if TESTED:
        # Of any entry, in units of a quarter of 2^(powers): thresholds of all vectors are the same, so an entry's are
        # among those that `join_exact` tests.
        hits = tl.maximum(_most(a0, b0, b1, b2, b3, b4, k), 0.5 * _most(a1, b0, b1, b2, b3, b4, k))
        hits = tl.maximum(hits, 0.25 * _most(a2, b0, b1, b2, b3, b4, k))
        hits = tl.maximum(hits, 0.125 * _most(a3, b0, b1, b2, b3, b4, k))
        hits = tl.maximum(hits, 0.0625 * _most(a4, b0, b1, b2, b3, b4, k))
        reach = hits * power_of_two(tl.minimum(power_a + power_b, 1000))
        ordinary = ordinary & (reach > tl.load(needed))
    not_certified_tiles = tl.full([], (1 << (STRIP // ROWS)) - 1, tl.int32)
    if ordinary:
        found = tl.zeros([ROWS, BLOCK], tl.int32)
        column_shift = tl.load(columns + SHIFT * n + j, mask=in_n, other=0).to(tl.int32)
        if MODE == ROUNDING:
            deviation_b, norm_b = _norms(columns, n, j, in_n, q)
        for tile in range(0, STRIP // ROWS):
            i = i0 + tile * ROWS + tl.arange(0, ROWS)
            in_m = i < m
            inside = in_m[:, None] & in_n[None, :]
            read = in_m[:, None] & (j < row_pitch)[None, :]
            at = digits + i.to(tl.int64)[:, None] * row_pitch + j[None, :]
            shift = tl.load(rows + SHIFT * m + i, mask=in_m, other=0).to(tl.int32)
            exponent = -(shift[:, None] + column_shift[None, :])
            error = tl.full([ROWS, BLOCK], SYSTEM[3], tl.float64)
            if MODE == ROUNDING:
                deviation_a, norm_a = _norms(rows, m, i, in_m, q)
                # The second of `join.bound_of`'s two; twice E takes the rounding of h + low ± error.
                second = deviation_a[:, None] * norm_b[None, :] + (norm_a + deviation_a)[:, None] * deviation_b[None, :]
                error += second * (1.0 + 1e-9)
            target = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
            if PARTS == 1:
                words = following
                after = tl.where(tile + 1 < STRIP // ROWS, i + ROWS, m)
                following = _words(digits, after, fours, m, row_pitch, plane, MODULI)
                not_certified = _join_part(
                    words, at, target, plane, read, inside, exponent, error, SYSTEM, PRIMES, MODULI, MODE, PRECISION,
                    REAL, NVIDIA,
                )  # fmt: skip
            elif part == 0:
                not_certified = _join_part(
                    (), at, target, plane, read, inside, exponent, error, SYSTEM, PRIMES, MODULI, MODE, PRECISION,
                    REAL_PART, NVIDIA,
                )  # fmt: skip
            else:
                not_certified = _join_part(
                    (), at, target, plane, read, inside, exponent, error, SYSTEM, PRIMES, MODULI, MODE, PRECISION,
                    IMAGINARY_PART, NVIDIA,
                )  # fmt: skip
            found |= (not_certified & inside).to(tl.int32) << tile
        not_certified_tiles = tl.reduce(tl.reduce(found, 1, _or), 0, _or)
        not_certified_tiles = tl.where(not_certified_tiles != 0, not_certified_tiles | ORDINARY, 0)
    tl.store(flags, not_certified_tiles)


@triton.jit
def _norms(stats, count, at, inside, q):
    """‖δ‖₂ and ‖A'‖₂ of some vectors, upper bounds."""
    _, _, _, deviation, norm, _ = bound_terms(stats, count, at, inside, q, False)
    return deviation, norm


@triton.jit
def _join_part(
    words, at, target, plane, read, inside, exponent, error, SYSTEM: tl.constexpr, PRIMES: tl.constexpr,
    MODULI: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr, PART: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Store a tile's values; returns which are uncertified."""
    r0, r1, zero = expand_fast(words, at, plane, read, SYSTEM, PRIMES, MODULI, PART, NVIDIA)
    surely_zero = zero
    if MODE == ROUNDING:
        surely_zero = zero & (error == SYSTEM[3])
    if PRECISION == 53:
        h, low = fast_two_sum(r0, r1)
        tl.store(target, tl.where(zero, 0.0, _raised(h, exponent, NVIDIA)), mask=inside)
        return (_not_certified(h, low, error) | ~(tl.abs(h) >= SYSTEM[4])) & ~surely_zero
    else:
        # Ends moved by more than an ulp, so that they enclose C', and no end is a tie that C' is not.
        h = r0 + r1
        away = tl.fma(tl.abs(h), 4.440892098500626e-16, error)  # 2^-51
        first = _raised(h - away, exponent, NVIDIA).to(tl.float32)
        last = _raised(h + away, exponent, NVIDIA).to(tl.float32)
        tl.store(target, tl.where(zero, 0.0, first), mask=inside)
        return ((first != last) | ~(tl.abs(h) >= 4.0 * error)) & ~surely_zero


@triton.jit
def _not_certified(h, low, error):
    """Whether numbers within `error` of h + low round elsewhere than to h."""
    return (h + (low + error) != h) | (h + (low - error) != h)


@triton.jit
def join_closely(
    digits, out, row_stride, column_stride, rows, columns, reduction, third, m, n, i0, j0, q, row_pitch, plane,
    MODULI: tl.constexpr, MODE: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Join a tile of an ordinary strip to float64 from sums in three parts; returns which entries are still
    uncertified.
    """
    i = i0 + tl.arange(0, ROWS)
    j = j0 + tl.arange(0, BLOCK)
    in_m, in_n = i < m, j < n
    inside = in_m[:, None] & in_n[None, :]
    at = digits + i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    h, low, zero = expand_closely(at, plane, reduction, third, inside, MODULI, PART, AT_ONCE)
    h, low = two_sum(h, low)
    error = tl.load(third + 4) + tl.abs(low) * 8.881784197001252e-16  # 2^-50
    surely_zero = zero
    if MODE == ROUNDING:
        second = _second_bound(rows, columns, m, n, i, j, in_m, in_n, q)
        error += second
        surely_zero = zero & (second == 0.0)
    shift = tl.load(rows + SHIFT * m + i, mask=in_m, other=0).to(tl.int32)
    column_shift = tl.load(columns + SHIFT * n + j, mask=in_n, other=0).to(tl.int32)
    target = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    value = _raised(h, -(shift[:, None] + column_shift[None, :]), False)
    tl.store(target, tl.where(zero, 0.0, value), mask=inside)
    return (_not_certified(h, low, error) | ~(tl.abs(h) >= tl.load(third + 5))) & ~surely_zero & inside


@triton.jit
def _second_bound(rows, columns, m, n, i, j, in_m, in_n, q):
    """The second of `join.bound_of`'s two, of a tile."""
    deviation_a, norm_a = _norms(rows, m, i, in_m, q)
    deviation_b, norm_b = _norms(columns, n, j, in_n, q)
    second = deviation_a[:, None] * norm_b[None, :] + (norm_a + deviation_a)[:, None] * deviation_b[None, :]
    # Above all roundings of the bound; what is too large only flags more.
    return second * (1.0 + 1e-9)


@triton.jit
def _or(x, y):
    return x | y
