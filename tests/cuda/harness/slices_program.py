"""Programs of products of slices without a call: for kernels on their own."""

from __future__ import annotations

from typing import Any

import torch

from prismm.core import accuracy
from prismm.core.problem import Problem
from prismm.cuda.device import Device
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.implementation import implementation_of
from prismm.cuda.launch.arguments import ADDEND, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.operands import result_of
from prismm.formats import FP32, FP64
from prismm.schemes.slices import Slices
from tests.cuda.harness.programs import job_of


def slices_program(
    a: Any, b: Any, out: Any, scheme: Slices, target: str | float | None, device: Device,
    block: tuple[int, int] | None = None,
) -> tuple[Program, BufferView]:  # fmt: skip
    """out = a @ b of tensors (batch, ·, ·), in blocks of so many rows and columns; and where the counts are."""
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    chosen = accuracy.parse_target(target) if target else None
    problem = Problem(
        out.shape[1], out.shape[2], a.shape[2], (out.shape[0],), form, chosen, False, True, out.is_complex()
    )
    implementation_of(scheme).check(problem, None, device)
    config = implementation_of(scheme).launch_config(problem, device)
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.allocate(torch.int64, 4)
    job = job_of(program, a, b, out, config, counts, device, block)
    implementation_of(scheme).queue(job)
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
    implementation_of(scheme).check(problem, None, device)
    config = implementation_of(scheme).launch_config(problem, device)
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.allocate(torch.int64, 4)
    third = result_of(c, ADDEND) if c is not None else None
    implementation_of(scheme).queue_sum(job_of(program, a, b, out, config, counts, device, block, third))
    return program
