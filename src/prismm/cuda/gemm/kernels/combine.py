"""The epilogue of gemm: alpha·X + beta·C, rounded once and certified as a whole; no entry leaves the device.

X is joined from residues (`combine_digits`, the arithmetic and the decisions of `cpu.kernels.combine`, so that the bits
are) or slices (`slices.kernels.combine`), or is a product that meets the "native" target already (`combine_values`).
Entries that want more than twice float64's precision get a flag, a bit each, and are not written: `recompute_exact`
sums those exactly, in limbs of 32 bits as `repair` does, alpha and beta·C included.

**Of values.** Let |X - AB| <= K·u·|A||B| + K·η, with K·u <= 1/2. The sum is rounded once, by at most η/2 and
u·|alpha·X + beta·C|, so it errs by at most (K + 2)·u·|alpha||A||B| + u·|beta||C| + (1 + u)·|alpha|·K·η + η in all. That
is within the target of gemm, K + 3 instead of K, if |alpha| <= 1, or if |A||B|, which is at least (|X| - K·η)/1.5,
exceeds 2K·η/u: entries with |alpha| > 1 and |X| < 8K·η/u are flagged.

**Overflow.** The target says nothing of it, as X was rounded before C came to it: an entry is infinite exactly where
the exact sum, rounded, is. A float32 X errs by at most E = K·2^104 + 2^122. Of cuBLAS's, all of whose partial sums are
finite, that is 2K roundings by at most half an ulp of the largest number; other products are exact but for one
rounding where they could err by 2^122 (`SPARE`). So entries within |alpha|·E of 2^128 - 2^103, from where
on numbers round to infinity, are flagged, and `cuda.gemm.sum.Sum` sees to it that |alpha|·E is at most 2^127 + 2^126.
In float64 K·2^971, times |alpha| at most 2^1022, reaches that far from no sum below 2^900, and larger ones are flagged.

Of real numbers C may be the result itself: an entry's C is read before the entry is written, by the one who writes it.

Per entry N digits read or X, C read, 4 or 8 bytes written, a bit; operations: those of `join` and about 60.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import EXPONENT, LARGEST, STATISTICS, bits_of, power_of_two, two_sum, wide
from prismm.cuda.kernels.overflow import TOP
from prismm.cuda.residues.kernels.join_exact import (
    IMAGINARY_PART,
    MAGNITUDE,
    RAW,
    REAL,
    REAL_PART,
    ROUNDING,
    bound_terms,
    expand_digits,
    large_products,
)

SPARE = tl.constexpr(5.316911983139664e36)
"""2^122: what a float32 product that a sum is made of may err by, if a long sum of rounded terms is not its reason."""


@triton.jit
def factor_of(pattern):
    """A factor, from its pattern."""
    return wide(pattern).to(tl.float64, bitcast=True)


@triton.jit
def add_term(high, low, size, nonzero, f, x, tail, counts):
    """f·(x + tail) added to a sum in two parts, |f·x| to its size; where f is 0 nothing is. counts: whether x + tail is
    not 0 where x is.
    """
    p = f * x
    total, r = two_sum(high, p)
    # Of the tile's shape, as f is a scalar; 0 drops its term, as in BLAS, where 0·Inf would make it NaN.
    used = tl.zeros(x.shape, tl.float64) + f != 0.0
    low = tl.where(used, low + (r + (tl.fma(f, x, -p) + f * tail)), low)
    return tl.where(used, total, high), low, tl.where(used, size + tl.abs(p), size), nonzero | (used & counts)


@triton.jit
def _sum_uncertified(high, low, err, PRECISION: tl.constexpr):
    """Whether numbers within err of high + low round differently, to 53 bits or to float32."""
    below = high + (low - err)
    above = high + (low + err)
    if PRECISION == 53:
        return (above != high) | (below != high)
    # Widened, so that an end on a midpoint of float32 counts as undecided.
    below -= tl.abs(below) * 4.440892098500626e-16  # 2^-51
    above += tl.abs(above) * 4.440892098500626e-16
    return (below.to(tl.float32) != above.to(tl.float32)) | ((below > 0.0) != (above > 0.0))


@triton.jit
def store_flags(flagged, flags, i, j, m, flag_pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A bit an entry, in rows of flag_pitch words."""
    bits = tl.reshape(flagged.to(tl.int32), [ROWS, BLOCK // 32, 32])
    word = tl.sum(bits << tl.arange(0, 32)[None, None, :], 2)
    at = tl.min(j, 0) // 32 + tl.arange(0, BLOCK // 32)
    inside = (i < m)[:, None] & (at < flag_pitch)[None, :]
    tl.store(flags + i.to(tl.int64)[:, None] * flag_pitch + at[None, :], word, mask=inside)


@triton.jit
def _joined(
    at, plane, reduction, constants, read, exponent, safe, MODULI: tl.constexpr, LIMBS: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """X = high + low of a tile, and where it is not 0; 0 where it is not safe to scale it."""
    h, m, t = expand_digits(at, plane, reduction, constants, read, MODULI, LIMBS, PART, False)
    # The inner `where` keeps `power_of_two` within its range in entries that the outer one drops.
    scale = tl.where(safe, power_of_two(tl.where(safe, exponent, 0)), 0.0)
    return h * scale, (m + t) * scale, h != 0.0


@triton.jit
def addend(at, inside, ADDEND: tl.constexpr):
    """C's numbers, as float64; 0 where there is none."""
    if ADDEND:
        return tl.load(at, mask=inside, other=0.0).to(tl.float64)
    return tl.zeros(at.shape, tl.float64)


@triton.jit
def decided(
    f0, x1, t1, n1, f1, x2, t2, n2, f2, c1, f3, c2, bound, safe, kappa, MODE: tl.constexpr, PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """(value, flagged, uncovered) of f0·X1 + f1·X2 + f2·C1 + f3·C2: `cpu.kernels.combine`, with its proof and its
    decisions; uncovered: what is not flagged otherwise, but whose own magnitude does not cover kappa times the bound.
    """
    high = tl.zeros(x1.shape, tl.float64)
    low = high
    size = high
    nonzero = high != 0.0
    # In the CPU's order, on which `low` and so the decisions depend.
    high, low, size, nonzero = add_term(high, low, size, nonzero, f0, x1, t1, n1)
    if PARTS == 2:
        high, low, size, nonzero = add_term(high, low, size, nonzero, f1, x2, t2, n2)
    high, low, size, nonzero = add_term(high, low, size, nonzero, f2, c1, 0.0, c1 != 0.0)
    if PARTS == 2:
        high, low, size, nonzero = add_term(high, low, size, nonzero, f3, c2, 0.0, c2 != 0.0)
    weight = tl.zeros(x1.shape, tl.float64) + (tl.abs(f0) + tl.abs(f1))
    # A small factor must not make a bound underflow to 0.
    weighted = tl.maximum(bound * weight, 1.1830521861667747e-271)  # 2^-900
    bound = tl.where((bound > 0.0) & (weight > 0.0), weighted, 0.0)
    safe = safe & (~nonzero | ((size > 1.499696813895631e-241) & (size < 8.452712498170644e270)))  # 2^-800, 2^900
    high, low = two_sum(high, low)
    err = size * 1.262177448353619e-29 + tl.abs(low) * 8.881784197001252e-16  # 2^-96, 2^-50
    unsafe = ~safe | ~(tl.abs(high) > 1.499696813895631e-241)
    if PRECISION == 24:
        unsafe = unsafe | (tl.abs(high) >= 1.7014118346046923e38)  # 2^127
    # False everywhere: bounds are numbers.
    uncovered = bound != bound
    if MODE == MAGNITUDE:
        uncovered = (bound != 0.0) & ~(tl.abs(high) - err >= bound * kappa)
    # Correct rounding is that of the exact sum, so X's own error counts; the other modes round the scheme's sum.
    if MODE == ROUNDING:
        err += bound
    # Magnitudes say nothing of overflow within the bound: 2^1020, 2^126.
    reach = tl.abs(high) + bound
    far = ~(reach < (1.1235582092889474e307 if PRECISION == 53 else 8.507059173023462e37))
    flagged = unsafe | _sum_uncertified(high, low, err, PRECISION) | (uncovered & far)
    if MODE == MAGNITUDE:
        flagged = flagged | ~(bound < (1.1235582092889474e307 if PRECISION == 53 else 8.507059173023462e37))
    # A sum of nothing is 0 exactly, though its size of 0 looks like underflow.
    flagged = flagged & ~(~nonzero & (bound == 0.0) & safe)
    return high, flagged, uncovered & ~flagged


@triton.jit
def covered(
    uncovered, units, f0, f1, rows, columns, m, n, i, j, in_m, in_n, k, special, constants, LEVELS: tl.constexpr
):  # fmt: skip
    """Where |a||b| is not seen to cover what is uncovered: by the counts of large elements, as on a CPU."""
    left = uncovered
    if tl.max(tl.max(uncovered.to(tl.int32), 1), 0) > 0:
        row_e, row_shift, _, _, _, _ = bound_terms(rows, m, i, in_m, 1, True)
        column_e, column_shift, _, _, _, _ = bound_terms(columns, n, j, in_n, 1, True)
        power = row_e[:, None] + row_shift[:, None] + column_e[None, :] + column_shift[None, :]
        # Two parts of a factor: their magnitudes add up to at most √2 times its own.
        needed = tl.load(constants + 1) * tl.where((f0 != 0.0) & (f1 != 0.0), 1.4142135623730954, 1.0)
        least = units * needed * power_of_two(2 - tl.where(special, 0, power))
        hits = large_products(rows, columns, m, n, i, j, in_m, in_n, k, LEVELS)
        left = uncovered & ~((hits > 0.0) & (hits.to(tl.float64) >= least))
    return left


@triton.jit
def _bound(n1a, da, n2a, fa, n1b, db, n2b, fb, quarter, MODE: tl.constexpr):
    """The bound of X in units of C', as `cpu.kernels.combine` has it."""
    bound = (fa * n1b + fb * n1a) + (fa * fb) * quarter
    if MODE == ROUNDING:
        bound = tl.minimum(bound, da * n2b + (n2a + da) * db)
    return bound * (1.0 + 9.313225746154785e-10)  # 2^-30


@triton.jit
def tile_of(m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """(batch, rows, columns) of a program: along a grid's first extent, as the others end at 65535."""
    blocks, strips = tl.cdiv(n, BLOCK), tl.cdiv(m, ROWS)
    strip = tl.program_id(0) // blocks
    j = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    i = strip % strips * ROWS + tl.arange(0, ROWS)
    return (strip // strips).to(tl.int64), i, j


@triton.jit(
    do_not_specialize=[
        "row_stride", "column_stride", "batch_step", "c_row", "c_column", "c_batch", "alpha", "alpha_i", "beta",
        "beta_i", "m", "n", "k", "q", "row_pitch", "plane", "flag_pitch", "row_batches", "column_batches",
    ]
)  # fmt: skip
def combine_digits(
    digits, out, row_stride, column_stride, batch_step, c, c_row, c_column, c_batch, flags, rows, columns, constants,
    reduction, alpha, alpha_i, beta, beta_i, m, n, k, q, row_pitch, plane, flag_pitch, row_batches, column_batches,
    MODULI: tl.constexpr, LIMBS: tl.constexpr, LEVELS: tl.constexpr, TESTED: tl.constexpr, MODE: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, ADDEND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LOWER: tl.constexpr = False,
):  # fmt: skip
    """out = alpha·X + beta·C of ROWS rows and BLOCK columns where nothing is flagged; flags (batch, parts, m, pitch).
    LOWER: not of tiles above the diagonal, whose flags stay 0.

    digits, rows, columns, constants, reduction: as for `join_exact.join_tile`. c: C, whose strides may be 0. alpha,
    beta: the patterns of their parts. PARTS: 2 for complex numbers, out's and c's parts being neighbours. TESTED: that
    MODE is MAGNITUDE, and kappa not 0.
    """
    A_PRIORI: tl.constexpr = MODE != ROUNDING
    TOP: tl.constexpr = 1.1235582092889474e307 if PRECISION == 53 else 2.1267647932558654e37  # 2^1020, 2^124
    batch, i, j = tile_of(m, n, ROWS, BLOCK)
    if LOWER:
        if tl.max(i, 0) < tl.min(j, 0):
            return
    digits += batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI)
    out += batch * batch_step
    c += batch * c_batch
    rows += (batch % row_batches) * STATISTICS * m
    columns += (batch % column_batches) * STATISTICS * n
    in_m, in_n = i < m, j < n
    inside = in_m[:, None] & in_n[None, :]
    read = in_m[:, None] & (j < row_pitch)[None, :]
    _, column_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, in_n, q, A_PRIORI)
    _, row_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, in_m, q, A_PRIORI)
    largest_a = tl.load(rows + LARGEST * m + i, mask=in_m, other=0)
    largest_b = tl.load(columns + LARGEST * n + j, mask=in_n, other=0)
    special = (largest_a >= EXPONENT)[:, None] | (largest_b >= EXPONENT)[None, :]
    shift = tl.where(special, 0, row_shift[:, None] + column_shift[None, :])
    exponent = 40 * (LIMBS - 3) - shift
    safe = (shift > -900) & (shift < 900)
    units = _bound(
        n1a[:, None], da[:, None], n2a[:, None], fa[:, None], n1b[None, :], db[None, :], n2b[None, :], fb[None, :],
        0.25 * k, MODE,
    )  # fmt: skip
    first = tl.where(safe, units * power_of_two(tl.where(safe, -shift, 0)), units)
    # A small scale must not make a bound underflow to 0.
    first = tl.where(units > 0.0, tl.maximum(first, 1.1830521861667747e-271), first)  # 2^-900
    bound = first if MODE != RAW else first * 0.0
    kappa = tl.load(constants)
    at = digits + i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    target = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    source = c + i.to(tl.int64)[:, None] * c_row + j.to(tl.int64)[None, :] * c_column
    f0, g0, f1, g1 = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    c0 = addend(source, inside, ADDEND)
    flags += batch * PARTS * m * flag_pitch
    if PARTS == 1:
        x0, t0, n0 = _joined(at, plane, reduction, constants, read, exponent, safe, MODULI, LIMBS, REAL)
        value, flagged, uncovered = decided(
            f0, x0, t0, n0, f0 * 0.0, x0, t0, n0, f1, c0, f0, c0, bound, safe, kappa, MODE, PRECISION, PARTS
        )  # fmt: skip
        if TESTED:
            flagged = flagged | covered(
                uncovered & inside, units, f0, f0 * 0.0, rows, columns, m, n, i, j, in_m, in_n, k, special, constants,
                LEVELS,
            )  # fmt: skip
        if MODE == RAW:
            flagged = flagged | ~(tl.abs(value) + first * tl.abs(f0) < TOP)
        flagged = (flagged | special) & inside
        # Flagged entries keep what they hold: C may be the result itself, and `recompute_exact` reads it once more.
        tl.store(target, value if PRECISION == 53 else value.to(tl.float32), mask=inside & ~flagged)
        store_flags(flagged, flags, i, j, m, flag_pitch, ROWS, BLOCK)
    else:
        c1 = addend(source + 1, inside, ADDEND)
        x0, t0, n0 = _joined(at, plane, reduction, constants, read, exponent, safe, MODULI, LIMBS, REAL_PART)
        x1, t1, n1 = _joined(at, plane, reduction, constants, read, exponent, safe, MODULI, LIMBS, IMAGINARY_PART)
        for part in tl.static_range(PARTS):
            if part == 0:
                value, flagged, uncovered = decided(
                    f0, x0, t0, n0, -g0, x1, t1, n1, f1, c0, -g1, c1, bound, safe, kappa, MODE, PRECISION, PARTS
                )  # fmt: skip
            else:
                value, flagged, uncovered = decided(
                    g0, x0, t0, n0, f0, x1, t1, n1, g1, c0, f1, c1, bound, safe, kappa, MODE, PRECISION, PARTS
                )  # fmt: skip
            if TESTED:
                flagged = flagged | covered(
                    uncovered & inside, units, f0, g0, rows, columns, m, n, i, j, in_m, in_n, k, special, constants,
                    LEVELS,
                )  # fmt: skip
            if MODE == RAW:
                flagged = flagged | ~(tl.abs(value) + first * (tl.abs(f0) + tl.abs(g0)) < TOP)
            flagged = (flagged | special) & inside
            tl.store(target + part, value if PRECISION == 53 else value.to(tl.float32), mask=inside & ~flagged)
            store_flags(flagged, flags + part * m * flag_pitch, i, j, m, flag_pitch, ROWS, BLOCK)


@triton.jit
def _add_exactly(high, low, rest, size, f, x):
    """f·x added to a sum high + low, what is lost of it to rest, and |f·x| to its size; nothing where f is 0."""
    p = f * x
    total, first = two_sum(high, p)
    inner, lost = two_sum(low, first)
    inner, more = two_sum(inner, tl.fma(f, x, -p))
    used = tl.zeros(x.shape, tl.float64) + f != 0.0
    high, low = tl.where(used, total, high), tl.where(used, inner, low)
    # Parts of a product below 2^-800 may underflow: nothing is known of what is lost.
    missed = tl.where((x != 0.0) & ~(tl.abs(p) > 1.499696813895631e-241), float("inf"), tl.abs(lost) + tl.abs(more))
    return high, low, tl.where(used, rest + missed, rest), tl.where(used, size + tl.abs(p), size)


@triton.jit
def _rounded_total(f0, x0, f1, x1, f2, c0, f3, c1, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """(RN(f0·x0 + f1·x1 + f2·c0 + f3·c1), where that is undecided), the sum as float64 and, for float32, rounded to
    odd.

    Products are exact in two parts where they are far from underflow, and two-sums lose nothing: where `rest`, which
    adds up what does not fit in two numbers, is 0, high + low is the sum. Else it errs by at most rest, but for the
    rounding of rest itself.
    """
    high = tl.zeros(x0.shape, tl.float64)
    low = high
    rest = high
    size = high
    high, low, rest, size = _add_exactly(high, low, rest, size, f0, x0)
    high, low, rest, size = _add_exactly(high, low, rest, size, f2, c0)
    if PARTS == 2:
        high, low, rest, size = _add_exactly(high, low, rest, size, f1, x1)
        high, low, rest, size = _add_exactly(high, low, rest, size, f3, c1)
    high, low = two_sum(high, low)
    flagged = ~(size < 8.452712498170644e270) | ((rest != 0.0) & _sum_uncertified(high, low, 2.0 * rest, PRECISION))
    if PRECISION == 24:
        # To odd: the rounding to float32 that follows then sees that bits were lost, and the two roundings are one.
        step = tl.where((low > 0.0) == (high > 0.0), 1, -1)
        odd = (low != 0.0) & ((bits_of(high) & 1) == 0)
        high = tl.where(odd, (bits_of(high) + step).to(tl.float64, bitcast=True), high)
    return high, flagged


@triton.jit
def _near_top(value, reach, PRECISION: tl.constexpr, PRODUCT: tl.constexpr):
    """Where numbers within reach of a sum round to infinity in float32 and others do not."""
    if PRECISION == 24 and PRODUCT:
        return ~(tl.abs(tl.abs(value) - TOP) > reach)
    return value != value


@triton.jit(
    do_not_specialize=[
        "row_stride", "column_stride", "batch_step", "c_row", "c_column", "c_batch", "alpha", "alpha_i", "beta",
        "beta_i", "m", "n", "k", "flag_pitch",
    ]
)  # fmt: skip
def combine_values(
    products, out, row_stride, column_stride, batch_step, c, c_row, c_column, c_batch, flags, alpha, alpha_i, beta,
    beta_i, m, n, k, flag_pitch, PRODUCT: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    ADDEND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOWER: tl.constexpr = False,
):  # fmt: skip
    """The same of X = products (batch, m, n), contiguous, of out's type; PRODUCT: whether there is one (else it is 0).
    k: terms.
    """
    LEAST: tl.constexpr = 3.5601181736115222e-307 if PRECISION == 53 else 1.88079096131566e-37  # 2^-1018, 2^-122
    batch, i, j = tile_of(m, n, ROWS, BLOCK)
    if LOWER:
        if tl.max(i, 0) < tl.min(j, 0):
            return
    out += batch * batch_step
    c += batch * c_batch
    inside = (i < m)[:, None] & (j < n)[None, :]
    target = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    source = c + i.to(tl.int64)[:, None] * c_row + j.to(tl.int64)[None, :] * c_column
    at = products + ((batch * m + i.to(tl.int64))[:, None] * n + j[None, :]) * PARTS
    f0, g0, f1, g1 = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    c0 = addend(source, inside, ADDEND)
    x0 = addend(at, inside, PRODUCT)
    small = wide(k).to(tl.float64) * LEAST
    if not PRODUCT:
        small = small * 0.0
    small = tl.where(f0 * f0 + g0 * g0 > 1.0, small, small * 0.0)
    # k·2^104; 2^80 for roundings here.
    reach = (tl.abs(f0) + tl.abs(g0)) * (wide(k).to(tl.float64) * 20282409603651670423947251286016.0 + SPARE) + 2.0**80
    flags += batch * PARTS * m * flag_pitch
    if PARTS == 1:
        value, flagged = _rounded_total(f0, x0, f0, x0, f1, c0, f0, c0, PRECISION, PARTS)
        flagged = (flagged | (tl.abs(x0) < small) | _near_top(value, reach, PRECISION, PRODUCT)) & inside
        tl.store(target, value if PRECISION == 53 else value.to(tl.float32), mask=inside & ~flagged)
        store_flags(flagged, flags, i, j, m, flag_pitch, ROWS, BLOCK)
    else:
        c1 = addend(source + 1, inside, ADDEND)
        x1 = addend(at + 1, inside, PRODUCT)
        tiny = (tl.abs(x0) < small) | (tl.abs(x1) < small)
        for part in tl.static_range(PARTS):
            if part == 0:
                value, flagged = _rounded_total(f0, x0, -g0, x1, f1, c0, -g1, c1, PRECISION, PARTS)
            else:
                value, flagged = _rounded_total(g0, x0, f0, x1, g1, c0, f1, c1, PRECISION, PARTS)
            flagged = (flagged | tiny | _near_top(value, reach, PRECISION, PRODUCT)) & inside
            tl.store(target + part, value if PRECISION == 53 else value.to(tl.float32), mask=inside & ~flagged)
            store_flags(flagged, flags + part * m * flag_pitch, i, j, m, flag_pitch, ROWS, BLOCK)
