"""Estimates at first use: measured once, kept safely, never while a stream is captured. The GPU is pretended."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import prismm
from prismm.cli import env
from prismm.core import cache_files
from prismm.cuda.costs import first_use, measurement
from prismm.cuda.costs.derive import Measured, derived
from prismm.cuda.costs.facts import cards, from_attributes
from prismm.cuda.costs.first_use import ESTIMATED, estimate_rates, estimated, is_estimated
from prismm.cuda.costs.table import committed, rates_of, user_file
from prismm.cuda.device import Device
from prismm.errors import EngineError
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from tests.cuda.harness.pretended import GPUS, pretended

NAME = "NVIDIA GeForce RTX 4080 of tomorrow"
GPU = Device(NAME, False, True, 76)
FACTS = from_attributes(NAME, {13: 2505000, 16: 76, 36: 11201000, 37: 256, 75: 8, 76: 9, 87: 64})
FOUND = Measured(float64=7e11, float32=4e13, memory=6e11, launch=3e-6, int8=2e14)


class Gpu:
    """What the pretended GPU is asked."""

    def __init__(self):
        self.measured, self.capturing, self.error, self.pause, self.found = 0, False, None, 0.0, FOUND

    def measure(self, device, index, begin):
        """Instead of `measurement.measure`."""
        assert (device, index) == (GPU, 0) and not self.capturing
        self.measured += 1
        time.sleep(self.pause)
        if self.error is not None:
            raise self.error
        return self.found


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU of which nothing is known but what its driver says."""
    found = Gpu()
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRISMM_RATES", raising=False)
    monkeypatch.setattr(measurement, "measure", found.measure)
    monkeypatch.setattr(first_use, "facts_of", lambda name, index: FACTS)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    cache_files.tell.cache_clear()
    first_use.forget()
    yield found
    first_use.forget()


def kept(tmp_path):
    return tmp_path / "cache" / "measurements-1" / "nvidia-geforce-rtx-4080-of-tomorrow.json"


def test_it_is_measured_once_and_kept(gpu, tmp_path, capfd):
    assert rates_of(NAME) is None
    for _ in range(3):
        estimate_rates(GPU, 0)
    assert gpu.measured == 1 and rates_of(NAME) == derived(FACTS, FOUND) and is_estimated(NAME)
    assert capfd.readouterr().err.count("prismm calibrate") == 1
    assert json.loads(kept(tmp_path).read_text())["measured"]["int8"] == FOUND.int8
    # As another process would find it, with that GPU or without.
    first_use.forget()
    assert rates_of(NAME) == derived(FACTS, FOUND)
    estimate_rates(GPU, 0)
    assert gpu.measured == 1 and is_estimated(NAME)


def test_nothing_is_measured_while_a_stream_is_captured(gpu, tmp_path):
    gpu.capturing = True
    estimate_rates(GPU, 0)
    assert gpu.measured == 0 and not kept(tmp_path).exists()
    assert rates_of(NAME) == derived(FACTS) and is_estimated(NAME)
    gpu.capturing = False
    estimate_rates(GPU, 0)
    assert gpu.measured == 1 and rates_of(NAME) == derived(FACTS, FOUND)


def test_what_there_was_no_time_for_is_measured_by_a_later_process(gpu):
    """A cold disk: the INT8 product is left out, in two more processes at most."""
    gpu.found = dataclasses.replace(FOUND, int8=None)
    for turn in range(1, 6):
        first_use.forget()
        for _ in range(2):
            estimate_rates(GPU, 0)
        assert gpu.measured == min(turn, 3) and rates_of(NAME) == derived(FACTS, gpu.found)


def test_a_later_process_completes_a_measurement(gpu):
    gpu.found = dataclasses.replace(FOUND, int8=None)
    estimate_rates(GPU, 0)
    gpu.found = FOUND
    for _ in range(3):
        first_use.forget()
        estimate_rates(GPU, 0)
        assert gpu.measured == 2 and rates_of(NAME) == derived(FACTS, FOUND)


def test_a_measurement_on_disk_serves_captures_too(gpu):
    estimate_rates(GPU, 0)
    first_use.forget()
    gpu.capturing = True
    estimate_rates(GPU, 0)
    assert gpu.measured == 1 and rates_of(NAME) == derived(FACTS, FOUND)


@pytest.mark.parametrize("where", ["PRISMM_RATES", "calibrated"])
def test_nothing_is_measured_where_there_is_a_table(gpu, where, monkeypatch, tmp_path):
    mine = dataclasses.replace(committed()["NVIDIA H200"], name=NAME)
    path = tmp_path / "named.json" if where == "PRISMM_RATES" else user_file(NAME, make=True)
    assert path is not None
    path.write_text(mine.to_json())
    if where == "PRISMM_RATES":
        monkeypatch.setenv("PRISMM_RATES", str(path))
    estimate_rates(GPU, 0)
    assert gpu.measured == 0 and rates_of(NAME) == mine and not is_estimated(NAME)
    estimate_rates(GPUS["H100"], 0) if where == "calibrated" else None
    assert gpu.measured == 0


def test_a_table_takes_the_place_of_an_estimate(gpu):
    """`prismm calibrate` in a process that has estimated before."""
    estimate_rates(GPU, 0)
    assert is_estimated(NAME)
    path, mine = user_file(NAME, make=True), dataclasses.replace(committed()["NVIDIA H200"], name=NAME)
    assert path is not None
    cache_files.write(path, mine.to_json().encode())
    rates_of.cache_clear()
    assert rates_of(NAME) == mine and not is_estimated(NAME)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe", b"[]", b"{}", b'{"format": "prismm measurement", "version": 2}', b"[" * 100000,
        *(
            (lambda content: json.dumps(content).encode())(
                {"format": "prismm measurement", "version": 1, "turns": turns,
                 "facts": dataclasses.asdict(FACTS) | facts, "measured": dataclasses.asdict(FOUND) | measured}
            )
            for facts, measured, turns in (
                ({}, {}, True), ({}, {}, "1"), *((facts, measured, 1) for facts, measured in (
                ({"name": "NVIDIA A100"}, {}), ({"capability": [8]}, {}), ({"processors": True}, {}),
                ({"int8": -1.0}, {}), ({"unknown": 1.0}, {}), ({}, {"float64": 0}), ({}, {"float64": None}),
                ({}, {"memory": "1"}), ({}, {"launch": 1e999}), ({"listed": 1}, {}), ({"clock": None}, {}),
                ({"int8": None}, {}))),
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_does_not_count(gpu, tmp_path, content):
    kept(tmp_path).parent.mkdir(parents=True)
    kept(tmp_path).write_bytes(content)
    assert estimated(NAME) is None
    estimate_rates(GPU, 0)
    assert gpu.measured == 1 and rates_of(NAME) == derived(FACTS, FOUND)
    assert json.loads(kept(tmp_path).read_bytes())["measured"] == dataclasses.asdict(FOUND)


@pytest.mark.parametrize("part", ["file", "folder"])
def test_what_another_user_may_have_written_does_not_count(gpu, part, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    estimate_rates(GPU, 0)
    open_to_others = kept(tmp_path) if part == "file" else kept(tmp_path).parent
    open_to_others.chmod(0o777)
    first_use.forget()
    estimate_rates(GPU, 0)
    assert gpu.measured == 2
    assert "other users can write to" in capfd.readouterr().err
    open_to_others.chmod(0o755)


def test_where_nothing_can_be_kept_each_process_measures(gpu, monkeypatch):
    monkeypatch.setattr(cache_files, "folder", lambda *_: None)
    for turn in range(2):
        first_use.forget()
        estimate_rates(GPU, 0)
        assert gpu.measured == turn + 1 and rates_of(NAME) == derived(FACTS, FOUND)


@pytest.mark.parametrize("error", [EngineError("the GPU began"), torch.OutOfMemoryError("out of memory")])
def test_a_failed_measurement_leaves_published_figures(gpu, error, tmp_path, capfd):
    gpu.error = error
    for _ in range(2):
        estimate_rates(GPU, 0)
    assert gpu.measured == 1 and not kept(tmp_path).exists()
    assert rates_of(NAME) == derived(FACTS) and is_estimated(NAME)
    assert f"from published figures alone: {error}" in capfd.readouterr().err


def test_a_driver_that_says_too_little_leaves_no_rates(gpu, monkeypatch):
    def facts_of(name, index):
        raise ValueError

    monkeypatch.setattr(first_use, "facts_of", facts_of)
    estimate_rates(GPU, 0)
    assert rates_of(NAME) is None and gpu.measured == 0


def test_one_thread_measures(gpu):
    gpu.pause = 0.2
    start = threading.Barrier(8)

    def call(_):
        start.wait()
        estimate_rates(GPU, 0)
        return rates_of(NAME)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(8)))
    assert gpu.measured == 1 and found == 8 * [derived(FACTS, FOUND)]


_PROCESS = """
import sys, time
from pathlib import Path
import torch, contextlib
from prismm.cuda.costs import first_use, measurement
from prismm.cuda.device import Device
from tests.cuda.costs.test_first_use import FACTS, FOUND, GPU, NAME
folder, number = Path(sys.argv[1]), sys.argv[2]
def measure(device, index, begin):
    (folder / f"measured-{number}").touch()
    time.sleep(0.5)
    return FOUND
measurement.measure, first_use.facts_of = measure, lambda name, index: FACTS
torch.cuda.device = lambda _: contextlib.nullcontext()
torch.cuda.is_current_stream_capturing = lambda: False
(folder / f"ready-{number}").touch()
while len(list(folder.glob("ready-*"))) < 3:
    time.sleep(0.01)
first_use.estimate_rates(GPU, 0)
assert first_use._KNOWN[NAME] == (FACTS, FOUND), first_use._KNOWN
"""


@pytest.mark.slow
def test_one_process_measures(tmp_path, monkeypatch):
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRISMM_RATES", raising=False)
    root = Path(prismm.__file__).parents[2]
    command = [sys.executable, "-c", _PROCESS, str(tmp_path)]
    started = [subprocess.Popen([*command, str(x)], cwd=root, stderr=subprocess.PIPE) for x in range(3)]
    for one in started:
        _, error = one.communicate(timeout=120)
        assert one.returncode == 0, error.decode()
    assert len(list(tmp_path.glob("measured-*"))) == 1


# --- What is said of it -----------------------------------------------------------------------------------------------

RTX4090 = Device("NVIDIA GeForce RTX 4090", False, True, 128)


def test_explain_says_that_rates_are_estimated(tmp_path):
    a = torch.randn(512, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with pretended(RTX4090, tmp_path / "4090"):
        plan = prismm.explain(a, a)
        tuned = prismm.explain(a.float(), a.float())
    assert isinstance(plan.scheme, Residues) and plan.reasons[-1] == ESTIMATED and ESTIMATED in str(plan)
    assert tuned.scheme == Native() and ESTIMATED in tuned.reasons
    # By its own rates: float64's native product is predicted to take some times as long as on an H100.
    assert plan.native_seconds > 1e-4 > 2 * committed()["NVIDIA H200"].torch.least
    with pretended(GPUS["H100"], tmp_path / "h100"):
        assert ESTIMATED not in prismm.explain(a, a).reasons


def test_env_says_where_rates_come_from(monkeypatch, tmp_path):
    monkeypatch.setenv("PRISMM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PRISMM_RATES", raising=False)
    names = ["NVIDIA H200", "NVIDIA GeForce RTX 4090"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])
    text = env._gpu()
    assert f"{names[0]} (rates measured)" in text
    assert f"{names[1]} (rates estimated: run `prismm calibrate`)" in text
    monkeypatch.setenv("PRISMM_RATES", str(tmp_path / "missing.json"))
    assert "missing.json" in env._gpu()


def test_every_card_runs_by_its_estimate(tmp_path):
    """A call on each card goes all the way to its program, with no GPU here."""
    a = torch.randn(300, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for number, (name, facts) in enumerate(cards().items()):
        device = Device(name, facts.sm90, True, facts.processors)
        with pretended(device, tmp_path / str(number)) as launched:
            prismm.matmul(a, a)
            assert launched, name
