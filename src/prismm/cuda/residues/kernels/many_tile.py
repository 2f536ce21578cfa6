"""Joins of the uncertified entries of a few rows of a strip, from digits of up to 49 moduli (`many_join`).

If most entries are uncertified, all of them are expanded, and the certified ones keep their values. Then one load reads
the digits of neighbours, and nothing passes through memory. Otherwise the uncertified entries are listed first. The
program also lists entries if some of them need care (`join_entries`), or if terms of their sums were left apart
(`balance`).
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import EXACT
from prismm.cuda.kernels.fp64 import STATISTICS, multiple, wide
from prismm.cuda.residues.kernels.balance import BALANCES, choice_of
from prismm.cuda.residues.kernels.join_exact import store_flags
from prismm.cuda.residues.kernels.many_join import (
    EXPANDED,
    JOINED,
    LIMBS,
    expand_listed,
    expanded,
    expansion,
    falling,
    join_entries,
    leading_limbs,
    rest_of,
    side_of,
)
from prismm.cuda.residues.kernels.repair import tiles_of

SHARE = tl.constexpr(16)
"""Rows of a strip whose entries one ticket joins."""


CARE = tl.constexpr(1 << 16)
"""Units in which entries that need care are counted, above those that are proved."""


@triton.jit
def _flagged(words, tiles, i0, m, ROWS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr):
    """1 for each entry of rows from i0 on that is flagged in words (ROWS, COLUMNS / 32) and in a flagged tile."""
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    asked = ((tiles >> ((i0 % STRIP + row) // TILE)) & 1 != 0) & (i0 + row < m)
    place = words + row[:, None] * (COLUMNS // 32) + column[None, :] // 32
    return (tl.load(place, mask=asked[:, None] & (column >= 0)[None, :], other=0) >> (column % 32)[None, :]) & 1


@triton.jit(noinline=True)
def _join_rows(
    out, row_stride, column_stride, words, tiles, digits, first_digit, plane, pitch, system, moduli, nothing_there,
    rows, columns, measures, lost, row_first, column_first, all_vectors, m, n, i0, j0, terms, q, left_bits, right_bits,
    balance, below, part, alpha, beta, beta_i, c, c_row, c_column, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """`join_entries` of the flagged entries of ROWS rows, flags of proved ones taken back. Returns how many are proved,
    and CARE times how many need care.
    """
    first_digit, plane, pitch = multiple(first_digit, COLUMNS), multiple(plane, COLUMNS), multiple(pitch, COLUMNS)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    h, middle, tail, lead, missing = expansion(
        digits + first_digit, row[:, None] * pitch + column[None, :], plane, system, moduli, nothing_there, KEPT, True
    )  # fmt: skip
    i, j = i0 + row, j0 + column
    row_shift, n1a, fa = side_of(rows, measures, lost, m, all_vectors, i, row_first, left_bits, balance, q)
    column_shift, n1b, fb = side_of(columns, measures, lost, n, all_vectors, j, column_first, right_bits, balance, q)
    flagged = _flagged(words, tiles, i0, m, ROWS, TILE, STRIP, COLUMNS) != 0
    done, hard = join_entries(
        out, 0, 0, out, 0, 0, out, row_stride, column_stride, h, middle, tail, lead, missing, row_shift[:, None],
        n1a[:, None], fa[:, None], column_shift[None, :], n1b[None, :], fb[None, :], measures, row_first, column_first,
        all_vectors, nothing_there, tl.broadcast_to(i[:, None], [ROWS, COLUMNS]),
        tl.broadcast_to(j[None, :], [ROWS, COLUMNS]), flagged, terms, balance, below, rest_of(KEPT, below), part, alpha,
        beta, beta_i, c, c_row, c_column, PRECISION, PARTS, False,
    )  # fmt: skip
    found = tl.sum(tl.sum(done.to(tl.int32) + tl.where(hard & ~done, CARE, 0), 1), 0)
    # Other threads have read the words that this one stores.
    tl.debug_barrier()
    store_flags(flagged & ~done, words, ROWS, COLUMNS)
    return found


@triton.jit(noinline=True)
def _join_listed(
    a, a_row, a_step, b, b_column, b_step, out, row_stride, column_stride, words, tiles, digits, plane, pitch, listed,
    expansions, system, moduli, nothing_there, rows, columns, measures, lost, row_first, column_first, all_vectors, m,
    n, i0, j0, terms, q, left_bits, right_bits, balance, below, kept, part, alpha, beta, beta_i, c, c_row, c_column,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`join_entries` of the flagged entries of SHARE rows, flags of proved ones taken back. Returns how many are
    proved.
    """
    flagged = tl.reshape(_flagged(words, tiles, i0, m, SHARE, TILE, STRIP, COLUMNS), [SHARE * COLUMNS])
    order = tl.cumsum(flagged, 0) - flagged
    many = tl.sum(flagged, 0)
    tl.store(listed + order, tl.arange(0, SHARE * COLUMNS), mask=flagged != 0)
    rest = rest_of(kept, below)
    lanes = falling(JOINED)
    proved = tl.full([], 0, tl.int32)
    for x in range(0, many, JOINED):
        within = x - x // EXPANDED * EXPANDED
        if within == 0:
            # What this reads was stored by other threads, who still read what it overwrites.
            tl.debug_barrier()
            for which in tl.static_range(3):
                if kept == (5 + which if which < 2 else LIMBS):
                    if many - x > JOINED:
                        expand_listed(
                            listed + x, many - x, digits, plane, pitch, system, moduli, nothing_there, expansions,
                            COLUMNS, EXPANDED, 5 + which if which < 2 else LIMBS,
                        )  # fmt: skip
                    else:
                        expand_listed(
                            listed + x, many - x, digits, plane, pitch, system, moduli, nothing_there, expansions,
                            COLUMNS, JOINED, 5 + which if which < 2 else LIMBS,
                        )  # fmt: skip
            tl.debug_barrier()
        h, middle, tail, lead, missing = expanded(expansions + within, kept)
        there = lanes < many - x
        # The first entry stands for those that are not there.
        entry = tl.load(listed + x + lanes, mask=there, other=0)
        i, j = i0 + entry // COLUMNS, j0 + entry % COLUMNS
        row_shift, n1a, fa = side_of(rows, measures, lost, m, all_vectors, i, row_first, left_bits, balance, q)
        column_shift, n1b, fb = side_of(
            columns, measures, lost, n, all_vectors, j, column_first, right_bits, balance, q
        )  # fmt: skip
        done, _ = join_entries(
            a, a_row, a_step, b, b_column, b_step, out, row_stride, column_stride, h, middle, tail, lead, missing,
            row_shift, n1a, fa, column_shift, n1b, fb, measures, row_first, column_first, all_vectors, nothing_there, i,
            j, there, terms, balance, below, rest, part, alpha, beta, beta_i, c, c_row, c_column, PRECISION, PARTS,
            True,
        )  # fmt: skip
        tl.store(listed + x + lanes, -1, mask=done)
        proved += tl.sum(done.to(tl.int32), 0)
    tl.debug_barrier()
    left = (flagged != 0) & (tl.load(listed + order, mask=flagged != 0, other=0) >= 0)
    store_flags(tl.reshape(left, [SHARE, COLUMNS]), words, SHARE, COLUMNS)
    return proved


@triton.jit(noinline=True)
def join_task(
    task, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
    entry_flags, digits, listed, expansions, rows, columns, measures, lost, system, nothing_there, counts, repaired,
    i_first, j_first, first_of_group, m, n, terms, q, moduli, left_bits, right_bits, balance, below, blocks, words,
    batches, row_batches, column_batches, height, width, part, alpha, beta, beta_i, c, c_batch, c_row, c_column,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The flagged entries of SHARE rows of a strip."""
    SIZE: tl.constexpr = EXPANDED if EXPANDED < SHARE * COLUMNS else SHARE * COLUMNS
    strips_across = width // COLUMNS
    member = task // ((height // SHARE) * strips_across)
    batch = first_of_group + member
    of_rows, of_columns = batch % row_batches, batch % column_batches
    batch = wide(batch)
    first = task // strips_across % (height // SHARE) * SHARE
    strip = (i_first + first) // STRIP
    block = j_first // COLUMNS + task % strips_across
    word = (batch * PARTS + part) * words + strip * blocks + block
    tiles = tiles_of(flags, word, (strip < words // blocks) & (block < blocks) & (batch < batches))
    if tiles != 0:
        i0, j0 = i_first + first, block * COLUMNS
        of_task = entry_flags + (word * STRIP + i0 % STRIP) * (COLUMNS // 32)
        many = tl.sum(tl.sum(_flagged(of_task, tiles, i0, m, SHARE, TILE, STRIP, COLUMNS), 1), 0)
        plane = wide(height) * width
        first_digit = wide(member) * moduli * plane + wide(i0 - i_first) * width + (j0 - j_first)
        row_first, column_first = wide(of_rows) * m, wide(row_batches) * m + wide(of_columns) * n
        vectors = wide(row_batches) * m + wide(column_batches) * n
        i, j = i0 + tl.arange(0, SHARE), j0 + tl.arange(0, COLUMNS)
        exact_rows = tl.load(lost + row_first + i, mask=i < m, other=1) == 0
        exact_columns = tl.load(lost + column_first + j, mask=j < n, other=1) == 0
        all_lost = (tl.max(exact_rows.to(tl.int32), 0) == 0) | (tl.max(exact_columns.to(tl.int32), 0) == 0)
        kept = leading_limbs(all_lost, tl.minimum(left_bits, right_bits), below)
        rows += wide(of_rows) * STATISTICS * m
        columns += wide(of_columns) * STATISTICS * n
        out += batch * out_batch + part
        of_c = c
        if c is not None:
            of_c = c + batch * c_batch
        # If most entries are flagged, expanding all takes less time than a list.
        listing = many <= SHARE * COLUMNS // 2
        if balance < BALANCES:
            _, _, apart, _ = choice_of(measures, vectors, terms, balance)
            listing = listing | (apart > 0)
        proved = tl.full([], 0, tl.int32)
        if not listing:
            for turn in range(SHARE * COLUMNS // SIZE):
                for which in tl.static_range(3):
                    if kept == (5 + which if which < 2 else LIMBS):
                        some = _join_rows(
                            out, row_stride, column_stride, of_task + turn * (SIZE // 32), tiles, digits,
                            first_digit + turn * (SIZE // COLUMNS) * wide(width), plane, width, system, moduli,
                            nothing_there, rows, columns, measures, lost, row_first, column_first, vectors, m, n,
                            i0 + turn * (SIZE // COLUMNS), j0, terms, q, left_bits, right_bits, balance, below,
                            part if alpha is not None else 0, alpha, beta, beta_i, of_c, c_row, c_column, PRECISION,
                            PARTS, SIZE // COLUMNS, TILE, STRIP, COLUMNS, 5 + which if which < 2 else LIMBS,
                        )  # fmt: skip
                        proved += some % CARE
                        listing = listing | (some >= CARE)
        if listing & (many > 0):
            tl.debug_barrier()
            proved += _join_listed(
                a + batch * a_batch, a_row, a_step, b + batch * b_batch, b_column, b_step, out, row_stride,
                column_stride, of_task, tiles, digits + first_digit, plane, width, listed, expansions, system, moduli,
                nothing_there, rows, columns, measures, lost, row_first, column_first, vectors, m, n, i0, j0, terms, q,
                left_bits, right_bits, balance, below, kept, part, alpha, beta, beta_i, of_c, c_row, c_column,
                PRECISION, PARTS, TILE, STRIP, COLUMNS,
            )  # fmt: skip
        tl.atomic_add(counts + EXACT, proved.to(tl.int64), sem="relaxed")
        tl.atomic_add(repaired, proved.to(tl.int64), sem="relaxed")
