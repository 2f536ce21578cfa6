"""Seven products of quarters instead of a product of residues, on a Hopper GPU: launches of
`cuda.residues.kernels.strassen`.

A block of large matrices takes three launches more so, and more memory, but an eighth fewer products on the matrix
unit; every digit is the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from prismm.cuda.device import Device
from prismm.cuda.residues import recompute
from prismm.cuda.residues.product import described, digits_shape, product_constants, product_grid
from prismm.cuda.residues.split import STATISTICS, SplitVectors, plane_shape
from prismm.cuda.residues.tables import CertificateTest, Tables
from prismm.cuda.views import in_words

if TYPE_CHECKING:
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program

STEPS = 128, 256, 256
"""Halves of rows, columns and the inner dimension are in whole tiles of the product, and no shorter than a tile's
beginning and end, which would go on into the second half.
"""

TILE = 8, 128, 4
"""Rows, words and warps of a program that adds quarters, or products of theirs."""


def _half(size: int, side: int) -> int:
    """The first half of rows, columns or an inner dimension."""
    return -(-size // (2 * STEPS[side])) * STEPS[side]


def serves(rows: int, columns: int, k: int) -> bool:
    """Whether a block of so many rows and columns has second halves in all directions."""
    return all(_half(size, side) < size for side, size in enumerate((rows, columns, k)))


def products_shape(rows: int, columns: int, planes: int) -> tuple[int, int, int, int]:
    """Of the digits of seven products, in bytes."""
    from prismm.cuda.residues.kernels.strassen import PRODUCTS

    return PRODUCTS, planes, _half(rows, 0), _half(columns, 1)


def sums_shape(vectors: int, pitch: int, planes: int, *, left: bool) -> tuple[int, int, int]:
    """Of the sums of an operand's planes, in bytes."""
    return planes, 2 * _half(vectors, 0 if left else 1), 2 * _half(pitch, 2)


def quarter(m: int, n: int, k: int) -> tuple[int, int, int]:
    """Rows, columns and inner dimension of one of the seven products."""
    return _half(m, 0), _half(n, 1), _half(k, 2)


def workspace_bytes(
    rows: int, columns: int, k: int, moduli: int, parts: int, test: CertificateTest, device: Device,
    split: tuple[bool, bool] = (True, True), *, summed: bool = False,
) -> int:  # fmt: skip
    """`cuda.workspace_bytes`, and what programs hold, with sums and products of quarters: digits come to be where the
    planes were of the operand that is split for each block of the other one.
    """
    planes = moduli * (3 if parts == 2 else 1)
    sizes = [math.prod(plane_shape(vectors, k, planes)) for vectors in (rows, columns)]
    split_bytes = [size if some else 0 for size, some in zip(sizes, split, strict=True)]
    # Both operands' planes have one pitch: it follows from k alone.
    pitch = plane_shape(rows, k, planes)[2]
    sums = [
        math.prod(sums_shape(vectors, pitch, planes, left=left)) for vectors, left in ((rows, True), (columns, False))
    ]
    statistics = STATISTICS * 8 * (rows + columns)
    joined, recomputing = math.prod(digits_shape(rows, columns, planes)), 0
    if summed:
        flags = 4 * parts * rows * -(-columns // 32)
        recomputing = recompute.sum_again_bytes(rows, columns, k, moduli, parts, 1, test, device, split)
    else:
        flags = recompute.flags_bytes(rows, columns, parts, test)
        joined += recompute.joining_bytes(rows, columns, parts, 1, test, device)
        recomputing = recompute.recompute_bytes(rows, columns, k, moduli, parts, 1, test, device, split)
    inner = 0 if split[1] else 1
    outer = split_bytes[1 - inner] + sums[1 - inner]
    products = math.prod(products_shape(rows, columns, planes))
    # The inner operand's planes are read for the last time before digits are allocated, and digits before what is
    # uncertified is recomputed, so the larger of them counts.
    return statistics + outer + flags + max(products + max(split_bytes[inner] + sums[inner], joined), recomputing)


def allocate_products(program: Program, rows: int, columns: int, planes: int) -> BufferView:
    """Workspace for the products of quarters."""
    import torch

    return program.allocate(torch.uint8, *products_shape(rows, columns, planes))


def add_strassen_sums(program: Program, x: SplitVectors, table: Tables, *, left: bool) -> SplitVectors:
    """With the sums of the quarters of a matrix's planes."""
    import torch

    from prismm.cuda.residues.kernels import strassen

    _, count, _, pitch = x.planes.shape
    sums = program.allocate(torch.int8, 1, *sums_shape(x.vectors, pitch, count, left=left))
    half, width = sums.shape[2] // 2, sums.shape[3] // 2
    rows, words, warps = TILE
    program.launch(
        strassen.strassen_sums, (-(-half // rows) * -(-width // (4 * words)), count), in_words(x.planes),
        in_words(sums), table.reduction, x.vectors, half, x.plane // 4, pitch // 4, width // 4, RIGHT=not left,
        ROWS=rows, WORDS=words, num_warps=warps,
    )  # fmt: skip
    return replace(x, sums=sums)


def multiply_strassen(
    program: Program, left: SplitVectors, right: SplitVectors, products: BufferView, table: Tables,
    device: Device,
) -> None:  # fmt: skip
    """The digits of seven products of operands with sums of their quarters, into memory of `products_shape`."""
    from prismm.cuda.residues.kernels import product_sm90 as sm90

    assert left.sums is not None and right.sums is not None
    many, count, m, n = products.shape
    pitch = left.sums.shape[3] // 2
    program.launch(
        sm90.strassen_products, product_grid(m, n, many * count, device),
        described(program, left.planes, 64), described(program, right.planes, sm90.COLUMNS),
        described(program, left.sums, 64), described(program, right.sums, sm90.COLUMNS),
        in_words(products), table.reduction, m, n, left.planes.shape[2], right.planes.shape[2], pitch, n // 4,
        m * n // 4, count, PRODUCTS=many, **product_constants(pitch),
    )  # fmt: skip


def add_products(program: Program, products: BufferView, m: int, n: int, table: Tables) -> BufferView:
    """The digits of all entries, as of `residues.product.multiply_planes`, from those of seven products."""
    import torch

    from prismm.cuda.residues.kernels import strassen

    many, count, half_m, half_n = products.shape
    digits = program.allocate(torch.uint8, 1, *digits_shape(m, n, count))
    rows, words, warps = TILE
    program.launch(
        strassen.add_products, (-(-half_m // rows) * -(-half_n // (4 * words)), count), in_words(products),
        in_words(digits), table.reduction, m, half_m, m * digits.shape[3] // 4, digits.shape[3] // 4, half_n // 4,
        PRODUCTS=many, ROWS=rows, WORDS=words, num_warps=warps,
    )  # fmt: skip
    return digits
