"""Matrix engines without a model: what is known of them, so that nobody takes a guess for one."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["UNKNOWN", "Unknown", "unknown_named"]


@dataclass(frozen=True)
class Unknown:
    """An engine without a model.

    Args:
        name: of the device, or of one entry, as `engine` takes it.
        known: what is published of its arithmetic.
        source: where; "" where nothing is.
        pattern: of the names that mean it.
        published: whether its arithmetic is known, and only beyond what an `EngineModel` says.
    """

    name: str
    known: str
    source: str
    pattern: str
    published: bool = False

    def __str__(self) -> str:
        why = "is published, but no EngineModel says it" if self.published else "is not known, and not guessed"
        return f"its arithmetic {why}; published is: {self.known}{f' ({self.source})' if self.source else ''}"


_TURING_ON = r"(t4|a100|a2|a30|ada|rtx1000ada|l40s|h[12]00|b200-mma|rtx5090|rtxpro6000)(-[^.]*)?"
"""NVIDIA's engines with integers."""

UNKNOWN = (
    Unknown(
        "tpu",
        "bf16 products and fp32 accumulation; neither order nor rounding is published",
        "Google Cloud documentation",
        r"tpu.*",
    ),
    Unknown(
        "ascend910a",
        "fp16 inputs and fp32 accumulation; only the order has been studied, rounding is not published",
        "SGEMM-cube, arXiv 2507.23387",
        r"(huawei-?)?ascend.*",
    ),
    Unknown(
        "gaudi",
        "a C model of Gaudi 2 that the vendor verified its hardware with is published, and nobody's model built on it",
        "HabanaAI/Intel_Gaudi3_Software, fs_fma_gaudi2.h",
        r"gaudi.*",
    ),
    Unknown("cdna4", "nothing; no published simulator has it", "", r"cdna-?4.*|mi35\d.*"),
    Unknown(
        "rdna",
        "of RDNA 3.5 (gfx1151) a user's model of V_DOT2 and WMMA: exact products, and a last place that follows from "
        "the sum of the operands' exponents",
        "ROCm/rocm-systems issue 12056",
        r"rdna.*|gfx1[12]\d\d.*|rx[79]\d\d\d.*",
    ),
    Unknown(
        "tenstorrent",
        "bit-exact models of the vector unit's multiply-add, not of the matrix unit",
        "tt-isa-documentation, fma.c",
        r"tenstorrent.*|wormhole.*|blackhole.*",
    ),
    Unknown(
        "riscv",
        "drafts define a bulk-normalised dot product, by the sum of the operands' exponents, rounded to odd",
        "riscv-isa-manual issue 2618",
        r"riscv.*|risc-v.*|zvdota.*",
    ),
    Unknown(
        "vortex",
        "a C++ model that is faithful to the hardware's source is published with it",
        "vortexgpgpu/vortex, fedp.h",
        r"vortex.*",
    ),
    Unknown("amx.fp8", "inputs and fp32 accumulation; nothing of its rounding", "", r"amx\S*\.(e4m3|e5m2|fp8)\b.*"),
    Unknown(
        "amx.int8-uint8.int32",
        "TDPBSUD and TDPBUSD, exact sums modulo 2^32 of bytes with a sign times bytes without; a model has one format "
        "for a and b",
        "Intel SDM, TDPBSUD and TDPBUSD",
        r"amx\.(int8-uint8|uint8-int8)\b.*",
        published=True,
    ),
    Unknown(
        "b200-tcgen05.int8.int32",
        "that there is one (kind::i8)",
        "PTX ISA, tcgen05.mma",
        r"b200-tcgen05\S*\.u?int8\b.*",
    ),
    Unknown("b200-tcgen05.fp64.fp64", "nothing", "", r"b200-tcgen05\S*\.fp64\b.*"),
    Unknown("rtx5090.fp64.fp64", "nothing", "", r"(rtx5090|rtxpro6000)\S*\.fp64\b.*"),
    Unknown(
        "a100.int8-uint8.int32",
        "of NVIDIA's engines from Turing on (.s8 with .u8, .s4 with .u4, either way round), exact sums modulo 2^32, or "
        "clamped; a model has one format for a and b",
        "PTX ISA 9.7.14, integer operations",
        rf"{_TURING_ON}\.(int8-uint8|uint8-int8|int4-uint4|uint4-int4)\b.*",
        published=True,
    ),
    Unknown(
        "a100.b1.int32",
        "of NVIDIA's engines from Turing on, c plus the count of ones in a xor b (.xor.popc) or, from Ampere on, in "
        "a and b (.and.popc), exact; a bit is none of a model's formats",
        "PTX ISA 9.7.14, integer operations",
        rf"{_TURING_ON}\.b1\b.*",
        published=True,
    ),
    Unknown(
        "v100-m8n8k4-mixed.fp16.fp32",
        "as v100.fp16.fp32, but c is fp16, which only shows in the exponents of its subnormal values",
        "MMA-Sim",
        r"v100-m8n8k4.*",
        published=True,
    ),
    Unknown(
        "h100-mma-rm.fp64.fp64",
        "chains of IEEE fused multiply-adds rounded down (.rm) or up (.rp), in which an exact zero is -0 rounded down",
        "PTX ISA 9.7.14",
        r"h[12]00-mma-r[mp]\..*",
        published=True,
    ),
)


def unknown_named(name: str) -> Unknown | None:
    """The engine without a model that a name means, if it means one."""
    return next((found for found in UNKNOWN if re.fullmatch(found.pattern, name)), None)
