"""Products of few rows and columns that are long: the inner dimension in pieces, on all workers.

Each entry is a dot product in twice float64's precision (`cpu.kernels.long`), of the operands themselves for correct
rounding, of the operands rounded to A', B' for `Residues`. The pieces are summed exactly. Where all numbers within the
error bound round alike, that is the value that every engine returns; entries without a certificate are repaired.
Products near the ends of the range, and sums of rounded operands that cancel, are left to other engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.accuracy import MAGNITUDE, ROUNDING, join_test
from prismm.core.outcome import Job, Outcome, real_parts
from prismm.core.scales import Scales
from prismm.cpu.engines.integer import DIRECT
from prismm.cpu.entries import Entries
from prismm.cpu.repair import bound_in_units, exactly, repair
from prismm.cpu.residues.split import Splitter
from prismm.schemes.residues import Residues

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG = 1 << 15
"""Inner dimensions from here on are long."""

FEW = 16
"""Entries of a product of few rows and columns, at most."""

_PIECE = 1 << 15


def suits(m: int, n: int, k: int) -> bool:
    """Whether the product is one of few and long rows and columns."""
    return k >= LONG and 0 < m * n <= FEW


def multiply(scheme: Residues, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], job: Job) -> bool:
    """out = a @ b up to the job's target; False, and nothing promised of out, where that asks for a closer look."""
    parts = len(real_parts(out))
    splitter = Splitter(scheme.moduli, DIRECT, a.shape[1], parts == 2)
    mode, kappa, magnitude_kappa = join_test(job.target, job.terms, job.result)
    if mode not in (ROUNDING, MAGNITUDE) or (mode == MAGNITUDE and not kappa):
        return False
    work = _Pieces(a, b, parts, job.workers)
    exponent = work.exponents()
    # Products of two such numbers are within 2^±800: neither they nor their errors leave float64's range.
    if exponent is None or int(np.abs(exponent).max()) > 400:
        return False
    shift = np.zeros_like(exponent)
    terms = np.zeros((4, exponent.size))
    counts = np.empty((exponent.size, 0), np.int64)
    norm1 = norm2 = shift
    if mode == MAGNITUDE:
        q = splitter.fraction_bits
        norm2, norm1, counts = work.norms(exponent, q, splitter.count_levels)
        # Thresholds decrease, so that as many fit as there are shifts that are allowed.
        fitting = np.count_nonzero(splitter.thresholds[:, None] >= norm2[None, :], axis=0)
        shift = np.maximum(fitting - 1, 0) + q - exponent
        if int(np.abs(shift).max()) > 400:
            return False
    rounds = shift if mode == MAGNITUDE else None
    dots, inexact = work.dots(rounds)
    if mode == MAGNITUDE:
        from prismm.cpu.kernels.scale import bound_terms

        # A priori: that something was rounded counts, not by how much.
        tiny = inexact.astype(np.uint8)
        bound_terms(exponent, shift, q, norm2, norm1, np.zeros(exponent.size), tiny, splitter.terms, 1, terms)
    scales = Scales(shift, exponent, terms, counts)
    entries = _EntrySums(work, dots, scales, job, kappa, magnitude_kappa)
    left: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    # Entries are few, as `suits` ensures: Python's exact sums cost nothing beside the pieces.
    for i, j in np.ndindex(*out.shape):
        for part, target in enumerate(real_parts(out)):
            value, state = entries.judge(i, j, part)
            if state == _REFUSED:
                return False
            target[i, j] = value
            if state != _CERTIFIED:
                left.setdefault((part, state == _EXACT), []).append((i, j))
    m = out.shape[0]
    both = scales.block(0, m), scales.block(m, exponent.size)
    for (part, exact), places in left.items():
        i, j = np.array(places, np.int64).T
        if exact:
            exactly(a, b, out, Entries(part, i, j), job, Outcome())
        else:
            repair(a, b, out, Entries(part, i, j), job, Outcome(), both)
    return True


_CERTIFIED, _UNCERTIFIED, _EXACT, _REFUSED = range(4)
"""Of an entry: it has its value; it has the scheme's, which no certificate covers; only exact arithmetic has it; other
engines have.
"""


@dataclass(frozen=True)
class _EntrySums:
    """The entries of a product, from the pieces' sums."""

    work: _Pieces
    dots: NDArray[np.float64]
    scales: Scales
    job: Job
    kappa: float
    magnitude_kappa: float

    def judge(self, i: int, j: int, part: int) -> tuple[float, int]:
        """The value of a real part, and what remains to be done for it.

        The certificate is that of a join (`cpu.kernels.finish`): the sum, rounded once, or the counts of large elements
        against integer norms.
        """
        scales, job = self.scales, self.job
        q = self.work.a.shape[0] + j
        terms = self.work.a.shape[1] * self.work.parts
        values, size = self.work.entry(self.dots, i, j, part)
        # Terms of a lane in a piece, and the lanes that are joined (`kernels.long.long_dots`).
        steps = _PIECE // 64 + 64
        error = size * (2 * steps * (steps + 1)) * 1.0001 * 2.0**-106 + terms * 2.0**-1070
        scale = -int(scales.shift[i] + scales.shift[q])
        value = _rounded(values, error, size, scale, job)
        bound = float(bound_in_units(scales.terms[:, i], scales.terms[:, q], self.work.a, job))
        # Operands that lost nothing have an exact sum to round; the value of rounded ones is made by another engine.
        if value is None:
            return 0.0, _EXACT if bound == 0.0 else _REFUSED
        total, needed = abs(math.fsum(values)), bound * self.kappa
        if bound == 0.0 or total * (1.0 - 2.0**-50) >= needed:
            return value, _CERTIFIED
        # So near the limit another engine's rounded test may say otherwise: it is asked.
        if total * (1.0 + 2.0**-50) >= needed or _exponent(total + bound) + scale > _highest(job):
            return 0.0, _REFUSED
        power = int(scales.power[i] + scales.power[q])
        covered = _pigeonhole(scales.counts[i], scales.counts[q], terms, power, bound * self.magnitude_kappa)
        return value, _CERTIFIED if covered else _UNCERTIFIED


def _exponent(x: float) -> int:
    """e with |x| < 2^e, for finite x; beyond all ranges otherwise."""
    return math.frexp(x)[1] if math.isfinite(x) else 1 << 20


def _highest(job: Job) -> int:
    """The exponent below which results are far from overflow."""
    return 1000 if job.result.precision == 53 else 126


def _rounded(values: list[float], error: float, size: float, scale: int, job: Job) -> float | None:
    """RN(Σ values·2^scale) where all numbers within `error` of the sum round alike, far from the ends of the range."""
    if not 2.0**-900 < size < 2.0**1000:
        return None
    # fsum rounds once and is monotone, so that the ends enclose all that is between.
    low, high = math.fsum([*values, -error]), math.fsum([*values, error])
    if job.result.precision == 24:
        low, high = low - abs(low) * 2.0**-51, high + abs(high) * 2.0**-51
    least, most = sorted((_exponent(low), _exponent(high)))
    if least <= -900 or least + scale <= -900 or most + scale > _highest(job) or (low > 0.0) != (high > 0.0):
        return None
    low, high = math.ldexp(low, scale), math.ldexp(high, scale)
    if job.result.precision == 24:
        low, high = float(np.float32(low)), float(np.float32(high))
    return low if low == high else None


def _pigeonhole(
    rows: NDArray[np.int64], columns: NDArray[np.int64], terms: int, power: int, needed: float
) -> bool:  # fmt: skip
    """Whether |a||b| >= needed, by the counts of large elements: `cpu.kernels.finish.pigeonhole`."""
    with np.errstate(over="ignore"):
        least = float(np.ldexp(needed, 2 - power))
    return any(
        hits > 0 and hits >= least * 2.0 ** (p + r)
        for p, x in enumerate(rows.tolist())
        for r, y in enumerate(columns.tolist())
        for hits in (x + y - terms,)
    )


@dataclass(frozen=True)
class _Pieces:
    """The rows of a and the columns of b, real parts side by side, in pieces of the inner dimension."""

    a: NDArray[Any]
    b: NDArray[Any]
    parts: int
    workers: int

    def _each(self, task: Any) -> list[Any]:
        """task(rows of a and columns of b as rows, real parts one below the other) for every piece, in order."""
        k = self.a.shape[1]
        starts = list(range(0, k, _PIECE))
        found: list[Any] = [None] * len(starts)

        def one(piece: int) -> None:
            h0, h1 = starts[piece], min(k, starts[piece] + _PIECE)
            # Zeros fill the lanes up.
            length = -(-(h1 - h0) // 64) * 64
            m, n = self.a.shape[0], self.b.shape[1]
            x = np.empty((self.parts, m + n, length))
            x[:, :, h1 - h0 :] = 0.0
            for part in range(self.parts):
                for rows, source in ((slice(0, m), self.a[:, h0:h1]), (slice(m, m + n), self.b[h0:h1].T)):
                    real = real_parts(source)
                    x[part, rows, : h1 - h0] = real[part] if part < len(real) else 0.0
            found[piece] = task(x)

        threads.spread(one, list(range(len(starts))), self.workers, joining=True)
        return found

    def exponents(self) -> NDArray[np.int64] | None:
        """e with all parts < 2^e of each row of a and column of b; None where one is not finite."""
        from prismm.cpu.kernels.long import long_largest

        def largest(x: NDArray[np.float64]) -> NDArray[np.int64]:
            bits = np.empty(x.shape[:2], np.int64)
            long_largest(x.reshape(-1, x.shape[2]), bits.reshape(-1))
            # Both real parts of a row share one exponent, as everywhere in the scheme.
            top: NDArray[np.int64] = bits.max(axis=0)
            return top

        top = np.max(self._each(largest), axis=0).view(np.float64)
        if not np.isfinite(top).all():
            return None
        exponent: NDArray[np.int64] = np.frexp(top)[1].astype(np.int64)
        return exponent

    def norms(self, exponent: NDArray[np.int64], q: int, levels: int) -> tuple[NDArray[np.int64], ...]:
        """ν, Σv and counts of each row of a and column of b."""
        from prismm.cpu.kernels.long import long_norms

        def norms(x: NDArray[np.float64]) -> tuple[NDArray[np.int64], ...]:
            count = x.shape[0] * x.shape[1]
            found = np.empty(count, np.int64), np.empty(count, np.int64), np.empty((count, levels), np.int64)
            long_norms(x.reshape(count, -1), np.tile(exponent, x.shape[0]), q, *found)
            return tuple(y.reshape(*x.shape[:2], *y.shape[1:]).sum(axis=0) for y in found)

        pieces = self._each(norms)
        return tuple(np.sum([piece[which] for piece in pieces], axis=0) for which in range(3))

    def dots(self, shift: NDArray[np.int64] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """High and low parts and magnitudes (pieces, part of a, row, part of b, column, 3) of the dot products, of
        operands rounded to multiples of 2^-shift; and where that was inexact.
        """
        from prismm.cpu.kernels.long import long_dots, long_round

        m, n = self.a.shape[0], self.b.shape[1]

        def dots(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
            lost = np.zeros(x.shape[:2], np.uint8)
            if shift is not None:
                long_round(x.reshape(-1, x.shape[2]), np.tile(shift, x.shape[0]), lost.reshape(-1))
            left, right = (np.ascontiguousarray(y).reshape(-1, x.shape[2]) for y in (x[:, :m], x[:, m:]))
            products = np.empty((len(left), len(right), 3))
            long_dots(left, right, products)
            return products.reshape(self.parts, m, self.parts, n, 3), np.any(lost, axis=0)

        pieces = self._each(dots)
        return np.stack([products for products, _ in pieces]), np.any([lost for _, lost in pieces], axis=0)

    def entry(self, dots: NDArray[np.float64], i: int, j: int, part: int) -> tuple[list[float], float]:
        """What adds up to a real part of an entry, and Σ of the magnitudes."""
        if self.parts == 1:
            both = [(dots[:, 0, i, 0, j], 1.0)]
        elif part == 0:
            both = [(dots[:, 0, i, 0, j], 1.0), (dots[:, 1, i, 1, j], -1.0)]
        else:
            both = [(dots[:, 0, i, 1, j], 1.0), (dots[:, 1, i, 0, j], 1.0)]
        values = [x for found, sign in both for x in (sign * found[:, :2]).reshape(-1).tolist()]
        return values, float(sum(found[:, 2].sum() for found, _ in both))
