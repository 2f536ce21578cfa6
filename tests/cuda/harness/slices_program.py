"""Programs of products of slices without a call: for kernels on their own."""

from __future__ import annotations

from typing import Any

import torch

from prismm.core import accuracy
from prismm.core.problem import Problem
from prismm.cuda.device import Device
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.launch.program import ADDEND, OUT, Place, Program
from prismm.cuda.slices import implementation as cuda_slices_calls
from prismm.cuda.views import Result
from prismm.formats import FP32, FP64
from prismm.schemes.slices import Slices


def slices_program(
    a: Any, b: Any, out: Any, scheme: Slices, target: str | float | None, device: Device,
    block: tuple[int, int] | None = None,
) -> tuple[Program, Place]:  # fmt: skip
    """out = a @ b of tensors (batch, ·, ·), in blocks of so many rows and columns; and where the counts are."""
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    chosen = accuracy.parse_target(target) if target else None
    problem = Problem(
        out.shape[1], out.shape[2], a.shape[2], (out.shape[0],), form, chosen, False, True, out.is_complex()
    )
    cuda_slices_calls.check(scheme, problem, None)
    config = cuda_slices_calls.launch_config(scheme, problem, device)
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.take(torch.int64, 4)
    cuda_slices_calls.queue(program, a, b, out, config, block or (out.shape[1], out.shape[2]), counts, device)
    return program, counts


def slices_sum_program(
    a: Any, b: Any, out: Any, c: Any, sum_: cuda_gemm.Sum, scheme: Slices, target: str | float | None,
    device: Device, block: tuple[int, int] | None = None,
) -> Program:  # fmt: skip
    """out = alpha·a @ b + beta·c, c in the shape of out or None."""
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    chosen = accuracy.parse_target(target) if target else None
    problem = Problem(
        out.shape[1], out.shape[2], a.shape[2], (out.shape[0],), form, chosen, False, True, out.is_complex(), True,
        sum_.alpha.imag == 0,
    )  # fmt: skip
    cuda_slices_calls.check(scheme, problem, None)
    config = cuda_slices_calls.launch_config(scheme, problem, device)
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.take(torch.int64, 4)
    whole = Result(Place(OUT, 0, out.dtype), *out.shape, out.stride())
    third = Result(Place(ADDEND, 0, c.dtype), *out.shape, c.stride()) if c is not None else None
    cuda_slices_calls.queue_sum(program, a, b, whole, third, config, block or whole.extents[1:], counts, device)
    return program
