"""Checks of tensors on a GPU: what a check on a CPU says, bit for bit, of a product that the GPU made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm
from prismm.testing import HOSTILE, SPECIAL
from tests.checking.test_check import verify
from tests.judge import DTYPES, assert_each, assert_same_bits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
def test_checks_are_those_of_a_cpu(dtype, seed):
    def check(name):
        a, b = {**HOSTILE, **SPECIAL}[name](9, 40, 7, seed, np.dtype(dtype))
        x, y = (torch.from_numpy(np.ascontiguousarray(z)).cuda() for z in (a, b))
        made = {"cuBLAS": x @ y, "ours": prismm.matmul(x, y, accuracy="correctly-rounded")}
        for which, c in made.items():
            found, wanted = prismm.check(x, y, c), prismm.check(a, b, c.cpu().numpy())
            assert found.correctly_rounded == wanted.correctly_rounded, (name, which)
            assert found.special == wanted.special and found.wrong_special == wanted.wrong_special
            assert_same_bits(found.correct, wanted.correct)
            assert which == "cuBLAS" or found.correct.all()
            if name in HOSTILE:
                verify(a, b, c.cpu().numpy())

    assert_each(check, [*HOSTILE, *SPECIAL])


def test_a_large_product(rng):
    x, y = (torch.from_numpy(rng.standard_normal((700, 700))).cuda() for _ in range(2))
    c = prismm.matmul(x, y, accuracy="correctly-rounded")
    assert prismm.check(x, y, c).correct.all()
    c[3, 5] = torch.nextafter(c[3, 5], c.new_tensor(np.inf))
    found = prismm.check(x, y, c)
    assert np.argwhere(~found.correct).tolist() == [[3, 5]]
