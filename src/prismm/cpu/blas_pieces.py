"""Products by NumPy's BLAS in pieces for which it starts no threads, so that several workers may multiply at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.cpu.native.ordinary import ALONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS, DEPTH = 32, 128
"""Rows of a piece, and its inner dimension at most."""


def multiply(x: NDArray[Any], y: NDArray[Any], *, out: NDArray[Any]) -> None:
    """out (m, n) = x (m, k) @ y (k, n), for sums that are exact in any order.

    >>> x, y, out = np.arange(12.0).reshape(3, 4), np.ones((4, 2)), np.empty((3, 2))
    >>> multiply(x, y, out=out)
    >>> out[:, 0].tolist()
    [6.0, 22.0, 38.0]
    """
    k = x.shape[1]
    if x.shape[0] * k * y.shape[1] <= ALONE:
        np.matmul(x, y, out=out)
        return
    _of_one_depth(x[:, :DEPTH], y[:DEPTH], out)
    for h in range(DEPTH, k, DEPTH):
        part = np.empty_like(out)
        _of_one_depth(x[:, h : h + DEPTH], y[h : h + DEPTH], part)
        out += part


def _of_one_depth(x: NDArray[Any], y: NDArray[Any], out: NDArray[Any]) -> None:
    """The same, cut into rows and columns; NumPy goes through the whole pieces in one call, then through the ends."""
    (m, k), n = x.shape, y.shape[1]
    columns = max(1, ALONE // (ROWS * max(1, k)))
    rows_end, columns_end = m - m % ROWS, n - n % columns
    for i0, i1, rows in ((0, rows_end, ROWS), (rows_end, m, m - rows_end)):
        for j0, j1, wide in ((0, columns_end, columns), (columns_end, n, n - columns_end)):
            if i1 > i0 and j1 > j0:
                left = x[i0:i1].reshape(-1, 1, rows, k)
                right = np.lib.stride_tricks.as_strided(
                    y[:, j0:], ((j1 - j0) // wide, k, wide), (wide * y.strides[1], *y.strides), writeable=False
                )
                target = np.lib.stride_tricks.as_strided(
                    out[i0:, j0:], (left.shape[0], right.shape[0], rows, wide),
                    (rows * out.strides[0], wide * out.strides[1], *out.strides),
                )  # fmt: skip
                np.matmul(left, right, out=target)
