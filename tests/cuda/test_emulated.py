"""Products under `emulate` on a GPU: of a layout that is known they are those of `prismm.matmul`, and are counted."""

import pytest

import prismm
from tests import judge

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

RECIPES = {
    "default": {}, "reproducible": {"reproducible": True}, "correctly rounded": {"accuracy": "correctly-rounded"},
}  # fmt: skip
KINDS = torch.float32, torch.float64, torch.complex64


def drawn(seed, *shapes, kind):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, dtype=kind, device="cuda", generator=generator) for shape in shapes]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_known_products_are_those_of_matmul(recipe, kind, seed):
    """With new data each time, with an addend, in batches, of transposed operands."""
    keywords = RECIPES[recipe]
    for make in (
        lambda a, b, c: (torch.mm(a, b), prismm.matmul(a, b, **keywords)),
        lambda a, b, c: (torch.mm(a, b.mT), prismm.matmul(a, b.mT, **keywords)),
        lambda a, b, c: (torch.addmm(c[0], a, b), prismm.matmul(a, b, **keywords) + c[0]),
        lambda a, b, c: (torch.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1)), None),
    ):
        with (
            torch.no_grad(),
            prismm.emulate(keywords.get("accuracy"), reproducible="reproducible" in keywords) as record,
        ):
            for turn in range(12):
                a, b, c = drawn(seed + turn, (40, 40), (40, 40), (40, 40), kind=kind)
                found, wanted = make(a, b, c)
                if wanted is None:
                    wanted = prismm.matmul(a, b, **keywords).expand(3, -1, -1)
                    if recipe == "default":  # batches may be multiplied otherwise
                        continue
                judge.assert_same_bits(found.cpu().numpy(), wanted.cpu().numpy())
        (row,) = [row for row in record.rows if row.operator in ("mm", "addmm", "bmm")]
        assert row.count == 12 and row.seconds > 0.0


@pytest.mark.parametrize("recipe", ["default", "reproducible"])
def test_one_line_may_multiply_in_many_ways(recipe, seed, monkeypatch):
    """Strides, alignments, streams, settings and derivatives change between products of one shape at one line."""
    from prismm.cuda import calls

    keywords, n, stream = RECIPES[recipe], 264, torch.cuda.Stream()
    with prismm.emulate(**keywords) as record:
        for turn in range(15):
            a, b, more = drawn(seed + turn, (n, n), (n, n), (n * n + 1,), kind=torch.float64)
            odd = more[1:].view(n, n)
            pairs = [(a, b), (a, b.mT), (a.mT, b.mT), (odd, b), (a, a), (a, b[::2].repeat_interleave(2, 0)), (b.mT, a)]
            if turn % 3 == 1:
                pairs = pairs[::-1]
            if turn == 6:
                monkeypatch.setenv("PRISMM_ENGINE", "cuda:int8")
            elif turn == 8:
                monkeypatch.delenv("PRISMM_ENGINE")
            if turn == 9:
                calls.forget()
            with torch.cuda.stream(stream if turn in (4, 5, 11) else torch.cuda.current_stream()):
                for x, y in pairs:
                    x = x.detach().requires_grad_(turn % 2 == 1)
                    found, wanted = torch.mm(x, y), prismm.matmul(x.detach(), y, **keywords)
                    torch.cuda.synchronize()
                    judge.assert_same_bits(found.detach().cpu().numpy(), wanted.cpu().numpy())
    assert sum(row.count for row in record.rows if row.operator == "mm") == 15 * 7


@pytest.mark.parametrize("kind", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (300, 2000, 260), (512, 256, 768), (4, 256, 260, 256)], ids=str)
def test_a_bias_that_the_kernel_adds_has_the_bits_of_an_addition(shape, kind, seed):
    """Of products of words, with entries that are repaired; from odd addresses too, and in a graph. Complex rows are
    added by torch, which makes NaN of infinite ones.
    """
    from prismm.cuda import calls

    calls.forget()
    *batch, m, k, n = shape
    operator = torch.baddbmm if batch else torch.addmm
    with torch.no_grad(), prismm.emulate():
        for turn in range(4):
            a, b, c, more = drawn(seed + turn, (*batch, m, k), (*batch, k, n), (n,), (n + 1,), kind=kind)
            a[..., 2, 2:] = 0
            b[..., 1, 0] = -(a[..., 2, 0] * b[..., 0, 0]) / a[..., 2, 1]
            c[0], c[-1] = -0.0, 1.0 if kind.is_complex else float("inf")
            for row in (c, more[1:], c.expand(m, n), c[:1]):
                found, wanted = operator(row, a, b), prismm.matmul(a, b) + row
                judge.assert_same_bits(found.cpu().numpy(), wanted.cpu().numpy())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = operator(c, a, b)
        c.copy_(more[1:])
        graph.replay()
    judge.assert_same_bits(found.cpu().numpy(), (prismm.matmul(a, b) + c).cpu().numpy())
    words = [call for call in calls.known() if "ScaledHalf" in str(call.chosen.scheme)]
    assert any(key == "row" for call in words for key in call.programs) == (kind is torch.float32 and bool(words))
    assert words or m < 1024


def test_derivatives_of_known_products(seed):
    """A step of training gives the same gradients each time, and those of a first one."""
    x, w, c = drawn(seed, (30, 20), (20, 10), (10,), kind=torch.float64)
    w.requires_grad_(), c.requires_grad_()
    found = []
    with prismm.emulate(reproducible=True) as record:
        for _ in range(5):
            w.grad = c.grad = None
            torch.addmm(c, x, w).square().sum().backward()
            found.append((w.grad.cpu().numpy(), c.grad.cpu().numpy()))
    y = prismm.matmul(x, w.detach(), reproducible=True) + c.detach()
    wanted = prismm.matmul(x.T.contiguous(), 2.0 * y, reproducible=True)
    for one, other in found:
        judge.assert_same_bits(one, wanted.cpu().numpy())
        judge.assert_same_bits(other, found[0][1])
    assert sum(row.count for row in record.rows) == 10 and {row.backward for row in record.rows} == {True, False}


def _number_added(a, b):
    """a @ b + 2, the number on a CPU; None where torch refuses it."""
    try:
        return torch.addmm(torch.tensor(2.0), a, b)
    except RuntimeError:
        return None


def test_what_torch_refuses_stays_refused(seed):
    a, b, c = drawn(seed, (8, 8), (8, 8), (8, 8), kind=torch.float32)
    with torch.no_grad(), prismm.emulate() as record:
        for _ in range(3):
            torch.addmm(c, a, b)
        for wrong in ((c, a, b.double()), (c.double(), a, b), (c.cpu(), a, b), (c[:, :5], a, b), (c, a, b.cpu())):
            with pytest.raises(RuntimeError):
                torch.addmm(*wrong)
        # A number that lies on a CPU is taken by some versions of torch.
        found = _number_added(a, b)
    wanted = _number_added(a, b)
    assert (found is None) == (wanted is None) and (found is None or (found - wanted).abs().max() < 1e-5)
    assert sum(row.count for row in record.rows if row.operator == "addmm") >= 3


def test_autocast_and_graphs(seed):
    a, b = drawn(seed, (64, 64), (64, 64), kind=torch.float32)
    with torch.no_grad(), prismm.emulate() as record:
        for _ in range(3):
            wanted = torch.mm(a, b)
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.mm(a, b).dtype is torch.bfloat16
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = torch.mm(a, b)
        graph.replay()
    judge.assert_same_bits(found.cpu().numpy(), wanted.cpu().numpy())
    assert {row.dtype for row in record.rows} == {"float32", "bfloat16"}
