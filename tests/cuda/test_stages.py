"""Stages of a call: what each launch does, how many elements are split, and what a report says of seconds."""

import pytest
import torch

from prismm import Slices
from prismm.cuda.launch import stages
from prismm.cuda.launch.program import Program
from prismm.cuda.launch.steps import Launch, Zero
from prismm.schemes.multiword import Words
from prismm.schemes.native import Native
from prismm.schemes.residues import Residues
from prismm.schemes.scaled_half import ScaledHalf
from prismm.schemes.tile_int8 import TileInt8
from tests.cuda.test_programs import nobody_asks_how_much_memory_is_free, program  # noqa: F401

pytest.importorskip("triton")

SCHEMES = [
    (Residues(9), "native"), (Residues(15), "correctly-rounded"), (Native(), "native"), (ScaledHalf(), "native"),
    (Words.tf32(), None), (TileInt8(), "native"), (Slices("int8", slices=3), "native"), (Native("float64"), "native"),
    (Slices("fp16", slices=3), None), (Slices("int8", slices=3, exponents="adaptive"), "native"),
]  # fmt: skip
ORDER = {stages.SPLIT: 0, stages.MULTIPLY: 1, stages.JOIN: 2, stages.REPAIR: 3}


def stages_of(made):
    """Stages as a report is told them."""
    told = []
    for launch in made.launches:
        stage = None if isinstance(launch, Zero) or not hasattr(launch, "stage") else launch.stage
        if stage is not None and (not told or told[-1] != stage):
            told.append(stage)
    return told


@pytest.mark.parametrize(("scheme", "target"), SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_every_launch_has_a_stage(scheme, target, dtype):
    if dtype.is_complex and scheme == Native("float64"):
        pytest.skip("real alone")
    for sum_ in (False, True):
        if sum_ and target in (None, "correctly-rounded") and not isinstance(scheme, Residues | Slices):
            continue
        made, _ = program(1, 500, 300, 400, scheme, target, dtype, sum_)
        found = stages_of(made)
        assert set(found) <= set(ORDER) and stages.MULTIPLY in found
        splits = sum(made.splits)
        assert (splits > 0) == (stages.SPLIT in found or "multiply_by_words" in names(made)), (found, splits)
        if isinstance(scheme, Residues) and not dtype.is_complex:
            assert [ORDER[stage] for stage in found] == [0, 1, 2, 3] and made.splits == [500 * 300, 300 * 400]


def names(made):
    return [launch.kernel.fn.__name__ for launch in made.launches if hasattr(launch, "kernel")]


def test_blocks_split_the_inner_operand_again(monkeypatch):
    monkeypatch.setattr("prismm.cuda.blocks.LARGE", 1 << 24)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 26, 1 << 26))
    made, chosen = program(1, 900, 300, 700, Residues(15), "native")
    turns = -(-700 // chosen.blocks.columns)
    assert (made.splits == [turns * 900 * 300, 300 * 700] and turns > 1) or chosen.blocks.columns >= 700
    assert stages_of(made).count(stages.MULTIPLY) == turns * -(-900 // chosen.blocks.rows)


def test_stages_are_told_in_order(monkeypatch):
    made, _ = program(1, 500, 300, 400, Residues(9), "native")
    monkeypatch.setattr(Program, "_fill", lambda program, bases: None)
    monkeypatch.setattr(Program, "_launch", lambda program, launch, bases, stream: told.append(type(launch)))
    told = []
    made.run_in_stages((0, 0, 0, 0), 0, told.append)
    assert [x for x in told if not isinstance(x, type)] == [*ORDER, None]
    assert told.count(Launch) == len(names(made))


class Clock:
    """CUDA's events, of a GPU whose time is told."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Clock.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


def test_seconds_are_those_between_events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    times = stages.StageTimes()
    assert times.seconds() == {}
    for stage, milliseconds in ((stages.SPLIT, 2.0), (stages.MULTIPLY, 5.0), (stages.SPLIT, 1.0), (None, 0.0)):
        times.begin(stage)
        Clock.now += milliseconds
    assert times.seconds() == {stages.SPLIT: pytest.approx(3e-3), stages.MULTIPLY: pytest.approx(5e-3)}


@pytest.mark.gpu
def test_a_report_has_the_seconds_of_stages():
    import prismm

    a = torch.randn(2000, 2000, dtype=torch.float64, device="cuda")
    _, report = prismm.matmul(a, a, scheme=Residues(14), accuracy="native", full_output=True)
    assert set(report.timings) == {*ORDER, "total"}
    assert 0.0 < sum(report.timings[stage] for stage in ORDER) <= report.timings["total"]
    assert report.splits == {"left": a.numel(), "right": a.numel()}
    right = prismm.prepare(a, scheme=Residues(14), accuracy="native")
    _, report = prismm.matmul(a, right, full_output=True)
    assert report.splits == {"left": a.numel(), "right": 0}
