"""Vectors, batches, and empty shapes, with factors of 0: shapes, types and values are those of NumPy's own sum."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import prismm
from prismm.testing import correctly_rounded
from tests.judge import CORRECT, assert_same_bits

SHAPES = [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)),
    ((4, 1, 2, 3), (5, 3, 4)), ((1, 1), (1, 1)),
    ((0,), (0,)), ((0,), (0, 4)), ((2, 0), (0,)), ((2, 0), (0, 4)), ((5, 2, 0), (0, 4)), ((5, 2, 0), (5, 0, 4)),
    ((0,), (5, 0, 4)), ((5, 2, 0), (0,)), ((4, 1, 2, 0), (5, 0, 4)),
    ((0, 3), (3, 4)), ((2, 3), (3, 0)), ((0, 3), (3, 0)), ((0, 0), (0, 0)), ((3,), (3, 0)), ((0, 3), (3,)),
    ((0, 2, 3), (3, 4)), ((0, 2, 3), (0, 3, 4)), ((2, 3), (0, 3, 4)), ((0, 2, 0), (0, 0, 4)), ((3,), (0, 3, 4)),
    ((0, 1, 2, 3), (5, 3, 4)), ((0, 2, 3), (3,)),
]  # fmt: skip
FACTORS = [(0, 0), (0, 2), (1, 0), (1, 2), (3, 0), (-2, 3)]
SINGLE = [prismm.Words.tf32(), prismm.Slices(slices=3), prismm.ScaledHalf(), prismm.TileInt8()]
CALLS: list[dict[str, Any]] = [
    {}, CORRECT, {"reproducible": True}, {"accuracy": 1e-5}, {"accuracy": "fast"},
    {"scheme": prismm.Native()}, {"scheme": prismm.Residues(12)}, *({"scheme": scheme} for scheme in SINGLE),
]  # fmt: skip
RESULTS = {
    "float64": "float64", "float32": "float32", "complex128": "complex128", "complex64": "complex64",
    "float16": "float32", "int64": "float64", "uint8": "float64",
}  # fmt: skip


def operands(shapes: tuple[tuple[int, ...], ...], dtype: str) -> tuple[np.ndarray, ...]:
    """Small integers: every sum is exact in every type, and none is 0 by chance alone."""
    rng = np.random.default_rng(len(dtype))
    return tuple(rng.integers(1, 5, shape).astype(dtype) for shape in shapes)


def same(result: Any, family: str, expected: np.ndarray, note: str) -> None:
    assert isinstance(result, torch.Tensor) == (family == "torch"), note
    assert_same_bits(np.asarray(result), expected, note)


@pytest.mark.covering("dtype")
@pytest.mark.parametrize("family", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", RESULTS)
def test_every_shape_and_factor(dtype, family):
    """Each call in turn, and a third of the combinations for each type: every shape meets every factor and every call
    (all combinations: below).
    """
    convert = torch.from_numpy if family == "torch" else np.asarray
    calls = [keywords for keywords in CALLS if keywords.get("scheme") not in SINGLE or RESULTS[dtype] != "float64"]
    first = list(RESULTS).index(dtype)
    for number, ((alpha, beta), shapes) in list(enumerate(product(FACTORS, SHAPES)))[first % 3 :: 3]:
        check(shapes, dtype, convert, family, alpha, beta, calls[number % len(calls)])


@pytest.mark.slow
@pytest.mark.parametrize("keywords", CALLS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
def test_every_shape_factor_and_call(dtype, keywords):
    for shapes, (alpha, beta) in product(SHAPES, FACTORS):
        check(shapes, dtype, np.asarray, "numpy", alpha, beta, keywords)
        check(shapes, dtype, torch.from_numpy, "torch", alpha, beta, keywords)


def check(
    shapes: tuple[tuple[int, ...], ...],
    dtype: str,
    convert: Any,
    family: str,
    alpha: int,
    beta: int,
    keywords: dict[str, Any],
) -> None:
    """matmul and gemm with all that they may return or write to."""
    note = f"{shapes} {dtype} {family} {alpha} {beta} {keywords}"
    a, b = operands(shapes, dtype)
    ab = np.asarray(np.matmul(a, b)).astype(RESULTS[dtype])
    (c,) = operands((ab.shape,), dtype)
    total = np.asarray(alpha * ab + beta * c.astype(ab.dtype)).astype(ab.dtype)
    x, y, z = (convert(v) for v in (a, b, c))
    same(prismm.matmul(x, y, **keywords), family, ab, note)
    same(prismm.gemm(x, y, z, alpha=alpha, beta=beta, **keywords), family, total, note)
    out = convert(np.full(ab.shape, 99, ab.dtype))
    result, report = prismm.gemm(x, y, z, alpha=alpha, beta=beta, out=out, full_output=True, **keywords)
    assert result is out, note
    same(out, family, total, note)
    assert np.shape(report.bounds) == ab.shape, note


@pytest.mark.parametrize("keywords", CALLS, ids=str)
def test_a_factor_of_0_reads_nothing(keywords):
    """NaN in what has the factor 0 is not seen, vectors and batches alike; op() of it has the shape that it says."""
    for shapes in SHAPES:
        a, b = operands(shapes, "float32")
        ab = np.asarray(np.matmul(a, b))
        (c,) = operands((ab.shape,), "float32")
        nan = np.float32(np.nan)
        for alpha_0 in (prismm.gemm(a * nan, b * nan, c, alpha=0, beta=2, **keywords),):
            assert_same_bits(alpha_0, 2 * c, f"{shapes}")
        assert_same_bits(prismm.gemm(a, b, c * nan, alpha=1, beta=0, **keywords), ab, f"{shapes}")
        if a.ndim > 1 and b.ndim > 1:
            turned = prismm.gemm(a.swapaxes(-1, -2) * nan, b, c, alpha=0, beta=3, trans_a="T", **keywords)
            assert_same_bits(turned, 3 * c, f"{shapes}")


def test_prepared_operands_with_a_factor_of_0():
    for k in (0, 3):
        a, b = operands(((2, k), (k, 4)), "float64")
        (c,) = operands(((2, 4),), "float64")
        for keywords in ({}, CORRECT, {"reproducible": True}, {"scheme": prismm.Residues(12)}):
            right, left = prismm.prepare(b, **keywords), prismm.prepare(a, side="left", **keywords)
            for alpha, beta in FACTORS:
                total = alpha * (a @ b) + beta * c
                assert_same_bits(prismm.gemm(a, right, c, alpha=alpha, beta=beta), total, f"{k} {alpha} {beta}")
                assert_same_bits(prismm.gemm(left, b, c, alpha=alpha, beta=beta), total, f"{k} {alpha} {beta}")
                assert_same_bits(prismm.gemm(left, right, c, alpha=alpha, beta=beta), total, f"{k} {alpha} {beta}")
                if k:
                    row = prismm.gemm(a[0], right, c[0], alpha=alpha, beta=beta)
                    assert_same_bits(row, total[0], f"{k} {alpha} {beta}")


ANY_SCHEME = [
    "auto", "residues:15", "words:tf32x3", "words:bf16x6", "words:tf64x3", "scaled-half", "tile-int8:3",
    "slices:int8:dp", "slices:int8:cr", "slices:fp16:dp", "slices:bf16:cr", "slices:fp64:dp",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ANY_SCHEME)
def test_lengths_of_one_are_correctly_rounded_by_any_scheme(scheme: str, rng: np.random.Generator) -> None:
    """Their layouts are ambiguous: a matrix of one row or column has strides that mean nothing."""
    for m, k, n in product((1, 9), repeat=3):
        if 1 not in (m, k, n):
            continue
        a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
        expected = correctly_rounded(a, b)
        for x, y in ((a, b), (np.asfortranarray(a), b.T.copy().T), (a[::-1][::-1], b[:, ::-1][:, ::-1])):
            assert_same_bits(prismm.matmul(x, y, scheme=scheme, **CORRECT), expected, f"{m, k, n}")
