"""Join residues: the exact integer C' from its digits, one rounding, and the certificate, in one pass.

Per entry: digits y_l = c_l - q_l·rint(c_l/q_l); S = Σ y_l·(Q/q_l) in limbs of 40 bits held in float64 (every sum
below 2^53, so exact); C' = S - Q·rint(S/Q), unambiguous since |C'|/Q <= 1/2 - 2^-17 (`moduli.norm_limit`); carries
leave limbs of at most 2^39 in magnitude; three of them at a time collapse into an expansion h + m + t with h =
RN(h+m+t) up to a tie that t decides.

Bytes: four read per entry and modulus, eight written; about 5 + 2·limbs flops per entry and modulus, 60 per entry.
"""

import math

import numpy as np

from prismm.kernels.cpu.jit import device, fma, kernel

STRIP = 256
RADIX = 40
RAW, ROUNDING, MAGNITUDE, PAIR = 0, 1, 2, 3
REAL, DIFFERENCE, CROSS = 0, 1, 2


@device
def two_sum(x, y):
    """s + e = x + y exactly (Knuth)."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


@device
def fast_two_sum(x, y):
    """s + e = x + y exactly where |x| >= |y| or x = 0 (Dekker)."""
    s = x + y
    return s, y - (s - x)


@device
def _combine(c0, c1, c2, part, y):
    """The integer product of one modulus: D, D - E or F - D - E, below 2^53 in magnitude (3·2^31, or 3·512·2^42),
    exact.
    """
    if part == 0:
        for j in range(y.size):
            y[j] = np.float64(c0[j])
    elif part == 1:
        for j in range(y.size):
            y[j] = np.float64(c0[j]) - np.float64(c1[j])
    else:
        for j in range(y.size):
            y[j] = np.float64(c2[j]) - np.float64(c0[j]) - np.float64(c1[j])


@device
def _reduce(y, q, r):
    for j in range(y.size):
        v = y[j]
        y[j] = fma(-np.rint(v * r), q, v)


def _fused(limbs):
    """Four int32 residues to digits and onto `limbs` sums, in one loop: the inner loop of every real int8 product."""

    @device
    def group(c0, c1, c2, c3, q, r, g, weights, s0, s1, s2, s3):
        q0, q1, q2, q3 = q[g], q[g + 1], q[g + 2], q[g + 3]
        r0, r1, r2, r3 = r[g], r[g + 1], r[g + 2], r[g + 3]
        a0, a1, a2, a3 = weights[g, 0], weights[g + 1, 0], weights[g + 2, 0], weights[g + 3, 0]
        b0, b1, b2, b3 = weights[g, 1], weights[g + 1, 1], weights[g + 2, 1], weights[g + 3, 1]
        d0, d1, d2, d3 = weights[g, 2], weights[g + 1, 2], weights[g + 2, 2], weights[g + 3, 2]
        e0, e1, e2, e3 = weights[g, 3], weights[g + 1, 3], weights[g + 2, 3], weights[g + 3, 3]
        for j in range(s0.size):
            v0 = np.float64(c0[j])
            v1 = np.float64(c1[j])
            v2 = np.float64(c2[j])
            v3 = np.float64(c3[j])
            y0 = fma(-np.rint(v0 * r0), q0, v0)
            y1 = fma(-np.rint(v1 * r1), q1, v1)
            y2 = fma(-np.rint(v2 * r2), q2, v2)
            y3 = fma(-np.rint(v3 * r3), q3, v3)
            s0[j] += fma(y0, a0, fma(y1, a1, fma(y2, a2, y3 * a3)))
            s1[j] += fma(y0, b0, fma(y1, b1, fma(y2, b2, y3 * b3)))
            if limbs >= 3:
                s2[j] += fma(y0, d0, fma(y1, d1, fma(y2, d2, y3 * d3)))
            if limbs >= 4:
                s3[j] += fma(y0, e0, fma(y1, e1, fma(y2, e2, y3 * e3)))

    return group


_fused2 = _fused(2)
_fused3 = _fused(3)
_fused4 = _fused(4)


@device
def _sums_fused(c, i, j0, j1, limbs, modulus, reciprocal, weights, zero, sums):
    """S of one strip for real int8 products with at most four limbs."""
    w = j1 - j0
    last = c.shape[0] - 1
    for x in range(sums.shape[0]):
        for j in range(w):
            sums[x, j] = 0.0
    for g in range(0, weights.shape[0], 4):
        c0 = c[g, i, j0:j1]
        c1 = c[g + 1, i, j0:j1] if g + 1 <= last else zero[:w]
        c2 = c[g + 2, i, j0:j1] if g + 2 <= last else zero[:w]
        c3 = c[g + 3, i, j0:j1] if g + 3 <= last else zero[:w]
        s0 = sums[0, :w]
        s1 = sums[1, :w]
        s2 = sums[2, :w]
        s3 = sums[3, :w]
        if limbs == 2:
            _fused2(c0, c1, c2, c3, modulus, reciprocal, g, weights, s0, s1, s2, s3)
        elif limbs == 3:
            _fused3(c0, c1, c2, c3, modulus, reciprocal, g, weights, s0, s1, s2, s3)
        else:
            _fused4(c0, c1, c2, c3, modulus, reciprocal, g, weights, s0, s1, s2, s3)


@device
def _accumulate(y, g, w, limbs, weights, sums):
    """sums[x] += Σ_d y[d]·weights[g + d, x] for a group of four digits."""
    y0 = y[0, :w]
    y1 = y[1, :w]
    y2 = y[2, :w]
    y3 = y[3, :w]
    for x in range(limbs):
        w0 = weights[g, x]
        w1 = weights[g + 1, x]
        w2 = weights[g + 2, x]
        w3 = weights[g + 3, x]
        s = sums[x, :w]
        for j in range(s.size):
            s[j] += fma(y0[j], w0, fma(y1[j], w1, fma(y2[j], w2, y3[j] * w3)))


@device
def _expand(s0, s1, s2, s3, s4, radix, product, quotient, h, m, t):
    """C' = h + m + t in units of the third limb (s0 is the top): |m| <= ulp(h)/2, t has the sign of what is left, or
    is 0.

    Limbs are in base 2^radix (40 for residues, 44 for the direct engine) and at most half of it once carries are taken.

    The first sum is exact since |top·2^40| >= |next| or top = 0; the third and fourth limbs join by exact two-sums.
    d is then the error of the latter (0, or at least 2^-radix in magnitude) plus the fifth limb (at most half that):
    exact where it is not dominated, and of the right sign. Four terms that fall off in this order sink into place in
    two rounds; leading zeros (cancellation) move up.
    """
    p0, p1, p2, p3, p4 = product[0], product[1], product[2], product[3], product[4]
    i0, i1 = quotient[0], quotient[1]
    down = math.ldexp(1.0, -radix)
    up = math.ldexp(1.0, radix)
    above = up * up
    below = down * down
    for j in range(h.size):
        q = -np.rint(fma(s0[j], i0, s1[j] * i1))
        x4 = fma(q, p4, s4[j])
        x3 = fma(q, p3, s3[j])
        x2 = fma(q, p2, s2[j])
        x1 = fma(q, p1, s1[j])
        x0 = fma(q, p0, s0[j])
        carry = np.rint(x4 * down)
        x4 = fma(-carry, up, x4)
        x3 += carry
        carry = np.rint(x3 * down)
        x3 = fma(-carry, up, x3)
        x2 += carry
        carry = np.rint(x2 * down)
        x2 = fma(-carry, up, x2)
        x1 += carry
        carry = np.rint(x1 * down)
        x1 = fma(-carry, up, x1)
        x0 += carry
        a, b = fast_two_sum(x0 * above, x1 * up)
        b, c = two_sum(b, x2)
        c, d = two_sum(c, x3 * down)
        d += x4 * below
        a, b = fast_two_sum(a, b)
        b, c = fast_two_sum(b, c)
        c, d = fast_two_sum(c, d)
        a, b = fast_two_sum(a, b)
        b, c = fast_two_sum(b, c)
        a, b = fast_two_sum(a, b)
        h[j] = a
        m[j] = b
        t[j] = c + d


@device
def _expand_two(s0, s1, radix, product, quotient, h, m, t):
    """`_expand` for two limbs: h + m is all of C', still in units of a third limb."""
    p0, p1 = product[0], product[1]
    i0, i1 = quotient[0], quotient[1]
    down = math.ldexp(1.0, -radix)
    up = math.ldexp(1.0, radix)
    above = up * up
    for j in range(h.size):
        q = -np.rint(fma(s0[j], i0, s1[j] * i1))
        x1 = fma(q, p1, s1[j])
        x0 = fma(q, p0, s0[j])
        carry = np.rint(x1 * down)
        x1 = fma(-carry, up, x1)
        a, b = fast_two_sum((x0 + carry) * above, x1 * up)
        h[j] = a
        m[j] = b
        t[j] = 0.0


@device
def round_expansion(h, m, t, exponent, precision, lowest):
    """RN((h + m + t)·2^exponent) to `precision` bits with least exponent `lowest`, ties to even, in plain integers.

    With M the 53-bit significand of h, the value is M ulp(h) plus a remainder of at most half an ulp (a tie
    included, which t may break). 8·M plus a stand-in for the remainder (in eighths: 1 and 3 inside, 2 and 4 exactly
    at a quarter and a half, 5 beyond) rounds like the value itself: at least two bits are dropped, and odd stand-ins
    never hit a midpoint. Returns a float64; overflow gives infinity.
    """
    if h == 0.0:
        return 0.0
    fraction, e = math.frexp(abs(h))
    significand = np.int64(math.ldexp(fraction, 53)) * 8
    e -= 56
    rest = m if m != 0.0 else t
    if rest != 0.0:
        outward = (rest > 0.0) == (h > 0.0)
        quarter = math.ldexp(2.0, e)
        size = abs(m)
        beyond = 0.0 if m == 0.0 else (t if m > 0.0 else -t)
        if size < quarter or (size == quarter and beyond < 0.0):
            step = 1
        elif size == quarter and beyond == 0.0:
            step = 2
        elif size < 2.0 * quarter or (size == 2.0 * quarter and beyond < 0.0):
            step = 3
        elif size == 2.0 * quarter and beyond == 0.0:
            step = 4
        else:
            step = 5
        significand += step if outward else -step
    e += exponent
    length = 56 if significand >= (np.int64(1) << 55) else 55
    length = 57 if significand >= (np.int64(1) << 56) else length
    drop = max(length - precision, lowest - e)
    if drop > 60:
        return math.copysign(0.0, h)
    kept = significand >> drop
    rest_bits = significand & ((np.int64(1) << drop) - 1)
    half = np.int64(1) << (drop - 1)
    if rest_bits > half or (rest_bits == half and kept & 1):
        kept += 1
    e += drop
    top = 1024 if precision == 53 else 128
    value = np.float64(kept)
    if math.frexp(value)[1] + e > top:
        return math.copysign(np.inf, h)
    return math.copysign(math.ldexp(value, e), h)


@device
def _bounds(n1a, da, n2a, fa, n1b, db, n2b, fb, terms, bound):
    """|C' - 2^(s+t)·exact| <= the smaller of the two bounds of `accuracy.residual_bound`, rounding included."""
    for j in range(bound.size):
        e1 = fma(fa, n1b[j], fb[j] * n1a) + fa * fb[j] * terms
        e2 = fma(da, n2b[j], (n2a + da) * db[j])
        bound[j] = min(e1, e2 * (1.0 + 2.0**-40))


@device
def _store_plain(h, m, t, unit, shift, out, hard):
    """out = h·2^(unit - shift) where that is normal, below the top two binades, and no tie is open; `hard` marks the
    rest.
    """
    bits = h.view(np.int64)
    target = out.view(np.int64)
    for j in range(h.size):
        field = (bits[j] >> 52) & 0x7FF
        moved = field + unit - shift[j]
        open_tie = (t[j] != 0.0) & (h[j] + m[j] * (1.0 + 2.0**-50) != h[j])
        hard[j] = np.uint8(((moved < 1) | (moved > 2044) | open_tie) & (h[j] != 0.0))
        target[j] = bits[j] + ((unit - shift[j]) << 52) if h[j] != 0.0 else 0


@device
def _store_odd(h, m, t, unit, shift, out, hard):
    """The same rounded to odd in 53 bits, so that a conversion to float32 rounds once (Boldo and Melquiond 2008).

    `hard` marks values outside float64's normal range and those of float32's top two binades (2^126) or beyond.
    """
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
def _test_rounding(h, m, t, unit_bound, bound, fail):
    """fail where some number within `bound` of h+m+t may round (to 53 bits) elsewhere than h."""
    for j in range(h.size):
        e = bound[j] * unit_bound
        err = fma(e, 1.0 + 2.0**-45, fma(abs(t[j]), 2.0, abs(m[j]) * 2.0**-50))
        err = 0.0 if (e == 0.0) & (t[j] == 0.0) else err
        ok = (h[j] + (m[j] + err) == h[j]) & (h[j] + (m[j] - err) == h[j])
        fail[j] = np.uint8(not ok)


@device
def _test_rounding32(h, m, t, unit_bound, bound, odd, fail):
    """fail where some number within `bound` may round to another float32; the interval is widened by an ulp of float64
    at each end, so that an end which is itself a midpoint of float32 decides nothing. `odd` holds the scaled value."""
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
def _test_magnitude(h, unit_bound, bound, kappa, fail):
    """fail unless |h| >= kappa·bound or the bound is zero: one product, so the same decision on every engine."""
    for j in range(h.size):
        e = bound[j] * unit_bound
        fail[j] = np.uint8((abs(h[j]) < e * kappa) | ((e * kappa != e * kappa) & (e != 0.0)))


@device
def _sums(c0, c1, c2, i, j0, j1, part, limbs, split, modulus, reciprocal, weights, y, rest, sums):
    """S of one strip: the digits of every modulus (each cut into `split` base-128 digits) times their weights."""
    w = j1 - j0
    for x in range(sums.shape[0]):
        for j in range(w):
            sums[x, j] = 0.0
    digits = c0.shape[0] * split
    for g in range(0, weights.shape[0], 4):
        for d in range(g, g + 4):
            target = y[d - g, :w]
            if d >= digits:
                for j in range(w):
                    target[j] = 0.0
            elif split == 1:
                _combine(c0[d, i, j0:j1], c1[d, i, j0:j1], c2[d, i, j0:j1], part, target)
                _reduce(target, modulus[d], reciprocal[d])
            else:
                which = d // split
                if d % split == 0:
                    _combine(c0[which, i, j0:j1], c1[which, i, j0:j1], c2[which, i, j0:j1], part, rest)
                    _reduce(rest, modulus[which], reciprocal[which])
                for j in range(target.size):
                    carry = np.rint(rest[j] * 2.0**-7) if d % split < split - 1 else 0.0
                    target[j] = fma(-carry, 128.0, rest[j])
                    rest[j] = carry
        _accumulate(y, g, w, limbs, weights, sums)


@device
def finish(
    sums, limbs, radix, product, quotient, i, j0, row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision,
    out, out32, low, failed, count, h, m, t, bound, value, shift, hard, fail,
):  # fmt: skip
    """From the limbs of a strip to rounded, tested, stored entries; returns the new count of failures."""
    w = h.size
    j1 = j0 + w
    n = column_shift.size
    unit = radix * (limbs - 3)
    if limbs == 2:
        _expand_two(sums[0, :w], sums[1, :w], radix, product, quotient, h, m, t)
    else:
        _expand(sums[0, :w], sums[1, :w], sums[2, :w], sums[3, :w], sums[4, :w], radix, product, quotient, h, m, t)
    if mode == 3:
        for j in range(w):
            out[i, j0 + j] = h[j]
            low[i, j0 + j] = m[j] + t[j]
        return count
    for j in range(w):
        shift[j] = row_shift[i] + column_shift[j0 + j]
    if precision == 53:
        _store_plain(h, m, t, unit, shift, value, hard)
    else:
        _store_odd(h, m, t, unit, shift, value, hard)
    for j in range(w):
        fail[j] = 0
    unit_bound = math.ldexp(1.0, -unit)
    if mode != 0:
        _bounds(
            row_terms[0, i], row_terms[1, i], row_terms[2, i], row_terms[3, i],
            column_terms[0, j0:j1], column_terms[1, j0:j1], column_terms[2, j0:j1], column_terms[3, j0:j1],
            terms, bound,
        )  # fmt: skip
        if mode == 2:
            _test_magnitude(h, unit_bound, bound, kappa, fail)
        elif precision == 53:
            _test_rounding(h, m, t, unit_bound, bound, fail)
        else:
            _test_rounding32(h, m, t, unit_bound, bound, value, fail)
    lowest = -1074 if precision == 53 else -149
    trouble = 0
    for j in range(w):
        trouble += np.int64(hard[j] | fail[j])
    if trouble:
        for j in range(w):
            if hard[j]:
                e = unit - shift[j]
                if mode == 2 and fail[j]:
                    fail[j] = 2
                value[j] = round_expansion(h[j], m[j], t[j], e, precision, lowest)
                if mode == 2 and not fail[j]:
                    # 2: magnitudes cannot settle it
                    fail[j] = 2 * _overflow_open(h[j], m[j], t[j], bound[j] * unit_bound, e, precision, lowest)
            if mode == 1 and (hard[j] or fail[j]):
                fail[j] = _undecided(h[j], m[j], t[j], bound[j] * unit_bound, unit - shift[j], precision, lowest)
            if mode == 2 and fail[j] == 1:
                e = bound[j] * unit_bound
                # Magnitudes say nothing of overflow, so what could reach the top of the range stays listed.
                far = math.ldexp(abs(h[j]) + e, unit - shift[j]) < (2.0**1022 if precision == 53 else 2.0**126)
                power = row_power[i] + column_power[j0 + j]
                if far and _pigeonhole(row_counts[i], column_counts[j0 + j], k, power, e * magnitude_kappa, unit):
                    fail[j] = 0
            if fail[j]:
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
def _pigeonhole(row_counts, column_counts, k, power, needed, unit):
    """Whether |a||b| >= needed, since at least #{|a| >= α} + #{|b| >= β} - k of the k products are at least α·β.

    α = 2^(e-1-p) and β likewise, counted by `scale.scale_rows`; `power` is the sum of both e in units of A'B',
    `needed` is in units of 2^unit.
    """
    for p in range(row_counts.size):
        for r in range(column_counts.size):
            hits = row_counts[p] + column_counts[r] - k
            if hits > 0 and np.float64(hits) * math.ldexp(1.0, power - 2 - p - r - unit) >= needed:
                return True
    return False


@device
def _overflow_open(h, m, t, bound, exponent, precision, lowest):
    """Whether some number within `bound` of h + m + t overflows and another does not."""
    if bound == 0.0:
        return np.uint8(0)
    err = bound * (1.0 + 2.0**-45) + abs(t) * 2.0 + abs(m) * 2.0**-50
    lh, lm = two_sum(h, m - err)
    hh, hm = two_sum(h, m + err)
    low = round_expansion(lh, lm, 0.0, exponent, precision, lowest)
    high = round_expansion(hh, hm, 0.0, exponent, precision, lowest)
    return np.uint8(np.isinf(low) != np.isinf(high))


@device
def _undecided(h, m, t, bound, exponent, precision, lowest):
    """Whether numbers within `bound` of h + m + t round differently, at any exponent (subnormals, overflow, ties)."""
    if bound == 0.0:
        return np.uint8(0)
    err = bound * (1.0 + 2.0**-45) + abs(t) * 2.0 + abs(m) * 2.0**-50
    lh, lm = two_sum(h, m - err)
    hh, hm = two_sum(h, m + err)
    low = round_expansion(lh, lm, 0.0, exponent, precision, lowest)
    high = round_expansion(hh, hm, 0.0, exponent, precision, lowest)
    return np.uint8(low != high or (lh > 0.0) != (hh > 0.0))


_TILE = (
    "int64, int64, float64[::1], float64[::1], float64[:,::1], float64[::1], float64[::1], int64[::1], int64[::1], "
    "float64[:,::1], float64[:,::1], float64, int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64, int64, "
    "float64, "
    "float64, int64, float64[:,:], float32[:,:], float64[:,::1], "
    "int32[::1])"
)
_THREE = "int64({0}[:,:,::1], {0}[:,:,::1], {0}[:,:,::1], int64, "


@kernel("int64(int32[:,:,::1], " + _TILE)
def join_fused(
    c, limbs, split, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
):  # fmt: skip
    """Join a tile of real int32 products (moduli, m, n) with at most four limbs.

    row_terms, column_terms: (4, m) and (4, n), the bound's vectors (`scale.bound_terms`). row_power: e + s, so that
    |A'| < 2^(e+s); row_counts (m, levels): `scale.scale_rows`; k: terms of the real sum; both only for MAGNITUDE.
    mode: RAW stores RN(C'·2^-(s+t)) only; ROUNDING also lists the entries that the bound leaves undecided, MAGNITUDE
    those with |C'| < kappa·bound; PAIR stores C' as an unscaled pair in `out`, `low`. precision 53 writes `out`, 24
    `out32`. Returns the number of listed entries, their i·n + j in `failed`.
    """
    n = column_shift.size
    zero = np.zeros(STRIP, np.int32)
    sums = np.empty((5, STRIP))
    work = np.empty((5, STRIP))
    shift = np.empty(STRIP, np.int64)
    flags = np.empty((2, STRIP), np.uint8)
    count = 0
    for i in range(row_shift.size):
        for j0 in range(0, n, STRIP):
            w = min(n, j0 + STRIP) - j0
            _sums_fused(c, i, j0, j0 + w, limbs, modulus, reciprocal, weights, zero, sums)
            count = finish(
                sums, limbs, RADIX, product, quotient, i, j0, row_shift, column_shift, row_terms, column_terms,
                terms, row_power,
                column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
                low, failed, count, work[0, :w], work[1, :w], work[2, :w], work[3, :w],
                work[4, :w], shift[:w], flags[0, :w], flags[1, :w],
            )  # fmt: skip
    return count


@device
def _join_parts(
    c0, c1, c2, part, limbs, split, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
):  # fmt: skip
    n = column_shift.size
    y = np.empty((4, STRIP))
    rest = np.empty(STRIP)
    sums = np.empty((5, STRIP))
    work = np.empty((5, STRIP))
    shift = np.empty(STRIP, np.int64)
    flags = np.empty((2, STRIP), np.uint8)
    count = 0
    for i in range(row_shift.size):
        for j0 in range(0, n, STRIP):
            w = min(n, j0 + STRIP) - j0
            _sums(c0, c1, c2, i, j0, j0 + w, part, limbs, split, modulus, reciprocal, weights, y, rest[:w], sums)
            count = finish(
                sums, limbs, RADIX, product, quotient, i, j0, row_shift, column_shift, row_terms, column_terms,
                terms, row_power,
                column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
                low, failed, count, work[0, :w], work[1, :w], work[2, :w], work[3, :w],
                work[4, :w], shift[:w], flags[0, :w], flags[1, :w],
            )  # fmt: skip
    return count


@kernel(_THREE.format("int32") + _TILE)
def join_int32(
    c0, c1, c2, part, limbs, split, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
):  # fmt: skip
    """The same for any number of limbs, and for the parts of a complex product: DIFFERENCE c0 - c1, CROSS c2 - c0 -
    c1.
    """
    return _join_parts(
        c0, c1, c2, part, limbs, split, modulus, reciprocal, weights, product, quotient,
        row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
    )  # fmt: skip


@kernel(_THREE.format("float64") + _TILE)
def join_float64(
    c0, c1, c2, part, limbs, split, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
):  # fmt: skip
    """The same for float64 products of wide moduli."""
    return _join_parts(
        c0, c1, c2, part, limbs, split, modulus, reciprocal, weights, product, quotient,
        row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
    )  # fmt: skip
