"""Join residues of up to 49 moduli (`core.many_moduli`): the exact integer C' in up to nine limbs, one rounding, and
the rounding test.

As `join` does: S = Σ y_l·(P/q_l) in limbs of 40 bits, each below 2^53 in magnitude; C' = S - P·rint(S/P), unambiguous
as the quotient is never near a half; carries that leave limbs of at most 2^39. Leading limbs that are zero are shifted
out until five are left, those that `expand` takes. Of these the first is not zero, or |C'| < 2^200 and all limbs fit. A
first limb of ±1 may be followed by one of the other sign, so five limbs hold at least 159 bits of C': what is below
them breaks ties and decides a sign, no more. A quarter of the fifth limb's unit stands for it, with the sign of its
first limb that is not zero, which is that of the whole rest; where C' has a bound, that grows by one such unit.

Per entry and modulus four bytes, or one of digits, and 2 + limbs operations; per entry 150 with nine limbs.
"""

import numpy as np

from prismm.core.jit import contiguous_row, counting, device, fma, kernel, power_of_two, wide_vectors
from prismm.cpu.kernels.expansion import expand, round_expansion, two_sum
from prismm.cpu.kernels.finish import (
    bounds,
    far_apart,
    store_odd,
    store_plain,
    store_subnormal,
    test_rounding,
    test_rounding32,
    undecided,
)
from prismm.cpu.kernels.join import RADIX, STRIP
from prismm.cpu.kernels.many_sum import add_addends
from prismm.cpu.kernels.residuals import UNIT
from prismm.cpu.kernels.scale import two_factors
from prismm.cpu.kernels.strip import by_limbs

LIMBS = 9
_WINDOW = 5
_UP, _DOWN = 2.0**RADIX, 2.0**-RADIX


_sums_of_products, _sums_of_digits = by_limbs(0, False, LIMBS), by_limbs(0, True, LIMBS)


@device
def product_sums(c, i, j, w, modulus, reciprocal, weights, sums):
    """The limbs of S of row i of int32 products c (rows, moduli, columns) from column j on, the top one first.

    Whole sixteens are read and written.
    """
    address = c.ctypes.data + i * c.strides[0] + j * c.strides[2]
    _sums_of_products(
        address, address, address, c.strides[1], np.int64(0), c.shape[1], w, weights.shape[1], modulus, reciprocal,
        weights, sums,
    )  # fmt: skip


@device
def digit_sums(d, i, panel, w, modulus, reciprocal, weights, sums):
    """The same of digits d (strips, panels, moduli, rows of a strip, 32), from the first column of `panel` on."""
    height = d.shape[3]
    address = d.ctypes.data + i // height * d.strides[0] + panel * d.strides[1] + i % height * d.strides[3]
    _sums_of_digits(
        address, address, address, d.strides[2], d.strides[1], d.shape[2], w, weights.shape[1], modulus, reciprocal,
        weights, sums,
    )  # fmt: skip


@device
def _take_off(sums, limbs, product, quotient, w, work):
    """S - P·rint(S/P) in limbs of at most 2^39 in magnitude, but for the first."""
    wide_vectors()
    times = contiguous_row(work, 0, 0, w)
    first, second = contiguous_row(sums, 0, 0, w), contiguous_row(sums, 1, 0, w)
    i0, i1 = quotient[0], quotient[1]
    for j in range(w):
        # The top two limbs are enough: the quotient is never closer to a half than 2^-18 (`many_moduli`).
        times[j] = -np.rint(fma(first[j], i0, second[j] * i1))
    upper = contiguous_row(sums, limbs - 1, 0, w)
    part = product[limbs - 1]
    for j in range(w):
        upper[j] = fma(times[j], part, upper[j])
    for x in range(limbs - 2, -1, -1):
        lower = contiguous_row(sums, x + 1, 0, w)
        upper = contiguous_row(sums, x, 0, w)
        part = product[x]
        for j in range(w):
            carry = np.rint(lower[j] * _DOWN)
            lower[j] = fma(-carry, _UP, lower[j])
            upper[j] = fma(times[j], part, upper[j]) + carry


@device
def _sink(sums, limbs, w, work, lead, missing):
    """Shift leading zero limbs out, until five are left; lead: how many of each entry. Returns where the five begin.

    The fifth one gets a quarter of its unit for the rest; missing: a bound of how wrong that is, in units of the third
    limb.
    """
    wide_vectors()
    for j in range(w):
        lead[j] = 0
        missing[j] = 0.0
    zero = contiguous_row(work, 0, 0, w)
    for x in range(limbs, _WINDOW):
        row = contiguous_row(sums, x, 0, w)
        for j in range(w):
            row[j] = 0.0
    top = np.int64(0)
    for _ in range(limbs - _WINDOW):
        first = contiguous_row(sums, top, 0, w)
        count = np.int64(0)
        for j in range(w):
            # A copy, since the shift that it decides on overwrites the first limb.
            zero[j] = first[j]
            count += np.int64(first[j] == 0.0)
        if count == 0:
            break
        for j in range(w):
            # Each step at most one limb: entries of a strip cancel differently, and lanes take the same steps.
            lead[j] += np.int64(zero[j] == 0.0)
        # If all first limbs are zero, the next row is the first one. No number has to move.
        if count == w:
            top += 1
            continue
        for x in range(top, limbs):
            here = contiguous_row(sums, x, 0, w)
            if x + 1 < limbs:
                following = contiguous_row(sums, x + 1, 0, w)
                for j in range(w):
                    here[j] = following[j] if zero[j] == 0.0 else here[j]
            else:
                for j in range(w):
                    here[j] = 0.0 if zero[j] == 0.0 else here[j]
    if limbs > top + _WINDOW:
        for j in range(w):
            zero[j] = 0.0
        for x in range(limbs - 1, top + _WINDOW - 1, -1):
            row = contiguous_row(sums, x, 0, w)
            for j in range(w):
                zero[j] = row[j] if row[j] != 0.0 else zero[j]
        last = contiguous_row(sums, top + _WINDOW - 1, 0, w)
        for j in range(w):
            last[j] += 0.25 if zero[j] > 0.0 else (-0.25 if zero[j] < 0.0 else 0.0)
            missing[j] = _DOWN * _DOWN if zero[j] != 0.0 else 0.0
    return top


@device
def _store_large(h, unit, shift, bound, out, hard, fail):
    """What `store_plain` flagged as in the top two binades or beyond: h, or infinity; `hard` no longer flags it, nor
    `fail` what overflows all within its bound. Open ties fail the test of rounding.
    """
    wide_vectors()
    bits, target = h.view(np.int64), out.view(np.int64)
    sign, infinity = np.int64(-1) << 63, np.int64(0x7FF) << 52
    for j in range(h.size):
        moved = ((bits[j] >> 52) & 0x7FF) + unit - shift[j]
        large = (hard[j] != 0) & (moved > 2044)
        target[j] = ((bits[j] & sign) | infinity) if large & (moved > 2046) else target[j]
        hard[j] = np.uint8(0) if large else hard[j]
        # All are beyond |h|/2, and so beyond the largest number.
        fail[j] = np.uint8(0) if large & (moved > 2047) & (bound[j] < 0.25 * abs(h[j])) else fail[j]


@device
def _keep_large(h, unit, shift, hard):
    """`hard` no longer flags what `store_odd` flagged as beyond 2^126, where that is a float64: a conversion to float32
    rounds it once, to infinity as well.
    """
    wide_vectors()
    bits = h.view(np.int64)
    for j in range(h.size):
        moved = ((bits[j] >> 52) & 0x7FF) + unit - shift[j]
        hard[j] = np.uint8(0) if (moved > 1148) & (moved < 2046) else hard[j]


@device
def _keep_sided(m, t, bound, fail):
    """`fail` no longer flags entries where all numbers within the bound lie on one side of h, less than 2|m| from it:
    between h and its neighbour all round to the same odd number.
    """
    wide_vectors()
    for j in range(m.size):
        err = fma(bound[j], 1.0 + 2.0**-45, 2.0 * abs(t[j]))
        fail[j] = np.uint8(0) if err < abs(m[j]) else fail[j]


@device
def round_strip(h, m, t, unit, bound, shift, i, j0, precision, out, out32, failed, count, value, flags):
    """out[i, j0 …] = RN((h + m + t)·2^(unit - shift)), with h = RN(h + m) and m = RN(m + t); entries are listed where a
    number within the bound of h + m + t may round to another. Returns the new count of these; value and flags (2, ·)
    are scratch.
    """
    wide_vectors()
    w = h.size
    hard, fail = contiguous_row(flags, 0, 0, w), contiguous_row(flags, 1, 0, w)
    if precision == 53:
        store_plain(h, m, t, unit, shift, value, hard)
        test_rounding(h, m, t, 1.0, bound, fail)
    else:
        store_odd(h, m, t, unit, shift, value, hard)
        test_rounding32(h, m, t, 1.0, bound, value, fail)
    lowest = -1074 if precision == 53 else -149
    # One of the two is empty.
    n = max(out.shape[1], out32.shape[1])
    is_hard, fails = np.uint8(0), np.uint8(0)
    for j in range(w):
        is_hard |= hard[j]
        fails |= fail[j]
    # Where one result is too large or too small most are: in vectors first, single entries for the rest.
    if precision == 53 and is_hard:
        _store_large(h, unit, shift, bound, value, hard, fail)
        store_subnormal(h, m, t, unit, shift, 1.0, bound, 1, value, hard, fail)
    if precision != 53 and is_hard:
        _keep_large(h, unit, shift, hard)
    if precision != 53 and fails:
        _keep_sided(m, t, bound, fail)
    for j in range(w):
        if hard[j] or fail[j]:
            e = unit - shift[j]
            if hard[j]:
                value[j] = round_expansion(h[j], m[j], t[j], e, precision, lowest)
            # All within a bound below t are h + m and something of t's sign.
            if t[j] != 0.0 and bound[j] < 0.5 * abs(t[j]):
                value[j] = round_expansion(h[j], m[j], t[j], e, precision, lowest)
                continue
            # All numbers beyond the threshold of overflow round alike, however far apart they are.
            apart = not hard[j] and abs(value[j]) < np.inf and far_apart(h[j], bound[j], precision)
            if apart or undecided(h[j], m[j], t[j], bound[j], e, precision, lowest):
                failed[count] = i * n + j0 + j
                count += 1
    if precision == 53:
        for j in range(w):
            out[i, j0 + j] = value[j]
    else:
        for j in range(w):
            out32[i, j0 + j] = np.float32(value[j])
    return count


@device
def _correct(h, m, t, lead, unit, correction, error, bound, missing):
    """Add correction ± error, in units of 2^-`UNIT` of C', to h + m + t ± missing; the bound of what comes out.

    Far below h + m, which end above 2^-240, nothing but the correction's sign counts: 2^-900 stands for it, where its
    error leaves the sign. Where h + m + t is 0 and the correction is so small, nothing is decided.
    """
    wide_vectors()
    for j in range(h.size):
        given, off = correction[j], error[j]
        # The products are exact unless they are below 2^-900, where their size is not used.
        f1, f2 = two_factors(RADIX * lead[j] - unit - UNIT)
        e, b = given * f1 * f2, off * f1 * f2
        far, sure = (given != 0.0) & (abs(e) < 2.0**-900), off < 0.5 * abs(given)
        # A product that is so small may be rounded.
        b = b * (1.0 + 2.0**-50) + (2.0**-899 if far else 2.0**-1000) if far | (off > 0.0) else b
        b = 2.0**-902 if far & sure else b
        e = ((2.0**-900 if given > 0.0 else -(2.0**-900)) if sure else 0.0) if far else e
        # Where nothing is there that it is far below, tests would divide by the sum.
        alone = (h[j] == 0.0) & (abs(e) < 2.0**-600)
        e, b = 0.0 if alone else e, np.inf if alone else b
        # Without t three numbers hold all there is, as two-sums lose nothing; otherwise t + e is rounded.
        exact = (missing[j] == 0.0) & (t[j] == 0.0)
        low = t[j] + e
        b += 0.0 if exact else missing[j] + (abs(t[j]) + abs(e)) * 2.0**-50
        middle, low = two_sum(m[j], low)
        high, middle = two_sum(h[j], middle)
        # What cancels leaves the rest to move up.
        middle, low = two_sum(middle, low)
        high, middle = two_sum(high, middle)
        middle, low = two_sum(middle, low)
        high, middle = two_sum(high, middle)
        nothing = (given == 0.0) & (off == 0.0)
        h[j] = h[j] if nothing else high
        m[j] = m[j] if nothing else middle
        t[j] = t[j] if nothing else low
        bound[j] = 0.0 if nothing else b


@device
def join_strip(
    row, j0, w, limbs, product, quotient, row_shift, column_shift, row_terms, column_terms, terms, correction, error,
    factors, addends, precision, out, out32, failed, count, sums, work, shifts, flags, nothing,
):  # fmt: skip
    """Row `row` of the result from column j0 on, of which `sums` holds S; returns the new count of listed entries."""
    wide_vectors()
    h, m, t = contiguous_row(work, 0, 0, w), contiguous_row(work, 1, 0, w), contiguous_row(work, 2, 0, w)
    bound, value = contiguous_row(work, 3, 0, w), contiguous_row(work, 4, 0, w)
    shift, lead = contiguous_row(shifts, 0, 0, w), contiguous_row(shifts, 1, 0, w)
    _take_off(sums, limbs, product, quotient, w, work)
    top = _sink(sums, limbs, w, work, lead, value)
    expand(
        contiguous_row(sums, top, 0, w), contiguous_row(sums, top + 1, 0, w), contiguous_row(sums, top + 2, 0, w),
        contiguous_row(sums, top + 3, 0, w), contiguous_row(sums, top + 4, 0, w), RADIX, nothing, nothing, h, m, t,
    )  # fmt: skip
    unit = RADIX * (limbs - 3)
    for j in range(w):
        shift[j] = row_shift[row] + column_shift[j0 + j] + RADIX * lead[j]
    # `value` is needed no more once it is read.
    if correction.size > 0:
        _correct(
            h, m, t, lead, unit, contiguous_row(correction, row, j0, w), contiguous_row(error, row, j0, w), bound, value
        )
    else:
        bounds(
            row_terms[0, row], row_terms[1, row], row_terms[2, row], row_terms[3, row],
            contiguous_row(column_terms, 0, j0, w), contiguous_row(column_terms, 1, j0, w),
            contiguous_row(column_terms, 2, j0, w), contiguous_row(column_terms, 3, j0, w), terms, bound,
        )  # fmt: skip
        for j in range(w):
            # Exact numbers need no more of the rest than its sign.
            bound[j] = bound[j] * power_of_two(RADIX * lead[j] - unit) + value[j] if bound[j] > 0.0 else 0.0
    if factors.size > 0:
        add_addends(h, m, t, bound, value, unit, shift, factors, addends, row, j0)
    return round_strip(h, m, t, unit, bound, shift, row, j0, precision, out, out32, failed, count, value, flags)


@counting
def scratch():
    """What `join_strip` works in: sums, work, shifts, flags, and zeros."""
    return (
        np.zeros((LIMBS, STRIP)),
        np.empty((5, STRIP)),
        np.empty((2, STRIP), np.int64),
        np.zeros((2, STRIP), np.uint8),
        np.zeros(_WINDOW),
    )


REST = (
    "float64[::1], float64[::1], float64[:,::1], float64[::1], float64[::1], "
    "int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, float64[:,::1], float64[:,::1], "
    "float64[::1], float64[:,::1], int64, float64[:,:], float32[:,:], int32[::1])"
)


@kernel("int64(int32[:,:,:], " + REST)
def join_many(
    c, modulus, reciprocal, weights, product, quotient, row_shift, column_shift, row_terms, column_terms, terms,
    correction, error, factors, addends, precision, out, out32, failed,
):  # fmt: skip
    """Join integer products c (rows, moduli, columns), a multiple of 16 of these; the rest, and the count that is
    returned, as in `join.join_fused` with mode ROUNDING.

    correction, error: what `residuals.residual_product` found of what A' and B' leave out, instead of the bound from
    row_terms and column_terms; empty without.
    factors, addends: as of `many_sum.add_addends`; empty without.
    """
    wide_vectors()
    n = column_shift.size
    limbs = weights.shape[1]
    sums, work, shifts, flags, nothing = scratch()
    count = np.int64(0)
    for i in range(row_shift.size):
        for j0 in range(0, n, STRIP):
            w = min(n, j0 + STRIP) - j0
            product_sums(c, i, j0, w, modulus, reciprocal, weights, sums)
            count = join_strip(
                i, j0, w, limbs, product, quotient, row_shift, column_shift, row_terms, column_terms, terms,
                correction, error, factors, addends, precision, out, out32, failed, count, sums, work, shifts, flags,
                nothing,
            )  # fmt: skip
    return count
