"""Split operands in pieces: row panels of A, column blocks of B, and how a product is cut to fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.scales import Scales
from prismm.cpu.engines.integer import CpuEngine, DirectEngine, PackedEngine
from prismm.cpu.residues.split import Splitter, split_operand

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMN_BLOCK = 512
ROW_PANEL = 1024


@dataclass(frozen=True)
class SplitRight:
    """Column blocks of a split right operand: (first column, last, residues) each, and the scales of all columns."""

    splitter: Splitter
    blocks: list[tuple[int, int, NDArray[Any]]]
    scales: Scales

    @property
    def nbytes(self) -> int:
        """Bytes that the residues take."""
        return sum(block[2].nbytes for block in self.blocks)


@dataclass(frozen=True)
class SplitLeft:
    """Row panels of a split left operand, and the scales of all rows."""

    splitter: Splitter
    panels: list[tuple[int, int, NDArray[Any]]]
    scales: Scales

    @property
    def nbytes(self) -> int:
        """Bytes that the residues take."""
        return sum(panel[2].nbytes for panel in self.panels)


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: rows per panel, columns per block, and columns whose residues exist at one time."""

    row_panel: int
    column_block: int
    resident_columns: int
    bytes: int


def tiling(m: int, n: int, splitter: Splitter, workers: int, workspace_bytes: int) -> Tiling:
    """Cut so that residues of B, of one panel of A per worker and the products of one tile per worker fit in
    `workspace_bytes`.
    """
    if isinstance(splitter.engine, DirectEngine):
        # The direct engine takes the whole at once, as limbs in float64.
        return Tiling(max(m, 1), max(n, 1), max(n, 1), 8 * splitter.limbs * splitter.terms * (m + n))
    count = len(splitter.system.moduli) * splitter.residue_parts
    # Bytes of a residue; an entry of a product takes at least the 4 of an int32.
    size = 1 if splitter.engine.largest_modulus <= 256 else 8
    k = max(splitter.k, 1)
    block = min(COLUMN_BLOCK, max(n, 1))
    panel = _even(m, workers, ROW_PANEL)
    # Half of the memory is for panels and tiles, and the rest for residues of B.
    while panel > 64 and workers * panel * count * (size * k + max(4, size) * block) > workspace_bytes // 2:
        panel = max(64, panel // 2)
    # Halves need not be even among the workers.
    panel = _even(m, workers, panel)
    tile_bytes = workers * panel * count * (size * k + max(4, size) * block)
    room = max(workspace_bytes - tile_bytes, 0)
    resident = max(block, room // (count * size * k) // block * block)
    resident = min(resident, max(n, 1))
    return Tiling(panel, block, resident, tile_bytes + resident * count * size * k)


def _even(m: int, workers: int, largest: int) -> int:
    """Rows per panel: at most `largest`, and the panels a multiple of the workers where that leaves at least 32
    rows.
    """
    panels = max(1, -(-m // largest))
    panels = -(-panels // workers) * workers
    return max(min(m, 32), -(-m // panels), 1)


def left_shape(splitter: Splitter, rows: int) -> tuple[int, ...]:
    """Shape of the residues (or limbs) of that many rows of A."""
    if isinstance(splitter.engine, DirectEngine):
        return (2 if splitter.is_complex else 1, rows, splitter.limbs, splitter.k)
    if isinstance(splitter.engine, PackedEngine):
        step = splitter.engine.row_step
        pitch = splitter.engine.pitch(splitter.k)
        return (splitter.residue_parts, len(splitter.system.moduli), -(-rows // step) * step, pitch)
    return (splitter.residue_parts, len(splitter.system.moduli), rows, splitter.k)


def right_shape(splitter: Splitter, columns: int) -> tuple[int, ...]:
    """Shape of the residues (or limbs) of that many columns of B."""
    if isinstance(splitter.engine, DirectEngine):
        return (2 if splitter.is_complex else 1, columns, splitter.limbs, splitter.k)
    if isinstance(splitter.engine, PackedEngine):
        return (
            splitter.residue_parts, len(splitter.system.moduli), *splitter.engine.panel_shape(columns, splitter.k)
        )  # fmt: skip
    return (splitter.residue_parts, len(splitter.system.moduli), splitter.k, columns)


def engine_scratch(splitter: Splitter, rows: int, columns: int) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of what a packed engine's kernel needs to multiply and join so many rows and columns."""
    assert isinstance(splitter.engine, PackedEngine)
    return splitter.engine.scratch(splitter.residue_parts, len(splitter.system.moduli), rows, columns, splitter.k)


def residue_dtype(engine: CpuEngine, *, left: bool) -> str:
    """Element type of the residues (or limbs)."""
    if isinstance(engine, PackedEngine):
        return "int8" if left else "uint32"
    return "float64" if isinstance(engine, DirectEngine) else engine.dtype


def prepare_right(
    b: NDArray[Any], splitter: Splitter, workers: int, empty: Any = np.empty, block: int = COLUMN_BLOCK
) -> SplitRight:
    """Split all columns of b (k, n), in parallel."""
    n = b.shape[1]
    blocks = []
    pieces: list[tuple[int, int, int]] = []
    for j0 in range(0, n, block):
        j1 = min(n, j0 + block)
        blocks.append((j0, j1, empty(right_shape(splitter, j1 - j0), residue_dtype(splitter.engine, left=False))))
        step = j1 - j0
        # Complex blocks are not shared, as the residues of both parts' sum are made of the whole block.
        if not splitter.is_complex and not isinstance(splitter.engine, DirectEngine):
            # Where every worker would have less than a block, several split one; a panel has 32 columns.
            step = max(64, -(-(j1 - j0) // workers) + 31 & ~31) if n <= workers * block else step
        pieces += [(len(blocks) - 1, c, min(j1, c + step)) for c in range(j0, j1, step)]
    scales: list[Any] = [None] * len(pieces)

    def split(item: tuple[int, tuple[int, int, int]]) -> None:
        index, (which, c0, c1) = item
        j0, _, residues = blocks[which]
        scales[index] = split_operand(b, splitter, residues, left=False, columns=(c0, c1), first=c0 - j0)

    spread(split, list(enumerate(pieces)), workers, splitter)
    return SplitRight(splitter, blocks, Scales.joined(scales) if scales else no_scales())


def prepare_left(a: NDArray[Any], splitter: Splitter, workers: int, panel: int = ROW_PANEL) -> SplitLeft:
    """Split all rows of a (m, k), in parallel."""
    m = a.shape[0]
    step = _even(m, workers, panel)
    dtype = residue_dtype(splitter.engine, left=True)
    panels = [
        (i, min(m, i + step), np.empty(left_shape(splitter, min(m, i + step) - i), dtype)) for i in range(0, m, step)
    ]
    scales: list[Any] = [None] * len(panels)

    def split(index: int) -> None:
        i0, i1, residues = panels[index]
        scales[index] = split_operand(a[i0:i1], splitter, residues, left=True)

    spread(split, list(range(len(panels))), workers, splitter)
    return SplitLeft(splitter, panels, Scales.joined(scales) if scales else no_scales())


def no_scales() -> Scales:
    """The scales of no rows at all."""
    nothing = np.empty(0, np.int64)
    return Scales(nothing, nothing, np.empty((4, 0)), np.empty((0, 0), np.int64))


def spread(task: Any, items: list[Any], workers: int, splitter: Splitter) -> None:
    """In workers; the direct engine runs in place."""
    if isinstance(splitter.engine, DirectEngine):
        for item in items:
            task(item)
    else:
        threads.spread(task, items, workers)
