"""Entries of gemm's sum that its epilogue flagged: in twice float64's precision or, where that does not decide, exact.

Bytes: both vectors of an entry. What alpha, beta and C add is deposited in the limbs of the product's sum.
"""

import triton
import triton.language as tl

from prismm.cuda.gemm.kernels.again import FLAGGED
from prismm.cuda.gemm.kernels.combine import add_term, factor_of
from prismm.cuda.kernels.counts import EXACT, SCHEME_VALUE, SPECIAL
from prismm.cuda.kernels.exact import (
    LIMBS_OF_SUMS,
    exact_sums,
    ieee_value,
    limb_numbers,
    limb_of,
    round_limbs,
    significand,
    special_value,
)
from prismm.cuda.kernels.expansion import rounded_alike
from prismm.cuda.kernels.flagged import bytes_of, chunks_of, following, place_of
from prismm.cuda.kernels.fp64 import LOW32, STATISTICS, bit_number, power_of_two, two_sum, wide
from prismm.cuda.residues.kernels.entries import error_of_sums, sum_in_lanes, sums_by_themselves, the_one
from prismm.cuda.residues.kernels.join_exact import RAW, bound_terms, spread
from prismm.cuda.residues.kernels.many_sum import total
from prismm.cuda.residues.kernels.repair import NATIVE

UNIT_OF_SUMS = tl.constexpr(3232)
"""Exponent of the lowest limb's unit, negated: 101 limbs; alpha·a·b of subnormal numbers are multiples of 2^-3222."""


AHEAD = tl.constexpr(1084)
"""The units of `repair`'s limbs are so many binades above: 3232 - 2148."""


@triton.jit
def deposit(total, x, sign, position):
    """sign·x·2^position added to limbs, |x| < 2^59."""
    index = tl.arange(0, LIMBS_OF_SUMS)
    limb = position >> 5
    r = position & 31
    # Both halves stay below 2^63 when they are shifted by up to 31 bits.
    low = (x & LOW32) << r
    high = (x >> 32) << r
    total += tl.where(index == limb, (low & LOW32) * sign, 0)
    total += tl.where(index == limb + 1, ((low >> 32) + (high & LOW32)) * sign, 0)
    total += tl.where(index == limb + 2, (high >> 32) * sign, 0)
    return total


@triton.jit
def deposit_product(total, d, significand_, sign, position):
    """sign·d·significand·2^position added to limbs, |d| < 2^32, significand < 2^53."""
    # 27 bits, and 26: times the 32 of d each is below the 2^59 that `deposit` takes.
    total = deposit(total, d * (significand_ & 0x7FFFFFF), sign, position)
    return deposit(total, d * (significand_ >> 27), sign, position + 27)


@triton.jit
def sign_of(x):
    """-1 or 1."""
    return tl.where(x < 0.0, -1, 1).to(tl.int64)


@triton.jit
def _add_scaled(total, first, last, factor, sums, lowest, highest):
    """factor times a sum in `repair`'s limbs, added to a total in limbs of UNIT_OF_SUMS, exactly."""
    body, e = significand(factor)
    if (body != 0) & (lowest <= highest):
        carry = tl.full([], 0, tl.int64)
        stop = tl.minimum(highest + 3, LIMBS_OF_SUMS)
        for limb in range(lowest.to(tl.int32), stop.to(tl.int32)):
            whole = limb_of(sums, limb_numbers(), limb) + carry
            # Limbs may be negative: the shift rounds down, so that the carry has the sign and the word has none.
            carry = whole >> 32
            total = deposit_product(total, whole & LOW32, body, sign_of(factor), wide(limb) * 32 + e + AHEAD)
        total = deposit_product(total, carry, body, sign_of(factor), stop * 32 + e + AHEAD)
        first = tl.minimum(first, (lowest * 32 + e + AHEAD) >> 5)
        last = tl.maximum(last, ((stop * 32 + e + AHEAD + 27) >> 5) + 2)
    return total, first, last


@triton.jit
def add_product(total, first, last, x, y):
    """x·y added to a total, exactly."""
    mx, ex = significand(x)
    my, ey = significand(y)
    if (mx != 0) & (my != 0):
        position = ex + ey + UNIT_OF_SUMS
        sign = sign_of(x) * sign_of(y)
        total = deposit_product(total, mx & LOW32, my, sign, position)
        total = deposit_product(total, mx >> 32, my, sign, position + 32)
        first = tl.minimum(first, position >> 5)
        last = tl.maximum(last, ((position + 59) >> 5) + 2)
    return total, first, last


@triton.jit
def _exact(
    a, a_step, a_shift, b, b_step, b_shift, k, f0, f1, c0, f2, c1, f3, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    PRODUCT: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """RN(f0·X0 + f1·X1 + f2·c0 + f3·c1), X0 and X1 the parts of Σ a·b; ROUND: of rounded elements."""
    total = tl.zeros([LIMBS_OF_SUMS], tl.int64)
    first = tl.full([], LIMBS_OF_SUMS, tl.int64)
    last = tl.full([], 0, tl.int64)
    for part in tl.static_range(PARTS if PRODUCT else 0):
        factor = f0 if part == 0 else f1
        sums = tl.zeros([LIMBS_OF_SUMS], tl.int64)
        low = tl.full([], LIMBS_OF_SUMS, tl.int64)
        high = tl.full([], 0, tl.int64)
        if factor != 0.0:
            sums, low, high = exact_sums(
                a, a_step, a_shift, b, b_step, b_shift, k, part, tl.arange(0, BLOCK), limb_numbers(), PARTS, ROUND
            )  # fmt: skip
        total, first, last = _add_scaled(total, first, last, factor, sums, low, high)
    total, first, last = add_product(total, first, last, f2, c0)
    if PARTS == 2:
        total, first, last = add_product(total, first, last, f3, c1)
    return round_limbs(total, first, last, limb_numbers(), UNIT_OF_SUMS, PRECISION)


@triton.jit
def exact_total(
    a, a_step, b, b_step, k, f0, f1, c0, f2, c1, f3, PRECISION: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """RN(f0·X0 + f1·X1 + f2·c0 + f3·c1), X0 and X1 the parts of Σ a·b."""
    return _exact(a, a_step, 0, b, b_step, 0, k, f0, f1, c0, f2, c1, f3, PRECISION, PARTS, True, False, BLOCK)


@triton.jit
def _in_two(
    a, a_step, b, b_step, i, j, rows, columns, m, n, k, q, f0, f1, c0, f2, c1, f3, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(value, proved): what `_exact` gives, where sums in twice float64's precision decide it, in a fraction of its
    time.

    The tails of four pairs, each at most u of its own, are added in float64: off by less than 2^-96 of the size
    (`cpu.kernels.dot.double_double_sums`).
    """
    _, a_shift, _, _, n2a, _ = bound_terms(rows, m, i, i < m, q, False)
    _, b_shift, _, _, n2b, _ = bound_terms(columns, n, j, j < n, q, False)
    shift = a_shift + b_shift
    safe = (shift > -900) & (shift < 900)
    scale = power_of_two(tl.where(safe, -shift, 0))
    high = tl.full([], 0.0, tl.float64)
    low = high
    size = high
    error = high
    nonzero = high != 0.0
    for part in tl.static_range(PARTS):
        factor = f0 if part == 0 else f1
        s, c, _size, steps = sum_in_lanes(a, a_step, a_shift, b, b_step, b_shift, k, part, PARTS, BLOCK)
        x, tail = two_sum(s, c)
        # Exact: `safe` keeps powers of two from leaving the range.
        x, tail = x * scale, tail * scale
        high, low, size, nonzero = add_term(high, low, size, nonzero, factor, x, tail, x != 0.0)
        error += tl.abs(factor) * (error_of_sums(n2a * n2b, steps) * scale)
    high, low, size, nonzero = add_term(high, low, size, nonzero, f2, c0, 0.0, c0 != 0.0)
    if PARTS == 2:
        high, low, size, nonzero = add_term(high, low, size, nonzero, f3, c1, 0.0, c1 != 0.0)
    high, low = two_sum(high, low)
    error = error * (1.0 + 1e-12) + size * 1.262177448353619e-29  # 2^-96
    value, alike = rounded_alike(high, low, error, tl.full([], 0, tl.int32), PRECISION)
    # 2^-800, 2^900
    fits = (size > 1.499696813895631e-241) & (size < 8.452712498170644e270) & (tl.abs(high) > 1.499696813895631e-241)
    return value, safe & fits & alike


@triton.jit
def _by_itself(
    a, a_step, b, b_step, c, k, part, alpha, beta, beta_i, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    ADDEND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`_in_two` of a sum with a real alpha, in units of the entry's largest product. It serves entries far below their
    row's and column's largest elements. If all products are zero, the sum is beta·C. c: where C's entry stands. It
    proves nothing if a factor is not finite.
    """
    one = tl.zeros([1, 1], tl.int32)
    s, low, exponent, size, steps = sums_by_themselves(a + one, a_step, b + one, b_step, k, part + one, PARTS, 1, BLOCK)
    h, m = two_sum(s, low)
    bound = tl.where(size == 0.0, 0.0, error_of_sums(size, steps))
    of_c = c + tl.zeros([1], tl.int32) if ADDEND else None
    h, m, t, bound, exponent, sure = total(
        h, m, h * 0.0, bound, exponent, h != h, alpha, beta, beta_i, of_c, h == h, part, PARTS
    )
    # C may be the result itself: all threads have read it before one writes.
    tl.debug_barrier()
    value, alike = rounded_alike(h, m, spread(bound, m, t), exponent, PRECISION)
    finite = h * 0.0 + (alpha * 0.0 + beta * 0.0 + beta_i * 0.0) == 0.0
    sure = sure & alike & ((tl.abs(h) > 1e-100) | (bound == 0.0)) & finite
    return the_one(value), tl.max(sure.to(tl.int32), 0) > 0


@triton.jit
def special_sum(f0, s0, f1, s1, f2, c0, f3, c1, PARTS: tl.constexpr):
    """What IEEE's sum gives of terms that are Inf or NaN, from signs; 0 where none is."""
    value = _signed(f0, s0) + _signed(f2, c0)
    if PARTS == 2:
        value += _signed(f1, s1) + _signed(f3, c1)
    return value


@triton.jit
def _signed(f, x):
    """f·x of a factor that is not 0 and an x that is not finite, else 0."""
    return tl.where((f != 0.0) & (x - x != 0.0), tl.where(f < 0.0, -x, x), 0.0)


@triton.jit
def _recompute_entry(
    a, a_step, b, b_step, target, c, part, i, j, rows, columns, counts, m, n, k, q, f0, g0, f2, g2, MODE: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, ADDEND: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set a real number, or part of a complex one."""
    c0 = tl.full([], 0.0, tl.float64)
    c1 = c0
    s0 = c0
    s1 = c0
    if ADDEND:
        c0 = tl.load(c).to(tl.float64)
        if PARTS == 2:
            c1 = tl.load(c + 1).to(tl.float64)
    a_shift = tl.full([], 0, tl.int32)
    b_shift = a_shift
    if MODE != NATIVE:
        _, a_shift, _, _, _, _ = bound_terms(rows, m, i, i < m, 1, True)
        _, b_shift, _, _, _, _ = bound_terms(columns, n, j, j < n, 1, True)
    if PRODUCT:
        if MODE == NATIVE:  # without statistics of the vectors any entry may be special
            s0 = ieee_value(a, a_step, b, b_step, k, 0, PARTS, BLOCK)
            if PARTS == 2:
                s1 = ieee_value(a, a_step, b, b_step, k, 1, PARTS, BLOCK)
        else:
            s0 = special_value(a, a_step, b, b_step, rows, columns, m, n, i, j, k, 0, PARTS, BLOCK)
            if PARTS == 2:
                s1 = special_value(a, a_step, b, b_step, rows, columns, m, n, i, j, k, 1, PARTS, BLOCK)
    alpha, beta = f0, f2
    if PARTS == 2:
        # (f + gi)·(X + Yi) has the parts f·X - g·Y and g·X + f·Y.
        real = part == 0
        f0, f1, f2, f3 = (
            tl.where(real, f0, g0),
            tl.where(real, -g0, f0),
            tl.where(real, f2, g2),
            tl.where(real, -g2, f2),
        )
    else:
        f1 = f0
        f3 = f2
    value = special_sum(f0, s0, f1, s1, f2, c0, f3, c1, PARTS)
    path = tl.full([], SPECIAL, tl.int32)
    proved = value != 0.0
    if PRODUCT and MODE != RAW and MODE != NATIVE:
        if not proved:
            value, proved = _in_two(
                a, a_step, b, b_step, i, j, rows, columns, m, n, k, q, f0, f1, c0, f2, c1, f3, PRECISION, PARTS, BLOCK
            )  # fmt: skip
            path = tl.full([], EXACT, tl.int32)
        if not proved:
            if g0 == 0.0:
                value, proved = _by_itself(
                    a, a_step, b, b_step, c, k, part, alpha, beta, g2, PRECISION, PARTS, ADDEND, BLOCK
                )  # fmt: skip
    if not proved:
        value = _exact(
            a, a_step, 0, b, b_step, 0, k, f0, f1, c0, f2, c1, f3, PRECISION, PARTS, PRODUCT, False, BLOCK
        )  # fmt: skip
        path = tl.full([], EXACT, tl.int32)
        if MODE == RAW:
            of_scheme = _exact(
                a, a_step, a_shift, b, b_step, b_shift, k, f0, f1, c0, f2, c1, f3, PRECISION, PARTS, PRODUCT, True,
                BLOCK,
            )  # fmt: skip
            # Law 4: the scheme's own value, unless the exact one disagrees about infinity.
            infinite = tl.abs(value) == float("inf")
            if (infinite == (tl.abs(of_scheme) == float("inf"))) & (~infinite | (of_scheme == value)):
                value = of_scheme
                path = tl.full([], SCHEME_VALUE, tl.int32)
    tl.store(target + part, value if PRECISION == 53 else value.to(tl.float32))
    tl.atomic_add(counts + path, 1, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "out_batch", "row_stride", "column_stride",
        "c_row", "c_column", "c_batch", "alpha", "alpha_i", "beta", "beta_i", "m", "n", "k", "q", "flag_pitch",
        "batches", "row_batches", "column_batches",
    ]
)  # fmt: skip
def recompute_exact(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, c, c_row,
    c_column, c_batch, flags, state, rows, columns, counts, alpha, alpha_i, beta, beta_i, m, n, k, q, flag_pitch,
    batches, row_batches, column_batches, MODE: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    ADDEND: tl.constexpr, PRODUCT: tl.constexpr, COUNTED: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the flagged entries: what IEEE's sum gives where a term is not finite, RN of the exact sum elsewhere; in RAW
    that of rounded operands, as the scheme has it. MODE is NATIVE where there are no statistics of vectors.
    counts[SPECIAL], [EXACT], [SCHEME_VALUE] grow by the numbers set. SPAN: bytes of flags that a program reads at a
    time. COUNTED: state is that of `again.sum_again`, which counted the flags, so none are read if there were none.
    """
    f0, g0, f1, g1 = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    flags = flags.to(tl.pointer_type(tl.uint8))
    pitch = 4 * flag_pitch
    total = wide(batches) * PARTS * m * pitch
    chunks = chunks_of(total, SPAN)
    if COUNTED:
        chunks = tl.where(tl.load(state + FLAGGED) > 0, chunks, 0)
    for chunk in range(tl.program_id(0).to(tl.int64), chunks, tl.num_programs(0)):
        some = bytes_of(flags, chunk, chunks, total, SPAN)
        left = tl.sum((some != 0).to(tl.int32), 0)
        at = tl.full([], -1, tl.int32)
        while left > 0:
            left -= 1
            at = following(some, at, SPAN)
            byte = chunk + chunks * at
            batch, part, i, j0 = place_of(byte, pitch, m, PARTS)
            bits = tl.load(flags + byte).to(tl.int64)
            while bits != 0:
                lowest = bits & -bits
                bits = bits ^ lowest
                j = j0 + bit_number(lowest)
                _recompute_entry(
                    a + batch * a_batch + i * a_row, a_step, b + batch * b_batch + j * b_column, b_step,
                    out + batch * out_batch + i * row_stride + j * column_stride,
                    c + batch * c_batch + i * c_row + j * c_column, part, i, j,
                    rows + (batch % row_batches) * STATISTICS * m, columns + (batch % column_batches) * STATISTICS * n,
                    counts, m, n, k, q, f0, g0, f1, g1, MODE, PRECISION, PARTS, ADDEND, PRODUCT, BLOCK,
                )  # fmt: skip
