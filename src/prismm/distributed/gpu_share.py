"""A rank's share of a product, on its GPU: what the GPU has certified, and pieces that CPUs decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from prismm.core.outcome import real_parts
from prismm.cpu.entries import Entries
from prismm.distributed.inner import Piece

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensor = torch.Tensor


class GpuLanded:
    """A rank's share; see `distributed.inner.Landed`. The GPU has certified all entries outside the tiles.

    Attributes:
        tiles: rows and columns of the share.
        piece: makes one of a tile; None where there are none.
        pending_of_tiles: joins tiles on the GPU instead; gives `pending`.
        pending: of each real part (m, n) uint8, 1 where an entry has no certificate; of an empty share none.
        whole: pieces of tiles.
        single: pieces of which some entries alone count, with these entries, and with their places in the share.
        out: the entries.
    """

    def __init__(self, out: Tensor, first_row: int, first_column: int) -> None:
        self.tiles: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.piece: Callable[[NDArray[np.int64], NDArray[np.int64]], Piece] | None = None
        self.pending_of_tiles: Callable[[], list[Tensor]] | None = None
        self.pending: list[Tensor] = []
        self.whole: list[Piece] = []
        self.single: list[tuple[Piece, Entries, Tensor]] = []
        self.out, self._first = out, (first_row, first_column)

    @property
    def pieces(self) -> list[Piece]:
        """All of them."""
        return [*self.whole, *(piece for piece, _, _ in self.single)]

    @property
    def left(self) -> int:
        """Entries in tiles."""
        return sum(i.size * j.size for i, j in self.tiles)

    def complete(self) -> None:
        """Join the tiles on the CPU."""
        for i, j in self.tiles:
            assert self.piece is not None
            self.whole.append(self.piece(i, j))
        self.tiles, self.piece, self.pending_of_tiles = [], None, None

    def close(self) -> None:
        """Join the tiles on the GPU: single entries are pending."""
        if self.pending_of_tiles is not None:
            self.pending = self.pending_of_tiles()
        self.tiles, self.piece, self.pending_of_tiles = [], None, None

    def result(self) -> Tensor:
        """The entries, those of pieces copied there."""
        for piece in self.whole:
            i, j = (
                torch.from_numpy(x - first).to(self.out.device)
                for x, first in zip((piece.rows, piece.columns), self._first, strict=True)
            )
            self.out[i[:, None], j] = torch.from_numpy(np.ascontiguousarray(piece.joined.out)).to(self.out.device)
        for piece, entries, places in self.single:
            values = torch.from_numpy(real_parts(piece.joined.out)[entries.part][entries.place]).to(self.out.device)
            self.part(entries.part)[places[:, 0], places[:, 1]] = values
        return self.out

    def part(self, part: int) -> Tensor:
        """A real part of the entries."""
        return torch.view_as_real(self.out)[..., part] if self.out.is_complex() else self.out
