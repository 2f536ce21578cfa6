"""Matrices that stay on their device: the way of a tensor on a GPU, by tensors in main memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm.linalg
import prismm.testing
from prismm.core.accuracy import parse_target
from prismm.errors import ArgumentError
from prismm.linalg import inverse, matrices, rounding, systems
from prismm.linalg.expansions import Products
from prismm.linalg.operands import resident
from tests import judge
from tests.linalg import reference

DEVICE = torch.device("cpu")


def solved(a, b, accuracy):
    """(solution, report), as `solve` with a tensor."""
    target, source = parse_target(accuracy), resident(torch.from_numpy(np.ascontiguousarray(a)), "a")
    dtype = source.data.dtype
    found = systems._batch(
        source.data, b, dtype, lambda x, y: systems._one(source.tensor, y, dtype, target, source, False)
    )  # fmt: skip
    x, report = systems._answer(found, source, False, True, target, "a")
    return x.numpy(), report


def test_solutions_have_bounds_that_hold(rng):
    """Well-conditioned ones, triangular ones, and those that take inverses in main memory."""

    def check(case):
        kind, a = case
        a = a.astype(kind)
        b = rng.standard_normal((len(a), 2)).astype(kind)
        for accuracy in ("native", "correctly-rounded"):
            x, report = solved(a, b, accuracy)
            reference.assert_holds(reference.solution(a, b), x, report)
        assert report.correctly_rounded.all()
        x, _ = solved(a, b, "fast")
        assert x.shape == b.shape and x.dtype == kind

    systems_of = [rng.standard_normal((15, 15)), reference.hilbert(11), reference.of_condition(rng, 15, 1e14)]
    systems_of += [np.tril(rng.standard_normal((9, 9))) + 3 * np.eye(9), np.triu(np.ones((9, 9)))]
    judge.assert_each(check, [(kind, a) for kind in (np.float64, np.float32) for a in systems_of])


def test_the_large_products_stay(rng, monkeypatch):
    """Of a well-conditioned matrix nothing of its size comes back."""
    n = 60
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 1))
    source = resident(torch.from_numpy(a), "a")
    assert source.tensor.data_ptr() == source.source.data_ptr()
    monkeypatch.setattr(inverse, "host", lambda x: pytest.fail("a matrix comes back"))
    fetched = Products._fetched

    def noted(self, x, stays):
        assert stays or x.numel() == n
        return fetched(self, x, stays)

    monkeypatch.setattr(Products, "_fetched", noted)
    one = systems._one(source.tensor, b, np.dtype(np.float64), parse_target("native"), source, False)
    assert one[0].all() and isinstance(one[2].inverse.parts[0], torch.Tensor)
    assert one[2].inverse_norm == pytest.approx(np.abs(np.linalg.inv(a)).sum(axis=1).max())


def test_scaling_is_that_of_arrays(rng):
    """With rows and columns of any magnitude, where that is exact; of subnormals nothing is scaled."""

    def check(case):
        low, high = case
        a = rng.standard_normal((12, 12)) * 2.0 ** rng.integers(low, high, (12, 1)) * 2.0 ** rng.integers(low, high, 12)
        a[3], a[:, 5] = 0.0, 0.0
        b = rng.standard_normal((12, 2))
        wanted, right, exponents = matrices.scaling(a, b)
        found, other, those = matrices.scaling(torch.from_numpy(a), b)
        judge.assert_same_bits(matrices.host(found), wanted)
        judge.assert_same_bits(other, right)
        for x, y in zip(those, exponents, strict=True):
            assert (x == y).all()

    judge.assert_each(check, [(0, 1), (-3, 4), (-200, 200), (-540, -530)])


def test_parts_of_proofs(rng):
    products = Products(DEVICE)
    for low in (0, -300, -1070):
        m = np.abs(rng.standard_normal((9, 9))) * 2.0 ** rng.integers(low, low + 5, (9, 9))
        m[2], m[:, 4] = 0.0, 0.0
        v = np.abs(rng.standard_normal(9)) * (rng.random(9) < 0.7)
        t = torch.from_numpy(m)
        exact = prismm.testing.exact_product(m, v[:, None])
        found = matrices.product_above(t, v, products)
        assert (exact.rounded(np.float64)[:, 0] <= found).all() and found[2] == 0.0
        assert (found <= rounding.product_above(m, v) * (1 + 2.0**-40) + 2.0**-1000).all()
        assert matrices.last_bit(t) == matrices.last_bit(m)
        c = rng.standard_normal((9, 9))
        judge.assert_same_bits(matrices.host(matrices.gap(torch.from_numpy(c.copy()))), matrices.gap(c.copy()))
        assert matrices.row_norm(t) == pytest.approx(matrices.row_norm(m))


def test_bad_input():
    for bad in (np.nan, np.inf):
        a = torch.eye(3, dtype=torch.float64)
        a[1, 2] = bad
        with pytest.raises(ArgumentError, match=r"a\[1, 2\] is (nan|inf)"):
            resident(a, "a")
