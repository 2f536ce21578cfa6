"""Products of slices, grouped without error: a run of the matrix unit for each p + q, one integer an entry at the end.

With slices p, q = 0 … d - 1 of eight bits the value is Σ_s 256^(G-1-s)·S_s, S_s the sum of the products of all pairs
with p + q = s, for s < G: G = d where only p + q < d are kept, 2·d - 1 for all. S_s is one run along the inner
dimension, of slices that lie side by side (`slice_split`). From the last group up the accumulator takes them all in
turn: when S_s is in, its low byte is stored, the rest shifted by eight bits, which loses nothing, and group s - 1 added
to that. So what is stored is the value to the base 256: G - 1 bytes and, after the first group, the 32 bits above them.

The accumulator stays below 2^31: |digits| <= 128, so that |S_s| <= d·width·2^14 in a block of the inner dimension of
that width, and the carry is below 2^23 + 1. `widest` says which width that allows; longer inner dimensions go in
blocks, whose numbers the join adds.

Bytes: d·(m + n)·k of operands, times the tiles that read them again; G + 3 written an entry and block. Operations: 2·k
an entry and pair.
"""

import triton
import triton.language as tl

from prismm.kernels.gpu.product import grouped

ROWS, COLUMNS, DEPTH, GROUP = 128, 128, 64, 8
LAUNCH = {"num_warps": 8, "num_stages": 3}

PADDED = 128
"""Widths of blocks are multiples of this."""


def widest(slices: int) -> int:
    """The longest block: slices·width·2^14 + 2^23 + 1 < 2^31.

    >>> widest(7), widest(3)
    (18560, 43392)
    """
    return ((1 << 31) - (1 << 23) - 2) // (slices << 14) // PADDED * PADDED


@triton.jit
def run(s, SLICES: tl.constexpr):
    """Of the pairs with p + q = s: how many there are, where p begins, and where q, counted from the end."""
    first = tl.maximum(s - (SLICES - 1), 0)
    return tl.minimum(s, SLICES - 1) - first + 1, first, SLICES - 1 - s + first


@triton.jit(do_not_specialize=["m", "n", "left_step", "right_step", "blocks"])
def slice_product(
    left, right, low, top, m, n, width, pitch, left_plane, right_plane, left_step, right_step, row_pitch, plane,
    blocks, SLICES: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of one block of the inner dimension of one matrix (program axis 1).

    left, right: rows of `pitch` digits, matrices left_plane and right_plane apart, left_step and right_step (0 or 1)
    from one to the next. low: GROUPS - 1 planes of bytes, the lowest first, top: one of int32, for each block of a
    matrix; rows of row_pitch entries, `plane` in each.
    """
    unit = tl.program_id(1).to(tl.int64)
    batch = unit // blocks
    row, column = grouped(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS), GROUP)
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.arange(0, DEPTH)
    start = unit % blocks * (SLICES * width) + h
    a = left + batch * left_step * left_plane + i.to(tl.int64)[:, None] * pitch + start[None, :]
    b = right + batch * right_step * right_plane + j.to(tl.int64)[:, None] * pitch + start[None, :]
    inside = (i < m)[:, None] & (j < n)[None, :]
    at = i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.int32)
    for back in range(GROUPS):
        pairs, p, q = run(GROUPS - 1 - back, SLICES)
        for h0 in range(0, pairs * width, DEPTH):
            x = tl.load(a + (p * width + h0), mask=(i < m)[:, None], other=0)
            y = tl.load(b + (q * width + h0), mask=(j < n)[:, None], other=0)
            acc = tl.dot(x, tl.trans(y), acc, out_dtype=tl.int32)
        if back < GROUPS - 1:
            to = low + (unit * (GROUPS - 1) + back) * plane
            tl.store(to + at, (acc & 255).to(tl.uint8), mask=inside)
            acc = acc >> 8
    tl.store(top + unit * plane + at, acc, mask=inside)
