"""Join products of slices: the exact value of every entry from its digits, one rounding, the certificate.

With slices of β bits the value is an integer V = Σ low·2^(β·x) + top·2^(β·(G-1)), summed over the blocks of the inner
dimension (`product`), in units of 2^(β·(2d-1-G) - s - t). Its bits from the top down make limbs of up to 52 bits,
float64 numbers without error. In sums over blocks, what a limb has above its bits goes to the one above it after every
block. The first one, with as many numbers as 16 bits hold, is below k·2^(2β-2+16) <= 2^53 for β <= 8 and k·2^(3β-2)
for more, where FP16 units hold β = 10 at most, or k <= 16; with 64 bits on top it has the limb above it. Digits toward
zero are up to twice as large: with as many numbers as 14 bits hold it is below k·2^(2β+14) <= 2^51 for β <= 7, and
k·2^(3β) for more, where FP16 units hold β = 9 at most, or k <= 16. Two-sums make V = h + low + tail of them, exactly.

**The bound.** With T = RN(2^s·a) = A' - δA, what all products of slices miss is ΣδA·B' + ΣA'·δB - ΣδA·δB: the two
bounds of products of residues hold for it (`join.bound_of`: |δ| <= 1/2, Cauchy and Schwarz) and, where few elements are
inexact, ‖δA‖₁·(max|B'| + 1/2) + max|A'|·‖δB‖₁. TRUNCATED, |δ| <= 1 and |A'| <= 2^s·|a|, so it is δA·2^t·b + A'·δB
with the signs turned, at most ‖2^t·b‖₁ + ‖2^s·a‖₁ or what the other two bounds say.

Where only p + q < G are kept, with G >= d, the others are Σ_p A^(p)·(B^(Q) + … + B^(d-1)) with Q = G - p >= 1: digits
are at most D in magnitude, 2^(β-1) or, TRUNCATED, 2^β - 1, a tail of them is below D/(2^β-1)·2^(β(d-Q)), so in units of
V each p adds less than D²/(2^β-1) (64.26 for β = 8 and D = 128) for every term that is there at all. With u and v the
last slices of row and column that are not empty, that is p from G - v to u: at most
(u + v + 1 - G)·D²/(2^β-1)·(elements of row or column that are not 0, the fewer).

A program joins a strip of rows and a block of columns, tile by tile. What a test of magnitudes asks of every entry it
asks of the strip first, by the largest norms and the least counts of large elements; if that holds, and no result can
leave the normal range, entries need no test of their own.

Bytes: G + 3 read an entry and block (of β = 8), 4 or 8 and a bit written. Operations: about 30 of float64 an entry, 30
more where it is tested.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import (
    COUNTS,
    LARGEST,
    NONFINITE,
    NORM1,
    SHIFT,
    STATISTICS,
    bits_of,
    even,
    nearest,
    power_of_two,
    two_sum,
    wide,
)
from prismm.cuda.residues.kernels.join_exact import MAGNITUDE, RAW, ROUNDING, bound_of, bound_terms, judge
from prismm.cuda.slices.kernels.split import DEVIATION, DIGITS, EXTRAS, NONZERO

Q = tl.constexpr(20)
"""Fraction bits of norms."""

ROWS, STRIP, BLOCK = 4, 64, 128
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}

_FAR = tl.constexpr(1 << 20)


@triton.jit
def unsigned(word):
    """An integer in [0, 2^32), as int32, in float64."""
    # As the significand of a number from 2^52 on: one OR and one subtraction, both exact, and no conversion of
    # integers.
    pattern = word.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000
    return pattern.to(tl.float64, bitcast=True) - 4503599627370496.0  # 2^52


@triton.jit
def signed(word):
    """An int32 in float64."""
    # The flipped sign bit adds 2^31, so that the pattern has no sign; the constant takes it off again.
    pattern = (word.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.uint64) | 0x4330000000000000
    return pattern.to(tl.float64, bitcast=True) - 4503601774854144.0  # 2^52 + 2^31


@triton.jit
def _word(at, plane, first: tl.constexpr, COUNT: tl.constexpr, BITS: tl.constexpr, mask):
    """COUNT numbers of BITS bits from number `first` on, as one integer."""
    word = tl.load(at + wide(plane) * first, mask=mask, other=0).to(tl.int32 if COUNT * BITS <= 32 else tl.int64)
    for x in tl.static_range(1, COUNT):
        word |= tl.load(at + wide(plane) * (first + x), mask=mask, other=0).to(word.dtype) << (BITS * x)
    return word


@triton.jit
def _limb(at, plane, first: tl.constexpr, COUNT: tl.constexpr, BITS: tl.constexpr, mask):
    """The same of up to 52 bits in float64."""
    if COUNT * BITS <= 32:
        return unsigned(_word(at, plane, first, COUNT, BITS, mask))
    elif BITS == 8:  # whole words, and no integers of 64 bits
        return unsigned(_word(at, plane, first, 4, BITS, mask)) + 4294967296.0 * unsigned(
            _word(at, plane, first + 4, COUNT - 4, BITS, mask)
        )
    else:
        pattern = _word(at, plane, first, COUNT, BITS, mask) | 0x4330000000000000
        return pattern.to(tl.float64, bitcast=True) - 4503599627370496.0


def _bits_with_top(truncated: bool) -> int:
    return 14 if truncated else 16


def limbs(groups: int, bits: int, size: int, truncated: bool = False) -> list[int]:
    """How many of the numbers below the top each limb takes, from the top down, the first in its limb; of digits of
    eight bytes, whose top has 64 bits, the first limb is the upper half of that and takes none.

    >>> limbs(7, 8, 1), limbs(13, 8, 1), limbs(5, 21, 8)
    ([2, 4], [2, 6, 4], [0, 0, 2, 2])
    """
    with_top = min(groups - 1, _bits_with_top(truncated) // bits)
    found = [0, with_top] if size == 8 else [with_top]
    left = groups - 1 - with_top
    while left > 0:
        # 52 bits are what a significand with the exponent of 2^52 takes (`_limb`).
        found.append(min(left, 52 // bits))
        left -= found[-1]
    return found


MOST_LIMBS = 5


@triton.jit
def _carried(upper, x, WIDTH: tl.constexpr):
    """Both after what x has above 2^WIDTH went to the upper limb, whose unit that is."""
    # To nearest, so that what stays is at most half of the upper limb's unit; the multiply-addition is exact.
    carry = nearest(x * (2.0**-WIDTH))
    return upper + carry, tl.fma(carry, -(2.0**WIDTH), x)


@triton.jit
def _two_sums(s0, s1, s2, s3, s4, LIMBS: tl.constexpr):
    """Two-sums from the lowest up: the first is the sum, rounded, the others what was lost."""
    if LIMBS == 5:
        s3, s4 = two_sum(s3, s4)
    if LIMBS >= 4:
        s2, s3 = two_sum(s2, s3)
    s1, s2 = two_sum(s1, s2)
    s0, s1 = two_sum(s0, s1)
    return s0, s1, s2, s3, s4


@triton.jit
def expand_slices(
    low, top, plane, blocks, mask, GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr
):  # fmt: skip
    """V = h + low + tail, |low| <= ulp(h)/2, tail with the sign of what is left, or 0. low, top: of the first block.

    Limbs as of `limbs`, s0 the highest. Two-sums from the lowest up carry whatever is not 0 to the top, one place each
    time. With limbs of up to 53 bits that are not two, a pass may be left with s1 just below a power of two P, where
    s1 + s2 would not have been: y = s1 + s2 went past P, to P + x, and s0 + y took 2·P of it. So s1 = x - P has half
    the ulp of y, of which s2 is up to a half. One pass more: |s1| <= P - ulp(P) and |s2| <= ulp(P)/2, whose sum does
    not pass P. Then each is at most half an ulp of the one above it, and what is left of V, ties and theirs included,
    at most (1 + 2^-52)·ulp(low)/2; `judge` asks for 2^-50·|low|.
    """
    LONG: tl.constexpr = top.dtype.element_ty == tl.int64
    ROOM: tl.constexpr = (14 if TRUNCATED else 16) // BITS
    WITH_TOP: tl.constexpr = GROUPS - 1 if GROUPS - 1 < ROOM else ROOM
    EACH: tl.constexpr = 52 // BITS
    # First numbers of three limbs, down to 0.
    A: tl.constexpr = GROUPS - 1 - WITH_TOP
    B: tl.constexpr = A - EACH if A > EACH else 0
    C: tl.constexpr = B - EACH if B > EACH else 0
    D: tl.constexpr = C - EACH if C > EACH else 0
    BELOW: tl.constexpr = (A > 0) + (B > 0) + (C > 0) + (D > 0)
    LIMBS: tl.constexpr = 1 + LONG + BELOW
    tl.static_assert(LIMBS <= 5, "more bits than these limbs hold")
    zero = tl.zeros(top.shape, tl.float64)
    upper = zero
    s0 = zero
    s1 = zero
    s2 = zero
    s3 = zero
    s4 = zero
    for block in range(blocks):
        word = tl.load(top + wide(plane) * block, mask=mask, other=0)
        at = low + wide(plane) * (block * (GROUPS - 1))
        if LONG:
            upper += signed((word >> 32).to(tl.int32))
            x = unsigned(word.to(tl.int32))
        else:
            x = signed(word)
        if WITH_TOP > 0:
            x = x * (2.0 ** (BITS * WITH_TOP)) + _limb(at, plane, A, WITH_TOP, BITS, mask)
        s0 += x
        if A > 0:
            s1 += _limb(at, plane, B, A - B, BITS, mask)
        if B > 0:
            s2 += _limb(at, plane, C, B - C, BITS, mask)
        if C > 0:
            s3 += _limb(at, plane, D, C - D, BITS, mask)
        if D > 0:
            s4 += _limb(at, plane, 0, D, BITS, mask)
        # Limbs of a single block are within their bits; only sums over blocks have anything to carry.
        if blocks > 1:
            # From the lowest limb up, so that a carry that comes in goes on with the limb's own.
            if D > 0:
                s3, s4 = _carried(s3, s4, BITS * D)
            if C > 0:
                s2, s3 = _carried(s2, s3, BITS * (C - D))
            if B > 0:
                s1, s2 = _carried(s1, s2, BITS * (B - C))
            if A > 0:
                s0, s1 = _carried(s0, s1, BITS * (A - B))
            if LONG:
                upper, s0 = _carried(upper, s0, 32 + BITS * WITH_TOP)
    s0 = s0 * (2.0 ** (BITS * A))
    s1 = s1 * (2.0 ** (BITS * B))
    s2 = s2 * (2.0 ** (BITS * C))
    s3 = s3 * (2.0 ** (BITS * D))
    if LONG:
        s4 = s3
        s3 = s2
        s2 = s1
        s1 = s0
        s0 = upper * (2.0 ** (32 + BITS * (GROUPS - 1)))
    for _pass in tl.static_range(LIMBS if LIMBS > 2 else LIMBS - 1):
        if LIMBS == 2:
            s0, s1 = two_sum(s0, s1)
        else:
            s0, s1, s2, s3, s4 = _two_sums(s0, s1, s2, s3, s4, LIMBS)
    return s0, s1, s2 + (s3 + s4)


@triton.jit
def last_slice(extras, vectors, at, inside, SLICES: tl.constexpr):
    """The last slice that is not empty, 0 where all are; of more than eight, those before the last eight count as that
    before these.
    """
    digits = tl.load(extras + DIGITS * vectors + at, mask=inside, other=0)
    # The top bit alone, -2^63, is its own negative as an integer, and positive only as a float64.
    lowest = tl.abs((digits & -digits).to(tl.float64))
    byte = ((bits_of(lowest) >> 52) - 1023) >> 3
    return tl.where(digits == 0, SLICES - 9 if SLICES > 8 else 0, SLICES - 1 - byte).to(tl.int32)


@triton.jit
def _pair(BITS: tl.constexpr, TRUNCATED: tl.constexpr):
    """D²/(2^β-1), and a bit more."""
    D: tl.constexpr = 2.0**BITS - 1.0 if TRUNCATED else 2.0 ** (BITS - 1)
    return tl.full([], 1.0001 * D * D / (2.0**BITS - 1.0), tl.float64)


@triton.jit
def left_out(u, some, v, others, GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr):
    """What the pairs that are not kept can amount to, in units of V; u, v: last slices; some, others: elements that are
    not 0.
    """
    # A term is there only where both elements are not 0, so the fewer of them count.
    each = _pair(BITS, TRUNCATED) * tl.minimum(some, others).to(tl.float64)
    return tl.maximum(u + v + 1 - GROUPS, 0).to(tl.float64) * each


@triton.jit
def slice_bound(
    rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, terms, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """(bound, e + s of rows, of columns, shifts of both, whether they are finite): |V - exact| <= bound."""
    A_PRIORI: tl.constexpr = MODE != ROUNDING
    LIFT: tl.constexpr = BITS * (2 * SLICES - 1 - GROUPS)
    row_e, row_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, in_m, Q, A_PRIORI)
    column_e, column_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, in_n, Q, A_PRIORI)
    quarter = 0.25 * terms
    if TRUNCATED:
        # Toward zero residuals reach 1, not 1/2, so norms count twice; and |T| <= |A'| leaves no product of residuals
        # over.
        n1a, n1b, quarter = 2.0 * n1a, 2.0 * n1b, 0.0 * terms
    bound = bound_of(
        n1a[:, None], da[:, None], n2a[:, None], fa[:, None], n1b[None, :], db[None, :], n2b[None, :], fb[None, :],
        quarter, A_PRIORI,
    )  # fmt: skip
    if not A_PRIORI:
        # 2^-10: DEVIATION counts in units of that.
        sa = tl.load(row_extras + DEVIATION * m + i, mask=in_m, other=0).to(tl.float64) * 0.0009765625
        sb = tl.load(column_extras + DEVIATION * n + j, mask=in_n, other=0).to(tl.float64) * 0.0009765625
        top_a, top_b = _largest(row_e, row_shift), _largest(column_e, column_shift)
        # |T_b| <= max|B'| + 1/2 stands for the digits of the column, so ΣδA·δB needs no term of its own.
        third = sa[:, None] * (top_b[None, :] + 0.5) + top_a[:, None] * sb[None, :]
        bound = tl.minimum(bound, third * (1.0 + 1e-12))
    bound = bound * (2.0**-LIFT)
    if LIFT > 0:
        u = last_slice(row_extras, m, i, in_m, SLICES)
        v = last_slice(column_extras, n, j, in_n, SLICES)
        some = tl.load(row_extras + NONZERO * m + i, mask=in_m, other=0)
        others = tl.load(column_extras + NONZERO * n + j, mask=in_n, other=0)
        bound += left_out(u[:, None], some[:, None], v[None, :], others[None, :], GROUPS, BITS, TRUNCATED)
        # More than the roundings of these few operations, each 2^-53, can take off.
        bound = bound * (1.0 + 1e-12)
    return bound, row_e, column_e, row_shift, column_shift


@triton.jit
def _largest(e, shift):
    """2^(e + s), above the magnitudes of a vector; 1 for one that is not finite."""
    return power_of_two(tl.where(e >= NONFINITE, 0, e + shift))


@triton.jit
def _level(stats, count, at, inside, p):
    """How many elements are at least 2^(e-1-p)."""
    return tl.load(stats + (COUNTS + p) * count + at, mask=inside, other=0).to(tl.float32)


@triton.jit
def covered_products(rows, columns, m, n, i, j, in_m, in_n, k):
    """A lower bound of |a||b| in units of 2^(e_i + e_j - 2): Σ over thresholds 2^-p, 2^-r of the largest binades of
    #{products of elements that reach them}, times the distances to the next lower ones.

    As |x| >= Σ_p (2^-p less the next)·[x reaches 2^-p], and of two sets of k at least (their sizes) - k are common.
    """
    total = tl.zeros([i.shape[0], j.shape[0]], tl.float32)
    for p in tl.static_range(5):
        row = _level(rows, m, i, in_m, p) - k
        for r in tl.static_range(5):
            hits = row[:, None] + _level(columns, n, j, in_n, r)[None, :]
            total += tl.maximum(hits, 0.0) * 0.5 ** ((p + 1 if p < 4 else 4) + (r + 1 if r < 4 else 4))
    # 25 terms in float32 round by far less than 1e-5 of their sum.
    return total * (1.0 - 1e-5)


@triton.jit
def _share(stats, count, at, alive, s: tl.constexpr):
    """The least Σ_{p >= s} of `covered_products`' distances times counts, of vectors that are not 0."""
    total = tl.zeros(at.shape, tl.float32)
    for p in tl.static_range(s, 5):
        total += _level(stats, count, at, alive, p) * (0.5 ** (p + 1 if p < 4 else 4))
    return tl.min(tl.where(alive, total, 1e30), 0)


@triton.jit
def _vectors(
    stats, count, at, inside, SLICES: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr, TESTED: tl.constexpr
):  # fmt: skip
    """Of some vectors: least and largest s, the former far below all where one is not finite; the largest ½‖A'‖₁, or
    all of it; least shares of large elements, from 2^(e-2), 2^(e-3), 2^(e-4) down.
    """
    largest = tl.load(stats + LARGEST * count + at, mask=inside, other=0)
    alive = inside & (largest != 0)
    shift = tl.load(stats + SHIFT * count + at, mask=alive, other=0).to(tl.int32)
    least = tl.min(tl.where(alive, shift, _FAR), 0)
    most = tl.max(tl.where(alive, shift, -_FAR), 0)
    norm = tl.full([], 0.0, tl.float64)
    s1 = tl.full([], 0.0, tl.float32)
    s2 = s1
    s3 = s1
    if TESTED:
        norm = tl.max(tl.load(stats + NORM1 * count + at, mask=alive, other=0), 0).to(tl.float64)
        # Half of it, as e + s <= β·d - 1; TRUNCATED, all of it, as e + s = β·d.
        norm = norm * (2.0 ** (BITS * SLICES - (0 if TRUNCATED else 2) - 20))
        s1 = _share(stats, count, at, alive, 1)
        s2 = _share(stats, count, at, alive, 2)
        s3 = _share(stats, count, at, alive, 3)
    return least, most, norm, s1, s2, s3


@triton.jit
def _common(a1, a2, a3, b, k, W: tl.constexpr):
    """The largest of Σ_{p >= s, r >= u} distances·(counts + counts - k) for s = 1, 2, 3: b of u, W the sum of its
    distances.
    """
    best = tl.maximum(W * a1 + 0.5 * (b - W * k), W * a2 + 0.25 * (b - W * k))
    return tl.maximum(best, W * a3 + 0.125 * (b - W * k))


@triton.jit
def _ordinary(
    rows, columns, m, n, i, j, terms, constants, SLICES: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, TRUNCATED: tl.constexpr, TESTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Whether a strip's rows i and columns j are finite, their results normal, and all within the bound if TESTED.

    The bound is largest where the norms are. |a||b| is at least what the least shares of large elements have in common
    (`covered_products`), in units of 2^(e + f - 2), among A'B' 2^(2·β·d - 6) or more, 2^(2·β·d - 2) where TRUNCATED.
    """
    LIFT: tl.constexpr = BITS * (2 * SLICES - 1 - GROUPS)
    la, ma, na, a1, a2, a3 = _vectors(rows, m, i, i < m, SLICES, BITS, TRUNCATED, TESTED)
    lb, mb, nb, b1, b2, b3 = _vectors(columns, n, j, j < n, SLICES, BITS, TRUNCATED, TESTED)
    TOP: tl.constexpr = 1020 if PRECISION == 53 else 124
    LEAST: tl.constexpr = -1022 if PRECISION == 53 else -126
    # 1 <= |V|, and |V| <= k·2^(2·(β·d - 1) - LIFT) with its bound below 2^(β·(G + 1) + 24), as k < 2^23; vectors of
    # zeros have no effect. TRUNCATED, |V| <= k·2^(2·β·d - LIFT), and its bound, k·(2^(1 - β·d) + (d - 1)/2^(β·d)) times
    # 2^(β·(G + 1)) or a bit more, is at most about as large.
    ABOVE: tl.constexpr = BITS * (GROUPS + 1) + (25 if TRUNCATED else 24)
    fits = (LIFT - (ma + mb) >= LEAST) & (LIFT - (la + lb) + ABOVE <= TOP)
    if TESTED:
        k = terms.to(tl.float32)
        bound = (na + nb + 0.25 * k) * (2.0**-LIFT)
        if LIFT > 0:
            bound += (2 * SLICES - 1 - GROUPS) * _pair(BITS, TRUNCATED) * k
        covered = tl.maximum(_common(a1, a2, a3, b1, k, 0.5), _common(a1, a2, a3, b2, k, 0.25))
        covered = tl.maximum(covered, _common(a1, a2, a3, b3, k, 0.125)) - 1e-5 * k
        LEAST_UNIT: tl.constexpr = 2 if TRUNCATED else 6
        needed = bound * tl.load(constants + 1) * (1.0 + 1e-9)
        fits = (
            fits
            & (covered.to(tl.float64) * (2.0 ** (2 * BITS * SLICES - LEAST_UNIT - LIFT)) >= needed)
            & (covered > 0.0)
        )
    return fits


@triton.jit
def store_flags(flagged, flags, flag_pitch, i, m, j0, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A bit an entry of a tile, 32 columns a word."""
    bits = tl.reshape(flagged.to(tl.int32), [ROWS, BLOCK // 32, 32])
    word = tl.sum(bits << tl.arange(0, 32)[None, None, :], 2)
    at = j0 // 32 + tl.arange(0, BLOCK // 32)
    inside = (i < m)[:, None] & (at < flag_pitch)[None, :]
    tl.store(flags + i.to(tl.int64)[:, None] * flag_pitch + at[None, :], word, mask=inside)


@triton.jit(
    do_not_specialize=["row_step", "batch_step", "m", "width", "terms", "blocks", "row_batches", "column_batches"]
)
def join_slices(
    low, top, out, row_step, column_step, batch_step, flags, rows, row_extras, columns, column_extras, constants, m,
    width, terms, row_pitch, plane, blocks, flag_pitch, row_batches, column_batches, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr, MODE: tl.constexpr, TESTED: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Join a strip of STRIP rows and BLOCK columns of a matrix (program axes 1, 0, 2) to out, and flag the uncertified
    entries.

    constants (float64): kappa and magnitude kappa of `accuracy.join_test`; TESTED: in MAGNITUDE, that they are not 0.
    """
    LIFT: tl.constexpr = BITS * (2 * SLICES - 1 - GROUPS)
    n = even(width, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    low += batch * blocks * (GROUPS - 1) * wide(plane)
    top += batch * blocks * wide(plane)
    out += batch * even(batch_step, EVEN)
    flags += batch * m * flag_pitch
    row_batch, column_batch = batch % row_batches, batch % column_batches
    rows += row_batch * STATISTICS * m
    row_extras += row_batch * EXTRAS * m
    columns += column_batch * STATISTICS * n
    column_extras += column_batch * EXTRAS * n
    j0 = tl.program_id(0) * BLOCK
    j = j0 + tl.arange(0, BLOCK)
    in_n = j < n
    i0 = tl.program_id(1) * STRIP
    # One test by the strip's extremes spares most entries their own bound.
    ordinary = _ordinary(
        rows, columns, m, n, i0 + tl.arange(0, STRIP), j, terms, constants, SLICES, GROUPS, BITS, TRUNCATED, TESTED,
        PRECISION,
    )  # fmt: skip
    for tile in range(0, tl.minimum(STRIP, m - i0), ROWS):
        i = i0 + tile + tl.arange(0, ROWS)
        in_m = i < m
        inside = in_m[:, None] & in_n[None, :]
        # Columns from n to the pitch are allocated, and what they hold is never stored.
        read = in_m[:, None] & (j < row_pitch)[None, :]
        at = i.to(tl.int64)[:, None] * row_pitch + j[None, :]
        h, rest, tail = expand_slices(low + at, top + at, plane, blocks, read, GROUPS, BITS, TRUNCATED)
        target = (
            out + i.to(tl.int64)[:, None] * even(row_step, EVEN) + j.to(tl.int64)[None, :] * wide(column_step)
        )  # fmt: skip
        if ordinary & (MODE != ROUNDING):
            row_shift = tl.load(rows + SHIFT * m + i, mask=in_m, other=0).to(tl.int32)
            column_shift = tl.load(columns + SHIFT * n + j, mask=in_n, other=0).to(tl.int32)
            exponent = LIFT - (row_shift[:, None] + column_shift[None, :])
            value, hard, _ = judge(h, rest, tail, h * 0.0, exponent, constants, RAW, PRECISION)
            needs_repair = hard & inside
        else:
            bound, row_e, column_e, row_shift, column_shift = slice_bound(
                rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, terms, SLICES, GROUPS, BITS,
                TRUNCATED, MODE,
            )  # fmt: skip
            special = (row_e >= NONFINITE)[:, None] | (column_e >= NONFINITE)[None, :]
            exponent = tl.where(special, 0, LIFT - (row_shift[:, None] + column_shift[None, :]))
            value, hard, failed = judge(h, rest, tail, bound, exponent, constants, MODE, PRECISION)
            if MODE == MAGNITUDE and TESTED:
                power = row_e[:, None] + row_shift[:, None] + column_e[None, :] + column_shift[None, :]
                least = bound * tl.load(constants + 1) * power_of_two(2 + LIFT - tl.where(special, 0, power))
                covered = covered_products(rows, columns, m, n, i, j, in_m, in_n, terms)
                failed = failed & ~((covered > 0.0) & (covered.to(tl.float64) >= least))
            needs_repair = (failed | hard | special) & inside
        if PRECISION == 53:
            tl.store(target, value, mask=inside)
        else:
            tl.store(target, value.to(tl.float32), mask=inside)
        store_flags(needs_repair, flags, flag_pitch, i, m, j0, ROWS, BLOCK)
