"""Residues of a piece by more moduli, and the join of the digits of all pieces: what `cuda.partial.more` launches.

The arithmetic is that of `many_split` and `many_join`. Bytes: elements read once, one written for each modulus; digits
read once, an entry and a byte written.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide
from prismm.cuda.residues.kernels.balance import BALANCES
from prismm.cuda.residues.kernels.entries import magnitude_proves
from prismm.cuda.residues.kernels.join_exact import bound_of, bound_terms
from prismm.cuda.residues.kernels.many_join import LIMBS, expansion, join_entries, side_of
from prismm.cuda.residues.kernels.many_split import exponents, split_tile


@triton.jit(do_not_specialize=["step", "vectors", "terms", "bits", "moduli", "plane", "pitch"])
def split_more(
    x, step, stats, powers, base, planes, lost, vectors, terms, bits, moduli, plane, pitch, PARTS: tl.constexpr,
    PART: tl.constexpr, RIGHT: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """planes (moduli, rows, pitch) int8 of vectors that lie across contiguous rows (terms / PARTS, ·), `step` numbers
    apart; lost (vectors,) int32 becomes 1 where bits were lost. stats: of all pieces, of which the largest elements are
    read. The rest: as of `many_split.split_tile`. Programs: tiles of VECTORS rows of a plane and DEPTH bytes.
    """
    depths = pitch // DEPTH
    i0, h0 = tl.program_id(0) // depths * VECTORS, tl.program_id(0) % depths * DEPTH
    split_tile(
        x, PARTS, step, stats, stats, 0, powers, base, planes, lost, i0, 0, h0, vectors, vectors, terms, bits, BALANCES,
        moduli, wide(plane), pitch, PART, PARTS, False, RIGHT, VECTORS, DEPTH, NVIDIA,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "row_stride", "column_stride", "m", "n", "terms", "q", "moduli", "left_bits", "right_bits", "below", "plane",
        "pitch",
    ]
)  # fmt: skip
def join_more(
    digits, out, row_stride, column_stride, pending, rows, columns, lost, system, nothing_there, m, n, terms, q, moduli,
    left_bits, right_bits, below, plane, pitch, PRECISION: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Pending entries of out, strides of real numbers, where their rounding is proved; pending (m, n) uint8 is 1 for
    these, and afterwards for those that are left.

    digits (moduli, m, pitch) uint8; rows, columns: statistics (10, m) and (10, n), of which largest elements and norms
    are read; lost: of the rows, then of the columns. The rest: as of `many_join.expansion` and `join_entries`.
    """
    blocks = tl.cdiv(n, BLOCK)
    row, lanes = tl.program_id(0) // blocks, tl.arange(0, BLOCK)
    j = tl.program_id(0) % blocks * BLOCK + lanes
    i = row + lanes * 0
    at = pending + (wide(row) * n + j)
    there = tl.load(at, mask=j < n, other=0) != 0
    of_row = digits + wide(row) * pitch
    h, middle, tail, lead, missing = expansion(
        of_row, tl.where(there, j, 0), plane, system, moduli, nothing_there, LIMBS, False
    )
    row_shift, n1a, fa = side_of(rows, rows, lost, m, m + n, i, 0, left_bits, BALANCES, q)
    column_shift, n1b, fb = side_of(columns, rows, lost, n, m + n, j, m, right_bits, BALANCES, q)
    proved, _ = join_entries(
        out, 0, 0, out, 0, 0, out + PART, row_stride, column_stride, h, middle, tail, lead, missing, row_shift, n1a,
        fa, column_shift, n1b, fb, rows, 0, m, m + n, nothing_there, i, j, there, terms, BALANCES, below, 0.0, PART,
        None, None, None, None, None, None, PRECISION, PARTS, True,
    )  # fmt: skip
    tl.store(at, (~proved).to(tl.uint8), mask=there)


@triton.jit(do_not_specialize=["row_stride", "column_stride", "m", "n", "terms", "q"])
def certify_sums(
    sums, hits, out, row_stride, column_stride, pending, rows, columns, constants, m, n, terms, q,
    PRECISION: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take from pending (m, n) uint8 the entries of out that sums of magnitudes prove: of products of 7-bit ones, and
    of ones where elements are not zero, (m, n) int32. The rest: as of `entries.magnitude_proves` and `join_more`.
    """
    blocks = tl.cdiv(n, BLOCK)
    row, lanes = tl.program_id(0) // blocks, tl.arange(0, BLOCK)
    j = tl.program_id(0) % blocks * BLOCK + lanes
    i = row + lanes * 0
    place = wide(row) * n + j
    there = tl.load(pending + place, mask=j < n, other=0) != 0
    if tl.max(there.to(tl.int32), 0) > 0:
        _, row_shift, n1a, da, n2a, fa = bound_terms(rows, m, i, there, q, True)
        _, column_shift, n1b, db, n2b, fb = bound_terms(columns, n, j, there, q, True)
        bound = bound_of(n1a, da, n2a, fa, n1b, db, n2b, fb, 0.25 * terms, True)
        total = tl.load(sums + place, mask=there, other=0)
        hit = tl.load(hits + place, mask=there, other=0) != 0
        at = out + PART + i.to(tl.int64) * row_stride + j.to(tl.int64) * column_stride
        value = tl.load(at, mask=there, other=0.0).to(tl.float64)
        both = exponents(rows, m, i) + tl.where(there, exponents(columns, n, j), 0)
        exponent = -(row_shift + column_shift)
        proved = magnitude_proves(total, hit, bound, both, value, exponent, constants, PRECISION)
        tl.store(pending + place, (~proved).to(tl.uint8), mask=there)
