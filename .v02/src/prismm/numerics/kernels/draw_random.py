"""Random words and integers of the kernels of `draw`, and the words of a draw.

`d` is the draw under way, as words: what the inputs are aimed at (the constants below say where), and the state of a
SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), which the caller
draws: equal words give equal rows.
"""

import numpy as np

from prismm.core.jit import device
from prismm.core.limbs import keep_apart

FRACTION, MINEXP, MAXEXP, LARGEST, HAS_INFINITY, HAS_NAN = range(6)
"""Words of a format, from `INPUT` and from `OUTPUT` on; LARGEST is the bit pattern of its largest value."""

STATE, INPUT, OUTPUT = 0, 1, 7
LOW, HIGH, PLAIN = 13, 14, 15
"""The exponents that factors may have, and whether to keep away from the ends of the formats' ranges."""

KEPT, PRECISION, ZERO_EXPONENT, SMALLEST = 16, 17, 18, 19
"""Words d[g] up to, not including, d[g + 1] are the guesses g in ascending order; none where unknown."""


@device
def random_word(d):
    """64 random bits; in unsigned words, as compiled sums of signed ones must not overflow."""
    z = np.uint64(d[STATE]) + np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
    d[STATE] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@device
def uniform(d):
    """In [0, 1)."""
    return np.float64(np.int64(random_word(d) >> np.uint64(11))) * 2.0**-53


@device
def integer_between(d, low, high):
    """Uniform in [low, high], both included; low where the range is empty."""
    return low + np.int64(uniform(d) * (max(low, high) + 1 - low))


@device
def chance(d, share):
    """True for that share of draws."""
    return uniform(d) < share


@device
def random_sign(d):
    """1 or -1."""
    return -1.0 if np.int64(random_word(d)) < 0 else 1.0


@device
def pick(d, guesses, low, high):
    """One of the guesses, or anything in [low, high]."""
    if d[guesses] == d[guesses + 1]:
        return integer_between(d, low, high)
    return d[integer_between(d, d[guesses], d[guesses + 1] - 1)]


@device
def kept_bits(d):
    """How many bits below the largest exponent alignment keeps, a guess and some beside it."""
    keep_apart()
    return pick(d, KEPT, 1, 48) + integer_between(d, -2, 3)


@device
def precision_of_sums(d):
    """A guess at the fraction bits of running sums."""
    keep_apart()
    return pick(d, PRECISION, d[OUTPUT + FRACTION], d[OUTPUT + FRACTION])


@device
def smallest_exponent(d):
    """A guess at the smallest exponent of normal running sums."""
    keep_apart()
    return pick(d, SMALLEST, d[OUTPUT + MINEXP], d[OUTPUT + MINEXP])
