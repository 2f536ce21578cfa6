"""Sums over several axes of tensors on a GPU: a CPU's bits where they are promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm
from tests.judge import DTYPES, assert_each, assert_same_bits

pytestmark = pytest.mark.gpu
TARGETS = [{"accuracy": "correctly-rounded"}, {"reproducible": True}]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_a_cpu(dtype, rng):
    def drawn(*shape):
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)
        return (x + (1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0)).astype(dtype)

    a, b = drawn(4, 5, 6), drawn(6, 5, 3)
    x, y = (torch.from_numpy(each).cuda() for each in (a, b))

    def check(keywords):
        for found, wanted in (
            (prismm.einsum("ijk,kjl->il", x, y, **keywords), prismm.einsum("ijk,kjl->il", a, b, **keywords)),
            (prismm.einsum("ijk,kjl->jil", x, y, **keywords), prismm.einsum("ijk,kjl->jil", a, b, **keywords)),
            (
                prismm.tensordot(x, y, axes=([2, 1], [0, 1]), **keywords),
                prismm.tensordot(a, b, axes=([2, 1], [0, 1]), **keywords),
            ),
            (prismm.vecdot(x[:, :, 1], x[:, :, 2], **keywords), prismm.vecdot(a[:, :, 1], a[:, :, 2], **keywords)),
        ):
            assert found.is_cuda
            assert_same_bits(found.cpu().numpy(), wanted)

    assert_each(check, TARGETS)
