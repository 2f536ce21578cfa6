"""Launches as one: a CUDA graph of what a program queues at given addresses.

Queueing eight kernels one by one takes the host longer than a small product takes the GPU; a graph takes one call. And
in a graph, launches that need nothing of each other run side by side.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator

from prismm.cuda.launch.driver import check, driver

_NON_BLOCKING, _RELAXED, _NO_TIMING = 1, 2, 2

_BESIDE: dict[int, list[ctypes.c_void_p]] = {}
"""Streams of each device for what runs beside another one in a graph."""
_LOCK = threading.Lock()


def is_capturing(stream: int) -> bool:
    """Whether a stream's launches go to a graph of the caller's: nothing may be replayed there."""
    status = ctypes.c_int()
    check(driver().cuStreamIsCapturing(stream, ctypes.byref(status)))
    return status.value != 0


def _capture_of(stream: int) -> int:
    """The number of the capture that a stream's launches go to; 0 where there is none, or it is not known."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    asked = getattr(driver(), "cuStreamGetCaptureInfo", None)
    if asked is None or asked(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)):
        return 0
    return number.value if status.value else 0


@contextlib.contextmanager
def stream_beside(stream_of_it: int) -> Iterator[int]:
    """A stream of the current device that nobody uses and no other capture holds; kept for later. stream_of_it: the one
    that it runs beside. A stream that a caller's capture took is the capture's until that ends, for all its calls.
    """
    cuda, device = driver(), ctypes.c_int()
    check(cuda.cuCtxGetDevice(ctypes.byref(device)))
    capture = _capture_of(stream_of_it)
    with _LOCK:
        streams = _BESIDE.setdefault(device.value, [])
        held = (some for some in streams if capture and _capture_of(some.value or 0) == capture)
        idle = (some for some in streams if not is_capturing(some.value or 0))
        stream = next(held, None) or next(idle, None)
        if stream is not None:
            streams.remove(stream)
    if stream is None:
        stream = ctypes.c_void_p()
        check(cuda.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
    try:
        yield stream.value or 0
    finally:
        with _LOCK:
            streams.append(stream)


def follow(later: int, earlier: int) -> None:
    """What is queued on a stream from now on waits for what another one holds by now."""
    cuda, event = driver(), ctypes.c_void_p()
    check(cuda.cuEventCreate(ctypes.byref(event), _NO_TIMING))
    try:
        check(cuda.cuEventRecord(event, earlier))
        check(cuda.cuStreamWaitEvent(later, event, 0))
    finally:
        # The driver keeps the event until what waits for it has gone on.
        cuda.cuEventDestroy_v2(event)


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
            # Any other kind synchronises with the legacy default stream, which a capture does not allow.
            check(cuda.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
            stack.callback(cuda.cuStreamDestroy_v2, stream)
            # Relaxed, so that what other threads ask of the driver meanwhile neither fails nor spoils the capture.
            check(cuda.cuStreamBeginCapture_v2(stream, _RELAXED))
            try:
                queue(stream.value or 0)
            finally:
                code = cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
                if graph:
                    stack.callback(cuda.cuGraphDestroy, graph)
            check(code)
            check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, 0))
        self._ready, self._launch = ready, cuda.cuGraphLaunch
        # One that still runs is freed when it has ended; when the interpreter ends, the driver may be gone already.
        weakref.finalize(self, cuda.cuGraphExecDestroy, ready).atexit = False

    def run(self, stream: int) -> None:
        """Queue it on a stream."""
        code = self._launch(self._ready, stream)
        if code:
            check(code)
