"""Hostile inputs of dot products, row by row: `numerics.vectors` says what for.

Each class is a function that fills one row of a and b and returns its c. `draw_random` says what the words `d` of a
draw are.

Per element a term takes 5 to 15 random words, two roundings to the input's format and a swap, and writes 16 bytes:
40 ns on average (Zen 4, one core, bf16), most of it branches that cannot be foreseen. Arithmetic bounds it, not memory.
"""

import math

import numpy as np

from prismm.core.jit import device, float_of, kernel, power_of_two
from prismm.core.limbs import keep_apart
from prismm.core.pointers import pointer
from prismm.numerics.kernels.draw_random import (
    FRACTION,
    HAS_INFINITY,
    HAS_NAN,
    HIGH,
    INPUT,
    KEPT,
    LARGEST,
    LOW,
    MAXEXP,
    MINEXP,
    OUTPUT,
    PLAIN,
    PRECISION,
    ZERO_EXPONENT,
    chance,
    integer_between,
    kept_bits,
    pick,
    precision_of_sums,
    random_sign,
    smallest_exponent,
    uniform,
)
from prismm.numerics.kernels.draw_terms import (
    about_sum,
    accumulator,
    center,
    factors,
    fit,
    quantum_of,
    raised,
    shuffle,
    significand,
    significand_or_one,
    sow_zeros,
    term,
    turn,
)


@device
def _cut(d, a, b):
    """Few large terms, many at the edge of what alignment keeps; half with a pair that cancels the large ones."""
    keep_apart()
    k = a.size
    top = raised(d, center(d))
    if not d[PLAIN] and chance(d, 0.15):  # beyond the output's range, where terms take each other back
        top = integer_between(d, d[OUTPUT + MINEXP], 2 * d[HIGH])
    edge = top - integer_between(d, 0, 1)
    ones = 1.0 if chance(d, 0.5) else 0.0
    pair = k >= 2 and chance(d, 0.6)
    alone = pair and chance(d, 0.5)
    for j in range(k):
        large = j == 0 or chance(d, 0.15)
        e = top - integer_between(d, 0, 1) if large else edge - kept_bits(d)
        a[j], b[j] = term(d, e, ones)
        if j >= 2 and large and alone:
            a[j] = 0.0
    if pair:
        a[1], b[1] = -a[0], b[0]
    c = 0.0
    if chance(d, 0.3):
        c = fit(d, -about_sum(a, b), OUTPUT)
    elif not chance(d, 0.3):
        c = accumulator(d, top - (kept_bits(d) if chance(d, 0.5) else integer_between(d, -1, 1)))
    sow_zeros(d, a, 0.1)
    shuffle(d, a, b)
    return c


@device
def _alone(d, a, b):
    """Products that take each other back, the largest ones or any, beside c at the edge of what is kept of it, or
    anywhere below: where inputs have a narrow range, nothing else is small enough to be cut off.
    """
    keep_apart()
    pairs = a.size // 2
    top = center(d)
    if chance(d, 0.5):
        top = min(2 * d[HIGH] + 1, d[OUTPUT + MAXEXP] - 8)
    few = chance(d, 0.6)
    for j in range(a.size):
        a[j], b[j] = term(d, top, 0.0)
        if j >= 2 * pairs or (few and chance(d, 0.8)):
            a[j] = 0.0
    for j in range(pairs):
        a[pairs + j], b[pairs + j] = -a[j], b[j]
    least = d[OUTPUT + MINEXP] if d[PLAIN] else quantum_of(d, OUTPUT)
    at = top - kept_bits(d) if chance(d, 0.5) else integer_between(d, least, top - 1)
    shuffle(d, a, b)
    return accumulator(d, max(at, least))


@device
def _round(d, a, b):
    """Sums whose last bits stand at the rounding of the running sum: ties, just above, just below, tiny remainders."""
    keep_apart()
    top, p = center(d), precision_of_sums(d)
    first = chance(d, 0.5)
    few = chance(d, 0.5)
    for j in range(a.size):
        e = top - kept_bits(d) if chance(d, 0.2) else top - p - integer_between(d, -2, 3)
        a[j], b[j] = term(d, top if first and j == 0 else e, 1.0 if chance(d, 0.6) else 0.0)
        if j >= 1 and few and chance(d, 0.7):
            a[j] = 0.0
    shuffle(d, a, b)
    if first and chance(d, 0.3):
        return accumulator(d, top - kept_bits(d))
    if first and chance(d, 0.3):
        return 0.0
    return accumulator(d, top - p - integer_between(d, -2, 3) if first and chance(d, 0.5) else top)


@device
def _sticky(d, a, b):
    """A sum at a value of the output, or half way between two, and one term anywhere below, or three, however small."""
    keep_apart()
    k = a.size
    high = min(2 * d[HIGH], d[OUTPUT + MAXEXP] - 2)
    top = center(d)
    if chance(d, 0.5):
        top = integer_between(d, max(2 * d[LOW], d[OUTPUT + MINEXP], high - 8), high)
    p = precision_of_sums(d)
    lowest = max(2 * d[LOW], d[OUTPUT + MINEXP] - 64)
    below = top - kept_bits(d) if chance(d, 0.5) else integer_between(d, lowest, lowest + 64)
    below = min(max(below, lowest), top)
    first = chance(d, 0.6)  # in c, or a product
    if first and chance(d, 0.3):  # c far above every product, where inputs have a narrow range
        below = integer_between(d, lowest, high)
        top = min(below + kept_bits(d), d[OUTPUT + MAXEXP] - 2)
    half = chance(d, 0.6)
    more = chance(d, 0.4)
    skipped = max(3 - k, 0)
    for j in range(k):
        a[j], b[j] = 0.0, 1.0
    for j in range(skipped, min(skipped + k, 5)):
        e = top if j == 0 else top - p - 1 if j == 1 else below
        if j >= 3:
            e = max(below + integer_between(d, -1, 1), lowest)
        x, y = term(d, e, 1.0 if chance(d, 0.7) else 0.0)
        wanted = not first if j == 0 else half if j == 1 else j == 2 or more
        a[j - skipped], b[j - skipped] = x if wanted else 0.0, y
    # In any order; or the smallest first, so that sums which are rounded one after another keep it.
    turn(d, a, b)
    return accumulator(d, top) if first else 0.0


@device
def _carry(d, a, b):
    """All terms large and alike, so that their sum needs every bit above the leading ones."""
    keep_apart()
    k = a.size
    top = min(center(d), d[OUTPUT + MAXEXP] - 12)
    most = 2.0 - power_of_two(-d[INPUT + FRACTION])
    alike, mixed = chance(d, 0.7), chance(d, 0.3)
    sb, sign = most if chance(d, 0.8) else 1.0, random_sign(d)
    # All of them, or a run of them anywhere, so that a later block can be the large one.
    count = k if chance(d, 0.5) else integer_between(d, 1, k)
    start = 0 if chance(d, 0.5) else integer_between(d, 0, k - 1)
    for j in range(k):
        a[j], b[j] = factors(d, top, most if alike else significand_or_one(d, 0.0), sb)
        a[j] = (random_sign(d) if mixed else sign) * a[j] if start <= j < start + count else 0.0
    if k > 2 and chance(d, 0.3):  # and the smallest term that there is, which a sum that has grown cuts off
        x, y = factors(d, 2 * d[LOW] + integer_between(d, 0, 6), most if alike else significand_or_one(d, 0.0), 1.0)
        j = integer_between(d, 0, k - 1)
        a[j], b[j] = x * random_sign(d), y
    c = 0.0 if chance(d, 0.3) else accumulator(d, top + integer_between(d, -1, 3))
    return math.copysign(c, sign) if chance(d, 0.6) else c


@device
def _subnormal(d, a, b):
    """Subnormal inputs against large ones, results and accumulators around the output's smallest normal value."""
    keep_apart()
    bits, out_bits = d[INPUT + FRACTION], d[OUTPUT + FRACTION]
    least = smallest_exponent(d)
    few = chance(d, 0.6)
    for j in range(a.size):
        if chance(d, 0.5):
            units = integer_between(d, 1, (np.int64(1) << bits) - 1)
            units >>= integer_between(d, 0, bits - 1) if chance(d, 0.5) else 0
            x = fit(d, max(units, 1) * power_of_two(d[LOW]), INPUT)
            e = integer_between(d, d[INPUT + MINEXP], d[HIGH])
            y = fit(d, significand(d, bits) * power_of_two(e), INPUT)
        else:
            e = least - integer_between(d, -2, out_bits + 2)
            x, y = factors(d, e, significand(d, bits), significand(d, bits))
        if chance(d, 0.5):
            x, y = y, x
        a[j], b[j] = 0.0 if few and chance(d, 0.7) else x * random_sign(d), y
    if chance(d, 0.25):
        return 0.0
    total = about_sum(a, b)
    if chance(d, 0.2):
        binade = math.frexp(total)[1] if np.isfinite(total) else 1
        return accumulator(d, binade - integer_between(d, 0, 60))
    if chance(d, 0.3):
        return fit(d, -total, OUTPUT)
    return accumulator(d, least - integer_between(d, -2, out_bits))


@device
def _floor(d, a, b):
    """c = 0 and products about the exponent that zeros take; the smallest running sum or half of it, which what is cut
    off moves, or pairs that cancel.
    """
    keep_apart()
    k = a.size
    smallest, p = smallest_exponent(d), precision_of_sums(d)
    longest = p if d[PRECISION] == d[PRECISION + 1] else d[d[PRECISION + 1] - 1]
    guess = pick(d, ZERO_EXPONENT, smallest - longest - 8, smallest)
    base = max(guess, 2 * d[LOW]) + integer_between(d, -6, 2)
    few = chance(d, 0.7)
    for j in range(k):
        e = base - (integer_between(d, 0, 8) if chance(d, 0.3) else kept_bits(d))
        a[j], b[j] = term(d, e, 1.0 if chance(d, 0.7) else 0.0)
        if j >= 2 and few:
            a[j] = 0.0
    if chance(d, 0.5):
        a[0], b[0] = factors(d, smallest - p - integer_between(d, 0, 1), 1.0, 1.0)
    if k >= 2 and chance(d, 0.25):  # what is cut off to the floor does not cancel
        a[1], b[1] = -a[0], b[0]
    # Anywhere, or all of them in the last block.
    turn(d, a, b)
    return accumulator(d, base) if chance(d, 0.15) else 0.0 * random_sign(d)


@device
def _least(d, a, b):
    """One term among the smallest running sums, or one that another takes back, and one about where it would be cut
    off if zeros had an exponent: any bit of it moves what is rounded to one side.
    """
    keep_apart()
    k = a.size
    smallest, p = smallest_exponent(d), precision_of_sums(d)
    kept = pick(d, KEPT, 1, 48)
    first = integer_between(d, smallest - p - 1, smallest + 1)
    back = k > 2 and chance(d, 0.25)
    if back and chance(d, 0.5):  # is cut off itself
        first += integer_between(d, -2, 10) - kept
    first = max(first, 2 * d[LOW] + (integer_between(d, 0, 40) if chance(d, 0.5) else 0))
    for j in range(k):
        a[j], b[j] = 0.0 * random_sign(d), 1.0
    place = integer_between(d, 0, k - 1)
    other = (place + (integer_between(d, 0, k - 1) if chance(d, 0.3) else 1)) % k
    x, y = factors(d, first, significand_or_one(d, 0.8), significand_or_one(d, 0.9))
    x *= random_sign(d)
    if back:
        a[(place + 2) % k], b[(place + 2) % k] = -x, y
    second = first - kept + integer_between(d, -2, 14)
    v, w = factors(d, second, significand_or_one(d, 0.8), significand_or_one(d, 0.9))
    a[other], b[other] = v * random_sign(d), w
    a[place], b[place] = x, y
    return accumulator(d, first) if chance(d, 0.1) else 0.0 * random_sign(d)


@device
def _special(d, a, b):
    """Infinities, NaN, signed zeros, and sums at the end of the range."""
    keep_apart()
    c = _random(d, a, b)
    if d[OUTPUT + HAS_NAN] and chance(d, 0.02):
        c = np.nan
    if d[OUTPUT + HAS_INFINITY] and chance(d, 0.05):
        c = math.copysign(np.inf, c)
    zero = chance(d, 0.3)
    nan = d[INPUT + HAS_NAN] and chance(d, 0.3)
    end = not zero and chance(d, 0.4)
    for j in range(a.size):
        which = integer_between(d, 0, 40)
        if d[INPUT + HAS_INFINITY] and which == 0:
            a[j] = math.copysign(np.inf, a[j])
        if d[INPUT + HAS_INFINITY] and which == 1:
            b[j] = math.copysign(np.inf, b[j])
        if nan and which == 2:
            a[j] = np.nan
        if zero or which == 3 or which == 4:
            a[j] = math.copysign(0.0, a[j])
        if end:
            a[j], b[j] = term(d, d[OUTPUT + MAXEXP] - 1 - integer_between(d, 0, 2), 0.0)
            if chance(d, 0.5):
                a[j] = 0.0
    if zero and chance(d, 0.8):
        c = 0.0 * random_sign(d)
    if end and chance(d, 0.8):
        c = accumulator(d, d[OUTPUT + MAXEXP] - 1)
    if end and chance(d, 0.2):
        c = math.copysign(float_of(d[OUTPUT + LARGEST]), c)
    return c


@device
def _zero(d, a, b):
    """Sums of zeros, most of them of one sign; of terms that cancel; of terms too small for the output."""
    keep_apart()
    k, bits, quantum = a.size, d[INPUT + FRACTION], quantum_of(d, OUTPUT)
    sign, alike = random_sign(d), chance(d, 0.8)
    for j in range(k):
        a[j], b[j] = 0.0 * (sign if alike else random_sign(d)), 1.0
    c = a[0] if chance(d, 0.8) else -a[0]
    kind = integer_between(d, 0, 6)
    j = integer_between(d, 0, k - 1)
    if kind == 1:  # one term that c takes back
        x, b[j] = factors(d, center(d), 1.0, 1.0)
        a[j] = math.copysign(x, a[j])
        return fit(d, -a[j] * b[j], OUTPUT)
    if kind == 2:
        tiny = power_of_two(d[LOW] if chance(d, 0.5) else d[INPUT + MINEXP])
        a[j] = math.copysign(fit(d, tiny * significand(d, bits), INPUT), a[j])
        b[j] = fit(d, tiny * significand(d, bits), INPUT)
    if kind == 3:
        edge = quantum - integer_between(d, -1, 4)
        for h in range(k):
            if h == j or chance(d, 0.1):
                x, b[h] = factors(d, edge, significand(d, bits), significand(d, bits))
                a[h] = math.copysign(x, a[h])
    if kind >= 4:
        # c anywhere below the smallest normal running sum, of the zeros' sign mostly: what becomes of it is all that
        # shows.
        least = min(smallest_exponent(d), d[OUTPUT + MINEXP])
        c = math.copysign(accumulator(d, quantum + np.int64(uniform(d) * (least - quantum + 2))), c)
    if kind == 6:  # a term that all of c is lost beside, unless it was rounded before
        x, b[j] = term(d, center(d), 0.5)
        a[j] = math.copysign(x, -c) if chance(d, 0.8) else x
    return c


@device
def _random(d, a, b):
    """Random significands, exponents within a window of random width."""
    keep_apart()
    top, width = center(d), integer_between(d, 0, 30)
    for j in range(a.size):
        a[j], b[j] = term(d, top - integer_between(d, 0, width), 0.0)
    sow_zeros(d, a, 0.1)
    return 0.0 if chance(d, 0.2) else accumulator(d, top - integer_between(d, -2, 26))


@device
def _few(d, a, b):
    """One to three terms, anywhere in the vector, with c: what a short vector shows, at every place."""
    keep_apart()
    top, count = raised(d, center(d)), integer_between(d, 1, 3)
    for j in range(a.size):
        a[j], b[j] = term(d, top - (integer_between(d, 0, 3) if chance(d, 0.5) else kept_bits(d)), 0.0)
        if j >= count:
            a[j] = 0.0
    shuffle(d, a, b)
    if chance(d, 0.4):
        return accumulator(d, top - integer_between(d, -1, 2))
    if chance(d, 0.2):
        return 0.0
    return accumulator(d, top + (kept_bits(d) if chance(d, 0.4) else -kept_bits(d)))


@device
def _order(d, a, b):
    """M at one place, -M at another (or in c), small terms elsewhere: which survive tells what was added when."""
    keep_apart()
    c = _structure(d, a, b)
    return accumulator(d, center(d)) if chance(d, 0.1) else c


@device
def _structure(d, a, b):
    """M, -M and units, as far apart as the formats allow."""
    keep_apart()
    k = a.size
    big = min(2 * d[HIGH], d[OUTPUT + MAXEXP] - 2 - d[PLAIN])
    small = max(2 * d[LOW], d[OUTPUT + MINEXP], big - 100) + integer_between(d, 0, 1)
    which = integer_between(d, 0, 2)
    share = 0.0 if which == 0 else 0.5 if which == 1 else 1.0 - 2.0 / k  # of zeros
    mixed, sign = chance(d, 0.3), -1.0 if chance(d, 0.3) else 1.0
    for j in range(k):
        x, b[j] = factors(d, small, 1.0, 1.0)
        a[j] = 0.0 * sign if chance(d, share) else (random_sign(d) if mixed else sign) * x
    i, j = integer_between(d, 0, k - 1), integer_between(d, 0, k - 1)
    x, y = factors(d, big, 1.0, 1.0)
    a[j], b[j] = -sign * x, y
    a[i], b[i] = sign * x, y
    return -sign * power_of_two(big) if i == j else 0.0 * sign


@device
def _ends(d, kind, a, b):
    """Products that are zeros, all but a few -0, and c = -0 or tiny, of eight kinds."""
    keep_apart()
    k, quantum = a.size, quantum_of(d, OUTPUT)
    for j in range(k):
        a[j] = 0.0 if kind == 1 or (2 <= kind <= 3 and chance(d, 0.5)) else -0.0
        b[j] = 1.0
    if kind >= 6:  # a term that underflows, first or last
        j = 0 if kind == 6 else k - 1
        x, b[j] = factors(d, quantum - integer_between(d, -1, 6), 1.0, 1.0)
        a[j] = -x
    if kind == 0 or kind == 2 or kind == 7:
        return -0.0
    return -power_of_two(quantum + np.int64(uniform(d) ** 2 * (d[OUTPUT + FRACTION] + 2)))


@kernel("void(int64, int64[::1], float64[:,::1], float64[:,::1], float64[::1])")
def draw(which, words, a, b, c):
    """Rows of a and b (n, k) and entries of c (n) of one class, by its place in `vectors.CLASSES`, or of `structure` or
    `ends`, which come next.
    """
    d = pointer(words, 0)
    for i in range(c.size):
        x, y = a[i], b[i]
        if which == 0:
            c[i] = _cut(d, x, y)
        elif which == 1:
            c[i] = _alone(d, x, y)
        elif which == 2:
            c[i] = _round(d, x, y)
        elif which == 3:
            c[i] = _sticky(d, x, y)
        elif which == 4:
            c[i] = _carry(d, x, y)
        elif which == 5:
            c[i] = _subnormal(d, x, y)
        elif which == 6:
            c[i] = _floor(d, x, y)
        elif which == 7:
            c[i] = _least(d, x, y)
        elif which == 8:
            c[i] = _special(d, x, y)
        elif which == 9:
            c[i] = _zero(d, x, y)
        elif which == 10:
            c[i] = _random(d, x, y)
        elif which == 11:
            c[i] = _few(d, x, y)
        elif which == 12:
            c[i] = _order(d, x, y)
        elif which == 13:
            c[i] = _structure(d, x, y)
        else:
            c[i] = _ends(d, i % 8, x, y)
