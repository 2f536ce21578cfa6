"""Entries that a program stored as NaN because they are uncertified: each is recomputed exactly, in turn."""

import triton
import triton.language as tl

from prismm.cuda.native.kernels.finish import recompute_native


@triton.jit
def recompute_uncertified(
    a, a_row, a_step, b, b_column, b_step, out, counts, first, end, n, k, lanes, index, PRECISION: tl.constexpr
):  # fmt: skip
    """Set those of first, …, end - 1 of a contiguous matrix of n columns. a, b, counts, lanes, index: as for
    `finish.recompute_native`.
    """
    tl.debug_barrier()  # other threads stored the entries that this one loads
    for position in range(first, end):
        one = tl.load(out + position)
        if one != one:
            recompute_native(
                a + position // n * a_row, a_step, b + position % n * b_column, b_step, out + position, counts, k, 0,
                lanes, index, PRECISION, 1,
            )  # fmt: skip
