"""Digits joined, certified and repaired: what is launched, and the workspace that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.accuracy import RAW, ROUNDING
from prismm.core.moduli import coprime_moduli, scheme_product
from prismm.cuda.device import LANES
from prismm.cuda.residues.tables import fast_join_constants, join_constants, second_pass_constants

if TYPE_CHECKING:
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.split import SplitVectors
    from prismm.cuda.residues.tables import CertificateTest, Tables
    from prismm.cuda.views import Result, Vectors


LEVELS = 5
"""Thresholds, halved each time, above which large elements are counted."""

FINISHED = 256
"""Entries that a program of `repair.finish` joins in one step: two for each thread."""

REJOIN_PROGRAMS = 16
"""Programs a multiprocessor of the second pass."""


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


def shared_programs(most: int, strips: int, units: int) -> tuple[int, int]:
    """How many programs see to so many strips, and how many of them share one: as many as it has units, unless strips
    are many.
    """
    if strips >= 4 * most or most < units:
        return min(most, strips), 1
    return min(most // units, strips) * units, units


def allocate_flags(program: Program, out: Result, test: CertificateTest) -> tuple[BufferView, BufferView]:
    """Of what a join leaves: a word a strip, (batch, parts, strips, blocks) int32, as `kernels.join_fast` has it, and a
    bit an entry, (…, rows of a strip, columns of it / 32) int32, which only modes that certify have.
    """
    import torch

    _, strip, block, _ = join_tile(test.mode)
    parts = 2 if out.buffer.dtype.is_complex else 1
    shape = out.batch, parts, -(-out.m // strip), -(-out.n // block)
    of_entries = (*shape, strip, block // 32) if test.mode != RAW else (1,)
    return program.allocate(torch.int32, *shape), program.allocate(torch.int32, *of_entries)


def join_digits(
    program: Program, digits: BufferView, out: Result, a: Vectors, b: Vectors, left: SplitVectors, right: SplitVectors,
    table: Tables, test: CertificateTest, counts: BufferView, uncertified: BufferView,
    flags: tuple[BufferView, BufferView], device: Device, *, lower: bool = False,
) -> None:  # fmt: skip
    """Write down the join and its certificate: two or three launches. What stays uncertified is left to
    `residues.recompute`.

    Args:
        program: the launches so far.
        digits: of `residues.product.multiply_planes`.
        out: where the result goes.
        a, b: the operands, of which entries that are not finite are made.
        left, right: their splits.
        table: of the moduli.
        test: what is asked of an entry.
        counts: (4,) int64, which grow by special entries, those made exact, those certified by magnitudes, and others.
        uncertified: (1,) int64, 0 before, of this join alone.
        flags: of `allocate_flags`.
        device: the GPU.
        lower: whether strips above the diagonal are left out.
    """
    import torch

    from prismm.cuda.residues.kernels import repair

    parts, k = a.parts, a.terms
    rows, strip, block, _ = join_tile(test.mode)
    exact_constants, _ = join_constants(table.moduli, test, table.left.device)
    q = table.fraction_bits(left.terms)
    reals = out.buffer.reals()
    strides = tuple(parts * step for step in out.strides)
    row_pitch, plane = digits.shape[3], digits.shape[2] * digits.shape[3]
    third = second_pass_constants(table.moduli, parts, table.left.device)
    of_strips, of_entries = flags
    join_ordinary(program, digits, out, left, right, table, test, device, of_strips, lower=lower)
    strips, blocks = of_strips.shape[2:]
    words = strips * blocks
    total = words * out.batch * parts
    programs, units = shared_programs(finish_programs(device, test.mode), total, strip // rows)
    span = min(32, 1 << (-(-total // (programs // units)) - 1).bit_length())
    finished = FINISHED // block
    row_flags = program.allocate(torch.int32, programs, max(rows, finished), block // 32)
    # Four programs of correct rounding then run on a multiprocessor. Complex products need more registers.
    limit = device.limited(128) if test.mode == ROUNDING and parts == 1 else {}
    x, y = a.buffer.reals(), b.buffer.reals()
    a_strides, b_strides = (tuple(parts * step for step in some.strides) for some in (a, b))
    program.launch(
        repair.finish, (programs,), x, *a_strides, y, *b_strides, reals, *strides, of_strips, row_flags, of_entries,
        digits, left.statistics, right.statistics, exact_constants, table.reduction, third, counts, uncertified, out.m,
        out.n, k, left.terms, q, row_pitch, plane, blocks, words, out.batch, left.batch, right.batch, units,
        MODULI=table.moduli, LIMBS=table.limbs, MODE=test.mode, PRECISION=test.precision, PARTS=parts,
        LEVELS=min(LEVELS, q), TILE=rows, STRIP=strip, ROWS=finished, COLUMNS=block, BLOCK=LANES, WORDS=span,
        APART=test.mode != RAW, num_warps=4, enable_fp_fusion=False, **limit,
    )  # fmt: skip


def join_ordinary(
    program: Program, digits: BufferView, out: Result, left: SplitVectors, right: SplitVectors, table: Tables,
    test: CertificateTest, device: Device, flags: BufferView, *, lower: bool = False,
) -> None:  # fmt: skip
    """Write down the join of ordinary tiles, certified: one or two launches. Operands are not read.

    Args:
        program, digits, out, table, test, device, lower: as of `join_digits`.
        left, right: splits, of which statistics, batches and terms are read.
        flags: a word a strip, as of `allocate_flags`, for what is left.
    """
    from prismm.cuda.residues.kernels import join_fast, repair

    parts = 2 if out.buffer.dtype.is_complex else 1
    rows, strip, block, warps = join_tile(test.mode)
    strips, blocks = -(-out.m // strip), -(-out.n // block)
    primes = coprime_moduli(256, table.moduli)
    _, needed = join_constants(table.moduli, test, table.left.device)
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
        HALF=(scheme_product(table.moduli) // 2).bit_length(), **({"LOWER": True} if lower else {}),
    )  # fmt: skip
    words = strips * blocks
    total = words * out.batch * parts
    third = second_pass_constants(table.moduli, parts, table.left.device)
    # float32 rounds 29 bits earlier: next to none of its entries stays undecided after two parts.
    if test.precision == 53:
        programs, units = shared_programs(REJOIN_PROGRAMS * device.programs, total, strip // rows)
        program.launch(
            repair.rejoin_tiles, (programs,), reals, *strides, flags, digits,
            left.statistics, right.statistics, table.reduction, third, out.m, out.n, q, row_pitch, plane, blocks, words,
            out.batch, left.batch, right.batch, units, MODULI=table.moduli, MODE=test.mode, PARTS=parts, TILE=rows,
            STRIP=strip, COLUMNS=block, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
