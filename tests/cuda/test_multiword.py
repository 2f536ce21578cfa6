"""Products of words on a GPU: the bits of their twin, targets, bounds, specials, repair, plans."""

import dataclasses

import numpy as np
import pytest

import prismm
from prismm.cuda.multiword.launches import CHUNKS
from prismm.errors import ArgumentError, EngineError
from prismm.schemes import Native, Residues, ScaledHalf, Words
from prismm.testing import HOSTILE, SPECIAL, exact_product, ieee_specials
from tests.cuda.harness import words_twin as twin
from tests.cuda.harness.cases import needs_rates

pytestmark = pytest.mark.gpu
U, ETA = 2.0**-24, 2.0**-149
SCHEMES = [ScaledHalf(), ScaledHalf(chunk=64), ScaledHalf(sb=8, chunk=512), Words.tf32(), Words.bf16(6), Words.bf16(3)]


def on_gpu(x):
    import torch

    return torch.from_numpy(x).cuda()


def allowed(a, b, slack):
    """(exact product of the real vectors, slack·(|a||b|) + K·η)."""
    x, y = twin.real_vectors(a, "left"), twin.real_vectors(b, "right").T
    exact = exact_product(x, y)
    terms = x.shape[1]
    return exact, (terms * U if slack is None else slack) * exact.magnitude("up") + terms * ETA


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", twin.formats())
def test_bits_are_those_of_the_twin(name, dtype, shares, rng):
    import torch

    from prismm.cuda.device import device_of
    from prismm.cuda.multiword import launches as multiword_launches
    from tests.cuda.harness.programs import run, words_program

    device, words = device_of(0), twin.formats()[name]
    if not device.sm90:
        pytest.skip("the twin adds as Hopper's kernel does")
    for k, chunk in ((200, 64), (700, 512), (40, 128)):
        a, b = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape) for shape in ((150, k), (k, 140)))
        a, b = ((x if dtype == "complex64" else x.real).astype(dtype) for x in (a, b))
        out = torch.empty(1, 150, 140, dtype=getattr(torch, dtype), device="cuda")
        config = multiword_launches.LaunchConfig(words, chunk, 0.0, 1.0, False, shares=shares)
        x, y = on_gpu(a)[None], on_gpu(b)[None]
        program, _ = words_program(x, y, out, config, device)
        run(program, x, y, out)
        expected, _ = twin.product(a, b, words, chunk, "h200-wgmma", shares=shares)
        assert np.array_equal(out[0].cpu().numpy().view(np.float32), expected)


@pytest.mark.parametrize("columns", [False, True])
def test_bits_of_one_kernel_are_those_of_its_twin(columns, rng):
    """Cut and multiplied in one kernel: batches, one matrix for all, tiles cut off, fewer terms than a step."""
    import torch

    from prismm.cuda.device import device_of
    from prismm.cuda.multiword import launches as multiword_launches
    from tests.cuda.harness.programs import run, words_program

    device = device_of(0)
    if not device.sm90:
        pytest.skip("the kernel is Hopper's")
    for m, k, n, left, right in ((152, 200, 140, 3, 1), (256, 512, 384, 1, 2), (20, 40, 300, 70, 70)):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((left, m, k), (right, k, n)))
        x, y = on_gpu(a), on_gpu(b)
        if columns:
            x, y = x.mT.contiguous().mT, y.mT.contiguous().mT
        out = torch.empty(max(left, right), m, n, device="cuda")
        config = multiword_launches.LaunchConfig(multiword_launches.HALVES, 64, 0.0, 1.0, False, direct=True)
        program, _ = words_program(x, y, out, config, device)
        assert [launch.kernel.fn.__name__ for launch in program.launches] == ["multiply_by_words", "repair_words"]
        run(program, x, y, out)
        for t in {0, len(out) - 1}:
            own = a[t % left], b[t % right]
            expected, _ = twin.product(*own, multiword_launches.HALVES, 64, "h200-wgmma", True)
            assert np.array_equal(out[t].cpu().numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("m", "k", "n"), [(130, 8200, 70), (300, 4000, 260), (9, 20000, 5)])
def test_shares_of_long_products_change_nothing_from_call_to_call(m, k, n, dtype, rng):
    """Few tiles and many terms, of which several processors take shares: within the bound, and the same bits again."""
    a, b = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape) for shape in ((m, k), (k, n)))
    a, b = ((x if dtype == "complex64" else x.real).astype(dtype) for x in (a, b))
    b[:, 0] = 0
    b[:2, 0] = a[0, 1], -a[0, 0]
    x, y = on_gpu(a), on_gpu(b)
    scheme = ScaledHalf(chunk=128)
    c, report = prismm.matmul(x, y, scheme=scheme, accuracy="native", full_output=True)
    exact, slack = allowed(a, b, None)
    assert exact.within(c.cpu().numpy().view(np.float32), slack).all()
    assert report.paths.get("float64", 0) >= 1
    for _ in range(3):
        assert c.equal(prismm.matmul(x, y, scheme=scheme, accuracy="native"))


@pytest.mark.parametrize("scheme", [None, *SCHEMES], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_targets_hold_on_hostile_operands(scheme, dtype, seed):
    form = {} if scheme is None else {"scheme": scheme, "accuracy": "native"}
    for generator in HOSTILE.values():
        a, b = generator(70, 300, 65, seed=seed, dtype=np.dtype(dtype))
        for layout in ("rows", "columns"):
            x, y = on_gpu(a), on_gpu(b)
            if layout == "columns":
                x, y = x.T.contiguous().T, y.T.contiguous().T
            c = prismm.matmul(x, y, engine="cuda:fp16", **form) if scheme is None else prismm.matmul(x, y, **form)
            exact, error = allowed(a, b, None)
            assert exact.within(c.cpu().numpy().view(np.float32), error).all()


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_targets_hold_where_a_batch_is_cut_and_multiplied_in_one_kernel(layout, seed):
    import torch

    needs_rates()
    for name, generator in HOSTILE.items():
        pairs = [generator(128, 260, 132, seed=seed + x, dtype=np.dtype(np.float32)) for x in range(2)]
        x, y = (torch.stack([on_gpu(pair[side]) for pair in pairs]).repeat(40, 1, 1) for side in (0, 1))
        if layout == "columns":
            x, y = x.mT.contiguous().mT, y.mT.contiguous().mT
        c, report = prismm.matmul(x, y, scheme=ScaledHalf(chunk=64), accuracy="native", full_output=True)
        for t in (0, 1, 79):
            exact, error = allowed(*pairs[t % 2], None)
            assert exact.within(c[t].cpu().numpy(), error).all(), name
        assert sum(report.paths.values()) == c.numel()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_values_are_within_their_own_bound(scheme, seed):
    for name in ("normal", "wide_rows", "subnormal_operands"):
        for dtype in (np.float32, np.complex64):
            a, b = HOSTILE[name](20, 90, 33, seed=seed, dtype=np.dtype(dtype))
            c, report = prismm.matmul(on_gpu(a), on_gpu(b), scheme=scheme, full_output=True)
            exact, _ = allowed(a, b, None)
            bounds = np.repeat(report.bounds, 2 if dtype == np.complex64 else 1, axis=1)
            assert exact.within(c.cpu().numpy().view(np.float32), bounds).all()
            assert sum(report.paths.values()) == c.numel() * (2 if dtype == np.complex64 else 1)
            assert report.scheme == scheme and report.engine in ("cuda:fp16", "cuda:tf32", "cuda:bf16")


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("words", [ScaledHalf(), Words.fp16(), Words.tf32(), Words.bf16(6), Words.bf16(3)], ids=str)
def test_more_tiles_than_a_gpu_has_processors(words, chunk, seed):
    """A program multiplies several then, through memory that it has to give back in between."""
    import torch

    torch.manual_seed(seed)
    for dtype, n in ((torch.float32, 2048), (torch.complex64, 1030)):
        a, b = torch.randn(2048, 610, dtype=dtype, device="cuda"), torch.randn(610, n, dtype=dtype, device="cuda")
        c, report = prismm.matmul(a, b, scheme=dataclasses.replace(words, chunk=chunk), full_output=True)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        error = c.to(wide) - a.to(wide) @ b.to(wide)
        parts = [error.real, error.imag] if dtype.is_complex else [error]
        # Float64's own error is less than 2^-20 of what is allowed.
        bounds = (1.0 + 2.0**-20) * torch.from_numpy(report.bounds).cuda()
        assert all((part.abs() <= bounds).all() for part in parts)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("accuracy", [None, "native", 1e-3])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_inf_and_nan_are_those_of_the_defining_sum(scheme, accuracy, dtype):
    for generator in SPECIAL.values():
        a, b = generator(20, 140, 30, seed=3, dtype=np.dtype(dtype))
        c = prismm.matmul(on_gpu(a), on_gpu(b), scheme=scheme, accuracy=accuracy).cpu().numpy().view(np.float32)
        expected = ieee_specials(a, b).astype(dtype).view(np.float32)
        outside = ~np.isfinite(expected)
        assert np.array_equal(c[outside], expected[outside], equal_nan=True)
        assert np.isfinite(c[~outside]).all()


def test_infinities_stand_where_the_exact_product_overflows(seed):
    for accuracy in (None, "native"):
        for name in ("near_overflow", "overflow_threshold"):
            a, b = HOSTILE[name](33, 70, 40, seed=seed, dtype=np.dtype(np.float32))
            c = prismm.matmul(on_gpu(a), on_gpu(b), scheme=ScaledHalf(), accuracy=accuracy).cpu().numpy()
            expected = exact_product(a, b).rounded(np.float32)
            assert np.array_equal(np.isinf(c), np.isinf(expected))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 1), (1, 1)), ((5,), (5, 7)), ((3, 5), (5,)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)),
        ((4, 1, 3, 5), (2, 5, 4)), ((3, 5), (2, 5, 4)), ((0, 5), (5, 3)), ((3, 0), (0, 4)), ((17, 129), (129, 65)),
        ((3, 130, 200), (3, 200, 140)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_shapes_and_batches(left, right, dtype, rng):
    a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in (left, right))
    for scheme in (ScaledHalf(), Words.bf16()):
        c, report = prismm.matmul(on_gpu(a), on_gpu(b), scheme=scheme, accuracy="native", full_output=True)
        assert tuple(c.shape) == np.matmul(a, b).shape
        assert np.array_equal(c.cpu().numpy(), np.matmul(a, b))
        if a.shape[-1]:
            assert sum(report.paths.values()) == c.numel() * (2 if dtype == "complex64" else 1)


def test_scaling_by_powers_of_two_changes_no_bit(rng):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((90, 600), (600, 70)))
    rows = (2.0 ** rng.integers(-30, 30, (90, 1))).astype(np.float32)
    columns = (2.0 ** rng.integers(-30, 30, (1, 70))).astype(np.float32)
    c = prismm.matmul(on_gpu(a), on_gpu(b), scheme=ScaledHalf())
    scaled = prismm.matmul(on_gpu(a * rows), on_gpu(b * columns), scheme=ScaledHalf())
    assert scaled.equal(c * on_gpu(rows) * on_gpu(columns))


def test_tiles_without_products_are_zero_and_cheap(rng):
    a, b = (rng.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    a[:256, 256:] = a[256:, :256] = 0.0
    b[:256, 256:] = b[256:, :256] = 0.0
    c, report = prismm.matmul(on_gpu(a), on_gpu(b), scheme=ScaledHalf(), accuracy="native", full_output=True)
    assert not c[:256, 256:].any() and not c[256:, :256].any()
    assert report.paths["float64"] >= 2 * 256**2 - 512


def test_graphs_and_views(rng):
    import torch

    a, b = (
        on_gpu(rng.standard_normal((200, 300)).astype(np.float32)),
        on_gpu(rng.standard_normal((300, 140)).astype(np.float32)),
    )
    expected = prismm.matmul(a, b, scheme=ScaledHalf())
    wide = torch.zeros(200, 280, device="cuda")
    assert prismm.matmul(a, b, scheme=ScaledHalf(), out=wide[:, ::2]).equal(expected)
    assert prismm.matmul(a[:, 1:], b[1:], scheme=ScaledHalf()).equal(
        prismm.matmul(a[:, 1:].clone(), b[1:].clone(), scheme=ScaledHalf())
    )
    out = torch.empty(200, 140, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(a, b, scheme=ScaledHalf(), out=out)
    a.mul_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(2.0 * expected)


def test_blocks_of_a_bounded_workspace(rng, monkeypatch):

    from prismm.cuda import blocks as cuda_blocks
    from prismm.cuda import calls as cuda_calls
    from prismm.cuda import fast_path as layouts

    a, b = (on_gpu(rng.standard_normal(shape).astype(np.float32)) for shape in ((700, 300), (300, 500)))
    whole = prismm.matmul(a, b, scheme=ScaledHalf())
    monkeypatch.setattr(cuda_blocks, "LARGE", 1 << 18)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1 << 20, 1 << 30))
    monkeypatch.setattr(cuda_calls, "_CALLS", {})
    monkeypatch.setattr(layouts, "_LAYOUTS", {})
    assert prismm.explain(a, b, scheme=ScaledHalf()).row_panel < 700
    assert whole.equal(prismm.matmul(a, b, scheme=ScaledHalf()))


def test_a_batch_may_be_cut_too(rng, monkeypatch):
    from prismm.cuda.multiword import implementation as multiword_implementation

    a, b = (on_gpu(rng.standard_normal(shape).astype(np.float32)) for shape in ((2, 5, 40, 150), (5, 150, 33)))
    whole = prismm.matmul(a, b, scheme=ScaledHalf())
    monkeypatch.setattr(multiword_implementation, "BATCH_BYTES", 3 * 2 * 2 * (40 + 33) * 192)
    assert whole.equal(prismm.matmul(a, b, scheme=ScaledHalf()))
    assert whole[1, 3].equal(prismm.matmul(a[1, 3], b[3], scheme=ScaledHalf()))


def test_plans():
    import torch

    needs_rates()
    large = torch.zeros(4096, 4096, device="cuda")
    plan = prismm.explain(large, large)
    assert (plan.scheme, plan.engine, plan.products) == (ScaledHalf(chunk=128), "cuda:fp16", 3)
    assert plan.workspace_bytes == 8 * 4096**2 + 4096**2 // 8
    assert prismm.explain(large, large, reproducible=True).scheme == Residues(7)
    assert prismm.explain(large[:64, :64], large[:64, :64]).scheme == Native("float64")
    assert prismm.explain(large, large, engine="cuda:tf32").scheme == Words.tf32()
    both = prismm.explain(large.to(torch.complex64), large.to(torch.complex64))
    assert (both.scheme, both.products) == (ScaledHalf(chunk=256), 12)


def test_bad_input():
    import torch

    a = torch.ones(4, 4, device="cuda")
    for scheme in (ScaledHalf(sb=20), ScaledHalf(order="element"), ScaledHalf(chunk=100), Words.tf64(), Words.tf32(1)):
        with pytest.raises(EngineError, match=r"runs on a CPU so far.*Words\.tf32"):
            prismm.matmul(a, a, scheme=scheme)
    with pytest.raises(EngineError, match="float32"):
        prismm.matmul(a.double(), a.double(), scheme=ScaledHalf())
    with pytest.raises(EngineError, match="correct rounding"):
        prismm.matmul(a, a, scheme=ScaledHalf(), accuracy="correctly-rounded")
    with pytest.raises(ArgumentError, match="cuda:int8"):
        prismm.matmul(a, a, scheme=ScaledHalf(), engine="cuda:int8")
