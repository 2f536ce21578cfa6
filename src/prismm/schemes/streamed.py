"""The order of work for the VNNI engine: all of A split first, then columns of B block by block, each block split,
multiplied by all of A and joined by one worker, while its residues stay in the cache.

Residues of B never reach memory, those of A are read from there once per block of columns: at k = 2048 and 15 moduli
63 MB beside 100 ms of products. Where A's residues do not fit in the memory allowed, rows are taken in turns.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from prismm.engines import pool
from prismm.schemes.base import Outcome
from prismm.schemes.split import Scales, Splitter, split_operand
from prismm.schemes.tiles import TILE, SplitLeft, SplitRight, left_shape, residue_dtype, right_shape
from prismm.workspace import Scratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.schemes.product import Product

PANEL_BYTES = 10 << 20
"""Bytes of residues of a block of B: two workers' fit in an L3 cache of 32 MB."""

WIDEST = 384

PANEL_ROWS = 4128
"""Rows that one call of the kernel joins, a multiple of 48: lists of open entries and pairs of a tile stay small."""


def block_columns(n: int, splitter: Splitter, workers: int) -> int:
    """Columns of B that a worker takes at a time: a multiple of 32, evenly many for all."""
    count = len(splitter.system.moduli) * splitter.residue_parts
    widest = max(96, min(WIDEST, PANEL_BYTES // (count * max(splitter.k, 1)) // 32 * 32))
    blocks = -(-n // widest)
    blocks = -(-blocks // workers) * workers
    return max(32, -(-n // blocks) + 31 & ~31)


def rows_at_once(m: int, splitter: Splitter, workers: int, memory: int, block: int) -> int:
    """Rows of A whose residues exist at one time."""
    count = len(splitter.system.moduli) * splitter.residue_parts
    fixed = workers * count * block * (splitter.k + 4) + workers * count * 4 * TILE[0] * TILE[1]
    per_row = left_shape(splitter, 4)[3] * count
    room = max(memory - fixed, 0) // per_row // 96 * 96
    return min(m, max(96, room))


def suits(m: int, n: int, workers: int) -> bool:
    """Whether columns should be handed out: there are enough of them, and A is not the far larger operand."""
    return n >= 64 * workers and m <= 8 * n


def run(
    product: Product, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], right: SplitRight | None
) -> tuple[Scales, Scales]:
    """out = a @ b up to `product.open`; returns the scales of rows and columns."""
    splitter, job, outcome = product.splitter, product.job, product.outcome
    m, n = out.shape
    block = block_columns(n, splitter, job.workers)
    blocks: list[tuple[int, int, Any]] = [(j, min(n, j + block), None) for j in range(0, n, block)]
    if right is not None:
        blocks = list(right.blocks)
    step = rows_at_once(m, splitter, job.workers, job.memory, block)
    rows: list[Scales] = []
    columns: list[Any] = [None] * len(blocks)
    for i0 in range(0, m, step):
        i1 = min(m, i0 + step)
        with Scratch() as scratch:
            start = time.perf_counter()
            left = _split_left(a, i0, i1, splitter, job.workers, scratch, outcome)
            rows.append(left.scales)
            outcome.time("split", time.perf_counter() - start)
            start = time.perf_counter()

            def multiply(which: int, left: SplitLeft = left, i0: int = i0) -> None:
                j0, j1, residues = blocks[which]
                with Scratch() as mine:
                    if residues is None:
                        shape = right_shape(splitter, j1 - j0)
                        residues = mine.empty(shape, residue_dtype(splitter.engine, left=False))
                        columns[which] = split_operand(b, splitter, residues, left=False, columns=(j0, j1))
                    else:
                        assert right is not None
                        columns[which] = right.scales.part(j0, j1)
                    buffers = product.buffers(0, 0, mine)
                    for p0, p1, panel in left.panels:
                        place = (p0, p1, j0, j1)
                        scales = left.scales.part(p0 - i0, p1 - i0)
                        product.tile(panel, residues, scales, columns[which], place, out, 0, buffers)

            pool.spread(multiply, list(range(len(blocks))), job.workers)
            outcome.split_right += n * splitter.k if right is None else 0
            outcome.time("multiply and join", time.perf_counter() - start)
    return Scales.joined(rows), Scales.joined(columns)


def _split_left(
    a: NDArray[Any], i0: int, i1: int, splitter: Splitter, workers: int, scratch: Scratch, outcome: Outcome
) -> SplitLeft:
    """Rows i0 to i1 split in parallel, as long panels: the kernel walks through the rows itself."""
    whole = scratch.empty(left_shape(splitter, i1 - i0), residue_dtype(splitter.engine, left=True))
    pieces = workers * max(1, (i1 - i0) // 1024)
    step = max(1, -(-(i1 - i0) // pieces))
    starts = list(range(i0, i1, step))
    scales: list[Any] = [None] * len(starts)

    def split(index: int) -> None:
        p0 = starts[index]
        scales[index] = split_operand(a[p0 : min(i1, p0 + step)], splitter, whole, left=True, first=p0 - i0)

    pool.spread(split, list(range(len(starts))), workers)
    outcome.split_left += (i1 - i0) * splitter.k
    panels = [
        (p0, min(i1, p0 + PANEL_ROWS), whole[:, :, p0 - i0 : p0 - i0 + PANEL_ROWS]) for p0 in range(i0, i1, PANEL_ROWS)
    ]
    return SplitLeft(splitter, panels, Scales.joined(scales))
