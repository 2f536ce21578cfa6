"""Rows and columns split into planes of residues: what is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.cuda.launch.program import LONGEST_GRID
from prismm.cuda.residues.tables import NEARLY_ONE_WORD
from prismm.cuda.views import _ceil
from prismm.errors import EngineError

if TYPE_CHECKING:
    from typing import Any

    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.tables import Tables
    from prismm.cuda.views import Vectors


STATISTICS = 10
"""Integers that the kernels keep of a vector: see `cuda.kernels.fp64`."""

ROW_BLOCK = 1024, 2, 4
"""Elements of a row that are measured at a time, fours that a thread splits at a time, warps."""

COLUMN_TILE = 64, 32, 4
"""Rows and columns of a tile of columns that is split, and warps, as measured on an H200."""

SPLIT_WARPS, SPLIT_COLUMNS, SPLIT_BYTES, SPLIT_TERMS = 4, 4, 1 << 14, 1 << 16
"""Of `cuda.residues.kernels.split_sm90`: warps, columns a program, bytes of a column up to which those of all programs
stay in the L2 cache of a Hopper GPU, and elements that a vector must have less of.
"""

SPLIT_SHARED = 1 << 15
"""Bytes of columns that a program of `cuda.residues.kernels.split_sm90` keeps in shared memory, where they are no
more."""

LINE = 128
"""Bytes of a line: a product at n = 3333 takes 1.5 times as long where the rows of planes begin within lines."""


@dataclass(frozen=True)
class SplitVectors:
    """Vectors after the split.

    Attributes:
        planes: (batch, planes, rows, pitch) of residues; three times as many planes for complex vectors, of real parts,
            imaginary parts and their sums.
        statistics: (batch, 10, vectors), see `cuda.kernels.fp64`.
        batch, vectors: how many there are.
        terms: K.
        sums: of quarters of the planes (`residues.strassen`), where products are Strassen's.
    """

    planes: BufferView
    statistics: BufferView
    batch: int
    vectors: int
    terms: int
    sums: BufferView | None = None

    @property
    def plane(self) -> int:
        """Bytes of a plane."""
        return self.planes.shape[2] * self.planes.shape[3]


def plane_shape(vectors: int, k: int, planes: int) -> tuple[int, int, int]:
    """Shape of an operand's planes: rows in whole groups of 64, and a pitch that TMA can read, in whole lines of memory
    where that adds little.
    """
    return planes, _ceil(vectors, 64), _ceil(k, LINE if k >= 4 * LINE else 32)


def allocate_statistics(program: Program, x: Vectors) -> BufferView:
    """Workspace for the statistics of some vectors."""
    import torch

    return program.allocate(torch.int64, x.batch, STATISTICS, x.vectors)


def tall_tile(rows: int, columns: int, length: int) -> tuple[int, int]:
    """A tile for columns of this length, as high as a grid's second extent asks for.

    >>> tall_tile(64, 32, 4096), tall_tile(64, 32, 5_000_000)
    ((64, 32), (128, 16))
    """
    while length > rows * LONGEST_GRID:
        rows, columns = 2 * rows, max(1, columns // 2)
    return rows, columns


def measure_columns(
    program: Program, x: Vectors, statistics: BufferView, q: int, device: Device, *, levels: bool, exact: bool
) -> None:
    """The norms of columns across contiguous rows, in two launches that add to statistics. exact: the largest
    magnitudes, not their exponents alone.
    """
    from prismm.cuda.residues.kernels import scale

    k, parts = x.terms, x.parts
    strides, reals = tuple(parts * step for step in x.strides), x.buffer.reals()
    block, (piece, _) = 128, tall_tile(64, 1, k)
    strips = -(-x.vectors * parts // block)
    fixed: dict[str, Any] = {"PARTS": parts, "BLOCK": block, "EVEN": x.even(2), "num_warps": 4}
    program.launch(
        scale.largest_columns, (strips, -(-k // piece), x.batch), reals, strides[2], strides[0], statistics, k,
        x.vectors, PIECE=piece, ROWS=16, EXACT=exact, **fixed,
    )  # fmt: skip
    # Small matrices want many programs, large ones few atomic additions.
    few = strips * x.batch * k < 2 * device.programs * 256 and k <= 128 * LONGEST_GRID
    piece, rows = (128, 16) if few else (256, 8)
    program.launch(
        scale.sum_columns, (strips, -(-k // piece), x.batch), reals, strides[2], strides[0], statistics, k,
        x.vectors, q, PIECE=piece, ROWS=rows, LEVELS=levels, NVIDIA=device.nvidia, enable_fp_fusion=False, **fixed,
    )  # fmt: skip


def split_vectors(
    program: Program, x: Vectors, statistics: BufferView, table: Tables, device: Device, *, left: bool, levels: bool,
    measure: bool,
) -> SplitVectors:  # fmt: skip
    """Write down the split of vectors of any strides.

    Args:
        program: the launches so far.
        x: the vectors.
        statistics: of `allocate_statistics`.
        table: of the moduli.
        device: the GPU.
        left: whether they are rows of A, not columns of B.
        levels: whether large elements are counted, for tests of magnitude.
        measure: whether residuals are measured, for tests of rounding and for reports; otherwise they are known to be
            at most a half.
    """
    import torch

    from prismm.cuda.residues.kernels import split

    k, parts = x.terms, x.parts
    shape = plane_shape(x.vectors, k, table.moduli * (3 if parts == 2 else 1))
    across = x.strides[1] == 1 and x.strides[2] != 1
    fused = _is_split_fused(x, across, table, device)
    # Several programs add to the statistics of such columns by atomic operations, from 0 on.
    if across and not fused:
        program.zero(statistics)
    planes = program.allocate(torch.int8, x.batch, *shape)
    found = SplitVectors(planes, statistics, x.batch, x.vectors, parts * k)
    if x.batch * x.vectors == 0:
        return found
    program.count_split(x.elements, left=left)
    q = table.fraction_bits(parts * k)
    strides, reals = tuple(parts * step for step in x.strides), x.buffer.reals()
    # PERMUTED is for the right operand alone: its vectors are the columns that a thread of the sm90 epilogue holds.
    fixed: dict[str, Any] = {
        "MODULI": table.moduli, "MEASURE": measure, "WORDS": table.words, "PERMUTED": device.sm90 and not left,
        "enable_fp_fusion": False,
    }  # fmt: skip
    if fused:
        factors = table.left_fragments if left else table.right_fragments
    else:
        factors = table.left if left else table.right
        fixed |= {"NVIDIA": device.nvidia, "PARTS": parts}
    common = (
        statistics, planes, table.thresholds, factors, x.vectors, k, shape[2], shape[1] * shape[2], parts * k, q,
        table.bits, table.limit_bits,
    )  # fmt: skip
    if not across and x.strides[2] != 1 and k > 1:
        raise EngineError("operands of these strides have to be copied first")
    if fused:
        from prismm.cuda.residues.kernels import split_sm90 as sm90

        narrower = table.bits == NEARLY_ONE_WORD and x.buffer.dtype == torch.float32 and not measure
        # A matrix instruction takes four elements of one word, or two of two: so many groups a thread has at least.
        groups = SPLIT_COLUMNS if across else 4 if table.words == 1 or narrower else 2
        constants: dict[str, Any] = {}
        if across:
            tiles = 1 << (-(-k // (64 * SPLIT_WARPS)) - 1).bit_length()
            fits = tiles * 64 * SPLIT_WARPS * groups * x.buffer.dtype.itemsize <= SPLIT_SHARED
            constants = {"SHARED_TILES": tiles if fits else 0, "maxnreg": 128}
        program.launch(
            sm90.split_columns_fused if across else sm90.split_rows_fused,
            (-(-x.vectors // groups) if across else x.vectors, x.batch), reals, strides[2 if across else 1], strides[0],
            *common, WARPS=SPLIT_WARPS, GROUPS=groups, LEVELS=levels, NARROWER=narrower,
            EVEN=x.even(2) and k % 16 == 0 if across else x.even(1), num_warps=SPLIT_WARPS, **constants, **fixed,
        )  # fmt: skip
        return found
    if not across:
        block, groups, warps = ROW_BLOCK[0] // parts, max(1, ROW_BLOCK[1] // parts), ROW_BLOCK[2]
        program.launch(
            split.split_rows, (x.vectors, x.batch), reals, strides[1], strides[0], *common,
            FOURS=32 * warps, BLOCK=block, GROUPS=groups, LEVELS=levels, num_warps=warps,
            EVEN=x.even(1), **fixed,
        )  # fmt: skip
        return found
    measure_columns(program, x, statistics, q, device, levels=levels, exact=False)
    split_measured(program, x, found, table, device, parts * k, q, left=left, measure=measure)
    return found


def split_measured(
    program: Program, x: Vectors, found: SplitVectors, table: Tables, device: Device, terms: int, q: int, *, left: bool,
    measure: bool,
) -> None:  # fmt: skip
    """Write down the split of columns whose norms are known, in one launch.

    Args:
        program, x, table, device, left, measure: as of `split_vectors`.
        found: where the planes go, and the statistics with the norms; `RESIDUAL` is 0 there.
        terms: of these columns.
        q: of `Tables.fraction_bits`, for the norms.
    """
    from prismm.cuda.residues.kernels import split

    k, parts, shape = x.terms, x.parts, found.planes.shape[1:]
    (rows, columns), warps = tall_tile(COLUMN_TILE[0], COLUMN_TILE[1] // parts, shape[2]), COLUMN_TILE[2]
    program.launch(
        split.split_columns, (-(-x.vectors // columns), -(-shape[2] // rows), x.batch), x.buffer.reals(),
        parts * x.strides[2], parts * x.strides[0], found.statistics, found.planes, table.thresholds,
        table.left if left else table.right, x.vectors, k, shape[2], shape[1] * shape[2], terms, q, table.bits,
        table.limit_bits, ROWS=rows, BLOCK=columns, EVEN=x.even(2) and k % 16 == 0, num_warps=warps,
        MODULI=table.moduli, MEASURE=measure, WORDS=table.words, PERMUTED=device.sm90 and not left,
        NVIDIA=device.nvidia, PARTS=parts, enable_fp_fusion=False,
    )  # fmt: skip


def _is_split_fused(x: Vectors, across: bool, table: Tables, device: Device) -> bool:
    """Whether one launch measures and splits vectors: rows on a Hopper GPU, and columns that stay in its cache."""
    if not device.sm90 or x.parts == 2 or x.terms >= SPLIT_TERMS:
        return False
    if not across:
        return True
    return columns_fused(x.batch, x.vectors, x.terms * x.buffer.dtype.itemsize, table.words, device.programs)


def columns_fused(batch: int, vectors: int, size: int, words: int, programs: int) -> bool:
    """Whether one launch measures and splits real columns of so many bytes on a Hopper GPU: they stay in its cache, and
    keep it busy.
    """
    return words < 3 and size <= SPLIT_BYTES and batch * -(-vectors // SPLIT_COLUMNS) >= 2 * programs
