"""Derivatives and batches of the operators: for every order and level of torch's transforms.

Each is made of the operators themselves, so that it has derivatives and batches in its turn, and one product wherever
a sum of products asks for one: the tangent Ȧ·B + A·Ḃ is [Ȧ A]·[B; Ḃ], and a weight's gradient, whose sum runs over the
batch, has the batch in the inner dimension. So a derivative meets the recipe's accuracy as a whole.

An operator is called once a level: `torch.func` lets each of its levels record the call and hands it to the next, which
`_below` does where autograd records one of Python's functions.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import forward_ad

from prismm.core.arrays import product_shape
from prismm.core.environment import outside_autocast

Tensor = torch.Tensor
Scalar = complex


def moves() -> bool:
    """Whether operands may have tangents that an operator has to pass on. Of the levels of torch.func that a compiled
    graph enters `forward_ad` knows nothing.
    """
    entered = forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
    return entered and torch._C._is_fwd_grad_enabled()


def recorded_matmul(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None) -> Tensor:
    """matmul, recorded by autograd on this level."""
    found: Tensor = _apply(_Matmul, a, b, recipe, dtype)
    return found


def recorded_gemm(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: Scalar, beta: Scalar) -> Tensor:
    """gemm, recorded by autograd on this level."""
    found: Tensor = _apply(_Gemm, c, a, b, recipe, alpha, beta)
    return found


def _apply(function: Any, *args: Any) -> Any:
    """``function.apply`` without what that does for functorch, which has been here before: binding the arguments by
    their names takes 80 µs.
    """
    if torch._C._are_functorch_transforms_active():
        from torch._functorch.utils import enable_single_level_autograd_function

        with enable_single_level_autograd_function():
            return super(torch.autograd.Function, function).apply(*args)
    return super(torch.autograd.Function, function).apply(*args)


def _below() -> AbstractContextManager[Any]:
    """A block below this level's autograd. The levels beneath it record for themselves: for them a function's forward
    pass, where neither kind of derivative is on, has to switch both on again.
    """
    if not torch._C._are_functorch_transforms_active():
        return torch._C._AutoDispatchBelowAutograd()
    block = contextlib.ExitStack()
    block.enter_context(torch.enable_grad())
    block.enter_context(forward_ad._set_fwd_grad_enabled(True))
    block.enter_context(torch._C._AutoDispatchBelowAutograd())
    return block


def _tangents_of_tangents() -> AbstractContextManager[Any]:
    """A block in which the levels beneath see a tangent's own tangents; where torch calls for one it sees to none."""
    return forward_ad._set_fwd_grad_enabled(True)


class _Matmul(torch.autograd.Function):
    """The derivatives of matmul."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None) -> Tensor:
        with _below():
            return _matmul(a, b, recipe, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.recipe, ctx.dtype = inputs
        _save(ctx, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        with outside_autocast():
            left, right = _gradients(grad, a, b, ctx.recipe, *ctx.needs_input_grad[:2])
        return left, right, None, None

    @staticmethod
    def jvp(ctx: Any, a_tangent: Tensor | None, b_tangent: Tensor | None, *_: None) -> Tensor | None:
        with _tangents_of_tangents():
            a, b = map(_primal, ctx.saved_tensors)
            found = _tangent_operands(a, b, a_tangent, b_tangent)
            return None if found is None else _matmul(*found, ctx.recipe, ctx.dtype)


class _Gemm(torch.autograd.Function):
    """The derivatives of gemm."""

    @staticmethod
    def forward(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: Scalar, beta: Scalar) -> Tensor:
        with _below():
            return _gemm(c, a, b, recipe, alpha, beta)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        c, a, b, ctx.recipe, ctx.alpha, ctx.beta = inputs
        ctx.addend, ctx.shape = c.shape, output.shape
        _save(ctx, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        for_c, for_a, for_b = ctx.needs_input_grad[:3]
        with outside_autocast():
            in_c = _scaled(grad, _conjugate(ctx.beta)).sum_to_size(ctx.addend) if for_c else None
            # The scalar goes into the gradient, whose rounding by it is the only one besides the product's.
            in_a, in_b = _gradients(_scaled(grad, _conjugate(ctx.alpha)), a, b, ctx.recipe, for_a, for_b)
        return in_c, in_a, in_b, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, c_tangent: Tensor | None, a_tangent: Tensor | None, b_tangent: Tensor | None, *_: None
    ) -> Tensor | None:
        with _tangents_of_tangents():
            a, b = map(_primal, ctx.saved_tensors)
            found = _tangent_operands(a, b, a_tangent, b_tangent)
            if found is None:
                return None if c_tangent is None else _scaled(c_tangent, ctx.beta).expand(ctx.shape)
            addend, beta = (found[0].new_zeros(()), 0) if c_tangent is None else (c_tangent, ctx.beta)
            return _gemm(addend, *found, ctx.recipe, ctx.alpha, beta)


def _matmul(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    found: Tensor = torch.ops.prismm.matmul.default(a, b, recipe, dtype)
    return found


def _gemm(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: Scalar, beta: Scalar) -> Tensor:
    found: Tensor = torch.ops.prismm.gemm.default(c, a, b, recipe, alpha, beta)
    return found


def _save(ctx: Any, a: Tensor, b: Tensor) -> None:
    ctx.save_for_backward(a, b)
    ctx.save_for_forward(a, b)


def _primal(x: Tensor) -> Tensor:
    """x without its tangent of this level; those of other levels stay. Torch numbers it 0, whoever entered it."""
    found: Tensor = forward_ad.unpack_dual(x, level=0).primal
    return found


def _scaled(x: Tensor, scalar: Scalar) -> Tensor:
    return x if scalar == 1 else x * scalar if scalar != 0 else torch.zeros_like(x)


def _conjugate(x: Scalar) -> Scalar:
    return x.conjugate() if isinstance(x, complex) else x


def _tangent_operands(
    a: Tensor, b: Tensor, a_tangent: Tensor | None, b_tangent: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Operands whose product is Ȧ·B + A·Ḃ; None where neither moves."""
    if a_tangent is None or b_tangent is None:
        if a_tangent is None and b_tangent is None:
            return None
        return (a, b_tangent) if a_tangent is None else (a_tangent, b)  # type: ignore[return-value]
    rows = -2 if b.ndim > 1 else -1
    return torch.cat([a_tangent, a], -1), torch.cat([b, b_tangent], rows)


def _gradients(
    grad: Tensor, a: Tensor, b: Tensor, recipe: str, for_a: bool, for_b: bool
) -> tuple[Tensor | None, Tensor | None]:
    """G·B^H and A^H·G, for all shapes that `matmul` takes."""
    if a.ndim == 1:
        grad = grad.unsqueeze(-1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        grad = grad.unsqueeze(-1)
    left = a if a.ndim > 1 else a[None, :]
    right = b if b.ndim > 1 else b[:, None]
    found_a = found_b = None
    if for_a:
        if left.ndim == 2 and grad.ndim > 2:
            # One left matrix for a batch: the batch joins the inner dimension.
            wide = right.expand(*grad.shape[:-2], *right.shape[-2:])
            flat = grad.flatten(0, -3).transpose(0, 1).flatten(1)
            found_a = _product(flat, wide.mH.flatten(0, -2), recipe, a)
        else:
            found_a = _product(grad, right.mH, recipe, a)
    if for_b:
        if right.ndim == 2 and grad.ndim > 2:
            found_b = _product(left.flatten(0, -2).mH, grad.flatten(0, -2), recipe, b)
        else:
            found_b = _product(left.mH, grad, recipe, b)
    return found_a, found_b


def _product(a: Tensor, b: Tensor, recipe: str, like: Tensor) -> Tensor:
    """a @ b with the shape and type of `like`, whose gradient it is."""
    real = not like.dtype.is_complex and (a.dtype.is_complex or b.dtype.is_complex)
    product = _matmul(a, b, recipe, None if real else like.dtype)
    if real:
        product = product.real.to(like.dtype)
    shape = like.shape if like.ndim > 1 else (1, *like.shape) if product.shape[-2] == 1 else (*like.shape, 1)
    return product.sum_to_size(shape).reshape(like.shape)


def batched_matmul(
    info: Any, dims: tuple[Any, ...], a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None
) -> tuple[Tensor, int]:
    """The products of a batch as one: what `torch.func.vmap` makes of matmul."""
    shapes = [_of_one(x, dim) for x, dim in zip((a, b), dims[:2], strict=True)]
    rank_a, rank_b = map(len, shapes)
    product_shape(*shapes)  # whose errors speak of one operand, not of the batch
    if dims[0] is None and rank_a == 2 and rank_b <= 2:
        # One left matrix: the columns of all right ones stand side by side.
        right = _in_front(b, dims[1], 2, column=rank_b == 1).movedim(0, 1)
        wide = _matmul(a, right.flatten(1), recipe, dtype)
        product = wide.unflatten(1, right.shape[1:]).movedim(1, 0)
    else:
        rank = max(rank_a, rank_b, 2)
        left, right = _in_front(a, dims[0], rank, row=rank_a == 1), _in_front(b, dims[1], rank, column=rank_b == 1)
        product = _matmul(left, right, recipe, dtype)
    product = product.squeeze(-1) if rank_b == 1 else product
    return product.squeeze(-1 if rank_b == 1 else -2) if rank_a == 1 else product, 0


def batched_gemm(
    info: Any, dims: tuple[Any, ...], c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: Scalar = 1, beta: Scalar = 1
) -> tuple[Tensor, int]:
    """The same of gemm, which knows batches of one dimension: a batch of batches is one of as many matrices."""
    column = b.ndim - (dims[2] is not None) == 1
    left, right = _in_front(a, dims[1], 2), _in_front(b, dims[2], 2, column=column)
    batch = info.batch_size, *(left.shape[dims[1] is not None : -2])
    shape = (*batch, left.shape[-2], right.shape[-1])
    addend = _in_front(c, dims[0], len(shape) - 1, column=column).expand(shape)
    left = left.expand(*batch, *left.shape[-2:])
    if dims[2] is None and right.ndim == 2:
        # One right matrix: the rows of all left ones stand below one another.
        left, addend = left.flatten(0, -2), addend.flatten(0, -2)
    else:
        right = right.expand(*batch, *right.shape[-2:])
        left, right, addend = (x.flatten(0, -3) for x in (left, right, addend))
    product = _gemm(addend, left, right, recipe, alpha, beta).reshape(shape)
    return product.squeeze(-1) if column else product, 0


def _of_one(x: Tensor, dim: int | None) -> tuple[int, ...]:
    """The shape of one operand of a batch."""
    shape = list(x.shape)
    if dim is not None:
        del shape[dim]
    return tuple(shape)


def _in_front(x: Tensor, dim: int | None, rank: int, row: bool = False, column: bool = False) -> Tensor:
    """x with its batch in front of so many dimensions, a vector as a row or a column; what has no batch broadcasts."""
    if dim is not None:
        x = x.movedim(dim, 0)
    if row:
        x = x.unsqueeze(-2)
    elif column and x.ndim > (dim is not None):
        x = x.unsqueeze(-1)
    missing = rank + 1 - x.ndim
    if dim is None or missing <= 0:
        return x
    return x.reshape(x.shape[0], *[1] * missing, *x.shape[1:])
