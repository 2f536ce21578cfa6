"""`prismm.matmul` and `prismm.gemm` of dask arrays."""

from __future__ import annotations

import functools
from typing import Any

import dask.array as da
import numpy as np

from prismm import dispatch
from prismm.core import arrays
from prismm.core.request import (
    Request,
    check_request,
    check_scalars,
    finite_scalar,
    refuse_vector,
    swaps,
)
from prismm.dask import exact, rounded
from prismm.dask.operands import Call, Keywords, chunk, labels, multiplied, pair, result_chunks, taken, token
from prismm.dask.trees import added
from prismm.errors import ArgumentError, ShapeError
from prismm.schemes.names import scheme_of


def matmul(a: Any, b: Any, keywords: Keywords, out: Any, workspace: Any, full_output: bool) -> da.Array:
    """`prismm.matmul`, lazily. keywords: accuracy, scheme, reproducible, out_dtype, engine and threads."""
    _refuse(out, workspace, full_output)
    keywords, request = _checked(keywords)
    left, right = pair(a, b)
    shape = arrays.product_shape(tuple(a.shape), tuple(b.shape))
    dtype = _result(left, right, keywords[3])
    call = Call(keywords, dtype.name)
    if len(left.chunks[-1]) == 1:
        found = _whole(left, right, None, call)
    elif dtype == np.bool_:
        found = _logical(left, right, call)
    elif _is_exact(request) or _narrows(left, right, dtype):
        found = exact.product(left, right, None, call, request)
    else:
        found = rounded.product(left, right, call)
    return _shaped(found, a, b, shape)


def gemm(
    a: Any, b: Any, c: Any, factors: tuple[complex, complex], transposes: tuple[str, str], keywords: Keywords,
    out: Any, workspace: Any, full_output: bool,
) -> da.Array:  # fmt: skip
    """`prismm.gemm`, lazily; factors: alpha and beta, transposes: trans_a and trans_b."""
    _refuse(out, workspace, full_output)
    alpha, beta = finite_scalar(factors[0], "alpha"), finite_scalar(factors[1], "beta")
    if beta != 0 and c is None:
        raise ArgumentError(f"beta={beta!r} needs c; pass it, or beta=0")
    keywords, request = _checked(keywords)
    a, b = _swapped(a, transposes[0], "trans_a"), _swapped(b, transposes[1], "trans_b")
    left, right = pair(a, b)
    shape = arrays.product_shape(tuple(a.shape), tuple(b.shape))
    addend = _addend(c, shape) if beta != 0 else None
    every = [left, right, *([addend] if addend is not None else [])]
    dtype = _result(*every, keywords[3])
    check_scalars(alpha, beta, dtype.kind == "c")
    call = Call(keywords, dtype.name, factors=(alpha, beta))
    third = None if addend is None else _placed(addend, a, b, left, right)
    if alpha == 0:
        # A and B are never read: vectors of nothing stand for them, with their chunks.
        left = da.zeros((*left.shape[:-1], 1), left.dtype, chunks=(*left.chunks[:-1], 1))
        right = da.zeros((*right.shape[:-2], 1, right.shape[-1]), right.dtype,
                         chunks=(*right.chunks[:-2], 1, right.chunks[-1]))  # fmt: skip
    if len(left.chunks[-1]) == 1:
        found = _whole(left, right, third, call)
    else:  # the target holds for the sum as a whole, rounded once
        found = exact.product(left, right, third, call, request)
    return _shaped(found, a, b, shape)


def _refuse(out: Any, workspace: Any, full_output: bool) -> None:
    if out is not None:
        raise ArgumentError("out= with a dask array, whose product is lazy; call dask.array.store(result, out) instead")
    if workspace is not None:
        raise ArgumentError("workspace= with a dask array, whose chunks are multiplied side by side; leave it out")
    if full_output:
        raise ArgumentError(
            "full_output=True with a dask array, whose product is lazy; pass computed arrays, or call prismm.check on "
            "what was computed"
        )


def _checked(keywords: Keywords) -> tuple[Keywords, Request]:
    """The keywords with the scheme that a name stands for, checked."""
    if isinstance(keywords[1], str):
        keywords = (keywords[0], scheme_of(keywords[1]), *keywords[2:])
    accuracy, scheme, reproducible, out_dtype, engine, threads = keywords
    request, _, _ = check_request(accuracy, scheme, reproducible, out_dtype, engine, threads, None, None)
    return keywords, request


def _is_exact(request: Request) -> bool:
    """Whether pieces of the inner dimension meet in exact integers."""
    kind = request.target.kind if request.target is not None else None
    exact_scheme = request.scheme is not None and request.scheme.reproducible
    return request.reproducible or exact_scheme or kind in ("correctly-rounded", "tolerance")


def _narrows(a: da.Array, b: da.Array, dtype: np.dtype[Any]) -> bool:
    """Whether the result's type is narrower than a float operand's."""
    most = 4 if dtype in (np.float32, np.complex64) else 8
    return any(x.dtype.kind in "fc" and x.dtype.itemsize > most * (2 if x.dtype.kind == "c" else 1) for x in (a, b))


def _result(*given: Any) -> np.dtype[Any]:
    """The result's type, of arrays and an `out_dtype`; bool for the logical or of bools."""
    *every, out_dtype = given
    kinds = [chunk(np.empty(0, x.dtype)) for x in every]
    if out_dtype is None and all(kind.dtype.kind == "b" for kind in kinds):
        return np.dtype(np.bool_ if len(kinds) == 2 else np.float64)
    return arrays.result_dtype(kinds, out_dtype)


def _swapped(x: Any, how: str, name: str) -> Any:
    """op(x), lazily."""
    if not swaps(x, how, name):
        return x
    x = taken(x, name[-1])
    refuse_vector(x.shape, how, name)
    found = da.swapaxes(x, -1, -2)
    return found.conj() if how == "C" and found.dtype.kind == "c" else found


def _addend(c: Any, shape: tuple[int, ...]) -> da.Array:
    found = taken(c, "c")
    try:
        return da.broadcast_to(found, shape)
    except ValueError:
        raise ShapeError(
            f"c has shape {tuple(found.shape)}, the product has shape {shape}; c must broadcast to it"
        ) from None


def _placed(c: da.Array, a: Any, b: Any, left: da.Array, right: da.Array) -> da.Array:
    """C with the axes and chunks of a product of matrices."""
    if len(a.shape) == 1:
        c = da.expand_dims(c, c.ndim - (len(b.shape) > 1))
    if len(b.shape) == 1:
        c = da.expand_dims(c, c.ndim)
    return c.rechunk(result_chunks(left, right))


def _shaped(found: da.Array, a: Any, b: Any, shape: tuple[int, ...]) -> da.Array:
    """The product without the axes that vectors got."""
    if len(b.shape) == 1:
        found = found[..., 0]
    if len(a.shape) == 1:
        found = found[..., 0, :] if len(b.shape) > 1 else found[..., 0]
    assert found.shape == shape
    return found


def _whole(a: da.Array, b: da.Array, c: da.Array | None, call: Call) -> da.Array:
    """The product where the inner dimension is one chunk."""
    third = () if c is None else (c, labels(a, b)[2])
    name = "prismm-matmul-" + token(a, b, c, call)
    return added(multiplied(_multiply, a, b, *third, name=name, dtype=call.dtype, call=call), _only, call.dtype)


def _only(pieces: list[Any]) -> Any:
    (piece,) = pieces
    return piece


def _multiply(a: Any, b: Any, c: Any = None, *, call: Call) -> Any:
    call.check()
    a, b = chunk(a), chunk(b)
    if call.factors is None:
        return dispatch.matmul(a, b, call.task_keywords)
    keywords = (*call.task_keywords[:3], call.dtype, *call.task_keywords[4:])
    c = None if c is None else chunk(c)
    return dispatch.gemm(a, b, c, call.factors if c is not None else (call.factors[0], 0.0), ("N", "N"), keywords)


def _logical(a: da.Array, b: da.Array, call: Call) -> da.Array:
    """The logical or of bools: any piece's will do."""
    pieces = multiplied(_multiply, a, b, name="prismm-or-" + token(a, b, None, call), dtype=np.bool_, call=call)
    return added(pieces, _any, np.bool_)


def _any(pieces: list[Any]) -> Any:
    return functools.reduce(np.logical_or, pieces)
