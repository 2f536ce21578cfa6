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


def test_what_torch_refuses_stays_refused(seed):
    a, b, c = drawn(seed, (8, 8), (8, 8), (8, 8), kind=torch.float32)
    with torch.no_grad(), prismm.emulate() as record:
        for _ in range(3):
            torch.addmm(c, a, b)
        for wrong in ((c, a, b.double()), (c.double(), a, b), (c.cpu(), a, b), (c[:, :5], a, b), (c, a, b.cpu())):
            with pytest.raises(RuntimeError):
                torch.addmm(*wrong)
        number = torch.addmm(torch.tensor(2.0), a, b)
    assert (number - torch.mm(a, b) - 2.0).abs().max() < 1e-5
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
