"""`TileInt8` on a GPU: what it launches there, and how wrong that can be.

Eight launches, none of which waits: survey, scales, split (`cuda.tile_int8.kernels.split`), the product, facts of both
operands' vectors and certificate (`cuda.tile_int8.kernels.certify`), repair (`cuda.multiword.kernels.repair`). Real
float32 operands and results.

**Value.** That of `TileInt8` without fallback, bit for bit, where no product of a sum and its weight is below 2^-126: a
fused c + t·2^(g+g'-12) rounds once where a CPU rounds t·2^(g+g'-12) to a multiple of 2^-149 first, and factors below
2^-149 are 0. With scaling="vectors" that is in units in which the largest element of every vector is in [1/2, 1).

**Bound.** In those units, with `TileInt8`'s notation, its proof and γ = (s + w - 2)u·(1+2^-10),

    |c - ab| <= γ(|a||b|) + (1+γ)(‖δa‖‖b‖ + ‖a‖‖δb‖ + ‖δa‖‖δb‖) + [level 4] ‖z‖‖z'‖ + s·2^-128:

one rounding for a product and an addition instead of two leaves γ as it is; factors below 2^-149 meet |t| <=
tile[1]·2^14 <= 2^21, and tiles whose own factor is below 2^-149 have elements below 2^-142, so either loses less than
2^-128 a step. Here δ and z are not measured: |δ| <= 2^(g-f-1) and |z| <= 127·2^(g-f), as z is one segment. With
D² = Σ 4^(g-f-1) over the k elements of a vector, enlarged by 2^-90, and N >= ‖x‖ that is

    |c - ab| <= γ(|a||b|) + (1+γ)·E,   E = D·N' + N·D' + (1 + [level 4] 254²)·D·D',

for N >= 1/2 makes D·N' more than the constant, and products with a vector of zeros are 0, exactly. With
scaling="none" that constant is in the data's own units: E grows by 2^-109 of those, and weights of tiles below 2^-143
are NaN, so that what they enter is repaired.

**Pairs.** With exponent="pair" a tile of A is rounded at the bit 2^(e-f-1), e = max(g, g'), and as 4^e <= 4^g + 4^g',
D² becomes D² + 4^(f'-f)·D'², and D'² likewise D'² + 4^(f-f')·D²: the two are E's. (With scaling="none" exponents are
those of the data, and 2^(f'-f) is times the ratio of the units of D' and D.) A vector of zeros loses nothing. Factors
2^(2e-12) are used one half after the other, so that none leaves float32's range before its product does, and no weight
is NaN; tiles below 2^-96 are taken for empty where that is less than 2^-128 a step (`cuda.tile_int8.kernels.split`).

**Certificate.** An entry meets a target κ·(|a||b|), κ > γ, if |a||b| >= (1+γ)·E/(κ - γ). For any τ, τ' >= 0 and x =
min(|a|, τ), y = min(|b|, τ'), element by element, (τ - x)(τ' - y) >= 0, and summed

    |a||b| >= Σ xy >= τ'·Σx + τ·Σy - k·ττ' = τ'·(Σx - kτ/2) + τ·(Σy - kτ'/2) = L.

With τ three quarters of a vector's mean magnitude L is 0.30 of |a||b| for normal data and 0.35 for numbers between 0
and 1, and "native" needs L >= 2^24/k·E: at level 4 normal products of k >= 512 are certified as a whole. Entries of
data whose magnitudes differ more have |a||b| >= (|c| - E)/(1 + γ) besides. What neither certifies is repaired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.cuda.multiword import launches as multiword_launches
from prismm.errors import EngineError
from prismm.formats import FP32
from prismm.schemes.tile_int8 import TileInt8

if TYPE_CHECKING:
    from prismm.core.accuracy import Target
    from prismm.cuda.device import Device
    from prismm.cuda.launch.arguments import BufferView
    from prismm.cuda.launch.program import Program
    from prismm.cuda.multiword.launches import Matrices

NAME = "cuda:int8"

ROWS_OF_TILES = tuple(1 << x for x in range(8))
"""Rows of a tile of A, and columns of one of B, as kernels take them."""
WIDTHS = 32, 64, 128

_LENGTH = 128
"""Elements of a vector that a program splits."""
_SLACK = 1.0 - 2.0**-16
"""Less than what roundings of the test come to."""


@dataclass(frozen=True)
class Bound:
    """|entry - exact| <= gamma·(|a||b|) + (1 + gamma)·E: see the module. last: the factor of D·D' in E."""

    gamma: float
    last: float
    terms: int

    def room(self, target: Target | None, grade: float) -> float:
        """What times max(L, |c| - E) must be E for an entry to be within target; a target that is none: within
        grade·k·u·(|a||b|).
        """
        factor = grade if target is None or target.kind == "fast" else 1.0
        left = factor * self.terms * FP32.unit_roundoff - self.gamma
        return max(0.0, left / (1.0 + self.gamma) ** 2 * _SLACK)


def fraction(segments: int) -> int:
    """f: fraction bits of an element of so many segments."""
    return 7 * segments - 1


def grade_of(scheme: TileInt8) -> float:
    """How many times k·u·(|a||b|) entries are held to by `fallback`: 1 for levels 4 and 5, 2^7 for 1 to 3.

    >>> grade_of(TileInt8()), grade_of(TileInt8(level=1))
    (1.0, 128.0)
    """
    return 2.0 ** max(0, 20 - fraction(min(scheme.segments)))


def bound(scheme: TileInt8, terms: int) -> Bound:
    """The bound for an inner dimension of `terms`.

    >>> 256 < bound(TileInt8(), 8192).gamma * 2**24 < 260
    True
    """
    steps = -(-terms // scheme.tile[1])
    gamma = (steps + scheme.weights - 2) * FP32.unit_roundoff * (1.0 + 2.0**-10)
    return Bound(gamma, 1.0 + (254.0**2 if scheme.level == 4 else 0.0), terms)


@dataclass(frozen=True)
class LaunchConfig:
    """How out = a @ b is multiplied.

    room, last, gamma: see `Bound`. raw: nothing is asked of an entry but that it is infinite where the exact one is.
    summed: of a product that gemm adds C to, whose entries must err by less than 2^122 (`cuda.gemm.kernels.combine`):
    64 times what they err by is kept below 2^127, and what is flagged is repaired, raw or not.
    """

    scheme: TileInt8
    room: float
    last: float
    raw: bool
    gamma: float
    summed: bool = False


def config_for(scheme: TileInt8, terms: int, target: Target | None, summed: bool = False) -> LaunchConfig:
    """The problem of a product with an inner dimension of `terms`."""
    found = bound(scheme, terms)
    raw = (target is None or target.kind == "fast") and not scheme.fallback
    # Above gamma by more than the kernel's float32 takes from it.
    gamma = found.gamma * (1.0 + 2.0**-10)
    return LaunchConfig(scheme, found.room(target, grade_of(scheme)), found.last, raw, gamma, summed)


def workspace(scheme: TileInt8, rows: int, columns: int, k: int) -> int:
    """Bytes of workspace for a product of so many rows and columns."""
    tile_rows, width, tile_columns = scheme.tile
    left, right = scheme.segments
    steps = -(-k // width)
    left, right = (4, 4) if scheme.exponent == "pair" else (left, right)  # bytes an element
    planes = steps * width * (left * rows + right * columns)
    weights = 4 * steps * (-(-rows // tile_rows) + -(-columns // tile_columns) + 32)
    pieces = 8 * (-(-k // 512) + -(-k // _LENGTH)) * (rows + columns)
    # 24 bytes a vector: its shift, its cap, and four facts.
    return planes + weights + pieces + 24 * (rows + columns) + rows * columns // 8


def queue(
    a: Matrices, b: Matrices, out: Matrices, config: LaunchConfig, counts: BufferView, device: Device, to: Program,
    clear: bool = True,
) -> None:  # fmt: skip
    """Queue the launches of out = a @ b, which add to counts (4,) int64; clear: after they have set them to 0.

    a, b: rows or columns contiguous. out: contiguous rows.

    Raises:
        EngineError: for planes of more than 2^31 rows.
    """
    import torch

    from prismm.cuda.tile_int8.kernels import certify as tile_certify
    from prismm.cuda.tile_int8.kernels import split as tile_split

    scheme = config.scheme
    tile_rows, width, tile_columns = scheme.tile
    left, right = scheme.segments
    batches, m, k, n = out.shape[0], a.shape[1], a.shape[2], b.shape[2]
    to.count_split(batches * m * k, left=True)
    to.count_split(batches * k * n, left=False)
    steps, vectors = -(-k // width), batches * (m + n)
    pairs = scheme.exponent == "pair"
    all_rows = batches * (m + n if pairs else left * m + right * n)
    # Rows of planes are counted in 32 bits by TMA and by the kernels.
    if steps * all_rows >= 1 << 31:
        raise EngineError(
            f"{scheme} cuts {m} x {k} x {n} into more pieces than a GPU addresses; pass a tile with a longer inner "
            "dimension, or multiply in blocks"
        )
    # Multiples of 16, so that kernels read weights in whole vectors.
    left_tiles, right_tiles = _ceil(-(-m // tile_rows), 16), _ceil(-(-n // tile_columns), 16)
    all_tiles = batches * (left_tiles + right_tiles)
    planes = to.allocate(torch.float32 if pairs else torch.int8, steps * all_rows, width)
    # The last tile of the product reads past the end.
    weights = to.allocate(torch.float32, steps * all_tiles + 128)
    shifts, caps = to.allocate(torch.int32, vectors + 128), to.allocate(torch.float32, vectors)
    pieces, surveyed = -(-k // _LENGTH), -(-k // tile_split.SURVEY.value)
    tops, sizes = to.allocate(torch.int32, surveyed, vectors), to.allocate(torch.float32, surveyed, vectors)
    squares, capped = (to.allocate(torch.float32, pieces, vectors) for _ in range(2))
    facts = to.allocate(torch.float32, 4, vectors)
    flags = to.allocate(torch.int32, batches * m, -(-n // 32))

    strides = (*_vectors(a, 1, 2), *_vectors(b, 2, 1))
    across = a.shape[2] > 1 and a.strides[2] != 1, b.shape[1] > 1 and b.strides[1] != 1
    evens = _even(a, 1, 2, across[0]), _even(b, 2, 1, across[1])
    layout = {
        "LEFT_ACROSS": across[0], "RIGHT_ACROSS": across[1], "LEFT_EVEN": evens[0], "RIGHT_EVEN": evens[1],
        "num_warps": 8, "enable_fp_fusion": False,
    }  # fmt: skip
    along, wide = 16, 128
    programs = [
        -(-count // (wide if turned else along)) * surveyed for count, turned in zip((m, n), across, strict=True)
    ]
    to.launch(
        tile_split.survey_tiles, (sum(programs), batches), a.data, *strides[:3], b.data, *strides[3:], tops, sizes, m,
        n, k, programs[0], ALONG=along, WIDE=wide, **layout,
    )  # fmt: skip
    to.launch(
        tile_split.scale_tiles, (-(-vectors // 128),), tops, sizes, shifts, caps, counts, vectors, surveyed, k,
        CLEAR=clear, BLOCK=128, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    # Whole tiles a program, as a tile's exponent is the largest of all its vectors.
    block = max(64, tile_rows, tile_columns)
    programs = [-(-count // block) * pieces for count in (m, n)]
    given = scheme.scaling == "none"
    to.launch(
        tile_split.split_tiles, (sum(programs), batches), a.data, *strides[:3], b.data, *strides[3:], planes, shifts,
        caps, weights, squares, capped, m, n, k, programs[0], left_tiles, right_tiles, LEFT=left, RIGHT=right,
        TILE_ROWS=tile_rows, TILE_COLUMNS=tile_columns, WIDTH=width, GIVEN=given, PAIRS=pairs, VECTORS=block,
        LENGTH=_LENGTH, **layout,
    )  # fmt: skip
    _multiply(planes, weights, shifts, out, m, n, k, config, left_tiles, right_tiles, device, to)
    for first, count, tile0, tiles, tile, segments in (
        (0, m, 0, left_tiles, tile_rows, left),
        (batches * m, n, batches * left_tiles, right_tiles, tile_columns, right),
    ):
        # HALF: half a unit, 2^(g-f-1), of a tile whose weight is 2^(g-6).
        to.launch(
            tile_certify.sum_tiles, (-(-batches * count // 128),), squares, capped, shifts, caps, weights, facts, first,
            batches * count, vectors, count, k, pieces, tile0, tiles, all_tiles, TILE=tile, WIDTH=width,
            HALF=2.0 ** (5 - fraction(segments)), GIVEN=given, BLOCK=128, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    rows, columns = 64, 128
    to.launch(
        tile_certify.certify_tiles, (-(-m // rows) * -(-n // columns), batches), out.data, facts, shifts, flags, m, n,
        out.strides[1], out.batch_stride, -(-n // 32), vectors, multiword_launches.pattern_of(config.room),
        multiword_launches.pattern_of(config.last), multiword_launches.pattern_of(config.gamma),
        multiword_launches.pattern_of(64.0 if config.summed else 1.0),
        RAW=config.raw, GIVEN=given, PAIRS=pairs, RATIO=fraction(right) - fraction(left), ROWS=rows, COLUMNS=columns,
        EVEN=_aligned(out), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    multiword_launches.repair(a, b, out, flags, counts, config.raw and not config.summed, False, device, to)


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def _vectors(x: Matrices, axis: int, inner: int) -> tuple[int, int, int]:
    return x.strides[axis], x.strides[inner], x.batch_stride


def _even(x: Matrices, axis: int, inner: int, across: bool) -> bool:
    """Whether kernels may take sizes and strides for multiples of 16."""
    step, length = (x.strides[inner], x.shape[axis]) if across else (x.strides[axis], x.shape[inner])
    return step % 16 == 0 and length % 16 == 0 and x.batch_stride % 16 == 0


def _aligned(out: Matrices) -> bool:
    return out.shape[2] % 16 == 0 and out.strides[1] % 16 == 0 and out.batch_stride % 16 == 0


def _multiply(
    planes: Any, weights: Any, shifts: Any, out: Matrices, m: int, n: int, k: int, config: LaunchConfig, left_tiles:
    int, right_tiles: int, device: Device, to: Program,
) -> None:  # fmt: skip
    scheme = config.scheme
    tile_rows, width, tile_columns = scheme.tile
    left, right = scheme.segments
    batches = out.shape[0]
    constants: dict[str, Any] = {
        "LEFT": left, "RIGHT": right, "WEIGHTS": scheme.weights, "TILE_ROWS": tile_rows, "TILE_COLUMNS": tile_columns,
        "WIDTH": width, "GIVEN": scheme.scaling == "none", "EVEN": _aligned(out),
    }  # fmt: skip
    pairs = scheme.exponent == "pair"
    if device.sm90 and not pairs:
        from triton.experimental.gluon import language as gl

        from prismm.cuda.tile_int8.kernels import product_sm90 as sm90

        shape = sm90.shape_for(left, right, width)
        size = -(-k // width) * batches * (left * m + right * n), width
        boxes = [
            to.tiled(planes, size, (rows, width), gl.NVMMASharedLayout.get_default_for([rows, width], gl.int8))
            for rows in (sm90.ROWS, shape.columns)
        ]
        tiles = -(-m // sm90.ROWS) * -(-n // shape.columns) * batches
        to.launch(
            sm90.tile_product, (min(device.programs, tiles),), *boxes, out.data, weights, shifts, m, n, k, batches,
            out.strides[1], out.batch_stride, left_tiles, right_tiles, COLUMNS=shape.columns,
            STAGES=shape.stages, GROUP=sm90.GROUP, **constants, **sm90.LAUNCH,
        )  # fmt: skip
    else:
        from prismm.cuda.tile_int8.kernels import pair_product as tile_pair_product
        from prismm.cuda.tile_int8.kernels import product as tile_product

        product = tile_pair_product if pairs else tile_product
        kernel = tile_pair_product.tile_pair_product if pairs else tile_product.tile_product
        rows, columns = product.ROWS, product.COLUMNS
        to.launch(
            kernel, (-(-m // rows) * -(-n // columns), batches), planes, out.data, weights, shifts, m, n,
            k, out.strides[1], out.batch_stride, left_tiles, right_tiles, ROWS=rows, COLUMNS=columns,
            GROUP=8, **constants, **product.LAUNCH,
        )  # fmt: skip


def tile_sizes() -> str:
    """The tiles that a GPU takes, in words."""
    return f"rows and columns a power of two up to {ROWS_OF_TILES[-1]}, inner dimension {', '.join(map(str, WIDTHS))}"


def takes(tile: tuple[int, int, int]) -> bool:
    """Whether kernels know tiles of this shape.

    >>> takes((16, 32, 8)), takes((16, 48, 8)), takes((3, 32, 8))
    (True, False, False)
    """
    return tile[0] in ROWS_OF_TILES and tile[1] in WIDTHS and tile[2] in ROWS_OF_TILES
