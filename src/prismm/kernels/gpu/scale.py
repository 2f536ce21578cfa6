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
    bits_of,
    ceiling,
    even,
    exponent_above,
    scaled,
)


@triton.jit
def integer_magnitudes(x, e, q):
    """v = ceil(|x|·2^(q-e)); a nonzero element that underflows counts as 1."""
    v = ceiling(scaled(tl.abs(x), q - e))
    return tl.where((v == 0.0) & (x != 0.0), 1.0, v)


@triton.jit
def shift_for(norm2, thresholds, COUNT: tl.constexpr):
    """The largest t with norm2 <= thresholds[t]; thresholds decrease."""
    t = norm2 * 0
    for x in range(1, COUNT):
        t += (norm2 <= tl.load(thresholds + x)).to(tl.int64)
    return t


@triton.jit(do_not_specialize=["step", "k", "vectors"])
def largest_columns(
    x, step, stats, k, vectors, PARTS: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """stats[LARGEST] of the columns of x (k, n·PARTS): the pattern of max|x|, which orders like the magnitudes.

    PARTS: neighbouring real columns that make one vector, 2 for complex numbers.
    """
    stride, n = even(step, EVEN), even(vectors, EVEN)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside_n = j < n * PARTS
    start = tl.program_id(1).to(tl.int64) * PIECE
    best = tl.zeros([ROWS, BLOCK], tl.int64)
    for h0 in range(0, PIECE, ROWS):
        h = start + h0 + tl.arange(0, ROWS)
        inside = (h[:, None] < k) & inside_n[None, :]
        value = tl.load(x + h[:, None] * stride + j[None, :], mask=inside, other=0.0).to(tl.float64)
        best = tl.maximum(best, bits_of(value) & MAGNITUDE)
    tl.atomic_max(stats + LARGEST * n + j // PARTS, tl.max(best, 0), mask=inside_n, sem="relaxed")


@triton.jit
def count_large(integer, q, level):
    """1 where v > 2^(q-1-level), which proves |x| > 2^(e-1-level)."""
    return (integer > ((1 << q) >> (level + 1))).to(tl.int32)


@triton.jit(do_not_specialize=["step", "k", "vectors", "q"])
def sum_columns(
    x, step, stats, k, vectors, q, PARTS: tl.constexpr, PIECE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LEVELS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """stats[NORM2], stats[NORM1] and the counts of large elements: |x| > 2^(e-1), 2^(e-2), … is proved for so many."""
    stride, n = even(step, EVEN), even(vectors, EVEN)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside_n = j < n * PARTS
    to = stats + j // PARTS
    start = tl.program_id(1).to(tl.int64) * PIECE
    largest = tl.load(to + LARGEST * n, mask=inside_n, other=0)
    finite = largest < EXPONENT
    e = tl.where(finite, exponent_above(largest), 0)
    squares = tl.zeros([ROWS, BLOCK], tl.float64)
    total = tl.zeros([ROWS, BLOCK], tl.float64)
    c0 = tl.zeros([ROWS, BLOCK], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    for h0 in range(0, PIECE, ROWS):
        h = start + h0 + tl.arange(0, ROWS)
        inside = (h[:, None] < k) & (inside_n & finite)[None, :]
        value = tl.load(x + h[:, None] * stride + j[None, :], mask=inside, other=0.0).to(tl.float64)
        v = integer_magnitudes(value, e[None, :], q)
        squares += v * v
        total += v
        if LEVELS:
            integer = v.to(tl.int32)
            c0 += count_large(integer, q, 0)
            c1 += count_large(integer, q, 1)
            c2 += count_large(integer, q, 2)
            c3 += count_large(integer, q, 3)
            c4 += count_large(integer, q, 4)
    # At most 2^13 squares of 2^40 meet in a lane, exactly.
    tl.atomic_add(to + NORM2 * n, tl.sum(squares.to(tl.int64), 0), mask=inside_n, sem="relaxed")
    tl.atomic_add(to + NORM1 * n, tl.sum(total.to(tl.int64), 0), mask=inside_n, sem="relaxed")
    if LEVELS:
        tl.atomic_add(to + COUNTS * n, tl.sum(c0, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 1) * n, tl.sum(c1, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 2) * n, tl.sum(c2, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 3) * n, tl.sum(c3, 0).to(tl.int64), mask=inside_n, sem="relaxed")
        tl.atomic_add(to + (COUNTS + 4) * n, tl.sum(c4, 0).to(tl.int64), mask=inside_n, sem="relaxed")
