"""Products of slices, grouped without error: a run of the matrix unit for each p + q, one integer an entry at the end.

With slices p, q = 0 … d - 1 of β bits the value is Σ_s 2^(β·(G-1-s))·S_s, S_s the sum of the products of all pairs with
p + q = s, for s < G: G = d where only p + q < d are kept, 2·d - 1 for all. S_s is one run along the inner dimension, of
slices that lie side by side (`slice_split`). From the last group up the accumulator takes them all in turn: when S_s is
in, its lowest β bits are stored, the rest shifted by as many, which loses nothing, and group s - 1 added to that. So
what is stored is the value to the base 2^β: G - 1 numbers of β bits and, after the first group, the integer above them.

The accumulator is an integer of T = 31 bits and a sign, of 63 for digits in float64. |digits| <= D, 2^(β-1) or, toward
zero, 2^β - 1, so that |S_s| <= d·width·D² in a block of the inner dimension of that width, and the carry is below
2^(T-β) + 1. `widest` says which width keeps both below 2^T; longer inner dimensions go in blocks, whose numbers the
join adds. INT8 units add to it themselves. Floating-point units add integers exactly as far as their own accumulators
hold them, `longest_sum` terms: 2^24/D² of 16 bits, 2^53/D² of float64; then their sums are added to it. What a tensor
core that truncates drops is below the last place of its largest addend, an integer below 2^24: nothing
(`schemes.slice_layout`).

Bytes: d·(m + n)·k digits of operands, times the tiles that read them again; G numbers written an entry and block.
Operations: 2·k an entry and pair. On an H200 at n = 4096 seven slices of FP16, fast, take 6.9 ms, 560 TOP/s of 989
(cuBLAS 764): a tile of 128 x 128 asks the L2 cache for 12 TB/s at the full rate, and one of 128 x 256 has no registers
for both sums. A loop for each of the unit's sums took 9.1 ms, three stages instead of five 8.1; 64 x 256 entries take
7.7. Two slices of FP64 take 10.3 ms, 53 TFLOP/s of 67 (cuBLAS 60); eight warps 15.2, a depth of 32 the same, of 64
15.4.
"""

import triton
import triton.language as tl

from prismm.cuda.residues.kernels.product import grouped

TILES = {1: (128, 128, 64), 2: (128, 128, 64), 8: (64, 64, 16)}
"""Rows, columns and depth of a tile, by the bytes of a digit."""
# Rows of tiles that go together, so that the L2 cache still holds the operands they share.
GROUP = 8


def launch(size: int, sm90: bool) -> dict[str, int]:
    """Warps and stages; a stage takes 16 KiB of shared memory, for FP16 32, of which not every GPU has more than 99."""
    return {"num_warps": 4 if size == 8 else 8, "num_stages": 5 if sm90 and size > 1 else 3}


PADDED = 128
"""Widths of blocks are multiples of this."""


def largest_digit(bits: int, truncated: bool = False) -> int:
    """D."""
    return (1 << bits) - 1 if truncated else 1 << (bits - 1)


def longest_sum(bits: int, size: int, truncated: bool = False) -> int:
    """Terms that a unit for digits of so many bits and bytes adds exactly.

    >>> longest_sum(8, 1), longest_sum(8, 2), longest_sum(12, 2), longest_sum(21, 8), longest_sum(8, 2, True)
    (131071, 1024, 4, 8192, 258)
    """
    limit = {1: (1 << 31) - 1, 2: 1 << 24, 8: 1 << 53}[size]
    return limit // largest_digit(bits, truncated) ** 2


def most_bits(size: int, truncated: bool = False) -> int:
    """Of digits of which a unit adds a tile's depth exactly.

    >>> most_bits(1), most_bits(2), most_bits(8), most_bits(2, True)
    (13, 10, 25, 9)
    """
    return max(bits for bits in range(1, 27) if longest_sum(bits, size, truncated) >= TILES[size][2])


def widest(slices: int, bits: int = 8, size: int = 1, truncated: bool = False) -> int:
    """The longest block: slices·width·D² + 2^(T-β) + 1 < 2^T; of digits of that many bytes.

    >>> widest(7), widest(3), widest(3, 21, 8), widest(8, 7, 1, True)
    (18432, 43264, 2796032, 16384)
    """
    top = 63 if size == 8 else 31
    terms = ((1 << top) - (1 << (top - bits)) - 2) // (slices * largest_digit(bits, truncated) ** 2)
    # Multiples of twice PADDED, to which `cut_for` rounds the widths of long vectors: none then exceeds this.
    return max(terms // (2 * PADDED) * (2 * PADDED), PADDED)


@triton.jit
def run(s, SLICES: tl.constexpr):
    """Of the pairs with p + q = s: how many there are, where p begins, and where q, counted from the end."""
    first = tl.maximum(s - (SLICES - 1), 0)
    return tl.minimum(s, SLICES - 1) - first + 1, first, SLICES - 1 - s + first


@triton.jit(do_not_specialize=["m", "n", "left_step", "right_step", "blocks"])
def slice_product(
    left, right, low, top, m, n, width, pitch, left_plane, right_plane, left_step, right_step, row_pitch, plane,
    blocks, SLICES: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, SUM: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of one block of the inner dimension of one matrix (program axis 1).

    left, right: rows of `pitch` digits, matrices left_plane and right_plane apart, left_step and right_step (0 or 1)
    from one to the next. low: GROUPS - 1 planes of BITS bits an entry, the lowest first, top: one of what is above
    them, for each block of a matrix; rows of row_pitch entries, `plane` in each. SUM: so many terms, in multiples of
    DEPTH, a floating-point unit adds before they go to the accumulator.
    """
    FLOATS: tl.constexpr = left.dtype.element_ty != tl.int8
    SUMS: tl.constexpr = tl.float64 if left.dtype.element_ty == tl.float64 else tl.float32
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
    acc = tl.zeros([ROWS, COLUMNS], top.dtype.element_ty)
    sums = tl.zeros([ROWS, COLUMNS], SUMS)
    for back in range(GROUPS):
        pairs, p, q = run(GROUPS - 1 - back, SLICES)
        for h0 in range(0, pairs * width, DEPTH):
            # No mask along the terms: blocks are padded with zeros to multiples of every depth.
            x = tl.load(a + (p * width + h0), mask=(i < m)[:, None], other=0)
            y = tl.trans(tl.load(b + (q * width + h0), mask=(j < n)[:, None], other=0))
            if FLOATS:
                sums = tl.dot(x, y, sums, out_dtype=SUMS)
                # In this loop, so that tiles keep coming while sums are put away.
                if (h0 + DEPTH) % SUM == 0:
                    acc += sums.to(acc.dtype)
                    sums = tl.zeros([ROWS, COLUMNS], SUMS)
            else:
                acc = tl.dot(x, y, acc, out_dtype=tl.int32)
        # This group's sums have to be in before the shift, as the next group's have another weight.
        if FLOATS:
            acc += sums.to(acc.dtype)
            sums = tl.zeros([ROWS, COLUMNS], SUMS)
        if back < GROUPS - 1:
            # In two's complement the low bits have no sign and the shift rounds down, so both together are the
            # accumulator.
            to = low + (unit * (GROUPS - 1) + back) * plane
            tl.store(to + at, (acc & ((1 << BITS) - 1)).to(low.dtype.element_ty), mask=inside)
            acc = acc >> BITS
    tl.store(top + unit * plane + at, acc, mask=inside)
