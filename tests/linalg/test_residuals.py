"""Residuals are correctly rounded, in one call, for sums of solutions and prepared matrices too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm
import prismm.linalg
from prismm.errors import DTypeError, OperandError, ShapeError
from prismm.testing import exact_gemm
from tests import judge


def test_residuals_are_correctly_rounded(rng):
    def check(case):
        kind, columns = case
        a, x = rng.standard_normal((11, 11)).astype(kind), rng.standard_normal((11, columns)).astype(kind)
        if np.dtype(kind).kind == "c":
            a, x = (a + 1j * a.T).astype(kind), (x * (1 + 2j)).astype(kind)
        b = (a @ x).astype(kind)  # what remains are rounding errors
        expected = exact_gemm(-1.0, a, x, 1.0, b).rounded(kind)
        judge.assert_same_bits(prismm.linalg.residual(a, x, b), expected)
        prepared = prismm.prepare(a, side="left", accuracy="correctly-rounded")
        judge.assert_same_bits(prismm.linalg.residual(prepared, x, b), expected)
        judge.assert_same_bits(prismm.linalg.residual(prepared, x[:, 0], b[:, 0]), expected[:, 0])
        found = prismm.linalg.residual(torch.from_numpy(a), torch.from_numpy(x), torch.from_numpy(b))
        judge.assert_same_bits(found.numpy(), expected)
        _, report = prismm.linalg.residual(a, x, b, full_output=True)
        judge.assert_bounds_hold(exact_gemm(-1.0, a, x, 1.0, b), expected, report)

    judge.assert_each(check, [(k, n) for k in (np.float64, np.float32, np.complex128, np.complex64) for n in (1, 5)])


def test_sums_of_solutions(rng):
    a, x = rng.standard_normal((2, 9, 9)), rng.standard_normal((9, 2))
    tiny = x[::-1] * 2.0**-54
    b = rng.standard_normal((9, 2))
    for tensors in (False, True):
        given = [torch.from_numpy(v.copy()) for v in (a, x, tiny, b)] if tensors else [a, x, tiny, b]
        found = np.asarray(prismm.linalg.residual(given[0], (given[1], given[2]), given[3]))
        for i in range(2):
            left, right = np.concatenate([a[i], a[i]], axis=1), np.concatenate([x, tiny])
            judge.assert_same_bits(found[i], exact_gemm(-1.0, left, right, 1.0, b).rounded())
    vector = prismm.linalg.residual(a[0], (x[:, 0], tiny[:, 0]), b[:, 0])
    judge.assert_same_bits(vector, prismm.linalg.residual(a[0], (x, tiny), b)[:, 0])


class Series:
    """What data frames have: entries by ``to_numpy``, and neither ``shape`` nor slices of arrays."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.asarray(self.values)


def test_operands_of_other_kinds(rng):
    a, x, b = rng.standard_normal((4, 4)), rng.standard_normal(4), rng.standard_normal(4)
    expected = prismm.linalg.residual(a, x, b)
    for given in ((a, Series(x), Series(b)), (Series(a), x, b), (Series(a), (Series(x), np.zeros(4)), b)):
        judge.assert_same_bits(prismm.linalg.residual(*given), expected)
    whole = np.array([[2**53 + 1, 1]])
    judge.assert_same_bits(prismm.linalg.residual(whole, np.array([1, 1]), np.array([2.0**53])), np.array([-2.0]))
    parts = np.array([2**24 + 1]), np.array([0.5], np.float32)
    for given in (parts, tuple(map(torch.from_numpy, parts))):
        one = np.ones((1, 1)), np.zeros(1)
        if given is not parts:
            one = tuple(map(torch.from_numpy, one))
        assert float(prismm.linalg.residual(one[0], given, one[1])[0]) == -(2.0**24) - 1.5
    batch = np.stack([a, a])
    judge.assert_same_bits(prismm.linalg.residual(batch, x, b), np.stack([expected, expected]))
    judge.assert_same_bits(prismm.linalg.residual(batch, x[:, None], b[:, None])[1, :, 0], expected)


def test_bad_input():
    def check(case):
        error, match, call = case
        with pytest.raises(error, match=match):
            call()

    eye, one = np.eye(3), np.ones(3)
    prepared = prismm.prepare(eye, side="left", accuracy="correctly-rounded")
    other = prismm.prepare(eye, side="left", accuracy="native")
    residual = prismm.linalg.residual
    judge.assert_each(check, [
        (OperandError, "prepared", lambda: residual(prepared, (one, one), one)),
        (OperandError, "prepared with accuracy", lambda: residual(other, one, one)),
        (OperandError, "empty", lambda: residual(eye, (), one)),
        (ShapeError, "equal shapes", lambda: residual(eye, (one, np.ones(2)), one)),
        (ShapeError, "vector", lambda: residual(eye, one, np.ones((3, 1)))),
        (ShapeError, "inner", lambda: residual(eye, np.ones(4), one)),
        (ShapeError, "b is a vector, x has shape", lambda: residual(eye, eye, one)),
        (ShapeError, r"b has shape \(4,\), a·x has shape \(3,\)", lambda: residual(eye, one, np.ones(4))),
        (ShapeError, r"b has shape \(3, 1\), a·x has shape \(3, 3\)", lambda: residual(eye, eye, np.ones((3, 1)))),
        (ShapeError, "b has shape", lambda: residual(eye, eye, np.ones((2, 3, 3)))),
        (ShapeError, "batches", lambda: residual(np.ones((2, 3, 3)), np.ones((4, 3, 1)), np.ones((3, 1)))),
        (ShapeError, "matrix", lambda: residual(one, one, one)),
        (ShapeError, "matrix", lambda: residual(eye, np.array(1.0), one)),
        (OperandError, r"x\[0\] is a list", lambda: residual(eye, ([1.0] * 3, [1.0] * 3), one)),
        (OperandError, "^x is a list", lambda: residual(eye, [1.0] * 3, one)),
        (OperandError, "^a is a list", lambda: residual([[1.0]], [1.0], [1.0])),
        (OperandError, "^b is a list", lambda: residual(eye, one, [1.0] * 3)),
        (OperandError, "^b is a float", lambda: residual(eye, one, 1.0)),
        (OperandError, "b: torch", lambda: residual(eye, one, torch.ones(3))),
        (DTypeError, "^b holds", lambda: residual(eye, one, np.full(3, 2**53 + 1))),
        (DTypeError, r"x\[0\] has integers", lambda: residual(eye, (np.full(3, 2**53 + 1), one), one)),
        (DTypeError, "^x has dtype", lambda: residual(eye, np.array(["a"] * 3), one)),
    ])  # fmt: skip
