"""Uncertified entries of many rows and columns, made again by up to 49 moduli, all within one kernel.

How many moduli is found from some of the entries, and from the seconds that they are expected to take. With `bits` of a
row's elements, those of A' below 2^e lose half a unit, 2^(e - bits - 1), each, so that an entry of size |c| is rounded
surely where 2^(e_i + e_j - bits)·(‖a‖₁·2^-e_i + ‖b‖₁·2^-e_j)/2 is far below half an ulp of it.

Where that takes longer than the largest system and a closer look at the operands, they are measured anew (`balance`).

Programs take tickets (`tickets`), whose order is that of the work: splits of a panel of rows and one of columns, then
their products, then their joins and, in the same stage, the splits of the next panels. Before the work of a ticket they
wait until all work of earlier stages is done.

Per panel of R rows and C columns, M moduli and k terms: M·(R + C)·k bytes of residues, 2·M·R·C·k operations in INT8,
M·R·C bytes of digits.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import LOW32, NORM1, STATISTICS, bit_number, exponent_field, multiple, scaled, wide
from prismm.cuda.residues.kernels.balance import (
    BALANCES,
    BY_A_HAIR,
    ORDINARY_ENTRY,
    SAMPLES,
    choice_of,
    decided_by,
    lost_of,
    measure,
    record_entry,
    shared_bits,
    too_wide,
    zeros_of,
)
from prismm.cuda.residues.kernels.join_exact import bound_terms, store_flags
from prismm.cuda.residues.kernels.many_join import (
    CONSTANTS,
    EXPANDED,
    JOINED,
    LIMBS,
    expand_listed,
    expanded,
    join_entries,
)
from prismm.cuda.residues.kernels.many_split import POWERS, split_tile
from prismm.cuda.residues.kernels.product import reduced
from prismm.cuda.residues.kernels.repair import EXACT, decided, error_of_sums, strip_of, sum_in_lanes, tiles_of
from prismm.cuda.residues.kernels.tickets import finished, take, wait_for

MODULI = tl.constexpr(49)
"""The most."""

SYSTEMS, WORDS = tl.constexpr(10), tl.constexpr(13)
"""Numbers of moduli that there are to choose from, and words of powers of the most."""

SIDE, DEPTH = tl.constexpr(128), tl.constexpr(128)
"""Rows and columns of a product's tile, and terms of a step."""

VECTORS, TERMS = tl.constexpr(32), tl.constexpr(64)
"""Of a tile that is split at once."""

SHARE = tl.constexpr(16)
"""Rows of a strip whose entries one ticket joins."""

CHUNK = tl.constexpr(1 << 15)
"""Terms after which sums of residues are reduced: below 2^29 + 2^8."""

PAIRED, EXACTLY, BY_SPLIT, BY_PRODUCT, BY_JOIN, START, MEASURED = (tl.constexpr(x) for x in range(7))
"""What `recompute.SECONDS` holds: for each term of an entry that is recomputed alone, in twice float64's precision, and
more where that does not decide; for each modulus of an element, of a product of two, and of an entry; for waiting; and
for each element that is measured anew.
"""

SPARE = tl.constexpr(6)
"""Bits beyond half an ulp that a method must have of an entry, so that 1 in 2^6 is left at most."""

# Counters of a join, behind that of its uncertified entries: tickets, and next to them how much of their work is done.
CERTIFY, CHOOSE, RUN, MEASURE, LISTING, LISTED, LAST = (tl.constexpr(x) for x in (1, 3, 5, 24, 32, 34, 35))
"""Tickets for strips that magnitudes certify, for the sample, for two runs, for four stages that measure operands, for
strips whose remaining entries are listed at the end, how many items that list has, and tickets for these, which no
program waits for.
"""

IN_VAIN = tl.constexpr(36)
"""The counter of the sample's entries whose row and column are `balance.too_wide`."""

RUNG, AREA = tl.constexpr(9), tl.constexpr(1 << 14)
"""Integers of a system: moduli; bits of rows, and of columns; bits of the limbs that P does not take; of panels that
fit in workspace rows, columns, and matrices; and where residues of columns, and digits, begin there, in so many bytes.
"""

REPAIRED, VOTES = tl.constexpr(9), tl.constexpr(12)
"""How many entries magnitudes certified, and each run proved; entries of the sample, and for how many of them each
number of moduli suffices.
"""


@triton.jit(noinline=True)
def _votes(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, measures, votes,
    in_vain, sample, m, n, k, q, blocks, words, batches, row_batches, column_batches, PRECISION: tl.constexpr,
    PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For one uncertified entry of the sample's share of strips, if there is one: votes[0] grows by 1, votes[1] where
    twice float64's precision does not decide it, and votes[2 + r] where the r-th number of moduli suffices; in_vain
    grows by 1 where its row and column are `balance.too_wide`. The entry is kept for `balance.decided_by`.
    """
    WIDTH: tl.constexpr = COLUMNS // 32
    SIZE: tl.constexpr = STRIP * WIDTH
    everything = wide(words * batches * PARTS)
    w = everything * sample // SAMPLES
    end = everything * (sample + 1) // SAMPLES
    row, word_at = tl.arange(0, STRIP), tl.arange(0, WIDTH)
    index = row[:, None] * WIDTH + word_at[None, :]
    # Another place of the strip for each.
    turned = (index + (sample * 37).to(tl.int32)) % SIZE
    first = SIZE + tl.full([], 0, tl.int32)
    pending = index * 0
    while (w < end) & (first == SIZE):
        tiles = tiles_of(flags, w, w < end)
        part, batch, i0, j0 = strip_of(w, words, blocks, PARTS, STRIP, COLUMNS)
        joined = ((tiles >> (row // TILE)) & 1 != 0) & (i0 + row < m)
        pending = tl.load(entry_flags + w * SIZE + index, mask=joined[:, None] & (word_at < WIDTH)[None, :], other=0)
        first = tl.min(tl.min(tl.where(pending != 0, turned, SIZE), 1), 0)
        w += 1
    kind = first * 0
    of_row = first * 0
    of_column = first * 0
    exponent = first * 0
    if first < SIZE:
        part, batch, i0, j0 = strip_of(w - 1, words, blocks, PARTS, STRIP, COLUMNS)
        at = tl.sum(tl.sum(tl.where(turned == first, index, 0), 1), 0)
        word = tl.sum(tl.sum(tl.where(turned == first, pending, 0), 1), 0).to(tl.int64) & LOW32
        i, j = wide(i0 + at // WIDTH), wide(j0 + at % WIDTH * 32) + bit_number(word & -word)
        rows += batch % row_batches * STATISTICS * m
        columns += batch % column_batches * STATISTICS * n
        row_e, a_shift, _, _, _, _ = bound_terms(rows, m, i, i < m, q, True)
        column_e, b_shift, _, _, _, _ = bound_terms(columns, n, j, j < n, q, True)
        _, _, _, _, n2a, _ = bound_terms(rows, m, i, i < m, q, False)
        _, _, _, _, n2b, _ = bound_terms(columns, n, j, j < n, q, False)
        s, c, steps = sum_in_lanes(
            a + batch * a_batch + i * a_row, a_step, a_shift, b + batch * b_batch + j * b_column, b_step, b_shift, k,
            part, PARTS, BLOCK,
        )  # fmt: skip
        # |c| and the norms in units of 2^(e_i + e_j): of numbers below the normal range only that range counts.
        LEAST: tl.constexpr = -1022 if PRECISION == 53 else -126
        size = scaled(tl.abs(s + c), tl.maximum(-(a_shift + b_shift) - (row_e + column_e), -2000))
        size = tl.maximum(size, scaled(size * 0.0 + 1.0, tl.maximum(LEAST - (row_e + column_e), -1000)))
        norm = tl.load(rows + NORM1 * m + i).to(tl.float64) + tl.load(columns + NORM1 * n + j).to(tl.float64)
        # ceil(log2(norm·2^-q/2 / size)), one more at most.
        need = exponent_field(norm) - exponent_field(size) - q + PRECISION + 1 + SPARE
        tl.atomic_add(votes, 1, sem="relaxed")
        _value, proved = decided(s, c, -(a_shift + b_shift), n2a * n2b, steps, PRECISION)
        # Twice float64's precision has more than enough bits of it, and does not decide: something else is too near.
        near = (proved == 0) & (tl.abs(s + c) > error_of_sums(n2a * n2b, steps) * (4.0 * 2.0**PRECISION))
        kind += tl.where(near, BY_A_HAIR, ORDINARY_ENTRY)
        of_row += (batch % row_batches * m + i).to(tl.int32)
        of_column += (row_batches * m + batch % column_batches * n + j).to(tl.int32)
        exponent += tl.maximum(exponent_field(tl.abs(s + c)) - 1023 - (a_shift + b_shift), LEAST)
        if not proved:
            tl.atomic_add(votes + 1, 1, sem="relaxed")
        for r in tl.static_range(SYSTEMS):
            if (tl.load(rungs + RUNG * r + 1) >= need) & (near == 0):
                tl.atomic_add(votes + 2 + r, 1, sem="relaxed")
        last = rungs + RUNG * (SYSTEMS - 1)
        room = tl.load(last + 1) + tl.load(last + 2)
        if too_wide(
            a + batch * a_batch + i * a_row, a_step, row_e, b + batch * b_batch + j * b_column, b_step, column_e, k,
            room, part, PARTS, BLOCK,
        ):  # fmt: skip
            tl.atomic_add(in_vain, 1, sem="relaxed")
    record_entry(measures, row_batches * m + column_batches * n, k, sample, kind, of_row, of_column, exponent)


@triton.jit
def seconds_alone(seconds, undecided, k):
    """Of one entry of so many terms, of which twice float64's precision leaves that share undecided."""
    return k * (tl.load(seconds + PAIRED) + tl.load(seconds + EXACTLY) * undecided)


@triton.jit
def seconds_again(seconds, rungs, rung, entries, elements, k):
    """Of so many entries and elements of both operands, by the rung-th number of moduli."""
    each = entries.to(tl.float32) * (k * tl.load(seconds + BY_PRODUCT) + tl.load(seconds + BY_JOIN))
    each += elements.to(tl.float32) * tl.load(seconds + BY_SPLIT)
    return tl.load(rungs + RUNG * rung).to(tl.float32) * each + tl.load(seconds + START)


@triton.jit
def _of_systems(rungs, which):
    """(moduli, room) of some systems."""
    at = rungs + RUNG * which
    there = which < SYSTEMS
    left, right = tl.load(at + 1, mask=there, other=0), tl.load(at + 2, mask=there, other=0)
    return tl.load(at, mask=there, other=0), left + right


@triton.jit
def choose(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, seconds,
    measures, state, uncertified, entries, elements, m, n, k, q, blocks, words, batches, row_batches, column_batches,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, TILE: tl.constexpr,
    STRIP: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(rung, balance): the number of moduli that is expected to repair so many uncertified entries first, with those
    that it leaves, SYSTEMS where recomputing all of them alone is; and how operands are balanced, or BALANCES. Measures
    that begin as 0 become 0.
    """
    ticket = take(state + CHOOSE)
    vectors = row_batches * m + column_batches * n
    zeros = zeros_of(vectors, k)
    while ticket < SAMPLES:
        for v in range(ticket * BLOCK, zeros, SAMPLES * BLOCK):
            at = v + tl.arange(0, BLOCK)
            tl.store(measures + at, at.to(tl.int32) * 0, mask=at < zeros)
        _votes(
            a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, measures,
            state + VOTES, state + IN_VAIN, ticket, m, n, k, q, blocks, words, batches, row_batches, column_batches,
            PRECISION, PARTS, TILE, STRIP, COLUMNS, BLOCK,
        )  # fmt: skip
        finished(state + CHOOSE + 1)
        ticket = take(state + CHOOSE)
    wait_for(state + CHOOSE + 1, SAMPLES)
    voters = tl.maximum(tl.load(state + VOTES), 1).to(tl.float32)
    undecided = tl.load(state + VOTES + 1).to(tl.float32) / voters
    best = uncertified.to(tl.float32) * seconds_alone(seconds, undecided, k)
    # What moduli leave is mostly what twice float64's precision leaves, too.
    alone = uncertified.to(tl.float32) * seconds_alone(seconds, 1.0, k)
    found = tl.full([], 0, tl.int32) + SYSTEMS
    for r in tl.static_range(SYSTEMS):
        left = 1.0 - tl.load(state + VOTES + 2 + r).to(tl.float32) / voters
        takes = seconds_again(seconds, rungs, r, entries, elements, k) + left * alone
        found = tl.where(takes < best, r, found)
        best = tl.minimum(best, takes)
    balance = tl.full([], 0, tl.int32) + BALANCES
    measuring = elements.to(tl.float32) * tl.load(seconds + MEASURED)
    if best > measuring + seconds_again(seconds, rungs, SYSTEMS - 1, entries, elements, k):
        which = tl.arange(0, 16)
        moduli, room = _of_systems(rungs, which)
        in_vain = 2 * tl.load(state + IN_VAIN) > tl.load(state + VOTES)
        worth = measure(
            a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, rows, columns, measures, state + MEASURE,
            tl.max(room, 0), in_vain, m, n, k, row_batches, column_batches, PARTS, A_ALONG, B_ALONG, BLOCK,
        )  # fmt: skip
        each = entries.to(tl.float32) * (k * tl.load(seconds + BY_PRODUCT) + tl.load(seconds + BY_JOIN))
        each += elements.to(tl.float32) * tl.load(seconds + BY_SPLIT)
        again = moduli.to(tl.float32) * each + (tl.load(seconds + START) + measuring)
        for x in range(BALANCES):
            if (worth >> x) & 1 != 0:
                decides = decided_by(measures, vectors, k, x, room, PRECISION + 1 + SPARE)
                shares = 1.0 - tl.sum(decides.to(tl.int32), 0).to(tl.float32) / voters
                of_each = tl.where(which < SYSTEMS, again + shares * alone, float("inf"))
                least = tl.min(of_each, 0)
                if least < best:
                    best = least
                    found = tl.min(tl.where(of_each == least, which, 16), 0)
                    balance = x + tl.full([], 0, tl.int32)
    return found, balance


@triton.jit
def _multiply_tile(left, right, digits, reduction, t, pitch, row_pitch):
    """digits (SIDE, SIDE) uint8, row_pitch apart, of SIDE rows of left times SIDE rows of right, modulo the t-th."""
    side, h = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    p = tl.load(reduction + 3 * t)
    magic = tl.load(reduction + 3 * t + 1)
    bias = tl.load(reduction + 3 * t + 2)
    x_at = left + side.to(tl.int64)[:, None] * pitch + h[None, :]
    y_at = right + side.to(tl.int64)[:, None] * pitch + h[None, :]
    acc = tl.zeros([SIDE, SIDE], tl.int32)
    for start in range(0, pitch, CHUNK):
        for h0 in range(start, tl.minimum(pitch, start + CHUNK), DEPTH):
            acc = tl.dot(tl.load(x_at + h0), tl.trans(tl.load(y_at + h0)), acc, out_dtype=tl.int32)
        acc = reduced(acc, p, magic, bias).to(tl.int32, bitcast=True)
    tl.store(digits + side[:, None] * row_pitch + side[None, :], acc.to(tl.uint8))


@triton.jit(noinline=True)
def _split_task(
    task, a, a_batch, a_row, a_step, rows, measures, left, row_lost, powers, base, first, first_of_group, first_vector,
    m, all_vectors, terms, bits, balance, moduli, batches, row_batches, height, pitch, part, PARTS: tl.constexpr,
    ALONG: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A tile of the residues of one side: VECTORS of a panel that begins with `first`, TERMS of a matrix of a group."""
    pitch, height = multiple(pitch, DEPTH), multiple(height, SIDE)
    depths = pitch // TERMS
    member = task // ((height // VECTORS) * depths)
    i0 = first + task // depths % (height // VECTORS) * VECTORS
    batch = wide(first_of_group + member)
    # A matrix of which there is one serves the whole group.
    if (batch < batches) & ((member == 0) | (row_batches > 1)):
        batch = batch % row_batches
        plane = wide(height) * pitch
        split_tile(
            a + batch * a_batch, a_row, a_step, rows + batch * STATISTICS * m, measures, first_vector + batch * m + i0,
            powers, base, left + wide(member) * moduli * plane, row_lost + batch * m, i0, first,
            task % depths * TERMS, m, all_vectors, terms, bits, balance, moduli, plane, pitch, part,
            PARTS, ALONG, RIGHT, VECTORS, TERMS,
        )  # fmt: skip


@triton.jit(noinline=True)
def _product_task(
    task, left, right, digits, flags, reduction, i_first, j_first, first_of_group, moduli, blocks, words, batches,
    row_batches, column_batches, height, width, pitch, part, PARTS: tl.constexpr, STRIP: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of digits of one modulus, unless all strips that it belongs to are repaired."""
    pitch, height, width = multiple(pitch, DEPTH), multiple(height, SIDE), multiple(width, SIDE)
    across = width // SIDE
    tiles = (height // SIDE) * across
    tile, t, member = task % tiles, task // tiles % moduli, wide(task // (tiles * moduli))
    down, over = tile // across * SIDE, tile % across * SIDE
    strip = (i_first + down) // STRIP + tl.arange(0, SIDE // STRIP)
    block = (j_first + over) // COLUMNS + tl.arange(0, SIDE // COLUMNS)
    batch = first_of_group + member
    word = (batch * PARTS + part) * words + strip[:, None] * blocks + block[None, :]
    there = (strip < words // blocks)[:, None] & (block < blocks)[None, :] & (batch < batches)
    if tl.max(tl.max((tiles_of(flags, word, there) != 0).to(tl.int32), 1), 0) > 0:
        of_a = tl.where(row_batches > 1, member, 0) * moduli + t
        of_b = tl.where(column_batches > 1, member, 0) * moduli + t
        _multiply_tile(
            left + (of_a * height + down) * pitch, right + (of_b * width + over) * pitch,
            digits + ((member * moduli + t) * height + down) * width + over, reduction, t, pitch, width,
        )  # fmt: skip


@triton.jit(noinline=True)
def _join_task(
    task, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
    entry_flags, digits, listed, expansions, rows, columns, measures, lost, system, nothing_there, counts, repaired,
    i_first, j_first, first_of_group, m, n, terms, q, moduli, left_bits, right_bits, balance, below, blocks, words,
    batches, row_batches, column_batches, height, width, part,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The flagged entries of SHARE rows of a strip, of which a list is made first: there may be few."""
    WIDTH: tl.constexpr = COLUMNS // 32
    strips_across = width // COLUMNS
    member = wide(task // ((height // SHARE) * strips_across))
    batch = first_of_group + member
    first = task // strips_across % (height // SHARE) * SHARE
    strip = (i_first + first) // STRIP
    block = j_first // COLUMNS + task % strips_across
    word = (batch * PARTS + part) * words + strip * blocks + block
    tiles = tiles_of(flags, word, (strip < words // blocks) & (block < blocks) & (batch < batches))
    if tiles != 0:
        # Threads may still read the list of the task before.
        tl.debug_barrier()
        i0, j0 = i_first + first, block * COLUMNS
        row, word_at = tl.arange(0, SHARE), tl.arange(0, WIDTH)
        asked = ((tiles >> ((i0 % STRIP + row) // TILE)) & 1 != 0) & (i0 + row < m)
        of_task = entry_flags + (word * STRIP + i0 % STRIP) * WIDTH
        place = of_task + row[:, None] * WIDTH + word_at[None, :]
        found = tl.load(place, mask=asked[:, None] & (word_at < WIDTH)[None, :], other=0)
        bits = tl.reshape((found[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1, [SHARE * COLUMNS])
        order = tl.cumsum(bits, 0) - bits
        many = tl.sum(bits, 0)
        tl.store(listed + order, tl.arange(0, SHARE * COLUMNS), mask=bits != 0)
        plane = wide(height) * width
        of_list = digits + member * moduli * plane + wide(i0 - i_first) * width + (j0 - j_first)
        lanes = tl.arange(0, JOINED)
        proved = tl.full([], 0, tl.int32)
        for x in range(0, many, JOINED):
            within = x - x // EXPANDED * EXPANDED
            if within == 0:
                tl.debug_barrier()
                if many - x > JOINED:
                    expand_listed(
                        listed + x, many - x, of_list, plane, width, system, moduli, nothing_there, expansions, COLUMNS,
                        EXPANDED,
                    )  # fmt: skip
                else:
                    expand_listed(
                        listed + x, many - x, of_list, plane, width, system, moduli, nothing_there, expansions, COLUMNS,
                        JOINED,
                    )  # fmt: skip
                tl.debug_barrier()
            h, middle, tail, lead, missing = expanded(expansions + within)
            there = lanes < many - x
            entry = tl.load(listed + x + lanes, mask=there, other=0)
            done = join_entries(
                a + batch * a_batch, a_row, a_step, b + batch * b_batch, b_column, b_step,
                out + batch * out_batch + part, row_stride, column_stride, h, middle, tail, lead, missing,
                rows + batch % row_batches * STATISTICS * m, columns + batch % column_batches * STATISTICS * n,
                measures, lost, batch % row_batches * m, row_batches * m + batch % column_batches * n,
                row_batches * m + column_batches * n, nothing_there, m, n, i0 + entry // COLUMNS, j0 + entry % COLUMNS,
                there, terms, q, left_bits, right_bits, balance, below, part, PRECISION, PARTS,
            )  # fmt: skip
            tl.store(listed + x + lanes, tl.where(done, -1, entry), mask=there)
            proved += tl.sum(done.to(tl.int32), 0)
        tl.debug_barrier()
        left = (bits != 0) & (tl.load(listed + order, mask=bits != 0, other=0) >= 0)
        store_flags(tl.reshape(left, [SHARE, COLUMNS]), of_task, SHARE, COLUMNS)
        tl.atomic_add(counts + EXACT, proved.to(tl.int64), sem="relaxed")
        tl.atomic_add(repaired, proved.to(tl.int64), sem="relaxed")


@triton.jit
def _stages(step, steps, products, joins, row_splits, column_splits, alike):
    """How many tickets of a step multiply, join, split rows for the next step, and split for it in all. Step -1 only
    splits, for step 0.
    """
    of_rows = tl.where((step + 1) % alike == 0, row_splits, 0)
    split = tl.where(step + 1 < steps, of_rows + column_splits, 0)
    return tl.where(step < 0, 0, products), tl.where(step < 0, 0, joins), of_rows, split


@triton.jit
def multiply_again(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
    entry_flags, space, listed, expansions, measures, rows, columns, powers, base, reduction, systems, nothing_there,
    rungs, counts, state, run, rung, balance, m, n, terms, q, blocks, words, batches, row_batches, column_batches,
    pitch, PRECISION: tl.constexpr, PARTS: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr,
    TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Make flagged entries again by the rung-th number of moduli, in panels; waits until all is done. counts[EXACT] and
    state[REPAIRED + 1 + run] grow by those that are proved, whose flags are taken back.

    space: of workspace, for residues (matrices·moduli, rows of a panel, pitch) int8, likewise of columns, and digits
    (matrices·moduli, rows, columns) uint8. listed, expansions: (SHARE·COLUMNS,) int32 and (4, EXPANDED) float64 of the
    program's; measures: as `balance` lays them out. powers (SYSTEMS + 1, WORDS, POWERS) int32: left for each system,
    then right; base, reduction: of all moduli. systems: of each, as `many_join.expansion` takes it. rungs: (SYSTEMS,
    RUNG) int32.
    """
    rungs += RUNG * rung
    moduli, left_bits, right_bits = tl.load(rungs), tl.load(rungs + 1), tl.load(rungs + 2)
    below, of_height, of_width, group = tl.load(rungs + 3), tl.load(rungs + 4), tl.load(rungs + 5), tl.load(rungs + 6)
    left, right = space, space + wide(tl.load(rungs + 7)) * AREA
    digits = (space + wide(tl.load(rungs + 8)) * AREA).to(tl.pointer_type(tl.uint8))
    # Triton learns from this how wide accesses may be.
    pitch, height, width = multiple(pitch, DEPTH), multiple(of_height, SIDE), multiple(of_width, SIDE)
    vectors = row_batches * m + column_batches * n
    lost = lost_of(measures, vectors) + wide(run) * vectors
    if balance < BALANCES:
        of_rows, of_columns, _, _ = choice_of(measures, vectors, terms // PARTS, balance)
        left_bits, right_bits = shared_bits(of_rows, of_columns, left_bits + right_bits)
    row_panels, column_panels = tl.cdiv(m, height), tl.cdiv(n, width)
    depths = pitch // TERMS
    row_splits, column_splits = (height // VECTORS) * depths * group, (width // VECTORS) * depths * group
    products = (height // SIDE) * (width // SIDE) * moduli * group
    joins = (height // SHARE) * (width // COLUMNS) * group
    # Split rows serve all panels of columns and both parts.
    alike = column_panels * PARTS
    steps = tl.cdiv(batches, group) * row_panels * alike
    total = wide(steps) * (products + joins + column_splits) + wide(steps // alike) * row_splits
    tickets = state + RUN + 2 * run
    done = tickets + 1
    # The tickets that this program has waited for, and the first ticket of the step.
    known = tl.full([], -1, tl.int64)
    start = tl.full([], 0, tl.int64)
    step = tl.full([], -1, tl.int32)
    multiplied, joined, of_rows, split = _stages(step, steps, products, joins, row_splits, column_splits, alike)
    ticket = take(tickets)
    while ticket < total:
        while ticket - start >= multiplied + joined + split:
            start += multiplied + joined + split
            step += 1
            multiplied, joined, of_rows, split = _stages(step, steps, products, joins, row_splits, column_splits, alike)
        task = (ticket - start).to(tl.int32)
        # Where the ticket's stage begins.
        begin = start + tl.where(task < multiplied, 0, multiplied)
        if begin > known:
            wait_for(done, begin)
            known = begin
        # The panels that are multiplied and joined, or those of the next step, which are split.
        of_step = tl.where(task < multiplied + joined, step, step + 1)
        j_first = of_step % column_panels * width
        part = of_step // column_panels % PARTS
        i_first = of_step // alike % row_panels * height
        first_of_group = of_step // (alike * row_panels) * group
        if task < multiplied:
            _product_task(
                task, left, right, digits, flags, reduction, i_first, j_first, first_of_group, moduli, blocks, words,
                batches, row_batches, column_batches, height, width, pitch, part, PARTS, STRIP, COLUMNS,
            )  # fmt: skip
        elif task < multiplied + joined:
            _join_task(
                task - multiplied, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride,
                column_stride, flags, entry_flags, digits, listed, expansions, rows, columns, measures, lost,
                systems + rung * (CONSTANTS + LIMBS * MODULI), nothing_there, counts, state + REPAIRED + 1 + run,
                i_first, j_first, first_of_group, m, n, terms, q, moduli, left_bits, right_bits, balance, below, blocks,
                words, batches, row_batches, column_batches, of_height, of_width, part, PRECISION, PARTS, TILE, STRIP,
                COLUMNS,
            )  # fmt: skip
        elif task >= multiplied + joined + of_rows:
            _split_task(
                task - multiplied - joined - of_rows, b, b_batch, b_column, b_step, columns, measures, right,
                lost + row_batches * m, powers + SYSTEMS * (WORDS * POWERS), base, j_first, first_of_group,
                row_batches * m, n, vectors, terms, right_bits, balance, moduli, batches, column_batches, width, pitch,
                part, PARTS, B_ALONG, True,
            )  # fmt: skip
        else:
            _split_task(
                task - multiplied - joined, a, a_batch, a_row, a_step, rows, measures, left, lost,
                powers + rung * (WORDS * POWERS), base, i_first, first_of_group, 0, m, vectors, terms, left_bits,
                balance, moduli, batches, row_batches, height, pitch, part, PARTS, A_ALONG, False,
            )  # fmt: skip
        finished(done)
        ticket = take(tickets)
    wait_for(done, total)
