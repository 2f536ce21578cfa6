"""Exact expansions h + m + t of integers in limbs, and their one rounding: `cpu.kernels.expansion` for a GPU."""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import bits_of, fast_two_sum, float_of, nearest, power_of_two, two_sum

UP = tl.constexpr(2.0**40)
DOWN = tl.constexpr(2.0**-40)
ABOVE = tl.constexpr(2.0**80)
BELOW = tl.constexpr(2.0**-80)


@triton.jit
def expand(s0, s1, s2, s3, s4, product, quotient, LIMBS: tl.constexpr):
    """C' = Σ - P·rint(Σ/P) = h + m + t in units of the third limb, the sums' limbs being of 40 bits, s0 the top.

    |m| <= ulp(h)/2; t has the sign of what is left, or is 0. Proofs stand in `cpu.kernels.expansion`.
    """
    # Two limbs are enough: `norm_limit` keeps Σ/P away from halves by 2^-17.
    q = -nearest(tl.fma(s0, tl.load(quotient), s1 * tl.load(quotient + 1)))
    x0 = tl.fma(q, tl.load(product), s0)
    x1 = tl.fma(q, tl.load(product + 1), s1)
    # Carries go from the lowest limb up, so that each one below the top ends within ±2^39.
    if LIMBS >= 3:
        x2 = tl.fma(q, tl.load(product + 2), s2)
        if LIMBS >= 4:
            x3 = tl.fma(q, tl.load(product + 3), s3)
            if LIMBS >= 5:
                x4 = tl.fma(q, tl.load(product + 4), s4)
                carry = nearest(x4 * DOWN)
                x4 = tl.fma(carry, -UP, x4)
                x3 += carry
            carry = nearest(x3 * DOWN)
            x3 = tl.fma(carry, -UP, x3)
            x2 += carry
        carry = nearest(x2 * DOWN)
        x2 = tl.fma(carry, -UP, x2)
        x1 += carry
    carry = nearest(x1 * DOWN)
    x1 = tl.fma(carry, -UP, x1)
    a, b = fast_two_sum((x0 + carry) * ABOVE, x1 * UP)
    c = a * 0.0
    if LIMBS == 3:
        b, c = two_sum(b, x2)
        a, b = fast_two_sum(a, b)
    if LIMBS >= 4:
        b, c = two_sum(b, x2)
        c, d = two_sum(c, x3 * DOWN)
        if LIMBS >= 5:
            d += x4 * BELOW
        a, b = fast_two_sum(a, b)
        b, c = fast_two_sum(b, c)
        c, d = fast_two_sum(c, d)
        a, b = fast_two_sum(a, b)
        b, c = fast_two_sum(b, c)
        a, b = fast_two_sum(a, b)
        c = c + d
    return a, b, c


@triton.jit
def from_integer(head, e, negative, PRECISION: tl.constexpr):
    """±kept·2^e, exactly, as a float64, for 0 <= kept <= 2^53 and a multiple of the result's smallest number.

    From 2^1024 (precision 53) or 2^128 on: infinity.
    """
    # Two factors, as 2^e alone may be out of float64's range.
    half = tl.minimum(tl.maximum(e >> 1, -1000), 1000)
    other = tl.minimum(tl.maximum(e - half, -1000), 1000)
    value = head.to(tl.float64) * power_of_two(half) * power_of_two(other)
    if PRECISION == 24:
        value = tl.where(value >= 340282366920938463463374607431768211456.0, float("inf"), value)
    return float_of(bits_of(value) | (negative.to(tl.int64) << 63))  # Triton's -x is 0 - x, which has no -0


@triton.jit
def round_expansion(h, m, t, exponent, PRECISION: tl.constexpr):
    """RN((h + m + t)·2^exponent), h normal or 0, ties to even, subnormals and overflow included, as a float64.

    With M the 53-bit significand of h the value is M·ulp(h) and a remainder of at most half an ulp (a tie included,
    which t may break). 8·M plus a stand-in for the remainder, in eighths (1 and 3 inside, 2 and 4 exactly at a quarter
    and a half, 5 beyond), rounds like the value itself: at least two bits are dropped.
    """
    LOWEST: tl.constexpr = -1074 if PRECISION == 53 else -149
    pattern = bits_of(tl.abs(h))
    significand = ((pattern & 0xFFFFFFFFFFFFF) | 0x10000000000000) << 3
    e = (pattern >> 52) - 1075 - 3
    rest = tl.where(m != 0.0, m, t)
    outward = (rest > 0.0) == (h > 0.0)
    # ulp(h) is 2^(e + 3): the significand has three bits more than h.
    quarter = power_of_two(tl.maximum(e + 1, -1022))
    size = tl.abs(m)
    beyond = tl.where(m == 0.0, 0.0, tl.where(m > 0.0, t, -t))
    step = tl.where((size == 2.0 * quarter) & (beyond == 0.0), 4, 5)
    step = tl.where((size < 2.0 * quarter) | ((size == 2.0 * quarter) & (beyond < 0.0)), 3, step)
    step = tl.where((size == quarter) & (beyond == 0.0), 2, step)
    step = tl.where((size < quarter) | ((size == quarter) & (beyond < 0.0)), 1, step)
    step = tl.where(rest == 0.0, 0, step)
    significand += tl.where(outward, step, -step)
    e += exponent
    length = tl.where(significand >= (1 << 56), 57, tl.where(significand >= (1 << 55), 56, 55))
    drop = tl.maximum(length - PRECISION, LOWEST - e)
    drop = tl.minimum(drop, 60)  # so far out nothing but a signed zero is left
    head = significand >> drop
    rest_bits = significand - (head << drop)
    one = significand * 0 + 1
    half = one << (drop - 1)
    head += ((rest_bits > half) | ((rest_bits == half) & ((head & 1) == 1))).to(tl.int64)
    value = from_integer(head, e + drop, h < 0.0, PRECISION)
    return tl.where(h == 0.0, 0.0, value)


@triton.jit
def rounded_alike(h, low, error, exponent, PRECISION: tl.constexpr):
    """(RN of a number within error of h + low, in units 2^exponent, whether that of all of them)."""
    # 2^-51·|low| is above the roundings of these sums, so the ends enclose the number.
    below_h, below_low = two_sum(h, low - (error + tl.abs(low) * 4.440892098500626e-16))
    above_h, above_low = two_sum(h, low + (error + tl.abs(low) * 4.440892098500626e-16))
    first = round_expansion(below_h, below_low, below_low * 0.0, exponent, PRECISION)
    last = round_expansion(above_h, above_low, above_low * 0.0, exponent, PRECISION)
    return first, bits_of(first) == bits_of(last)


@triton.jit
def shifted(h, by):
    """h·2^by by its exponent field, for results in float64's normal range; 0 stays."""
    return tl.where(h != 0.0, float_of(bits_of(h) + (by.to(tl.int64) << 52)), 0.0)
