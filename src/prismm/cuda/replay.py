"""The fast path of calls on a GPU: those that were made before, or ones like them.

Three caches, from the narrowest to the widest, answer a call. They stay apart because each asks less than the next one,
and asking is what a small product's time goes into:

- `_REPEATS`, by addresses and keywords. Launches at these addresses are one by then, a CUDA graph
  (`cuda.launch.graphs`), and the host only sees that nothing has changed. torch does most of that at once: guards, as
  its compiler makes them, compare types, devices, shapes, strides and flags of tensors, and whether they want a
  derivative or lie inside a transformation. So a repeated call takes the host less than `torch.mm` does. The kernels
  are those that were recorded, cuBLAS's among them, whatever settings of cuBLAS have changed to since.
- `_AT_ONCE`, by types, shapes, strides and keywords. Settings and flags are asked for while the GPU works.
- `cuda.calls._CALLS`, by all that a plan depends on: prepared operands, gemm's sum and settings as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core.environment import reader
from prismm.cuda import device as cuda_device
from prismm.cuda.device import default_engine
from prismm.cuda.execute import multiply_fast, run_in_workspace, spoils, stream_of
from prismm.cuda.operands import PreparedOnDevice
from prismm.cuda.workspace import borrow, give_back

if TYPE_CHECKING:
    import torch

    from prismm.cuda.backend import GpuCall
    from prismm.cuda.launch.program import Program

__all__ = [
    "PLAIN_ACCURACY",
    "Repeat",
    "fast_path",
    "find",
    "forget",
    "remember",
    "remember_call",
    "remember_prepared_call",
]

_ENGINE = b"PRISMM_ENGINE"
PLAIN_ACCURACY = type(None), str, float, int
"""Types of an accuracy that cannot change between two calls."""
_MOST = 1024
_MOST_ALIKE = 8
"""Most sets of addresses in the cache, and calls at the same ones."""


@dataclass(eq=False, slots=True)
class Repeat:
    """A call that was made at some addresses.

    Attributes:
        guards: torch's, of its tensors.
        index: of the device.
        engine: what ``PRISMM_ENGINE`` was.
        program: its launches.
        result: makes memory for a result that is no caller's.
        unread: the address of workspace that all calls may share; 0 where each takes some.
        prepared: the prepared operands, None for others.
        parts: addresses of their prepared parts.
        streams: on which these were made.
    """

    guards: Any
    index: int
    engine: bytes | None
    program: Program
    result: Callable[[Any], Any]
    unread: int
    prepared: tuple[weakref.ref[PreparedOnDevice] | None, ...]
    parts: tuple[int, ...]
    streams: tuple[int, ...]

    def run(self, a: Any, b: Any, out: torch.Tensor | None) -> torch.Tensor | None:
        """The product; None where launches to these addresses, or while a graph is captured, are none of a replay."""
        from torch import _C as here

        if here._cuda_isCurrentStreamCapturing():
            return None
        program, stream = self.program, here._cuda_getCurrentRawStream(self.index)
        if self.parts:
            # Memory that is used on another stream has to be told to the allocator: `backend.memories_of` does.
            if any(x != stream for x in self.streams):
                return None
            a, b = _tensor_of(a), _tensor_of(b)
        result: torch.Tensor = self.result(a) if out is None else out
        places = a.data_ptr(), b.data_ptr(), result.data_ptr()
        if self.unread:
            return result if program.replay((*places, self.unread), stream) else None
        memory = here._cuda_cudaCachingAllocator_raw_alloc(program.workspace, stream)
        try:
            return result if program.replay((*places, memory, *self.parts), stream) else None
        finally:
            here._cuda_cudaCachingAllocator_raw_delete(memory)

    def is_of(self, a: Any, b: Any) -> bool:
        """Whether the same operands were prepared."""
        left, right = self.prepared
        return (left() if left else None) is (a if type(a) is PreparedOnDevice else None) and (
            right() if right else None
        ) is (b if type(b) is PreparedOnDevice else None)


_REPEATS: dict[Hashable, list[Repeat]] = {}
"""By addresses and what is asked: tensors of several shapes may begin at one."""


def forget() -> None:
    """Keep none of them."""
    _REPEATS.clear()
    _AT_ONCE.clear()


def _key(a: torch.Tensor, b: torch.Tensor, keywords: tuple[Any, ...], out: torch.Tensor | None) -> Hashable:
    """Of numbers that are equal, types may differ."""
    place = 0 if out is None else out.data_ptr()
    kinds = type(keywords[0]), type(keywords[2]), type(keywords[5])
    return a.data_ptr(), b.data_ptr(), place, a is b, keywords, kinds


def _tensor_of(x: Any) -> Any:
    """An operand's tensor."""
    return x.data if type(x) is PreparedOnDevice else x


def _different(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The tensors of a call, each once, as guards ask for them."""
    if out is None:
        return (a,) if a is b else (a, b)
    return (a, out) if a is b else (a, b, out)


def remember(
    a: Any, b: Any, keywords: tuple[Any, ...], out: torch.Tensor | None, index: int, program: Program,
    result: Callable[[Any], Any], unread: int, memories: tuple[torch.Tensor, ...] = (),
) -> None:  # fmt: skip
    """Let `find` know a call that was made just now, about which nothing has to be checked or converted.

    Args:
        a, b: tensors, or prepared operands.
        keywords: accuracy and so on, as `cuda.calls.matmul` has them, hashable.
        out: the caller's tensor for the result, or None.
        index: of the device.
        program: the call's launches.
        result: makes memory for a result that is no caller's.
        unread: the address of workspace that all calls may share, or 0.
        memories: prepared parts of each side, if any operand is prepared.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:  # calls go on as before
        return
    x, y = _tensor_of(a), _tensor_of(b)
    guards = TensorGuards(*_different(x, y, out), dynamic_dims_sizes=None, dynamic_dims_strides=None)
    # A cache is no reason to keep a prepared operand's memory.
    prepared = tuple(weakref.ref(z) if type(z) is PreparedOnDevice else None for z in (a, b))
    parts = tuple(memory.data_ptr() for memory in memories)
    streams = tuple(z.stream for z in (a, b) if type(z) is PreparedOnDevice)
    # All at once: an order of use would cost each hit.
    if len(_REPEATS) >= _MOST:
        _REPEATS.clear()
    some = _REPEATS.setdefault(_key(x, y, keywords, out), [])
    some.append(Repeat(guards, index, reader()(_ENGINE), program, result, unread, prepared, parts, streams))
    del some[:-_MOST_ALIKE]


def find(a: Any, b: Any, keywords: tuple[Any, ...], out: Any) -> Repeat | None:
    """The call that these operands would repeat, or None."""
    if not _REPEATS:
        return None
    import torch

    if type(keywords[0]) not in PLAIN_ACCURACY:
        return None
    x, y, tensor = _tensor_of(a), _tensor_of(b), torch.Tensor
    # Exactly: a subclass may take torch's functions, and so the product, over.
    if type(x) is not tensor or type(y) is not tensor:
        return None
    try:
        some = _REPEATS.get(_key(x, y, keywords, out))
        if some is None:
            return None
        tensors, engine, index = _different(x, y, out), reader()(_ENGINE), torch._C._cuda_getDevice()
        for found in some:
            if found.guards.check(*tensors) and found.engine == engine and found.index == index and found.is_of(a, b):
                return found
    except (TypeError, RuntimeError, AttributeError):  # what cannot be hashed, or has no address
        pass
    return None


@dataclass(eq=False)
class _Plain:
    """A call of plain tensors that went to the kernels as they are.

    Attributes:
        call: what was planned.
        settings: of cuBLAS and torch, under which it was planned.
        like_a: whether its result is a tensor like A.
        changing: whether flags or settings were others once when a call had begun; they are then asked for before later
            calls begin.
    """

    call: GpuCall
    settings: tuple[str | None, ...]
    like_a: bool
    changing: bool = False

    def unchanged(self) -> bool:
        """Whether those settings hold, where they matter: what is one kernel is none of cuBLAS's or torch's."""
        if self.call.one_kernel:
            return default_engine() == self.settings[-1]
        return cuda_device.settings(self.call.problem.result.precision == 24) == self.settings

    def result(self, a: torch.Tensor) -> torch.Tensor:
        """Memory for a result that is no caller's."""
        import torch

        return (
            torch.empty_like(a) if self.like_a else torch.empty(self.call.shape, dtype=self.call.dtype, device=a.device)
        )


MOST_CALLS = 4096
"""Most calls in a cache."""

_AT_ONCE: dict[Hashable, _Plain] = {}
"""By all that a call depends on, but for flags of its tensors and settings."""


def _plain_key(a: torch.Tensor, b: torch.Tensor, keywords: tuple[Any, ...], out: torch.Tensor | None) -> Hashable:
    """All that a call of plain tensors depends on, but for settings and flags of the tensors."""
    of_out = None if out is None else (type(out), out.dtype, out.shape, out.stride(), out.get_device())
    return (
        a.dtype, a.shape, a.stride(), a.get_device(), b.dtype, b.shape, b.stride(), b.get_device(), of_out, keywords,
        type(keywords[0]), type(keywords[2]), type(keywords[5]),
    )  # fmt: skip


def _flagged(call: GpuCall, *tensors: torch.Tensor | None) -> bool:
    """Whether one of these tensors is not what its memory holds, or wants a derivative."""
    is_complex = call.problem.is_complex
    for x in tensors:  # noqa: SIM110 - a generator takes longer than what it asks for
        if x is not None and (x.requires_grad or x.is_neg() or (is_complex and x.is_conj())):
            return True
    return False


def fast_path(a: Any, b: Any, keywords: tuple[Any, ...], out: Any) -> torch.Tensor | None:
    """The fast path of `matmul`, for tensors like those of an earlier call; None where anything is out of the ordinary.

    A GPU that waits for the host loses the microseconds that a check takes, so flags and settings are asked for while
    it works.
    """
    import torch

    repeat = find(a, b, keywords, out)
    try:
        if repeat is not None and (result := repeat.run(a, b, out)) is not None:
            return result
    except torch.OutOfMemoryError:  # `matmul` says what to do
        return None
    tensor = torch.Tensor
    if not _AT_ONCE or type(a) is not tensor or type(b) is not tensor or type(keywords[0]) not in PLAIN_ACCURACY:
        return None
    try:
        found = _AT_ONCE.get(_plain_key(a, b, keywords, out))
    except (TypeError, RuntimeError, AttributeError):  # what cannot be hashed, or has no strides
        return None
    # A launch goes to the current device's context.
    if found is None or torch._C._cuda_getDevice() != found.call.index:
        return None
    try:
        result = _like_before(found, a, b, out, in_two=repeat is None)
    except torch.OutOfMemoryError:
        return None
    if result is not None and repeat is None:
        queued = found.call.programs[False, a.data_ptr() % 16, b.data_ptr() % 16, result.data_ptr() % 16]
        unread = found.call.unread if queued.unread else 0
        remember(a, b, keywords, out, found.call.index, queued.program, found.result, unread)
    return result


def _like_before(
    found: _Plain, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, *, in_two: bool
) -> torch.Tensor | None:
    """The fast path of a call like that one.

    in_two: whether a long one may be queued in two programs; only as one program is it replayed some time.
    """
    if found.call.one_kernel:
        return _in_one(found, a, b, out)
    if in_two and found.call.long and not found.changing:
        result = _in_two_programs(found, a, b, out)
        if result is not None:
            return result
    # The caller's memory must not be written under other settings; a result of our own can be thrown away afterwards.
    if _flagged(found.call, a, b, out) or (out is not None and not found.unchanged()):
        return None
    result = found.result(a) if out is None else out
    if not multiply_fast(found.call, a, b, result, (), owned=out is not None):
        return None
    # What other settings have made is thrown away.
    return result if out is not None or found.unchanged() else None


def remember_call(
    call: GpuCall, operands: tuple[Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], keywords: tuple[Any, ...],
    out: Any,
) -> None:  # fmt: skip
    """That `fast_path` may take a call that was checked, if its operands went to the kernels as they are,
    unconverted.
    """
    import torch

    if call.spans is None or any(type(x) is not torch.Tensor for x in (*operands, *([] if out is None else [out]))):
        return
    if any(x.dtype != y.dtype or x.data_ptr() != y.data_ptr() for x, y in zip(operands, tensors, strict=True)):
        return
    if len(_AT_ONCE) >= MOST_CALLS:
        _AT_ONCE.clear()
    a = tensors[0]
    like_a = a.is_contiguous() and a.dtype == call.dtype and tuple(a.shape) == tuple(call.shape)
    settings = cuda_device.settings(call.problem.result.precision == 24)
    _AT_ONCE[_plain_key(*operands, keywords, out)] = _Plain(call, settings, like_a)


def remember_prepared_call(
    call: GpuCall, operands: tuple[Any, Any], tensors: tuple[torch.Tensor, torch.Tensor], keywords: tuple[Any, ...],
    out: Any, result: torch.Tensor, memories: tuple[torch.Tensor, ...],
) -> None:  # fmt: skip
    """That a call with prepared operands may be repeated, if what else it takes are plain tensors."""
    import torch

    for x, y in zip(operands, tensors, strict=True):
        if type(x) is not PreparedOnDevice and (type(x) is not torch.Tensor or x.data_ptr() != y.data_ptr()):
            return
    if _flagged(call, *tensors, out) or any(x.dtype != call.dtype for x in tensors):
        return
    if (out is not None and type(out) is not torch.Tensor) or find(*operands, keywords, out) is not None:
        return
    a, b = tensors
    plain = _Plain(call, (), like_a=a.is_contiguous() and tuple(a.shape) == tuple(call.shape))
    queued = call.programs[False, a.data_ptr() % 16, b.data_ptr() % 16, result.data_ptr() % 16]
    if not queued.unread:
        remember(*operands, keywords, out, call.index, queued.program, plain.result, 0, memories)


def _in_two_programs(found: _Plain, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor | None:
    """The fast path of a long call: the prologue is queued before the result is allocated and flags are checked.

    This hides as much host time as a small product takes. None where a program has no prologue.
    """

    call = found.call
    left, right = a.data_ptr(), b.data_ptr()
    # The result's address is unknown yet: torch's allocations are aligned, which is checked below.
    queued = call.programs.get((False, left % 16, right % 16, 0))
    both = queued.program.prologue_and_epilogue if queued is not None else None
    if both is None:
        return None
    if out is not None and (out.data_ptr() % 16 or spoils(call, left, right, out.data_ptr(), out)):
        return None
    prologue, epilogue = both
    stream, captured = stream_of(call)
    memory = borrow(prologue.workspace, stream)
    try:
        # No launch of the prologue names the result, so its base may be anything.
        prologue.run((left, right, 0, memory), stream, captured)
        result = found.result(a) if out is None else out
        if _flagged(call, a, b, out) or not found.unchanged():
            # The prologue wrote workspace alone: nothing has to be undone.
            found.changing = True
            return None
        if result.data_ptr() % 16:
            return None
        epilogue.run((left, right, result.data_ptr(), memory), stream, captured)
    finally:
        give_back(memory)
    return result


def _in_one(found: _Plain, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor | None:
    """The fast path of a call that is one kernel, with as few checks as there can be: they take longer than it does."""

    call = found.call
    if a.requires_grad or b.requires_grad or a.is_neg() or b.is_neg() or not found.unchanged():
        return None
    if call.problem.is_complex and _flagged(call, a, b, out):
        return None
    if out is None:
        result = found.result(a)
    elif out.requires_grad or out.is_neg():
        return None
    else:
        result = out
    left, right, place = a.data_ptr(), b.data_ptr(), result.data_ptr()
    queued = call.programs.get((False, left % 16, right % 16, place % 16))
    if queued is None or (out is not None and spoils(call, left, right, place, out)):
        return None
    run_in_workspace(call, queued, (left, right, place))
    return result
