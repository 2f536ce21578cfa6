"""The error analysis of MixPert (Lin et al. 2024, §3.2.3, §3.3) as functions; its arithmetic on scalars and vectors.

The paper's model of one product: significands x = x_0·2^-6 + x_1·2^-13 + x_2·2^-20 + x_3·2^-27 with independent uniform
x_0 in [64, 89], x_1, x_2 in [0, 127], x_3 in {0, 16, 32, 48}, and the error (x_0·y_3 + x_3·y_0)·2^-33 of Eq. 6. The
paper puts its expectation at 2.82e-7. Summed over the stated distributions it is 2.98e-7: `expected_error`. The model
lets the discarded bits be 0 to 3 of 8 and takes them as lost toward zero. What rounding to nearest really loses is -3
to 4 of 8: float32 numbers with uniform significands give 2.27e-7 in the mean, and the worst product errs by 9.5e-7,
more than the paper's 7.15e-7; see `scalar_product`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from prismm.cpu.tile_int8.split import spare_bits
from prismm.errors import ArgumentError, ShapeError
from prismm.schemes.tile_int8 import SEGMENTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FIRST = (64, 89)
"""Least and largest first segment in the paper's model; the largest is floor(sqrt(2^13) - 1)."""
DISCARDED = (0, 16, 32, 48)
"""The model's values of the segment that is discarded."""
PUBLISHED_EXPECTATION = 2.82e-7
PUBLISHED_WORST = 7.15e-7


def expected_error() -> float:
    """Expectation of e_γ (Eq. 6) under the paper's stated distributions, by enumeration.

    x and y are independent and alike, so E[e_γ] = 2·2^-33·E[x_0/x']·E[x_3/x'], over 26·128·128·4 significands x'.

    >>> round(expected_error() * 1e7, 2)
    2.98
    """
    low = (np.arange(128)[:, None] * 2.0**-13 + np.arange(128) * 2.0**-20).ravel()
    first = last = 0.0
    for x0 in range(FIRST[0], FIRST[1] + 1):
        for x3 in DISCARDED:
            inverse = float(np.mean(1.0 / (x0 * 2.0**-6 + low + x3 * 2.0**-27)))
            first += x0 * inverse
            last += x3 * inverse
    count = (FIRST[1] - FIRST[0] + 1) * len(DISCARDED)
    return 2.0**-32 * (first / count) * (last / count)


def worst_error() -> float:
    """The largest e_γ of the model: least significands, most discarded; below 3·2^-22.

    >>> worst_error() < 7.15256e-7 < 3 * 2.0**-22 + 1e-12
    True
    """
    x0, x3 = FIRST[0], DISCARDED[-1]
    return 2.0 * x0 * x3 * 2.0**-33 / (x0 * 2.0**-6 + x3 * 2.0**-27) ** 2


def sampled_errors(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """`count` draws of e_γ (Eq. 6) from the paper's model, float64 (count,).

    >>> import numpy as np
    >>> from prismm.reproduce.tile_model import sampled_errors, worst_error
    >>> bool(sampled_errors(1000, np.random.default_rng(0)).max() <= worst_error())
    True
    """
    x0, y0 = rng.integers(FIRST[0], FIRST[1] + 1, (2, count))
    x3, y3 = rng.choice(DISCARDED, (2, count))
    middle = rng.integers(0, 128, (2, 2, count))
    x, y = (
        z0 * 2.0**-6 + middle[i, 0] * 2.0**-13 + middle[i, 1] * 2.0**-20 + z3 * 2.0**-27
        for i, (z0, z3) in enumerate(((x0, x3), (y0, y3)))
    )
    errors: NDArray[np.float64] = (x0 * y3 + x3 * y0) * 2.0**-33 / (x * y)
    return errors


def scalar_product(x: ArrayLike, y: ArrayLike, level: int = 4) -> NDArray[np.float64]:
    """x·y as `TileInt8` multiplies two scalars (Eqs. 2-4), before any rounding to FP32.

    Args:
        x, y: finite, of broadcastable shapes, of moderate size: no product near float64's range.
        level: 1 to 5, see `TileInt8`.

    Returns:
        float64; exact for levels 1 to 4, and for level 5 where the operands are float32 values.

    Raises:
        ArgumentError: for another level.

    >>> x = 1.0 + 2.0**-21                      # a tie: the last bit that is kept is 2^-20
    >>> error = 1.0 - float(scalar_product(x, x)) / x**2
    >>> PUBLISHED_WORST < error < 2.0**-20
    True
    """
    left, right = _segments_of(level)
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    a, b = _quantised(x, _exponents(x, left), left), _quantised(y, _exponents(y, right), right)
    return _without_last(a, b, level)


def vector_product(x: ArrayLike, y: ArrayLike, level: int = 4, exponent: Literal["tile", "pair"] = "pair") -> float:
    """x·y of two vectors with one exponent each, or with the larger one for both (Eqs. 7 and 8); no rounding to FP32.

    Args:
        x, y: finite, of equal length.
        level: 1 to 5, see `TileInt8`.
        exponent: "pair" as Eq. 8 has it, or "tile".

    Returns:
        The sum, rounded to float64.

    Raises:
        ArgumentError: for another level or exponent.
        ShapeError: if the arguments are no vectors of one length.

    >>> import numpy as np
    >>> vector_product(np.array([1.0, 2.0]), np.array([2.0**-20, 1.0]), exponent="tile")
    2.000000953...
    """
    left, right = _segments_of(level)
    if exponent not in ("tile", "pair"):
        raise ArgumentError(f"exponent={exponent!r}; pass 'tile' or 'pair'")
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ShapeError(f"x and y have shapes {x.shape} and {y.shape}; pass vectors of one length")
    if not (x.any() and y.any()):
        return 0.0
    p, q = int(_exponents(x, left).max()), int(_exponents(y, right).max())
    if exponent == "pair":
        p = q = max(p, q)
    a, b = _quantised(x, np.full(x.shape, p), left), _quantised(y, np.full(y.shape, q), right)
    return math.fsum(_without_last(a, b, level).tolist())


def absorption(x: ArrayLike, exponent: int | None = None) -> float:
    """Δ of Eq. 9 in units of u: what alignment to a common exponent discards beyond what FP32 sums lose anyway.

    Δ = Σ_i max(0, δ'_i - δ)/k with δ = floor(log2 k), δ'_i the distance of the exponents of x_i and of the largest
    element. Zeros lose nothing. `TileInt8` falls back where Δ > 1.

    Args:
        x: a finite vector, not empty.
        exponent: the common exponent, at least x's own; None for floor(log2 max|x|).

    Raises:
        ShapeError: if x is no vector, or empty.

    >>> import numpy as np
    >>> absorption(np.array([1.0, 0.5, 2.0**-4, 0.0]))   # 2 of 4 bits are beyond δ = 2
    0.5
    """
    x = np.asarray(x, np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ShapeError(f"x has shape {x.shape}; pass a vector that is not empty")
    found = np.frexp(x[x != 0])[1] - 1
    if found.size == 0:
        return 0.0
    common = int(found.max()) if exponent is None else exponent
    return float(np.maximum(0, common - found - spare_bits(x.size)).sum()) / x.size


def _segments_of(level: int) -> tuple[int, int]:
    if level not in SEGMENTS:
        raise ArgumentError(f"level={level!r}; pass 1 to 4 (the paper's I to IV) or 5 for (3, 3)")
    return SEGMENTS[level]


def _exponents(x: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """floor(log2 |x|), one more where the significand carries to 2; -2000 for zeros."""
    bits = 7 * count - 1
    fraction, e = np.frexp(np.abs(x))
    e = e - 1 + (np.rint(np.ldexp(fraction, bits + 1)) == 2.0 ** (bits + 1))
    return np.where(x == 0, -2000, e).astype(np.int64)


def _quantised(x: NDArray[np.float64], exponents: NDArray[np.int64], count: int) -> list[NDArray[np.float64]]:
    """The values of the segments of x, first to last."""
    bits = 7 * count - 1
    rest = np.rint(np.ldexp(x, bits - np.maximum(exponents, -900)))
    values = []
    for p in range(count):
        unit = 2.0 ** (7 * (count - 1 - p))
        digit = np.trunc(rest / unit)
        rest = rest - digit * unit
        values.append(np.ldexp(digit * unit, np.maximum(exponents, -900) - bits))
    return values


def _without_last(a: list[NDArray[np.float64]], b: list[NDArray[np.float64]], level: int) -> NDArray[np.float64]:
    """(Σ a_i)(Σ b_j), without the product of both last segments at level 4; the sums are exact."""
    product: NDArray[np.float64] = sum(a[1:], a[0]) * sum(b[1:], b[0])
    return product - a[-1] * b[-1] if level == 4 else product
