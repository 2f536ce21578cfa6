"""Whether a GPU's FP8 products are exact, which is asked of it before its first product of residues by them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.fp8_moduli import DigitFamily, block_length, digit_table
from prismm.cuda.launch.arguments import A, B, BufferView
from prismm.cuda.launch.program import Program
from prismm.cuda.residues.fp8 import family_for, launch_products, packed_digits, product_rows
from prismm.cuda.residues.product import digits_shape
from prismm.cuda.residues.split import SplitVectors, plane_shape
from prismm.errors import EngineError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from prismm.cuda.device import Device

_ROWS, _COLUMNS = 6, 9

_INSTRUCTION = 32
"""Products of an instruction."""

Case = tuple["NDArray[np.int64]", "NDArray[np.int64]", int]
"""Residues of rows and of columns, and their modulus."""

Run = Callable[[Program, "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""See `failure`."""


def extreme_residues(family: DigitFamily, terms: int | None = None) -> Iterator[Case]:
    """Residues whose digits are as extreme as those of any operand, of every modulus of a family, in a full block (or
    `terms` of it, which is not a proof) and three terms more.

    Row x and columns x, 3 + x and 6 + x have the largest digit of product x in all places of the block but the
    last of its last whole instruction, which makes the sum odd. A unit drops that which keeps fewer bits than the sum
    before it has, whether it adds instruction to instruction, some of them, or only the products of each. What is lost
    may be a multiple of the modulus, so the columns differ in their last digits. Row 3 + x is of alternating signs.
    Terms after the block, and other rows and columns, are random.
    """
    rng = np.random.default_rng(20260101)
    for q in (*(q for q, _ in family.triples), *sorted({q for some in family.singles for q in some})):
        table = digit_table(q, family)
        block = min(block_length(table, 1 << 24, 128), terms or 1 << 24)
        rows, columns = rng.integers(0, q, (_ROWS, block + 3)), rng.integers(0, q, (_COLUMNS, block + 3))
        last = block // _INSTRUCTION * _INSTRUCTION - 1
        for x, digits in enumerate(table.digits):
            most = np.argmax(np.abs(digits))
            one, *_, other = np.flatnonzero((digits != 0) & ((digits - digits[most]) % 2 != 0))
            vectors = rows[x], columns[x], columns[3 + x], columns[6 + x]
            for vector, zeros, end in zip(vectors, (0, 0, 1, 2), (one, one, other, one), strict=True):
                vector[:block], vector[last - zeros : last], vector[last] = most, 0, end
            rows[3 + x, :block:2], rows[3 + x, 1:block:2] = np.argmax(digits), np.argmin(digits)
            rows[3 + x, last] = one
        yield rows, columns, q


def planes_of(residues: NDArray[np.int64], q: int, family: DigitFamily) -> torch.Tensor:
    """The planes (products, vectors, pitch) of digits of residues (vectors, k), zeros behind each vector."""
    import torch

    words = packed_digits(q, family)[residues]
    vectors, k = residues.shape
    products = len(digit_table(q, family).weights)
    _, _, pitch = plane_shape(vectors, k, products)
    found = np.zeros((products, vectors, pitch), np.uint8)
    for x in range(products):
        found[x, :, :k] = (words >> (8 * x)) & 255
    return torch.from_numpy(found)


def expected_residues(rows: NDArray[np.int64], columns: NDArray[np.int64], q: int, family: DigitFamily) -> Any:
    """What `digit_product` has to find of such planes: exact integers."""
    digits = digit_table(q, family).digits
    return np.stack([(f[rows] @ f[columns].T) % q for f in digits])


def failure(
    device: Device, where: torch.device, run: Run, only: Container[int] | None = None, terms: int | None = None
) -> str | None:
    """What went wrong with extreme digits, or None.

    Args:
        device: the GPU.
        where: its memory.
        run: runs a program of operands at A and B and returns its workspace.
        only: these moduli; None for all.
        terms: of each block; None for all.
    """
    import torch

    family = family_for(device)
    for rows, columns, q in extreme_residues(family, terms):
        if only is not None and q not in only:
            continue
        block = block_length(digit_table(q, family), 1 << 24, 128)
        table = torch.tensor(product_rows([q], family), dtype=torch.int32).to(where)
        # As they are, and what fits in a block by the kernel that cuts none.
        for k in dict.fromkeys((rows.shape[1], min(rows.shape[1], block))):
            some = rows[:, :k], columns[:, :k]
            planes = [planes_of(x, q, family).to(where) for x in some]
            program = Program((planes[0].data_ptr() % 16, planes[1].data_ptr() % 16, 0))
            sides = []
            for base, x in zip((A, B), planes, strict=True):
                place = BufferView(base, 0, torch.int8, (1, *x.shape))
                sides.append(SplitVectors(place, place, 1, x.shape[1], k))
            products = len(planes[0])
            residues = program.allocate(torch.int16, 1, *digits_shape(_ROWS, _COLUMNS, products))
            launch_products(program, sides[0], sides[1], residues, table, products, block, device)
            workspace = run(program, planes[0], planes[1])
            size = residues.dtype.itemsize * math.prod(residues.shape)
            found = workspace[residues.offset : residues.offset + size].view(residues.dtype).view(residues.shape)
            if not np.array_equal(found[0, :, :, :_COLUMNS].cpu().numpy(), expected_residues(*some, q, family)):
                return f"inexact on extreme digits modulo {q}, in {k} terms and blocks of {block}"
    return None


def _run(program: Program, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """On the current device."""
    import torch

    workspace = torch.empty(program.workspace, dtype=torch.uint8, device=a.device)
    stream = torch._C._cuda_getCurrentRawStream(a.device.index)
    program.run((a.data_ptr(), b.data_ptr(), 0, workspace.data_ptr()), stream)
    return workspace


@functools.cache
def _proved(device: Device, index: int) -> str | None:
    import torch

    with torch.cuda.device(index):
        return failure(device, torch.device("cuda", index), _run)


def is_exact(device: Device, index: int) -> bool:
    """Whether Auto may take a GPU's FP8 units: they multiply extreme digits exactly. Asked once a process, which waits
    for the GPU; False while a stream is captured before that.
    """
    import torch

    if _proved.cache_info().currsize == 0 and torch.cuda.is_current_stream_capturing():
        return False
    try:
        return _proved(device, index) is None
    except (EngineError, RuntimeError):  # what does not compile, or finds no memory
        return False


def prove(device: Device, index: int) -> None:
    """Multiply extreme digits on a GPU, once a process; this waits for the GPU.

    Raises:
        EngineError: for a GPU whose FP8 products are not exact, or where a graph is captured before the proof.
    """
    import torch

    if _proved.cache_info().currsize == 0 and torch.cuda.is_current_stream_capturing():
        raise EngineError(
            "engine 'cuda:fp8' proves itself before its first product, which a CUDA graph cannot capture: multiply "
            "once before the capture"
        )
    reason = _proved(device, index)
    if reason is not None:
        raise EngineError(f"engine 'cuda:fp8': {device.name}'s FP8 products are {reason}; pass engine='cuda:int8'")
