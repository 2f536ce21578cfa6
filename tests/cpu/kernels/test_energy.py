"""Sums of squares at an address: the exact sum to rounding errors, and a special wherever it lies."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from prismm.core.environment import ARITHMETIC
from prismm.cpu.kernels.energy import energy32, energy64

TABLE = np.concatenate([np.array(ARITHMETIC).view(np.int64), np.zeros(2, np.int64)])
PLACE = TABLE.ctypes.data
KERNELS = {np.float32: energy32, np.float64: energy64}


@pytest.mark.parametrize("dtype", KERNELS, ids=lambda dtype: dtype.__name__)
def test_the_sum_is_exact_to_its_roundings(dtype, seed):
    rng = np.random.default_rng(seed)
    for count in (0, 1, 3, 31, 64, 65, 1000):
        x = (rng.standard_normal(count + 3) * np.exp2(rng.integers(-20, 20, count + 3))).astype(dtype)[3:]
        exact = sum((Fraction(float(value)) ** 2 for value in x), Fraction(0))
        found = Fraction(float(KERNELS[dtype](x.ctypes.data, count, PLACE)))
        assert abs(found - exact) <= (count + 1) * Fraction(float(np.finfo(dtype).eps)) * exact


@pytest.mark.parametrize("dtype", KERNELS, ids=lambda dtype: dtype.__name__)
def test_a_special_is_found_wherever_it_lies(dtype):
    for special in (np.inf, -np.inf, np.nan, np.finfo(dtype).max):
        for at in range(100):
            x = np.zeros(100, dtype)
            x[at] = special
            assert not KERNELS[dtype](x.ctypes.data, 100, PLACE) < np.inf
            assert KERNELS[dtype](x.ctypes.data, at, PLACE) == 0
