"""Answers about definiteness are those of exact leading minors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismm.linalg
from prismm.errors import ArgumentError, NotCertified, ShapeError
from tests import judge
from tests.linalg import reference


def test_answers_are_right(rng):
    def check(case):
        name, a = case
        assert prismm.linalg.is_positive_definite(a) == reference.positive(a), name

    a = rng.standard_normal((12, 12))
    a = a @ a.T
    a = (a + a.T) * 0.5
    smallest = np.linalg.eigvalsh(a)[0]
    z = rng.standard_normal((5, 5)) + 1j * rng.standard_normal((5, 5))
    z = z @ np.conj(z.T)
    z = (z + np.conj(z.T)) * 0.5
    d = 2.0 ** np.arange(0, 180, 15)
    judge.assert_each(check, [
        *((f"hilbert{n}", reference.hilbert(n)) for n in (1, 2, 6, 11, 12, 13, 14, 18)),
        *((f"pascal{n}", reference.pascal(n)) for n in (5, 15)),
        *((f"shift {e}", a - smallest * (1.0 + e) * np.eye(12)) for e in (-1e-6, -1e-9, 1e-9, 1e-6)),
        ("graded", a * d[:, None] * d), ("graded, not", (a - 1.1 * smallest * np.eye(12)) * d[:, None] * d),
        ("complex", z), ("complex, not", z - 1.01 * np.linalg.eigvalsh(z)[0] * np.eye(5)),
        ("float32", a.astype(np.float32)), ("ones", np.ones((3, 3))), ("zero", np.zeros((2, 2))),
        ("integers", np.array([[2, 1], [1, 2]])), ("off diagonal", np.array([[1.0, 1e30], [1e30, 1.0]])),
    ])  # fmt: skip


def test_undecided_raises(rng):
    """Rank 4 of 6 in integers: eigenvalues are exactly 0, and no null vector is a float64 vector of the tries."""
    g = np.array([[3.0, 1, 2, -1], [1, 2, 0, 3], [-2, 1, 1, 1], [0, 3, -1, 2], [1, 1, 1, 7], [2, -3, 5, 1]])
    with pytest.raises(NotCertified, match="too close"):
        prismm.linalg.is_positive_definite(g @ g.T)


def test_batches_and_bad_input():
    eye = np.eye(2)
    found = prismm.linalg.is_positive_definite(np.stack([eye, -eye]))
    assert found.dtype == bool and found.tolist() == [True, False]
    tensor = prismm.linalg.is_positive_definite(torch.from_numpy(np.stack([eye, -eye])))
    assert isinstance(tensor, torch.Tensor) and tensor.tolist() == [True, False]

    def check(case):
        error, match, a = case
        with pytest.raises(error, match=match):
            prismm.linalg.is_positive_definite(a)

    judge.assert_each(check, [
        (ArgumentError, "not symmetric", np.array([[1.0, 2.0], [0.0, 1.0]])),
        (ArgumentError, "not Hermitian", np.array([[1.0, 2.0j], [2.0j, 1.0]])),
        (ShapeError, "square", np.ones((2, 3))), (ArgumentError, "is nan", np.full((2, 2), np.nan)),
    ])  # fmt: skip
