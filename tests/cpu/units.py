"""The engine that multiplies bytes by Numba's kernels on this processor, tiles aside."""

from prismm.cpu.engines.integer import AVX2, VNNI
from prismm.cpu.kernels import byte_unit

PACKED = AVX2 if byte_unit.widens() else VNNI
