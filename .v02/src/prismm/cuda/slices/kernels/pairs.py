"""Join products of slices whose exponents are their vectors' own: each pair a number of its own, their sum exact.

With exponents x_p of a row's slices and y_q of a column's, counted from the first ones, an entry is the sum of
P_pq·2^(x_p + y_q) over the pairs with p + q < G, P_pq the sum of the pair's products of digits, which `product`
leaves in an integer each (SLICES = GROUPS = 1: nothing is grouped), one for every block of the inner dimension. No two
pairs have one weight, and no grid holds them all.

They are added in float64 with two-sums to a number of four parts, about 200 bits. What leaves the last part, and pairs
that begin more than 900 binades below the first, is not added but measured: the sum is within `rest` of the parts, and
mostly `rest` is 0, or decides nothing. Two-sums among the parts then make h + low + tail of them, and where those are
no expansion (total cancellation, say), or `rest` leaves the rounding undecided, or a tie or the end of the range asks
for more care, the entry is flagged: `repair` adds its pairs once more, in limbs of 32 bits that hold any exponent
(`pairs_value`), and rounds that. So every value is RN of the sum.

**The bound.** AB less the pairs kept is Σ_p A^(p)·(B less its first Q slices) + δA·B, where Q = min(d, G - p) slices q
are kept beside p (`schemes.slices.Slices`). So it is at most Σ_p (Σ|A^(p)|)·(what Q slices of B leave, at most) +
(what all slices of A leave)·‖B‖₁, of numbers that `adaptive` measured; and 2·k·2^-1074 of scaled vectors where
scaling lost elements, in units of the first slices, of which there are at most 2^52, far below k·2^-1000.

Bytes: 4 read an entry and pair (8 of FP64 slices), 28 pairs of 7 slices where p + q < 7, and as many written by the
products; 4 or 8 and a bit written. Operations: 30 of float64 an entry and pair. At n = 4096 that is 1.9 GB, 0.45 ms
at 4.2 TB/s, and 14 GFLOP, 0.8 ms at the 17 T/s of an H200's additions, which are the floor, beside 2.0 ms of products
at the full rate of INT8. These figures are estimates.
"""

import triton
import triton.language as tl

from prismm.cuda.gemm.kernels.repair import UNIT_OF_SUMS, deposit
from prismm.cuda.kernels.exact import LIMBS_OF_SUMS, limb_numbers, round_limbs
from prismm.cuda.kernels.fp64 import LOW32, NONFINITE, STATISTICS, bits_of, float_of, power_of_two, two_sum, wide
from prismm.cuda.residues.kernels.join_exact import MAGNITUDE, bound_terms, judge
from prismm.cuda.slices.kernels.adaptive import CUTS, FIRST, REST, WEIGHT
from prismm.cuda.slices.kernels.join import Q, covered_products, signed, store_flags, unsigned

ROWS, BLOCK = 4, 128
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def _add(s0, s1, s2, s3, rest, t, near):
    """A number added to the sum; what does not fit, or is not near, to `rest` in magnitude."""
    # `rest` itself is rounded; the factor 1 + 2^-40 of `expand_pairs` covers that.
    rest += tl.where(near, 0.0, tl.abs(t))
    s0, t = two_sum(s0, tl.where(near, t, 0.0))
    s1, t = two_sum(s1, t)
    s2, t = two_sum(s2, t)
    s3, t = two_sum(s3, t)
    return s0, s1, s2, s3, rest + tl.abs(t)


@triton.jit
def _pass(s0, s1, s2, s3):
    """Two-sums from the lowest up: the first is the sum, rounded, the others what was lost."""
    s2, s3 = two_sum(s2, s3)
    s1, s2 = two_sum(s1, s2)
    s0, s1 = two_sum(s0, s1)
    return s0, s1, s2, s3


@triton.jit
def _cut(cuts, count, at, inside, row: tl.constexpr, p, SLICES: tl.constexpr):
    """What is kept of slice p of some vectors."""
    return tl.load(cuts + (wide(row * SLICES) + p) * count + at, mask=inside, other=0)


@triton.jit
def expand_pairs(
    products, plane, blocks, batches, row_cuts, column_cuts, m, n, i, j, in_m, in_n, mask, SLICES: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """(h, low, tail, rest, whether these are an expansion): the sum is within rest·(1 + 2^-40) of h + low + tail.

    products: of the first pair, a pointer an entry; pairs lie batches·blocks planes apart. An expansion: |low| is at
    most ulp(h)/2, and |tail| (1 + 2^-52)·ulp(low)/2, with the sign of what it stands for.
    """
    zero = tl.zeros(mask.shape, tl.float64)
    s0 = zero
    s1 = zero
    s2 = zero
    s3 = zero
    rest = zero
    at = products
    for p in range(SLICES):
        x = _cut(row_cuts, m, i, in_m, FIRST, p, SLICES)
        for q in range(tl.minimum(SLICES, GROUPS - p)):
            y = _cut(column_cuts, n, j, in_n, FIRST, q, SLICES)
            e = (x[:, None] + y[None, :]).to(tl.int32)
            near = e >= -900
            # Far pairs are measured as if they began at 2^-900: larger than they are, so `rest` stays an upper bound.
            scale = power_of_two(tl.maximum(e, -900))
            for block in range(blocks):
                word = tl.load(at + wide(plane) * block, mask=mask, other=0)
                if word.dtype == tl.int64:
                    # 63 bits are more than a significand holds; each half converts exactly.
                    upper, lower = signed((word >> 32).to(tl.int32)) * 4294967296.0, unsigned(word.to(tl.int32))
                    s0, s1, s2, s3, rest = _add(s0, s1, s2, s3, rest, upper * scale, near)
                    s0, s1, s2, s3, rest = _add(s0, s1, s2, s3, rest, lower * scale, near)
                else:
                    s0, s1, s2, s3, rest = _add(s0, s1, s2, s3, rest, signed(word) * scale, near)
            at += wide(plane) * blocks * batches
    # Nothing rests on the number of passes: `whole` tests what they leave.
    for _ in tl.static_range(4):
        s0, s1, s2, s3 = _pass(s0, s1, s2, s3)
    whole = (s0 + s1 == s0) & (s1 + s2 == s1) & (s2 + s3 == s2)
    return s0, s1, s2 + s3, rest, whole


@triton.jit
def pairs_value(
    products, plane, blocks, batches, row_cuts, column_cuts, m, n, i, j, exponent, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """RN of the sum of an entry's pairs times 2^exponent, whatever their exponents, as a float64."""
    total = tl.zeros([LIMBS_OF_SUMS], tl.int64)
    first = tl.full([], LIMBS_OF_SUMS, tl.int64)
    last = tl.full([], 0, tl.int64)
    at = products
    for p in range(SLICES):
        x = tl.load(row_cuts + (wide(FIRST * SLICES) + p) * m + i)
        for q in range(tl.minimum(SLICES, GROUPS - p)):
            y = tl.load(column_cuts + (wide(FIRST * SLICES) + q) * n + j)
            position = x + y + exponent + UNIT_OF_SUMS
            for block in range(blocks):
                word = tl.load(at + wide(plane) * block).to(tl.int64)
                if word != 0:
                    size, sign = tl.abs(word), tl.where(word < 0, -1, 1).to(tl.int64)
                    total = deposit(total, size & LOW32, sign, position)
                    total = deposit(total, size >> 32, sign, position + 32)
                    first = tl.minimum(first, position >> 5)
                    # 64 bits that begin within a limb reach into the two above it, and `last` is one beyond.
                    last = tl.maximum(last, (position >> 5) + 3)
            at += wide(plane) * blocks * batches
    return round_limbs(total, first, last, limb_numbers(), UNIT_OF_SUMS, PRECISION)


@triton.jit
def pairs_bound(
    rows, row_cuts, columns, column_cuts, m, n, i, j, in_m, in_n, terms, SLICES: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """(bound, e of rows, of columns, shifts of both): the sum differs from the exact product by at most the bound, in
    units of both first slices.
    """
    row_e, row_shift, _, _, _, fa = bound_terms(rows, m, i, in_m, Q, True)
    column_e, column_shift, half, _, _, fb = bound_terms(columns, n, j, in_n, Q, True)
    left = float_of(_cut(row_cuts, m, i, in_m, REST, SLICES - 1, SLICES))
    # The statistics' `half` is ½‖B'‖₁, as bounds of products of residues take it.
    bound = left[:, None] * (2.0 * half)[None, :]
    for p in range(SLICES):
        weight = float_of(_cut(row_cuts, m, i, in_m, WEIGHT, p, SLICES))
        others = float_of(_cut(column_cuts, n, j, in_n, REST, tl.minimum(SLICES, GROUPS - p) - 1, SLICES))
        bound += weight[:, None] * others[None, :]
    lost = (fa[:, None] + fb[None, :]) * (wide(terms).to(tl.float64) * 9.332636185032189e-302)  # 2^-1000
    # More than the roundings of up to 257 additions and products of positive numbers.
    return (bound + lost) * (1.0 + 1e-9), row_e, column_e, row_shift, column_shift


@triton.jit
def pairs_uncertified(h, low, tail, rest, whole, PRECISION: tl.constexpr):
    """Whether `rest` leaves undecided how a sum rounds, to 53 bits or to 24, or its parts are no expansion."""
    err = 2.0 * rest + 2.0 * tl.abs(tail) + tl.abs(low) * 8.881784197001252e-16  # 2^-50
    if PRECISION == 53:
        differ = (h + (low + err) != h) | (h + (low - err) != h)
    else:
        # Midpoints of 24 bits have the pattern 2^28 in their last 29; widened, so that the ends are none of them.
        size, signed = tl.abs(h), tl.where(h < 0.0, -low, low)
        below, above = size + (signed - err), size + (signed + err)
        lower, upper = bits_of(below) - 268435458, bits_of(above) - 268435454  # 2^28, and 2 more or less
        # A sum that may be 0 or turn its sign has no interval of patterns to compare.
        differ = ~(below > 0.0) | ((lower >> 29) != (upper >> 29))
    return ~whole | ((rest != 0.0) & differ)


@triton.jit(do_not_specialize=["row_step", "batch_step", "m", "n", "terms", "blocks", "row_batches", "column_batches"])
def join_pairs(
    products, out, row_step, column_step, batch_step, flags, rows, row_cuts, columns, column_cuts, constants, m, n,
    terms, row_pitch, plane, blocks, flag_pitch, row_batches, column_batches, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, MODE: tl.constexpr, TESTED: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Join ROWS rows and BLOCK columns of a matrix (program axes 1, 0, 2) to out, and flag the uncertified entries.

    products: rows of row_pitch entries, `plane` in each block of the inner dimension, blocks of all matrices of a pair
    after each other. constants, TESTED: as of `join.join_slices`.
    """
    batch = tl.program_id(2).to(tl.int64)
    batches = tl.num_programs(2)
    products += batch * blocks * wide(plane)
    out += batch * batch_step
    flags += batch * m * flag_pitch
    row_batch, column_batch = batch % row_batches, batch % column_batches
    rows += row_batch * STATISTICS * m
    row_cuts += row_batch * (CUTS * SLICES) * m
    columns += column_batch * STATISTICS * n
    column_cuts += column_batch * (CUTS * SLICES) * n
    j0 = tl.program_id(0) * BLOCK
    j = j0 + tl.arange(0, BLOCK)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    in_m, in_n = i < m, j < n
    inside = in_m[:, None] & in_n[None, :]
    at = i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    h, low, tail, rest, whole = expand_pairs(
        products + at, plane, blocks, batches, row_cuts, column_cuts, m, n, i, j, in_m, in_n, inside, SLICES, GROUPS
    )  # fmt: skip
    bound, row_e, column_e, row_shift, column_shift = pairs_bound(
        rows, row_cuts, columns, column_cuts, m, n, i, j, in_m, in_n, terms, SLICES, GROUPS
    )  # fmt: skip
    special = (row_e >= NONFINITE)[:, None] | (column_e >= NONFINITE)[None, :]
    exponent = tl.where(special, 0, -(row_shift[:, None] + column_shift[None, :]))
    value, hard, failed = judge(h, low, tail, bound, exponent, constants, MODE, PRECISION)
    hard = hard | pairs_uncertified(h, low, tail, rest, whole, PRECISION)
    if MODE == MAGNITUDE and TESTED:
        power = row_e[:, None] + row_shift[:, None] + column_e[None, :] + column_shift[None, :]
        least = bound * tl.load(constants + 1) * power_of_two(2 - tl.where(special, 0, power))
        covered = covered_products(rows, columns, m, n, i, j, in_m, in_n, terms)
        failed = failed & ~((covered > 0.0) & (covered.to(tl.float64) >= least))
    flagged = (failed | hard | special) & inside
    target = out + i.to(tl.int64)[:, None] * row_step + j.to(tl.int64)[None, :] * wide(column_step)
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32), mask=inside)
    store_flags(flagged, flags, flag_pitch, i, m, j0, ROWS, BLOCK)
