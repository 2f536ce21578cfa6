"""cuBLAS, called directly: its own products of float64, float32 and complex matrices, as steps of a program.

torch's way to cuBLAS costs the host more than cuBLAS does, and memory for the sums of products that are cut along their
inner dimension is torch's there, so that a graph which replays such a product could not be sure of it. Here it is part
of a program's workspace. Handles are our own, with cuBLAS's default settings: what torch was told of float32
does not reach them.

cuBLAS stores matrices by columns. out, by rows, is its transpose by columns, and outᵀ = bᵀ·aᵀ: so b is its first
operand, a its second, and a matrix by rows is one that it does not transpose.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.cuda.launch.driver import relaxed
from prismm.cuda.launch.stages import MULTIPLY
from prismm.errors import EngineError

if TYPE_CHECKING:
    from prismm.cuda.launch.arguments import BufferView

WORKSPACE = 32 << 20
"""Bytes that cuBLAS is given, as it asks for on Hopper GPUs; torch gives it as many there."""

_PLAIN, _TRANSPOSED = 0, 1
_LETTERS = {"float64": "D", "float32": "S", "complex128": "Z", "complex64": "C"}
_MOST = (1 << 31) - 1
"""The largest number that cuBLAS's 32-bit calls take, and torch uses them up to it."""

_IDLE: dict[int, list[ctypes.c_void_p]] = {}
"""Handles of each device that no thread uses just now: one at a time may."""


def leading(rows: int, columns: int, strides: tuple[int, int]) -> tuple[bool, int] | None:
    """Whether a matrix whose elements lie so many elements apart is stored by rows, and how far its rows, or columns,
    lie apart; None for one that cuBLAS does not read where it is.

    >>> leading(3, 4, (4, 1)), leading(3, 4, (1, 5)), leading(3, 4, (2, 1)), leading(1, 4, (0, 1))
    ((True, 4), (False, 5), None, (True, 4))
    """
    for by_rows, vectors, length, step, within in (
        (True, rows, columns, *strides), (False, columns, rows, strides[1], strides[0]),
    ):  # fmt: skip
        # An axis of one element may have any stride, as nobody steps along it.
        if (length <= 1 or within == 1) and (vectors <= 1 or step >= max(1, length)):
            return by_rows, step if vectors > 1 else max(1, length)
    return None


@dataclass(frozen=True)
class Gemm:
    """out = a @ b of matrices (batch, ·, ·), in its turn among a program's launches.

    extents: batch, m, n, k. a_steps, b_steps: elements from a matrix to the next (0 where one serves all), a row, a
    column; out is contiguous. workspace: WORKSPACE bytes.
    """

    a: BufferView
    b: BufferView
    out: BufferView
    extents: tuple[int, int, int, int]
    a_strides: tuple[int, int, int]
    b_strides: tuple[int, int, int]
    workspace: BufferView

    forked = False
    stage = MULTIPLY

    @property
    def arguments(self) -> tuple[BufferView, ...]:
        """The places that it reads and writes."""
        return self.a, self.b, self.out, self.workspace

    @functools.cached_property
    def call(self) -> tuple[str, tuple[int | float | BufferView, ...]]:
        """cuBLAS's function, and its arguments behind the handle: two transpositions, n, m, k, 1.0, b and a with their
        leading dimension and, of a batch, step, 0.0, the same of out, and how many.

        Raises:
            EngineError: for strides that cuBLAS does not read.
        """
        batch, m, n, k = self.extents
        left, right = leading(m, k, self.a_strides[1:]), leading(k, n, self.b_strides[1:])
        if left is None or right is None:
            raise EngineError("operands of these strides have to be copied first")
        name = f"cublas{_LETTERS[str(self.out.dtype).removeprefix('torch.')]}gemm"
        name += "StridedBatched" if batch > 1 else "_v2"
        if max(batch, m, n, k, left[1], right[1]) > _MOST:
            name += "_64"
        turned = (_PLAIN if by_rows else _TRANSPOSED for by_rows, _ in (right, left))
        many = batch > 1
        strides = [(step,) if many else () for step in (self.b_strides[0], self.a_strides[0], m * n)]
        return name, (
            *turned,
            n,
            m,
            k,
            1.0,
            self.b,
            right[1],
            *strides[0],
            self.a,
            left[1],
            *strides[1],
            0.0,
            self.out,
            n,
            *strides[2],
            *((batch,) if many else ()),
        )

    @functools.cached_property
    def _ready(self) -> tuple[Any, list[Any], list[tuple[Any, BufferView]]]:
        """The function, its arguments in memory, with room for the handle, and which of them are addresses."""
        name, values = self.call
        real = ctypes.c_float if name[len("cublas")] in "SC" else ctypes.c_double
        arguments: list[Any] = [None]
        slots = []
        for value, kind in zip(values, _kinds(name), strict=True):
            if isinstance(value, float):
                # A complex scalar is two numbers, of which a real function reads the first.
                arguments.append(ctypes.byref((real * 2)(value, 0.0)))
            elif isinstance(value, int):
                arguments.append(kind(value))
            else:
                arguments.append(kind())
                slots.append((arguments[-1], value))
        return _library()[name], arguments, slots

    def run(self, bases: tuple[int, ...], stream: int) -> None:
        """Queue it on a CUDA stream of the current device; in one thread at a time.

        Raises:
            EngineError: where cuBLAS refuses it.
        """
        import torch

        blas = _library()
        function, arguments, slots = self._ready
        for slot, place in slots:
            slot.value = bases[place.base] + place.offset
        idle = _IDLE.setdefault(torch._C._cuda_getDevice(), [])
        try:
            # A handle has one stream and one workspace at a time; `pop` gives it to one thread only.
            handle = idle.pop()
        except IndexError:
            handle = _new_handle()
        arguments[0] = handle
        try:
            workspace = bases[self.workspace.base] + self.workspace.offset
            code = (
                blas.cublasSetStream_v2(handle, stream)  # which takes the workspace away
                or blas.cublasSetWorkspace_v2(handle, workspace, WORKSPACE)
                or function(*arguments)
            )
        finally:
            idle.append(handle)
        _check(code)


@functools.cache
def _library() -> Any:
    """cuBLAS, which torch has loaded. Its calls are short: they keep Python's lock.

    Raises:
        EngineError: where there is none.
    """
    import torch

    name = f"libcublas.so.{str(torch.version.cuda).split('.')[0]}"
    try:
        blas = ctypes.PyDLL(name)
    except OSError as error:
        raise EngineError(
            f"{name}, which torch multiplies with, could not be loaded ({error}): pass engine='cuda:int8'"
        ) from error
    blas.cublasCreate_v2.argtypes = [ctypes.c_void_p]
    blas.cublasSetStream_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    blas.cublasSetWorkspace_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    blas.cublasGetStatusString.argtypes, blas.cublasGetStatusString.restype = [ctypes.c_int], ctypes.c_char_p
    return blas


def _kinds(name: str) -> list[Any]:
    """Types of the arguments of one of cuBLAS's products behind the handle."""
    pointer, flag, integer = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64 if name.endswith("_64") else ctypes.c_int
    many = "Batched" in name
    matrix = [pointer, integer, *([ctypes.c_longlong] if many else [])]
    count = [integer] if many else []
    return [flag, flag, integer, integer, integer, pointer, *matrix, *matrix, pointer, *matrix, *count]


def _new_handle() -> ctypes.c_void_p:
    """A handle of the current device; made while a stream is captured, too, as it queues nothing."""
    handle = ctypes.c_void_p()
    with relaxed():
        _check(_library().cublasCreate_v2(ctypes.byref(handle)))
    return handle


def _check(code: int) -> None:
    if code:
        message = (_library().cublasGetStatusString(code) or b"unknown error").decode()
        raise EngineError(f"cuBLAS refused a product: {message} (status {code})")
