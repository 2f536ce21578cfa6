"""Gradients of several backward passes as those of one: the same bits however a batch is cut.

The gradient of a layer's weight is a sum over the samples: G^T·X, with the batch in the inner dimension. Torch rounds
it once for each backward pass and adds up what was rounded, so that 32 passes over one sample and one pass over 32
differ, whatever the products' accuracy. Kept as the operands of one product, the passes leave nothing to add: a
reproducible product of all their rows has the same bits in any cut and any order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from prismm import dispatch
from prismm.core.environment import outside_autocast
from prismm.errors import ArgumentError, PrismmError
from prismm.programs import intercept
from prismm.programs.recipe import Recipe

_FOREIGN = 2.0**-6
"""Where autograd's own gradient differs by more than this part of |G|^T·|X|, the weight is used elsewhere too."""


@dataclass
class Gathered:
    """The operands of the gradients to come. others: parameters that are not a linear layer's, whose gradients torch
    adds up as ever.
    """

    others: list[str] = field(default_factory=list)
    rows: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict, repr=False)


@contextlib.contextmanager
def whole_batch(model: torch.nn.Module, recipe: str | Recipe = "native reproducible") -> Iterator[Gathered]:
    """Make the gradients of all backward passes of a block as one pass over all their samples would.

    Within the block call ``backward`` as often as you like, on parts of the batch; scale the losses so that they add up
    to the batch's. At its end the weights and biases of the model's linear layers get their gradients, each of one
    product; a gradient that was there before is added to. The inputs of those layers are kept until then, as they are
    for one pass over the whole batch.

    Args:
        model: whose `torch.nn.Linear` layers are meant.
        recipe: how the products are made, as `Recipe` writes it; they are reproducible by default.

    Raises:
        ArgumentError: for a recipe that is off, or a model without linear layers.
        PrismmError: at the end, for a weight that is used outside its layer too; gradients are then torch's.

    >>> import torch
    >>> layer, x = torch.nn.Linear(3, 2), torch.randn(8, 3)
    >>> found = []
    >>> for size in (8, 1):
    ...     layer.zero_grad()
    ...     with whole_batch(layer):
    ...         for part in x.split(size):
    ...             layer(part).sum().backward()
    ...     found.append(layer.weight.grad)
    >>> torch.equal(*found)
    True
    """
    chosen = Recipe.parse(recipe) if isinstance(recipe, str) else recipe
    if chosen.off:
        raise ArgumentError("recipe 'off' makes no product; pass 'native reproducible' or another")
    layers = [module for module in model.modules() if type(module) is torch.nn.Linear]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no torch.nn.Linear layers, whose gradients are products")
    owned = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    shared = {p for m in model.modules() if m not in layers for p in m.parameters(recurse=False)}
    gathered = Gathered([name for name, p in model.named_parameters() if p not in owned - shared])
    layers = [layer for layer in layers if layer.weight not in shared]
    before = {parameter: _copied(parameter.grad) for parameter in owned - shared}
    for parameter in before:
        parameter.grad = None
    handles = [layer.register_forward_hook(_keeper(gathered)) for layer in layers]
    try:
        yield gathered
    except BaseException:
        _restore(before)
        raise
    finally:
        for handle in handles:
            handle.remove()
    try:
        gradients = {parameter: _gradient(parameter, rows, chosen) for parameter, rows in gathered.rows.items()}
    except BaseException:
        _restore(before)
        raise
    for parameter, gradient in before.items():
        new = gradients.get(parameter, parameter.grad)
        parameter.grad = new if gradient is None else gradient if new is None else gradient + new


def _copied(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.detach()


def _restore(before: dict[Any, torch.Tensor | None]) -> None:
    """What torch makes of it: the gradients of before, plus those of the block."""
    for parameter, gradient in before.items():
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad


def _keeper(gathered: Gathered) -> Any:
    """A forward hook that keeps a layer's input, and its output's gradient when that comes."""

    def keep(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if not (torch.is_grad_enabled() and output.requires_grad):
            return
        x = _rows(inputs[0])

        def arrived(gradient: torch.Tensor) -> None:
            g = _rows(gradient)
            for parameter, rows in ((layer.weight, x), (layer.bias, None)):
                if parameter is not None and parameter.requires_grad:
                    ones = g.new_ones(len(g), 1) if rows is None else rows
                    gathered.rows.setdefault(parameter, []).append((g, ones))

        output.register_hook(arrived)

    return keep


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The vectors along the last dimension, below one another; there may be no entries in them."""
    return x.detach().reshape(x.shape[:-1].numel(), x.shape[-1])


def _gradient(parameter: Any, rows: list[tuple[torch.Tensor, torch.Tensor]], recipe: Recipe) -> torch.Tensor:
    """G^T·X over all rows."""
    g, x = (torch.cat(parts) for parts in zip(*rows, strict=True))
    with torch.no_grad(), intercept.put_aside(), outside_autocast():  # these products are not the program's
        gradient: torch.Tensor = dispatch.matmul(g.T, x, recipe.asked())
        gradient = gradient.to(parameter.dtype).reshape(parameter.shape)
        # Under autocast gradients come narrower than inputs.
        magnitude = (g.abs().T.to(gradient.dtype) @ x.abs().to(gradient.dtype)).reshape(parameter.shape)
        usual = torch.zeros_like(gradient) if parameter.grad is None else parameter.grad
        if bool(((gradient - usual).abs() > _FOREIGN * magnitude + torch.finfo(gradient.dtype).tiny).any()):
            raise PrismmError(
                f"a weight of shape {tuple(parameter.shape)} is used outside its linear layer too, and its gradient is "
                f"not one product; leave that layer out of the model that you pass"
            )
    return gradient
