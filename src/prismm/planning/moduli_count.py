"""How many moduli a target takes, by shapes and types alone or with a sample of the data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prismm.core.moduli import MAX_MODULI, operand_bits
from prismm.core.problem import Problem
from prismm.formats import FP64, Format

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

TINY_MODULI = {53: 17, 24: 11}
"""Moduli for correct rounding by the direct engine, by the precision of the result: operands of three limbs, or two."""

NATIVE_MODULI = {53: 15, 24: 7}
"""Moduli whose typical error is that of a native GEMM or smaller, by the precision of the result."""

GPU_REPAIRS = 0.5
"""Entries of normal data that a correctly rounded sum over several GPUs may leave uncertified on average. CPUs repair
them, and that takes longer than one more modulus.
"""


def moduli_for_native(result: Format, terms: int) -> int:
    """Moduli of native grade. The scheme's error grows like √K beside a native one that BLAS's blocking keeps flat: it
    catches up at K = 2^13 (float32) and 2^17 (float64); one modulus more is worth a factor of 14, so of 200 in K.
    """
    room = terms / (1 << 17 if result.precision == 53 else 1 << 13)
    return NATIVE_MODULI[result.precision] + (1 + int(math.log2(room) / 7.7) if room >= 1.0 else 0)


def moduli_for_tolerance(tolerance: float, terms: int, result: Format) -> int:
    """The fewest moduli whose bound is likely within tolerance·|a||b|."""
    wanted = -math.log2(tolerance) + 0.5 * math.log2(max(terms, 1)) + 2.0
    wanted = min(wanted, result.precision + 0.5 * math.log2(max(terms, 1)) + 14.0)
    moduli = 4 if result.precision == 24 else 8
    while operand_bits(moduli) < wanted and moduli < MAX_MODULI:
        moduli += 1
    return moduli


def moduli_for_rounding(result: Format) -> int:
    """Moduli for correct rounding without a sample of the data: enough for a few repairs on normal data."""
    wanted = 72.5 if result is FP64 else 42.0
    moduli = 7
    while operand_bits(moduli) < wanted:
        moduli += 1
    return moduli


def share_of_normal(moduli: int, result: Format, terms: int) -> float:
    """The share of entries of normal data that so many moduli leave uncertified under correct rounding, as measured on
    GPUs. It falls faster than 2^-L, L the bits of a side: elements of 53 or 24 bits are exact but for the small ones.
    """
    bits = operand_bits(moduli)
    if result.precision == 53:
        return min(1.0, math.exp2(-12.1 + 1.6 * (73.47 - bits)) * math.pow(terms / 8192, 1.7))
    return min(1.0, math.exp2(-13.7 + 1.82 * (43.02 - bits)) * math.pow(terms / 2048, 1.83))


def moduli_leaving(share: float, result: Format, terms: int) -> int:
    """The fewest moduli for correct rounding that are likely to leave no greater share of normal data uncertified.

    >>> moduli_leaving(1e-3, FP64, 4096), moduli_leaving(1e-9, FP64, 4096)
    (19, 22)
    """
    moduli = moduli_for_rounding(result)
    while moduli < MAX_MODULI and share_of_normal(moduli, result, terms) > share:
        moduli += 1
    return moduli


def _sample_rows(x: NDArray[Any], count: int) -> NDArray[np.float64]:
    import numpy as np

    chosen = np.linspace(0, x.shape[0] - 1, min(count, x.shape[0])).astype(np.int64)
    rows = x[chosen]
    if np.iscomplexobj(rows):
        rows = np.concatenate([rows.real, rows.imag], axis=1)
    rows = rows.astype(np.float64)
    rows = np.where(np.isfinite(rows), rows, 0.0)
    # Powers of two of a row change nothing of what is asked, and its norm might overflow.
    exponents = np.frexp(np.max(np.abs(rows), axis=1, keepdims=True, initial=0.0))[1]
    scaled: NDArray[np.float64] = np.ldexp(rows, -exponents)
    return scaled


def moduli_for_sample(
    problem: Problem, a: NDArray[Any], b: NDArray[Any], rate: float, count: int = 8
) -> tuple[int, float]:
    """(moduli, expected share of uncertified entries) that minimise products plus repair, from `count` rows and
    columns.

    rate: multiply-adds of residues in a second.

    At a scale 2^s an element is inexact if its last bit is below 2^-s; each inexact one adds 1/12 to ‖δ‖². An entry
    x stays uncertified with probability about 2ε/ulp(x). No guarantee hangs on this: it only chooses the cheaper of two
    right ways.
    """
    import numpy as np

    samples = [_sample_rows(a, count), _sample_rows(b.T, count)]
    x = np.abs(samples[0] @ samples[1].T)
    norms, lasts = [], []
    for sample in samples:
        norms.append(np.sqrt(np.einsum("ij,ij->i", sample, sample)))
        fraction, exponent = np.frexp(sample)
        integer = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
        lowest = np.frexp((integer & -integer).astype(np.float64))[1] - 1
        last = np.where(integer == 0, 1 << 20, exponent - 53 + lowest)
        lasts.append(np.sort(last, axis=1))
    best = (math.inf, 0, 0.0)
    entries = problem.m * problem.n
    # If all entries were repaired: 3.4 ns a term and 0.3 µs an entry.
    repair_seconds = (
        entries * (2 if problem.is_complex else 1) * (problem.k * (2 if problem.is_complex else 1) * 3.4e-9 + 3e-7)
    )
    for moduli in range(8 if problem.result.precision == 53 else 6, MAX_MODULI + 1):
        product_seconds = entries * problem.k * moduli * (3 if problem.is_complex else 1) / rate
        # More moduli take longer still, however few entries they leave.
        if product_seconds > best[0]:
            break
        deltas, scaled = [], []
        for norm, last in zip(norms, lasts, strict=True):
            s = np.where(norm > 0.0, np.floor(operand_bits(moduli) - np.log2(np.where(norm > 0, norm, 1.0))), 0.0)
            inexact = np.array([np.searchsorted(row, -shift) for row, shift in zip(last, s, strict=True)])
            deltas.append(np.sqrt(inexact / 12.0))
            scaled.append((norm, s))
        # ε relative to the product, per pair: ‖δa‖·‖b̂‖ + ‖â‖·‖δb‖, in the operands' own units.
        da = np.ldexp(deltas[0], (-scaled[0][1]).astype(np.int64))
        db = np.ldexp(deltas[1], (-scaled[1][1]).astype(np.int64))
        bound = da[:, None] * norms[1][None, :] + norms[0][:, None] * db[None, :]
        distance = np.where(bound > 0.0, x / (2.0 * bound * 2.0**problem.result.precision), np.inf)
        share = _uncertified_share(np.nan_to_num(distance, nan=0.0, posinf=np.inf))
        seconds = product_seconds + share * repair_seconds
        if seconds < best[0]:
            best = (seconds, moduli, share)
    return best[1], best[2]


def _uncertified_share(distance: NDArray[np.float64]) -> float:
    """The share of entries expected to stay uncertified, from a sample of |x| in units of what certainly does.

    An entry at a distance r >= 1 stays uncertified with probability 1/r. Few of a sample are as near to zero as what
    matters most, so the entries below its least are added, as dense there as below its median.
    """
    import numpy as np

    least, middle = max(float(distance.min()), 1.0), max(float(np.median(distance)), 1.0)
    share = float(np.minimum(1.0, 1.0 / np.maximum(distance, 1.0)).mean())
    return min(1.0, share + 0.5 * (1.0 + math.log(least)) / middle) if least < math.inf else share
