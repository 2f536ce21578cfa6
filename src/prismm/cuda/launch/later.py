"""Background compilation of kernels that take long to compile.

Most products need no repair, yet the kernel that repairs entries takes longer to compile than all other kernels
together. Until it is compiled, calls launch a variant of it with fewer methods of repair, which gives the same bits.

Python reads the source of one kernel at a time. A kernel that a call waits for goes before those in the background that
have not started.

With ``PRISMM_COMPILE=first`` calls wait for all their kernels.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import Any

from prismm.core import cache_files
from prismm.errors import ArgumentError

_TURN = threading.Condition()
_reading, _awaited = False, 0
"""Whether a kernel's source is read now, the first third of a compilation, and how many calls wait for kernels.
Python's threads run in turns anyway: unless they wait for each other, the kernel that takes longest comes to the
compiler proper when all others do.
"""

_THREAD = threading.local()
"""begun: the event that a background thread sets when it has found no compiled kernel on disk."""

_ONE_AT_A_TIME: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
"""A lock for each kernel in the background. Most layouts launch the same kernel, so a second program finds it compiled.
"""

_RUNNING: set[threading.Thread] = set()


def goes_on() -> bool:
    """Whether calls go on while such kernels are compiled.

    Raises:
        ArgumentError: where ``PRISMM_COMPILE`` has a value that it does not take.
    """
    asked = os.environ.get("PRISMM_COMPILE", "")
    if asked not in ("", "first"):
        raise ArgumentError(f"PRISMM_COMPILE={asked!r} is not known; set it to first, or unset it")
    return not asked


@contextlib.contextmanager
def front_end() -> Iterator[None]:
    """Read a kernel's source inside while no other one's is read."""
    global _reading
    begun = getattr(_THREAD, "begun", None)
    if begun is not None:
        begun.set()
    with _TURN:
        _TURN.wait_for(lambda: not _reading and (begun is None or not _awaited))
        _reading = True
    try:
        yield
    finally:
        with _TURN:
            _reading = False
            _TURN.notify_all()


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """Kernels that a call waits for are compiled in this block; background compilations yield to them."""
    global _awaited
    with _TURN:
        _awaited += 1
    try:
        yield
    finally:
        with _TURN:
            _awaited -= 1
            _TURN.notify_all()


def begin(kernel: Hashable, compile_it: Callable[[], Any]) -> Future[Any]:
    """Start a background compilation, and return the future of its result.

    If the compiled kernel is on disk, the future is done on return. Otherwise a new thread compiles the kernel as soon
    as no call waits for one. The interpreter waits for that thread before it exits, so the kernel reaches the disk. An
    error is reported once on stderr and set in the future.

    Args:
        kernel: identifies the kernel and its device; the same one is never compiled by two threads at a time.
        compile_it: has Triton compile the kernel, and returns it.
    """
    begun, promise = threading.Event(), Future[Any]()

    def job() -> None:
        _THREAD.begun = begun
        try:
            lock = _ONE_AT_A_TIME[kernel]
            if not lock.acquire(blocking=False):
                begun.set()
                lock.acquire()
            try:
                promise.set_result(compile_it())
            finally:
                lock.release()
        except BaseException as error:
            cache_files.tell(f"warning: a kernel was not compiled, and calls go on without it: {error}")
            promise.set_exception(error)
        finally:
            begun.set()
            _RUNNING.discard(threading.current_thread())

    # One thread a kernel: a pool's might all wait for the call that waits here.
    thread = threading.Thread(target=job, name="prismm-compile-later", daemon=False)
    _RUNNING.add(thread)
    try:
        thread.start()
    except BaseException:
        _RUNNING.discard(thread)
        raise
    begun.wait()
    return promise


def finish() -> None:
    """Wait for all background compilations."""
    for thread in list(_RUNNING):
        thread.join()
