"""A matrix times a vector in one kernel, for matrices whose terms are neighbours: each element is read once.

A program makes some entries, each from a row of the matrix; what their bound is, and what becomes of entries that are
not finite, is as in `direct`: sums are in float64, of float32 operands too, whose products are exact there and whose
entries are rounded once. The order of a sum is the kernel's own; its error is at most k·u·|a||b| in any order
(Jeannerod and Rump 2013), u = 2^-53, and of float32 entries that of the last rounding besides.

Bytes: 8 or 4 an element of the matrix. Operations: 2 an element, of which a GPU can do ten times as many meanwhile. So
what counts is how many bytes are on their way at once: most in small programs, `cuda_direct` knows how small. Rows that
begin at multiples of 16 bytes are read by so many at a time. An H200 reads 65536 rows of 256 terms in float32 in 18.2
µs (cuBLAS 19.2), n = 8192 in 64 (89), in float64 120 (123), n = 1024 in 3.1 (10.7); 20000 rows of 5000 terms in
float32 in 97 (110), of 5001 in 112 (107).
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import limb_numbers
from prismm.cuda.kernels.fp64 import multiple, wide
from prismm.cuda.kernels.uncertified import recompute_uncertified
from prismm.cuda.native.kernels.product import LARGE, SLACK, TOP


@triton.jit(do_not_specialize=["rows", "terms"])
def multiply_by_a_vector(
    matrix, matrix_batch, row_step, x, x_batch, x_step, out, counts, rows, terms, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
    TOGETHER: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """out (batch, rows), contiguous: ROWS entries a program, in one matrix of a batch (axis 1). ONE: whether a step
    along the inner dimension is all; WHOLE: whether the last one is as long as the others; STAGES: steps that are on
    their way at once. TOGETHER: elements of which rows begin, and have, a multiple. counts: as for `repair.finish`.
    LANES: elements that `finish.recompute_native` reads at a time.
    """
    k, step = multiple(terms, TOGETHER), multiple(row_step, TOGETHER)
    batch, first = wide(tl.program_id(1)), tl.program_id(0) * ROWS
    matrix += batch * multiple(matrix_batch, TOGETHER)
    x += batch * x_batch
    out += batch * rows
    i, h = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = i < rows
    # Rows beyond the last read the last one, so loads need no mask along the rows; their entries are not stored.
    at = matrix + tl.minimum(i, rows - 1).to(tl.int64)[:, None] * step + h[None, :]
    # A lane adds terms of its own and the lanes are added once at the end: any order keeps the bound.
    sums = tl.zeros([ROWS, BLOCK], tl.float64)
    most = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, BLOCK if ONE else k, BLOCK, num_stages=STAGES):
        element = x + (start + h).to(tl.int64) * x_step
        if WHOLE:
            y, z = tl.load(at + start), tl.load(element)
        else:
            there = h < k - start
            y, z = tl.load(at + start, mask=there[None, :], other=0.0), tl.load(element, mask=there, other=0.0)
        sums += y.to(tl.float64) * z.to(tl.float64)[None, :]
        if PRECISION == 24:
            # In float32, where a product that overflows is Inf and so sends the entries to exact sums.
            most = tl.maximum(most, tl.abs(y * z[None, :]))
    total = tl.sum(sums, 1)
    value = total if PRECISION == 53 else total.to(tl.float32)
    # Negated, so that NaN is recomputed too.
    recomputed = ~(tl.abs(total) < LARGE)
    if PRECISION == 24:
        # 64 times k²·2^-53 times the largest product of all these entries, as `direct` has it.
        scale = k.to(tl.float64) * k.to(tl.float64) * SLACK
        error = scale * tl.max(tl.ravel(most, can_reorder=True), 0).to(tl.float64)
        recomputed = ~(tl.abs(total) + error < TOP)
    recomputed = recomputed & inside
    tl.store(out + i, tl.where(recomputed, float("nan"), value), mask=inside)  # by which those are found below
    if tl.max(recomputed.to(tl.int32), 0) > 0:
        recompute_uncertified(
            matrix, row_step, 1, x, 0, x_step, out, counts, wide(first), wide(tl.minimum(first + ROWS, rows)), 1, k,
            tl.arange(0, LANES), limb_numbers(), PRECISION,
        )  # fmt: skip
