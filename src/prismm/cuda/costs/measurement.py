"""A measurement of a GPU that takes less than three seconds: what it reaches of each resource.

Four or five products and a copy, by programs of prismm's, so that settings of torch change none of them. All is queued
while the device is held busy, so the host has no part in the times. Of a few times the shortest counts: what else runs
there makes times longer, never shorter. A GPU of a hundredth of the H100's rates is done in time, too: what takes long
is timed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prismm.cuda.costs.calibrate import queued_seconds_of
from prismm.cuda.costs.derive import Measured
from prismm.cuda.device import LONG_SUMS
from prismm.cuda.launch.cublas import WORKSPACE, Gemm
from prismm.cuda.launch.driver import relaxed
from prismm.cuda.launch.program import Program
from prismm.errors import EngineError

if TYPE_CHECKING:
    import torch

    from prismm.cuda.device import Device

__all__ = ["ENOUGH_MEMORY", "measure"]

_N, _MODULI = 2048, 14
"""Size of the products; moduli of float64's native grade."""
_TINY, _MANY = 64, 50
"""Size of a product that is all launch, and how many of them are timed at once."""
_COPIED = 1 << 28
"""Bytes that are copied: more than any L2 cache holds."""
_REPEATS, _LONG = 5, 0.05
"""How often a step is timed, and from how many seconds on only once."""
_IN_TIME = 1.0
"""Seconds after which products of INT8 and of FP8 are left out: a kernel, or a library, may have to be loaded or
compiled.
"""
_LIBRARY_N = 4096
"""Size of the INT8 product of torch."""

ENOUGH_MEMORY = 4 * _COPIED
"""Bytes that have to be free."""


def measure(device: Device, index: int, begin: float) -> Measured:
    """What the GPU of this number reaches. Not while its current stream is captured. begin: `time.perf_counter` when
    the caller began to wait for it.

    Raises:
        EngineError: where it cannot be timed.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    # Nobody who counts products, or replaces them, is to see these.
    with torch.cuda.device(index), torch.no_grad(), _disable_current_modes(), relaxed():
        if torch.cuda.mem_get_info(index)[0] < ENOUGH_MEMORY:
            raise EngineError(f"less than {ENOUGH_MEMORY >> 20} MiB of its memory are free")
        torch.cuda.current_stream().synchronize()
        memory = torch.empty(2 * _COPIED, dtype=torch.uint8, device="cuda")
        # A generator of its own: the caller's random numbers stay what they are.
        generator = torch.Generator("cuda").manual_seed(1)
        between = min(queued_seconds_of(_nothing) for _ in range(_REPEATS))
        launch = _seconds(_products(torch.float32, _TINY, _MANY, memory, generator), between) / _MANY
        operations = 2.0 * _N**3
        float64, float32 = (
            operations / _seconds(_products(kind, _N, 1, memory, generator), between)
            for kind in (torch.float64, torch.float32)
        )
        copied = 2.0 * _COPIED / _seconds(lambda: memory[_COPIED:].copy_(memory[:_COPIED]), between)
        int8 = library = fp8 = None
        if time.perf_counter() - begin < _IN_TIME:
            if device.sm90:
                # The product for 9.0 takes longer to compile. It is the H100's, and so the library's is as telling.
                library = 2.0 * _LIBRARY_N**3 / _seconds(_by_library(memory, generator), between)
            else:
                int8 = _MODULI * operations / _seconds(_residues(device, memory, generator), between)
        if device.fp8_sum_bits >= LONG_SUMS and time.perf_counter() - begin < _IN_TIME:
            product, count = _digits(device, memory, generator)
            fp8 = count * operations / _seconds(product, between)
    return Measured(float64, float32, copied, launch, int8, library, fp8)


def _nothing() -> None:
    pass


def _seconds(call: Callable[[], Any], between: float) -> float:
    """The shortest of a few times, after one that is not counted."""
    first = queued_seconds_of(call) - between
    repeats = 1 if first > _LONG else _REPEATS
    return max(1e-7, min(queued_seconds_of(call) for _ in range(repeats)) - between)


def _products(
    kind: torch.dtype, n: int, count: int, memory: torch.Tensor, generator: torch.Generator
) -> Callable[[], Any]:
    """So many products by cuBLAS of normal random matrices, one after the other."""
    import torch

    program = Program()
    a, b, out = (program.allocate(kind, 1, n, n) for _ in range(3))
    workspace = program.allocate(torch.uint8, WORKSPACE)
    for _ in range(count):
        program.gemm(Gemm(a, b, out, (1, n, n, n), (0, n, 1), (0, n, 1), workspace))
    for x in (a, b):
        memory[x.offset : x.offset + n * n * kind.itemsize].view(kind).normal_(generator=generator)
    return _run(program, memory)


def _residues(device: Device, memory: torch.Tensor, generator: torch.Generator) -> Callable[[], Any]:
    """Products of planes of residues, as the default takes them for float64."""
    import math

    import torch

    from prismm.cuda.residues.product import multiply_planes
    from prismm.cuda.residues.split import SplitVectors, plane_shape
    from prismm.cuda.residues.tables import tables

    program = Program()
    shape = (1, *plane_shape(_N, _N, _MODULI))
    left, right = (program.allocate(torch.int8, *shape) for _ in range(2))
    # A product reads no statistics, so any buffer will do for them.
    a, b = (SplitVectors(x, x, 1, _N, _N) for x in (left, right))
    multiply_planes(program, a, b, tables(_MODULI, memory.device), device)
    for x in (left, right):
        memory[x.offset : x.offset + math.prod(shape)].random_(0, 256, generator=generator)
    return _run(program, memory)


def _digits(device: Device, memory: torch.Tensor, generator: torch.Generator) -> tuple[Callable[[], Any], int]:
    """Products of planes of FP8 digits, and how many there are."""
    import math

    import torch

    from prismm.cuda.residues import fp8
    from prismm.cuda.residues.product import digits_shape
    from prismm.cuda.residues.split import SplitVectors, plane_shape

    program, table = Program(), fp8.fp8_tables(_MODULI, fp8.family_for(device), memory.device)
    shape = (1, *plane_shape(_N, _N, table.planes))
    left, right = (program.allocate(torch.int8, *shape) for _ in range(2))
    found = program.allocate(torch.int16, 1, *digits_shape(_N, _N, table.planes))
    a, b = (SplitVectors(x, x, 1, _N, _N) for x in (left, right))
    fp8.launch_products(program, a, b, found, table.products, table.planes, table.longest, device)
    for x in (left, right):
        # Patterns of positive numbers below 32, no NaN among them.
        memory[x.offset : x.offset + math.prod(shape)].random_(0, 96, generator=generator)
    return _run(program, memory), table.planes


def _by_library(memory: torch.Tensor, generator: torch.Generator) -> Callable[[], Any]:
    """torch's product of INT8 matrices, both with the inner dimension contiguous."""
    import torch

    size = _LIBRARY_N**2
    memory[: 2 * size].random_(0, 256, generator=generator)
    a, b = (memory[x * size : (x + 1) * size].view(torch.int8).view(_LIBRARY_N, _LIBRARY_N) for x in range(2))
    out = memory[2 * size : 6 * size].view(torch.int32).view(_LIBRARY_N, _LIBRARY_N)
    return lambda: torch._int_mm(a, b.t(), out=out)


def _run(program: Program, memory: torch.Tensor) -> Callable[[], Any]:
    """Its launches, over this memory, on the current stream."""
    import torch

    assert program.workspace <= memory.numel()
    bases, stream = (memory.data_ptr(),) * 4, torch.cuda.current_stream().cuda_stream
    # As if captured: one by one, and no graph is made of them.
    return lambda: program.run(bases, stream, True)
