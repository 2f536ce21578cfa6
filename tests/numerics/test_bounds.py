"""The bound of every model against exact arithmetic, at the worst entry, on hostile operands."""

import dataclasses
import math
from fractions import Fraction
from operator import mul

import numpy as np
import pytest

from prismm.formats import BF16, FP16, FP32, FP64
from prismm.numerics import catalogue, simulate
from prismm.numerics.bounds import dot_bound, unbounded
from prismm.numerics.model import EngineModel
from tests.cpu.kernels.harness import integers
from tests.numerics.models import KINDS, NARROW, columnwise_model, float_model, plainer, values

ROWS = 6


def share(model, a, b, largest=math.inf):
    """The largest |computed - exact| as a share of the bound; results that overflowed are left out."""
    gamma, floor = dot_bound(model, a.shape[1], largest)
    worst = 0.0
    if math.isinf(gamma) or math.isinf(floor):
        return worst
    for x, y, d in zip(a, b, simulate.dot(model, a, b), strict=True):
        if not math.isfinite(d):
            continue
        (u, e), (v, f) = integers(x), integers(y)
        terms, unit = list(map(mul, u, v)), 1 << (e + f)
        gap = abs(Fraction(d) - Fraction(sum(terms), unit))
        room = Fraction(gamma) * Fraction(sum(map(abs, terms)), unit) + Fraction(floor)
        if gap:
            worst = max(worst, float(gap / room) if room else math.inf)
    return worst


def check(model, rng, kinds, k):
    for kind in kinds:
        a, b = (values(model.input, (ROWS, k), kind, rng) for _ in "ab")
        largest = float(max(np.abs(a).max(), np.abs(b).max()))
        assert share(model, a, b, largest) <= 1, (model, kind, k, a, b)
    assert share(model, a, b) <= 1, (model, kind, k, a, b)


HOSTILE = [kind for kind in KINDS if kind != "specials"]


@pytest.mark.parametrize("part", [*range(2), *(pytest.param(i, marks=pytest.mark.slow) for i in range(2, 6))])
def test_it_holds_for_random_models(part, rng):
    for _ in range(60):
        model = columnwise_model(rng) if rng.random() < 0.1 else float_model(rng)
        if rng.random() < 0.6:
            model = plainer(model, rng)
        model = dataclasses.replace(model, carry_bits=None, scale=None, overflow="infinity")
        assert unbounded(model) is None
        check(model, rng, [str(kind) for kind in rng.choice(HOSTILE, 3)], int(rng.integers(1, 70)))


def bounded() -> dict[str, EngineModel]:
    """The models of the catalogue that have a bound, each by the first of the engines that compute alike."""
    found: dict[EngineModel, str] = {}
    for name in catalogue.engines():
        model = catalogue.engine(name)
        if unbounded(model) is None:
            found.setdefault(model, name)  # a name is of no meaning in comparisons
    return {name: model for model, name in found.items()}


@pytest.mark.parametrize("model", bounded().values(), ids=bounded())
def test_it_holds_for_the_catalogue(model, rng):
    for k in (1, 7, 64, 150):
        check(model, rng, HOSTILE, k)


@pytest.mark.parametrize(
    "model",
    [
        EngineModel("aligned", FP16, FP32, block=8, fraction_bits=24, rounding="zero"),
        EngineModel("floor", FP16, FP32, block=8, fraction_bits=24, alignment="floor", rounding="floor"),
        EngineModel("sequential", BF16, FP32, block=4, summation="sequential", rounding="zero"),
    ],
    ids=lambda m: m.name,
)
def test_it_is_nearly_attained(model):
    """A large first product, then small ones of one sign that lose all that such an engine can take from them."""
    kept = 24 if model.summation == "aligned" else 23
    depth = model.instruction_depth
    best = 0.0
    for sign in (1.0, -1.0):
        a, b = np.zeros((2, 1, 33 * depth))
        a[0, 0], b[0, 0] = sign, 1.0
        a[0, depth:], b[0, depth:] = sign * (2 - 2.0**-model.input.fraction_bits) * 2.0**-12, 2.0 ** -(kept - 11)
        best = max(best, share(model, a, b, 2.0))
    assert 0.5 < best <= 1


@pytest.mark.parametrize("inputs", NARROW, ids=lambda f: f.name)
def test_flushed_inputs_are_in_the_floor(inputs, rng):
    for policy in ("flush", "flush-to-positive"):
        model = EngineModel("", inputs, FP32, subnormal_inputs=policy)
        below = inputs.smallest_normal - inputs.smallest_subnormal
        a, b = np.full((1, 9), below), np.full((1, 9), inputs.max)
        assert 0.49 < share(model, a, b) <= 1
        check(model, rng, HOSTILE, 20)


def test_what_has_no_bound_says_why():
    assert "integers" in unbounded(catalogue.engine("a100.int8.int32"))
    wraps = EngineModel("", FP16, FP32, block=8, fraction_bits=24, carry_bits=3)
    assert "wrap" in unbounded(wraps) and unbounded(dataclasses.replace(wraps, carry_bits=4)) is None
    assert dot_bound(EngineModel("", FP64, FP64), 10)[1] >= 10 * 5e-324  # products below float64's range
