"""Conventional products on float64's matrix instructions, in one kernel: its tiles, what they take, its launch.

A tile's time is that of its steps along the inner dimension, of which a multiprocessor does several tiles' at once: no
less than `latency` a step, and `step` for each of these tiles; then `tile` for its result. Fitted to
`benchmarks/results/gpu_direct.csv`, where predictions are within 10 % for most shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from prismm.engines.launch import LONGEST_GRID, Tiled

if TYPE_CHECKING:
    from prismm.engines.cuda import Device, Result, Vectors
    from prismm.engines.launch import Place, Program

__all__ = [
    "MOST_ROWS",
    "TILES",
    "Pace",
    "Shape",
    "Tile",
    "least_seconds",
    "multiply_by_a_vector",
    "multiply_directly",
    "seconds_of",
    "tile_for",
    "work",
]


class Pace(NamedTuple):
    """Microseconds on an H200: of the kernel's start, of a step at least, of a step, of a tile's result."""

    start: float
    latency: float
    step: float
    tile: float


@dataclass(frozen=True)
class Tile:
    """Rows, columns, and elements of the inner dimension in a step; warps up and along; steps in shared memory;
    registers of a thread at most. double, single: the pace with operands in float64 and in float32; None where there
    are too few registers. groups: whether it is that of the kernel for Hopper (`kernels.gpu.direct_hopper`).
    """

    rows: int
    columns: int
    depth: int
    up: int
    along: int
    stages: int
    registers: int
    double: Pace
    single: Pace | None
    groups: bool = False

    def pace(self, size: int) -> Pace | None:
        """With operands of so many bytes an element."""
        return self.double if size == 8 else self.single

    @property
    def warps(self) -> int:
        """Of a program."""
        return self.up * self.along

    def shared(self, size: int) -> int:
        """Bytes of shared memory that a program takes, with operands of so many bytes an element."""
        result = self.rows * self.columns * size if self.groups else 0
        return (self.rows + self.columns) * self.depth * size * self.stages + result

    def together(self, size: int) -> int:
        """How many programs a multiprocessor of an H100 or H200 holds."""
        most = _SHARED // (self.shared(size) + 1024)
        return max(1, min(most, _REGISTERS // (32 * self.warps * self.registers)))


_SHARED, _REGISTERS = 227 * 1024, 65536
"""Of a multiprocessor of an H100 or H200."""
_CACHE, _CACHED, _MOVED = 40e6, 8e6, 12e6
"""Bytes up to which operands and result stay in its L2 cache, and bytes a microsecond: once from there; into all
multiprocessors.
"""
_ASKEW, _LINE = 1.35, 128
"""What rows cost more that do not begin at a line of the cache, and its bytes."""

TILES = (
    Tile(16, 16, 64, 1, 2, 4, 128, Pace(1.0, 0.478, 0.12, 0.6), Pace(1.8, 0.334, 0.111, 0.45)),
    Tile(32, 16, 64, 2, 2, 4, 120, Pace(1.5, 0.323, 0.281, 1.0), Pace(1.8, 0.256, 0.223, 0.6)),
    Tile(64, 16, 32, 4, 1, 5, 120, Pace(1.0, 0.359, 0.239, 1.0), Pace(1.8, 0.201, 0.174, 0.6)),
    Tile(16, 64, 32, 1, 4, 5, 120, Pace(1.2, 0.275, 0.239, 1.0), Pace(1.8, 0.201, 0.174, 0.6)),
    Tile(64, 32, 16, 4, 1, 6, 120, Pace(1.0, 0.424, 0.184, 1.0), Pace(1.8, 0.297, 0.174, 0.6)),
    Tile(32, 32, 16, 2, 2, 8, 96, Pace(1.5, 0.166, 0.098, 1.0), Pace(1.5, 0.215, 0.083, 0.6)),
    Tile(32, 32, 64, 2, 2, 3, 144, Pace(1.0, 0.668, 0.445, 1.0), Pace(1.8, 0.848, 0.369, 0.8)),
    Tile(64, 64, 16, 2, 2, 4, 168, Pace(1.8, 0.454, 0.349, 1.3), Pace(1.5, 0.472, 0.315, 0.8)),
    Tile(64, 64, 32, 2, 2, 3, 168, Pace(1.5, 0.959, 0.738, 1.3), None),
    Tile(128, 64, 16, 2, 2, 4, 255, Pace(1.8, 0.781, 0.601, 2.0), None),
)
BY_GROUPS = Tile(128, 64, 32, 4, 2, 3, 168, Pace(3.5, 1.12, 1.12, 1.2), None, groups=True)


_VECTOR, _ELEMENTS, _LONG = 1.5, 2048, 512
"""Microseconds of a product with a vector besides reading the matrix; elements that a program reads at a time; terms
from which on it has a kernel of its own: with 256 terms of 65536 rows that took an H200 34 µs, cuBLAS 23.
"""
_LONGEST_STEP = 1 << 36
"""Float64 numbers from a row or matrix to the next, 2^40 bytes of which are beyond TMA."""
MOST_ROWS, MOST_TERMS = 64 * LONGEST_GRID, 1 << 24
"""Rows of tiles that both types have; terms of a sum."""


class Shape(NamedTuple):
    """So many products of m by k and k by n matrices, of elements of so many bytes."""

    m: int
    n: int
    k: int
    matrices: int
    size: int

    @property
    def served(self) -> bool:
        """Whether they are one launch, whose kernel counts columns in 32 bits and finds what overflows in sums of fewer
        than 2^24 products.
        """
        some = min(self.m, self.n, self.k, self.matrices) > 0 and self.n <= 1 << 30 and self.k < MOST_TERMS
        return some and self.m <= MOST_ROWS and self.matrices <= LONGEST_GRID

    @property
    def askew(self) -> bool:
        """Whether rows begin anywhere in a line of the cache."""
        return bool(self.size * self.n % _LINE or self.size * self.k % _LINE)

    @property
    def paired(self) -> bool:
        """Whether they are float64 matrices whose rows all begin at multiples of 16 bytes."""
        return self.size == 8 and not (self.n % 2 or self.k % 2)

    def bytes(self, across: int, down: int) -> int:
        """Of A so often, of B so often, and of the result."""
        m, n, k = self.m, self.n, self.k
        return self.size * self.matrices * (m * k * across + k * n * down + m * n)


def work(tile: Tile, shape: Shape, processors: int) -> float:
    """Microseconds of a kernel on a GPU as fast as an H200 with so many processors, but for its memory."""
    pace = tile.pace(shape.size)
    if pace is None:
        return math.inf
    start, latency, step, result = pace
    across, down = -(-shape.n // tile.columns), -(-shape.m // tile.rows)
    tiles, steps, most = shape.matrices * across * down, -(-shape.k // tile.depth), tile.together(shape.size)
    waves, rest = divmod(tiles, processors * most)

    def wave(programs: int) -> float:
        """So many at once on a multiprocessor."""
        return steps * max(latency, programs * step) + result * math.sqrt(programs)

    busy = waves * wave(most) + (wave(-(-rest // processors)) if rest else 0.0)
    return start + (_ASKEW if shape.askew and not tile.groups else 1.0) * max(busy, shape.bytes(across, down) / _MOVED)


def tile_for(shape: Shape, processors: int, shared: int = _SHARED, *, hopper: bool = False) -> Tile:
    """The tile that is predicted fastest, of those that so many bytes of shared memory hold. hopper: whether
    `BY_GROUPS` is one of them.
    """
    some = (*TILES, BY_GROUPS) if hopper and shape.paired else TILES
    fitting = [tile for tile in some if shape.m <= LONGEST_GRID * tile.rows and tile.shared(shape.size) <= shared]
    return min(fitting, key=lambda tile: work(tile, shape, processors))


def seconds_of(shape: Shape, processors: int, slower: float, memory: float, *, hopper: bool = False) -> float:
    """Seconds of the fastest tile's kernel. slower: how many times as long its work takes as on an H200; memory: bytes
    a second.
    """
    if shape.n == 1 and shape.k >= _LONG:  # of a matrix by rows
        return 1e-6 * slower * _VECTOR + least_seconds(shape, memory)
    busy = 1e-6 * slower * work(tile_for(shape, processors, hopper=hopper), shape, processors)
    return max(busy, least_seconds(shape, memory))


def least_seconds(shape: Shape, memory: float) -> float:
    """What reading the operands and writing the result takes."""
    once = shape.bytes(1, 1)
    return once / memory if once > _CACHE else 1e-6 * once / _CACHED


def multiply_directly(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: Place, device: Device, tile: Tile | None = None
) -> None:  # fmt: skip
    """Queue AB, contiguous, with what is not finite settled. counts: as for `cuda.finish_native`. tile: else `tile_for`
    says, or a long vector has a kernel of its own.
    """
    from prismm.kernels.gpu import direct

    if tile is None and a.terms >= _LONG:
        for matrix, x in ((a, b), (b, a)):
            if x.vectors == 1 and matrix.steps[2] == 1:
                multiply_by_a_vector(program, out, matrix, x, counts)
                return
    size = a.place.dtype.itemsize
    described = describe(program, out, a, b) if device.hopper and size == 8 else None
    shape = Shape(out.m, out.n, a.terms, out.batch, size)
    tile = tile or tile_for(shape, device.programs, device.shared, hopper=described is not None)
    if tile.groups:
        assert described is not None
        _multiply_by_groups(program, out, a, b, counts, device, described)
        return
    grid = -(-out.n // tile.columns), -(-out.m // tile.rows), out.batch
    program.launch(
        direct.multiply_directly, grid, a.place, *_steps(a), b.place, *_steps(b), out.place, counts, out.m, out.n,
        a.terms,
        PRECISION=53 if size == 8 else 24, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, STAGES=tile.stages,
        ACROSS_A=1 if a.steps[2] == 1 else 0, ACROSS_B=0 if b.steps[2] == 1 else 1, UP=tile.up, ALONG=tile.along,
        EVEN=a.terms % 16 == 0,
        num_warps=tile.warps, maxnreg=tile.registers, enable_fp_fusion=False,
    )  # fmt: skip


def _steps(x: Vectors) -> tuple[int, int, int]:
    """From a matrix to the next, none where one serves all, from a vector to the next, and within one."""
    return (x.steps[0] if x.batch > 1 else 0, *x.steps[1:])


def multiply_by_a_vector(program: Program, out: Result, matrix: Vectors, x: Vectors, counts: Place) -> None:
    """`multiply_directly` where one operand is a vector, and the other one's terms are neighbours."""
    from prismm.engines.cuda import LANES
    from prismm.kernels.gpu import vector

    block = max(16, min(512, 1 << (matrix.terms - 1).bit_length()))
    rows = _ELEMENTS // block
    of_x, _, x_step = _steps(x)
    program.launch(
        vector.multiply_by_a_vector, (-(-matrix.vectors // rows), out.batch), matrix.place, *_steps(matrix)[:2],
        x.place, of_x, x_step, out.place, counts, matrix.vectors, matrix.terms,
        PRECISION=53 if matrix.place.dtype.itemsize == 8 else 24, ROWS=rows, BLOCK=block, EVEN=matrix.terms % 16 == 0,
        LANES=LANES, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def describe(program: Program, out: Result, a: Vectors, b: Vectors) -> tuple[Tiled, Tiled, Tiled] | None:
    """What describes A, B and the result, of float64 numbers, to TMA, as `kernels.gpu.direct_hopper` copies them; None
    where an address, or a step from a row to the next, is no multiple of 16 bytes.
    """
    from triton.experimental.gluon import language as gl

    from prismm.kernels.gpu import direct_hopper as kernel

    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=64, rank=3)
    edge, inner = kernel.EDGE, kernel.INNER.value
    found = []
    for x in (a, b):
        along = x.steps[2] == 1
        sizes = (x.batch, x.vectors, x.terms) if along else (x.batch, x.terms, x.vectors)
        steps = x.steps[0], x.steps[1] if along else x.steps[2]
        found.append((x.place, sizes, steps, (1, edge, inner) if along else (1, inner, edge)))
    found.append((out.place, (out.batch, out.m, out.n), (out.m * out.n, out.n), (1, edge, edge)))
    tiled = []
    for place, sizes, steps, box in found:
        # Of one row, or one matrix, there is no next one.
        row = steps[1] if sizes[1] > 1 else -(-sizes[2] // 2) * 2
        matrix = steps[0] if sizes[0] > 1 else sizes[1] * row
        if not program.aligned(place) or row % 2 or matrix % 2 or max(row, matrix) >= _LONGEST_STEP:
            return None
        tiled.append(Tiled(place, sizes, (matrix, row, 1), box, layout))
    left, right, result = tiled
    return left, right, result


def _multiply_by_groups(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: Place, device: Device,
    described: tuple[Tiled, Tiled, Tiled],
) -> None:  # fmt: skip
    """`multiply_directly` by the kernel for Hopper."""
    from prismm.kernels.gpu import direct_hopper as kernel

    tiles = -(-out.m // BY_GROUPS.rows) * -(-out.n // BY_GROUPS.columns) * out.batch
    program.launch(
        kernel.multiply_by_groups, (min(tiles, device.programs),), a.place, *_steps(a), b.place, *_steps(b), out.place,
        counts, *described, out.m, out.n, a.terms, out.batch, int(a.batch == 1), int(b.batch == 1),
        LEFT_ALONG=a.steps[2] == 1, RIGHT_ALONG=b.steps[2] == 1, GROUPS=kernel.GROUPS, EDGE=kernel.EDGE,
        DEPTH=BY_GROUPS.depth, STAGES=BY_GROUPS.stages, STRIP=kernel.STRIP, enable_fp_fusion=False, **kernel.LAUNCH,
    )  # fmt: skip
