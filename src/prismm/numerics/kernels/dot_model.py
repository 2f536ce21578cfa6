"""Dot products on any `EngineModel`: one kernel that reads the model from an array of parameters.

What it computes is specified by `numerics.specification`; this is the same, bit for bit. Operands are decoded once
(`decode_rows`) into integer significands and exponents, so that a product is one multiplication of integers. An aligned
block then takes two passes over its products: the largest exponent; shifts and sums in int64 (at most 257 terms of 51
bits). Sums without loss stay in int64 where their span is short, else they are made in limbs; sums of two numbers take
124 bits. Measured on one core (Xeon at 2.5 GHz), in ns a product: aligned 3 in blocks of 32 and 8 in blocks of 8
(toward zero, else twice that), exact 6 to 50, one by one 45, in pairs 90; most of it is the rounding of every sum.

An operand is a row of int64: significands of its elements, then their exponents, then (significand, exponent) of every
group's block scale. A decoded number is (m, e): its value is m·2^(e - fraction_bits of its format), and e is
max(floor(log2|x|), minexp). Zeros have m = 0 and e = 0 or MINUS; infinities m = ±1 and e = INFINITY; NaN e = NAN. A
scale that is NaN has m = -1.
"""

import numpy as np

from prismm.core.jit import bits_of, device, kernel, trailing_zeros
from prismm.core.limbs import (
    BASE,
    FLOOR,
    LIMBS,
    add,
    bit_length,
    carry,
    clear,
    keep_apart,
    leading,
    settle,
    to_float,
    units_of,
)
from prismm.core.pointers import pointer

# Constants that helpers take: with Python's own types Numba would compile a helper once more for each of them.
_0, _1, _52, _MINUS_1022 = (np.int64(x) for x in (0, 1, 52, -1022))
_NO = np.bool_(False)
_MASK = np.int64((1 << 62) - 1)
_FIRST, _LAST = np.int64(LIMBS), np.int64(0)

MINUS = -4096
INFINITY = 1 << 20
NAN = 1 << 22
_SPECIAL = 1 << 18
NONE = -(1 << 24)
ALL = 1 << 62

# Indices of parameters.
SUMMATION, JOIN, BLOCK, DEPTH, SEQUENCES, INPUT_FRACTION, INPUT_WIDE = range(7)
SUMS_FRACTION, SUMS_MINEXP, SUMS_MAXEXP, OUT_FRACTION, OUT_MINEXP, OUT_MAXEXP = range(7, 13)
PRODUCT_ROUNDING, PRODUCT_INFINITY, NORMALISED, FRACTION_BITS, CARRY_BITS, ALIGNMENT, ZERO_EXPONENT = range(13, 20)
ROUNDING, LAST_ROUNDING, SATURATE, FLUSH_C, FLUSH_PRODUCTS, FLUSH_OUTPUTS, ZEROS, CONVERTS = range(20, 28)
LATE_SUM, LATE_C, LATE_TOTAL, LATE_CUTOFF, SCALE, SCALE_LENGTH, LOWEST, HIGHEST, PLAIN = range(28, 37)
WIDTH, SCALE_BITS, LENGTH, FLUSH_INPUTS, ASCENDING, FILLED = range(37, 43)
PARAMETERS = 43

ALIGNED, EXACT, SEQUENTIAL, PAIRWISE, INTEGER = range(5)
INSIDE, AFTER, LATE = range(3)
KEEP, FLUSH, FLUSH_TO_POSITIVE = np.arange(3)
IEEE, POSITIVE, UNSIGNED = range(3)
NO_SCALE, TERMS, GROUPS = range(3)

_ROW = 264
M, H, E, A, K, G, F, U = (_ROW * i for i in range(8))
T = U + 4096
"""Where the terms of a block have their significands (signed), what of them stands above 2^54, exponents of their last
bits and of alignment, kinds, groups of scales, the factors' significands; sums of groups and their exponents (late
joins)."""

# Kinds of terms, as bits of a set.
_NAN, _PLUS, _MINUS, _FINITE, _POSITIVE_ZERO, _NEGATIVE_ZERO = 1, 2, 4, 8, 16, 32


@device
def _decoded(x, fraction, minexp, flush):
    """(m, e) of a value; m = 0 and e = 0 for one that the format is too narrow for. See the module."""
    bits = bits_of(x)
    field = (bits >> 52) & 2047
    significand = bits & 0xFFFFFFFFFFFFF
    if field == 2047:
        return np.int64(-1 if bits < 0 else 1), np.int64(INFINITY if significand == 0 else NAN)
    if field == 0:
        e53 = np.int64(-1074)
    else:
        significand |= _1 << 52
        e53 = field - 1075
    e = max(field - 1023, minexp)
    m = _0
    if significand != 0 and not (flush != KEEP and field - 1023 < minexp):
        m = significand >> min(e - fraction - e53, 63)
    if m == 0:
        return m, np.int64(MINUS if bits < 0 and (significand == 0 or flush != FLUSH_TO_POSITIVE) else 0)
    return -m if bits < 0 else m, e


@kernel("int64(float64[:,::1], int64, int64, float64, int64, int64, int64, int64, int64[:,::1])")
def decode_rows(x, fraction, minexp, largest, infinities, nans, flush, width, out):
    """Decode rows: significands from column 0, exponents from column `width` on, zeros up to there. Returns how many
    values are foreign to the format.
    """
    foreign = 0
    drop = 52 - fraction
    for i in range(x.shape[0]):
        for h in range(x.shape[1]):
            v = x[i, h]
            bits = bits_of(v)
            field = (bits >> 52) & 0x7FF
            if minexp <= field - 1023 < 1024:  # normal
                significand = (bits & 0xFFFFFFFFFFFFF) | (_1 << 52)
                m, e = significand >> drop, field - 1023
                foreign += (m << drop != significand) | (abs(v) > largest)
                out[i, h] = -m if bits < 0 else m
                out[i, width + h] = e
                continue
            m, e = _decoded(v, fraction, minexp, KEEP)
            if e >= INFINITY:
                foreign += (infinities if e == INFINITY else nans) == 0
            else:
                back = to_float(m < 0, abs(m), e - fraction) if m != 0 else 0.0
                foreign += (back != v) | (abs(v) > largest)
                if flush != KEEP and abs(m) >> fraction == 0:
                    m, e = _decoded(v, fraction, minexp, flush)
            out[i, h] = m
            out[i, width + h] = e
        for h in range(x.shape[1], width):
            out[i, h] = 0
            out[i, width + h] = 0
    return foreign


@device
def _special(kinds):
    """Whether a sum of terms of these kinds is NaN or infinite, and what it is."""
    if kinds & 7 == 0:
        return False, 0.0
    if kinds & _NAN or kinds & 6 == 6:
        return True, np.nan
    return True, np.inf if kinds & _PLUS else -np.inf


@device
def _kind(x):
    if x != x:
        return _NAN
    if x == 0.0:
        return _NEGATIVE_ZERO if bits_of(x) < 0 else _POSITIVE_ZERO
    if abs(x) == np.inf:
        return _PLUS if x > 0.0 else _MINUS
    return _FINITE


@device
def _zero(p, kinds):
    """The exact sum 0 of terms of these kinds."""
    return -0.0 if p[ZEROS] == IEEE and kinds == _NEGATIVE_ZERO else 0.0


@device
def _flushed(x, smallest_exponent, policy):
    """x, or a zero for it below 2^smallest_exponent."""
    if policy == KEEP or x == 0.0 or not abs(x) < to_float(_NO, _1, smallest_exponent):
        return x
    return 0.0 if policy == FLUSH_TO_POSITIVE or x > 0.0 else -0.0


@device
def _finish(p, negative, m, e, sticky, fraction, minexp, maxexp, mode):
    """The sum ± m·2^e, not 0, rounded to a format, with the model's overflow, flushing and zeros."""
    keep_apart()
    q = max(e + bit_length(m) - 1, minexp) - fraction
    units = units_of(negative, m, e, sticky, q, mode)
    if units == 0:
        x = -0.0 if negative else 0.0
    elif bit_length(units) + q > maxexp:
        x = np.inf
        if p[SATURATE]:
            x = to_float(_NO, (_1 << (fraction + 1)) - 1, maxexp - fraction - 1)
        x = -x if negative else x
    else:
        x = to_float(negative, units, q)
        x = _flushed(x, minexp, p[FLUSH_OUTPUTS])
    return x + 0.0 if p[ZEROS] == UNSIGNED else x


@device
def _finish_sums(p, negative, m, e, sticky):
    return _finish(p, negative, m, e, sticky, p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING])


@device
def _finish_output(p, negative, m, e, sticky):
    return _finish(p, negative, m, e, sticky, p[OUT_FRACTION], p[OUT_MINEXP], p[OUT_MAXEXP], p[LAST_ROUNDING])


@device
def _add_wide(limbs, h, m, e):
    """h·2^(e+54) + m·2^e into the limbs; the lowest and the highest index."""
    lo = add(limbs, m < 0, abs(m), e)
    hi = lo + 2
    if h != 0:
        hi = add(limbs, h < 0, abs(h), e + 54) + 2
    return lo, hi


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
def _sum_of_two(h1, m1, e1, h2, m2, e2):
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
def _two_floats(p, x, y, fraction, minexp, maxexp, mode):
    """x + y, rounded once."""
    keep_apart()
    kinds = _kind(x) | _kind(y)
    found, special = _special(kinds)
    if found:
        return special
    m1, e1 = _decoded(x, _52, _MINUS_1022, KEEP)
    m2, e2 = _decoded(y, _52, _MINUS_1022, KEEP)
    negative, m, e, sticky = _sum_of_two(_0, m1, e1 - 52, _0, m2, e2 - 52)
    if m == 0:
        return _zero(p, kinds)
    return _finish(p, negative, m, e, sticky, fraction, minexp, maxexp, mode)


@device
def _products(p, order, first, count, base, filled, most, a, b, terms):
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
            terms[M + t], terms[H + t], terms[E + t], terms[A + t], terms[K + t] = 0, 0, 0, 0, _POSITIVE_ZERO
            kinds |= _POSITIVE_ZERO
            t += 1
            continue
        x, ex, y, ey = a[i], a[width + i], b[i], b[width + i]
        es = ex + ey
        m = x * y
        e = es - 2 * fraction
        binade = e + bit_length(abs(m)) - 1
        # Nothing to round: all bits are within the running sums' format, or products are exact.
        whole = m == 0 or (max(binade, sums_minexp) - sums_fraction <= e and binade < sums_maxexp)
        if narrow and es <= _SPECIAL and (rounding < 0 or whole):
            kind = _FINITE
            if m == 0:
                minus = (x < 0 or (x == 0 and ex == MINUS)) != (y < 0 or (y == 0 and ey == MINUS))
                kind = _NEGATIVE_ZERO if minus else _POSITIVE_ZERO
            elif ends:
                if infinity and binade >= sums_maxexp:
                    kind = _MINUS if m < 0 else _PLUS
                elif flush != KEEP and binade < sums_minexp:
                    kind = _NEGATIVE_ZERO if m < 0 and flush == FLUSH else _POSITIVE_ZERO
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
        if es > _SPECIAL:
            invalid = ex >= NAN or ey >= NAN or x == 0 or y == 0
            kind = _NAN if invalid else _MINUS if negative else _PLUS
        elif x == 0 or y == 0:
            kind = _NEGATIVE_ZERO if negative else _POSITIVE_ZERO
        else:
            kind = _FINITE
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
                kind = _MINUS if negative else _PLUS
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
                    kind = _NEGATIVE_ZERO if negative else _POSITIVE_ZERO
                elif bit_length(m) + q > sums_maxexp:
                    kind = _MINUS if negative else _PLUS
                    if p[SATURATE]:
                        kind = _FINITE
                        m = (_1 << (sums_fraction + 1)) - 1
                        e = sums_maxexp - sums_fraction - 1
                elif flush != KEEP and bit_length(m) + q <= sums_minexp:
                    kind = _NEGATIVE_ZERO if negative and flush == FLUSH else _POSITIVE_ZERO
                    m = _0
                es = e + bit_length(m) - 1
            else:
                if flush != KEEP and binade < sums_minexp:
                    kind = _NEGATIVE_ZERO if negative and flush == FLUSH else _POSITIVE_ZERO
                    m, h = _0, _0
                elif normalised:
                    es = binade
        if scale != NO_SCALE:
            g = i // p[SCALE_LENGTH]
            terms[G + t] = g
            if scale == TERMS:
                u = 2 * (width + g)
                if a[u] < 0 or b[u] < 0:
                    kind = _NAN
                elif kind == _FINITE:
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
def _last(p, order, first, count, base):
    """How many of a block's products there are up to the last one that is given."""
    filled = p[FILLED]
    if p[ASCENDING]:
        return min(max(filled - base - first, _0), count)
    last = count
    while last > 0 and base + order[first + last - 1] >= filled:
        last -= 1
    return last


@device
def _enough(p, count, last):
    """How many of a block's terms show all that they do together: the zeros behind the last product change nothing but
    the first time, when they round, and the second time, when they turn -0 into +0. In a tree the first time is the
    whole of the products' own tree.
    """
    if p[SUMMATION] == PAIRWISE:
        return min(count, (_1 << bit_length(last - 1)) + 1 if last > 1 else last + 2)
    return min(count, last + 2)


@device
def _scaled_groups(p, count, a, b, terms):
    """Of groups that share a factor: its significand for each term, their exponent of alignment; the kinds of the
    groups' sums, each of which counts as one term.
    """
    keep_apart()
    kinds = _0
    for t in range(count):
        terms[F + t] = 0
    for t in range(count):
        if terms[F + t] != 0:
            continue
        g = terms[G + t]
        inner = _0
        for s in range(t, count):
            if terms[G + s] == g:
                inner |= terms[K + s]
                terms[F + s] = 1
        u = 2 * (p[WIDTH] + g)
        significand = a[u] * b[u]
        exponent = a[u + 1] + b[u + 1]
        kind = _FINITE
        if a[u] < 0 or b[u] < 0:
            kind = _NAN
        elif inner & 7:
            _, special = _special(inner)
            kind = _kind(special)
        elif significand == 0 or inner & _FINITE == 0:
            kind = _POSITIVE_ZERO
        kinds |= kind
        for s in range(t, count):
            if terms[G + s] == g:
                if kind != _FINITE:
                    terms[K + s] = kind
                    terms[M + s] = 0
                else:
                    # Zeros of a group that counts take its exponent, too.
                    terms[K + s] = _FINITE
                    terms[F + s] = significand
                    terms[E + s] += exponent - p[SCALE_BITS]
                    terms[A + s] = exponent
    return kinds


@device
def _wrapped(total, width):
    """The low bits of an integer, in two's complement."""
    return (total << (64 - width)) >> (64 - width) if width < 64 else total


@device
def _cut_groups(p, count, quantum, terms, limbs):
    """The block's sum in units of 2^quantum, where every group is summed without loss, then cut off."""
    keep_apart()
    first, last = _FIRST, _LAST
    one = quantum + BASE >> 5
    for t in range(count):
        if terms[K + t] != _FINITE or terms[F + t] == 0:
            continue
        g = terms[G + t]
        lo, hi = 2 * _FIRST, _LAST
        for s in range(t, count):
            if terms[G + s] == g:
                if terms[M + s] != 0:
                    i = add(limbs, terms[M + s] < 0, abs(terms[M + s]) * terms[F + s], terms[E + s] + 32 * LIMBS)
                    lo, hi = min(lo, i), max(hi, i + 2)
                terms[F + s] = 0
        if hi == 0:
            continue
        negative = settle(limbs, lo, hi)
        lost = False
        for i in range(lo, hi + 2):
            e = 32 * (i - LIMBS) - BASE
            v = limbs[i]
            if v == 0:
                continue
            if e < quantum:
                right = min(quantum - e, 63)
                lost |= v & ((_1 << right) - 1) != 0
                v >>= right
                e = quantum
            if v != 0:
                j = add(limbs, negative, v, e)
                first, last = min(first, j), max(last, j + 2)
        if lost and negative and p[ALIGNMENT] == FLOOR:
            j = add(limbs, not _NO, _1, quantum)
            first, last = min(first, j), max(last, j + 2)
        clear(limbs, lo, hi)
    return min(first, one), max(last, one + 2)


@device
def _window(limbs, lo, hi, quantum, width):
    """Bits from 2^quantum on of a sum in two's complement, which is cleared; lo is at most quantum's limb."""
    keep_apart()
    carry(limbs, lo, hi)
    i, offset = (quantum + BASE) >> 5, (quantum + BASE) & 31
    value = limbs[i] >> offset
    for j in range(1, 3):
        if i + j <= hi + 1 and 32 * j - offset < 64:  # limb hi + 1 has the sign of all bits above
            value += limbs[i + j] << (32 * j - offset)
    clear(limbs, lo, hi)
    return _wrapped(value, width)


@device
def _aligned(p, present, total, fraction, minexp, count, kinds, a, b, terms, limbs):
    """One block, aligned and cut off; `total` is a value of the format (fraction, minexp), if present."""
    keep_apart()
    cm, ce = _0, _0
    if p[SCALE] >= GROUPS:
        kinds = _scaled_groups(p, count, a, b, terms)
    if present:
        kinds |= _kind(total)
        cm, ce = _decoded(total, fraction, minexp, KEEP)
    found, special = _special(kinds)
    if found:
        return special
    if kinds & _FINITE == 0:
        return _zero(p, kinds)
    largest = np.int64(NONE)
    for t in range(count):
        largest = max(largest, terms[A + t] if terms[K + t] == _FINITE else np.int64(NONE))
    largest = max(largest, ce) if cm != 0 else max(largest, p[ZERO_EXPONENT])
    quantum = largest - p[FRACTION_BITS]
    width = np.int64(64)
    if p[CARRY_BITS] >= 0:
        width = p[FRACTION_BITS] + 3 + p[CARRY_BITS]
    units = _0
    if cm != 0:
        units = _shifted(cm, ce - fraction - quantum, p[ALIGNMENT])
    if p[SCALE] >= GROUPS:
        lo, hi = _cut_groups(p, count, quantum, terms, limbs)
        j = add(limbs, units < 0, abs(units), quantum)
        lo, hi = min(lo, j), max(hi, j + 2)
        if width < 64:
            units = _window(limbs, lo, hi, quantum, width)
        else:
            negative = settle(limbs, lo, hi)
            m, e, sticky = leading(limbs, lo, hi)
            clear(limbs, lo, hi)
            return _finish_sums(p, negative, m, e, sticky) if m != 0 else 0.0
    else:
        to_floor = p[ALIGNMENT] == FLOOR
        for t in range(count):
            units += _moved_by(terms[M + t], terms[E + t] - quantum, to_floor)
        units = _wrapped(units, width)
    if units == 0:
        return 0.0
    return _finish_sums(p, units < 0, abs(units), quantum, _NO)


@device
def _moved_by(m, left, to_floor):
    """`_shifted`, without branches on data."""
    left = min(max(left, -63), 63)
    if to_floor:
        return (m << max(left, 0)) >> max(-left, 0)
    size = (abs(m) << max(left, 0)) >> max(-left, 0)
    return -size if m < 0 else size


@device
def _shifted(m, left, mode):
    """m·2^left as an integer, cut off to the floor or toward zero."""
    if left >= 0:
        return m << left
    right = min(-left, 63)
    if mode == FLOOR:
        return m >> right
    return -(-m >> right) if m < 0 else m >> right


@device
def _exact(p, present, total, count, kinds, terms, limbs):
    """One block without loss, rounded once."""
    keep_apart()
    if present:
        kinds |= _kind(total)
    found, special = _special(kinds)
    if found:
        return special
    if kinds & _FINITE == 0:
        return _zero(p, kinds)
    if present:
        cm, ce = _decoded(total, _52, _MINUS_1022, KEEP)
        terms[M + count], terms[H + count], terms[E + count] = cm, 0, ce - 52
        if count == 1:
            negative, m, e, sticky = _sum_of_two(
                terms[H + 0], terms[M + 0], terms[E + 0], terms[H + 1], terms[M + 1], terms[E + 1]
            )
            return _finish_sums(p, negative, m, e, sticky) if m != 0 else 0.0
        count += 1
    lowest, highest = np.int64(1 << 20), np.int64(NONE)
    wide = _0
    for t in range(count):
        if terms[M + t] != 0:
            lowest = min(lowest, terms[E + t])
            highest = max(highest, terms[E + t] + bit_length(abs(terms[M + t])))
        wide |= terms[H + t]
    if wide == 0 and highest - lowest <= 61 - bit_length(count):
        s = _0
        for t in range(count):
            if terms[M + t] != 0:
                s += terms[M + t] << (terms[E + t] - lowest)
        if s == 0:
            return 0.0
        return _finish_sums(p, s < 0, abs(s), lowest, _NO)
    lo, hi = _FIRST, _LAST
    for t in range(count):
        if terms[M + t] != 0 or terms[H + t] != 0:
            i, j = _add_wide(limbs, terms[H + t], terms[M + t], terms[E + t])
            lo, hi = min(lo, i), max(hi, j)
    negative = settle(limbs, lo, hi)
    m, e, sticky = leading(limbs, lo, hi)
    clear(limbs, lo, hi)
    return _finish_sums(p, negative, m, e, sticky) if m != 0 else 0.0


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
    else:  # see `_sum_of_two`
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
        terms[K + s] = _NAN if kinds & _NAN or kinds & 6 == 6 else kinds & 7
        terms[M + s], terms[H + s] = 0, 0
        return
    if kinds & _FINITE:
        if terms[H + s] == 0 and terms[H + t] == 0:
            bits, minexp, maxexp, mode = _partial_format(p)
            done, m, e = _short_sum(bits, minexp, maxexp, mode, terms[M + s], terms[E + s], terms[M + t], terms[E + t])
            if done:
                terms[M + s], terms[E + s], terms[K + s] = m, e, _FINITE
                return
        negative, m, e, sticky = _sum_of_two(
            terms[H + s], terms[M + s], terms[E + s], terms[H + t], terms[M + t], terms[E + t]
        )
    else:
        negative, m, e, sticky = _NO, _0, _0, _NO
    terms[H + s] = 0
    if m == 0:
        terms[M + s], terms[E + s] = 0, 0
        terms[K + s] = _NEGATIVE_ZERO if p[ZEROS] == IEEE and kinds == _NEGATIVE_ZERO else _POSITIVE_ZERO
    elif p[FRACTION_BITS] >= 0:
        q = e + bit_length(m) - 1 - p[FRACTION_BITS]
        if q > e or sticky:
            m = units_of(negative, m, e, sticky, q, p[ALIGNMENT])
            e = q
        terms[M + s], terms[E + s], terms[K + s] = -m if negative else m, e, _FINITE
    else:
        _put(_finish_sums(p, negative, m, e, sticky), s, terms)


@device
def _put(x, s, terms):
    """A float as term s."""
    m, e = _decoded(x, _52, _MINUS_1022, KEEP)
    terms[K + s] = _kind(x)
    terms[H + s] = 0
    if terms[K + s] == _FINITE:  # as few bits as there are, so that sums are short
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
        return np.nan if kind == _NAN else (np.inf if kind == _PLUS else -np.inf)
    if kind != _FINITE:
        return _zero(p, kind) if alone else (-0.0 if kind == _NEGATIVE_ZERO else 0.0)
    if not alone and p[FRACTION_BITS] < 0 and p[SUMS_FRACTION] <= 52:  # it is one
        return to_float(terms[M + s] < 0, abs(terms[M + s]), terms[E + s])
    negative, m, e, sticky = _sum_of_two(terms[H + s], terms[M + s], terms[E + s], _0, _0, terms[E + s])
    return _finish_sums(p, negative, m, e, sticky)


@device
def _one_by_one(p, present, total, count, terms):
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
            terms[M + s], terms[E + s], terms[K + s] = m, e, _FINITE
        if t < count:
            _partial(p, s, t, terms)
            t += 1
    return _collapsed(p, s, not present and count == 1, terms)


@device
def _tree(p, count, terms):
    """A pairwise block: neighbours, then pairs; an odd one waits."""
    keep_apart()
    step = 1
    while step < count:
        for t in range(0, count - step, 2 * step):
            _partial(p, t, t + step, terms)
        step *= 2
    return _collapsed(p, _0, count == 1, terms)


@device
def _late_rounded(p, negative, m, e, sticky):
    """The sum of products and c, cut off after `total_bits`, then rounded."""
    q = e + bit_length(m) - 1 - p[LATE_TOTAL]
    if q > e:
        m = units_of(negative, m, e, sticky, q, FLOOR)
        e = q
    return _finish(p, negative, m, e, _NO, p[OUT_FRACTION], p[OUT_MINEXP], p[OUT_MAXEXP], p[ROUNDING])


@device
def _late(p, order, base, c, a, b, terms, limbs):
    """An instruction whose c joins the unrounded sum of its products."""
    keep_apart()
    kinds = _kind(c)
    block = p[BLOCK]
    f = p[FRACTION_BITS]
    filled = p[FILLED]
    largest = np.int64(NONE)
    for s in range(p[SEQUENCES]):
        inner, count = _products(p, order, s * block, block, base, filled, _1, a, b, terms)
        kinds |= inner
        top = p[ZERO_EXPONENT]
        for t in range(count):
            if terms[K + t] == _FINITE:
                top = max(top, terms[A + t])
        units = _0
        if top != NONE:
            for t in range(count):
                if terms[M + t] != 0:
                    units += _shifted(terms[M + t], terms[E + t] - top + f, p[ALIGNMENT])
            if p[CARRY_BITS] >= 0:
                units = _wrapped(units, f + 3 + p[CARRY_BITS])
        terms[U + s], terms[T + s] = units, top
        largest = max(largest, top)
    found, special = _special(kinds)
    if found:
        return special
    m, e = _decoded(c, p[OUT_FRACTION], p[OUT_MINEXP], KEEP)
    if largest == NONE and m == 0:
        return _zero(p, kinds)
    total = _0
    for s in range(p[SEQUENCES]):
        if terms[U + s] != 0:
            total += _shifted(terms[U + s], terms[T + s] - largest, FLOOR)
    top = largest if m == 0 else max(largest, e)
    if p[LATE_CUTOFF] >= 0 and m != 0 and e < top - p[LATE_CUTOFF]:
        m = _0
    unit = largest - f
    if total != 0 and top - p[LATE_SUM] > unit:
        total = _shifted(total, unit - top + p[LATE_SUM], FLOOR)
        unit = top - p[LATE_SUM]
    e -= p[OUT_FRACTION]
    if m != 0 and top - p[LATE_C] > e:
        m = _shifted(m, e - top + p[LATE_C], FLOOR)
        e = top - p[LATE_C]
    if total == 0 and m == 0:
        return 0.0
    # A shift within int64 is the usual case; a difference of exponents beyond it needs the limbs.
    low = min(unit if total != 0 else e, e if m != 0 else unit)
    size = max(
        bit_length(abs(total)) + unit - low if total != 0 else _0, bit_length(abs(m)) + e - low if m != 0 else _0
    )
    if size <= 60:
        s = (total << (unit - low) if total != 0 else _0) + (m << (e - low) if m != 0 else _0)
        return _late_rounded(p, s < 0, abs(s), low, _NO) if s != 0 else 0.0
    lo, hi = _FIRST, _LAST
    if total != 0:
        i = add(limbs, total < 0, abs(total), unit)
        lo, hi = i, i + 2
    if m != 0:
        i = add(limbs, m < 0, abs(m), e)
        lo, hi = min(lo, i), max(hi, i + 2)
    negative = settle(limbs, lo, hi)
    m, e, sticky = leading(limbs, lo, hi)
    clear(limbs, lo, hi)
    if m == 0:
        return 0.0
    return _late_rounded(p, negative, m, e, sticky)


@device
def _converted(p, x):
    """A running sum in the output format."""
    keep_apart()
    if p[CONVERTS] == 0 or x == 0.0 or not abs(x) < np.inf:
        return x
    m, e = _decoded(x, _52, _MINUS_1022, KEEP)
    return _finish_output(p, m < 0, abs(m), e - 52, _NO)


@device
def _plain_block(p, order, total, fraction, minexp, first, count, base, a, b, terms):
    """(whether it is done, d) of a block of exact products, aligned by their factors' exponents, with c inside; not
    done where there are infinities, NaN or nothing but zeros.
    """
    width, filled = p[WIDTH], p[FILLED]
    largest = np.int64(NONE)
    worst = np.int64(NONE)
    if p[ASCENDING]:
        at = base + first
        for t in range(count):
            m = a[at + t] * b[at + t]
            e = a[width + at + t] + b[width + at + t]
            terms[M + t] = m
            terms[A + t] = e
            worst = max(worst, e)
            largest = max(largest, e if m != 0 else np.int64(NONE))
    else:
        for t in range(count):
            i = base + order[first + t]
            m, e = _0, _0
            if i < filled:
                m, e = a[i] * b[i], a[width + i] + b[width + i]
            terms[M + t] = m
            terms[A + t] = e
            worst = max(worst, e)
            largest = max(largest, e if m != 0 else np.int64(NONE))
    cm, ce = _decoded(total, fraction, minexp, KEEP)
    if worst > _SPECIAL or ce >= INFINITY:
        return False, 0.0
    largest = max(largest, ce if cm != 0 else p[ZERO_EXPONENT])
    if largest == NONE or (cm == 0 and largest == p[ZERO_EXPONENT]):
        return False, 0.0
    shift = p[FRACTION_BITS] - largest - 2 * p[INPUT_FRACTION]
    to_floor = p[ALIGNMENT] == FLOOR
    units = _shifted(cm, ce - fraction - largest + p[FRACTION_BITS], p[ALIGNMENT]) if cm != 0 else _0
    for t in range(count):
        units += _moved_by(terms[M + t], terms[A + t] + shift, to_floor)
    if p[CARRY_BITS] >= 0:
        units = _wrapped(units, p[FRACTION_BITS] + 3 + p[CARRY_BITS])
    if units == 0:
        return True, 0.0
    return True, _finish_sums(p, units < 0, abs(units), largest - p[FRACTION_BITS], _NO)


@device
def _integers(p, total, base, a, b):
    """One instruction of an integer engine; products are split so that their sums stay in int64."""
    keep_apart()
    low, high = _0, _0
    for i in range(base, min(base + p[DEPTH], p[FILLED])):
        x, y = a[i], b[i]
        high += (x >> 16) * y
        low += (x & 0xFFFF) * y
    high += low >> 16
    low &= 0xFFFF
    lowest, highest = p[LOWEST], p[HIGHEST]
    if p[SATURATE]:
        if high >= _1 << 40:
            return highest
        if high < -(_1 << 40):
            return lowest
        return min(max((high << 16) + low + total, lowest), highest)
    span = highest - lowest + 1
    return (((high << 16) + low + total - lowest) & (span - 1)) + lowest


@device
def dot_of(p, order, a, b, d, k0, k1, terms, limbs):
    """d + row a times row b from k0 to k1, whole instructions; `order` as in `dots`."""
    keep_apart()
    if p[SUMMATION] == INTEGER:
        exact = np.int64(d)
        for base in range(k0, k1, p[DEPTH]):
            exact = _integers(p, exact, base, a, b)
        return float(exact)
    block, depth = p[BLOCK], p[DEPTH]
    length = depth // p[SEQUENCES]
    summation, join = p[SUMMATION], p[JOIN]
    filled = p[FILLED]
    most = np.int64(ALL if summation == PAIRWISE else 2)
    for base in range(k0, k1, depth):
        d = _flushed(d, p[OUT_MINEXP], p[FLUSH_C])
        if join == LATE:
            d = _late(p, order, base, d, a, b, terms, limbs)
            continue
        total = d
        present = join == INSIDE
        fraction, minexp = p[OUT_FRACTION], p[OUT_MINEXP]
        joined = 0.0
        for q in range(p[SEQUENCES]):
            settled = False
            if join == AFTER:
                present = False
            for first in range(q * length, (q + 1) * length, block):
                if first > q * length and base + order[first - block] >= p[LENGTH]:
                    break  # zeros after a block of zeros: the sum is rounded already
                last = _last(p, order, first, block, base)
                if last == 0 and settled:
                    continue  # groups
                settled = last == 0 and first > q * length
                count = _enough(p, block, last)
                done = False
                if p[PLAIN]:
                    inside = total if present else 0.0
                    done, sum_ = _plain_block(p, order, inside, fraction, minexp, first, last, base, a, b, terms)
                    if done:
                        total = sum_
                if not done:
                    kinds, count = _products(p, order, first, count, base, filled, most, a, b, terms)
                    if summation == ALIGNED:
                        total = _aligned(p, present, total, fraction, minexp, count, kinds, a, b, terms, limbs)
                    elif summation == EXACT:
                        total = _exact(p, present, total, count, kinds, terms, limbs)
                    elif summation == SEQUENTIAL:
                        total = _one_by_one(p, present, total, count, terms)
                    else:
                        tree = _tree(p, count, terms)
                        if present:
                            tree = _two_floats(
                                p, total, tree, p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING]
                            )
                        total = tree
                present = True
                fraction, minexp = p[SUMS_FRACTION], p[SUMS_MINEXP]
            if q == 0:
                joined = total
            else:
                joined = _two_floats(p, joined, total, p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING])
        if join == AFTER:
            d = _two_floats(p, joined, d, p[OUT_FRACTION], p[OUT_MINEXP], p[OUT_MAXEXP], p[LAST_ROUNDING])
        else:
            d = _converted(p, joined)
    return d


@kernel(
    "void(int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64[::1], int64[::1], float64[::1], int64, int64, "
    "int64, int64, float64[::1])"
)
def dots(parameters, sequence, left, right, rows, columns, c, k0, k1, start, stop, out):
    """out[i] = c[i] + row rows[i] of a · row columns[i] of b from k0 to k1, whole instructions, for start <= i < stop.

    `sequence` has an instruction's indices in order of summation.
    """
    p, order = pointer(parameters, 0), pointer(sequence, 0)
    own_terms = np.empty(T + 4096, np.int64)
    own_limbs = np.zeros(2 * LIMBS, np.int64)
    terms, limbs = pointer(own_terms, 0), pointer(own_limbs, 0)
    for at in range(start, stop):
        a, b = pointer(left, rows[at]), pointer(right, columns[at])
        out[at] = dot_of(p, order, a, b, c[at], k0, k1, terms, limbs)
    own_terms[0] = own_limbs[0]  # alive until here
