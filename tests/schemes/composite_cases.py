"""Every composite scheme that the laws are tested on. A scheme whose module is not there is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import prismm
from prismm.formats import BF16, TF32, Format

MAKERS: dict[str, Callable[[], Any]] = {
    "1xTF32": lambda: prismm.Words.tf32(1),
    "3xTF32": lambda: prismm.Words.tf32(3),
    "4xTF32": lambda: prismm.Words.tf32(4, chunk=5),
    "6xBF16": lambda: prismm.Words.bf16(6),
    "9xBF16": lambda: prismm.Words.bf16(9, chunk=256),
    "3xFP16": lambda: prismm.Words.fp16(3),
    "3xTF64": lambda: prismm.Words.tf64(3),
    "4xTF64 of e4m10": lambda: prismm.Words.tf64(4, Format(4, 10)),
    "e3m3": lambda: prismm.Words(Format(3, 3), 3),
    "e11m25": lambda: prismm.Words(Format(11, 25), 2),
    "3xTF32 toward zero": lambda: prismm.Words(TF32, 2, rounding="toward-zero"),
    "2 of 4 BF16": lambda: prismm.Words(BF16, 4, products=3),
    "ScaledHalf": lambda: prismm.ScaledHalf(),
    "TileInt8": lambda: prismm.TileInt8(),
    "Slices FP16": lambda: prismm.Slices("fp16", slices=7),
    "Slices INT8": lambda: prismm.Slices("int8", slices=8, fast=True),
    "Slices CR": lambda: prismm.Slices("fp64", mode="CR"),
}


def found() -> dict[str, Any]:
    """The schemes that can be made here."""
    schemes = {}
    for name, make in MAKERS.items():
        try:
            schemes[name] = make()
        except ImportError:
            continue
    return schemes


SCHEMES = found()

each_composite = pytest.mark.parametrize("scheme", list(SCHEMES.values()), ids=list(SCHEMES))
"""Parametrises a test with `scheme`."""

FEW = [
    SCHEMES[name] for name in ("3xTF32", "3xFP16", "3xTF64", "ScaledHalf", "TileInt8", "Slices INT8") if name in SCHEMES
]
some_composites = pytest.mark.parametrize("scheme", FEW, ids=str)
"""The same with one scheme of each kind."""
