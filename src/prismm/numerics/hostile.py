"""Vectors on which models of matrix engines part: a fixed mixture of hostile dot products, in bit patterns.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) by
counter, on integers: no library's stream of random numbers is involved, which may change. Row i of a result depends on
the arguments and on i only, not on how many rows there are. `GENERATOR` is raised with every change of a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.formats import Format, Integer
from prismm.numerics.encodings import decode, storage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.unsignedinteger[Any]]
    Words = NDArray[np.uint64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["GENERATOR", "MIXTURE", "Draw", "largest_pattern", "pack", "shortened", "vectors"]

GENERATOR = 1
"""Version of the vectors: the same arguments give the same bits as long as it is the same."""

MIXTURE: dict[str, int] = {
    "raw": 1,
    "planted": 2,
    "finite": 1,
    "narrow": 4,
    "ordinary": 2,
    "zeros": 2,
    "subnormal": 2,
    "cancelling": 3,
    "against": 2,
    "powers": 2,
    "carry": 2,
    "overflow": 2,
    "floor": 1,
    "edge": 2,
    "cut": 4,
}
"""The classes of floating-point vectors (`prismm.numerics.hostile_classes`), and their shares of 32."""

INTEGER_MIXTURE: dict[str, int] = {"full": 3, "extreme": 3, "zeros": 1, "small": 1}
"""The same for integers (`prismm.numerics.hostile_integers`), of 8."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(x: int) -> int:
    """SplitMix64's finaliser of one word."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


class Draw:
    """A stream of random words for a number of rows; every call begins a stream of its own.

    Args:
        rows: of what each call returns.
        labels: integers that choose the stream.

    >>> Draw(2, 1).words(3).shape
    (2, 3)
    """

    def __init__(self, rows: int, *labels: int) -> None:
        self.rows = rows
        key = 0
        for label in labels:
            key = _mixed((key ^ label & _MASK) + _GOLDEN & _MASK)
        self._key = key

    def words(self, columns: int) -> Words:
        """64 random bits each, (rows, columns)."""
        import numpy as np

        self._key = _mixed(self._key + _GOLDEN & _MASK)
        x = np.arange(1, self.rows * columns + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(self._key)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (x ^ x >> np.uint64(31)).reshape(self.rows, columns)

    def between(self, columns: int, low: Ints | int, high: Ints | int) -> Ints:
        """Integers from ``low`` to ``high``, both included, (rows, columns); fewer than 2^31 of them."""
        import numpy as np

        floor = np.asarray(low, np.int64)
        span = np.asarray(high, np.int64) - floor + 1
        return floor + ((self.words(columns) >> np.uint64(33)).astype(np.int64) * span >> 31)

    def coin(self, columns: int, chance: Ints | int = 128) -> Flags:
        """True with a probability of chance / 256, (rows, columns)."""
        return self.between(columns, 0, 255) < chance


def largest_pattern(format: Format) -> int:
    """The pattern of the format's largest finite value.

    >>> from prismm.formats import E4M3, FP16
    >>> hex(largest_pattern(E4M3)), hex(largest_pattern(FP16))
    ('0x7e', '0x7bff')
    """
    if format.specials == "ieee":
        return (((1 << format.exponent_bits) - 1) << format.fraction_bits) - 1
    return (1 << (format.bits - 1)) - 1 - (format.specials == "fn")


def pack(format: Format, negative: Flags, exponent: Ints, fraction: Words) -> Words:
    """Patterns of ±1.fraction · 2^exponent, cut to the format: subnormals lose low bits, exponents stop at its ends.

    Args:
        format: of the patterns.
        negative: signs.
        exponent: of any size.
        fraction: its low ``fraction_bits`` bits count.
    """
    import numpy as np

    stored = np.uint64(format.fraction_bits)
    e = np.clip(exponent, format.subnormal_exponent, format.maxexp - 1)
    low = fraction & np.uint64((1 << format.fraction_bits) - 1)
    down = np.maximum(format.minexp - e, 0).astype(np.uint64)
    field = np.maximum(e + format.bias, 1).astype(np.uint64)
    normal = (field << stored) | low
    subnormal = (low | np.uint64(1 << format.fraction_bits)) >> down
    size = np.minimum(np.where(down > 0, subnormal, normal), np.uint64(largest_pattern(format)))
    return size | signs(format, negative & ((size > 0) | (format.specials != "fnuz")))


def signs(format: Format | Integer, negative: Flags) -> Words:
    """The highest bit, where ``negative``."""
    import numpy as np

    return negative.astype(np.uint64) << np.uint64(format.bits - 1)


def finite(format: Format, patterns: Words) -> Words:
    """The patterns; where they are infinite or NaN, a finite one of the same fraction and half the exponent."""
    import numpy as np

    size = patterns & np.uint64((1 << (format.bits - 1)) - 1)
    bad = size > np.uint64(largest_pattern(format))
    if format.specials == "fnuz":
        bad |= patterns == np.uint64(1 << (format.bits - 1))
    return np.where(bad, patterns & np.uint64((1 << (format.bits - 2)) - 1), patterns)


def vectors(
    input: Format | Integer, output: Format | Integer, k: int, count: int, seed: int
) -> tuple[Bits, Bits, Bits]:
    """Hostile dot products, in bit patterns.

    Args:
        input: format of the factors.
        output: format of what is added.
        k: products in each.
        count: how many.
        seed: any integer.

    Returns:
        Patterns of a and b, (count, k), and of c, (count,), in the types that
        `prismm.numerics.encodings.storage` names. Infinities and NaN are among them.

    Raises:
        ArgumentError: for formats of different kinds, k < 1 or count < 0.

    >>> from prismm.formats import FP16, FP32
    >>> a, b, c = vectors(FP16, FP32, 16, 100, seed=1)
    >>> a.shape, a.dtype.name, c.dtype.name, bool((vectors(FP16, FP32, 16, 50, seed=1)[0] == a[:50]).all())
    ((100, 16), 'uint16', 'uint32', True)
    """
    import numpy as np

    from prismm.numerics.hostile_classes import FLOATS, Kit
    from prismm.numerics.hostile_integers import INTEGERS

    if k < 1 or count < 0:
        raise ArgumentError(f"k={k} and count={count} are no batch of dot products; pass k >= 1 and count >= 0")
    if isinstance(input, Integer) and isinstance(output, Integer):
        mixture, makers = INTEGER_MIXTURE, INTEGERS
    elif isinstance(input, Format) and isinstance(output, Format):
        mixture, makers = MIXTURE, FLOATS
    else:
        raise ArgumentError(f"{input.name} and {output.name} are of different kinds; pass two floats or two integers")
    schedule = np.array([number for number, share in enumerate(mixture.values()) for _ in range(share)])
    # Neighbours are of different classes: 13 has no factor in common with the period.
    classes = schedule[np.arange(count) * 13 % len(schedule)]
    a, b = np.empty((2, count, k), np.uint64)
    c = np.empty(count, np.uint64)
    for number, name in enumerate(mixture):
        mine = np.flatnonzero(classes == number)
        kit = Kit(input, output, k, Draw(len(mine), seed, k, number, *map(_label, (input, output))))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            a[mine], b[mine], last = makers[name](kit)
        c[mine] = last.reshape(len(mine))
    return a.astype(storage(input)), b.astype(storage(input)), c.astype(storage(output))


def _label(format: Format | Integer) -> int:
    """A number of the format's own, whatever its name."""
    if isinstance(format, Integer):
        return format.bits << 1 | format.signed
    return 1 << 16 | format.exponent_bits << 8 | format.fraction_bits


def shortened(a: Bits, b: Bits, seed: int) -> tuple[Bits, Bits]:
    """The vectors with +0 from some place on, a place of each row's own from 1 to k - 1.

    Args:
        a: patterns, (count, k).
        b: the same.
        seed: any integer.
    """
    import numpy as np

    count, k = a.shape
    length = Draw(count, seed, k, 1 << 20).between(1, 1, max(1, k - 1))
    beyond = np.arange(k) >= length
    return np.where(beyond, 0, a).astype(a.dtype), np.where(beyond, 0, b).astype(b.dtype)


def approximate(a: Words, b: Words, input: Format) -> NDArray[np.float64]:
    """Sums of products in float64, in order, (rows, 1): the same bits everywhere, and near enough for a hostile c."""
    import numpy as np

    left, right = decode(a, input), decode(b, input)
    found = np.zeros(len(a))
    for column in range(a.shape[1]):
        found = found + left[:, column] * right[:, column]
    return np.where(np.isfinite(found), found, 0.0).reshape(-1, 1)
