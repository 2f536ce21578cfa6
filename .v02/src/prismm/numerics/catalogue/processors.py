"""Matrix instructions of processors: Intel's AMX and Arm's BF16 dot products, as their vendors specify them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prismm.formats import BF16, FP32, INT8, INT32, UINT8
from prismm.numerics.catalogue.words import STATED
from prismm.numerics.model import EngineModel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["models"]

_ARM_NAN = 0x7FC00000
"""Arm's default NaN."""


def models() -> Iterator[EngineModel]:
    """All of them."""
    yield _tiles()
    for input in (INT8, UINT8):
        name, source = f"amx.{input.name}.int32", "Intel SDM, TDPBSSD and TDPBUUD"
        yield EngineModel(name, input, INT32, depth=64, overflow="wrap", source=source, certainty=STATED)
    # BFMMLA does for each of its pairs what BFDOT does for its one.
    for prefix in ("arm-bfdot", "arm-bfmmla"):
        yield _to_odd(prefix)
        yield _extended(f"{prefix}-ebf1")
    yield EngineModel(
        "arm-bfmlal.bf16.fp32", BF16, FP32, zeros="ieee", nan=_ARM_NAN, source="Arm ISA, BFMLALB", certainty=STATED
    )


def _tiles() -> EngineModel:
    """TDPBF16PS: fused multiply-adds from zero in even places and in odd ones, then both together, then onto c."""
    return EngineModel(
        "amx.bf16.fp32",
        BF16,
        FP32,
        depth=32,
        groups=((0,), (1,)),
        group_sums="separate",
        join="after",
        subnormal_inputs="flush",
        subnormal_accumulators="flush",
        subnormal_outputs="flush",
        source="Intel SDM, TDPBF16PS, but for one sign that no model has: its pseudo-code gives -0 where c is -0 and "
        "both chains, which begin with +0, end in products that underflow from below",
        certainty=STATED,
    )


def _to_odd(prefix: str) -> EngineModel:
    """FPCR.EBF = 0: every operation rounds to odd and flushes."""
    return EngineModel(
        f"{prefix}.bf16.fp32",
        BF16,
        FP32,
        block=2,
        product_rounding="odd",
        summation="pairwise",
        join="after",
        rounding="odd",
        subnormal_inputs="flush",
        subnormal_accumulators="flush",
        subnormal_products="flush",
        subnormal_outputs="flush",
        zeros="ieee",
        nan=_ARM_NAN,
        source="Arm ISA, BFDOT with FPCR.EBF = 0",
        certainty=STATED,
    )


def _extended(prefix: str) -> EngineModel:
    """FPCR.EBF = 1, FPCR otherwise at its defaults: the pair's sum is rounded once, then added."""
    return EngineModel(
        f"{prefix}.bf16.fp32",
        BF16,
        FP32,
        block=2,
        join="after",
        zeros="ieee",
        nan=_ARM_NAN,
        source="Arm ISA, BFDOT with FPCR.EBF = 1",
        certainty=STATED,
    )
