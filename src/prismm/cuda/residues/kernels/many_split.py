"""Residues of many moduli: vectors with up to 286 bits each, for products that are made again (`many`).

A' = RN(2^s·a) with s = bits - e for |a| < 2^e, to even, so |A'| <= 2^bits. Of operands that were balanced (`balance`)
a·2^±g stands for a, and 0 where an inner index does not count. An element is a significand m of up to 2^53, which
loses its last bits where they lie below the unit, times a power of two 2^x. NVIDIA's GPUs have an instruction that adds
four products of bytes. With it they compute an element modulo p without error:

    s = Σ b(i)·(2^8i mod p), ±m = Σ b(i)·2^8i in seven balanced bytes, -128 <= b(i) < 128 (`BIAS` makes them), |b(6)| <=
        33, factors of at most 127 (for p = 256 the first is 1, the others 0): |s| <= 801·127;
    w = s·(2^x mod p), |w| <= 801·127·127 < 2^24, as 2^x mod p is 127 at most but for p = 256, where |s| <= 128;
    r = w - p·rint(w·(1/p)), the product in float32. It is off by |w|/p·2^-24 at most, so |r| <= p/2 + |w|·2^-24
        < p/2 + 0.78, which is below 128 for odd p <= 253. For p = 255 all 2^8i are 1, so |s| <= 801,
        |w| <= 801·127 and |r| <= p/2 + 2^-7 < 128. For p = 256 a byte has the same residue as the number.

Other GPUs compute it in float32:

    s = c0 + c1·(2^14 mod p) + c2·(2^28 mod p) + c3·(2^42 mod p), parts of 14 bits, factors of at most 128: |s| < 2^23;
    r = s - p·rint(s·(1/p)), |r| <= p/2 + 1, as the computed quotient is off by less than 2^23/p·2^-22 <= 2/p;
    w = r·(2^x mod p), |w| <= 129·128 < 2^15, and once more: |r| <= p/2, as no odd multiple of p/2 is nearer to an
    integer than 1/2 but for even p, whose reciprocal is exact.

Both write residues of the same numbers, though not always the same ones. Per element and modulus: 7 operations, or 12
in float32 and 3 of integers, and one byte written; per four moduli, a word of a table is read. An element is read once.
All tensors of a tile have one dimension, in the order of the bytes that are written: so each thread's bytes lie side by
side, and nothing is exchanged between threads for each modulus.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import significand
from prismm.cuda.kernels.fp64 import NONFINITE, wide
from prismm.cuda.residues.kernels.balance import BALANCES, SKIP, moved_of, scale_of
from prismm.cuda.residues.kernels.join_exact import bound_terms

POWERS = tl.constexpr(288)
"""Powers of two that a table has of each modulus: 2^0 … 2^287."""

FACTORS, GROUP = tl.constexpr(8), tl.constexpr(4)
"""A row of the table of moduli has so many numbers: p, 1/p, and 2^14, 2^28, 2^42 modulo p; then the patterns of three
integers, which are 2^0 to 2^24 and 2^32 to 2^48 modulo p, a byte each, and -128 times the sum of these bytes. One word
of a table of powers serves GROUP moduli.
"""

BIAS = tl.constexpr(0x80808080808080)
"""128 in each of seven bytes."""

INTEGERS = tl.constexpr(12582912.0)
"""3·2^22: its sums with numbers below 2^22 are integers."""


@triton.jit
def exponents(stats, vectors, at):
    """e of some vectors, 0 of those that are not finite or not there."""
    e, _, _, _, _, _ = bound_terms(stats, vectors, at, at < vectors, 0, True)
    return tl.where(e < NONFINITE, e, 0)


@triton.jit
def _quotient(x, inverse):
    """The integer nearest to x·inverse, below 2^22, ties to even."""
    return tl.fma(x, inverse, INTEGERS) - INTEGERS


@triton.jit
def _dot4(bytes4, factors, addend):
    """addend + Σ of four unsigned bytes times four signed ones."""
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [bytes4, factors, addend], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _scaled(value, shift):
    """(integer, exponent of its unit, whether bits were lost) of RN(|value|·2^shift)."""
    mantissa, unit = significand(value)
    up = unit + shift
    drop = tl.minimum(tl.maximum(-up, 0), 60)
    head = mantissa >> drop
    rest = mantissa - (head << drop)
    half = ((mantissa * 0 + 1) << drop) >> 1
    # Where nothing is dropped, half is 0 and so is the rest.
    head += ((rest > half) | ((rest == half) & (rest != 0) & ((head & 1) == 1))).to(tl.int64)
    return head, tl.maximum(up, 0), rest != 0


@triton.jit
def split_tile(
    x, vector_step, step, stats, measures, first_number, powers, base, planes, lost, i0, first, h0, vectors,
    all_vectors, terms, bits, balance, moduli, plane, pitch, part, PARTS: tl.constexpr, ALONG: tl.constexpr,
    RIGHT: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Residues of DEPTH elements from h0 on, of VECTORS vectors from i0 on: planes (moduli, ·, pitch) int8 from vector
    `first` on, zeros beyond the last element; lost: 1 where a vector lost bits.

    first_number: of the first vector among those of both sides; balance: BALANCES where operands are as given, else
    measures are those of the part. powers
    (·, POWERS) int32: times what the side carries, a byte each of GROUP moduli; base (·, FACTORS) float32.
    Elements are those of `exact.factors`, twice as many for complex numbers; those of the right side depend on the
    part. ALONG: they lie side by side, so step is PARTS.
    """
    SIZE: tl.constexpr = VECTORS * DEPTH
    at, inner = i0 + tl.arange(0, VECTORS), h0 + tl.arange(0, DEPTH)
    moved = inner * 0
    if balance < BALANCES:
        numbers = first_number + tl.arange(0, VECTORS)
        shift = bits - scale_of(measures, all_vectors, balance, numbers, at < vectors)
        moved = moved_of(measures, all_vectors, terms, balance, inner)
    else:
        shift = bits - exponents(stats, vectors, at)
    counts = tl.reshape((moved != SKIP)[None, :] & (at < vectors)[:, None], [SIZE])
    shift = tl.reshape(shift[:, None] + (moved if RIGHT else -moved)[None, :], [SIZE])
    lanes = tl.arange(0, SIZE)
    v, h = i0 + lanes // DEPTH, h0 + lanes % DEPTH
    if ALONG:
        along = (h ^ part if RIGHT else h) if PARTS == 2 else h
    elif PARTS == 1:
        along = h.to(tl.int64) * step
    elif RIGHT:
        along = (h >> 1).to(tl.int64) * step + ((h & 1) ^ part)
    else:
        along = (h >> 1).to(tl.int64) * step + (h & 1)
    mask = counts & (h < terms)
    value = tl.load(x + (v.to(tl.int64) * vector_step + along), mask=mask, other=0.0).to(tl.float64)
    head, up, missing = _scaled(value, shift)
    negative = value < 0.0
    if PARTS == 2:
        if RIGHT:
            negative = negative ^ ((part == 0) & ((h & 1) == 1))
    some = tl.max(tl.reshape(missing.to(tl.int32), [VECTORS, DEPTH]), 1)
    tl.atomic_max(lost + at, some, mask=at < vectors, sem="relaxed")
    if NVIDIA:
        integer = BIAS + tl.where(negative, -head, head)
        low, high = integer.to(tl.int32), (integer >> 32).to(tl.int32)
    else:
        sign = tl.where(negative, -1.0, 1.0).to(tl.float32)
        c0 = (head & 16383).to(tl.int32).to(tl.float32) * sign
        c1 = ((head >> 14) & 16383).to(tl.int32).to(tl.float32) * sign
        c2 = ((head >> 28) & 16383).to(tl.int32).to(tl.float32) * sign
        c3 = (head >> 42).to(tl.int32).to(tl.float32) * sign
    # Elements of vectors that are not finite may be anything; the table has so many powers.
    up = tl.minimum(up, POWERS - 1).to(tl.int32)
    target = planes + (v - first).to(tl.int64) * pitch + h
    for group in range(0, tl.cdiv(moduli, GROUP)):
        word = tl.load(powers + POWERS * group + up)
        for member in tl.static_range(GROUP):
            t = group * GROUP + member
            of_t = base + FACTORS * t
            p, inverse = tl.load(of_t), tl.load(of_t + 1)
            if NVIDIA:
                of_low = tl.load(of_t + 5).to(tl.int32, bitcast=True)
                of_high = tl.load(of_t + 6).to(tl.int32, bitcast=True)
                start = tl.load(of_t + 7).to(tl.int32, bitcast=True)
                w = _dot4(low, of_low, _dot4(high, of_high, start))
                w *= (word >> (8 * member)).to(tl.int8).to(tl.int32)
                # INTEGERS' pattern and the quotient: its last byte is the quotient's.
                near = tl.fma(w.to(tl.float32), inverse, INTEGERS).to(tl.int32, bitcast=True)
                r = (w - near * p.to(tl.int32)).to(tl.int8)
            else:
                f1, f2, f3 = tl.load(of_t + 2), tl.load(of_t + 3), tl.load(of_t + 4)
                s = tl.fma(c3, f3, tl.fma(c2, f2, tl.fma(c1, f1, c0)))
                r = tl.fma(_quotient(s, inverse), -p, s)
                # 2^23 and a byte.
                power = (((word >> (8 * member)) & 255) ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0
                w = r * power
                # The last byte of a number of this size is that of its integer.
                r = (tl.fma(_quotient(w, inverse), -p, w) + INTEGERS).to(tl.int32, bitcast=True).to(tl.int8)
            tl.store(target + wide(t) * plane, r, mask=(lanes >= 0) & (t < moduli))
