"""gemm's sums: what is launched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.core.accuracy import RAW
from prismm.cuda.device import LANES
from prismm.cuda.launch.arguments import Factor
from prismm.cuda.residues.join import LEVELS
from prismm.cuda.residues.recompute import (
    EXPANDED,
    MAGNITUDE_TILE,
    MOST_MAGNITUDES,
    SUM_STRIP,
    UNCERTIFIED_LANES,
    UNCERTIFIED_REGISTERS,
    UNCERTIFIED_WARPS,
    again_arguments,
    many_of_all,
    sum_programs,
)
from prismm.cuda.residues.tables import join_constants
from prismm.cuda.views import _ceil

if TYPE_CHECKING:
    from typing import Any

    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.split import SplitVectors
    from prismm.cuda.residues.tables import CertificateTest, Tables
    from prismm.cuda.views import Result, Vectors


COMBINE_TILE = 4, 128, 4
"""Rows and columns of a tile of gemm's epilogue, and the warps that work on it."""

FEW_BYTES, MANY_BYTES = 32, 256
"""Bytes of flags that a program reads at a time: of few, and of many."""

FACTORS = tuple(Factor(index) for index in range(4))
"""Parts of alpha and beta."""


def allocate_sum_flags(program: Program, out: Result) -> BufferView:
    """Allocate a bit for each entry, which an epilogue sets if it leaves the entry: (batch, parts, m, words) int32."""
    import torch

    # Each part of a complex entry has a flag of its own: one may be certified while the other is not.
    parts = 2 if out.buffer.dtype.is_complex else 1
    return program.allocate(torch.int32, out.batch, parts, out.m, -(-out.n // 32))


def combine_digits(
    program: Program,
    digits: BufferView,
    out: Result,
    addend: Result | None,
    a: Vectors,
    left: SplitVectors,
    right: SplitVectors,
    table: Tables,
    test: CertificateTest,
    flags: BufferView,
    *,
    lower: bool = False,
) -> None:
    """Write down alpha·X + beta·C, with C = addend, from the digits of X: every entry by the exact join; lower: not of
    tiles above the diagonal. flags: of `allocate_sum_flags`.
    """
    from prismm.cuda.gemm.kernels import combine

    more = _lower(program, flags) if lower else {}
    exact_constants, _ = join_constants(table.moduli, test, table.left.device)
    fixed = {"MODE": test.mode, "PRECISION": test.precision, "PARTS": a.parts, "ADDEND": addend is not None}
    program.launch(
        combine.combine_digits, _grid(out), digits, *_places(out, addend), flags, left.statistics, right.statistics,
        exact_constants, table.reduction, *FACTORS, out.m, out.n, left.terms, table.fraction_bits(left.terms),
        digits.shape[3], digits.shape[2] * digits.shape[3], flags.shape[3], left.batch, right.batch,
        MODULI=table.moduli, LIMBS=table.limbs, LEVELS=min(LEVELS, table.fraction_bits(left.terms)),
        TESTED=test.magnitude_kappa > 0.0, ROWS=COMBINE_TILE[0], BLOCK=COMBINE_TILE[1], num_warps=COMBINE_TILE[2],
        enable_fp_fusion=False, **fixed, **more,
    )  # fmt: skip


def recompute_sums(
    program: Program, out: Result, addend: Result | None, a: Vectors, b: Vectors, left: SplitVectors,
    right: SplitVectors, table: Tables, test: CertificateTest, counts: BufferView, state: BufferView,
    flags: BufferView, taken: int, device: Device,
) -> None:  # fmt: skip
    """Set what `combine_digits` flagged: one or two launches.

    Args:
        program, out, addend, a, left, right, table, test, flags: as of `combine_digits`.
        b: the columns.
        counts, device: as of `residues.join.join_digits`.
        state, taken: as of `residues.recompute.recompute`.
    """
    import torch

    from prismm.cuda.gemm.kernels import again

    batches, parts = flags.shape[:2]
    q = table.fraction_bits(left.terms)
    # RAW certifies nothing, and sums of longer vectors would not fit in 32 bits.
    counted = test.mode != RAW and left.terms <= MOST_MAGNITUDES
    if counted:
        strip, block = SUM_STRIP
        down, across = -(-out.m // strip), -(-out.n // block)
        of_strips = program.allocate(torch.int32, batches, parts, down, across)
        of_entries = program.allocate(torch.int32, batches, parts, down, across, strip, block // 32)
        programs = sum_programs(out.m, out.n, parts, batches, device)
        expansions = program.allocate(torch.float64, programs, 4 * EXPANDED)
        arguments, _ = again_arguments(
            program, out, a, left, right, table, test, taken, programs, block, expansions, 1, again=True
        )
        a_strides, b_strides, strides, c_strides = (_reals(x) for x in (a, b, out, addend or out))
        program.launch_compiled_later(
            {"AGAIN": False}, again.sum_again, (programs,), a.buffer.reals(), *a_strides, b.buffer.reals(), *b_strides,
            out.buffer.reals(), *strides, (addend or out).buffer.reals(), *c_strides, flags, of_strips, of_entries,
            left.statistics, right.statistics, counts, state, *arguments, *FACTORS, out.m, out.n, a.terms, left.terms,
            q, flags.shape[3], across, down * across, batches, left.batch, right.batch, many_of_all(out, parts),
            _ceil(left.terms, MAGNITUDE_TILE[1]), PRECISION=test.precision, PARTS=parts, A_ALONG=a.strides[2] == 1,
            B_ALONG=b.strides[2] == 1, ADDEND=addend is not None, TILE=COMBINE_TILE[0], STRIP=strip, COLUMNS=block,
            BLOCK=UNCERTIFIED_LANES, AGAIN=True, NVIDIA=device.nvidia, num_warps=UNCERTIFIED_WARPS,
            enable_fp_fusion=False, **device.limited(UNCERTIFIED_REGISTERS),
        )  # fmt: skip
    statistics = left.statistics, right.statistics, left.batch, right.batch, q
    recompute_flagged(
        program, out, addend, a, b, flags, statistics, counts, state if counted else None, device,
        PRODUCT=True, MODE=test.mode, PRECISION=test.precision, PARTS=parts, ADDEND=addend is not None,
    )  # fmt: skip


def combine_values(
    program: Program,
    products: BufferView | None,
    out: Result,
    addend: Result | None,
    a: Vectors,
    b: Vectors,
    terms: int,
    precision: int,
    counts: BufferView,
    device: Device,
    *,
    lower: bool = False,
) -> None:
    """out = alpha·X + beta·C of products X (batch, m, n) that meet the "native" target, contiguous; None for 0; lower:
    not of tiles above the diagonal.
    """
    from prismm.cuda.gemm.kernels import combine
    from prismm.cuda.residues.kernels import repair

    flags, grid, common = combining(program, out, addend)
    more = _lower(program, flags) if lower else {}
    fixed = {
        "PRECISION": precision, "PARTS": 2 if out.buffer.dtype.is_complex else 1, "ADDEND": addend is not None,
        "PRODUCT": products is not None,
    }  # fmt: skip
    # Without a product nothing is read there, but the kernel takes a pointer.
    source = products.reals() if products is not None else common[0]
    program.launch(
        combine.combine_values, grid, source, *common, flags, *FACTORS, out.m, out.n, terms, flags.shape[3],
        ROWS=COMBINE_TILE[0], BLOCK=COMBINE_TILE[1], num_warps=COMBINE_TILE[2], enable_fp_fusion=False, **fixed, **more,
    )  # fmt: skip
    nothing = counts, counts, 1, 1, 1
    recompute_flagged(
        program, out, addend, a, b, flags, nothing, counts, None, device, MODE=repair.NATIVE.value, **fixed
    )  # fmt: skip


def _lower(program: Program, flags: BufferView) -> dict[str, Any]:
    """What an epilogue of the lower triangle is compiled with: it writes no flags of the tiles that it leaves out."""
    program.zero(flags)
    return {"LOWER": True}


def combining(program: Program, out: Result, addend: Result | None) -> tuple[BufferView, tuple[int], tuple[Any, ...]]:
    """Flags, a grid of tiles, and the arguments for the result and C: places, strides of rows, columns, matrices."""
    flags = allocate_sum_flags(program, out)
    return flags, _grid(out), _places(out, addend)


def _grid(out: Result) -> tuple[int]:
    # One extent, as the others of a grid end at 65535.
    return (-(-out.n // COMBINE_TILE[1]) * -(-out.m // COMBINE_TILE[0]) * out.batch,)


def _places(out: Result, addend: Result | None) -> tuple[Any, ...]:
    """Where the result and C stand, and their strides of rows, columns, matrices, in real numbers."""
    common: list[Any] = []
    for some in (out, addend or out):
        batch, row, column = _reals(some)
        common += [some.buffer.reals(), row, column, batch]
    return tuple(common)


def _reals(some: Vectors | Result) -> tuple[int, ...]:
    """Strides in real numbers."""
    step = 2 if some.buffer.dtype.is_complex else 1
    return tuple(step * each for each in some.strides)


def recompute_flagged(
    program: Program, out: Result, addend: Result | None, a: Vectors, b: Vectors, flags: BufferView,
    statistics: tuple[BufferView, BufferView, int, int, int], counts: BufferView, state: BufferView | None,
    device: Device, **fixed: Any,
) -> None:  # fmt: skip
    """Write down the exact values of the entries that an epilogue flagged.

    statistics: of rows and columns, their matrices, and q. state: of `again.sum_again`, which counts flags.
    """
    from prismm.cuda.gemm.kernels.repair import recompute_exact

    source = addend or out
    a_strides, b_strides, strides, c_strides = (_reals(x) for x in (a, b, out, source))
    programs, span = walked(flags, device)
    program.launch(
        recompute_exact, (programs,), a.buffer.reals(), *a_strides,
        b.buffer.reals(), *b_strides, out.buffer.reals(), *strides, source.buffer.reals(), c_strides[1], c_strides[2],
        c_strides[0], flags, counts if state is None else state, *statistics[:2], counts, *FACTORS, out.m, out.n,
        a.terms, statistics[4], flags.shape[3], out.batch, *statistics[2:4], COUNTED=state is not None, SPAN=span,
        BLOCK=LANES, num_warps=4, enable_fp_fusion=False, **fixed,
    )  # fmt: skip


def walked(flags: BufferView, device: Device) -> tuple[int, int]:
    """Programs that set flagged entries, and bytes of flags that one reads at a time.

    How many entries are flagged stays on the GPU: programs walk over all flags, and none waits for the host.
    """
    count, most = 4 * math.prod(flags.shape), 8 * device.programs
    span = FEW_BYTES if count <= FEW_BYTES * most else MANY_BYTES
    return min(most, -(-count // span)), span
