"""Shortcuts of the tests of single entries, against the rounding of both ends of the interval in rationals."""

from fractions import Fraction

import numpy as np
import pytest
from numba import njit

from prismm.cpu.kernels import finish
from tests.cpu.kernels.harness import FORMATS, rn


@njit
def _undecided(h, m, t, bound, exponent, precision, lowest):
    return finish.undecided(h, m, t, bound, exponent, precision, lowest)


@njit
def _overflow(h, m, t, bound, exponent, precision, lowest):
    return finish._overflow_uncertain(h, m, t, bound, exponent, precision, lowest)


def ends(h, m, t, bound, exponent, fmt):
    """Of h + m + t ± bound, as the docstrings have it: m ± the error is rounded, their sums with h are not."""
    err = bound * (1.0 + 2.0**-45) + abs(t) * 2.0 + abs(m) * 2.0**-50
    low, high = Fraction(h) + Fraction(m - err), Fraction(h) + Fraction(m + err)
    scale = Fraction(2) ** exponent
    return low, high, rn(low * scale, fmt), rn(high * scale, fmt)


def cases(rng, fmt):
    """Expansions at every edge of the format: ties, neighbours of ties, binades, the threshold of overflow."""
    for _ in range(4000):
        exponent = int(rng.integers(-1000, 900))
        # The exponent of the value, at the edges more often.
        edge = [fmt.minexp, fmt.minexp - 1, fmt.subnormal_exponent, fmt.maxexp - 1, fmt.maxexp, 0]
        size = int(rng.choice(edge) + rng.integers(-3, 4))
        if not -900 < size - exponent < 900:
            continue
        whole = int(rng.choice([2**53 - 1, 2**52, 2**52 + 1, int(rng.integers(2**52, 2**53))]))
        if rng.random() < 0.3:
            whole = (2**fmt.precision - 1) << (53 - fmt.precision)
        h = float(np.ldexp(float(whole) * 2.0**-52, size - exponent)) * int(rng.choice([-1, 1]))
        ulp = float(np.spacing(abs(h)))
        m = ulp * float(rng.choice([0.0, 0.5, -0.5, 0.25, 0.5 - 2.0**-30, rng.random() - 0.5]))
        t = m * 2.0**-53 * float(rng.choice([0.0, 0.5, -0.5, 1.0, -1.0]))
        ulps = float(rng.choice([2.0**-60, 2.0**-31, 2.0**-30, 0.25, 0.5, 1.0, 3.0, 2.0**25, 2.0**54]))
        yield h, m, t, ulp * ulps * (1.0 + rng.integers(0, 2) * rng.random()), exponent


@pytest.mark.parametrize("precision", [53, pytest.param(24, marks=pytest.mark.slow)])
def test_entries_are_undecided_where_the_ends_round_differently(precision, rng):
    fmt, seen = FORMATS[precision], set()
    for h, m, t, bound, exponent in cases(rng, fmt):
        low, high, a, b = ends(h, m, t, bound, exponent, fmt)
        given = (h, m, t, bound, exponent, precision, fmt.subnormal_exponent)
        assert _undecided(*given) == (a != b or (low > 0) != (high > 0)), given
        assert _overflow(*given) == ((np.isinf(a) or np.isinf(b)) and a != b), given
        seen |= {("undecided", a != b), ("overflow", bool(np.isinf(a)), bool(np.isinf(b)))}
    assert len(seen) == 6, seen
    assert (
        _undecided(1.0, 0.0, 0.0, 0.0, 0, precision, -1074) == 0 == _overflow(1.0, 0.0, 0.0, 0.0, 0, precision, -1074)
    )


@njit
def _blocks(height, width, row_terms, row_power, row_counts, column_terms, column_power, column_counts, terms, k, kappa,
            unit):  # fmt: skip
    """For each block, whether it is certified whole; for each entry, whether `pigeonhole` certifies it or its bound is
    0.
    """
    given = row_terms, row_power, row_counts, column_terms, column_power, column_counts
    _, _, _, extremes = finish.scratch(height, width, 2, *given)
    m, n = row_power.size, column_power.size
    blocks = np.zeros(((m + height - 1) // height, (n + width - 1) // width), np.uint8)
    for r in range(blocks.shape[0]):
        for c in range(blocks.shape[1]):
            blocks[r, c] = finish._block_certified(unit, r * height, c * width, terms, k, kappa, extremes)
    entries, bound = np.zeros((m, n), np.uint8), np.empty(n)
    n1b, db, n2b, fb = column_terms[0], column_terms[1], column_terms[2], column_terms[3]
    for i in range(m):
        n1a, da, n2a, fa = row_terms[0, i], row_terms[1, i], row_terms[2, i], row_terms[3, i]
        finish.bounds(n1a, da, n2a, fa, n1b, db, n2b, fb, terms, bound)
        for j in range(n):
            needed = bound[j] * 2.0**-unit * kappa
            power = row_power[i] + column_power[j]
            certified = finish.pigeonhole(row_counts, i, column_counts, j, k, power, needed, unit)
            entries[i, j] = certified or bound[j] == 0.0
    return blocks, entries


@pytest.mark.parametrize("height, width", [(1, 64), (8, 32)])
def test_a_block_is_certified_only_where_each_of_its_entries_is(height, width, rng):
    """Terms and counts are at the edge of what passes; some rows and columns have no terms, or infinite or NaN ones."""
    k, seen, levels = 500, set(), np.array([150, 250, 350, 420, 470])
    for turn in range(300):
        unit = int(rng.choice([-40, 0, 40]))
        kappa = float(np.exp2(rng.integers(0, 30)))
        sides = []
        for count in (24, 150):
            spread = rng.choice([0.01, 0.3, 3.0])
            terms = np.exp2(50 + spread * rng.standard_normal((4, count)))
            terms[3] = np.exp2(np.rint(spread * rng.standard_normal(count)))
            terms[1] = 1e300 if turn % 2 else terms[1]
            counts = np.sort(np.clip(rng.integers(-40, 40, (count, 5)) + levels, 0, k), axis=1)
            # Powers of which some blocks just pass.
            power = np.full(count, 50) + rng.integers(-1, 2, count) * (turn % 3 > 0)
            odd = rng.random(count)
            terms[:, odd < 0.02], counts[odd < 0.02] = 0.0, 0
            terms[0, odd > 0.995] = rng.choice([np.nan, np.inf])
            sides += [terms, power, counts.astype(np.int64)]
        kappa *= 2.0 ** int(rng.integers(20, 40))
        blocks, entries = _blocks(height, width, *sides, k / 4.0, k, kappa, unit)
        for r, c in np.ndindex(*blocks.shape):
            every = entries[r * height : (r + 1) * height, c * width : (c + 1) * width].all()
            assert every or not blocks[r, c], (turn, r, c)
            seen.add((bool(blocks[r, c]), bool(every)))
    assert seen == {(True, True), (False, True), (False, False)}, seen
