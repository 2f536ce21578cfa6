"""Products on a GPU with the same row added to each of their rows, as a layer's bias is, by one look-up."""

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
