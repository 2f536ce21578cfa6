"""The certificate of products of `TileInt8`: a flag on every entry that may be further off than its target allows.

`sum_tiles` joins what `split_tiles` found of each vector: four numbers, all in the vector's own units. `certify_tiles`
reads each entry once and compares by them; the bounds stand in `cuda.tile_int8.launches`. Bytes: 4 an entry; 0.07 ms at
n = 8192 and 4.3 TB/s.
"""

import triton
import triton.language as tl

from prismm.cuda.tile_int8.kernels.split import BROKEN, EMPTY, even, times

CAP, OVER, LOST, NORM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""Rows of the facts about vectors: see `sum_tiles`."""

UP, DOWN = tl.constexpr(1.00001), tl.constexpr(0.9999)
"""More than roundings of float32 sums of a piece, and of some operations, come to; and less."""


@triton.jit(do_not_specialize=["first", "vectors", "count", "depth", "pieces", "tile0", "tiles_each", "all_tiles"])
def sum_tiles(
    squares, capped, shifts, caps, weights, facts, first, vectors, every, count, depth, pieces, tile0, tiles_each,
    all_tiles, TILE: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, GIVEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """facts (4, every) float32 of vectors first, first + 1, …, of which `count` are of one matrix of a batch.

    cap: τ. over: at most Σ min(|x|, τ) - kτ/2. lost: at least ‖x - X·2^(g-f)‖ + 2^-90. norm: at least ‖x‖. All are 0
    for a vector of zeros, and `lost` is infinite for one that is not finite.
    """
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = v < vectors
    shift = tl.load(shifts + first + v, mask=inside, other=EMPTY)
    square = tl.zeros([BLOCK], tl.float64)
    over = tl.zeros([BLOCK], tl.float64)
    at = first + v.to(tl.int64)
    for _ in range(pieces):
        square += tl.load(squares + at, mask=inside, other=0.0).to(tl.float64)
        over += tl.load(capped + at, mask=inside, other=0.0).to(tl.float64)
        at += every
    tile = tile0 + v // count * tiles_each + v % count // TILE
    lost = tl.zeros([BLOCK], tl.float64)
    tiles = weights + tile
    down = tl.full([BLOCK], 1.0, tl.float64)
    if GIVEN:
        # Weights are in units of the data: 2^-s in two factors, each in float32's range.
        s = tl.minimum(tl.maximum(shift, -256), 256)
        half = s >> 1
        one = tl.full([BLOCK], 1.0, tl.float32)
        down = times(one, -half).to(tl.float64) * times(one, half - s).to(tl.float64)
    for _ in range(tl.cdiv(depth, WIDTH)):
        w = tl.load(tiles, mask=inside, other=0.0).to(tl.float64) * down
        lost += w * w
        tiles += all_tiles
    # |x - X·2^(g-f)| <= 2^(g-f-1) = HALF·w.
    lost = tl.sqrt(lost * WIDTH) * HALF * UP + 8.077935669463161e-28  # 2^-90
    cap = tl.load(caps + first + v, mask=inside, other=0.0).to(tl.float64)
    over = over * DOWN - depth * cap * 0.500001
    norm = tl.sqrt(square * UP + 2.0**-100) * UP
    zero, broken = shift == EMPTY, shift == BROKEN
    lost = tl.where(zero, 0.0, tl.where(broken, float("inf"), lost))
    facts += first + v
    tl.store(facts + CAP * every, tl.where(zero | broken, 0.0, cap).to(tl.float32), mask=inside)
    tl.store(facts + OVER * every, tl.where(zero | broken, 0.0, over).to(tl.float32), mask=inside)
    tl.store(facts + LOST * every, (lost * UP).to(tl.float32), mask=inside)
    tl.store(facts + NORM * every, tl.where(zero | broken, 0.0, norm).to(tl.float32), mask=inside)


@triton.jit
def _both(x, y):
    """At least the square root of x² + y² for x, y >= 0, and at most 1.083 times it: the root is convex in the smaller
    one, and this the chord from 0 to the larger one.
    """
    return tl.maximum(x, y) + tl.minimum(x, y) * 0.4142136


@triton.jit(
    do_not_specialize=[
        "m", "width", "row_step", "batch_stride", "flag_pitch", "every", "room", "last", "gamma", "spare",
    ]
)  # fmt: skip
def certify_tiles(
    out, facts, shifts, flags, m, width, row_step, batch_stride, flag_pitch, every, room, last, gamma, spare,
    RAW: tl.constexpr, GIVEN: tl.constexpr, PAIRS: tl.constexpr, RATIO: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A flag on every entry of out (batches, m, width) that is not sure; program axis 1 is the batch.

    An entry is sure if E <= room·max(L, |c| - E) and it is far from overflow, where E = lost·norm' + norm·lost' +
    last·lost·lost' and L = cap·over' + over·cap'; RAW: if it is far from overflow, which it is if |c| + spare·(E +
    gamma·norm·norm') < 2^127. room, last, gamma, spare: patterns of float32.
    PAIRS: tiles that meet have one exponent, so each of two vectors loses what the other one does, RATIO bits further
    down on the right than on the left (`cuda.tile_int8.launches`).
    """
    n = even(width, EVEN)
    row_stride = even(row_step, EVEN)
    batch, batches = tl.program_id(1), tl.num_programs(1)
    wide = tl.cdiv(n, COLUMNS)
    i = tl.program_id(0) // wide * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) % wide * COLUMNS + tl.arange(0, COLUMNS)
    in_m, in_n = i < m, j < n
    inside = in_m[:, None] & in_n[None, :]
    target = out + batch.to(tl.int64) * even(batch_stride, EVEN) + i.to(tl.int64)[:, None] * row_stride + j[None, :]
    size = tl.abs(tl.load(target, mask=inside, other=0.0))
    left = batch * m + i
    right = batches * m + batch * n + j
    lost = tl.load(facts + LOST * every + left, mask=in_m, other=0.0)
    lost_too = tl.load(facts + LOST * every + right, mask=in_n, other=0.0)
    norm = tl.load(facts + NORM * every + left, mask=in_m, other=0.0)
    norm_too = tl.load(facts + NORM * every + right, mask=in_n, other=0.0)
    factor = last.to(tl.float32, bitcast=True)
    e = tl.minimum(tl.maximum(tl.load(shifts + left, mask=in_m, other=0), -256), 256)
    f = tl.minimum(tl.maximum(tl.load(shifts + right, mask=in_n, other=0), -256), 256)
    shift = e[:, None] + f[None, :]
    if PAIRS:
        ratio = f[None, :] - e[:, None] + RATIO if GIVEN else tl.full([ROWS, COLUMNS], RATIO, tl.int32)
        mine, its = lost[:, None], lost_too[None, :]
        of_left, of_right = _both(mine, times(its, ratio)), _both(its, times(mine, -ratio))
        error = of_left * norm_too[None, :] + norm[:, None] * of_right + factor * of_left * of_right
        # A vector of zeros loses nothing, whatever it meets, but for what is not finite.
        error = tl.where((mine == 0.0) | (its == 0.0), mine * its, error)
    else:
        error = lost[:, None] * norm_too[None, :] + norm[:, None] * lost_too[None, :]
        error = error + (factor * lost)[:, None] * lost_too[None, :]
    if GIVEN:
        # Sums are made in units of the data, and what they may lose below float32's range is a constant there.
        some = norm[:, None] * norm_too[None, :] > 0.0
        error = error + times(tl.where(some, 1.5407439555097887e-33, 0.0), -shift)  # 2^-109
    # In the result's units; what is left of an error below float32's range serves no test.
    far = times(error, shift)
    most = times(error + (gamma.to(tl.float32, bitcast=True) * norm)[:, None] * norm_too[None, :], shift)
    sure = size + most * spare.to(tl.float32, bitcast=True) < 170141183460469231731687303715884105728.0  # 2^127
    if not RAW:
        cap = tl.load(facts + CAP * every + left, mask=in_m, other=0.0)
        cap_too = tl.load(facts + CAP * every + right, mask=in_n, other=0.0)
        over = tl.load(facts + OVER * every + left, mask=in_m, other=0.0)
        over_too = tl.load(facts + OVER * every + right, mask=in_n, other=0.0)
        least = cap[:, None] * over_too[None, :] + over[:, None] * cap_too[None, :]
        allowed = room.to(tl.float32, bitcast=True)
        seen = (far >= 1.1754943508222875e-38) & (far <= allowed * (size - far))
        sure = sure & ((error <= allowed * least) | seen)
    bits = tl.where(inside & ~sure, 1, 0) << (j & 31)[None, :]
    word = tl.sum(tl.reshape(bits, [ROWS, COLUMNS // 32, 32]), 2)
    jw = tl.program_id(0) % wide * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    at_word = flags + left.to(tl.int64)[:, None] * flag_pitch + jw[None, :]
    tl.store(at_word, word, mask=in_m[:, None] & (jw < flag_pitch)[None, :])
