"""Single entries, recomputed: double-double, an exact accumulator, and magnitudes.

Every kernel takes gathered rows (R, k) and columns (Q, k), both contiguous, and index pairs into them.
"""

import math

import numpy as np

from prismm.core.jit import device, device_any_order, fma, kernel
from prismm.cpu.kernels.expansion import add_scaled, fast_two_sum, round_expansion, two_sum

_BASE = 3300
_BINS = 6600
_MASK27 = (1 << 27) - 1
_MASK32 = (1 << 32) - 1


@device
def _products(a, b, p, e):
    """p + e = a·b exactly, unless the product underflows."""
    for h in range(a.size):
        x = a[h] * b[h]
        p[h] = x
        e[h] = fma(a[h], b[h], -x)


@device
def _fold(p, e, half):
    """Add the upper half of the pairs to the lower half; two-sums, their errors gathered in e."""
    for h in range(half):
        s, r = two_sum(p[h], p[half + h])
        p[h] = s
        e[h] = (e[h] + e[half + h]) + r


@device_any_order
def _sum_abs(p):
    total = 0.0
    for h in range(p.size):
        total += abs(p[h])
    return total


@device
def _depth(k):
    """Of a binary tree of k leaves."""
    depth = 0
    while (1 << depth) < k:
        depth += 1
    return depth


@device
def _dot2(a, b, depth, p, e):
    """(error bound, Σ|a·b|) of a dot product, p[0] + e[0] by a tree of this depth; p and e: room for its leaves.

    Dot2 (Ogita, Rump, Oishi 2005) as a binary tree of depth D = ceil(log2 k). Products are exact pairs p + e; each
    level adds at most u·Σ|p|(1+u)^D in magnitude to the gathered errors, so Σ|e| <= (D+1)·u·Σ|p|·(1+2^-40); they are
    summed in a tree of 2D + 1 additions: the error is at most (2D+1)(D+1)·u²·Σ|p|·(1+2^-30). A product that
    underflows loses at most 2^-1074.
    """
    k = a.size
    _products(a, b, p, e) if k > 0 else None
    for h in range(k, p.size):
        p[h] = 0.0
        e[h] = 0.0
    total = _sum_abs(p)
    half = p.size // 2
    while half > 0:
        _fold(p, e, half)
        half //= 2
    return total * ((2 * depth + 1) * (depth + 1)) * 1.0001 * 2.0**-106 + k * 2.0**-1070, total


@device
def _decided(high, low, err, precision, lowest):
    """(RN of all numbers within err of high + low, whether they round alike)."""
    err = err + abs(low) * 2.0**-52
    h0, m0 = two_sum(high, low - err)
    h1, m1 = two_sum(high, low + err)
    below = round_expansion(h0, m0, 0.0, 0, precision, lowest)
    above = round_expansion(h1, m1, 0.0, 0, precision, lowest)
    return below, below == above and (h0 > 0.0) == (h1 > 0.0)


@kernel("void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], int64, float64[::1], uint8[::1])")
def double_double(rows, columns, ri, ci, precision, value, undecided):
    """Each dot product in double-double, rounded; `undecided` where its bound (`_dot2`) leaves the rounding open."""
    k = rows.shape[1]
    depth = _depth(k)
    p = np.empty(1 << depth)
    e = np.empty(1 << depth)
    lowest = -1074 if precision == 53 else -149
    for c in range(ri.size):
        err, total = _dot2(rows[ri[c]], columns[ci[c]], depth, p, e)
        if total == 0.0:
            # Products that underflow to zero still have their error terms to decide: leave those to exact arithmetic.
            any_product = False
            for h in range(k):
                any_product |= rows[ri[c], h] != 0.0 and columns[ci[c], h] != 0.0
            value[c] = 0.0
            undecided[c] = any_product
            continue
        high, low = fast_two_sum(p[0], e[0]) if abs(p[0]) >= abs(e[0]) else two_sum(p[0], e[0])
        undecided[c] = 1
        if total < 2.0**1000 and abs(high) > 2.0**-900:
            value[c], decided = _decided(high, low, err, precision, lowest)
            undecided[c] = not decided


@kernel(
    "void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64[::1], float64[:,::1], float64[::1], int64, "
    "float64[::1], uint8[::1])"
)
def double_double_sums(rows, columns, ri, ci, alpha, addends, beta, precision, value, undecided):
    """The sums of `exact_dots` in double-double, rounded; `undecided` where their own bound leaves the rounding open.

    alpha_g times the dot product of segment g errs by |alpha_g| times that one's bound (`_dot2`). The sum of up to four
    scaled pairs, its twelve tails added in float64, is off by less than 2^-97 times the sum of their magnitudes, as in
    `combine.combine`; what underflows on the way is negligible beside that where the latter is above 2^-800.
    """
    segments = alpha.size
    length = rows.shape[1] // segments
    depth = _depth(length)
    p = np.empty(1 << depth)
    e = np.empty(1 << depth)
    lowest = -1074 if precision == 53 else -149
    for c in range(ri.size):
        high = 0.0
        low = 0.0
        size = 0.0
        err = 0.0
        ok = True
        for g in range(segments):
            if alpha[g] == 0.0:
                continue
            start, stop = g * length, (g + 1) * length
            size_of_group, total = _dot2(rows[ri[c], start:stop], columns[ci[c], start:stop], depth, p, e)
            ok &= 2.0**-800 < total < 2.0**900
            err += abs(alpha[g]) * size_of_group
            x, tail = two_sum(p[0], e[0])
            high, low, size = add_scaled(high, low, size, alpha[g], x, tail)
        for g in range(beta.size):
            if beta[g] != 0.0:
                high, low, size = add_scaled(high, low, size, beta[g], addends[c, g], 0.0)
        high, low = two_sum(high, low)
        undecided[c] = 1
        if ok and 2.0**-800 < size < 2.0**900 and abs(high) > 2.0**-800:
            value[c], decided = _decided(high, low, err * (1.0 + 2.0**-40) + size * 2.0**-96, precision, lowest)
            undecided[c] = not decided


@device
def gather(b, columns, h0, h1, together, out):
    """out[c, h] = b[h, columns[c]] for h0 <= h < h1, so many rows at a time."""
    for h in range(h0, h1, together):
        stop = min(h1, h + together)
        for c in range(columns.size):
            j = columns[c]
            for g in range(h, stop):
                out[c, g] = b[g, j]


@kernel("void(float64[:,::1], int64[::1], int64, int64, float64[:,::1])")
def gather_columns(b, columns, h0, h1, out):
    """out[c, h] = b[h, columns[c]] for h0 <= h < h1: eight rows at a time, so that reads and writes stay in cache
    lines.
    """
    gather(b, columns, h0, h1, 8, out)


@device
def _parts(x):
    """Finite x = (high·2^27 + low)·2^e with |high| < 2^26, 0 <= |low| < 2^27, both of x's sign."""
    if x == 0.0:
        return np.int64(0), np.int64(0), np.int64(0)
    fraction, e = math.frexp(x)
    e -= 53
    if e < -1074:
        fraction = math.ldexp(fraction, e + 1074)
        e = -1074
    m = np.int64(math.ldexp(fraction, 53))
    sign = np.int64(1)
    if m < 0:
        m = -m
        sign = np.int64(-1)
    return sign * (m >> 27), sign * (m & _MASK27), np.int64(e)


@device
def _deposit(bins, position, v):
    """Add v·2^position, |v| < 2^56, in two pieces below 2^32: 2^30 deposits fit in an int64 bin."""
    bins[position] += v & _MASK32
    bins[position + 32] += v >> 32


@device
def _deposit_product(bins, x, y, z):
    """Add x·y·z exactly; returns the lowest bin used, or a large number for zero."""
    if x == 0.0 or y == 0.0 or z == 0.0:
        return _BINS
    y1, y0, ye = _parts(y)
    z1, z0, ze = _parts(z)
    if x == 1.0 or x == -1.0:
        position = ye + ze + _BASE
        if x < 0.0:
            y1 = -y1
            y0 = -y0
        _deposit(bins, position, y0 * z0)
        _deposit(bins, position + 27, y1 * z0 + y0 * z1)
        _deposit(bins, position + 54, y1 * z1)
        return position
    x1, x0, xe = _parts(x)
    position = xe + ye + ze + _BASE
    # x·y in base 2^27: four digits, the signs carried along.
    t = x0 * y0
    d0 = t & _MASK27
    t = (t >> 27) + x1 * y0 + x0 * y1
    d1 = t & _MASK27
    t = (t >> 27) + x1 * y1
    d2 = t & _MASK27
    d3 = t >> 27
    _deposit(bins, position, d0 * z0)
    _deposit(bins, position + 27, d0 * z1 + d1 * z0)
    _deposit(bins, position + 54, d1 * z1 + d2 * z0)
    _deposit(bins, position + 81, d2 * z1 + d3 * z0)
    _deposit(bins, position + 108, d3 * z1)
    return position


@device
def _round_bins(bins, lowest_bin, highest_bin, precision, lowest):
    """RN of Σ bins[i]·2^(i-base); clears the bins it read."""
    stop = min(highest_bin + 200, bins.size)
    carry = np.int64(0)
    for i in range(lowest_bin, stop):
        carry = (carry + bins[i]) >> 1
    negative = carry < 0
    carry = np.int64(0)
    top = np.int64(-1)
    for i in range(lowest_bin, stop):
        carry += -bins[i] if negative else bins[i]
        bins[i] = carry & 1
        if bins[i]:
            top = i
        carry >>= 1
    significand = np.int64(0)
    value = 0.0
    if top >= 0:
        for d in range(61):
            i = top - d
            significand = 2 * significand + (bins[i] if i >= lowest_bin else 0)
        sticky = np.int64(0)
        for i in range(lowest_bin, top - 60):
            sticky |= bins[i]
        significand = 2 * significand + sticky
        e = top - 61 - _BASE
        drop = max(62 - precision, lowest - e)
        if drop <= 62:
            head = significand >> drop
            rest = significand & ((np.int64(1) << drop) - 1)
            half = np.int64(1) << (drop - 1)
            if rest > half or (rest == half and head & 1):
                head += 1
            value = np.float64(head)
            limit = 1024 if precision == 53 else 128
            value = np.inf if math.frexp(value)[1] + e + drop > limit else math.ldexp(value, e + drop)
        value = -value if negative else value
    for i in range(lowest_bin, stop):
        bins[i] = 0
    return value


@kernel(
    "void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64[::1], float64[:,::1], float64[::1], int64, "
    "float64[::1])"
)
def exact_dots(rows, columns, ri, ci, alpha, addends, beta, precision, value):
    """RN(Σ_g alpha_g·(segment g of row · segment g of column) + Σ_h beta_h·addends[c, h]), each entry exactly rounded.

    Rows and columns hold len(alpha) segments of equal length. One bin per binary place (a long accumulator after
    Kulisch); for finite input of any exponent.
    """
    k = rows.shape[1]
    segments = alpha.size
    length = k // segments
    bins = np.zeros(_BINS, np.int64)
    lowest = -1074 if precision == 53 else -149
    for c in range(ri.size):
        a = rows[ri[c]]
        b = columns[ci[c]]
        first = np.int64(_BINS)
        last = np.int64(0)
        for g in range(segments):
            for h in range(g * length, (g + 1) * length):
                position = _deposit_product(bins, alpha[g], a[h], b[h])
                if position < _BINS:
                    first = min(first, position)
                    last = max(last, position)
        for g in range(beta.size):
            position = _deposit_product(bins, 1.0, beta[g], addends[c, g])
            if position < _BINS:
                first = min(first, position)
                last = max(last, position)
        value[c] = _round_bins(bins, first, last, precision, lowest) if first < _BINS else 0.0


@kernel("void(float64[:,::1], int64[::1], uint8[:,::1])")
def magnitudes(rows, exponent, out):
    """2·floor(|a|·2^(7-e)) + (a != 0) as a byte, for rows with |a| < 2^e; zero rows and non-finite ones are 0."""
    for i in range(rows.shape[0]):
        half = (7 - exponent[i]) // 2
        f1 = math.ldexp(1.0, half) if exponent[i] < 1 << 16 else 0.0
        f2 = math.ldexp(1.0, 7 - exponent[i] - half) if exponent[i] < 1 << 16 else 0.0
        for h in range(rows.shape[1]):
            x = abs(rows[i, h])
            nonzero = (x > 0.0) & (f1 > 0.0)
            out[i, h] = np.uint8(2 * np.int64(x * f1 * f2) + 1) if nonzero else np.uint8(0)


@device_any_order
def _magnitude_dot(a, b):
    total = np.int32(0)
    hits = np.int32(0)
    for h in range(a.size):
        x = np.int32(a[h])
        y = np.int32(b[h])
        total += (x >> 1) * (y >> 1)
        hits |= x & y & 1
    return total, hits


@kernel("void(uint8[:,::1], uint8[:,::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def magnitude_dots(rows, columns, ri, ci, total, hit):
    """Σ of the products of 7-bit magnitudes per entry (exact), and whether any product of the given operands is
    nonzero.
    """
    k = rows.shape[1]
    for c in range(ri.size):
        a = rows[ri[c]]
        b = columns[ci[c]]
        total[c] = 0
        hit[c] = 0
        for h in range(0, k, 1 << 16):
            t, s = _magnitude_dot(a[h : h + (1 << 16)], b[h : h + (1 << 16)])
            total[c] += t
            hit[c] |= s
