"""Scratch memory that is kept between calls, so that small products do not pay for fresh pages each time."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEEP_BYTES = 224 << 20
"""At most this much stays allocated between calls."""

_LOCK = threading.Lock()
_FREE: list[NDArray[np.uint8]] = []


def _forget() -> None:
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Scratch:
    """Arrays lent for one call; `with Scratch() as scratch:` takes them back at the end."""

    def __init__(self) -> None:
        self._lent: list[NDArray[np.uint8]] = []

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _FREE.extend(self._lent)
            self._lent = []
            _FREE.sort(key=lambda block: block.nbytes)
            kept = sum(block.nbytes for block in _FREE)
            while _FREE and kept > KEEP_BYTES:
                kept -= _FREE.pop().nbytes

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An uninitialised C-contiguous array, aligned to 64 bytes, valid until the scratch is closed."""
        import numpy as np

        dtype = np.dtype(dtype)
        count = 1
        for extent in shape:
            count *= extent
        size = count * dtype.itemsize
        block = None
        with _LOCK:
            for index, candidate in enumerate(_FREE):
                if size + 64 <= candidate.nbytes <= 2 * size + (1 << 16):
                    block = _FREE.pop(index)
                    break
        if block is None:
            block = np.empty(size + 64, np.uint8)
        with _LOCK:
            self._lent.append(block)
        start = -block.ctypes.data % 64
        array: NDArray[Any] = block[start : start + size].view(dtype).reshape(shape)
        return array
