"""Operands of `dot_model`: floats as integer significands and exponents."""

import numpy as np

from prismm.core.jit import bits_of, device, kernel
from prismm.core.limbs import to_float
from prismm.numerics.kernels.dot_parameters import FLUSH_TO_POSITIVE, INFINITY, KEEP, MINUS, NAN

_0, _1 = np.int64(0), np.int64(1)


@device
def decoded(x, fraction, minexp, flush):
    """(m, e) of a value; m = 0 and e = 0 for one that the format is too narrow for; see `dot_parameters`."""
    bits = bits_of(x)
    field = (bits >> 52) & 2047
    significand = bits & 0xFFFFFFFFFFFFF
    if field == 2047:
        return np.int64(-1 if bits < 0 else 1), np.int64(INFINITY if significand == 0 else NAN)
    if field == 0:
        e53 = np.int64(-1074)
    else:
        significand |= _1 << 52
        e53 = field - 1075
    e = max(field - 1023, minexp)
    m = _0
    if significand != 0 and not (flush != KEEP and field - 1023 < minexp):
        m = significand >> min(e - fraction - e53, 63)
    if m == 0:
        return m, np.int64(MINUS if bits < 0 and (significand == 0 or flush != FLUSH_TO_POSITIVE) else 0)
    return -m if bits < 0 else m, e


@kernel("int64(float64[:,::1], int64, int64, float64, int64, int64, int64, int64, int64[:,::1])")
def decode_rows(x, fraction, minexp, largest, infinities, nans, flush, width, out):
    """Decode rows: significands from column 0, exponents from column `width` on, zeros up to there. Returns how many
    values are foreign to the format.
    """
    foreign = 0
    drop = 52 - fraction
    for i in range(x.shape[0]):
        for h in range(x.shape[1]):
            v = x[i, h]
            bits = bits_of(v)
            field = (bits >> 52) & 0x7FF
            if minexp <= field - 1023 < 1024:  # normal
                significand = (bits & 0xFFFFFFFFFFFFF) | (_1 << 52)
                m, e = significand >> drop, field - 1023
                foreign += (m << drop != significand) | (abs(v) > largest)
                out[i, h] = -m if bits < 0 else m
                out[i, width + h] = e
                continue
            m, e = decoded(v, fraction, minexp, KEEP)
            if e >= INFINITY:
                foreign += (infinities if e == INFINITY else nans) == 0
            else:
                back = to_float(m < 0, abs(m), e - fraction) if m != 0 else 0.0
                foreign += (back != v) | (abs(v) > largest)
                if flush != KEEP and abs(m) >> fraction == 0:
                    m, e = decoded(v, fraction, minexp, flush)
            out[i, h] = m
            out[i, width + h] = e
        for h in range(x.shape[1], width):
            out[i, h] = 0
            out[i, width + h] = 0
    return foreign
