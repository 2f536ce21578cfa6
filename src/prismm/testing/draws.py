"""How a hostile generator is made from a plain one that draws real float64 values of a format.

A plain draw is ``f(m, k, n, rng, fmt) -> (a, b)``. `independent` and `rotated` turn it into a
`Generator`, which takes a seed and an element type, and differ in how they make complex operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from prismm.errors import ArgumentError
from prismm.formats import Format, format_of

__all__ = [
    "Draw",
    "Generator",
    "Pair",
    "Seed",
    "cancelling_pairs",
    "exponential",
    "independent",
    "powers",
    "rotated",
    "shuffled",
]

Seed: TypeAlias = "int | np.random.Generator"
Pair: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
Draw: TypeAlias = Callable[[int, int, int, np.random.Generator, Format], Pair]


class Generator(Protocol):
    """Draws operands of shapes (m, k) and (k, n); any of the three may be 0.

    Args:
        m, k, n: sizes.
        seed: of NumPy's generator; equal seeds give equal bits.
        dtype: float64 (default), float32, complex128 or complex64.

    >>> from prismm.testing import HOSTILE
    >>> a, b = HOSTILE["normal"](2, 3, 4, seed=1)
    >>> a.shape, b.shape
    ((2, 3), (3, 4))
    """

    __name__: str

    def __call__(self, m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
        """Operands of float64, float32, complex128 or complex64; equal seeds give equal bits."""


def independent(draw: Draw) -> Generator:
    """A generator from ``draw``; the two parts of complex operands are two independent draws."""

    def generate(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
        rng, fmt, real, is_complex = _setting(seed, dtype)
        a, b = _cast(draw(m, k, n, rng, fmt), real)
        if not is_complex:
            return a, b
        ai, bi = _cast(draw(m, k, n, rng, fmt), real)
        return join_parts(a, ai), join_parts(b, bi)

    return _named(generate, draw)


def rotated(draw: Draw) -> Generator:
    """A generator from a ``draw`` whose exact sums matter.

    Complex operands are a·(1 + i) and b with its columns times powers of i. So both parts of the
    product are the drawn sum, up to sign, and stay a tie, a zero or an overflow.
    """

    def generate(m: int, k: int, n: int, seed: Seed, dtype: DTypeLike = np.float64) -> Pair:
        rng, fmt, real, is_complex = _setting(seed, dtype)
        a, b = _cast(draw(m, k, n, rng, fmt), real)
        if not is_complex:
            return a, b
        turns = rng.integers(0, 4, size=n)
        cosine, sine = np.array([1, 0, -1, 0], real)[turns], np.array([0, 1, 0, -1], real)[turns]
        return join_parts(a, a), join_parts(b * cosine, b * sine)

    return _named(generate, draw)


def join_parts(real: NDArray[Any], imaginary: NDArray[Any]) -> NDArray[Any]:
    """real + i·imaginary without arithmetic, so that Inf and signed zeros stay where they are."""
    joined = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    joined.real, joined.imag = real, imaginary
    return joined


def powers(exponents: Any) -> NDArray[np.float64]:
    """2^exponents as float64."""
    return np.ldexp(1.0, np.asarray(exponents, np.int64))


_LN2 = 0.693147180369123816490, 1.90821492927058770002e-10
"""ln 2 in two parts, the first one with so many zeros at its end that small multiples of it are exact."""


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(x) of |x| < 700 within a few ulp: the same bits on every processor, where `numpy.exp` goes by its units.

    >>> import math, numpy as np
    >>> float(exponential(np.array([1.0]))[0] - math.e) < 1e-15
    True
    """
    k = np.rint(x * 1.4426950408889634)
    r = (x - k * _LN2[0]) - k * _LN2[1]
    total = np.full_like(r, 1.0 / math.factorial(13))
    for power in range(12, -1, -1):
        total = total * r + 1.0 / math.factorial(power)
    return np.ldexp(total, k.astype(np.int64))


def cancelling_pairs(u: NDArray[Any], v: NDArray[Any]) -> Pair:
    """[u u] and [v; -v], whose product is exactly zero."""
    return np.hstack([u, u]), np.vstack([v, -v])


def shuffled(rng: np.random.Generator, a: NDArray[Any], b: NDArray[Any]) -> Pair:
    """The same products in another order of the inner dimension."""
    order = rng.permutation(a.shape[1])
    return a[:, order], b[order, :]


def _setting(seed: Seed, dtype: DTypeLike) -> tuple[np.random.Generator, Format, np.dtype[Any], bool]:
    kind = np.dtype(dtype)
    if kind not in (np.float64, np.float32, np.complex128, np.complex64):
        raise ArgumentError(f"dtype={kind} is not drawn; pass float64, float32, complex128 or complex64")
    return (
        np.random.default_rng(seed),
        format_of(kind),
        np.empty(0, kind).real.dtype,
        kind.kind == "c",
    )


def _cast(pair: Pair, dtype: np.dtype[Any]) -> Pair:
    with np.errstate(over="raise"):  # a draw that overflows its own format is a mistake in the draw
        return pair[0].astype(dtype), pair[1].astype(dtype)


def _named(generate: Any, draw: Draw) -> Generator:
    generate.__name__ = generate.__qualname__ = draw.__name__
    generate.__doc__, generate.__module__ = draw.__doc__, draw.__module__
    named: Generator = generate
    return named
