"""Join products of slices: the exact value of every entry from its digits, one rounding, the certificate.

The value is an integer V = Σ byte·256^b + top·256^(G-1), summed over the blocks of the inner dimension
(`slice_product`), in units of 2^(8·(2d-1-G) - s - t). Its upper 48 bits and the others, six bytes at a time, are
float64 numbers without error, and so are the sums over blocks; two-sums make V = h + low + tail of them, exactly.

**The bound.** With T = RN(2^s·a) = A' - δA, what all products of slices miss is ΣδA·B' + ΣA'·δB - ΣδA·δB: the two
bounds of products of residues hold for it (`join.bound_of`: |δ| <= 1/2, Cauchy and Schwarz) and, where few elements are
inexact, ‖δA‖₁·(max|B'| + 1/2) + max|A'|·‖δB‖₁.

Where only p + q < G are kept, with G >= d, the others are Σ_p A^(p)·(B^(Q) + … + B^(d-1)) with Q = G - p >= 1: a tail
of balanced digits is below 128/255·256^(d-Q) in magnitude, and the digits of A^(p) are at most 128, so in units of V
each p adds less than 128·128/255 for every term that is there at all. With u and v the last slices of row and column
that are not empty, that is p from G - v to u: at most (u + v + 1 - G)·64.26·(elements of row or column that are not 0,
the fewer).

A program joins a strip of rows and a block of columns, tile by tile. What a test of magnitudes asks of every entry it
asks of the strip first, by the largest norms and the least counts of large elements; if that holds, and no result can
leave the normal range, entries need no test of their own.

Bytes: G + 3 read an entry and block, 4 or 8 and a bit written. Operations: about 30 of float64 an entry, 30 more where
it is tested.
"""

import triton
import triton.language as tl

from prismm.kernels.gpu.join import (
    MAGNITUDE,
    RAW,
    ROUNDING,
    bound_of,
    bound_terms,
    judge,
)
from prismm.kernels.gpu.numbers import (
    COUNTS,
    LARGEST,
    NONFINITE,
    NORM1,
    SHIFT,
    STATISTICS,
    bits_of,
    even,
    power_of_two,
    two_sum,
    wide,
)
from prismm.kernels.gpu.slice_split import DEVIATION, DIGITS, EXTRAS, NONZERO

Q = tl.constexpr(20)
"""Fraction bits of norms."""

ROWS, STRIP, BLOCK = 4, 64, 128
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}

_FAR = tl.constexpr(1 << 20)
_TERM = tl.constexpr(64.26)
"""128·128/255, rounded up."""


@triton.jit
def _unsigned(word):
    """An integer in [0, 2^32), as int32, in float64."""
    pattern = word.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000
    return pattern.to(tl.float64, bitcast=True) - 4503599627370496.0  # 2^52


@triton.jit
def _signed(word):
    """An int32 in float64."""
    pattern = (word.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.uint64) | 0x4330000000000000
    return pattern.to(tl.float64, bitcast=True) - 4503601774854144.0  # 2^52 + 2^31


@triton.jit
def _bytes(at, plane, first: tl.constexpr, COUNT: tl.constexpr, mask):
    """Up to four bytes from byte `first` on, as int32."""
    word = tl.load(at + wide(plane) * first, mask=mask, other=0).to(tl.int32)
    for x in tl.static_range(1, COUNT):
        word |= tl.load(at + wide(plane) * (first + x), mask=mask, other=0).to(tl.int32) << (8 * x)
    return word


@triton.jit
def _limb(at, plane, first: tl.constexpr, COUNT: tl.constexpr, mask):
    """Up to six bytes from byte `first` on, in float64."""
    found = _unsigned(_bytes(at, plane, first, COUNT if COUNT < 4 else 4, mask))
    if COUNT > 4:
        found += _unsigned(_bytes(at, plane, first + 4, COUNT - 4, mask)) * 4294967296.0
    return found


@triton.jit
def expand_slices(low, top, plane, blocks, mask, GROUPS: tl.constexpr):
    """V = h + low + tail, |low| <= ulp(h)/2, tail with the sign of what is left, or 0. low, top: of the first block."""
    BYTES: tl.constexpr = GROUPS - 1
    UPPER: tl.constexpr = BYTES if BYTES < 2 else 2
    REST: tl.constexpr = BYTES - UPPER
    MIDDLE: tl.constexpr = REST - 6 if REST > 6 else 0
    s0 = tl.zeros(low.shape, tl.float64)
    s1 = s0
    s2 = s0
    for block in range(blocks):
        x = _signed(tl.load(top + wide(plane) * block, mask=mask, other=0))
        at = low + wide(plane) * (block * BYTES)
        if UPPER > 0:
            x = x * (256.0**UPPER) + _limb(at, plane, REST, UPPER, mask)
        s0 += x
        if REST > 0:
            s1 += _limb(at, plane, MIDDLE, REST - MIDDLE, mask)
        if MIDDLE > 0:
            s2 += _limb(at, plane, 0, MIDDLE, mask)
    h = s0
    m = s0 * 0.0
    t = m
    if REST > 0:
        h, m = two_sum(s0 * (256.0**REST), s1 * (256.0**MIDDLE))
    if MIDDLE > 0:
        m, t = two_sum(m, s2)
        h, m = two_sum(h, m)
        m, t = two_sum(m, t)
        h, m = two_sum(h, m)
    return h, m, t


@triton.jit
def last_slice(extras, vectors, at, inside, SLICES: tl.constexpr):
    """The last slice that is not empty, 0 where all are; of more than eight, those before the last eight count as that
    before these.
    """
    digits = tl.load(extras + DIGITS * vectors + at, mask=inside, other=0)
    lowest = tl.abs((digits & -digits).to(tl.float64))
    byte = ((bits_of(lowest) >> 52) - 1023) >> 3
    return tl.where(digits == 0, SLICES - 9 if SLICES > 8 else 0, SLICES - 1 - byte).to(tl.int32)


@triton.jit
def left_out(u, some, v, others, SLICES: tl.constexpr, GROUPS: tl.constexpr):
    """What the pairs that are not kept can amount to, in units of V; u, v: last slices; some, others: elements that are
    not 0.
    """
    return tl.maximum(u + v + 1 - GROUPS, 0).to(tl.float64) * (_TERM * tl.minimum(some, others).to(tl.float64))


@triton.jit
def slice_bound(
    rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, terms, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """(bound, e + s of rows, of columns, shifts of both, whether they are finite): |V - exact| <= bound."""
    A_PRIORI: tl.constexpr = MODE != ROUNDING
    LIFT: tl.constexpr = 8 * (2 * SLICES - 1 - GROUPS)
    row_e, row_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, in_m, Q, A_PRIORI)
    column_e, column_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, in_n, Q, A_PRIORI)
    bound = bound_of(
        n1a[:, None], da[:, None], n2a[:, None], fa[:, None], n1b[None, :], db[None, :], n2b[None, :], fb[None, :],
        0.25 * terms, A_PRIORI,
    )  # fmt: skip
    if not A_PRIORI:
        sa = tl.load(row_extras + DEVIATION * m + i, mask=in_m, other=0).to(tl.float64) * 0.0009765625
        sb = tl.load(column_extras + DEVIATION * n + j, mask=in_n, other=0).to(tl.float64) * 0.0009765625
        top_a, top_b = _largest(row_e, row_shift), _largest(column_e, column_shift)
        third = sa[:, None] * (top_b[None, :] + 0.5) + top_a[:, None] * sb[None, :]
        bound = tl.minimum(bound, third * (1.0 + 1e-12))
    bound = bound * (2.0**-LIFT)
    if LIFT > 0:
        u = last_slice(row_extras, m, i, in_m, SLICES)
        v = last_slice(column_extras, n, j, in_n, SLICES)
        some = tl.load(row_extras + NONZERO * m + i, mask=in_m, other=0)
        others = tl.load(column_extras + NONZERO * n + j, mask=in_n, other=0)
        bound += left_out(u[:, None], some[:, None], v[None, :], others[None, :], SLICES, GROUPS)
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
    return total * (1.0 - 1e-5)


@triton.jit
def _share(stats, count, at, alive, s: tl.constexpr):
    """The least Σ_{p >= s} of `covered_products`' distances times counts, of vectors that are not 0."""
    total = tl.zeros(at.shape, tl.float32)
    for p in tl.static_range(s, 5):
        total += _level(stats, count, at, alive, p) * (0.5 ** (p + 1 if p < 4 else 4))
    return tl.min(tl.where(alive, total, 1e30), 0)


@triton.jit
def _vectors(stats, count, at, inside, SLICES: tl.constexpr, TESTED: tl.constexpr):
    """Of some vectors: least and largest s, the former far below all where one is not finite; the largest ½‖A'‖₁; least
    shares of large elements, from 2^(e-2), 2^(e-3), 2^(e-4) down.
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
        # Half of it, as e + s <= 8·d - 1.
        norm = norm * (2.0 ** (8 * SLICES - 2 - 20))
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
    rows, columns, m, n, i, j, terms, blocks, constants, SLICES: tl.constexpr, GROUPS: tl.constexpr,
    TESTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Whether a strip's rows i and columns j are finite, their results normal, and all within the bound if TESTED.

    The bound is largest where the norms are. |a||b| is at least what the least shares of large elements have in common
    (`covered_products`), in units of 2^(e + f - 2), which among A'B' are 2^(16·d - 6) or more.
    """
    LIFT: tl.constexpr = 8 * (2 * SLICES - 1 - GROUPS)
    la, ma, na, a1, a2, a3 = _vectors(rows, m, i, i < m, SLICES, TESTED)
    lb, mb, nb, b1, b2, b3 = _vectors(columns, n, j, j < n, SLICES, TESTED)
    TOP: tl.constexpr = 1020 if PRECISION == 53 else 124
    LEAST: tl.constexpr = -1022 if PRECISION == 53 else -126
    # 1 <= |V| and, of up to 2^8 blocks, |V| with its bound below 2^(8·(G - 1) + 40); vectors of zeros have no effect.
    fits = (LIFT - (ma + mb) >= LEAST) & (LIFT - (la + lb) + 8 * (GROUPS - 1) + 40 <= TOP) & (blocks <= 256)
    if TESTED:
        k = terms.to(tl.float32)
        bound = (na + nb + 0.25 * k) * (2.0**-LIFT)
        if LIFT > 0:
            bound += (2 * SLICES - 1 - GROUPS) * _TERM * k
        covered = tl.maximum(_common(a1, a2, a3, b1, k, 0.5), _common(a1, a2, a3, b2, k, 0.25))
        covered = tl.maximum(covered, _common(a1, a2, a3, b3, k, 0.125)) - 1e-5 * k
        needed = bound * tl.load(constants + 1) * (1.0 + 1e-9)
        fits = fits & (covered.to(tl.float64) * (2.0 ** (16 * SLICES - 6 - LIFT)) >= needed) & (covered > 0.0)
    return fits


@triton.jit
def _store_marks(marked, marks, mark_pitch, i, m, j0, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A bit an entry of a tile, 32 columns a word."""
    flagged = tl.reshape(marked.to(tl.int32), [ROWS, BLOCK // 32, 32])
    word = tl.sum(flagged << tl.arange(0, 32)[None, None, :], 2)
    at = j0 // 32 + tl.arange(0, BLOCK // 32)
    inside = (i < m)[:, None] & (at < mark_pitch)[None, :]
    tl.store(marks + i.to(tl.int64)[:, None] * mark_pitch + at[None, :], word, mask=inside)


@triton.jit(
    do_not_specialize=["row_step", "batch_step", "m", "width", "terms", "blocks", "row_batches", "column_batches"]
)
def join_slices(
    low, top, out, row_step, column_step, batch_step, marks, rows, row_extras, columns, column_extras, constants, m,
    width, terms, row_pitch, plane, blocks, mark_pitch, row_batches, column_batches, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, MODE: tl.constexpr, TESTED: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Join a strip of STRIP rows and BLOCK columns of a matrix (program axes 1, 0, 2) to out, and mark what is open.

    constants (float64): kappa and magnitude kappa of `accuracy.join_test`; TESTED: in MAGNITUDE, that they are not 0.
    """
    LIFT: tl.constexpr = 8 * (2 * SLICES - 1 - GROUPS)
    n = even(width, EVEN)
    batch = tl.program_id(2).to(tl.int64)
    low += batch * blocks * (GROUPS - 1) * wide(plane)
    top += batch * blocks * wide(plane)
    out += batch * even(batch_step, EVEN)
    marks += batch * m * mark_pitch
    row_batch, column_batch = batch % row_batches, batch % column_batches
    rows += row_batch * STATISTICS * m
    row_extras += row_batch * EXTRAS * m
    columns += column_batch * STATISTICS * n
    column_extras += column_batch * EXTRAS * n
    j0 = tl.program_id(0) * BLOCK
    j = j0 + tl.arange(0, BLOCK)
    in_n = j < n
    i0 = tl.program_id(1) * STRIP
    ordinary = _ordinary(
        rows, columns, m, n, i0 + tl.arange(0, STRIP), j, terms, blocks, constants, SLICES, GROUPS, TESTED, PRECISION
    )
    for tile in range(0, tl.minimum(STRIP, m - i0), ROWS):
        i = i0 + tile + tl.arange(0, ROWS)
        in_m = i < m
        inside = in_m[:, None] & in_n[None, :]
        read = in_m[:, None] & (j < row_pitch)[None, :]
        at = i.to(tl.int64)[:, None] * row_pitch + j[None, :]
        h, rest, tail = expand_slices(low + at, top + at, plane, blocks, read, GROUPS)
        target = (
            out + i.to(tl.int64)[:, None] * even(row_step, EVEN) + j.to(tl.int64)[None, :] * wide(column_step)
        )  # fmt: skip
        if ordinary & (MODE != ROUNDING):
            row_shift = tl.load(rows + SHIFT * m + i, mask=in_m, other=0).to(tl.int32)
            column_shift = tl.load(columns + SHIFT * n + j, mask=in_n, other=0).to(tl.int32)
            exponent = LIFT - (row_shift[:, None] + column_shift[None, :])
            value, hard, _ = judge(h, rest, tail, h * 0.0, exponent, constants, RAW, PRECISION)
            marked = hard & inside
        else:
            bound, row_e, column_e, row_shift, column_shift = slice_bound(
                rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, terms, SLICES, GROUPS, MODE
            )
            special = (row_e >= NONFINITE)[:, None] | (column_e >= NONFINITE)[None, :]
            exponent = tl.where(special, 0, LIFT - (row_shift[:, None] + column_shift[None, :]))
            value, hard, failed = judge(h, rest, tail, bound, exponent, constants, MODE, PRECISION)
            if MODE == MAGNITUDE and TESTED:
                power = row_e[:, None] + row_shift[:, None] + column_e[None, :] + column_shift[None, :]
                least = bound * tl.load(constants + 1) * power_of_two(2 + LIFT - tl.where(special, 0, power))
                covered = covered_products(rows, columns, m, n, i, j, in_m, in_n, terms)
                failed = failed & ~((covered > 0.0) & (covered.to(tl.float64) >= least))
            marked = (failed | hard | special) & inside
        if PRECISION == 53:
            tl.store(target, value, mask=inside)
        else:
            tl.store(target, value.to(tl.float32), mask=inside)
        _store_marks(marked, marks, mark_pitch, i, m, j0, ROWS, BLOCK)
