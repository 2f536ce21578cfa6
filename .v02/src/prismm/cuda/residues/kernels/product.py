"""Products of residue planes, reduced modulo each modulus before they are stored: one byte an entry and modulus.

Any GPU with integer matrix instructions. All moduli in one launch; sums are reduced every 2^15 products, so they stay
below 2^29 + 2^8 in magnitude and no instruction can wrap or saturate. Operations: 2·m·n·k a modulus; bytes: operands
(m + n)·k a modulus, times the tiles that read them again, and m·n written.
"""

import triton
import triton.language as tl

CHUNK = 1 << 15


@triton.jit
def reduced(acc, p, magic, bias):
    """acc modulo p in [0, p), for |acc| < 2^30: magic = floor(2^32/p), bias the least multiple of p from 2^30 on."""
    u = (acc + bias).to(tl.uint32, bitcast=True)
    q = tl.umulhi(u, tl.zeros_like(u) + magic.to(tl.uint32, bitcast=True))
    r = u - q * p.to(tl.uint32, bitcast=True)
    # Where r is a residue already, r - p wraps to a large number: a minimum does the comparison.
    return tl.minimum(r, r - p.to(tl.uint32, bitcast=True))


@triton.jit
def grouped(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile, in an order by which GROUP rows of tiles share what they read."""
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    rest = tile - group * (GROUP * tiles_n)
    return first + rest % height, rest // height


@triton.jit(do_not_specialize=["m", "n", "left_step", "right_step"])
def residue_product(
    left, right, digits, reduction, m, n, pitch, left_plane, right_plane, left_step, right_step, row_pitch, plane,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    LOWER: tl.constexpr = False,
):  # fmt: skip
    """One tile of one modulus (program axis 1) of left (m, pitch) times right (n, pitch) transposed, in one matrix of a
    batch (axis 2). left_step, right_step: planes from one matrix to the next. LOWER: not those above the diagonal.
    """
    t = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row, column = grouped(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS), GROUP)
    if LOWER:
        if (row + 1) * ROWS <= column * COLUMNS:
            return
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    h = tl.arange(0, DEPTH)
    p = tl.load(reduction + 3 * t)
    magic = tl.load(reduction + 3 * t + 1)
    bias = tl.load(reduction + 3 * t + 2)
    a = left + (t + batch * left_step) * left_plane + i.to(tl.int64)[:, None] * pitch + h[None, :]
    b = right + (t + batch * right_step) * right_plane + j.to(tl.int64)[:, None] * pitch + h[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, pitch, CHUNK):
        stop = tl.minimum(pitch, start + CHUNK)
        for h0 in range(start, stop, DEPTH):
            # A short vector's pitch is a multiple of 32, not of DEPTH.
            inside = h[None, :] < pitch - h0
            x = tl.load(a + h0, mask=inside & (i < m)[:, None], other=0)
            y = tl.load(b + h0, mask=inside & (j < n)[:, None], other=0)
            acc = tl.dot(x, tl.trans(y), acc, out_dtype=tl.int32)
        acc = reduced(acc, p, magic, bias).to(tl.int32, bitcast=True)
    at = digits + (t + batch * tl.num_programs(1)) * plane + i.to(tl.int64)[:, None] * row_pitch + j[None, :]
    tl.store(at, acc.to(tl.uint8), mask=(i < m)[:, None] & (j < n)[None, :])
