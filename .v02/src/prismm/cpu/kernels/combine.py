"""The epilogue of gemm: alpha·X + beta·C on joined pairs, rounded once and certified as a whole."""

import numpy as np

from prismm.core.jit import device, kernel
from prismm.cpu.kernels.expansion import add_scaled, two_sum
from prismm.cpu.kernels.finish import pigeonhole

SQRT2 = 1.4142135623730954
"""Rounded up."""


@device
def sum_uncertified(high, low, err, precision):
    """Whether numbers within err of high + low round differently, to 53 bits or to float32."""
    if precision == 53:
        return high + (low + err) != high or high + (low - err) != high
    below = high + (low - err)
    above = high + (low + err)
    below -= abs(below) * 2.0**-51
    above += abs(above) * 2.0**-51
    return np.float32(below) != np.float32(above) or (below > 0.0) != (above > 0.0)


@kernel(
    "int64(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], int64, int64[::1], int64[::1], "
    "float64[:,::1],"
    " float64[:,::1], float64, float64[:,:], float64[:,:], float64[::1], int64[::1], int64[::1],"
    " int64[:,::1], int64[:,::1], int64, int64, float64, float64, int64, float64[:,:], float32[:,:], int32[::1])"
)
def combine(
    high1, low1, high2, low2, unit, row_shift, column_shift, row_terms, column_terms, terms, add1, add2, factors,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, failed,
):  # fmt: skip
    """RN(f0·X1 + f1·X2 + f2·add1 + f3·add2) with X = (high + low)·2^(unit-s-t); returns how many entries it lists.

    Four exact products are added with two-sums; X's own tail is rounded, which 2^-106·size bounds. The twelve tails
    are at most 2u·size each (size = Σ of the magnitudes), so their floating-point sum is off by less than
    2^-97·size; what underflows on the way is below 2^-1070 and negligible beside 2^-96·size >= 2^-896. Listed (i·n +
    j) are entries whose rounding is open (mode 1: within the scheme's bound, else within the arithmetic's own),
    where neither their own magnitude nor |a||b| covers kappa times the bound (mode 2), those whose bound alone reaches
    a quarter of the overflow threshold (mode 2: no kappa speaks of overflow), and those with sizes or results beyond
    2^±800: they want exact arithmetic.

    |a||b| covers it where e·κ <= |a||b|, e the bound of X: gemm's target leaves (K+2)·u·|alpha||a||b| for what alpha
    makes of e. A part of a complex sum has two such terms, of (|f0| + |f1|)·e <= √2·|alpha|·e.
    """
    m = row_shift.size
    n = column_shift.size
    count = 0
    weight = abs(factors[0]) + abs(factors[1])
    top = 2.0**1020 if precision == 53 else 2.0**126
    needed = magnitude_kappa * (SQRT2 if factors[0] != 0.0 and factors[1] != 0.0 else 1.0)
    for i in range(m):
        for j in range(n):
            shift = row_shift[i] + column_shift[j]
            e = unit - shift
            # Whatever the unit, which engines have of their own: it is from -40 to 88.
            safe = -900 < shift < 900
            scale = np.ldexp(1.0, e) if safe else 0.0
            high = 0.0
            low = 0.0
            size = 0.0
            nonzero = False
            for part in range(4):
                f = factors[part]
                if f == 0.0:
                    continue
                x = 0.0
                tail = 0.0
                nonzero |= (part == 0 and high1[i, j] != 0.0) or (part == 1 and high2[i, j] != 0.0)
                if part == 0:
                    x = high1[i, j] * scale
                    tail = low1[i, j] * scale
                elif part == 1:
                    x = high2[i, j] * scale
                    tail = low2[i, j] * scale
                elif part == 2:
                    x = add1[i, j]
                else:
                    x = add2[i, j]
                nonzero |= x != 0.0
                high, low, size = add_scaled(high, low, size, f, x, tail)
            fa = row_terms[3, i]
            fb = column_terms[3, j]
            e1 = fa * column_terms[0, j] + fb * row_terms[0, i] + fa * fb * terms
            e2 = row_terms[1, i] * column_terms[2, j] + (row_terms[2, i] + row_terms[1, i]) * column_terms[1, j]
            units = min(e1, e2) * (1.0 + 2.0**-30)
            bound = units * (np.ldexp(1.0, -shift) if safe else 1.0)
            # A small scale or factor must not make a bound underflow to 0.
            bound = max(bound * weight, 2.0**-900) if units > 0.0 and weight > 0.0 else 0.0
            bound = 0.0 if mode == 0 else bound
            safe &= not nonzero or 2.0**-800 < size < 2.0**900
            high, low = two_sum(high, low)
            err = size * 2.0**-96 + abs(low) * 2.0**-50
            if not nonzero and bound == 0.0 and safe:
                listed = False
            elif not safe or not abs(high) > 2.0**-800 or (precision == 24 and abs(high) >= 2.0**127):
                listed = True
            else:
                covered = mode != 2 or bound == 0.0 or abs(high) - err >= bound * kappa
                err += bound if mode == 1 else 0.0
                listed = sum_uncertified(high, low, err, precision) or (mode == 2 and not bound < top)
                if not covered and not listed:
                    # Magnitudes say nothing of overflow within the bound.
                    power = row_power[i] + column_power[j]
                    listed = not abs(high) + bound < top or not pigeonhole(
                        row_counts, i, column_counts, j, k, power, units * needed, 0
                    )
            if precision == 53:
                out[i, j] = high
            else:
                out32[i, j] = np.float32(high)
            if listed:
                failed[count] = i * n + j
                count += 1
    return count
