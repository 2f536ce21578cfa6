"""Aligned sums in `dot_model`: all terms are shifted to the largest exponent, cut off and added as integers."""

import numpy as np

from prismm.core.jit import device
from prismm.core.limbs import BASE, FLOOR, LIMBS, add, carry, clear, keep_apart, leading, sign_and_magnitude
from prismm.numerics.kernels.dot_operands import decoded
from prismm.numerics.kernels.dot_parameters import (
    ALIGNMENT,
    ASCENDING,
    CARRY_BITS,
    FILLED,
    FINITE,
    FIRST_LIMB,
    FRACTION_BITS,
    GROUPS,
    INFINITY,
    INPUT_FRACTION,
    KEEP,
    LAST_LIMB,
    NAN_TERM,
    NONE,
    POSITIVE_ZERO,
    SCALE,
    SCALE_BITS,
    SPECIAL,
    WIDTH,
    ZERO_EXPONENT,
    A,
    E,
    F,
    G,
    K,
    M,
)
from prismm.numerics.kernels.dot_rounding import finish_sums, kind_of, special_sum, zero_sum

_0, _1, _NO = np.int64(0), np.int64(1), np.bool_(False)


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
        kind = FINITE
        if a[u] < 0 or b[u] < 0:
            kind = NAN_TERM
        elif inner & 7:
            _, special = special_sum(inner)
            kind = kind_of(special)
        elif significand == 0 or inner & FINITE == 0:
            kind = POSITIVE_ZERO
        kinds |= kind
        for s in range(t, count):
            if terms[G + s] == g:
                if kind != FINITE:
                    terms[K + s] = kind
                    terms[M + s] = 0
                else:
                    # Zeros of a group that counts take its exponent, too.
                    terms[K + s] = FINITE
                    terms[F + s] = significand
                    terms[E + s] += exponent - p[SCALE_BITS]
                    terms[A + s] = exponent
    return kinds


@device
def wrapped(total, width):
    """The low bits of an integer, in two's complement."""
    return (total << (64 - width)) >> (64 - width) if width < 64 else total


@device
def _cut_groups(p, count, quantum, terms, limbs):
    """The block's sum in units of 2^quantum, where every group is summed without loss, then cut off."""
    keep_apart()
    first, last = FIRST_LIMB, LAST_LIMB
    one = quantum + BASE >> 5
    for t in range(count):
        if terms[K + t] != FINITE or terms[F + t] == 0:
            continue
        g = terms[G + t]
        lo, hi = 2 * FIRST_LIMB, LAST_LIMB
        for s in range(t, count):
            if terms[G + s] == g:
                if terms[M + s] != 0:
                    i = add(limbs, terms[M + s] < 0, abs(terms[M + s]) * terms[F + s], terms[E + s] + 32 * LIMBS)
                    lo, hi = min(lo, i), max(hi, i + 2)
                terms[F + s] = 0
        if hi == 0:
            continue
        negative = sign_and_magnitude(limbs, lo, hi)
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
    return wrapped(value, width)


@device
def aligned_sum(p, present, total, fraction, minexp, count, kinds, a, b, terms, limbs):
    """One block, aligned and cut off; `total` is a value of the format (fraction, minexp), if present."""
    keep_apart()
    cm, ce = _0, _0
    if p[SCALE] >= GROUPS:
        kinds = _scaled_groups(p, count, a, b, terms)
    if present:
        kinds |= kind_of(total)
        cm, ce = decoded(total, fraction, minexp, KEEP)
    found, special = special_sum(kinds)
    if found:
        return special
    if kinds & FINITE == 0:
        return zero_sum(p, kinds)
    largest = np.int64(NONE)
    for t in range(count):
        largest = max(largest, terms[A + t] if terms[K + t] == FINITE else np.int64(NONE))
    largest = max(largest, ce) if cm != 0 else max(largest, p[ZERO_EXPONENT])
    quantum = largest - p[FRACTION_BITS]
    width = np.int64(64)
    if p[CARRY_BITS] >= 0:
        width = p[FRACTION_BITS] + 3 + p[CARRY_BITS]
    units = _0
    if cm != 0:
        units = shifted(cm, ce - fraction - quantum, p[ALIGNMENT])
    if p[SCALE] >= GROUPS:
        lo, hi = _cut_groups(p, count, quantum, terms, limbs)
        j = add(limbs, units < 0, abs(units), quantum)
        lo, hi = min(lo, j), max(hi, j + 2)
        if width < 64:
            units = _window(limbs, lo, hi, quantum, width)
        else:
            negative = sign_and_magnitude(limbs, lo, hi)
            m, e, sticky = leading(limbs, lo, hi)
            clear(limbs, lo, hi)
            return finish_sums(p, negative, m, e, sticky) if m != 0 else 0.0
    else:
        to_floor = p[ALIGNMENT] == FLOOR
        for t in range(count):
            units += _moved_by(terms[M + t], terms[E + t] - quantum, to_floor)
        units = wrapped(units, width)
    if units == 0:
        return 0.0
    return finish_sums(p, units < 0, abs(units), quantum, _NO)


@device
def _moved_by(m, left, to_floor):
    """`shifted`, without branches on data."""
    left = min(max(left, -63), 63)
    if to_floor:
        return (m << max(left, 0)) >> max(-left, 0)
    size = (abs(m) << max(left, 0)) >> max(-left, 0)
    return -size if m < 0 else size


@device
def shifted(m, left, mode):
    """m·2^left as an integer, cut off to the floor or toward zero."""
    if left >= 0:
        return m << left
    right = min(-left, 63)
    if mode == FLOOR:
        return m >> right
    return -(-m >> right) if m < 0 else m >> right


@device
def plain_block(p, order, total, fraction, minexp, first, count, base, a, b, terms):
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
    cm, ce = decoded(total, fraction, minexp, KEEP)
    if worst > SPECIAL or ce >= INFINITY:
        return False, 0.0
    largest = max(largest, ce if cm != 0 else p[ZERO_EXPONENT])
    if largest == NONE or (cm == 0 and largest == p[ZERO_EXPONENT]):
        return False, 0.0
    shift = p[FRACTION_BITS] - largest - 2 * p[INPUT_FRACTION]
    to_floor = p[ALIGNMENT] == FLOOR
    units = shifted(cm, ce - fraction - largest + p[FRACTION_BITS], p[ALIGNMENT]) if cm != 0 else _0
    for t in range(count):
        units += _moved_by(terms[M + t], terms[A + t] + shift, to_floor)
    if p[CARRY_BITS] >= 0:
        units = wrapped(units, p[FRACTION_BITS] + 3 + p[CARRY_BITS])
    if units == 0:
        return True, 0.0
    return True, finish_sums(p, units < 0, abs(units), largest - p[FRACTION_BITS], _NO)
