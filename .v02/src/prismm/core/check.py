"""Check: how wrong a product is that was computed elsewhere."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, Any

from prismm.core.statistics import median as median_of
from prismm.core.statistics import root_mean_square

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ErrorMeasure:
    """Errors of all entries in one unit: upper bounds, each guaranteed.

    Attributes:
        worst: the largest; inf where an entry is wrongly Inf or NaN, or wrongly finite.
        where: index of the worst entry; None where no entry has an error.
        values: float64, of the result's shape; 0 for entries that are rightly Inf or NaN.
        special: which entries are Inf or NaN by the exact value.
    """

    worst: float
    where: tuple[int, ...] | None
    values: NDArray[np.float64] = field(repr=False, compare=False)
    special: NDArray[np.bool_] = field(repr=False, compare=False)

    @property
    def _finite(self) -> NDArray[np.float64]:
        return self.values[~self.special] if self.special.any() else self.values

    @functools.cached_property
    def median(self) -> float:
        """Of the entries whose exact value is finite; 0.0 without any."""
        return median_of(self._finite)

    @functools.cached_property
    def rms(self) -> float:
        """Root of the mean square of the same entries."""
        return root_mean_square(self._finite)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold, without the values."""
        where = None if self.where is None else list(self.where)
        return {"worst": self.worst, "where": where, "median": self.median, "rms": self.rms}


@dataclass(frozen=True)
class Check:
    """How wrong a product is; returned by `prismm.check`.

    A complex entry counts as its two real parts: its error is that of the worse part, and it is correctly rounded where
    both are. |exact| is the modulus.

    Attributes:
        shape: shape of the product.
        dtype: element type of the product that was checked.
        operands: element types of both operands.
        k: inner dimension.
        absolute: |c - exact|.
        componentwise: |c - exact| / (|a||b|).
        relative: |c - exact| / |exact|; 0 where both are 0.
        ulps: |c - exact| in ulps of RN(exact), in the product's type.
        correct: which entries equal the exact value rounded to nearest, or are rightly Inf or NaN.
        special: entries that are Inf or NaN by the defining sum, or because the exact value overflows.
        wrong_special: entries that are wrongly Inf or NaN, or wrongly finite.
        recomputed: entries that were compared with a correctly rounded product.
        scheme: the scheme behind the bounds.
        engine: the engine that ran it.
        seconds: time of the check.

    >>> import numpy as np, prismm
    >>> found = prismm.check(np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1)), np.array([[0.0]]))
    >>> 1.0 <= found.bound(0, 0) < 1.000001, found.relative.where, found.correctly_rounded
    (True, (0, 0), 0.0)
    """

    shape: tuple[int, ...]
    dtype: str
    operands: tuple[str, str]
    k: int
    absolute: ErrorMeasure
    componentwise: ErrorMeasure
    relative: ErrorMeasure
    ulps: ErrorMeasure
    correct: NDArray[np.bool_] = field(repr=False, compare=False)
    special: int
    wrong_special: int
    recomputed: int
    scheme: str
    engine: str
    seconds: float

    @property
    def bounds(self) -> NDArray[np.float64]:
        """A guaranteed upper bound on |c - exact| of every entry, of the result's shape."""
        return self.absolute.values

    def bound(self, *index: int) -> float:
        """A guaranteed upper bound on |c - exact| of one entry (of the larger real part, if complex).

        Raises:
            IndexError: for an index that is no entry.
        """
        if len(index) != len(self.shape):
            raise IndexError(f"index {index} for a result of shape {self.shape}: pass {len(self.shape)} integers")
        return float(self.bounds[index])

    @property
    def entries(self) -> int:
        """Entries of the product."""
        return int(self.correct.size)

    @property
    def correctly_rounded(self) -> float:
        """Share of the entries that are correctly rounded, rightly infinite or NaN included; 1.0 without entries."""
        return float(self.correct.mean()) if self.correct.size else 1.0

    @property
    def measures(self) -> dict[str, ErrorMeasure]:
        """The four measures by what they are relative to."""
        return {
            "absolute": self.absolute, "relative to |a||b|": self.componentwise, "relative to |exact|": self.relative,
            "in ulps": self.ulps,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold, without the entries."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "operands": list(self.operands),
            "k": self.k,
            "entries": self.entries,
            "correctly_rounded": self.correctly_rounded,
            "absolute": self.absolute.to_dict(),
            "componentwise": self.componentwise.to_dict(),
            "relative": self.relative.to_dict(),
            "ulps": self.ulps.to_dict(),
            "special": self.special,
            "wrong_special": self.wrong_special,
            "recomputed": self.recomputed,
            "scheme": self.scheme,
            "engine": self.engine,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "one number"
        lines = [f"{size} {self.dtype}, k = {self.k}: {share_text(self)} of {self.entries} entries correctly rounded"]
        for name, found in self.measures.items():
            where = "" if found.where is None else f" at {found.where}"
            lines.append(
                f"  {name:<20}at most {up_text(found.worst)}{where}, median {up_text(found.median)}, "
                f"rms {up_text(found.rms)}"
            )
        if self.special:
            lines.append(f"  {'Inf or NaN':<20}{self.special} entries")
        if self.wrong_special:
            lines.append(f"  {'wrongly so, or not':<20}{self.wrong_special} entries, counted as infinitely wrong")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from prismm.core.notebook import table

        rows = [
            [name, up_text(x.worst), "" if x.where is None else str(x.where), up_text(x.median), up_text(x.rms)]
            for name, x in self.measures.items()
        ]
        size = "×".join(map(str, self.shape)) or "one number"
        caption = f"{size} {self.dtype}, k = {self.k}: {share_text(self)} of the entries correctly rounded"
        return table(caption, ["error, at most", "worst", "at", "median", "rms"], rows)


def up_text(bound: float | Decimal) -> str:
    """A bound with three digits, rounded up.

    >>> up_text(2.0**-53), up_text(0.0), up_text(float("inf"))
    ('1.12e-16', '0', 'inf')
    """
    up = Decimal(bound)
    if not up.is_finite():
        return str(bound)
    up = up.normalize(Context(prec=3, rounding=ROUND_CEILING))
    # Below float64's normal range the way back through a float would round.
    return f"{up:e}" if 0 < up < Decimal("1e-300") else f"{float(up):.3g}"


def share_text(check: Check) -> str:
    """The share of correctly rounded entries: all and none only where it is so.

    >>> from types import SimpleNamespace as Shares
    >>> share_text(Shares(correctly_rounded=1.0)), share_text(Shares(correctly_rounded=1 - 1e-9))
    ('100 %', 'over 99.99 %')
    """
    share = check.correctly_rounded
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    if share > 0.9999:
        return "over 99.99 %"
    return f"{share * 100:.2f} %" if share >= 1e-4 else "under 0.01 %"
