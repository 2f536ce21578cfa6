"""Attention made of products: what `emulate(attention="decomposed")` puts instead of torch's fused kernels."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Decomposed(TorchFunctionMode):
    """Within it, scaled_dot_product_attention is two products and a softmax, with derivatives of their own.

    torch's own composition is called (`_scaled_dot_product_attention_math`), as its global switches would do; those are
    for all threads, this is for the block. The fused layers of `torch.nn.MultiheadAttention` and
    `torch.nn.TransformerEncoderLayer` step aside by themselves where such a mode is active.
    """

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return composed(*args, **(kwargs or {}))
        if func is torch.nn.functional.multi_head_attention_forward:
            return _multi_head()(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@functools.cache
def _multi_head() -> Any:
    """torch's multi_head_attention_forward with composed attention: its own code, whose inner calls the mode would not
    see any more, with two names of its own.
    """
    whole = torch.nn.functional.multi_head_attention_forward
    names = {**whole.__globals__, "scaled_dot_product_attention": composed, "has_torch_function": lambda _: False}
    body = types.FunctionType(whole.__code__, names, whole.__name__, whole.__defaults__, whole.__closure__)
    body.__kwdefaults__ = whole.__kwdefaults__
    return body


def composed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale·Q·K^T + mask)·V, as `torch.nn.functional.scaled_dot_product_attention` defines it."""
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    found: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return found
