"""Single entries: a 7-bit lower bound of |a||b|, whose integers are those of a CPU, so that the decision is the same;
and sums in twice float64's precision, which nearly always decide a rounding.

An entry in twice the precision reads 16·k bytes and takes about 20·k operations.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import factors
from prismm.cuda.kernels.expansion import rounded_alike
from prismm.cuda.kernels.fp64 import EXPONENT, bits_of, exponent_field, float_of, power_of_two, scaled, two_sum
from prismm.cuda.residues.kernels.join_exact import bound_terms

NO_PRODUCT = tl.constexpr(-5000)
"""Stands for the exponent of 0: below those of all products that are not 0, whatever is added."""


@triton.jit
def magnitude_sum(
    a, a_step, a_exponent, b, b_step, b_exponent, k, part, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Σ floor(|a|·2^(7-e))·floor(|b|·2^(7-e)), an integer, and whether any product is not zero; as in `factors`."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    hit = tl.zeros([BLOCK], tl.int32)
    for h0 in range(0, PARTS * k, BLOCK):
        x, y = factors(a, a_step, b, b_step, (h0 + lanes).to(tl.int64), PARTS * k, part, PARTS)
        x, y = tl.abs(x), tl.abs(y)
        total += scaled(x, 7 - a_exponent).to(tl.int64) * scaled(y, 7 - b_exponent).to(tl.int64)
        hit |= ((x != 0.0) & (y != 0.0)).to(tl.int32)
    return tl.sum(total, 0), tl.max(hit, 0) > 0


@triton.jit
def magnitude_proves(total, hit, bound, exponents, value, exponent, constants, PRECISION: tl.constexpr):
    """Whether Σ of 7-bit magnitudes of vectors below 2^e, with the sum of their e, certifies a value within
    bound·2^exponent; where no product is not zero, it is exact. Magnitudes say nothing of overflow.
    """
    # 2^1022 and 2^126, two binades below overflow: roundings of `reach` do not matter there.
    TOP: tl.constexpr = 4.49423283715579e307 if PRECISION == 53 else 8.507059173023462e37
    # In units of the bound. 2^-14, since both factors were scaled by 2^(7-e).
    least = total.to(tl.float64) * power_of_two(exponents - exponent - 14)
    reach = tl.abs(value) + scaled(bound, tl.minimum(tl.maximum(exponent, -2000), 2000))
    return ((bound * tl.load(constants + 1) <= least) | ~hit) & (reach < TOP)


@triton.jit
def _add_pairs(s, c, t, d):
    """(s + c) + (t + d), the leading parts without error."""
    total, error = two_sum(s, t)
    return total, (c + d) + error


@triton.jit
def error_of_sums(magnitude, steps):
    """How far sums of products in two parts may be off.

    magnitude: an upper bound of Σ|a·b|, but for roundings that 1.001 covers. steps: T, an upper bound of the additions
    that a product goes through. Each adds at most u²·T·Σ|a·b| to the error of the low part, however they are arranged:
    2·T²·u² in all, with u = 2^-53; what underflows adds less than 2^-700.
    """
    return steps.to(tl.float64) * steps * 2.465190328815662e-32 * magnitude * 1.001 + 1e-200  # 2^-105


@triton.jit
def decided(s, c, exponent, magnitude, steps, PRECISION: tl.constexpr):
    """(value, proved): RN of sums s + c of products, in units 2^exponent, where their error decides it."""
    h, low = two_sum(s, c)
    value, alike = rounded_alike(h, low, error_of_sums(magnitude, steps), exponent, PRECISION)
    # Far above what underflow may lose (`error_of_sums`); nearer to 0 exact limbs decide.
    return value, alike & (tl.abs(h) > 1e-100)


@triton.jit
def sum_in_lanes(
    a, a_step, a_shift, b, b_step, b_shift, k, part, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """(s, c, size, steps): s + c about Σ a·b of scaled elements, about Σ |a·b|, and the additions that each product
    goes through.
    """
    lanes = tl.arange(0, BLOCK)
    s = tl.zeros([BLOCK], tl.float64)
    c = tl.zeros([BLOCK], tl.float64)
    size = tl.zeros([BLOCK], tl.float64)
    for h0 in range(0, PARTS * k, BLOCK):
        x, y = factors(a, a_step, b, b_step, (h0 + lanes).to(tl.int64), PARTS * k, part, PARTS)
        x, y = scaled(x, a_shift), scaled(y, b_shift)
        product = x * y
        size += tl.abs(product)
        s, error = two_sum(s, product)
        c += error + tl.fma(x, y, -product)
    s, c = tl.reduce((s, c), 0, _add_pairs)
    # A lane's products, and the lanes'.
    return s, c, tl.sum(size, 0), 2 * (k // BLOCK + 16)


@triton.jit
def doubled(
    a, a_step, b, b_step, i, j, rows, columns, m, n, k, q, part, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(value, proved): RN of the exact sum, where twice float64's precision decides it; leading parts are summed
    without error in lanes (Ogita, Rump and Oishi 2005).
    """
    _, a_shift, _, _, n2a, _ = bound_terms(rows, m, i, i < m, q, False)
    _, b_shift, _, _, n2b, _ = bound_terms(columns, n, j, j < n, q, False)
    s, c, _size, steps = sum_in_lanes(a, a_step, a_shift, b, b_step, b_shift, k, part, PARTS, BLOCK)
    return decided(s, c, -(a_shift + b_shift), n2a * n2b, steps, PRECISION)


@triton.jit
def fraction(x):
    """(m, e) of a finite x = m·2^e, 1 <= |m| < 2; m = 0 for zero."""
    small = exponent_field(x) == 0
    lifted = tl.where(small, x * 18446744073709551616.0, x)  # 2^64
    e = exponent_field(lifted) - tl.where(small, 1023 + 64, 1023)
    m = float_of((bits_of(lifted) & ~EXPONENT) | 0x3FF0000000000000)
    return tl.where(x == 0.0, 0.0, m), e


@triton.jit
def _down(by):
    """2^by, by <= 0; 0 below 2^-1022, whose pattern is that of an exponent of -1023."""
    return power_of_two(tl.maximum(by, -1023))


@triton.jit
def with_term(top, s, c, size, x, y):
    """(top, s, c, size) of a sum s + c of products and about Σ |x·y|, in units 2^top of the largest product so far, to
    which x·y is added.

    Whenever the unit grows, the sums are multiplied by a power of two. A power below 2^-1022 counts as 0, and what gets
    smaller than that is rounded to a multiple of 2^-1074. `error_of_sums` allows more for underflow than all these
    losses together. The exponent of a product with a factor of 0 is below those of all others.
    """
    mx, ex = fraction(x)
    my, ey = fraction(y)
    e = tl.where(x == 0.0, NO_PRODUCT, ex) + tl.where(y == 0.0, NO_PRODUCT, ey)
    grown = tl.maximum(top, e)
    before, unit = _down(top - grown), _down(e - grown)
    scaled_x, other = mx * unit, tl.broadcast_to(my, unit.shape)
    product = scaled_x * other
    rest = tl.fma(scaled_x, other, -product)
    s, error = two_sum(s * before, product)
    return grown, s, c * before + (error + rest), size * before + tl.abs(product)


@triton.jit
def sums_by_themselves(
    a, a_step, b, b_step, k, part, PARTS: tl.constexpr, ENTRIES: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """(s, c, exponent, size, steps) of some entries, as of `sum_in_lanes`, each in units 2^exponent of its largest
    product, for entries far below their rows' and columns' largest elements. a, b, part: (ENTRIES, 1).

    Each lane has a unit of its own until the end (`with_term`).
    """
    lanes = tl.arange(0, LANES)[None, :]
    top = tl.full([ENTRIES, LANES], NO_PRODUCT, tl.int32)
    s = tl.zeros([ENTRIES, LANES], tl.float64)
    c = tl.zeros([ENTRIES, LANES], tl.float64)
    size = tl.zeros([ENTRIES, LANES], tl.float64)
    for h0 in range(0, PARTS * k, LANES):
        x, y = factors(a, a_step, b, b_step, (h0 + lanes).to(tl.int64), PARTS * k, part, PARTS)
        top, s, c, size = with_term(top, s, c, size, x, y)
    most = tl.max(top, 1)
    unit = _down(top - most[:, None])
    s, c = tl.reduce((s * unit, c * unit), 1, _add_pairs)
    return s, c, most, tl.sum(size * unit, 1), 2 * (k // LANES + 16)


@triton.jit
def doubled_by_itself(
    a, a_step, b, b_step, k, part, PRECISION: tl.constexpr, PARTS: tl.constexpr, ENTRIES: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """`doubled` of `sums_by_themselves`."""
    s, c, exponent, size, steps = sums_by_themselves(a, a_step, b, b_step, k, part, PARTS, ENTRIES, LANES)
    return decided(s, c, exponent, size, steps, PRECISION)


@triton.jit
def the_one(value):
    """The number in a tensor that has one element. `tl.sum` may turn -0 into 0, so the bit pattern is reduced."""
    return float_of(tl.max(bits_of(value), 0))
