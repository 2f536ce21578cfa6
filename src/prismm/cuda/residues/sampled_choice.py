"""How a GPU repairs what the joins leave uncertified, from a sample of entries, as `kernels.many_choice` decides it.

The kernel counts votes of entries and compares seconds of `recompute.SECONDS`. This is its twin on the host, for
predictions alone (`forecast`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.core.many_moduli import MOST_BITS, room
from prismm.cuda.residues.recompute import MANY_OF_ALL, SECONDS, SYSTEMS
from prismm.cuda.residues.sampled import pair_sums, to_next_rounding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.cuda.residues.sampled import Floats, Integers, Side

PAIRED, EXACTLY, BY_SPLIT, BY_PRODUCT, BY_JOIN, START, MEASURED = SECONDS

VOTERS = 1024
"""Entries that vote. The kernel asks 128, whose votes these expect."""

SPARE, LANES, WELL_ROUNDED, SAMPLES, FEW = 6, 512, 40, 128, 3
"""Bits beyond half an ulp that a method must have of an entry, lanes of a sum, and bits of a side from which on it gets
those that sums do not need: as the kernels have them.
"""

_AT_ONCE = 1 << 18
"""Products of a sample that are added up at once: what caches hold."""

LEAST_SUM = 1e-150
"""Smaller sums, in units of rows and columns, say nothing of what sums in units of their own products are."""

NEVER = 1 << 20
"""Bits of entries that are exact."""

APART, BALANCES = 16, 4
"""The most inner indices that are left apart, and ways to balance operands: as `kernels.balance` has them."""


@dataclass(frozen=True)
class Work:
    """A product, of which entries are made again.

    Attributes:
        uncertified: entries that are left.
        entries: real entries of the product.
        elements: real elements of both operands, of all terms.
        terms: of an entry.
        precision: bits of the result.
        parts: of an entry.
    """

    uncertified: float
    entries: float
    elements: float
    terms: int
    precision: int
    parts: int = 1

    @property
    def many(self) -> bool:
        """Whether so many entries are left that more moduli may be worth it."""
        return self.uncertified > self.entries / MANY_OF_ALL

    @property
    def systems(self) -> tuple[int, ...]:
        """Numbers of moduli."""
        return SYSTEMS[self.precision]

    @property
    def measuring(self) -> float:
        """Seconds in which operands are measured anew, for each part."""
        return self.elements * self.parts * MEASURED

    def again(self, moduli: int) -> float:
        """Seconds of all entries by so many moduli."""
        each = self.entries * (self.terms * BY_PRODUCT + BY_JOIN) + self.elements * BY_SPLIT
        return moduli * each + START

    def alone(self, share: Floats | float, undecided: Floats | float) -> Floats | float:
        """Seconds in which a share of the uncertified entries is summed one by one in twice float64's precision, and
        another share of them exactly as well.
        """
        return self.uncertified * self.terms * (PAIRED * share + EXACTLY * undecided)


@dataclass(frozen=True)
class Choice:
    """What is expected to be done.

    Attributes:
        runs: numbers of moduli, one after the other.
        measured: whether operands are measured anew.
        balanced: whether they are balanced then.
        left: share of the uncertified entries that remain.
        undecided: share of these that twice float64's precision does not decide, in units of their own products.
    """

    runs: tuple[int, ...]
    measured: bool
    balanced: bool
    left: float
    undecided: float


@dataclass(frozen=True)
class _Voters:
    """Entries of a sample.

    Attributes:
        rows, columns: of each.
        undecided: where twice float64's precision does not decide an entry.
        near: where the kernel takes the reason to be that something else is too near.
        tied: where that is so: no bits but all decide.
        need: bits of each side with which the kernel takes a system to decide the entry.
        size: exponent of the entry.
        hard: where it is not decided in units of its own products either, as far as sums in units of rows tell.
        deep: where no way to balance operands is expected to help (`kernels.balance.too_wide`).
    """

    rows: Integers
    columns: Integers
    undecided: NDArray[np.bool_]
    near: NDArray[np.bool_]
    tied: NDArray[np.bool_]
    need: Integers
    size: Integers
    hard: NDArray[np.bool_]
    deep: NDArray[np.bool_]

    def spare_bits(self, rooms: Integers) -> Integers:
        """(voters, systems): bits beyond half an ulp of each entry that systems of so much room have, half of it for
        each side.
        """
        bits: Integers = (rooms // 2)[None, :] - self.need[:, None] + SPARE
        return bits

    def votes_against(self, bits: Integers) -> tuple[Floats, Floats]:
        """Share of the entries of which the kernel expects that they are left, and that twice float64's precision does
        not decide them either.
        """
        left = (bits < SPARE) | (self.near[:, None] & (bits < NEVER))
        return left.mean(axis=0), (left & self.undecided[:, None]).mean(axis=0)

    def beyond(self, rooms: Integers) -> Floats:
        """Share of the entries that the kernel expects to need more than half of so much room, though no voter does
        (`kernels.many_choice._left`).
        """
        need = np.sort(self.need[~self.near])[::-1]
        top = need[: -(-need.size // 10)]
        if not top.size:
            return np.zeros(rooms.shape)
        top = need[need >= top[-1]]
        over = rooms // 2 - top[-1]
        tail = np.exp(-(over + 1) / max(float((top - top[-1]).mean()), 0.05))
        share: Floats = np.where(over >= 0, tail, 0.0) * (top.size / self.need.size)
        return share

    def left(self, bits: Integers) -> Floats:
        """Share of the entries that are left: of rests that are spread evenly one in 2^b is nearer than by b bits."""
        spare = np.where(self.tied[:, None] & (bits < NEVER), 0.0, np.clip(bits + 1.0, 0.0, 1000.0))
        share: Floats = np.exp2(-spare).mean(axis=0)
        return share


def choose(
    rows: Side, columns: Side, entries: tuple[Integers, Integers], work: Work, others: tuple[Floats, Floats]
) -> Choice:
    """By those of the sample's entries that are left, of which there is one at least.

    others: more rows, and columns as rows, whose extents count where operands are measured anew.
    """
    systems = work.systems
    rooms = np.array([room(moduli) - max(work.terms - 1, 0).bit_length() for moduli in systems])
    voters = _votes(rows, columns, entries, work.precision, int(rooms[-1]))
    undecided = float(voters.undecided.mean())
    hard = float(voters.hard.mean())
    if not work.many:
        return Choice((), False, False, 1.0, hard)
    again = np.array([work.again(moduli) for moduli in systems])
    near = float(voters.near.mean())
    more = 2 * (rooms // 2 + np.where(rooms // 2 >= WELL_ROUNDED, _spared_bits(rows, columns, work.terms) // 2, 0))
    beyond, ordinary = voters.beyond(more), voters.undecided[~voters.near]
    against, of_them = voters.votes_against(voters.spare_bits(more))
    against = np.maximum(against, beyond + near)
    of_them = np.maximum(of_them, beyond * (float(ordinary.mean()) if ordinary.size else 0.0) + near)
    takes = again + work.alone(against, of_them)
    best, found, balance = float(work.alone(1.0, undecided)), -1, -1
    share = 1.0
    if takes.min() < best:
        best, found = float(takes.min()), int(takes.argmin())
        share = float(of_them[found] / max(against[found], 1e-6))
    measured = best > work.measuring + again[-1] and 2 * voters.deep.sum() <= voters.deep.size
    extents: tuple[Extents, ...] = ()
    if measured:
        extents = tuple(Extents.of(x) for x in (rows.x, columns.x, *others))
        for x in range(BALANCES):
            bits = _spare_bits(extents, voters, x, rooms, work.precision)
            against, _ = voters.votes_against(bits)
            takes = again + work.measuring + work.alone(against, against)
            if takes.min() < best:
                best, found, balance, share = float(takes.min()), int(takes.argmin()), x, 1.0
    if found < 0:
        return Choice((), measured, False, 1.0, hard)
    still = share * hard / max(undecided, hard, 1e-9)
    bits = voters.spare_bits(more) if balance < 0 else _spare_bits(extents, voters, balance, rooms, work.precision)
    left = voters.left(bits)
    # Once more by the most moduli where that is expected to be worth it.
    if found < len(systems) - 1 and float(left[found]) * work.alone(1.0, share) >= again[-1]:
        return Choice((systems[found], systems[-1]), measured, balance >= 0, float(left[-1]), still)
    return Choice((systems[found],), measured, balance >= 0, float(left[found]), still)


def _spared_bits(rows: Side, columns: Side, terms: int) -> int:
    """`kernels.many_choice.spared_bits`, of the largest norms of a sample."""
    norm = int(min(rows.norm1.max(), columns.norm1.max()))
    above = (norm + (norm >> 20) + 1).bit_length() - rows.q
    return max(0, max(terms - 1, 0).bit_length() - max(above, 0))


def _deep(x: Floats, y: Floats, exponent: Integers, most: int) -> NDArray[np.bool_]:
    """Of rows and columns as rows, whether most inner indices need more than so many bits, from the largest term on."""
    both = (x != 0.0) & (y != 0.0)
    bits = exponent[:, None] - x.shape[1].bit_length() - Extents.of(x).low - Extents.of(y).low
    deep = (both & (bits > most)).sum(axis=1)
    found: NDArray[np.bool_] = (deep > APART) & (2 * deep > both.sum(axis=1))
    return found


@np.errstate(all="ignore")
def _votes(rows: Side, columns: Side, entries: tuple[Integers, Integers], precision: int, room_of_all: int) -> _Voters:
    """`kernels.many_choice._vote`."""
    chosen = np.linspace(0, entries[0].size - 1, min(VOTERS, entries[0].size)).astype(np.int64)
    i, j = entries[0][chosen], entries[1][chosen]
    x, y = np.ldexp(rows.x[i], rows.shift[i][:, None]), np.ldexp(columns.x[j], columns.shift[j][:, None])
    step = max(1, _AT_ONCE // x.shape[1])
    sums = [pair_sums(x[at : at + step], y[at : at + step]) for at in range(0, len(x), step)]
    h, low = (np.concatenate(some) for some in zip(*sums, strict=True))
    shift, exponent = rows.shift[i] + columns.shift[j], rows.exponent[i] + columns.exponent[j]
    distance, _ = to_next_rounding(h, low, -shift, precision)
    steps = 2 * (rows.x.shape[1] // LANES + 16)
    error = steps * steps * 2.0**-105 * rows.norm2[i] * columns.norm2[j] * 1.001
    in_units_of_row = (distance <= error) | (np.abs(h) <= 1e-100)
    least = -1022 if precision == 53 else -126
    # An entry of 0 counts as one of the least size.
    size = np.where(h == 0.0, -4000, np.frexp(h)[1] - 1)
    in_units = np.maximum(np.maximum(size - shift - exponent, least - exponent), -1022)
    norm = np.frexp(rows.norm1[i] + columns.norm1[j])[1] - 1
    ample = np.abs(h) > error * 4.0 * 2.0**precision
    near = in_units_of_row & ample
    odds = np.clip(np.frexp(h)[1] - np.frexp(error)[1] - precision - 2, 0, 60)
    # As in a sample of so many.
    each = SAMPLES / len(h)
    many = each * near.sum() > FEW + each * np.where(ample, np.exp2(-odds), 0.0).sum()
    products = [np.abs(x[at : at + step] * y[at : at + step]).sum(axis=1) for at in range(0, len(x), step)]
    own_error = steps * steps * 2.0**-105 * 1.001 * np.concatenate(products) + 1e-200
    clear = np.abs(h) > own_error * 2.0 ** (precision + SPARE)
    return _Voters(
        i, j, near | (in_units_of_row & ~clear), near & many, near & (distance <= error * 2.0**-10),
        norm - in_units - rows.q + precision + 1 + SPARE, np.maximum(size - shift, least),
        near | (in_units_of_row & ~clear & (np.abs(h) > LEAST_SUM)),
        _deep(rows.x[i], columns.x[j], size - shift, room_of_all),
    )  # fmt: skip


@dataclass(frozen=True)
class Extents:
    """Vectors, and of their elements the exponents above them and of their lowest bits; -8000 above zeros."""

    x: Floats
    above: Integers
    low: Integers

    @staticmethod
    def of(x: Floats) -> Extents:
        """Vectors that are not finite count as zero."""
        x = np.where(np.isfinite(x).all(axis=1, keepdims=True), x, 0.0)
        fraction, e = np.frexp(x)
        significand = np.ldexp(np.abs(fraction), 53).astype(np.int64)
        zeros = np.frexp((significand & -significand).astype(np.float64))[1] - 1
        return Extents(x, np.where(x != 0.0, e, -8000), e - 53 + zeros)

    def scales(self, live: NDArray[np.bool_], moved: Integers) -> Integers:
        """E, the exponents above vectors whose elements are multiplied by 2^moved."""
        scales: Integers = np.where((self.x != 0.0) & live, self.above + moved, -20000).max(axis=1, initial=-20000)
        return scales

    def depths(self, live: NDArray[np.bool_], moved: Integers) -> Integers:
        """Bits at each inner index."""
        depth = self.scales(live, moved)[:, None] - self.low - moved
        depths: Integers = np.where((self.x != 0.0) & live, depth, 0).max(axis=0, initial=0)
        return depths


@np.errstate(all="ignore")
def _spare_bits(
    extents: tuple[Extents, ...], voters: _Voters, balance: int, rooms: Integers, precision: int
) -> Integers:
    """(voters, systems): bits beyond half an ulp of each entry from operands that are balanced so (`kernels.balance`),
    NEVER or more of exact ones; extents: of the voters' rows and columns, and of more of both.
    """
    tops = [np.concatenate([x.above for x in extents[side::2]]).max(axis=0) for side in range(2)]
    live = (tops[0] > -8000) & (tops[1] > -8000)
    moved = [np.zeros_like(tops[0]), (tops[0] - tops[1]) >> 1, tops[0], -tops[1]][balance]
    scales, norms, depths = [], [], []
    for side, by in enumerate((-moved, moved)):
        mine = extents[side]
        depths.append(np.maximum(*(x.depths(live, by) for x in extents[side::2])))
        scale = mine.scales(live, by)
        size = np.ldexp(np.abs(mine.x), np.maximum(by[None, :] - scale[:, None], -2000))
        norms.append(np.frexp(np.where(live, size, 0.0).sum(axis=1))[1])
        scales.append(scale)
    of_rows, of_columns = _left_apart(depths[0], depths[1], int(rooms.max()))
    left = np.minimum(np.minimum(of_rows, np.maximum(rooms // 2, rooms - of_columns)), MOST_BITS)
    right = np.minimum(np.minimum(of_columns, rooms - left), MOST_BITS)
    i, j = voters.rows, voters.columns
    lost = np.where((of_rows > left)[None, :], norms[1][j][:, None] - left, -9999)
    lost = np.maximum(lost, np.where((of_columns > right)[None, :], norms[0][i][:, None] - right, -9999))
    bits = (voters.size - (precision + 1))[:, None] - lost - (scales[0][i] + scales[1][j])[:, None]
    exact = (of_rows <= left) & (of_columns <= right)
    x, y = extents[0].x[i], extents[1].x[j]
    apart = ~((x != 0.0) & (y != 0.0) & live).any(axis=1)
    found: Integers = np.where(exact[None, :] | apart[:, None], NEVER, bits)
    return found


def _left_apart(left: Integers, right: Integers, most: int) -> tuple[int, int]:
    """Bits of rows and of columns once a few inner indices are left apart, if few suffice for so many in all."""
    whole = int(left.max(initial=0)), int(right.max(initial=0))
    kept = np.argsort(-(left + right), kind="stable")
    for count in range(min(APART, left.size) + 1):
        some = kept[count:]
        found = int(left[some].max(initial=0)), int(right[some].max(initial=0))
        if sum(found) <= most:
            return found
    return whole
