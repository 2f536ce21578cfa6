"""The engine that multiplies bytes by Numba's kernels on this processor, and whether there are tiles."""

from prismm.cpu.engines import tile_permission
from prismm.cpu.engines.integer import AVX2, VNNI
from prismm.cpu.kernels import amx, byte_unit

PACKED = AVX2 if byte_unit.widens() else VNNI


def has_tiles() -> bool:
    """Whether AMX's tiles are here and the system gives leave to use them; no engine proves itself, and nothing is
    compiled, while tests are collected.
    """
    return amx.supported() and tile_permission.refusal() is None
