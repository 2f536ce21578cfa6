"""Slices of vectors: x = Σ_p digit_p·2^(exponent_p) + remainder, digits small integers.

Each vector is read once into a buffer of its length and sliced there, slice after slice: about 24 bytes and 6 flops per
element and slice, all in the first-level cache; what reaches memory is the digits. 1024² elements in 7 slices of INT8:
4 ms on two cores, of which storing takes 1.

Greedy slices take digit = RN or RZ of the remainder over 2^exponent; the remainder x - digit·2^exponent is exact, being
a multiple of the last place of x and no larger than x. Carried slices (INT8, β = 8) need digits in [-128, 127], which
greedy rounding would leave (a tie gives +128): the element is rounded to the last slice's place first, 0x80…80 is
added, and the bytes of the sum, less 128 each, are the digits.

Every number that a bound needs is a maximum or a sum of integers, so no order of the elements can change it.
"""

import numpy as np

from prismm.core.jit import counting, device, device_any_order, kernel
from prismm.cpu.kernels.scale import exponent_above, largest_bits, two_factors

_CARRIED = 8
NORM_BITS = 20
"""1-norms are sums of magnitudes rounded up to multiples of 2^-20."""


@device
def _largest(row, one):
    """max|x|, as a float."""
    one.view(np.int64)[0] = largest_bits(row)
    return one[0]


@device_any_order
def _magnitude(w):
    """Σ|digit|: an exact integer below 2^53, in any order."""
    total = 0.0
    for h in range(w.size):
        total += abs(w[h])
    return total


@device_any_order
def _norm1(row):
    """Σ⌈|x|·2^20⌉ for |x| <= 1: exact for fewer than 2^33 elements."""
    total = 0.0
    for h in range(row.size):
        total += np.ceil(abs(row[h]) * 1048576.0)
    return total


@device
def _peel(r, w, e, nearest):
    """One greedy slice: w = digits, r = remainder."""
    f1, f2 = two_factors(-e)
    g1, g2 = two_factors(e)
    if nearest:
        for h in range(r.size):
            t = np.rint(r[h] * f1 * f2)
            r[h] -= t * g1 * g2
            w[h] = t
    else:
        for h in range(r.size):
            t = np.trunc(r[h] * f1 * f2)
            r[h] -= t * g1 * g2
            w[h] = t


@device
def _store(w, out, base, block, block_stride):
    """Digits of one slice of one vector, block by block; the last block is padded with zeros."""
    k = w.size
    start = 0
    while start < k:
        stop = min(k, start + block)
        for h in range(start, stop):
            out[base + h - start] = w[h]
        for h in range(stop, start + block):
            out[base + h - start] = 0
        base += block_stride
        start += block


@counting
def _greedy(
    x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
    remainder, magnitude, norm,
):  # fmt: skip
    count, k = x.shape
    d = exponent.shape[0]
    r = np.empty(k)
    w = np.empty(k)
    one = np.empty(1)
    # Digits to nearest reach 2^(bits-1), truncated ones 2^bits - 1.
    step = bits - 1 if nearest else bits
    for i in range(count):
        r[:] = x[i]
        norm[i] = _norm1(r)
        top = _largest(r, one)
        remainder[0, i] = top
        # Digits to nearest have half the range, so that their grid begins one exponent higher.
        e = 0 if not nearest else 1
        last = 0
        for p in range(d):
            base = offset + i * vector_stride + p * slice_stride
            e -= bits
            if adaptive:
                one[0] = top
                e = exponent_above(one.view(np.int64)[0]) - step
                f1, f2 = two_factors(-e)
                # Rounding to nearest may carry into one bit more than a digit has.
                if np.rint(top * f1 * f2) > largest:
                    e += 1
                elif nearest and top * f1 * f2 == 0.5:
                    e -= 1  # one bit, and a tie: to even it would be 0, and never end
            # Nothing is left: all further digits are zero, whatever their exponent.
            if top == 0.0:
                w[:] = 0.0
                exponent[p, i] = last if adaptive else e
                magnitude[p, i] = 0.0
                remainder[p + 1, i] = 0.0
            else:
                _peel(r, w, e, nearest)
                top = _largest(r, one)
                exponent[p, i] = e
                last = e
                magnitude[p, i] = _magnitude(w)
                remainder[p + 1, i] = top
            _store(w, out, base, block, block_stride)


_GREEDY = (
    "void(float64[:,::1], int64, boolean, boolean, float64, int64, int64, int64, int64, int64, {}[::1], int64[:,::1], "
    "float64[:,::1], float64[:,::1], float64[::1])"
)


@kernel(_GREEDY.format("int8"))
def slice_int8(
    x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
    remainder, magnitude, norm,
):  # fmt: skip
    """Greedy slices of the rows of x (count, k) into int8 digits.

    adaptive: each slice's exponent from the vector's current maximum, digits at most `largest`; else exponents begin
    at the binade of 1 and fall by `bits`.
    Slice p of vector i begins at out[offset + i·vector_stride + p·slice_stride], its blocks of `block` digits lie
    block_stride apart. exponent (d, count); remainder (d + 1, count): max|x - first p slices|; magnitude (d, count):
    Σ|digit|; norm (count): Σ⌈|x|·2^20⌉.
    """
    _greedy(
        x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
        remainder, magnitude, norm,
    )  # fmt: skip


@kernel(_GREEDY.format("float32"))
def slice_float32(
    x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
    remainder, magnitude, norm,
):  # fmt: skip
    """The same with float32 digits."""
    _greedy(
        x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
        remainder, magnitude, norm,
    )  # fmt: skip


@kernel(_GREEDY.format("float64"))
def slice_float64(
    x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
    remainder, magnitude, norm,
):  # fmt: skip
    """The same with float64 digits."""
    _greedy(
        x, bits, nearest, adaptive, largest, offset, block, vector_stride, slice_stride, block_stride, out, exponent,
        remainder, magnitude, norm,
    )  # fmt: skip


@device
def _bytes(row, r, w, y, digit, e, d, constant):
    """Digits of all d <= 8 slices at once; r = what the last slice leaves."""
    # The last slice first: rounded there once, the sum of all digits is the nearest that they can be.
    f1, f2 = two_factors(-e)
    g1, g2 = two_factors(e)
    for h in range(row.size):
        t = np.rint(row[h] * f1 * f2)
        r[h] = row[h] - t * g1 * g2
        y[h] = np.uint64(np.int64(t)) + constant
    for p in range(d):
        shift = np.uint64(8 * (d - 1 - p))
        out = digit[p]
        for h in range(row.size):
            out[h] = np.float64(np.int64((y[h] >> shift) & np.uint64(255)) - 128)


@device
def _trailing(bits):
    """Exponent of the lowest set bit of a nonzero float64 with this pattern."""
    field = (bits >> 52) & 0x7FF
    significand = bits & 0xFFFFFFFFFFFFF
    if field > 0:
        significand |= np.int64(1) << 52
    else:
        field = 1
    e = field - 1075
    while significand & 1 == 0:
        significand >>= 1
        e += 1
    return e


@device
def _far_bytes(row, r, digit, start, d, constant):
    """The same for any d: the digits of an element lie in 8 slices, the last of which holds its last bit.

    A significand of 53 bits, shifted by less than 8, is below 2^60, and so is what rounding at slice d leaves.
    """
    pattern = row.view(np.int64)
    digit[:, :] = 0.0
    for h in range(row.size):
        r[h] = 0.0
        if row[h] == 0.0:
            continue
        last = min(d, max(1, -((_trailing(pattern[h]) - start) // _CARRIED)))
        e = start - _CARRIED * last
        f1, f2 = two_factors(-e)
        g1, g2 = two_factors(e)
        t = np.rint(row[h] * f1 * f2)
        r[h] = row[h] - t * g1 * g2
        y = np.uint64(np.int64(t)) + constant
        for back in range(min(8, last)):
            digit[last - 1 - back, h] = np.float64(np.int64((y >> np.uint64(8 * back)) & np.uint64(255)) - 128)


@counting
def _carried(x, offset, block, vector_stride, slice_stride, block_stride, out, exponent, remainder, magnitude, norm):
    count, k = x.shape
    d = exponent.shape[0]
    r = np.empty(k)
    w = np.empty(k)
    y = np.empty(k, np.uint64)
    digit = np.empty((d, k))
    one = np.empty(1)
    constant = np.uint64(0)
    for _ in range(min(d, 8)):
        constant = constant * np.uint64(256) + np.uint64(128)
    for i in range(count):
        row = x[i]
        norm[i] = _norm1(row)
        top = _largest(row, one)
        remainder[0, i] = top
        start = 1 if top <= 0.9921875 else 2
        if d <= 8:
            _bytes(row, r, w, y, digit, start - _CARRIED * d, d, constant)
        else:
            _far_bytes(row, r, digit, start, d, constant)
        left = _largest(r, one)
        remainder[d, i] = left
        # From the last slice up, as each bound asks whether all slices below are zero.
        for p in range(d - 1, -1, -1):
            exponent[p, i] = start - _CARRIED * (p + 1)
            magnitude[p, i] = _magnitude(digit[p])
            if p < d - 1:
                if magnitude[p + 1, i] == 0.0 and remainder[p + 2, i] == 0.0:
                    remainder[p + 1, i] = 0.0
                else:
                    f1, f2 = two_factors(exponent[p, i])
                    # 128/255, rounded up.
                    remainder[p + 1, i] = 0.50197 * f1 * f2 + left
            _store(digit[p], out, offset + i * vector_stride + p * slice_stride, block, block_stride)


_CARRIED_SLICES = (
    "void(float64[:,::1], int64, int64, int64, int64, int64, {}[::1], int64[:,::1], float64[:,::1], float64[:,::1], "
    "float64[::1])"
)


@kernel(_CARRIED_SLICES.format("int8"))
def carried_int8(
    x, offset, block, vector_stride, slice_stride, block_stride, out, exponent, remainder, magnitude, norm
):  # fmt: skip
    """Slices of 8 bits with digits in [-128, 127] on a grid; arguments and results as of `slice_int8`.

    The grid begins at 2^-7, or at 2^-6 for a vector whose largest element exceeds 127/128: its first digit would be
    128. The remainders between are bounded by their digits: |Σ_{q>p}| <= 128/255·2^(exponent_p) + what slice d leaves.
    """
    _carried(x, offset, block, vector_stride, slice_stride, block_stride, out, exponent, remainder, magnitude, norm)


@kernel(_CARRIED_SLICES.format("float64"))
def carried_float64(
    x, offset, block, vector_stride, slice_stride, block_stride, out, exponent, remainder, magnitude, norm
):  # fmt: skip
    """The same with float64 digits."""
    _carried(x, offset, block, vector_stride, slice_stride, block_stride, out, exponent, remainder, magnitude, norm)


@device_any_order
def _weighted(digits, weights):
    total = 0.0
    for h in range(weights.size):
        total += abs(np.float64(digits[h])) * weights[h]
    return total


@device
def _weigh(digits, first, last, offset, block, vector_stride, block_stride, weights, out):
    k = weights.size
    for i in range(first, last):
        total = 0.0
        start = 0
        base = offset + i * vector_stride
        while start < k:
            stop = min(k, start + block)
            total += _weighted(digits[base : base + stop - start], weights[start:stop])
            base += block_stride
            start += block
        out[i] = total


_WEIGHTED = "void({}[::1], int64, int64, int64, int64, int64, int64, float64[::1], float64[::1])"


@kernel(_WEIGHTED.format("int8"))
def weighted_int8(digits, first, last, offset, block, vector_stride, block_stride, weights, out):
    """out[i] = Σ_h |digit_ih|·weights_h of one slice, for vectors first..last-1; rounded, in any order."""
    _weigh(digits, first, last, offset, block, vector_stride, block_stride, weights, out)


@kernel(_WEIGHTED.format("float32"))
def weighted_float32(digits, first, last, offset, block, vector_stride, block_stride, weights, out):
    """The same for float32 digits."""
    _weigh(digits, first, last, offset, block, vector_stride, block_stride, weights, out)


@kernel(_WEIGHTED.format("float64"))
def weighted_float64(digits, first, last, offset, block, vector_stride, block_stride, weights, out):
    """The same for float64 digits."""
    _weigh(digits, first, last, offset, block, vector_stride, block_stride, weights, out)
