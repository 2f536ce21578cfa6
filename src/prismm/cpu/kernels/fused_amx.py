"""Multiply and join in one pass on the AMX tile unit: digits of a block of rows by all columns of a block (`amx`), then
their join, a few rows of a panel at a time (`panel_join`).

The rows of a block stay in the L2 cache while the panels of one modulus pass by (`BLOCK_BYTES`); the block's digits of
all moduli, a byte each, are written and read once, in the L3 cache.
"""

import numpy as np

from prismm.core.jit import kernel, wide_vectors
from prismm.cpu.kernels import many
from prismm.cpu.kernels.amx import PANEL, STRIP_ROWS, configure, digits_of, release
from prismm.cpu.kernels.finish import scratch
from prismm.cpu.kernels.fused import OUT, SCALES, TABLES, TEST
from prismm.cpu.kernels.join import STRIP
from prismm.cpu.kernels.panel_join import ROWS, join_strips, join_strips_cross, join_strips_difference

_HEAD = "int8[:,:,:,:], uint32[:,:,:,:,::1], int64, int8[:,:,:,:,:,::1], int8[::1], int32[:,::1], "


@kernel("int64(" + _HEAD + TABLES + SCALES + TEST + OUT + ")")
def fused_amx_product(
    left, right, depth, digits, tiles, tables, limbs, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts, k,
    mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
):  # fmt: skip
    """`fused.fused_product` on tiles; digits (1, strips, panels, moduli, 32, 32), tiles and tables as in
    `amx.digits_of` are scratch, whose strips say how many rows are taken at a time.
    """
    m = row_shift.size
    n = column_shift.size
    work, edge, flags, extremes = scratch(
        np.int64(ROWS), np.int64(PANEL), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    d = digits[0]
    block = d.shape[0] * STRIP_ROWS
    panels = (n + PANEL - 1) // PANEL
    zero = np.int64(0)
    count = np.int64(0)
    for i0 in range(0, m, block):
        rows = min(m, i0 + block) - i0
        # Tiles are configured for the products alone: a switch of threads during the joins then saves no registers of
        # tiles.
        configure()
        digits_of(left[0], right[0], i0, rows, zero, panels, depth, modulus, tiles, tables, d)
        release()
        count = join_strips(
            d, d, d, i0, rows, limbs, modulus, reciprocal, weights, product, quotient, row_shift, column_shift,
            row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts, k, mode, kappa,
            magnitude_kappa, precision, out, out32, low, failed, count, work, edge, flags, extremes,
        )  # fmt: skip
    return count


@kernel("void(" + _HEAD + TABLES + SCALES + TEST + OUT + ", " + OUT + ", int64[::1])")
def fused_amx_complex_product(
    left, right, depth, digits, tiles, tables, limbs, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts, k,
    mode, kappa, magnitude_kappa, precision, real, real32, real_low, real_failed, imag, imag32, imag_low, imag_failed,
    counts,
):  # fmt: skip
    """`fused.fused_complex_product` on tiles: left, right and digits have three parts."""
    m = row_shift.size
    n = column_shift.size
    work, edge, flags, extremes = scratch(
        np.int64(ROWS), np.int64(PANEL), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    d, e, f = digits[0], digits[1], digits[2]
    block = d.shape[0] * STRIP_ROWS
    panels = (n + PANEL - 1) // PANEL
    zero = np.int64(0)
    counts[:] = 0
    for i0 in range(0, m, block):
        rows = min(m, i0 + block) - i0
        configure()
        # Both real parts are joined from all three products, so these come first.
        for part in range(3):
            digits_of(
                left[part], right[part], i0, rows, zero, panels, depth, modulus, tiles, tables, digits[part]
            )  # fmt: skip
        release()
        for part in range(2):
            out = real if part == 0 else imag
            out32 = real32 if part == 0 else imag32
            low = real_low if part == 0 else imag_low
            failed = real_failed if part == 0 else imag_failed
            given = (
                d, e, f, i0, rows, limbs, modulus, reciprocal, weights, product, quotient, row_shift, column_shift,
                row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts, k, mode, kappa,
                magnitude_kappa, precision, out, out32, low, failed, counts[part], work, edge, flags, extremes,
            )  # fmt: skip
            counts[part] = join_strips_difference(*given) if part == 0 else join_strips_cross(*given)


@kernel("int64(int8[:,:,::1], uint32[:,:,:,::1], int64, int8[:,:,:,:,::1], int8[::1], int32[:,::1], " + many.REST)
def fused_amx_many_product(
    left, right, depth, digits, tiles, tables, modulus, reciprocal, weights, product, quotient, row_shift, column_shift,
    row_terms, column_terms, terms, correction, error, factors, addends, precision, out, out32, failed,
):  # fmt: skip
    """`fused.fused_many_product` on tiles. Scratch arrays are those of `fused_amx_product`, but `digits` has no first
    axis.
    """
    wide_vectors()
    m, n = row_shift.size, column_shift.size
    limbs = weights.shape[1]
    sums, work, shifts, flags, nothing = many.scratch()
    block = digits.shape[0] * STRIP_ROWS
    panels = (n + PANEL - 1) // PANEL
    zero = np.int64(0)
    count = np.int64(0)
    for i0 in range(0, m, block):
        rows = min(m, i0 + block) - i0
        configure()
        digits_of(left, right, i0, rows, zero, panels, depth, modulus, tiles, tables, digits)
        release()
        for i in range(rows):
            for j0 in range(0, n, STRIP):
                w = min(n, j0 + STRIP) - j0
                many.digit_sums(digits, i, j0 // PANEL, w, modulus, reciprocal, weights, sums)
                count = many.join_strip(
                    i0 + i, j0, w, limbs, product, quotient, row_shift, column_shift, row_terms, column_terms, terms,
                    correction, error, factors, addends, precision, out, out32, failed, count, sums, work, shifts,
                    flags, nothing,
                )  # fmt: skip
    return count
