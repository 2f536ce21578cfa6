"""Products of low-precision words on a GPU: what `ScaledHalf` and `Words` launch there, and how wrong that can be.

| name | words | products |
| --- | --- | --- |
| cuda:fp16 | two of FP16, the low one times 2^12 | 3 |
| cuda:tf32 | two of TF32 | 3 |
| cuda:bf16 | two or three of BF16 | 3 or 6 |

Three launches, none of which waits: split both operands, multiply and certify, repair. Real float32 and complex64
results; a complex product is a real one of twice the inner dimension and twice the columns.

**Bound.** In units in which the pieces of a row and a column are scaled to [2^14, 2^15)
(`cuda.multiword.kernels.split`),
let t be the words' precision and p their number: x = Σ w_i + δ with |w_1| <= (1 + 2^-t)|x|, |w_i| <= 2^-t(i-1)·(1 +
2^-t)^i·|x| and |δ| <= 2^-tp·(1 + 2^-t)^p·|x|, and for FP16 besides what its subnormal numbers lose: |x - w_1| <= 2^-25
where |x| < 2^-14, and |δ| <= 2^-25-a where w_2·2^a is below 2^-14, a = 12 being the amplification.

- *Left out*: p - 1 products of words of weight 2^-tp, products of weight 2^-t(p+1), and δ on either side: (p + 1)·2^-tp
  relatively, with 2^(3-t) of it for all that is smaller. For FP16 a subnormal w_1 leaves |w_2·w_2'| <= 2^-25·2^-11·2^15
  = 2^-21 and |δ| <= 2^-25-a twice 2^-10-a: 2^-20 an element.
- *Scales*: a chunk's sum is multiplied by the row's scale first, which is 2^-115 at least; what that loses to float32's
  subnormal numbers, 2^-150, is 2^-35 in these units, once a chunk. An eighth more serves what is smaller.
- *The matrix unit* errs by γ relatively and φ (`numerics.bounds.dot_bound` of the model that was probed on the device)
  over a chunk: on the high words, whose magnitudes sum to (1 + 2^-t)^2·|a||b|, and on the others, to about 2·2^-t.
- *Outside*, high words and others are added, and then the chunk to the entry: chunks + 1 roundings.
- *Directly* (`cuda.multiword.kernels.split_product_sm90`), the unit adds the high words to the others, which it gets
as an
  accumulator: as if an instruction more, of the chunk's, had made them out of one product. Its γ and φ are those of so
  many terms, and what they are relative to is larger by what the others sum to; outside there is a rounding less, which
  stays in the bound, so that it holds for either kernel.

So |entry - exact| <= gamma·(|a||b|) + k·floor·largest, `largest` being the product of the largest scales of row and
column, and chunks·η/2 for results in float32's subnormal range. gamma is a number that k, chunk and device give. Where
it is below a target's factor κ (K·u for "native", with K·η to spare; a tolerance), an entry meets the target if
k·floor·largest <= (κ - gamma)·(|a||b|). As |a||b|·(1 + gamma) >= |entry| - k·floor·largest, that is certain where
|entry| >= k·floor·(1 + (1 + gamma)/(κ - gamma))·largest: one comparison, which about one normal product in 10^8 fails.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.cuda.multiword.shares import add_shares
from prismm.cuda.native.launches import tiled
from prismm.cuda.symmetric import lower_tiles
from prismm.formats import BF16, FP16, FP32, TF32, Format

if TYPE_CHECKING:
    import torch

    from prismm.core.accuracy import Target
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView, Tiled
    from prismm.cuda.launch.program import Program

CHUNKS = 64, 128, 256, 512
"""Elements of a piece, and inner dimension of the sums that the matrix unit makes by itself."""

HALF_ERRORS = {64: 2.0e-7, 128: 4.7e-7, 256: 1.13e-6, 512: 2.55e-6}
"""Relative errors in the Frobenius norm by chunk, on numbers between 0 and 1, as measured on an H200; that of cuBLAS in
float32 is 1.32e-8·√k there. Sums of one sign are the worst that the matrix unit meets: what it truncates adds up along
a chunk. On normal data they are 1.6e-7 to 6.5e-7, and cuBLAS's is 1.8e-8·√k.
"""

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
        """`cuda.multiword.kernels.split`'s number of the format."""
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
        # |a||b| is below K·2^30·largest, since elements of pieces are below 2^15.
        return self.terms * (2.0**30 * self.gamma + self.floor) * _UP


@functools.lru_cache(maxsize=1024)
def bound(words: WordFormat, terms: int, chunk: int, unit: str, direct: bool = False) -> Bound:
    """The bound for an inner dimension of `terms` reals, on a matrix unit ("h200-wgmma", "a100"); direct: of
    `LaunchConfig`.

    >>> 340 < bound(HALVES, 4096, 512, "h200-wgmma").gamma * 2**24 < 380
    True
    """
    from prismm.numerics import engine
    from prismm.numerics.bounds import dot_bound

    t, p = words.format.precision, words.count
    v = 2.0**-t
    model = engine(f"{unit}.{words.format.name}.fp32")
    depth = min(chunk, terms)
    # Magnitudes of elements in a piece's units end at 2^15. Directly, the sum of the others is one addend more.
    high, high_floor = dot_bound(model, depth + (model.instruction_depth if direct else 0), 2.0**15)
    # All other products of a chunk share an accumulator, so they are one long sum to the matrix unit.
    rest, rest_floor = dot_bound(model, depth * (words.products - 1), 2.0**15)
    # Low words meet the unit amplified; its absolute error shrinks with their sum when that is scaled down.
    rest_floor *= 2.0**-words.amplified
    smaller = (1.0 + v) ** (2 * p) * (2.0 * v + (3.0 * v * v if p > 2 else 0.0))
    inner = high * ((1.0 + v) ** 2 + (smaller * (1.0 + rest) if direct else 0.0)) + rest * smaller
    left_out = (p + 1) * v**p * (1.0 + 8.0 * v)
    chunks = -(-terms // chunk)
    outer = math.expm1((chunks + 1) * math.log1p(FP32.unit_roundoff))
    gamma = (left_out + inner + outer * (1.0 + left_out + inner)) * _UP
    lost = 2.0**-35 + (2.0**-21 + 2.0 ** (-9 - words.amplified) if words.format == FP16 else 0.0)
    floor = (1.125 * lost + (high_floor + rest_floor) / depth) * (1.0 + outer) * _UP
    return Bound(gamma, floor, terms)


def chunk_for(terms: int) -> int:
    """The longest chunk of FP16 words whose error (`HALF_ERRORS`) is below that of cuBLAS in float32."""
    fitting = [chunk for chunk, error in HALF_ERRORS.items() if error <= 1.3e-8 * math.sqrt(terms)]
    return max(fitting, default=CHUNKS[0])


@dataclass(frozen=True)
class LaunchConfig:
    """How out = a @ b is multiplied: words, chunk, and what an entry must be to need no repair.

    least, reach: see `Bound`. raw: nothing is asked of an entry but that it is infinite where the exact one is. exact:
    repaired entries must be better than float64 sums. direct: one kernel cuts and multiplies, where it can
    (`directly`). summed: of a product that gemm adds C to, whose entries must err by less than 2^122
    (`cuda.gemm.kernels.combine`): `reach` is 64 times that of `Bound`, and what is flagged is repaired, raw or not.
    shares: in how many the chunks of a tile are shared, at most, where tiles are few (`kernels.join`).
    """

    words: WordFormat
    chunk: int
    least: float
    reach: float
    raw: bool
    exact: bool = False
    direct: bool = False
    summed: bool = False
    shares: int = 1


def config_for(
    words: WordFormat, chunk: int, terms: int, target: Target | None, unit: str, direct: bool = False,
    summed: bool = False, shares: int = 1,
) -> LaunchConfig:  # fmt: skip
    """The problem of a product with an inner dimension of `terms` reals."""
    found = bound(words, terms, chunk, unit, direct)
    raw = target is None or target.kind == "fast"
    tolerance = target.tolerance if target is not None and target.tolerance is not None else 1.0
    # About twice the (K + 2)·2^-53 of repair's float64 sums: what asks for less is summed in limbs.
    exact = tolerance < (terms + 4) * 2.0**-52
    reach = 64.0 * found.reach if summed else found.reach
    return LaunchConfig(words, chunk, found.least(target), reach, raw, exact, direct, summed, shares)


def workspace(words: WordFormat, rows: int, columns: int, k: int, shares: int = 1) -> int:
    """Bytes of workspace for a product of so many rows and real columns, k reals deep."""
    sums = 4 * shares * rows * _ceil(columns, 16) if shares > 1 else 0
    return words.count * words.bytes * (rows + columns) * _ceil(k, 64) + rows * columns // 8 + sums


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


@dataclass(frozen=True, eq=False)
class Matrices:
    """Matrices of one shape on the device: where the first real number is, shape, strides, and what it holds.

    shape: (batch, rows, columns); a batch of 1 serves all of another operand's. strides: in real numbers.
    """

    data: BufferView
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    is_complex: bool

    @property
    def batch_stride(self) -> int:
        """From one matrix to the next; 0 where there is one."""
        return self.strides[0] if self.shape[0] > 1 else 0


def queue(
    a: Matrices, b: Matrices, out: Matrices, config: LaunchConfig, counts: BufferView, device: Device, to: Program,
    clear: bool = True, *, lower_on: torch.device | None = None, one_matrix: bool = False,
    addend: BufferView | None = None,
) -> None:  # fmt: skip
    """Queue the launches of out = a @ b, which add to counts (4,) int64; clear: after they have set them to 0;
    lower_on: the device, where tiles above the diagonal are left out, else None; one_matrix: b is a's transpose, real,
    and is not split; addend: a row of real numbers that is added to all rows, in float32 to nearest, where every entry
    has been certified or repaired. It needs a whole result, and a config that is not raw.

    a, b: rows or columns contiguous. out: contiguous rows.
    """
    import torch

    to.count_split(out.shape[0] * a.shape[1] * a.shape[2], left=True)
    to.count_split(0 if one_matrix else out.shape[0] * b.shape[1] * b.shape[2], left=False)
    operands = directly(a, b, config, device, to) if config.direct else None
    if operands is not None:
        _queue_directly(*operands, a, b, out, config, counts, device, to, clear, addend)
        return
    words = config.words
    parts = 2 if out.is_complex else 1
    batches, m, k = out.shape[0], a.shape[1], a.shape[2] * parts
    n = b.shape[2] * parts
    vectors, pitch = batches * (m if one_matrix else m + n), _ceil(k, 64)
    dtype = (torch.float16, torch.float32, torch.bfloat16)[words.code]
    split = to.allocate(dtype, words.count * vectors, pitch)
    # 128 more than there are: the last tile reads past the end.
    scales = to.allocate(
        torch.float32, -(-pitch // config.chunk) * (_ceil(batches * m, 16) + _ceil(batches * n, 16)) + 128
    )
    flags = to.allocate(torch.int32, batches * m, -(-n // 32))
    if lower_on is not None:
        to.zero(flags)
    _split(a, b, split, scales, counts, clear, pitch, config, device, to, one_matrix=one_matrix)
    # The chunks of a tile's shares are added apart, and then together.
    shares = 1 if lower_on is not None else min(config.shares, -(-pitch // config.chunk))
    into = out
    if shares > 1:
        wide = _ceil(n, 16)
        sums = to.allocate(torch.float32, shares * batches, m, wide)
        into = Matrices(sums, (shares * batches, m, n), (m * wide, wide, 1), False)
    even = n % 16 == 0 and into.strides[1] % 16 == 0 and into.batch_stride % 16 == 0
    test = pattern_of(config.least), pattern_of(config.reach)
    # Without an addend nothing is read there, but kernels take a pointer.
    added = addend or scales, int(addend is not None)
    down = 2.0**-words.amplified
    if device.sm90:
        from triton.experimental.gluon import language as gl

        from prismm.cuda.multiword.kernels import product_sm90 as sm90

        # Steps of 128 bytes: a row of shared memory's widest swizzle.
        depth, tile = 128 // words.bytes, sm90.TILE
        layout = gl.NVMMASharedLayout.get_default_for([tile, depth], (gl.float16, gl.float32, gl.bfloat16)[words.code])
        described = to.tiled(split, (words.count * vectors, pitch), (tile, depth), layout)
        result = None
        if sm90.leaves_by_tma(words.count, config.chunk // depth):
            result = tiled(to, into.data, (shares * batches, m, n), (into.strides[0], into.strides[1]), (1, 64, tile))
        down_tiles, across_tiles = -(-m // tile), -(-n // tile)
        sizes = (
            m, n, pitch, batches, into.strides[1], into.batch_stride, -(-n // 32), *test, *fast_test(config, pitch),
        )  # fmt: skip
        constants = {
            "WORDS": words.count, "DOWN": down, "CHUNK": config.chunk // depth, "TILE": tile, "DEPTH": depth,
            "STAGES": sm90.STAGES[words.count], "GROUP": sm90.GROUP, "EVEN": even, "BRING": result is not None,
            **sm90.LAUNCH,
        }  # fmt: skip
        if lower_on is not None:
            # Columns are those of real numbers: a tile of complex ones is half as wide.
            order = lower_tiles(down_tiles, across_tiles, tile, tile // parts, sm90.GROUP, lower_on)
            to.launch(
                sm90.symmetric_words_product, (min(device.programs, len(order) * batches),), described, out.data,
                result or described, scales, flags, order, *sizes, len(order), SAME=one_matrix, **constants,
            )  # fmt: skip
        else:
            to.launch(
                sm90.words_product, (min(device.programs, down_tiles * across_tiles * batches * shares),), described,
                into.data, result or described, scales, flags, *added, *sizes, shares, SPLIT=shares > 1, **constants,
            )  # fmt: skip
    else:
        from prismm.cuda.multiword.kernels import product

        rows, columns = product.ROWS, product.COLUMNS
        to.launch(
            product.words_product, (-(-m // rows) * -(-n // columns), batches, shares), split, into.data, scales,
            flags, *added, m, n, pitch, into.strides[1], into.batch_stride, -(-n // 32), *test, WORDS=words.count,
            DOWN=down, CHUNK=config.chunk, ROWS=rows, COLUMNS=columns, DEPTH=64 // words.bytes, GROUP=8, EVEN=even,
            SPLIT=shares > 1, **({"LOWER": parts, "SAME": one_matrix} if lower_on is not None else {}),
            **product.LAUNCH,
        )  # fmt: skip
    if shares > 1:
        add_shares(into.data, out, scales, flags, added, shares, -(-pitch // config.chunk), test, m, n, to)
    repair(a, b, out, flags, counts, config.raw and not config.summed, config.exact, device, to, addend)


def serves_directly(words: WordFormat, chunk: int, is_complex: bool) -> bool:
    """Whether there is a kernel for Hopper that cuts and multiplies such words."""
    return words.format == FP16 and chunk == CHUNKS[0] and not is_complex


def directly(a: Matrices, b: Matrices, config: LaunchConfig, device: Device, to: Program) -> tuple[Tiled, Tiled] | None:
    """What describes the operands to the kernel that cuts and multiplies; None where it does not serve: other GPUs,
    words and chunks, complex numbers, places and strides that are no multiples of 16 bytes.
    """
    from prismm.cuda.multiword.kernels import split_product_sm90 as kernel

    served = device.sm90 and serves_directly(config.words, config.chunk, a.is_complex)
    if not served or a.shape[2] == 0:
        return None
    left = _tiled(a, a.strides[2] == 1, to, (kernel.TILE, kernel.DEPTH))
    right = _tiled(b, b.strides[2] == 1, to, (kernel.DEPTH, kernel.TILE))
    return None if left is None or right is None else (left, right)


def _tiled(x: Matrices, by_rows: bool, to: Program, box: tuple[int, int]) -> Tiled | None:
    """What describes matrices, as they lie in memory, to TMA; box: rows and columns."""
    if by_rows:
        return tiled(to, x.data, x.shape, (x.strides[0], x.strides[1]), (1, *box))
    shape = x.shape[0], x.shape[2], x.shape[1]
    return tiled(to, x.data, shape, (x.strides[0], x.strides[2]), (1, box[1], box[0]))


def _queue_directly(
    left: Tiled, right: Tiled, a: Matrices, b: Matrices, out: Matrices, config: LaunchConfig, counts: BufferView,
    device: Device, to: Program, clear: bool, addend: BufferView | None,
) -> None:  # fmt: skip
    """`queue` without words in memory."""
    import torch

    from prismm.cuda.multiword.kernels import split_product_sm90 as kernel

    batches, m, n = out.shape
    flags = to.allocate(torch.int32, batches * m, -(-n // 32))
    tiles = -(-m // kernel.TILE) * -(-n // kernel.TILE) * batches
    to.launch(
        kernel.multiply_by_words, (min(device.programs, tiles),), left, right, out.data, flags, addend or out.data,
        int(addend is not None), counts, m, n, a.shape[2], batches, int(a.shape[0] == 1), int(b.shape[0] == 1),
        out.strides[1], out.batch_stride, -(-n // 32), pattern_of(config.least), pattern_of(config.reach),
        *fast_test(config, a.shape[2]), LEFT_ALONG=a.strides[2] == 1, RIGHT_ALONG=b.strides[2] != 1,
        AMPLIFIED=config.words.amplified, DOWN=2.0**-config.words.amplified, TILE=kernel.TILE, DEPTH=kernel.DEPTH,
        STAGES=kernel.STAGES, GROUP=kernel.GROUP,
        EVEN=n % 16 == 0 and out.strides[1] % 16 == 0 and out.batch_stride % 16 == 0, CLEAR=clear, **kernel.LAUNCH,
    )  # fmt: skip
    repair(a, b, out, flags, counts, config.raw and not config.summed, config.exact, device, to, addend)


def pattern_of(x: float) -> int:
    """The pattern of float32(x), x >= 0, rounded up: kernels are launched with integers."""
    if x > FP32.max:
        return 0x7F800000
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    (near,) = struct.unpack("<f", struct.pack("<i", bits))
    # Patterns of positive numbers grow with them, so one more is the next number above.
    return int(bits) + int(near < x)


def fast_test(config: LaunchConfig, terms: int) -> tuple[int, int]:
    """Patterns of far and slope = least/far, by which a kernel sees that entries are sure without testing what they add
    up to: |entry| >= largest·far·slope, and largest·far is no more than float32 has. far is a power of two, at least
    2·(terms·2^31 + reach): words and their products add up to less than terms·2^31·largest, so that this is below 2^127
    with what `reach` adds. Where slope is rounded it is rounded up, and products by powers of two are exact.
    """
    largest = 2.0 * (terms * 2.0**31 + config.reach)
    # No far, no fast test: slope is infinite then, and every tile is tested entry by entry.
    far = 2.0 ** math.frexp(largest)[1] if largest < FP32.max else math.inf
    return pattern_of(far), pattern_of(config.least / far if far < math.inf else math.inf)


def _split(
    a: Matrices, b: Matrices, split: Any, scales: Any, counts: Any, clear: bool, pitch: int, config: LaunchConfig,
    device: Device, to: Program, *, one_matrix: bool = False,
) -> None:  # fmt: skip
    words, chunk = config.words, config.chunk
    parts = 2 if a.is_complex else 1
    batches, m, k = max(a.shape[0], b.shape[0]), a.shape[1], a.shape[2] * parts
    n = 0 if one_matrix else b.shape[2] * parts
    left = a.strides[1], a.strides[2], a.batch_stride
    right = b.strides[2], b.strides[1], b.batch_stride
    across = [x.shape[axis] > 1 and x.strides[axis] != parts for x, axis in ((a, 2), (b, 1))]
    evens = [
        batch % 16 == 0 and ((inner % 16 == 0 and count % 16 == 0) if turned else (step % 16 == 0 and k % 16 == 0))
        for turned, (step, inner, batch), count in zip(across, (left, right), (m, n), strict=True)
    ]
    constants = {
        "CHUNK": chunk, "LEFT_ACROSS": across[0], "RIGHT_ACROSS": across[1], "COMPLEX": parts == 2,
        "LEFT_EVEN": evens[0], "RIGHT_EVEN": evens[1], "FORMAT": words.code, "WORDS": words.count,
        "UP": 2.0**words.amplified, "CLEAR": clear,
    }  # fmt: skip
    kernel: Any
    if device.sm90:
        from prismm.cuda.multiword.kernels import split_sm90 as words_split_sm90

        kernel, size, constants["num_warps"] = words_split_sm90.split_words, 32, chunk // 32
    else:
        from prismm.cuda.multiword.kernels import split as words_split

        # A piece times its vectors is 8192 elements, 32 a thread of eight warps.
        kernel, size, constants["num_warps"] = words_split.split_words, 8192 // chunk, 8
        constants["VECTORS"] = size
    programs = [-(-count // size) * -(-pitch // chunk) for count in (m, n)]
    to.launch(
        kernel, (sum(programs), batches), a.data, *left, b.data, *right, split, scales, counts, m, n, k, pitch,
        programs[0], **constants,
    )  # fmt: skip


def repair(
    a: Matrices, b: Matrices, out: Matrices, flags: Any, counts: Any, raw: bool, exact: bool, device: Device,
    to: Program, addend: BufferView | None = None,
) -> None:  # fmt: skip
    """Queue the repair of flagged entries; raw, exact: as of `LaunchConfig`; addend: as of `queue`.

    DENSE: with NVIDIA's FP64 matrix instructions, where Triton has them. WIDE is 1, 8 or 64: a kernel for each.
    """
    from prismm.cuda.multiword.kernels import repair as words_repair

    parts = 2 if out.is_complex else 1
    batches, m, k = out.shape[0], a.shape[1], a.shape[2]
    n = b.shape[2] * parts
    pitch = -(-n // 32)
    side, tiles = words_repair.SIDE.value, words_repair.TILES.value
    wide = next(x for x in (1, 8, tiles) if x == tiles or x * side >= n)
    blocks = -(-m // (tiles // wide * side)) * -(-n // (wide * side)) * batches
    # A few large blocks would leave most of the GPU idle where all their entries are flagged.
    shares = max(1, min(tiles, device.programs // blocks))
    to.launch(
        words_repair.repair_words, (min(4 * device.programs, blocks) * shares,), a.data, a.strides[1], a.strides[2],
        a.batch_stride, b.data, b.strides[2], b.strides[1], b.batch_stride, out.data, out.strides[1],
        out.batch_stride, addend or out.data, flags, counts, m, n, k, pitch, batches, shares, PARTS=parts, RAW=raw,
        ADDS=addend is not None, EXACT=exact,
        BLOCK=512, DEPTH=16, DENSE=device.nvidia and device.float64_dot, WIDE=wide,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
