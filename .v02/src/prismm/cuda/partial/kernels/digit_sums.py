"""Digits that came from several GPUs, added modulo each modulus.

Bytes: one read for each GPU and one written, per entry and modulus; three 32-bit operations a byte read. Of two GPUs,
15 moduli and 8192 · 4096 entries 1.5 GB, 0.4 ms at 4 TB/s.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import even, wide


@triton.jit(do_not_specialize=["pieces", "rows", "width", "row_step", "plane_step"])
def add_digit_shares(
    found, total, reduction, pieces, rows, width, row_step, plane_step, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """total (planes, rows, width) of these steps = Σ found (pieces, planes, rows, width), contiguous, modulo the first
    column of `reduction` (planes, 3). Numbers are in [0, p). EVEN: width and steps are multiples of 16. Program axis 1:
    planes.
    """
    columns, row_pitch, plane = even(width, EVEN), even(row_step, EVEN), even(plane_step, EVEN)
    piece = wide(rows) * columns * tl.num_programs(1)
    t = tl.program_id(1)
    p = tl.load(reduction + 3 * t)
    blocks = tl.cdiv(columns, BLOCK)
    i = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    at = found + (wide(rows) * columns * t + i.to(tl.int64)[:, None] * columns + j[None, :])
    digits = tl.load(at, mask=inside, other=0).to(tl.int32)
    for x in range(1, pieces):
        digits += tl.load(at + piece * x, mask=inside, other=0).to(tl.int32)
        digits = tl.where(digits >= p, digits - p, digits)
    target = total + (wide(plane) * t + i.to(tl.int64)[:, None] * row_pitch + j[None, :])
    tl.store(target, digits.to(tl.uint8), mask=inside)
