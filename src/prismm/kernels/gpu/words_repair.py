"""Repair of products of words: marked entries, one by one, set to their exact values on the device.

An entry whose row or column is not finite is what IEEE's sum gives; one without any nonzero product is 0; all others are
summed exactly (`repair.exact_sums`) and rounded once. Programs walk over the words of marks, 32 entries each; a word
without marks costs four bytes. Per repaired entry 8·k bytes, and about 200·k operations where it is summed.
"""

import triton
import triton.language as tl

from prismm.kernels.gpu.numbers import LOW32, bits_of
from prismm.kernels.gpu.repair import LIMBS_OF_SUMS, exact_sums, round_sums

SPECIAL, EXACT, KEPT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(3)
"""Which of `counts` grows: as in `repair`."""


@triton.jit
def _look(a, a_step, b, b_step, k, SIGN: tl.constexpr, BLOCK: tl.constexpr):
    """Whether some term of SIGN·Σ a·b is NaN, +Inf, -Inf because a factor is Inf or NaN, and whether any is not 0."""
    lanes = tl.arange(0, BLOCK)
    nan = tl.zeros([BLOCK], tl.int32)
    up = tl.zeros([BLOCK], tl.int32)
    down = tl.zeros([BLOCK], tl.int32)
    hit = tl.zeros([BLOCK], tl.int32)
    for h0 in range(0, k, BLOCK):
        h = (h0 + lanes).to(tl.int64)
        x = tl.load(a + h * a_step, mask=h < k, other=0.0)
        y = tl.load(b + h * b_step, mask=h < k, other=0.0)
        infinite = (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf"))
        zero = (x == 0.0) | (y == 0.0)
        bad = (x != x) | (y != y) | (infinite & zero)
        minus = ((x < 0.0) != (y < 0.0)) == (SIGN > 0)
        nan |= bad.to(tl.int32)
        up |= (infinite & ~bad & ~minus).to(tl.int32)
        down |= (infinite & ~bad & minus).to(tl.int32)
        hit |= (~zero).to(tl.int32)
    return tl.max(nan, 0), tl.max(up, 0), tl.max(down, 0), tl.max(hit, 0)


@triton.jit
def _settle(
    a, a_step, b, b_step, target, counts, k, PARTS: tl.constexpr, IMAGINARY: tl.constexpr, RAW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # Re = Re·Re - Im·Im, Im = Re·Im + Im·Re.
    SIGN: tl.constexpr = 1 if IMAGINARY else -1
    first = b + (1 if IMAGINARY else 0)
    second = b + (0 if IMAGINARY else 1)
    nan, up, down, hit = _look(a, a_step, first, b_step, k, 1, BLOCK)
    if PARTS == 2:
        nan2, up2, down2, hit2 = _look(a + 1, a_step, second, b_step, k, SIGN, BLOCK)
        nan, up, down, hit = nan | nan2, up | up2, down | down2, hit | hit2
    value = tl.where(up > 0, float("inf"), tl.where(down > 0, float("-inf"), 0.0)).to(tl.float64)
    value = tl.where((nan > 0) | ((up > 0) & (down > 0)), float("nan"), value)
    road = tl.full([], SPECIAL, tl.int32)
    if value == 0.0:
        road = tl.full([], EXACT, tl.int32)
        if hit > 0:
            sums = tl.zeros([LIMBS_OF_SUMS], tl.int64)
            low = tl.full([], LIMBS_OF_SUMS, tl.int64)
            high = tl.full([], 0, tl.int64)
            sums, low, high = exact_sums(sums, low, high, a, a_step, first, b_step, k, 1, BLOCK)
            if PARTS == 2:
                sums, low, high = exact_sums(sums, low, high, a + 1, a_step, second, b_step, k, SIGN, BLOCK)
            value = round_sums(sums, low, high, 24)
        if RAW:
            # Law 4: the scheme's own value, unless the exact one disagrees about infinity.
            own = tl.load(target).to(tl.float64)
            infinite = tl.abs(value) == float("inf")
            if (own == own) & (infinite == (tl.abs(own) == float("inf"))) & (~infinite | (own == value)):
                value = own
                road = tl.full([], KEPT, tl.int32)
    tl.store(target, value.to(tl.float32))
    tl.atomic_add(counts + road, 1, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "a_row", "a_step", "a_batch", "b_column", "b_step", "b_batch", "row_stride", "batch_stride", "m", "k",
        "mark_pitch", "words",
    ]
)  # fmt: skip
def repair_words(
    a, a_row, a_step, a_batch, b, b_column, b_step, b_batch, out, row_stride, batch_stride, marks, counts, m, k,
    mark_pitch, words, PARTS: tl.constexpr, RAW: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Settle the marked entries of out (batch·m, real columns); counts[SPECIAL], [EXACT], [KEPT] grow by what was done.

    a, b, out and their strides: in real numbers, imaginary parts (PARTS is 2) one after the real ones.
    """
    lanes = tl.arange(0, WORDS)
    for start in range(tl.program_id(0) * WORDS, words, tl.num_programs(0) * WORDS):
        some = tl.load(marks + start + lanes, mask=start + lanes < words, other=0)
        if tl.max((some != 0).to(tl.int32), 0) > 0:
            for w in range(start, tl.minimum(start + WORDS, words)):
                word = tl.load(marks + w).to(tl.int64) & LOW32
                row = w // mark_pitch
                batch = (row // m).to(tl.int64)
                i = (row % m).to(tl.int64)
                x = a + batch * a_batch + i * a_row
                while word != 0:
                    lowest = word & -word
                    word = word ^ lowest
                    j = (w % mark_pitch) * 32 + (bits_of(lowest.to(tl.float64)) >> 52) - 1023
                    target = out + batch * batch_stride + i * row_stride + j
                    y = b + batch * b_batch + j // PARTS * b_column
                    if PARTS == 1:
                        _settle(x, a_step, y, b_step, target, counts, k, 1, False, RAW, BLOCK)
                    elif j % 2 == 0:
                        _settle(x, a_step, y, b_step, target, counts, k, 2, False, RAW, BLOCK)
                    else:
                        _settle(x, a_step, y, b_step, target, counts, k, 2, True, RAW, BLOCK)
