"""The products of a block in `dot_model`, as terms."""

import numpy as np

from prismm.core.jit import device
from prismm.core.limbs import bit_length, keep_apart, units_of
from prismm.numerics.kernels.dot_parameters import (
    ASCENDING,
    FILLED,
    FINITE,
    FLUSH,
    FLUSH_PRODUCTS,
    INPUT_FRACTION,
    INPUT_WIDE,
    KEEP,
    MINUS,
    MINUS_INFINITY,
    NAN,
    NAN_TERM,
    NEGATIVE_ZERO,
    NO_SCALE,
    NORMALISED,
    PAIRWISE,
    PLUS_INFINITY,
    POSITIVE_ZERO,
    PRODUCT_INFINITY,
    PRODUCT_ROUNDING,
    SATURATE,
    SCALE,
    SCALE_LENGTH,
    SPECIAL,
    SUMMATION,
    SUMS_FRACTION,
    SUMS_MAXEXP,
    SUMS_MINEXP,
    TERMS,
    WIDTH,
    A,
    E,
    G,
    H,
    K,
    M,
)

_0, _1, _NO = np.int64(0), np.int64(1), np.bool_(False)


@device
def products_of(p, order, first, count, base, filled, most, a, b, terms):
    """The products of a block as terms; returns the set of their kinds, and how many terms there are.

    Those from `filled` on are +0 and are not read; of such as follow each other there are `most` at most.
    """
    keep_apart()
    kinds, t, zeros = _0, _0, _0
    # Parameters are read once: for all that LLVM knows, a store to the terms could change them.
    fraction, width, wide, scale = p[INPUT_FRACTION], p[WIDTH], p[INPUT_WIDE], p[SCALE]
    rounding, infinity, flush, normalised = p[PRODUCT_ROUNDING], p[PRODUCT_INFINITY], p[FLUSH_PRODUCTS], p[NORMALISED]
    sums_fraction, sums_minexp, sums_maxexp = p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP]
    narrow, by_value = not wide and scale == NO_SCALE, normalised or rounding >= 0
    ends = infinity or flush != KEEP
    for place in range(first, first + count):
        i = base + order[place]
        zeros = zeros + 1 if i >= filled else _0
        if zeros > most:
            continue
        if zeros > 0:
            terms[M + t], terms[H + t], terms[E + t], terms[A + t], terms[K + t] = 0, 0, 0, 0, POSITIVE_ZERO
            kinds |= POSITIVE_ZERO
            t += 1
            continue
        x, ex, y, ey = a[i], a[width + i], b[i], b[width + i]
        es = ex + ey
        m = x * y
        e = es - 2 * fraction
        binade = e + bit_length(abs(m)) - 1
        # Nothing to round: all bits are within the running sums' format, or products are exact.
        whole = m == 0 or (max(binade, sums_minexp) - sums_fraction <= e and binade < sums_maxexp)
        if narrow and es <= SPECIAL and (rounding < 0 or whole):
            kind = FINITE
            if m == 0:
                minus = (x < 0 or (x == 0 and ex == MINUS)) != (y < 0 or (y == 0 and ey == MINUS))
                kind = NEGATIVE_ZERO if minus else POSITIVE_ZERO
            elif ends:
                if infinity and binade >= sums_maxexp:
                    kind = MINUS_INFINITY if m < 0 else PLUS_INFINITY
                elif flush != KEEP and binade < sums_minexp:
                    kind = NEGATIVE_ZERO if m < 0 and flush == FLUSH else POSITIVE_ZERO
                    m = _0
            terms[M + t], terms[H + t], terms[E + t], terms[K + t] = m, 0, e, kind
            terms[A + t] = binade if by_value else es
            kinds |= kind
            t += 1
            continue
        negative = (x < 0 or (x == 0 and ex == MINUS)) != (y < 0 or (y == 0 and ey == MINUS))
        h = _0
        m = _0
        e = _0
        if es > SPECIAL:
            invalid = ex >= NAN or ey >= NAN or x == 0 or y == 0
            kind = NAN_TERM if invalid else MINUS_INFINITY if negative else PLUS_INFINITY
        elif x == 0 or y == 0:
            kind = NEGATIVE_ZERO if negative else POSITIVE_ZERO
        else:
            kind = FINITE
            e = es - 2 * fraction
            m, n = abs(x), abs(y)
            if wide:
                m1, m0, n1, n0 = m >> 27, m & 0x7FFFFFF, n >> 27, n & 0x7FFFFFF
                low = m0 * n0
                mid = m1 * n0 + m0 * n1 + (low >> 27)
                m = ((mid & 0x7FFFFFF) << 27) | (low & 0x7FFFFFF)
                h = m1 * n1 + (mid >> 27)
                if m == 0:
                    m, h, e = h, _0, e + 54
            else:
                m *= n
            binade = e + (bit_length(h) + 53 if h != 0 else bit_length(m) - 1)
            if infinity and binade >= sums_maxexp:
                kind = MINUS_INFINITY if negative else PLUS_INFINITY
            elif rounding >= 0:
                sticky = _NO
                if h != 0:
                    right = bit_length(h) - 8
                    if right > 0:
                        sticky = m & ((_1 << right) - 1) != 0
                        m = (h << (54 - right)) | (m >> right)
                        e += right
                    else:
                        m |= h << 54
                    h = _0
                q = max(binade, sums_minexp) - sums_fraction
                m = units_of(negative, m, e, sticky, q, rounding)
                e = q
                if m == 0:
                    kind = NEGATIVE_ZERO if negative else POSITIVE_ZERO
                elif bit_length(m) + q > sums_maxexp:
                    kind = MINUS_INFINITY if negative else PLUS_INFINITY
                    if p[SATURATE]:
                        kind = FINITE
                        m = (_1 << (sums_fraction + 1)) - 1
                        e = sums_maxexp - sums_fraction - 1
                elif flush != KEEP and bit_length(m) + q <= sums_minexp:
                    kind = NEGATIVE_ZERO if negative and flush == FLUSH else POSITIVE_ZERO
                    m = _0
                es = e + bit_length(m) - 1
            else:
                if flush != KEEP and binade < sums_minexp:
                    kind = NEGATIVE_ZERO if negative and flush == FLUSH else POSITIVE_ZERO
                    m, h = _0, _0
                elif normalised:
                    es = binade
        if scale != NO_SCALE:
            g = i // p[SCALE_LENGTH]
            terms[G + t] = g
            if scale == TERMS:
                u = 2 * (width + g)
                if a[u] < 0 or b[u] < 0:
                    kind = NAN_TERM
                elif kind == FINITE:
                    shift = a[u + 1] + b[u + 1]
                    e += shift
                    es += shift
        terms[M + t] = -m if negative else m
        terms[H + t] = -h if negative else h
        terms[E + t] = e
        terms[A + t] = es
        terms[K + t] = kind
        kinds |= kind
        t += 1
    return kinds, t


@device
def last_place(p, order, first, count, base):
    """How many of a block's products there are up to the last one that is given."""
    filled = p[FILLED]
    if p[ASCENDING]:
        return min(max(filled - base - first, _0), count)
    last = count
    while last > 0 and base + order[first + last - 1] >= filled:
        last -= 1
    return last


@device
def enough(p, count, last):
    """How many of a block's terms show all that they do together: the zeros behind the last product change nothing but
    the first time, when they round, and the second time, when they turn -0 into +0. In a tree the first time is the
    whole of the products' own tree.
    """
    if p[SUMMATION] == PAIRWISE:
        return min(count, (_1 << bit_length(last - 1)) + 1 if last > 1 else last + 2)
    return min(count, last + 2)
