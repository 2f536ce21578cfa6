"""What hostile rows are made of: random words, and values of formats toward zero."""

from fractions import Fraction
from math import copysign, floor, frexp, nextafter

import numpy as np
import pytest

from prismm.core import jit
from prismm.core.pointers import pointer
from prismm.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, FP32, FP64, TF32
from prismm.numerics.kernels.draw_random import INPUT, OUTPUT, STATE, chance, integer_between, random_sign, uniform
from prismm.numerics.kernels.draw_terms import fit
from prismm.numerics.vectors import Aim

WORD = (1 << 64) - 1


def splitmix(state):
    """Steele, Lea and Flood's generator, in Python's integers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
        yield z ^ z >> 31


@pytest.fixture
def compiled(monkeypatch, capfd):
    """Kernels of the tests' own, which leave nothing in the user's cache."""
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    return jit.kernel


def test_words_are_those_of_the_generator(compiled, seed):
    @compiled("void(int64[::1], float64[:,::1])")
    def drawn(words, out):
        d = pointer(words, 0)
        for i in range(out.shape[0]):
            out[i, 0] = uniform(d)
            out[i, 1] = chance(d, 0.8)
            out[i, 2] = random_sign(d)
            out[i, 3] = integer_between(d, -3, 3)
            out[i, 4] = integer_between(d, 5, 4)

    assert next(splitmix(1234567)) == 6457827717110365317  # as published
    for start in (0, 1, -1, -(1 << 63), (1 << 63) - 1, seed):
        words, out = np.zeros(20, np.int64), np.empty((500, 5))
        words[STATE] = start
        drawn(words, out)
        twin = splitmix(start & WORD)
        for row in out:
            z = [next(twin) for _ in range(5)]
            u = [(x >> 11) * 2.0**-53 for x in z]
            assert row.tolist() == [u[0], u[1] < 0.8, -1.0 if z[2] >> 63 else 1.0, floor(u[3] * 7) - 3, 5.0]


def test_values_are_cut_toward_zero(compiled, rng):
    @compiled("void(int64[::1], float64[::1], float64[:,::1])")
    def fitted(words, x, out):
        d = pointer(words, 0)
        for i in range(x.size):
            out[0, i] = fit(d, x[i], INPUT)
            out[1, i] = fit(d, x[i], OUTPUT)

    def toward_zero(x, format):
        size = min(abs(Fraction(x)), Fraction(format.max)) if abs(x) < np.inf else Fraction(format.max)
        exponent = max(frexp(size)[1] - 1, format.minexp) - format.fraction_bits
        return copysign(float(floor(size / Fraction(2) ** exponent) * Fraction(2) ** exponent), x)

    for pair in ((BF16, FP32), (FP16, BF16), (TF32, FP16), (E4M3, FP64), (E5M2, FP64), (E2M1, E2M3), (FP64, E3M2)):
        near = [f for format in pair for f in (format.max, format.smallest_normal, format.smallest_subnormal)]
        near += [nextafter(f, side) for f in near for side in (0.0, np.inf)]
        any_size = rng.uniform(-2, 2, 300) * 2.0 ** rng.integers(-160, 140, 300)
        x = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, *near, *np.negative(near), *any_size])
        out = np.empty((2, x.size))
        fitted(Aim(*pair).words.copy(), x, out)
        for found, format in zip(out, pair, strict=True):
            wanted = np.array([toward_zero(float(v), format) for v in x])
            assert found.tobytes() == wanted.tobytes(), (format.name, x[found != wanted])
