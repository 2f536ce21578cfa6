"""Products of residue planes alone: their program, what goes into it, and what comes out in exact integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from prismm.cuda.device import Device
from prismm.cuda.launch.arguments import WORKSPACE, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.residues import strassen as cuda_strassen
from prismm.cuda.residues.kernels.split import plane_row
from prismm.cuda.residues.product import multiply_planes
from prismm.cuda.residues.split import STATISTICS, SplitVectors
from prismm.cuda.residues.tables import Tables, tables


def permuted(rows: int) -> list[int]:
    """Where the rows of the right operand's planes go: `split.plane_row`."""
    return [int(plane_row.fn(x, True)) for x in range(rows)]


def planes_program(
    left: Any, right: Any, device: Device, strassen: bool = False, lower: bool = False
) -> tuple[Program, BufferView, Callable[[Any], None]]:
    """The program that multiplies planes (batch or 1, moduli, rows, k) as kernels take them, where their digits are,
    and what puts the planes into its scratch memory. quarters: by way of seven products of quarters; lower: without
    tiles above the diagonal, from one set of planes where left is right.
    """
    moduli, k = left.shape[1], left.shape[3]
    sizes = [-(-x.shape[2] // 64) * 64 for x in (left, right)]
    pitch = -(-k // 16) * 16
    program, places, filled = Program((0, 0, 0)), [], []
    for x, rows, where in zip((left, right), sizes, (None, permuted(sizes[1]) if device.sm90 else None), strict=True):
        own = x.shape[0]
        planes = program.allocate(torch.int8, own, moduli, rows, pitch)
        statistics = BufferView(WORKSPACE, 0, torch.int64, (own, STATISTICS, x.shape[2]))
        places.append(SplitVectors(planes, statistics, own, x.shape[2], k))
        # What lies beyond the vectors may be anything; beyond the inner dimension there are zeros.
        full = torch.randint(-128, 128, (own, moduli, rows, pitch), dtype=torch.int8, device=x.device)
        full[..., k:] = 0
        at = torch.arange(x.shape[2]) if where is None else torch.tensor(where[: x.shape[2]])
        full[:, :, at, :k] = x
        filled.append(full)
    table = tables(moduli, left.device)
    if strassen:
        both = [cuda_strassen.add_strassen_sums(program, x, table, left=x is places[0]) for x in places]
        sizes = left.shape[2], right.shape[2]
        products = cuda_strassen.allocate_products(program, *sizes, moduli)
        cuda_strassen.multiply_strassen(program, *both, products, table, device)
        digits = cuda_strassen.add_products(program, products, *sizes, table)
    else:
        if left is right:
            places[0] = places[1]
        digits = multiply_planes(program, *places, table, device, lower=lower)

    def fill(workspace: Any) -> None:
        for place, full in zip(places, filled, strict=True):
            workspace[place.planes.offset : place.planes.offset + full.numel()] = full.reshape(-1).view(torch.uint8)

    return program, digits, fill


def digits_of(workspace: Any, digits: BufferView, columns: int) -> Any:
    """What a program made."""
    found = workspace[digits.offset : digits.offset + math.prod(digits.shape)].view(digits.shape)
    return found[..., :columns]


def exact_digits(left: Any, right: Any, table: Tables) -> Any:
    """The same in exact integers: |sums| < 2^53."""
    sums = left.double() @ right.double().transpose(2, 3)
    assert sums.abs().max() < 2**53
    p = table.reduction[: left.shape[1], 0].double()[None, :, None, None]
    return (sums - torch.floor(sums / p) * p).to(torch.uint8)
