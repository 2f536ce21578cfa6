"""Terms of the rows that `draw` fills: factors at an exponent, values of the output, their order."""

import math

import numpy as np

from prismm.core.jit import bits_of, device, float_of, power_of_two
from prismm.core.limbs import keep_apart
from prismm.numerics.kernels.draw_random import (
    FRACTION,
    HIGH,
    INPUT,
    LARGEST,
    LOW,
    MAXEXP,
    MINEXP,
    OUTPUT,
    PLAIN,
    chance,
    integer_between,
    kept_bits,
    random_sign,
    random_word,
)


@device
def quantum_of(d, format):
    """The exponent of a format's smallest subnormal."""
    return d[format + MINEXP] - d[format + FRACTION]


@device
def significand(d, bits):
    """In [1, 2), with so many bits after the point: random, all ones, one, or one with its last bit set."""
    word = np.int64(random_word(d) >> np.uint64(1))
    kind, most = word >> 60, (np.int64(1) << bits) - 1
    units = 0 if kind < 2 else most if kind == 2 else 1 if kind == 3 else word & most
    return 1.0 + np.float64(units) * power_of_two(-bits)


@device
def significand_or_one(d, share):
    """A significand of the input: 1 for that share of them."""
    return 1.0 if chance(d, share) else significand(d, d[INPUT + FRACTION])


@device
def fit(d, x, format):
    """Toward zero to a value of the format; its largest where it is too large."""
    size, largest = abs(x), float_of(d[format + LARGEST])
    size = largest if size > largest else size
    if size < power_of_two(d[format + MINEXP]):
        quantum = power_of_two(quantum_of(d, format))
        return math.copysign(np.floor(size / quantum) * quantum, x)
    return math.copysign(float_of(bits_of(size) & -(np.int64(1) << (52 - d[format + FRACTION]))), x)


@device
def factors(d, exponent, sa, sb):
    """Factors with significands sa, sb whose exponents add up to `exponent` as nearly as the format allows."""
    keep_apart()
    low, high = d[LOW], d[HIGH]
    if d[PLAIN]:
        exponent = max(exponent, d[OUTPUT + MINEXP])
    ea = min(max((exponent >> 1) + integer_between(d, -3, 3), low), high)
    eb = min(max(exponent - ea, low), high)
    ea = min(max(exponent - eb, low), high)
    return fit(d, sa * power_of_two(ea), INPUT), fit(d, sb * power_of_two(eb), INPUT)


@device
def term(d, exponent, share):
    """Factors of either sign; each significand is 1 for that share of them."""
    keep_apart()
    x, y = factors(d, exponent, significand_or_one(d, share), significand_or_one(d, share))
    return x * random_sign(d), y


@device
def accumulator(d, exponent):
    """A value of the output at this exponent, of either sign; zero where it is far below its range."""
    keep_apart()
    x = significand(d, d[OUTPUT + FRACTION]) * power_of_two(max(min(exponent, d[OUTPUT + MAXEXP] - 1), -1074))
    return fit(d, random_sign(d) * x, OUTPUT)


@device
def center(d):
    """An exponent for the largest term: products and output have it."""
    keep_apart()
    low = max(2 * d[LOW], d[OUTPUT + MINEXP])
    high = min(2 * d[HIGH], d[OUTPUT + MAXEXP] - 8)
    if d[PLAIN]:
        return integer_between(d, max(low, min(high, 8) - 6), min(high, 8))
    if chance(d, 0.5):
        return integer_between(d, max(low, -4), min(high, 4))
    return integer_between(d, low, high)


@device
def raised(d, top):
    """The exponent of a largest term, half of the time so high that what is cut off beside it is a product: few are,
    where inputs have a narrow range.
    """
    keep_apart()
    least = 2 * d[LOW] + kept_bits(d)
    if top < least and not d[PLAIN] and chance(d, 0.5):
        return min(least + integer_between(d, 0, 2), 2 * d[HIGH])
    return top


@device
def about_sum(a, b):
    """About the sum of the products."""
    total = 0.0
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@device
def shuffle(d, a, b):
    """The terms in a random order."""
    keep_apart()
    for j in range(a.size - 1, 0, -1):
        i = integer_between(d, 0, j)
        a[i], a[j] = a[j], a[i]
        b[i], b[j] = b[j], b[i]


@device
def turn(d, a, b):
    """Some with the last term first, the others shuffled."""
    if chance(d, 0.3):
        for j in range(a.size // 2):
            i = a.size - 1 - j
            a[i], a[j] = a[j], a[i]
            b[i], b[j] = b[j], b[i]
    else:
        shuffle(d, a, b)


@device
def sow_zeros(d, a, share):
    """Zeros of either sign instead of that share of a."""
    keep_apart()
    for j in range(a.size):
        if chance(d, share):
            a[j] = 0.0 * random_sign(d)
