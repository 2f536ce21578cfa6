"""Reading flags of entries, one bit per entry, so that all programs get their share of the flagged entries.

A program reads a chunk of SPAN bytes at a time. The bytes of a chunk lie as far apart as there are chunks. So programs
share entries that are flagged together, in a few rows or in a few columns.
"""

import triton
import triton.language as tl

from prismm.cuda.kernels.fp64 import wide


@triton.jit
def chunks_of(total, SPAN: tl.constexpr):
    """The number of chunks of so many bytes. It is odd: flags of a column may be a power of two of bytes apart, and
    then lie in different chunks.
    """
    return tl.cdiv(total, SPAN) | 1


@triton.jit
def bytes_of(flags, chunk, chunks, total, SPAN: tl.constexpr):
    """The flags of a chunk, and 0 where there are none."""
    place = chunk + wide(chunks) * tl.arange(0, SPAN)
    return tl.load(flags + place, mask=place < total, other=0)


@triton.jit
def following(some, at, SPAN: tl.constexpr):
    """The first byte behind the at-th that has flags, of which there must be one. Triton has no break, and no index
    into a tensor.
    """
    lanes = tl.arange(0, SPAN)
    return tl.min(tl.where((some != 0) & (lanes > at), lanes, SPAN), 0)


@triton.jit
def place_of(byte, pitch, m, PARTS: tl.constexpr):
    """(matrix, part, row, first column) of a byte of flags (matrices, PARTS, m, pitch)."""
    row = byte // pitch
    return row // m // PARTS, row // m % PARTS, row % m, byte % pitch * 8
