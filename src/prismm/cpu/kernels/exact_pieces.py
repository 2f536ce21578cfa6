"""Single entries in exact arithmetic, the inner dimension in pieces: each piece's sum as spaced limbs, whose sums are
rounded once.

A limb is an int64 that holds 32 bits and a sign, so that 2^30 pieces add up in any order without a carry. The limbs of
an entry begin at a digit of `kernels.exact` that lies below all its terms' bits, and end above all its sums.

Per term of a piece: as `kernels.exact`. Per entry and piece 1 µs more; 8 bytes for every 32 bits.
"""

import numpy as np

from prismm.core.jit import device, kernel
from prismm.cpu.kernels.exact import (
    _CELLS,
    _CHUNK,
    _DIGITS,
    _LOWEST,
    _SCALED,
    _SCALED_DIGITS,
    _add_scaled,
    _carry,
    _dot,
    _round_digits,
    _sign_and_magnitude,
    _take_apart,
)

ROOM = 32
"""Digits beyond those of products: limbs may end above the largest sum."""

LAST = 304
"""The digit before which limbs end. Bits of sums end before digit 265. What carries into four digits beyond, and is
multiplied by a factor below 2^1024, still ends within the digits that `round_pieces` has.
"""


@device
def _store(digits, low, top, first, limbs):
    """Magnitude and sign of the digits low … top as limbs from digit `first` on; the digits become zero."""
    negative = _sign_and_magnitude(digits, low, top)
    for x in range(low, top + 1):
        # Digits outside of the limbs are zero, as these cover all bits of all terms.
        if digits[x] != 0:
            y = x - first
            value = digits[x] << (16 * (y & 1))
            limbs[y >> 1] += -value if negative else value
            digits[x] = 0


@kernel("void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], int64, int64[::1], int64[:,:,::1])")
def exact_pieces(rows, columns, ri, ci, segments, first, out):
    """out (entries, segments, limbs): for each entry the exact dot products of the segments of its row and column, of
    equal length, as limbs from digit first[c] on.
    """
    k = rows.shape[1]
    length = k // segments
    mantissa, cell = np.empty(k), np.empty(k, np.int64)
    pieces, place = np.empty(4 * _CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    cells = np.zeros(8 * _CELLS, np.int64)
    digits = np.zeros(_DIGITS, np.int64)
    last = np.int64(-1)
    for c in range(ri.size):
        if ri[c] != last:
            last = ri[c]
            _take_apart(rows[last], mantissa, cell)
        column = columns[ci[c]]
        for g in range(segments):
            part = slice(g * length, (g + 1) * length)
            out[c, g, :] = 0
            low, top = _dot(mantissa[part], cell[part], column[part], pieces, place, cells, digits)
            _store(digits, low, top, first[c], out[c, g])


@kernel("void(int64[:,:,::1], int64[::1], float64[::1], float64[:,::1], float64[::1], int64, float64[::1])")
def round_pieces(sums, first, alpha, addends, beta, precision, value):
    """RN(Σ_g alpha_g·sums[c, g] + Σ_h beta_h·addends[c, h]) of each entry, as `exact.exact_dots`. Limbs end
    at `LAST`.
    """
    segments = alpha.size
    plain = segments == 1 and alpha[0] == 1.0 and beta.size == 0
    factor, factor_cell = np.empty(beta.size), np.empty(beta.size, np.int64)
    _take_apart(beta, factor, factor_cell)
    pieces, place = np.empty(4 * _CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    cells = np.zeros(8 * _CELLS, np.int64)
    digits, total = np.zeros(_DIGITS + ROOM, np.int64), np.zeros(_SCALED_DIGITS + ROOM, np.int64)
    lowest = -1074 if precision == 53 else -149
    for c in range(first.size):
        least = np.int64(_SCALED_DIGITS)
        final = np.int64(0)
        for g in range(segments + 1):
            if g < segments:
                low = first[c]
                # A limb of 63 bits carries into four digits above its last one.
                top = low + 2 * sums.shape[2] + 4
                for y in range(sums.shape[2]):
                    digits[low + 2 * y] += sums[c, g, y]
                _carry(digits, low, top)
            elif plain:
                continue
            else:
                low, top = _dot(factor, factor_cell, addends[c], pieces, place, cells, digits)
            if plain:
                negative = _sign_and_magnitude(digits, low, top)
                value[c] = _round_digits(digits, low, top, _LOWEST, negative, precision, lowest)
                continue
            begin, end = _add_scaled(alpha[g] if g < segments else 1.0, digits, low, top, total)
            least, final = min(least, begin), max(final, end)
        if not plain:
            _carry(total, least, final + 5)
            negative = _sign_and_magnitude(total, least, final + 5)
            value[c] = _round_digits(total, least, final + 5, _SCALED, negative, precision, lowest)
