"""Batches of products of tiny matrices in one kernel: its launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.core.accuracy import MAGNITUDE, ROUNDING

if TYPE_CHECKING:
    from prismm.core.problem import Problem
    from prismm.cuda.costs.table import Rates
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.residues.tables import CertificateTest, Tables
    from prismm.cuda.views import Result, Vectors

__all__ = [
    "MOST",
    "MOST_NATIVE",
    "is_conventional",
    "multiply_tiny",
    "of_residues",
    "serves",
    "serves_batch",
    "tiny_seconds",
]

MOST, MOST_NATIVE = 32, 16
"""Real numbers of a row, of a column, and terms of an entry, at most; and of conventional products, which matrix
instructions make faster from there on.
"""
ENTRIES, ELEMENTS, EACH = 512, 2048, 256
"""Entries of a program, and elements of its operands, at most where it takes several products; entries of a warp; as
measured on an H100.
"""

_DOUBLED = 11
"""Operations that a term takes in twice float64's precision."""


def serves(m: int, n: int, k: int, parts: int, most: int = MOST) -> bool:
    """Whether matrices (m, k) and (k, n) of numbers of so many parts are tiny."""
    return min(m, n, k) > 0 and max(m, parts * n, parts * k) <= most


def serves_batch(problem: Problem, device: Device) -> bool:
    """Whether a problem is a batch of tiny products."""
    several = problem.count > 1 and device.nvidia and problem.reads_operands and not problem.summed
    return several and serves(problem.m, problem.n, problem.k, problem.parts)


def of_residues(problem: Problem) -> bool:
    """Whether the values of a batch of tiny products are those of residues."""
    return problem.rounded or (problem.reproducible and problem.goal in ("native", "fast"))


def is_conventional(problem: Problem) -> bool:
    """Whether a batch of tiny products may be made of sums in float64."""
    plain = problem.one_type and not problem.reproducible and problem.goal in ("native", "fast")
    return plain and serves(problem.m, problem.n, problem.k, problem.parts, MOST_NATIVE)


def tiny_seconds(problem: Problem, rates: Rates) -> float:
    """Seconds of a batch of tiny products: what is read and written, or its operations, which reach half of the rate of
    the GPU's own products, two of them in one.
    """
    entries = problem.count * problem.m * problem.n * problem.parts
    operations = entries * problem.terms * (_DOUBLED if of_residues(problem) else 1)
    moved = (problem.operand_bytes + problem.result_bytes) / rates.memory
    return rates.launch + max(moved, 4.0 * operations / rates.native(53))


def _power(x: int) -> int:
    """The least power of two that is no less, and no less than 2."""
    # At least 2, as terms are added two at a time (`tiny.UNROLLED`).
    return max(2, 1 << (x - 1).bit_length())


def matrices_of(rows: int, columns: int, terms: int) -> int:
    """How many pairs of matrices a program takes.

    >>> matrices_of(4, 4, 4), matrices_of(16, 16, 16), matrices_of(32, 32, 32), matrices_of(2, 2, 32)
    (32, 2, 1, 16)
    """
    most = max(1, min(ENTRIES // (rows * columns), ELEMENTS // (terms * (rows + columns))))
    return 1 << (most.bit_length() - 1)


def multiply_tiny(
    program: Program,
    out: Result,
    a: Vectors,
    b: Vectors,
    counts: BufferView,
    test: CertificateTest | None,
    table: Tables | None,
    device: Device,
) -> None:
    """Queue AB, contiguous. test: what is asked of an entry, None for a conventional product; table: of the residues
    that the values of MAGNITUDE are those of. counts: as for `native.cublas.finish_native`.
    """
    from prismm.cuda.native.kernels import tiny
    from prismm.cuda.residues.tables import join_constants

    parts, single = a.parts, out.buffer.reals().dtype.itemsize == 4
    asked = None if test is None else test.mode
    mode = {None: tiny.NATIVE, ROUNDING: tiny.ROUNDED, MAGNITUDE: tiny.SCALED}[asked].value
    rows, columns, terms = _power(out.m), _power(parts * out.n), _power(parts * a.terms)
    matrices = matrices_of(rows, columns, terms)
    warps = max(2, matrices * rows * columns // EACH)
    # Modes that scale nothing read neither, so any pointer will do.
    thresholds = constants = counts
    q = bits = 0
    if mode == tiny.SCALED.value:
        assert table is not None and test is not None
        thresholds, bits, q = table.thresholds, table.limit_bits, table.fraction_bits(test.terms)  # type: ignore[assignment]
        constants = join_constants(table.moduli, test, table.left.device)[0]  # type: ignore[assignment]
    # In float32 sums in float64 decide nearly all entries; in float64 only twice the precision decides roundings.
    fused = single or mode == tiny.NATIVE.value
    where, together = [], []
    for x in (a, b):
        steps = tuple(parts * step for step in x.steps)
        where.append((x.buffer.reals(), *steps))
        along = 16 // x.buffer.reals().dtype.itemsize
        apart = steps[0], steps[1] if x.strides[2] == 1 else steps[2]
        together.append(1 if parts > 1 or any(step % along for step in apart) else along)
    program.launch(
        tiny.multiply_tiny, (-(-out.batch // matrices),), *where[0], *where[1], out.buffer.reals(), counts, thresholds,
        constants, out.batch, out.m, out.n, a.terms, q, bits,
        MODE=mode, PRECISION=24 if single else 53, FUSED=fused, PARTS=parts, MATRICES=matrices, ROWS=rows,
        COLUMNS=columns, TERMS=terms, ACROSS_A=2 if a.strides[2] == 1 else 1, ACROSS_B=2 if b.strides[1] == 1 else 1,
        WHOLE=(rows, columns, terms) == (out.m, parts * out.n, parts * a.terms), TOGETHER_A=together[0],
        TOGETHER_B=together[1], WARPS=warps, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
