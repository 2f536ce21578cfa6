"""Batches of tiny products on a GPU: a CPU's bits, bounds, layouts, reports; what is chosen; compiled, interpreted."""

import dataclasses
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import prismm  # noqa: E402
from prismm.core.accuracy import parse_target  # noqa: E402
from prismm.core.bounds import ConventionalBound  # noqa: E402
from prismm.core.problem import Problem  # noqa: E402
from prismm.core.request import check_request  # noqa: E402
from prismm.cuda import calls as cuda_calls  # noqa: E402
from prismm.cuda import plan as cuda_plan  # noqa: E402
from prismm.cuda.device import Device  # noqa: E402
from prismm.cuda.native import tiny as cuda_tiny  # noqa: E402
from prismm.formats import FP32, FP64  # noqa: E402
from prismm.schemes.native import Native  # noqa: E402
from prismm.schemes.residues import Residues  # noqa: E402
from prismm.testing import HOSTILE, SPECIAL, exact_product  # noqa: E402
from tests.cuda.harness.processes import compiled, interpreted  # noqa: E402

H100 = Device("NVIDIA H100 80GB HBM3", True, True, 132)
CALLS = {
    "default": {}, "correctly-rounded": {"accuracy": "correctly-rounded"}, "reproducible": {"reproducible": True},
}  # fmt: skip
BITS = ["correctly-rounded", "reproducible"]
DTYPES = ["float64", "float32", "complex128", "complex64"]
SHAPES = [(4, 4, 4), (3, 5, 7), (16, 16, 16), (1, 2, 1), (8, 13, 6), (32, 1, 2)]


def chosen(problem, device=H100, **asked):
    keywords = {"accuracy": "native", "scheme": None, "reproducible": problem.reproducible, "engine": None, **asked}
    x = np.zeros((2, 2))
    options = check_request(
        keywords["accuracy"], keywords["scheme"], keywords["reproducible"], None, keywords["engine"], None, x, x
    )[0]
    return cuda_plan.choose(dataclasses.replace(problem, target=options.target), options, device)


PROBLEM = Problem(4, 4, 4, (1000,), FP64, parse_target("native"), False, True)


def test_batches_of_tiny_products_are_one_kernel():
    reproducible = dataclasses.replace(PROBLEM, reproducible=True)
    for problem, accuracy, scheme in (
        (PROBLEM, "native", Native()), (PROBLEM, "fast", Native()),
        (dataclasses.replace(PROBLEM, result=FP32), "native", Native("float64")),
        (reproducible, "native", Residues(15)),
        (dataclasses.replace(reproducible, one_type=False), "fast", Residues(15)),
    ):  # fmt: skip
        choice = chosen(problem, accuracy=accuracy)
        assert choice.blocks.tiny and choice.scheme == scheme and choice.engine == "cuda:fp64"
    rounded = chosen(PROBLEM, accuracy="correctly-rounded")
    assert rounded.blocks.tiny and isinstance(rounded.scheme, Residues)
    large = dataclasses.replace(PROBLEM, m=32, n=32, k=32)
    assert not chosen(large).blocks.tiny and chosen(large, accuracy="correctly-rounded").blocks.tiny
    assert not chosen(dataclasses.replace(large, is_complex=True), accuracy="correctly-rounded").blocks.tiny


def test_other_products_are_not():
    others = [dataclasses.replace(PROBLEM, **x) for x in ({"batch": ()}, {"batch": (1,)}, {"k": 33}, {"summed": True})]
    assert not any(chosen(problem, accuracy="correctly-rounded").blocks.tiny for problem in others)
    assert not chosen(PROBLEM, accuracy=1e-9).blocks.tiny and not chosen(PROBLEM, scheme=Residues(15)).blocks.tiny
    unknown = dataclasses.replace(H100, name="unknown")
    assert (
        not chosen(PROBLEM, device=unknown).blocks.tiny
        and chosen(PROBLEM, device=unknown, accuracy="correctly-rounded").blocks.tiny
    )
    assert not chosen(PROBLEM, engine="cuda:int8").blocks.tiny and not chosen(PROBLEM, engine="cuda:blas").blocks.tiny


def test_plans_tell_of_the_kernel():
    for accuracy in ("native", "correctly-rounded"):
        problem = dataclasses.replace(PROBLEM, target=parse_target(accuracy), batch=(100000,))
        x = np.zeros((2, 2))
        options = check_request(accuracy, None, False, None, None, None, x, x)[0]
        plan = cuda_plan.make_plan(
            problem, cuda_plan.choose(problem, options, H100), options, H100, "float64", "float64"
        )  # fmt: skip
        assert plan.products == 100000 and any("one kernel" in reason for reason in plan.reasons)
        assert 38.4e6 / 5e12 < plan.predicted_seconds < 1e-3


def test_programs_hold_powers_of_two():
    for rows, columns, terms in itertools.product((2, 4, 8, 16, 32), repeat=3):
        count = cuda_tiny.matrices_of(rows, columns, terms)
        assert count & (count - 1) == 0
        assert count == 1 or count * terms * (rows + columns) <= cuda_tiny.ELEMENTS


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernel_compiles_to_wide_reads(architecture, dtype):
    found = compiled("tiny", architecture, dtype)
    assert len(found) == (9 if dtype == "float64" else 6)
    for entry in found:
        assert entry["kernel"] == "multiply_tiny" and entry["fused"] > 0 and entry["registers"] <= 255, entry
        assert entry["wide"] > 0 or dtype.startswith("complex"), entry


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_interpreted_batches_give_the_bits_of_a_cpu(part):
    found = interpreted("tiny", f"{part}/2")
    assert len(found) == 89
    assert not [entry for entry in found if entry["wrong"]]


def batch(name, shape, dtype, seed, generators=HOSTILE, count=40):
    pairs = [generators[name](*shape, seed=seed + x, dtype=np.dtype(dtype)) for x in range(count)]
    return tuple(np.stack(x) for x in zip(*pairs, strict=True))


def on_gpu(*arrays):
    return tuple(torch.from_numpy(x).cuda() for x in arrays)


def same_bits(x, y):
    x, y = (np.ascontiguousarray(z).view(z.real.dtype) for z in (x, y))
    return np.all((x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_a_cpu(dtype, shape, seed):
    wrong = []
    for name, generators in [*((x, HOSTILE) for x in HOSTILE), *((x, SPECIAL) for x in SPECIAL)]:
        a, b = batch(name, shape, dtype, seed, generators)
        x, y = on_gpu(a, b)
        for call in BITS:
            c = prismm.matmul(x, y, **CALLS[call])
            if not same_bits(c.cpu().numpy(), prismm.matmul(a, b, **CALLS[call])):
                wrong.append((name, call))
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_conventional_products_keep_their_bound(dtype, seed):
    form = FP64 if dtype in ("float64", "complex128") else FP32
    wrong = []
    for index, name in enumerate(HOSTILE):
        a, b = batch(name, ((4, 4, 4), (3, 5, 7), (1, 2, 1), (16, 8, 6))[index % 4], dtype, seed, count=4)
        c = prismm.matmul(*on_gpu(a, b)).cpu().numpy()
        for x, y, z in zip(a, b, c, strict=True):
            terms = x.shape[1] * (2 if np.iscomplexobj(x) else 1)
            bounds = ConventionalBound(form, x, y, terms, 2.0**-53).at(z, slice(None), slice(None))
            if not exact_product(x, y).within(z, bounds).all():
                wrong.append(name)
    assert not wrong
    for name in SPECIAL:
        a, b = batch(name, (5, 6, 4), dtype, seed, SPECIAL)
        expected = prismm.matmul(a, b, accuracy="correctly-rounded")
        c = prismm.matmul(*on_gpu(a, b)).cpu().numpy()
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(c), finite) and same_bits(
            np.where(finite, 0, c), np.where(finite, 0, expected)
        )


@pytest.mark.gpu
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_batches_and_places_change_no_bit(dtype, call):
    keywords, kind = CALLS[call], getattr(torch, dtype)
    for n in (4, 7, 8 if kind.is_complex and call == "default" else 16):
        a, b = (torch.randn(500, n, n, dtype=kind, device="cuda") for _ in range(2))
        c = prismm.matmul(a, b, **keywords)
        others = [
            (a.mT.contiguous().mT, b), (a, b.mT.contiguous().mT), (torch.cat([a, a], 2)[:, :, :n], b),
            (torch.stack([a, a], 3)[..., 0], b), (a.reshape(5, 100, n, n), b.reshape(5, 100, n, n)),
        ]  # fmt: skip
        assert all(torch.equal(c, prismm.matmul(x, y, **keywords).reshape(c.shape)) for x, y in others)
        one = prismm.matmul(a[:1], b, **keywords)
        assert torch.equal(one, prismm.matmul(a[:1].repeat(500, 1, 1), b, **keywords)) and torch.equal(one[0], c[0])
        wider = torch.full((500, n, 2 * n), torch.nan, dtype=kind, device="cuda")
        prismm.matmul(a, b, out=wider[..., ::2], **keywords)
        own = a.clone()
        prismm.matmul(own, b, out=own, **keywords)
        assert torch.equal(wider[..., ::2], c) and wider[..., 1::2].isnan().all() and torch.equal(own, c)
        if kind.is_complex:
            assert torch.equal(prismm.matmul(a.conj(), b.conj(), **keywords), c.conj())
            for _ in range(5):
                prismm.matmul(a, b, **keywords)
            assert torch.equal(
                prismm.matmul(a.conj(), b, **keywords), prismm.matmul(a.conj().resolve_conj(), b, **keywords)
            )


@pytest.mark.gpu
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_reports_hold(dtype, call, seed):
    a, b = batch("phi4", (6, 8, 5), dtype, seed, count=9)
    c, report = prismm.matmul(*on_gpu(a, b), full_output=True, **CALLS[call])
    assert report.engine == "cuda:fp64" and sum(report.paths.values()) == c.numel() * (2 if c.is_complex() else 1)
    assert torch.equal(c, prismm.matmul(*on_gpu(a, b), **CALLS[call]))
    for x, y, z, bounds in zip(a, b, c.cpu().numpy(), report.bounds, strict=True):
        assert exact_product(x, y).within(z, bounds).all()


@pytest.mark.gpu
@pytest.mark.parametrize("call", list(CALLS))
def test_integers_mixed_types_and_graphs(call, rng):
    keywords = CALLS[call]
    a, b = (rng.integers(-(2**40), 2**40, (200, 5, 6)), rng.integers(-9, 9, (200, 6, 4)))
    assert same_bits(prismm.matmul(*on_gpu(a, b), **keywords).cpu().numpy(), prismm.matmul(a, b, **keywords))
    a, b = rng.standard_normal((300, 4, 4)), rng.standard_normal((300, 4, 4)).astype(np.float32)
    if call != "default":
        assert same_bits(prismm.matmul(*on_gpu(a, b), **keywords).cpu().numpy(), prismm.matmul(a, b, **keywords))
    x, y = (torch.randn(1000, 4, 4, dtype=torch.float64, device="cuda") for _ in range(2))
    expected, out = prismm.matmul(x, y, **keywords), torch.empty_like(x)
    prismm.matmul(x, y, out=out, **keywords)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(x, y, out=out, **keywords)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, expected)
    x.copy_(2.0 * x)
    graph.replay()
    assert torch.equal(out, 2.0 * expected)


@pytest.mark.gpu
def test_more_products_than_a_grid_is_high():
    x = torch.randn(70001, 4, 4, dtype=torch.float64, device="cuda")
    for keywords in CALLS.values():
        c = prismm.matmul(x, x, **keywords)
        assert torch.equal(c[-3:], prismm.matmul(x[-3:], x[-3:], **keywords))
    assert any(call.chosen.blocks.tiny for call in cuda_calls.known())
