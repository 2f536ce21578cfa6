"""Calls of the layout of earlier ones, as one graph: what may differ there, and that it is noticed."""

import itertools

import pytest

import prismm
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FORMS = [
    {}, {"reproducible": True}, {"accuracy": "correctly-rounded"}, {"accuracy": 1e-9},
    {"scheme": Native(), "engine": "cuda:blas"}, {"scheme": ScaledHalf()},
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_known():
    from prismm.cuda import calls as cuda_calls

    cuda_calls.forget()
    yield
    cuda_calls.forget()


def draws(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(*shape, dtype=dtype, device="cuda", generator=generator) for shape in shapes]


def graphs():
    """How many graphs all calls have."""
    from prismm.cuda import calls as cuda_calls

    return sum(len(queued.program.graphs) for call in cuda_calls.known() for queued in call.programs.values())


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("n", [65, 320, 1312])
def test_each_of_many_calls_multiplies_what_stands_there_now(form, n):
    a, b, other = draws(n, (n, n), (n, n), (n, n))
    out = torch.empty_like(a)
    expected = [prismm.matmul(x.clone(), b.clone(), **form) for x in (a, other)]
    first = a.clone()
    for turn in range(12):
        a.copy_((first, other)[turn % 2])
        out.zero_()
        assert prismm.matmul(a, b, out=out, **form) is out
        assert out.equal(expected[turn % 2])
    known = graphs()
    assert known > 0
    for turn in range(12):  # results at two addresses in turn
        a.copy_((first, other)[turn % 2])
        kept = [prismm.matmul(a, b, **form) for _ in range(2)]
        assert all(x.equal(expected[turn % 2]) for x in kept)
        del kept
    assert graphs() <= known + 1  # with a result that is no caller's


def test_one_address_is_that_of_many_tensors():
    """Transposed, narrower, of another type, negated, wanting a derivative; the same tensor twice."""
    (a,) = draws(1, (96, 96))
    b = a.clone()
    forms = {
        "plain": (a, b), "left": (a.mT, b), "right": (a, b.mT), "both": (a.mT, b.mT), "one": (a, a), "its": (a, a.mT),
        "short": (a[:, :64], b[:64]), "rows": (a[:32], b), "wide": (a.view(48, 192)[:, :96], b),
        "negated": (torch._neg_view(a), b), "other": (a.view(torch.int32), b),
        "double": (a.view(torch.float64)[:48], b[:48].double()),
    }  # fmt: skip
    expected = {name: (x.double() @ y.double()) for name, (x, y) in forms.items()}
    found = {}
    for turn, (name, (x, y)) in itertools.product(range(6), forms.items()):
        c = prismm.matmul(x, y)
        error = (c.double() - expected[name]).abs() <= 200 * 2.0**-24 * (x.double().abs() @ y.double().abs())
        assert bool(error.all()), (turn, name)
        assert found.setdefault(name, c.clone()).equal(c)
    wanting = a.clone().requires_grad_()
    for _ in range(6):
        assert prismm.matmul(a, b).grad_fn is None
        assert prismm.matmul(wanting, b).grad_fn is not None
    a.requires_grad_()
    assert prismm.matmul(a, b).grad_fn is not None
    with torch.no_grad():
        assert prismm.matmul(a, b).equal(found["plain"])


@pytest.mark.parametrize("form", [{}, {"reproducible": True}, {"scheme": Residues(15), "accuracy": "native"}], ids=str)
def test_prepared_operands_may_be_used_again(form):
    a, b, other = draws(5, (200, 300), (300, 150), (300, 150), dtype=torch.float64)
    kept, others, left = (
        prismm.prepare(b, **form),
        prismm.prepare(other, **form),
        prismm.prepare(a, side="left", **form),
    )
    expected = [prismm.matmul(a.clone(), x, **form) for x in (kept, others)]
    # One that is prepared keeps a native product from being one kernel, whose sums have another order.
    of_left = [prismm.matmul(left, x, **form) for x in (b.clone(), kept)]
    out = torch.empty_like(expected[0])
    for turn in range(14):
        for x, right in zip((kept, others), expected, strict=True):
            assert prismm.matmul(a, x, out=out, **form) is out and out.equal(right), turn
            assert prismm.matmul(a, x, **form).equal(right)
        for x, right in zip((b, kept), of_left, strict=True):
            assert prismm.matmul(left, x, **form).equal(right), turn
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert prismm.matmul(a, kept, out=out, **form).equal(expected[0])
    torch.cuda.current_stream().wait_stream(side)
    assert prismm.matmul(torch._neg_view(a), kept, **form).equal(-expected[0])
    del kept
    again = prismm.prepare(other, **form)  # perhaps in its place
    for _ in range(6):
        assert prismm.matmul(a, again, out=out, **form).equal(expected[1])


def test_what_is_asked_is_noticed(monkeypatch):
    a, b = draws(2, (128, 128), (128, 128))
    out = torch.empty_like(a)
    forms = [{}, {"accuracy": "correctly-rounded"}, {"reproducible": True}, {"scheme": Residues(9)}, {"accuracy": 1e-3}]
    expected = [prismm.matmul(a.clone(), b, **form) for form in forms]
    for _ in range(6):
        for form, right in zip(forms, expected, strict=True):
            prismm.matmul(a, b, out=out, **form)
            assert out.equal(right)
    with pytest.raises(prismm.errors.ArgumentError):
        prismm.matmul(a, b, out=out, reproducible=1)
    monkeypatch.setenv("PRISMM_ENGINE", "cuda:int8")
    for _ in range(6):
        prismm.matmul(a, b, out=out)
        assert out.equal(prismm.matmul(a.clone(), b, engine="cuda:int8"))
    monkeypatch.delenv("PRISMM_ENGINE")
    prismm.matmul(a, b, out=out)
    assert out.equal(expected[0])


def test_streams_threads_and_captures():
    a, b = draws(3, (512, 700), (700, 300))
    out = torch.empty(512, 300, device="cuda")
    expected = prismm.matmul(a.clone(), b)
    for _ in range(6):
        prismm.matmul(a, b, out=out)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        a.mul_(2.0)
        prismm.matmul(a, b, out=out)
        late = out.clone()
    torch.cuda.current_stream().wait_stream(side)
    assert late.equal(expected * 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prismm.matmul(a, b, out=out)
    out.zero_()
    a.div_(2.0)
    graph.replay()
    assert out.equal(expected)


def test_modes_and_transformations():
    a, b = draws(4, (64, 64), (64, 64))
    expected = prismm.matmul(a.clone(), b)
    for _ in range(6):
        prismm.matmul(a, b)
    with torch.inference_mode():
        assert prismm.matmul(a, b).equal(expected)
    with torch.autocast("cuda"):
        assert prismm.matmul(a, b).equal(expected)
    parameter = torch.nn.Parameter(a, requires_grad=False)
    assert prismm.matmul(parameter, b).equal(expected)
    with torch.device("cpu"):
        assert prismm.matmul(a, b).equal(expected)


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_single_launches_and_graphs_take_turns(form):
    """A capture queues launches one by one, whose parameters lie where those of a graph's nodes do."""
    a, b, other = draws(6, (300, 200), (200, 100), (300, 200))
    out = torch.empty(300, 100, device="cuda")
    expected = [prismm.matmul(x.clone(), b, **form) for x in (a, other)]
    for turn in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = prismm.matmul(a, b, **form)
        for _ in range(2):
            assert prismm.matmul(other, b, out=out, **form).equal(expected[1]), turn
        graph.replay()
        assert captured.equal(expected[0]), turn
        assert prismm.matmul(a, b, out=out, **form).equal(expected[0]), turn


def test_new_addresses_of_every_alignment():
    """Of conventional products too, whose kernels cuBLAS chooses by it."""
    (data,) = draws(7, (3, 90 * 80 + 64))
    for form in (FORMS[0], FORMS[1], FORMS[4]):
        for turn in range(40):
            skip = [int(x) for x in torch.randint(0, 64, (3,), generator=torch.Generator().manual_seed(turn))]
            if turn % 2:
                skip = [x // 4 * 4 for x in skip]
            a, b = (data[h, skip[h] : skip[h] + 90 * 80].view(*shape) for h, shape in ((0, (90, 80)), (1, (80, 90))))
            out = data[2, skip[2] : skip[2] + 90 * 80].view(90, 80)[:, :80]
            c = prismm.matmul(a, b, **form)
            assert prismm.matmul(b, a, out=out[:80].reshape(80, 80), **form).shape == (80, 80)
            exact = a.double() @ b.double()
            error = (c.double() - exact).abs() <= 200 * 2.0**-24 * (a.double().abs() @ b.double().abs())
            assert bool(error.all()), (form, turn, skip)
            if form == FORMS[1]:
                assert c.equal(prismm.matmul(a.clone(), b.clone(), **form))


@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.0, 1.0), (-1.5, 0.0), (1e20, 3.0)])
@pytest.mark.parametrize("turned", ["NN", "TN", "NT"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_at_new_addresses(dtype, turned, factors):
    alpha, beta = factors
    shapes = [(120, 90), (90, 70)]
    shapes = [shape[::-1] if how == "T" else shape for shape, how in zip(shapes, turned, strict=True)]
    for form in ({}, {"reproducible": True}, {"accuracy": "correctly-rounded"}):
        kept = []
        for turn in range(6):
            a, b, c = draws(turn, *shapes, (120, 70), dtype=dtype)
            given = dict(alpha=alpha, beta=beta, trans_a=turned[0], trans_b=turned[1], **form)
            # Without the fast path: C is another tensor's transposed view.
            expected = prismm.gemm(a, b, c.mT.contiguous().mT, **given)
            found = prismm.gemm(a, b, c, **given)
            if form:
                assert found.equal(expected), turn
            else:
                size = (
                    abs(alpha)
                    * (a.double() if turned[0] == "N" else a.double().mT).abs()
                    @ (b.double() if turned[1] == "N" else b.double().mT).abs()
                    + abs(beta) * c.double().abs()
                )
                assert bool(((found.double() - expected.double()).abs() <= 400 * torch.finfo(dtype).eps * size).all())
            again = c.clone()
            assert prismm.gemm(a, b, again, out=again, **given) is again and (not form or again.equal(expected))
            kept += [a, b, c, found]
    from prismm.cuda import fast_path

    assert fast_path.known() > 0
