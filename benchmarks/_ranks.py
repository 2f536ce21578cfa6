"""What benchmarks on torchrun's ranks share: a mesh of all ranks, and seconds from a common start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

Key = TypeVar("Key", bound=Hashable)


def started() -> tuple[DeviceMesh, torch.device]:
    """All ranks in one dimension, and this rank's device: its GPU with NCCL, or the CPU with gloo."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    return init_device_mesh(device.type, (dist.get_world_size(),)), device


def seconds(task: Callable[[], Any], device: torch.device, alone: bool = False) -> float:
    """From a common start to the last rank's end; alone: rank 0 has a task, and others wait."""
    dist.barrier()
    start = time.perf_counter()
    if not alone or dist.get_rank() == 0:
        task()
    if device.type == "cuda":
        torch.cuda.synchronize()
    taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def in_turns(
    tasks: Mapping[Key, Callable[[], Any]], device: torch.device, rounds: int,
    alone: Callable[[Key], bool] = lambda key: False,
) -> dict[Key, list[float]]:  # fmt: skip
    """`seconds` of each task, which take turns in each round, after one round that is not timed; alone: which of them
    rank 0 has.
    """
    times: dict[Key, list[float]] = {key: [] for key in tasks}
    for number in range(rounds + 1):
        for key, task in tasks.items():
            taken = seconds(task, device, alone=alone(key))
            if number:
                times[key].append(taken)
    return times


def gpu_name() -> str:
    """The GPU's name; empty without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
