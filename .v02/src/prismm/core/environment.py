"""Checks of the floating-point environment and of frameworks' flags; prismm reads them and writes none."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from prismm.errors import EngineError

_ONE = 1.0
_HALF_ULP = 2.0**-53
_MORE_THAN_HALF = 1.5 * 2.0**-53
_NEXT = 1.0 + 2.0**-52
_SMALLEST_NORMAL = 2.0**-1022
_SMALLEST = 2.0**-1074
_HALF = 0.5
ARITHMETIC = _SMALLEST_NORMAL, _HALF, _SMALLEST, _ONE, _HALF_ULP, _MORE_THAN_HALF, _NEXT
"""The numbers of `check_arithmetic`, for compiled code that checks likewise (`cpu.kernels.energy`)."""
_DEFAULT = "ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1)), which is C's fesetenv(FE_DFL_ENV) on Linux"
_FPMATH = b"ONEDNN_DEFAULT_FPMATH_MODE"
FULL = "none", "ieee"
"""What torch's flag of float32 products says where they have all their bits."""
SETTINGS = b"PRISMM_ENGINE", _FPMATH
"""Variables that may change how a product on a CPU is made."""


@functools.cache
def reader() -> Callable[[bytes], bytes | None]:
    """C's getenv, which libraries read their settings with; `os.environ` takes microseconds for what is not there."""
    try:
        found = ctypes.PyDLL(None).getenv
    except (OSError, TypeError, AttributeError):  # Windows
        return lambda name: os.environ.get(name.decode(), "").encode() or None
    found.restype = ctypes.c_char_p  # bytes are passed as they are; a list of types would only check them, slowly
    return found


def variable(name: bytes) -> str:
    """An environment variable, or "" where it is not set: for what is asked in every call.

    >>> variable(b"A_VARIABLE_THAT_NOBODY_SETS")
    ''
    """
    value = reader()(name)
    return "" if value is None else value.decode(errors="replace")


def check_arithmetic() -> None:
    """Raise unless this thread rounds to nearest even and honours subnormals (as IEEE 754 asks by default).

    Raises:
        EngineError: where the thread's control register flushes subnormals (``torch.set_flush_denormal``) or rounds
        otherwise.
    """
    if _SMALLEST_NORMAL * _HALF == 0.0 or _SMALLEST * _ONE == 0.0:
        raise EngineError(
            "this thread flushes subnormal numbers to zero, which spoils exactness; call in it (and in callbacks "
            f"of JAX) torch.set_flush_denormal(False), or {_DEFAULT}"
        )
    # Upwards the first sum is above 1, as it is where ties go away from zero; downwards and to zero the second is 1.
    if _ONE + _HALF_ULP != _ONE or _ONE + _MORE_THAN_HALF != _NEXT:
        raise EngineError(
            "this thread does not round to nearest, which spoils exactness; restore the default rounding: call in "
            f"it {_DEFAULT}"
        )


def reduced_float32() -> str | None:
    """Why torch's float32 GEMM on this CPU may use fewer bits than float32, or None if it may not."""
    mode = reader()(_FPMATH)
    if mode and mode.upper() != b"STRICT":
        return f"{_FPMATH.decode()}={mode.decode(errors='replace').upper()}"
    if sys.modules.get("torch") is not None:
        precision = float32_precision()()
        if precision not in FULL:
            return f"torch.backends.mkldnn.matmul.fp32_precision is {precision!r}"
    return None


@functools.cache
def float32_may_be_reduced() -> Callable[[], bool]:
    """A function that tells in half a microsecond whether `reduced_float32` has to be asked."""
    setting, precision, full = reader(), float32_precision(), FULL

    def asked() -> bool:
        return precision() not in full or setting(_FPMATH) is not None

    return asked


def outside_autocast() -> AbstractContextManager[Any]:
    """A block in which torch multiplies float32 as float32, whatever ``torch.autocast`` says around it; its state is
    the caller's, and stays. ``torch.mm(..., out=)`` and float64 or complex operands need no such block.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch._C._is_any_autocast_enabled():
        return _NOTHING
    block: AbstractContextManager[Any] = torch._C._DisableAutocast()
    return block


_NOTHING = contextlib.nullcontext()


@functools.cache
def float32_precision() -> Callable[[], str]:
    """What reads torch's flag of float32 products on CPUs, whichever of its old and new flags set it.

    `torch.get_float32_matmul_precision` raises where they disagree, about GPUs too.
    """
    import torch

    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        flags: Any = torch.backends.mkldnn
        return lambda: str(flags.matmul.fp32_precision)
    return functools.partial(getter, "mkldnn", "matmul")  # without torch's modules of properties: 4 µs
