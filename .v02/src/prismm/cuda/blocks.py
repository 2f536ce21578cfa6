"""Blocks of rows and columns in which a product is made, so that its workspace fits in the GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prismm.core.problem import Problem

LARGE = 1 << 30
"""Bytes of workspace up to which nobody asks how much memory is free."""

BATCH_BYTES = 1 << 30
"""Bytes of workspace of the products of a batch that are made at once."""

_MOST_VECTORS = 1 << 21
"""Rows and columns of a block at most: a grid's second extent ends at 65535 strips of 64."""


class Blocks(NamedTuple):
    """How a product is cut.

    Attributes:
        rows, columns: of a block.
        workspace: bytes that the product takes beside operands and result.
        batches: matrices of a batch at a time.
        strassen: whether a block's product of residues is made from Strassen's seven.
        tiny: whether a batch of tiny products is made in one kernel, whose values are the scheme's.
        reasons: why it is cut so, where that is not plain.
    """

    rows: int
    columns: int
    workspace: int
    batches: int = 1
    strassen: bool = False
    tiny: bool = False
    reasons: tuple[str, ...] = ()


Cut = tuple[int | None, int | None]
"""Rows and columns of the blocks in which prepared operands were split; None for others."""


def blocks_within(
    problem: Problem, workspace: Callable[[int, int], int], cut: Cut = (None, None)
) -> tuple[int, int, int]:
    """Rows and columns of a block, and its workspace: everything at once if that fits in a quarter of the free memory.

    Args:
        problem: what is multiplied.
        workspace: bytes for a block of so many rows and columns.
        cut: blocks in which prepared operands were split, which stay as they are.
    """
    rows, columns = (
        max(1, min(size, _MOST_VECTORS) if given is None else min(given, size))
        for given, size in zip(cut, (problem.m, problem.n), strict=True)
    )
    if workspace(rows, columns) <= LARGE:
        return rows, columns, workspace(rows, columns)
    import torch

    limit = max(LARGE, torch.cuda.mem_get_info()[0] // 4)
    while workspace(rows, columns) > limit:
        free_rows, free_columns = 0 if cut[0] else rows, 0 if cut[1] else columns
        # Blocks of one tile are as small as they get: if memory runs out, the call says so.
        if max(free_rows, free_columns) <= 128:
            break
        # Halve the longer side, in whole tiles of 128.
        if free_rows >= free_columns:
            rows = -(-rows // 256) * 128
        else:
            columns = -(-columns // 256) * 128
    return rows, columns, workspace(rows, columns)
