"""Kernels that take long to compile: they are compiled beside the calls that could use them.

A product whose entries are all certified launches a kernel of repair and has nothing for it to do; with all its ways of
repair that kernel takes longer to compile than all others together. Until it is there, calls launch a variant of it
that has fewer ways, and sets the same bits.

Python reads the sources of kernels in turns. Those that a call waits for come before all that have not begun.

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
"""begun: an event of a thread that compiles beside calls, set when it has found no compiled kernel on disk."""

_ONE_AT_A_TIME: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
"""Of kernels that are compiled beside calls: programs of other layouts launch the same one mostly, which the second
finds compiled.
"""

_RUNNING: set[threading.Thread] = set()


def goes_on() -> bool:
    """Whether calls go on without such kernels.

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
    """What is compiled inside goes first: a call waits for it."""
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
    """A promise of what a function returns that has Triton compile a kernel. It is kept already where the kernel lay on
    disk; elsewhere a thread of its own keeps it, which begins when no call waits for a kernel. The interpreter does not
    end before it has, so what was begun is kept on disk. An error is told, and kept. kernel: what is compiled for one
    device at a time.
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
    """Wait until all kernels are there that were begun."""
    for thread in list(_RUNNING):
        thread.join()
