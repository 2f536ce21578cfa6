"""The ends of a sum in `dot_model`: infinities, NaN and zeros, the rounding to a format, overflow and flushing."""

import numpy as np

from prismm.core.jit import bits_of, device
from prismm.core.limbs import bit_length, keep_apart, to_float, units_of
from prismm.numerics.kernels.dot_parameters import (
    FINITE,
    FLUSH_OUTPUTS,
    FLUSH_TO_POSITIVE,
    IEEE,
    KEEP,
    LAST_ROUNDING,
    MINUS_INFINITY,
    NAN_TERM,
    NEGATIVE_ZERO,
    OUT_FRACTION,
    OUT_MAXEXP,
    OUT_MINEXP,
    PLUS_INFINITY,
    POSITIVE_ZERO,
    ROUNDING,
    SATURATE,
    SUMS_FRACTION,
    SUMS_MAXEXP,
    SUMS_MINEXP,
    UNSIGNED,
    ZEROS,
)

_1, _NO = np.int64(1), np.bool_(False)


@device
def special_sum(kinds):
    """Whether a sum of terms of these kinds is NaN or infinite, and what it is."""
    if kinds & 7 == 0:
        return False, 0.0
    if kinds & NAN_TERM or kinds & 6 == 6:
        return True, np.nan
    return True, np.inf if kinds & PLUS_INFINITY else -np.inf


@device
def kind_of(x):
    """The kind of a term that is this float."""
    if x != x:
        return NAN_TERM
    if x == 0.0:
        return NEGATIVE_ZERO if bits_of(x) < 0 else POSITIVE_ZERO
    if abs(x) == np.inf:
        return PLUS_INFINITY if x > 0.0 else MINUS_INFINITY
    return FINITE


@device
def zero_sum(p, kinds):
    """The exact sum 0 of terms of these kinds."""
    return -0.0 if p[ZEROS] == IEEE and kinds == NEGATIVE_ZERO else 0.0


@device
def flushed(x, smallest_exponent, policy):
    """x, or a zero for it below 2^smallest_exponent."""
    if policy == KEEP or x == 0.0 or not abs(x) < to_float(_NO, _1, smallest_exponent):
        return x
    return 0.0 if policy == FLUSH_TO_POSITIVE or x > 0.0 else -0.0


@device
def finish(p, negative, m, e, sticky, fraction, minexp, maxexp, mode):
    """The sum ± m·2^e, not 0, rounded to a format, with the model's overflow, flushing and zeros."""
    keep_apart()
    q = max(e + bit_length(m) - 1, minexp) - fraction
    units = units_of(negative, m, e, sticky, q, mode)
    if units == 0:
        x = -0.0 if negative else 0.0
    elif bit_length(units) + q > maxexp:
        x = np.inf
        if p[SATURATE]:
            x = to_float(_NO, (_1 << (fraction + 1)) - 1, maxexp - fraction - 1)
        x = -x if negative else x
    else:
        x = to_float(negative, units, q)
        x = flushed(x, minexp, p[FLUSH_OUTPUTS])
    return x + 0.0 if p[ZEROS] == UNSIGNED else x


@device
def finish_sums(p, negative, m, e, sticky):
    """The same, rounded to the format of running sums."""
    return finish(p, negative, m, e, sticky, p[SUMS_FRACTION], p[SUMS_MINEXP], p[SUMS_MAXEXP], p[ROUNDING])


@device
def finish_output(p, negative, m, e, sticky):
    """The same, rounded to the output format."""
    return finish(p, negative, m, e, sticky, p[OUT_FRACTION], p[OUT_MINEXP], p[OUT_MAXEXP], p[LAST_ROUNDING])
