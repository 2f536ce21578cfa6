"""Symmetric products, of a matrix and its own (conjugate) transpose: which tiles are made, and what copies the others.

Tiles that lie above the diagonal as a whole are left out: products and joins do not make them, and they have no flags,
so that nobody repairs or counts them. All other tiles have the bits of the whole product. The last launch copies the
lower triangle across the diagonal.

Where both operands are one matrix in memory, it is split once. Tiles of blocks that memory bounds are left out in
blocks on the diagonal alone; blocks above it are not made.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.launch.program import Program
    from prismm.cuda.views import Result

LEAST = 512
"""Rows from which on tiles are left out: the tiles of fewer are nearly all on the diagonal."""


def leaves_tiles_out(problem: Problem) -> bool:
    """Whether a product is one of which tiles are left out."""
    return problem.symmetric is not None and problem.n >= LEAST and problem.reads_operands


@functools.cache
def lower_tiles(down: int, across: int, rows: int, columns: int, group: int, device: torch.device) -> torch.Tensor:
    """The tiles of so many rows and columns that do not lie above the diagonal, of `down` times `across` tiles, in an
    order by which `group` rows of tiles share what they read: 65536 times a tile's row, and its column, int32. Made and
    copied once for good: a graph that a caller captured reads it wherever it is.

    >>> import torch
    >>> [divmod(int(x), 65536) for x in lower_tiles(4, 2, 128, 256, 8, torch.device("cpu"))]
    [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1)]
    """
    import torch

    found = []
    for first in range(0, down, group):
        row, column = np.meshgrid(np.arange(first, min(first + group, down)), np.arange(across))
        kept = (row + 1) * rows > column * columns
        found.append((row << 16 | column)[kept])
    return torch.from_numpy(np.concatenate(found).astype(np.int32)).to(device)


def mirror_triangle(program: Program, out: Result, problem: Problem) -> None:
    """Write down the copy of the lower triangle across the diagonal of a contiguous result: one launch."""
    from prismm.cuda.kernels import mirror

    tiles = -(-out.n // mirror.SIDE)
    program.launch(
        mirror.mirror, (tiles * tiles * out.batch,), out.buffer.reals(), out.n, tiles, PARTS=problem.parts,
        CONJUGATE=problem.is_complex and problem.symmetric == "C", SIDE=mirror.SIDE, num_warps=8,
    )  # fmt: skip
