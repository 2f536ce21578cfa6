"""Products on simulated matrix engines: blocks of aligned and truncated terms, and chains of single additions.

What they compute is specified by `numerics.specification`, in exact arithmetic; this is the same, bit for bit, on
vectors of columns, for the models that `numerics.products` finds to have these forms, and for finite operands. Per
tile: 128 columns of the right operand are copied block by block, then every row of
the panel takes its block's products for all of these columns, so one block (at most 16x128 float64) stays in L1 and the
panel's accumulators in L2. Per term of an aligned block: three multiplications, a maximum, a truncation and two
additions, at least 0.4 cycles on a core with 512-bit units: 0.06 s for 1024^3 on two cores at 3.5 GHz. Measured
(Zen 4): 0.15 s for blocks of 16, 0.24 s for blocks of 4, and 0.43 s chained, where a term takes an exact sum (6
operations) and a rounding (about 12). Arithmetic bounds it, not memory.
"""

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import bits_of, device, float_of, fma, kernel

_COLUMNS = 128
_EXPONENT = 0x7FF0000000000000
_SIGN = -0x8000000000000000
NEAREST, ZERO = 0, 1


@intrinsic
def _truncate(typingctx, x):
    """Round to an integer toward zero."""

    def codegen(context, builder, signature, args):
        function = builder.module.declare_intrinsic("llvm.trunc", [args[0].type])
        return builder.call(function, args)

    return types.float64(types.float64), codegen


@device
def _magnitude(bits):
    return bits & 0x7FFFFFFFFFFFFFFF


@device
def _rounded(s, drop, least_normal, magic, quantum, overflow, toward_zero):
    """s rounded to a narrower format: `drop` bits fewer than float64's, multiples of `quantum` below `least_normal`.

    Normal values: an addition to the bit pattern, whose carry may pass into the exponent. Subnormal ones: adding
    magic = 1.5·2^52·quantum rounds to a multiple of quantum, to nearest and ties to even. From `overflow` = 2^maxexp
    on the result is infinite. The sign of s stays.
    """
    bits = bits_of(s)
    size = _magnitude(bits)
    half = np.int64(0) if toward_zero else ((np.int64(1) << (drop - 1)) - 1) + ((size >> drop) & 1)
    normal = float_of(((size + half) >> drop) << drop)
    a = float_of(size)
    small = (a + magic) - magic
    small = small - quantum if (toward_zero and small > a) else small
    r = small if a < least_normal else normal
    r = np.inf if r >= overflow else r
    return float_of(bits_of(r) | (bits & _SIGN))


@kernel(
    "void(float64[:,:,::1], float64[:,::1], int64, int64, int64, int64, int64, float64, float64, int64, float64, "
    "float64, float64, int64, float64, float64[:,::1])"
)
def aligned_product(
    left, right, i0, i1, j0, j1, kept, smallest_input, least, drop, least_normal, quantum, overflow, rounding, zero, out
):
    """out[i0:i1, j0:j1] += left (blocks, m, L) @ right (blocks·L, n), L a multiple of 4, padded with zeros.

    Per block and entry: M, the largest of the terms' powers of two 2^(e_a+e_b) and 2^e_c, at least `least`; the terms,
    and the accumulator among them, truncated to multiples of M·2^-kept; their exact sum; one rounding.
    Terms / (M·2^-kept) are integers below 2^(kept+2), so their sum is exact in float64. Exact zeros are +0; `zero` is
    added to every rounded sum: 0.0 where none is to be -0, else -0.0.
    """
    blocks, _, length = left.shape
    rows = i1 - i0
    values = np.empty((length, _COLUMNS))
    powers = np.empty((length, _COLUMNS))
    total = np.empty((rows, _COLUMNS))
    largest = np.empty(_COLUMNS)
    inverse = np.empty(_COLUMNS)
    sums = np.empty(_COLUMNS)
    magic = 1.5 * 2.0**52 * quantum
    toward_zero = rounding == ZERO
    invert = np.int64(kept + 2046) << 52
    scale = np.ldexp(1.0, -kept)
    power_a = np.empty(length)
    for s0 in range(j0, j1, _COLUMNS):
        w = min(_COLUMNS, j1 - s0)
        for i in range(rows):
            for j in range(w):
                total[i, j] = out[i0 + i, s0 + j]
        for block in range(blocks):
            for h in range(length):
                source = right[block * length + h, s0 : s0 + w]
                value = values[h, :w]
                power = powers[h, :w]
                for j in range(w):
                    x = source[j]
                    value[j] = x
                    e = float_of(bits_of(x) & _EXPONENT)
                    power[j] = 0.0 if x == 0.0 else max(e, smallest_input)
            for i in range(rows):
                a = left[block, i0 + i]
                c = total[i, :w]
                m = largest[:w]
                inv = inverse[:w]
                s = sums[:w]
                for h in range(length):
                    e = float_of(bits_of(a[h]) & _EXPONENT)
                    power_a[h] = 0.0 if a[h] == 0.0 else max(e, smallest_input)
                for j in range(w):
                    e = max(float_of(bits_of(c[j]) & _EXPONENT), least_normal)
                    m[j] = least if c[j] == 0.0 else e
                for h in range(0, length, 4):
                    a0, a1, a2, a3 = power_a[h], power_a[h + 1], power_a[h + 2], power_a[h + 3]
                    for j in range(w):
                        x = max(a0 * powers[h, j], a1 * powers[h + 1, j])
                        y = max(a2 * powers[h + 2, j], a3 * powers[h + 3, j])
                        m[j] = max(m[j], max(x, y))
                for j in range(w):
                    inv[j] = float_of(invert - bits_of(m[j]))
                    s[j] = _truncate(c[j] * inv[j])
                for h in range(0, length, 4):
                    a0, a1, a2, a3 = a[h], a[h + 1], a[h + 2], a[h + 3]
                    for j in range(w):
                        f = inv[j]
                        x = _truncate(a0 * values[h, j] * f) + _truncate(a1 * values[h + 1, j] * f)
                        y = _truncate(a2 * values[h + 2, j] * f) + _truncate(a3 * values[h + 3, j] * f)
                        s[j] += x + y
                for j in range(w):
                    v = s[j] * (m[j] * scale) + 0.0
                    r = _rounded(v, drop, least_normal, magic, quantum, overflow, toward_zero) + zero
                    c[j] = c[j] if abs(c[j]) == np.inf else r
        for i in range(rows):
            target = out[i0 + i, s0 : s0 + w]
            for j in range(w):
                target[j] = total[i, j]


@device
def _sum_to_odd(x, y):
    """x + y with 53 bits, the last of which is set where the sum is inexact: a narrower rounding then cannot err."""
    s = x + y
    t = s - x
    error = (x - (s - t)) + (y - t)  # exact (Knuth), away from overflow
    bits = bits_of(s)
    exact = (error == 0.0) | (abs(s) == np.inf)
    # Toward zero first: where the error has the other sign, s is too large by less than one ulp.
    toward = bits - 1 if (bits_of(error) ^ bits) < 0 else bits
    return s if exact else float_of(toward | 1)


@device
def _sum_to_zero(x, y):
    """x + y in float64, rounded toward zero; infinite from 2^1024 on."""
    r = _finite_sum_to_zero(x, y)
    # Between the largest float64 and 2^1024 the first sum is infinite, half of it is not.
    half = _finite_sum_to_zero(0.5 * x, 0.5 * y)
    rescued = (abs(r) == np.inf) & (abs(half) < 2.0**1023)
    return 2.0 * half if rescued else r


@device
def _finite_sum_to_zero(x, y):
    s = x + y
    t = s - x
    error = (x - (s - t)) + (y - t)
    bits = bits_of(s)
    over = (error != 0.0) & (abs(s) < np.inf) & ((bits_of(error) ^ bits) < 0)
    return float_of(bits - 1) if over else s


@kernel(
    "void(float64[:,::1], float64[:,::1], int64, int64, int64, int64, int64, float64, float64, float64, int64, "
    "float64, float64[:,::1])"
)
def chained_product(left, right, i0, i1, j0, j1, drop, least_normal, quantum, overflow, rounding, zero, out):
    """out[i0:i1, j0:j1] += left (m, k) @ right (k, n): exact products, added one by one, each sum rounded.

    drop = 0 stands for float64 itself. `zero` is added to every sum before it is rounded: 0.0 where sums of zeros are
    +0, -0.0 where they have the sign that IEEE 754 gives them.
    """
    k = left.shape[1]
    rows = i1 - i0
    total = np.empty((rows, _COLUMNS))
    values = np.empty((8, _COLUMNS))
    magic = 1.5 * 2.0**52 * quantum
    toward_zero = rounding == ZERO
    for s0 in range(j0, j1, _COLUMNS):
        w = min(_COLUMNS, j1 - s0)
        for i in range(rows):
            for j in range(w):
                total[i, j] = out[i0 + i, s0 + j]
        for h0 in range(0, k, 8):
            count = min(8, k - h0)
            for h in range(count):
                source = right[h0 + h, s0 : s0 + w]
                value = values[h, :w]
                for j in range(w):
                    value[j] = source[j]
            for i in range(rows):
                c = total[i, :w]
                for h in range(count):
                    a = left[i0 + i, h0 + h]
                    b = values[h, :w]
                    if drop == 0 and toward_zero:
                        for j in range(w):
                            c[j] = _sum_to_zero(c[j], a * b[j]) + zero
                    elif drop == 0:
                        for j in range(w):
                            p = a * b[j]
                            c[j] = c[j] + p + zero
                    elif toward_zero:
                        for j in range(w):
                            s = _sum_to_odd(c[j], a * b[j]) + zero
                            c[j] = _rounded(s, drop, least_normal, magic, quantum, overflow, True)
                    else:
                        for j in range(w):
                            s = _sum_to_odd(c[j], a * b[j]) + zero
                            c[j] = _rounded(s, drop, least_normal, magic, quantum, overflow, False)
        for i in range(rows):
            target = out[i0 + i, s0 : s0 + w]
            for j in range(w):
                target[j] = total[i, j]


@kernel("void(float64[:,::1], float64[:,::1], int64, int64, int64, int64, float64, float64[:,::1])")
def fma_product(left, right, i0, i1, j0, j1, zero, out):
    """out[i0:i1, j0:j1] += left (m, k) @ right (k, n) in float64, by fused multiply-adds in order."""
    k = left.shape[1]
    for s0 in range(j0, j1, _COLUMNS):
        w = min(_COLUMNS, j1 - s0)
        for i in range(i0, i1):
            c = out[i, s0 : s0 + w]
            for h in range(k):
                a = left[i, h]
                b = right[h, s0 : s0 + w]
                for j in range(w):
                    c[j] = fma(a, b[j], c[j]) + zero
