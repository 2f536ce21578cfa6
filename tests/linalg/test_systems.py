"""Solutions against exact rational arithmetic: no bound is broken, every component is within an ulp."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import (
    AccuracyError,
    ArgumentError,
    NotCertified,
    OperandError,
    ShapeError,
)
from prismm.linalg.factors import approximate_inverse, shaken
from tests import judge
from tests.linalg import matrices, reference

SYSTEMS = {
    **{f"hilbert{n}": (lambda rng, n=n: reference.hilbert(n)) for n in (2, 3, 5, 8, 11, 12, 13, 16, 20)},
    **{f"pascal{n}": (lambda rng, n=n: reference.pascal(n)) for n in (4, 12, 18)},
    "vandermonde": lambda rng: np.vander(np.linspace(-1.0, 1.0, 16)),
    "kahan": lambda rng: reference.kahan(25),
    **{f"graded{d}": (lambda rng, d=d: reference.graded(rng, 12, d)) for d in (5, 20, 60)},
    "graded rows": lambda rng: reference.graded(rng, 12, 40).T.copy(),
    **{f"condition 1e{d}": (lambda rng, d=d: reference.of_condition(rng, 15, 10.0**d)) for d in (2, 8, 13, 15, 16)},
    "random": lambda rng: rng.standard_normal((20, 20)),
    "tiny": lambda rng: rng.standard_normal((6, 6)) * 1e-300,
    "wide": lambda rng: rng.standard_normal((8, 8)) * 10.0 ** rng.integers(-50, 50, (8, 8)),
    "moler32": lambda rng: matrices.moler(32).astype(float),
    "moler50": lambda rng: matrices.moler(50).astype(float),
    "prolate": lambda rng: matrices.prolate(60),
    "unimodular 1e28": lambda rng: reference.unimodular(rng, 5, 10),
    "unimodular 1e51": lambda rng: reference.unimodular(rng, 10, 9),
    "unimodular 1e60": lambda rng: reference.unimodular(rng, 9, 12),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_component_is_within_its_bound_and_an_ulp(name, rng):
    a = SYSTEMS[name](rng)
    b = rng.standard_normal((len(a), 2))
    x, report = prismm.linalg.solve(a, b, full_output=True)
    exact = reference.solution(a, b)
    count = reference.assert_holds(exact, x, report)
    assert count >= 0.5 * x.size and report.proved  # of few components; their share is that of the test of many
    for i, row in enumerate(exact):
        for j, value in enumerate(row):
            total = sum(Fraction(float(part[i, j])) for part in report.parts)
            assert abs(value - total) <= Fraction(float(report.residual_bounds[i, j]))


def test_a_rounded_inverse_may_be_singular():
    """Moler's matrix has determinant 1. Its inverse with entries rounded is singular, but for random last bits."""
    a = reference.rational(matrices.moler(32).astype(float))
    assert a.det() == 1
    inverse = np.array([[float(reference.fraction(x)) for x in row] for row in a.inv().tolist()])
    assert reference.rational(inverse).det() == 0 != reference.rational(shaken(inverse)).det()
    lower = np.tril(inverse)
    assert (np.triu(shaken(lower), 1) == 0.0).all() and (np.abs(shaken(lower) - lower) <= 2.0**-49 * abs(lower)).all()


def test_an_approximate_inverse_is_a_left_inverse():
    """Its rows solve with the matrix in a backward stable way, so RA - 1 is far smaller than AR - 1 may be."""
    a = matrices.prolate(60)
    inverse = approximate_inverse(a)
    left = prismm.matmul(inverse, a, accuracy="correctly-rounded") - np.eye(60)
    right = prismm.matmul(a, inverse, accuracy="correctly-rounded") - np.eye(60)
    assert np.abs(left).max() < 1e3 < 1e9 < np.abs(right).max()


def test_correctly_rounded_is(rng):
    def check(kind):
        a = rng.standard_normal((12, 12)).astype(kind)
        b = rng.standard_normal((12, 3)).astype(kind)
        if np.dtype(kind).kind == "c":
            a, b = (x + (1j * rng.standard_normal(x.shape)).astype(kind) for x in (a, b))
        x, report = prismm.linalg.solve(a, b, accuracy="correctly-rounded", full_output=True)
        assert x.dtype == kind and report.correctly_rounded.all()
        assert reference.assert_holds(reference.solution(a, b), x, report) == x.size * (2 if x.dtype.kind == "c" else 1)

    judge.assert_each(check, [np.float64, np.float32, np.complex128, np.complex64])


def test_narrow_results_round_once():
    """x₁ = 1 + 2^-24 ∓ 2^-80/3: beside a midpoint of float32, by far less than an ulp of float64."""
    a = np.array([[1.0, -(2.0**-20), 0.0], [0.0, 3.0, 2.0**-60], [0.0, 0.0, 1.0]], np.float32)
    for sign, first in ((1.0, 1.0), (-1.0, 1.0 + 2.0**-23)):
        b = np.array([[1.0], [3 * 2.0**-4], [sign]], np.float32)
        x, report = prismm.linalg.solve(a, b, accuracy="correctly-rounded", full_output=True)
        assert reference.assert_holds(reference.solution(a, b), x, report) == 3
        assert x[0, 0] == first


def test_exact_solutions_have_exact_bounds(rng):
    """Of dyadic solutions nothing remains, ties of float32 and zeros included."""
    a = rng.integers(-9, 10, (9, 9)) + 20 * np.eye(9, dtype=np.int64)
    x = rng.integers(-5, 6, (9, 2)).astype(float)
    x[0] = 0.0
    found, report = prismm.linalg.solve(a, a @ x, accuracy="correctly-rounded", full_output=True)
    assert (found == x).all() and (report.bounds == 0.0).all()


def test_zeros_that_structure_gives_are_proved(rng):
    a = np.zeros((8, 8))
    a[:4, :4], a[4:, 4:] = rng.standard_normal((2, 4, 4))
    b = np.concatenate([rng.standard_normal((4, 1)), np.zeros((4, 1))])
    x, report = prismm.linalg.solve(a, b, accuracy="correctly-rounded", full_output=True)
    assert (x[4:] == 0.0).all() and (report.bounds[4:] == 0.0).all()
    found, report = prismm.linalg.inv(np.triu(a) + np.eye(8), accuracy="correctly-rounded", full_output=True)
    assert (np.tril(found, -1) == 0.0).all()


def test_a_zero_among_others_has_a_tiny_bound():
    x, report = prismm.linalg.solve(np.array([[3, 1], [3, 2]]), np.array([1, 1]), full_output=True)
    assert x[0] == 1 / 3 and abs(x[1]) <= report.bounds[1] <= 2.0**-213
    with pytest.raises(NotCertified, match="1 of 2 components") as caught:
        prismm.linalg.solve(np.array([[3, 1], [3, 2]]), np.array([1, 1]), accuracy="correctly-rounded")
    assert caught.value.report.correctly_rounded.tolist() == [True, False]
    assert caught.value.result[0] == 1 / 3


def test_what_cannot_be_solved_raises_without_a_proof_too():
    def check(case):
        a, b = case
        with pytest.raises(NotCertified, match="singular") as caught:
            prismm.linalg.solve(a, b, accuracy="fast")
        assert caught.value.result is None and np.isinf(caught.value.report.bounds).all()

    judge.assert_each(check, [
        (np.ones((3, 3)), np.ones(3)), (np.zeros((2, 2)), np.eye(2)), (np.array([[1.0, 2.0], [2.0, 4.0]]), np.eye(2)),
        (np.ones((2, 2), np.float32), np.ones(2, np.float32)), (np.ones((2, 2)) * 1j, np.ones(2)),
        (np.stack([np.ones((2, 2))] * 2), np.ones(2)), (torch.ones(2, 2, dtype=torch.float64), torch.ones(2)),
    ])  # fmt: skip
    with pytest.raises(NotCertified, match="in 1 of 2"):
        prismm.linalg.solve(np.stack([np.eye(2), np.ones((2, 2))]), np.ones(2), accuracy="fast")
    assert (prismm.linalg.inv(np.diag([2.0, 4.0]), accuracy="fast") == np.diag([0.5, 0.25])).all()


def test_singular_matrices_raise():
    def check(a):
        with pytest.raises(NotCertified, match="singular") as caught:
            prismm.linalg.solve(a, np.ones((len(a), 1)))
        assert caught.value.result is None and np.isinf(caught.value.report.bounds).all()

    rank = np.outer(np.arange(1.0, 8.0), np.arange(2.0, 9.0))
    judge.assert_each(check, [
        np.array([[1.0, 2.0], [2.0, 4.0]]), np.zeros((3, 3)), np.arange(16.0).reshape(4, 4),
        rank + rank[::-1], np.array([[1.0, 1j], [1j, -1.0]]),
    ])  # fmt: skip


def test_out_of_reach_raises(rng):
    """No bound where the condition number is beyond what the parts of the inverse reach."""
    a = reference.unimodular(rng, 20, 12)
    with pytest.raises(NotCertified, match="too close"):
        prismm.linalg.solve(a, np.ones(20))


def test_overflow_and_subnormal_solutions(rng):
    a = rng.standard_normal((5, 5))
    with pytest.raises(NotCertified, match="overflows"):
        prismm.linalg.solve(a * 1e-200, a[:, :1] * 1e200)
    with pytest.raises(NotCertified, match="overflows float32"):
        prismm.linalg.solve((np.eye(2) * 1e-30).astype(np.float32), np.full(2, 1e30, np.float32))
    b = rng.standard_normal((5, 2)) * 1e-115
    x, report = prismm.linalg.solve(a * 1e200, b, full_output=True)
    reference.assert_holds(reference.solution(a * 1e200, b), x, report, ulps=3.0)


def test_tolerances_and_fast(rng):
    a, b = reference.of_condition(rng, 20, 1e6), rng.standard_normal((20, 2))
    exact = reference.solution(a, b)
    x, report = prismm.linalg.solve(a, b, accuracy=1e-9, full_output=True)
    reference.assert_holds(exact, x, report)
    assert (report.bounds <= 1e-9 * np.abs(x) + np.spacing(np.abs(x))).all()
    x, report = prismm.linalg.solve(a, b, accuracy="fast", full_output=True)
    assert not report.proved and np.isinf(report.bounds).all() and not report.correctly_rounded.any()
    assert reference.assert_holds(exact, x, report) >= 0.95 * x.size


def test_cholesky_gives_the_same_bits(rng):
    a = rng.standard_normal((15, 15))
    a = a @ a.T
    a = (a + a.T) * 0.5
    b = rng.standard_normal((15, 2))
    plain, positive = (prismm.linalg.solve(a, b, accuracy="correctly-rounded", assume=x) for x in ("general", "pos"))
    judge.assert_same_bits(positive, plain)
    # Cholesky breaks down here, and the proof holds all the same.
    x, report = prismm.linalg.solve(reference.hilbert(14), np.ones((14, 1)), assume="pos", full_output=True)
    reference.assert_holds(reference.solution(reference.hilbert(14), np.ones((14, 1))), x, report)


def test_batches_vectors_and_tensors(rng):
    a, b = rng.standard_normal((2, 1, 4, 4)), rng.standard_normal((3, 4, 2))
    x, report = prismm.linalg.solve(a, b, full_output=True)
    assert x.shape == report.bounds.shape == (2, 3, 4, 2) and report.condition.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        judge.assert_same_bits(x[i, j], prismm.linalg.solve(a[i, 0], b[j]))
    vector = rng.standard_normal(4)
    judge.assert_same_bits(prismm.linalg.solve(a, vector), prismm.linalg.solve(a, vector[:, None])[..., 0])
    tensor = prismm.linalg.solve(torch.from_numpy(a), torch.from_numpy(b))
    assert isinstance(tensor, torch.Tensor)
    judge.assert_same_bits(tensor.numpy(), x)
    assert prismm.linalg.solve(np.zeros((0, 0)), np.zeros((0, 2))).shape == (0, 2)
    assert prismm.linalg.solve(np.zeros((0, 3, 3)), np.zeros((3, 2))).shape == (0, 3, 2)
    assert prismm.linalg.solve(np.eye(3), np.zeros((3, 0))).shape == (3, 0)


def test_one_singular_matrix_of_a_batch_is_told(rng):
    a = np.stack([np.eye(3), np.ones((3, 3))])
    with pytest.raises(NotCertified, match="in 1 of 2 matrices") as caught:
        prismm.linalg.solve(a, np.ones(3))
    assert np.isfinite(caught.value.report.bounds[0]).all() and np.isinf(caught.value.report.bounds[1]).all()


def test_inverses(rng):
    def check(kind):
        a = rng.standard_normal((7, 7)) + (1j * rng.standard_normal((7, 7)) if np.dtype(kind).kind == "c" else 0)
        a = a.astype(kind)
        x, report = prismm.linalg.inv(a, full_output=True)
        assert x.dtype == kind
        reference.assert_holds(reference.solution(a, np.eye(7, dtype=kind)), x, report)

    judge.assert_each(check, [np.float64, np.float32, np.complex128, np.complex64])
    x, report = prismm.linalg.inv(reference.hilbert(12), full_output=True)
    reference.assert_holds(reference.solution(reference.hilbert(12), np.eye(12)), x, report)


def test_least_squares(rng):
    def check(case):
        a, b = case
        x, report = prismm.linalg.lstsq(a, b, full_output=True)
        reference.assert_holds(reference.least_squares(a, b), x, report)

    complex_a = rng.standard_normal((9, 4)) + 1j * rng.standard_normal((9, 4))
    vander = np.vander(np.linspace(0.0, 1.0, 14), 9)
    graded = rng.standard_normal((12, 5)) * 10.0 ** -np.arange(0, 50, 10)
    judge.assert_each(check, [
        (rng.standard_normal((20, 5)), rng.standard_normal((20, 2))),
        (rng.standard_normal((6, 6)), rng.standard_normal((6, 1))),
        (vander, rng.standard_normal((14, 1))), (graded, rng.standard_normal((12, 1))),
        (complex_a, rng.standard_normal((9, 2)) + 0j),
        (rng.standard_normal((9, 3)).astype(np.float32), rng.standard_normal((9, 1)).astype(np.float32)),
    ])  # fmt: skip
    with pytest.raises(NotCertified, match="augmented"):
        prismm.linalg.lstsq(np.ones((5, 2)), np.ones(5))
    with pytest.raises(ShapeError, match="as many rows as columns"):
        prismm.linalg.lstsq(np.ones((2, 5)), np.ones(2))
    with pytest.raises(AccuracyError):
        prismm.linalg.lstsq(np.ones((5, 2)), np.ones(5), accuracy="fast")


def test_bad_input(rng):
    eye, one = np.eye(3), np.ones(3)
    bad = np.eye(3)
    bad[1, 2] = np.nan

    def check(case):
        error, match, call = case
        with pytest.raises(error, match=match):
            call()

    solve = prismm.linalg.solve
    judge.assert_each(check, [
        (ShapeError, "square", lambda: solve(np.ones((2, 3)), one)),
        (ShapeError, "square", lambda: solve(one, one)),
        (ShapeError, "as many rows", lambda: solve(eye, np.ones(4))),
        (ShapeError, "as many rows", lambda: solve(eye, np.ones((2, 1)))),
        (ShapeError, "as many rows", lambda: solve(eye, np.ones(()))),
        (ShapeError, "broadcast", lambda: solve(np.stack([eye] * 2), np.ones((3, 3, 1)))),
        (ArgumentError, r"a\[1, 2\] is nan", lambda: solve(bad, one)),
        (ArgumentError, r"b\[0\] is inf", lambda: solve(eye, np.array([np.inf, 0, 0]))),
        (ArgumentError, "assume='sym'", lambda: solve(eye, one, assume="sym")),
        (ArgumentError, "not symmetric", lambda: solve(np.triu(np.ones((3, 3))), one, assume="pos")),
        (ArgumentError, "not Hermitian", lambda: solve(eye * 1j, one, assume="pos")),
        (ArgumentError, "int64 numbers that float64 cannot", lambda: solve(np.array([[2**60 + 1]]), np.ones(1))),
        (ArgumentError, "numbers that float64 cannot", lambda: solve(eye + np.longdouble(1) / 3, one)),
        (OperandError, "list", lambda: solve([[1.0]], one)),
        (OperandError, "different kinds", lambda: solve(torch.eye(3), one)),
        (OperandError, "requires grad", lambda: solve(torch.eye(3, requires_grad=True), torch.ones(3))),
        (AccuracyError, "unknown accuracy", lambda: solve(eye, one, accuracy="best")),
        (ShapeError, "square", lambda: prismm.linalg.inv(np.ones((2, 3)))),
    ])  # fmt: skip


@pytest.mark.slow
def test_bounds_hold_over_many_components(rng):
    """More than 10^5 of them."""
    count = correct = 0
    for size in (10, 20, 40):
        for exponent in range(0, 16, 3):
            a, b = reference.of_condition(rng, size, 10.0**exponent), rng.standard_normal((size, 240))
            x, report = prismm.linalg.solve(a, b, full_output=True)
            correct += reference.assert_holds(reference.solution(a, b), x, report)
            count += x.size
    assert count > 100_000 and correct >= 0.99 * count
