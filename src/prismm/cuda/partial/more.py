"""Single uncertified entries of a product of pieces on a GPU: certified by magnitudes, or rounded by a product of more
moduli. Tensors in and out, as of `cuda.partial.steps`.

A' = RN(2^s·a) has as many bits as the moduli hold for sums of so many terms, half of them on each side. The digits of
all pieces, and whether a vector lost bits on any, decide: |C' - 2^(s+t)·AB| <= ½‖B'‖₁ + ½‖A'‖₁ + K/4, of the norms of
sides that lost bits alone (`residues.kernels.many_join`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.cuda.launch.arguments import ADDEND, LEFT, OUT, RIGHT, A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.operands import result_of, vectors_of
from prismm.cuda.partial import steps
from prismm.cuda.partial.steps import LARGEST, Split, Work, alignments_of, view_of
from prismm.cuda.residues.product import multiply_anywhere
from prismm.cuda.residues.recompute import SYSTEMS, ManyTables, bits_of, many_tables
from prismm.cuda.residues.split import SplitVectors
from prismm.cuda.residues.tables import join_constants
from prismm.cuda.views import Result, Vectors, _ceil

if TYPE_CHECKING:
    from typing import Any

    import torch

VECTORS, TERMS, BLOCK = 32, 64, 512
"""Vectors and elements that a program splits, and entries that it joins."""

_WARPS = 8


@dataclass(frozen=True)
class More:
    """The most moduli that there are, for one real part of a product.

    Attributes:
        work: of the product.
        part: 0 for real parts of its entries, 1 for imaginary ones.
    """

    work: Work
    part: int

    @property
    def moduli(self) -> int:
        """How many."""
        return SYSTEMS[self.work.test.precision][-1]

    @property
    def bits(self) -> tuple[int, int]:
        """Of rows, and of columns."""
        left, right, _ = bits_of(self.moduli, self.work.terms)
        return left, right

    @property
    def tables(self) -> ManyTables:
        """On the work's GPU."""
        return many_tables(self.work.test.precision, self.work.place)


def split(x: torch.Tensor, statistics: torch.Tensor, more: More, *, left: bool) -> tuple[Split, torch.Tensor]:
    """Planes of some vectors, and whether these lost bits, (vectors,) int32, which is combined by maximum.

    x: (k, vectors), its vectors neighbours. statistics: of all pieces.
    """
    import torch

    lost = torch.zeros(x.shape[1], dtype=torch.int32, device=x.device)
    if not x.shape[0]:
        x = torch.zeros(1, x.shape[1], dtype=x.dtype, device=x.device)
    known = statistics.contiguous()
    vectors = vectors_of(x[None], A, columns=True)
    program, found = _splitting(vectors, alignments_of(x, known), view_of(OUT, known[None]), more, left)
    return Split(found, steps.run(program, x, known, lost.view(torch.uint8))), lost


@functools.lru_cache(maxsize=64)
def _splitting(
    x: Vectors, alignments: tuple[int, int, int], known: BufferView, more: More, left: bool
) -> tuple[Program, SplitVectors]:  # fmt: skip
    import torch

    from prismm.cuda.partial.kernels.more import split_more

    program, parts = Program(alignments), more.work.parts
    terms, rows, pitch = parts * x.terms, _ceil(x.vectors, 2 * VECTORS), _ceil(parts * x.terms, 2 * TERMS)
    planes = program.allocate(torch.int8, 1, more.moduli, rows, pitch)
    program.launch(
        split_more, (rows // VECTORS * (pitch // TERMS),), x.buffer.reals(), parts * x.strides[2], known,
        more.tables.powers[-2 if left else -1], more.tables.base, planes, BufferView(LEFT, 0, torch.int32), x.vectors,
        terms, more.bits[not left], more.moduli, rows * pitch, pitch, PARTS=parts, PART=more.part, RIGHT=not left,
        VECTORS=VECTORS, DEPTH=TERMS, NVIDIA=more.work.device.nvidia, num_warps=_WARPS,
    )  # fmt: skip
    return program, SplitVectors(planes, known, 1, x.vectors, terms)


@functools.lru_cache(maxsize=64)
def _multiplying(left: SplitVectors, right: SplitVectors, more: More) -> tuple[Program, BufferView]:
    program = Program()
    left, right = steps.behind(left, LEFT), steps.behind(right, RIGHT)
    return program, multiply_anywhere(program, left, right, more.tables.reduction)


def multiply(left: Split, right: Split, more: More) -> torch.Tensor:
    """(1, moduli, m, n) uint8: the digits of a partial product, in rows of whole words. Combined by `add`."""
    program, place = _multiplying(left.vectors, right.vectors, more)
    memory = steps.run(program, left.memory, left.memory, left.memory, right.memory)
    return steps.digits_in(memory, place, 1, left.vectors.vectors, right.vectors.vectors)


def empty_digits(m: int, n: int, more: More) -> torch.Tensor:
    """(1, moduli, m, n): memory for digits, laid out as those of `multiply`."""
    return steps.room_for_digits(1, more.moduli, m, n, more.work.place)


def add(found: torch.Tensor, more: More, into: torch.Tensor | None = None) -> torch.Tensor:
    """The digits of all pieces (pieces, 1, moduli, m, n), contiguous, added modulo each modulus."""
    return steps.add_modulo(found, more.tables.reduction, into)


def join(
    digits: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, lost: torch.Tensor, out: torch.Tensor,
    pending: torch.Tensor, more: More,
) -> None:  # fmt: skip
    """Store pending entries of a real part whose rounding the combined digits prove; these are pending no more.

    Args:
        digits: of `empty_digits`.
        rows, columns: statistics (10, m) and (10, n) of all pieces, contiguous.
        lost: whether rows, and then columns, lost bits, (m + n,) int32.
        out: (m, n), contiguous, of the result's type.
        pending: (m, n) uint8, contiguous: 1 where an entry is wanted, and afterwards where one is left.
        more: of the real part.
    """

    shape = digits.shape[2], digits.stride(2)
    program = _joining(shape, result_of(out[None]), alignments_of(digits, out), more)
    steps.run(program, digits, out, *steps.as_bytes(rows, columns), lost, b=pending)


@functools.lru_cache(maxsize=64)
def _joining(shape: tuple[int, int], out: Result, alignments: tuple[int, int, int], more: More) -> Program:
    import torch

    from prismm.cuda.partial.kernels.more import join_more

    program, work, (left_bits, right_bits) = Program(alignments), more.work, more.bits
    rows, pitch = shape
    _, _, below = bits_of(more.moduli, work.terms)
    program.launch(
        join_more, (out.m * -(-out.n // BLOCK),), BufferView(A, 0, torch.uint8), *_strided(out, work.parts),
        BufferView(B, 0, torch.uint8), BufferView(LEFT, 0, torch.int64), BufferView(RIGHT, 0, torch.int64),
        BufferView(ADDEND, 0, torch.int32), more.tables.systems[-1], more.tables.nothing_there, out.m, out.n,
        work.terms, work.table.fraction_bits(work.terms), more.moduli, left_bits, right_bits, below, rows * pitch,
        pitch, PRECISION=work.test.precision, PARTS=work.parts, PART=more.part, BLOCK=BLOCK, num_warps=_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip
    return program


def _strided(out: Result, parts: int) -> tuple[BufferView, int, int]:
    return out.buffer.reals(), parts * out.strides[1], parts * out.strides[2]


def magnitudes(left: torch.Tensor, right: torch.Tensor, both: tuple[torch.Tensor, torch.Tensor], more: More) -> Any:
    """(2, m, n) int32: sums of products of 7-bit magnitudes floor(|x|·2^(7-e)) of a piece, and of ones where elements
    are not zero. Combined by sums, which stay below 2^31 for 2^17 terms.

    left, right: (k, m) and (k, n); both: their statistics, of all pieces.
    """
    import torch

    planes = []
    for x, known, turned in ((left, both[0], False), (right, both[1], more.part == 1)):
        # frexp gives |x| < 2^e, as kernels have it of the largest; 0 for zeros.
        power = 7 - torch.frexp(known[LARGEST].view(torch.float64))[1].to(torch.int64)
        real = torch.view_as_real(x).movedim(-1, 0) if x.is_complex() else x[None]
        real = real.flip(0) if turned else real
        size = real.abs().double().reshape(len(real) * x.shape[0], x.shape[1])
        # By two factors, as one may be beyond float64.
        scaled = size * _power_of_two(power >> 1) * _power_of_two(power - (power >> 1))
        planes.append((scaled.to(torch.int8), (size != 0).to(torch.int8)))
    return torch.stack([_product_of_bytes(x, y) for x, y in zip(*planes, strict=True)])


def _power_of_two(e: torch.Tensor) -> torch.Tensor:
    """2^e for -1022 <= e <= 1023; torch's ldexp takes powers in float32."""
    import torch

    return ((e + 1023) << 52).view(torch.float64)


def _product_of_bytes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """xᵀ·y in int32, of (k, m) and (k, n) int8: sizes that torch's product takes, filled up with zeros."""
    import torch

    (k, m), n = x.shape, y.shape[1]
    rows, inner, columns = max(32, _ceil(m, 8)), max(8, _ceil(k, 8)), max(8, _ceil(n, 8))
    left, right = x.new_zeros(rows, inner), y.new_zeros(columns, inner)
    left[:m, :k], right[:n, :k] = x.T, y.T
    return torch._int_mm(left, right.T)[:m, :n]


def certify(
    sums: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, out: torch.Tensor, pending: torch.Tensor, more: More
) -> None:  # fmt: skip
    """Entries whose value the sums of all pieces (2, m, n) certify are pending no more; the rest: as of `join`."""

    program = _certifying(result_of(out[None]), alignments_of(sums, out), more)
    # A copy: a kernel's arguments are multiples of 16 bytes.
    steps.run(program, sums[0], out, *steps.as_bytes(rows, columns), pending, b=sums[1].clone())


@functools.lru_cache(maxsize=64)
def _certifying(out: Result, alignments: tuple[int, int, int], more: More) -> Program:
    import torch

    from prismm.cuda.partial.kernels.more import certify_sums

    program, work = Program(alignments), more.work
    constants, _ = join_constants(work.moduli, work.test, work.place)
    program.launch(
        certify_sums, (out.m * -(-out.n // BLOCK),), BufferView(A, 0, torch.int32), BufferView(B, 0, torch.int32),
        *_strided(out, work.parts), BufferView(ADDEND, 0, torch.uint8), BufferView(LEFT, 0, torch.int64),
        BufferView(RIGHT, 0, torch.int64), constants, out.m, out.n, work.terms, work.table.fraction_bits(work.terms),
        PRECISION=work.test.precision, PART=more.part, BLOCK=BLOCK, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return program
