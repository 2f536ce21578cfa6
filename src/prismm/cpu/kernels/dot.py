"""Single entries, recomputed: double-double, an exact accumulator, and magnitudes.

Every kernel takes gathered rows (R, k) and columns (Q, k), both contiguous, and index pairs into them.
"""

import math

import numpy as np

from prismm.core.jit import contiguous_row, device, device_any_order, fma, kernel, wide_vectors
from prismm.cpu.kernels.expansion import add_scaled, fast_two_sum, round_expansion, two_sum


@device
def _products(a, b, p, e):
    """p + e = a·b exactly, unless the product underflows."""
    wide_vectors()
    for h in range(a.size):
        x = a[h] * b[h]
        p[h] = x
        e[h] = fma(a[h], b[h], -x)


@device
def _fold(p, e, half):
    """Add the upper half of the pairs to the lower half; two-sums, their errors gathered in e."""
    wide_vectors()
    for h in range(half):
        s, r = two_sum(p[h], p[half + h])
        p[h] = s
        e[h] = (e[h] + e[half + h]) + r


@device_any_order
def _sum_abs(p):
    wide_vectors()
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
    # Leaves without a term are zeros, so that the tree is full.
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
    # For the rounding of low - err and low + err themselves.
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
        # So far from the ends of the range no partial sum overflows, and neither errors nor their bound are subnormal.
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
            ok &= 2.0**-800 < total < 2.0**1000
            err += abs(alpha[g]) * size_of_group
            # Dekker's fast two-sum would not do: where the products cancel, |e| may exceed |p|.
            x, tail = two_sum(p[0], e[0])
            high, low, size = add_scaled(high, low, size, alpha[g], x, tail)
        for g in range(beta.size):
            if beta[g] != 0.0:
                high, low, size = add_scaled(high, low, size, beta[g], addends[c, g], 0.0)
        high, low = two_sum(high, low)
        undecided[c] = 1
        if ok and 2.0**-800 < size < 2.0**1000 and abs(high) > 2.0**-800:
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
def _seven_bits(exponent):
    """Two factors that together are 2^(7-e), which of a subnormal row is beyond float64; 0 where it is not finite."""
    half = (7 - exponent) // 2
    finite = exponent < 1 << 16
    return math.ldexp(1.0, half) if finite else 0.0, math.ldexp(1.0, 7 - exponent - half) if finite else 0.0


@kernel("void(float64[:,::1], int64[::1], uint8[:,::1])")
def magnitudes(rows, exponent, out):
    """2·floor(|a|·2^(7-e)) + (a != 0) as a byte, for rows with |a| < 2^e; zero rows and non-finite ones are 0."""
    for i in range(rows.shape[0]):
        f1, f2 = _seven_bits(exponent[i])
        for h in range(rows.shape[1]):
            x = abs(rows[i, h])
            nonzero = (x > 0.0) & (f1 > 0.0)
            out[i, h] = np.uint8(2 * np.int64(x * f1 * f2) + 1) if nonzero else np.uint8(0)


@kernel("void(float64[:,::1], int64[::1], boolean, int8[:,::1], int8[:,::1])")
def magnitude_bytes(x, exponent, by_rows, sizes, ones):
    """floor(|a|·2^(7-e)) and (a != 0) as bytes, of rows, or columns, with |a| < 2^e; zero and non-finite ones are 0."""
    wide_vectors()
    n = x.shape[1]
    factors = np.empty((2, n))
    f1, f2 = contiguous_row(factors, 0, 0, n), contiguous_row(factors, 1, 0, n)
    if not by_rows:
        for j in range(n):
            f1[j], f2[j] = _seven_bits(exponent[j])
    for i in range(x.shape[0]):
        if by_rows:
            of_row = _seven_bits(exponent[i])
            f1[:] = of_row[0]
            f2[:] = of_row[1]
        row = contiguous_row(x, i, 0, n)
        size, one = contiguous_row(sizes, i, 0, n), contiguous_row(ones, i, 0, n)
        for j in range(n):
            a = abs(row[j])
            there = (a > 0.0) & (f1[j] > 0.0)
            size[j] = np.int8(np.int32(a * f1[j] * f2[j])) if there else np.int8(0)
            one[j] = np.int8(there)


@device_any_order
def _magnitude_dot(a, b):
    total = np.int32(0)
    hits = np.int32(0)
    for h in range(a.size):
        x = np.int32(a[h])
        y = np.int32(b[h])
        total += (x >> 1) * (y >> 1)
        # The lowest bit says "not zero", also of elements whose seven bits are 0.
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
        # So many products of 7 bits add up to less than 2^30, within int32.
        for h in range(0, k, 1 << 16):
            t, s = _magnitude_dot(a[h : h + (1 << 16)], b[h : h + (1 << 16)])
            total[c] += t
            hit[c] |= s
