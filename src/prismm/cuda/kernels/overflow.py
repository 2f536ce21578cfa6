"""Whether a native product can overflow at all, by the largest magnitudes of its operands.

Where the result is larger than both operands, they are read, beside the product or before it, and the result is not
(`finish.finish_native`). With A and B the largest magnitudes, every sum that comes up on the way to an entry is at most
(1 + u)^K·K·A·B < 2·K·A·B for K·u <= 1/2, K products of real numbers in any order; complex numbers that are multiplied
by three products of sums stay below 8·K·A·B. So where exponents leave room for 16·K·A·B, what is finite stays so.

Bytes: 8 an element of the operands, instead of 8 an entry. On an H200 float64 products of (8192, 8192) by inner
dimensions of 32, 128, 512 take 196, 385, 1381 µs beside this (cuBLAS alone 191, 384, 1367; with a non-finite check of
the result 322, 519, 1498). Where the operands are no smaller than the result it is slower than that check: their
elements come from memory while cuBLAS wants them.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import magnitude_word, wide

TOP = tl.constexpr(3.4028235677973366e38)
"""2^128 - 2^103: from here on a number rounded to float32 is infinite."""


@triton.jit
def _largest(x, total, CHUNK: tl.constexpr):
    """The largest of the program's share of so many neighbours."""
    lanes = tl.arange(0, CHUNK)
    most = tl.zeros([CHUNK], tl.int32)
    for chunk in range(tl.program_id(0), tl.cdiv(total, CHUNK), tl.num_programs(0)):
        first = wide(chunk) * CHUNK
        most = tl.maximum(most, magnitude_word(tl.load(x + first + lanes, mask=lanes < total - first, other=0.0)))
    return tl.max(most, 0)


@triton.jit(do_not_specialize=["of_a", "of_b"])
def largest_magnitudes(a, b, found, of_a, of_b, CHUNK: tl.constexpr):
    """found (2, programs) int32: the largest `magnitude_word` of a program's share of so many real numbers of a, and of
    b.
    """
    tl.store(found + tl.program_id(0), _largest(a, of_a, CHUNK))
    tl.store(found + tl.num_programs(0) + tl.program_id(0), _largest(b, of_b, CHUNK))


@triton.jit
def cannot_overflow(found, programs, most, PRECISION: tl.constexpr, LANES: tl.constexpr):
    """Whether operands are finite and the sum of their largest biased exponents is at most `most`. LANES: programs at
    least.
    """
    # Where the exponent begins in `magnitude_word`.
    SHIFT: tl.constexpr = 20 if PRECISION == 53 else 23
    INFINITE: tl.constexpr = 0x7FF if PRECISION == 53 else 0xFF
    lanes = tl.arange(0, LANES)
    left = tl.max(tl.load(found + lanes, mask=lanes < programs, other=0), 0) >> SHIFT
    right = tl.max(tl.load(found + programs + lanes, mask=lanes < programs, other=0), 0) >> SHIFT
    # The sum alone would let Inf beside a small number pass.
    return (left < INFINITE) & (right < INFINITE) & (left + right <= most)
