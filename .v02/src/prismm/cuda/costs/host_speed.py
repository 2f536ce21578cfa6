"""How fast this host is just now: processors of virtual machines take half as long again for minutes, then not.

What a call on a GPU costs the host goes up and down with that, and so does the time of every small product.
"""

from __future__ import annotations

import time

__all__ = ["seconds"]

_TURNS, _STEPS = 7, 400


def seconds() -> float:
    """The seconds of a short loop of Python's, 16 µs on an H200's host when that is fast: a median of a few.

    >>> 1e-7 < seconds() < 1.0
    True
    """
    found = sorted(_once() for _ in range(_TURNS))
    return found[_TURNS // 2]


def _once() -> float:
    # Instructions of the interpreter alone, as most of the host's share of a call is.
    start, total = time.perf_counter(), 0
    for x in range(_STEPS):
        total += x * x
    return time.perf_counter() - start
