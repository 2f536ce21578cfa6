"""``prismm::matmul`` and ``prismm::gemm`` of DTensors, whose dispatcher asks here: below autograd, so that derivatives
are products of DTensors too.
"""

from __future__ import annotations

import functools
from typing import Any

from prismm import distributed
from prismm.errors import OperandError
from prismm.programs.gemms import Gemm, rounded_scalars
from prismm.programs.recipe import Recipe


def _matmul(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The handler of ``prismm::matmul``."""
    import torch

    given = {"dtype": None, **dict(zip(("a", "b", "recipe", "dtype"), args, strict=False)), **kwargs}
    a, b, recipe, dtype = given["a"], given["b"], given["recipe"], given["dtype"]
    narrow = dtype if dtype is torch.float16 or dtype is torch.bfloat16 else None
    return distributed.matmul(a, b, Recipe.parse(recipe).asked(None if narrow is not None else dtype), narrow)


def _gemm(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The handler of ``prismm::gemm``."""
    names = ("c", "a", "b", "recipe", "alpha", "beta")
    given = {"alpha": 1, "beta": 1, **dict(zip(names, args, strict=False)), **kwargs}
    c, a, b = given["c"], given["a"], given["b"]
    scalars = rounded_scalars(Gemm("addmm", a, b, c, given["alpha"], given["beta"], a.dtype))
    if isinstance(scalars, str):
        raise OperandError(f"alpha={given['alpha']}, beta={given['beta']}: {scalars}; pass finite scalars of c's kind")
    keywords = Recipe.parse(given["recipe"]).asked()
    narrow = a.dtype if a.dtype.itemsize == 2 else None
    return distributed.gemm(a, b, c if scalars[1] != 0 else None, scalars, ("N", "N"), keywords, narrow)


@functools.cache
def serve() -> None:
    """Have DTensor's dispatcher ask here; once a process."""
    import torch
    from torch.distributed.tensor import DTensor

    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    handlers[torch.ops.prismm.matmul.default] = _matmul
    handlers[torch.ops.prismm.gemm.default] = _gemm
