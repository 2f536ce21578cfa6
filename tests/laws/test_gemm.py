"""gemm: alpha·op(A)·op(B) + beta·C as BLAS has it, each target against the exact sum as a whole."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import prismm
from prismm.cpu import execute
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.testing import HOSTILE, exact_gemm
from tests import edges
from tests.judge import (
    CORRECT,
    DTYPES,
    assert_gemm,
    assert_overflow_is_right,
    assert_same_bits,
    each_dtype,
    each_engine,
    problem,
    usable_engines,
)

TARGETS: list[dict[str, Any]] = [
    {},
    {"reproducible": True},
    CORRECT,
    {**CORRECT, "reproducible": True},
    {"accuracy": 1e-10},
    {"accuracy": 1e-30},
    {"accuracy": 1e-13, "reproducible": True},
    {"scheme": prismm.Residues(9), "accuracy": "native"},
    {"scheme": prismm.Native(), **CORRECT},
]


REAL = [(1.0, 1.0), (-0.1, 3.0), (2.5, 0.0), (-1.0, 0.0), (1 / 3, -1e-5)]
COMPLEX = [(1.0, 1.0), (0.3 - 2j, 1j), (1j, 0.0), (0.5, -0.7 + 1e-8j)]


@pytest.mark.covering(("engine", "dtype"), ("dtype", "factors"))
@pytest.mark.parametrize(
    ("dtype", "factors"), [(x, y) for x in DTYPES for y in (COMPLEX if x.startswith("complex") else REAL)], ids=str
)
@each_engine
@pytest.mark.parametrize("name", ["normal", "phi4", "cancelling", "ties", "lattice", "graded", "subnormal_results"])
def test_targets_apply_to_the_sum_as_a_whole(name, engine, dtype, factors, seed):
    problem(engine)
    a, b = HOSTILE[name](6, 9, 7, seed, dtype)
    c, _ = HOSTILE[name](6, 7, 1, seed + 1, dtype)
    assert_gemm(a, b, c, *factors, *({**keywords, "engine": engine} for keywords in TARGETS))


@pytest.mark.covering("name")
@each_dtype
@pytest.mark.parametrize("name", list(HOSTILE))
def test_small_default_sums_meet_their_target(name, dtype, seed):
    """The fast path, with factors that it takes and some that it leaves."""
    a, b = HOSTILE[name](6, 9, 7, seed, dtype)
    c, _ = HOSTILE[name](6, 7, 1, seed + 1, dtype)
    for factors in ((1.0, 1.0), (0.5, 2.0), (-0.75, 0.0), (1 / 3, -1e-5), (2.0, 1.0), (2.0**-149, 1.0), (1.0, 1e300)):
        assert_gemm(a, b, c, *factors, {})


def test_small_default_sums_take_one_product(monkeypatch, rng):
    a, c = rng.standard_normal((9, 9)), rng.standard_normal((9, 9))
    expected = prismm.gemm(a, a, c, alpha=0.5, beta=2.0, trans_a="T", threads=1)
    monkeypatch.setattr(execute, "run", None)
    found = prismm.gemm(a, a, c, alpha=0.5, beta=2.0, trans_a="T")
    assert np.abs(found - expected).max() < 1e-13
    for given in ({"alpha": 2.0}, {"beta": 1j}, {"reproducible": True}, {"threads": 1}, {"engine": "cpu"}):
        with pytest.raises(TypeError, match="not callable"):
            prismm.gemm(a, a, c, **{"beta": 1.0, **given})


def test_a_tie_at_the_end_of_the_range_is_seen_beside_a_long_sum():
    """beta·c is where overflow begins, and the product takes next to nothing away from it: no overflow."""
    k = 4096
    a, b = np.zeros((1, k), np.float32), np.zeros((k, 1), np.float32)
    a[0, 0], b[0, 0] = -(2.0**-20), 1.0
    c = np.full((1, 1), 601 * 1801 * 2.0**103, np.float32)  # times 31: 2^128 - 2^103, a tie between the largest and Inf
    assert prismm.gemm(a, b, c, beta=31.0)[0, 0] == np.finfo(np.float32).max
    assert prismm.gemm(-a, b, c, beta=31.0)[0, 0] == np.inf


@each_dtype
def test_what_is_left_after_c_is_taken_away(dtype, seed):
    """C = -RN(AB): the sum is AB's own rounding error, so a result from a rounded AB would be 0."""
    a, b = HOSTILE["normal"](8, 12, 9, seed, dtype)
    c = prismm.matmul(a, b, **CORRECT)
    for engine in usable_engines():
        assert_gemm(a, b, c, 1.0, -1.0, *({**keywords, "engine": engine} for keywords in TARGETS))
        left = prismm.gemm(a, b, c, beta=-1.0, engine=engine, **CORRECT)
        assert (left != 0).any()


@pytest.mark.covering("engine")
@each_dtype
@each_engine
def test_larger_sums(engine, dtype, seed):
    problem(engine)
    a, b = HOSTILE["phi1"](16, 70, 300, seed, dtype)
    c, _ = HOSTILE["phi2"](16, 300, 1, seed + 1, dtype)
    how = {"engine": engine, "threads": 2}
    assert_gemm(a, b, c, -0.7, 1.3, CORRECT | how, {"reproducible": True} | how, {"accuracy": 1e-14} | how)


@pytest.mark.covering("dtype")
@each_dtype
@pytest.mark.parametrize("name", ["near_overflow", "overflow_threshold", "subnormal_operands"])
def test_sums_at_the_ends_of_the_range(name, dtype, seed):
    a, b = HOSTILE[name](6, 7, 5, seed, dtype)
    c = prismm.matmul(a, b, **CORRECT)
    c[~np.isfinite(c)] = np.finfo(dtype).max
    for alpha, beta in ((1.0, 1.0), (1.0, -1.0), (0.5, 0.5), (2.0, -2.0), (1e-300, 1e-300)):
        assert_gemm(a, b, c, alpha, beta, *TARGETS)


CERTIFIED = [
    *TARGETS[:4], *({"scheme": x, "accuracy": "native"} for x in (
        prismm.Native(), prismm.Native("float64"), prismm.Residues(7), prismm.ScaledHalf(), prismm.TileInt8(),
        prismm.Slices(slices=3),
    )),
]  # fmt: skip
UNCERTIFIED = [
    {"scheme": x, **y}
    for x in (prismm.Native(), prismm.Residues(7), prismm.ScaledHalf(), prismm.Words.bf16(6), prismm.Slices(slices=3))
    for y in ({}, {"accuracy": "fast"})
]


@pytest.mark.covering
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
@pytest.mark.parametrize("which", ["top", "low"])
def test_sums_at_the_ends_of_float32(which, dtype, drawn, rng):
    """Where a product was rounded before C is added, and overflow or the smallest numbers decide."""
    a, b, c = edges.drawn(which, rng, dtype, 4, 6, 5) if drawn else edges.thought_out(which, dtype)
    narrow = {"out_dtype": "float32"} if dtype == "float64" else {}
    result = np.dtype(narrow.get("out_dtype", dtype))
    pairs = [*edges.factors(which), (2.0**60, -1.0), (1.1 * 2.0**-140, 1.0), (1.0, 2.0**-155)]
    if dtype == "complex64":
        pairs.append((1 + 2j, 1j))
    for alpha, beta in pairs:
        assert_gemm(a, b, c, alpha, beta, *({**keywords, **narrow} for keywords in CERTIFIED))
        exact = exact_gemm(alpha, a, b, beta, c)
        for keywords in UNCERTIFIED:
            d = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords, **narrow)
            assert d.dtype == result
            assert_overflow_is_right(exact, d, f"{alpha} {beta} {keywords}")


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(
    ("x", "y", "z", "alpha", "beta"),
    [
        # A factor below float32's normal numbers, beyond its largest one; what AB lost, times alpha, overflows.
        ([1.0], [2.0**-70], 2.0**100, 1.0, 2.0**-155), ([2.0**60], [2.0**60], 2.0**-60, 1.1 * 2.0**-140, 1.0),
        ([2.0**60], [2.0**60], 0.0, 1.1 * 2.0**-148, 0.0), ([2.0**-70], [1.5 * 2.0**-10], 1.0, 1.1 * 2.0**140, 1.0),
        ([2.0**-80], [2.0**-80], 1.0, 2.0**300, 1.0), ([1.0], [2.0**-100], 2.0**-30, 1.0, 1.3 * 2.0**130),
        ([2.0**50, 2.0**20, -(2.0**50)], [2.0**50] * 3, 1.0, 2.0**60, 1.0),
        ([2.0**50, -(2.0**50), 2.0**20], [2.0**50] * 3, 1.0, -(2.0**60), 1.0),
        ([2.0**20, 2.0**50, -(2.0**50)], [2.0**50] * 3, 1.0, 2.0**60, 1.0),
        ([2.0**126, 2.0**101, -(2.0**126)], [1.0] * 3, 1.0, 2.0**27, 1.0),
        ([2.0**100, 2.0**60], [2.0**20, 2.0**68], 1.0, 1.0, 1.0),
    ],
)  # fmt: skip
def test_factors_that_float32_does_not_hold(x, y, z, alpha, beta, dtype):
    a, b, c = np.array([x], dtype), np.array([y], dtype).T.copy(), np.array([[z]], dtype)
    assert_gemm(a, b, c, alpha, beta, *CERTIFIED)
    exact = exact_gemm(alpha, a, b, beta, c)
    for keywords in UNCERTIFIED:
        assert_overflow_is_right(exact, prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords), str(keywords))


@pytest.mark.parametrize(("c", "beta"), [(2.0**-160, 2.0**100), (2.0**140, 2.0**-100), (2**53 - 1, -(2.0**-40))])
def test_an_addend_that_float32_does_not_hold(c, beta):
    a, b, c = np.float32([[2.0**-30, 1.0]]), np.float32([[2.0**-50], [2.0**-60]]), np.array([[c]])
    for keywords in CERTIFIED:
        assert_gemm(a, b, c, 1.0, beta, {**keywords, "out_dtype": "float32"})


@each_dtype
@pytest.mark.parametrize("trans_a", "NTC")
@pytest.mark.parametrize("trans_b", "NTC")
def test_transposes(trans_a, trans_b, dtype, seed):
    a, b = HOSTILE["phi1"](5, 8, 6, seed, dtype)
    turn = {"N": lambda x: x, "T": lambda x: x.T, "C": lambda x: x.conj().T}
    x, y = turn[trans_a](a), turn[trans_b](b)
    for keywords in (CORRECT, {"reproducible": True}):
        d = prismm.gemm(x, y, trans_a=trans_a, trans_b=trans_b, **keywords)
        assert_same_bits(d, prismm.matmul(a, b, **keywords))
    stack = np.stack([a, 2 * a])
    d = prismm.gemm(np.ascontiguousarray(np.swapaxes(stack, 1, 2)), b, trans_a="T", **CORRECT)
    assert_same_bits(d, prismm.matmul(stack, b, **CORRECT))


@each_dtype
def test_beta_0_never_reads_c(dtype, seed):
    a, b = HOSTILE["normal"](4, 5, 6, seed, dtype)
    c = np.full((4, 6), np.nan, dtype)
    for engine in usable_engines():
        for keywords in TARGETS:
            d = prismm.gemm(a, b, c, alpha=2.0, beta=0.0, engine=engine, **keywords)
            assert_same_bits(d, prismm.gemm(a, b, alpha=2.0, engine=engine, **keywords))
    out = np.full((4, 6), np.nan, dtype)
    assert prismm.gemm(a, b, out, beta=0, out=out, **CORRECT) is out
    assert_same_bits(out, prismm.matmul(a, b, **CORRECT))


@each_dtype
def test_alpha_0_never_reads_a_and_b(dtype, seed):
    a, b = np.full((4, 5), np.nan, dtype), np.full((5, 6), np.inf, dtype)
    c, _ = HOSTILE["normal"](4, 6, 1, seed, dtype)
    for engine in usable_engines():
        for keywords in TARGETS:
            d = prismm.gemm(a, b, c, alpha=0.0, beta=-2.0, engine=engine, **keywords)
            assert_same_bits(d, -2 * c)
            d = prismm.gemm(a, b, alpha=0.0, engine=engine, **keywords)
            assert_same_bits(d, np.zeros((4, 6), dtype))
    d = prismm.gemm(a, b, np.full((4, 6), np.nan, dtype), alpha=0, beta=0)
    assert_same_bits(d, np.zeros((4, 6), dtype))


@each_dtype
def test_specials_of_all_three_operands(dtype, seed):
    """c's own Inf and NaN stay at home; those of a and b reach their rows and columns, with alpha's sign."""
    a, b = HOSTILE["normal"](6, 5, 7, seed, dtype)
    c, _ = HOSTILE["normal"](6, 7, 1, seed + 1, dtype)
    a[1, 2], b[0, 3] = np.inf, np.nan
    c[0, 0], c[1, 1], c[2, 2], c[1, 4] = np.inf, -np.inf, np.nan, 1
    clean = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
    right = exact_gemm(-2.0, clean[0], clean[1], 3.0, clean[2]).rounded(dtype)
    for engine in usable_engines():
        for keywords in TARGETS:
            d = prismm.gemm(a, b, c, alpha=-2.0, beta=3.0, engine=engine, **keywords)
            with np.errstate(invalid="ignore"):
                assert d[0, 0].real == np.inf and np.isnan(d[2, 2])
                assert np.isnan(d[:, 3]).all()
                rest = np.ones((6, 7), bool)
                rest[1], rest[:, 3] = False, False
                rest[[0, 2], [0, 2]] = False
                assert np.isfinite(d[rest]).all()
                assert np.abs(d[rest] - right[rest]).max() <= 1e-5, keywords
                if not dtype.startswith("complex"):
                    expected = np.where(np.sign(b[2]) > 0, -np.inf, np.inf)
                    expected[1] = np.nan if b[2, 1] < 0 else -np.inf
                    expected[3] = np.nan
                    assert_same_bits(d[1], expected.astype(dtype), f"{keywords}")


def special_sum(alpha, a, b, beta, c):
    """alpha·AB + beta·C term by term in real arithmetic; a part of a factor that is 0 leaves its term out."""

    def real_parts(x):
        return [x.real, x.imag] if np.iscomplexobj(x) else [x]

    def scaled(factor, parts):
        rows = ((factor.real, -factor.imag), (factor.imag, factor.real)) if len(parts) == 2 else ((factor.real,),)
        return [sum((f * x for f, x in zip(row, parts, strict=True) if f), np.zeros(c.shape)) for row in rows]

    product = [a @ b]
    if np.iscomplexobj(a):
        product = [a.real @ b.real - a.imag @ b.imag, a.real @ b.imag + a.imag @ b.real]
    terms = scaled(complex(alpha), product), scaled(complex(beta), real_parts(c))
    return [x + y for x, y in zip(*terms, strict=True)]


@each_dtype
def test_specials_under_factors_of_every_kind(dtype, seed):
    """The result has Inf and NaN in the entries where IEEE arithmetic has them, for every pair of factors."""
    a, b = HOSTILE["normal"](4, 3, 5, seed, dtype)
    c, _ = HOSTILE["normal"](4, 5, 1, seed + 1, dtype)
    # Complex elements get a special real part and keep a finite imaginary part.
    a[1, 2], b[0, 3], b[2, 0] = np.inf, np.nan, -np.inf
    c[0, 0], c[1, 1], c[2, 2], c[3, 4] = np.inf, -np.inf, np.nan, -np.inf
    factors = [1.0, -1.0, 0.0, -0.5, *([1j, 0.5 - 1j] if dtype.startswith("complex") else [])]
    for alpha, beta in itertools.product(factors, factors):
        with np.errstate(invalid="ignore"):
            expected = special_sum(alpha, a, b, beta, c)
        for keywords in TARGETS:
            d = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **keywords)
            for got, wanted in zip([d.real, d.imag] if np.iscomplexobj(d) else [d], expected, strict=True):
                odd = ~np.isfinite(wanted)
                assert np.isfinite(got[~odd]).all(), (alpha, beta, keywords)
                assert_same_bits(got[odd], wanted[odd].astype(got.dtype), f"{alpha} {beta} {keywords}")


def test_complex_factors_of_real_matrices(seed):
    a, b = HOSTILE["normal"](4, 6, 5, seed)
    c, _ = HOSTILE["normal"](4, 5, 1, seed + 1)
    for engine in usable_engines():
        d = prismm.gemm(a, b, c, alpha=1 + 2j, beta=0.1j, out_dtype="complex128", engine=engine, **CORRECT)
        assert_same_bits(d, exact_gemm(1 + 2j, a, b, 0.1j, c).rounded(np.complex128), engine)
    with pytest.raises(DTypeError, match=r"alpha=\(1\+2j\).*out_dtype=complex128"):
        prismm.gemm(a, b, c, alpha=1 + 2j)
    with pytest.raises(DTypeError, match=r"beta=.*complex"):
        prismm.gemm(a, b, c, beta=2j)


def test_factors_are_taken_exactly(seed):
    """0.1 is not rounded to the operands' type."""
    a, b = HOSTILE["lattice"](4, 6, 5, seed, "float32")
    c = np.ones((4, 5), np.float32)
    for keywords in (CORRECT, {**CORRECT, "reproducible": True}):
        for engine in usable_engines():
            d = prismm.gemm(a, b, c, alpha=0.1, beta=0.7, engine=engine, **keywords)
            assert d.dtype == np.float32
            assert_same_bits(d, exact_gemm(0.1, a, b, 0.7, c).rounded(np.float32), engine)


@pytest.mark.parametrize("keywords", [{}, CORRECT, {"reproducible": True}])
@each_dtype
def test_out_may_be_c_or_overlap_the_operands(dtype, keywords, seed):
    a, b = HOSTILE["normal"](7, 7, 7, seed, dtype)
    c, _ = HOSTILE["phi1"](7, 7, 1, seed + 1, dtype)
    expected = prismm.gemm(a, b, c, alpha=-1.5, beta=0.5, **keywords)
    for which in range(3):
        operands = [a.copy(), b.copy(), c.copy()]
        d = prismm.gemm(*operands, alpha=-1.5, beta=0.5, out=operands[which], **keywords)
        assert d is operands[which]
        assert_same_bits(d, expected, "abc"[which])
    memory = np.zeros((14, 7), dtype)
    memory[:7] = a
    prismm.gemm(memory[:7], b, c, alpha=-1.5, beta=0.5, out=memory[3:10], **keywords)
    assert_same_bits(memory[3:10], expected, "shifted by three rows")
    square = a.copy()
    prismm.matmul(square, square, out=square.T, **keywords)
    assert_same_bits(square.T, prismm.matmul(a, a, **keywords), "the transpose of both operands")


def test_c_broadcasts_and_batches(seed):
    a, b = HOSTILE["normal"](4, 6, 5, seed)
    stack = np.stack([a, -a, 3 * a])
    row, column, each = np.arange(5.0), np.arange(4.0)[:, None], np.arange(3.0)[:, None, None]
    for c in (row, column, each, np.full((), 2.0), np.ones((3, 4, 5))):
        for keywords in (CORRECT, {}, {"reproducible": True}):
            d = prismm.gemm(stack, b, c, beta=0.1, **keywords)
            full = np.broadcast_to(c, (3, 4, 5))
            for i in range(3):
                if keywords is CORRECT:
                    assert_same_bits(d[i], exact_gemm(1.0, stack[i], b, 0.1, full[i]).rounded())
                np.testing.assert_allclose(d[i], stack[i] @ b + 0.1 * full[i], rtol=1e-13, atol=1e-13)
    d = prismm.gemm(a[0], b, np.arange(5.0), beta=1.0, **CORRECT)
    assert_same_bits(d, exact_gemm(1.0, a[:1], b, 1.0, np.arange(5.0)[None]).rounded()[0])


def test_c_of_another_type_promotes(seed):
    a, b = HOSTILE["normal"](4, 6, 5, seed, "float32")
    c = np.random.default_rng(seed).standard_normal((4, 5))
    d = prismm.gemm(a, b, c, beta=1.0, **CORRECT)
    assert_same_bits(d, exact_gemm(1.0, a, b, 1.0, c).rounded(np.float64))
    d = prismm.gemm(a, b, c.astype(np.float32) + 1j, beta=1.0, **CORRECT)
    assert d.dtype == np.result_type(np.float32, np.complex64)
    d = prismm.gemm(a, b, np.arange(20, dtype=np.int8).reshape(4, 5), beta=1.0, **CORRECT)
    assert_same_bits(d, exact_gemm(1.0, a, b, 1.0, np.arange(20).reshape(4, 5)).rounded(np.float32))
    d = prismm.gemm(a, b, c, beta=1.0, out_dtype=np.float32, **CORRECT)
    assert_same_bits(d, exact_gemm(1.0, a, b, 1.0, c).rounded(np.float32), "rounded once, to float32")


def test_c_of_integers_beyond_two_to_the_53_is_refused():
    """a and b hold them exactly; c cannot, and is never rounded in silence."""
    a, b = np.ones((2, 2)), np.eye(2)
    for c in (
        np.array([[2**53 + 1, 0], [0, 0]]),
        np.array([[0, 0], [0, 2**63]], np.uint64),
        np.array([[0, -(2**60)], [0, 0]]),
    ):
        for keywords in TARGETS:
            with pytest.raises(
                DTypeError, match=r"c holds numbers of type u?int64 that are no float64; pass c.astype\(float\)"
            ):
                prismm.gemm(a, b, c, beta=1.0, **keywords)
        assert_same_bits(prismm.gemm(a, b, c, beta=0.0, **CORRECT), np.ones((2, 2)))
    d = prismm.gemm(a, b, np.full((2, 2), 2**53), beta=0.5, **CORRECT)
    assert_same_bits(d, np.full((2, 2), 2.0**52 + 1))


def test_empty_and_k_0():
    c = np.arange(6.0).reshape(2, 3)
    for keywords in TARGETS:
        assert_same_bits(prismm.gemm(np.ones((2, 0)), np.ones((0, 3)), c, beta=2.0, **keywords), 2 * c)
        assert_same_bits(prismm.gemm(np.ones((2, 0)), np.ones((0, 3)), c, **keywords), np.zeros((2, 3)))
        assert prismm.gemm(np.ones((0, 4)), np.ones((4, 3)), np.ones((0, 3)), beta=1.0, **keywords).shape == (0, 3)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"beta": 1.0}, ArgumentError, ["beta=", "needs c"]),
        ({"alpha": np.nan}, ArgumentError, ["alpha", "nan", "not finite"]),
        ({"beta": np.inf}, ArgumentError, ["beta", "inf", "not finite"]),
        ({"alpha": "two"}, ArgumentError, ["alpha='two'", "scalar"]),
        ({"alpha": np.ones(3)}, ArgumentError, ["alpha", "scalar"]),
        ({"trans_a": "H"}, ArgumentError, ["trans_a='H'", "'N', 'T' or 'C'"]),
        ({"trans_b": None}, ArgumentError, ["trans_b=None", "'N', 'T' or 'C'"]),
        ({"trans_a": "T"}, ShapeError, ["(3, 2)", "(3, 4)"]),
        ({"c": np.ones((2, 5)), "beta": 1.0}, ShapeError, ["c has shape (2, 5)", "(2, 4)"]),
        ({"c": np.ones((3, 2, 4)), "beta": 1.0}, ShapeError, ["c has shape (3, 2, 4)", "(2, 4)"]),
        ({"c": [[1.0]], "beta": 1.0}, OperandError, ["c is a list", "numpy.asarray(c)"]),
        ({"c": np.array([["x"]]), "beta": 1.0}, DTypeError, ["c has dtype", "c.astype"]),
    ],
)
def test_bad_input(keywords, error, words):
    with pytest.raises(error) as caught:
        prismm.gemm(np.ones((2, 3)), np.ones((3, 4)), **keywords) if "c" not in keywords else prismm.gemm(
            np.ones((2, 3)), np.ones((3, 4)), keywords.pop("c"), **keywords
        )
    for word in words:
        assert word in str(caught.value)


def test_a_transposed_vector_or_prepared_operand_is_refused():
    with pytest.raises(ShapeError, match=r"trans_a='T' needs a matrix; a has shape \(3,\)"):
        prismm.gemm(np.ones(3), np.ones((3, 2)), trans_a="T")
    right = prismm.prepare(np.ones((3, 2)), reproducible=True)
    with pytest.raises(OperandError, match="trans_b='T' with a prepared operand; prepare the transposed"):
        prismm.gemm(np.ones((3, 3)), right, trans_b="T")


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("scheme", [None, prismm.Native()])
def test_a_large_alpha_does_not_enlarge_what_underflows(dtype, scheme, rng):
    """AB of BLAS would underflow before alpha brings it back: the target holds, and so does the bound."""
    small, alpha = (2.0**-540, 2.0**1000) if dtype != "float32" else (2.0**-72, 2.0**120)
    a, b = ((rng.standard_normal((9, 12)) * small).astype(dtype) for _ in range(2))
    b = np.ascontiguousarray(b.T)
    for accuracy in ("native", None):
        d, report = prismm.gemm(a, b, alpha=alpha, accuracy=accuracy, scheme=scheme, full_output=True)
        exact = exact_gemm(alpha, a, b, 0.0, None)
        assert exact.within(d, report.bounds).all(), accuracy
    d = prismm.gemm(a, b, alpha=alpha, accuracy="native", scheme=scheme)
    assert_same_bits(d, exact.rounded(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64"])
@pytest.mark.parametrize("moduli", [3, 4, 6, 8])
def test_the_schemes_own_value_is_infinite_exactly_where_the_exact_one_is(moduli, dtype, rng):
    """Products that cancel but for a rest below the scheme's accuracy, brought to the top of the range by alpha."""
    top = float(np.finfo(dtype).max)
    for scale in (2.0**60, 1.0, 2.0**-20):
        a, b = rng.standard_normal((6, 8)) * scale, rng.standard_normal((8, 7))
        a[:, 4:] = a[:, :4]
        b[4:] = -b[:4] * (1.0 + rng.standard_normal((4, 7)) * 2.0**-18)
        c = (rng.uniform(-1.0, 1.0, (6, 7)) * top).astype(dtype)
        a, b = a.astype(dtype), b.astype(dtype)
        d = prismm.gemm(a, b, c, alpha=top, beta=1.0, scheme=prismm.Residues(moduli))
        wanted = exact_gemm(top, a, b, 1.0, c).rounded(dtype)
        for x, y in ((d.real, wanted.real), (d.imag, wanted.imag)):
            assert np.array_equal(np.isinf(x), np.isinf(y)), scale
            assert np.array_equal(x[np.isinf(x)], y[np.isinf(y)]), scale


@pytest.mark.parametrize("scheme", [prismm.Residues(15), prismm.Words.fp16(), prismm.Native()])
def test_a_factor_whose_modulus_is_beyond_the_largest_float(scheme):
    a = np.array([[2.0**-1000, 0.0], [0.0, 2.0**-900]], complex)
    alpha = 1.7e308 * (1 + 1j)
    expected = np.array([[alpha * 2.0**-1000, 0.0], [0.0, alpha * 2.0**-900]])
    for accuracy in ("native", 1e-9):
        c = prismm.gemm(a, np.eye(2) + 0j, alpha=alpha, scheme=scheme, accuracy=accuracy)
        assert np.array_equal(c, expected)


@pytest.mark.covering("dtype")
@each_dtype
@pytest.mark.parametrize("name", ["wide_rows_and_columns", "near_overflow", "cancelling"])
@pytest.mark.parametrize("alpha", [1e-10, 1e10])
def test_engines_agree_at_the_ends_of_the_range(name, alpha, dtype, seed):
    """Bits do not depend on an engine's units, and entries that may overflow within their bound are made exactly."""
    a, b = HOSTILE[name](60, 40, 70, seed, dtype)
    c, _ = HOSTILE[name](60, 70, 1, seed + 1, dtype)
    for beta in (0.0, -1.0):
        d = prismm.gemm(a, b, c, alpha=alpha, beta=beta, reproducible=True)
        for engine in usable_engines():
            again = prismm.gemm(a, b, c, alpha=alpha, beta=beta, reproducible=True, engine=engine)
            assert_same_bits(again, d, engine)
        rounded = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **CORRECT)
        assert np.array_equal(np.isfinite(d), np.isfinite(rounded))


def test_reproducible_sums_of_ordinary_numbers_are_certified(rng):
    """By |a||b|, where a sum's own magnitude does not cover the bound: none has to be summed exactly."""
    a, b, c = (rng.standard_normal((150, 150)) for _ in range(3))
    _, report = prismm.gemm(a, b, c, alpha=-1.5, beta=0.5, reproducible=True, full_output=True)
    assert report.paths == {"certified": 150 * 150}


@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("c", [0.0, -0.0])
def test_a_sum_far_below_the_range_keeps_its_sign(size, c):
    """2^-253·0 - 2^-2080 + 0·2^-463 is -0.0, though its rows and columns scale the second term to nothing."""
    a = np.repeat([[2.0**-253, 2.0**-1040, 0.0]], size, axis=0)
    b = np.repeat([[0.0], [-(2.0**-1040)], [2.0**-463]], size, axis=1)
    for sign in (1.0, -1.0):
        found = prismm.gemm(a, sign * b, np.full((size, size), c), beta=1.0, accuracy="correctly-rounded")
        assert (found == 0.0).all() and (np.signbit(found) == (sign > 0)).all()
