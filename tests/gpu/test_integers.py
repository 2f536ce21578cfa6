"""Integers on a GPU: exact as on a CPU, with its types."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import prismm  # noqa: E402
from prismm import cuda_integers, cuda_plan, interop  # noqa: E402
from prismm.accuracy import Target, join_test  # noqa: E402
from prismm.errors import ArgumentError, DTypeError, OperandError  # noqa: E402
from prismm.formats import FP64  # noqa: E402

ENDS = [0, 1, -1, 2**31, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 2**63 - 1, -(2**63)]
ENDS += [-(2**63) + 1, 2**62 + 2**31, 2**62 - 2**31 - 1, -(2**40) - 1]


def integers(rng, *shape):
    """64-bit integers of any size, many of which are beyond 2^53."""
    found = rng.integers(-(2**63), 2**63 - 1, shape, dtype=np.int64) >> rng.integers(0, 62, shape)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array(ENDS, np.int64), shape), found)


def test_high_and_low_are_those_of_a_cpu(rng):
    x = np.concatenate([np.array(ENDS, np.int64), integers(rng, 2000)])
    for ours, own in zip(cuda_integers.high_low(torch.from_numpy(x)), interop.high_low(x), strict=True):
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
        expected = interop.widened(a, column)
        assert np.array_equal(found[0].numpy(), expected[0].astype(float))
        assert np.array_equal(found[1].numpy().reshape(expected[1].shape), expected[1].astype(float))
    with pytest.raises(OperandError, match="unprepared"):
        cuda_integers.widened(torch.tensor([2**60]), torch.tensor([1.0]), True)
    with pytest.raises(DTypeError, match=r"c holds integers beyond 2\^53; say"):
        cuda_integers.exact(torch.tensor([-(2**60)]), "c", "; say")
    assert cuda_integers.exact(torch.tensor([2**53]), "c", "").dtype == torch.float64


def test_types_are_numpys():
    kinds = ["int8", "int16", "int32", "int64", "uint8", "float32", "float64", "complex64", "complex128"]
    for names in itertools.product(kinds, repeat=2):
        operands = [torch.zeros(1, dtype=getattr(torch, name)) for name in names]
        if cuda_integers.any_integers(*operands):
            expected = interop.result_dtype([np.zeros(1, name) for name in names], None)
            assert cuda_integers.promoted(*operands) == expected.name, names


def test_targets_count_the_terms_of_the_operands():
    """As on a CPU, where two terms that stand for one allow no error of their own."""
    need = cuda_plan.Need(5, 6, 4000, (), FP64, Target("native"), False, False, wider=4)
    assert need.terms == 4000 and need.own_terms == 1000
    mode, kappa, magnitude_kappa = join_test(need.target, 1000, FP64)
    test = cuda_plan.test_of(need)
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
def test_what_integers_cannot_be():
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
