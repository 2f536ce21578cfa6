"""Exact sums of weighted products: against Python integers, at ties, next to them, and where values underflow."""

import numpy as np
import pytest

from prismm.cpu.kernels import weigh
from prismm.formats import BF16, FP16, FP32, FP64, round_fraction
from prismm.schemes import slice_layout
from prismm.schemes.slice_layout import limb_count


def joined(values, exponents, base=0):
    """One row of integers, each the sum of its terms (value, position): high, low and flags."""
    count = max((len(v) for v in values), default=1)
    top = max((max(p, default=0) for p in exponents), default=0)
    n = len(values)
    limbs = np.zeros((1, limb_count(top, count), n), np.int64)
    for c in range(count):
        products = np.array([v[c] if c < len(v) else 0 for v in values], np.float64)
        across = np.array([[p[c] if c < len(p) else 0 for p in exponents]], np.int64)
        weigh.scatter_float64(products, n, n, np.zeros((1, 1), np.int64), across, limbs)
    high, low = np.empty((1, n)), np.empty((1, n))
    weigh.carry(limbs)
    flags = weigh.finish_limbs(limbs, np.full(1, base, np.int64), np.zeros(n, np.int64), high, low)
    return high[0], low[0], flags


def hostile_sums(rng, count):
    """Sums whose rounding hangs on their last bit."""
    values, exponents = [[0], [1], [-1], [2**53], [-(2**53)]], [[0], [0], [7], [0], [3]]
    for _ in range(count):
        precision = int(rng.choice([53, 24, 8, 11]))
        odd = 2 * int(rng.integers(1 << (precision - 1), 1 << precision)) + 1
        shift = int(rng.integers(0, 140))
        tail = int(rng.choice([-1, 0, 1]))
        sign = int(rng.choice([-1, 1]))
        parts = [(sign * odd, shift + 1)] if odd < 2**53 else [(sign * (odd >> 1), shift + 2), (sign, shift + 1)]
        if tail:
            parts.append((tail, int(rng.integers(0, shift + 1))))
        if rng.random() < 0.3:  # something large that cancels
            big = int(rng.integers(1 << 52, 1 << 53))
            parts += [(big, shift + 200), (-big, shift + 200)]
        if rng.random() < 0.3:
            parts.append((int(rng.integers(-(2**53), 2**53)), int(rng.integers(0, 200))))
        values.append([v for v, _ in parts])
        exponents.append([p for _, p in parts])
    return values, exponents


@pytest.mark.parametrize("base", [0, -160, -1074, -1150, -2200, 700])
def test_high_and_low_round_as_the_exact_sum_in_every_format(base, rng):
    values, exponents = hostile_sums(rng, 400)
    high, low, flags = joined(values, exponents, base)
    inexact = False
    for v, p, h, r in zip(values, exponents, high.tolist(), low.tolist(), strict=True):
        exact = sum(x << e for x, e in zip(v, p, strict=True))
        lowest = abs(exact) & -abs(exact)
        if exact and base + lowest.bit_length() - 1 < -1074:
            continue  # flagged below
        assert h == round_fraction(FP64, exact, base)
        for fmt in (FP64, FP32, BF16, FP16):
            numerator, e = pair(h, r)
            assert round_fraction(fmt, numerator, e) == round_fraction(fmt, exact, base), (v, p, fmt.name)
        numerator, e = pair(h, r)
        gap = abs((exact << (base - min(e, base))) - (numerator << (e - min(e, base))))
        inexact |= gap != 0
        assert gap << 103 <= abs(exact) << (base - min(e, base))
    assert inexact <= bool(flags & weigh.INEXACT)
    if base == 0:
        assert not flags & weigh.UNDERFLOW
    if base == -2200:
        assert flags & weigh.UNDERFLOW


def pair(high, low):
    """high + low as an integer and its exponent."""
    a, b = (float(x).as_integer_ratio() for x in (high, low))
    e = -max(a[1].bit_length(), b[1].bit_length()) + 1
    return (a[0] << -e) // a[1] + (b[0] << -e) // b[1], e


def test_exact_sums_raise_no_flag(rng):
    values = [[int(x)] for x in rng.integers(-(2**53), 2**53, 50)]
    high, low, flags = joined(values, [[int(p)] for p in rng.integers(0, 50, 50)])
    assert flags == 0 and not low.any()
    assert high.all()


@pytest.mark.parametrize("kind", ["int32", "float32", "float64"])
def test_grid_and_scattered_sums_agree_with_integers(kind, rng):
    most = {"int32": 2**31, "float32": 2**24, "float64": 2**53}[kind]
    rows, n, count = 3, 17, 40
    products = rng.integers(-most + 1, most, (count, rows, n))
    products[0] = -most if kind == "int32" else most
    position = rng.integers(0, 150, count)
    expected = sum((products[c].astype(object) << int(position[c])) for c in range(count))
    held = np.ascontiguousarray(products.astype(kind)).reshape(-1)
    limbs = np.zeros((2, rows, limb_count(150, count), n), np.int64)
    getattr(weigh, f"add_{kind}")(held, rows * n, n, position, limbs[0])
    half = position // 2
    getattr(weigh, f"scatter_{kind}")(
        held, rows * n, n, np.repeat(half[:, None], rows, 1), np.repeat((position - half)[:, None], n, 1), limbs[1]
    )
    for found in limbs:
        total = sum(found[:, x].astype(object) << (24 * x) for x in range(found.shape[1]))
        assert (total == expected).all()
        weigh.carry(found)
        assert (found[:, :-1] >= 0).all() and (found[:, :-1] < 1 << 24).all()
        assert (sum(found[:, x].astype(object) << (24 * x) for x in range(found.shape[1])) == expected).all()


def test_limbs_are_those_that_are_counted():
    assert slice_layout.LIMB == weigh.LIMB
