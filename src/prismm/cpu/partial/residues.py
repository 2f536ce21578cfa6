"""Digits of a piece's partial product: split by the scales of all pieces, multiply, reduce to a byte a modulus, add."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import environment, threads
from prismm.core.moduli import byte_tables
from prismm.core.outcome import for_kernels, real_parts
from prismm.core.workspace import Workspace
from prismm.cpu.engines.integer import AmxEngine, CpuEngine, PackedEngine
from prismm.cpu.partial.scales import losses
from prismm.cpu.partial.setting import Setting, is_packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side
    from prismm.cpu.residues.split import Splitter

ROWS = 96
"""Rows that are multiplied by a block of columns at a time."""


@dataclass(frozen=True)
class SplitPiece:
    """Residues of the rows (left) or columns (right) of a piece, in blocks of (first, last, residues), and what
    rounding lost: (2, vectors), of `scales.losses`, combined by sums.
    """

    side: Side
    k: int
    blocks: list[tuple[int, int, NDArray[Any]]]
    lost: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Rows or columns."""
        return int(self.lost.shape[1])


def split(x: NDArray[Any], side: Side, shift: NDArray[np.int64], setting: Setting, workers: int = 1) -> SplitPiece:
    """Residues of a piece (rows, k) on the left or (k, columns) on the right, with the `scales.shifts` of all
    pieces.
    """
    environment.check_arithmetic()
    splitter = setting.splitter
    task = _packed if is_packed(splitter.engine) else _plain

    def residues(part: NDArray[Any], here: slice, residual2: NDArray[np.float64], tiny: NDArray[np.uint8]) -> Any:
        return task(part, side == "left", np.ascontiguousarray(shift[here]), splitter, residual2, tiny)

    return split_blocks(x, side, setting.moduli * splitter.residue_parts, residues, workers)


def split_blocks(
    x: NDArray[Any], side: Side, planes: int, residues: Callable[..., NDArray[Any]], workers: int
) -> SplitPiece:  # fmt: skip
    """Residues in blocks of rows (left) or columns (right).

    Args:
        x: (rows, k) or (k, columns).
        side: "left" or "right".
        planes: of residues, in all.
        residues: returns a block's residues. It gets the block's vectors, their slice of all, and two arrays: to the
            one it adds Σδ², and it flags in the other where elements scaled to next to nothing.
        workers: threads.
    """
    left = side == "left"
    count, k = x.shape if left else x.shape[::-1]
    step = _block_step(count, k, planes, workers)
    blocks: list[Any] = [None] * len(range(0, count, step))
    lost = np.zeros((2, count), np.int64)

    def block(index: int) -> None:
        here = slice(index * step, min(count, (index + 1) * step))
        size = here.stop - here.start
        residual2, tiny = np.zeros(size), np.zeros(size, np.uint8)
        blocks[index] = here.start, here.stop, residues(x[here] if left else x[:, here], here, residual2, tiny)
        lost[:, here] = losses(residual2, tiny, k)

    threads.spread(block, list(range(len(blocks))), workers)
    return SplitPiece(side, k, blocks, lost)


def _block_step(count: int, k: int, planes: int, workers: int) -> int:
    """Rows or columns of a block of so many in all, for so many planes of residues."""
    step = max(32, min(PackedEngine.widest_block, PackedEngine.block_bytes // (planes * max(k, 1))) // 32 * 32)
    return max(1, -(-count // (workers * -(-count // (step * workers)))) + 31 & ~31) if count else step


def _aligned(shape: tuple[int, ...], kind: type[np.generic]) -> NDArray[Any]:
    """Zeros from a cache line on, where tiles begin."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(kind).reshape(shape)


def _packed(
    x: NDArray[Any], left: bool, shift: NDArray[np.int64], splitter: Splitter, residual2: NDArray[np.float64],
    tiny: NDArray[np.uint8],
) -> NDArray[Any]:  # fmt: skip
    """Residues as the packed engines read them, (parts, moduli, …)."""
    tables = byte_tables(splitter.moduli)
    table, offset = (tables.left, tables.left_offset) if left else (tables.right, tables.right_offset)
    numbers = tables.bits, table, offset, splitter.system.modulus
    return packed_residues(real_parts(x), left, shift, numbers, splitter.engine, residual2, tiny)


def packed_residues(
    parts: Sequence[NDArray[Any]], left: bool, shift: NDArray[np.int64], numbers: tuple[Any, ...], engine: CpuEngine,
    residual2: NDArray[np.float64], tiny: NDArray[np.uint8],
) -> NDArray[Any]:  # fmt: skip
    """Residues as packed engines read them, (planes, moduli, …): of one real part, or of two and their sum.

    numbers: bits, table (moduli, ·), offsets and moduli, as `kernels.packed` takes them.
    """
    from prismm.cpu.kernels import packed

    assert isinstance(engine, PackedEngine)
    count, k = parts[0].shape if left else parts[0].shape[::-1]
    _, table, _, modulus = numbers
    head = 3 if len(parts) == 2 else 1, len(table)
    if left:
        rows = -(-count // engine.row_step) * engine.row_step
        out = _aligned((*head, rows, engine.pitch(k)), np.int8)
        for index, part in enumerate(parts):
            packed.pack_rows(for_kernels(part), shift, *numbers, 0, out[index], residual2, tiny)
        if len(parts) == 2:
            packed.add_packed_rows(out[0], out[1], 0, count, k, modulus, out[2])
        return out
    wide = _aligned((*head, *engine.panel_shape(count, k)), np.uint32)
    for index, part in enumerate(parts):
        packed.pack_columns(for_kernels(part), 0, shift, *numbers, 0, wide[index], residual2, tiny)
    if len(parts) == 2:
        packed.add_packed_columns(wide[0], wide[1], modulus, wide[2])
    return wide


def _plain(
    x: NDArray[Any], left: bool, shift: NDArray[np.int64], splitter: Splitter, residual2: NDArray[np.float64],
    tiny: NDArray[np.uint8],
) -> NDArray[Any]:  # fmt: skip
    """Residues as they are, (parts, moduli, m, k) or (parts, moduli, k, n)."""
    from prismm.cpu.residues.split import add_parts, split_part

    assert not is_packed(splitter.engine)
    parts = [for_kernels(part) for part in real_parts(x)]
    shape = (splitter.residue_parts, len(splitter.system.moduli), *x.shape)
    out = np.zeros(shape, getattr(splitter.engine, "dtype", "float64"))
    for index, part in enumerate(parts):
        split_part(part, shift, splitter, out[index], residual2, tiny, left, 0, 0)
    if len(parts) == 2:
        add_parts(out, splitter)
    return out


def multiply(left: SplitPiece, right: SplitPiece, setting: Setting, workers: int = 1) -> NDArray[np.int8]:
    """(parts, moduli, m, n): the digits of a piece's partial product. Combined by `add`."""
    out = np.zeros((setting.parts, setting.moduli, left.count, right.count), np.int8)
    if left.k == 0 or out.size == 0:
        return out
    multiply_blocks(left, right, setting.splitter.engine, setting.splitter.system, out, workers)
    return out


def multiply_blocks(
    left: SplitPiece, right: SplitPiece, engine: CpuEngine, system: Any, out: NDArray[np.int8], workers: int
) -> None:  # fmt: skip
    """`multiply` into `out`, by an engine; system: the tables of as many moduli as `out` has room for."""
    task = _packed_tile if is_packed(engine) else _plain_tile
    task = _amx_tile if isinstance(engine, AmxEngine) else task

    def columns(item: tuple[int, int, NDArray[Any]]) -> None:
        j0, j1, block = item
        threads.limit_openmp()
        for i0, i1, rows in left.blocks:
            task(rows, block, left.k, out[:, :, i0:i1, j0:j1], engine, system)

    threads.spread(columns, list(right.blocks), workers)


def _packed_tile(
    left: NDArray[Any], right: NDArray[Any], k: int, out: NDArray[np.int8], engine: CpuEngine, system: Any
) -> None:  # fmt: skip
    from prismm.cpu.kernels import digits, vnni

    height, wide = left.shape[2], 32 * right.shape[2]
    with Workspace() as workspace:
        step = min(ROWS, height)
        sums = [workspace.empty((step, out.shape[1], wide), "int32") for _ in left]
        for i0 in range(0, height, step):
            rows = min(height, i0 + step) - i0
            for x, y, z in zip(left, right, sums, strict=True):
                vnni.packed_product(x[:, i0 : i0 + rows], y, k, system.modulus, z[:rows])
            tile = out[:, :, i0 : i0 + rows]
            _reduce(digits.digits_int32, [z[: tile.shape[2]] for z in sums], system, tile)


def _amx_tile(
    left: NDArray[Any], right: NDArray[Any], k: int, out: NDArray[np.int8], engine: CpuEngine, system: Any
) -> None:  # fmt: skip
    """The same by the tile unit, which hands out digits; those of the three products of complex parts are combined."""
    from prismm.cpu.engines import tile_permission
    from prismm.cpu.kernels import amx, digits

    tile_permission.require()
    moduli, height = left.shape[1:3]
    assert isinstance(engine, AmxEngine)
    with Workspace() as workspace:
        found, tiles, tables = (workspace.empty(*x) for x in engine.scratch(len(left), moduli, height, out.shape[3], k))
        step = found.shape[1] * amx.STRIP_ROWS
        for i0 in range(0, height, step):
            i1 = min(height, i0 + step)
            for x, y, z in zip(left, right, found, strict=True):
                amx.tile_digits(x[:, i0:i1], y, k, system.modulus, tiles, tables, z)
            tile = out[:, :, i0:i1]
            if len(left) == 1:
                # (strips, panels, moduli, rows, columns) in their order.
                whole = found[0].transpose(2, 0, 3, 1, 4).reshape(moduli, step, -1)
                tile[0] = whole[:, : tile.shape[2], : tile.shape[3]]
                continue
            wide = [z.transpose(0, 3, 2, 1, 4).reshape(step, moduli, -1).astype(np.int32) for z in found]
            _reduce(digits.digits_int32, [z[: tile.shape[2]] for z in wide], system, tile)


def _plain_tile(
    left: NDArray[Any], right: NDArray[Any], k: int, out: NDArray[np.int8], engine: Any, system: Any
) -> None:  # fmt: skip
    from prismm.cpu.kernels import digits

    products = []
    for x, y in zip(left, right, strict=True):
        product = np.empty((out.shape[1], *out.shape[2:]), engine.sum_dtype)
        engine.multiply(x, y, product, system.moduli)
        products.append(product.transpose(1, 0, 2))
    kernel = digits.digits_int32 if engine.sum_dtype == "int32" else digits.digits_float64
    _reduce(kernel, products, system, out)


def _reduce(kernel: Any, sums: list[NDArray[Any]], system: Any, out: NDArray[np.int8]) -> None:
    """Digits of every real part: of the one product, or of the three that make a complex one."""
    if len(sums) == 1:
        kernel(sums[0], sums[0], sums[0], 0, system.modulus, system.reciprocal, out[0])
        return
    for part in range(2):
        kernel(*sums, part + 1, system.modulus, system.reciprocal, out[part])


def add(total: NDArray[np.int8], other: NDArray[np.int8], setting: Setting) -> None:
    """total += other, modulo each modulus: arrays (parts, moduli, …), contiguous. Associative and commutative."""
    from prismm.cpu.kernels.digits import add_digits

    for x, y in zip(total, other, strict=True):
        add_digits(x.reshape(setting.moduli, -1), y.reshape(setting.moduli, -1), setting.modulus)
