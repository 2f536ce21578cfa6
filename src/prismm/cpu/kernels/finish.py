"""Finish a block of entries: from the limbs of C' to rounded, certified, stored ones, and a list of the uncertified.

`mode` (`prismm.core.accuracy`) says what is tested. RAW: nothing; ROUNDING: that no number within the bound rounds
elsewhere; MAGNITUDE: that the bound is small beside |a||b|; PAIR: nothing, the unscaled pair h, m + t is stored.
"""

import numpy as np

from prismm.core.jit import (
    bits_of,
    contiguous_row,
    counting,
    device,
    float_of,
    fma,
    power_of_two,
    trailing_zeros,
    wide_vectors,
    words,
)
from prismm.cpu.kernels.expansion import round_expansion, two_sum
from prismm.cpu.kernels.finish_lanes import expand_strip, test_block


@device
def _bound(n1a, da, n2a, fa, n1b, db, n2b, fb, terms):
    """|C' - 2^(s+t)·exact| <= the smaller of the two bounds of `accuracy.residual_bound`, rounding included."""
    e1 = fma(fa, n1b, fb * n1a) + fa * fb * terms
    e2 = fma(da, n2b, (n2a + da) * db)
    return min(e1, e2 * (1.0 + 2.0**-40))


@device
def bounds(n1a, da, n2a, fa, n1b, db, n2b, fb, terms, bound):
    """`_bound` of a row's entries."""
    wide_vectors()
    for j in range(bound.size):
        bound[j] = _bound(n1a, da, n2a, fa, n1b[j], db[j], n2b[j], fb[j], terms)


@device
def store_plain(h, m, t, unit, shift, out, hard):
    """out = h·2^(unit - shift) where that is normal, below the top two binades, and no tie is open; `hard` flags the
    rest.
    """
    wide_vectors()
    bits = h.view(np.int64)
    target = out.view(np.int64)
    for j in range(h.size):
        field = (bits[j] >> 52) & 0x7FF
        moved = field + unit - shift[j]
        # Where m is half the last place of h, t decides which neighbour is the nearest.
        undecided_tie = (t[j] != 0.0) & (h[j] + m[j] * (1.0 + 2.0**-50) != h[j])
        hard[j] = np.uint8(((moved < 1) | (moved > 2044) | undecided_tie) & (h[j] != 0.0))
        # Scaling adds to the exponent field, which is exact while the result is normal; zero has no such field.
        target[j] = bits[j] + ((unit - shift[j]) << 52) if h[j] != 0.0 else 0


@device
def store_odd(h, m, t, unit, shift, out, hard):
    """The same rounded to odd in 53 bits, so that a conversion to float32 rounds once (Boldo and Melquiond 2008).

    `hard` flags values outside float64's normal range and those of float32's top two binades (2^126) or beyond.
    """
    wide_vectors()
    bits = h.view(np.int64)
    target = out.view(np.int64)
    for j in range(h.size):
        field = (bits[j] >> 52) & 0x7FF
        moved = field + unit - shift[j]
        rest = m[j] if m[j] != 0.0 else t[j]
        step = 1 if (rest > 0.0) == (h[j] > 0.0) else -1
        step = step if (rest != 0.0) & ((bits[j] & 1) == 0) else 0
        hard[j] = np.uint8(((moved < 2) | (moved > 1148)) & (h[j] != 0.0))
        target[j] = bits[j] + step + ((unit - shift[j]) << 52) if h[j] != 0.0 else 0


@device
def store_subnormal(h, m, t, unit, shift, unit_bound, bound, mode, out, hard, fail):
    """What `store_plain` marked as below the normal numbers, where its rounding is clear, with one addition: `hard` no
    longer flags it, and `fail` (where mode is ROUNDING) says that the bound leaves no doubt.

    With G = 2^-1074 in units of h, |h| < 2^52·G, so 2^53·G - |h| is rounded to a multiple of G: their bit patterns, as
    integers, differ by n = RN(|h|/G). Where ±(h + m + t) - n·G, and all within the bound of it, is below G/2 in
    magnitude, and the sign is sure, n is right, and is the bit pattern of the result but for its sign. A G beyond
    2^900 is taken for that: it leaves n = 0.
    """
    wide_vectors()
    bits = h.view(np.int64)
    target = out.view(np.int64)
    sign = np.int64(-1) << 63
    for j in range(h.size):
        below = ((bits[j] >> 52) & 0x7FF) + unit - shift[j] < 1
        wanted = shift[j] - unit - 1074
        e = min(max(wanted, -960), 900)
        g = float_of((e + 1023) << 52)
        top = g * 2.0**53
        size = abs(h[j])
        left = top - size
        n = bits_of(top) - bits_of(left)
        rest = (size - (top - left)) + (m[j] if h[j] > 0.0 else -m[j])
        err = fma(
            bound[j] * unit_bound if mode == 1 else 0.0, 1.0 + 2.0**-45, fma(abs(t[j]), 2.0, abs(m[j]) * 2.0**-50)
        )
        clear = (abs(rest) * (1.0 + 2.0**-50) + err < 0.5 * g) & (size * 0.5 > abs(m[j]) + err)
        clear &= below & (hard[j] != 0) & (wanted > -960) & ((wanted <= 900) | (n == 0))
        target[j] = (n | (bits[j] & sign)) if clear else target[j]
        hard[j] = np.uint8(0) if clear else hard[j]
        # As of every entry that is not normal, what fails a test of magnitudes here is not tested by others.
        failed = np.uint8(2) if (mode == 2) & (fail[j] != 0) else np.uint8(0)
        fail[j] = failed if clear else fail[j]


@device
def test_rounding(h, m, t, unit_bound, bound, fail):
    """fail where some number within `bound` of h+m+t may round (to 53 bits) elsewhere than h."""
    wide_vectors()
    for j in range(h.size):
        e = bound[j] * unit_bound
        err = fma(e, 1.0 + 2.0**-45, fma(abs(t[j]), 2.0, abs(m[j]) * 2.0**-50))
        # Without error or rest h is RN(h + m), ties included: a margin would have exactly those fail.
        err = 0.0 if (e == 0.0) & (t[j] == 0.0) else err
        ok = (h[j] + (m[j] + err) == h[j]) & (h[j] + (m[j] - err) == h[j])
        fail[j] = np.uint8(not ok)


@device
def test_rounding32(h, m, t, unit_bound, bound, odd, fail):
    """fail where some number within `bound` may round to another float32; the interval is widened by an ulp of float64
    at each end, so that an end which is itself a midpoint of float32 decides nothing. `odd` holds the scaled value."""
    wide_vectors()
    for j in range(h.size):
        e = bound[j] * unit_bound
        err = fma(e, 1.0 + 2.0**-45, fma(abs(t[j]), 2.0, abs(m[j]) * 2.0**-50))
        low = h[j] + (m[j] - err)
        high = h[j] + (m[j] + err)
        low -= abs(low) * 2.0**-51
        high += abs(high) * 2.0**-51
        scale = odd[j] / h[j]
        same = (np.float32(low * scale) == np.float32(high * scale)) & ((low > 0.0) == (high > 0.0))
        fail[j] = np.uint8((not same) & (e != 0.0))


@device
def pigeonhole(row_counts, i, column_counts, j, k, power, needed, unit):
    """Whether |a||b| >= needed, since at least #{|a| >= α} + #{|b| >= β} - k of the k products are at least α·β.

    α = 2^(e-1-p) and β likewise, counted by `scale.scale_rows` for row i and column j; `power` is the sum of both e in
    units of A'B', `needed` is in units of 2^unit. The third level is asked first: it certifies most ordinary entries.
    """
    levels = row_counts.shape[1]
    others = column_counts.shape[1]
    # The last level counts the most elements. If these counts prove no common index, no other level does.
    if row_counts[i, levels - 1] + column_counts[j, others - 1] <= k:
        return False
    least = needed * power_of_two(unit + 2 - power)
    # Not even all k products would do; this also refuses a bound that is no number.
    if not least <= np.float64(k):
        return False
    for x in range(levels):
        p = min(2, levels - 1) + x
        p -= levels if p >= levels else 0
        spare = row_counts[i, p] - k
        threshold = least * np.float64(np.int64(1) << p)
        # Hits are no more than the row's own count, whatever the column has.
        if np.float64(row_counts[i, p]) < threshold:
            continue
        for y in range(others):
            r = min(2, others - 1) + y
            r -= others if r >= others else 0
            hits = spare + column_counts[j, r]
            if hits > 0 and np.float64(hits) >= threshold * np.float64(np.int64(1) << r):
                return True
    return False


@counting
def _extremes(size, terms, power, counts):
    """The least power, the largest of each of the four terms, and the least counts of each `size` rows or columns.

    A row or column whose terms are all 0 is left out: its bounds are 0, which pass.
    """
    groups = (power.size + size - 1) // size
    least = np.full(groups, np.int64(1) << 40)
    most = np.zeros((groups, 4))
    fewest = np.full((groups, counts.shape[1]), np.int64(1) << 40)
    for j in range(power.size):
        if terms[0, j] == 0.0 and terms[1, j] == 0.0 and terms[2, j] == 0.0 and terms[3, j] == 0.0:
            continue
        g = j // size
        least[g] = min(least[g], power[j])
        for x in range(4):
            # A NaN stays, and no bound that is made of it passes.
            if terms[x, j] > most[g, x] or terms[x, j] != terms[x, j]:
                most[g, x] = terms[x, j]
        for p in range(counts.shape[1]):
            fewest[g, p] = min(fewest[g, p], counts[j, p])
    return least, most, fewest


@counting
def scratch(height, width, mode, row_terms, row_power, row_counts, column_terms, column_power, column_counts):
    """work, edge, flags and extremes of `finish_block`, for blocks of up to `height` rows and `width` columns.

    `width` is a multiple of 8. The extremes are those of the rows and columns of each block, so that blocks begin at
    multiples of `height` and `width`. Only MAGNITUDE has any.
    """
    m, n = (row_power.size, column_power.size) if mode == 2 else (0, 0)
    rows = _extremes(height, row_terms, row_power[:m], row_counts)
    columns = _extremes(width, column_terms, column_power[:n], column_counts)
    size = height * width
    work, edge, flags = np.empty((10, size)), np.empty((2, size), np.int64), np.zeros((2, size), np.uint8)
    return work, edge, flags, (height, width, rows, columns)


@device
def _block_certified(unit, i, j0, terms, k, magnitude_kappa, extremes):
    """Whether `pigeonhole` certifies every entry of the block at (i, j0).

    `_bound` grows with terms, the magnitude that an entry needs grows with its bound, and hits grow with counts; each
    operation is rounded monotonically. So where the largest terms, the least power and the least counts of the block
    pass, those of each row and column pass.
    """
    height, width, rows, columns = extremes
    row_least, row_most, row_fewest = rows
    column_least, column_most, column_fewest = columns
    r, c = i // height, j0 // width
    bound = _bound(
        row_most[r, 0], row_most[r, 1], row_most[r, 2], row_most[r, 3], column_most[c, 0], column_most[c, 1],
        column_most[c, 2], column_most[c, 3], terms,
    )  # fmt: skip
    needed = bound * power_of_two(-unit) * magnitude_kappa
    return pigeonhole(row_fewest, r, column_fewest, c, k, row_least[r] + column_least[c], needed, unit)


@device
def _clear(flags, rows, pitch, w):
    """Clear `fail` of the entries of a block, but for `hard` ones, of whose overflow magnitudes say nothing. Returns 0
    if no flag is left.
    """
    left = np.int64(0)
    for r in range(rows):
        hard, fail = words(flags, 0, r * pitch, (w + 7) // 8), words(flags, 1, r * pitch, (w + 7) // 8)
        for eight in range(hard.size):
            fail[eight] &= hard[eight]
            left |= hard[eight]
    return left


@device
def _error(m, t, bound):
    """A bound of |x - (h + m)| for all x within `bound` of h + m + t, rounding included."""
    return bound * (1.0 + 2.0**-45) + abs(t) * 2.0 + abs(m) * 2.0**-50


@device
def ends(h, m, t, bound, exponent, precision, lowest):
    """The two ends of h + m + t ± bound, rounded at any exponent, and whether they differ in sign."""
    err = _error(m, t, bound)
    lh, lm = two_sum(h, m - err)
    hh, hm = two_sum(h, m + err)
    low = round_expansion(lh, lm, 0.0, exponent, precision, lowest)
    high = round_expansion(hh, hm, 0.0, exponent, precision, lowest)
    return low, high, (lh > 0.0) != (hh > 0.0)


@device
def _overflow_uncertain(h, m, t, bound, exponent, precision, lowest):
    """Whether some number within `bound` of h + m + t overflows and another does not.

    Near the threshold, half a place above the largest number, |h|'s distance from it is exact, so that one comparison
    for each end decides what `ends` says.
    """
    if bound == 0.0:
        return np.uint8(0)
    top = (1024 if precision == 53 else 128) - exponent
    err = _error(m, t, bound)
    if -900 < top < 900:
        if abs(h) + (abs(m) + err) < power_of_two(top - 1):
            return np.uint8(0)
        if abs(h) >= power_of_two(top - 1) and err < power_of_two(top - 2):
            largest = power_of_two(top) - power_of_two(top - precision)
            room = power_of_two(top - precision - 1) - (abs(h) - largest)
            rest = m if h > 0.0 else -m
            return np.uint8((rest - err < room) != (rest + err < room))
    low, high, _ = ends(h, m, t, bound, exponent, precision, lowest)
    return np.uint8((np.isinf(low) or np.isinf(high)) and low != high)


@device
def undecided(h, m, t, bound, exponent, precision, lowest):
    """Whether numbers within `bound` of h + m + t round differently, at any exponent (subnormals, overflow, ties)."""
    if bound == 0.0:
        return np.uint8(0)
    # If the result is a normal float64, its exponent has no influence on the rounding.
    field = ((bits_of(h) >> 52) & 0x7FF) + exponent
    if precision == 53 and 64 < field < 2000:
        err = _error(m, t, bound)
        lower, upper = h + (m - err), h + (m + err)
        return np.uint8(lower != upper or (lower > 0.0) != (upper > 0.0))
    low, high, signs_differ = ends(h, m, t, bound, exponent, precision, lowest)
    return np.uint8(low != high or signs_differ)


@device
def far_apart(h, bound, precision):
    """Whether numbers within `bound` of h are more than four units of h's last place apart, so that some of them round
    differently if h is a normal number and below the threshold of overflow: `undecided` would say the same, later.
    """
    return bound > abs(h) * power_of_two(3 - precision)


@device
def finish(
    sums, limbs, radix, product, quotient, i, j0, row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision,
    out, out32, low, failed, count, w, work, edge, flags, extremes,
):  # fmt: skip
    """From the limbs of a strip of w entries to rounded, tested, stored entries; returns the new count of failures.

    work, edge, flags and extremes are those of `scratch`, for blocks of one row.
    """
    expand_strip(sums, limbs, radix, product, quotient, work, w)
    return finish_block(
        radix * (limbs - 3), i, np.int64(1), j0, w, np.int64(w + 7 & ~7), row_shift, column_shift, row_terms,
        column_terms, terms, row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa,
        precision, out, out32, low, failed, count, work, edge, flags, extremes,
    )  # fmt: skip


@device
def finish_block(
    unit, i, rows, j0, w, pitch, row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power,
    row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed, count, work, edge,
    flags, extremes,
):  # fmt: skip
    """The same of `rows` rows of w entries, from (i, j0) on, whose expansions in units of 2^unit are rows 0 to 2 of
    `work`, a row of entries `pitch` (a multiple of 8) after the other.

    Rows are taken by address: a counted reference for each of them would cost as much as the arithmetic.
    """
    # The epilogue rounds and tests such pairs, together with its own terms.
    if mode == 3:
        for r in range(rows):
            h, m, t = (
                contiguous_row(work, 0, r * pitch, w), contiguous_row(work, 1, r * pitch, w),
                contiguous_row(work, 2, r * pitch, w),
            )  # fmt: skip
            for j in range(w):
                out[i + r, j0 + j] = h[j]
                low[i + r, j0 + j] = m[j] + t[j]
        return count
    # The test stores values in the result where whole eights fit there, and otherwise in a spare row of `work`.
    direct = w % 8 == 0 and (out.strides[1] == 8 if precision == 53 else out32.strides[1] == 4)
    stored, line = np.uint64(work.ctypes.data + 9 * work.strides[0]), np.int64(0)
    if direct and precision == 53:
        stored, line = np.uint64(out.ctypes.data + i * out.strides[0] + 8 * j0), np.int64(out.strides[0])
    elif direct:
        stored, line = np.uint64(out32.ctypes.data + i * out32.strides[0] + 4 * j0), np.int64(out32.strides[0])
    trouble = test_block(
        work, edge, unit, i, rows, j0, w, pitch, row_shift, column_shift, row_terms, column_terms, terms, mode, kappa,
        precision, flags, stored, line,
    )  # fmt: skip
    # Few entries of ordinary data are small beside their bound, but most blocks have one.
    if mode == 2 and trouble != 0 and _block_certified(unit, i, j0, terms, k, magnitude_kappa, extremes):
        trouble = _clear(flags, rows, pitch, w)
    if direct and trouble == 0:
        return count
    for r in range(rows):
        # Nearly all blocks have no flag left, so what follows may be slow.
        if trouble != 0:
            count = _look_at_flags(
                unit, i + r, j0, w, r * pitch, row_shift, column_shift, row_power, column_power, row_counts,
                column_counts, k, mode, magnitude_kappa, precision, failed, count, work, edge, flags,
            )  # fmt: skip
        value = contiguous_row(work, 4, r * pitch, w)
        # A row that is typed as contiguous is stored in vectors; real parts of complex results are strided.
        if precision == 53 and out.strides[1] == 8:
            row = contiguous_row(out, i + r, j0, w)
            for j in range(w):
                row[j] = value[j]
        elif precision == 53:
            for j in range(w):
                out[i + r, j0 + j] = value[j]
        elif out32.strides[1] == 4:
            row32 = contiguous_row(out32, i + r, j0, w)
            for j in range(w):
                row32[j] = np.float32(value[j])
        else:
            for j in range(w):
                out32[i + r, j0 + j] = np.float32(value[j])
    return count


@device
def _look_at_flags(
    unit, i, j0, w, place, row_shift, column_shift, row_power, column_power, row_counts, column_counts, k, mode,
    magnitude_kappa, precision, failed, count, work, edge, flags,
):  # fmt: skip
    """Round the flagged entries of a row, which begins at `place` in `work` and `flags`, with care, and list those that
    stay uncertified; returns the new count.
    """
    h, m, t = contiguous_row(work, 0, place, w), contiguous_row(work, 1, place, w), contiguous_row(work, 2, place, w)
    bound, value = contiguous_row(work, 3, place, w), contiguous_row(work, 4, place, w)
    hard, fail = contiguous_row(flags, 0, place, w), contiguous_row(flags, 1, place, w)
    n = column_shift.size
    unit_bound = power_of_two(-unit)
    lowest = -1074 if precision == 53 else -149
    # Flags are taken by eight, so that entries in order cost nothing; those beyond w may be of an earlier strip.
    first, second = words(flags, 0, place, (w + 7) // 8), words(flags, 1, place, (w + 7) // 8)
    shift = contiguous_row(edge, 1, 0, w)
    for j in range(w):
        shift[j] = row_shift[i] + column_shift[j0 + j]
    if precision == 53:
        store_subnormal(h, m, t, unit, shift, unit_bound, bound, mode, value, hard, fail)
    for eight in range(first.size):
        lanes = first[eight] | second[eight]
        while lanes != 0:
            lane = trailing_zeros(lanes) >> 3
            lanes &= ~(np.int64(255) << (8 * lane))
            j = 8 * eight + lane
            if j >= w:
                break
            if hard[j]:
                e = unit - shift[j]
                if mode == 2 and fail[j]:
                    fail[j] = 2
                value[j] = round_expansion(h[j], m[j], t[j], e, precision, lowest)
                if mode == 2 and not fail[j]:
                    # 2: magnitudes say nothing of overflow
                    fail[j] = 2 * _overflow_uncertain(h[j], m[j], t[j], bound[j] * unit_bound, e, precision, lowest)
            if mode == 1 and (hard[j] or not far_apart(h[j], bound[j] * unit_bound, precision)):
                fail[j] = undecided(h[j], m[j], t[j], bound[j] * unit_bound, unit - shift[j], precision, lowest)
            if mode == 2 and fail[j] == 1:
                needed = bound[j] * unit_bound * magnitude_kappa
                power = row_power[i] + column_power[j0 + j]
                if pigeonhole(row_counts, i, column_counts, j0 + j, k, power, needed, unit):
                    fail[j] = 0
            if fail[j]:
                failed[count] = i * n + j0 + j
                count += 1
    return count
