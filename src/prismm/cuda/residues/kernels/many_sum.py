"""Sums alpha·X + beta·C, in three parts, of entries X that more moduli made again; and estimates of such sums in twice
float64's precision, for choosing moduli. alpha is a real number, and there may be no C.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import power_of_two, scaled, two_sum
from prismm.cuda.residues.kernels.entries import decided, fraction

STAND_IN = tl.constexpr(0.25)
"""Stands for the rest of C' with its sign, in units of the fifth limb. The rest is less than such a unit."""

SIGNED_ABOVE, ALIGNED_ABOVE, ALIGNS = tl.constexpr(2.0**-20), tl.constexpr(2.0**-26), tl.constexpr(1.5 * 2.0**-26)
"""If the rest of a sum is known by its sign, the first part is at least SIGNED_ABOVE. A second part below ALIGNED_ABOVE
is a multiple of 2^-79 if adding ALIGNS does not round it; larger second parts are multiples of it.
"""

SIGN_ALONE = tl.constexpr(2.0**-900)
"""Stands for a term that only breaks ties, with its sign (`with_product`)."""

NEAR_SMALL = tl.constexpr(2.0**-540)
"""Parts above are multiples of 2^-592, so that a small term (`with_product`) only breaks ties of them."""


@triton.jit
def with_product(h, m, t, x, y, exponent):
    """(h, m, t, error, proved, small, middling): h + m + t + x·y·2^-exponent is within error of the sum returned, with
    |m| <= ulp(h)/2 and |t| <= ulp(m)/2, where proved.

    x·y = p + r without error. A small product, below 2^-599, only breaks ties where it is the only one, and none is
    middling, which is below 2^-400: all others are 0, or multiples of 2^-506. So 2^-900 with its sign stands for it.
    """
    fx, ex = fraction(x)
    fy, ey = fraction(y)
    p = fx * fy
    r = tl.fma(fx, fy, -p)
    by = ex + ey - exponent
    there = p != 0.0
    small = (by < -600) & there
    factor = tl.where(small, SIGN_ALONE, power_of_two(tl.minimum(tl.maximum(by, -900), 900)))
    r = tl.where(small, 0.0, r * factor)
    p = tl.where(small, tl.where(p > 0.0, 1.0, -1.0), p) * factor
    proved = ((by <= 900) | (p == 0.0)) & ((h != 0.0) | (small == 0))
    h, m, t, error, apart = distilled(h, p, m, r, t)
    middling = (by < -400) & there & (small == 0)
    return h, m, t, error, proved & apart, small, middling


@triton.jit
def distilled(v0, v1, v2, v3, v4):
    """(h, m, t, error, proved): h + m + t is within error of the sum of five numbers, with |m| <= ulp(h)/2 and |t| <=
    ulp(m)/2, where proved. Four sweeps of TwoSum leave that sum as it is.
    """
    for _ in tl.static_range(4):
        s, v4 = two_sum(v3, v4)
        s, v3 = two_sum(v2, s)
        s, v2 = two_sum(v1, s)
        v0, v1 = two_sum(v0, s)
    # If the second part is 0, the third one must be 0, too.
    proved = (v0 + v1 == v0) & (v1 + v2 == v1)
    return v0, v1, v2, (tl.abs(v3) + tl.abs(v4)) * 1.001, proved


@triton.jit
def _times(h, m, t, f):
    """(h, m, t, error, proved): h + m + t is within error of f·(h + m + t), as `distilled` returns it. f·h and f·m are
    split without error, and f·t is rounded.
    """
    p, q, u = f * h, f * m, f * t
    lost = tl.abs(tl.fma(f, t, -u))
    h, m, t, error, proved = distilled(p, q, tl.fma(f, h, -p), u, tl.fma(f, m, -q))
    return h, m, t, error + lost, proved


@triton.jit
def _factors(beta, beta_i, part, PARTS: tl.constexpr):
    """What the parts of C are multiplied by: (f + gi)·(X + Yi) has the parts f·X - g·Y and g·X + f·Y."""
    if PARTS == 1:
        return beta, beta
    return tl.where(part == 0, beta, beta_i), tl.where(part == 0, -beta_i, beta)


@triton.jit
def _plus(h, m, t, bound, exponent, f, x):
    """`with_product` of f·x for a sum that is off by a bound, and the unit of the sum afterwards. A small product is
    proved if the sum's last part is far above it.
    """
    _, of_f = fraction(f)
    _, of_x = fraction(x)
    # Of a sum of nothing but this any unit will do, but a bound is in units of the sum.
    nothing = (h == 0.0) & (bound == 0.0) & (f * x != 0.0)
    exponent = tl.where(nothing, of_f + of_x, exponent)
    least = tl.abs(tl.where(t != 0.0, t, tl.where(m != 0.0, m, h)))
    h, m, t, error, proved, small, middling = with_product(h, m, t, f, x, exponent)
    proved = proved & ((small == 0) | (least > NEAR_SMALL)) & (x - x == 0.0)
    return h, m, t, bound + error, exponent, proved, small, middling


@triton.jit
def total(h, m, t, bound, exponent, by_sign, alpha, beta, beta_i, c, there, part, PARTS: tl.constexpr):
    """(h, m, t, bound, exponent, sure): (h + m + t)·2^exponent is within bound·2^exponent of a part of
    alpha·X + beta·C, with |m| <= ulp(h)/2 and |t| <= ulp(m)/2, where sure.

    X, likewise, is within bound·2^exponent of (h + m + t)·2^exponent; given a bound of 0 it is that. c: where C's
    entries stand, a complex one's imaginary part behind its real one; None for none.

    A returned bound of 0 says that all that the bound allows rounds alike: if t's half is above a bound, what t stands
    for has its sign, and adds less than ulp(m) to m, so that no midpoint lies between.

    by_sign: X is h + m and a rest of less than 2^-80 that has t's sign. Alpha makes it less than 2^-79. If the sum
    without it is a multiple of 2^-79, and at least 2^-20, t says how it rounds, since midpoints are such multiples.
    """
    f, of_alpha = fraction(alpha)
    sign = f * t
    t, bound = tl.where(by_sign, 0.0, t), tl.where(by_sign, 0.0, bound)
    h, m, t, error, sure = _times(h, m, t, f)
    # Where bound is not 0, it is far above 2^-1000: the roundings of this product are below 2^-50 of it.
    bound = bound * tl.abs(f) * (1.0 + 2.0**-50) + error
    exponent += of_alpha
    if c is not None:
        first, second = _factors(beta, beta_i, part, PARTS)
        c0 = tl.load(c, mask=there, other=0.0).to(tl.float64)
        h, m, t, bound, exponent, proved, small, middling = _plus(h, m, t, bound, exponent, first, c0)
        sure = sure & proved
        if PARTS == 2:
            c1 = tl.load(c + 1, mask=there, other=0.0).to(tl.float64)
            h, m, t, bound, exponent, proved, another, others = _plus(h, m, t, bound, exponent, second, c1)
            one_small = ~(small & another) & ~((small | another) & (middling | others))
            sure = sure & proved & one_small
    aligned = (tl.abs(m) >= ALIGNED_ABOVE) | ((m + ALIGNS) - ALIGNS == m)
    sure = sure & (~by_sign | (aligned & (bound == 0.0) & (t == 0.0) & (tl.abs(h) >= SIGNED_ABOVE)))
    t = tl.where(by_sign, sign, t)
    return h, m, t, tl.where(bound < 0.5 * tl.abs(t), 0.0, bound), exponent, sure


@triton.jit
def with_addend(s, low, shift, alpha, beta, beta_i, c, part, PARTS: tl.constexpr):
    """(s, low): about (s + low) + beta·C·2^shift / alpha, for a part of an entry whose C stands at c; c is None if
    there is no C. If the sum is not finite, it returns (2^1000, 0).
    """
    if c is not None:
        first, second = _factors(beta, beta_i, part, PARTS)
        shift = tl.minimum(tl.maximum(shift, -2000), 2000)
        c0 = tl.load(c).to(tl.float64)
        s, low = _with_quotient(s, low, first, c0, alpha, shift)
        if PARTS == 2:
            c1 = tl.load(c + 1).to(tl.float64)
            s, low = _with_quotient(s, low, second, c1, alpha, shift)
        finite = (s - s == 0.0) & (low - low == 0.0)
        s, low = tl.where(finite, s, 2.0**1000), tl.where(finite, low, 0.0)
    return s, low


@triton.jit
def _with_quotient(s, low, f, x, alpha, shift):
    """About (s + low) + f·x·2^shift / alpha, to twice float64's precision."""
    p = f * x
    q = p / alpha
    r = (tl.fma(-q, alpha, p) + tl.fma(f, x, -p)) / alpha
    s, error = two_sum(s, scaled(q, shift))
    return s, low + (error + scaled(r, shift))


@triton.jit
def decided_times(f, s, low, exponent, magnitude, steps, PRECISION: tl.constexpr):
    """`decided` of f·(s + low), 1 <= |f| < 2: it may be next to a midpoint where s + low is not."""
    product = f * s
    rest = tl.fma(f, s, -product) + f * low
    return decided(product, rest, exponent, magnitude * tl.abs(f), steps, PRECISION)
