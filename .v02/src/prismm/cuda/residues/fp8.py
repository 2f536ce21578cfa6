"""Residues by FP8 products: tables of digits, and what is launched from operands to the digits that joins take.

The scheme's value does not depend on the moduli of its products (`core.moduli`). So operands are split into digits of
FP8's own moduli, multiplied, and converted into the same bytes that INT8 products would leave: joins, certificates,
repair and sums are those of INT8, and so are the bits.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prismm.core.fp8_moduli import (
    DigitFamily,
    block_length,
    digit_table,
    family_of,
    fp8_moduli,
    fp8_products,
)
from prismm.core.moduli import byte_tables, coprime_moduli, symmetric
from prismm.cuda.device import LONG_SUMS
from prismm.cuda.residues.product import digits_shape
from prismm.cuda.residues.split import (
    COLUMN_TILE,
    ROW_BLOCK,
    SplitVectors,
    measure_columns,
    plane_shape,
    tall_tile,
)
from prismm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch
    from numpy.typing import NDArray

    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.tables import Tables
    from prismm.cuda.views import Vectors

SPLIT_TILE = 4096, 4
"""Elements of a tile that is split, and warps."""

ROW_TERMS, COLUMN_TERMS = 512, 64
"""Terms of such a tile, of vectors along contiguous elements and across them."""

CONVERTED = 128
"""Entries that a program of four warps converts at a time."""

DIGITS = 80
"""Digits of entries that a thread may hold while it converts them, so that none leave its registers."""


@dataclass(frozen=True)
class ProductConfig:
    """How FP8 products are launched.

    Attributes:
        rows, columns, depth: of a tile's step.
        warps, stages: of a program.
        imprecise: products after which the compiler begins a new sum in the unit; 0 for no such limit, for which it
            takes FP16 instructions on Hopper.
        apart: whether each step's sums are added as integers.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    imprecise: int = 0
    apart: bool = False


def product_config(device: Device) -> ProductConfig:
    """The one for a device that multiplies FP8.

    A GPU of short sums adds those of single instructions: Hopper's compiler in FP32, Ada's kernel as integers. Of the
    others those of compute capability 12 have a third of the shared memory.
    """
    if device.fp8_sum_bits < LONG_SUMS:
        if device.sm90:
            return ProductConfig(128, 128, 128, 8, 3, imprecise=32)
        return ProductConfig(128, 128, 32, 8, 4, apart=True)
    return ProductConfig(128, 128, 128 if device.shared >= 200 << 10 else 64, 8, 3)


def family_for(device: Device) -> DigitFamily:
    """Moduli and digits for the device's FP8 sums.

    Raises:
        EngineError: for a device that has none, or whose sums are too short.
    """
    family = family_of(1 << device.fp8_sum_bits) if device.fp8_sum_bits else None
    if family is None:
        raise EngineError(
            f"{device.name} has no FP8 matrix instructions that multiply residues exactly; they need compute "
            "capability 8.9 or newer: pass engine='cuda:int8'"
        )
    return family


@dataclass(frozen=True, eq=False)
class Fp8Tables:
    """What the kernels read for the scheme of so many moduli by a family's products, on one device.

    Attributes:
        counts: products of each of FP8's moduli.
        triples: how many moduli have three; they come first.
        left, right: (moduli, 11) int32, see `cuda.residues.kernels.split_fp8`.
        digits: the patterns of the digits of all residues, modulus by modulus, in bytes of int32.
        products: (products, 5) int32, see `cuda.residues.kernels.product_fp8`.
        longest: terms that fit in one block of every modulus.
        bits: B of `cuda.residues.kernels.convert_fp8`.
        fractions, weights: int32, as that says.
    """

    counts: tuple[int, ...]
    triples: int
    left: torch.Tensor
    right: torch.Tensor
    digits: torch.Tensor
    products: torch.Tensor
    longest: int
    bits: int
    fractions: torch.Tensor
    weights: torch.Tensor

    @property
    def planes(self) -> int:
        """Products for a real one."""
        return sum(self.counts)


@functools.lru_cache(maxsize=64)
def fp8_tables(moduli: int, family: DigitFamily, device: torch.device) -> Fp8Tables:
    """The tables, made and copied once."""
    import torch

    chosen = fp8_moduli(moduli, family)
    tables = [digit_table(q, family) for q in chosen]
    counts = tuple(len(table.weights) for table in tables)
    triples = counts.count(3)
    assert counts == (3,) * triples + (1,) * (len(counts) - triples)
    whole, bits = math.prod(chosen), byte_tables(moduli).bits
    starts = [0, *np.cumsum(chosen)[:-1].tolist()]
    rows: list[list[list[int]]] = []
    for factors in ([pow(whole // q, -1, q) for q in chosen], [1] * len(chosen)):
        rows.append(
            [
                [*(symmetric(factor << (16 * x), q) for x in range(6)), (-factor << bits) % q, *_reduction(q), start]
                for q, factor, start in zip(chosen, factors, starts, strict=True)
            ]
        )
    fraction_bits, fractions, weights = conversion(moduli, chosen)
    blocks = [block_length(table, 1 << 24, 128) for table in tables]
    return Fp8Tables(
        counts,
        triples,
        torch.tensor(rows[0], dtype=torch.int32).to(device),
        torch.tensor(rows[1], dtype=torch.int32).to(device),
        torch.from_numpy(np.concatenate([packed_digits(q, family) for q in chosen])).to(device),
        torch.tensor(product_rows(chosen, family), dtype=torch.int32).to(device),
        min(blocks),
        fraction_bits,
        *(torch.tensor(x, dtype=torch.int32).to(device) for x in (fractions, weights)),
    )


def _reduction(q: int) -> tuple[int, int, int]:
    """What `cuda.residues.kernels.product.reduced` asks of a modulus."""
    return q, (1 << 32) // q, q * -(-(1 << 30) // q)


def product_rows(chosen: Sequence[int], family: DigitFamily) -> list[list[int]]:
    """The table of `cuda.residues.kernels.product_fp8`. Blocks are for sums in FP32, in whole steps of any kernel."""
    tables = [digit_table(q, family) for q in chosen]
    return [
        [*_reduction(table.modulus), block_length(table, 1 << 24, 128), weight]
        for table in tables
        for weight in table.weights
    ]


@functools.cache
def packed_digits(q: int, family: DigitFamily) -> NDArray[np.int32]:
    """The e4m3 patterns of the digits of residues 0 to q - 1: one or three bytes of a word, the first one lowest."""
    import torch

    digits = torch.from_numpy(digit_table(q, family).digits).to(torch.float32)
    patterns = digits.to(torch.float8_e4m3fn)
    assert torch.equal(patterns.to(torch.float32), digits)
    words = patterns.view(torch.uint8).to(torch.int32).numpy()
    found: NDArray[np.int32] = sum(word << (8 * x) for x, word in enumerate(words))
    return found


def conversion(moduli: int, chosen: tuple[int, ...]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """B, the fractions and the weights with which digits of these moduli become those of the scheme's.

    >>> bits, fractions, weights = conversion(2, (257, 255))
    >>> bits, len(weights)
    (38, 6)
    """
    whole, scheme = math.prod(chosen), coprime_moduli(256, moduli)
    product = math.prod(scheme)
    # As large as a factor of 32 bits may be.
    bits = (min(chosen) << 31).bit_length() - 1
    bits = bits - 1 if round((1 << bits) / min(chosen)) >= 1 << 31 else bits
    fractions = tuple((2 * (1 << bits) + q) // (2 * q) for q in chosen)
    assert sum(q - 1 for q in chosen) // 2 + 1 < 1 << (bits - 17)
    weights: list[int] = []
    for p in scheme:
        inverse = pow(product // p, -1, p)
        weights += [symmetric(whole // q * inverse, p) for q in chosen]
        weights.append(symmetric(-whole * inverse, p))
    return bits, fractions, tuple(weights)


def workspace_bytes(rows: int, columns: int, k: int, moduli: int, parts: int, family: DigitFamily) -> int:
    """Bytes of workspace that a matrix of a batch takes more than with INT8: planes of digits, residues of products."""
    more = (fp8_products(moduli, family) - moduli) * (3 if parts == 2 else 1)
    planes = fp8_products(moduli, family) * (3 if parts == 2 else 1)
    found = 2 * math.prod(digits_shape(rows, columns, planes))
    return found + sum(math.prod(plane_shape(vectors, k, more)) for vectors in (rows, columns))


def split_digits(
    program: Program, x: Vectors, statistics: BufferView, table: Tables, device: Device, *, left: bool, levels: bool,
    measure: bool,
) -> SplitVectors:  # fmt: skip
    """`residues.split.split_vectors` into planes of e4m3 digits: the same statistics, from the same kernels."""
    import torch

    from prismm.cuda.residues.kernels import split_fp8

    fp8 = fp8_tables(table.moduli, family_for(device), table.left.device)
    k, parts = x.terms, x.parts
    shape = plane_shape(x.vectors, k, fp8.planes * (3 if parts == 2 else 1))
    planes = program.allocate(torch.int8, x.batch, *shape)
    found = SplitVectors(planes, statistics, x.batch, x.vectors, parts * k)
    across = x.strides[1] == 1 and x.strides[2] != 1
    if not across and x.strides[2] != 1 and k > 1:
        raise EngineError("operands of these strides have to be copied first")
    if across:
        program.zero(statistics)
    if x.batch * x.vectors == 0:
        return found
    program.count_split(x.elements, left=left)
    _measure(program, x, found, table, device, across=across, levels=levels, measure=measure)
    terms, (size, warps) = COLUMN_TERMS if across else ROW_TERMS, SPLIT_TILE
    vectors = size // terms
    strides = tuple(parts * step for step in x.strides)
    program.launch(
        split_fp8.split_digits, (-(-x.vectors // vectors) * -(-shape[2] // terms), x.batch), x.buffer.reals(),
        strides[1], strides[2], strides[0], statistics, planes, fp8.left if left else fp8.right, fp8.digits, x.vectors,
        k, shape[2], shape[1] * shape[2], table.bits, MODULI=len(fp8.counts), TRIPLES=fp8.triples, VECTORS=vectors,
        TERMS=terms, WORDS=table.words, NVIDIA=device.nvidia, PARTS=parts, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    return found


def _measure(
    program: Program, x: Vectors, found: SplitVectors, table: Tables, device: Device, *, across: bool, levels: bool,
    measure: bool,
) -> None:  # fmt: skip
    """Write down what makes the statistics of vectors: the split into residues, of no modulus."""
    from prismm.cuda.residues.kernels import split

    k, parts, shape = x.terms, x.parts, found.planes.shape[1:]
    q = table.fraction_bits(parts * k)
    reals, strides = x.buffer.reals(), tuple(parts * step for step in x.strides)
    common = (
        found.statistics, found.planes, table.thresholds, table.left, x.vectors, k, shape[2], shape[1] * shape[2],
        parts * k, q, table.bits, table.limit_bits,
    )  # fmt: skip
    fixed: dict[str, Any] = {
        "MODULI": 0, "MEASURE": measure, "WORDS": table.words, "PERMUTED": False, "NVIDIA": device.nvidia,
        "PARTS": parts, "enable_fp_fusion": False,
    }  # fmt: skip
    if across:
        measure_columns(program, x, found.statistics, q, device, levels=levels, exact=False)
        (rows, columns), warps = tall_tile(COLUMN_TILE[0], COLUMN_TILE[1] // parts, shape[2]), COLUMN_TILE[2]
        program.launch(
            split.split_columns, (-(-x.vectors // columns), -(-shape[2] // rows), x.batch), reals, strides[2],
            strides[0], *common, ROWS=rows, BLOCK=columns, EVEN=x.even(2) and k % 16 == 0, num_warps=warps, **fixed,
        )  # fmt: skip
        return
    block, groups, warps = ROW_BLOCK[0] // parts, max(1, ROW_BLOCK[1] // parts), ROW_BLOCK[2]
    program.launch(
        split.split_rows, (x.vectors, x.batch), reals, strides[1], strides[0], *common, FOURS=32 * warps, BLOCK=block,
        GROUPS=groups, LEVELS=levels, num_warps=warps, EVEN=x.even(1), **fixed,
    )  # fmt: skip


def multiply_digits(
    program: Program, left: SplitVectors, right: SplitVectors, table: Tables, device: Device
) -> BufferView:  # fmt: skip
    """`residues.product.multiply_planes` of planes of e4m3 digits: the digits of the scheme's own moduli."""
    import torch

    fp8 = fp8_tables(table.moduli, family_for(device), table.left.device)
    batch, m, n = max(left.batch, right.batch), left.vectors, right.vectors
    count = left.planes.shape[1]
    parts = 1 if count == fp8.planes else 2
    digits = program.allocate(torch.uint8, batch, *digits_shape(m, n, table.moduli * (3 if parts == 2 else 1)))
    with program.scope():
        residues = program.allocate(torch.int16, batch, *digits_shape(m, n, count))
        launch_products(program, left, right, residues, fp8.products, fp8.planes, fp8.longest, device)
        convert_residues(program, residues, digits, fp8, table, batch, digits.shape[2] * digits.shape[3], parts)
    return digits


def convert_residues(
    program: Program, residues: BufferView, digits: BufferView, fp8: Fp8Tables, table: Tables, batch: int, plane: int,
    parts: int,
) -> None:  # fmt: skip
    """Write down the conversion of residues of products into digits of the scheme's moduli; plane: entries of each."""
    from prismm.cuda.residues.kernels import convert_fp8

    held = DIGITS // (parts * len(fp8.counts))
    block = CONVERTED * (4 if held >= 4 else max(1, held // 2 * 2))
    program.launch(
        convert_fp8.scheme_digits, (-(-plane // block), batch), residues, digits, fp8.products, fp8.fractions,
        fp8.weights, table.reduction, plane, plane, table.moduli, parts, BITS=fp8.bits, MODULI=len(fp8.counts),
        TRIPLES=fp8.triples, PARTS=parts, BLOCK=block, num_warps=4,
    )  # fmt: skip


def launch_products(
    program: Program, left: SplitVectors, right: SplitVectors, residues: BufferView, table: torch.Tensor, products: int,
    longest: int, device: Device,
) -> None:  # fmt: skip
    """Write down the products of planes of digits.

    Args:
        program, left, right, device: as of `multiply_digits`.
        residues: where the products' residues go.
        table: of `product_rows`.
        products: planes of each of their parts.
        longest: terms that fit in one block of every modulus.
    """
    from prismm.cuda.residues.kernels import product_fp8

    config = product_config(device)
    m, n = left.vectors, right.vectors
    batch, count, pitch = residues.shape[0], left.planes.shape[1], left.planes.shape[3]
    left_step, right_step = (count if x.batch == batch else 0 for x in (left, right))
    program.launch(
        product_fp8.digit_product, (-(-m // config.rows) * -(-n // config.columns), count, batch), left.planes,
        right.planes, residues, table, m, n, pitch, left.plane, right.plane, left_step, right_step, products,
        residues.shape[3], residues.shape[2] * residues.shape[3], ROWS=config.rows, COLUMNS=config.columns,
        DEPTH=config.depth, GROUP=8, IMPRECISE=config.imprecise, APART=config.apart, ONE_BLOCK=pitch <= longest,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
