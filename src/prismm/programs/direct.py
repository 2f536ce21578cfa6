"""Products that go straight to torch: of native grade on a CPU, where nothing is predicted to be faster.

Torch's own operator makes them, whatever their size, and one look at the result says whether it is the product of
native grade: see `cpu.native.ordinary.ordinary`, whose argument this is. It holds below 2^11 terms of float32 and 2^25
of float64, two terms for each pair of complex elements, three more for a sum; of longer sums the operands are looked at
as well. What is not ordinary goes the long way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prismm.core import arrays, environment
from prismm.core.accuracy import parse_target
from prismm.core.request import Request
from prismm.core.variables import table_of
from prismm.cpu import blas_threads
from prismm.cpu.backend import problem_of
from prismm.cpu.choice import RESIDUE_WORK, may_beat_blas, measured_engine
from prismm.cpu.engines.named import BLAS
from prismm.cpu.kernels.energy import energy32, energy64
from prismm.cpu.native.ordinary import SHORT
from prismm.programs.gemms import Gemm, Method

if TYPE_CHECKING:
    from prismm.programs.recipe import Recipe

Run = Callable[..., Any]

_FUNCTIONS: dict[str, Run] = {
    "mm": torch.mm,
    "addmm": torch.addmm,
    "bmm": torch.bmm,
    "baddbmm": torch.baddbmm,
    "mv": torch.mv,
    "addmv": torch.addmv,
    "dot": torch.dot,
}
"""Operators whose whole result is looked at; those of several steps, and conjugates, go the long way."""

_SINGLE = (torch.float32, torch.complex64)
_TYPES = frozenset((*_SINGLE, torch.float64, torch.complex128))
_autocast = torch._C._is_any_autocast_enabled
_function_modes = torch._C._len_torch_function_stack


def run_of(function: Any, gemm: Gemm, recipe: Recipe) -> tuple[Run, Method] | None:
    """What makes a product and all others of its layout by torch's own operator, called with the operator's arguments;
    it returns None where the result asks for a closer look, or torch's settings forbid it. And what a table says of it,
    as `explain` has it. None for a product that prismm makes otherwise.
    """
    if not recipe.is_default or gemm.operator not in _FUNCTIONS or gemm.target is not None:
        return None
    if gemm.a.device.type != "cpu" or arrays.sharded(gemm.a):
        return None
    if not gemm.unscaled or gemm.dtype not in _TYPES or environment.variable(b"PRISMM_ENGINE"):
        return None
    batch, m, k, n = gemm.shape
    size = batch * m * n
    if size * k == 0 or (batch == 1 and _weighs_residues(m, k, n, gemm.dtype)):
        return None
    single = gemm.dtype in _SINGLE
    terms = k * (2 if gemm.dtype.is_complex else 1) + (0 if gemm.c is None else 3)
    run = _run(
        function, _FUNCTIONS[gemm.operator], single, terms >= 2 * SHORT[4 if single else 8],
        m * k * n >= blas_threads.SHARED_WORK, size * (2 if gemm.dtype.is_complex else 1),
    )  # fmt: skip
    return run, _method(gemm, k)


def left_to_torch(function: Any, gemm: Gemm) -> Run:
    """Torch's operator itself, by its fastest binding. Under autocast it returns None: torch would cast the operands,
    and the product would have another layout.
    """
    quick = function if gemm.target is not None else _FUNCTIONS.get(gemm.operator, function)

    def run(*args: Any) -> Any:
        if _autocast():
            return None
        return function(*args) if _function_modes() else quick(*args)

    return run


def _method(gemm: Gemm, k: int) -> Method:
    """The conventional bound, with three roundings more for a sum."""
    terms = k * (2 if gemm.dtype.is_complex else 1) + (0 if gemm.plain else 3)
    bound = terms * torch.finfo(gemm.dtype).eps / 2
    return Method("native", BLAS, "native", bound, f"{bound:.2e}·|a||b|")


@functools.lru_cache(maxsize=1024)
def _weighs_residues(m: int, k: int, n: int, dtype: torch.dtype) -> bool:
    """Whether what makes a product of native grade may depend on its data."""
    if m * k * n < RESIDUE_WORK or not measured_engine():
        return False
    kind = np.dtype(str(dtype).removeprefix("torch."))
    a, b = (np.broadcast_to(kind.type(1), shape) for shape in ((m, k), (k, n)))
    request = Request(parse_target("native"), None, False, None, None, 1)
    problem, _ = problem_of(a, b, kind, request, summed=False, terms_per_element=1)
    return may_beat_blas(problem)


def _run(function: Any, quick: Any, single: bool, long: bool, shared: bool, count: int) -> Run:
    """count: of the real and imaginary parts of a result, which is a new tensor without gaps."""
    precision, full = environment.float32_precision(), environment.FULL
    energy, place = _energy(single), _place()[0]

    def run(*args: Any) -> Any:
        if (single and precision() not in full) or _autocast():
            return None
        if shared and not blas_threads.torch_is_right():
            return None
        if long and not (energy_of(args[-2]) < _FAR and energy_of(args[-1]) < _FAR):
            return None
        # Torch's functions are called faster than its operators are, but modes of functions would see a call of their
        # program's that it does not make.
        value = function(*args) if _function_modes() else quick(*args)
        if count <= AT_ONCE:
            return value if energy(value.data_ptr(), count, place) < _INF else None
        return value if energy(0, 0, place) == 0.0 and energy_of(value) < _INF else None

    return run


@functools.cache
def _energy(single: bool) -> Any:
    """The compiled kernel. `compile` has Numba read the whole environment each time, so it is called only once."""
    return (energy32 if single else energy64).compile()


@functools.cache
def _place() -> tuple[int, Any]:
    """The address of what `energy32` and `energy64` compare, and what lies there."""
    words, names = table_of(environment.SETTINGS)
    table = np.concatenate([np.array(environment.ARITHMETIC).view(np.int64), words])
    return table.ctypes.data, (names, table)


_INF = math.inf
AT_ONCE = 1 << 16
"""Numbers that are looked at in one call; more of them are shared by torch's threads."""
_FAR = 2.0**80
"""A bound for the operands' energies: with it no product of long rows and columns comes near an overflow."""


def energy_of(x: torch.Tensor) -> float:
    """Σ|x|² in x's own precision, by torch: OpenBLAS's threads would go on spinning beside torch's.

    >>> energy_of(torch.tensor([[3.0, 4.0]]))
    25.0
    """
    x = x.detach()
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    y = x if x.is_contiguous() or x.ndim < 2 else x.mT
    flat = (y if y.is_contiguous() else x).reshape(-1)
    return float(torch.dot(flat, flat))
