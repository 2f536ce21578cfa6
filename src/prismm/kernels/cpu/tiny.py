"""Tiny products in one compiled call: double-double dot products, vectorised over the columns, with the certificate.

For correct rounding the operands themselves are multiplied, for `Residues` the rounded operands A', B' (float64
integers). The double-double value is off by at most `err`, so either its rounding is certain, and then it is the
value that any engine returns, or the call gives up and leaves the product to the ordinary road.
"""

import math

import numpy as np

from prismm.kernels.cpu.finish import bounds, pigeonhole
from prismm.kernels.cpu.jit import contiguous_part, contiguous_row, device, fma, kernel
from prismm.kernels.cpu.scale import bound_terms, scale_columns, scale_rows

STRIP = 256
_scale_rows = scale_rows.device
_scale_columns = scale_columns.device
_bound_terms = bound_terms.device


@device
def _add_products(x, y, s, c, g):
    """s + c += x·y in double-double, g += |x·y|."""
    for j in range(y.size):
        p = x * y[j]
        e = fma(x, y[j], -p)
        t = s[j] + p
        z = t - s[j]
        r = (s[j] - (t - z)) + (p - z)
        s[j] = t
        c[j] += e + r
        g[j] += abs(p)


@device
def _settle(s, c, g, factor, precision, shift, none_lost, value, open_):
    """value = RN((s + c)·2^-shift), and where that is not certain: the rounding is open, or the range is unusual."""
    for j in range(s.size):
        high = s[j] + c[j]
        low = c[j] - (high - s[j])
        err = fma(g[j], factor, abs(low) * 2.0**-50)
        below = high + (low - err)
        above = high + (low + err)
        size = abs(high)
        usual = (size > 2.0**-900) & (size < 2.0**900) & (g[j] < 2.0**1000)
        scale = shift[j]
        if precision == 53:
            certain = (below == high) & (above == high)
            value[j] = high * scale
            usual &= (size * scale > 2.0**-1000) & (size * scale < 2.0**1000)
        else:
            lo = (below - abs(below) * 2.0**-51) * scale
            hi = (above + abs(above) * 2.0**-51) * scale
            certain = (np.float32(lo) == np.float32(hi)) & ((lo > 0.0) == (hi > 0.0))
            value[j] = np.float64(np.float32(high * scale))
            usual &= (size * scale > 2.0**-900) & (size * scale < 2.0**126)
        nothing = (g[j] == 0.0) & none_lost
        open_[j] = np.uint8(not (nothing | (certain & usual)))


@device
def _smallest(x):
    least = np.inf
    for i in range(x.shape[0]):
        row = x[i]
        for h in range(row.size):
            v = abs(row[h])
            least = v if (v < least) & (v > 0.0) else least
    return least


@kernel(
    "int64(float64[:,::1], float64[:,::1], int64[::1], int64, int64, int64, float64, float64, int64, float64[:,:], "
    "float32[:,:])"
)
def tiny_product(a, b, thresholds, q, levels, mode, kappa, magnitude_kappa, precision, out, out32):
    """A real product (m, k) by (k, n) into out (precision 53) or out32 (24); returns how many entries are left open.

    mode 1: RN(exact). mode 2: RN of the product of the rounded operands, certified by kappa as in `join.join_fused`,
    a priori. Open are all entries (m·n of them) where an operand holds Inf or NaN.

    Errors of c: its 2k addends are at most u|p| and u·g(1+ku) each, (k+1)·u·g in sum, so 2k additions lose at most
    2k(k+1)u²g; 2.1·(k+1)²·u² covers that and the rounding of g, and 2^-1000 what underflows beside |s| > 2^-900.
    """
    m, k = a.shape
    n = b.shape[1]
    row_shift = np.zeros(m, np.int64)
    x = a
    y = b
    column_scale = np.ones(n)
    rows = np.zeros((4, m), np.int64)
    columns = np.zeros((4, n), np.int64)
    row_counts = np.empty((m, levels), np.int64)
    column_counts = np.empty((n, levels), np.int64)
    row_terms = np.zeros((4, m))
    column_terms = np.zeros((4, n))
    if mode == 2:
        _scale_rows(a, thresholds, q, rows[0], rows[1], rows[2], rows[3], row_counts)
        _scale_columns(b, 0, thresholds, q, columns[0], columns[1], columns[2], columns[3], column_counts)
        for i in range(m):
            if rows[0, i] >= 1 << 20 or abs(rows[1, i]) > 400:
                return m * n
        x = np.empty((m, k))
        y = np.empty((k, n))
        row_residual = np.zeros(m)
        column_residual = np.zeros(n)
        row_tiny = np.zeros(m, np.uint8)
        column_tiny = np.zeros(n, np.uint8)
        up = np.empty(n)
        for j in range(n):
            if columns[0, j] >= 1 << 20 or abs(columns[1, j]) > 400:
                return m * n
            up[j] = math.ldexp(1.0, columns[1, j])
            column_scale[j] = math.ldexp(1.0, -columns[1, j])
        for i in range(m):
            row_shift[i] = rows[1, i]
            f = math.ldexp(1.0, row_shift[i])
            source = a[i]
            target = x[i]
            for h in range(k):
                scaled = source[h] * f
                target[h] = np.rint(scaled)
                row_residual[i] += abs(scaled - target[h])
                row_tiny[i] |= np.uint8((target[h] == 0.0) & (source[h] != 0.0))
        for h in range(k):
            source = b[h]
            target = y[h]
            for j in range(n):
                scaled = source[j] * up[j]
                target[j] = np.rint(scaled)
                column_residual[j] += abs(scaled - target[j])
                column_tiny[j] |= np.uint8((target[j] == 0.0) & (source[j] != 0.0))
        _bound_terms(rows[0], rows[1], q, rows[2], rows[3], row_residual, row_tiny, k, 1, row_terms)
        _bound_terms(
            columns[0], columns[1], q, columns[2], columns[3], column_residual, column_tiny, k, 1, column_terms
        )
    none_lost = mode == 2 or _smallest(a) * _smallest(b) > 2.0**-1000
    factor = 2.1 * (k + 1.0) * (k + 1.0) * 2.0**-106
    s = np.empty(STRIP)
    c = np.empty(STRIP)
    g = np.empty(STRIP)
    value = np.empty(STRIP)
    scale = np.empty(STRIP)
    bound = np.empty(STRIP)
    open_ = np.empty(STRIP, np.uint8)
    count = 0
    for i in range(m):
        for j0 in range(0, n, STRIP):
            j1 = min(n, j0 + STRIP)
            w = j1 - j0
            f = math.ldexp(1.0, -row_shift[i])
            sw, cw, gw = contiguous_part(s, 0, w), contiguous_part(c, 0, w), contiguous_part(g, 0, w)
            for j in range(w):
                s[j] = 0.0
                c[j] = 0.0
                g[j] = 0.0
                scale[j] = column_scale[j0 + j] * f
            for h in range(k):
                _add_products(x[i, h], contiguous_row(y, h, j0, w), sw, cw, gw)
            _settle(s[:w], c[:w], g[:w], factor, precision, scale[:w], none_lost, value[:w], open_[:w])
            if mode == 2:
                bounds(
                    row_terms[0, i], row_terms[1, i], row_terms[2, i], row_terms[3, i],
                    column_terms[0, j0:j1], column_terms[1, j0:j1], column_terms[2, j0:j1], column_terms[3, j0:j1],
                    k / 4.0, bound[:w],
                )  # fmt: skip
                for j in range(w):
                    # Join's test of RN53(C'), with an ulp to spare: what is so close may be decided on the ordinary
                    # road.
                    e = bound[j]
                    if e != 0.0 and not abs(s[j] + c[j]) * (1.0 - 2.0**-50) >= e * kappa:
                        power = rows[0, i] + rows[1, i] + columns[0, j0 + j] + columns[1, j0 + j]
                        size = (abs(s[j] + c[j]) + e) * scale[j]
                        far = size < (2.0**1000 if precision == 53 else 2.0**126)
                        if not far or not pigeonhole(
                            row_counts[i], column_counts[j0 + j], k, power, e * magnitude_kappa, 0
                        ):
                            open_[j] = 1
            for j in range(w):
                count += open_[j]
            if precision == 53:
                for j in range(w):
                    out[i, j0 + j] = value[j]
            else:
                for j in range(w):
                    out32[i, j0 + j] = np.float32(value[j])
    return count
