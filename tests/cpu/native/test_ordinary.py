"""The quick check that accepts a native product: which products it has to reject."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prismm.core.accuracy import parse_target
from prismm.core.outcome import Epilogue, Job
from prismm.cpu.native.product import CACHED, PIECE, SHORT, Whole, ordinary_product, ordinary_products
from prismm.formats import FP32
from prismm.schemes.native import Native

TERMS = 2 * SHORT[4]
"""A float32 sum of so many terms may hide an overflow."""


def cancelling(rng: np.random.Generator, rows: int, columns: int, size: float) -> tuple[np.ndarray, np.ndarray]:
    """Operands whose products are ±size². Their sums are exact in any order, and 0."""
    signs = rng.permuted(np.tile(np.repeat([1.0, -1.0], TERMS // 2), (columns, 1)), axis=1).T
    return np.full((rows, TERMS), size, np.float32), (size * signs).astype(np.float32)


@pytest.mark.parametrize("side", [2, 100])
def test_long_sums_of_huge_terms_are_rejected(side, rng):
    """The computed sums are 0, but the error bound of such terms exceeds the largest float."""
    assert (side * side < PIECE) == (side == 2)
    huge, small = cancelling(rng, side, side, 2.0**60), cancelling(rng, side, side, 2.0)
    assert ordinary_product(*huge) is None
    found = ordinary_product(*small)
    assert found is not None and not found.any()


@pytest.mark.slow
def test_long_sums_of_huge_terms_in_a_batch_are_rejected(rng):
    count = CACHED // 16 + 3
    for batch in (2, count):
        a, b = (np.broadcast_to(x, (batch, *x.shape)).copy() for x in cancelling(rng, 4, 4, 2.0**20))
        assert ordinary_products(a, b, 1) is not None
        a[batch - 1] *= 2.0**40
        b[batch - 1] *= 2.0**40
        assert ordinary_products(a, b, 1) is None


def whole(a: np.ndarray, b: np.ndarray, c: np.ndarray, **factors: Any) -> np.ndarray:
    """Which products of a batch the quick check accepts."""
    out = np.empty((*a.shape[:-1], b.shape[-1]), np.float32)
    job = Job(FP32, parse_target("native"), a.shape[-1] + 1, False, 1, 1 << 30, Epilogue(c=c, **factors))
    return Whole(Native(), a, b, out, job).multiply(as_torch=False)


def test_sums_with_c_are_checked_as_products_are(rng):
    """The check rejects a long sum of huge terms, an overflow that C causes, and one that alpha may cause."""
    pieces = [cancelling(rng, 3, 3, size) for size in (2.0, 2.0**60, 2.0, 2.0)]
    a, b = (np.stack(x) for x in zip(*pieces, strict=True))
    c = np.zeros((4, 3, 3), np.float32)
    c[2, 1, 1] = 2.0**127
    assert whole(a, b, c, alpha=1.0, beta=1.0).tolist() == [True, False, False, True]
    assert whole(a, b, c, alpha=2.0**12, beta=1.0).tolist() == [False] * 4
