"""CUDA's driver, called directly."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from prismm.errors import EngineError

RELAXED = 2
"""The mode of a capture in which its thread may call any function of the driver's."""


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


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, in its second version."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        *((f"{name}_{axis}", ctypes.c_uint) for name in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class MemsetNode(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        ("place", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
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
    cuda.cuStreamBeginCaptureToGraph.argtypes = [pointer, pointer, pointer, pointer, ctypes.c_size_t, integer]
    cuda.cuStreamEndCapture.argtypes = [pointer, pointer]
    cuda.cuCtxGetCurrent.argtypes = [pointer]
    cuda.cuGraphCreate.argtypes = [pointer, word]
    cuda.cuGraphAddKernelNode_v2.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, pointer]
    cuda.cuGraphAddMemsetNode.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, pointer, pointer]
    cuda.cuGraphGetNodes.argtypes = [pointer, pointer, pointer]
    cuda.cuGraphNodeGetDependentNodes.argtypes = [pointer, pointer, pointer]
    cuda.cuGraphNodeGetType.argtypes = [pointer, pointer]
    cuda.cuGraphKernelNodeGetParams_v2.argtypes = [pointer, pointer]
    cuda.cuGraphMemsetNodeGetParams.argtypes = [pointer, pointer]
    cuda.cuFuncGetParamInfo.argtypes = [pointer, ctypes.c_size_t, pointer, pointer]
    cuda.cuKernelGetParamInfo.argtypes = [pointer, ctypes.c_size_t, pointer, pointer]
    cuda.cuGraphInstantiateWithFlags.argtypes = [pointer, pointer, ctypes.c_ulonglong]
    cuda.cuGraphDestroy.argtypes = [pointer]
    cuda.cuGraphExecDestroy.argtypes = [pointer]
    cuda.cuGetErrorString.argtypes = [integer, pointer]
    return cuda


def address_of(name: str) -> int:
    """Where a function of the driver is, for compiled code."""
    return ctypes.cast(getattr(driver(), name), ctypes.c_void_p).value or 0


def check(code: int) -> None:
    """EngineError, with what the driver says, unless the code is 0."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        message = (text.value or b"unknown error").decode()
        raise EngineError(f"the CUDA driver refused a launch: {message} (error {code})")


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Driver calls in this block neither fail because a thread captures a stream nor invalidate its capture."""
    mode = ctypes.c_int(RELAXED)
    driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
