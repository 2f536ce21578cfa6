"""Programs of products without a call: for kernels on their own."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch

from prismm.core import accuracy
from prismm.core.problem import Problem
from prismm.cuda.backend import GpuCall
from prismm.cuda.blocks import Blocks
from prismm.cuda.device import BLAS, COUNTS, INT8, Device
from prismm.cuda.execute import _queued
from prismm.cuda.gemm import sum as cuda_gemm
from prismm.cuda.implementation import Job
from prismm.cuda.launch.arguments import ADDEND, OUT, A, B, BufferView
from prismm.cuda.launch.cublas import Gemm
from prismm.cuda.launch.program import Program
from prismm.cuda.multiword import implementation as multiword_implementation
from prismm.cuda.multiword import launches as multiword_launches
from prismm.cuda.native import launches as native_launches
from prismm.cuda.native.tiles import Split, Tile
from prismm.cuda.operands import result_of, vectors_of
from prismm.cuda.plan import LaunchPlan
from prismm.cuda.views import Result
from prismm.formats import FP32, FP64
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues


def residue_program(
    a: Any, b: Any, out: Any, moduli: int, target: str | None, device: Device,
    kept: tuple[Any, Any] = (None, None), strassen: bool = False, symmetric: str | None = None,
    block: tuple[int, int] | None = None,
) -> Program:  # fmt: skip
    """out = a @ b of tensors (batch, ·, ·) by so many moduli; by cuBLAS for 0. kept: of operands split before;
    quarters: from seven products of quarters; symmetric: of `Problem`; block: rows and columns of one.
    """
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    chosen = accuracy.parse_target(target) if target else None
    m, k, n = a.shape[1], a.shape[2], b.shape[2]
    scheme = Residues(moduli) if moduli else Native()
    problem = Problem(m, n, k, (), form, chosen, False, True, out.is_complex(), symmetric=symmetric)
    rows, columns = (x.step if x else size for x, size in zip(kept, block or (m, n), strict=True))
    engine = INT8 if moduli else BLAS
    planned = LaunchPlan(scheme, engine, (), Blocks(rows, columns, 0, 1 if strassen else 2, strassen))
    call = GpuCall(
        (), (), (), out.dtype, ("", ""), planned, problem, device, 0, SimpleNamespace(target=chosen), None, kept
    )  # fmt: skip
    return _queued(call, a, b, out, full_output=False).program


def beside_cublas(program: Program) -> Program:
    """The same without what cuBLAS does in it."""
    return dataclasses.replace(program, launches=[x for x in program.launches if not isinstance(x, Gemm)])


def with_stand_ins(program: Program) -> Program:
    """The same of what is launched while kernels are compiled."""
    launches = [x.meanwhile if getattr(x, "is_put_off", False) else x for x in program.launches]
    return dataclasses.replace(program, launches=[x for x in launches if x is not None])


def direct_program(
    a: Any, b: Any, out: Any, tile: Tile | None, device: Device, split: Split | None = None
) -> tuple[Program, BufferView]:
    """out = a @ b of tensors (batch, ·, ·) in one kernel, and where its counts are. tile: None for a call's own;
    split: of the inner dimension, for two kernels.
    """
    program = Program(tuple(x.data_ptr() % 16 for x in (a, b, out)))
    counts = program.allocate(torch.int64, COUNTS)
    program.zero(counts)
    target = Result(BufferView(OUT, 0, out.dtype), *out.shape, out.stride())
    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    if split is not None:
        native_launches.multiply_in_parts(program, target, left, right, counts, split, device)
    else:
        native_launches.multiply_directly(program, target, left, right, counts, device, tile)
    return program, counts


def sum_program(
    a: Any, b: Any, out: Any, c: Any, sum_: cuda_gemm.Sum, scheme: Any, target: str | None, device: Device,
    symmetric: str | None = None,
) -> tuple[Program, BufferView | None]:  # fmt: skip
    """out = alpha·a @ b + beta·c by a scheme, or so many moduli; for `Native()`, or 0, from products that cuBLAS puts
    into scratch memory; and where.
    """
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    chosen = accuracy.parse_target(target) if target else None
    m, k, n = a.shape[1], a.shape[2], b.shape[2]
    if isinstance(scheme, int):
        scheme = Residues(scheme) if scheme else Native()
    problem = Problem(m, n, k, (), form, chosen, False, True, out.is_complex(), True, symmetric=symmetric)
    problem = dataclasses.replace(problem, reads_operands=sum_.has_product(problem))
    planned = LaunchPlan(scheme, BLAS if scheme == Native() else INT8, (), Blocks(m, n, 0, 2))
    call = GpuCall(
        (), (), (), out.dtype, ("", ""), planned, problem, device, 0, SimpleNamespace(target=chosen), None
    )  # fmt: skip
    queued = _queued(call, a, b, out, False, c)
    return queued.program, queued.products


def words_program(
    a: Any, b: Any, out: Any, config: multiword_launches.LaunchConfig, device: Device, lower: bool = False,
    one_matrix: bool = False, adds: bool = False,
) -> tuple[Program, BufferView]:  # fmt: skip
    """out = a @ b of tensors (batch, ·, ·) by words; and where the counts are. lower, one_matrix: of `queue_blocks`;
    adds: whether a row of a call's addend is added.
    """
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.allocate(torch.int64, 4)
    multiword_implementation.queue_blocks(
        program, a, b, result_of(out), config, (out.shape[1], out.shape[2]), counts, device,
        lower=lower, one_matrix=one_matrix, addend=BufferView(ADDEND, 0, torch.float32) if adds else None,
    )  # fmt: skip
    return program, counts


def job_of(
    program: Program, a: Any, b: Any, out: Any, config: Any, counts: BufferView, device: Device,
    block: tuple[int, int] | None = None, addend: Result | None = None,
) -> Job:  # fmt: skip
    """out = a @ b of tensors (batch, ·, ·), or a sum with addend, in blocks of so many rows and columns."""
    rows, columns = block or (out.shape[1], out.shape[2])
    operands = a, b, vectors_of(a, A, columns=False), vectors_of(b, B, columns=True), result_of(out), addend
    problem = Problem(out.shape[1], out.shape[2], a.shape[2], (), FP64, None, False, True)
    return Job(program, *operands, counts, config, Blocks(rows, columns, 0), problem, device, "")


def run(program: Program, a: Any, b: Any, out: Any) -> Any:
    """On the GPU, by the driver; returns the scratch memory."""
    workspace = torch.empty(program.workspace, dtype=torch.uint8, device=out.device)
    stream = torch.cuda.current_stream().cuda_stream
    program.run((a.data_ptr(), b.data_ptr(), out.data_ptr(), workspace.data_ptr()), stream)
    return workspace
