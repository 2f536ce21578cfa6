"""Bounds of the errors of a product, from the residual of `checking.residual`: one real part, and the sum of all parts.

Per entry and real part about 40 bytes read, 26 written and 60 operations: 30 ns.
"""

import math

import numpy as np

from prismm.core.jit import bits_of, device, kernel
from prismm.cpu.kernels.scale import exponent_above, two_factors

UP, DOWN = 1.0 + 2.0**-50, 1.0 - 2.0**-50


@device
def _unit(x, precision, lowest):
    """The exponent of an ulp of x; of 0 the least one."""
    if x == 0.0:
        return np.int64(lowest)
    return max(exponent_above(bits_of(np.float64(abs(x)))) - precision, np.int64(lowest))


@device
def _is_power(x):
    """Whether a normal number is a power of two."""
    return (bits_of(np.float64(x)) & ((np.int64(1) << 52) - 1)) == 0


@device
def _times(x, exponent):
    """x·2^exponent as libm's ldexp, by two factors that are no overflow or underflow more; where it is subnormal it is
    wrong by one unit at most.
    """
    if -2000 <= exponent <= 2000:
        f1, f2 = two_factors(exponent)
        return x * f1 * f2
    return np.ldexp(x, exponent)


@device
def _at_least(x):
    """An upper bound of a positive number that was rounded to x: η more below 2^-1000, as it may have underflowed."""
    return x if x >= 2.0**-1000 else x + 2.0**-1074


@kernel(
    "int64(float64[:,::1], float64[:,::1], float64[:,::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64[::1], "
    "int64[::1], float64, int64, int64, float64, float64, float64, float64[:,::1], float64[:,::1], float64[:,::1], "
    "uint8[:,::1], uint8[:,::1])"
)
def judge(
    c, residual, bound, row_shift, column_shift, row_finite, column_finite, p, q, offset, precision, lowest, top,
    largest, tight, error, low, ulps, correct, uncertain,
):  # fmt: skip
    """error, low: bounds of |c' - exact'| from above and of |exact'| from below; the former in ulps of RN(exact).

    c' - exact' is within `bound` and the roundings of float32 and float64 of residual + offset. Where p and q are
    empty, returns how many entries may be exact, which want them.
    """
    asked = 0
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            shift = row_shift[i] + column_shift[j]
            x = c[i, j]
            scaled = _times(x, -shift)
            unknown = row_finite[i] == 0 or column_finite[j] == 0 or not abs(scaled) <= largest
            if unknown:
                x, scaled = 0.0, 0.0
            f = residual[i, j]
            e = f + offset
            # Half an ulp of float32, which is η/2 or less where that is subnormal.
            slack = bound[i, j] + abs(f) * 2.0**-24 + 2.0**-150 + (abs(e) + offset) * 2.0**-51
            size = (abs(e) + slack) * UP
            unit = _unit(x, precision, lowest)
            ulp = _times(1.0, unit - shift)
            zero = False
            if not unknown and abs(e) <= slack:
                if p.size == 0:
                    asked += 1
                elif size < ulp or x == 0.0:
                    zero = size < _times(1.0, p[i] + q[j] - shift)
            if zero:
                size, slack, e = 0.0, 0.0, 0.0
            value = abs(scaled - e)
            least = max(value * DOWN - slack, 0.0)
            # The inner neighbours of a power of two are at half the distance.
            inward = ulp / 4 if unit > lowest and _is_power(x) else ulp / 2
            side = -e if scaled < 0.0 else e
            is_correct = zero or (side + slack < inward and slack - side < ulp / 2)
            is_wrong = side - slack > inward or -side - slack > ulp / 2
            loose_ulps = size > 0.0 and not is_correct and not slack <= least * tight
            reach = _times(value + slack, shift)
            loose = not slack <= max(abs(e) * tight, ulp / 64)
            doubtful = unknown or reach >= top or not (is_correct or is_wrong) or loose_ulps or loose
            if unknown:
                size, is_correct = np.inf, False
            error[i, j] = size
            low[i, j] = least
            if size == 0.0:
                ulps[i, j] = 0.0
            elif is_correct:
                ulps[i, j] = min(_at_least(_times(size, shift - unit)), 0.5)
            else:
                ulps[i, j] = _at_least(_times(size, shift - _unit(_times(least, shift), precision, lowest)))
            correct[i, j] = is_correct
            uncertain[i, j] = doubtful
    return asked


@kernel(
    "void(float64[:,:,::1], float64[:,:,::1], float64[:,:,::1], uint8[:,:,::1], uint8[:,:,::1], float64[:,::1], "
    "float64[:,::1], int64[::1], int64[::1], float64, float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], "
    "boolean[:,::1], boolean[:,::1])"
)
def combine_parts(
    error, low, ulps, correct, uncertain, bound, sizes, row_shift, column_shift, tight, absolute, componentwise,
    relative, in_ulps, is_correct, is_uncertain,
):  # fmt: skip
    """The four measures of entries from those of their real parts, (parts, rows, columns).

    |exact| <= |a||b|, so that |exact| stands for a |a||b| of which underflow leaves nothing.
    """
    for i in range(sizes.shape[0]):
        for j in range(sizes.shape[1]):
            size, least, most = error[0, i, j], low[0, i, j], ulps[0, i, j]
            right, doubtful = correct[0, i, j], uncertain[0, i, j]
            if error.shape[0] == 2:
                size, most = max(size, error[1, i, j]), max(most, ulps[1, i, j])
                least = math.hypot(least, low[1, i, j]) * DOWN
                right &= correct[1, i, j]
                doubtful |= uncertain[1, i, j]
            shift = row_shift[i] + column_shift[j]
            ratio, share, true = 0.0, 0.0, 0.0
            if size > 0.0:
                ratio = _at_least(size / least * UP) if least > 0.0 else np.inf
                share = min(ratio, _at_least(size / sizes[i, j] * UP)) if sizes[i, j] > 0.0 else ratio
                true = _times(size, shift)
                true = _at_least(true * UP) if true < 2.0**-1000 else true
                if not bound[i, j] <= least * tight:
                    doubtful = np.uint8(1)
            absolute[i, j], relative[i, j], componentwise[i, j] = true, ratio, share
            in_ulps[i, j] = most
            is_correct[i, j] = right != 0
            is_uncertain[i, j] = doubtful != 0
