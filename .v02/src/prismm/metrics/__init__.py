"""How wrong a product is: errors in ulps, relative to norms, and relative to |a||b|.

| measure of the literature | here |
| --- | --- |
| ‖C − Ĉ‖_p / (‖A‖_p‖B‖_p), p = 1, 2, ∞ (Valero-Lara et al. 2023) | `forward_error` |
| E_γ = ‖X − X*‖_F / ‖X‖_F (MixPert: Lin et al. 2024) | `relative_frobenius` |
| mean relative error of scalar products (the same) | `mean_relative` |
| maximum relative error of entries against a correctly rounded result (Mukunoki et al. 2020) | `max_relative` |
| ‖C* − C‖₂ / ‖C*‖₂ (H2SGEMM: Xue et al. 2025, Eq. 11; Frobenius in practice) | `relative_norm` |

A reference is an array, of which the correctly rounded product is the best, or an exact product of
`prismm.testing`, against which the differences themselves are exact. Entries where both sides are
NaN, or the same infinity, agree: their error is 0. Entries where only one side is finite, or the
infinities differ, have an infinite error.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from prismm.core.statistics import mean, median
from prismm.errors import DTypeError, ShapeError
from prismm.formats import format_of
from prismm.metrics.norms import Order, matrix_norm, scaled_norm

__all__ = [
    "componentwise",
    "forward_error",
    "matrix_norm",
    "max_relative",
    "max_ulps",
    "mean_relative",
    "median_ulps",
    "normwise",
    "relative_frobenius",
    "relative_norm",
    "ulps",
]

Floats: TypeAlias = NDArray[np.float64]


@runtime_checkable
class ExactReference(Protocol):
    """What `prismm.testing.ExactProduct` offers to a measurement."""

    def ulps(self, c: NDArray[Any]) -> Floats:
        """Error of each entry of ``c`` in ulps of its correctly rounded value."""

    def part_errors(self, c: NDArray[Any]) -> tuple[Floats, ...]:
        """Absolute errors of the real and, if complex, the imaginary part."""

    def rounded(self, dtype: Any) -> NDArray[Any]:
        """The exact product rounded to ``dtype``."""


Reference: TypeAlias = "NDArray[Any] | ExactReference"


def ulps(c: NDArray[Any], reference: Reference) -> Floats:
    """Error of every entry in units in the last place of the reference, in the type of ``c``.

    Args:
        c: any shape, real or complex floating point.
        reference: of the same shape; an array (of a wider type too), or an exact product.

    Returns:
        float64 of the shape of ``c``; of complex entries the larger of the two parts' errors. At a
        reference of 0 or a subnormal one the ulp is the smallest positive value of the type. Above
        about 2^1024 ulps the answer is inf.

    Raises:
        ShapeError: if the shapes differ.
        DTypeError: if ``c`` is not floating point, or real with a complex reference.

    >>> import numpy as np
    >>> from prismm.metrics import ulps
    >>> ulps(np.array([1.0, 1 + 2**-51, np.inf]), np.array([1.0, 1.0, 2.0]))
    array([ 0.,  2., inf])
    """
    c = np.asarray(c)
    if isinstance(reference, ExactReference):
        return _nan_as_inf(reference.ulps(c))
    worst: Floats = np.maximum.reduce([_part_ulps(x, y) for x, y in _parts(c, reference)])
    return worst


def max_ulps(c: NDArray[Any], reference: Reference) -> float:
    """Largest of `ulps`; 0.0 for an empty ``c``.

    >>> import numpy as np
    >>> from prismm.metrics import max_ulps
    >>> max_ulps(np.array([1.0, 3.0], np.float32), np.array([1.0, 3.0 + 2.0**-22]))
    1.0
    """
    return float(np.max(ulps(c, reference), initial=0.0))


def median_ulps(c: NDArray[Any], reference: Reference) -> float:
    """Median of `ulps`; 0.0 for an empty ``c``.

    >>> import numpy as np
    >>> from prismm.metrics import median_ulps
    >>> median_ulps(np.array([1.0, 1.0, 1 + 2**-52]), np.ones(3))
    0.0
    """
    return median(ulps(c, reference))


def relative_frobenius(c: NDArray[Any], reference: Reference) -> float:
    """‖c − reference‖_F / ‖reference‖_F over the entries whose reference is finite.

    Args:
        c: any shape, real or complex floating point.
        reference: of the same shape; an array or an exact product.

    Returns:
        0.0 where c equals the reference, or is empty; inf where the reference's norm is 0 and c's
        is not, and where an entry is finite on one side only.

    Raises:
        ShapeError, DTypeError: as `ulps`.

    >>> import numpy as np
    >>> from prismm.metrics import relative_frobenius
    >>> relative_frobenius(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    """
    errors, values = _errors(np.asarray(c), reference)
    return _ratio(*_norm(errors), *_norm(values))


def normwise(c: NDArray[Any], reference: Reference) -> float:
    """max |c − reference| / max |reference|, over all entries (of complex ones, over both parts).

    Arguments, specials and errors as `relative_frobenius`.

    >>> import numpy as np
    >>> from prismm.metrics import normwise
    >>> normwise(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.125
    """
    errors, values = _errors(np.asarray(c), reference)
    largest = float(np.max(errors, initial=0.0))
    return _ratio(largest, 0, float(np.max(np.abs(values), initial=0.0)), 0)


def componentwise(c: NDArray[Any], reference: Reference, magnitude: NDArray[Any]) -> float:
    """max over the entries of |c − reference| / magnitude, with magnitude = |a||b| as a rule.

    A conventional GEMM keeps this under k times the unit roundoff, whatever the data.

    Args:
        c: any shape, real or complex floating point.
        reference: of the same shape; an array or an exact product.
        magnitude: float64 of the same shape, not negative.

    Returns:
        0/0 counts as 0 and x/0 as inf; of complex entries each part is measured against the same
        magnitude.

    Raises:
        ShapeError, DTypeError: as `ulps`.

    >>> import numpy as np
    >>> from prismm.metrics import componentwise
    >>> componentwise(np.array([0.5, 8.0]), np.array([0.0, 8.0]), np.array([4.0, 8.0]))
    0.125
    """
    c = np.asarray(c)
    errors, _ = _errors(c, reference)
    magnitude = np.asarray(magnitude, dtype=np.float64)
    if magnitude.shape != c.shape:
        raise ShapeError(f"magnitude has shape {magnitude.shape}; pass one of c's shape {c.shape}")
    with np.errstate(all="ignore"):
        ratios = np.where((errors == 0) | np.isinf(errors), errors, errors / magnitude)
    return float(np.max(ratios, initial=0.0))


def forward_error(c: NDArray[Any], reference: Reference, a: NDArray[Any], b: NDArray[Any], p: Order = 2) -> float:
    """‖c − reference‖_p / (‖a‖_p·‖b‖_p), the forward error of Valero-Lara et al. 2023.

    Args:
        c: (m, n), real or complex floating point.
        reference: of the same shape; an array or an exact product.
        a, b: the operands, (m, k) and (k, n).
        p: 1, 2, ``numpy.inf`` or "fro", as `matrix_norm`.

    Returns:
        0.0 where c equals the reference; inf where an entry is finite on one side only, or a norm of 0 divides.

    Raises:
        ShapeError, DTypeError: as `ulps`; ArgumentError: for another p.

    >>> import numpy as np
    >>> from prismm.metrics import forward_error
    >>> forward_error(np.array([[1.5]]), np.array([[1.0]]), np.array([[2.0]]), np.array([[0.5]]), p=1)
    0.5
    """
    top = scaled_norm(_differences(np.asarray(c), reference), p)
    left, right = scaled_norm(np.asarray(a), p), scaled_norm(np.asarray(b), p)
    return _ratio(*top, left[0] * right[0], left[1] + right[1])


def relative_norm(c: NDArray[Any], reference: Reference, p: Order = 2) -> float:
    """‖c − reference‖_p / ‖reference‖_p over the entries whose reference is finite.

    With p = 2 the error of H2SGEMM's Eq. 11; arguments, specials and errors as `forward_error`.

    >>> import numpy as np
    >>> from prismm.metrics import relative_norm
    >>> relative_norm(np.diag([3.0, 5.0]), np.diag([3.0, 4.0]))
    0.25
    """
    c = np.asarray(c)
    _, values = _errors(c, reference)
    whole = values[0] if len(values) == 1 else values[0] + 1j * values[1]
    return _ratio(*scaled_norm(_differences(c, reference), p), *scaled_norm(whole, p))


def max_relative(c: NDArray[Any], reference: Reference) -> float:
    """Largest |c − reference| / |reference| of all entries, the error of Mukunoki et al. 2020; moduli if complex.

    Against an exact product the differences are exact, and divided by its nearest float64. 0/0 counts as 0, x/0 as
    inf. Arguments, specials and errors as `relative_frobenius`.

    >>> import numpy as np
    >>> from prismm.metrics import max_relative
    >>> max_relative(np.array([3.0, 5.0, 0.0]), np.array([3.0, 4.0, 0.0]))
    0.25
    """
    return float(np.max(_relative(c, reference), initial=0.0))


def mean_relative(c: NDArray[Any], reference: Reference) -> float:
    """Mean of |c − reference| / |reference| over all entries, as MixPert has it of scalar products; else as
    `max_relative`. Its E_γ of matrices is `relative_frobenius`.

    >>> import numpy as np
    >>> from prismm.metrics import mean_relative
    >>> mean_relative(np.array([3.0, 5.0]), np.array([3.0, 4.0]))
    0.125
    """
    errors = _relative(c, reference)
    return mean(errors)


def _relative(c: NDArray[Any], reference: Reference) -> Floats:
    """|c − reference| / |reference|, entry by entry."""
    errors, values = _errors(np.asarray(c), reference)
    with np.errstate(all="ignore"):
        # Both scaled by the reference's exponent, so that moduli neither overflow nor vanish.
        shift = -np.frexp(np.max(np.abs(values), axis=0))[1]
        top, bottom = (np.ldexp(x, shift) for x in (errors, values))
        size, over = (x[0] if len(x) == 1 else np.hypot(*x) for x in (np.abs(bottom), top))
        ratios: Floats = np.where((over == 0) | np.isinf(over), over, over / size)
    return ratios


def _differences(c: NDArray[Any], reference: Reference) -> NDArray[Any]:
    """c − reference with signs, as float64 or complex128; 0 where both are the same special, inf where one is.

    An exact product gives magnitudes. c − exact has the sign of c − RN(exact) if that is not 0; else exact > c just if
    the next larger float is less than one ulp away from it.
    """
    errors, values = _errors(c, reference)
    parts = [c.real, c.imag] if np.iscomplexobj(c) else [c]
    with np.errstate(all="ignore"):
        signs = [np.sign(x.astype(np.float64) - y) for x, y in zip(parts, values, strict=True)]
        if isinstance(reference, ExactReference) and any((s == 0).any() for s in signs):
            above = [np.nextafter(x.astype(np.float64), np.inf) for x in parts]
            whole = above[0] if len(above) == 1 else above[0] + 1j * above[1]
            gaps = reference.part_errors(whole)
            for sign, x, y, gap in zip(signs, parts, above, gaps, strict=True):
                sign[sign == 0] = np.where(gap < y - x.astype(np.float64), -1.0, 1.0)[sign == 0]
    signed = [np.where(np.isinf(e), e, s * e) for s, e in zip(signs, errors, strict=True)]
    signed = [np.where(e == 0, 0.0, x) for x, e in zip(signed, errors, strict=True)]
    if len(signed) == 1:
        only: NDArray[Any] = signed[0]
        return only
    result = np.empty(c.shape, np.complex128)
    result.real, result.imag = signed
    return result


def _parts(c: NDArray[Any], reference: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Pairs of real arrays to compare: one if both are real, else real and imaginary parts."""
    reference = np.asarray(reference)
    format_of(c.dtype)  # refuses what is not floating point
    if c.shape != reference.shape:
        raise ShapeError(f"c has shape {c.shape} and its reference {reference.shape}; pass equal shapes")
    if np.iscomplexobj(reference) and not np.iscomplexobj(c):
        raise DTypeError(f"c is {c.dtype} and its reference {reference.dtype}; pass a complex c")
    if np.iscomplexobj(c):
        return [(c.real, reference.real), (c.imag, reference.imag)]
    return [(c, reference)]


def _with_special_values(errors: Floats, c: NDArray[Any], reference: NDArray[Any]) -> Floats:
    """Errors with the entries that are not finite on both sides set to 0 (they agree) or inf."""
    same = (c == reference) | (np.isnan(c) & np.isnan(reference))
    odd = ~(np.isfinite(c) & np.isfinite(reference))
    found: Floats = np.where(odd, np.where(same, 0.0, np.inf), errors)
    return found


def _nan_as_inf(errors: Floats) -> Floats:
    """An exact product gives NaN for a NaN; but its reference is a number, so here it is inf."""
    measured: Floats = np.where(np.isnan(errors), np.inf, errors)
    return measured


def _part_ulps(c: NDArray[Any], reference: NDArray[Any]) -> Floats:
    fmt = format_of(c.dtype)
    with np.errstate(all="ignore"):
        nearest = reference.astype(c.dtype)  # the binade that counts is that of the rounded reference
        reference = np.where(np.isfinite(nearest), reference, nearest)
        binade = np.where(nearest == 0, fmt.minexp, np.frexp(nearest.astype(np.float64))[1] - 1)
        shift = fmt.fraction_bits - np.maximum(binade, fmt.minexp)
        # In ulps first, then subtract: the difference neither overflows nor underflows.
        scaled = np.ldexp(c.astype(np.float64), shift) - np.ldexp(reference.astype(np.float64), shift)
        return _with_special_values(np.abs(scaled), c, reference)


def _errors(c: NDArray[Any], reference: Reference) -> tuple[Floats, Floats]:
    """Absolute errors and reference values, finite ones only, with a leading axis for the parts."""
    if isinstance(reference, ExactReference):
        values = reference.rounded(np.complex128 if np.iscomplexobj(c) else np.float64)
        errors = _nan_as_inf(np.stack(reference.part_errors(c)))
        parts = [values.real, values.imag] if np.iscomplexobj(values) else [values]
    else:
        pairs = _parts(c, reference)
        parts = [y for _, y in pairs]
        with np.errstate(all="ignore"):
            differences = [np.abs(x.astype(np.float64) - y.astype(np.float64)) for x, y in pairs]
        errors = np.stack([_with_special_values(d, x, y) for d, (x, y) in zip(differences, pairs, strict=True)])
    values = np.stack([y.astype(np.float64) for y in parts])
    return errors, np.where(np.isfinite(values), values, 0.0)


def _norm(x: Floats) -> tuple[float, int]:
    """Euclidean norm as fraction * 2^exponent: squares neither overflow nor vanish."""
    largest = float(np.max(np.abs(x), initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest, 0
    exponent = int(np.frexp(largest)[1])
    return float(np.linalg.norm(np.ldexp(x, -exponent).ravel())), exponent


def _ratio(top: float, top_exponent: int, bottom: float, bottom_exponent: int) -> float:
    if top == 0:
        return 0.0
    if bottom == 0:
        return float("inf")
    with np.errstate(all="ignore"):
        return float(np.ldexp(top / bottom, top_exponent - bottom_exponent))
