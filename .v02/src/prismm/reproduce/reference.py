"""References that are far more accurate than what they judge, at the cost of a few products, and norms of errors.

`twofold` returns an unevaluated sum of two float64 matrices. Operands are cut into slices of whole numbers so short
that every product of two slices is exact in float64 (Ozaki et al. 2012), whatever the order of a BLAS's sums; what is
rounded is only their addition in two-fold arithmetic.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prismm.errors import ArgumentError

Floats: TypeAlias = NDArray[np.float64]
Norm: TypeAlias = Literal["l1", "l2", "linf"]
NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
_ORDER: dict[Norm, float] = {"l1": 1, "l2": 2, "linf": np.inf}
_MOST = 12  # slices of an operand


def twofold(a: NDArray[Any], b: NDArray[Any]) -> tuple[Floats, Floats]:
    """high, low with high + low = a @ b up to 2^-98 of the largest magnitudes' product, entry by entry.

    Each vector (row of a, column of b) is cut at multiples of 2^-w, 2^-2w, … of its largest magnitude, toward zero, so
    slices are integers below 2^w; with 2w + log2 k <= 53 their products are exact sums. At most d <= 12 slices are cut,
    until nothing is left; the d² products, of relative weight 2^-w(p+q), are added smallest first with an error of
    2^-106 each.

    Args:
        a: (m, k), finite, exactly representable in float64.
        b: (k, n), likewise.

    Raises:
        ArgumentError: if 12 slices do not hold an operand, whose vectors then span too many binades.

    >>> import numpy as np
    >>> from prismm.reproduce.reference import twofold
    >>> twofold(np.array([[1e16, 1.0, -1e16]]), np.array([[1.0], [2.0**-60], [1.0]]))
    (array([[8.67361738e-19]]), array([[0.]]))
    """
    k = a.shape[1]
    width = (53 - math.ceil(math.log2(max(k, 2)))) // 2
    left, right = _cut(np.asarray(a, np.float64), 1, width), _cut(np.asarray(b, np.float64), 0, width)
    high = np.zeros((a.shape[0], b.shape[1]))
    low = np.zeros_like(high)
    pairs = sorted(((p, q) for p in range(len(left)) for q in range(len(right))), key=lambda pair: -sum(pair))
    for p, q in pairs:
        term = left[p] @ right[q]  # exact: slices carry their weights, which are powers of two
        total = high + term
        part = total - high
        low += (high - (total - part)) + (term - part)
        high = total
    total = high + low
    return total, low - (total - high)


def _cut(x: Floats, axis: int, width: int) -> list[Floats]:
    """Slices of x, each of at most `width` bits below its vector's current unit, until nothing is left."""
    top = np.frexp(np.max(np.abs(x), axis=axis, initial=0.0, keepdims=True))[1]
    slices, rest = [], x
    for place in range(1, _MOST + 1):
        unit = top - width * place
        slice_ = np.ldexp(np.trunc(np.ldexp(rest, -unit)), unit)
        slices.append(slice_)
        rest = rest - slice_
        if not rest.any():
            return slices
    raise ArgumentError(f"operands span more than {width * _MOST} bits; pass data of a narrower range")


def error_of(c: NDArray[Any], high: Floats, low: Floats | None = None) -> Floats:
    """c − (high + low), rounded to float64."""
    error: Floats = np.asarray(c, np.float64) - high
    return error if low is None else error - low


def norms(x: Floats) -> dict[Norm, float]:
    """‖x‖₁, ‖x‖₂ and ‖x‖∞ as operator norms, which the ratio ‖C − Ĉ‖/(‖A‖‖B‖) needs."""
    return {name: float(np.linalg.norm(x, _ORDER[name])) for name in NORMS}


def relative_frobenius(error: Floats, reference: Floats) -> float:
    """‖error‖_F / ‖reference‖_F."""
    return float(np.linalg.norm(error) / np.linalg.norm(reference))


def max_relative(c: NDArray[Any], correct: NDArray[Any]) -> float:
    """Largest |c − correct| / |correct| over the entries; an entry of 0 must be met exactly, else it is inf."""
    c, correct = np.asarray(c, np.float64), np.asarray(correct, np.float64)
    error = np.abs(c - correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error == 0, 0.0, error / np.abs(correct)), initial=0.0))
