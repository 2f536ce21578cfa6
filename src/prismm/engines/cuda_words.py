"""Products of low-precision words on a GPU: what `ScaledHalf` and `Words` launch there, and how wrong that can be.

| name | words | products |
| --- | --- | --- |
| cuda:fp16 | two of FP16, the low one times 2^12 | 3 |
| cuda:tf32 | two of TF32 | 3 |
| cuda:bf16 | two or three of BF16 | 3 or 6 |

Three launches, none of which waits: split both operands, multiply and certify, repair. Real float32 and complex64
results; a complex product is a real one of twice the inner dimension and twice the columns.

**Bound.** In units in which the pieces of a row and a column are scaled to [2^14, 2^15) (`kernels.gpu.words_split`),
let t be the words' precision and p their number: x = Σ w_i + δ with |w_1| <= (1 + 2^-t)|x|, |w_i| <= 2^-t(i-1)·(1 +
2^-t)^i·|x| and |δ| <= 2^-tp·(1 + 2^-t)^p·|x|, and for FP16 besides what its subnormal numbers lose: |x - w_1| <= 2^-25
where |x| < 2^-14, and |δ| <= 2^-37 where w_2·2^12 is below 2^-14.

- *Left out*: p - 1 products of words of weight 2^-tp, products of weight 2^-t(p+1), and δ on either side: (p + 1)·2^-tp
  relatively, with 2^(3-t) of it for all that is smaller. For FP16 a subnormal w_1 leaves |w_2·w_2'| <= 2^-25·2^-11·2^15
  = 2^-21 and |δ| <= 2^-37 twice 2^-22: 2^-20 an element; its eighth serves what is smaller, such as 2^-35 that scales
  may lose to float32's subnormal numbers.
- *The matrix unit* errs by γ relatively and φ (`numerics.bounds.dot_bound` of the model that was probed on the device)
  over a chunk: on the high words, whose magnitudes sum to (1 + 2^-t)^2·|a||b|, and on the others, to about 2·2^-t.
- *Outside*, high words and others are added, and then the chunk to the entry: chunks + 1 roundings.

So |entry - exact| <= gamma·(|a||b|) + k·floor·largest, `largest` being the product of the largest scales of row and
column, and chunks·η/2 for results in float32's subnormal range. gamma is a number that k, chunk and device give. Where
it is below a target's factor κ (K·u for "native", with K·η to spare; a tolerance), an entry meets the target if
k·floor·largest <= (κ - gamma)·(|a||b|). As |a||b|·(1 + gamma) >= |entry| - k·floor·largest, that is certain where
|entry| >= k·floor·(1 + (1 + gamma)/(κ - gamma))·largest: one comparison, which about one normal product in 10^8 fails.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.formats import BF16, FP16, FP32, TF32, Format

if TYPE_CHECKING:
    import torch

    from prismm.accuracy import Target
    from prismm.engines.cuda import Device
    from prismm.engines.launch import Launches

CHUNKS = 64, 128, 256, 512
"""Elements of a piece, and inner dimension of the sums that the matrix unit makes by itself."""

SPLIT = 8192, 8192, 8
"""Elements that a program splits, of vectors with contiguous elements and of others, and its warps."""

_UP = 1.0 + 2.0**-20


@dataclass(frozen=True)
class WordFormat:
    """Words as kernels know them: which format, how many, the factor 2^amplified between them."""

    name: str
    format: Format
    count: int
    amplified: int = 0

    @property
    def code(self) -> int:
        """`kernels.gpu.words_split`'s number of the format."""
        return {FP16: 0, TF32: 1, BF16: 2}[self.format]

    @property
    def bytes(self) -> int:
        """Bytes of a stored word."""
        return 4 if self.format == TF32 else 2

    @property
    def products(self) -> int:
        """Products of words that are made: w_i·w_j with i + j <= count + 1."""
        return self.count * (self.count + 1) // 2


HALVES = WordFormat("cuda:fp16", FP16, 2, 12)
TF32_PAIRS = WordFormat("cuda:tf32", TF32, 2)
BF16_PAIRS = WordFormat("cuda:bf16", BF16, 2)
BF16_TRIPLES = WordFormat("cuda:bf16", BF16, 3)


@dataclass(frozen=True)
class Bound:
    """|entry - exact| <= gamma·(|a||b|) + terms·floor·largest: see the module."""

    gamma: float
    floor: float
    terms: int

    def room(self, target: Target | None, result: Format = FP32) -> float:
        """κ - gamma of a target; infinite where nothing is asked."""
        if target is None or target.kind == "fast":
            return math.inf
        if target.kind == "tolerance":
            assert target.tolerance is not None
            return target.tolerance - self.gamma
        return self.terms * result.unit_roundoff - self.gamma

    def least(self, target: Target | None) -> float:
        """What |entry|/largest must be for the target to hold: 0 where nothing is asked, infinite where none will
        do.
        """
        room = self.room(target)
        if room == math.inf:
            return 0.0
        return self.terms * self.floor * (1.0 + (1.0 + self.gamma) / room) * _UP if room > 0.0 else math.inf

    @property
    def reach(self) -> float:
        """What error/largest cannot exceed."""
        return self.terms * (2.0**30 * self.gamma + self.floor) * _UP


@functools.lru_cache(maxsize=1024)
def bound(words: WordFormat, terms: int, chunk: int, unit: str) -> Bound:
    """The bound for an inner dimension of `terms` reals, on a device whose matrix unit is `unit` ("h200-wgmma", "a100").

    >>> 340 < bound(HALVES, 4096, 512, "h200-wgmma").gamma * 2**24 < 380
    True
    """
    from prismm.numerics import engine
    from prismm.numerics.bounds import dot_bound

    t, p = words.format.precision, words.count
    v = 2.0**-t
    model = engine(f"{unit}.{words.format.name}.fp32")
    depth = min(chunk, terms)
    high, high_floor = dot_bound(model, depth, 2.0**15)
    rest, rest_floor = dot_bound(model, depth * (words.products - 1), 2.0**15)
    rest_floor *= 2.0**-words.amplified
    smaller = (1.0 + v) ** (2 * p) * (2.0 * v + (3.0 * v * v if p > 2 else 0.0))
    inner = high * (1.0 + v) ** 2 + rest * smaller
    left_out = (p + 1) * v**p * (1.0 + 8.0 * v)
    chunks = -(-terms // chunk)
    outer = math.expm1((chunks + 1) * math.log1p(FP32.unit_roundoff))
    gamma = (left_out + inner + outer * (1.0 + left_out + inner)) * _UP
    lost = 1.125 * 2.0**-20 if words.format == FP16 else 2.0**-100
    floor = (lost + (high_floor + rest_floor) / depth) * (1.0 + outer) * _UP
    return Bound(gamma, floor, terms)


def chunk_for(terms: int) -> int:
    """The longest chunk whose typical error is below that of cuBLAS in float32, 1.26e-8·√k on normal data as measured
    on an H200; FP16 words there err by 1.3e-9 for each element of a chunk.
    """
    for chunk in reversed(CHUNKS[1:]):
        if 1.35e-9 * chunk <= 1.2e-8 * math.sqrt(terms):
            return chunk
    return CHUNKS[0]


@dataclass(frozen=True)
class Problem:
    """What a product is launched with besides its operands: out = a @ b, (batch, m, k) by (batch, k, n)."""

    words: WordFormat
    chunk: int
    least: float
    reach: float
    raw: bool


def workspace(words: WordFormat, rows: int, columns: int, k: int) -> int:
    """Bytes of scratch for a product of so many rows and real columns, k reals deep."""
    return words.count * words.bytes * (rows + columns) * _ceil(k, 64) + rows * columns // 8


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def _reals(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.view_as_real(x) if x.is_complex() else x


@dataclass(frozen=True, eq=False)
class _Operand:
    """An operand's vectors in real numbers: their distance, that of elements, that of batches."""

    data: torch.Tensor
    step: int
    inner: int
    batch: int
    across: bool
    aligned: bool


def _operand(x: torch.Tensor, *, left: bool) -> _Operand:
    """x (batch, m, k) on the left, (batch, k, n) on the right."""
    vector, inner = (1, 2) if left else (2, 1)
    if x.stride(inner) != 1 and x.stride(vector) != 1 and x.shape[inner] > 1:
        x = x.contiguous()
    parts = 2 if x.is_complex() else 1
    across = x.shape[inner] > 1 and x.stride(inner) != 1
    data = _reals(x)
    return _Operand(
        data, x.stride(vector) * parts, x.stride(inner) * parts, x.stride(0) * parts, across, data.data_ptr() % 16 == 0
    )


def multiply(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, problem: Problem, device: Device, launch: Launches
) -> torch.Tensor:  # fmt: skip
    """Queue out = a @ b of batches of one type, float32 or complex64; returns counts (4,) int64 as `repair_marked`'s.

    a (batch, m, k), b (batch, k, n) of any strides, out (batch, m, n) with contiguous rows.
    """
    import torch

    words, chunk = problem.words, problem.chunk
    parts = 2 if out.is_complex() else 1
    batches, m, k = a.shape[0], a.shape[1], a.shape[2] * parts
    n = b.shape[2] * parts
    left, right = _operand(a, left=True), _operand(b, left=False)
    target = _reals(out)
    pitch = _ceil(k, 64)
    vectors = batches * (m + n)
    chunks = -(-pitch // chunk)
    mark_pitch = -(-n // 32)
    dtype = {0: torch.float16, 1: torch.float32, 2: torch.bfloat16}[words.code]
    split = torch.empty((words.count * vectors, pitch), dtype=dtype, device=a.device)
    scales = torch.empty(chunks * vectors + 128, dtype=torch.float32, device=a.device)
    marks = torch.empty((batches * m, mark_pitch), dtype=torch.int32, device=a.device)
    counts = torch.empty(4, dtype=torch.int64, device=a.device)
    key = (batches, m, n, k, left.across, right.across, left.aligned, right.aligned, target.data_ptr() % 16 == 0)
    _split(left, right, split, scales, counts, (batches, m, n, k), pitch, problem, parts, key, launch)
    row_stride, batch_stride = out.stride(1) * parts, out.stride(0) * parts
    even = n % 16 == 0 and row_stride % 16 == 0
    if device.hopper:
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        from prismm.kernels.gpu import words_product_hopper as hopper

        depth, tile = 128 // split.element_size(), hopper.TILE
        element = {0: gl.float16, 1: gl.float32, 2: gl.bfloat16}[words.code]
        layout = gl.NVMMASharedLayout.get_default_for([tile, depth], element)
        described = TensorDescriptor(split, list(split.shape), [pitch, 1], [tile, depth], layout)
        tiles = -(-m // tile) * -(-n // tile) * batches
        launch(
            ("product", *key), hopper.words_product, (min(device.programs, tiles),), described, target, scales, marks,
            m, n, pitch, batches, row_stride, batch_stride, mark_pitch, problem.least, problem.reach,
            WORDS=words.count, DOWN=2.0**-words.amplified, CHUNK=chunk // depth, TILE=tile, DEPTH=depth,
            STAGES=hopper.STAGES if words.count == 2 else 2, GROUP=hopper.GROUP, EVEN=even, **hopper.LAUNCH,
        )  # fmt: skip
    else:
        from prismm.kernels.gpu import words_product as product

        rows, columns, warps = product.ROWS, product.COLUMNS, product.WARPS
        depth = 64 // split.element_size()
        launch(
            ("product", *key), product.words_product, (-(-m // rows) * -(-n // columns), batches), split, target,
            scales, marks, m, n, pitch, row_stride, batch_stride, mark_pitch, problem.least, problem.reach,
            WORDS=words.count, DOWN=2.0**-words.amplified, CHUNK=chunk, ROWS=rows, COLUMNS=columns, DEPTH=depth,
            GROUP=8, EVEN=even, num_warps=warps, num_stages=product.STAGES,
        )  # fmt: skip
    _repair(left, right, target, marks, counts, (batches, m, k), (row_stride, batch_stride), problem, parts, key,
            device, launch)  # fmt: skip
    return counts


def _split(
    left: _Operand, right: _Operand, split: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor,
    shape: tuple[int, int, int, int], pitch: int, problem: Problem, parts: int, key: tuple[Any, ...],
    launch: Launches,
) -> None:  # fmt: skip
    from prismm.kernels.gpu import words_split

    batches, m, n, k = shape
    words, chunk = problem.words, problem.chunk
    sizes = [SPLIT[1 if x.across else 0] // chunk for x in (left, right)]
    chunks = -(-pitch // chunk)
    programs = [-(-count // size) * chunks for count, size in zip((m, n), sizes, strict=True)]
    evens = [
        (x.inner % 16 == 0 and count % 16 == 0) if x.across else (x.step % 16 == 0 and k % 16 == 0)
        for x, count in ((left, m), (right, n))
    ]
    launch(
        ("split", *key), words_split.split_words, (sum(programs), batches), left.data, left.step, left.inner,
        left.batch, right.data, right.step, right.inner, right.batch, split, scales, counts, m, n, k, pitch,
        programs[0], CHUNK=chunk, LEFT_VECTORS=sizes[0], RIGHT_VECTORS=sizes[1], LEFT_ACROSS=left.across,
        RIGHT_ACROSS=right.across, COMPLEX=parts == 2, LEFT_EVEN=evens[0], RIGHT_EVEN=evens[1], FORMAT=words.code,
        WORDS=words.count, UP=2.0**words.amplified, num_warps=SPLIT[2],
    )  # fmt: skip


def _repair(
    left: _Operand, right: _Operand, target: torch.Tensor, marks: torch.Tensor, counts: torch.Tensor,
    shape: tuple[int, int, int], strides: tuple[int, int], problem: Problem, parts: int, key: tuple[Any, ...],
    device: Device, launch: Launches,
) -> None:  # fmt: skip
    from prismm.kernels.gpu import words_repair

    batches, m, k = shape
    count, span = marks.numel(), 512
    k //= parts
    block = min(1024, max(128, 1 << max(0, k - 1).bit_length()))
    launch(
        ("repair", *key), words_repair.repair_words, (min(8 * device.programs, -(-count // span)),), left.data,
        left.step, left.inner, left.batch, right.data, right.step, right.inner, right.batch, target, *strides, marks,
        counts, m, k, marks.shape[1], count, PARTS=parts, RAW=problem.raw, BLOCK=block, WORDS=span, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
