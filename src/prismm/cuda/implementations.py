"""Which module makes a scheme's products on a GPU; each has check, workspace, problem_of, queue,
bound_of, gpu_seconds and products.
"""

from __future__ import annotations

from typing import Any

from prismm.cuda.multiword import implementation as cuda_words_calls
from prismm.cuda.slices import implementation as cuda_slices_calls
from prismm.cuda.tile_int8 import implementation as cuda_tile_calls
from prismm.schemes.slices import Slices
from prismm.schemes.tile_int8 import TileInt8

__all__ = ["module_of"]


def module_of(scheme: Any) -> Any:
    """The module of a scheme that is neither Native nor Residues; that of words refuses what no GPU has."""
    if isinstance(scheme, TileInt8):
        return cuda_tile_calls
    return cuda_slices_calls if isinstance(scheme, Slices) else cuda_words_calls
