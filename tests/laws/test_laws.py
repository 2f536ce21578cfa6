"""The laws of reproducible products: same bits whatever surrounds an entry, and powers of two pass straight through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import prismm
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded
from tests.judge import CORRECT, assert_same_bits, each_dtype, each_engine, problem, usable_engines

M, K, N = 38, 60, 43
"""More multiply-adds than the direct engine takes by itself, so that the default engine is a pipeline."""

CALLS: dict[str, dict[str, Any]] = {
    "reproducible": {"reproducible": True},
    "reproducible, tight": {"reproducible": True, "accuracy": 1e-14},
    "fast": {"reproducible": True, "accuracy": "fast"},
    "correctly rounded": CORRECT,
    "6 moduli": {"scheme": prismm.Residues(6)},
    "19 moduli, certified": {"scheme": prismm.Residues(19), "accuracy": "native"},
}
each_call = pytest.mark.parametrize("call", CALLS)


def mixture(seed: int, dtype: str, m: int = M, k: int = K, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one draw after those of another: ordinary, wide, cancelling and special ones side by side."""
    names = ["phi1", "graded", "cancelling", "wide_rows", "ties", "subnormal_results", "specials", "lattice"]
    step_m, step_n = -(-m // len(names)), -(-n // len(names))
    draws = [{**HOSTILE, **SPECIAL}[name](step_m, k, step_n, seed + i, dtype) for i, name in enumerate(names)]
    a = np.concatenate([x for x, _ in draws])[:m]
    b = np.concatenate([y for _, y in draws], axis=1)[:, :n]
    return a, b


@pytest.mark.slow
@each_call
@each_dtype
def test_engines_and_threads_change_no_bit(call, dtype, seed):
    a, b = mixture(seed, dtype)
    expected = prismm.matmul(a, b, threads=1, **CALLS[call])
    assert_same_bits(prismm.matmul(a, b, **CALLS[call]), expected, "nothing else asked for")
    for engine in usable_engines():
        for threads in (1, 2, 3):
            c = prismm.matmul(a, b, engine=engine, threads=threads, **CALLS[call])
            assert_same_bits(c, expected, f"{engine}, {threads} threads")


@pytest.mark.covering
@each_call
@each_dtype
@each_engine
def test_the_order_of_the_inner_dimension_changes_no_bit(call, dtype, engine, rng, seed):
    problem(engine)
    a, b = mixture(seed, dtype)
    expected = prismm.matmul(a, b, engine=engine, **CALLS[call])
    for order in (rng.permutation(K), np.arange(K)[::-1]):
        c = prismm.matmul(a[:, order], b[order], engine=engine, **CALLS[call])
        assert_same_bits(c, expected, str(order))


def strided(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same matrix laid out in memory in every way."""
    rows, columns = x.shape
    wide = np.full((2 * rows, 3 * columns), np.nan, x.dtype)
    wide[::2, 1::3] = x
    off = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    off[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return {
        "Fortran order": np.asfortranarray(x),
        "sliced": wide[::2, 1::3],
        "reversed rows": x[::-1].copy()[::-1],
        "reversed columns": x[:, ::-1].copy()[:, ::-1],
        "reversed both, transposed": np.ascontiguousarray(x[::-1, ::-1].T).T[::-1, ::-1],
        "foreign byte order": x.astype(x.dtype.newbyteorder("S")),
        "unaligned": off,
        "read-only": frozen,
    }


@pytest.mark.covering("call")
@each_call
@each_dtype
def test_strides_change_no_bit(call, dtype, seed):
    a, b = mixture(seed, dtype)
    expected = prismm.matmul(a, b, **CALLS[call])
    right = strided(b)
    for (how, x), y in zip(strided(a).items(), reversed(right.values()), strict=True):
        assert_same_bits(prismm.matmul(x, b, **CALLS[call]), expected, f"a {how}")
        assert_same_bits(prismm.matmul(a, right[how], **CALLS[call]), expected, f"b {how}")
        assert_same_bits(prismm.matmul(x, y, **CALLS[call]), expected, f"a {how}, b another way")


@pytest.mark.covering("call")
@each_call
@each_dtype
def test_the_position_in_a_batch_changes_no_bit(call, dtype, seed):
    a, b = mixture(seed, dtype)
    others = [mixture(seed + 100 * i, dtype) for i in (1, 2)]
    expected = prismm.matmul(a, b, **CALLS[call])
    for place in range(3):
        left, right = [x for x, _ in others], [y for _, y in others]
        left.insert(place, a)
        right.insert(place, b)
        c = prismm.matmul(np.stack(left), np.stack(right), **CALLS[call])
        assert_same_bits(c[place], expected, f"place {place}")
        assert_same_bits(prismm.matmul(np.stack(left), b, **CALLS[call])[place], expected, f"place {place}, one b")
        assert_same_bits(prismm.matmul(a, np.stack(right), **CALLS[call])[place], expected, f"place {place}, one a")


@each_call
@each_dtype
def test_sub_blocks_have_the_bits_of_the_whole(call, dtype, rng, seed):
    """Also where the block is so small that another engine takes it."""
    a, b = mixture(seed, dtype)
    whole = prismm.matmul(a, b, **CALLS[call])
    rows, columns = rng.permutation(M)[:17], rng.permutation(N)[:9]
    assert_same_bits(prismm.matmul(a[rows], b[:, columns], **CALLS[call]), whole[np.ix_(rows, columns)])
    assert_same_bits(prismm.matmul(a[3:30:4], b[:, ::-2], **CALLS[call]), whole[3:30:4, ::-2])
    for i, j in ((0, 0), (M - 1, N - 1), (M // 3, N // 2)):
        assert_same_bits(prismm.matmul(a[i], b[:, j], **CALLS[call]), whole[i, j], "1-D · 1-D")
        assert_same_bits(prismm.matmul(a[i], b, **CALLS[call]), whole[i], "1-D · 2-D")
        assert_same_bits(prismm.matmul(a, b[:, j], **CALLS[call]), whole[:, j], "2-D · 1-D")


@each_call
@each_dtype
def test_neighbours_change_no_bit(call, dtype, seed):
    """Other rows and columns become huge, tiny, infinite or NaN; what stays has the bits it had."""
    a, b = mixture(seed, dtype)
    before = prismm.matmul(a, b, **CALLS[call])
    top = np.finfo(dtype).max
    x, y = a.copy(), b.copy()
    x[::4], x[1::4] = top, np.nan
    y[:, ::3], y[:, 1::6] = np.inf, np.finfo(dtype).smallest_subnormal
    x[2, 1], y[1, 4] = 0, 0
    after = prismm.matmul(x, y, **CALLS[call])
    kept_rows = (a.view(np.uint8) == x.view(np.uint8)).reshape(M, -1).all(axis=1)
    kept_columns = (np.ascontiguousarray(b.T).view(np.uint8) == np.ascontiguousarray(y.T).view(np.uint8)).reshape(N, -1)
    kept = np.ix_(kept_rows, kept_columns.all(axis=1))
    assert before[kept].size > 200
    assert_same_bits(after[kept], before[kept])


@each_call
@each_dtype
def test_prepared_operands_change_no_bit(call, dtype, seed):
    a, b = mixture(seed, dtype)
    expected = prismm.matmul(a, b, **CALLS[call])
    left = prismm.prepare(a, side="left", **CALLS[call])
    right = prismm.prepare(b, side="right", **CALLS[call])
    for x, y in ((a, right), (left, b), (left, right)):
        assert_same_bits(prismm.matmul(x, y), expected)
    assert_same_bits(prismm.matmul(a[:3], right), expected[:3], "a few rows")


@each_call
@each_dtype
def test_gemm_and_out_change_no_bit(call, dtype, seed):
    a, b = mixture(seed, dtype)
    expected = prismm.matmul(a, b, **CALLS[call])
    out = np.full((N, M), np.nan, dtype).T
    assert prismm.matmul(a, b, out=out, **CALLS[call]) is out
    assert_same_bits(out, expected)
    assert_same_bits(prismm.gemm(a.T, b.T, trans_a="T", trans_b="T", **CALLS[call]), expected)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["normal", "phi2", "cancelling", "graded", "ties", "uniform", "carries"])
@each_call
@each_dtype
def test_powers_of_two_pass_straight_through(call, dtype, name, rng, seed):
    a, b = HOSTILE[name](14, 30, 15, seed, dtype)
    reach = 300 if dtype in ("float64", "complex128") else 22
    rows, columns = rng.integers(-reach, reach + 1, (14, 1)), rng.integers(-reach, reach + 1, (1, 15))
    plain = prismm.matmul(a, b, **CALLS[call])
    scaled = prismm.matmul(times_power(a, rows), times_power(b, columns), **CALLS[call])
    assert_same_bits(scaled, times_power(plain, rows + columns))
    assert_same_bits(prismm.matmul(-a, b, **CALLS[call]) + 0, -plain + 0, "signs pass through, but for that of zero")


@pytest.mark.covering(("shape", "dtype"))
@each_dtype
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 2), (11, 17, 9), (30, 61, 40), (70, 40, 66)], ids=str)
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
def test_fast_paths_return_the_same_bits(name, shape, dtype, seed):
    """A plain call may take a shortcut through the whole flow; asking for the report forbids it."""
    a, b = {**HOSTILE, **SPECIAL}[name](*shape, seed, dtype)
    for keywords in ({}, {"accuracy": "native"}, {"reproducible": True}, CORRECT, {**CORRECT, "reproducible": True}):
        expected, _ = prismm.matmul(a, b, full_output=True, **keywords)
        assert_same_bits(prismm.matmul(a, b, **keywords), expected, f"{keywords}")
    turned = prismm.matmul(np.asfortranarray(a), b[:, ::-1], reproducible=True)
    assert_same_bits(turned[:, ::-1], prismm.matmul(a, b, reproducible=True, threads=1), "turned")


def times_power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """x·2^exponent, exactly (signs of zero kept)."""
    scaled = np.empty_like(x)
    scaled.real = np.ldexp(x.real, exponent)
    if x.dtype.kind == "c":
        scaled.imag = np.ldexp(x.imag, exponent)
    return scaled


@each_dtype
def test_correct_rounding_needs_no_scheme_to_be_the_same(dtype, seed):
    """RN(exact) is one value: every scheme, with any number of moduli, ends there."""
    a, b = mixture(seed, dtype)
    expected = correctly_rounded(a, b)
    for scheme in (None, prismm.Auto(), prismm.Native(), *map(prismm.Residues, (2, 7, 12, 18, 22))):
        assert_same_bits(prismm.matmul(a, b, scheme=scheme, **CORRECT), expected, str(scheme))


def test_the_default_environment_variables_change_no_bit(monkeypatch, seed):
    a, b = mixture(seed, "float64")
    expected = prismm.matmul(a, b, reproducible=True)
    for engine in usable_engines():
        monkeypatch.setenv("PRISMM_ENGINE", engine)
        for threads in ("1", "2"):
            monkeypatch.setenv("PRISMM_THREADS", threads)
            c, report = prismm.matmul(a, b, reproducible=True, full_output=True)
            assert (report.engine, report.plan.threads) == (engine, int(threads))
            assert_same_bits(c, expected, engine)


def test_reproducible_choices_depend_on_no_data(seed):
    """Law 2: the plan of a reproducible product follows from type, K and target, also for a sub-block and for zeros."""
    for name in ("normal", "wide_rows", "lattice"):
        for dtype, k in (("float64", 40), ("float32", 40), ("complex128", 7), ("float64", 3000)):
            for accuracy in ("native", 1e-9, "fast"):
                a, b = HOSTILE[name](3, k, 4, seed, dtype)
                chosen = prismm.explain(a, b, reproducible=True, accuracy=accuracy).scheme
                again = prismm.explain(
                    np.zeros((90, k), dtype), np.zeros((k, 80), dtype), reproducible=True, accuracy=accuracy
                )
                assert again.scheme == chosen
                assert again.reproducible
