"""gemm's epilogue on joined pairs against Fractions."""

from fractions import Fraction

import numpy as np
import pytest

from prismm.cpu.kernels.combine import combine
from tests.cpu.kernels.harness import FORMATS, MAGNITUDE, RAW, ROUNDING, call, differing, exact_power, rn, same_bits


def run(
    pairs, unit, shifts, adds, factors, mode, precision, bounds=None, kappa=0.0, powers=None, k=1, magnitude_kappa=0.0
):  # fmt: skip
    """One row of entries; the bound of X_j, in units of C', is bounds[j]; |a||b| is at least k·2^(powers - 2)."""
    n = len(shifts)
    power = np.zeros(n, np.int64) if powers is None else powers
    levels = 0 if powers is None else 1
    rows, columns = np.zeros((4, 1)), np.zeros((4, n))
    if bounds is not None:
        rows[1, 0] = rows[3, 0] = 1.0
        columns[0] = columns[2] = bounds
    out, out32 = np.full((1, n), np.nan), np.full((1, n), np.nan, np.float32)
    failed = np.empty(n, np.int32)
    named = {
        f"{part}{x + 1}": np.ascontiguousarray(p[None])
        for x, pair in enumerate(pairs)
        for part, p in zip(("high", "low"), pair, strict=True)
    }
    count = call(
        combine, **named, unit=unit, row_shift=np.zeros(1, np.int64), column_shift=np.zeros(n, np.int64) + shifts,
        row_terms=rows, column_terms=columns, terms=0.0, add1=np.ascontiguousarray(adds[0][None]),
        add2=np.ascontiguousarray(adds[1][None]), factors=np.asarray(factors, np.float64),
        row_power=np.zeros(1, np.int64), column_power=power, row_counts=np.full((1, levels), k),
        column_counts=np.full((n, levels), k), k=k, mode=mode,
        kappa=kappa, magnitude_kappa=magnitude_kappa, precision=precision, out=out, out32=out32, failed=failed,
    )  # fmt: skip
    listed = failed[:count].tolist()
    assert len(set(listed)) == count
    return (out if precision == 53 else out32.astype(np.float64))[0], set(listed)


def pair_of(values):
    """Integers of up to 106 bits as high + low."""
    high = np.array([float(v) for v in values])
    return high, np.array([float(v - int(h)) for v, h in zip(values, high, strict=True)])


def exact_sum(pairs, unit, shift, adds, factors, j):
    scale = exact_power(unit - int(shift))
    x = [(Fraction(p[0][j]) + Fraction(p[1][j])) * scale for p in pairs] + [Fraction(a[j]) for a in adds]
    return sum((Fraction(f) * y for f, y in zip(factors, x, strict=True)), Fraction(0)), sum(
        (abs(Fraction(f) * y) for f, y in zip(factors, x, strict=True)), Fraction(0)
    )


def draw(rng, n, precision):
    values = [
        [int(rng.integers(-(2**62), 2**62)) * int(rng.integers(-(2**40), 2**40)) for _ in range(n)] for _ in range(2)
    ]
    pairs = [pair_of(v) for v in values]
    shifts = rng.integers(60, 140, n)
    adds = [rng.standard_normal(n) for _ in range(2)]
    factors = [1.5, -0.7, 2.0 / 3.0, -3.0]
    for j in range(0, n, 3):  # cancellation: the added term undoes nearly all of the rest, or all of it
        others, _ = exact_sum(pairs, 0, shifts[j], [np.zeros(n), adds[1]], factors, j)
        adds[0][j] = float(-others / Fraction(factors[2]))
    if precision == 24:
        adds = [a.astype(np.float32).astype(np.float64) for a in adds]
    return pairs, shifts, adds, factors


@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("relative", [0.0, 2.0**-60, 2.0**-40])
def test_what_is_not_listed_is_rounded_right(precision, relative, rng):
    n = 600
    fmt = FORMATS[precision]
    pairs, shifts, adds, factors = draw(rng, n, precision)
    bounds = np.abs(pairs[0][0]) * relative
    out, listed = run(pairs, 0, shifts, adds, factors, ROUNDING, precision, bounds)
    for j in range(n):
        exact, _ = exact_sum(pairs, 0, shifts[j], adds, factors, j)
        if j not in listed:
            spread = Fraction(bounds[j]) * exact_power(-int(shifts[j])) * (Fraction(1.5) + Fraction(0.7))
            ends = rn(exact - spread, fmt), rn(exact + spread, fmt)
            assert ends[0] == ends[1] == out[j], (j, out[j])
    assert len(listed) < n * 9 // 10 if relative < 2.0**-50 or precision == 24 else len(listed) > n // 3


@pytest.mark.parametrize("precision", [53, 24])
def test_the_schemes_own_value_needs_no_bound(precision, rng):
    n = 400
    pairs, shifts, adds, factors = draw(rng, n, precision)
    out, listed = run(pairs, 0, shifts, adds, factors, RAW, precision, np.full(n, 1e30))
    wanted = [rn(exact_sum(pairs, 0, shifts[j], adds, factors, j)[0], FORMATS[precision]) for j in range(n)]
    keep = [j for j in range(n) if j not in listed]
    assert same_bits(out[keep], np.array(wanted)[keep]), differing(out[keep], np.array(wanted)[keep])
    assert len(keep) > n * 6 // 10  # a third cancels, and may be listed


@pytest.mark.parametrize("precision", [53, 24])
def test_exact_ties_of_the_sum(precision, rng):
    """X + c lies on a midpoint, or beside it by what only the pair's low part holds: right, or listed."""
    n = 300
    values, adds, wanted = [], np.zeros(n), []
    for j in range(n):
        odd = (2 * int(rng.integers(1 << (precision - 1), 1 << precision)) + 1) << 40
        nudge = int(rng.integers(-1, 2))
        adds[j] = float(int(rng.integers(-(2**30), 2**30)))
        values.append(odd + nudge - int(adds[j]))
        wanted.append(rn(Fraction(odd + nudge), FORMATS[precision]))
    zeros = np.zeros(n)
    pairs = [pair_of(values), (zeros, zeros)]
    for mode in (RAW, ROUNDING):
        out, listed = run(pairs, 0, np.zeros(n, np.int64), [adds, zeros], [1.0, 0.0, 1.0, 0.0], mode, precision)
        keep = [j for j in range(n) if j not in listed]
        assert same_bits(out[keep], np.array(wanted)[keep])


@pytest.mark.parametrize("factors", [[1.0, 0.0, 1.0, 0.0], [0.0, -3.0, 1.0, 0.0], [0.6, 0.8, 1.0, 0.0]], ids=str)
@pytest.mark.parametrize("precision", [53, 24])
def test_magnitudes_of_the_operands_cover_the_bound(precision, factors, rng):
    """Sums that cancel: listed exactly where bound·kappa exceeds |a||b|, by √2 where both parts of X have a share."""
    n, k, kappa = 400, 100, 1e5
    pairs = [pair_of([int(x) << 40 for x in rng.integers(1, 2**20, n)]) for _ in range(2)]
    zeros, adds = np.zeros(n), np.zeros(n)
    for j in range(n):
        adds[j] = -float(exact_sum(pairs, 0, 0, [zeros, zeros], factors, j)[0]) * (1.0 + 2.0**-20)
    if precision == 24:
        adds = adds.astype(np.float32).astype(np.float64)
    powers = rng.integers(20, 40, n)
    least = k * 2.0 ** (powers - 2)
    share = np.sqrt(2.0) if factors[0] and factors[1] else 1.0
    closeness = rng.choice([0.5, 0.999, 1.001, 2.0], n)
    bounds = least / kappa / share * closeness
    args = pairs, 0, np.zeros(n, np.int64), [adds, zeros], factors, MAGNITUDE, precision, bounds, 1e30
    _, listed = run(*args, powers=powers, k=k, magnitude_kappa=kappa)
    _, open_ = run(*args[:5], RAW, precision)
    assert listed - open_ == set(np.flatnonzero(closeness > 1.0).tolist()) - open_
    assert len(open_) < n // 4
    assert run(*args)[1] == set(range(n))


@pytest.mark.parametrize("precision", [53, 24])
def test_the_magnitude_test_covers_the_bound(precision, rng):
    n, kappa = 500, 1e5
    pairs, shifts, adds, factors = draw(rng, n, precision)
    sums = [exact_sum(pairs, 0, shifts[j], adds, factors, j)[0] for j in range(n)]
    weight = Fraction(1.5) + Fraction(0.7)
    fuzz = rng.choice([0.5, 0.999, 1.001, 2.0], n)
    bounds = (
        np.array([float(abs(s) * exact_power(int(t)) / weight) for s, t in zip(sums, shifts, strict=True)])
        / kappa
        * fuzz
    )
    out, listed = run(pairs, 0, shifts, adds, factors, MAGNITUDE, precision, bounds, kappa)
    for j in range(n):
        needed = Fraction(bounds[j]) * exact_power(-int(shifts[j])) * weight * Fraction(kappa)
        if j not in listed:
            assert abs(sums[j]) >= needed and out[j] == rn(sums[j], FORMATS[precision])
        elif precision == 53 and sums[j] and j % 3:
            assert abs(sums[j]) < needed * (1 + exact_power(-20))
    assert n // 5 < len(listed) < n * 4 // 5


@pytest.mark.parametrize("precision", [53, 24])
@pytest.mark.parametrize("mode", [RAW, ROUNDING, MAGNITUDE])
def test_extreme_exponents_are_listed_or_right(mode, precision, rng):
    """Products that underflow or overflow, results in every range, and factors from 2^-1074 to 2^1023."""
    n = 300
    fmt = FORMATS[precision]
    extremes = np.ldexp(rng.standard_normal(n), rng.integers(-1070, 1020, n))
    x = [int(rng.integers(-(2**60), 2**60)) for _ in range(n)]
    x[::5] = [0] * len(x[::5])
    adds = [extremes, np.zeros(n)]
    adds[0][::10] = 0.0
    zeros = np.zeros(n)
    seen = set()
    for factors in (
        [1.0, 0.0, 1.0, 0.0],
        [2.0**-1074, 0.0, 2.0**-800, 0.0],
        [2.0**1000, 0.0, 2.0**1000, 0.0],
        [0.0, 0.0, 1.0, 0.0],
    ):
        shifts = rng.choice([-1200, -880, -100, 0, 100, 880, 1200, 540], n)
        pairs = [pair_of(x), (zeros, zeros)]
        out, listed = run(pairs, 0, shifts, adds, factors, mode, precision, np.zeros(n), 2.0)
        for j in range(n):
            if j not in listed:
                exact, _ = exact_sum(pairs, 0, shifts[j], adds, factors, j)
                assert same_bits(out[j], rn(exact, fmt)) or (exact == 0 and out[j] == 0), (factors, j)
                seen.add("right")
            else:
                seen.add("listed")
    assert seen == {"right", "listed"}


def test_sums_of_underflowing_products_are_not_taken_for_zero():
    """Two products of 2^-1075 make 2^-1074, though each rounds to zero."""
    zeros = np.zeros(1)
    pairs = [(np.ones(1), zeros), (zeros, zeros)]
    add = np.array([2.0**-535])
    out, listed = run(pairs, 0, np.array([535]), [add, zeros], [2.0**-540, 0.0, 2.0**-540, 0.0], ROUNDING, 53)
    assert listed == {0} or out[0] == 2.0**-1074


def test_a_small_factor_does_not_make_a_bound_vanish():
    """X = 0 ± 2^900·2^-30, times 2^-1074: nobody knows the rounding, or the sign, of the sum."""
    zeros = np.zeros(1)
    _, listed = run(
        [(zeros, zeros), (zeros, zeros)], 0, np.array([-890]), [zeros, zeros], [2.0**-1074, 0.0, 1.0, 0.0], ROUNDING,
        53, np.full(1, 2.0**-30),
    )  # fmt: skip
    assert listed == {0}
