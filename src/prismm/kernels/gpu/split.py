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
    bits_of,
    ceiling,
    even,
    exponent_above,
    rounded,
    scaled,
    wide,
)
from prismm.kernels.gpu.scale import count_large, integer_magnitudes, shift_for

FIELDS = tl.constexpr(14)
"""Integers of a modulus in the table: six factors of 16-bit halves, three words of byte factors, offset, p, magic; then
offset and magic for bytes."""


@triton.jit
def to_integer(x, s):
    """A' = RN(x·2^s) and ceil(2^10·|x·2^s - A'|), at least 1 where they differ, or where x vanished."""
    y = scaled(x, s)
    z = rounded(y)
    residual = ceiling(tl.abs(y - z) * 1024.0)
    return z, tl.where((x != 0.0) & (y == 0.0), 1.0, residual)


@triton.jit
def words_of(z, bits, WORDS: tl.constexpr):
    """Three words of A' + 2^bits, lowest first; those beyond WORDS are 0. bits <= 63 unless there are three."""
    if WORDS == 3:
        pattern = bits_of(tl.abs(z))
        over = (pattern >> 52) - 1075
        mantissa = (pattern & 0xFFFFFFFFFFFFF) | 0x10000000000000
        large = over > 0
        up = tl.where(large, over, 0)
        low = tl.where(large, mantissa << up, tl.where(large, 0.0, tl.abs(z)).to(tl.int64))
        high = tl.where(up > 10, mantissa >> (64 - tl.where(up > 10, up, 11)), 0)
        minus = z < 0
        high = tl.where(minus, ~high + (low == 0).to(tl.int64), high)
        low = tl.where(minus, -low, low)
        high += (1 << (bits - 64)).to(tl.int64)
        return (low & LOW32).to(tl.int32), ((low >> 32) & LOW32).to(tl.int32), (high & LOW32).to(tl.int32)
    integer = z.to(tl.int64) + (tl.full([], 1, tl.int64) << bits)
    return (integer & LOW32).to(tl.int32), ((integer >> 32) & LOW32).to(tl.int32), (integer & 0).to(tl.int32)


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
def residue(w0, w1, w2, table, t, WORDS: tl.constexpr, DP4A: tl.constexpr):
    """128 more than the residue of A' modulo p that lies in [-128, 127], from the words of A' + 2^bits; int32."""
    row = table + t * FIELDS
    p = tl.load(row + 10)
    if DP4A:
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
    """The residue in [-128, 127] of the sum of two residues that are given 128 too large, for p >= 128."""
    total = x + y - 256
    return total + tl.where(total < -128, p, tl.where(total > 127, -p, 0))


@triton.jit
def _words_at(start, at, inside, s, bits, WORDS: tl.constexpr):
    """The words of A' + 2^bits at some places of a vector, and the squares of their residuals' bounds."""
    z, d = to_integer(tl.load(start + at, mask=inside, other=0.0).to(tl.float64), s)
    w0, w1, w2 = words_of(z, bits, WORDS)
    return w0, w1, w2, d * d


@triton.jit
def _store_fours(target, fours, bytes0, bytes1, bytes2, bytes3, mask):
    """Four bytes a lane, as one word."""
    word = (bytes0 & 0xFF) | ((bytes1 & 0xFF) << 8) | ((bytes2 & 0xFF) << 16) | (bytes3 << 24)
    tl.store(target.to(tl.pointer_type(tl.int32)) + fours, word, mask=mask)


@triton.jit(do_not_specialize=["step", "vectors", "length", "q", "bits"])
def split_rows(
    x, step, stats, planes, thresholds, table, vectors, length, pitch, plane, q, bits,
    MODULI: tl.constexpr, THRESHOLDS: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, WORDS: tl.constexpr,
    DP4A: tl.constexpr, PERMUTED: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Scale and split one vector of contiguous elements a program: all of stats, and a row of every plane.

    PARTS: 1, or 2 for complex numbers, whose planes are those of the real parts, of the imaginary ones and of their
    sums.
    """
    stride, k = even(step, EVEN), even(length, EVEN)
    i = tl.program_id(0)
    start = x + i.to(tl.int64) * stride
    lanes = tl.arange(0, BLOCK)
    reals = k * PARTS
    best = tl.zeros([BLOCK], tl.int64)
    for h in range(0, reals, BLOCK):
        value = tl.load(start + h + lanes, mask=h + lanes < reals, other=0.0).to(tl.float64)
        best = tl.maximum(best, bits_of(value) & MAGNITUDE)
    largest = tl.max(best, 0)
    finite = largest < EXPONENT
    e = tl.where(finite, exponent_above(largest), 0)
    squares = tl.zeros([BLOCK], tl.float64)
    total = tl.zeros([BLOCK], tl.float64)
    c0 = tl.zeros([BLOCK], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    for h in range(0, reals, BLOCK):
        value = tl.load(start + h + lanes, mask=(h + lanes < reals) & finite, other=0.0).to(tl.float64)
        v = integer_magnitudes(value, e, q)
        squares += v * v
        total += v
        if LEVELS:
            integer = v.to(tl.int32)
            c0 += count_large(integer, q, 0)
            c1 += count_large(integer, q, 1)
            c2 += count_large(integer, q, 2)
            c3 += count_large(integer, q, 3)
            c4 += count_large(integer, q, 4)
    norm2 = tl.sum(squares.to(tl.int64), 0)
    shift = tl.where(largest == 0, q.to(tl.int64), shift_for(norm2, thresholds, THRESHOLDS) + q - e)
    shift = tl.where(finite, shift, -NONFINITE)
    s = tl.where(finite, shift, 0)
    deviation = tl.zeros([BLOCK // 4], tl.float64)
    row = planes + plane_row(i, PERMUTED).to(tl.int64) * pitch
    fours = tl.arange(0, BLOCK // 4)
    for h in range(0, pitch, BLOCK):
        # Four elements a lane, whose residues are stored as one word; 128 too large, which changes their top bit.
        at = h + 4 * fours
        i0, i1, i2, i3 = (at < k) & finite, (at + 1 < k) & finite, (at + 2 < k) & finite, (at + 3 < k) & finite
        x0, x1, x2, dx = _words_at(start, PARTS * at, i0, s, bits, WORDS)
        y0, y1, y2, dy = _words_at(start, PARTS * (at + 1), i1, s, bits, WORDS)
        z0, z1, z2, dz = _words_at(start, PARTS * (at + 2), i2, s, bits, WORDS)
        w0, w1, w2, dw = _words_at(start, PARTS * (at + 3), i3, s, bits, WORDS)
        deviation += (dx + dy) + (dz + dw)
        if PARTS == 2:
            ix0, ix1, ix2, dx = _words_at(start, PARTS * at + 1, i0, s, bits, WORDS)
            iy0, iy1, iy2, dy = _words_at(start, PARTS * at + 3, i1, s, bits, WORDS)
            iz0, iz1, iz2, dz = _words_at(start, PARTS * at + 5, i2, s, bits, WORDS)
            iw0, iw1, iw2, dw = _words_at(start, PARTS * at + 7, i3, s, bits, WORDS)
            deviation += (dx + dy) + (dz + dw)
        for t in range(MODULI):
            target = row + wide(plane) * t + h
            rx = residue(x0, x1, x2, table, t, WORDS, DP4A)
            ry = residue(y0, y1, y2, table, t, WORDS, DP4A)
            rz = residue(z0, z1, z2, table, t, WORDS, DP4A)
            rw = residue(w0, w1, w2, table, t, WORDS, DP4A)
            _store_fours(target, fours, rx ^ 128, ry ^ 128, rz ^ 128, rw ^ 128, at < pitch)
            if PARTS == 2:
                qx = residue(ix0, ix1, ix2, table, t, WORDS, DP4A)
                qy = residue(iy0, iy1, iy2, table, t, WORDS, DP4A)
                qz = residue(iz0, iz1, iz2, table, t, WORDS, DP4A)
                qw = residue(iw0, iw1, iw2, table, t, WORDS, DP4A)
                target += wide(plane) * MODULI
                _store_fours(target, fours, qx ^ 128, qy ^ 128, qz ^ 128, qw ^ 128, at < pitch)
                target += wide(plane) * MODULI
                p = tl.load(table + t * FIELDS + 10)
                _store_fours(target, fours, added(rx, qx, p), added(ry, qy, p), added(rz, qz, p), added(rw, qw, p),
                             at < pitch)  # fmt: skip
    tl.store(stats + LARGEST * vectors + i, largest)
    tl.store(stats + NORM2 * vectors + i, norm2)
    tl.store(stats + NORM1 * vectors + i, tl.sum(total.to(tl.int64), 0))
    tl.store(stats + RESIDUAL * vectors + i, tl.sum(deviation.to(tl.int64), 0))
    tl.store(stats + SHIFT * vectors + i, shift)
    if LEVELS:
        tl.store(stats + COUNTS * vectors + i, tl.sum(c0, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 1) * vectors + i, tl.sum(c1, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 2) * vectors + i, tl.sum(c2, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 3) * vectors + i, tl.sum(c3, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 4) * vectors + i, tl.sum(c4, 0).to(tl.int64))


@triton.jit
def _transposed(x, h, j, stride, inside, s, part, PARTS: tl.constexpr):
    """A' of a tile of columns, one a row, and the squares of the residuals' bounds."""
    at = x + h[:, None] * stride + j[None, :] * PARTS + part
    value = tl.trans(tl.load(at, mask=inside, other=0.0)).to(tl.float64)
    z, d = to_integer(value, s[:, None])
    return z, d * d


@triton.jit(do_not_specialize=["step", "vectors", "length", "q", "bits"])
def split_columns(
    x, step, stats, planes, thresholds, table, vectors, length, pitch, plane, q, bits,
    MODULI: tl.constexpr, THRESHOLDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    DP4A: tl.constexpr, PERMUTED: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Split a tile of columns whose norms stand in stats, transposed: stats[RESIDUAL], stats[SHIFT] and the planes."""
    stride, n, k = even(step, EVEN), even(vectors, EVEN), even(length, EVEN)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    largest = tl.load(stats + LARGEST * n + j, mask=j < n, other=0)
    norm2 = tl.load(stats + NORM2 * n + j, mask=j < n, other=0)
    finite = largest < EXPONENT
    e = tl.where(finite, exponent_above(largest), 0)
    shift = tl.where(largest == 0, q.to(tl.int64), shift_for(norm2, thresholds, THRESHOLDS) + q - e)
    shift = tl.where(finite, shift, -NONFINITE)
    s = tl.where(finite, shift, 0)
    inside = (h[:, None] < k) & (j[None, :] < n) & finite[None, :]
    z, d = _transposed(x, h, j, stride, inside, s, 0, PARTS)
    w0, w1, w2 = words_of(z, bits, WORDS)
    if PARTS == 2:
        iz, e2 = _transposed(x, h, j, stride, inside, s, 1, PARTS)
        i0, i1, i2 = words_of(iz, bits, WORDS)
        d += e2
    tl.atomic_add(stats + RESIDUAL * n + j, tl.sum(d.to(tl.int64), 1), mask=j < n, sem="relaxed")
    if tl.program_id(1) == 0:
        tl.store(stats + SHIFT * n + j, shift, mask=j < n)
    at = plane_row(j, PERMUTED).to(tl.int64)[:, None] * pitch + h[None, :]
    store = (j[:, None] < n) & (h[None, :] < pitch)
    for t in range(MODULI):
        r = residue(w0, w1, w2, table, t, WORDS, DP4A)
        target = planes + wide(plane) * t + at
        tl.store(target, (r - 128).to(tl.int8), mask=store)
        if PARTS == 2:
            ri = residue(i0, i1, i2, table, t, WORDS, DP4A)
            target += wide(plane) * MODULI
            tl.store(target, (ri - 128).to(tl.int8), mask=store)
            target += wide(plane) * MODULI
            tl.store(target, added(r, ri, tl.load(table + t * FIELDS + 10)).to(tl.int8), mask=store)
