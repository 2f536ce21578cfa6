"""Training: the same bits however the batch is cut and however many threads there are."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import ArgumentError, PrismmError
from prismm.programs import whole_batch
from prismm.testing import exact_product
from tests.judge import assert_same_bits

from .models import branches

CUTS = [(32, 1), (1, 1), (4, 1), (32, 2), (1, 2), (5, 2)]


def mlp(seed: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second, third = torch.nn.Linear(12, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), third)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model, torch.randn(32, 12, generator=generator), torch.randn(32, 4, generator=generator)


def trained(seed: int, size: int, threads: int, monkeypatch: pytest.MonkeyPatch, steps: int = 2) -> torch.Tensor:
    """Weights after some steps of SGD with the batch of 32 in parts of `size`."""
    monkeypatch.setenv("PRISMM_THREADS", str(threads))
    model, x, y = mlp(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with prismm.emulate(reproducible=True) as record:
            for _ in range(steps):
                optimizer.zero_grad()
                with whole_batch(model) as gathered:
                    for a, b in zip(x.split(size), y.split(size), strict=True):
                        (model(a) - b).square().sum().backward()
                optimizer.step()
    finally:
        torch.set_num_threads(before)
    assert gathered.others == []
    # The products that make the gradients at the end are not the program's.
    assert sum(row.count for row in record.rows) == steps * -(-32 // size) * 8
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.slow
def test_the_same_bits_in_any_cut_and_with_any_threads(seed, monkeypatch):
    expected = trained(seed, 32, 1, monkeypatch)
    for size, threads in CUTS[1:]:
        assert torch.equal(trained(seed, size, threads, monkeypatch), expected), (size, threads)


def test_each_samples_results_do_not_depend_on_the_batch(seed):
    """Forward, and the gradients that reach the inputs: products whose inner dimension is not the batch."""
    model, x = branches(seed)

    def run(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = part.clone().requires_grad_()
        with prismm.emulate(reproducible=True):
            y = model(part)
            (gradient,) = torch.autograd.grad(y.square().sum(), part)
        return y.detach(), gradient

    whole = run(x)
    parts = [run(part) for part in x.split(1)]
    for i in (0, 1):
        assert torch.equal(torch.cat([part[i] for part in parts]), whole[i])


def test_ordinary_accumulation_does_differ(seed):
    """Why `whole_batch` is there: sums of rounded gradients depend on the cut, whatever the products' accuracy."""
    model, x, y = mlp(seed)
    found = []
    for size in (32, 1):
        model.zero_grad()
        with prismm.emulate("correctly-rounded"):
            for a, b in zip(x.split(size), y.split(size), strict=True):
                (model(a) - b).square().sum().backward()
        found.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
    assert not torch.equal(*found)


def test_the_gradient_is_that_of_the_whole_batch(seed):
    layer = torch.nn.Linear(6, 3)
    x, g = torch.randn(10, 6), torch.randn(10, 3)
    layer.weight.grad, layer.bias.grad = torch.ones(3, 6), torch.ones(3)
    with whole_batch(layer, "correctly-rounded"):
        for a, b in zip(x.split(3), g.split(3), strict=True):
            layer(a).backward(b)
    weight = exact_product(g.numpy().T, x.numpy()).rounded(np.float32)
    bias = exact_product(g.numpy().T, np.ones((10, 1), np.float32)).rounded(np.float32)[:, 0]
    assert_same_bits(layer.weight.grad.numpy(), 1 + weight)
    assert_same_bits(layer.bias.grad.numpy(), 1 + bias)


@pytest.mark.parametrize(("ins", "outs"), [(0, 3), (3, 0), (0, 0), (3, 2)])
@pytest.mark.parametrize("rows", [(), (2,), (0,), (2, 0)], ids=str)
def test_layers_and_batches_without_entries(ins, outs, rows):
    with warnings.catch_warnings():  # torch has nothing to fill a layer of no features with, and says so
        warnings.simplefilter("ignore", UserWarning)
        layer = torch.nn.Linear(ins, outs)
    with whole_batch(layer):
        layer(torch.ones(*rows, ins)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((outs, ins), float(math.prod(rows))))
    assert torch.equal(layer.bias.grad, torch.full((outs,), float(math.prod(rows))))


def test_what_is_no_linear_layer_is_named_and_left(seed):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    x = torch.randn(6, 4)
    model(x).square().sum().backward()
    expected = model[1].weight.grad.clone()
    model.zero_grad()
    with whole_batch(model) as gathered:
        model(x).square().sum().backward()
    assert gathered.others == ["1.weight", "1.bias"]
    assert torch.equal(model[1].weight.grad, expected)


def test_failures_leave_torchs_gradients(seed):
    layer = torch.nn.Linear(4, 4)
    x = torch.randn(6, 4)
    layer(x).sum().backward()
    once = layer.weight.grad.clone()
    with pytest.raises(PrismmError, match="used outside its linear layer"), whole_batch(layer):
        (layer(x).sum() + layer.weight.sum() * 100).backward()
    torch.testing.assert_close(layer.weight.grad, 2 * once + 100)
    with pytest.raises(ZeroDivisionError), whole_batch(layer):
        layer(x).sum().backward()
        _ = 1 / 0
    torch.testing.assert_close(layer.weight.grad, 3 * once + 100)
    assert not layer._forward_hooks
    with pytest.raises(ArgumentError, match=r"no torch\.nn\.Linear"), whole_batch(torch.nn.ReLU()):
        pass
    with pytest.raises(ArgumentError, match="off"), whole_batch(layer, "off"):
        pass
