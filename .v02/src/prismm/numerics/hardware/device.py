"""Compiles a kernel for this machine's GPU, runs it, and reads its machine code.

Kernels are compiled by NVRTC through cuda-core and launched by it; memory is the driver's. Everything is found and
loaded at the first use; no GPU, no package or too old a GPU is an `EngineError` that says what to do.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prismm.core.extras import install
from prismm.errors import EngineError
from prismm.numerics.encodings import storage
from prismm.numerics.hardware.instructions import Instruction, obstacle, target
from prismm.numerics.hardware.source import KERNEL, WARPS, kernel_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Gpu", "compile_cubin", "disassembler", "gpu", "mnemonics", "multiply_bits"]


def _core() -> Any:
    """cuda-core's module; its first releases keep it under "experimental"."""
    for name in ("cuda.core", "cuda.core.experimental"):
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(found, "Program"):
            return found
    raise EngineError(f"single instructions are compiled by cuda-core, which is not installed; {install('gpu-probe')}")


def _driver() -> Any:
    for name in ("cuda.bindings.driver", "cuda.cuda"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise EngineError(f"the GPU is driven through cuda-bindings, which is not installed; {install('gpu-probe')}")


def _call(function: str, *args: Any) -> Any:
    """One call of the driver; what it returns without the status."""
    driver = _driver()
    try:
        status, *found = getattr(driver, function)(*args)
    except (RuntimeError, OSError) as error:  # where there is no libcuda
        raise EngineError(f"no NVIDIA driver answers ({error}); run this on a machine with an NVIDIA GPU") from error
    if int(status) != 0:
        raise EngineError(f"{function} failed with {getattr(status, 'name', status)}")
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True)
class Gpu:
    """The GPU in use.

    Args:
        name: as its driver calls it.
        capability: compute capability, (major, minor).
        driver: version of CUDA that the driver supports, "13.0".
        compiler: version of NVRTC.
    """

    name: str
    capability: tuple[int, int]
    driver: str
    compiler: str


@cache
def gpu() -> Gpu:
    """The first GPU that the process sees, made current.

    Raises:
        EngineError: without one, or without cuda-core.
    """
    core = _core()
    try:
        _call("cuInit", 0)
        count = int(_call("cuDeviceGetCount"))
    except EngineError as error:
        raise EngineError(f"no GPU can be used: {error}") from error
    if count == 0:
        raise EngineError("no GPU is visible; run this on a machine with an NVIDIA GPU, or mend CUDA_VISIBLE_DEVICES")
    core.Device(0).set_current()
    driver = _driver()
    handle = _call("cuDeviceGet", 0)
    attribute = driver.CUdevice_attribute
    major, minor = (
        int(_call("cuDeviceGetAttribute", which, handle))
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    name = bytes(_call("cuDeviceGetName", 256, handle)).split(b"\0")[0].decode(errors="replace")
    version = int(_call("cuDriverGetVersion"))
    return Gpu(name, (major, minor), f"{version // 1000}.{version % 1000 // 10}", _compiler())


def _compiler() -> str:
    for name in ("cuda.bindings.nvrtc", "cuda.nvrtc"):
        try:
            status, major, minor = importlib.import_module(name).nvrtcVersion()
        except Exception:  # ImportError; RuntimeError where the library is missing
            continue
        if int(status) == 0:
            return f"{major}.{minor}"
    return "unknown"


def _compile(instruction: Instruction, arch: str) -> Any:
    core = _core()
    try:
        return core.Program(kernel_source(instruction), "c++", core.ProgramOptions(arch=arch)).compile("cubin")
    except Exception as error:  # cuda-core: NVRTCError, RuntimeError where NVRTC is missing, by version
        raise EngineError(
            f"NVRTC does not compile {instruction.name} for {arch} ({type(error).__name__}: {str(error)[:600]}); "
            "install a newer NVRTC: pip install --upgrade 'cuda-core[cu13]'"
        ) from error


def compile_cubin(instruction: Instruction, arch: str | None = None) -> bytes:
    """Machine code of an instruction's kernel; needs no GPU where ``arch`` is given.

    Args:
        instruction: to compile the kernel of.
        arch: such as "sm_90a"; None: this machine's GPU.

    Raises:
        EngineError: without cuda-core and NVRTC, or if NVRTC refuses.
    """
    return bytes(_compile(instruction, arch or target(instruction, gpu().capability)).code)


@cache
def _kernel(instruction: Instruction) -> tuple[Any, Any, Any]:
    """The loaded kernel of an instruction, with what must live as long: its module and a stream."""
    here = gpu()
    why = obstacle(instruction, here.capability)
    if why:
        raise EngineError(f"{why}; run it on another GPU, or simulate it")
    module = _compile(instruction, target(instruction, here.capability))
    device = _core().Device(0)
    device.set_current()
    return module.get_kernel(KERNEL), module, device.create_stream()


def multiply_bits(
    instruction: Instruction,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    turn: int = 0,
    turn_step: int = 0,
) -> NDArray[Any]:
    """Run the kernel once: D of every problem.

    Args:
        instruction: to run.
        a: patterns, (count, length), of the type `prismm.numerics.encodings.storage` names; length a positive multiple
            of the instruction's k.
        b: the same.
        c: patterns, (count,).
        turn: rows by which the problems are moved, see `prismm.numerics.hardware.source`.
        turn_step: rows by which every next group of n problems is moved further.

    Raises:
        EngineError: if there is no GPU that has the instruction, or the launch fails.
    """
    import numpy as np

    kernel, _, stream = _kernel(instruction)
    core = _core()
    core.Device(0).set_current()
    count, length = a.shape
    if count == 0:
        return np.empty(0, storage(instruction.output))
    inputs = [
        np.ascontiguousarray(x, storage(format))
        for x, format in ((a, instruction.input), (b, instruction.input), (c, instruction.output))
    ]
    d = np.empty(count, storage(instruction.output))
    groups = -(-count // instruction.n)
    blocks = groups if instruction.kind == "wgmma" else -(-groups // WARPS)
    held: list[Any] = []
    try:
        for x in (*inputs, d):
            held.append(_call("cuMemAlloc", x.nbytes))
        for x, place in zip(inputs, held, strict=False):
            _call("cuMemcpyHtoD", place, x.ctypes.data, x.nbytes)
        _call("cuCtxSynchronize")  # copies from pageable memory may still be under way
        core.launch(
            stream,
            core.LaunchConfig(grid=blocks, block=WARPS * 32),
            kernel,
            *(int(place) for place in held),
            ctypes.c_uint64(count),
            *(ctypes.c_uint32(x) for x in (length, turn, turn_step)),
        )
        stream.sync()
        _call("cuMemcpyDtoH", d.ctypes.data, held[3], d.nbytes)
    finally:
        for place in held:
            _call("cuMemFree", place)
    return d


def disassembler() -> str | None:
    """A program that prints machine code: nvdisasm or cuobjdump, on PATH or as Triton brings it."""
    found = shutil.which("nvdisasm") or shutil.which("cuobjdump")
    if found is None:
        spec = find_spec("triton")
        for place in (spec.submodule_search_locations or []) if spec else []:
            for name in ("nvdisasm", "cuobjdump"):
                program = Path(place) / "backends" / "nvidia" / "bin" / name
                if program.is_file():
                    return str(program)
    return found


_MATRIX = re.compile(r"\b((?:HMMA|IMMA|DMMA|QMMA|OMMA|BMMA|HGMMA|IGMMA|QGMMA|BGMMA)\.[\w.]+)")


def mnemonics(cubin: bytes) -> tuple[str, ...] | None:
    """The matrix instructions in machine code, in its order; None without a disassembler that reads it.

    >>> mnemonics(b"") is None
    True
    """
    program = disassembler()
    if program is None:
        return None
    options = ["-sass"] if Path(program).name.startswith("cuobjdump") else ["-c"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        ran = subprocess.run([program, *options, str(path)], capture_output=True, text=True, check=False)
    return tuple(_MATRIX.findall(ran.stdout)) if ran.returncode == 0 else None
