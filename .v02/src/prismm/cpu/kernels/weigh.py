"""Add products of slices, each with its power of two, exactly; round once.

Per entry a long accumulator of limbs, 24 bits each in an int64: a product (an integer of at most 53 bits) is cut at
the limbs' borders and added, shifted, to two or three of them. 2^15 products fit before carries must be taken. At the
end: carries, sign, the leading 48 + 48 + 48 bits with a sticky bit for what is below, and from these high = RN(sum),
low = the rest, rounded to odd (Boldo and Melquiond 2008): so RN(high + low) = RN(sum) in every format of at most 53
bits.

Bytes per entry and product: 4 or 8 read; the limbs of a row stay in cache. 28 products of 1024² in float32: 20 ms on
two cores where all rows and columns share their weights, 90 ms where each has its own; the last step 25 ms.
"""

import math

import numpy as np

from prismm.core.jit import device, kernel
from prismm.cpu.kernels.expansion import fast_two_sum, two_sum

LIMB = 24
_MASK = (1 << 24) - 1
INEXACT, UNDERFLOW = 1, 2
_ADD = "void({}[::1], int64, int64, int64[::1], int64[:,:,::1])"


@device
def _add_short(products, product_stride, row_stride, position, limbs):
    for i in range(limbs.shape[0]):
        for c in range(position.size):
            s = position[c] % LIMB
            x = limbs[i, position[c] // LIMB]
            y = limbs[i, position[c] // LIMB + 1]
            source = products[c * product_stride + i * row_stride : c * product_stride + i * row_stride + x.size]
            for j in range(x.size):
                # The shift rounds down, so that it and the mask make up v of either sign.
                v = np.int64(source[j])
                x[j] += (v & _MASK) << s
                y[j] += (v >> LIMB) << s


@kernel(_ADD.format("int32"))
def add_int32(products, product_stride, row_stride, position, limbs):
    """limbs (rows, L, n) += Σ_c products[c]·2^position[c]; row i of product c at c·product_stride + i·row_stride."""
    _add_short(products, product_stride, row_stride, position, limbs)


@kernel(_ADD.format("float32"))
def add_float32(products, product_stride, row_stride, position, limbs):
    """The same for integers in float32."""
    _add_short(products, product_stride, row_stride, position, limbs)


@kernel(_ADD.format("float64"))
def add_float64(products, product_stride, row_stride, position, limbs):
    """The same for integers of up to 53 bits in float64."""
    for i in range(limbs.shape[0]):
        for c in range(position.size):
            s = position[c] % LIMB
            x = limbs[i, position[c] // LIMB]
            y = limbs[i, position[c] // LIMB + 1]
            z = limbs[i, position[c] // LIMB + 2]
            source = products[c * product_stride + i * row_stride : c * product_stride + i * row_stride + x.size]
            for j in range(x.size):
                v = np.int64(source[j])
                x[j] += (v & _MASK) << s
                y[j] += ((v >> LIMB) & _MASK) << s
                z[j] += (v >> (2 * LIMB)) << s


_SCATTER = "void({}[::1], int64, int64, int64[:,:], int64[:,:], int64[:,:,::1])"


@device
def _scatter(products, product_stride, row_stride, row_position, column_position, limbs):
    n = limbs.shape[2]
    for i in range(limbs.shape[0]):
        mine = limbs[i]
        for c in range(row_position.shape[0]):
            start = c * product_stride + i * row_stride
            shift = row_position[c, i]
            for j in range(n):
                v = np.int64(products[start + j])
                b = shift + column_position[c, j]
                # Positions are never negative, so that they divide without a branch.
                limb = np.uint64(b) // np.uint64(LIMB)
                s = np.int64(np.uint64(b) - limb * np.uint64(LIMB))
                mine[limb, j] += (v & _MASK) << s
                mine[limb + np.uint64(1), j] += ((v >> LIMB) & _MASK) << s
                mine[limb + np.uint64(2), j] += (v >> (2 * LIMB)) << s


@kernel(_SCATTER.format("int32"))
def scatter_int32(products, product_stride, row_stride, row_position, column_position, limbs):
    """limbs (rows, L, n) += Σ_c products[c]·2^(row_position[c, i] + column_position[c, j])."""
    _scatter(products, product_stride, row_stride, row_position, column_position, limbs)


@kernel(_SCATTER.format("float32"))
def scatter_float32(products, product_stride, row_stride, row_position, column_position, limbs):
    """The same for integers in float32."""
    _scatter(products, product_stride, row_stride, row_position, column_position, limbs)


@kernel(_SCATTER.format("float64"))
def scatter_float64(products, product_stride, row_stride, row_position, column_position, limbs):
    """The same for integers in float64."""
    _scatter(products, product_stride, row_stride, row_position, column_position, limbs)


@kernel("void(int64[:,:,::1])")
def carry(limbs):
    """Every limb but the top one into [0, 2^24)."""
    for i in range(limbs.shape[0]):
        for limb in range(limbs.shape[1] - 1):
            x = limbs[i, limb]
            y = limbs[i, limb + 1]
            for j in range(x.size):
                y[j] += x[j] >> LIMB
                x[j] &= _MASK


@device
def _odd(x, error, one):
    """x + error (the parts of a two-sum) rounded to odd: between two floats, the one whose last bit is 1."""
    one[0] = x
    bits = one.view(np.int64)
    if error != 0.0 and bits[0] & 1 == 0:
        bits[0] += 1 if (error > 0.0) == (x > 0.0) else -1
    return one[0]


@device
def _pick(limbs, i, limb, j):
    return limbs[i, limb, j] if limb >= 0 else np.int64(0)


@kernel("int64(int64[:,:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1])")
def finish_limbs(limbs, row_exponent, column_exponent, high, low):
    """high + low = limbs·2^(row_exponent_i + column_exponent_j); limbs (rows, L, n) after `carry`, which it spoils.

    x, y, z are the leading 48, 48 and 48 bits, z with a sticky last bit. s + e = x·2^96 + y·2^48 exactly, w = e + z
    rounded to odd. s is a float, |w| at most about half its last place, and the points that decide how s + w
    rounds (0, halves and quarters of that place) are even at 53 bits, so that rounding to odd, being monotone, reaches
    none of them falsely; two_sum then gives RN and the exact rest of s + w.

    Returns flags: INEXACT if some low was rounded (by less than 2^-103·|sum|), UNDERFLOW if some value lost bits below
    2^-1074 (less than 2^-1073).
    """
    rows, count, n = limbs.shape
    flags = 0
    one = np.empty(1)
    for i in range(rows):
        for j in range(n):
            negative = limbs[i, count - 1, j] < 0
            if negative:
                borrow = np.int64(0)
                # Only the top limb has a sign: the others are digits, so that negating borrows.
                for limb in range(count - 1):
                    v = borrow - limbs[i, limb, j]
                    borrow = v >> LIMB
                    limbs[i, limb, j] = v & _MASK
                limbs[i, count - 1, j] = borrow - limbs[i, count - 1, j]
            top = count - 1
            while top > 0 and limbs[i, top, j] == 0:
                top -= 1
            if limbs[i, top, j] == 0:
                high[i, j] = 0.0
                low[i, j] = 0.0
                continue
            x = (limbs[i, top, j] << LIMB) | _pick(limbs, i, top - 1, j)
            y = (_pick(limbs, i, top - 2, j) << LIMB) | _pick(limbs, i, top - 3, j)
            z = (_pick(limbs, i, top - 4, j) << LIMB) | _pick(limbs, i, top - 5, j)
            below = False
            for limb in range(top - 5):
                below |= limbs[i, limb, j] != 0
            if below:
                z |= 1
            s, e = fast_two_sum(np.float64(x) * 2.0**96, np.float64(y) * 2.0**48)
            w, error = two_sum(e, np.float64(z))
            if below or error != 0.0:
                flags |= INEXACT
            w = _odd(w, error, one)
            s, w = two_sum(s, w)
            if negative:
                s, w = -s, -w
            unit = row_exponent[i] + column_exponent[j] + LIMB * (top - 5)
            a = np.ldexp(s, unit)
            b = np.ldexp(w, unit)
            # Scaling is exact above; below, what does not come back has lost bits.
            if unit < -1074 and (np.ldexp(a, -unit) != s or np.ldexp(b, -unit) != w):
                flags |= UNDERFLOW
            high[i, j] = a
            low[i, j] = b
    return flags


@kernel("void(int64[:,:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1])")
def take_out(limbs, row_exponent, column_exponent, high, low):
    """limbs -= the magnitude of high + low, which `finish_limbs` made of them: what is left is the sum's rest, of the
    other sign where the sum is negative.

    Both are integers in units of the lowest limb: the sum is one, and low has bits that it was rounded to only above
    those that it lost.
    """
    for i in range(limbs.shape[0]):
        for j in range(limbs.shape[2]):
            sign = -1.0 if high[i, j] < 0.0 else 1.0
            unit = row_exponent[i] + column_exponent[j]
            for part in range(2):
                m, e = math.frexp(sign * (high[i, j] if part == 0 else low[i, j]))
                v = np.int64(m * 2.0**53)
                position = e - 53 - unit
                if v == 0:
                    continue
                if position < 0:
                    v >>= min(-position, 63)
                    position = 0
                limb = position // LIMB
                s = position % LIMB
                limbs[i, limb, j] -= (v & _MASK) << s
                limbs[i, limb + 1, j] -= ((v >> LIMB) & _MASK) << s
                limbs[i, limb + 2, j] -= (v >> (2 * LIMB)) << s
