"""Schemes: ways to multiply through low-precision parts, each with its value, its bound and whether it is
reproducible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prismm.planner import Auto
    from prismm.schemes.base import Scheme
    from prismm.schemes.native import Native
    from prismm.schemes.residues import Residues

__all__ = ["Auto", "Native", "Residues", "Scheme"]


def __getattr__(name: str) -> Any:
    """The scheme of this name, imported on first use."""
    import importlib

    homes = {"Residues": "residues", "Native": "native", "Scheme": "base"}
    if name in homes:
        return getattr(importlib.import_module(f"prismm.schemes.{homes[name]}"), name)
    if name == "Auto":
        return importlib.import_module("prismm.planner").Auto
    raise AttributeError(f"module 'prismm.schemes' has no attribute {name!r}")
