"""AMD's matrix cores, CDNA 1 to 3: three different arithmetics, and chains of IEEE operations for FP32 and FP64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import (
    BF16,
    E4M3FNUZ,
    E5M2FNUZ,
    FP16,
    FP32,
    FP64,
    INT8,
    INT32,
    TF32,
    Format,
)
from prismm.numerics.catalogue.words import BOTH, BUT_SUBNORMALS, BUT_ZEROS, KM, MMASIM, STATED
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["models"]

_MODELS = f"{MMASIM}; {KM}"


def models() -> Iterator[EngineModel]:
    """All of them."""
    yield _exact("mi100", FP16, 4)
    yield _exact("mi100", BF16, 2)
    yield from _chains("mi100", (FP32,))  # CDNA 1 has no instruction for FP64
    for device in ("mi250", "mi250x"):
        yield _flushing(device, FP16, 4)
        yield _flushing(device, BF16, 2)
        yield _flushing(f"{device}-1k", BF16, 4)
        yield from _chains(device, (FP32, FP64))
    yield _late("mi300", FP16, 8)
    yield _late("mi300", BF16, 8)
    yield _late("mi300", TF32, 4)
    for input in (E4M3FNUZ, E5M2FNUZ):
        yield _halves("mi300", input)
    yield from _chains("mi300", (FP32, FP64))


def _exact(device: str, input: Format, block: int) -> EngineModel:
    """CDNA 1: c and the products of a block are added exactly and rounded once."""
    name = f"{device}.{input.name}.fp32"
    return EngineModel(name, input, FP32, block=block, source=_MODELS, certainty=BOTH)


def _flushing(prefix: str, input: Format, block: int) -> EngineModel:
    """CDNA 2: IEEE products, added in a tree; whatever is subnormal becomes zero."""
    return EngineModel(
        f"{prefix}.{input.name}.fp32",
        input,
        FP32,
        block=block,
        product_rounding="nearest",
        summation="pairwise",
        join="after",
        subnormal_inputs="flush-to-positive",
        subnormal_accumulators="flush-to-positive",
        subnormal_products="flush",
        subnormal_outputs="flush",
        zeros="ieee",
        source=f"{_MODELS}; AMD's note on MI200 in MIOpen's documentation",
        certainty=f"{BUT_ZEROS}; that subnormals are flushed: {STATED}",
    )


def _late(device: str, input: Format, block: int) -> EngineModel:
    """CDNA 3: products are aligned among themselves, then c, with cuts toward minus infinity."""
    return EngineModel(
        f"{device}.{input.name}.fp32",
        input,
        FP32,
        block=block,
        product_overflow="infinity",
        fraction_bits=24,
        join=LateJoin(sum_bits=32, accumulator_bits=24, total_bits=31),
        source=_MODELS,
        certainty=BOTH if input == FP16 else BUT_SUBNORMALS,  # products of FP16 are multiples of 2^-48
    )


def _halves(device: str, input: Format) -> EngineModel:
    """CDNA 3, FP8: even and odd products have a sum each, joined before c, which far below them counts as zero."""
    return EngineModel(
        f"{device}.{input.name}.fp32",
        input,
        FP32,
        block=8,
        groups=((0,), (1,)),
        group_sums="separate",
        product_overflow="infinity",
        fraction_bits=24,
        join=LateJoin(sum_bits=32, accumulator_bits=24, total_bits=31, cutoff=25),
        source=_MODELS,
        certainty=BOTH,
    )


def _chains(device: str, formats: tuple[Format, ...]) -> Iterator[EngineModel]:
    """IEEE fused multiply-adds one after another; and integers, exactly."""
    for format in formats:
        name = f"{device}.{format.name}.{format.name}"
        yield EngineModel(name, format, format, zeros="ieee", source=_MODELS, certainty=BOTH)
    yield EngineModel(
        f"{device}.int8.int32",
        INT8,
        INT32,
        overflow="wrap",
        source=MMASIM,
        certainty="sums are exact; that they wrap around is assumed",
    )
