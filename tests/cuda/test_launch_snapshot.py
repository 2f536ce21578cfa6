"""What calls launch on a GPU, as it is on record in launches.txt; see `tests.snapshot`. No GPU is needed: it is
pretended.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import prismm
import prismm.linalg
from prismm import Native, Residues, ScaledHalf, Slices, TileInt8, Words
from prismm.errors import PrismmError
from tests.cuda.harness.pretended import FREE, GPUS, forget, pretended
from tests.snapshot import assert_same, read, shared
from tests.test_plan_snapshot import operand

PATH = Path(__file__).with_name("launches.txt")

Call = tuple[str, Callable[[], Any]]
"""What it is called, and what makes it."""

CORRECT: dict[str, Any] = {"accuracy": "correctly-rounded"}


def product(kinds: str, shape: str, batch: tuple[int, ...] = (), layout: str = "", **keywords: Any) -> Call:
    """A matmul. layout: of operands (and result), as `_laid_out` has it."""
    m, k, n = map(int, shape.split("x"))
    told = "".join(f"{size}·" for size in batch) + shape
    name = " ".join([kinds, told, *([layout] if layout else []), *(f"{key}={x}" for key, x in keywords.items())])

    def call() -> Any:
        left, _, right = kinds.partition("*")
        a, b = _laid_out(left, layout, *batch, m, k), _laid_out(right or left, layout, *batch, k, n)
        if layout == "one for all":
            b = operand(right or left, k, n)
        if layout == "out":
            return prismm.matmul(a, b, out=torch.empty(*batch, n, m, dtype=a.dtype).mT, **keywords)
        return prismm.matmul(a, b, **keywords)

    return name, call


def _laid_out(kind: str, layout: str, *shape: int) -> torch.Tensor:
    """An operand: "turned", by columns; "apart", rows with a gap; "odd", 8 bytes behind a multiple of 16; "stepped",
    every other column; "conjugated"; "expanded", one matrix for all.
    """
    *batch, rows, columns = shape
    if layout == "turned":
        return operand(kind, *batch, columns, rows).mT
    if layout == "apart":
        return operand(kind, *batch, rows, columns + 6)[..., :columns]
    if layout == "odd":
        return operand(kind, *batch, rows, columns + 3)[..., 1 : columns + 1]
    if layout == "stepped":
        return operand(kind, *batch, rows, 2 * columns)[..., ::2]
    if layout == "expanded":
        return operand(kind, rows, columns).expand(shape)
    if layout == "conjugated":
        return operand(kind, *batch, columns, rows).mH
    return operand(kind, *shape)


def summed(
    kind: str, shape: str, alpha: complex, beta: complex, batch: tuple[int, ...] = (), c: str = "", **keywords: Any
) -> Call:
    """A gemm. c: how C is laid out, or "row" for one that is broadcast."""
    m, k, n = map(int, shape.split("x"))
    told = "".join(f"{size}·" for size in batch) + shape
    name = " ".join(
        ["gemm", kind, told, f"{alpha}, {beta}", *([c] if c else []), *(f"{key}={x}" for key, x in keywords.items())]
    )

    def call() -> Any:
        turned = {"trans_a": "T", "trans_b": "C"}
        flags = {key: value for key, value in turned.items() if keywords.get(key)}
        a = operand(kind, *batch, *((k, m) if "trans_a" in flags else (m, k)))
        b = operand(kind, *batch, *((n, k) if "trans_b" in flags else (k, n)))
        third = None
        if beta:
            third = operand(kind, 1, n) if c == "row" else _laid_out(kind, c, *batch, m, n)
        return prismm.gemm(a, b, third, alpha=alpha, beta=beta, **{**keywords, **flags})

    return name, call


def with_prepared(kind: str, shape: str, sides: str, **keywords: Any) -> Call:
    """A matmul whose left or right operand, or both, were prepared."""
    m, k, n = map(int, shape.split("x"))

    def call() -> Any:
        a, b = operand(kind, m, k), operand(kind, k, n)
        left = prismm.prepare(a, side="left", **keywords) if "left" in sides else a
        right = prismm.prepare(b, **keywords) if "right" in sides else b
        return prismm.matmul(left, right)

    return " ".join(["prepared", sides, kind, shape, *(f"{key}={x}" for key, x in keywords.items())]), call


def reported(kind: str, shape: str, **keywords: Any) -> Call:
    """A matmul with a report."""
    m, k, n = map(int, shape.split("x"))
    name = " ".join(["reported", kind, shape, *(f"{key}={x}" for key, x in keywords.items())])
    return name, lambda: prismm.matmul(operand(kind, m, k), operand(kind, k, n), full_output=True, **keywords)


def repeated(kind: str, shape: str, batch: tuple[int, ...] = (), **keywords: Any) -> Call:
    """A matmul four times: at the same places, then at others, then with out."""
    m, k, n = map(int, shape.split("x"))
    told = "".join(f"{size}·" for size in batch) + shape

    def call() -> None:
        a, b = operand(kind, *batch, m, k), operand(kind, *batch, k, n)
        prismm.matmul(a, b, **keywords)
        prismm.matmul(a, b, **keywords)
        prismm.matmul(a.clone(), b, **keywords)
        prismm.matmul(a, b, out=torch.empty(*batch, m, n, dtype=a.dtype), **keywords)

    return " ".join(["repeated", kind, told, *(f"{key}={x}" for key, x in keywords.items())]), call


def symmetric(
    kind: str, shape: str, batch: tuple[int, ...] = (), verb: str = "herk", alpha: complex = 1.0, **keywords: Any
) -> Call:  # fmt: skip
    """A product of a matrix and its own transpose; where alpha is not 1, with C."""
    n, k = map(int, shape.split("x"))
    told = "".join(f"{size}·" for size in batch) + shape
    factor = [] if alpha == 1 else [f"{alpha}"]
    name = " ".join([verb, kind, told, *factor, *(f"{key}={x}" for key, x in keywords.items())])
    multiply = getattr(prismm.linalg, verb)

    def call() -> Any:
        a = operand(kind, *batch, *((k, n) if verb == "gram" else (n, k)))
        if alpha == 1:
            return multiply(a, **keywords)
        c = operand(kind, *batch, n, n)
        return multiply(a, c, alpha=alpha, beta=1.0, uplo="L", **keywords)

    return name, call


REAL = {"f64": 1e-11, "f32": 1e-4}
SCHEMES: dict[str, tuple[Any, ...]] = {
    "f32": (
        Native(), Native("float64"), Residues(7), Words.tf32(), Words.bf16(6), Words.bf16(3), ScaledHalf(),
        ScaledHalf(chunk=64), TileInt8(), TileInt8(level=3), Slices(slices=3), Slices("int8", slices=4),
    ),
    "f64": (
        Native(), Residues(9), Residues(20), Words.tf64(3), Slices(slices=7), Slices("int8", slices=7),
        Slices("fp64", slices=3), Slices("int8", "CR"), Slices("fp16", "CR"), Slices(slices=5, exponents="adaptive"),
        Slices("int8", slices=5, fast=False),
    ),
}  # fmt: skip


def calls() -> Iterator[Call]:
    """Calls on an H200."""
    for kind in ("f64", "f32"):
        for shape in ("1x1x1", "100x90x80", "4096x4096x4096", "300x1x200", "1x4096x2048", "2048x4096x1", "64x65536x64"):
            yield product(kind, shape)
        for shape in ("100x90x80", "1024x1024x1024"):
            yield product(kind, shape, **CORRECT)
            yield product(kind, shape, reproducible=True)
            yield product(kind, shape, accuracy=REAL[kind])
        yield product(kind, "1024x64x8192", reproducible=True)
        yield product(kind, "8192x8192x8192", reproducible=True)  # by quarters
        yield product(kind, "100x90x80", (5,))
        yield product(kind, "100x90x80", (5,), reproducible=True)
        yield product(kind, "512x512x512", (64,))
        yield product(kind, "100x90x80", (3,), "one for all", reproducible=True)
        yield product(kind, "100x90x80", (3,), "expanded", reproducible=True)
        for layout in ("turned", "apart", "odd", "stepped", "out"):
            yield product(kind, "100x90x80", layout=layout)
            yield product(kind, "100x90x80", layout=layout, reproducible=True)
        for scheme in SCHEMES[kind]:
            yield product(kind, "300x500x200", scheme=scheme)
            yield product(kind, "300x500x200", scheme=scheme, accuracy="native")
    for scheme in (ScaledHalf(), Words.tf32(), TileInt8(), Slices(slices=3)):
        yield product("f32", "100x90x80", (5,), scheme=scheme, accuracy="native")
        yield product("f32", "100x90x80", layout="turned", scheme=scheme, accuracy="native")
        yield product("c64", "100x90x80", scheme=scheme, accuracy="native")
    for kind in ("c128", "c64"):
        yield product(kind, "100x90x80")
        yield product(kind, "100x90x80", reproducible=True)
        yield product(kind, "100x90x80", layout="conjugated", **CORRECT)
        yield product(kind, "2048x2048x2048")
    for kinds in ("f32*f64", "f16", "i8", "i64", "big", "big*f64"):
        yield product(kinds, "30x40x20")
    yield product("big", "30x40x20", (3,), **CORRECT)
    yield product("f32", "100x90x80", out_dtype="float64")
    for engine in ("cuda:int8", "cuda:blas", "cuda:fp64", "cuda:fp16", "cuda:tf32", "cuda:bf16"):
        yield product("f32", "300x500x200", engine=engine)
    for kind in ("f64", "f32"):
        yield summed(kind, "100x90x80", 0.5, 2.0)
        yield summed(kind, "100x90x80", 0.5, 0.0, reproducible=True)
        yield summed(kind, "100x90x80", 0.5, 2.0, c="turned", **CORRECT)
        yield summed(kind, "100x90x80", 0.5, 2.0, c="row", scheme=Native())
        yield summed(kind, "100x90x80", 100.0, 1.0)
        yield summed(kind, "100x90x80", 0.0, 2.0)
        yield summed(kind, "100x90x80", 0.5, 2.0, (4,), scheme=Slices(slices=3))
        yield summed(kind, "100x90x80", 0.5, 2.0, trans_a="T", trans_b="C")
    yield summed("f32", "1000x900x800", 0.5, 2.0, scheme=ScaledHalf())
    yield summed("f32", "100x90x80", 0.5, 2.0, scheme=TileInt8())
    yield summed("c128", "100x90x80", 1.0 + 2.0j, 1.0)
    for sides in ("left", "right", "left and right"):
        yield with_prepared("f64", "100x90x80", sides, reproducible=True)
        yield with_prepared("f32", "100x90x80", sides, **CORRECT)
    yield with_prepared("c64", "100x90x80", "right", scheme=Residues(7))
    yield with_prepared("f32", "100x90x80", "right", scheme=ScaledHalf())
    for kind in ("f64", "f32"):
        yield repeated(kind, "40x50x60")
        yield repeated(kind, "40x50x60", reproducible=True)
        yield repeated(kind, "2000x1500x2100", scheme=Residues(9))
    yield repeated("f32", "100x90x80", (3,), scheme=ScaledHalf())
    for kind in ("f64", "f32"):
        for keywords in ({}, {"reproducible": True}, CORRECT):
            yield symmetric(kind, "4096x4096", **keywords)
        yield symmetric(kind, "4096x4096", verb="gram", reproducible=True)
        yield symmetric(kind, "1024x300", (3,), verb="syrk", reproducible=True)
        yield symmetric(kind, "2048x1024", alpha=0.5)
        yield symmetric(kind, "300x200", reproducible=True)
    yield symmetric("f32", "4096x512")
    yield symmetric("c128", "1000x500", reproducible=True)
    yield symmetric("c64", "3000x2000")
    yield symmetric("f64", "11000x11000", reproducible=True)  # not by quarters
    yield symmetric("f64", "3000x16", scheme=Slices(slices=3))  # in panels
    yield symmetric("big", "600x20")
    yield reported("f64", "100x90x80")
    yield reported("f64", "100x90x80", reproducible=True)
    yield reported("f32", "300x500x200", scheme=ScaledHalf(), accuracy="native")


def calls_elsewhere() -> Iterator[Call]:
    """Calls on a GPU without kernels of its own."""
    yield product("f64", "100x90x80")
    yield product("f64", "100x90x80", reproducible=True)
    yield product("f32", "300x500x200", scheme=ScaledHalf())
    yield product("f32", "300x500x200", scheme=TileInt8())
    yield product("f64", "300x500x200", scheme=Slices("int8", slices=7))
    yield product("c128", "100x90x80", **CORRECT)
    yield symmetric("f64", "1000x300", reproducible=True)
    yield symmetric("f32", "1000x300", scheme=ScaledHalf())


def calls_in_blocks() -> Iterator[Call]:
    """Calls with little memory."""
    yield product("f64", "4096x4096x4096", reproducible=True)
    yield product("f32", "4096x4096x4096", scheme=Slices("int8", slices=4))
    yield product("f64", "512x512x512", (60,), reproducible=True)
    yield symmetric("f64", "4096x4096", reproducible=True)


# --- Lines ------------------------------------------------------------------------------------------------------------

DEVICES = {
    "H200": ("H200", FREE, calls),
    "unknown": ("unknown", FREE, calls_elsewhere),
    "little": ("H200", 1 << 29, calls_in_blocks),
}


@functools.cache
def launches_on(device: str) -> dict[str, tuple[str, ...]]:
    """By the call's name."""
    gpu, free, some = DEVICES[device]
    found: dict[str, tuple[str, ...]] = {}
    with tempfile.TemporaryDirectory() as folder, pretended(GPUS[gpu], folder, free) as told:
        for name, call in some():
            assert name not in found, name
            told.clear()
            forget()
            try:
                call()
            except PrismmError as error:
                told.append(f"{type(error).__name__}: {error}")
            found[name] = tuple(told)
    return found


def lines() -> list[str]:
    """All calls: what one is called, then its programs, or which other call has the same."""
    made: list[str] = []
    seen: dict[tuple[str, ...], str] = {}
    for device in DEVICES:
        for name, launches in launches_on(device).items():
            title = name if device == "H200" else f"{device}: {name}"
            made.append(f"{title}:")
            for program in _programs(launches):
                if program in seen and len(program) > 1:
                    made.append(f" as {seen[program]}")
                    continue
                seen[program] = title
                made += [f" {_marked(launch)}" for launch in program]
    return made


def _programs(launches: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The launches of each program."""
    starts = [x for x, launch in enumerate(launches) if launch.startswith("program ") or not x]
    return [launches[x:y] for x, y in zip(starts, [*starts[1:], len(launches)], strict=True)]


def _marked(launch: str) -> str:
    """A launch whose constants are shared with others."""
    head, mark, constants = launch.rpartition("; ")
    return f"{head}; {shared(constants[:-1])})" if mark and len(launch) > 60 else launch


def test_launches_are_those_on_record():
    assert_same(read(PATH), lines())
