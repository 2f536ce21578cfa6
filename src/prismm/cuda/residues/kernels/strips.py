"""Repair of uncertified entries, strip by strip, in one kernel: nothing leaves the device, which decides by counts.

Few are recomputed one by one, by the program that finds them. More are certified by products of magnitudes, where
|a||b| may certify them (`magnitudes`). Where more than one in 1024 of all entries are left, these are made again by
more moduli (`many`) if that is expected to be faster, and once more by the most that there are; operands of which
neither decides most entries are balanced first (`balance`). If more entries remain than there are programs, they are
listed, and a program sums up to eight of the list at a time; where a few rows hold many, it sums whole rows. Values are
those of a CPU on every path.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.counts import BY_MAGNITUDE, EXACT
from prismm.cuda.kernels.exact import exact_value
from prismm.cuda.kernels.fp64 import LOW32, STATISTICS, bit_number, wide
from prismm.cuda.residues.kernels.entries import (
    doubled,
    doubled_by_itself,
    magnitude_proves,
    magnitude_sum,
    the_one,
)
from prismm.cuda.residues.kernels.join_exact import bound_of, bound_terms
from prismm.cuda.residues.kernels.magnitudes import (
    certify,
    count_bits,
    double_rows,
    double_rows_by_themselves,
    set_exactly,
    sums_of_strip,
)
from prismm.cuda.residues.kernels.many import make_again
from prismm.cuda.residues.kernels.many_choice import CERTIFY, LAST, LISTED, LISTING, REPAIRED
from prismm.cuda.residues.kernels.many_join import EXPANDED
from prismm.cuda.residues.kernels.many_tile import SHARE
from prismm.cuda.residues.kernels.repair import strip_of, tiles_of
from prismm.cuda.residues.kernels.tickets import finished, take, wait_for

SPAN = tl.constexpr(64)
"""Words of flags that a program reads at once."""

SINGLES, BY_THEMSELVES = tl.constexpr(64), tl.constexpr(3)
"""Entries a program, up to which none are summed by whole rows; and how many times more entries it takes before these
are, each in its own unit.
"""

AT_ONCE, LANES = tl.constexpr(8), tl.constexpr(128)
"""How many entries of a list a program sums at a time, and how many terms of each it reads in one step."""


@triton.jit(noinline=True)
def _recompute_entry(
    a, a_step, b, b_step, target, i, j, rows, columns, constants, counts, m, n, k, terms, q, part, judged, far,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, MAGNITUDES: tl.constexpr,
):  # fmt: skip
    """Prove one entry by magnitudes, unless that failed (judged), or set it to its exact value, rounded. far: many
    moduli left it, so it is mostly far below its row's and column's largest elements.
    """
    proved = i < 0
    if MAGNITUDES:
        if not judged:
            a_e, a_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, i < m, q, True)
            b_e, b_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, j < n, q, True)
            total, hit = magnitude_sum(a, a_step, a_e, b, b_step, b_e, k, part, PARTS, BLOCK)
            bound = bound_of(n1a, da, n2a, fa, n1b, db, n2b, fb, 0.25 * terms, True)
            value = tl.load(target).to(tl.float64)
            proved = magnitude_proves(total, hit, bound, a_e + b_e, value, -(a_shift + b_shift), constants, PRECISION)
    if proved:
        tl.atomic_add(counts + BY_MAGNITUDE, 1, sem="relaxed")
    else:
        exact = tl.zeros([], tl.float64)
        decided_so = i < 0
        if not far:
            exact, decided_so = doubled(
                a, a_step, b, b_step, i, j, rows, columns, m, n, k, q, part, PRECISION, PARTS, BLOCK
            )  # fmt: skip
        if not decided_so:
            one = tl.zeros([1, 1], tl.int32)
            of_one, sure = doubled_by_itself(
                a + one, a_step, b + one, b_step, k, part + one, PRECISION, PARTS, 1, BLOCK
            )  # fmt: skip
            exact, decided_so = the_one(of_one), tl.max(sure.to(tl.int32), 0) > 0
        if not decided_so:
            exact = exact_value(a, a_step, b, b_step, k, part, PARTS, PRECISION, BLOCK)
        tl.store(target, exact if PRECISION == 53 else exact.to(tl.float32))
        tl.atomic_add(counts + EXACT, 1, sem="relaxed")


@triton.jit
def _flags_of(tiles, entry_flags, i0, m, first, end, TILE: tl.constexpr, STRIP: tl.constexpr, WIDTH: tl.constexpr):
    """(STRIP, WIDTH) words of a strip, 0 where a tile has no flag: nobody has written those; and outside some rows."""
    row, word_at = tl.arange(0, STRIP), tl.arange(0, WIDTH)
    asked = ((tiles >> (row // TILE)) & 1 != 0) & (i0 + row < m) & (row >= first) & (row < end)
    index = row[:, None] * WIDTH + word_at[None, :]
    return tl.load(entry_flags + index, mask=asked[:, None] & (word_at < WIDTH)[None, :], other=0), index


@triton.jit(noinline=True)
def _certify_strip(
    out, row_stride, column_stride, tiles, entry_flags, left, right, sums, rows, columns, constants, counts, repaired,
    m, n, i0, j0, depths, terms, q, part, PRECISION: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
    STRIP: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Certify entries of a strip by products of magnitudes."""
    pending, index = _flags_of(tiles, entry_flags, i0, m, 0, STRIP, TILE, STRIP, COLUMNS // 32)
    tl.debug_barrier()
    sums_of_strip(left, right, pending, sums, m, n, i0, j0, depths, part, PARTS, STRIP, COLUMNS, SIDE, DEPTH)
    # What follows reads the whole strip.
    tl.store(entry_flags + index, pending)
    tl.debug_barrier()
    found = certify(
        out, row_stride, column_stride, entry_flags, sums, rows, columns, constants, m, n, i0, j0, terms, q, PRECISION,
        STRIP, COLUMNS, TILE,
    )  # fmt: skip
    tl.atomic_add(counts + BY_MAGNITUDE, found, sem="relaxed")
    tl.atomic_add(repaired, found, sem="relaxed")


@triton.jit
def _flags_of_rows(entry_flags, first, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """How many entries of HEIGHT rows of a strip are flagged."""
    place = entry_flags + (first + tl.arange(0, HEIGHT))[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.sum(tl.sum(count_bits(tl.load(place)), 1), 0)


@triton.jit(noinline=True)
def _recompute_rows(
    a, a_row, a_step, b, b_column, b_step, out, row_stride, column_stride, tiles, entry_flags, high, rows, columns,
    constants, counts, m, n, i0, j0, first, end, only, k, terms, q, part, judged, far, many, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, MAGNITUDES: tl.constexpr,
):  # fmt: skip
    """Recompute the remaining entries of rows first, …, end - 1 of a strip, multiples of HEIGHT: where
    magnitudes cannot certify them, HEIGHT rows with many in sums of whole rows; the others one by one. Of the strip's
    entries the one numbered `only` alone, unless that is negative. high: (4, HEIGHT, COLUMNS) of workspace.
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    pending, index = _flags_of(tiles, entry_flags, i0, m, first, end, TILE, STRIP, WIDTH)
    pending = tl.where((only < 0) | (index == only >> 5), pending, 0)
    pending &= tl.where(only < 0, -1, tl.full([], 1, tl.int32) << (only & 31))
    if judged & (only < 0) & (tl.sum(tl.sum(count_bits(pending), 1), 0) > many):
        tl.debug_barrier()
        # Of these rows only: others belong to other programs.
        row = tl.arange(0, STRIP)
        ours = ((row >= first) & (row < end))[:, None] & (tl.arange(0, WIDTH) < WIDTH)[None, :]
        tl.store(entry_flags + index, pending, mask=ours)
        tl.debug_barrier()
        for r0 in range(first, end, HEIGHT):
            # Sums in units of rows and columns come first. Entries that these do not decide, and all entries that many
            # moduli left, are summed in units of their own, which takes longer.
            by_itself = far
            left = _flags_of_rows(entry_flags, r0, HEIGHT, WIDTH)
            while left > tl.where(by_itself, BY_THEMSELVES * many, many):
                tl.debug_barrier()
                if by_itself:
                    double_rows_by_themselves(
                        a, a_row, a_step, b, b_column, b_step, high, m, n, i0 + r0, j0, k, part, PARTS, HEIGHT, COLUMNS,
                        2,
                    )  # fmt: skip
                else:
                    double_rows(
                        a, a_row, a_step, b, b_column, b_step, high, rows, columns, m, n, i0 + r0, j0, k, q, part,
                        PARTS, HEIGHT, COLUMNS, 4,
                    )  # fmt: skip
                tl.debug_barrier()
                for r in range(0, HEIGHT, TILE):
                    set_exactly(
                        out, row_stride, column_stride, entry_flags + (r0 + r) * WIDTH, high + r * COLUMNS,
                        HEIGHT * COLUMNS, counts, i0 + r0 + r, j0, k, PRECISION, TILE, COLUMNS,
                    )  # fmt: skip
                tl.debug_barrier()
                left = tl.where(by_itself, 0, _flags_of_rows(entry_flags, r0, HEIGHT, WIDTH))
                by_itself = by_itself | True
        pending = tl.load(entry_flags + index, mask=ours, other=0)
    following = tl.min(tl.min(tl.where(pending != 0, index, STRIP * WIDTH), 1), 0)
    while following < STRIP * WIDTH:
        word = tl.sum(tl.sum(tl.where(index == following, pending, 0), 1), 0).to(tl.int64) & LOW32
        pending = tl.where(index == following, 0, pending)
        x = wide(i0 + following // WIDTH)
        while word != 0:
            lowest = word & -word
            word = word ^ lowest
            y = wide(j0 + following % WIDTH * 32) + bit_number(lowest)
            _recompute_entry(
                a + x * a_row, a_step, b + y * b_column, b_step, out + x * row_stride + y * column_stride, x, y, rows,
                columns, constants, counts, m, n, k, terms, q, part, judged, far, PRECISION, PARTS, BLOCK, MAGNITUDES,
            )  # fmt: skip
        following = tl.min(tl.min(tl.where(pending != 0, index, STRIP * WIDTH), 1), 0)


@triton.jit
def _recompute_share(
    w, first, end, only, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride,
    column_stride, flags, entry_flags, high, rows, columns, constants, counts, m, n, k, terms, q, blocks, words,
    row_batches, column_batches, judged, far, many, PRECISION: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
    STRIP: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, MAGNITUDES: tl.constexpr,
):  # fmt: skip
    """Recompute the remaining entries of rows first, …, end - 1 of the strip of word w, or the one numbered `only`."""
    tiles = tiles_of(flags, w, w >= 0)
    if tiles != 0:
        part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
        _recompute_rows(
            a + batch * a_batch, a_row, a_step, b + batch * b_batch, b_column, b_step, out + batch * out_batch + part,
            row_stride, column_stride, tiles, entry_flags + wide(w) * (STRIP * (COLUMNS // 32)), high,
            rows + batch % row_batches * STATISTICS * m, columns + batch % column_batches * STATISTICS * n, constants,
            counts, m, n, i0, j0, first, end, only, k, terms, q, part, judged > 0, far > 0, many, PRECISION, PARTS,
            TILE, STRIP, HEIGHT, COLUMNS, BLOCK, MAGNITUDES,
        )  # fmt: skip


@triton.jit(noinline=True)
def _list_strip(
    w, flags, entry_flags, items, length, m, blocks, words, many, PARTS: tl.constexpr, TILE: tl.constexpr,
    STRIP: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Append the remaining entries of the strip of word w to a list of so many items: w·STRIP·COLUMNS plus the number
    of an entry in its strip, or of HEIGHT rows with many of them ~(w·STRIP / HEIGHT + which).
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    SHARES: tl.constexpr = STRIP // HEIGHT
    tiles = tiles_of(flags, w, w >= 0)
    if tiles != 0:
        _, _, i0, _ = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
        of_strip = entry_flags + wide(w) * (STRIP * WIDTH)
        pending, _ = _flags_of(tiles, of_strip, i0, m, 0, STRIP, TILE, STRIP, WIDTH)
        counts = tl.sum(tl.reshape(count_bits(pending), [SHARES, HEIGHT * WIDTH]), 1)
        whole = (counts > many).to(tl.int32)
        bits = (pending[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
        bits = tl.reshape(tl.reshape(bits, [SHARES, HEIGHT * COLUMNS]) * (1 - whole)[:, None], [STRIP * COLUMNS])
        singles, wholes = tl.sum(bits, 0), tl.sum(whole, 0)
        if singles + wholes > 0:
            at = items + tl.atomic_add(length, (singles + wholes).to(tl.int64), sem="relaxed")
            entry, share = tl.arange(0, STRIP * COLUMNS), tl.arange(0, SHARES)
            tl.store(at + (tl.cumsum(bits, 0) - bits), wide(w) * (STRIP * COLUMNS) + entry, mask=bits != 0)
            tl.store(at + singles + (tl.cumsum(whole, 0) - whole), ~(wide(w) * SHARES + share), mask=whole != 0)


@triton.jit(noinline=True)
def _recompute_listed(
    items, many, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride,
    counts, k, blocks, words, PRECISION: tl.constexpr, PARTS: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Set the first AT_ONCE entries of a list, or as many as there are, where twice float64's precision decides them;
    returns a bit for each item that is left, or is no single entry.
    """
    lanes = tl.arange(0, AT_ONCE)
    there = lanes < many
    item = tl.load(items + lanes, mask=there, other=-1)
    single = item >= 0
    # Items that are no single entries repeat another one, whose result is not stored.
    item = tl.where(single, item, tl.max(item, 0))
    item = tl.maximum(item, 0)
    w, entry = item // (STRIP * COLUMNS), (item % (STRIP * COLUMNS)).to(tl.int32)
    part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
    i, j = i0 + entry // COLUMNS, j0 + entry % COLUMNS
    of_a, of_b = a + (batch * a_batch + i * a_row), b + (batch * b_batch + j * b_column)
    value, proved = doubled_by_itself(
        of_a[:, None], a_step, of_b[:, None], b_step, k, part[:, None], PRECISION, PARTS, AT_ONCE, LANES
    )
    proved = proved & single
    target = out + (batch * out_batch + part + i * row_stride + j * column_stride)
    tl.store(target, value if PRECISION == 53 else value.to(tl.float32), mask=proved)
    tl.atomic_add(counts + EXACT, tl.sum(proved.to(tl.int64), 0), sem="relaxed")
    return tl.sum(tl.where(there & ~proved, (lanes * 0 + 1) << lanes, 0), 0)


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_step", "b_batch", "b_column", "b_step", "out_batch", "row_stride", "m", "n", "k",
        "depths", "terms", "q", "blocks", "words", "batches", "row_batches", "column_batches", "few_of_all", "many",
        "many_of_all", "pitch", "listed_at_most", "units",
    ]
)  # fmt: skip
def repair_strips(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
    entry_flags, left, right, sums, high, rows, columns, constants, counts, state, space,
    listed, expansions, measures, powers, base, reduction, systems, nothing_there, rungs, seconds, m, n, k, depths,
    terms,
    q, blocks, words, batches, row_batches, column_batches, few_of_all, many, many_of_all, pitch,
    listed_at_most, units,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, TILE: tl.constexpr,
    STRIP: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK: tl.constexpr, MAGNITUDES: tl.constexpr, AGAIN: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Repair the entries that `repair.finish` left uncertified, of finite rows and columns. counts[BY_MAGNITUDE], where
    MAGNITUDES may certify, and [EXACT] grow by what was done.

    flags, entry_flags: a word a strip, a bit a TILE of rows with uncertified entries; a bit an entry of those tiles.
    left, right: planes of `magnitudes.magnitude_planes`, where more than few_of_all entries were uncertified. sums:
    (programs, STRIP, COLUMNS) int32, high: (programs, 4, HEIGHT, COLUMNS) float64 of workspace. many: entries of HEIGHT
    rows of a strip that are summed one by one. listed_at_most: entries that a list in space may have beyond that.
    units: programs that share a strip's rows, 1 where strips are many.
    state: the number of uncertified entries, and what `many_choice` counts behind it, 0 before. AGAIN: vectors are so
    short that there are planes, and more than many_of_all entries may be made again, as `many.multiply_again` tells, of
    which all further arguments are.
    """
    lanes = tl.arange(0, SPAN)
    asked = tl.load(state)
    if asked > 0:
        sums += tl.program_id(0) * (STRIP * COLUMNS)
        high += tl.program_id(0) * (4 * HEIGHT * COLUMNS)
        listed += tl.program_id(0) * (SHARE * COLUMNS)
        expansions += tl.program_id(0) * (4 * EXPANDED)
        everything = words * batches * PARTS
        of_a = wide(tl.cdiv(m, SIDE) * SIDE) * (2 * PARTS) * (depths * DEPTH)
        of_b = wide(tl.cdiv(n, SIDE) * SIDE) * (2 * PARTS) * (depths * DEPTH)
        # Whether magnitudes have certified what they can.
        judged = tl.full([], 0 if MAGNITUDES else 1, tl.int32)
        # Whether more moduli have set what they can.
        far = tl.full([], 0, tl.int32)
        # Whether the remaining entries are put in a list.
        listing = tl.full([], 0, tl.int32)
        uncertified = asked
        if AGAIN:
            if MAGNITUDES:
                if asked > few_of_all:
                    w = take(state + CERTIFY)
                    while w < everything:
                        tiles = tiles_of(flags, w, w >= 0)
                        if tiles != 0:
                            part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
                            _certify_strip(
                                out + batch * out_batch + part, row_stride, column_stride, tiles,
                                entry_flags + w * (STRIP * (COLUMNS // 32)), left + batch % row_batches * of_a,
                                right + batch % column_batches * of_b, sums,
                                rows + batch % row_batches * STATISTICS * m,
                                columns + batch % column_batches * STATISTICS * n, constants, counts, state + REPAIRED,
                                m, n, i0, j0, depths, terms, q, part, PRECISION, PARTS, TILE, STRIP, COLUMNS, SIDE,
                                DEPTH,
                            )  # fmt: skip
                        finished(state + CERTIFY + 1, 1)
                        w = take(state + CERTIFY)
                    wait_for(state + CERTIFY + 1, everything)
                    judged += 1
            uncertified -= tl.load(state + REPAIRED)
            if (judged > 0) & (uncertified > many_of_all):
                uncertified, tried = make_again(
                    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride,
                    flags, entry_flags, rows, columns, counts, state, space, listed, expansions, measures, powers, base,
                    reduction, systems, nothing_there, rungs, seconds, uncertified, m, n, k, terms, q, blocks, words,
                    batches, row_batches, column_batches, pitch, None, None, None, None, None, None, None, PRECISION,
                    PARTS, A_ALONG, B_ALONG, TILE, STRIP, COLUMNS, BLOCK, NVIDIA,
                )  # fmt: skip
                far += tried
                listing += tried
            listing += ((judged > 0) & (uncertified > tl.num_programs(0))).to(tl.int32)
        if listing > 0:
            # The remaining entries lie anywhere, and each takes long: a program that is free takes the next ones.
            SHARES: tl.constexpr = STRIP // HEIGHT
            SIZE: tl.constexpr = STRIP * COLUMNS
            items = space.to(tl.pointer_type(tl.int64), bitcast=True)
            # Whoever takes rows sees to all entries that their sums do not decide, so few entries are better shared out
            # one by one. Those that many moduli left are summed in their own units.
            many_of_rows = tl.where(far > 0, BY_THEMSELVES * many, many)
            many_of_rows = tl.where(uncertified <= SINGLES * tl.num_programs(0), HEIGHT * COLUMNS, many_of_rows)
            many_of_rows = tl.where(uncertified <= listed_at_most, many_of_rows, many)
            strip = take(state + LISTING)
            while strip < everything:
                _list_strip(
                    strip, flags, entry_flags, items, state + LISTED, m, blocks, words, many_of_rows, PARTS, TILE,
                    STRIP, HEIGHT, COLUMNS,
                )  # fmt: skip
                finished(state + LISTING + 1, 1)
                strip = take(state + LISTING)
            wait_for(state + LISTING + 1, everything)
            listed_items = tl.load(state + LISTED)
            # No program has several where others have none.
            at_once = tl.minimum(tl.maximum(tl.cdiv(listed_items, tl.num_programs(0)), 1), AT_ONCE)
            ticket = take(state + LAST) * at_once
            remaining = tl.full([], 0, tl.int32)
            while ticket < listed_items:
                some = tl.minimum(at_once, listed_items - ticket).to(tl.int32)
                remaining = _recompute_listed(
                    items + ticket, some, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch,
                    row_stride, column_stride, counts, k, blocks, words, PRECISION, PARTS, STRIP, COLUMNS,
                )  # fmt: skip
                while remaining != 0:
                    lowest = remaining & -remaining
                    remaining = remaining ^ lowest
                    item = tl.load(items + ticket + bit_number(lowest.to(tl.int64)))
                    of_rows = item < 0
                    which = tl.where(of_rows, ~item // SHARES, item // SIZE).to(tl.int32)
                    only = tl.where(of_rows, -1, item % SIZE).to(tl.int32)
                    first = tl.where(of_rows, ~item % SHARES, item % SIZE // (COLUMNS * HEIGHT)).to(tl.int32) * HEIGHT
                    _recompute_share(
                        which, first, first + HEIGHT, only, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step,
                        out, out_batch, row_stride, column_stride, flags, entry_flags, high, rows, columns, constants,
                        counts, m, n, k, terms, q, blocks, words, row_batches, column_batches, judged, far, many,
                        PRECISION, PARTS, TILE, STRIP, HEIGHT, COLUMNS, BLOCK, MAGNITUDES,
                    )  # fmt: skip
                ticket = take(state + LAST) * at_once
        else:
            groups = tl.num_programs(0) // units
            all_of_it = tl.full([], -1, tl.int32)
            first = tl.program_id(0) % units * (STRIP // units)
            for start in range(tl.program_id(0) // units, everything, groups * SPAN):
                ours = start + lanes * groups
                some = tiles_of(flags, ours, ours < everything)
                last_of_some = tl.max(tl.where(some != 0, ours, -1), 0)
                for w in range(start, last_of_some + 1, groups):
                    _recompute_share(
                        w, first, first + STRIP // units, all_of_it, a, a_batch, a_row, a_step, b, b_batch, b_column,
                        b_step, out, out_batch, row_stride, column_stride, flags, entry_flags, high, rows, columns,
                        constants, counts, m, n, k, terms, q, blocks, words, row_batches, column_batches, judged, far,
                        many, PRECISION, PARTS, TILE, STRIP, HEIGHT, COLUMNS, BLOCK, MAGNITUDES,
                    )  # fmt: skip
