"""How much of an engine an answer can show: what a search looks at first, and what last.

Most properties are about the ends of a range: what is subnormal, what overflows, which exponent zeros have. Answers far
from those ends show how terms are cut off, added and rounded, and nothing else; searched by themselves first, they are
not drowned in what the ends do. Answers by layers:

PLAIN: normal operands, every bit of every term and the sum of their sizes within the output's normal range, and no
subset of terms whose sum could wrap around in the smallest register;
CARRY: those whose sums may need bits above the leading ones, too;
EDGE: all the others. The signs of zeros, which many properties share, are looked at last of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Format

    Array = NDArray[np.float64]

__all__ = ["CARRY", "EDGE", "PLAIN", "Reach", "layers", "reach"]

_FAR = 1 << 20

PLAIN, CARRY, EDGE = range(3)


def layers(
    a: Array, b: Array, c: Array, inputs: Format, output: Format, reached: Reach | None = None
) -> NDArray[np.int64]:
    """The layer of every dot product, a and b (n, k), c (n,); `reached` is their `reach`, if it is known.

    >>> import numpy as np
    >>> from prismm.formats import FP16, FP32
    >>> a = np.array([[1.0, 1.0, 1.0], [1.0, 2.0**-9, 0.0], [1.0, 2.0**-20, 0.0]])
    >>> layers(a, np.full((3, 3), 1.75), np.array([1.0, 1.0, 0.0]), FP16, FP32).tolist()
    [1, 0, 2]
    """
    import numpy as np

    reached = reached or reach(a, b, c)
    with np.errstate(all="ignore"):
        products = a * b
        live = products != 0.0
        operands = np.minimum(np.abs(a), np.abs(b))
        exponent = np.where(live, _exponent(a) + _exponent(b), 0)
        size = np.abs(np.concatenate([products, c[:, None]], 1))
        edge = reached.total >= output.maxexp - 1
        edge |= (live & (operands < inputs.smallest_normal)).any(1)
        edge |= reached.last < output.minexp
        # No term is larger than one without which those up to its size add up to the whole register's range.
        order = np.argsort(size, axis=1)
        sums = np.take_along_axis(size, order, 1).cumsum(1)
        room = np.concatenate([exponent, _exponent(c)[:, None]], 1) + 2
        room = np.where(size == 0.0, _FAR, room)
        wraps = (sums >= np.ldexp(1.0, np.take_along_axis(room, order, 1))).any(1)
    return np.where(edge, EDGE, np.where(wraps, CARRY, PLAIN))


@dataclass(frozen=True)
class Reach:
    """How far dot products go, as exponents of two, one for each of them.

    Args:
        smallest: at most that of the smallest product that is not zero; large without any.
        total: that of the sum of all magnitudes; large where one is infinite or NaN.
        last: of the last bit of any product or c; large where all are zero.
    """

    smallest: NDArray[np.int64]
    total: NDArray[np.int64]
    last: NDArray[np.int64]


def reach(a: Array, b: Array, c: Array) -> Reach:
    """Of every dot product, a and b (n, k), c (n,), of at most 26 significant bits."""
    import numpy as np

    with np.errstate(all="ignore"):
        products = a * b
        smallest = np.where(products != 0.0, _exponent(a) + _exponent(b), _FAR).min(1)
        total = np.abs(products).sum(1) + np.abs(c)
        last = np.minimum(_last_bit(products).min(1), _last_bit(c))
        return Reach(smallest, np.where(np.isfinite(total), _exponent(total), _FAR), last)


def _exponent(x: Array) -> NDArray[np.int64]:
    """floor(log2|x|); of 0 some small number."""
    import numpy as np

    return np.frexp(x)[1].astype(np.int64) - 1


def _last_bit(x: Array) -> NDArray[np.int64]:
    """Exponent of the lowest bit that is set; large for 0."""
    import numpy as np

    mantissa, exponent = np.frexp(x)
    units = np.ldexp(np.where(np.isfinite(mantissa), mantissa, 0.0), 53).astype(np.int64)
    lowest = units & -units
    return np.where(units == 0, _FAR, exponent - 53 + np.frexp(lowest.astype(float))[1] - 1).astype(np.int64)
