"""Exact sums of any exponents, and the one rounding at their end.

An accumulator is an int64 array of LIMBS limbs of 32 bits, whose lowest bit is 2^-BASE: it holds sums of products of
float64 values, block scales included (2^-2420 to 2^2400). Additions leave carries where they fall (2^31 of them fit);
`sign_and_magnitude` moves them up. Only limbs from `lo` to `hi` are touched, and `clear` leaves all of them zero.
"""

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import device, float_of

LIMBS = 160
BASE = 2432
_MASK = 0xFFFFFFFF
NEAREST, ZERO, FLOOR, ODD = np.arange(4)
"""Modes of rounding. (Numba would compile a helper once more for every constant of Python's own types.)"""


@intrinsic
def _leading_zeros(typingctx, x):
    """Of a 64-bit integer; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], context.get_constant(types.boolean, False))

    return types.int64(types.int64), codegen


@intrinsic
def keep_apart(typingctx):
    """Keeps the function that it stands in from being copied into its callers: large ones then compile once."""

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), codegen


@device
def bit_length(x):
    """Of x >= 0."""
    return 64 - _leading_zeros(x)


@device
def add(limbs, negative, m, e):
    """± m·2^e into the limbs, 0 <= m < 2^63: three of them, from the index that is returned."""
    at = e + BASE
    i, offset = at >> 5, at & 31
    low = (m & _MASK) << offset
    high = ((m >> 32) << offset) + (low >> 32)
    low &= _MASK
    middle = high & _MASK
    high >>= 32
    if negative:
        limbs[i] -= low
        limbs[i + 1] -= middle
        limbs[i + 2] -= high
    else:
        limbs[i] += low
        limbs[i + 1] += middle
        limbs[i + 2] += high
    return i


@device
def carry(limbs, lo, hi):
    """Every limb from lo to hi into 0 … 2^32 - 1; limb hi + 1 is the rest, which has the sign."""
    c = np.int64(0)
    for i in range(lo, hi + 1):
        v = limbs[i] + c
        limbs[i] = v & _MASK
        c = v >> 32
    limbs[hi + 1] += c


@device
def sign_and_magnitude(limbs, lo, hi):
    """Sign and magnitude: all limbs from lo to hi + 1 into 0 … 2^32 - 1; whether the sum is negative."""
    keep_apart()
    carry(limbs, lo, hi)
    if limbs[hi + 1] >= 0:
        return False
    for i in range(lo, hi + 2):
        limbs[i] = -limbs[i]
    carry(limbs, lo, hi)
    return True


@device
def leading(limbs, lo, hi):
    """(m, e, sticky) of limbs in sign and magnitude: m·2^e plus less than 2^e where sticky; m has 62 bits, or is 0."""
    keep_apart()
    top = hi + 1
    while top >= lo and limbs[top] == 0:
        top -= 1
    if top < lo:
        return np.int64(0), np.int64(0), False
    length = bit_length(limbs[top])
    first, second = limbs[top], limbs[top - 1]
    if length > 30:
        m = (first << (62 - length)) | (second >> (length - 30))
        sticky = (second & ((np.int64(1) << (length - 30)) - 1)) != 0 or limbs[top - 2] != 0
    else:
        third = limbs[top - 2]
        m = (first << (62 - length)) | (second << (30 - length)) | (third >> (length + 2))
        sticky = (third & ((np.int64(1) << (length + 2)) - 1)) != 0
    i = top - 3
    while i >= lo and not sticky:
        sticky = limbs[i] != 0
        i -= 1
    return m, np.int64(32 * top - BASE + length - 62), sticky


@device
def clear(limbs, lo, hi):
    """Zero again what additions from lo to hi, and their carries, have touched."""
    for i in range(lo, hi + 2):
        limbs[i] = 0


@device
def units_of(negative, m, e, sticky, q, mode):
    """The magnitude m·2^e (plus less than 2^e where sticky) in units of 2^q, rounded; sticky needs q > e."""
    shift = q - e
    if shift <= 0:
        return m << -shift
    if shift > 63:
        if mode == ODD:
            return np.int64(1)
        return np.int64(mode == FLOOR and negative)
    units = m >> shift
    rest = m & ((np.int64(1) << shift) - 1)
    if mode == NEAREST:
        half = np.int64(1) << (shift - 1)
        if rest > half or (rest == half and (sticky or units & 1)):
            units += 1
    elif mode == FLOOR:
        if negative and (rest != 0 or sticky):
            units += 1
    elif mode == ODD and (rest != 0 or sticky):
        units |= 1
    return units


@device
def to_float(negative, units, q):
    """± units·2^q, a float64."""
    if q >= -1022:
        value = float(units) * float_of((q + 1023) << 52)
    else:
        value = float(units) * float_of((q + 2046) << 52) * 2.0**-1023
    return -value if negative else value
