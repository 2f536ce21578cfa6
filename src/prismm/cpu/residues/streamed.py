"""The order of work for packed engines: all of A is split first, then B block by block of columns. The worker that
splits a block also multiplies it by A and joins it, while its residues stay in the cache. Workers without a block help
with those of others (`sharing`).

Residues of B never reach memory, those of A are read from there once per block of columns: at k = 2048 and 15 moduli
63 MB beside 100 ms of products. Where A's residues do not fit in the memory allowed, rows are taken in turns.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.scales import Scales
from prismm.core.workspace import Workspace
from prismm.cpu.engines.integer import PackedEngine
from prismm.cpu.residues.blocking import SplitRight, engine_scratch, left_shape, residue_dtype, right_shape
from prismm.cpu.residues.sharing import Block, Blocks
from prismm.cpu.residues.split import Splitter, split_operand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.cpu.residues.product import Product

PANEL_ROWS = 4128
"""Rows that one call of the kernel joins, a multiple of 48: lists of uncertified entries stay short."""

PIECE_ROWS = 256
"""Rows of A that are split at a time, about: rows that are not contiguous are copied first, and malloc gives a copy of
this size the same memory again.
"""


def block_columns(n: int, splitter: Splitter, workers: int, lower: bool = False) -> int:
    """Columns of B that a worker takes at a time: a multiple of 32, evenly many for all. lower: all of them are joined
    from the first one's row on, so the kernel gets no more than it takes at a time.
    """
    assert isinstance(splitter.engine, PackedEngine)
    count = len(splitter.system.moduli) * splitter.residue_parts
    most = min(splitter.engine.widest_block, splitter.engine.tile_columns if lower else n)
    fitting = splitter.engine.block_bytes // (count * max(splitter.k, 1)) // 32 * 32
    widest = max(96, min(most, fitting))
    blocks = -(-n // widest)
    # As many blocks for each worker: of one left over all others would wait for the end.
    blocks = -(-blocks // workers) * workers
    return max(32, -(-n // blocks) + 31 & ~31)


def rows_per_pass(m: int, splitter: Splitter, workers: int, workspace_bytes: int, block: int) -> int:
    """Rows of A whose residues exist at one time."""
    count = len(splitter.system.moduli) * splitter.residue_parts
    scratch = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in engine_scratch(splitter, m, block))
    fixed = workers * (count * block * (splitter.k + 4) + scratch)
    per_row = left_shape(splitter, 4)[3] * count
    room = max(workspace_bytes - fixed, 0) // per_row // 96 * 96
    return min(m, max(96, room))


def suits(m: int, n: int, workers: int) -> bool:
    """Whether columns should be handed out: there are enough of them, and A is not the far larger operand."""
    return n >= 64 * workers and m <= 8 * n


def run(
    product: Product, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], right: SplitRight | None
) -> tuple[Scales, Scales]:
    """out = a @ b up to `product.uncertified`; returns the scales of rows and columns."""
    splitter, job, outcome = product.splitter, product.job, product.outcome
    assert isinstance(splitter.engine, PackedEngine)
    step_of_rows = splitter.engine.row_step
    m, n = out.shape
    block = block_columns(n, splitter, job.workers, job.lower)
    cuts = list(right.blocks) if right is not None else [(j, min(n, j + block), None) for j in range(0, n, block)]
    step = rows_per_pass(m, splitter, job.workers, job.workspace_bytes, block)
    rows: list[Scales] = []
    every: list[Block] = []
    for i0 in range(0, m, step):
        last = min(m, i0 + step)
        # Columns of a lower triangle meet the rows from their own on. Those beyond the rows of this pass wait for a
        # later one, but the last pass splits all of them.
        skipped = [max(0, j0 - i0) // step_of_rows * step_of_rows if job.lower else 0 for j0, _, _ in cuts]
        every = [
            Block(j0, j1, min(i0 + skip, last), last, residues)
            for (j0, j1, residues), skip in zip(cuts, skipped, strict=True)
            if j0 < last or last == m or not job.lower
        ]
        blocks = Blocks(every, job.workers, PANEL_ROWS)
        with Workspace() as workspace:
            start = time.perf_counter()
            left = _Rows(a, i0, last, splitter, job.workers, workspace)

            def split(one: Block) -> None:
                if right is not None:
                    one.scales = right.scales.block(one.first, one.last)
                else:
                    shape = right_shape(splitter, one.last - one.first)
                    one.residues = one.workspace.empty(shape, residue_dtype(splitter.engine, left=False))
                    place = (one.first, one.last)
                    one.scales = split_operand(b, splitter, one.residues, left=False, columns=place)

            def multiply(one: Block, p0: int, p1: int, left: _Rows = left) -> None:
                assert one.scales is not None
                panel, scales = left.panel(p0, p1)
                with Workspace() as mine:
                    buffers = product.buffers(p1 - p0, one.last - one.first, mine)
                    tile = (p0, p1, one.first, one.last)
                    product.tile(panel, one.residues, scales, one.scales, tile, out, 0, buffers)

            def failed(error: BaseException, left: _Rows = left, blocks: Blocks = blocks) -> None:
                blocks.over = True
                left.fail(error)

            # Pieces of A come first, so that whoever waits for them waits for workers that wait for nothing.
            tasks = [functools.partial(left.split, index) for index in range(len(left.starts))]
            tasks += [functools.partial(blocks.work, split, multiply)] * job.workers
            try:
                threads.spread(lambda task: task(), tasks, job.workers, joining=True, failed=failed)
            finally:
                blocks.close()
            rows.append(left.whole())
            outcome.split_left += (left.last - i0) * splitter.k
            outcome.split_right += n * splitter.k if right is None else 0
            outcome.time("split", left.when - start)
            outcome.time("multiply and join", time.perf_counter() - left.when)
    return Scales.joined(rows), Scales.joined([one.scales for one in every if one.scales is not None])


class _Rows:
    """Rows first to last - 1 of A, split in pieces by whoever is free."""

    def __init__(
        self, a: NDArray[Any], first: int, last: int, splitter: Splitter, workers: int, workspace: Workspace
    ) -> None:
        self.a, self.first, self.last, self.splitter = a, first, last, splitter
        self.residues = workspace.empty(left_shape(splitter, last - first), residue_dtype(splitter.engine, left=True))
        pieces = workers * max(1, (last - first) // (workers * PIECE_ROWS))
        self.step = max(1, -(-(last - first) // pieces))
        self.starts = range(first, last, self.step)
        self.when = 0.0
        self._scales: list[Scales | None] = [None] * len(self.starts)
        self._left, self._guard = len(self.starts), threading.Lock()
        # No Event: an interrupt amid its steps, which are Python's, could leave it locked.
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._whole: Scales | None = None
        self._error: BaseException | None = None

    def split(self, index: int) -> None:
        """Split a piece; the last one makes the whole known."""
        p0 = self.starts[index]
        rows = self.a[p0 : min(self.last, p0 + self.step)]
        self._scales[index] = split_operand(rows, self.splitter, self.residues, left=True, first=p0 - self.first)
        with self._guard:
            self._left -= 1
            if self._left:
                return
        self._whole = Scales.joined([some for some in self._scales if some is not None])
        self.when = time.perf_counter()
        self._woken.put(None)

    def fail(self, error: BaseException) -> None:
        """Whoever waits, or will, gets this error."""
        self._error = self._error or error
        self._woken.put(None)

    def whole(self) -> Scales:
        """The scales of all rows, once these are split; the error of a worker that failed."""
        while self._whole is None and self._error is None:
            self._woken.get()
            self._woken.put(None)  # for the next one who waits
        if self._error is not None:
            raise self._error
        assert self._whole is not None
        return self._whole

    def panel(self, first: int, last: int) -> tuple[NDArray[Any], Scales]:
        """Residues and scales of rows first to last - 1, once all are split."""
        here = slice(first - self.first, last - self.first)
        scales = self.whole().block(here.start, here.stop)
        return self.residues[:, :, here], scales
