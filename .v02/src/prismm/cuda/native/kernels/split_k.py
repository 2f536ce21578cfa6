"""The sum of a conventional product's parts, for an inner dimension that was cut (split-K).

`product` or `product_sm90` has multiplied the parts; their sums, in float64, are added here in one order, so that the
result is the same however programs come to run. A sum in any order of all products errs by at most k·u·|a||b|, u =
2^-53 (Jeannerod and Rump 2013), so the bound is that of `direct`, and so is what becomes of entries that are not
finite, or where float64 may have lost an overflow of float32: a part that overflowed on the way is infinite or NaN, and
leaves the entry uncertified.

For float32 the largest magnitudes of rows and columns decide that, of all parts. What is read of them first is one
number a part and tile, which nearly always says that nothing comes near.

Bytes: 8 an entry and part, 8 or 4 an entry. Operations: one addition an entry and part.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.exact import limb_numbers
from prismm.cuda.kernels.fp64 import wide
from prismm.cuda.kernels.uncertified import recompute_uncertified
from prismm.cuda.native.kernels.product import LARGE, SLACK, TOP


@triton.jit
def _largest(x, first, at, step, parts, TOGETHER: tl.constexpr):
    """The largest of all parts' numbers at `at`, step apart; Inf where one is NaN."""
    p = tl.arange(0, TOGETHER)
    most = tl.zeros([TOGETHER, at.shape[0]], tl.float32)
    for start in range(0, parts, TOGETHER):
        there = (start + p < parts)[:, None]
        one = tl.load(x + (first + start + p)[:, None] * step + at[None, :], mask=there, other=0.0)
        # A maximum would drop NaN; Inf makes the test that follows fail, as it should.
        most = tl.maximum(most, tl.where(one == one, one, float("inf")))
    return tl.max(most, 0)


@triton.jit(do_not_specialize=["terms", "parts", "tiles"])
def add_parts(
    a, a_batch, a_row, a_step, b, b_batch, b_column, b_step, out, sums, row_tops, column_tops, tops, counts, m, n,
    terms, parts, tiles, PRECISION: tl.constexpr, ENTRIES: tl.constexpr, TOGETHER: tl.constexpr, ONE: tl.constexpr,
    TOPS: tl.constexpr, ONE_OF_TOPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """out (batch, m, n), contiguous: ENTRIES a program, in one matrix of a batch (axis 1), from sums (batch, parts, m,
    n), TOGETHER parts at a time. row_tops (batch, parts, m) and column_tops (batch, parts, n), of float32 operands:
    largest magnitudes; tops (batch, parts, tiles): the largest product of both in a tile, TOPS at a time. ONE: whether
    the first ones are all. counts: as for `repair.finish`.
    """
    batch, first = wide(tl.program_id(1)), wide(tl.program_id(0)) * ENTRIES
    size = wide(m) * n
    a += batch * a_batch
    b += batch * b_batch
    out += batch * size
    entry = first + tl.arange(0, ENTRIES)
    inside = entry < size
    p, of_tile = tl.arange(0, TOGETHER), tl.arange(0, TOPS)
    most = tl.zeros([TOPS], tl.float32)
    if PRECISION == 24:
        for start in range(0, TOPS if ONE_OF_TOPS else parts * tiles, TOPS):
            there = start + of_tile < parts * tiles
            one = tl.load(tops + batch * parts * tiles + start + of_tile, mask=there, other=0.0)
            most = tl.maximum(most, tl.where(one == one, one, float("inf")))
    several = tl.zeros([TOGETHER, ENTRIES], tl.float64)
    for start in range(0, TOGETHER if ONE else parts, TOGETHER):
        there = (start + p < parts)[:, None] & inside[None, :]
        several += tl.load(sums + (batch * parts + start + p)[:, None] * size + entry[None, :], mask=there, other=0.0)
    total = tl.sum(several, 0)
    value = total if PRECISION == 53 else total.to(tl.float32)
    recomputed = ~(tl.abs(total) < LARGE)
    if PRECISION == 24:
        scale = terms.to(tl.float64) * terms.to(tl.float64) * SLACK
        recomputed = ~(tl.abs(total) + scale * tl.max(most, 0).to(tl.float64) < TOP)
        # Tiles' products of magnitudes are coarse, but few; those of rows and columns are read only where they do not
        # suffice.
        if tl.max((recomputed & inside).to(tl.int32), 0) > 0:
            at = tl.minimum(entry, size - 1)
            of_row = _largest(row_tops, batch * parts, at // n, m, parts, TOGETHER)
            of_column = _largest(column_tops, batch * parts, at % n, n, parts, TOGETHER)
            recomputed = ~(tl.abs(total) + scale * of_row.to(tl.float64) * of_column.to(tl.float64) < TOP)
    recomputed = recomputed & inside
    tl.store(out + entry, tl.where(recomputed, float("nan"), value), mask=inside)  # by which those are found below
    if tl.max(recomputed.to(tl.int32), 0) > 0:
        recompute_uncertified(
            a, a_row, a_step, b, b_column, b_step, out, counts, first, tl.minimum(first + ENTRIES, size), n, terms,
            tl.arange(0, LANES), limb_numbers(), PRECISION,
        )  # fmt: skip
