"""Split operands: scale rows or columns by powers of two, round to integers, take residues.

The shapes of one operand's split: residues (parts, moduli, rows, k) per left panel, and (parts, moduli, k, columns)
per right block, with one part for real data and three (real, imaginary, their sum) for complex data; packed for the
VNNI kernel they are (parts, moduli, rows, pitch) and (parts, moduli, panels, dwords, 32).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.moduli import (
    ResidueSystem,
    byte_tables,
    norm_fraction_bits,
    operand_bits,
    residue_system,
    shift_thresholds,
)
from prismm.core.outcome import for_kernels, real_parts, unlocked
from prismm.core.scales import Scales
from prismm.cpu.engines.integer import CpuEngine, DirectEngine, PackedEngine
from prismm.cpu.engines.simulated_fp8 import SimulatedFp8Engine
from prismm.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = 5


@functools.cache
def _thresholds(moduli: int) -> NDArray[np.int64]:
    return np.array([min(t, 2**63 - 1) for t in shift_thresholds(moduli)], dtype=np.int64)


@dataclass(frozen=True)
class Splitter:
    """How to split for `moduli` moduli on one engine, for an inner dimension of k (2k terms if complex).

    Attributes:
        moduli: how many.
        engine: the engine that multiplies the residues.
        k: inner dimension.
        is_complex: whether the operands are complex.
        a_priori: whether bounds come from integers alone.
        levels: whether large elements are counted, for certificates by magnitude.
    """

    moduli: int
    engine: CpuEngine
    k: int
    is_complex: bool
    a_priori: bool = False
    levels: bool = False

    @property
    def terms(self) -> int:
        """Terms of the real sum behind each real part of an entry."""
        return 2 * self.k if self.is_complex else self.k

    @property
    def fraction_bits(self) -> int:
        """q of `moduli.norm_fraction_bits`; ArgumentError where the scheme has too few moduli for k."""
        q = norm_fraction_bits(self.moduli, self.terms)
        if q < 1:
            raise ArgumentError(
                f"{self.moduli} moduli hold {operand_bits(self.moduli):.1f} bits, too few for an inner dimension "
                f"of {self.k}; "
                f"pass Residues(moduli={self.moduli + 1}) or more"
            )
        return q

    @property
    def system(self) -> ResidueSystem:
        """The engine's residue number system."""
        if isinstance(self.engine, SimulatedFp8Engine):
            return self.engine.system(self.moduli)
        return residue_system(self.moduli, self.engine.largest_modulus)

    @property
    def products(self) -> int:
        """Products of matrices that the engine makes."""
        if isinstance(self.engine, DirectEngine):
            return 1
        if isinstance(self.engine, SimulatedFp8Engine):
            return self.engine.products(self.system) * self.residue_parts
        return len(self.system.moduli) * self.residue_parts

    @property
    def thresholds(self) -> NDArray[np.int64]:
        """Norm thresholds, those beyond int64 clipped (no norm reaches them)."""
        return _thresholds(self.moduli)

    @property
    def limbs(self) -> int:
        """Limbs of 22 bits that the direct engine cuts an operand into: |A'| <= 2^L, so the top one is at most 2^22."""
        return max(1, math.ceil(operand_bits(self.moduli) / 22))

    @property
    def count_levels(self) -> int:
        """Powers of two below a row's largest element at which elements are counted."""
        return min(LEVELS, self.fraction_bits)

    @property
    def residue_parts(self) -> int:
        """Residue matrices per modulus: 1, or 3 for complex data."""
        return 3 if self.is_complex else 1


def contiguous_parts(x: NDArray[Any], engine: CpuEngine) -> list[NDArray[Any]]:
    """The real parts of a matrix as contiguous float64 (exact for every narrower type); float32 stays where the
    engine's kernels read it.
    """
    return [for_kernels(part, _read_as(part.dtype, engine)) for part in real_parts(x)]


def _with_both(x: NDArray[Any], engine: CpuEngine, *, left: bool) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """`contiguous_parts`, and a matrix that has all elements of both parts in each row, or column: each of these gets
    one norm, and so one scale for both parts. Norms are exact sums, so the elements' order does not count.
    """
    parts = real_parts(x)
    kind = _read_as(parts[0].dtype, engine)
    if len(parts) == 1 or (left and x.flags.c_contiguous and parts[0].dtype == kind):
        found = contiguous_parts(x, engine)
        return found, found[0] if len(parts) == 1 else unlocked(x).view(kind)
    if left:
        found = contiguous_parts(x, engine)
        return found, np.concatenate(found, axis=1)
    both = np.empty((2 * x.shape[0], x.shape[1]), kind)
    rooms = [both[: x.shape[0]], both[x.shape[0] :]]
    for part, room in zip(parts, rooms, strict=True):
        if (copy := for_kernels(part, kind, room)) is not room:
            room[...] = copy
    return rooms, both


def _read_as(real: np.dtype[Any], engine: CpuEngine) -> str:
    return "float32" if real == np.float32 and isinstance(engine, PackedEngine) else "float64"


def split_operand(
    x: NDArray[Any],
    splitter: Splitter,
    out: NDArray[Any],
    *,
    left: bool,
    columns: tuple[int, int] | None = None,
    first: int = 0,
) -> Scales:
    """Split rows of x (m, k) or, if not `left`, columns of x (k, N) into `out`.

    Left: (parts, moduli, m, k). Right: (parts, moduli, k, columns), of which the chosen range of x's columns fills
    those from `first` on. Where they are packed, `first` is the first row on the left, and a multiple of 32 on the
    right. The direct engine's limbs: (1 or 2, m, limbs, k) and (1 or 2, n, limbs, k).
    """
    from prismm.cpu.kernels import scale

    start, stop = columns or (0, x.shape[1])
    plain = x.dtype == _read_as(x.dtype, splitter.engine) and x.flags.c_contiguous
    # Kernels of limbs have no first column to start at.
    plain = plain and not isinstance(splitter.engine, DirectEngine)
    if not left and not plain:
        # Only plain matrices are read in place.
        x, start, stop = x[:, start:stop], 0, stop - start
    parts, both = _with_both(x, splitter.engine, left=left)
    twin = "_single" if parts[0].dtype == np.float32 else ""
    count = x.shape[0] if left else stop - start
    exponent, shift = np.empty((2, count), np.int64)
    counts = np.empty((count, splitter.count_levels if splitter.levels else 0), np.int64)
    q, thresholds = splitter.fraction_bits, splitter.thresholds
    terms = np.empty((4, count))
    if isinstance(splitter.engine, PackedEngine):
        from prismm.cpu.kernels import packed

        tables, modulus = byte_tables(splitter.moduli), splitter.system.modulus
        matrices, kind, residues = (parts, "", out[0]) if len(parts) == 1 else ([both, *parts], "complex_", out)
        kernel = getattr(packed, f"pack_{kind}{'left' if left else 'right'}{twin}")
        place = () if left else (start,)
        numbers = (tables.left, tables.left_offset) if left else (tables.right, tables.right_offset)
        kernel(
            *matrices, *place, thresholds, q, tables.bits, *numbers, modulus, first if left else first // 32,
            splitter.terms, int(splitter.a_priori), residues, exponent, shift, counts, terms,
        )  # fmt: skip
        return Scales(shift, exponent, terms, counts)
    norm2, norm1 = np.empty((2, count), np.int64)
    if left:
        scale.scale_rows(both, thresholds, q, exponent, shift, norm2, norm1, counts)
    else:
        scale.scale_columns(both, start, thresholds, q, exponent, shift, norm2, norm1, counts)
    residual2, tiny = np.zeros(count), np.zeros(count, np.uint8)
    for index, part in enumerate(parts):
        split_part(part, shift, splitter, out[index], residual2, tiny, left, start, first)
    # Three real products make a complex one, so the sum of both parts is an operand as well. The direct engine takes
    # the parts as one longer sum instead.
    if len(parts) == 2 and not isinstance(splitter.engine, DirectEngine):
        add_parts(out, splitter)
    # Last, as the residuals are measured by the split itself.
    scale.bound_terms(exponent, shift, q, norm2, norm1, residual2, tiny, splitter.terms, int(splitter.a_priori), terms)
    return Scales(shift, exponent, terms, counts)


def add_parts(out: NDArray[Any], splitter: Splitter) -> None:
    """out[2] = out[0] + out[1]: the residues of both parts' sum."""
    from prismm.cpu.kernels import rounding

    modulus = splitter.system.modulus
    if out.dtype == np.int8:
        rounding.add_residues_int8(out[0], out[1], modulus, out[2])
    else:
        rounding.add_residues_float64(out[0], out[1], modulus, out[2])


def split_part(
    part: NDArray[Any],
    shift: NDArray[np.int64],
    splitter: Splitter,
    out: NDArray[Any],
    measured: NDArray[np.float64],
    flags: NDArray[np.uint8],
    left: bool,
    start: int,
    first: int,
) -> None:
    """Split one real part of an operand into `out`, as `split_operand` does; Σδ² is added to `measured`."""
    if isinstance(splitter.engine, DirectEngine):
        from prismm.cpu.kernels.direct import limb_columns, limb_rows

        (limb_rows if left else limb_columns)(part, shift, splitter.limbs, out, measured, flags)
        return
    system = splitter.system
    from prismm.cpu.kernels import split as kernels

    kernel = getattr(kernels, f"split_{'rows' if left else 'columns'}_{splitter.engine.dtype}")
    constants = (system.left if left else system.right, system.modulus, system.reciprocal, system.bias)
    if left:
        kernel(part, shift, system.part_bits, *constants, out, measured, flags)
    else:
        kernel(part, start, shift, system.part_bits, *constants, first, out, measured, flags)
