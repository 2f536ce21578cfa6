"""Repair of gemm's sum in RAW: RN(alpha·V + beta·C), exactly, V the scheme's own value from the sums of slices.

An entry of a row or column that is not finite is what IEEE's sum gives. For every other entry, alpha·V and beta·C are
added in the limbs of `gemm.kernels.repair`: V digit by digit, or pair by pair where slices have exponents of their own.
The sum of the exact product is computed likewise, and taken where the two disagree about infinity, as on a CPU
(`cpu.flow`).

The vectors of both parts of a complex product hold the same magnitudes, so their shifts and exponents are the same.

Programs walk over the flags, as `gemm.kernels.repair.recompute_exact` does. An uncertified entry reads G + 3 bytes (4 a
pair). Each of these takes about 200 operations of 64 bits, on 256 limbs. The exact product reads 16·k bytes and takes
20·k operations for each limb that it touches. These figures are estimates.
"""

import triton
import triton.language as tl

from prismm.cuda.gemm.kernels.combine import factor_of
from prismm.cuda.gemm.kernels.repair import (
    UNIT_OF_SUMS,
    add_product,
    deposit_product,
    exact_total,
    sign_of,
    special_sum,
)
from prismm.cuda.kernels.counts import EXACT, SCHEME_VALUE, SPECIAL
from prismm.cuda.kernels.exact import LIMBS_OF_SUMS, limb_numbers, round_limbs, significand, special_value
from prismm.cuda.kernels.flagged import bytes_of, chunks_of, following, place_of
from prismm.cuda.kernels.fp64 import LOW32, SHIFT, STATISTICS, bit_number, wide
from prismm.cuda.slices.kernels.adaptive import CUTS, FIRST
from prismm.cuda.slices.kernels.split import EXTRAS

LEAST = tl.constexpr(-2148)
"""V is a multiple of 2^-2148, as products of two subnormal numbers are, whatever the units of its digits."""


@triton.jit
def _add_number(total, first, last, body, sign, e, word, position):
    """±body·2^e times word·2^position added to a total, |word| < 2^63."""
    if word != 0:
        below = tl.maximum(LEAST - position, 0)
        size = tl.abs(word) >> tl.minimum(below, 63)  # no bits are lost: the word has none there
        at = tl.maximum(position, LEAST) + e + UNIT_OF_SUMS
        sign_of_product = tl.where(word < 0, -sign, sign)
        total = deposit_product(total, size & LOW32, body, sign_of_product, at)
        total = deposit_product(total, size >> 32, body, sign_of_product, at + 32)
        first = tl.minimum(first, at >> 5)
        last = tl.maximum(last, ((at + 59) >> 5) + 2)
    return total, first, last


@triton.jit
def _add_value(
    total, first, last, factor, low, top, plane, blocks, batches, rows, row_extras, columns, column_extras, m, n, i, j,
    SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, ADAPTIVE: tl.constexpr,
):  # fmt: skip
    """factor·V of an entry added to a total, exactly. low, top: of the entry."""
    body, e = significand(factor)
    sign = sign_of(factor)
    unit = -(tl.load(rows + SHIFT * m + i) + tl.load(columns + SHIFT * n + j))
    if body != 0:
        if ADAPTIVE:
            at = top
            for p in range(SLICES):
                x = tl.load(row_extras + (wide(FIRST * SLICES) + p) * m + i)
                for q in range(tl.minimum(SLICES, GROUPS - p)):
                    y = tl.load(column_extras + (wide(FIRST * SLICES) + q) * n + j)
                    for block in range(blocks):
                        word = tl.load(at + wide(plane) * block).to(tl.int64)
                        total, first, last = _add_number(total, first, last, body, sign, e, word, unit + x + y)
                    at += wide(plane) * blocks * batches
        else:
            unit += BITS * (2 * SLICES - 1 - GROUPS)
            for block in range(blocks):
                word = tl.load(top + wide(plane) * block).to(tl.int64)
                total, first, last = _add_number(
                    total, first, last, body, sign, e, word, unit + BITS * (GROUPS - 1)
                )  # fmt: skip
                for x in range(GROUPS - 1):
                    word = tl.load(low + wide(plane) * (block * (GROUPS - 1) + x)).to(tl.int64)
                    total, first, last = _add_number(total, first, last, body, sign, e, word, unit + BITS * x)
    return total, first, last


@triton.jit
def _recompute_entry(
    a, a_step, b, b_step, target, c, part, i, j, low, top, low_i, top_i, plane, blocks, batches, rows, row_extras,
    columns, column_extras, counts, m, n, k, f0, g0, f2, g2, SLICES: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, ADAPTIVE: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, ADDEND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Set a real number, or part of a complex one."""
    c0 = tl.full([], 0.0, tl.float64)
    c1 = c0
    s0 = c0
    s1 = c0
    if ADDEND:
        c0 = tl.load(c).to(tl.float64)
        if PARTS == 2:
            c1 = tl.load(c + 1).to(tl.float64)
    f1 = f0
    f3 = f2
    if PARTS == 2:
        # (f + gi)·(X + Yi) has the parts f·X - g·Y and g·X + f·Y.
        real = part == 0
        f0, f1, f2, f3 = (
            tl.where(real, f0, g0),
            tl.where(real, -g0, f0),
            tl.where(real, f2, g2),
            tl.where(real, -g2, f2),
        )
    s0 = special_value(a, a_step, b, b_step, rows, columns, m, n, i, j, k, 0, PARTS, BLOCK)
    if PARTS == 2:
        s1 = special_value(a, a_step, b, b_step, rows, columns, m, n, i, j, k, 1, PARTS, BLOCK)
    value = special_sum(f0, s0, f1, s1, f2, c0, f3, c1, PARTS)
    path = tl.full([], SPECIAL, tl.int32)
    # Infinite and NaN are never 0, so 0 says that no term is special.
    if value == 0.0:
        value = exact_total(a, a_step, b, b_step, k, f0, f1, c0, f2, c1, f3, PRECISION, PARTS, BLOCK)
        path = tl.full([], EXACT, tl.int32)
        total = tl.zeros([LIMBS_OF_SUMS], tl.int64)
        first = tl.full([], LIMBS_OF_SUMS, tl.int64)
        last = tl.full([], 0, tl.int64)
        total, first, last = _add_value(
            total, first, last, f0, low, top, plane, blocks, batches, rows, row_extras, columns, column_extras, m, n, i,
            j, SLICES, GROUPS, BITS, ADAPTIVE,
        )  # fmt: skip
        total, first, last = add_product(total, first, last, f2, c0)
        if PARTS == 2:
            total, first, last = _add_value(
                total, first, last, f1, low_i, top_i, plane, blocks, batches, rows, row_extras, columns, column_extras,
                m, n, i, j, SLICES, GROUPS, BITS, ADAPTIVE,
            )  # fmt: skip
            total, first, last = add_product(total, first, last, f3, c1)
        of_scheme = round_limbs(total, first, last, limb_numbers(), UNIT_OF_SUMS, PRECISION)
        infinite = tl.abs(value) == float("inf")
        if (infinite == (tl.abs(of_scheme) == float("inf"))) & (~infinite | (of_scheme == value)):
            value = of_scheme
            path = tl.full([], SCHEME_VALUE, tl.int32)
    tl.store(target + part, value if PRECISION == 53 else value.to(tl.float32))
    tl.atomic_add(counts + path, 1, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "out_batch", "row_stride", "column_stride",
        "c_row", "c_column", "c_batch", "alpha", "alpha_i", "beta", "beta_i", "m", "n", "k", "row_pitch", "plane",
        "blocks", "flag_pitch", "batches", "row_batches", "column_batches",
    ]
)  # fmt: skip
def recompute_slices(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, c, c_row,
    c_column, c_batch, flags, low, top, low_i, top_i, rows, row_extras, columns, column_extras, counts, alpha, alpha_i,
    beta, beta_i, m, n, k, row_pitch, plane, blocks, flag_pitch, batches, row_batches, column_batches,
    SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, ADAPTIVE: tl.constexpr, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, ADDEND: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the flagged entries. The sums, rows, columns and extras: as for `slices.kernels.combine.combine_slices`; the
    other arguments as for `gemm.kernels.repair.recompute_exact`. counts[SPECIAL], [EXACT], [SCHEME_VALUE] grow by the
    numbers set.
    """
    LOW_BLOCKS: tl.constexpr = 0 if ADAPTIVE else GROUPS - 1
    OF_VECTOR: tl.constexpr = CUTS * SLICES if ADAPTIVE else EXTRAS
    f0, g0, f1, g1 = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    flags = flags.to(tl.pointer_type(tl.uint8))
    pitch = 4 * flag_pitch
    total = wide(batches) * PARTS * m * pitch
    chunks = chunks_of(total, SPAN)
    for chunk in range(tl.program_id(0).to(tl.int64), chunks, tl.num_programs(0)):
        some = bytes_of(flags, chunk, chunks, total, SPAN)
        left = tl.sum((some != 0).to(tl.int32), 0)
        at = tl.full([], -1, tl.int32)
        while left > 0:
            left -= 1
            at = following(some, at, SPAN)
            byte = chunk + chunks * at
            batch, part, i, j0 = place_of(byte, pitch, m, PARTS)
            unit, r, s = batch * blocks * wide(plane), batch % row_batches, batch % column_batches
            bits = tl.load(flags + byte).to(tl.int64)
            while bits != 0:
                lowest = bits & -bits
                bits = bits ^ lowest
                j = j0 + bit_number(lowest)
                entry = i * row_pitch + j
                _recompute_entry(
                    a + batch * a_batch + i * a_row, a_step, b + batch * b_batch + j * b_column, b_step,
                    out + batch * out_batch + i * row_stride + j * column_stride,
                    c + batch * c_batch + i * c_row + j * c_column, part, i, j, low + unit * LOW_BLOCKS + entry,
                    top + unit + entry, low_i + unit * LOW_BLOCKS + entry, top_i + unit + entry, plane, blocks, batches,
                    rows + r * STATISTICS * m, row_extras + r * OF_VECTOR * m, columns + s * STATISTICS * n,
                    column_extras + s * OF_VECTOR * n, counts, m, n, k, f0, g0, f1, g1, SLICES, GROUPS, BITS, ADAPTIVE,
                    PRECISION, PARTS, ADDEND, BLOCK,
                )  # fmt: skip
