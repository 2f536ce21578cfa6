"""Exact integer norms of an operand's vectors, and the scale exponents that follow from them.

As on a CPU (`kernels.cpu.scale`): e with |a| < 2^e, v = ceil(|a|·2^(q-e)), ν = Σv², s = t + q - e with t the largest
shift that ν leaves. All sums are of integers, so no order of summation shows.

Vectors along contiguous elements are scaled where they are split (`split.split_rows`). Vectors across them, the
columns of a row-major matrix, take the two passes here, strips of columns by pieces of the inner dimension, whose
results meet in atomic integer operations. Bytes: 8 an element and pass.
"""

import triton
import triton.language as tl

from prismm.kernels.gpu.numbers import (
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

    With d the difference of the lengths of L and norm2, t = floor(d/2) fits if d is odd, and only d even needs a look.
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
def count_large(integer, q, level):
    """1 where v > 2^(q-1-level), which proves |x| > 2^(e-1-level)."""
    return (integer > ((1 << q) >> (level + 1))).to(tl.int32)


@triton.jit(do_not_specialize=["step", "batch_step", "k", "vectors"])
def largest_columns(
    x, step, batch_step, stats, k, vectors, PARTS: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """stats[LARGEST] of the columns of x (k, n·PARTS): the pattern of max|x|, which orders like the magnitudes.

    PARTS: neighbouring real columns that make one vector, 2 for complex numbers. Program axis 2: matrices of a batch.
    """
    stride, n = even(step, EVEN), even(vectors, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside_n = j < n * PARTS
    start = tl.program_id(1).to(tl.int64) * PIECE
    x += batch * even(batch_step, EVEN)
    stats += batch * STATISTICS * n
    best = tl.zeros([ROWS, BLOCK], tl.int64)
    for h0 in range(0, PIECE, ROWS):
        h = start + h0 + tl.arange(0, ROWS)
        inside = (h[:, None] < k) & inside_n[None, :]
        value = tl.load(x + h[:, None] * stride + j[None, :], mask=inside, other=0.0).to(tl.float64)
        best = tl.maximum(best, bits_of(value) & MAGNITUDE)
    tl.atomic_max(stats + LARGEST * n + j // PARTS, tl.max(best, 0), mask=inside_n, sem="relaxed")


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
    c0 = tl.zeros([ROWS, BLOCK], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    for h0 in range(0, PIECE, ROWS):
        h = start + h0 + tl.arange(0, ROWS)
        inside = (h[:, None] < k) & (inside_n & finite)[None, :]
        value = tl.load(x + h[:, None] * stride + j[None, :], mask=inside, other=0.0).to(tl.float64)
        v = ceiling_of_product(tl.abs(value) * lift[None, :], factor[None, :], NVIDIA)
        squares += v.to(tl.int64) * v
        total += v
        if LEVELS:
            c0 += count_large(v, q, 0)
            c1 += count_large(v, q, 1)
            c2 += count_large(v, q, 2)
            c3 += count_large(v, q, 3)
            c4 += count_large(v, q, 4)
    tl.atomic_add(to + NORM2 * n, tl.sum(squares, 0), mask=inside_n, sem="relaxed")
    tl.atomic_add(to + NORM1 * n, tl.sum(total.to(tl.int64), 0), mask=inside_n, sem="relaxed")
    if LEVELS:
        tl.atomic_add(to + COUNTS * n, tl.sum(c0, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 1) * n, tl.sum(c1, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 2) * n, tl.sum(c2, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 3) * n, tl.sum(c3, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 4) * n, tl.sum(c4, 0).to(tl.int64), mask=inside_n, sem="relaxed")
