"""Threads of BLAS libraries: whether they compute as their callers do.

A thread starts with the control register of the thread that starts it, and keeps it. One that a BLAS started while its
caller flushed subnormals, or rounded otherwise, still does so after the caller has stopped. NumPy's threads start when
it is imported, torch's (OpenMP's) when a thread first needs so many of them. A product that they share is compared with
the values that only the default state gives.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from prismm.core import threads as pool
from prismm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SHARED_WORK = 1 << 13
"""Multiply-adds from which on a BLAS may share a product among its threads; OpenBLAS's products by a vector do so first
(at 9216).
"""

_KNOWN = threading.local()
"""What is known of the threads that serve this one: NumPy's are right in this process, torch's where there are so many.
"""


def check_numpy() -> None:
    """Raise where threads of NumPy's BLAS, which live as long as the process, flush subnormals or round otherwise.

    Raises:
        EngineError: where they do.
    """
    if getattr(_KNOWN, "numpy", None) is pool.FORKED:  # a forked child has threads of its own
        return
    import numpy as np

    if not _right(np.matmul, os.cpu_count() or 1):
        raise EngineError(
            "threads of NumPy's BLAS flush subnormal numbers or do not round to nearest, as the thread did that "
            "imported NumPy; import NumPy before what changes that, or restore the default first"
        )
    _KNOWN.numpy = pool.FORKED


def torch_is_right() -> bool:
    """Whether threads of torch's BLAS, loaded already, honour subnormals and round to nearest."""
    threads = _threads()()
    if threads == 1 or getattr(_KNOWN, "torch", None) == threads:
        return True
    right = _right(_by_torch, threads)
    if right:
        _KNOWN.torch = threads
    return right


@functools.cache
def _threads() -> Callable[[], int]:
    import torch

    return torch.get_num_threads


def _by_torch(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # nobody who counts products, or replaces them, is to see this one
        product: NDArray[Any] = torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return product


def _right(multiply: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]], threads: int) -> bool:
    """Whether a product that so many threads share has the values that the default state gives.

    Each entry of every eighth column has one nonzero term, a subnormal, or two whose sum is rounded: the same in every
    order. Flushed results, flushed operands, and sums rounded to other than nearest differ.
    """
    import numpy as np

    m, k, n = 128 * threads, 64, 64
    a, b = np.zeros((m, k)), np.zeros((k, n))
    a[:, :4] = 2.0**-1022, 2.0**-1074, 1.0, 2.0**-53
    b[0, 0::8], b[1, 1::8], b[2, 2::8], b[2, 3::8], b[3, 2::8], b[3, 3::8] = 0.5, 1.0, 1.0, 1.0, 1.0, 1.5
    expected = np.tile([2.0**-1023, 2.0**-1074, 1.0, 1.0 + 2.0**-52, 0.0, 0.0, 0.0, 0.0], n // 8)
    with np.errstate(all="ignore"):
        return bool((multiply(a, b) == expected).all())
