"""Entries that an epilogue of gemm flagged, made again by more moduli if these are many (`residues.kernels.many`). What
stays flagged is left to `repair.recompute_exact`.

The kernel makes entries again if alpha is real, so that each part of a sum needs one part of AB only. If C and AB
cancel, the number of moduli grows with the bits that cancel.

All programs count flags first. If there are many, programs copy them into strips, which `many` works on, and leave out
the flags of rows and columns that are not finite. At the end they clear the flags of proved entries.

If few entries are flagged, the kernel reads the flags alone, one bit per entry.
"""

import triton
import triton.language as tl

from prismm.cuda.gemm.kernels.combine import factor_of
from prismm.cuda.kernels.fp64 import EXPONENT, LARGEST, STATISTICS, wide
from prismm.cuda.residues.kernels.magnitudes import count_bits
from prismm.cuda.residues.kernels.many import make_again
from prismm.cuda.residues.kernels.many_choice import CERTIFY, LAST, LISTED, LISTING
from prismm.cuda.residues.kernels.many_join import EXPANDED
from prismm.cuda.residues.kernels.many_tile import SHARE
from prismm.cuda.residues.kernels.repair import strip_of
from prismm.cuda.residues.kernels.tickets import finished, take, wait_for

SPAN = tl.constexpr(1024)
"""A program counts the flags in so many words per ticket."""

# These are counters of `many_choice` for work that gemm does not have.
COUNT, COPY, FLAGGED, TAKE_BACK = (tl.constexpr(x.value) for x in (CERTIFY, LISTING, LISTED, LAST))
"""COUNT has tickets for counting SPAN words each, and COPY for copying a strip each. The counter behind each tells how
many of its tickets are done. FLAGGED is the number of flags. TAKE_BACK has tickets for clearing flags of a strip each,
for which no program waits.
"""


@triton.jit
def _places(w, flags, rows, columns, m, n, pitch, blocks, words, row_batches, column_batches, PARTS: tl.constexpr,
            STRIP: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(addresses, whether they lie inside, bits of entries of finite rows and columns) of a strip's words of flags, of
    shape (STRIP, COLUMNS / 32).
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
    i, j, word_at = i0 + tl.arange(0, STRIP), j0 + tl.arange(0, COLUMNS), j0 // 32 + tl.arange(0, WIDTH)
    place = flags + ((batch * PARTS + part) * m + i).to(tl.int64)[:, None] * pitch + word_at[None, :]
    there = (i < m)[:, None] & (word_at < pitch)[None, :]
    of_rows = rows + batch % row_batches * STATISTICS * m + LARGEST * m
    of_columns = columns + batch % column_batches * STATISTICS * n + LARGEST * n
    finite_row = tl.load(of_rows + i, mask=i < m, other=EXPONENT) < EXPONENT
    finite_column = tl.load(of_columns + j, mask=j < n, other=EXPONENT) < EXPONENT
    bits = tl.reshape(finite_column.to(tl.int32), [WIDTH, 32]) << tl.arange(0, 32)[None, :]
    return place, there, tl.where(finite_row[:, None], tl.sum(bits, 1)[None, :], 0)


@triton.jit(noinline=True)
def _copy_strip(
    w, flags, tiles, entry_flags, rows, columns, m, n, pitch, blocks, words, row_batches, column_batches,
    PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store a strip's flags of finite rows and columns in entry_flags (STRIP, COLUMNS / 32), and in tiles a word with a
    bit for each TILE of rows that has flags. Returns the number of flags.
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    place, there, finite = _places(
        w, flags, rows, columns, m, n, pitch, blocks, words, row_batches, column_batches, PARTS, STRIP, COLUMNS
    )
    some = tl.load(place, mask=there, other=0) & finite
    row, word_at = tl.arange(0, STRIP), tl.arange(0, WIDTH)
    tl.store(entry_flags + wide(w) * (STRIP * WIDTH) + row[:, None] * WIDTH + word_at[None, :], some)
    bits = tl.max(tl.reshape((some != 0).to(tl.int32), [STRIP // TILE, TILE * WIDTH]), 1)
    tl.store(tiles + w, tl.sum(bits << tl.arange(0, STRIP // TILE), 0))
    return tl.sum(tl.sum(count_bits(some), 1), 0)


@triton.jit(noinline=True)
def _take_back_strip(
    w, flags, tiles, entry_flags, rows, columns, m, n, pitch, blocks, words, row_batches, column_batches,
    PARTS: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Clear those flags of a strip that entry_flags no longer has."""
    WIDTH: tl.constexpr = COLUMNS // 32
    if tl.load(tiles + w) != 0:
        place, there, finite = _places(
            w, flags, rows, columns, m, n, pitch, blocks, words, row_batches, column_batches, PARTS, STRIP, COLUMNS
        )
        row, word_at = tl.arange(0, STRIP), tl.arange(0, WIDTH)
        left = tl.load(entry_flags + wide(w) * (STRIP * WIDTH) + row[:, None] * WIDTH + word_at[None, :])
        tl.store(place, tl.load(place, mask=there, other=0) & (left | ~finite), mask=there)


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "out_batch", "row_stride", "column_stride",
        "c_batch", "c_row", "c_column", "alpha", "alpha_i", "beta", "beta_i", "m", "n", "k", "terms", "q",
        "flag_pitch", "blocks", "words", "batches", "row_batches", "column_batches", "many_of_all", "pitch",
    ]
)  # fmt: skip
def sum_again(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, c, c_batch,
    c_row, c_column, flags, tiles, entry_flags, rows, columns, counts, state, space, listed, expansions, measures,
    powers, base, reduction, systems, nothing_there, rungs, seconds, alpha, alpha_i, beta, beta_i, m, n, k, terms, q,
    flag_pitch, blocks, words, batches, row_batches, column_batches, many_of_all, pitch, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, ADDEND: tl.constexpr, TILE: tl.constexpr,
    STRIP: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, AGAIN: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Count flags in state[FLAGGED]. AGAIN: if there are more than many_of_all, and alpha is real, make the flagged
    entries of alpha·AB + beta·C again. counts[EXACT] grows by the number of proved entries, whose flags are cleared.

    flags: one bit per entry, (batch, parts, m, flag_pitch). tiles, entry_flags: workspace for a word per strip of STRIP
    rows and COLUMNS columns, (batch, parts, strips, blocks), and for the strips' flags. state: the counters of
    `many_choice`, 0 before. c: C, whose strides may be 0; it is read if ADDEND. alpha to beta_i: bit patterns of the
    parts of alpha and beta. `strips.repair_strips` has the other arguments.
    """
    f, f_i, g, g_i = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    # An infinity or NaN, multiplied by 0, is NaN, so the sum is not 0 if any factor is not finite.
    usable = (f * 0.0 + g * 0.0 + g_i * 0.0 == 0.0) & (f != 0.0) & (f_i == 0.0)
    lanes = tl.arange(0, SPAN)
    total = wide(batches) * PARTS * m * flag_pitch
    spans = tl.cdiv(total, SPAN)
    span = take(state + COUNT)
    while span < spans:
        word = span * SPAN + lanes
        some = tl.sum(count_bits(tl.load(flags + word, mask=word < total, other=0)), 0)
        if some > 0:
            tl.atomic_add(state + FLAGGED, some.to(tl.int64), sem="relaxed")
        finished(state + COUNT + 1, 1)
        span = take(state + COUNT)
    if AGAIN:
        if usable:
            wait_for(state + COUNT + 1, spans)
            if tl.load(state + FLAGGED) > many_of_all:
                everything = words * batches * PARTS
                w = take(state + COPY)
                while w < everything:
                    ours = _copy_strip(
                        w, flags, tiles, entry_flags, rows, columns, m, n, flag_pitch, blocks, words, row_batches,
                        column_batches, PARTS, TILE, STRIP, COLUMNS,
                    )  # fmt: skip
                    tl.atomic_add(state, ours.to(tl.int64), sem="relaxed")
                    finished(state + COPY + 1, 1)
                    w = take(state + COPY)
                wait_for(state + COPY + 1, everything)
                asked = tl.load(state)
                if asked > many_of_all:
                    listed += tl.program_id(0) * (SHARE * COLUMNS)
                    expansions += tl.program_id(0) * (4 * EXPANDED)
                    make_again(
                        a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride,
                        column_stride, tiles, entry_flags, rows, columns, counts, state, space, listed, expansions,
                        measures, powers, base, reduction, systems, nothing_there, rungs, seconds, asked, m, n, k,
                        terms, q, blocks, words, batches, row_batches, column_batches, pitch, f, g, g_i,
                        c if ADDEND else None, c_batch, c_row, c_column, PRECISION, PARTS, A_ALONG, B_ALONG, TILE,
                        STRIP, COLUMNS, BLOCK, NVIDIA,
                    )  # fmt: skip
                    w = take(state + TAKE_BACK)
                    while w < everything:
                        _take_back_strip(
                            w, flags, tiles, entry_flags, rows, columns, m, n, flag_pitch, blocks, words, row_batches,
                            column_batches, PARTS, STRIP, COLUMNS,
                        )  # fmt: skip
                        w = take(state + TAKE_BACK)
