"""Schemes: ways to multiply through low-precision parts, each with its value, its bound and whether it is
reproducible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm._lazy import attributes

if TYPE_CHECKING:
    from prismm.core.composite import Composite
    from prismm.core.scheme import Scheme
    from prismm.planning.auto import Auto
    from prismm.schemes.multiword import Words
    from prismm.schemes.native import Native
    from prismm.schemes.residues import Residues
    from prismm.schemes.scaled_half import ScaledHalf
    from prismm.schemes.slices import Slices
    from prismm.schemes.tile_int8 import TileInt8

COMPOSITE = {"Words": "multiword", "ScaledHalf": "scaled_half", "TileInt8": "tile_int8", "Slices": "slices"}
"""Schemes of several rounded products, and their modules."""

_HOMES = {"Residues": "residues", "Native": "native", **COMPOSITE}

__all__ = ["Auto", "Composite", "Native", "Residues", "ScaledHalf", "Scheme", "Slices", "TileInt8", "Words"]


__getattr__ = attributes(
    globals(),
    {"Auto": "prismm.planning.auto", "Scheme": "prismm.core.scheme", "Composite": "prismm.core.composite"}
    | {name: f"prismm.schemes.{home}" for name, home in _HOMES.items()},
)
