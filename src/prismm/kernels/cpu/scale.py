"""Scale exponents of rows and columns, from exact integer norms.

For a row a with |a_h| < 2^e: v_h = ceil(|a_h|·2^(q-e)) <= 2^q, ν = Σ v_h², s = t + q - e with t the largest shift that
keeps 2·ν·4^t within the scheme's limit (`moduli.norm_limit`). Sums of squares of integers below 2^20 are exact in float64
for 2^13 terms, then added in int64: no order of summation, thread count or stride can change them.

A row with Inf or NaN counts as zero here; its results come from `specials`.
Bytes: each operand is read twice (the second time mostly from cache); 8 flops an element.
"""

import numpy as np
from numba.core import types  # noqa: F401  (named in signatures)

from prismm.kernels.cpu.jit import device, device_any_order, kernel

_EXPONENT_MASK = 0x7FF0000000000000
_CHUNK = 8192
_COLUMNS = 64


@device
def exponent_above(bits):  # type: ignore[no-untyped-def]
    """The smallest e with x < 2^e for the positive finite float64 with this bit pattern; 0 for zero."""
    if bits == 0:
        return 0
    field = bits >> 52
    if field > 0:
        return field - 1022
    e = -1074
    while bits > 0:
        bits >>= 1
        e += 1
    return e


@device_any_order
def _largest_bits(row):  # type: ignore[no-untyped-def]
    bits = row.view(np.int64)
    largest = np.int64(0)
    for h in range(bits.size):
        largest = max(largest, bits[h] & 0x7FFFFFFFFFFFFFFF)
    return largest


@device
def _scaled_up(row, f1, f2, v):  # type: ignore[no-untyped-def]
    """v = ceil(|a|·f1·f2), in this order: f1·f2 alone may overflow. A nonzero element that underflows counts as 1."""
    for h in range(row.size):
        x = np.ceil(abs(row[h]) * f1 * f2)
        v[h] = 1.0 if (x == 0.0 and row[h] != 0.0) else x


@device_any_order
def _sums(v):  # type: ignore[no-untyped-def]
    squares = 0.0
    total = 0.0
    for h in range(v.size):
        squares += v[h] * v[h]
        total += v[h]
    return squares, total


@device
def two_factors(exponent):  # type: ignore[no-untyped-def]
    """2^exponent as a product of two normal powers of two (|exponent| <= 2000)."""
    half = exponent // 2
    return np.ldexp(1.0, half), np.ldexp(1.0, exponent - half)


@device
def shift_for(norm, thresholds):  # type: ignore[no-untyped-def]
    """The largest t with norm <= thresholds[t]; thresholds decrease."""
    t = 0
    while t + 1 < thresholds.size and norm <= thresholds[t + 1]:
        t += 1
    return t


@kernel("void(float64[:,::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def scale_rows(a, thresholds, q, exponent, shift, norm2, norm1):  # type: ignore[no-untyped-def]
    """Per row of `a` (m, k): e, t, ν and Σv (both in units of 2^(e-q), squared for ν). Non-finite rows: e = 2^20, rest 0."""
    m, k = a.shape
    v = np.empty(min(k, _CHUNK))
    for i in range(m):
        bits = _largest_bits(a[i])
        exponent[i] = 0
        shift[i] = 0
        norm2[i] = 0
        norm1[i] = 0
        if bits >= _EXPONENT_MASK:
            exponent[i] = 1 << 20
        elif bits > 0:
            e = exponent_above(bits)
            f1, f2 = two_factors(q - e)
            for h in range(0, k, _CHUNK):
                row = a[i, h : h + _CHUNK]
                _scaled_up(row, f1, f2, v[: row.size])
                squares, total = _sums(v[: row.size])
                norm2[i] += np.int64(squares)
                norm1[i] += np.int64(total)
            exponent[i] = e
            shift[i] = shift_for(norm2[i], thresholds)


@kernel(
    "void(float64[:,::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])"
)
def scale_columns(b, j0, j1, thresholds, q, exponent, shift, norm2, norm1):  # type: ignore[no-untyped-def]
    """The same per column j0 <= j < j1 of `b` (k, n), in strips of 64 columns."""
    k = b.shape[0]
    largest = np.empty(_COLUMNS, np.int64)
    f1 = np.empty(_COLUMNS)
    f2 = np.empty(_COLUMNS)
    squares = np.empty(_COLUMNS)
    total = np.empty(_COLUMNS)
    for c0 in range(j0, j1, _COLUMNS):
        c1 = min(j1, c0 + _COLUMNS)
        w = c1 - c0
        largest[:] = 0
        for h in range(k):
            bits = b[h, c0:c1].view(np.int64)
            for j in range(w):
                largest[j] = max(largest[j], bits[j] & 0x7FFFFFFFFFFFFFFF)
        for j in range(w):
            exponent[c0 + j] = 0
            shift[c0 + j] = 0
            norm2[c0 + j] = 0
            norm1[c0 + j] = 0
            f1[j] = 0.0
            f2[j] = 0.0
            if largest[j] >= _EXPONENT_MASK:
                exponent[c0 + j] = 1 << 20
            elif largest[j] > 0:
                exponent[c0 + j] = exponent_above(largest[j])
                f1[j], f2[j] = two_factors(q - exponent[c0 + j])
        for h0 in range(0, k, _CHUNK):
            squares[:] = 0.0
            total[:] = 0.0
            for h in range(h0, min(k, h0 + _CHUNK)):
                row = b[h, c0:c1]
                for j in range(w):
                    v = np.ceil(abs(row[j]) * f1[j] * f2[j])
                    v = 1.0 if (v == 0.0 and row[j] != 0.0) else v
                    squares[j] += v * v
                    total[j] += v
            for j in range(w):
                if 0 < largest[j] < _EXPONENT_MASK:
                    norm2[c0 + j] += np.int64(squares[j])
                    norm1[c0 + j] += np.int64(total[j])
        for j in range(w):
            if 0 < largest[j] < _EXPONENT_MASK:
                shift[c0 + j] = shift_for(norm2[c0 + j], thresholds)
