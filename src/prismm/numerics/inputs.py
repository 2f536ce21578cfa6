"""Inputs that many models are run on: decoded once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.numerics import simulate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]

__all__ = ["Inputs"]


class Inputs:
    """n dot products of length k: a, b (n, k) and c (n,), values of the formats of the models that are run on them."""

    def __init__(self, a: Array, b: Array, c: Array) -> None:
        import numpy as np

        self.a, self.b, self.c = (np.ascontiguousarray(x, dtype=np.float64) for x in (a, b, c))
        self._rows: dict[tuple[str, int], tuple[simulate.Rows, simulate.Rows]] = {}

    def __len__(self) -> int:
        return len(self.c)

    def answers(self, model: EngineModel) -> Array:
        """d of every dot product, as `simulate.dot` gives it, on the calling thread."""
        k = self.a.shape[1]
        flush, width = model.subnormal_inputs, simulate.padded(model, k)
        rows = self._rows.get((flush, width))
        if rows is None:
            shorter = [w for f, w in self._rows if f == flush and w < width]
            if shorter:
                left, right = (simulate.repadded(x, width) for x in self._rows[flush, min(shorter)])
            else:
                left, right = (simulate.decoded_unchecked(model, x) for x in (self.a, self.b))
            rows = self._rows[flush, width] = left, right
        return simulate.run_rows(model, *rows, self.c, k)
