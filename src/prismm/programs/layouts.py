"""Layouts of products: what a decision may depend on of an operator's arguments."""

from __future__ import annotations

from typing import Any

import torch

from prismm.core.guards import guards_of

FEW = 4
"""Layouts of one place that guards find, which compare tensors in a third of the time that a look-up takes."""


def guarded(kind: tuple[int, bool], args: Any, known: Any) -> list[tuple[tuple[int, bool], Any, Any]]:
    """A one-entry list for `Spot.guarded`: (kind, check, known). check(*args) is true for arguments of the same layout.
    The list is empty if two arguments are the same tensor, since torch's guards reject those.

    Args:
        kind: the operator's number, and whether autograd calls it.
        args: the operator's arguments.
        known: the decision on products of this layout.
    """
    return [(kind, guards_of(*args).check, known)] if len(set(map(id, args))) == len(args) else []


def layout_of(number: int, args: Any) -> Any:
    """What a decision may depend on of an operator's arguments: all but their values. They are two dense tensors, or
    three of which the first is added, all on the CPU or on GPUs; for any others None.

    On the CPU the key has the type of the first operand alone: torch refuses operands of mixed types, and an added
    tensor that does not broadcast.
    """
    a, b = args[-2], args[-1]
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return None
    c = args[0] if len(args) > 2 else None
    if a.is_cpu:
        if not b.is_cpu:
            return None
        if c is None:
            return number, a.shape, b.shape, a.dtype, type(a), type(b)
        dense = c.layout is torch.strided and c.is_cpu
        return (number, a.shape, b.shape, a.dtype, type(a), type(b), type(c)) if dense else None
    if not a.is_cuda or not b.is_cuda:
        return None
    key = number, a.device, a.shape, b.shape, a.dtype, b.dtype, type(a), type(b)
    if c is None:
        return key
    # Beside operands on a GPU, torch takes an added number that lies on the CPU.
    return (*key, c.shape, c.dtype, type(c), c.device) if c.layout is torch.strided and not c.is_meta else None
