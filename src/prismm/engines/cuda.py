"""The GPU engine: what the device can do, the tables that its kernels read, and their launches.

| name | inner product | exact because |
| --- | --- | --- |
| cuda:int8 | INT8 matrix instructions | k·2^14 <= 2^29 for k <= 2^15, reduced between such blocks |
| cuda:blas | cuBLAS through torch, in the operands' type | conventional; certified a priori |

Everything here is asynchronous: no launch waits for another, so calls follow the current stream and can be captured in
a CUDA graph once their tables are on the device (a call of the same kind before the capture puts them there).
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.engines.launch import Launches
from prismm.errors import EngineError
from prismm.moduli import (
    byte_tables,
    coprime_moduli,
    norm_fraction_bits,
    residue_system,
    shift_thresholds,
    symmetric,
)

if TYPE_CHECKING:
    import torch

INT8, BLAS = "cuda:int8", "cuda:blas"
STATISTICS = 10
"""Integers that the kernels keep of a vector: see `kernels.gpu.numbers`."""

LEVELS = 5
ROW_BLOCK = 512, 4
COLUMN_TILE = 128, 64, 8
JOIN_TILE = 4, 32, 128, 4
"""Elements, or rows and columns, of a tile, and the warps that work on it, as measured on an H200."""

NATIVE = 3
"""Mode of `repair_marked` for products of cuBLAS."""


@dataclass(frozen=True)
class Device:
    """How kernels are built for a GPU.

    hopper: with the warp-specialised product for sm_90. dp4a: with NVIDIA's dot product of bytes. programs: persistent
    programs that fill it.
    """

    name: str
    hopper: bool
    dp4a: bool
    programs: int


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
    return Device(facts.name, capability[0] == 9, True, facts.multi_processor_count)


def reduced_float32() -> str | None:
    """Why torch's float32 GEMM on a GPU may use fewer bits than float32, or None if it may not."""
    import torch

    if os.environ.get("NVIDIA_TF32_OVERRIDE", "") == "1":
        return "NVIDIA_TF32_OVERRIDE=1"
    matmul = torch.backends.cuda.matmul
    # The newer setter makes reads of the older flag raise; where it exists, it knows of both.
    precision = getattr(matmul, "fp32_precision", None)
    if precision is not None:
        if precision == "none":
            precision = getattr(torch.backends, "fp32_precision", "none")
        return None if precision in ("ieee", "none") else f"torch.backends.cuda.matmul.fp32_precision is {precision!r}"
    return "torch.backends.cuda.matmul.allow_tf32 is True" if matmul.allow_tf32 else None


def emulated_by_cublas() -> str | None:
    """Which setting lets cuBLAS emulate FP64 or FP32, or None."""
    for name in ("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY"):
        value = os.environ.get(name, "")
        if value not in ("", "0", "default"):
            return f"{name}={value}"
    return None


@dataclass(frozen=True, eq=False)
class Tables:
    """What the kernels read for the scheme of so many moduli, on one device.

    left, right: (moduli, 14) int32, see `kernels.gpu.split.FIELDS`; reduction: (3·moduli, 3) int32, three times the
    same, see `kernels.gpu.product.reduced`; thresholds: int64, see `moduli.shift_thresholds`.
    """

    moduli: int
    bits: int
    words: int
    limbs: int
    left: torch.Tensor
    right: torch.Tensor
    reduction: torch.Tensor
    thresholds: torch.Tensor

    def fraction_bits(self, terms: int) -> int:
        """q of `moduli.norm_fraction_bits`."""
        return norm_fraction_bits(self.moduli, terms)


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
            # quotient by floor(2^32/p) may be one too small; with |Σ| < 12·2^8·2^7 < 2^19 that by one more than it is
            # exact: it errs by less than 2^20/2^32 < 1/p.
            least = (128 + int(offsets[t])) % p
            offset, small = (least + p * -(-bound // p) for bound in (1 << 26, 1 << 19))
            rows[side].append([*halves, *dwords, offset, p, (1 << 32) // p, small, (1 << 32) // p + 1])
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
    )


@functools.lru_cache(maxsize=1024)
def join_constants(moduli: int, kappa: float, magnitude_kappa: float, device: torch.device) -> torch.Tensor:
    """The float64 constants of `kernels.gpu.join`, copied once."""
    import torch

    system = residue_system(moduli, 256)
    head = [kappa, magnitude_kappa, *system.quotient, *system.product]
    weights = system.weights[:moduli].reshape(-1)
    return torch.tensor([*map(float, head), *map(float, weights)], dtype=torch.float64).to(device)


@dataclass(frozen=True, eq=False)
class SplitVectors:
    """Rows of A, or columns of B, split: planes (moduli, rows, pitch) of residues, statistics (10, vectors).

    Of complex vectors there are three times as many planes: of real parts, imaginary parts and their sums. terms: K.
    """

    planes: torch.Tensor
    statistics: torch.Tensor
    vectors: int
    terms: int

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return self.planes.nbytes + self.statistics.nbytes


def _aligned(x: torch.Tensor) -> bool:
    return x.data_ptr() % 16 == 0


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step


def plane_shape(vectors: int, k: int, planes: int) -> tuple[int, int, int]:
    """Shape of an operand's planes: rows in whole groups of 64, and a pitch that TMA can read."""
    return planes, _ceil(vectors, 64), _ceil(k, 16)


def _reals(x: torch.Tensor) -> torch.Tensor:
    """x, or the real numbers behind complex ones, imaginary parts next to the real ones."""
    import torch

    return torch.view_as_real(x) if x.is_complex() else x


def split_vectors(
    x: torch.Tensor, table: Tables, device: Device, launch: Launches, *, left: bool, levels: bool
) -> SplitVectors:  # fmt: skip
    """Split the vectors x (vectors, k), real or complex, of any strides."""
    import torch

    from prismm.kernels.gpu import scale, split

    vectors, k = x.shape
    parts = 2 if x.is_complex() else 1
    shape = plane_shape(vectors, k, table.moduli * (3 if parts == 2 else 1))
    planes = torch.empty(shape, dtype=torch.int8, device=x.device)
    q = table.fraction_bits(parts * k)
    factors = table.left if left else table.right
    fixed: dict[str, Any] = {
        "MODULI": table.moduli, "THRESHOLDS": table.thresholds.numel(), "WORDS": table.words, "DP4A": device.dp4a,
        "PERMUTED": device.hopper and not left, "PARTS": parts, "enable_fp_fusion": False,
    }  # fmt: skip
    plane = shape[1] * shape[2]
    across = x.stride(0) == 1 and x.stride(1) != 1 and vectors > 1
    which = left, vectors, _aligned(x)
    if not across:
        x = x if x.stride(1) == 1 or k == 1 else x.contiguous()
        statistics = torch.empty((STATISTICS, vectors), dtype=torch.int64, device=x.device)
        block, warps = ROW_BLOCK
        fixed["EVEN"] = x.stride(0) * parts % 16 == 0 and k % 16 == 0
        launch(
            ("rows", *which), split.split_rows, (vectors,), _reals(x), x.stride(0) * parts, statistics, planes,
            table.thresholds, factors, vectors, k, shape[2], plane, q, table.bits,
            BLOCK=block, LEVELS=levels, num_warps=warps, **fixed,
        )  # fmt: skip
        return SplitVectors(planes, statistics, vectors, parts * k)
    statistics = torch.zeros((STATISTICS, vectors), dtype=torch.int64, device=x.device)
    stride, piece, block, reals = x.stride(1) * parts, 256, 128, _reals(x)
    grid = (-(-vectors * parts // block), -(-k // piece))
    even = stride % 16 == 0 and vectors % 16 == 0
    launch(
        ("largest", *which), scale.largest_columns, grid, reals, stride, statistics, k, vectors, PARTS=parts,
        PIECE=piece, ROWS=16, BLOCK=block, EVEN=even, num_warps=4,
    )  # fmt: skip
    launch(
        ("sums", *which), scale.sum_columns, grid, reals, stride, statistics, k, vectors, q, PARTS=parts, PIECE=piece,
        ROWS=8, BLOCK=block, LEVELS=levels, EVEN=even, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    fixed["EVEN"] = even and k % 16 == 0
    rows, columns, warps = COLUMN_TILE[0], COLUMN_TILE[1] // parts, COLUMN_TILE[2]
    launch(
        ("columns", *which), split.split_columns, (-(-vectors // columns), -(-shape[2] // rows)), reals, stride,
        statistics, planes, table.thresholds, factors, vectors, k, shape[2], plane, q, table.bits,
        ROWS=rows, BLOCK=columns, num_warps=warps, **fixed,
    )  # fmt: skip
    return SplitVectors(planes, statistics, vectors, parts * k)


def multiply_planes(
    left: SplitVectors, right: SplitVectors, table: Tables, device: Device, launch: Launches
) -> torch.Tensor:  # fmt: skip
    """The digits (planes, m, n rounded up to 64) of all entries."""
    import torch

    m, n = left.vectors, right.vectors
    count, left_rows, pitch = left.planes.shape
    right_rows = right.planes.shape[1]
    digits = torch.empty((count, m, _ceil(n, 64)), dtype=torch.uint8, device=left.planes.device)
    row_pitch, plane = digits.shape[2], digits.shape[1] * digits.shape[2]
    if not device.hopper:
        from prismm.kernels.gpu import product

        rows, columns, depth = 128, 128, 64
        launch(
            ("product", m, n), product.residue_product, (-(-m // rows) * -(-n // columns), count), left.planes,
            right.planes, digits, table.reduction, m, n, pitch, left_rows * pitch, right_rows * pitch, row_pitch, plane,
            ROWS=rows, COLUMNS=columns, DEPTH=depth, GROUP=8, CHUNK=product.CHUNK, num_warps=8, num_stages=3,
        )  # fmt: skip
        return digits
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from prismm.kernels.gpu import product
    from prismm.kernels.gpu import product_hopper as hopper

    depth = hopper.DEPTH
    described = []
    for planes, rows in ((left.planes, 64), (right.planes, hopper.COLUMNS)):
        layout = gl.NVMMASharedLayout.get_default_for([rows, depth], gl.int8)
        described.append(TensorDescriptor(planes, [count * planes.shape[1], pitch], [pitch, 1], [rows, depth], layout))
    tiles = -(-m // hopper.ROWS) * -(-n // hopper.COLUMNS) * count
    launch(
        ("product", m, n), hopper.residue_product, (min(device.programs, tiles),), *described, digits,
        table.reduction, m, n, left_rows, right_rows, pitch, row_pitch, plane, count,
        CONSUMERS=hopper.CONSUMERS, COLUMNS=hopper.COLUMNS, DEPTH=depth, STAGES=hopper.STAGES, GROUP=hopper.GROUP,
        CHUNK=product.CHUNK // depth, **hopper.LAUNCH,
    )  # fmt: skip
    return digits


def real_parts(out: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """(part, real matrix) of each real part: 0 for a real matrix, 1 and 2 of a complex one, as kernels name them."""
    if not out.is_complex():
        return [(0, out)]
    reals = _reals(out)
    return [(1, reals[..., 0]), (2, reals[..., 1])]


def _precision(out: torch.Tensor) -> int:
    return 53 if out.element_size() == 8 else 24


def join_digits(
    digits: torch.Tensor,
    out: torch.Tensor,
    left: SplitVectors,
    right: SplitVectors,
    table: Tables,
    mode: int,
    constants: torch.Tensor,
    launch: Launches,
) -> list[torch.Tensor]:
    """Join into out (m, n); returns the marks of entries that are left to repair, for each real part."""
    import torch

    from prismm.kernels.gpu import join

    m, n = out.shape
    mark_pitch = -(-n // 32)
    q = table.fraction_bits(left.terms)
    rows, strip, block, warps = JOIN_TILE
    found = []
    for part, real in real_parts(out):
        marks = torch.empty((m, mark_pitch), dtype=torch.int32, device=out.device)
        launch(
            ("join", part, m, n, _aligned(real)), join.join, (-(-n // block), -(-m // strip)), digits, real,
            real.stride(0), real.stride(1), marks, left.statistics, right.statistics, constants, table.reduction, m, n,
            left.terms, left.terms, q, digits.shape[2], digits.shape[1] * digits.shape[2], mark_pitch,
            MODULI=table.moduli, LIMBS=table.limbs, MODE=mode, PRECISION=_precision(real), PART=part,
            LEVELS=min(LEVELS, q), EVEN=real.stride(0) % 16 == 0 and n % 16 == 0, ROWS=rows, STRIP=strip, BLOCK=block,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
        found.append(marks)
    return found


def repair_marked(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    marks: list[torch.Tensor],
    counts: torch.Tensor,
    device: Device,
    launch: Launches,
    mode: int = NATIVE,
    joined: tuple[torch.Tensor, SplitVectors, SplitVectors, Tables, torch.Tensor] | None = None,
) -> None:
    """Settle the marked entries of out = a @ b, all of one kind; counts (4,) int64 grow by special, exact, magnitude
    and kept ones.

    marks: of each real part. joined: digits, split operands, tables and constants of `join_digits`; None for a native
    product.
    """
    from prismm.kernels.gpu import repair

    m, n = out.shape
    k = a.shape[1]
    parts = 2 if out.is_complex() else 1
    words = marks[0].numel()
    span = 128
    block = min(1024, max(128, 1 << max(0, k - 1).bit_length()))
    x, y = _reals(a), _reals(b)
    for (part, real), some in zip(real_parts(out), marks, strict=True):
        digits, rows, columns, constants, reduction = (some,) * 5
        moduli, limbs, q, row_pitch, plane = 1, 2, 1, 1, 1
        if joined is not None:
            digits, left, right, table, constants = joined
            rows, columns, reduction = left.statistics, right.statistics, table.reduction
            moduli, limbs, q = table.moduli, table.limbs, table.fraction_bits(parts * k)
            row_pitch, plane = digits.shape[2], digits.shape[1] * digits.shape[2]
        name = "repair", part, m, n, _aligned(a), _aligned(b), _aligned(real)
        launch(
            name, repair.repair, (min(8 * device.programs, -(-words // span)),), x, a.stride(0) * parts,
            a.stride(1) * parts, y, b.stride(1) * parts, b.stride(0) * parts, real, real.stride(0), real.stride(1),
            some, digits, rows, columns, constants, reduction, counts, m, n, k, parts * k, q, row_pitch, plane,
            some.shape[1], words, MODULI=moduli, LIMBS=limbs, MODE=mode, PRECISION=_precision(real), PART=part,
            BLOCK=block, WORDS=span, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


def mark_nonfinite(out: torch.Tensor, launch: Launches) -> list[torch.Tensor]:
    """Marks of the entries of out (m, n) that are Inf or NaN, for each real part."""
    import torch

    from prismm.kernels.gpu import marks as kernels

    m, n = out.shape
    pitch = -(-n // 32)
    found = []
    for part, real in real_parts(out):
        marks = torch.empty((m, pitch), dtype=torch.int32, device=out.device)
        launch(
            ("marks", part, m, n, _aligned(real)), kernels.mark_nonfinite, (-(-m // 8), -(-n // 256)), real,
            real.stride(0), real.stride(1), marks, m, n, pitch, ROWS=8, BLOCK=256, num_warps=4,
        )  # fmt: skip
        found.append(marks)
    return found
