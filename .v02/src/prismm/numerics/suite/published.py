"""What was published of the suites' outcomes, engine by engine; tests compare the catalogue's models with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["EXCEPTIONS", "PUBLISHED", "Published"]

Basis = Literal["hardware", "paper", "model"]
"""Published runs on hardware; published, not said on what; or predicted by a published model of the engine."""


@dataclass(frozen=True)
class Published:
    """An outcome of a test.

    Args:
        engine: its name in the catalogue.
        suite, id: the test.
        mark: P or F, or the reading.
        basis: "hardware", "paper" or "model".
        source: who published it.
    """

    engine: str
    suite: str
    id: str
    mark: str
    basis: Basis
    source: str


EXCEPTIONS = {
    ("v100.fp16.fp32", "fttn", "T_blk_fma_width"): (
        "the paper gives 4; with the published inputs an engine without extra bits loses both terms of 2^-24 wherever "
        "they stand, and the test that is read from them draws no conclusion"
    ),
}
"""Where a model's outcome is not the published one, and why."""

_DEVICES = ("v100", "t4", "a100", "h100-mma", "b200-mma", "mi100", "mi250", "mi300")

# "." where nothing is published. Of the V100's program, the tests with inputs of its own are below.
_FASI = """
A1   P P P P P . . .
A2   P P P P P P F P
A3   P P P P P P F P
A4   P P P P P . . .
B1   P P P P P P P P
B2   P P P P P . . .
B3   P P P F F F P F
B4   P P P F F F P P
C1   P P P P P F P P
C2   P P P P P F P P
C3   P P P P P . . .
D1   F P P P P P P P
D2   P P P P P F F F
D3   F P P P P P F P
D4a  P P P P P P P P
D4b  P P P P P P P P
D4c  P P P P P F F F
D5   . P P F F F F F
"""

_FTTN = """
T_rnd_dir         RZ RZ RZ RZ RZ RN RN RN
T_3_bits_fin_rnd  .  1 1 >=2 >=2 . . .
T_pres_extra_acc  no no no yes yes yes yes yes
T_blk_fma_width   4 8 8 >=16 >=16 4 4 8
"""

_EXAMPLE = {
    "v100.fp16.fp32": "0",
    "t4.fp16.fp32": "-0.5",
    "a100.fp16.fp32": "-0.5",
    "h100-mma.fp16.fp32": "-0.75",
    "b200-mma.fp16.fp32": "-0.75",
    "mi100.fp16.fp32": "-0.875",
    "mi250.fp16.fp32": "0",
    "mi300.fp16.fp32": "-0.5",
    "ada.e5m2.fp32": "0",
    "h100-wgmma.e5m2.fp32": "0",
    "b200-tcgen05.e5m2.fp32": "-0.75",
}

_HALF = ("A1", "A4", "B2", "C3")
"""Tests of Fasi et al. with FP16 results."""


def _published() -> Iterator[Published]:
    yield from _fasi()
    yield from _fttn()
    yield from _khattak()
    for device, ways in (("v100", "5-way"), ("a100", "9-way"), ("h100-mma", "17-way")):
        yield Published(f"{device}.fp16.fp32", "probes", "ways", ways, "hardware", "FPRev")
    for engine, d in _EXAMPLE.items():
        yield Published(engine, "example", "sum", d, "paper", "Xie et al., Table 8")


def _table(text: str) -> Iterator[tuple[str, str, str]]:
    """Test, device and cell."""
    for line in text.strip().splitlines():
        id, *cells = line.split()
        for device, cell in zip(_DEVICES, cells, strict=True):
            if cell != ".":
                yield id, device, cell.replace(">=", ">= ")


def _fasi() -> Iterator[Published]:
    run, predicted = "Fasi et al. 2021 and the programs published with it", "models of MMA-Sim"
    for id, device, mark in _table(_FASI):
        engine = f"{device}.fp16.{'fp16' if id in _HALF else 'fp32'}"
        measured = device in ("t4", "a100") or (device == "v100" and mark == "P")
        yield Published(engine, "fasi", id, mark, "hardware" if measured else "model", run if measured else predicted)
    for id in ("B3", "B4", "D1", "D3", "D5"):
        yield Published("v100.fp16.fp32", "fasi-v100", id, "P", "hardware", run)
    for engine, ids in (
        ("a100.bf16.fp32", "A2 A3 A4 B1 B3 B4 C1 C2 D1 D2 D3 D4a D4b D4c D5"),
        ("a100.tf32.fp32", "A2 A3 A4 B1 B3 B4 C1 C2 D1 D2 D3 D4a D4b D4c D5"),
        ("a100.fp64.fp64", "A2 A4 B3 C1 C2 C3 D1 D2 D3 D4a D5"),
    ):
        for id in ids.split():
            yield Published(engine, "fasi", id, "P", "hardware", run)


def _fttn() -> Iterator[Published]:
    paper = "Li et al. 2024"
    for id, device, mark in _table(_FTTN):
        known = id in ("T_blk_fma_width", "T_3_bits_fin_rnd") and device in ("v100", "a100", "h100-mma")
        yield Published(
            f"{device}.fp16.fp32", "fttn", id, mark, "hardware" if known else "model", paper if known else "MMA-Sim"
        )
    for device, mark in (("v100", "no"), ("a100", "yes"), ("h100-mma", "yes")):
        yield Published(f"{device}.fp16.fp32", "fttn", "T_1_bit", mark, "hardware", paper)
    for device, mark in zip(_DEVICES[:5], ("not violated", *["violated"] * 2, *["not violated"] * 2), strict=True):
        yield Published(f"{device}.fp16.fp32", "fttn", "T_monotone", mark, "model", "MMA-Sim")


def _khattak() -> Iterator[Published]:
    """Printed beside the programs for an A30, reported for the A100."""
    found = {"1": "1", "2": "3", "3": "8", "4": "late", "5": "RZ", "6": "RN", "7": "RZ", "8": "RZ"}
    for device in ("a100", "a30"):
        for id, mark in found.items():
            output = "fp16" if id == "6" else "fp32"
            yield Published(f"{device}.fp16.{output}", "khattak", id, mark, "hardware", "Khattak and Mikaitis 2025")


PUBLISHED = tuple(_published())
