"""Predictions and choices beside what an H100 took of shapes drawn at random (`benchmarks/gpu_candidates.py`)."""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gpu_fit

from prismm.cuda.choice import column, margin
from prismm.cuda.costs.table import committed
from prismm.cuda.native.seconds import checked_seconds, cublas_seconds

SEEDS = {4, 20261127}
"""Of shapes that nothing was fitted to."""


@pytest.fixture(scope="module")
def shapes():
    return [shape for shape in gpu_fit.recorded() if shape.seed in SEEDS]


@pytest.fixture(scope="module")
def rates():
    return committed()[gpu_fit.CARD]


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_what_auto_takes_is_predicted(dtype, shapes, rates):
    gpu, close = column(gpu_fit.CARD), []
    for _, item, seconds in shapes:
        name = gpu_fit.measured(gpu_fit.taken(item, gpu), seconds)
        if item.dtype == dtype and name in seconds:
            predicted = gpu_fit.predicted(item, name, rates)
            assert predicted is not None
            close.append(0.75 <= predicted / seconds[name] <= 1.25)
    # Of complex products that are short, cuBLAS's times follow from little that is known.
    assert len(close) >= 90 and sum(close) >= (0.95 if dtype.startswith("float") else 0.78) * len(close)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_auto_loses_no_more_than_the_check_of_cublas_product(dtype, shapes):
    """A few percent at most, but for one shape in forty, where cuBLAS takes 100 us or more."""
    gpu, ratios, losses = column(gpu_fit.CARD), [], []
    for _, item, seconds in shapes:
        name = gpu_fit.measured(gpu_fit.taken(item, gpu), seconds)
        if item.dtype == dtype and name in seconds and seconds["cublas"] >= 100e-6:
            ratios.append(seconds["cublas"] / seconds[name])
            losses.append(seconds[name] / seconds["checked"])
    assert len(losses) >= 60 and sum(loss > 1.03 for loss in losses) <= len(losses) / 40 and max(losses) < 1.1
    assert math.exp(statistics.fmean(map(math.log, ratios))) > (1.1 if dtype == "float64" else 2.2)


def test_the_errors_of_the_table_are_those_of_these_shapes(shapes, rates):
    found = gpu_fit.errors(shapes, rates)
    for name in ("kernel", "scattered", "residues", "multiword"):
        most = math.expm1(statistics.quantiles(found[name], n=5, method="inclusive")[-1])
        assert getattr(rates.errors, name) == pytest.approx(most, abs=0.02), name


def test_what_the_check_takes_is_no_risk(shapes, rates):
    for _, item, _ in shapes[:50]:
        lost = checked_seconds(item.problem, rates) / cublas_seconds(item.problem, rates)
        assert margin(0.0, item.problem, rates) == 1.0
        assert margin(0.3, item.problem, rates) == pytest.approx(1.0 + max(0.0, 0.3 - lost))


def test_cublas_takes_longer_for_more(rates):
    """More rows, columns, terms or products, aligned alike, never take less, but for a better fit of tiles."""
    one = gpu_fit.Item("float64", "native", 0, 512, 512, 512, "")
    for dtype in ("float64", "float32", "complex128", "complex64"):
        for more in ({"m": 1024}, {"n": 1024}, {"k": 1024}, {"batch": 4}):
            few, many = (item._replace(dtype=dtype).problem for item in (one, one._replace(**more)))
            assert cublas_seconds(few, rates) < cublas_seconds(many, rates)
