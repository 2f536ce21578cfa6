"""Many uncertified entries at once: their rows and columns multiplied again, exactly or nearly so, by up to 49 moduli.

Row i of A becomes A' = RN(2^s·a), with as many bits as it has from its largest element's first to the last that is not
zero anywhere, or `left` bits where it has more; columns likewise with `right`. All |C'| <= k·2^(left + right) are found
exactly. Where a row and a column keep all their bits, C' is the exact product: its rounding is proved, ties and zeros
included. Elsewhere the bound of `Residues` and the rounding test decide.

How many moduli, and whether at all, follows from these extents and from the exact values of a sample of the entries,
which say what systems would prove them. The value of an entry is RN(exact) whatever is chosen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.many_moduli import MOST_BITS, MOST_MODULI, room
from prismm.core.outcome import Job, Outcome, for_kernels, real_parts
from prismm.core.specials import layout
from prismm.cpu import many_product
from prismm.cpu.costs import DOUBLE_DOUBLE_SECONDS, EXACT_SECONDS, MANY_JOIN_SECONDS, rates_of
from prismm.cpu.engines.integer import choose
from prismm.cpu.many_product import ByteEngine, Extents, takes_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.cpu.repair import Entries

FEW_SECONDS = 1e-3
"""Repairs that take less are not worth a look."""

SAMPLE = 64


@dataclass(frozen=True)
class Choice:
    """So many moduli, with bits for rows and for columns; the share of entries that they are expected to settle."""

    moduli: int
    left: int
    right: int
    share: float = 0.0


def shared_bits(moduli: int, k: int, rows: int, columns: int) -> Choice:
    """The bits of the system, given to rows and columns that want so many: all, or what leaves no side less than the
    other for want.
    """
    rows, columns = min(rows, MOST_BITS), min(columns, MOST_BITS)
    total = max(2, room(moduli) - max(k - 1, 0).bit_length())
    if rows + columns <= total:
        return Choice(moduli, rows, columns)
    left = min(rows, max(total // 2, total - columns))
    return Choice(moduli, left, total - left)


@dataclass(frozen=True)
class Block:
    """The real product of the rows and columns of uncertified entries, without inner indices at which all elements of
    either are zero.
    """

    i: NDArray[np.int64]
    j: NDArray[np.int64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rows: Extents
    columns: Extents

    @staticmethod
    def of(a: NDArray[Any], b: NDArray[Any], entries: Entries) -> Block:
        """Of the entries of one real part."""
        i, j = np.unique(entries.i), np.unique(entries.j)
        left = layout(a if i.size == a.shape[0] else a[i], entries.part, "left")
        right = layout(b if j.size == b.shape[1] else b[:, j], entries.part, "right")
        alive = (left != 0).any(axis=0) & (right != 0).any(axis=1)
        if not alive.all():
            left, right = left[:, alive], right[alive]
        left, right = for_kernels(left), for_kernels(right)
        return Block(i, j, left, right, Extents.of(left, rows=True), Extents.of(right, rows=False))

    @property
    def k(self) -> int:
        """The inner dimension."""
        return int(self.left.shape[1])

    def seconds(self, moduli: int, engine: ByteEngine, workers: int) -> float:
        """Expected for the product by so many moduli."""
        rates, (m, k), n = rates_of(engine.name), self.left.shape, self.right.shape[1]
        split = (m + n) * k * moduli / rates.split
        join = m * n * (moduli / rates.join + MANY_JOIN_SECONDS)
        return float(m * n * k * moduli / rates.residue + split + join) / workers

    def choose(self, entries: Entries, job: Job, engine: ByteEngine) -> tuple[Choice | None, bool]:
        """The moduli that promise to finish the entries soonest, if any; and whether double-double is worth trying on
        what is left.
        """
        from prismm.cpu.kernels.dot import double_double
        from prismm.cpu.kernels.exact import exact_dots

        count, precision = entries.i.size, job.result.precision
        chosen = np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64)
        r, c = np.searchsorted(self.i, entries.i[chosen]), np.searchsorted(self.j, entries.j[chosen])
        x, y, index = self.left[r], np.ascontiguousarray(self.right[:, c].T), np.arange(chosen.size)
        value, undecided = np.empty(chosen.size), np.empty(chosen.size, np.uint8)
        double_double(x, y, index, index, precision, value, undecided)
        exact_dots(x, y, index, index, np.ones(1), np.empty((chosen.size, 0)), np.empty(0), precision, value)
        per_term = count * max(self.k, 1) / job.workers
        by_pairs = per_term * (DOUBLE_DOUBLE_SECONDS + float(undecided.mean()) * EXACT_SECONDS)
        otherwise = min(by_pairs, per_term * EXACT_SECONDS)
        best, found = otherwise, None
        exponent = np.where(np.isfinite(value), np.frexp(value)[1], job.result.maxexp)
        ulp = np.ldexp(1.0, np.maximum(exponent - precision, job.result.subnormal_exponent))
        for choice in self._choices():
            seconds = self.seconds(choice.moduli, engine, job.workers)
            if seconds >= best:
                break
            share = float(self._settled(choice, r, c, value, ulp).mean())
            seconds += (1.0 - share) * otherwise
            if seconds < best:
                best, found = seconds, Choice(choice.moduli, choice.left, choice.right, share)
        return found, by_pairs < per_term * EXACT_SECONDS

    def _choices(self) -> list[Choice]:
        """Numbers of moduli, ascending; the last one makes all exact if any does."""
        rows, columns = int(self.rows.bits.max()), int(self.columns.bits.max())
        found = []
        for moduli in range(4, MOST_MODULI + 1):
            choice = shared_bits(moduli, self.k, rows, columns)
            found.append(choice)
            if choice.left == rows and choice.right == columns:
                break
        return found

    def _settled(self, choice: Choice, r: Any, c: Any, value: Any, ulp: Any) -> NDArray[np.float64]:
        """Of each entry (r, c): how likely it is settled; certain where it is exact."""
        wide_rows, wide_columns = self.rows.bits[r] > choice.left, self.columns.bits[c] > choice.right
        p, q = np.minimum(self.rows.bits[r], choice.left), np.minimum(self.columns.bits[c], choice.right)
        delta = (self.k / 12.0) ** 0.5
        bound = wide_rows * delta * np.sqrt(self.columns.norm2[c]) * np.ldexp(1.0, q)
        bound += wide_columns * delta * np.sqrt(self.rows.norm2[r]) * np.ldexp(1.0, p)
        with np.errstate(all="ignore"):
            bound = np.ldexp(bound, self.rows.top[r] - p + self.columns.top[c] - q)
            open_share = np.where(bound > 0.0, np.minimum(1.0, np.nan_to_num(2.0 * bound / ulp, nan=1.0)), 0.0)
        return 1.0 - np.where((value == 0.0) & (bound > 0.0), 1.0, open_share)


def by_many_moduli(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], entries: Entries, job: Job, outcome: Outcome
) -> tuple[Entries, bool]:
    """Set the entries that some system of moduli proves, where that is expected to be the fastest; returns those that
    are left, and whether double-double is worth trying on them.

    a, b: the operands; entries: of a whole product (no blocks) whose sum is AB itself.
    """
    if entries.i.size * a.shape[1] * DOUBLE_DOUBLE_SECONDS / job.workers < FEW_SECONDS:
        return entries, True
    start = time.perf_counter()
    engine = choose("cpu")
    if not takes_bytes(engine):
        return entries, True
    block = Block.of(a, b, entries)
    if block.k == 0:
        return entries, True
    choice, pairs = block.choose(entries, job, engine)
    if choice is None:
        return entries, pairs
    target = real_parts(out)[entries.part]
    system = many_product.System.of(choice.moduli, choice.left, choice.right)
    value, failed = many_product.multiply(
        block.left, block.right, block.rows, block.columns, system, target.dtype, job, engine
    )
    r, c = np.searchsorted(block.i, entries.i), np.searchsorted(block.j, entries.j)
    target[entries.place] = value[r, c]
    still = failed[r, c]
    outcome.products += choice.moduli
    outcome.count("more moduli", int(still.size - np.count_nonzero(still)))
    outcome.time("more moduli", time.perf_counter() - start)
    return entries.keep(still), pairs
