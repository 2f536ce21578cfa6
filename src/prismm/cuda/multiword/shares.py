"""Shares of a product of words: in how many a tile's chunks may be taken, and the launch that adds them.

A product of few tiles and many terms leaves processors idle, unless several of them take shares of a tile's chunks
(`kernels.product_sm90`, `kernels.join`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.multiword.launches import Matrices, WordFormat

MOST_SHARES, FEW_TILES = 8, 1024
"""Shares of a tile's chunks; and the tiles of 128 x 128 entries below which chunks may be shared at all: more of them
keep any GPU busy.
"""


def most_shares(words: WordFormat, rows: int, columns: int, k: int, chunk: int) -> int:
    """In how many the chunks of a product's tiles may be shared: each has a chunk at least, and their sums take no more
    memory than the words. Arguments as of `launches.workspace`.
    """
    if -(-rows // 128) * -(-columns // 128) >= FEW_TILES:
        return 1
    each, room = 4 * rows * (-(-columns // 16) * 16), words.count * words.bytes * (rows + columns) * (-(-k // 64) * 64)
    return max(1, min(MOST_SHARES, -(-k // chunk), room // max(1, each)))


def add_shares(
    sums: BufferView, out: Matrices, scales: BufferView, flags: BufferView, added: tuple[BufferView, int], shares: int,
    chunks: int, test: tuple[int, int], m: int, n: int, to: Program,
) -> None:  # fmt: skip
    """Queue out = the sums (shares · batches, m, ·) of each entry's shares, and its test. m, n: in real numbers; added:
    the kernel's addend and adds.
    """
    from prismm.cuda.multiword.kernels import join

    pitch, batches = sums.shape[2], out.shape[0]
    even = n % 16 == 0 and out.strides[1] % 16 == 0 and out.batch_stride % 16 == 0
    to.launch(
        join.add_shares, (-(-m // join.ROWS) * -(-n // join.COLUMNS), batches), sums, out.data, scales, flags, *added,
        shares, chunks, m, n, pitch, m * pitch, out.strides[1], out.batch_stride, -(-n // 32), *test, ROWS=join.ROWS,
        COLUMNS=join.COLUMNS, EVEN=even, EVEN_SUMS=m * pitch % 16 == 0, **join.LAUNCH,
    )  # fmt: skip
