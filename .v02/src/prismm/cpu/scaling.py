"""Bring operands of composite schemes to scaled units, and measure |a||b| there.

Each row of A and column of B is multiplied by the power of two that brings its largest magnitude into [1/2, 1): that
makes every composite scheme scale-invariant. A complex operand becomes the two real ones of
`specials.real_operands`, whose vectors hold real and imaginary parts and so share one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import threads
from prismm.core.composite import Scaled, Side
from prismm.core.outcome import for_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRECISION = {"float64": 53, "float32": 24, "float16": 11}
_GRAIN = 1 << 18


@dataclass(frozen=True)
class Units:
    """Per row of A or column of B: the operand is data·2^exponent.

    Attributes:
        exponent: 0 for vectors that are zero or not finite.
        nonfinite: set where a vector has an Inf or NaN; its data are zeros.
        zero: set where the data are zeros.
        lost: set where elements were rounded to multiples of 2^-1074.
        smallest: smallest nonzero magnitude of the data; 1 if there is none, 0 if elements were lost.
    """

    exponent: NDArray[np.int64]
    nonfinite: NDArray[np.bool_]
    zero: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    smallest: NDArray[np.float64]

    def take(self, index: NDArray[np.int64]) -> Units:
        """The units of chosen vectors."""
        return Units(
            self.exponent[index], self.nonfinite[index], self.zero[index], self.lost[index], self.smallest[index]
        )

    @staticmethod
    def joined(pieces: list[Units]) -> Units:
        """The units of consecutive ranges as one."""
        if len(pieces) == 1:
            return pieces[0]
        return Units(
            np.concatenate([p.exponent for p in pieces]),
            np.concatenate([p.nonfinite for p in pieces]),
            np.concatenate([p.zero for p in pieces]),
            np.concatenate([p.lost for p in pieces]),
            np.concatenate([p.smallest for p in pieces]),
        )


def precision_of(dtype: np.dtype[Any]) -> int:
    """Bits that significands of real parts of this type have at most, once they are float64."""
    if dtype.kind in "iu":
        return min(8 * dtype.itemsize, 53)
    return _PRECISION.get(np.empty(0, dtype).real.dtype.name, 53)


def scale(x: NDArray[Any], side: Side, workers: int) -> tuple[Scaled, Units]:
    """A real operand in scaled units; vectors that hold Inf or NaN become zeros.

    >>> scaled, units = scale(np.array([[3.0, 0.5], [0.0, 0.0]]), "left", 1)
    >>> scaled.data.tolist(), units.exponent.tolist()
    ([[0.75, 0.125], [0.0, 0.0]], [2, 0])
    """
    from prismm.cpu.kernels.normalise import normalise

    precision = precision_of(x.dtype)
    left = side == "left"
    axis = 1 if left else 0
    data = for_kernels(x)
    top = np.maximum(data.max(axis=axis, initial=0.0), -data.min(axis=axis, initial=0.0))
    nonfinite: NDArray[np.bool_] = ~np.isfinite(top)
    exponent = np.frexp(np.where(nonfinite, 0.0, top))[1].astype(np.int64)
    # 2^-e needs two factors where the vector is subnormal; a subnormal factor (e > 1022) rounds once, as it should.
    power = np.minimum(-exponent, 1023)
    first = np.where(nonfinite, 0.0, np.ldexp(1.0, power))
    second = np.ldexp(1.0, -exponent - power)
    # A fresh array also where x needed a copy: the caller's data may be read-only, or change later.
    out = np.empty(data.shape)
    count = data.shape[0]
    step = max(1, _GRAIN // max(1, data.shape[1]))
    ranges = [(i, min(count, i + step)) for i in range(0, count, step)]
    lost, smallest = np.zeros((len(ranges), top.size), np.uint8), np.ones((len(ranges), top.size))

    def task(index: int) -> None:
        normalise(data, *ranges[index], first, second, left, out, lost[index], smallest[index])

    threads.spread(task, list(range(len(ranges))), workers)
    flags: NDArray[np.bool_] = lost.max(axis=0, initial=0) > 0
    units = Units(exponent, nonfinite, nonfinite | (top == 0.0), flags, smallest.min(axis=0, initial=1.0))
    return Scaled(side, out, exponent, flags, precision), units


@dataclass(frozen=True)
class Magnitudes:
    """|a||b| of a tile in scaled units: size·down <= |a||b| <= size·up + Σ rows[r]⊗columns[r]."""

    size: NDArray[np.float64]
    down: float
    up: float
    rows: NDArray[np.float64]
    columns: NDArray[np.float64]


def measure(a: NDArray[np.float64], b: NDArray[np.float64], tiny: bool, integers: bool) -> Magnitudes:
    """|a||b| from the absolute values of scaled operands.

    A sum of k products in float64, in any order, is within k·u of itself, relatively (Jeannerod and Rump 2013); two
    roundings more cover the factors themselves. Products below 2^-1022 (`tiny`: whether there can be any) lose at
    most 2^-1075 each, and then `size` bounds nothing from below where it is subnormal.

    integers: from q bits of each element, rounded down, such that the product is exact and hence the same in every
    order: |a| < (a' + 1)·2^-q gives |a||b| <= (Σa'b' + Σa' + Σb' + k)·4^-q.
    """
    k = a.shape[1]
    if integers:
        q = (53 - max(1, k).bit_length()) // 2
        x, y = np.floor(np.ldexp(a, q)), np.floor(np.ldexp(b, q))
        rows = np.ldexp(np.stack([x.sum(axis=1) + k, np.ones(a.shape[0])]), -q)
        columns = np.ldexp(np.stack([np.ones(b.shape[1]), y.sum(axis=0)]), -q)
        return Magnitudes(np.ldexp(x @ y, -2 * q), 1.0, 1.0, rows, columns)
    size = a @ b
    error = (k + 4) * 2.0**-53
    if tiny:
        # Two factors of 2^-500 stand for k·2^-1074; no product may pass as zero.
        return Magnitudes(
            np.maximum(size - 2.0**-1000, 0.0),
            1.0 - error,
            1.0 + error,
            np.full((1, a.shape[0]), 2.0**-499),
            np.full((1, b.shape[1]), 2.0**-499),
        )
    empty = np.empty((0, a.shape[0])), np.empty((0, b.shape[1]))
    return Magnitudes(size, 1.0 - error, 1.0 + error, *empty)


_FLOOR = 2.0**-500


def outer_sum(rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """An upper bound of Σ_r rows[r]⊗columns[r] (all nonnegative); 0 only where every product has a zero factor.

    Factors below 2^-500 count as 2^-500, so that no product underflows; r + 2 roundings are far below 2^-40.
    """
    x = np.where(rows > 0.0, np.maximum(rows, _FLOOR), 0.0)
    y = np.where(columns > 0.0, np.maximum(columns, _FLOOR), 0.0)
    total: NDArray[np.float64] = (x.T @ y) * (1.0 + 2.0**-40)
    return total


def bound_of(
    gamma: float,
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
    floor: float,
    size: Magnitudes | None,
    units: tuple[Units, Units],
    k: int,
) -> NDArray[np.float64]:
    """ε of a tile in scaled units: gamma·(|a||b|) + Σ rows⊗columns + floor, and what scaling itself lost; 0 for
    entries of zero vectors.

    A lost element is off by at most 2^-1075 and meets one of at most 1, on either side: k·2^-1074 in all.
    """
    m, n = units[0].exponent.size, units[1].exponent.size
    more_rows, more_columns = [np.reshape(rows, (-1, m))], [np.reshape(columns, (-1, n))]
    if floor > 0.0:
        more_rows.append(np.full((1, m), np.sqrt(floor) * (1.0 + 2.0**-50)))
        more_columns.append(np.full((1, n), np.sqrt(floor) * (1.0 + 2.0**-50)))
    if units[0].lost.any() or units[1].lost.any():
        root = max(_FLOOR, np.sqrt(k) * 2.0**-500)
        more_rows += [root * units[0].lost[None, :], np.full((1, m), root)]
        more_columns += [np.full((1, n), root), root * units[1].lost[None, :]]
    if gamma > 0.0 and size is not None:
        more_rows.append(gamma * size.rows)
        more_columns.append(size.columns)
    bound = outer_sum(np.concatenate(more_rows), np.concatenate(more_columns))
    if gamma > 0.0:
        assert size is not None
        bound += (gamma * size.up * (1.0 + 2.0**-40)) * size.size
    bound[units[0].zero] = 0.0
    bound[:, units[1].zero] = 0.0
    return bound
