"""A GPU that is not there: calls go all the way to their programs, which are written down in place of being launched.

Operands are torch's CPU tensors, which every module takes for tensors on the GPU. What a call would ask of torch's CUDA
is answered here, and the same on any machine: no tables, settings or files of a user count.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from prismm import cuda, dispatch
from prismm.cuda import calls as cuda_calls
from prismm.cuda import workspace
from prismm.cuda.costs import host_speed as host_speed
from prismm.cuda.costs import table as cuda_rates
from prismm.cuda.device import Device
from prismm.cuda.launch.arguments import BufferView, Factor, Tiled
from prismm.cuda.launch.cublas import Gemm
from prismm.cuda.launch.program import Program
from prismm.cuda.residues.tables import tables
from tests.cuda.harness.evidence import contents

GPUS = {
    "H100": Device("NVIDIA H100 80GB HBM3", True, True, 132),
    "H200": Device("NVIDIA H200", True, True, 132),
    "unknown": Device("NVIDIA of tomorrow", False, True, 100),
}
FREE = 100 << 30
"""Bytes of memory that are free."""

_SETTINGS = (
    "PRISMM_RATES", "PRISMM_ENGINE", "PRISMM_THREADS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
)  # fmt: skip
_BASES = ("A", "B", "OUT", "SCRATCH", "LEFT", "RIGHT", "C", "FACTORS")


@contextlib.contextmanager
def pretended(device: Device, folder: Any, free: int = FREE) -> Iterator[list[str]]:
    """Calls of CPU tensors inside are calls on such a GPU; the list fills with what they would launch. folder: an empty
    one.
    """
    told: list[str] = []
    known: list[Program] = []

    def run(program: Program, bases: tuple[int, ...], stream: int, captured: bool | None = None) -> None:
        if not told:
            known.clear()
        again = [x for x, other in enumerate(known, 1) if other is program]
        if again:
            told.append(f"program {again[0]} again")
            return
        known.append(program)
        told.extend(_lines(program))

    answers: dict[str, Any] = {
        "lives_on_gpu": lambda x: isinstance(x, torch.Tensor) or hasattr(x, "parts"),
        "device_of": lambda _: device,
        "kept": lambda *_: 0,
        "estimate_rates": lambda *_: None,
        "tables": lambda moduli, _: tables(moduli, torch.device("cpu")),
    }
    load_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRISMM_CACHE_DIR", str(folder))
        for name in _SETTINGS:
            patch.delenv(name, raising=False)
        for module in _loaded():
            for name, answer in answers.items():
                if callable(vars(module).get(name)):
                    patch.setattr(module, name, answer)
        patch.setattr(dispatch, "fast_tensors", lambda *_: None)
        patch.setattr(workspace, "unread", functools.cache(lambda _: torch.empty(256, dtype=torch.uint8)))
        patch.setattr(workspace, "scratch_of", lambda queued, _: _zeros(queued.program.workspace))
        patch.setattr(host_speed, "seconds", lambda: 16e-6)
        patch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 1 << 37))
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(torch.cuda, "current_device", lambda: None)
        patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        for name, answer in (
            ("_cuda_getDevice", None), ("_cuda_getCurrentRawStream", 0), ("_cuda_isCurrentStreamCapturing", False),
            ("_cuda_cudaCachingAllocator_raw_alloc", 0), ("_cuda_cudaCachingAllocator_raw_delete", None),
        ):  # fmt: skip
            patch.setattr(torch._C, name, lambda *_, answer=answer: answer, raising=False)
        patch.setattr(Program, "run", run)
        patch.setattr(Program, "run_in_stages", lambda program, bases, stream, begin: run(program, bases, stream))
        forget()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield told
        finally:
            torch.set_num_threads(threads)
            forget()
    kept = [
        (module.__name__, name) for module in _loaded() for name in answers if vars(module).get(name) is answers[name]
    ]
    assert not kept, f"these modules keep the harness's functions, and would use them on a real GPU: {kept}"


@functools.cache
def load_all() -> None:
    """Load all modules for GPUs: one that is loaded while a GPU is pretended imports the answers, and keeps them."""
    for module in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        with contextlib.suppress(ModuleNotFoundError):  # without Triton
            importlib.import_module(module.name)


def _loaded() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.partition(".")[0] == "prismm"]


def _zeros(size: int) -> torch.Tensor:
    """Bytes that take no memory before somebody writes to them."""
    return torch.from_numpy(np.zeros(size, np.uint8))


def forget() -> None:
    """Nothing that an earlier call left counts in later ones."""
    cuda_calls.forget()
    cuda_rates.rates_of.cache_clear()
    workspace.current_stream.cache_clear()
    workspace._allocator.cache_clear()


# --- Programs as text -------------------------------------------------------------------------------------------------


def _lines(program: Program) -> Iterator[str]:
    """A program, a launch a line: kernels by their functions' names alone, so that modules may move."""
    yield f"program alignments={'/'.join(map(str, program.alignments))} scratch={program.workspace}"
    for launch in program.launches:
        fork = "fork " if getattr(launch, "forked", False) else ""
        name = type(launch).__name__.strip("_").lower()
        if hasattr(launch, "kernel"):
            assert launch.stage  # which a report asks for
            grid = "x".join(map(str, launch.grid))
            arguments = ", ".join(map(_text, launch.arguments))
            constants = ", ".join(f"{key}={_text(x)}" for key, x in sorted(launch.constants.items()))
            yield f"{fork}{launch.kernel.fn.__name__}[{grid}]({arguments}; {constants})"
        elif isinstance(launch, Gemm):
            function, arguments = launch.call
            yield f"{function}({', '.join(map(_text, arguments))}; workspace={_text(launch.workspace)})"
        elif name == "zero":
            yield f"{fork}zero(SCRATCH+{launch.offset}, {launch.size})"
        else:
            yield name


def _text(x: Any) -> str:
    """An argument or constant, without addresses and modules."""
    if isinstance(x, BufferView):
        shape = "x".join(map(str, x.shape))
        packed = tuple(_packed(x.shape)) == tuple(x.strides)
        strides = "" if packed else f"/{'x'.join(map(str, x.strides))}"
        offset = f"+{x.offset}" if x.offset else ""
        return f"{_BASES[x.base]}{offset}:{_kind(x.dtype)}{f'[{shape}{strides}]' if shape or strides else ''}"
    if isinstance(x, Factor):
        return f"FACTOR{x.index}"
    if isinstance(x, Tiled):
        strides = "" if tuple(_packed(x.shape)) == tuple(x.strides) else f"/{'x'.join(map(str, x.strides))}"
        box, shape = ("x".join(map(str, some)) for some in (x.box, x.shape))
        return f"tiled({_text(x.buffer)}, {shape}{strides}, box {box}, {_text(x.layout)})"
    if isinstance(x, torch.Tensor):
        return f"tensor:{_kind(x.dtype)}[{'x'.join(map(str, x.shape))}]#{contents(x)[-64:-56]}"
    if isinstance(x, tuple | list):
        whole = ", ".join(map(_text, x))
        if len(x) > 4:
            return f"{len(x)} numbers #{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
        return f"({whole})"
    if hasattr(x, "value") and type(x).__name__ == "constexpr":
        return _text(x.value)
    if callable(x) and hasattr(x, "__name__"):
        return str(x.__name__)
    if hasattr(x, "fn"):
        return str(x.fn.__name__)
    if type(x).__name__ == "NVMMASharedLayout":
        return f"swizzled {x.swizzle_byte_width}/{x.element_bitwidth}{' transposed' if x.transposed else ''}"
    text = repr(x)
    assert " at 0x" not in text, "an address tells one run from another"
    return text


def _packed(shape: Any) -> list[int]:
    steps = [1]
    for size in reversed(tuple(shape)[1:]):
        steps.insert(0, steps[0] * size)
    return steps if shape else []


_KINDS = {"float64": "f64", "float32": "f32", "complex128": "c128", "complex64": "c64", "bfloat16": "bf16"}


def _kind(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _KINDS.get(name) or name.replace("uint", "u").replace("int", "i").replace("float", "f")
