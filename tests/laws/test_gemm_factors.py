"""alpha and beta of gemm: taken exactly or refused, and never without the derivative that torch wants of them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import prismm
from prismm.errors import ArgumentError, OperandError
from tests import judge

ONE = np.eye(2)


def test_numbers_of_every_type_that_are_float64_are_taken():
    for factor in (
        2, True, 2**60, 2**53, 0.1, Fraction(3, 8), Decimal("0.625"), np.float32(0.1), np.float16(0.1), np.int64(2**62),
        np.longdouble(0.1), np.array(3.5), torch.tensor(0.25), torch.tensor(7), np.uint8(200), 3 + 0j,
        np.complex64(0.5), torch.tensor(1e-40), 2**1023,
    ):  # fmt: skip
        found = prismm.gemm(ONE, ONE, ONE, alpha=factor, beta=factor, accuracy="correctly-rounded")
        exact = Fraction(complex(factor).real) * 2
        wanted = float(exact) if exact < Fraction(2) ** 1024 else np.inf
        judge.assert_same_bits(found, np.diag([wanted, wanted]))


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_numbers_that_are_no_float64_are_refused(name):
    """A sum that is rounded once would be that of other factors."""
    factors = [
        2**60 + 1, -(2**53) - 1, Fraction(1, 3), Decimal("0.1"), np.int64(2**62 + 1), np.uint64(2**64 - 1),
        torch.tensor(2**62 + 1), np.array(2**53 + 1),
    ]  # fmt: skip
    if np.finfo(np.longdouble).nmant > 52:
        factors += [np.longdouble(1) / 3, np.clongdouble(1) / 3, np.array(np.longdouble(1) / 3)]
    for factor in factors:
        with pytest.raises(ArgumentError, match=rf"{name}=.*no float64 number; pass float\({name}\)"):
            prismm.gemm(ONE, ONE, ONE, **{name: factor})
    for factor in ("2", "1j", b"2", None, [2.0], np.ones(1), torch.zeros((), device="meta")):
        with pytest.raises(ArgumentError, match=rf"{name}=.*no number; pass a scalar"):
            prismm.gemm(ONE, ONE, ONE, **{name: factor})


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_factors_that_torch_follows_are_refused(name):
    """gemm is no function of its factors to torch: a gradient of one would be 0."""
    x = torch.eye(2, dtype=torch.float64)

    def summed(factor):
        return prismm.gemm(x, x, x, **{name: factor}).sum()

    factor = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    for call in (
        lambda: summed(factor),
        lambda: prismm.gemm(ONE, ONE, ONE, **{name: factor}),
        lambda: torch.func.grad(summed)(factor.detach()),
        lambda: torch.func.vmap(summed)(torch.ones(3, dtype=torch.float64)),
        lambda: torch.func.jvp(summed, (factor.detach(),), (factor.detach(),)),
    ):
        with pytest.raises(OperandError, match=f"{name} (requires grad|is inside a transform|has a tangent)"):
            call()
    assert float(summed(factor.detach())) == (4.0 if name == "alpha" else 6.0)
    with torch.no_grad():
        assert summed(factor) == summed(2.0)
