"""Rows and columns scaled by powers of two, so that the largest element of each is in [1/2, 1).

Bytes: each element is read twice and written once; eight operations an element.
"""

import numpy as np

from prismm.core.jit import contiguous_row, kernel, wide_vectors
from prismm.cpu.kernels.scale import exponent_above, two_factors

_INFINITE = 0x7FF0000000000000
"""The bit pattern of Inf; those of NaN are larger."""

_MAGNITUDE = 0x7FFFFFFFFFFFFFFF


@kernel("void(float64[:,::1], int64, int64, float64[:,::1], int64[::1], uint8[::1])")
def unit_rows(x, i0, i1, out, exponents, finite):
    """Rows i0 … i1 - 1 of x into the first columns of out, times 2^-exponents; Inf and NaN become 0.

    finite: whether a row has neither Inf nor NaN.
    """
    wide_vectors()
    k = x.shape[1]
    for i in range(i0, i1):
        row = contiguous_row(x, i, 0, k)
        to = contiguous_row(out, i, 0, k)
        bits = row.view(np.int64)
        most = np.int64(0)
        largest = np.int64(0)
        for h in range(k):
            # Without the sign bit patterns order like magnitudes.
            size = bits[h] & _MAGNITUDE
            most = max(most, size)
            largest = max(largest, size if size < _INFINITE else 0)
        e = exponent_above(largest)
        exponents[i] = e
        finite[i] = most < _INFINITE
        # Two factors, as 2^-e of a subnormal row is beyond float64.
        f1, f2 = two_factors(-e)
        for h in range(k):
            to[h] = row[h] * f1 * f2 if (bits[h] & _MAGNITUDE) < _INFINITE else 0.0


@kernel("void(float64[:,::1], int64, int64, int64, float64[:,::1], int64[::1], uint8[::1])")
def unit_columns(x, j0, j1, parts, out, exponents, finite):
    """The same of columns j0 … j1 - 1 into the first rows of out; `parts` columns in turn share an exponent.

    j0 and j1 are multiples of `parts`; exponents and finite have an element for each group.
    """
    wide_vectors()
    w = j1 - j0
    sizes = np.zeros((2, w), np.int64)
    factors = np.empty((2, w))
    most, largest = contiguous_row(sizes, 0, 0, w), contiguous_row(sizes, 1, 0, w)
    f1, f2 = contiguous_row(factors, 0, 0, w), contiguous_row(factors, 1, 0, w)
    for h in range(x.shape[0]):
        bits = contiguous_row(x, h, j0, w).view(np.int64)
        for j in range(w):
            size = bits[j] & _MAGNITUDE
            most[j] = max(most[j], size)
            largest[j] = max(largest[j], size if size < _INFINITE else 0)
    for group in range(w // parts):
        top, above = np.int64(0), np.int64(0)
        for j in range(group * parts, (group + 1) * parts):
            top, above = max(top, largest[j]), max(above, most[j])
        e = exponent_above(top)
        exponents[j0 // parts + group] = e
        finite[j0 // parts + group] = above < _INFINITE
        for j in range(group * parts, (group + 1) * parts):
            f1[j], f2[j] = two_factors(-e)
    for h in range(x.shape[0]):
        row, to = contiguous_row(x, h, j0, w), contiguous_row(out, h, j0, w)
        bits = row.view(np.int64)
        for j in range(w):
            to[j] = row[j] * f1[j] * f2[j] if (bits[j] & _MAGNITUDE) < _INFINITE else 0.0


@kernel("void(float64[:,:], float32[:,::1])")
def unit_magnitudes(x, out):
    """|x| in float32, of contiguous rows."""
    wide_vectors()
    n = x.shape[1]
    for i in range(x.shape[0]):
        row, to = contiguous_row(x, i, 0, n), contiguous_row(out, i, 0, n)
        for j in range(n):
            to[j] = np.float32(abs(row[j]))
