"""Products of planes of residues: what is launched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.cuda.residues.tables import left_factors
from prismm.cuda.symmetric import lower_tiles
from prismm.cuda.views import _ceil, in_words

if TYPE_CHECKING:
    from typing import Any

    import torch

    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView, Tiled
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.split import SplitVectors
    from prismm.cuda.residues.tables import Tables


def digits_shape(m: int, n: int, planes: int) -> tuple[int, int, int]:
    """Of the digits of a matrix: rows in whole words."""
    return planes, m, _ceil(n, 64)


def multiply_planes(
    program: Program, left: SplitVectors, right: SplitVectors, table: Tables, device: Device, *, lower: bool = False
) -> BufferView:  # fmt: skip
    """The digits (batch, planes, m, n rounded up to 64) of all entries; lower: not of tiles above the diagonal.

    Both operands may be one split, of a right operand, on a Hopper GPU where lower is asked for.
    """
    if not device.sm90:
        return multiply_anywhere(program, left, right, table.reduction, lower=lower)
    digits, sizes = _digits_of(program, left, right)
    batch, m, n, row_pitch, plane, left_step, right_step = sizes
    _, count, left_rows, pitch = left.planes.shape
    right_rows = right.planes.shape[2]
    from prismm.cuda.residues.kernels import product_sm90 as sm90

    described_planes = described(program, left.planes, 64), described(program, right.planes, sm90.COLUMNS)
    numbers = (
        m, n, left_rows, right_rows, pitch, row_pitch // 4, plane // 4, count, left_step, right_step, batch,
    )  # fmt: skip
    if lower:
        order = lower_tiles(
            -(-m // sm90.ROWS), -(-n // sm90.COLUMNS), sm90.ROWS, sm90.COLUMNS, sm90.GROUP, table.left.device
        )
        factors = left_factors(table.moduli, table.left.device)
        program.launch(
            sm90.symmetric_residue_product, (min(device.programs, len(order) * count * batch),), *described_planes,
            in_words(digits), table.reduction, order, factors, *numbers, len(order), SAME=left is right,
            **product_constants(pitch),
        )  # fmt: skip
        return digits
    program.launch(
        sm90.residue_product, product_grid(m, n, count * batch, device), *described_planes, in_words(digits),
        table.reduction, *numbers, **product_constants(pitch),
    )  # fmt: skip
    return digits


def multiply_anywhere(
    program: Program, left: SplitVectors, right: SplitVectors, reduction: torch.Tensor, *, lower: bool = False
) -> BufferView:  # fmt: skip
    """`multiply_planes` by the kernel that any GPU runs, of planes that are not permuted; reduction: (planes, 3) int32,
    see `kernels.product.reduced`.
    """
    from prismm.cuda.residues.kernels import product

    digits, (batch, m, n, row_pitch, plane, left_step, right_step) = _digits_of(program, left, right)
    rows, columns, depth = 128, 128, 64
    _, count, _, pitch = left.planes.shape
    program.launch(
        product.residue_product, (-(-m // rows) * -(-n // columns), count, batch), left.planes, right.planes, digits,
        reduction, m, n, pitch, left.plane, right.plane, left_step, right_step, row_pitch, plane,
        ROWS=rows, COLUMNS=columns, DEPTH=depth, GROUP=8, CHUNK=product.CHUNK, num_warps=8, num_stages=3,
        **({"LOWER": True} if lower else {}),
    )  # fmt: skip
    return digits


def _digits_of(
    program: Program, left: SplitVectors, right: SplitVectors
) -> tuple[BufferView, tuple[int, int, int, int, int, int, int]]:
    """Room for digits; matrices, rows, columns, bytes from a row and from a plane of digits to the next, and planes
    from one matrix of a batch to the next of both sides: none where one operand serves all.
    """
    import torch

    batch, m, n, count = max(left.batch, right.batch), left.vectors, right.vectors, left.planes.shape[1]
    digits = program.allocate(torch.uint8, batch, *digits_shape(m, n, count))
    left_step, right_step = (count if x.batch == batch else 0 for x in (left, right))
    return digits, (batch, m, n, digits.shape[3], digits.shape[2] * digits.shape[3], left_step, right_step)


def product_grid(m: int, n: int, planes: int, device: Device) -> tuple[int]:
    """Persistent programs for so many products."""
    from prismm.cuda.residues.kernels import product_sm90 as sm90

    return (min(device.programs, -(-m // sm90.ROWS) * -(-n // sm90.COLUMNS) * planes),)


def product_constants(pitch: int) -> dict[str, Any]:
    """What Hopper's product is compiled with, for an inner dimension of so many bytes."""
    from prismm.cuda.residues.kernels import product
    from prismm.cuda.residues.kernels import product_sm90 as sm90

    depth = sm90.DEPTH
    return {
        "CONSUMERS": sm90.CONSUMERS, "COLUMNS": sm90.COLUMNS, "DEPTH": depth, "STAGES": sm90.STAGES,
        # A tile takes 2·AHEAD steps at least: AHEAD of 2 would fill up a short inner dimension with zeros.
        "GROUP": sm90.GROUP, "AHEAD": sm90.AHEAD if pitch > (2 * sm90.AHEAD - 1) * depth else 1,
        "CHUNK": product.CHUNK // depth, "LONG": pitch > product.CHUNK, **sm90.LAUNCH,
    }  # fmt: skip


def described(program: Program, planes: BufferView, rows: int) -> Tiled:
    """Planes (batch, planes, rows, pitch) as one matrix, to be copied so many rows at a time."""
    from triton.experimental.gluon import language as gl

    from prismm.cuda.residues.kernels.product_sm90 import DEPTH

    layout = gl.NVMMASharedLayout.get_default_for([rows, DEPTH], gl.int8)
    return program.tiled(planes, (math.prod(planes.shape[:3]), planes.shape[3]), (rows, DEPTH), layout)
