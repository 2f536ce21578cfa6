"""Hostile inputs of dot products, row by row: `numerics.vectors` says what for.

Each class is a function that fills one row of a and b and returns its c. `d` is the draw under way, as words: what the
inputs are aimed at (the constants below say where), and the state of a SplitMix64 generator (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", 2014), which the caller draws: equal words give equal rows.

Per element a term takes 5 to 15 random words, two roundings to the input's format and a swap, and writes 16 bytes:
40 ns on average (Zen 4, one core, bf16), most of it branches that cannot be foreseen. Arithmetic bounds it, not memory.
"""

import math

import numpy as np

from prismm.core.jit import bits_of, device, float_of, kernel, power_of_two
from prismm.core.limbs import keep_apart
from prismm.core.pointers import pointer

FRACTION, MINEXP, MAXEXP, LARGEST, HAS_INFINITY, HAS_NAN = range(6)
"""Words of a format, from `INPUT` and from `OUTPUT` on; LARGEST is the bit pattern of its largest value."""

STATE, INPUT, OUTPUT = 0, 1, 7
LOW, HIGH, PLAIN = 13, 14, 15
"""The exponents that factors may have, and whether to keep away from the ends of the formats' ranges."""

KEPT, PRECISION, ZERO_EXPONENT, SMALLEST = 16, 17, 18, 19
"""Words d[g] up to, not including, d[g + 1] are the guesses g in ascending order; none where unknown."""


@device
def _word(d):
    """64 random bits; in unsigned words, as compiled sums of signed ones must not overflow."""
    z = np.uint64(d[STATE]) + np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
    d[STATE] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@device
def _uniform(d):
    """In [0, 1)."""
    return np.float64(np.int64(_word(d) >> np.uint64(11))) * 2.0**-53


@device
def _integers(d, low, high):
    """Uniform in [low, high], both included; low where the range is empty."""
    return low + np.int64(_uniform(d) * (max(low, high) + 1 - low))


@device
def _some(d, share):
    return _uniform(d) < share


@device
def _sign(d):
    return -1.0 if np.int64(_word(d)) < 0 else 1.0


@device
def _pick(d, guesses, low, high):
    """One of the guesses, or anything in [low, high]."""
    if d[guesses] == d[guesses + 1]:
        return _integers(d, low, high)
    return d[_integers(d, d[guesses], d[guesses + 1] - 1)]


@device
def _kept(d):
    keep_apart()
    return _pick(d, KEPT, 1, 48) + _integers(d, -2, 3)


@device
def _precision(d):
    keep_apart()
    return _pick(d, PRECISION, d[OUTPUT + FRACTION], d[OUTPUT + FRACTION])


@device
def _smallest(d):
    keep_apart()
    return _pick(d, SMALLEST, d[OUTPUT + MINEXP], d[OUTPUT + MINEXP])


@device
def _quantum(d, format):
    """The exponent of a format's smallest subnormal."""
    return d[format + MINEXP] - d[format + FRACTION]


@device
def _significand(d, bits):
    """In [1, 2), with so many bits after the point: random, all ones, one, or one with its last bit set."""
    word = np.int64(_word(d) >> np.uint64(1))
    kind, most = word >> 60, (np.int64(1) << bits) - 1
    units = 0 if kind < 2 else most if kind == 2 else 1 if kind == 3 else word & most
    return 1.0 + np.float64(units) * power_of_two(-bits)


@device
def _some_one(d, share):
    """A significand of the input: 1 for that share of them."""
    return 1.0 if _some(d, share) else _significand(d, d[INPUT + FRACTION])


@device
def _fit(d, x, format):
    """Toward zero to a value of the format; its largest where it is too large."""
    size, largest = abs(x), float_of(d[format + LARGEST])
    size = largest if size > largest else size
    if size < power_of_two(d[format + MINEXP]):
        quantum = power_of_two(_quantum(d, format))
        return math.copysign(np.floor(size / quantum) * quantum, x)
    return math.copysign(float_of(bits_of(size) & -(np.int64(1) << (52 - d[format + FRACTION]))), x)


@device
def _operands(d, exponent, sa, sb):
    """Factors with significands sa, sb whose exponents add up to `exponent` as nearly as the format allows."""
    keep_apart()
    low, high = d[LOW], d[HIGH]
    if d[PLAIN]:
        exponent = max(exponent, d[OUTPUT + MINEXP])
    ea = min(max((exponent >> 1) + _integers(d, -3, 3), low), high)
    eb = min(max(exponent - ea, low), high)
    ea = min(max(exponent - eb, low), high)
    return _fit(d, sa * power_of_two(ea), INPUT), _fit(d, sb * power_of_two(eb), INPUT)


@device
def _term(d, exponent, share):
    """Factors of either sign; each significand is 1 for that share of them."""
    keep_apart()
    x, y = _operands(d, exponent, _some_one(d, share), _some_one(d, share))
    return x * _sign(d), y


@device
def _accumulator(d, exponent):
    """A value of the output at this exponent, of either sign; zero where it is far below its range."""
    keep_apart()
    x = _significand(d, d[OUTPUT + FRACTION]) * power_of_two(max(min(exponent, d[OUTPUT + MAXEXP] - 1), -1074))
    return _fit(d, _sign(d) * x, OUTPUT)


@device
def _center(d):
    """An exponent for the largest term: products and output have it."""
    keep_apart()
    low = max(2 * d[LOW], d[OUTPUT + MINEXP])
    high = min(2 * d[HIGH], d[OUTPUT + MAXEXP] - 8)
    if d[PLAIN]:
        return _integers(d, max(low, min(high, 8) - 6), min(high, 8))
    if _some(d, 0.5):
        return _integers(d, max(low, -4), min(high, 4))
    return _integers(d, low, high)


@device
def _raised(d, top):
    """The exponent of a largest term, half of the time so high that what is cut off beside it is a product: few are,
    where inputs have a narrow range.
    """
    keep_apart()
    least = 2 * d[LOW] + _kept(d)
    if top < least and not d[PLAIN] and _some(d, 0.5):
        return min(least + _integers(d, 0, 2), 2 * d[HIGH])
    return top


@device
def _sum(a, b):
    """About the sum of the products."""
    total = 0.0
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@device
def _shuffle(d, a, b):
    keep_apart()
    for j in range(a.size - 1, 0, -1):
        i = _integers(d, 0, j)
        a[i], a[j] = a[j], a[i]
        b[i], b[j] = b[j], b[i]


@device
def _turn(d, a, b):
    """Some with the last term first, the others shuffled."""
    if _some(d, 0.3):
        for j in range(a.size // 2):
            i = a.size - 1 - j
            a[i], a[j] = a[j], a[i]
            b[i], b[j] = b[j], b[i]
    else:
        _shuffle(d, a, b)


@device
def _zeros(d, a, share):
    """Zeros of either sign in place of that share of a."""
    keep_apart()
    for j in range(a.size):
        if _some(d, share):
            a[j] = 0.0 * _sign(d)


@device
def _cut(d, a, b):
    """Few large terms, many at the edge of what alignment keeps; half with a pair that cancels the large ones."""
    keep_apart()
    k = a.size
    top = _raised(d, _center(d))
    if not d[PLAIN] and _some(d, 0.15):  # beyond the output's range, where terms take each other back
        top = _integers(d, d[OUTPUT + MINEXP], 2 * d[HIGH])
    edge = top - _integers(d, 0, 1)
    ones = 1.0 if _some(d, 0.5) else 0.0
    pair = k >= 2 and _some(d, 0.6)
    alone = pair and _some(d, 0.5)
    for j in range(k):
        large = j == 0 or _some(d, 0.15)
        e = top - _integers(d, 0, 1) if large else edge - _kept(d)
        a[j], b[j] = _term(d, e, ones)
        if j >= 2 and large and alone:
            a[j] = 0.0
    if pair:
        a[1], b[1] = -a[0], b[0]
    c = 0.0
    if _some(d, 0.3):
        c = _fit(d, -_sum(a, b), OUTPUT)
    elif not _some(d, 0.3):
        c = _accumulator(d, top - (_kept(d) if _some(d, 0.5) else _integers(d, -1, 1)))
    _zeros(d, a, 0.1)
    _shuffle(d, a, b)
    return c


@device
def _alone(d, a, b):
    """Products that take each other back, the largest ones or any, beside c at the edge of what is kept of it, or
    anywhere below: where inputs have a narrow range, nothing else is small enough to be cut off.
    """
    keep_apart()
    pairs = a.size // 2
    top = _center(d)
    if _some(d, 0.5):
        top = min(2 * d[HIGH] + 1, d[OUTPUT + MAXEXP] - 8)
    few = _some(d, 0.6)
    for j in range(a.size):
        a[j], b[j] = _term(d, top, 0.0)
        if j >= 2 * pairs or (few and _some(d, 0.8)):
            a[j] = 0.0
    for j in range(pairs):
        a[pairs + j], b[pairs + j] = -a[j], b[j]
    least = d[OUTPUT + MINEXP] if d[PLAIN] else _quantum(d, OUTPUT)
    at = top - _kept(d) if _some(d, 0.5) else _integers(d, least, top - 1)
    _shuffle(d, a, b)
    return _accumulator(d, max(at, least))


@device
def _round(d, a, b):
    """Sums whose last bits stand at the rounding of the running sum: ties, just above, just below, tiny remainders."""
    keep_apart()
    top, p = _center(d), _precision(d)
    first = _some(d, 0.5)
    few = _some(d, 0.5)
    for j in range(a.size):
        e = top - _kept(d) if _some(d, 0.2) else top - p - _integers(d, -2, 3)
        a[j], b[j] = _term(d, top if first and j == 0 else e, 1.0 if _some(d, 0.6) else 0.0)
        if j >= 1 and few and _some(d, 0.7):
            a[j] = 0.0
    _shuffle(d, a, b)
    if first and _some(d, 0.3):
        return _accumulator(d, top - _kept(d))
    if first and _some(d, 0.3):
        return 0.0
    return _accumulator(d, top - p - _integers(d, -2, 3) if first and _some(d, 0.5) else top)


@device
def _sticky(d, a, b):
    """A sum at a value of the output, or half way between two, and one term anywhere below, or three, however small."""
    keep_apart()
    k = a.size
    high = min(2 * d[HIGH], d[OUTPUT + MAXEXP] - 2)
    top = _center(d)
    if _some(d, 0.5):
        top = _integers(d, max(2 * d[LOW], d[OUTPUT + MINEXP], high - 8), high)
    p = _precision(d)
    lowest = max(2 * d[LOW], d[OUTPUT + MINEXP] - 64)
    below = top - _kept(d) if _some(d, 0.5) else _integers(d, lowest, lowest + 64)
    below = min(max(below, lowest), top)
    first = _some(d, 0.6)  # in c, or a product
    if first and _some(d, 0.3):  # c far above every product, where inputs have a narrow range
        below = _integers(d, lowest, high)
        top = min(below + _kept(d), d[OUTPUT + MAXEXP] - 2)
    half = _some(d, 0.6)
    more = _some(d, 0.4)
    skipped = max(3 - k, 0)
    for j in range(k):
        a[j], b[j] = 0.0, 1.0
    for j in range(skipped, min(skipped + k, 5)):
        e = top if j == 0 else top - p - 1 if j == 1 else below
        if j >= 3:
            e = max(below + _integers(d, -1, 1), lowest)
        x, y = _term(d, e, 1.0 if _some(d, 0.7) else 0.0)
        wanted = not first if j == 0 else half if j == 1 else j == 2 or more
        a[j - skipped], b[j - skipped] = x if wanted else 0.0, y
    # In any order; or the smallest first, so that sums which are rounded one after another keep it.
    _turn(d, a, b)
    return _accumulator(d, top) if first else 0.0


@device
def _carry(d, a, b):
    """All terms large and alike, so that their sum needs every bit above the leading ones."""
    keep_apart()
    k = a.size
    top = min(_center(d), d[OUTPUT + MAXEXP] - 12)
    most = 2.0 - power_of_two(-d[INPUT + FRACTION])
    alike, mixed = _some(d, 0.7), _some(d, 0.3)
    sb, sign = most if _some(d, 0.8) else 1.0, _sign(d)
    # All of them, or a run of them anywhere, so that a later block can be the large one.
    count = k if _some(d, 0.5) else _integers(d, 1, k)
    start = 0 if _some(d, 0.5) else _integers(d, 0, k - 1)
    for j in range(k):
        a[j], b[j] = _operands(d, top, most if alike else _some_one(d, 0.0), sb)
        a[j] = (_sign(d) if mixed else sign) * a[j] if start <= j < start + count else 0.0
    if k > 2 and _some(d, 0.3):  # and the smallest term that there is, which a sum that has grown cuts off
        x, y = _operands(d, 2 * d[LOW] + _integers(d, 0, 6), most if alike else _some_one(d, 0.0), 1.0)
        j = _integers(d, 0, k - 1)
        a[j], b[j] = x * _sign(d), y
    c = 0.0 if _some(d, 0.3) else _accumulator(d, top + _integers(d, -1, 3))
    return math.copysign(c, sign) if _some(d, 0.6) else c


@device
def _subnormal(d, a, b):
    """Subnormal inputs against large ones, results and accumulators around the output's smallest normal value."""
    keep_apart()
    bits, out_bits = d[INPUT + FRACTION], d[OUTPUT + FRACTION]
    least = _smallest(d)
    few = _some(d, 0.6)
    for j in range(a.size):
        if _some(d, 0.5):
            units = _integers(d, 1, (np.int64(1) << bits) - 1)
            units >>= _integers(d, 0, bits - 1) if _some(d, 0.5) else 0
            x = _fit(d, max(units, 1) * power_of_two(d[LOW]), INPUT)
            e = _integers(d, d[INPUT + MINEXP], d[HIGH])
            y = _fit(d, _significand(d, bits) * power_of_two(e), INPUT)
        else:
            e = least - _integers(d, -2, out_bits + 2)
            x, y = _operands(d, e, _significand(d, bits), _significand(d, bits))
        if _some(d, 0.5):
            x, y = y, x
        a[j], b[j] = 0.0 if few and _some(d, 0.7) else x * _sign(d), y
    if _some(d, 0.25):
        return 0.0
    total = _sum(a, b)
    if _some(d, 0.2):
        binade = math.frexp(total)[1] if np.isfinite(total) else 1
        return _accumulator(d, binade - _integers(d, 0, 60))
    if _some(d, 0.3):
        return _fit(d, -total, OUTPUT)
    return _accumulator(d, least - _integers(d, -2, out_bits))


@device
def _floor(d, a, b):
    """c = 0 and products about the exponent that zeros take; the smallest running sum or half of it, which what is cut
    off moves, or pairs that cancel.
    """
    keep_apart()
    k = a.size
    smallest, p = _smallest(d), _precision(d)
    longest = p if d[PRECISION] == d[PRECISION + 1] else d[d[PRECISION + 1] - 1]
    guess = _pick(d, ZERO_EXPONENT, smallest - longest - 8, smallest)
    base = max(guess, 2 * d[LOW]) + _integers(d, -6, 2)
    few = _some(d, 0.7)
    for j in range(k):
        e = base - (_integers(d, 0, 8) if _some(d, 0.3) else _kept(d))
        a[j], b[j] = _term(d, e, 1.0 if _some(d, 0.7) else 0.0)
        if j >= 2 and few:
            a[j] = 0.0
    if _some(d, 0.5):
        a[0], b[0] = _operands(d, smallest - p - _integers(d, 0, 1), 1.0, 1.0)
    if k >= 2 and _some(d, 0.25):  # what is cut off to the floor does not cancel
        a[1], b[1] = -a[0], b[0]
    # Anywhere, or all of them in the last block.
    _turn(d, a, b)
    return _accumulator(d, base) if _some(d, 0.15) else 0.0 * _sign(d)


@device
def _least(d, a, b):
    """One term among the smallest running sums, or one that another takes back, and one about where it would be cut
    off if zeros had an exponent: any bit of it moves what is rounded to one side.
    """
    keep_apart()
    k = a.size
    smallest, p = _smallest(d), _precision(d)
    kept = _pick(d, KEPT, 1, 48)
    first = _integers(d, smallest - p - 1, smallest + 1)
    back = k > 2 and _some(d, 0.25)
    if back and _some(d, 0.5):  # is cut off itself
        first += _integers(d, -2, 10) - kept
    first = max(first, 2 * d[LOW] + (_integers(d, 0, 40) if _some(d, 0.5) else 0))
    for j in range(k):
        a[j], b[j] = 0.0 * _sign(d), 1.0
    place = _integers(d, 0, k - 1)
    other = (place + (_integers(d, 0, k - 1) if _some(d, 0.3) else 1)) % k
    x, y = _operands(d, first, _some_one(d, 0.8), _some_one(d, 0.9))
    x *= _sign(d)
    if back:
        a[(place + 2) % k], b[(place + 2) % k] = -x, y
    second = first - kept + _integers(d, -2, 14)
    v, w = _operands(d, second, _some_one(d, 0.8), _some_one(d, 0.9))
    a[other], b[other] = v * _sign(d), w
    a[place], b[place] = x, y
    return _accumulator(d, first) if _some(d, 0.1) else 0.0 * _sign(d)


@device
def _special(d, a, b):
    """Infinities, NaN, signed zeros, and sums at the end of the range."""
    keep_apart()
    c = _random(d, a, b)
    if d[OUTPUT + HAS_NAN] and _some(d, 0.02):
        c = np.nan
    if d[OUTPUT + HAS_INFINITY] and _some(d, 0.05):
        c = math.copysign(np.inf, c)
    zero = _some(d, 0.3)
    nan = d[INPUT + HAS_NAN] and _some(d, 0.3)
    end = not zero and _some(d, 0.4)
    for j in range(a.size):
        which = _integers(d, 0, 40)
        if d[INPUT + HAS_INFINITY] and which == 0:
            a[j] = math.copysign(np.inf, a[j])
        if d[INPUT + HAS_INFINITY] and which == 1:
            b[j] = math.copysign(np.inf, b[j])
        if nan and which == 2:
            a[j] = np.nan
        if zero or which == 3 or which == 4:
            a[j] = math.copysign(0.0, a[j])
        if end:
            a[j], b[j] = _term(d, d[OUTPUT + MAXEXP] - 1 - _integers(d, 0, 2), 0.0)
            if _some(d, 0.5):
                a[j] = 0.0
    if zero and _some(d, 0.8):
        c = 0.0 * _sign(d)
    if end and _some(d, 0.8):
        c = _accumulator(d, d[OUTPUT + MAXEXP] - 1)
    if end and _some(d, 0.2):
        c = math.copysign(float_of(d[OUTPUT + LARGEST]), c)
    return c


@device
def _zero(d, a, b):
    """Sums of zeros, most of them of one sign; of terms that cancel; of terms too small for the output."""
    keep_apart()
    k, bits, quantum = a.size, d[INPUT + FRACTION], _quantum(d, OUTPUT)
    sign, alike = _sign(d), _some(d, 0.8)
    for j in range(k):
        a[j], b[j] = 0.0 * (sign if alike else _sign(d)), 1.0
    c = a[0] if _some(d, 0.8) else -a[0]
    kind = _integers(d, 0, 6)
    j = _integers(d, 0, k - 1)
    if kind == 1:  # one term that c takes back
        x, b[j] = _operands(d, _center(d), 1.0, 1.0)
        a[j] = math.copysign(x, a[j])
        return _fit(d, -a[j] * b[j], OUTPUT)
    if kind == 2:
        tiny = power_of_two(d[LOW] if _some(d, 0.5) else d[INPUT + MINEXP])
        a[j] = math.copysign(_fit(d, tiny * _significand(d, bits), INPUT), a[j])
        b[j] = _fit(d, tiny * _significand(d, bits), INPUT)
    if kind == 3:
        edge = quantum - _integers(d, -1, 4)
        for h in range(k):
            if h == j or _some(d, 0.1):
                x, b[h] = _operands(d, edge, _significand(d, bits), _significand(d, bits))
                a[h] = math.copysign(x, a[h])
    if kind >= 4:
        # c anywhere below the smallest normal running sum, of the zeros' sign mostly: what becomes of it is all that
        # shows.
        least = min(_smallest(d), d[OUTPUT + MINEXP])
        c = math.copysign(_accumulator(d, quantum + np.int64(_uniform(d) * (least - quantum + 2))), c)
    if kind == 6:  # a term that all of c is lost beside, unless it was rounded before
        x, b[j] = _term(d, _center(d), 0.5)
        a[j] = math.copysign(x, -c) if _some(d, 0.8) else x
    return c


@device
def _random(d, a, b):
    """Random significands, exponents within a window of random width."""
    keep_apart()
    top, width = _center(d), _integers(d, 0, 30)
    for j in range(a.size):
        a[j], b[j] = _term(d, top - _integers(d, 0, width), 0.0)
    _zeros(d, a, 0.1)
    return 0.0 if _some(d, 0.2) else _accumulator(d, top - _integers(d, -2, 26))


@device
def _few(d, a, b):
    """One to three terms, anywhere in the vector, with c: what a short vector shows, at every place."""
    keep_apart()
    top, count = _raised(d, _center(d)), _integers(d, 1, 3)
    for j in range(a.size):
        a[j], b[j] = _term(d, top - (_integers(d, 0, 3) if _some(d, 0.5) else _kept(d)), 0.0)
        if j >= count:
            a[j] = 0.0
    _shuffle(d, a, b)
    if _some(d, 0.4):
        return _accumulator(d, top - _integers(d, -1, 2))
    if _some(d, 0.2):
        return 0.0
    return _accumulator(d, top + (_kept(d) if _some(d, 0.4) else -_kept(d)))


@device
def _order(d, a, b):
    """M at one place, -M at another (or in c), small terms elsewhere: which survive tells what was added when."""
    keep_apart()
    c = _structure(d, a, b)
    return _accumulator(d, _center(d)) if _some(d, 0.1) else c


@device
def _structure(d, a, b):
    """M, -M and units, as far apart as the formats allow."""
    keep_apart()
    k = a.size
    big = min(2 * d[HIGH], d[OUTPUT + MAXEXP] - 2 - d[PLAIN])
    small = max(2 * d[LOW], d[OUTPUT + MINEXP], big - 100) + _integers(d, 0, 1)
    which = _integers(d, 0, 2)
    share = 0.0 if which == 0 else 0.5 if which == 1 else 1.0 - 2.0 / k  # of zeros
    mixed, sign = _some(d, 0.3), -1.0 if _some(d, 0.3) else 1.0
    for j in range(k):
        x, b[j] = _operands(d, small, 1.0, 1.0)
        a[j] = 0.0 * sign if _some(d, share) else (_sign(d) if mixed else sign) * x
    i, j = _integers(d, 0, k - 1), _integers(d, 0, k - 1)
    x, y = _operands(d, big, 1.0, 1.0)
    a[j], b[j] = -sign * x, y
    a[i], b[i] = sign * x, y
    return -sign * power_of_two(big) if i == j else 0.0 * sign


@device
def _ends(d, kind, a, b):
    """Products that are zeros, all but a few -0, and c = -0 or tiny, of eight kinds."""
    keep_apart()
    k, quantum = a.size, _quantum(d, OUTPUT)
    for j in range(k):
        a[j] = 0.0 if kind == 1 or (2 <= kind <= 3 and _some(d, 0.5)) else -0.0
        b[j] = 1.0
    if kind >= 6:  # a term that underflows, first or last
        j = 0 if kind == 6 else k - 1
        x, b[j] = _operands(d, quantum - _integers(d, -1, 6), 1.0, 1.0)
        a[j] = -x
    if kind == 0 or kind == 2 or kind == 7:
        return -0.0
    return -power_of_two(quantum + np.int64(_uniform(d) ** 2 * (d[OUTPUT + FRACTION] + 2)))


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
