"""Exact integer norms of an operand's vectors, and the scale exponents that follow from them.

As on a CPU (`cpu.kernels.scale`): e with |a| < 2^e, v = ceil(|a|·2^(q-e)), ν = Σv², s = t + q - e with t the largest
shift that ν leaves. All sums are of integers, so no order of summation shows.

Vectors along contiguous elements are scaled where they are split (`split.split_rows`). Vectors across them, the
columns of a row-major matrix, take the two passes here, strips of columns by pieces of the inner dimension, whose
results meet in atomic integer operations. Bytes: 8 an element and pass.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import (
    COUNTS,
    EXPONENT,
    LARGEST,
    MAGNITUDE,
    NORM1,
    NORM2,
    STATISTICS,
    any_power_of_two,
    bit_length,
    bits_of,
    ceiling_of_product,
    even,
    exponent_above,
    lift_of,
    magnitude_word,
)


@triton.jit
def exponent_of(largest):
    """e of a finite vector, 0 of others."""
    return tl.where(largest < EXPONENT, exponent_above(largest), 0)


@triton.jit
def magnitude_factors(e, q):
    """Two powers of two whose product is 2^(q-e), so that |x| times the first is exact."""
    lift = lift_of(e)
    return any_power_of_two(lift), any_power_of_two(q - e - lift)


@triton.jit
def shift_for(norm2, thresholds, limit_bits):
    """The largest t with norm2 <= thresholds[t] = floor(L/4^t), for 1 <= norm2 <= L; limit_bits: bits of L.

    With d the difference of the lengths of L and norm2, t = floor(d/2) fits if d is odd, and only even d needs a check.
    """
    t = (limit_bits - bit_length(norm2)) >> 1
    t = tl.maximum(t, 0)
    return t - (norm2 > tl.load(thresholds + t)).to(tl.int64)


@triton.jit
def scale_exponent(largest, norm2, q, thresholds, limit_bits):
    """s of a finite vector: A' = RN(2^s·a)."""
    t = shift_for(tl.maximum(norm2, 1), thresholds, limit_bits)
    return tl.where(largest == 0, q.to(tl.int64), t + q - exponent_of(largest))


@triton.jit
def level_of(integer, q):
    """1 in the bits from 6·l on, l < 5, where 2^(q-1-l) < v <= 2^(q-l), which proves |x| > 2^(e-1-l); beyond bit 29 for
    smaller v. So 63 of them add up, field by field.
    """
    # v <= 2^20 is exact in float32. The exponent is that of v - 1, so that v = 2^(q-l) still belongs to level l.
    field = tl.maximum(integer - 1, 0).to(tl.float32).to(tl.int32, bitcast=True) >> 23
    return (integer * 0 + 1) << tl.minimum(6 * (q + 126 - field), 30)


@triton.jit
def counts_of(levels):
    """How many exceed 2^(q-1), …, 2^(q-5), from a sum of `level_of`."""
    c0 = levels & 63
    c1 = c0 + ((levels >> 6) & 63)
    c2 = c1 + ((levels >> 12) & 63)
    c3 = c2 + ((levels >> 18) & 63)
    return c0, c1, c2, c3, c3 + ((levels >> 24) & 63)


@triton.jit(do_not_specialize=["step", "batch_step", "k", "vectors"])
def largest_columns(
    x, step, batch_step, stats, k, vectors, PARTS: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """stats[LARGEST] of the columns of x (k, n·PARTS): the pattern of max|x|, which orders like the magnitudes; not
    EXACT: of normal numbers the upper word alone, which holds their exponent.

    PARTS: neighbouring real columns that make one vector, 2 for complex numbers. Program axis 2: matrices of a batch.
    """
    stride, n = even(step, EVEN), even(vectors, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside_n = j < n * PARTS
    start = tl.program_id(1).to(tl.int64) * PIECE
    x += batch * even(batch_step, EVEN)
    stats += batch * STATISTICS * n
    best = tl.zeros([BLOCK], tl.int64)
    if not EXACT:
        upper = tl.zeros([ROWS, BLOCK], tl.int32)
        for h0 in range(0, PIECE, ROWS):
            upper = tl.maximum(upper, magnitude_word(_column_tile(x, start + h0, j, stride, k, inside_n, ROWS)))
        best = tl.max(upper, 0).to(tl.int64) << 32
    if tl.min(tl.where(inside_n, best, EXPONENT), 0) < 0x0010000000000000:  # not found yet, zero or subnormal
        whole = tl.zeros([ROWS, BLOCK], tl.int64)
        for h0 in range(0, PIECE, ROWS):
            pattern = bits_of(_column_tile(x, start + h0, j, stride, k, inside_n, ROWS))
            whole = tl.maximum(whole, pattern & MAGNITUDE)
        best = tl.max(whole, 0)
    # Relaxed: no other program reads the result, only the next launch does.
    tl.atomic_max(stats + LARGEST * n + j // PARTS, best, mask=inside_n, sem="relaxed")


@triton.jit
def _column_tile(x, start, j, stride, k, inside, ROWS: tl.constexpr):
    """ROWS rows of columns j, 0 beyond their end."""
    h = start + tl.arange(0, ROWS)
    read = (h[:, None] < k) & inside[None, :]
    return tl.load(x + h[:, None] * stride + j[None, :], mask=read, other=0.0).to(tl.float64)


@triton.jit(do_not_specialize=["step", "batch_step", "k", "vectors", "q"])
def sum_columns(
    x, step, batch_step, stats, k, vectors, q, PARTS: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, EVEN: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """stats[NORM2], stats[NORM1] and the counts of large elements: |x| > 2^(e-1), 2^(e-2), … is proved for so many.

    A lane adds at most 2^8 magnitudes of up to 2^20, or the squares of so many, exactly.
    """
    stride, n = even(step, EVEN), even(vectors, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside_n = j < n * PARTS
    x += batch * even(batch_step, EVEN)
    to = stats + batch * STATISTICS * n + j // PARTS
    start = tl.program_id(1).to(tl.int64) * PIECE
    largest = tl.load(to + LARGEST * n, mask=inside_n, other=0)
    finite = largest < EXPONENT
    lift, factor = magnitude_factors(exponent_of(largest), q)
    squares = tl.zeros([ROWS, BLOCK], tl.int64)
    total = tl.zeros([ROWS, BLOCK], tl.int32)
    levels = tl.zeros([ROWS, BLOCK], tl.int32)
    # A lane adds one level a tile to fields that hold 63.
    tl.static_assert(PIECE // ROWS < 64)
    if not EVEN:
        # Where rows begin anywhere the assembler lets each element of a tile wait for the one before, so that a tile is
        # on its way while the one before is measured.
        following = _column_tile(x, start, j, stride, k, inside_n & finite, ROWS)
    for h0 in range(0, PIECE, ROWS):
        if EVEN:
            value = _column_tile(x, start + h0, j, stride, k, inside_n & finite, ROWS)
        else:
            value = following
            end = tl.where(h0 + ROWS < PIECE, k, 0)
            following = _column_tile(x, start + h0 + ROWS, j, stride, end, inside_n & finite, ROWS)
        v = ceiling_of_product(tl.abs(value) * lift[None, :], factor[None, :], NVIDIA)
        squares += v.to(tl.int64) * v
        total += v
        if LEVELS:
            levels += level_of(v, q)
    tl.atomic_add(to + NORM2 * n, tl.sum(squares, 0), mask=inside_n, sem="relaxed")
    tl.atomic_add(to + NORM1 * n, tl.sum(total.to(tl.int64), 0), mask=inside_n, sem="relaxed")
    if LEVELS:
        c0, c1, c2, c3, c4 = counts_of(levels)
        tl.atomic_add(to + COUNTS * n, tl.sum(c0, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 1) * n, tl.sum(c1, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 2) * n, tl.sum(c2, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 3) * n, tl.sum(c3, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 4) * n, tl.sum(c4, 0).to(tl.int64), mask=inside_n, sem="relaxed")
