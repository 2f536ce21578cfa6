"""Single entries in exact arithmetic: a long accumulator (Kulisch) whose terms are made in vectors.

An element is x = μ·2^(16·c - 1023) with |μ| < 2^16, c its cell; μ keeps the 53 bits, so that a product of two is p + r
exactly, p = fl(μ·ν) and r = μ·ν - p, in cell c + d. Four integers hold it: p + r = i3·2^-8 + i2·2^-40 + i1·2^-72 +
i0·2^-104, |i3| <= 2^40 and the others at most 2^33, each cut off by adding and taking off a constant. They are added to
the four sums of their cell at one address. Of 2^22 terms no sum reaches 2^63. At an entry's end sums of equal weight
meet in digits of 16 bits, carries are taken and one rounding follows.

Per term: 16 bytes read, 50 vector operations shared by four (eight with registers of 512 bits), and one load, addition
and store of 32 bytes. At 2 GHz with 256 bits 3 ns, of which arithmetic is 2.2. Per entry 1 µs more where terms span
2000 binades.
"""

import math

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from prismm.core.jit import bits_of, contiguous_part, device, float_of, fma, kernel, wide_vectors
from prismm.core.limbs import bit_length

CELL = 16
_CELLS = 2 * (2047 // CELL) + 1
_CHUNK = 512
_FLUSH = 1 << 22
_LOWEST = 2 * 1023 + 104
"""Digit x of a sum of products is worth 2^(16·x - 2150)."""
_SCALED = _LOWEST + 1136
"""Digit x of sums with factors: 2^(16·x - 3286), below all products of such a digit and a float64's 53 bits."""
_DIGITS, _SCALED_DIGITS = 288, 416
_FIELD = 0x7FF << 52
_SIGN, _TWO = -(1 << 63), 1024 << 52
_M3, _M2, _M1, _M0 = (1.5 * 2.0 ** (52 - unit) for unit in (8, 40, 72, 104))
_B3, _B2, _B1, _B0 = (int(np.float64(x).view(np.int64)) for x in (_M3, _M2, _M1, _M0))


@intrinsic
def _add_four(typingctx, target, source):
    """The four int64 at an address, plus those at another."""

    def codegen(context, builder, signature, args):
        four = ir.VectorType(ir.IntType(64), 4).as_pointer()
        places = [builder.inttoptr(x, four) for x in args]
        values = []
        for place in places:
            value = builder.load(place)
            value.align = 8
            values.append(value)
        builder.store(builder.add(*values), places[0]).align = 8
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), codegen


@device
def _take_apart(row, mantissa, cell):
    """μ and c of every element; of cell 0 where it is subnormal or zero."""
    bits = row.view(np.int64)
    for h in range(row.size):
        field = (bits[h] >> 52) & 0x7FF
        # Subnormals have the exponent of the least normal numbers.
        e = max(field, 1)
        mantissa[h] = _mantissa(bits[h], field, e)
        cell[h] = e >> 4


@device
def _mantissa(bits, field, e):
    """μ of an element with this exponent field; e is 1 where that is 0, so that the leading bit, which only normal
    numbers have, would stand for 2.
    """
    x = float_of((bits & ~_FIELD) | (((e & (CELL - 1)) + 1023) << 52))
    leading = float_of((bits & _SIGN) | _TWO) if field == 0 else 0.0
    return x - leading


@device
def _terms(mantissa, cell, column, pieces, place):
    """The four integers of each product, and its cell; returns the least and largest of these."""
    wide_vectors()
    bits = column.view(np.int64)
    low = np.int64(_CELLS)
    high = np.int64(0)
    for h in range(column.size):
        field = (bits[h] >> 52) & 0x7FF
        e = max(field, 1)
        y = _mantissa(bits[h], field, e)
        where = cell[h] + (e >> 4)
        place[h] = where
        low = min(low, where)
        high = max(high, where)
        p = mantissa[h] * y
        r = fma(mantissa[h], y, -p)
        x3 = p + _M3
        p -= x3 - _M3
        x2 = p + _M2
        p -= x2 - _M2
        x1 = p + _M1
        p -= x1 - _M1
        y2 = r + _M2
        r -= y2 - _M2
        y1 = r + _M1
        r -= y1 - _M1
        # Both rests are at most 2^-73 and multiples of 2^-104.
        x0 = (p + r) + _M0
        # The bits of such a sum less those of its constant are the integer that was cut off: no conversion is taken.
        pieces[4 * h] = bits_of(x0) - _B0
        pieces[4 * h + 1] = (bits_of(x1) - _B1) + (bits_of(y1) - _B1)
        pieces[4 * h + 2] = (bits_of(x2) - _B2) + (bits_of(y2) - _B2)
        pieces[4 * h + 3] = bits_of(x3) - _B3
    return low, high


@device
def _deposit(pieces, place, cells):
    """Add each product's four integers to its cell; products of odd and even number to sums of their own, so that
    those of one cell that follow each other need not wait.
    """
    source = np.uint64(pieces.ctypes.data)
    target = np.uint64(cells.ctypes.data)
    for h in range(place.size):
        at = 2 * place[h] + (h & 1)
        _add_four(target + np.uint64(32 * at), source + np.uint64(32 * h))


@device
def _flush(cells, low, high, digits):
    """Move the sums of cells low … high to the digits, whose carries go up to digit high + 10."""
    for where in range(low, high + 1):
        at = 8 * where
        for q in range(4):
            digits[where + 2 * q] += cells[at + q] + cells[at + 4 + q]
            cells[at + q] = 0
            cells[at + 4 + q] = 0
    _carry(digits, low, high + 10)


@device
def _carry(digits, low, top):
    """Digits low … top - 1 into 0 … 2^16 - 1; the last one is the rest, which has the sign."""
    carry = np.int64(0)
    for x in range(low, top):
        carry += digits[x]
        digits[x] = carry & 0xFFFF
        carry >>= 16
    digits[top] += carry


@device
def _sign_and_magnitude(digits, low, top):
    """Make the number a magnitude; whether it was negative."""
    if digits[top] >= 0:
        return False
    for x in range(low, top + 1):
        digits[x] = -digits[x]
    _carry(digits, low, top)
    return True


@device
def _round_digits(digits, low, top, unit, negative, precision, lowest):
    """RN of a magnitude Σ digits[x]·2^(16·x - unit), x from low to top, with its sign; the digits become zero.

    The leading 61 bits and a sticky one round like the number itself.
    """
    x = top
    while x >= low and digits[x] == 0:
        x -= 1
    value = 0.0
    if x >= low:
        length = bit_length(digits[x])
        head = (_digit(digits, low, x) << 32) | (_digit(digits, low, x - 1) << 16) | _digit(digits, low, x - 2)
        tail = (_digit(digits, low, x - 3) << 16) | _digit(digits, low, x - 4)
        wanted = 29 - length  # of the tail's bits
        significand = (head << wanted) | (tail >> (32 - wanted))
        sticky = (tail & ((np.int64(1) << (32 - wanted)) - 1)) != 0
        y = x - 5
        while y >= low and not sticky:
            sticky = digits[y] != 0
            y -= 1
        significand = 2 * significand + np.int64(sticky)
        e = 16 * x - unit + length - 62
        # Below the normal numbers the last place is fixed, and more bits than the precision asks are dropped.
        drop = max(62 - precision, lowest - e)
        # Where more is dropped, all 62 bits together are less than half of the least number, and the value is zero.
        if drop <= 62:
            kept = significand >> drop
            rest = significand & ((np.int64(1) << drop) - 1)
            half = np.int64(1) << (drop - 1)
            if rest > half or (rest == half and kept & 1):
                kept += 1
            value = np.float64(kept)
            limit = 1024 if precision == 53 else 128
            value = np.inf if math.frexp(value)[1] + e + drop > limit else math.ldexp(value, e + drop)
        value = -value if negative else value
    for y in range(low, top + 1):
        digits[y] = 0
    return value


@device
def _digit(digits, low, x):
    return digits[x] if x >= low else np.int64(0)


@device
def _add_scaled(factor, digits, low, top, target):
    """target += factor·Σ digits[x]·2^(16·x - 2150), its digits worth 2^(16·x - 3286) and not carried; the digits become
    zero. Returns the first and last that were touched.
    """
    fraction, e = math.frexp(factor)
    m = np.int64(math.ldexp(fraction, 53))
    offset = e - 53 + _SCALED - _LOWEST
    for half in range(2):
        part = m - ((m >> 27) << 27) if half == 0 else m >> 27
        first, shift = (offset + 27 * half) >> 4, (offset + 27 * half) & 15
        for x in range(low, top + 1):
            # At most 2^(16 + 27 + 15); six of them, of three sums, may meet.
            target[x + first] += (digits[x] * part) << shift
    for x in range(low, top + 1):
        digits[x] = 0
    return low + (offset >> 4), top + ((offset + 27) >> 4)


@device
def _dot(mantissa, cell, column, pieces, place, cells, digits):
    """The dot product of a row that is taken apart and a column, as digits: the first of them, and the last."""
    low = np.int64(_CELLS)
    high = np.int64(0)
    for h0 in range(0, column.size, _CHUNK):
        size = min(column.size, h0 + _CHUNK) - h0
        here = contiguous_part(place, 0, size)
        least, most = _terms(
            contiguous_part(mantissa, h0, size), contiguous_part(cell, h0, size), contiguous_part(column, h0, size),
            pieces, here,
        )  # fmt: skip
        low, high = min(low, least), max(high, most)
        _deposit(pieces, here, cells)
        # True once in 2^22 terms, before any sum of a cell can reach 2^63.
        if h0 & (_FLUSH - 1) == _FLUSH - _CHUNK:
            _flush(cells, low, high, digits)
    if low > high:
        return np.int64(0), np.int64(0)
    _flush(cells, low, high, digits)
    return low, high + 10


@kernel(
    "void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64[::1], float64[:,::1], float64[::1], int64, "
    "float64[::1])"
)
def exact_dots(rows, columns, ri, ci, alpha, addends, beta, precision, value):
    """RN(Σ_g alpha_g·(segment g of row · segment g of column) + Σ_h beta_h·addends[c, h]), each entry exactly rounded.

    Rows and columns hold len(alpha) segments of equal length; for finite input of any exponent. A row that several
    entries in a row share is taken apart once.
    """
    k = rows.shape[1]
    segments = alpha.size
    length = k // segments
    plain = segments == 1 and alpha[0] == 1.0 and beta.size == 0
    mantissa, cell = np.empty(k), np.empty(k, np.int64)
    factor, factor_cell = np.empty(beta.size), np.empty(beta.size, np.int64)
    _take_apart(beta, factor, factor_cell)
    pieces, place = np.empty(4 * _CHUNK, np.int64), np.empty(_CHUNK, np.int64)
    cells = np.zeros(8 * _CELLS, np.int64)
    digits, total = np.zeros(_DIGITS, np.int64), np.zeros(_SCALED_DIGITS, np.int64)
    lowest = -1074 if precision == 53 else -149
    last = np.int64(-1)
    for c in range(ri.size):
        if ri[c] != last:
            last = ri[c]
            _take_apart(rows[last], mantissa, cell)
        column = columns[ci[c]]
        # A product alone is rounded where its digits stand: the wider ones are for sums with factors.
        if plain:
            low, top = _dot(mantissa, cell, column, pieces, place, cells, digits)
            negative = _sign_and_magnitude(digits, low, top)
            value[c] = _round_digits(digits, low, top, _LOWEST, negative, precision, lowest)
            continue
        first = np.int64(_SCALED_DIGITS)
        final = np.int64(0)
        for g in range(segments + 1):
            if g < segments:
                part = slice(g * length, (g + 1) * length)
                low, top = _dot(mantissa[part], cell[part], column[part], pieces, place, cells, digits)
            else:
                low, top = _dot(factor, factor_cell, addends[c], pieces, place, cells, digits)
            least, most = _add_scaled(alpha[g] if g < segments else 1.0, digits, low, top, total)
            first, final = min(first, least), max(final, most)
        _carry(total, first, final + 5)
        negative = _sign_and_magnitude(total, first, final + 5)
        value[c] = _round_digits(total, first, final + 5, _SCALED, negative, precision, lowest)
