"""Workspace of calls on a GPU: memory of torch's, without a tensor around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from prismm.cuda.launch import cublas
from prismm.cuda.launch.graphs import is_capturing

if TYPE_CHECKING:
    import torch

    from prismm.cuda.execute import Queued


@functools.cache
def current_stream() -> Callable[[int], int]:
    """torch's function that names the current stream of a device."""
    import torch

    return torch._C._cuda_getCurrentRawStream


@functools.cache
def _allocator() -> tuple[Callable[[int, int], int], Callable[[int], None]]:
    import torch

    return torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete


def borrow(size: int, stream: int) -> int:
    """The address of so many bytes of the current device's memory, torch's; a tensor of them takes three times as long.
    What is queued on the stream before it is given back may use it.
    """
    return _allocator()[0](size, stream)


def give_back(address: int) -> None:
    """Return what `borrow` gave."""
    _allocator()[1](address)


KEPT_BYTES = cublas.WORKSPACE + (8 << 20)
"""Bytes that are kept for each stream: what cuBLAS asks for, as torch keeps for its own products, and a little more."""
_MOST_KEPT = 8
"""Streams for which they are."""
_KEPT: dict[tuple[int, int], int] = {}


def kept(index: int, stream: int) -> int:
    """The address of workspace that launches on a stream share, one after the other; 0 while a graph is captured,
    or where there is too little memory.

    A call that needs no more than this allocates nothing, and its kernels find their workspace where it was.

    index: of the current device.
    """
    found = _KEPT.get((index, stream))
    if found is not None:
        return found
    if is_capturing(stream):
        return 0
    while len(_KEPT) >= _MOST_KEPT:
        give_back(_KEPT.pop(next(iter(_KEPT))))
    import torch

    try:
        found = _KEPT[index, stream] = borrow(KEPT_BYTES, stream)
    except torch.OutOfMemoryError:
        return 0  # a call may need less
    return found


def forget() -> None:
    """Give back what is kept."""
    while _KEPT:
        give_back(_KEPT.popitem()[1])


def scratch_of(queued: Queued, device: torch.device) -> torch.Tensor:
    """Workspace of a program, of which a report may read."""
    import torch

    if queued.unread:
        return unread(device)
    return torch.empty(queued.program.workspace, dtype=torch.uint8, device=device)


UNREAD_BYTES = 256


@functools.cache
def unread(device: torch.device) -> torch.Tensor:
    """Memory for counts that nobody reads; kept for good, as a graph that a caller captured writes there."""
    import torch

    return torch.empty(UNREAD_BYTES, dtype=torch.uint8, device=device)
