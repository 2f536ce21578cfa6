"""What the joins of residues do with the entries of a sample: which pass sets an entry, and which entries stay
uncertified.

The sums, bounds and tests are those of `kernels.join_fast` and `kernels.join_exact`, in NumPy and in twice float64's
precision. They serve predictions alone (`forecast`): no value and no certificate depends on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.core.accuracy import MAGNITUDE, ROUNDING
from prismm.core.error_free import two_product, two_sum
from prismm.core.moduli import norm_fraction_bits, paired_system, scheme_product, shift_thresholds
from prismm.cuda.residues.join import LEVELS, join_tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.cuda.residues.tables import CertificateTest

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

GROUP = 8
"""Neighbouring rows, or columns, of a sample. Shares are found group by group, as neighbours tend to be alike."""

FEW_OF_TILE = 8
"""Uncertified entries of a tile up to which correct rounding needs no exact join of it; `kernels.repair.FEW`."""

MARGIN = 1.35
"""Times what a strip's certificate needs that a sample must show for all strips to have it."""

_MOST = 1.0 + 2.0**-28


@dataclass(frozen=True)
class Side:
    """Some rows, or columns as rows, and what a split finds of them; lengths and sizes are in units of A'.

    Attributes:
        x: (vectors, terms), finite.
        exponent: e with |x| < 2^e; 0 for zero.
        shift: s of A' = RN(2^s·x).
        scaled: A'.
        norm1: Σ ceil(|x|·2^(q-e)).
        half_norm1, norm2, deviation: ½‖A'‖₁, ‖A'‖₂ and ‖δ‖₂, upper bounds.
        inexact: 1.0 where some element was rounded.
        counts: (vectors, levels), elements that are proved to exceed 2^(e-1), 2^(e-2), ….
        q: fraction bits of norms.
    """

    x: Floats
    exponent: Integers
    shift: Integers
    scaled: Floats
    norm1: Floats
    half_norm1: Floats
    norm2: Floats
    deviation: Floats
    inexact: Floats
    counts: Integers
    q: int

    @staticmethod
    @np.errstate(all="ignore")
    def of(x: Floats, moduli: int) -> Side:
        """Split for so many moduli; vectors that are not finite are left out."""
        x = x[np.isfinite(x).all(axis=1)]
        terms, q = x.shape[1], norm_fraction_bits(moduli, x.shape[1])
        e = np.frexp(np.abs(x).max(axis=1, initial=0.0))[1].astype(np.int64)
        v = np.ceil(np.ldexp(np.abs(x), (q - e)[:, None]))
        v = np.where((v == 0.0) & (x != 0.0), 1.0, v).astype(np.int64)
        squares = (v * v).sum(axis=1)
        limits = np.array([min(t, 2**63 - 1) for t in shift_thresholds(moduli)])
        t = (limits[None, :] >= np.maximum(squares, 1)[:, None]).sum(axis=1) - 1
        shift = np.where(v.any(axis=1), t + q - e, q)
        exact = np.ldexp(x, shift[:, None])
        scaled, unit = np.rint(exact), np.ldexp(1.0, t)
        rest = np.abs(scaled - exact)
        counts = np.stack([(v > 2 ** (q - 1 - p)).sum(axis=1) for p in range(min(LEVELS, q))], axis=1)
        norm1 = v.sum(axis=1).astype(np.float64)
        deviation = np.sqrt((np.ceil(rest * 1024.0) ** 2).sum(axis=1)) / 1024.0 * _MOST
        return Side(
            x, e, shift, scaled, norm1, 0.5 * norm1 * unit, np.sqrt(squares) * unit * _MOST, deviation,
            (rest.any(axis=1) & (terms > 0)).astype(np.float64), counts, q,
        )  # fmt: skip

    def groups(self) -> list[slice]:
        """Neighbours."""
        return [slice(start, start + GROUP) for start in range(0, len(self.x), GROUP)]


@dataclass(frozen=True)
class Joined:
    """Expected shares of the entries of a product, of which a sample was joined.

    Attributes:
        extraordinary: of strips that the fast join leaves as a whole.
        closely: of tiles that are joined from three parts.
        exactly: of tiles that are joined exactly.
        uncertified: of entries that stay uncertified.
        left: of those that magnitudes do not certify either.
        entries: rows and columns of the sample's entries that are left.
    """

    extraordinary: float
    closely: float
    exactly: float
    uncertified: float
    left: float
    entries: tuple[Integers, Integers]


def pair_sums(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Σ x·y along the last axis, in two parts: about 2^-106 of the largest partial sum off."""
    high, low = two_product(x, y)
    while high.shape[-1] > 1:
        half = high.shape[-1] // 2
        total, error = two_sum(high[..., :half], high[..., half : 2 * half])
        error += low[..., :half] + low[..., half : 2 * half]
        high = np.concatenate([total, high[..., 2 * half :]], axis=-1)
        low = np.concatenate([error, low[..., 2 * half :]], axis=-1)
    return two_sum(high[..., 0], low[..., 0])


def to_next_rounding(h: Floats, low: Floats, exponent: Integers, precision: int) -> tuple[Floats, Floats]:
    """(distance, half): how far (h + low) is from the nearest number at which another rounding begins, and half a unit
    in the last place of its value times 2^exponent; both in units of h.
    """
    least = -1074 if precision == 53 else -149
    fraction, e = np.frexp(h)
    # Below a power of two units are half as large.
    e = np.where((np.abs(fraction) == 0.5) & (fraction * low < 0.0), e - 1, np.where(h == 0.0, -5000, e))
    unit = np.ldexp(1.0, np.maximum(e - precision, least - exponent))
    part = (h / unit - np.floor(h / unit)) + low / unit
    return np.abs(part - np.floor(part) - 0.5) * unit, 0.5 * unit


@dataclass(frozen=True)
class _Sums:
    """Entries (rows, columns) of a sample, in units of C'.

    Attributes:
        h: their values, rounded to float64.
        exponent: 2^exponent is the unit.
        distance, half: of `to_next_rounding`.
        bound: of the exact join's test.
        margin: what the first two passes add to their own errors.
    """

    h: Floats
    exponent: Integers
    distance: Floats
    half: Floats
    bound: Floats
    margin: Floats

    @staticmethod
    def of(rows: Side, columns: Side, test: CertificateTest) -> _Sums:
        """Multiplied in twice float64's precision."""
        sums = [pair_sums(row, columns.scaled) for row in rows.scaled]
        h, low = np.stack([s[0] for s in sums]), np.stack([s[1] for s in sums])
        exponent = -(rows.shift[:, None] + columns.shift[None, :])
        distance, half = to_next_rounding(h, low, exponent, test.precision)
        second = rows.deviation[:, None] * columns.norm2 + (rows.norm2 + rows.deviation)[:, None] * columns.deviation
        bound = rows.inexact[:, None] * columns.half_norm1 + rows.half_norm1[:, None] * columns.inexact
        bound += rows.inexact[:, None] * columns.inexact * (0.25 * rows.x.shape[1])
        if test.mode == ROUNDING:
            return _Sums(h, exponent, distance, half, np.minimum(bound, second), second)
        return _Sums(h, exponent, distance, half, bound, np.zeros(h.shape))

    def fails_pass(self, moduli: int, parts: int, numbers: int, *, rounding: bool) -> tuple[Flags, Floats]:
        """(seen, chance): entries that a pass with sums in so many numbers leaves, and of each how probable that is."""
        system = paired_system(moduli, numbers, parts)
        error = 2.0 * system.error + self.margin
        zero = (self.h == 0.0) & (self.margin == 0.0)
        surely = ((np.abs(self.h) < system.least) | (self.distance == 0.0)) & ~zero
        # Measured: zeros take the second pass where roundings are tested.
        surely |= zero & (rounding and numbers == 2)
        seen = ((self.distance <= error) & ~zero) | surely
        return seen, _chance(seen, np.where(zero, 0.0, error / self.half), surely)

    def fails_rounding(self) -> tuple[Flags, Floats]:
        """(seen, chance): entries that the exact join leaves where roundings are tested."""
        inexact = self.bound > 0.0
        seen = (self.distance <= self.bound) & inexact
        return seen, _chance(seen, self.bound / self.half, ((self.h == 0.0) | (self.distance == 0.0)) & inexact)


@np.errstate(all="ignore")
def join_sample(rows: Side, columns: Side, moduli: int, parts: int, test: CertificateTest) -> Joined:
    """What the joins make of the entries of a sample; parts: 2 for complex elements."""
    sums, rounding = _Sums.of(rows, columns, test), test.mode == ROUNDING
    _, fast = sums.fails_pass(moduli, parts, 2, rounding=rounding)
    # float32 has no pass with three numbers.
    seen_close, close = sums.fails_pass(moduli, parts, 3 if test.precision == 53 else 2, rounding=rounding)
    few_of_tile = FEW_OF_TILE if rounding and test.precision == 53 else 0
    seen, failed = sums.fails_rounding() if rounding else _fails_magnitude(rows, columns, sums, test)
    block = join_tile(test.mode)[0] * join_tile(test.mode)[2]
    shares = []
    for i in rows.groups():
        for j in columns.groups():
            whole = _extraordinary(rows, columns, i, j, moduli, test)
            of_close, rest = float(close[i, j].mean()), 1.0 - whole
            many = _more_than(few_of_tile, of_close * block)
            # The few of a tile are left without an exact join.
            few = of_close * (1.0 - _more_than(few_of_tile - 1, of_close * block)) if few_of_tile else 0.0
            left = float(failed[i, j].mean()) * (whole + rest * many) + few * rest
            shares.append((whole, rest * _some(float(fast[i, j].mean()), block), rest * many, left))
    whole, tiles, exactly, uncertified = (float(x) for x in np.mean(shares, axis=0))
    tiles = tiles if test.precision == 53 else 0.0
    if not rounding:
        left_over = seen & ~_proved_by_magnitude(rows, columns, sums, test)
        return Joined(whole, tiles, exactly, float(seen.mean()), float(left_over.mean()), _places(left_over))
    # Where few of a tile are left, they are those that three numbers leave.
    some = seen if exactly + whole > 0.5 else seen_close
    return Joined(whole, tiles, exactly, uncertified, uncertified, _places(some))


def _places(flags: Flags) -> tuple[Integers, Integers]:
    i, j = np.nonzero(flags)
    return i.astype(np.int64), j.astype(np.int64)


def _chance(seen: Flags, expected: Floats, surely: Flags) -> Floats:
    """Of each entry: what is seen, or what is expected of rests that are spread evenly if both agree, which is then the
    better estimate of a small share.
    """
    chance = np.where(surely, 1.0, np.minimum(np.nan_to_num(expected, nan=1.0), 1.0))
    seen = seen | surely
    expected_sum = float(chance.sum())
    if abs(float(seen.sum()) - expected_sum) <= 4.0 * math.sqrt(expected_sum) + 4.0:
        return chance
    return seen.astype(np.float64)


def _some(share: float, of: int) -> float:
    """Chance that some of so many are of a share."""
    return -math.expm1(of * math.log1p(-share)) if share < 1.0 else 1.0


def _more_than(few: int, mean: float) -> float:
    """Chance of more than a few, where so many are expected."""
    if mean > 60.0:
        return 1.0
    if few == 0:
        return -math.expm1(-mean)
    return max(0.0, 1.0 - math.exp(-mean) * sum(mean**x / math.factorial(x) for x in range(few + 1)))


def _fails_magnitude(rows: Side, columns: Side, sums: _Sums, test: CertificateTest) -> tuple[Flags, Floats]:
    """Where an entry's own size and the counts of large elements do not certify it, or overflow is undecided; as flags,
    and as numbers.
    """
    h, bound, exponent = sums.h, sums.bound, sums.exponent
    terms, best = rows.x.shape[1], np.zeros(h.shape)
    for p in range(rows.counts.shape[1]):
        for r in range(columns.counts.shape[1]):
            hits = rows.counts[:, p, None] + columns.counts[None, :, r] - terms
            best = np.maximum(best, hits * 0.5 ** (p + r))
    power = (rows.exponent + rows.shift)[:, None] + columns.exponent + columns.shift
    # Below the normal range an entry's own size alone counts.
    small = (np.frexp(h)[1] + exponent <= (-1022 if test.precision == 53 else -126)) & (h != 0.0)
    failed = (np.abs(h) < bound * test.kappa) & (small | (np.ldexp(best, power - 2) < bound * test.magnitude_kappa))
    top = 1024 if test.precision == 53 else 128
    size, spread = np.ldexp(np.abs(h), exponent - top), np.ldexp(bound, exponent - top)
    failed = (failed | (np.abs(size - 1.0) <= spread)) & (bound > 0.0)
    return failed, failed.astype(np.float64)


def _proved_by_magnitude(rows: Side, columns: Side, sums: _Sums, test: CertificateTest) -> Flags:
    """Where products of 7-bit magnitudes certify an entry, or show that it is 0; `kernels.entries.magnitude_proves`."""
    h, bound, exponent = sums.h, sums.bound, sums.exponent
    x, y = (np.floor(np.ldexp(np.abs(side.x), (7 - side.exponent)[:, None])) for side in (rows, columns))
    power = rows.exponent[:, None] + columns.exponent[None, :] - exponent - 14
    zero = (rows.x != 0.0).astype(np.float64) @ (columns.x != 0.0).astype(np.float64).T == 0.0
    top = 1022 if test.precision == 53 else 126
    reach = np.ldexp(np.abs(h) + bound, exponent - top) < 1.0
    proved: Flags = ((bound * test.magnitude_kappa <= np.ldexp(x @ y.T, power)) | zero) & reach
    return proved


def _extraordinary(rows: Side, columns: Side, i: slice, j: slice, moduli: int, test: CertificateTest) -> float:
    """How probably strips like these rows and columns are left to the exact join as a whole."""
    facts = [_facts(side, some) for side, some in ((rows, i), (columns, j))]
    if any(fact is None for fact in facts):
        return 0.0
    (low_a, high_a, power_a, counts_a), (low_b, high_b, power_b, counts_b) = (fact for fact in facts if fact)
    lowest, top = (1022, 1016) if test.precision == 53 else (126, 120)
    half = scheme_product(moduli) // 2
    if high_a + high_b > lowest or half.bit_length() - (low_a + low_b) >= top:
        return 1.0
    if test.mode != MAGNITUDE or test.magnitude_kappa == 0.0:
        return 0.0
    terms = rows.x.shape[1]
    hits = max((x + y - terms) * 0.5 ** (p + r) for p, x in enumerate(counts_a) for r, y in enumerate(counts_b))
    needed = 4.0 * (math.sqrt(terms * float(half)) + 0.25 * terms) * test.magnitude_kappa
    reach = math.ldexp(float(hits), min(power_a + power_b, 900)) / needed
    return float(min(1.0, max(0.0, (MARGIN - reach) / (MARGIN - 1.0))))


def _facts(side: Side, some: slice) -> tuple[int, int, int, list[int]] | None:
    """Least and largest s, least e + s and least counts of elements from there on, of vectors that are not zero."""
    there = side.norm1[some] > 0.0
    if not there.any():
        return None
    shift, counts = side.shift[some][there], side.counts[some][there]
    power = side.exponent[some][there] + shift
    level = np.minimum(power[:, None] - power.min() + np.arange(LEVELS)[None, :], counts.shape[1] - 1)
    least = np.take_along_axis(counts, level, 1).min(axis=0)
    return int(shift.min()), int(shift.max()), int(power.min()), [int(x) for x in least]
