"""`words_split` with layouts of its own: elements travel between global memory and registers only, 16 bytes at a time.

A program holds a piece of 32 vectors, 32 elements a thread. Of contiguous vectors a thread reads and writes 8
neighbouring elements; of others it reads 8 rows of 4 neighbouring vectors and writes 4 vectors of 8 neighbouring
elements, so that transposing is a matter of which register is which. Neighbouring programs read neighbouring memory.

Bytes: 4 read an element, 2 written a word: both operands at n = 8192 take 0.25 ms at least on an H200 (4.3 TB/s), and
were measured to take 0.30 ms; 0.081 ms at n = 4096, 0.092 with a transposed A, 0.070 with a transposed B.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from prismm.cuda.kernels.fp64 import even

HALF, TF32, BF16 = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
REAL, LEFT, RIGHT = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
VECTORS = gl.constexpr(32)


@gluon.constexpr_function
def along_layout(chunk):
    """Threads of pieces (32, chunk) of contiguous vectors: 8 elements each, warps on top of each other."""
    # Eight words of 16 bits are the 16 bytes that one store takes.
    lanes = min(32, chunk // 8)
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [chunk // 32, 1], [1, 0])


@gluon.constexpr_function
def across_layout(chunk):
    """Threads of pieces (chunk, 32) of neighbouring vectors: 8 x 4 elements each."""
    return gl.BlockedLayout([8, 4], [4, 8], [chunk // 32, 1], [1, 0])


@gluon.constexpr_function
def across_stored(chunk):
    """The same threads with their registers in the order in which they are stored."""
    warps = [[32 << x, 0] for x in range((chunk // 32).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        # Elements of a vector first: a store is as wide as neighbouring registers hold neighbouring words.
        reg_bases=[[1, 0], [2, 0], [4, 0], [0, 1], [0, 2]],
        lane_bases=[[0, 4], [0, 8], [0, 16], [8, 0], [16, 0]],
        warp_bases=warps,
        block_bases=[],
        shape=[chunk, 32],
    )


@gluon.jit
def scale_of(largest):
    """`words_split.scale_of`."""
    field = largest.to(gl.int32, bitcast=True) >> 23
    field = gl.minimum(gl.maximum(field, 26), 254)
    up = ((268 - field) << 23).to(gl.float32, bitcast=True)
    down = ((field - 14) << 23).to(gl.float32, bitcast=True)
    return up, gl.where(largest == 0.0, 0.0, down)


@gluon.jit
def _word_of(x, FORMAT: gl.constexpr):
    """`words_split.word_of`."""
    if FORMAT == HALF:
        return x.to(gl.float16)
    elif FORMAT == BF16:
        return x.to(gl.bfloat16)
    else:
        bits = x.to(gl.int32, bitcast=True)
        near = (bits + 0xFFF + ((bits >> 13) & 1)) & -8192
        return gl.where(gl.abs(x) < float("inf"), near, bits).to(gl.float32, bitcast=True)


@gluon.jit
def _split_along(
    x, step, words, pitch, plane, scales, count, k, v0, chunk, CHUNK: gl.constexpr, KIND: gl.constexpr,
    FORMAT: gl.constexpr, WORDS: gl.constexpr, UP: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = along_layout(CHUNK)
    v = v0 + gl.arange(0, VECTORS, layout=gl.SliceLayout(1, layout))
    h = chunk * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, layout))
    inside = (v < count)[:, None] & (h < k)[None, :]
    if KIND == RIGHT:
        at = (v // 2).to(gl.int64)[:, None] * step + (h[None, :] ^ (v & 1)[:, None])
    else:
        at = v.to(gl.int64)[:, None] * step + h[None, :]
    value = gl.load(x + at, mask=inside, other=0.0)
    if KIND == RIGHT:
        value = gl.where((h & 1 == 1)[None, :] & (v & 1 == 0)[:, None], -value, value)
    up, down = scale_of(gl.max(gl.abs(value), 1))
    gl.store(scales + v, down, mask=v < count)
    rest = value * up[:, None]
    target = words + v.to(gl.int64)[:, None] * pitch + h[None, :]
    stored = (v < count)[:, None] & (h < pitch)[None, :]
    for w in gl.static_range(WORDS):
        word = _word_of(rest, FORMAT)
        gl.store(target + w * plane, word, mask=stored)
        # Exact, see `words_split`: the next word starts from all that this one leaves.
        rest = (rest - word.to(gl.float32)) * UP


@gluon.jit
def _split_across(
    x, inner, words, pitch, plane, scales, count, k, v0, chunk, CHUNK: gl.constexpr, KIND: gl.constexpr,
    FORMAT: gl.constexpr, WORDS: gl.constexpr, UP: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = across_layout(CHUNK)
    turned: gl.constexpr = across_stored(CHUNK)
    v = v0 + gl.arange(0, VECTORS, layout=gl.SliceLayout(0, layout))
    h = chunk * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, layout))
    inside = (h < k)[:, None] & (v < count)[None, :]
    if KIND == RIGHT:
        at = (h // 2).to(gl.int64)[:, None] * inner + (v // 2 * 2)[None, :] + ((h[:, None] ^ v[None, :]) & 1)
    elif KIND == LEFT:
        at = (h // 2).to(gl.int64)[:, None] * inner + (v * 2)[None, :] + (h & 1)[:, None]
    else:
        at = h.to(gl.int64)[:, None] * inner + v[None, :]
    value = gl.load(x + at, mask=inside, other=0.0)
    if KIND == RIGHT:
        value = gl.where((h & 1 == 1)[:, None] & (v & 1 == 0)[None, :], -value, value)
    up, down = scale_of(gl.max(gl.abs(value), 0))
    gl.store(scales + v, down, mask=v < count)
    rest = value * up[None, :]
    tv = v0 + gl.arange(0, VECTORS, layout=gl.SliceLayout(0, turned))
    th = chunk * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, turned))
    target = words + tv.to(gl.int64)[None, :] * pitch + th[:, None]
    stored = (tv < count)[None, :] & (th < pitch)[:, None]
    for w in gl.static_range(WORDS):
        word = _word_of(rest, FORMAT)
        gl.store(target + w * plane, gl.convert_layout(word, turned), mask=stored)
        rest = (rest - word.to(gl.float32)) * UP


@gluon.jit
def _split(
    program, x, step, inner, words, pitch, plane, scales, vectors, count, k, CHUNK: gl.constexpr, ACROSS: gl.constexpr,
    KIND: gl.constexpr, FORMAT: gl.constexpr, WORDS: gl.constexpr, UP: gl.constexpr,
):  # fmt: skip
    if ACROSS:
        blocks = gl.cdiv(count, VECTORS)
        # Neighbouring programs have neighbouring vectors, as these are neighbours in memory.
        chunk = program // blocks
        _split_across(
            x, inner, words, pitch, plane, scales + chunk.to(gl.int64) * vectors, count, k,
            program % blocks * VECTORS, chunk, CHUNK, KIND, FORMAT, WORDS, UP,
        )  # fmt: skip
    else:
        chunks = gl.cdiv(pitch, CHUNK)
        # Here neighbours in memory are the pieces of a vector.
        chunk = program % chunks
        _split_along(
            x, step, words, pitch, plane, scales + chunk.to(gl.int64) * vectors, count, k, program // chunks * VECTORS,
            chunk, CHUNK, KIND, FORMAT, WORDS, UP,
        )  # fmt: skip


@gluon.jit(
    do_not_specialize=[
        "a_step", "a_inner", "a_batch", "b_step", "b_inner", "b_batch", "rows", "columns", "depth", "left_programs",
    ]
)  # fmt: skip
def split_words(
    a, a_step, a_inner, a_batch, b, b_step, b_inner, b_batch, words, scales, counts, rows, columns, depth, pitch,
    left_programs, CHUNK: gl.constexpr, LEFT_ACROSS: gl.constexpr, RIGHT_ACROSS: gl.constexpr, COMPLEX: gl.constexpr,
    LEFT_EVEN: gl.constexpr, RIGHT_EVEN: gl.constexpr, FORMAT: gl.constexpr, WORDS: gl.constexpr, UP: gl.constexpr,
    CLEAR: gl.constexpr,
):  # fmt: skip
    """As `words_split.split_words`; pitch is a multiple of 16, the warps are CHUNK/32."""
    program, batch = gl.program_id(0), gl.program_id(1).to(gl.int64)
    batches = gl.num_programs(1)
    plane_a = batches.to(gl.int64) * rows * pitch
    plane_b = batches.to(gl.int64) * columns * pitch
    left_vectors = (batches * rows + 15) // 16 * 16
    vectors = left_vectors + (batches * columns + 15) // 16 * 16
    if program < left_programs:
        if CLEAR:
            if (program == 0) & (batch == 0):
                threads: gl.constexpr = gl.BlockedLayout([1], [32], [CHUNK // 32], [0])
                gl.store(counts + gl.arange(0, 4, layout=threads), gl.zeros([4], gl.int64, threads))
        first = batch * rows
        _split(
            program, a + batch * even(a_batch, LEFT_EVEN), even(a_step, LEFT_EVEN and not LEFT_ACROSS),
            even(a_inner, LEFT_EVEN),
            words + first * pitch, pitch, plane_a, scales + first, vectors,
            even(rows, LEFT_EVEN and LEFT_ACROSS), even(depth, LEFT_EVEN and not LEFT_ACROSS), CHUNK, LEFT_ACROSS,
            LEFT if COMPLEX else REAL, FORMAT, WORDS, UP,
        )  # fmt: skip
    else:
        first = batch * columns
        _split(
            program - left_programs, b + batch * even(b_batch, RIGHT_EVEN),
            even(b_step, RIGHT_EVEN and not RIGHT_ACROSS), even(b_inner, RIGHT_EVEN),
            words + WORDS * plane_a + first * pitch, pitch, plane_b, scales + (left_vectors + first), vectors,
            even(columns, RIGHT_EVEN and RIGHT_ACROSS), even(depth, RIGHT_EVEN and not RIGHT_ACROSS), CHUNK,
            RIGHT_ACROSS, RIGHT if COMPLEX else REAL, FORMAT, WORDS, UP,
        )  # fmt: skip
