"""Where torch looks instead of multiplying: fake tensors, graphs, exported programs, subclasses, torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import prismm
from prismm.errors import AccuracyError, DTypeError, OperandError, ShapeError
from prismm.programs import Recipe, operators

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
W = torch.tensor([[1.0], [2.0]])
XW = torch.tensor([[5.0], [11.0]])


def product(x: torch.Tensor, w: torch.Tensor = W) -> torch.Tensor:
    return prismm.matmul(x, w, accuracy="correctly-rounded")


def test_fake_tensors_have_the_shape_and_type_of_the_product():
    with FakeTensorMode():
        a, b = torch.empty(2, 3), torch.empty(5, 3, 4, dtype=torch.float16)
        found = prismm.matmul(a, b, scheme=prismm.Residues(moduli=9))
        assert type(found) is FakeTensor and found.shape == (5, 2, 4) and found.dtype == torch.float32
        assert prismm.matmul(a, a[0], out_dtype="float64").dtype == torch.float64
        assert operators.gemm(a, a[:, :2], a).shape == (2, 3)
        for call, error, words in (
            (lambda: prismm.matmul(a, a), ShapeError, r"\(2, 3\)"),
            (lambda: prismm.matmul(a, a.T > 0), DTypeError, "bool"),
            (lambda: prismm.matmul(a, a.T, accuracy="exact"), AccuracyError, "exact"),
            (lambda: prismm.matmul(a, a.T, full_output=True), OperandError, "a is a FakeTensor, and full_output="),
            (lambda: prismm.gemm(a, a.T), OperandError, r"a is a FakeTensor.*programs\.operators\.gemm"),
            (lambda: prismm.explain(a, a.T), OperandError, "a is a FakeTensor"),
            (lambda: prismm.prepare(a), OperandError, "x is a FakeTensor"),
            (lambda: prismm.matmul(X, W), OperandError, "a belongs to a trace, .*convert all Tensors to FakeTensors"),
        ):
            with pytest.raises(error, match=words):
                call()


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_graphs_hold_the_product_and_no_constant(mode):
    graph = make_fx(lambda x, w: product(x, w), tracing_mode=mode)(X, W)
    assert "prismm.matmul" in graph.code
    assert torch.equal(graph(3 * X, W), 3 * XW)
    graph = make_fx(torch.func.grad(lambda w: product(X, w).square().sum()))(W)
    assert graph(2 * W).flatten().tolist() == [152.0, 216.0]


def test_meta_tensors():
    x = torch.empty(2, 3, device="meta")
    assert operators.matmul(x, x.T).shape == (2, 2)
    assert prismm.matmul(x.requires_grad_(), x.T).shape == (2, 2)
    with pytest.raises(OperandError, match=r"a is on meta, which holds no entries.*operators\.matmul"):
        prismm.matmul(x.detach(), x.detach().T)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(x)


def test_exported_and_scripted_programs():
    exported = torch.export.export(Model(), (X,), strict=False)
    assert "prismm.matmul" in exported.graph_module.code and torch.equal(exported.module()(3 * X), 3 * XW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit itself
        traced = torch.jit.trace(product, (X,))
    assert torch.equal(traced(3 * X), 3 * XW)


def test_subclasses():
    pair = TwoTensor(X, 3 * X)
    found = product(pair)
    assert type(found) is TwoTensor and torch.equal(found.a, XW) and torch.equal(found.b, 3 * XW)
    for call in (lambda: prismm.gemm(pair, W), lambda: prismm.explain(pair, W), lambda: prismm.prepare(pair)):
        with pytest.raises(OperandError, match="is a TwoTensor, which what is asked for cannot follow"):
            call()
    with pytest.raises(OperandError, match="a is a TwoTensor, and out= cannot follow; leave it out"):
        prismm.matmul(pair, W, out=torch.empty(2, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a prototype
        masked = torch.masked.masked_tensor(X, X > 0)
    with (
        warnings.catch_warnings(),
        pytest.raises(OperandError, match=r"a is a MaskedTensor, which does not take torch\.ops\.prismm\.matmul"),
    ):
        warnings.simplefilter("ignore")  # MaskedTensor's, of operators that it lacks
        product(masked)

    class Plain(torch.Tensor):
        """Of a name alone."""

    assert torch.equal(product(X.as_subclass(Plain)), XW)
    x = X.clone().as_subclass(Plain).requires_grad_()
    product(x).sum().backward()
    assert x.grad.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_what_is_not_dense_says_so_with_a_gradient_too():
    with pytest.raises(OperandError, match=r"a has layout torch.sparse_coo; pass a.to_dense\(\)"):
        product(X.to_sparse().requires_grad_())
    nested = torch.nested.nested_tensor([X, X], layout=torch.jagged, requires_grad=True)
    with pytest.raises(OperandError, match=r"a is a nested tensor; pass torch\.nested\.to_padded_tensor"):
        product(nested)


@pytest.fixture
def compiled() -> Iterator[Callable[..., Any]]:
    """torch.compile by a backend that compiles nothing; a graph of one piece unless told otherwise."""

    def make(f: Callable[..., Any], fullgraph: bool = True) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(f, fullgraph=fullgraph, backend="aot_eager")  # type: ignore[no-any-return]

    yield make
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_functions_hold_the_product(compiled):
    scheme, recipe = prismm.Residues(moduli=9), Recipe("correctly-rounded")
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(3, 40, generator=generator), torch.randn(40, 3, generator=generator)
    of_objects = (
        lambda a, b: prismm.matmul(a, b, scheme=scheme, threads=1),
        lambda a, b: operators.matmul(a, b, recipe),
    )
    if not operators._READS_DATACLASSES:
        assert torch.equal(compiled(of_objects[0], fullgraph=False)(a, b), of_objects[0](a, b))
        with pytest.raises(torch._dynamo.exc.Unsupported, match="cannot read a scheme"):
            compiled(of_objects[0])(a, b)
    for f in (
        lambda a, b: prismm.matmul(a, b, accuracy="correctly-rounded") + 1,
        lambda a, b: prismm.matmul(a, b, reproducible=True, out_dtype=torch.float64),
        *(of_objects if operators._READS_DATACLASSES else ()),
        lambda a, b: operators.gemm(a[:, :3], a, b, "correctly-rounded", alpha=2, beta=0.5),
        lambda a, b: torch.func.grad(lambda x: prismm.matmul(x, b, accuracy="correctly-rounded").sum())(a),
        lambda a, b: torch.func.vmap(lambda x: prismm.matmul(x, b, accuracy="correctly-rounded"))(a),
    ):
        assert torch.equal(compiled(f)(a, b), f(a, b))
    x = a.clone().requires_grad_()
    compiled(lambda a, b: prismm.matmul(a, b, accuracy="correctly-rounded"))(x, b).sum().backward()
    assert torch.equal(x.grad, prismm.matmul(torch.ones(3, 3), b.T, accuracy="correctly-rounded"))
    exported = torch.export.export(Model(), (X,), strict=True)
    assert torch.equal(exported.module()(3 * X), 3 * XW)


@pytest.mark.slow
def test_compiled_code_goes_around_what_is_no_operator(compiled):
    """The graph ends before it and goes on behind it; in one piece, torch's error gives prismm's reason."""
    a, b, out = torch.eye(3) * 0.1, torch.ones(3, 3) * 0.3, torch.empty(3, 3)
    made_inside = ((lambda a, b: prismm.matmul(a, b, scheme=prismm.Residues(moduli=9)) + 1, "make it outside"),)
    for f, words in (
        (lambda a, b: prismm.gemm(a, b, b, beta=2.0) + 1, "operators.gemm"),
        (lambda a, b: prismm.matmul(a, prismm.prepare(b, accuracy="correctly-rounded")) + 1, "prismm.prepare"),
        (lambda a, b: prismm.matmul(a, b, full_output=True)[0] + 1, "full_output= cannot follow"),
        (lambda a, b: prismm.matmul(a, b, out=out) + 1, "out= cannot follow"),
        *(made_inside if operators._READS_DATACLASSES else ()),
        (lambda a, b: b + prismm.explain(a, b).n, "prismm.explain"),
    ):
        assert torch.equal(compiled(f, fullgraph=False)(a, b), f(a, b))
        with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
            compiled(f)(a, b)
        assert words in str(caught.value)
    with pytest.raises(AccuracyError, match="unknown accuracy 'exact'"):
        compiled(lambda a, b: prismm.matmul(a, b, accuracy="exact"), fullgraph=False)(a, b)


@pytest.mark.slow
@pytest.mark.skipif(not operators._READS_DATACLASSES, reason="Dynamo of this PyTorch makes no dataclass")
def test_recipes_made_in_compiled_code_are_read_right(compiled):
    """Dynamo keeps the fields of what it makes elsewhere: read as they are, they would be those of the class."""
    a = torch.full((1, 3), 1.0) + 2.0**-20
    b = torch.tensor([[1.0], [2.0**-30], [-1.0]])

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return operators.matmul(a, b, Recipe("correctly-rounded"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Dynamo's, of the caches of a recipe that it takes apart
        assert torch.equal(compiled(f, fullgraph=False)(a, b), f(a, b))
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(f)(a, b)
