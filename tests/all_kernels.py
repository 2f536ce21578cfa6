"""All kernels that Numba compiles, of the packages that hold some."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

PACKAGES = ("prismm.cpu.kernels", "prismm.numerics.kernels")
HELPED_BY = {"replay": "dot_model"}
"""Modules whose kernels call most helpers of another one: what has compiled those compiles them in half the time."""


def all_kernels(*, here: bool = True) -> list[tuple[str, Any]]:
    """Names and kernels; `here`: of those alone that this processor can run."""
    from prismm.core import jit
    from prismm.cpu.kernels import amx, vnni
    from prismm.cpu.warm import NEED_AMX, NEED_BYTES

    found = []
    modules = [
        (package, module.name)
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if not here
        or ((vnni.supported() or module.name not in NEED_BYTES) and (amx.supported() or module.name not in NEED_AMX))
    ]
    for package, name in sorted(modules, key=lambda one: (one[0], HELPED_BY.get(one[1], one[1]))):
        module = importlib.import_module(f"{package}.{name}")
        found += [
            (f"{name}.{kernel}", value)
            for kernel, value in vars(module).items()
            if isinstance(value, jit.Kernel) and value.function.__module__ == module.__name__
        ]
    return found
