"""How entries that a join left uncertified are made again: by how many moduli, of operands as they are or balanced.

A sample of the entries and the seconds that each way is expected to take decide this. With `bits` of a row's elements,
those of A' below 2^e lose half a unit, 2^(e - bits - 1), each, so that an entry of size |c| is rounded surely where
2^(e_i + e_j - bits)·(‖a‖₁·2^-e_i + ‖b‖₁·2^-e_j)/2 is far below half an ulp of it.

Where that takes longer than the largest system and a closer look at the operands, they are measured anew (`balance`).
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import (
    EXPONENT,
    LARGEST,
    LOW32,
    NORM1,
    STATISTICS,
    bit_length,
    bit_number,
    exponent_field,
    scaled,
    wide,
)
from prismm.cuda.residues.kernels.balance import (
    BALANCES,
    BY_A_HAIR,
    DEEP,
    IN_VAIN,
    ODDS,
    ORDINARY_ENTRY,
    SAMPLES,
    UNDECIDED,
    decided_by,
    measure,
    of_part,
    record_entry,
    too_wide,
    voters_of,
    zeros_of,
)
from prismm.cuda.residues.kernels.entries import decided, error_of_sums, fraction, sum_in_lanes
from prismm.cuda.residues.kernels.join_exact import bound_terms
from prismm.cuda.residues.kernels.many_sum import decided_times, with_addend
from prismm.cuda.residues.kernels.repair import strip_of, tiles_of
from prismm.cuda.residues.kernels.tickets import finished, take, wait_for

SYSTEMS = tl.constexpr(16)
"""Numbers of moduli that there are to choose from, a power of two of them."""

RUNG = tl.constexpr(9)
"""Integers of a system: moduli; bits of rows, and of columns; bits of the limbs that P does not take; of panels that
fit in workspace rows, columns, and matrices; and where residues of columns, and digits, begin there (`many.AREA`).
"""

WELL_ROUNDED = tl.constexpr(40)
"""Bits of a side with which all roundings of a vector are far below its norm (`spared_bits`)."""

PAIRED, EXACTLY, BY_SPLIT, BY_PRODUCT, BY_JOIN, START, MEASURED = (tl.constexpr(x) for x in range(7))
"""What `recompute.SECONDS` holds: for each term of an entry that is recomputed alone, in twice float64's precision, and
more where that does not decide; for each modulus of an element, of a product of two, and of an entry; for waiting; and
for each element that is measured anew.
"""

NO_CHANCE, FEW = tl.constexpr(60), tl.constexpr(3)
"""Larger odds are told as NO_CHANCE. FEW more entries of a sample than chance makes may be BY_A_HAIR and count as
ordinary ones.
"""

SPARE = tl.constexpr(6)
"""Bits beyond half an ulp that a method must have of an entry, so that 1 in 2^6 is left at most."""

# Counters of a join, behind that of its uncertified entries: tickets, and next to them how much of their work is done.
CERTIFY, CHOOSE, RUN, MEASURE, LISTING, LISTED, LAST = (tl.constexpr(x) for x in (1, 3, 5, 12, 20, 22, 23))
"""Tickets for strips that magnitudes certify, for the sample, for two runs, for four stages that measure operands, for
strips whose remaining entries are listed at the end, how many items that list has, and tickets for these, which no
program waits for.
"""

REPAIRED, NORMS = tl.constexpr(9), tl.constexpr(24)
"""How many entries magnitudes certified, and each run proved; the largest `NORM1` of rows, and of columns."""


@triton.jit(noinline=True)
def _vote(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, measures, sample,
    m, n, k, q, blocks, words, batches, row_batches, column_batches, alpha, beta, beta_i, c, c_batch, c_row, c_column,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Look at one uncertified entry of the sample's share of strips, if there is one, and record it."""
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
    entry_part = first * 0
    exponent = first * 0
    bits = first * 0
    facts = first * 0
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
        s, low, total, steps = sum_in_lanes(
            a + batch * a_batch + i * a_row, a_step, a_shift, b + batch * b_batch + j * b_column, b_step, b_shift, k,
            part, PARTS, BLOCK,
        )  # fmt: skip
        LEAST: tl.constexpr = -1022 if PRECISION == 53 else -126
        least = row_e * 0 + LEAST
        by = row_e * 0
        magnitude = n2a * n2b
        if alpha is not None:
            # In units of AB, so that its error counts as it does there; results have alpha's binades more.
            factor, of_alpha = fraction(alpha)
            by += of_alpha.to(tl.int32)
            least = tl.minimum(least - by, row_e + column_e + 900)
            of_c = c
            if c is not None:
                of_c = c + (batch * c_batch + i * c_row + j * c_column)
            s, low = with_addend(s, low, a_shift + b_shift, alpha, beta, beta_i, of_c, part, PARTS)
            _value, proved = decided_times(factor, s, low, by - (a_shift + b_shift), magnitude, steps, PRECISION)
        else:
            _value, proved = decided(s, low, -(a_shift + b_shift), magnitude, steps, PRECISION)
        # |s + low| and the norms in units of 2^(e_i + e_j): of numbers below the normal range only that range counts.
        size = scaled(tl.abs(s + low), tl.maximum(-(a_shift + b_shift) - (row_e + column_e), -2000))
        size = tl.maximum(size, scaled(size * 0.0 + 1.0, tl.maximum(least - (row_e + column_e), -1000)))
        norm = tl.load(rows + NORM1 * m + i).to(tl.float64) + tl.load(columns + NORM1 * n + j).to(tl.float64)
        # ceil(log2(norm·2^-q/2 / size)), one more at most.
        need = exponent_field(norm) - exponent_field(size) - q + PRECISION + 1 + SPARE
        bits += need.to(tl.int32)
        # Twice float64's precision has more than enough bits of it, and does not decide: something else is too near.
        error = error_of_sums(magnitude, steps)
        ample = tl.abs(s + low) > error * (4.0 * 2.0**PRECISION)
        near = (proved == 0) & ample
        kind += tl.where(near, BY_A_HAIR, ORDINARY_ENTRY)
        # Half an ulp is above 2^-(PRECISION + 1)·|s + low|, and what rounds a sum may lie anywhere within it.
        odds = tl.maximum(exponent_field(tl.abs(s + low)) - exponent_field(error) - PRECISION - 2, 0)
        facts += tl.where(ample, tl.minimum(odds, NO_CHANCE), NO_CHANCE) * ODDS
        of_row += (batch % row_batches * m + i).to(tl.int32)
        of_column += (row_batches * m + batch % column_batches * n + j).to(tl.int32)
        entry_part += part.to(tl.int32)
        of_size = exponent_field(tl.abs(s + low)) - 1023 - (a_shift + b_shift)
        exponent += tl.maximum(of_size, least)
        # In units of its own products (`doubled_by_itself`) the entry is surely decided but by rare chance.
        clear = tl.abs(s + low) > error_of_sums(total, steps) * 2.0 ** (PRECISION + SPARE)
        facts += tl.where(proved | (clear & ~near), 0, UNDECIDED)
        last = rungs + RUNG * (SYSTEMS - 1)
        room = tl.load(last + 1) + tl.load(last + 2)
        facts += too_wide(
            a + batch * a_batch + i * a_row, a_step, row_e, b + batch * b_batch + j * b_column, b_step, column_e,
            of_size, k, room, part, PARTS, BLOCK,
        )  # fmt: skip
    vectors = row_batches * m + column_batches * n
    record_entry(measures, vectors, PARTS * k, sample, kind, of_row, of_column, entry_part, exponent, bits, facts)


@triton.jit
def _largest_norm(stats, vectors, batches, found, first, step, BLOCK: tl.constexpr):
    """found = the largest `NORM1` of finite vectors, of every step-th block of them from the first on."""
    lanes = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.int64)
    total = wide(batches) * vectors
    for start in range(wide(first) * BLOCK, total, step * BLOCK):
        v = start + lanes
        there = v < total
        of_vector = stats + v // vectors * (STATISTICS * vectors) + v % vectors
        finite = tl.load(of_vector + LARGEST * vectors, mask=there, other=EXPONENT) < EXPONENT
        most = tl.maximum(most, tl.load(of_vector + NORM1 * vectors, mask=there & finite, other=0))
    tl.atomic_max(found, tl.max(most, 0), sem="relaxed")


@triton.jit
def spared_bits(state, terms, q):
    """By how many bits sums of so many terms are surely below terms·2^(left + right), so that sides may have more.

    |C'| <= ‖A'‖₁·2^right, and ‖A'‖₁ <= 2^left·N·2^-q + terms/2, N the largest `NORM1` of rows, at least 2^(q-1). With
    left >= `WELL_ROUNDED` and terms <= 2^17 the latter is below N·2^-20 in these units. Likewise of columns; the lesser
    N bounds it.
    """
    norm = tl.minimum(tl.load(state + NORMS), tl.load(state + NORMS + 1))
    above = bit_length(norm + (norm >> 20) + 1) - q
    return tl.maximum(bit_length(wide(terms) - 1) - tl.maximum(above, 0), 0).to(tl.int32)


@triton.jit
def with_spared(bits, spared):
    """Bits of a side that gets so many more, if it has `WELL_ROUNDED`."""
    return tl.where(bits >= WELL_ROUNDED, bits + spared, bits)


@triton.jit
def seconds_alone(seconds, share, undecided, k):
    """Of an average entry of so many terms: a share of the entries is summed in twice float64's precision, and another
    one, which that leaves undecided, exactly as well.
    """
    return k * (tl.load(seconds + PAIRED) * share + tl.load(seconds + EXACTLY) * undecided)


@triton.jit
def seconds_again(seconds, rungs, rung, entries, elements, k):
    """Of so many entries and elements of both operands, by the rung-th number of moduli, or by each of several."""
    each = entries.to(tl.float32) * (k * tl.load(seconds + BY_PRODUCT) + tl.load(seconds + BY_JOIN))
    each += elements.to(tl.float32) * tl.load(seconds + BY_SPLIT)
    return tl.load(rungs + RUNG * rung).to(tl.float32) * each + tl.load(seconds + START)


@triton.jit
def _count(some, least):
    """How many are true, as a float, or the least that counts."""
    return tl.maximum(tl.sum(some.to(tl.int32), 0), least).to(tl.float32)


@triton.jit
def _but_by_chance(kind, facts):
    """Kinds of entries. All that are BY_A_HAIR become ordinary ones if there are at most FEW more of them than chance
    makes: if twice float64's precision has hardly more bits than an entry needs, chance leaves some undecided.
    """
    near = kind == BY_A_HAIR
    by_chance = tl.sum(tl.where(kind > 0, tl.exp2(-(facts // ODDS).to(tl.float32)), 0.0), 0)
    kept = tl.where(_count(near, 0) > by_chance + FEW, BY_A_HAIR, ORDINARY_ENTRY)
    return tl.where(near, kept, kind)


@triton.jit
def _needing_more(some, need, bits):
    """(systems,): how many of some voters need more bits."""
    return tl.sum((some[:, None] & (need[:, None] > bits[None, :])).to(tl.int32), 0).to(tl.float32)


@triton.jit
def _left(kind, need, facts, bits, voters):
    """(systems,), twice: the share of entries that systems of so many bits a side are expected to leave, and of those
    that twice float64's precision does not decide either.

    A sample of 128 shows no share below 1/128. So the tenth of it that needs most bits is continued by an exponential
    tail with its mean: the entries beyond the sample may still be worth more moduli.
    """
    ordinary = kind == ORDINARY_ENTRY
    above = tl.sum((ordinary[None, :] & (need[None, :] > need[:, None])).to(tl.int32), 1)
    top = ordinary & (10.0 * above.to(tl.float32) < _count(ordinary, 1))
    least = tl.min(tl.where(top, need, 1 << 20), 0)
    count = _count(top, 0)
    mean = tl.sum(tl.where(top, need - least, 0), 0).to(tl.float32) / tl.maximum(count, 1.0)
    over = tl.maximum(bits - least, -1).to(tl.float32)
    tail = tl.where(over >= 0.0, count * tl.exp(-(over + 1.0) / tl.maximum(mean, 0.05)), 0.0)
    near = _count((kind > 0) & ~ordinary, 0)
    undecided = ordinary & (facts & UNDECIDED != 0)
    share = _count(undecided, 0) / _count(ordinary, 1)
    left = (near + tl.maximum(_needing_more(ordinary, need, bits), tail)) / voters
    return left, (near + tl.maximum(_needing_more(undecided, need, bits), share * tail)) / voters


@triton.jit
def _best(takes, found, best):
    """The fastest system and its time, or those given, if that system is not faster."""
    least = tl.min(takes, 0)
    first = tl.min(tl.where(takes == least, tl.arange(0, SYSTEMS), SYSTEMS), 0)
    return tl.where(least < best, first, found), tl.minimum(best, least)


@triton.jit
def choose(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, seconds,
    measures, state, uncertified, entries, elements, m, n, k, terms, q, blocks, words, batches, row_batches,
    column_batches, alpha, beta, beta_i, c, c_batch, c_row, c_column, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(rung, balance, share): the system that is expected to take the least time with the entries that it leaves, or
    SYSTEMS if summing all of them one by one takes less; how operands are balanced, or BALANCES; and the share of those
    left that twice float64's precision does not decide. Measures that begin as 0 become 0.
    """
    ticket = take(state + CHOOSE)
    vectors = row_batches * m + column_batches * n
    inner = PARTS * k
    zeros = zeros_of(vectors, inner)
    while ticket < SAMPLES:
        for v in range(ticket * BLOCK, zeros, SAMPLES * BLOCK):
            at = v + tl.arange(0, BLOCK)
            for part in tl.static_range(PARTS):
                place = of_part(measures, vectors, inner, part) + at
                tl.store(place, at.to(tl.int32) * 0, mask=at < zeros)
        _vote(
            a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, measures,
            ticket, m, n, k, q, blocks, words, batches, row_batches, column_batches, alpha, beta, beta_i, c, c_batch,
            c_row, c_column, PRECISION, PARTS, TILE, STRIP, COLUMNS, BLOCK,
        )  # fmt: skip
        _largest_norm(rows, m, row_batches, state + NORMS, ticket, SAMPLES, BLOCK)
        _largest_norm(columns, n, column_batches, state + NORMS + 1, ticket, SAMPLES, BLOCK)
        finished(state + CHOOSE + 1, 1)
        ticket = take(state + CHOOSE)
    wait_for(state + CHOOSE + 1, SAMPLES)
    kind, need, facts = voters_of(measures, vectors, inner)
    kind = _but_by_chance(kind, facts)
    voters = _count(kind > 0, 1)
    undecided = _count((kind > 0) & (facts & UNDECIDED != 0), 0) / voters
    many = uncertified.to(tl.float32)
    best = many * seconds_alone(seconds, 1.0, undecided, k)
    which = tl.arange(0, SYSTEMS)
    of_rows = tl.load(rungs + RUNG * which + 1)
    room = of_rows + tl.load(rungs + RUNG * which + 2)
    again = seconds_again(seconds, rungs, which, entries, elements, k)
    # The right side has no fewer bits.
    bits = with_spared(of_rows, spared_bits(state, terms, q) // 2)
    found = tl.full([], 0, tl.int32) + SYSTEMS
    left, of_left = _left(kind, need, facts, bits, voters)
    found, best = _best(again + many * seconds_alone(seconds, left, of_left, k), found, best)
    share = tl.sum(tl.where(which == found, of_left / tl.maximum(left, 1e-6), 0.0), 0)
    balance = tl.full([], 0, tl.int32) + BALANCES
    measuring = PARTS * elements.to(tl.float32) * tl.load(seconds + MEASURED)
    deep = 2.0 * _count((kind > 0) & (facts & DEEP != 0), 0) > voters
    if (best > measuring + seconds_again(seconds, rungs, SYSTEMS - 1, entries, elements, k)) & ~deep:
        in_vain = 2.0 * _count((kind > 0) & (facts & IN_VAIN != 0), 0) > voters
        worth = measure(
            a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, rows, columns, measures, state + MEASURE,
            tl.max(room, 0), in_vain, m, n, inner, row_batches, column_batches, PARTS, A_ALONG, B_ALONG, BLOCK,
        )  # fmt: skip
        for x in range(BALANCES):
            if (worth >> x) & 1 != 0:
                decides = decided_by(measures, vectors, inner, x, room, PRECISION + 1 + SPARE)
                shares = 1.0 - tl.sum(decides.to(tl.int32), 0).to(tl.float32) / voters
                before = best
                # What balanced operands leave is what cancels.
                takes = again + measuring + many * seconds_alone(seconds, shares, shares, k)
                found, best = _best(takes, found, best)
                balance = tl.where(best < before, x, balance)
                share = tl.where(best < before, 1.0, share)
    return found, balance, share
