"""The flow of every composite scheme: scale, split, multiply, certify each entry, round once, repair.

A product is cut into tiles so that the workspace stays within the job's memory. A complex product is two real ones of
twice the inner dimension. The target decides what is certified:

- "native" and tolerances: ε <= slack·(|a||b|), |a||b| measured by one product of magnitudes;
- "correctly-rounded": all numbers within ε of the value round alike;
- "fast" and none: the scheme's value, rounded once.

In every case entries for which ε leaves open whether the exact value overflows are recomputed, so that ±Inf appears
exactly where RN(exact) overflows.

gemm of the scheme's own value V is RN(alpha·V + beta·C) in every entry (`exact_sums`), unless the exact sum disagrees
about infinity: then it is that, rounded. Neither depends on the tile. Of the sums only those are looked at that may
overflow, by their ε or their tile's exponents; the others agree: both |alpha·AB| and |alpha·V| are at most 2^(E-3), E
the exponent of the range's end, so that the exact sum is finite where the own one is below 2^(E-4).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import accuracy, threads
from prismm.core.accuracy import MAGNITUDE, RAW, ROUNDING
from prismm.core.composite import Composite, Joined, Setting, Side
from prismm.core.outcome import Job, Outcome, finite_abs, for_kernels, real_parts
from prismm.core.specials import layout
from prismm.cpu.entries import Entries
from prismm.cpu.scaling import Magnitudes, Units, bound_of, measure, scale

if TYPE_CHECKING:
    from numpy.typing import NDArray


_TILE = 1 << 16
_WIDE = 256


@dataclass
class Block:
    """Consecutive rows of A or columns of B, split: one split per real part of the product.

    magnitudes: absolute values in scaled units, one per part, once they were needed.
    """

    start: int
    stop: int
    parts: list[Any]
    units: Units
    magnitudes: list[NDArray[np.float64]] = field(default_factory=list, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(int(p.nbytes) for p in self.parts) + sum(x.nbytes for x in self.magnitudes)


@dataclass
class SplitOperand:
    """An operand split in blocks, as `prepare` keeps it."""

    side: Side
    blocks: list[Block]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(block.nbytes for block in self.blocks)

    @property
    def widest(self) -> int:
        """Vectors of the largest block."""
        return max((block.stop - block.start for block in self.blocks), default=1)


def blocking(
    scheme: Composite, m: int, n: int, k: int, job: Job, parts: int = 1, fixed: tuple[bool, bool] = (False, False)
) -> tuple[int, int, int]:
    """(rows, columns, bytes) of tiles whose workspace fits in the job's memory, if the granule lets it.

    Rows are cut first, down to about 256: while B stays whole, A is split once. k: inner dimension of the real
    product. fixed: sides whose extent is not to change.
    """
    extent, granule = [max(1, m), max(1, n)], scheme.granule

    def problem() -> int:
        rows, columns = extent
        # Three float64 for each element of the operands, and five for each entry.
        flow_bytes = 24 * k * (rows + columns) * parts + 40 * rows * columns * parts
        return flow_bytes + scheme.workspace(rows, columns, k, job.result) * parts

    while problem() > job.workspace_bytes:
        free = [side for side in (0, 1) if not fixed[side] and extent[side] > granule[side]]
        if not free:
            break
        side = max(free, key=lambda side: (extent[side] > _WIDE, -side if extent[side] > _WIDE else extent[side]))
        half = -(-extent[side] // 2)
        # Less by one at least, or the search would not end.
        extent[side] = min(extent[side] - 1, -(-half // granule[side]) * granule[side])
        extent[side] = max(granule[side], extent[side] // granule[side] * granule[side])
    return extent[0], extent[1], problem()


def split_block(
    scheme: Composite, x: NDArray[Any], start: int, side: Side, setting: Setting, magnitudes: bool = False
) -> Block:
    """Scale and split consecutive rows or columns of an operand."""
    parts: list[Any] = []
    sizes: list[NDArray[np.float64]] = []
    units: Units | None = None
    for part in range(len(real_parts(x))):
        scaled, units = scale(layout(x, part, side), side, setting.workers)
        parts.append(scheme.split(scaled, setting))
        if magnitudes:
            sizes.append(np.abs(scaled.data))
    assert units is not None
    return Block(start, start + units.exponent.size, parts, units, sizes)


def split_operand(scheme: Composite, x: NDArray[Any], side: Side, job: Job, engine: Any) -> SplitOperand:
    """The whole operand, split for use with any partner."""
    count, k = x.shape if side == "left" else x.shape[::-1]
    parts = len(real_parts(x))
    step = blocking(scheme, count, count, k * parts, job, parts)[0 if side == "left" else 1]
    setting = Setting(job.result, job.workers, job.workspace_bytes, engine)
    blocks = []
    for start in range(0, count, step):
        vectors = x[start : start + step] if side == "left" else x[:, start : start + step]
        blocks.append(split_block(scheme, vectors, start, side, setting))
    return SplitOperand(side, blocks)


@dataclass
class Flow:
    """One product under way."""

    scheme: Composite
    a: NDArray[Any]
    b: NDArray[Any]
    out: NDArray[Any]
    job: Job
    setting: Setting
    outcome: Outcome
    uncertified: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    pieces: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = self.job
        self.parts = len(real_parts(self.out))
        self.inner = self.a.shape[1] * self.parts
        self.mode = accuracy.join_mode(job.target)
        self.slack = math.inf
        if job.target is not None and job.target.kind == "fast":
            self.mode = RAW
        elif self.mode == MAGNITUDE:
            assert job.target is not None
            self.slack = accuracy.slack(job.target, job.terms, job.result) * (1.0 - 2.0**-40)
        self.plain = job.epilogue is None or job.epilogue.trivial

    def run(self, left: SplitOperand | None, right: SplitOperand | None) -> tuple[Units, Units]:
        """Every tile; returns the units of rows and columns."""
        m, n = self.out.shape
        sides = (left.widest if left else m, right.widest if right else n)
        fixed = (left is not None, right is not None)
        bm, bn, _ = blocking(self.scheme, *sides, self.inner, self.job, self.parts, fixed)
        left_blocks: list[Block] | None = left.blocks if left else None
        rows: list[Units] = []
        columns: list[Units] = []
        for right_block in self._blocks(self.b, "right", bn, right):
            found: list[Block] = []
            # The last column block is the last to ask for rows.
            keep, first = right_block.stop < n, not rows
            for left_block in left_blocks if left_blocks is not None else self._blocks(self.a, "left", bm, None):
                self._tile(left_block, right_block)
                if left_blocks is None and first:
                    rows.append(left_block.units)
                if left_blocks is None and keep:
                    found.append(left_block)
                    keep = sum(x.nbytes for x in found) <= self.job.workspace_bytes // 2
                    found = found if keep else []
                # No name may hold a block while the next one is split.
                del left_block
            if left_blocks is None and keep:
                left_blocks = found
            columns.append(right_block.units)
            del right_block, found
        if left is not None:
            rows = [x.units for x in left.blocks]
        return Units.joined(rows), Units.joined(columns)

    def _blocks(self, x: NDArray[Any], side: Side, step: int, split: SplitOperand | None) -> Iterator[Block]:
        if split is not None:
            yield from split.blocks
            return
        count = x.shape[0 if side == "left" else 1]
        for i in range(0, count, step):
            start = time.perf_counter()
            vectors = x[i : i + step] if side == "left" else x[:, i : i + step]
            block = split_block(self.scheme, vectors, i, side, self.setting, self.mode == MAGNITUDE)
            if side == "left":
                self.outcome.split_left += vectors.size
            else:
                self.outcome.split_right += vectors.size
            self.outcome.time("split", time.perf_counter() - start)
            yield block
            del block

    def _tile(self, left: Block, right: Block) -> None:
        joined: list[Joined] = []
        products = 0
        start = time.perf_counter()
        for part in range(self.parts):
            value = self.scheme.multiply(left.parts[part], right.parts[part], self.setting)
            products += value.products
            for name, count in value.notes.items():
                self.outcome.note(name, count)
            if left.units.zero.any() or right.units.zero.any():
                for x in (value.high, value.low):
                    if x is not None:
                        x[left.units.zero] = 0.0
                        x[:, right.units.zero] = 0.0
            joined.append(value)
        # Tiles of one product count once, with the tile that took most.
        self.outcome.products = max(self.outcome.products, products)
        middle = time.perf_counter()
        self.outcome.time("multiply", middle - start)
        tested = self.mode != RAW or self._may_overflow(left.units, right.units)
        sizes: list[Magnitudes | None] = [None] * self.parts
        bounds: list[NDArray[np.float64]] = [_NOTHING] * self.parts
        if tested:
            for part, value in enumerate(joined):
                if value.rounds and self.plain and self.mode == ROUNDING:
                    value.gamma = 0.0
                if value.gamma > 0.0 or (self.mode == MAGNITUDE and self.slack < math.inf):
                    sizes[part] = self._measure(left, right, part)
                bounds[part] = bound_of(
                    value.gamma, value.rows, value.columns, value.floor, sizes[part], (left.units, right.units),
                    self.inner,
                )  # fmt: skip
        # With an infinite slack this test is one for overflow alone.
        mode = MAGNITUDE if self.mode == RAW and tested and self.plain else self.mode
        if self.plain:
            for part, value in enumerate(joined):
                self._round_and_test(left, right, part, value, bounds[part], sizes[part], mode)
        else:
            self._round_and_test_sum(left, right, joined, bounds, sizes, tested)
        if self.mode != ROUNDING:
            from prismm.cpu.bounds import CompositePiece

            terms = [(value.gamma, value.rows, value.columns, value.floor) for value in joined]
            self.pieces.append(CompositePiece(left.start, left.stop, right.start, right.stop, terms))
        self.outcome.time("join and certify", time.perf_counter() - middle)

    def _may_overflow(self, rows: Units, columns: Units) -> bool:
        """Whether some exact entry may reach the top two binades: |exact| < k·2^(e+f)."""
        top = int(rows.exponent.max(initial=0)) + int(columns.exponent.max(initial=0)) + self.inner.bit_length()
        if not self.plain:
            assert self.job.epilogue is not None
            top += max(0, math.frexp(finite_abs(self.job.epilogue.alpha))[1]) + 1
        return bool(top >= self.job.result.maxexp - 3)

    def _measure(self, left: Block, right: Block, part: int) -> Magnitudes:
        x = self._magnitudes(left, self.a, "left", part)
        y = self._magnitudes(right, self.b, "right", part)
        low = float(left.units.smallest.min(initial=1.0)) * float(right.units.smallest.min(initial=1.0))
        # What a reproducible scheme leaves to repair must not depend on the order of a sum.
        integers = self.job.a_priori and self.scheme.reproducible
        # Down to 2^-900 there is room for gamma, too, times what is measured.
        return measure(x, y, not low >= 2.0**-900, integers)

    def _magnitudes(self, block: Block, x: NDArray[Any], side: Side, part: int) -> NDArray[np.float64]:
        # Blocks of a prepared operand have none: whether they would be asked for was not known.
        if block.magnitudes:
            return block.magnitudes[part]
        vectors = x[block.start : block.stop] if side == "left" else x[:, block.start : block.stop]
        return np.abs(scale(layout(vectors, part, side), side, self.setting.workers)[0].data)

    def _round_and_test(
        self,
        left: Block,
        right: Block,
        part: int,
        value: Joined,
        bound: NDArray[np.float64],
        size: Magnitudes | None,
        mode: int,
    ) -> None:
        """Round, test and store one real part of a tile, its rows shared among the workers."""
        from prismm.cpu.kernels.round_and_test import round_and_test

        target = real_parts(self.out[left.start : left.stop, right.start : right.stop])[part]
        low = value.low if value.low is not None else _NOTHING
        least = size.size * size.down if size is not None and self.mode == MAGNITUDE else _NOTHING

        def task(rows: slice) -> NDArray[np.int32]:
            out64, out32 = _targets(target[rows])
            failed = np.empty(target[rows].size if mode != RAW else 0, np.int32)
            count = round_and_test(
                for_kernels(value.high[rows]), *(for_kernels(_rows(x, rows)) for x in (low, bound, least)),
                left.units.exponent[rows], right.units.exponent, mode, self.slack, self.job.result.precision,
                out64, out32, failed,
            )  # fmt: skip
            return failed[:count]

        self._spread(part, left, right, task)
        if self.mode == RAW and value.lost is not None:
            lost = value.lost
            exponent = left.units.exponent[lost.i] + right.units.exponent[lost.j] - lost.lift
            rounded = np.empty((1, lost.i.size), self.out.real.dtype)
            round_and_test(
                lost.high[None], lost.low[None], _NOTHING, _NOTHING, np.zeros(1, np.int64), exponent, RAW, self.slack,
                self.job.result.precision, *_targets(rounded), np.empty(0, np.int32),
            )  # fmt: skip
            target[lost.i, lost.j] = rounded[0]

    def _round_and_test_sum(
        self,
        left: Block,
        right: Block,
        joined: list[Joined],
        bounds: list[NDArray[np.float64]],
        sizes: list[Magnitudes | None],
        tested: bool,
    ) -> None:
        """alpha·X + beta·C for one tile; tested: whether there are bounds."""
        from prismm.cpu.kernels.round_and_test import round_and_test_sum

        epilogue, job = self.job.epilogue, self.job
        assert epilogue is not None
        place = (slice(left.start, left.stop), slice(right.start, right.stop))
        least = [s.size * s.down if s is not None else _NOTHING for s in sizes]
        # Only the least of both magnitudes need hold; where one is missing, neither is used.
        least = least if all(x.size for x in least) else [_NOTHING] * self.parts
        with_low = any(value.low is not None for value in joined)
        lows = [
            (value.low if value.low is not None else np.zeros(value.high.shape)) if with_low else _NOTHING
            for value in joined
        ]
        nothing = np.zeros((left.stop - left.start, right.stop - right.start))
        adds = [nothing, nothing]
        if epilogue.c is not None:
            adds = [for_kernels(x) for x in real_parts(epilogue.c[place])] * (2 if self.parts == 1 else 1)
        # Less by 2^-40: products by rounded factors must stay lower bounds.
        weights = np.array([finite_abs(epilogue.alpha), finite_abs(epilogue.beta)]) * (1.0 - 2.0**-40)
        for part, target in enumerate(real_parts(self.out[place])):
            factors = epilogue.factors(part, self.parts)

            def task(
                rows: slice, target: NDArray[Any] = target, factors: NDArray[np.float64] = factors
            ) -> NDArray[np.int32]:
                out64, out32 = _targets(target[rows])
                failed = np.empty(target[rows].size, np.int32)
                operands = []
                for p in (0, self.parts - 1):
                    operands += [joined[p].high[rows], *(_rows(x, rows) for x in (lows[p], bounds[p], least[p]))]
                count = round_and_test_sum(
                    *(for_kernels(x) for x in operands), left.units.exponent[rows], right.units.exponent,
                    adds[0][rows], adds[1][rows], factors, weights, self.mode, self.slack, job.result.precision,
                    out64, out32, failed,
                )  # fmt: skip
                if self.mode != RAW:
                    return failed[:count]
                return self._round_sums(left, right, joined, adds, factors, rows, target[rows], failed[:count], tested)

            self._spread(part, left, right, task)

    def _round_sums(
        self,
        left: Block,
        right: Block,
        joined: list[Joined],
        adds: list[NDArray[np.float64]],
        factors: NDArray[np.float64],
        rows: slice,
        target: NDArray[Any],
        listed: NDArray[np.int32],
        tested: bool,
    ) -> NDArray[np.int32]:
        """Round the sums that are listed of some rows of a tile; returns those that may disagree about infinity."""
        from prismm.cpu.exact_sums import exact_sums

        i, j = np.divmod(listed.astype(np.int64), target.shape[1])
        of_tile = i + rows.start
        addends = [x[of_tile, j] for x in adds[: self.parts]]
        # C's infinities and NaNs are patched afterwards.
        finite = np.all([np.isfinite(x) for x in addends], axis=0)
        i, j, of_tile, listed = i[finite], j[finite], of_tile[finite], listed[finite]
        addends = [x[finite] for x in addends]
        exponent = left.units.exponent[of_tile] + right.units.exponent[j]
        sums = exact_sums(joined, of_tile, j, exponent, addends, factors, self.job.result)
        target[i, j] = sums
        return listed if tested else listed[np.abs(sums) >= 2.0 ** (self.job.result.maxexp - 4)]

    def _spread(self, part: int, left: Block, right: Block, task: Any) -> None:
        """task(rows) over a tile; what it lists is noted as uncertified."""
        m, n = left.stop - left.start, right.stop - right.start
        step = max(1, _TILE // max(1, n))
        ranges = [slice(i, min(m, i + step)) for i in range(0, m, step)]
        found: list[Any] = [None] * len(ranges)

        def one(index: int) -> None:
            found[index] = task(ranges[index])

        threads.spread(one, list(range(len(ranges))), self.setting.workers)
        for rows, failed in zip(ranges, found, strict=True):
            if failed.size:
                i, j = np.divmod(failed.astype(np.int64), n)
                self.uncertified.append((part, i + (left.start + rows.start), j + right.start))


_NOTHING = np.empty((0, 0))


def _rows(x: NDArray[np.float64], rows: slice) -> NDArray[np.float64]:
    return x[rows] if x.size else x


def _targets(target: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    if target.dtype == np.float64:
        return target, np.empty((0, 0), np.float32)
    return _NOTHING, target


def multiply(
    scheme: Composite,
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    job: Job,
    engine: Any,
    left: SplitOperand | None = None,
    right: SplitOperand | None = None,
) -> Outcome:
    """out = a @ b (or the epilogue's sum) through a composite scheme, up to the job's target.

    a (m, k) and b (k, n): real or both complex, of any of the package's types; out (m, n). left, right: operands that
    `split_operand` split for this scheme, result type and engine.
    """
    from prismm.core.bounds import RoundedBound
    from prismm.core.specials import patch, patch_addend
    from prismm.cpu.bounds import CompositeBound
    from prismm.cpu.repair import repair

    outcome = Outcome()
    raw = job.target is None or job.target.kind == "fast"
    further = raw and job.epilogue is not None and not job.epilogue.trivial
    setting = Setting(job.result, job.workers, job.workspace_bytes, engine, job.workspace, further)
    flow = Flow(scheme, a, b, out, job, setting, outcome)
    rows, columns = flow.run(left, right)
    start = time.perf_counter()
    outside = rows.nonfinite[:, None] | columns.nonfinite[None, :]
    masks, special = patch_addend(out, job.epilogue, outside)
    special += patch(a, b, out, rows.nonfinite, columns.nonfinite, job.epilogue)
    outcome.count("special", special)
    entries = []
    for part in range(flow.parts):
        mine = [(i, j) for p, i, j in flow.uncertified if p == part]
        if mine:
            failed = Entries(part, np.concatenate([x[0] for x in mine]), np.concatenate([x[1] for x in mine]))
            entries.append(failed.keep(~(outside | masks[part])[failed.i, failed.j]))
    others = out.size * flow.parts - special - sum(e.i.size for e in entries)
    outcome.count("value" if flow.mode == RAW else "certified", others)
    for failed in entries:
        if flow.mode == RAW:
            _agreeing(a, b, out, failed, job, outcome, flow.plain)
        else:
            repair(a, b, out, failed, job, outcome)
    outcome.time("repair", time.perf_counter() - start)
    if flow.mode == ROUNDING:
        outcome.bound = RoundedBound(job.result)
    else:
        epilogue = None if flow.plain else job.epilogue
        outcome.bound = CompositeBound(job.result, a, b, rows, columns, flow.pieces, epilogue)
    return outcome


def _agreeing(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], failed: Entries, job: Job, outcome: Outcome, plain: bool
) -> None:
    """Set entries to the exact ones, rounded; those of a sum only where they disagree with it about infinity."""
    from prismm.cpu.repair import exactly

    if plain:
        exactly(a, b, out, failed, job, outcome)
        return
    target = real_parts(out)[failed.part]
    of_scheme = target[failed.i, failed.j]
    exactly(a, b, out, failed, job, Outcome())
    exact = target[failed.i, failed.j]
    infinite = np.isinf(exact)
    agree = (infinite == np.isinf(of_scheme)) & (~infinite | (exact == of_scheme))
    target[failed.i[agree], failed.j[agree]] = of_scheme[agree]
    outcome.count("value", int(agree.sum()))
    outcome.count("exact", int((~agree).sum()))
