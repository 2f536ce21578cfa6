"""What the kernels of `dot_model` share: the array of a model's parameters, the arrays of a block's terms.

An operand is a row of int64: significands of its elements, then their exponents, then (significand, exponent) of every
group's block scale. A decoded number is (m, e): its value is m·2^(e - fraction_bits of its format), and e is
max(floor(log2|x|), minexp). Zeros have m = 0 and e = 0 or MINUS; infinities m = ±1 and e = INFINITY; NaN e = NAN. A
scale that is NaN has m = -1.
"""

import numpy as np

from prismm.core.limbs import LIMBS

MINUS = -4096
INFINITY = 1 << 20
NAN = 1 << 22
SPECIAL = 1 << 18
NONE = -(1 << 24)
ALL = 1 << 62

# Constants that helpers take: with Python's own types Numba would compile a helper once more for each of them.
FRACTION_64, MINEXP_64 = np.int64(52), np.int64(-1022)
FIRST_LIMB, LAST_LIMB = np.int64(LIMBS), np.int64(0)
"""The lowest and the highest index where no limb is in use."""

# Indices of parameters.
SUMMATION, JOIN, BLOCK, DEPTH, SEQUENCES, INPUT_FRACTION, INPUT_WIDE = range(7)
SUMS_FRACTION, SUMS_MINEXP, SUMS_MAXEXP, OUT_FRACTION, OUT_MINEXP, OUT_MAXEXP = range(7, 13)
PRODUCT_ROUNDING, PRODUCT_INFINITY, NORMALISED, FRACTION_BITS, CARRY_BITS, ALIGNMENT, ZERO_EXPONENT = range(13, 20)
ROUNDING, LAST_ROUNDING, SATURATE, FLUSH_C, FLUSH_PRODUCTS, FLUSH_OUTPUTS, ZEROS, CONVERTS = range(20, 28)
LATE_SUM, LATE_C, LATE_TOTAL, LATE_CUTOFF, SCALE, SCALE_LENGTH, LOWEST, HIGHEST, PLAIN = range(28, 37)
WIDTH, SCALE_BITS, LENGTH, FLUSH_INPUTS, ASCENDING, FILLED = range(37, 43)
PARAMETERS = 43

ALIGNED, EXACT, SEQUENTIAL, PAIRWISE, INTEGER = range(5)
INSIDE, AFTER, LATE = range(3)
KEEP, FLUSH, FLUSH_TO_POSITIVE = np.arange(3)
IEEE, POSITIVE, UNSIGNED = range(3)
NO_SCALE, TERMS, GROUPS = range(3)

_ROW = 264
M, H, E, A, K, G, F, U = (_ROW * i for i in range(8))
T = U + 4096
"""Where the terms of a block have their significands (signed), what of them stands above 2^54, exponents of their last
bits and of alignment, kinds, groups of scales, the factors' significands; sums of groups and their exponents (late
joins)."""

# Kinds of terms, as bits of a set.
NAN_TERM, PLUS_INFINITY, MINUS_INFINITY, FINITE, POSITIVE_ZERO, NEGATIVE_ZERO = 1, 2, 4, 8, 16, 32
