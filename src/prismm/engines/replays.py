"""Launches as one: a CUDA graph of what a program queues at given addresses.

Queueing eight kernels one by one takes the host longer than a small product takes the GPU; a graph takes one call.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable

from prismm.engines.driver import check, driver

_NON_BLOCKING, _RELAXED = 1, 2


def is_capturing(stream: int) -> bool:
    """Whether a stream's launches go to a graph of the caller's: nothing may be replayed there."""
    status = ctypes.c_int()
    check(driver().cuStreamIsCapturing(stream, ctypes.byref(status)))
    return status.value != 0


class Replay:
    """What a function queues on a stream, to be queued again at once.

    Args:
        queue: queues launches on the stream that it is given, the same ones in every call. The current device's.

    Raises:
        EngineError: where the driver refuses.
    """

    def __init__(self, queue: Callable[[int], None]) -> None:
        cuda = driver()
        stream, graph, ready = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        with contextlib.ExitStack() as stack:
            check(cuda.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
            stack.callback(cuda.cuStreamDestroy_v2, stream)
            check(cuda.cuStreamBeginCapture_v2(stream, _RELAXED))
            try:
                queue(stream.value or 0)
            finally:
                code = cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
            check(code)
            stack.callback(cuda.cuGraphDestroy, graph)
            check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, 0))
        self._ready = ready
        # One that still runs is freed when it has ended; when the interpreter ends, the driver may be gone already.
        weakref.finalize(self, cuda.cuGraphExecDestroy, ready).atexit = False

    def run(self, stream: int) -> None:
        """Queue it on a stream."""
        check(driver().cuGraphLaunch(self._ready, stream))
