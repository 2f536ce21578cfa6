"""Real operands of twice the inner dimension, whose product is a part of a complex one; and that part put in place.
Vectors of any strides, copied to where their elements are neighbours.

Re(a·b) is [Re a, -Im a]·[Re b; Im b], Im(a·b) is [Re a, Im a]·[Im b; Re b]: `specials.real_operands`. Schemes that cut
real numbers multiply complex ones so, and a vector's two parts share one scale.

Bytes: 16 read and written an element in float64. At n = 4096 two operands should take 0.26 ms at 4.2 TB/s, both parts
together, beside products of 10 ms and more.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide

TILE = 1024
SIDE = 32
"""Vectors and elements of a tile that is turned."""


@triton.jit(do_not_specialize=["x_batch", "x_vector", "x_step", "vectors", "k"])
def straighten(x, x_batch, x_vector, x_step, to, vectors, k, SIDE: tl.constexpr):
    """to (batch, vectors, k), contiguous, = x with these steps, its vectors neighbours; program axis 1: matrices."""
    pieces = tl.cdiv(k, SIDE)
    h = tl.program_id(0) % pieces * SIDE + tl.arange(0, SIDE)
    i = tl.program_id(0) // pieces * SIDE + tl.arange(0, SIDE)
    batch = tl.program_id(1).to(tl.int64)
    inside = (h < k)[:, None] & (i < vectors)[None, :]
    source = h.to(tl.int64)[:, None] * wide(x_step) + i.to(tl.int64)[None, :] * wide(x_vector)
    # Loads run along neighbouring vectors and stores along neighbouring elements.
    value = tl.trans(tl.load(x + batch * x_batch + source, mask=inside, other=0.0))
    target = to + (batch * vectors + i.to(tl.int64))[:, None] * k + h[None, :]
    tl.store(target, value, mask=tl.trans(inside))


@triton.jit(
    do_not_specialize=["x_batch", "x_vector", "x_step", "to_batch", "to_vector", "to_step", "vectors", "k"]
)  # fmt: skip
def lay_out(
    x, x_batch, x_vector, x_step, to, to_batch, to_vector, to_step, vectors, k, SWAPPED: tl.constexpr,
    NEGATED: tl.constexpr, VECTORS: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """to (batch, vector, 2k) = real parts, then imaginary ones, of x (batch, vector, k); steps in real numbers.

    SWAPPED: imaginary parts first; NEGATED: these with the other sign. Program axis 1: matrices.
    """
    pieces = tl.cdiv(2 * k, ELEMENTS)
    h = tl.program_id(0) % pieces * ELEMENTS + tl.arange(0, ELEMENTS)[None, :]
    i = tl.program_id(0) // pieces * VECTORS + tl.arange(0, VECTORS)[:, None]
    batch = tl.program_id(1).to(tl.int64)
    second = h >= k
    imaginary = second ^ SWAPPED
    element = tl.where(second, h - k, h)
    inside = (i < vectors) & (h < 2 * k)
    source = x + batch * x_batch + i.to(tl.int64) * wide(x_vector) + element.to(tl.int64) * wide(x_step)
    value = tl.load(source + imaginary.to(tl.int32), mask=inside, other=0.0)
    if NEGATED:
        # Not 0 - x, which would leave no zero its sign.
        value = tl.where(imaginary, value * -1.0, value)
    target = to + batch * to_batch + i.to(tl.int64) * wide(to_vector) + h.to(tl.int64) * wide(to_step)
    tl.store(target, value, mask=inside)


@triton.jit(do_not_specialize=["to_batch", "to_row", "to_column", "m", "n"])
def put_part(x, to, to_batch, to_row, to_column, m, n, BLOCK: tl.constexpr):
    """to (batch, m, n) with these steps = x (batch, m, n), contiguous; a row's BLOCK columns a program."""
    blocks = tl.cdiv(n, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    j = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * n + j, mask=j < n, other=0.0)
    target = to + row // m * to_batch + row % m * to_row
    tl.store(target + j.to(tl.int64) * to_column, value, mask=j < n)
