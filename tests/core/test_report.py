"""Report: what ran, which path each entry took, and bounds for single entries."""

from __future__ import annotations

import json

import numpy as np
import pytest

import prismm
from prismm.cpu import backend
from prismm.testing import HOSTILE, exact_product
from tests.judge import CORRECT, each_dtype, usable_engines

ROADS = {
    "a priori",
    "certified",
    "value",
    "magnitude",
    "lane dots",
    "double-double",
    "triple-double",
    "more moduli",
    "exact",
    "special",
}


def test_it_says_what_ran(seed):
    a, b = HOSTILE["normal"](40, 50, 44, seed)
    c, report = prismm.matmul(a, b, engine="cpu:float64", scheme=prismm.Residues(9), threads=1, full_output=True)
    assert isinstance(report, prismm.Report)
    assert report.scheme == prismm.Residues(9)
    assert report.engine == "cpu:float64"
    assert report.accuracy == "none"
    assert report.reproducible is True
    assert report.products == 4  # moduli of 22 bits that cover 9 of 8 bits
    assert report.paths == {"value": c.size}
    assert report.repaired == 0
    assert isinstance(report.plan, prismm.Plan) and report.plan.threads == 1
    assert 0 < report.timings["total"] < 60
    assert all(seconds >= 0 for seconds in report.timings.values())
    assert {"split", "multiply and join", "total"} <= set(report.timings)
    _, complex_report = prismm.matmul(a + 0j, b + 0j, engine="cpu:float64", scheme=prismm.Residues(9), full_output=True)
    assert complex_report.products == 12


def test_the_plan_is_worked_out_when_it_is_asked_for(monkeypatch, rng):
    """By the data's shapes and types alone: a report holds no operands for it."""
    a, b = rng.standard_normal((40, 50)), rng.standard_normal((50, 44))
    calls = []
    true = backend.make_plan
    monkeypatch.setattr(backend, "make_plan", lambda call: calls.append(call) or true(call))
    _, report = prismm.matmul(a, b, reproducible=True, full_output=True)
    assert (report.scheme, report.accuracy, report.reproducible) == (prismm.Residues(15), "native", True)
    assert report.engine and not calls
    plan = report.plan
    assert report.plan is plan and len(calls) == 1
    assert all(x.strides == (0, 0) for x in (calls[0].a, calls[0].b))
    monkeypatch.undo()
    assert plan == prismm.explain(a, b, reproducible=True)


def test_int8_products_are_as_many_as_the_moduli(seed):
    if "cpu:int8" not in usable_engines():
        pytest.skip("no exact INT8 product here")
    a, b = HOSTILE["normal"](40, 50, 44, seed)
    _, report = prismm.matmul(a, b, engine="cpu:int8", scheme=prismm.Residues(9), full_output=True)
    assert report.products == 9
    _, report = prismm.matmul(
        np.stack([a, a]), np.stack([b, b]), engine="cpu:int8", scheme=prismm.Residues(9), full_output=True
    )
    assert report.products == 18
    assert report.plan.products == 18


@pytest.mark.parametrize(
    ("keywords", "accuracy", "reproducible"),
    [
        ({}, "native", False),
        ({"accuracy": "fast"}, "fast", False),
        ({"reproducible": True}, "native", True),
        ({"accuracy": 1e-30}, "1e-30", True),
        (CORRECT, "correctly-rounded", True),
        ({"scheme": prismm.Native()}, "none", False),
        ({"scheme": prismm.Residues(9)}, "none", True),
        ({"scheme": prismm.Residues(9), "accuracy": "native"}, "native", True),
        ({"scheme": prismm.Native(), **CORRECT}, "correctly-rounded", True),
    ],
)
def test_accuracy_and_reproducibility(keywords, accuracy, reproducible, seed):
    a, b = HOSTILE["normal"](6, 7, 8, seed)
    _, report = prismm.matmul(a, b, full_output=True, **keywords)
    assert report.accuracy == accuracy
    assert report.reproducible is reproducible
    assert set(report.paths) <= ROADS


@each_dtype
def test_paths_are_taken(dtype, seed):
    """Cancelling data need repair, ordinary data hardly any, integers none."""
    a, b = HOSTILE["cancelling"](20, 30, 22, seed, dtype)
    c, report = prismm.matmul(a, b, scheme=prismm.Residues(7), full_output=True, **CORRECT)
    assert report.repaired > c.size // 4
    assert report.repaired == sum(
        report.paths.get(path, 0) for path in ("lane dots", "double-double", "triple-double", "more moduli", "exact")
    )
    a, b = HOSTILE["lattice"](20, 30, 22, seed, dtype)
    c, report = prismm.matmul(a, b, scheme=prismm.Residues(7), full_output=True, **CORRECT)
    assert report.paths == {"certified": c.size * (2 if c.dtype.kind == "c" else 1)}
    assert report.repaired == 0


def test_ties_end_in_exact_arithmetic(seed):
    a, b = HOSTILE["ties"](9, 11, 9, seed)
    _, report = prismm.matmul(a, b, scheme=prismm.Residues(9), full_output=True, **CORRECT)
    assert report.paths.get("exact", 0) > 0


def test_disjoint_operands_are_proved_zero(seed):
    """No product is nonzero: the magnitudes say so, and no target could accept anything but 0."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((12, 20)), rng.standard_normal((20, 12))
    a[:, 10:], b[:10] = 0, 0
    for keywords in ({"reproducible": True}, {"accuracy": 1e-30}, CORRECT):
        c, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert (c == 0).all()
        assert set(report.paths) <= {"certified", "magnitude"}
        assert sum(report.paths.values()) == c.size


def test_single_bounds_and_their_indices(seed):
    a, b = HOSTILE["normal"](4, 6, 5, seed)
    for keywords in ({}, {"reproducible": True}, CORRECT):
        c, report = prismm.matmul(np.stack([a, 2 * a, 3 * a]), b, full_output=True, **keywords)
        exact = [exact_product(x, b).error(c[i]) for i, x in enumerate((a, 2 * a, 3 * a))]
        for index in np.ndindex(*c.shape):
            assert report.bound(*index) >= exact[index[0]][index[1:]]
            assert isinstance(report.bound(*index), float)
        assert report.bound(-1, -1, -1) == report.bound(2, 3, 4)
        assert report.bound(np.int64(1), np.int8(2), 3) == report.bound(1, 2, 3)
        for wrong in ((3, 0, 0), (0, 4, 0), (0, 0, 5), (0, 0, -6), (0, 0), (0, 0, 0, 0), ()):
            with pytest.raises(IndexError):
                report.bound(*wrong)
    c, report = prismm.matmul(a[0], b[:, 0], full_output=True, **CORRECT)
    assert report.bound() == report.bounds[()]
    assert report.bound() >= exact_product(a[:1], b[:, :1]).error(np.reshape(c, (1, 1)))[0, 0]


def test_an_empty_result_has_a_report():
    for shape in ((0, 3), (3, 0), (0, 0)):
        _, report = prismm.matmul(np.ones((shape[0], 2)), np.ones((2, shape[1])), full_output=True, **CORRECT)
        assert report.bounds.shape == shape
        assert report.paths == {}
        assert "no entries" in str(report)
        with pytest.raises(IndexError):
            report.bound(0, 0)


def test_bounds_of_complex_entries_cover_each_part(seed):
    """One part overflows, the other does not: its error is bounded all the same."""
    a = np.array([[1e200 + 1j * 0.1, 0.3]])
    b = np.array([[1e200 + 1j * 0.1], [0.7]])
    exact = exact_product(a, b)
    for keywords in ({}, {"reproducible": True}, CORRECT):
        c, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert np.isinf(c.real).all() and np.isfinite(c.imag).all()
        assert report.bounds[0, 0] >= exact.part_errors(c)[1][0, 0] > 0


def test_it_prints_and_serialises(seed):
    a, b = HOSTILE["phi4"](6, 7, 8, seed)
    for keywords in ({}, {"reproducible": True}, {"accuracy": 1e-20}, CORRECT, {"scheme": prismm.Residues(5)}):
        _, report = prismm.matmul(a, b, full_output=True, **keywords)
        again = json.loads(json.dumps(report.to_dict()))
        assert again["paths"] == report.paths
        assert again["engine"] == report.engine
        assert again["scheme"] == str(report.scheme)
        assert again["shape"] == [6, 8]
        assert again["plan"]["k"] == 7
        text = str(report)
        for word in (str(report.scheme), report.engine, report.accuracy, "ms"):
            assert word in text
        for path, count in report.paths.items():
            assert f"{count} {path}" in text


def test_the_former_name_of_paths_still_answers():
    _, report = prismm.matmul(np.eye(2), np.eye(2), full_output=True)
    with pytest.warns(DeprecationWarning, match=r"Report\.paths"):
        assert report.roads == report.paths
