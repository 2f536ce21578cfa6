"""Workspace of calls on a GPU: memory of torch's, without a tensor around it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from prismm.cuda.execute import Queued


def borrow(size: int, stream: int) -> int:
    """The address of so many bytes of the current device's memory, torch's; a tensor of them takes three times as long.
    What is queued on the stream before it is given back may use it.
    """
    import torch

    return torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream)


def give_back(address: int) -> None:
    """Return what `borrow` gave."""
    import torch

    torch._C._cuda_cudaCachingAllocator_raw_delete(address)


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
