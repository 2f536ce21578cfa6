"""Blocks of columns, shared among workers: one worker splits a block, and then every free worker may multiply its rows.

Workers may differ in speed: another process may use the same core, or two workers may share the units of one core. A
worker takes half of the rows that its block has left at a time, so pieces become smaller. A worker that finds no block
to split takes rows of the block with the most rows left.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prismm.core.workspace import Workspace

if TYPE_CHECKING:
    from prismm.core.scales import Scales

LEAST_ROWS, ROW_STEP = 192, 96
"""Rows of a piece, at least, and what their number is a multiple of: columns then serve enough rows each time they come
from the L3 cache, in whole tiles of every kernel.
"""

_PAUSE = 1e-4
"""Seconds between two checks of a worker without work, while another splits a block."""


@dataclass(eq=False)
class Block:
    """Columns first to last - 1 of B; no worker has taken rows `row` to end - 1 yet.

    residues and scales: of the columns, once they are split. busy: how many workers multiply some of the rows.
    """

    first: int
    last: int
    row: int
    end: int
    residues: Any = None
    scales: Scales | None = None
    busy: int = 0
    workspace: Workspace = field(default_factory=Workspace, repr=False)


class Blocks:
    """All blocks of a product. A piece has at most `most` rows. over: the caller sets it to stop all workers.

    Workers split a block whenever there is one, and help with other blocks only afterwards. So there are never more
    split blocks than workers.
    """

    def __init__(self, blocks: list[Block], workers: int, most: int) -> None:
        self.over = False
        self._workers, self._most = workers, most
        self._waiting, self._ready, self._splitting = deque(blocks), list[Block](), 0
        self._guard = threading.Lock()

    def work(self, split: Callable[[Block], None], multiply: Callable[[Block, int, int], None]) -> None:
        """Split blocks and multiply rows until none are left. Each worker calls it once."""
        while not self.over:
            block = self._next(split) or self._fullest()
            if block is None:
                if not self._splitting:
                    return
                time.sleep(_PAUSE)
                continue
            while not self.over and (rows := self._take(block)) is not None:
                multiply(block, *rows)
                self._done(block)

    def close(self) -> None:
        """Give all memory back, also that of blocks that an error interrupted."""
        for block in self._ready:
            block.workspace.__exit__()

    def _next(self, split: Callable[[Block], None]) -> Block | None:
        """Split the next block and return it; None if all blocks are split."""
        with self._guard:
            if not self._waiting:
                return None
            block = self._waiting.popleft()
            self._splitting += 1
        try:
            split(block)
        except BaseException:
            block.row = block.end  # so that no worker takes any
            raise
        finally:
            # In one step: a worker that sees no block being split then finds this one among those that are ready.
            with self._guard:
                self._ready.append(block)
                self._splitting -= 1
        return block

    def _fullest(self) -> Block | None:
        """The block with the most rows left; None if no block has any."""
        with self._guard:
            block = max(self._ready, key=lambda one: one.end - one.row, default=None)
            return block if block is not None and block.row < block.end else None

    def _take(self, block: Block) -> tuple[int, int] | None:
        """Take the next rows of a block; None if it has none left."""
        with self._guard:
            if block.row == block.end:
                return None
            left = size = block.end - block.row
            if self._workers > 1 and left > LEAST_ROWS + ROW_STEP:
                size = max(LEAST_ROWS, -(-left // (2 * ROW_STEP)) * ROW_STEP)
            size = min(size, self._most)
            first, block.row = block.row, block.row + size
            block.busy += 1
            return first, first + size

    def _done(self, block: Block) -> None:
        """Note that a worker has multiplied the rows that it took. The last one gives the block's memory back."""
        with self._guard:
            block.busy -= 1
            if block.busy == 0 and block.row == block.end:
                self._ready.remove(block)
                block.residues = None
                block.workspace.__exit__()
