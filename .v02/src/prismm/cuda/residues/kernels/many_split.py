"""Residues of many moduli: vectors with up to 286 bits each, for products that are made again (`many`).

A' = RN(2^s·a) with s = bits - e for |a| < 2^e, to even, so |A'| <= 2^bits. Of operands that were balanced (`balance`)
a·2^±g stands for a, and 0 where an inner index does not count. An element is a significand below 2^53,
which loses its last bits where they lie below the unit, times a power of two. Modulo p, in float32 and without error:

    s = c0 + c1·(2^14 mod p) + c2·(2^28 mod p) + c3·(2^42 mod p), parts of 14 bits, factors of at most 128: |s| < 2^23;
    r = s - p·rint(s·(1/p)), |r| <= p/2 + 1, as the computed quotient is off by less than 2^23/p·2^-22 <= 2/p;
    w = r·(2^x mod p), |w| <= 129·128 < 2^15, and once more: |r| <= p/2, as no odd multiple of p/2 is nearer to an
    integer than 1/2 but for even p, whose reciprocal is exact.

Per element and modulus: 15 operations in float32 and one byte written. An element is read once.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import significand
from prismm.cuda.kernels.fp64 import NONFINITE, wide
from prismm.cuda.residues.kernels.balance import BALANCES, SKIP, moved_of, scale_of
from prismm.cuda.residues.kernels.join_exact import bound_terms

POWERS = tl.constexpr(288)
"""Powers of two that a table has of each modulus: 2^0 … 2^287."""

FACTORS = tl.constexpr(5)
"""p, 1/p, and 2^14, 2^28, 2^42 modulo p, of each modulus."""


@triton.jit
def exponents(stats, vectors, at):
    """e of some vectors, 0 of those that are not finite or not there."""
    e, _, _, _, _, _ = bound_terms(stats, vectors, at, at < vectors, 0, True)
    return tl.where(e < NONFINITE, e, 0)


@triton.jit
def _residue(x, p, inverse):
    """x - p·rint(x/p), |x| < 2^23: x/p is rounded once, to an integer (3·2^22 and more has no other neighbours)."""
    return tl.fma(-p, tl.fma(x, inverse, 12582912.0) - 12582912.0, x)


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
def _element(
    x, vector_step, step, at, h, g, shift, vectors, terms, part, PARTS: tl.constexpr, ALONG: tl.constexpr,
    RIGHT: tl.constexpr,
):  # fmt: skip
    """(c0, c1, c2, c3, exponent of the unit, whether bits were lost) of one element of each vector and index."""
    counts = (h < terms) & (g != SKIP)
    if PARTS == 1:
        along = h.to(tl.int64) * step
    elif RIGHT:
        along = (h >> 1).to(tl.int64) * step + ((h & 1) ^ part)
    else:
        along = (h >> 1).to(tl.int64) * step + (h & 1)
    up = shift + (g if RIGHT else -g)
    mask = (at < vectors) & counts
    value = tl.load(x + at.to(tl.int64) * vector_step + along, mask=mask, other=0.0)
    head, up, missing = _scaled(value.to(tl.float64), up)
    negative = value < 0.0
    if PARTS == 2:
        if RIGHT:
            negative = negative ^ ((part == 0) & ((h & 1) == 1))
    sign = tl.where(negative, -1.0, 1.0).to(tl.float32)
    c0 = (head & 16383).to(tl.int32).to(tl.float32) * sign
    c1 = ((head >> 14) & 16383).to(tl.int32).to(tl.float32) * sign
    c2 = ((head >> 28) & 16383).to(tl.int32).to(tl.float32) * sign
    c3 = (head >> 42).to(tl.int32).to(tl.float32) * sign
    # Elements of vectors that are not finite may be anything; the table has so many powers.
    return c0, c1, c2, c3, tl.minimum(up, POWERS - 1).to(tl.int32), missing.to(tl.int32)


@triton.jit
def _byte(element, powers, p, inverse, f1, f2, f3, x):
    """The residue of `_element`'s, as byte x of a word."""
    c0, c1, c2, c3, up, _ = element
    r = _residue(tl.fma(c3, f3, tl.fma(c2, f2, tl.fma(c1, f1, c0))), p, inverse)
    r = _residue(r * tl.load(powers + up).to(tl.float32), p, inverse)
    return (r.to(tl.int32) & 255).to(tl.int64) << (8 * x)


@triton.jit
def split_tile(
    x, vector_step, step, stats, measures, first_number, powers, base, planes, lost, first_at, first, h0, vectors,
    all_vectors, terms, bits, balance, moduli, plane, pitch, part, PARTS: tl.constexpr, ALONG: tl.constexpr,
    RIGHT: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Residues of DEPTH elements, from h0 on, of VECTORS vectors from first_at on: planes (moduli, ·, pitch) int8 from
    vector `first` on, zeros beyond the last element; lost: 1 where a vector lost bits.

    first_number: the number of vector 0 among those of both sides; balance: BALANCES where operands are as given.
    powers (moduli, POWERS) int8, times what the side carries; base (moduli, FACTORS) float32. Elements are those of
    `exact.factors`, twice as many for complex numbers; those of the right side depend on the part. A thread has eight
    that lie side by side, so that it stores words and exchanges none of them.
    """
    if ALONG:
        at = first_at + tl.arange(0, VECTORS)[:, None]
        h = h0 + 8 * tl.arange(0, DEPTH // 8)[None, :]
    else:
        at = first_at + tl.arange(0, VECTORS)[None, :]
        h = h0 + 8 * tl.arange(0, DEPTH // 8)[:, None]
    g = h * 0
    if balance < BALANCES:
        shift = bits - scale_of(measures, all_vectors, balance, first_number + at, at < vectors)
    else:
        shift = bits - exponents(stats, vectors, at)
    e = ()
    missing = tl.zeros((at + h).shape, tl.int32)
    for y in tl.static_range(8):
        if balance < BALANCES:
            g = moved_of(measures, all_vectors, terms // PARTS, balance, h + y if PARTS == 1 else (h + y) >> 1)
        some = _element(x, vector_step, step, at, h + y, g, shift, vectors, terms, part, PARTS, ALONG, RIGHT)
        missing |= some[5]
        e = e + (some,)
    if ALONG:
        tl.atomic_max(lost + at, tl.max(missing, 1, keep_dims=True), mask=at < vectors, sem="relaxed")
    else:
        tl.atomic_max(lost + at, tl.max(missing, 0, keep_dims=True), mask=at < vectors, sem="relaxed")
    # Rows of planes begin at multiples of eight bytes.
    target = (planes + (at - first).to(tl.int64) * pitch + h).to(tl.pointer_type(tl.int64), bitcast=True)
    for t in tl.range(0, moduli):
        p, inverse = tl.load(base + FACTORS * t), tl.load(base + FACTORS * t + 1)
        f1, f2, f3 = (
            tl.load(base + FACTORS * t + 2), tl.load(base + FACTORS * t + 3), tl.load(base + FACTORS * t + 4),
        )  # fmt: skip
        own = powers + POWERS * t
        word = _byte(e[0], own, p, inverse, f1, f2, f3, 0)
        for y in tl.static_range(1, 8):
            word |= _byte(e[y], own, p, inverse, f1, f2, f3, y)
        tl.store(target + wide(t) * (plane >> 3), word)
