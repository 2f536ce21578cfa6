"""Rates from timed calls: those that made the times come back, and an H200's times are predicted."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import prismm.calibration
from prismm import cuda_plan
from prismm.calibration import RIGHT, Case, Timed, fit
from prismm.calls import check_options
from prismm.cuda_rates import LOOK, Line, Rates, committed
from prismm.engines import cuda
from prismm.engines.cuda_slices import FP64 as FP64_UNIT
from prismm.formats import FP64
from prismm.schemes import Native, Residues, ScaledHalf

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))
gpu_rates = importlib.import_module("gpu_rates")
need_of = gpu_rates.need_of


def rates(rng) -> Rates:
    """Of a GPU that might be."""

    def some(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def line():
        return Line(some(5e-6, 5e-5), some(1e-13, 5e-12), some(1e-13, 2e-12))

    int8 = some(2e14, 4e15)
    return Rates(
        name="NVIDIA X1", processors=int(rng.integers(40, 160)), float64=some(1e12, 8e13), float32=some(1e13, 1e14),
        launch=some(3e-6, 2e-5), memory=some(1e12, 8e12), call=some(3e-5, 2e-4),
        call_natively=some(1e-5, 1e-4), call_directly=some(1e-5, 1e-4), direct=some(0.5, 8.0), int8=int8,
        sustained=int8 * rng.uniform(0.7, 1.0), product=some(1e-5, 5e-5), left=line(), right=line(), join=line(),
        rounded=line(), finish=Line(some(5e-6, 3e-5), some(1e-12, 1e-11), 0.0), repair=5e-11, words=some(1e14, 2e15),
        split_words=Line(some(5e-6, 3e-5), 0.0, some(1e-13, 3e-12)),
    )  # fmt: skip


def timed(table, case: Case):
    """A call as a GPU of these rates would take it."""
    n, dtype, scheme, accuracy, engine = case
    need = need_of(n, dtype, accuracy)
    elements = float(n * n)
    native = cuda_plan.native_seconds(need, table)
    if engine == FP64_UNIT or scheme == Native("float64"):
        whole = cuda_plan.predict(scheme, need, table, engine)
        return Timed(need, scheme, whole, native, {"multiply_directly": whole - table.call_directly})
    if isinstance(scheme, Native):
        look = {"finish_native": cuda_plan.checked_seconds(need, table)}
        return Timed(need, scheme, cuda_plan.predict(scheme, need, table), native, look)
    if isinstance(scheme, ScaledHalf):
        split = table.split_words.seconds(2 * elements, 2)
        whole = cuda_plan.predict(scheme, need, table)
        phases = {"split_words": split, "words_product": whole - split - LOOK - table.call}
        return Timed(need, scheme, whole, native, {**phases, "repair_words": LOOK})
    moduli, rounded = scheme.moduli, accuracy == "correctly-rounded"
    right = table.right.seconds(elements, moduli)
    phases = {name: share * right for name, share in zip(RIGHT, (0.1, 0.2, 0.7), strict=False)}
    phases["split_rows"] = table.left.seconds(elements, moduli)
    phases["join_quickly"] = (table.rounded if rounded else table.join).seconds(elements, moduli)
    looks = (cuda_plan._ROUNDED_LOOKS if rounded else 1) * elements if need.result == FP64 else 0.0
    phases["finish"] = table.finish.seconds(looks, 0)
    whole = cuda_plan.predict(scheme, need, table)
    phases["residue_product"] = whole - sum(phases.values()) - table.call
    return Timed(need, scheme, whole, native, phases)


def calls(table):
    # No size may be so small that memory limits the GPU's own product, or so large that power limits residues.
    return [timed(table, case) for case in prismm.calibration.CASES]


@pytest.mark.parametrize("attempt", range(20))
def test_rates_come_back_from_the_times_that_they_make(attempt, rng):
    table = dataclasses.replace(rates(rng), memory=1e15)
    found = fit(
        table.name, table.processors, calls(table), launch=table.launch, memory=table.memory, sustained=table.sustained
    )  # fmt: skip
    for field in dataclasses.fields(Rates):
        ours, theirs = getattr(found, field.name), getattr(table, field.name)
        if isinstance(theirs, Line):
            assert np.allclose(dataclasses.astuple(ours), dataclasses.astuple(theirs), rtol=1e-4, atol=1e-18), (
                field.name
            )
        elif isinstance(theirs, str):
            assert ours == theirs
        else:
            assert np.isclose(ours, theirs, rtol=1e-4), field.name


def test_noise_leaves_predictions_close(rng):
    table = dataclasses.replace(rates(rng), memory=1e15)
    noisy = []
    for one in calls(table):
        phases = {name: seconds * rng.uniform(0.93, 1.07) for name, seconds in one.phases.items()}
        noisy.append(dataclasses.replace(one, phases=phases, seconds=one.seconds * rng.uniform(0.97, 1.03)))
    found = fit(
        table.name, table.processors, noisy, launch=table.launch, memory=table.memory, sustained=table.sustained
    )
    for one in calls(table):
        engine = FP64_UNIT if "multiply_directly" in one.phases else None
        assert 0.8 < cuda_plan.predict(one.scheme, one.need, found, engine) / one.seconds < 1.25


def test_lines_are_those_of_an_optimiser(rng):
    nnls = pytest.importorskip("scipy.optimize").nnls
    for _ in range(50):
        rows = rng.uniform(0.0, 1.0, (12, 3)) * [1.0, 1e6, 1e8]
        seconds = rows @ (rng.standard_normal(3) * [1e-5, 1e-11, 1e-13]) + 1e-4 * rng.uniform(0.5, 1.5, 12)
        seconds = np.abs(seconds)
        scaled = rows / seconds[:, None]
        wanted, _ = nnls(scaled / scaled.max(axis=0), np.ones(12))
        found = np.array(prismm.calibration._line(rows.tolist(), seconds.tolist()))
        errors = [np.square(scaled @ x - 1.0).sum() for x in (found, wanted / scaled.max(axis=0))]
        assert errors[0] <= errors[1] * (1 + 1e-6) and (found >= 0).all()


def test_an_h200s_times_are_predicted():
    for gpu, rows in gpu_rates.recorded(BENCHMARKS / "results/gpu_gemm.csv").items():
        assert len(rows) >= 36
        for name, one in rows:
            predicted = cuda_plan.predict(one.scheme, one.need, committed()[gpu])
            assert 0.75 < predicted / one.seconds < 1.25, name


def test_other_shapes_of_it_too():
    swept = gpu_rates.swept(BENCHMARKS / "results/gpu_sweep.csv")
    ratios = [
        cuda_plan.predict(one.scheme, one.need, committed()[gpu], engine) / one.seconds for gpu, engine, one in swept
    ]
    close = sum(0.75 < ratio < 1.25 for ratio in ratios)
    assert len(ratios) >= 200 and close >= 0.9 * len(ratios), f"{close} of {len(ratios)}"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n", "k"), [(64, 8192), (64, 131072), (256, 32768), (256, 131072)])
def test_cublas_cuts_long_inner_dimensions(n, k, dtype):
    need = dataclasses.replace(need_of(n, dtype, "native"), k=k)
    options = check_options("native", None, False, None, None, None, np.ones((1, 1)), np.ones((1, 1)))[0]
    choice = cuda_plan.choose(need, options, cuda.Device("NVIDIA H200", True, True, 132))
    assert choice.scheme == Native()
    # As measured: residues take three times as long as cuBLAS, or more.
    table = committed()["NVIDIA H200"]
    residues = cuda_plan.predict(Residues(14 if dtype == "float64" else 7), need, table)
    assert residues > 2 * cuda_plan.native_seconds(need, table)


def test_cublas_is_slower_where_rows_begin_at_odd_multiples_of_eight_bytes():
    table = committed()["NVIDIA H200"]

    def seconds(order, dtype, **others):
        need = dataclasses.replace(need_of(order, dtype, "native"), **others)
        return cuda_plan.native_seconds(need, table) - table.launch

    for n in (1777, 3333):  # in tiles of 64 as many as of the next even order
        assert 1.15 < seconds(n, "float64") / seconds(n + 1, "float64") < 1.25
        assert seconds(n, "float32") == pytest.approx(seconds(n + 1, "float32"), rel=0.01)
    assert seconds(1777, "float64", n=1) < 1.01 * seconds(1778, "float64", n=1)


def test_a_batch_has_the_launches_of_one_product():
    table = committed()["NVIDIA H200"]
    one, many = (dataclasses.replace(need_of(512, "float64", "native"), batch=batch) for batch in ((), (64,)))
    launches = table.call + table.product + table.left.launch + table.right.launch + table.join.launch
    single, whole = (cuda_plan.predict(Residues(14), need, table) for need in (one, many))
    assert single < whole < 64 * (single - launches) + launches + 1e-9


def test_examples():
    assert doctest.testmod(prismm.calibration).failed == 0
