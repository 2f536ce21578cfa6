"""Rates from timed calls: those that made the times come back, whatever the host, and an H200's times are predicted.

The machine is simulated by two clocks: what `prismm.cuda.costs.calibrate` times there goes through its own functions.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import doctest
import importlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import prismm.cuda.costs.calibrate
import prismm.cuda.costs.fit
from prismm.core.problem import Problem
from prismm.core.request import check_request
from prismm.cuda import plan as cuda_plan
from prismm.cuda.costs import host_speed as host_speed
from prismm.cuda.costs.calibrate import CASES, ROUNDS, Case, Subject, queued_seconds_of, seconds_of
from prismm.cuda.costs.fit import RIGHT
from prismm.cuda.costs.predict import gpu_seconds, native_seconds, predict
from prismm.cuda.costs.table import Host, Line, Rates, committed
from prismm.cuda.costs.tuning import Tuning
from prismm.cuda.device import FP64 as FP64_UNIT
from prismm.cuda.device import INT8, Device
from prismm.cuda.multiword.implementation import seconds_in, shares_for
from prismm.cuda.native.seconds import checked_seconds, cublas_seconds
from prismm.cuda.residues import implementation as residues_implementation
from prismm.cuda.residues.seconds import WHOLE, right_launches
from prismm.errors import EngineError
from prismm.formats import FP64
from prismm.schemes import Native, Residues, ScaledHalf, Words

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))
gpu_rates = importlib.import_module("gpu_rates")
problem_of = gpu_rates.problem_of
RESULTS = BENCHMARKS / "results"
H200 = Device("NVIDIA H200", True, True, 132)


class Machine:
    """A GPU and its host, by a clock each: what the host hands over begins `LATENCY` later, and not before the GPU is
    done with what came earlier. slow: how many times as long all takes the host; noise: factor of a single timing.
    """

    LATENCY, BETWEEN, RECORD, LAUNCH, PACE = 2e-6, 1e-6, 5e-6, 6e-6, 1.6e-5
    OURS, THEIRS = (9e-6, 3e-6), (8e-6, 5e-6)
    """Seconds of the host before an event is on its way, and a kernel; and in calls, before and after their launch."""

    def __init__(self, monkeypatch, slow=1.0, noise=lambda: 1.0, ours=OURS, theirs=THEIRS):
        self.slow, self.noise, self.ours, self.theirs = slow, noise, ours, theirs
        self.host = self.gpu = 0.0
        machine = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self):
                machine.spend(machine.RECORD)
                self.at = machine.queue(machine.BETWEEN)

            def query(self):
                return machine.host >= self.at

            def synchronize(self):
                machine.host = max(machine.host, self.at)

            def elapsed_time(self, later):
                return 1e3 * (later.at - self.at) * machine.noise()

        self.patch = monkeypatch.setattr
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(host_speed, "seconds", lambda: self.slow * self.PACE)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.launch(cycles / 2e9))

    def spend(self, seconds):
        self.host += self.slow * seconds

    def queue(self, seconds):
        self.gpu = max(self.gpu, self.host + self.LATENCY) + seconds
        return self.gpu

    def launch(self, seconds):
        self.spend(self.LAUNCH)
        self.queue(seconds)

    def call(self, seconds, host=None):
        """A call of prismm, or of another host's share, that keeps the GPU busy for so long."""
        before, after = host or self.ours
        self.spend(before)
        self.queue(seconds)
        self.spend(after)

    def share(self, host) -> Host:
        """That of the host in calls, seen between two events."""
        before, after = host
        return Host(self.slow * before, self.slow * (before + after + self.RECORD))

    def truth(self, table) -> Rates:
        """The table with this machine's host."""
        return dataclasses.replace(
            table, call=self.share(self.ours), torch=self.share(self.theirs), host_speed=self.slow * self.PACE
        )

    def subject(self, table, case: Case, factor=lambda: 1.0) -> Subject:
        """What a GPU of these rates would take for a call; factor: of what each kernel takes more."""
        problem = problem_of(case.n, case.dtype, case.accuracy)
        kernels = {name: seconds * factor() for name, seconds in kernels_of(table, case).items()}
        native = cublas_seconds(problem, table) * factor()
        whole = sum(kernels.values()) + ("finish_native" in kernels) * native
        return Subject(
            problem, case.scheme, lambda: self.call(whole), lambda: self.call(native, self.theirs),
            (lambda: self.launch(30 * whole), 30), (lambda: self.launch(30 * native), 30),
            [(name, lambda x=x: self.launch(x), lambda: [self.launch(2e-6) for _ in range(3)])
             for name, x in kernels.items()],
        )  # fmt: skip

    def calibrated(self, table, factor=lambda: 1.0, fp8_sum_bits=0) -> Rates:
        """What a calibration finds. factor: what a kernel of a case takes more, in all rounds."""
        subjects = {case: self.subject(table, case, factor) for case in CASES}
        device = SimpleNamespace(
            name=table.name, multi_processor_count=table.processors, sm90=table.sm90, fp8_sum_bits=fp8_sum_bits
        )
        self.patch(prismm.cuda.device, "device_of", lambda index: device)
        self.patch(torch.cuda, "get_device_properties", lambda index: device)
        self.patch(torch.cuda, "mem_get_info", lambda *index: (140 << 30, 141 << 30))
        self.patch(torch.cuda, "device", lambda index: contextlib.nullcontext())
        self.patch(prismm.cuda.costs.calibrate, "_subject", subjects.__getitem__)
        self.patch(prismm.cuda.costs.calibrate, "_memory", lambda between: table.memory)
        directly = 1e12, 1e12 / table.multiword_fused + table.tuning.multiword_launches / 2
        self.patch(prismm.cuda.costs.calibrate, "_multiword_fused", lambda *rest: directly)
        self.patch(prismm.cuda.costs.calibrate, "_sustained", lambda processors, free: table.sustained)
        said: list[str] = []
        found = prismm.cuda.costs.calibrate.measure(0, said.append)
        assert len(said) == ROUNDS * len(CASES) + 1
        return found


def kernels_of(table, case: Case) -> dict[str, float]:
    """Seconds of a call's kernels, which predictions add up."""
    n, dtype, scheme, accuracy, engine = case
    problem = problem_of(n, dtype, accuracy)
    whole, elements = gpu_seconds(scheme, problem, table, engine), float(n * n)
    if engine == FP64_UNIT or scheme == Native("float64"):
        return {"multiply_directly": whole}
    if isinstance(scheme, Native):
        return {"finish_native": checked_seconds(problem, table)}
    if isinstance(scheme, ScaledHalf):
        split = table.multiword_split.seconds(2 * elements, 2)
        repair = table.tuning.multiword_launches / 2
        kernels = {"split_words": split, "repair_words": repair}
        if shares_for(scheme, problem, table) > 1:
            kernels["add_shares"] = table.tuning.multiword_join
        return {**kernels, "words_product": whole - sum(kernels.values())}
    moduli, rounded = scheme.moduli, accuracy == "correctly-rounded"
    launches = right_launches(problem, moduli, table.processors, sm90=table.sm90)
    right = table.right.seconds(elements, moduli) - (1.0 - launches) * table.right.launch
    kernels = {name: share * right for name, share in zip(RIGHT, (0.1, 0.2, 0.7), strict=False)}
    kernels["split_rows"] = table.left.seconds(elements, moduli) + n * table.tuning.split_vector
    kernels["join_fast"] = (table.rounded if rounded else table.join).seconds(elements, moduli)
    launches, looks = (1.0, Tuning().rejoin_rounded if rounded else 1) if problem.result == FP64 else (0.5, 1.0)
    kernels["finish"] = launches * table.finish.launch + looks * elements * table.finish.element
    kernels["residue_product"] = whole - sum(kernels.values())
    return kernels


def rates(rng) -> Rates:
    """Of a GPU that might be; no size may be so small that memory limits its own product."""

    def some(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def line():
        return Line(some(2e-6, 5e-5), some(1e-13, 5e-12), some(1e-13, 2e-12))

    int8 = some(2e14, 4e15)
    nobody = Host(1.0, 1.0)
    return Rates(
        name="NVIDIA X1", processors=int(rng.integers(40, 160)), float64=some(1e12, 8e13), float32=some(1e13, 1e14),
        launch=some(1e-6, 4e-6), check=some(1e-6, 4e-6), memory=1e15, call=nobody, torch=nobody, host_speed=1.6e-5,
        fp64_kernel=some(0.5, 2.0), int8=int8, sustained=int8 * rng.uniform(0.7, 1.0), product=some(2e-6, 5e-5),
        left=line(), right=line(), join=line(), rounded=line(), finish=Line(some(5e-6, 3e-5), some(1e-12, 1e-11), 0.0),
        repair=5e-11, multiword=some(1e14, 2e15), multiword_fused=some(5e13, 1e15),
        multiword_split=Line(some(5e-6, 3e-5), 0.0, some(1e-13, 3e-12)),
        sm90=bool(rng.integers(2)),
    )  # fmt: skip


def swept_needs() -> list[Problem]:
    """What the calls of the sweep asked."""
    return [one.problem for _, _, one in gpu_rates.swept(RESULTS / "gpu_sweep.csv")]


def chosen(needs, table, monkeypatch) -> list[tuple[object, str]]:
    """Scheme and engine that Auto takes by a table."""
    for module in (cuda_plan, residues_implementation):
        monkeypatch.setattr(module, "rates_of", lambda name: table)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140 << 30, 141 << 30))
    options = check_request("native", None, False, None, None, None, np.ones((1, 1)), np.ones((1, 1)))[0]
    choices = [cuda_plan.choose(problem, options, H200) for problem in needs]
    return [(choice.scheme, choice.engine) for choice in choices]


def numbers(table) -> dict[str, float]:
    """All numbers of a table."""
    found = {}
    for name, value in dataclasses.asdict(table).items():
        found |= {f"{name}.{k}": v for k, v in (value if isinstance(value, dict) else {"": value}).items()}
    return {name: value for name, value in found.items() if not isinstance(value, (str, dict))}


@pytest.mark.parametrize("attempt", [*range(5), *(pytest.param(i, marks=pytest.mark.slow) for i in range(5, 20))])
def test_rates_come_back_from_the_times_that_they_make(attempt, rng, monkeypatch):
    host = [tuple(rng.uniform(4e-6, 2e-5, 2)) for _ in range(2)]
    machine = Machine(monkeypatch, 1.0, ours=host[0], theirs=host[1])
    machine.RECORD = 3e-5  # a slow GPU takes as long for its own product of order 64
    table = machine.truth(rates(rng))
    found = numbers(machine.calibrated(table))
    for name, theirs in numbers(table).items():
        assert found[name] == pytest.approx(theirs, rel=1e-4, abs=1e-18), name


@pytest.mark.parametrize(("bits", "expected"), [(0, 0.0), (14, 0.0), (24, 1.5e15)])
def test_fp8_is_timed_where_blocks_are_summed_in_the_unit(bits, expected, rng, monkeypatch):
    """INT8 is timed by itself, whatever Auto chooses."""
    machine = Machine(monkeypatch, 1.0)
    monkeypatch.setattr(prismm.cuda.costs.calibrate, "fp8_rate", lambda processors: 1.5e15)
    found = machine.calibrated(machine.truth(rates(rng)), fp8_sum_bits=bits)
    assert found.tuning == Tuning(fp8=expected)
    assert all(case.engine == INT8 for case in CASES if isinstance(case.scheme, Residues))


def test_what_is_timed_is_made_whole():
    assert max(case.n for case in CASES) ** 3 <= WHOLE


def test_noise_leaves_predictions_close(rng, monkeypatch):
    machine = Machine(monkeypatch, noise=lambda: rng.uniform(0.97, 1.03))
    table = machine.truth(rates(rng))
    found = machine.calibrated(table, lambda: rng.uniform(0.93, 1.07))
    for case in CASES:
        problem = problem_of(case.n, case.dtype, case.accuracy)
        ours, theirs = (predict(case.scheme, problem, one, case.engine) for one in (found, table))
        assert 0.8 < ours / theirs < 1.25


def check_predictions(machine, needs, choices, found, table, close):
    """What a calibration predicts beside what the machine takes, of calls of prismm and of torch."""
    machine.noise = lambda: 1.0
    for problem, (scheme, engine) in zip(needs, choices, strict=True):
        gpu, own = gpu_seconds(scheme, problem, table, engine), cublas_seconds(problem, table)
        seconds = seconds_of(lambda gpu=gpu: machine.call(gpu))
        theirs = seconds_of(lambda own=own: machine.call(own, machine.theirs))
        assert predict(scheme, problem, found, engine) == pytest.approx(seconds, rel=close), (problem, scheme)
        assert native_seconds(problem, found) == pytest.approx(theirs, rel=close), problem


@pytest.mark.slow
def test_a_slower_host_changes_no_choice(monkeypatch):
    needs, table = swept_needs(), committed()[H200.name]
    expected = chosen(needs, table, monkeypatch)
    assert len(set(map(str, expected))) >= 6
    of_the_gpu = []
    for slow in (1.0, 2.0, 3.0, 40.0):
        machine = Machine(monkeypatch, slow)
        found = machine.calibrated(table)
        assert chosen(needs, found, monkeypatch) == expected
        check_predictions(machine, needs, expected, found, table, 0.02)
        assert found.call.before - found.torch.before == pytest.approx(slow * 1e-6, rel=1e-3)
        of_the_gpu.append(
            {k: v for k, v in numbers(found).items() if not k.startswith(("call", "torch", "host_speed"))}
        )
    for one in of_the_gpu[1:]:
        assert one == pytest.approx(of_the_gpu[0], rel=1e-6)


def test_times_of_which_one_in_ten_is_twice_as_long_change_no_choice(rng, monkeypatch):
    needs, table = swept_needs(), committed()[H200.name]
    expected = chosen(needs, table, monkeypatch)
    machine = Machine(monkeypatch, noise=lambda: 2.0 if rng.random() < 0.1 else 1.0)
    found = machine.calibrated(table)
    assert chosen(needs, found, monkeypatch) == expected
    check_predictions(machine, needs, expected, found, table, 0.03)


def test_a_host_that_is_busy_for_one_round_changes_nothing(monkeypatch):
    table = committed()[H200.name]
    machine = Machine(monkeypatch)
    expected = numbers(machine.calibrated(table))
    turns = iter(range(ROUNDS * len(CASES)))
    subjects = prismm.cuda.costs.calibrate._subject

    def subject(case):
        machine.slow = 1.0 if next(turns) < len(CASES) else 4.0
        return subjects(case)

    def patch(where, name, value):
        monkeypatch.setattr(where, name, subject if name == "_subject" else value)

    machine.patch = patch
    assert numbers(machine.calibrated(table)) == pytest.approx(expected, rel=1e-6)
    assert machine.slow == 4.0


def test_choices_by_noisy_times_are_as_good(rng, monkeypatch):
    needs, table = swept_needs(), committed()[H200.name]
    expected = chosen(needs, table, monkeypatch)
    machine = Machine(
        monkeypatch, 2.0, noise=lambda: rng.uniform(0.97, 1.03) * (2.0 if rng.random() < 0.1 else 1.0)
    )  # fmt: skip
    found = machine.calibrated(table)
    choices = chosen(needs, found, monkeypatch)
    check_predictions(machine, needs, expected, found, table, 0.06)
    for problem, ours, theirs in zip(needs, choices, expected, strict=True):
        seconds = [gpu_seconds(scheme, problem, table, engine) for scheme, engine in (ours, theirs)]
        # Something else than cuBLAS has to be faster by as much as predictions may be off.
        most = 1.0 + max(x for x in dataclasses.asdict(table.errors).values() if not isinstance(x, str))
        assert seconds[0] <= 1.03 * most * seconds[1], (problem, ours, theirs)


def test_the_host_has_no_part_in_what_is_queued(monkeypatch):
    machine = Machine(monkeypatch, 300.0)
    for seconds in (0.0, 1e-6, 1e-3):
        found = queued_seconds_of(lambda s=seconds: machine.launch(s), lambda: machine.launch(5e-6))
        assert found == pytest.approx(machine.BETWEEN + seconds, rel=1e-9)
    assert seconds_of(lambda: machine.launch(1e-6)) > 300 * machine.LAUNCH
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    with pytest.raises(EngineError, match="before the host had queued"):
        queued_seconds_of(lambda: machine.launch(1e-6))
    with pytest.raises(EngineError, match="before the host had queued"):
        queued_seconds_of(lambda: machine.launch(1e-6), lambda: setattr(machine, "host", machine.gpu))


@pytest.mark.gpu
def test_a_host_that_sleeps_has_no_part_in_it_on_a_gpu_either():
    x = torch.zeros(1024, device="cuda")

    def late():
        time.sleep(2e-3)
        x.add_(1.0)

    for _ in range(3):
        late()
    assert seconds_of(late) > 1.9e-3
    assert 0.0 < queued_seconds_of(late) < 5e-4
    assert 0.0 < queued_seconds_of(late, late) < 5e-4


def test_lines_are_those_of_an_optimiser(rng):
    nnls = pytest.importorskip("scipy.optimize").nnls
    for _ in range(50):
        rows = rng.uniform(0.0, 1.0, (12, 3)) * [1.0, 1e6, 1e8]
        seconds = rows @ (rng.standard_normal(3) * [1e-5, 1e-11, 1e-13]) + 1e-4 * rng.uniform(0.5, 1.5, 12)
        seconds = np.abs(seconds)
        scaled = rows / seconds[:, None]
        wanted, _ = nnls(scaled / scaled.max(axis=0), np.ones(12))
        found = np.array(prismm.cuda.costs.fit._line(rows.tolist(), seconds.tolist()))
        errors = [np.square(scaled @ x - 1.0).sum() for x in (found, wanted / scaled.max(axis=0))]
        assert errors[0] <= errors[1] * (1 + 1e-6) and (found >= 0).all()


def test_an_h200s_times_are_predicted():
    for gpu, rows in gpu_rates.recorded(RESULTS / "gpu_gemm.csv").items():
        assert len(rows) >= 36
        for name, one in rows:
            predicted = predict(one.scheme, one.problem, committed()[gpu])
            assert 0.75 < predicted / one.seconds < 1.25, name


def test_other_shapes_of_it_too():
    """Beside a host as fast as it was just before; and as `explain` said then."""
    swept = gpu_rates.swept(RESULTS / "gpu_sweep.csv")
    assert len(swept) >= 200
    for gpu, engine, one in swept:
        table = committed()[gpu]
        if isinstance(one.scheme, (ScaledHalf, Words)):  # when the sweep ran, one processor made each tile
            predicted = table.call.seconds(seconds_in(1, one.scheme, one.problem, table), one.slower)
        else:
            predicted = predict(one.scheme, one.problem, table, engine, one.slower)
        assert 0.75 < predicted / one.seconds < 1.25, one.problem
    with (RESULTS / "gpu_sweep.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert 0.75 < float(row["predicted_ms"]) / float(row["ms"]) < 1.25, row


def test_the_default_is_not_slower_than_cublas():
    with (RESULTS / "gpu_sweep.csv").open(newline="") as file:
        ratios = [float(row["ratio"]) for row in csv.DictReader(file) if row["gpu"] == H200.name]
    assert len(ratios) >= 200 and min(ratios) >= 1 / 1.03


@pytest.mark.parametrize("file", ["gpu_sweep.csv", "gpu_sweep_h100.csv"])
def test_a_sweep_is_of_what_auto_chooses_or_of_what_takes_about_as_long(file, monkeypatch):
    swept = gpu_rates.swept(RESULTS / file)
    (gpu,) = {gpu for gpu, _, _ in swept}
    table = committed()[gpu]
    choices = chosen([one.problem for _, _, one in swept], table, monkeypatch)
    others = [
        gpu_seconds(scheme, one.problem, table, engine) / gpu_seconds(one.scheme, one.problem, table, measured)
        for (_, measured, one), (scheme, engine) in zip(swept, choices, strict=True)
        if (scheme, engine) != (one.scheme, measured)
    ]
    assert len(others) <= len(swept) / 6 and all(0.85 < ratio < 1.15 for ratio in others), others


def test_an_h100_does_as_its_table_says():
    with (RESULTS / "gpu_sweep_h100.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    close = [0.75 < float(row["predicted_ms"]) / float(row["ms"]) < 1.25 for row in rows]
    slower = [float(row["ratio"]) < 1 / 1.03 for row in rows]
    assert len(rows) >= 200 and sum(close) >= 0.9 * len(rows) and sum(slower) <= 0.01 * len(rows)


def test_what_an_h200_takes_without_its_host_too():
    table = committed()[H200.name]
    graphs = gpu_rates.in_graphs(RESULTS / "gpu_direct.csv", H200.name)
    one_kernel = [
        gpu_seconds(Native(), problem, table, FP64_UNIT) / times["chosen"] for problem, times in graphs.items()
    ]
    looked = [gpu_seconds(Native(), problem, table) / times["cuBLAS, looked at"] for problem, times in graphs.items()]
    assert len(graphs) >= 90 and sum(0.75 < ratio < 1.25 for ratio in one_kernel) >= 0.95 * len(graphs)
    assert sum(0.65 < ratio < 1.5 for ratio in looked) >= 0.95 * len(graphs)
    swept = [
        gpu_seconds(one.scheme, one.problem, table, engine) / (one.replayed - 4.3e-6)
        for gpu, engine, one in gpu_rates.swept(RESULTS / "gpu_sweep.csv")
        if one.replayed > 25e-6
    ]
    assert len(swept) >= 120 and sum(0.75 < ratio < 1.25 for ratio in swept) >= 0.95 * len(swept)


def test_of_cublas_and_one_kernel_auto_takes_the_faster_one(monkeypatch):
    """As an H200 measured them, in graphs; predictions are no closer than a tenth."""
    table, slower, shapes = committed()[H200.name], [], 0
    graphs = gpu_rates.in_graphs(RESULTS / "gpu_direct.csv", H200.name)
    for times, (scheme, engine) in zip(graphs.values(), chosen(graphs, table, monkeypatch), strict=True):
        if isinstance(scheme, Native):
            shapes += 1
            ours, theirs = times["chosen"], times["cuBLAS, looked at"]
            slower.append((ours if engine == FP64_UNIT else theirs) / min(ours, theirs))
    assert shapes >= 70 and max(slower) < 1.12 and sum(ratio > 1.02 for ratio in slower) <= 0.05 * shapes


@pytest.mark.slow
def test_the_committed_host_is_that_of_the_results():
    table = committed()[H200.name]
    assert numbers(gpu_rates.from_results(table)) == pytest.approx(numbers(table), rel=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n", "k"), [(64, 8192), (64, 131072), (256, 32768), (256, 131072)])
def test_cublas_cuts_long_inner_dimensions(n, k, dtype):
    problem = dataclasses.replace(problem_of(n, dtype, "native"), k=k)
    options = check_request("native", None, False, None, None, None, np.ones((1, 1)), np.ones((1, 1)))[0]
    choice = cuda_plan.choose(problem, options, H200)
    assert isinstance(choice.scheme, Native)  # by cuBLAS, or in parts
    # As measured: residues take three times as long as cuBLAS, or more.
    table = committed()["NVIDIA H200"]
    residues = gpu_seconds(Residues(14 if dtype == "float64" else 7), problem, table)
    assert residues > 2 * cublas_seconds(problem, table)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("empty", [{"k": 0}, {"m": 0}, {"n": 0}, {"batch": (0,)}, {"k": 0, "batch": (0,)}])
def test_empty_products_are_planned(empty, dtype, monkeypatch):
    problem = dataclasses.replace(problem_of(4, dtype, "native"), **empty)
    [(scheme, _)] = chosen([problem], committed()[H200.name], monkeypatch)
    assert isinstance(scheme, Native)


def test_cublas_is_slower_where_rows_begin_within_sectors_of_the_cache():
    table = committed()["NVIDIA H200"]

    def seconds(order, dtype, **others):
        problem = dataclasses.replace(problem_of(order, dtype, "native"), **others)
        return cublas_seconds(problem, table) - table.launch

    for n in (1777, 3333):  # in tiles of 64 as many as of the next multiple of four
        whole = seconds(n + 3, "float64")
        # 40 TFLOP/s in place of 56, as measured.
        assert 1.3 < seconds(n, "float64") / whole < 1.5
        assert 1.0 < seconds(n + 3, "float64", k=n + 1) / whole < seconds(n + 1, "float64") / whole < 1.4
        assert seconds(n, "float32") == pytest.approx(seconds(n + 3, "float32"), rel=0.05)
    assert seconds(1777, "float64", n=1) < 1.01 * seconds(1778, "float64", n=1)


def test_a_batch_has_the_launches_of_one_product():
    table = committed()["NVIDIA H200"]
    one, many = (dataclasses.replace(problem_of(512, "float64", "native"), batch=batch) for batch in ((), (64,)))
    launches = table.product + table.left.launch + table.right.launch + table.join.launch
    single, whole = (gpu_seconds(Residues(14), problem, table) for problem in (one, many))
    assert single < whole < 64 * (single - launches) + launches + 1e-9


def test_examples():
    assert doctest.testmod(prismm.cuda.costs.fit).failed == 0
