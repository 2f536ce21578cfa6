"""How much memory a product may take: sizes as people write them, and what the machine has free."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from prismm.errors import ArgumentError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNKNOWN = 4 << 30  # what to count on where the system does not say


def parse_size(text: str) -> int:
    """Bytes of a size such as 500M, 2GiB or 1.5 GB.

    >>> parse_size("2GiB"), parse_size("1.5k"), parse_size("4096")
    (2147483648, 1500, 4096)

    Raises ArgumentError for anything else, for less than one byte, and for more than any machine has.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower(), re.ASCII)
    if match and (match[2] or not match[3]):
        size = float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2]]
        if 1 <= size < 1 << 63:
            return int(size)
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    raise ArgumentError(f"memory {shown!r} is no size; pass e.g. 500MiB or 2GiB")


def available() -> int:
    """Bytes of memory that can be taken now without swapping, container limits included."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        found += [] if limit == "max" else [int(limit) - used]
    if not found:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no sysconf on Windows
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return max(min(found, default=_UNKNOWN), 1)
