"""Where a product in pieces has many uncertified entries, their rows and columns are multiplied again, by up to 49
moduli.

A row of A, of which all pieces know the first and the last bit, becomes A' = RN(2^s·a) of at most `left` bits, a column
of B likewise with `right` (`cpu.many_product`). Digits of the pieces' products add up modulo each modulus, and what
rounding lost adds up as integers. Whoever has both rounds the entries once: where a row and a column keep all their
bits the product is exact, elsewhere the bound of `Residues` decides (`cpu.kernels.many`). What that leaves is summed
exactly, one entry after the other (`recompute`).

How many moduli is chosen by shapes, extents and the entries' approximate values alone, the same on every machine: the
digits of all pieces belong together.

Per row, column and modulus k bytes of residues; 2·k operations in INT8 and one byte per entry of the rows and columns
and modulus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prismm.core import threads
from prismm.core.many_moduli import byte_numbers, many_moduli, offset_bits, part_numbers
from prismm.core.outcome import Epilogue, for_kernels, real_parts
from prismm.core.scales import Scales
from prismm.core.specials import layout
from prismm.cpu.costs import EXACT_SECONDS, MANY_JOIN_SECONDS, RATES
from prismm.cpu.engines.integer import CpuEngine
from prismm.cpu.entries import used_of
from prismm.cpu.many_product import join_products, plain_residues
from prismm.cpu.partial.residues import SplitPiece, multiply_blocks, packed_residues, split_blocks
from prismm.cpu.partial.scales import NOTHING, UNIT
from prismm.cpu.partial.setting import Setting, is_packed
from prismm.cpu.ways import shared_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prismm.core.composite import Side
    from prismm.cpu.entries import Entries

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]

SYSTEMS = (10, 12, 14, 16, 18, 20, 22, 24, 27, 31, 36, 42, 49)
"""Numbers of moduli to choose from."""

FEWEST_SECONDS = 2e-3
"""What exact sums of all entries must be expected to take at least."""

PANEL_BYTES = 8 << 20
"""Bytes of the digits of a panel of rows that is joined, in int32."""

_SAMPLE = 1024
_RATES = RATES["cpu:vnni"]


class Again(NamedTuple):
    """What pieces are asked for: the product of some rows and columns of one real part.

    Attributes:
        part: the real part.
        rows, columns: which, ascending.
        shifts: of these rows, and of these columns.
        moduli: how many.
        bits: that rows and columns have at most.
    """

    part: int
    rows: Index
    columns: Index
    shifts: tuple[Index, Index]
    moduli: int
    bits: tuple[int, int]

    def block(self, here: slice) -> Again:
        """Of some of the rows."""
        return self._replace(rows=self.rows[here], shifts=(self.shifts[0][here], self.shifts[1]))

    def among(self, rows: Index, columns: Index) -> Again:
        """The same with these indices of its rows and columns."""
        return self._replace(rows=rows, columns=columns)


class Sum(NamedTuple):
    """What an entry is beside X of AB: alpha·X + beta·c.

    Attributes:
        alpha: X's factor, not 0.
        c: (m, n), or None where nothing is added.
        beta: its factor.
    """

    alpha: float = 1.0
    c: NDArray[Any] | None = None
    beta: float = 0.0

    @staticmethod
    def of(epilogue: Epilogue, part: int, parts: int) -> Sum | None:
        """Of gemm's sum, where this real part is made of the same one of AB and of C; None elsewhere."""
        factors = epilogue.factors(part, parts).tolist()
        others = [f for at, f in enumerate(factors) if at not in (part, 2 + part)]
        alpha, beta = factors[part], factors[2 + part]
        if any(others) or not alpha:
            return None
        c = None
        if epilogue.c is not None and beta and part < len(real_parts(epilogue.c)):
            c = real_parts(epilogue.c)[part]
        return Sum(alpha, c, beta)

    @property
    def power(self) -> int:
        """|alpha| is at least 2^power, and below twice that."""
        return math.frexp(self.alpha)[1] - 1

    def addends(self, rows: Index, columns: Index) -> tuple[Floats, Floats]:
        """Of some rows and columns, as `kernels.many_sum.add_addends` takes them; of C those that are finite."""
        if self.c is None:
            factors = np.array([self.alpha] if self.alpha != 1.0 else [])
            return factors, np.empty((0, 0))
        c = self.c[np.ix_(rows, columns)].astype(np.float64)
        return np.array([self.alpha, self.beta]), np.where(np.isfinite(c), c, 0.0)


class Answer(NamedTuple):
    """Of one piece, or of some, combined by `total`.

    Attributes:
        digits: (moduli, rows, columns); their sums in a wider type serve as well.
        lost: what rounding lost of rows and of columns, (2, ·) as of `scales.losses`.
    """

    digits: NDArray[Any]
    lost: tuple[Index, Index]


def total(every: Sequence[Answer], asked: Again) -> Answer:
    """The answers of all pieces together, in any order."""
    digits = total_digits([each.digits for each in every], asked)
    rows, columns = (np.sum([each.lost[side] for each in every], axis=0) for side in (0, 1))
    return Answer(digits, (rows, columns))


def total_digits(every: Sequence[NDArray[np.int8]], asked: Again) -> NDArray[np.int8]:
    """Digits of all pieces, contiguous, added modulo each modulus."""
    from prismm.cpu.kernels.digits import add_digits

    modulus, found = np.array(many_moduli(asked.moduli).moduli, np.int64), every[0].copy()
    for other in every[1:]:
        add_digits(found.reshape(asked.moduli, -1), other.reshape(asked.moduli, -1), modulus)
    return found


def pays(count: int, setting: Setting) -> bool:
    """Whether so many uncertified entries may be worth a product of their rows and columns: of a target's, whose value
    is the exact one, rounded.
    """
    return setting.target is not None and _seconds_alone(count, setting) >= FEWEST_SECONDS


def _seconds_alone(count: int, setting: Setting) -> float:
    """What so many exact sums are expected to take a worker."""
    return count * setting.terms * EXACT_SECONDS


def choose(
    entries: Entries, value: Floats, scales: tuple[Scales, Scales], extents: tuple[Index, Index], setting: Setting,
    power: int = 0,
) -> Again | None:  # fmt: skip
    """What to ask for uncertified entries of one real part; None where exact sums of each are expected to take less.

    Args:
        entries: uncertified ones.
        value: (m, n), the real part's rounded values. Those of uncertified entries are approximate, or 0 where they are
            unknown.
        scales: of all rows and columns, of all pieces.
        extents: of `scales.extents`, likewise.
        setting: of the product.
        power: entries are 2^power times those of AB.
    """
    count, k = entries.i.size, setting.terms
    alone = _seconds_alone(count, setting)
    (rows, r), (columns, c) = used_of(entries.i, value.shape[0]), used_of(entries.j, value.shape[1])
    left, right = (
        _Vectors.of(side, extent, which)
        for side, extent, which in zip(scales, extents, (rows, columns), strict=True)
    )  # fmt: skip
    some = np.linspace(0, count - 1, min(_SAMPLE, count)).astype(np.int64)
    # The last place of each entry, as far as it is known; of one that is not, as of ordinary data.
    known = value[entries.i[some], entries.j[some]].astype(np.float64)
    ordinary = left.norm[r[some]] + right.norm[c[some]] - k.bit_length() // 2 + power
    exponent = np.where(np.isfinite(known) & (known != 0.0), np.frexp(known)[1], ordinary)
    place = np.maximum(exponent - setting.result.precision, setting.result.subnormal_exponent) - power
    size = float(rows.size) * columns.size
    best, found = alone, None
    for moduli in SYSTEMS:
        way = shared_bits(moduli, k, int(left.bits.max()), int(right.bits.max()))
        kept = (way.left, left.bits), (way.right, right.bits)
        if any(most < setting.splitter.fraction_bits and most < int(bits.max()) for most, bits in kept):
            continue  # the bounds' norms have as many bits, unless nothing is lost
        seconds = size * (k * moduli / _RATES.residue + moduli / _RATES.join + MANY_JOIN_SECONDS)
        seconds += (rows.size + columns.size) * k * moduli / _RATES.split
        seconds += alone * _share_left(left, right, r[some], c[some], place, (way.left, way.right), k)
        if seconds < best:
            shifts = left.shifts(way.left), right.shifts(way.right)
            best, found = seconds, Again(entries.part, rows, columns, shifts, moduli, (way.left, way.right))
        if way.left >= left.bits.max() and way.right >= right.bits.max():
            break  # all is exact
    return found


@dataclass(frozen=True)
class _Vectors:
    """Rows or columns: elements below 2^top and of so many bits, and a power of two above a bound of their norm."""

    top: Index
    bits: Index
    norm: Index

    @staticmethod
    def of(scales: Scales, extent: Index, which: Index) -> _Vectors:
        top, last = extent[0, which], -extent[1, which]
        nothing = top == NOTHING
        top, last = np.where(nothing, 0, top), np.where(nothing, 0, last)
        return _Vectors(top, top - last, np.frexp(scales.terms[2, which])[1] - scales.shift[which])

    def shifts(self, most: int) -> Index:
        """Not more bits than a vector has: then it is exact, and its product as short as can be."""
        return np.minimum(self.bits, most) - self.top


def _share_left(
    left: _Vectors, right: _Vectors, r: Index, c: Index, place: Index, bits: tuple[int, int], k: int
) -> float:  # fmt: skip
    """The share of a sample that rounding to so many bits is expected to leave undecided.

    An entry is undecided if a midpoint of two numbers 2^place apart is within the bound of it: of errors of half a unit
    in each of k elements, whose mean square is 1/12. In powers of two, whose sum is the same on every machine.
    """
    never = np.full(r.size, -(1 << 30))
    of_rows = np.where(left.bits[r] > bits[0], left.top[r] - bits[0] + right.norm[c], never)
    of_columns = np.where(right.bits[c] > bits[1], right.top[c] - bits[1] + left.norm[r], never)
    power = np.maximum(of_rows, of_columns) + k.bit_length() // 2 - 1 - place
    counts = np.bincount(np.clip(-power, 0, 40))
    return float(np.ldexp(counts, -np.arange(counts.size))[:40].sum()) / r.size


def answers(
    a: NDArray[Any], b: NDArray[Any], asked: Again, setting: Setting, most: int | None = None, workers: int = 1
) -> Iterator[tuple[slice, Answer]]:  # fmt: skip
    """The answer of a piece (m, k) by (k, n) to a request: yields ranges of its rows in turn, each with its answer.

    Without `most` one range holds all rows. With it, a range has at most so many bytes of digits, or one row.
    """
    x, y = a[asked.rows], b[:, asked.columns]
    x, y = for_kernels(layout(x, asked.part, "left")), for_kernels(layout(y, asked.part, "right"))
    engine = setting.splitter.engine
    columns = _split(y, "right", asked, engine, workers)
    count = asked.rows.size
    step = count if most is None else max(1, most // max(1, asked.moduli * asked.columns.size))
    for i0 in range(0, count, step):
        here = slice(i0, min(count, i0 + step))
        some = asked.block(here)
        rows = _split(x[here], "left", some, engine, workers)
        digits = np.zeros((1, asked.moduli, rows.count, columns.count), np.int8)
        if rows.k:
            multiply_blocks(rows, columns, engine, many_moduli(asked.moduli), digits, workers)
        yield here, Answer(digits[0], (rows.lost, columns.lost))


def _split(x: Floats, side: Side, asked: Again, engine: CpuEngine, workers: int) -> SplitPiece:
    """Residues of rows (rows, k) or columns (k, columns)."""
    left, tables = side == "left", many_moduli(asked.moduli)
    shift, bits = asked.shifts[not left], asked.bits[not left]

    def residues(part: Floats, here: slice, residual2: Floats, tiny: NDArray[np.uint8]) -> NDArray[Any]:
        part, part_shift = for_kernels(part), np.ascontiguousarray(shift[here])
        if is_packed(engine):
            numbers = offset_bits(bits), *byte_numbers(asked.moduli, bits, left=left), tables.modulus
            return packed_residues([part], left, part_shift, numbers, engine, residual2, tiny)
        out = np.empty((asked.moduli, *part.shape), np.int8)
        plain = part_numbers(asked.moduli, bits, left=left), tables.modulus
        along = part_shift[:, None] if left else part_shift[None, :]
        plain_residues(part, along, plain, int(left), out, residual2, tiny)
        return out.astype(getattr(engine, "dtype", "float64"), copy=False)[None]

    return split_blocks(x, side, asked.moduli, residues, workers)


def join(
    answer: Answer, asked: Again, scales: tuple[Scales, Scales], setting: Setting, summed: Sum, workers: int = 1
) -> tuple[NDArray[Any], NDArray[np.bool_]]:  # fmt: skip
    """The entries of rows and columns from the answers of all pieces, correctly rounded; and where that is not proved.

    scales: of all rows and columns, as of the first product. summed: what the entries are.
    """
    moduli, m, n = answer.digits.shape
    rows, columns = (
        _terms(side, which, shift, lost, setting.terms)
        for side, which, shift, lost in zip(scales, (asked.rows, asked.columns), asked.shifts, answer.lost, strict=True)
    )
    right = np.ascontiguousarray(asked.shifts[1]), columns
    out = np.empty((m, n), np.float64 if setting.result.precision == 53 else np.float32)
    failed = np.zeros((m, n), np.bool_)
    step = max(1, PANEL_BYTES // (4 * moduli * max(n, 1)))

    def panel(i0: int) -> None:
        here = slice(i0, min(m, i0 + step))
        left = asked.shifts[0][here].copy(), np.ascontiguousarray(rows[:, here])
        nothing, added = (np.empty((0, 0)), np.empty((0, 0))), summed.addends(asked.rows[here], asked.columns)
        join_products(
            answer.digits[:, here].astype(np.int32), many_moduli(moduli), left, right, setting.terms, nothing, added,
            out[here], failed[here],
        )  # fmt: skip

    threads.spread(panel, list(range(0, m, step)), workers)
    return out, failed


@np.errstate(all="ignore")
def _terms(side: Scales, which: Index, shift: Index, lost: Index, terms: int) -> Floats:
    """The bound's vectors, as of `kernels.scale.bound_terms`: those of the first product in units of another shift.

    Σv·2^t of `bound_terms` bounds ‖A'‖₁ where v·2^t are integers, so t >= 0: with at least q bits, or none lost.
    """
    found = np.empty((4, which.size))
    moved = (shift - side.shift[which]).astype(np.int32)
    residual2, tiny = np.ldexp(lost[0].astype(np.float64), -UNIT), lost[1] > 0
    found[0] = np.ldexp(side.terms[0, which], moved)
    found[1] = np.sqrt(residual2 + tiny * (terms * 2.0**-600)) * (1.0 + 2.0**-28 + terms * 2.0**-53)
    found[2] = np.ldexp(side.terms[2, which], moved)
    found[3] = (residual2 > 0.0) | tiny
    return found
