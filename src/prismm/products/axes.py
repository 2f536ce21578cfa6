"""Axes of the callers' arrays moved, joined and repeated: NumPy's, torch's, and those of the array API's namespaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from prismm.core import arrays
from prismm.core.namespaces import namespace_of

__all__ = ["as_operand", "broadcast", "conjugate", "diagonal", "matrix", "ones", "permuted", "reshaped", "scalar"]


def as_operand(x: Any, name: str) -> Any:
    """The operand as an array whose axes can be moved: a tensor, an array of a namespace, else a NumPy array, which
    NumPy's scalars are as well.

    Raises:
        The errors of `core.arrays.normalise`.
    """
    if arrays.is_tensor(x):
        arrays.check_dense(x, name)
        return x
    if isinstance(x, np.generic):
        x = np.asarray(x)
    if isinstance(x, (np.ndarray, type)) or namespace_of(x) is None:
        return arrays.normalise(x, name).data
    return x


def permuted(x: Any, axes: Sequence[int]) -> Any:
    """The axes in this order."""
    if tuple(axes) == tuple(range(x.ndim)):
        return x
    return x.permute(*axes) if arrays.is_tensor(x) else namespace_of(x).permute_dims(x, tuple(axes))


def reshaped(x: Any, shape: Sequence[int]) -> Any:
    """The elements, row by row, in another shape."""
    return x.reshape(tuple(shape)) if arrays.is_tensor(x) else namespace_of(x).reshape(x, tuple(shape))


def broadcast(x: Any, shape: Sequence[int]) -> Any:
    """x repeated along axes of length 1."""
    return x.expand(*shape) if arrays.is_tensor(x) else namespace_of(x).broadcast_to(x, tuple(shape))


def conjugate(x: Any) -> Any:
    """Complex numbers conjugated; others as they are."""
    if arrays.is_tensor(x):
        return x.conj()
    return namespace_of(x).conj(x) if "complex" in str(x.dtype) else x


def diagonal(x: Any, first: int, second: int) -> Any:
    """The diagonal of two axes, as the last axis."""
    if arrays.is_tensor(x):
        return x.diagonal(0, first, second)
    rest = [axis for axis in range(x.ndim) if axis not in (first, second)]
    return namespace_of(x).linalg.diagonal(permuted(x, [*rest, first, second]))


def ones(x: Any, shape: Sequence[int]) -> Any:
    """Ones of x's kind, type and device."""
    if arrays.is_tensor(x):
        return x.new_ones(tuple(shape))
    device = {} if isinstance(x, np.ndarray) else {"device": x.device}
    return namespace_of(x).ones(tuple(shape), dtype=x.dtype, **device)


def matrix(x: Any, lengths: Sequence[int]) -> Any:
    """The axes of x joined: as many as each of the lengths says, in turn."""
    shape, at = [], 0
    for length in lengths:
        shape.append(math.prod(x.shape[at : at + length]))
        at += length
    return x if tuple(x.shape) == tuple(shape) else reshaped(x, shape)


def scalar(x: Any) -> Any:
    """A NumPy array without axes as NumPy's scalar, as NumPy's products give it."""
    return x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x
