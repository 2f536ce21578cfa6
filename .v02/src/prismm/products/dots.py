"""`vecdot` and `tensordot`: one product of matrices each."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from prismm._api import matmul
from prismm.errors import ArgumentError, ShapeError
from prismm.products.axes import as_operand, conjugate, matrix, permuted, reshaped, scalar


def vecdot(
    x1: Any,
    x2: Any,
    /,
    *,
    axis: int = -1,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
    full_output: bool = False,
) -> Any:
    """Dot products of vectors, Σ conj(x1)·x2 along an axis.

    Args:
        x1, x2: arrays as for `prismm.matmul`, of at least one axis; all other axes broadcast.
        axis: of the vectors, in both operands; as long in one as in the other.

    The other arguments, types of results and errors are those of `prismm.matmul`; K is the length of the axis.

    Returns:
        The products, of the broadcast shape of the other axes; with ``full_output`` a `Report` as well, of products of
        (1, K) by (K, 1), or of vectors where both operands have one axis.

    Raises:
        ShapeError: for operands without that axis, or that do not broadcast. The errors of `matmul` besides.

    Source: Python array API standard 2024.12, vecdot.

    >>> import numpy as np, prismm
    >>> x = np.array([[1e16, 1.0, -1e16], [1.0, 2.0, 3.0]])
    >>> prismm.vecdot(x, np.ones(3), accuracy="correctly-rounded")
    array([1., 6.])
    """
    a, b = as_operand(x1, "x1"), as_operand(x2, "x2")
    a, b = conjugate(_axis_last(a, axis, "x1")), _axis_last(b, axis, "x2")
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"x1 has shape {tuple(x1.shape)}, x2 has shape {tuple(x2.shape)}: their axis {axis} has {a.shape[-1]} and "
            f"{b.shape[-1]} elements; pass vectors of one length"
        )
    keywords: dict[str, Any] = {
        "accuracy": accuracy, "scheme": scheme, "reproducible": reproducible, "out_dtype": out_dtype, "engine": engine,
        "threads": threads, "full_output": full_output,
    }  # fmt: skip
    if a.ndim == b.ndim == 1:
        return matmul(a, b, **keywords)
    left, right = reshaped(a, (*a.shape[:-1], 1, a.shape[-1])), reshaped(b, (*b.shape, 1))
    found = matmul(left, right, **keywords)
    products, *report = found if full_output else (found,)
    products = reshaped(products, products.shape[:-2])
    return (products, *report) if full_output else products


def _axis_last(x: Any, axis: int, name: str) -> Any:
    """x with this axis at the end."""
    at = _index(axis, x.ndim, name)
    return permuted(x, [*(i for i in range(x.ndim) if i != at), at])


def _index(axis: Any, ndim: int, name: str) -> int:
    """The axis, counted from the front."""
    try:
        found = operator.index(axis)
    except TypeError:
        raise ArgumentError(f"axis {axis!r} of {name}; pass a whole number") from None
    if not -ndim <= found < ndim:
        raise ShapeError(f"{name} has {ndim} axes, and none is number {found}; pass an axis of both operands")
    return found % ndim


def tensordot(
    x1: Any,
    x2: Any,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
    accuracy: str | float | None = None,
    scheme: Any = None,
    reproducible: bool = False,
    out_dtype: Any = None,
    engine: str | None = None,
    threads: int | None = None,
    full_output: bool = False,
) -> Any:
    """The product of two arrays, summed over several axes.

    Args:
        x1, x2: arrays as for `prismm.matmul`, of any number of axes.
        axes: N to sum over the last N axes of x1 and the first N of x2, in order (0 for the outer product); or two
            sequences, of axes of x1 and as many of x2.

    The other arguments, types of results and errors are those of `prismm.matmul`; K is the product of the lengths of
    the axes.

    Returns:
        The product: the axes of x1 that are not summed over, then those of x2; with ``full_output`` a `Report` as well,
        of the matrices that are multiplied, (…, K) by (K, …).

    Raises:
        ArgumentError: for axes that are none, or not as many. ShapeError: for axes that an operand lacks, or whose
        lengths differ. The errors of `matmul` besides.

    Source: Python array API standard 2024.12, tensordot.

    >>> import numpy as np, prismm
    >>> x, y = np.ones((2, 3, 4)), np.ones((4, 3, 5))
    >>> prismm.tensordot(x, y, axes=((1, 2), (1, 0))).shape
    (2, 5)
    >>> float(prismm.tensordot(x, x, axes=((0, 1, 2), (0, 1, 2)), accuracy="correctly-rounded"))
    24.0
    """
    a, b = as_operand(x1, "x1"), as_operand(x2, "x2")
    of_a, of_b = _summed(axes, a, b)
    free_a = [i for i in range(a.ndim) if i not in of_a]
    free_b = [i for i in range(b.ndim) if i not in of_b]
    shape = (*(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))
    left = matrix(permuted(a, [*free_a, *of_a]), (len(free_a), len(of_a)))
    right = matrix(permuted(b, [*of_b, *free_b]), (len(of_b), len(free_b)))
    found = matmul(
        left, right, accuracy=accuracy, scheme=scheme, reproducible=reproducible, out_dtype=out_dtype, engine=engine,
        threads=threads, full_output=full_output,
    )  # fmt: skip
    product, *report = found if full_output else (found,)
    product = scalar(reshaped(product, shape))
    return (product, *report) if full_output else product


def _summed(axes: Any, a: Any, b: Any) -> tuple[list[int], list[int]]:
    """The axes of both operands that are summed over, counted from the front."""
    try:
        count = operator.index(axes)
    except TypeError:
        try:
            first, second = axes
            of_a, of_b = ([_index(i, x.ndim, name) for i in side] for side, x, name in
                          ((first, a, "x1"), (second, b, "x2")))  # fmt: skip
        except (TypeError, ValueError) as error:
            if isinstance(error, ShapeError | ArgumentError):
                raise
            raise ArgumentError(f"axes={axes!r}; pass a number of axes, or two sequences of them") from None
        for side, name in ((of_a, "x1"), (of_b, "x2")):
            if len(set(side)) < len(side):
                raise ArgumentError(f"axes={axes!r} name an axis of {name} twice") from None
    else:
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ArgumentError(
                f"axes={axes!r} for operands of {a.ndim} and {b.ndim} axes; pass a number from 0 to the smaller one"
            )
        of_a, of_b = list(range(a.ndim - count, a.ndim)), list(range(count))
    if len(of_a) != len(of_b):
        raise ArgumentError(f"axes={axes!r} name {len(of_a)} axes of x1 and {len(of_b)} of x2; pass as many of both")
    for i, j in zip(of_a, of_b, strict=True):
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                f"x1 has shape {tuple(a.shape)}, x2 has shape {tuple(b.shape)}: axis {i} of x1 has {a.shape[i]} "
                f"elements and axis {j} of x2 has {b.shape[j]}; axes that are summed over have one length"
            )
    return of_a, of_b
