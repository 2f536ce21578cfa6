"""The product of words for any GPU with floating-point matrix instructions: `multiword.kernels.product_sm90` in plain
Triton.

One tile of 128 x 64 entries a program. High words are summed apart from all other products over a chunk of the inner
dimension; then both are scaled and added to the result, in float32 to nearest. Operations: 2·m·n·k a product of words.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import even
from prismm.cuda.residues.kernels.product import grouped

ROWS, COLUMNS = 128, 64
LAUNCH = {"num_warps": 8, "num_stages": 3}


@triton.jit(do_not_specialize=["m", "width", "row_step", "batch_stride", "flag_pitch", "least", "reach"])
def words_product(
    words, out, scales, flags, m, width, pitch, row_step, batch_stride, flag_pitch, least, reach,
    WORDS: tl.constexpr, DOWN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, LOWER: tl.constexpr = 0,
    SAME: tl.constexpr = False,
):  # fmt: skip
    """As `multiword.kernels.product_sm90.words_product`; words is a pointer, CHUNK in elements, program axis 1 the
    batch. LOWER: real numbers of an entry, where tiles above the diagonal, whose flags stay 0, are left out. SAME:
    columns are the rows, split once.
    """
    n = even(width, EVEN)
    row_stride = even(row_step, EVEN)
    batch, batches = tl.program_id(1), tl.num_programs(1)
    left_vectors = 0 if SAME else (batches * m + 15) // 16 * 16
    vectors = left_vectors + (batches * n + 15) // 16 * 16
    row, column = grouped(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS), GROUP)
    if LOWER:
        if (row + 1) * ROWS * LOWER <= column * COLUMNS:
            return
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.arange(0, DEPTH)
    left_plane = batches.to(tl.int64) * m * pitch
    right_plane = batches.to(tl.int64) * n * pitch
    a = words + (batch * m + i).to(tl.int64)[:, None] * pitch + h[None, :]
    b = words + (0 if SAME else WORDS * left_plane) + (batch * n + j).to(tl.int64)[None, :] * pitch + h[:, None]
    in_m, in_n = (i < m)[:, None], (j < n)[None, :]
    row_scale = scales + batch * m + i
    column_scale = scales + left_vectors + batch * n + j
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    top_x = tl.zeros([ROWS], tl.float32)
    top_y = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, pitch, CHUNK):
        high = tl.zeros([ROWS, COLUMNS], tl.float32)
        rest = tl.zeros([ROWS, COLUMNS], tl.float32)
        # The pitch is a multiple of DEPTH, and what follows k is 0.
        for h0 in range(start, tl.minimum(pitch, start + CHUNK), DEPTH):
            x0 = tl.load(a + h0, mask=in_m, other=0.0)
            y0 = tl.load(b + h0, mask=in_n, other=0.0)
            x1 = tl.load(a + left_plane + h0, mask=in_m, other=0.0)
            y1 = tl.load(b + right_plane + h0, mask=in_n, other=0.0)
            if WORDS == 3:
                x2 = tl.load(a + 2 * left_plane + h0, mask=in_m, other=0.0)
                y2 = tl.load(b + 2 * right_plane + h0, mask=in_n, other=0.0)
                rest = tl.dot(x2, y0, rest)
                rest = tl.dot(x1, y1, rest)
                rest = tl.dot(x0, y2, rest)
            rest = tl.dot(x1, y0, rest)
            rest = tl.dot(x0, y1, rest)
            high = tl.dot(x0, y0, high)
        x = tl.load(row_scale, mask=i < m, other=0.0)
        y = tl.load(column_scale, mask=j < n, other=0.0)
        # The row's scale first, as the bound's share of subnormal numbers has it (`multiword.launches`).
        acc = acc + (high + rest * DOWN) * x[:, None] * y[None, :]
        top_x = tl.maximum(top_x, x)
        top_y = tl.maximum(top_y, y)
        row_scale += vectors
        column_scale += vectors
    largest = top_x[:, None] * top_y[None, :]
    size = tl.abs(acc)
    smallest, error = least.to(tl.float32, bitcast=True), reach.to(tl.float32, bitcast=True)
    sure = (size >= largest * smallest) & (size + largest * error < 170141183460469231731687303715884105728.0)  # 2^127
    inside = in_m & in_n
    bits = tl.where(inside & ~sure, 1, 0) << (j & 31)[None, :]
    word = tl.sum(tl.reshape(bits, [ROWS, COLUMNS // 32, 32]), 2)
    jw = column * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    at_word = flags + (batch * m + i).to(tl.int64)[:, None] * flag_pitch + jw[None, :]
    tl.store(at_word, word, mask=(i < m)[:, None] & (jw < flag_pitch)[None, :])
    target = out + batch.to(tl.int64) * even(batch_stride, EVEN) + i.to(tl.int64)[:, None] * row_stride + j[None, :]
    tl.store(target, acc, mask=inside)
