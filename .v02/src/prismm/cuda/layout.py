"""Complex operands as real ones of twice the inner dimension, for schemes that cut real numbers: what is launched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.cuda.views import Vectors

if TYPE_CHECKING:
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program

Three = tuple[int, int, int]


def lay_out(
    program: Program, reals: BufferView, shape: Three, strides: Three, part: int, *, left: bool
) -> tuple[BufferView, Three]:
    """In workspace the vectors of a real operand for the real (part 0) or imaginary (1) part of a product, and
    their steps: (matrices, vectors, elements). shape, steps: the same of the complex ones, steps in real numbers.
    """
    from prismm.cuda.kernels import layout

    batch, vectors, terms = shape
    across = strides[1] == 2 and strides[2] != 2
    extents = (batch, 2 * terms, vectors) if across else (batch, vectors, 2 * terms)
    to = program.allocate(reals.dtype, *extents)
    found = (math.prod(extents[1:]), 1, vectors) if across else (math.prod(extents[1:]), 2 * terms, 1)
    some, elements = (layout.TILE, 1) if across else (1, layout.TILE)
    # (X + iY)·(Z + iW): the real part is [X, -Y] times [Z, W], the imaginary one [X, Y] times [W, Z].
    program.launch(
        layout.lay_out, (-(-2 * terms // elements) * -(-vectors // some), batch), reals, *strides, to, *found, vectors,
        terms, SWAPPED=not left and part == 1, NEGATED=left and part == 0, VECTORS=some, ELEMENTS=elements,
        num_warps=4,
    )  # fmt: skip
    return to, found


def real_vectors(program: Program, x: Vectors, part: int, *, left: bool) -> Vectors:
    """Vectors as they are if real, else in workspace those of twice the length whose product is the real (part 0)
    or imaginary (1) part of the complex one.
    """
    if x.parts == 1:
        return x
    doubled = 2 * x.strides[0], 2 * x.strides[1], 2 * x.strides[2]
    to, strides = lay_out(program, x.buffer.reals(), (x.batch, x.vectors, x.terms), doubled, part, left=left)
    return Vectors(to, x.batch, x.vectors, 2 * x.terms, strides)


def put_part(program: Program, source: BufferView, to: BufferView, strides: Three, shape: Three) -> None:
    """A part of a result, contiguous (batch, m, n) in workspace, to where it belongs."""
    from prismm.cuda.kernels import layout

    batch, m, n = shape
    # One extent, as the others of a grid end at 65535.
    program.launch(
        layout.put_part, (-(-n // layout.TILE) * m * batch,), source, to, *strides, m, n, BLOCK=layout.TILE, num_warps=4
    )
