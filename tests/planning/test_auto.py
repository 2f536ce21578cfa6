"""Plans: what Auto takes and why, told before the work and true of it."""

from __future__ import annotations

import functools
import importlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import prismm
from prismm import dispatch
from prismm.core.accuracy import parse_target
from prismm.core.memory import workspace_limit
from prismm.core.problem import Problem
from prismm.cpu import choice, costs, measured
from prismm.cpu.engines import integer
from prismm.cpu.engines.base import Proof
from prismm.cpu.kernels import amx
from prismm.errors import ArgumentError, PrismmError, ShapeError
from prismm.formats import FP64
from prismm.planning.moduli_count import _uncertified_share, moduli_for_rounding
from prismm.testing import HOSTILE
from tests.judge import CORRECT, DTYPES, assert_same_bits, usable_engines


def best() -> str:
    """The engine that "cpu" means here."""
    known = "cpu:amx", "cpu:vnni", "cpu:avx2", "cpu:int8", "cpu:int8-7bit", "cpu:float64"
    return next(name for name in known if name in usable_engines())


def plan_of(dtype: str = "float64", k: int = 64, **keywords: Any) -> prismm.Plan:
    rng = np.random.default_rng(1)
    return prismm.explain(
        rng.standard_normal((48, k)).astype(dtype), rng.standard_normal((k, 52)).astype(dtype), **keywords
    )


@pytest.mark.parametrize(
    ("dtype", "keywords", "scheme", "engine"),
    [
        ("float64", {}, prismm.Native(), "cpu:blas"),
        ("float32", {}, prismm.Native(), "cpu:blas"),
        ("complex64", {"accuracy": "fast"}, prismm.Native(), "cpu:blas"),
        ("float64", {"accuracy": 1e-12}, prismm.Native(), "cpu:blas"),
        ("float64", {"reproducible": True}, prismm.Residues(15), "best"),
        ("float32", {"reproducible": True}, prismm.Residues(7), "best"),
        ("complex128", {"reproducible": True}, prismm.Residues(15), "best"),
        ("float32", CORRECT, prismm.Native("float64"), "cpu:blas"),
        ("float64", {"scheme": prismm.Residues(11)}, prismm.Residues(11), "best"),
        ("float64", {"scheme": prismm.Auto(), "reproducible": True}, prismm.Residues(15), "best"),
        ("float64", {"reproducible": True, "engine": "cpu:direct"}, prismm.Residues(15), "cpu:direct"),
    ],
)
def test_what_auto_takes(dtype, keywords, scheme, engine):
    plan = plan_of(dtype, **keywords)
    assert plan.scheme == scheme
    assert plan.engine == (best() if engine == "best" else engine)
    assert plan.reasons


def test_tight_tolerances_take_more_moduli():
    found = [plan_of(accuracy=tolerance, reproducible=True).scheme.moduli for tolerance in (1e-6, 1e-10, 1e-13, 1e-16)]
    assert found == sorted(found) and found[0] < found[-1]
    assert isinstance(plan_of(accuracy=1e-20).scheme, prismm.Residues)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"reproducible": True},
        CORRECT,
        {"accuracy": 1e-15},
        {"scheme": prismm.Residues(5)},
        {"accuracy": "fast", "threads": 1},
    ],
    ids=str,
)
def test_the_plan_is_what_runs(keywords, dtype, seed):
    for shape in ((3, 4, 5), (40, 50, 44)):
        a, b = HOSTILE["phi2"](*shape, seed, dtype)
        plan = prismm.explain(a, b, **keywords)
        _, report = prismm.matmul(a, b, full_output=True, **keywords)
        assert report.plan == plan
        assert (report.scheme, report.engine, report.reproducible) == (plan.scheme, plan.engine, plan.reproducible)
        if not report.repaired:
            assert report.products == plan.products


def test_the_plan_tells_shapes_types_and_costs():
    plan = prismm.explain(np.ones((7, 2, 3), np.float32), np.ones((3, 5)), reproducible=True, threads=2)
    assert (plan.m, plan.k, plan.n, plan.batch) == (2, 3, 5, (7,))
    assert plan.operands == ("float32", "float64") and plan.result == "float64"
    assert plan.threads == 2 and plan.reproducible
    assert plan.predicted_seconds > 0 and plan.native_seconds > 0
    assert json.loads(json.dumps(plan.to_dict()))["scheme"] == "Residues(moduli=15)"
    text = str(plan)
    for word in (
        "(2 x 3) @ (3 x 5)",
        "float32 and float64 -> float64",
        "Residues(moduli=15)",
        "2 threads",
        "because",
        "predicted",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({}, "64·2^-53·(|a||b|)"),
        ({"accuracy": 1e-20}, "1e-20·(|a||b|)"),
        (CORRECT, "RN(exact)"),
        ({"scheme": prismm.Residues(5)}, "Report.bound"),
        ({"accuracy": "fast"}, "none per entry"),
    ],
)
def test_the_bound_is_told(keywords, words):
    assert words.replace("64·", "k·") in plan_of(**keywords).bound


def test_nothing_is_multiplied(monkeypatch):
    from prismm.cpu.native import product as native
    from prismm.cpu.residues import multiply as residues
    from prismm.cpu.residues import product

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("explain multiplied")

    for name in ("native", "residues"):  # which hold the functions by name
        monkeypatch.setattr(importlib.import_module(f"prismm.cpu.{name}.implementation"), "multiply", refuse)
    monkeypatch.setattr(native, "product", refuse)
    monkeypatch.setattr(residues, "multiply", refuse)
    monkeypatch.setattr(product, "split_operand", refuse)
    for keywords in ({}, CORRECT, {"reproducible": True}):
        assert plan_of(**keywords).m == 48


def test_explain_refuses_what_matmul_refuses():
    with pytest.raises(ShapeError, match="3 and 4 differ"):
        prismm.explain(np.ones((2, 3)), np.ones((4, 2)))
    with pytest.raises(ArgumentError, match="unknown engine 'tpu'"):
        prismm.explain(np.ones((2, 3)), np.ones((3, 2)), engine="tpu")
    with pytest.raises(PrismmError):
        prismm.explain([[1.0]], np.ones((1, 1)))


def test_wide_data_get_more_moduli_or_repair_than_integers():
    """A sample of the data decides; the result cannot depend on it."""
    rng = np.random.default_rng(3)
    small = rng.integers(-8, 9, (700, 700)).astype(float)
    normal = rng.standard_normal((700, 700))
    few, many = (prismm.explain(x, x, **CORRECT).scheme.moduli for x in (small, normal))
    assert few < many <= moduli_for_rounding(prismm.formats.FP64) + 2


def test_workspace_has_a_limit():
    assert workspace_limit(0, 0) <= 192 << 20
    data = 3 * 8 * 4096 * 4096
    assert workspace_limit(2 * data // 3, data // 3) <= 1.4 * data + 1
    plan = plan_of(reproducible=True)
    assert 0 < plan.workspace_bytes <= 192 << 20
    assert 1 <= plan.row_panel <= 48 and 1 <= plan.column_block <= 52


def test_auto_can_be_asked():
    assert prismm.Auto() == prismm.Auto()
    assert not prismm.Auto().reproducible
    a = np.ones((4, 4))
    expected = prismm.explain(a, a)
    assert prismm.explain(a, a, scheme=prismm.Auto()) == expected


@pytest.mark.parametrize(("residue", "scheme"), [(2.2e11, prismm.Native), (3.6e11, prismm.Residues)])
def test_float32_is_rounded_correctly_by_what_is_faster(residue, scheme, monkeypatch, rng):
    """The same bits either way."""
    rates = replace(costs.RATES["cpu:vnni"], residue=residue, split=residue / 75)
    monkeypatch.setattr(costs, "rates_of", lambda engine: rates)
    a, b = (rng.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    c, report = prismm.matmul(a, b, accuracy="correctly-rounded", full_output=True)
    assert type(report.scheme) is scheme
    other = prismm.Residues(12) if scheme is prismm.Native else prismm.Native("float64")
    assert_same_bits(c, prismm.matmul(a, b, accuracy="correctly-rounded", scheme=other))


def test_what_stays_open_is_foreseen_from_a_small_sample(rng):
    for scale in (3.0, 100.0, 1e5):
        entries = np.abs(rng.standard_normal(1_000_000)) * scale
        share = np.minimum(1.0, 1.0 / np.maximum(entries, 1.0)).mean()
        found = np.median([_uncertified_share(entries[64 * i : 64 * i + 64]) for i in range(200)])
        assert share / 2.0 < found < share * 2.0, (scale, share, found)
    assert _uncertified_share(np.full(64, np.inf)) == 0.0
    assert _uncertified_share(np.zeros(64)) == 1.0


@pytest.mark.parametrize("keywords", [{}, CORRECT, {"accuracy": 1e-12}, {"accuracy": "fast"}, {"reproducible": True}])
def test_an_empty_inner_dimension_of_batches(keywords):
    for a, b in ((np.zeros((3, 0)), np.zeros((2, 0, 5))), (np.zeros((2, 3, 0)), np.zeros((0, 5)))):
        c = prismm.matmul(a, b, **keywords)
        assert c.shape == (2, 3, 5) and not c.any()


@pytest.fixture
def tile_unit(monkeypatch):
    """A CPU with a tile unit that multiplies 40 times as fast as its BLAS, whatever this one is."""
    rates = replace(costs.RATES["cpu:vnni"], residue=1.2e12, float64=3.0e10, float32=6.0e10, split=4e9, join=2e9)
    found = {"rates": rates, "share": 0.0}
    monkeypatch.setattr(amx, "supported", lambda: True)
    monkeypatch.setattr(integer, "_proof", lambda name: Proof(True, "pretended"))
    monkeypatch.setattr(measured, "rates", lambda engine: found["rates"])
    monkeypatch.setattr(choice, "uncertified_share", lambda *_: found["share"])
    # Repairs are foreseen by a product on this machine's engines.
    monkeypatch.setattr(dispatch, "foreseen", lambda call: call.plan)
    integer._best.cache_clear()
    costs.rates_of.cache_clear()
    yield found
    integer._best.cache_clear()
    costs.rates_of.cache_clear()


def of_size(m: int, k: int, n: int, dtype: str = "float64", **keywords: Any) -> prismm.Plan:
    # Rows that overlap, so that large matrices take no memory.
    a, b = (np.lib.stride_tricks.sliding_window_view(np.zeros(x + y - 1, dtype), y) for x, y in ((m, k), (k, n)))
    return prismm.explain(a, b, **keywords)


def test_the_default_takes_residues_where_a_tile_unit_is_faster_than_blas(tile_unit):
    for dtype, moduli in (("float64", 15), ("float32", 7), ("complex128", 15)):
        plan = of_size(2048, 2048, 2048, dtype)
        assert (plan.scheme, plan.engine) == (prismm.Residues(moduli), "cpu:amx"), dtype
        assert "fewer seconds are predicted" in plan.reasons[0]
        assert "Native(compute=None)" in [x.scheme for x in plan.alternatives]
    assert of_size(2048, 2048, 2048, accuracy="fast").scheme == prismm.Residues(15)
    # Small or thin products, those that an engine is asked for, and batches of small ones stay with BLAS.
    for plan in (
        of_size(500, 500, 500), of_size(1 << 14, 1 << 14, 8), of_size(100, 1 << 14, 1 << 13),
        of_size(2048, 2048, 2048, engine="cpu:blas"),
    ):  # fmt: skip
        assert plan.scheme == prismm.Native()
    assert of_size(2048, 2048, 2048, "float32", **CORRECT).engine == "cpu:amx"


def test_the_default_stays_with_blas_where_residues_would_not_pay(tile_unit):
    tile_unit["share"] = 0.5  # every other certificate fails, as where half of the terms are zeros
    assert of_size(2048, 2048, 2048).scheme == prismm.Native()
    tile_unit["share"] = 0.0
    for slower in ({"residue": 5e11}, {"float64": 9e10}, {"join": 5e7}, {"split": 2e8}):
        costs.rates_of.cache_clear()
        tile_unit["rates"] = replace(
            costs.RATES["cpu:vnni"], **({"residue": 1.2e12, "split": 4e9, "join": 2e9} | slower)
        )
        assert of_size(2048, 2048, 2048).scheme == prismm.Native(), slower


@pytest.mark.needs_engine("cpu:amx")
def test_data_whose_certificates_fail_are_seen_in_a_sample(rng):
    """Norms that say little of |a||b| leave certificates open; the share is that of the whole product."""
    for dtype in ("float64", "complex128"):
        a, b = rng.standard_normal((300, 200)).astype(dtype), rng.standard_normal((200, 250)).astype(dtype)
        if dtype == "complex128":  # real numbers as complex ones: all imaginary parts are sums of zeros
            expected = 0.5
        else:
            a[:, :100], b[:100], expected = 1e9 * a[:, :100], 0.0, 0.9  # the large half of a meets zeros
        problem = of(a, b)
        share = choice.uncertified_share(problem, choice.Sample(a, b, np.dtype(dtype)), 15, "cpu:amx")
        assert share >= expected
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 250))
    assert choice.uncertified_share(of(a, b), choice.Sample(a, b, np.dtype("f8")), 15, "cpu:amx") == 0.0


def of(a: np.ndarray, b: np.ndarray) -> Problem:
    return Problem(
        len(a), a.shape[1], b.shape[1], (), FP64, parse_target("native"), reproducible=False, one_type=True,
        is_complex=a.dtype.kind == "c",
    )  # fmt: skip


@pytest.mark.needs_engine("cpu:amx")
def test_rates_are_measured_once_and_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(measured, "cache_folder", lambda: tmp_path)
    count = []
    taken = functools.cache(measured.measure)  # they are measured once, whatever is asked for
    monkeypatch.setattr(measured, "measure", lambda engine: count.append(engine) or taken(engine))
    first = measured._rates("cpu:amx", "here")
    path = tmp_path / measured.FILE
    assert path.exists() and count == ["cpu:amx"]
    assert measured._rates("cpu:amx", "here") == first and len(count) == 1
    assert 1e11 < first.residue < 1e13 and first.float64 < first.float32
    whole = path.read_bytes()
    other = {"engine": "cpu:amx", "processor": "another", "rates": {}}
    for spoiled in (b"", whole[:-20], whole.replace(b"here", b"else"), json.dumps(other).encode(), b"[1]",
                    whole.replace(b'"residue": ', b'"residue": -')):  # fmt: skip
        path.write_bytes(spoiled)
        measured._rates("cpu:amx", "here")
    assert len(count) == 7
    assert json.loads(path.read_bytes())["processor"] == "here"
