"""How many slices a product needs: the probabilistic estimate of Mukunoki et al. (2020), Algorithm 3, and a table.

The algorithm's text, reconstructed: the smallest d with max_i (|A^(d)|(|B|e))_i / (|A|(|B|e))_i <= √k·u, where A^(d)
is the d-th slice, e the vector of ones, and u 2^-53 or 2^-24. It leaves B unasked, so that a left operand of small
integers would cut the right one after a slice or two; here both sides are asked and the larger d is taken. If a side
ends before it meets the criterion, its split is complete and nothing may be dropped: fast mode is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prismm.core import threads
from prismm.errors import ArgumentError
from prismm.schemes.slice_layout import UNITS, Digits, Unit, choose_block, expected_slices, slice_bits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prismm.cpu.slices.split import Sliced


def magnitude_weights(sliced: Sliced) -> NDArray[np.float64]:
    """|B|e (of a right operand) or eᵀ|A| (of a left one), of scaled data: (k,)."""
    import numpy as np

    assert sliced.source is not None
    sums: NDArray[np.float64] = np.abs(sliced.source.data).sum(axis=1 - sliced.source.axis)
    return sums


def slice_share(
    sliced: Sliced, weights: NDArray[np.float64], whole: NDArray[np.float64], p: int, workers: int
) -> float:
    """max_i (|A^(p)|w)_i / (|A|w)_i of slice p (0 first), |A|w given; the same of columns for a right operand."""
    import numpy as np

    from prismm.cpu.kernels import slice as kernels

    count = whole.size
    used = np.empty(count)
    offset, vector_stride, block_stride = sliced.place(p)
    kernel = getattr(kernels, f"weighted_{sliced.layout.unit.dtype}")
    flat = sliced.digits.reshape(-1)
    step = max(16, -(-count // (4 * workers)))

    def weigh_vectors(i: int) -> None:
        block = sliced.layout.block
        kernel(flat, i, min(count, i + step), offset, block, vector_stride, block_stride, weights, used)

    threads.spread(weigh_vectors, list(range(0, count, step)), workers)
    with np.errstate(all="ignore"):
        # Cut to float64's reach: shares so far from 1 decide alike.
        ratio = np.ldexp(used / whole, np.clip(sliced.exponent[p], -2000, 2000).astype(np.int32))
    return float(np.max(np.where(whole > 0, ratio, 0.0), initial=0.0))


@dataclass(frozen=True)
class Estimate:
    """slices: d, or None where the stored slices do not suffice to tell; ended: whether the split ended first."""

    slices: int | None
    ended: bool


def estimate(sliced: Sliced, weights: NDArray[np.float64], unit_roundoff: float, workers: int = 1) -> Estimate:
    """Algorithm 3 for one side."""
    import numpy as np

    assert sliced.source is not None
    tolerance = math.sqrt(max(sliced.layout.k, 1)) * unit_roundoff
    data = np.abs(sliced.source.data)
    whole = data @ weights if sliced.side == "left" else weights @ data
    for p in range(sliced.slices):
        # The end is asked first: what has no rest is exact with p slices, whatever the tolerance says of shares.
        if not sliced.remainder[p].any():
            return Estimate(max(p, 1), ended=True)
        if slice_share(sliced, weights, whole, p, workers) <= tolerance:
            return Estimate(p + 1, ended=False)
    return Estimate(sliced.slices, ended=True) if sliced.ended else Estimate(None, ended=False)


def slices_table(
    k: int, precision: int = 53, *, rounding: Digits = "nearest", block: bool = True
) -> list[dict[str, Any]]:
    """What a product would take on each matrix unit: the question of the paper's section 6 about future hardware.

    Args:
        k: inner dimension, 1 or more.
        precision: bits of the grade asked for: 53 (DP) or 24 (SP).
        rounding: of the slices, "nearest" or "toward-zero" (the paper's slices hold one bit less than the former).
        block: whether to block the inner dimension where that allows longer slices (not done in the paper).

    Returns:
        A row per unit: its name, input and accumulator, block of k, bits of a slice, slices d, products of all pairs
        and in fast mode (each over the whole of k), and the cost of the latter if the unit's rate is inversely
        proportional to the square of its inputs' significand (the paper's O(p²)), relative to one FP64 product.
        Units that hold no slice at this k have d = 0.

    Raises:
        ArgumentError: for k < 1 or precision < 2.

    >>> [(row["unit"], row["bits"], row["slices"], row["fast"]) for row in slices_table(7168, block=False)][:3]
    [('fp16', 6, 9, 45), ('int8', 8, 7, 28), ('fp64', 21, 4, 10)]
    """
    if k < 1 or precision < 2:
        raise ArgumentError(f"slices_table(k={k}, precision={precision}); pass k >= 1 and a precision of 2 or more")
    return [_row(unit, k, precision, rounding, block) for unit in UNITS.values()]


def _row(unit: Unit, k: int, precision: int, rounding: Digits, block: bool) -> dict[str, Any]:
    length = choose_block(unit, k, rounding, precision) if block else k
    try:
        bits = slice_bits(unit, length, rounding)
    except ArgumentError:
        bits = 0
    d = expected_slices(bits, k, precision) if bits else 0
    significand = unit.inputs.precision if unit.inputs is not None else 8
    return {
        "unit": unit.name,
        "inputs": unit.inputs.name if unit.inputs is not None else "int8",
        "accumulator": unit.accumulate.name if unit.accumulate is not None else "int32",
        "k_block": length,
        "bits": bits,
        "slices": d,
        "products": d * d,
        "fast": d * (d + 1) // 2,
        "relative_cost": d * (d + 1) / 2 * (significand / 53) ** 2,
    }
