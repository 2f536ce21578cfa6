"""The product of `TileInt8` with one exponent for both tiles that meet: each is cut into segments for every partner.

A tile of A meets tiles of B with other exponents, and RN at another bit is no shift of integers that were rounded
before. So `split_tiles` leaves elements as numbers, in units of their vector or as given, and here a step of the inner
dimension is cut and multiplied once for each common exponent e, the larger one of two, that there is among a program's
tiles: with |x|·2^(f-e) + 2^23 the integer RN(x·2^(f-e)) stands in the last bits of a float32 number, so an element is
one product and sum, and three operations a segment. Entries whose tiles have another common exponent take 0 of a turn.
Then c = c + t·2^(2e - 12), to nearest, as in `tile_product`.

Operations, all times the turns: 2·m·n·k a product of segments, 12 an entry and step, and about 20 for each of the ROWS
+ COLUMNS elements that meet in ROWS·COLUMNS entries (at level 4). There is one turn where the largest elements of all
tiles are in one binade, as in evenly scaled data, and at most one for each tile of a program. Counted for an H200's
multiprocessor and a step of 128, and not measured: 3800 cycles for elements, 2000 for products, 800 for entries, which
Triton overlaps little; so 2 to 3 times what `tile_int8.kernels.product_sm90` takes. Bytes: 4 an element, times
re-reads.
"""

import triton
import triton.language as tl

from prismm.cuda.residues.kernels.product import grouped
from prismm.cuda.tile_int8.kernels.split import even, times

ROWS, COLUMNS = 128, 64
LAUNCH = {"num_warps": 8, "num_stages": 2}


@triton.jit
def _integer(x, scale, SEGMENTS: tl.constexpr):
    """RN(|x|·scale), below 2^(7·SEGMENTS), and x's sign in the first bit; anything of elements that are larger, whose
    entries take nothing of it.
    """
    y = tl.abs(x) * scale
    if SEGMENTS < 4:
        integer = (y + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF
    else:
        # What is 2^23 or more is an integer.
        y = tl.minimum(y, 268435456.0)
        integer = tl.where(y < 8388608.0, (y + 8388608.0) - 8388608.0, y).to(tl.int32)
    return integer | (x.to(tl.int32, bitcast=True) & (-2147483647 - 1))


@triton.jit
def _segment(integer, BACK: tl.constexpr):
    """7 bits of an element, BACK segments from the end, with its sign."""
    segment = (integer >> (7 * BACK)) & 127
    return tl.where(integer < 0, -segment, segment).to(tl.int8)


@triton.jit(do_not_specialize=["m", "width", "depth", "row_step", "batch_stride", "left_tiles", "right_tiles"])
def tile_pair_product(
    elements, out, weights, shifts, m, width, depth, row_step, batch_stride, left_tiles, right_tiles,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, WEIGHTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, GIVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """out (batches, m, width) = A·B; program axis 1 is the batch. elements, weights, shifts: `split_tiles`'s.

    LEFT, RIGHT: segments; WEIGHTS: sums that are made of them. GIVEN: weights are those of the data as given.
    """
    n = even(width, EVEN)
    row_stride = even(row_step, EVEN)
    batch, batches = tl.program_id(1), tl.num_programs(1)
    row, column = grouped(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS), GROUP)
    tile_i, tile_j, h = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    i, j = row * ROWS + tile_i, column * COLUMNS + tile_j
    many, more = batches * m, batches * n
    all_rows = (many + more).to(tl.int64)
    a = elements + (batch * m + row * ROWS).to(tl.int64) * WIDTH
    b = elements + (many + batch * n + column * COLUMNS).to(tl.int64) * WIDTH
    at_a, at_b = tile_i[:, None] * WIDTH + h[None, :], tile_j[None, :] * WIDTH + h[:, None]
    in_m, in_n = (i < m)[:, None], (j < n)[None, :]
    row_weight = weights + batch * left_tiles + i // TILE_ROWS
    column_weight = weights + batches * left_tiles + batch * right_tiles + j // TILE_COLUMNS
    c = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(tl.cdiv(depth, WIDTH)):
        x = tl.load(row_weight, mask=i < m, other=0.0)
        y = tl.load(column_weight, mask=j < n, other=0.0)
        # 2^(e-6), from the largest e down to the least that two tiles have in common; weights of 0 add nothing.
        unit = tl.maximum(tl.max(x, 0), tl.max(y, 0))
        least = tl.min(tl.where(x > 0.0, x, float("inf")), 0)
        least = tl.maximum(least, tl.min(tl.where(y > 0.0, y, float("inf")), 0))
        while unit >= least:
            # 2^(6-e), times 2^(f-6).
            inverse = ((254 << 23) - unit.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
            # Elements are read in each turn: registers are short, and mostly there is one.
            left = _integer(tl.load(a + at_a, mask=in_m, other=0.0), inverse * (1 << (7 * LEFT - 7)), LEFT)
            right = _integer(tl.load(b + at_b, mask=in_n, other=0.0), inverse * (1 << (7 * RIGHT - 7)), RIGHT)
            t = tl.zeros([ROWS, COLUMNS], tl.float32)
            for back in tl.static_range(WEIGHTS):
                total = tl.zeros([ROWS, COLUMNS], tl.int32)
                for p in tl.static_range(LEFT):
                    if (WEIGHTS - 1 - back - p >= 0) and (WEIGHTS - 1 - back - p < RIGHT):
                        total = tl.dot(
                            _segment(left, LEFT - 1 - p),
                            _segment(right, RIGHT - 1 - (WEIGHTS - 1 - back - p)), total, out_dtype=tl.int32,
                        )  # fmt: skip
                t = total.to(tl.float32) + t * 0.0078125
            unit_of_entry = tl.where(tl.maximum(x[:, None], y[None, :]) == unit, unit, 0.0)
            c = c + (t * unit_of_entry) * unit_of_entry
            unit = tl.maximum(tl.max(tl.where(x < unit, x, 0.0), 0), tl.max(tl.where(y < unit, y, 0.0), 0))
        a += all_rows * WIDTH
        b += all_rows * WIDTH
        row_weight += batches * (left_tiles + right_tiles)
        column_weight += batches * (left_tiles + right_tiles)
    if not GIVEN:
        e = tl.load(shifts + batch * m + i, mask=i < m, other=0)
        f = tl.load(shifts + many + batch * n + j, mask=j < n, other=0)
        e = tl.minimum(tl.maximum(e, -256), 256)
        f = tl.minimum(tl.maximum(f, -256), 256)
        c = times(c, e[:, None] + f[None, :])
    target = out + batch.to(tl.int64) * even(batch_stride, EVEN) + i.to(tl.int64)[:, None] * row_stride + j[None, :]
    tl.store(target, c, mask=in_m & in_n)
