"""Probing integer engines: exact sums that wrap around or saturate, once an instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics.model import EngineModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.formats import Integer

    Array = NDArray[np.float64]

__all__ = ["candidates", "draw"]


def candidates(inputs: Integer, output: Integer, name: str) -> list[EngineModel]:
    """Sums that wrap, and sums that are clamped after every 1 to 256 products.

    >>> from prismm.formats import INT8, INT32
    >>> [m.overflow for m in candidates(INT8, INT32, "")[:2]]
    ['wrap', 'saturate']
    """
    found = [EngineModel(name, inputs, output, overflow="wrap")]
    return found + [EngineModel(name, inputs, output, depth=d, overflow="saturate") for d in range(1, 257)]


def draw(inputs: Integer, output: Integer, k: int, n: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Operands of the whole range and at its ends; half of the addends so near an end that the sum leaves the range."""
    import numpy as np

    ends = np.array([inputs.min, inputs.min + 1, 0, 1, inputs.max])
    a, b = (
        np.where(rng.random((n, k)) < 0.4, rng.choice(ends, (n, k)), rng.integers(inputs.min, inputs.max + 1, (n, k)))
        for _ in range(2)
    )
    # Products of one sign up to some place and of the other from there on: where sums are clamped, the order shows.
    turned = rng.random(n) < 0.5
    after = np.arange(k)[None, :] >= rng.integers(0, k + 1, (n, 1))
    if inputs.signed:
        product = a.astype(np.int64) * b
        wanted = np.where(after, -1, 1)
        flip = turned[:, None] & (product * wanted < 0)
        a = np.where(flip, np.clip(-a, inputs.min, inputs.max), a)
    reach = np.minimum(np.abs(a.astype(np.int64) * b).sum(1) + 2, output.max)
    near = rng.integers(0, reach + 1)
    c = np.where(rng.random(n) < 0.5, output.max - near, output.min + near)
    c = np.where(rng.random(n) < 0.3, rng.integers(output.min, output.max + 1, n), c)
    return a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
