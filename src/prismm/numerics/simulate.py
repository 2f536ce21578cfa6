"""Dot products of an `EngineModel` on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics import specification

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from prismm.numerics.model import EngineModel

__all__ = ["dot"]


def dot(
    model: EngineModel,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike = 0.0,
    scale_a: ArrayLike | None = None,
    scale_b: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """c + sum of a*b over the last axis, bit for bit."""
    import numpy as np

    x, y = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    z = np.broadcast_to(np.asarray(c, np.float64), x.shape[:-1])
    out = np.empty(z.shape)
    for at in np.ndindex(z.shape):
        out[at] = specification.dot(model, x[at].tolist(), y[at].tolist(), float(z[at]))
    return out
