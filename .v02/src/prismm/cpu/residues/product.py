"""One product by residues under way: split, multiply, join, certify; uncertified entries are left for repair."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy, threads
from prismm.core.accuracy import MAGNITUDE, PAIR, ROUNDING
from prismm.core.outcome import Job, Outcome, for_kernels, real_parts
from prismm.core.scales import Blocks, Scales
from prismm.core.workspace import Workspace
from prismm.cpu.engines.integer import DirectEngine, PackedEngine
from prismm.cpu.residues import streamed
from prismm.cpu.residues.blocking import (
    COLUMN_BLOCK,
    SplitLeft,
    SplitRight,
    engine_scratch,
    left_shape,
    no_scales,
    prepare_left,
    prepare_right,
    residue_dtype,
    right_shape,
    spread,
    tiling,
)
from prismm.cpu.residues.split import Splitter, split_operand

if TYPE_CHECKING:
    from numpy.typing import NDArray


SMALL = 300_000
"""Elements of an operand up to which `Product` splits it in one piece."""


class Product:
    """One product under way: split, multiply, join, certify; it gathers the entries that are left for repair."""

    def __init__(self, splitter: Splitter, job: Job, outcome: Outcome) -> None:
        self.splitter = splitter
        self.job = job
        self.outcome = outcome
        self.blocks: Blocks | None = None
        self.uncertified: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
        self.mode, self.kappa, self.magnitude_kappa = accuracy.join_test(job.target, job.terms, job.result)

    def run(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any],
        left: SplitLeft | None = None,
        right: SplitRight | None = None,
    ) -> tuple[Scales, Scales]:
        """out = a @ b (or the epilogue's) up to the entries in `uncertified`; returns the scales of rows and
        columns.
        """
        m, n = out.shape
        # `streamed` splits rows itself, in one piece; those that are split already stand in panels.
        if isinstance(self.splitter.engine, PackedEngine) and left is None and streamed.suits(m, n, self.job.workers):
            return streamed.run(self, a, b, out, right)
        if right is not None:
            return self._columns(a, right, out, 0, left), right.scales
        if left is None and self._small(a, b):
            return self._split_both(a, b, out)
        cut = tiling(out.shape[0], n, self.splitter, self.job.workers, self.job.workspace_bytes)
        rows: Scales | None = None
        columns = []
        # A is split again for each of these ranges: the price of a small workspace.
        for j0 in range(0, n, cut.resident_columns):
            j1 = min(n, j0 + cut.resident_columns)
            with Workspace() as workspace:
                start = time.perf_counter()
                piece = prepare_right(b[:, j0:j1], self.splitter, self.job.workers, workspace.empty, cut.column_block)
                self.outcome.split_right += piece.scales.shift.size * self.splitter.k
                self.outcome.time("split", time.perf_counter() - start)
                rows = self._columns(a, piece, out[:, j0:j1], j0, left)
                columns.append(piece.scales)
        # Without columns nothing has asked for the scales of the rows.
        if rows is None:
            rows = left.scales if left is not None else prepare_left(a, self.splitter, 1).scales
        return rows, Scales.joined(columns) if columns else no_scales()

    def run_blocks(self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], blocks: Blocks) -> tuple[Scales, Scales]:
        """The same of blocks, by the direct engine."""
        splitter, dtype = self.splitter, residue_dtype(self.splitter.engine, left=True)
        start = time.perf_counter()
        left, right = np.empty(left_shape(splitter, len(a)), dtype), np.empty(right_shape(splitter, b.shape[1]), dtype)
        rows = split_operand(a, splitter, left, left=True)
        columns = split_operand(b, splitter, right, left=False)
        self.outcome.split_left += rows.shift.size * splitter.k
        self.outcome.split_right += columns.shift.size * splitter.k
        self.outcome.time("split", time.perf_counter() - start)
        start = time.perf_counter()
        self.blocks = blocks
        self.tile(left, right, rows, columns, (0, len(a), 0, blocks.width), out, 0, [])
        self.outcome.time("multiply and join", time.perf_counter() - start)
        return rows, columns

    def _small(self, a: NDArray[Any], b: NDArray[Any]) -> bool:
        """Whether one worker should split A while another splits B: in smaller pieces the calls cost more than they
        do.
        """
        if isinstance(self.splitter.engine, DirectEngine) or self.job.workers < 2:
            return False
        return 0 < max(a.size, b.size) <= SMALL and b.shape[1] <= COLUMN_BLOCK

    def _split_both(self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> tuple[Scales, Scales]:
        """A small product: each operand is split whole, both at the same time."""
        splitter, workers = self.splitter, self.job.workers
        m, n = out.shape
        with Workspace() as workspace:
            start = time.perf_counter()
            both = [
                workspace.empty(left_shape(splitter, m), residue_dtype(splitter.engine, left=True)),
                workspace.empty(right_shape(splitter, n), residue_dtype(splitter.engine, left=False)),
            ]
            scales: list[Any] = [None, None]

            def split(side: int) -> None:
                scales[side] = split_operand((a, b)[side], splitter, both[side], left=side == 0)

            spread(split, [0, 1], workers, splitter)
            self.outcome.split_left += m * splitter.k
            self.outcome.split_right += n * splitter.k
            self.outcome.time("split", time.perf_counter() - start)
            # Packed rows are read several at a time: only the last panel may end between, where `left_shape` has room.
            least = splitter.engine.row_step if isinstance(splitter.engine, PackedEngine) else 1
            step = -(-tiling(m, n, splitter, workers, self.job.workspace_bytes).row_panel // least) * least
            panels = [(i, min(m, i + step), both[0][:, :, i : i + step]) for i in range(0, m, step)]
            right = SplitRight(splitter, [(0, n, both[1])], scales[1])
            self._columns(a, right, out, 0, SplitLeft(splitter, panels, scales[0]))
        return scales[0], scales[1]

    def _columns(
        self, a: NDArray[Any], right: SplitRight, out: NDArray[Any], first_column: int, left: SplitLeft | None
    ) -> Scales:
        m = out.shape[0]
        splitter, job = self.splitter, self.job
        if left is not None:
            panels: list[tuple[int, int, Any]] = list(left.panels)
        else:
            step = tiling(m, out.shape[1], splitter, job.workers, job.workspace_bytes).row_panel
            panels = [(i, min(m, i + step), None) for i in range(0, m, step)]
        scales: list[Any] = [None] * len(panels)
        start = time.perf_counter()

        def panel(index: int) -> None:
            i0, i1, residues = panels[index]
            # The engine may call torch, whose team of threads each worker would start.
            threads.limit_openmp()
            with Workspace() as workspace:
                if residues is None:
                    residues = workspace.empty(left_shape(splitter, i1 - i0), residue_dtype(splitter.engine, left=True))
                    scales[index] = split_operand(a[i0:i1], splitter, residues, left=True)
                else:
                    assert left is not None
                    scales[index] = left.scales.block(i0, i1)
                widest = max((j1 - j0 for j0, j1, _ in right.blocks), default=0)
                buffers = self.buffers(i1 - i0, widest, workspace)
                for j0, j1, block in right.blocks:
                    tile = (i0, i1, j0, j1)
                    self.tile(
                        residues, block, scales[index], right.scales.block(j0, j1), tile, out, first_column, buffers
                    )

        spread(panel, list(range(len(panels))), job.workers, splitter)
        if left is None:
            self.outcome.split_left += m * splitter.k
        self.outcome.time("multiply and join", time.perf_counter() - start)
        return Scales.joined(scales) if scales else no_scales()

    def buffers(self, rows: int, columns: int, workspace: Workspace) -> list[NDArray[Any]]:
        """Room for the products of one tile, used for all tiles of a panel in turn."""
        splitter = self.splitter
        if isinstance(splitter.engine, DirectEngine):
            return []
        if isinstance(splitter.engine, PackedEngine):
            return [workspace.empty(shape, dtype) for shape, dtype in engine_scratch(splitter, rows, columns)]
        size = len(splitter.system.moduli) * rows * columns
        return [workspace.empty((size,), splitter.engine.sum_dtype) for _ in range(splitter.residue_parts)]

    def tile(
        self,
        residues: NDArray[Any],
        block: NDArray[Any],
        rows: Scales,
        columns: Scales,
        tile: tuple[int, int, int, int],
        out: NDArray[Any],
        first_column: int,
        buffers: list[NDArray[Any]],
    ) -> None:
        """Multiply and join one tile (first row, last, first column, last) of split operands."""
        i0, i1, j0, j1 = tile
        splitter = self.splitter
        operands = (residues, block, rows, columns)
        products = buffers
        if not isinstance(splitter.engine, (DirectEngine, PackedEngine)):
            products = []
            moduli = splitter.system.moduli
            shape = (len(moduli), i1 - i0, j1 - j0)
            for part, buffer in enumerate(buffers):
                # From the start of the buffer, so that a narrow tile is contiguous, too.
                product = buffer[: shape[0] * shape[1] * shape[2]].reshape(shape)
                splitter.engine.multiply(residues[part], block[part], product, moduli)
                products.append(product)
        self.join_tile(operands, products, real_parts(out[i0:i1, j0:j1]), tile, first_column)

    def join_tile(
        self,
        operands: tuple[NDArray[Any], NDArray[Any], Scales, Scales],
        products: list[NDArray[Any]],
        targets: list[NDArray[Any]],
        tile: tuple[int, int, int, int],
        first_column: int,
    ) -> None:
        """Join the products of one tile into the real parts of the result, or of the epilogue's sum."""
        if self.job.epilogue is not None and not self.job.epilogue.trivial:
            self._combined(operands, products, targets, tile, first_column)
        else:
            for part, failed in enumerate(self._join(operands, products, targets, self.mode, [])):
                self._note(part, failed, tile, first_column)

    def _note(self, part: int, failed: NDArray[np.int32], tile: tuple[int, int, int, int], first_column: int) -> None:
        if failed.size:
            i0, _, j0, j1 = tile
            i, j = np.divmod(failed.astype(np.int64), j1 - j0)
            self.uncertified.append((part, i + i0, j + j0 + first_column))

    def _join(
        self,
        operands: tuple[NDArray[Any], NDArray[Any], Scales, Scales],
        products: list[NDArray[Any]],
        targets: list[NDArray[Any]],
        mode: int,
        lows: list[NDArray[np.float64]],
    ) -> list[NDArray[np.int32]]:
        """Join the real parts of a tile into `targets`; per part, the entries that failed the test.

        lows: where mode is PAIR, arrays for the lower halves.
        """
        residues, block, rows, columns = operands
        splitter, job = self.splitter, self.job
        # Pairs are float64 for every result: the epilogue rounds them.
        precision = job.result.precision if mode != PAIR else 53
        head = (
            rows.shift, columns.shift, rows.terms, columns.terms, splitter.terms / 4.0, rows.power, columns.power,
            rows.counts, columns.counts, splitter.terms, mode, self.kappa, self.magnitude_kappa, precision,
        )  # fmt: skip
        stores: list[tuple[NDArray[Any], ...]] = []
        for part, target in enumerate(targets):
            out64 = target if target.dtype == np.float64 else np.empty((0, 0))
            out32 = target if target.dtype == np.float32 else np.empty((0, 0), np.float32)
            failed = np.empty(target.size if mode in (ROUNDING, MAGNITUDE) else 0, np.int32)
            stores.append((out64, out32, lows[part] if lows else np.empty((0, 0)), failed))
        counts = self.run_join(residues, block, products, head, stores)
        return [store[3][:count] for store, count in zip(stores, counts, strict=True)]

    def run_join(
        self,
        residues: NDArray[Any],
        block: NDArray[Any],
        products: list[NDArray[Any]],
        head: tuple[Any, ...],
        stores: list[tuple[NDArray[Any], ...]],
    ) -> list[int]:
        """The engine's kernel: how many entries of each part it lists."""
        splitter = self.splitter
        if isinstance(splitter.engine, DirectEngine):
            from prismm.cpu.kernels.blocks import direct_blocks
            from prismm.cpu.kernels.direct import direct_product

            counts = []
            for part, store in enumerate(stores):
                limbs = _real_limbs(residues, block, part, splitter.is_complex)
                if self.blocks is None:
                    counts.append(int(direct_product(*limbs, *head, *store)))
                    continue
                counts.append(int(direct_blocks(self.blocks.first, *limbs, *head, *store)))
            return counts
        system = splitter.system
        numbers = (system.modulus, system.reciprocal, system.weights, system.product, system.quotient)
        if isinstance(splitter.engine, PackedEngine):
            real, both, _ = splitter.engine.fused()
            given = (residues, block, splitter.k, *products, system.limbs, *numbers, *head)
            if not splitter.is_complex:
                return [int(real(*given, *stores[0]))]
            found = np.zeros(2, np.int64)
            both(*given, *stores[0], *stores[1], found)
            return [int(x) for x in found]
        from prismm.cpu.kernels import join

        tables = (system.limbs, system.digit_split, *numbers)
        # The usual case has a kernel of its own, whose loops over limbs are unrolled.
        if splitter.engine.sum_dtype == "int32" and not splitter.is_complex and system.limbs <= 4:
            return [int(join.join_fused(products[0], *tables, *head, *stores[0]))]
        kernel = join.join_int32 if splitter.engine.sum_dtype == "int32" else join.join_float64
        if splitter.is_complex:
            return [int(kernel(*products, part + 1, *tables, *head, *store)) for part, store in enumerate(stores)]
        return [int(kernel(products[0], products[0], products[0], 0, *tables, *head, *stores[0]))]

    def _combined(
        self,
        operands: tuple[NDArray[Any], NDArray[Any], Scales, Scales],
        products: list[NDArray[Any]],
        targets: list[NDArray[Any]],
        tile: tuple[int, int, int, int],
        first_column: int,
    ) -> None:
        """alpha·X + beta·C for one tile, from exact pairs of X's real parts."""
        from prismm.cpu.kernels.blocks import combine_blocks
        from prismm.cpu.kernels.combine import combine

        i0, i1, j0, j1 = tile
        _, _, rows, columns = operands
        splitter, job = self.splitter, self.job
        assert job.epilogue is not None
        shape = (i1 - i0, j1 - j0)
        highs, lows = [np.empty(shape) for _ in targets], [np.empty(shape) for _ in targets]
        self._join(operands, products, highs, PAIR, lows)
        pairs = list(zip(highs, lows, strict=True))
        # Pairs are in units of the third limb: of five of 44 bits by the direct engine, else of 40 bits.
        unit = 2 * 44 if isinstance(splitter.engine, DirectEngine) else 40 * (splitter.system.limbs - 3)
        for part, target in enumerate(targets):
            factors = job.epilogue.factors(part, len(targets))
            c = job.epilogue.c
            # Never read: without C the factors of its parts are 0.
            nothing = np.zeros((1, 1))
            adds = [nothing, nothing]
            if c is not None:
                inner = c[i0:i1, j0 + first_column : j1 + first_column]
                # A real C stands for both parts, as the factor of the second is 0.
                adds = [for_kernels(x) for x in real_parts(inner)] * (2 if len(targets) == 1 else 1)
            out64 = target if target.dtype == np.float64 else np.empty((0, 0))
            out32 = target if target.dtype == np.float32 else np.empty((0, 0), np.float32)
            failed = np.empty(target.size, np.int32)
            kernel, first = (combine, ()) if self.blocks is None else (combine_blocks, (self.blocks.first,))
            count = kernel(
                *first, *pairs[0], *pairs[-1], unit, rows.shift, columns.shift, rows.terms,
                columns.terms, splitter.terms / 4.0, adds[0], adds[1], factors, rows.power, columns.power, rows.counts,
                columns.counts, splitter.terms, self.mode, self.kappa, self.magnitude_kappa, job.result.precision,
                out64, out32, failed,
            )  # fmt: skip
            self._note(part, failed[:count], tile, first_column)


def _real_limbs(
    left: NDArray[Any], right: NDArray[Any], part: int, is_complex: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The direct engine's real operands: for complex data [re, -im]·[re; im] and [re, im]·[im; re]."""
    if not is_complex:
        return left[0], right[0]
    second = -left[1] if part == 0 else left[1]
    order = (0, 1) if part == 0 else (1, 0)
    return np.concatenate([left[0], second], axis=2), np.concatenate([right[order[0]], right[order[1]]], axis=2)
