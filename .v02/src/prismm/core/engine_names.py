"""The names that ``engine=``, ``PRISMM_ENGINE``, policies and the command take, and what is said of any other.

| names | multiply |
| --- | --- |
| cpu, cuda | the best here, of the processor or of the GPU where the operands are |
| cpu:amx, cpu:vnni, cpu:avx2, cpu:int8, cpu:int8-7bit, cpu:float64, cpu:direct | residues, see `cpu.engines.integer` |
| cpu:blas | NumPy's and torch's own products, and parts in floating point |
| cuda:… | torch tensors on a GPU, see `cuda.device`, `cuda.multiword.launches` and `cuda.slices.launches` |
| simulated:… | what a model of another machine says, see `cpu.engines.simulated` |
| simulated:….fp8 | residues by its FP8 products, see `cpu.engines.simulated_fp8` |
"""

from __future__ import annotations

from prismm.core.backend import simulated_engines
from prismm.errors import ArgumentError, meant

SIMULATED = "simulated:"
"""How names of simulated engines begin."""

CPU = ("cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8", "cpu:int8-7bit", "cpu:float64", "cpu:direct", "cpu:blas")
CUDA = ("cuda:int8", "cuda:fp8", "cuda:blas", "cuda:fp16", "cuda:tf32", "cuda:bf16", "cuda:fp64")
_FIXED = ("cpu", *CPU, "cuda", *CUDA)


def check(name: str) -> None:
    """ArgumentError for a name that is no engine's, on this machine or another; models in files are not looked for."""
    if name in _FIXED or (name.startswith(SIMULATED) and "." in name):
        return
    if name.startswith(SIMULATED):
        simulated_engines().engine(name)
    else:
        raise unknown(name)


def unknown(name: str) -> ArgumentError:
    """The error for a name that no engine has, with those like it.

    >>> print(unknown("cpu:int9"))
    unknown engine 'cpu:int9' (did you mean 'cpu:int8'?); pass 'cpu' or one of 'cpu:amx', 'cpu:vnni', \
'cpu:avx2', 'cpu:int8', 'cpu:int8-7bit', 'cpu:float64', 'cpu:direct', 'cpu:blas', on a GPU 'cuda' or one of \
'cuda:int8', 'cuda:fp8', 'cuda:blas', 'cuda:fp16', 'cuda:tf32', 'cuda:bf16', 'cuda:fp64', or 'simulated:NAME', such as \
'simulated:volta' and 'simulated:a100'
    """
    cpu, cuda = (", ".join(map(repr, names)) for names in (CPU, CUDA))
    like = meant(name, [*_FIXED, *_simulated()])
    return ArgumentError(
        f"unknown engine {name!r}{like}; pass 'cpu' or one of {cpu}, on a GPU 'cuda' or one of "
        f"{cuda}, or '{SIMULATED}NAME', such as '{SIMULATED}volta' and '{SIMULATED}a100'"
    )


def not_here(name: str) -> ArgumentError | None:
    """The error for a name that no engine of operands in main memory has; None where the name is one of these."""
    if name in ("cuda", *CUDA):
        return ArgumentError(
            f"engine {name!r} multiplies tensors on a GPU, and these operands are in main memory; pass CUDA tensors, "
            "or engine='cpu' for the best engine of this processor"
        )
    if name in _FIXED or name.startswith(SIMULATED):
        return None
    return unknown(name)


def _simulated() -> list[str]:
    found: list[str] = simulated_engines().names()
    return found
