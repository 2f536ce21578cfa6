"""Repair: tiles that the fast join left are joined exactly, and their flagged entries recomputed until each is proved
or exact. Nothing leaves the device.

Where a row or column is not finite, an entry is what IEEE's sum gives. Every other entry is joined once more, exactly,
ties and the ends of the range included. Those whose test is still undecided are left to `strips`, as flags.

Programs walk over the words of flags, a bit a tile. A word without flags costs four bytes. An exact entry takes about
20·k operations for each limb that its products touch (`cuda.kernels.exact`). Ordinary data touch ten limbs.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import EXACT, SCHEME_VALUE, SPECIAL
from prismm.cuda.kernels.exact import exact_value, special_value
from prismm.cuda.kernels.expansion import expand, round_expansion
from prismm.cuda.kernels.fp64 import (
    LOW32,
    STATISTICS,
    bit_number,
    wide,
)
from prismm.cuda.residues.kernels.join_exact import (
    RAW,
    REAL,
    REAL_PART,
    ROUNDING,
    bound_terms,
    digit_at,
    join_tile,
    store_flags,
)
from prismm.cuda.residues.kernels.join_fast import ORDINARY, join_closely

NATIVE = tl.constexpr(3)
"""Marks of a native product: entries that are not finite, whatever their rows and columns hold."""


FEW = tl.constexpr(8)
"""Uncertified entries of a tile that are recomputed one by one where roundings are asked for."""


@triton.jit
def strip_of(w, words, blocks, PARTS: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr):
    """Part, matrix of the batch, first row and first column of the strip whose flags are word w, by (batch, parts,
    strips, blocks), so many words a part.
    """
    within = w % words
    return w // words % PARTS, (w // words // PARTS).to(tl.int64), within // blocks * STRIP, within % blocks * COLUMNS


@triton.jit
def tiles_of(flags, w, mask):
    """Bits of the tiles of a strip that are flagged."""
    return tl.load(flags + w, mask=mask, other=0) & (ORDINARY - 1)


@triton.jit
def mine_of(word, units):
    """The tiles of a strip that a program sees to, where so many share the strip: all, or one."""
    word = word & (ORDINARY - 1)
    return tl.where(units > 1, word & ((word * 0 + 1) << (tl.program_id(0) % units)), word)


@triton.jit
def take_back(flags, w, bit):
    """Clear a tile's flag, whatever others clear meanwhile, and with the last one whether the strip is ordinary."""
    kept = ~bit.to(tl.int32)
    left = tl.atomic_and(flags + w, kept, sem="relaxed") & kept & (ORDINARY - 1)
    if left == 0:
        tl.atomic_and(flags + w, 0, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "out_batch", "row_stride", "m", "n", "q", "row_pitch", "plane", "blocks", "words", "batches", "units",
    ]
)  # fmt: skip
def rejoin_tiles(
    out, out_batch, row_stride, column_stride, flags, digits, rows, columns, reduction, third, m, n, q, row_pitch,
    plane, blocks, words, batches, row_batches, column_batches, units, MODULI: tl.constexpr, MODE: tl.constexpr,
    PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Join the flagged tiles of ordinary strips to float64 from sums in three parts, and take back the flags of those
    that are certified so. A kernel of few registers, of which many run at once; `finish` sees to the rest.

    Arguments are those of `finish`.
    """
    groups = tl.num_programs(0) // units
    for w in range(tl.program_id(0) // units, words * batches * PARTS, groups):
        word = tl.load(flags + w).to(tl.int64)
        if (word & ORDINARY) != 0:
            word = mine_of(word, units)
            part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
            while word != 0:
                lowest = word & -word
                word = word ^ lowest
                bit = bit_number(lowest).to(tl.int32)
                others = tl.full([], 0, tl.int32)
                # PART is a constant of the code that is inlined, so each part has a branch of its own.
                for which in tl.static_range(PARTS):
                    if part == which:
                        not_certified = join_closely(
                            digits + batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI),
                            out + batch * out_batch + part, row_stride, column_stride,
                            rows + batch % row_batches * STATISTICS * m,
                            columns + batch % column_batches * STATISTICS * n, reduction, third, m, n,
                            i0 + bit * TILE, j0, q, row_pitch, plane, MODULI, MODE,
                            REAL if PARTS == 1 else REAL_PART + which, TILE, COLUMNS, True,
                        )  # fmt: skip
                        others += tl.max(tl.max(not_certified.to(tl.int32), 1), 0)
                if others == 0:
                    take_back(flags, w, lowest)


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "out_batch", "row_stride", "m", "n", "k",
        "terms", "q", "row_pitch", "plane", "blocks", "words", "batches", "row_batches", "column_batches", "units",
    ]
)  # fmt: skip
def finish(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
    entry_flags, uncertified_flags, digits, rows, columns, constants, reduction, third, counts, uncertified_count, m,
    n, k, terms, q, row_pitch, plane, blocks, words, batches, row_batches, column_batches, units, MODULI: tl.constexpr,
    LIMBS: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, LEVELS: tl.constexpr,
    TILE: tl.constexpr, STRIP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    WORDS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Join the flagged tiles and set what is not finite. counts[SPECIAL], [EXACT], [SCHEME_VALUE] grow by what was
    done. APART: uncertified entries are left to `strips.repair_strips`, as flags, a bit a TILE of rows, and in
    uncertified_flags (words, STRIP, COLUMNS / 32), a bit an entry; uncertified_count grows by their number.

    flags: a word a strip of STRIP rows and COLUMNS columns, by (batch, parts, strips, blocks): a bit a TILE of rows,
    and whether the strip is ordinary. units: programs that share the tiles of a strip, one each; 1 where strips are
    many. entry_flags: (programs, max(TILE, ROWS), COLUMNS / 32) words of workspace. a, b: where complex, the real
    numbers behind them, imaginary parts one element after the real ones. digits, rows, columns, constants: as for
    `join_exact.join_tile`; third: as for `join_fast.join_closely`.
    """
    lanes = tl.arange(0, WORDS)
    entry_flags += tl.program_id(0) * ((TILE if TILE > ROWS else ROWS) * (COLUMNS // 32))
    # Neighbouring strips tend to be uncertified together, so different programs take them.
    total = words * batches * PARTS
    step = tl.num_programs(0) // units
    for start in range(tl.program_id(0) // units, total, step * WORDS):
        some = tl.load(flags + start + lanes * step, mask=lanes * step < total - start, other=0)
        if tl.max((some != 0).to(tl.int32), 0) > 0:
            for w in range(start, tl.minimum(start + WORDS * step, total), step):
                word = tl.load(flags + w).to(tl.int64)
                ordinary = (word & ORDINARY) != 0
                word = mine_of(word, units)
                part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
                how_many = tl.full([], 0, tl.int64)
                while word != 0:
                    lowest = word & -word
                    word = word ^ lowest
                    bit = bit_number(lowest).to(tl.int32)
                    some_left = _finish_tile(
                        a + batch * a_batch, a_row, a_step, b + batch * b_batch, b_column, b_step,
                        out + batch * out_batch + part, row_stride, column_stride, entry_flags,
                        uncertified_flags + (wide(w) * STRIP + bit * TILE) * (COLUMNS // 32),
                        digits + batch * wide(plane) * (MODULI if PARTS == 1 else 3 * MODULI),
                        rows + batch % row_batches * STATISTICS * m, columns + batch % column_batches * STATISTICS * n,
                        constants, reduction, third, counts, m, n, i0 + bit * TILE, j0, k, terms, q,
                        row_pitch, plane, part, ordinary, MODULI, LIMBS, MODE, PRECISION, PARTS, LEVELS, TILE, ROWS,
                        COLUMNS, BLOCK, APART,
                    )  # fmt: skip
                    how_many += some_left
                    if APART:
                        if some_left == 0:
                            take_back(flags, w, lowest)
                if APART:
                    if how_many > 0:
                        tl.atomic_add(uncertified_count, how_many, sem="relaxed")


@triton.jit
def _finish_tile(
    a, a_row, a_step, b, b_column, b_step, out, row_stride, column_stride, entry_flags, uncertified_flags, digits,
    rows, columns, constants, reduction, third, counts, m, n, i_first, j0, k, terms, q, row_pitch, plane, part,
    ordinary, MODULI: tl.constexpr, LIMBS: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, LEVELS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Returns how many entries are flagged in uncertified_flags."""
    # Threads may still read flags of the tile before, which this one overwrites.
    tl.debug_barrier()
    others = tl.full([], 0, tl.int32)
    not_certified = tl.full([], 1, tl.int32)
    if PRECISION == 53:
        if ordinary:
            for which in tl.static_range(PARTS):
                if part == which:
                    needs_repair = join_closely(
                        digits, out, row_stride, column_stride, rows, columns, reduction, third, m, n, i_first, j0, q,
                        row_pitch, plane, MODULI, MODE, REAL if PARTS == 1 else REAL_PART + which, TILE, COLUMNS, False,
                    )  # fmt: skip
                    not_certified = store_flags(needs_repair, entry_flags, TILE, COLUMNS)
                    if MODE == ROUNDING:
                        # Few flags are as good as those of `join_tile`, which rounds many of a kind at once.
                        how_many = tl.sum(tl.sum(needs_repair.to(tl.int32), 1), 0)
                        if how_many <= FEW:
                            store_flags(needs_repair, uncertified_flags, TILE, COLUMNS)
                            others += how_many
                            not_certified = how_many * 0
    if not_certified > 0:
        for i0 in range(i_first, tl.minimum(i_first + TILE, m), ROWS):
            tl.debug_barrier()
            needs_repair = not_certified
            for which in tl.static_range(PARTS):
                if part == which:
                    needs_repair, some_left = join_tile(
                        digits, out, row_stride, column_stride, entry_flags,
                        uncertified_flags + (i0 - i_first) * (COLUMNS // 32), rows, columns, constants, reduction,
                        counts, m, n, i0, j0, terms, q, row_pitch, plane, MODULI, LIMBS, MODE, PRECISION,
                        REAL if PARTS == 1 else REAL_PART + which, LEVELS, ROWS, COLUMNS, APART,
                    )  # fmt: skip
                    others += some_left
            if needs_repair > 0:
                # Flags are read by all threads, and each was stored by one.
                tl.debug_barrier()
                for x in range(0, ROWS * (COLUMNS // 32)):
                    word = tl.load(entry_flags + x).to(tl.int64) & LOW32
                    i = wide(i0 + x // (COLUMNS // 32))
                    while word != 0:
                        lowest = word & -word
                        word = word ^ lowest
                        j = j0 + x % (COLUMNS // 32) * 32 + bit_number(lowest)
                        _repair_entry(
                            a + i * a_row, a_step, b + j * b_column, b_step, out + i * row_stride + j * column_stride,
                            digits + i * row_pitch + j, plane, i, j, rows, columns, constants, reduction, counts, m, n,
                            k, q, part, MODULI, LIMBS, MODE, PRECISION, PARTS, BLOCK,
                        )  # fmt: skip
    return others


@triton.jit(noinline=True)
def _repair_entry(
    a, a_step, b, b_step, target, digits, plane, i, j, rows, columns, constants, reduction, counts, m, n, k, q, part,
    MODULI: tl.constexpr, LIMBS: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Set an entry of a row or column that is not finite, or of which RAW leaves overflow undecided."""
    value = special_value(a, a_step, b, b_step, rows, columns, m, n, i, j, k, part, PARTS, BLOCK)
    path = tl.full([], SPECIAL, tl.int32)
    if value == 0.0:
        value = exact_value(a, a_step, b, b_step, k, part, PARTS, PRECISION, BLOCK)
        path = tl.full([], EXACT, tl.int32)
        if MODE == RAW:
            # Law 4: the scheme's own value, unless the exact one disagrees about infinity.
            candidate = _joined(
                digits, plane, i, j, rows, columns, constants, reduction, m, n, q, part, MODULI, LIMBS, PRECISION, PARTS
            )
            infinite = tl.abs(value) == float("inf")
            if (infinite == (tl.abs(candidate) == float("inf"))) & (~infinite | (candidate == value)):
                value = candidate
                path = tl.full([], SCHEME_VALUE, tl.int32)
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32))
    tl.atomic_add(counts + path, 1, sem="relaxed")


@triton.jit
def _joined(
    digits, plane, i, j, rows, columns, constants, reduction, m, n, q, part, MODULI: tl.constexpr, LIMBS: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The scheme's value of one entry whose row and column are finite."""
    s0 = tl.full([], 0.0, tl.float64)
    s1 = s0
    s2 = s0
    s3 = s0
    s4 = s0
    for t in range(MODULI):
        d = tl.full([], 0, tl.int32)
        for which in tl.static_range(PARTS):
            if part == which:
                d = digit_at(digits, plane, t, reduction, t >= 0, MODULI, REAL if PARTS == 1 else REAL_PART + which)
        d = d.to(tl.float64)
        w = constants + (9 + 5 * t)
        # All five limbs, whatever LIMBS is: those that P does not take have weights of 0.
        s0 += d * tl.load(w)
        s1 += d * tl.load(w + 1)
        s2 += d * tl.load(w + 2)
        s3 += d * tl.load(w + 3)
        s4 += d * tl.load(w + 4)
    h, low, tail = expand(s0, s1, s2, s3, s4, constants + 4, constants + 2, LIMBS)
    _, a_shift, _, _, _, _ = bound_terms(rows, m, i, i < m, q, True)
    _, b_shift, _, _, _, _ = bound_terms(columns, n, j, j < n, q, True)
    return round_expansion(h, low, tail, 40 * (LIMBS - 3) - (a_shift + b_shift), PRECISION)
