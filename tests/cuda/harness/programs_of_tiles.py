"""Programs of `TileInt8` without a call: for kernels on their own."""

from __future__ import annotations

from typing import Any

import torch

from prismm.cuda.device import Device
from prismm.cuda.implementation import implementation_of
from prismm.cuda.launch.arguments import BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.tile_int8 import launches as tile_launches
from tests.cuda.harness.programs import job_of


def tiles_program(
    a: Any, b: Any, out: Any, config: tile_launches.LaunchConfig, device: Device
) -> tuple[Program, BufferView]:
    """out = a @ b of tensors (batch, ·, ·); and where the counts are."""
    program = Program((a.data_ptr() % 16, b.data_ptr() % 16, out.data_ptr() % 16))
    counts = program.allocate(torch.int64, 4)
    implementation_of(config.scheme).queue(job_of(program, a, b, out, config, counts, device))
    return program, counts
