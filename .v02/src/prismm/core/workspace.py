"""Workspace that stays allocated between calls, so that small products do not pay for fresh pages each time."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEEP_BYTES = 224 << 20
"""At most this much stays allocated between calls."""

MIN_WORKSPACE = 1 << 20
"""A product is not cut into smaller tiles than this allows, however little a caller lends."""

_LOCK = threading.Lock()
_FREE: list[NDArray[np.uint8]] = []


def _forget() -> None:
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Workspace:
    """Arrays for one call; `with Workspace() as workspace:` frees them at the end."""

    def __init__(self) -> None:
        self._in_use: list[NDArray[np.uint8]] = []

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _FREE.extend(self._in_use)
            self._in_use = []
            _FREE.sort(key=lambda block: block.nbytes)
            total = sum(block.nbytes for block in _FREE)
            while _FREE and total > KEEP_BYTES:
                total -= _FREE.pop().nbytes

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An uninitialised C-contiguous array, aligned to 64 bytes, valid until the workspace is closed."""
        import numpy as np

        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        block = None
        with _LOCK:
            for index, candidate in enumerate(_FREE):
                if size + 64 <= candidate.nbytes <= 2 * size + (1 << 16):
                    block = _FREE.pop(index)
                    break
        if block is None:
            block = np.empty(size + 64, np.uint8)
        with _LOCK:
            self._in_use.append(block)
        start = -block.ctypes.data % 64
        array: NDArray[Any] = block[start : start + size].view(dtype).reshape(shape)
        return array


class _Cut:
    """Part of an arena. An array made of it, and every view of that, refers to it in the end: it dies with the last."""

    def __init__(self, memory: NDArray[np.uint8], address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory = memory
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (address, False), "version": 3}


class Arena:
    """A caller's workspace: arrays are cut from it first-fit, and come back when nothing refers to them.

    What does not fit is allocated as usual and counted, so that a product never fails for want of workspace.

    >>> import numpy as np
    >>> arena = Arena(np.empty(4096, np.uint8))
    >>> x = arena.empty((16, 16), np.float64)
    >>> arena.free, np.may_share_memory(x, arena.memory)
    (2048, True)
    >>> del x
    >>> arena.free, arena.beyond
    (4096, 0)
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.memory = memory
        self.beyond = 0
        start = -memory.ctypes.data % 64
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = [(start, memory.size)] if memory.size > start else []
        # A finalizer may run at any moment, in any thread: it only leaves its piece here.
        self._returned: deque[tuple[int, int]] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of the caller's buffer."""
        return int(self.memory.nbytes)

    @property
    def free(self) -> int:
        """Bytes not in use."""
        with self._lock:
            self._collect()
            return sum(stop - start for start, stop in self._free)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An uninitialised C-contiguous array, aligned to 64 bytes."""
        import weakref

        import numpy as np

        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        room = max(64, -(-size // 64) * 64)
        with self._lock:
            self._collect()
            for index, (start, stop) in enumerate(self._free):
                if stop - start >= room:
                    self._free[index] = (start + room, stop)
                    break
            else:
                self.beyond += size
                return np.empty(shape, dtype)
            self._free = [piece for piece in self._free if piece[0] < piece[1]]
        piece = _Cut(self.memory, self.memory.ctypes.data + start, shape, dtype)
        weakref.finalize(piece, self._returned.append, (start, start + room))
        array: NDArray[Any] = np.asarray(piece)
        return array

    def _collect(self) -> None:
        """Take back what was returned, neighbours joined."""
        while self._returned:
            self._free.append(self._returned.popleft())
        self._free.sort()
        joined = self._free[:1]
        for start, stop in self._free[1:]:
            if start == joined[-1][1]:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        self._free = joined
