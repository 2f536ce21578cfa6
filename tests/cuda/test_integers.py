"""Integers on a GPU: exact as on a CPU, with its types."""

import contextlib
import itertools
import types
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import prismm  # noqa: E402
from prismm.core import arrays, terms  # noqa: E402
from prismm.core.accuracy import Target, join_test  # noqa: E402
from prismm.core.problem import Problem  # noqa: E402
from prismm.cuda import calls as cuda_calls  # noqa
from prismm.cuda import integers as cuda_integers  # noqa: E402
from prismm.cuda import operands as cuda_operands  # noqa: E402
from prismm.cuda.backend import real_operands  # noqa: E402
from prismm.cuda.residues.implementation import certificate_test  # noqa: E402
from prismm.errors import ArgumentError, DTypeError, OperandError  # noqa: E402
from prismm.formats import FP64  # noqa: E402

ENDS = [0, 1, -1, 2**31, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 2**63 - 1, -(2**63)]
ENDS += [-(2**63) + 1, 2**62 + 2**31, 2**62 - 2**31 - 1, -(2**40) - 1]
UNSIGNED_ENDS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1]
UNSIGNED_ENDS += [2**63 + 2**31 - 1, 2**63 + 2**31, 2**64 - 2**31 - 1, 2**64 - 2**31, 2**64 - 2**11, 2**64 - 1]
UNSIGNED = ["uint16", "uint32", "uint64"]


def integers(rng, *shape):
    """64-bit integers of any size, many of which are beyond 2^53."""
    found = rng.integers(-(2**63), 2**63 - 1, shape, dtype=np.int64) >> rng.integers(0, 62, shape)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array(ENDS, np.int64), shape), found)


def unsigned(rng, kind, *shape):
    """Unsigned integers of any size, ends of the type and of float64's whole numbers among them."""
    bits = np.iinfo(kind).bits
    ends = np.array([x for x in [*UNSIGNED_ENDS, 2**15, 2**16 - 1] if x < 2**bits], np.uint64)
    found = rng.integers(0, 2**bits, shape, np.uint64, endpoint=False) >> rng.integers(0, bits, shape, np.uint64)
    return np.where(rng.random(shape) < 0.2, rng.choice(ends, shape), found).astype(kind)


class OnlyViewed(TorchDispatchMode):
    """Nothing is done with unsigned integers of 16 bits and more but views, which any device has."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kinds = {x.dtype for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        if kinds & {getattr(torch, kind) for kind in UNSIGNED}:
            assert function in (torch.ops.aten.view.dtype, torch.ops.aten.transpose.int), function
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def as_on_gpu(monkeypatch):
    """What operands go through before they are multiplied there, on a CPU."""
    with monkeypatch.context() as patch, OnlyViewed():
        patch.setattr(cuda_operands, "lives_on_gpu", lambda x: True)
        yield


def test_high_and_low_are_those_of_a_cpu(rng):
    x = np.concatenate([np.array(UNSIGNED_ENDS, np.uint64), unsigned(rng, np.uint64, 2000)])
    found = [y.numpy() for y in cuda_integers.high_low(torch.from_numpy(x))]
    assert all(np.array_equal(ours, own) for ours, own in zip(found, terms.high_low(x), strict=True))
    assert [int(h) + int(r) for h, r in zip(*(y.tolist() for y in found), strict=True)] == x.tolist()
    x = np.concatenate([np.array(ENDS, np.int64), integers(rng, 2000)])
    for ours, own in zip(cuda_integers.high_low(torch.from_numpy(x)), terms.high_low(x), strict=True):
        assert np.array_equal(ours.numpy(), own)
    high, low = (y.tolist() for y in cuda_integers.high_low(torch.from_numpy(x)))
    assert [int(h) + int(r) for h, r in zip(high, low, strict=True)] == x.tolist()


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((4,), (4,))]
)
def test_widened_operands_are_those_of_a_cpu(shapes, rng):
    for which in itertools.product((False, True), repeat=2):
        a, b = (
            integers(rng, *shape) if wide else rng.integers(-9, 9, shape)
            for wide, shape in zip(which, shapes, strict=True)
        )
        a.flat[0], b.flat[0] = (2**60 + 1 if wide else 3 for wide in which)
        *found, wider = cuda_integers.widened(torch.from_numpy(a), torch.from_numpy(b), False)
        assert wider == 2 ** sum(which)
        column = b if b.ndim > 1 else b[:, None]
        expected = terms.widened(a, column)
        assert np.array_equal(found[0].numpy(), expected[0].astype(float))
        assert np.array_equal(found[1].numpy().reshape(expected[1].shape), expected[1].astype(float))
    for kind in ("float32", "float64", "complex64"):
        a, b = integers(rng, 3, 4) | 2**60, rng.standard_normal((4, 2)).astype(kind)
        b[1] = np.inf, np.nan
        for pair in ((a, b), (b.T, a.T)):
            found = cuda_integers.widened(*map(torch.from_numpy, map(np.ascontiguousarray, pair)), False)
            expected = terms.widened(*pair)
            assert found[2] == expected[2] == 2
            assert all(np.array_equal(x.numpy(), y, True) for x, y in zip(found[:2], expected[:2], strict=True))
    with pytest.raises(OperandError, match="unprepared"):
        cuda_integers.widened(torch.tensor([2**60]), torch.tensor([1.0]), True)
    with pytest.raises(DTypeError, match=r"c holds integers beyond 2\^53; say"):
        cuda_integers.exact(torch.tensor([-(2**60)]), "c", "; say")
    assert cuda_integers.exact(torch.tensor([2**53]), "c", "").dtype == torch.float64


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_batches_of_which_some_are_large_are_found_as_on_a_cpu(kind, rng):
    for _ in range(50):
        x = rng.integers(0, 2**53, (2, 3, 2, 2)).astype(kind)
        x[rng.random((2, 3)) < 0.7, 1, 1] = rng.choice([2**53, 2**53 + 1, 2**63 - 1])
        assert cuda_integers.alike_in_size(torch.from_numpy(x)) == terms.alike(x)
        assert terms.alike(x) == (len({(z > 2**53).any() for z in x.reshape(6, -1)}) == 1)
    assert cuda_integers.alike_in_size(torch.from_numpy(x[0, 0])) and terms.alike(x[0, 0])


@pytest.mark.parametrize(
    "shapes", [((4, 3, 5), (4, 5, 2)), ((4, 3, 5), (5, 2)), ((5,), (2, 1, 5, 2)), ((4, 3, 5), (5,))]
)
def test_each_product_of_a_mixed_batch_is_a_call_of_its_own(shapes, rng, monkeypatch):
    """With CPU products in place of those of a GPU: places, sums, counts, bounds, and an out that overlaps."""
    a, b = (torch.from_numpy(rng.integers(-(2**62), 2**62, shape)) for shape in shapes)
    c = rng.standard_normal(np.matmul(*map(np.ones, shapes)).shape)
    sum_ = cuda_calls.cuda_gemm.Sum(0.3, 1.0, torch.from_numpy(c[0]))
    form = {"reproducible": True}

    def product(x, y, keywords, out, full_output, sum_):
        extra = {} if sum_ is None else {"alpha": sum_.alpha, "beta": sum_.beta}
        third = () if sum_ is None else (sum_.addend,)
        return prismm.gemm(x, y, *third, out=out, full_output=full_output, **extra, **form)

    monkeypatch.setattr(cuda_calls, "_matmul", product)
    for sums in (None, sum_):
        asked = {} if sums is None else {"c": np.broadcast_to(c[0], c.shape), "alpha": 0.3, "beta": 1.0}
        third = [asked.pop("c")] if asked else []
        expected, own = prismm.gemm(a.numpy(), b.numpy(), *third, full_output=True, **asked, **form)
        out = torch.from_numpy(np.empty_like(expected))
        call = types.SimpleNamespace(shape=out.shape, plan=own.plan)
        report = cuda_calls._each_alone(call, a, b, (), out, True, sums, 0.0)
        assert np.array_equal(out.numpy(), expected) and np.array_equal(report.bounds, own.bounds)
        assert report.paths == own.paths
    overlapping = torch.from_numpy(np.zeros(out.numel() + a.numel())).view(torch.int64)
    overlapping[: a.numel()] = a.flatten()
    x, out = overlapping[: a.numel()].view(a.shape), overlapping[: out.numel()].view(torch.float64).view(out.shape)
    cuda_calls._each_alone(call, x, b, (), out, False, sum_, 0.0)
    assert np.array_equal(out.numpy(), expected)


@pytest.mark.parametrize("kind", UNSIGNED)
def test_unsigned_operands_are_only_viewed(kind, rng, monkeypatch):
    """Exact, as strides have them, and as NumPy promotes them; beside other types as well."""
    for other in ("int64", "uint64", "float32", "complex64"):
        a = unsigned(rng, kind, 6, 10)
        b = unsigned(rng, other, 5, 4) if other == "uint64" else rng.integers(-9, 9, (5, 4)).astype(other)
        x, y = torch.from_numpy(a)[1::2, ::2], torch.from_numpy(b)
        with as_on_gpu(monkeypatch):
            left, right, wider, keywords = real_operands(x, y, (None,) * 7)
            again = real_operands(y.mT, cuda_calls.cuda_gemm.transposed(x, "T", "trans_b"), (None,) * 7)
        expected = terms.widened(a[1::2, ::2], b)
        assert np.array_equal(left.numpy(), expected[0]) and np.array_equal(right.numpy(), expected[1])
        assert wider == left.shape[1] // 5 and again[0].shape[1] == 5 * again[2] == 5 * wider
        assert keywords[3] == arrays.result_dtype([a, b], None).name
        assert np.array_equal(again[1][:5].numpy(), terms.widened(b.T, a[1::2, ::2].T)[1][:5])


@pytest.mark.parametrize("kind", UNSIGNED)
def test_unsigned_integers_are_found_beyond_what_float64_has(kind, monkeypatch):
    for value in [*UNSIGNED_ENDS, 2**16 - 1]:
        if value < 2 ** np.iinfo(kind).bits:
            x = torch.from_numpy(np.array([[value]], kind))
            with as_on_gpu(monkeypatch):
                assert cuda_integers.big(cuda_operands.tensor_of(x, "x")) == (value > 2**53)
                if value <= 2**53:
                    assert int(cuda_integers.exact(cuda_operands.tensor_of(x, "x"), "x", "").item()) == value
                else:
                    with pytest.raises(DTypeError, match=r"x holds integers beyond 2\^53"):
                        cuda_integers.exact(cuda_operands.tensor_of(x, "x"), "x", "")


def test_types_are_numpys():
    kinds = ["int8", "int16", "int32", "int64", "uint8", *UNSIGNED, "float32", "float64", "complex64", "complex128"]
    for names in itertools.product(kinds, repeat=2):
        operands = [torch.zeros(1, dtype=getattr(torch, name)) for name in names]
        if cuda_integers.any_integers(*operands):
            expected = arrays.result_dtype([np.zeros(1, name) for name in names], None)
            assert cuda_integers.promoted(*operands) == expected.name, names


def test_targets_count_the_terms_of_the_operands():
    """As on a CPU, where two terms that stand for one allow no error of their own."""
    problem = Problem(5, 6, 4000, (), FP64, Target("native"), False, False, terms_per_element=4)
    assert problem.terms == 4000 and problem.target_terms == 1000
    mode, kappa, magnitude_kappa = join_test(problem.target, 1000, FP64)
    test = certificate_test(problem)
    assert (test.mode, test.kappa, test.magnitude_kappa, test.terms) == (mode, kappa, magnitude_kappa, 4000)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "form", [{"accuracy": "correctly-rounded"}, {"reproducible": True}, {"scheme": prismm.Residues(16)}]
)
def test_bits_are_those_of_a_cpu(form, rng):
    for wide in itertools.product((False, True), repeat=2):
        a, b = (
            integers(rng, *shape) if own else rng.integers(-(2**53), 2**53 + 1, shape)
            for own, shape in zip(wide, ((33, 70), (70, 29)), strict=True)
        )
        x, y = (torch.from_numpy(z).cuda() for z in (a, b))
        assert np.array_equal(prismm.matmul(x, y, **form).cpu().numpy(), prismm.matmul(a, b, **form))
    assert prismm.explain(x, y).k == 70
    narrow = torch.ones(3, 4, dtype=torch.int8, device="cuda")
    assert prismm.matmul(narrow, torch.ones(4, 2, device="cuda")).dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("right", [(4, 5, 2), (5, 2), (5,)])
def test_mixed_batches_have_the_bits_of_a_cpu_and_of_their_products(right, rng):
    a, b = rng.integers(-(2**52), 2**52, (4, 3, 5)), rng.integers(-(2**52), 2**52, right)
    a[1, 0, 2], a[3, 1, 1] = 2**62 + 1, -(2**63)
    c = rng.standard_normal((a @ b).shape)
    x, y, z = (torch.from_numpy(w).cuda() for w in (a, b, c))
    exact = a.astype(object) @ b.astype(object)
    for form in ({"reproducible": True}, {"accuracy": 1e-3, "reproducible": True}, {"scheme": prismm.Residues(5)}):
        expected, own = prismm.matmul(a, b, full_output=True, **form)
        made, report = prismm.matmul(x, y, full_output=True, **form)
        assert np.array_equal(made.cpu().numpy(), expected)
        assert np.array_equal(prismm.matmul(x, y, **form).cpu().numpy(), expected)
        # Norms are kept otherwise on a GPU, so that its bounds are others: each holds, and none is loose.
        errors = np.vectorize(lambda x, y: float(abs(Fraction(x) - int(y))))(expected, exact)
        assert (errors <= report.bounds).all() and (report.bounds <= 4.0 * own.bounds).all()
        assert sum(report.paths.values()) == made.numel()
        out = torch.empty_like(made)
        assert prismm.matmul(x, y, out=out, **form) is out and torch.equal(out, made)
        alone = [prismm.matmul(x[p], y[p] if y.ndim > 2 else y, **form) for p in range(4)]
        assert torch.equal(made, torch.stack(alone))
        sums = {"alpha": 0.3, "beta": 1.0, **form}
        assert np.array_equal(prismm.gemm(x, y, z, **sums).cpu().numpy(), prismm.gemm(a, b, c, **sums))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", UNSIGNED)
def test_unsigned_bits_are_those_of_a_cpu(kind, rng):
    for other in (*UNSIGNED, "int64", "float32", "float64", "complex64"):
        whole = unsigned(rng, kind, 33, 140)
        a = whole[:, ::2]
        b = unsigned(rng, other, 70, 29) if other in UNSIGNED else rng.integers(-99, 99, (70, 29)).astype(other)
        x, y = torch.from_numpy(whole).cuda()[:, ::2], torch.from_numpy(b).cuda()
        for form in ({"accuracy": "correctly-rounded"}, {"reproducible": True}):
            c, expected = prismm.matmul(x, y, **form).cpu().numpy(), prismm.matmul(a, b, **form)
            assert c.dtype == expected.dtype and np.array_equal(c, expected), (kind, other)
            c = prismm.matmul(y.mT, x.mT, **form).cpu().numpy()
            assert np.array_equal(c, prismm.matmul(b.T, a.T, **form))
        form = {"reproducible": True, "alpha": 0.5, "trans_b": "C", "trans_a": "T"}
        assert np.array_equal(prismm.gemm(y, x, **form).cpu().numpy(), prismm.gemm(b, a, **form))
    small = unsigned(rng, kind, 20, 20) >> np.array(12, kind)
    kept = prismm.prepare(torch.from_numpy(small).cuda(), side="left", reproducible=True)
    c = prismm.matmul(kept, torch.ones(20, 3, dtype=torch.float64, device="cuda"), reproducible=True)
    assert np.array_equal(c.cpu().numpy(), prismm.matmul(small, np.ones((20, 3)), reproducible=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float32", "float64", "complex64"])
def test_large_integers_that_meet_infinity(kind, rng):
    a, b = integers(rng, 5, 4) | 2**60, rng.standard_normal((4, 3)).astype(kind)
    b[1, 0], b[2, 1] = np.inf, np.nan
    for form in ({"accuracy": "correctly-rounded"}, {"reproducible": True}):
        for left, right in ((a, b), (np.ascontiguousarray(b.T), np.ascontiguousarray(a.T))):
            made = prismm.matmul(torch.from_numpy(left).cuda(), torch.from_numpy(right).cuda(), **form)
            assert np.array_equal(made.cpu().numpy(), prismm.matmul(left, right, **form), equal_nan=True)


@pytest.mark.gpu
def test_what_integers_cannot_be():
    beyond = torch.from_numpy(np.full((4, 4), 2**64 - 1, np.uint64)).cuda()
    with pytest.raises(DTypeError, match="not prepared"):
        prismm.prepare(beyond)
    big = torch.full((4, 4), 2**60 + 1, device="cuda")
    with pytest.raises(DTypeError, match="not prepared"):
        prismm.prepare(big)
    with pytest.raises(DTypeError, match=r"c\.double"):
        prismm.gemm(big, big, big, beta=1.0)
    with pytest.raises(OperandError, match="unprepared"):
        prismm.matmul(prismm.prepare(torch.ones(4, 4, device="cuda", dtype=torch.float64), side="left"), big)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        big.double()  # torch warns of a graph of nothing
        with pytest.raises(ArgumentError, match="64-bit integers"):
            prismm.matmul(big, big)
