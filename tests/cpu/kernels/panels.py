"""Digits of products in panels, and a kernel that joins them: what `fused_amx` does once the tile unit is done."""

from __future__ import annotations

import numpy as np

from prismm.core.jit import kernel
from prismm.cpu.kernels.amx import PANEL, STRIP_ROWS
from prismm.cpu.kernels.finish import scratch
from prismm.cpu.kernels.fused import OUT, SCALES, TABLES, TEST
from prismm.cpu.kernels.panel_join import ROWS, join_strips, join_strips_cross, join_strips_difference


def digits_of(products: np.ndarray, moduli: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Products (moduli, m, n) as digits (strips, panels, moduli, 32, 32) in [-q/2, q/2), any bytes beyond the end."""
    count, m, n = products.shape
    strips, panels = -(-m // STRIP_ROWS), -(-n // PANEL)
    found = rng.integers(-128, 128, (count, strips * STRIP_ROWS, panels * PANEL)).astype(np.int8)
    q = np.array(moduli, np.int64)[:, None, None]
    found[:, :m, :n] = (products.astype(np.int64) + q // 2) % q - q // 2
    return np.ascontiguousarray(found.reshape(count, strips, STRIP_ROWS, panels, PANEL).transpose(1, 3, 0, 2, 4))


@kernel("int64(int8[:,:,:,:,:,::1], int64, " + TABLES + SCALES + TEST + OUT + ")")
def join_panels(
    digits, part, limbs, modulus, reciprocal, weights, product, quotient, row_shift, column_shift, row_terms,
    column_terms, terms, row_power, column_power, row_counts, column_counts, k, mode, kappa, magnitude_kappa, precision,
    out, out32, low, failed,
):  # fmt: skip
    """Join digits (3, strips, panels, moduli, 32, 32): the count of `failed`."""
    work, edge, flags, extremes = scratch(
        np.int64(ROWS), np.int64(PANEL), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    given = (
        digits[0], digits[1], digits[2], np.int64(0), row_shift.size, limbs, modulus, reciprocal, weights, product,
        quotient, row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts,
        column_counts, k, mode, kappa, magnitude_kappa, precision, out, out32, low, failed, np.int64(0), work, edge,
        flags, extremes,
    )  # fmt: skip
    if part == 0:
        return join_strips(*given)
    if part == 1:
        return join_strips_difference(*given)
    return join_strips_cross(*given)
