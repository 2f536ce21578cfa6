"""Split numbers into two FP16 words, the low one amplified by 2^sb, and measure what is left.

high = fl16(x·2^t), low = fl16((x·2^t - high)·2^sb); both differences are exact in float64: x·2^t - high is a multiple
of x's last place, and no larger than half of high's (all, toward zero). Per element: 8 bytes read, 8 written, about
25 operations; at 1024^2 2 ms on one core, of which memory would take 1 ms.
"""

import numpy as np

from prismm.core.jit import bits_of, device, device_any_order, float_of, kernel

_EXPONENT = 0x7FF0000000000000
_SMALLEST_NORMAL = (1023 - 14) << 52
_TINY = 2.0**-400


@device
def _half(x, toward_zero):
    """x rounded to FP16's 11 bits, below 2^-14 to multiples of 2^-24; magnitudes from 65504 on are not cut."""
    a = abs(x)
    binade = max(bits_of(a) & _EXPONENT, _SMALLEST_NORMAL)
    # The last place of 1.5·2^(e+42) is 2^(e-10), that of an FP16 number of the same binade.
    magic = 1.5 * float_of(binade + (np.int64(42) << 52))
    r = (a + magic) - magic
    # Toward zero is one last place less wherever the nearest number is larger.
    r = r - float_of(binade - (np.int64(10) << 52)) if (toward_zero & (r > a)) else r
    return r if x >= 0.0 else -r


@device
def _square(residual, x):
    """Its square; elements that are nothing beside their vector's largest count as 2^-400."""
    return _TINY * _TINY if ((abs(x) < _TINY) & (x != 0.0)) else residual * residual


@device_any_order
def _sum(x):
    total = 0.0
    for h in range(x.size):
        total += x[h]
    return total


@kernel(
    "int64(float64[:,::1], int64[::1], int64, boolean, float32[:,::1], float32[:,::1], float64[::1], float64[::1], "
    "float64[::1])"
)
def split_rows(x, shift, sb, toward_zero, high, low, high2, low2, residual2):
    """Words of the rows of x (m, k) with t = shift[i]; Σhigh², Σlow² in units of the words, Σδ² in those of x.

    Returns the number of words beyond FP16's largest. Rows with t < -900 have words 0.
    """
    m, k = x.shape
    up = np.ldexp(1.0, sb)
    down = np.ldexp(1.0, -sb)
    squares = np.empty((3, k))
    beyond = 0
    for i in range(m):
        factor = np.ldexp(1.0, shift[i]) if shift[i] >= -900 else 0.0
        back = np.ldexp(1.0, -shift[i]) if shift[i] >= -900 else 0.0
        row = x[i]
        for h in range(k):
            y = row[h] * factor
            a = _half(y, toward_zero)
            b = _half((y - a) * up, toward_zero)
            high[i, h] = np.float32(a)
            low[i, h] = np.float32(b)
            beyond += np.int64((abs(a) > 65504.0) | (abs(b) > 65504.0))
            squares[0, h] = a * a
            squares[1, h] = b * b
            squares[2, h] = _square((row[h] - a * back) - b * down * back, row[h])
        high2[i] = _sum(squares[0])
        low2[i] = _sum(squares[1])
        residual2[i] = _sum(squares[2])
    return beyond


@kernel(
    "int64(float64[:,::1], int64[::1], int64, boolean, float32[:,::1], float32[:,::1], float64[::1], float64[::1], "
    "float64[::1])"
)
def split_columns(x, shift, sb, toward_zero, high, low, high2, low2, residual2):
    """The same for the columns of x (k, n)."""
    k, n = x.shape
    up = np.ldexp(1.0, sb)
    down = np.ldexp(1.0, -sb)
    factor = np.zeros(n)
    back = np.zeros(n)
    beyond = 0
    for j in range(n):
        if shift[j] >= -900:
            factor[j] = np.ldexp(1.0, shift[j])
            back[j] = np.ldexp(1.0, -shift[j])
        high2[j] = 0.0
        low2[j] = 0.0
        residual2[j] = 0.0
    for h in range(k):
        row = x[h]
        for j in range(n):
            y = row[j] * factor[j]
            a = _half(y, toward_zero)
            b = _half((y - a) * up, toward_zero)
            high[h, j] = np.float32(a)
            low[h, j] = np.float32(b)
            beyond += np.int64((abs(a) > 65504.0) | (abs(b) > 65504.0))
            high2[j] += a * a
            low2[j] += b * b
            residual2[j] += _square((row[j] - a * back[j]) - b * down * back[j], row[j])
    return beyond
