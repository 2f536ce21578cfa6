"""Plans of some hundred problems on a CPU and on GPUs, as they are on record in plans.txt; see `tests.snapshot`.

No GPU is needed, and the machine does not count: all engines of a CPU are there but that of tiles, whose rates are
measured, at its usual rates, with four threads and 64 GiB; GPUs are pretended.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm import Native, Residues, ScaledHalf, Slices, TileInt8, Words, dispatch
from prismm.core import arrays as interop
from prismm.core import memory
from prismm.core.plan import Plan
from prismm.core.request import Request, check_request
from prismm.cpu import alternatives, backend, costs
from prismm.cpu.engines import integer as cpu
from prismm.cpu.engines import torch_int8
from prismm.cpu.engines.base import Proof
from prismm.cpu.kernels import amx
from prismm.cuda import calls as cuda_calls
from prismm.errors import PrismmError
from tests.cuda.harness.pretended import FREE, GPUS, pretended
from tests.snapshot import assert_same, packed, read, shared, unmarked, unpacked

PATH = Path(__file__).with_name("plans.txt")

SHAPES = {
    "1x1x1": (), "64x64x64": (), "256x256x256": (), "1024x1024x1024": (),
    "4096x4096x4096": (), "8192x8192x8192": (), "8192x64x64": (), "64x64x65536": (), "300x1x2000": (),
    "2048x4096x1": (), "1x4096x2048": (), "100x1000000x3": (), "32x32x32": (512,), "700x800x600": (),
    "512x96x512": (7,),
}  # fmt: skip
"""Rows, inner dimension and columns, with what batches there are."""

LOOSE = {"f64": 1e-11, "f32": 1e-4, "c128": 1e-11, "c64": 1e-4}
TIGHT = {"f64": 1e-15, "f32": 1e-7, "c128": 1e-15, "c64": 1e-7}
DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "c128": torch.complex128, "c64": torch.complex64, "f16": torch.float16,
    "bf16": torch.bfloat16, "i8": torch.int8, "i32": torch.int32, "i64": torch.int64, "big": torch.int64,
    "wide": torch.float64,
}  # fmt: skip


@functools.cache
def _memory() -> torch.Tensor:
    """Zeros that take no memory before somebody writes to them."""
    return torch.from_numpy(np.zeros(1 << 30, np.uint8))


@functools.cache
def operand(kind: str, *shape: int) -> torch.Tensor:
    """A tensor whose contents any machine makes alike: thirds of integers, or such, where it is small, zeros where it
    is large; "big" are integers beyond 2^53, "wide" are numbers of many binades.
    """
    dtype, size = DTYPES[kind], math.prod(shape)
    if size > 1 << 20 and kind != "wide":
        return _memory()[: size * dtype.itemsize].view(dtype).reshape(shape)
    values = torch.arange(size, dtype=torch.int64).mul(7919).remainder(251).sub(125).reshape(shape)
    if kind == "wide":
        return torch.ldexp(values.double() / 3.0, values.mul(37).remainder(80))
    if kind == "big":
        return values.add(1 << 60)
    return (values.double() / 3.0).to(dtype) if dtype.is_floating_point or dtype.is_complex else values.to(dtype)


# --- Problems ---------------------------------------------------------------------------------------------------------

Problem = tuple[str, Callable[[], Plan]]
"""What it is called, and what makes its plan."""


def _sides(kinds: str, shape: str, batch: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = map(int, shape.split("x"))
    left, _, right = kinds.partition("*")
    return operand(left, *batch, m, k), operand(right or left, *batch, k, n)


def _named(verb: str, kinds: str, shape: str, batch: tuple[int, ...], keywords: dict[str, Any]) -> str:
    told = [f"{name}={x}" for name, x in keywords.items()]
    many = "".join(f"{size}·" for size in batch)
    return " ".join([verb, kinds, many + shape, *told]).strip()


def product(kinds: str, shape: str, batch: tuple[int, ...] = (), **keywords: Any) -> Problem:
    """Of a matmul."""
    return _named("", kinds, shape, batch, keywords), lambda: prismm.explain(*_sides(kinds, shape, batch), **keywords)


def summed(
    kinds: str, shape: str, alpha: complex, beta: complex, batch: tuple[int, ...] = (), **keywords: Any
) -> Problem:
    """Of a gemm."""

    def plan() -> Plan:
        a, b = _sides(kinds, shape, batch)
        c = operand(kinds.partition("*")[0], *batch, a.shape[-2], b.shape[-1]) if beta else None
        if interop.lives_on_gpu(a):
            prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords)
            return cuda_calls.known()[-1].plan
        options = _options(a, b, **keywords)
        addend = interop.normalise(c, "c") if c is not None else None
        return backend.normalise_call(a, b, (complex(alpha), complex(beta), addend), options).plan

    return _named("gemm", kinds, shape, batch, {"alpha": alpha, "beta": beta, **keywords}), plan


def with_prepared(kinds: str, shape: str, side: str, **keywords: Any) -> Problem:
    """Of a matmul with one operand prepared."""

    def plan() -> Plan:
        a, b = _sides(kinds, shape)
        if side == "left":
            return prismm.explain(prismm.prepare(a, side="left", **keywords), b)
        return prismm.explain(a, prismm.prepare(b, **keywords))

    return _named(f"prepared {side}", kinds, shape, (), keywords), plan


def in_workspace(shape: str, size: int, **keywords: Any) -> Problem:
    """Of a matmul in memory that the caller lends; a CPU's."""

    def plan() -> Plan:
        a, b = _sides("f64", shape)
        options = _options(a, b, workspace=np.empty(size, np.uint8), **keywords)
        return backend.normalise_call(a, b, None, options).plan

    return _named(f"workspace {size}", "f64", shape, (), keywords), plan


def _options(
    a: Any, b: Any, accuracy: Any = None, scheme: Any = None, reproducible: bool = False, out_dtype: Any = None,
    engine: Any = None, threads: Any = None, workspace: Any = None,
) -> Request:  # fmt: skip
    return check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b, workspace)[0]


CORRECT: dict[str, Any] = {"accuracy": "correctly-rounded"}
SCHEMES = (
    Native(), Native("float64"), Residues(7), Residues(12), Residues(20), Words.tf32(), Words.bf16(6), Words.bf16(3),
    Words.tf64(3), ScaledHalf(), ScaledHalf(chunk=64), TileInt8(), Slices(slices=7), Slices("fp16", slices=5),
    Slices("int8", "CR"), Slices("fp64", slices=3),
)  # fmt: skip
CPU_ENGINES = (
    "cpu", "cpu:vnni", "cpu:avx2", "cpu:int8", "cpu:int8-7bit", "cpu:float64", "cpu:direct", "cpu:blas",
    "simulated:volta", "simulated:a100",
)  # fmt: skip
CUDA_ENGINES = "cuda", "cuda:int8", "cuda:blas", "cuda:fp64", "cuda:fp16", "cuda:tf32", "cuda:bf16"


def problems() -> Iterator[Problem]:
    """Those of every device."""
    for (shape, batch), kind in itertools.product(SHAPES.items(), ("f64", "f32")):
        for keywords in (
            {}, {"reproducible": True}, CORRECT, {"accuracy": LOOSE[kind]}, {"accuracy": TIGHT[kind]},
        ):  # fmt: skip
            yield product(kind, shape, batch, **keywords)
    rest = ({}, CORRECT, {"reproducible": True}, {"accuracy": "fast"})
    for index, ((shape, batch), kind) in enumerate(itertools.product(SHAPES.items(), ("c128", "c64"))):
        if "1000000" not in shape:
            yield product(kind, shape, batch, **rest[index % 4])
            yield product(kind, shape, batch, **rest[(index + 1) % 4])
    for kind, shape in itertools.product(("f64", "f32"), ("64x64x64", "1024x1024x1024")):
        yield product(kind, shape, accuracy="native")
        yield product(kind, shape, accuracy="fast")
        yield product(kind, shape, accuracy="fast", reproducible=True)
        yield product(kind, shape, accuracy=LOOSE[kind], reproducible=True)
    for kinds, shape in itertools.product(
        ("f32*f64", "f16", "bf16*f32", "i8", "i32*f32", "i64", "big", "big*f64"), ("30x40x20", "200x300x250")
    ):
        yield product(kinds, shape)
        yield product(kinds, shape, **CORRECT)
        yield product(kinds, shape, accuracy=1e-12)
    for kinds, out in (
        ("f32", "float64"),
        ("f64", "float32"),
        ("f64", "complex128"),
        ("c64", "complex128"),
        ("i8", "float32"),
    ):
        yield product(kinds, "200x300x100", out_dtype=out)
        yield product(kinds, "200x300x100", out_dtype=out, **CORRECT)
    yield product("f32", "200x1x100", out_dtype="float32", accuracy="native")
    yield product("f64", "200x1x100", out_dtype="float32", accuracy="native")
    for keywords in ({}, CORRECT):
        yield product("wide", "700x800x600", **keywords)
        yield product("wide", "2048x2048x2048", **keywords)
    for scheme, kind in itertools.product(SCHEMES, ("f64", "f32")):
        yield product(kind, "300x500x200", scheme=scheme)
        yield product(kind, "1000x2000x900", scheme=scheme, accuracy="native")
    for engine in (*CPU_ENGINES, *CUDA_ENGINES):
        yield product("f32", "1000x2000x900", engine=engine)
        yield product("f64", "100x90x80", engine=engine, **CORRECT)
    yield product("f32", "300x500x200", scheme=Words.tf32(), engine="simulated:volta")
    yield product("f32", "300x500x200", scheme=ScaledHalf(), engine="simulated:volta")
    for threads in (1, 2, 64):
        yield product("f64", "2000x3000x1000", threads=threads, **CORRECT)
        yield product("f64", "2000x3000x1000", threads=threads, scheme=Slices(slices=7))
    for kind in ("f64", "f32"):
        yield summed(kind, "64x64x64", 1.0, 1.0)
        yield summed(kind, "2048x2048x2048", 0.5, 2.0)
        yield summed(kind, "2048x2048x2048", 100.0, 1.0)
        yield summed(kind, "300x500x200", 0.1, 0.0, **CORRECT)
        yield summed(kind, "300x500x200", 3.0, -1.0, reproducible=True)
        yield summed(kind, "300x500x200", 3.0, -1.0, accuracy=LOOSE[kind])
        yield summed(kind, "300x500x200", 0.0, 2.0)
        yield summed(kind, "300x500x200", 1.0, 2.0, scheme=Slices(slices=7))
        yield summed(kind, "300x500x200", 1.0, 2.0, scheme=Native())
        yield summed(kind, "40x50x20", 1.0, 1.0, (30,))
    yield summed("c128", "300x500x200", 1.0 + 2.0j, 1.0)
    yield summed("big", "30x40x20", 2.0, 0.0)
    for side in ("left", "right"):
        yield with_prepared("f64", "300x500x200", side)
        yield with_prepared("f64", "300x500x200", side, reproducible=True, engine="cpu:float64")
        yield with_prepared("f32", "300x500x200", side, engine="cpu:float64", **CORRECT)
        yield with_prepared("f64", "300x500x200", side, reproducible=True, engine="cuda:int8")
        yield with_prepared("f32", "300x500x200", side, scheme=ScaledHalf())


def cpu_problems() -> Iterator[Problem]:
    """Those that only a CPU takes."""
    for size in (1 << 16, 1 << 22, 1 << 26):
        yield in_workspace("1000x2000x900", size, scheme=Slices(slices=7))
        yield in_workspace("1000x2000x900", size, scheme=Slices("int8", "CR"))


def little_memory() -> Iterator[Problem]:
    """Those that a GPU makes in blocks where little of its memory is free."""
    for kind in ("f64", "f32", "c128"):
        for keywords in ({"reproducible": True}, CORRECT, {"scheme": Slices(slices=7)}):
            yield product(kind, "4096x4096x4096", **keywords)
    yield product("f32", "4096x4096x4096", scheme=ScaledHalf())
    yield product("f64", "512x512x512", (60,), reproducible=True)


# --- Lines ------------------------------------------------------------------------------------------------------------


THREADS = 4


def told(plan: Plan, asked: str) -> tuple[str, str]:
    """What is promised, and how it is made. asked: the problem's name, which need not be told again."""
    shape = "".join(f"{size}·" for size in plan.batch) + f"{plan.m}x{plan.k}x{plan.n}"
    own = [] if shape in asked.split(" ") else [shape]
    threads = [] if plan.threads in (1, THREADS) else [f"{plan.threads} threads"]
    instead = "; ".join(
        f"{x.scheme} on {x.engine} {x.predicted_seconds:.3g} s ({x.reason})" for x in plan.alternatives
    )  # fmt: skip
    types = f"{plan.operands[0]}*{plan.operands[1]}->{plan.result} {plan.target}"
    promised = shared(f"{types}{', reproducible' if plan.reproducible else ''}: {plan.bound}")
    made = [
        *own, f"{plan.scheme} on {plan.engine}, {plan.products} of {plan.row_panel}x{plan.column_block}",
        f"{plan.workspace_bytes} B", f"{plan.predicted_seconds:.3g} s of {plan.native_seconds:.3g}", *threads,
        *map(shared, plan.reasons), *([shared(f"instead {instead}")] if instead else []),
    ]  # fmt: skip
    return promised, ", ".join(made)


def _outcome(make: Callable[[], Plan], asked: str) -> tuple[str, str]:
    try:
        return told(make(), asked)
    except PrismmError as error:
        return "", shared(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def usual_cpu() -> Iterator[None]:
    """Every machine is this one."""
    caches, threads = (cpu._best, costs.rates_of, alternatives._contenders), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRISMM_THREADS", str(THREADS))
        patch.delenv("PRISMM_ENGINE", raising=False)
        patch.setattr(cpu, "_proof", lambda name: Proof(name not in ("cpu:amx", "cpu:avx2"), "as on record"))
        patch.setattr(torch_int8, "is_fast", lambda: True)
        patch.setattr(amx, "supported", lambda: False)
        patch.setattr(costs, "PROCESSORS", {})
        patch.setattr(memory, "physical_memory", lambda: 64 << 30)
        # Repairs are foreseen by a product on this machine's engines.
        patch.setattr(dispatch, "foreseen", lambda call: call.plan)
        for cache in caches:
            cache.cache_clear()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for cache in caches:
                cache.cache_clear()


@functools.cache
def plans_on(device: str) -> dict[str, tuple[str, str]]:
    """By the problem's name."""
    if device == "CPU":
        with usual_cpu():
            return _asked(itertools.chain(problems(), cpu_problems()))
    name, _, little = device.partition(" ")
    free = 3 << 30 if little else FREE
    with (
        tempfile.TemporaryDirectory() as folder,
        pretended(GPUS[name], folder, free),
        pytest.MonkeyPatch.context() as patch,
    ):
        # Plans are of shapes: their operands hold no data to foresee repairs of.
        patch.setattr(cuda_calls, "foreseen", lambda call, *_: call.plan)
        return _asked(little_memory() if little else problems())


def _asked(some: Iterator[Problem]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for name, make in some:
        assert name not in found, name
        found[name] = _outcome(make, name)
    return found


DEVICES = "CPU", *GPUS, *(f"{name} with 3 GiB" for name in GPUS)


def lines() -> list[str]:
    """All plans: a problem with what the first device promises, then a line for each device, one for several that plan
    alike.
    """
    made = []
    for name in dict.fromkeys(name for device in DEVICES for name in plans_on(device)):
        plans = {device: plans_on(device)[name] for device in DEVICES if name in plans_on(device)}
        first = next((promised for promised, _ in plans.values() if promised), "")
        made.append(f"{name}: {first}")
        for plan in dict.fromkeys(plans.values()):
            devices = ", ".join(device for device, one in plans.items() if one == plan)
            other = f"; {plan[0]}" if plan[0] not in ("", first) else ""
            made.append(f" {devices}: {plan[1]}{other}")
    return made


@functools.cache
def on_record() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What is promised of each problem, and by device and problem how it is made."""
    promised: dict[str, str] = {}
    made: dict[str, dict[str, str]] = {device: {} for device in DEVICES}
    name = ""
    for line in read(PATH):
        head, _, rest = line.partition(": ")
        if line.startswith(" "):
            for device in head.strip().split(", "):
                made[device][name] = rest
        else:
            name, promised[head] = head, rest
    return promised, made


@pytest.mark.parametrize("device", DEVICES)
def test_plans_are_those_on_record(device):
    if device != "CPU":
        pytest.importorskip("triton")
    promised, made = on_record()
    now = [
        f"{name}: {plan}{'' if unmarked(own) in ('', promised.get(name)) else f'; {own}'}"
        for name, (own, plan) in sorted(plans_on(device).items())
    ]
    assert_same([f"{name}: {plan}" for name, plan in sorted(made[device].items())], now)


def test_a_text_is_unpacked_as_it_was_packed():
    some = [
        f"one {shared('costs 1.5e-07 s in 3x4, Words(tf32)')} more",
        f"two {shared('costs 2 s in 5x4, Words(tf32)')}",
    ]
    text = packed([*some, "three"])
    assert unpacked(text) == [
        "one costs 1.5e-07 s in 3x4, Words(tf32) more",
        "two costs 2 s in 5x4, Words(tf32)",
        "three",
    ]
