"""torch.autocast: no result, gradient or bound of prismm depends on it, and its state stays the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.programs import operators
from prismm.programs.gradients import whole_batch
from prismm.testing import exact_product
from tests.judge import assert_same_bits

LOW = (torch.float16, torch.bfloat16)
KEYWORDS: list[dict[str, Any]] = [
    {},
    {"accuracy": "fast"},
    {"accuracy": 1e-3},
    {"accuracy": 1e-6},
    {"accuracy": 1e-12},
    {"accuracy": "correctly-rounded"},
    {"reproducible": True},
    {"accuracy": "correctly-rounded", "engine": "cpu:int8-7bit"},
    {"out_dtype": "float64"},
    {"scheme": prismm.Native()},
    {"scheme": prismm.Native(compute="float64")},
    {"scheme": prismm.Residues(moduli=9)},
    {"scheme": prismm.Residues(moduli=9), "engine": "cpu:int8-7bit"},
    {"scheme": prismm.Words.tf32(products=3)},
    {"scheme": prismm.ScaledHalf()},
    {"scheme": prismm.TileInt8()},
    {"scheme": prismm.Slices("int8", slices=4)},
]


def draws(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.fixture(params=LOW, ids=str)
def autocast(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """A block of autocast in which the state of before is there after each call."""
    yield lambda: torch.autocast("cpu", dtype=request.param)


def same(f: Callable[[], Any], autocast: Callable[[], Any]) -> None:
    """What f gives is the same, type and bits, within the block; whose state, cache and thread it leaves alone."""
    expected = f()
    with autocast():
        before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        found = f()
        assert before == (
            torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        )  # fmt: skip
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == before[1], "torch's own products are still the caller's"
    for x, y in zip(*((z if isinstance(z, tuple) else (z,)) for z in (found, expected)), strict=True):
        assert type(x) is type(y) and x.dtype == y.dtype
        assert_same_bits(x.detach().numpy(), y.detach().numpy())


@pytest.mark.covering("keywords")
@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
@pytest.mark.parametrize("shapes", [((3, 3), (3, 3)), ((50, 60), (60, 40)), ((4, 7, 6), (4, 6, 5))], ids=str)
def test_matmul(keywords, shapes, autocast, seed):
    a, b = draws(seed, *shapes)
    same(lambda: prismm.matmul(a, b, **keywords), autocast)
    same(lambda: prismm.matmul(a, b, full_output=True, **keywords)[0], autocast)


def test_reports_bound_the_errors(autocast, seed):
    a, b = draws(seed, (50, 60), (60, 40))
    with autocast():
        c, report = prismm.matmul(a, b, full_output=True)
    assert c.dtype == torch.float32
    assert exact_product(a.numpy(), b.numpy()).within(c.numpy(), report.bounds).all()


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)], ids=str)
@pytest.mark.parametrize("shapes", [((60,), (60,)), ((5, 60), (60,)), ((300, 700), (700, 300)), ((3, 1030), (1030, 2))])
def test_shapes_and_types(shapes, kinds, autocast, seed):
    a, b = (x.to(kind) for x, kind in zip(draws(seed, *shapes), kinds, strict=True))
    same(lambda: torch.as_tensor(prismm.matmul(a, b)), autocast)
    same(lambda: torch.as_tensor(prismm.matmul(a.double(), b.double())), autocast)
    same(lambda: torch.as_tensor(prismm.matmul(a.to(torch.complex64), b.float())), autocast)
    same(lambda: torch.from_numpy(np.asarray(prismm.matmul(a.float().numpy(), b.float().numpy()))), autocast)


def test_gemm_and_prepared(autocast, seed):
    a, b, c = draws(seed, (20, 60), (60, 40), (20, 40))
    for keywords in ({}, {"accuracy": "correctly-rounded"}, {"reproducible": True}, {"accuracy": 1e-5}):
        for alpha, beta in ((1, 1), (0.5, -2), (3, 0)):
            same(lambda k=keywords, x=alpha, y=beta: prismm.gemm(a, b, c, alpha=x, beta=y, **k), autocast)
        same(lambda k=keywords: prismm.matmul(a, prismm.prepare(b, **k)), autocast)
        same(lambda k=keywords: prismm.matmul(prismm.prepare(a, side="left", **k), b), autocast)
    out = torch.empty(20, 40)
    same(lambda: prismm.matmul(a, b, out=out).clone(), autocast)


@pytest.mark.covering("recipe")
@pytest.mark.parametrize("recipe", ["native", "1e-6", "correctly-rounded", "native reproducible", "scheme=tile-int8:4"])
@pytest.mark.parametrize("order", [3, 60])
def test_operators_and_their_derivatives(recipe, order, autocast, seed):
    c, a, b, g = draws(seed, *[(order, order)] * 4)

    def derivatives(f: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wanting = [x.clone().requires_grad_() for x in inputs]
        value = f(*wanting)
        first = torch.autograd.grad(value, wanting, g, create_graph=True)
        return value, *first, *torch.autograd.grad([x.square().sum() for x in first[-2:]], wanting[-2:])

    def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return operators.matmul(a, b, recipe)

    def gemm(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return operators.gemm(c, a, b, recipe, 0.5, -2)

    same(lambda: (matmul(a, b), gemm(c, a, b)), autocast)
    same(lambda: derivatives(matmul, a, b), autocast)
    same(lambda: derivatives(gemm, c, a, b), autocast)
    same(lambda: torch.func.jvp(matmul, (a, b), (b, c)), autocast)
    same(lambda: torch.func.vmap(matmul)(torch.stack([a, c]), torch.stack([b, g])), autocast)


def test_public_derivatives(autocast, seed):
    a, b = draws(seed, (5, 60), (60, 3))

    def f() -> tuple[torch.Tensor, ...]:
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        value = prismm.matmul(x, y)
        value.sum().backward()
        return value, x.grad, y.grad

    same(f, autocast)


def test_emulated_products_are_of_the_programs_operands(autocast, seed):
    """Under autocast a program multiplies narrow operands: they are what a policy multiplies, exactly as without it."""
    a, b = draws(seed, (5, 60), (60, 3))
    with autocast():
        kind = torch.get_autocast_dtype("cpu")
        with prismm.emulate("correctly-rounded"):
            found = a @ b
            wide = a.double() @ b.double()
    assert found.dtype == kind
    expected = prismm.matmul(a.to(kind), b.to(kind), accuracy="correctly-rounded").to(kind)
    assert torch.equal(found, expected)
    assert torch.equal(wide, prismm.matmul(a.double(), b.double(), accuracy="correctly-rounded"))


def test_calls_within_emulation(autocast, seed):
    a, b = draws(seed, (5, 60), (60, 3))

    def f() -> tuple[torch.Tensor, ...]:
        with prismm.emulate("correctly-rounded"):
            return prismm.matmul(a, b), operators.matmul(a, b), prismm.gemm(a, b)

    same(f, autocast)


def test_gradients_of_a_whole_batch(autocast, seed):
    (x,) = draws(seed, (8, 5))
    torch.manual_seed(seed)
    layer = torch.nn.Linear(5, 3)

    def f(size: int) -> torch.Tensor:
        layer.zero_grad()
        with whole_batch(layer, "correctly-rounded"):
            for part in x.split(size):
                layer(part).sum().backward()
        return layer.weight.grad.clone()

    ones = torch.ones(8, 3)
    expected = prismm.matmul(ones.T, x, accuracy="correctly-rounded")
    with autocast():
        assert torch.equal(f(8), expected) and torch.equal(f(3), expected)
    layer.zero_grad()
    with whole_batch(layer, "correctly-rounded"), autocast():  # which is over when the gradients are made
        layer(x).sum().backward()
    assert torch.equal(layer.weight.grad, expected)


def test_nested_blocks(autocast, seed):
    a, b = draws(seed, (5, 6), (6, 3))
    expected = prismm.matmul(a, b)
    with autocast(), torch.autocast("cpu", enabled=False):
        assert torch.equal(prismm.matmul(a, b), expected) and (a @ b).dtype == torch.float32
        with autocast():
            assert torch.equal(prismm.matmul(a, b), expected)
        assert (a @ b).dtype == torch.float32
