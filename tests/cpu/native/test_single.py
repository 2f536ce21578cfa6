"""Correctly rounded float32 products by one float64 GEMM: every entry, every layout, special values."""

import numpy as np
import pytest

import prismm
from prismm.core.outcome import Outcome
from prismm.cpu.entries import Entries
from prismm.cpu.native import single
from prismm.cpu.native.single import PANEL, by_lanes
from prismm.testing import HOSTILE, exact_product
from tests.judge import assert_same_bits

NATIVE = {"scheme": prismm.Native(compute="float64"), "accuracy": "correctly-rounded"}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_entry_is_right(name, threads, seed):
    a, b = HOSTILE[name](41, 70, 37, seed, "float32")
    c, report = prismm.matmul(a, b, threads=threads, full_output=True, **NATIVE)
    assert_same_bits(c, exact_product(a, b).rounded(np.float32))
    assert sum(report.paths.values()) == c.size
    assert (report.bounds >= exact_product(a, b).part_errors(c)[0]).all()


def test_several_panels(rng):
    a, b = rng.standard_normal((PANEL + 3, 9)).astype("f4"), rng.standard_normal((9, 5)).astype("f4")
    assert_same_bits(prismm.matmul(a, b, **NATIVE), exact_product(a, b).rounded(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint16"])
def test_narrower_types_and_layouts(dtype, rng):
    a = np.asfortranarray(rng.integers(0, 100, (30, 40)).astype(dtype))
    b = rng.standard_normal((25, 80)).astype("f4")[:, ::2].T
    a.flags.writeable = False
    assert_same_bits(prismm.matmul(a, b, **NATIVE), exact_product(a, b).rounded(np.float32))


def test_special_values_reach_their_entries_alone(rng):
    a, b = rng.standard_normal((20, 30)).astype("f4"), rng.standard_normal((30, 25)).astype("f4")
    clean = prismm.matmul(a, b, **NATIVE)
    a[3, 4], b[7, 9], b[0, 2] = np.inf, np.nan, -np.inf
    c = prismm.matmul(a, b, **NATIVE)
    touched = np.zeros(c.shape, bool)
    touched[3], touched[:, [2, 9]] = True, True
    assert_same_bits(c[~touched], clean[~touched])
    with np.errstate(all="ignore"):
        wanted = (a.astype("f8") @ b.astype("f8")).astype("f4")
    assert_same_bits(c[touched], wanted[touched])


def test_lanes_settle_what_is_listed(rng):
    a, b = rng.standard_normal((50, 100)).astype("f4"), rng.standard_normal((100, 60)).astype("f4")
    norms = [np.linalg.norm(x.astype("f8"), axis=axis) * (1 + 2.0**-20) for x, axis in ((a, 1), (b, 0))]
    out = np.full((50, 60), 7, np.float32)
    chosen = np.flatnonzero(rng.random(3000) < 0.2)
    outcome = Outcome()
    left = by_lanes(a, b, out, Entries(0, chosen // 60, chosen % 60), *norms, 2, outcome)
    wanted = exact_product(a, b).rounded(np.float32)
    settled = np.zeros(out.shape, bool)
    settled[chosen // 60, chosen % 60] = True
    settled[left.i, left.j] = False
    assert_same_bits(out, np.where(settled, wanted, np.float32(7)))
    assert outcome.paths["lane dots"] == settled.sum() > 0.9 * chosen.size


def test_lanes_are_tried_on_some_of_many_entries(rng, monkeypatch):
    """Ties, which no lane decides, cost a sample alone; what lanes decide is decided by them."""
    monkeypatch.setattr(single, "_TRIAL_SECONDS", 0.0)
    m, k, n = 100, 50, 90
    chosen = np.flatnonzero(rng.random(m * n) < 0.1)
    i, j = chosen // n, chosen % n
    for name, taken in (("ties", False), ("normal", True)):
        a, b = (np.ascontiguousarray(x) for x in HOSTILE[name](m, k, n, 3, "float32"))
        norms = [np.linalg.norm(x.astype("f8"), axis=axis) * (1 + 2.0**-20) for x, axis in ((a, 1), (b, 0))]
        out, outcome = np.full((m, n), 7, np.float32), Outcome()
        left = by_lanes(a, b, out, Entries(0, i, j), *norms, 2, outcome)
        assert (left.i.size < i.size / 10) == taken and (left.i.size == i.size) == (not taken)
        assert taken == ("lane dots" in outcome.paths) and (taken or (out == 7).all())
        settled = out[i, j] != 7
        assert_same_bits(out[i, j][settled], exact_product(a, b).rounded(np.float32)[i, j][settled])
