"""Where the entries of A, B, C and D stand: in the registers of a warp, or in shared memory.

The maps are those of the PTX ISA, sections "Matrix fragments for mma.m8n8k4" to "… mma.m16n8k32" (A, B, C and D of
``mma``), "Register fragments for wgmma.mma_async" (D), and "Shared memory matrix layout" and "Matrix descriptor format"
(A and B of ``wgmma``). With g = lane // 4 and t = lane % 4 all of the first kind are one rule: a register holds e
elements, consecutive along k, of row g (odd registers of A: row g + 8); the next pair of registers stands 4e further
along k.
"""

from __future__ import annotations

from dataclasses import dataclass

from prismm.numerics.hardware.instructions import Instruction

__all__ = ["LEADING_BYTES", "STRIDE_BYTES", "Fragment", "a_fragment", "b_fragment", "d_fragment", "shared_offset"]

CORE_ROWS, CORE_BYTES = 8, 16
"""A core matrix is 8 rows of 16 bytes, in 128 consecutive bytes."""

LEADING_BYTES = CORE_ROWS * CORE_BYTES
"""Distance of the two core matrices that lie beside each other along k."""

STRIDE_BYTES = 2 * LEADING_BYTES
"""Distance of the core matrices of the next 8 rows: 32 bytes of k are two core matrices."""


@dataclass(frozen=True)
class Fragment:
    """A matrix spread over the registers of a warp or a warpgroup.

    Args:
        registers: registers per thread.
        per_register: elements in a register, the first in the lowest bits.
        register_bits: 32 or 64.
        places: for each thread, the (row, column) of its elements: those of register 0, then of register 1, and on.
    """

    registers: int
    per_register: int
    register_bits: int
    places: tuple[tuple[tuple[int, int], ...], ...]


def _registers(bits: int) -> tuple[int, int]:
    """Bits of a register that holds elements of this width, and how many it holds."""
    return (64, 1) if bits == 64 else (32, 32 // bits)


def a_fragment(instruction: Instruction) -> Fragment:
    """A of an ``mma``: places are (row, k).

    >>> from prismm.numerics.hardware.instructions import instruction_named
    >>> a_fragment(instruction_named("mma.fp16.fp32")).places[5]
    ((1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11))
    """
    wide, each = _registers(instruction.input_bits)
    halves = instruction.m // 8
    registers = halves * instruction.k // (4 * each)
    places = tuple(
        tuple(
            (lane // 4 + 8 * (register % halves), each * (lane % 4) + i + 4 * each * (register // halves))
            for register in range(registers)
            for i in range(each)
        )
        for lane in range(32)
    )
    return Fragment(registers, each, wide, places)


def b_fragment(instruction: Instruction) -> Fragment:
    """B of an ``mma``: places are (k, column).

    >>> from prismm.numerics.hardware.instructions import instruction_named
    >>> b_fragment(instruction_named("mma.fp16.fp32")).places[5]
    ((2, 1), (3, 1), (10, 1), (11, 1))
    """
    wide, each = _registers(instruction.input_bits)
    registers = instruction.k // (4 * each)
    places = tuple(
        tuple(
            (each * (lane % 4) + i + 4 * each * register, lane // 4)
            for register in range(registers)
            for i in range(each)
        )
        for lane in range(32)
    )
    return Fragment(registers, each, wide, places)


def d_fragment(instruction: Instruction) -> Fragment:
    """C and D: places are (row, column); of ``wgmma``, warp w holds rows 16w to 16w + 15.

    >>> from prismm.numerics.hardware.instructions import instruction_named
    >>> d_fragment(instruction_named("wgmma.fp16.fp32")).places[37]
    ((17, 2), (17, 3), (25, 2), (25, 3))
    """
    wide, each = _registers(instruction.output_bits)
    elements = instruction.m * instruction.n // instruction.threads
    places = tuple(
        tuple(
            (16 * (thread // 32) + 8 * (i // 2) + thread % 32 // 4, 2 * (thread % 4) + i % 2) for i in range(elements)
        )
        for thread in range(instruction.threads)
    )
    return Fragment(elements // each, each, wide, places)


def shared_offset(row: int, k: int, element_bytes: int) -> int:
    """Byte at which an element of A (or of B transposed: row is its column) stands for ``wgmma``.

    K-major, without swizzle, 32 bytes of k: core matrix (row // 8, byte // 16) begins at STRIDE_BYTES and LEADING_BYTES
    times these.

    >>> shared_offset(9, 5, 4)
    404
    """
    byte = k * element_bytes
    return (
        row // CORE_ROWS * STRIDE_BYTES
        + byte // CORE_BYTES * LEADING_BYTES
        + row % CORE_ROWS * CORE_BYTES
        + byte % CORE_BYTES
    )
