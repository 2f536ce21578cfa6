"""CUDA's driver, called directly."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from prismm.errors import EngineError


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: what cuLaunchKernelEx, which takes a third of the arguments of cuLaunchKernel, and so of the time
    that passing them takes, is told of a launch.
    """

    _fields_ = [
        *((f"{name}_{axis}", ctypes.c_uint) for name in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def driver() -> Any:
    """CUDA's driver. Its calls are short: they keep Python's lock."""
    cuda = ctypes.PyDLL("libcuda.so.1")
    pointer, word, integer = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int
    # ctypes passes a Python integer as a C int unless it is told: an address would lose its upper half.
    cuda.cuMemsetD8Async.argtypes = [pointer, ctypes.c_ubyte, ctypes.c_size_t, pointer]
    cuda.cuTensorMapEncodeTiled.argtypes = [
        pointer, integer, word, pointer, pointer, pointer, pointer, pointer, integer, integer, integer, integer,
    ]  # fmt: skip
    cuda.cuStreamCreate.argtypes = [pointer, word]
    cuda.cuStreamDestroy_v2.argtypes = [pointer]
    cuda.cuStreamWaitEvent.argtypes = [pointer, pointer, word]
    cuda.cuEventCreate.argtypes = [pointer, word]
    cuda.cuEventRecord.argtypes = [pointer, pointer]
    cuda.cuEventDestroy_v2.argtypes = [pointer]
    cuda.cuCtxGetDevice.argtypes = [pointer]
    cuda.cuThreadExchangeStreamCaptureMode.argtypes = [pointer]
    cuda.cuStreamIsCapturing.argtypes = [pointer, pointer]
    cuda.cuStreamBeginCapture_v2.argtypes = [pointer, integer]
    cuda.cuStreamEndCapture.argtypes = [pointer, pointer]
    cuda.cuGraphInstantiateWithFlags.argtypes = [pointer, pointer, ctypes.c_ulonglong]
    cuda.cuGraphDestroy.argtypes = [pointer]
    cuda.cuGraphLaunch.argtypes = [pointer, pointer]
    cuda.cuGraphExecDestroy.argtypes = [pointer]
    cuda.cuGetErrorString.argtypes = [integer, pointer]
    return cuda


def check(code: int) -> None:
    """EngineError, with what the driver says, unless the code is 0."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        message = (text.value or b"unknown error").decode()
        raise EngineError(f"the CUDA driver refused a launch: {message} (error {code})")
