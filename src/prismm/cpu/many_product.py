"""A correctly rounded product by up to 49 moduli: extents of the operands, split, multiply, join and test.

Panels of rows are as high as memory allows; blocks of columns are taken by workers, split, multiplied and joined while
they are in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from prismm.core import threads
from prismm.core.many_moduli import ManyModuli, byte_numbers, many_moduli, offset_bits, part_numbers
from prismm.core.outcome import Job
from prismm.core.workspace import Workspace
from prismm.cpu.engines.integer import CpuEngine, Int8Engine, PackedEngine
from prismm.cpu.engines.simulated_integers import SimulatedInt8Engine

if TYPE_CHECKING:
    from numpy.typing import NDArray

ByteEngine = PackedEngine | Int8Engine | SimulatedInt8Engine


def takes_bytes(engine: CpuEngine) -> TypeGuard[ByteEngine]:
    """Whether an engine multiplies residues modulo numbers up to 256."""
    return isinstance(engine, ByteEngine) and engine.largest_modulus == 256


@dataclass(frozen=True)
class Extents:
    """Rows or columns: all elements are below 2^top and multiples of 2^low; norm1, norm2: Σ|x| and Σx², of x times
    2^-top.
    """

    top: NDArray[np.int64]
    low: NDArray[np.int64]
    norm1: NDArray[np.float64]
    norm2: NDArray[np.float64]

    @property
    def bits(self) -> NDArray[np.int64]:
        """How many bits make the row or column exact."""
        return self.top - self.low

    @staticmethod
    def of(x: NDArray[np.float64], *, rows: bool) -> Extents:
        """Of the rows, or columns, of a contiguous matrix."""
        from prismm.cpu.kernels.extent import extent_columns, extent_rows

        count = x.shape[0 if rows else 1]
        top, low = np.empty((2, count), np.int64)
        norm1, norm2 = np.empty((2, count))
        (extent_rows if rows else extent_columns)(x, top, low, norm1, norm2)
        return Extents(top, low, norm1, norm2)

    def part(self, start: int, stop: int) -> Extents:
        """Of a range of them."""
        part = slice(start, stop)
        return Extents(self.top[part], self.low[part], self.norm1[part], self.norm2[part])

    def terms(self, most: int, k: int, residual2: Any, tiny: Any) -> NDArray[np.float64]:
        """The bound's vectors (`scale.bound_terms`) with at most so many bits.

        Sums of k numbers err by less than k·2^-53 relatively, and |A'| <= |2^s·a| + 1/2.
        """
        kept = np.minimum(self.bits, most)
        # A residual so small that its square underflows has the flag alone.
        inexact = (residual2 > 0.0) | (tiny != 0)
        up = 1.0 + 2.0**-28 + k * 2.0**-52
        terms = np.empty((4, kept.size))
        # ½ of at most ½ for each of k elements: A' may be larger than 2^s·a by so much.
        terms[0] = (0.5 * np.ldexp(self.norm1, kept) + inexact * (0.25 * k)) * up
        terms[1] = np.sqrt(residual2 + (tiny != 0) * (k * 2.0**-600)) * up
        terms[2] = (np.ldexp(np.sqrt(self.norm2), kept) + inexact * (0.5 * k**0.5)) * up
        terms[3] = inexact
        return terms


@dataclass(frozen=True)
class System:
    """A system of moduli, how many bits rows and columns keep, and whether what that leaves out of the product is added
    in float64.
    """

    tables: ManyModuli
    left: int
    right: int
    corrected: bool = False

    @staticmethod
    def of(moduli: int, left: int, right: int, *, corrected: bool = False) -> System:
        """So many moduli; k·2^(left + right) must be within their room."""
        return System(many_moduli(moduli), left, right, corrected)


Part = tuple["NDArray[Any]", "NDArray[np.int64]", "NDArray[np.float64]"]
"""Residues, shifts, and the bound's vectors, of some rows or columns."""

Scaled = tuple["NDArray[np.int64]", "NDArray[np.float64]"]
"""Shifts, and the bound's vectors."""


class Addends(NamedTuple):
    """A product times a factor, and numbers times factors that are added to it.

    Attributes:
        factors: finite; the product's first. Empty for a product alone.
        numbers: (factors but the first, m, n), finite.
    """

    factors: NDArray[np.float64]
    numbers: NDArray[np.float64]

    def arguments(self, rows: slice, columns: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of a part of the result, as `kernels.many_sum.add_addends` takes them."""
        if len(self.numbers) == 0:
            return self.factors, np.empty((0, 0))
        return self.factors, np.concatenate([x[rows, columns] for x in self.numbers], axis=1)


@dataclass(frozen=True)
class _Product:
    """Operands, their extents and the system."""

    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rows: Extents
    columns: Extents
    system: System
    engine: ByteEngine
    workers: int
    addends: Addends

    @property
    def k(self) -> int:
        """The inner dimension."""
        return int(self.left.shape[1])

    def split_rows(self, i0: int, i1: int, workspace: Workspace) -> Part:
        """Of rows i0 … i1 - 1, by all workers."""
        count, height = len(self.system.tables.moduli), i1 - i0
        residual2, tiny = np.zeros(height), np.zeros(height, np.uint8)
        # Not more bits than the row has: then it is exact, and its product as short as can be.
        shift = np.minimum(self.rows.bits, self.system.left)[i0:i1] - self.rows.top[i0:i1]
        step = max(4, -(-height // self.workers))
        pieces = [(x, min(height, x + step)) for x in range(0, height, step)]
        if isinstance(self.engine, PackedEngine):
            from prismm.cpu.kernels.packed import pack_rows

            rows = -(-height // self.engine.row_step) * self.engine.row_step
            out = workspace.empty((count, rows, self.engine.pitch(self.k)), "int8")
            numbers = byte_numbers(count, self.system.left, left=True)

            def pack(piece: tuple[int, int]) -> None:
                x, y = piece
                pack_rows(
                    self.left[i0 + x : i0 + y], shift[x:y], offset_bits(self.system.left), *numbers,
                    self.system.tables.modulus, x, out, residual2[x:y], tiny[x:y],
                )  # fmt: skip

            threads.spread(pack, pieces, self.workers)
        else:
            out = np.empty((count, height, self.k), np.int8)
            parts = part_numbers(count, self.system.left, left=True), self.system.tables.modulus
            plain_residues(self.left[i0:i1], shift[:, None], parts, 1, out, residual2, tiny)
        return out, shift, self.rows.part(i0, i1).terms(self.system.left, self.k, residual2, tiny)

    def split_columns(self, j0: int, j1: int, workspace: Workspace) -> Part:
        """Of columns j0 … j1 - 1."""
        count, width = len(self.system.tables.moduli), j1 - j0
        residual2, tiny = np.zeros(width), np.zeros(width, np.uint8)
        shift = np.minimum(self.columns.bits, self.system.right)[j0:j1] - self.columns.top[j0:j1]
        if isinstance(self.engine, PackedEngine):
            from prismm.cpu.kernels.packed import pack_columns

            out = workspace.empty((count, *self.engine.panel_shape(width, self.k)), "uint32")
            numbers = byte_numbers(count, self.system.right, left=False)
            pack_columns(
                self.right, j0, shift, offset_bits(self.system.right), *numbers, self.system.tables.modulus, 0, out,
                residual2, tiny,
            )  # fmt: skip
        else:
            out = np.empty((count, self.k, width), np.int8)
            parts = part_numbers(count, self.system.right, left=False), self.system.tables.modulus
            plain_residues(self.right[:, j0:j1], shift[None, :], parts, 0, out, residual2, tiny)
        return out, shift, self.columns.part(j0, j1).terms(self.system.right, self.k, residual2, tiny)

    def correction(
        self, rows: slice, columns: slice, left: Part, right: Part
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What A' and B' leave out of a part of the product, and the error that is left; both empty where that is not
        added.
        """
        from prismm.cpu.kernels.residuals import residual_product

        if not self.system.corrected:
            return np.empty((0, 0)), np.empty((0, 0))
        value, error = np.empty((2, left[1].size, right[1].size))
        residual_product(self.left[rows], self.right[:, columns], left[1], right[1], value, error)
        return value, error

    def join(
        self, left: Part, right: Part, correction: tuple[Any, Any], addends: tuple[Any, Any], out: NDArray[Any],
        failed: NDArray[np.bool_], workspace: Workspace,
    ) -> None:  # fmt: skip
        """Multiply split rows and columns; out is their part of the result, `failed` what is not proved of it."""
        tables, (m, n) = self.system.tables, out.shape
        if not isinstance(self.engine, PackedEngine):
            products = np.empty((len(tables.moduli), m, n), np.int32)
            self.engine.multiply(left[0], right[0], products, tables.moduli)
            join_products(products, tables, left[1:], right[1:], self.k, correction, addends, out, failed)
            return
        first, *scratch = self.engine.scratch(1, len(tables.moduli), m, n, self.k)
        tiles = [workspace.empty(first[0][1:], first[1]), *(workspace.empty(*each) for each in scratch)]
        rest = _join_arguments(tables, left[1:], right[1:], self.k, correction, addends, out)
        flag(self.engine.fused()[2](left[0], right[0], self.k, *tiles, *rest), rest[-1], failed)


def join_products(
    products: NDArray[Any], tables: ManyModuli, left: Scaled, right: Scaled, k: int, correction: tuple[Any, Any],
    addends: tuple[Any, Any], out: NDArray[Any], failed: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Round products (moduli, m, n) of split rows and columns, or their digits, to out; `failed` becomes true where the
    rounding is not proved. correction: as of `_Product.correction`; addends: as of `Addends.arguments`.
    """
    from prismm.cpu.kernels import many

    count, m, n = products.shape
    # The join reads whole sixteens.
    whole = np.zeros((m, count, -(-n // 16) * 16), np.int32)
    whole[:, :, :n] = products.transpose(1, 0, 2)
    rest = _join_arguments(tables, left, right, k, correction, addends, out)
    flag(many.join_many(whole, *rest), rest[-1], failed)


def _join_arguments(
    tables: ManyModuli, left: Scaled, right: Scaled, k: int, correction: tuple[Any, Any], addends: tuple[Any, Any],
    out: NDArray[Any],
) -> tuple[Any, ...]:  # fmt: skip
    """The arguments of `kernels.many.join_many` after the products. The last one receives the entries without proof."""
    out64 = out if out.dtype == np.float64 else np.empty((0, 0))
    out32 = out if out.dtype == np.float32 else np.empty((0, 0), np.float32)
    return (
        tables.modulus, tables.reciprocal, tables.weights, tables.product, tables.quotient, left[0], right[0], left[1],
        right[1], k / 4.0, *correction, *addends, 53 if out.dtype == np.float64 else 24, out64, out32,
        np.empty(out.size, np.int32),
    )  # fmt: skip


def flag(count: int, listed: NDArray[np.int32], failed: NDArray[np.bool_]) -> None:
    """Set the first entries of a list, each i·n + j, in a matrix (m, n)."""
    failed[np.divmod(listed[:count].astype(np.int64), failed.shape[1])] = True


def plain_residues(
    x: NDArray[np.float64], shift: NDArray[np.int64], numbers: tuple[NDArray[np.float64], NDArray[np.float64]],
    axis: int, out: NDArray[np.int8], residual2: NDArray[np.float64], tiny: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Residues of x·2^shift, rounded, as they are: out (moduli, …); Σδ² and whether elements scaled to next to nothing
    are added for each row or column, along this axis of which it runs. numbers: `part_numbers`, and the moduli.
    """
    from prismm.cpu.kernels.many_residues import residues

    # What underflows is flagged below.
    with np.errstate(under="ignore"):
        scaled = np.ldexp(x, shift)
    rounded = np.rint(scaled)
    residual2 += np.square(scaled - rounded).sum(axis=axis)
    tiny |= ((np.abs(scaled) < 2.0**-300) & (x != 0.0)).any(axis=axis)
    residues(rounded.reshape(-1), *numbers, out.reshape(len(out), -1))


def multiply(
    left: NDArray[np.float64], right: NDArray[np.float64], rows: Extents, columns: Extents, system: System,
    kind: np.dtype[Any], job: Job, engine: ByteEngine, addends: Addends,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:  # fmt: skip
    """left @ right, contiguous, or a sum with it, correctly rounded to this type; and where that is not proved."""
    work = _Product(left, right, rows, columns, system, engine, job.workers, addends)
    (m, k), n = left.shape, right.shape[1]
    count, workers = len(system.tables.moduli), job.workers
    # Whole panels of 32 columns, no more bytes than a block may have, and a block for every worker.
    fitting = PackedEngine.block_bytes // (count * max(k, 1))
    width = max(32, min(PackedEngine.widest_block, fitting, -(-n // workers)) + 31 & ~31)
    room = max(job.workspace_bytes - workers * count * width * (k + 256), 0) // (count * (k + 128))
    # Two tiles of 48 rows, or three of 32, are the least that is worth a pass over all columns.
    height = max(96, min(m, room // 96 * 96))
    out, failed = np.empty((m, n), kind), np.zeros((m, n), np.bool_)
    for i0 in range(0, m, height):
        i1 = min(m, i0 + height)
        with Workspace() as workspace:
            split = work.split_rows(i0, i1, workspace)

            def columns_of(j0: int, split: Part = split, here: slice = slice(i0, i1)) -> None:
                j1 = min(n, j0 + width)
                threads.limit_openmp()
                with Workspace() as mine:
                    part = work.split_columns(j0, j1, mine)
                    correction = work.correction(here, slice(j0, j1), split, part)
                    added = work.addends.arguments(here, slice(j0, j1))
                    work.join(split, part, correction, added, out[here, j0:j1], failed[here, j0:j1], mine)

            threads.spread(columns_of, list(range(0, n, width)), workers)
    return out, failed
