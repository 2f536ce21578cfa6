"""Inf and NaN: entries that meet one get the defining sum's value, all others never notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import prismm
from prismm.formats import format_of
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded, exact_product, ieee_specials
from prismm.testing.parts import real_arrays
from tests.judge import CORRECT, assert_same_bits, each_dtype, entry_terms, usable_engines

inf, nan = np.inf, np.nan


def calls(engines: list[str]) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = [{}, {"accuracy": "fast"}, {"accuracy": 1e-12}, {"scheme": prismm.Native()}]
    for engine in engines:
        for keywords in (CORRECT, {"reproducible": True}, {"scheme": prismm.Residues(15)}, {"accuracy": 1e-14}):
            plain.append({**keywords, "engine": engine})
    return plain


def finite_only(x: np.ndarray) -> np.ndarray:
    clean = x.copy()
    for part in real_arrays(clean):
        part[~np.isfinite(part)] = 0
    return clean


def assert_specials(a: np.ndarray, b: np.ndarray, keywords: dict[str, Any], name: str) -> None:
    c, report = prismm.matmul(a, b, full_output=True, **keywords)
    note = f"{name} {keywords}"
    rows, columns = ~np.isfinite(a).all(axis=1), ~np.isfinite(b).all(axis=0)
    met = rows[:, None] | columns[None, :]
    assert_same_bits(np.where(met, c, 0), np.where(met, ieee_specials(a, b), 0).astype(c.dtype), note)
    parts = 2 if c.dtype.kind == "c" else 1
    assert report.paths.get("special", 0) == met.sum() * parts, note
    assert sum(report.paths.values()) == c.size * parts, note
    if keywords.get("accuracy") == "correctly-rounded":
        assert_same_bits(c, correctly_rounded(a, b), note)
    u, k = format_of(c.dtype).unit_roundoff, entry_terms(a, c)
    exact = exact_product(finite_only(a), finite_only(b))
    error = exact.error(np.where(met, exact.rounded(c.dtype), c))
    if not isinstance(keywords.get("scheme"), prismm.Residues):  # whose own value promises `bounds`, below, alone
        assert (error <= k * u * exact.magnitude("up"))[~met].all(), note
    bounds = report.bounds
    assert (bounds[~np.isfinite(c)] == 0).all(), note
    assert (bounds >= error)[np.isfinite(c) & ~met].all(), note


@pytest.mark.covering("name")
@each_dtype
@pytest.mark.parametrize("name", SPECIAL)
def test_specials_everywhere(name, dtype, seed):
    for shape in ((12, 9, 10), (1, 1, 1), (3, 2, 5)):
        a, b = SPECIAL[name](*shape, seed, dtype)
        for keywords in calls(usable_engines()):
            assert_specials(a, b, keywords, name)


@each_dtype
def test_specials_in_products_that_a_pipeline_takes(dtype, seed):
    a, b = SPECIAL["specials"](40, 50, 44, seed, dtype)
    for keywords in ({}, {"reproducible": True}, CORRECT, {"accuracy": 1e-15}):
        assert_specials(a, b, keywords, "specials")


def test_every_pair_of_values():
    """One term: all pairs of zeros, ones, extremes, infinities and NaN, as IEEE multiplies them."""
    values = np.array([0.0, -0.0, 1.0, -1.0, 1e308, -5e-324, inf, -inf, nan])
    for dtype in ("float64", "float32"):
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            x = values.astype(dtype)
            expected = x[:, None] * x[None, :]
        for engine in usable_engines():
            c = prismm.matmul(x[:, None], x[None, :], engine=engine, **CORRECT)
            assert_same_bits(
                np.where(np.isfinite(c), c + 0, c), np.where(np.isfinite(c), expected + 0, expected), engine
            )


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        ([inf, -inf], [1.0, 1.0], nan),
        ([inf, inf], [1.0, 1.0], inf),
        ([inf, inf], [1.0, -1.0], nan),
        ([inf, 1.0], [0.0, 1.0], nan),
        ([inf, 1.0], [-0.0, inf], nan),
        ([inf, 1e308], [-1.0, 1e308], -inf),
        ([nan, 1.0], [0.0, 1.0], nan),
        ([0.0, 1.0], [nan, 1.0], nan),
        ([-inf, 1e300], [1e-320, 1e300], -inf),
    ],
)
def test_sums_that_meet_infinity(row, column, expected):
    """1e308·1e308 is finite in the defining sum: only the operands' own infinities count."""
    a, b = np.array([row, [1.0, 2.0]]), np.array([column, [3.0, 4.0]]).T
    for keywords in calls(usable_engines()):
        c = prismm.matmul(a, b, **keywords)
        assert_same_bits(c[0, 0], np.float64(expected), f"{keywords}")
        assert c[1, 1] == 11.0


@each_dtype
def test_no_warning_and_no_error_from_any_special(dtype):
    """All NaN, all Inf, and an infinite operand against an empty one (pytest turns warnings into errors)."""
    for value in (inf, -inf, nan):
        x = np.full((4, 4), value, dtype)
        for keywords in calls(usable_engines()):
            assert not np.isfinite(prismm.matmul(x, x, **keywords).real).any()
    empty = prismm.matmul(np.full((3, 0), inf, dtype), np.full((0, 2), nan, dtype))
    assert_same_bits(empty, np.zeros((3, 2), dtype))


@each_dtype
def test_overflow_gives_infinity_of_the_right_sign_only_where_it_must(dtype, seed):
    for name in ("overflow_threshold", "near_overflow"):
        a, b = HOSTILE[name](8, 9, 7, seed, dtype)
        expected = exact_product(a, b).rounded(dtype)
        for keywords in calls(usable_engines()):
            if "scheme" in keywords and isinstance(keywords["scheme"], prismm.Residues):
                continue  # the scheme's own value may overflow by itself
            c = prismm.matmul(a, b, **keywords)
            for got, right in zip(real_arrays(c), real_arrays(expected), strict=True):
                assert_same_bits(np.where(np.isinf(got), got, 0), np.where(np.isinf(right), right, 0), f"{keywords}")


def test_the_sign_of_zero():
    """An exact zero is +0; what underflows keeps its sign; so does every reproducible scheme."""
    tiny = 2.0**-600
    a = np.array([[1.0, -1.0], [tiny, 0.0], [-0.0, -0.0], [-tiny, tiny]])
    b = np.array([[1.0, -tiny], [1.0, 0.0]])
    expected = np.array([[0.0, -tiny], [tiny, -0.0], [0.0, 0.0], [0.0, 0.0]])
    for engine in usable_engines():
        for keywords in (CORRECT, {"reproducible": True}):
            assert_same_bits(prismm.matmul(a, b, engine=engine, **keywords), expected, f"{engine} {keywords}")


@each_dtype
def test_large_integers_beside_infinity(dtype, rng):
    """Integers beyond 2^53 are multiplied as high + low, where low may be 0 or have the other sign."""
    whole = np.array([[2**53 + 1, -(2**62) - 1, 2**62 - 1], [2**60, -(2**53) - 2, 3], [5, 0, 2**63 - 1]])
    for value in (inf, -inf, nan):
        for h in range(3):
            b = rng.standard_normal((3, 2)).astype(dtype)
            b[h, 0] = value
            for keywords in ({}, CORRECT, {"reproducible": True}, {"scheme": prismm.Residues(9)}):
                assert_specials(whole, b, keywords, f"left, {value} at {h}")
                assert_specials(b.T, whole.T, keywords, f"right, {value} at {h}")
                batch = prismm.matmul(np.stack([whole, -whole]), b, **keywords)
                assert_same_bits(batch[1], prismm.matmul(-whole, b, **keywords))
