"""Marks on the entries of a native product that are not finite, for `repair`: a bit each, 32 columns a word."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["m", "n", "mark_pitch"])
def mark_nonfinite(
    out, row_stride, column_stride, marks, m, n, mark_pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """marks (m, mark_pitch) of out (m, n)."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (i < m)[:, None] & (j < n)[None, :]
    at = out + i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
    value = tl.load(at, mask=inside, other=0.0)
    flagged = (value - value != 0.0).to(tl.int32)
    lanes = tl.arange(0, 32)
    word = tl.sum(tl.reshape(flagged, [ROWS, BLOCK // 32, 32]) << lanes[None, None, :], 2)
    c = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    tl.store(
        marks + i.to(tl.int64)[:, None] * mark_pitch + c[None, :], word,
        mask=(i < m)[:, None] & (c < mark_pitch)[None, :],
    )  # fmt: skip
