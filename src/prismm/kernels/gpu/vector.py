"""A matrix times a vector in one kernel, for matrices whose terms are neighbours: each element is read once.

A program makes some entries, each from a row of the matrix; what their bound is, and what becomes of entries that are
not finite, is as in `direct`: sums are in float64, of float32 operands too, whose products are exact there and whose
entries are rounded once. The order of a sum is the kernel's own; its error is at most k·u·|a||b| in any order
(Jeannerod and Rump 2013), u = 2^-53, and of float32 entries that of the last rounding besides.

Bytes: 8 or 4 an element of the matrix. Operations: 2 an element, of which a GPU can do ten times as many meanwhile. On
an H200 a matrix of order 1024 takes as long as by cuBLAS without its look, in either type; 65536 rows of 256 terms took
34 µs in float32, cuBLAS 23: programs of 8 rows are too small there.
"""

import triton
import triton.language as tl

from prismm.kernels.gpu.numbers import even, wide
from prismm.kernels.gpu.repair import limb_numbers, settle_native

LARGE = tl.constexpr(8.98846567431158e307)
"""2^1023, and the largest float32 number, as in `direct`."""
TOP = tl.constexpr(3.4028235e38)


@triton.jit(do_not_specialize=["rows", "terms"])
def multiply_by_a_vector(
    matrix, matrix_batch, row_step, x, x_batch, x_step, out, counts, rows, terms, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """out (batch, rows), contiguous: ROWS entries a program, in one matrix of a batch (axis 1). EVEN: whether the
    number of terms is a multiple of 16. counts: as for `repair.finish`. LANES: elements that `repair.settle_native`
    reads at a time.
    """
    k = even(terms, EVEN)
    batch, first = wide(tl.program_id(1)), tl.program_id(0) * ROWS
    matrix += batch * matrix_batch
    x += batch * x_batch
    out += batch * rows
    i, h = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = i < rows
    at = matrix + i.to(tl.int64)[:, None] * row_step + h[None, :]
    sums = tl.zeros([ROWS, BLOCK], tl.float64)
    row_top, x_top = tl.zeros([ROWS, BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, k, BLOCK):
        there = h < k - start
        y = tl.load(at, mask=inside[:, None] & there[None, :], other=0.0)
        z = tl.load(x + (start + h).to(tl.int64) * x_step, mask=there, other=0.0)
        sums += y.to(tl.float64) * z.to(tl.float64)[None, :]
        if PRECISION == 24:
            row_top, x_top = tl.maximum(row_top, tl.abs(y)), tl.maximum(x_top, tl.abs(z))
        at += BLOCK
    total = tl.sum(sums, 1)
    value = total if PRECISION == 53 else total.to(tl.float32)
    open_ = ~(tl.abs(total) < LARGE)
    if PRECISION == 24:
        scale = k.to(tl.float64) * k.to(tl.float64) * 1.2e-16  # above 2^-53, for roundings here
        error = scale * tl.max(row_top, 1).to(tl.float64) * tl.max(x_top, 0).to(tl.float64)
        open_ = ~(tl.abs(total) + error < TOP)
    open_ = open_ & inside
    tl.store(out + i, tl.where(open_, float("nan"), value), mask=inside)  # by which the open ones are found below
    if tl.max(open_.to(tl.int32), 0) > 0:
        tl.debug_barrier()  # others of the program stored what is read here
        for position in range(first, tl.minimum(first + ROWS, rows)):
            one = tl.load(out + position)
            if one != one:
                settle_native(
                    matrix + wide(position) * row_step, 1, x, x_step, out + position, counts, k, 0,
                    tl.arange(0, LANES), limb_numbers(), PRECISION, 1,
                )  # fmt: skip
