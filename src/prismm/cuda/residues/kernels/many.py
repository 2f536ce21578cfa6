"""Uncertified entries of many rows and columns, made again by up to 49 moduli, all within one kernel.

`many_choice` chooses how many moduli.

Programs take tickets (`tickets`), whose order is that of the work: splits of a panel of rows and one of columns, then
their products, then their joins and, in the same stage, the splits of the next panels. Before the work of a ticket they
wait until all work of earlier stages is done.

Per panel of R rows and C columns, M moduli and k terms: M·(R + C)·k bytes of residues, 2·M·R·C·k operations in INT8,
M·R·C bytes of digits.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import STATISTICS, multiple, wide
from prismm.cuda.residues.kernels.balance import BALANCES, choice_of, lost_of, of_part, shared_bits
from prismm.cuda.residues.kernels.many_choice import (
    REPAIRED,
    RUN,
    RUNG,
    SYSTEMS,
    choose,
    seconds_again,
    seconds_alone,
    spared_bits,
    with_spared,
)
from prismm.cuda.residues.kernels.many_join import CONSTANTS, LIMBS
from prismm.cuda.residues.kernels.many_split import POWERS, split_tile
from prismm.cuda.residues.kernels.many_tile import SHARE, join_task
from prismm.cuda.residues.kernels.product import reduced
from prismm.cuda.residues.kernels.repair import tiles_of
from prismm.cuda.residues.kernels.tickets import finished, take, wait_for

MODULI = tl.constexpr(49)
"""The most."""

WORDS = tl.constexpr(13)
"""Words of a table of powers, four moduli each."""

AREA = tl.constexpr(1 << 14)
"""The unit, in bytes, of places in workspace that `rungs` tells."""

SIDE, DEPTH = tl.constexpr(128), tl.constexpr(128)
"""Rows and columns of a product's tile, and terms of a step."""

VECTORS, TERMS = tl.constexpr(32), tl.constexpr(64)
"""Of a tile that is split at once."""

CHUNK = tl.constexpr(1 << 15)
"""Terms after which sums of residues are reduced: below 2^29 + 2^8."""


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
    ALONG: tl.constexpr, RIGHT: tl.constexpr, NVIDIA: tl.constexpr,
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
            PARTS, ALONG, RIGHT, VECTORS, TERMS, NVIDIA,
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


@triton.jit
def _bits_of(measures, vectors, terms, balance, room):
    """Bits of rows and of columns of a part that was balanced."""
    of_rows, of_columns, _, _ = choice_of(measures, vectors, terms, balance)
    return shared_bits(of_rows, of_columns, room)


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
    pitch, alpha, beta, beta_i, c, c_batch, c_row, c_column, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    NVIDIA: tl.constexpr,
):  # fmt: skip
    """Make flagged entries again by the rung-th number of moduli, in panels; waits until all is done. counts[EXACT] and
    state[REPAIRED + 1 + run] grow by those that are proved, whose flags are taken back.

    space: of workspace, for residues (matrices·moduli, rows of a panel, pitch) int8, likewise of columns, and digits
    (matrices·moduli, rows, columns) uint8. listed, expansions: (SHARE·COLUMNS,) int32 and (4, EXPANDED) float64 of the
    program's; measures: as `balance` lays them out. powers (SYSTEMS + 1, WORDS, POWERS) int32: left for each system,
    then right; base, reduction: of all moduli. systems: of each, as `many_join.expansion` takes it. rungs: (SYSTEMS,
    RUNG) int32. alpha to c_column: as of `many_join.join_entries`, None where out is AB.
    """
    rungs += RUNG * rung
    moduli, left_bits, right_bits = tl.load(rungs), tl.load(rungs + 1), tl.load(rungs + 2)
    below, of_height, of_width, group = tl.load(rungs + 3), tl.load(rungs + 4), tl.load(rungs + 5), tl.load(rungs + 6)
    left, right = space, space + wide(tl.load(rungs + 7)) * AREA
    digits = (space + wide(tl.load(rungs + 8)) * AREA).to(tl.pointer_type(tl.uint8))
    # Triton learns from this how wide accesses may be.
    pitch, height, width = multiple(pitch, DEPTH), multiple(of_height, SIDE), multiple(of_width, SIDE)
    vectors = row_batches * m + column_batches * n
    first_measures = measures
    lost = lost_of(measures, vectors) + wide(run) * vectors
    room = left_bits + right_bits
    if balance < BALANCES:
        if PARTS == 1:
            left_bits, right_bits = _bits_of(measures, vectors, terms, balance, room)
    else:
        spared = spared_bits(state, terms, q)
        right_bits = with_spared(right_bits, spared - spared // 2)
        left_bits = with_spared(left_bits, spared // 2)
    row_panels, column_panels = tl.cdiv(m, height), tl.cdiv(n, width)
    depths = pitch // TERMS
    row_splits, column_splits = (height // VECTORS) * depths * group, (width // VECTORS) * depths * group
    products = (height // SIDE) * (width // SIDE) * moduli * group
    joins = (height // SHARE) * (width // COLUMNS) * group
    # Split rows serve all panels of columns, and both parts unless each is balanced in its own way.
    of_rows_panel = column_panels * PARTS
    alike = of_rows_panel
    if PARTS == 2:
        alike = tl.where(balance < BALANCES, column_panels, alike)
    steps = tl.cdiv(batches, group) * row_panels * of_rows_panel
    total = wide(steps) * (products + joins + column_splits) + wide(steps // alike) * row_splits
    tickets = state + RUN + 2 * run
    done = tickets + 1
    # The tickets that this program has waited for, and the first ticket of the step.
    known = tl.full([], -1, tl.int64)
    start = tl.full([], 0, tl.int64)
    step = tl.full([], -1, tl.int32)
    # Tickets whose work is done, which is told to others when this program begins to wait for theirs, and at the end.
    untold = tl.full([], 0, tl.int32)
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
            finished(done, untold)
            untold = untold * 0
            wait_for(done, begin)
            known = begin
        # The panels that are multiplied and joined, or those of the next step, which are split.
        of_step = tl.where(task < multiplied + joined, step, step + 1)
        j_first = of_step % column_panels * width
        part = of_step // column_panels % PARTS
        i_first = of_step // of_rows_panel % row_panels * height
        first_of_group = of_step // (of_rows_panel * row_panels) * group
        if PARTS == 2:
            if balance < BALANCES:
                measures = of_part(first_measures, vectors, terms, part)
                lost = lost_of(measures, vectors) + wide(run) * vectors
                left_bits, right_bits = _bits_of(measures, vectors, terms, balance, room)
        if task < multiplied:
            _product_task(
                task, left, right, digits, flags, reduction, i_first, j_first, first_of_group, moduli, blocks, words,
                batches, row_batches, column_batches, height, width, pitch, part, PARTS, STRIP, COLUMNS,
            )  # fmt: skip
        elif task < multiplied + joined:
            join_task(
                task - multiplied, a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride,
                column_stride, flags, entry_flags, digits, listed, expansions, rows, columns, measures, lost,
                systems + rung * (CONSTANTS + LIMBS * MODULI), nothing_there, counts, state + REPAIRED + 1 + run,
                i_first, j_first, first_of_group, m, n, terms, q, moduli, left_bits, right_bits, balance, below, blocks,
                words, batches, row_batches, column_batches, of_height, of_width, part, alpha, beta, beta_i, c, c_batch,
                c_row, c_column, PRECISION, PARTS, TILE, STRIP, COLUMNS,
            )  # fmt: skip
        elif task >= multiplied + joined + of_rows:
            _split_task(
                task - multiplied - joined - of_rows, b, b_batch, b_column, b_step, columns, measures, right,
                lost + row_batches * m, powers + SYSTEMS * (WORDS * POWERS), base, j_first, first_of_group,
                row_batches * m, n, vectors, terms, right_bits, balance, moduli, batches, column_batches, width, pitch,
                part, PARTS, B_ALONG, True, NVIDIA,
            )  # fmt: skip
        else:
            _split_task(
                task - multiplied - joined, a, a_batch, a_row, a_step, rows, measures, left, lost,
                powers + rung * (WORDS * POWERS), base, i_first, first_of_group, 0, m, vectors, terms, left_bits,
                balance, moduli, batches, row_batches, height, pitch, part, PARTS, A_ALONG, False, NVIDIA,
            )  # fmt: skip
        # Threads may still read what the next ticket's work overwrites.
        tl.debug_barrier()
        untold += 1
        ticket = take(tickets)
    finished(done, untold)
    wait_for(done, total)


@triton.jit
def make_again(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
    entry_flags, rows, columns, counts, state, space, listed, expansions, measures, powers, base, reduction, systems,
    nothing_there, rungs, seconds, uncertified, m, n, k, terms, q, blocks, words, batches, row_batches, column_batches,
    pitch, alpha, beta, beta_i, c, c_batch, c_row, c_column, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Make uncertified entries again by the number of moduli that `choose` finds, if any. If many are left, and more
    moduli are expected to be faster than single sums, make these again by the most moduli. Returns the number of
    entries that are left, and 1 if `choose` found a number of moduli, else 0.
    """
    entries = wide(batches) * PARTS * m * n
    elements = (wide(row_batches) * m + wide(column_batches) * n) * terms
    rung, balance, undecided = choose(
        a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, flags, entry_flags, rows, columns, rungs, seconds,
        measures, state, uncertified, entries, elements, m, n, k, terms, q, blocks, words, batches, row_batches,
        column_batches, alpha, beta, beta_i, c, c_batch, c_row, c_column, PRECISION, PARTS, A_ALONG, B_ALONG, TILE,
        STRIP, COLUMNS, BLOCK,
    )  # fmt: skip
    run = tl.full([], 0, tl.int32)
    run = tl.where(rung == SYSTEMS, 2, run)
    tried = (rung < SYSTEMS).to(tl.int32)
    while run < 2:
        multiply_again(
            a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, out_batch, row_stride, column_stride, flags,
            entry_flags, space, listed, expansions, measures, rows, columns, powers, base, reduction, systems,
            nothing_there, rungs, counts, state, run, rung, balance, m, n, terms, q, blocks, words, batches,
            row_batches, column_batches, pitch, alpha, beta, beta_i, c, c_batch, c_row, c_column, PRECISION, PARTS,
            A_ALONG, B_ALONG, TILE, STRIP, COLUMNS, NVIDIA,
        )  # fmt: skip
        uncertified -= tl.load(state + REPAIRED + 1 + run)
        # Once more by the most moduli, which may make all exact, if the remaining entries are worth that.
        last = rung == SYSTEMS - 1
        rung = tl.full([], 0, tl.int32) + (SYSTEMS - 1)
        alone = uncertified.to(tl.float32) * seconds_alone(seconds, 1.0, undecided, k)
        run = tl.where(last | (alone < seconds_again(seconds, rungs, rung, entries, elements, k)), 2, run + 1)
    return uncertified, tried
