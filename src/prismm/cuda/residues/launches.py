"""The GPU engine: what the device can do, the tables that its kernels read, and their launches.

| name | inner product | exact because |
| --- | --- | --- |
| cuda:int8 | INT8 matrix instructions | k·2^14 <= 2^29 for k <= 2^15, reduced between such blocks |
| cuda:blas | cuBLAS through torch, in the operands' type | conventional; certified a priori |

Products are written down as programs (`launch.Program`) and nothing in one waits, so calls follow the current stream
and can be captured in a CUDA graph once their tables are on the device (a call of the same kind before the capture puts
them there).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core.accuracy import MAGNITUDE, ROUNDING
from prismm.core.environment import variable
from prismm.core.moduli import (
    ByteTables,
    byte_tables,
    coprime_moduli,
    norm_fraction_bits,
    norm_limit,
    paired_system,
    residue_system,
    scheme_product,
    shift_thresholds,
    symmetric,
)
from prismm.cuda.launch import cublas
from prismm.cuda.launch.program import LONGEST_GRID, Factor, Place, Program, Tiled
from prismm.errors import EngineError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

INT8, BLAS = "cuda:int8", "cuda:blas"
STATISTICS, COUNTS = 10, 4
"""Integers that the kernels keep of a vector, and of a call: see `cuda.kernels.fp64` and
`cuda.residues.kernels.repair`."""

LEVELS = 5
ROW_BLOCK = 1024, 2, 4
"""Elements of a row that are measured at a time, fours that a thread splits at a time, warps."""
COLUMN_TILE = 64, 32, 4
SPLIT_WARPS, SPLIT_COLUMNS, SPLIT_BYTES, SPLIT_TERMS = 4, 4, 1 << 14, 1 << 16
"""Of `cuda.residues.kernels.split_sm90`: warps, columns a program, bytes of a column up to which those of all programs
stay in the L2 cache of a Hopper GPU, and elements that a vector must have less of.
"""
SPLIT_KEPT = 1 << 15
"""Bytes of columns that a program of `cuda.residues.kernels.split_sm90` keeps in shared memory, where they are no
more."""
NEARLY_ONE_WORD = 32
"""`Tables.bits` of eight moduli: integers that take two words, but rarely have more than 31 bits and a sign."""
FINISH_ROWS = 2
LOOKS = 16
LANES = 512
"""Elements, or rows and columns, of a tile, and the warps that work on it, as measured on an H200."""

FEW_OPEN, MANY_OPEN, FEW_OF_STRIP = 4, 64, 2
"""Open entries of a strip that need no planes of magnitudes, those of a few rows of it that are summed one by one, and
how many of all strips on average are worth the planes.
"""
OPEN_LANES, OPEN_ROWS, OPEN_WARPS = 512, 8, 4
"""Elements of a single entry's vectors that are taken at a time, rows of a strip that are summed at once, and warps."""

MOST_MAGNITUDES = 1 << 17
"""Terms of which products of 7-bit magnitudes fit in an int32, 127²·2^17 < 2^31; of more nothing is proved by them."""

LINE = 128
"""Bytes of a line: a product of order 3333 takes 1.5 times as long where the rows of planes begin within lines."""

MAGNITUDE_TILE = 128, 128
"""Vectors, and elements, to multiples of which planes of magnitudes are rounded up."""


def join_tile(mode: int) -> tuple[int, int, int, int]:
    """Rows of a tile, rows and columns of a strip, and warps of the quick join, as measured on an H200: bounds of all
    entries take registers.
    """
    return (8, 64, 64, 4) if mode == ROUNDING else (4, 64, 128, 4)


@dataclass(frozen=True)
class Device:
    """How kernels are built for a GPU.

    hopper: with the warp-specialised product for sm_90. nvidia: with NVIDIA's instructions. programs: persistent
    programs that fill it. shared: bytes of shared memory that a program may have. float64_dot: whether Triton compiles
    `tl.dot` of float64, which Triton 3.6 does not for compute capability 10.
    """

    name: str
    hopper: bool
    nvidia: bool
    programs: int
    shared: int = 227 << 10
    float64_dot: bool = True


@functools.cache
def device_of(index: int) -> Device:
    """The GPU of this number.

    Raises:
        EngineError: for a GPU whose integer matrix instructions prismm does not use, or without Triton.
    """
    import torch

    try:
        import triton  # noqa: F401
    except ImportError:
        raise EngineError("prismm's GPU kernels need Triton, which CUDA builds of torch bring: install one") from None
    facts = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        raise EngineError(f"{facts.name}: prismm has not run on AMD GPUs yet; multiply CPU tensors: pass a.cpu()")
    capability = (facts.major, facts.minor)
    if capability < (8, 0):
        raise EngineError(
            f"{facts.name} has compute capability {facts.major}.{facts.minor}; prismm's GPU kernels need 8.0 or "
            f"newer: multiply CPU tensors (a.cpu()), or torch.matmul itself"
        )
    # What the driver keeps of a multiprocessor's memory for each program.
    shared = facts.shared_memory_per_multiprocessor - 1024
    return Device(facts.name, capability[0] == 9, True, facts.multi_processor_count, shared, capability[0] != 10)


def reduced_float32() -> str | None:
    """Why cuBLAS's float32 GEMM may use fewer bits than float32, or None if it may not. What torch was told of float32
    reaches torch's handles of cuBLAS, not ours.
    """
    return "NVIDIA_TF32_OVERRIDE=1" if variable(b"NVIDIA_TF32_OVERRIDE") == "1" else None


_EMULATION = (
    b"CUBLAS_EMULATE_DOUBLE_PRECISION", b"CUBLAS_EMULATE_SINGLE_PRECISION", b"CUBLAS_EMULATION_STRATEGY",
)  # fmt: skip


def emulated_by_cublas() -> str | None:
    """Which setting lets cuBLAS emulate FP64 or FP32, or None."""
    for name in _EMULATION:
        value = variable(name)
        if value not in ("", "0", "default"):
            return f"{name.decode()}={value}"
    return None


@dataclass(frozen=True, eq=False)
class Tables:
    """What the kernels read for the scheme of so many moduli, on one device.

    left, right: (moduli, 17) int32, see `cuda.residues.kernels.split.FIELDS`; reduction: (3·moduli, 3) int32, three
    times the
    same, see `cuda.residues.kernels.product.reduced`; thresholds: int64, see `moduli.shift_thresholds`; limit_bits:
    bits of the first of them, before it was cut to int64; left_fragments, right_fragments: see `_all_fragments`.
    """

    moduli: int
    bits: int
    words: int
    limbs: int
    left: torch.Tensor
    right: torch.Tensor
    reduction: torch.Tensor
    thresholds: torch.Tensor
    limit_bits: int
    left_fragments: torch.Tensor
    right_fragments: torch.Tensor

    def fraction_bits(self, terms: int) -> int:
        """q of `moduli.norm_fraction_bits`."""
        return norm_fraction_bits(self.moduli, terms)


def float_reduction(p: int, offset: int) -> tuple[int, int, int, int, int]:
    """What `cuda.residues.kernels.split` reduces x modulo p by in float32, |x| < 2^20, with c·p >= 2^23 + 2^20: the
    patterns of c·p + offset, 1/p, 3·2^22 - c, -p, and c·p.
    """
    c = 256 * -(-((1 << 23) + (1 << 20)) // (256 * p))
    base = 0x4B000000 + c * p - (1 << 23)
    patterns = [int(np.float32(x).view(np.int32)) for x in (1.0 / p, 3.0 * (1 << 22) - c, -float(p))]
    return base + offset, patterns[0], patterns[1], patterns[2], base


def fragments(rows: NDArray[np.int32], words: int) -> NDArray[np.int32]:
    """What threads of `cuda.residues.kernels.split_sm90` hold, (groups of moduli, 2, 4, 8, 8): of a group's 8 moduli,
    or 16 of
    three words, first where the sums start and the factors, then the reductions; by the word that a thread brings, and
    the modulus.

    rows: of `Tables.left` or `right`.
    """
    moduli, group = len(rows), 16 if words == 3 else 8
    found = np.zeros((-(-moduli // group), 2, 4, 8, 8), dtype=np.int32)
    for t, row in enumerate(rows):
        block, own, second = t // group, t % 8, t % group >= 8
        sums, reductions = found[block, 0, :, own], found[block, 1, :, own]
        # The other eight rows are of the same moduli, unless they have moduli of their own.
        for half in (second,) if words == 3 else (False, True):
            sums[:, 2 * half : 2 * half + 2] = row[12]
            reductions[:, 4 * half : 4 * half + 3] = row[13], row[14], -row[10]
        for element in range(4 // words):
            sums[words * element : words * (element + 1), 4 + element + second] = row[6 : 6 + words]
    return found


@functools.lru_cache(maxsize=256)
def tables(moduli: int, device: torch.device) -> Tables:
    """The tables, made and copied once."""
    import torch

    chosen = coprime_moduli(256, moduli)
    whole = math.prod(chosen)
    packed = byte_tables(moduli)
    rows: dict[str, list[list[int]]] = {"left": [], "right": []}
    for side, factors, words, offsets in (
        ("left", [pow(whole // p, -1, p) for p in chosen], packed.left, packed.left_offset),
        ("right", [1] * moduli, packed.right, packed.right_offset),
    ):
        for t, p in enumerate(chosen):
            halves = [symmetric(factors[t] << (16 * x), p) for x in range(6)]
            dwords = [int(x) for x in words[t]] + [0] * (3 - packed.dwords)
            # 128 more, so that the residue in [0, p) less 128 fits in a signed byte. With |Σ| < 6·2^16·2^7 < 2^26 the
            # quotient by floor(2^32/p) may be one too small.
            offset = (128 + int(offsets[t])) % p + p * -(-(1 << 26) // p)
            floats = float_reduction(p, int(offsets[t]) % p)
            rows[side].append([*halves, *dwords, offset, p, (1 << 32) // p, *floats])
    reduction = [[p, (1 << 32) // p, p * -(-(1 << 30) // p)] for p in chosen]
    thresholds = [min(t, 2**63 - 1) for t in shift_thresholds(moduli)]
    return Tables(
        moduli,
        packed.bits,
        packed.dwords,
        residue_system(moduli, 256).limbs,
        torch.tensor(rows["left"], dtype=torch.int32).to(device),
        torch.tensor(rows["right"], dtype=torch.int32).to(device),
        torch.tensor(3 * reduction, dtype=torch.int32).to(device),
        torch.tensor(thresholds, dtype=torch.int64).to(device),
        (norm_limit(moduli) // 2).bit_length(),
        *(
            torch.from_numpy(_all_fragments(np.array(rows[side], dtype=np.int32), packed)).to(device)
            for side in ("left", "right")
        ),
    )


def _all_fragments(rows: NDArray[np.int32], packed: ByteTables) -> NDArray[np.int32]:
    """`fragments`, and where one word is only just too short, those of integers below 2^31 in one behind them."""
    found = fragments(rows, packed.dwords)
    if packed.bits != NEARLY_ONE_WORD:
        return found
    narrow = rows.copy()
    for row in narrow:
        factor, p = int(row[0]), int(row[10])
        row[12] = float_reduction(p, (-factor << 31) % p)[0]
    return np.concatenate([found, fragments(narrow, 1)])


@dataclass(frozen=True)
class Test:
    """What a join asks of an entry: mode and kappas of `accuracy.join_test`, terms K, precision of the result."""

    mode: int
    kappa: float
    magnitude_kappa: float
    terms: int
    precision: int


@functools.cache
def join_constants(moduli: int, test: Test, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 constants of `cuda.residues.kernels.join_exact`, and what `cuda.residues.kernels.join_fast` needs to
    know of kappa, copied once and kept for good: a graph that a caller captured reads them wherever they are.
    """
    import torch

    system = residue_system(moduli, 256)
    careful = [test.kappa, test.magnitude_kappa, *system.quotient, *system.product]
    careful += list(system.weights[:moduli].reshape(-1))
    half = scheme_product(moduli) / 2
    # bound <= ½‖A'‖₁ + ½‖B'‖₁ + K/4 <= √(K·P/2) + K/4, in units of a quarter of 2^(e+s+e+s).
    bound = math.sqrt(test.terms * half) + 0.25 * test.terms
    needed = [4.0 * bound * test.magnitude_kappa * (1 + 2.0**-20)]
    made = [torch.tensor([float(x) for x in some], dtype=torch.float64).to(device) for some in (careful, needed)]
    return made[0], made[1]


@functools.cache
def quick_constants(moduli: int, parts: int, numbers: int) -> tuple[float, ...]:
    """What `cuda.residues.kernels.join_fast` is compiled with, for sums of so many numbers: 1/P, P, 2·E, the least
    |h|, weights."""
    system = paired_system(moduli, numbers, parts)
    head = (system.inverse, *system.product, 2.0 * system.error, system.least)
    return (*head, *(part for weight in system.weights for part in weight))


@functools.cache
def third_constants(moduli: int, parts: int, device: torch.device) -> torch.Tensor:
    """`quick_constants` of sums of three numbers, in memory."""
    import torch

    return torch.tensor(quick_constants(moduli, parts, 3), dtype=torch.float64).to(device)


@dataclass(frozen=True)
class Vectors:
    """Rows of A, or columns of B, to be split: element (b, i, h) is at place + b·steps[0] + i·steps[1] + h·steps[2].

    place: of the matrix's own type; steps in its elements.
    """

    place: Place
    batch: int
    vectors: int
    terms: int
    steps: tuple[int, int, int]

    def some(self, start: int, batches: int) -> Vectors:
        """Some matrices of a batch, or the one that serves all."""
        if self.batch == 1:
            return self
        place = self.place.at(start * self.steps[0], (), ())
        return Vectors(place, min(batches, self.batch - start), self.vectors, self.terms, self.steps)

    def part(self, start: int, stop: int) -> Vectors:
        """Some of the vectors."""
        place = self.place.at(start * self.steps[1], (), ())
        return Vectors(place, self.batch, min(stop, self.vectors) - start, self.terms, self.steps)

    @property
    def parts(self) -> int:
        """Real numbers an element holds."""
        return 2 if self.place.dtype.is_complex else 1

    def even(self, step: int) -> bool:
        """Whether these are multiples of 16, for `cuda.kernels.fp64.even`: real numbers from a matrix to the next and
        along a step (1: to the next vector, 2: within one), and elements along the other one, which are neighbours.
        """
        count = self.terms if step == 1 else self.vectors
        return not (self.parts * self.steps[0] % 16 or self.parts * self.steps[step] % 16 or count % 16)


@dataclass(frozen=True)
class SplitVectors:
    """Vectors, split: planes (batch, planes, rows, pitch) of residues, statistics (batch, 10, vectors).

    Of complex vectors there are three times as many planes: of real parts, imaginary parts and their sums. terms: K.
    sums: of the planes' quarters (`cuda_quarters`), where products are made from those.
    """

    planes: Place
    statistics: Place
    batch: int
    vectors: int
    terms: int
    sums: Place | None = None

    @property
    def plane(self) -> int:
        """Bytes of a plane."""
        return self.planes.shape[2] * self.planes.shape[3]


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def plane_shape(vectors: int, k: int, planes: int) -> tuple[int, int, int]:
    """Shape of an operand's planes: rows in whole groups of 64, and a pitch that TMA can read, in whole lines of memory
    where that adds little.
    """
    return planes, _ceil(vectors, 64), _ceil(k, LINE if k >= 4 * LINE else 32)


def take_statistics(program: Program, x: Vectors) -> Place:
    """Scratch memory for the statistics of some vectors."""
    import torch

    return program.take(torch.int64, x.batch, STATISTICS, x.vectors)


def tall_tile(rows: int, columns: int, length: int) -> tuple[int, int]:
    """A tile for columns of this length, as high as a grid's second extent asks for.

    >>> tall_tile(64, 32, 4096), tall_tile(64, 32, 5_000_000)
    ((64, 32), (128, 16))
    """
    while length > rows * LONGEST_GRID:
        rows, columns = 2 * rows, max(1, columns // 2)
    return rows, columns


def measure_columns(
    program: Program, x: Vectors, statistics: Place, q: int, device: Device, *, levels: bool, exact: bool
) -> None:
    """The norms of columns across contiguous rows, in two launches that add to statistics. exact: the largest
    magnitudes, not their exponents alone.
    """
    from prismm.cuda.residues.kernels import scale

    k, parts = x.terms, x.parts
    steps, reals = tuple(parts * step for step in x.steps), x.place.reals()
    block, (piece, _) = 128, tall_tile(64, 1, k)
    strips = -(-x.vectors * parts // block)
    fixed: dict[str, Any] = {"PARTS": parts, "BLOCK": block, "EVEN": x.even(2), "num_warps": 4}
    program.launch(
        scale.largest_columns, (strips, -(-k // piece), x.batch), reals, steps[2], steps[0], statistics, k,
        x.vectors, PIECE=piece, ROWS=16, EXACT=exact, **fixed,
    )  # fmt: skip
    # Small matrices want many programs, large ones few atomic additions.
    few = strips * x.batch * k < 2 * device.programs * 256 and k <= 128 * LONGEST_GRID
    piece, rows = (128, 16) if few else (256, 8)
    program.launch(
        scale.sum_columns, (strips, -(-k // piece), x.batch), reals, steps[2], steps[0], statistics, k,
        x.vectors, q, PIECE=piece, ROWS=rows, LEVELS=levels, NVIDIA=device.nvidia, enable_fp_fusion=False, **fixed,
    )  # fmt: skip


def split_vectors(
    program: Program, x: Vectors, statistics: Place, table: Tables, device: Device, *, left: bool, levels: bool,
    measure: bool,
) -> SplitVectors:  # fmt: skip
    """Split vectors of any strides; statistics: from `take_statistics`. levels: count large elements, for tests of
    magnitude; measure: the residuals, for tests of rounding and for reports, which otherwise know that they are at most
    a half.
    """
    import torch

    from prismm.cuda.residues.kernels import split

    k, parts = x.terms, x.parts
    shape = plane_shape(x.vectors, k, table.moduli * (3 if parts == 2 else 1))
    across = x.steps[1] == 1 and x.steps[2] != 1
    at_once = _is_split_at_once(x, across, table, device)
    if across and not at_once:
        program.zero(statistics)
    planes = program.take(torch.int8, x.batch, *shape)
    found = SplitVectors(planes, statistics, x.batch, x.vectors, parts * k)
    if x.batch * x.vectors == 0:
        return found
    q = table.fraction_bits(parts * k)
    steps, reals = tuple(parts * step for step in x.steps), x.place.reals()
    fixed: dict[str, Any] = {
        "MODULI": table.moduli, "MEASURE": measure, "WORDS": table.words, "PERMUTED": device.hopper and not left,
        "enable_fp_fusion": False,
    }  # fmt: skip
    if at_once:
        factors = table.left_fragments if left else table.right_fragments
    else:
        factors = table.left if left else table.right
        fixed |= {"NVIDIA": device.nvidia, "PARTS": parts}
    common = (
        statistics, planes, table.thresholds, factors, x.vectors, k, shape[2], shape[1] * shape[2], parts * k, q,
        table.bits, table.limit_bits,
    )  # fmt: skip
    if not across and x.steps[2] != 1 and k > 1:
        raise EngineError("operands of these strides have to be copied first")
    if at_once:
        from prismm.cuda.residues.kernels import split_sm90 as hopper

        narrower = table.bits == NEARLY_ONE_WORD and x.place.dtype == torch.float32 and not measure
        groups = SPLIT_COLUMNS if across else 4 if table.words == 1 or narrower else 2
        own: dict[str, Any] = {}
        if across:
            tiles = 1 << (-(-k // (64 * SPLIT_WARPS)) - 1).bit_length()
            kept = tiles * 64 * SPLIT_WARPS * groups * x.place.dtype.itemsize <= SPLIT_KEPT
            own = {"KEPT": tiles if kept else 0, "maxnreg": 128}
        program.launch(
            hopper.split_columns_at_once if across else hopper.split_rows_at_once,
            (-(-x.vectors // groups) if across else x.vectors, x.batch), reals, steps[2 if across else 1], steps[0],
            *common, WARPS=SPLIT_WARPS, GROUPS=groups, LEVELS=levels, NARROWER=narrower,
            EVEN=x.even(2) and k % 16 == 0 if across else x.even(1), num_warps=SPLIT_WARPS, **own, **fixed,
        )  # fmt: skip
        return found
    if not across:
        block, groups, warps = ROW_BLOCK[0] // parts, max(1, ROW_BLOCK[1] // parts), ROW_BLOCK[2]
        program.launch(
            split.split_rows, (x.vectors, x.batch), reals, steps[1], steps[0], *common,
            FOURS=32 * warps, BLOCK=block, GROUPS=groups, LEVELS=levels, num_warps=warps,
            EVEN=x.even(1), **fixed,
        )  # fmt: skip
        return found
    measure_columns(program, x, statistics, q, device, levels=levels, exact=False)
    (rows, columns), warps = tall_tile(COLUMN_TILE[0], COLUMN_TILE[1] // parts, shape[2]), COLUMN_TILE[2]
    program.launch(
        split.split_columns, (-(-x.vectors // columns), -(-shape[2] // rows), x.batch), reals, steps[2], steps[0],
        *common, ROWS=rows, BLOCK=columns, EVEN=x.even(2) and k % 16 == 0, num_warps=warps, **fixed,
    )  # fmt: skip
    return found


def _is_split_at_once(x: Vectors, across: bool, table: Tables, device: Device) -> bool:
    """Whether one launch measures and splits vectors: rows on a Hopper GPU, and columns that stay in its cache."""
    if not device.hopper or x.parts == 2 or x.terms >= SPLIT_TERMS:
        return False
    if not across:
        return True
    return columns_at_once(x.batch, x.vectors, x.terms * x.place.dtype.itemsize, table.words, device.programs)


def columns_at_once(batch: int, vectors: int, size: int, words: int, programs: int) -> bool:
    """Whether one launch measures and splits real columns of so many bytes on a Hopper GPU: they stay in its cache, and
    keep it busy.
    """
    return words < 3 and size <= SPLIT_BYTES and batch * -(-vectors // SPLIT_COLUMNS) >= 2 * programs


def digits_shape(m: int, n: int, planes: int) -> tuple[int, int, int]:
    """Of the digits of a matrix: rows in whole words."""
    return planes, m, _ceil(n, 64)


def in_words(planes: Place) -> Place:
    """The same memory, four bytes at a time."""
    import torch

    return Place(planes.base, planes.offset, torch.int32)


def multiply_planes(
    program: Program, left: SplitVectors, right: SplitVectors, table: Tables, device: Device
) -> Place:  # fmt: skip
    """The digits (batch, planes, m, n rounded up to 64) of all entries."""
    import torch

    batch, m, n = max(left.batch, right.batch), left.vectors, right.vectors
    _, count, left_rows, pitch = left.planes.shape
    right_rows = right.planes.shape[2]
    digits = program.take(torch.uint8, batch, *digits_shape(m, n, count))
    row_pitch, plane = digits.shape[3], digits.shape[2] * digits.shape[3]
    # Planes from one matrix of a batch to the next: none where one operand serves all.
    left_step, right_step = (count if x.batch == batch else 0 for x in (left, right))
    if not device.hopper:
        from prismm.cuda.residues.kernels import product

        rows, columns, depth = 128, 128, 64
        program.launch(
            product.residue_product, (-(-m // rows) * -(-n // columns), count, batch), left.planes, right.planes,
            digits, table.reduction, m, n, pitch, left.plane, right.plane, left_step, right_step, row_pitch, plane,
            ROWS=rows, COLUMNS=columns, DEPTH=depth, GROUP=8, CHUNK=product.CHUNK, num_warps=8, num_stages=3,
        )  # fmt: skip
        return digits
    from prismm.cuda.residues.kernels import product_sm90 as hopper

    program.launch(
        hopper.residue_product, product_grid(m, n, count * batch, device),
        described(program, left.planes, 64), described(program, right.planes, hopper.COLUMNS),
        in_words(digits), table.reduction, m, n, left_rows, right_rows, pitch,
        row_pitch // 4, plane // 4, count, left_step, right_step, batch, **product_constants(pitch),
    )  # fmt: skip
    return digits


def product_grid(m: int, n: int, planes: int, device: Device) -> tuple[int]:
    """Persistent programs for so many products."""
    from prismm.cuda.residues.kernels import product_sm90 as hopper

    return (min(device.programs, -(-m // hopper.ROWS) * -(-n // hopper.COLUMNS) * planes),)


def product_constants(pitch: int) -> dict[str, Any]:
    """What Hopper's product is compiled with, for an inner dimension of so many bytes."""
    from prismm.cuda.residues.kernels import product
    from prismm.cuda.residues.kernels import product_sm90 as hopper

    depth = hopper.DEPTH
    return {
        "CONSUMERS": hopper.CONSUMERS, "COLUMNS": hopper.COLUMNS, "DEPTH": depth, "STAGES": hopper.STAGES,
        "GROUP": hopper.GROUP, "AHEAD": hopper.AHEAD if pitch > (2 * hopper.AHEAD - 1) * depth else 1,
        "CHUNK": product.CHUNK // depth, "LONG": pitch > product.CHUNK, **hopper.LAUNCH,
    }  # fmt: skip


def described(program: Program, planes: Place, rows: int) -> Tiled:
    """Planes (batch, planes, rows, pitch) as one matrix, to be copied so many rows at a time."""
    from triton.experimental.gluon import language as gl

    from prismm.cuda.residues.kernels.product_sm90 import DEPTH

    layout = gl.NVMMASharedLayout.get_default_for([rows, DEPTH], gl.int8)
    return program.tiled(planes, (math.prod(planes.shape[:3]), planes.shape[3]), (rows, DEPTH), layout)


@dataclass(frozen=True)
class Result:
    """Where a product (batch, m, n) goes: element (b, i, j) at place + b·steps[0] + i·steps[1] + j·steps[2]."""

    place: Place
    batch: int
    m: int
    n: int
    steps: tuple[int, int, int]

    @property
    def extents(self) -> tuple[int, int, int]:
        """Matrices, rows, columns."""
        return self.batch, self.m, self.n

    def reals(self, part: int) -> Result:
        """The real or imaginary parts of a complex result; a real one as it is."""
        if not self.place.dtype.is_complex:
            return self
        steps = 2 * self.steps[0], 2 * self.steps[1], 2 * self.steps[2]
        return Result(self.place.reals().at(part, (), ()), self.batch, self.m, self.n, steps)

    def some(self, start: int, batches: int) -> Result:
        """Some matrices of a batch."""
        place = self.place.at(start * self.steps[0], (), ())
        return Result(place, min(batches, self.batch - start), self.m, self.n, self.steps)

    def part(self, i: int, rows: int, j: int, columns: int) -> Result:
        """A block of every matrix."""
        place = self.place.at(i * self.steps[1] + j * self.steps[2], (), ())
        return Result(place, self.batch, min(rows, self.m - i), min(columns, self.n - j), self.steps)


def finish_programs(device: Device, mode: int) -> int:
    """Programs that see to what a join left. As many as there are registers for, since each costs its start, also where
    nothing is left; twice as many where correct rounding leaves more to some than to others.
    """
    return (4 if mode == ROUNDING else 2) * device.programs


def join_digits(
    program: Program, digits: Place, out: Result, a: Vectors, b: Vectors, left: SplitVectors, right: SplitVectors,
    table: Tables, test: Test, counts: Place, opened: Place, device: Device,
) -> None:  # fmt: skip
    """Join into out, certify, and repair: two to five launches. counts (4,) int64 grow by special, exact, magnitude
    and kept entries; opened (1,), 0 before, is this join's own.
    """
    import torch

    from prismm.cuda.residues.kernels import join_fast as quick
    from prismm.cuda.residues.kernels import repair

    parts, k = a.parts, a.terms
    apart = test.mode == MAGNITUDE and test.magnitude_kappa > 0.0
    rows, strip, block, warps = join_tile(test.mode)
    strips, blocks = -(-out.m // strip), -(-out.n // block)
    primes = coprime_moduli(256, table.moduli)
    careful, needed = join_constants(table.moduli, test, table.left.device)
    flags = program.take(torch.int32, out.batch, parts, strips, blocks)
    q = table.fraction_bits(left.terms)
    reals = out.place.reals()
    steps = tuple(parts * step for step in out.steps)
    row_pitch, plane = digits.shape[3], digits.shape[2] * digits.shape[3]
    even = steps[1] % 16 == 0 and steps[0] % 16 == 0 and out.n % 16 == 0
    program.launch(
        quick.join_quickly, (blocks, strips, out.batch * parts), digits, reals, steps[1], steps[2], steps[0], flags,
        left.statistics, right.statistics, needed, out.m, out.n, left.terms, q, row_pitch, plane, strips * blocks,
        left.batch, right.batch,
        MODULI=table.moduli, MODE=test.mode, TESTED=test.magnitude_kappa > 0.0, PRECISION=test.precision, PARTS=parts,
        ROWS=rows, STRIP=strip, BLOCK=block, EVEN=even, NVIDIA=device.nvidia, num_warps=warps, enable_fp_fusion=False,
        SYSTEM=quick_constants(table.moduli, parts, 2), PRIMES=primes,
        HALF=(scheme_product(table.moduli) // 2).bit_length(),
    )  # fmt: skip
    words = strips * blocks
    total = words * out.batch * parts
    third = third_constants(table.moduli, parts, table.left.device)
    if test.precision == 53:
        program.launch(
            repair.look_again, (min(LOOKS * device.programs, total),), reals, *steps, flags, digits, left.statistics,
            right.statistics, table.reduction, third, out.m, out.n, q, row_pitch, plane, blocks, words, out.batch,
            left.batch, right.batch, MODULI=table.moduli, MODE=test.mode, PARTS=parts, TILE=rows, STRIP=strip,
            COLUMNS=block, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    programs = min(finish_programs(device, test.mode), total)
    span = min(32, 1 << (-(-total // programs) - 1).bit_length())
    marks = program.take(torch.int32, programs, max(rows, FINISH_ROWS), block // 32)
    left_open = program.take(torch.int32, out.batch, parts, strips, blocks, strip, block // 32) if apart else marks
    x, y = a.place.reals(), b.place.reals()
    a_steps, b_steps = (tuple(parts * step for step in some.steps) for some in (a, b))
    where = (x, *a_steps, y, *b_steps, reals, *steps)
    program.launch(
        repair.finish, (programs,), *where, flags, marks, left_open, digits, left.statistics, right.statistics, careful,
        table.reduction, third, counts, opened, out.m, out.n, k,
        left.terms, q, row_pitch, plane, blocks, words, out.batch, left.batch, right.batch, MODULI=table.moduli,
        LIMBS=table.limbs, MODE=test.mode, PRECISION=test.precision, PARTS=parts, LEVELS=min(LEVELS, q), TILE=rows,
        STRIP=strip, ROWS=FINISH_ROWS, COLUMNS=block, BLOCK=LANES, WORDS=span, APART=apart, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    if apart:
        _settle_open(program, where, flags, left_open, a, b, left, right, careful, counts, opened, test, q, device)


def magnitude_shape(vectors: int, k: int, parts: int) -> tuple[int, int, int]:
    """Shape of an operand's planes of magnitudes, and of what is not zero, in whole tiles."""
    side, depth = MAGNITUDE_TILE
    return 2 * parts, _ceil(vectors, side), _ceil(k, depth)


def scratch_bytes(
    rows: int, columns: int, k: int, moduli: int, parts: int, test: Test, split: tuple[bool, bool] = (True, True),
    *, summed: bool = False,
) -> int:  # fmt: skip
    """Bytes of scratch memory that a matrix of a batch takes for a block of so many rows and columns, but for what
    programs hold (`held_bytes`). split: whether rows and columns are split, not kept; summed: into gemm's sum.
    """
    planes = moduli * (3 if parts == 2 else 1)
    found = math.prod(digits_shape(rows, columns, planes)) + STATISTICS * 8 * (rows + columns)
    for vectors, own in zip((rows, columns), split, strict=True):
        found += math.prod(plane_shape(vectors, k, planes)) if own else 0
    if summed:
        return found + 4 * parts * rows * -(-columns // 32)
    _, strip, block, _ = join_tile(test.mode)
    words = parts * -(-rows // strip) * -(-columns // block)
    found += 4 * words
    if test.mode == MAGNITUDE and test.magnitude_kappa > 0.0:
        found += words * strip * block // 8
        if parts * k <= MOST_MAGNITUDES:
            found += sum(math.prod(magnitude_shape(vectors, k, parts)) for vectors in (rows, columns))
    return found


def held_bytes(rows: int, columns: int, parts: int, batches: int, test: Test, device: Device) -> int:
    """Bytes of scratch memory that the programs of a join hold, of so many matrices of a batch."""
    tile, strip, block, _ = join_tile(test.mode)
    words = batches * parts * -(-rows // strip) * -(-columns // block)
    found = min(finish_programs(device, test.mode), words) * max(tile, FINISH_ROWS) * block // 8
    if test.mode == MAGNITUDE and test.magnitude_kappa > 0.0:
        found += min(2 * device.programs, words) * block * (4 * strip + 16 * OPEN_ROWS)
    return found


def _settle_open(
    program: Program, where: tuple[Any, ...], flags: Place, marks: Place, a: Vectors, b: Vectors, left: SplitVectors,
    right: SplitVectors, careful: torch.Tensor, counts: Place, opened: Place, test: Test, q: int, device: Device,
) -> None:  # fmt: skip
    """Settle what a join left open; where: places and steps of both operands and the result."""
    import torch

    from prismm.cuda.residues.kernels import magnitudes

    batches, parts, strips, blocks, strip, width = marks.shape
    side, depth = MAGNITUDE_TILE
    depths = -(-a.terms // depth)
    batches_of = left.batch, right.batch
    words = strips * blocks
    enough = min(FEW_OF_STRIP * words * batches * parts, 2**31 - 1)
    if left.terms <= MOST_MAGNITUDES:
        few = FEW_OPEN
        places = [program.take(torch.int8, x.batch, *magnitude_shape(x.vectors, a.terms, parts)) for x in (left, right)]
        program.launch(
            magnitudes.magnitude_planes, (device.programs,), *where[:8], left.statistics, right.statistics, *places,
            opened, left.vectors, right.vectors, a.terms, depths, *batches_of, enough, PARTS=parts,
            A_ALONG=a.steps[2] == 1, B_ALONG=b.steps[2] == 1, SIDE=side, DEPTH=depth, VECTORS=32, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip
    else:  # sums of longer vectors might not fit in 32 bits
        few, places = strip * 32 * width, [program.take(torch.int8, 1)] * 2
    # No more programs than run at once: where nothing is open, each costs its start.
    programs = min(2 * device.programs, words * batches * parts)
    sums = program.take(torch.int32, programs, strip, 32 * width)
    high = program.take(torch.float64, programs, 2, OPEN_ROWS, 32 * width)
    program.launch(
        magnitudes.settle_open, (programs,), *where, flags, marks, *places, sums, high, left.statistics,
        right.statistics, careful, counts, opened, left.vectors, right.vectors, a.terms, depths, left.terms, q, blocks,
        words, batches, *batches_of, few, enough, MANY_OPEN, PRECISION=test.precision, PARTS=parts,
        TILE=join_tile(test.mode)[0], STRIP=strip, HEIGHT=OPEN_ROWS, COLUMNS=32 * width, SIDE=side, DEPTH=depth,
        BLOCK=OPEN_LANES, num_warps=OPEN_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


COMBINE_TILE = 4, 128, 4
"""Rows and columns of a tile of gemm's epilogue, and the warps that work on it."""

FACTORS = tuple(Factor(index) for index in range(4))
"""Parts of alpha and beta."""


def combine_digits(
    program: Program, digits: Place, out: Result, addend: Result | None, a: Vectors, b: Vectors, left: SplitVectors,
    right: SplitVectors, table: Tables, test: Test, counts: Place, device: Device,
) -> None:  # fmt: skip
    """`join_digits` of alpha·X + beta·C, with C = addend: every entry joined with every care."""
    from prismm.cuda.gemm.kernels import combine

    marks, grid, common = combining(program, out, addend)
    careful, _ = join_constants(table.moduli, test, table.left.device)
    fixed = {"MODE": test.mode, "PRECISION": test.precision, "PARTS": a.parts, "ADDEND": addend is not None}
    program.launch(
        combine.combine_digits, grid, digits, *common, marks, left.statistics, right.statistics, careful,
        table.reduction, *FACTORS, out.m, out.n, left.terms, table.fraction_bits(left.terms), digits.shape[3],
        digits.shape[2] * digits.shape[3], marks.shape[3], left.batch, right.batch,
        MODULI=table.moduli, LIMBS=table.limbs, LEVELS=min(LEVELS, table.fraction_bits(left.terms)),
        TESTED=test.magnitude_kappa > 0.0, ROWS=COMBINE_TILE[0], BLOCK=COMBINE_TILE[1], num_warps=COMBINE_TILE[2],
        enable_fp_fusion=False, **fixed,
    )  # fmt: skip
    statistics = left.statistics, right.statistics, left.batch, right.batch, table.fraction_bits(left.terms)
    settle_marks(program, out, addend, a, b, marks, statistics, counts, device, PRODUCT=True, **fixed)


def combine_values(
    program: Program, products: Place | None, out: Result, addend: Result | None, a: Vectors, b: Vectors, terms: int,
    precision: int, counts: Place, device: Device,
) -> None:  # fmt: skip
    """out = alpha·X + beta·C of products X (batch, m, n) that meet the "native" target, contiguous; None for 0."""
    from prismm.cuda.gemm.kernels import combine
    from prismm.cuda.residues.kernels import repair

    marks, grid, common = combining(program, out, addend)
    fixed = {
        "PRECISION": precision, "PARTS": 2 if out.place.dtype.is_complex else 1, "ADDEND": addend is not None,
        "PRODUCT": products is not None,
    }  # fmt: skip
    source = products.reals() if products is not None else common[0]
    program.launch(
        combine.combine_values, grid, source, *common, marks, *FACTORS, out.m, out.n, terms, marks.shape[3],
        ROWS=COMBINE_TILE[0], BLOCK=COMBINE_TILE[1], num_warps=COMBINE_TILE[2], enable_fp_fusion=False, **fixed,
    )  # fmt: skip
    nothing = counts, counts, 1, 1, 1
    settle_marks(program, out, addend, a, b, marks, nothing, counts, device, MODE=repair.NATIVE.value, **fixed)


def combining(program: Program, out: Result, addend: Result | None) -> tuple[Place, tuple[int], tuple[Any, ...]]:
    """Marks, a grid of tiles, and the arguments for the result and C: places, strides of rows, columns, matrices."""
    import torch

    parts = 2 if out.place.dtype.is_complex else 1
    marks = program.take(torch.int32, out.batch, parts, out.m, -(-out.n // 32))
    grid = (-(-out.n // COMBINE_TILE[1]) * -(-out.m // COMBINE_TILE[0]) * out.batch,)
    common: list[Any] = []
    for some in (out, addend or out):
        step = 2 if some.place.dtype.is_complex else 1
        common += [some.place.reals(), step * some.steps[1], step * some.steps[2], step * some.steps[0]]
    return marks, grid, tuple(common)


def settle_marks(
    program: Program, out: Result, addend: Result | None, a: Vectors, b: Vectors, marks: Place,
    statistics: tuple[Place, Place, int, int, int], counts: Place, device: Device, **fixed: Any,
) -> None:  # fmt: skip
    """Set the entries that an epilogue marked. statistics: of rows and columns, their matrices, and q."""
    from prismm.cuda.gemm.kernels import combine

    a_steps, b_steps, steps = (
        tuple((2 if some.place.dtype.is_complex else 1) * step for step in some.steps) for some in (a, b, out)
    )
    source = addend or out
    c_steps = tuple((2 if source.place.dtype.is_complex else 1) * step for step in source.steps)
    words = math.prod(marks.shape)
    program.launch(
        combine.settle, (min(8 * device.programs, -(-words // combine.SPAN.value)),), a.place.reals(), *a_steps,
        b.place.reals(), *b_steps, out.place.reals(), *steps, source.place.reals(), c_steps[1], c_steps[2], c_steps[0],
        marks, *statistics[:2], counts, *FACTORS, out.m, out.n, a.terms, statistics[4], marks.shape[3], out.batch,
        *statistics[2:4],
        BLOCK=LANES, num_warps=4, enable_fp_fusion=False, **fixed,
    )  # fmt: skip


PROOF_PROGRAMS, PROOF_CHUNK, PROOF_SLACK, PROOF_TERMS = 4, 2048, 4, 1 << 22
"""Programs a multiprocessor that look for the largest magnitudes of operands, and elements that each reads at a time;
binades of room for an entry, and most products in one: see `cuda.kernels.overflow`.
"""


def multiply_natively(program: Program, a: Vectors, b: Vectors, out: Result) -> None:
    """Queue out = AB, contiguous, by cuBLAS.

    Raises:
        EngineError: for operands of strides that it does not read.
    """
    import torch

    (batch, row, column), (right_batch, right_column, right_row) = a.steps, b.steps
    workspace = program.take(torch.uint8, cublas.WORKSPACE)
    gemm = cublas.Gemm(
        a.place, b.place, out.place, (out.batch, out.m, out.n, a.terms), (batch if a.batch > 1 else 0, row, column),
        (right_batch if b.batch > 1 else 0, right_row, right_column), workspace,
    )  # fmt: skip
    gemm.call  # noqa: B018 - raises
    program.gemm(gemm)


def prove(program: Program, a: Vectors, b: Vectors, device: Device) -> Place:
    """Find the largest magnitudes of operands without gaps, for `finish_native`; returns where they are."""
    import torch

    from prismm.cuda.kernels import overflow

    programs = PROOF_PROGRAMS * device.programs
    found = program.take(torch.int32, 2, programs)
    sizes = (x.parts * x.batch * x.vectors * x.terms for x in (a, b))
    program.launch(
        overflow.largest_magnitudes, (programs,), a.place.reals(), b.place.reals(), found, *sizes, CHUNK=PROOF_CHUNK,
        num_warps=4,
    )  # fmt: skip
    return found


def finish_native(
    program: Program, out: Result, a: Vectors, b: Vectors, counts: Place, device: Device, found: Place | None = None
) -> None:  # fmt: skip
    """Settle the entries of a native product, contiguous, that are not finite or may have to be infinite. found: of
    `prove`.
    """
    from prismm.cuda.residues.kernels import repair

    parts, chunk = a.parts, 2048
    precision = 53 if out.place.reals().dtype.itemsize == 8 else 24
    programs = found.shape[1] if found is not None else 0
    # Biased exponents E stand for |x| < 2^(E + 1 - bias).
    bias = 1023 if precision == 53 else 127
    most = 3 * bias - 2 - PROOF_SLACK - (parts * a.terms - 1).bit_length()
    total = parts * math.prod(out.extents)
    chunks = -(-total // chunk)
    a_steps, b_steps = (tuple(parts * step for step in some.steps) for some in (a, b))
    program.launch(
        repair.finish_native, (min(8 * device.programs, chunks),), a.place.reals(), *a_steps, b.place.reals(), *b_steps,
        out.place.reals(), counts, found or counts, out.m, out.n, a.terms, total, chunks, programs, most,
        PRECISION=precision, PARTS=parts, CHUNK=chunk, BLOCK=LANES,
        LANES=1 << (programs - 1).bit_length() if programs else 0, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
