"""Kernels compiled ahead of the calls that need them, by several processes: Numba compiles one at a time in each."""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import signal
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from prismm.core import cache_files, jit
from prismm.core.threads import worker_count
from prismm.cpu import kernels as _package
from prismm.errors import EngineError

NEED_BYTES, NEED_AMX = ("fused", "packed", "vnni"), ("amx", "fused_amx")
"""Modules whose kernels compile only where the processor has the instructions."""

_OF_ENGINES = {
    "cpu:amx": {"amx", "fused_amx", "packed", "vnni"},
    "cpu:vnni": {"fused", "packed", "vnni"},
    "cpu:avx2": {"fused", "packed", "vnni"},
    "cpu:direct": {"blocks", "direct"},
}
"""Modules that serve these engines alone."""

_SINGLE, _COMPLEX = ("float32", "complex64"), ("complex64", "complex128")
"""Types whose kernels `_serves` knows by their names."""


def modules(engine: str | None = None) -> list[str]:
    """Names of the modules with kernels that this processor can run, those of other engines left out.

    Raises:
        EngineError: where it cannot run the engine's.
    """
    from prismm.cpu.kernels import amx, byte_unit, vnni

    lacking = (set() if vnni.supported() else set(NEED_BYTES)) | (set() if amx.supported() else set(NEED_AMX))
    ours = _OF_ENGINES.get(engine or "", set())
    there = {"cpu:amx": amx.supported(), "cpu:vnni": byte_unit.has_vnni(), "cpu:avx2": byte_unit.widens()}
    if not there.get(engine or "", True):
        raise EngineError(f"engine {engine!r} needs instructions that this processor lacks; leave --engine out")
    others = set().union(*_OF_ENGINES.values()) - ours if engine not in (None, "cpu") else set()
    names = (module.name for module in pkgutil.iter_modules(_package.__path__))
    return [name for name in names if name not in lacking | others]


def kernels_of(module: str) -> dict[str, jit.Kernel]:
    """The kernels of a module of `cpu.kernels`, by name."""
    found = importlib.import_module(f"{_package.__name__}.{module}")
    return {
        name: value
        for name, value in vars(found).items()
        if isinstance(value, jit.Kernel) and value.function.__module__ == found.__name__
    }


def _serves(module: str, kernel: str, dtypes: Collection[str]) -> bool:
    """Whether products of these types may call a kernel. Most serve all: they read float64, or integers."""
    if "complex" in kernel:
        dtypes = [name for name in dtypes if name in _COMPLEX]
    if module == "single" or kernel.endswith("_single"):
        dtypes = [name for name in dtypes if name in _SINGLE]
    return bool(dtypes)


def missing(dtypes: Collection[str], engine: str | None = None) -> dict[str, list[str]]:
    """Kernels that are not on disk yet, by module: of products of these types, by this engine or by any."""
    found = {
        module: [
            name
            for name, kernel in kernels_of(module).items()
            if _serves(module, name, dtypes) and not kernel.is_on_disk()
        ]
        for module in modules(engine)
    }
    return {module: names for module, names in found.items() if names}


def compile_all(wanted: dict[str, list[str]], done: Callable[[str, int], None]) -> None:
    """Compile these kernels; `done` is called with each module and how many of its kernels are compiled."""
    # Modules of many kernels begin first. A module is one process's, since its kernels share helpers.
    order = sorted(wanted, key=lambda module: -len(wanted[module]))
    workers = min(worker_count(), len(order))
    for module in _compiled_here(order, wanted) if workers < 2 else _compiled_elsewhere(order, wanted, workers):
        done(module, len(wanted[module]))


def _compiled_here(order: list[str], wanted: dict[str, list[str]]) -> Iterator[str]:
    for module in order:
        _compile(module, wanted[module])
        yield module


def _compiled_elsewhere(order: list[str], wanted: dict[str, list[str]], workers: int) -> Iterator[str]:
    # Not by fork: a child would have this process's locks, which its threads may hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_at_once) as pool:
        futures = {pool.submit(_compile, module, wanted[module]): module for module in order}
        for future in as_completed(futures):
            future.result()
            yield futures[future]


def _end_at_once() -> None:
    """Ctrl-C ends this process without a word; the command has one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _compile(module: str, names: list[str]) -> None:
    kernels = kernels_of(module)
    with cache_files.announced_to(lambda _: None):
        for name in names:
            kernels[name].compile()
