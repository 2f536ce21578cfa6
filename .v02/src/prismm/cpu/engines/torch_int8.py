"""Torch's INT8 product, and whether it is worth its name on this processor."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Any

from prismm.core import threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def product(x: NDArray[np.int8], y: NDArray[np.int8], out: NDArray[np.int32]) -> None:
    """out (m, n) = x (m, k) @ y (k, n) by ``torch._int_mm``; each operand contiguous along one of its dimensions."""
    import torch

    torch._int_mm(_tensor(x), _tensor(y), out=torch.from_numpy(out))


def _tensor(x: NDArray[np.int8]) -> Any:
    """x as a tensor whose stride along a dimension of length 1 is that of a matrix.

    The stride means nothing there, and NumPy leaves what it was. ``torch._int_mm`` takes it for a leading dimension:
    where that is shorter than a row, it returns without having written the product.
    """
    import torch

    found = torch.from_numpy(x)
    rows, columns = x.shape
    down, across = found.stride()
    if columns == 1:
        return found.as_strided(x.shape, (down, 1))
    return found.as_strided(x.shape, (columns if across == 1 else 1, across)) if rows == 1 else found


@functools.cache
def is_fast() -> bool:
    """Whether torch's INT8 product takes no longer than NumPy's in FP64: a tenth of it on a unit, ten times without."""
    import numpy as np

    x, out = np.ones((128, 256), np.int8), np.empty((128, 128), np.int32)
    wide = x.astype(np.float64)

    def compare(_: int) -> bool:
        threads.limit_openmp()
        taken: dict[str, float] = {}
        for name, run in (("int8", lambda: product(x, x.T, out)), ("float64", lambda: np.matmul(wide, wide.T))):
            for _ in range(4):
                start = time.perf_counter()
                run()
                taken[name] = min(taken.get(name, math.inf), time.perf_counter() - start)
        return taken["int8"] <= taken["float64"]

    found: bool = threads.run(compare, 1)[0]
    return found
