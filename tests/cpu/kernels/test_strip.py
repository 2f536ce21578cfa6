"""Sums of digits in registers: the same as in Numba's loops, for every number of moduli and part of a product."""

import numpy as np
import pytest
from numba import njit

from prismm.core.moduli import MAX_MODULI, residue_system
from prismm.cpu.kernels.join import sums_of
from prismm.cpu.kernels.strip import strip_sums, strip_sums_cross, strip_sums_difference


@njit
def _real(c, i, w, limbs, modulus, reciprocal, weights, sums):
    strip_sums(c[0], c[0], c[0], i, w, limbs, modulus, reciprocal, weights, sums)


@njit
def _difference(c, i, w, limbs, modulus, reciprocal, weights, sums):
    strip_sums_difference(c[0], c[1], c[2], i, w, limbs, modulus, reciprocal, weights, sums)


@njit
def _cross(c, i, w, limbs, modulus, reciprocal, weights, sums):
    strip_sums_cross(c[0], c[1], c[2], i, w, limbs, modulus, reciprocal, weights, sums)


@njit
def _twin(c, i, w, part, limbs, modulus, reciprocal, weights, sums):
    y, rest = np.empty((4, w)), np.empty(w)
    sums_of(c[0, i], c[1, i], c[2, i], 0, w, part, limbs, 1, modulus, reciprocal, weights, y, rest, sums)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """What is compiled for this file alone counts for no test."""
    system = residue_system(2, 256)
    c, tables = np.zeros((3, 1, 2, 1), np.int32), (system.modulus, system.reciprocal, system.weights)
    for kernel in (_real, _difference, _cross):
        kernel(c, 0, 1, system.limbs, *tables, np.zeros((5, 256)))
    _twin(c, 0, 1, 0, system.limbs, *tables, np.zeros((5, 256)))


def number(limbs, system):
    """The integer that limbs stand for, the top one first."""
    return sum(int(x) << (40 * (system.limbs - 1 - i)) for i, x in enumerate(limbs[: system.limbs]))


@pytest.mark.parametrize("moduli", range(2, MAX_MODULI + 1))
def test_any_products(moduli, rng):
    system = residue_system(moduli, 256)
    ends = np.iinfo(np.int32)
    c = rng.integers(ends.min, ends.max, (3, 5, moduli, 192), endpoint=True, dtype=np.int32)
    c[:, 0] = rng.choice([ends.min, ends.max, 0, -1, 1], c[:, 0].shape)
    c[:, 1] = (rng.integers(-300, 300, c[:, 1].shape) * np.array(system.moduli)[:, None]) // 2  # ties of the quotient
    for part, kernel in enumerate((_real, _difference, _cross)):
        for w in (1, 16, 17, 192):
            for i in range(5):
                found, expected = np.full((5, 256), 7.0), np.zeros((5, 256))
                tables = (system.limbs, system.modulus, system.reciprocal, system.weights)
                kernel(c, i, w, *tables, found)
                _twin(c, i, w, part, *tables, expected)
                assert np.array_equal(found[: system.limbs, :w], expected[: system.limbs, :w])
                assert (found[system.limbs :] == 7.0).all() and (found[:, (w + 15) // 16 * 16 :] == 7.0).all()
                exact = c[0, i].astype(object)
                exact = exact - c[1, i] if part == 1 else c[2, i] - exact - c[1, i] if part == 2 else exact
                for j in (0, w - 1):
                    # Either digit of a tie is right.
                    digits = [v - q * round(v / q) for v, q in zip(exact[:, j], system.moduli, strict=True)]
                    wanted = sum(d * number(row, system) for d, row in zip(digits, system.weights, strict=False))
                    assert (number(found[:, j], system) - wanted) % number(system.product, system) == 0
