"""Products of slices on a GPU: what `Slices` launches there.

Five to seven launches, none of which waits: slices of rows, of columns (with two passes before them where the columns
lie across contiguous elements), products, join and certificate, repair. Real float64 and float32 results.

Slices are on a grid, of as many bits as the scheme says, rounded to nearest or toward zero, for INT8, FP16 or FP64
units (`cuda.slices.kernels.split`); those with exponents of their own are made and multiplied by `slice_pairs`.
What
is kept of them, and so the value, is that of a CPU (`schemes.slices`): all pairs, or those with p + q <= d + 1; blocks
of the inner dimension, which serve a unit's accumulator, have no part in it. "CR" takes a fixed number here, and the
pairs that matter to a certificate: its entries are correctly rounded because each is certified or summed exactly, not
because nothing is left over.

The two products of a complex one are those of a CPU, too: of real operands of twice the inner dimension, which are laid
out in workspace (`cuda.layout`).

A CPU and a GPU bound the value by sums of digits each in its own way. That shows in which entries a target has repaired
and, without one, in those whose bound leaves open whether they overflow: these are set to the exact value, rounded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.core.accuracy import MAGNITUDE, RAW, ROUNDING
from prismm.cuda.device import LANES
from prismm.cuda.gemm.launches import COMBINE_TILE, FACTORS, combining, recompute_flagged, walked
from prismm.cuda.residues.split import STATISTICS, measure_columns, tall_tile
from prismm.cuda.slices.config import _ceil
from prismm.errors import EngineError

if TYPE_CHECKING:
    from typing import Any

    import torch

    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.tables import CertificateTest
    from prismm.cuda.slices.config import Cut, LaunchConfig
    from prismm.cuda.views import Result, Vectors


# Elements of a row that a program slices at a time, and its warps.
_ROW_BLOCK = 1024, 4

_COLUMN_TILE, _PEELED_TILE = (128, 32, 4), (64, 32, 8)
"""Elements, or rows and columns, of a tile that is split, and the warps that work on it; of digits that are peeled off
one by one.
"""

# The norms' unit, 2^-20 of the largest magnitude, which `join.Q` repeats for the kernels that read them.
_FRACTION_BITS = 20


def _on_sm90(config: LaunchConfig, device: Device) -> bool:
    """Whether the kernel for sm_90 multiplies; Triton compiles none for a single group."""
    return device.sm90 and config.groups > 1 and config.digits.balanced


@dataclass(frozen=True)
class SlicedVectors:
    """Vectors in slices: digits (batch, rows, pitch), statistics (batch, 10, vectors), extras (batch, 3, vectors).

    Adaptive: digits (slices·batch, rows, pitch), slice after slice, and as extras what is kept of each slice (batch,
    3·slices, vectors).
    """

    digits: BufferView
    statistics: BufferView
    extras: BufferView
    batch: int
    vectors: int

    @property
    def plane(self) -> int:
        """Digits of a matrix."""
        return self.digits.shape[1] * self.digits.shape[2]


def slice_vectors(
    program: Program, x: Vectors, config: LaunchConfig, cut: Cut, device: Device, *, left: bool
) -> SlicedVectors:
    """Slice vectors of any strides."""
    import torch

    from prismm.cuda.slices.kernels import split as slice_split

    k, mode = x.terms, config.test.mode
    across = x.strides[1] == 1 and x.strides[2] != 1
    # Neighbours in memory, so that one call sets them to zero.
    statistics = program.allocate(torch.int64, x.batch, STATISTICS, x.vectors)
    extras = program.allocate(torch.int64, x.batch, slice_split.EXTRAS.value, x.vectors)
    pitch = cut.blocks * config.slices * cut.width
    # Rows are padded to 64, within which `split.plane_row` permutes those of right operands.
    digits = program.allocate(config.digits.dtype, x.batch, _ceil(x.vectors, 64), pitch)
    found = SlicedVectors(digits, statistics, extras, x.batch, x.vectors)
    if x.batch * x.vectors == 0:
        return found
    program.count_split(x.elements, left=left)
    fixed: dict[str, Any] = {
        "SLICES": config.slices, "BITS": config.digits.bits, "BALANCED": config.digits.balanced,
        "TRUNCATED": config.digits.truncated,
        "MEASURE": mode == ROUNDING, "NVIDIA": device.nvidia,
        "PERMUTED": _on_sm90(config, device) and not left, "REVERSED": not left, "enable_fp_fusion": False,
    }  # fmt: skip
    place = statistics, extras, digits, x.vectors, k, cut.width, pitch, found.plane
    if not across:
        if x.strides[2] != 1 and k > 1:
            raise EngineError("operands of these strides have to be copied first")
        block, warps = _ROW_BLOCK
        program.launch(
            slice_split.slice_rows, (x.vectors, x.batch), x.buffer, x.strides[1], x.strides[0], *place, _FRACTION_BITS,
            BLOCK=block, LEVELS=mode == MAGNITUDE, num_warps=warps,
            EVEN=x.even(1), **fixed,
        )  # fmt: skip
        return found
    # Tiles of a column add to its statistics by atomics, so both begin at 0.
    program.zero(statistics)
    program.zero(extras)
    measure_columns(program, x, statistics, _FRACTION_BITS, device, levels=mode == MAGNITUDE, exact=True)
    rows, columns, warps = _COLUMN_TILE if config.digits.balanced else _PEELED_TILE
    rows, columns = tall_tile(rows, columns, cut.blocks * cut.width)
    program.launch(
        slice_split.slice_columns, (-(-x.vectors // columns), cut.blocks * cut.width // rows, x.batch), x.buffer,
        x.strides[2], x.strides[0], *place, ROWS=rows, BLOCK=columns, EVEN=x.even(2) and k % 16 == 0, num_warps=warps,
        **fixed,
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class Sums:
    """The exact sums of all entries: low (batch·blocks, groups - 1, m, n rounded up to 64) numbers of a slice's bits,
    top the integers above them. Adaptive: top (pairs·batch·blocks, m, n rounded up to 64), pair after pair, and no low.
    """

    low: BufferView
    top: BufferView
    blocks: int

    @property
    def row_pitch(self) -> int:
        """Entries of a row."""
        return self.top.shape[2]

    @property
    def plane(self) -> int:
        """Entries of a plane."""
        return self.top.shape[1] * self.top.shape[2]


def multiply_slices(
    program: Program, left: SlicedVectors, right: SlicedVectors, config: LaunchConfig, cut: Cut, device: Device
) -> Sums:
    """The products of all pairs, grouped.

    Raises:
        EngineError: for slices of FP64 where Triton multiplies none.
    """
    if config.digits.size == 8 and not device.float64_dot:
        raise EngineError(f"{device.name}: Triton multiplies no float64 matrices there; pass Slices('int8', ...)")
    batch, m, n = max(left.batch, right.batch), left.vectors, right.vectors
    units, pitch = batch * cut.blocks, left.digits.shape[2]
    # Columns are padded to 64, so that threads store 16 neighbours without a mask an entry.
    low = program.allocate(config.digits.below, units, config.groups - 1, m, _ceil(n, 64))
    top = program.allocate(config.digits.top, units, m, _ceil(n, 64))
    sums = Sums(low, top, cut.blocks)
    # From one matrix of a batch to the next: none where one operand serves all.
    left_step, right_step = (int(x.batch == batch) for x in (left, right))
    fixed = {"SLICES": config.slices, "GROUPS": config.groups}
    if not _on_sm90(config, device):
        from prismm.cuda.slices.kernels import product

        rows, columns, depth = product.TILES[config.digits.size]
        # The cap keeps SUM within 32 bits where FP64 units add even more terms of narrow digits exactly.
        longest = min(config.digits.longest_sum, 1 << 20)
        program.launch(
            product.slice_product, (-(-m // rows) * -(-n // columns), units), left.digits, right.digits, low, top, m,
            n, cut.width, pitch, left.plane, right.plane, left_step, right_step, sums.row_pitch, sums.plane,
            cut.blocks, BITS=config.digits.bits, SUM=max(longest // depth, 1) * depth, ROWS=rows, COLUMNS=columns,
            DEPTH=depth, GROUP=product.GROUP, **fixed,
            **product.launch(config.digits.size, device.sm90),
        )  # fmt: skip
        return sums
    from triton.experimental.gluon import language as gl

    from prismm.cuda.residues.kernels import product_sm90 as shape
    from prismm.cuda.slices.kernels import product_sm90 as sm90

    described = []
    for x, rows in ((left, 64), (right, shape.COLUMNS)):
        layout = gl.NVMMASharedLayout.get_default_for([rows, shape.DEPTH], gl.int8)
        described.append(program.tiled(x.digits, (x.batch * x.digits.shape[1], pitch), (rows, shape.DEPTH), layout))
    tiles = -(-m // shape.ROWS) * -(-n // shape.COLUMNS) * units
    program.launch(
        sm90.slice_product, (min(device.programs, tiles),), *described, low, top, m, n, left.digits.shape[1],
        right.digits.shape[1], cut.width, sums.row_pitch, sums.plane, left_step, right_step, cut.blocks, units,
        CONSUMERS=shape.CONSUMERS, COLUMNS=shape.COLUMNS, DEPTH=shape.DEPTH, STAGES=shape.STAGES, GROUP=shape.GROUP,
        **fixed, **shape.LAUNCH,
    )  # fmt: skip
    return sums


@functools.cache
def constants_of(test: CertificateTest, device: torch.device) -> torch.Tensor:
    """The kappas of a test, copied once and kept for good, as captured graphs read them."""
    import torch

    return torch.tensor([test.kappa, test.magnitude_kappa], dtype=torch.float64).to(device)


def join_sums(
    program: Program, sums: Sums, out: Result, a: Vectors, b: Vectors, left: SlicedVectors, right: SlicedVectors,
    config: LaunchConfig, constants: torch.Tensor, counts: BufferView, device: Device,
) -> None:  # fmt: skip
    """Join into out, certify, and repair: two launches. counts (4,) int64 grow by special, exact, magnitude and kept
    entries.
    """
    import torch

    from prismm.cuda.slices.kernels import join as slice_join
    from prismm.cuda.slices.kernels import pairs as slice_pairs
    from prismm.cuda.slices.kernels import repair as slice_repair

    test, flag_pitch = config.test, -(-out.n // 32)
    flags = program.allocate(torch.int32, out.batch, out.m, flag_pitch)
    strides = out.strides
    vectors = left.statistics, left.extras, right.statistics, right.extras, constants
    common = {
        "SLICES": config.slices, "GROUPS": config.groups, "MODE": test.mode, "PRECISION": test.precision
    }  # fmt: skip
    fixed = {
        **common, "BITS": config.digits.bits, "TRUNCATED": config.digits.truncated,
        "ADAPTIVE": config.digits.adaptive,
    }  # fmt: skip
    target = (
        out.buffer,
        strides[1],
        strides[2],
        strides[0],
        flags,
        *vectors,
        out.m,
        out.n,
        test.terms,
        sums.row_pitch,
        sums.plane,
        sums.blocks,
        flag_pitch,
        left.batch,
        right.batch,
    )
    # A kappa of 0 proves everything, and the counts of large elements need not be read.
    tested = test.mode == MAGNITUDE and test.magnitude_kappa > 0.0
    if config.digits.adaptive:
        tiles = -(-out.n // slice_pairs.BLOCK), -(-out.m // slice_pairs.ROWS), out.batch
        program.launch(
            slice_pairs.join_pairs, tiles, sums.top, *target, TESTED=tested, ROWS=slice_pairs.ROWS,
            BLOCK=slice_pairs.BLOCK, **common, **slice_pairs.LAUNCH,
        )  # fmt: skip
    else:
        tiles = -(-out.n // slice_join.BLOCK), -(-out.m // slice_join.STRIP), out.batch
        # Integers are no specialised arguments, so this flag tells the compiler that rows begin at multiples of 16
        # entries.
        even = strides[1] % 16 == 0 and strides[0] % 16 == 0 and out.n % 16 == 0
        program.launch(
            slice_join.join_slices, tiles, sums.low, sums.top, *target, TESTED=tested, ROWS=slice_join.ROWS,
            STRIP=slice_join.STRIP, BLOCK=slice_join.BLOCK, EVEN=even, BITS=config.digits.bits,
            TRUNCATED=config.digits.truncated, **common, **slice_join.LAUNCH,
        )  # fmt: skip
    span = slice_repair.SIDE.value, slice_repair.SPAN.value
    pieces = -(-out.m // span[0]) * -(-flag_pitch // span[1]) * out.batch
    program.launch(
        # Programs of repair are one warp each, so that 32 of them share a multiprocessor and hide one another's reads.
        slice_repair.repair_slices, (min(32 * device.programs, pieces),), a.buffer, *a.steps, b.buffer,
        *b.steps, out.buffer, *strides, flags, sums.low, sums.top, *vectors, counts, out.m, out.n,
        a.terms, sums.row_pitch, sums.plane, sums.blocks, flag_pitch, out.batch, left.batch, right.batch,
        BLOCK=slice_repair.LANES, **fixed, **slice_repair.LAUNCH,
    )  # fmt: skip


Real = tuple[SlicedVectors, SlicedVectors, Sums]
"""A real product: its rows, its columns, and their sums."""


def combine_sums(
    program: Program, products: list[Real], out: Result, addend: Result | None, a: Vectors, b: Vectors,
    config: LaunchConfig, constants: torch.Tensor, counts: BufferView, device: Device,
) -> None:  # fmt: skip
    """out = alpha·X + beta·C, X from its real products, one a part: certified as a whole, or exact; two launches.
    counts: as of `join_sums`.
    """
    from prismm.cuda.slices.kernels import combine as slice_combine
    from prismm.cuda.slices.kernels import join as slice_join

    test = config.test
    flags, grid, common = combining(program, out, addend)
    (left, right, sums), (left_i, right_i, sums_i) = products[0], products[-1]
    fixed = {"MODE": test.mode, "PRECISION": test.precision, "PARTS": len(products), "ADDEND": addend is not None}
    rows, columns, warps = COMBINE_TILE
    program.launch(
        slice_combine.combine_slices, grid, sums.low, sums.top, sums_i.low, sums_i.top, *common, flags,
        left.statistics, left.extras, right.statistics, right.extras, left_i.statistics, left_i.extras,
        right_i.statistics, right_i.extras, constants, *FACTORS, out.m, out.n, test.terms, sums.row_pitch, sums.plane,
        sums.blocks, flags.shape[3], left.batch, right.batch, SLICES=config.slices, GROUPS=config.groups,
        BITS=config.digits.bits, TRUNCATED=config.digits.truncated, ADAPTIVE=config.digits.adaptive,
        TESTED=test.magnitude_kappa > 0.0, ROWS=rows, BLOCK=columns, num_warps=warps, enable_fp_fusion=False, **fixed,
    )  # fmt: skip
    # In RAW a flagged entry is still the scheme's own value, so V is joined once more; the other modes take the exact
    # sum.
    if test.mode == RAW:
        _recompute_flagged(program, products, out, addend, a, b, flags, config, counts, device)
        return
    statistics = left.statistics, right.statistics, left.batch, right.batch, slice_join.Q.value
    recompute_flagged(program, out, addend, a, b, flags, statistics, counts, None, device, PRODUCT=True, **fixed)


def _recompute_flagged(
    program: Program,
    products: list[Real],
    out: Result,
    addend: Result | None,
    a: Vectors,
    b: Vectors,
    flags: BufferView,
    config: LaunchConfig,
    counts: BufferView,
    device: Device,
) -> None:
    """Set the entries of a sum of the scheme's own value that were flagged."""
    from prismm.cuda.slices.kernels import recompute as recompute

    (left, right, sums), (_, _, sums_i) = products[0], products[-1]
    # Without C any pointer will do: ADDEND keeps the kernel from reading it.
    source = addend or out
    strides, c_strides = (
        # Kernels see real numbers, of which a complex element has two, so all its steps count twice.
        tuple((2 if some.buffer.dtype.is_complex else 1) * step for step in some.strides)
        for some in (out, source)
    )
    a_steps, b_steps = (tuple(x.parts * step for step in x.steps) for x in (a, b))
    programs, span = walked(flags, device)
    program.launch(
        recompute.recompute_slices, (programs,), a.buffer.reals(), *a_steps, b.buffer.reals(),
        *b_steps, out.buffer.reals(), *strides,
        source.buffer.reals(), c_strides[1], c_strides[2], c_strides[0], flags, sums.low, sums.top, sums_i.low,
        sums_i.top, left.statistics, left.extras, right.statistics, right.extras, counts, *FACTORS, out.m, out.n,
        a.terms, sums.row_pitch, sums.plane, sums.blocks, flags.shape[3], out.batch, left.batch, right.batch,
        SLICES=config.slices, GROUPS=config.groups, BITS=config.digits.bits, ADAPTIVE=config.digits.adaptive,
        PRECISION=config.test.precision, PARTS=len(products), ADDEND=addend is not None, SPAN=span, BLOCK=LANES,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
