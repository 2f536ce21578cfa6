"""The record of one dot product: its steps, their terms, and what each of them lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from prismm.numerics.rationals import difference

__all__ = ["Loss", "Step", "Term", "Trace"]


@dataclass(frozen=True)
class Loss:
    """What a number lost on its way to the summation.

    Args:
        what: "a[3]" (likewise of b), "a[3]*b[3]", "c" or "sum" (the running one).
        how: "flushed" (a subnormal became zero), "rounded" or "overflowed".
        before, after: it; what is infinite as floats.
    """

    what: str
    how: str
    before: Fraction | float
    after: Fraction | float


@dataclass(frozen=True)
class Term:
    """One summand of a step.

    Args:
        label: "a[3]*b[3]", "group[1]" (products that share their scale factors), "c" or "sum" (the running one).
        value: before anything was lost: a product is the exact one of the operands as they were passed, c as it was
            passed; inf and nan as floats.
        exponent: by which it was aligned; None for zeros and where nothing is aligned.
        kept: what entered the sum.
        losses: what flushing and rounding took before terms were aligned, in order; all else that is lost was cut off.
    """

    label: str
    value: Fraction | float
    exponent: int | None
    kept: Fraction | float
    losses: tuple[Loss, ...] = ()

    @property
    def lost(self) -> Fraction:
        """value - kept, by `losses` and by cutting off; 0 for infinities and NaN."""
        return difference(self.value, self.kept)


@dataclass(frozen=True)
class Step:
    """One rounding: the terms that were added, and what became of their sum.

    Args:
        kind: "block", "partial" (an addition inside a sequential or pairwise block), "join" or "convert".
        terms: the summands.
        quantum: exponent q: terms were cut off to multiples of 2^q; None where they were taken exactly, or (join of a
            `LateJoin`) each was cut off elsewhere.
        total: the sum of what was kept, after wrapping; inf and nan as floats.
        wrapped: whether the register overflowed.
        result: the sum, rounded (and flushed, if it is subnormal).
    """

    kind: str
    terms: tuple[Term, ...]
    quantum: int | None
    total: Fraction | float
    wrapped: bool
    result: Fraction | float

    @property
    def rounding_error(self) -> Fraction:
        """result - total; 0 for infinities and NaN."""
        return difference(self.result, self.total)


@dataclass
class Trace:
    """What happened in one dot product.

    Attributes:
        steps: its steps, in order.
        result: d.
    """

    steps: list[Step] = field(default_factory=list)
    result: float = 0.0
