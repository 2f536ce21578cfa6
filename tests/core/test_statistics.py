"""Statistics of errors against rational arithmetic, up to the largest numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from prismm.core.statistics import mean, median, root_mean_square


def near(found: float, exact: Fraction) -> bool:
    return abs(Fraction(found) - exact) <= exact / 2**48 + Fraction(2.0**-1074)


@pytest.mark.parametrize("scale", [2.0**-1074, 2.0**-600, 1.0, 2.0**600, 2.0**1018])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_statistics_neither_overflow_nor_vanish(scale, count, rng):
    errors = np.floor(rng.random(count) * 60) * scale
    true = sorted(map(Fraction, errors.tolist()))
    assert near(mean(errors), sum(true) / count)
    assert near(median(errors), (true[(count - 1) // 2] + true[count // 2]) / 2)
    square = sum(x * x for x in true) / count
    found = Fraction(root_mean_square(errors))
    assert abs(found**2 - square) <= square / 2**46 + Fraction(scale) ** 2 / 2**46 + Fraction(2.0**-1074) * found


def test_errors_without_a_limit_and_no_errors():
    for statistic in (mean, median, root_mean_square):
        assert statistic(np.array([1.0, np.inf])) == np.inf and statistic(np.zeros(0)) == 0.0
        assert statistic(np.zeros((2, 3))) == 0.0
    assert median(np.array([1.0, 2.0, np.inf])) == 2.0
