"""matmul: shapes, types, out and out_dtype as NumPy has them, with correctly rounded values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prismm
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.testing import HOSTILE, correctly_rounded, exact_product
from tests.judge import CORRECT, DTYPES, assert_same_bits, each_dtype, each_engine, problem, usable_engines

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ALL_TYPES = ["float16", *DTYPES, *INTEGERS]
CALLS: list[dict[str, Any]] = [{}, CORRECT, {"reproducible": True}, {"accuracy": 1e-9}, {"scheme": prismm.Residues(9)}]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers over their whole type, floats normal."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape)).astype(kind) if kind.kind == "c" else x.astype(kind)


def result_of(*dtypes: str) -> np.dtype:
    """NumPy's promotion; integers alone become float64, float16 alone float32."""
    kind = np.result_type(*dtypes)
    return np.dtype("float64") if kind.kind in "iu" else np.dtype("float32") if kind == np.float16 else kind


def stacked_exact(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """RN(exact) of NumPy's matmul, product by product."""
    x = a[None, :] if a.ndim == 1 else a
    y = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = np.broadcast_to(x, (*batch, *x.shape[-2:])), np.broadcast_to(y, (*batch, *y.shape[-2:]))
    out = np.empty((*batch, x.shape[-2], y.shape[-1]), dtype)
    for index in np.ndindex(*batch):
        out[index] = exact_product(x[index], y[index]).rounded(dtype)
    if b.ndim == 1:
        out = out[..., 0]
    return out[..., 0, :] if a.ndim == 1 and b.ndim > 1 else out[..., 0] if a.ndim == 1 else out


SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((1, 2, 3), (6, 3, 2)),
    ((2, 1, 2, 3), (1, 3, 3, 2)),
    ((1, 1), (1, 1)),
    ((0, 3), (3, 4)),
    ((2, 3), (3, 0)),
    ((2, 0), (0, 4)),
    ((0,), (0,)),
    ((0,), (0, 3)),
    ((0, 2, 3), (3, 4)),
    ((5, 2, 0), (0, 4)),
    ((0, 0), (0, 0)),
    ((2, 0, 3), (3,)),
]


@pytest.mark.covering(("left", "right"))
@each_dtype
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_shapes_are_numpys(left, right, dtype, rng):
    a, b = random(rng, left, dtype), random(rng, right, dtype)
    expected = stacked_exact(a, b, np.dtype(dtype))
    assert expected.shape == np.matmul(a, b).shape
    # Batches are taken apart above the engines, so each engine makes one of the calls, another one at the next shape.
    turn = SHAPES.index((left, right))
    ways = [(None, keywords) for keywords in CALLS]
    ways += [(engine, CALLS[(turn + i) % len(CALLS)]) for i, engine in enumerate(usable_engines())]
    for engine, keywords in ways:
        c, report = prismm.matmul(a, b, engine=engine, full_output=True, **keywords)
        assert c.shape == expected.shape and c.dtype == dtype
        if keywords is CORRECT:
            assert_same_bits(c, expected, str(engine))
        else:
            np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)
        bounds = report.bounds
        assert bounds.shape == c.shape
        for index in np.ndindex(*c.shape):
            assert report.bound(*index) == pytest.approx(bounds[index], rel=1e-12), (index, keywords)
        assert sum(report.paths.values()) == c.size * (2 if c.dtype.kind == "c" else 1)


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ((2, 3), (4, 5), ["a has shape (2, 3)", "b has shape (4, 5)", "3 and 4 differ"]),
        ((3,), (4,), ["(3,)", "(4,)", "3 and 4"]),
        ((2, 3), (2,), ["3 and 2"]),
        ((3, 2, 3), (2, 3, 3), ["batch dimensions (3,) and (2,)"]),
        ((), (3, 3), ["a has shape ()", "scalars"]),
        ((3, 3), (), ["b has shape ()", "*"]),
        ((2, 0), (1, 2), ["0 and 1"]),
    ],
)
def test_shapes_that_do_not_fit(left, right, words):
    for keywords in CALLS:
        with pytest.raises(ShapeError) as caught:
            prismm.matmul(np.ones(left), np.ones(right), **keywords)
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize("left", ALL_TYPES)
@pytest.mark.parametrize("right", ALL_TYPES)
def test_every_pair_of_types_is_taken_exactly(left, right, rng):
    """Integers over their whole range: those beyond 2^53 have no float64 of their own."""
    a, b = random(rng, (4, 6), left), random(rng, (6, 5), right)
    dtype = result_of(left, right)
    expected = exact_product(a, b).rounded(dtype)
    for engine in (None, *usable_engines()):
        c = prismm.matmul(a, b, engine=engine, **CORRECT)
        assert_same_bits(c, expected, str(engine))
    exact = exact_product(a, b)
    u = 2.0**-53 if dtype in (np.float64, np.complex128) else 2.0**-24
    native, tolerance = (12 if dtype.kind == "c" else 6) * u, 1e-12 + u
    for keywords, slack in (
        ({}, native),
        ({"reproducible": True}, native),
        ({"scheme": prismm.Residues(15), "accuracy": "native"}, native),
        ({"accuracy": 1e-12}, tolerance),
    ):
        c, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert c.dtype == dtype
        assert exact.within(c, slack * (1 + 1e-9) * exact.magnitude("up")).all(), keywords
        assert exact.within(c, report.bounds).all(), keywords


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_at_the_ends_of_their_type(dtype):
    info = np.iinfo(dtype)
    a = np.array([[info.max, info.min, 2**53 + 1, 1], [info.max - 1, info.min + 1, 2**62 + 1, info.max]], dtype)
    b = np.array([[1, info.max], [info.max, 3], [2**53 + 3, 0], [info.max, info.max]], dtype)
    for engine in usable_engines():
        for keywords in (CORRECT, {"accuracy": 1e-30}):
            c = prismm.matmul(a, b, engine=engine, **keywords)
            assert_same_bits(c, exact_product(a, b).rounded(), f"{engine} {keywords}")
        half = prismm.matmul(a, b, engine=engine, out_dtype="float32", **CORRECT)
        assert_same_bits(half, exact_product(a, b).rounded(np.float32), engine)
    batch = prismm.matmul(np.stack([a, a[::-1]]), b, **CORRECT)
    assert_same_bits(batch[1], exact_product(a[::-1], b).rounded())
    mixed = prismm.matmul(a, np.full((4, 1), 0.1), **CORRECT)
    assert_same_bits(mixed, exact_product(a, np.full((4, 1), 0.1)).rounded())


@pytest.mark.parametrize("operands", ALL_TYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_out_dtype_is_rounded_to_once(operands, out_dtype, rng):
    a, b = random(rng, (5, 30), operands), random(rng, (30, 4), operands)
    wanted = np.dtype(out_dtype)
    if np.dtype(operands).kind == "c" and wanted.kind != "c":
        with pytest.raises(DTypeError, match=f"out_dtype={out_dtype}.*complex64 or complex128"):
            prismm.matmul(a, b, out_dtype=out_dtype)
        return
    exact = exact_product(a, b)
    expected = exact.rounded(wanted)
    for engine in (None, *usable_engines()):
        assert_same_bits(prismm.matmul(a, b, out_dtype=out_dtype, engine=engine, **CORRECT), expected, str(engine))
    u, terms = (2.0**-53 if wanted in (np.float64, np.complex128) else 2.0**-24), 30 * (2 if wanted.kind == "c" else 1)
    for keywords in ({}, {"reproducible": True}):
        c, report = prismm.matmul(a, b, out_dtype=wanted, full_output=True, **keywords)
        assert c.dtype == wanted
        assert exact.within(c, terms * u * (1 + 1e-9) * exact.magnitude("up")).all(), keywords
        assert exact.within(c, report.bounds).all(), keywords


@pytest.mark.parametrize("out_dtype", ["float16", "int64", "longdouble", "bogus", object, 7])
def test_other_out_dtypes_are_refused(out_dtype):
    with pytest.raises(DTypeError, match=r"out_dtype=.*float32, float64, complex64, complex128"):
        prismm.matmul(np.ones((2, 2)), np.ones((2, 2)), out_dtype=out_dtype)


@each_dtype
@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_out_is_written_whatever_its_layout(keywords, dtype, rng):
    a, b = random(rng, (6, 7), dtype), random(rng, (7, 5), dtype)
    expected = prismm.matmul(a, b, **keywords)
    frame = np.full((14, 17), 7, dtype)
    for out in (
        np.full((6, 5), np.nan, dtype),
        np.full((5, 6), np.nan, dtype).T,
        frame[1:13:2, 2:17:3],
        np.full((6, 5), np.nan, dtype)[::-1, ::-1],
    ):
        assert prismm.matmul(a, b, out=out, **keywords) is out
        if "reproducible" in keywords or "scheme" in keywords or keywords is CORRECT:
            assert_same_bits(out, expected)
        else:
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    untouched = np.ones(frame.shape, bool)
    untouched[1:13:2, 2:17:3] = False
    assert (frame[untouched] == 7).all()
    stack = np.empty((3, 6, 5), dtype)
    assert prismm.matmul(np.stack([a, 2 * a, 4 * a]), b, out=stack, **keywords) is stack
    np.testing.assert_allclose(stack[2], 4 * expected, rtol=1e-4, atol=1e-4)
    scalar = np.empty((), dtype)
    assert prismm.matmul(a[0], b[:, 0], out=scalar, **keywords) is scalar
    np.testing.assert_allclose(scalar, expected[0, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.empty((2, 3)), ShapeError, ["out has shape (2, 3)", "(2, 2)"]),
        (np.empty((2, 2), np.float32), DTypeError, ["out has dtype float32", "float64", "out_dtype"]),
        (np.empty((2, 2), np.int64), DTypeError, ["int64", "float64"]),
        (np.empty((2, 2), ">f8"), OperandError, ["foreign byte order", "writable"]),
        ([[0.0, 0.0], [0.0, 0.0]], OperandError, ["out is a list"]),
        (np.empty((2, 2), object), DTypeError, ["out has dtype object"]),
    ],
)
def test_an_out_that_cannot_hold_the_result_is_refused(out, error, words):
    for keywords in CALLS:
        with pytest.raises(error) as caught:
            prismm.matmul(np.ones((2, 2)), np.ones((2, 2)), out=out, **keywords)
        for word in words:
            assert word in str(caught.value)


def test_a_read_only_out_is_refused_and_left_alone():
    out = np.zeros((2, 2))
    out.flags.writeable = False
    for keywords in CALLS:
        with pytest.raises(OperandError, match=r"read-only.*writable"):
            prismm.matmul(np.ones((2, 2)), np.ones((2, 2)), out=out, **keywords)
    assert (out == 0).all()


@each_dtype
def test_operands_are_never_changed(dtype, rng):
    a, b = random(rng, (6, 7), dtype), random(rng, (7, 5), dtype)
    x, y = a.copy(), b.copy()
    for engine in usable_engines():
        for keywords in CALLS:
            prismm.matmul(x, y, engine=engine, **keywords)
    assert_same_bits(x, a)
    assert_same_bits(y, b)


matrices = st.tuples(
    st.integers(1, 24), st.integers(0, 40), st.integers(1, 24), st.integers(0, 2**32 - 1), st.sampled_from(DTYPES)
)


@st.composite
def hostile_pairs(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Operands of any small shape, exponents and layout: a draw, rows and columns moved by 2^e, strides changed."""
    m, k, n, seed, dtype = draw(matrices)
    a, b = HOSTILE[draw(st.sampled_from(sorted(HOSTILE)))](m, k, n, seed, dtype)
    reach = draw(st.sampled_from([0, 40, 500]))
    rng = np.random.default_rng(seed)
    pair = []
    for x, shape in ((a, (m, 1)), (b, (1, n))):
        exponents = rng.integers(-reach, reach + 1, shape)
        moved = np.empty_like(x)
        with np.errstate(over="ignore", under="ignore"):
            moved.real = np.ldexp(x.real, exponents)
            if x.dtype.kind == "c":
                moved.imag = np.ldexp(x.imag, exponents)
        moved = np.where(np.isfinite(moved), moved, 1).astype(dtype)
        how = draw(st.sampled_from(["C", "F", "gaps", "reversed"]))
        if how == "F":
            moved = np.asfortranarray(moved)
        elif how == "reversed":
            moved = moved[::-1, ::-1].copy()[::-1, ::-1]
        elif how == "gaps":
            wide = np.full((2 * x.shape[0], 3 * x.shape[1]), np.nan, dtype)
            wide[1::2, ::3] = moved
            moved = wide[1::2, ::3]
        pair.append(moved)
    return pair[0], pair[1]


@each_engine
@given(pair=hostile_pairs())
def test_any_shape_stride_and_exponent_is_rounded_correctly(engine, pair):
    problem(engine)
    a, b = pair
    expected = correctly_rounded(a, b)
    assert_same_bits(prismm.matmul(a, b, engine=engine, **CORRECT), expected, engine)
    assert_same_bits(prismm.matmul(a, b, **CORRECT), expected, "default engine")


def test_a_batch_that_repeats_one_matrix_by_a_zero_stride(rng):
    a = np.broadcast_to(rng.standard_normal((3, 4)), (5, 3, 4))
    b = np.broadcast_to(rng.standard_normal((4, 1)), (4, 6))
    exact = exact_product(a[0], b)
    for keywords in CALLS:
        c = prismm.matmul(a, b, **keywords)
        if keywords in ({}, {"accuracy": 1e-9}):  # served by BLAS, whose bits follow the strides
            assert all((exact.error(x) <= 1e-9 * (np.abs(a[0]) @ np.abs(b))).all() for x in c)
        else:
            assert_same_bits(c, np.broadcast_to(prismm.matmul(a[0].copy(), b.copy(), **keywords), (5, 3, 6)))


@pytest.mark.parametrize(
    "keywords",
    [{}, {"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": prismm.Words.fp16()}],
    ids=str,
)
def test_out_whose_matrices_are_no_rows_of_one_view(keywords, rng):
    """A batch against one matrix is multiplied as one tall matrix; these results cannot be."""
    a, b = rng.standard_normal((3, 5, 4)), rng.standard_normal((4, 6))
    expected = prismm.matmul(a, b, **keywords)
    for out in (np.zeros((3, 6, 5)).transpose(0, 2, 1), np.zeros((5, 3, 6)).transpose(1, 0, 2), np.zeros((6, 5, 3)).T):
        assert prismm.matmul(a, b, out=out, **keywords) is out
        assert np.array_equal(out, expected)
        prismm.gemm(a, b, alpha=2.0, out=out, **keywords)
        assert np.array_equal(out, prismm.gemm(a, b, alpha=2.0, **keywords))


def test_a_real_operand_of_a_plain_native_product():
    """Entries that overflow on the way are summed exactly from both operands' complex parts."""
    a = np.full((2, 33), 1 + 1j)
    a[:, :2], a[:, 2] = 1.5e308, -1.5e308
    c = prismm.matmul(a, np.ones((33, 3)), scheme=prismm.Native())
    assert (c == 1.5e308 + 30.0 + 30j).all()
    assert np.isposinf(prismm.gemm(a, np.ones((33, 3)), alpha=2.0, scheme=prismm.Native()).real).all()
    narrow = np.full((2, 3), 0.1 + 0.1j, np.complex64)
    real = np.full((3, 2), 0.1, np.float32)
    assert np.array_equal(prismm.matmul(narrow, real, scheme=prismm.Native()), narrow @ real)


def test_bounds_of_wide_integers():
    """Two or four terms stand for a product of integers beyond 2^53, in a native sum."""
    x, y = (np.array([[v]], np.uint64) for v in (15098306652243312942, 11711715268499401616))
    c, report = prismm.matmul(x, y, accuracy="fast", full_output=True)
    assert abs(int(c[0, 0]) - int(x[0, 0]) * int(y[0, 0])) <= report.bound(0, 0)
    with pytest.raises(
        ArgumentError, match=r"does not reach accuracy 'native' for integers beyond 2\^53 or long doubles; leave scheme"
    ):
        prismm.matmul(x, y, scheme=prismm.Native(), accuracy="native")
    for keywords in (
        {},
        {"accuracy": "correctly-rounded"},
        {"scheme": prismm.Native(), "accuracy": "correctly-rounded"},
    ):
        assert prismm.matmul(x, y, **keywords)[0, 0] == float(int(x[0, 0]) * int(y[0, 0]))
