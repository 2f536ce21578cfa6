"""Exact expansions: from limbs to h + m + t, and from there to one correct rounding."""

import math

import numpy as np

from prismm.core.jit import device, fma, power_of_two, wide_vectors


@device
def two_sum(x, y):
    """s + e = x + y exactly (Knuth)."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


@device
def add_scaled(high, low, size, f, x, tail):
    """f·(x + tail) added to a sum in two parts, and |f·x| to its size."""
    p = f * x
    high, r = two_sum(high, p)
    return high, low + (r + (fma(f, x, -p) + f * tail)), size + abs(p)


@device
def fast_two_sum(x, y):
    """s + e = x + y exactly where |x| >= |y| or x = 0 (Dekker)."""
    s = x + y
    return s, y - (s - x)


@device
def expand(s0, s1, s2, s3, s4, radix, product, quotient, h, m, t):
    """C' = h + m + t in units of the third limb (s0 is the top): |m| <= ulp(h)/2, t has the sign of what is left, or
    is 0.

    Limbs are in base 2^radix (40 for residues, 44 for the direct engine) and at most half of it once carries are taken.

    The first sum is exact since |top·2^40| >= |next| or top = 0; the third and fourth limbs join by exact two-sums.
    d is then the error of the latter (0, or at least 2^-radix in magnitude) plus the fifth limb (at most half that):
    exact where it is not dominated, and of the right sign. Four terms that fall off in this order sink into place in
    two rounds; leading zeros (cancellation) move up.
    """
    wide_vectors()
    p0, p1, p2, p3, p4 = product[0], product[1], product[2], product[3], product[4]
    i0, i1 = quotient[0], quotient[1]
    down = power_of_two(-radix)
    up = power_of_two(radix)
    above = up * up
    below = down * down
    for j in range(h.size):
        # The top two limbs are enough: the quotient is never as near to a half as the others could move it
        # (`moduli.norm_limit`).
        q = -np.rint(fma(s0[j], i0, s1[j] * i1))
        x4 = fma(q, p4, s4[j])
        x3 = fma(q, p3, s3[j])
        x2 = fma(q, p2, s2[j])
        x1 = fma(q, p1, s1[j])
        x0 = fma(q, p0, s0[j])
        # From the lowest limb up: the sums below are exact only for limbs of at most half the radix.
        carry = np.rint(x4 * down)
        x4 = fma(-carry, up, x4)
        x3 += carry
        carry = np.rint(x3 * down)
        x3 = fma(-carry, up, x3)
        x2 += carry
        carry = np.rint(x2 * down)
        x2 = fma(-carry, up, x2)
        x1 += carry
        carry = np.rint(x1 * down)
        x1 = fma(-carry, up, x1)
        x0 += carry
        a, b = fast_two_sum(x0 * above, x1 * up)
        b, c = two_sum(b, x2)
        c, d = two_sum(c, x3 * down)
        d += x4 * below
        a, b = fast_two_sum(a, b)
        b, c = fast_two_sum(b, c)
        c, d = fast_two_sum(c, d)
        a, b = fast_two_sum(a, b)
        b, c = fast_two_sum(b, c)
        a, b = fast_two_sum(a, b)
        h[j] = a
        m[j] = b
        t[j] = c + d


@device
def round_expansion(h, m, t, exponent, precision, lowest):
    """RN((h + m + t)·2^exponent) to `precision` bits with least exponent `lowest`, ties to even, in plain integers.

    With M the 53-bit significand of h, the value is M ulp(h) plus a remainder of at most half an ulp (a tie
    included, which t may break). 8·M plus a stand-in for the remainder (in eighths: 1 and 3 inside, 2 and 4 exactly
    at a quarter and a half, 5 beyond) rounds like the value itself: at least two bits are dropped, and odd stand-ins
    never hit a midpoint. Returns a float64; overflow gives infinity.
    """
    if h == 0.0:
        return 0.0
    fraction, e = math.frexp(abs(h))
    significand = np.int64(math.ldexp(fraction, 53)) * 8
    # In eighths of the last place of h from here on.
    e -= 56
    # Where m is not zero it dominates t, and has the sign of both together.
    rest = m if m != 0.0 else t
    if rest != 0.0:
        outward = (rest > 0.0) == (h > 0.0)
        quarter = math.ldexp(2.0, e)
        size = abs(m)
        beyond = 0.0 if m == 0.0 else (t if m > 0.0 else -t)
        if size < quarter or (size == quarter and beyond < 0.0):
            step = 1
        elif size == quarter and beyond == 0.0:
            step = 2
        elif size < 2.0 * quarter or (size == 2.0 * quarter and beyond < 0.0):
            step = 3
        elif size == 2.0 * quarter and beyond == 0.0:
            step = 4
        else:
            step = 5
        significand += step if outward else -step
    e += exponent
    # The stand-in may have moved the significand into the binade below, or above.
    length = 56 if significand >= (np.int64(1) << 55) else 55
    length = 57 if significand >= (np.int64(1) << 56) else length
    drop = max(length - precision, lowest - e)
    # The significand has at most 57 bits: it is less than half of the least number.
    if drop > 60:
        return math.copysign(0.0, h)
    head = significand >> drop
    rest_bits = significand & ((np.int64(1) << drop) - 1)
    half = np.int64(1) << (drop - 1)
    if rest_bits > half or (rest_bits == half and head & 1):
        head += 1
    e += drop
    top = 1024 if precision == 53 else 128
    value = np.float64(head)
    if math.frexp(value)[1] + e > top:
        return math.copysign(np.inf, h)
    return math.copysign(math.ldexp(value, e), h)
