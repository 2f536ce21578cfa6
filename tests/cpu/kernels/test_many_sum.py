"""Sums of joined products and numbers, against fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.core.many_moduli import many_moduli, room
from prismm.cpu.kernels.expansions import expanded_product, rounded_product
from prismm.formats import round_fraction
from tests.cpu.kernels.harness import FORMATS, call, same_bits
from tests.cpu.kernels.test_many import joined, numbers, precisions

FACTORS = (1.0, -1.0, 0.75, -0.1, 1.0 / 3.0, 2.0**-500 * 1.1, 2.0**400 * 1.3, 5e-324, 1.7e308)


def rounded(fmt, x):
    """RN of a fraction whose denominator is a power of two."""
    return round_fraction(fmt, x.numerator, 1 - x.denominator.bit_length())


def nearest(x):
    """A float64 next to a fraction; 0 or the largest number beyond the range."""
    return min(max(rounded(FORMATS[53], Fraction(x.numerator << 1200, x.denominator) // 1 / Fraction(2) ** 1200),
                   -1.7e308), 1.7e308)  # fmt: skip


def sums(values, shifts, f, g, numbers):
    return [
        Fraction(f) * v * Fraction(2) ** int(-s)
        + sum(Fraction(x) * Fraction(float(c[e])) for x, c in zip(g, numbers, strict=True))
        for e, (v, s) in enumerate(zip(values, shifts, strict=True))
    ]


def addends_of(values, shifts, f, g, fmt, rng):
    """A number for each: one that cancels all that it can of f·v, that leaves a midpoint or next to it, or any."""
    found = np.empty(len(values))
    for e, (v, s) in enumerate(zip(values, shifts, strict=True)):
        product, kind = Fraction(f) * v * Fraction(2) ** int(-s), int(rng.integers(0, 6))
        if kind < 2:
            found[e] = nearest(-product / Fraction(g))
        elif kind == 2:
            odd = Fraction(2 * int(rng.integers(1 << (fmt.precision - 1), 1 << fmt.precision)) + 1)
            near = odd * Fraction(2) ** int(math.frexp(nearest(product))[1] + rng.integers(-60, 20))
            found[e] = nearest((near - product) / Fraction(g))
        elif kind == 3:
            found[e] = 0.0
        else:
            at = (
                rng.integers(-1074, 1024)
                if kind == 4
                else rng.integers(-60, 60) + math.frexp(nearest(product))[1] % 900
            )
            found[e] = math.ldexp(rng.random() - 0.5, int(at))
    return found


@precisions
@pytest.mark.parametrize("moduli", [13, 25, 37, 49])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_sums_of_exact_integers_are_rounded_once(moduli, count, precision, rng):
    fmt, system, left, all_ = FORMATS[precision], many_moduli(moduli), 0, 0
    for f in FACTORS:
        values = numbers(moduli, rng, 60)
        values = [values[int(x)] for x in rng.permutation(len(values))[:900]]
        sizes = np.array([v.bit_length() for v in values])
        binade = rng.choice([fmt.subnormal_exponent - 1, fmt.minexp, 0, 0, 0, fmt.maxexp], len(values))
        shifts = sizes - (binade - math.frexp(f)[1]) - rng.integers(-2, 3, len(values))
        g = [float(rng.choice(FACTORS)) for _ in range(count)]
        added = [addends_of(values, shifts, f, x, fmt, rng) for x in g]
        out, listed = joined(system, values, shifts, rng, precision, factors=(f, *g), addends=added)
        for e, total in enumerate(sums(values, shifts, f, g, added)):
            if e not in listed:
                assert same_bits([out[e]], [rounded(fmt, total)]), (values[e], shifts[e], f, g, [c[e] for c in added])
        left, all_ = left + len(listed), all_ + len(values)
    # Numbers that cancel all but a rest that is known by its sign; and two of which one is far from the product.
    assert left <= (0.0, 0.06, 0.45)[count] * all_, (left, all_)


@precisions
def test_rests_known_by_their_sign_decide_ties_of_sums(precision, rng):
    """Integers of 300 bits next to midpoints, halved, of both signs, without and with a number that leaves a tie."""
    fmt, bits = FORMATS[precision], 300
    odd = [2 * int(rng.integers(1 << (fmt.precision - 1), 1 << fmt.precision)) + 1 for _ in range(200)]
    values = [sign * ((x << (bits - fmt.precision - 1)) + d * (1 << int(rng.integers(0, 60))))
              for x in odd for sign in (-1, 1) for d in (-1, 1)]  # fmt: skip
    shifts = np.full(len(values), bits)
    for f, c in ((0.75, None), (-0.5, None), (1.0, 0.5), (0.5, 1.0), (1.0, 2.0**-20)):
        g, added = ([], []) if c is None else ([1.0], [np.full(len(values), c)])
        out, listed = joined(many_moduli(49), values, shifts, rng, precision, factors=(f, *g), addends=added)
        wanted = [rounded(fmt, x) for x in sums(values, shifts, f, g, added)]
        assert same_bits(out, wanted) and not listed, (f, c, len(listed))


@precisions
@pytest.mark.parametrize("moduli", [13, 25, 49])
def test_what_is_not_listed_rounds_alike_within_the_bound_of_the_product(moduli, precision, rng):
    fmt, listed_of = FORMATS[precision], 0
    for f in FACTORS[:5]:
        values = [v for v in numbers(moduli, rng, 60) if v]
        sizes = np.array([v.bit_length() for v in values])
        bounds = np.array([math.ldexp(rng.random(), int(rng.integers(-3, max(2, x - 30)))) for x in sizes])
        shifts = sizes - rng.integers(-70, 70, len(values))
        g = float(rng.choice(FACTORS[:5]))
        added = addends_of(values, shifts, f, g, fmt, rng)
        out, listed = joined(
            many_moduli(moduli), values, shifts, rng, precision, bounds, factors=(f, g), addends=[added]
        )
        for e, (v, s, bound) in enumerate(zip(values, shifts, bounds.tolist(), strict=True)):
            for sign in (-1, 1):
                total = sums([v + sign * Fraction(bound)], [s], f, [g], [added[e : e + 1]])[0]
                assert e in listed or same_bits([out[e]], [rounded(fmt, total)]), (v, s, bound, f, g, added[e])
        listed_of += len(listed)
        assert len(listed) < len(values)
    assert listed_of


@precisions
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("scale", [0, -1000, 470, -530])
def test_sums_of_expansions(parts, scale, precision, rng):
    """Products of elements that no join could hold, f and numbers of any size."""
    fmt = FORMATS[precision]
    for _ in range(12):
        m, k, n = (int(x) for x in rng.integers(1, 9, 3))
        a = np.ldexp(rng.standard_normal((m, k)), rng.integers(-40, 40, (m, k)) + scale)
        b = np.ldexp(rng.standard_normal((k, n)), rng.integers(-40, 40, (k, n)) + (scale if scale != -1000 else 0))
        count, f = int(rng.integers(0, 3)), float(rng.choice(FACTORS))
        exact = [[sum((Fraction(a[i, h]) * Fraction(b[h, j]) for h in range(k)), Fraction(0)) for j in range(n)]
                 for i in range(m)]  # fmt: skip
        flat = [x * 2**2300 for row in exact for x in row]
        assert all(x.denominator == 1 for x in flat)
        flat, shift = [int(x) for x in flat], [2300] * (m * n)
        g = [float(rng.choice(FACTORS)) for _ in range(count)]
        added = [addends_of(flat, shift, f, x, fmt, rng).reshape(m, n) for x in g]
        out, out32 = (np.full((m, n), np.nan), np.empty((0, 0), np.float32))
        if precision == 24:
            out, out32 = np.empty((0, 0)), np.full((m, n), np.nan, np.float32)
        failed, tops = np.empty(m * n, np.int32), [np.frexp(np.abs(x).max(axis=axis))[1].astype(np.int64)
                                                   for x, axis in ((a, 1), (b, 0))]  # fmt: skip
        listed = call(
            expanded_product, left=a, right=b, row_top=tops[0], column_top=tops[1],
            wanted=np.ones((m, n), np.uint8), parts=parts, factors=np.array([f, *g]),
            addends=np.concatenate(added, axis=1) if added else np.empty((0, 0)), precision=precision, out=out,
            out32=out32, failed=failed,
        )  # fmt: skip
        got = (out if precision == 53 else out32.astype(np.float64)).reshape(-1)
        for e, total in enumerate(sums(flat, shift, f, g, [c.reshape(-1) for c in added])):
            if e not in set(failed[:listed].tolist()):
                assert same_bits([got[e]], [rounded(fmt, total)]), (f, g, [c.reshape(-1)[e] for c in added])


def test_rests_do_not_decide_sums_that_end_below_their_unit(rng):
    """Sums that end a quarter of the fifth limb's unit below midpoints of float32: three eighths behind that limb, or
    one, decide on which side the sum is; their sign does not. The number that is added is a product of 55 bits.
    """
    fmt, unit = FORMATS[24], 2**160
    for _ in range(40):
        p = 2 * int(rng.integers(1 << 26, 1 << 27)) + 1
        q = 2 * int(rng.integers(1 << 26, 1 << 27)) + 1
        q += (p - q) % 8  # so that p·q is 1 modulo 8
        tie = (2 * int(rng.integers(1 << 23, 1 << 24)) + 1) << 310
        values = [
            sign * (tie + (p * q - 1) // 4 * unit + rest) for sign in (-1, 1) for rest in (3 * unit // 8, unit // 8)
        ]
        added = np.ldexp(np.array([-q, -q, q, q], np.float64), 158 - 330)
        shifts, g = np.full(4, 330), [-float(p)]
        out, listed = joined(many_moduli(49), values, shifts, rng, 24, factors=(1.0, *g), addends=[added])
        for e, total in enumerate(sums(values, shifts, 1.0, g, [added])):
            assert e in listed or same_bits([out[e]], [rounded(fmt, total)]), (values[e], added[e])


def gapped(bits, rng):
    """A sum of a few powers of two, about 24 and 53 bits apart, and some bits of each."""
    found, at = 0, bits - int(rng.integers(1, 20))
    while at >= 0 and rng.random() < 0.9:
        found += int(rng.choice([-1, 1])) * (
            (1 << at) + (int(rng.integers(0, 4)) << max(0, at - 3)) * int(rng.integers(0, 2))
        )
        at -= int(rng.choice([24, 25, 52, 53, 54, 60, 80])) + int(rng.integers(-1, 2))
    return found


@precisions
@pytest.mark.parametrize("moduli", [19, 25, 37, 49])
@pytest.mark.parametrize("count", [1, 2])
def test_numbers_that_cancel_the_leading_bits_leave_what_the_third_part_was_rounded_from(moduli, count, precision, rng):
    """Integers of few bits far apart, exact and with bounds: after one or two numbers have cancelled the first ones,
    the last ones decide, which three numbers may not hold.
    """
    fmt, bits = FORMATS[precision], room(moduli)
    for f in (1.0, -1.0, 0.5, 0.75):
        for bounded in (False, True):
            values = [v for v in (gapped(bits, rng) for _ in range(400)) if v and abs(v) < 1 << bits]
            bounds = np.array([math.ldexp(rng.random(), int(rng.integers(0, 60))) * bounded for _ in values])
            shifts, g = np.full(len(values), bits), [float(rng.choice([1.0, -0.5, 0.625])) for _ in range(count)]
            added = []
            for factor in g:
                rest = sums(values, shifts, f, g[: len(added)], added)
                added.append(np.array([nearest(-x / Fraction(factor)) for x in rest]))
                added[-1][rng.random(len(values)) < 0.2] *= 1.0 - 2.0**-30
            given = (bounds,) if bounded else ()
            out, listed = joined(
                many_moduli(moduli), values, shifts, rng, precision, *given, factors=(f, *g), addends=added
            )
            for e, (v, bound) in enumerate(zip(values, bounds.tolist(), strict=True)):
                for sign in (-1, 1) if bounded and e not in listed else (0,):
                    end = Fraction(v) + sign * Fraction(bound)
                    total = sums([end], shifts[:1], f, g, [c[e : e + 1] for c in added])[0]
                    assert e in listed or same_bits([out[e]], [rounded(fmt, total)]), (
                        hex(v),
                        bound,
                        f,
                        g,
                        [c[e] for c in added],
                    )


def test_a_sum_that_leaves_the_end_of_a_third_part():
    """2^180 + 2^120 + 2^67 + 1 - 2^180: the third part is rounded, and decides a tie once the first is gone."""
    row, column = np.array([2.0**90, 2.0**60, 2.0**33, 1.0]), np.array([2.0**90, 2.0**60, 2.0**34, 1.0])
    a, b = np.tile(row, (60, 1)), np.tile(column[:, None], (1, 60))
    for keywords in ({"accuracy": "correctly-rounded"}, {"reproducible": True}):
        found = prismm.gemm(a, b, np.full((60, 60), -(2.0**180)), alpha=1.0, beta=1.0, **keywords)
        assert (found == 2.0**120 + 2.0**68).all()


def test_sums_in_float64_count_all_their_roundings(rng):
    """Two numbers that cancel but for some 2^-30 of them, beside a product that is far smaller: what rounding leaves of
    their multiples is as large as half an ulp of float32.
    """
    fmt, m, n = FORMATS[24], 20, 30
    for bound in (0.0, 2.0**-60):
        g0, g1, f = (float(x) for x in rng.uniform(1.0, 2.0, 3))
        c0 = rng.standard_normal((m, n))
        c1 = -(g0 * c0 / g1) * (1.0 + rng.uniform(-1.0, 1.0, (m, n)) * 2.0 ** rng.integers(-50, -20, (m, n)))
        product = rng.standard_normal((m, n)) * 2.0**-40
        out, failed = np.full((m, n), np.nan, np.float32), np.empty(m * n, np.int32)
        listed = call(
            rounded_product, product=product, row_norm=np.full(m, 1.0), column_norm=np.full(n, 1.0), factor=bound,
            factors=np.array([f, g0, g1]), addends=np.concatenate([c0, c1], axis=1), out=out, failed=failed,
        )  # fmt: skip
        left = set(failed[:listed].tolist())
        assert 0 < len(left) < m * n
        for e, (i, j) in enumerate(np.ndindex(m, n)):
            total = sum(Fraction(x) * Fraction(y) for x, y in ((f, product[i, j]), (g0, c0[i, j]), (g1, c1[i, j])))
            assert e in left or same_bits([float(out[i, j])], [rounded(fmt, total)])
