"""The product of `TileInt8` for any GPU with INT8 matrix instructions: `tile_int8.kernels.product_sm90` in plain
Triton.

One tile of ROWS x COLUMNS entries a program. In each step of the inner dimension the sums S of segment products of one
weight are INT32 sums, exactly; from the smallest weight upwards t = S + 2^-7·t, and c = c + t·2^(g + g' - 12), to
nearest. Operations: 2·m·n·k a product of segments.
"""

import triton
import triton.language as tl

from prismm.cuda.residues.kernels.product import grouped
from prismm.cuda.tile_int8.kernels.split import even, times

ROWS, COLUMNS = 128, 64
LAUNCH = {"num_warps": 8, "num_stages": 2}


@triton.jit(do_not_specialize=["m", "width", "depth", "row_step", "batch_stride", "left_tiles", "right_tiles"])
def tile_product(
    planes, out, weights, shifts, m, width, depth, row_step, batch_stride, left_tiles, right_tiles,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, WEIGHTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, GIVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """out (batches, m, width) = A·B; program axis 1 is the batch. planes, weights, shifts: `split_tiles`'s.

    LEFT, RIGHT: segments; WEIGHTS: sums that are made of them. GIVEN: weights are those of the data as given.
    """
    n = even(width, EVEN)
    row_stride = even(row_step, EVEN)
    batch, batches = tl.program_id(1), tl.num_programs(1)
    row, column = grouped(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS), GROUP)
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.arange(0, WIDTH)
    many, more = batches * m, batches * n
    all_rows = (LEFT * many + RIGHT * more).to(tl.int64)
    a = planes + (batch * m + i).to(tl.int64)[:, None] * WIDTH + h[None, :]
    b = planes + (LEFT * many + batch * n + j).to(tl.int64)[None, :] * WIDTH + h[:, None]
    in_m, in_n = (i < m)[:, None], (j < n)[None, :]
    row_weight = weights + batch * left_tiles + i // TILE_ROWS
    column_weight = weights + batches * left_tiles + batch * right_tiles + j // TILE_COLUMNS
    c = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(tl.cdiv(depth, WIDTH)):
        x = tl.load(row_weight, mask=i < m, other=0.0)
        y = tl.load(column_weight, mask=j < n, other=0.0)
        t = tl.zeros([ROWS, COLUMNS], tl.float32)
        # In the CPU's order, the smallest weight first: every fold rounds, so another order has other bits.
        for back in tl.static_range(WEIGHTS):
            total = tl.zeros([ROWS, COLUMNS], tl.int32)
            for p in tl.static_range(LEFT):
                if (WEIGHTS - 1 - back - p >= 0) and (WEIGHTS - 1 - back - p < RIGHT):
                    left = tl.load(a + p * many.to(tl.int64) * WIDTH, mask=in_m, other=0)
                    right = tl.load(
                        b + (WEIGHTS - 1 - back - p) * more.to(tl.int64) * WIDTH, mask=in_n, other=0
                    )  # fmt: skip
                    total = tl.dot(left, right, total, out_dtype=tl.int32)
            # 2^-7, as weights are a segment of 7 bits apart.
            t = total.to(tl.float32) + t * 0.0078125
        c = c + t * (x[:, None] * y[None, :])
        a += all_rows * WIDTH
        b += all_rows * WIDTH
        row_weight += batches * (left_tiles + right_tiles)
        column_weight += batches * (left_tiles + right_tiles)
    if not GIVEN:
        e = tl.load(shifts + batch * m + i, mask=i < m, other=0)
        f = tl.load(shifts + many + batch * n + j, mask=j < n, other=0)
        # EMPTY and BROKEN are no exponents; cut to these ends they scale sums of 0.
        e = tl.minimum(tl.maximum(e, -256), 256)
        f = tl.minimum(tl.maximum(f, -256), 256)
        c = times(c, e[:, None] + f[None, :])
    target = out + batch.to(tl.int64) * even(batch_stride, EVEN) + i.to(tl.int64)[:, None] * row_stride + j[None, :]
    tl.store(target, c, mask=in_m & in_n)
