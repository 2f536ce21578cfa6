"""Sums of the shares of a product of words: added in float32, in their order, and certified.

Few tiles and a long inner dimension leave a GPU's processors idle, so the chunks of a tile are shared among several
(`launches.shares_for`). The order of the sums is that of the shares, whichever is there first: the bits do not depend
on the run. A chunk's sum meets no more roundings than there are chunks, as without shares: those of its own share, and
one for each share after it.

Bytes: 4 an entry and share are read, 4 written, and the scales of all chunks for the rows and columns of each tile.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import even

ROWS, COLUMNS = 32, 128
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def flag_tile(
    acc, top_x, top_y, flags, batch, i, j, m, n, flag_pitch, least, reach, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """A flag, a bit in rows of flag_pitch words, on every entry of a tile that is not sure: see
    `product_sm90.words_product`. top_x, top_y: largest scales of the rows i and the columns j.
    """
    largest = top_x[:, None] * top_y[None, :]
    size = tl.abs(acc)
    smallest, error = least.to(tl.float32, bitcast=True), reach.to(tl.float32, bitcast=True)
    sure = (size >= largest * smallest) & (size + largest * error < 170141183460469231731687303715884105728.0)  # 2^127
    bits = tl.where((i < m)[:, None] & (j < n)[None, :] & ~sure, 1, 0) << (j & 31)[None, :]
    word = tl.sum(tl.reshape(bits, [ROWS, COLUMNS // 32, 32]), 2)
    jw = tl.min(j, 0) // 32 + tl.arange(0, COLUMNS // 32)
    at_word = flags + (batch * m + i).to(tl.int64)[:, None] * flag_pitch + jw[None, :]
    tl.store(at_word, word, mask=(i < m)[:, None] & (jw < flag_pitch)[None, :])


@triton.jit
def add_row(acc, addend, adds, j, n):
    """acc + the row at `addend`, in float32 to nearest, where adds is not 0."""
    if adds != 0:
        acc = acc + tl.load(addend + j, mask=j < n, other=0.0)[None, :]
    return acc


@triton.jit(
    do_not_specialize=[
        "adds", "shares", "chunks", "m", "width", "pitch", "plane", "row_step", "batch_stride", "flag_pitch", "least",
        "reach",
    ],
    do_not_specialize_on_alignment=["addend"],
)  # fmt: skip
def add_shares(
    sums, out, scales, flags, addend, adds, shares, chunks, m, width, pitch, plane, row_step, batch_stride, flag_pitch,
    least, reach, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, EVEN_SUMS: tl.constexpr,
):  # fmt: skip
    """out (batches, m, width), program axis 1 the batch, and a flag on every entry that is not sure.

    sums: (shares, batches, m, pitch) in float32, `plane` numbers from one matrix to the next. scales: of `split_words`,
    for so many chunks. addend, adds: as of `words_product`. EVEN, EVEN_SUMS: width and the strides of out, and those of
    sums, are multiples of 16.
    """
    n = even(width, EVEN)
    batch, batches = tl.program_id(1), tl.num_programs(1)
    tiles_n = tl.cdiv(n, COLUMNS)
    i = tl.program_id(0) // tiles_n * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) % tiles_n * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < m)[:, None] & (j < n)[None, :]
    left_vectors = (batches * m + 15) // 16 * 16
    vectors = left_vectors + (batches * n + 15) // 16 * 16
    top_x = tl.zeros([ROWS], tl.float32)
    top_y = tl.zeros([COLUMNS], tl.float32)
    row_scale = scales + batch * m + i
    column_scale = scales + left_vectors + batch * n + j
    for _ in range(chunks):
        top_x = tl.maximum(top_x, tl.load(row_scale, mask=i < m, other=0.0))
        top_y = tl.maximum(top_y, tl.load(column_scale, mask=j < n, other=0.0))
        row_scale += vectors
        column_scale += vectors
    step = even(plane, EVEN_SUMS)
    source = sums + batch.to(tl.int64) * step
    source = source + i.to(tl.int64)[:, None] * even(pitch, EVEN_SUMS) + j[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(shares):
        acc += tl.load(source, mask=inside, other=0.0)
        source += batches.to(tl.int64) * step
    flag_tile(acc, top_x, top_y, flags, batch, i, j, m, n, flag_pitch, least, reach, ROWS, COLUMNS)
    acc = add_row(acc, addend, adds, j, n)
    target = out + batch.to(tl.int64) * even(batch_stride, EVEN)
    target = target + i.to(tl.int64)[:, None] * even(row_step, EVEN) + j[None, :]
    tl.store(target, acc, mask=inside)
