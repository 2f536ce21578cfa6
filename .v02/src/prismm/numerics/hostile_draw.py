"""What hostile dot products are made of: random words by counter, and bit patterns of formats.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) by
counter, on integers: no library's stream of random numbers is involved, which may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.formats import Format, Integer
from prismm.numerics.encodings import decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["Draw", "Kit", "any_bits", "approximate", "finite", "largest_pattern", "pack", "signs"]

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


@dataclass(frozen=True)
class Kit:
    """What a class is made from.

    Args:
        input: format of a and b.
        output: format of c.
        k: products per row.
        draw: random words; it knows the number of rows.
    """

    input: Format | Integer
    output: Format | Integer
    k: int
    draw: Draw

    @property
    def source(self) -> Format:
        """The input, a float."""
        assert isinstance(self.input, Format)
        return self.input

    @property
    def result(self) -> Format:
        """The output, a float."""
        assert isinstance(self.output, Format)
        return self.output

    def row(self, low: Ints | int, high: Ints | int) -> Ints:
        """One integer a row, (rows, 1)."""
        return self.draw.between(1, low, high)

    def factors(self, exponent: Ints, normal: Flags | None = None) -> tuple[Words, Words]:
        """Random a and b whose exponents add up to ``exponent``, (rows, k), as far as the format reaches.

        Without ``normal``, three rows in four use normal values where these reach.
        """
        import numpy as np

        f, draw, k = self.source, self.draw, self.k
        top = f.maxexp - 1
        usual = draw.coin(1, 192) if normal is None else normal
        lowest = np.where(usual & (exponent >= 2 * f.minexp), f.minexp, f.subnormal_exponent)
        wanted = np.clip(np.broadcast_to(exponent, (draw.rows, k)), 2 * lowest, 2 * top)
        first = draw.between(k, np.maximum(lowest, wanted - top), np.minimum(top, wanted - lowest))
        a = pack(f, draw.coin(k), first, draw.words(k))
        b = pack(f, draw.coin(k), wanted - first, draw.words(k))
        return a, b

    def addend(self, exponent: Ints) -> Words:
        """Random c of these exponents, (rows, 1)."""
        return pack(self.result, self.draw.coin(1), exponent, self.draw.words(1))

    def zero(self) -> Words:
        """+0 or -0, (rows, 1)."""
        return signs(self.result, self.draw.coin(1) & (self.result.specials != "fnuz"))

    def reach(self) -> tuple[int, int]:
        """Exponents of products that normal factors have."""
        return 2 * self.source.minexp, 2 * (self.source.maxexp - 1)


def any_bits(format: Format | Integer, words: Words) -> Words:
    """The low bits of words: any pattern of the format."""
    import numpy as np

    return words & np.uint64((1 << format.bits) - 1)


def approximate(a: Words, b: Words, input: Format) -> NDArray[np.float64]:
    """Sums of products in float64, in order, (rows, 1): the same bits everywhere, and near enough for a hostile c."""
    import numpy as np

    left, right = decode(a, input), decode(b, input)
    found = np.zeros(len(a))
    for column in range(a.shape[1]):
        found = found + left[:, column] * right[:, column]
    return np.where(np.isfinite(found), found, 0.0).reshape(-1, 1)
