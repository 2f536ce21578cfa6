"""Hostile operands at the corners of a format: ties, cancellation, underflow, overflow.

Each is made so that the exact sums are known to lie on the corner, in every entry or in a stated
part of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prismm.formats import Format
from prismm.testing.draws import Pair, cancelling_pairs, powers, rotated, shuffled

__all__ = [
    "cancelling",
    "near_overflow",
    "near_ties",
    "overflow_threshold",
    "subnormal_operands",
    "subnormal_results",
    "ties",
]

Floats: TypeAlias = NDArray[np.float64]


@rotated
def cancelling(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Pairs of terms that cancel: no leading bit of the partial sums survives.

    In the left half of the columns the exact sum is 0 (for odd k, too); in the right half one
    member of each pair is one ulp larger, and the sum is about 2^-p of the terms.
    """
    pairs = k // 2
    u = _round(rng.standard_normal((m, pairs)), fmt)
    v = _round(rng.standard_normal((pairs, n)), fmt)
    a, b = cancelling_pairs(u, v)
    right = slice(n // 2, n)
    b[pairs:, right] = np.nextafter(b[pairs:, right].astype(_numpy(fmt)), np.array(np.inf, _numpy(fmt)))
    return shuffled(rng, *_padded(a, b, k))


@rotated
def ties(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Every exact sum lies halfway between two neighbours of the format: only ties-to-even decides.

    One term is the product of two odd integers and has exactly p + 1 bits; all others cancel in
    pairs of its size. Rows and columns carry random powers of two. A result that was rounded twice,
    or bounded with any slack, cannot be certified.
    """
    heads = _tie_heads(m, n, rng, fmt)
    return _with_pairs(rng, fmt, [heads], m, k, n)


@rotated
def near_ties(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """A tie plus one term far below it, of either sign, which alone decides.

    The small term is as low as 2^-600 (float32: 2^-120), beyond any double-double. For k = 1 there
    is no room for it, and the sums are ties.
    """
    depth = 300 if fmt.maxexp > 128 else 60
    # The tie's last bit is at least 2^-40: both factors stay below 2^-21.
    tiny_a = rng.choice([-1.0, 1.0], (m, 1)) * powers(-rng.integers(22, depth, (m, 1)))
    tiny_b = powers(-rng.integers(22, depth, (1, n)))
    return _with_pairs(rng, fmt, [_tie_heads(m, n, rng, fmt), (tiny_a, tiny_b)], m, k, n)


@rotated
def subnormal_operands(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Subnormal entries: flushed to zero they are lost, and 2^-e, to scale them, overflows.

    Even rows of a and odd columns of b are subnormal with significands of any length. Even columns
    of b are huge, so that subnormal times huge is ordinary; subnormal times subnormal rounds to
    zero.
    """
    a = rng.standard_normal((m, k))
    b = rng.standard_normal((k, n)) * powers(-fmt.minexp - 40)
    a[::2] = _subnormal(rng, fmt, a[::2].shape)
    b[:, 1::2] = _subnormal(rng, fmt, b[:, 1::2].shape)
    return a, b


@rotated
def subnormal_results(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Normal operands whose products underflow: the unit of rounding no longer scales.

    Even rows give odd and even multiples of η/2, so ties of the subnormal range; odd rows give any
    value from far below η to just above the smallest normal one. A result rounded to p bits first
    and then to a multiple of η is wrong here.
    """
    low = fmt.subnormal_exponent - 1
    left, right = low // 2, low - low // 2
    a = (2.0 * rng.integers(-8, 8, (m, k)) + 1) * powers(left)
    b = (2.0 * rng.integers(-8, 8, (k, n)) + 1) * powers(right)
    odd = a[1::2]
    odd[:] = rng.standard_normal(odd.shape) * powers(left + rng.integers(-8, fmt.precision + 8, (odd.shape[0], 1)))
    return a, b


@rotated
def near_overflow(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Terms around the largest finite value that cancel: floating-point sums end in Inf or NaN.

    Some terms overflow by themselves, others only when two are added. What remains is finite,
    thousands of times below the largest value.
    """
    pairs = max(k - 1, 0) // 2
    half = fmt.maxexp // 2
    lift = half - 1 + rng.integers(0, 6, (pairs, 1))
    u = _signed(rng, fmt, (m, pairs)) * powers(half)
    v = _signed(rng, fmt, (pairs, n)) * powers(lift)
    a, b = cancelling_pairs(u, v)
    rest = k - 2 * pairs
    a = np.hstack([a, rng.standard_normal((m, rest)) * powers(half)])
    b = np.vstack([b, rng.standard_normal((rest, n)) * powers(half - 20)])
    return shuffled(rng, a, b)


@rotated
def overflow_threshold(m: int, k: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Exact sums at max + ulp/2, where rounding becomes infinite, and a tiny term beside it.

    By row modulo 4 the sum is ±: the threshold (Inf), a tiny term less (max), max + ulp/4 (max), a
    tiny term more (Inf). The remaining terms are as large and cancel, so partial sums overflow. For
    k = 1 all sums are ±max, for k = 2 the tiny terms are missing.
    """
    top = fmt.maxexp - fmt.precision
    left, right = top // 2, top - top // 2
    kind = np.arange(m)[:, None] % 4
    sign = rng.choice([-1.0, 1.0], (1, n))
    largest = (2.0**fmt.precision - 1) * powers(left) * np.ones((m, 1)), sign * powers(right)
    half_ulp = np.where(kind == 2, 0.5, 1.0) * powers(left), sign * powers(right - 1)
    tiny = np.choose(kind, [0.0, -1.0, 0.0, 1.0]) * powers(-left // 2), sign * powers(-right // 2)
    return _with_pairs(rng, fmt, [largest, half_ulp, tiny], m, k, n, exponent=fmt.maxexp // 2 - 1)


def _with_pairs(
    rng: np.random.Generator,
    fmt: Format,
    terms: list[Pair],
    m: int,
    k: int,
    n: int,
    exponent: int | None = None,
) -> Pair:
    """The first k outer products of ``terms``, and cancelling pairs near 4^exponent."""
    heads = terms[:k]
    pairs = (k - len(heads)) // 2
    exponent = fmt.precision // 2 if exponent is None else exponent
    u = _signed(rng, fmt, (m, pairs)) * powers(exponent)
    v = _signed(rng, fmt, (pairs, n)) * powers(exponent)
    a, b = cancelling_pairs(u, v)
    a = np.hstack([*(head for head, _ in heads), a])
    b = np.vstack([*(head for _, head in heads), b])
    return shuffled(rng, *_padded(a, b, k))


def _tie_heads(m: int, n: int, rng: np.random.Generator, fmt: Format) -> Pair:
    """Odd integers, times powers of two, whose products have exactly p + 1 bits."""
    wide = (fmt.precision + 1) // 2
    # Both are in [3/4, 1) of their power of two, so the product is at least 9/16 of its own.
    a = _odd(rng, wide, (m, 1)) * powers(rng.integers(-20, 21, (m, 1)))
    b = _odd(rng, fmt.precision + 1 - wide, (1, n)) * powers(rng.integers(-20, 21, (1, n)))
    return a, b


def _odd(rng: np.random.Generator, bits: int, shape: tuple[int, int]) -> Floats:
    signs = rng.choice([-1.0, 1.0], shape)
    odd: Floats = signs * (2.0 * rng.integers(3 * 2 ** (bits - 3), 2 ** (bits - 1), shape) + 1)
    return odd


def _subnormal(rng: np.random.Generator, fmt: Format, shape: tuple[int, ...]) -> Floats:
    lengths = rng.integers(1, fmt.precision, shape)
    integers = np.floor(rng.uniform(0.5, 1, shape) * powers(lengths))
    return rng.choice([-1.0, 1.0], shape) * integers * fmt.smallest_subnormal


def _signed(rng: np.random.Generator, fmt: Format, shape: tuple[int, int]) -> Floats:
    """Values of the format with 1 <= |x| <= 2 and either sign."""
    return _round(rng.uniform(1, 2, shape) * rng.choice([-1.0, 1.0], shape), fmt)


def _round(x: Floats, fmt: Format) -> Floats:
    """Values of the format, so that both members of a pair are rounded alike."""
    return x.astype(_numpy(fmt)).astype(np.float64)


def _numpy(fmt: Format) -> np.dtype[Any]:
    return np.dtype(f"float{fmt.bits}")


def _padded(a: Floats, b: Floats, k: int) -> Pair:
    """With columns and rows of zeros up to the inner dimension ``k``."""
    missing = k - a.shape[1]
    return np.hstack([a, np.zeros((a.shape[0], missing))]), np.vstack([b, np.zeros((missing, b.shape[1]))])
