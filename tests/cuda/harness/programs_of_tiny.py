"""Programs of batches of tiny products."""

from __future__ import annotations

from typing import Any

import torch

from prismm.core import accuracy
from prismm.cuda.device import COUNTS, Device
from prismm.cuda.launch.arguments import OUT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.native import tiny as cuda_tiny
from prismm.cuda.operands import vectors_of
from prismm.cuda.residues.tables import CertificateTest, tables
from prismm.cuda.views import Result
from prismm.formats import FP32, FP64
from prismm.planning.moduli_count import moduli_for_native


def tiny_program(a: Any, b: Any, out: Any, target: str | None, device: Device) -> tuple[Program, BufferView]:
    """out = a @ b of tensors (batch, ·, ·), and where its counts are. target: "reproducible", "correctly-rounded", or
    None for a conventional product.
    """
    program = Program(tuple(x.data_ptr() % 16 for x in (a, b, out)))
    counts = program.allocate(torch.int64, COUNTS)
    program.zero(counts)
    form = FP64 if out.dtype in (torch.float64, torch.complex128) else FP32
    terms = a.shape[2] * (2 if out.is_complex() else 1)
    test = table = None
    if target is not None:
        asked = accuracy.parse_target("native" if target == "reproducible" else target)
        test = CertificateTest(*accuracy.join_test(asked, terms, form), terms, form.precision)
        table = tables(moduli_for_native(form, terms), a.device)
    result = Result(BufferView(OUT, 0, out.dtype), *out.shape, out.stride())
    left, right = vectors_of(a, A, columns=False), vectors_of(b, B, columns=True)
    cuda_tiny.multiply_tiny(program, result, left, right, counts, test, table, device)
    return program, counts
