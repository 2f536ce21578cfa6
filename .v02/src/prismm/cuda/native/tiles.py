"""Tiles of conventional products on float64's matrix instructions, what they take, and which one a product takes.

A tile's time is that of its steps along the inner dimension, of which a multiprocessor does several tiles' at once: no
less than `latency` a step, and `step` for each of these tiles; then `tile` for its result. Fitted to
`benchmarks/results/gpu_direct.csv`, where predictions are within 10 % for most shapes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from prismm.cuda.launch.program import LONGEST_GRID

__all__ = [
    "BY_GROUPS",
    "MOST_ROWS",
    "TILES",
    "Shape",
    "Split",
    "Tile",
    "TileTimes",
    "faster_split",
    "fastest",
    "has_vector_kernel",
    "least_seconds",
    "seconds_of",
    "tile_for",
    "work",
    "workspace_bytes",
]


class TileTimes(NamedTuple):
    """Microseconds on an H200: of the kernel's start, of a step at least, of a step, of a tile's result."""

    start: float
    latency: float
    step: float
    tile: float


@dataclass(frozen=True)
class Tile:
    """Rows, columns, and elements of the inner dimension in a step; warps up and along; steps in shared memory;
    registers of a thread at most. double, single: the speed with operands in float64 and in float32; None where it is
    none of theirs. groups: whether it is that of the kernel for Hopper (`cuda.native.kernels.product_sm90`).
    """

    rows: int
    columns: int
    depth: int
    up: int
    along: int
    stages: int
    registers: int
    double: TileTimes | None
    single: TileTimes | None
    groups: bool = False

    def times(self, size: int) -> TileTimes | None:
        """With operands of so many bytes an element."""
        return self.double if size == 8 else self.single

    @property
    def warps(self) -> int:
        """Of a program."""
        return self.up * self.along

    def shared(self, size: int) -> int:
        """Bytes of shared memory that a program takes, with operands of so many bytes an element."""
        result = self.rows * self.columns * 8 if self.groups else 0  # of sums of parts
        return (self.rows + self.columns) * self.depth * size * self.stages + result

    def together(self, size: int) -> int:
        """How many programs a multiprocessor of an H100 or H200 holds."""
        # The system keeps 1 KiB of shared memory a program for itself.
        most = _SHARED // (self.shared(size) + 1024)
        return max(1, min(most, _REGISTERS // (32 * self.warps * self.registers)))


class CopyTimes(NamedTuple):
    """Nanoseconds on an H100 of an element that is copied or stored by itself, not in a vector: copies of a
    multiprocessor; of one program, which waits for them; stores of a multiprocessor.
    """

    copy: float
    latency: float
    store: float


_COPIES = {8: CopyTimes(0.209, 0.247, 0.255), 4: CopyTimes(0.151, 0.342, 0.253)}
"""By bytes of an element."""
_SHARED, _REGISTERS = 227 * 1024, 65536
"""Of a multiprocessor of an H100 or H200."""
_CACHE, _CACHED, _MOVED = 40e6, 8e6, 12e6
"""Bytes up to which operands and result stay in its L2 cache, and bytes a microsecond: once from there; into all
multiprocessors.
"""
_SCATTERED_START, _TOGETHER, _OVERLAP = 0.7, 16, 2.5
"""Microseconds more that a kernel's start takes where elements are copied one by one; multiples of so many elements are
copied in vectors; how well copies and products hide behind each other: power of the sum of powers.
"""

TILES = (
    Tile(16, 16, 64, 1, 2, 4, 128, TileTimes(1.0, 0.478, 0.12, 0.6), TileTimes(1.0, 0.668, 0.111, 0.45)),
    Tile(32, 16, 64, 2, 2, 4, 120, TileTimes(1.5, 0.323, 0.281, 1.0), TileTimes(1.5, 0.439, 0.258, 0.45)),
    Tile(64, 16, 32, 4, 1, 5, 120, TileTimes(1.0, 0.359, 0.239, 1.0), TileTimes(1.0, 0.509, 0.196, 0.6)),
    Tile(16, 64, 32, 1, 4, 5, 120, TileTimes(1.2, 0.275, 0.239, 1.0), TileTimes(1.0, 0.401, 0.174, 0.8)),
    Tile(64, 32, 16, 4, 1, 6, 120, TileTimes(1.0, 0.424, 0.184, 1.0), TileTimes(1.8, 0.439, 0.258, 0.6)),
    Tile(32, 32, 16, 2, 2, 8, 96, TileTimes(1.5, 0.166, 0.098, 1.0), TileTimes(1.5, 0.212, 0.092, 0.6)),
    Tile(32, 32, 64, 2, 2, 3, 144, TileTimes(1.0, 0.799, 0.615, 1.0), TileTimes(1.8, 0.878, 0.516, 0.8)),
    Tile(64, 64, 16, 2, 2, 4, 168, TileTimes(1.8, 0.454, 0.349, 1.3), TileTimes(1.5, 0.472, 0.315, 0.8)),
    Tile(64, 64, 32, 2, 2, 3, 168, TileTimes(1.5, 1.2, 0.92, 1.3), None),
    Tile(128, 64, 16, 2, 2, 4, 255, TileTimes(1.8, 0.781, 0.601, 2.0), None),
)
_TALL = (
    Tile(128, 64, 32, 4, 2, 3, 168, TileTimes(3.5, 1.12, 1.12, 1.2), None, groups=True),
    Tile(128, 64, 32, 4, 2, 6, 168, None, TileTimes(3.5, 1.21, 1.21, 1.3), groups=True),
)
BY_GROUPS = (*_TALL, *(replace(x, rows=x.columns, columns=x.rows, up=x.along, along=x.up) for x in _TALL))
"""Of float64 and of float32 matrices; the same, on their side, for results that are low."""

_VECTOR, _LONG, _TURN, _CACHED_SHARE, _READ_SHARE = 2.2, 32, 0.35, 0.8, 1.08
"""Microseconds of a product with a vector besides reading the matrix; terms from which on it has a kernel of its own;
microseconds of 1024 terms at least, one after the other; what it reaches of the cache's best, and of the memory's rate
of copies.
"""
_LEAST_STEPS, _SURE = 8, 0.8
"""Steps along the inner dimension that a part of it has at least; the share of the time in one kernel that parts take
at most where they are preferred.
"""
_ADDED, _SUMS, _APART = {8: 2.0, 4: 3.0}, 4e6, 1.25
"""Microseconds of the kernel that adds parts, by bytes of an element; bytes of sums that are written and read a
microsecond; how many times as long tiles of parts take, which share no operands, but for groups, which look ahead.
"""
_SCATTERED_ADDED, _SCATTERED_SUMS, _SCATTERED_APART, _NARROW, _NARROW_APART = {8: 0.3, 4: 1.1}, 1.5e6, 1.04, 16, 1.4
"""The same where elements are copied one by one, which hides what tiles do not share; in tiles of so few columns it
does not.
"""
_UNHIDDEN, _SECTOR, _WITHIN_SECTORS, _ONE_STEP = 0.84, 32, 0.45, 0.3
"""The share of the way from memory that is not hidden where elements are copied one by one; bytes of a sector of the
cache; shares of writing float64 results that are not hidden where rows begin within sectors, and of tiles of one step.
"""
MOST_ROWS, MOST_TERMS = 64 * LONGEST_GRID, 1 << 24
"""Rows of tiles that both types have; terms of a sum."""


class Shape(NamedTuple):
    """So many products of m by k and k by n matrices, of elements of so many bytes. apart: whether one of them is a
    vector and the other one's terms are no neighbours.
    """

    m: int
    n: int
    k: int
    matrices: int
    size: int
    apart: bool = False

    @property
    def served(self) -> bool:
        """Whether they are one launch, whose kernel counts columns in 32 bits and finds what overflows in sums of fewer
        than 2^24 products.
        """
        some = min(self.m, self.n, self.k, self.matrices) > 0 and self.n <= 1 << 30 and self.k < MOST_TERMS
        return some and self.m <= MOST_ROWS and self.matrices <= LONGEST_GRID

    def single_copies(self, tile: Tile) -> int:
        """Elements that a program copies one by one in a step: of A, of B, where rows are no multiples of vectors."""
        if tile.groups:
            return 0
        return tile.depth * (bool(self.k % _TOGETHER) * tile.rows + bool(self.n % _TOGETHER) * tile.columns)

    def unhidden_writes(self, tile: Tile) -> float:
        """The share of writing the result that is not hidden behind products."""
        if not tile.groups or self.size != 8:
            return 0.0
        if self.size * self.n % _SECTOR:
            return _WITHIN_SECTORS
        return _ONE_STEP if self.k <= tile.depth else 0.0

    def single_stores(self, tile: Tile) -> int:
        """Elements of a tile's result that are stored one by one."""
        return tile.rows * tile.columns if self.n % _TOGETHER and not tile.groups else 0

    @property
    def paired(self) -> bool:
        """Whether rows that lie close together all begin at multiples of 16 bytes."""
        return not (self.size * self.n % 16 or self.size * self.k % 16)

    def bytes(self, across: int, down: int) -> int:
        """Of A so often, of B so often, and of the result."""
        m, n, k = self.m, self.n, self.k
        return self.size * self.matrices * (m * k * across + k * n * down + m * n)


def work(tile: Tile, shape: Shape, processors: int) -> float:
    """Microseconds of a kernel on a GPU as fast as an H200 with so many processors, but for its memory."""
    times = tile.times(shape.size)
    if times is None:
        return math.inf
    start, latency, step, result = times
    copies, single = shape.single_copies(tile), _COPIES[shape.size]
    if copies:
        start += _SCATTERED_START
        latency, step = (_beside(x, 1e-3 * y * copies) for x, y in ((latency, single.latency), (step, single.copy)))
    stores = 1e-3 * single.store * shape.single_stores(tile)
    across, down = -(-shape.n // tile.columns), -(-shape.m // tile.rows)
    tiles, steps, most = shape.matrices * across * down, -(-shape.k // tile.depth), tile.together(shape.size)
    waves, rest = divmod(tiles, processors * most)

    def wave(programs: int) -> float:
        """So many at once on a multiprocessor."""
        return steps * max(latency, programs * step) + result * math.sqrt(programs) + programs * stores

    busy = waves * wave(most) + (wave(-(-rest // processors)) if rest else 0.0)
    return start + max(busy, shape.bytes(across, down) / _MOVED)


def _beside(x: float, y: float) -> float:
    """What takes two times that hide behind each other, but for a part."""
    return float((x**_OVERLAP + y**_OVERLAP) ** (1.0 / _OVERLAP))


def _tiles(shape: Shape, shared: int, sm90: bool) -> list[Tile]:
    """Those that so many bytes of shared memory hold; sm90: with `BY_GROUPS`."""
    some = (*TILES, *BY_GROUPS) if sm90 and shape.paired else TILES
    return [
        tile
        for tile in some
        # A grid's second extent counts rows of tiles, and ends at LONGEST_GRID.
        if shape.m <= LONGEST_GRID * tile.rows and tile.shared(shape.size) <= shared and tile.times(shape.size)
    ]


def tile_for(shape: Shape, processors: int, shared: int = _SHARED, *, sm90: bool = False) -> Tile:
    """The tile that is predicted fastest, of those that so many bytes of shared memory hold. sm90: whether
    `BY_GROUPS` are some of them.
    """
    return min(_tiles(shape, shared, sm90), key=lambda tile: work(tile, shape, processors))


class Split(NamedTuple):
    """The inner dimension in so many parts, each of so many terms but for the last, multiplied in tiles like these."""

    tile: Tile
    parts: int
    length: int


def _best_split(shape: Shape, processors: int, shared: int, sm90: bool) -> tuple[float, Split] | None:
    """The microseconds of the split of the inner dimension that is predicted fastest, and that split; None where it is
    too short for two parts, or tiles keep the GPU busy as they are.
    """
    found: list[tuple[float, Split]] = []
    for tile in _tiles(shape, shared, sm90):
        tiles = -(-shape.m // tile.rows) * -(-shape.n // tile.columns) * shape.matrices
        steps = -(-shape.k // tile.depth)
        for together in range(1, tile.together(shape.size) + 1):
            # No more parts than run at once: a second wave would take as long as the first.
            parts = min(processors * together // tiles, steps // _LEAST_STEPS)
            if parts < 2:
                continue
            # Parts end with whole steps, so that only the last one has terms to mask.
            length = -(-steps // parts) * tile.depth
            split = Split(tile, -(-shape.k // length), length)
            if split.parts * shape.matrices <= LONGEST_GRID:
                found.append((_split_work(split, shape, processors), split))
    return min(found, key=lambda one: one[0], default=None)


def _split_work(split: Split, shape: Shape, processors: int) -> float:
    """Microseconds of a split product, like `work`."""
    one = shape._replace(k=split.length, matrices=shape.matrices * split.parts)
    sums = 2.0 * 8 * split.parts * shape.matrices * shape.m * shape.n
    busy = work(split.tile, one, processors)
    if not shape.single_copies(split.tile):
        return (1.0 if split.tile.groups else _APART) * busy + _ADDED[shape.size] + sums / _SUMS
    factor = _NARROW_APART if split.tile.columns <= _NARROW else _SCATTERED_APART
    return factor * busy + _SCATTERED_ADDED[shape.size] + sums / _SCATTERED_SUMS


def workspace_bytes(shape: Shape, processors: int, shared: int = _SHARED, *, sm90: bool = False) -> int:
    """Of the fastest way: of sums of parts, and what is kept beside them."""
    split = None if has_vector_kernel(shape) else faster_split(shape, processors, shared, sm90=sm90)
    if split is None:
        return 0
    numbers = 8 * shape.m * shape.n
    if shape.size == 4:
        tile = split.tile
        numbers += 4 * (shape.m + shape.n + -(-shape.m // tile.rows) * -(-shape.n // tile.columns))
    return split.parts * shape.matrices * numbers


def faster_split(shape: Shape, processors: int, shared: int = _SHARED, *, sm90: bool = False) -> Split | None:
    """The best split, if it is predicted to be faster than a product in one kernel by more than predictions are off."""
    return _faster_split(shape, processors, shared, sm90)[1]


@functools.lru_cache(maxsize=1024)
def _faster_split(shape: Shape, processors: int, shared: int, sm90: bool) -> tuple[float, Split | None]:
    """Microseconds of the way that is taken, and the split, if it is one; a call's plan asks several times."""
    whole = work(tile_for(shape, processors, shared, sm90=sm90), shape, processors)
    best = _best_split(shape, processors, shared, sm90)
    # Predictions are off by some percent, and parts take workspace besides: they have to be clearly faster.
    return best if best is not None and best[0] < _SURE * whole else (whole, None)


def fastest(shape: Shape, processors: int, shared: int = _SHARED, *, sm90: bool = False) -> Tile:
    """The tile of the way that is taken: in parts, or whole."""
    split = faster_split(shape, processors, shared, sm90=sm90)
    return tile_for(shape, processors, shared, sm90=sm90) if split is None else split.tile


def has_vector_kernel(shape: Shape) -> bool:
    """Whether one operand is a vector long enough for a kernel of its own, and the other one's terms are neighbours."""
    return min(shape.m, shape.n) == 1 and shape.k >= _LONG and not shape.apart


def seconds_of(shape: Shape, processors: int, kernel_factor: float, memory: float, *, sm90: bool = False) -> float:
    """Seconds of the fastest way. slower: how many times as long its work takes as on an H200; memory: bytes a
    second.
    """
    if has_vector_kernel(shape):
        in_turn = 1e-6 * _TURN * shape.k / 1024
        reading = least_seconds(shape, memory) / (_CACHED_SHARE if shape.bytes(1, 1) <= _CACHE else _READ_SHARE)
        return 1e-6 * kernel_factor * _VECTOR + max(reading, in_turn)
    microseconds, _ = _faster_split(shape, processors, _SHARED, sm90)
    busy, least = 1e-6 * kernel_factor * microseconds, least_seconds(shape, memory)
    tile = fastest(shape, processors, sm90=sm90)
    if shape.single_copies(tile):
        return busy + _UNHIDDEN * least
    written = shape.size * shape.matrices * shape.m * shape.n / memory
    return max(busy, least) + shape.unhidden_writes(tile) * written


def least_seconds(shape: Shape, memory: float) -> float:
    """What reading the operands and writing the result takes."""
    once = shape.bytes(1, 1)
    return once / memory if once > _CACHE else 1e-6 * once / _CACHED
