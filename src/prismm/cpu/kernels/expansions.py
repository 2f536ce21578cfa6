"""Entries in two or three times float64's precision, a row of them at a time: sums whose errors are summed, and the
errors of these (Ogita, Rump and Oishi 2005).

Of every product a·b = p + r, exactly. Two-sums carry p into s, exactly; what they leave, x, goes with r into e; in
three times the precision two-sums carry both into e, and what those leave goes into t. With u = 2^-53, k terms and S =
Σ|p|:

twice: |r| + |x| add up to at most (k + 1)·u·S, and two roundings for each term err by no more than (k + 1)²·u²·S, below
2·k·(k + 2)·u²·S.
thrice: what 2·k two-sums in e leave is at most 2·k·(k + 1)·u²·S, and two roundings for each term err by no more than
2·k·(k + 1)²·u³·S, below 4·k²·(k + 2)·u³·S.
All are larger by factors of 1 + k·u, which 1 + 2^-20 covers.

Rows and columns are scaled by powers of two, so that all elements are below 2^480. Elements below 2^-450 are left out,
which changes a sum by at most 2·k·2^(480 - 450). Products of the others are at least 2^-900, and the errors of their
sums are no subnormal numbers, with which processors are slow.

Per term 8 bytes from the cache and 13 or 25 operations, shared by eight lanes: 0.45 and 0.9 ns at 2 GHz.
"""

import numpy as np

from prismm.core.jit import bits_of, contiguous_row, device, fma, kernel, wide_vectors
from prismm.cpu.kernels.expansion import two_sum
from prismm.cpu.kernels.many import round_strip
from prismm.cpu.kernels.many_sum import add_addends
from prismm.cpu.kernels.scale import exponent_above, two_factors

_WIDE = 256
_STRIP = 1 << 17
"""Columns at a time, and elements of them: 1 MB, that they stay in the cache while all rows meet them."""

_TOP = 480
_LEAST = 2.0**-450
_LEFT_OUT = 2.0**32


@device
def _add_two(x, row, s, e, size):
    """Add x·row to s + e, and |x·row| to size."""
    wide_vectors()
    for j in range(s.size):
        p = x * row[j]
        r = fma(x, row[j], -p)
        total, left = two_sum(s[j], p)
        s[j] = total
        e[j] += left + r
        size[j] += abs(p)


@device
def _add_three(x, row, s, e, t, size):
    """Add x·row to s + e + t."""
    wide_vectors()
    for j in range(s.size):
        p = x * row[j]
        r = fma(x, row[j], -p)
        total, left = two_sum(s[j], p)
        s[j] = total
        middle, first = two_sum(e[j], r)
        middle, second = two_sum(middle, left)
        e[j] = middle
        t[j] += first + second
        size[j] += abs(p)


@device
def _renormalise(s, e, t, size, out, k, parts, h, m, rest, bound):
    """s + e + t as h + m, with a bound of what they and their errors add to that; `rest` is zero."""
    u = 2.0**-53
    factor = 2.0 * k * (k + 2.0) * u * u if parts == 2 else 4.0 * k * k * (k + 2.0) * u * u * u
    for j in range(h.size):
        # Two passes: after cancellation the errors may be larger than the sum, and the first pass only brings them into
        # order.
        a, b = two_sum(s[j], e[j])
        b, c = two_sum(b, t[j])
        a, b = two_sum(a, b)
        b, c = two_sum(b, c)
        a, b = two_sum(a, b)
        h[j] = a
        m[j] = b
        rest[j] = 0.0
        # c is not kept, so it counts as an error.
        missing = size[j] * (factor * (1.0 + 2.0**-20)) + abs(c) + out[j] * (k * _LEFT_OUT)
        bound[j] = missing * (1.0 + 2.0**-50)


@device
def _scaled(x, f1, f2):
    """x·f1·f2, or 0 where that is to be left out."""
    y = x * f1 * f2
    return y if abs(y) >= _LEAST else 0.0


@device
def _in_units_of(size, h, m, bound, shift):
    """Measure h + m and its bound in units of the power of two above the size. The bound takes up numbers that are then
    below 2^-700. The sizes become 0. A bound is 0 only if the size is.
    """
    least = 2.0**-700
    for j in range(h.size):
        e = exponent_above(bits_of(size[j])) if size[j] > 0.0 else np.int64(0)
        f1, f2 = two_factors(-e)
        high, middle = h[j] * f1 * f2, m[j] * f1 * f2
        left_out = (abs(high) < least) | (abs(middle) < least)
        h[j] = high if abs(high) >= least else 0.0
        m[j] = middle if abs(middle) >= least else 0.0
        bound[j] = bound[j] * f1 * f2 * (1.0 + 2.0**-50) + (4.0 * least if left_out & (size[j] > 0.0) else 0.0)
        shift[j] -= e
        size[j] = 0.0


@kernel(
    "int64(float64[:,::1], float64[:,::1], int64[::1], int64[::1], uint8[:,:], int64, float64[::1], float64[:,::1], "
    "int64, float64[:,:], float32[:,:], int32[::1])"
)
def expanded_product(
    left, right, row_top, column_top, wanted, parts, factors, addends, precision, out, out32, failed
):  # fmt: skip
    """The wanted entries of left (m, k) times right (k, n), rounded; returns how many roundings are not proved, their
    i·n + j in `failed`.

    row_top, column_top: all |x| are below 2^top. parts: 2 or 3. factors, addends: as of `many_sum.add_addends`; empty
    without. Entries beside wanted ones are overwritten.
    """
    m, k = left.shape
    n = right.shape[1]
    wide = max(32, min(_WIDE, _STRIP // max(k, 1) // 32 * 32))
    scaled, row = np.empty((k, wide)), np.empty(k)
    sums, work = np.empty((5, _WIDE)), np.empty((5, _WIDE))
    powers, cut = np.empty((2, _WIDE)), np.empty((1, _WIDE))
    shifts, flags = np.empty((1, _WIDE), np.int64), np.empty((2, _WIDE), np.uint8)
    count = np.int64(0)
    for j0 in range(0, n, wide):
        w = min(n, j0 + wide) - j0
        s, e = contiguous_row(sums, 0, 0, w), contiguous_row(sums, 1, 0, w)
        t, size, missed = contiguous_row(sums, 2, 0, w), contiguous_row(sums, 3, 0, w), contiguous_row(sums, 4, 0, w)
        high, low, rest = contiguous_row(work, 0, 0, w), contiguous_row(work, 1, 0, w), contiguous_row(work, 2, 0, w)
        bound, value = contiguous_row(work, 3, 0, w), contiguous_row(work, 4, 0, w)
        f1, f2, column_cut = (
            contiguous_row(powers, 0, 0, w),
            contiguous_row(powers, 1, 0, w),
            contiguous_row(cut, 0, 0, w),
        )
        shift = contiguous_row(shifts, 0, 0, w)
        for j in range(w):
            f1[j], f2[j] = two_factors(_TOP - column_top[j0 + j])
            column_cut[j] = 0.0
        for h in range(k):
            source, target = contiguous_row(right, h, j0, w), contiguous_row(scaled, h, 0, w)
            for j in range(w):
                target[j] = _scaled(source[j], f1[j], f2[j])
                column_cut[j] = 1.0 if (target[j] == 0.0) & (source[j] != 0.0) else column_cut[j]
        for i in range(m):
            # A row without a wanted entry would take as many terms as another.
            any_wanted = False
            for j in range(w):
                any_wanted |= wanted[i, j0 + j] != 0
            if not any_wanted:
                continue
            g1, g2 = two_factors(_TOP - row_top[i])
            row_cut = 0.0
            for h in range(k):
                row[h] = _scaled(left[i, h], g1, g2)
                row_cut = 1.0 if (row[h] == 0.0) & (left[i, h] != 0.0) else row_cut
            for j in range(w):
                s[j] = 0.0
                e[j] = 0.0
                t[j] = 0.0
                size[j] = 0.0
                missed[j] = max(row_cut, column_cut[j])
                shift[j] = 2 * _TOP - row_top[i] - column_top[j0 + j]
            for h in range(k):
                # Wide rows have many elements that count as zero: their terms are skipped.
                if row[h] != 0.0:
                    if parts == 2:
                        _add_two(row[h], contiguous_row(scaled, h, 0, w), s, e, size)
                    else:
                        _add_three(row[h], contiguous_row(scaled, h, 0, w), s, e, t, size)
            _renormalise(s, e, t, size, missed, k, parts, high, low, rest, bound)
            if factors.size > 0:
                _in_units_of(size, high, low, bound, shift)
                add_addends(high, low, rest, bound, size, np.int64(0), shift, factors, addends, i, j0)
            count = round_strip(
                high, low, rest, 0, bound, shift, i, j0, precision, out, out32, failed, count, value, flags
            )
    return count


@device
def _in_sum(s, bound, factors, addends, row, j0, n):
    """s = f·s + Σ g·c in float64; the bound takes up f and all roundings, each below u of its result or 2^-1074."""
    wide_vectors()
    f, u = factors[0], 2.0**-53
    for j in range(s.size):
        s[j] = f * s[j]
        bound[j] = abs(f) * bound[j] + abs(s[j]) * u
    for which in range(factors.size - 1):
        g, c = factors[which + 1], contiguous_row(addends, row, which * n + j0, s.size)
        for j in range(s.size):
            added = g * c[j]
            s[j] += added
            bound[j] += (abs(added) + abs(s[j])) * u
    for j in range(s.size):
        # 2^-49 covers the roundings of the bound.
        error = bound[j] * (1.0 + 2.0**-49) + 2.0**-1060
        finite = error < np.inf
        s[j] = s[j] if finite else 0.0
        bound[j] = error if finite else np.inf


@kernel(
    "int64(float64[:,::1], float64[::1], float64[::1], float64, float64[::1], float64[:,::1], float32[:,:], int32[::1])"
)
def rounded_product(product, row_norm, column_norm, factor, factors, addends, out, failed):
    """out = entries that differ by at most factor·row_norm·column_norm from those of a product in float64, rounded to
    float32; returns how many roundings are not proved, their i·n + j in `failed`.

    factors, addends: f, and the numbers g, of f·product + Σ g·c; (m, n) for each g, side by side, the numbers c. Both
    are empty for the product alone.
    """
    m, n = product.shape
    work, flags = np.empty((5, _WIDE)), np.empty((2, _WIDE), np.uint8)
    shifts, nothing = np.zeros((1, _WIDE), np.int64), np.empty((0, 0))
    count = np.int64(0)
    for j0 in range(0, n, _WIDE):
        w = min(n, j0 + _WIDE) - j0
        high, low, rest = contiguous_row(work, 0, 0, w), contiguous_row(work, 1, 0, w), contiguous_row(work, 2, 0, w)
        bound, value, shift = (
            contiguous_row(work, 3, 0, w),
            contiguous_row(work, 4, 0, w),
            contiguous_row(shifts, 0, 0, w),
        )
        for i in range(m):
            source, of_row = contiguous_row(product, i, j0, w), factor * row_norm[i]
            for j in range(w):
                high[j] = source[j]
                low[j] = 0.0
                rest[j] = 0.0
                bound[j] = of_row * column_norm[j0 + j]
            if factors.size > 0:
                _in_sum(high, bound, factors, addends, i, j0, n)
            count = round_strip(high, low, rest, 0, bound, shift, i, j0, 24, nothing, out, failed, count, value, flags)
    return count
