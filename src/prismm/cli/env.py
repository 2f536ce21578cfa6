"""``prismm env``: what prismm finds on this machine, and what it would run on it."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import Any

from prismm.cli import options
from prismm.cli.console import bytes_text, print_json, table
from prismm.cli.memory import available
from prismm.core.extras import install
from prismm.errors import EngineError, PrismmError

_PACKAGES = ("numpy", "torch", "numba", "llvmlite", "triton", "scipy", "python-flint")
_FEATURES = ("fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
_VARIABLES = (
    "PRISMM_ENGINE",
    "PRISMM_THREADS",
    "PRISMM_CACHE_DIR",
    "PRISMM_RATES",
    "PRISMM_COMPILE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMBA_THREADING_LAYER",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
)


def env(json: options.Json = False) -> None:
    """Print versions, the processor, the engines and whether each proved itself, and settings."""
    if json:
        print_json(environment())
        return
    for title, rows in _topics():
        print(f"{title}")
        body = rows or {"none": ""}
        lines = table([(k, _text(v)) for k, v in body.items()]).splitlines()
        print("\n".join(f"  {line}" for line in lines), flush=True)


def environment() -> dict[str, dict[str, Any]]:
    """All of it by topic, JSON-able."""
    return dict(_topics())


def _topics() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each topic with what was found, the quick ones first: what follows may load torch, and proves engines."""
    import prismm

    yield (
        "versions",
        {"prismm": prismm.__version__, "python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
    )
    yield (
        "processor",
        {
            "model": processor(),
            "cores": os.cpu_count(),
            "features": " ".join(_features()) or "unknown",
            "libraries": _blas(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
    )
    from prismm.core.jit import cache_folder
    from prismm.core.threads import worker_count
    from prismm.cpu.engines import simulated

    found = prismm.engines.available().items()
    yield (
        "engines",
        {name: reason if usable else f"not usable: {reason}" for name, (usable, reason) in found}
        | {
            "cpu:blas": "products of the libraries above, with bounds for any order of summation",
            "cuda": _gpu(),
            "simulated": ", ".join(simulated.names()),
        },
    )
    yield (
        "settings",
        {
            "threads": worker_count(),
            "memory available": bytes_text(available()),
            "compiled kernels": str(cache_folder() or "not kept: no folder can be written"),
            "arithmetic": _arithmetic(),
            "float32 of torch": _float32(),
        },
    )
    yield "variables", {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def machine(threads: int | None = None) -> dict[str, Any]:
    """One line about this machine for tables of measurements."""
    import prismm

    return {
        "device": processor(),
        "threads": threads or "default",
        "prismm": prismm.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "torch", "numba")},
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _features() -> list[str]:
    """Instruction sets that matter here, as Linux names them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "").split()
    except OSError:
        return []
    return [name for name in _FEATURES if name in flags]


def _blas() -> str:
    """The libraries behind NumPy's and torch's own products."""
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    with contextlib.suppress(ImportError):
        import torch  # noqa: F401

    found = [f"{lib['internal_api']} {lib.get('version') or ''}".strip() for lib in threadpool_info()]
    return ", ".join(dict.fromkeys(found))


def _gpu() -> str:
    """The engines of a GPU, and which GPU; or why there are none."""
    from prismm.core import engine_names as names

    try:
        import torch
    except ImportError:
        return f"not usable: torch is not installed ({install('torch')})"
    if not torch.cuda.is_available():
        return "not usable: there is no NVIDIA GPU here, or this torch is a CPU build"
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{', '.join(names.CUDA)}: of tensors on {', '.join(map(_with_rates, devices))}"


def _with_rates(name: str) -> str:
    """A GPU, and where its rates come from."""
    from prismm.cuda.costs.table import calibrated

    try:
        table = calibrated(name)
    except PrismmError as error:
        return f"{name} (its rates: {error})"
    return f"{name} (rates measured)" if table is not None else f"{name} (rates estimated: run `prismm calibrate`)"


def _arithmetic() -> str:
    from prismm.core.environment import check_arithmetic

    try:
        check_arithmetic()
    except EngineError as error:
        return str(error)
    return "rounds to nearest, keeps subnormals"


def _float32() -> str:
    from prismm.core.environment import reduced_float32

    return reduced_float32() or "full precision"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
