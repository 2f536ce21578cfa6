"""Many uncertified entries together: their rows and columns are multiplied again, by the method that is expected to be
fastest.

By up to 49 moduli (`many_product`): row i of A becomes A' = RN(2^s·a), with as many bits as there are from the first of
its largest element to the last that is not zero anywhere, or `left` bits where these are more; columns likewise with
`right`. All |C'| <= k·2^(left + right) are found exactly. Where a row and a column keep all their bits, C' is the exact
product: its rounding is proved, ties and zeros included. Elsewhere the bound of `Residues` and the rounding test
decide. What A' and B' leave out of the product may be added in float64 (`kernels.residuals`): it decides near ties of
terms that are far apart.

In two or three times float64's precision (`kernels.expansions`): for rows and columns of any width, where not all of
the terms cancels.

In float64, for results of float32: by BLAS, off by no more than k·u·‖a‖‖b‖ in any order of summation, u = 2^-53
(Jeannerod and Rump 2013).

Which way follows from the rows' and columns' extents, and from a sample of the entries: exactly how far each is from
the next number that another rounding begins at. What no way is expected to decide in less time is recomputed one by
one. The value of an entry is RN(exact) whatever is chosen.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.many_moduli import MOST_MODULI
from prismm.core.outcome import Job, Outcome, for_kernels, real_parts
from prismm.cpu import many_product, structure
from prismm.cpu.balance import balanced
from prismm.cpu.costs import (
    CORRECTION_SECONDS,
    EXACT_ENTRY_SECONDS,
    EXACT_SECONDS,
    MANY_JOIN_SECONDS,
    PAIR_SECONDS,
    expansion_seconds,
    native_rates,
    rates_of,
)
from prismm.cpu.engines.integer import choose
from prismm.cpu.entries import used_of
from prismm.cpu.entry_sample import EntrySample
from prismm.cpu.many_product import Addends, ByteEngine, Extents, takes_bytes
from prismm.cpu.sums import Sum
from prismm.cpu.ways import Expansion, InFloat64, Moduli, Way, shared_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.cpu.entries import Entries

FEW_SECONDS, BLOCK_SECONDS = 1e-3, 1.5e-8
"""Seconds below which entries are recomputed one by one; and seconds to build a block and to choose a method, per
element of the block's operands.
"""

_SAVED_BITS = 24
"""Balanced operands are taken if they save as many bits as three moduli hold."""

_PANEL, _LEAST_PANEL = 1024, 256
"""Rows of a product in float64 that are made at a time: where memory allows, and at least."""

_CORRECTED = (8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 25, 28, 32, 36)
"""Numbers of moduli that are considered with a correction."""


@dataclass(frozen=True)
class Choice:
    """How the entries of a block are recomputed.

    Attributes:
        way: the method that is expected to finish first; None if all entries are recomputed one by one.
        pairs: whether entries that are recomputed one by one are tried in double-double first.
        seconds: predicted time for all entries.
    """

    way: Way | None
    pairs: bool
    seconds: float


@dataclass(frozen=True)
class Block:
    """The real product of the rows and columns that hold uncertified entries.

    An inner index is left out if all elements of either operand are zero there. The others are `balanced` if that saves
    bits.

    Attributes:
        r, c: row and column of each entry in this product.
        left, right: the operands, float64.
        rows, columns: their extents.
        summands: the factors of each entry and of the numbers that are added to it; empty for a product alone.
        numbers: these, one array for each factor but the first, a number for each entry.
        stands_for: m, k and n of a product of which this one is a sample; None if it is the product itself.
    """

    r: NDArray[np.int64]
    c: NDArray[np.int64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rows: Extents
    columns: Extents
    summands: tuple[float, ...] = ()
    numbers: tuple[NDArray[np.float64], ...] = ()
    stands_for: tuple[int, int, int] | None = None

    @staticmethod
    def of(
        a: NDArray[Any],
        b: NDArray[Any],
        entries: Entries,
        summed: Sum | None = None,
        memory: float = math.inf,
    ) -> Block | None:
        """Of the entries of one real part: of AB, or of a sum. None where the sum's operands do not fit.

        memory: bytes that balanced operands, or those of two products, take at most.
        """
        summed = Sum(entries.part) if summed is None else summed
        (i, r), (j, c) = used_of(entries.i, a.shape[0]), used_of(entries.j, b.shape[1])
        used = a if i.size == a.shape[0] else a[i], b if j.size == b.shape[1] else b[:, j]
        if (operands := summed.operands(*used, memory)) is None:
            return None
        left, right = operands
        added = summed.summands, summed.numbers
        alive = (left != 0).any(axis=0) & (right != 0).any(axis=1)
        if not alive.all():
            left, right = left[:, alive], right[alive]
        given = for_kernels(left), for_kernels(right)
        block = Block(r, c, *given, Extents.of(given[0], rows=True), Extents.of(given[1], rows=False), *added)
        # Balancing allocates two operands, and a copy of the right one to check it.
        fits = given[0].nbytes + 2 * given[1].nbytes <= memory
        if block.k == 0 or not fits or (even := balanced(*given)) is None:
            return block
        other = Block(r, c, *even, Extents.of(even[0], rows=True), Extents.of(even[1], rows=False), *added)
        return other if other._mean_bits() <= block._mean_bits() - _SAVED_BITS else block

    def _mean_bits(self) -> float:
        """Bits that make a row exact, and a column, on average."""
        return float(self.rows.bits.mean() + self.columns.bits.mean())

    @property
    def k(self) -> int:
        """The inner dimension."""
        return int(self.left.shape[1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, k and n of the product whose seconds are predicted."""
        return self.stands_for or (self.left.shape[0], self.k, self.right.shape[1])

    @property
    def entries(self) -> float:
        """Of the whole product."""
        m, _, n = self.shape
        return float(m) * n

    def seconds(self, way: Way, engine: ByteEngine | None, workers: int) -> float:
        """Expected of a way for the whole product, but for what a correction takes."""
        m, k, n = self.shape
        if isinstance(way, Expansion):
            return self.entries * (k * expansion_seconds(way.parts) + MANY_JOIN_SECONDS) / workers
        if isinstance(way, InFloat64):
            return self.entries * (k / native_rates().float64 + MANY_JOIN_SECONDS) / workers
        assert engine is not None
        rates = rates_of(engine.name)
        split = float(m + n) * k * way.moduli / rates.split
        join = self.entries * (way.moduli / rates.join + MANY_JOIN_SECONDS * (3 if way.corrected else 1))
        return (self.entries * k * way.moduli / rates.residue + split + join) / workers

    def choose(self, job: Job, engine: ByteEngine | None, tried: tuple[Way, ...], count: float | None = None) -> Choice:
        """By a sample of the entries, of which there are `count`: all of the block's if that is not given."""
        sample = EntrySample.of(self, job)
        count = self.r.size if count is None else count
        # One by one, double-double comes first, and what that leaves is summed exactly.
        exact = count * (self.shape[1] * EXACT_SECONDS + EXACT_ENTRY_SECONDS) / job.workers
        pairs = count * self.shape[1] * PAIR_SECONDS / job.workers
        pairs += (1.0 - sample.share(Expansion(2))[0]) * exact
        best, found = min(pairs, exact), None
        rest = best
        narrow: list[Way] = [InFloat64()] if self.fits_float64(job) else []
        expansions: list[Way] = [*narrow, Expansion(2), Expansion(3)]
        systems = self._systems(tried) if engine is not None else []
        for ways in (expansions, systems):
            for way in ways:
                seconds = self.seconds(way, engine, job.workers)
                # Too dear even if nothing were left over: the sample need not be asked.
                if way in tried or seconds >= best:
                    continue
                correction = self.entries * CORRECTION_SECONDS / job.workers
                share, terms = sample.share(way, (best - seconds) / correction)
                seconds += (1.0 - share) * rest + terms * correction
                if seconds < best:
                    best, found = seconds, way
            # Moduli fail mostly in whole rows and columns that are too wide. Expansions may recompute these later.
            rest = best
        return Choice(found, pairs < exact, best)

    def _systems(self, tried: tuple[Way, ...]) -> list[Way]:
        """Systems of moduli, more of them than those before, up to one that makes all exact if any does."""
        rows, columns = int(self.rows.bits.max()), int(self.columns.bits.max())
        found: list[Way] = []
        # As many as those that left these entries would leave them again; every try takes a longer step.
        least = max((way.moduli for way in tried if isinstance(way, Moduli)), default=3) + max(len(tried) - 1, 0)
        for moduli in range(least + 1, MOST_MODULI + 1):
            way = shared_bits(moduli, self.k, rows, columns)
            found.append(way)
            if way.left == rows and way.right == columns:
                break
        if not any(isinstance(way, Moduli) and way.corrected for way in tried):
            for moduli in (x for x in _CORRECTED if x < least + len(found)):
                even = replace(shared_bits(moduli, self.k, rows, columns), corrected=True)
                found += [even, *self._uneven(even)]
        return found

    def _uneven(self, even: Moduli) -> list[Moduli]:
        """Systems of as many bits, of which the narrowest rows, or columns, get no more than make them exact. Where
        others are wider for the sake of a few far terms, corrections serve these.
        """
        bits = even.left + even.right
        found = []
        for x, most, narrow in ((self.rows, self.columns, True), (self.columns, self.rows, False)):
            least = int(x.bits[x.norm1 > 0.0].min(initial=bits))
            rest = min(bits - least, int(most.bits.max()))
            left, right = (least, rest) if narrow else (rest, least)
            if 0 < least < int(x.bits.max()) and rest > 0 and (left, right) != (even.left, even.right):
                found.append(replace(even, left=left, right=right))
        return found

    def multiply(
        self, way: Way, kind: np.dtype[Any], job: Job, engine: ByteEngine | None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The product, correctly rounded, at the entries; where that is not proved, or not wanted."""
        if isinstance(way, Expansion):
            return self._expanded(way.parts, kind, job)
        if isinstance(way, InFloat64):
            return self._in_float64(job)
        assert engine is not None
        system = many_product.System.of(way.moduli, way.left, way.right, corrected=way.corrected)
        operands = self.left, self.right, self.rows, self.columns
        return many_product.multiply(*operands, system, kind, job, engine, self._addends())

    def fits_float64(self, job: Job) -> bool:
        """Whether results are of float32, and norms, products of elements, and sums far from the ends of float64."""
        if job.result.precision != 24:
            return False
        tops = [x.top[x.norm1 > 0.0] for x in (self.rows, self.columns)]
        if not all(x.size for x in tops):
            return False
        # Norms and their products are normal numbers, and sums of 2^63 products below 2^944.
        moderate = all(int(x.min()) >= -440 and int(x.max()) <= 440 for x in tops)
        return moderate and int(self.rows.low.min()) + int(self.columns.low.min()) >= -960

    def _addends(self) -> Addends:
        """The numbers as matrices, which hold 0 where the block has no entry."""
        numbers = np.zeros((len(self.numbers), self.left.shape[0], self.right.shape[1]))
        for matrix, number in zip(numbers, self.numbers, strict=True):
            matrix[self.r, self.c] = number
        return Addends(np.array(self.summands), numbers)

    def _in_float64(self, job: Job) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        from prismm.cpu.kernels.expansions import rounded_product

        m, n = self.left.shape[0], self.right.shape[1]
        out, failed, addends = np.empty((m, n), np.float32), np.zeros((m, n), np.bool_), self._addends()
        # Sums of squares are good to k·u; two roundings more for the test's own.
        row_norm, column_norm = (
            np.ldexp(np.sqrt(x.norm2), x.top) * (1.0 + 2.0**-20) for x in (self.rows, self.columns)
        )
        factor = (self.k + 2) * 2.0**-53 * (1.0 + 2.0**-20)
        # Lower panels would read the right operand too often.
        height = max(min(m, _LEAST_PANEL), min(m, _PANEL, job.workspace_bytes // (8 * max(n, 1))))
        step = -(-height // (2 * job.workers))
        for first in range(0, m, height):
            product = np.matmul(self.left[first : first + height], self.right)

            def task(i0: int, first: int = first, product: NDArray[np.float64] = product) -> None:
                here = slice(first + i0, min(first + i0 + step, first + len(product)))
                listed = np.empty(out[here].size, np.int32)
                count = rounded_product(
                    product[i0 : i0 + step], row_norm[here], column_norm, factor,
                    *addends.arguments(here, slice(None)), out[here], listed,
                )  # fmt: skip
                many_product.flag(count, listed, failed[here])

            threads.spread(task, list(range(0, len(product), step)), job.workers)
        return out, failed

    def _expanded(self, parts: int, kind: np.dtype[Any], job: Job) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        from prismm.cpu.kernels.expansions import expanded_product

        m, n = self.left.shape[0], self.right.shape[1]
        out, failed = np.empty((m, n), kind), np.zeros((m, n), np.bool_)
        wanted = np.zeros((m, n), np.uint8)
        wanted[self.r, self.c] = 1
        precision, addends = 53 if kind == np.float64 else 24, self._addends()
        # Two pieces a worker even out rows without a wanted entry.
        step = max(1, min(256, -(-m // (2 * job.workers))))

        def task(i0: int) -> None:
            here = slice(i0, min(m, i0 + step))
            piece = out[here]
            out64 = piece if kind == np.float64 else np.empty((0, 0))
            out32 = piece if kind == np.float32 else np.empty((0, 0), np.float32)
            listed = np.empty(piece.size, np.int32)
            count = expanded_product(
                self.left[here], self.right, self.rows.top[here], self.columns.top, wanted[here], parts,
                *addends.arguments(here, slice(None)), precision, out64, out32, listed,
            )  # fmt: skip
            many_product.flag(count, listed, failed[here])

        threads.spread(task, list(range(0, m, step)), job.workers)
        return out, failed


def escalate(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome,
    *, alone: bool = False,
) -> tuple[Entries, bool]:  # fmt: skip
    """Set the entries that some way proves, as long as one is expected to pay; returns those that are left, and whether
    double-double is worth trying on each of them.

    a, b: the operands; entries: of a whole product (no blocks). alone: double-double has left them, so exact sums are
    what a way has to be faster than.
    """
    if _one_by_one(entries, a.shape[1], job.workers, alone) < FEW_SECONDS:
        return entries, True
    summed = Sum.of(out, entries, job)
    left = [
        _escalate_part(a, b, out, entries.keep(part), job, outcome, summed.keep(part), alone)
        for part in structure.parts(a, b, entries.i, entries.j)
    ]
    i, j = (np.concatenate([getattr(each, x) for each, _ in left]) for x in ("i", "j"))
    return replace(entries, i=i, j=j), any(pairs for _, pairs in left)


def _escalate_part(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome, summed: Sum,
    alone: bool,
) -> tuple[Entries, bool]:  # fmt: skip
    """`escalate` for entries whose rows and columns are multiplied together."""
    target = real_parts(out)[entries.part]
    chosen = choose("cpu")
    engine = chosen if takes_bytes(chosen) else None
    tried: tuple[Way, ...] = ()
    pairs = True
    while _worth_a_block(entries, a.shape[1], job.workers, alone):
        start = time.perf_counter()
        block = Block.of(a, b, entries, summed, job.workspace_bytes)
        if block is None or block.k == 0:
            break
        choice = block.choose(job, engine, tried)
        way, pairs = choice.way, choice.pairs
        if way is None:
            break
        # The block's own operands count as workspace.
        pairs_of = ((block.left, a), (block.right, b))
        copied = sum(x.nbytes for x, given in pairs_of if not np.may_share_memory(x, given))
        room_left = replace(job, workspace_bytes=max(job.workspace_bytes - copied, 0))
        value, failed = block.multiply(way, target.dtype, room_left, engine)
        if block.r.size == target.size:
            # Every entry is one of these.
            target[...] = value
            still = failed[block.r, block.c] if failed.any() else np.zeros(block.r.size, np.bool_)
        else:
            place = block.r * value.shape[1] + block.c
            target[entries.place] = value.reshape(-1)[place]
            still = failed.reshape(-1)[place]
        if isinstance(way, Moduli):
            outcome.products += way.moduli
        outcome.count(way.path, int(still.size - np.count_nonzero(still)))
        outcome.time(way.path, time.perf_counter() - start)
        entries, tried = entries.keep(still), (*tried, way)
        summed = summed.keep(still)
    return entries, pairs


def _one_by_one(entries: Entries, k: int, workers: int, exact: bool) -> float:
    """Seconds for all entries, one after the other, in double-double or exactly."""
    each = k * EXACT_SECONDS + EXACT_ENTRY_SECONDS if exact else k * PAIR_SECONDS
    return entries.i.size * each / workers


def _worth_a_block(entries: Entries, k: int, workers: int, exact: bool) -> bool:
    """Whether to recompute entries one by one takes longer than to build a block and choose a method."""
    seconds = _one_by_one(entries, k, workers, exact)
    if entries.i.size == 0 or seconds < FEW_SECONDS:
        return False
    # No more rows and columns are met than there are numbers up to the largest: often that is enough to know.
    if seconds >= (int(entries.i.max()) + int(entries.j.max()) + 2) * k * BLOCK_SECONDS:
        return True
    used = np.count_nonzero(np.bincount(entries.i)) + np.count_nonzero(np.bincount(entries.j))
    return bool(seconds >= used * k * BLOCK_SECONDS)
