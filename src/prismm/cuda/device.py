"""A GPU: how kernels are built for it, the names of its engines, and settings that change what cuBLAS computes.

| name | inner product | exact because |
| --- | --- | --- |
| cuda:int8 | INT8 matrix instructions | k·2^14 <= 2^29 for k <= 2^15, reduced between such blocks |
| cuda:fp8 | FP8 (e4m3) matrix instructions | digits up to D: k·D² <= 2^24 (2^14 on some) in each block of k |
| cuda:blas | cuBLAS through torch, in the operands' type | conventional; certified a priori |
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.environment import variable
from prismm.cuda.launch.settings import EMULATION
from prismm.errors import EngineError

if TYPE_CHECKING:
    from prismm.core.problem import Problem

INT8, FP8, BLAS, FP16, FP64 = "cuda:int8", "cuda:fp8", "cuda:blas", "cuda:fp16", "cuda:fp64"

COUNTS = 4
"""Entries that a call counts by how they were certified: special, made exact, by magnitudes (or in float64), others."""

LONG_SUMS = 24
"""Bits of FP8 sums from which on blocks of the inner dimension are summed in the unit."""

LANES = 512
"""Terms of a sum that repair takes at a time, as measured on an H200."""


@dataclass(frozen=True)
class Device:
    """How kernels are built for a GPU.

    Attributes:
        name: as the driver says it.
        sm90: whether it has compute capability 9.0, for which there are kernels of its own.
        nvidia: whether NVIDIA's instructions may be used.
        programs: persistent programs that fill it.
        shared: bytes of shared memory that a program may have.
        float64_dot: whether Triton compiles `tl.dot` of float64; Triton 3.6 does not for compute capability 10.
        fp8_sum_bits: w of FP8 products' sums, which are exact up to 2^w (`fp8_sum_bits_of`); 0 where there are none.
    """

    name: str
    sm90: bool
    nvidia: bool
    programs: int
    shared: int = 227 << 10
    float64_dot: bool = True
    fp8_sum_bits: int = 0

    def limited(self, registers: int) -> dict[str, int]:
        """Keywords of a launch whose threads have at most so many registers. Only NVIDIA's compiler takes a limit."""
        return {"maxnreg": registers} if self.nvidia else {}


def fp8_sum_bits_of(major: int, minor: int) -> int:
    """What a compute capability keeps of sums of FP8 products (`docs/internals/fp8-residues.md`): 14 bits on Ada and
    Hopper, 24 on what came later.

    >>> fp8_sum_bits_of(8, 6), fp8_sum_bits_of(8, 9), fp8_sum_bits_of(9, 0), fp8_sum_bits_of(12, 0)
    (0, 14, 14, 24)
    """
    if (major, minor) < (8, 9):
        return 0
    return 14 if major < 10 else 24


@functools.cache
def device_of(index: int) -> Device:
    """The GPU of this number.

    Raises:
        EngineError: for a GPU whose integer matrix instructions prismm does not use, or without Triton.
    """
    import torch

    try:
        import triton  # noqa: F401
    except ImportError:
        raise EngineError("prismm's GPU kernels need Triton, which CUDA builds of torch bring: install one") from None
    facts = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        raise EngineError(f"{facts.name}: prismm has not run on AMD GPUs yet; multiply CPU tensors: pass a.cpu()")
    capability = (facts.major, facts.minor)
    if capability < (8, 0):
        raise EngineError(
            f"{facts.name} has compute capability {facts.major}.{facts.minor}; prismm's GPU kernels need 8.0 or "
            f"newer: multiply CPU tensors (a.cpu()), or torch.matmul itself"
        )
    # What the driver keeps of a multiprocessor's memory for each program.
    shared = facts.shared_memory_per_multiprocessor - 1024
    return Device(
        facts.name, capability[0] == 9, True, facts.multi_processor_count, shared, capability[0] != 10,
        fp8_sum_bits_of(*capability),
    )  # fmt: skip


def reduced_float32() -> str | None:
    """Why cuBLAS's float32 GEMM may use fewer bits than float32, or None if it may not. What torch was told of float32
    reaches torch's handles of cuBLAS, not ours.
    """
    return "NVIDIA_TF32_OVERRIDE=1" if variable(b"NVIDIA_TF32_OVERRIDE") == "1" else None


def emulated_by_cublas() -> str | None:
    """Which setting lets cuBLAS emulate FP64 or FP32, or None."""
    for name in EMULATION:
        value = variable(name)
        if value not in ("", "0", "default"):
            return f"{name.decode()}={value}"
    return None


def spoiled_by(problem: Problem) -> str | None:
    """Which setting keeps cuBLAS from being a conventional product of the result's type."""
    return emulated_by_cublas() or (reduced_float32() if problem.result.precision == 24 else None)


def settings(single: bool = True) -> tuple[str | None, ...]:
    """What the choice depends on besides the call itself: settings of cuBLAS and torch, and ``PRISMM_ENGINE``. single:
    of products in float32 too.
    """
    return emulated_by_cublas(), reduced_float32() if single else None, default_engine()


def default_engine() -> str | None:
    """``PRISMM_ENGINE``, where it names an engine of a GPU."""
    name = variable(b"PRISMM_ENGINE")
    return name if name.startswith("cuda") else None
