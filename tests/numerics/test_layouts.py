"""Every fragment map is a bijection onto its matrix, and agrees with places read off the PTX ISA's tables."""

from __future__ import annotations

import pytest

from prismm.numerics.hardware.instructions import INSTRUCTIONS, Instruction, instruction_named
from prismm.numerics.hardware.layouts import Fragment, a_fragment, b_fragment, d_fragment, shared_offset

MMA = [i for i in INSTRUCTIONS if i.kind == "mma"]
WGMMA = [i for i in INSTRUCTIONS if i.kind == "wgmma"]


def name(instruction: Instruction) -> str:
    return instruction.name


def covers(fragment: Fragment, rows: int, columns: int, threads: int) -> None:
    assert len(fragment.places) == threads
    assert all(len(held) == fragment.registers * fragment.per_register for held in fragment.places)
    found = [place for held in fragment.places for place in held]
    assert sorted(found) == [(row, column) for row in range(rows) for column in range(columns)]


@pytest.mark.parametrize("instruction", MMA, ids=name)
def test_registers_hold_every_entry_of_the_factors_once(instruction: Instruction) -> None:
    covers(a_fragment(instruction), instruction.m, instruction.k, 32)
    covers(b_fragment(instruction), instruction.k, instruction.n, 32)


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=name)
def test_registers_hold_every_entry_of_the_result_once(instruction: Instruction) -> None:
    covers(d_fragment(instruction), instruction.m, instruction.n, instruction.threads)


@pytest.mark.parametrize("instruction", WGMMA, ids=name)
@pytest.mark.parametrize("rows", [64, 8])
def test_shared_memory_is_filled_without_gap_or_overlap(instruction: Instruction, rows: int) -> None:
    size = instruction.input_bits // 8
    assert instruction.k * size == 32
    offsets = sorted(shared_offset(row, k, size) for row in range(rows) for k in range(instruction.k))
    assert offsets == list(range(0, rows * 32, size))


# (row, k) of a_i, (k, column) of b_i and (row, column) of d_i in lane 11 (g = 2, t = 3), as the PTX ISA's formulas say.
READ = {
    "mma.fp16.fp32": (
        [(2, 6), (2, 7), (10, 6), (10, 7), (2, 14), (2, 15), (10, 14), (10, 15)],
        [(6, 2), (7, 2), (14, 2), (15, 2)],
    ),
    "mma.m16n8k8.bf16.fp32": ([(2, 6), (2, 7), (10, 6), (10, 7)], [(6, 2), (7, 2)]),
    "mma.tf32.fp32": ([(2, 3), (10, 3), (2, 7), (10, 7)], [(3, 2), (7, 2)]),
    "mma.m16n8k4.tf32.fp32": ([(2, 3), (10, 3)], [(3, 2)]),
    "mma.e4m3.fp32": (
        [(row, k) for base in (12, 28) for row in (2, 10) for k in range(base, base + 4)],
        [(k, 2) for base in (12, 28) for k in range(base, base + 4)],
    ),
    "mma.m16n8k16.fp64.fp64": (
        [(row, k) for k in (3, 7, 11, 15) for row in (2, 10)],
        [(k, 2) for k in (3, 7, 11, 15)],
    ),
}


@pytest.mark.parametrize("which", READ)
def test_places_are_those_of_the_specification(which: str) -> None:
    instruction = instruction_named(which)
    a, b = READ[which]
    assert list(a_fragment(instruction).places[11]) == a
    assert list(b_fragment(instruction).places[11]) == b
    assert list(d_fragment(instruction).places[11]) == [(2, 6), (2, 7), (10, 6), (10, 7)]


def test_fp64_of_eight_rows_has_one_register_each() -> None:
    instruction = instruction_named("mma.fp64.fp64")
    assert a_fragment(instruction).places[11] == ((2, 3),)
    assert b_fragment(instruction).places[11] == ((3, 2),)
    assert d_fragment(instruction).places[11] == ((2, 6), (2, 7))


def test_warps_of_a_group_hold_sixteen_rows_each() -> None:
    places = d_fragment(instruction_named("wgmma.e5m2.fp16")).places
    assert places[3 * 32 + 11] == ((50, 6), (50, 7), (58, 6), (58, 7))
