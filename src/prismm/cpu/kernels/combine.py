"""The epilogue of gemm: alpha·X + beta·C on joined pairs, rounded once and certified as a whole."""

import numpy as np

from prismm.core.jit import contiguous_part, contiguous_row, device, float_of, kernel, wide_vectors
from prismm.cpu.kernels.expansion import add_scaled, two_sum
from prismm.cpu.kernels.finish import pigeonhole

SQRT2 = 1.4142135623730954
"""Rounded up."""

_STRIP = 256
_CERTIFIED, _LISTED, _SMALL = 0, 1, 2
"""States of an entry. A `_SMALL` entry is listed unless |a||b| certifies it."""


@device
def _begin(shift, others, unit, safe, nonzero, scale, down, high, low, size):
    """Prepare a strip: scale = 2^(unit - s - t) and down = 2^-(s + t), `safe` where both are far from the ends of
    float64's range, and sums of 0.
    """
    wide_vectors()
    for j in range(scale.size):
        both = shift + others[j]
        # Whatever the unit, which engines have of their own: it is from -40 to 88.
        fine = (both > -900) & (both < 900)
        both = both if fine else 0
        scale[j] = float_of((unit - both + 1023) << 52) if fine else 0.0
        down[j] = float_of((1023 - both) << 52)
        safe[j] = fine
        nonzero[j] = 0
        high[j] = 0.0
        low[j] = 0.0
        size[j] = 0.0


@device
def _add_pairs(f, heads, tails, scale, high, low, size, nonzero):
    """Add f·(head + tail)·scale to sums."""
    wide_vectors()
    for j in range(high.size):
        x = heads[j] * scale[j]
        nonzero[j] |= np.uint8((heads[j] != 0.0) | (x != 0.0))
        high[j], low[j], size[j] = add_scaled(high[j], low[j], size[j], f, x, tails[j] * scale[j])


@device
def _add(f, numbers, high, low, size, nonzero):
    """Add f·x to sums."""
    wide_vectors()
    for j in range(high.size):
        nonzero[j] |= np.uint8(numbers[j] != 0.0)
        high[j], low[j], size[j] = add_scaled(high[j], low[j], size[j], f, numbers[j], 0.0)


@device
def _bounds(n1a, da, n2a, fa, columns, j0, terms, weight, mode, down, units, bound):
    """Compute the bound of each entry of the product: `units` in units of A'B', `bound` times the factors' weight."""
    wide_vectors()
    n1b, db = contiguous_row(columns, 0, j0, bound.size), contiguous_row(columns, 1, j0, bound.size)
    n2b, fb = contiguous_row(columns, 2, j0, bound.size), contiguous_row(columns, 3, j0, bound.size)
    for j in range(bound.size):
        e1 = fa * n1b[j] + fb[j] * n1a + fa * fb[j] * terms
        e2 = da * n2b[j] + (n2a + da) * db[j]
        units[j] = min(e1, e2) * (1.0 + 2.0**-30)
        # A small scale or factor must not make a bound underflow to 0.
        some = max(units[j] * down[j] * weight, 2.0**-900) if units[j] > 0.0 and weight > 0.0 else 0.0
        bound[j] = 0.0 if mode == 0 else some


@device
def _test(high, low, size, bound, safe, nonzero, mode, kappa, precision, state):
    """Round each sum, and set the entry's state by the tests that `combine` describes."""
    wide_vectors()
    top = 2.0**1020 if precision == 53 else 2.0**126
    largest = np.inf if precision == 53 else 2.0**127
    for j in range(high.size):
        fine = (safe[j] != 0) & ((nonzero[j] == 0) | ((size[j] > 2.0**-800) & (size[j] < 2.0**900)))
        x, y = two_sum(high[j], low[j])
        err = size[j] * 2.0**-96 + abs(y) * 2.0**-50
        nothing = (nonzero[j] == 0) & (bound[j] == 0.0) & fine
        odd = (not fine) | (not abs(x) > 2.0**-800) | (abs(x) >= largest)
        covered = (mode != 2) | (bound[j] == 0.0) | (abs(x) - err >= bound[j] * kappa)
        err += bound[j] if mode == 1 else 0.0
        unsure = sum_uncertified(x, y, err, precision) | ((mode == 2) & (not bound[j] < top))
        # Magnitudes say nothing of overflow within the bound.
        small = _SMALL if abs(x) + bound[j] < top else _LISTED
        found = _LISTED if odd | unsure else (_CERTIFIED if covered else small)
        state[j] = _CERTIFIED if nothing else found
        high[j] = x


@device
def sum_uncertified(high, low, err, precision):
    """Whether numbers within err of high + low round differently, to 53 bits or to float32."""
    if precision == 53:
        return (high + (low + err) != high) | (high + (low - err) != high)
    below = high + (low - err)
    above = high + (low + err)
    below -= abs(below) * 2.0**-51
    above += abs(above) * 2.0**-51
    return (np.float32(below) != np.float32(above)) | ((below > 0.0) != (above > 0.0))


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
    needed = magnitude_kappa * (SQRT2 if factors[0] != 0.0 and factors[1] != 0.0 else 1.0)
    work, flags = np.empty((8, _STRIP)), np.empty((3, _STRIP), np.uint8)
    for i in range(m):
        for j0 in range(0, n, _STRIP):
            w = min(n, j0 + _STRIP) - j0
            scale, down = contiguous_row(work, 0, 0, w), contiguous_row(work, 1, 0, w)
            high, low = contiguous_row(work, 2, 0, w), contiguous_row(work, 3, 0, w)
            size, bound = contiguous_row(work, 4, 0, w), contiguous_row(work, 5, 0, w)
            units, numbers = contiguous_row(work, 6, 0, w), contiguous_row(work, 7, 0, w)
            safe, nonzero = contiguous_row(flags, 0, 0, w), contiguous_row(flags, 1, 0, w)
            state = contiguous_row(flags, 2, 0, w)
            _begin(
                row_shift[i], contiguous_part(column_shift, j0, w), unit, safe, nonzero, scale, down, high, low, size
            )  # fmt: skip
            for part in range(4):
                f = factors[part]
                if f == 0.0:
                    continue
                if part < 2:
                    heads, tails = (high1, low1) if part == 0 else (high2, low2)
                    _add_pairs(
                        f, contiguous_row(heads, i, j0, w), contiguous_row(tails, i, j0, w), scale, high, low, size,
                        nonzero,
                    )  # fmt: skip
                    continue
                added = add1 if part == 2 else add2
                # C may have any strides.
                for j in range(w):
                    numbers[j] = added[i, j0 + j]
                _add(f, numbers, high, low, size, nonzero)
            _bounds(
                row_terms[0, i], row_terms[1, i], row_terms[2, i], row_terms[3, i], column_terms, j0, terms, weight,
                mode, down, units, bound,
            )  # fmt: skip
            _test(high, low, size, bound, safe, nonzero, mode, kappa, precision, state)
            for j in range(w):
                if precision == 53:
                    out[i, j0 + j] = high[j]
                else:
                    out32[i, j0 + j] = np.float32(high[j])
            for j in range(w):
                if state[j] == _CERTIFIED:
                    continue
                power = row_power[i] + column_power[j0 + j]
                if state[j] == _SMALL and pigeonhole(
                    row_counts, i, column_counts, j0 + j, k, power, units[j] * needed, 0
                ):
                    continue
                failed[count] = i * n + j0 + j
                count += 1
    return count
