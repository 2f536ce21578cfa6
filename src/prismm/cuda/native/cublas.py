"""Native products by cuBLAS, and what sees to entries that are not finite: what is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.cuda.device import LANES
from prismm.cuda.launch import cublas

if TYPE_CHECKING:
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.views import Result, Vectors


PROOF_PROGRAMS, PROOF_CHUNK, PROOF_SLACK, PROOF_TERMS = 4, 2048, 4, 1 << 22
"""Programs a multiprocessor that look for the largest magnitudes of operands, and elements that each reads at a time;
binades of room for an entry, and most products in one: see `cuda.kernels.overflow`.
"""
TILES = {(32, 32): (1.0, 32), (64, 16): (1.1, 64), (512, 2): (1.3, 64), (1, 1024): (1.5, 16)}
"""Rows and real numbers of a row of a tile that is looked at: how long it takes, about, and as how many rows it is
multiplied again. For products the first reads the fewest operands, so others have to spare tiles.
"""
TILE = 1024
"""Real numbers of any of them."""
PROGRAMS, REGISTERS = 8, 64
"""Programs of a multiprocessor, and registers of their threads, so that so many fit."""


def tile_of(rows: int, width: int) -> tuple[int, int]:
    """The tile in which a result of so many rows, of so many real numbers each, is looked at.

    >>> tile_of(1024, 1024), tile_of(4096, 20), tile_of(100000, 3), tile_of(1, 100000)
    ((32, 32), (64, 16), (512, 2), (1, 1024))
    """
    return min(TILES, key=lambda tile: -(-rows // tile[0]) * -(-width // tile[1]) * TILES[tile][0])


def multiply_natively(program: Program, a: Vectors, b: Vectors, out: Result) -> None:
    """Queue out = AB, contiguous, by cuBLAS.

    Raises:
        EngineError: for operands of strides that it does not read.
    """
    import torch

    right_batch, right_column, right_row = b.steps
    workspace = program.allocate(torch.uint8, cublas.WORKSPACE)
    gemm = cublas.Gemm(
        a.buffer, b.buffer, out.buffer, (out.batch, out.m, out.n, a.terms), a.steps,
        (right_batch, right_row, right_column), workspace,
    )  # fmt: skip
    gemm.call  # noqa: B018 - raises
    program.gemm(gemm)


def prove(program: Program, a: Vectors, b: Vectors, device: Device) -> BufferView:
    """Find the largest magnitudes of operands without gaps, for `finish_native`; returns where they are."""
    import torch

    from prismm.cuda.kernels import overflow

    programs = PROOF_PROGRAMS * device.programs
    found = program.allocate(torch.int32, 2, programs)
    sizes = (x.parts * x.batch * x.vectors * x.terms for x in (a, b))
    program.launch(
        overflow.largest_magnitudes, (programs,), a.buffer.reals(), b.buffer.reals(), found, *sizes, CHUNK=PROOF_CHUNK,
        num_warps=4,
    )  # fmt: skip
    return found


def finish_native(
    program: Program,
    out: Result,
    a: Vectors,
    b: Vectors,
    counts: BufferView,
    device: Device,
    found: BufferView | None = None,
) -> None:
    """Repair the entries of a native product, contiguous, that are not finite or may have to be infinite. found: of
    `prove`.
    """
    from prismm.cuda.native.kernels import finish

    parts, (m, n) = a.parts, (out.m, out.n)
    if n == 1:  # A column is contiguous like the row that the turned product is.
        a, b, m, n = b, a, n, m
    precision = 53 if out.buffer.reals().dtype.itemsize == 8 else 24
    programs = found.shape[1] if found is not None else 0
    # Biased exponents E stand for |x| < 2^(E + 1 - bias).
    bias = 1023 if precision == 53 else 127
    # Biased exponents that add up to at most this make products whose sum of k stays PROOF_SLACK binades below the end.
    most = 3 * bias - 2 - PROOF_SLACK - (parts * a.terms - 1).bit_length()
    rows, width = out.batch * m, parts * n
    tall, wide = tile_of(rows, width)
    height = TILES[tall, wide][1]
    across = -(-width // wide)
    tiles = -(-rows // tall) * across
    a_strides, b_strides = (tuple(parts * step for step in x.steps) for x in (a, b))
    program.launch(
        # Without a proof any pointer will do: LANES = 0 compiles its reading out.
        finish.finish_native, (min(PROGRAMS * device.programs, tiles),), a.buffer.reals(), *a_strides, b.buffer.reals(),
        *b_strides, out.buffer.reals(), counts, found or counts, m, n, a.terms, rows, tiles, across, programs, most,
        PRECISION=precision, PARTS=parts, ROWS=tall, COLUMNS=wide, HEIGHT=height, WIDTH=TILE // height,
        DEPTH=16, BLOCK=LANES,
        LANES=1 << (programs - 1).bit_length() if programs else 0, DENSE=device.nvidia and device.float64_dot,
        num_warps=4, enable_fp_fusion=False, **device.limited(REGISTERS),
    )  # fmt: skip
