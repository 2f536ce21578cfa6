"""Calls that repeat an earlier one on a GPU: tensors like its own, at the same addresses.

Their launches are one by then, a CUDA graph (`cuda.launch.graphs`), and to the host it is left to see that nothing has
changed. torch does most of that at once: guards, as its compiler makes them, compare types, devices, shapes, strides
and flags of tensors, and whether they want a derivative or lie inside a transformation. So a repeated call takes the
host less than `torch.mm` does.

The kernels are those that were recorded, cuBLAS's among them, whatever settings of cuBLAS have changed to since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core.environment import reader
from prismm.cuda.operands import PreparedOnDevice

if TYPE_CHECKING:
    import torch

    from prismm.cuda.launch.program import Program

__all__ = ["PLAIN_ACCURACY", "Repeat", "find", "forget", "remember"]

_ENGINE = b"PRISMM_ENGINE"
PLAIN_ACCURACY = type(None), str, float, int
"""Types of an accuracy that cannot change between two calls."""
_MOST = 1024
_MOST_ALIKE = 8
"""Addresses that are kept, and calls at the same ones."""


@dataclass(eq=False, slots=True)
class Repeat:
    """A call that was made: guards of its tensors, the device, ``PRISMM_ENGINE``, the program of its launches. result:
    makes memory for a result that is no caller's; unread: the address of scratch memory that all calls may share, 0
    where each takes some; prepared: the operands that were, None for others; kept: addresses of what is kept of them,
    and streams on which they were split.
    """

    guards: Any
    index: int
    engine: bytes | None
    program: Program
    result: Callable[[Any], Any]
    unread: int
    prepared: tuple[weakref.ref[PreparedOnDevice] | None, ...]
    kept: tuple[int, ...]
    streams: tuple[int, ...]

    def run(self, a: Any, b: Any, out: torch.Tensor | None) -> torch.Tensor | None:
        """The product; None where launches to these addresses, or while a graph is captured, are none of a replay."""
        from torch import _C as here

        if here._cuda_isCurrentStreamCapturing():
            return None
        program, stream = self.program, here._cuda_getCurrentRawStream(self.index)
        if self.kept:
            if any(x != stream for x in self.streams):
                return None
            a, b = _tensor_of(a), _tensor_of(b)
        result: torch.Tensor = self.result(a) if out is None else out
        places = a.data_ptr(), b.data_ptr(), result.data_ptr()
        if self.unread:
            return result if program.replay((*places, self.unread), stream) else None
        scratch = here._cuda_cudaCachingAllocator_raw_alloc(program.scratch, stream)
        try:
            return result if program.replay((*places, scratch, *self.kept), stream) else None
        finally:
            here._cuda_cudaCachingAllocator_raw_delete(scratch)

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
    """That `find` may tell of a call that was made just now, with nothing to be checked or converted about it. a, b:
    tensors, or prepared operands. keywords: accuracy and so on, as `cuda.calls.matmul` has them, hashable. memories:
    what is kept of prepared operands, one of each side, if any is one.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:  # calls go on as before
        return
    x, y = _tensor_of(a), _tensor_of(b)
    guards = TensorGuards(*_different(x, y, out), dynamic_dims_sizes=None, dynamic_dims_strides=None)
    prepared = tuple(weakref.ref(z) if type(z) is PreparedOnDevice else None for z in (a, b))
    kept = tuple(memory.data_ptr() for memory in memories)
    streams = tuple(z.stream for z in (a, b) if type(z) is PreparedOnDevice)
    if len(_REPEATS) >= _MOST:
        _REPEATS.clear()
    some = _REPEATS.setdefault(_key(x, y, keywords, out), [])
    some.append(Repeat(guards, index, reader()(_ENGINE), program, result, unread, prepared, kept, streams))
    del some[:-_MOST_ALIKE]


def find(a: Any, b: Any, keywords: tuple[Any, ...], out: Any) -> Repeat | None:
    """The call that these operands would repeat, or None."""
    if not _REPEATS:
        return None
    import torch

    if type(keywords[0]) not in PLAIN_ACCURACY:
        return None
    x, y, tensor = _tensor_of(a), _tensor_of(b), torch.Tensor
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
