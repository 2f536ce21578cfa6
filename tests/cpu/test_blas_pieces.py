"""Pieces of products by NumPy's BLAS: every entry once, whatever the shapes and strides."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from prismm.cpu import blas_pieces
from prismm.cpu.native.ordinary import ALONE

SHAPES = [
    (1, 1, 1),
    (256, 96, 512),
    (33, 129, 65),
    (31, 300, 77),
    (1, 700, 1000),
    (200, 1, 1400),
    (3, 0, 5),
    (65, 128, 64),
]


def test_docstrings() -> None:
    assert doctest.testmod(blas_pieces).failed == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_entry_is_made_once(dtype: str, rng: np.random.Generator) -> None:
    """Integers, against int64; operands and results are views, as their users pass them."""
    for m, k, n in SHAPES:
        x, y = rng.integers(-100, 101, (m, k + 3)).astype(dtype), rng.integers(-100, 101, (n, k + 5)).astype(dtype)
        whole = np.full((m + 2, n + 4), np.nan, dtype)
        left, right, out = x[:, 2 : k + 2], y[:, 1 : k + 1].T, whole[1:-1, 3:-1]
        blas_pieces.multiply(left, right, out=out)
        assert (out == left.astype(np.int64) @ right.astype(np.int64)).all(), (m, k, n)
        assert np.isnan(whole).sum() == whole.size - m * n


def test_no_piece_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """None has so many multiply-adds that OpenBLAS would start threads for it."""
    works, true = [], np.matmul

    def counted(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
        works.append(x.shape[-2] * x.shape[-1] * y.shape[-1])
        return true(x, y, out=out)

    monkeypatch.setattr(np, "matmul", counted)
    for m, k, n in SHAPES:
        blas_pieces.multiply(np.ones((m, k)), np.ones((k, n)), out=np.empty((m, n)))
    assert max(works) <= ALONE and len(works) > len(SHAPES)
