"""Batches of products of tiny matrices, several a program, in one kernel: on float64's units, in registers.

A program reads some pairs of matrices, puts their elements by terms into shared memory, and adds the products of one
term after the other to the entries that its threads hold. What it cannot answer for is stored as NaN, found again when
all is stored, and recomputed exactly one by one. A complex element of B acts as [[re, im], [-im, re]], so that all
below is real, with k terms. MODE:

*NATIVE*: fused multiply-additions in order of terms, whose error is at most k·u·|a||b|, u = 2^-53 (Jeannerod and Rump
2013). Entries that are not below 2^1023, or in float32 may reach its end, are recomputed exactly: see
`cuda.native.kernels.product`.

*ROUNDED*: RN of the exact sum. Of a term's product p = RN(x·y), r = x·y - p, and of the sum s that it is added to by a
two-sum, the error q is added to c with r (Dot2 of Ogita, Rump and Oishi 2005, in order), S adds up |p|.
The sum is s + Σ(q + r) exactly. Every |r| <= u·|p|; every |q| <= u·|s| <= u·(1 + u)^k·Σ|p|, and the first one is 0; so
Σ|q + r| <= k·u·(1 + u)^k·Σ|p|. Each q + r is rounded once, and c has k - 1 additions that round: c errs by at most
k·u/(1 - k·u) times that sum, so by less than k²·u²·(1 + 2^-40)·Σ|p|, and S is Σ|p| but for a factor of 1 + k·u.
Where r underflows, it errs by at most 2^-1075: with |s + c| > 2^-900, all of them by less than 2^-60 of k²·u²·S, as S
is no smaller than s. So err = 1.01·k²·u²·S holds it all, k <= 64. An entry is certain if all numbers within err of
s + c round alike and S < 2^1000. In float32, sums in float64 decide nearly all: s by fused multiply-additions, which
errs by at most 1.01·k·u·S, and c = 0.

*SCALED*: RN of the product of rounded operands A' = RN(2^s·a), B' = RN(2^t·b), the same bits as by residues, with the
shifts that `cuda.residues.kernels.scale` defines; certified as in `cuda.residues.kernels.join_exact`, else RN of the
exact sum. A' and B' are
integers, so nothing underflows. The certificate compares the bound ε of C' with |C'|, and if that is not enough, with
M = Σ floor(|a|·2^(7-e))·floor(|b|·2^(7-f)). (Counts of large elements, which a join asks first, prove nothing that M
does not: each counted product adds to M at least what it counts for.) M is seldom needed, as S tells: floor(x)·floor(y)
is at least x·y - x - y for x, y >= 0. With n >= ½·Σ2^s·|a| of a row and ν >= ½·Σ2^t·|b| of a column, M in units of
A'B' is so at least T - 2^-6·(2^(f+t)·n + 2^(e+s)·ν), T = Σ2^(s+t)·|a||b|. And S exceeds T by n + ν + k/4 at most, which
is below 1 % of what was subtracted where both exponents are 20 or more: the larger of n and ν is then above 2^17.

Sums that lose nothing on their way are exact, zeros and ties included: a second pass detects that, where some entry of
a program is not certain.

Bytes: operands and result once. Operations in float64 a term and entry: 1, in float32 3; ROUNDED and SCALED in float64
11, and for SCALED some 20 an element besides. A batch of 10^5 products at n = 4 moves 38 MB, at n = 16 614 MB:
13 and 205 µs at 3 TB/s; 11 operations of each of 4·10^8 terms take 270 µs on an H100. There, NATIVE takes 23 and 225
µs, ROUNDED 24 and 381 (torch.bmm 323 and 361).
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from prismm.cuda.kernels.counts import BY_MAGNITUDE, EXACT, SPECIAL
from prismm.cuda.kernels.exact import (
    LIMBS_OF_SUMS,
    ORIGIN,
    exact_sums,
    exact_value_in,
    factors,
    ieee_value_in,
    round_limbs,
)
from prismm.cuda.kernels.expansion import round_expansion
from prismm.cuda.kernels.fp64 import (
    EXPONENT,
    MAGNITUDE,
    NONFINITE,
    bits_of,
    ceiling,
    exponent_above,
    multiple,
    power_of_two,
    rounded,
    scaled,
    two_sum,
    wide,
)
from prismm.cuda.native.kernels.finish import recompute_native
from prismm.cuda.native.kernels.product import LARGE, TOP
from prismm.cuda.residues.kernels.entries import magnitude_proves
from prismm.cuda.residues.kernels.scale import magnitude_factors, scale_exponent

NATIVE, ROUNDED, SCALED = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
UNROLLED = gl.constexpr(2)
"""Terms that are added at a time."""


@gluon.constexpr_function
def _tile(rows, columns, matrices, warps):
    """Who holds which entries of a program (matrices, rows, columns): up to 2 by 4 neighbours a thread."""
    each = [1, min(2, rows), min(4, columns)]
    across = min(32, columns // each[2])
    down = min(32 // across, rows // each[1])
    lanes = [32 // (across * down), down, across]
    apart = max(1, min(warps, matrices // lanes[0]))
    return gl.BlockedLayout(each, lanes, [apart, warps // apart, 1], [2, 1, 0])


@gluon.constexpr_function
def _copied(matrices, rows, columns, across, size, warps):
    """Who reads which elements of (matrices, rows, columns) whose neighbours are along an axis: 16 bytes a thread."""
    extents = [0, rows, columns]
    along = 3 - across
    each, lanes = [1, 1, 1], [1, 1, 1]
    each[across] = min(max(1, 16 // size), extents[across])
    lanes[across] = min(32, extents[across] // each[across])
    lanes[along] = min(32 // lanes[across], extents[along])
    lanes[0] = 32 // (lanes[1] * lanes[2])
    groups = [max(1, min(warps, matrices // lanes[0])), 1, 1]
    groups[along] = warps // groups[0]
    return gl.BlockedLayout(each, lanes, groups, [across, along, 0])


@triton.jit
def _over(x, AXIS: tl.constexpr):
    """Numbers of vectors, over the elements of each; AXIS: along which these lie, None of a single vector's."""
    if AXIS is None:
        return x
    else:
        return tl.expand_dims(x, AXIS)


@triton.jit
def scale_of(x, q, thresholds, limit_bits, AXIS: tl.constexpr):
    """(e, s, ½‖A'‖₁, A', whether it is not 2^s·a) of vectors along an axis, as `join.bound_terms` has it after
    `scale`. Vectors that are not finite count as 0, with NONFINITE as their e. AXIS: None of a single vector.

    Sums of at most 64 integers below 2^21, and of their squares, are exact in float64.
    """
    ALONG: tl.constexpr = 0 if AXIS is None else AXIS
    largest = tl.max(bits_of(x) & MAGNITUDE, ALONG)
    finite = largest < EXPONENT
    x = tl.where(_over(finite, AXIS), x, 0.0)
    largest = tl.where(finite, largest, 0)
    e = exponent_above(largest)
    lift, factor = magnitude_factors(e, q)
    v = ceiling(tl.abs(x) * _over(lift, AXIS) * _over(factor, AXIS))
    v = tl.where((v == 0.0) & (x != 0.0), 1.0, v)  # of what underflows
    shift = scale_exponent(largest, tl.sum(v * v, ALONG).to(tl.int64), q, thresholds, limit_bits)
    norm1 = 0.5 * tl.sum(v, ALONG) * power_of_two(shift - q + e)
    y = scaled(x, _over(shift, AXIS))
    z = rounded(y)
    inexact = tl.max(((y != z) | ((z == 0.0) & (x != 0.0))).to(tl.int32), ALONG)
    e = tl.where(finite, e, NONFINITE)
    return e.to(tl.int32), shift.to(tl.int32), norm1, z, inexact.to(tl.float64)


@triton.jit
def _factors_of(e, shift):
    """2^-s, 0 where that is not usual, and 2^(e+s)."""
    # Below 450 each, so that a row's times a column's factor stays a normal number.
    usual = (e < NONFINITE) & (shift > -450) & (shift < 450)
    return tl.where(usual, power_of_two(tl.where(usual, -shift, 0)), 0.0), power_of_two(tl.where(usual, e + shift, 0))


@triton.jit
def _add_pairs(s, c, t, d):
    """(s + c) + (t + d), the leading parts without error."""
    total, error = two_sum(s, t)
    return total, (c + d) + error


@triton.jit
def _recompute_scaled(
    a, a_step, b, b_step, target, counts, k, part, q, thresholds, limit_bits, constants, lanes, index,
    PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Set an entry as `repair` does: what IEEE's sum gives where a term is not finite; its value, where it is
    certified; else that of the exact sum. lanes: as many as there are terms, or more.
    """
    value = ieee_value_in(a, a_step, b, b_step, k, part, lanes, PARTS)
    path = wide(SPECIAL)
    if value == 0.0:
        x, y = factors(a, a_step, b, b_step, lanes.to(tl.int64), PARTS * k, part, PARTS)
        a_e, a_shift, n1a, x1, fa = scale_of(x, q, thresholds, limit_bits, None)
        b_e, b_shift, n1b, y1, fb = scale_of(y, q, thresholds, limit_bits, None)
        bound = fa * n1b + fb * n1a + fa * fb * (0.25 * (PARTS * k))
        sums, lowest, highest = exact_sums(a, a_step, a_shift, b, b_step, b_shift, k, part, lanes, index, PARTS, True)
        value = round_limbs(sums, lowest, highest, index, ORIGIN, PRECISION)
        product = x1 * y1
        s, c = tl.reduce((product, tl.fma(x1, y1, -product)), 0, _add_pairs)
        s, c = two_sum(s, c)
        exponent = -(a_shift + b_shift)
        err = bound * (1.0 + 2.842170943040401e-14) + tl.abs(c) * 8.881784197001252e-16  # 2^-45, 2^-50
        first_h, first_low = two_sum(s, c - err)
        last_h, last_low = two_sum(s, c + err)
        first = round_expansion(first_h, first_low, first_low * 0.0, exponent, PRECISION)
        last = round_expansion(last_h, last_low, last_low * 0.0, exponent, PRECISION)
        infinite = (tl.abs(first) == float("inf")) | (tl.abs(last) == float("inf"))
        needed = bound * tl.load(constants)
        failed = ~(tl.abs(s) >= needed) | (infinite & (first != last))
        path = wide(BY_MAGNITUDE)
        if failed & (bound != 0.0):
            x, y = tl.abs(x), tl.abs(y)
            total = tl.sum(scaled(x, 7 - a_e).to(tl.int64) * scaled(y, 7 - b_e).to(tl.int64), 0)
            hit = tl.max(((x != 0.0) & (y != 0.0)).to(tl.int32), 0) > 0
            if not magnitude_proves(total, hit, bound, a_e + b_e, value, exponent, constants, PRECISION):
                value = exact_value_in(a, a_step, b, b_step, k, part, lanes, index, PARTS, PRECISION)
                path = wide(EXACT)
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32))
    tl.atomic_add(counts + path, 1, sem="relaxed")


@gluon.jit
def _read(
    x, x_batch, x_row, x_column, batches, first, rows, columns, MATRICES: gl.constexpr, ROWS: gl.constexpr,
    COLUMNS: gl.constexpr, LAYOUT: gl.constexpr, ACROSS: gl.constexpr, WHOLE: gl.constexpr, TOGETHER: gl.constexpr,
    PARTS: gl.constexpr, WOVEN: gl.constexpr,
):  # fmt: skip
    """Matrices from the first on, (MATRICES, ROWS, COLUMNS) real numbers in float64, 0 outside. WOVEN: each complex
    element as two rows of two. WHOLE: whether rows and columns are all inside; TOGETHER: what steps are multiples of,
    but along the axis ACROSS.
    """
    g = first + gl.arange(0, MATRICES, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    i = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    j = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    g, i, j = g[:, None, None], i[None, :, None], j[None, None, :]
    inside = g < batches
    if not WHOLE:
        inside = inside & (i < rows) & (j < columns)
    at = x + g.to(gl.int64) * multiple(x_batch, TOGETHER)
    if PARTS == 1:
        if ACROSS == 2:
            at = at + (i.to(gl.int64) * multiple(x_row, TOGETHER) + j)
        else:
            at = at + (j.to(gl.int64) * multiple(x_column, TOGETHER) + i)
        return gl.load(at, mask=inside, other=0.0).to(gl.float64)
    elif WOVEN:
        at = at + ((i >> 1).to(gl.int64) * x_row + (j >> 1).to(gl.int64) * x_column + ((i ^ j) & 1))
        value = gl.load(at, mask=inside, other=0.0).to(gl.float64)
        return gl.where((i & 1) > (j & 1), value * -1.0, value)
    else:
        at = at + (i.to(gl.int64) * x_row + (j >> 1).to(gl.int64) * x_column + (j & 1))
        return gl.load(at, mask=inside, other=0.0).to(gl.float64)


@gluon.jit
def _factors(left, right, h, LAYOUT: gl.constexpr):
    """Those of a term, of all entries."""
    x = left.index(h).load(gl.SliceLayout(2, LAYOUT))
    y = right.index(h).load(gl.SliceLayout(1, LAYOUT))
    return gl.broadcast(x[:, :, None], y[:, None, :])


@gluon.jit
def _sums(left, right, terms, zero, LAYOUT: gl.constexpr, FUSED: gl.constexpr, SIZES: gl.constexpr):
    """(s, c, S): sums of products in order, what is lost of them, and of their magnitudes. FUSED: c is 0, s by fused
    multiply-additions, S if SIZES.
    """
    s, c, size = zero, zero, zero
    # An odd number of terms reads one more, which is 0: TERMS is a power of two from 2 on.
    for first in range(0, terms, UNROLLED):
        for more in gl.static_range(UNROLLED):
            x, y = _factors(left, right, first + more, LAYOUT)
            if FUSED:
                s = gl.fma(x, y, s)
                if SIZES:
                    size += gl.abs(x * y)
            else:
                p = x * y
                s, lost = two_sum(s, p)
                c += lost + gl.fma(x, y, -p)
                size += gl.abs(p)
    return s, c, size


@gluon.jit
def _sums_again(left, right, terms, zero, LAYOUT: gl.constexpr):
    """`_sums`, not FUSED, and whether s is exact."""
    s, c, size = zero, zero, zero
    exact = zero == 0.0
    for h in range(0, terms):
        x, y = _factors(left, right, h, LAYOUT)
        p = x * y
        s, lost = two_sum(s, p)
        rest = gl.fma(x, y, -p)
        c += lost + rest
        size += gl.abs(p)
        whole = (gl.abs(p) > 1.1830521861667747e-271) | (x == 0.0) | (y == 0.0)  # 2^-900: no part of it underflows
        exact = exact & whole & (lost == 0.0) & (rest == 0.0)
    return s, c, size, exact & (size < 1.0715086071862673e301)  # 2^1000


@gluon.jit
def _magnitudes(left, right, terms, zero, LAYOUT: gl.constexpr):
    """Sums of products of what `_sizes` says."""
    total = zero
    for h in range(0, terms):
        x, y = _factors(left, right, h, LAYOUT)
        total = gl.fma(x, y, total)
    return total


@gluon.jit
def _sizes(x, e):
    """floor(|x|·2^(7-e)), an integer, and 2^-20 more of what is not 0: sums of 64 products are off by less than 2^-5,
    and greater than 0 where some product is.
    """
    size = gl.abs(x)
    whole = scaled(size, 7 - e).to(gl.int32).to(gl.float64)
    return whole + gl.where(size != 0.0, 9.5367431640625e-07, 0.0)


@gluon.jit
def _decided(s, c, err, size, scale, PRECISION: gl.constexpr, SHIFTED: gl.constexpr):
    """(value, whether its rounding is undecided): RN((s + c)·scale), a power of two, 1 unless SHIFTED."""
    high, low = two_sum(s, c)
    err += gl.abs(low) * 8.881784197001252e-16  # 2^-50, for roundings here
    below, above = high + (low - err), high + (low + err)
    certain = (size < 1.0715086071862673e301) & (gl.abs(high) > 1.1830521861667747e-271)  # 2^1000, 2^-900
    value = high
    if SHIFTED:
        value = high * scale
        certain = certain & _in_range(value, PRECISION)
    if PRECISION == 53:
        certain = certain & (below == high) & (above == high)
    else:
        # Ends that are midpoints of float32 decide nothing.
        first = ((below - gl.abs(below) * 4.440892098500626e-16) * scale).to(gl.float32)  # 2^-51
        last = ((above + gl.abs(above) * 4.440892098500626e-16) * scale).to(gl.float32)
        # Zeros of both signs are equal in float32, so signs are compared as well.
        certain = certain & (first == last) & ((below > 0.0) == (above > 0.0))
    return value, ~certain


@gluon.jit
def _in_range(value, PRECISION: gl.constexpr):
    """Whether a number, and what rounds to it, is far from the ends of float64's range, or of float32's top."""
    TOP_: gl.constexpr = 1.0715086071862673e301 if PRECISION == 53 else 8.507059173023462e37  # 2^1000, 2^126
    size = gl.abs(value)
    return (size > 1.1830521861667747e-271) & (size < TOP_)  # 2^-900


@gluon.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_step", "b_column", "batches", "m", "n", "k", "q", "limit_bits",
    ]
)  # fmt: skip
def multiply_tiny(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, thresholds, constants, batches, m, n, k, q,
    limit_bits, MODE: gl.constexpr, PRECISION: gl.constexpr, FUSED: gl.constexpr, PARTS: gl.constexpr,
    MATRICES: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, TERMS: gl.constexpr, ACROSS_A: gl.constexpr,
    ACROSS_B: gl.constexpr, WHOLE: gl.constexpr, TOGETHER_A: gl.constexpr, TOGETHER_B: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """out (batches, m, n), contiguous, = AB, MATRICES a program; all are real numbers, those behind complex ones where
    PARTS is 2, steps and all.

    FUSED: whether fused multiply-additions come first. ROWS, COLUMNS, TERMS:
    powers of two that hold m, and so many parts of n and k; WHOLE: whether they are these. ACROSS: axis along which
    elements are neighbours, 1 or 2; TOGETHER: what steps are multiples of. thresholds, limit_bits, q: of
    `cuda.residues.tables.Tables`; constants: of `join_exact.join_tile`. counts: as for `repair.finish`.
    """
    LAYOUT: gl.constexpr = _tile(ROWS, COLUMNS, MATRICES, WARPS)
    COPY_A: gl.constexpr = _copied(MATRICES, ROWS, TERMS, ACROSS_A, a.dtype.element_ty.primitive_bitwidth // 8, WARPS)
    COPY_B: gl.constexpr = _copied(
        MATRICES, TERMS, COLUMNS, ACROSS_B, b.dtype.element_ty.primitive_bitwidth // 8, WARPS
    )
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    OF_TERM: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    terms, columns = k * PARTS, n * PARTS
    first = gl.program_id(0) * MATRICES
    x = _read(
        a, a_batch, a_row, a_step, batches, first, m, terms, MATRICES, ROWS, TERMS, COPY_A, ACROSS_A, WHOLE, TOGETHER_A,
        PARTS, False,
    )  # fmt: skip
    y = _read(
        b, b_batch, b_step, b_column, batches, first, terms, columns, MATRICES, TERMS, COLUMNS, COPY_B, ACROSS_B, WHOLE,
        TOGETHER_B, PARTS, True,
    )  # fmt: skip
    of_a = gl.allocate_shared_memory(gl.float64, [TERMS, MATRICES, ROWS], SHARED)
    of_b = gl.allocate_shared_memory(gl.float64, [TERMS, MATRICES, COLUMNS], SHARED)
    # The same memory with a layout of rank 2, which is what is left when a term is taken by its index.
    left = of_a._reinterpret(gl.float64, [TERMS, MATRICES, ROWS], OF_TERM)
    right = of_b._reinterpret(gl.float64, [TERMS, MATRICES, COLUMNS], OF_TERM)
    zero = gl.zeros([MATRICES, ROWS, COLUMNS], gl.float64, LAYOUT)
    scale = 1.0
    if MODE == SCALED:
        row_e, row_shift, row_norm, x, row_inexact = scale_of(x, q, thresholds, limit_bits, 2)
        column_e, column_shift, column_norm, y, column_inexact = scale_of(y, q, thresholds, limit_bits, 1)
    of_a.permute((1, 2, 0)).store(x)
    of_b.permute((1, 0, 2)).store(y)
    s, c, size = _sums(left, right, terms, zero, LAYOUT, FUSED, MODE == ROUNDED or PRECISION == 24)
    count = terms.to(gl.float64)
    if MODE == NATIVE:
        value = s
        not_certified = ~(gl.abs(s) < LARGE)
        if PRECISION == 24:
            # 2^-52 is 2·u: the bound k·u·S, and as much for the rounding of S and of this test.
            not_certified = ~(gl.abs(s) + size * (count * 2.220446049250313e-16) < TOP)  # 2^-52
    else:
        doubled = count * count * (1.01 * 2.0**-106)
        if MODE == SCALED:
            down_row, top_row = _factors_of(row_e, row_shift)
            down_column, top_column = _factors_of(column_e, column_shift)
            down_row = gl.convert_layout(down_row, gl.SliceLayout(2, LAYOUT))[:, :, None]
            down_column = gl.convert_layout(down_column, gl.SliceLayout(1, LAYOUT))[:, None, :]
            top_row = gl.convert_layout(top_row, gl.SliceLayout(2, LAYOUT))[:, :, None]
            top_column = gl.convert_layout(top_column, gl.SliceLayout(1, LAYOUT))[:, None, :]
            n_row = gl.convert_layout(row_norm, gl.SliceLayout(2, LAYOUT))[:, :, None]
            n_column = gl.convert_layout(column_norm, gl.SliceLayout(1, LAYOUT))[:, None, :]
            f_row = gl.convert_layout(row_inexact, gl.SliceLayout(2, LAYOUT))[:, :, None]
            f_column = gl.convert_layout(column_inexact, gl.SliceLayout(1, LAYOUT))[:, None, :]
            scale = down_row * down_column
        err = size * (count * (1.01 * 2.0**-53) if FUSED else doubled)
        value, not_certified = _decided(s, c, err, size, scale, PRECISION, MODE == SCALED)
        # One undecided entry has all entries of the program summed again, as a program branches as a whole.
        if gl.max(gl.max(gl.max(not_certified.to(gl.int32), 2), 1), 0) > 0:
            again, rest, more, exact = _sums_again(left, right, terms, zero, LAYOUT)
            if FUSED:
                value, not_certified = _decided(again, rest, more * doubled, more, scale, PRECISION, MODE == SCALED)
            if MODE == SCALED:
                again = again * scale
                exact = exact & (_in_range(again, PRECISION) | (again == 0.0))
            value = gl.where(exact, again, value)
            not_certified = not_certified & ~exact
        if MODE == SCALED:
            bound = f_row * n_column + f_column * n_row + f_row * f_column * (0.25 * count)
            far = ~((gl.abs(s) + bound) * scale < (1.0715086071862673e301 if PRECISION == 53 else 4.253529586511731e37))
            kappa, by_magnitude = gl.load(constants), gl.load(constants + 1)
            # A join asks it of C' rounded to 53 bits, from which s differs by less than 1.02·k·u·S and an ulp.
            least = gl.abs(s) * (1.0 - 8.881784197001252e-16) - size * (count * (1.02 * 2.0**-53))  # 2^-50
            doubt = (bound != 0.0) & ~(least >= bound * kappa)
            surely = size * (1.0 - 9.313225746154785e-10)  # 2^-30
            surely -= (n_row * top_column + n_column * top_row) * (1.01 * 2.0**-6)
            doubt = doubt & ~((bound * by_magnitude <= surely) & (top_row >= 1048576.0) & (top_column >= 1048576.0))
            not_certified = not_certified | far | (scale == 0.0)
            doubt = doubt & ~not_certified
            if gl.max(gl.max(gl.max(doubt.to(gl.int32), 2), 1), 0) > 0:
                # Elements are read again: keeping them in registers would slow all programs for a proof that few need.
                x = _read(
                    a, a_batch, a_row, a_step, batches, first, m, terms, MATRICES, ROWS, TERMS, COPY_A, ACROSS_A, WHOLE,
                    TOGETHER_A, PARTS, False,
                )  # fmt: skip
                y = _read(
                    b, b_batch, b_step, b_column, batches, first, terms, columns, MATRICES, TERMS, COLUMNS, COPY_B,
                    ACROSS_B, WHOLE, TOGETHER_B, PARTS, True,
                )  # fmt: skip
                of_a.permute((1, 2, 0)).store(_sizes(x, gl.where(row_e < NONFINITE, row_e, 0)[:, :, None]))
                of_b.permute((1, 0, 2)).store(_sizes(y, gl.where(column_e < NONFINITE, column_e, 0)[:, None, :]))
                total = _magnitudes(left, right, terms, zero, LAYOUT)
                proof = gl.where(
                    total > 0.0, total.to(gl.int32).to(gl.float64) * (top_row * top_column * (2.0**-14)), float("inf")
                )
                doubt = doubt & ~(bound * by_magnitude <= proof)
            not_certified = not_certified | doubt
    g = first + gl.arange(0, MATRICES, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    i = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    j = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    inside = (g < batches)[:, None, None] & (i < m)[None, :, None] & (j < columns)[None, None, :]
    not_certified = not_certified & inside
    row = g.to(gl.int64)[:, None, None] * m + i[None, :, None]
    value = gl.where(not_certified, float("nan"), value)  # by which those are found below
    gl.store(out + row * columns + j[None, None, :], value if PRECISION == 53 else value.to(gl.float32), mask=inside)
    if gl.max(gl.max(gl.max(not_certified.to(gl.int32), 2), 1), 0) > 0:
        _recompute_uncertified(
            a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, thresholds, constants,
            wide(first) * m * columns, wide(gl.minimum(first + MATRICES, batches)) * m * columns, m, n, k, q,
            limit_bits, MODE, PRECISION, PARTS, WARPS,
        )  # fmt: skip


@gluon.jit
def _recompute_uncertified(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, counts, thresholds, constants, start, end, m, n, k, q,
    limit_bits, MODE: gl.constexpr, PRECISION: gl.constexpr, PARTS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Set what is stored as NaN of the numbers start, …, end - 1."""
    gl.thread_barrier()  # other threads stored the entries that this one loads
    SPAN: gl.constexpr = 32 * WARPS
    lanes = gl.arange(0, SPAN, gl.BlockedLayout([1], [32], [WARPS], [0]))
    index = gl.arange(0, LIMBS_OF_SUMS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    for first in range(start, end, SPAN):
        some = gl.load(out + first + lanes, mask=lanes < end - first, other=0.0)
        left = gl.sum((some != some).to(gl.int32), 0)
        at = left * 0 - 1
        while left > 0:
            left -= 1
            at = gl.min(gl.where((some != some) & (lanes > at), lanes, SPAN), 0)
            position = first + at
            entry, part = position // PARTS, (position % PARTS).to(gl.int32)
            row, column = entry // n, entry % n
            x = a + row // m * a_batch + row % m * a_row
            y = b + row // m * b_batch + column * b_column
            if MODE == SCALED:
                _recompute_scaled(
                    x, a_step, y, b_step, out + position, counts, k, part, q, thresholds, limit_bits, constants, lanes,
                    index, PRECISION, PARTS,
                )  # fmt: skip
            else:
                recompute_native(x, a_step, y, b_step, out + position, counts, k, part, lanes, index, PRECISION, PARTS)
