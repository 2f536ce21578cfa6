"""Residues of a piece by more moduli, and the join of the digits of all pieces: what `cuda.partial.more` launches.

The arithmetic is that of `many_split` and `many_join`. Bytes: elements read once, one written for each modulus; digits
read once, an entry and a byte written.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide
from prismm.cuda.residues.kernels.balance import BALANCES
from prismm.cuda.residues.kernels.many_join import join_entries
from prismm.cuda.residues.kernels.many_split import split_tile


@triton.jit(do_not_specialize=["step", "vectors", "terms", "bits", "moduli", "plane", "pitch"])
def split_more(
    x, step, stats, powers, base, planes, lost, vectors, terms, bits, moduli, plane, pitch, PARTS: tl.constexpr,
    PART: tl.constexpr, RIGHT: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """planes (moduli, rows, pitch) int8 of vectors that lie across contiguous rows (terms / PARTS, ·), `step` numbers
    apart; lost (vectors,) int32 becomes 1 where bits were lost. stats: of all pieces, of which the largest elements are
    read. The rest: as of `many_split.split_tile`. Programs: tiles of VECTORS rows of a plane and DEPTH bytes.
    """
    depths = pitch // DEPTH
    i0, h0 = tl.program_id(0) // depths * VECTORS, tl.program_id(0) % depths * DEPTH
    split_tile(
        x, PARTS, step, stats, stats, 0, powers, base, planes, lost, i0, 0, h0, vectors, vectors, terms, bits, BALANCES,
        moduli, wide(plane), pitch, PART, PARTS, False, RIGHT, VECTORS, DEPTH,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "row_stride", "column_stride", "m", "n", "terms", "q", "moduli", "left_bits", "right_bits", "below", "plane",
        "pitch",
    ]
)  # fmt: skip
def join_more(
    digits, out, row_stride, column_stride, open_entries, rows, columns, lost, reduction, system, nothing_there, m, n,
    terms, q, moduli, left_bits, right_bits, below, plane, pitch, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out (m, n), strides of real numbers, where rounding is proved; open_entries (m, n) uint8 is 1 where it is not.

    digits (moduli, m, pitch) uint8; rows, columns: statistics (10, m) and (10, n), of which largest elements and norms
    are read; lost: of the rows, then of the columns. The rest: as of `many_join.join_entries`.
    """
    blocks = tl.cdiv(n, BLOCK)
    row, lanes = tl.program_id(0) // blocks, tl.arange(0, BLOCK)
    j = tl.program_id(0) % blocks * BLOCK + lanes
    i = row + lanes * 0
    there = j < n
    proved = join_entries(
        out, 0, 0, out, 0, 0, out + PART, row_stride, column_stride, digits, wide(plane), pitch, rows, columns, rows,
        lost, 0, m, m + n, reduction, system, nothing_there, m, n, i, j, 0, 0, there, terms, q, moduli, left_bits,
        right_bits, BALANCES, below, PART, PRECISION, PARTS,
    )  # fmt: skip
    tl.store(open_entries + (wide(row) * n + j), (~proved).to(tl.uint8), mask=there)
