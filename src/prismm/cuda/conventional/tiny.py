"""Batches of products of tiny matrices in one kernel: its launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.accuracy import MAGNITUDE, ROUNDING

if TYPE_CHECKING:
    from prismm.cuda.launch.program import Place, Program
    from prismm.cuda.residues.launches import Device, Result, Tables, Test, Vectors

__all__ = ["MOST", "MOST_NATIVE", "multiply_tiny", "serves"]

MOST, MOST_NATIVE = 32, 16
"""Real numbers of a row, of a column, and terms of an entry, at most; and of conventional products, which matrix
instructions make faster from there on.
"""
ENTRIES, ELEMENTS, EACH = 512, 2048, 256
"""Entries of a program, and elements of its operands, at most where it takes several products; entries of a warp; as
measured on an H100.
"""


def serves(m: int, n: int, k: int, parts: int, most: int = MOST) -> bool:
    """Whether matrices (m, k) and (k, n) of numbers of so many parts are tiny."""
    return min(m, n, k) > 0 and max(m, parts * n, parts * k) <= most


def _power(x: int) -> int:
    """The least power of two that is no less, and no less than 2."""
    return max(2, 1 << (x - 1).bit_length())


def matrices_of(rows: int, columns: int, terms: int) -> int:
    """How many pairs of matrices a program takes.

    >>> matrices_of(4, 4, 4), matrices_of(16, 16, 16), matrices_of(32, 32, 32), matrices_of(2, 2, 32)
    (32, 2, 1, 16)
    """
    most = max(1, min(ENTRIES // (rows * columns), ELEMENTS // (terms * (rows + columns))))
    return 1 << (most.bit_length() - 1)


def multiply_tiny(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: Place, test: Test | None, table: Tables | None,
    device: Device,
) -> None:  # fmt: skip
    """Queue AB, contiguous. test: what is asked of an entry, None for a conventional product; table: of the residues
    that the values of MAGNITUDE are those of. counts: as for `cuda.finish_native`.
    """
    from prismm.cuda.conventional.kernels import tiny
    from prismm.cuda.residues.launches import join_constants

    parts, single = a.parts, out.place.reals().dtype.itemsize == 4
    asked = None if test is None else test.mode
    mode = {None: tiny.NATIVE, ROUNDING: tiny.ROUNDED, MAGNITUDE: tiny.SCALED}[asked].value
    rows, columns, terms = _power(out.m), _power(parts * out.n), _power(parts * a.terms)
    matrices = matrices_of(rows, columns, terms)
    warps = max(2, matrices * rows * columns // EACH)
    thresholds = constants = counts
    q = bits = 0
    if mode == tiny.SCALED.value:
        assert table is not None and test is not None
        thresholds, bits, q = table.thresholds, table.limit_bits, table.fraction_bits(test.terms)  # type: ignore[assignment]
        constants = join_constants(table.moduli, test, table.left.device)[0]  # type: ignore[assignment]
    fused = single or mode == tiny.NATIVE.value
    where, together = [], []
    for x in (a, b):
        steps = tuple(parts * step for step in (x.steps[0] if x.batch > 1 else 0, *x.steps[1:]))
        where.append((x.place.reals(), *steps))
        along = 16 // x.place.reals().dtype.itemsize
        apart = steps[0], steps[1] if x.steps[2] == 1 else steps[2]
        together.append(1 if parts > 1 or any(step % along for step in apart) else along)
    program.launch(
        tiny.multiply_tiny, (-(-out.batch // matrices),), *where[0], *where[1], out.place.reals(), counts, thresholds,
        constants, out.batch, out.m, out.n, a.terms, q, bits,
        MODE=mode, PRECISION=24 if single else 53, FUSED=fused, PARTS=parts, MATRICES=matrices, ROWS=rows,
        COLUMNS=columns, TERMS=terms, ACROSS_A=2 if a.steps[2] == 1 else 1, ACROSS_B=2 if b.steps[1] == 1 else 1,
        WHOLE=(rows, columns, terms) == (out.m, parts * out.n, parts * a.terms), TOGETHER_A=together[0],
        TOGETHER_B=together[1], WARPS=warps, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
