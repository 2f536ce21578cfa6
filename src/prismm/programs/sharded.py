"""``prismm::matmul`` and ``prismm::gemm`` of DTensors, whose dispatcher asks here: below autograd, so that derivatives
are products of DTensors too.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from prismm.core import arrays
from prismm.distributed.product import matmul, multiply
from prismm.errors import OperandError
from prismm.programs.gemms import OF_MATRICES, Gemm, multiply_parts, rounded_scalars
from prismm.programs.recipe import Recipe

if TYPE_CHECKING:
    from prismm.programs.direct import Run


def _matmul(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The handler of ``prismm::matmul``."""
    import torch

    given = {"dtype": None, **dict(zip(("a", "b", "recipe", "dtype"), args, strict=False)), **kwargs}
    a, b, recipe, dtype = given["a"], given["b"], given["recipe"], given["dtype"]
    narrow = dtype if dtype is torch.float16 or dtype is torch.bfloat16 else None
    return matmul(a, b, Recipe.parse(recipe).asked(None if narrow is not None else dtype), narrow)


def _gemm(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The handler of ``prismm::gemm``."""
    names = ("c", "a", "b", "recipe", "alpha", "beta")
    given = {"alpha": 1, "beta": 1, **dict(zip(names, args, strict=False)), **kwargs}
    c, a, b = given["c"], given["a"], given["b"]
    asked = Gemm("addmm", a, b, c, given["alpha"], given["beta"], a.dtype)
    scalars = rounded_scalars(asked)
    if isinstance(scalars, str):
        raise OperandError(f"alpha={asked.alpha}, beta={asked.beta}: {scalars}; pass finite scalars of c's kind")
    gemm = Gemm("addmm", a, b, c if scalars[1] != 0 else None, *scalars, a.dtype)
    return multiply_parts(gemm, Recipe.parse(given["recipe"]))


def run_of(gemm: Gemm, recipe: Recipe, otherwise: Run) -> Run | None:
    """A function that makes this product of DTensors and others of its shapes and types from the operator's arguments,
    whatever their placements; None for a product that takes more steps.

    otherwise: makes what differs; it returns None for arguments that torch has to refuse.
    """
    operands = [x for x in (gemm.c, gemm.a, gemm.b) if x is not None]
    if gemm.operator not in OF_MATRICES or not gemm.unscaled or not all(map(arrays.sharded, operands)):
        return None
    keywords, narrow, stepwise = recipe.asked(), gemm.dtype if gemm.dtype.itemsize == 2 else None, gemm.a.is_cuda
    factors = None if gemm.c is None else (1.0, 1.0)
    shown = [(x.shape, x.dtype) for x in operands]

    def run(*args: Any) -> Any:
        if any(shape != x.shape or dtype is not x.dtype for (shape, dtype), x in zip(shown, args, strict=True)):
            return otherwise(*args)
        c = None if factors is None else args[0]
        return multiply(args[-2], args[-1], c, factors, keywords, narrow, stepwise=stepwise)

    return run


@functools.cache
def serve() -> None:
    """Have DTensor's dispatcher ask here; once a process."""
    import torch
    from torch.distributed.tensor import DTensor

    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    handlers[torch.ops.prismm.matmul.default] = _matmul
    handlers[torch.ops.prismm.gemm.default] = _gemm
