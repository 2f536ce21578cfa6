"""Late joins in `dot_model`: c is aligned with the unrounded sum of an instruction's products."""

import numpy as np

from prismm.core.jit import device
from prismm.core.limbs import FLOOR, add, bit_length, clear, keep_apart, leading, sign_and_magnitude, units_of
from prismm.numerics.kernels.dot_aligned import shifted, wrapped
from prismm.numerics.kernels.dot_operands import decoded
from prismm.numerics.kernels.dot_parameters import (
    ALIGNMENT,
    BLOCK,
    CARRY_BITS,
    FILLED,
    FINITE,
    FIRST_LIMB,
    FRACTION_BITS,
    KEEP,
    LAST_LIMB,
    LATE_C,
    LATE_CUTOFF,
    LATE_SUM,
    LATE_TOTAL,
    NONE,
    OUT_FRACTION,
    OUT_MAXEXP,
    OUT_MINEXP,
    ROUNDING,
    SEQUENCES,
    ZERO_EXPONENT,
    A,
    E,
    K,
    M,
    T,
    U,
)
from prismm.numerics.kernels.dot_products import products_of
from prismm.numerics.kernels.dot_rounding import finish, kind_of, special_sum, zero_sum

_0, _1, _NO = np.int64(0), np.int64(1), np.bool_(False)


@device
def _late_rounded(p, negative, m, e, sticky):
    """The sum of products and c, cut off after `total_bits`, then rounded."""
    q = e + bit_length(m) - 1 - p[LATE_TOTAL]
    if q > e:
        m = units_of(negative, m, e, sticky, q, FLOOR)
        e = q
    return finish(p, negative, m, e, _NO, p[OUT_FRACTION], p[OUT_MINEXP], p[OUT_MAXEXP], p[ROUNDING])


@device
def late_sum(p, order, base, c, a, b, terms, limbs):
    """An instruction whose c joins the unrounded sum of its products."""
    keep_apart()
    kinds = kind_of(c)
    block = p[BLOCK]
    f = p[FRACTION_BITS]
    filled = p[FILLED]
    largest = np.int64(NONE)
    for s in range(p[SEQUENCES]):
        inner, count = products_of(p, order, s * block, block, base, filled, _1, a, b, terms)
        kinds |= inner
        top = p[ZERO_EXPONENT]
        for t in range(count):
            if terms[K + t] == FINITE:
                top = max(top, terms[A + t])
        units = _0
        if top != NONE:
            for t in range(count):
                if terms[M + t] != 0:
                    units += shifted(terms[M + t], terms[E + t] - top + f, p[ALIGNMENT])
            if p[CARRY_BITS] >= 0:
                units = wrapped(units, f + 3 + p[CARRY_BITS])
        terms[U + s], terms[T + s] = units, top
        largest = max(largest, top)
    found, special = special_sum(kinds)
    if found:
        return special
    m, e = decoded(c, p[OUT_FRACTION], p[OUT_MINEXP], KEEP)
    if largest == NONE and m == 0:
        return zero_sum(p, kinds)
    total = _0
    for s in range(p[SEQUENCES]):
        if terms[U + s] != 0:
            total += shifted(terms[U + s], terms[T + s] - largest, FLOOR)
    top = largest if m == 0 else max(largest, e)
    if p[LATE_CUTOFF] >= 0 and m != 0 and e < top - p[LATE_CUTOFF]:
        m = _0
    unit = largest - f
    if total != 0 and top - p[LATE_SUM] > unit:
        total = shifted(total, unit - top + p[LATE_SUM], FLOOR)
        unit = top - p[LATE_SUM]
    e -= p[OUT_FRACTION]
    if m != 0 and top - p[LATE_C] > e:
        m = shifted(m, e - top + p[LATE_C], FLOOR)
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
    lo, hi = FIRST_LIMB, LAST_LIMB
    if total != 0:
        i = add(limbs, total < 0, abs(total), unit)
        lo, hi = i, i + 2
    if m != 0:
        i = add(limbs, m < 0, abs(m), e)
        lo, hi = min(lo, i), max(hi, i + 2)
    negative = sign_and_magnitude(limbs, lo, hi)
    m, e, sticky = leading(limbs, lo, hi)
    clear(limbs, lo, hi)
    if m == 0:
        return 0.0
    return _late_rounded(p, negative, m, e, sticky)
