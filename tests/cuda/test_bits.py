"""The same bits on every device: results on record, made by a CPU, checked on a CPU and on a GPU."""

import numpy as np
import pytest

import prismm
from tests.cuda.harness.cases import CASES, KEYWORDS, digest, key, operands, recorded


def test_the_record_is_complete():
    assert sorted(recorded()) == sorted(key(*case) for case in CASES)


@pytest.mark.covering(("dtype", "name"))
@pytest.mark.parametrize(("dtype", "name", "target"), CASES)
def test_a_cpu_gives_the_bits_on_record(dtype, name, target):
    a, b = operands(dtype, name)
    assert digest(prismm.matmul(a, b, **KEYWORDS[dtype][target])) == recorded()[key(dtype, name, target)]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(("dtype", "name", "target"), CASES)
def test_a_gpu_gives_the_bits_on_record(dtype, name, target, layout):
    import torch

    a, b = (torch.from_numpy(x).cuda() for x in operands(dtype, name))
    if layout == "columns":
        a, b = a.T.contiguous().T, b.T.contiguous().T
    c = prismm.matmul(a, b, **KEYWORDS[dtype][target])
    assert c.is_cuda and c.dtype == a.dtype
    assert digest(c.cpu().numpy()) == recorded()[key(dtype, name, target)]


@pytest.mark.gpu
def test_blocks_batches_and_neighbours_change_no_bit(rng):
    import torch

    a, b = torch.from_numpy(rng.standard_normal((3, 200, 333))), torch.from_numpy(rng.standard_normal((333, 190)))
    a, b = a.cuda(), b.cuda()
    whole = prismm.matmul(a, b, reproducible=True)
    for i in range(3):
        assert torch.equal(whole[i], prismm.matmul(a[i], b, reproducible=True))
        assert torch.equal(whole[i, 7:20], prismm.matmul(a[i, 7:20], b, reproducible=True))
    pairs = prismm.matmul(a, b.expand(3, 333, 190).contiguous(), reproducible=True)
    assert torch.equal(whole, pairs)
    order = torch.randperm(333, generator=torch.Generator().manual_seed(1))
    assert torch.equal(whole[0], prismm.matmul(a[0][:, order.cuda()], b[order.cuda()], reproducible=True))
    scaled = prismm.matmul(a[0] * 2.0**300, b * 2.0**-200, reproducible=True)
    assert torch.equal(whole[0] * 2.0**100, scaled)
    assert np.isfinite(scaled.cpu().numpy()).all()
