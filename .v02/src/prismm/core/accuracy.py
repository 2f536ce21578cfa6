"""Accuracy targets and their certificates, as pure functions.

Notation: u the unit roundoff of the result, η its smallest subnormal, K = k terms (2k for complex), |a||b| the
product of the moduli, x the joined value before its one rounding, ε a bound with |x - exact| <= ε. A complex entry
counts as its two real parts.

Certificate. c = RN(x) gives |c - exact| <= ε + u·|x| + η/2 <= ε(1+u) + u·|exact| + η/2, and |exact| <= |a||b|. So a
target "slack·|a||b| + u|exact| + η/2" holds where ε(1+u) <= slack·LB for any lower bound LB of |a||b|: slack =
(K-1)u for "native", tol for a tolerance. LB = |x| - ε costs nothing; the product of 7-bit magnitudes serves the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from prismm.errors import AccuracyError, meant
from prismm.formats import Format

__all__ = ["Target", "conventional_bound", "join_mode", "join_test", "kappa", "magnitude_kappa", "parse_target"]

Kind = Literal["fast", "native", "tolerance", "correctly-rounded"]
RAW, ROUNDING, MAGNITUDE, PAIR = 0, 1, 2, 3
"""What a join does with an entry: store it; test its rounding; test its bound against |a||b|; store an unscaled
pair.
"""

NAMES = ("fast", "native", "correctly-rounded")


@dataclass(frozen=True)
class Target:
    """An accuracy target: one of the names, or a tolerance relative to |a||b|.

    Attributes:
        kind: the name, or "tolerance".
        tolerance: the tolerance; None for a name.
    """

    kind: Kind
    tolerance: float | None = None

    def __str__(self) -> str:
        return self.kind if self.tolerance is None else f"{self.tolerance:g}"


def parse_target(accuracy: Any) -> Target:
    """The `Target` that an ``accuracy=`` argument names.

    >>> parse_target("native"), parse_target(1e-12)
    (Target(kind='native', tolerance=None), Target(kind='tolerance', tolerance=1e-12))

    Raises:
        AccuracyError: for an unknown name, or a number that is not finite and positive.
    """
    if isinstance(accuracy, Target):
        return accuracy
    if isinstance(accuracy, str):
        if accuracy in NAMES:
            return Target(accuracy)  # type: ignore[arg-type]
        names = ", ".join(map(repr, NAMES))
        raise AccuracyError(
            f"unknown accuracy {accuracy!r}{meant(accuracy, NAMES)}; pass one of {names} or a float > 0"
        )
    if isinstance(accuracy, bool) or not hasattr(accuracy, "__float__") or getattr(accuracy, "ndim", False):
        raise AccuracyError(f"accuracy={accuracy!r} is neither a name nor a number; pass {NAMES!r} or a float > 0")
    try:
        tolerance = float(accuracy)
    except OverflowError:  # of an integer whose digits may be too many to print
        raise AccuracyError("accuracy is beyond the largest float; pass one that is finite, such as 1e-12") from None
    except Exception as error:
        raise AccuracyError(
            f"accuracy is a {type(accuracy).__name__} that gives no number ({error}); pass {NAMES!r} or a float > 0"
        ) from error
    if not math.isfinite(tolerance) or tolerance <= 0.0:
        raise AccuracyError(f"accuracy={tolerance!r} must be finite and positive, such as 1e-12")
    return Target("tolerance", tolerance)


def slack(target: Target, terms: int, result: Format) -> float:
    """The factor of |a||b| that the target leaves for ε, rounding of the result apart."""
    if target.kind == "tolerance":
        assert target.tolerance is not None
        return target.tolerance
    return (terms - 1) * result.unit_roundoff


def magnitude_kappa(target: Target, terms: int, result: Format) -> float:
    """κ with: κ·ε <= LB <= |a||b| certifies the entry. Infinite where only ε = 0 will do."""
    room = slack(target, terms, result)
    if room <= 0.0:
        return math.inf
    return (1.0 + result.unit_roundoff) / room * (1.0 + 2.0**-40)


def kappa(target: Target, terms: int, result: Format) -> float:
    """κ with: |x| >= κ·ε certifies the entry, from LB = |x| - ε; 2^-40 covers the roundings of ε and of |x| itself."""
    return (1.0 + magnitude_kappa(target, terms, result)) * (1.0 + 2.0**-40)


def conventional_bound(terms: int, result: Format, magnitude: float) -> float:
    """K·u·(|a||b|) + K·η, what a conventional GEMM guarantees in any order of summation (Jeannerod and Rump 2013),
    rounded up.

    >>> from prismm.formats import FP64
    >>> conventional_bound(1000, FP64, 1.0) < 1.2e-13
    True
    """
    bound = terms * result.unit_roundoff * magnitude * (1.0 + 2.0**-50) + terms * result.smallest_subnormal
    return math.nextafter(bound, math.inf)


def join_mode(target: Target | None) -> int:
    """What the join tests for this target."""
    if target is None:
        return RAW
    return ROUNDING if target.kind == "correctly-rounded" else MAGNITUDE


def join_test(target: Target | None, terms: int, result: Format) -> tuple[int, float, float]:
    """(mode, kappa, magnitude_kappa) of a join; "fast" tests nothing but overflow: kappa 0 passes every entry."""
    mode = join_mode(target)
    if mode != MAGNITUDE or target is None or target.kind == "fast":
        return mode, 0.0, 0.0
    return mode, kappa(target, terms, result), magnitude_kappa(target, terms, result)
