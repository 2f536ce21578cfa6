"""The products as torch operators: ``prismm::matmul`` and ``prismm::gemm``, with derivatives and shapes for tracing.

    matmul(Tensor a, Tensor b, str recipe, ScalarType? dtype=None) -> Tensor
    gemm(Tensor c, Tensor a, Tensor b, str recipe, Scalar alpha=1, Scalar beta=1) -> Tensor

The recipe (`programs.recipe`) is text, so that a compiled graph carries it and no cache can take one graph for
another. Derivatives are products by the same recipe; a weight's gradient, whose sum runs over the batch, is one product
with the batch in the inner dimension. Both operators work on CPU and CUDA tensors of any strides.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from prismm import interop
from prismm.errors import OperandError, ShapeError
from prismm.programs.gemms import Gemm, check, multiply
from prismm.programs.recipe import Recipe, scheme_text
from prismm.shortcuts import dense_at_once, sum_at_once, tensors_at_once

Tensor = torch.Tensor
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))

_SCHEMAS = {
    "matmul": "matmul(Tensor a, Tensor b, str recipe, ScalarType? dtype=None) -> Tensor",
    "gemm": "gemm(Tensor c, Tensor a, Tensor b, str recipe, Scalar alpha=1, Scalar beta=1) -> Tensor",
}


def matmul(a: Tensor, b: Tensor, recipe: str | Recipe = "native", dtype: torch.dtype | None = None) -> Tensor:
    """a @ b as an operator with a derivative.

    Args:
        a, b: tensors as for `prismm.matmul`, on one device; shapes by NumPy's rules.
        recipe: how, as `Recipe` writes it: "native", "1e-12 reproducible", "scheme=words:tf32x3", ...
        dtype: of the result; float16 and bfloat16 are rounded from a float32 result.

    Raises:
        The errors of `prismm.matmul`.

    >>> import torch
    >>> from prismm.programs import operators
    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> operators.matmul(x, torch.ones(3, 2), "correctly-rounded").sum().backward()
    >>> x.grad[0]
    tensor([2., 2., 2.])
    """
    found: Tensor = load().matmul(a, b, str(recipe), dtype)
    return found


def gemm(
    c: Tensor, a: Tensor, b: Tensor, recipe: str | Recipe = "native", alpha: complex = 1, beta: complex = 1
) -> Tensor:
    """alpha·a @ b + beta·c as an operator with a derivative.

    Args:
        c: tensor that broadcasts to the result's shape.
        a, b: matrices, batches of three dimensions, or a matrix and a vector, of c's type.
        recipe: as for `matmul`.
        alpha, beta: scalars, rounded to float32 for all but float64 data, as torch does.

    Raises:
        The errors of `prismm.gemm`.

    >>> import torch
    >>> from prismm.programs import operators
    >>> operators.gemm(torch.ones(2), torch.eye(2), torch.eye(2), beta=3)
    tensor([[4., 3.],
            [3., 4.]])
    """
    found: Tensor = load().gemm(c, a, b, str(recipe), alpha, beta)
    return found


def differentiable(a: Any, b: Any, options: tuple[Any, ...], out: Any, full_output: bool) -> Tensor:
    """`prismm.matmul` of tensors that require grad, as the operator; arguments and errors are its own.

    options: accuracy, scheme, reproducible, out_dtype, engine, threads, workspace.
    """
    from prismm.calls import check_options

    accuracy, scheme, reproducible, out_dtype, engine, threads, workspace = options
    check_options(accuracy, scheme, reproducible, out_dtype, engine, threads, a, b, workspace)
    named = (("a", a), ("b", b))
    name, _ = next((name, x) for name, x in named if interop.wants_gradient(x))
    for what, given in (
        ("out=", out is not None),
        ("full_output=", full_output),
        ("workspace=", workspace is not None),
    ):
        if given:
            raise OperandError(
                f"{name} requires grad, and {what} has no derivative; leave it out, or pass {name}.detach()"
            )
    for other, x in named:
        if not isinstance(x, Tensor):
            raise OperandError(
                f"{name} requires grad, {other} is a {type(x).__name__}; pass tensors, or {name}.detach() for a "
                f"product without a derivative"
            )
    dtype = None
    if out_dtype is not None:
        import numpy as np

        kind = interop.result_dtype([np.empty(0, str(_promoted(x.dtype, x.dtype))[6:]) for _, x in named], out_dtype)
        dtype = getattr(torch, kind.name)
    return matmul(a, b, _recipe(accuracy, scheme, bool(reproducible), engine, threads), dtype)


def _recipe(accuracy: Any, scheme: Any, reproducible: bool, engine: str | None, threads: int | None) -> Recipe:
    from prismm.accuracy import Target

    if isinstance(accuracy, Target):
        accuracy = accuracy.tolerance or accuracy.kind
    return Recipe(accuracy, None if scheme is None else scheme_text(scheme), reproducible, engine, threads)


@functools.cache
def load() -> Any:
    """The namespace ``torch.ops.prismm``, with both operators registered; once a process."""
    library = torch.library.Library("prismm", "FRAGMENT")
    for schema in _SCHEMAS.values():
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("matmul", _matmul, "CPU")
    library.impl("matmul", _matmul, "CUDA")
    library.impl("gemm", _gemm, "CPU")
    library.impl("gemm", _gemm, "CUDA")
    torch.library.register_fake("prismm::matmul", _matmul_shape, lib=library)
    torch.library.register_fake("prismm::gemm", _gemm_shape, lib=library)
    library.impl("matmul", _matmul_autograd, "Autograd", with_keyset=True)
    library.impl("gemm", _gemm_autograd, "Autograd", with_keyset=True)
    _KEPT.append(library)
    return torch.ops.prismm


_KEPT: list[Any] = []
"""A library is unregistered when it is collected."""


def result_type(a: torch.dtype, b: torch.dtype, dtype: torch.dtype | None = None) -> torch.dtype:
    """The result's type: `dtype`, else NumPy's promotion, as `prismm.matmul` has it.

    >>> result_type(torch.float32, torch.int64)
    torch.float64
    """
    return dtype if dtype is not None else _promoted(a, b)


@functools.cache
def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    import numpy as np

    names = [str(x).removeprefix("torch.").replace("bfloat16", "float32") for x in (a, b)]
    found: torch.dtype = getattr(torch, interop.result_dtype([np.empty(0, x) for x in names], None).name)
    return found


@functools.lru_cache(maxsize=1024)
def _keywords(recipe: str) -> dict[str, Any]:
    return Recipe.parse(recipe).keywords


@functools.lru_cache(maxsize=1024)
def _is_default(recipe: str) -> bool:
    return Recipe.parse(recipe).is_default


@functools.lru_cache(maxsize=1024)
def _plain_recipe(recipe: str) -> tuple[Any, bool] | None:
    """Accuracy and reproducibility, where a recipe says nothing else."""
    found = Recipe.parse(recipe)
    plain = Recipe(found.accuracy, reproducible=found.reproducible)
    return (found.accuracy, found.reproducible) if found == plain else None


def _matmul(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    """The kernel; autograd has been here before."""
    if dtype is None:
        plain = _plain_recipe(recipe)
        quick: Tensor | None = None if plain is None else tensors_at_once(a, b, *plain)
        if quick is not None:
            return quick
    from prismm._matmul import matmul

    a, b = _plain(a), _plain(b)
    narrow = dtype is torch.float16 or dtype is torch.bfloat16
    if dtype is None or narrow:
        result: Tensor = matmul(a, b, **_keywords(recipe))
        return result if dtype is None or result.dtype == dtype else result.to(dtype)
    result = matmul(a, b, out_dtype=dtype, **_keywords(recipe))
    return result


def _matmul_shape(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    if a.device != b.device:
        raise OperandError(f"a is on {a.device}, b is on {b.device}; move them to one device")
    if not a.ndim or not b.ndim:
        raise ShapeError(f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}; use * for scalars")
    torch._check(
        a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0],
        lambda: f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}: the inner dimensions differ",
    )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *(a.shape[-2:-1]), *(b.shape[-1:] if b.ndim > 1 else ()))
    return a.new_empty(shape, dtype=result_type(a.dtype, b.dtype, dtype))


# `torch.library.register_autograd` would do what follows, at twice the price of a whole call: it goes through the
# dispatcher again even where no gradient is wanted.


def _matmul_autograd(keys: Any, a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None = None) -> Tensor:
    if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
        found: Tensor = _apply(_Matmul, a, b, recipe, dtype)
        return found
    straight = _straight(keys.raw_repr())
    if straight == "CPU" and dtype is None and type(a) in _TENSORS and type(b) in _TENSORS and _is_default(recipe):
        quick: Tensor | None = dense_at_once(a, b)
        if quick is not None:
            return quick
    if straight:
        return _matmul(a, b, recipe, dtype)
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = torch.ops.prismm.matmul.default(a, b, recipe, dtype)
        return result


@functools.lru_cache(maxsize=256)
def _straight(keys: int) -> str:
    """What comes after autograd if that is nothing but the kernel of "CPU" or "CUDA", else "": a mode, a subclass,
    tracing. Where it is "CPU", all tensors are there, and dense.
    """
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & torch._C._after_autograd_keyset
    key = below.remove(torch._C.DispatchKey.ADInplaceOrView).highestPriorityTypeId()
    return key.name if key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA) else ""


def _apply(function: Any, *args: Any) -> Any:
    """``function.apply`` without what that does for functorch, which has been here before: binding the arguments by
    their names takes 80 µs.
    """
    if torch._C._are_functorch_transforms_active():
        from torch._functorch.utils import enable_single_level_autograd_function

        with enable_single_level_autograd_function():
            return super(torch.autograd.Function, function).apply(*args)
    return super(torch.autograd.Function, function).apply(*args)


class _Matmul(torch.autograd.Function):
    """The derivative of matmul."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, recipe: str, dtype: torch.dtype | None) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            found: Tensor = torch.ops.prismm.matmul.default(a, b, recipe, dtype)
            return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.recipe, _ = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        left, right = _gradients(grad, a, b, ctx.recipe, ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        return left, right, None, None


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
            m, n = grad.shape[-2:]
            wide = right.expand(*grad.shape[:-2], *right.shape[-2:])
            flat = grad.reshape(-1, m, n).transpose(0, 1).reshape(m, -1)
            tall = wide.mH.reshape(-1, right.shape[-2])
            found_a = _product(flat, tall, recipe, a)
        else:
            found_a = _product(grad, right.mH, recipe, a)
    if for_b:
        if right.ndim == 2 and grad.ndim > 2:
            flat = left.reshape(-1, left.shape[-1])
            found_b = _product(flat.mH, grad.reshape(-1, grad.shape[-1]), recipe, b)
        else:
            found_b = _product(left.mH, grad, recipe, b)
    return found_a, found_b


def _product(a: Tensor, b: Tensor, recipe: str, like: Tensor) -> Tensor:
    """a @ b with the shape and type of `like`, whose gradient it is."""
    real = not like.dtype.is_complex and (a.dtype.is_complex or b.dtype.is_complex)
    product: Tensor = load().matmul(a, b, recipe, None if real else like.dtype)
    if real:
        product = product.real.to(like.dtype)
    shape = like.shape if like.ndim > 1 else (1, *like.shape) if product.shape[-2] == 1 else (*like.shape, 1)
    return product.sum_to_size(shape).reshape(like.shape)


def _gemm(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex = 1, beta: complex = 1) -> Tensor:
    """The kernel of gemm."""
    if _is_default(recipe) and a.ndim == 2:
        quick: Tensor | None = sum_at_once(c, a, b, alpha, beta)
        if quick is not None:
            return quick
    operator = "baddbmm" if a.ndim == 3 else "addmv" if b.ndim == 1 else "addmm"
    asked = check(Gemm(operator, _plain(a), _plain(b), _plain(c) if beta != 0 else None, alpha, beta, a.dtype))
    if isinstance(asked, str):
        types = ", ".join(f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in (c, a, b))
        raise OperandError(f"c, a, b are {types}, alpha={alpha}, beta={beta}: {asked}; pass tensors that fit together")
    return multiply(asked, Recipe.parse(recipe))


def _plain(x: Tensor) -> Tensor:
    return x.detach() if x.requires_grad else x


def _gemm_shape(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex = 1, beta: complex = 1) -> Tensor:
    shape = (*a.shape[:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
    torch._check(
        a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0],
        lambda: f"a has shape {tuple(a.shape)}, b has shape {tuple(b.shape)}: the inner dimensions differ",
    )
    return a.new_empty(shape)


def _gemm_autograd(
    keys: Any, c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex = 1, beta: complex = 1
) -> Tensor:
    if (a.requires_grad or b.requires_grad or c.requires_grad) and torch.is_grad_enabled():
        found: Tensor = _apply(_Gemm, c, a, b, recipe, alpha, beta)
        return found
    if _straight(keys.raw_repr()):
        return _gemm(c, a, b, recipe, alpha, beta)
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = torch.ops.prismm.gemm.default(c, a, b, recipe, alpha, beta)
        return result


class _Gemm(torch.autograd.Function):
    """The derivative of gemm."""

    @staticmethod
    def forward(c: Tensor, a: Tensor, b: Tensor, recipe: str, alpha: complex, beta: complex) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            found: Tensor = torch.ops.prismm.gemm.default(c, a, b, recipe, alpha, beta)
            return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        c, a, b, ctx.recipe, ctx.alpha, ctx.beta = inputs
        ctx.shape = c.shape
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        for_c, for_a, for_b = ctx.needs_input_grad[:3]
        in_c = None
        if for_c:
            in_c = (grad if ctx.beta == 1 else grad * _conjugate(ctx.beta)).sum_to_size(ctx.shape)
        # The scalar goes into the gradient, whose rounding by it is the only one besides the product's.
        scaled = grad if ctx.alpha == 1 else grad * _conjugate(ctx.alpha)
        in_a, in_b = _gradients(scaled, a, b, ctx.recipe, for_a, for_b)
        return in_c, in_a, in_b, None, None, None


def _conjugate(x: complex) -> complex:
    return x.conjugate() if isinstance(x, complex) else x
