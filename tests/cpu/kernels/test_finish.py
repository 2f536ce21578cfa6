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
