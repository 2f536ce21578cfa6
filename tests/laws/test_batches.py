"""Batches, tall and long products: the bits, bounds and counts of products made one at a time."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.core.scales import Blocks
from prismm.cpu.residues import batch as batched
from prismm.cpu.residues import long
from prismm.formats import FP32, FP64, round_fraction
from prismm.testing import HOSTILE, SPECIAL, exact_product
from tests.judge import CORRECT, DTYPES, assert_same_bits

REPRODUCIBLE: dict[str, Any] = {"reproducible": True}
CERTIFIED: dict[str, dict[str, Any]] = {
    "correctly rounded": CORRECT,
    "reproducible": REPRODUCIBLE,
    "a small tolerance": {"accuracy": 1e-20, "reproducible": True},
    "value": {"scheme": prismm.Residues(9)},
    "value, certified": {"scheme": prismm.Residues(15), "accuracy": "native"},
}
SHAPES = [
    ((7, 3, 5), (7, 5, 4)),
    ((7, 3, 5), (5, 4)),
    ((3, 5), (7, 5, 4)),
    ((5,), (7, 5, 4)),
    ((7, 3, 5), (5,)),
    ((3, 1, 2, 5), (1, 4, 5, 3)),
    ((2, 1, 1, 5), (3, 5, 17)),
    ((4, 33, 2), (4, 2, 1)),
]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers of any kind, complex ones with both parts."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if kind.kind == "c" else x).astype(kind)


def one_by_one(a: np.ndarray, b: np.ndarray, **keywords: Any) -> np.ndarray:
    """The products of a batch of matrices, by the direct engine or, where none of integers runs, as they come."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))
    made = [prismm.matmul(a[at], b[at], full_output=True, **keywords)[0] for at in np.ndindex(*batch)]
    return np.stack(made).reshape(*batch, a.shape[-2], b.shape[-1])


def hostile(name: str, seed: int, dtype: str, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """A batch of hostile or special operands."""
    make = {**HOSTILE, **SPECIAL}[name]
    pairs = [make(3, 6, 4, seed + p, dtype) for p in range(count)]
    return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*HOSTILE, *SPECIAL])
def test_hostile_batches_have_the_bits_bounds_and_counts_of_their_products(name, dtype, seed):
    a, b = hostile(name, seed, dtype)
    for keywords in CERTIFIED.values():
        direct = {"engine": "cpu:direct", "full_output": True, **keywords}
        alone = [prismm.matmul(x, y, **direct) for x, y in zip(a, b, strict=True)]
        expected = np.stack([c for c, _ in alone])
        assert_same_bits(prismm.matmul(a, b, **keywords), expected, str(keywords))
        c, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert_same_bits(c, expected, str(keywords))
        assert np.array_equal(report.bounds, np.stack([one.bounds for _, one in alone]))
        counts: dict[str, int] = {}
        for _, one in alone:
            for path, entries in one.paths.items():
                counts[path] = counts.get(path, 0) + entries
        assert counts == report.paths and report.products == len(a)
    if name in HOSTILE:
        exact = np.stack([exact_product(x, y).rounded(dtype) for x, y in zip(a, b, strict=True)])
        assert_same_bits(prismm.matmul(a, b, **CORRECT), exact)


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "int8", "uint16", "int64"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_broadcast_vectors_and_types(left, right, dtype, rng):
    a, b = draw(rng, left, dtype), draw(rng, right, dtype)
    x, y = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = np.broadcast_to(x, (*batch, *x.shape[-2:])), np.broadcast_to(y, (*batch, *y.shape[-2:]))
    c = prismm.matmul(a, b, **CORRECT)
    expected = np.stack([exact_product(x[at], y[at]).rounded(c.dtype) for at in np.ndindex(*batch)])
    assert_same_bits(c, expected.reshape(np.matmul(np.ones(left), np.ones(right)).shape))
    own = one_by_one(x, y, **REPRODUCIBLE).reshape(c.shape)
    assert_same_bits(prismm.matmul(a, b, **REPRODUCIBLE), own)
    out = np.empty(c.shape[::-1], c.dtype).T
    assert prismm.matmul(a, b, out=out, **REPRODUCIBLE) is out
    assert_same_bits(out, own)


@pytest.mark.covering("keywords")
@pytest.mark.parametrize("keywords", CERTIFIED.values(), ids=CERTIFIED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_and_order(dtype, keywords, rng):
    a, b = draw(rng, (6, 5, 7), dtype), draw(rng, (6, 7, 3), dtype)
    expected = one_by_one(a, b, **keywords)
    turned = np.ascontiguousarray(a.transpose(2, 0, 1)).transpose(1, 2, 0), np.ascontiguousarray(b.T).T
    spaced = np.repeat(a, 2, axis=0)[::2], np.repeat(b[:, ::-1], 2, axis=2)[:, ::-1, ::2]
    for x, y in (turned, spaced):
        assert_same_bits(prismm.matmul(x, y, **keywords), expected)
    shared = np.broadcast_to(a[2], a.shape)
    assert_same_bits(prismm.matmul(shared, b, **keywords), one_by_one(shared, b, **keywords))
    assert_same_bits(prismm.matmul(a[2], b, **keywords), one_by_one(shared, b, **keywords))


@pytest.mark.covering("keywords")
@pytest.mark.parametrize("keywords", [{}, *CERTIFIED.values()], ids=["native", *CERTIFIED])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_gemm_of_batches(dtype, keywords, rng):
    a, b, c = draw(rng, (5, 4, 3), dtype), draw(rng, (5, 3, 2), dtype), draw(rng, (4, 2), dtype)
    c[1, 1] = np.inf
    a[2, 0, 0], a[3] = np.nan, 0.0
    for alpha, beta in ((0.3, 0.0), (-1.7, 0.25), (0.0, 2.0)):
        made, report = prismm.gemm(a, b, c, alpha=alpha, beta=beta, full_output=True, **keywords)
        for p in range(5):
            one, alone = prismm.gemm(a[p], b[p], c, alpha=alpha, beta=beta, full_output=True, **keywords)
            if keywords:
                assert_same_bits(made[p], one, f"{p} {alpha} {beta}")
            else:
                np.testing.assert_allclose(made[p], one, rtol=1e-5)
            assert np.allclose(report.bounds[p], alone.bounds, rtol=1e-6)
        plain = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords)
        assert_same_bits(plain, made) if keywords else np.testing.assert_allclose(plain, made, rtol=1e-5)
    assert sum(report.paths.values()) == made.size * (2 if dtype == "complex64" else 1)


def test_a_native_batch_repairs_only_what_is_not_ordinary(rng):
    a, b = rng.standard_normal((50, 3, 4)), rng.standard_normal((50, 4, 3))
    a[7, 1] = 1e308, 1e308, -1e308, -1e308
    b[7, :, 2] = 1.0, 1.0, 1.0, 0.5
    a[9, 0, 0] = np.inf
    for call in (prismm.matmul, prismm.gemm):
        c, report = call(a, b, full_output=True)
        assert c[7, 1, 2] == 0.5e308 and np.isinf(c[9, 0]).all()
        assert report.paths["special"] == 3 and report.paths["exact"] >= 1
        rest = np.delete(np.arange(50), [7, 9])
        assert np.allclose(c[rest], a[rest] @ b[rest]) and sum(report.paths.values()) == c.size
        assert_same_bits(call(a, b)[7], c[7])
    assert (np.abs(exact_product(a[3], b[3]).error(c[3])) <= report.bounds[3]).all()


@pytest.mark.parametrize("tolerance", [1e-3, 1e-12, 1e-18])
def test_tolerances_of_batches(tolerance, rng):
    a, b = rng.standard_normal((20, 4, 5)), rng.standard_normal((20, 5, 3))
    a[3] *= 2.0**-600
    b[3] *= 2.0**-470
    c, report = prismm.matmul(a, b, accuracy=tolerance, full_output=True)
    for made in (c, prismm.matmul(a, b, accuracy=tolerance)):
        for x, y, z in zip(a, b, made, strict=True):
            exact = exact_product(x, y)
            bound = tolerance * exact.magnitude("up") + 2.0**-53 * np.abs(z) + 2.0**-1074
            assert exact.within(z, bound * (1 + 1e-12)).all()
    assert (report.bounds >= 0).all() and sum(report.paths.values()) == c.size


@pytest.mark.covering("shape")
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("shape", [(1900, 3, 3), (1100, 1, 16), (3, 3, 1900), (2, 7, 1300)])
def test_thin_products_are_cut_into_rows(shape, dtype, seed, monkeypatch):
    monkeypatch.setattr(batched, "CHUNK", 1600)
    m, k, n = shape
    out = np.empty((m, n), dtype)
    for name in ("normal", "wide_rows_and_columns", "cancelling"):
        a, b = HOSTILE[name](m, k, n, seed, dtype)
        a[m // 2, k // 2] *= 0
        expected = exact_product(a, b).rounded(dtype)
        assert_same_bits(prismm.matmul(a, b, **CORRECT), expected, name)
        assert_same_bits(prismm.matmul(a, b, out=out, **CORRECT), expected, name)
        own, report = prismm.matmul(a, b, full_output=True, engine="cpu:float64", **REPRODUCIBLE)
        assert_same_bits(prismm.matmul(a, b, out=out, **REPRODUCIBLE), own, name)
        made, thin = prismm.matmul(a, b, full_output=True, **REPRODUCIBLE)
        assert_same_bits(made, own, name)
        assert thin.engine == "cpu:direct" and np.allclose(thin.bounds, report.bounds, rtol=1e-12)
        at = (m - 1, n - 1)
        assert thin.bound(*at) == thin.bounds[at]


@pytest.mark.covering("name")
@pytest.mark.parametrize("dtype", ["float64", "complex128", "complex64"])
@pytest.mark.parametrize("name", ["normal", "phi4", "cancelling", "lattice_wide", "zeros_rows_cols", "near_ties"])
def test_few_long_rows(name, dtype, seed):
    a, b = HOSTILE[name](2, long.LONG + 77, 2, seed, dtype)
    assert_same_bits(prismm.matmul(a, b, **CORRECT), exact_product(a, b).rounded(dtype))
    for keywords in (REPRODUCIBLE, {"accuracy": 1e-17, "reproducible": True}):
        assert_same_bits(prismm.matmul(a, b, **keywords), prismm.matmul(a, b, full_output=True, **keywords)[0])


def test_long_sums_of_any_order_and_threads(rng):
    """The exact value, by integers: 2^60 pairs that cancel, and one in between that is left."""
    x = rng.integers(-(2**52), 2**52, 2 * long.LONG)
    a = np.concatenate([x, -x, [3]]).astype(np.float64)
    b = np.concatenate([x, x, [2.0**-40]])
    order = rng.permutation(a.size)
    for threads in (1, 2, 3):
        assert prismm.matmul(a[order], b[order], threads=threads, **CORRECT) == 3 * 2.0**-40
    y = rng.integers(-(2**52), 2**52, a.size)
    exact = sum(int(p) * int(q) for p, q in zip(a.tolist(), y.tolist(), strict=True))
    for kind, fmt in (("float64", FP64), ("complex64", FP32)):
        c = prismm.matmul(a, y.astype(np.float64), out_dtype=kind, **CORRECT)
        assert c == round_fraction(fmt, Fraction(exact).numerator, 0)


def test_chunks_of_any_size_and_threads_change_no_bit(rng, monkeypatch):
    a, b = rng.standard_normal((60, 4, 5)), rng.standard_normal((60, 5, 6)) * 2.0 ** rng.integers(-60, 60, (60, 5, 6))
    expected = one_by_one(a, b, **REPRODUCIBLE)
    monkeypatch.setattr(batched, "ALONE", 0.0)
    for chunk in (1, 100, 1000):
        monkeypatch.setattr(batched, "CHUNK", chunk)
        for threads in (1, 2, 5):
            assert_same_bits(prismm.matmul(a, b, threads=threads, **REPRODUCIBLE), expected)
            c, report = prismm.matmul(a, b, threads=threads, full_output=True, **REPRODUCIBLE)
            assert_same_bits(c, expected)
            assert report.bound(59, 3, 5) == report.bounds[59, 3, 5]


def test_middle_sizes_go_to_workers_one_by_one(rng):
    a, b = rng.standard_normal((4, 70, 68)), rng.standard_normal((4, 68, 72))
    for keywords in (CORRECT, REPRODUCIBLE):
        c, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert report.engine != "cpu:direct"
        assert_same_bits(c, one_by_one(a, b, engine="cpu:direct", **keywords))
        assert_same_bits(prismm.matmul(a, b, **keywords), c)


def test_tensors_and_prepared_operands(rng):
    torch = pytest.importorskip("torch")
    a, b = rng.standard_normal((9, 3, 4)), rng.standard_normal((9, 4, 2))
    for keywords in (CORRECT, REPRODUCIBLE):
        expected = one_by_one(a, b, **keywords)
        assert_same_bits(prismm.matmul(torch.from_numpy(a), torch.from_numpy(b), **keywords).numpy(), expected)
        left, right = prismm.prepare(a[0], side="left", **keywords), prismm.prepare(b[0], **keywords)
        assert_same_bits(prismm.matmul(left, b), one_by_one(a[0], b, **keywords))
        assert_same_bits(prismm.matmul(a, right), one_by_one(a, b[0], **keywords))
    native = prismm.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(native, a @ b, rtol=1e-12, atol=1e-14)


def test_the_plan_of_a_batch_says_what_runs():
    small = np.ones((5, 40, 40))
    assert prismm.explain(small, small, **CORRECT).engine == "cpu:direct"
    assert prismm.explain(small[0], small[0], **CORRECT).engine != "cpu:direct"
    assert prismm.explain(np.ones((10**5, 3)), np.ones((3, 3)), **REPRODUCIBLE).engine == "cpu:direct"


def test_blocks():
    blocks = Blocks(np.array([0, 0, 1, 2, 2, 2]), 2)
    assert blocks.first.tolist() == [0, 2, 3, 6]
    assert blocks.columns().tolist() == [[0, 1], [0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]
    assert [(r.start, r.stop, c.start, c.stop) for r, c in blocks.pieces()] == [
        (0, 2, 0, 2),
        (2, 3, 2, 4),
        (3, 6, 4, 6),
    ]


def large_integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Integers of 64 bits, of any size."""
    return rng.integers(-(2**63), 2**63 - 1, shape) >> rng.integers(0, 12, shape)


@pytest.mark.parametrize("dtype", [None, "float32", "complex64", "complex128"])
def test_batches_of_large_integers_have_the_bits_of_their_products(dtype, rng):
    """Integers beyond 2^53 are two float64 terms each, of which the target counts one: so the first are repaired."""
    rows = [[-8550465256889757838, 363661778722520602], [7492168228482714563, -145025472148230225]]
    columns = [[144200946511294468, 8857868458651824094], [-320764199336406712, 5753989452927123109]]
    pairs = [(np.array(rows)[:, None], np.array(columns)[:, :, None])]
    pairs += [[large_integers(rng, *s) for s in ((9, 20, 3), (9, 3, 5))] for _ in range(5)]
    for a, b in pairs:
        for keywords in (REPRODUCIBLE, {"accuracy": 1e-17, "reproducible": True}):
            keywords = {**keywords, "out_dtype": dtype}
            assert_same_bits(prismm.matmul(a, b, **keywords), one_by_one(a, b, **keywords), str(keywords))


@pytest.mark.parametrize("dtype", [None, "float32", "complex128"])
def test_long_products_of_large_integers_have_the_bits_that_reports_are_of(dtype, rng):
    """Where large elements meet small ones the bound is near what the target leaves: the certificate counts its terms,
    and neither four times as many nor fewer.
    """
    k = long.LONG // 4 + 78
    for shift in (3, 7, 7, 8):
        a, b = (rng.integers(-(2**63), 2**63 - 1, shape) for shape in ((2, k), (k, 2)))
        a[:, k // 2 :] >>= shift
        b[: k // 2] >>= shift
        for keywords in (REPRODUCIBLE, CORRECT):
            keywords = {**keywords, "out_dtype": dtype}
            c = prismm.matmul(a, b, **keywords)
            assert_same_bits(c, prismm.matmul(a, b, full_output=True, **keywords)[0], f"{shift} {keywords}")
    exact = a.astype(object) @ b.astype(object)
    assert (c == np.vectorize(lambda x: round_fraction(FP32 if dtype == "float32" else FP64, x, 0))(exact)).all()


@pytest.mark.parametrize("right", [(4, 5, 2), (5, 2), (5,)])
def test_what_one_product_of_a_batch_holds_does_not_show_in_the_others(right, rng):
    """Integers beyond 2^53 are two terms each, in the products that hold some and in no others."""
    a, b = rng.integers(-(2**52), 2**52, (4, 3, 5)), rng.integers(-(2**52), 2**52, right)
    a[1, 0, 2], a[3, 1, 1] = 2**62 + 1, -(2**63)
    c = rng.standard_normal((a @ b).shape)
    if b.ndim > 2:
        b[2, 0, 1] = 2**53 + 1
    for x, y, where in ((a, b, 0), (b.T, a.swapaxes(1, 2), -1)) if b.ndim < 3 else ((a, b, 0),):
        for keywords in (REPRODUCIBLE, {"accuracy": 1e-3, "reproducible": True}, {"scheme": prismm.Residues(5)}):
            made, report = prismm.matmul(x, y, full_output=True, **keywords)
            assert_same_bits(prismm.matmul(x, y, **keywords), made)
            sums = prismm.gemm(x, y, c.reshape(made.shape), alpha=0.3, beta=1.0, **keywords) if where == 0 else None
            for p in range(4):
                pair = (x[p], y[p] if y.ndim > 2 else y) if where == 0 else (x, y[p])
                one, alone = prismm.matmul(*pair, full_output=True, **keywords)
                assert_same_bits(made[p], one, f"{p} {keywords}")
                assert np.array_equal(report.bounds[p], alone.bounds)
                if sums is not None:
                    assert_same_bits(sums[p], prismm.gemm(*pair, c[p], alpha=0.3, beta=1.0, **keywords))
    assert sum(report.paths.values()) == made.size


def test_tall_products_of_a_batch_of_which_some_are_large(rng):
    a, b = rng.integers(-(2**52), 2**52, (3, 4500, 3)), rng.integers(-(2**52), 2**52, (3, 3))
    a[1, 7, 1] = 2**62 + 1
    made = prismm.matmul(a, b, **REPRODUCIBLE)
    assert prismm.explain(a[0], b, **REPRODUCIBLE).engine == "cpu:direct"
    for p in range(3):
        assert_same_bits(made[p], prismm.matmul(a[p], b, full_output=True, **REPRODUCIBLE)[0])
