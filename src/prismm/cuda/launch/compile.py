"""Kernels compiled for a program's arguments, and their launches in the driver's memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core import cache_files
from prismm.cuda.launch import later
from prismm.cuda.launch.arguments import FACTORS, RIGHT, WORKSPACE, BufferView, Factor, Tiled
from prismm.cuda.launch.driver import LaunchConfig, check, driver, relaxed
from prismm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    import torch

    from prismm.cuda.launch.steps import Launch


class Pointer:
    """What Triton asks of an argument that is a pointer when it compiles."""

    def __init__(self, dtype: torch.dtype, address: int, shape: tuple[int, ...] = (1,)) -> None:
        self.dtype, self._address, self.shape = dtype, address, shape

    def data_ptr(self) -> int:
        """What stands for its address: only its alignment counts."""
        return self._address

    def ptr_range(self) -> int:
        """Unknown."""
        return 0

    def stride(self) -> tuple[int, ...]:
        """Of a line."""
        return (1,)


@dataclass
class Ready:
    """A compiled kernel with its launch and its parameters in memory; slots and maps depend on the bases."""

    function: Any
    config: LaunchConfig
    config_place: Any
    parameters: Any
    slots: list[tuple[Any, int, int]]
    maps: list[tuple[Any, Tiled, dict[str, Any]]]
    alive: list[Any]


_COMPILERS = 8
"""Threads that compile."""

_TAILS = {
    "rejoin_tiles": (0.4, 3.8), "finish": (1.5, 3.4), "join_fast": (1.0, 3.0), "repair_strips": (1.6, 1.7),
    "multiply_by_groups": (1.4, 1.4), "residue_product": (1.3, 1.3), "symmetric_residue_product": (1.3, 1.3),
    "words_product": (1.2, 1.2), "finish_native": (0.8, 1.1), "repair_words": (0.9, 1.0),
}  # fmt: skip
"""Seconds that kernels of real and of complex products take in the compiler after their sources are read, about; those
that are not here take 0.1 to 0.5.
"""

_LOADED = 0.5
"""Seconds after which a kernel is not being loaded from disk, but compiled."""


@contextlib.contextmanager
def triton_files() -> Iterator[None]:
    """Where Triton's own cache fails inside, which it cannot do without, an EngineError that says what to do."""
    try:
        yield
    except (OSError, json.JSONDecodeError) as error:
        raise EngineError(
            f"Triton could not keep or read compiled kernels in its cache, ~/.triton/cache or TRITON_CACHE_DIR "
            f"({error}): set TRITON_CACHE_DIR to an empty folder that can be written to, or multiply CPU tensors"
        ) from error


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """What Triton is to compile inside is compiled by several threads, and there at the end."""
    import triton

    with contextlib.ExitStack() as stack:
        # Not in every Triton; and where the caller's own mode is active, that goes on.
        if (mode := getattr(triton, "AsyncCompileMode", None)) is not None:
            pool = stack.enter_context(ThreadPoolExecutor(_COMPILERS, thread_name_prefix="prismm-compile"))
            with contextlib.suppress(RuntimeError):
                stack.enter_context(mode(pool))
        yield


def longest_tail_first(launches: list[Launch]) -> list[Launch]:
    """Launches in the order in which their kernels are best read: sources are read one at a time, and the compiler then
    works on all of them side by side. So those on which it works longest come first: of all orders, none ends sooner
    (Jackson, *Scheduling a production line to minimize maximum tardiness*, 1955).
    """

    def tail(launch: Launch) -> float:
        real, of_complex = _TAILS.get(launch.kernel.fn.__name__, (0.0, 0.0))
        return of_complex if launch.constants.get("PARTS") == 2 else real

    return sorted(launches, key=tail, reverse=True)


def read_in_turn(kernel: Any) -> None:
    """Have a kernel's source read while no other one's is."""
    from triton.runtime.driver import driver as triton_driver

    kernel.device_caches[triton_driver.active.get_current_device()]  # which sets what is replaced here
    source = getattr(kernel, "ASTSource", None)
    if source is not None and not getattr(source, "in_turn", False):
        kernel.ASTSource = _in_turn(source)


@functools.cache
def _in_turn(source: Any) -> Any:
    """A class of Triton's sources whose `make_ir` waits for its turn."""

    class InTurn(source):  # type: ignore[misc]
        in_turn = True

        def make_ir(self, *arguments: Any, **named: Any) -> Any:
            with later.front_end():
                return super().make_ir(*arguments, **named)

    return InTurn


def announce(found: Iterable[tuple[str, Any]]) -> None:
    """Say which kernels are being compiled. found: their names, with kernels or Triton's promises of some."""
    names = {kernel.future: name for name, kernel in found if hasattr(kernel, "future")}
    unfinished = wait(names, timeout=_LOADED).not_done
    if unfinished:
        compiled = dict.fromkeys(name for future, name in names.items() if future in unfinished)
        cache_files.announce(f"compiling kernels for this GPU (once): {', '.join(compiled)}", always=True)


def announce_later(names: Iterable[str]) -> None:
    """Say which kernels are compiled in the background (`launch.later`)."""
    if names := sorted(names):
        cache_files.announce(f"compiling kernels for this GPU (once, beside further calls): {', '.join(names)}", True)


def as_tensor(place: BufferView, bases: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A tensor that begins at this place."""
    base = bases[place.base]
    if WORKSPACE <= place.base <= RIGHT:
        return base[place.offset :].view(place.dtype)
    return base.as_strided((1,), (1,), base.storage_offset() + place.offset // place.dtype.itemsize)


def described_to_triton(tiled: Tiled, base: Any) -> Any:
    """The TMA descriptor of a matrix that begins at `base`, as Triton takes it."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor(base, list(tiled.shape), list(tiled.strides), list(tiled.box), tiled.layout)


_TYPES = {"i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64}


@functools.cache
def function_of(compiled: Any) -> int:
    """A kernel's handle, loaded into the current device's context, where it stays.

    Not by `compiled.run`, which has a C compiler make a launcher of Triton's own first: half a second for each kernel.
    """
    from triton.runtime.driver import driver as triton_driver

    gpu, shared = triton_driver.active, compiled.metadata.shared
    device = gpu.get_current_device()
    most = gpu.utils.get_device_properties(device)["max_shared_mem"]
    if shared > most:
        raise EngineError(
            f"{compiled.name} needs {shared} bytes of shared memory, and a multiprocessor of this GPU lends {most}: "
            "multiply CPU tensors (a.cpu()), or torch.matmul itself"
        )
    with relaxed():  # the caller may be capturing a stream when a kernel from the background compilation is loaded
        return int(gpu.utils.load_binary(compiled.name, compiled.kernel, shared, device)[1])


def load(compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> Ready:
    """Parameters in the order in which Triton's own launcher passes them: constants apart, two null scratch pointers
    last.
    """
    meta = compiled.metadata
    if meta.global_scratch_size or meta.profile_scratch_size or meta.num_ctas != 1 or meta.launch_cooperative_grid:
        raise EngineError(f"{compiled.name} asks for what prismm's launches do not bring; use another Triton")
    alive: list[Any] = []
    slots: list[tuple[Any, int, int]] = []
    maps: list[tuple[Any, Tiled, dict[str, Any]]] = []
    tiles = iter(getattr(meta, "tensordesc_meta", None) or ())
    for value, kind in zip(arguments, compiled.src.signature.values(), strict=False):
        if kind == "constexpr":
            continue
        if isinstance(value, Tiled):
            # The driver wants the 128 bytes of a descriptor aligned to 64.
            memory = ctypes.create_string_buffer(128 + 64)
            start = -ctypes.addressof(memory) % 64
            tile = (ctypes.c_char * 128).from_buffer(memory, start)
            maps.append((tile, value, next(tiles)))
            # Shape and strides follow a descriptor as parameters of the kernel's own.
            alive += [tile, *map(ctypes.c_int32, value.shape), *map(ctypes.c_int64, value.strides)]
        elif kind[0] == "*":
            address = ctypes.c_uint64(0 if isinstance(value, BufferView) else value.data_ptr())
            if isinstance(value, BufferView):
                slots.append((address, value.base, value.offset))
            alive.append(address)
        elif isinstance(value, Factor):
            pattern = ctypes.c_uint64(0)
            slots.append((pattern, FACTORS + value.index, 0))
            alive.append(pattern)
        else:
            alive.append(_TYPES[kind](value))
    alive += [ctypes.c_uint64(0), ctypes.c_uint64(0)]
    parameters = (ctypes.c_void_p * len(alive))(*map(ctypes.addressof, alive))
    # Tensors are known to the launch by their addresses alone: something has to hold their memory.
    constants = [x for x in arguments if not isinstance(x, (BufferView, Tiled, Factor, int))]
    config = LaunchConfig(*grid, 32 * meta.num_warps, 1, 1, meta.shared)
    return Ready(
        ctypes.c_void_p(function_of(compiled)), config, ctypes.byref(config), parameters, slots, maps,
        [*alive, *constants, compiled],
    )  # fmt: skip


def encode_map(target: Any, address: int, tiled: Tiled, facts: dict[str, Any]) -> None:
    """The TMA descriptor of a matrix at this address."""
    size = facts["elem_size"]
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    rank = len(tiled.shape)
    # The driver counts axes from the contiguous one, torch from the outermost. The last arguments: no interleaving,
    # lines of 128 bytes into the L2 cache, zeros beyond the ends, which products rely on.
    check(driver().cuTensorMapEncodeTiled(
        ctypes.addressof(target), TMA_DTYPE_DEVICE_TO_HOST[facts["elem_type"]], rank, address,
        (ctypes.c_uint64 * rank)(*reversed(tiled.shape)),
        (ctypes.c_uint64 * (rank - 1))(*(size * step for step in reversed(tiled.strides[:-1]))),
        (ctypes.c_uint32 * rank)(*reversed(facts["block_size"])), (ctypes.c_uint32 * rank)(*[1] * rank), 0,
        facts["swizzle"], 2, 0,
    ))  # fmt: skip
