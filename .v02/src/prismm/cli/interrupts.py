"""Ctrl-C ends a command within two seconds, whatever runs.

Python hands a signal to the program between two steps of its own, and a product of large matrices is one step. A
thread that the system wakes at once gives the program time to end by itself, and ends the process where it does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from prismm.cli.console import say

EXIT_CODE = 128 + signal.SIGINT
"""What a shell expects of a process that Ctrl-C ended."""

_GRACE = 1.0
"""Seconds that a command has to end by itself: it keeps what is finished and cleans up."""

_ENDING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
_TOLD = threading.Event()


def tell(line: str = "interrupted") -> None:
    """Say on stderr that a signal ended the command: the one line of it."""
    _TOLD.set()
    say(line)


def told() -> bool:
    """Whether a signal ended the command that ran last."""
    return _TOLD.is_set()


@contextlib.contextmanager
def prompt() -> Iterator[None]:
    """Inside, the process ends within `_GRACE` seconds of a signal that asks it to, with the shell's exit code."""
    if threading.current_thread() is not threading.main_thread():  # only it can ask to be woken
        yield
        return
    _TOLD.clear()
    ended = threading.Event()
    read, write = os.pipe()
    os.set_blocking(write, False)
    watch = threading.Thread(target=_watch, args=(read, ended), name="prismm-interrupts", daemon=True)
    watch.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        os.close(write)  # which ends the watch


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Inside, signals are the program's own affair: a script that handles them takes its time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)


def _watch(read: int, ended: threading.Event) -> None:
    """Wait for the numbers of signals, one a byte, until the other end is closed."""
    try:
        while number := os.read(read, 1):
            if number[0] in _ENDING and not ended.wait(_GRACE):
                if not _TOLD.is_set():
                    tell()
                sys.stderr.flush()
                os._exit(128 + number[0])
    finally:
        os.close(read)
