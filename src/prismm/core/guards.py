"""Tensors compared with others but for their values, by guards as torch's compiler makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class _Guards:
    """Compares tensors with others, where torch's compiler has no guards to lend."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._facts = [self._of(x) for x in tensors]

    def check(self, *tensors: torch.Tensor) -> bool:
        """Whether these are like those."""
        return self._facts == [self._of(x) for x in tensors]

    @staticmethod
    def _of(x: torch.Tensor) -> tuple[Any, ...]:
        return type(x), x.dtype, x.device, x.shape, x.stride(), x.requires_grad, x.is_neg(), x.is_conj()


def guards_of(*tensors: torch.Tensor) -> Any:
    """What compares further tensors with these, by its method `check`: their types, element types, devices, shapes,
    strides, flags, and whether they want derivatives.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        return _Guards(*tensors)
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
