"""Scale exponents of rows and columns, from exact integer norms.

For a row a with |a_h| < 2^e: v_h = ceil(|a_h|·2^(q-e)) <= 2^q, ν = Σ v_h², s = t + q - e with t the largest shift that
keeps 2·ν·4^t within the scheme's limit (`moduli.norm_limit`). Sums of squares of integers below 2^20 are exact in
float64 for 2^13 terms, then added in int64: no order of summation, thread count or stride can change them.

A row with Inf or NaN counts as zero here; its results come from `specials`. `single` twins read float32.
Bytes: each operand is read twice (the second time mostly from cache); 8 flops an element.
"""

import numpy as np

from prismm.core.jit import (
    as_float64,
    bits_of,
    contiguous_row,
    device,
    device_any_order,
    kernel,
    power_of_two,
    wide_vectors,
)
from prismm.cpu.kernels.measure import COLUMNS, LEVELS, measure

_EXPONENT_MASK = 0x7FF0000000000000
_CHUNK = 8192
_COLUMNS = 256
NONFINITE = 1 << 20


@device
def exponent_above(bits):
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
def largest_bits(row):
    """Bits of max|x|, which order like the magnitudes themselves."""
    wide_vectors()
    bits = row.view(np.int64)
    largest = np.int64(0)
    for h in range(bits.size):
        largest = max(largest, bits[h] & 0x7FFFFFFFFFFFFFFF)
    return largest


@device
def scaled_up(row, f1, f2, v):
    """v = ceil(|a|·f1·f2), in this order: f1·f2 alone may overflow. A nonzero element that underflows counts as 1."""
    wide_vectors()
    for h in range(row.size):
        x = np.ceil(abs(row[h]) * f1 * f2)
        v[h] = 1.0 if (x == 0.0 and row[h] != 0.0) else x


@device_any_order
def sums(v):
    """Σv² and Σv."""
    wide_vectors()
    squares = 0.0
    total = 0.0
    for h in range(v.size):
        squares += v[h] * v[h]
        total += v[h]
    return squares, total


@device
def two_factors(exponent):
    """2^exponent as a product of two normal powers of two (|exponent| <= 2000)."""
    half = exponent // 2
    return power_of_two(half), power_of_two(exponent - half)


@device
def shift_for(norm, thresholds):
    """The largest t with norm <= thresholds[t]; thresholds decrease, by a factor of 4 down to 1, 2 or 3.

    The last but x is at least 4^x, so at least the norm if that has at most 2x bits: the search starts there.
    """
    bits = exponent_above(bits_of(np.float64(norm)))
    t = max(0, thresholds.size - 1 - (bits + 1) // 2)
    while t + 1 < thresholds.size and norm <= thresholds[t + 1]:
        t += 1
    return t


@device
def _store(i, e, t, q, squares, total, exponent, shift, norm2, norm1):
    exponent[i] = e
    shift[i] = t + q - e if e < NONFINITE else -NONFINITE
    norm2[i] = squares
    norm1[i] = total


@device_any_order
def count_row(row, threshold):
    """How many elements are larger."""
    wide_vectors()
    count = np.int64(0)
    for h in range(row.size):
        count += np.int64(row[h] > threshold)
    return count


@kernel("void(float64[:,::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1])")
def scale_rows(a, thresholds, q, exponent, shift, norm2, norm1, counts):
    """Per row of `a` (m, k): e, s = t + q - e, ν and Σv in units of 2^(e-q); rows with Inf or NaN: e = 2^20, s = -2^20.

    counts (m, p): of so many elements it is proved that |a| > 2^(e-1), 2^(e-2), …; (m, 0) for none.
    """
    wide_vectors()
    m, k = a.shape
    v = np.empty(min(k, _CHUNK))
    wide = np.empty(min(k, _CHUNK))
    for i in range(m):
        bits = np.int64(0)
        for h in range(0, k, _CHUNK):
            bits = max(bits, largest_bits(as_float64(a[i, h : h + _CHUNK], wide)))
        for p in range(counts.shape[1]):
            counts[i, p] = 0
        # Inf and NaN have the largest patterns of all.
        if bits >= _EXPONENT_MASK:
            _store(i, NONFINITE, 0, q, 0, 0, exponent, shift, norm2, norm1)
        elif bits == 0:
            _store(i, 0, 0, q, 0, 0, exponent, shift, norm2, norm1)
        else:
            e = exponent_above(bits)
            # Two factors, as 2^(q-e) of a subnormal row is beyond float64.
            f1, f2 = two_factors(q - e)
            squares = np.int64(0)
            total = np.int64(0)
            for h in range(0, k, _CHUNK):
                row = as_float64(a[i, h : h + _CHUNK], wide)
                scaled_up(row, f1, f2, v[: row.size])
                part, part1 = sums(v[: row.size])
                squares += np.int64(part)
                total += np.int64(part1)
                for p in range(counts.shape[1]):
                    # v is a ceiling: v > 2^(q-1-p) proves |a|·2^(q-e) > v - 1 >= 2^(q-1-p), that is |a| > 2^(e-1-p).
                    counts[i, p] += count_row(v[: row.size], np.ldexp(1.0, q - 1 - p))
            _store(i, e, shift_for(squares, thresholds), q, squares, total, exponent, shift, norm2, norm1)


@kernel("void(float64[:,::1], int64, int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1])")
def scale_columns(b, start, thresholds, q, exponent, shift, norm2, norm1, counts):
    """The same per column start, start + 1, … of `b` (k, N), as many as `exponent` has; in strips of 256; counts (n,
    p).
    """
    wide_vectors()
    k = b.shape[0]
    n = exponent.size
    levels = counts.shape[1]
    largest = np.empty(_COLUMNS, np.int64)
    f1 = np.empty(_COLUMNS)
    f2 = np.empty(_COLUMNS)
    squares = np.empty(_COLUMNS)
    total = np.empty(_COLUMNS)
    v = np.empty(_COLUMNS)
    wide = np.empty(_COLUMNS)
    found = np.empty((max(levels, LEVELS), _COLUMNS))
    # No v exceeds the limit of a level that nobody asks for.
    limit = np.full(max(levels, LEVELS), np.inf)
    for p in range(levels):
        limit[p] = np.ldexp(1.0, q - 1 - p)
    # Strips of rows are contiguous; single columns would read a cache line for each element.
    for c0 in range(0, n, _COLUMNS):
        c1 = min(n, c0 + _COLUMNS)
        w = c1 - c0
        for j in range(w):
            largest[j] = 0
        for h in range(k):
            bits = as_float64(b[h, start + c0 : start + c1], wide).view(np.int64)
            for j in range(w):
                largest[j] = max(largest[j], bits[j] & 0x7FFFFFFFFFFFFFFF)
        for j in range(w):
            f1[j] = 0.0
            f2[j] = 0.0
            e = np.int64(0)
            if largest[j] >= _EXPONENT_MASK:
                e = np.int64(NONFINITE)
            elif largest[j] > 0:
                e = exponent_above(largest[j])
                f1[j], f2[j] = two_factors(q - e)
            _store(c0 + j, e, 0, q, 0, 0, exponent, shift, norm2, norm1)
        found[:] = 0.0
        for h0 in range(0, k, _CHUNK):
            for j in range(w):
                squares[j] = 0.0
                total[j] = 0.0
            whole = w // COLUMNS * COLUMNS if levels <= LEVELS else 0
            for j in range(0, whole, COLUMNS):
                source = b.ctypes.data + h0 * b.strides[0] + (start + c0 + j) * b.itemsize
                measure(
                    b.itemsize, levels, np.uint64(source), b.strides[0], min(k, h0 + _CHUNK) - h0,
                    np.uint64(f1.ctypes.data + 8 * j), np.uint64(f2.ctypes.data + 8 * j),
                    np.uint64(limit.ctypes.data), np.uint64(squares.ctypes.data + 8 * j),
                    np.uint64(total.ctypes.data + 8 * j), np.uint64(found.ctypes.data + 8 * j), found.strides[0],
                )  # fmt: skip
            # The last few columns, and more levels than there are registers for.
            for h in range(h0, min(k, h0 + _CHUNK) if whole < w else h0):
                row = as_float64(b[h, start + c0 : start + c1], wide)
                for j in range(whole, w):
                    x = np.ceil(abs(row[j]) * f1[j] * f2[j])
                    x = 1.0 if (x == 0.0 and row[j] != 0.0) else x
                    v[j] = x
                    squares[j] += x * x
                    total[j] += x
                for p in range(levels):
                    threshold = limit[p]
                    hits = contiguous_row(found, p, 0, w)
                    for j in range(whole, w):
                        hits[j] += 1.0 if v[j] > threshold else 0.0
            for j in range(w):
                if 0 < largest[j] < _EXPONENT_MASK:
                    norm2[c0 + j] += np.int64(squares[j])
                    norm1[c0 + j] += np.int64(total[j])
        for j in range(w):
            ordinary = 0 < largest[j] < _EXPONENT_MASK
            for p in range(levels):
                counts[c0 + j, p] = np.int64(found[p, j]) if ordinary else 0
            if ordinary:
                shift[c0 + j] += shift_for(norm2[c0 + j], thresholds)


@kernel(
    "void(int64[::1], int64[::1], int64, int64[::1], int64[::1], float64[::1], uint8[::1], int64, int64, "
    "float64[:,::1])"
)
def bound_terms(exponent, shift, q, norm2, norm1, residual2, tiny, terms, a_priori, out):
    """out (4, n): ½‖A'‖₁, ‖δ‖₂, ‖A'‖₂ and the flag "inexact", upper bounds in units of A'.

    2^s·|a| <= v·2^t gives the norms; sums of squares of k residuals err by at most (k+2)u relatively and the root by
    u, which 2^-28 + k·2^-53 covers; each element flagged tiny adds at most 2^-600. a_priori: ‖δ‖₂ is not used
    (1e300, or 0 where exact), so that the bound rests on integers alone.
    """
    for i in range(exponent.size):
        t = shift[i] - q + exponent[i] if exponent[i] < NONFINITE else 0
        scale = power_of_two(t)
        inexact = residual2[i] > 0.0 or tiny[i] != 0
        residual = np.sqrt(residual2[i] + (terms * 2.0**-600 if tiny[i] else 0.0)) * (1.0 + 2.0**-28 + terms * 2.0**-53)
        out[0, i] = 0.5 * np.float64(norm1[i]) * scale
        out[1, i] = (1e300 if inexact else 0.0) if a_priori else residual
        out[2, i] = np.sqrt(np.float64(norm2[i])) * scale * (1.0 + 2.0**-28)
        out[3, i] = 1.0 if inexact else 0.0
