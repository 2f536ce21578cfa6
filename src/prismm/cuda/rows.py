"""Sums of a product and a tensor on a GPU, by the steps that torch's operators make: the product is rounded first. One
look-up and one kernel make those in which the same row is added to each row, as a layer's bias is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def product_and_row(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, keywords: tuple[Any, ...]) -> Any:
    """a @ b, rounded, and c added to each row with a second rounding; None where c is no row, or the layout is new.

    The bits are those of the two steps. Complex rows are left to torch, which multiplies them by 1 + 0i first, so that
    an infinite one makes NaN. a, b: tensors on a GPU of which no derivative is wanted; keywords: those of
    `prismm.matmul`, in its order.
    """
    if c.ndim != 1 or a.ndim < 2 or b.ndim < 2 or c.dtype is not a.dtype or c.device != a.device:
        return None
    if len(c) != b.shape[-1] or not c.is_contiguous() or c.is_neg() or c.is_complex():
        return None
    from prismm.cuda.calls import fast_row

    return fast_row(a, b, c, keywords)


def added(product: torch.Tensor, c: torch.Tensor | None, alpha: complex, beta: complex) -> torch.Tensor:
    """alpha·product + beta·c in torch, rounded a step at a time; c None where beta is 0.

    >>> import torch
    >>> added(torch.ones(2), torch.ones(1), 2, 0.5)
    tensor([2.5000, 2.5000])
    """
    alpha, beta = (x if product.is_complex() else complex(x).real for x in (alpha, beta))
    value = product if alpha == 1 else product * alpha
    if c is None:
        return value
    addend = c.to(value.dtype)
    return value + (addend if beta == 1 else addend * beta)
