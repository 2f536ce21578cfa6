"""`QuanTensor` on a GPU: not yet."""

from __future__ import annotations

from typing import Any


def Implementation(scheme: Any) -> None:
    """None: the scheme runs on a CPU so far."""
