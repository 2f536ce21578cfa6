"""Determinants with an enclosure and a proved sign.

A[rows] ≈ LU, with X ≈ L⁻¹ and Y ≈ U⁻¹ triangular and X of unit diagonal, gives M = X·A[rows]·Y near the identity, and
det A = ± det M / Π Y_ii, exactly. M is kept as a sum of parts with a bound of the rest (`transformed.py`), so the step
can be repeated on M: each reduces a condition number by about 1/u (as Rump 1990 does for inverses).

Let M = 1 - E, ε a bound of the largest row sum of |E|, ε <= 1/2. Eigenvalues of E are at most ε in size, so det M > 0:
det(1 - tE) is not 0 for t in [0, 1]. And log det M = -tr E - Σ_(k>=2) tr(E^k)/k, where |tr(E^k)| <= n·ε^k: so
|log det M + tr E| <= n·ε²/(2(1-ε)) <= n·ε².
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.errors import DTypeError, NotCertified
from prismm.formats import FP64, round_fraction
from prismm.linalg.expansions import Products
from prismm.linalg.factors import triangular_factors, triangular_inverse
from prismm.linalg.inverse import LARGE
from prismm.linalg.operands import check_square, common, operand, real_form
from prismm.linalg.rounding import above, sum_above
from prismm.linalg.transformed import Transformed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVELS = 6
COUNTS = (2, 4, 7)
"""Parts of M: it is tried with few first; the last for n <= LARGE alone."""

DIGITS = 512
"""Bits to which products of pivots are truncated: each of n truncations errs by 2^(1-DIGITS), relatively."""


@dataclass(frozen=True)
class DeterminantReport:
    """Returned beside a determinant by ``full_output=True``: lower·2^exponent <= det <= upper·2^exponent.

    Of a batch every attribute is an array of its shape.

    Attributes:
        sign: 1 or -1; proved.
        lower: a proved lower bound of det/2^exponent.
        upper: a proved upper bound of det/2^exponent; in size, the larger of both is in [1/2, 1].
        exponent: a power of two, which keeps determinants apart that overflow.
        steps: factorisations, each of what the one before it left.
    """

    sign: Any
    lower: Any
    upper: Any
    exponent: Any
    steps: Any


def det(a: Any, /, *, full_output: bool = False) -> Any:
    """The determinant of a real matrix, at most one unit in the last place off, with a proved sign.

    Args:
        a: (..., n, n), real, as in `prismm.linalg.solve`.
        full_output: return (determinant, `DeterminantReport`), whose enclosure is not rounded to the float64 range.

    Returns:
        float, or float64 of the batch's shape: nearest to the middle of the enclosure. ±Inf where that overflows; the
        report has the enclosure all the same.

    Raises:
        NotCertified: for a singular matrix, or one too close to it.
        DTypeError: for a complex matrix. ShapeError, OperandError, ArgumentError: as `prismm.linalg.solve`.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.det(np.array([[1.0, 2.0], [3.0, 4.0]]))
    -2.0
    """
    source = operand(a, "a")
    check_square(source.data, "a")
    _, dtype = common({"a": source})
    if dtype.kind == "c":
        raise DTypeError("det takes real matrices; of complex ones take det of a.conj().T @ a, which is |det a|²")
    batch, products = source.data.shape[:-2], Products(source.device)
    found = [_one(source.data[at], products) for at in np.ndindex(*batch)]
    if not batch:
        value, report = found[0]
        return (value, report) if full_output else value
    values = source.returned(np.array([value for value, _ in found], np.float64).reshape(batch))
    if not full_output:
        return values
    kinds = {"sign": int, "lower": float, "upper": float, "exponent": int, "steps": int}
    return values, DeterminantReport(
        *(np.array([getattr(one, name) for _, one in found], kind).reshape(batch) for name, kind in kinds.items())
    )


def _one(a: NDArray[Any], products: Products) -> tuple[float, DeterminantReport]:
    """The determinant of one matrix."""
    with np.errstate(all="ignore"):
        low, high, steps = _enclosure(real_form(a, False), products)
    middle = (low + high) / 2
    exponent = _exponent(max(abs(low), abs(high)))
    unit = Fraction(2) ** exponent
    value = _rounded(middle, "nearest")
    lower, upper = _rounded(low / unit, "down"), _rounded(high / unit, "up")
    return value, DeterminantReport(1 if low > 0 else -1, lower, upper, exponent, steps)


def _enclosure(a: Floats, products: Products) -> tuple[Fraction, Fraction, int]:
    """Rational bounds of the determinant, both of one sign."""
    n = len(a)
    if not n:
        return Fraction(1), Fraction(1), 0
    rows = -np.frexp(np.abs(a).max(axis=1))[1].astype(np.int32)
    scaled = np.ldexp(a, rows[:, None])
    if (np.ldexp(scaled, -rows[:, None]) != a).any():
        scaled, rows = a, np.zeros(n, np.int32)
    for count in COUNTS if n <= LARGE else COUNTS[:-1]:
        found = _bounds(Transformed((scaled,), np.zeros_like(a)), -int(rows.sum()), products, count)
        if found is not None:
            return found
    raise NotCertified("a is singular, or too close to it for a proof of the sign of its determinant")


def _bounds(m: Transformed, exponent: int, products: Products, count: int) -> tuple[Fraction, Fraction, int] | None:
    """Bounds of det M·2^exponent by steps in so many parts: sign·2^exponent·det M / Π Y_ii stays the same."""
    sign, pivots = 1, _Product()
    for level in range(LEVELS):
        found = _near_one(m, products)
        if found is not None:
            low, high = found
            scale = sign * Fraction(2) ** exponent
            inner, outer = pivots.bounds()
            ends = sorted((scale * low / outer, scale * high / inner))
            if pivots.sign < 0:
                ends = sorted(-x for x in ends)
            return ends[0], ends[1], level
        s, _ = m.rounded(products)
        factors = triangular_factors(s)
        if factors is None:
            return None
        order, lower, upper = factors
        x, y = triangular_inverse(lower, lower=True), triangular_inverse(upper, lower=False)
        if not (np.isfinite(x).all() and np.isfinite(y).all()) or (np.diagonal(x) != 1.0).any():
            return None
        sign *= _parity(order)
        for pivot in np.diagonal(y):
            pivots.multiply(float(pivot))
        if pivots.zero:
            return None
        m = m.rows(order).times_left(x, products, count).times_right(y, products, count)
    return None


def _near_one(m: Transformed, products: Products) -> tuple[Fraction, Fraction] | None:
    """Bounds of det M, relative width below 2^-54; None where M is not close enough to the identity."""
    n = len(m.error)
    e, bound = m.rounded(products, np.eye(n))  # M - 1, which is -E
    epsilon = float(np.max(above(sum_above(np.abs(e), 1) + sum_above(bound, 1))))
    if not n * epsilon * epsilon < 2.0**-57:
        return None
    trace = sum(map(Fraction, np.diagonal(e).tolist()))
    slack = Fraction(float(sum_above(np.diagonal(bound).copy()))) + n * Fraction(epsilon) ** 2
    if slack > Fraction(1, 2**56):
        return None
    return _exponential(trace - slack)[0], _exponential(trace + slack)[1]


def _exponential(x: Fraction) -> tuple[Fraction, Fraction]:
    """exp(x) for |x| <= 2^-8: 16 terms of Taylor's sum, of x truncated to 2^-400; its rest is at most 2·|x|^16/16!."""
    t = Fraction(int(x * 2**400), 2**400)
    total, term = Fraction(0), Fraction(1)
    for k in range(16):
        total += term
        term = Fraction(int(term * t / (k + 1) * 2**400), 2**400)
    rest = 2 * abs(t) ** 16 / 20922789888000 + Fraction(1, 2**390)
    return total - rest, total + rest


class _Product:
    """A product of floats as integer·2^exponent, truncated: its size is in value·[1, 1 + count·2^(2-DIGITS)]."""

    def __init__(self) -> None:
        self.integer, self.exponent, self.count, self.sign, self.zero = 1, 0, 0, 1, False

    def multiply(self, x: float) -> None:
        """Times x."""
        numerator, denominator = abs(x).as_integer_ratio()
        self.zero |= numerator == 0
        self.sign *= -1 if x < 0 else 1
        self.integer *= numerator
        self.exponent -= denominator.bit_length() - 1
        self.count += 1
        surplus = self.integer.bit_length() - DIGITS
        if surplus > 0:
            self.integer >>= surplus
            self.exponent += surplus

    def bounds(self) -> tuple[Fraction, Fraction]:
        """Bounds of the size of the exact product: (1 + 2^(1-D))^count <= 1 + count·2^(2-D) for count <= 2^(D-2)."""
        value = Fraction(self.integer) * Fraction(2) ** self.exponent
        return value, value * (1 + Fraction(self.count, 2 ** (DIGITS - 2)))


def _parity(order: NDArray[np.intp]) -> int:
    """The sign of a permutation: -1 for each cycle of even length."""
    left, sign = order.tolist(), 1
    for i in range(len(left)):
        while left[i] != i:
            j = left[i]
            left[i], left[j] = left[j], left[i]
            sign = -sign
    return sign


def _exponent(x: Fraction) -> int:
    """e with x/2^e in [1/2, 1]."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e + 1 if x > Fraction(2) ** e else e


def _rounded(x: Fraction, way: Any) -> float:
    """A rational number as float64, rounded; digits beyond 2^-300 of it count as one."""
    shift = 300 - (x.numerator.bit_length() - x.denominator.bit_length()) if x else 0
    scaled = x * Fraction(2) ** shift
    whole = scaled.numerator // scaled.denominator
    return float(round_fraction(FP64, whole * 2 + (scaled != whole), -shift - 1, way))
