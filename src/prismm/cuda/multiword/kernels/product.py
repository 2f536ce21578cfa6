"""The product of words for any GPU with floating-point matrix instructions: `multiword.kernels.product_sm90` in plain
Triton.

One tile of 128 x 64 entries a program. High words are summed apart from all other products over a chunk of the inner
dimension; then both are scaled and added to the result, in float32 to nearest. Operations: 2·m·n·k a product of words.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import even
from prismm.cuda.multiword.kernels.join import add_row, flag_tile
from prismm.cuda.residues.kernels.product import grouped

ROWS, COLUMNS = 128, 64
LAUNCH = {"num_warps": 8, "num_stages": 3}


@triton.jit(
    do_not_specialize=["m", "width", "row_step", "batch_stride", "flag_pitch", "least", "reach", "adds"],
    do_not_specialize_on_alignment=["addend"],
)
def words_product(
    words, out, scales, flags, addend, adds, m, width, pitch, row_step, batch_stride, flag_pitch, least, reach,
    WORDS: tl.constexpr, DOWN: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr, SPLIT: tl.constexpr, LOWER: tl.constexpr = 0,
    SAME: tl.constexpr = False,
):  # fmt: skip
    """As `multiword.kernels.product_sm90.words_product`; words is a pointer, CHUNK in elements, program axis 1 the
    batch, and axis 2 the share where SPLIT says that there are several. LOWER: real numbers of an entry, where tiles
    above the diagonal, whose flags stay 0, are left out. SAME: columns are the rows, split once.
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
    begin = 0
    end = pitch
    if SPLIT:
        share, shares, chunks = tl.program_id(2), tl.num_programs(2), tl.cdiv(pitch, CHUNK)
        begin = share * chunks // shares * CHUNK
        end = tl.minimum(pitch, (share + 1) * chunks // shares * CHUNK)
        row_scale += begin // CHUNK * vectors
        column_scale += begin // CHUNK * vectors
    for start in range(begin, end, CHUNK):
        high = tl.zeros([ROWS, COLUMNS], tl.float32)
        rest = tl.zeros([ROWS, COLUMNS], tl.float32)
        # The pitch is a multiple of DEPTH, and what follows k is 0.
        for h0 in range(start, tl.minimum(end, start + CHUNK), DEPTH):
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
    plane = batch
    if SPLIT:
        plane += tl.program_id(2) * batches
    else:
        flag_tile(acc, top_x, top_y, flags, batch, i, j, m, n, flag_pitch, least, reach, ROWS, COLUMNS)
        acc = add_row(acc, addend, adds, j, n)
    target = out + plane.to(tl.int64) * even(batch_stride, EVEN) + i.to(tl.int64)[:, None] * row_stride + j[None, :]
    tl.store(target, acc, mask=in_m & in_n)
