"""Products of planes of e4m3 digits, reduced modulo their modulus as they are stored: two bytes an entry and product.

Any GPU with FP8 matrix instructions. Digits are integers of four significand bits, up to D in magnitude
(`prismm.core.fp8_moduli`), so a product of two has eight and is exact in every unit. A sum over the inner dimension is
exact because it is cut in three:

- A unit's sum keeps w bits, and is exact while Σ|x·y| <= 2^w (`docs/internals/fp8-residues.md` has the proof). For
  w = 24 that asks for no cut below the next one. For w = 14, Hopper's and Ada's, D is at most 22, and one instruction
  of 32 products stays below: 32·22² = 15488 < 2^14. On Hopper IMPRECISE is 32: the compiler gives each instruction a
  sum of its own, and adds it outside of the unit in FP32. For Ada it does not, so APART makes steps of 32 products
  (DEPTH is 32), whose sums are added as integers.
- A sum in FP32, of a block of k terms, is exact in any order for k·D² <= 2^24, as all its terms are integers. The
  modulus says how long its blocks are, 512 at least.
- A sum in INT32 has at most `CHUNK` blocks and a residue: 32·2^24 + 2^11 < 2^30, which `reduced` takes.

Operations: 2·m·n·k a product; bytes: operands (m + n)·k a product, times the tiles that read them again, and 2·m·n
written.
"""

import triton
import triton.language as tl

from prismm.cuda.residues.kernels.product import grouped, reduced

PRODUCT_FIELDS = tl.constexpr(5)
"""Integers of a product in its table: the modulus q, floor(2^32/q), the least multiple of q from 2^30 on, the terms of
a block, and the weight with which `scheme_digits` adds the product."""

CHUNK = tl.constexpr(32)
"""Blocks whose sums are added before they are reduced."""

CHUNK_APART = tl.constexpr(1 << 15)
"""Instructions' sums, below 2^14 each, that are added before they are reduced."""


@triton.jit
def _step(a, b, h, h0, pitch, in_m, in_n):
    """Tiles of both operands from element h0 on."""
    # A short vector's pitch is a multiple of 32, not of DEPTH.
    inside = h[None, :] < pitch - h0
    x = tl.load(a + h0, mask=inside & in_m, other=0.0)
    y = tl.load(b + h0, mask=inside & in_n, other=0.0)
    return x, tl.trans(y)


@triton.jit(do_not_specialize=["m", "n", "left_step", "right_step", "products"])
def digit_product(
    left, right, residues, table, m, n, pitch, left_plane, right_plane, left_step, right_step, products, row_pitch,
    plane, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    IMPRECISE: tl.constexpr, APART: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of one product (program axis 1, three times as many for complex numbers) of left (m, pitch) times right
    (n, pitch) transposed, in one matrix of a batch (axis 2).

    ONE_BLOCK: no modulus cuts so short an inner dimension. left_step, right_step: planes from one matrix to the next.
    products: of one part. Rows of a plane of residues are row_pitch apart.
    """
    index = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row, column = grouped(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS), GROUP)
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.arange(0, DEPTH)
    in_m, in_n = (i < m)[:, None], (j < n)[:, None]
    facts = table + (index % products) * PRODUCT_FIELDS
    q, magic, bias = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
    e4m3 = tl.pointer_type(tl.float8e4nv)
    a = left.to(e4m3, bitcast=True) + (index + batch * left_step) * left_plane
    b = right.to(e4m3, bitcast=True) + (index + batch * right_step) * right_plane
    a += i.to(tl.int64)[:, None] * pitch + h[None, :]
    b += j.to(tl.int64)[:, None] * pitch + h[None, :]
    steps = tl.cdiv(pitch, DEPTH)
    if APART:
        total = tl.zeros([ROWS, COLUMNS], tl.int32)
        for start in range(0, steps, CHUNK_APART):
            for s in range(start, tl.minimum(steps, start + CHUNK_APART)):
                x, y = _step(a, b, h, s * DEPTH, pitch, in_m, in_n)
                total += tl.dot(x, y, out_dtype=tl.float32).to(tl.int32)
            total = reduced(total, q, magic, bias).to(tl.int32, bitcast=True)
    elif ONE_BLOCK:
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for s in range(steps):
            x, y = _step(a, b, h, s * DEPTH, pitch, in_m, in_n)
            acc = tl.dot(x, y, acc, max_num_imprecise_acc=IMPRECISE, out_dtype=tl.float32)
        total = reduced(acc.to(tl.int32), q, magic, bias).to(tl.int32, bitcast=True)
    else:
        block = tl.load(facts + 3) // DEPTH
        total = tl.zeros([ROWS, COLUMNS], tl.int32)
        for start in range(0, steps, block * CHUNK):
            chunk = tl.minimum(steps, start + block * CHUNK)
            for s1 in range(start, chunk, block):
                acc = tl.zeros([ROWS, COLUMNS], tl.float32)
                for s in range(s1, tl.minimum(chunk, s1 + block)):
                    x, y = _step(a, b, h, s * DEPTH, pitch, in_m, in_n)
                    acc = tl.dot(x, y, acc, max_num_imprecise_acc=IMPRECISE, out_dtype=tl.float32)
                total += acc.to(tl.int32)
            total = reduced(total, q, magic, bias).to(tl.int32, bitcast=True)
    at = residues + (index + batch * tl.num_programs(1)) * plane + i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    tl.store(at, total.to(tl.int16), mask=in_m & (j < n)[None, :])
