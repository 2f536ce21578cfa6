"""Entries that an epilogue of gemm flagged, made again by more moduli if these are many (`residues.kernels.many`). What
stays flagged is left to `repair.recompute_exact`.

Entries are made again where alpha is real, so that each part of a sum needs one part of AB only. C and a product that
cancel take as many moduli as what is left of them asks for.

All programs count flags first. If these are many, they are copied into strips, as `many` takes them, without those of
rows and columns that are not finite; and at last those of proved entries are taken back.

Bytes, where few are flagged: the flags, a bit an entry.
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
"""Words of flags that a program counts at once."""

# What `many_choice` counts for tickets that gemm does not have.
COUNT, COPY, FLAGGED, TAKE_BACK = (tl.constexpr(x.value) for x in (CERTIFY, LISTING, LISTED, LAST))
"""Tickets for SPAN words that are counted, and for strips that are copied, with how much of it is done behind; how many
flags there are; and tickets for strips whose flags are taken back, which no program waits for.
"""


@triton.jit
def _places(w, flags, rows, columns, m, n, pitch, blocks, words, row_batches, column_batches, PARTS: tl.constexpr,
            STRIP: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(places, which are there, bits of finite ones) of a strip's words of flags, (STRIP, COLUMNS / 32)."""
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
    """entry_flags (STRIP, COLUMNS / 32), of a strip: those of finite rows and columns; tiles: its word, a bit for each
    TILE of rows that has any. Returns how many there are.
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
    """Take back flags of a strip that are no longer in entry_flags."""
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
    STRIP: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Make flagged entries of alpha·AB + beta·C again, if there are more than many_of_all. counts[EXACT] grows by those
    that are proved, whose flags are taken back.

    flags: a bit an entry, (batch, parts, m, flag_pitch). tiles, entry_flags: of workspace, a word a strip of STRIP rows
    and COLUMNS columns, (batch, parts, strips, blocks), and the strip's flags. state: what `many_choice` counts, 0
    before. c: C, of which the strides may be 0; read where ADDEND. alpha to beta_i: patterns of the parts of alpha and
    beta. Other arguments: as of `strips.repair_strips`.
    """
    f, f_i, g, g_i = factor_of(alpha), factor_of(alpha_i), factor_of(beta), factor_of(beta_i)
    # Times 0, what is not finite is NaN.
    usable = (f * 0.0 + g * 0.0 + g_i * 0.0 == 0.0) & (f != 0.0) & (f_i == 0.0)
    if usable:
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
                    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride,
                    tiles, entry_flags, rows, columns, counts, state, space, listed, expansions, measures, powers, base,
                    reduction, systems, nothing_there, rungs, seconds, asked, m, n, k, terms, q, blocks, words, batches,
                    row_batches, column_batches, pitch, f, g, g_i, c if ADDEND else None, c_batch, c_row, c_column,
                    PRECISION, PARTS, A_ALONG, B_ALONG, TILE, STRIP, COLUMNS, BLOCK, NVIDIA,
                )  # fmt: skip
                w = take(state + TAKE_BACK)
                while w < everything:
                    _take_back_strip(
                        w, flags, tiles, entry_flags, rows, columns, m, n, flag_pitch, blocks, words, row_batches,
                        column_batches, PARTS, STRIP, COLUMNS,
                    )  # fmt: skip
                    w = take(state + TAKE_BACK)
