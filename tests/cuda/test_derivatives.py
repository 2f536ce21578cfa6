"""Derivatives, batches and autocast on a GPU: exact integers, and the bits of calls outside of autocast."""

import pytest

import prismm
from prismm.errors import OperandError
from prismm.programs import operators

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.fixture
def xw():
    kind = {"dtype": torch.float64, "device": "cuda"}
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]], **kind), torch.tensor([[1.0], [2.0]], **kind)


@pytest.mark.parametrize("recipe", ["native", "correctly-rounded", "native reproducible", "1e-12"])
def test_second_derivatives(recipe, xw):
    x, w = xw
    zero = torch.zeros(1, dtype=torch.float64, device="cuda")
    for product in (lambda v: operators.matmul(x, v, recipe), lambda v: operators.gemm(zero, x, v, recipe)):

        def f(v, product=product):
            return product(v).square().sum()  # fmt: skip

        for how in (
            torch.func.hessian,
            lambda f: torch.func.jacrev(torch.func.jacrev(f)),
            lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
        ):
            assert how(f)(w).flatten().tolist() == [20.0, 28.0, 28.0, 40.0]
        assert torch.func.grad(lambda v, f=f: torch.func.grad(f)(v).sum())(w).flatten().tolist() == [48.0, 68.0]
        assert torch.func.jvp(f, (w,), (w,))[1].item() == 2 * f(w).item()


def test_calls_that_were_made_before_are_not_repeated_inside_transforms(xw):
    """Tensors at known addresses, of known shapes: with a tangent, within a batch, as constants of a transform."""
    x, w = xw
    expected = prismm.matmul(x, w)
    for _ in range(6):
        prismm.matmul(x, w)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert torch.autograd.forward_ad.unpack_dual(prismm.matmul(dual, w)).tangent.equal(expected)
    assert torch.func.vmap(lambda a: prismm.matmul(a, w))(torch.stack([x, x])).equal(torch.stack([expected] * 2))
    assert torch.func.grad(lambda v: prismm.matmul(x, v).sum())(w).equal(x.sum(0)[:, None])
    inside = torch.func.grad(lambda v: v.sum() * prismm.matmul(x, w, full_output=True)[0].sum())(w)
    assert inside.equal(torch.full_like(w, expected.sum().item()))
    for call in (
        lambda a: prismm.gemm(a, w), lambda a: prismm.prepare(a), lambda a: prismm.explain(a, w),
        lambda a: prismm.matmul(a, w, out=torch.empty_like(w)), lambda a: prismm.matmul(a, prismm.prepare(w)),
    ):  # fmt: skip
        with pytest.raises(OperandError, match="is inside a transform of torch"):
            torch.func.vmap(call)(torch.stack([x, x]))


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.float16], ids=str)
def test_autocast_changes_nothing(low, kind):
    generator = torch.Generator("cuda").manual_seed(7)
    c, a, b = (torch.randn(60, 60, device="cuda", generator=generator).to(kind) for _ in range(3))

    def derivatives(recipe):
        x, y = a.expand(3, 60, 60).clone().requires_grad_(), b.clone().requires_grad_()
        value = operators.matmul(x, y, recipe)
        value.float().square().sum().backward()
        return value.detach(), x.grad, y.grad, operators.gemm(c, a, b, recipe, 0.5, -2)

    def calls(keywords):
        return prismm.matmul(a, b, **keywords), prismm.gemm(a, b, c, beta=2.0, **keywords), prismm.matmul(
            a, prismm.prepare(b, **keywords)
        )  # fmt: skip

    forms = [
        (calls, keywords)
        for keywords in ({}, {"accuracy": "correctly-rounded"}, {"reproducible": True}, {"accuracy": 1e-6})
    ] + [(derivatives, recipe) for recipe in ("native", "correctly-rounded", "native reproducible")]
    for f, asked in forms:
        expected = f(asked)
        with torch.autocast("cuda", dtype=low):
            found = f(asked)
            assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == low
        for x, y in zip(found, expected, strict=True):
            assert x.dtype == y.dtype and x.equal(y), asked
