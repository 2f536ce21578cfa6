"""`prismm.check` against exact arithmetic: no bound is below the truth, none far above it, and every fault is found."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

import prismm
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.testing import HOSTILE, SPECIAL, correctly_rounded, exact_product
from tests.judge import CORRECT, DTYPES, assert_each, each_dtype


def products(a: np.ndarray, b: np.ndarray, right: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Products of several kinds: a library's, the best, one off by an ulp here and there, nothing, and nonsense."""
    with np.errstate(all="ignore"):
        off = right.copy()
        real = off.view(np.float32 if off.dtype.itemsize // (1 + (off.dtype.kind == "c")) == 4 else np.float64)
        chosen = rng.random(real.shape) < 0.2
        real[chosen] = np.nextafter(real[chosen], np.inf)
        nonsense = (rng.standard_normal(right.shape) * 2.0 ** rng.integers(-90, 90, right.shape)).astype(right.dtype)
        found = {"blas": (a @ b).astype(right.dtype), "right": right, "off": off, "nonsense": nonsense}
        return found | {"nothing": np.zeros_like(right)}


def verify(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> prismm.Check:
    """Every statement of a check of finite operands, against the exact product."""
    exact, found = exact_product(a, b), prismm.check(a, b, c)
    right = exact.rounded(c.dtype)
    parts = list(zip(*([x.real, x.imag] if c.dtype.kind == "c" else [x] for x in (c, right)), strict=True))
    same = np.logical_and.reduce([(x == y) | (np.isnan(x) & np.isnan(y)) for x, y in parts])
    assert (found.correct == same).all()
    assert found.correctly_rounded == same.mean()
    wrong = np.logical_or.reduce([(x != y) & ~(np.isfinite(x) & np.isfinite(y)) for x, y in parts])
    special = np.logical_or.reduce([~np.isfinite(y) for _, y in parts])
    assert found.wrong_special == wrong.sum() and found.special == special.sum()
    assert np.isinf(found.bounds[wrong]).all() and np.isinf(found.ulps.values[wrong]).all()
    assert (found.bounds[special & ~wrong] == 0).all() or c.dtype.kind == "c"
    usual = ~wrong & ~special
    true, ulps = exact.error(c), exact.ulps(c)
    assert exact.within(c, np.where(usual, found.bounds, np.inf))[usual].all()
    assert (found.ulps.values >= ulps * (1 - 1e-12))[usual].all()
    # An error below half an ulp is not always told more closely; any other is.
    with np.errstate(over="ignore"):
        assert (found.ulps.values <= np.maximum(3.001 * ulps, 0.5))[usual].all()
    assert (found.ulps.values <= 0.5)[usual & same].all()
    with np.errstate(all="ignore"):
        size = exact.magnitude("up")
        # True sizes in longdouble, whose exponents reach as far as they go.
        lower = np.where(true == 0, 0, true.astype(np.longdouble) / size)
        assert (found.componentwise.values >= lower * (1 - 1e-12))[usual & (true > 1e-300) & np.isfinite(size)].all()
        value = np.abs(exact.rounded(np.complex128 if c.dtype.kind == "c" else np.float64))
        lower = np.where(true == 0, 0, true.astype(np.longdouble) / value)
        assert (found.relative.values >= lower * (1 - 1e-12))[
            usual & (true > 1e-300) & np.isfinite(true) & (value > 1e-300)
        ].all()
    for name in ("absolute", "componentwise", "relative", "ulps"):
        measure = getattr(found, name)
        assert measure.worst == measure.values.max(initial=0.0)
        assert measure.where is None if measure.worst == 0 else measure.values[measure.where] == measure.worst
        finite = sorted(measure.values[~special].tolist())
        middle = finite[(len(finite) - 1) // 2 : len(finite) // 2 + 1]
        exact_median = np.inf if np.inf in middle else float(sum(map(Fraction, middle)) / max(len(middle), 1))
        assert abs(measure.median - exact_median) <= np.spacing(exact_median) or measure.median == exact_median
    return found


@pytest.mark.parametrize(("family", "dtype"), [
    pytest.param(name, dtype, marks=[] if (i + j) % 4 == 0 else pytest.mark.slow)
    for i, name in enumerate(HOSTILE) for j, dtype in enumerate(DTYPES)
])  # fmt: skip
def test_hostile(family, dtype, rng):
    a, b = HOSTILE[family](7, 24, 6, rng, dtype=dtype)
    right = exact_product(a, b).rounded(dtype)
    assert_each(lambda case: verify(a, b, case[1]), products(a, b, right, rng).items())


@each_dtype
def test_one_ulp_in_one_entry_is_found(dtype, rng):
    a, b = HOSTILE["normal"](60, 50, 70, rng, dtype=dtype)
    c = prismm.matmul(a, b, **CORRECT)
    found = prismm.check(a, b, c)
    assert found.correct.all() and found.correctly_rounded == 1.0 and found.ulps.worst <= 0.5
    assert found.wrong_special == found.special == 0
    i, j = map(int, rng.integers(60, size=2))
    c.real[i, j] = np.nextafter(c.real[i, j], c.real.dtype.type(np.inf))
    found = verify(a, b, c)
    assert np.argwhere(~found.correct).tolist() == [[i, j]] and found.ulps.where == (i, j)
    assert found.correctly_rounded == 1 - 1 / c.size


def test_what_is_exact_has_no_error(rng):
    integers = rng.integers(-9, 10, (30, 40)), rng.integers(-9, 10, (40, 20))
    shuffled = np.eye(40)[rng.permutation(40)], rng.standard_normal((40, 20))
    halves = (integers[0] / 64).astype(np.float32), (integers[1] * 2.0**70).astype(np.float32)
    zeros = np.zeros((3, 40)), integers[1] * 1.0
    empty = np.zeros((3, 0)), np.zeros((0, 4))
    for a, b in (integers, shuffled, halves, zeros, empty):
        found = verify(a, b, (a @ b).astype(np.result_type(a, b, np.float32)) if a.size else np.zeros((3, 4)))
        assert all(x.worst == 0.0 and x.where is None for x in found.measures.values())
        assert found.correctly_rounded == 1.0 and found.recomputed == 0


@pytest.mark.parametrize("c", [1.0, 2.0, 3.0])
def test_the_last_bit_of_subnormal_numbers(c):
    """3/2 of the least float64 rounds to 2 of them; half of it is told although no float64 is so small."""
    found = prismm.check(np.array([[2.0**-1000]]), np.array([[1.5 * 2.0**-74]]), np.array([[c * 2.0**-1074]]))
    assert found.correct.all() == (c == 2.0)
    assert abs(c - 1.5) <= found.ulps.worst <= (abs(c - 2.0) + 0.5) * (1 + 2.0**-20)
    assert abs(c - 1.5) <= found.absolute.worst / 2.0**-1074 <= 3.0
    assert abs(c - 1.5) / 1.5 <= found.relative.worst <= 3.0 and found.componentwise.worst <= 3.0


def test_no_bound_underflows():
    """Ratios below the least float64 are no errors of 0."""
    found = prismm.check(np.array([[2.0**-1000]]), np.array([[2.0**-300]]), np.array([[0.0]], np.float32))
    assert found.ulps.worst == 2.0**-1074 and found.relative.worst >= 1.0 and found.componentwise.worst >= 1.0
    for c in (2.0**-1074, 5 * 2.0**-1074):
        found = prismm.check(np.array([[1.0, 1.0]]), np.array([[3.0], [-3.0]]), np.array([[c]]))
        assert c / 4 <= found.componentwise.worst <= c and found.ulps.worst >= c / 2.0**-1074


@pytest.mark.parametrize("family", SPECIAL)
def test_specials(family, rng):
    """Inf and NaN where the defining sum has them are right; anything else is infinitely wrong."""
    a, b = SPECIAL[family](9, 12, 8, rng)
    c = correctly_rounded(a, b)
    special = ~np.isfinite(c)
    found = prismm.check(a, b, c)
    assert found.special == special.sum() and found.wrong_special == 0 and found.correct.all()
    assert (found.bounds[special] == 0).all() and np.isfinite(found.absolute.worst)
    spoilt = np.where(special, 1.0, np.where(rng.random(c.shape) < 0.5, np.nan, -np.inf))
    found = prismm.check(a, b, spoilt)
    assert found.wrong_special == c.size and found.special == special.sum() and not found.correct.any()
    assert np.isinf(found.bounds).all() and found.relative.worst == found.ulps.worst == np.inf
    swapped = np.where(np.isinf(c), -c, c)
    assert (prismm.check(a, b, swapped).correct == ~np.isinf(c)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_edge_of_overflow(dtype):
    """RN(exact) overflows from max + ulp/2 on, and a finite c is infinitely wrong there."""
    top = np.finfo(dtype).max
    half = 2.0 ** (np.finfo(dtype).maxexp - np.finfo(dtype).nmant - 2)
    a = np.array([[float(top), half, 0.0], [float(top), half / 2, 0.0], [float(top), half, -half / 4]])
    c = np.full((3, 1), top)
    found = prismm.check(a, np.ones((3, 1)), c)
    assert found.correct.ravel().tolist() == [False, True, True]
    assert np.isinf(found.bounds[0, 0]) and half / 2 <= found.bounds[1, 0] < half and found.wrong_special == 1
    found = prismm.check(a, np.ones((3, 1)), np.full((3, 1), np.inf, dtype))
    assert found.correct.ravel().tolist() == [True, False, False] and found.wrong_special == 2


@pytest.mark.parametrize(("left", "right"), [
    ((5, 4, 6), (6, 3)), ((5, 4, 6), (5, 6, 3)), ((2, 1, 4, 6), (3, 6, 2)), ((6,), (6, 3)), ((4, 6), (6,)),
    ((6,), (6,)), ((2, 6), (3, 6, 4)), ((3, 2, 6), (6,)), ((0, 6), (6, 3)), ((2, 0, 6), (6, 3)), ((0, 2, 6), (0, 6, 3)),
])  # fmt: skip
def test_shapes_are_those_of_matmul(left, right, rng):
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    c = np.array(a @ b)
    if c.size:
        c.flat[-1] += 1.0
    found = prismm.check(a, b, c if c.ndim else c[()])
    assert found.shape == c.shape == found.bounds.shape == found.correct.shape == found.ulps.values.shape
    if c.size:
        last = tuple(n - 1 for n in c.shape)
        assert found.absolute.where == last and found.bound(*last) == found.absolute.worst
        assert 1.0 - 1e-12 < found.absolute.worst < 1.0 + 2.0**-23
        with pytest.raises(IndexError):
            found.bound(*last, 0)
    else:
        assert found.correctly_rounded == 1.0 and found.absolute.worst == 0.0 and found.absolute.where is None


def test_the_type_of_c_is_its_own(rng):
    a, b = rng.standard_normal((6, 30)), rng.standard_normal((30, 5))
    wide, narrow = prismm.matmul(a, b, **CORRECT), prismm.matmul(a, b, out_dtype="float32", **CORRECT)
    for x, y, c in ((a, b, narrow), (a.astype(np.float32), b.astype(np.float32), (a @ b)), (a, b, wide + 0j)):
        found = verify(x, y, c)
        assert found.dtype == c.dtype.name and found.operands == (x.dtype.name, y.dtype.name)
    assert prismm.check(a, b, narrow).correct.all()
    integers = rng.integers(-(2**62), 2**62, (4, 7))
    assert prismm.check(integers, integers.T, prismm.matmul(integers, integers.T, **CORRECT)).correct.all()


def test_tensors_and_strides(rng):
    torch = pytest.importorskip("torch")
    a, b = rng.standard_normal((8, 20)), rng.standard_normal((20, 6))
    c = a @ b
    plain = prismm.check(a, b, c)
    tensors = [torch.from_numpy(x) for x in (a, b, c)]
    tensors[0].requires_grad_()
    strided = np.asfortranarray(a), np.repeat(b, 2, 1)[:, ::2], c[::-1][::-1]
    for other in (prismm.check(*tensors), prismm.check(*strided), prismm.check(a, b, c, threads=1)):
        assert (other.bounds == plain.bounds).all() and (other.ulps.values == plain.ulps.values).all()


@pytest.mark.parametrize(("a", "b", "c", "error"), [
    (np.eye(3), np.eye(4), np.eye(3), ShapeError),
    (np.eye(3), np.eye(3), np.eye(4), ShapeError),
    (np.eye(3), np.eye(3), np.ones(3), ShapeError),
    (np.eye(3), np.eye(3), np.eye(3, dtype=int), DTypeError),
    (np.eye(3), np.eye(3), np.eye(3, dtype=np.float16), DTypeError),
    (np.eye(3) + 0j, np.eye(3), np.eye(3), DTypeError),
    (np.eye(3), np.eye(3), [[1.0]], OperandError),
    (np.eye(3).astype(object), np.eye(3), np.eye(3), DTypeError),
])  # fmt: skip
def test_what_cannot_be_checked(a, b, c, error):
    with pytest.raises(error):
        prismm.check(a, b, c)


def test_other_refusals():
    eye = np.eye(3)
    with pytest.raises(OperandError, match="b is a prepared operand"):
        prismm.check(eye, prismm.prepare(eye), eye)
    with pytest.raises(ArgumentError, match="did you mean 'cpu:int8'"):
        prismm.check(eye, eye, eye, engine="cpu:int9")


def test_it_prints_and_is_json(rng):
    a, b = rng.standard_normal((4, 9)), rng.standard_normal((9, 3))
    c = prismm.matmul(a, b, **CORRECT)
    c[2, 1] += 1.0
    found = prismm.check(a, b, c)
    assert "91.67 % of 12 entries correctly rounded" in str(found) and "at (2, 1)" in str(found)
    read = json.loads(json.dumps(found.to_dict()))
    assert read["absolute"]["where"] == [2, 1] and read["correctly_rounded"] == 11 / 12
    assert "bounds" not in repr(found) and "<td>(2, 1)</td>" in found._repr_html_()
