"""Dot products on any `EngineModel`: one kernel that reads the model from an array of parameters.

What it computes is specified by `numerics.specification`; this is the same, bit for bit. Operands are decoded once
(`dot_operands`) into integer significands and exponents, so that a product is one multiplication of integers. An
aligned block then takes two passes over its products: the largest exponent; shifts and sums in int64 (at most 257 terms
of 51 bits). Sums without loss stay in int64 where their span is short, else they are made in limbs; sums of two numbers
take 124 bits. Measured on one core (Xeon at 2.5 GHz), in ns a product: aligned 3 in blocks of 32 and 8 in blocks of 8
(toward zero, else twice that), exact 6 to 50, one by one 45, in pairs 90; most of it is the rounding of every sum.
"""

import numpy as np

from prismm.core.jit import device, kernel
from prismm.core.limbs import LIMBS, keep_apart
from prismm.core.pointers import pointer
from prismm.numerics.kernels.dot_aligned import aligned_sum, plain_block
from prismm.numerics.kernels.dot_exact import exact_sum
from prismm.numerics.kernels.dot_late import late_sum
from prismm.numerics.kernels.dot_operands import decoded
from prismm.numerics.kernels.dot_parameters import (
    AFTER,
    ALIGNED,
    ALL,
    BLOCK,
    CONVERTS,
    DEPTH,
    EXACT,
    FILLED,
    FLUSH_C,
    FRACTION_64,
    HIGHEST,
    INSIDE,
    INTEGER,
    JOIN,
    KEEP,
    LAST_ROUNDING,
    LATE,
    LENGTH,
    LOWEST,
    MINEXP_64,
    OUT_FRACTION,
    OUT_MAXEXP,
    OUT_MINEXP,
    PAIRWISE,
    PLAIN,
    ROUNDING,
    SATURATE,
    SEQUENCES,
    SEQUENTIAL,
    SUMMATION,
    SUMS_FRACTION,
    SUMS_MAXEXP,
    SUMS_MINEXP,
    T,
)
from prismm.numerics.kernels.dot_partial_sums import one_by_one, tree_sum
from prismm.numerics.kernels.dot_products import enough, last_place, products_of
from prismm.numerics.kernels.dot_rounding import finish_output, flushed
from prismm.numerics.kernels.dot_two_sums import two_floats

_0, _1, _NO = np.int64(0), np.int64(1), np.bool_(False)


@device
def _converted(p, x):
    """A running sum in the output format."""
    keep_apart()
    if p[CONVERTS] == 0 or x == 0.0 or not abs(x) < np.inf:
        return x
    m, e = decoded(x, FRACTION_64, MINEXP_64, KEEP)
    return finish_output(p, m < 0, abs(m), e - 52, _NO)


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
        d = flushed(d, p[OUT_MINEXP], p[FLUSH_C])
        if join == LATE:
            d = late_sum(p, order, base, d, a, b, terms, limbs)
            continue
        total = d
        present = join == INSIDE
        fraction, minexp = p[OUT_FRACTION], p[OUT_MINEXP]
        joined = 0.0
        for q in range(p[SEQUENCES]):
            only_zeros = False
            if join == AFTER:
                present = False
            for first in range(q * length, (q + 1) * length, block):
                if first > q * length and base + order[first - block] >= p[LENGTH]:
                    break  # zeros after a block of zeros: the sum is rounded already
                last = last_place(p, order, first, block, base)
                if last == 0 and only_zeros:
                    continue  # groups
                only_zeros = last == 0 and first > q * length
                count = enough(p, block, last)
                done = False
                if p[PLAIN]:
                    inside = total if present else 0.0
                    done, sum_ = plain_block(p, order, inside, fraction, minexp, first, last, base, a, b, terms)
                    if done:
                        total = sum_
                if not done:
                    kinds, count = products_of(p, order, first, count, base, filled, most, a, b, terms)
                    if summation == ALIGNED:
                        total = aligned_sum(p, present, total, fraction, minexp, count, kinds, a, b, terms, limbs)
                    elif summation == EXACT:
                        total = exact_sum(p, present, total, count, kinds, terms, limbs)
                    elif summation == SEQUENTIAL:
                        total = one_by_one(p, present, total, count, terms)
                    else:
                        tree = tree_sum(p, count, terms)
                        if present:
                            tree = two_floats(
                                p, total, tree, p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING]
                            )
                        total = tree
                present = True
                fraction, minexp = p[SUMS_FRACTION], p[SUMS_MINEXP]
            if q == 0:
                joined = total
            else:
                joined = two_floats(p, joined, total, p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING])
        if join == AFTER:
            d = two_floats(p, joined, d, p[OUT_FRACTION], p[OUT_MINEXP], p[OUT_MAXEXP], p[LAST_ROUNDING])
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
