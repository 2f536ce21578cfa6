"""The quick check that accepts a native product: which products it has to reject."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import prismm
from prismm.core.accuracy import parse_target
from prismm.core.outcome import Epilogue, Job
from prismm.cpu.native import ordinary, product
from prismm.cpu.native.ordinary import CACHED, LOOKED_AT, PIECE, SHORT, ordinary_product, ordinary_products
from prismm.cpu.native.product import Whole
from prismm.formats import FP32
from prismm.schemes.native import Native
from prismm.testing import HOSTILE, exact_product
from tests.judge import assert_same_bits

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


@pytest.mark.parametrize(("dtype", "half"), [(np.float64, 520), (np.float32, 66), (np.complex128, 520)])
def test_no_product_of_huge_elements_is_made_in_vain(dtype, half, rng, monkeypatch):
    """A look at some elements tells; the closer look, which multiplies, decides. Elements that are huge on one side
    alone, or in a row that is not looked at, change nothing.
    """
    made = []
    multiply = np.matmul
    monkeypatch.setattr(np, "matmul", lambda *args, **named: made.append(1) or multiply(*args, **named))
    n = 410
    assert n**3 >= LOOKED_AT
    a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in range(2))
    huge = [np.ldexp(x.real, half).astype(dtype) for x in (a, b)]
    assert ordinary_product(*huge) is None and ordinary_products(*(x[None] for x in huge), 1) is None and not made
    small = np.ldexp(b.real, -half).astype(dtype)
    found = ordinary_product(huge[0], small)
    assert found is not None and made == [1] and np.array_equal(found, multiply(huge[0], small))
    a[1, 1] = np.nan
    assert ordinary_product(a, b) is None and made == [1, 1]
    a[0, 0] = np.nan
    assert ordinary_product(a, b) is None and made == [1, 1]
    # Vectors beside a batch.
    assert ordinary_products(huge[0][0], np.stack([b, b]), 1) is None and len(made) == 3
    assert ordinary_products(np.zeros((0, n, n)), np.zeros((0, n, n)), 1) is not None
    monkeypatch.undo()
    # What is ordinary in the end keeps its value, whichever way it took.
    c = prismm.matmul(np.hstack([huge[0], -huge[0]]), np.vstack([huge[1], huge[1]]))
    assert np.isfinite(c).all()


@pytest.mark.parametrize("name", ["overflow_threshold", "near_overflow"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_entries_that_are_set_anyway_are_not_multiplied_first(dtype, name, seed, rng, monkeypatch):
    """All of a few entries say so. Where an operand holds NaN there, BLAS multiplies."""
    monkeypatch.setattr(ordinary, "LOOKED_AT", 1)
    made: list[int] = []
    by_blas = product.product
    monkeypatch.setattr(product, "product", lambda *args, **named: made.append(1) or by_blas(*args, **named))
    a, b = HOSTILE[name](12, 40, 11, seed, dtype)
    if name == "near_overflow":
        a = a * a.dtype.type(2.0)
    with np.errstate(all="ignore"):
        assert_same_bits(prismm.matmul(a, b), exact_product(a, b).rounded(dtype))
        assert not made
        a[1, 0] = np.nan  # one of the rows that are looked at
        found = prismm.matmul(a, b)
    assert made and np.isnan(found[1]).all()
    finite = np.arange(12) != 1
    assert_same_bits(found[finite], exact_product(a[finite], b).rounded(dtype))


def test_plans_tell_of_products_in_float64_and_of_those_that_are_not_made(rng):
    """Of long float32 sums: ordinary ones, huge ones, and ones that overflow."""
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 1200), (1200, 300)))
    usual = prismm.explain(a, b, threads=1)
    huge = prismm.explain(a * np.float32(2.0**60), b * np.float32(2.0**50), threads=1)
    beyond = prismm.explain(abs(a) * np.float32(2.0**70), abs(b) * np.float32(2.0**70), threads=1)
    assert not any("float64" in reason for reason in usual.reasons)
    assert any("made in float64" in reason for reason in huge.reasons)
    assert any("recomputed" in reason for reason in beyond.reasons)
    assert usual.predicted_seconds < huge.predicted_seconds < beyond.predicted_seconds
    # Narrower types are multiplied in float32.
    half = prismm.explain(*(np.full(shape, 100, np.float16) for shape in ((400, 1200), (1200, 400))), threads=1)
    assert not any("float64" in reason or "recomputed" in reason for reason in half.reasons)


def test_a_period_of_the_data_does_not_hide_ordinary_entries(rng, monkeypatch):
    """Only every 8th row of A and column of B are huge."""
    monkeypatch.setattr(ordinary, "LOOKED_AT", 1)
    a, b = rng.uniform(0.5, 1.0, (2, 64, 64))
    a[::8] *= 2.0**514
    b[:, ::8] *= 2.0**514
    c, report = prismm.matmul(a, b, full_output=True)
    assert report.products == 1 and report.paths["a priori"] == 64 * 64 - 64
    assert np.isinf(c).sum() == 64


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
