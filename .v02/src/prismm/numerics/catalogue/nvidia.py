"""NVIDIA's tensor cores: one truncated fused sum, whose parameters follow from the generation and the element's size.

c and the products of a block are aligned at the largest exponent, cut off toward zero, added exactly, and the sum is
rounded once: toward zero to FP32, to nearest to FP16. Two kinds of FP8 differ: Ada's own units and Hopper's keep 13
bits, and `mma.sync` on Hopper and B200 is compiled into FP16 instructions (`_emulated`). MMA-Sim calls the sum T-FDPA,
Khattak and Mikaitis global alignment.

Measured on an H200, of every instruction of Hopper: no result is -0, not even where a negative sum underflows; zeros
take the exponent -21 in sums to FP16 and -133 in sums to FP32, in `mma.sync` and `wgmma` alike (published models
differ); an instruction of 8 or 4 products is one block of 8 or 4. For other generations the sign of zero is taken to be
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FP16,
    FP32,
    FP64,
    INT4,
    INT8,
    INT32,
    TF32,
    UINT8,
    Format,
    Integer,
)
from prismm.numerics.catalogue.words import BOTH, KM, MEASURED, MMASIM, PTX, REPLAYED, SIMULATED, STATED
from prismm.numerics.encodings import canonical_nan, storage
from prismm.numerics.model import EngineModel
from prismm.numerics.parts import BlockScale, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["E8M13", "UINT4", "models"]

E8M13 = Format(exponent_bits=8, fraction_bits=13, name="e8m13")
"""FP32 cut to 13 fraction bits: what FP8 sums of Ada and of Hopper's `wgmma` are rounded to."""

UINT4 = Integer(bits=4, signed=False, name="uint4")
"""PTX's .u4."""

_FP8 = (E4M3, E5M2)
_NARROW = (E4M3, E5M2, E3M2, E2M3, E2M1)

_MODELS = f"{MMASIM}; {KM}"
_BUT_ZEROS = f"{MEASURED}; zero_exponent: {BOTH}"
_WITH_PROBE = f"{SIMULATED}; fraction_bits: third-party probes"
_CHAIN = f"{SIMULATED}, and a vendor document"


@dataclass(frozen=True)
class _Generation:
    """What all instructions of a generation share.

    Args:
        block_bytes: bytes of A in a block, from which its length follows.
        fraction_bits: kept below the largest exponent.
        below: how far the exponent of zeros lies below that of the output's smallest normal value.
    """

    block_bytes: int
    fraction_bits: int
    below: int

    def fused(self, prefix: str, input: Format, output: Format, certainty: str, **changes: Any) -> EngineModel:
        """The truncated fused sum; elements of less than eight bits stand in bytes, TF32 in words of 32 bits."""
        values: dict[str, Any] = {
            "block": self.block_bytes // storage(input).itemsize,
            "fraction_bits": self.fraction_bits,
            "zero_exponent": output.minexp - self.below,
            "rounding": "zero" if output == FP32 else "nearest",
            "zeros": "unsigned",
            "nan": canonical_nan(output),
            "source": _MODELS,
            **changes,
        }
        return EngineModel(f"{prefix}.{input.name}.{output.name}", input, output, certainty=certainty, **values)


_VOLTA = _Generation(block_bytes=8, fraction_bits=23, below=5)
_AMPERE = _Generation(block_bytes=16, fraction_bits=24, below=6)  # Turing, Ampere, Ada
_HOPPER = _Generation(block_bytes=32, fraction_bits=25, below=7)  # Hopper, Blackwell

_IMPRECISE = 13  # fraction bits of Ada's own FP8 units and of Hopper's
_GROUPED = {"block": 64, "fraction_bits": 35, "zero_exponent": FP32.minexp - 13}  # packed FP4: two in a byte


def models() -> Iterator[EngineModel]:
    """All of them."""
    yield from _volta("v100")
    yield from _turing("t4")
    yield from _volta("t4-m8n8k4", SIMULATED)  # Turing runs Volta's instruction as Volta does
    for device in ("a100", "a2"):
        yield from _ampere(device, MEASURED)
    yield from _ampere("a30", f"{MEASURED} of the A100, of the same architecture")
    for device in ("ada", "rtx1000ada", "l40s"):
        yield from _ampere(device, MEASURED)
        yield from _imprecise(_AMPERE, device, _BUT_ZEROS)
    for device in ("h100", "h200"):
        known = REPLAYED if device == "h200" else f"{REPLAYED}, the same chip"
        yield from _hopper(f"{device}-mma", known)
        yield from _short(device, known)
        yield _double(f"{device}-mma-rz", known, "zero")
        yield from _warpgroup(f"{device}-wgmma", known)
    yield from _hopper("b200-mma", MEASURED)
    yield from _blackwell("b200-tcgen05")
    for device in ("rtx5090", "rtxpro6000"):
        yield from _blackwell(device)
        yield from _integers(device, {INT8: 32, UINT8: 32, INT4: 64, UINT4: 64})


def _volta(prefix: str, certainty: str = "") -> Iterator[EngineModel]:
    # Products of FP16 have exponents from -28 on, above any that zeros could have in FP32.
    yield _VOLTA.fused(prefix, FP16, FP32, certainty or MEASURED, zero_exponent=None)
    yield _VOLTA.fused(prefix, FP16, FP16, certainty or _BUT_ZEROS)


def _turing(device: str) -> Iterator[EngineModel]:
    yield _AMPERE.fused(device, FP16, FP32, SIMULATED, zero_exponent=None, source=MMASIM)
    yield _AMPERE.fused(device, FP16, FP16, SIMULATED, source=MMASIM)
    yield from _integers(device, {INT8: 16, UINT8: 16, INT4: 32, UINT4: 32})


def _ampere(device: str, certainty: str) -> Iterator[EngineModel]:
    yield _AMPERE.fused(device, FP16, FP32, certainty)
    yield _AMPERE.fused(device, FP16, FP16, f"{certainty}; zero_exponent: {BOTH}")
    for input in (BF16, TF32):
        yield _AMPERE.fused(device, input, FP32, certainty)
    yield _double(device, _CHAIN)
    yield from _integers(device, {INT8: 32, UINT8: 32, INT4: 64, UINT4: 64})


def _imprecise(generation: _Generation, prefix: str, half: str) -> Iterator[EngineModel]:
    for input in _FP8:
        yield generation.fused(prefix, input, FP32, MEASURED, fraction_bits=_IMPRECISE, accumulator=E8M13)
        yield generation.fused(prefix, input, FP16, half, fraction_bits=_IMPRECISE)


def _hopper(prefix: str, certainty: str) -> Iterator[EngineModel]:
    """`mma.sync` of Hopper and B200."""
    for input, output in ((FP16, FP32), (FP16, FP16), (BF16, FP32), (TF32, FP32)):
        yield _HOPPER.fused(prefix, input, output, certainty)
    for input in _FP8:
        yield _emulated(prefix, input, FP32, certainty)
        yield _emulated(prefix, input, FP16, certainty)
    yield _double(prefix, _CHAIN if certainty == MEASURED else certainty)
    whole = STATED if certainty == MEASURED else certainty
    yield from _integers(prefix, {INT8: 32, UINT8: 32, INT4: 64, UINT4: 64}, whole)


def _short(device: str, certainty: str) -> Iterator[EngineModel]:
    """Hopper's `mma.sync` of half the depth."""
    for input, output in ((FP16, FP32), (FP16, FP16), (BF16, FP32)):
        yield _HOPPER.fused(f"{device}-mma-m16n8k8", input, output, certainty, block=8)
    yield _HOPPER.fused(f"{device}-mma-m16n8k4", TF32, FP32, certainty, block=4)


def _emulated(prefix: str, input: Format, output: Format, certainty: str) -> EngineModel:
    """FP8 converted to FP16, which the compiler does: the low pairs of 32-bit registers, the high ones, then c.

    Subnormal E4M3 values are normal in FP16. That their exponents are taken here for those of E4M3 changes nothing:
    a subnormal product has an exponent of at most 2, at which 25 fraction bits keep every multiple of 2^-18.
    """
    return _HOPPER.fused(
        prefix,
        input,
        output,
        certainty,
        block=_HOPPER.block_bytes // storage(FP16).itemsize,
        depth=32,
        groups=((0, 1), (2, 3)),
        join="after",
        output_rounding="nearest",
        source="published outputs of B200, H100 and H200; CUTLASS issue 1986",
    )


def _warpgroup(prefix: str, certainty: str) -> Iterator[EngineModel]:
    """`wgmma` of Hopper."""
    for input, output in ((FP16, FP32), (FP16, FP16), (BF16, FP32), (TF32, FP32)):
        yield _HOPPER.fused(prefix, input, output, certainty, source=MMASIM)
    for input in _FP8:
        yield _HOPPER.fused(prefix, input, FP32, certainty, fraction_bits=_IMPRECISE, accumulator=E8M13)
        yield _HOPPER.fused(prefix, input, FP16, certainty, fraction_bits=_IMPRECISE)
    yield from _integers(prefix, {INT8: 32, UINT8: 32}, certainty)


def _blackwell(prefix: str) -> Iterator[EngineModel]:
    """`tcgen05.mma`, and `mma.sync` of sm_120, whose FP8 is native."""
    yield _HOPPER.fused(prefix, FP16, FP32, SIMULATED, source=MMASIM)
    yield _HOPPER.fused(prefix, FP16, FP16, SIMULATED, source=MMASIM)
    for input in (BF16, TF32):
        yield _HOPPER.fused(prefix, input, FP32, SIMULATED, source=MMASIM)
    for input in _NARROW:
        yield _HOPPER.fused(prefix, input, FP32, _WITH_PROBE if input in _FP8 else SIMULATED, source=MMASIM)
        yield _HOPPER.fused(prefix, input, FP16, SIMULATED, source=MMASIM)
        scale = BlockScale("ue8m0", 32, "terms")
        yield _HOPPER.fused(f"{prefix}-mxf8f6f4", input, FP32, SIMULATED, scale=scale, source=MMASIM)
    # The groups of 16 are those of the sum: of `mxf4`, whose factors belong to 32, pass each factor twice.
    for kind, scale in (("mxf4", BlockScale("ue8m0", 16, "groups")), ("nvfp4", BlockScale("ue4m3", 16, "groups"))):
        yield _HOPPER.fused(f"{prefix}-{kind}", E2M1, FP32, SIMULATED, scale=scale, source=MMASIM, **_GROUPED)


def _double(prefix: str, certainty: str, mode: Mode = "nearest") -> EngineModel:
    """A chain of IEEE fused multiply-adds, m8n8k4. NaN keeps its payload there, which the model does not.

    Deeper instructions differ in the zeros alone that fill them up, which a sum of nothing but -0 shows.
    """
    return EngineModel(
        f"{prefix}.{FP64.name}.{FP64.name}",
        FP64,
        FP64,
        depth=4,
        rounding=mode,
        overflow="infinity" if mode == "nearest" else "saturate",
        zeros="ieee",
        source=f"{MMASIM}; {PTX}",
        certainty=certainty,
    )


def _integers(prefix: str, depths: dict[Integer, int], of_int8: str = STATED) -> Iterator[EngineModel]:
    """Exact sums, modulo 2^32, or clamped once an instruction, which takes this many products; with the certainty of
    INT8, the one integer format whose answers were collected.
    """
    for x, depth in depths.items():
        name = f"{x.name}.{INT32.name}"
        known: dict[str, Any] = {
            "depth": depth,
            "source": f"{PTX}, integer operations",
            "certainty": of_int8 if x == INT8 else STATED,
        }
        yield EngineModel(f"{prefix}.{name}", x, INT32, overflow="wrap", **known)
        yield EngineModel(f"{prefix}-satfinite.{name}", x, INT32, overflow="saturate", **known)
