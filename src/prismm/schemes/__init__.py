"""Schemes: ways to multiply through low-precision parts, each with its value, its bound and whether it is
reproducible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prismm.planner import Auto
    from prismm.schemes.base import Scheme
    from prismm.schemes.composite import Composite
    from prismm.schemes.native import Native
    from prismm.schemes.residues import Residues
    from prismm.schemes.slices import Slices
    from prismm.schemes.words import Words

COMPOSITE = {"Words": "words", "ScaledHalf": "scaled_half", "TileInt8": "tile_int8", "Slices": "slices"}
"""Schemes of several rounded products, and their modules."""

_HOMES = {"Residues": "residues", "Native": "native", "Scheme": "base", "Composite": "composite", **COMPOSITE}

__all__ = ["Auto", "Composite", "Native", "Residues", "Scheme", "Slices", "Words"]


def __getattr__(name: str) -> Any:
    """The scheme of this name, imported on first use."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"prismm.schemes.{_HOMES[name]}"), name)
    if name == "Auto":
        return importlib.import_module("prismm.planner").Auto
    raise AttributeError(f"module 'prismm.schemes' has no attribute {name!r}")
