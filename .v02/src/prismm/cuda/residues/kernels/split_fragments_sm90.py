"""Fragments of the split for sm_90: their layouts, sums and maxima across a program's warps, and the assembly that
reduces them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

QUANTITIES = gl.constexpr(8)
"""Sums of a vector, in their order in the statistics: norms and counts; the last one is none."""


def residues_assembly(first: int, two: bool) -> str:
    """Assembly: the residues of a group, of words in the order of `fragment_layout`, by constants in that order.

    Args:
        first: which constant holds the factors of the first eight rows; those of the others follow.
        two: whether those rows belong to other moduli.

    Operands: 8 words of results, first those of the first eight rows; 8 words; 16 constants.
    """
    start = ", ".join(f"${16 + x}" for x in range(4))
    factors = f"${16 + first}, ${17 + first}"
    reductions = [[f"${24 + x}" for x in range(3)], [f"${24 + 4 * two + x}" for x in range(3)]]
    lines = ["{ .reg .b32 y<4>, q, l, h, r<32>;"]
    for j in range(8):
        # Factors are signed and bytes of A' + 2^bits unsigned, a mix that the instruction takes as it is.
        lines.append(
            "mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 "
            f"{{y0, y1, y2, y3}}, {{{factors}}}, {{${8 + j}}}, {{{start}}};"
        )
        for i in range(4):
            inverse, shift, minus = reductions[i // 2]
            lines.append(f"fma.rn.f32 q, y{i}, {inverse}, {shift}; mad.lo.s32 r{8 * i + j}, q, {minus}, y{i};")
    for word in range(8):
        r0, r1, r2, r3 = (f"r{4 * word + x}" for x in range(4))
        lines.append(f"prmt.b32 l, {r0}, {r1}, 0x0040; prmt.b32 h, {r2}, {r3}, 0x0040; prmt.b32 ${word}, l, h, 0x5410;")
    return " ".join([*lines, "}"])


RESIDUE_OPERANDS = gl.constexpr(",".join(["=r"] * 8 + ["r"] * 24))


@gluon.constexpr_function
def _bases(count, direction):
    """Of a direction with so many values."""
    return [[x << y for x in direction] for y in range(count.bit_length() - 1)]


@gluon.constexpr_function
def tile_layout(WARPS, GROUPS, ACROSS):
    """Of tiles (WARPS, GROUPS, 16, 4). A thread holds four neighbouring elements of a vector, of two columns at a time
    where they lie side by side.
    """
    fours, along, groups = _bases(4, [0, 0, 0, 1]), _bases(16, [0, 0, 1, 0]), _bases(GROUPS, [0, 1, 0, 0])
    if ACROSS:
        registers, lanes = groups[:1] + fours + groups[2:], groups[1:2] + along
    else:
        registers, lanes = fours + groups[1:], along + groups[:1]
    return gl.DistributedLinearLayout(registers, lanes, _bases(WARPS, [1, 0, 0, 0]), [], [WARPS, GROUPS, 16, 4])


@gluon.constexpr_function
def fragment_layout(WARPS, TILES):
    """Of words (TILES, WARPS, 4, 64) as the matrix instructions take them, and of what they give."""
    return gl.DistributedLinearLayout(
        _bases(8, [0, 0, 0, 1]) + _bases(TILES, [1, 0, 0, 0]),
        _bases(4, [0, 0, 1, 0]) + _bases(8, [0, 0, 0, 8]),
        _bases(WARPS, [0, 1, 0, 0]),
        [],
        [TILES, WARPS, 4, 64],
    )


@gluon.constexpr_function
def shared_layout(WARPS, TILES):
    """Of the same words in shared memory, so that eight threads' fours are in different banks, written or read."""
    # Lines of 64 words all begin in bank 0, so those of lanes 1 and 2 are turned by 4 and 16 words.
    offsets = [*_bases(64, [0, 0, 0, 1]), [0, 0, 1, 4], [0, 0, 2, 16], *_bases(WARPS, [0, 1, 0, 0])]
    tiles = _bases(TILES, [1, 0, 0, 0])
    if tiles:
        tiles[0] = [1, 0, 0, 16]
    return gl.SharedLinearLayout(offsets + tiles)


@gluon.constexpr_function
def shared_tiles_layout(WARPS, GROUPS):
    """Of tiles in shared memory, so that eight threads' fours are in different banks where two columns are theirs."""
    groups = _bases(GROUPS, [0, 1, 0, 0])
    if len(groups) > 1:
        groups[1] = [0, 2, 4, 0]
    return gl.SharedLinearLayout(
        _bases(4, [0, 0, 0, 1]) + _bases(16, [0, 0, 1, 0]) + groups + _bases(WARPS, [1, 0, 0, 0])
    )


@gluon.constexpr_function
def _of_warps(WARPS, GROUPS, ACROSS):
    """Of what all warps found, in every thread: (WARPS,), or (columns, WARPS) with columns as in `tile_layout`."""
    # Bases of 0 repeat a value in all lanes and warps, so that a load is also the broadcast.
    if not ACROSS:
        return gl.DistributedLinearLayout(_bases(WARPS, [1]), [[0]] * 5, _bases(WARPS, [0]), [], [WARPS])
    tile = tile_layout(WARPS, GROUPS, ACROSS)
    registers = _bases(WARPS, [0, 1]) + [[basis[1], 0] for basis in tile.reg_bases if basis[1]]
    lanes = [[basis[1], 0] for basis in tile.lane_bases]
    return gl.DistributedLinearLayout(registers, lanes, _bases(WARPS, [0, 0]), [], [GROUPS, WARPS])


@gluon.constexpr_function
def of_quantities(WARPS, GROUPS, ACROSS):
    """Of QUANTITIES that all warps found: a lane holds those of one quantity and column."""
    if not ACROSS:
        lanes = _bases(QUANTITIES.value, [1, 0]) + [[0, 0]] * 2
        return gl.DistributedLinearLayout(
            _bases(WARPS, [0, 1]), lanes, _bases(WARPS, [0, 0]), [], [QUANTITIES.value, WARPS]
        )
    columns = _bases(GROUPS, [0, 1, 0])
    lanes = _bases(QUANTITIES.value, [1, 0, 0]) + columns[:2]
    registers = _bases(WARPS, [0, 0, 1]) + columns[2:]
    return gl.DistributedLinearLayout(registers, lanes, _bases(WARPS, [0, 0, 0]), [], [QUANTITIES.value, GROUPS, WARPS])


@gluon.constexpr_function
def plain_layout(ACROSS, quantities):
    """Of such results in shared memory."""
    return gl.SwizzledSharedLayout(1, 1, 1, list(reversed(range(1 + ACROSS + quantities))))


@gluon.constexpr_function
def tile_shape(WARPS, GROUPS, ACROSS, quantities):
    """Of what warps exchange."""
    return [QUANTITIES.value] * quantities + [GROUPS] * ACROSS + [WARPS]


@gluon.jit
def warp_total(t, ACROSS: gl.constexpr):
    """Sums of a warp's partial results (WARPS, GROUPS, 16): (WARPS,), or (columns, WARPS)."""
    if ACROSS:
        return gl.sum(t, 2).permute((1, 0))
    else:
        return gl.sum(t.reshape((t.shape[0], t.shape[1] * 16)), 1)


@gluon.jit
def _warp_maximum(t, ACROSS: gl.constexpr):
    if ACROSS:
        return gl.max(t, 2).permute((1, 0))
    else:
        return gl.max(t.reshape((t.shape[0], t.shape[1] * 16)), 1)


@gluon.jit
def gathered(some, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr):
    """What warps found, in every thread."""
    shape: gl.constexpr = tile_shape(WARPS, GROUPS, ACROSS, 0)
    buffer = gl.allocate_shared_memory(some.dtype, shape, plain_layout(ACROSS, 0))
    buffer.store(some)
    return buffer.load(_of_warps(WARPS, GROUPS, ACROSS))


@gluon.jit
def maximum_of_warps(t, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr):
    """Over all warps."""
    return gl.max(gathered(_warp_maximum(t, ACROSS), WARPS, GROUPS, ACROSS), 1 if ACROSS else 0)


@gluon.jit
def total_of_warps(t, WARPS: gl.constexpr, GROUPS: gl.constexpr, ACROSS: gl.constexpr):
    """Over all warps."""
    return gl.sum(gathered(warp_total(t, ACROSS), WARPS, GROUPS, ACROSS), 1 if ACROSS else 0)


@gluon.jit
def put_in(buffer, i: gl.constexpr, t):
    """A quantity of all warps to its place."""
    if len(t.shape) == 2:
        buffer.slice(i, 1).store(t.reshape((1, t.shape[0], t.shape[1])))
    else:
        buffer.slice(i, 1).store(t.reshape((1, t.shape[0])))


@gluon.jit
def spread_out(v, ACROSS: gl.constexpr):
    """A value of each vector, over a tile."""
    if ACROSS:
        return v[None, :, None, None]
    else:
        return v


@gluon.jit
def in_fours(w0, w1, w2, WORDS: gl.constexpr, TILES: gl.constexpr, WARPS: gl.constexpr):
    """Words (WARPS, GROUPS, 16, 4) as (TILES, WARPS, 4, 64): four words are those of 4 // WORDS elements."""
    if WORDS == 1:
        fours = w0
    elif WORDS == 2:
        fours = gl.join(w0, w1).permute((0, 1, 4, 2, 3))
    else:
        # The fourth word only fills the instruction's 16 bytes: its factors are 0 (`tables.fragments`).
        fours = gl.join(gl.join(w0, w2), gl.join(w1, w2)).permute((0, 1, 4, 5, 2, 3))
    return fours.reshape((WARPS, TILES, 4, 64)).permute((1, 0, 2, 3))
