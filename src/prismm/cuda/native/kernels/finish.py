"""What follows a native product: its entries that are not finite, or so large that rounding may have hidden an overflow
of the exact ones, are repaired. They are called suspicious here.

Programs walk over the result in tiles. An ordinary tile costs the 8 bytes of an entry, and nothing else. Where a tile
has a few suspicious entries, they are recomputed one by one: what IEEE's sum gives where it meets Inf or NaN, else the
exact value, rounded. Where it has many, the tile is multiplied again, in float64 from scaled operands, and only what
those sums leave open is recomputed one by one.

**Sums of scaled operands.** Float64 operands are taken times 2^-530, so they are below 2^494, and below 2^1023 is every
sum of fewer than 2^35 products of finite ones. What underflows to zero there becomes ±2^-1074. So a sum is Inf or NaN
where an operand is, and only there, and zeros, signs and NaN in it are those of the operands: in whatever order it is
added, it is what IEEE's defining sum gives. Float32 operands are taken as they are, as float64 holds their products.

A finite sum s of K products errs by at most γ·Σ|a||b| <= γ·K·A·B, where γ = K·u/(1 - K·u) <= 1.01·K·u, u = 2^-53, for
K < 2^46, and A and B are the largest magnitudes of row and column, all of them scaled (Higham 2002, section 3.1).
Underflow adds less: an element errs by 2^-1074 at most, so a product errs by less than 2·2^-1074·2^494 + 2^-1074, and
all of them together by less than 2^-540. In float32 nothing underflows. So where |s| is further than
1.02·K²·u·A·B + 2^-540 from the number from which on results round to infinity, scaled as well, s and the exact value
lie on one side of it, and s, scaled back, is infinite exactly where the exact value rounds to infinity. Scaling back is
exact, or gives that infinity; float32 is rounded once.

**The bound.** Such an entry is covered a priori, as those of the product are. It errs by no more than a sum in some
order, for float32 with a rounding more to the result, as in `native.kernels.product`, and by what underflowed, which is
below 2^520 in the result's scale. A suspicious entry of finite operands has |a||b| >= 2^1021 in float64: otherwise none
of the product's sums would be so large. So the bound, at least u·2^1021, is beyond 2^900.

Bytes: 8 an entry (float32: 4). Operations: 2; 2·K more an entry of a tile that is multiplied again, on matrix
instructions.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import EXACT, SPECIAL
from prismm.cuda.kernels.exact import exact_value_in, ieee_value_in, limb_numbers
from prismm.cuda.kernels.fp64 import bit_number, float_of, magnitude_word, nothing, wide
from prismm.cuda.kernels.overflow import TOP, cannot_overflow

FLAGS = tl.constexpr(63)
"""Groups of a program's tiles that are flagged apart."""

FEW = tl.constexpr(4)
"""Suspicious entries of a matrix in a tile that are recomputed one by one. A tile's products are predicted to take as
long as three.
"""

DOWN, UP = tl.constexpr(2.0**-530), tl.constexpr(2.0**530)
"""By what float64 operands are scaled, and, twice, their sums."""
SCALED_TOP = tl.constexpr(2.0**-36)
"""Less 2^-90, which is (2^1024 - 2^970)·2^-1060, from where on a scaled sum stands for a number that rounds to infinity
in float64.
"""
LEAST = tl.constexpr(5e-324)
"""2^-1074."""
NEAR = tl.constexpr(2.0**-89)
"""More than what underflow changes in a scaled sum, and 2^-90 together."""
SLACK = tl.constexpr(1.02 * 2.0**-53)
"""Error of a sum of K products, at most, as multiples of K² and the largest factors; see the note at the beginning."""


@triton.jit
def is_suspicious(value, PRECISION: tl.constexpr):
    """Whether an entry is not finite, or so large that rounding may have hidden that the exact one overflows.

    A sum of K products, all of whose partial sums are finite, is rounded 2K times at most, each time by half an ulp of
    the largest number at most: by less than K·2^104 in float32, K·2^971 in float64. From fewer than 2^23 terms, or
    2^52, that hides no overflow of a number below 2^127, or 2^1023.
    """
    LARGE: tl.constexpr = 8.98846567431158e307 if PRECISION == 53 else 1.7014118346046923e38
    # Negated, so that NaN is suspicious as well.
    return ~(tl.abs(value) < LARGE)


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "m", "n", "k", "rows", "tiles", "across",
        "programs", "most",
    ]
)  # fmt: skip
def finish_native(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, found, m, n, k, rows, tiles, across, programs,
    most, PRECISION: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Repair the suspicious entries of a native product. out: contiguous, so many rows in all matrices together, in so
    many tiles of ROWS by COLUMNS real numbers, of which so many lie across. counts: as for
    `residues.kernels.repair.finish`. LANES > 0: nothing is read where `overflow.cannot_overflow` says so.

    HEIGHT, WIDTH: of tiles that are multiplied again, where DENSE, by DEPTH products at a time; BLOCK: products of an
    entry that are recomputed at a time.
    """
    if LANES > 0:
        if cannot_overflow(found, programs, most, PRECISION, LANES):
            tiles = 0
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    width = wide(n) * PARTS
    # A bit stands for so many of the program's tiles. A call among the loads would keep their registers.
    flags, one = nothing(), nothing() + 1
    start, step = tl.program_id(0), tl.num_programs(0)
    share = tl.cdiv(tiles - start, step)
    group = tl.cdiv(share, FLAGS)
    for number in range(share):
        tile = start + number * step
        first, column = wide(tile // across) * ROWS, wide(tile % across) * COLUMNS
        inside = (i < rows - first)[:, None] & (j < width - column)[None, :]
        value = tl.load(out + (first * width + column) + (i[:, None] * width + j[None, :]), mask=inside, other=0.0)
        found_some = tl.max(is_suspicious(value, PRECISION).to(tl.int32))
        flags |= tl.where(found_some > 0, one << (number // group), 0)
    while flags != 0:
        lowest = flags & -flags
        flags = flags ^ lowest
        begin = bit_number(lowest).to(tl.int32) * group
        for number in range(begin, tl.minimum(begin + group, share)):
            tile = start + number * step
            first, column = wide(tile // across) * ROWS, wide(tile % across) * COLUMNS
            end, last = tl.minimum(first + ROWS, rows), tl.minimum(column + COLUMNS, width)
            for top in range(first, end, HEIGHT):
                for side in range(column, last, WIDTH):
                    _repair_tile(
                        a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, wide(m), width, k, top,
                        end, side, last, PRECISION, PARTS, HEIGHT, WIDTH, DEPTH, BLOCK, DENSE,
                    )  # fmt: skip


@triton.jit(noinline=True)
def _repair_tile(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, m, width, k, top, end, side, last,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Repair the suspicious entries of a tile: of rows top, …, end - 1 of all matrices, HEIGHT at most, and real
    numbers side, …, last - 1 of them, WIDTH at most. It has registers of its own, apart from those of ordinary tiles.
    """
    row, column = top + tl.arange(0, HEIGHT), side + tl.arange(0, WIDTH)
    place = out + row[:, None] * width + column[None, :]
    value = tl.load(place, mask=(row < end)[:, None] & (column < last)[None, :], other=0.0)
    left = is_suspicious(value, PRECISION)
    if DENSE:
        for batch in range(top // m, (end - 1) // m + 1):
            i = row - batch * m
            inside = (i >= 0) & (i < m) & (row < end)
            asked = left & inside[:, None]
            if tl.sum(asked.to(tl.int32)) > FEW:
                sums, error = _multiply_again(
                    a + batch * a_batch, a_row, a_step, b + batch * b_batch, b_column, b_step, i, inside, column,
                    column < last, k, PRECISION, PARTS, DEPTH,
                )  # fmt: skip
                special = sums - sums != 0.0
                if PRECISION == 53:
                    repaired = asked & (special | (tl.abs(tl.abs(sums) - SCALED_TOP) > error))
                    tl.store(place, sums * UP * UP, mask=repaired)
                else:
                    repaired = asked & (special | (tl.abs(tl.abs(sums) - TOP) > error))
                    tl.store(place, sums.to(tl.float32), mask=repaired)
                count_special(counts, tl.sum((repaired & special).to(tl.int32)))
                left = left & ~repaired
    number = tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    at = tl.min(tl.where(left, number, HEIGHT * WIDTH))
    while at < HEIGHT * WIDTH:
        at_row, at_column = top + at // WIDTH, side + at % WIDTH
        recompute_native(
            a + at_row // m * a_batch + at_row % m * a_row, a_step,
            b + at_row // m * b_batch + at_column // PARTS * b_column, b_step, out + at_row * width + at_column, counts,
            k, (at_column % PARTS).to(tl.int32), tl.arange(0, BLOCK), limb_numbers(), PRECISION, PARTS,
        )  # fmt: skip
        at = tl.min(tl.where(left & (number > at), number, HEIGHT * WIDTH))


@triton.jit
def _multiply_again(
    a, a_row, a_step, b, b_column, b_step, i, rows_inside, column, columns_inside, k, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """(sums, error): a tile's sums of K = PARTS·k products in float64, scaled by 2^-1060 where operands are float64;
    and how far the exact ones, scaled so, are from them at most, and 2^-90 more. Of one matrix, its rows i and these
    real numbers of a row.

    A complex product is one of real matrices: of rows as they stand in memory, real parts before imaginary ones, by
    columns twice as many and twice as long, of the other factors as in `exact.factors`.
    """
    lanes = tl.arange(0, DEPTH)
    part = column % PARTS
    left = a + i[:, None] * a_row
    right = b + (column // PARTS)[None, :] * b_column
    sums = tl.zeros([i.shape[0], column.shape[0]], tl.float64)
    # Upper words of the largest magnitudes so far, by row and column.
    of_rows = tl.zeros([i.shape[0], DEPTH], tl.int32)
    of_columns = tl.zeros([DEPTH, column.shape[0]], tl.int32)
    for h0 in range(0, PARTS * k, DEPTH):
        h = (h0 + lanes).to(tl.int64)
        inside = h < PARTS * k
        x = tl.load(
            left + (h // PARTS * a_step + h % PARTS)[None, :], mask=rows_inside[:, None] & inside[None, :], other=0.0
        )
        if PARTS == 1:
            y = tl.load(right + (h * b_step)[:, None], mask=inside[:, None] & columns_inside[None, :], other=0.0)
        else:
            y = tl.load(
                right + (h // 2 * b_step)[:, None] + ((h % 2)[:, None] ^ part[None, :]),
                mask=inside[:, None] & columns_inside[None, :], other=0.0,
            )  # fmt: skip
            y = tl.where((h % 2 == 1)[:, None] & (part == 0)[None, :], -y, y)
        x, y = scaled_down(x.to(tl.float64), PRECISION), scaled_down(y.to(tl.float64), PRECISION)
        of_rows = tl.maximum(of_rows, magnitude_word(x))
        of_columns = tl.maximum(of_columns, magnitude_word(y))
        sums = tl.dot(x, y, sums, out_dtype=tl.float64)
    # The next word is above all that begin with this one. Words of Inf and NaN do not matter: no sum beside is finite.
    a_top = float_of((tl.max(of_rows, 1).to(tl.int64) + 1) << 32)
    b_top = float_of((tl.max(of_columns, 0).to(tl.int64) + 1) << 32)
    terms = (wide(k) * PARTS).to(tl.float64)
    return sums, (SLACK * terms * terms) * a_top[:, None] * b_top[None, :] + NEAR


@triton.jit
def scaled_down(x, PRECISION: tl.constexpr):
    """A float64 operand times 2^-530, zero exactly where it is zero; one that was a float32 as it is."""
    if PRECISION == 53:
        small = x * DOWN
        return tl.where((small == 0.0) & (x != 0.0), tl.where(x < 0.0, -LEAST, LEAST), small)
    else:
        return x


@triton.jit
def count_special(counts, how_many):
    """Count so many entries that are what IEEE's sum gives where it meets Inf or NaN."""
    tl.atomic_add(counts + SPECIAL, how_many.to(tl.int64), sem="relaxed")


@triton.jit
def recompute_native(
    a, a_step, b, b_step, target, counts, k, part, lanes, index, PRECISION: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Set an entry of a native product, of a row and a column of k elements: what the defining sum gives where it meets
    Inf or NaN, else its exact value, rounded. lanes, index: as of `exact_sums`.
    """
    value = ieee_value_in(a, a_step, b, b_step, k, part, lanes, PARTS)
    path = nothing() + SPECIAL
    if value == 0.0:
        value = exact_value_in(a, a_step, b, b_step, k, part, lanes, index, PARTS, PRECISION)
        path = nothing() + EXACT
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32))
    tl.atomic_add(counts + path, 1, sem="relaxed")
