"""The exact join: C' from its digits without error, one rounding, the certificate.

The arithmetic and the decisions are those of `cpu.kernels.join` and `cpu.kernels.finish`, so that the bits are. MODE
(`prismm.core.accuracy`): RAW stores the value; ROUNDING tests that no number within the bound rounds elsewhere;
MAGNITUDE
that the bound is small beside |a||b|. What needs more care than a shift of the exponent (ties that the tail decides,
results outside the normal range or near its top) is rounded in integers, in tiles that hold some. What is left to
`repair` is flagged by a bit, 32 columns a word: rows or columns that are not finite, and failed tests.

Ordinary tiles never come here: `join_fast` joins them in a third of the time and leaves the others to this kernel.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import SPECIAL
from prismm.cuda.kernels.expansion import expand, round_expansion, rounded_alike, shifted
from prismm.cuda.kernels.fp64 import (
    COUNTS,
    EXPONENT,
    LARGEST,
    NONFINITE,
    NORM1,
    NORM2,
    RESIDUAL,
    SHIFT,
    TWO52,
    bits_of,
    exponent_above,
    exponent_field,
    float_of,
    power_of_two,
    two_sum,
    wide,
)

RAW, ROUNDING, MAGNITUDE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
REAL, REAL_PART, IMAGINARY_PART = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def bound_terms(stats, vectors, at, inside, q, A_PRIORI: tl.constexpr):
    """(exponent, shift, ½‖A'‖₁, ‖δ‖₂, ‖A'‖₂, inexact) of some vectors, upper bounds in units of A'. The exponent is
    NONFINITE where a vector holds Inf, above it where NaN was found.

    ‖δ‖₂² <= Σ ceil(2^10·|δ|)²·2^-20. A_PRIORI: of integers alone; the two norms that this does not use are 0.
    """
    largest = tl.load(stats + LARGEST * vectors + at, mask=inside, other=0)
    shift = tl.load(stats + SHIFT * vectors + at, mask=inside, other=0).to(tl.int32)
    finite = largest < EXPONENT
    exponent = tl.where(finite, exponent_above(largest).to(tl.int32), NONFINITE + (largest > EXPONENT).to(tl.int32))
    scale = power_of_two(tl.where(finite, shift - q + exponent, 0))
    residual = tl.load(stats + RESIDUAL * vectors + at, mask=inside, other=0)
    inexact = tl.where(residual > 0, 1.0, 0.0).to(tl.float64)
    norm1 = 0.5 * tl.load(stats + NORM1 * vectors + at, mask=inside, other=0).to(tl.float64) * scale
    deviation = scale * 0.0
    norm2 = deviation
    if not A_PRIORI:
        # Far above the roundings of a conversion, a root and a product, 2^-53 each.
        slack: tl.constexpr = 1.0 + 3.7252902984619140625e-09  # 2^-28
        norm2 = tl.sqrt(tl.load(stats + NORM2 * vectors + at, mask=inside, other=0).to(tl.float64)) * scale * slack
        deviation = tl.sqrt(residual.to(tl.float64)) * (0.0009765625 * slack)
    return exponent, shift, norm1, deviation, norm2, inexact


@triton.jit
def bound_of(n1a, da, n2a, fa, n1b, db, n2b, fb, quarter, A_PRIORI: tl.constexpr):
    """|C' - 2^(s+t)·exact| <= the smaller of the two bounds of `Residues`; A_PRIORI: the first, from integers."""
    bound = fa * n1b + fb * n1a + fa * fb * quarter
    if not A_PRIORI:
        second = da * n2b + (n2a + da) * db
        bound = tl.minimum(bound, second * (1.0 + 9.094947017729282e-13))  # 2^-40
    return bound


@triton.jit
def _level(stats, vectors, at, inside, p):
    return tl.load(stats + (COUNTS + p) * vectors + at, mask=inside, other=0).to(tl.float32)


@triton.jit
def large_products(rows, columns, m, n, i, j, in_m, in_n, k, LEVELS: tl.constexpr):
    """max over thresholds of #{products at least α·β}·αβ in units of 2^(e_i + e_j - 2): `finish.pigeonhole`.

    Counts below 2^24 and powers of two are exact in float32.
    """
    best = tl.zeros([i.shape[0], j.shape[0]], tl.float32)
    for p in tl.static_range(LEVELS):
        row = _level(rows, m, i, in_m, p) - k
        for r in tl.static_range(LEVELS):
            hits = row[:, None] + _level(columns, n, j, in_n, r)[None, :]
            best = tl.maximum(best, hits * (0.5 ** (p + r)))
    return best


@triton.jit
def judge(h, low, tail, bound, exponent, constants, MODE: tl.constexpr, PRECISION: tl.constexpr):
    """(value, hard, failed) of numbers (h + low + tail)·2^exponent, `bound` in units of h.

    value: rounded, where not hard: a shift of the exponent (to odd in 53 bits where float32 follows, so that it is
    reached by one rounding: Boldo and Melquiond 2008). hard: undecided ties, results outside the normal range; in
    MAGNITUDE and RAW those within the bound of its top too. failed: the test of MODE is undecided.
    """
    # Biased exponents, two binades below the top, where neither a rounding nor an end of its test overflows.
    TOP: tl.constexpr = 2044 if PRECISION == 53 else 1148
    moved = exponent_field(h) + exponent
    live = h != 0.0
    if PRECISION == 53:
        tie = (tail != 0.0) & (h + low * (1.0 + 8.881784197001252e-16) != h)  # 2^-50
        hard = live & ((moved < 1) | (moved > TOP) | tie)
        value = shifted(h, tl.where(hard, 0, exponent))
    else:
        hard = live & ((moved < 2) | (moved > TOP))
        rest = tl.where(low != 0.0, low, tail)
        step = tl.where((rest > 0.0) == (h > 0.0), 1, -1)
        step = tl.where((rest != 0.0) & ((bits_of(h) & 1) == 0), step, 0)
        value = shifted(tl.where(live, float_of(bits_of(h) + step), h), tl.where(hard, 0, exponent))
    if MODE == ROUNDING:
        err = spread(bound, low, tail)
        below = h + (low - err)
        above = h + (low + err)
        if PRECISION == 53:
            failed = (below != h) | (above != h)
        else:
            # Ends that are midpoints of float32 decide nothing; those far from h might leave the range of `shifted`.
            by = tl.where(hard, 0, exponent)
            first = shifted(below - tl.abs(below) * 4.440892098500626e-16, by).to(tl.float32)
            last = shifted(above + tl.abs(above) * 4.440892098500626e-16, by).to(tl.float32)
            failed = (first != last) | ~(4.0 * err < tl.abs(h))
        # What is exact needs no test; `round_expansion` rounds its ties.
        failed = (failed | hard) & (bound != 0.0)
    else:
        reach = tl.abs(h) + bound
        hard = hard | ((exponent_field(reach) + exponent > (TOP if MODE == MAGNITUDE else TOP - 3)) & (bound != 0.0))
        if MODE == MAGNITUDE:
            kappa = tl.load(constants)
            failed = (tl.abs(h) < bound * kappa) | ((bound * kappa != bound * kappa) & (bound != 0.0))
        else:
            failed = hard
    return value, hard, failed


@triton.jit
def rounded_with_care(h, low, tail, bound, exponent, failed, MODE: tl.constexpr, PRECISION: tl.constexpr):
    """(value, failed) of numbers that `judge` calls hard, for it failed to test their magnitude or not: rounded once in
    integers, where subnormal results, ties and overflow are as any other. failed: in ROUNDING, that numbers within the
    bound round elsewhere; in MAGNITUDE, that the test failed, or overflow is undecided; in RAW, the latter.
    """
    value = round_expansion(h, low, tail, exponent, PRECISION)
    err = spread(bound, low, tail)
    if MODE == ROUNDING:
        first, alike = rounded_alike(h, low, err, exponent, PRECISION)
        return tl.where(bound == 0.0, value, first), (bound != 0.0) & ~alike
    below_h, below_low = two_sum(h, low - err)
    above_h, above_low = two_sum(h, low + err)
    first = round_expansion(below_h, below_low, below_low * 0.0, exponent, PRECISION)
    last = round_expansion(above_h, above_low, above_low * 0.0, exponent, PRECISION)
    infinite = (tl.abs(first) == float("inf")) | (tl.abs(last) == float("inf"))
    overflow = (bound != 0.0) & infinite & (first != last)
    return value, ((failed & (MODE == MAGNITUDE)) | overflow)


@triton.jit
def spread(bound, low, tail):
    """How far a number within `bound` of h + low + tail may be from h + low."""
    err = bound * (1.0 + 2.842170943040401e-14) + tl.abs(tail) * 2.0 + tl.abs(low) * 8.881784197001252e-16
    return tl.where((bound == 0.0) & (tail == 0.0), 0.0, err)


@triton.jit
def digit_at(at, plane, t, reduction, mask, MODULI: tl.constexpr, PART: tl.constexpr):
    """The digit of modulus t: of a real product; of Re = D - E or Im = F - D - E, from the digits of D = Re·Re,
    E = Im·Im and F = (Re + Im)·(Re + Im).
    """
    first = at + wide(plane) * t
    digit = tl.load(first, mask=mask, other=0).to(tl.int32)
    if PART != REAL:
        p = tl.load(reduction + 3 * t)
        digit = tl.load(first + wide(plane) * MODULI, mask=mask, other=0).to(tl.int32) + (
            -digit if PART == REAL_PART else digit
        )
        if PART == REAL_PART:
            digit = -digit
        else:
            digit = tl.load(first + wide(plane) * (2 * MODULI), mask=mask, other=0).to(tl.int32) - digit
            digit += tl.where(digit < 0, p, 0)
        digit += tl.where(digit < 0, p, 0)
    return digit


@triton.jit
def _add_digit(
    s0, s1, s2, s3, s4, at, plane, t, reduction, constants, read, MODULI: tl.constexpr, LIMBS: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """The sums of five with what modulus t adds."""
    digit = digit_at(at, plane, t, reduction, read, MODULI, PART)
    # By its pattern: a digit is below 2^52, so the subtraction is exact.
    d = float_of(digit.to(tl.int64) | 0x4330000000000000) - TWO52
    w = constants + (9 + 5 * t)
    # A digit times a limb is below 2^48, and 22 of these below 2^53: no sum rounds.
    s0 = tl.fma(d, tl.load(w), s0)
    s1 = tl.fma(d, tl.load(w + 1), s1)
    if LIMBS >= 3:
        s2 = tl.fma(d, tl.load(w + 2), s2)
    if LIMBS >= 4:
        s3 = tl.fma(d, tl.load(w + 3), s3)
    if LIMBS >= 5:
        s4 = tl.fma(d, tl.load(w + 4), s4)
    return s0, s1, s2, s3, s4


@triton.jit
def expand_digits(
    at, plane, reduction, constants, read, MODULI: tl.constexpr, LIMBS: tl.constexpr, PART: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """C' of a tile's entries as h + m + t, exactly; constants: as for `join_tile`. SHORT: in few instructions, for rare
    tiles, whose time is that of the way of the instructions to the multiprocessor.
    """
    s0 = tl.zeros(at.shape, tl.float64)
    s1 = s0
    s2 = s0
    s3 = s0
    s4 = s0
    if SHORT:
        for t in tl.range(0, MODULI, loop_unroll_factor=4):
            s0, s1, s2, s3, s4 = _add_digit(
                s0, s1, s2, s3, s4, at, plane, t, reduction, constants, read, MODULI, LIMBS, PART
            )  # fmt: skip
    else:
        for t in tl.static_range(MODULI):
            s0, s1, s2, s3, s4 = _add_digit(
                s0, s1, s2, s3, s4, at, plane, t, reduction, constants, read, MODULI, LIMBS, PART
            )  # fmt: skip
    return expand(s0, s1, s2, s3, s4, constants + 4, constants + 2, LIMBS)


@triton.jit(noinline=True)
def join_tile(
    digits, out, row_stride, column_stride, entry_flags, uncertified_flags, rows, columns, constants, reduction, counts,
    m, n, i0, j0, k, q, row_pitch, plane, MODULI: tl.constexpr, LIMBS: tl.constexpr, MODE: tl.constexpr,
    PRECISION: tl.constexpr, PART: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """ROWS rows and BLOCK columns from (i0, j0) on: out, and flags (ROWS, BLOCK / 32). Returns whether there are any,
    and how many there are in uncertified_flags: APART, failed tests go there. counts[SPECIAL] grows by the entries that
    are NaN since their row or column holds one.

    constants (float64): kappa, magnitude kappa, the two of the quotient, P in five limbs, then the weights of every
    modulus in five limbs. k: terms, twice as many for complex numbers.
    """
    A_PRIORI: tl.constexpr = MODE != ROUNDING
    UNIT: tl.constexpr = 40 * (LIMBS - 3)
    j = j0 + tl.arange(0, BLOCK)
    in_n = j < n
    column_e, column_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, in_n, q, A_PRIORI)
    i = i0 + tl.arange(0, ROWS)
    in_m = i < m
    inside = in_m[:, None] & in_n[None, :]
    read = in_m[:, None] & (j < row_pitch)[None, :]
    at = digits + i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    h, low, tail = expand_digits(at, plane, reduction, constants, read, MODULI, LIMBS, PART, True)
    row_e, row_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, in_m, q, A_PRIORI)
    bound = bound_of(
        n1a[:, None], da[:, None], n2a[:, None], fa[:, None], n1b[None, :], db[None, :], n2b[None, :], fb[None, :],
        0.25 * k, A_PRIORI,
    )  # fmt: skip
    bound = bound * (2.0**-UNIT)
    special = (row_e >= NONFINITE)[:, None] | (column_e >= NONFINITE)[None, :]
    nan = (row_e > NONFINITE)[:, None] | (column_e > NONFINITE)[None, :]
    # Repair sets those that may be infinite; 0 keeps `shifted` in its range meanwhile.
    exponent = tl.where(special, 0, UNIT - (row_shift[:, None] + column_shift[None, :]))
    value, hard, failed = judge(h, low, tail, bound, exponent, constants, MODE, PRECISION)
    hard = hard & ~special & inside
    # Rounding in integers takes registers and time: most tiles have no such entry.
    if tl.max(tl.max(hard.to(tl.int32), 1), 0) > 0:
        careful, undecided = rounded_with_care(h, low, tail, bound, exponent, failed, MODE, PRECISION)
        value = tl.where(hard, careful, value)
        failed = tl.where(hard, undecided, failed)
    if MODE == MAGNITUDE:
        # A tile whose entries' own sizes certify them skips LEVELS² comparisons an entry.
        if tl.max(tl.max((failed & ~hard).to(tl.int32), 1), 0) > 0:
            power = row_e[:, None] + row_shift[:, None] + column_e[None, :] + column_shift[None, :]
            least = bound * tl.load(constants + 1) * power_of_two(UNIT + 2 - tl.where(special, 0, power))
            covered = large_products(rows, columns, m, n, i, j, in_m, in_n, k, LEVELS)
            # Magnitudes say nothing of overflow.
            failed = failed & (hard | ~((covered > 0.0) & (covered.to(tl.float64) >= least)))
    value = tl.where(nan, float("nan"), value)
    nans = tl.sum(tl.sum((nan & inside).to(tl.int32), 1), 0)
    if nans > 0:
        tl.atomic_add(counts + SPECIAL, nans.to(tl.int64), sem="relaxed")
    target = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    if PRECISION == 53:
        tl.store(target, value, mask=inside)
    else:
        tl.store(target, value.to(tl.float32), mask=inside)
    others = tl.full([], 0, tl.int32)
    if APART:
        apart = failed & ~special & inside
        store_flags(apart, uncertified_flags, ROWS, BLOCK)
        others = tl.sum(tl.sum(apart.to(tl.int32), 1), 0)
        failed = special
    return store_flags((failed | special) & ~nan & inside, entry_flags, ROWS, BLOCK), others


@triton.jit
def store_flags(flagged, entry_flags, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A bit an entry of a tile, 32 columns a word; returns whether there are any."""
    bits = tl.reshape(flagged.to(tl.int32), [ROWS, BLOCK // 32, 32])
    word = tl.sum(bits << tl.arange(0, 32)[None, None, :], 2)
    words = tl.arange(0, BLOCK // 32)
    tl.store(entry_flags + tl.arange(0, ROWS)[:, None] * (BLOCK // 32) + words[None, :], word)
    return tl.max(tl.max((word != 0).to(tl.int32), 1), 0)
