"""Operands measured anew, for entries that no number of moduli is expected to decide as they are.

Zeros, and powers of two that move from one operand to the other, change no term of a product. So

- an inner index at which one operand is zero counts for neither;
- the elements a[i, h] are divided by 2^g(h), and b[h, j] multiplied by it: not at all, or so that the largest elements
  of both at h are alike, or those of a, or those of b, are alike at all h (`_moved`);
- a few inner indices whose elements need many more bits than all others are left apart: their terms are added to the
  integers' product without error (`many_sum.with_product`).

All other elements need D = E(i) - l bits, where 2^l is the lowest bit of any element at h in units of 2^±g(h), and
E(i) is the least exponent with |a[i, h]|·2^-g(h) < 2^E(i). If a system of moduli has room for the most bits of rows and
of columns together, all its entries are exact. If not, the side that needs fewer has them all, and the other rounds.

Each part of a complex entry is a sum of twice as many real products (`exact.factors`). These are different ones, so
each part has its own numbers: an inner index is one of these products.

Each number is an integer maximum or sum, so the order of the programs changes none. An operand is read three times for
each part; about 30 operations an element and choice of g. A g that is nearly alike at all h is as good as none and not
measured.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import factors, significand
from prismm.cuda.kernels.fp64 import (
    EXPONENT,
    LARGEST,
    LOW32,
    STATISTICS,
    bit_number,
    bits_of,
    ceiling,
    exponent_above,
    exponent_field,
    scaled,
    wide,
)
from prismm.cuda.residues.kernels.tickets import finished, take, wait_for

BALANCES = tl.constexpr(4)
"""Choices of g: 0, half the difference of both operands' exponents, a's, and b's negated."""

OFFSET = tl.constexpr(8192)
"""Added to exponents, of which the largest is looked for: 0 is below all of them."""

ALIKE = tl.constexpr(48)
"""Bits by which values of g may differ before that g is measured: six moduli's, which take about as long."""

SKIP = tl.constexpr(1 << 20)
"""Instead of g where an inner index does not count."""

APART, CHOICE = tl.constexpr(16), tl.constexpr(20)
"""The most inner indices that are left apart; integers of a choice: bits of rows and of columns, their number, which.
"""

SAMPLES, RECORD = tl.constexpr(128), tl.constexpr(7)
"""Entries that are looked at, and integers of each: its kind, row, column, part, and exponent; bits of each side with
which its rounding is sure; and facts of it.
"""

UNDECIDED, IN_VAIN, DEEP, ODDS = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4), tl.constexpr(8)
"""Facts, a bit each: twice float64's precision does not decide the entry; its row and column are `too_wide` as they
are, or however they are balanced. The multiple of ODDS in it is the x for which chance makes one in 2^x such entries
BY_A_HAIR.
"""

ORDINARY_ENTRY, BY_A_HAIR = tl.constexpr(1), tl.constexpr(2)
"""Kinds of entries: what rounds them is so near that only exact products decide, or it is not; 0 is none."""

NORM_BITS = tl.constexpr(20)
"""Norms are in units of 2^(E - 20)."""

MOST_BITS = tl.constexpr(286)
"""That a side may have."""

TILE_VECTORS, TILE_TERMS, TILES = tl.constexpr(32), tl.constexpr(64), tl.constexpr(4)
"""Vectors and inner indices of one tile of a measurement, and tiles that a ticket takes along its vectors."""

# Where numbers begin in the workspace, in int32, of V vectors of both sides and K inner indices: norms (BALANCES, V)
# int64; whether vectors lost bits in each of two runs; scales (BALANCES, V); ends (2, V); tops (2, K); depths
# (BALANCES, 2, K). All of these begin as 0. Then g (BALANCES, K), the choices, and the entries of the sample. A second
# part's numbers follow the first one's.
LOST_AT, SCALES_AT, ENDS_AT, TOPS_AT = tl.constexpr(8), tl.constexpr(10), tl.constexpr(14), tl.constexpr(16)
DEPTHS_AT, MOVED_AT, CHOICES_AT = tl.constexpr(2), tl.constexpr(10), tl.constexpr(14)


@triton.jit
def of_part(measures, vectors, k, part):
    """Where the numbers of a part begin, of an operand or of several entries."""
    size = wide(vectors) * TOPS_AT + wide(k) * CHOICES_AT + (BALANCES * CHOICE + SAMPLES * RECORD)
    return measures + size * part


@triton.jit
def lost_of(measures, vectors):
    """Where it is told whether vectors lost bits."""
    return measures + wide(vectors) * LOST_AT


@triton.jit
def _scales(measures, vectors):
    return measures + wide(vectors) * SCALES_AT


@triton.jit
def _tops(measures, vectors):
    return measures + wide(vectors) * TOPS_AT


@triton.jit
def zeros_of(vectors, k):
    """How many numbers begin as 0."""
    return wide(vectors) * TOPS_AT + wide(k) * MOVED_AT


@triton.jit
def _choices(measures, vectors, k):
    return _tops(measures, vectors) + wide(k) * CHOICES_AT


@triton.jit
def choice_of(measures, vectors, k, balance):
    """(bits of rows, bits of columns, how many inner indices are left apart, where they stand)."""
    choice = _choices(measures, vectors, k) + balance * CHOICE
    return tl.load(choice), tl.load(choice + 1), tl.load(choice + 2), choice + 3


@triton.jit
def _records(measures, vectors, k, sample):
    return _choices(measures, vectors, k) + BALANCES * CHOICE + sample * RECORD


@triton.jit
def record_entry(measures, vectors, k, sample, kind, row, column, part, exponent, need, facts):
    """Keep an entry of the sample, its row and column as numbers of vectors, and the exponent of its size. The entries
    of all parts stand among the first one's numbers.
    """
    record = _records(measures, vectors, k, sample)
    tl.store(record, kind)
    tl.store(record + 1, row)
    tl.store(record + 2, column)
    tl.store(record + 3, exponent)
    tl.store(record + 4, need)
    tl.store(record + 5, facts)
    tl.store(record + 6, part)


@triton.jit
def voters_of(measures, vectors, k):
    """(kind, need, facts) of all entries of the sample; the latter two of those that are there."""
    record = _records(measures, vectors, k, tl.arange(0, SAMPLES))
    return tl.load(record), tl.load(record + 4), tl.load(record + 5)


@triton.jit
def scale_of(measures, vectors, balance, v, inside):
    """E of some vectors."""
    return tl.load(_scales(measures, vectors) + wide(vectors) * balance + v, mask=inside, other=0) - OFFSET


@triton.jit
def norm_of(measures, vectors, balance, v, inside):
    """An upper bound of Σ|a|·2^-g·2^(20 - E) of some vectors, as int64."""
    norms = measures.to(tl.pointer_type(tl.int64))
    return tl.load(norms + wide(vectors) * balance + v, mask=inside, other=0)


@triton.jit
def moved_of(measures, vectors, k, balance, h):
    """g of some inner indices, SKIP where they do not count."""
    at = _tops(measures, vectors) + wide(k) * (MOVED_AT + balance) + h
    return tl.load(at, mask=h < k, other=SKIP)


@triton.jit
def nothing_meets(measures, vectors, k, row, column, inside):
    """Whether the inner indices at which a row is not zero end before those of a column begin, or the reverse."""
    ends = measures + wide(vectors) * ENDS_AT
    row_first, row_last = (
        tl.load(ends + row, mask=inside, other=0),
        tl.load(ends + vectors + row, mask=inside, other=0),
    )
    first, last = (tl.load(ends + column, mask=inside, other=0), tl.load(ends + vectors + column, mask=inside, other=0))
    # First ones are counted from the end.
    return (row_last + first <= k) | (last + row_first <= k)


@triton.jit
def _moved(of_a, of_b, balance):
    """g at inner indices whose largest elements have such exponents."""
    x, y = of_a - OFFSET, of_b - OFFSET
    return tl.where(balance == 1, (x - y) >> 1, tl.where(balance == 2, x, tl.where(balance == 3, -y, 0)))


@triton.jit
def _magnitudes(x, vector_step, step, finite, at, h, vectors, k, turned, PARTS: tl.constexpr, ALONG: tl.constexpr):
    """|x| of some vectors at some inner indices, 0 for vectors that are not finite. turned: 1 where a complex element's
    imaginary part comes first, else 0. ALONG: elements lie side by side, so step is PARTS.
    """
    mask = (at < vectors)[:, None] & (h < k)[None, :]
    # A step that the compiler knows tells it that the elements of a vector are read together; else vectors are.
    if PARTS == 1:
        along = h if ALONG else h.to(tl.int64) * step
    else:
        along = h ^ turned if ALONG else (h >> 1).to(tl.int64) * step + ((h & 1) ^ turned)
    place = x + (at.to(tl.int64)[:, None] * vector_step + along[None, :])
    value = tl.load(place, mask=mask, other=0.0).to(tl.float64)
    return tl.where(finite[:, None], tl.abs(value), 0.0)


@triton.jit(noinline=True)
def _measure_tile(
    task, stage, measured, x, batch_step, vector_step, step, stats, measures, first, all_vectors, vectors, k, right,
    part, PARTS: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Some tiles of one operand, for one part. Stage 0: the largest exponent at each inner index. 1: E of each vector,
    and where its elements begin and end. 2: bits at each inner index, and norms. measured: a bit for each g that is
    looked at.
    """
    depths = tl.cdiv(k, TILE_TERMS * TILES)
    each = wide(tl.cdiv(vectors, TILE_VECTORS)) * depths
    batch = task // each
    at = (task % each // depths * TILE_VECTORS).to(tl.int32) + tl.arange(0, TILE_VECTORS)
    first_term = (task % depths * (TILE_TERMS * TILES)).to(tl.int32)
    inside = at < vectors
    largest = tl.load(stats + batch * STATISTICS * vectors + LARGEST * vectors + at, mask=inside, other=0)
    finite = largest < EXPONENT
    v = first + batch * vectors + at
    measures = of_part(measures, all_vectors, k, part)
    tops = _tops(measures, all_vectors)
    scales, ends = _scales(measures, all_vectors), measures + wide(all_vectors) * ENDS_AT
    norms = measures.to(tl.pointer_type(tl.int64))
    for h0 in range(first_term, tl.minimum(first_term + TILE_TERMS * TILES, k), TILE_TERMS):
        h = h0 + tl.arange(0, TILE_TERMS)
        of_a = tl.load(tops + h, mask=h < k, other=0)
        of_b = tl.load(tops + k + h, mask=h < k, other=0)
        live = (of_a > 0) & (of_b > 0)
        value = _magnitudes(
            x + batch * batch_step, vector_step, step, finite, at, h, vectors, k, part * right, PARTS, ALONG
        )  # fmt: skip
        if stage == 0:
            e = tl.where(value != 0.0, exponent_above(bits_of(value)).to(tl.int32) + OFFSET, 0)
            tl.atomic_max(tops + right * k + h, tl.max(e, 0), mask=h < k, sem="relaxed")
        else:
            some = (value != 0.0) & live[None, :]
            for balance in range(BALANCES):
                if (measured >> balance) & 1 != 0:
                    g = _moved(of_a, of_b, balance)
                    g = (g * (2 * right - 1))[None, :]
                    if stage == 1:
                        e = exponent_above(bits_of(value)).to(tl.int32) + g
                        top = tl.max(tl.where(some, e + OFFSET, 0), 1)
                        tl.atomic_max(scales + wide(all_vectors) * balance + v, top, mask=inside, sem="relaxed")
                    else:
                        scale = tl.load(scales + wide(all_vectors) * balance + v, mask=inside, other=0) - OFFSET
                        mantissa, unit = significand(value)
                        low = bit_number(mantissa & -mantissa).to(tl.int32) + unit.to(tl.int32) + g
                        depth = tl.max(tl.where(some, scale[:, None] - low, 0), 0)
                        of_depths = tops + wide(k) * (DEPTHS_AT + 2 * balance + right)
                        tl.atomic_max(of_depths + h, depth, mask=h < k, sem="relaxed")
                        by = tl.maximum(NORM_BITS + g - scale[:, None], -2000)
                        size = ceiling(scaled(tl.where(some, value, 0.0), tl.where(some, by, 0)))
                        norm = tl.sum(size, 1).to(tl.int64)
                        tl.atomic_add(norms + wide(all_vectors) * balance + v, norm, mask=inside, sem="relaxed")
            if stage == 1:
                place = ends + v
                tl.atomic_max(place, tl.max(tl.where(some, (k - h)[None, :], 0), 1), mask=inside, sem="relaxed")
                place += all_vectors
                tl.atomic_max(place, tl.max(tl.where(some, (h + 1)[None, :], 0), 1), mask=inside, sem="relaxed")


@triton.jit(noinline=True)
def _leave_apart(balance, measures, vectors, k, most, BLOCK: tl.constexpr):
    """Leave inner indices of a part apart until the bits of the others are at most so many, if few suffice; write g
    down. Each that needs more alone has to be left: where those are too many, none is.
    """
    tops = _tops(measures, vectors)
    left = tops + wide(k) * (DEPTHS_AT + 2 * balance)
    right = left + k
    choice = _choices(measures, vectors, k) + balance * CHOICE
    lanes = tl.arange(0, BLOCK)
    count = tl.full([], 0, tl.int32)
    whole_rows = tl.full([], 0, tl.int32)
    whole_columns = tl.full([], 0, tl.int32)
    alone = tl.full([], 0, tl.int32)
    for h0 in range(0, k, BLOCK):
        h = h0 + lanes
        x, y = tl.load(left + h, mask=h < k, other=0), tl.load(right + h, mask=h < k, other=0)
        whole_rows = tl.maximum(whole_rows, tl.max(x, 0))
        whole_columns = tl.maximum(whole_columns, tl.max(y, 0))
        alone += tl.sum((x + y > most).to(tl.int32), 0)
    of_rows, of_columns = whole_rows, whole_columns
    looking = (alone <= APART) & (of_rows + of_columns > most)
    while looking:
        of_rows = of_rows * 0
        of_columns = of_columns * 0
        worst = tl.full([], -1, tl.int64)
        for h0 in range(0, k, BLOCK):
            h = h0 + lanes
            x, y = tl.load(left + h, mask=h < k, other=0), tl.load(right + h, mask=h < k, other=0)
            of_rows = tl.maximum(of_rows, tl.max(x, 0))
            of_columns = tl.maximum(of_columns, tl.max(y, 0))
            worst = tl.maximum(worst, tl.max(((x + y).to(tl.int64) << 32) | h.to(tl.int64), 0))
        if (of_rows + of_columns <= most) | (count == APART) | (worst < 0):
            looking = looking & False
        else:
            at = worst & LOW32
            x, y = tl.load(left + at), tl.load(right + at)
            tl.debug_barrier()
            # Negative: no maximum any more.
            tl.store(left + at, -x)
            tl.store(right + at, -y)
            tl.store(choice + 3 + count, at.to(tl.int32))
            count += 1
            tl.debug_barrier()
    if of_rows + of_columns > most:
        of_rows, of_columns = whole_rows, whole_columns
        count = count * 0
    tl.store(choice, of_rows)
    tl.store(choice + 1, of_columns)
    tl.store(choice + 2, count)
    for h0 in range(0, k, BLOCK):
        h = h0 + lanes
        of_a = tl.load(tops + h, mask=h < k, other=0)
        of_b = tl.load(tops + k + h, mask=h < k, other=0)
        x, y = tl.load(left + h, mask=h < k, other=0), tl.load(right + h, mask=h < k, other=0)
        counts = (of_a > 0) & (of_b > 0) & ((count == 0) | ((x >= 0) & (y >= 0)))
        g = tl.where(counts, _moved(of_a, of_b, balance), SKIP)
        tl.store(tops + wide(k) * (MOVED_AT + balance) + h, g, mask=h < k)


@triton.jit(noinline=True)
def _worth(tops, k, BLOCK: tl.constexpr):
    """A bit each choice of g that is worth measuring: 0, and those that are not alike at all inner indices."""
    lanes = tl.arange(0, BLOCK)
    found = tl.full([], 1, tl.int32)
    for balance in range(1, BALANCES):
        least = tl.full([], 1 << 20, tl.int32)
        most = tl.full([], -(1 << 20), tl.int32)
        for h0 in range(0, k, BLOCK):
            h = h0 + lanes
            of_a, of_b = tl.load(tops + h, mask=h < k, other=0), tl.load(tops + k + h, mask=h < k, other=0)
            live, g = (of_a > 0) & (of_b > 0), _moved(of_a, of_b, balance)
            least = tl.minimum(least, tl.min(tl.where(live, g, 1 << 20), 0))
            most = tl.maximum(most, tl.max(tl.where(live, g, -(1 << 20)), 0))
        found |= tl.where(most - least > ALIKE, 1 << balance, 0)
    return found


@triton.jit
def measure(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, rows, columns, measures, tickets, most, in_vain, m, n, k,
    row_batches, column_batches, PARTS: tl.constexpr, A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Measure both operands for g = 0 and for every other that differs enough between inner indices, of which there are
    k for each part; waits until all is done. Returns a bit for each g that is measured. most: bits of the largest
    system. in_vain: whether g = 0 is not measured, since it cannot help (`too_wide`).
    """
    vectors = row_batches * m + column_batches * n
    across = tl.cdiv(k, TILE_TERMS * TILES)
    of_rows = wide(tl.cdiv(m, TILE_VECTORS)) * across * row_batches
    each = of_rows + wide(tl.cdiv(n, TILE_VECTORS)) * across * column_batches
    total = each * PARTS
    measured = tl.full([], 1, tl.int32)
    for stage in range(3):
        if stage == 1:
            measured = _worth(_tops(measures, vectors), k, BLOCK)
            if PARTS == 2:
                measured |= _worth(_tops(of_part(measures, vectors, k, 1), vectors), k, BLOCK)
            measured = tl.where(in_vain, measured & ~1, measured)
            total = tl.where(measured != 0, total, 0)
        task = take(tickets + 2 * stage)
        while task < total:
            part, tile = (task // each).to(tl.int32), task % each
            if tile < of_rows:
                _measure_tile(
                    tile, stage, measured, a, a_batch, a_row, a_step, rows, measures, 0, vectors, m, k, 0, part, PARTS,
                    A_ALONG,
                )  # fmt: skip
            else:
                _measure_tile(
                    tile - of_rows, stage, measured, b, b_batch, b_column, b_step, columns, measures, row_batches * m,
                    vectors, n, k, 1, part, PARTS, B_ALONG,
                )  # fmt: skip
            finished(tickets + 2 * stage + 1, 1)
            task = take(tickets + 2 * stage)
        wait_for(tickets + 2 * stage + 1, total)
    task = take(tickets + 6)
    while task < BALANCES * PARTS:
        balance = (task % BALANCES).to(tl.int32)
        if (measured >> balance) & 1 != 0:
            _leave_apart(balance, of_part(measures, vectors, k, task // BALANCES), vectors, k, most, BLOCK)
        finished(tickets + 7, 1)
        task = take(tickets + 6)
    wait_for(tickets + 7, BALANCES * PARTS)
    return measured


@triton.jit
def too_wide(
    a, a_step, a_exponent, b, b_step, b_exponent, exponent, k, room, part, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Facts: whether a row of k elements below 2^a_exponent and a column below 2^b_exponent show that measuring cannot
    help with g = 0 (IN_VAIN), and that as a rule it does not with any g (DEEP). exponent: of the size of their product.

    IN_VAIN: each needs half of the room, more inner indices than may be left apart need more than all of it, and
    neither vector begins or ends with a zero. With any g, row and column together have at each inner index the bits
    from their largest term down to the lowest bit there. DEEP: at most inner indices these are more than the room.
    """
    lanes = tl.arange(0, BLOCK)
    of_row = tl.full([], 0, tl.int32)
    of_column = tl.full([], 0, tl.int32)
    alone = tl.full([], 0, tl.int32)
    ends = tl.full([], 0, tl.int32)
    deep = tl.full([], 0, tl.int32)
    live = tl.full([], 0, tl.int32)
    terms = PARTS * k
    # The largest term is at least the sum divided by the number of terms.
    above = a_exponent + b_exponent - exponent + exponent_above(bits_of((k * PARTS).to(tl.float64))).to(tl.int32)
    for h0 in range(0, terms, BLOCK):
        h = h0 + lanes
        x, y = factors(a, a_step, b, b_step, h.to(tl.int64), terms, part, PARTS)
        x_bits, y_bits = _bits_below(x, a_exponent), _bits_below(y, b_exponent)
        of_row = tl.maximum(of_row, tl.max(x_bits, 0))
        of_column = tl.maximum(of_column, tl.max(y_bits, 0))
        both = (x != 0.0) & (y != 0.0)
        alone += tl.sum((both & (x_bits + y_bits > room)).to(tl.int32), 0)
        ends += tl.sum((both & ((h == 0) | (h == terms - 1))).to(tl.int32), 0)
        deep += tl.sum((both & (x_bits + y_bits - above > room)).to(tl.int32), 0)
        live += tl.sum(both.to(tl.int32), 0)
    half = room // 2
    in_vain = (of_row >= half) & (of_column >= room - half) & (alone > APART) & (ends == 2)
    return tl.where(in_vain, IN_VAIN, 0) + tl.where((deep > APART) & (2 * deep > live), DEEP, 0)


@triton.jit
def _bits_below(x, exponent):
    """Bits from 2^exponent down to the lowest of x, 0 of a zero."""
    mantissa, unit = significand(x)
    lowest = bit_number(mantissa & -mantissa).to(tl.int32) + unit.to(tl.int32)
    return tl.where(x != 0.0, exponent - lowest, 0)


@triton.jit
def shared_bits(of_rows, of_columns, room):
    """(bits of rows, of columns) of so many together: all that are needed, or no side less than the other for want."""
    left = tl.minimum(tl.minimum(of_rows, tl.maximum(room // 2, room - of_columns)), MOST_BITS)
    return left, tl.minimum(tl.minimum(of_columns, room - left), MOST_BITS)


@triton.jit
def decided_by(measures, vectors, k, balance, room, spare):
    """Of 128 entries of the sample and some systems of so much room, whether the system decides the entry; not where
    the sample has fewer. spare: bits below an entry's exponent that suffice.
    """
    record = _records(measures, vectors, k, tl.arange(0, SAMPLES))
    kind, row, column = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    there = kind > 0
    measures = of_part(measures, vectors, k, tl.where(there, tl.load(record + 6), 0))
    of_rows, of_columns, _, _ = choice_of(measures, vectors, k, balance)
    of_rows, of_columns = of_rows[:, None], of_columns[:, None]
    scale = scale_of(measures, vectors, balance, row, there) + scale_of(measures, vectors, balance, column, there)
    left, right = shared_bits(of_rows, of_columns, room[None, :])
    row_loses, column_loses = of_rows > left, of_columns > right
    # ½·2^(E_i + E_j)·(2^-left·‖b‖₁ + 2^-right·‖a‖₁), of which each is below 2^(this).
    row_size = exponent_field(norm_of(measures, vectors, balance, row, there).to(tl.float64)) - (1022 + NORM_BITS)
    size = exponent_field(norm_of(measures, vectors, balance, column, there).to(tl.float64)) - (1022 + NORM_BITS)
    lost = tl.where(row_loses, size[:, None] - left, -9999)
    lost = tl.maximum(lost, tl.where(column_loses, row_size[:, None] - right, -9999))
    enough = lost + scale[:, None] <= (tl.load(record + 3) - spare)[:, None]
    enough = enough & (kind == ORDINARY_ENTRY)[:, None]
    zero = nothing_meets(measures, vectors, k, row, column, there)
    exact = (row_loses | column_loses) == 0
    return (exact | zero[:, None] | enough) & there[:, None]
