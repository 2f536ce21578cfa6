"""Every kernel compiles, and its machine code holds the instruction meant: needs NVRTC, and no GPU."""

from __future__ import annotations

import pytest

from prismm.errors import ArgumentError, EngineError
from prismm.numerics.hardware import device
from prismm.numerics.hardware.engine import sass
from prismm.numerics.hardware.instructions import (
    INSTRUCTIONS,
    Instruction,
    instruction_named,
    obstacle,
    target,
)
from prismm.numerics.hardware.source import kernel_source

HOPPER = (9, 0)


def test_names_are_unique_and_found() -> None:
    assert len({i.name for i in INSTRUCTIONS}) == len(INSTRUCTIONS)
    assert len({(i.ptx, i.name) for i in INSTRUCTIONS}) == len({i.ptx for i in INSTRUCTIONS})
    for instruction in INSTRUCTIONS:
        assert instruction_named(instruction.name) is instruction
    with pytest.raises(ArgumentError, match=r"'mma.fp17'.*mma.fp16.fp32"):
        instruction_named("mma.fp17")


@pytest.mark.parametrize(
    ("name", "capability", "why"),
    [
        ("mma.fp16.fp32", (8, 0), ""),
        ("mma.fp16.fp32", (7, 5), "needs compute capability 8.0"),
        ("mma.e4m3.fp32", (8, 6), "needs compute capability 8.9"),
        ("wgmma.fp16.fp32", (9, 0), ""),
        ("wgmma.fp16.fp32", (12, 0), "9.0 alone"),
        ("mma.m16n8k16.fp64.fp64", (8, 0), "needs compute capability 9.0"),
    ],
)
def test_what_a_device_lacks_is_said(name: str, capability: tuple[int, int], why: str) -> None:
    found = obstacle(instruction_named(name), capability)
    assert why in found and bool(why) == bool(found)


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_kernels_compile_to_the_instruction_meant(instruction: Instruction) -> None:
    pytest.importorskip("cuda.core")
    try:
        cubin = device.compile_cubin(instruction, target(instruction, HOPPER))
    except EngineError as error:
        if "nvrtc" in str(error) and ("not found" in str(error) or "dlopen" in str(error)):
            pytest.skip("needs NVRTC")
        if "libcuda" in str(error):
            pytest.skip("this version of cuda-core compiles with a driver only")
        raise
    assert cubin[:4] == b"\x7fELF"
    found = device.mnemonics(cubin)
    if found is None:
        pytest.skip("needs nvdisasm or cuobjdump")
    expected = 2 if instruction.emulated else 1
    assert [m.startswith(instruction.mnemonic(HOPPER)) for m in found] == [True] * expected, found


def test_other_generations_have_instructions_of_their_own() -> None:
    pytest.importorskip("cuda.core")
    try:
        found = sass("mma.e4m3.fp32", "sm_89")
    except EngineError:
        pytest.skip("needs NVRTC that compiles for sm_89")
    assert found is None or found == ("QMMA.16832.F32.E4M3.E4M3",)


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_sources_feed_the_result_back_in_the_same_registers(instruction: Instruction) -> None:
    source = kernel_source(instruction)
    assert source.count(instruction.ptx) == 1
    assert source.isascii()
    if instruction.kind == "wgmma":
        assert source.index("fence.proxy.async") < source.index("wgmma.fence") < source.index(instruction.ptx)
        assert source.index(instruction.ptx) < source.index("commit_group") < source.index("wait_group")
