"""Sums in `dot_model` of which every partial one is rounded: one by one, or in pairs."""

import numpy as np

from prismm.core.jit import device, trailing_zeros
from prismm.core.limbs import bit_length, keep_apart, to_float, units_of
from prismm.numerics.kernels.dot_operands import decoded
from prismm.numerics.kernels.dot_parameters import (
    ALIGNMENT,
    ALL,
    FINITE,
    FRACTION_64,
    FRACTION_BITS,
    IEEE,
    KEEP,
    MINEXP_64,
    NAN_TERM,
    NEGATIVE_ZERO,
    NONE,
    PLUS_INFINITY,
    POSITIVE_ZERO,
    ROUNDING,
    SUMS_FRACTION,
    SUMS_MAXEXP,
    SUMS_MINEXP,
    ZEROS,
    E,
    H,
    K,
    M,
)
from prismm.numerics.kernels.dot_rounding import finish_sums, kind_of, zero_sum
from prismm.numerics.kernels.dot_two_sums import sum_of_two

_0, _1, _NO = np.int64(0), np.int64(1), np.bool_(False)


@device
def _partial_format(p):
    """(fraction bits, least binade, bound of the binades, mode) of what partial sums are rounded to."""
    if p[FRACTION_BITS] >= 0:
        return p[FRACTION_BITS], np.int64(NONE), np.int64(ALL), p[ALIGNMENT]
    return p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING]


@device
def _short_sum(bits, minexp, maxexp, mode, m1, e1, m2, e2):
    """(whether it is done, m, e) of m1·2^e1 + m2·2^e2, |m| < 2^54, rounded as `_partial_format` says; not done where
    it is zero, underflows or overflows, and where one of them is zero and the other one has to be rounded. Else the sum
    is m1·2^e1 as it was.
    """
    if m1 == 0 or m2 == 0:
        m, e = (m2, e2) if m1 == 0 else (m1, e1)
        length = bit_length(abs(m))
        if m != 0 and length <= bits + 1 and minexp < e + length <= maxexp:
            return True, m, e
        return False, m1, e1
    high, at, low, e = (m1, e1, m2, e2) if e1 >= e2 else (m2, e2, m1, e1)
    left = 61 - bit_length(abs(high))
    if at - e <= left:
        total = (high << (at - e)) + low
    else:  # see `sum_of_two`
        right = min(at - e - left, 63)
        cut = abs(low) >> right
        cut |= cut << right != abs(low)
        total = (high << left) + (cut if low > 0 else -cut)
        e = at - left
    size = abs(total)
    q = e + bit_length(size) - 1
    if size == 0 or q < minexp:
        return False, m1, e1
    q -= bits
    if q > e:
        size = units_of(total < 0, size, e, _NO, q, mode)
        e = q
    if bit_length(size) + e > maxexp:
        return False, m1, e1
    return True, -size if total < 0 else size, e


@device
def _partial(p, s, t, terms):
    """Terms s and t become term s: their sum, rounded as partial sums are."""
    keep_apart()
    kinds = terms[K + s] | terms[K + t]
    if kinds & 7:
        terms[K + s] = NAN_TERM if kinds & NAN_TERM or kinds & 6 == 6 else kinds & 7
        terms[M + s], terms[H + s] = 0, 0
        return
    if kinds & FINITE:
        if terms[H + s] == 0 and terms[H + t] == 0:
            bits, minexp, maxexp, mode = _partial_format(p)
            done, m, e = _short_sum(bits, minexp, maxexp, mode, terms[M + s], terms[E + s], terms[M + t], terms[E + t])
            if done:
                terms[M + s], terms[E + s], terms[K + s] = m, e, FINITE
                return
        negative, m, e, sticky = sum_of_two(
            terms[H + s], terms[M + s], terms[E + s], terms[H + t], terms[M + t], terms[E + t]
        )
    else:
        negative, m, e, sticky = _NO, _0, _0, _NO
    terms[H + s] = 0
    if m == 0:
        terms[M + s], terms[E + s] = 0, 0
        terms[K + s] = NEGATIVE_ZERO if p[ZEROS] == IEEE and kinds == NEGATIVE_ZERO else POSITIVE_ZERO
    elif p[FRACTION_BITS] >= 0:
        q = e + bit_length(m) - 1 - p[FRACTION_BITS]
        if q > e or sticky:
            m = units_of(negative, m, e, sticky, q, p[ALIGNMENT])
            e = q
        terms[M + s], terms[E + s], terms[K + s] = -m if negative else m, e, FINITE
    else:
        _put(finish_sums(p, negative, m, e, sticky), s, terms)


@device
def _put(x, s, terms):
    """A float as term s."""
    m, e = decoded(x, FRACTION_64, MINEXP_64, KEEP)
    terms[K + s] = kind_of(x)
    terms[H + s] = 0
    if terms[K + s] == FINITE:  # as few bits as there are, so that sums are short
        right = trailing_zeros(m)
        terms[M + s], terms[E + s] = m >> right, e - 52 + right
    else:
        terms[M + s], terms[E + s] = 0, 0


@device
def _collapsed(p, s, alone, terms):
    """Term s as a value of the accumulator."""
    keep_apart()
    kind = terms[K + s]
    if kind & 7:
        return np.nan if kind == NAN_TERM else (np.inf if kind == PLUS_INFINITY else -np.inf)
    if kind != FINITE:
        return zero_sum(p, kind) if alone else (-0.0 if kind == NEGATIVE_ZERO else 0.0)
    if not alone and p[FRACTION_BITS] < 0 and p[SUMS_FRACTION] <= 52:  # it is one
        return to_float(terms[M + s] < 0, abs(terms[M + s]), terms[E + s])
    negative, m, e, sticky = sum_of_two(terms[H + s], terms[M + s], terms[E + s], _0, _0, terms[E + s])
    return finish_sums(p, negative, m, e, sticky)


@device
def one_by_one(p, present, total, count, terms):
    """A sequential block: the running sum is term s, and in registers as long as sums are short."""
    keep_apart()
    s, t = (count, _0) if present else (_0, _1)
    if present:
        _put(total, s, terms)
    bits, minexp, maxexp, mode = _partial_format(p)
    while t < count:
        before = t
        m, e = terms[M + s], terms[E + s]
        short = terms[K + s] & 7 == 0 and terms[H + s] == 0
        while short and t < count:
            short = terms[K + t] & 7 == 0 and terms[H + t] == 0
            if short:
                short, m, e = _short_sum(bits, minexp, maxexp, mode, m, e, terms[M + t], terms[E + t])
            t += short
        if t > before:
            terms[M + s], terms[E + s], terms[K + s] = m, e, FINITE
        if t < count:
            _partial(p, s, t, terms)
            t += 1
    return _collapsed(p, s, not present and count == 1, terms)


@device
def tree_sum(p, count, terms):
    """A pairwise block: neighbours, then pairs; an odd one waits."""
    keep_apart()
    step = 1
    while step < count:
        for t in range(0, count - step, 2 * step):
            _partial(p, t, t + step, terms)
        step *= 2
    return _collapsed(p, _0, count == 1, terms)
