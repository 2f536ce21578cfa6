"""Sums f·X + g·c (+ g'·c') of entries X that are known as three numbers and a bound (`many`, `expansions`), in three
numbers again, with a bound that is 0 where they are exact.

X = (h + m + t)·2^-s, to within `bound` of these units and half a unit of t's last place. With |f| in [1/2, 1), its
power of two taken into s, and y = c·2^s, each of f·h, f·m, f·t and g·y is split in two without error (Dekker). Two-sums
lose nothing: four sweeps of them gather these ten numbers in the first three, and the bound takes up the others.

Where X is exact but for a rest that is known by its sign (`many`), |rest| < 2^-80, the sum without it decides if it is
a multiple of 2^-80 and at least 2^-25: midpoints are such multiples, so none lies between it and the sum.

y outside 2^±700 is not added. One that is larger leaves no more than a sign of X; one that is smaller leaves no more
than its own sign. Sums of two such numbers are refused: their bound is infinite.

Per entry some 250 operations.
"""

import math

import numpy as np

from prismm.core.jit import contiguous_row, device, fma, wide_vectors
from prismm.cpu.kernels.expansion import two_sum
from prismm.cpu.kernels.scale import two_factors

REST = 2.0**-80
"""Above what stands for the rest of X where it is known by its sign, a quarter of it."""

_ROUNDED = 2.0**-30
"""A third part from here on may be rounded. All bits of a smaller one, of which the last is 2^-82, fit."""

_LEAST, _MOST = 2.0**-700, 2.0**700
_SIGN, _SMALL = 2.0**-300, 2.0**-600
"""_SIGN stands for the rest of X, or for X, if the kernel knows its sign alone; _SMALL for g·y if y is below 2^-700."""

_SIGNED_ABOVE, _ALIGNED_ABOVE, _ALIGNS = 2.0**-25, 2.0**-27, 1.5 * 2.0**-27
"""A number below _ALIGNED_ABOVE is a multiple of 2^-80 if adding _ALIGNS does not round it. Larger numbers are such
multiples.
"""


@device
def _sweep(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9):
    """The same sum, the last of two-sums from the right."""
    x8, x9 = two_sum(x8, x9)
    x7, x8 = two_sum(x7, x8)
    x6, x7 = two_sum(x6, x7)
    x5, x6 = two_sum(x5, x6)
    x4, x5 = two_sum(x4, x5)
    x3, x4 = two_sum(x3, x4)
    x2, x3 = two_sum(x2, x3)
    x1, x2 = two_sum(x1, x2)
    x0, x1 = two_sum(x0, x1)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9


@device
def _sum(h, m, t, bound, missing, f, g0, y0, g1, y1):
    """(h, m, t, bound) of f·X + g0·y0 + g1·y1; missing: a bound of how wrong t is for the rest of an exact X."""
    exact = bound == 0.0
    # Where h alone is there, what stands for the rest is in m.
    last = t if t != 0.0 else m
    by_sign = exact & (f != 0.0) & (missing > 0.0) & (abs(last) == 0.25 * REST)
    given = missing if exact & (not by_sign) else bound
    given += abs(t) * 2.0**-52 if abs(t) >= _ROUNDED else 0.0
    given = given if f != 0.0 else 0.0
    sign = f * last
    m = 0.0 if by_sign & (t == 0.0) else m
    t = 0.0 if by_sign else t
    x0, x1, x2, x3, x4 = f * h, g0 * y0, g1 * y1, f * m, f * t
    x5, x6, x7 = fma(f, h, -x0), fma(g0, y0, -x1), fma(g1, y1, -x2)
    x8, x9 = fma(f, m, -x3), fma(f, t, -x4)
    for _ in range(4):
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 = _sweep(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9)
    left = abs(x3) + abs(x4) + abs(x5) + abs(x6) + abs(x7) + abs(x8) + abs(x9)
    # If leading numbers cancelled, the others move up.
    m, t = two_sum(x1, x2)
    h, m = two_sum(x0, m)
    m, t = two_sum(m, t)
    h, m = two_sum(h, m)
    m, t = two_sum(m, t)
    in_order = (h + m == h) & (m + t == m)
    bound = given * abs(f) * (1.0 + 2.0**-50) + left * (1.0 + 2.0**-50)
    aligned = (abs(m) >= _ALIGNED_ABOVE) | ((m + _ALIGNS) - _ALIGNS == m)
    signed = by_sign & aligned & (bound == 0.0) & (t == 0.0) & (abs(h) >= _SIGNED_ABOVE)
    t = (_SIGN if sign > 0.0 else -_SIGN) if signed else t
    bound = bound + REST if by_sign & (not signed) else bound
    return (
        h if in_order else 0.0,
        m if in_order else 0.0,
        t if in_order else 0.0,
        bound if in_order else np.inf,
    )


@device
def _fraction(x):
    """x as a fraction in [1/2, 1) and an exponent; (0, 0) of 0."""
    fraction, exponent = math.frexp(x)
    return fraction, np.int64(exponent)


@device
def _moved(c, exponent):
    """c·2^exponent. Exponents beyond ±2000 count as these: the product is outside 2^±700 either way."""
    first, second = two_factors(min(max(exponent, -2000), 2000))
    return c * first * second


@device
def _is_outlying(g, c, y):
    """Whether g·y is added, but y, which c was moved to, is outside 2^±700."""
    return (g != 0.0) & (c != 0.0) & ((abs(y) < _LEAST) | (abs(y) > _MOST))


@device
def _outlying(h, m, t, bound, missing, f, g, c, exponent):
    """(h, m, t, bound, whether in units of 2^exponent of g·c instead of X's) of f·X + g·c for a c that is so large or
    small; exponent: that of g·c is this plus c's.
    """
    fraction, of_c = _fraction(c)
    nothing = (f == 0.0) | ((h == 0.0) & (bound == 0.0) & (missing == 0.0))
    if nothing or exponent + of_c > 0:
        p = g * fraction
        e = fma(g, fraction, -p)
        if nothing:
            return p, e, 0.0, 0.0, True
        if not bound + missing < 2.0**200:
            return 0.0, 0.0, 0.0, np.inf, True
        if abs(h) > 2.0 * (bound + missing):
            return p, e, math.copysign(_SIGN, f * h), 0.0, True
        return p, e, 0.0, _SIGN, True
    h, m, t, bound = _sum(h, m, t, bound, missing, f, 0.0, 0.0, 0.0, 0.0)
    if bound > 0.0:
        return h, m, t, bound + _SMALL, False
    # An exact sum has no bits below 2^-140.
    if t == 0.0:
        t = math.copysign(_SMALL, g * c)
    return h, m, t, bound, False


@device
def add_addends(h, m, t, bound, missing, unit, shift, factors, addends, row, j0):
    """Make X = (h + m + t)·2^(unit - shift) of a row, from column j0 on, f·X + Σ g·c.

    Args:
        h, m, t, bound, missing: of each entry: bound as of `round_strip`, missing as of `_sum`. |h| < 2^130.
        shift: of each entry; changed.
        factors: f, and none, one or two g; finite.
        addends: (m, n) for each g, side by side: the numbers c, finite.
    """
    wide_vectors()
    w, count = h.size, factors.size - 1
    f, of_f = _fraction(factors[0])
    g0, of_g0 = _fraction(factors[1] if count > 0 else 0.0)
    g1, of_g1 = _fraction(factors[2] if count > 1 else 0.0)
    n = addends.shape[1] // max(count, 1)
    # Numbers without a factor are not looked at.
    c0 = contiguous_row(addends, row, j0, w) if count > 0 else m
    c1 = contiguous_row(addends, row, n + j0, w) if count > 1 else m
    outlying = False
    for j in range(w):
        shift[j] -= of_f
        y0, y1 = _moved(c0[j], shift[j] - unit + of_g0), _moved(c1[j], shift[j] - unit + of_g1)
        outlying |= _is_outlying(g0, c0[j], y0) | _is_outlying(g1, c1[j], y1)
    if not outlying:
        for j in range(w):
            y0 = _moved(c0[j], shift[j] - unit + of_g0) if g0 != 0.0 else 0.0
            y1 = _moved(c1[j], shift[j] - unit + of_g1) if g1 != 0.0 else 0.0
            h[j], m[j], t[j], bound[j] = _sum(h[j], m[j], t[j], bound[j], missing[j], f, g0, y0, g1, y1)
        return
    for j in range(w):
        first, second = g0 != 0.0 and c0[j] != 0.0, g1 != 0.0 and c1[j] != 0.0
        y0 = _moved(c0[j], shift[j] - unit + of_g0) if first else 0.0
        y1 = _moved(c1[j], shift[j] - unit + of_g1) if second else 0.0
        if not (_is_outlying(g0, c0[j], y0) or _is_outlying(g1, c1[j], y1)):
            h[j], m[j], t[j], bound[j] = _sum(h[j], m[j], t[j], bound[j], missing[j], f, g0, y0, g1, y1)
        elif first and second:
            h[j], m[j], t[j], bound[j] = 0.0, 0.0, 0.0, np.inf
        else:
            g, c, of_g = (g0, c0[j], of_g0) if first else (g1, c1[j], of_g1)
            h[j], m[j], t[j], bound[j], of_c = _outlying(
                h[j], m[j], t[j], bound[j], missing[j], f, g, c, shift[j] - unit + of_g
            )
            if of_c:
                shift[j] = unit - of_g - _fraction(c)[1]
