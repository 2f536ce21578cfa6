"""gemm on a GPU: the bits of a CPU, targets of sums from values, C in place, graphs, reports and errors."""

import numpy as np
import pytest

import prismm
from prismm.cuda import calls as cuda_calls
from prismm.errors import ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.schemes.tile_int8 import TileInt8
from prismm.testing import HOSTILE, SPECIAL, exact_gemm
from tests import edges
from tests.cuda.harness.processes import interpreted

NAMES = ["normal", "phi4", "cancelling", "near_overflow", "subnormal_operands", "wide_rows", "infinities"]
SAME = [{"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": Residues(15)}]
gpu = pytest.mark.gpu


def on_gpu(*arrays):
    import torch

    found = [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in arrays]
    return found[0] if len(found) == 1 else found


def same_bits(x, y):
    x, y = (np.ascontiguousarray(z.cpu().numpy() if hasattr(z, "cpu") else z) for z in (x, y))
    x, y = x.view(x.real.dtype), y.view(y.real.dtype)
    word = np.int64 if x.itemsize == 8 else np.int32
    return bool(((x.view(word) == y.view(word)) | (np.isnan(x) & np.isnan(y))).all())


def operands(name, dtype, m=66, k=70, n=130):
    make = {**HOSTILE, **SPECIAL}[name]
    a, b = make(m, k, n, seed=5, dtype=np.dtype(dtype))
    return a, b, make(m, n, 2, seed=6, dtype=np.dtype(dtype))[0]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "part", "cases"), [*(("any", *x) for x in enumerate([11, 10, 10, 9, 9])), ("hopper", 0, 11)]
)
def test_interpreted_kernels_give_the_bits_of_a_cpu(device, part, cases):
    pytest.importorskip("triton")
    found = interpreted("gemm", f"{part}/5", device)
    assert len(found) == cases
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "cases"), [("float32", 11), ("complex64", 10)])
def test_interpreted_sums_at_the_ends_of_float32(dtype, cases):
    pytest.importorskip("triton")
    found = interpreted("gemm_ends", dtype)
    assert len(found) == cases
    assert not [entry for entry in found if entry["wrong"]]


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(("part", "cases"), [(0, 21), (1, 11), (2, 8)])
def test_sums_that_more_moduli_make_again(part, cases):
    pytest.importorskip("triton")
    found = interpreted("gemm_again", f"{part}/3")
    assert len(found) == cases
    assert not [entry for entry in found if entry["wrong"]]
    # The cases can fail: sums are proved, exact ones and those whose rest is a sign among them.
    assert all(entry.get("proved", 2000) >= 2000 and entry.get("exact", 1600) >= 1600 for entry in found)
    assert all(entry.get("signed", 100) >= 100 for entry in found)
    # All are made again but one with a complex alpha, and products whose last part C leaves.
    assert sum(entry.get("again", 1) == 0 for entry in found) == (1, 0, 2)[part]


@gpu
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
@pytest.mark.parametrize("which", ["top", "low"])
def test_sums_at_the_ends_of_float32(which, dtype, rng):
    """Which entries overflow, whatever is asked for, and what the target allows; the bits where they are a CPU's."""
    narrow = {"out_dtype": "float32"} if dtype == "float64" else {}
    ways = [{}, {"accuracy": "fast"}, {"scheme": Residues(7), "accuracy": "fast"}, *SAME[:2]]
    if dtype != "float64":
        schemes = [Native(), ScaledHalf(), Words.tf32(), Words.bf16(6), TileInt8()]
        schemes += [Native("float64")] if dtype == "float32" else []
        ways += [{"scheme": x, **y} for x in schemes for y in ({}, {"accuracy": "fast"}, {"accuracy": "native"})]
    for a, b, c in (edges.thought_out(which, dtype), edges.drawn(which, rng, dtype, 70, 24, 66)):
        x, y, z = on_gpu(a, b, c)
        size = np.abs(a).astype(float) @ np.abs(b).astype(float)
        terms = a.shape[1] * (2 if np.iscomplexobj(a) else 1) + 3
        for alpha, beta in edges.factors(which):
            exact = exact_gemm(alpha, a, b, beta, c)
            right = exact.rounded(narrow.get("out_dtype", dtype))
            whole = abs(alpha) * size + abs(beta) * np.abs(c).astype(float)
            allowed = terms * (2.0**-24 * whole * (1 + 1e-10) + 2.0**-149)
            for way in ways:
                found = prismm.gemm(x, y, z, alpha=alpha, beta=beta, **way, **narrow).cpu().numpy()
                parts = [np.ascontiguousarray(v).view(v.real.dtype) for v in (found, right)]
                infinite = [np.where(np.isfinite(v), 0, v) for v in parts]
                assert np.array_equal(*infinite), (alpha, beta, way)
                if way in SAME:
                    expected = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **way, **narrow)
                    assert same_bits(found, expected), (alpha, beta, way)
                if way.get("accuracy", "native" if "scheme" not in way else None) == "native":
                    clean = np.isfinite(right)
                    error = exact.error(np.where(clean, found, 0))[clean]
                    assert (error <= allowed[clean]).all(), (alpha, beta, way)


@gpu
def test_an_alpha_that_hides_overflow_is_refused():
    import torch

    a = torch.ones(4, 4, device="cuda")
    for scheme in (Native(), ScaledHalf(), TileInt8()):
        with pytest.raises(EngineError, match=r"decides no overflow of gemm.*Residues"):
            prismm.gemm(a, a, alpha=1e6, scheme=scheme)
    assert prismm.gemm(a, a, alpha=1e6).equal(torch.full_like(a, 4e6))


@gpu
@pytest.mark.parametrize("form", SAME, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_those_of_a_cpu(name, dtype, form):
    a, b, c = operands(name, dtype)
    x, y, z = on_gpu(a, b, c)
    factors = [(1.0, -1.0), (-0.7, 1.3), (2.0**40, 0.0), (0.0, 0.3), (5e-324, 1.0)]
    if np.iscomplexobj(a):
        factors += [(1 + 2j, 0.5 - 1j), (-1j, 2.0)]
    for alpha, beta in factors:
        expected = prismm.gemm(a, b, c, alpha=alpha, beta=beta, **form)
        found = prismm.gemm(x, y, z, alpha=alpha, beta=beta, **form)
        assert same_bits(found, expected), (alpha, beta)
    out = z.clone()
    assert prismm.gemm(x, y, out, alpha=-0.7, beta=1.3, out=out, **form) is out
    assert same_bits(out, prismm.gemm(a, b, c, alpha=-0.7, beta=1.3, **form))


@gpu
@pytest.mark.parametrize("form", [{}, {"scheme": Native(), "accuracy": "native"}, {"scheme": ScaledHalf()}], ids=str)
@pytest.mark.parametrize("name", ["normal", "near_overflow", "subnormal_operands", "cancelling", "infinities"])
def test_sums_from_values_meet_the_target(name, form):
    a, b, c = operands(name, "float32")
    if "scheme" in form and isinstance(form["scheme"], ScaledHalf):
        form = {**form, "accuracy": "native"}
    x, y, z = on_gpu(a, b, c)
    finite = [np.where(np.isfinite(v), v, 0).astype(np.float64) for v in (a, b, c)]
    for alpha, beta in ((1.0, -1.0), (-0.7, 1.3), (16.0, 1e-3)):
        found, report = prismm.gemm(x, y, z, alpha=alpha, beta=beta, full_output=True, **form)
        found = found.cpu().numpy()
        expected = prismm.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correctly-rounded")
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert np.array_equal(np.isinf(found), np.isinf(expected))
        clean = np.isfinite(expected)
        exact = exact_gemm(alpha, finite[0], finite[1], beta, finite[2])
        error = exact.error(np.where(clean, found, 0))[clean]
        size = abs(alpha) * (np.abs(finite[0]) @ np.abs(finite[1])) + abs(beta) * np.abs(finite[2])
        k = a.shape[1] + 3
        assert (error <= k * (2.0**-24 * size[clean] * (1 + 1e-9) + 2.0**-149)).all()
        assert (error <= report.bounds[clean]).all()


@gpu
def test_batches_broadcasts_strides_and_factors_share_a_program(rng):
    import torch

    a, b = rng.standard_normal((3, 20, 40)), rng.standard_normal((40, 30))
    c = rng.standard_normal((3, 1, 30))
    x, y, z = on_gpu(a, b, c)
    cuda_calls.forget()
    for alpha in (0.5, 0.25, -3.0):
        expected = prismm.gemm(a, b, np.broadcast_to(c, (3, 20, 30)), alpha=alpha, beta=alpha, reproducible=True)
        assert same_bits(prismm.gemm(x, y, z, alpha=alpha, beta=alpha, reproducible=True), expected)
    (call,) = cuda_calls.known()
    assert len(call.programs) == 1
    swapped = prismm.gemm(x.mT.contiguous(), y.mT, z, alpha=2.0, beta=1.0, trans_a="T", trans_b="T", reproducible=True)
    assert same_bits(
        swapped, prismm.gemm(a, b, np.broadcast_to(c, (3, 20, 30)), alpha=2.0, beta=1.0, reproducible=True)
    )
    w = torch.complex(x, -x)
    assert same_bits(
        prismm.gemm(w, w, beta=0, alpha=1.0, trans_a="C", reproducible=True),
        prismm.gemm(w.cpu().numpy(), w.cpu().numpy(), trans_a="C", reproducible=True),
    )
    same = prismm.gemm(x, y, alpha=1.0, reproducible=True)
    assert same.equal(prismm.matmul(x, y, reproducible=True))


@gpu
def test_prepared_operands_and_graphs(rng):
    import torch

    a, b, c = (rng.standard_normal(s) for s in ((64, 96), (96, 64), (64, 64)))
    x, y, z = on_gpu(a, b, c)
    right = prismm.prepare(y, reproducible=True)
    expected = prismm.gemm(a, b, c, alpha=0.3, beta=0.1, reproducible=True)
    out = torch.empty_like(z)
    for _ in range(5):
        prismm.gemm(x, right, z, alpha=0.3, beta=0.1, out=out)
        assert same_bits(out, expected)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        prismm.gemm(x, right, z, alpha=0.3, beta=0.1, out=out)
    x.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(out, prismm.gemm(-a, b, c, alpha=0.3, beta=0.1, reproducible=True))


@gpu
def test_bad_input():
    import torch

    a = torch.ones(4, 4, device="cuda")
    with pytest.raises(ArgumentError, match="needs c"):
        prismm.gemm(a, a, beta=1.0)
    with pytest.raises(DTypeError, match="complex"):
        prismm.gemm(a, a, alpha=1j)
    with pytest.raises(ShapeError, match="c must broadcast"):
        prismm.gemm(a, a, a[:3], beta=1.0)
    with pytest.raises(OperandError, match="c is a Tensor that is not"):
        prismm.gemm(a, a, a.cpu(), beta=1.0)
    with pytest.raises(ArgumentError, match="trans_a='X'"):
        prismm.gemm(a, a, trans_a="X")
    with pytest.raises(ShapeError, match="needs a matrix"):
        prismm.gemm(a, a[0], trans_b="T")
    with pytest.raises(EngineError, match="certifies no gemm on a GPU with an alpha"):
        prismm.gemm(a, a, alpha=17.0, scheme=Native(), accuracy="native")
    with pytest.raises(OperandError, match="prepare the transposed matrix"):
        prismm.gemm(a, prismm.prepare(a, reproducible=True), trans_b="T")
