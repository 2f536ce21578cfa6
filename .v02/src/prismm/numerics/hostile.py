"""Vectors on which models of matrix engines part: a fixed mixture of hostile dot products, in bit patterns.

Row i of a result depends on the arguments and on i only, not on how many rows there are. `GENERATOR` is raised with
every change of a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prismm.errors import ArgumentError
from prismm.formats import Format, Integer
from prismm.numerics.encodings import storage
from prismm.numerics.hostile_classes import FLOATS
from prismm.numerics.hostile_draw import Draw, Kit
from prismm.numerics.hostile_integers import INTEGERS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.unsignedinteger[Any]]

__all__ = ["GENERATOR", "MIXTURE", "shortened", "vectors"]

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
