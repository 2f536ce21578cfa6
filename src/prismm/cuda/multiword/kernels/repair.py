"""Repair of products of words: flagged entries are summed in float64, whose products of two float32 are exact.

A tile of 64 x 64 entries with many flags is made by the FP64 matrix instructions, at the speed of a native float64
product; single flagged entries by a program of their own. Either sum errs by less than (k + 2)·2^-53·|a||b| (Jeannerod
and Rump 2013, in any order), and cannot overflow: an entry whose row or column is not finite is what IEEE's sum gives,
in any order, and one without any nonzero product is 0. Then one rounding, to infinity where the sum is as large. Where
64 times that error leaves undecided whether the entry overflows, or where a target asks for more (EXACT), the entry is
summed exactly (`exact.exact_value`). In a tile |a||b| is taken for k times the largest magnitudes of a row and a
column.

A program reads the flags of 64 tiles at a time, 32 KiB of them, which a bit a tile sums up, and several share them
where there are few: mostly none is set, and a check costs one read, whatever its size. Per repaired entry 8·k
bytes and 4·k operations alone, k/4 bytes in a tile.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import exact_value
from prismm.cuda.kernels.overflow import TOP
from prismm.cuda.multiword.kernels.join import add_row

SPECIAL, SUMMED, DOUBLE, SCHEME_VALUE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""Which of `counts` grows: not finite, summed exactly, in float64, or left as it was."""

SLACK = tl.constexpr(7.7e-15)
"""Above 64·2^-53, for roundings of a sum's error."""

SIDE, TILES, MANY = tl.constexpr(64), tl.constexpr(64), tl.constexpr(48)
"""Rows and columns of a tile, tiles that a program reads, flags from which a tile is made as one."""


@triton.jit
def _repair_entry(
    a, a_step, b, b_step, target, addend, counts, k, part, PARTS: tl.constexpr, RAW: tl.constexpr,
    EXACT: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """One entry: of a complex product its real (part 0) or imaginary part."""
    # Lanes enough to hide how far apart the elements of a column are.
    LANES: tl.constexpr = 4 * BLOCK
    lanes = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float64)
    size = tl.zeros([LANES], tl.float64)
    for h0 in range(0, k * PARTS, LANES):
        h = h0 + lanes
        inside = h < k * PARTS
        if PARTS == 2:
            # (re, im, …) times (re, -im, …) or (im, re, …)
            x_at = (h // 2).to(tl.int64) * a_step + (h & 1)
            y_at = (h // 2).to(tl.int64) * b_step + ((h & 1) ^ part)
        else:
            x_at = h.to(tl.int64) * a_step
            y_at = h.to(tl.int64) * b_step
        x = tl.load(a + x_at, mask=inside, other=0.0).to(tl.float64)
        y = tl.load(b + y_at, mask=inside, other=0.0).to(tl.float64)
        if PARTS == 2:
            y = tl.where((part == 0) & (h & 1 == 1), -y, y)
        total += x * y
        size += tl.abs(x * y)
    value = tl.sum(total, 0)
    finite = value - value == 0.0
    # k < 2^23, so that the float64 sum errs by less than 2^-29 of it; 64 times that, for `combine.SPARE`.
    error = tl.sum(size, 0) * (2.0**-23)
    may_overflow = (tl.abs(value) + error >= TOP) & (tl.abs(value) - error < TOP)
    path = tl.where(finite, DOUBLE, SPECIAL)
    if finite & (may_overflow | EXACT):
        value = exact_value(a, a_step, b, b_step, k, part, PARTS, 24, BLOCK)
        path = path * 0 + SUMMED
    value = tl.where(finite & (tl.abs(value) >= TOP), tl.where(value > 0.0, float("inf"), float("-inf")), value)
    if RAW:
        # Law 4: the scheme's own value, unless the exact one disagrees about infinity.
        of_scheme = tl.load(target).to(tl.float64)
        infinite = tl.abs(value) == float("inf")
        if (
            finite
            & (of_scheme == of_scheme)
            & (infinite == (tl.abs(of_scheme) == float("inf")))
            & (~infinite | (of_scheme == value))
        ):
            value = of_scheme
            path = path * 0 + SCHEME_VALUE
    found = value.to(tl.float32)
    if ADDS:
        found += tl.load(addend)
    tl.store(target, found)
    tl.atomic_add(counts + path, 1, sem="relaxed")


@triton.jit
def _tile(
    a, a_row, a_step, b, b_column, b_step, out, row_stride, addend, counts, i0, j0, m, n, k, flagged,
    PARTS: tl.constexpr, DEPTH: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """The flagged entries of a tile by float64 products; returns those of which these leave open whether they overflow:
    products that cancel may take what overflows with them.
    """
    i = i0 + tl.arange(0, SIDE)
    j = j0 + tl.arange(0, SIDE)
    part = j & 1
    acc = tl.zeros([SIDE, SIDE], tl.float64)
    of_row = tl.zeros([SIDE], tl.float32)
    of_column = tl.zeros([SIDE], tl.float32)
    for h0 in range(0, k * PARTS, DEPTH):
        h = h0 + tl.arange(0, DEPTH)
        if PARTS == 2:
            x_at = (h // 2).to(tl.int64) * a_step + (h & 1)
            y_at = (h // 2).to(tl.int64)[:, None] * b_step + ((h & 1)[:, None] ^ part[None, :])
        else:
            x_at = h.to(tl.int64) * a_step
            y_at = h.to(tl.int64)[:, None] * b_step
        inside = h < k * PARTS
        x = tl.load(
            a + i.to(tl.int64)[:, None] * a_row + x_at[None, :], mask=(i < m)[:, None] & inside[None, :], other=0.0
        )
        y_at += (j // PARTS).to(tl.int64)[None, :] * b_column
        y = tl.load(b + y_at, mask=inside[:, None] & (j < n)[None, :], other=0.0)
        of_row = tl.maximum(of_row, tl.max(tl.abs(x), 1))
        of_column = tl.maximum(of_column, tl.max(tl.abs(y), 0))
        if PARTS == 2:
            y = tl.where((part == 0)[None, :] & (h & 1 == 1)[:, None], -y, y)
        acc = tl.dot(x.to(tl.float64), y.to(tl.float64), acc, out_dtype=tl.float64)
    finite = acc - acc == 0.0
    terms = k.to(tl.float64) * PARTS + 2.0
    error = (terms * terms * SLACK) * of_row.to(tl.float64)[:, None]
    error = error * of_column.to(tl.float64)[None, :]
    surely_below = tl.abs(acc) + error < 1.7014118346046923e38  # 2^127
    left = flagged & finite & ~surely_below & ~(tl.abs(acc) - error >= TOP)
    done = flagged & ~left
    target = out + i.to(tl.int64)[:, None] * row_stride + j[None, :]
    found = acc.to(tl.float32)
    if ADDS:
        found = add_row(found, addend, 1, j, n)
    tl.store(target, found, mask=done)
    tl.atomic_add(counts + SPECIAL, tl.sum((done & ~finite).to(tl.int64)), sem="relaxed")
    tl.atomic_add(counts + DOUBLE, tl.sum((done & finite).to(tl.int64)), sem="relaxed")
    return left


@triton.jit
def _piece(
    a, a_row, a_step, b, b_column, b_step, out, row_stride, addend, flags, counts, i0, j0, m, n, k, flag_pitch,
    PARTS: tl.constexpr, RAW: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
    DENSE: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """All flagged entries of a tile of SIDE x SIDE."""
    i = i0 + tl.arange(0, SIDE)
    j = j0 + tl.arange(0, SIDE)
    word = tl.load(
        flags + i.to(tl.int64)[:, None] * flag_pitch + (j // 32)[None, :], mask=(i < m)[:, None] & (j < n)[None, :],
        other=0,
    )  # fmt: skip
    flagged = ((word >> (j % 32)[None, :]) & 1) != 0
    # A tile takes float64 sums for all its flags: RAW keeps values that are good, and EXACT wants better sums.
    if DENSE and not RAW and not EXACT:
        if tl.sum(flagged.to(tl.int32)) >= MANY:
            flagged = _tile(
                a, a_row, a_step, b, b_column, b_step, out, row_stride, addend, counts, i0, j0, m, n, k, flagged,
                PARTS, DEPTH, ADDS,
            )  # fmt: skip
    index = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    pending = tl.where(flagged, index, SIDE * SIDE)
    first = tl.min(pending)
    while first < SIDE * SIDE:
        row = (i0 + first // SIDE).to(tl.int64)
        column = (j0 + first % SIDE).to(tl.int64)
        _repair_entry(
            a + row * a_row, a_step, b + column // PARTS * b_column, b_step, out + row * row_stride + column,
            addend + column, counts, k, (column % PARTS).to(tl.int32), PARTS, RAW, EXACT, BLOCK, ADDS,
        )  # fmt: skip
        pending = tl.where(index == first, SIDE * SIDE, pending)
        first = tl.min(pending)


@triton.jit(
    do_not_specialize=[
        "a_row", "a_step", "a_batch", "b_column", "b_step", "b_batch", "row_stride", "batch_stride", "m", "n", "k",
        "flag_pitch", "batches", "shares",
    ],
    do_not_specialize_on_alignment=["addend"],
)  # fmt: skip
def repair_words(
    a, a_row, a_step, a_batch, b, b_column, b_step, b_batch, out, row_stride, batch_stride, addend, flags,
    counts, m, n, k, flag_pitch, batches, shares, PARTS: tl.constexpr, RAW: tl.constexpr, EXACT: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, DENSE: tl.constexpr, WIDE: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Set the flagged entries of out (batches, m, n); counts[SPECIAL], [SUMMED], [DOUBLE], [SCHEME_VALUE] grow.

    a, b, out, their strides and n: in real numbers, imaginary parts (PARTS is 2) one after the real ones. DENSE: tiles
    with many flags are made at once. WIDE: neighbouring tiles that a program reads, so that TILES/WIDE lie on
    top of each other; shares: programs for the same tiles. ADDS: whether the row at `addend`, n numbers, is added to
    each row, in float32 to nearest; not where RAW is.
    """
    HIGH: tl.constexpr = TILES // WIDE
    tall, wide = tl.cdiv(m, HIGH * SIDE), tl.cdiv(flag_pitch, 2 * WIDE)
    share = tl.program_id(0) % shares
    rows, words = tl.arange(0, HIGH * SIDE), tl.arange(0, 2 * WIDE)
    tile = tl.arange(0, HIGH)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    for block in range(tl.program_id(0) // shares, tall * wide * batches, tl.num_programs(0) // shares):
        batch = (block // (tall * wide)).to(tl.int64)
        i0 = block % (tall * wide) // wide * (HIGH * SIDE)
        w0 = block % wide * (2 * WIDE)
        matrix_flags = flags + batch * m * flag_pitch
        i, w = i0 + rows, w0 + words
        some = tl.load(
            matrix_flags + i.to(tl.int64)[:, None] * flag_pitch + w[None, :], mask=(i < m)[:,
            None] & (w < flag_pitch)[None, :], other=0,
        )  # fmt: skip
        of_tiles = tl.max(tl.max((some != 0).to(tl.int32).reshape(HIGH, SIDE, WIDE, 2), 3), 1)
        flagged = tl.sum(of_tiles.to(tl.int64) << tile)
        if flagged != 0:
            for x in range(share, TILES, shares):
                if (flagged >> x) & 1 != 0:
                    _piece(
                        a + batch * a_batch, a_row, a_step, b + batch * b_batch, b_column, b_step,
                        out + batch * batch_stride, row_stride, addend, matrix_flags, counts,
                        i0 + x // WIDE * SIDE, w0 * 32 + x % WIDE * SIDE, m, n, k, flag_pitch, PARTS, RAW, EXACT,
                        BLOCK, DEPTH, DENSE, ADDS,
                    )  # fmt: skip
