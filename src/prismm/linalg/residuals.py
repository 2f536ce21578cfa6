"""`residual`: b - a·x, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm import _api
from prismm.core import arrays, terms
from prismm.core.prepared import Prepared
from prismm.errors import DTypeError, OperandError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable


def residual(a: Any, x: Any, b: Any, /, *, full_output: bool = False) -> Any:
    """b - a·x, correctly rounded: every entry (of complex ones each part) is the number nearest to the exact value.

    Args:
        a: (..., n, m): NumPy array, torch tensor on a CPU or GPU, or anything with ``__dlpack__``; or an operand that
            ``prismm.prepare(a, side="left", accuracy="correctly-rounded")`` has split, for use with many x.
        x: (m,) or (..., m, k); or a tuple of such arrays, whose exact sum is meant. Not a tuple with a prepared a.
        b: (n,) with a vector x, or (..., n, k), whose batch broadcasts to that of a·x.
        full_output: return (residual, `prismm.Report`).

    Returns:
        The residual, of x's number of dimensions, of the operands' promoted type, as the caller's kind of array.

    Raises:
        ShapeError: for shapes that do not fit. OperandError: for a tuple of no arrays, or one with a prepared a.
            DTypeError: for a b with numbers that are no float64, and for parts of x that no type holds. The errors of
            `prismm.gemm` besides.

    >>> import numpy as np, prismm.linalg
    >>> a, x, b = np.array([[0.1, 0.2]]), np.array([1.0, 1.0]), np.array([0.3])
    >>> prismm.linalg.residual(a, x, b), b - a @ x
    (array([-2.77555756e-17]), array([-5.55111512e-17]))
    """
    if isinstance(x, tuple) and (not x or isinstance(a, Prepared)):
        why = "a is prepared" if x else "the tuple is empty"
        raise OperandError(f"x is a tuple, and {why}; pass one array, or the matrix itself")
    parts = {f"x[{i}]": part for i, part in enumerate(x)} if isinstance(x, tuple) else {"x": x}
    operands, returned = _read({"a": a, **parts, "b": b})
    a, *parts_of_x, b = operands.values()
    _check_shapes(tuple(a.shape), [tuple(part.shape) for part in parts_of_x], tuple(b.shape))
    vector = parts_of_x[0].ndim == 1
    if vector:
        parts_of_x, b = [part[:, None] for part in parts_of_x], b[:, None]
    if len(parts_of_x) > 1:
        a, x = _joined([a] * len(parts_of_x), -1), _joined(_alike(parts_of_x), -2)
    else:
        x = parts_of_x[0]
    found = _api.gemm(a, x, b, alpha=-1.0, beta=1.0, accuracy="correctly-rounded", full_output=full_output)
    result, report = found if full_output else (found, None)
    result = returned(result[..., 0] if vector else result)
    return (result, report) if full_output else result


def _read(operands: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The operands as NumPy arrays, and how a result goes back; as they are on a GPU, in chunks or in shards.

    Raises:
        OperandError: unless all are arrays of one kind. DTypeError: for a b that float64 cannot hold.
    """
    values = [x for x in operands.values() if not isinstance(x, Prepared)]
    if any(map(arrays.lives_on_gpu, operands.values())) or arrays.chunked(*values) or arrays.sharded(*values):
        # Arrays of other kinds are named by `gemm`; what is no array is named here.
        checked = {n: x if hasattr(x, "shape") else arrays.normalise(x, n).data for n, x in operands.items()}
        return checked, lambda result: result
    found = {name: arrays.normalise(x, name) for name, x in operands.items() if not isinstance(x, Prepared)}
    family = arrays.same_family(list(found.items()))
    b, source = found["b"].data, found["b"].source
    if terms.several(b):
        raise DTypeError(
            f"b holds numbers of type {b.dtype} that are no float64; pass b.astype(float) if rounding them is meant"
        )
    data = {name: found[name].data if name in found else x for name, x in operands.items()}
    return data, lambda result: arrays.as_caller(np.ascontiguousarray(result), family, source)


def _check_shapes(a: tuple[int, ...], parts: list[tuple[int, ...]], b: tuple[int, ...]) -> None:
    """ShapeError for shapes that do not fit."""
    if len(set(parts)) > 1:
        raise ShapeError(f"the parts of x have shapes {sorted(set(parts))}; pass equal shapes")
    x = parts[0]
    if len(a) < 2 or not x:
        raise ShapeError(f"a has shape {a}, x has shape {x}; pass a matrix and a vector or matrix")
    if (len(x) == 1) != (len(b) == 1):
        one, other = ("x", "b") if len(x) == 1 else ("b", "x")
        shape = b if one == "x" else x
        raise ShapeError(f"{one} is a vector, {other} has shape {shape}; pass a vector, or both as matrices")
    if a[-1] != x[-2 if len(x) > 1 else 0]:
        raise ShapeError(
            f"a has shape {a}, x has shape {x}: the inner dimensions {a[-1]} and {x[-2 if len(x) > 1 else 0]} differ"
        )
    try:
        batch = np.broadcast_shapes(a[:-2], x[:-2])
    except ValueError:
        raise ShapeError(f"a has shape {a}, x has shape {x}: their batches do not broadcast") from None
    product = (*batch, a[-2], *x[-1:]) if len(x) > 1 else (*batch, a[-2])
    end = 2 if len(x) > 1 else 1
    try:
        fits = b[-end:] == product[-end:] and np.broadcast_shapes(b[:-end], batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"b has shape {b}, a·x has shape {product}; pass a b of that shape, or of a smaller batch")


def _alike(parts: list[Any]) -> list[Any]:
    """Parts of x in one type that holds all of them exactly.

    Raises:
        DTypeError: for integers beyond 2^53 beside floating-point numbers or integers of another sign.
    """
    if arrays.is_tensor(parts[0]):
        if len({part.dtype for part in parts}) > 1:  # torch's promotion rounds integers to narrow floats
            parts = [part if part.is_floating_point() or part.is_complex() else part.double() for part in parts]
        return parts
    dtype = np.result_type(*(part.dtype for part in parts))
    if dtype.kind in "fc":
        for i, part in enumerate(parts):
            if terms.big_integers(part):
                raise DTypeError(f"x[{i}] has integers beyond 2^53, and other parts {dtype}; pass x[{i}].astype(float)")
    return [part.astype(dtype, copy=False) for part in parts]


def _joined(blocks: list[Any], axis: int) -> Any:
    """Arrays of one kind, side by side."""
    if arrays.is_tensor(blocks[0]):
        import torch

        return torch.cat(blocks, dim=axis)
    return np.concatenate([np.asarray(block) for block in blocks], axis=axis)
