"""Sums without loss in `dot_model`: in int64 where their span is short, else in limbs."""

import numpy as np

from prismm.core.jit import device
from prismm.core.limbs import add, bit_length, clear, keep_apart, leading, sign_and_magnitude
from prismm.numerics.kernels.dot_operands import decoded
from prismm.numerics.kernels.dot_parameters import (
    FINITE,
    FIRST_LIMB,
    FRACTION_64,
    KEEP,
    LAST_LIMB,
    MINEXP_64,
    NONE,
    E,
    H,
    M,
)
from prismm.numerics.kernels.dot_rounding import finish_sums, kind_of, special_sum, zero_sum
from prismm.numerics.kernels.dot_two_sums import sum_of_two

_0, _NO = np.int64(0), np.bool_(False)


@device
def _add_wide(limbs, h, m, e):
    """h·2^(e+54) + m·2^e into the limbs; the lowest and the highest index."""
    lo = add(limbs, m < 0, abs(m), e)
    hi = lo + 2
    if h != 0:
        hi = add(limbs, h < 0, abs(h), e + 54) + 2
    return lo, hi


@device
def exact_sum(p, present, total, count, kinds, terms, limbs):
    """One block without loss, rounded once."""
    keep_apart()
    if present:
        kinds |= kind_of(total)
    found, special = special_sum(kinds)
    if found:
        return special
    if kinds & FINITE == 0:
        return zero_sum(p, kinds)
    if present:
        cm, ce = decoded(total, FRACTION_64, MINEXP_64, KEEP)
        terms[M + count], terms[H + count], terms[E + count] = cm, 0, ce - 52
        if count == 1:
            negative, m, e, sticky = sum_of_two(
                terms[H + 0], terms[M + 0], terms[E + 0], terms[H + 1], terms[M + 1], terms[E + 1]
            )
            return finish_sums(p, negative, m, e, sticky) if m != 0 else 0.0
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
        return finish_sums(p, s < 0, abs(s), lowest, _NO)
    lo, hi = FIRST_LIMB, LAST_LIMB
    for t in range(count):
        if terms[M + t] != 0 or terms[H + t] != 0:
            i, j = _add_wide(limbs, terms[H + t], terms[M + t], terms[E + t])
            lo, hi = min(lo, i), max(hi, j)
    negative = sign_and_magnitude(limbs, lo, hi)
    m, e, sticky = leading(limbs, lo, hi)
    clear(limbs, lo, hi)
    return finish_sums(p, negative, m, e, sticky) if m != 0 else 0.0
