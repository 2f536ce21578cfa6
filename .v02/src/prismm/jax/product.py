"""The product as a callback with derivatives.

XLA's threads flush subnormal numbers to zero, and the callback runs in one of them: it sets the default floating-point
environment of C, multiplies, and restores what was there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prismm import dispatch
from prismm.core import arrays
from prismm.core.prepared import Prepared
from prismm.core.request import check_request
from prismm.errors import DTypeError, OperandError

Keywords = tuple[Any, ...]
"""accuracy, scheme, reproducible, out_dtype, engine and threads; hashable, as constants of a program are."""


def product(a: Any, b: Any, keywords: Keywords) -> Any:
    """`prismm.jax.matmul`."""
    accuracy, scheme, reproducible, out_dtype, engine, threads = keywords
    check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, None, None)
    a, b = _taken(a, "a"), _taken(b, "b")
    shape = arrays.product_shape(a.shape, b.shape)
    result = _result(a, b, out_dtype)
    left = a.reshape(1, -1) if a.ndim == 1 else a
    right = b.reshape(-1, 1) if b.ndim == 1 else b
    # As many axes on both sides: `vmap` puts its own in front.
    ndim = max(left.ndim, right.ndim)
    left, right = (x.reshape((1,) * (ndim - x.ndim) + x.shape) for x in (left, right))
    found = _product((accuracy, scheme, reproducible, result, engine, threads), left, right)
    return found.reshape(shape)


def _taken(x: Any, name: str) -> Any:
    """The operand as a JAX array."""
    if isinstance(x, Prepared) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise OperandError(f"{name} is a {type(x).__name__}; pass a JAX or NumPy array")
    if not isinstance(x, jax.Array):
        x = arrays.normalise(x, name).data
        if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
            raise DTypeError(
                f"{name} has dtype {x.dtype}, of which JAX would make "
                f"{jax.dtypes.canonicalize_dtype(x.dtype)}; call jax.config.update('jax_enable_x64', True), or pass "
                f"{name}.astype(...)"
            )
    return jnp.asarray(x)


def _plain(dtype: Any, name: str) -> np.dtype[Any]:
    """The type in which the entries are multiplied: bfloat16 as float32; the errors of `normalise` for others."""
    return arrays.normalise(np.empty(0, dtype), name).data.dtype


def _result(a: Any, b: Any, out_dtype: Any) -> str | None:
    """The result's type by name; None for the logical or of bools.

    Raises:
        DTypeError: for one that JAX would narrow.
    """
    kinds = [_plain(a.dtype, "a"), _plain(b.dtype, "b")]
    if out_dtype is None and {kind.kind for kind in kinds} == {"b"}:
        return None
    dtype = arrays.result_dtype([np.empty(0, kind) for kind in kinds], out_dtype)
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    if narrow != dtype:
        raise DTypeError(
            f"the product is {dtype}, and JAX would make {narrow} of it; call "
            f"jax.config.update('jax_enable_x64', True), or pass out_dtype={narrow.name!r} for a product of that type"
        )
    return dtype.name


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(keywords: Keywords, a: Any, b: Any) -> Any:
    """The product of stacks of matrices with as many axes; keywords[3] is the result's type, None for bool."""
    shape = arrays.product_shape(a.shape, b.shape)
    result = jax.ShapeDtypeStruct(shape, np.dtype(keywords[3] or bool))
    return jax.pure_callback(functools.partial(_multiply, keywords), result, a, b, vmap_method="expand_dims")


def _forward(keywords: Keywords, a: Any, b: Any) -> tuple[Any, tuple[Any, Any]]:
    return _product(keywords, a, b), (a, b)


def _backward(keywords: Keywords, operands: tuple[Any, Any], cotangent: Any) -> tuple[Any, Any]:
    """The cotangents G Bᵀ and Aᵀ G: JAX's are linear, without conjugation."""
    a, b = operands
    of_a = _cotangent(keywords, a, cotangent, _swapped(b))
    of_b = _cotangent(keywords, _swapped(b), _swapped(cotangent), a)
    return of_a, of_b if of_b.dtype == jax.dtypes.float0 else _swapped(of_b)


def _swapped(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _cotangent(keywords: Keywords, x: Any, g: Any, y: Any) -> Any:
    """g @ y for the operand x, summed over the batches along which x was repeated, as one product.

    A batch that is summed over joins the inner dimension: Σ_r g[r] @ y[r] = [g[0] g[1] …] @ [y[0]; y[1]; …].
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    batch = range(x.ndim - 2)
    summed = [i for i in batch if x.shape[i] == 1 != g.shape[i]]
    kept = [i for i in batch if i not in summed]
    m, n, k = g.shape[-2], g.shape[-1], y.shape[-1]
    g = jnp.transpose(g, (*kept, g.ndim - 2, *summed, g.ndim - 1))
    y = jnp.transpose(y, (*kept, *summed, y.ndim - 2, y.ndim - 1))
    g = g.reshape(*g.shape[: len(kept)], m, -1 if g.size else g.shape[-1] * _count(g.shape[len(kept) + 1 : -1]))
    y = y.reshape(*y.shape[: len(kept)], n * _count(y.shape[len(kept) : -2]), k)
    wide = jnp.result_type(g.dtype, y.dtype)
    is_complex = jnp.issubdtype(wide, jnp.complexfloating)
    # One rounding, to the operand's type where prismm has it; to float32 for narrower ones.
    single = jnp.finfo(x.dtype).bits <= 32
    dtype = ("complex64" if single else "complex128") if is_complex else ("float32" if single else "float64")
    found = _product((*keywords[:3], dtype, *keywords[4:]), g, y)
    found = found.real if is_complex and not jnp.issubdtype(x.dtype, jnp.complexfloating) else found
    return found.reshape(x.shape).astype(x.dtype)


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


_product.defvjp(_forward, _backward)


def _multiply(keywords: Keywords, a: Any, b: Any) -> Any:
    """The callback."""
    with _default_arithmetic():
        return np.asarray(dispatch.matmul(np.asarray(a), np.asarray(b), (*keywords, None)))


@contextlib.contextmanager
def _default_arithmetic() -> Iterator[None]:
    """The default floating-point environment in this thread, and afterwards the one that was there.

    On Linux, C's FE_DFL_ENV is the address -1. Elsewhere torch sets the register, where it is loaded; without it
    `core.environment.check_arithmetic` raises in threads that flush subnormals.
    """
    if not sys.platform.startswith("linux"):
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_flush_denormal(False)
        yield
        return
    library, before = ctypes.CDLL(None), ctypes.create_string_buffer(1024)
    library.fegetenv(before)
    library.fesetenv(ctypes.c_void_p(-1))
    try:
        yield
    finally:
        library.fesetenv(before)
