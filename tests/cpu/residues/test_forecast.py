"""`explain` of given data foresees repairs: how many entries, by what, and that they take time."""

import numpy as np
import pytest

import prismm
from prismm.cpu.forecast import COLUMNS, ROWS
from prismm.schemes.residues import Residues
from prismm.testing import HOSTILE
from tests.cpu import units

packed = pytest.mark.needs_engine(units.PACKED.name)
"""Systems of many moduli take an engine of bytes."""


def share_of(reason):
    return float(reason.split("data ")[1].split(" of")[0])


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("given", [{"accuracy": "correctly-rounded"}, {"reproducible": True}], ids=["rounded", "same"])
@pytest.mark.parametrize("name", ["phi4", "graded", "wide_rows_and_columns", "shadowed", "one_huge"])
def test_the_share_of_uncertified_entries_is_that_of_the_product(name, given, dtype, seed):
    a, b = HOSTILE[name](250, 280, 260, seed, dtype)
    given = {**given, "threads": 1}
    if "accuracy" in given:
        given["scheme"] = Residues(9 if dtype == "float32" else 15)
    plan = prismm.explain(a, b, **given)
    _, report = prismm.matmul(a, b, full_output=True, **given)
    entries = 250 * 260 * (2 if dtype == "complex128" else 1)
    share = 1.0 - report.paths.get("certified", 0) / entries
    foreseen = [reason for reason in plan.reasons if "in a sample" in reason]
    if foreseen:
        # Rows and columns share their scales: entries of a sample are not independent of each other.
        assert abs(share_of(foreseen[0]) - share) < 0.1 + 6.0 / np.sqrt(min(ROWS, COLUMNS)) * share * (1 - share)
    else:
        assert share < 0.02


@packed
def test_wide_data_are_predicted_to_take_longer_and_by_what(seed):
    given = {"accuracy": "correctly-rounded", "threads": 1}
    normal = prismm.explain(*HOSTILE["normal"](400, 400, 400, seed), **given)
    a, b = HOSTILE["graded"](400, 400, 400, seed)
    plan, (_, report) = prismm.explain(a, b, **given), prismm.matmul(a, b, full_output=True, **given)
    assert plan.predicted_seconds > 2 * normal.predicted_seconds
    assert not any("in a sample of the data" in reason for reason in normal.reasons)
    assert "moduli, in about" in plan.reasons[-1] and report.paths["more moduli"] > 400 * 400 / 2
    # A call does not look at a sample for its report.
    assert "in a sample" not in report.plan.reasons[-1] and report.plan.predicted_seconds < plan.predicted_seconds


@packed
@pytest.mark.parametrize("name, least", [("ties", 0.9), ("near_ties", 0.9), ("graded", 0.9)])
def test_sums_of_float32_data_in_float64_are_foreseen_likewise(name, least, seed):
    a, b = HOSTILE[name](300, 320, 310, seed, "float32")
    given = {"accuracy": "correctly-rounded", "threads": 1, "scheme": prismm.Native(compute="float64")}
    normal = prismm.explain(*HOSTILE["normal"](300, 320, 310, seed, "float32"), **given)
    plan, (_, report) = prismm.explain(a, b, **given), prismm.matmul(a, b, full_output=True, **given)
    share = 1.0 - report.paths.get("certified", 0) / (300 * 310)
    foreseen = share_of(next(reason for reason in plan.reasons if "in a sample of the data" in reason))
    assert abs(foreseen - share) < 0.1 and share >= least
    assert plan.predicted_seconds > 1.5 * normal.predicted_seconds
    assert not any("in a sample of the data" in reason for reason in normal.reasons)


@packed
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_entries_that_may_hide_an_overflow_are_foreseen(dtype, seed):
    """Of native grade, where all other entries hold a priori; and none where nothing is near the largest number."""
    found = {
        name: prismm.explain(
            *HOSTILE[name](300, 320, 310, seed, dtype), threads=1, accuracy="native", scheme=prismm.Native()
        )
        for name in ("normal", "overflow_threshold")
    }
    assert found["overflow_threshold"].predicted_seconds > 3 * found["normal"].predicted_seconds
    assert share_of(next(reason for reason in found["overflow_threshold"].reasons if "in a sample" in reason)) > 0.9
    assert not any("in a sample" in reason for reason in found["normal"].reasons)


def test_zeros_are_certified_by_their_magnitudes(seed):
    a, b = HOSTILE["triangular"](300, 300, 300, seed)
    plan = prismm.explain(a, b, reproducible=True, threads=1)
    assert all("moduli, in about" not in reason for reason in plan.reasons)
    plan = prismm.explain(*(x.astype("f4") for x in (a, b)), accuracy="correctly-rounded", threads=1)
    assert any("certified by their magnitudes" in reason or "one by one" in reason for reason in plan.reasons)


def test_what_is_not_finite_and_what_has_no_sample_stays_as_it_was(seed):
    a, b = HOSTILE["wide_rows_and_columns"](260, 260, 260, seed)
    a[3, 4], b[7, 8] = np.nan, np.inf
    plan = prismm.explain(a, b, accuracy="correctly-rounded")
    assert plan.predicted_seconds > 0 and str(plan)
    everywhere = prismm.explain(np.full((260, 260), np.nan), b, accuracy="correctly-rounded")
    assert not any("in a sample of the data" in reason for reason in everywhere.reasons)
    for x, y in ((a[None].repeat(3, 0), b[None].repeat(3, 0)), (a[:0], b), (a[:, :0], b[:0])):
        assert not any(
            "fail the first test" in reason for reason in prismm.explain(x, y, accuracy="correctly-rounded").reasons
        )
    one = np.broadcast_to(np.float64(0.1), (1 << 17, 1 << 17))
    assert not any("in a sample" in reason for reason in prismm.explain(one, one, accuracy="correctly-rounded").reasons)
    right = prismm.prepare(b, accuracy="correctly-rounded")
    assert not any("fail the first test" in reason for reason in prismm.explain(a, right).reasons)
