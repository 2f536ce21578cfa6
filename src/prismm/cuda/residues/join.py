"""Digits joined, certified and repaired: what is launched, and the workspace that it takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.core.accuracy import MAGNITUDE, ROUNDING
from prismm.core.moduli import coprime_moduli, scheme_product
from prismm.cuda.device import LANES
from prismm.cuda.residues.product import digits_shape
from prismm.cuda.residues.split import STATISTICS, plane_shape
from prismm.cuda.residues.tables import fast_join_constants, join_constants, second_pass_constants
from prismm.cuda.views import _ceil

if TYPE_CHECKING:
    from typing import Any

    import torch

    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.split import SplitVectors
    from prismm.cuda.residues.tables import CertificateTest, Tables
    from prismm.cuda.views import Result, Vectors


LEVELS = 5
"""Thresholds, halved each time, above which large elements are counted."""

FINISH_ROWS = 2
"""Rows of a tile that are repaired at once."""

REJOIN_PROGRAMS = 16
"""Programs a multiprocessor of the second pass."""

FEW_UNCERTIFIED, MANY_UNCERTIFIED, FEW_OF_STRIP = 4, 64, 2
"""Uncertified entries of a strip that need no planes of magnitudes; those of a few rows of it that are summed one by
one; and how many of each strip on average are worth the planes.
"""

UNCERTIFIED_LANES, UNCERTIFIED_ROWS, UNCERTIFIED_WARPS = 512, 8, 4
"""Elements of a single entry's vectors that are taken at a time, rows of a strip that are summed at once, and warps."""

MOST_MAGNITUDES = 1 << 17
"""Terms of which products of 7-bit magnitudes fit in an int32, 127²·2^17 < 2^31; of more nothing is proved by them."""

MAGNITUDE_TILE = 128, 128
"""Vectors, and elements, to multiples of which planes of magnitudes are rounded up."""


def join_tile(mode: int) -> tuple[int, int, int, int]:
    """Rows of a tile, rows and columns of a strip, and warps of the fast join, as measured on an H200: bounds of all
    entries take registers.
    """
    return (8, 64, 64, 4) if mode == ROUNDING else (4, 64, 128, 4)


def finish_programs(device: Device, mode: int) -> int:
    """Programs that repair what a join left uncertified.

    There are as many as registers allow, since each costs its start also where nothing is left. Correct rounding, which
    leaves more to some than to others, has twice as many.
    """
    return (4 if mode == ROUNDING else 2) * device.programs


def join_digits(
    program: Program, digits: BufferView, out: Result, a: Vectors, b: Vectors, left: SplitVectors, right: SplitVectors,
    table: Tables, test: CertificateTest, counts: BufferView, uncertified: BufferView, device: Device,
) -> None:  # fmt: skip
    """Write down the join, its certificate and the repair: two to five launches.

    Args:
        program: the launches so far.
        digits: of `residues.product.multiply_planes`.
        out: where the result goes.
        a, b: the operands, which repair reads.
        left, right: their splits.
        table: of the moduli.
        test: what is asked of an entry.
        counts: (4,) int64, which grow by special entries, those made exact, those certified by magnitudes, and others.
        uncertified: (1,) int64, 0 before, of this join alone.
        device: the GPU.
    """
    import torch

    from prismm.cuda.residues.kernels import repair

    parts, k = a.parts, a.terms
    separate = test.mode == MAGNITUDE and test.magnitude_kappa > 0.0
    rows, strip, block, _ = join_tile(test.mode)
    exact_constants, _ = join_constants(table.moduli, test, table.left.device)
    q = table.fraction_bits(left.terms)
    reals = out.buffer.reals()
    strides = tuple(parts * step for step in out.strides)
    row_pitch, plane = digits.shape[3], digits.shape[2] * digits.shape[3]
    third = second_pass_constants(table.moduli, parts, table.left.device)
    flags = join_ordinary(program, digits, out, left, right, table, test, device)
    strips, blocks = flags.shape[2:]
    words = strips * blocks
    total = words * out.batch * parts
    programs = min(finish_programs(device, test.mode), total)
    span = min(32, 1 << (-(-total // programs) - 1).bit_length())
    row_flags = program.allocate(torch.int32, programs, max(rows, FINISH_ROWS), block // 32)
    # Where they are not separate, nothing is written there: any address will do.
    uncertified_flags = (
        program.allocate(torch.int32, out.batch, parts, strips, blocks, strip, block // 32) if separate else row_flags
    )
    x, y = a.buffer.reals(), b.buffer.reals()
    a_strides, b_strides = (tuple(parts * step for step in some.strides) for some in (a, b))
    where = (x, *a_strides, y, *b_strides, reals, *strides)
    program.launch(
        repair.finish, (programs,), *where, flags, row_flags, uncertified_flags, digits, left.statistics,
        right.statistics, exact_constants, table.reduction, third, counts, uncertified, out.m, out.n, k, left.terms, q,
        row_pitch, plane, blocks, words, out.batch, left.batch, right.batch, MODULI=table.moduli, LIMBS=table.limbs,
        MODE=test.mode, PRECISION=test.precision, PARTS=parts, LEVELS=min(LEVELS, q), TILE=rows, STRIP=strip,
        ROWS=FINISH_ROWS, COLUMNS=block, BLOCK=LANES, WORDS=span, APART=separate, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    if separate:
        _recompute_uncertified(
            program, where, flags, uncertified_flags, a, b, left, right, exact_constants, counts, uncertified, test, q,
            device,
        )  # fmt: skip


def join_ordinary(
    program: Program, digits: BufferView, out: Result, left: SplitVectors, right: SplitVectors, table: Tables,
    test: CertificateTest, device: Device,
) -> BufferView:  # fmt: skip
    """Write down the join of ordinary tiles, certified: one or two launches. Operands are not read.

    Args:
        program, digits, out, table, test, device: as of `join_digits`.
        left, right: splits, of which statistics, batches and terms are read.

    Returns:
        Flags (batch, parts, strips, blocks) int32 of what is left: see `cuda.residues.kernels.join_fast`.
    """
    import torch

    from prismm.cuda.residues.kernels import join_fast, repair

    parts = 2 if out.buffer.dtype.is_complex else 1
    rows, strip, block, warps = join_tile(test.mode)
    strips, blocks = -(-out.m // strip), -(-out.n // block)
    primes = coprime_moduli(256, table.moduli)
    _, needed = join_constants(table.moduli, test, table.left.device)
    flags = program.allocate(torch.int32, out.batch, parts, strips, blocks)
    q = table.fraction_bits(left.terms)
    reals = out.buffer.reals()
    strides = tuple(parts * step for step in out.strides)
    row_pitch, plane = digits.shape[3], digits.shape[2] * digits.shape[3]
    even = strides[1] % 16 == 0 and strides[0] % 16 == 0 and out.n % 16 == 0
    program.launch(
        join_fast.join_fast, (blocks, strips, out.batch * parts), digits, reals, strides[1], strides[2], strides[0],
        flags, left.statistics, right.statistics, needed, out.m, out.n, left.terms, q, row_pitch, plane,
        strips * blocks, left.batch, right.batch, MODULI=table.moduli, MODE=test.mode,
        TESTED=test.magnitude_kappa > 0.0, PRECISION=test.precision, PARTS=parts, ROWS=rows, STRIP=strip, BLOCK=block,
        EVEN=even, NVIDIA=device.nvidia, num_warps=warps, enable_fp_fusion=False,
        SYSTEM=fast_join_constants(table.moduli, parts, 2), PRIMES=primes,
        HALF=(scheme_product(table.moduli) // 2).bit_length(),
    )  # fmt: skip
    words = strips * blocks
    total = words * out.batch * parts
    third = second_pass_constants(table.moduli, parts, table.left.device)
    # float32 rounds 29 bits earlier: next to none of its entries stays undecided after two parts.
    if test.precision == 53:
        program.launch(
            repair.rejoin_tiles, (min(REJOIN_PROGRAMS * device.programs, total),), reals, *strides, flags, digits,
            left.statistics, right.statistics, table.reduction, third, out.m, out.n, q, row_pitch, plane, blocks, words,
            out.batch, left.batch, right.batch, MODULI=table.moduli, MODE=test.mode, PARTS=parts, TILE=rows,
            STRIP=strip, COLUMNS=block, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return flags


def magnitude_shape(vectors: int, k: int, parts: int) -> tuple[int, int, int]:
    """Shape of an operand's planes of magnitudes, and of what is not zero, in whole tiles."""
    side, depth = MAGNITUDE_TILE
    return 2 * parts, _ceil(vectors, side), _ceil(k, depth)


def workspace_bytes(
    rows: int,
    columns: int,
    k: int,
    moduli: int,
    parts: int,
    test: CertificateTest,
    split: tuple[bool, bool] = (True, True),
    *,
    summed: bool = False,
) -> int:
    """Bytes of workspace that a matrix of a batch takes for a block of so many rows and columns, but for what
    programs hold (`held_bytes`). split: whether rows and columns are split, not kept; summed: into gemm's sum.
    """
    planes = moduli * (3 if parts == 2 else 1)
    found = math.prod(digits_shape(rows, columns, planes)) + STATISTICS * 8 * (rows + columns)
    for vectors, needs_split in zip((rows, columns), split, strict=True):
        found += math.prod(plane_shape(vectors, k, planes)) if needs_split else 0
    if summed:
        return found + 4 * parts * rows * -(-columns // 32)
    _, strip, block, _ = join_tile(test.mode)
    words = parts * -(-rows // strip) * -(-columns // block)
    found += 4 * words
    if test.mode == MAGNITUDE and test.magnitude_kappa > 0.0:
        found += words * strip * block // 8
        if parts * k <= MOST_MAGNITUDES:
            found += sum(math.prod(magnitude_shape(vectors, k, parts)) for vectors in (rows, columns))
    return found


def held_bytes(rows: int, columns: int, parts: int, batches: int, test: CertificateTest, device: Device) -> int:
    """Bytes of workspace that the programs of a join hold, of so many matrices of a batch."""
    tile, strip, block, _ = join_tile(test.mode)
    words = batches * parts * -(-rows // strip) * -(-columns // block)
    found = min(finish_programs(device, test.mode), words) * max(tile, FINISH_ROWS) * block // 8
    if test.mode == MAGNITUDE and test.magnitude_kappa > 0.0:
        found += min(2 * device.programs, words) * block * (4 * strip + 16 * UNCERTIFIED_ROWS)
    return found


def _recompute_uncertified(
    program: Program,
    where: tuple[Any, ...],
    flags: BufferView,
    row_flags: BufferView,
    a: Vectors,
    b: Vectors,
    left: SplitVectors,
    right: SplitVectors,
    exact_constants: torch.Tensor,
    counts: BufferView,
    uncertified: BufferView,
    test: CertificateTest,
    q: int,
    device: Device,
) -> None:
    """Settle what a join left uncertified; where: places and strides of both operands and the result."""
    import torch

    from prismm.cuda.residues.kernels import magnitudes

    batches, parts, strips, blocks, strip, width = row_flags.shape
    side, depth = MAGNITUDE_TILE
    depths = -(-a.terms // depth)
    batches_of = left.batch, right.batch
    words = strips * blocks
    # To Triton a larger integer is an int64, and the kernel another one.
    enough = min(FEW_OF_STRIP * words * batches * parts, 2**31 - 1)
    if left.terms <= MOST_MAGNITUDES:
        few = FEW_UNCERTIFIED
        places = [
            program.allocate(torch.int8, x.batch, *magnitude_shape(x.vectors, a.terms, parts)) for x in (left, right)
        ]
        program.launch(
            magnitudes.magnitude_planes, (device.programs,), *where[:8], left.statistics, right.statistics, *places,
            uncertified, left.vectors, right.vectors, a.terms, depths, *batches_of, enough, PARTS=parts,
            A_ALONG=a.strides[2] == 1, B_ALONG=b.strides[2] == 1, SIDE=side, DEPTH=depth, VECTORS=32, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip
    else:  # sums of longer vectors might not fit in 32 bits
        few, places = strip * 32 * width, [program.allocate(torch.int8, 1)] * 2
    # No more programs than run at once: where nothing is open, each costs its start.
    programs = min(2 * device.programs, words * batches * parts)
    sums = program.allocate(torch.int32, programs, strip, 32 * width)
    high = program.allocate(torch.float64, programs, 2, UNCERTIFIED_ROWS, 32 * width)
    program.launch(
        magnitudes.repair_strips, (programs,), *where, flags, row_flags, *places, sums, high, left.statistics,
        right.statistics, exact_constants, counts, uncertified, left.vectors, right.vectors, a.terms, depths,
        left.terms, q, blocks, words, batches, *batches_of, few, enough, MANY_UNCERTIFIED, PRECISION=test.precision,
        PARTS=parts, TILE=join_tile(test.mode)[0], STRIP=strip, HEIGHT=UNCERTIFIED_ROWS, COLUMNS=32 * width, SIDE=side,
        DEPTH=depth, BLOCK=UNCERTIFIED_LANES, num_warps=UNCERTIFIED_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
