"""Matrix files as operands of prismm's products: what is wrong with one is said with its name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.errors import DTypeError

if TYPE_CHECKING:
    import numpy as np

_LARGE = 8 << 20  # bytes: two float64 squares of n = 724


def are_large(*paths: Path) -> bool:
    """Whether files hold so much that a command should say what it does before it is done; one that is missing is
    somebody else's to report.
    """
    size = 0
    for path in paths:
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size >= _LARGE


def check_elements(path: Path, dtype: np.dtype[Any]) -> None:
    """DTypeError for elements that a file may hold and the commands do not multiply: longdouble."""
    from prismm.core.arrays import NAMES

    if dtype.name not in NAMES and dtype.kind != "b":
        raise DTypeError(
            f"{path}: holds elements of type {dtype}; prismm multiplies float16, float32, float64, complex64, "
            "complex128, integers and bool: save it again as one of them, e.g. np.save(path, x.astype(float))"
        )


def result_dtype(left: np.dtype[Any], right: np.dtype[Any], keywords: dict[str, Any]) -> np.dtype[Any]:
    """The type of a product with `prismm.matmul`'s keywords, found by an empty one, which also checks them all."""
    import numpy as np

    import prismm

    types = left.newbyteorder("="), right.newbyteorder("=")
    dtype: np.dtype[Any] = prismm.matmul(np.empty((0, 1), types[0]), np.empty((1, 0), types[1]), **keywords).dtype
    return dtype
