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
def _nearest(x):
    """The integer nearest to a float32 below 2^22, ties to even."""
    return (x + 12582912.0) - 12582912.0  # 3·2^22


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
    x, vector_step, step, stats, measures, v, powers, base, planes, lost, at, first, h0, vectors, all_vectors, terms,
    bits, balance, moduli, plane, pitch, part, PARTS: tl.constexpr, ALONG: tl.constexpr, RIGHT: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Residues of DEPTH elements, from h0 on, of the vectors `at`: planes (moduli, ·, pitch) int8 from vector `first`
    on, zeros beyond the last element; lost: 1 where a vector lost bits.

    v: numbers of the vectors among those of both sides; balance: BALANCES where operands are as given. powers (moduli,
    POWERS) int8, times what the side carries; base (moduli, FACTORS) float32. Elements are those of
    `exact.factors`, twice as many for complex numbers; those of the right side depend on the part.
    """
    h = h0 + tl.arange(0, DEPTH)
    moved = h * 0
    if balance < BALANCES:
        shift = bits - scale_of(measures, all_vectors, balance, v, at < vectors)
        moved = moved_of(measures, all_vectors, terms // PARTS, balance, h if PARTS == 1 else h >> 1)
    else:
        shift = bits - exponents(stats, vectors, at)
    counts = moved != SKIP
    g = moved if RIGHT else -moved
    if PARTS == 1:
        along = h.to(tl.int64) * step
    elif RIGHT:
        along = (h >> 1).to(tl.int64) * step + ((h & 1) ^ part)
    else:
        along = (h >> 1).to(tl.int64) * step + (h & 1)
    # Elements that lie side by side are read so: by rows, or by columns and then transposed.
    if ALONG:
        mask = (at < vectors)[:, None] & ((h < terms) & counts)[None, :]
        value = tl.load(x + at.to(tl.int64)[:, None] * vector_step + along[None, :], mask=mask, other=0.0)
        head, up, missing = _scaled(value.to(tl.float64), shift[:, None] + g[None, :])
    else:
        mask = (at < vectors)[None, :] & ((h < terms) & counts)[:, None]
        value = tl.load(x + at.to(tl.int64)[None, :] * vector_step + along[:, None], mask=mask, other=0.0)
        head, up, missing = _scaled(value.to(tl.float64), shift[None, :] + g[:, None])
    negative = value < 0.0
    if PARTS == 2:
        if RIGHT:
            turned = (part == 0) & ((h & 1) == 1)
            negative = negative ^ (turned[None, :] if ALONG else turned[:, None])
    tl.atomic_max(lost + at, tl.max(missing.to(tl.int32), 1 if ALONG else 0), mask=at < vectors, sem="relaxed")
    sign = tl.where(negative, -1.0, 1.0).to(tl.float32)
    c0 = (head & 16383).to(tl.int32).to(tl.float32) * sign
    c1 = ((head >> 14) & 16383).to(tl.int32).to(tl.float32) * sign
    c2 = ((head >> 28) & 16383).to(tl.int32).to(tl.float32) * sign
    c3 = (head >> 42).to(tl.int32).to(tl.float32) * sign
    # Elements of vectors that are not finite may be anything; the table has so many powers.
    up = tl.minimum(up, POWERS - 1).to(tl.int32)
    target = planes + (at - first).to(tl.int64)[:, None] * pitch + h[None, :]
    for t in tl.range(0, moduli, loop_unroll_factor=4):
        p, inverse = tl.load(base + FACTORS * t), tl.load(base + FACTORS * t + 1)
        f1, f2 = tl.load(base + FACTORS * t + 2), tl.load(base + FACTORS * t + 3)
        s = c0 + c1 * f1 + c2 * f2 + c3 * tl.load(base + FACTORS * t + 4)
        r = s - p * _nearest(s * inverse)
        w = r * tl.load(powers + POWERS * t + up).to(tl.float32)
        r = (w - p * _nearest(w * inverse)).to(tl.int32).to(tl.int8)
        tl.store(target + wide(t) * plane, r if ALONG else tl.trans(r))
