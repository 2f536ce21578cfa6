"""Multiply and join in one pass: products of residues by the VNNI kernel in tiles of 48 x 192, each joined while it is
in the cache (`vnni`, `join`, `finish`).

A tile of 20 moduli is 740 kB of int32; what leaves the cache is the result alone. Per entry: 2·k·moduli operations of
the matrix unit, then 6 ns of joining at 15 moduli.
"""

import numpy as np

from prismm.core.jit import kernel, wide_vectors
from prismm.cpu.kernels import many
from prismm.cpu.kernels.finish import finish, scratch
from prismm.cpu.kernels.join import RADIX, STRIP
from prismm.cpu.kernels.strip import strip_sums, strip_sums_cross, strip_sums_difference
from prismm.cpu.kernels.vnni import TILE_COLUMNS, TILE_ROWS, tile_products, wide_rows

_HEAD = "int8[:,:,:,:], uint32[:,:,:,:,::1], int64, int32[:,:,:,::1], "
TABLES = "int64, float64[::1], float64[::1], float64[:,::1], float64[::1], float64[::1], "
SCALES = (
    "int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, int64[::1], int64[::1], int64[:,::1], "
    "int64[:,::1], int64, "
)
TEST = "int64, float64, float64, int64, "
OUT = "float64[:,:], float32[:,:], float64[:,::1], int32[::1]"


@kernel("int64(" + _HEAD + TABLES + SCALES + TEST + OUT + ")")
def fused_product(
    left, right, depth, tiles, limbs, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts, k,
    mode, kappa, magnitude_kappa, precision, out, out32, low, failed,
):  # fmt: skip
    """A real product of residues left (1, moduli, m, pitch) and right (1, moduli, panels, depth/4, 32), joined.

    tiles (1, rows, moduli, columns of a tile) is scratch: a row of all moduli is read in one piece. The rest, and the
    count that is returned, as in `join.join_fused`.
    """
    m = row_shift.size
    n = column_shift.size
    sums = np.zeros((5, STRIP))
    work, edge, flags, extremes = scratch(
        np.int64(1), np.int64(TILE_COLUMNS), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    wide = wide_rows(TILE_ROWS)
    c = tiles[0]
    count = np.int64(0)  # a constant would have `finish` compiled twice
    # Columns outside: the panels of a block serve all rows before the next ones are read.
    for j0 in range(0, n, TILE_COLUMNS):
        w = min(n, j0 + TILE_COLUMNS) - j0
        for i0 in range(0, m, TILE_ROWS):
            rows = min(m, i0 + TILE_ROWS) - i0
            # The last tile of a block fetches the first rows, with which the next block begins.
            following = i0 + rows if i0 + rows < m else 0
            tile_products(left[0], right[0], i0, rows, following, j0, w, depth, modulus, c, wide)
            for i in range(rows):
                strip_sums(c, c, c, i, w, limbs, modulus, reciprocal, weights, sums)
                count = finish(
                    sums, limbs, RADIX, product, quotient, i0 + i, j0, row_shift, column_shift, row_terms,
                    column_terms, terms, row_power, column_power, row_counts, column_counts, k, mode, kappa,
                    magnitude_kappa, precision, out, out32, low, failed, count, w, work, edge,
                    flags, extremes,
                )  # fmt: skip
    return count


@kernel("void(" + _HEAD + TABLES + SCALES + TEST + OUT + ", " + OUT + ", int64[::1])")
def fused_complex_product(
    left, right, depth, tiles, limbs, modulus, reciprocal, weights, product, quotient,
    row_shift, column_shift, row_terms, column_terms, terms, row_power, column_power, row_counts, column_counts, k,
    mode, kappa, magnitude_kappa, precision, real, real32, real_low, real_failed, imag, imag32, imag_low, imag_failed,
    counts,
):  # fmt: skip
    """The same for complex operands: three products per modulus (left, right and tiles have three parts), both real
    parts joined; counts (2): how many entries of each are listed.
    """
    m = row_shift.size
    n = column_shift.size
    sums = np.zeros((5, STRIP))
    work, edge, flags, extremes = scratch(
        np.int64(1), np.int64(TILE_COLUMNS), mode, row_terms, row_power, row_counts, column_terms, column_power,
        column_counts,
    )  # fmt: skip
    wide = wide_rows(TILE_ROWS)
    d, e, f = tiles[0], tiles[1], tiles[2]
    counts[:] = 0
    for j0 in range(0, n, TILE_COLUMNS):
        w = min(n, j0 + TILE_COLUMNS) - j0
        for i0 in range(0, m, TILE_ROWS):
            rows = min(m, i0 + TILE_ROWS) - i0
            following = i0 + rows if i0 + rows < m else 0
            for part in range(3):
                tile_products(left[part], right[part], i0, rows, following, j0, w, depth, modulus, tiles[part], wide)
            for part in range(2):
                out = real if part == 0 else imag
                out32 = real32 if part == 0 else imag32
                low = real_low if part == 0 else imag_low
                failed = real_failed if part == 0 else imag_failed
                for i in range(rows):
                    if part == 0:
                        strip_sums_difference(d, e, f, i, w, limbs, modulus, reciprocal, weights, sums)
                    else:
                        strip_sums_cross(d, e, f, i, w, limbs, modulus, reciprocal, weights, sums)
                    counts[part] = finish(
                        sums, limbs, RADIX, product, quotient, i0 + i, j0, row_shift, column_shift, row_terms,
                        column_terms, terms, row_power, column_power, row_counts, column_counts, k, mode, kappa,
                        magnitude_kappa, precision, out, out32, low, failed, counts[part], w, work,
                        edge, flags, extremes,
                    )  # fmt: skip


@kernel("int64(int8[:,:,::1], uint32[:,:,:,::1], int64, int32[:,:,::1], " + many.REST)
def fused_many_product(
    left, right, depth, tiles, modulus, reciprocal, weights, product, quotient, row_shift, column_shift, row_terms,
    column_terms, terms, correction, error, factors, addends, precision, out, out32, failed,
):  # fmt: skip
    """A real product of residues left (moduli, m, pitch) and right (moduli, panels, depth/4, 32) of up to 49 moduli.

    `tiles` (rows, moduli, columns of a tile) is scratch. The other arguments and the result are those of
    `many.join_many`.
    """
    wide_vectors()
    m, n = row_shift.size, column_shift.size
    limbs = weights.shape[1]
    sums, work, shifts, flags, nothing = many.scratch()
    wide = wide_rows(TILE_ROWS)
    count = np.int64(0)
    for j0 in range(0, n, TILE_COLUMNS):
        w = min(n, j0 + TILE_COLUMNS) - j0
        for i0 in range(0, m, TILE_ROWS):
            rows = min(m, i0 + TILE_ROWS) - i0
            following = i0 + rows if i0 + rows < m else 0
            tile_products(left, right, i0, rows, following, j0, w, depth, modulus, tiles, wide)
            for i in range(rows):
                many.product_sums(tiles, i, 0, w, modulus, reciprocal, weights, sums)
                count = many.join_strip(
                    i0 + i, j0, w, limbs, product, quotient, row_shift, column_shift, row_terms, column_terms, terms,
                    correction, error, factors, addends, precision, out, out32, failed, count, sums, work, shifts,
                    flags, nothing,
                )  # fmt: skip
    return count
