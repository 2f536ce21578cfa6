"""Scales of rows and columns whose elements lie in pieces: what a piece reports, and the scales of all.

Exponents meet as maxima, integer norms and counts as sums: the scale of a row is that of `cpu.kernels.scale`, bit for
bit. Residuals, which a piece sums in float64, meet as integers in units of 2^-32, rounded upwards: an upper bound
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from prismm.core import environment, threads
from prismm.core.composite import Side
from prismm.core.outcome import for_kernels, real_parts
from prismm.core.scales import NONFINITE, Scales
from prismm.cpu.partial.setting import Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING = -(1 << 22)
"""The exponent, and the negated lowest bit, of no element: below all others."""

_INFINITE = 1025
"""What `exponent_above` says of Inf and NaN."""

_BLOCK = 1 << 18
"""Elements of rows that a worker makes contiguous at a time."""

UNIT = 32
"""Residuals are counted in units of 2^-32."""


def extents(x: NDArray[Any], side: Side, workers: int = 1) -> NDArray[np.int64]:
    """(2, vectors): e with all elements below 2^e, and -l with all elements multiples of 2^l, of each row (left) or
    column (right) of a piece; `NOTHING` for zeros, `NONFINITE` for the exponent of Inf or NaN. Combined by maximum.
    """
    from prismm.cpu.kernels.extent import extent_rows

    environment.check_arithmetic()
    found = np.full((2, _count(x, side)), NOTHING, np.int64)

    def block(rows: NDArray[np.float64], here: slice) -> None:
        top, low = np.empty((2, len(rows)), np.int64)
        extent_rows(rows, top, low, *np.empty((2, len(rows))))
        # The lowest bit of an element lies below its exponent.
        nothing, special = (top == 0) & (low == 0), top >= _INFINITE
        top = np.where(special, NONFINITE, np.where(nothing, NOTHING, top))
        low = np.where(special | nothing, NOTHING, -low)
        np.maximum(found[0, here], top, out=found[0, here])
        np.maximum(found[1, here], low, out=found[1, here])

    _each_block(x, side, workers, block)
    return found


def exponents(extent: NDArray[np.int64]) -> NDArray[np.int64]:
    """e of every row or column, of the extents of all pieces; 0 for zeros, `NONFINITE` for Inf or NaN."""
    return np.where(extent[0] == NOTHING, 0, extent[0])


def norms(
    x: NDArray[Any], side: Side, exponent: NDArray[np.int64], setting: Setting, workers: int = 1
) -> NDArray[np.int64]:
    """(2 + levels, vectors): Σv², Σv and counts of `cpu.kernels.scale.scale_rows` of a piece, with the `exponents` of
    all pieces. Combined by sums.
    """
    from prismm.cpu.kernels.long import long_norms

    splitter = setting.splitter
    levels = setting.levels
    found = np.zeros((2 + levels, exponent.size), np.int64)
    finite = np.where(exponent >= NONFINITE, 0, exponent)

    def block(rows: NDArray[np.float64], here: slice) -> None:
        one = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64), np.empty((len(rows), levels), np.int64)
        if (special := exponent[here] >= NONFINITE).any():
            rows = np.where(special[:, None], 0.0, rows)
        long_norms(rows, finite[here], splitter.fraction_bits, *one)
        found[0, here] += one[0]
        found[1, here] += one[1]
        found[2:, here] += one[2].T

    _each_block(x, side, workers, block)
    return found


def shifts(exponent: NDArray[np.int64], norm: NDArray[np.int64], setting: Setting) -> NDArray[np.int64]:
    """s of every row or column: it is scaled by 2^s, by the norms of all pieces."""
    splitter = setting.splitter
    # Thresholds decrease, so as many fit as there are shifts that are allowed; zeros are not shifted further.
    fitting = np.count_nonzero(splitter.thresholds[:, None] >= norm[0][None, :], axis=0) - 1
    fitting = np.where(norm[0] == 0, 0, np.maximum(fitting, 0))
    found: NDArray[np.int64] = np.where(exponent >= NONFINITE, -NONFINITE, fitting + splitter.fraction_bits - exponent)
    return found


def scales(
    exponent: NDArray[np.int64], norm: NDArray[np.int64], lost: NDArray[np.int64], setting: Setting
) -> Scales:  # fmt: skip
    """The scales of rows or columns, of what all pieces reported; lost: as of `residues.split`."""
    from prismm.cpu.kernels.scale import bound_terms

    splitter, shift = setting.splitter, shifts(exponent, norm, setting)
    terms = np.empty((4, exponent.size))
    residual2 = np.ldexp(lost[0].astype(np.float64), -UNIT)
    tiny = (lost[1] > 0).astype(np.uint8)
    given = (for_kernels(x, "int64") for x in (exponent, shift))
    bound_terms(
        *given, splitter.fraction_bits, for_kernels(norm[0], "int64"), for_kernels(norm[1], "int64"), residual2, tiny,
        splitter.terms, int(splitter.a_priori), terms,
    )  # fmt: skip
    return Scales(shift, exponent, terms, np.ascontiguousarray(norm[2:].T))


def losses(residual2: NDArray[np.float64], tiny: NDArray[np.uint8], k: int) -> NDArray[np.int64]:
    """(2, vectors): Σδ² in units of 2^-32, rounded upwards, and whether elements scaled to next to nothing.

    A float64 sum of k squares is off by (k+2)·2^-53 relatively, at most; Σδ² of a row is at most k/4.
    """
    with np.errstate(under="ignore"):
        units = np.ceil(np.ldexp(residual2 * (1.0 + (k + 2) * 2.0**-52), UNIT))
    # An element that underflows in the scaling is lost, too.
    units = np.where((residual2 > 0.0) & (units == 0.0), 1.0, units)
    return np.stack([units.astype(np.int64), (tiny != 0).astype(np.int64)])


def _count(x: NDArray[Any], side: Side) -> int:
    return int(x.shape[0] if side == "left" else x.shape[1])


def _each_block(
    x: NDArray[Any], side: Side, workers: int, task: Callable[[NDArray[np.float64], slice], None]
) -> None:  # fmt: skip
    """task(some rows of x, or columns as rows, as contiguous float64; which), for each real part in turn."""
    count = _count(x, side)
    rows = x if side == "left" else x.T
    if rows.shape[1] == 0:
        return
    step = max(1, _BLOCK // rows.shape[1])

    def one(i0: int) -> None:
        here = slice(i0, min(count, i0 + step))
        for part in real_parts(rows[here]):
            task(for_kernels(part), here)

    threads.spread(one, list(range(0, count, step)), workers)
