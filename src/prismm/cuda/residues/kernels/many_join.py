"""The join of up to 49 moduli: C' from its digits without error, one rounding, and its proof (`cpu.kernels.many`).

S = Σ y·(P/q) in nine limbs of 40 bits, P in as many of the top ones as it takes; C' = S - P·rint(S/P). Digits are
0 <= y < 256. S - 128·Σ P/q is summed, and the remainder of 128·Σ P/q modulo P added: numbers |y - 128| <= 128 times
limbs below 2^40, 49 of them, and a limb stay below 2^53. So do they when the quotient's multiple of P is subtracted,
since |S/P| < 62. Leading limbs that are zero are shifted out until five are left, of which at least 159 bits of C' are
kept in three parts; a quarter of the fifth one's unit stands for the rest, with its sign.

The terms of inner indices that were left apart (`balance`) are added before C' is rounded.

Where operands lost bits, five or six leading limbs suffice (`leading_limbs`). `_expanded_shortly` adds the first four
of them that are not shifted out, in twice float64's precision.

Operations: 7 to 11 per entry and modulus, about 250 per entry, and 400 more where rounding takes integers.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.expansion import ABOVE, DOWN, UP, expand
from prismm.cuda.kernels.fp64 import NORM1, TWO52, fast_two_sum, float_of, nearest, power_of_two, wide
from prismm.cuda.residues.kernels.balance import (
    BALANCES,
    NORM_BITS,
    choice_of,
    norm_of,
    nothing_meets,
    scale_of,
)
from prismm.cuda.residues.kernels.join_exact import ROUNDING, judge, rounded_with_care
from prismm.cuda.residues.kernels.many_split import exponents
from prismm.cuda.residues.kernels.many_sum import SIGN_ALONE, STAND_IN, total, with_product

LIMBS = tl.constexpr(9)
CONSTANTS = tl.constexpr(20)
"""Numbers of a system before its weights: two of the quotient, P in nine limbs, and `CENTRE` times the sum of all
weights, modulo P.
"""

CENTRE = tl.constexpr(128)
"""Subtracted from each digit, so that no magnitude is above 128."""

SHORTLY = tl.constexpr(2.0**-91)
"""The relative error of `_expanded_shortly`."""

BOUNDED = tl.constexpr(8)
"""Added to the number of limbs that are shifted out, which is smaller, as a second fact in the same number."""

EXPANDED, JOINED = tl.constexpr(1024), tl.constexpr(512)
"""One call expands up to EXPANDED entries, of a list or of whole rows. One call joins up to JOINED entries of a
list.
"""

SEVEN = tl.constexpr(7)
"""The digits of so many moduli are read together. If the number of moduli is no multiple of SEVEN, the last digit is
read again and multiplied by 0.
"""


@triton.jit
def _carried(lower, upper, times, part):
    """A limb within ±2^39, and the one above it with P's part and the carry."""
    carry = nearest(lower * DOWN)
    return tl.fma(carry, -UP, lower), tl.fma(times, part, upper) + carry


@triton.jit
def _sunk(zero, here, following):
    return tl.where(zero, following, here)


@triton.jit
def _window(x0, x1, x2, x3, x4, x5, x6, x7, x8):
    """(five limbs, how many were shifted out, a bound of what stands for the rest in units of the third)."""
    lead = (x0 == 0.0).to(tl.int32) * 0
    for _ in tl.static_range(LIMBS - 5):
        zero = x0 == 0.0
        x0, x1, x2, x3 = _sunk(zero, x0, x1), _sunk(zero, x1, x2), _sunk(zero, x2, x3), _sunk(zero, x3, x4)
        x4, x5, x6, x7 = _sunk(zero, x4, x5), _sunk(zero, x5, x6), _sunk(zero, x6, x7), _sunk(zero, x7, x8)
        x8 = tl.where(zero, 0.0, x8)
        lead += zero.to(tl.int32)
    rest = tl.where(x5 != 0.0, x5, tl.where(x6 != 0.0, x6, tl.where(x7 != 0.0, x7, x8)))
    x4 += tl.where(rest > 0.0, STAND_IN, tl.where(rest < 0.0, -STAND_IN, 0.0))
    return x0, x1, x2, x3, x4, lead, tl.where(rest != 0.0, DOWN * DOWN, 0.0)


@triton.jit
def leading_limbs(lost, bits, below):
    """How many leading limbs of sums suffice: 5, 6 or LIMBS, of which P does not take the last `below` bits. lost:
    whether one side has lost bits of all its vectors, so that an entry's bound is ½‖B'‖₁ >= 2^(bits - 2) at least, with
    `bits` of a side at least. What `rest_of` allows for is below 2^-9 of that.
    """
    kept = tl.where(bits + below >= 40 * (LIMBS - 6) + 24, 6, LIMBS)
    kept = tl.where(bits + below >= 40 * (LIMBS - 5) + 24, 5, kept)
    return tl.where(lost, kept, LIMBS)


@triton.jit
def rest_of(kept, below):
    """By how much C' may differ from its sum in so many leading limbs, in units of C'.

    The limbs that are left out are below 1, in units of the last one that is not: in each of 49 weights, which up to
    128 multiplies; in the remainder for digits' centre; and in P, of which less than 62 are subtracted. That is less
    than 2^13.
    """
    return tl.where(kept < LIMBS, power_of_two(-(below + kept * 40 - (40 * LIMBS + 13))), 0.0)


@triton.jit
def _expanded_shortly(x0, x1, x2, x3):
    """h + m, which differs from the number that the limbs stand for by less than 2^-91·|h|.

    If the first limb is 0, so are all but the second, and h is exact. Otherwise, with a = x0·2^80 and b = x1·2^40,
    a + b = s + e exactly, and |s| >= 2^79, as |x1| <= 2^39. The sum of the other limbs is below 2^39 + 1, rounded by
    2^-14 at most, and leaves out less than 2^-40. |e| <= 2^-53·|s|, so adding it rounds by less than 2^-106·|s| +
    2^-13. That is 0.76·2^-91·|s| in all, and |h| >= |s|·(1 - 2^-39).
    """
    h, low = fast_two_sum(x0 * ABOVE, x1 * UP)
    return fast_two_sum(h, low + tl.fma(x3, DOWN, x2))


@triton.jit
def _with_digit(s, digit, w, KEPT: tl.constexpr):
    """Sums of limbs with what the digit of a modulus adds, whose weight stands at w."""
    # By its pattern: a digit is below 2^52, so the subtraction is exact.
    d = float_of(digit.to(tl.int64) | 0x4330000000000000) - (TWO52 + CENTRE)
    s0, s1, s2 = tl.fma(d, tl.load(w), s[0]), tl.fma(d, tl.load(w + 1), s[1]), tl.fma(d, tl.load(w + 2), s[2])
    s3, s4, s5, s6, s7, s8 = tl.fma(d, tl.load(w + 3), s[3]), tl.fma(d, tl.load(w + 4), s[4]), s[5], s[6], s[7], s[8]
    if KEPT >= 6:
        s5 = tl.fma(d, tl.load(w + 5), s5)
    if KEPT == LIMBS:
        s6, s7, s8 = tl.fma(d, tl.load(w + 6), s6), tl.fma(d, tl.load(w + 7), s7), tl.fma(d, tl.load(w + 8), s8)
    return s0, s1, s2, s3, s4, s5, s6, s7, s8


@triton.jit
def expansion(
    digits, offset, plane, system, moduli, nothing_there, KEPT: tl.constexpr, TOGETHER: tl.constexpr
):  # fmt: skip
    """C' of some entries, `offset` behind a plane's first digit: h + m + t in units of the third limb left, limbs
    shifted out, and the bound of `_window`, or where limbs are left out, of `_expanded_shortly`. system: CONSTANTS
    numbers, then weights in LIMBS limbs, 0 for moduli that there are not. KEPT: of `leading_limbs`. TOGETHER: digits of
    SEVEN moduli are read before the first is used, where those of a thread's entries are neighbours in a register.
    """
    none = tl.zeros(offset.shape, tl.float64)
    centre = system + (2 + LIMBS)
    s0, s1, s2 = none + tl.load(centre), none + tl.load(centre + 1), none + tl.load(centre + 2)
    s3, s4 = none + tl.load(centre + 3), none + tl.load(centre + 4)
    s5, s6, s7, s8 = none, none, none, none
    if KEPT >= 6:
        s5 = none + tl.load(centre + 5)
    if KEPT == LIMBS:
        s6, s7, s8 = none + tl.load(centre + 6), none + tl.load(centre + 7), none + tl.load(centre + 8)
    s = (s0, s1, s2, s3, s4, s5, s6, s7, s8)
    w, last = system + CONSTANTS, moduli - 1
    if TOGETHER:
        for t in tl.range(0, moduli, SEVEN):
            # There are no digits behind those of the last modulus, so these are read instead. Their weights are 0.
            d0 = tl.load(digits + wide(plane) * t + offset)
            d1 = tl.load(digits + wide(plane) * tl.minimum(t + 1, last) + offset)
            d2 = tl.load(digits + wide(plane) * tl.minimum(t + 2, last) + offset)
            d3 = tl.load(digits + wide(plane) * tl.minimum(t + 3, last) + offset)
            d4 = tl.load(digits + wide(plane) * tl.minimum(t + 4, last) + offset)
            d5 = tl.load(digits + wide(plane) * tl.minimum(t + 5, last) + offset)
            d6 = tl.load(digits + wide(plane) * tl.minimum(t + 6, last) + offset)
            # Loads return in order, so a weight that is read behind a digit waits for it. The compiler moves no digit
            # behind a barrier.
            tl.debug_barrier()
            s = _with_digit(s, d0, w, KEPT)
            s = _with_digit(s, d1, w + LIMBS, KEPT)
            s = _with_digit(s, d2, w + 2 * LIMBS, KEPT)
            s = _with_digit(s, d3, w + 3 * LIMBS, KEPT)
            s = _with_digit(s, d4, w + 4 * LIMBS, KEPT)
            s = _with_digit(s, d5, w + 5 * LIMBS, KEPT)
            s = _with_digit(s, d6, w + 6 * LIMBS, KEPT)
            w += SEVEN * LIMBS
    else:
        # If the loop were unrolled further, the sums of nine limbs would not fit in registers. Addresses that move on
        # take half of the instructions of ones that are found anew.
        for _ in tl.range(0, moduli, loop_unroll_factor=2 if KEPT == LIMBS else 4):
            s = _with_digit(s, tl.load(digits + offset), w, KEPT)
            digits += wide(plane)
            w += LIMBS
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = s
    # The top two limbs are enough: the quotient is never closer to a half than 2^-18 (`core.many_moduli`).
    times = -nearest(tl.fma(s0, tl.load(system), s1 * tl.load(system + 1)))
    of_p = system + 2
    if KEPT == LIMBS:
        s8 = tl.fma(times, tl.load(of_p + 8), s8)
        s8, s7 = _carried(s8, s7, times, tl.load(of_p + 7))
        s7, s6 = _carried(s7, s6, times, tl.load(of_p + 6))
        s6, s5 = _carried(s6, s5, times, tl.load(of_p + 5))
    elif KEPT == 6:
        s5 = tl.fma(times, tl.load(of_p + 5), s5)
    if KEPT >= 6:
        s5, s4 = _carried(s5, s4, times, tl.load(of_p + 4))
    else:
        s4 = tl.fma(times, tl.load(of_p + 4), s4)
    s4, s3 = _carried(s4, s3, times, tl.load(of_p + 3))
    s3, s2 = _carried(s3, s2, times, tl.load(of_p + 2))
    s2, s1 = _carried(s2, s1, times, tl.load(of_p + 1))
    s1, s0 = _carried(s1, s0, times, tl.load(of_p))
    x0, x1, x2, x3, x4, lead, missing = _window(s0, s1, s2, s3, s4, s5, s6, s7, s8)
    if KEPT < LIMBS:
        h, m = _expanded_shortly(x0, x1, x2, x3)
        t, missing = none, tl.abs(h) * SHORTLY
    else:
        # Limbs that have been carried: P and the quotient of this are zero.
        h, m, t = expand(x0, x1, x2, x3, x4, nothing_there, nothing_there, 5)
    return h, m, t, lead, missing


@triton.jit
def falling(SIZE: tl.constexpr):
    """SIZE - 1 to 0. The compiler gives each thread single numbers of what it does not take for contiguous, as it does
    with scattered results. So nothing has to be exchanged between threads before these are stored.
    """
    return SIZE - 1 - tl.arange(0, SIZE)


@triton.jit(noinline=True)
def expand_listed(
    listed, many, digits, plane, pitch, system, moduli, nothing_there, expansions, COLUMNS: tl.constexpr,
    SIZE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """expansions (4, EXPANDED) float64: h, m, t of `expansion` for SIZE entries of a list, or for as many as there are,
    numbered in rows of COLUMNS; and the limbs shifted out, BOUNDED more where the bound of `_window` is not 0.

    A function of its own, so that registers are free for the sums of four entries a thread.
    """
    lanes = falling(SIZE)
    # The first entry stands for those that are not there.
    entry = tl.load(listed + lanes, mask=lanes < many, other=0)
    offset = entry // COLUMNS * pitch + entry % COLUMNS
    h, m, t, lead, missing = expansion(digits, offset, plane, system, moduli, nothing_there, KEPT, False)
    if KEPT == LIMBS:
        lead += tl.where(missing != 0.0, BOUNDED, 0)
    tl.store(expansions + lanes, h)
    tl.store(expansions + EXPANDED + lanes, m)
    tl.store(expansions + 2 * EXPANDED + lanes, t)
    tl.store(expansions + 3 * EXPANDED + lanes, lead.to(tl.float64))


@triton.jit
def expanded(expansions, kept):
    """What `expansion` returned of JOINED entries that `expand_listed` expanded."""
    lanes = falling(JOINED)
    lead = tl.load(expansions + 3 * EXPANDED + lanes).to(tl.int32)
    h, m = tl.load(expansions + lanes), tl.load(expansions + EXPANDED + lanes)
    missing = tl.where(kept < LIMBS, tl.abs(h) * SHORTLY, tl.where(lead >= BOUNDED, DOWN * DOWN, 0.0))
    return h, m, tl.load(expansions + 2 * EXPANDED + lanes), lead & (BOUNDED - 1), missing


@triton.jit
def side_of(stats, measures, lost, vectors, all_vectors, at, number, bits, balance, q):
    """(shift, ½‖2^s·a‖₁, whether bits were lost) of some vectors, the norm an upper bound; of those that are not there,
    anything. number: of the first vector among those of both sides.
    """
    inside = at < vectors
    some = tl.load(lost + number + at, mask=inside, other=0)
    if balance < BALANCES:
        e = scale_of(measures, all_vectors, balance, number + at, inside)
        size = norm_of(measures, all_vectors, balance, number + at, inside).to(tl.float64)
        size *= power_of_two(bits - NORM_BITS - 1)
    else:
        e = exponents(stats, vectors, at)
        size = tl.load(stats + NORM1 * vectors + at, mask=inside, other=0).to(tl.float64) * power_of_two(bits - q - 1)
    return bits - e, size, (some > 0).to(tl.float64)


@triton.jit
def join_entries(
    a, a_row, a_step, b, b_column, b_step, out, row_stride, column_stride, h, middle, tail, lead, missing, row_shift,
    n1a, fa, column_shift, n1b, fb, measures, row_first, column_first, all_vectors, nothing_there, i, j, there, terms,
    balance, below, rest, part, alpha, beta, beta_i, c, c_row, c_column, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    CAREFUL: tl.constexpr,
):  # fmt: skip
    """Set the entries (i, j) whose rounding is proved, of those that are there; returns which, and which need care.
    Unless CAREFUL, these are left, and there must be no inner indices that are left apart.

    h, middle, tail, lead, missing: of `expansion`, by which C' differs by `rest` at most. row_shift to fb: of
    `side_of`. below: bits of the limbs that P does not take. row_first, column_first: numbers of the matrices' first
    vectors among those of both sides. balance, measures: as of `many_split.split_tile`. alpha to c_column: for
    alpha·AB + beta·C, as `many_sum.total` has them, and C's places; None for AB.
    """
    UNIT: tl.constexpr = 40 * (LIMBS - 3)
    # A' = 2^s·a + δ, |δ| <= ½ where bits were lost: |C' - 2^(s+t)·AB| <= ½‖B‖₁ + ½‖A‖₁ + k/4.
    bound = fa * n1b + fb * n1a + fa * fb * (0.25 * terms) + rest
    scale = power_of_two(40 * lead + below - UNIT)
    exponent = UNIT - below - 40 * lead - (row_shift + column_shift)
    error = bound * 0.0
    sure = there
    zero = there != there
    # True where only the sign is known of what C' holds below its second part.
    by_sign = zero
    # `expand` rounds the third part, whose terms are multiples of 2^-82. That matters only if something cancels the
    # first two parts.
    cut = tl.where(tl.abs(tail) > 2.0**-29, tl.abs(tail) * 2.0**-53, 0.0)
    if balance < BALANCES:
        row, column = row_first + i, column_first + j
        zero = there & nothing_meets(measures, all_vectors, terms, row, column, there)
        if CAREFUL:
            _, _, apart, which = choice_of(measures, all_vectors, terms, balance)
            small = tl.zeros(there.shape, tl.int32)
            middling = tl.zeros(there.shape, tl.int32)
            for x in range(apart):
                inner = tl.load(which + x).to(tl.int64)
                of_a, of_b = a + i.to(tl.int64) * a_row, b + j.to(tl.int64) * b_column
                if PARTS == 1:
                    of_a, of_b = of_a + inner * a_step, of_b + inner * b_step
                else:
                    of_a += (inner >> 1) * a_step + (inner & 1)
                    of_b += (inner >> 1) * b_step + ((inner & 1) ^ part)
                u = tl.load(of_a, mask=there, other=0.0).to(tl.float64)
                v = tl.load(of_b, mask=there, other=0.0).to(tl.float64)
                if PARTS == 2:
                    v = tl.where((part == 0) & ((inner & 1) == 1), -v, v)
                h, middle, tail, some, proved, is_small, is_middling = with_product(h, middle, tail, u, v, exponent)
                error += some
                sure = sure & proved
                small += is_small.to(tl.int32)
                middling += is_middling.to(tl.int32)
            alone = (small == 1) & (middling == 0)
            if alpha is not None:
                # A factor and C may hide a sign that is not the only thing below the second part.
                alone = alone & (tl.abs(tail) == SIGN_ALONE)
                by_sign = alone
            sure = sure & ((small == 0) | alone)
            # What stands for the rest of C' is a sign alone, which others may hide.
            error += tl.where(apart > 0, missing + cut, 0.0)
    if alpha is not None:
        by_sign = by_sign | ((missing != 0.0) & (tl.abs(tail) == STAND_IN * DOWN * DOWN))
        by_sign = by_sign & (bound == 0.0) & (error == 0.0)
        error += missing + cut
    inexact = (bound > 0.0) | (error > 0.0)
    bound = tl.where(inexact, (bound * (1.0 + 2.0**-40)) * scale + missing + error, 0.0)
    if alpha is not None:
        of_c = c
        if c is not None:
            of_c = c + (i.to(tl.int64) * c_row + j.to(tl.int64) * c_column)
        h, middle, tail, bound, exponent, fine = total(
            tl.where(zero, 0.0, h), tl.where(zero, 0.0, middle), tl.where(zero, 0.0, tail),
            tl.where(zero, 0.0, bound), exponent, by_sign & ~zero, alpha, beta, beta_i, of_c, there, part, PARTS,
        )  # fmt: skip
        sure = sure & fine
        inexact = bound > 0.0
        zero = there != there
    value, hard, failed = judge(h, middle, tail, bound, exponent, nothing_there, ROUNDING, PRECISION)
    hard = there & (hard | ((h == 0.0) & inexact))
    if CAREFUL:
        if tl.max(hard.to(tl.int32), 0) > 0:
            careful, undecided = rounded_with_care(h, middle, tail, bound, exponent, failed, ROUNDING, PRECISION)
            value = tl.where(hard, careful, value)
            failed = tl.where(hard, undecided, failed)
    else:
        failed = failed | hard
    proved = sure & ~failed
    value = tl.where(zero, 0.0, value)
    proved = proved | zero
    target = out + i.to(tl.int64) * row_stride + j.to(tl.int64) * column_stride
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32), mask=proved)
    return proved, hard
