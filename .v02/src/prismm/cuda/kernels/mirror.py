"""The lower triangle of square matrices copied across the diagonal: the last step of a symmetric product.

Bytes: half the result is read and half of it written, 0.13 GB of float64 at n = 4096, which is 0.05 ms at 2.7 TB/s. A
tile is turned in registers, so that rows are both read and written whole.
"""

import triton
import triton.language as tl

SIDE = 64
"""Rows and columns of a tile."""


@triton.jit(do_not_specialize=["tiles"])
def mirror(out, n, tiles, PARTS: tl.constexpr, CONJUGATE: tl.constexpr, SIDE: tl.constexpr):
    """out (batches, n, n), contiguous: every entry above the diagonal is the one below it; CONJUGATE: its conjugate,
    and imaginary parts of the diagonal are 0. out: real numbers, imaginary parts (PARTS is 2) one after the real ones.

    A program a tile of tiles² in each matrix; those above the diagonal have nothing to do.
    """
    tile = tl.program_id(0) % (tiles * tiles)
    row, column = tile // tiles, tile % tiles
    if row < column:
        return
    out += (tl.program_id(0) // (tiles * tiles)).to(tl.int64) * n * n * PARTS
    i = row * SIDE + tl.arange(0, SIDE)
    j = column * SIDE + tl.arange(0, SIDE)
    below = (i[:, None] > j[None, :]) & (i < n)[:, None]
    source = out + (i.to(tl.int64)[:, None] * n + j[None, :]) * PARTS
    target = out + (j.to(tl.int64)[:, None] * n + i[None, :]) * PARTS
    for part in tl.static_range(PARTS):
        value = tl.load(source + part, mask=below, other=0.0)
        if CONJUGATE and part == 1:
            value *= -1.0  # Triton's minus is a difference from 0, which loses the sign of 0
            zeros = tl.zeros([SIDE], out.dtype.element_ty)
            tl.store(out + i.to(tl.int64) * (n + 1) * 2 + 1, zeros, mask=(i < n) & (row == column))
        tl.store(target + part, tl.trans(value), mask=tl.trans(below))
