"""Residues of scaled vectors, in planes with the inner dimension contiguous, as INT8 units want both operands.

A' = RN(a·2^s) as an integer of up to 85 bits; A' + 2^bits in unsigned words of 32 bits; the residue is a dot product of
their bytes with 256^b mod p, reduced by one high product. Where there are such instructions the dot product is two or
three `dp4a`, which leave the pattern of a float32 number, reduced by three operations in float32, of which an sm90 GPU
does twice as many as of integer ones. On the way the residual δ = a·2^s - A' is measured: Σ ceil(2^10·|δ|)², an
integer, 0 only where all are exact.

Where the left operand's factors hold (P/p)^-1, the product's residue is at once the digit of the Chinese remainder sum.
Complex vectors have one scale; the planes of real parts, imaginary parts and their sums follow one another.

On sm90 `split_sm90` takes the place of this for rows, and for columns that are short.

Bytes: 8 read (rows three times, twice from a cache), 1 written per element and modulus; 6 operations per element and
modulus with `dp4a`, 12 without. Rows of 14 residues take 0.15 ms at n = 4096 on an H200 and columns 0.11, where their
bytes take 0.09: instructions, 130 to 150 an element, are the floor of rows.
"""

import triton
import triton.language as tl

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
    wide,
)
from prismm.cuda.residues.kernels.scale import counts_of, exponent_of, level_of, magnitude_factors, scale_exponent

FIELDS = tl.constexpr(17)
"""Integers of a modulus in the table: six factors of 16-bit halves, three words of byte factors, offset, p, magic of
2^32/p; for NVIDIA the pattern of c·p and an offset, those of the float32 numbers 1/p, M - c and -p, and what the sum of
two such patterns has too much."""


@triton.jit
def residual_of(delta, vanished, MEASURE: tl.constexpr, NVIDIA: tl.constexpr):
    """To MEASURE ceil(2^10·|δ|), at least 1 where an element was lost on the way; else whether there is any."""
    if MEASURE:
        measured = ceiling_of_product(tl.abs(delta), tl.full([], 1024.0, tl.float64), NVIDIA)
        return tl.maximum(measured, vanished.to(tl.int32))
    return ((delta != 0.0) | vanished).to(tl.int32)


@triton.jit
def words_of_product(x, factor, bits, WORDS: tl.constexpr, MEASURE: tl.constexpr, NVIDIA: tl.constexpr):
    """Three words of A' + 2^bits, A' = RN(x·factor), lowest first, those beyond WORDS 0; and a bound of the residual
    δ = x·factor - A': ceil(2^10·|δ|), at least 1 where x vanished; or, not to MEASURE, 1 where δ is not 0.

    bits <= 63 unless there are three words. x, factor: as in `scale_factors`.
    """
    y = x * factor
    if WORDS == 3:
        # In units of 2^32 first: the rest is exact, and its nearest integer that of y, ties included.
        top = nearest_of(y * 2.3283064365386962890625e-10, NVIDIA)
        rest = tl.fma(top, -4294967296.0, y)
        z = nearest_of(rest, NVIDIA)
        delta = rest - z
        # Underflow leaves no δ to measure, but the element is inexact all the same.
        vanished = (y == 0.0) & (x != 0.0)
        low = z.to(tl.int64)
        # 2^bits makes the integer positive, so that its bytes are digits; the tables' offsets subtract it modulo p.
        high = top.to(tl.int64) + (low >> 32) + (tl.full([], 1, tl.int64) << (bits - 32))
        w0, w1, w2 = (low & LOW32).to(tl.int32), (high & LOW32).to(tl.int32), (high >> 32).to(tl.int32)
    else:
        z = nearest_of(y, NVIDIA)
        delta = y - z
        vanished = (y == 0.0) & (x != 0.0)
        integer = z.to(tl.int64) + (tl.full([], 1, tl.int64) << bits)
        w0, w1, w2 = (integer & LOW32).to(tl.int32), (integer >> 32).to(tl.int32), integer.to(tl.int32) & 0
    return w0, w1, w2, residual_of(delta, vanished, MEASURE, NVIDIA)


@triton.jit
def scale_factors(shift, largest):
    """Two powers of two whose product is 2^s, so that x times the first is exact."""
    lift = lift_of(exponent_of(largest))
    return any_power_of_two(lift), any_power_of_two((shift - lift).to(tl.int32))


@triton.jit
def residual_total(residual, terms, MEASURE: tl.constexpr):
    """An upper bound of Σ ceil(2^10·|δ|)², 0 only where all δ are: measured, or from |δ| <= 1/2."""
    if MEASURE:
        return residual
    # K·(2^10·1/2)² = K·2^18.
    return tl.where(residual > 0, terms.to(tl.int64) << 18, 0)


@triton.jit
def _dot4(bytes4, factors, addend):
    """addend + Σ of four unsigned bytes times four signed ones."""
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [bytes4, factors, addend], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _constants(table, t, WORDS: tl.constexpr, NVIDIA: tl.constexpr):
    """What modulus t asks for, in the order in which `_sum_of` and `_reduced` take it."""
    row = table + t * FIELDS
    if NVIDIA:
        inverse = tl.load(row + 13).to(tl.float32, bitcast=True)
        shift = tl.load(row + 14).to(tl.float32, bitcast=True)
        minus = tl.load(row + 15).to(tl.float32, bitcast=True)
        f0, start, base = tl.load(row + 6), tl.load(row + 12), tl.load(row + 16)
        f1 = tl.load(row + 7) if WORDS >= 2 else f0
        f2 = tl.load(row + 8) if WORDS >= 3 else f0
        return start, base, inverse, shift, minus, f0, f1, f2, f2, f2, f2
    else:
        f0, f1 = tl.load(row), tl.load(row + 1)
        f2, f3 = (tl.load(row + 2), tl.load(row + 3)) if WORDS >= 2 else (f0, f0)
        f4, f5 = (tl.load(row + 4), tl.load(row + 5)) if WORDS >= 3 else (f0, f0)
        return tl.load(row + 9), 128, tl.load(row + 10), tl.load(row + 11), 0, f0, f1, f2, f3, f4, f5


@triton.jit
def _halves(word, low, high):
    """Σ of the two unsigned halves of a word times a factor each."""
    return (word & 0xFFFF) * low + ((word >> 16) & 0xFFFF) * high


@triton.jit
def _sum_of(w0, w1, w2, c, WORDS: tl.constexpr, NVIDIA: tl.constexpr):
    """An integer congruent to A' + 128 from the words of A' + 2^bits, 0 <= it < 2^31; on NVIDIA the pattern of the
    float32 number c·p + x, x congruent to A' and |x| < 2^19: see `_reduced`.
    """
    if NVIDIA:
        total = _dot4(w0, c[5], c[0])
        if WORDS >= 2:
            total = _dot4(w1, c[6], total)
        if WORDS >= 3:
            total = _dot4(w2, c[7], total)
    else:
        total = _halves(w0, c[5], c[6]) + c[0]
        if WORDS >= 2:
            total += _halves(w1, c[7], c[8])
        if WORDS >= 3:
            total += _halves(w2, c[9], c[10])
    return total


@triton.jit
def _reduced(total, c, NVIDIA: tl.constexpr):
    """The residue in [-128, 127] in the low byte of a word: in two's complement on NVIDIA, 128 too large elsewhere, the
    other bytes 0.

    On NVIDIA total is the pattern of y = c·p + x, an integer in [2^23, 2^24), |x| < 2^20. fma(y, 1/p, M - c) with
    M = 3·2^22 is M + Q, Q = rint(y·(1/p)) - c near x/p, and y - Q·p = c·p + r is exact. 256 divides c·p - 2^23, so the
    low byte of its pattern is r's. 1/p rounded errs by 2^-32 at most, so that |r| <= p/2 + p·2^-8: for p >= 255 that it
    fits was checked for every x (a test does so).
    """
    if NVIDIA:
        y = total.to(tl.float32, bitcast=True)
        q = tl.fma(y, c[2], c[3]) - 12582912.0
        return tl.fma(q, c[4], y).to(tl.int32, bitcast=True)
    else:
        u = total.to(tl.uint32, bitcast=True)
        magic = tl.zeros_like(u) + c[3].to(tl.uint32, bitcast=True)
        # The quotient may be one too small, since magic is 2^32/p rounded down: r is below 2p.
        r = total - tl.umulhi(u, magic).to(tl.int32, bitcast=True) * c[2]
        return r - tl.where(r >= c[2], c[2], 0)


@triton.jit
def _both(x, y, c):
    """Of the sum of two numbers what `_sum_of` gives of each."""
    return x + y - c[1]


@triton.jit
def _word(r0, r1, r2, r3, NVIDIA: tl.constexpr):
    """Four residues as `_reduced` leaves them, as the bytes of one word, lowest first."""
    # The higher bytes of a pattern are no part of the residue, so bytes are selected, not shifted together.
    if NVIDIA:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 l, h; prmt.b32 l, $1, $2, 0x0040; prmt.b32 h, $3, $4, 0x0040; prmt.b32 $0, l, h, 0x5410; }",
            "=r,r,r,r,r", [r0, r1, r2, r3], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    # 0x80808080: a flipped top bit takes 128 from a byte.
    return (r0 | (r1 << 8) | (r2 << 16) | (r3 << 24)) ^ -2139062144


@triton.jit
def plane_row(j, PERMUTED: tl.constexpr):
    """Where vector j stands in a plane. Permuted in groups of 64 so that the 16 entries of a row that a thread of the
    sm90 kernel holds are neighbours: 16b' + 2g + e of group b stands at 8g + 2b' + e.
    """
    if PERMUTED:
        r = j % 64
        return j - r + 8 * ((r % 16) // 2) + 2 * (r // 16) + r % 2
    return j


@triton.jit
def vector_pairs(start, fours, k, part, PARTS: tl.constexpr):
    """Elements 4·fours + {0, 1} and + {2, 3} of a vector, 0 beyond its end."""
    at = 4 * fours[:, None] + tl.arange(0, 2)[None, :]
    first = tl.load(start + at * PARTS + part, mask=at < k, other=0.0)
    second = tl.load(start + (at + 2) * PARTS + part, mask=at + 2 < k, other=0.0)
    return first.to(tl.float64), second.to(tl.float64)


@triton.jit
def _larger(best, value, EXACT: tl.constexpr):
    """The largest pattern so far; not EXACT: of the upper words alone, which hold the exponents of normal numbers."""
    if EXACT:
        return tl.maximum(best, tl.max(bits_of(value) & MAGNITUDE, 1))
    return tl.maximum(best, tl.max(magnitude_word(value), 1))


@triton.jit
def largest_of(start, fours, k, EXACT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest pattern of a vector."""
    best = tl.zeros([BLOCK // 4], tl.int64 if EXACT else tl.int32)
    for h in range(0, k, BLOCK):
        for part in tl.static_range(PARTS):
            first, second = vector_pairs(start, h // 4 + fours, k, part, PARTS)
            best = _larger(_larger(best, first, EXACT), second, EXACT)
    return tl.max(best, 0).to(tl.int64)


@triton.jit
def _words_of_four(
    x0, x1, x2, x3, lift, factor, bits, WORDS: tl.constexpr, MEASURE: tl.constexpr, NVIDIA: tl.constexpr
):  # fmt: skip
    """The words of four elements, `words_of_product`, and the sum of what their residuals add."""
    a0, a1, a2, d0 = words_of_product(x0 * lift, factor, bits, WORDS, MEASURE, NVIDIA)
    b0, b1, b2, d1 = words_of_product(x1 * lift, factor, bits, WORDS, MEASURE, NVIDIA)
    c0, c1, c2, d2 = words_of_product(x2 * lift, factor, bits, WORDS, MEASURE, NVIDIA)
    e0, e1, e2, d3 = words_of_product(x3 * lift, factor, bits, WORDS, MEASURE, NVIDIA)
    if MEASURE:
        residual = d0.to(tl.int64) * d0 + d1.to(tl.int64) * d1 + d2.to(tl.int64) * d2 + d3.to(tl.int64) * d3
    else:
        residual = (d0 + d1 + d2 + d3).to(tl.int64)
    return (a0, a1, a2, b0, b1, b2, c0, c1, c2, e0, e1, e2), residual


@triton.jit
def _sums_of_four(words, c, WORDS: tl.constexpr, NVIDIA: tl.constexpr):
    """`_sum_of` each of four."""
    return (
        _sum_of(words[0], words[1], words[2], c, WORDS, NVIDIA),
        _sum_of(words[3], words[4], words[5], c, WORDS, NVIDIA),
        _sum_of(words[6], words[7], words[8], c, WORDS, NVIDIA),
        _sum_of(words[9], words[10], words[11], c, WORDS, NVIDIA),
    )


@triton.jit
def _residues_of_four(s, c, NVIDIA: tl.constexpr):
    """The bytes of a word from four such sums."""
    return _word(
        _reduced(s[0], c, NVIDIA), _reduced(s[1], c, NVIDIA), _reduced(s[2], c, NVIDIA), _reduced(s[3], c, NVIDIA),
        NVIDIA,
    )  # fmt: skip


@triton.jit
def _residues_of_fours(reals, imaginaries, c, WORDS: tl.constexpr, NVIDIA: tl.constexpr, PARTS: tl.constexpr):
    """The residues of four numbers, bytes of a word; of complex ones those of their imaginary parts and of the parts'
    sums besides, which are the same where there are none.
    """
    s = _sums_of_four(reals, c, WORDS, NVIDIA)
    real = _residues_of_four(s, c, NVIDIA)
    imaginary, both = real, real
    if PARTS == 2:
        t = _sums_of_four(imaginaries, c, WORDS, NVIDIA)
        imaginary = _residues_of_four(t, c, NVIDIA)
        sums = _both(s[0], t[0], c), _both(s[1], t[1], c), _both(s[2], t[2], c), _both(s[3], t[3], c)
        both = _residues_of_four(sums, c, NVIDIA)
    return real, imaginary, both


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_rows(
    x, step, batch_step, stats, planes, thresholds, table, vectors, length, pitch, plane, terms, q, bits, limit_bits,
    MODULI: tl.constexpr, FOURS: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
    LEVELS: tl.constexpr, MEASURE: tl.constexpr, WORDS: tl.constexpr, NVIDIA: tl.constexpr, PERMUTED: tl.constexpr,
    PARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Scale and split one vector of contiguous elements a program: all of stats, and a row of every plane. BLOCK:
    elements that are measured at a time; FOURS: threads, each of which splits GROUPS fours at a time.

    PARTS: 1, or 2 for complex numbers, whose planes are those of the real parts, of the imaginary ones and of their
    sums. Program axis 1: matrices of a batch.
    """
    stride, k = even(step, EVEN), even(length, EVEN)
    i = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    start = x + batch * even(batch_step, EVEN) + i.to(tl.int64) * stride
    stats += batch * STATISTICS * vectors + i
    planes += batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI)
    fours = tl.arange(0, BLOCK // 4)
    lanes = tl.arange(0, FOURS)
    largest = largest_of(start, fours, k, False, PARTS, BLOCK) << 32
    if largest < 0x0010000000000000:  # zero or subnormal
        largest = largest_of(start, fours, k, True, PARTS, BLOCK)
    finite = largest < EXPONENT
    lift, factor = magnitude_factors(exponent_of(largest), q)
    squares = tl.zeros([BLOCK // 4, 2], tl.int64)
    total = tl.zeros([BLOCK // 4], tl.int64)
    c0 = tl.zeros([BLOCK // 4], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    # Eight blocks add at most 8·2·2 = 32 to a field of `level_of`, which holds 63.
    for h1 in range(0, k, 8 * BLOCK):
        levels = tl.zeros([BLOCK // 4, 2], tl.int32)
        for h in range(h1, tl.minimum(h1 + 8 * BLOCK, k), BLOCK):
            for part in tl.static_range(PARTS):
                first, second = vector_pairs(start, h // 4 + fours, k, part, PARTS)
                v = ceiling_of_product(tl.abs(first) * lift, factor, NVIDIA)
                w = ceiling_of_product(tl.abs(second) * lift, factor, NVIDIA)
                # No sum of squares wraps: q keeps K·4^q below 2^63 (`moduli.norm_fraction_bits`).
                squares += v.to(tl.int64) * v
                squares += w.to(tl.int64) * w
                total += tl.sum(v + w, 1)
                if LEVELS:
                    levels += level_of(v, q) + level_of(w, q)
        if LEVELS:
            some0, some1, some2, some3, some4 = counts_of(levels)
            c0 += tl.sum(some0, 1)
            c1 += tl.sum(some1, 1)
            c2 += tl.sum(some2, 1)
            c3 += tl.sum(some3, 1)
            c4 += tl.sum(some4, 1)
    norm2 = tl.sum(tl.sum(squares, 1), 0)
    shift = tl.where(finite, scale_exponent(largest, norm2, q, thresholds, limit_bits), -NONFINITE)
    lift, factor = scale_factors(tl.where(finite, shift, 0), largest)
    row = (planes + plane_row(i, PERMUTED).to(tl.int64) * pitch).to(tl.pointer_type(tl.int32)) + lanes
    deviation = tl.zeros([FOURS], tl.int64)
    # Up to the pitch, not to k: the product reads the padding too, where residues have to be 0.
    for h in range(0, pitch, 4 * FOURS * GROUPS):
        # Groups of a four a thread, so that a thread stores the words that it makes.
        words = ()
        for g in tl.static_range(GROUPS):
            for part in tl.static_range(PARTS):
                first, second = vector_pairs(start, h // 4 + g * FOURS + lanes, k, part, PARTS)
                x0, x1 = tl.split(first)
                x2, x3 = tl.split(second)
                four, residual = _words_of_four(x0, x1, x2, x3, lift, factor, bits, WORDS, MEASURE, NVIDIA)
                words = words + (four,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no stars
                deviation += residual
        target = row + h // 4
        for t in range(MODULI):
            c = _constants(table, t, WORDS, NVIDIA)
            for g in tl.static_range(GROUPS):
                at = target + g * FOURS
                inside = h // 4 + g * FOURS + lanes < pitch // 4
                real, imaginary, both = _residues_of_fours(
                    words[PARTS * g], words[PARTS * g + PARTS - 1], c, WORDS, NVIDIA, PARTS
                )  # fmt: skip
                tl.store(at, real, mask=inside)
                if PARTS == 2:
                    tl.store(at + wide(plane // 4) * MODULI, imaginary, mask=inside)
                    tl.store(at + wide(plane // 4) * (2 * MODULI), both, mask=inside)
            target += plane // 4
    residual = residual_total(tl.sum(deviation, 0).to(tl.int64), terms, MEASURE)
    tl.store(stats + LARGEST * vectors, largest)
    tl.store(stats + NORM2 * vectors, tl.where(finite, norm2, 0))
    tl.store(stats + NORM1 * vectors, tl.where(finite, tl.sum(total, 0), 0))
    tl.store(stats + RESIDUAL * vectors, tl.where(finite, residual, 0))
    tl.store(stats + SHIFT * vectors, shift)
    if LEVELS:
        tl.store(stats + COUNTS * vectors, tl.sum(c0, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 1) * vectors, tl.sum(c1, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 2) * vectors, tl.sum(c2, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 3) * vectors, tl.sum(c3, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 4) * vectors, tl.sum(c4, 0).to(tl.int64))


@triton.jit
def column_fours(x, h, j, stride, k, inside, part, PARTS: tl.constexpr):
    """Four tiles (fours, columns) of the elements h, h + 1, h + 2 and h + 3 of columns j, 0 beyond their end."""
    at = x + h[:, None] * stride + (j[None, :] * PARTS + part)
    v0 = tl.load(at, mask=inside & (h[:, None] < k), other=0.0)
    v1 = tl.load(at + stride, mask=inside & (h[:, None] + 1 < k), other=0.0)
    v2 = tl.load(at + 2 * stride, mask=inside & (h[:, None] + 2 < k), other=0.0)
    v3 = tl.load(at + 3 * stride, mask=inside & (h[:, None] + 3 < k), other=0.0)
    return v0.to(tl.float64), v1.to(tl.float64), v2.to(tl.float64), v3.to(tl.float64)


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_columns(
    x, step, batch_step, stats, planes, thresholds, table, vectors, length, pitch, plane, terms, q, bits, limit_bits,
    MODULI: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, MEASURE: tl.constexpr,
    WORDS: tl.constexpr, NVIDIA: tl.constexpr, PERMUTED: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Split a tile of columns whose norms stand in stats, transposed: stats[RESIDUAL], stats[SHIFT] and the planes.

    Program axis 2: matrices of a batch. What is split of a column that is not finite is of no account.
    """
    stride, n, k = even(step, EVEN), even(vectors, EVEN), even(length, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    x += batch * even(batch_step, EVEN)
    planes += batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stats += batch * STATISTICS * n + j
    word = tl.program_id(1).to(tl.int64) * (ROWS // 4) + tl.arange(0, ROWS // 4)
    h = 4 * word
    largest = tl.load(stats + LARGEST * n, mask=j < n, other=0)
    norm2 = tl.load(stats + NORM2 * n, mask=j < n, other=0)
    finite = largest < EXPONENT
    shift = tl.where(finite, scale_exponent(largest, norm2, q, thresholds, limit_bits), -NONFINITE)
    lift, factor = scale_factors(tl.where(finite, shift, 0), largest)
    lift, factor = lift[None, :], factor[None, :]
    inside = (j < n)[None, :]
    row = plane_row(j, PERMUTED).to(tl.int64)
    target = planes.to(tl.pointer_type(tl.int32)) + row[:, None] * (pitch // 4) + word[None, :]
    store = (j < n)[:, None] & (word < pitch // 4)[None, :]
    x0, x1, x2, x3 = column_fours(x, h, j, stride, k, inside, 0, PARTS)
    reals, residual = _words_of_four(x0, x1, x2, x3, lift, factor, bits, WORDS, MEASURE, NVIDIA)
    imaginaries = reals
    if PARTS == 2:
        x0, x1, x2, x3 = column_fours(x, h, j, stride, k, inside, 1, PARTS)
        imaginaries, more = _words_of_four(x0, x1, x2, x3, lift, factor, bits, WORDS, MEASURE, NVIDIA)
        residual += more
    residual = tl.sum(residual, 0)
    # Programs of other rows of the same columns meet here. A measured residual is a sum of parts; the a-priori bound is
    # that of whole columns already, so the largest stands.
    if MEASURE:
        tl.atomic_add(stats + RESIDUAL * n, residual, mask=j < n, sem="relaxed")
    else:
        at_most = residual_total(residual, terms, MEASURE)
        tl.atomic_max(stats + RESIDUAL * n, at_most, mask=(j < n) & (residual > 0), sem="relaxed")
    if tl.program_id(1) == 0:
        tl.store(stats + SHIFT * n, shift, mask=j < n)
    for t in range(MODULI):
        c = _constants(table, t, WORDS, NVIDIA)
        real, imaginary, both = _residues_of_fours(reals, imaginaries, c, WORDS, NVIDIA, PARTS)
        tl.store(target, tl.trans(real), mask=store)
        if PARTS == 2:
            tl.store(target + wide(plane // 4) * MODULI, tl.trans(imaginary), mask=store)
            tl.store(target + wide(plane // 4) * (2 * MODULI), tl.trans(both), mask=store)
        target += plane // 4
