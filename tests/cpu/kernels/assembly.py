"""What kernels of a CPU are compiled to for a processor that may not be here, on record by what it follows from."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile

from tests.recorded import followed, recorded

PROGRAM = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    module, _, kernel = name.rpartition(".")
    compiled = getattr(importlib.import_module(f"prismm.cpu.kernels.{module}"), kernel).compile()
    found[name] = "\\n".join(compiled.inspect_asm().values())
print(json.dumps(found))
"""

Counts = dict[str, int]
"""How often an instruction stands in a kernel, by its name and the kind of register that it writes (x, y, z or t)."""


def assembly(processor: str, features: str, kernels: tuple[str, ...], instructions: str) -> dict[str, Counts]:
    """Instructions in kernels that are compiled for a processor.

    Args:
        processor: LLVM's name of it.
        features: LLVM's names of its features, each after ``+``.
        kernels: Their names in `prismm.cpu.kernels`, as ``"vnni.packed_product"``.
        instructions: A regular expression of the names of those that are counted.
    """

    def make() -> dict[str, Counts]:
        return {name: counts(text, instructions) for name, text in compiled(processor, features, kernels).items()}

    modules = {f"prismm.cpu.kernels.{name.rpartition('.')[0]}" for name in kernels}
    own = [features, instructions, PROGRAM, *map(inspect.getsource, (compiled, counts))]
    sources = followed(*sorted(modules), packages=("numba", "llvmlite"))
    return recorded("assembly", f"{processor} {' '.join(kernels)}", [*own, *sources], make)


def compiled(processor: str, features: str, kernels: tuple[str, ...]) -> dict[str, str]:
    """The assembly of each kernel, by a process of its own: Numba takes the processor from the environment."""
    with tempfile.TemporaryDirectory(prefix="prismm-test-") as folder:
        target = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "PRISMM_CACHE_DIR": folder}
        command = [sys.executable, "-c", PROGRAM, *kernels]
        done = subprocess.run(command, env=os.environ | target, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def counts(text: str, instructions: str) -> Counts:
    """Instructions of a kernel's assembly."""
    found: Counts = {}
    for op, register in re.findall(rf"\b({instructions})\b[^\n]*?(?:%([xyzt])mm\d+)?$", text, re.M):
        name = f"{op} {register}".strip()
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))
