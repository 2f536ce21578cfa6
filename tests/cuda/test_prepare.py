"""Operands prepared on a GPU: the same bits, split once, on any stream; refusals."""

import numpy as np
import pytest

import prismm
from prismm.cuda import calls as cuda_calls
from prismm.cuda import prepare as cuda_prepared
from prismm.cuda.residues import implementation as residues_implementation
from prismm.cuda.residues.split import split_vectors
from prismm.errors import ArgumentError, DTypeError, OperandError, ShapeError
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE, SPECIAL

pytestmark = pytest.mark.gpu
M, K, N = 130, 70, 90
SAME = [{"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": Residues(12)}]
SAME += [{"scheme": Residues(12), "accuracy": 1e-12}]


def on_gpu(x):
    import torch

    return torch.from_numpy(x).cuda()


@pytest.fixture
def splits(monkeypatch):
    """Vectors that were written down to be split, by side."""
    counted = {"left": 0, "right": 0}
    split = split_vectors

    def counting(program, x, *arguments, left, **keywords):
        counted["left" if left else "right"] += x.batch * x.vectors
        return split(program, x, *arguments, left=left, **keywords)

    monkeypatch.setattr(residues_implementation, "split_vectors", counting)
    cuda_calls.forget()
    return counted


def same(x, y):
    word = {8: np.int64, 4: np.int32}
    x, y = (z.cpu().numpy() for z in (x, y))
    x, y = (np.ascontiguousarray(z).view(z.real.dtype) for z in (x, y))
    return bool(((x.view(word[x.itemsize]) == y.view(word[y.itemsize])) | (np.isnan(x) & np.isnan(y))).all())


@pytest.mark.parametrize("keywords", SAME, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("name", ["phi4", "cancelling", "near_overflow", "infinities", "subnormal_operands"])
def test_the_result_has_the_same_bits(name, dtype, keywords, splits, monkeypatch):
    import torch

    a, b = map(on_gpu, {**HOSTILE, **SPECIAL}[name](M, K, N, seed=5, dtype=np.dtype(dtype)))
    expected = prismm.matmul(a, b, **keywords)
    for step in (8192, 37):
        monkeypatch.setattr(cuda_prepared, "STEP", step)
        splits.update(left=0, right=0)
        left, right = prismm.prepare(a, side="left", **keywords), prismm.prepare(b, **keywords)
        assert left.nbytes > a.nbytes and splits == {"left": M, "right": N}
        for x, y, again in ((a, right, {"left": M, "right": 0}), (left, b, {"left": 0, "right": N}),
                            (left, right, {"left": 0, "right": 0})):  # fmt: skip
            splits.update(left=0, right=0)
            for _ in range(5):  # the last ones are replayed
                assert same(prismm.matmul(x, y), expected)
            assert splits == again
        assert same(prismm.matmul(a[0], right), expected[0]) and same(prismm.matmul(left, b[:, 0]), expected[:, 0])
        assert same(prismm.matmul(torch.stack([a, a]), right)[1], expected)
        assert same(prismm.matmul(left, torch.stack([b, b]))[1], expected)


@pytest.mark.parametrize("form", [{}, {"reproducible": True}, {"scheme": Native()}, {"accuracy": "correctly-rounded"}])
def test_reports_and_plans(form, rng):
    a, b = on_gpu(rng.standard_normal((M, K))), on_gpu(rng.standard_normal((K, N)))
    right, left = prismm.prepare(b, **form), prismm.prepare(a, side="left", **form)
    exact = prismm.testing.exact_product(a.cpu().numpy(), b.cpu().numpy())
    for x, y in ((a, right), (left, b), (left, right)):
        c, report = prismm.matmul(x, y, full_output=True)
        assert report.scheme == right.scheme == prismm.explain(x, y).scheme
        assert (exact.error(c.cpu().numpy()) <= report.bounds).all()


def test_the_copy_is_private_and_streams_are_respected(rng):
    import torch

    a, b = on_gpu(rng.standard_normal((300, 300))), on_gpu(rng.standard_normal((300, 300)))
    expected = prismm.matmul(a, b, reproducible=True)
    right = prismm.prepare(b, reproducible=True)
    b.zero_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = [prismm.matmul(a, right) for _ in range(20)]
        del right
    others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(20)]
    torch.cuda.synchronize()
    assert all(x.equal(expected) for x in found) and others


def test_a_product_can_be_captured(rng):
    import torch

    a, b = on_gpu(rng.standard_normal((96, 130))), on_gpu(rng.standard_normal((130, 64)))
    right = prismm.prepare(b, reproducible=True)
    out = torch.empty(96, 64, dtype=torch.float64, device="cuda")
    prismm.matmul(a, right, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(a, right, out=out)
    a.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(prismm.matmul(a, b, reproducible=True))


def test_words_keep_the_matrix(rng):
    a, b = (on_gpu(rng.standard_normal((300, 300)).astype(np.float32)) for _ in range(2))
    right = prismm.prepare(b, scheme=Words.tf32())
    assert right.memory is None and prismm.matmul(a, right).equal(prismm.matmul(a, b, scheme=Words.tf32()))


def test_refusals():
    import torch

    a = torch.ones(4, 4, device="cuda", dtype=torch.float64)
    right = prismm.prepare(a, reproducible=True)
    with pytest.raises(OperandError, match="one operand is on a GPU, a is a ndarray"):
        prismm.matmul(np.ones((4, 4)), right)
    with pytest.raises(OperandError, match="prepared for side='right'"):
        prismm.matmul(right, a)
    with pytest.raises(OperandError, match="prepared for a float64 result"):
        prismm.matmul(a.cdouble(), right)
    with pytest.raises(OperandError, match="prepared with scheme"):
        prismm.matmul(a, right, scheme=Residues(9))
    with pytest.raises(OperandError, match="prepared already"):
        prismm.prepare(right)
    with pytest.raises(OperandError, match="one operand is on a GPU, a is a ndarray"):
        prismm.gemm(np.ones((4, 4)), right)
    with pytest.raises(ShapeError, match="inner dimensions 5 and 4"):
        prismm.matmul(torch.ones(3, 5, device="cuda", dtype=torch.float64), right)
    with pytest.raises(ShapeError, match="takes a matrix of two dimensions"):
        prismm.prepare(a[0])
    with pytest.raises(DTypeError, match="bool"):
        prismm.prepare(a.bool())
    with pytest.raises(ArgumentError, match="engine='cpu:vnni'"):
        prismm.prepare(a, engine="cpu:vnni")
