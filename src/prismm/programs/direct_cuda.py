"""Products on a GPU that go straight to the fast path of calls (`cuda.fast_path`): of a layout that is known.

The bits are those of `gemms.multiply`: the addend of `addmm` and `baddbmm` is added to the rounded product, by the
kernel that writes it where that can (`rows`), else by torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from prismm.core import arrays
from prismm.cuda.rows import product_and_row
from prismm.programs.gemms import OF_MATRICES

if TYPE_CHECKING:
    from prismm.programs.direct import Run
    from prismm.programs.gemms import Gemm
    from prismm.programs.recipe import Recipe


def run_of(gemm: Gemm, recipe: Recipe, otherwise: Run) -> Run | None:
    """A function that makes this product and others of its layout from the operator's arguments; None for a product
    that the fast path does not take.

    Args:
        gemm: the product; it has no target.
        recipe: one whose products do not depend on the data.
        otherwise: makes what the fast path does not know yet; it returns None for arguments that torch has to refuse.
    """
    if gemm.operator not in OF_MATRICES or not gemm.unscaled or not gemm.a.is_cuda or arrays.sharded(gemm.a):
        return None
    from prismm.cuda.calls import fast_path, repeated

    keywords, adds = recipe.asked(), gemm.c is not None
    held: list[Any] = []

    def run(*args: Any) -> Any:
        for again in held:
            value = again(args)
            if value is not None:
                return value
        a, b = (x.detach() if x.requires_grad else x for x in args[-2:])
        c = None
        if adds and type(args[0]) in _PLAIN:
            c = args[0].detach()
            value = product_and_row(a, b, c, keywords)
            if value is not None:
                _hold(held, repeated(a, b, c, keywords, args))
                return value
        value = fast_path(a, b, keywords, None)
        if value is None:
            return otherwise(*args)
        if not adds:
            _hold(held, repeated(a, b, None, keywords, args))
            return value
        if c is None or c.device != value.device or c.dtype is not value.dtype:
            return None
        return value.add_(c)

    return run


def _hold(held: list[Any], again: Any) -> None:
    """Keep a function that makes further products of one layout; of layouts with other strides, the latest few."""
    if again is not None:
        held.append(again)
        del held[:-_MOST_HELD]


_MOST_HELD = 4
_PLAIN = torch.Tensor, torch.nn.Parameter
