"""The steps of a partial product on a GPU: tensors in and out, queued on the current stream; nothing waits.

Vectors of both operands lie across contiguous rows, (k, vectors): the columns of B as they are, the rows of A turned.
Statistics are (10, vectors) int64 as of `cuda.kernels.fp64`. CPU tensors go through Triton's interpreter.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prismm.core.accuracy import MAGNITUDE, ROUNDING
from prismm.cuda.device import Device
from prismm.cuda.launch.arguments import LEFT, OUT, RIGHT, A, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.operands import result_of, vectors_of
from prismm.cuda.residues.join import allocate_flags, join_digits, join_ordinary, join_tile
from prismm.cuda.residues.product import digits_shape, multiply_planes
from prismm.cuda.residues.split import SplitVectors, measure_columns, plane_shape, split_measured
from prismm.cuda.residues.tables import CertificateTest, Tables, tables
from prismm.cuda.views import Vectors

if TYPE_CHECKING:
    import torch

    from prismm.cuda.views import Result

LARGEST, NORM2, NORM1, RESIDUAL, SHIFT, COUNTS = range(6)
"""Rows of statistics, as in `cuda.kernels.fp64`; counts are the last ones."""

TILE = 8, 1024, 4
"""Rows, columns and warps of a program that adds digits."""


@dataclass(frozen=True)
class Work:
    """What the steps of a product depend on besides its operands; the same on all of its GPUs.

    Attributes:
        moduli: of the scheme.
        terms: K of the whole product, of real sums.
        parts: real numbers of an element, 2 for complex ones.
        test: what is asked of an entry; of the whole product.
        device: how kernels are built for this GPU.
        place: this GPU, as torch names it.
    """

    moduli: int
    terms: int
    parts: int
    test: CertificateTest
    device: Device
    place: torch.device

    @property
    def table(self) -> Tables:
        """Of the moduli."""
        return tables(self.moduli, self.place)

    @property
    def groups(self) -> int:
        """Planes of a modulus: of a complex product those of real parts, imaginary parts and their sums."""
        return 3 if self.parts == 2 else 1

    @property
    def levels(self) -> bool:
        """Whether large elements are counted."""
        return self.test.mode == MAGNITUDE

    @property
    def measure(self) -> bool:
        """Whether residuals are measured; else they are known to be at most a half."""
        return self.test.mode == ROUNDING

    @property
    def strip(self) -> tuple[int, int, int]:
        """Rows of a tile, rows and columns of a strip: what a word of `join`'s flags is about."""
        return join_tile(self.test.mode)[:3]


@dataclass(frozen=True)
class Split:
    """Planes of residues of some vectors: in this memory, at this place."""

    vectors: SplitVectors
    memory: torch.Tensor


def view_of(base: int, x: torch.Tensor) -> BufferView:
    """A tensor behind a base."""
    return BufferView(base, 0, x.dtype, tuple(x.shape), tuple(x.stride()))


def run(
    program: Program, a: torch.Tensor, out: torch.Tensor, *memories: torch.Tensor, b: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """Queue a program; returns its workspace. b: a, where it is not given. memories: for LEFT and RIGHT, of bytes, and
    for ADDEND.
    """
    import torch

    b = a if b is None else b
    if not a.is_cuda:
        return program.run_by_triton(a, b, out, *memories)
    workspace = torch.empty(program.workspace, dtype=torch.uint8, device=a.device)
    addresses = (x.data_ptr() for x in (a, b, out, workspace, *memories))
    with torch.cuda.device(a.device):
        program.run(tuple(addresses), torch._C._cuda_getCurrentRawStream(a.device.index))
    return workspace


def alignments_of(a: torch.Tensor, out: torch.Tensor) -> tuple[int, int, int]:
    """`Program.alignments` where `a` stands for both operands."""
    return a.data_ptr() % 16, a.data_ptr() % 16, out.data_ptr() % 16


@functools.lru_cache(maxsize=64)
def _measuring(
    shape: Any, alignments: tuple[int, int, int], work: Work, into: Any
) -> tuple[Program, Program]:  # fmt: skip
    program = Program(alignments)
    q = work.table.fraction_bits(work.terms)
    measure_columns(program, shape, into, q, work.device, levels=work.levels, exact=False)
    (_, first), (_, second) = program.single_launches()
    return first, second


def _measure(x: torch.Tensor, statistics: torch.Tensor, work: Work, which: int) -> None:
    if not x.numel():
        return
    vectors = vectors_of(x[None], A, columns=True)
    program = _measuring(vectors, alignments_of(x, statistics), work, view_of(OUT, statistics[None]))[which]
    run(program, x, statistics)


def measure_largest(x: torch.Tensor, statistics: torch.Tensor, work: Work) -> None:
    """Row `LARGEST` of the statistics, which are 0: see `cuda.residues.kernels.scale.largest_columns`. Combined by
    maximum.
    """
    _measure(x, statistics, work, 0)


def measure_norms(x: torch.Tensor, statistics: torch.Tensor, work: Work) -> None:
    """Rows `NORM2`, `NORM1` and, for tests of magnitude, `COUNTS`, with `LARGEST` of all pieces. Combined by sums."""
    _measure(x, statistics, work, 1)


@functools.lru_cache(maxsize=64)
def _splitting(
    x: Any, alignments: tuple[int, int, int], work: Work, into: BufferView, left: bool
) -> tuple[Program, SplitVectors]:
    import torch

    program = Program(alignments)
    shape = plane_shape(x.vectors, x.terms, work.moduli * work.groups)
    found = SplitVectors(program.allocate(torch.int8, 1, *shape), into, 1, x.vectors, work.parts * x.terms)
    q = work.table.fraction_bits(work.terms)
    split_measured(
        program, x, found, work.table, work.device, found.terms, q, left=left, measure=work.measure
    )  # fmt: skip
    return program, found


def split(x: torch.Tensor, statistics: torch.Tensor, work: Work, *, left: bool) -> Split:
    """Planes of some vectors, with the norms of all pieces; rows `RESIDUAL` and `SHIFT` of their statistics are set.
    Residuals are combined by sums.
    """
    import torch

    if not x.shape[0]:
        # Zeros tell the shift of vectors of which nothing is here.
        x = torch.zeros(1, x.shape[1], dtype=x.dtype, device=x.device)
    part = statistics.contiguous()
    part[RESIDUAL].zero_()
    vectors = vectors_of(x[None], A, columns=True)
    program, found = _splitting(vectors, alignments_of(x, part), work, view_of(OUT, part[None]), left)
    memory = run(program, x, part)
    if part.data_ptr() != statistics.data_ptr():
        for row in (RESIDUAL, SHIFT):
            statistics[row].copy_(part[row])
    return Split(found, memory)


@functools.lru_cache(maxsize=64)
def _multiplying(left: SplitVectors, right: SplitVectors, work: Work) -> tuple[Program, BufferView]:
    program = Program()
    left, right = behind(left, LEFT), behind(right, RIGHT)
    return program, multiply_planes(program, left, right, work.table, work.device)


def multiply(left: Split, right: Split, work: Work) -> torch.Tensor:
    """(groups, moduli, m, n) uint8: the digits of a partial product, in rows of whole words. Combined by `add`."""
    program, place = _multiplying(left.vectors, right.vectors, work)
    memory = run(program, left.memory, left.memory, left.memory, right.memory)
    return digits_in(memory, place, work.groups, left.vectors.vectors, right.vectors.vectors)


def behind(x: SplitVectors, base: int) -> SplitVectors:
    """The same with its planes behind a base."""
    return replace(x, planes=replace(x.planes, base=base))


def as_bytes(*statistics: torch.Tensor) -> list[torch.Tensor]:
    """Statistics as memory behind LEFT and RIGHT."""
    import torch

    return [x.contiguous().view(-1).view(torch.uint8) for x in statistics]


def _combined(
    shape: tuple[int, ...], out: Result, work: Work
) -> tuple[BufferView, SplitVectors, SplitVectors]:  # fmt: skip
    """Where a join finds the digits of all pieces, and the statistics of both sides."""
    import torch

    place = BufferView(A, 0, torch.uint8, shape)
    left, right = (
        SplitVectors(place, BufferView(base, 0, torch.int64), 1, vectors, work.terms)
        for base, vectors in ((LEFT, out.m), (RIGHT, out.n))
    )
    return place, left, right


def digits_in(memory: torch.Tensor, place: BufferView, groups: int, m: int, n: int) -> torch.Tensor:
    """Digits (groups, moduli, m, n) in a program's workspace."""
    _, planes, rows, pitch = place.shape
    found = memory[place.offset : place.offset + planes * rows * pitch]
    return found.view(groups, planes // groups, m, pitch)[..., :n]


def empty_digits(m: int, n: int, work: Work) -> torch.Tensor:
    """(groups, moduli, m, n): memory for digits, laid out as those of `multiply`."""
    return room_for_digits(work.groups, work.moduli, m, n, work.place)


def room_for_digits(groups: int, moduli: int, m: int, n: int, place: torch.device) -> torch.Tensor:
    """`empty_digits` of so many planes."""
    import torch

    planes, rows, pitch = digits_shape(m, n, moduli)
    return torch.empty(groups, planes, rows, pitch, dtype=torch.uint8, device=place)[..., :n]


def add(found: torch.Tensor, work: Work, into: torch.Tensor | None = None) -> torch.Tensor:
    """The digits of all pieces (pieces, groups, moduli, m, n), contiguous, added modulo each modulus."""
    return add_modulo(found, work.table.reduction, into)


def add_modulo(found: torch.Tensor, reduction: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
    """`add`, modulo the first column of `reduction` (groups·moduli, 3)."""
    import torch

    if into is None:
        into = torch.empty(found.shape[1:], dtype=torch.uint8, device=found.device)
    steps = into.stride(2), into.stride(1)
    run(_adding(tuple(found.shape), steps, alignments_of(found, into), reduction), found, into)
    return into


@functools.lru_cache(maxsize=64)
def _adding(
    shape: tuple[int, ...], steps: tuple[int, int], alignments: tuple[int, int, int], reduction: torch.Tensor
) -> Program:  # fmt: skip
    import torch

    from prismm.cuda.partial.kernels.digit_sums import add_digit_shares

    pieces, groups, moduli, m, n = shape
    program = Program(alignments)
    (rows, columns, warps), bytes_ = TILE, torch.uint8
    program.launch(
        add_digit_shares, (-(-m // rows) * -(-n // columns), groups * moduli), BufferView(A, 0, bytes_),
        BufferView(OUT, 0, bytes_), reduction, pieces, m, n, *steps, ROWS=rows, BLOCK=columns,
        EVEN=not any(x % 16 for x in (n, *steps)), num_warps=warps,
    )  # fmt: skip
    return program


def join(
    digits: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, out: torch.Tensor, work: Work
) -> torch.Tensor:  # fmt: skip
    """Store the entries that the combined digits certify, in tiles.

    Args:
        digits: of `empty_digits`.
        rows, columns: statistics (10, m) and (10, n) of all pieces, contiguous.
        out: (m, n), contiguous, of the result's type.
        work: of the product.

    Returns:
        Flags (parts, strips, blocks) int32 of the tiles that are left: a bit x for rows x·tile of a strip; see
        `Work.strip`. Bits beyond those are of no account.
    """
    import torch

    shape = 1, work.groups * work.moduli, digits.shape[2], digits.stride(2)
    program, flags = _joining(shape, result_of(out[None]), alignments_of(digits, out), work)
    memory = run(program, digits, out, *as_bytes(rows, columns))
    found = memory[flags.offset : flags.offset + 4 * flags.shape[1] * flags.shape[2] * flags.shape[3]]
    return found.view(torch.int32).view(flags.shape[1:])


def finish(
    digits: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, out: torch.Tensor, work: Work
) -> torch.Tensor:  # fmt: skip
    """`join` of single entries, of finite operands: out holds their values. Returns (parts, m, n) uint8: 1 where there
    is no certificate.
    """
    import torch

    shape = 1, work.groups * work.moduli, digits.shape[2], digits.stride(2)
    program, (tiles, entries) = _finishing(shape, result_of(out[None]), alignments_of(digits, out), work)
    memory = run(program, digits, out, *as_bytes(rows, columns))
    word, bits = (
        memory[x.offset : x.offset + 4 * math.prod(x.shape)].view(torch.int32).view(x.shape[1:])
        for x in (tiles, entries)
    )
    tile, height, width = work.strip
    lanes = torch.arange(32, dtype=torch.int32, device=out.device)
    left = (bits[..., None] >> lanes) & 1  # (parts, strips, blocks, height, width / 32, 32)
    here = (word[..., None] >> (torch.arange(height, dtype=torch.int32, device=out.device) // tile)) & 1
    left = (left * here[..., None, None]).to(torch.uint8)
    parts, strips, blocks = word.shape
    left = left.permute(0, 1, 3, 2, 4, 5).reshape(parts, strips * height, blocks * width)
    return left[:, : out.shape[0], : out.shape[1]].contiguous()


@functools.lru_cache(maxsize=64)
def _finishing(
    shape: tuple[int, ...], out: Result, alignments: tuple[int, int, int], work: Work
) -> tuple[Program, tuple[BufferView, BufferView]]:
    import torch

    program, (place, left, right) = Program(alignments), _combined(shape, out, work)
    flags = allocate_flags(program, out, work.test)
    counts, uncertified = program.allocate(torch.int64, 4), program.allocate(torch.int64, 1)
    program.zero(counts)
    program.zero(uncertified)
    # Operands are read where they are not finite alone; the result stands for them.
    a, b = (Vectors(out.buffer, 1, count, work.terms // work.parts, (0, 0, 0)) for count in (out.m, out.n))
    join_digits(
        program, place, out, a, b, left, right, work.table, work.test, counts, uncertified, flags, work.device
    )  # fmt: skip
    return program, flags


@functools.lru_cache(maxsize=64)
def _joining(
    shape: tuple[int, ...], out: Result, alignments: tuple[int, int, int], work: Work
) -> tuple[Program, BufferView]:
    program, (place, left, right) = Program(alignments), _combined(shape, out, work)
    flags, _ = allocate_flags(program, out, work.test)
    join_ordinary(program, place, out, left, right, work.table, work.test, work.device, flags)
    return program, flags
