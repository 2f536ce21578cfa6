"""round_and_test and round_and_test_sum: one rounding of high + low, and tests that let nothing undecided pass."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from prismm.formats import Format
from tests.cpu.kernels.harness import FORMATS, MAGNITUDE, RAW, ROUNDING, call, differing, exact_power, rn, same_bits


def pairs(rng: np.random.Generator, precision: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values high + low at which a second rounding would show: midpoints of the format and their neighbours."""
    kind = rng.integers(0, 5, count)
    odd = 2 * rng.integers(1 << (precision - 1), 1 << precision, count) + 1
    midpoint = np.ldexp(odd.astype(np.float64), -precision - 1) if precision == 24 else rng.uniform(0.5, 1.0, count)
    high = np.where(kind < 3, midpoint, rng.uniform(0.5, 1.0, count)) * rng.choice([-1.0, 1.0], count)
    half = np.ldexp(1.0, -54)  # half an ulp of values in [1/2, 1)
    low = np.select(
        [kind == 0, kind == 1, kind == 2, kind == 3],
        [0.0, half * rng.choice([-1.0, 1.0], count), np.ldexp(rng.uniform(-1, 1, count), -100), 0.0],
        np.ldexp(rng.uniform(-1, 1, count), -np.where(rng.random(count) < 0.5, 54, rng.integers(54, 200, count))),
    )
    high[::97] = 0.0
    low[::97] = 0.0
    # Three quarters of the low parts are scaled with high; the others have a size of their own.
    shift = rng.integers(-40, 20, count)
    beside = np.where(rng.random(count) < 0.75, shift, rng.integers(-2, 3, count))
    return np.ldexp(high, shift), np.ldexp(low, beside)


def nearly_decided(rng: np.random.Generator, high: np.ndarray, low: np.ndarray, precision: int) -> np.ndarray:
    """Bounds close to the distance between high + low and the nearest midpoint of two floats."""
    ulp = np.ldexp(1.0, np.frexp(high)[1] - precision)
    # The fraction of (high + low) / ulp; exact unless low is far below an ulp.
    beyond = np.mod(high / ulp, 1.0) + low / ulp
    return np.abs(beyond - np.floor(beyond) - 0.5) * ulp * rng.uniform(0.5, 1.5, high.size)


def exponents(rng: np.random.Generator, fmt: Format, count: int) -> np.ndarray:
    """Everywhere, and most at the ends of the format's range."""
    ends = [0, fmt.maxexp, fmt.maxexp - 8, fmt.minexp, fmt.subnormal_exponent, fmt.subnormal_exponent - 8]
    return rng.choice(ends, count) + rng.integers(-30, 40, count)


def round_and_test(high, low, exponent, fmt, mode=RAW, bound=None, least=None, slack=math.inf):
    from prismm.cpu.kernels import round_and_test as kernels

    n = high.size
    nothing = np.empty((0, 0))
    out, out32 = np.full((1, n), np.nan), np.full((1, n), np.nan, np.float32)
    failed = np.empty(n, np.int32)
    count = call(
        kernels.round_and_test, high=high[None], low=nothing if low is None else low[None],
        bound=nothing if bound is None else bound[None], least=nothing if least is None else least[None],
        row_exponent=np.zeros(1, np.int64), column_exponent=exponent.astype(np.int64), mode=mode, slack=slack,
        precision=fmt.precision, out=out, out32=out32, failed=failed,
    )  # fmt: skip
    value = out if fmt.precision == 53 else out32.astype(np.float64)
    return value[0], set(failed[:count].tolist())


def exact(high, low, exponent) -> list[Fraction]:
    return [
        (Fraction(float(h)) + Fraction(float(x))) * exact_power(int(e))
        for h, x, e in zip(high, low, exponent, strict=True)
    ]


@pytest.mark.parametrize("precision", [53, 24])
def test_high_and_low_are_rounded_once(precision, rng):
    fmt = FORMATS[precision]
    high, low = pairs(rng, precision, 6000)
    exponent = exponents(rng, fmt, high.size)
    got, listed = round_and_test(high, low, exponent, fmt)
    expected = [rn(x, fmt) for x in exact(high, low, exponent)]
    assert same_bits(got, expected), differing(got, expected)
    assert not listed
    assert np.isinf(got).any() and (np.abs(got) < fmt.smallest_normal).any()
    plain, _ = round_and_test(high, None, exponent, fmt)
    expected = [rn(Fraction(float(h)) * exact_power(int(e)), fmt) for h, e in zip(high, exponent, strict=True)]
    assert same_bits(plain, expected), differing(plain, expected)


@pytest.mark.parametrize("precision", [53, 24])
def test_nothing_undecided_is_settled(precision, rng):
    """An entry that is not listed rounds alike at both ends; one that is listed does not at ends a little further."""
    fmt = FORMATS[precision]
    high, low = pairs(rng, precision, 6000)
    exponent = exponents(rng, fmt, high.size)
    bound = np.ldexp(np.abs(high) + 2.0**-60, -rng.integers(precision - 4, precision + 60, high.size))
    close = rng.random(high.size) < 0.5
    bound[close] = nearly_decided(rng, high, low, precision)[close]
    bound[::5] = 0.0
    _, listed = round_and_test(high, low, exponent, fmt, ROUNDING, bound)
    generous = 0
    for index, x in enumerate(exact(high, low, exponent)):
        e = Fraction(float(bound[index])) * exact_power(int(exponent[index]))
        below, above = rn(x - e, fmt), rn(x + e, fmt)
        decided = same_bits(below, above)
        if index not in listed:
            assert decided or (e == 0 and x == 0), (index, below, above)
        elif decided:
            # Ends that are themselves within the kernel's own rounding of a midpoint may be listed.
            room = e / 2**40 + abs(x) / 2**49
            assert not same_bits(rn(x - e - room, fmt), rn(x + e + room, fmt)), index
            generous += 1
    assert 0 < len(listed) < high.size and generous < high.size // 4


@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("slack", [2.0**-20, 0.25])
def test_magnitudes_cover_the_bound(slack, precision, rng):
    """Half of the bounds are within a few last bits of the largest bound that passes."""
    fmt = FORMATS[precision]
    high, low = pairs(rng, precision, 4000)
    exponent = rng.integers(-20, 20, high.size)
    least = np.abs(high) * rng.choice([0.0, 1.0, 8.0], high.size) * rng.random(high.size)
    bound = slack * (np.abs(high) + least) * np.ldexp(1.0, rng.integers(-4, 3, high.size))
    close = rng.random(high.size) < 0.5
    beside = 1.0 + rng.choice([-1.0, 1.0], high.size) * np.ldexp(1.0, -rng.integers(10, 53, high.size))
    covered = slack * np.maximum(least, np.abs(high + low) / (1.0 + slack))
    bound[close] = (covered * beside)[close]
    bound[::7] = 0.0
    _, listed = round_and_test(high, low, exponent, fmt, MAGNITUDE, bound, least, slack)
    for index, x in enumerate(exact(high, low, np.zeros(high.size))):
        e = Fraction(float(bound[index]))
        room = Fraction(slack) * max(Fraction(float(least[index])), abs(x) - e) - e * (1 + Fraction(1, 2**precision))
        if index not in listed:
            assert e == 0 or room >= 0
        else:
            assert room <= abs(x + 1) / 2**30
    assert 0 < len(listed) < high.size


@pytest.mark.parametrize("precision", [53, 24])
def test_overflow_is_open_only_where_it_is(precision, rng):
    fmt = FORMATS[precision]
    high = rng.uniform(0.5, 1.0, 4000) * rng.choice([-1.0, 1.0], 4000)
    high[::9] = 0.0
    bound = np.ldexp(rng.uniform(0.5, 1, high.size), rng.integers(-60, 3, high.size))
    exponent = np.full(high.size, fmt.maxexp) + rng.integers(-3, 4, high.size)
    got, listed = round_and_test(high, np.zeros(high.size), exponent, fmt, MAGNITUDE, bound)
    for index, x in enumerate(exact(high, np.zeros(high.size), exponent)):
        e = Fraction(float(bound[index])) * exact_power(int(exponent[index]))
        ends = rn(x - e, fmt), rn(x + e, fmt)
        if index not in listed:
            assert ends[0] == ends[1] or not np.isinf(ends).any(), index
            assert same_bits(got[index], rn(x, fmt))
        else:
            assert ends[0] != ends[1]
    assert 0 < len(listed) < high.size


def round_and_test_sum(x, y, exponent, adds, factors, fmt, mode=RAW, bound=None, least=None, slack=math.inf):
    from prismm.cpu.kernels import round_and_test as kernels

    n = x[0].size
    nothing = np.empty((0, 0))
    out, out32 = np.full((1, n), np.nan), np.full((1, n), np.nan, np.float32)
    failed = np.empty(n, np.int32)
    limits = nothing if bound is None else bound[None]
    floors = nothing if least is None else least[None]
    count = call(
        kernels.round_and_test_sum, high1=x[0][None], low1=x[1][None], bound1=limits, least1=floors, high2=y[0][None],
        low2=y[1][None], bound2=limits, least2=floors, row_exponent=np.zeros(1, np.int64),
        column_exponent=exponent.astype(np.int64), add1=adds[0][None], add2=adds[1][None], factors=np.array(factors),
        weights=np.array([abs(complex(*factors[:2])), abs(complex(*factors[2:]))]) * (1 - 2.0**-40), mode=mode,
        slack=slack, precision=fmt.precision, out=out, out32=out32, failed=failed,
    )  # fmt: skip
    value = out if fmt.precision == 53 else out32.astype(np.float64)
    return value[0], set(failed[:count].tolist())


@pytest.mark.covering("mode")
@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("mode", [RAW, ROUNDING, MAGNITUDE])
def test_sums_are_rounded_once_or_listed(precision, mode, rng):
    fmt = FORMATS[precision]
    n = 3000
    x, y = pairs(rng, precision, n), pairs(rng, precision, n)
    exponent = rng.integers(-30, 30, n)
    adds = [rng.standard_normal(n) * np.ldexp(1.0, rng.integers(-30, 30, n)) for _ in range(2)]
    cancel = rng.random(n) < 0.3
    factors = [0.75, -1.1, 1.5, 0.3]
    adds[0] = np.where(cancel, -(factors[0] * np.ldexp(x[0], exponent)) / factors[2], adds[0])
    adds[1][cancel] = 0.0
    y[0][cancel] = y[1][cancel] = 0.0
    bound = np.where(rng.random(n) < 0.5, 0.0, np.ldexp(rng.random(n), -rng.integers(20, 90, n)))
    slack = 2.0**-20 if mode == MAGNITUDE else math.inf
    got, listed = round_and_test_sum(
        x, y, exponent, adds, factors, fmt, mode, None if mode == RAW else bound, None, slack
    )
    f = [Fraction(v) for v in factors]
    settled = 0
    for index in range(n):
        scale = exact_power(int(exponent[index]))
        terms = [Fraction(float(p[0][index])) + Fraction(float(p[1][index])) for p in (x, y)]
        terms = [t * scale for t in terms] + [Fraction(float(v[index])) for v in adds]
        value = sum(a * b for a, b in zip(f, terms, strict=True))
        size = sum(abs(a * b) for a, b in zip(f, terms, strict=True))
        e = (abs(f[0]) + abs(f[1])) * Fraction(float(bound[index])) * scale if mode != RAW else Fraction(0)
        if index in listed:
            continue
        settled += 1
        if mode == RAW:
            near = rn(value - size / 2**96, fmt), rn(value + size / 2**96, fmt)
            assert near[0] <= got[index] <= near[1], index
        elif mode == ROUNDING:
            assert rn(value - e, fmt) == got[index] == rn(value + e, fmt), index
        else:
            assert got[index] == rn(value, fmt), index
            # What the sum is measured against: |beta||c|, at least |beta| times the larger addend, or the value itself.
            added = Fraction(abs(complex(*factors[2:]))) * max(abs(t) for t in terms[2:])
            assert e <= Fraction(slack) * max(added, abs(value))
    assert settled > n // 10 and (listed or mode == RAW)


def test_a_sum_near_overflow_is_listed():
    for fmt in FORMATS.values():
        high = np.array([0.75])
        zero = np.zeros(1)
        exponent = np.array([fmt.maxexp])
        _, listed = round_and_test_sum((high, zero), (zero, zero), exponent, [zero, zero], [1.0, 0.0, 0.0, 0.0], fmt)
        assert listed == {0}


@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("mode", [RAW, ROUNDING, MAGNITUDE])
def test_factors_of_any_size_lose_neither_bounds_nor_bits(mode, precision, rng):
    """Small factors times small bounds do not vanish, and large ones do not blow up what a small scale rounded away."""
    fmt = FORMATS[precision]
    n = 400
    x = np.ldexp(rng.standard_normal(n), -rng.integers(0, 300, n))
    x[::5] = 0.0
    pair, nothing = (x, x * 2.0**-54), (np.zeros(n), np.zeros(n))
    bound = None if mode == RAW else np.ldexp(rng.random(n), -rng.integers(20, 500, n))
    for factors in (
        [2.0**996, 0, 1, 0], [2.0**-1074, 0, 1, 0], [2.0**-980, 0, 2.0**-980, 0], [2.0**500, 0, 1, 0],
        [1, 0, 0.7 * 2.0**-500, 1.1 * 2.0**-500], [1, 0, 0.7 * 2.0**600, 1.1 * 2.0**600],
    ):  # fmt: skip
        exponent = rng.choice([-890, -600, 0, 600, 890], n)
        add = np.where(rng.random(n) < 0.5, 0.0, np.ldexp(rng.standard_normal(n), rng.integers(-500, 500, n)))
        if factors[3]:  # tiny or huge addends: sums beyond 2^800, or below the last bit of a result
            add = np.ldexp(rng.standard_normal(n), rng.integers(-580, -550, n) if factors[3] < 1 else 410)
        other = add * np.ldexp(rng.uniform(-1.0, 1.0, n), -rng.integers(0, 60, n))
        got, listed = round_and_test_sum(
            pair, nothing, exponent, [add, other], [float(f) for f in factors], fmt, mode, bound, None, 2.0**-20
        )
        for index in set(range(n)) - listed:
            scale = exact_power(int(exponent[index]))
            term = Fraction(factors[0]) * (Fraction(float(x[index])) + Fraction(float(pair[1][index]))) * scale
            added = Fraction(factors[2]) * Fraction(float(add[index]))
            more = Fraction(factors[3]) * Fraction(float(other[index]))
            value, size = term + added + more, abs(term) + abs(added) + abs(more)
            e = Fraction(0) if mode == RAW else Fraction(factors[0]) * Fraction(float(bound[index])) * scale
            if mode == ROUNDING:
                assert rn(value - e, fmt) == got[index] == rn(value + e, fmt), (factors, index)
            else:
                near = rn(value - size / 2**96, fmt), rn(value + size / 2**96, fmt)
                assert near[0] <= got[index] <= near[1], (factors, index)
                assert e <= Fraction(2.0**-20) * max(abs(added) + abs(more), abs(value))
