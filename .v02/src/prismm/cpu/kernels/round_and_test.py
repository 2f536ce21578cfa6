"""Settle entries: from a value high + low and its bound, in scaled units, to one rounding, tested and stored.

`mode` is that of the other joins (`prismm.core.accuracy`). RAW stores RN((high + low)·2^e); ROUNDING lists entries of
which
some number within the bound rounds elsewhere; MAGNITUDE lists those whose bound exceeds `slack` times a lower bound of
|a||b|, and those for which overflow is open. An infinite slack tests for overflow only.

Per entry it reads two to four float64 and writes one result: about 5 ns an entry on one core where nothing is odd (a
subnormal, a midpoint of float32, a result in the top two binades).
"""

import math

import numpy as np

from prismm.core.jit import device, kernel
from prismm.cpu.kernels.combine import sum_uncertified
from prismm.cpu.kernels.expansion import add_scaled, round_expansion, two_sum
from prismm.cpu.kernels.finish import ends


@device
def _test(h, m, bound, least, e, mode, slack, unit, precision, lowest, scale, odd):
    """Whether the entry is uncertified. scale: 2^e, where `odd` does not forbid its use."""
    if bound == 0.0:
        return False
    if mode == 1:
        err = bound * (1.0 + 2.0**-45) + abs(m) * 2.0**-50
        if not odd:
            if precision == 53:
                if h + (m + err) == h and h + (m - err) == h:
                    return False
            else:
                # Widened by an ulp of float64 at each end: an end that is a midpoint of float32 decides nothing.
                low = h + (m - err)
                high = h + (m + err)
                low -= abs(low) * 2.0**-51
                high += abs(high) * 2.0**-51
                if np.float32(low * scale) == np.float32(high * scale) and (low > 0.0) == (high > 0.0):
                    return False
        low, high, signs_differ = ends(h, m, 0.0, bound, e, precision, lowest)
        return low != high or signs_differ
    if slack < np.inf:
        # |a||b| >= |exact| >= |h + m| - bound, and at least `least`.
        lower = max(least, abs(h) * (1.0 - 2.0**-50) - bound)
        if not bound * (1.0 + unit) <= slack * (lower * (1.0 - 2.0**-40)):
            return True
    if odd:
        low, high, _ = ends(h, m, 0.0, bound, e, precision, lowest)
        return (np.isinf(low) or np.isinf(high)) and low != high
    return False


@kernel(
    "int64(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], int64[::1], int64[::1], int64, float64, "
    "int64, float64[:,:], float32[:,:], int32[::1])"
)
def round_and_test(high, low, bound, least, row_exponent, column_exponent, mode, slack, precision, out, out32, failed):
    """Round, test and store a tile; returns how many entries it lists in `failed` (as i·n + j).

    low, bound and least may be empty: 0 everywhere. h = RN53(h + m) decides RN24 unless h is itself a midpoint of
    float32 (RN is monotone and midpoints have 25 bits), so a plain conversion rounds once but there.
    """
    m_rows, n = high.shape
    with_low, with_bound, with_least = low.size > 0, bound.size > 0, least.size > 0
    lowest = -1074 if precision == 53 else -149
    top = 2044 if precision == 53 else 1148
    bottom = 1 if precision == 53 else 898
    unit = math.ldexp(1.0, -precision)
    hs = np.empty(n)
    ms = np.empty(n)
    reach = np.empty(n)
    value = np.empty(n)
    bits = hs.view(np.int64)
    reach_bits = reach.view(np.int64)
    target = value.view(np.int64)
    count = 0
    for i in range(m_rows):
        for j in range(n):
            h, m = two_sum(high[i, j], low[i, j] if with_low else 0.0)
            hs[j] = h
            ms[j] = m
            reach[j] = abs(h) + (bound[i, j] if with_bound else 0.0)
        for j in range(n):
            e = row_exponent[i] + column_exponent[j]
            h, m = hs[j], ms[j]
            field = (bits[j] >> 52) & 0x7FF
            moved = field + e
            err = bound[i, j] if with_bound else 0.0
            odd = field < 64 or moved < bottom or ((reach_bits[j] >> 52) & 0x7FF) + e > top or e < -1000 or e > 1000
            if h == 0.0:
                value[j] = 0.0
            elif odd or (precision == 24 and m != 0.0 and (bits[j] & 0x1FFFFFFF) == 0x10000000):
                value[j] = round_expansion(h, m, 0.0, e, precision, lowest)
            else:
                target[j] = bits[j] + (e << 52)
            if mode != 0 and err != 0.0:
                scale = 1.0 if odd else math.ldexp(1.0, e)
                lower = least[i, j] if with_least else 0.0
                if _test(h, m, err, lower, e, mode, slack, unit, precision, lowest, scale, odd):
                    failed[count] = i * n + j
                    count += 1
        if precision == 53:
            for j in range(n):
                out[i, j] = value[j]
        else:
            for j in range(n):
                out32[i, j] = np.float32(value[j])
    return count


@kernel(
    "int64(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], "
    "float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64[::1], "
    "float64[::1], int64, float64, int64, float64[:,:], float32[:,:], int32[::1])"
)
def round_and_test_sum(
    high1, low1, bound1, least1, high2, low2, bound2, least2, row_exponent, column_exponent, add1, add2, factors,
    weights, mode, slack, precision, out, out32, failed,
):  # fmt: skip
    """RN(f0·X1 + f1·X2 + f2·add1 + f3·add2) with X = (high + low)·2^e; returns how many entries it lists.

    Four exact products are added with two-sums, their twelve tails in float64: off by less than 2^-97·size, where size
    is the sum of the magnitudes (as `combine.combine` has it), in which X's own rounding of low, 2^-103, has room.
    Listed are entries whose rounding is open: within the bound (mode 1) or within the arithmetic's own error (modes 0
    and 2); those whose bound exceeds `slack` times w0·|a||b| + w1·|c| (mode 2); and in every mode those with exponents
    or sizes beyond 2^±800, and results that may overflow: they want exact arithmetic.
    """
    m_rows, n = high1.shape
    with_low, with_bound, with_least = low1.size > 0, bound1.size > 0, least1.size > 0
    lowest = -1074 if precision == 53 else -149
    unit = math.ldexp(1.0, -precision)
    # X and its tail may lose 2^-1074 where the scale makes them subnormal: that times the factors must be negligible.
    least_size = max(2.0**-800, (abs(factors[0]) + abs(factors[1])) * 2.0**-970)
    count = 0
    for i in range(m_rows):
        for j in range(n):
            e = row_exponent[i] + column_exponent[j]
            safe = -900 < e < 900
            scale = math.ldexp(1.0, e) if safe else 0.0
            high = 0.0
            low = 0.0
            size = 0.0
            nonzero = False
            for part in range(4):
                f = factors[part]
                if f == 0.0:
                    continue
                tail = 0.0
                if part == 0:
                    x = high1[i, j] * scale
                    tail = low1[i, j] * scale if with_low else 0.0
                    nonzero |= high1[i, j] != 0.0 or tail != 0.0
                elif part == 1:
                    x = high2[i, j] * scale
                    tail = low2[i, j] * scale if with_low else 0.0
                    nonzero |= high2[i, j] != 0.0 or tail != 0.0
                elif part == 2:
                    x = add1[i, j]
                else:
                    x = add2[i, j]
                nonzero |= x != 0.0
                high, low, size = add_scaled(high, low, size, f, x, tail)
            bound = 0.0
            if with_bound:
                first, second = abs(factors[0]) * (bound1[i, j] * scale), abs(factors[1]) * (bound2[i, j] * scale)
                bound = (first + second) * (1.0 + 2.0**-30)
                # A small factor must not make a bound underflow to 0.
                if (factors[0] != 0.0 and bound1[i, j] > 0.0) or (factors[1] != 0.0 and bound2[i, j] > 0.0):
                    bound = max(bound, 2.0**-900)
            size += bound
            safe &= not nonzero or least_size < size < 2.0**900
            high, low = two_sum(high, low)
            err = size * 2.0**-96 + abs(low) * 2.0**-50
            if not nonzero and bound == 0.0 and safe:
                listed = False
            elif not safe or not abs(high) > 2.0**-800 or (precision == 24 and abs(high) + bound >= 2.0**126):
                listed = True
            elif mode == 0:
                # X lost less than 2^-1073 where it underflows in its own units.
                err += (abs(factors[0]) + abs(factors[1])) * scale * 2.0**-1072
                listed = sum_uncertified(high, low, err, precision)
            else:
                covered = True
                if mode == 2 and bound != 0.0 and slack < np.inf:
                    least = 0.0
                    if with_least:
                        least = weights[0] * (max(least1[i, j], least2[i, j]) * scale)
                    if factors[2] != 0.0 or factors[3] != 0.0:
                        least += weights[1] * max(abs(add1[i, j]), abs(add2[i, j]))
                    # An overflowing product says no more than 2^1000 does.
                    least = min(least, 2.0**1000)
                    least = max(least * (1.0 - 2.0**-30), abs(high) * (1.0 - 2.0**-40) - bound)
                    covered = (bound + err) * (1.0 + unit) * (1.0 + 2.0**-30) <= slack * least
                err += bound if mode == 1 else 0.0
                listed = sum_uncertified(high, low, err, precision) or not covered
            if precision == 53:
                out[i, j] = high
            else:
                out32[i, j] = np.float32(round_expansion(high, low, 0.0, 0, precision, lowest))
            if listed:
                failed[count] = i * n + j
                count += 1
    return count
