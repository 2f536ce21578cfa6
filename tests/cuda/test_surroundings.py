"""On a GPU: degenerate shapes with factors of 0, results for other libraries, and advice for what is no array."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import DTypeError, OperandError
from tests.judge import CORRECT, assert_same_bits

pytestmark = pytest.mark.gpu

SHAPES = [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((0,), (0,)), ((0,), (0, 4)), ((2, 0), (0,)), ((2, 0), (0, 4)), ((5, 2, 0), (0,)),
    ((0, 3), (3, 4)), ((3,), (3, 0)), ((0, 3), (3,)), ((0, 2, 3), (3,)), ((0, 2, 0), (0, 0, 4)),
]  # fmt: skip
FACTORS = [(0, 0), (0, 2), (1, 0), (1, 2), (3, 0), (-2, 3)]


@pytest.mark.parametrize("keywords", [{}, CORRECT], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_every_shape_and_factor(dtype, keywords):
    rng = np.random.default_rng(3)
    for (left, right), (alpha, beta) in product(SHAPES, FACTORS):
        a, b = rng.integers(1, 5, left).astype(dtype), rng.integers(1, 5, right).astype(dtype)
        ab = np.asarray(a @ b)
        c = rng.integers(1, 5, ab.shape).astype(dtype)
        total = np.asarray(alpha * ab + beta * c).astype(ab.dtype)
        x, y, z = (torch.from_numpy(np.asarray(v)).cuda() for v in (a, b, c))
        note = f"{left} {right} {alpha} {beta}"
        assert_same_bits(prismm.matmul(x, y, **keywords).cpu().numpy(), ab, note)
        assert_same_bits(prismm.gemm(x, y, z, alpha=alpha, beta=beta, **keywords).cpu().numpy(), total, note)


class OnDevice:
    """An array of another library on the GPU, which holds no double precision."""

    def __init__(self, x: torch.Tensor) -> None:
        self.tensor = x

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return OnDevice

    @staticmethod
    def from_dlpack(x: Any) -> OnDevice:
        tensor = torch.utils.dlpack.from_dlpack(x)
        return OnDevice(tensor.float() if tensor.dtype is torch.float64 else tensor)


def test_a_result_is_never_made_narrower_on_its_way_back():
    a = torch.tensor([[2**24 + 1]]).cuda()
    b = torch.ones_like(a)
    for keywords in ({}, CORRECT, {"reproducible": True}):
        for call in (prismm.matmul, prismm.gemm, prismm.explain):
            with pytest.raises(DTypeError, match="product is float64, and OnDevice would make float32 of it"):
                call(OnDevice(a), OnDevice(b), **keywords)
        c = prismm.matmul(OnDevice(a), OnDevice(b), out_dtype="float32", **keywords)
        assert isinstance(c, OnDevice) and c.tensor.dtype is torch.float32 and c.tensor.item() == 2.0**24
        assert prismm.matmul(a, b, **keywords).item() == 2.0**24 + 1


def test_advice_for_what_is_no_array():
    sparse = pytest.importorskip("scipy.sparse")
    x = torch.eye(3, dtype=torch.float64).cuda()
    with pytest.raises(OperandError, match=r"b is a csr_matrix.*\(b\.toarray\(\) makes one\)"):
        prismm.matmul(x, sparse.csr_matrix(np.eye(3)))
    with pytest.raises(OperandError, match=r"one operand is on a GPU, b is a ndarray"):
        prismm.matmul(x, np.eye(3))
