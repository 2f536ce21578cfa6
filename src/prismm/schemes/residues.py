"""Residues: Ozaki scheme II. Integer matrix products modulo many small coprime numbers, joined exactly.

Row i of A is scaled by the largest power of two 2^s_i, column j of B by 2^t_j, that keep every entry of the product
of the rounded operands A' = RN(2^s·a), B' = RN(2^t·b) below P/2, where P is the product of the moduli. Then A'B' is
computed modulo each modulus (exactly: INT8 products, INT32 sums), joined by the Chinese remainder theorem in exact
multi-limb arithmetic, and rounded once (Ozaki, Uchino and Imamura 2025; Uchino, Ozaki and Imamura 2025).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import accuracy
from prismm.accuracy import MAGNITUDE, PAIR, RAW, ROUNDING
from prismm.engines import pool
from prismm.engines.cpu import CpuEngine, DirectEngine
from prismm.errors import ArgumentError
from prismm.moduli import MAX_MODULI, operand_bits
from prismm.schemes.base import Job, Outcome, for_kernels, real_parts
from prismm.schemes.split import Scales, Splitter, split_operand
from prismm.workspace import Scratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMN_BLOCK = 512
ROW_PANEL = 1024


@dataclass(frozen=True)
class Residues:
    """Exact product of the operands rounded to `moduli`-dependent integers; one rounding at the end.

    Value: c_ij = RN(Σ_h A'_ih·B'_hj · 2^-(s_i+t_j)). Bound, before that rounding: the smaller of
    2^-s·½‖b_j‖₁ + 2^-t·½‖a_i‖₁ + k/4·2^-(s+t) and ‖δa_i‖₂‖b̂_j‖₂ + (‖â_i‖₂ + ‖δa_i‖₂)‖δb_j‖₂ with the rounding
    errors δ; 0 where row and column are represented exactly. Reproducible: yes. Scale-invariant: yes. Complex: one
    scale for both parts, three real products per modulus.

    Args:
        moduli: 2 to 22. 7 give float32 grade, 15 float64 grade, 18-20 leave few open roundings in float64.

    Raises:
        ArgumentError: for another number.

    >>> Residues(moduli=15).bits
    58.39
    """

    moduli: int = 15

    def __post_init__(self) -> None:
        if isinstance(self.moduli, bool) or not isinstance(self.moduli, int) or not 2 <= self.moduli <= MAX_MODULI:
            raise ArgumentError(f"Residues(moduli={self.moduli!r}); pass an integer from 2 to {MAX_MODULI}")

    @property
    def reproducible(self) -> bool:
        """Always True."""
        return True

    @property
    def bits(self) -> float:
        """L, the bits that the 2-norm of a scaled row or column may have."""
        return round(operand_bits(self.moduli), 2)


@dataclass(frozen=True)
class SplitRight:
    """Column blocks of a split right operand: (first column, last, residues) each, and the scales of all columns."""

    splitter: Splitter
    blocks: list[tuple[int, int, NDArray[Any]]]
    scales: Scales

    @property
    def nbytes(self) -> int:
        """Bytes that the residues take."""
        return sum(block[2].nbytes for block in self.blocks)


@dataclass(frozen=True)
class SplitLeft:
    """Row panels of a split left operand, and the scales of all rows."""

    splitter: Splitter
    panels: list[tuple[int, int, NDArray[Any]]]
    scales: Scales

    @property
    def nbytes(self) -> int:
        """Bytes that the residues take."""
        return sum(panel[2].nbytes for panel in self.panels)


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: rows per panel, columns per block, and columns whose residues exist at one time."""

    row_panel: int
    column_block: int
    columns_at_once: int
    bytes: int


def tiling(m: int, n: int, splitter: Splitter, workers: int, memory: int) -> Tiling:
    """Cut so that residues of B, of one panel of A per worker and the products of one tile per worker fit in
    `memory`.
    """
    if isinstance(splitter.engine, DirectEngine):
        return Tiling(max(m, 1), max(n, 1), max(n, 1), 8 * splitter.limbs * splitter.terms * (m + n))
    count = len(splitter.system.moduli) * splitter.residue_parts
    size = 1 if splitter.engine.largest_modulus <= 256 else 8
    k = max(splitter.k, 1)
    block = min(COLUMN_BLOCK, max(n, 1))
    panel = _even(m, workers, ROW_PANEL)
    while panel > 64 and workers * panel * count * (size * k + max(4, size) * block) > memory // 2:
        panel = max(64, panel // 2)
    panel = _even(m, workers, panel)
    tile_bytes = workers * panel * count * (size * k + max(4, size) * block)
    room = max(memory - tile_bytes, 0)
    at_once = max(block, room // (count * size * k) // block * block)
    at_once = min(at_once, max(n, 1))
    return Tiling(panel, block, at_once, tile_bytes + at_once * count * size * k)


def _even(m: int, workers: int, largest: int) -> int:
    """Rows per panel: at most `largest`, and the panels a multiple of the workers where that leaves at least 32
    rows.
    """
    panels = max(1, -(-m // largest))
    panels = -(-panels // workers) * workers
    return max(min(m, 32), -(-m // panels), 1)


def _left_shape(splitter: Splitter, rows: int) -> tuple[int, ...]:
    if isinstance(splitter.engine, DirectEngine):
        return (2 if splitter.is_complex else 1, rows, splitter.limbs, splitter.k)
    return (splitter.residue_parts, len(splitter.system.moduli), rows, splitter.k)


def _right_shape(splitter: Splitter, columns: int) -> tuple[int, ...]:
    if isinstance(splitter.engine, DirectEngine):
        return (2 if splitter.is_complex else 1, columns, splitter.limbs, splitter.k)
    return (splitter.residue_parts, len(splitter.system.moduli), splitter.k, columns)


def _dtype(engine: CpuEngine) -> str:
    return "float64" if isinstance(engine, DirectEngine) else engine.dtype


def prepare_right(
    b: NDArray[Any], splitter: Splitter, workers: int, empty: Any = np.empty, block: int = COLUMN_BLOCK
) -> SplitRight:
    """Split all columns of b (k, n), in parallel."""
    n = b.shape[1]
    blocks = []
    pieces: list[tuple[int, int, int]] = []
    for j0 in range(0, n, block):
        j1 = min(n, j0 + block)
        blocks.append((j0, j1, empty(_right_shape(splitter, j1 - j0), _dtype(splitter.engine))))
        step = j1 - j0
        if not splitter.is_complex and not isinstance(splitter.engine, DirectEngine):
            step = max(64, -(-(j1 - j0) // workers)) if n <= workers * block else step
        pieces += [(len(blocks) - 1, c, min(j1, c + step)) for c in range(j0, j1, step)]
    scales: list[Any] = [None] * len(pieces)

    def split(item: tuple[int, tuple[int, int, int]]) -> None:
        index, (which, c0, c1) = item
        j0, _, residues = blocks[which]
        scales[index] = split_operand(b[:, c0:c1], splitter, residues, left=False, first=c0 - j0)

    _spread(split, list(enumerate(pieces)), workers, splitter)
    return SplitRight(splitter, blocks, Scales.joined(scales) if scales else _no_scales())


def prepare_left(a: NDArray[Any], splitter: Splitter, workers: int, panel: int = ROW_PANEL) -> SplitLeft:
    """Split all rows of a (m, k), in parallel."""
    m = a.shape[0]
    step = _even(m, workers, panel)
    panels = [
        (i, min(m, i + step), np.empty(_left_shape(splitter, min(m, i + step) - i), _dtype(splitter.engine)))
        for i in range(0, m, step)
    ]
    scales: list[Any] = [None] * len(panels)

    def split(index: int) -> None:
        i0, i1, residues = panels[index]
        scales[index] = split_operand(a[i0:i1], splitter, residues, left=True)

    _spread(split, list(range(len(panels))), workers, splitter)
    return SplitLeft(splitter, panels, Scales.joined(scales) if scales else _no_scales())


def _no_scales() -> Scales:
    nothing = np.empty(0, np.int64)
    return Scales(nothing, nothing, np.empty((4, 0)), np.empty((0, 0), np.int64))


def _spread(task: Any, items: list[Any], workers: int, splitter: Splitter) -> None:
    """In workers; the direct engine runs in place."""
    if isinstance(splitter.engine, DirectEngine):
        for item in items:
            task(item)
    else:
        pool.spread(task, items, workers)


def join_mode(target: accuracy.Target | None) -> int:
    """What the join tests for this target."""
    if target is None:
        return RAW
    return ROUNDING if target.kind == "correctly-rounded" else MAGNITUDE


class Product:
    """One product under way: split, multiply, join, certify; it gathers the entries that are left for repair."""

    def __init__(self, splitter: Splitter, job: Job, outcome: Outcome) -> None:
        self.splitter = splitter
        self.job = job
        self.outcome = outcome
        self.open: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
        self.mode, self.kappa, self.magnitude_kappa = join_mode(job.target), 0.0, 0.0
        if self.mode == MAGNITUDE:
            # "fast" tests nothing but overflow: kappa 0 passes every entry.
            assert job.target is not None
        if self.mode == MAGNITUDE and job.target is not None and job.target.kind != "fast":
            self.kappa = accuracy.kappa(job.target, job.terms, job.result)
            self.magnitude_kappa = accuracy.magnitude_kappa(job.target, job.terms, job.result)

    def run(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        out: NDArray[Any],
        left: SplitLeft | None = None,
        right: SplitRight | None = None,
    ) -> tuple[Scales, Scales]:
        """out = a @ b (or the epilogue's) up to the entries in `open`; returns the scales of rows and columns."""
        n = out.shape[1]
        if right is not None:
            return self._columns(a, right, out, 0, left), right.scales
        cut = tiling(out.shape[0], n, self.splitter, self.job.workers, self.job.memory)
        rows: Scales | None = None
        columns = []
        for j0 in range(0, n, cut.columns_at_once):
            j1 = min(n, j0 + cut.columns_at_once)
            with Scratch() as scratch:
                start = time.perf_counter()
                piece = prepare_right(b[:, j0:j1], self.splitter, self.job.workers, scratch.empty, cut.column_block)
                self.outcome.split_right += piece.scales.shift.size * self.splitter.k
                self.outcome.time("split", time.perf_counter() - start)
                rows = self._columns(a, piece, out[:, j0:j1], j0, left)
                columns.append(piece.scales)
        if rows is None:
            rows = left.scales if left is not None else prepare_left(a, self.splitter, 1).scales
        return rows, Scales.joined(columns) if columns else _no_scales()

    def _columns(
        self, a: NDArray[Any], right: SplitRight, out: NDArray[Any], first_column: int, left: SplitLeft | None
    ) -> Scales:
        m = out.shape[0]
        splitter, job = self.splitter, self.job
        if left is not None:
            panels: list[tuple[int, int, Any]] = list(left.panels)
        else:
            step = tiling(m, out.shape[1], splitter, job.workers, job.memory).row_panel
            panels = [(i, min(m, i + step), None) for i in range(0, m, step)]
        scales: list[Any] = [None] * len(panels)
        start = time.perf_counter()

        def panel(index: int) -> None:
            i0, i1, residues = panels[index]
            pool.limit_openmp()
            with Scratch() as scratch:
                if residues is None:
                    residues = scratch.empty(_left_shape(splitter, i1 - i0), _dtype(splitter.engine))
                    scales[index] = split_operand(a[i0:i1], splitter, residues, left=True)
                else:
                    assert left is not None
                    scales[index] = left.scales.part(i0, i1)
                widest = max((j1 - j0 for j0, j1, _ in right.blocks), default=0)
                buffers = self._buffers(i1 - i0, widest, scratch)
                for j0, j1, block in right.blocks:
                    tile = (i0, i1, j0, j1)
                    self._tile(
                        residues, block, scales[index], right.scales.part(j0, j1), tile, out, first_column, buffers
                    )

        _spread(panel, list(range(len(panels))), job.workers, splitter)
        if left is None:
            self.outcome.split_left += m * splitter.k
        self.outcome.time("multiply and join", time.perf_counter() - start)
        return Scales.joined(scales) if scales else _no_scales()

    def _buffers(self, rows: int, columns: int, scratch: Scratch) -> list[NDArray[Any]]:
        """Room for the products of one tile, used for all tiles of a panel in turn."""
        splitter = self.splitter
        if isinstance(splitter.engine, DirectEngine):
            return []
        size = len(splitter.system.moduli) * rows * columns
        return [scratch.empty((size,), splitter.engine.sum_dtype) for _ in range(splitter.residue_parts)]

    def _tile(
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
        i0, i1, j0, j1 = tile
        splitter = self.splitter
        products: list[NDArray[Any]] = []
        if not isinstance(splitter.engine, DirectEngine):
            moduli = splitter.system.moduli
            shape = (len(moduli), i1 - i0, j1 - j0)
            for part, buffer in enumerate(buffers):
                product = buffer[: shape[0] * shape[1] * shape[2]].reshape(shape)
                splitter.engine.multiply(residues[part], block[part], product, moduli)
                products.append(product)
        targets = real_parts(out[i0:i1, j0:j1])
        if self.job.epilogue is not None and not self.job.epilogue.trivial:
            self._combined(residues, block, products, rows, columns, targets, tile, first_column)
        else:
            for part, target in enumerate(targets):
                failed, count = self._join(residues, block, products, rows, columns, part, target, self.mode, None)
                self._note(part, failed[:count], tile, first_column)

    def _note(self, part: int, failed: NDArray[np.int32], tile: tuple[int, int, int, int], first_column: int) -> None:
        if failed.size:
            i0, _, j0, j1 = tile
            i, j = np.divmod(failed.astype(np.int64), j1 - j0)
            self.open.append((part, i + i0, j + j0 + first_column))

    def _join(
        self,
        residues: NDArray[Any],
        block: NDArray[Any],
        products: list[NDArray[Any]],
        rows: Scales,
        columns: Scales,
        part: int,
        target: NDArray[Any],
        mode: int,
        low: NDArray[np.float64] | None,
    ) -> tuple[NDArray[np.int32], int]:
        """Join one real part of a tile into `target`; the entries that failed the test."""
        splitter, job = self.splitter, self.job
        precision = job.result.precision if mode != PAIR else 53
        out64 = target if target.dtype == np.float64 else np.empty((0, 0))
        out32 = target if target.dtype == np.float32 else np.empty((0, 0), np.float32)
        failed = np.empty(target.size if mode in (ROUNDING, MAGNITUDE) else 0, np.int32)
        low = np.empty((0, 0)) if low is None else low
        tail = (
            rows.shift, columns.shift, rows.terms, columns.terms, splitter.terms / 4.0, rows.power, columns.power,
            rows.counts, columns.counts, splitter.terms, mode, self.kappa, self.magnitude_kappa, precision, out64,
            out32, low, failed,
        )  # fmt: skip
        if isinstance(splitter.engine, DirectEngine):
            from prismm.kernels.cpu.direct import direct_product

            left, right = _real_limbs(residues, block, part, splitter.is_complex)
            return failed, direct_product(left, right, *tail)
        from prismm.kernels.cpu import join

        system = splitter.system
        tables = (
            system.limbs, system.digit_split, system.modulus, system.reciprocal, system.weights, system.product,
            system.quotient,
        )  # fmt: skip
        if splitter.engine.sum_dtype == "int32" and not splitter.is_complex and system.limbs <= 4:
            return failed, join.join_fused(products[0], *tables, *tail)
        kernel = join.join_int32 if splitter.engine.sum_dtype == "int32" else join.join_float64
        if splitter.is_complex:
            return failed, kernel(products[0], products[1], products[2], part + 1, *tables, *tail)
        return failed, kernel(products[0], products[0], products[0], 0, *tables, *tail)

    def _combined(
        self,
        residues: NDArray[Any],
        block: NDArray[Any],
        products: list[NDArray[Any]],
        rows: Scales,
        columns: Scales,
        targets: list[NDArray[Any]],
        tile: tuple[int, int, int, int],
        first_column: int,
    ) -> None:
        """alpha·X + beta·C for one tile, from exact pairs of X's real parts."""
        from prismm.kernels.cpu.combine import combine

        i0, i1, j0, j1 = tile
        splitter, job = self.splitter, self.job
        assert job.epilogue is not None
        shape = (i1 - i0, j1 - j0)
        pairs = []
        for part in range(len(targets)):
            high, low = np.empty(shape), np.empty(shape)
            self._join(residues, block, products, rows, columns, part, high, PAIR, low)
            pairs.append((high, low))
        unit = 2 * 44 if isinstance(splitter.engine, DirectEngine) else 40 * (splitter.system.limbs - 3)
        for part, target in enumerate(targets):
            factors = epilogue_factors(job.epilogue, part, len(targets))
            c = job.epilogue.c
            nothing = np.zeros((1, 1))
            adds = [nothing, nothing]
            if c is not None:
                inner = c[i0:i1, j0 + first_column : j1 + first_column]
                adds = [for_kernels(x) for x in real_parts(inner)] * (2 if len(targets) == 1 else 1)
            out64 = target if target.dtype == np.float64 else np.empty((0, 0))
            out32 = target if target.dtype == np.float32 else np.empty((0, 0), np.float32)
            failed = np.empty(target.size, np.int32)
            count = combine(
                *pairs[0], *pairs[-1], unit, rows.shift, columns.shift, rows.terms,
                columns.terms, splitter.terms / 4.0, adds[0], adds[1], factors, self.mode, self.kappa,
                job.result.precision, out64, out32, failed,
            )  # fmt: skip
            self._note(part, failed[:count], tile, first_column)


def epilogue_factors(epilogue: Any, part: int, parts: int) -> NDArray[np.float64]:
    """Factors of (X_re, X_im, C_re, C_im) in the real (part 0) or imaginary part of alpha·X + beta·C."""
    alpha, beta = complex(epilogue.alpha), complex(epilogue.beta)
    if parts == 1:
        return np.array([alpha.real, 0.0, beta.real, 0.0])
    if part == 0:
        return np.array([alpha.real, -alpha.imag, beta.real, -beta.imag])
    return np.array([alpha.imag, alpha.real, beta.imag, beta.real])


def _real_limbs(
    left: NDArray[Any], right: NDArray[Any], part: int, is_complex: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The direct engine's real operands: for complex data [re, -im]·[re; im] and [re, im]·[im; re]."""
    if not is_complex:
        return left[0], right[0]
    second = -left[1] if part == 0 else left[1]
    order = (0, 1) if part == 0 else (1, 0)
    return np.concatenate([left[0], second], axis=2), np.concatenate([right[order[0]], right[order[1]]], axis=2)


def multiply(
    scheme: Residues,
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    job: Job,
    engine: CpuEngine,
    left: SplitLeft | None = None,
    right: SplitRight | None = None,
) -> Outcome:
    """Split, multiply, join, certify and repair: out = a @ b (or the epilogue's sum) up to the job's target."""
    from prismm.bounds import ResidueBound, RoundedBound
    from prismm.repair import Entries, exactly, repair
    from prismm.specials import patch, patch_addend

    levels = join_mode(job.target) == MAGNITUDE
    splitter = Splitter(scheme.moduli, engine, a.shape[1], np.iscomplexobj(out), job.a_priori, levels)
    direct = isinstance(engine, DirectEngine)
    outcome = Outcome(products=1 if direct else len(splitter.system.moduli) * splitter.residue_parts)
    work = Product(splitter, job, outcome)
    rows, columns = work.run(a, b, out, left, right)
    start = time.perf_counter()
    parts = len(real_parts(out))
    outside = (
        rows.nonfinite[:, None] | columns.nonfinite[None, :] if job.epilogue is not None else np.empty((0, 0), np.bool_)
    )
    masks, special = patch_addend(out, job.epilogue, outside)
    special += patch(a, b, out, rows.nonfinite, columns.nonfinite, job.epilogue)
    outcome.count("special", special)
    entries = []
    for part in range(parts):
        mine = [(i, j) for p, i, j in work.open if p == part]
        if not mine:
            continue
        some = Entries(part, np.concatenate([x[0] for x in mine]), np.concatenate([x[1] for x in mine]))
        some = some.keep(~(rows.nonfinite[some.i] | columns.nonfinite[some.j]))
        some = some.keep(~masks[part][some.i, some.j])
        entries.append(some)
    total_open = sum(e.i.size for e in entries)
    road = "value" if work.mode == RAW else "certified"
    outcome.count(road, out.size * parts - special - total_open)
    if entries and job.target is None:
        # The scheme's own value with an open rounding: exact arithmetic on the rounded operands.
        a_hat, b_hat = _rounded(a, rows.shift[:, None]), _rounded(b, columns.shift[None, :])
        for some in entries:
            exactly(a_hat, b_hat, out, some, job, outcome, road="value")
    elif total_open:
        entries = _with_more_moduli(scheme, a, b, out, job, engine, entries, outcome, (rows, columns))
        for some in entries:
            repair(a, b, out, some, job, outcome, (rows, columns))
    outcome.time("repair", time.perf_counter() - start)
    if work.mode == ROUNDING:
        outcome.bound = RoundedBound(job.result)
    else:
        weight = 1.0
        if job.epilogue is not None:
            factors = epilogue_factors(job.epilogue, 0, parts)
            weight = float(abs(factors[0]) + abs(factors[1]))
        outcome.bound = ResidueBound(job.result, rows, columns, splitter.terms, weight)
    return outcome


def _rounded(x: NDArray[Any], shift: NDArray[np.int64]) -> NDArray[Any]:
    """x rounded to multiples of 2^-shift: the operand that the scheme multiplies exactly."""
    parts = [np.ldexp(np.rint(np.ldexp(p.astype(np.float64), shift)), -shift) for p in real_parts(x)]
    if len(parts) == 1:
        return parts[0]
    whole = np.empty(x.shape, np.complex128)
    whole.real, whole.imag = parts
    return whole


MANY = 4096


def _with_more_moduli(
    scheme: Residues,
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    job: Job,
    engine: CpuEngine,
    entries: list[Any],
    outcome: Outcome,
    scales: tuple[Scales, Scales],
) -> list[Any]:
    """Many open roundings: multiply their rows and columns again with more moduli, if that promises to settle most
    of them.

    Raising N by d moduli divides the bound of every inexact row and column by about 2^(3.8·d). An entry x stays open
    with probability about 2ε·2^p/|x|.
    """
    from prismm.repair import Entries, bound_in_units

    assert job.target is not None
    total = sum(e.i.size for e in entries)
    if job.target.kind != "correctly-rounded" or total < MANY or scheme.moduli >= MAX_MODULI:
        return entries
    if isinstance(engine, DirectEngine) or (job.epilogue is not None and not job.epilogue.trivial):
        return entries
    i, j = np.unique(np.concatenate([e.i for e in entries])), np.unique(np.concatenate([e.j for e in entries]))
    repair_cost = total * a.shape[1] * 3.4e-9
    again_cost = 2.0 * i.size * j.size * a.shape[1] * MAX_MODULI / 4e11
    if again_cost > 0.5 * repair_cost:
        return entries
    gain = 2.0 ** (operand_bits(scheme.moduli) - operand_bits(MAX_MODULI))
    some = entries[0].keep(np.arange(entries[0].i.size) % max(1, entries[0].i.size // 512) == 0)
    bound = bound_in_units(scales[0].terms[:, some.i], scales[1].terms[:, some.j], a, job)
    value = np.abs(real_parts(out)[some.part][some.i, some.j].astype(np.float64))
    size = np.ldexp(value, scales[0].shift[some.i] + scales[1].shift[some.j])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        still = np.minimum(1.0, np.nan_to_num(2.0 * gain * bound * 2.0**job.result.precision / size, nan=1.0))
    if float(np.mean(still)) > 0.5:
        return entries
    piece = np.empty((i.size, j.size), out.dtype)
    again = Outcome()
    product = Product(Splitter(MAX_MODULI, engine, a.shape[1], np.iscomplexobj(out)), job, again)
    product.run(np.ascontiguousarray(a[i]), np.ascontiguousarray(b[:, j]), piece)
    outcome.time("more moduli", sum(again.timings.values()))
    outcome.products += len(product.splitter.system.moduli) * product.splitter.residue_parts
    left = []
    for e in entries:
        r, c = np.searchsorted(i, e.i), np.searchsorted(j, e.j)
        real_parts(out)[e.part][e.i, e.j] = real_parts(piece)[e.part][r, c]
        open_now = np.zeros((i.size, j.size), np.bool_)
        for part, x, y in product.open:
            if part == e.part:
                open_now[x, y] = True
        still_open = open_now[r, c]
        outcome.count("more moduli", int((~still_open).sum()))
        left.append(Entries(e.part, e.i[still_open], e.j[still_open]))
    return left
