"""Digits that came from several GPUs, added modulo each modulus.

Bytes: one read for each GPU and one written, per entry and modulus; three 32-bit operations a byte read. Of two GPUs,
15 moduli and 8192 · 4096 entries 1.5 GB, 0.4 ms at 4 TB/s.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide


@triton.jit(do_not_specialize=["pieces", "rows", "columns"])
def add_digit_shares(
    found, total, reduction, pieces, rows, columns, piece, row_pitch, plane, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """total (planes, rows, columns) of these pitches = Σ found (pieces, planes, rows, columns), contiguous, `piece`
    bytes each, modulo the first column of `reduction` (planes, 3). Numbers are in [0, p). Program axis 1: planes.
    """
    t = tl.program_id(1)
    p = tl.load(reduction + 3 * t)
    blocks = tl.cdiv(columns, BLOCK)
    i = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    at = found + (wide(rows) * columns * t + i.to(tl.int64)[:, None] * columns + j[None, :])
    digits = tl.load(at, mask=inside, other=0).to(tl.int32)
    for x in range(1, pieces):
        digits += tl.load(at + wide(piece) * x, mask=inside, other=0).to(tl.int32)
        digits = tl.where(digits >= p, digits - p, digits)
    target = total + (wide(plane) * t + i.to(tl.int64)[:, None] * row_pitch + j[None, :])
    tl.store(target, digits.to(tl.uint8), mask=inside)
