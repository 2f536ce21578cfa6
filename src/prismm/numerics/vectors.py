"""Hostile inputs of dot products, aimed at the thresholds of a model: where alignment cuts, where sums round, wrap,
underflow, overflow, and where one block ends.

Every class below makes terms whose exponents lie just above, at and below one threshold, so that two models that differ
in it disagree on a fair share of them. What is not known yet (an `Aim` without it) is spread over its whole range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismm.formats import Format
from prismm.numerics.parts import LateJoin

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from prismm.numerics.model import EngineModel

    Array = NDArray[np.float64]
    Batch = tuple[Array, Array, Array]

__all__ = ["CLASSES", "Aim", "aim_at", "draw", "ends", "share", "structure"]


@dataclass(frozen=True)
class Aim:
    """What inputs are aimed at.

    Args:
        input, output: formats of the engine.
        kept: fraction bits that may survive alignment; () for unknown.
        precision: fraction bits of running sums that may be rounded to.
        zero_exponent: guesses; () for unknown.
        block: guesses of products per step; () for unknown.
        minexp: smallest normal exponents that running sums may have; () for the output's.
        plain: whether to keep away from the ends of the formats' ranges.
    """

    input: Format
    output: Format
    kept: tuple[int, ...] = ()
    precision: tuple[int, ...] = ()
    zero_exponent: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    minexp: tuple[int, ...] = ()
    plain: bool = False


def aim_at(*models: EngineModel) -> Aim:
    """At the thresholds of these models, of the same formats."""
    inputs, output = models[0].input, models[0].output
    assert isinstance(inputs, Format) and isinstance(output, Format)
    kept = {m.fraction_bits for m in models if m.fraction_bits is not None}
    for m in models:
        if isinstance(m.join, LateJoin):
            kept |= {m.join.sum_bits, m.join.accumulator_bits, m.join.total_bits}
    return Aim(
        inputs,
        output,
        tuple(sorted(kept)),
        tuple(sorted({m.sums.fraction_bits for m in models} | {output.fraction_bits})),
        tuple(sorted({m.zero_exponent for m in models if m.zero_exponent is not None})),
        tuple(sorted({m.block for m in models})),
        tuple(sorted({m.sums.minexp for m in models} | {output.minexp})),
    )


class _Draw:
    """One batch under way: n dot products of length k."""

    def __init__(self, aim: Aim, n: int, k: int, rng: np.random.Generator) -> None:
        import numpy as np

        self.np, self.aim, self.n, self.k, self.rng = np, aim, n, k, rng
        self.low = aim.input.minexp if aim.plain else aim.input.subnormal_exponent
        self.high = aim.input.maxexp - 1 - (aim.input.max < 2.0 ** (aim.input.maxexp - 1))

    def integers(self, low: int, high: int, *shape: int) -> NDArray[np.int64]:
        """Uniform in [low, high], both included; low where the range is empty."""
        # Faster than `rng.integers`.
        found: NDArray[np.int64] = (self.rng.random(shape or (self.n,)) * (max(low, high) + 1 - low)).astype(int)
        found += low
        return found

    def signs(self, *shape: int) -> Array:
        found: Array = self.np.where(self.rng.random(shape or (self.n,)) < 0.5, -1.0, 1.0)
        return found

    def some(self, share: float, *shape: int) -> NDArray[np.bool_]:
        return self.rng.random(shape or (self.n,)) < share

    def pick(self, values: tuple[int, ...], low: int, high: int, *shape: int) -> NDArray[np.int64]:
        """One of the guesses, or anything in [low, high]."""
        if not values:
            return self.integers(low, high, *shape)
        return self.np.asarray(values)[self.integers(0, len(values) - 1, *shape)]

    def significand(self, *shape: int, bits: int | None = None) -> Array:
        """In [1, 2), as long as the input has them: random, all ones, one, or one with its last bit set."""
        bits = self.aim.input.fraction_bits if bits is None else bits
        units = self.integers(0, (1 << bits) - 1, *shape)
        kind = self.integers(0, 7, *shape)
        units = self.np.where(kind < 2, 0, self.np.where(kind == 2, (1 << bits) - 1, units))
        units = self.np.where(kind == 3, 1, units)
        return 1.0 + units.astype(float) * 2.0**-bits

    def operands(self, exponent: NDArray[np.int64], sa: Array, sb: Array) -> tuple[Array, Array]:
        """Factors with significands sa, sb whose exponents add up to `exponent` as nearly as the format allows."""
        np = self.np
        if self.aim.plain:
            exponent = np.maximum(exponent, self.aim.output.minexp)
        skew = self.integers(-3, 3, *exponent.shape)
        ea = np.clip((exponent >> 1) + skew, self.low, self.high)
        eb = np.clip(exponent - ea, self.low, self.high)
        ea = np.clip(exponent - eb, self.low, self.high)
        return self.fit(np.ldexp(sa, ea)), self.fit(np.ldexp(sb, eb))

    def fit(self, x: Array, format: Format | None = None) -> Array:
        """Toward zero to a value of the format; its largest where it is too large."""
        np = self.np
        format = format or self.aim.input
        size = np.minimum(np.abs(x), format.max)
        cut = (size.view(np.int64) & -(1 << (52 - format.fraction_bits))).view(np.float64)
        quantum = format.smallest_subnormal
        below = size < 2.0**format.minexp
        if below.any():
            cut = np.where(below, np.trunc(size / quantum) * quantum, cut)
        found: Array = np.copysign(cut, x)
        return found

    def accumulator(self, exponent: NDArray[np.int64]) -> Array:
        """Values of the output at these exponents, of either sign; zero where they are far below its range."""
        np, out = self.np, self.aim.output
        e = np.minimum(exponent, out.maxexp - 1)
        x = self.significand(*e.shape, bits=out.fraction_bits)
        return self.fit(self.signs(*e.shape) * np.ldexp(x, np.maximum(e, -1074)), out)

    def center(self) -> NDArray[np.int64]:
        """An exponent for the largest term: products and output have it."""
        low = max(2 * self.low, self.aim.output.minexp)
        high = min(2 * self.high, self.aim.output.maxexp - 8)
        if self.aim.plain:
            return self.integers(max(low, min(high, 8) - 6), min(high, 8))
        narrow = self.integers(max(low, -4), min(high, 4))
        return self.np.where(self.some(0.5), narrow, self.integers(low, high))

    def shuffle(self, a: Array, b: Array) -> tuple[Array, Array]:
        order = self.np.argsort(self.rng.random(a.shape), axis=1)
        return self.np.take_along_axis(a, order, 1), self.np.take_along_axis(b, order, 1)

    def turned(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Some with the last term first, the others shuffled."""
        turn = self.some(0.3, self.n, 1)
        mixed_a, mixed_b = self.shuffle(a, b)
        return self.np.where(turn, a[:, ::-1], mixed_a), self.np.where(turn, b[:, ::-1], mixed_b)

    def kept(self, *shape: int) -> NDArray[np.int64]:
        return self.pick(self.aim.kept, 1, 48, *shape) + self.integers(-2, 3, *shape)


def _zeros(d: _Draw, a: Array, share: float) -> Array:
    found: Array = d.np.where(d.some(share, *a.shape), d.np.copysign(0.0, d.signs(*a.shape)), a)
    return found


def _cut(d: _Draw) -> Batch:
    """Few large terms, many at the edge of what alignment keeps; half with a pair that cancels the large ones."""
    np = d.np
    top = d.center()[:, None]
    if not d.aim.plain:  # beyond the output's range, where terms take each other back
        top = np.where(d.some(0.15, d.n, 1), d.integers(d.aim.output.minexp, 2 * d.high, d.n, 1), top)
    e = top - d.kept(d.n, d.k) - d.integers(0, 1, d.n, 1)
    large = d.some(0.15, d.n, d.k)
    large[:, 0] = True
    e = np.where(large, top - d.integers(0, 1, d.n, d.k), e)
    plain = d.some(0.5, d.n, 1)
    one = np.ones((d.n, d.k))
    a, b = d.operands(e, np.where(plain, one, d.significand(d.n, d.k)), np.where(plain, one, d.significand(d.n, d.k)))
    a = a * d.signs(d.n, d.k)
    if d.k >= 2:
        pair = d.some(0.6)
        a[:, 1] = np.where(pair, -a[:, 0], a[:, 1])
        b[:, 1] = np.where(pair, b[:, 0], b[:, 1])
        a[:, 2:] = np.where(d.some(0.5, d.n, 1) & pair[:, None] & large[:, 2:], 0.0, a[:, 2:])
    ce = np.where(d.some(0.5), top[:, 0] - d.kept(), top[:, 0] - d.integers(-1, 1))
    c = np.where(d.some(0.3), 0.0, d.accumulator(ce))
    cancel = d.some(0.3)
    c = np.where(cancel, d.fit(-(a * b).sum(1), d.aim.output), c)
    a, b = d.shuffle(_zeros(d, a, 0.1), b)
    return a, b, c


def _alone(d: _Draw) -> Batch:
    """Products that take each other back, the largest ones or any, beside c at the edge of what is kept of it, or
    anywhere below: where inputs have a narrow range, nothing else is small enough to be cut off.
    """
    np, out = d.np, d.aim.output
    largest = min(2 * d.high + 1, out.maxexp - 8)
    top = np.where(d.some(0.5), largest, d.center())
    a, b = d.operands(np.broadcast_to(top[:, None], (d.n, d.k)), d.significand(d.n, d.k), d.significand(d.n, d.k))
    a = np.where(d.some(0.6, d.n, 1) & d.some(0.8, d.n, d.k), 0.0, a * d.signs(d.n, d.k))
    pairs = d.k // 2
    a[:, pairs : 2 * pairs], b[:, pairs : 2 * pairs] = -a[:, :pairs], b[:, :pairs]
    a[:, 2 * pairs :] = 0.0
    least = out.minexp if d.aim.plain else out.subnormal_exponent
    below = least + (d.rng.random(d.n) * np.maximum(top - least, 1)).astype(np.int64)
    c = d.accumulator(np.maximum(np.where(d.some(0.5), top - d.kept(), below), least))
    a, b = d.shuffle(a, b)
    return a, b, c


def _round(d: _Draw) -> Batch:
    """Sums whose last bits stand at the rounding of the running sum: ties, just above, just below, tiny remainders."""
    np = d.np
    top = d.center()
    p = d.pick(d.aim.precision, d.aim.output.fraction_bits, d.aim.output.fraction_bits)
    e = top[:, None] - p[:, None] - d.integers(-2, 3, d.n, d.k)
    far = d.some(0.2, d.n, d.k)
    e = np.where(far, top[:, None] - d.kept(d.n, d.k), e)
    first = d.some(0.5)
    e[:, 0] = np.where(first, top, e[:, 0])
    plain = d.some(0.6, d.n, d.k)
    a, b = d.operands(e, np.where(plain, 1.0, d.significand(d.n, d.k)), np.where(plain, 1.0, d.significand(d.n, d.k)))
    a = a * d.signs(d.n, d.k)
    a[:, 1:] = np.where(d.some(0.5, d.n, 1) & d.some(0.7, d.n, d.k - 1), 0.0, a[:, 1:])
    c = np.where(first & d.some(0.5), d.accumulator(top - p - d.integers(-2, 3)), d.accumulator(top))
    c = np.where(first & d.some(0.3), 0.0, c)
    c = np.where(first & d.some(0.3), d.accumulator(top - d.kept()), c)
    a, b = d.shuffle(a, b)
    return a, b, c


def _sticky(d: _Draw) -> Batch:
    """A sum at a value of the output, or half way between two, and one term anywhere below, or three, however small."""
    np, out = d.np, d.aim.output
    high = min(2 * d.high, out.maxexp - 2)
    top = np.where(d.some(0.5), d.center(), d.integers(max(2 * d.low, out.minexp, high - 8), high))
    p = d.pick(d.aim.precision, out.fraction_bits, out.fraction_bits)
    lowest = max(2 * d.low, out.minexp - 64)
    below = np.where(d.some(0.5), top - d.kept(), d.integers(lowest, lowest + 64))
    below = np.clip(below, lowest, top)
    more = np.clip(below[:, None] + d.integers(-1, 1, d.n, 2), lowest, None)
    e = np.concatenate([np.stack([top, top - p - 1, below], 1), more], 1)
    plain = d.some(0.7, d.n, 5)
    s = np.where(plain, 1.0, d.significand(d.n, 5))
    x, y = d.operands(e, s, np.where(plain, 1.0, d.significand(d.n, 5)))
    x = x * d.signs(d.n, 5)
    x[:, 1] = np.where(d.some(0.4), 0.0, x[:, 1])
    x[:, 3:] = np.where(d.some(0.6, d.n, 1), 0.0, x[:, 3:])
    first = d.some(0.6)  # in c, or a product
    x[:, 0] = np.where(first, 0.0, x[:, 0])
    c = np.where(first, d.accumulator(top), 0.0)
    if d.k < 3:
        x, y = x[:, 3 - d.k : 3], y[:, 3 - d.k : 3]
    elif d.k < 5:
        x, y = x[:, : d.k], y[:, : d.k]
    a, b = np.zeros((d.n, d.k)), np.ones((d.n, d.k))
    a[:, : x.shape[1]], b[:, : x.shape[1]] = x, y
    # In any order; or the smallest first, so that sums which are rounded one after another keep it.
    a, b = d.turned(a, b)
    return a, b, c


def _carry(d: _Draw) -> Batch:
    """All terms large and alike, so that their sum needs every bit above the leading ones."""
    np = d.np
    top = np.minimum(d.center(), d.aim.output.maxexp - 12)[:, None]
    most = 2.0 - 2.0**-d.aim.input.fraction_bits
    s = np.where(d.some(0.7, d.n, 1), most, d.significand(d.n, d.k))
    a, b = d.operands(np.broadcast_to(top, (d.n, d.k)), s, np.where(d.some(0.8, d.n, 1), most, 1.0) + 0.0 * s)
    sign = d.signs(d.n, 1)
    a = a * np.where(d.some(0.3, d.n, 1), d.signs(d.n, d.k), sign)
    count = d.integers(1, d.k)
    # All of them, or a run of them anywhere, so that a later block can be the large one.
    count = np.where(d.some(0.5), d.k, count)
    place = np.arange(d.k)[None, :] - np.where(d.some(0.5), 0, d.integers(0, d.k - 1))[:, None]
    a = np.where((place >= 0) & (place < count[:, None]), a, 0.0)
    if d.k > 2:  # and the smallest term that there is, which a sum that has grown cuts off
        least, one = d.operands(np.full((d.n, 1), 2 * d.low) + d.integers(0, 6, d.n, 1), s[:, :1], np.ones((d.n, 1)))
        small = (np.arange(d.k)[None, :] == d.integers(0, d.k - 1, d.n, 1)) & d.some(0.3, d.n, 1)
        a, b = np.where(small, least * d.signs(d.n, 1), a), np.where(small, one, b)
    c = np.where(d.some(0.3), 0.0, d.accumulator(top[:, 0] + d.integers(-1, 3)))
    c = np.where(d.some(0.6), np.copysign(c, sign[:, 0]), c)
    return a, b, c


def _subnormal(d: _Draw) -> Batch:
    """Subnormal inputs against large ones, results and accumulators around the output's smallest normal value."""
    np = d.np
    fmt, out = d.aim.input, d.aim.output
    units = d.integers(1, (1 << fmt.fraction_bits) - 1, d.n, d.k)
    units = np.maximum(units >> d.integers(0, fmt.fraction_bits - 1, d.n, d.k) * d.some(0.5, d.n, d.k), 1)
    tiny = np.ldexp(units.astype(float), d.low)
    least = d.pick(d.aim.minexp, out.minexp, out.minexp)
    edge = least[:, None] - d.integers(-2, out.fraction_bits + 2, d.n, d.k)
    x, y = d.operands(edge, d.significand(d.n, d.k), d.significand(d.n, d.k))
    other = np.ldexp(d.significand(d.n, d.k), d.integers(fmt.minexp, d.high, d.n, d.k))
    use = d.some(0.5, d.n, d.k)
    a, b = np.where(use, tiny, x), np.where(use, d.fit(other), y)
    swap = d.some(0.5, d.n, d.k)
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    a = a * d.signs(d.n, d.k)
    a = np.where(d.some(0.6, d.n, 1) & d.some(0.7, d.n, d.k), 0.0, a)
    c = d.accumulator(least - d.integers(-2, out.fraction_bits))
    total = (a * b).sum(1)
    c = np.where(d.some(0.3), d.fit(-total, out), c)
    binade = np.frexp(np.where(np.isfinite(total), total, 1.0))[1].astype(np.int64)
    c = np.where(d.some(0.2), d.accumulator(binade - d.integers(0, 60)), c)
    c = np.where(d.some(0.25), 0.0, c)
    return a, b, c


def _floor(d: _Draw) -> Batch:
    """c = 0 and products about the exponent that zeros take; the smallest running sum or half of it, which what is cut
    off moves, or pairs that cancel.
    """
    np = d.np
    out = d.aim.output
    smallest = d.pick(d.aim.minexp, out.minexp, out.minexp)
    p = d.pick(d.aim.precision, out.fraction_bits, out.fraction_bits)
    guess = d.pick(d.aim.zero_exponent, -p.max() - 8, 0)
    guess = np.maximum(guess if d.aim.zero_exponent else smallest + guess, 2 * d.low)
    base = guess + d.integers(-6, 2)
    e = base[:, None] - d.kept(d.n, d.k)
    e = np.where(d.some(0.3, d.n, d.k), base[:, None] - d.integers(0, 8, d.n, d.k), e)
    plain = d.some(0.7, d.n, d.k)
    a, b = d.operands(e, np.where(plain, 1.0, d.significand(d.n, d.k)), np.where(plain, 1.0, d.significand(d.n, d.k)))
    a = a * d.signs(d.n, d.k)
    half = smallest - p - d.integers(0, 1)
    x, y = d.operands(half[:, None], np.ones((d.n, 1)), np.ones((d.n, 1)))
    tie = d.some(0.5)
    a[:, 0], b[:, 0] = np.where(tie, x[:, 0], a[:, 0]), np.where(tie, y[:, 0], b[:, 0])
    a[:, 2:] = np.where(d.some(0.7, d.n, 1), 0.0, a[:, 2:])
    if d.k >= 2:  # what is cut off to the floor does not cancel
        pair = d.some(0.25)
        a[:, 1], b[:, 1] = np.where(pair, -a[:, 0], a[:, 1]), np.where(pair, b[:, 0], b[:, 1])
    c = np.copysign(0.0, d.signs())
    # Anywhere, or all of them in the last block.
    a, b = d.turned(a, b)
    return a, b, np.where(d.some(0.15), d.accumulator(base), c)


def _least(d: _Draw) -> Batch:
    """One term among the smallest running sums, or one that another takes back, and one about where it would be cut
    off if zeros had an exponent: any bit of it moves what is rounded to one side.
    """
    np = d.np
    smallest = d.pick(d.aim.minexp, d.aim.output.minexp, d.aim.output.minexp)
    p = d.pick(d.aim.precision, d.aim.output.fraction_bits, d.aim.output.fraction_bits)
    first = smallest - p - 1 + (d.rng.random(d.n) * (p + 3)).astype(np.int64)
    kept = d.pick(d.aim.kept, 1, 48)
    back = d.some(0.25) if d.k > 2 else np.zeros(d.n, bool)
    first = np.where(back & d.some(0.5), first - kept + d.integers(-2, 10), first)  # is cut off itself
    first = np.maximum(first, 2 * d.low + d.integers(0, 40) * d.some(0.5))
    second = first - kept + d.integers(-2, 14)
    s = np.where(d.some(0.8, d.n, 2), 1.0, d.significand(d.n, 2))
    x, y = d.operands(np.stack([first, second], 1), s, np.where(d.some(0.9, d.n, 2), 1.0, d.significand(d.n, 2)))
    a, b = np.copysign(np.zeros((d.n, d.k)), d.signs(d.n, d.k)), np.ones((d.n, d.k))
    rows, place = np.arange(d.n), d.integers(0, d.k - 1)
    sign, far = d.signs(), np.where(d.some(0.3), d.integers(0, d.k - 1), 1)
    taken = (place + 2) % d.k
    a[rows[back], taken[back]], b[rows[back], taken[back]] = -(sign * x[:, 0])[back], y[back, 0]
    other = (place + far) % d.k
    a[rows, other], b[rows, other] = x[:, 1] * d.signs(), y[:, 1]
    a[rows, place], b[rows, place] = x[:, 0] * sign, y[:, 0]
    c = np.copysign(0.0, d.signs())
    return a, b, np.where(d.some(0.1), d.accumulator(first), c)


def _special(d: _Draw) -> Batch:
    """Infinities, NaN, signed zeros, and sums at the end of the range."""
    np = d.np
    fmt, out = d.aim.input, d.aim.output
    a, b, c = _random(d)
    which = d.integers(0, 40, d.n, d.k)
    if fmt.has_infinity:
        a = np.where(which == 0, np.copysign(np.inf, a), a)
        b = np.where(which == 1, np.copysign(np.inf, b), b)
    if fmt.has_nan:
        a = np.where((which == 2) & d.some(0.3, d.n, 1), np.nan, a)
    a = np.where((which == 3) | (which == 4), np.copysign(0.0, a), a)
    c = np.where(d.some(0.05), np.copysign(np.inf, c), np.where(d.some(0.02), np.nan, c))
    zero = d.some(0.3)
    a = np.where(zero[:, None], np.copysign(0.0, a), a)
    c = np.where(zero & d.some(0.8), np.copysign(0.0, d.signs()), c)
    most = out.maxexp - 1 - d.integers(0, 2, d.n, d.k)
    x, y = d.operands(most, d.significand(d.n, d.k), d.significand(d.n, d.k))
    end = d.some(0.4) & ~zero
    a = np.where(end[:, None], x * d.signs(d.n, d.k), a)
    b = np.where(end[:, None], y, b)
    a = np.where(end[:, None] & d.some(0.5, d.n, d.k), 0.0, a)
    c = np.where(end & d.some(0.8), d.accumulator(np.full(d.n, out.maxexp - 1)), c)
    c = np.where(end & d.some(0.2), np.copysign(out.max, c), c)
    return a, b, c


def _zero(d: _Draw) -> Batch:
    """Sums of zeros, most of them of one sign; of terms that cancel; of terms too small for the output."""
    np, out = d.np, d.aim.output
    a = np.copysign(0.0, np.where(d.some(0.8, d.n, 1), d.signs(d.n, 1), d.signs(d.n, d.k)))
    b = np.ones((d.n, d.k))
    c = np.copysign(0.0, np.where(d.some(0.8), a[:, 0], -a[:, 0]))
    top = d.center()[:, None]
    x, y = d.operands(np.broadcast_to(top, (d.n, d.k)), np.ones((d.n, d.k)), np.ones((d.n, d.k)))
    kind = d.integers(0, 5)
    one = np.arange(d.k)[None, :] == d.integers(0, d.k - 1, d.n, 1)
    # One term that c takes back, or that another takes back.
    cancels = one & (kind == 1)[:, None]
    a, b = np.where(cancels, x * np.where(a < 0, -1.0, 1.0), a), np.where(cancels, y, b)
    c = np.where(kind == 1, d.fit(-(a * b).sum(1), out), c)
    tiny = d.fit(np.where(d.some(0.5, d.n, 1), 2.0**d.low, 2.0**d.aim.input.minexp) * d.significand(d.n, d.k))
    small = one & (kind == 2)[:, None]
    sign = np.copysign(1.0, a)
    a, b = np.where(small, tiny * sign, a), np.where(small, tiny[:, ::-1], b)
    edge = out.subnormal_exponent - d.integers(-1, 4, d.n, 1)
    x, y = d.operands(np.broadcast_to(edge, (d.n, d.k)), d.significand(d.n, d.k), d.significand(d.n, d.k))
    few = (one | d.some(0.1, d.n, d.k)) & (kind == 3)[:, None]
    a, b = np.where(few, x * sign, a), np.where(few, y, b)
    # c anywhere below the smallest normal running sum, of the zeros' sign mostly: what becomes of it is all that shows.
    least = np.minimum(d.pick(d.aim.minexp, out.minexp, out.minexp), out.minexp)
    below = (d.rng.random(d.n) * (least - out.subnormal_exponent + 2)).astype(np.int64)
    tiny_c = np.copysign(d.accumulator(out.subnormal_exponent + below), c)
    return a, b, np.where(kind >= 4, tiny_c, c)


def _random(d: _Draw) -> Batch:
    """Random significands, exponents within a window of random width."""
    np = d.np
    top = d.center()[:, None]
    width = d.integers(0, 30, d.n, 1)
    e = top - (d.rng.random((d.n, d.k)) * (width + 1)).astype(np.int64)
    a, b = d.operands(e, d.significand(d.n, d.k), d.significand(d.n, d.k))
    a = _zeros(d, a * d.signs(d.n, d.k), 0.1)
    c = np.where(d.some(0.2), 0.0, d.accumulator(top[:, 0] - d.integers(-2, 26)))
    return a, b, c


def _few(d: _Draw) -> Batch:
    """One to three terms, anywhere in the vector, with c: what a short vector shows, at every place."""
    np = d.np
    top = d.center()[:, None]
    e = top - np.where(d.some(0.5, d.n, d.k), d.integers(0, 3, d.n, d.k), d.kept(d.n, d.k))
    a, b = d.operands(e, d.significand(d.n, d.k), d.significand(d.n, d.k))
    rank = np.argsort(d.rng.random((d.n, d.k)), axis=1)
    a = np.where(rank < d.integers(1, 3, d.n, 1), a * d.signs(d.n, d.k), 0.0)
    c = np.where(d.some(0.2), 0.0, d.accumulator(top[:, 0] - d.kept()))
    c = np.where(d.some(0.5), d.accumulator(top[:, 0] - d.integers(-1, 2)), c)
    return a, b, c


def _order(d: _Draw) -> Batch:
    """M at one place, -M at another (or in c), small terms elsewhere: which survive tells what was added when."""
    np = d.np
    a, b, c = structure(d.aim, d.k, d.n, d.rng)
    return a, b, np.where(d.some(0.1), d.accumulator(d.center()), c)


CLASSES: dict[str, Callable[[_Draw], Batch]] = {
    "cut": _cut,
    "alone": _alone,
    "round": _round,
    "sticky": _sticky,
    "carry": _carry,
    "subnormal": _subnormal,
    "floor": _floor,
    "least": _least,
    "special": _special,
    "zero": _zero,
    "random": _random,
    "few": _few,
    "order": _order,
}
"""What the inputs of each class are aimed at; the functions' docstrings say how."""


def share(each: int, k: int, least: int) -> int:
    """How many dot products of length k: `each` up to 16, as many products in longer ones, `least` at least.

    >>> share(40, 1, 3), share(40, 64, 3), share(40, 1024, 3)
    (40, 10, 3)
    """
    return max(least, each * 16 // max(k, 16))


def structure(aim: Aim, k: int, n: int, rng: np.random.Generator) -> Batch:
    """M, -M and units, as far apart as the formats allow (Collins' and FPRev's way of seeing an order of summation)."""
    d = _Draw(aim, n, k, rng)
    np = d.np
    out = aim.output
    big = min(2 * d.high, out.maxexp - 2 - aim.plain)
    small = max(2 * d.low, out.minexp, big - 100)
    rows = np.arange(n)
    i = d.integers(0, k - 1)
    j = d.integers(0, k - 1)
    e = np.full((n, k), small) + d.integers(0, 1, n, 1)
    one = np.ones((n, k))
    x, y = d.operands(e, one, one)
    x = x * np.where(d.some(0.3, n, 1), d.signs(n, k), 1.0)
    x = np.where(d.rng.random((n, k)) < np.array([0.0, 0.5, 1.0 - 2.0 / k])[d.integers(0, 2, n, 1)], 0.0, x)
    mx, my = d.operands(np.full((n, 1), big), np.ones((n, 1)), np.ones((n, 1)))
    x[rows, j], y[rows, j] = -mx[:, 0], my[:, 0]
    x[rows, i], y[rows, i] = mx[:, 0], my[:, 0]
    c = np.where(i == j, -np.ldexp(1.0, big), 0.0)
    sign = np.where(d.some(0.3), -1.0, 1.0)
    return x * sign[:, None], y, c * sign


def ends(aim: Aim, k: int, n: int, rng: np.random.Generator) -> Batch:
    """Products that are zeros, all but a few -0, and c = -0 or tiny: only what rounds or pads them can change the sign.

    Where a block or an instruction ends shows in nothing else where its sum is rounded after every addition.
    """
    d = _Draw(aim, n, k, rng)
    np, out = d.np, aim.output
    kind = np.arange(n) % 8
    a = np.full((n, k), -0.0)
    a[kind == 1] = 0.0
    some = (kind == 2) | (kind == 3)
    a[some] = np.where(d.some(0.5, n, k), a, 0.0)[some]
    tiny = -np.ldexp(1.0, out.subnormal_exponent + (d.rng.random(n) ** 2 * (out.fraction_bits + 2)).astype(np.int64))
    c = np.where(np.isin(kind, (0, 2, 7)), -0.0, tiny)
    b = np.ones((n, k))
    # A term that underflows, first or last.
    e = np.full((n, 1), out.subnormal_exponent) - d.integers(-1, 6, n, 1)
    x, y = d.operands(e, np.ones((n, 1)), np.ones((n, 1)))
    for wanted, at in ((6, 0), (7, k - 1)):
        a[kind == wanted, at], b[kind == wanted, at] = -x[kind == wanted, 0], y[kind == wanted, 0]
    return a, b, c


def draw(aim: Aim, name: str, k: int, n: int, rng: np.random.Generator) -> Batch:
    """n dot products of length k from one of `CLASSES`.

    Returns:
        a, b of shape (n, k), values of the input format, and c of shape (n,), values of the output format.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        d = _Draw(aim, n, k, rng)
        a, b, c = CLASSES[name](d)
        if not aim.input.has_infinity:
            a, b = np.nan_to_num(a, nan=np.nan, posinf=aim.input.max, neginf=-aim.input.max), b
    return np.ascontiguousarray(a), np.ascontiguousarray(b), np.ascontiguousarray(c)
