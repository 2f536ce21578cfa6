"""Integers of 7-bit segments for the tiles of an operand, and the sums of their products joined in float32.

A vector (a row on the left, a column on the right) is cut into steps of `width` elements; a tile is a step of several
vectors. With the tile's exponent g and f = 7·count - 1 kept fraction bits an element x becomes X = RN(x·2^(f-g)),
|X| < 2^(7·count), and X = Σ_p s_p·2^(7(count-1-p)) with segments |s_p| <= 127 of X's sign.

Exponents of elements below 2^-990 count as -990: factors then never leave float64's normal range, and such elements
are 2^-800 of what float32 sums can hold.

Bytes per element: 8 read, `count` written; some 12 operations per segment. The join reads 4 bytes per segment sum and
does two operations with each, 2·(l+r) of them per 2·width·products operations of the matrix product. Splitting 1024 x
1024 elements into three segments moves 11 MiB, 1 ms at 10 GB/s; measured with energies and exponents: 5 ms on two
cores, so arithmetic bounds it.
"""

import numpy as np

from prismm.core.jit import device, device_any_order, kernel

EMPTY = -(1 << 20)
"""Exponent of a tile without nonzero elements."""
LOWEST = -990
HIGHEST = 990
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF
_FRACTION = (1 << 52) - 1
_TINY = 2.0**-1022


@device_any_order
def _largest(bits):
    found = np.int64(0)
    for h in range(bits.size):
        found = max(found, bits[h] & _MAGNITUDE)
    return found


@kernel("void(float64[:,::1], int64[::1], int64, int64, int64, int64, int64, int64[:,::1], int64[:,::1])")
def tile_exponents(x, undo, vectors, width, bits, first, last, tiles, least):
    """tiles[I, K], first <= I < last: the exponent p of the tile's elements x·2^undo, so that |X| < 2^(bits+1).

    p is the largest floor(log2 |x|) + undo; one more where RN(x·2^(bits-p)) of that element is 2^(bits+1). least[I, K]:
    the least exponent, without undo, of the largest element of a nonzero vector of the tile (1 if there is none).
    """
    v, k = x.shape
    half_up = np.int64(1) << 52
    half_up -= np.int64(1) << (51 - bits)  # fractions from here on round up to 2 (a tie is odd below)
    for i_tile in range(first, last):
        for step in range(tiles.shape[1]):
            p = np.int64(EMPTY)
            lowest = np.int64(1)
            for i in range(i_tile * vectors, min(v, (i_tile + 1) * vectors)):
                top = _largest(x[i, step * width : min(k, (step + 1) * width)].view(np.int64))
                if top > 0:
                    e = (top >> 52) - 1023
                    lowest = min(lowest, max(e, np.int64(LOWEST)))
                    if e < LOWEST:
                        e = np.int64(LOWEST)
                    elif (top & _FRACTION) >= half_up:
                        e += 1
                    p = max(p, e + undo[i])
            tiles[i_tile, step] = p
            least[i_tile, step] = lowest


@device
def _integers(row, up, down, s, d):
    """s = RN(x·up) and the exact remainder d = x - s·down."""
    for h in range(row.size):
        t = np.rint(row[h] * up)
        s[h] = t
        d[h] = row[h] - t * down


@device
def _next_segment(s, unit, inverse, t):
    """t = s/unit toward zero, s = what is left."""
    for h in range(s.size):
        # Toward zero: segments keep the sign of X, on which the bound of partial sums rests.
        q = np.trunc(s[h] * inverse)
        t[h] = q
        s[h] -= q * unit


@device_any_order
def sum_of_squares(d):
    """Σ d², where a nonzero d counts at least 2^-1022."""
    total = 0.0
    for h in range(d.size):
        y = d[h] * d[h]
        total += max(y, _TINY) if d[h] != 0.0 else 0.0
    return total


@device_any_order
def _excess(bits, g, spare):
    """Σ max(0, g - e - spare) over the nonzero elements, e their exponents: Δ of Eq. 9 in units of u/width."""
    total = np.int64(0)
    for h in range(bits.size):
        size = bits[h] & _MAGNITUDE
        e = max((size >> 52) - 1023, np.int64(LOWEST))
        total += max(np.int64(0), g - e - spare) if size > 0 else np.int64(0)
    return total


@kernel(
    "void(float64[:,::1], int64[:,::1], int64, int64, int64, boolean, int64, int64, int8[:,:,::1], float64[:,::1], "
    "int64[:,::1], float64[:,::1], float64[:,::1])"
)
def pack_segments(x, exponents, width, spare, count, backward, first, last, out, weight, excess, residual2, last2):
    """Vectors first <= i < last of x (v, k) as segments out[step, i, p·width + h]; backward: the last segment first.

    exponents (v, steps): g of each vector in each step. weight: 2^(g-6), the value of a unit of the first segment, or 0
    where all X are 0. excess: see `_excess`. residual2: Σ(x - X·2^(g-f))². last2: Σ of squares of the last segments'
    values.
    """
    k = x.shape[1]
    steps = exponents.shape[1]
    bits = 7 * count - 1
    s = np.zeros(width)
    d = np.zeros(width)
    t = np.zeros(width)
    for i in range(first, last):
        for step in range(steps):
            h0 = step * width
            h1 = min(k, h0 + width)
            w = h1 - h0
            g = max(np.int64(LOWEST), min(np.int64(HIGHEST), exponents[i, step]))
            down = np.ldexp(1.0, g - bits)
            row = x[i, h0:h1]
            _integers(row, np.ldexp(1.0, bits - g), down, s[:w], d[:w])
            residual2[i, step] = sum_of_squares(d[:w])
            excess[i, step] = _excess(row.view(np.int64), g, spare)
            found = False
            for p in range(count):
                unit = np.ldexp(1.0, 7 * (count - 1 - p))
                _next_segment(s[:w], unit, 1.0 / unit, t[:w])
                # Right segments stand backwards, so that each sum over one weight is one product of slices.
                place = count - 1 - p if backward else p
                target = out[step, i, place * width : (place + 1) * width]
                for h in range(w):
                    target[h] = np.int8(t[h])
                    found |= t[h] != 0.0
                for h in range(w, width):
                    target[h] = np.int8(0)
            for h in range(w):
                t[h] *= down
            last2[i, step] = sum_of_squares(t[:w])
            # A weight of 0 lets the join skip the row.
            weight[i, step] = np.ldexp(1.0, g - 6) if found else 0.0


@kernel("void(float64[:,::1], int64, int64, float64[::1])")
def vector_energies(x, first, last, out):
    """Σ x² of vectors first <= i < last; a nonzero element counts at least 2^-1022."""
    for i in range(first, last):
        out[i] = sum_of_squares(x[i])


@device
def _horner(r, nxt):
    for j in range(r.size):
        r[j] = r[j] * np.float32(0.0078125) + nxt[j]


@device
def _accumulate(r, w, column_weight, acc):
    for j in range(r.size):
        acc[j] = acc[j] + np.float32(np.float64(r[j]) * (w * column_weight[j]))


@kernel("void(float32[:,:,::1], float64[::1], float64[:,::1], int64, float32[:,::1])")
def join_segments(sums, row_weight, column_weight, vectors, acc):
    """acc += (sums[0] + 2^-7(sums[1] + 2^-7(…)))·row_weight·column_weight, each operation rounded to float32.

    sums (weights, m, n): integers below 2^24. The column weights of row i are column_weight[i // vectors]: 0 where a
    tile pair is left to the fallback. Products with powers of two are exact unless the result is below 2^-149.
    """
    count, m, n = sums.shape
    r = np.empty(n, np.float32)
    for i in range(m):
        if row_weight[i] != 0.0:
            # From the smallest weight up: small terms are not rounded at the size of the large ones.
            for j in range(n):
                r[j] = sums[count - 1, i, j]
            for s in range(count - 2, -1, -1):
                _horner(r, sums[s, i])
            _accumulate(r, row_weight[i], column_weight[i // vectors], acc[i])
