"""Products on a GPU that go straight to the fast path of calls (`cuda.fast_path`): of a layout that is known.

The bits are those of `gemms.multiply`: the addend of `addmm` and `baddbmm` is added to the rounded product, by the
kernel that writes it where that can (`rows`), else by torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from prismm.core import arrays
from prismm.programs.rows import product_and_row

if TYPE_CHECKING:
    from prismm.programs.direct import Run
    from prismm.programs.gemms import Gemm
    from prismm.programs.recipe import Recipe

_OPERATORS = frozenset(("mm", "bmm", "addmm", "baddbmm"))
"""Operators whose operands are those of `matmul`; of others the long way makes them."""


def run_of(gemm: Gemm, recipe: Recipe, otherwise: Run) -> Run | None:
    """A function that makes this product and others of its layout from the operator's arguments; None for a product
    that the fast path does not take.

    Args:
        gemm: the product; it has no target.
        recipe: one whose products do not depend on the data.
        otherwise: makes what the fast path does not know yet; it returns None for arguments that torch has to refuse.
    """
    if gemm.operator not in _OPERATORS or not gemm.a.is_cuda or arrays.sharded(gemm.a):
        return None
    if gemm.dtype is not gemm.a.dtype or gemm.alpha != 1 or (gemm.c is not None and gemm.beta != 1):
        return None
    from prismm.cuda.calls import fast_path

    keywords, adds = recipe.asked(), gemm.c is not None

    def run(*args: Any) -> Any:
        a, b = (x.detach() if x.requires_grad else x for x in args[-2:])
        if adds and type(args[0]) in _PLAIN:
            value = product_and_row(a, b, args[0].detach(), keywords)
            if value is not None:
                return value
        value = fast_path(a, b, keywords, None)
        if value is None:
            return otherwise(*args)
        if not adds:
            return value
        c = args[0]
        if c.device != value.device or c.dtype is not value.dtype or type(c) not in _PLAIN:
            return None
        return value.add_(c.detach() if c.requires_grad else c)

    return run


_PLAIN = torch.Tensor, torch.nn.Parameter
