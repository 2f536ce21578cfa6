"""Slices that begin at what their vector has left: digits of β bits each, with an exponent a slice.

A vector is scaled by the power of two that brings its largest magnitude into [1/2, 1), as on a CPU (`cpu.scaling`),
and slice after slice is taken off: e_p is where the largest magnitude of what is left asks for β bits (one less to
nearest, for the sign), digit = RN or RZ(rest/2^(e_p)). These are the digits of `cpu.kernels.slice`.

What p slices leave needs no record of them: exponents fall from slice to slice, so all that was taken off is an even
multiple of the last unit but for the last digit, and an element's slices are together RN, ties to even, or RZ of the
element at the last unit. So the rest is x - RN(x), in one step, and a slice is one pass over the vector. In units of
2^(e_p) a number beyond 2^52 is an integer: nothing is left of it, even where it overflows.

Of every slice three numbers are kept (`CUTS`), in units of the first: its exponent, Σ|digit|, and the largest magnitude
that it and those before it leave, the last two as float64 numbers that are no smaller, and 0 where they are. RESIDUAL
says whether anything is lost at all, of scaling or after the last slice. SHIFT is s with 2^s·a in units of the first
slice; the other statistics are those of `scale`.

Digits lie slice after slice: (slices, matrices, vectors, pitch). A program slices one vector of contiguous elements;
`layout.straighten` copies others first, at 16 bytes an element.

Bytes: 8·(d + 2) read an element, all but the first time from a cache as long as a vector fits there, d digits written.
About 30 operations an element, and 20 a slice. At n = 4096 and d = 7 of INT8 the floor is that of the cache: 1.2 GB
an operand, 0.2 ms at 6 TB/s. These figures are estimates.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import (
    COUNTS,
    EXPONENT,
    LARGEST,
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
    exponent_above,
    nearest_of,
    power_of_two,
    scaled,
    toward_zero,
    wide,
)
from prismm.cuda.residues.kernels.scale import counts_of, exponent_of, level_of, magnitude_factors
from prismm.cuda.residues.kernels.split import largest_of
from prismm.cuda.slices.kernels.split import as_digit

FIRST, WEIGHT, REST, CUTS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""Rows of what is kept of a vector's slices: exponent, Σ|digit| and what is left (int64, patterns of float64)."""

LEAST = tl.constexpr(3.0549363634996047e-151)
"""2^-500: smaller numbers count as this, so that no product of two of them is lost."""


@triton.jit
def _whole(x, TRUNCATED: tl.constexpr, NVIDIA: tl.constexpr):
    return toward_zero(x, NVIDIA) if TRUNCATED else nearest_of(x, NVIDIA)


@triton.jit
def _elements(start, h, k, finite, first, second):
    """Elements h as they are and scaled; 0 beyond the end, and of a vector that is not finite."""
    x = tl.load(start + h, mask=(h < k) & finite, other=0.0).to(tl.float64)
    return x, x * first * second


@triton.jit
def _unit_below(largest, e, BITS: tl.constexpr, TRUNCATED: tl.constexpr, CLIPPED: tl.constexpr, NVIDIA: tl.constexpr):
    """The exponent of the next slice, of which `largest`·2^e is the largest magnitude. CLIPPED: 128 is no digit."""
    STEP: tl.constexpr = BITS if TRUNCATED else BITS - 1
    by = exponent_above(bits_of(largest)).to(tl.int32) - STEP
    if not TRUNCATED:
        top = scaled(largest, -by)
        # Only eight bits round up to 128; INT8 has no such digit, and without a common grid there is no carry to take
        # it.
        one_more = nearest_of(top, NVIDIA) > 127.0
        if CLIPPED:
            by = tl.where(one_more, by + 1, by)
        # Of one bit, and a tie, which to even would be 0, and never end.
        by = tl.where(top == 0.5, by - 1, by)
    return tl.where(largest == 0.0, e, e + by)


@triton.jit
def _at_least(x, e):
    """x·2^e for x >= 0, e <= 0, or 2^-500 where that is less, and x is not 0."""
    return tl.where(x == 0.0, 0.0, tl.maximum(x * power_of_two(tl.maximum(e, -1000)), LEAST))


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "q", "batches"])
def slice_adaptively(
    x, step, batch_step, stats, cuts, digits, vectors, length, pitch, plane, q, batches, SLICES: tl.constexpr,
    BITS: tl.constexpr, TRUNCATED: tl.constexpr, CLIPPED: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    NVIDIA: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Slice one vector of contiguous elements: all of stats and cuts, and a row of every slice's digits.

    pitch: digits of a row, plane: of a matrix. Program axis 1: matrices of a batch.
    """
    stride, k = even(step, EVEN), even(length, EVEN)
    i = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    start = x + batch * even(batch_step, EVEN) + i.to(tl.int64) * stride
    stats += batch * STATISTICS * vectors + i
    cuts += batch * (CUTS * SLICES) * vectors + i
    row = digits + batch * wide(plane) + i.to(tl.int64) * pitch
    lanes = tl.arange(0, BLOCK)
    largest = largest_of(start, tl.arange(0, BLOCK // 4), k, True, 1, BLOCK)
    finite = largest < EXPONENT
    e = exponent_of(largest).to(tl.int32)
    # As a CPU scales: a factor below 2^-1022, where e > 1022, rounds once, as it should.
    power = tl.minimum(-e, 1023)
    first, second = any_power_of_two(power), any_power_of_two(-e - power)
    lift, factor = magnitude_factors(e, q)
    squares = tl.zeros([BLOCK], tl.int64)
    total = tl.zeros([BLOCK], tl.int64)
    lost = tl.zeros([BLOCK], tl.int32)
    # Five thresholds are five variables: Triton has no array of registers to index.
    c0 = tl.zeros([BLOCK], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    best = tl.zeros([BLOCK], tl.float64)
    for h in range(0, k, BLOCK):
        value, y = _elements(start, h + lanes, k, finite, first, second)
        best = tl.maximum(best, tl.abs(y))
        # Scaled back, an element that scaling rounded below the normal numbers differs from itself.
        lost |= (scaled(y, e) != value).to(tl.int32)
        # Rounded up, as bounds grow with norms; integers, so that no order of the sum changes a bit of them.
        v = ceiling_of_product(tl.abs(value) * lift, factor, NVIDIA)
        squares += v.to(tl.int64) * v
        total += v
        if LEVELS:
            some0, some1, some2, some3, some4 = counts_of(level_of(v, q))
            c0 += some0
            c1 += some1
            c2 += some2
            c3 += some3
            c4 += some4
    left = tl.max(best, 0)
    top = _unit_below(left, 0, BITS, TRUNCATED, CLIPPED, NVIDIA)
    # Loops of Triton carry tensors only, so 0 is one.
    before, unit = tl.full([], 0, tl.int32), top
    for p in range(SLICES):
        best = tl.zeros([BLOCK], tl.float64)
        weight = tl.zeros([BLOCK], tl.int64)
        # Up to the pitch, not k: the product multiplies the padding, which must be zeros.
        for h in range(0, pitch, BLOCK):
            _, y = _elements(start, h + lanes, k, finite, first, second)
            # What the slices before leave, in their last unit; of the first, all.
            y = scaled(y, -before)
            rest = y - tl.where(p == 0, 0.0, _whole(y, TRUNCATED, NVIDIA))
            rest = tl.where((tl.abs(y) < 4503599627370496.0) | (p == 0), rest, 0.0)  # 2^52
            rest = scaled(rest, before - unit)
            digit = _whole(rest, TRUNCATED, NVIDIA)
            tl.store(row + h + lanes, as_digit(digit, row), mask=h + lanes < pitch)
            best = tl.maximum(best, tl.abs(rest - digit))
            weight += tl.abs(digit).to(tl.int64)
        left = tl.max(best, 0)
        at = cuts + wide(p) * vectors
        tl.store(at + FIRST * SLICES * vectors, (unit - top).to(tl.int64))
        size = tl.sum(weight, 0).to(tl.float64)
        tl.store(at + WEIGHT * SLICES * vectors, bits_of(_at_least(size, unit - top)))
        tl.store(at + REST * SLICES * vectors, bits_of(_at_least(left, unit - top)))
        row += batches * wide(plane)
        before = unit
        unit = _unit_below(left, unit, BITS, TRUNCATED, CLIPPED, NVIDIA)
    inexact = ((left != 0.0) | (tl.max(lost, 0) > 0)).to(tl.int64)
    tl.store(stats + LARGEST * vectors, largest)
    tl.store(stats + NORM2 * vectors, tl.sum(squares, 0))
    tl.store(stats + NORM1 * vectors, tl.sum(total, 0))
    tl.store(stats + RESIDUAL * vectors, inexact)
    tl.store(stats + SHIFT * vectors, tl.where(finite, -(e + top), -NONFINITE).to(tl.int64))
    if LEVELS:
        tl.store(stats + COUNTS * vectors, tl.sum(c0, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 1) * vectors, tl.sum(c1, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 2) * vectors, tl.sum(c2, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 3) * vectors, tl.sum(c3, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 4) * vectors, tl.sum(c4, 0).to(tl.int64))
