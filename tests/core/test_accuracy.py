"""Every accuracy target, on every engine, on every hostile draw: each entry against exact arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.core.accuracy import Target, parse_target
from prismm.errors import AccuracyError
from prismm.formats import format_of
from prismm.testing import HOSTILE, correctly_rounded, exact_product
from prismm.testing.dyadic import Dyadic
from prismm.testing.parts import real_arrays
from tests.judge import (
    CORRECT,
    DTYPES,
    ENGINES,
    assert_bounds_hold,
    assert_meets,
    assert_overflow_is_right,
    assert_same_bits,
    dyadic,
    each_dtype,
    entry_terms,
    magnitudes,
    norms,
    power,
    problem,
    unit_roundoff,
    usable_engines,
)

SHAPE = (11, 17, 9)


def tolerances(dtype: str) -> tuple[float, ...]:
    """Loose, tight, three units of roundoff, and one that only exact values meet."""
    return 1e-10, 1e-13, 3 * format_of(dtype).unit_roundoff, 1e-30


def assert_normwise(exact: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, note: str) -> None:
    """ "fast": |c - exact| <= 2K·u·‖row‖·‖column‖ + K·η, as native GEMMs have it."""
    assert_overflow_is_right(exact, c, note)
    terms = entry_terms(a, c)
    scale = norms(a, 1).times(norms(b, 0))
    allowed = scale.times(unit_roundoff(c)).times(power(0, 2 * terms)) + power(
        format_of(c.dtype).subnormal_exponent, terms
    )
    for part, x in zip(exact.parts, real_arrays(c), strict=True):
        finite = np.isfinite(x)
        gap = abs(part - Dyadic.from_array(np.where(finite, x, 0)))
        assert not ((allowed - gap).numerators < 0)[finite].any(), note


def ways(dtype: str, engine: str | None) -> list[dict[str, Any]]:
    """Keywords of all calls that one draw goes through on an engine, or without one: every target, reproducible or not,
    and schemes by name.
    """
    named = ["native", *tolerances(dtype), "correctly-rounded"]
    if engine is None:
        return [
            *({"accuracy": accuracy} for accuracy in ["fast", *named]),
            *({"accuracy": accuracy, "scheme": prismm.Native()} for accuracy in named),
        ]
    calls: list[dict[str, Any]] = [{"accuracy": accuracy, "reproducible": True} for accuracy in ["fast", *named]]
    calls += [{"accuracy": accuracy} for accuracy in named[1:]]
    calls += [{"accuracy": named[n % len(named)], "scheme": prismm.Residues(n)} for n in (4, 9, 22)]
    return [{**keywords, "engine": engine} for keywords in calls]


each_engine_or_none = pytest.mark.parametrize("engine", [None, *ENGINES])


@pytest.mark.covering
@each_dtype
@each_engine_or_none
@pytest.mark.parametrize("name", HOSTILE)
def test_every_target_on_every_engine(name, engine, dtype, seed):
    problem(engine)
    a, b = HOSTILE[name](*SHAPE, seed, dtype)
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    for keywords in ({}, {"reproducible": True}, CORRECT) if engine is None else ():  # the short paths
        target = keywords.get("accuracy", "native")
        assert_meets(target, exact, magnitude, prismm.matmul(a, b, **keywords), entry_terms(a, a), f"{keywords}")
    for keywords in ways(dtype, engine):
        c, report = prismm.matmul(a, b, full_output=True, **keywords)
        note = f"{keywords}"
        assert c.dtype == dtype
        target = keywords["accuracy"]
        if target == "fast":
            assert_normwise(exact, a, b, c, note)
        else:
            assert_meets(target, exact, magnitude, c, entry_terms(a, c), note)
        assert_bounds_hold(exact, c, report, note)
        if "engine" in keywords:
            assert report.engine == keywords["engine"] or isinstance(report.scheme, prismm.Native), note


@pytest.mark.slow
@each_dtype
@pytest.mark.parametrize("direct", [False, True], ids=["all but direct", "direct"])
def test_larger_products_cross_every_block(direct, dtype, seed):
    """Strips of 256, blocks of 512 columns, 2048 terms of the FP64 engine: wide and cancelling data, on two threads.

    One exact product judges all engines of a shape.
    """
    m, k, n = (9, 2100, 530) if dtype.startswith("float") else (9, 1100, 270)
    if direct:
        m, k, n = 3, 4130, 260  # it carries after 4096 terms
    a, b = HOSTILE["phi2"](m, k, n, seed, dtype)
    a[: m // 2], b[:, ::3] = HOSTILE["cancelling"](m // 2, k, len(range(0, n, 3)), seed, dtype)
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    engines = [engine for engine in usable_engines() if (engine == "cpu:direct") is direct]
    assert engines
    for engine, keywords in itertools.product(engines, (CORRECT, {"accuracy": 1e-15}, {"reproducible": True})):
        note = f"{engine} {keywords}"
        c, report = prismm.matmul(a, b, full_output=True, engine=engine, threads=2, **keywords)
        assert_meets(keywords.get("accuracy", "native"), exact, magnitude, c, entry_terms(a, c), note)
        assert_bounds_hold(exact, c, report, note)


@pytest.mark.covering(("engine", "dtype"))
@each_dtype
@each_engine_or_none
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", ["phi4", "ties", "near_ties", "subnormal_results", "overflow_threshold", "cancelling"])
def test_one_or_two_terms(name, k, engine, dtype, seed):
    problem(engine)
    a, b = HOSTILE[name](7, k, 6, seed, dtype)
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    for keywords in ways(dtype, engine):
        if keywords["accuracy"] != "fast":
            c, report = prismm.matmul(a, b, full_output=True, **keywords)
            assert_meets(keywords["accuracy"], exact, magnitude, c, entry_terms(a, c), f"{keywords}")
            assert_bounds_hold(exact, c, report, f"{keywords}")


def huge_and_cancelling(seed: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """|a||b| far beyond the largest float, all of it in pairs that cancel but for one term, 2^-g times smaller.

    What is left may overflow although a scheme's own value is 0 and its bound meets any target relative to |a||b|.
    """
    rng = np.random.default_rng(seed)
    half, precision = (500, 53) if dtype in ("float64", "complex128") else (60, 24)
    k = int(rng.integers(3, 9))
    u, v = rng.standard_normal((6, k)), rng.standard_normal((k, 5))
    last = rng.standard_normal((6, 1)) * 2.0 ** -rng.integers(0, 2 * precision, (6, 1))
    order = rng.permutation(2 * k + 1)
    a = np.hstack([u, u, last])[:, order]
    b = np.vstack([v, -v, rng.standard_normal((1, 5))])[order]
    a, b = (np.ldexp(x, int(rng.integers(half, 2 * half - 30))) for x in (a, b))
    if dtype.startswith("complex"):
        a, b = a * (1 + 1j), b * 1j ** rng.integers(0, 4, (1, 5))
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.covering("dtype")
@each_dtype
@pytest.mark.parametrize("fast", [False, True], ids=["certified", "fast"])
def test_overflow_that_cancellation_hides(fast, dtype, seed):
    overflowed = 0
    for draw in range(8):
        a, b = huge_and_cancelling(seed + draw, dtype)
        exact, magnitude = exact_product(a, b), magnitudes(a, b)
        overflowed += int(np.isinf(exact.rounded(dtype).real).sum())
        engines = usable_engines()
        for keywords in ways(dtype, None) + ways(dtype, engines[draw % len(engines)]):
            if (keywords["accuracy"] == "fast") is not fast:
                continue
            c = prismm.matmul(a, b, **keywords)
            if fast:
                assert_overflow_is_right(exact, c, f"{keywords}")
            else:
                assert_meets(keywords["accuracy"], exact, magnitude, c, entry_terms(a, c), f"{keywords}")
    assert overflowed > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex64", marks=pytest.mark.slow)])
def test_an_inner_dimension_beyond_one_int32_sum(dtype, seed):
    """k > 131071: INT8 products are summed in blocks, reduced between them."""
    a, b = HOSTILE["uniform"](2, 131_071 + 140, 3, seed, dtype)
    a[1] -= 0.5
    right = correctly_rounded(a, b)
    raw = None
    for engine in usable_engines():
        assert_same_bits(prismm.matmul(a, b, engine=engine, **CORRECT), right, engine)
        value = prismm.matmul(a, b, engine=engine, scheme=prismm.Residues(11))
        raw = value if raw is None else raw
        assert_same_bits(value, raw, engine)


@pytest.mark.slow
def test_the_largest_integers_over_a_long_inner_dimension():
    """All residues at their extremes, with one sign: what would overflow INT32 first."""
    k = 131_071 * 2 + 5
    a, b = np.full((2, k), -(2.0**20)), np.full((k, 2), 2.0**20)
    a[1] += 1.0
    expected = np.array([[-k * 2**40] * 2, [-k * (2**40 - 2**20)] * 2], dtype=object)
    for engine in usable_engines():
        for moduli in (8, 15):
            c = prismm.matmul(a, b, engine=engine, scheme=prismm.Residues(moduli))
            assert [[int(x) for x in row] for row in c] == expected.tolist(), (engine, moduli)


@pytest.mark.covering("name")
@each_dtype
@pytest.mark.parametrize("name", ["normal", "uniform", "phi05", "phi1"])
def test_typical_errors_are_no_larger_than_natives(name, dtype, seed):
    """In the Frobenius norm, with whatever the planner takes for the default target and for reproducible=True."""
    a, b = HOSTILE[name](48, 256, 48, seed, dtype)
    exact = exact_product(a, b)
    native = np.linalg.norm(exact.error(a @ b))
    assert np.linalg.norm(exact.error(prismm.matmul(a, b))) <= 1.1 * native
    assert np.linalg.norm(exact.error(prismm.matmul(a, b, reproducible=True))) <= 1.1 * native


@each_dtype
def test_bounds_say_something(dtype, seed):
    """A bound of infinity would always hold: on normal data each is near what its theorem gives."""
    a, b = HOSTILE["normal"](20, 64, 24, seed, dtype)
    exact = exact_product(a, b)
    u, terms = format_of(dtype).unit_roundoff, entry_terms(a, a)
    size = exact.magnitude("up")
    for keywords, share in (({}, 1.01), ({"reproducible": True}, 1.0), ({"scheme": prismm.Residues(15)}, 1.0)):
        _, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert (report.bounds <= share * terms * u * size).all(), keywords
        assert (report.bounds > 0).all()
    c, report = prismm.matmul(a, b, full_output=True, **CORRECT)
    half_ulps = exact.ulps(c)
    assert (half_ulps <= 0.5).all()
    assert (report.bounds <= u * np.abs(c) * 1.01).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_fixed_point_holds_exactly_has_no_error_but_the_rounding(dtype, seed):
    a, b = HOSTILE["lattice"](12, 40, 13, seed, dtype)
    c, report = prismm.matmul(a, b, scheme=prismm.Residues(7), full_output=True)
    assert_same_bits(c, correctly_rounded(a, b))
    assert (report.bounds <= np.spacing(np.abs(c).max().astype(np.float64) + 1)).all() or dtype.endswith(("32", "64"))
    assert (report.bounds <= format_of(dtype).unit_roundoff * (np.abs(c) + 1)).all()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("fast", Target("fast")),
        ("correctly-rounded", Target("correctly-rounded")),
        (1e-12, Target("tolerance", 1e-12)),
        (np.float32(0.5), Target("tolerance", 0.5)),
        (1, Target("tolerance", 1.0)),
    ],
)
def test_targets_are_parsed(given, expected):
    assert parse_target(given) == expected


@pytest.mark.parametrize("given", ["exact", "", "Native", 0.0, -1e-9, np.inf, np.nan, True, None, [1e-9], 1j])
def test_other_targets_are_refused(given):
    with pytest.raises(AccuracyError) as caught:
        parse_target(given)
    message = str(caught.value)
    assert "accuracy" in message
    assert "1e-12" in message or "native" in message


def test_a_loose_tolerance_still_bounds_the_error():
    """A tolerance far above u: the result may be coarse, never coarser than asked for."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((30, 50)), rng.standard_normal((50, 30))
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    for tolerance in (0.5, 1e-3, 1e-6):
        for engine in usable_engines():
            c = prismm.matmul(a, b, accuracy=tolerance, reproducible=True, engine=engine)
            assert_meets(tolerance, exact, magnitude, c, 50)
            assert (magnitude.times(dyadic(tolerance)).rounded(format_of("float64")) > 0).all()
