"""Memory of this machine, and how much of it a product may take."""

from __future__ import annotations

import functools
import os


@functools.cache
def physical_memory() -> int:
    """Bytes of memory of this machine, or 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


def workspace_limit(operands: int, result: int) -> int:
    """Bytes of workspace that a product may take: 1.4 times its data, at least 192 MiB, at most a quarter of the
    memory.
    """
    return min(max(192 << 20, int(1.4 * (operands + result))), max(64 << 20, physical_memory() // 4))
