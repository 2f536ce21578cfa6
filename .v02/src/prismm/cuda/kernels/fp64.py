"""What kernels need to know of float64 numbers: exponents, powers of two, rounding to integers, exact sums.

All kernels that use these are launched with `enable_fp_fusion=False`: a contraction of x·y + z would spoil them.
"""

import triton
import triton.language as tl

EXPONENT = tl.constexpr(0x7FF0000000000000)
MAGNITUDE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
NONFINITE = tl.constexpr(1 << 20)
TWO52 = tl.constexpr(4503599627370496.0)
LOW32 = tl.constexpr(0xFFFFFFFF)

# Rows of the statistics of an operand's vectors (int64, one column a vector).
LARGEST = tl.constexpr(0)
NORM2 = tl.constexpr(1)
NORM1 = tl.constexpr(2)
RESIDUAL = tl.constexpr(3)
SHIFT = tl.constexpr(4)
COUNTS = tl.constexpr(5)
STATISTICS = tl.constexpr(10)


@triton.jit
def bits_of(x):
    """The pattern of a float64 as int64."""
    return x.to(tl.int64, bitcast=True)


@triton.jit
def magnitude_word(x):
    """The pattern of a float32's magnitude, or its upper word of a float64's: as int32, which grow with the magnitudes
    of normal numbers.
    """
    if x.dtype == tl.float64:
        return (bits_of(x) >> 32).to(tl.int32) & 0x7FFFFFFF
    else:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def float_of(bits):
    """The float64 of a pattern."""
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def even(x, EVEN: tl.constexpr):
    """An integer argument, which EVEN says to be a multiple of 16. Triton learns that from the arithmetic, and so
    compiles a kernel twice at most, not once for every pattern of arguments.
    """
    if EVEN:
        return multiple(x, 16)
    else:
        return x


@triton.jit
def multiple(x, OF: tl.constexpr):
    """Like `even`, of an integer that is a multiple of OF, a power of two."""
    return x // OF * OF


@triton.jit
def exponent_field(x):
    """The biased exponent of a float64 as int32."""
    return (bits_of(x) >> 52).to(tl.int32) & 0x7FF


@triton.jit
def wide(x):
    """An integer as int64: what is multiplied by a plane's number may exceed 32 bits."""
    return nothing() + x


@triton.jit
def nothing():
    """0 as int64, also in Gluon's kernels, where constants ask for a layout."""
    return tl.program_id(0).to(tl.int64) * 0


@triton.jit
def power_of_two(e):
    """2^e for -1022 <= e <= 1023."""
    return float_of((e.to(tl.int64) + 1023) << 52)


@triton.jit
def any_power_of_two(e):
    """2^e for -1074 <= e <= 1023."""
    small = tl.minimum(tl.maximum(e + 1074, 0), 52).to(tl.int64)
    return float_of(tl.where(e >= -1022, (e.to(tl.int64) + 1023) << 52, (e.to(tl.int64) * 0 + 1) << small))


@triton.jit
def lift_of(e):
    """0, or 200 where factors like 2^(20-e) would leave float64's range: numbers below 2^e are then lifted first."""
    return tl.where(e < -700, 200, 0)


@triton.jit
def bit_length(x):
    """Bits of an integer 0 <= x < 2^63."""
    large = x >= (1 << 50)
    exponent = bits_of(tl.where(large, x >> 20, x).to(tl.float64)) >> 52
    return tl.where(x == 0, 0, exponent - 1022 + tl.where(large, 20, 0))


@triton.jit
def bit_number(power):
    """Which bit of an integer a power of two is, below 2^63, as int64."""
    return (bits_of(power.to(tl.float64)) >> 52) - 1023


@triton.jit
def exponent_above(bits):
    """The smallest e with x < 2^e for the finite float64 x >= 0 of this pattern; 0 for zero."""
    field = bits >> 52
    subnormal = (bits_of(bits.to(tl.float64)) >> 52) - (1022 + 1074)
    return tl.where(bits == 0, 0, tl.where(field > 0, field - 1022, subnormal))


@triton.jit
def scaled(x, e):
    """x·2^e by two factors, in the order that every engine takes: |e| <= 2000."""
    # Neither power leaves the range of `power_of_two`; 2^e itself might.
    half = e >> 1
    return x * power_of_two(half) * power_of_two(e - half)


@triton.jit
def rounded(x):
    """The integer nearest to x, ties to even."""
    size = tl.abs(x)
    near = (size + TWO52) - TWO52
    # From 2^52 on every number is an integer, and the addition above might round it.
    return tl.where(size < TWO52, tl.where(x < 0, -near, near), x)


@triton.jit
def nearest(x):
    """The integer nearest to x, ties to even, for |x| < 2^51."""
    return (x + 6755399441055744.0) - 6755399441055744.0  # 3·2^51


@triton.jit
def ceiling(x):
    """The least integer >= x, for 0 <= x < 2^51."""
    near = (x + TWO52) - TWO52
    return near + tl.where(near < x, 1.0, 0.0)


@triton.jit
def nearest_of(x, NVIDIA: tl.constexpr):
    """The integer nearest to x, ties to even, of any size."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            "cvt.rni.f64.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )  # fmt: skip
    return rounded(x)


@triton.jit
def toward_zero(x, NVIDIA: tl.constexpr):
    """The integer nearest to x among those no larger in magnitude."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            "cvt.rzi.f64.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )  # fmt: skip
    size = tl.floor(tl.abs(x))
    return tl.where(x < 0.0, -size, size)


@triton.jit
def ceiling_of_product(x, y, NVIDIA: tl.constexpr):
    """ceil(x·y) as int32, x >= 0, y > 0, x·y <= 2^30; 1 where the product underflows."""
    if NVIDIA:
        # RU(x·y + 2^52): the sum is rounded once, upwards, so its last bits are the ceiling of the exact product.
        near = tl.inline_asm_elementwise(
            "fma.rp.f64 $0, $1, $2, 0d4330000000000000;", "=d,d,d", [x, y], dtype=tl.float64, is_pure=True, pack=1
        )  # fmt: skip
        return bits_of(near).to(tl.int32)
    least = ceiling(x * y).to(tl.int32)
    return tl.where((least == 0) & (x != 0.0), 1, least)


@triton.jit
def two_sum(x, y):
    """s + e = x + y exactly (Knuth)."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


@triton.jit
def fast_two_sum(x, y):
    """s + e = x + y exactly where |x| >= |y| or x = 0 (Dekker)."""
    s = x + y
    return s, y - (s - x)
