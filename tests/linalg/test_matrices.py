"""Matrices that stay on their device: the way of a tensor on a GPU, by tensors in main memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import prismm.linalg
import prismm.testing
from prismm.core.accuracy import parse_target
from prismm.errors import ArgumentError, NotCertified
from prismm.linalg import entries, inverse, matrices, operands, refinement, rounding, systems
from prismm.linalg.expansions import Products
from prismm.linalg.operands import resident
from tests import judge
from tests.linalg import reference

DEVICE = torch.device("cpu")


def drawn(rng, shape, kind):
    x = rng.standard_normal(shape)
    return (x + (1j * rng.standard_normal(shape) if np.dtype(kind).kind == "c" else 0)).astype(kind)


def solved(a, b, accuracy):
    """(solution, report), as `solve` with a tensor."""
    target, source = parse_target(accuracy), resident(torch.from_numpy(np.ascontiguousarray(a)), "a")
    dtype = source.data.dtype
    found = systems._batch(
        source, b, dtype, lambda x, y: systems._one(x, y, dtype, target, source, False)
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


def placed(x, name):
    """`operand`, of a tensor as if it were on a GPU."""
    return replace(operands.operand(x, name), device=DEVICE if torch.is_tensor(x) else None)


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", ["native", "correctly-rounded"])
def test_inverses_where_the_matrix_is(rng, monkeypatch, accuracy):
    """Of every type, in batches, well-conditioned, triangular, scaled, and such that need inverses in main memory."""
    monkeypatch.setattr(operands, "stays", torch.is_tensor)

    def check(a):
        unit = np.eye(len(a), dtype=a.dtype)
        x, report = prismm.linalg.inv(torch.from_numpy(np.array(a)), accuracy=accuracy, full_output=True)
        reference.assert_holds(reference.solution(a, unit), x.numpy(), report)
        assert torch.is_tensor(x) and x.numpy().dtype == a.dtype
        wanted, other = prismm.linalg.inv(a, accuracy=accuracy, full_output=True)
        if accuracy == "correctly-rounded":
            assert report.correctly_rounded.all()
            judge.assert_same_bits(x.numpy() + 0, wanted + 0)
        assert report.proved and other.proved

    scales = 2.0 ** rng.integers(-30, 30, 18)
    matrices_of = [drawn(rng, (18, 18), kind) for kind in (np.float64, np.float32, np.complex128, np.complex64)]
    matrices_of += [drawn(rng, (18, 18), np.float64) * scales * scales[:, None], reference.of_condition(rng, 18, 1e14)]
    matrices_of += [
        np.tril(drawn(rng, (18, 18), float)) + 4 * np.eye(18),
        reference.hilbert(18),
        drawn(rng, (3, 3), float),
    ]
    matrices_of += [np.triu(np.ones((20, 20))), np.diag(scales), drawn(rng, (17, 17), float) * 2.0**-1000]
    judge.assert_each(check, matrices_of)
    batch = drawn(rng, (2, 3, 17, 17), np.complex64)
    found = prismm.linalg.inv(torch.from_numpy(batch), accuracy="correctly-rounded").numpy()
    judge.assert_same_bits(found + 0, prismm.linalg.inv(batch, accuracy="correctly-rounded") + 0)
    assert prismm.linalg.inv(torch.from_numpy(batch), accuracy="fast").shape == batch.shape
    assert prismm.linalg.inv(torch.zeros(0, 0)).shape == (0, 0)
    with pytest.raises(NotCertified, match="singular"):
        prismm.linalg.inv(torch.ones(20, 20))


def test_least_squares_where_the_matrix_is(rng, monkeypatch):
    monkeypatch.setattr(operands, "stays", torch.is_tensor)
    monkeypatch.setattr(systems, "operand", placed)
    for kind in (np.float64, np.float32, np.complex128, np.complex64):
        for columns in (2, 18):
            a, b = drawn(rng, (2, 9, 4), kind), drawn(rng, (9, columns), kind)
            tensors = torch.from_numpy(a), torch.from_numpy(b)
            x = prismm.linalg.lstsq(*tensors, accuracy="correctly-rounded").numpy()
            judge.assert_same_bits(x + 0, prismm.linalg.lstsq(a, b, accuracy="correctly-rounded") + 0)
            x, report = prismm.linalg.lstsq(tensors[0][0], tensors[1], full_output=True)
            reference.assert_holds(reference.least_squares(a[0], b), x.numpy(), report)


def test_scaled_systems_where_the_matrix_is(rng, monkeypatch):
    """Rows take right-hand sides beyond the range, so that these lose bits there."""
    monkeypatch.setattr(operands, "stays", torch.is_tensor)
    monkeypatch.setattr(systems, "operand", placed)
    powers = 2.0 ** np.linspace(-600, 600, 18).astype(int)
    a = rng.standard_normal((18, 18))
    for scaled in (a * powers[:, None], a * powers):
        x, report = prismm.linalg.inv(torch.from_numpy(scaled), full_output=True)
        reference.assert_holds(reference.solution(scaled, np.eye(18)), x.numpy(), report)
    a, b = rng.standard_normal((9, 4)) * powers[::5], rng.standard_normal((9, 18))
    x, report = prismm.linalg.lstsq(torch.from_numpy(a), torch.from_numpy(b), full_output=True)
    reference.assert_holds(reference.least_squares(a, b), x.numpy(), report)


def test_bounds_are_made_of_tensors(rng, monkeypatch):
    """No product of an inverse's refinement comes back."""
    monkeypatch.setattr(operands, "stays", torch.is_tensor)
    monkeypatch.setattr(inverse, "host", lambda x: pytest.fail("a matrix comes back"))
    monkeypatch.setattr(Products, "_fetched", lambda self, x, stays: (x, pytest.fail("it comes back"))[not stays]
                        if not stays and x.numel() > 40 else (x if stays else x.cpu().numpy()))  # fmt: skip
    seen = []
    monkeypatch.setattr(systems, "rounded", lambda x, kind: seen.append(x) or refinement.rounded(x, kind))
    a = torch.from_numpy(rng.standard_normal((40, 40)))
    prismm.linalg.inv(a)
    assert seen and all(torch.is_tensor(x.radius) for x in seen)


def test_entries_of_tensors_are_those_of_arrays(rng):
    """Scaling, neighbours, sums and last roundings, with subnormals, infinities, and the ends of the range."""
    x = rng.standard_normal((40, 30)) * 2.0 ** rng.integers(-1070, 1020, (40, 30))
    x[0, :5] = [0.0, np.inf, np.finfo(float).max, 2.0**-1074, 2.0**-1022]
    e = rng.integers(-2200, 2200, (40, 30)).astype(np.int32)
    near = (-np.frexp(x)[1] + rng.integers(-1080, -1000, (40, 30))).astype(np.int32)  # results are subnormal
    t = torch.from_numpy(x)
    with np.errstate(all="ignore"):
        for exponents in (e, near):
            found = entries.ldexp(t, torch.from_numpy(exponents)).numpy()
            judge.assert_same_bits(found, entries.ldexp(x, exponents))
        judge.assert_same_bits(rounding.above(t).numpy(), rounding.above(x))
        judge.assert_same_bits(rounding.below(t.float()).numpy(), rounding.below(x.astype(np.float32)))
        for low in (-900, -1074):
            size = np.abs(rng.standard_normal((20, 9))) * 2.0 ** rng.integers(low, low + 60, (20, 9))
            size[:, 3] = 0.0
            total = rounding.sum_above(torch.from_numpy(size), 0).numpy()
            exact = [sum(map(Fraction, column.tolist())) for column in size.T]
            assert all(Fraction(z) >= y for z, y in zip(total.tolist(), exact, strict=True)) and total[3] == 0.0
            assert Fraction(float(rounding.sum_above(torch.from_numpy(size)))) >= sum(exact)
        parts = x, x * 2.0**-54, x * 2.0**-107, np.zeros_like(x)
        for radius in (np.zeros_like(x), np.abs(x) * 2.0**-60, np.full_like(x, np.inf)):
            for exponents in (np.zeros_like(e), e // 4):
                for kind in (np.float64, np.float32):
                    one = refinement.Enclosure(parts, radius, exponents)
                    other = refinement.Enclosure(
                        tuple(map(torch.from_numpy, parts)), *map(torch.from_numpy, (radius, exponents))
                    )
                    wanted, found = refinement.rounded(one, kind), refinement.rounded(other, kind)
                    for y, z in zip(vars(wanted).values(), vars(found.fetched()).values(), strict=True):
                        judge.assert_same_bits(z, y)
                    for tolerance in (None, 1e-5):
                        met = refinement.relative_target(found, tolerance).numpy()
                        assert (met == refinement.relative_target(wanted, tolerance)).all()


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
        wanted, found = matrices.scaling(a, b), matrices.scaling(torch.from_numpy(a), b)
        judge.assert_same_bits(matrices.host(found.a), wanted.a)
        judge.assert_same_bits(found.b, wanted.b)
        for name in ("rows", "columns", "kappa", "lost"):
            assert (getattr(found, name) == getattr(wanted, name)).all()

    judge.assert_each(check, [(0, 1), (-3, 4), (-200, 200), (-450, 450), (-540, -530)])


def test_scaled_arrays_are_exact_and_have_largest_entries_near_one(rng):
    """By multiplications, and beyond their powers of two by `ldexp`; in several strips."""

    def check(case):
        low, high = case
        a = rng.standard_normal((70, 50)) * 2.0 ** rng.integers(low, high, (70, 1)) * 2.0 ** rng.integers(-3, 4, 50)
        a[3], a[:, 5] = 0.0, 0.0
        scaled, rows, columns = matrices.balanced(a)
        judge.assert_same_bits(scaled, np.ldexp(a, rows[:, None] + columns))
        judge.assert_same_bits(np.ldexp(scaled, -(rows[:, None] + columns)), a)
        largest = np.abs(scaled).max(axis=0)
        assert (np.delete(largest, 5) >= 0.5).all() and (largest < 1.0).all() and largest[5] == 0.0
        assert rows[3] == columns[5] == 0

    judge.assert_each(check, [(0, 1), (-300, 300), (-700, 700), (-900, -800), (800, 900)])


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
