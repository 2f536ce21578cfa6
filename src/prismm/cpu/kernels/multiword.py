"""Cut elements into words of a short floating-point format: w_1 = round(x), w_2 = round(x - w_1), …

Rounding works on the bits of float64: add half an ulp of the format (less one, plus the kept last bit: ties to even),
or nothing (toward zero), and mask. Below the format's normal range adding and subtracting 1.5·2^52·η rounds to
multiples of η. Every x - w is exact: both are multiples of x's last bit, and it is no longer than x.

Per element and word about twelve operations on registers and one write: bound by writing the words.
"""

import numpy as np

from prismm.core.jit import counting, device, kernel


@device
def _round(r, w, drop, toward_zero, smallest_normal, smallest_subnormal):
    """w = round(r) in the format, element by element; both vectors of float64."""
    bits = r.view(np.int64)
    target = w.view(np.int64)
    one = np.int64(1)
    half = np.int64(0) if toward_zero else (one << (drop - 1)) - one
    odd = np.int64(0) if toward_zero else one
    keep = ~((one << drop) - one)
    for j in range(r.size):
        b = bits[j]
        target[j] = (b + half + ((b >> drop) & odd)) & keep
    magic = 1.5 * 2.0**52 * smallest_subnormal
    for j in range(r.size):
        x = r[j]
        t = (x + magic) - magic
        if toward_zero:
            # Rounding to nearest may have gone away from zero, by one unit.
            t = t - np.copysign(smallest_subnormal, x) if abs(t) > abs(x) else t
        w[j] = t if abs(x) < smallest_normal else w[j]


@device
def _excess(r, factor, size, excess, left, i, word):
    """excess = max(excess, |r| - factor·size), per row (left) or column: what `factor` does not explain."""
    worst = 0.0
    for j in range(r.size):
        x = max(abs(r[j]) - factor * size[j], 0.0)
        if left:
            worst = max(worst, x)
        else:
            excess[word, j] = max(excess[word, j], x)
    if left:
        excess[word, i] = worst


def _split(x, start, stop, scale, drop, toward_zero, smallest_normal, smallest_subnormal, factors, left, out, excess,
           present):  # fmt: skip
    """out[w] = words of scale·x for rows `start` to `stop`; scale is a power of two that keeps x exact.

    factors (words + 1): |word| <= factor·|x|, and of what is left, away from underflow. excess (words + 1, vectors):
    by how much that fails, per row (left) or column (raised to it). present (words + 1): set where some word, or some
    rest, is not zero.
    """
    n = x.shape[1]
    words = out.shape[0]
    r = np.empty(n)
    w = np.empty(n)
    size = np.empty(n)
    for i in range(start, stop):
        for j in range(n):
            r[j] = x[i, j] * scale
            # Kept, as every word and rest is measured against the element itself.
            size[j] = abs(r[j])
        for word in range(words):
            _round(r, w, drop, toward_zero, smallest_normal, smallest_subnormal)
            any_word = False
            for j in range(n):
                any_word |= w[j] != 0.0
                out[word, i, j] = w[j]
                r[j] -= w[j]
            if any_word:
                present[word] = 1
            _excess(w, factors[word], size, excess, left, i, word)
        any_rest = False
        for j in range(n):
            any_rest |= r[j] != 0.0
        if any_rest:
            present[words] = 1
        _excess(r, factors[words], size, excess, left, i, words)


_ARGUMENTS = (
    "float64[:,::1], int64, int64, float64, int64, boolean, float64, float64, float64[::1], boolean, {}[:,:,::1], "
    "float64[:,::1], uint8[::1]"
)


@kernel(f"void({_ARGUMENTS.format('float32')})")
def split_float32(x, start, stop, scale, drop, toward_zero, smallest_normal, smallest_subnormal, factors, left, out,
                  excess, present):  # fmt: skip
    """`_split` into float32."""
    _split_device(x, start, stop, scale, drop, toward_zero, smallest_normal, smallest_subnormal, factors, left, out,
                  excess, present)  # fmt: skip


@kernel(f"void({_ARGUMENTS.format('float64')})")
def split_float64(x, start, stop, scale, drop, toward_zero, smallest_normal, smallest_subnormal, factors, left, out,
                  excess, present):  # fmt: skip
    """`_split` into float64."""
    _split_device(x, start, stop, scale, drop, toward_zero, smallest_normal, smallest_subnormal, factors, left, out,
                  excess, present)  # fmt: skip


_split_device = counting(_split)


@kernel("void(float64[:,::1], float64[:,::1], int64, float64, float64)")
def add_rounded(total, value, drop, smallest_normal, smallest_subnormal):
    """total = RN(total + value) in a format whose values both are, and whose sums float64 holds exactly."""
    n = total.shape[1]
    sums = np.empty(n)
    for i in range(total.shape[0]):
        for j in range(n):
            sums[j] = total[i, j] + value[i, j]
        _round(sums, total[i], drop, False, smallest_normal, smallest_subnormal)
