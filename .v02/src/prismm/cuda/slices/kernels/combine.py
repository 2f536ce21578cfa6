"""The epilogue of gemm on products of slices: alpha·X + beta·C, rounded once and certified as a whole.

X is joined from its digits exactly (`join.expand_slices`); the sum, its tests and the entries they leave uncertified
are those of `gemm.kernels.combine`: flagged entries are not written, and `gemm.kernels.repair.recompute_exact` sums
them; in RAW `recompute_slices`, from all of V, where rounding or overflow is undecided. The bound of X is that of
`join`. The two parts of a complex X are real products with vectors of their own, of which the larger bound counts.

Per entry G + 3 bytes read (of β = 8), C read, 4 or 8 written, a bit; operations: those of the join and about 60.
"""

import triton
import triton.language as tl

from prismm.cuda.gemm.kernels.combine import addend, covered, decided, factor_of, store_flags, tile_of
from prismm.cuda.kernels.fp64 import NONFINITE, STATISTICS, power_of_two, wide
from prismm.cuda.residues.kernels.join_exact import MAGNITUDE, RAW
from prismm.cuda.slices.kernels.adaptive import CUTS
from prismm.cuda.slices.kernels.join import expand_slices, slice_bound
from prismm.cuda.slices.kernels.pairs import expand_pairs, pairs_bound
from prismm.cuda.slices.kernels.split import EXTRAS

LEVELS = tl.constexpr(5)
"""Thresholds of large elements that are counted."""


@triton.jit
def _joined(
    low, top, at, plane, blocks, batches, rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, read, terms,
    SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr, ADAPTIVE: tl.constexpr,
    MODE: tl.constexpr,
):  # fmt: skip
    """(X's two numbers, where it is not 0, its bound in units of A'B' and as it is, special, safe) of a tile of a real
    product. Where the scale is not safe X is 0: V is an integer below 2^300, so that elsewhere nothing underflows.
    ADAPTIVE, V is safe from 2^-120 on, so that its second number loses less than 2^-104 of it, and where `rest` is
    below 2^-100 of it: the sum's own error, taken for 2^-96 of its terms, is less than half of that.
    """
    LIFT: tl.constexpr = 0 if ADAPTIVE else BITS * (2 * SLICES - 1 - GROUPS)
    if ADAPTIVE:
        units, row_e, column_e, row_shift, column_shift = pairs_bound(
            rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, terms, SLICES, GROUPS
        )  # fmt: skip
    else:
        units, row_e, column_e, row_shift, column_shift = slice_bound(
            rows, row_extras, columns, column_extras, m, n, i, j, in_m, in_n, terms, SLICES, GROUPS, BITS, TRUNCATED,
            MODE,
        )  # fmt: skip
    special = (row_e >= NONFINITE)[:, None] | (column_e >= NONFINITE)[None, :]
    shift = tl.where(special, 0, row_shift[:, None] + column_shift[None, :])
    safe = (shift > -850) & (shift < 850)
    if ADAPTIVE:
        h, middle, tail, rest, whole = expand_pairs(
            top + at, plane, blocks, batches, row_extras, column_extras, m, n, i, j, in_m, in_n, read, SLICES, GROUPS
        )  # fmt: skip
        # 2^-100, 2^-120
        near = (h == 0.0) | (tl.abs(h) >= 7.52316384526264e-37)
        safe = safe & whole & (rest <= tl.abs(h) * 7.888609052210118e-31) & near
    else:
        h, middle, tail = expand_slices(low + at, top + at, plane, blocks, read, GROUPS, BITS, TRUNCATED)
    # The inner `where` keeps `power_of_two` within its range in entries that the outer one drops.
    scale = tl.where(safe, power_of_two(tl.where(safe, LIFT - shift, 0)), 0.0)
    bound = tl.where(safe, units * scale, units)
    return h * scale, (middle + tail) * scale, h != 0.0, units * (2.0**LIFT), bound, special, safe


@triton.jit(
    do_not_specialize=[
        "row_stride", "column_stride", "batch_step", "c_row", "c_column", "c_batch", "alpha", "alpha_i", "beta",
        "beta_i", "m", "n", "terms", "row_pitch", "plane", "blocks", "flag_pitch", "row_batches", "column_batches",
    ]
)  # fmt: skip
def combine_slices(
    low, top, low_i, top_i, out, row_stride, column_stride, batch_step, c, c_row, c_column, c_batch, flags, rows,
    row_extras, columns, column_extras, rows_i, row_extras_i, columns_i, column_extras_i, constants, alpha, alpha_i,
    beta, beta_i, m, n, terms, row_pitch, plane, blocks, flag_pitch, row_batches, column_batches, SLICES: tl.constexpr,
    GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr, ADAPTIVE: tl.constexpr, TESTED: tl.constexpr,
    MODE: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, ADDEND: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out = alpha·X + beta·C of ROWS rows and BLOCK columns where nothing is flagged; flags (batch, parts, m, pitch).

    low, top, rows, columns and the extras: as for `join.join_slices`; of complex numbers those of the real part,
    and of the imaginary one. The other arguments: as for `combine.combine_digits`. ADAPTIVE: top and the extras are
    the products and the cuts of `pairs.join_pairs`.
    """
    LOW_BLOCKS: tl.constexpr = 0 if ADAPTIVE else GROUPS - 1
    OF_VECTOR: tl.constexpr = CUTS * SLICES if ADAPTIVE else EXTRAS
    batches = tl.maximum(row_batches, column_batches)
    batch, i, j = tile_of(m, n, ROWS, BLOCK)
    out += batch * batch_step
    c += batch * c_batch
    flags += batch * PARTS * m * flag_pitch
    below, above = batch * blocks * LOW_BLOCKS * wide(plane), batch * blocks * wide(plane)
    r, s = (batch % row_batches) * STATISTICS * m, (batch % column_batches) * STATISTICS * n
    u, v = (batch % row_batches) * OF_VECTOR * m, (batch % column_batches) * OF_VECTOR * n
    in_m, in_n = i < m, j < n
    inside = in_m[:, None] & in_n[None, :]
    read = in_m[:, None] & (j < row_pitch)[None, :]
    at = i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    target = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    source = c + i.to(tl.int64)[:, None] * c_row + j.to(tl.int64)[None, :] * c_column
    f0, g0, f1, g1 = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    kappa = tl.load(constants)
    # Sums that stay four binades below the end of the range do not overflow, whatever their own roundings.
    TOP: tl.constexpr = 1.1235582092889474e307 if PRECISION == 53 else 2.1267647932558654e37  # 2^1020, 2^124
    x0, t0, n0, units, bound, special, safe = _joined(
        low + below, top + above, at, plane, blocks, batches, rows + r, row_extras + u, columns + s, column_extras + v,
        m, n, i, j, in_m, in_n, read, terms, SLICES, GROUPS, BITS, TRUNCATED, ADAPTIVE, MODE,
    )  # fmt: skip
    c0 = addend(source, inside, ADDEND)
    x1, t1, n1, c1 = x0, t0, n0, c0
    if PARTS == 2:
        x1, t1, n1, more, other, _, _ = _joined(
            low_i + below, top_i + above, at, plane, blocks, batches, rows_i + r, row_extras_i + u, columns_i + s,
            column_extras_i + v, m, n, i, j, in_m, in_n, read, terms, SLICES, GROUPS, BITS, TRUNCATED, ADAPTIVE, MODE,
        )  # fmt: skip
        units, bound = tl.maximum(units, more), tl.maximum(bound, other)
        c1 = addend(source + 1, inside, ADDEND)
    for part in tl.static_range(PARTS):
        if PARTS == 1:
            a0, a1, b0, b1 = f0, f0 * 0.0, f1, f1 * 0.0
        elif part == 0:
            a0, a1, b0, b1 = f0, -g0, f1, -g1
        else:
            a0, a1, b0, b1 = g0, f0, g1, f1
        value, flagged, uncovered = decided(
            # In RAW the sum is the scheme's own, whose rounding the bound has no part in; overflow is asked below, with
            # the bound.
            a0, x0, t0, n0, a1, x1, t1, n1, b0, c0, b1, c1, bound if MODE != RAW else bound * 0.0, safe, kappa, MODE,
            PRECISION, PARTS,
        )  # fmt: skip
        if MODE == RAW:
            flagged = flagged | ~(tl.abs(value) + bound * (tl.abs(a0) + tl.abs(a1)) < TOP)
        if MODE == MAGNITUDE and TESTED:
            flagged = flagged | covered(
                uncovered & inside, units, a0, a1, rows + r, columns + s, m, n, i, j, in_m, in_n, terms, special,
                constants, LEVELS,
            )  # fmt: skip
        flagged = (flagged | special) & inside
        # Flagged entries keep what they hold: C may be the result itself, and the repair reads it once more.
        tl.store(target + part, value if PRECISION == 53 else value.to(tl.float32), mask=inside & ~flagged)
        store_flags(flagged, flags + part * m * flag_pitch, i, j, m, flag_pitch, ROWS, BLOCK)
