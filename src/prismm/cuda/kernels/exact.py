"""Exact values of entries, one by one: sums of products in limbs, rounded once; and what IEEE arithmetic gives where
operands are not finite.

Bytes: both vectors of an entry, 16 a term in float64; about 40 operations a term.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.expansion import from_integer
from prismm.cuda.kernels.fp64 import EXPONENT, LARGEST, LOW32, bits_of, nothing, rounded, scaled

# Products lie between 2^-2148 and 2^2048, 132 limbs of 32 bits; Triton's tensors are powers of two long.
LIMBS_OF_SUMS = tl.constexpr(256)


ORIGIN = tl.constexpr(2148)
"""Exponent of the lowest limb's unit, negated: products of two subnormals are multiples of 2^-2148."""


@triton.jit
def significand(x):
    """(53-bit integer, exponent of its unit) of |x|, finite."""
    pattern = bits_of(tl.abs(x))
    field = pattern >> 52
    fraction = pattern & 0xFFFFFFFFFFFFF
    return tl.where(field > 0, fraction | 0x10000000000000, fraction), tl.maximum(field, 1) - 1075


@triton.jit
def factors(a, a_step, b, b_step, h, terms, part, PARTS: tl.constexpr):
    """Factors h < terms of a sum of products: Σ a·b, or of complex numbers one of its parts, twice as many: Re·Re and
    -Im·Im (part 0), Re·Im and Im·Re (part 1), imaginary parts being one element after the real ones.
    """
    inside = h < terms
    if PARTS == 1:
        x = tl.load(a + h * a_step, mask=inside, other=0.0).to(tl.float64)
        y = tl.load(b + h * b_step, mask=inside, other=0.0).to(tl.float64)
    else:
        x = tl.load(a + (h >> 1) * a_step + (h & 1), mask=inside, other=0.0).to(tl.float64)
        y = tl.load(b + (h >> 1) * b_step + ((h & 1) ^ part), mask=inside, other=0.0).to(tl.float64)
        y = tl.where((part == 0) & ((h & 1) == 1), -y, y)
    return x, y


@triton.jit
def _multiple(x, shift):
    """x rounded to a multiple of 2^-shift, where `split` multiplies it so."""
    return scaled(rounded(scaled(x, shift)), -shift)


@triton.jit
def exact_sums(
    a, a_step, a_shift, b, b_step, b_shift, k, part, lanes, index, PARTS: tl.constexpr, ROUND: tl.constexpr
):  # fmt: skip
    """(sums, lowest, highest): a sum of products as in `factors`, in limbs, limb l in units of 2^(32·l - ORIGIN), and
    the lowest and highest limb touched. lanes, index: numbers of the elements that are taken at a time, and of the
    limbs. ROUND: of elements rounded to multiples of 2^-shift.
    """
    BLOCK: tl.constexpr = lanes.shape[0]
    sums = index.to(tl.int64) * 0
    lowest = nothing() + LIMBS_OF_SUMS
    highest = nothing()
    for h0 in range(0, PARTS * k, BLOCK):
        x, y = factors(a, a_step, b, b_step, (h0 + lanes).to(tl.int64), PARTS * k, part, PARTS)
        if ROUND:
            x, y = _multiple(x, a_shift), _multiple(y, b_shift)
        mx, ex = significand(x)
        my, ey = significand(y)
        used = (mx != 0) & (my != 0)
        position = ex + ey + ORIGIN
        limb = position >> 5
        r = position & 31
        low = mx * my
        high = tl.umulhi(mx.to(tl.uint64, bitcast=True), my.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
        # Five pieces below 2^32 in int64: 2^31 of them add up before a limb could wrap, so carries can wait for the
        # end.
        part_of = (low & LOW32) << r
        p0 = part_of & LOW32
        part_of = (((low >> 32) & LOW32) << r) + (part_of >> 32)
        p1 = part_of & LOW32
        part_of = ((high & LOW32) << r) + (part_of >> 32)
        p2 = part_of & LOW32
        part_of = ((high >> 32) << r) + (part_of >> 32)
        p3 = part_of & LOW32
        p4 = part_of >> 32
        sign = tl.where((x < 0.0) == (y < 0.0), 1, -1).to(tl.int64)
        sign = tl.where(used, sign, 0)
        first = tl.min(tl.where(used, limb, LIMBS_OF_SUMS), 0)
        last = tl.max(tl.where(used, limb + 4, 0), 0)
        for limb_at in range(first.to(tl.int32), last.to(tl.int32) + 1):
            d = limb_at - limb
            piece = tl.where(d == 0, p0, tl.where(d == 1, p1, tl.where(d == 2, p2, tl.where(d == 3, p3, p4))))
            piece = tl.where((d >= 0) & (d <= 4), piece * sign, 0)
            sums += tl.where(index == limb_at, tl.sum(piece, 0), 0)
        lowest = tl.minimum(lowest, first)
        highest = tl.maximum(highest, last)
    return sums, lowest, highest


@triton.jit
def exact_value(
    a, a_step, b, b_step, k, part, PARTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """RN of a sum of products of finite numbers, ties to even, subnormals and overflow included, as a float64."""
    return exact_value_in(a, a_step, b, b_step, k, part, tl.arange(0, BLOCK), limb_numbers(), PARTS, PRECISION)


@triton.jit
def exact_value_in(a, a_step, b, b_step, k, part, lanes, index, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """`exact_value`; lanes, index: as of `exact_sums`."""
    sums, lowest, highest = exact_sums(a, a_step, 0, b, b_step, 0, k, part, lanes, index, PARTS, False)
    return round_limbs(sums, lowest, highest, index, ORIGIN, PRECISION)


@triton.jit
def limb_numbers():
    """Of all limbs of a sum."""
    return tl.arange(0, LIMBS_OF_SUMS)


@triton.jit
def limb_of(sums, index, limb_at):
    """One limb."""
    return tl.sum(tl.where(index == limb_at, sums, 0), 0)


@triton.jit
def round_limbs(sums, low_limb, high_limb, index, UNIT: tl.constexpr, PRECISION: tl.constexpr):
    """RN of a number in limbs l in units of 2^(32·l - UNIT), as a float64. index: `limb_numbers`."""
    LOWEST: tl.constexpr = -1074 if PRECISION == 53 else -149
    lowest, highest = low_limb.to(tl.int32), high_limb.to(tl.int32)
    # The carry out of the last limb fits in the next one, and the sign in the one above.
    top = tl.minimum(highest + 3, LIMBS_OF_SUMS)
    carry = nothing()
    digits = index.to(tl.int64) * 0
    for limb_at in range(lowest, top):
        total = limb_of(sums, index, limb_at) + carry
        digits += tl.where(index == limb_at, total & LOW32, 0)
        carry = total >> 32
    negative = carry < 0
    # The two's complement, by words: all above the lowest nonzero one are inverted.
    first = tl.min(tl.where(digits != 0, index, LIMBS_OF_SUMS), 0)
    touched = (index >= first) & (index < top)
    inverted = tl.where(index == first, (1 << 32) - digits, LOW32 - digits)
    digits = tl.where(negative & touched, inverted, digits)
    last = tl.max(tl.where(digits != 0, index, -1), 0)
    d0 = limb_of(digits, index, last)
    d1 = limb_of(digits, index, last - 1)
    d2 = limb_of(digits, index, last - 2)
    sticky = tl.max(tl.where((index < last - 2) & (digits != 0), 1, 0), 0)
    # The 62 leading bits; the lowest of them also stands for all that follows.
    length = (bits_of(d0.to(tl.float64)) >> 52) - 1022
    up = tl.maximum(30 - length, 0)
    down = tl.maximum(length - 30, 0)
    one = d0 * 0 + 1
    body = tl.where(length <= 30, ((d0 << 32 | d1) << up) | (d2 >> (32 - up)), (d0 << (32 - down)) | (d1 >> down))
    lost = tl.where(length <= 30, d2 & ((one << (32 - up)) - 1), (d1 & ((one << down) - 1)) | d2)
    body = body | ((lost != 0) | (sticky != 0)).to(tl.int64)
    e = 32 * (last - 1).to(tl.int64) - UNIT + length - 30
    drop = tl.maximum(62 - PRECISION, LOWEST - e)
    drop = tl.minimum(drop, 63)
    head = tl.where(drop == 63, 0, body >> tl.minimum(drop, 62))
    rest = body - tl.where(drop == 63, 0, head << tl.minimum(drop, 62))
    half = one << (drop - 1)
    head += ((rest > half) | ((rest == half) & ((head & 1) == 1))).to(tl.int64)
    value = from_integer(head, e + drop, negative, PRECISION)
    return tl.where(last < 0, 0.0, value)


@triton.jit
def ieee_value(a, a_step, b, b_step, k, part, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """±Inf or NaN where a sum of products, as in `factors`, is because some factor is Inf or NaN; else 0."""
    return ieee_value_in(a, a_step, b, b_step, k, part, tl.arange(0, BLOCK), PARTS)


@triton.jit
def ieee_value_in(a, a_step, b, b_step, k, part, lanes, PARTS: tl.constexpr):
    """`ieee_value`; lanes: as of `exact_sums`."""
    BLOCK: tl.constexpr = lanes.shape[0]
    up = lanes * 0
    down = up
    nan = up
    for h0 in range(0, PARTS * k, BLOCK):
        x, y = factors(a, a_step, b, b_step, (h0 + lanes).to(tl.int64), PARTS * k, part, PARTS)
        infinite = (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf"))
        bad = (x != x) | (y != y) | (infinite & ((x == 0.0) | (y == 0.0)))
        minus = (x < 0.0) != (y < 0.0)
        nan |= bad.to(tl.int32)
        up |= (infinite & ~bad & ~minus).to(tl.int32)
        down |= (infinite & ~bad & minus).to(tl.int32)
    plus, minus = tl.max(up, 0) > 0, tl.max(down, 0) > 0
    value = tl.where(plus, float("inf"), tl.where(minus, float("-inf"), 0.0)).to(tl.float64)
    return tl.where((tl.max(nan, 0) > 0) | (plus & minus), float("nan"), value)


@triton.jit
def special_value(
    a, a_step, b, b_step, rows, columns, m, n, i, j, k, part, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """`ieee_value` of the entry (i, j), by the statistics of rows and columns. NaN in one makes all its entries NaN,
    both parts of complex ones, so products are looked at only where there is Inf.
    """
    largest = tl.maximum(tl.load(rows + LARGEST * m + i), tl.load(columns + LARGEST * n + j))
    value = tl.full([], 0.0, tl.float64)
    if largest > EXPONENT:
        value += float("nan")
    elif largest == EXPONENT:
        value += ieee_value(a, a_step, b, b_step, k, part, PARTS, BLOCK)
    return value
