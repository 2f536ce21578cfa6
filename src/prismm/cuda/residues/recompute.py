"""Entries that a join leaves uncertified: what is launched to certify or recompute them, and the workspace it takes.

All of it is allocated where residues and digits of the product were, which nobody reads any more.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from prismm.core.accuracy import MAGNITUDE, RAW
from prismm.core.many_moduli import MOST_MODULI, many_moduli, room
from prismm.core.moduli import coprime_moduli, limbs_of, symmetric
from prismm.cuda.launch.arguments import BufferView
from prismm.cuda.residues.join import FINISHED, finish_programs, join_tile, shared_programs
from prismm.cuda.residues.product import digits_shape
from prismm.cuda.residues.split import STATISTICS, plane_shape
from prismm.cuda.residues.tables import join_constants
from prismm.cuda.views import _ceil

if TYPE_CHECKING:
    from typing import Any

    import torch

    from prismm.core.problem import Problem
    from prismm.cuda.device import Device
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.split import SplitVectors
    from prismm.cuda.residues.tables import CertificateTest, Tables
    from prismm.cuda.views import Result, Vectors


MANY_UNCERTIFIED, FEW_OF_STRIP, MANY_OF_ALL = 64, 2, 1024
"""Uncertified entries of a few rows of a strip that are summed one by one; how many of each strip on average are worth
planes of magnitudes; and one in how many of all may be worth more moduli.
"""

LISTED, EXPANDED = 16, 1024
"""Rows of a strip whose entries go into one list (`kernels.many_tile`), and entries that one call expands."""

UNCERTIFIED_LANES, UNCERTIFIED_ROWS, UNCERTIFIED_WARPS, UNCERTIFIED_REGISTERS = 512, 8, 8, 128
"""Elements of a single entry's vectors that are taken at a time, rows of a strip that are summed at once, and warps."""

MOST_MAGNITUDES = 1 << 17
"""Terms of which products of 7-bit magnitudes fit in an int32, 127²·2^17 < 2^31; of more nothing is proved by them, and
nothing is made again by more moduli.
"""

SUM_STRIP = 64, 128
"""Rows and columns of a strip of gemm's entries that are made again."""

MAGNITUDE_TILE = 128, 128
"""Vectors, and elements, to multiples of which planes of magnitudes are rounded up; and those of more moduli."""

SYSTEMS = {
    53: (16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 45, MOST_MODULI),
    24: (8, 10, 12, 14, 16, 18, 20, 22, 24, 27, 30, 33, 36, 40, 44, MOST_MODULI),
}
"""Numbers of moduli that entries are made again by, for results of so many bits."""

SECONDS = (9e-12, 13e-11, 1.4e-12, 1.5e-15, 5.5e-12, 20e-6, 5e-11)
"""What decides whether entries are made again, as measured on an H200; see `kernels.many_choice`."""

COUNTERS, AGAIN_FIRST, AGAIN_LAST = 26, 10, 11
"""How many a join has: its uncertified entries, and what `kernels.many_choice` counts behind them. Which of them count
entries that more moduli recomputed, at first and at last.
"""

COUNTERS_APART = COUNTERS + COUNTERS % 2
"""Where one join's counters begin after another's: kernels are compiled for addresses that are multiples of 16."""

ROOM, NARROW = 256 << 20, 512
"""Bytes that products of more moduli may take, where residues and digits of all matrices took less, but no more than
four times those of one; and rows and columns of a panel that are made fewer only if others do not do.
"""


class Panels(NamedTuple):
    """Rows and columns of a panel that is made again by so many moduli, and of how many matrices at a time."""

    height: int
    width: int
    group: int
    moduli: int

    def spaces(self, terms: int) -> tuple[int, int, int]:
        """Bytes of the residues of rows and of columns, and of digits."""
        planes, pitch = self.group * self.moduli, _ceil(terms, MAGNITUDE_TILE[1])
        return planes * self.height * pitch, planes * self.width * pitch, planes * self.height * self.width


def panels_within(rows: int, columns: int, terms: int, batches: int, taken: int, moduli: int) -> Panels:
    """The largest that fit where so many bytes were taken before, or somewhat more of them; of one tile at least.

    Rows are split once, and columns once for each panel of rows. So the number of rows is the last to be reduced, and
    the number of columns may be half of `NARROW` before.
    """
    side = MAGNITUDE_TILE[0]
    limit = max(taken, min(ROOM, 4 * taken // batches))
    found = Panels(_ceil(rows, side), _ceil(columns, side), 1, moduli)
    while sum(found.spaces(terms)) > limit and max(found[:2]) > side:
        height, width = found[:2]
        narrower = found._replace(width=_ceil(-(-width // 2), side))
        # With half of the rows all columns would be split twice.
        enough = narrower.width >= NARROW // 2 and sum(narrower.spaces(terms)) <= limit
        if width > NARROW or height <= max(side, min(NARROW, width)) or enough:
            found = narrower
        else:
            found = found._replace(height=_ceil(-(-height // 2), side))
    # As few panels as fit, all of about the same width.
    pitch = found.spaces(terms)[0] // (moduli * found.height)
    widest = (limit // moduli - found.height * pitch) // (pitch + found.height)
    if widest > found.width:
        panels = -(-columns // (widest // side * side))
        found = found._replace(width=_ceil(-(-columns // panels), side))
    return found._replace(group=max(1, min(batches, limit // sum(found.spaces(terms)))))


def space_of(some: tuple[Panels, ...], terms: int) -> int:
    """Bytes that suffice for each of these."""
    return max(sum(each.spaces(terms)) for each in some)


@dataclass(frozen=True, eq=False)
class ManyTables:
    """What `cuda.residues.kernels.many` reads, on one device: its arguments of the same names."""

    powers: torch.Tensor
    base: torch.Tensor
    reduction: torch.Tensor
    systems: torch.Tensor
    nothing_there: torch.Tensor


_POWERS, _LIMBS, _GROUP, _CENTRE = 288, 9, 4, 128


@functools.lru_cache(maxsize=64)
def many_tables(precision: int, device: torch.device) -> ManyTables:
    """The tables for results of so many bits, made and copied once."""
    import torch

    chosen = coprime_moduli(256, MOST_MODULI)
    spare = -MOST_MODULI % _GROUP
    powers = np.zeros((len(SYSTEMS[precision]) + 1, MOST_MODULI + spare, _POWERS), np.int8)
    systems = []
    for r, moduli in enumerate((*SYSTEMS[precision], MOST_MODULI)):
        whole = math.prod(chosen[:moduli])
        for t, p in enumerate(chosen[:moduli]):
            # One side carries (P/p)^-1, so that residues of the product are themselves the digits of the sum.
            factor = pow(whole // p, -1, p) if r < len(SYSTEMS[precision]) else 1
            # 128 modulo 256 is -128 as a byte.
            row = [symmetric(factor << x, p) for x in range(_POWERS)]
            powers[r, t] = np.array(row).astype(np.int8)
        if r < len(SYSTEMS[precision]):
            table = many_moduli(moduli)
            product, weights = np.zeros(_LIMBS), np.zeros((MOST_MODULI, _LIMBS))
            product[: table.limbs], weights[:moduli, : table.limbs] = table.product, table.weights
            # `kernels.many_join` subtracts so much from each digit; this adds it again, modulo P.
            shift, centre = _CENTRE * sum(whole // p for p in chosen[:moduli]) % whole, np.zeros(_LIMBS)
            centre[: table.limbs] = limbs_of(shift, table.limbs)
            systems.append(np.concatenate([table.quotient, product, centre, weights.reshape(-1)]))
    base = np.zeros((MOST_MODULI + spare, 8), np.float32)
    base[:MOST_MODULI, :5] = [[p, 1.0 / p, *(symmetric(1 << (14 * x), p) for x in (1, 2, 3))] for p in chosen]
    of_bytes = np.array([[symmetric(1 << (8 * x), p) for x in range(7)] for p in chosen])
    patterns = base[:MOST_MODULI, 5:].view(np.int32)
    patterns[:, :2] = np.pad(of_bytes.astype(np.int8), ((0, 0), (0, 1))).view(np.int32)
    patterns[:, 2] = -128 * of_bytes.sum(axis=1)
    reduction = [[p, (1 << 32) // p, p * -(-(1 << 30) // p)] for p in chosen]
    # Bytes of as many moduli side by side.
    grouped = powers.reshape(len(powers), -1, _GROUP, _POWERS)
    words = np.ascontiguousarray(grouped.swapaxes(2, 3)).view(np.int32)[..., 0]
    return ManyTables(
        torch.from_numpy(words).to(device),
        torch.from_numpy(base).to(device),
        torch.tensor(reduction, dtype=torch.int32).to(device),
        torch.from_numpy(np.stack(systems)).to(device),
        torch.zeros(5, dtype=torch.float64).to(device),
    )


def bits_of(moduli: int, terms: int) -> tuple[int, int, int]:
    """Bits of rows and of columns in sums of so many terms, and bits of the limbs below P.

    |C'| <= k·2^(left + right) stays within the room of the system (`core.many_moduli`).
    """
    bits = room(moduli) - max(terms - 1, 0).bit_length()
    return bits // 2, bits - bits // 2, 40 * (_LIMBS - many_moduli(moduli).limbs)


@functools.lru_cache(maxsize=1024)
def rungs(terms: int, panels: tuple[Panels, ...], device: torch.device) -> torch.Tensor:
    """(systems, 9) int32: moduli, `bits_of` them, rows, columns and matrices of panels, and where residues of columns
    and digits begin, as `kernels.many_choice.RUNG` has it.
    """
    import torch

    rows = []
    for panel in panels:
        height, width, group, moduli = panel
        of_rows, of_columns, _ = panel.spaces(terms)
        rows.append([moduli, *bits_of(moduli, terms), height, width, group])
        # Both are multiples of a tile: a panel's vectors, and the pitch, are of 128.
        rows[-1] += [of_rows >> 14, of_rows + of_columns >> 14]
    return torch.tensor(rows, dtype=torch.int32).to(device)


def panels_of(
    rows: int, columns: int, terms: int, batches: int, taken: int, precision: int
) -> tuple[Panels, ...]:  # fmt: skip
    """Those of every number of moduli."""
    return tuple(panels_within(rows, columns, terms, batches, taken, moduli) for moduli in SYSTEMS[precision])


@functools.lru_cache(maxsize=64)
def _seconds(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.float32).to(device)


def seconds_again(problem: Problem) -> float:
    """Seconds that it takes to make all entries of a product again, by a number of moduli that most wide data take."""
    moduli = SYSTEMS[problem.result.precision][5]
    entries = problem.count * problem.m * problem.n * problem.parts
    elements = problem.count * (problem.m + problem.n) * problem.k * problem.parts
    each = entries * (problem.terms * SECONDS[3] + SECONDS[4]) + elements * SECONDS[2]
    return moduli * each + SECONDS[5]


def certifies_by_magnitudes(test: CertificateTest) -> bool:
    """Whether products of magnitudes may certify an entry."""
    return test.mode == MAGNITUDE and test.magnitude_kappa > 0.0


def recompute(
    program: Program, out: Result, a: Vectors, b: Vectors, left: SplitVectors, right: SplitVectors, table: Tables,
    test: CertificateTest, counts: BufferView, state: BufferView, flags: tuple[BufferView, BufferView], taken: int,
    device: Device,
) -> None:  # fmt: skip
    """Repair what `join.join_digits` left uncertified: one or two launches, none where nothing is certified.

    Args:
        program, out, a, b, left, right, table, test, counts, flags, device: as of `join.join_digits`.
        state: its counter of uncertified entries, and `COUNTERS` in all, 0 before.
        taken: bytes of workspace that the product has taken and nobody reads any more.
    """
    if test.mode == RAW:
        return
    import torch

    from prismm.cuda.residues.kernels import magnitudes, strips

    of_strips, of_entries = flags
    batches, parts, down, across, strip, width = of_entries.shape
    side, depth = MAGNITUDE_TILE
    depths = -(-a.terms // depth)
    words = down * across
    by_magnitudes, again = certifies_by_magnitudes(test), left.terms <= MOST_MAGNITUDES
    reals = (a.buffer.reals(), b.buffer.reals())
    a_strides, b_strides = (tuple(parts * step for step in some.strides) for some in (a, b))
    # To Triton a larger integer is an int64, and the kernel another one.
    enough = min(FEW_OF_STRIP * words * batches * parts, 2**31 - 1)
    places = [program.allocate(torch.int8, 1)] * 2
    if by_magnitudes and again:  # sums of longer vectors might not fit in 32 bits
        places = [
            program.allocate(torch.int8, x.batch, *magnitude_shape(x.vectors, a.terms, parts)) for x in (left, right)
        ]
        program.launch_compiled_later(
            None, magnitudes.magnitude_planes, (device.programs,), reals[0], *a_strides, reals[1], *b_strides,
            left.statistics, right.statistics, *places, state, left.vectors, right.vectors, a.terms, depths,
            left.batch, right.batch, enough, PARTS=parts, A_ALONG=a.strides[2] == 1, B_ALONG=b.strides[2] == 1,
            SIDE=side, DEPTH=depth, VECTORS=32, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    # No more programs than run at once: where nothing is open, each costs its start.
    programs, units = shared_programs(2 * device.programs, words * batches * parts, strip // UNCERTIFIED_ROWS)
    shared = _shared_bytes(strip, 32 * width, by_magnitudes=by_magnitudes, again=again)
    expansions = program.allocate(torch.float64, programs, shared // 8)
    # One memory serves both: all strips are certified before the first entry is expanded.
    sums = BufferView(expansions.base, expansions.offset, torch.int32) if by_magnitudes else places[0]
    high = program.allocate(torch.float64, programs, 4, UNCERTIFIED_ROWS, 32 * width)
    listed_bytes = words * batches * parts * strip_list_bytes(min(strip, out.m))
    arguments, space_bytes = again_arguments(
        program, out, a, left, right, table, test, taken, programs, 32 * width, expansions, listed_bytes, again=again
    )
    exact_constants, _ = join_constants(table.moduli, test, table.left.device)
    strides = tuple(parts * step for step in out.strides)
    program.launch_compiled_later(
        {"AGAIN": False}, strips.repair_strips, (programs,), reals[0], *a_strides, reals[1], *b_strides,
        out.buffer.reals(), *strides, of_strips, of_entries, *places, sums, high, left.statistics, right.statistics,
        exact_constants, counts, state, *arguments, left.vectors, right.vectors, a.terms, depths, left.terms,
        table.fraction_bits(left.terms), across, words, batches, left.batch, right.batch, enough, MANY_UNCERTIFIED,
        many_of_all(out, parts), _ceil(left.terms, depth), min(space_bytes // 8, 2**31 - 1), units,
        PRECISION=test.precision, PARTS=parts, A_ALONG=a.strides[2] == 1, B_ALONG=b.strides[2] == 1,
        TILE=join_tile(test.mode)[0], STRIP=strip, HEIGHT=UNCERTIFIED_ROWS, COLUMNS=32 * width, SIDE=side,
        DEPTH=depth, BLOCK=UNCERTIFIED_LANES, MAGNITUDES=by_magnitudes, AGAIN=again, NVIDIA=device.nvidia,
        num_warps=UNCERTIFIED_WARPS, enable_fp_fusion=False, **device.limited(UNCERTIFIED_REGISTERS),
    )  # fmt: skip


def many_of_all(out: Result, parts: int) -> int:
    """More moduli are considered if more entries of a result than these are uncertified."""
    return min(-(-out.batch * parts * out.m * out.n // MANY_OF_ALL), 2**31 - 1)


def again_arguments(
    program: Program, out: Result, a: Vectors, left: SplitVectors, right: SplitVectors, table: Tables,
    test: CertificateTest, taken: int, programs: int, columns: int, expansions: BufferView, least: int, *, again: bool,
) -> tuple[tuple[Any, ...], int]:  # fmt: skip
    """The arguments `space` to `seconds` of `kernels.many.make_again`, workspace allocated, and bytes of `space`.

    Args:
        program, out, a, left, right, table, test, taken: as of `recompute`.
        programs, columns: of the launch, and of a strip.
        expansions: workspace in which each program keeps expanded entries.
        least: the least number of bytes of `space`.
        again: whether entries may be made again; if not, `space` has one byte.
    """
    import torch

    device = table.left.device
    panels = panels_of(out.m, out.n, left.terms, out.batch, taken, test.precision)
    space_bytes = max(space_of(panels, left.terms), least) if again else 1
    space = program.allocate(torch.int8, space_bytes)
    listed = program.allocate(torch.int32, programs, LISTED * columns)
    vectors = left.batch * left.vectors + right.batch * right.vectors
    measures = program.allocate(torch.int32, measured(vectors, a.terms, a.parts))
    many = many_tables(test.precision, device)
    arguments = (
        space, listed, expansions, measures, many.powers, many.base, many.reduction, many.systems, many.nothing_there,
        rungs(left.terms, panels, device), _seconds(SECONDS, device),
    )  # fmt: skip
    return arguments, space_bytes


def _shared_bytes(strip: int, columns: int, *, by_magnitudes: bool, again: bool) -> int:
    """Bytes of the memory in which a program keeps sums of magnitudes of a strip, and later expansions."""
    return max(32 * EXPANDED if again else 8, 4 * strip * columns if by_magnitudes else 0)


def measured(vectors: int, k: int, parts: int) -> int:
    """Integers of what `kernels.balance` measures of so many vectors, of both sides, and elements of each."""
    return parts * (16 * vectors + 14 * parts * k + 4 * 20 + 128 * 7)


def magnitude_shape(vectors: int, k: int, parts: int) -> tuple[int, int, int]:
    """Shape of an operand's planes of magnitudes, and of what is not zero, in whole tiles."""
    side, depth = MAGNITUDE_TILE
    return 2 * parts, _ceil(vectors, side), _ceil(k, depth)


def freed_bytes(rows: int, columns: int, k: int, moduli: int, parts: int, split: tuple[bool, bool]) -> int:
    """Bytes of a matrix's digits and, where both operands are split, of the rows' residues."""
    planes = moduli * (3 if parts == 2 else 1)
    return math.prod(digits_shape(rows, columns, planes)) + (
        math.prod(plane_shape(rows, k, planes)) if all(split) else 0
    )


def flags_bytes(rows: int, columns: int, parts: int, test: CertificateTest) -> int:
    """Bytes of what a join of one matrix flags (`join.allocate_flags`)."""
    _, strip, block, _ = join_tile(test.mode)
    words = parts * -(-rows // strip) * -(-columns // block)
    return 4 * words + (words * strip * block // 8 if test.mode != RAW else 0)


def magnitudes_bytes(rows: int, columns: int, k: int, parts: int, test: CertificateTest) -> int:
    """Bytes of one matrix's planes of magnitudes."""
    if not certifies_by_magnitudes(test) or parts * k > MOST_MAGNITUDES:
        return 0
    return sum(math.prod(magnitude_shape(vectors, k, parts)) for vectors in (rows, columns))


def taken_bytes(
    rows: int, columns: int, k: int, moduli: int, parts: int, batches: int, test: CertificateTest,
    split: tuple[bool, bool],
) -> int:  # fmt: skip
    """Bytes for products of more moduli where so many matrices' residues and digits were, beside magnitudes of all but
    one.
    """
    beside = (batches - 1) * magnitudes_bytes(rows, columns, k, parts, test)
    return max(0, batches * freed_bytes(rows, columns, k, moduli, parts, split) - beside)


def recompute_bytes(
    rows: int, columns: int, k: int, moduli: int, parts: int, batches: int, test: CertificateTest, device: Device,
    split: tuple[bool, bool],
) -> int:  # fmt: skip
    """Bytes that `recompute` takes for so many matrices, where residues and digits were."""
    if test.mode == RAW:
        return 0
    _, strip, block, _ = join_tile(test.mode)
    words = batches * parts * -(-rows // strip) * -(-columns // block)
    programs, _ = shared_programs(2 * device.programs, words, strip // UNCERTIFIED_ROWS)
    found = programs * block * (32 * UNCERTIFIED_ROWS + 4 * LISTED) + 4 * measured(batches * (rows + columns), k, parts)
    again = parts * k <= MOST_MAGNITUDES
    found += programs * _shared_bytes(strip, block, by_magnitudes=certifies_by_magnitudes(test), again=again)
    if again:
        found += batches * magnitudes_bytes(rows, columns, k, parts, test)
        taken = taken_bytes(rows, columns, k, moduli, parts, batches, test, split)
        panels = panels_of(rows, columns, parts * k, batches, taken, test.precision)
        found += max(space_of(panels, parts * k), words * strip_list_bytes(min(strip, rows)))
    return found


def sum_again_bytes(
    rows: int, columns: int, k: int, moduli: int, parts: int, batches: int, test: CertificateTest, device: Device,
    split: tuple[bool, bool],
) -> int:  # fmt: skip
    """Bytes that `gemm.launches.recompute_sums` takes for so many matrices, in the place of residues and digits."""
    if test.mode == RAW or parts * k > MOST_MAGNITUDES:
        return 0
    programs = sum_programs(rows, columns, parts, batches, device)
    strip, block = SUM_STRIP
    words = batches * parts * -(-rows // strip) * -(-columns // block)
    found = (
        words * (4 + strip * block // 8)
        + programs * (4 * LISTED * SUM_STRIP[1] + 32 * EXPANDED)
        + 4 * measured(batches * (rows + columns), k, parts)
    )
    taken = batches * freed_bytes(rows, columns, k, moduli, parts, split)
    return found + space_of(panels_of(rows, columns, parts * k, batches, taken, test.precision), parts * k)


def sum_programs(rows: int, columns: int, parts: int, batches: int, device: Device) -> int:
    """The number of programs of `gemm.kernels.again.sum_again`. All of them run at once, since they wait for each
    other.
    """
    strip, block = SUM_STRIP
    words = batches * parts * -(-rows // strip) * -(-columns // block)
    return shared_programs(2 * device.programs, words, strip // UNCERTIFIED_ROWS)[0]


def strip_list_bytes(rows: int) -> int:
    """Bytes of the list of what remains at the end, in the place of residues and digits, a strip of so many rows."""
    return 8 * -(-rows // UNCERTIFIED_ROWS) * MANY_UNCERTIFIED


def joining_bytes(rows: int, columns: int, parts: int, batches: int, test: CertificateTest, device: Device) -> int:
    """Bytes that the programs of `join.join_digits` hold, for so many matrices."""
    tile, strip, block, _ = join_tile(test.mode)
    words = batches * parts * -(-rows // strip) * -(-columns // block)
    programs, _ = shared_programs(finish_programs(device, test.mode), words, strip // tile)
    return programs * max(tile * block, FINISHED) // 8


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
    """Bytes of workspace that a matrix of a batch takes for a block of so many rows and columns, but for what is told
    by `held_bytes`. split: whether rows and columns are split, not kept; summed: into gemm's sum.
    """
    planes = moduli * (3 if parts == 2 else 1)
    found = math.prod(digits_shape(rows, columns, planes)) + STATISTICS * 8 * (rows + columns)
    for vectors, needs_split in zip((rows, columns), split, strict=True):
        found += math.prod(plane_shape(vectors, k, planes)) if needs_split else 0
    if summed:
        return found + 4 * parts * rows * -(-columns // 32)
    # Magnitudes take the place of what is freed.
    magnitudes = magnitudes_bytes(rows, columns, k, parts, test) - freed_bytes(rows, columns, k, moduli, parts, split)
    return found + flags_bytes(rows, columns, parts, test) + max(0, magnitudes)


def held_bytes(
    rows: int, columns: int, k: int, moduli: int, parts: int, batches: int, test: CertificateTest, device: Device,
    split: tuple[bool, bool] = (True, True), *, summed: bool = False,
) -> int:  # fmt: skip
    """Bytes of workspace that a join of so many matrices, and what comes after it, take beyond the residues and digits
    whose place that takes. summed: into gemm's sum.
    """
    freed = freed_bytes(rows, columns, k, moduli, parts, split)
    if summed:
        again = sum_again_bytes(rows, columns, k, moduli, parts, batches, test, device, split)
        return max(0, again - batches * freed)
    taken = batches * max(freed, magnitudes_bytes(rows, columns, k, parts, test))
    recomputing = recompute_bytes(rows, columns, k, moduli, parts, batches, test, device, split)
    joining = joining_bytes(rows, columns, parts, batches, test, device)
    return max(0, batches * freed + joining - taken, recomputing - taken)
