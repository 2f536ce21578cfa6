"""What every composite scheme must hold: its bound, all targets, scale invariance, specials, gemm, batches, prepare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import prismm
from prismm.errors import ArgumentError, EngineError, OperandError
from prismm.testing import HOSTILE, SPECIAL, exact_gemm, exact_product, ieee_specials
from tests.judge import (
    CORRECT,
    assert_bounds_hold,
    assert_gemm,
    assert_meets,
    assert_overflow_is_right,
    assert_same_bits,
    each_dtype,
    entry_terms,
    magnitudes,
)
from tests.schemes.composite_cases import SCHEMES, each_composite, some_composites

TARGETS: list[Any] = [None, "fast", "native", 1e-5, 1e-14, "correctly-rounded"]


@pytest.mark.slow
@each_dtype
@pytest.mark.parametrize("name", HOSTILE)
def test_every_target_on_hostile_data(name, dtype, seed):
    """Bounds hold, targets are met, overflow is right, at every entry, by exact arithmetic."""
    shape = (11, 23, 13) if dtype.startswith("float") else (5, 12, 7)
    a, b = HOSTILE[name](*shape, seed, dtype)
    exact, magnitude = exact_product(a, b), magnitudes(a, b)
    for label, scheme in SCHEMES.items():
        for target in TARGETS:
            c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
            note = f"{label} {target}"
            assert_overflow_is_right(exact, c, note)
            assert_bounds_hold(exact, c, report, note)
            if target not in (None, "fast"):
                assert_meets(target, exact, magnitude, c, entry_terms(a, c), note)


@pytest.mark.covering("scheme", "name")
@each_composite
@pytest.mark.parametrize("name", ["normal", "phi2", "cancelling"])
def test_a_long_product(name, scheme, seed):
    """Chunks, blocks of slices and tiles all come into play."""
    a, b = HOSTILE[name](9, 700, 10, seed, "float32")
    exact = exact_product(a, b)
    for target in (None, "native", *CORRECT.values()):
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
        assert_bounds_hold(exact, c, report, f"{target}")
        if target is not None:
            assert_meets(target, exact, magnitudes(a, b), c, 700, f"{target}")


@pytest.mark.covering("scheme")
@each_dtype
@each_composite
def test_powers_of_two_pass_straight_through(scheme, dtype, rng):
    """Law 3, for the raw value and under a target."""
    a, b = HOSTILE["phi1"](12, 40, 9, int(rng.integers(2**32)), dtype)
    rows, columns = rng.integers(-20, 20, 12), rng.integers(-20, 20, 9)
    scaled_a, scaled_b = (
        a * np.ldexp(1.0, rows)[:, None].astype(a.real.dtype),
        b * np.ldexp(1.0, columns).astype(a.real.dtype),
    )
    for target in (None, "native", *CORRECT.values()):
        c = prismm.matmul(a, b, scheme=scheme, accuracy=target)
        got = prismm.matmul(scaled_a, scaled_b, scheme=scheme, accuracy=target)
        factor = np.ldexp(1.0, rows[:, None] + columns[None, :]).astype(a.real.dtype)
        assert_same_bits(got, c * factor, str(target))


@pytest.mark.covering("name")
@each_dtype
@pytest.mark.parametrize("name", SPECIAL)
def test_specials_are_what_the_sum_gives(name, dtype, seed):
    a, b = SPECIAL[name](7, 9, 8, seed, dtype)
    expected = ieee_specials(a, b)
    special = ~np.isfinite(expected)
    for label, scheme in SCHEMES.items():
        for target in (None, "native", "correctly-rounded"):
            c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
            assert np.array_equal(np.where(special, c, 0), np.where(special, expected, 0), equal_nan=True), label
            clean_a = np.where(np.isfinite(a).all(axis=1, keepdims=True), a, 0)
            clean_b = np.where(np.isfinite(b).all(axis=0, keepdims=True), b, 0)
            alone = prismm.matmul(clean_a, clean_b, scheme=scheme, accuracy=target)
            inside = np.isfinite(a).all(axis=1)[:, None] & np.isfinite(b).all(axis=0)[None, :]
            if scheme.granule == (1, 1):
                assert_same_bits(c[inside], alone[inside], label)
            assert sum(report.paths.values()) == c.size * (2 if c.dtype.kind == "c" else 1)


@pytest.mark.covering("scheme")
@each_dtype
@each_composite
def test_gemm_is_certified_as_a_whole(scheme, dtype, rng):
    seed = int(rng.integers(2**32))
    a, b = HOSTILE["phi1"](9, 30, 8, seed, dtype)
    c = HOSTILE["normal"](9, 8, 1, seed, dtype)[0]
    alpha, beta = (0.7, -1.3) if np.dtype(dtype).kind == "f" else (0.7 - 0.2j, 0.4 + 1.3j)
    assert_gemm(a, b, c, alpha, beta, *({"scheme": scheme, "accuracy": target} for target in TARGETS))
    # beta = 0 never reads C, alpha = 0 neither A nor B.
    assert_same_bits(prismm.gemm(a, b, np.full_like(c, np.nan), scheme=scheme), prismm.matmul(a, b, scheme=scheme))
    bad = np.full_like(a, np.nan)
    got = prismm.gemm(bad, b, c, alpha=0.0, beta=2.0, scheme=scheme)
    assert_same_bits(got, (c * 2).astype(dtype))


@some_composites
def test_gemm_of_extremes(scheme, rng):
    """Sums that overflow, cancel exactly or hold Inf in C."""
    a, b = rng.standard_normal((4, 6)), rng.standard_normal((6, 5))
    c = rng.standard_normal((4, 5))
    c[1, 2] = np.inf
    big = 2.0**1020
    for alpha, beta, addend in ((big, 1.0, c), (1.0, big, c * 2.0**3), (2.0**-1060, 1.0, c * 2.0**-1040)):
        exact = exact_gemm(alpha, a, b, beta, np.where(np.isfinite(addend), addend, 0))
        for target in (None, "native", "correctly-rounded"):
            d = prismm.gemm(a, b, addend, alpha=alpha, beta=beta, scheme=scheme, accuracy=target)
            finite, expected = np.isfinite(addend), exact.rounded(np.float64)
            assert (d[~finite] == np.inf).all()
            assert np.array_equal(np.isinf(d[finite]), np.isinf(expected[finite])), (alpha, beta, target)
            if target == "correctly-rounded":
                assert_same_bits(d[finite], expected[finite])


@some_composites
def test_batches_and_vectors(scheme, rng):
    a, b = rng.standard_normal((3, 1, 4, 20)), rng.standard_normal((2, 20, 5))
    c, report = prismm.matmul(a, b, scheme=scheme, full_output=True)
    assert c.shape == (3, 2, 4, 5) and report.bounds.shape == c.shape
    for i in range(3):
        for j in range(2):
            assert_same_bits(c[i, j], prismm.matmul(a[i, 0], b[j], scheme=scheme))
            assert report.bound(i, j, 1, 2) == pytest.approx(report.bounds[i, j, 1, 2], rel=1e-12)
    assert prismm.matmul(a[0, 0], b[0, :, 0], scheme=scheme).shape == (4,)
    assert prismm.matmul(b[0, :, 0], b[0, :, 1], scheme=scheme).shape == ()
    assert prismm.matmul(np.ones((2, 0)), np.ones((0, 3)), scheme=scheme).tolist() == np.zeros((2, 3)).tolist()
    assert prismm.matmul(np.ones((0, 3)), np.ones((3, 2)), scheme=scheme).shape == (0, 2)


@pytest.mark.covering("scheme")
@each_dtype
@some_composites
def test_prepared_operands_are_split_once(scheme, dtype, seed):
    a, b = HOSTILE["phi1"](20, 33, 17, seed, dtype)
    for target in (None, "native", "correctly-rounded"):
        c, plain = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
        assert plain.splits["left"] >= a.size and plain.splits["right"] >= b.size
        left = prismm.prepare(a, side="left", scheme=scheme, accuracy=target)
        right = prismm.prepare(b, side="right", scheme=scheme, accuracy=target)
        assert right.nbytes > b.nbytes
        for x, y, split in ((a, right, ("left",)), (left, b, ("right",)), (left, right, ())):
            d, report = prismm.matmul(x, y, full_output=True)
            assert {side for side, count in report.splits.items() if count} == set(split)
            assert_same_bits(d, c, str(split))
            assert report.bounds.tolist() == plain.bounds.tolist()
        with pytest.raises(OperandError, match="prepared with scheme"):
            prismm.matmul(a, right, scheme=prismm.Residues(3))


@some_composites
@pytest.mark.parametrize("kind", ["float16", "int8", "uint16", "int32", "int64", "uint64"])
def test_other_types_are_taken_exactly(scheme, kind, rng):
    if kind == "float16":
        a, b = (rng.standard_normal(s).astype(kind) for s in ((6, 9), (9, 5)))
    else:
        info = np.iinfo(kind)
        a, b = (rng.integers(info.min, info.max, s, dtype=kind, endpoint=True) for s in ((6, 9), (9, 5)))
    exact = exact_product(a, b)
    for target in (None, "native", "correctly-rounded"):
        c, report = prismm.matmul(a, b, scheme=scheme, accuracy=target, full_output=True)
        assert_bounds_hold(exact, c, report, str(target))
        if target is not None:
            assert_meets(target, exact, magnitudes(a, b), c, 9, kind)


@some_composites
def test_blocks_change_nothing(scheme, monkeypatch, rng):
    """A memory limit that cuts the product into many tiles leaves every bound, and B is split once; of a reproducible
    scheme, every bit. BLAS has kernels of its own for small tiles on some processors, which sum in another order.
    """
    from prismm.cpu import backend

    a, b = rng.standard_normal((96, 70)), rng.standard_normal((70, 64))
    whole, one = prismm.matmul(a, b, scheme=scheme, accuracy=1e-3, full_output=True)
    monkeypatch.setattr(backend, "workspace_limit", lambda *_: 1 << 17)
    cut, many = prismm.matmul(a, b, scheme=scheme, accuracy=1e-3, full_output=True)
    assert len(many.pieces[0].outcome.bound.pieces) > len(one.pieces[0].outcome.bound.pieces)
    assert_bounds_hold(exact_product(a, b), cut, many)
    assert many.splits["right"] == b.size
    raw = prismm.matmul(a, b, scheme=scheme)
    monkeypatch.undo()
    if scheme.reproducible:
        assert_same_bits(raw, prismm.matmul(a, b, scheme=scheme))
    assert whole.shape == cut.shape


@each_composite
def test_plans_tell_what_runs(scheme):
    x = np.ones((8, 8), np.float32)
    plan = prismm.explain(x, x, scheme=scheme)
    _, report = prismm.matmul(x, x, scheme=scheme, full_output=True)
    assert (plan.scheme, plan.engine) == (scheme, report.engine)
    assert plan.products >= 1 and plan.predicted_seconds > 0 and plan.workspace_bytes > 0
    assert all(alternative.reason for alternative in plan.alternatives)
    assert not any(alternative.scheme == str(scheme) for alternative in plan.alternatives)
    again = prismm.matmul(x, x, scheme=scheme, engine=plan.engine)
    assert_same_bits(again, prismm.matmul(x, x, scheme=scheme))
    if scheme.reproducible:
        prismm.matmul(x, x, scheme=scheme, reproducible=True)
    else:
        with pytest.raises(ArgumentError, match="is not reproducible"):
            prismm.matmul(x, x, scheme=scheme, reproducible=True)


@some_composites
def test_engines_that_do_not_fit_are_named(scheme):
    x = np.ones((3, 3))
    with pytest.raises(prismm.errors.PrismmError, match="abacus"):
        prismm.matmul(x, x, scheme=scheme, engine="abacus")
    for keywords in ({}, {"scheme": prismm.Residues()}, {"scheme": prismm.Native()}):
        with pytest.raises((ArgumentError, EngineError), match="simulated:volta"):
            prismm.matmul(x, x, engine="simulated:volta", **keywords)


def test_environment_names_a_default_engine(monkeypatch):
    x = np.ones((3, 3))
    for name in ("cpu:int8", "cpu:float64", "cpu:blas"):
        monkeypatch.setenv("PRISMM_ENGINE", name)
        _, report = prismm.matmul(x, x, scheme=prismm.Words.tf32(), full_output=True)
        assert report.engine == "cpu:blas"
    _, report = prismm.matmul(x, x, scheme=prismm.Residues(), full_output=True)
    assert report.engine.startswith("cpu:")
    monkeypatch.setenv("PRISMM_ENGINE", "abacus")
    with pytest.raises(ArgumentError, match="abacus"):
        prismm.matmul(x, x, scheme=prismm.Words.tf32())


@pytest.mark.slow
@some_composites
@pytest.mark.parametrize("alpha", [1.7e308, 1e300, -1e-300, 5e-324])
def test_gemm_with_factors_at_the_ends_of_the_range(scheme, alpha, rng):
    """alpha brings a product back that is tiny or huge itself; columns of A are large where rows of B are small."""
    sizes = np.where(np.arange(17) % 2, -200, 0)
    a = np.ldexp(rng.standard_normal((6, 17)), sizes)
    b = np.ldexp(rng.standard_normal((17, 5)), -230 - sizes[:, None])
    c = rng.standard_normal((6, 5))
    for shift in (-440, -300, 0, 300, 440):
        x, y = np.ldexp(a, shift), np.ldexp(b, shift)
        for left, beta in ((x, 0.0), (x, 1.0), (x + 1j * a, -1.0)):
            targets = (None, "native", 1e-10, 1e-25, "correctly-rounded")
            assert_gemm(left, y, c, alpha, beta, *({"scheme": scheme, "accuracy": target} for target in targets))
