"""Algorithms 1 and 3 of Mukunoki et al. 2020 written out: how many slices a product needs, without the product.

The text lost both listings; Algorithm 1 is known from Ozaki et al. 2012, Algorithm 3 is reconstructed from its
description: the smallest d with max_i (|A^(d)|(|B|e))_i / (|A|(|B|e))_i <= √k·u, A^(d) the d-th slice. It gives the
published count. This is the slow twin of what `Slices` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST = 200


def slices_needed(
    row_panels: Iterable[NDArray[np.float64]], column_sums: NDArray[np.float64], bits: int, unit_roundoff: float
) -> tuple[int, bool]:
    """Slices d of A that reach the accuracy of a conventional product, and whether fast mode stays on.

    Args:
        row_panels: A, (rows, k) at a time.
        column_sums: |B|e, (k,).
        bits: β = 53 - ρ of Algorithm 1: slices of a row up to 2^τ are multiples of 2^(τ-β), digits at most 2^β.
        unit_roundoff: of the result, 2^-53 or 2^-24.

    Returns:
        d, and False where the rows of A ended before that: then fast mode is off (§3.2) and d slices hold A exactly.
    """
    needed, exact = 0, True
    for panel in row_panels:
        k = panel.shape[1]
        whole = np.abs(panel) @ column_sums
        limit = np.sqrt(k) * unit_roundoff * np.where(whole > 0, whole, np.inf)
        rest = panel
        for d in range(1, _MOST):
            slice_, rest = cut(rest, bits)
            if np.all(np.abs(slice_) @ column_sums <= limit) and slice_.any():
                needed, exact = max(needed, d), False
                break
            if not rest.any():
                needed = max(needed, d)
                break
    return needed, not exact


def cut(x: NDArray[np.float64], bits: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One step of Algorithm 1 for every row: t = (x + σ) - σ with σ = 2^(53-β+τ), τ = ⌈log2 max|x|⌉; t and x - t."""
    top = np.max(np.abs(x), axis=1, keepdims=True)
    fraction, exponent = np.frexp(top)
    tau = np.where(fraction == 0.5, exponent - 1, exponent)
    sigma = np.where(top > 0, np.ldexp(1.0, 53 - bits + tau), 0.0)
    slice_ = (x + sigma) - sigma
    return slice_, x - slice_


def paper_bits(k: int) -> int:
    """β of FP16 units with FP32 sums: ρ = ⌈53 - (24 - log2 k)/2⌉ = 53 - β.

    >>> paper_bits(7168), paper_bits(256)
    (5, 8)
    """
    return int(np.floor((24 - np.log2(k)) / 2))


def products_for(d: int, fast: bool) -> int:
    """d(d+1)/2 products in fast mode, d² without."""
    return d * (d + 1) // 2 if fast else d * d


def magnitude_sums(panels: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """|B|e from B's rows, a panel at a time."""
    return np.concatenate([np.abs(panel).sum(axis=1) for panel in panels])


def sum_of_slices(a: NDArray[np.float64], b: NDArray[np.float64], bits: int, unit_roundoff: float) -> NDArray[Any]:
    """The paper's product (Algorithm 2): slices multiplied without error and added in float64 as they come.

    d is that of Algorithm 3; where fast mode is on, pairs with p + q > d + 1 are left out. SGEMM's sums
    (unit_roundoff 2^-24) are rounded to float32.
    """
    d, fast = slices_needed([a], np.abs(b).sum(axis=1), bits, unit_roundoff)
    left, right = _cut_all(a, bits, d), [x.T for x in _cut_all(np.ascontiguousarray(b.T), bits, d)]
    total = np.zeros((a.shape[0], b.shape[1]), np.float64 if unit_roundoff < 2.0**-30 else np.float32)
    for p, x in enumerate(left, 1):
        for q, y in enumerate(right, 1):
            if not fast or p + q <= d + 1:
                total += (x @ y).astype(total.dtype)
    return total


def _cut_all(x: NDArray[np.float64], bits: int, count: int) -> list[NDArray[np.float64]]:
    slices = []
    for _ in range(count):
        slice_, x = cut(x, bits)
        slices.append(slice_)
    return slices
