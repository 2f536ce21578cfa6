"""Determinants with an enclosure that excludes 0.

A[rows] ≈ LU, with X ≈ L⁻¹ and Y ≈ U⁻¹ triangular and X of unit diagonal, gives M = X·A[rows]·Y near the identity, and
det A = ± det M / Π Y_ii, exactly. M is kept as a sum of parts with a bound of the rest (`transformed.py`), so the step
can be repeated on M: each reduces a condition number by about 1/u (as Rump 1990 does for inverses).

Let M = 1 - E, real or complex, ε a bound of the largest row sum of |E|, ε <= 1/2. Eigenvalues of E are at most ε in
size, so det(1 - tE) is not 0 for t in [0, 1], and log det M = -tr E - Σ_(k>=2) tr(E^k)/k, where |tr(E^k)| <= n·ε^k: so
|log det M + tr E| <= n·ε²/(2(1-ε)) <= n·ε². The exponential of that disc about -tr E holds det M, and does not hold 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.errors import NotCertified
from prismm.formats import FP64, round_fraction
from prismm.linalg.discs import Disc, LongProduct, exponential
from prismm.linalg.expansions import Products
from prismm.linalg.factors import triangular_factors, triangular_inverse
from prismm.linalg.inverse import LARGE
from prismm.linalg.matrices import all_finite, balanced, diagonal, identity, size_above
from prismm.linalg.operands import check_square, common, operand_where_it_is
from prismm.linalg.rounding import above, sum_above
from prismm.linalg.transformed import Transformed

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = 6
COUNTS = (2, 4, 7)
"""Parts of M: it is tried with few first; the last for n <= LARGE alone."""


@dataclass(frozen=True)
class DeterminantReport:
    """Returned beside a determinant by ``full_output=True``: lower·2^exponent <= det <= upper·2^exponent, of a complex
    one for real and for imaginary parts. The enclosure does not contain 0.

    Of a batch every attribute is an array of its shape. Of complex matrices sign, lower and upper are complex.

    Attributes:
        sign: 1 or -1, proved; of a complex determinant det/|det|, off by at most 2^-50.
        lower: a proved lower bound of det/2^exponent.
        upper: a proved upper bound of det/2^exponent; in size, the largest of the parts of both is in [1/2, 1].
        exponent: a power of two, which keeps determinants apart that overflow.
        steps: factorisations, each of what the one before it left.

    >>> import numpy as np, prismm.linalg
    >>> _, report = prismm.linalg.det(np.diag([2.0, 3.0]), full_output=True)
    >>> report.sign, report.lower * 2.0**report.exponent <= 6.0 <= report.upper * 2.0**report.exponent
    (1, True)
    """

    sign: Any
    lower: Any
    upper: Any
    exponent: Any
    steps: Any


def det(a: Any, /, *, full_output: bool = False) -> Any:
    """The determinant, at most one unit in the last place off, with proof that it is not 0.

    Of a complex one, either part is at most one unit in the last place of the larger part off. A Hermitian matrix has a
    real determinant: its imaginary part is 0 exactly.

    Args:
        a: (..., n, n), as in `prismm.linalg.solve`.
        full_output: return (determinant, `DeterminantReport`), whose enclosure is not rounded to the float64 range.

    Returns:
        float or complex; of a batch an array of its shape, float64 or complex128. It is nearest to the middle of the
        enclosure. Parts that overflow are ±Inf; the report has the enclosure all the same.

    Raises:
        NotCertified: for a singular matrix, or one too close to it.
        ShapeError, DTypeError, OperandError, ArgumentError: as `prismm.linalg.solve`.

    Sources: Rump 1990, 2010.

    >>> import numpy as np, prismm.linalg
    >>> prismm.linalg.det(np.array([[1.0, 2.0], [3.0, 4.0]]))
    -2.0
    >>> prismm.linalg.det(np.array([[1.0, 2.0j], [3.0, 4.0]]))
    (4-6j)
    """
    source = operand_where_it_is(a, "a")
    check_square(source.data, "a")
    _, dtype = common({"a": source})
    batch, products = source.data.shape[:-2], Products(source.device)
    is_complex = dtype.kind == "c"
    with np.errstate(all="ignore"):
        found = [_one(source.matrix(at), is_complex, products) for at in np.ndindex(*batch)]
    if not batch:
        value, report = found[0]
        return (value, report) if full_output else value
    number = np.complex128 if is_complex else np.float64
    values = source.returned(np.array([value for value, _ in found], number).reshape(batch))
    if not full_output:
        return values
    kinds = {"sign": number if is_complex else int, "lower": number, "upper": number, "exponent": int, "steps": int}
    return values, DeterminantReport(
        *(np.array([getattr(one, name) for _, one in found], kind).reshape(batch) for name, kind in kinds.items())
    )


def _one(a: Any, is_complex: bool, products: Products) -> tuple[Any, DeterminantReport]:
    """The determinant of one matrix: of the disc's centre, and of the rectangle about the disc."""
    disc, exponent, steps = _enclosure(a, products)
    real = _interval(disc.real, disc.radius)
    if not is_complex:
        scale = _exponent(max(map(abs, real)))
        lower, upper = _ends(real, scale)
        report = DeterminantReport(1 if lower > 0.0 else -1, lower, upper, scale + exponent, steps)
        return _rounded(disc.real, "nearest", exponent), report
    # det Aᴴ is the conjugate of det A.
    imag = _interval(disc.imag, disc.radius) if bool((a != a.conj().T).any()) else (Fraction(0), Fraction(0))
    middle = disc.real, (imag[0] + imag[1]) / 2
    scale = _exponent(max(map(abs, (*real, *imag))))
    corners = [complex(x, y) for x, y in zip(_ends(real, scale), _ends(imag, scale), strict=True)]
    x, y = (_rounded(part, "nearest", -scale) for part in middle)
    sign = complex(x / hypot(x, y), y / hypot(x, y))
    report = DeterminantReport(sign, corners[0], corners[1], scale + exponent, steps)
    return complex(*(_rounded(part, "nearest", exponent) for part in middle)), report


def _interval(centre: Fraction, radius: Fraction) -> tuple[Fraction, Fraction]:
    return centre - radius, centre + radius


def _ends(interval: tuple[Fraction, Fraction], exponent: int) -> tuple[float, float]:
    """Over 2^exponent, as floats that enclose it."""
    low, high = interval
    return _rounded(low, "down", -exponent), _rounded(high, "up", -exponent)


def _enclosure(a: Any, products: Products) -> tuple[Disc, int, int]:
    """(disc, e, steps): the determinant is in disc·2^e, which does not contain 0."""
    if not len(a):
        return Disc(Fraction(1), Fraction(0), Fraction(0)), 0, 0
    scaled, rows, columns = balanced(a)
    for count in COUNTS if len(a) <= LARGE else COUNTS[:-1]:
        found = _bounds(Transformed.exactly(scaled), -int(rows.sum() + columns.sum()), products, count)
        if found is not None:
            return found
    raise NotCertified("a is singular, or too close to it for a proof that its determinant is not 0")


def _bounds(m: Transformed, exponent: int, products: Products, count: int) -> tuple[Disc, int, int] | None:
    """Of det M·2^exponent, by steps in so many parts: sign·2^exponent·det M / Π Y_ii stays the same."""
    sign, pivots = 1, LongProduct()
    for level in range(LEVELS):
        found = _near_one(m, products)
        if found is not None:
            inverse, more = pivots.reciprocal()
            signed = Disc(Fraction(sign), Fraction(0), Fraction(0))
            return signed.times(found).times(inverse), exponent + more, level
        s, _ = m.rounded(products)
        factors = triangular_factors(s)
        if factors is None:
            return None
        order, lower, upper = factors
        x, y = triangular_inverse(lower, lower=True), triangular_inverse(upper, lower=False)
        if not (all_finite(x) and all_finite(y)) or (diagonal(x) != 1.0).any():
            return None
        sign *= _parity(order)
        for pivot in diagonal(y).tolist():
            pivots.multiply(pivot)
        if pivots.zero:
            return None
        m = m.rows(order).times_left(x, products, count).times_right(y, products, count)
    return None


def _near_one(m: Transformed, products: Products) -> Disc | None:
    """A disc of det M, of radius below 2^-55; None where M is not close enough to the identity."""
    n = len(m.error)
    e, bound = m.rounded(products, identity(n, m.parts[0]))  # M - 1, which is -E
    epsilon = float(above(sum_above(size_above(e), 1) + sum_above(bound, 1)).max())
    if not n * epsilon * epsilon < 2.0**-57:
        return None
    entries = diagonal(e)
    real, imag = (sum(map(Fraction, part.tolist()), Fraction(0)) for part in (entries.real, entries.imag))
    slack = Fraction(float(sum_above(diagonal(bound).copy()))) + n * Fraction(epsilon) ** 2
    return exponential(real, imag, slack) if slack <= Fraction(1, 2**56) else None


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


def _rounded(x: Fraction, way: Any, exponent: int = 0) -> float:
    """x·2^exponent as float64, rounded; digits beyond 2^-300 of it count as one."""
    shift = 300 - (x.numerator.bit_length() - x.denominator.bit_length()) if x else 0
    scaled = x * Fraction(2) ** shift
    whole = scaled.numerator // scaled.denominator
    return float(round_fraction(FP64, whole * 2 + (scaled != whole), exponent - shift - 1, way))
