"""Compile Numba kernels on first use and keep them on disk.

A *kernel* has one explicit signature, releases the GIL and is compiled when it is first called; a *device* function
is a helper that kernels inline. Kernels never use Numba's own threads: prismm splits the work over its workers, so
calls from many Python threads and from forked children are safe.

A kernel's file (`kernel_files`) lies in a folder whose name carries a digest of every kernel source and of the
versions, and each kernel has a name and a single signature of its own: equal names mean equal contents.

That has to hold inside the files, too. A kernel's file brings the helpers that it calls, as symbols made of their
module, qualified name and argument types, and a number that counts functions of the process that compiled it; where two
files bring one symbol, the first one that is loaded serves both. So no two functions may share a name: those that a
function makes are given one each (`_checked_name`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba import carray, njit
from numba.core import config, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

from prismm.core import cache_files
from prismm.core.compilers import HelperCompiler, KernelCompiler
from prismm.core.kernel_files import KernelFile

_COMPILE_LOCK = threading.RLock()
HELPER = {"nogil": True, "error_model": "numpy", "pipeline_class": HelperCompiler, "_nrt": True}
"""How Numba compiles the functions that `overload` chooses. They count references, as those of `counting` do."""

if hasattr(os, "register_at_fork"):
    # A child would find a lock that a thread of its parent held, and Numba's and LLVM's with it: forks wait.
    os.register_at_fork(
        before=_COMPILE_LOCK.acquire, after_in_parent=_COMPILE_LOCK.release, after_in_child=_COMPILE_LOCK.release
    )


@functools.cache
def _digest() -> str:
    """What compiled kernels follow from: every kernel's source, and the versions."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (numba.__version__, llvmlite.__version__, sys.version, sys.platform):
        digest.update(part.encode())
    package = Path(__file__).parents[1]
    helpers = "compilers", "jit", "kernel_files", "limbs", "pointers", "variables"
    shared = [Path(__file__).with_name(f"{name}.py") for name in helpers]
    rooms = "cpu", "numerics", "cuda/launch"
    for source in shared + sorted(x for room in rooms for x in (package / room / "kernels").glob("*.py")):
        digest.update(str(source.relative_to(package)).encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


@functools.cache
def cache_folder() -> Path | None:
    """The folder of this exact set of kernels, or None where there can be none (kernels then live in memory)."""
    return cache_files.folder(f"kernels-{_digest()}")


_NAMED: dict[tuple[str, str], Callable[..., Any]] = {}


def _checked_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, after a look that no other one has its name.

    Raises:
        TypeError: where one has: give each its own ``__qualname__``.
    """
    name = function.__module__, function.__qualname__
    earlier = _NAMED.setdefault(name, function)
    again = earlier.__code__ == function.__code__ and not function.__closure__  # as where a module is loaded twice
    if earlier is not function and not again:
        raise TypeError(f"two functions named {'.'.join(name)}: kernels on disk would take one for the other")
    return function


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Inside, this thread alone has Numba compile, also where NUMBA_DISABLE_JIT leaves the user's functions to Python:
    most helpers have no meaning there. Garbage is collected afterwards: of the millions of objects that the compiler
    makes next to none can go before, and to look for them takes a seventh of the time.
    """
    with _COMPILE_LOCK:
        config.reload_config()  # or the compiler would, midway
        asked, config.DISABLE_JIT = config.DISABLE_JIT, 0
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            config.DISABLE_JIT = asked
            if collects:
                gc.enable()


def _dispatcher(
    function: Callable[..., Any],
    fastmath: set[str] | None = None,
    nogil: bool = True,
    compiler: type[KernelCompiler] = HelperCompiler,
    counted: bool = True,
) -> Any:
    """What Numba compiles for the types that it is called with; counted: with references to arrays."""
    options = {"nogil": nogil, "error_model": "numpy", "fastmath": fastmath or False, "_nrt": counted}
    with _compiling():
        return njit(pipeline_class=compiler, **options)(function)


class Kernel:
    """A function compiled for one signature on its first call."""

    def __init__(self, function: Callable[..., Any], signature: str, fastmath: set[str], nogil: bool = True) -> None:
        self.function = _checked_name(function)
        self.signature = signature
        self._fastmath = fastmath
        self._nogil = nogil
        self._compiled: Any = None
        functools.update_wrapper(self, function)

    def compile(self) -> Any:
        """The compiled function, from disk where it is there."""
        with _compiling():
            if self._compiled is None:
                dispatcher = _dispatcher(self.function, self._fastmath, self._nogil, KernelCompiler)
                dispatcher._cache = self._file()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", numba.NumbaPerformanceWarning)
                    dispatcher.compile(self.signature)
                dispatcher.disable_compile()
                self._compiled = dispatcher
        return self._compiled

    def is_on_disk(self) -> bool:
        """Whether a process that calls it would load it, not compile it."""
        with _compiling():
            return self._file().is_there(cpu_target.target_context)

    def _file(self) -> KernelFile:
        return KernelFile(cache_folder(), f"{self.function.__module__}.{self.function.__qualname__}", self.signature)

    @property
    def device(self) -> Any:
        """The same function as a helper that other kernels call."""
        return _dispatcher(self.function, self._fastmath)

    def __call__(self, *args: Any) -> Any:
        """Compile on the first call, then run."""
        compiled = self._compiled or self.compile()
        return compiled(*args)


def kernel(
    signature: str, fastmath: set[str] | None = None, nogil: bool = True
) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate a function as a kernel with one Numba signature; without `nogil` it holds Python's lock."""
    return lambda function: Kernel(function, signature, fastmath or set(), nogil)


def single(twin: Kernel, matrices: int = 1) -> Kernel:
    """The same kernel for float32 matrices as its first arguments, under a name of its own."""
    code, name = twin.function.__code__, twin.function.__name__ + "_single"
    function = FunctionType(code, twin.function.__globals__, name, None, twin.function.__closure__)
    function.__qualname__, function.__module__, function.__doc__ = name, twin.function.__module__, twin.function.__doc__
    return Kernel(function, twin.signature.replace("float64[:,::1]", "float32[:,::1]", matrices), twin._fastmath)


def device(function: Callable[..., Any]) -> Any:
    """Decorate a helper that kernels call; strict IEEE arithmetic, no contraction, no reassociation.

    Its arrays are its caller's, and it counts no references to them: two atomic operations for each argument cost more
    than the arithmetic on a short row. A helper that makes an array, or takes one that another helper returns, compiles
    only as `counting`.
    """
    return _dispatcher(_checked_name(function), counted=False)


def counting(function: Callable[..., Any]) -> Any:
    """Decorate a helper that makes or returns arrays. It counts references, and callers that take its arrays must count
    them, too.
    """
    return _dispatcher(_checked_name(function))


def device_any_order(function: Callable[..., Any]) -> Any:
    """Decorate a reduction whose order of summation does not matter (exact sums, or bounds that hold for any order)."""
    return _dispatcher(_checked_name(function), {"reassoc", "contract"}, counted=False)


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer that `numba.carray` takes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.uintp), codegen


def contiguous_part(array: Any, i: Any, size: Any) -> Any:
    """In kernels: array[i : i + size] of a contiguous array, without a counted reference (two atomic operations, which
    cost as much as the arithmetic on a short row).
    """
    raise NotImplementedError("a device function")


def contiguous_row(array: Any, i: Any, j: Any, size: Any) -> Any:
    """In kernels: array[i, j : j + size] likewise, typed as contiguous, as the caller knows it to be: vector stores
    need that.
    """
    raise NotImplementedError("a device function")


# Overloads, not device functions: those would be compiled anew for every constant that they are called with.
@overload(contiguous_part, jit_options=HELPER)
def _contiguous_part(array: Any, i: Any, size: Any) -> Any:
    def part(array: Any, i: Any, size: Any) -> Any:
        return carray(_pointer(np.uint64(array.ctypes.data + i * array.strides[0])), size, array.dtype)

    return part


@overload(contiguous_row, jit_options=HELPER)
def _contiguous_row(array: Any, i: Any, j: Any, size: Any) -> Any:
    def row(array: Any, i: Any, j: Any, size: Any) -> Any:
        address = array.ctypes.data + i * array.strides[0] + j * array.strides[1]
        return carray(_pointer(np.uint64(address)), size, array.dtype)

    return row


def words(array: Any, i: Any, j: Any, size: Any) -> Any:
    """In kernels: row i of a matrix of bytes, from its byte j on, as `size` int64 of eight bytes each, likewise."""
    raise NotImplementedError("a device function")


@overload(words, jit_options=HELPER)
def _words(array: Any, i: Any, j: Any, size: Any) -> Any:
    def of_eight(array: Any, i: Any, j: Any, size: Any) -> Any:
        return carray(_pointer(np.uint64(array.ctypes.data + i * array.strides[0] + j)), size, np.int64)

    return of_eight


def as_float64(row: Any, buffer: Any) -> Any:
    """In kernels: the row itself where it is float64, otherwise the row copied to the start of `buffer`."""
    raise NotImplementedError("a device function")


@overload(as_float64, jit_options=HELPER)
def _as_float64(row: Any, buffer: Any) -> Any:
    def same(row: Any, buffer: Any) -> Any:
        return row

    def widened(row: Any, buffer: Any) -> Any:
        target = contiguous_part(buffer, 0, row.size)
        for h in range(row.size):
            target[h] = row[h]
        return target

    return same if row.dtype == types.float64 else widened


@intrinsic
def trailing_zeros(typingctx: Any, x: Any) -> Any:
    """How many low bits of a nonzero int64 are zero."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def wide_vectors(typingctx: Any) -> Any:
    """In a kernel: loops over registers of 512 bits where the processor has them. LLVM prefers 256 on some, whose clock
    used to fall with the former.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # The set of attributes that llvmlite knows lacks those with values.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def bits_of(typingctx: Any, x: Any) -> Any:
    """The bit pattern of a float64."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int64))

    return types.int64(types.float64), codegen


@intrinsic
def float_of(typingctx: Any, x: Any) -> Any:
    """The float64 of a bit pattern."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.int64), codegen


@device
def power_of_two(exponent: Any) -> Any:
    """2^exponent, from its bits where it is normal: libm's ldexp costs as much as a dozen operations."""
    if -1022 <= exponent <= 1023:
        return float_of((exponent + 1023) << 52)
    return np.ldexp(1.0, exponent)


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """x*y + z with one rounding (LLVM's ``fma``: the instruction, or libm's exact routine)."""
    signature = types.float64(types.float64, types.float64, types.float64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return signature, codegen
