"""Join residues of up to 49 moduli (`core.many_moduli`): the exact integer C' in up to nine limbs, one rounding, and
the rounding test.

As `join` does: S = Σ y_l·(P/q_l) in limbs of 40 bits, each below 2^53 in magnitude; C' = S - P·rint(S/P), unambiguous
as the quotient is never near a half; carries that leave limbs of at most 2^39. Leading limbs that are zero are shifted
out until five are left, those that `expand` takes. Of these the first is not zero, or |C'| < 2^200 and all limbs fit. A
first limb of ±1 may be followed by one of the other sign, so five limbs hold at least 159 bits of C': what is below
them breaks ties and decides a sign, no more. A quarter of the fifth limb's unit stands for it, with the sign of its
first limb that is not zero, which is that of the whole rest; where C' has a bound, that grows by one such unit.

Per entry and modulus four bytes and 2 + limbs operations; per entry 150 with nine limbs.
"""

import math

import numpy as np

from prismm.core.jit import contiguous_row, device, fma, kernel, power_of_two
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
from prismm.cpu.kernels.residuals import UNIT
from prismm.cpu.kernels.strip import limb_sums
from prismm.cpu.kernels.vnni import TILE_COLUMNS, TILE_ROWS, tile_products

LIMBS = 9
_WINDOW = 5
_UP, _DOWN = 2.0**RADIX, 2.0**-RADIX
_sums2, _sums3, _sums4, _sums5, _sums6, _sums7, _sums8, _sums9 = (limb_sums(0, limbs) for limbs in range(2, LIMBS + 1))


@device
def _limb_sums(c, i, w, modulus, reciprocal, weights, sums):
    """The limbs of S of row i of c (rows, moduli, columns), the top one first; whole sixteens are read and written."""
    limbs = weights.shape[1]
    row = c.ctypes.data + i * c.strides[0]
    pitch, none, moduli = c.strides[1], np.int64(0), c.shape[1]
    tables = modulus.ctypes.data, reciprocal.ctypes.data, weights.ctypes.data, weights.strides[0]
    given = (row, row, row, pitch, none, moduli, *tables, sums.ctypes.data, sums.strides[0], (w + 15) // 16)
    if limbs == 2:
        _sums2(*given)
    elif limbs == 3:
        _sums3(*given)
    elif limbs == 4:
        _sums4(*given)
    elif limbs == 5:
        _sums5(*given)
    elif limbs == 6:
        _sums6(*given)
    elif limbs == 7:
        _sums7(*given)
    elif limbs == 8:
        _sums8(*given)
    else:
        _sums9(*given)


@device
def _take_off(sums, limbs, product, quotient, w, work):
    """S - P·rint(S/P) in limbs of at most 2^39 in magnitude, but for the first."""
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
    """Shift leading zero limbs out, until five are left; lead: how many of each entry. The fifth one gets a quarter of
    its unit for the rest; missing: a bound of how wrong that is, in units of the third limb.
    """
    for j in range(w):
        lead[j] = 0
        missing[j] = 0.0
    zero = contiguous_row(work, 0, 0, w)
    for x in range(limbs, _WINDOW):
        row = contiguous_row(sums, x, 0, w)
        for j in range(w):
            row[j] = 0.0
    for _ in range(limbs - _WINDOW):
        first = contiguous_row(sums, 0, 0, w)
        for j in range(w):
            # A copy, since the shift that it decides on overwrites the first limb.
            zero[j] = first[j]
            # Each step at most one limb: entries of a strip cancel differently, and lanes take the same steps.
            lead[j] += np.int64(first[j] == 0.0)
        for x in range(limbs):
            here = contiguous_row(sums, x, 0, w)
            if x + 1 < limbs:
                following = contiguous_row(sums, x + 1, 0, w)
                for j in range(w):
                    here[j] = following[j] if zero[j] == 0.0 else here[j]
            else:
                for j in range(w):
                    here[j] = 0.0 if zero[j] == 0.0 else here[j]
    if limbs > _WINDOW:
        for j in range(w):
            zero[j] = 0.0
        for x in range(limbs - 1, _WINDOW - 1, -1):
            row = contiguous_row(sums, x, 0, w)
            for j in range(w):
                zero[j] = row[j] if row[j] != 0.0 else zero[j]
        last = contiguous_row(sums, _WINDOW - 1, 0, w)
        for j in range(w):
            last[j] += 0.25 if zero[j] > 0.0 else (-0.25 if zero[j] < 0.0 else 0.0)
            missing[j] = _DOWN * _DOWN if zero[j] != 0.0 else 0.0


@device
def round_strip(h, m, t, unit, bound, shift, i, j0, precision, out, out32, failed, count, value, flags):
    """out[i, j0 …] = RN((h + m + t)·2^(unit - shift)); entries are listed where a number within the bound of h + m + t
    may round to another. Returns the new count of these; value and flags (2, ·) are scratch.
    """
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
    trouble = np.uint8(0)
    for j in range(w):
        trouble |= hard[j]
    # Where one result is below the normal numbers most are: in vectors first, single entries for the rest.
    if trouble and precision == 53:
        store_subnormal(h, m, t, unit, shift, 1.0, bound, 1, value, hard, fail)
    for j in range(w):
        if hard[j] or fail[j]:
            e = unit - shift[j]
            if hard[j]:
                value[j] = round_expansion(h[j], m[j], t[j], e, precision, lowest)
            # All within a bound below t are h + m and something of t's sign.
            if t[j] != 0.0 and bound[j] < 0.5 * abs(t[j]):
                value[j] = round_expansion(h[j], m[j], t[j], e, precision, lowest)
                continue
            apart = not hard[j] and far_apart(h[j], bound[j], precision)
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
    error leaves the sign.
    """
    for j in range(h.size):
        if correction[j] == 0.0 and error[j] == 0.0:
            bound[j] = 0.0
            continue
        power = RADIX * lead[j] - unit - UNIT
        e, b = np.ldexp(correction[j], power), np.ldexp(error[j], power)
        if correction[j] != 0.0 and abs(e) < 2.0**-900:
            sure = error[j] < 0.5 * abs(correction[j])
            e = math.copysign(2.0**-900, correction[j]) if sure else 0.0
            b = 2.0**-902 if sure else b * (1.0 + 2.0**-50) + 2.0**-899
        elif error[j] > 0.0:
            # ldexp rounds where the error is that small.
            b = b * (1.0 + 2.0**-50) + 2.0**-1000
        # Without t three numbers hold all there is, as two-sums lose nothing; otherwise t + e is rounded.
        exact = missing[j] == 0.0 and t[j] == 0.0
        low = t[j] + e
        if not exact:
            b += missing[j] + (abs(t[j]) + abs(e)) * 2.0**-50
        middle, low = two_sum(m[j], low)
        high, middle = two_sum(h[j], middle)
        # What cancels leaves the rest to move up.
        middle, low = two_sum(middle, low)
        high, middle = two_sum(high, middle)
        middle, low = two_sum(middle, low)
        high, middle = two_sum(high, middle)
        h[j] = high
        m[j] = middle
        t[j] = low
        bound[j] = b


@device
def _join_strip(
    c, i, row, j0, w, modulus, reciprocal, weights, product, quotient, row_shift, column_shift, row_terms,
    column_terms, terms, correction, error, precision, out, out32, failed, count, sums, work, shifts, flags, nothing,
):  # fmt: skip
    """Join row i of c, row `row` of the result from column j0 on; returns the new count of listed entries."""
    limbs = weights.shape[1]
    h, m, t = contiguous_row(work, 0, 0, w), contiguous_row(work, 1, 0, w), contiguous_row(work, 2, 0, w)
    bound, value = contiguous_row(work, 3, 0, w), contiguous_row(work, 4, 0, w)
    shift, lead = contiguous_row(shifts, 0, 0, w), contiguous_row(shifts, 1, 0, w)
    _limb_sums(c, i, w, modulus, reciprocal, weights, sums)
    _take_off(sums, limbs, product, quotient, w, work)
    _sink(sums, limbs, w, work, lead, value)
    expand(
        contiguous_row(sums, 0, 0, w), contiguous_row(sums, 1, 0, w), contiguous_row(sums, 2, 0, w),
        contiguous_row(sums, 3, 0, w), contiguous_row(sums, 4, 0, w), RADIX, nothing, nothing, h, m, t,
    )  # fmt: skip
    unit = RADIX * (limbs - 3)
    for j in range(w):
        shift[j] = row_shift[row] + column_shift[j0 + j] + RADIX * lead[j]
    if correction.size > 0:
        # `value` is needed no more once it is read.
        _correct(
            h, m, t, lead, unit, contiguous_row(correction, row, j0, w), contiguous_row(error, row, j0, w), bound, value
        )
        return round_strip(h, m, t, unit, bound, shift, row, j0, precision, out, out32, failed, count, value, flags)
    bounds(
        row_terms[0, row], row_terms[1, row], row_terms[2, row], row_terms[3, row],
        contiguous_row(column_terms, 0, j0, w), contiguous_row(column_terms, 1, j0, w),
        contiguous_row(column_terms, 2, j0, w), contiguous_row(column_terms, 3, j0, w), terms, bound,
    )  # fmt: skip
    for j in range(w):
        # Exact numbers need no more of the rest than its sign.
        bound[j] = bound[j] * power_of_two(RADIX * lead[j] - unit) + value[j] if bound[j] > 0.0 else 0.0
    return round_strip(h, m, t, unit, bound, shift, row, j0, precision, out, out32, failed, count, value, flags)


@device
def _scratch():
    return (
        np.zeros((LIMBS, STRIP)),
        np.empty((5, STRIP)),
        np.empty((2, STRIP), np.int64),
        np.zeros((2, STRIP), np.uint8),
    )


_TABLES = "float64[::1], float64[::1], float64[:,::1], float64[::1], float64[::1], "
_REST = (
    "int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, float64[:,::1], float64[:,::1], int64, "
    "float64[:,:], float32[:,:], int32[::1])"
)


@kernel("int64(int32[:,:,:], " + _TABLES + _REST)
def join_many(
    c, modulus, reciprocal, weights, product, quotient, row_shift, column_shift, row_terms, column_terms, terms,
    correction, error, precision, out, out32, failed,
):  # fmt: skip
    """Join integer products c (rows, moduli, columns), a multiple of 16 of these; the rest, and the count that is
    returned, as in `join.join_fused` with mode ROUNDING.

    correction, error: what `residuals.residual_product` found of what A' and B' leave out, instead of the bound from
    row_terms and column_terms; empty without.
    """
    n = column_shift.size
    sums, work, shifts, flags = _scratch()
    nothing = np.zeros(_WINDOW)
    count = np.int64(0)
    for i in range(row_shift.size):
        for j0 in range(0, n, STRIP):
            w = min(n, j0 + STRIP) - j0
            count = _join_strip(
                c[:, :, j0:], i, i, j0, w, modulus, reciprocal, weights, product, quotient, row_shift, column_shift,
                row_terms, column_terms, terms, correction, error, precision, out, out32, failed, count, sums, work,
                shifts, flags, nothing,
            )  # fmt: skip
    return count


@kernel("int64(int8[:,:,::1], uint32[:,:,:,::1], int64, int32[:,:,::1], " + _TABLES + _REST)
def many_product(
    left, right, depth, tiles, modulus, reciprocal, weights, product, quotient, row_shift, column_shift, row_terms,
    column_terms, terms, correction, error, precision, out, out32, failed,
):  # fmt: skip
    """Multiply packed residues left (moduli, m, pitch) and right (moduli, panels, depth/4, 32) and join them, tile by
    tile as in `fused.fused_product`; tiles (rows, moduli, columns of a tile) is scratch.
    """
    m, n = row_shift.size, column_shift.size
    sums, work, shifts, flags = _scratch()
    nothing = np.zeros(_WINDOW)
    count = np.int64(0)
    for j0 in range(0, n, TILE_COLUMNS):
        w = min(n, j0 + TILE_COLUMNS) - j0
        for i0 in range(0, m, TILE_ROWS):
            rows = min(m, i0 + TILE_ROWS) - i0
            # The last tile of a block fetches the first rows, with which the next block begins.
            following = i0 + rows if i0 + rows < m else 0
            tile_products(left, right, i0, rows, following, j0, w, depth, modulus, tiles)
            for i in range(rows):
                count = _join_strip(
                    tiles, i, i0 + i, j0, w, modulus, reciprocal, weights, product, quotient, row_shift, column_shift,
                    row_terms, column_terms, terms, correction, error, precision, out, out32, failed, count, sums,
                    work, shifts, flags, nothing,
                )  # fmt: skip
    return count
