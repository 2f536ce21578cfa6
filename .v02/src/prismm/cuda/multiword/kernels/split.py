"""Split both operands of a product into words of a short format: each element read once, in one launch.

A piece is CHUNK elements of a vector (row of A, column of B). It is scaled by a power of two until its largest
magnitude is in [2^14, 2^15) and cut into words, w1 = RN(x), w2 = RN((x - w1)·UP), …, which are written with the inner
dimension contiguous, as the product's copies want it. Rows of words: the high ones of A, its lower ones, then those of
B. scales[chunk, vector] undoes the scaling; 0 for a piece of zeros. That no column need be read as a whole is why
one launch and one reading do.

Exact: pieces below 2^-100 are scaled as if they reached it, so that every scale is a normal float32. Inf and NaN become
words that are Inf or NaN, and so does every sum that they enter.

A complex product is a real one: rows (re, im, re, …) of A times columns (re, -im, re, …), whose sums are the real
parts, and (im, re, im, …), the imaginary ones.

Bytes: 4 read an element, 2 written a word (4 a TF32 word); twice as many for complex B. About 10 operations.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import even

HALF, TF32, BF16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
REAL, LEFT, RIGHT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What vectors hold: real numbers, or complex ones of the left or right operand."""


@triton.jit
def scale_of(largest):
    """(2^s, 2^-s or 0 where `largest` is 0): 2^14 <= largest·2^s < 2^15, s from -113 to 115."""
    field = largest.to(tl.int32, bitcast=True) >> 23
    # From 26 on 2^-s is a normal float32; a piece with Inf or NaN is scaled as one of the largest finite number.
    field = tl.minimum(tl.maximum(field, 26), 254)
    up = ((268 - field) << 23).to(tl.float32, bitcast=True)
    down = ((field - 14) << 23).to(tl.float32, bitcast=True)
    return up, tl.where(largest == 0.0, 0.0, down)


@triton.jit
def word_of(x, FORMAT: tl.constexpr):
    """RN(x): in float16, in bfloat16, or in float32 whose last 13 bits are 0. Inf and NaN stay."""
    if FORMAT == HALF:
        return x.to(tl.float16)
    elif FORMAT == BF16:
        return x.to(tl.bfloat16)
    else:
        bits = x.to(tl.int32, bitcast=True)
        # Half a unit less 1, and 1 more where the last bit kept is odd: ties go to even. A carry into the exponent is
        # right.
        near = (bits + 0xFFF + ((bits >> 13) & 1)) & -8192
        return tl.where(tl.abs(x) < float("inf"), near, bits).to(tl.float32, bitcast=True)


@triton.jit
def _split(
    x, step, inner, words, pitch, plane, scales, count, k, v0, chunk, CHUNK: tl.constexpr, VECTORS: tl.constexpr,
    ACROSS: tl.constexpr, KIND: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """VECTORS pieces of x, whose vectors are `step` reals apart and their elements `inner`, or 1 (2 if complex)."""
    v = v0 + tl.arange(0, VECTORS)
    h = chunk * CHUNK + tl.arange(0, CHUNK)
    target = words + v.to(tl.int64)[:, None] * pitch + h[None, :]
    # Up to the pitch: the product copies whole steps, where words beyond k have to be 0.
    stored = (v < count)[:, None] & (h < pitch)[None, :]
    if ACROSS:
        hs, vs = h[:, None], v[None, :]
    else:
        hs, vs = h[None, :], v[:, None]
    inside = (hs < k) & (vs < count)
    if KIND == RIGHT:
        part = (hs ^ vs) & 1
        if ACROSS:
            at = (hs // 2).to(tl.int64) * inner + (vs // 2).to(tl.int64) * step + part
        else:
            at = (vs // 2).to(tl.int64) * step + (hs // 2 * 2 + part)
    elif KIND == LEFT and ACROSS:
        at = (hs // 2).to(tl.int64) * inner + vs.to(tl.int64) * step + (hs & 1)
    elif ACROSS:
        at = hs.to(tl.int64) * inner + vs.to(tl.int64) * step
    else:
        at = vs.to(tl.int64) * step + hs
    value = tl.load(x + at, mask=inside, other=0.0)
    if KIND == RIGHT:
        value = tl.where((hs & 1 == 1) & (vs & 1 == 0), -value, value)
    up, down = scale_of(tl.max(tl.abs(value), 0 if ACROSS else 1))
    tl.store(scales + v, down, mask=v < count)
    rest = value * (up[None, :] if ACROSS else up[:, None])
    for w in tl.static_range(WORDS):
        word = word_of(rest, FORMAT)
        tl.store(target + w * plane, tl.trans(word) if ACROSS else word, mask=stored)
        # Exact: a number less its rounding has no bits below its last one, and UP is a power of two.
        rest = (rest - word.to(tl.float32)) * UP


@triton.jit(
    do_not_specialize=[
        "a_step", "a_inner", "a_batch", "b_step", "b_inner", "b_batch", "rows", "columns", "depth", "left_programs",
    ]
)  # fmt: skip
def split_words(
    a, a_step, a_inner, a_batch, b, b_step, b_inner, b_batch, words, scales, counts, rows, columns, depth, pitch,
    left_programs, CHUNK: tl.constexpr, LEFT_ACROSS: tl.constexpr, RIGHT_ACROSS: tl.constexpr, COMPLEX: tl.constexpr,
    LEFT_EVEN: tl.constexpr, RIGHT_EVEN: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr, UP: tl.constexpr,
    VECTORS: tl.constexpr, CLEAR: tl.constexpr,
):  # fmt: skip
    """Words and scales of a (batch, rows, depth) and b (batch, depth, columns); CLEAR: counts (4,) int64 set to 0.

    All sizes and strides in real numbers; program axis 1 is the batch. LEFT_ACROSS, RIGHT_ACROSS: vectors that are
    neighbours in memory. LEFT_EVEN, RIGHT_EVEN: sizes and strides that are multiples of 16.
    """
    program, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1)
    chunks = tl.cdiv(pitch, CHUNK)
    plane_a = batches.to(tl.int64) * rows * pitch
    plane_b = batches.to(tl.int64) * columns * pitch
    # A multiple of 16 that Triton sees, so that scales of columns are as aligned as those of rows.
    left_vectors = (batches * rows + 15) // 16 * 16
    vectors = left_vectors + (batches * columns + 15) // 16 * 16
    if CLEAR:
        if (program == 0) & (batch == 0):
            tl.store(counts + tl.arange(0, 4), tl.zeros([4], tl.int64))
    if program < left_programs:
        chunk = program % chunks
        first = batch * rows
        _split(
            a + batch * even(a_batch, LEFT_EVEN), even(a_step, LEFT_EVEN and not LEFT_ACROSS),
            even(a_inner, LEFT_EVEN),
            words + first * pitch, pitch, plane_a, scales + chunk.to(tl.int64) * vectors + first,
            even(rows, LEFT_EVEN and LEFT_ACROSS), even(depth, LEFT_EVEN and not LEFT_ACROSS),
            program // chunks * VECTORS, chunk, CHUNK, VECTORS, LEFT_ACROSS, LEFT if COMPLEX else REAL,
            FORMAT, WORDS, UP,
        )  # fmt: skip
    else:
        program -= left_programs
        chunk = program % chunks
        first = batch * columns
        _split(
            b + batch * even(b_batch, RIGHT_EVEN), even(b_step, RIGHT_EVEN and not RIGHT_ACROSS),
            even(b_inner, RIGHT_EVEN),
            words + WORDS * plane_a + first * pitch, pitch, plane_b,
            scales + chunk.to(tl.int64) * vectors + left_vectors + first,
            even(columns, RIGHT_EVEN and RIGHT_ACROSS), even(depth, RIGHT_EVEN and not RIGHT_ACROSS),
            program // chunks * VECTORS, chunk, CHUNK, VECTORS, RIGHT_ACROSS, RIGHT if COMPLEX else REAL,
            FORMAT, WORDS, UP,
        )  # fmt: skip
