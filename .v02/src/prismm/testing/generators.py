"""Operands that break careless matrix products, each with what is hostile about it.

All have the signature of `Generator`: ``f(m, k, n, seed, dtype=np.float64) -> (a, b)``. `HOSTILE`
holds those with finite entries and `SPECIAL` those with Inf and NaN, by name, for tests to run
over.

>>> import numpy as np
>>> from prismm.testing import HOSTILE
>>> a, b = HOSTILE["graded"](3, 5, 2, seed=7, dtype=np.float32)
>>> a.shape, b.shape, a.dtype
((3, 5), (5, 2), dtype('float32'))
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import DTypeLike, NDArray

from prismm.formats import Format
from prismm.testing import corners
from prismm.testing.draws import Generator, Pair, Seed, exponential, independent, powers, rotated

__all__ = [
    "HOSTILE",
    "SPECIAL",
    "Generator",
    "carries",
    "graded",
    "gram",
    "infinities",
    "lattice",
    "lattice_wide",
    "normal",
    "one_huge",
    "phi",
    "powers_of_two",
    "shadowed",
    "specials",
    "tiny_uniform",
    "triangular",
    "uniform",
    "wide_rows",
    "wide_rows_and_columns",
    "zero_times_infinity",
    "zeros_rows_cols",
]


@independent
def normal(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Standard normal: the ordinary case, with mild cancellation."""
    return rng.standard_normal((m, k)), rng.standard_normal((k, n))


@independent
def uniform(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Uniform on (0, 1): no cancellation, so bounds by norms are nearly attained."""
    return rng.random((m, k)), rng.random((k, n))


@independent
def tiny_uniform(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """2^-6 times uniform on (0, 1): scales from norms of unscaled data overflow the moduli."""
    return rng.random((m, k)) * 2.0**-6, rng.random((k, n)) * 2.0**-6


def phi(spread: float) -> Generator:
    """A generator of (rand - 0.5)·exp(spread·randn), the literature's test of dynamic range.

    Args:
        spread: φ; at 0.5 like a dense factorisation's data, at 1 to 2 wide, at 4 the largest entry
            dominates its row.

    >>> from prismm.testing import phi
    >>> phi(2.0)(2, 3, 4, seed=0)[1].shape
    (3, 4)
    """

    @independent
    def generate(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
        def draw(shape: tuple[int, int]) -> NDArray[np.float64]:
            return (rng.random(shape) - 0.5) * exponential(spread * rng.standard_normal(shape))

        return draw((m, k)), draw((k, n))

    generate.__name__ = f"phi({spread})"
    generate.__doc__ = f"(rand - 0.5)·exp({spread}·randn): one scale a row loses small entries."
    return generate


def gram(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
    """a and its conjugate transpose: on the diagonal Cauchy-Schwarz is an equality, without slack.

    Columns repeat if n > m.
    """
    a, _ = normal(m, k, 0, seed, dtype)
    if m == 0:
        return a, np.zeros((k, n), dtype)
    return a, np.ascontiguousarray(a[np.arange(n) % m].conj().T)


@rotated
def graded(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Inner index h times 2^g in a, 2^-g in b, |g| up to 60 (float32: 30): terms stay alike.

    Each row and column spans 2·|g| binades, and one scale for a row loses exactly the entries that
    meet large partners.
    """
    span = 60 if fmt.maxexp > 128 else 30
    grade = rng.permutation(np.round(np.linspace(-span, span, k)).astype(np.int64))
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return a * powers(grade), b * powers(-grade)[:, None]


@independent
def wide_rows(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Entries of a from 2^-500 to 2^500 (float32: ±60): one or two of them dominate each row.

    Fixed point holds only those, and certificates by norms fail wherever b is small at that index.
    """
    return _wide(rng, (m, k), 500 if fmt.maxexp > 128 else 60), rng.standard_normal((k, n))


@independent
def wide_rows_and_columns(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Both operands from 2^-500 to 2^500 (float32: ±55): any term may be the one that counts."""
    span = 500 if fmt.maxexp > 128 else 55
    return _wide(rng, (m, k), span), _wide(rng, (k, n), span)


@independent
def lattice(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Integers up to 8: all sums are exact, any wrong bit is a mistake, and many sums are 0."""
    return rng.integers(-8, 9, (m, k)).astype(float), rng.integers(-8, 9, (k, n)).astype(float)


@independent
def lattice_wide(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Integers up to 2^26 (float32: 2^11): exact terms, sums around p bits, ties among them."""
    limit = 2 ** ((fmt.precision - 1) // 2)
    a, b = (rng.integers(-limit, limit + 1, shape) for shape in ((m, k), (k, n)))
    return a.astype(float), b.astype(float)


@independent
def carries(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Significands of all ones, ±(2 - ulp)·2^e: rounding to fewer bits carries out of a digit."""

    def draw(shape: tuple[int, int]) -> NDArray[np.float64]:
        return rng.choice([-1.0, 1.0], shape) * (2 - fmt.eps) * powers(rng.integers(-3, 4, shape))

    return draw((m, k)), draw((k, n))


@independent
def powers_of_two(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """±2^e with |e| up to 30: at the very edge of a binade, where |a| < 2^e must be strict."""

    def draw(shape: tuple[int, int]) -> NDArray[np.float64]:
        return rng.choice([-1.0, 1.0], shape) * powers(rng.integers(-30, 31, shape))

    return draw((m, k)), draw((k, n))


@rotated
def zeros_rows_cols(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Rows of a and columns of b of ±0, and a third of the rest: no exponent to scale by."""

    def draw(shape: tuple[int, int]) -> NDArray[np.float64]:
        x = rng.standard_normal(shape)
        return np.where(rng.random(shape) < 1 / 3, np.copysign(0.0, x), x)

    a, b = draw((m, k)), draw((k, n))
    a[::3] *= 0.0  # keeps the signs
    b[:, 1::3] *= 0.0
    return a, b


@independent
def triangular(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Lower triangular operands: exact zeros above the diagonal, where targets leave no slack."""
    return np.tril(rng.standard_normal((m, k))), np.tril(rng.standard_normal((k, n)))


@independent
def one_huge(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Normal but for one entry of each operand, 2^200 (float32: 2^40) times larger."""
    height = powers(200 if fmt.maxexp > 128 else 40)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    for x in (a, b):
        if x.size:
            x[tuple(rng.integers(0, x.shape))] *= height
    return a, b


@independent
def shadowed(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """The largest elements of rows and columns meet zeros, and the others are as small as the format has room for: what
    is left of a product is tiny beside its row's and column's scales, and none of it may be lost.
    """
    low, high = fmt.minexp - fmt.precision, fmt.maxexp
    part = rng.integers(0, 3, k)
    a, b = (
        rng.choice([-1.0, 1.0], shape) * (1.0 + rng.integers(0, 2**20, shape) * 2.0**-20) for shape in ((m, k), (k, n))
    )
    tops = rng.integers(-high // 2, high // 2, m), rng.integers(-high // 2, high // 2, n)
    small_a = np.maximum(tops[0][:, None] - rng.integers(0, high, (m, 1)) - rng.integers(0, 60, (m, k)), low)
    small_b = np.maximum(tops[1][None, :] - rng.integers(0, high, (1, n)) - rng.integers(0, 60, (k, n)), low)
    ea = np.where(part == 0, tops[0][:, None], small_a)
    eb = np.where((part == 1)[:, None], tops[1][None, :], small_b)
    a, b = a * powers(ea), b * powers(eb)
    a[:, part == 1] = 0.0
    b[part == 0] = 0.0
    return a, b


def specials(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
    """Normal data with ±Inf, NaN and zeros in a third of the rows and columns.

    The others must not notice. Some infinities meet a zero or one another. In complex operands
    either part may be the one that is not finite.
    """
    return _sprinkled(m, k, n, seed, dtype, [np.inf, -np.inf, np.nan, 0.0])


def infinities(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
    """Normal data with +Inf in a third of the rows and columns: most that meet one are ±Inf."""
    return _sprinkled(m, k, n, seed, dtype, [np.inf], share=0.0)


def zero_times_infinity(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
    """Inf in a against zeros in b: skipping a zero operand, or masking Inf as 0, loses the NaN."""
    rng = np.random.default_rng(seed)
    a, b = normal(m, k, n, rng, dtype)
    if k:
        h = int(rng.integers(k))
        a[::2, h] = np.inf
        b[h, ::2] = 0.0
    return a, b


def _wide(rng: np.random.Generator, shape: tuple[int, int], span: int) -> NDArray[np.float64]:
    return rng.standard_normal(shape) * powers(rng.integers(-span, span + 1, shape))


def _sprinkled(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike, values: list[float], share: float = 0.2) -> Pair:
    """Normal data; in each third row of a and column of b, one or a ``share`` of ``values``."""
    rng = np.random.default_rng(seed)
    a, b = normal(m, k, n, rng, dtype)
    views = [a, b.T] if a.dtype.kind != "c" else [a.real, a.imag, b.real.T, b.imag.T]
    for x in views:
        for row in x[int(rng.integers(3)) :: 3] if k else []:
            chosen = rng.random(k) < share
            chosen[rng.integers(k)] = True
            row[chosen] = rng.choice(values, int(np.sum(chosen)))
    return a, b


HOSTILE: Mapping[str, Generator] = MappingProxyType(
    {
        "normal": normal,
        "uniform": uniform,
        "tiny_uniform": tiny_uniform,
        "phi05": phi(0.5),
        "phi1": phi(1.0),
        "phi2": phi(2.0),
        "phi4": phi(4.0),
        "gram": gram,
        "graded": graded,
        "wide_rows": wide_rows,
        "wide_rows_and_columns": wide_rows_and_columns,
        "one_huge": one_huge,
        "shadowed": shadowed,
        "lattice": lattice,
        "lattice_wide": lattice_wide,
        "carries": carries,
        "powers_of_two": powers_of_two,
        "zeros_rows_cols": zeros_rows_cols,
        "triangular": triangular,
        "cancelling": corners.cancelling,
        "ties": corners.ties,
        "near_ties": corners.near_ties,
        "subnormal_operands": corners.subnormal_operands,
        "subnormal_results": corners.subnormal_results,
        "near_overflow": corners.near_overflow,
        "overflow_threshold": corners.overflow_threshold,
    }
)
"""Finite operands by name."""

SPECIAL: Mapping[str, Generator] = MappingProxyType(
    {"specials": specials, "infinities": infinities, "zero_times_infinity": zero_times_infinity}
)
"""Operands with Inf and NaN by name."""
