"""Calls with operands on a GPU: shapes, targets, specials, streams, graphs, reports and errors."""

import numpy as np
import pytest

import prismm
from prismm.cuda import blocks as cuda_blocks
from prismm.cuda import calls as cuda_calls
from prismm.cuda import fast_path as layouts
from prismm.errors import AccuracyError, ArgumentError, DTypeError, EngineError, OperandError, ShapeError
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.testing import SPECIAL
from tests.cuda.harness.cases import needs_rates

pytestmark = pytest.mark.gpu
FORMS = [{}, {"reproducible": True}, {"accuracy": "correctly-rounded"}, {"scheme": Residues(16)}, {"scheme": Native()}]
FORMS += [{"scheme": Residues(16), "accuracy": "fast"}, {"accuracy": 1e-9}]


def on_gpu(x):
    import torch

    return torch.from_numpy(x).cuda()


def exactly(a, b):
    """RN(a @ b), by fractions."""
    from fractions import Fraction

    left = [[Fraction(float(v)) for v in row] for row in a]
    right = [[Fraction(float(v)) for v in column] for column in b.T]
    exact = [[sum((x * y for x, y in zip(r, c, strict=True)), Fraction(0)) for c in right] for r in left]
    return exact


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 1), (1, 1)), ((5,), (5, 7)), ((3, 5), (5,)), ((5,), (5,)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)),
        ((4, 1, 3, 5), (2, 5, 4)), ((0, 5), (5, 3)), ((3, 0), (0, 4)), ((2, 0, 5), (2, 5, 3)), ((17, 129), (129, 65)),
    ],
)  # fmt: skip
def test_shapes_follow_numpy(form, left, right, rng):
    a, b = rng.integers(-9, 10, left).astype(np.float64), rng.integers(-9, 10, right).astype(np.float64)
    c = prismm.matmul(on_gpu(a), on_gpu(b), **form)
    assert c.is_cuda and tuple(c.shape) == np.matmul(a, b).shape
    assert np.array_equal(c.cpu().numpy(), np.matmul(a, b))


@pytest.mark.parametrize("form", FORMS[:3] + FORMS[6:], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_targets_hold_and_bounds_too(form, dtype, rng):
    m, k, n = 7, 60, 9
    a = (rng.standard_normal((m, k)) * 2.0 ** rng.integers(-40, 40, (m, k))).astype(dtype)
    b = (rng.standard_normal((k, n)) * 2.0 ** rng.integers(-40, 40, (k, n))).astype(dtype)
    c, report = prismm.matmul(on_gpu(a), on_gpu(b), full_output=True, **form)
    c, exact = c.cpu().numpy(), exactly(a, b)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    for i in range(m):
        for j in range(n):
            error = abs(float(exact[i][j] - type(exact[i][j])(float(c[i, j]))))
            assert error <= report.bound(i, j)
            slack = {"correctly-rounded": 0.0}.get(form.get("accuracy"), k * unit * size[i, j])
            if isinstance(form.get("accuracy"), float):
                slack = form["accuracy"] * size[i, j]
            assert error <= slack * (1 + 1e-9) + unit * abs(float(exact[i][j]))
            if form.get("accuracy") == "correctly-rounded":
                assert c[i, j] == np.dtype(dtype).type(float(exact[i][j])) or dtype == "float32"
    assert sum(report.paths.values()) == m * n and report.bounds.shape == (m, n)
    assert report.engine.startswith("cuda:") and "cuda" in str(report.plan)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", list(SPECIAL))
def test_inf_and_nan_are_those_of_the_defining_sum(form, name):
    a, b = SPECIAL[name](20, 40, 30, seed=3, dtype=np.float64)
    c = prismm.matmul(on_gpu(a), on_gpu(b), **form).cpu().numpy()
    expected = prismm.matmul(a, b, accuracy="correctly-rounded")
    assert np.array_equal(np.isnan(c), np.isnan(expected)) and np.array_equal(np.isinf(c), np.isinf(expected))
    assert np.array_equal(c[np.isinf(c)], expected[np.isinf(c)])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_native_sum_that_overflows_on_the_way_is_repaired(form):
    a = np.array([[1e308, 1e308, -1e308, 3.0]])
    b = np.array([[1.0, 9.0], [1.0, 9.0], [1.0, 9.0], [1.0, 1.0]])
    c = prismm.matmul(on_gpu(a), on_gpu(b), **form).cpu().numpy()
    assert np.isclose(c[0, 0], 1e308, rtol=1e-8) and np.isposinf(c[0, 1])


def test_an_inner_dimension_beyond_one_int32_sum(rng):
    a, b = rng.standard_normal((65, 70001)), rng.standard_normal((70001, 33))
    c = prismm.matmul(on_gpu(a), on_gpu(b), scheme=Residues(15)).cpu().numpy()
    assert np.array_equal(c, prismm.matmul(a, b, scheme=Residues(15)))


def test_blocks_of_a_bounded_workspace(rng, monkeypatch):

    a, b = on_gpu(rng.standard_normal((700, 300))), on_gpu(rng.standard_normal((300, 500)))
    whole = prismm.matmul(a, b, scheme=Residues(15))
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 20)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1 << 21, 1 << 30))
    monkeypatch.setattr(cuda_calls, "_CALLS", {})
    monkeypatch.setattr(layouts, "_LAYOUTS", {})
    assert prismm.explain(a, b, scheme=Residues(15)).row_panel < 700
    assert whole.equal(prismm.matmul(a, b, scheme=Residues(15)))


def test_out_and_its_layout(rng):
    import torch

    a, b = on_gpu(rng.standard_normal((30, 40))), on_gpu(rng.standard_normal((40, 50)))
    expected = prismm.matmul(a, b, reproducible=True)
    for out in (torch.empty_like(expected), torch.empty(50, 30, dtype=torch.float64, device="cuda").T):
        assert prismm.matmul(a, b, reproducible=True, out=out) is out
        assert out.equal(expected)
    square = on_gpu(rng.standard_normal((40, 40)))
    again = square.clone()
    expected = prismm.matmul(square, square, reproducible=True)
    assert prismm.matmul(again, again, reproducible=True, out=again).equal(expected)
    narrow = prismm.matmul(a, b, out_dtype="float32")
    assert narrow.dtype == torch.float32
    assert bool(((narrow.double() - a @ b).abs() <= 40 * 2.0**-24 * (a.abs() @ b.abs())).all())


def test_narrow_and_mixed_operands_are_taken_exactly(rng):
    import torch

    a, b = torch.randint(-9, 9, (20, 30)).cuda(), torch.randint(-9, 9, (30, 10)).cuda()
    expected = (a.cpu().double() @ b.cpu().double()).cuda()
    for left in (torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.float32):
        assert prismm.matmul(a.to(left), b.double()).equal(expected)
    assert prismm.matmul(a.half(), b.bfloat16()).dtype == torch.float32
    whole = a.double() + 1j * a.flip(0).double()
    assert prismm.matmul(whole, b.double()).equal(torch.complex(expected, expected.flip(0)))
    assert prismm.matmul(whole.conj(), b.double()).equal(torch.complex(expected, -expected.flip(0)))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_one_row_or_column_of_any_strides(form, rng):
    a, b = rng.integers(-9, 10, (33, 40)).astype(np.float64), rng.integers(-9, 10, (40, 35)).astype(np.float64)
    x, y = on_gpu(np.asfortranarray(a)), on_gpu(b)
    assert x.stride() == (1, 33)
    for rows, columns in ((slice(1, 2), slice(None)), (slice(None), slice(2, 3)), (slice(3, 4), slice(4, 5))):
        expected = a[rows] @ b[:, columns]
        assert np.array_equal(prismm.matmul(x[rows], y[:, columns], **form).cpu().numpy(), expected)
        assert np.array_equal(prismm.matmul(y.T[columns], x.T[:, rows], **form).cpu().numpy(), expected.T)


def test_views_whose_negation_is_still_to_come(rng):
    z = on_gpu(rng.standard_normal((20, 20)) + 1j * rng.standard_normal((20, 20)))
    lazy = z.conj().imag
    assert lazy.is_neg()
    for form in ({}, {"reproducible": True}):
        assert prismm.matmul(lazy, z.real, **form).equal(prismm.matmul(lazy.clone(), z.real.clone(), **form))
    with pytest.raises(OperandError, match="still to come"):
        prismm.matmul(z.real, z.real, out=lazy)
    with pytest.raises(OperandError, match="still to come"):
        prismm.matmul(z, z, out=z.clone().conj())


@pytest.mark.parametrize("form", [{}, {"reproducible": True}, {"accuracy": "correctly-rounded"}], ids=str)
def test_a_call_can_be_captured_in_a_graph(form, rng):
    import torch

    a, b = on_gpu(rng.standard_normal((96, 130))), on_gpu(rng.standard_normal((130, 64)))
    out = torch.empty(96, 64, dtype=torch.float64, device="cuda")
    prismm.matmul(a, b, out=out, **form)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(a, b, out=out, **form)
    a.copy_(on_gpu(rng.standard_normal((96, 130)) * 2.0 ** rng.integers(-30, 30, (96, 130))))
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(prismm.matmul(a, b, **form))


@pytest.mark.parametrize("form", [FORMS[1], FORMS[2], {"scheme": ScaledHalf(), "accuracy": "native"}], ids=str)
def test_calls_of_one_layout_are_a_graph_on_every_stream(form, rng):
    import torch

    cuda_calls.forget()
    inputs = [on_gpu(rng.standard_normal((130, 200)).astype(np.float32)) for _ in range(2)]
    b, a = on_gpu(rng.standard_normal((200, 70)).astype(np.float32)), torch.empty_like(inputs[0])
    out, found = torch.empty(130, 70, device="cuda"), torch.empty(12, 130, 70, device="cuda")
    side = torch.cuda.Stream()
    for turn in range(12):
        # The data change, the addresses do not; the last ones run on a stream of their own.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if turn >= 9 else torch.cuda.current_stream()):
            a.copy_(inputs[turn % 2])
            prismm.matmul(a, b, out=out, **form)
            found[turn].copy_(out)
        torch.cuda.current_stream().wait_stream(side)
    (call,) = cuda_calls.known()
    assert [len(queued.program.graphs) for queued in call.programs.values()] == [2]
    expected = [prismm.matmul(x.clone(), b.clone(), **form) for x in inputs]
    for turn in range(12):
        assert torch.equal(found[turn], expected[turn % 2]), turn


def test_streams_are_respected(rng):
    import torch

    a, b = on_gpu(rng.standard_normal((256, 256))), on_gpu(rng.standard_normal((256, 256)))
    expected = prismm.matmul(a, b, reproducible=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = a * 2.0
        c = prismm.matmul(late, b, reproducible=True)
    side.synchronize()
    assert c.equal(expected * 2.0)


def test_the_plan_is_told(rng):
    import torch

    a = torch.zeros(4096, 4096, dtype=torch.float64, device="cuda")
    plan = prismm.explain(a, a, reproducible=True)
    assert (plan.scheme, plan.engine, plan.products) == (Residues(15), "cuda:int8", 15)
    # Residues of both operands, digits of the result, and two planes of each operand for what may be left open.
    assert plan.predicted_seconds > 0 and 1.0 < plan.workspace_bytes / ((3 * 15 + 2 * 2) * 4096**2) < 1.05
    needs_rates()
    small = torch.zeros(8, 8, dtype=torch.float64, device="cuda")
    assert prismm.explain(small, small).engine == "cuda:fp64"


def test_what_torch_was_told_of_float32_does_not_reach_a_product(rng):
    import torch

    a, b = (on_gpu(rng.standard_normal((300, 300)).astype(np.float32)) for _ in range(2))
    forms = {}, {"engine": "cuda:blas"}, {"scheme": Native(), "accuracy": "native"}
    expected = [prismm.matmul(a, b, **form) for form in forms]
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert not torch.equal(a @ b, expected[1])
        for form, right in zip(forms, expected, strict=True):
            assert torch.equal(prismm.matmul(a.clone(), b, **form), right)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_bad_input():
    import torch

    a = torch.ones(4, 4, device="cuda", dtype=torch.float64)
    with pytest.raises(OperandError, match=r"one operand is on a GPU, b is a Tensor that is not"):
        prismm.matmul(a, a.cpu())
    with pytest.raises(OperandError, match=r"one operand is on a GPU, a is a ndarray that is not"):
        prismm.matmul(np.ones((4, 4)), a)
    with pytest.raises(OperandError, match=r"requires grad.*detach"):
        prismm.matmul(a.clone().requires_grad_(), a, full_output=True)
    with pytest.raises(ShapeError, match="inner dimensions 4 and 3"):
        prismm.matmul(a, a[:3])
    with pytest.raises(DTypeError, match="bool"):
        prismm.matmul(a.bool(), a)
    with pytest.raises(ArgumentError, match="engine='cpu:vnni' for operands on a GPU"):
        prismm.matmul(a, a, engine="cpu:vnni")
    with pytest.raises(ArgumentError, match="cuda:blas"):
        prismm.matmul(a, a, scheme=Residues(15), engine="cuda:blas")
    with pytest.raises(EngineError, match=r"Words.* runs on a CPU so far"):
        prismm.matmul(a, a, scheme=prismm.Words.tf32())
    with pytest.raises(ShapeError, match="out has shape"):
        prismm.matmul(a, a, out=a[:2])
    with pytest.raises(OperandError, match="out is not on cuda"):
        prismm.matmul(a, a, out=a.cpu())
    with pytest.raises(DTypeError, match="out has dtype"):
        prismm.matmul(a, a, out=a.float())
    with pytest.raises(DTypeError, match=r"out has dtype torch\.float16, the product has torch\.float32"):
        prismm.matmul(a.float(), a.float(), out=a.half())
    with pytest.raises(ArgumentError, match="workspace="):
        prismm.matmul(a, a, workspace=np.empty(9, np.uint8))


@pytest.mark.parametrize("n", (96, 1312))
def test_a_call_like_an_earlier_one_notices_what_differs(n):
    """`cuda.fast_path` takes tensors like those that were multiplied before, unless a flag of theirs is another, or
    memory overlaps.
    """
    import torch

    generator = torch.Generator("cuda").manual_seed(5)
    a, b = (torch.randn(n, n, dtype=torch.float32, device="cuda", generator=generator) for _ in range(2))
    expected = prismm.matmul(a.cpu().numpy(), b.cpu().numpy(), reproducible=True)

    def same(x, sign=1):
        return np.array_equal(x.detach().cpu().numpy(), sign * expected)

    def known():
        return layouts.known()

    cuda_calls.forget()
    for _ in range(5):
        assert same(prismm.matmul(a, b, reproducible=True))
    assert known() == 1
    out = torch.empty_like(a)
    for _ in range(5):
        assert prismm.matmul(a, b, reproducible=True, out=out) is out and same(out)
    assert known() == 2
    assert same(prismm.matmul(torch._neg_view(a), b, reproducible=True), -1)
    x = a.clone().requires_grad_()
    assert prismm.matmul(x, b, reproducible=True).grad_fn is not None
    with torch.no_grad():
        assert same(prismm.matmul(x, b, reproducible=True))
    with pytest.raises(OperandError, match="requires grad"):
        prismm.matmul(a, b, reproducible=True, out=torch.empty_like(a).requires_grad_())
    copy = a.clone()
    assert prismm.matmul(copy, b, reproducible=True, out=copy) is copy and same(copy)
    copy = a.clone()
    assert same(prismm.matmul(copy, b, reproducible=True, out=copy))
    half = a.half()
    for _ in range(5):
        assert prismm.matmul(half, b, reproducible=True).equal(prismm.matmul(half.float(), b, reproducible=True))
    z = torch.complex(a, b)
    for _ in range(5):
        assert prismm.matmul(z.conj(), z).equal(prismm.matmul(z.conj().resolve_conj(), z))
    assert same(prismm.matmul(a, b, reproducible=True))
    wide = torch.empty(n, 2 * n, device="cuda")[:, ::2]
    assert same(prismm.matmul(a, b, reproducible=True, out=wide))
    result, report = prismm.matmul(a, b, reproducible=True, full_output=True)
    assert same(result) and report.reproducible


def test_a_setting_that_changes_between_two_calls_changes_the_choice(monkeypatch):
    import torch

    a, b = (torch.randn(512, 512, dtype=torch.float32, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    cuda_calls.forget()
    for _ in range(6):
        prismm.matmul(a, b, scheme=Native(), accuracy="native", out=out)
    expected = out.clone()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    for others in ((a, b), (a.clone(), b), (a, b.clone())):
        with pytest.raises(EngineError, match="TF32"):
            prismm.matmul(*others, scheme=Native(), accuracy="native", out=out)
    assert out.equal(expected)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    prismm.matmul(a.clone(), b, scheme=Native(), accuracy="native")


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("moduli", [13, 15])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["spread", "sparse"])
def test_what_magnitudes_prove_and_what_they_leave_have_the_bits_of_a_cpu(kind, dtype, moduli, layout):
    """Strips with many uncertified entries, of which 7-bit magnitudes certify some, none of whose products may be not
    zero.
    """
    generator = np.random.default_rng(20261123)

    def real(*shape):
        x = generator.standard_normal(shape)
        return x * np.exp(2.0 * generator.standard_normal(shape)) if kind == "spread" else x * (x > 1.9)

    a, b = (real(*shape) for shape in ((150, 200), (200, 300)))
    if dtype == "complex128":
        a, b = a + 1j * real(150, 200), b + 1j * real(200, 300)
    form = {"scheme": Residues(moduli), "accuracy": "native"}
    expected, there = prismm.matmul(a, b, full_output=True, **form)
    x, y = on_gpu(a), on_gpu(b)
    if layout == "columns":
        x, y = x.T.contiguous().T, y.T.contiguous().T
    found, here = prismm.matmul(x, y, full_output=True, **form)
    assert np.array_equal(found.cpu().numpy(), expected)
    assert there.paths.get("magnitude", 0) <= here.paths.get("magnitude", 0)  # ties that a tail decides count, too
    recomputed = "double-double", "triple-double", "more moduli", "exact"
    assert sum(there.paths.get(x, 0) for x in recomputed) == sum(here.paths.get(x, 0) for x in recomputed)
    if moduli == 13:
        assert here.paths.get("more moduli", 0) + here.paths.get("exact", 0) > 500 and here.paths["magnitude"] > 1000


def test_an_accuracy_may_be_any_number(rng):
    import torch

    a, b = (torch.from_numpy(rng.standard_normal((70, 70))).cuda() for _ in range(2))
    for number in (np.array(1e-9), np.float32(1e-9), torch.tensor(1e-9)):
        _, report = prismm.matmul(a, b, accuracy=number, full_output=True)
        assert report.plan.target.kind == "tolerance" and abs(report.plan.target.tolerance - 1e-9) < 1e-15
    # A tensor is the number that it holds now.
    number = torch.tensor(1e-9, dtype=torch.float64)
    coarse = prismm.matmul(a, b, accuracy=number, full_output=True)[1].plan.scheme
    number.fill_(1e-15)
    for _ in range(5):
        assert prismm.matmul(a, b, accuracy=number, full_output=True)[1].plan.scheme.moduli > coarse.moduli
    with pytest.raises(AccuracyError):
        prismm.matmul(a, b, accuracy=[1e-9])


def test_a_setting_that_spoils_cublas_is_noticed_before_out_is_written(rng, monkeypatch):
    import torch

    a, b = (torch.from_numpy(rng.standard_normal((70, 70)).astype(np.float32)).cuda() for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(5):
        prismm.matmul(a, b, scheme=Native(), accuracy="native", out=out)
    before = out.zero_().clone()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(EngineError, match="NVIDIA_TF32_OVERRIDE"):
        prismm.matmul(a, b, scheme=Native(), accuracy="native", out=out)
    assert out.equal(before)


def test_a_result_over_shared_memory_of_another_library(rng):
    import torch

    base = torch.from_numpy(rng.standard_normal((96, 64))).cuda()
    a, b = torch.from_dlpack(base[:64]), torch.from_numpy(rng.standard_normal((64, 64))).cuda()
    expected = prismm.matmul(a.clone(), b, reproducible=True)
    out = torch.from_dlpack(base[32:])
    prismm.matmul(a, b, reproducible=True, out=out)
    assert out.equal(expected)


def test_a_captured_native_product_outlives_what_is_known_of_it(rng):
    import torch

    a, b = (torch.from_numpy(rng.standard_normal((70, 70))).cuda() for _ in range(2))
    a[3, 4] = np.inf
    expected = prismm.matmul(a, b, scheme=Native(), accuracy="native")
    out, graph = torch.zeros_like(a), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(a, b, scheme=Native(), accuracy="native", out=out)
    cuda_calls.forget()
    torch.cuda.empty_cache()
    others = [torch.zeros(64, dtype=torch.int32, device="cuda") for _ in range(4096)]
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.nan_to_num(), expected.nan_to_num()) and not any(x.any() for x in others)


@pytest.mark.parametrize(
    "form", [{"reproducible": True}, {"scheme": Residues(14), "accuracy": "native"}, {"scheme": ScaledHalf()}, {}]
)
def test_calls_that_begin_before_there_is_a_result(form, rng):
    """Long calls of plain tensors queue their first half before the result is allocated; with out= before flags and
    settings are asked for.
    """
    import torch

    n = 1300
    a, b = (on_gpu(rng.standard_normal((n, n)).astype(np.float32)) for _ in range(2))
    for turn in range(8):
        a.copy_(on_gpu(rng.standard_normal((n, n)) * 2.0**turn))
        expected = torch.empty_like(a)
        prismm.matmul(a, b, out=expected, **form)
        kept = [prismm.matmul(a, b, **form) for _ in range(2)]
        assert kept[0].data_ptr() != kept[1].data_ptr()
        assert torch.equal(kept[0], expected) and torch.equal(kept[1], expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = prismm.matmul(a, b, **form)
    a.copy_(on_gpu(rng.standard_normal((n, n))))
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, prismm.matmul(a, b, **form))
