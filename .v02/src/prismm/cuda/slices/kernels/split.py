"""Slices of vectors for matrix units: digits of β bits each, on a grid of the vector's own, for d slices.

A vector is scaled by 2^s, s = β·d - start - e with |a| < 2^e, and T = RN(2^s·a), ties to even, has d digits to the base
2^β. These are the digits of `cpu.kernels.slice`, in the type that the matrix unit takes.

BALANCED, of eight bits on INT8 units: digits in [-128, 127] with carry, start = 2 where the largest element exceeds
127/128 of 2^e, whose first digit would be 128, and 1 elsewhere. With C = 0x80…80 the digits, as bytes, are (T + C) xor
C: adding 128 to every digit makes them digits without a sign. For 1 to 10 of them.

Others are peeled off one by one: digit = RN(rest/2^(β·x)), x = d - 1 … 0, what is left being exact in float64, as it is
a multiple of the element's last place and no larger than it. start = 1, |digits| <= 2^(β-1). What all of them make is T
again: a tie at the last digit is one of 2^s·a, and all that was taken off before is even.

TRUNCATED, these are digit = RZ(rest/2^(β·x)): start = 0, |digits| <= 2^β - 1, all of the element's sign, T = RZ(2^s·a)
and residuals below 1, not 1/2.

The digits of a vector lie in blocks of the inner dimension, and in a block slice after slice, those of right operands
in reverse order: so the pairs of slices of equal p + q lie side by side on both (`cpu.slices.split.Sliced`). Blocks are
padded with zeros to multiples of 128.

On the way all that certificates need is measured: norms and counts as of `scale`, the residuals 2^s·a - T as of
`split`, how many elements are not zero, and which slices are empty.

Bytes: 8 read (from rows twice, the second time from a cache; from columns three times), d digits written an element.
About 40 operations an element, and 8 a slice.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import (
    COUNTS,
    EXPONENT,
    LARGEST,
    LOW32,
    NONFINITE,
    NORM1,
    NORM2,
    RESIDUAL,
    SHIFT,
    STATISTICS,
    bits_of,
    ceiling_of_product,
    even,
    nearest_of,
    toward_zero,
    wide,
)
from prismm.cuda.residues.kernels.scale import counts_of, exponent_of, level_of, magnitude_factors
from prismm.cuda.residues.kernels.split import (
    column_fours,
    largest_of,
    plane_row,
    residual_of,
    residual_total,
    scale_factors,
    vector_pairs,
)

NONZERO, DIGITS, DEVIATION, EXTRAS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""Rows of what is kept of a vector besides the statistics: how many elements have a digit that is not 0; a byte for
each of the last eight slices, the last one lowest, which is 0 where the slice is empty; to MEASURE, Σ ceil(2^10·|δ|) of
the residuals δ.
"""


@triton.jit
def vector_values(start, fours, k, ORDER: tl.constexpr):
    """Elements 4·fours + {0, 2, 1, 3} of a vector, in ORDER + {0, 1, 2, 3}; 0 beyond its end."""
    first, second = vector_pairs(start, fours, k, 0, 1)
    pairs = tl.join(first, second)
    if ORDER:
        pairs = tl.permute(pairs, (0, 2, 1))
    return tl.reshape(pairs, [fours.shape[0], 4])


@triton.jit
def column_values(x, h, j, stride, k, inside):
    """A tile of columns by fours of their elements, (fours, columns, 4), h the first of each four."""
    v0, v1, v2, v3 = column_fours(x, h, j, stride, k, inside, 0, 1)
    return tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), [h.shape[0], j.shape[0], 4])


@triton.jit
def packed(r, ORDER: tl.constexpr):
    """Four neighbouring residues along the last axis, each 128 too large, as the bytes of one word. ORDER: whether they
    stand there in order, or as 0, 2, 1, 3.
    """
    x = tl.arange(0, 4)
    shift = 8 * x if ORDER else 8 * (2 * (x % 2) + x // 2)
    if len(r.shape) == 2:
        # 0x80808080: a flipped top bit takes 128 off each byte.
        return tl.sum(r << shift[None, :], 1) ^ -2139062144
    else:
        return tl.sum(r << shift[None, None, :], 2) ^ -2139062144


@triton.jit
def gathered(d, AXIS: tl.constexpr, MEASURE: tl.constexpr):
    """Sums of residuals' squares, or of flags, along an axis."""
    if MEASURE:
        return tl.sum(d.to(tl.int64) * d, AXIS)
    return tl.sum(d, AXIS).to(tl.int64)


@triton.jit
def slice_shift(
    largest, SLICES: tl.constexpr, BITS: tl.constexpr, BALANCED: tl.constexpr, TRUNCATED: tl.constexpr
):  # fmt: skip
    """s of a finite vector."""
    start = 0 if TRUNCATED else 1
    if BALANCED:
        # A subnormal's pattern is its integer in units of 2^-1074, whose float64 has the same significand, normalised.
        normal = tl.where(largest < 0x10000000000000, bits_of(largest.to(tl.float64)), largest)
        start = tl.where((normal & 0xFFFFFFFFFFFFF) > 0xFC00000000000, 2, 1)  # 127/128
    return BITS * SLICES - start - exponent_of(largest)


@triton.jit
def peeled(rest, at: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr, NVIDIA: tl.constexpr):
    """The digit of 2^(BITS·at), and what is left."""
    scaled = rest * (2.0 ** (-BITS * at))
    digit = toward_zero(scaled, NVIDIA) if TRUNCATED else nearest_of(scaled, NVIDIA)
    return digit, tl.fma(digit, -(2.0 ** (BITS * at)), rest)


@triton.jit
def _total(residual, k, MEASURE: tl.constexpr, TRUNCATED: tl.constexpr):
    """`split.residual_total`, for residuals of up to 1 where they are TRUNCATED."""
    total = residual_total(residual, k, MEASURE)
    # Residuals count by their squares, so twice as large is four times as much.
    if TRUNCATED and not MEASURE:
        total = total << 2
    return total


@triton.jit
def as_digit(digit, like):
    """A digit in the type that `like` points to, which holds it."""
    if like.dtype.element_ty == tl.int8:
        return digit.to(tl.int32).to(tl.int8)
    elif like.dtype.element_ty == tl.float64:
        return digit
    else:
        return digit.to(tl.float32).to(like.dtype.element_ty)


@triton.jit
def byte_of(slices, at: tl.constexpr):
    """A byte for slice `at`, counted from the last: 1 where it is not empty."""
    if at < 8:
        return slices.to(tl.int64) << (8 * at)
    return slices.to(tl.int64) * 0


@triton.jit
def _constant(SLICES: tl.constexpr):
    """128 in so many bytes."""
    if SLICES == 8:
        return tl.full([], -9187201950435737472, tl.int64)
    elif SLICES == 4:
        return tl.full([], -2139062144, tl.int32)
    elif SLICES < 4:
        return tl.full([], 128 * ((256**SLICES - 1) // 255), tl.int32)
    else:
        return tl.full([], 128 * ((256**SLICES - 1) // 255), tl.int64)


@triton.jit
def digits_of(x, factor, SLICES: tl.constexpr, MEASURE: tl.constexpr, NVIDIA: tl.constexpr):
    """All digits of T = RN(x·factor), each 128 too large, the last in the lowest byte of the first word; of more than
    eight, the last four there and the others in a second word. Then the last eight as they are; 1 where T is not 0; and
    a bound of the residual, as of `split.words_of_product`. x, factor: as in `split.scale_factors`.
    """
    y = x * factor
    # Scaled to 0, an element is all residual, though y and its rounding agree.
    vanished = (y == 0.0) & (x != 0.0)
    if SLICES > 8:
        # In units of 2^32 first: the rest is exact, and its nearest integer that of y, ties included.
        top = nearest_of(y * 2.3283064365386962890625e-10, NVIDIA)
        rest = tl.fma(top, -4294967296.0, y)
        z = nearest_of(rest, NVIDIA)
        delta = rest - z
        some = ((top != 0.0) | (z != 0.0)).to(tl.int32)
        low = z.to(tl.int64) + 0x80808080
        high = top.to(tl.int64) + (low >> 32) + _constant(SLICES - 4).to(tl.int64)
        last = ((high ^ _constant(SLICES - 4).to(tl.int64)) << 32) | ((low ^ 0x80808080) & LOW32)
    else:
        z = nearest_of(y, NVIDIA)
        delta = y - z
        some = (z != 0.0).to(tl.int32)
        constant = _constant(SLICES)
        low = z.to(constant.dtype) + constant
        high = low
        last = low ^ constant
    return low, high, last, some, residual_of(delta, vanished, MEASURE, NVIDIA)


@triton.jit
def digit(low, high, at: tl.constexpr, SLICES: tl.constexpr):
    """One of the digits, 128 too large; at: its byte."""
    if SLICES > 8 and at >= 4:
        return (high >> (8 * (at - 4))).to(tl.int32) & 255
    else:
        return (low >> (8 * at)).to(tl.int32) & 255


@triton.jit
def _either(x, y):
    return x | y


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length", "q"])
def slice_rows(
    x, step, batch_step, stats, extras, digits, vectors, length, width, pitch, plane, q, SLICES: tl.constexpr,
    BITS: tl.constexpr, BALANCED: tl.constexpr, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    MEASURE: tl.constexpr, NVIDIA: tl.constexpr, PERMUTED: tl.constexpr, REVERSED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Slice one vector of contiguous elements a program: all of stats and extras, and a row of digits.

    width: of a block of the inner dimension, padded; pitch: digits of a row, plane: of a matrix. Program axis 1:
    matrices of a batch.
    """
    stride, k = even(step, EVEN), even(length, EVEN)
    i = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    start = x + batch * even(batch_step, EVEN) + i.to(tl.int64) * stride
    stats += batch * STATISTICS * vectors + i
    extras += batch * EXTRAS * vectors + i
    row = digits + batch * wide(plane) + plane_row(i, PERMUTED).to(tl.int64) * pitch
    words = row.to(tl.pointer_type(tl.int32))
    fours = tl.arange(0, BLOCK // 4)
    largest = largest_of(start, fours, k, True, 1, BLOCK)
    finite = largest < EXPONENT
    lift, factor = magnitude_factors(exponent_of(largest), q)
    shift = tl.where(finite, slice_shift(largest, SLICES, BITS, BALANCED, TRUNCATED), -NONFINITE)
    slice_lift, slice_factor = scale_factors(tl.where(finite, shift, 0), largest)
    squares = tl.zeros([BLOCK // 4], tl.int64)
    total = tl.zeros([BLOCK // 4], tl.int64)
    deviation = tl.zeros([BLOCK // 4], tl.int64)
    distance = tl.zeros([BLOCK // 4], tl.int32)
    nonzero = tl.zeros([BLOCK // 4], tl.int32)
    seen = tl.zeros([BLOCK // 4], tl.int64)
    c0 = tl.zeros([BLOCK // 4], tl.int32)
    c1 = c0
    c2 = c0
    c3 = c0
    c4 = c0
    # Over the padding too, which must be zeros: the product multiplies it.
    for h in range(0, pitch // SLICES, BLOCK):
        word = h // 4 + fours
        # A vector that is not finite counts as zeros: its entries are repaired, and NaN would spoil integers and sums.
        value = tl.where(finite, vector_values(start, word, k, not BALANCED), 0.0)
        # Rounded up, as bounds grow with norms; integers, so that no order of the sum changes a bit of them.
        v = ceiling_of_product(tl.abs(value) * lift, factor, NVIDIA)
        squares += tl.sum(v.to(tl.int64) * v, 1)
        total += tl.sum(v, 1)
        if LEVELS:
            some0, some1, some2, some3, some4 = counts_of(tl.sum(level_of(v, q), 1))
            c0 += some0
            c1 += some1
            c2 += some2
            c3 += some3
            c4 += some4
        # Word w of block c stands at c·(words of a block's slices) + w, and those of the next slice a width further.
        block = word // (width // 4)
        target = block * (width // 4 * (SLICES - 1)) + word
        inside = 4 * word < pitch // SLICES
        if BALANCED:
            first, second, last, some, d = digits_of(value * slice_lift, slice_factor, SLICES, MEASURE, NVIDIA)
            nonzero += tl.sum(some, 1)
            seen |= tl.reduce(last, 1, _either).to(tl.int64)
            for at in tl.static_range(SLICES):
                four = packed(digit(first, second, at, SLICES), False)
                place = words + target + (at if REVERSED else SLICES - 1 - at) * (width // 4)
                tl.store(place, four, mask=inside)
        else:
            rest = value * slice_lift * slice_factor
            vanished = (rest == 0.0) & (value != 0.0)
            live = tl.zeros([BLOCK // 4, 4], tl.int32)
            for up in tl.static_range(SLICES - 1, -1, -1):
                peel, rest = peeled(rest, up, BITS, TRUNCATED, NVIDIA)
                some = (peel != 0.0).to(tl.int32)
                live |= some
                seen |= byte_of(tl.max(some, 1), up)
                first = 4 * target + (up if REVERSED else SLICES - 1 - up) * width
                place = row + first[:, None] + tl.arange(0, 4)[None, :]
                tl.store(place, as_digit(peel, row), mask=inside[:, None])
            nonzero += tl.sum(live, 1)
            d = residual_of(rest, vanished, MEASURE, NVIDIA)
        deviation += gathered(d, 1, MEASURE)
        if MEASURE:
            distance += tl.sum(d, 1)
    residual = _total(tl.sum(deviation, 0), k, MEASURE, TRUNCATED)
    tl.store(stats + LARGEST * vectors, largest)
    tl.store(stats + NORM2 * vectors, tl.sum(squares, 0))
    tl.store(stats + NORM1 * vectors, tl.sum(total, 0))
    tl.store(stats + RESIDUAL * vectors, residual)
    tl.store(stats + SHIFT * vectors, shift)
    if LEVELS:
        tl.store(stats + COUNTS * vectors, tl.sum(c0, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 1) * vectors, tl.sum(c1, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 2) * vectors, tl.sum(c2, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 3) * vectors, tl.sum(c3, 0).to(tl.int64))
        tl.store(stats + (COUNTS + 4) * vectors, tl.sum(c4, 0).to(tl.int64))
    tl.store(extras + NONZERO * vectors, tl.sum(nonzero, 0).to(tl.int64))
    tl.store(extras + DIGITS * vectors, tl.reduce(seen, 0, _either))
    if MEASURE:
        tl.store(extras + DEVIATION * vectors, tl.sum(distance.to(tl.int64), 0))


@triton.jit
def _digits_at(digits, plane, pitch, batch, j, h0, width, SLICES: tl.constexpr, PERMUTED: tl.constexpr):
    """Where the digits of columns j begin for a tile from row h0 on, all of whose elements are of one block."""
    first = h0 // width * (width * SLICES) + h0 % width
    return digits + batch * wide(plane) + plane_row(j, PERMUTED).to(tl.int64) * pitch + first


@triton.jit(do_not_specialize=["step", "batch_step", "vectors", "length"])
def slice_columns(
    x, step, batch_step, stats, extras, digits, vectors, length, width, pitch, plane, SLICES: tl.constexpr,
    BITS: tl.constexpr, BALANCED: tl.constexpr, TRUNCATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    MEASURE: tl.constexpr, NVIDIA: tl.constexpr, PERMUTED: tl.constexpr, REVERSED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Slice a tile of columns, whose norms stand in stats (`scale.sum_columns`), transposed: the residuals, shifts and
    extras, which are 0 before, and the digits. Program axis 2: matrices of a batch. ROWS divides the width.
    """
    stride, n, k = even(step, EVEN), even(vectors, EVEN), even(length, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    x += batch * even(batch_step, EVEN)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stats += batch * STATISTICS * n + j
    extras += batch * EXTRAS * n + j
    h0 = tl.program_id(1) * ROWS
    h = h0.to(tl.int64) + 4 * tl.arange(0, ROWS // 4)
    largest = tl.load(stats + LARGEST * n, mask=j < n, other=0)
    finite = largest < EXPONENT
    shift = tl.where(finite, slice_shift(largest, SLICES, BITS, BALANCED, TRUNCATED), -NONFINITE)
    lift, factor = scale_factors(tl.where(finite, shift, 0), largest)
    value = column_values(x, h, j, stride, k, (finite & (j < n))[None, :])
    if BALANCED:
        scaled = value * lift[None, :, None]
        low, high, last, some, d = digits_of(scaled, factor[None, :, None], SLICES, MEASURE, NVIDIA)
    else:
        rest = value * lift[None, :, None] * factor[None, :, None]
        vanished = (rest == 0.0) & (value != 0.0)
        some = tl.zeros([ROWS // 4, BLOCK, 4], tl.int32)
        seen = tl.zeros([BLOCK], tl.int64)
        start = _digits_at(digits, plane, pitch, batch, j, h0, width, SLICES, PERMUTED)
        target = start[:, None] + tl.arange(0, ROWS)[None, :]
        for up in tl.static_range(SLICES - 1, -1, -1):
            peel, rest = peeled(rest, up, BITS, TRUNCATED, NVIDIA)
            live = (peel != 0.0).to(tl.int32)
            some |= live
            seen |= byte_of(tl.max(tl.max(live, 2), 0), up)
            # Transposed: digits of a column are neighbours in a row, while its elements were read across rows.
            turned = tl.reshape(tl.permute(as_digit(peel, digits), (1, 0, 2)), [BLOCK, ROWS])
            tl.store(target + (up if REVERSED else SLICES - 1 - up) * width, turned, mask=(j < n)[:, None])
        d = residual_of(rest, vanished, MEASURE, NVIDIA)
    residual = tl.sum(gathered(d, 2, MEASURE), 0)
    # Tiles of a column meet in one number; most have no residual, and leave the memory alone.
    if MEASURE:
        tl.atomic_add(stats + RESIDUAL * n, residual, mask=(j < n) & (residual > 0), sem="relaxed")
        distance = tl.sum(tl.sum(d, 2), 0).to(tl.int64)
        tl.atomic_add(extras + DEVIATION * n, distance, mask=(j < n) & (residual > 0), sem="relaxed")
    else:
        at_most = _total(residual, k, MEASURE, TRUNCATED)
        # Unmeasured, one residual in any tile makes the bound of the whole column, so the largest counts.
        tl.atomic_max(stats + RESIDUAL * n, at_most, mask=(j < n) & (residual > 0), sem="relaxed")
    nonzero = tl.sum(tl.sum(some, 2), 0).to(tl.int64)
    tl.atomic_add(extras + NONZERO * n, nonzero, mask=(j < n) & (nonzero > 0), sem="relaxed")
    if BALANCED:
        seen = tl.reduce(tl.reduce(last, 2, _either), 0, _either).to(tl.int64)
    tl.atomic_or(extras + DIGITS * n, seen, mask=(j < n) & (nonzero > 0), sem="relaxed")
    if tl.program_id(1) == 0:
        tl.store(stats + SHIFT * n, shift, mask=j < n)
    if BALANCED:
        start = _digits_at(digits, plane, pitch, batch, j, h0, width, SLICES, PERMUTED)
        words = start.to(tl.pointer_type(tl.int32))[:, None] + tl.arange(0, ROWS // 4)[None, :]
        for at in tl.static_range(SLICES):
            four = tl.trans(packed(digit(low, high, at, SLICES), True))
            place = words + (at if REVERSED else SLICES - 1 - at) * (width // 4)
            tl.store(place, four, mask=(j < n)[:, None])
