"""Schemes: ways to multiply through low-precision parts, each with its value, its bound and whether it is
reproducible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.lazy import attributes

if TYPE_CHECKING:
    from prismm.core.composite import Composite, Joined, Scaled, Setting
    from prismm.core.scheme import Scheme
    from prismm.cpu.composite import CompositeImplementation
    from prismm.cpu.engines.floats import blas_for
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

_EXTENDING = {
    "Scheme": "core.scheme",
    **dict.fromkeys(("Composite", "Joined", "Scaled", "Setting"), "core.composite"),
    "CompositeImplementation": "cpu.composite",
    "blas_for": "cpu.engines.floats",
}
"""What a scheme of one's own is made of (docs/extending.md), and its modules."""

__all__ = [
    "Auto", "Composite", "CompositeImplementation", "Joined", "Native", "Residues", "Scaled", "ScaledHalf", "Scheme",
    "Setting", "Slices", "TileInt8", "Words", "blas_for",
]  # fmt: skip


__getattr__ = attributes(
    globals(),
    {"Auto": "prismm.planning.auto"}
    | {name: f"prismm.{home}" for name, home in _EXTENDING.items()}
    | {name: f"prismm.schemes.{home}" for name, home in _HOMES.items()},
)
