"""Sums of two numbers in `dot_model`, of any exponents, in 61 or 124 bits, with what is left as a sticky bit."""

import numpy as np

from prismm.core.jit import device
from prismm.core.limbs import bit_length, keep_apart
from prismm.numerics.kernels.dot_operands import decoded
from prismm.numerics.kernels.dot_parameters import FRACTION_64, KEEP, MINEXP_64
from prismm.numerics.kernels.dot_rounding import finish, kind_of, special_sum, zero_sum

_0, _1, _NO, _MASK = np.int64(0), np.int64(1), np.bool_(False), np.int64((1 << 62) - 1)


@device
def _normalised(h, m, e):
    """(length, u, v, e) of h·2^54 + m, 0 <= m < 2^54, 0 <= h < 2^53: it is u·2^62 + v of 123 bits; of 0 for 0."""
    length = bit_length(h) + 54 if h != 0 else bit_length(m)
    if length == 0:
        return length, _0, _0, e
    u, v = h >> 8, ((h & 255) << 54) | m
    left = 123 - length
    if left >= 62:
        return length, v << (left - 62), _0, e - left
    return length, (u << left) | (v >> (62 - left)), (v << left) & _MASK, e - left


@device
def _moved(u, v, right):
    """u·2^62 + v without its last bits, the new last one set where one of them was."""
    if right >= 124:
        return _0, _1
    if right >= 62:
        lost = v | (u & ((_1 << (right - 62)) - 1))
        u, v = _0, u >> (right - 62)
    else:
        lost = v & ((_1 << right) - 1)
        u, v = u >> right, (v >> right) | ((u << (62 - right)) & _MASK)
    return u, v | (lost != 0)


@device
def sum_of_two(h1, m1, e1, h2, m2, e2):
    """(negative, m, e, sticky) of the sum of two numbers, each (h·2^54 + m)·2^e with |m| < 2^54.

    Where the sum does not fit 61 or 124 bits, the smaller one is cut off with a sticky last bit: at least 7 bits above
    that are zero in the larger one, and it is at least 2^6 times as large, so that at most one leading bit cancels.
    """
    keep_apart()
    if h1 == 0 and h2 == 0:
        if m1 == 0:
            return m2 < 0, abs(m2), e2, _NO
        if m2 == 0:
            return m1 < 0, abs(m1), e1, _NO
        if e1 < e2:
            m1, m2 = m2, m1
            e1, e2 = e2, e1
        length = bit_length(abs(m1))
        d = e1 - e2
        if length + d <= 61:
            s = (m1 << d) + m2
            return s < 0, abs(s), e2, _NO
        z = 61 - length
        right = min(d - z, 63)
        small = abs(m2)
        cut = small >> right
        if cut << right != small:
            cut |= 1
        s = (abs(m1) << z) + (cut if (m1 < 0) == (m2 < 0) else -cut)
        return m1 < 0, s, e1 - z, _NO
    n1, n2 = h1 < 0 or m1 < 0, h2 < 0 or m2 < 0
    length1, u1, v1, e1 = _normalised(abs(h1), abs(m1), e1)
    length2, u2, v2, e2 = _normalised(abs(h2), abs(m2), e2)
    if length1 == 0 or (length2 != 0 and e1 < e2):
        n1, u1, v1, e1, n2, u2, v2, e2 = n2, u2, v2, e2, n1, u1, v1, e1
    if length1 != 0 and length2 != 0:
        u2, v2 = _moved(u2, v2, e1 - e2)
        if n1 == n2:
            v1 += v2
            u1 += u2 + (v1 >> 62)
            v1 &= _MASK
        else:
            if u1 < u2 or (u1 == u2 and v1 < v2):
                n1, u1, v1, u2, v2 = n2, u2, v2, u1, v1
            v1 -= v2
            u1 -= u2 - (v1 >> 62)
            v1 &= _MASK
    if u1 == 0:
        return n1, v1, e1, _NO
    length = bit_length(u1)
    m = (u1 << (62 - length)) | (v1 >> length)
    return n1, m, e1 + length, v1 & ((_1 << length) - 1) != 0


@device
def two_floats(p, x, y, fraction, minexp, maxexp, mode):
    """x + y, rounded once."""
    keep_apart()
    kinds = kind_of(x) | kind_of(y)
    found, special = special_sum(kinds)
    if found:
        return special
    m1, e1 = decoded(x, FRACTION_64, MINEXP_64, KEEP)
    m2, e2 = decoded(y, FRACTION_64, MINEXP_64, KEEP)
    negative, m, e, sticky = sum_of_two(_0, m1, e1 - 52, _0, m2, e2 - 52)
    if m == 0:
        return zero_sum(p, kinds)
    return finish(p, negative, m, e, sticky, fraction, minexp, maxexp, mode)
