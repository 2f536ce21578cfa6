"""The end of ``prismm run``: its report comes after all that Python does at the end of the script.

Python's end of a process is the only one that is complete: it asks executors to finish, waits for threads and then
calls exit handlers, the last one first. In a process of the command the report is therefore an exit handler,
registered before the script runs. A program that calls `prismm.cli.command` goes on afterwards: there the report comes
when the script's executors and threads have ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable

from prismm.cli import streams

_PROCESS = threading.Event()
"""Set where the process, or the one that it was forked from, ends with the command."""


def is_process() -> None:
    """Note that this process ends with the command."""
    _PROCESS.set()


def is_here() -> bool:
    """Whether this process ends with the command."""
    return _PROCESS.is_set()


def prepare(report: Callable[[], None]) -> Callable[[], None]:
    """Arrange, before a script runs, that `report` is called at its end. The caller calls the function that is returned
    once the script's code has ended.

    A child that the script forks reports nothing.
    """
    process, ours = os.getpid(), tuple(map(streams.given, (sys.stdin, sys.stdout, sys.stderr)))

    def last() -> None:
        from prismm.cli import reported

        if os.getpid() != process:
            return
        with contextlib.suppress(Exception):  # the script's streams are the script's affair
            print(end="", flush=True)
        sys.stdin, sys.stdout, sys.stderr = (None if stream.closed else stream for stream in ours)
        try:
            reported(report)
        except SystemExit as end:  # which an exit handler cannot raise
            with contextlib.suppress(OSError, ValueError):
                print(end="", flush=True)
            os._exit(end.code if isinstance(end.code, int) else 1)

    if is_here():
        atexit.register(last)
        return lambda: None
    return lambda: report() if os.getpid() == process else None
