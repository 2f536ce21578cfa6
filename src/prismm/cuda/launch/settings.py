"""Settings of the environment that a product on a GPU depends on, compared with those of an earlier call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

EMULATION = (
    b"CUBLAS_EMULATE_DOUBLE_PRECISION", b"CUBLAS_EMULATE_SINGLE_PRECISION", b"CUBLAS_EMULATION_STRATEGY",
)  # fmt: skip
"""Variables that let cuBLAS emulate FP64 or FP32."""
SETTINGS = (*EMULATION, b"NVIDIA_TF32_OVERRIDE", b"PRISMM_ENGINE")
"""Variables that change what cuBLAS computes, and the one that names prismm's engine."""


@functools.cache
def _reader() -> tuple[Callable[[int], int], int, Any]:
    # Not before a call on a GPU: a plan needs no compiler.
    from prismm.core.variables import table_of
    from prismm.cuda.launch.kernels.environment import fingerprint

    table, names = table_of(SETTINGS)
    return fingerprint.compile(), table.ctypes.data, (names, table)


def fingerprint_of_settings() -> int:
    """A number for the values that the settings have, in a third of a microsecond: another one after any change.

    >>> fingerprint_of_settings() == fingerprint_of_settings()
    True
    """
    read, place, _ = _reader()
    return read(place)
