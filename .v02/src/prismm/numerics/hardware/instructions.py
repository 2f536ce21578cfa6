"""The matrix instructions that can be driven one at a time, as data.

Names go "kind.input.output", with the shape where one of several is meant and a modifier at the end:
"mma.fp16.fp32", "mma.m16n8k8.fp16.fp32", "mma.int8.int32.satfinite", "wgmma.e4m3.fp32". The device is no part of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from prismm.errors import ArgumentError, meant
from prismm.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, INT8, INT32, TF32, Format, Integer

__all__ = ["INSTRUCTIONS", "Instruction", "instruction_named", "obstacle", "target"]

Kind = Literal["mma", "wgmma"]
"""Issued by one warp, operands in registers; by four, operands in shared memory."""


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction of PTX: D = A·B + C, with A of m × k, B of k × n, C and D of m × n.

    Args:
        name: as `instruction_named` takes it.
        kind: "mma" or "wgmma".
        ptx: the opcode with all its modifiers.
        m: rows of A and D.
        n: columns of B and D.
        k: products per entry of D.
        input: format of A and B.
        output: format of C and D.
        capability: the lowest compute capability that has it.
        only: whether it exists on that generation alone (targets "sm_90a" and their like).
        sass: what the machine instruction's mnemonic begins with.
        emulated: the same where a compiler replaces it: FP8 ``mma`` has no machine instruction on compute
            capabilities 9 and 10, and becomes conversions and FP16 instructions there (NVIDIA/cutlass#1986).
    """

    name: str
    kind: Kind
    ptx: str
    m: int
    n: int
    k: int
    input: Format | Integer
    output: Format | Integer
    capability: tuple[int, int]
    only: bool
    sass: str
    emulated: str = ""

    @property
    def threads(self) -> int:
        """Threads that issue it together: a warp, or a warpgroup."""
        return 32 if self.kind == "mma" else 128

    @property
    def shift(self) -> int:
        """Bits that a pattern moves up in its register: TF32 takes the upper 19 bits of 32."""
        return 32 - TF32.bits if self.input == TF32 else 0

    @property
    def input_bits(self) -> int:
        """Width of an element of A or B in a register or in shared memory."""
        return self.input.bits + self.shift

    @property
    def output_bits(self) -> int:
        """Width of an element of C or D in a register."""
        return self.output.bits

    def mnemonic(self, capability: tuple[int, int]) -> str:
        """What the machine instruction's mnemonic begins with on a compute capability.

        >>> instruction_named("mma.e4m3.fp32").mnemonic((8, 9)), instruction_named("mma.e4m3.fp32").mnemonic((9, 0))
        ('QMMA.16832.F32.E4M3.E4M3', 'HMMA.16816.F32')
        """
        return self.emulated if self.emulated and capability[0] in (9, 10) else self.sass


_PTX = {FP16: "f16", BF16: "bf16", TF32: "tf32", E4M3: "e4m3", E5M2: "e5m2", FP32: "f32", FP64: "f64"}
_PTX_INTEGER = {INT8: "s8", INT32: "s32"}


def _type(format: Format | Integer) -> str:
    return _PTX_INTEGER[format] if isinstance(format, Integer) else _PTX[format]


def _mma(
    input: Format | Integer,
    output: Format | Integer,
    shape: str,
    capability: tuple[int, int],
    sass: str,
    *,
    modifier: str = "",
    emulated: str = "",
    named: bool = False,
) -> Instruction:
    """A row of the table; ``named`` puts the shape into the name."""
    m, n, k = (int(part) for part in re.findall(r"\d+", shape))
    a, d = _type(input), _type(output)
    dotted = f".{modifier}" if modifier else ""
    return Instruction(
        name="mma" + (f".{shape}" if named else "") + f".{input.name}.{output.name}{dotted}",
        kind="mma",
        ptx=f"mma.sync.aligned.{shape}.row.col{dotted}.{d}.{a}.{a}.{d}",
        m=m,
        n=n,
        k=k,
        input=input,
        output=output,
        capability=capability,
        only=False,
        sass=sass,
        emulated=emulated,
    )


def _wgmma(input: Format | Integer, output: Format | Integer, sass: str, modifier: str = "") -> Instruction:
    k = 256 // (32 if input == TF32 else input.bits)  # 32 bytes of every row
    a, d = _type(input), _type(output)
    dotted = f".{modifier}" if modifier else ""
    return Instruction(
        name=f"wgmma.{input.name}.{output.name}{dotted}",
        kind="wgmma",
        ptx=f"wgmma.mma_async.sync.aligned.m64n8k{k}{dotted}.{d}.{a}.{a}",
        m=64,
        n=8,
        k=k,
        input=input,
        output=output,
        capability=(9, 0),
        only=True,
        sass=sass,
    )


def _table() -> tuple[Instruction, ...]:
    ampere, ada, hopper = (8, 0), (8, 9), (9, 0)
    rows = [
        _mma(FP16, FP32, "m16n8k16", ampere, "HMMA.16816.F32"),
        _mma(FP16, FP16, "m16n8k16", ampere, "HMMA.16816.F16"),
        _mma(BF16, FP32, "m16n8k16", ampere, "HMMA.16816.F32.BF16"),
        _mma(TF32, FP32, "m16n8k8", ampere, "HMMA.1688.F32.TF32"),
        _mma(FP16, FP32, "m16n8k8", ampere, "HMMA.1688.F32", named=True),
        _mma(FP16, FP16, "m16n8k8", ampere, "HMMA.1688.F16", named=True),
        _mma(BF16, FP32, "m16n8k8", ampere, "HMMA.1688.F32.BF16", named=True),
        _mma(TF32, FP32, "m16n8k4", ampere, "HMMA.1684.F32.TF32", named=True),
    ]
    for narrow in (E4M3, E5M2):
        upper = narrow.name.upper()
        for wide in (FP32, FP16):
            short = f"F{wide.bits}"
            sass = f"QMMA.16832.{short}.{upper}.{upper}"
            rows.append(_mma(narrow, wide, "m16n8k32", ada, sass, emulated=f"HMMA.16816.{short}"))
    rows += [
        _mma(INT8, INT32, "m16n8k32", ampere, "IMMA.16832.S8.S8"),
        _mma(INT8, INT32, "m16n8k32", ampere, "IMMA.16832.S8.S8.SAT", modifier="satfinite"),
        _mma(FP64, FP64, "m8n8k4", ampere, "DMMA"),
        _mma(FP64, FP64, "m8n8k4", ampere, "DMMA", modifier="rz"),
        *(_mma(FP64, FP64, shape, hopper, "DMMA", named=True) for shape in ("m16n8k4", "m16n8k8", "m16n8k16")),
        _mma(FP64, FP64, "m16n8k16", hopper, "DMMA", named=True, modifier="rz"),
        _wgmma(FP16, FP32, "HGMMA.64x8x16.F32"),
        _wgmma(FP16, FP16, "HGMMA.64x8x16.F16"),
        _wgmma(BF16, FP32, "HGMMA.64x8x16.F32.BF16"),
        _wgmma(TF32, FP32, "HGMMA.64x8x8.F32.TF32"),
        *(
            _wgmma(narrow, wide, f"QGMMA.64x8x32.F{wide.bits}.{narrow.name.upper()}.{narrow.name.upper()}")
            for narrow in (E4M3, E5M2)
            for wide in (FP32, FP16)
        ),
        _wgmma(INT8, INT32, "IGMMA.64x8x32.S8.S8"),
        _wgmma(INT8, INT32, "IGMMA.64x8x32.S8.S8.SAT", "satfinite"),
    ]
    return tuple(rows)


INSTRUCTIONS: tuple[Instruction, ...] = _table()
"""All of them: PTX ISA, "Matrix multiply-accumulate operation using mma instruction" and "Asynchronous warpgroup level
matrix instructions"."""


def instruction_named(name: str) -> Instruction:
    """The instruction of this name.

    Raises:
        ArgumentError: for an unknown name, with those there are.

    >>> instruction_named("wgmma.tf32.fp32").ptx
    'wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32'
    """
    for instruction in INSTRUCTIONS:
        if instruction.name == name:
            return instruction
    known = [instruction.name for instruction in INSTRUCTIONS]
    raise ArgumentError(f"unknown instruction {name!r}{meant(name, known)}; pass one of {', '.join(known)}")


def target(instruction: Instruction, capability: tuple[int, int]) -> str:
    """The architecture to compile for, on a device of a compute capability.

    >>> target(instruction_named("mma.fp16.fp32"), (9, 0)), target(instruction_named("wgmma.fp16.fp32"), (9, 0))
    ('sm_90', 'sm_90a')
    """
    return f"sm_{capability[0]}{capability[1]}" + ("a" if instruction.only else "")


def obstacle(instruction: Instruction, capability: tuple[int, int]) -> str:
    """Why a device of this compute capability cannot run the instruction; empty if it can.

    >>> obstacle(instruction_named("wgmma.fp16.fp32"), (10, 0))
    'wgmma.fp16.fp32 exists on compute capability 9.0 alone, and this GPU has 10.0'
    """
    major, minor = instruction.capability
    has = f"{capability[0]}.{capability[1]}"
    if instruction.only and capability != instruction.capability:
        return f"{instruction.name} exists on compute capability {major}.{minor} alone, and this GPU has {has}"
    if capability < instruction.capability:
        return f"{instruction.name} needs compute capability {major}.{minor}, and this GPU has {has}"
    return ""
