"""``prismm warm``: compile kernels ahead, so that no product waits for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from prismm.cli import options
from prismm.cli.console import progress, say
from prismm.errors import EngineError, FileError, PrismmError

ORDERS = (64, 512, 2048, 4096)
"""Orders of the squares that are multiplied on a GPU: a kernel is compiled for what its launch is given."""

_TARGETS: tuple[dict[str, Any], ...] = ({}, {"reproducible": True}, {"accuracy": "correctly-rounded"})

Told = Callable[[str, int], None]
"""Called with what was compiled, and how many steps of the bar that is."""


def warm(
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE", help=f"Type of the operands, once for each: {', '.join(options.DTYPES)}. All by default."
        ),
    ] = None,
    engine: options.Engine = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing, and show no bar.")] = False,
) -> None:
    """Compile kernels ahead and keep them on disk: no later product waits for them.

    Of this processor all kernels that products of these types may call, by one process a worker thread
    (PRISMM_THREADS). Where there is a GPU, squares of orders 64 to 4096 are multiplied there to each named target.
    """
    from prismm.core import engine_names

    dtypes = [str(options.parse_dtype(name)) for name in dtype or options.DTYPES]
    if engine is not None:
        engine_names.check(engine)
        if engine.startswith(engine_names.SIMULATED):
            raise EngineError(f"engine {engine!r} is a model of another machine; there is nothing to compile ahead")
    on_gpu = engine in ("cuda", *engine_names.CUDA)
    if not on_gpu:
        _warm_cpu(dtypes, engine, quiet)
    if on_gpu or (engine is None and _gpu_is_here()):
        _warm_gpu(dtypes, engine, quiet)


def _gpu_is_here() -> bool:
    """Whether torch finds a GPU; it is not loaded to look for one where NVIDIA's driver is missing."""
    if not has_driver():
        return False
    try:
        import torch
    except (ImportError, OSError):
        return False
    return bool(torch.cuda.is_available())


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed."""
    from ctypes import CDLL

    try:
        CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _warm_cpu(dtypes: list[str], engine: str | None, quiet: bool) -> None:
    from prismm.core import jit
    from prismm.cpu import warm as kernels

    if jit.cache_folder() is None:
        raise FileError("no cache folder can be written to, so no kernel is kept; set PRISMM_CACHE_DIR")
    wanted = kernels.missing(dtypes, engine)
    count = sum(map(len, wanted.values()))
    _run(
        "this CPU", "kernels", count, quiet,
        lambda done: kernels.compile_all(wanted, lambda module, some: done(f"compiling {module}", some)),
    )  # fmt: skip


def _warm_gpu(dtypes: list[str], engine: str | None, quiet: bool) -> None:
    from prismm.core.lazy import needs_torch

    with needs_torch("prismm warm --engine cuda"):
        import torch
    if not torch.cuda.is_available():
        raise EngineError("there is no NVIDIA GPU here, or this torch is a CPU build; run it on a machine with one")
    calls = [(dtype, n, target) for dtype in dtypes for n in ORDERS for target in _TARGETS]
    refusals: list[PrismmError] = []
    os.environ["PRISMM_COMPILE"] = "first"  # this process's products wait for all their kernels

    def multiply_all(done: Told) -> None:
        from prismm.core import cache_files

        with cache_files.announced_to(lambda text: done(text, 0)):
            for call in calls:
                refusals.extend(_multiply(*call, engine))
                done(f"multiplied {call[0]}, n = {call[1]}", 1)

    _run(torch.cuda.get_device_name(), "products", len(calls), quiet, multiply_all)
    if len(refusals) == len(calls):
        raise refusals[-1]


def _multiply(dtype: str, n: int, target: dict[str, Any], engine: str | None) -> Iterator[PrismmError]:
    """Multiply once on the GPU; yields the error where the engine does not serve such a product."""
    import torch

    import prismm

    generator = torch.Generator("cuda").manual_seed(0)
    a, b = torch.randn(2, n, n, dtype=getattr(torch, dtype), device="cuda", generator=generator)
    try:
        prismm.matmul(a, b, engine=engine, **target)
        torch.cuda.synchronize()
    except PrismmError as error:
        yield error


def _run(where: str, what: str, count: int, quiet: bool, work: Callable[[Told], None]) -> None:
    """Do it under a bar, or a line before and after where nobody watches."""
    if count == 0:
        if not quiet:
            say(f"{where}: all kernels are on disk")
        return
    if not quiet:
        say(f"{where}: compiling {'kernels of ' if what == 'products' else ''}{count} {what}")
    with progress(quiet) as bar:
        task = bar.add_task("compiling", total=count)
        work(lambda text, steps: bar.update(task, description=text[:60], advance=steps))
    if not quiet:
        say(f"{where}: done")
