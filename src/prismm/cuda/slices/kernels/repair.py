"""Repair of slices: flagged entries are recomputed one by one until each is proved or exact.

The device functions are those of `residues.kernels.repair`. Where a row or column is not finite, an entry is what
IEEE's sum gives. Every other entry is joined once more, exactly, ties and the ends of the range included (ADAPTIVE:
from its pairs, `pairs`). If its test is still undecided, a lower bound of |a||b| may prove it. If not, it is summed in
twice float64's precision; and if that decides no rounding either, exactly.

Programs of one warp walk over the flags, 32 rows of 8 words of 32 entries. An uncertified entry reads 16·k bytes.
Columns that lie across rows cost 32·k bytes more, as memory is read. An entry takes about 20·k operations,
and as many again for each limb that an exact sum touches.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import BY_MAGNITUDE, EXACT, SCHEME_VALUE, SPECIAL
from prismm.cuda.kernels.exact import exact_value, special_value
from prismm.cuda.kernels.expansion import round_expansion
from prismm.cuda.kernels.fp64 import STATISTICS, two_sum, wide
from prismm.cuda.residues.kernels.entries import doubled, magnitude_proves, magnitude_sum
from prismm.cuda.residues.kernels.join_exact import MAGNITUDE, RAW, ROUNDING, judge, spread
from prismm.cuda.slices.kernels.adaptive import CUTS
from prismm.cuda.slices.kernels.join import Q, expand_slices, slice_bound
from prismm.cuda.slices.kernels.pairs import expand_pairs, pairs_bound, pairs_value
from prismm.cuda.slices.kernels.split import EXTRAS

SIDE, SPAN = tl.constexpr(32), tl.constexpr(8)
"""Rows of a tile, words of flags that a program, of one warp, reads at once."""

LAUNCH = {"num_warps": 1, "enable_fp_fusion": False}
LANES = 256


@triton.jit
def _joined(
    a, a_step, b, b_step, low, top, plane, blocks, batches, i, j, rows, row_extras, columns, column_extras, constants,
    m, n, k, SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, TRUNCATED: tl.constexpr,
    ADAPTIVE: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(value, proved) of one entry whose row and column are finite: joined once more, exactly."""
    LIFT: tl.constexpr = 0 if ADAPTIVE else BITS * (2 * SLICES - 1 - GROUPS)
    # Tensors of one element, so that the functions of tiles serve one entry too.
    one = tl.arange(0, 1)
    inside = one == 0
    if ADAPTIVE:
        bound, row_e, column_e, row_shift, column_shift = pairs_bound(
            rows, row_extras, columns, column_extras, m, n, i + one, j + one, inside, inside, k, SLICES, GROUPS
        )  # fmt: skip
        h, m_part, t, lost, _ = expand_pairs(
            top + one[:, None] + one[None, :], plane, blocks, batches, row_extras, column_extras, m, n, i + one,
            j + one, inside, inside, inside[:, None] & inside[None, :], SLICES, GROUPS,
        )  # fmt: skip
        h, m_part, t, lost = tl.sum(h, 1), tl.sum(m_part, 1), tl.sum(t, 1), tl.sum(tl.sum(lost, 1), 0)
    else:
        bound, row_e, column_e, row_shift, column_shift = slice_bound(
            rows, row_extras, columns, column_extras, m, n, i + one, j + one, inside, inside, k, SLICES, GROUPS, BITS,
            TRUNCATED, MODE,
        )  # fmt: skip
        h, m_part, t = expand_slices(low + one, top + one, plane, blocks, inside, GROUPS, BITS, TRUNCATED)
    bound = tl.sum(tl.sum(bound, 1), 0)
    a_e, b_e, shift = tl.sum(row_e, 0), tl.sum(column_e, 0), tl.sum(row_shift + column_shift, 0)
    h, rest, tail = tl.sum(h, 0), tl.sum(m_part, 0), tl.sum(t, 0)
    exponent = LIFT - shift
    _, hard, failed = judge(h, rest, tail, bound, exponent, constants, MODE, PRECISION)
    if ADAPTIVE:
        value = pairs_value(
            top, plane, blocks, batches, row_extras, column_extras, m, n, i, j, exponent, SLICES, GROUPS, PRECISION
        )  # fmt: skip
    else:
        value = round_expansion(h, rest, tail, exponent, PRECISION)
    if MODE != ROUNDING:
        # Undecided also where some number within the bound overflows and another does not.
        err = spread(bound, rest, tail)
        # What the parts do not hold may have either sign; twice, for its own rounding.
        if ADAPTIVE:
            err += 2.0 * lost
        below_h, below_low = two_sum(h, rest - err)
        above_h, above_low = two_sum(h, rest + err)
        first = round_expansion(below_h, below_low, below_low * 0.0, exponent, PRECISION)
        last = round_expansion(above_h, above_low, above_low * 0.0, exponent, PRECISION)
        infinite = (tl.abs(first) == float("inf")) | (tl.abs(last) == float("inf"))
        straddles = hard & (bound != 0.0) & infinite & (first != last)
        failed = straddles if MODE == RAW else failed | straddles
    if MODE == MAGNITUDE:
        if failed:
            total, hit = magnitude_sum(a, a_step, a_e, b, b_step, b_e, k, 0, 1, BLOCK)
            failed = ~magnitude_proves(total, hit, bound, a_e + b_e, value, exponent, constants, PRECISION)
    return value, ~failed


@triton.jit
def _repair_entry(
    a, a_step, b, b_step, target, low, top, plane, blocks, batches, i, j, rows, row_extras, columns, column_extras,
    constants, counts, m, n, k, SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
    TRUNCATED: tl.constexpr, ADAPTIVE: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # An infinity or a NaN makes every entry of its vector infinite or NaN, so that 0 can stand for none.
    candidate = special_value(a, a_step, b, b_step, rows, columns, m, n, i, j, k, 0, 1, BLOCK)
    proved = candidate != 0.0
    path = tl.full([], SPECIAL, tl.int32)
    # The bound of slices has just left this rounding open, so twice the precision comes before another join.
    if MODE == ROUNDING:
        if not proved:
            candidate, proved = doubled(a, a_step, b, b_step, i, j, rows, columns, m, n, k, Q, 0, PRECISION, 1, BLOCK)
            path = tl.full([], EXACT, tl.int32)
    if not proved:
        candidate, proved = _joined(
            a, a_step, b, b_step, low, top, plane, blocks, batches, i, j, rows, row_extras, columns, column_extras,
            constants, m, n, k, SLICES, GROUPS, BITS, TRUNCATED, ADAPTIVE, MODE, PRECISION, BLOCK,
        )  # fmt: skip
        path = tl.full([], SCHEME_VALUE if MODE == RAW else BY_MAGNITUDE, tl.int32)
    if MODE == MAGNITUDE:
        if not proved:  # its exact value, which twice the precision gives in a tenth of the time
            candidate, proved = doubled(a, a_step, b, b_step, i, j, rows, columns, m, n, k, Q, 0, PRECISION, 1, BLOCK)
            path = tl.full([], EXACT, tl.int32)
    value = candidate
    if not proved:
        value = exact_value(a, a_step, b, b_step, k, 0, 1, PRECISION, BLOCK)
        path = tl.full([], EXACT, tl.int32)
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32))
    tl.atomic_add(counts + path, 1, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "out_batch", "row_step", "column_step", "m",
        "n", "k", "row_pitch", "plane", "blocks", "flag_pitch", "batches", "row_batches", "column_batches",
    ]
)  # fmt: skip
def repair_slices(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_step, column_step, flags, low, top,
    rows, row_extras, columns, column_extras, constants, counts, m, n, k, row_pitch, plane, blocks, flag_pitch,
    batches, row_batches, column_batches, SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
    TRUNCATED: tl.constexpr, ADAPTIVE: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Settle the flagged entries of out (batches, m, n); counts[SPECIAL], [EXACT], [BY_MAGNITUDE], [SCHEME_VALUE] grow
    by what was done. low, top, rows, columns and the extras: as for `join.join_slices`; ADAPTIVE, top and the extras
    are the products and the cuts of `pairs.join_pairs`.
    """
    LOW_BLOCKS: tl.constexpr = 0 if ADAPTIVE else GROUPS - 1
    OF_VECTOR: tl.constexpr = CUTS * SLICES if ADAPTIVE else EXTRAS
    tall, across = tl.cdiv(m, SIDE), tl.cdiv(flag_pitch, SPAN)
    for block in range(tl.program_id(0), tall * across * batches, tl.num_programs(0)):
        batch = (block // (tall * across)).to(tl.int64)
        i0 = block % (tall * across) // across * SIDE
        w0 = block % across * SPAN
        i = i0 + tl.arange(0, SIDE)
        w = w0 + tl.arange(0, SPAN)
        at = flags + batch * m * flag_pitch + i.to(tl.int64)[:, None] * flag_pitch + w[None, :]
        pending = tl.load(at, mask=(i < m)[:, None] & (w < flag_pitch)[None, :], other=0)
        index = tl.arange(0, SIDE)[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
        first = tl.min(tl.where(pending != 0, index, SIDE * SPAN))
        while first < SIDE * SPAN:
            x = wide(i0 + first // SPAN)
            word = tl.sum(tl.where(index == first, pending, 0)).to(tl.int64) & 0xFFFFFFFF
            pending = tl.where(index == first, 0, pending)
            while word != 0:
                lowest = word & -word
                word = word ^ lowest
                # The bit's number from the exponent of its value, exact below 2^53: one conversion instead of a search.
                bit = (lowest.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
                y = wide(w0 + first % SPAN) * 32 + bit
                unit, entry = batch * blocks * wide(plane), x * row_pitch + y
                _repair_entry(
                    a + batch * a_batch + x * a_row, a_step, b + batch * b_batch + y * b_column, b_step,
                    out + batch * out_batch + x * row_step + y * column_step,
                    low + unit * LOW_BLOCKS + entry, top + unit + entry, plane, blocks, batches, x, y,
                    rows + batch % row_batches * STATISTICS * m, row_extras + batch % row_batches * OF_VECTOR * m,
                    columns + batch % column_batches * STATISTICS * n,
                    column_extras + batch % column_batches * OF_VECTOR * n, constants, counts, m, n, k, SLICES, GROUPS,
                    BITS, TRUNCATED, ADAPTIVE, MODE, PRECISION, BLOCK,
                )  # fmt: skip
            first = tl.min(tl.where(pending != 0, index, SIDE * SPAN))
