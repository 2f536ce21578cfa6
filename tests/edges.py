"""Sums alpha·AB + beta·C at the ends of float32's range, where a product that was rounded before C came to it decides
wrongly: matrices whose diagonal holds what was thought out, and all else what comes of it.
"""

import math
from fractions import Fraction

import numpy as np

MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-149


def _by_words(up):
    """What words and segments lose of x·x - r, with r a little below it: by alpha = 16 and beta = -1 the sum is barely
    infinite, or barely not.
    """
    x = 1.0 + 2.0**-11 - 2.0**-20
    square = float(np.nextafter(np.float32(x * x), np.float32(0.0)))
    product = Fraction(x) ** 2 - Fraction(square)
    whole = (2**128 - 2**103 - 16 * product * 2**138) / 2**104
    c = float((math.ceil(whole) if up else math.floor(whole)) * 2**104)
    return [x * 2.0**66, -square * 2.0**66], [x * 2.0**72, 2.0**72], -c


_TOP = [
    # a row of A, a column of B, C: RN(exact) is infinite, or is not, by less than AB was rounded by.
    ([MAX, 2.0**102], [1.0, 1.0], 2.0**102),
    ([MAX, -(2.0**102)], [1.0, 1.0], 2.0**103),
    ([MAX, 2.0**107, 2.0**127, -(2.0**127), 2.0**-75], [1.0, 2.0**-4, 1.75, 1.75, -(2.0**-50)], 1.0),
    ([-MAX, -(2.0**102)], [1.0, 1.0], -(2.0**102)),
    ([2.0**126, -(2.0**126), 2.0**101], [1.0, 1.0, 1.0], MAX),
    ([2.0**127, 2.0**102, -(2.0**127)], [1.0, 1.0, 1.0], MAX),
    # Products that cancel, and take with them what is no longer seen in float32, or in float64.
    ([2.0**50, 2.0**20, -(2.0**50)], [2.0**50, 2.0**50, 2.0**50], MAX),
    ([2.0**100, 2.0**27, -(2.0**100)], [2.0**100, 2.0**100, 2.0**100], 2.0**127),
    ([2.0**100, 2.0**60], [2.0**20, 2.0**67], 2.0**127),
    ([2.0**75, 2.0**22, -(2.0**75)], [2.0**76, 2.0**76, 2.0**76], MAX),
    ([2.0**87, 2.0**60, -(2.0**87), 1.0], [2.0**87, 2.0**60, 2.0**87, 1.0], -MAX),
    ([2.0**60, 2.0**87, -(2.0**87), 1.0], [2.0**60, 2.0**87, 2.0**87, 1.0], -MAX),
    ([2.0**100, 2.0**60], [2.0**20, 2.0**68], 1.0),
    _by_words(True),
    _by_words(False),
]
_LOW = [
    ([TINY, 2.0**-140], [0.5, 0.5], TINY),
    ([1.5 * 2.0**-75, 2.0**-80], [2.0**-75, 2.0**-80], 2.0**-148),
    ([3 * TINY, 5 * TINY, -7 * TINY], [0.5, 0.25, 0.125], 2.0**-126),
    ([2.0**-126, -(2.0**-126), TINY], [1.0, 1.0, 0.75], -TINY),
    ([1.3 * 2.0**-75, 2.0**-80], [2.0**-70, 2.0**-80], -(2.0**-145)),
]

FACTORS = {"top": [(1.0, 1.0), (-1.0, 1.0), (0.5, 1.0), (16.0, -1.0)], "low": [(1.0, 1.0), (0.3, -0.7), (3.0, 1.0)]}


def thought_out(which, dtype="float32"):
    """A, B and C of all of "top" or "low"."""
    cases = {"top": _TOP, "low": _LOW}[which]
    k = max(len(a) for a, _, _ in cases)
    a, b, c = np.zeros((len(cases), k)), np.zeros((k, len(cases))), np.zeros((len(cases), len(cases)))
    for at, (row, column, addend) in enumerate(cases):
        a[at, : len(row)], b[: len(row), at], c[at] = row, column, addend
    return tuple(_turned(x, dtype, at) for at, x in enumerate((a, b, c)))


def drawn(which, rng, dtype="float32", m=12, k=6, n=13):
    """Random ones: of numbers near the largest one, or near the smallest, and few more."""
    sizes, others = {
        "top": ([MAX, *2.0 ** np.arange(100, 128)], [1.0, 0.5, 1.75, 2.0**-4, 2.0**-30]),
        "low": (2.0 ** np.arange(-149, -125), [1.0, 0.5, 0.75, 2.0**-10, 3.0]),
    }[which]
    shapes = (m, k), (k, n), (m, n)
    a, b, c = (
        rng.choice(some, shape) * rng.choice([-1.0, 1.0], shape)
        for some, shape in zip((sizes, others, sizes), shapes, strict=True)
    )
    # Some rows are of two numbers, so that what is rounded is a sum and no product that overflowed.
    a[: m // 2, 2:] = 0.0
    return tuple(_turned(x, dtype, at) for at, x in enumerate((a, b, c)))


def _turned(x, dtype, at):
    """As an array of this type; of complex numbers A and C are imaginary, in part."""
    if np.dtype(dtype).kind != "c":
        return x.astype(dtype)
    return (x * (1.0 if at == 1 else 1j)).astype(dtype)


def factors(which):
    """Pairs of alpha and beta."""
    return FACTORS[which]
