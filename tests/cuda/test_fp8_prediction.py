"""Predictions of residues by FP8: what `explain` says of simulated units, and the committed page's table."""

import csv
import dataclasses
import doctest
import math
import sys
from pathlib import Path

import pytest

import prismm.cuda.residues.prediction
from prismm.core.accuracy import parse_target
from prismm.core.fp8_moduli import FAMILIES, fp8_products
from prismm.core.problem import Problem
from prismm.cuda.costs.derive import derived
from prismm.cuda.costs.facts import cards
from prismm.cuda.costs.table import rates_of
from prismm.cuda.residues import prediction, seconds
from prismm.formats import FP32, FP64
from prismm.numerics import catalogue

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import fp8_prediction

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(autouse=True)
def no_user_table(monkeypatch, tmp_path):
    """No table of this machine's user counts."""
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRISMM_RATES", raising=False)
    rates_of.cache_clear()
    prediction.crossovers.cache_clear()
    yield
    rates_of.cache_clear()


def problem(n, result=FP64, **options):
    return Problem(n, n, n, (), result, parse_target("native"), reproducible=False, one_type=True, **options)


def test_every_named_unit_and_card_is_there():
    for device, names in prediction.CARDS.items():
        assert device in catalogue.devices()
        assert all(derived(cards()[name]).tuning.fp8 > 0.0 for name in names)


@pytest.mark.parametrize("result", [FP64, FP32])
def test_crossovers_are_where_the_predictions_cross(result):
    moduli, sizes = 14 if result == FP64 else 7, range(64, 32768 + 1, 64)
    for name in sum(prediction.CARDS.values(), ()):
        least = prediction.crossovers(name, moduli, problem(64, result))
        found = {n: prediction.ways(moduli, problem(n, result), rates_of(name)) for n in sizes}
        assert least.keys() == found[32768].keys() - {"FP8"}
        for way, n in least.items():
            slower = [size for size in sizes if way in found[size] and found[size]["FP8"] >= found[size][way]]
            first = (
                min(size for size in sizes if way in found[size] and size > max(slower, default=0))
                if 32768 not in slower
                else None
            )
            assert n == first, (name, way)


def test_lines_hold_the_predicted_seconds():
    product = problem(4096)
    (line,) = prediction.fp8_predictions("rtx5090", 14, product)
    assert "not measured" in line and "RTX 5090" in line and "16-bit words" not in line
    found = prediction.ways(14, product, rates_of("NVIDIA GeForce RTX 5090"))
    assert f"{1e3 * found['FP8']:.1f} ms by FP8" in line and f"{1e3 * found['INT8']:.1f} ms by INT8" in line
    assert "at no size than INT8" in line
    assert "16-bit words" in prediction.fp8_predictions("rtx5090", 7, problem(4096, FP32))[0]
    assert prediction.fp8_predictions("h100-wgmma", 14, product) == ()


def test_seconds_by_fp8_follow_the_rate_and_the_products():
    """Products of a large matrix at the table's rate, or at the memory's; without a rate, at that of the INT8 unit."""
    rates = derived(cards()["NVIDIA B300 SXM6 AC"])
    fast = dataclasses.replace(rates, tuning=dataclasses.replace(rates.tuning, fp8=1e30))
    for n in (2048, 8192):
        product = problem(n)
        alone = seconds.fp8_seconds(14, product, rates) - seconds.fp8_seconds(14, product, fast)
        products = fp8_products(14, FAMILIES[0])
        moved = 3.0 * n * n * products / rates.memory
        assert 1.0 < (alone + moved) * rates.tuning.fp8 / (2.0 * n**3 * products) < 1.35
    unknown = dataclasses.replace(rates, tuning=dataclasses.replace(rates.tuning, fp8=0.0))
    guessed = dataclasses.replace(rates, tuning=dataclasses.replace(rates.tuning, fp8=rates.int8), sustained=rates.int8)
    unlimited = dataclasses.replace(unknown, sustained=rates.int8)
    assert math.isclose(
        seconds.fp8_seconds(14, problem(512), unlimited), seconds.fp8_seconds(14, problem(512), guessed)
    )
    assert not seconds.fp8_is_faster(14, problem(8192), unknown) and seconds.fp8_is_faster(14, problem(8192), rates)


def test_the_committed_table_is_what_the_sources_predict():
    with (RESULTS / "fp8_prediction.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = fp8_prediction.table()
    assert len(rows) == len(expected) == 5 * 2 * len(fp8_prediction.SIZES)
    for row, theirs in zip(rows, expected, strict=True):
        assert row.keys() == theirs.keys()
        for key, value in theirs.items():
            same = (
                float(row[key]) == pytest.approx(value, rel=1e-3)
                if isinstance(value, float)
                else row[key] == str(value)
            )
            assert same, (row["gpu"], key)


def test_the_page_is_what_the_sources_predict():
    page = Path(__file__).parents[2] / "docs" / "fp8_prediction.md"
    assert page.read_text(encoding="utf-8") == fp8_prediction.page()


def test_examples():
    assert doctest.testmod(prismm.cuda.residues.prediction).failed == 0
