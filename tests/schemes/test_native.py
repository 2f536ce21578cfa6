"""Native: BLAS inside its bound, with overflow, underflow and float32-by-float64 handled exactly."""

import numpy as np
import pytest

import prismm
from prismm.core.accuracy import Target
from prismm.core.outcome import Epilogue, Job
from prismm.cpu.native import product as native
from prismm.errors import ArgumentError
from prismm.formats import format_of
from prismm.schemes.native import Native
from prismm.testing import HOSTILE, exact_gemm, exact_product
from tests.judge import assert_same_bits

DTYPES = ["float64", "float32", "complex128", "complex64"]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def run(a, b, target=None, scheme=None, epilogue=None, *, as_torch=False):
    dtype = np.result_type(a, b)
    terms = a.shape[1] * (2 if dtype.kind == "c" else 1)
    job = Job(format_of(dtype), target, terms, False, 2, 1 << 30, epilogue)
    out = np.full((a.shape[0], b.shape[1]), 7, dtype)
    return out, native.multiply(scheme or Native(), a, b, out, job, as_torch=as_torch)


@pytest.mark.covering
@each_dtype
@pytest.mark.parametrize("as_torch", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_the_result_meets_the_bound_it_reports(name, as_torch, dtype, seed):
    a, b = HOSTILE[name](14, 30, 11, seed, dtype)
    out, outcome = run(a, b, as_torch=as_torch)
    exact = exact_product(a, b)
    assert np.array_equal(np.isfinite(out), np.isfinite(exact.rounded(dtype)))
    bounds = outcome.bound.at(out, slice(None), slice(None))
    assert exact.within(out, bounds).all()
    assert sum(outcome.paths.values()) == out.size * (2 if np.dtype(dtype).kind == "c" else 1)


@pytest.mark.parametrize("name", HOSTILE)
def test_float32_through_float64_is_correctly_rounded(name, seed):
    for k in (1, 40, 300):
        a, b = HOSTILE[name](13, k, 9, seed, "float32")
        out, outcome = run(a, b, Target("correctly-rounded"), Native("float64"))
        assert_same_bits(out, exact_product(a, b).rounded(np.float32))
        if name == "normal":
            assert outcome.paths["certified"] > out.size // 2


@each_dtype
@pytest.mark.parametrize(
    "target", [Target("correctly-rounded"), Target("tolerance", 1e-20), Target("tolerance", 1e-3)], ids=str
)
def test_targets_that_blas_misses_are_repaired(target, dtype, seed):
    for name in ("normal", "graded", "cancelling", "subnormal_results"):
        a, b = HOSTILE[name](8, 30, 7, seed, dtype)
        out, outcome = run(a, b, target)
        exact = exact_product(a, b)
        if target.kind == "correctly-rounded" or target.tolerance < 1e-10:
            assert_same_bits(out, exact.rounded(dtype))
        else:
            u, eta = format_of(dtype).unit_roundoff, format_of(dtype).smallest_subnormal
            size = exact.magnitude("down")
            finite = np.isfinite(exact.rounded(dtype))
            value = np.where(finite, exact.rounded(dtype), 0)
            largest = np.maximum(abs(value.real), abs(value.imag)).astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                bound = np.where(finite, (target.tolerance * size + u * largest) * (1 + 1e-6) + eta, np.inf)
            assert exact.within(np.where(finite, out, 0), bound).all()
        assert outcome.bound.at(out, slice(None), slice(None)).shape == out.shape


@each_dtype
def test_overflow_on_the_way_is_repaired(dtype):
    top = float(np.finfo(dtype).max)
    a = np.array([[top, top, -top], [top, 0, 0], [1, 1, 1]], dtype)
    b = np.array([[2, 1], [1, 1], [2.5, 2]], dtype)
    out, outcome = run(a, b)
    assert_same_bits(out.real, exact_product(a, b).rounded(dtype).real)
    assert outcome.paths["exact"] >= 1
    assert np.isfinite(out[0, 0]) and np.isinf(out[1, 0].real)


@each_dtype
def test_an_overflow_hidden_by_rounding_is_found(dtype):
    """A long sum that rounds to a finite value just below the threshold, while the exact one overflows."""
    dtype = np.dtype(dtype)
    fmt = format_of(dtype)
    k = 4000
    a = np.full((1, k), fmt.max / 2**13, dtype)
    a[0, 0] = fmt.max
    b = np.full((k, 1), 2.0 ** -(fmt.precision - 12), dtype)
    b[0, 0] = 1.0
    exact = exact_product(a, b).rounded(dtype)
    out, _ = run(a, b)
    assert_same_bits(np.isinf(out.real), np.isinf(exact.real))


@each_dtype
def test_epilogues_meet_their_bound(dtype, seed, rng):
    for name in ("normal", "wide_rows", "subnormal_results"):
        a, b = HOSTILE[name](8, 20, 7, seed, dtype)
        c = rng.standard_normal((8, 7)).astype(np.dtype(dtype).type(0).real.dtype).astype(dtype)
        alpha, beta = (0.75 - 2j, 1.5 + 0.5j) if np.dtype(dtype).kind == "c" else (-0.75, 1.5)
        out, outcome = run(a, b, epilogue=Epilogue(alpha, beta, c))
        exact = exact_gemm(alpha, a, b, beta, c)
        assert exact.within(out, outcome.bound.at(out, slice(None), slice(None))).all()


def test_underflow_is_ruled_out_by_the_smallest_elements():
    one = np.ones((2, 2))
    assert native.cannot_underflow(one * 2.0**-500, one * 2.0**-500, np.dtype("float64"))
    assert not native.cannot_underflow(one * 2.0**-512, one * 2.0**-511, np.dtype("float64"))
    assert not native.cannot_underflow(one * 2.0**-100, one * 2.0**-100, np.dtype("float32"))
    assert native.cannot_underflow(np.zeros((2, 2)), one * 2.0**-1074, np.dtype("float64")) is False
    assert native.cannot_underflow(np.array([[0.0, 1.0]]), one, np.dtype("float64"))


def test_the_precision_of_the_gemm():
    f4, f8, c8 = (np.empty((1, 1), d) for d in ("float32", "float64", "complex64"))
    assert native.gemm_dtype(f4, f4, f4, None) == np.float32
    assert native.gemm_dtype(f4, f8, f4, None) == np.float64
    assert native.gemm_dtype(f4, f4, f8, None) == np.float64
    assert native.gemm_dtype(f4, f4, f4, "float64") == np.float64
    assert native.gemm_dtype(c8, f4, c8, "float64") == np.complex128


def test_odd_strides_reach_torch_unharmed(rng):
    a, b = rng.standard_normal((9, 9)), rng.standard_normal((9, 9))
    for x, y in ((a[::-1], b[:, ::-1]), (a.T, b.T), (a[::2], b)):
        assert np.allclose(native.product(x, y, as_torch=True), x @ y, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("m", [3, 200])
def test_an_overflow_that_a_sum_in_float64_cancels_is_found(m, dtype):
    """2^140 between two products of 2^254 that cancel, which float64 loses; float32 would have met infinities."""
    for middle, expected in ((2.0**40, np.inf), (2.0**-40, 2.0**60), (-(2.0**40), -np.inf)):
        a = np.array([[2.0**127, 2.0**100, -(2.0**127)]], dtype).repeat(m, 0)
        b = np.array([[2.0**127], [middle], [2.0**127]], dtype).repeat(70, 1)
        a[1], b[:, 7] = 0.0, 0.0
        c = prismm.matmul(a, b, scheme=prismm.Native("float64"), accuracy="native")
        assert c.dtype == dtype and (c[1] == 0.0).all() and (c[:, 7] == 0.0).all()
        assert (np.delete(np.delete(c, 1, 0), 7, 1).real == expected).all()
        if dtype == "float32":
            d = prismm.gemm(a, b, np.ones((m, 70), dtype), beta=1.0, scheme=prismm.Native("float64"), accuracy="native")
            assert (np.delete(np.delete(d, 1, 0), 7, 1) == expected).all() and (d[1] == 1.0).all()


@pytest.mark.parametrize("compute", ["float16", "tf32", 64])
def test_other_precisions_are_refused(compute):
    with pytest.raises(ArgumentError, match="compute="):
        Native(compute)


def test_it_never_claims_to_be_reproducible():
    assert prismm.Native().reproducible is False and Native("float64") == prismm.Native(compute="float64")
