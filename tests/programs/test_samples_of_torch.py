"""PyTorch's own samples of its operators, forward and backward, within a block: what ends in products has the values
that it has without one.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import prismm

SAMPLES, ROUNDS = 10, 2
"""Samples of an operator; how often each runs, so that products of a known layout are among them."""

RANDOM = (
    "empty", "rand", "normal", "bernoulli", "dropout", "multinomial", "uniform", "exponential", "cauchy", "geometric",
    "rrelu", "fractional", "lowrank",
)  # fmt: skip
"""Parts of the names of operators whose results are random, or are no values yet."""

OF_A_BASIS = {"linalg.eig", "linalg.eigh", "linalg.eigvals", "linalg.eigvalsh", "linalg.svd", "svd", "geqrf",
              "linalg.qr", "qr"}  # fmt: skip
"""Operators whose results are one basis of many."""

TOLERANCES = {torch.float32: 1e-3, torch.complex128: 1e-8}


def gradients(output: Any, inputs: list[torch.Tensor]) -> list[Any]:
    """Of the inputs, for the same random gradient of the output each time."""
    parts = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not parts:
        return []
    torch.manual_seed(3)
    weighted = [x * torch.randn_like(x) for x in parts]
    total = sum((torch.view_as_real(x) if x.is_complex() else x).sum() for x in weighted)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))  # type: ignore[call-overload]


def alike(x: Any, y: Any, tolerance: float) -> bool:
    """Whether two results agree, relative to the largest entry."""
    if x is None or y is None:
        return x is y
    if (x.dtype, x.shape, x.layout) != (y.dtype, y.shape, y.layout):
        return False
    if x.layout is not torch.strided:
        x, y = x.to_dense(), y.to_dense()
    if not (x.is_floating_point() or x.is_complex()):
        return bool((x == y).all())
    size = float(x.abs().max()) if x.numel() and bool(x.isfinite().all()) else 1.0
    return torch.allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, size), equal_nan=True)


def results(operator: Any, sample: Any, inputs: list[torch.Tensor]) -> list[Any]:
    """Tensors of the output, then gradients."""
    torch.manual_seed(0)
    output = operator(sample.input, *sample.args, **sample.kwargs)
    tensors = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
    return tensors + (gradients(output, inputs) if inputs else [])


def samples_of(operator: Any, dtype: torch.dtype, derived: bool) -> list[Any]:
    """Some of torch's; none of an operator that this machine lacks."""
    try:
        return list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=derived), SAMPLES))
    except Exception:
        return []


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["native", "correctly-rounded"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_operators_have_the_values_that_they_have_without_a_block(dtype: torch.dtype, recipe: str) -> None:
    pytest.importorskip("expecttest")  # torch's samples import it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        wrong, compared, products, left_out = [], 0, 0, 0
        for operator in op_db:
            if dtype not in operator.dtypes or operator.name in OF_A_BASIS or any(x in operator.name for x in RANDOM):
                continue
            derived = operator.supports_autograd and dtype in operator.backward_dtypes
            for sample in samples_of(operator, dtype, derived):
                leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
                inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
                try:
                    expected = results(operator, sample, inputs)
                except Exception:
                    left_out += 1  # torch itself cannot do this one here
                    continue
                with prismm.emulate(recipe) as record:
                    for _ in range(ROUNDS):
                        found = results(operator, sample, inputs)
                products += sum(row.count for row in record.rows)
                compared += 1
                if len(found) != len(expected) or not all(
                    alike(x, y, TOLERANCES[dtype]) for x, y in zip(expected, found, strict=True)
                ):
                    wrong.append((operator.name, operator.variant_test_name, str(sample.kwargs)[:80]))
    assert not wrong, wrong
    assert compared > 2000 and products > 1000 and left_out < 500, (compared, products, left_out)
