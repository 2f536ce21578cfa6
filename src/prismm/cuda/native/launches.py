"""Conventional products on float64's matrix instructions: their launches.

Most are one kernel; where the inner dimension is long and tiles are few, it is cut into parts, whose sums another
kernel adds. Tiles, and which way is predicted fastest: `cuda.native.tiles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.cuda.launch.arguments import Tiled
from prismm.cuda.native.tiles import Shape, Split, Tile, faster_split, has_vector_kernel, tile_for

if TYPE_CHECKING:
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.views import Result, Vectors

__all__ = ["multiply_by_a_vector", "multiply_directly", "multiply_in_parts"]


_LONGEST = 1 << 39
"""Bytes from a row or matrix to the next; 2^40 are beyond TMA."""
_EVERY = 1 << 30
"""More uncertified entries than a part of a tile has, so that all are recomputed one by one."""
_ADDED = 2048
"""Sums of parts that a program adds at a time."""
_READ, _CACHED, _LONG, _MANY = 4096, 48 << 20, 4096, 4096
"""Bytes that a warp reads at a time for a product with a vector of few terms; bytes of a matrix, and terms, from which
on it is read further ahead; rows that keep a GPU busy in small programs.
"""


def multiply_directly(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: BufferView, device: Device, tile: Tile | None = None,
    *, exactly: bool = False,
) -> None:  # fmt: skip
    """Queue AB, contiguous, with entries that are not finite set, in the way that is predicted fastest; in tiles like
    this one, where one is given. counts: as for `native.cublas.finish_native`. exactly: whether all float64
    entries that overflow on the way are set to RN(exact), as gemm's sums ask for (`gemm.kernels.combine`).
    """
    size = a.buffer.dtype.itemsize
    matrix, x = (a, b) if b.vectors == 1 else (b, a)
    shape = Shape(out.m, out.n, a.terms, out.batch, size, x.vectors == 1 and matrix.strides[2] != 1)
    if tile is None and has_vector_kernel(shape):
        multiply_by_a_vector(program, out, matrix, x, counts)
        return
    if tile is None:
        # The kernel for Hopper copies by TMA, which asks for steps that are multiples of 16 bytes.
        sm90 = device.sm90 and describe(program, out, a, b) is not None
        split = faster_split(shape, device.programs, device.shared, sm90=sm90)
        if split is not None:
            multiply_in_parts(program, out, a, b, counts, split, device)
            return
        tile = tile_for(shape, device.programs, device.shared, sm90=sm90)
    # Whole products write no magnitudes, so any pointer will do for them.
    _multiply(program, out, a, b, counts, Split(tile, 1, a.terms), (counts, counts, counts), device, exactly)


def _multiply(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: BufferView, split: Split,
    tops: tuple[BufferView, BufferView, BufferView], device: Device, exactly: bool = False,
) -> None:  # fmt: skip
    """Queue the products of tiles: into the result, or of parts into sums of theirs, (batch, parts, m, n)."""
    from prismm.cuda.native.kernels import product as direct

    tile, single = split.tile, a.buffer.dtype.itemsize == 4
    if tile.groups:
        _multiply_by_groups(program, out, a, b, counts, split, tops, device, exactly)
        return
    grid = -(-out.n // tile.columns), -(-out.m // tile.rows), out.batch
    even = a.terms % 16 == 0 and (split.parts == 1 or split.length % 16 == 0)
    # No contraction of products and sums: the bound counts the roundings that the source shows.
    program.launch(
        direct.multiply_directly, grid, a.buffer, *a.steps, b.buffer, *b.steps, out.buffer, counts, *tops,
        out.m, out.n, a.terms, split.length, split.parts, _few(exactly),
        PRECISION=24 if single else 53, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, STAGES=tile.stages,
        ACROSS_A=1 if a.strides[2] == 1 else 0, ACROSS_B=0 if b.strides[2] == 1 else 1, UP=tile.up, ALONG=tile.along,
        EVEN=even, PARTED=split.parts > 1, num_warps=tile.warps, maxnreg=tile.registers, enable_fp_fusion=False,
    )  # fmt: skip


def multiply_in_parts(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: BufferView, split: Split, device: Device
) -> None:  # fmt: skip
    """`multiply_directly` where the inner dimension is cut: products of its parts, and their sum."""
    import torch

    from prismm.cuda.device import LANES
    from prismm.cuda.native.kernels import split_k
    from prismm.cuda.views import Result

    tile, parts, every = split.tile, split.parts, split.parts * out.batch
    tiles = -(-out.n // tile.columns) * -(-out.m // tile.rows) * (2 if tile.groups else 1)  # and those of groups
    single = a.buffer.dtype.itemsize == 4
    with program.scope():
        sums = program.allocate(torch.float64, every, out.m, out.n)
        # Of float64 parts no magnitudes are kept: a sum that overflowed shows it.
        tops = (counts, counts, counts)
        if single:
            row_tops, column_tops, of_tiles = (program.allocate(torch.float32, every, x) for x in (out.m, out.n, tiles))
            tops = (row_tops, column_tops, of_tiles)
        into = Result(sums, every, out.m, out.n, (out.m * out.n, out.n, 1))
        _multiply(program, into, a, b, counts, split, tops, device)
        together = min(256, 1 << (parts - 1).bit_length())
        entries = max(16, _ADDED // together)
        of_tops = max(32, min(1024, 1 << (parts * tiles - 1).bit_length())) if single else 32
        program.launch(
            split_k.add_parts, (-(-out.m * out.n // entries), out.batch), a.buffer, *a.steps, b.buffer,
            *b.steps, out.buffer, sums, *tops, counts, out.m, out.n, a.terms, parts, tiles,
            PRECISION=24 if single else 53, ENTRIES=entries, TOGETHER=together, ONE=parts <= together, TOPS=of_tops,
            ONE_OF_TOPS=parts * tiles <= of_tops, LANES=LANES, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip


def multiply_by_a_vector(program: Program, out: Result, matrix: Vectors, x: Vectors, counts: BufferView) -> None:
    """`multiply_directly` where one operand is a vector, and the other one's terms are neighbours."""
    from prismm.cuda.device import LANES
    from prismm.cuda.native.kernels import gemv as vector

    size, count = matrix.buffer.dtype.itemsize, matrix.batch * matrix.vectors
    rows, block, warps, stages = _rows_at_a_time(count, matrix.terms, size)
    one = matrix.terms <= block
    of_batch, of_row, _ = matrix.steps
    of_x, _, x_step = x.steps
    together = 16 // size
    # Vectors of 16 bytes need rows, matrices and lengths alike to be multiples of that.
    if matrix.terms % together or of_row % together or of_batch % together:
        together = 1
    # Few registers let more small programs share a multiprocessor, whose bytes in flight decide the speed.
    program.launch(
        vector.multiply_by_a_vector, (-(-matrix.vectors // rows), out.batch), matrix.buffer, of_batch, of_row,
        x.buffer, of_x, x_step, out.buffer, counts, matrix.vectors, matrix.terms,
        PRECISION=53 if size == 8 else 24, ROWS=rows, BLOCK=block, ONE=one, WHOLE=matrix.terms % block == 0,
        STAGES=stages, TOGETHER=together, LANES=LANES, num_warps=warps,
        maxnreg=64 if one and block <= 256 else 128, enable_fp_fusion=False,
    )  # fmt: skip


def _rows_at_a_time(count: int, terms: int, size: int) -> tuple[int, int, int, int]:
    """How so many rows are read, of elements of so many bytes: rows and terms of a step, warps, steps at once; as was
    fastest on an H200.
    """
    if terms <= 256:
        block = max(16, 1 << (terms - 1).bit_length())
        rows = max(4, _READ // (block * size))
        return rows, block, max(1, rows * block * size // _READ), 1
    if terms <= 512:
        return 2, 512, 1, 1
    far, single = count * terms * size > _CACHED, size == 4
    if count < _MANY:
        if far and terms >= _LONG:
            return (2, 1024, 4, 3) if single else (1, 2048, 4, 1)
        return 4, 512, 4, 1
    if terms <= 768:
        return (4, 128, 1, 1) if single else (4, 256, 2, 1)
    if single:
        return 4, 256, 2, 3 if far else 1
    return (2, 1024, 4, 1) if terms > 1024 else (4, 512, 4, 1)


def describe(program: Program, out: Result, a: Vectors, b: Vectors) -> tuple[Tiled, Tiled, Tiled] | None:
    """What describes A, B and the result to TMA, as `cuda.native.kernels.product_sm90` copies them; None where
    an address, or a step from a row to the next, is no multiple of 16 bytes.
    """
    from prismm.cuda.native.kernels import product_sm90 as kernel

    edge, inner = kernel.EDGE, kernel.INNER.value
    found = []
    for x in (a, b):
        along = x.strides[2] == 1
        sizes = (x.batch, x.vectors, x.terms) if along else (x.batch, x.terms, x.vectors)
        strides = x.strides[0], x.strides[1] if along else x.strides[2]
        found.append((x.buffer, sizes, strides, (1, edge, inner) if along else (1, inner, edge)))
    found.append((out.buffer, (out.batch, out.m, out.n), (out.m * out.n, out.n), (1, edge, edge)))
    left, right, result = (tiled(program, *one) for one in found)
    return None if left is None or right is None or result is None else (left, right, result)


def tiled(
    program: Program,
    place: BufferView,
    sizes: tuple[int, int, int],
    strides: tuple[int, int],
    box: tuple[int, int, int],
) -> Tiled | None:
    """What describes matrices (batch, rows, elements of a row) to TMA, which copies boxes of them; None as `describe`.

    steps: from one matrix, and from one row, to the next.
    """
    from triton.experimental.gluon import language as gl

    size = place.dtype.itemsize
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, size * box[2]), element_bitwidth=8 * size, rank=3)
    # Of one row, or one matrix, there is no next one.
    together = 16 // size
    row = strides[1] if sizes[1] > 1 else -(-sizes[2] // together) * together
    matrix = strides[0] if sizes[0] > 1 else sizes[1] * row
    if not program.aligned(place) or row % together or matrix % together or size * max(row, matrix) >= _LONGEST:
        return None
    return Tiled(place, sizes, (matrix, row, 1), box, layout)


def _few(exactly: bool) -> int:
    """Uncertified entries of a part of a tile that are recomputed one by one."""
    from prismm.cuda.native.kernels.finish import FEW

    return _EVERY if exactly else FEW.value


def _multiply_by_groups(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: BufferView, split: Split,
    tops: tuple[BufferView, BufferView, BufferView], device: Device, exactly: bool,
) -> None:  # fmt: skip
    """`_multiply` by the kernel for Hopper."""
    from prismm.cuda.native.kernels import product_sm90 as kernel

    tile, single = split.tile, a.buffer.dtype.itemsize == 4
    described = describe(program, out, a, b)
    # Tiles of groups are offered only where operands could be described.
    assert described is not None
    tiles = -(-out.m // tile.rows) * -(-out.n // tile.columns) * out.batch
    # No program without a tile, as its consumers would wait for a first stage that never comes.
    program.launch(
        kernel.multiply_by_groups, (min(tiles, device.programs),), a.buffer, *a.steps, b.buffer, *b.steps,
        out.buffer, counts, *tops, *described, out.m, out.n, a.terms, split.length, split.parts, out.batch,
        int(a.batch == 1), int(b.batch == 1), _few(exactly), SINGLE=single,
        PARTED=split.parts > 1, LEFT_ALONG=a.strides[2] == 1, RIGHT_ALONG=b.strides[2] == 1,
        DOWN=tile.rows // kernel.EDGE, ACROSS=tile.columns // kernel.EDGE, EDGE=kernel.EDGE, DEPTH=tile.depth,
        STAGES=tile.stages, STRIP=kernel.STRIP, enable_fp_fusion=False, **kernel.LAUNCH,
    )  # fmt: skip
