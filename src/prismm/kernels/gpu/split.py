"""Residues of scaled vectors, in planes with the inner dimension contiguous, as INT8 units want both operands.

A' = RN(a·2^s) as an integer of up to 85 bits; A' + 2^bits in unsigned words of 32 bits; the residue is a dot product of
their bytes with 256^b mod p (two or three `dp4a` where there is such an instruction), reduced by one high product. On
the way the residual δ = a·2^s - A' is measured: Σ ceil(2^10·|δ|)², an integer, 0 only where all are exact.

Where the left operand's factors hold (P/p)^-1, the product's residue is at once the digit of the Chinese remainder sum.
Complex vectors have one scale; the planes of real parts, imaginary parts and their sums follow one another.

Bytes: 8 read (twice, the second time from a cache), 1 written per element and modulus; 6 operations per element and
modulus with `dp4a`, 12 without.
"""

import triton
import triton.language as tl

from prismm.kernels.gpu.numbers import (
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
    nearest_of,
    wide,
)
from prismm.kernels.gpu.scale import count_large, exponent_of, magnitude_factors, scale_exponent

FIELDS = tl.constexpr(14)
"""Integers of a modulus in the table: six factors of 16-bit halves, three words of byte factors, offset, p, magic; then
offset and magic for bytes."""


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
        vanished = (y == 0.0) & (x != 0.0)
        low = z.to(tl.int64)
        high = top.to(tl.int64) + (low >> 32) + (tl.full([], 1, tl.int64) << (bits - 32))
        w0, w1, w2 = (low & LOW32).to(tl.int32), (high & LOW32).to(tl.int32), (high >> 32).to(tl.int32)
    else:
        z = nearest_of(y, NVIDIA)
        delta = y - z
        vanished = (y == 0.0) & (x != 0.0)
        integer = z.to(tl.int64) + (tl.full([], 1, tl.int64) << bits)
        w0, w1, w2 = (integer & LOW32).to(tl.int32), (integer >> 32).to(tl.int32), integer.to(tl.int32) & 0
    if MEASURE:
        residual = tl.maximum(
            ceiling_of_product(tl.abs(delta), tl.full([], 1024.0, tl.float64), NVIDIA), vanished.to(tl.int32)
        )
    else:
        residual = ((delta != 0.0) | vanished).to(tl.int32)
    return w0, w1, w2, residual


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
    return tl.where(residual > 0, terms.to(tl.int64) << 18, 0)


@triton.jit
def _dot4(bytes4, factors, addend):
    """addend + Σ of four unsigned bytes times four signed ones."""
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [bytes4, factors, addend], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _halves(word, row):
    """Σ of the two unsigned halves of a word times the factors at `row`."""
    return (word & 0xFFFF) * tl.load(row) + ((word >> 16) & 0xFFFF) * tl.load(row + 1)


@triton.jit
def residue(w0, w1, w2, table, t, WORDS: tl.constexpr, NVIDIA: tl.constexpr):
    """128 more than the residue of A' modulo p that lies in [-128, 127], from the words of A' + 2^bits; int32."""
    row = table + t * FIELDS
    p = tl.load(row + 10)
    if NVIDIA:
        total = _dot4(w0, tl.load(row + 6), tl.load(row + 12))
        if WORDS >= 2:
            total = _dot4(w1, tl.load(row + 7), total)
        if WORDS >= 3:
            total = _dot4(w2, tl.load(row + 8), total)
        return total - _quotient(total, tl.load(row + 13)) * p
    else:
        total = _halves(w0, row) + tl.load(row + 9)
        if WORDS >= 2:
            total += _halves(w1, row + 2)
        if WORDS >= 3:
            total += _halves(w2, row + 4)
        r = total - _quotient(total, tl.load(row + 11)) * p
        return r - tl.where(r >= p, p, 0)


@triton.jit
def _quotient(total, magic):
    """total·magic/2^32, rounded down, of integers that are not negative."""
    u = total.to(tl.uint32, bitcast=True)
    return tl.umulhi(u, tl.zeros_like(u) + magic.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)


@triton.jit
def plane_row(j, PERMUTED: tl.constexpr):
    """Where vector j stands in a plane. Permuted in groups of 64 so that the 16 entries of a row that a thread of the
    Hopper kernel holds are neighbours: 16b' + 2g + e of group b stands at 8g + 2b' + e.
    """
    if PERMUTED:
        r = j % 64
        return j - r + 8 * ((r % 16) // 2) + 2 * (r // 16) + r % 2
    return j


@triton.jit
def added(x, y, p):
    """The residue in [-128, 127] of the sum of two residues that are given 128 too large, for p >= 128; 128 too large
    itself.
    """
    total = x + y - 128
    return total + tl.where(total < 0, p, tl.where(total > 255, -p, 0))


@triton.jit
def packed(r, ORDER: tl.constexpr):
    """Four neighbouring residues along the last axis, each 128 too large, as the bytes of one word. ORDER: whether they
    stand there in order, or as 0, 2, 1, 3.
    """
    x = tl.arange(0, 4)
    shift = 8 * x if ORDER else 8 * (2 * (x % 2) + x // 2)
    if len(r.shape) == 2:
        return tl.sum(r << shift[None, :], 1) ^ -2139062144
    else:
        return tl.sum(r << shift[None, None, :], 2) ^ -2139062144


@triton.jit
def vector_values(start, fours, k, part, PARTS: tl.constexpr):
    """Elements 4·fours + {0, 2, 1, 3} of a vector, by pairs of loads, 0 beyond its end."""
    at = 4 * fours[:, None] + tl.arange(0, 2)[None, :]
    first = tl.load(start + at * PARTS + part, mask=at < k, other=0.0)
    second = tl.load(start + (at + 2) * PARTS + part, mask=at + 2 < k, other=0.0)
    return tl.reshape(tl.join(first, second), [fours.shape[0], 4]).to(tl.float64)


@triton.jit
def _larger(best, value, EXACT: tl.constexpr):
    """The largest pattern so far; not EXACT: of the upper words alone, which hold the exponents of normal numbers."""
    if EXACT:
        return tl.maximum(best, tl.max(bits_of(value) & MAGNITUDE, 1))
    return tl.maximum(best, tl.max((bits_of(value) >> 32).to(tl.int32) & 0x7FFFFFFF, 1))


@triton.jit
def largest_of(start, fours, k, EXACT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest pattern of a vector."""
    best = tl.zeros([BLOCK // 4], tl.int64 if EXACT else tl.int32)
    for h in range(0, k, BLOCK):
        for part in tl.static_range(PARTS):
            best = _larger(best, vector_values(start, h // 4 + fours, k, part, PARTS), EXACT)
    return tl.max(best, 0).to(tl.int64)


@triton.jit
def gathered(d, AXIS: tl.constexpr, MEASURE: tl.constexpr):
    """Sums of residuals' squares, or of flags, along an axis."""
    if MEASURE:
        return tl.sum(d.to(tl.int64) * d, AXIS)
    return tl.sum(d, AXIS).to(tl.int64)


@triton.jit
def _split_fours(
    value, other, target, plane_words, table, lift, factor, bits, inside, MODULI: tl.constexpr, WORDS: tl.constexpr,
    MEASURE: tl.constexpr, NVIDIA: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Residues of a tile (fours, 4) to every plane at target (fours); Σ of the residuals, squared if measured."""
    w0, w1, w2, d = words_of_product(value * lift, factor, bits, WORDS, MEASURE, NVIDIA)
    residual = gathered(d, 1, MEASURE)
    if PARTS == 2:
        i0, i1, i2, d = words_of_product(other * lift, factor, bits, WORDS, MEASURE, NVIDIA)
        residual += gathered(d, 1, MEASURE)
    for t in range(MODULI):
        at = target + wide(plane_words) * t
        r = residue(w0, w1, w2, table, t, WORDS, NVIDIA)
        tl.store(at, packed(r, False), mask=inside)
        if PARTS == 2:
            ri = residue(i0, i1, i2, table, t, WORDS, NVIDIA)
            tl.store(at + wide(plane_words) * MODULI, packed(ri, False), mask=inside)
            both = added(r, ri, tl.load(table + t * FIELDS + 10))
            tl.store(at + wide(plane_words) * (2 * MODULI), packed(both, False), mask=inside)
    return residual


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_rows(
    x, step, batch_step, stats, planes, thresholds, table, vectors, length, pitch, plane, terms, q, bits, limit_bits,
    MODULI: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, MEASURE: tl.constexpr, WORDS: tl.constexpr,
    NVIDIA: tl.constexpr, PERMUTED: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Scale and split one vector of contiguous elements a program: all of stats, and a row of every plane.

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
    largest = largest_of(start, fours, k, False, PARTS, BLOCK) << 32
    if largest < 0x0010000000000000:  # zero or subnormal
        largest = largest_of(start, fours, k, True, PARTS, BLOCK)
    finite = largest < EXPONENT
    lift, factor = magnitude_factors(exponent_of(largest), q)
    squares = tl.zeros([BLOCK // 4], tl.int64)
    total = tl.zeros([BLOCK // 4], tl.int64)
    c0 = tl.zeros([BLOCK // 4], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    for h in range(0, k, BLOCK):
        for part in tl.static_range(PARTS):
            some = vector_values(start, h // 4 + fours, k, part, PARTS)
            v = ceiling_of_product(tl.abs(some) * lift, factor, NVIDIA)
            squares += tl.sum(v.to(tl.int64) * v, 1)
            total += tl.sum(v, 1)
            if LEVELS:
                c0 += tl.sum(count_large(v, q, 0), 1)
                c1 += tl.sum(count_large(v, q, 1), 1)
                c2 += tl.sum(count_large(v, q, 2), 1)
                c3 += tl.sum(count_large(v, q, 3), 1)
                c4 += tl.sum(count_large(v, q, 4), 1)
    norm2 = tl.sum(squares, 0)
    shift = tl.where(finite, scale_exponent(largest, norm2, q, thresholds, limit_bits), -NONFINITE)
    lift, factor = scale_factors(tl.where(finite, shift, 0), largest)
    row = (planes + plane_row(i, PERMUTED).to(tl.int64) * pitch).to(tl.pointer_type(tl.int32)) + fours
    deviation = total * 0
    for h in range(0, pitch, BLOCK):
        value = vector_values(start, h // 4 + fours, k, 0, PARTS)
        other = value
        if PARTS == 2:
            other = vector_values(start, h // 4 + fours, k, 1, PARTS)
        deviation += _split_fours(
            value, other, row + h // 4, plane // 4, table, lift, factor, bits, h + 4 * fours < pitch, MODULI, WORDS,
            MEASURE, NVIDIA, PARTS,
        )  # fmt: skip
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
def column_values(x, h, j, stride, k, inside, part, PARTS: tl.constexpr):
    """A tile of columns by fours of their elements, (fours, columns, 4), h the first of each four."""
    at = x + h[:, None] * stride + (j[None, :] * PARTS + part)
    v0 = tl.load(at, mask=inside & (h[:, None] < k), other=0.0)
    v1 = tl.load(at + stride, mask=inside & (h[:, None] + 1 < k), other=0.0)
    v2 = tl.load(at + 2 * stride, mask=inside & (h[:, None] + 2 < k), other=0.0)
    v3 = tl.load(at + 3 * stride, mask=inside & (h[:, None] + 3 < k), other=0.0)
    return tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), [h.shape[0], j.shape[0], 4]).to(tl.float64)


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "terms", "q", "bits", "limit_bits"])
def split_columns(
    x, step, batch_step, stats, planes, thresholds, table, vectors, length, pitch, plane, terms, q, bits, limit_bits,
    MODULI: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, MEASURE: tl.constexpr, WORDS: tl.constexpr,
    NVIDIA: tl.constexpr, PERMUTED: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
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
    lift, factor = lift[None, :, None], factor[None, :, None]
    inside = (j < n)[None, :]
    row = plane_row(j, PERMUTED).to(tl.int64)
    target = planes.to(tl.pointer_type(tl.int32)) + row[:, None] * (pitch // 4) + word[None, :]
    store = (j < n)[:, None] & (h < pitch)[None, :]
    value = column_values(x, h, j, stride, k, inside, 0, PARTS)
    w0, w1, w2, d = words_of_product(value * lift, factor, bits, WORDS, MEASURE, NVIDIA)
    residual = tl.sum(gathered(d, 2, MEASURE), 0)
    if PARTS == 2:
        value = column_values(x, h, j, stride, k, inside, 1, PARTS)
        i0, i1, i2, d = words_of_product(value * lift, factor, bits, WORDS, MEASURE, NVIDIA)
        residual += tl.sum(gathered(d, 2, MEASURE), 0)
    if MEASURE:
        tl.atomic_add(stats + RESIDUAL * n, residual, mask=j < n, sem="relaxed")
    else:
        at_most = residual_total(residual, terms, MEASURE)
        tl.atomic_max(stats + RESIDUAL * n, at_most, mask=(j < n) & (residual > 0), sem="relaxed")
    if tl.program_id(1) == 0:
        tl.store(stats + SHIFT * n, shift, mask=j < n)
    for t in range(MODULI):
        r = residue(w0, w1, w2, table, t, WORDS, NVIDIA)
        tl.store(target, tl.trans(packed(r, True)), mask=store)
        if PARTS == 2:
            ri = residue(i0, i1, i2, table, t, WORDS, NVIDIA)
            tl.store(target + wide(plane // 4) * MODULI, tl.trans(packed(ri, True)), mask=store)
            both = added(r, ri, tl.load(table + t * FIELDS + 10))
            tl.store(target + wide(plane // 4) * (2 * MODULI), tl.trans(packed(both, True)), mask=store)
        target += plane // 4
