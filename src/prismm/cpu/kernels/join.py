"""Join residues: the exact integer C' from its digits, one rounding, and the certificate, in one pass.

Per entry: digits y_l = c_l - q_l·rint(c_l/q_l); S = Σ y_l·(Q/q_l) in limbs of 40 bits held in float64 (every sum
below 2^53, so exact); C' = S - Q·rint(S/Q), unambiguous since |C'|/Q <= 1/2 - 2^-17 (`moduli.norm_limit`); carries
leave limbs of at most 2^39 in magnitude; three of them at a time collapse into an expansion h + m + t with h =
RN(h+m+t) up to a tie that t decides.

Bytes: four read per entry and modulus, eight written; about 5 + 2·limbs flops per entry and modulus, 60 per entry.
"""

import numpy as np

from prismm.core.jit import contiguous_row, counting, device, fma, kernel
from prismm.cpu.kernels.finish import finish, scratch

STRIP = 256
RADIX = 40
REAL, DIFFERENCE, CROSS = 0, 1, 2


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
            # A constant of each version: no branch is left in the loop.
            if limbs >= 3:
                s2[j] += fma(y0, d0, fma(y1, d1, fma(y2, d2, y3 * d3)))
            if limbs >= 4:
                s3[j] += fma(y0, e0, fma(y1, e1, fma(y2, e2, y3 * e3)))

    group.__qualname__ = f"group_{limbs}"  # `jit`: a name of its own
    return device(group)


_fused2 = _fused(2)
_fused3 = _fused(3)
_fused4 = _fused(4)


@device
def sums_fused(c, start, w, limbs, modulus, reciprocal, weights, zero, sums):
    """S of the strip c[:, start : start + w] for real int8 products with at most four limbs."""
    last = c.shape[0] - 1
    for x in range(limbs if limbs < 4 else sums.shape[0]):
        for j in range(w):
            sums[x, j] = 0.0
    # Four moduli a pass, as each pass loads and stores all sums.
    for g in range(0, weights.shape[0], 4):
        c0 = contiguous_row(c, g, start, w)
        # The last group is filled up with zeros, whose weights are zero as well.
        c1 = contiguous_row(c, g + 1, start, w) if g + 1 <= last else contiguous_row(zero, 0, 0, w)
        c2 = contiguous_row(c, g + 2, start, w) if g + 2 <= last else contiguous_row(zero, 0, 0, w)
        c3 = contiguous_row(c, g + 3, start, w) if g + 3 <= last else contiguous_row(zero, 0, 0, w)
        s0 = contiguous_row(sums, 0, 0, w)
        s1 = contiguous_row(sums, 1, 0, w)
        s2 = contiguous_row(sums, 2, 0, w)
        s3 = contiguous_row(sums, 3, 0, w)
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
        s = contiguous_row(sums, x, 0, w)
        for j in range(s.size):
            s[j] += fma(y0[j], w0, fma(y1[j], w1, fma(y2[j], w2, y3[j] * w3)))


@device
def sums_of(c0, c1, c2, start, w, part, limbs, split, modulus, reciprocal, weights, y, rest, sums):
    """S of the strip [:, start : start + w]: the digits of every modulus (each cut into `split` base-128 digits) times
    their weights.
    """
    stop = start + w
    for x in range(limbs if limbs < 4 else sums.shape[0]):
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
                _combine(c0[d, start:stop], c1[d, start:stop], c2[d, start:stop], part, target)
                _reduce(target, modulus[d], reciprocal[d])
            else:
                which = d // split
                if d % split == 0:
                    _combine(c0[which, start:stop], c1[which, start:stop], c2[which, start:stop], part, rest)
                    _reduce(rest, modulus[which], reciprocal[which])
                for j in range(target.size):
                    # The last digit keeps all that is left: there is none above it.
                    carry = np.rint(rest[j] * 2.0**-7) if d % split < split - 1 else 0.0
                    target[j] = fma(-carry, 128.0, rest[j])
                    rest[j] = carry
        _accumulate(y, g, w, limbs, weights, sums)


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
    mode (`finish`): RAW stores RN(C'·2^-(s+t)) only; ROUNDING also lists the entries that the bound leaves
    undecided, MAGNITUDE those with |C'| < kappa·bound; PAIR stores C' as an unscaled pair in `out`, `low`. precision
    53 writes `out`, 24 `out32`. Returns the number of listed entries, their i·n + j in `failed`.
    """
    n = column_shift.size
    zero = np.zeros((1, STRIP), np.int32)
    flat = c.reshape(c.shape[0], c.shape[1] * c.shape[2])
    sums = np.empty((5, STRIP))
    work, edge, flags, extremes = scratch(
        np.int64(1), np.int64(STRIP), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    count = np.int64(0)
    for i in range(row_shift.size):
        for j0 in range(0, n, STRIP):
            w = min(n, j0 + STRIP) - j0
            sums_fused(flat, i * c.shape[2] + j0, w, limbs, modulus, reciprocal, weights, zero, sums)
            count = finish(
                sums, limbs, RADIX, product, quotient, i, j0, row_shift, column_shift, row_terms, column_terms,
                terms, row_power,
                column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
                low, failed, count, w, work, edge, flags, extremes,
            )  # fmt: skip
    return count


@counting
def _join_parts(
    c0, c1, c2, part, limbs, split, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms,
    row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
    low, failed,
):  # fmt: skip
    n = column_shift.size
    width = c0.shape[2]
    flat0 = c0.reshape(c0.shape[0], c0.shape[1] * width)
    flat1 = c1.reshape(c1.shape[0], c1.shape[1] * width)
    flat2 = c2.reshape(c2.shape[0], c2.shape[1] * width)
    y = np.empty((4, STRIP))
    rest = np.empty(STRIP)
    sums = np.empty((5, STRIP))
    work, edge, flags, extremes = scratch(
        np.int64(1), np.int64(STRIP), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    count = np.int64(0)
    for i in range(row_shift.size):
        for j0 in range(0, n, STRIP):
            w = min(n, j0 + STRIP) - j0
            start = i * width + j0
            sums_of(flat0, flat1, flat2, start, w, part, limbs, split, modulus, reciprocal, weights, y, rest[:w], sums)
            count = finish(
                sums, limbs, RADIX, product, quotient, i, j0, row_shift, column_shift, row_terms, column_terms,
                terms, row_power,
                column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32,
                low, failed, count, w, work, edge, flags, extremes,
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
