"""Slices with exponents of their own on a GPU, made and multiplied: `slice_launches` where nothing can be grouped.

Two to four launches slice both operands (vectors across contiguous elements are copied first); a slice of the left one
meets all of the right one's that are kept in one launch of `slice_product`, or, in a batch, each of them. Every pair
leaves an integer an entry; `slice_launches` joins them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.accuracy import MAGNITUDE
from prismm.cuda.device import Device
from prismm.cuda.residues.split import STATISTICS
from prismm.cuda.slices.config import Cut, LaunchConfig
from prismm.cuda.slices.launches import SlicedVectors, Sums
from prismm.cuda.views import Vectors
from prismm.errors import EngineError

if TYPE_CHECKING:
    from prismm.cuda.launch.program import Program

_BLOCK = 1024, 4
"""Elements that a program slices at a time, and its warps."""
_FRACTION_BITS = 20


def slice_vectors(
    program: Program, x: Vectors, config: LaunchConfig, cut: Cut, device: Device, *, left: bool
) -> SlicedVectors:
    """Slice vectors of any strides; both sides alike."""
    import torch

    from prismm.cuda.slices.kernels import adaptive as slice_adaptive

    slices, digits, pitch = config.slices, config.digits, cut.blocks * cut.width
    statistics = program.allocate(torch.int64, x.batch, STATISTICS, x.vectors)
    cuts = program.allocate(torch.int64, x.batch, slice_adaptive.CUTS.value * slices, x.vectors)
    to = program.allocate(digits.dtype, slices * x.batch, -(-x.vectors // 64) * 64, pitch)
    found = SlicedVectors(to, statistics, cuts, x.batch, x.vectors)
    if x.batch * x.vectors == 0:
        return found
    program.count_split(x.elements, left=left)
    # The kernel passes over a vector d + 2 times, and across a row each pass would read whole sectors for one element.
    if x.strides[2] != 1 and x.terms > 1:
        x = _straight(program, x)
    block, warps = _BLOCK
    program.launch(
        slice_adaptive.slice_adaptively, (x.vectors, x.batch), x.buffer, x.strides[1], x.strides[0], statistics, cuts,
        to, x.vectors, x.terms, pitch, found.plane, _FRACTION_BITS, x.batch, SLICES=slices, BITS=digits.bits,
        TRUNCATED=digits.truncated, CLIPPED=digits.kind == "int8" and not digits.truncated, BLOCK=block,
        LEVELS=config.test.mode == MAGNITUDE, NVIDIA=device.nvidia, EVEN=x.even(1), num_warps=warps,
        enable_fp_fusion=False,
    )  # fmt: skip
    return found


def _straight(program: Program, x: Vectors) -> Vectors:
    """The vectors in workspace, their elements neighbours."""
    from prismm.cuda.kernels import layout

    to = program.allocate(x.buffer.dtype, x.batch, x.vectors, x.terms)
    side = layout.SIDE
    program.launch(
        layout.straighten, (-(-x.terms // side) * -(-x.vectors // side), x.batch), x.buffer, *x.strides, to, x.vectors,
        x.terms, SIDE=side, num_warps=4,
    )  # fmt: skip
    return Vectors(to, x.batch, x.vectors, x.terms, (x.vectors * x.terms, x.terms, 1))


def multiply_slices(
    program: Program, left: SlicedVectors, right: SlicedVectors, config: LaunchConfig, cut: Cut, device: Device
) -> Sums:
    """The products of all pairs, each for itself: first of the first slices, p after p.

    Raises:
        EngineError: for slices of FP64 where Triton multiplies none.
    """
    from prismm.cuda.slices.kernels import product

    if config.digits.size == 8 and not device.float64_dot:
        raise EngineError(f"{device.name}: Triton multiplies no float64 matrices there; pass Slices('int8', ...)")
    batch, m, n = max(left.batch, right.batch), left.vectors, right.vectors
    pitch, units = left.digits.shape[2], batch * cut.blocks
    top = program.allocate(config.digits.top, config.pairs * units, m, -(-n // 64) * 64)
    sums = Sums(top, top, cut.blocks)
    rows, columns, depth = product.TILES[config.digits.size]
    # The cap keeps SUM within 32 bits where FP64 units add even more terms of narrow digits exactly.
    longest = min(config.digits.longest_sum, 1 << 20)

    def multiply(p: int, q: int, pair: int, matrices: int, strides: tuple[int, int]) -> None:
        """Slices p and q, and as many matrices after them, of each side at these steps; from this pair on."""
        to = top.at(pair * units * sums.plane, (), ())
        some = (x.digits.at(s * x.batch * x.plane, (), ()) for x, s in ((left, p), (right, q)))
        program.launch(
            product.slice_product, (-(-m // rows) * -(-n // columns), matrices * cut.blocks), *some, to, to, m, n,
            cut.width, pitch, left.plane, right.plane, *strides, sums.row_pitch, sums.plane, cut.blocks, SLICES=1,
            # One slice and one group: nothing is carried or shifted, and `low` is never written.
            GROUPS=1, BITS=config.digits.bits, SUM=max(longest // depth, 1) * depth, ROWS=rows, COLUMNS=columns,
            DEPTH=depth, GROUP=product.GROUP, **product.launch(config.digits.size, device.sm90),
        )  # fmt: skip

    pair = 0
    for p in range(config.slices):
        count = min(config.slices, config.groups - p)
        if batch == 1:
            # The right operand's slices lie like matrices of a batch, one step apart, so one launch serves all q.
            multiply(p, 0, pair, count, (0, 1))
        else:
            for q in range(count):
                # Here that step goes from matrix to matrix, so each pair of slices takes a launch.
                multiply(p, q, pair + q, batch, (int(left.batch == batch), int(right.batch == batch)))
        pair += count
    return sums
